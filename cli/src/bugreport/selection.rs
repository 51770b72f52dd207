//! Which objects belong to netclaim, and what of others' objects is shown. Pure.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use netclaim_api::DRIVER_NAME;
use serde_json::{Map, Value, json};

use crate::printable::escaped;

/// A namespace and a name.
pub(super) type Name = (String, String);

/// Returns the object's namespace and name.
pub(super) fn name_of(object: &Value) -> Name {
    let metadata = &object["metadata"];
    (text(&metadata["namespace"]).to_owned(), text(&metadata["name"]).to_owned())
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Whether a DeviceClass selects or configures netclaim's devices.
pub(super) fn is_our_class(class: &Value) -> bool {
    class["spec"].to_string().contains(DRIVER_NAME)
}

/// Whether a claim has a device of netclaim, asks for one by one of these classes, or names the driver: a
/// claim that waits has nothing else if its class is for every driver.
pub(super) fn is_our_claim(claim: &Value, classes: &BTreeSet<String>) -> bool {
    let results = list(&claim["status"]["allocation"]["devices"]["results"]);
    let devices = list(&claim["status"]["devices"]);
    let asks = |request: &Value| {
        let class = |request: &Value| classes.contains(text(&request["deviceClassName"]));
        class(&request["exactly"]) || list(&request["firstAvailable"]).any(class)
    };
    results.chain(devices).any(|device| device["driver"] == DRIVER_NAME)
        || list(&claim["spec"]["devices"]["requests"]).any(asks)
        || claim["spec"].to_string().contains(DRIVER_NAME)
}

/// Whether one of the pod's claims is one of these.
pub(super) fn has_claim(pod: &Value, claims: &BTreeSet<Name>) -> bool {
    let namespace = text(&pod["metadata"]["namespace"]);
    let named = list(&pod["spec"]["resourceClaims"]).chain(list(&pod["status"]["resourceClaimStatuses"]));
    let named = named.map(|claim| &claim["resourceClaimName"]);
    let extended = &pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"];
    named.chain([extended]).any(|claim| claims.contains(&(namespace.to_owned(), text(claim).to_owned())))
}

/// Returns what is shown of a node.
pub(super) fn node(node: &Value) -> Value {
    let info = &node["status"]["nodeInfo"];
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": some(&node["metadata"], &["name", "labels"]),
        "status": {
            "conditions": node["status"]["conditions"],
            "nodeInfo": some(info, &["containerRuntimeVersion", "kubeletVersion"]),
        },
    })
}

/// Returns what is shown of a pod of another owner: its claims, and how far it is.
pub(super) fn foreign_pod(pod: &Value) -> Value {
    let container = |container: &Value| {
        let mut shown = some(container, &["name"]);
        shown["resources"] = some(&container["resources"], &["claims"]);
        shown
    };
    let mut spec = some(&pod["spec"], &["nodeName", "resourceClaims", "restartPolicy", "hostNetwork"]);
    for field in ["initContainers", "containers"] {
        let containers: Vec<Value> = list(&pod["spec"][field]).map(container).collect();
        if !containers.is_empty() {
            spec[field] = Value::Array(containers);
        }
    }
    let state = |status: &Value| {
        let mut shown = some(status, &["name", "ready", "restartCount", "state", "lastState"]);
        // What the application has written when it ended, and its image.
        for state in ["/state/terminated", "/lastState/terminated", "/state/waiting"] {
            shown.pointer_mut(state).and_then(Value::as_object_mut).map(|state| state.remove("message"));
        }
        shown
    };
    let mut status = some(
        &pod["status"],
        &["phase", "reason", "message", "conditions", "resourceClaimStatuses", "extendedResourceClaimStatus"],
    );
    for field in ["initContainerStatuses", "containerStatuses"] {
        let states: Vec<Value> = list(&pod["status"][field]).map(state).collect();
        if !states.is_empty() {
            status[field] = Value::Array(states);
        }
    }
    let metadata = ["namespace", "name", "uid", "creationTimestamp", "deletionTimestamp", "ownerReferences"];
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": some(&pod["metadata"], &metadata),
        "spec": spec,
        "status": status,
    })
}

