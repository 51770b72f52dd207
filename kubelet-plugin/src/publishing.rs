//! The node's devices, from the inventory into ResourceSlices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::events::Reporter;
use kube::{Api, Client};
use netclaim_api::NetworkName;
use netclaim_api::taints::Trouble;
use netclaim_driver::attach::{Attacher, Network, Observer};
use netclaim_driver::dir_changes::DirChanges;
use netclaim_slices::{Pool, PublishStatus, Publisher, PublisherConfig, Scope, ServerFeatures};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::devices::{Held, Sources, Stray, strays};
use crate::health::DeviceHealth;
use crate::inventory::Inventory;
use crate::metrics::Metrics;
use crate::server::Teller;
use crate::{addresses, devices, server};

/// How long what pods bring about is gathered.
const GATHER: Duration = Duration::from_millis(100);

/// What the devices are made of, as it changes.
pub struct News {
    /// What the node has; `None` until it is known.
    pub inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// Networks whose plugins cannot serve an ADD now.
    pub unavailable: watch::Receiver<Arc<BTreeMap<NetworkName, Trouble>>>,
}

/// Publishes the devices of one node.
pub struct Devices {
    /// Where to.
    pub client: Client,
    /// The driver's name.
    pub driver: String,
    /// The Node object's name, and the pool's.
    pub node: String,
    /// Where it is counted what the API server does not store.
    pub metrics: Arc<Metrics>,
}

impl Devices {
    /// Publishes what the node has, and how well it is, until `cancel`.
    pub async fn publish<N: Network, O: Observer>(
        self,
        mut news: News,
        attacher: Arc<Attacher<N, O>>,
        health: watch::Sender<Arc<Vec<DeviceHealth>>>,
        cancel: CancellationToken,
    ) {
        let Some(owner) = cancel.run_until_cancelled(self.owner()).await else {
            return;
        };
        let teller = self.teller(&owner);
        let config = match PublisherConfig::new(&self.driver, "agent", Scope::Node(self.node.clone())) {
            Ok(config) => config.owner(owner),
            Err(error) => {
                tracing::error!(%error, "cannot publish devices");
                return;
            }
        };
        let (publisher, mut task) = Publisher::spawn(self.client.clone(), config, cancel.clone());
        let mut attached = attacher.changes();
        let mut leases = Leases::default();
        let mut status = publisher.status();
        let mut known = None;
        loop {
            let (now, unavailable) =
                (news.inventory.borrow_and_update().clone(), news.unavailable.borrow_and_update().clone());
            attached.borrow_and_update();
            if let (Some(now), Some(server)) = (now, &known) {
                // Watched before the look: a change in between is not missed.
                leases.watch(&now);
                let Some((pool, now_health)) = self.look(now, unavailable, &attacher).await else { return };
                let now_health = Arc::new(now_health);
                health.send_if_modified(|known| std::mem::replace(known, now_health.clone()) != now_health);
                publisher.publish(vec![pool.fitted(server, server::rank)]);
            }
            tokio::select! {
                changed = news.inventory.changed() => if changed.is_err() {
                    return;
                },
                changed = news.unavailable.changed() => if changed.is_err() {
                    return;
                },
                // Of every pod that comes or goes, and seldom of anything that is published.
                _ = attached.changed() => tokio::time::sleep(GATHER).await,
                () = leases.changed() => tokio::time::sleep(GATHER).await,
                // Before it is known what the API server stores nothing is published: what is not protected from each
                // other there must not be seen together.
                server = stored(&mut status, known.as_ref()) => {
                    let Some(server) = server else { return };
                    teller.tell(&server);
                    known = Some(server);
                }
                () = cancel.cancelled() => break,
                // Its end is ours, and the agent's.
                _ = &mut task => return,
            }
        }
        let _ = task.await;
    }

    /// The pool as it is now; `None` when the agent ends.
    async fn look<N: Network, O: Observer>(
        &self,
        inventory: Arc<Inventory>,
        unavailable: Arc<BTreeMap<NetworkName, Trouble>>,
        attacher: &Attacher<N, O>,
    ) -> Option<(Pool, Vec<DeviceHealth>)> {
        let (node, ours) = (self.node.clone(), attacher.sandbox_ids());
        let held = attacher.plans(|plan| {
            let device = &plan.device;
            (device.pool == node).then(|| (device.device.clone(), plan.attributes.clone()))
        });
        let held: Held = held.into_iter().flatten().collect();
        let lost =
            attacher.strays(|plan, link, _| Stray { link: link.clone(), lent_as: plan.if_name.clone() });
        // It reads the folders of leases.
        let made = tokio::task::spawn_blocking(move || {
            let from = Sources { node: &node, inventory: &inventory, unavailable: &unavailable, held: &held };
            let (mut pool, health) = devices::pool(from, |name, spec| addresses::of(name, spec, &ours));
            strays::taint(&mut pool, &lost, &inventory);
            (pool, health)
        });
        made.await.ok()
    }

    fn teller(&self, node: &OwnerReference) -> Teller {
        Teller {
            client: self.client.clone(),
            reporter: Reporter { controller: self.driver.clone(), instance: Some(self.node.clone()) },
            node: ObjectReference {
                api_version: Some(node.api_version.clone()),
                kind: Some(node.kind.clone()),
                name: Some(node.name.clone()),
                uid: Some(node.uid.clone()),
                ..ObjectReference::default()
            },
            metrics: Arc::clone(&self.metrics),
        }
    }

    /// The slices go with the Node object. Waits for it: an agent may start before its node is registered.
    async fn owner(&self) -> OwnerReference {
        let (nodes, name) = (Api::<Node>::all(self.client.clone()), self.node.as_str());
        let mut told = false;
        let uid = loop {
            match nodes.get_metadata(name).await {
                Ok(node) => break node.metadata.uid.unwrap_or_default(),
                Err(error) if !told => {
                    tracing::warn!(node = name, %error, "cannot read the Node object, trying until it is there");
                    told = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: name.to_owned(),
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
