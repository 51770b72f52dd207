//! Keeps the [`Inventory`] up to date: links by netlink, providers' files, and Networks, UplinkPolicies and the Node object
//! from the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::ready;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource, ResourceExt as _};
use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressPool, AddressPoolSpec};
use netclaim_api::labels::has_all;
use netclaim_api::network::{ADDRESSES_AVAILABLE, EXHAUSTED, Network, NetworkSpec};
use netclaim_api::uplink_policy::UplinkPolicy;
use netclaim_cni::error_chain;
use netclaim_driver::links::Links;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::addresses::{OwnBlocks, addresses};
use super::link_watch::LinkWatch;
use super::node_object::{NodeObject, OwnNode};
use super::objects::Objects;
use super::policies::Policies;
use super::providers::Providers;
use super::selection::Inventory;
use super::uplinks::uplinks;
use crate::status::Events;

/// How long the first lists of blocks and pools of addresses are waited for: other devices need neither.
const ADDRESSES: Duration = Duration::from_secs(10);

/// The watch of one node.
pub struct NodeWatch {
    /// The client for Networks, UplinkPolicies and the Node object.
    pub client: kube::Client,
    /// The Node object's name.
    pub node: String,
    /// Events on the Node.
    pub events: Events,
    /// The node's links.
    pub links: Links,
    /// Providers of attributes of links.
    pub providers: Providers,
    /// The node's blocks of addresses.
    pub blocks: watch::Receiver<OwnBlocks>,
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
        let mut nodes = events(nodes, own, "the Node object").boxed();
        let mut networks = self.objects::<Network>("Networks").boxed();
        let mut policies = self.objects::<UplinkPolicy>("UplinkPolicies").boxed();
        let mut pools = self.objects::<AddressPool>("AddressPools").boxed();
        let mut links = LinkWatch::new(self.links.clone());
        let (macvlan, ipvlan) =
            (kernel_has(&self.links, "macvlan").await, kernel_has(&self.links, "ipvlan").await);
        let (mut own_node, mut known_networks) = (NodeObject::default(), Objects::<Network>::default());
        let (mut known_policies, mut known_pools) =
            (Policies::default(), Objects::<AddressPoolSpec>::default());
        let (mut warned, no_pools) = (BTreeMap::new(), BTreeMap::new());
        let (mut patience, mut waited) = (pin!(tokio::time::sleep(ADDRESSES)), false);
        loop {
            let snapshot = links.snapshot().await;
            // Before the first inventory, which is published as soon as it is there.
            uid.send_if_modified(|before| std::mem::replace(before, own_node.uid.clone()) != own_node.uid);
            let in_force = own_node.last.as_ref().and_then(|node| known_policies.of_node(&node.labels));
            if let (Some(snapshot), Some(node), Some(all_networks), Some(in_force)) =
                (snapshot, &own_node.last, known_networks.known(), in_force)
            {
                let uplinks = uplinks(snapshot, &node.addresses, &in_force, self.providers.provided());
                let networks = networks_for(all_networks, &node.labels);
                let labels = node.labels.clone();
                let blocks = self.blocks.borrow_and_update().clone();
                let scarce = scarce(all_networks);
                let pools = known_pools.known().unwrap_or(&no_pools);
                let addresses = addresses(&networks, &scarce, pools, &blocks);
                let now = Inventory { labels, uplinks, macvlan, ipvlan, networks, addresses };
                for warning in new_warnings(&mut warned, now.node_link_warnings()) {
                    tracing::warn!("{warning}");
                    self.events.warn_node(node.reference.clone(), "UplinkOfTheNode", warning);
                }
                // Without its blocks the node would offer no address, and take that back a moment later.
                let is_whole = now.addresses.is_empty()
                    || blocks.known.is_some() && known_pools.known().is_some()
                    || waited;
                let now = Some(Arc::new(now));
                if is_whole {
                    inventory.send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
                }
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = &mut patience, if !waited => waited = true,
                () = links.changed() => {}
                () = self.providers.changed() => {}
                event = nodes.next() => match event {
                    Some(event) => own_node.update(event),
                    None => return,
                },
                event = networks.next() => match event {
                    Some(event) => known_networks.update(event, |object, _| decoded(object)),
                    None => return,
                },
                // Its sender ends with this agent.
                Ok(()) = self.blocks.changed() => {}
                event = pools.next() => match event {
                    Some(event) => known_pools.update(event, |object, _| valid_pool(object)),
                    None => return,
                },
                event = policies.next() => match event {
                    Some(event) => known_policies.update(event),
                    None => return,
                },
            }
        }
    }

    /// Watches all objects of a kind. They are decoded later, so that one that cannot be read does not hide the others.
    fn objects<K: Resource<DynamicType = ()>>(
        &self,
        kind: &'static str,
    ) -> impl Stream<Item = watcher::Event<DynamicObject>> + Send + use<K> {
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<K>(&()));
        events(api, watcher::Config::default(), kind)
    }
}

/// Watches objects and logs failures of the watch, which is retried with backoff.
fn events<K>(
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

async fn kernel_has(links: &Links, kind: &str) -> bool {
    match links.kernel_has(kind).await {
        Ok(has) => has,
        Err(error) => {
            tracing::warn!(
                kind,
                error = error_chain(&error),
                "cannot find a kernel feature, assuming it is missing"
            );
            false
        }
    }
}

/// Decodes an object; one that cannot be read is logged and left out.
fn decoded<K: Resource<DynamicType = ()> + DeserializeOwned>(object: DynamicObject) -> Option<K> {
    let name = object.name_any();
    let log = |error: &kube::core::dynamic::ParseDynamicObjectError| {
        tracing::warn!(kind = %K::kind(&()), name, error = error_chain(error), "cannot read an object, leaving it out");
    };
    object.try_parse::<K>().inspect_err(log).ok()
}

/// Decodes an AddressPool; one that is invalid is left out.
fn valid_pool(object: DynamicObject) -> Option<AddressPoolSpec> {
    decoded::<AddressPool>(object).map(|pool| pool.spec).filter(|pool| pool.problems().is_empty())
}

/// Returns the valid Networks that are meant for a node with these labels.
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

/// Returns the Networks of which no block of addresses is free for a node that needs one, as the controller says.
fn scarce(networks: &BTreeMap<String, Network>) -> BTreeSet<NetworkName> {
    let is_scarce = |network: &Network| {
        let conditions = network.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| {
            condition.type_ == ADDRESSES_AVAILABLE
                && condition.status == "False"
                && condition.reason == EXHAUSTED
        })
    };
    let scarce = networks.iter().filter(|(_, network)| is_scarce(network));
    scarce.filter_map(|(name, _)| name.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
