//! The Nodes of the cluster, as far as the controller reads them. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use kube::api::{ApiResource, Object};
use kube::runtime::watcher;
use netclaim_allocation::is_extended;
use serde::Deserialize;

/// A Node with little of its spec and status, because kubelets write much into it.
pub(crate) type NodeObject = Object<Spec, Status>;

/// The part of a Node's spec that is kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
    unschedulable: bool,
    taints: Vec<NodeTaint>,
}

/// A taint of a Node, without the time when it was added.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct NodeTaint {
    key: String,
    value: Option<String>,
    effect: String,
}

/// The part of a Node's status that is kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    addresses: Vec<Address>,
    conditions: Vec<NodeCondition>,
    capacity: Capacity,
    allocatable: BTreeMap<String, String>,
}

/// A condition of a Node, without the times that kubelets write all the time.
#[derive(Debug, Clone, Deserialize)]
struct NodeCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// How much fits on a Node, as far as it is kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Capacity {
    pods: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

/// Addresses of one family that the pods of a node may want of one ClaimNetwork, for each pod that fits on
/// it.
const ADDRESSES_OF_POD: i64 = 8;

/// The facts about a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    pub(crate) labels: BTreeMap<String, String>,
    /// Its own addresses in the cluster.
    pub(crate) addresses: Vec<IpAddr>,
    /// Addresses of the pods on it, in the cluster's network.
    pub(crate) pod_cidrs: Vec<IpNet>,
    /// Whether it takes no new pods.
    pub(crate) is_unschedulable: bool,
    /// Whether its condition `Ready` is not True.
    pub(crate) is_unready: bool,
    pub(crate) taints: Vec<NodeTaint>,
    /// How many pods fit on it, if it says so.
    pub(crate) pods: Option<i64>,
    /// Resources that device plugins have there, which a limit then gets instead of a class.
    pub(crate) plugin_resources: BTreeSet<String>,
}

impl NodeFacts {
    /// Returns how many addresses of one family its pods may want of one ClaimNetwork.
    pub(crate) fn most_addresses(&self) -> Option<i64> {
        self.pods.map(|pods| pods.max(1).saturating_mul(ADDRESSES_OF_POD))
    }

    /// Returns the Node as far as it is known.
    pub(crate) fn object(&self, name: &str) -> Node {
        let taint = |NodeTaint { key, value, effect }: &NodeTaint| Taint {
            key: key.clone(),
            value: value.clone(),
            effect: effect.clone(),
            time_added: None,
        };
        let some = |resource: &String| (resource.clone(), Quantity("1".to_owned()));
        Node {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(self.labels.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                unschedulable: Some(self.is_unschedulable),
                taints: Some(self.taints.iter().map(taint).collect()),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                allocatable: Some(self.plugin_resources.iter().map(some).collect()),
                ..NodeStatus::default()
            }),
        }
    }
}

/// Nodes by name.
pub(crate) type Nodes = BTreeMap<String, NodeFacts>;

/// The nodes that the watch has shown.
#[derive(Debug, Default)]
pub(crate) struct NodeObjects {
    known: Arc<Nodes>,
    /// The list in progress.
    listing: Nodes,
    /// Nodes that have changed since the last look.
    changed: BTreeSet<String>,
}

/// Returns the API's name of [`NodeObject`].
pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<Node>(&())
}

impl NodeObjects {
    /// Takes in an event of the watch. Returns whether anything changed: kubelets write their Node all the
    /// time.
    pub(crate) fn apply(&mut self, event: watcher::Event<NodeObject>) -> bool {
        match event {
            watcher::Event::Init => {
                self.listing.clear();
                false
            }
            watcher::Event::InitApply(node) => {
                self.listing.extend([facts(&node)]);
                false
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                let differs = |name: &&String| self.known.get(*name) != listed.get(*name);
                let changed: Vec<String> =
                    self.known.keys().chain(listed.keys()).filter(differs).cloned().collect();
                if changed.is_empty() {
                    return false;
                }
                self.changed.extend(changed);
                self.known = Arc::new(listed);
                true
            }
            watcher::Event::Apply(node) => {
                let (name, facts) = facts(&node);
                self.known.get(&name) != Some(&facts) && {
                    self.changed.insert(name.clone());
                    Arc::make_mut(&mut self.known).insert(name, facts);
                    true
                }
            }
            watcher::Event::Delete(node) => {
                let name = node.name_any();
                self.known.contains_key(&name) && {
                    Arc::make_mut(&mut self.known).remove(&name);
                    self.changed.insert(name);
                    true
                }
            }
        }
    }

