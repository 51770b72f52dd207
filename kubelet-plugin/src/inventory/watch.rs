//! Keeps the [`Inventory`] up to date: links by netlink, files of facts, and ClaimNetworks, UplinkPolicies
//! and the Node object from the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::ready;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource, ResourceExt as _};
use netclaim_api::addresses::{AddressPool, AddressPoolSpec};
use netclaim_api::network::{ClaimNetwork, ClaimNetworkSpec};
use netclaim_api::node_selector::selects_node;
use netclaim_api::reasons::{AddressesReason, ConditionReason as _, NodeEvent};
use netclaim_api::uplink_policy::UplinkPolicy;
use netclaim_api::{IfName, LinkUse, NetworkName};
use netclaim_cni::error_chain;
use netclaim_driver::links::Links;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::addresses::{NodeAddresses, OwnBlocks, addresses};
use super::facts::NodeFacts;
use super::link_watch::LinkWatch;
use super::node_links::taken_by_the_node;
use super::node_object::{NodeObject, OwnNode};
use super::objects::Objects;
use super::policies::Policies;
use super::selection::{Inventory, KINDS};
use super::shared::Shared;
use super::uplinks::{Interest, uplinks, withheld};
use crate::node_networks::MadeLinks;
use crate::reports::Events;

/// How long the first lists of blocks and pools of addresses are waited for: other devices need neither.
const ADDRESSES_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of looks for kinds of links that the kernel has lacked so far.
const KINDS_INTERVAL: Duration = Duration::from_secs(60);

/// The watch of one node.
pub(crate) struct NodeWatch {
    /// The client for ClaimNetworks, UplinkPolicies and the Node object.
    pub(crate) client: kube::Client,
    /// The Node object's name.
    pub(crate) node: String,
    /// Events on the Node.
    pub(crate) events: Events,
    pub(crate) links: Links,
    /// The facts of programs on the node about links and ClaimNetworks.
    pub(crate) facts: NodeFacts,
    /// The node's blocks of addresses.
    pub(crate) blocks: watch::Receiver<OwnBlocks>,
    /// The names of links that were made on the node for ClaimNetworks.
    pub(crate) made_here: watch::Receiver<MadeLinks>,
}

