//! The node's devices, from the inventory into ResourceSlices.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::events::Reporter;
use kube::{Api, Client};
use netclaim_driver::attach::{Attacher, Network, Observer};
use netclaim_slices::{Publisher, PublisherConfig, Scope};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::inventory::Inventory;
use crate::metrics::Metrics;
use crate::server::Teller;
use crate::{addresses, devices, server};

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
    /// Publishes every new inventory until `cancel`.
    pub async fn publish<N: Network, O: Observer>(
        self,
        mut inventory: watch::Receiver<Option<Arc<Inventory>>>,
        attacher: Arc<Attacher<N, O>>,
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
        let mut status = publisher.status();
        let mut known = None;
        loop {
            let now = inventory.borrow_and_update().clone();
            if let (Some(now), Some(server)) = (now, &known) {
                let ours = attacher.sandbox_ids();
                let pool = devices::pool(&self.node, &now, |name, spec| addresses::of(name, spec, &ours));
                publisher.publish(vec![pool.fitted(server, server::rank)]);
            }
            tokio::select! {
                changed = inventory.changed() => if changed.is_err() {
                    return;
                },
                // Before it is known what the API server stores nothing is published: what is not protected from each
                // other there must not be seen together.
                changed = status.wait_for(|status| status.server.is_some() && status.server != known) => {
                    let Some(server) = changed.ok().and_then(|status| status.server.clone()) else { return };
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
