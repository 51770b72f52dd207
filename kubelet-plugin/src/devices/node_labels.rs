//! Labels of the node's own Node object: which ClaimNetworks of scope `Cluster` pods can be attached to here.
//!
//! The device of such a ClaimNetwork is for the nodes with its label, so that no pod comes to a node that
//! lacks the uplink, whose link is down, or whose plugin cannot serve. Devices of other ClaimNetworks are the
//! node's own, and say so themselves.
//!
//! A Node is written to every watcher of the cluster. So a label is removed at once and comes back [`STEADY`]
//! later at the earliest: a link that flaps makes two writes in that time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{PartialObjectMeta, Patch, PatchParams};
use kube::{Api, Client, Error};
use netclaim_api::NetworkName;
use netclaim_api::labels::{NETWORK_LABELS, SERVED, network_label};
use netclaim_api::network::{ClaimNetworkSpec, Scope};
use netclaim_cni::error_chain;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::devices::availability::Unavailable;
use crate::devices::link_unhealthy;
use crate::inventory::Inventory;

/// How long a label that was removed stays away.
const STEADY: Duration = Duration::from_secs(15);
/// Time between a write that failed and the next one.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// How long the API server may take for one write.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Labels, and their values; `None` for one that is to be removed.
type Labels = BTreeMap<String, Option<&'static str>>;

/// The labels of one Node.
pub(crate) struct NodeLabels {
    /// The client for the Node object.
    pub(crate) client: Client,
    pub(crate) node: String,
    /// What the node has, its labels included; `None` until it is known.
    pub(crate) inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// ClaimNetworks whose plugins cannot serve an ADD now; `None` until they have been asked.
    pub(crate) unavailable: watch::Receiver<Option<Arc<Unavailable>>>,
    /// UID of the Node object; `None` while there is no such object.
    pub(crate) node_uid: watch::Receiver<Option<String>>,
}

