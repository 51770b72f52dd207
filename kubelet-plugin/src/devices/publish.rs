//! Publishes the node's devices in ResourceSlices, and their health.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use netclaim_api::IfName;
use netclaim_cni::error_chain;
use netclaim_cni::ipam::host_local::Reservations;
use netclaim_driver::attach::{Attach, Attacher, Observer};
use netclaim_driver::links::Links;
use netclaim_slices::{Pool, PublishStatus, Publisher, PublisherConfig, Scope, ServerFeatures};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, sleep_until};
use tokio_util::sync::CancellationToken;

use super::addresses::{self, Users};
use super::availability::Unavailable;
use super::followers::Followers;
use super::holdings::held_on;
use super::leases::Leases;
use super::metrics::PoolMetrics;
use super::moved_links::{self, MovedLink};
use super::older::{Comparison, Older};
use super::pool::{Sources, pool};
use super::report::PublishReporter;
use super::server_features;
use super::settling::Settling;
use crate::addresses::reservations::journalled_lists;
use crate::dra::{DeviceHealth, Report};
use crate::inventory::Inventory;
use crate::inventory::foreign_use::ForeignUse;
use crate::pods::owner::Owner;
use crate::reports::Events;

/// Delay that gathers the changes of several pods into one write.
const GATHER_DELAY: Duration = Duration::from_millis(100);

/// Interval of looks for links of other programs in network namespaces of their own.
const FOREIGN_USE_INTERVAL: Duration = Duration::from_secs(10);

/// The input of the devices, as it changes.
pub(crate) struct Inputs {
    /// The node's inventory; `None` until it is known.
    pub(crate) inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// ClaimNetworks whose plugins cannot serve an ADD now; `None` until they have been asked.
    pub(crate) unavailable: watch::Receiver<Option<Arc<Unavailable>>>,
    /// UID of the Node object, which owns the slices; `None` while there is no such object.
    pub(crate) node_uid: watch::Receiver<Option<String>>,
    /// Why no container with a claim can be created here; `None` while one can.
    pub(crate) no_hook: watch::Receiver<Option<String>>,
}

/// The devices of one node.
pub(crate) struct Devices {
    /// The client for slices.
    pub(crate) client: Client,
    pub(crate) driver: String,
    /// The Node object's name, which is the pool's.
    pub(crate) node: String,
    pub(crate) links: Links,
    /// The gauges about publishing.
    pub(crate) metrics: PoolMetrics,
    /// Events on the Node.
    pub(crate) events: Events,
    /// Addresses that `host-local` has handed out.
    pub(crate) reservations: Reservations,
    /// Why nothing can be published; `None` while something can.
    pub(crate) obstacle: watch::Sender<Option<String>>,
}

/// What looks have seen before.
#[derive(Default)]
struct Seen {
    followers: Followers,
    older: Older,
}