impl NodeWatch {
    /// Publishes inventories of the node into `inventory`, and the Node object's UID into `uid`, until
    /// `cancel`.
    pub(crate) async fn run(
        mut self,
        inventory: watch::Sender<Option<Arc<Inventory>>>,
        uid: watch::Sender<Option<String>>,
        cancel: CancellationToken,
    ) {
        let nodes = Api::<OwnNode>::all_with(self.client.clone(), &ApiResource::erase::<Node>(&()));
        let own = watcher::Config::default().fields(&format!("metadata.name={}", self.node));
        let mut nodes = events(nodes, own, "the Node object").boxed();
        let mut networks = self.objects::<ClaimNetwork>("ClaimNetworks").boxed();
        let mut policies = self.objects::<UplinkPolicy>("UplinkPolicies").boxed();
        let mut pools = self.objects::<AddressPool>("AddressPools").boxed();
        let mut links = LinkWatch::new(&self.links);
        let mut kinds = BTreeMap::new();
        let mut look = tokio::time::interval(KINDS_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut own_node, mut known_networks) = (NodeObject::default(), Objects::<KnownNetwork>::default());
        let (mut known_policies, mut known_pools) = (Policies::default(), Objects::<KnownPool>::default());
        let (mut warned, mut shared) = (BTreeMap::new(), SharedParts::default());
        let (mut timeout, mut waited) = (pin!(tokio::time::sleep(ADDRESSES_TIMEOUT)), false);
        self.facts.look().await;
        loop {
            let snapshot = links.snapshot().await;
            // Before the first inventory, which is published as soon as it is there.
            uid.send_if_modified(|before| std::mem::replace(before, own_node.uid.clone()) != own_node.uid);
            let in_force = own_node.last.as_ref().and_then(|node| known_policies.of_node(&node.labels));
            if let (Some(snapshot), Some(node), Some(all_networks), Some(in_force)) =
                (snapshot, &own_node.last, known_networks.known(), in_force)
            {
                let networks = shared.networks(all_networks, &node.labels);
                ask_kernel(&self.links, &networks, &mut kinds).await;
                let lacking = kinds.iter().filter(|(_, has)| !**has).map(|(kind, _)| *kind).collect();
                let (provided, named) = (self.facts.links.stated(), named(&networks));
                let made_here = self.made_here.borrow_and_update().values().flatten().cloned().collect();
                let (uplinks, followers) =
                    uplinks(snapshot, &node.addresses, &in_force, provided, &named, &made_here);
                let withheld = withheld(snapshot, &node.addresses, &uplinks, &named, &made_here);
                links.set_interest(Interest::new(&node.addresses, &in_force, &named));
                let (labels, node_addresses) = (node.labels.clone(), node.addresses.clone());
                let addresses =
                    shared.addresses(&networks, all_networks, known_pools.known(), &mut self.blocks);
                let now = Inventory {
                    labels,
                    node_addresses,
                    uplinks,
                    withheld,
                    followers,
                    lacking,
                    networks,
                    addresses,
                    facts: self.facts.networks.stated().clone(),
                };
                let taken = inventory.borrow().as_ref().map(|before| taken_by_the_node(before, &now));
                let new = new_warnings(&mut warned, now.node_link_warnings());
                self.warn(&node.reference, new.into_iter().chain(taken.unwrap_or_default()));
                // Without its blocks the node would offer no address, and take that back a moment later.
                let is_whole = now.addresses.is_empty()
                    || self.blocks.borrow().known.is_some() && known_pools.known().is_some()
                    || waited;
                let now = Some(Arc::new(now));
                if is_whole {
                    inventory.send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
                }
            }
            // Until something has changed: the status of each ClaimNetwork comes to every node, again and
            // again.
            loop {
                let is_new = tokio::select! {
                    () = cancel.cancelled() => return,
                    () = &mut timeout, if !waited => {
                        waited = true;
                        true
                    }
                    () = links.changed() => true,
                    () = self.facts.changed() => true,
                    // Its module may be installed later.
                    _ = look.tick(), if kinds.values().any(|has| !has) => {
                        kinds.retain(|_, has| *has);
                        true
                    }
                    event = nodes.next() => match event {
                        Some(event) => own_node.update(event) && shared.forget_all(),
                        None => return,
                    },
                    event = networks.next() => match event {
                        Some(event) => known_networks.update(event, KnownNetwork::read) && shared.forget_all(),
                        None => return,
                    },
                    // The senders end with this agent.
                    Ok(()) = self.made_here.changed() => true,
                    Ok(()) = self.blocks.changed() => shared.forget_addresses(),
                    event = pools.next() => match event {
                        Some(event) => known_pools.update(event, KnownPool::read) && shared.forget_addresses(),
                        None => return,
                    },
                    event = policies.next() => match event {
                        Some(event) => known_policies.update(event),
                        None => return,
                    },
                };
                if is_new {
                    break;
                }
            }
        }
    }

    /// Logs warnings about links that the node uses itself, and reports them in events of the Node.
    fn warn(&self, node: &ObjectReference, warnings: impl Iterator<Item = String>) {
        for warning in warnings {
            tracing::warn!("{warning}");
            self.events.warn_node(node.clone(), NodeEvent::UplinkOfTheNode, warning);
        }
    }

    /// Watches all objects of a kind. They are decoded later, so that one that cannot be read does not hide
    /// the others.
    fn objects<K: Resource<DynamicType = ()>>(
        &self,
        kind: &'static str,
    ) -> impl Stream<Item = watcher::Event<DynamicObject>> + Send + use<K> {
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<K>(&()));
        events(api, watcher::Config::default(), kind)
    }
}

/// What one inventory has from the one before, unless it was forgotten.
#[derive(Default)]
struct SharedParts {
    networks: Option<Shared<BTreeMap<NetworkName, ClaimNetworkSpec>>>,
    addresses: Option<Shared<BTreeMap<NetworkName, NodeAddresses>>>,
}