/// Returns those of the fields that the object has.
fn some(object: &Value, fields: &[&str]) -> Value {
    let has = |field: &&str| Some(((*field).to_owned(), object.get(*field)?.clone()));
    Value::Object(fields.iter().filter_map(has).collect::<Map<_, _>>())
}

/// What events are about.
#[derive(Debug, Default)]
pub(super) struct Subjects {
    /// netclaim's namespace.
    pub(super) namespace: String,
    pub(super) claims: BTreeSet<Name>,
    /// Pods with such a claim.
    pub(super) pods: BTreeSet<Name>,
}

impl Subjects {
    /// Whether netclaim reports the event, or it is about one of its objects.
    pub(super) fn have(&self, event: &Value) -> bool {
        let object = &event["involvedObject"];
        let name = || (text(&object["namespace"]).to_owned(), text(&object["name"]).to_owned());
        let reporters = [&event["reportingComponent"], &event["source"]["component"]];
        reporters.into_iter().any(|reporter| text(reporter).contains("netclaim"))
            || text(&object["apiVersion"]).starts_with(&format!("{DRIVER_NAME}/"))
            || text(&object["namespace"]) == self.namespace
            || match text(&object["kind"]) {
                "Pod" => self.pods.contains(&name()),
                "ResourceClaim" => self.claims.contains(&name()),
                _ => false,
            }
    }
}

/// When an event happened last.
pub(super) fn time_of(event: &Value) -> Option<Timestamp> {
    let times = [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["eventTime"],
        &event["metadata"]["creationTimestamp"],
    ];
    times.into_iter().filter_map(|time| text(time).parse().ok()).max()
}

