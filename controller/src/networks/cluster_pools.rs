//! ClaimNetworks of scope `Cluster` as pools of their own, which belong to no node. Pure.
//!
//! Each pool has one device: a budget that pods draw from on any node. `bindsToNode` binds the claim to the
//! pod's node, so that the agent there may write its status; without binding conditions that costs no time.
//!
//! * The device has the attributes of node devices. Those that describe a link are empty: links differ
//!   between nodes.
//! * The device is always shared. It does not count what one node's link can take: the scheduler knows
//!   counters within one pool only.
//! * The pool is for the nodes with the label `network.netclaim.dev/NETWORK`. Each agent sets it on its own
//!   Node while pods there can be attached.
//! * The pool is deleted with its ClaimNetwork object, also when no controller runs.
//! * A ClaimNetwork that is not accepted has no pool, because agents refuse it too. Claims that hold its
//!   device keep what they have, and are counted again when it comes back.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::Device;
use netclaim_api::NetworkName;
use netclaim_api::device::{DeviceName, cluster_pool};
use netclaim_api::labels::{SERVED, network_label};
use netclaim_api::network::{ClaimNetworkSpec, Scope};
use netclaim_api::published::{Amounts, Facts, device};
use netclaim_slices::{Placement, Pool};

use crate::objects::owner::owned_by;

/// Returns the pool of an accepted ClaimNetwork, owned by the object of this UID; `None` if its nodes publish
/// it.
pub(crate) fn pool(name: &NetworkName, spec: &ClaimNetworkSpec, uid: &str) -> Option<Pool> {
    match spec.scope {
        Scope::Node => None,
        Scope::Cluster => Some(Pool {
            owner: Some(owned_by(name, uid)),
            ..Pool::new(cluster_pool(name), placement(name), vec![network_device(name, spec)])
        }),
    }
}

/// The nodes whose agents say that they serve the ClaimNetwork. An agent looks at the ClaimNetwork's node
/// selector, too.
fn placement(name: &NetworkName) -> Placement {
    let is_served = NodeSelectorRequirement {
        key: network_label(name),
        operator: "In".to_owned(),
        values: Some(vec![SERVED.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![is_served]), match_fields: None };
    Placement::NodeSelector(NodeSelector { node_selector_terms: vec![term] })
}

fn network_device(name: &NetworkName, spec: &ClaimNetworkSpec) -> Device {
    let types = spec.plugin_types();
    let facts = Facts {
        network: name.to_string(),
        mode: types.first().copied().unwrap_or_default().to_owned(),
        declared: spec.attributes.clone(),
        ..Facts::default()
    };
    let amounts = Amounts {
        bandwidth: spec.capacity.bandwidth,
        requires_bandwidth: spec.requires_bandwidth(),
        addresses: spec.capacity.addresses,
        reserved_addresses: false,
        interfaces: spec.capacity.interfaces,
        segments: None,
    };
    Device {
        binds_to_node: Some(true),
        ..device(DeviceName::Network(name.clone()).to_string(), facts, amounts, true)
    }
}

#[cfg(test)]
mod tests {
    use netclaim_slices::validate;
    use serde_json::{Value, json};

    use super::*;

    fn spec(change: impl FnOnce(&mut Value)) -> ClaimNetworkSpec {
        let mut spec = json!({
            "scope": "Cluster",
            "uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.name}"}, {"type": "tuning"}]},
            "capacity": {"bandwidth": "10G", "interfaces": 64},
        });
        change(&mut spec);
        serde_json::from_value(spec).unwrap()
    }

    fn pool_of(change: impl FnOnce(&mut Value)) -> Option<Pool> {
        pool(&"backbone".parse().unwrap(), &spec(change), "u1")
    }

    #[test]
    fn a_cluster_network_is_one_shared_device_of_the_nodes_that_serve_it() {
        let pool = pool_of(|_| {}).unwrap();
        assert_eq!(pool.name, "networks/backbone");
        let Placement::NodeSelector(selector) = &pool.placement else { panic!("{:?}", pool.placement) };
        let expected = json!({"key": "network.netclaim.dev/backbone", "operator": "In", "values": ["up"]});
        assert_eq!(
            serde_json::to_value(selector).unwrap(),
            json!({"nodeSelectorTerms": [{"matchExpressions": [expected]}]})
        );
        let [device] = &pool.devices[..] else { panic!("{:?}", pool.devices) };
        assert_eq!(device.name, "net-backbone");
        assert_eq!((device.allow_multiple_allocations, device.binds_to_node), (Some(true), Some(true)));
        let text = |key: &str| device.attributes.as_ref().unwrap()[key].string.clone().unwrap();
        assert_eq!(["network", "mode", "uplink"].map(text), ["backbone", "macvlan", ""]);
        let capacity = device.capacity.iter().flatten().map(|(key, c)| (key.as_str(), c.value.0.as_str()));
        assert_eq!(capacity.collect::<Vec<_>>(), [("bandwidth", "10G"), ("interfaces", "64")]);
        assert_eq!(validate(&pool, &netclaim_slices::Scope::Cluster), []);
    }

    #[test]
    fn a_pool_is_owned_by_its_network() {
        let owner = pool_of(|_| {}).unwrap().owner.unwrap();
        let expected = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "name": "backbone", "uid": "u1",
            "controller": true});
        assert_eq!(serde_json::to_value(owner).unwrap(), expected);
    }

    #[test]
    fn a_cluster_device_has_the_attribute_keys_of_node_devices() {
        let pool = pool_of(|_| {}).unwrap();
        let node_device = device("nic-eth1".into(), Facts::default(), Amounts::default(), false);
        let keys = |device: &Device| {
            device.attributes.iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        assert_eq!(keys(&pool.devices[0]), keys(&node_device));
    }

    #[test]
    fn an_undeclared_capacity_is_not_limited() {
        let pool = pool_of(|spec| spec["capacity"] = json!({})).unwrap();
        assert_eq!(pool.devices[0].capacity, None);
    }

    #[test]
    fn a_node_network_has_no_pool() {
        assert_eq!(pool_of(|spec| spec["scope"] = json!("Node")), None);
    }
}