impl SharedParts {
    /// Returns the ClaimNetworks for a node with these labels.
    fn networks(
        &mut self,
        all: &BTreeMap<String, KnownNetwork>,
        labels: &BTreeMap<String, String>,
    ) -> Shared<BTreeMap<NetworkName, ClaimNetworkSpec>> {
        self.networks.get_or_insert_with(|| networks_for(all, labels).into()).clone()
    }

    /// Returns the addresses of ClaimNetworks of the node.
    fn addresses(
        &mut self,
        networks: &BTreeMap<NetworkName, ClaimNetworkSpec>,
        all: &BTreeMap<String, KnownNetwork>,
        pools: Option<&BTreeMap<String, KnownPool>>,
        blocks: &mut watch::Receiver<OwnBlocks>,
    ) -> Shared<BTreeMap<NetworkName, NodeAddresses>> {
        let make =
            || addresses(networks, &scarce(all), &valid_pools(pools), &blocks.borrow_and_update()).into();
        self.addresses.get_or_insert_with(make).clone()
    }

    /// Marks both for another derivation. Returns `true`.
    fn forget_all(&mut self) -> bool {
        *self = Self::default();
        true
    }

    /// Marks the addresses, which not only ClaimNetworks change, for another derivation. Returns `true`.
    fn forget_addresses(&mut self) -> bool {
        self.addresses = None;
        true
    }
}

/// Watches objects and logs failures of the watch, which is retried with backoff.
pub(crate) fn events<K>(
    api: Api<K>,
    config: watcher::Config,
    objects: &'static str,
) -> impl Stream<Item = watcher::Event<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api, config).default_backoff().filter_map(move |event| {
        let log = |error: &watcher::Error| {
            tracing::warn!(error = error_chain(error), "cannot watch {objects}, retrying");
        };
        ready(event.inspect_err(log).ok())
    })
}

/// Returns the warnings that were not there before.
fn new_warnings<K: Ord + Clone>(before: &mut BTreeMap<K, String>, now: BTreeMap<K, String>) -> Vec<String> {
    let is_new = |(key, text): &(&K, &String)| before.get(*key) != Some(*text);
    let new = now.iter().filter(is_new).map(|(_, text)| text.clone()).collect();
    *before = now;
    new
}

/// Asks the kernel for the kinds of links that uplinks and these ClaimNetworks need, and adds whether it has
/// each that is not `known`. A module may make a link when it is loaded, so nothing else is asked for. Where
/// there is no answer, an ADD has it.
async fn ask_kernel(
    links: &Links,
    networks: &BTreeMap<NetworkName, ClaimNetworkSpec>,
    known: &mut BTreeMap<&'static str, bool>,
) {
    for (plugin, kind) in KINDS {
        let is_needed = || networks.values().any(|spec| spec.link_types().contains(&plugin));
        if !known.contains_key(kind) && (LinkUse::of_plugin(plugin).is_some() || is_needed()) {
            let has = links.kernel_has(kind).await.unwrap_or_else(|error| {
                let error = error_chain(&error);
                tracing::warn!(kind, error, "cannot find a kernel feature, assuming it is there");
                true
            });
            known.insert(kind, has);
        }
    }
}

/// Returns the names by which ClaimNetworks select their uplinks.
fn named(networks: &BTreeMap<NetworkName, ClaimNetworkSpec>) -> BTreeSet<&str> {
    let uplinks = networks.values().filter_map(|spec| spec.uplink.as_ref());
    uplinks.flat_map(|uplink| &uplink.links).map(IfName::as_str).collect()
}

/// Decodes an object; one that cannot be read is logged and left out.
fn decoded<K: Resource<DynamicType = ()> + DeserializeOwned>(object: DynamicObject) -> Option<K> {
    let name = object.name_any();
    let log = |error: &kube::core::dynamic::ParseDynamicObjectError| {
        tracing::warn!(kind = %K::kind(&()), name, error = error_chain(error), "cannot read an object, leaving it out");
    };
    object.try_parse::<K>().inspect_err(log).ok()
}

/// The part of an AddressPool that an agent reads.
#[derive(Debug, Clone, PartialEq)]
struct KnownPool {
    version: Version,
    /// Its spec; `None` if it is invalid.
    valid: Option<AddressPoolSpec>,
}

