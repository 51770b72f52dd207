//! The claim and the probe pod of a NetworkAttachment, and what is read of pods. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeSelector, Pod};
use k8s_openapi::api::resource::v1::{
    DeviceRequestAllocationResult, ResourceClaim, ResourceClaimConsumerReference,
};
use kube::ResourceExt as _;
use kube::api::{ApiResource, DynamicObject, Object};
use netclaim_allocation::{taint_rules, tolerates};
use netclaim_api::device::DeviceName;
use netclaim_api::network_attachment::{
    AttachmentClaim, CLAIM_FINALIZER, NETWORK_ATTACHMENT_LABEL, NETWORK_ATTACHMENT_OF, NETWORK_ATTACHMENTS,
    NetworkAttachment, attachment_name,
};
use netclaim_api::{API_VERSION, GROUP, NetworkName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::machine::{Allocation, ClaimNow, ProbeNow, Target};
use crate::networks::published::Evictions;

/// The PriorityClass of probes: nothing is evicted for one.
const PROBE_PRIORITY: &str = "netclaim-probe";

/// The image of probes, which is never started.
const PROBE_IMAGE: &str = "registry.k8s.io/pause:3.10.1";

/// The most requests of a template.
const MAX_REQUESTS: usize = 8;

/// A pod that may be attached, with little of its spec and status.
pub(super) type TargetObject = Object<TargetSpec, TargetStatus>;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TargetSpec {
    node_name: Option<String>,
    host_network: bool,
    scheduler_name: Option<String>,
    os: Option<Os>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Os {
    name: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TargetStatus {
    phase: String,
    conditions: Vec<TargetCondition>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct TargetCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// Returns the API's name of [`TargetObject`].
pub(super) fn resource() -> ApiResource {
    ApiResource::erase::<Pod>(&())
}

pub(super) fn target(pod: &TargetObject) -> Target {
    let TargetSpec { node_name, host_network, scheduler_name, os } = pod.spec.clone();
    Target {
        uid: pod.uid().unwrap_or_default(),
        node: node_name.filter(|node| !node.is_empty()),
        phase: pod.status.clone().unwrap_or_default().phase,
        is_ending: pod.metadata.deletion_timestamp.is_some(),
        has_host_network: host_network,
        scheduler: scheduler_name,
        is_windows: os.is_some_and(|os| os.name == "windows"),
    }
}

/// Returns the node of an agent's pod, if the agent is ready.
pub(super) fn ready_on(agent: &TargetObject) -> Option<String> {
    let mut conditions = agent.status.iter().flat_map(|status| &status.conditions);
    let is_ready = conditions.any(|condition| condition.kind == "Ready" && condition.status == "True");
    agent.spec.node_name.clone().filter(|_| is_ready)
}

/// Returns the UID of the NetworkAttachment that a claim or a pod is of; `None` if it only has the label.
pub(super) fn owner(object: &impl kube::Resource) -> Option<String> {
    let uid = object.meta().labels.as_ref()?.get(NETWORK_ATTACHMENT_LABEL)?;
    (object.meta().name.as_ref()? == &attachment_name(uid)).then(|| uid.clone())
}

/// Returns what the machine has to know of a claim.
pub(super) fn claim_now(claim: &ResourceClaim, owner: &str) -> Option<ClaimNow> {
    let status = claim.status.clone().unwrap_or_default();
    let reserved = status.reserved_for.unwrap_or_default();
    let is_ours = |entry: &ResourceClaimConsumerReference| is_reservation(entry, owner);
    let allocation = status.allocation.map(|allocation| Allocation {
        node: allocation.node_selector.as_ref().and_then(only_node),
        devices: json!([allocation.allocation_timestamp, allocation.devices]).to_string(),
        is_ours: reserved.iter().any(is_ours),
        is_others: !reserved.iter().all(is_ours),
    });
    let place = AttachmentClaim {
        namespace: claim.namespace()?.parse().ok()?,
        name: claim.name_any().parse().ok()?,
        uid: claim.uid()?,
    };
    Some(ClaimNow { is_deleted: claim.metadata.deletion_timestamp.is_some(), place, allocation })
}

/// Returns the only node that a selector selects, by its name.
fn only_node(selector: &NodeSelector) -> Option<String> {
    let [term] = selector.node_selector_terms.as_slice() else { return None };
    let [field] = term.match_fields.as_deref()? else { return None };
    let [node] = field.values.as_deref()? else { return None };
    (field.key == "metadata.name" && field.operator == "In").then(|| node.clone())
}

pub(super) fn probe_now(probe: &Pod) -> ProbeNow {
    let affinity = probe.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required =
        affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    let conditions = probe.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let scheduled = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled");
    ProbeNow {
        node: required.and_then(only_node).unwrap_or_default(),
        is_deleted: probe.metadata.deletion_timestamp.is_some(),
        message: scheduled.and_then(|condition| condition.message.clone()).unwrap_or_default(),
    }
}

fn is_reservation(entry: &ResourceClaimConsumerReference, owner: &str) -> bool {
    entry.uid == owner && entry.api_group.as_deref() == Some(GROUP) && entry.resource == NETWORK_ATTACHMENTS
}

/// Returns a patch that adds our reservation to the claim as it is.
pub(super) fn reservation(claim: &ResourceClaim, object: &NetworkAttachment) -> Value {
    let mut reserved = claim.status.clone().unwrap_or_default().reserved_for.unwrap_or_default();
    reserved.push(ResourceClaimConsumerReference {
        api_group: Some(GROUP.to_owned()),
        resource: NETWORK_ATTACHMENTS.to_owned(),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
    });
    json!({"metadata": version(claim), "status": {"reservedFor": reserved}})
}

/// Returns a patch that clears allocation and reservations of the claim as it is. The API server refuses one
/// without the other.
pub(super) fn release(claim: &ResourceClaim) -> Value {
    json!({"metadata": version(claim), "status": {"allocation": null, "reservedFor": null}})
}

/// Lets a patch apply to this version of an object alone.
pub(super) fn version(object: &impl kube::Resource) -> Value {
    json!({"uid": object.meta().uid, "resourceVersion": object.meta().resource_version})
}

/// Returns the ClaimNetworks whose devices are allocated.
///
/// # Errors
/// The driver of a device that is not ours.
pub(super) fn networks_of(claim: &ResourceClaim, driver: &str) -> Result<BTreeSet<NetworkName>, String> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let mut networks = BTreeSet::new();
    for result in devices.iter().flat_map(|devices| devices.results.iter().flatten()) {
        if result.driver != driver {
            return Err(result.driver.clone());
        }
        if let Ok(DeviceName::Network(network)) = result.device.parse() {
            networks.insert(network);
        }
    }
    Ok(networks)
}

/// Says which device of the claim has to be left, and why.
pub(super) fn evicted(claim: &ResourceClaim, evictions: &Evictions) -> Option<String> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    devices.iter().flat_map(|devices| devices.results.iter().flatten()).find_map(|result| {
        let DeviceRequestAllocationResult { driver, pool, device, tolerations, .. } = result;
        let key = (pool.clone(), device.clone());
        let published = evictions.taints.get(&key).into_iter().flatten();
        let rules = taint_rules::closing(&evictions.rules, driver, pool, device);
        let of_rules = rules.map(|rule| &rule.spec.taint);
        let taint = published
            .chain(of_rules)
            .find(|taint| !tolerations.iter().flatten().any(|toleration| tolerates(toleration, taint)))?;
        Some(format!("device {device} of pool {pool} has the taint {} with the effect NoExecute", taint.key))
    })
}

/// Returns the claim of an object. It has all that the template asks for, also what is not known here.
///
/// # Errors
/// The template cannot be used for it.
pub(super) fn claim_of(
    object: &NetworkAttachment,
    template: &DynamicObject,
    namespace: &str,
    driver: &str,
) -> Result<Value, String> {
    let mut spec = template.data["spec"]["spec"].clone();
    let requests = spec["devices"]["requests"].as_array().cloned().unwrap_or_default();
    let refused = |why: String| Err(format!("ResourceClaimTemplate {} {why}", template.name_any()));
    if requests.is_empty() || requests.len() > MAX_REQUESTS {
        return refused(format!("has {} requests: write 1 to {MAX_REQUESTS}", requests.len()));
    }
    if requests.iter().any(|request| request["exactly"]["adminAccess"] == true) {
        return refused("asks for adminAccess, by which no pod is attached".to_owned());
    }
    if let Some(name) = &object.spec.interface_name {
        let is_one = requests.len() == 1 && requests.iter().all(is_for_one_device);
        let configs =
            spec["devices"].as_object_mut().map(|devices| devices.entry("config").or_insert(json!([])));
        match configs.and_then(Value::as_array_mut).filter(|_| is_one) {
            // The last configuration of a claim wins.
            Some(configs) => configs.push(json!({"opaque": {"driver": driver, "parameters": {
                "apiVersion": API_VERSION, "kind": "AttachmentConfig", "interfaceName": name,
            }}})),
            None => {
                return refused(format!(
                    "asks for several devices, and spec.interfaceName {} is one name: leave it out, and name the interfaces in \
                     the template",
                    name.as_str()
                ));
            }
        }
    }
    let uid = object.uid().unwrap_or_default();
    let of = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
    Ok(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {
            "name": attachment_name(&uid), "namespace": namespace, "finalizers": [CLAIM_FINALIZER],
            "labels": {NETWORK_ATTACHMENT_LABEL: uid}, "annotations": {NETWORK_ATTACHMENT_OF: of},
        },
        "spec": spec,
    }))
}

