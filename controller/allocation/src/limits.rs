//! What containers ask for by `resources.limits`, as the claim that the scheduler makes of it
//! (`extendeddynamicresources.go`).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceClass, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use netclaim_kubernetes::quantity::{ONE, billionths};

/// The beginning of the resources that every class has.
const OF_CLASS: &str = "deviceclass.resource.kubernetes.io/";

/// The name of the claim before the scheduler has found a node. No object can have it.
pub(crate) const CLAIM: &str = "<extended-resources>";

/// What containers ask for by limits that classes serve.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The claim that the scheduler makes, with requests that are named for people: `RESOURCE of container
    /// NAME`.
    pub claim: ResourceClaim,
    /// The resource of each request. A node does not need the request if a device plugin there has the
    /// resource.
    pub(crate) resources: Vec<String>,
}

/// Whether classes may serve a resource: it is none of Kubernetes itself.
pub fn is_extended(resource: &str) -> bool {
    let is_native = !resource.contains('/') || resource.contains("kubernetes.io/");
    resource.starts_with(OF_CLASS) || !is_native && !resource.starts_with("requests.")
}

/// Returns the resources in the limits of a pod's containers that classes may serve.
pub fn extended_resources(pod: &PodSpec) -> BTreeSet<&str> {
    let containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    let limits = containers
        .flat_map(|container| container.resources.iter().flat_map(|of| of.limits.iter().flatten()))
        .filter(|(resource, amount)| is_extended(resource) && amount.0 != "0");
    limits.map(|(resource, _)| resource.as_str()).collect()
}

/// Returns the class by whose name a resource is called, whether it exists or not.
pub fn class_named_by(resource: &str) -> Option<&str> {
    resource.strip_prefix(OF_CLASS)
}

/// Whether a class serves one of the resources.
pub fn serves(class: &DeviceClass, resources: &BTreeSet<&str>) -> bool {
    let of_name = class.metadata.name.as_ref().map(|name| format!("{OF_CLASS}{name}"));
    extended_name(class).is_some_and(|name| resources.contains(name))
        || of_name.is_some_and(|name| resources.contains(name.as_str()))
}

fn extended_name(class: &DeviceClass) -> Option<&str> {
    class.spec.as_ref()?.extended_resource_name.as_deref()
}

/// Returns the class that serves a resource: of those with the same one, the newest, and of these the first
/// by name.
fn class_of<'a>(resource: &str, classes: &'a [DeviceClass]) -> Option<&'a str> {
    let name = |class: &'a DeviceClass| class.metadata.name.as_deref();
    if let Some(of_name) = class_named_by(resource) {
        return classes.iter().filter_map(name).find(|name| *name == of_name);
    }
    let serving = classes.iter().filter(|class| extended_name(class) == Some(resource));
    let created = |class: &DeviceClass| class.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let newest = serving
        .max_by(|one, other| created(one).cmp(&created(other)).then_with(|| name(other).cmp(&name(one))));
    newest.and_then(name)
}

/// A request of a container.
struct Needed<'a> {
    container: &'a Container,
    count: i64,
}

impl Limits {
    /// Returns what a pod asks for by limits; `None` if classes serve none of them.
    pub fn of(pod: &PodSpec, classes: &[DeviceClass]) -> Option<Self> {
        let mut limits = Self { claim: ResourceClaim::default(), resources: Vec::new() };
        let mut requests = Vec::new();
        for resource in extended_resources(pod) {
            let Some(class) = class_of(resource, classes) else { continue };
            for needed in needed(pod, resource) {
                requests.push(needed.request(resource, class));
                limits.resources.push(resource.to_owned());
            }
        }
        let devices = DeviceClaim { requests: Some(requests), ..DeviceClaim::default() };
        limits.claim = ResourceClaim {
            metadata: ObjectMeta { name: Some(CLAIM.to_owned()), ..ObjectMeta::default() },
            spec: Some(ResourceClaimSpec { devices: Some(devices) }),
            status: None,
        };
        (!limits.resources.is_empty()).then_some(limits)
    }
}

/// Returns how much of a resource containers need. Init containers that end share one request, and use what
/// later containers have.
fn needed<'a>(pod: &'a PodSpec, resource: &str) -> Vec<Needed<'a>> {
    let init = pod.init_containers.iter().flatten();
    let is_sidecar = |container: &Container| container.restart_policy.as_deref() == Some("Always");
    let containers = init.map(|container| (container, !is_sidecar(container)));
    let containers: Vec<(&Container, bool)> =
        containers.chain(pod.containers.iter().map(|container| (container, false))).collect();
    let mut lasting = Vec::new();
    // How many devices containers have that start later and stay, and the most that an init container needs
    // beside these.
    let (mut later, mut short): (i64, Option<Needed<'a>>) = (0, None);
    for (container, ends) in containers.into_iter().rev() {
        let count = count(container, resource);
        if !ends {
            later = later.saturating_add(count);
            lasting.extend((count > 0).then_some(Needed { container, count }));
        } else if count > later && short.as_ref().is_none_or(|short| short.count <= count - later) {
            short = Some(Needed { container, count: count - later });
        }
    }
    short.into_iter().chain(lasting.into_iter().rev()).collect()
}