impl KnownPool {
    /// Reads an AddressPool. One whose spec was read before is not decoded and validated again.
    fn read(object: DynamicObject, before: Option<&Self>) -> Option<Self> {
        let version = Version::of(&object);
        if let Some(before) = before.filter(|before| before.version.is_of_spec(&version)) {
            return Some(before.clone());
        }
        let valid =
            decoded::<AddressPool>(object).map(|pool| pool.spec).filter(|spec| spec.problems().is_empty());
        Some(Self { version, valid })
    }
}

/// Returns the valid AddressPools.
fn valid_pools(pools: Option<&BTreeMap<String, KnownPool>>) -> BTreeMap<String, AddressPoolSpec> {
    let valid = |(name, pool): (&String, &KnownPool)| Some((name.clone(), pool.valid.clone()?));
    pools.into_iter().flatten().filter_map(valid).collect()
}

/// The version of an object's spec.
#[derive(Debug, Clone, PartialEq)]
struct Version {
    uid: Option<String>,
    generation: Option<i64>,
}

impl Version {
    fn of(object: &DynamicObject) -> Self {
        Self { uid: object.metadata.uid.clone(), generation: object.metadata.generation }
    }

    /// Whether both are of one spec, which the API server counts.
    fn is_of_spec(&self, other: &Self) -> bool {
        self.generation.is_some() && self == other
    }
}

/// The part of a ClaimNetwork that an agent reads.
#[derive(Debug, Clone, PartialEq)]
struct KnownNetwork {
    version: Version,
    /// Name and spec; `None` if they are invalid.
    valid: Option<(NetworkName, ClaimNetworkSpec)>,
    /// No block of addresses is free for a node that needs one, as the controller says.
    is_scarce: bool,
}

impl KnownNetwork {
    /// Reads a ClaimNetwork. One whose spec was read before is not decoded and validated again.
    fn read(object: DynamicObject, before: Option<&Self>) -> Option<Self> {
        let version = Version::of(&object);
        let is_scarce = AddressesReason::Exhausted.is_given_by(&object.data["status"]);
        if let Some(before) = before.filter(|before| before.version.is_of_spec(&version)) {
            return Some(Self { is_scarce, ..before.clone() });
        }
        let name = object.name_any();
        let spec = decoded::<ClaimNetwork>(object)?.spec;
        let is_valid = spec.problems(&name).is_empty();
        let valid = name.parse().ok().filter(|_| is_valid).map(|name| (name, spec));
        Some(Self { version, valid, is_scarce })
    }
}

/// Returns the valid ClaimNetworks that are meant for a node with these labels.
fn networks_for(
    networks: &BTreeMap<String, KnownNetwork>,
    labels: &BTreeMap<String, String>,
) -> BTreeMap<NetworkName, ClaimNetworkSpec> {
    let valid = networks.values().filter_map(|network| network.valid.clone());
    valid.filter(|(_, spec)| selects_node(spec.node_selector.as_ref(), labels)).collect()
}

