//! The nodes that each Network is on, and what they have for it, from the agents' ResourceSlices. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{ApiResource, NotUsed, Object};
use netclaim_api::device::DeviceName;
use netclaim_api::{NetworkName, Quantity};
use serde::Deserialize;

/// A ResourceSlice with little of its spec, because a cluster may have hundreds of thousands of devices.
pub(crate) type DevicesOfSlice = Object<Devices, NotUsed>;

/// The part of a ResourceSlice's spec that is kept.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Devices {
    node_name: Option<String>,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Debug, Clone, Deserialize)]
struct Device {
    name: String,
    #[serde(default)]
    taints: Vec<Taint>,
    #[serde(default)]
    capacity: Capacity,
}

#[derive(Debug, Clone, Deserialize)]
struct Taint {
    key: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Capacity {
    bandwidth: Option<Amount>,
}

#[derive(Debug, Clone, Deserialize)]
struct Amount {
    value: String,
}

/// Returns the API's name of [`DevicesOfSlice`].
pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<ResourceSlice>(&())
}

/// Removes what the controller does not read.
pub(crate) fn strip(slice: &mut DevicesOfSlice) {
    slice.metadata.managed_fields = None;
    slice.spec.devices.retain(|device| matches!(device.name.parse(), Ok(DeviceName::Network(_))));
    slice.spec.devices.shrink_to_fit();
}

/// The nodes that publish one Network.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NetworkNodes {
    /// All of them, each with its bandwidth for the Network.
    pub(crate) bandwidth: BTreeMap<String, Option<Quantity>>,
    /// Nodes that take no new pods, by the taint that says why.
    pub(crate) tainted: BTreeMap<String, BTreeSet<String>>,
    /// Nodes that the Network selects and that have an agent, but do not publish it.
    pub(crate) missing: BTreeSet<String>,
}

impl NetworkNodes {
    /// Returns how many nodes publish it.
    pub(crate) fn count(&self) -> i64 {
        i64::try_from(self.bandwidth.len()).unwrap_or(i64::MAX)
    }
}

/// Returns the nodes whose agents publish anything.
pub(crate) fn with_agent(slices: &[Arc<DevicesOfSlice>]) -> BTreeSet<&str> {
    slices.iter().filter_map(|slice| slice.spec.node_name.as_deref()).collect()
}

/// Returns the nodes of each Network that a node publishes.
pub(crate) fn by_network(slices: &[Arc<DevicesOfSlice>]) -> BTreeMap<NetworkName, NetworkNodes> {
    let mut networks: BTreeMap<NetworkName, NetworkNodes> = BTreeMap::new();
    for Devices { node_name, devices } in slices.iter().map(|slice| &slice.spec) {
        let Some(node) = node_name else { continue };
        for device in devices {
            let Ok(DeviceName::Network(network)) = device.name.parse() else { continue };
            let nodes = networks.entry(network).or_default();
            let bandwidth = device.capacity.bandwidth.as_ref();
            nodes.bandwidth.insert(node.clone(), bandwidth.and_then(|amount| amount.value.parse().ok()));
            for taint in &device.taints {
                nodes.tainted.entry(taint.key.clone()).or_default().insert(node.clone());
            }
        }
    }
    networks
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(node: Option<&str>, devices: &[Value]) -> Arc<DevicesOfSlice> {
        let mut slice: DevicesOfSlice = serde_json::from_value(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"},
            "spec": {"driver": "netclaim.dev", "pool": {"name": "p"}, "nodeName": node, "devices": devices}
        }))
        .unwrap();
        strip(&mut slice);
        Arc::new(slice)
    }

    fn named(names: &[&str]) -> Vec<Value> {
        names.iter().map(|name| json!({"name": name, "capacity": {}})).collect()
    }

    #[test]
    fn a_node_counts_once_however_many_slices_it_has() {
        let slices = [
            slice(Some("n1"), &named(&["nic-eth1", "net-a"])),
            slice(Some("n1"), &named(&["net-a", "net-b"])),
            slice(Some("n2"), &named(&["net-a"])),
        ];
        let counts: Vec<_> =
            by_network(&slices).into_iter().map(|(name, on)| (name.to_string(), on.count())).collect();
        assert_eq!(counts, [("a".to_owned(), 2), ("b".to_owned(), 1)]);
    }

    #[test]
    fn a_pool_of_the_cluster_is_on_no_node() {
        assert_eq!(by_network(&[slice(None, &named(&["net-a"]))]), BTreeMap::new());
    }

    #[test]
    fn taints_and_bandwidth_are_collected_by_node() {
        let healthy = json!({"name": "net-a", "capacity": {"bandwidth": {"value": "10G"}}});
        let down =
            json!({"name": "net-a", "taints": [{"key": "netclaim.dev/link-down", "effect": "NoSchedule"}]});
        let nodes = by_network(&[slice(Some("n1"), &[healthy]), slice(Some("n2"), &[down])])
            .remove(&"a".parse().unwrap())
            .unwrap();
        assert_eq!(nodes.bandwidth["n1"], Some("10G".parse().unwrap()));
        assert_eq!(
            nodes.tainted,
            BTreeMap::from([("netclaim.dev/link-down".into(), BTreeSet::from(["n2".into()]))])
        );
    }
}
