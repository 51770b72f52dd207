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
