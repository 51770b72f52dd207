//! What matters of the node's own Node object. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, NodeAddress, ObjectReference};
use kube::core::{ApiResource, Object};
use kube::runtime::watcher::Event;
use kube::{Resource as _, ResourceExt as _};
use serde::{Deserialize, Serialize};

/// The Node object without the images and conditions that make up most of it.
pub(super) type OwnNode = Object<NoSpec, NodeStatus>;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct NoSpec {}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct NodeStatus {
    #[serde(default)]
    addresses: Vec<NodeAddress>,
}

/// The state of a watch of the Node object.
#[derive(Default)]
pub(super) struct NodeObject {
    /// The last object, even if it is deleted.
    pub(super) last: Option<NodeFacts>,
    /// Its UID; `None` while there is no such object.
    pub(super) uid: Option<String>,
    /// Its UID in a list that is not complete yet.
    listed: Option<String>,
}

#[derive(PartialEq)]
pub(super) struct NodeFacts {
    pub(super) labels: BTreeMap<String, String>,
    /// Internal and external IP addresses.
    pub(super) addresses: BTreeSet<IpAddr>,
    pub(super) reference: ObjectReference,
}

impl NodeObject {
    /// Takes an event of the watch. Returns whether anything has changed that is read: kubelets write their
    /// Node all the time.
    pub(super) fn update(&mut self, event: Event<OwnNode>) -> bool {
        match event {
            Event::Init => {
                self.listed = None;
                false
            }
            Event::InitApply(node) => {
                self.listed.clone_from(&node.metadata.uid);
                self.take(&node)
            }
            Event::InitDone => {
                if self.listed.is_none() {
                    tracing::warn!("there is no Node object: devices are published when there is one");
                }
                let listed = self.listed.take();
                std::mem::replace(&mut self.uid, listed) != self.uid
            }
            Event::Apply(node) => {
                let uid = node.metadata.uid.clone();
                (std::mem::replace(&mut self.uid, uid) != self.uid) | self.take(&node)
            }
            Event::Delete(_) => self.uid.take().is_some(),
        }
    }

    fn take(&mut self, node: &OwnNode) -> bool {
        let now = Some(NodeFacts::of(node));
        let is_new = self.last != now;
        self.last = now;
        is_new
    }
}

impl NodeFacts {
    fn of(node: &OwnNode) -> Self {
        let addresses = node.status.iter().flat_map(|status| &status.addresses);
        let of_link = |address: &&NodeAddress| ["InternalIP", "ExternalIP"].contains(&address.type_.as_str());
        Self {
            labels: node.labels().clone(),
            addresses: addresses.filter(of_link).filter_map(|address| address.address.parse().ok()).collect(),
            reference: node.object_ref(&ApiResource::erase::<Node>(&())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_addresses_that_links_can_have_are_taken_from_the_node_object() {
        let node: OwnNode = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u", "labels": {"rack": "a"}},
            "spec": {"podCIDR": "10.9.0.0/24"},
            "status": {"images": [{"names": ["i"], "sizeBytes": 1}], "addresses": [
                {"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "fd00::1"},
                {"type": "ExternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "10.7.7.7"}]},
        }))
        .expect("a Node");
        let mut object = NodeObject::default();
        assert!(object.update(Event::Apply(node.clone())));
        assert!(!object.update(Event::Apply(node)), "a heartbeat");
        let node = object.last.expect("seen");
        let addresses: Vec<String> = node.addresses.iter().map(IpAddr::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1", "192.0.2.1", "fd00::1"]);
        assert_eq!((node.labels.len(), node.reference.uid.as_deref()), (1, Some("u")));
    }

    #[test]
    fn a_recreated_node_has_another_uid_and_a_deleted_one_has_none() {
        let node = |uid: &str| {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": uid}, "spec": {}});
            serde_json::from_value::<OwnNode>(node).expect("a Node")
        };
        use Event::{Apply, Delete, Init, InitApply, InitDone};
        let mut object = NodeObject::default();
        let mut after = |event| {
            object.update(event);
            object.uid.clone()
        };
        assert_eq!(after(Init), None);
        assert_eq!(after(InitApply(node("1"))), None, "the list is not complete");
        assert_eq!(after(InitDone).as_deref(), Some("1"));
        assert_eq!(after(Delete(node("1"))), None);
        assert_eq!(after(Apply(node("2"))).as_deref(), Some("2"));
        assert_eq!(after(Init).as_deref(), Some("2"), "a list is under way");
        assert_eq!(after(InitDone), None, "the Node was deleted while no watch ran");
    }
}