impl Devices {
    /// Publishes the devices, and their health into `health`, until `cancel`.
    pub(crate) async fn publish<A: Attach, O: Observer<Owner = Owner>>(
        self,
        mut inputs: Inputs,
        attacher: Arc<Attacher<A, O>>,
        health: watch::Sender<Report>,
        cancel: CancellationToken,
    ) {
        let config = match PublisherConfig::new(&self.driver, "agent", Scope::Node(self.node.clone())) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(%error, "cannot publish devices");
                return;
            }
        };
        let (publisher, mut task) = Publisher::spawn(self.client.clone(), config, cancel.clone());
        let mut attached = attacher.changes();
        let mut leases = Leases::default();
        let mut status = publisher.status();
        let inventory = inputs.inventory.clone();
        let reporter = PublishReporter {
            events: self.events.clone(),
            metrics: self.metrics.clone(),
            node: self.node.clone(),
            node_uid: inputs.node_uid.clone(),
        };
        let mut reporting = pin!(reporter.report_left_out(publisher.status()));
        let mut features: Option<ServerFeatures> = None;
        let mut seen = Seen::default();
        let mut settling = Settling::after([], Instant::now());
        let (mut foreign, mut look) = (ForeignUse::default(), tokio::time::interval(FOREIGN_USE_INTERVAL));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (now, unavailable) = (
                inputs.inventory.borrow_and_update().clone(),
                inputs.unavailable.borrow_and_update().clone(),
            );
            let owner = inputs.node_uid.borrow_and_update().as_ref().map(|uid| self.owner(uid.clone()));
            attached.borrow_and_update();
            let is_useless = inputs.no_hook.borrow_and_update().is_some() || self.obstacle.borrow().is_some();
            let mut look_again = None;
            if let (Some(now), Some(unavailable), Some(features)) = (now, unavailable, &features) {
                // Watched before the look, so that no later change is missed.
                leases.watch(&now, &journalled_lists(&attacher));
                let now = foreign.add_to(&now);
                let counts = features.without_counters().is_none();
                let look = self.look(now, unavailable, &attacher, counts, &mut seen);
                let Some((mut pool, now_health)) = look.await else {
                    return;
                };
                let settled = settling.settle(&mut pool, Instant::now());
                look_again = settled.into_iter().chain(seen.older.next()).min();
                let now_health: Report = now_health.into();
                health.send_if_modified(|before| std::mem::replace(before, now_health.clone()) != now_health);
                // The garbage collector would delete slices that no Node object owns.
                if let Some(owner) = owner.filter(|_| !is_useless) {
                    let fitted = Pool { owner: Some(owner), ..server_features::fitted(pool, features) };
                    publisher.publish(vec![fitted]);
                } else {
                    publisher.publish(Vec::new());
                }
            }
            tokio::select! {
                changed = inputs.inventory.changed() => if changed.is_err() {
                    return;
                },
                changed = inputs.unavailable.changed() => if changed.is_err() {
                    return;
                },
                changed = inputs.node_uid.changed() => if changed.is_err() {
                    return;
                },
                changed = inputs.no_hook.changed() => if changed.is_err() {
                    return;
                },
                // Changes with every pod, but what is published seldom does.
                _ = attached.changed() => tokio::time::sleep(GATHER_DELAY).await,
                () = sleep_until(look_again.unwrap_or_else(Instant::now)), if look_again.is_some() => {}
                () = leases.changed() => tokio::time::sleep(GATHER_DELAY).await,
                () = self.look_for_foreign_use(&mut foreign, &mut look, &inventory, &attacher) => {}
                // Nothing is published before: an API server that drops counters would show devices together
                // that exclude each other.
                changed = changed_features(&mut status, features.as_ref()) => {
                    let Some(changed) = changed else { return };
                    let obstacle = server_features::obstacle(&changed);
                    reporter.report_features(&changed, obstacle.as_deref());
                    self.obstacle.send_replace(obstacle);
                    if features.replace(changed).is_none() {
                        settling = Settling::after(&*status.borrow().found, Instant::now());
                    }
                }
                () = cancel.cancelled() => break,
                // The agent ends and starts again when publishing ends.
                _ = &mut task => return,
                () = &mut reporting => return,
            }
            // What has come until here is seen by the next look.
            leases.changed().now_or_never();
        }
        let _ = task.await;
    }

    /// Looks regularly for use of the node's links by other programs; returns when it has changed.
    async fn look_for_foreign_use<A: Attach, O: Observer<Owner = Owner>>(
        &self,
        foreign: &mut ForeignUse,
        look: &mut Interval,
        inventory: &watch::Receiver<Option<Arc<Inventory>>>,
        attacher: &Attacher<A, O>,
    ) {
        loop {
            look.tick().await;
            let addresses = match self.links.addresses_elsewhere().await {
                Ok(addresses) => addresses,
                Err(error) => {
                    tracing::warn!(
                        error = error_chain(&error),
                        "cannot look for other users of the node's links"
                    );
                    continue;
                }
            };
            let Some(inventory) = inventory.borrow().clone() else { continue };
            // Read after the look: a claim that was prepared meanwhile is not a foreign use.
            let kinds = attacher.kinds();
            let held: BTreeSet<_> = kinds.iter().filter_map(|(kind, _)| kind.held.link(&inventory)).collect();
            let on = inventory.uplinks.iter().filter(|uplink| held.contains(&uplink.name));
            if foreign.update(addresses, &on.map(|uplink| uplink.link.index).collect()) {
                return;
            }
        }
    }

    /// Returns the pool as it is now; `None` when the agent ends.
    async fn look<A: Attach, O: Observer<Owner = Owner>>(
        &self,
        inventory: Arc<Inventory>,
        unavailable: Arc<Unavailable>,
        attacher: &Attacher<A, O>,
        counts: bool,
        Seen { followers, older }: &mut Seen,
    ) -> Option<(Pool, Vec<DeviceHealth>)> {
        let (node, ours, reservations) =
            (self.node.clone(), attacher.sandbox_ids(), self.reservations.clone());
        let kinds = attacher.kinds();
        let held = held_on(&node, &kinds);
        let in_pods = held.iter().filter(|held| held.is_in_pod(&inventory));
        let in_pods = in_pods.filter_map(|held| Some(held.link(&inventory)?.to_string())).collect();
        // Each look asks the kernel only for links that the inventory has not got.
        let is_gone = |link: &IfName| {
            inventory.uplinks.iter().all(|uplink| uplink.name != *link) && self.links.index_of(link).is_none()
        };
        let gone = held.iter().filter_map(|held| held.link(&inventory)).filter(is_gone).collect();
        let mut annotations = followers.see(&inventory.followers, &in_pods);
        let moved = attacher
            .strays(|plan, link, _| MovedLink { link: link.clone(), name_in_pod: plan.spec.if_name.clone() });
        let (mut failed, mut comparison) = (BTreeMap::new(), Comparison::with(&inventory));
        let has_older = kinds.iter().any(|(kind, _)| comparison.has_older(kind));
        attacher.for_each_pod(|state| {
            if has_older {
                comparison.add(state);
            }
            let failing = state.records.iter().filter(|record| record.check.is_some());
            for device in failing.map(|record| &record.plan.owner.device) {
                *failed.entry(device.device.clone()).or_default() += 1;
            }
        });
        annotations.extend(older.update(comparison.annotation(), Instant::now(), fastrand::f64));
        // It reads the directories of leases.
        let made = tokio::task::spawn_blocking(move || {
            let (inventory, unavailable) = (&inventory, &unavailable);
            let from = Sources { node: &node, inventory, unavailable, held: &held, gone: &gone, counts };
            let (networks, leased) = (&inventory.networks, &inventory.addresses);
            let users = Users { networks, ours: &ours, leased, held: &held, reservations: &reservations };
            let (mut pool, mut health) = pool(from, |name, spec| addresses::of(name, spec, users));
            moved_links::taint(&mut pool, &moved, inventory);
            note_failed_checks(&mut health, &failed);
            (Pool { annotations, ..pool }, health)
        });
        made.await.ok()
    }

    /// Returns the slices' owner, the Node object of this UID.
    fn owner(&self, uid: String) -> OwnerReference {
        OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid,
            controller: Some(true),
            ..OwnerReference::default()
        }
    }
}

