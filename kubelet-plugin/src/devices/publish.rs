//! The node's devices, from the inventory into ResourceSlices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::runtime::events::Reporter;
use netclaim_api::NetworkName;
use netclaim_api::taints::Trouble;
use netclaim_cni::dir_changes::DirChanges;
use netclaim_cni::error_chain;
use netclaim_driver::attach::{Attach, Attacher, Observer};
use netclaim_driver::links::Links;
use netclaim_slices::{Fault, Pool, PublishStatus, Publisher, PublisherConfig, Scope, ServerFeatures};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::devices;
use crate::devices::addresses;
use crate::devices::addresses::Users;
use crate::devices::health::DeviceHealth;
use crate::devices::server_features;
use crate::devices::server_features::Teller;
use crate::devices::{Held, Sources, Stray, strays};
use crate::inventory::Inventory;
use crate::inventory::foreign_use::Strangers;
use crate::prepare::owner::Owner;
use crate::process::metrics::Metrics;

/// How long what pods bring about is gathered.
const GATHER: Duration = Duration::from_millis(100);

/// How often to look for what other programs have on links in namespaces of their own.
const STRANGERS_PERIOD: Duration = Duration::from_secs(10);

/// What the devices are made of, as it changes.
pub struct News {
    /// What the node has; `None` until it is known.
    pub inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// Networks whose plugins cannot serve an ADD now.
    pub unavailable: watch::Receiver<Arc<BTreeMap<NetworkName, Trouble>>>,
    /// The UID of the Node object, with which the slices go; `None` while there is no such object.
    pub node_uid: watch::Receiver<Option<String>>,
}

/// Publishes the devices of one node.
pub struct Devices {
    /// Where to.
    pub client: Client,
    /// The driver's name.
    pub driver: String,
    /// The Node object's name, and the pool's.
    pub node: String,
    /// The node's links.
    pub links: Links,
    /// Where it is counted what the API server does not store.
    pub metrics: Arc<Metrics>,
}