/// Returns an event in one line: when, what, about which object, by whom.
pub(super) fn event_line(time: Timestamp, event: &Value) -> String {
    let object = &event["involvedObject"];
    let namespace = text(&object["namespace"]);
    let slash = if namespace.is_empty() { "" } else { "/" };
    let count = event["series"]["count"].as_i64().or_else(|| event["count"].as_i64()).unwrap_or(1);
    let reporter = [&event["reportingComponent"], &event["source"]["component"]];
    let reporter = reporter.into_iter().map(text).find(|reporter| !reporter.is_empty()).unwrap_or("unknown");
    escaped(format!(
        "{time} {} {} {} {namespace}{slash}{} x{count} by {reporter}: {}",
        text(&event["type"]),
        text(&event["reason"]),
        text(&object["kind"]),
        text(&object["name"]),
        text(&event["message"]),
    )) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_ours_by_their_device_their_class_or_the_drivers_name() {
        let classes = BTreeSet::from(["storage".to_owned()]);
        let asks = |request: Value| json!({"spec": {"devices": {"requests": [request]}}});
        assert!(is_our_claim(&asks(json!({"exactly": {"deviceClassName": "storage"}})), &classes));
        assert!(is_our_claim(
            &asks(json!({"firstAvailable": [{"deviceClassName": "x"}, {"deviceClassName": "storage"}]})),
            &classes
        ));
        assert!(!is_our_claim(&asks(json!({"exactly": {"deviceClassName": "gpu"}})), &classes));
        let selector = json!({"cel": {"expression": "device.driver == \"netclaim.dev\""}});
        assert!(is_our_claim(
            &asks(json!({"exactly": {"deviceClassName": "any", "selectors": [selector]}})),
            &classes
        ));
        let config = json!({"opaque": {"driver": "netclaim.dev", "parameters": {}}});
        assert!(is_our_claim(&json!({"spec": {"devices": {"config": [config]}}}), &classes));
        let has =
            |driver: &str| json!({"status": {"allocation": {"devices": {"results": [{"driver": driver}]}}}});
        assert!(is_our_claim(&has(DRIVER_NAME), &BTreeSet::new()));
        assert!(!is_our_claim(&has("gpu.example.com"), &classes));
    }

    #[test]
    fn a_pod_of_another_owner_shows_no_image_command_environment_or_message() {
        let pod = json!({"metadata": {"namespace": "shop", "name": "web", "annotations": {"a": "b"}}, "spec": {
                "nodeName": "a", "resourceClaims": [{"name": "net", "resourceClaimTemplateName": "t"}], "volumes": [{"name": "v"}],
                "containers": [{"name": "app", "image": "i", "command": ["c"], "env": [{"name": "A", "value": "hunter2"}],
                    "resources": {"claims": [{"name": "net"}], "limits": {"cpu": "1"}}}]},
            "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "net", "resourceClaimName": "web-net-x"}],
                "containerStatuses": [{"name": "app", "image": "i", "imageID": "i", "restartCount": 1,
                    "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image i"}},
                    "lastState": {"terminated": {"exitCode": 1, "message": "customer hunter2"}}}]}});
        assert!(has_claim(&pod, &BTreeSet::from([("shop".to_owned(), "web-net-x".to_owned())])));
        assert!(!has_claim(&pod, &BTreeSet::from([("bank".to_owned(), "web-net-x".to_owned())])));
        let shown = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web"}, "spec": {
                "nodeName": "a", "resourceClaims": [{"name": "net", "resourceClaimTemplateName": "t"}],
                "containers": [{"name": "app", "resources": {"claims": [{"name": "net"}]}}]},
            "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "net", "resourceClaimName": "web-net-x"}],
                "containerStatuses": [{"name": "app", "restartCount": 1, "state": {"waiting": {"reason": "ImagePullBackOff"}},
                    "lastState": {"terminated": {"exitCode": 1}}}]}});
        assert_eq!(foreign_pod(&pod), shown);
    }

    #[test]
    fn a_node_shows_only_labels_conditions_and_versions() {
        let shown = node(
            &json!({"metadata": {"name": "a", "labels": {"zone": "1"}, "annotations": {"a": "b"}},
            "spec": {"podCIDR": "10.0.0.0/24", "providerID": "x"}, "status": {"addresses": [{"address": "192.0.2.1"}],
            "conditions": [{"type": "Ready", "status": "True"}], "images": [{"names": ["i"]}],
            "nodeInfo": {"kubeletVersion": "v1.37.1", "containerRuntimeVersion": "containerd://2.3.7", "machineID": "m"}}}),
        );
        assert_eq!(
            shown,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"zone": "1"}}, "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"kubeletVersion": "v1.37.1", "containerRuntimeVersion": "containerd://2.3.7"}}})
        );
    }

    #[test]
    fn events_are_those_of_netclaim_its_objects_and_pods_with_its_claims() {
        let name = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let subjects = Subjects {
            namespace: "netclaim-system".to_owned(),
            claims: BTreeSet::from([name("shop", "web")]),
            pods: BTreeSet::from([name("shop", "web")]),
        };
        let about = |kind: &str, namespace: &str, name: &str| json!({"involvedObject": {"apiVersion": "v1", "kind": kind, "namespace": namespace, "name": name}});
        assert!(
            subjects.have(&about("Pod", "shop", "web"))
                && subjects.have(&about("ResourceClaim", "shop", "web"))
        );
        assert!(subjects.have(&about("DaemonSet", "netclaim-system", "netclaim-agent")));
        assert!(
            !subjects.have(&about("Pod", "shop", "db"))
                && !subjects.have(&about("Deployment", "shop", "web"))
        );
        assert!(subjects.have(
            &json!({"involvedObject": {"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork"}})
        ));
        assert!(
            subjects.have(&json!({"involvedObject": {"kind": "Node"}, "reportingComponent": "netclaim.dev"}))
        );
        assert!(
            !subjects.have(&json!({"involvedObject": {"kind": "Node"}, "reportingComponent": "kubelet"}))
        );
    }

    #[test]
    fn an_event_is_one_line_with_its_last_time() {
        let event = json!({"metadata": {"creationTimestamp": "2026-11-22T00:00:00Z"}, "eventTime": "2026-11-22T00:00:00.000001Z",
            "series": {"lastObservedTime": "2026-11-22T00:05:00.000000Z", "count": 7}, "type": "Warning",
            "reason": "NetworkAttachFailed", "message": "a\nb", "reportingComponent": "netclaim.dev",
            "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web"}});
        let time = time_of(&event).unwrap();
        assert_eq!(
            event_line(time, &event),
            "2026-11-22T00:05:00Z Warning NetworkAttachFailed Pod shop/web x7 by netclaim.dev: a\\nb\n"
        );
        assert_eq!(time_of(&json!({})), None);
    }
}
