//! The ClaimNetworks of simulated nodes, and the class of each.

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use netclaim_api::network::ClaimNetwork;
use netclaim_tests::{Cluster, objects};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::cluster::{self, Controller, TIMEOUT, admin};
use crate::fleet::{self, LINKS, Uses};

/// The ClaimNetworks, which every node has.
pub struct ClaimNetworks {
    api: Api<DynamicObject>,
    count: usize,
}

impl ClaimNetworks {
    /// Creates the ClaimNetworks of such nodes, each with a class.
    pub fn create(cluster: &Cluster, client: &Client, uses: Uses) -> Result<Self> {
        cluster::create_crds(cluster)?;
        cluster::create_account(cluster)?;
        let count = uses.networks();
        let all: Vec<(usize, &str, usize)> = (LINKS.into_iter().enumerate())
            .flat_map(|(place, link)| (0..count).map(move |n| (place, link, n)))
            .collect();
        let each = all.iter().map(|(place, link, n)| {
            objects::network(&fleet::network(link, *n), "macvlan", link, &format!("10.{place}.{n}.0/24"))
        });
        let classes = all.iter().map(|(_, link, n)| {
            let network = fleet::network(link, *n);
            objects::class_of_network(&class(&network), &network)
        });
        let list: Vec<Value> = each.chain(classes).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": list}).to_string();
        cluster.kubectl_with(&["create", "-f", "-"], &list)?;
        Ok(Self { api: api(client), count: all.len() })
    }

    /// Creates a ClaimNetwork of scope `Cluster` with its class, and has a controller publish it. Nothing
    /// changes after that, so that the controller ends.
    pub async fn create_everywhere(cluster: &Cluster, client: &Client) -> Result<()> {
        let mut network = objects::network(fleet::EVERYWHERE, "macvlan", LINKS[0], "");
        network["spec"]["scope"] = json!("Cluster");
        network["spec"]["capacity"] = json!({"interfaces": 1_000_000});
        network["spec"]["cni"]["plugins"][0]["ipam"] = json!({"type": "dhcp"});
        let class = objects::class_of_network(&class(fleet::EVERYWHERE), fleet::EVERYWHERE);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [network, class]}).to_string();
        cluster.kubectl_with(&["create", "-f", "-"], &list)?;
        let mut controller = Controller::start(cluster, &admin(cluster))?;
        let slices: Api<ResourceSlice> = Api::all(client.clone());
        let of_no_node = ListParams::default().fields("spec.nodeName=");
        let is_of_cluster = |slice: &ResourceSlice| slice.spec.node_selector.is_some();
        let published = async {
            while !slices.list(&of_no_node).await?.iter().any(is_of_cluster) {
                sleep(Duration::from_secs(1)).await;
            }
            anyhow::Ok(())
        };
        timeout(TIMEOUT, published).await.context("the ClaimNetwork of scope Cluster is not published")??;
        controller.stop()
    }

    /// Waits until each status counts so many nodes.
    pub async fn are_on(&self, nodes: usize) -> Result<()> {
        let wanted = json!(nodes);
        let is_right = |network: &DynamicObject| network.data["status"]["nodes"]["publishing"] == wanted;
        self.all(is_right).await.with_context(|| format!("the ClaimNetworks do not get to {nodes} nodes"))
    }

    /// Waits until each status says that the ClaimNetwork is available everywhere.
    pub async fn are_everywhere(&self) -> Result<()> {
        let is_everywhere = |network: &DynamicObject| {
            objects::list(&network.data["status"]["conditions"])
                .any(|condition| condition["type"] == "Available" && condition["reason"] == "Everywhere")
        };
        self.all(is_everywhere).await.context("the ClaimNetworks do not get available everywhere")
    }

    async fn all(&self, is_right: impl Fn(&DynamicObject) -> bool) -> Result<()> {
        let right = async {
            loop {
                let networks = self.api.list(&ListParams::default()).await?;
                if networks.items.len() == self.count && networks.items.iter().all(&is_right) {
                    return Ok(());
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(TIMEOUT, right).await.context("too late")?
    }

    /// Makes one status wrong, so that a controller is done only after it has read all slices.
    pub fn falsify(&self, cluster: &Cluster) -> Result<()> {
        let name = fleet::network(LINKS[0], 0);
        let patch = r#"{"status": {"nodes": 1}}"#;
        cluster
            .kubectl(&["patch", "claimnetwork", &name, "--subresource=status", "--type=merge", "-p", patch])
            .map(drop)
    }
}

/// The ClaimNetworks of a cluster, with whatever their status has.
pub fn api(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<ClaimNetwork>(&()))
}

/// A ClaimNetwork whose pods get these `addresses` of the subnet.
pub fn with_addresses(name: &str, uplink: &str, subnet: &str, addresses: Value) -> Value {
    let mut network = objects::network(name, "macvlan", uplink, subnet);
    network["spec"]["addresses"] = addresses;
    network["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
    network
}

/// The class of a ClaimNetwork.
pub fn class(network: &str) -> String {
    format!("net-{network}")
}