/// How many devices a container asks for; 0 if that is not a whole number.
fn count(container: &Container, resource: &str) -> i64 {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let amount = limits.and_then(|limits| limits.get(resource)).and_then(|amount| billionths(&amount.0).ok());
    let whole = amount.filter(|amount| amount % ONE == 0).map(|amount| amount / ONE);
    whole.and_then(|whole| i64::try_from(whole).ok()).unwrap_or_default().max(0)
}

impl Needed<'_> {
    fn request(&self, resource: &str, class: &str) -> DeviceRequest {
        let exactly = ExactDeviceRequest {
            device_class_name: class.to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(self.count),
            ..ExactDeviceRequest::default()
        };
        let name = format!("{resource} of container {}", self.container.name);
        DeviceRequest { name, exactly: Some(exactly), ..DeviceRequest::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn class(name: &str, resource: Option<&str>, created: &str) -> DeviceClass {
        from(
            json!({"metadata": {"name": name, "creationTimestamp": created}, "spec": {"extendedResourceName": resource}}),
        )
    }

    const DAY: &str = "2026-11-22T00:00:00Z";

    fn classes() -> Vec<DeviceClass> {
        vec![class("lab", Some("example.com/lab"), DAY), class("fast", None, DAY)]
    }

    fn container(name: &str, limits: Value) -> Value {
        json!({"name": name, "resources": {"limits": limits}})
    }

    /// The requests as `NAME: CLASS x COUNT`.
    fn requests(pod: Value, classes: &[DeviceClass]) -> Vec<String> {
        let limits = Limits::of(&from(pod), classes);
        let requests = limits.and_then(|limits| limits.claim.spec?.devices?.requests).unwrap_or_default();
        let line = |request: DeviceRequest| {
            let exactly = request.exactly.unwrap();
            format!("{}: {} x {}", request.name, exactly.device_class_name, exactly.count.unwrap())
        };
        requests.into_iter().map(line).collect()
    }

    #[test]
    fn each_container_has_a_request_for_each_resource_that_a_class_serves() {
        let limits = json!({"example.com/lab": "2", "example.com/gpu": "1", "cpu": "1", "memory": "1Gi",
            "deviceclass.resource.kubernetes.io/fast": "1", "deviceclass.resource.kubernetes.io/none": "1"});
        let pod = json!({"containers": [container("web", limits), container("log", json!({"example.com/lab": "1"})),
            container("none", json!({"example.com/lab": "0"})), {"name": "plain"}]});
        let expected = [
            "deviceclass.resource.kubernetes.io/fast of container web: fast x 1",
            "example.com/lab of container web: lab x 2",
            "example.com/lab of container log: lab x 1",
        ];
        assert_eq!(requests(pod, &classes()), expected);
        let foreign = json!({"containers": [container("web", json!({"example.com/gpu": "1", "cpu": "1"}))]});
        assert_eq!(requests(foreign, &classes()), [""; 0]);
    }

    #[test]
    fn init_containers_share_a_request_and_use_what_later_containers_have() {
        let lab = |name: &str, count: &str| container(name, json!({"example.com/lab": count}));
        let mut sidecar = lab("sidecar", "1");
        sidecar["restartPolicy"] = json!("Always");
        let pod =
            |init: Value, count: &str| json!({"initContainers": init, "containers": [lab("web", count)]});
        let one = pod(json!([lab("first", "2"), lab("second", "1")]), "2");
        assert_eq!(requests(one, &classes()), ["example.com/lab of container web: lab x 2"]);
        let more = pod(json!([lab("first", "3"), sidecar, lab("second", "4")]), "1");
        let expected = [
            "example.com/lab of container second: lab x 3",
            "example.com/lab of container sidecar: lab x 1",
            "example.com/lab of container web: lab x 1",
        ];
        assert_eq!(requests(more, &classes()), expected);
    }

    #[test]
    fn the_newest_class_of_a_resource_serves_it() {
        let pod = json!({"containers": [container("web", json!({"example.com/lab": "1"}))]});
        let lab = Some("example.com/lab");
        let mut classes =
            vec![class("old", lab, "2026-11-21T00:00:00Z"), class("b", lab, DAY), class("a", lab, DAY)];
        for _ in 0..3 {
            classes.rotate_left(1);
            assert_eq!(requests(pod.clone(), &classes), ["example.com/lab of container web: a x 1"]);
        }
    }
}
