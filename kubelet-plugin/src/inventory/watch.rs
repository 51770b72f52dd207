//! Keeps the [`Inventory`] up to date: links by netlink, what providers say of them from their files, and Networks,
//! UplinkPolicies and the node's labels and addresses from the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, NodeAddress, ObjectReference};
use kube::core::{ApiResource, DynamicObject, Object};
use kube::runtime::events::Reporter;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource, ResourceExt as _};
use netclaim_api::NetworkName;
use netclaim_api::labels::has_all;
use netclaim_api::network::{Network, NetworkSpec};
use netclaim_api::uplink_policy::UplinkPolicy;
use netclaim_cni::error_chain;
use netclaim_driver::links::{self, Changes, Links, Snapshot};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::devices::server_features;
use crate::inventory::Inventory;
use crate::inventory::policies::Policies;
use crate::inventory::providers::Providers;
use crate::inventory::uplinks::uplinks;

/// Pause after netlink or sysfs refused.
const LINKS_PAUSE: Duration = Duration::from_secs(1);

/// The Node object, as far as it matters here: most of a real one is images and conditions.
type OwnNode = Object<NoSpec, NodeStatus>;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct NoSpec {}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct NodeStatus {
    #[serde(default)]
    addresses: Vec<NodeAddress>,
}

/// What has been seen so far; an inventory is made when every part has been.
#[derive(Default)]
struct Seen {
    node: Option<SeenNode>,
    /// The Node object's UID; `None` while there is no such object.
    uid: Option<String>,
    /// Its UID in a list that is not complete yet.
    listed: Option<String>,
    networks: Objects<Network>,
    policies: Policies,
}

/// What has been seen of the Node object.
struct SeenNode {
    labels: BTreeMap<String, String>,
    addresses: BTreeSet<IpAddr>,
    reference: ObjectReference,
}

/// Where the node is looked at.
pub struct NodeWatch {
    /// Where Networks, UplinkPolicies and the Node object are.
    pub client: kube::Client,
    /// The Node object's name.
    pub node: String,
    /// Who tells what admins should know.
    pub reporter: Reporter,
    /// The node's links.
    pub links: Links,
    /// Where providers say something of links.
    pub providers: Providers,
}

impl NodeWatch {
    /// Publishes inventories of the node into `inventory`, and the Node object's UID into `uid`, until `cancel`.
    pub async fn run(
        mut self,
        inventory: watch::Sender<Option<Arc<Inventory>>>,
        uid: watch::Sender<Option<String>>,
        cancel: CancellationToken,
    ) {
        let nodes = Api::<OwnNode>::all_with(self.client.clone(), &ApiResource::erase::<Node>(&()));
        let own = watcher::Config::default().fields(&format!("metadata.name={}", self.node));
        let mut nodes = watcher(nodes, own).default_backoff().boxed();
        let (mut networks, mut policies) =
            (objects::<Network>(&self.client), objects::<UplinkPolicy>(&self.client));
        let mut link_changes = LinkChanges::default();
        let (macvlan, ipvlan) =
            (kernel_has(&self.links, "macvlan").await, kernel_has(&self.links, "ipvlan").await);
        let mut seen = Seen::default();
        let mut links = None;
        let mut warned = BTreeMap::new();
        loop {
            if links.is_none() {
                // Subscribed before the look: a change in between is not missed.
                link_changes.subscribe(&self.links);
                match self.look().await {
                    Ok(found) => links = Some(found),
                    Err(error) => {
                        tracing::warn!(error = error_chain(&error), "cannot look at the node's links")
                    }
                }
            }
            // Before the first inventory, which is published as soon as it is there.
            uid.send_if_modified(|known| std::mem::replace(known, seen.uid.clone()) != seen.uid);
            let in_force = seen.node.as_ref().and_then(|node| seen.policies.of_node(&node.labels));
            if let (Some(snapshot), Some(node), Some(networks), Some(in_force)) =
                (&links, &seen.node, &seen.networks.known, in_force)
            {
                let uplinks = uplinks(snapshot, &node.addresses, &in_force, self.providers.provided());
                let networks = networks_for(networks, &node.labels);
                let labels = node.labels.clone();
                let now = Inventory { labels, uplinks, macvlan, ipvlan, networks };
                let warnings = now.node_link_warnings();
                for note in news(&mut warned, warnings) {
                    self.warn(node.reference.clone(), note);
                }
                let now = Some(Arc::new(now));
                inventory.send_if_modified(|known| std::mem::replace(known, now.clone()) != now);
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = link_changes.tick() => links = None,
                () = tokio::time::sleep(LINKS_PAUSE), if links.is_none() => {}
                () = self.providers.changed() => {}
                event = nodes.try_next() => match event {
                    Ok(Some(event)) => seen.node(event),
                    Ok(None) => return,
                    Err(error) => tracing::warn!(error = error_chain(&error), "cannot watch the Node object"),
                },
                event = networks.try_next() => match event {
                    Ok(Some(event)) => seen.networks.seen(event),
                    Ok(None) => return,
                    Err(error) => tracing::warn!(error = error_chain(&error), "cannot watch Networks"),
                },
                event = policies.try_next() => match event {
                    Ok(Some(event)) => seen.policies.seen(event),
                    Ok(None) => return,
                    Err(error) => tracing::warn!(error = error_chain(&error), "cannot watch UplinkPolicies"),
                },
            }
        }
    }