/// Makes devices unhealthy whose attachments fail their CHECK. New pods can have them, and what a plugin
/// says of one pod is in the status of its claim only: pods of other namespaces may share the device.
fn note_failed_checks(health: &mut [DeviceHealth], failed: &BTreeMap<String, usize>) {
    for DeviceHealth { device, unhealthy, .. } in health {
        let message = |count| {
            format!(
                "CHECK fails for {count} of its attachments: the condition Ready in the claim's status says why"
            )
        };
        *unhealthy = unhealthy.take().or_else(|| failed.get(device).map(message));
    }
}

/// Waits until the API server's features differ from `known`; `None` when the publisher has ended.
async fn changed_features(
    status: &mut watch::Receiver<PublishStatus>,
    known: Option<&ServerFeatures>,
) -> Option<ServerFeatures> {
    let is_update = |status: &PublishStatus| status.server.is_some() && status.server.as_ref() != known;
    status.wait_for(is_update).await.ok()?.server.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_an_attachment_that_fails_its_check_is_unhealthy_until_it_is_gone() {
        let device = |device: &str, unhealthy: Option<&str>| DeviceHealth {
            pool: "n".into(),
            device: device.into(),
            unhealthy: unhealthy.map(str::to_owned),
            stops_traffic: false,
        };
        let mut health = [device("net-a", None), device("net-b", None), device("net-c", Some("down"))];
        note_failed_checks(&mut health, &[("net-b".to_owned(), 2), ("net-c".to_owned(), 1)].into());
        let said: Vec<_> = health.iter().map(|health| health.unhealthy.as_deref()).collect();
        let failed =
            "CHECK fails for 2 of its attachments: the condition Ready in the claim's status says why";
        assert_eq!(said, [None, Some(failed), Some("down")]);
    }
}