/// Returns the ClaimNetworks that have no free block of addresses for a node that needs one.
fn scarce(networks: &BTreeMap<String, KnownNetwork>) -> BTreeSet<NetworkName> {
    let scarce = networks.iter().filter(|(_, network)| network.is_scarce);
    scarce.filter_map(|(name, _)| name.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use netclaim_api::reasons::Reason as _;
    use serde_json::{Value, json};

    use super::*;

    fn network(generation: i64, spec: Value, status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork",
            "metadata": {"name": "storage", "uid": "u", "generation": generation}, "spec": spec, "status": status,
        }))
        .expect("an object")
    }

    #[test]
    fn the_spec_of_a_network_is_an_update_and_its_status_is_not() {
        let spec = |kind: &str| {
            json!({"uplink": {"links": ["eth1"]},
                "cni": {"cniVersion": "1.0.0", "plugins": [{"type": kind, "master": "${uplink.name}"}]}})
        };
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({"type": kind, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let nodes = |count: i64| json!({"nodes": count, "conditions": [condition("Available", "True", "Everywhere")]});
        let mut known = Objects::<KnownNetwork>::default();
        let mut update = |event| known.update(event, KnownNetwork::read);
        assert!(!update(Event::Init));
        assert!(!update(Event::InitApply(network(1, spec("ipvlan"), Value::Null))));
        assert!(update(Event::InitDone));
        for count in 0..100 {
            assert!(!update(Event::Apply(network(1, spec("ipvlan"), nodes(count)))), "{count}");
        }
        assert!(update(Event::Apply(network(2, spec("macvlan"), nodes(7)))));
        let exhausted = json!({"conditions": [condition(AddressesReason::TYPE, "False", AddressesReason::Exhausted.as_str())]});
        assert!(update(Event::Apply(network(2, spec("macvlan"), exhausted.clone()))));
        assert!(!update(Event::Apply(network(2, spec("macvlan"), exhausted))));
        // The watch begins again.
        assert!(!update(Event::Init));
        assert!(!update(Event::InitApply(network(2, spec("macvlan"), nodes(9)))));
        assert!(update(Event::InitDone), "there are addresses again");
        let known = known.known().expect("a list");
        assert_eq!((networks_for(known, &BTreeMap::new()).len(), scarce(known).len()), (1, 0));
    }

    #[test]
    fn a_network_is_on_the_nodes_that_it_selects_and_with_an_empty_selector_on_none() {
        let on = |selector: Value| {
            let spec = json!({"nodeSelector": selector, "uplink": {"links": ["eth1"]},
                "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}"}]}});
            let known = KnownNetwork::read(network(1, spec, Value::Null), None).expect("it is read");
            let known = BTreeMap::from([("storage".to_owned(), known)]);
            ["a", "b"].map(|rack| networks_for(&known, &[("rack".to_owned(), rack.to_owned())].into()).len())
        };
        assert_eq!(on(Value::Null), [1, 1]);
        assert_eq!(on(json!({"matchLabels": {"rack": "a"}})), [1, 0]);
        let not_b = json!({"key": "rack", "operator": "NotIn", "values": ["b"]});
        assert_eq!(on(json!({"matchExpressions": [not_b]})), [1, 0]);
        assert_eq!(on(json!({})), [0, 0]);
    }

    #[test]
    fn a_spec_that_was_read_is_not_read_again() {
        let bad = json!({"cni": "not a conflist"});
        let version = Version { uid: Some("u".into()), generation: Some(1) };
        let known = |valid| KnownNetwork { version: version.clone(), valid, is_scarce: false };
        // It would be left out if it was decoded.
        assert_eq!(
            KnownNetwork::read(network(1, bad.clone(), Value::Null), Some(&known(None))),
            Some(known(None))
        );
        assert_eq!(KnownNetwork::read(network(2, bad, Value::Null), Some(&known(None))), None);
    }

    #[tokio::test]
    async fn the_kernel_is_asked_only_for_kinds_of_links_that_are_needed() {
        let asked = async |plugins: &[&str]| {
            let plugins: Vec<Value> = plugins.iter().map(|plugin| json!({"type": plugin})).collect();
            let spec = json!({"cni": {"cniVersion": "1.0.0", "plugins": plugins}});
            let spec = serde_json::from_value(spec).expect("a network");
            let (networks, mut known) = ([("n".parse().expect("a name"), spec)].into(), BTreeMap::new());
            ask_kernel(&Links::new("/sys"), &networks, &mut known).await;
            known.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(asked(&["tuning"]).await, ["ipvlan", "macvlan"]);
        assert_eq!(asked(&["ptp", "vrf"]).await, ["ipvlan", "macvlan", "veth", "vrf"]);
    }

    #[test]
    fn a_warning_is_reported_once_and_again_when_it_changes() {
        let mut before = BTreeMap::new();
        let now = |text: &str| BTreeMap::from([("n", text.to_owned())]);
        assert_eq!(new_warnings(&mut before, now("a")), ["a"]);
        assert_eq!(new_warnings(&mut before, now("a")), [""; 0]);
        assert_eq!(new_warnings(&mut before, now("b")), ["b"]);
        assert_eq!(new_warnings(&mut before, BTreeMap::new()), [""; 0]);
        assert_eq!(new_warnings(&mut before, now("b")), ["b"]);
    }
}