impl NodeLabels {
    /// Keeps the labels as they should be until dropped.
    pub(crate) async fn keep(mut self) {
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let mut removed = Removed::default();
        let mut has_warned = false;
        loop {
            let inventory = self.inventory.borrow_and_update().clone();
            let unavailable = self.unavailable.borrow_and_update().clone();
            let uid = self.node_uid.borrow_and_update().clone();
            let mut due = None;
            if let (Some(inventory), Some(unavailable), Some(uid)) = (inventory, unavailable, uid) {
                let served = served(&inventory, &unavailable);
                let now = Instant::now();
                let changes = removed.changes(&served, &inventory.labels, now);
                due = removed.next(&served, &inventory.labels, now);
                if !changes.is_empty() {
                    let patch = Patch::Merge(json!({"metadata": {"uid": uid, "labels": changes}}));
                    let params = PatchParams::default();
                    let written = nodes.patch_metadata(&self.node, &params, &patch);
                    match tokio::time::timeout(TIMEOUT, written).await {
                        Ok(Ok(_)) => {
                            tracing::info!(labels = ?changes, "labelled the node for ClaimNetworks of scope Cluster");
                            removed.wrote(&changes, now);
                        }
                        Ok(Err(error)) => report(&error, &mut has_warned),
                        Err(_) => tracing::warn!(
                            "the API server does not answer: the node's labels are written later"
                        ),
                    }
                    // The watch shows what was written, or it is tried again.
                    due = due.into_iter().chain([Instant::now() + RETRY_DELAY]).min();
                }
            }
            tokio::select! {
                changed = self.inventory.changed() => if changed.is_err() { return },
                changed = self.unavailable.changed() => if changed.is_err() { return },
                changed = self.node_uid.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }
}

/// Logs why the labels are not written: once as a warning, if an admin has to act on it.
fn report(error: &Error, has_warned: &mut bool) {
    if matches!(error, Error::Api(status) if status.is_forbidden()) && !*has_warned {
        *has_warned = true;
        tracing::warn!(
            "the agent may not label its node, so that pods of ClaimNetworks of scope Cluster do not come to it: it needs the right to \
             patch nodes, see deploy/manifests/agent-rbac.yaml"
        );
    } else {
        tracing::debug!(error = error_chain(error), "cannot label the node, will retry");
    }
}

/// Returns the labels of the ClaimNetworks of scope `Cluster` that pods can be attached to on this node.
fn served(inventory: &Inventory, unavailable: &Unavailable) -> BTreeSet<String> {
    let is_served = |(name, spec): &(&NetworkName, &ClaimNetworkSpec)| {
        spec.scope == Scope::Cluster
            && inventory.can_serve(spec)
            && !unavailable.contains_key(*name)
            && inventory.lacks(spec).is_none()
            && inventory.uplink_of(spec).is_none_or(|uplink| {
                link_unhealthy(uplink, spec.link_use(), spec.moves_link()).next().is_none()
            })
    };
    inventory.networks.iter().filter(is_served).map(|(name, _)| network_label(name)).collect()
}

/// When labels were removed.
#[derive(Default)]
struct Removed(BTreeMap<String, Instant>);

impl Removed {
    /// Returns what to change now of the labels that the Node has.
    fn changes(&self, served: &BTreeSet<String>, labels: &BTreeMap<String, String>, now: Instant) -> Labels {
        let of_networks = labels.keys().filter(|label| label.starts_with(NETWORK_LABELS));
        let wrong = of_networks.filter(|label| !served.contains(*label)).map(|label| (label.clone(), None));
        let missing = served.iter().filter(|label| labels.get(*label).is_none_or(|value| value != SERVED));
        let missing = missing.filter(|label| self.steady(label).is_none_or(|steady| steady <= now));
        wrong.chain(missing.map(|label| (label.clone(), Some(SERVED)))).collect()
    }

    /// Returns when the next label may come back.
    fn next(
        &self,
        served: &BTreeSet<String>,
        labels: &BTreeMap<String, String>,
        now: Instant,
    ) -> Option<Instant> {
        let missing = served.iter().filter(|label| !labels.contains_key(*label));
        missing.filter_map(|label| self.steady(label)).filter(|steady| *steady > now).min()
    }

    /// Notes a write.
    fn wrote(&mut self, changes: &Labels, now: Instant) {
        self.0.retain(|_, removed| *removed + STEADY > now);
        let gone = changes.iter().filter(|(_, value)| value.is_none());
        self.0.extend(gone.map(|(label, _)| (label.clone(), now)));
    }

    fn steady(&self, label: &str) -> Option<Instant> {
        self.0.get(label).map(|removed| *removed + STEADY)
    }
}

#[cfg(test)]
mod tests {
    use netclaim_api::taints::{Reason, Unhealthy};

    use super::*;
    use crate::inventory::fixtures::uplink;

    const LABEL: &str = "network.netclaim.dev/m";

    fn inventory(scope: &str) -> Inventory {
        let network = serde_json::from_value(json!({
            "scope": scope, "uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "macvlan"}]},
        }));
        Inventory {
            uplinks: vec![uplink("eth1")],
            networks: [("m".parse().expect("a name"), network.expect("a network"))].into(),
            ..Inventory::default()
        }
    }

    fn served_with(change: impl FnOnce(&mut Inventory, &mut Unavailable)) -> bool {
        let (mut inventory, mut unavailable) = (inventory("Cluster"), Unavailable::default());
        change(&mut inventory, &mut unavailable);
        served(&inventory, &unavailable).contains(LABEL)
    }

    #[test]
    fn a_node_serves_a_cluster_network_while_its_uplink_and_plugins_do() {
        assert!(served_with(|_, _| {}));
        assert!(!served_with(|inventory, _| inventory.uplinks.clear()));
        assert!(!served_with(|inventory, _| inventory.uplinks[0].link.carrier = false));
        assert!(!served_with(|inventory, _| inventory.lacking = ["macvlan"].into()));
        assert!(!served_with(|inventory, _| inventory.networks.clear()), "its node selector does not fit");
        assert!(!served_with(|_, unavailable| {
            let unhealthy = Unhealthy::new(Reason::NotReady, "the daemon is away");
            unavailable.insert("m".parse().expect("a name"), unhealthy);
        }));
        assert!(served(&inventory("Node"), &Unavailable::default()).is_empty(), "its device says so");
    }

    #[test]
    fn labels_of_others_stay_and_those_of_networks_are_made_right() {
        let text = |labels: &[(&str, &str)]| -> BTreeMap<String, String> {
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let (served, now) = ([LABEL.to_owned()].into(), Instant::now());
        let changes = |labels: &[(&str, &str)]| Removed::default().changes(&served, &text(labels), now);
        assert_eq!(changes(&[("rack", "7"), (LABEL, "up")]), Labels::new());
        let other = "network.netclaim.dev/gone";
        let expected = [(LABEL.to_owned(), Some("up")), (other.to_owned(), None)];
        assert_eq!(changes(&[("rack", "7"), (LABEL, "no"), (other, "up")]), expected.into());
    }

    #[test]
    fn a_link_that_flaps_makes_two_writes_in_fifteen_seconds() {
        let (mut removed, mut labels) = (Removed::default(), BTreeMap::new());
        let (start, mut writes) = (Instant::now(), Vec::new());
        let (up, down) = (BTreeSet::from([LABEL.to_owned()]), BTreeSet::new());
        for second in 0..60 {
            let (served, now) =
                (if second % 2 == 0 { &up } else { &down }, start + Duration::from_secs(second));
            let changes = removed.changes(served, &labels, now);
            if let Some(value) = changes.get(LABEL) {
                removed.wrote(&changes, now);
                writes.push((second, value.is_some()));
                match value {
                    Some(value) => drop(labels.insert(LABEL.to_owned(), (*value).to_owned())),
                    None => drop(labels.remove(LABEL)),
                }
            }
        }
        let expected = [0, 16, 32, 48].map(|second| [(second, true), (second + 1, false)]).concat();
        assert_eq!(writes, expected);
        let now = start + Duration::from_secs(60);
        assert_eq!(removed.next(&up, &labels, now), Some(start + Duration::from_secs(49) + STEADY));
        assert_eq!(removed.next(&down, &labels, now), None);
    }
}
