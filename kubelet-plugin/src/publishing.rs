//! The node's devices, from the inventory into ResourceSlices.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client};
use netclaim_driver::attach::{Attacher, Network, Observer};
use netclaim_slices::{Publisher, PublisherConfig, Scope};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::inventory::Inventory;
use crate::{addresses, devices};

/// Publishes the devices of one node.
pub struct Devices {
    /// Where to.
    pub client: Client,
    /// The driver's name.
    pub driver: String,
    /// The Node object's name, and the pool's.
    pub node: String,
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
        let config = match PublisherConfig::new(&self.driver, "agent", Scope::Node(self.node.clone())) {
            Ok(config) => config.owner(owner),
            Err(error) => {
                tracing::error!(%error, "cannot publish devices");
                return;
            }
        };
        let (publisher, mut task) = Publisher::spawn(self.client.clone(), config, cancel.clone());
        loop {
            let now = inventory.borrow_and_update().clone();
            if let Some(now) = now {
                let ours = attacher.sandbox_ids();
                publisher.publish(vec![devices::pool(&self.node, &now, |name, spec| {
                    addresses::of(name, spec, &ours)
                })]);
            }
            tokio::select! {
                changed = inventory.changed() => if changed.is_err() {
                    return;
                },
                () = cancel.cancelled() => break,
                // Its end is ours, and the agent's.
                _ = &mut task => return,
            }
        }
        let _ = task.await;
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