    async fn look(&self) -> Result<Snapshot, links::Error> {
        self.links.snapshot().await
    }

    /// Says on the Node that pods share, or do not get, a link of its own.
    fn warn(&self, node: ObjectReference, note: String) {
        tracing::warn!("{note}");
        let (client, reporter) = (self.client.clone(), self.reporter.clone());
        server_features::warn(client, reporter, node, "UplinkOfTheNode", note);
    }
}

/// The warnings that were not there before.
fn news<K: Ord + Clone>(before: &mut BTreeMap<K, String>, now: BTreeMap<K, String>) -> Vec<String> {
    let is_new = |(key, text): &(&K, &String)| before.get(*key) != Some(*text);
    let new = now.iter().filter(is_new).map(|(_, text)| text.clone()).collect();
    *before = now;
    new
}

type ObjectEvents = BoxStream<'static, watcher::Result<watcher::Event<DynamicObject>>>;

fn objects<K: Resource<DynamicType = ()>>(client: &kube::Client) -> ObjectEvents {
    let api = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    watcher(api, watcher::Config::default()).default_backoff().boxed()
}

async fn kernel_has(links: &Links, kind: &str) -> bool {
    match links.kernel_has(kind).await {
        Ok(has) => has,
        Err(error) => {
            tracing::warn!(kind, error = error_chain(&error), "taken for missing");
            false
        }
    }
}

/// A subscription to link changes that is made anew when it breaks.
#[derive(Default)]
struct LinkChanges(Option<Changes>);

impl LinkChanges {
    fn subscribe(&mut self, links: &Links) {
        if self.0.is_none() {
            match links.changes() {
                Ok(changes) => self.0 = Some(changes),
                Err(error) => tracing::warn!(error = error_chain(&error), "cannot watch links"),
            }
        }
    }

    /// Ends when the links may have changed.
    async fn tick(&mut self) {
        let Some(changes) = &mut self.0 else {
            return tokio::time::sleep(LINKS_PAUSE).await;
        };
        if let Err(error) = changes.tick().await {
            tracing::warn!(error = error_chain(&error), "watching links anew");
            self.0 = None;
        }
    }
}

impl Seen {
    fn node(&mut self, event: watcher::Event<OwnNode>) {
        match event {
            watcher::Event::Init => self.listed = None,
            watcher::Event::InitApply(node) => {
                self.node = Some(SeenNode::of(&node));
                self.listed = node.metadata.uid;
            }
            watcher::Event::InitDone => {
                if self.listed.is_none() {
                    tracing::warn!("there is no Node object: devices are published when there is one");
                }
                self.uid = self.listed.take();
            }
            watcher::Event::Apply(node) => {
                self.node = Some(SeenNode::of(&node));
                self.uid = node.metadata.uid;
            }
            watcher::Event::Delete(_) => self.uid = None,
        }
    }
}

