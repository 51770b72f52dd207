//! Pods that ask for devices by `limits` (extended resources). The scheduler makes their claim when it has found a node.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::DeviceClass;

/// The domain of the resources that every class has.
const OF_CLASS: &str = "deviceclass.resource.kubernetes.io";

/// A resource that a pod asks for, and the classes that serve it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Limit {
    resource: String,
    classes: Vec<String>,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (class {})", self.resource, self.classes.join(" or "))
    }
}

/// Whether a class may serve a limit of the pod that has no claim yet.
pub(super) fn has_any(pod: &Pod) -> bool {
    resources(pod).next().is_some()
}

/// Returns the limits of the pod that classes serve, each once. Without `classes`, those that name their class.
pub(super) fn of_pod(pod: &Pod, classes: Option<&[DeviceClass]>) -> Vec<Limit> {
    let named = |resource: &str| {
        resource.split_once('/').filter(|(domain, _)| *domain == OF_CLASS).map(|(_, class)| class.to_owned())
    };
    let served = |resource: &str| -> Vec<String> {
        let serves = |class: &&DeviceClass| {
            let name = class.spec.as_ref().and_then(|spec| spec.extended_resource_name.as_deref());
            name == Some(resource)
        };
        let classes = classes.unwrap_or_default().iter().filter(serves);
        classes.filter_map(|class| class.metadata.name.clone()).chain(named(resource)).collect()
    };
    let limits: BTreeMap<&str, Vec<String>> =
        resources(pod).map(|resource| (resource, served(resource))).collect();
    let limits = limits.into_iter().filter(|(_, classes)| !classes.is_empty());
    limits.map(|(resource, classes)| Limit { resource: resource.to_owned(), classes }).collect()
}

/// The limits of all containers that are not resources of Kubernetes itself.
fn resources(pod: &Pod) -> impl Iterator<Item = &str> {
    let has_claim = pod.status.as_ref().is_some_and(|status| status.extended_resource_claim_status.is_some());
    let spec = pod.spec.as_ref().filter(|_| !has_claim);
    let containers =
        spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let limits = containers.flat_map(|container| {
        container.resources.iter().flat_map(|resources| resources.limits.iter().flatten())
    });
    limits.filter(|(name, amount)| name.contains('/') && amount.0 != "0").map(|(name, _)| name.as_str())
}
