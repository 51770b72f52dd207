//! On how many nodes a Network is: what the agents' ResourceSlices say. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{ApiResource, NotUsed, Object};
use netclaim_api::NetworkName;
use netclaim_api::device::network_of;
use serde::Deserialize;

/// A ResourceSlice, of which only the names are kept: there may be hundreds of thousands of devices.
pub(crate) type NamesOfSlice = Object<Names, NotUsed>;

/// What is kept of a ResourceSlice's spec.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Names {
    node_name: Option<String>,
    #[serde(default)]
    devices: Vec<DeviceName>,
}

#[derive(Debug, Clone, Deserialize)]
struct DeviceName {
    name: String,
}

/// What [`NamesOfSlice`] is called in the API.
pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<ResourceSlice>(&())
}

/// Takes off what is of no use here.
pub(crate) fn strip(slice: &mut NamesOfSlice) {
    slice.metadata.managed_fields = None;
    slice.spec.devices.retain(|device| network_of(&device.name).is_some());
    slice.spec.devices.shrink_to_fit();
}

/// How many nodes publish each Network; those that no node publishes are left out.
pub(crate) fn count(slices: &[Arc<NamesOfSlice>]) -> BTreeMap<NetworkName, i64> {
    let mut nodes: BTreeMap<NetworkName, BTreeSet<&str>> = BTreeMap::new();
    for Names { node_name, devices } in slices.iter().map(|slice| &slice.spec) {
        let Some(node) = node_name else { continue };
        for network in devices.iter().filter_map(|device| network_of(&device.name)) {
            nodes.entry(network).or_default().insert(node);
        }
    }
    nodes
        .into_iter()
        .map(|(network, nodes)| (network, i64::try_from(nodes.len()).unwrap_or(i64::MAX)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(node: Option<&str>, devices: &[&str]) -> Arc<NamesOfSlice> {
        let devices: Vec<_> = devices.iter().map(|name| json!({"name": name, "capacity": {}})).collect();
        let mut slice: NamesOfSlice = serde_json::from_value(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"},
            "spec": {"driver": "netclaim.dev", "pool": {"name": "p"}, "nodeName": node, "devices": devices}
        }))
        .unwrap();
        strip(&mut slice);
        Arc::new(slice)
    }

    #[test]
    fn a_node_counts_once_however_many_slices_it_has() {
        let slices = [
            slice(Some("n1"), &["nic-eth1", "net-a"]),
            slice(Some("n1"), &["net-a", "net-b"]),
            slice(Some("n2"), &["net-a"]),
        ];
        let expected = [("a".parse().unwrap(), 2), ("b".parse().unwrap(), 1)];
        assert_eq!(count(&slices), expected.into());
    }

    #[test]
    fn pools_of_the_cluster_are_on_no_node() {
        assert_eq!(count(&[slice(None, &["net-a"])]), BTreeMap::new());
    }
}
