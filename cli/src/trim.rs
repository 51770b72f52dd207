//! The parts that are kept of objects that a big cluster has by tens of thousands. The rest of a page is
//! freed before the next one comes.

use k8s_openapi::api::core::v1::{Node, NodeStatus, Pod};
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use kube::Resource;
use netclaim_allocation::is_extended;
use netclaim_api::DRIVER_NAME;
use netclaim_api::reasons::{ReadyReason, Reason as _};

use crate::claimed;

/// Keeps all but who has set which field.
pub(crate) fn whole<K: Resource>(mut object: K) -> Option<K> {
    object.meta_mut().managed_fields = None;
    Some(object)
}

/// Keeps which devices of netclaim the claim has, for which pods, and which DELs fail; `None` if it has none.
pub(crate) fn held(claim: ResourceClaim) -> Option<ResourceClaim> {
    let mut kept = ResourceClaim::default();
    (kept.metadata.namespace, kept.metadata.name) = (claim.metadata.namespace, claim.metadata.name);
    let mut status = claim.status?;
    // What CNI plugins have returned is most of a claim.
    status.devices = status.devices.map(failing).filter(|devices| !devices.is_empty());
    let devices = status.allocation.as_mut()?.devices.as_mut()?;
    devices.config = None;
    let results = devices.results.as_mut()?;
    results.retain(|result| result.driver == DRIVER_NAME);
    if results.is_empty() {
        return None;
    }
    kept.status = Some(status);
    Some(kept)
}

/// Keeps the devices whose DEL fails, and why.
fn failing(devices: Vec<AllocatedDeviceStatus>) -> Vec<AllocatedDeviceStatus> {
    let fails = |device: &AllocatedDeviceStatus| {
        let reason = claimed::ready(device).map(|condition| condition.reason.as_str());
        device.driver == DRIVER_NAME && reason == Some(ReadyReason::DetachFailed.as_str())
    };
    let devices = devices.into_iter().filter(fails);
    devices.map(|device| AllocatedDeviceStatus { data: None, network_data: None, ..device }).collect()
}

/// Keeps what says whether the node takes pods, what device plugins have there, and its versions. A node
/// lists all its images.
pub(crate) fn node(node: Node) -> Option<Node> {
    let mut node = whole(node)?;
    node.metadata.annotations = None;
    node.status = node.status.map(|NodeStatus { node_info, mut allocatable, .. }| {
        allocatable.iter_mut().for_each(|resources| resources.retain(|name, _| is_extended(name)));
        NodeStatus { node_info, allocatable, ..NodeStatus::default() }
    });
    Some(node)
}

/// Keeps the state of one of netclaim's pods, and how to reach it.
pub(crate) fn own_pod(pod: Pod) -> Option<Pod> {
    let mut pod = whole(pod)?;
    pod.metadata.annotations = None;
    if let Some(spec) = &mut pod.spec {
        spec.volumes = None;
        for container in &mut spec.containers {
            container.volume_mounts = None;
        }
    }
    Some(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(drivers: &[&str]) -> ResourceClaim {
        let result =
            |driver: &&str| json!({"driver": driver, "pool": "a", "device": "net-a", "request": "net"});
        let results: Vec<Value> = drivers.iter().map(result).collect();
        let device = json!({"driver": "netclaim.dev", "pool": "a", "device": "net-a", "data": {"cniVersion": "1.1.0"}});
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "1", "managedFields": [{"manager": "kubelet"}]},
            "spec": {"devices": {"requests": [{"name": "net"}]}},
            "status": {"reservedFor": [{"resource": "pods", "name": "web", "uid": "2"}], "devices": [device],
                "allocation": {"devices": {"results": results, "config": [{"source": "FromClaim"}]}}}}))
        .unwrap()
    }

    #[test]
    fn a_claim_keeps_its_devices_of_netclaim_and_its_pods() {
        let kept = held(claim(&["netclaim.dev", "gpu.example.com"])).unwrap();
        let expected = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"namespace": "shop", "name": "web"},
            "status": {"reservedFor": [{"resource": "pods", "name": "web", "uid": "2"}], "allocation": {"devices": {
                "results": [{"driver": "netclaim.dev", "pool": "a", "device": "net-a", "request": "net"}]}}}});
        assert_eq!(serde_json::to_value(kept).unwrap(), expected);
        assert_eq!(held(claim(&["gpu.example.com"])), None);
        assert_eq!(held(ResourceClaim::default()), None);
    }

    #[test]
    fn a_node_keeps_the_resources_of_device_plugins_but_not_its_images_and_conditions() {
        let info = json!({"kubeletVersion": "v1.37.1", "containerRuntimeVersion": "", "architecture": "", "bootID": "",
            "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""});
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"rack": "1"},
                "annotations": {"a": "b"}, "managedFields": [{"manager": "kubelet"}]},
            "spec": {"unschedulable": true}, "status": {"images": [{"names": ["i"]}], "nodeInfo": info,
                "allocatable": {"cpu": "4", "example.com/storage": "3"}}});
        let kept = node(serde_json::from_value(object).unwrap()).unwrap();
        let expected = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"rack": "1"}},
            "spec": {"unschedulable": true}, "status": {"nodeInfo": info, "allocatable": {"example.com/storage": "3"}}});
        assert_eq!(serde_json::to_value(kept).unwrap(), expected);
    }
}