    /// Returns the names of the nodes that have changed since the last call, and of those that are gone.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the nodes as they are now.
    pub(crate) fn all(&self) -> &Arc<Nodes> {
        &self.known
    }
}

fn facts(node: &NodeObject) -> (String, NodeFacts) {
    let own = node.status.iter().flat_map(|status| &status.addresses);
    let own = own.filter(|address| address.kind == "InternalIP");
    let cidrs = node.spec.pod_cidrs.iter().chain(&node.spec.pod_cidr);
    let mut pod_cidrs: Vec<IpNet> = cidrs.filter_map(|cidr| cidr.parse().ok()).collect();
    pod_cidrs.sort_unstable();
    pod_cidrs.dedup();
    let mut conditions = node.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.find(|condition| condition.kind == "Ready");
    let allocatable = node.status.iter().flat_map(|status| &status.allocatable);
    let plugin_resources =
        allocatable.filter(|(resource, amount)| is_extended(resource) && amount.as_str() != "0");
    let facts = NodeFacts {
        labels: node.labels().clone(),
        addresses: own.filter_map(|address| address.address.parse().ok()).collect(),
        pod_cidrs,
        is_unschedulable: node.spec.unschedulable,
        is_unready: ready.is_some_and(|ready| ready.status != "True"),
        taints: node.spec.taints.clone(),
        pods: node.status.as_ref().and_then(|status| status.capacity.pods.as_ref()?.parse().ok()),
        plugin_resources: plugin_resources.map(|(resource, _)| resource.clone()).collect(),
    };
    (node.name_any(), facts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_changes_of_what_is_read_are_reported() {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let node = |name: &str, rack: &str| -> NodeObject {
            serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"rack": rack}},
                "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
                "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": "n"}],
                    "capacity": {"cpu": "4", "pods": "110"},
                    "allocatable": {"cpu": "4", "example.com/nic": "2", "example.com/gone": "0"}},
            }))
            .unwrap()
        };
        let mut nodes = NodeObjects::default();
        let seen = [Init, InitApply(node("n1", "7")), InitApply(node("n2", "8")), InitDone];
        assert_eq!(seen.map(|event| nodes.apply(event)), [false, false, false, true]);
        assert_eq!(nodes.take_changed().into_iter().collect::<Vec<_>>(), ["n1", "n2"]);
        assert!(!nodes.apply(Apply(node("n1", "7"))), "a heartbeat");
        assert!(nodes.apply(Apply(node("n2", "7"))) && nodes.apply(Delete(node("n1", "7"))));
        assert_eq!(nodes.take_changed().into_iter().collect::<Vec<_>>(), ["n1", "n2"]);
        assert_eq!(nodes.take_changed().len(), 0);
        let mut lost = node("n2", "7");
        let condition = |status: &str| NodeCondition { kind: "Ready".into(), status: status.into() };
        for (status, is_unready) in [("True", false), ("Unknown", true)] {
            lost.status.as_mut().unwrap().conditions = vec![condition(status)];
            assert_eq!(nodes.apply(Apply(lost.clone())), is_unready);
            assert_eq!(nodes.all()["n2"].is_unready, is_unready);
        }
        let facts = &nodes.all()["n2"];
        assert_eq!(facts.addresses, ["192.0.2.7".parse::<IpAddr>().unwrap()]);
        assert_eq!((facts.pods, facts.most_addresses()), (Some(110), Some(880)));
        assert_eq!(facts.plugin_resources, ["example.com/nic".to_owned()].into());
        assert_eq!(facts.pod_cidrs, ["10.244.0.0/24".parse::<IpNet>().unwrap()]);
    }
}
