//! Keeps the [`Inventory`] up to date: links by netlink, Networks and the node's labels from the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use netclaim_api::NetworkName;
use netclaim_api::network::{Network, NetworkSpec};
use netclaim_driver::error_chain;
use netclaim_driver::links::{Changes, Links};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::inventory::{Inventory, selects};

/// Pause after netlink or sysfs refused.
const LINKS_PAUSE: Duration = Duration::from_secs(1);

/// What has been seen so far; an inventory is made when every part has been.
#[derive(Default)]
struct Seen {
    labels: Option<BTreeMap<String, String>>,
    networks: Option<BTreeMap<String, Network>>,
    /// Networks of a list that is not complete yet.
    listing: BTreeMap<String, Network>,
}

/// Publishes inventories of `node` into `inventory` until `cancel`.
pub async fn watch_node(
    client: kube::Client,
    node: String,
    links: Links,
    inventory: watch::Sender<Option<Arc<Inventory>>>,
    cancel: CancellationToken,
) {
    let nodes = Api::<PartialObjectMeta<Node>>::all(client.clone());
    let own = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let mut nodes = watcher(nodes, own).default_backoff().boxed();
    let networks =
        Api::<kube::core::DynamicObject>::all_with(client, &kube::core::ApiResource::erase::<Network>(&()));
    let mut networks = watcher(networks, watcher::Config::default()).default_backoff().boxed();
    let mut link_changes = LinkChanges::default();
    let (macvlan, ipvlan) = (kernel_has(&links, "macvlan").await, kernel_has(&links, "ipvlan").await);
    let mut seen = Seen::default();
    let mut uplinks = None;
    loop {
        if uplinks.is_none() {
            // Subscribed before the look: a change in between is not missed.
            link_changes.subscribe(&links);
            match links.snapshot().await {
                Ok(snapshot) => uplinks = Some(snapshot.uplinks().into_iter().cloned().collect::<Vec<_>>()),
                Err(error) => tracing::warn!(error = error_chain(&error), "cannot look at the node's links"),
            }
        }
        if let (Some(uplinks), Some(labels), Some(networks)) = (&uplinks, &seen.labels, &seen.networks) {
            let now =
                Inventory { uplinks: uplinks.clone(), macvlan, ipvlan, networks: for_node(networks, labels) };
            inventory.send_if_modified(|known| {
                let changed = known.as_deref() != Some(&now);
                if changed {
                    *known = Some(Arc::new(now));
                }
                changed
            });
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = link_changes.tick() => uplinks = None,
            () = tokio::time::sleep(LINKS_PAUSE), if uplinks.is_none() => {}
            event = nodes.try_next() => match event {
                Ok(Some(event)) => seen.node(event),
                Ok(None) => return,
                Err(error) => tracing::warn!(error = error_chain(&error), "cannot watch the Node object"),
            },
            event = networks.try_next() => match event {
                Ok(Some(event)) => seen.network(event),
                Ok(None) => return,
                Err(error) => tracing::warn!(error = error_chain(&error), "cannot watch Networks"),
            },
        }
    }
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
    fn node(&mut self, event: watcher::Event<PartialObjectMeta<Node>>) {
        match event {
            watcher::Event::Apply(node) | watcher::Event::InitApply(node) => {
                self.labels = Some(node.labels().clone())
            }
            watcher::Event::Delete(_) | watcher::Event::Init | watcher::Event::InitDone => {}
        }
    }

    fn network(&mut self, event: watcher::Event<kube::core::DynamicObject>) {
        match event {
            watcher::Event::Init => self.listing.clear(),
            watcher::Event::InitApply(object) => {
                self.listing.extend(decoded(object));
            }
            watcher::Event::InitDone => self.networks = Some(std::mem::take(&mut self.listing)),
            watcher::Event::Apply(object) => {
                let name = object.name_any();
                let networks = self.networks.get_or_insert_default();
                match decoded(object) {
                    Some((name, network)) => networks.insert(name, network),
                    None => networks.remove(&name),
                };
            }
            watcher::Event::Delete(object) => {
                self.networks.get_or_insert_default().remove(&object.name_any());
            }
        }
    }
}

/// One Network that cannot be read is no reason to lose the others.
fn decoded(object: kube::core::DynamicObject) -> Option<(String, Network)> {
    let name = object.name_any();
    match object.try_parse::<Network>() {
        Ok(network) => Some((name, network)),
        Err(error) => {
            tracing::warn!(network = name, error = error_chain(&error), "left out");
            None
        }
    }
}

/// The valid Networks that are meant for a node with these labels.
fn for_node(
    networks: &BTreeMap<String, Network>,
    labels: &BTreeMap<String, String>,
) -> BTreeMap<NetworkName, NetworkSpec> {
    let valid = |(name, network): (&String, &Network)| {
        let fits = selects(&network.spec.node_selector, labels) && network.spec.problems(name).is_empty();
        Some((name.parse().ok().filter(|_| fits)?, network.spec.clone()))
    };
    networks.iter().filter_map(valid).collect()
}