fn is_for_one_device(request: &Value) -> bool {
    let alternatives = request["firstAvailable"].as_array().into_iter().flatten();
    alternatives.chain([&request["exactly"]]).all(|one| {
        one["allocationMode"].as_str().unwrap_or("ExactCount") == "ExactCount"
            && one["count"].as_i64().unwrap_or(1) == 1
    })
}

/// Returns the probe pod of an object: the scheduler allocates the claim for it, and cannot bind it.
pub(super) fn probe_of(object: &NetworkAttachment, pod: &Target, namespace: &str) -> Value {
    let uid = object.uid().unwrap_or_default();
    let name = attachment_name(&uid);
    let on_node = json!({"key": "metadata.name", "operator": "In", "values": [pod.node]});
    let security = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {NETWORK_ATTACHMENT_LABEL: uid}},
        "spec": {
            "schedulerName": pod.scheduler, "priorityClassName": PROBE_PRIORITY,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [on_node]}]}}},
            // The pod is on the node already, whatever its taints are.
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": false, "enableServiceLinks": false,
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "resourceClaims": [{"name": "networks", "resourceClaimName": name}],
            "containers": [{
                "name": "probe", "image": PROBE_IMAGE, "imagePullPolicy": "Never", "securityContext": security,
                "resources": {"claims": [{"name": "networks"}]},
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: Value) -> NetworkAttachment {
        let mut object = json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment",
            "metadata": {"name": "a", "namespace": "shop", "uid": "u"},
            "spec": {"podName": "web-0", "resourceClaimTemplateName": "backup"},
        });
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    /// Makes the claim of a template with these devices.
    fn made(spec: Value, devices: Value) -> Result<Value, String> {
        let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": "backup", "namespace": "shop"},
            "spec": {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": devices}}});
        let template = serde_json::from_value(template).unwrap();
        claim_of(&object(spec), &template, "netclaim-system", "netclaim.dev")
    }

    fn request(name: &str) -> Value {
        json!({"name": name, "exactly": {"deviceClassName": "storage"}})
    }

    #[test]
    fn the_claim_has_all_that_the_template_asks_for_and_none_of_its_labels() {
        let devices = json!({"requests": [request("net")], "ofALaterKubernetes": [1]});
        let claim = made(json!({}), devices.clone()).unwrap();
        assert_eq!(claim["spec"]["devices"], devices);
        assert_eq!(claim["metadata"]["labels"], json!({NETWORK_ATTACHMENT_LABEL: "u"}));
        assert_eq!(claim["metadata"]["annotations"], json!({NETWORK_ATTACHMENT_OF: "shop/a"}));
        assert_eq!(
            (&claim["metadata"]["name"], &claim["metadata"]["namespace"]),
            (&json!("attachment-u"), &json!("netclaim-system"))
        );
    }

    #[test]
    fn the_name_of_the_interface_is_the_last_configuration() {
        let config = json!({"opaque": {"driver": "netclaim.dev", "parameters": {"interfaceName": "net1"}}});
        let devices = json!({"requests": [request("net")], "config": [config]});
        let claim = made(json!({"interfaceName": "net2"}), devices).unwrap();
        let configs = claim["spec"]["devices"]["config"].as_array().unwrap();
        let parameters = &configs.last().unwrap()["opaque"]["parameters"];
        assert_eq!((configs.len(), &parameters["interfaceName"]), (2, &json!("net2")));
    }

    #[test]
    fn templates_that_cannot_be_used_are_named() {
        let mut admin = request("net");
        admin["exactly"]["adminAccess"] = json!(true);
        let mut all = request("net");
        all["exactly"]["allocationMode"] = json!("All");
        let many: Vec<Value> = (0..9).map(|i| request(&format!("r{i}"))).collect();
        let named = json!({"interfaceName": "net2"});
        for (spec, requests, words) in [
            (json!({}), json!([]), "has 0 requests"),
            (json!({}), json!(many), "has 9 requests"),
            (json!({}), json!([admin]), "asks for adminAccess"),
            (named.clone(), json!([request("a"), request("b")]), "asks for several devices"),
            (named, json!([all]), "asks for several devices"),
        ] {
            let refused = made(spec, json!({"requests": requests})).unwrap_err();
            assert!(
                refused.starts_with("ResourceClaimTemplate backup ") && refused.contains(words),
                "{refused}"
            );
        }
    }

    /// A claim with these reservations of a device.
    fn claim(reserved: Value, tolerations: Value) -> ResourceClaim {
        let result = json!({"request": "net", "driver": "netclaim.dev", "pool": "n1", "device": "net-storage", "tolerations": tolerations});
        let selector = json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]});
        let claim = json!({
            "metadata": {"name": "attachment-u", "namespace": "netclaim-system", "uid": "c", "resourceVersion": "7"},
            "spec": {}, "status": {"reservedFor": reserved,
                "allocation": {"nodeSelector": selector, "devices": {"results": [result]}}},
        });
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn our_reservation_is_told_from_those_of_pods_and_of_other_kinds() {
        let ours =
            json!({"apiGroup": "netclaim.dev", "resource": "networkattachments", "name": "a", "uid": "u"});
        let pod = json!({"resource": "pods", "name": "attachment-u", "uid": "u"});
        for (reserved, expected) in [
            (json!([]), (false, false)),
            (json!([ours]), (true, false)),
            (json!([pod]), (false, true)),
            (json!([pod, ours]), (true, true)),
        ] {
            let now = claim_now(&claim(reserved, json!([])), "u").unwrap().allocation.unwrap();
            assert_eq!(((now.is_ours, now.is_others), now.node.as_deref()), (expected, Some("n1")));
        }
        let patch = reservation(&claim(json!([pod]), json!([])), &object(json!({})));
        assert_eq!(patch["status"], json!({"reservedFor": [pod, ours]}));
        assert_eq!(patch["metadata"], json!({"uid": "c", "resourceVersion": "7"}));
    }

    #[test]
    fn a_device_that_must_be_left_is_named_unless_the_claim_tolerates_it() {
        let taint = json!({"key": "netclaim.dev/link-down", "effect": "NoExecute"});
        let key = ("n1".to_owned(), "net-storage".to_owned());
        let taints = [(key, vec![serde_json::from_value(taint).unwrap()])].into();
        let rule = json!({"metadata": {"name": "out"}, "spec": {"deviceSelector": {"pool": "n1"},
            "taint": {"key": "example.com/out", "effect": "NoExecute"}}});
        let published = Evictions { taints, rules: Vec::new() };
        let of_admin =
            Evictions { rules: vec![serde_json::from_value(rule).unwrap()], ..Evictions::default() };
        let all = json!([{"operator": "Exists"}]);
        for (evictions, key) in [(&published, "netclaim.dev/link-down"), (&of_admin, "example.com/out")] {
            let why = evicted(&claim(json!([]), json!([])), evictions).unwrap();
            assert!(
                why.starts_with("device net-storage of pool n1 has the taint") && why.contains(key),
                "{why}"
            );
            assert_eq!(evicted(&claim(json!([]), all.clone()), evictions), None);
        }
        assert_eq!(evicted(&claim(json!([]), json!([])), &Evictions::default()), None);
    }

    #[test]
    fn devices_of_other_drivers_are_refused() {
        let mut foreign = claim(json!([]), json!([]));
        assert_eq!(networks_of(&foreign, "netclaim.dev").map(|all| all.len()), Ok(1));
        let results = foreign.status.as_mut().unwrap().allocation.as_mut().unwrap().devices.as_mut().unwrap();
        results.results.as_mut().unwrap()[0].driver = "gpu.example.com".to_owned();
        assert_eq!(networks_of(&foreign, "netclaim.dev"), Err("gpu.example.com".to_owned()));
    }

    #[test]
    fn a_probe_is_for_the_node_of_the_pod() {
        let pod =
            Target { node: Some("n1".to_owned()), scheduler: Some("other".to_owned()), ..Target::default() };
        let probe = probe_of(&object(json!({})), &pod, "netclaim-system");
        assert_eq!(probe["spec"]["schedulerName"], "other");
        let probe: Pod = serde_json::from_value(probe).unwrap();
        assert_eq!((probe_now(&probe).node.as_str(), owner(&probe).as_deref()), ("n1", Some("u")));
        assert!(probe.spec.unwrap().node_name.is_none());
    }
}