impl Devices {
    /// Publishes what the node has, and how well it is, until `cancel`.
    pub async fn publish<A: Attach, O: Observer<Owner = Owner>>(
        self,
        mut news: News,
        attacher: Arc<Attacher<A, O>>,
        health: watch::Sender<Arc<Vec<DeviceHealth>>>,
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
        let (node_uid, inventory) = (news.node_uid.clone(), news.inventory.clone());
        let mut reporting = pin!(self.report(publisher.status(), &node_uid));
        let mut known = None;
        let (mut strangers, mut look) = (Strangers::default(), tokio::time::interval(STRANGERS_PERIOD));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (now, unavailable) =
                (news.inventory.borrow_and_update().clone(), news.unavailable.borrow_and_update().clone());
            let owner = news.node_uid.borrow_and_update().as_ref().map(|uid| self.owner(uid.clone()));
            attached.borrow_and_update();
            if let (Some(now), Some(server)) = (now, &known) {
                // Watched before the look: a change in between is not missed.
                leases.watch(&now);
                let now = strangers.on(&now);
                let Some((pool, now_health)) = self.look(now, unavailable, &attacher).await else { return };
                let now_health = Arc::new(now_health);
                health.send_if_modified(|known| std::mem::replace(known, now_health.clone()) != now_health);
                // Without a Node object the garbage collector deletes what is published.
                let pools = owner
                    .map(|owner| Pool { owner: Some(owner), ..pool.fitted(server, server_features::rank) });
                publisher.publish(pools.into_iter().collect());
            }
            tokio::select! {
                changed = news.inventory.changed() => if changed.is_err() {
                    return;
                },
                changed = news.unavailable.changed() => if changed.is_err() {
                    return;
                },
                changed = news.node_uid.changed() => if changed.is_err() {
                    return;
                },
                // Of every pod that comes or goes, and seldom of anything that is published.
                _ = attached.changed() => tokio::time::sleep(GATHER).await,
                () = leases.changed() => tokio::time::sleep(GATHER).await,
                () = self.look_for(&mut strangers, &mut look, &inventory, &attacher) => {}
                // Before it is known what the API server stores nothing is published: what is not protected from each
                // other there must not be seen together.
                server = stored(&mut status, known.as_ref()) => {
                    let Some(server) = server else { return };
                    self.teller(&node_uid).tell(&server);
                    known = Some(server);
                }
                () = cancel.cancelled() => break,
                // Its end is ours, and the agent's.
                _ = &mut task => return,
                () = &mut reporting => return,
            }
        }
        let _ = task.await;
    }

    /// Looks now and then for what other programs have on the node's links, until that is something else.
    async fn look_for<A: Attach, O: Observer<Owner = Owner>>(
        &self,
        strangers: &mut Strangers,
        look: &mut Interval,
        inventory: &watch::Receiver<Option<Arc<Inventory>>>,
        attacher: &Attacher<A, O>,
    ) {
        loop {
            look.tick().await;
            let addresses = match self.links.addresses_elsewhere().await {
                Ok(addresses) => addresses,
                Err(error) => {
                    tracing::warn!(error = error_chain(&error), "cannot look who uses the node's links");
                    continue;
                }
            };
            let Some(inventory) = inventory.borrow().clone() else { continue };
            // Asked after the look: what came to be held meanwhile is not a stranger's.
            let held = attacher.plans(|plan| Held::of(plan, &self.node).link(&inventory));
            let held: BTreeSet<_> = held.into_iter().flatten().collect();
            let on = inventory.uplinks.iter().filter(|uplink| held.contains(&uplink.name));
            if strangers.look(addresses, &on.map(|uplink| uplink.link.index).collect()) {
                return;
            }
        }
    }

    /// The pool as it is now; `None` when the agent ends.
    async fn look<A: Attach, O: Observer<Owner = Owner>>(
        &self,
        inventory: Arc<Inventory>,
        unavailable: Arc<BTreeMap<NetworkName, Trouble>>,
        attacher: &Attacher<A, O>,
    ) -> Option<(Pool, Vec<DeviceHealth>)> {
        let (node, ours) = (self.node.clone(), attacher.sandbox_ids());
        let held = attacher.plans(|plan| Held::of(plan, &node));
        let lost =
            attacher.strays(|plan, link, _| Stray { link: link.clone(), lent_as: plan.spec.if_name.clone() });
        // It reads the folders of leases.
        let made = tokio::task::spawn_blocking(move || {
            let from = Sources { node: &node, inventory: &inventory, unavailable: &unavailable, held: &held };
            let users = Users { networks: &inventory.networks, ours: &ours, held: &held };
            let (mut pool, health) = devices::pool(from, |name, spec| addresses::of(name, spec, users));
            strays::taint(&mut pool, &lost, &inventory);
            (pool, health)
        });
        made.await.ok()
    }

    /// Reports what is not published, until nobody publishes any more.
    async fn report(
        &self,
        mut status: watch::Receiver<PublishStatus>,
        node_uid: &watch::Receiver<Option<String>>,
    ) {
        let mut known = BTreeSet::new();
        while status.changed().await.is_ok() {
            let (faults, is_published) = {
                let pools = &status.borrow_and_update().pools;
                let faults: Vec<Fault> = pools.values().flat_map(|pool| pool.left_out.clone()).collect();
                (faults, pools.values().all(|pool| pool.error.is_none()))
            };
            let devices: BTreeSet<_> = faults.iter().filter_map(|fault| fault.device.as_ref()).collect();
            self.metrics.devices_left_out.set(i64::try_from(devices.len()).unwrap_or(i64::MAX));
            self.metrics.pool_published.set(is_published.into());
            let now: BTreeSet<String> = faults.iter().map(ToString::to_string).collect();
            if !now.is_subset(&known) {
                self.teller(node_uid).left_out(&now);
            }
            known = now;
        }
    }

    fn teller(&self, node_uid: &watch::Receiver<Option<String>>) -> Teller {
        Teller {
            client: self.client.clone(),
            reporter: Reporter { controller: self.driver.clone(), instance: Some(self.node.clone()) },
            node: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(self.node.clone()),
                uid: node_uid.borrow().clone(),
                ..ObjectReference::default()
            },
            metrics: Arc::clone(&self.metrics),
        }
    }

    /// The slices go with the Node object of this UID.
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

/// What the API server stores, as soon as that is another than what is `known`; `None` when nobody finds out any more.
async fn stored(
    status: &mut watch::Receiver<PublishStatus>,
    known: Option<&ServerFeatures>,
) -> Option<ServerFeatures> {
    let is_news = |status: &PublishStatus| status.server.is_some() && status.server.as_ref() != known;
    status.wait_for(is_news).await.ok()?.server.clone()
}

/// The folders in which the IPAMs of the node's Networks note who has what.
#[derive(Default)]
struct Leases {
    changes: Option<DirChanges>,
    warned: bool,
}

impl Leases {
    fn watch(&mut self, inventory: &Inventory) {
        let dirs: BTreeSet<PathBuf> =
            inventory.networks.iter().flat_map(|(name, spec)| addresses::dirs(name, spec)).collect();
        let dirs: Vec<PathBuf> = dirs.into_iter().collect();
        if self.changes.as_ref().is_none_or(|changes| changes.dirs() != dirs) {
            match DirChanges::subscribe(dirs) {
                Ok(changes) => self.changes = Some(changes),
                Err(error) => self.warn(&error),
            }
        }
    }

    async fn changed(&mut self) {
        let Some(changes) = &mut self.changes else { return std::future::pending().await };
        if let Err(error) = changes.tick().await {
            self.changes = None;
            self.warn(&error);
        }
    }

    fn warn(&mut self, error: &std::io::Error) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(%error, "addresses that others take cannot be watched, and are counted when something else changes: see sysctl fs.inotify");
        }
    }
}