impl SeenNode {
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

/// The objects of a kind by name, as far as they can be read.
struct Objects<K> {
    /// `None` until the first list is complete.
    known: Option<BTreeMap<String, K>>,
    /// Of a list that is not complete yet.
    listing: BTreeMap<String, K>,
}

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self { known: None, listing: BTreeMap::new() }
    }
}

impl<K: Resource<DynamicType = ()> + DeserializeOwned> Objects<K> {
    fn seen(&mut self, event: watcher::Event<DynamicObject>) {
        match event {
            watcher::Event::Init => self.listing.clear(),
            watcher::Event::InitApply(object) => {
                self.listing.extend(decoded(object));
            }
            watcher::Event::InitDone => self.known = Some(std::mem::take(&mut self.listing)),
            watcher::Event::Apply(object) => {
                let name = object.name_any();
                let known = self.known.get_or_insert_default();
                match decoded(object) {
                    Some((name, object)) => known.insert(name, object),
                    None => known.remove(&name),
                };
            }
            watcher::Event::Delete(object) => {
                self.known.get_or_insert_default().remove(&object.name_any());
            }
        }
    }
}

/// One object that cannot be read is no reason to lose the others.
fn decoded<K: Resource<DynamicType = ()> + DeserializeOwned>(object: DynamicObject) -> Option<(String, K)> {
    let name = object.name_any();
    match object.try_parse::<K>() {
        Ok(object) => Some((name, object)),
        Err(error) => {
            tracing::warn!(kind = %K::kind(&()), name, error = error_chain(&error), "left out");
            None
        }
    }
}

/// The valid Networks that are meant for a node with these labels.
fn networks_for(
    networks: &BTreeMap<String, Network>,
    labels: &BTreeMap<String, String>,
) -> BTreeMap<NetworkName, NetworkSpec> {
    let valid = |(name, network): (&String, &Network)| {
        let fits = has_all(&network.spec.node_selector, labels) && network.spec.problems(name).is_empty();
        Some((name.parse().ok().filter(|_| fits)?, network.spec.clone()))
    };
    networks.iter().filter_map(valid).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_addresses_of_the_node_object_are_those_that_links_can_have() {
        let node: OwnNode = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u", "labels": {"rack": "a"}},
            "spec": {"podCIDR": "10.9.0.0/24"},
            "status": {"images": [{"names": ["i"], "sizeBytes": 1}], "addresses": [
                {"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "fd00::1"},
                {"type": "ExternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "10.7.7.7"}]},
        }))
        .expect("a Node");
        let mut seen = Seen::default();
        seen.node(watcher::Event::Apply(node));
        let node = seen.node.expect("seen");
        let addresses: Vec<String> = node.addresses.iter().map(IpAddr::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1", "192.0.2.1", "fd00::1"]);
        assert_eq!((node.labels.len(), node.reference.uid.as_deref()), (1, Some("u")));
    }

    #[test]
    fn a_warning_is_told_once_and_again_when_it_changes() {
        let mut before = BTreeMap::new();
        let now = |text: &str| BTreeMap::from([("n", text.to_owned())]);
        assert_eq!(news(&mut before, now("a")), ["a"]);
        assert_eq!(news(&mut before, now("a")), [""; 0]);
        assert_eq!(news(&mut before, now("b")), ["b"]);
        assert_eq!(news(&mut before, BTreeMap::new()), [""; 0]);
        assert_eq!(news(&mut before, now("b")), ["b"]);
    }

    #[test]
    fn a_node_that_is_made_anew_has_another_uid_and_one_that_is_gone_has_none() {
        let node = |uid: &str| {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": uid}, "spec": {}});
            serde_json::from_value::<OwnNode>(node).expect("a Node")
        };
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let mut seen = Seen::default();
        let mut after = |event| {
            seen.node(event);
            seen.uid.clone()
        };
        assert_eq!(after(Init), None);
        assert_eq!(after(InitApply(node("1"))), None, "the list is not complete");
        assert_eq!(after(InitDone).as_deref(), Some("1"));
        assert_eq!(after(Delete(node("1"))), None);
        assert_eq!(after(Apply(node("2"))).as_deref(), Some("2"));
        assert_eq!(after(Init).as_deref(), Some("2"), "a list is on its way");
        assert_eq!(after(InitDone), None, "it went while nobody watched");
    }
}
