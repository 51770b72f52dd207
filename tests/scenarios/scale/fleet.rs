//! Nodes that are only objects, and the devices that an agent on each of them would publish.

use std::collections::BTreeMap;

use anyhow::{Context as _, Error, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Counter, CounterSet, Device, DeviceCounterConsumption};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::device::{DeviceName, link_label};
use netclaim_api::labels::{SERVED, network_label};
use netclaim_api::published::{Amounts, Facts, device, taint};
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_api::{DRIVER_NAME, IfName, LinkUse, Quantity};
use netclaim_slices::{Placement, Pool, Publisher, PublisherConfig, PublisherHandle, Scope};
use netclaim_tests::{Cluster, objects};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::cluster::create_account;

/// Uplinks of a node.
pub const LINKS: [&str; 2] = ["eth1", "eth2"];
/// The ClaimNetwork of scope `Cluster`.
pub const EVERYWHERE: &str = "everywhere";
/// Devices of a node without ClaimNetworks.
pub const EXCLUSIVE: usize = 8;

/// How the links of the nodes can be used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Uses {
    /// By macvlan, by ipvlan, or whole, and 22 ClaimNetworks on each link. Macvlan is the most frequent use,
    /// so the whole link and ipvlan have a counter each.
    All,
    /// Only by macvlan, as with `modes: [macvlan]` of an UplinkPolicy: no counters.
    Macvlan,
    /// Only through ClaimNetworks, three on each link, as most users have it: no counters, at most eight
    /// attributes, one capacity.
    ClaimNetworks,
    /// The same, with eight addresses of each ClaimNetwork instead of 200.
    Eight,
    /// As a whole: eight plain exclusive devices, to compare with.
    Exclusive,
}

impl Uses {
    /// ClaimNetworks on each link.
    pub const fn networks(self) -> usize {
        match self {
            Self::All | Self::Macvlan => 22,
            Self::ClaimNetworks | Self::Eight => 3,
            Self::Exclusive => 0,
        }
    }

    /// Devices of a node.
    pub const fn devices(self) -> usize {
        match self {
            Self::All => LINKS.len() * (self.networks() + 3),
            Self::Macvlan => LINKS.len() * (self.networks() + 1),
            Self::ClaimNetworks | Self::Eight => LINKS.len() * self.networks(),
            Self::Exclusive => EXCLUSIVE,
        }
    }

    fn has(self, link_use: LinkUse) -> bool {
        self == Self::All || self == Self::Macvlan && link_use == LinkUse::Macvlan
    }
}

/// The amount of a counter: more than a link has devices.
const K: u64 = 1024;
/// Requests, or publishers that start, at the same time: as in a quick rollout of a DaemonSet.
pub const AT_ONCE: usize = 50;

/// The name of a ClaimNetwork on a link.
pub fn network(link: &str, n: usize) -> String {
    format!("{link}-{n:02}")
}

fn counter(amount: u64) -> Counter {
    Counter { value: ApiQuantity(amount.to_string()) }
}

fn devices_of(link: &IfName, node: usize, uses: Uses) -> Result<(Vec<Device>, Option<CounterSet>)> {
    let named = |link_use| DeviceName::of_link(link_use, link).to_string();
    let facts = |mode: &str| Facts {
        uplink: link.to_string(),
        mode: mode.to_owned(),
        mac: format!("02:00:00:00:{:02x}:{:02x}", node >> 8 & 0xff, node & 0xff),
        mtu: 1500,
        speed: 25_000_000_000,
        driver: "mlx5_core".to_owned(),
        pcie_root: Some("pci0000:17".to_owned()),
        pci_bus_id: Some("0000:17:00.0".to_owned()),
        numa_node: Some(0),
        ..Facts::default()
    };
    let bandwidth = Some(Quantity::new(25_000_000_000));
    let mut devices = Vec::new();
    for link_use in LinkUse::ALL {
        if !uses.has(link_use) {
            continue;
        }
        let amounts = Amounts { bandwidth, ..Amounts::default() };
        devices.push(device(named(link_use), facts(link_use.as_str()), amounts, link_use != LinkUse::Nic));
    }
    for n in 0..uses.networks() {
        let network = network(link.as_str(), n);
        let bandwidth = bandwidth.filter(|_| matches!(uses, Uses::All | Uses::Macvlan));
        let addresses = if uses == Uses::Eight { EXCLUSIVE as u64 } else { 200 };
        let amounts = Amounts { bandwidth, addresses: Some(Quantity::new(addresses)), ..Amounts::default() };
        let facts = Facts { network: network.clone(), ..facts("macvlan") };
        devices.push(device(
            DeviceName::Network(network.parse().map_err(Error::msg)?).to_string(),
            facts,
            amounts,
            true,
        ));
    }
    if uses != Uses::All {
        return Ok((devices, None));
    }
    let owners = [LinkUse::Nic, LinkUse::Ipvlan].map(named);
    let set = link_label(link);
    for device in &mut devices {
        let taken = |owner: &String| (owner.clone(), counter(if *owner == device.name { K } else { 1 }));
        device.consumes_counters = Some(vec![DeviceCounterConsumption {
            counter_set: set.clone(),
            counters: owners.iter().map(taken).collect(),
            ..DeviceCounterConsumption::default()
        }]);
    }
    let counters: BTreeMap<_, _> = owners.into_iter().map(|owner| (owner, counter(K))).collect();
    Ok((devices, Some(CounterSet { name: set, counters })))
}

/// A ClaimNetwork's device with little more than its name.
pub fn device_of_network(network: &str, uplink: &str, amounts: Amounts) -> Result<Device> {
    let facts = Facts { network: network.to_owned(), uplink: uplink.to_owned(), ..Facts::default() };
    let name = DeviceName::Network(network.parse().map_err(Error::msg)?);
    Ok(device(name.to_string(), facts, amounts, true))
}

/// Creates the class of exclusive devices, and returns its name.
pub fn create_class_of_nics(cluster: &Cluster) -> Result<&'static str> {
    create_account(cluster)?;
    let class = objects::class("nic", "device.attributes[\"netclaim.dev\"].mode == \"nic\"");
    cluster.kubectl_with(&["create", "-f", "-"], &class.to_string())?;
    Ok("nic")
}

/// Returns the exclusive devices of a node.
fn exclusive_devices() -> Vec<Device> {
    let facts = |n: usize| Facts { uplink: format!("eth{n}"), mode: "nic".to_owned(), ..Facts::default() };
    (0..EXCLUSIVE).map(|n| device(format!("nic-eth{n}"), facts(n), Amounts::default(), false)).collect()
}

fn pool(node: &str, number: usize, uses: Uses) -> Result<Pool> {
    let (mut devices, mut counters) = (Vec::new(), Vec::new());
    if uses == Uses::Exclusive {
        devices = exclusive_devices();
    }
    for link in LINKS {
        let (more, set) = devices_of(&link.parse().map_err(Error::msg)?, number, uses)?;
        devices.extend(more);
        counters.extend(set);
    }
    let placement = Placement::Node(node.to_owned());
    Ok(Pool { counters, ..Pool::new(node, placement, devices) })
}

/// Creates Node objects, and returns them.
pub async fn nodes(client: &Client, count: usize) -> Result<Vec<Node>> {
    let api: Api<Node> = Api::all(client.clone());
    let create = |n: usize| {
        let api = api.clone();
        async move {
            let resources = json!({"cpu": "64", "memory": "256Gi", "pods": "250"});
            // As an agent labels a node that serves the ClaimNetwork.
            let serves = network_label(&EVERYWHERE.parse().map_err(Error::msg)?);
            let labels = json!({"kubernetes.io/os": "linux", serves: SERVED});
            let node = serde_json::from_value(json!({
                "metadata": {"name": format!("node-{n:04}"), "labels": labels},
                "status": {"capacity": resources, "allocatable": resources,
                    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
                        "message": "", "lastHeartbeatTime": null, "lastTransitionTime": null}]},
            }))?;
            Ok::<_, anyhow::Error>(api.create(&PostParams::default(), &node).await?)
        }
    };
    stream::iter(0..count).map(create).buffered(AT_ONCE).try_collect().await
}

/// Has a pod run on such nodes: no kubelet renews their leases and says that they are ready.
pub fn tolerate(pod: &mut Value) {
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
}

/// Starts the publisher of a node, and returns it with the owner of the node's pools.
pub fn publisher(
    client: &Client,
    node: &Node,
    cancel: &CancellationToken,
) -> Result<(PublisherHandle, OwnerReference)> {
    let name = node.name_any();
    let config = PublisherConfig::new(DRIVER_NAME, "agent", Scope::Node(name.clone()))?;
    let (handle, _task) = Publisher::spawn(client.clone(), config, cancel.clone());
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name,
        uid: node.uid().context("a node without a UID")?,
        ..OwnerReference::default()
    };
    Ok((handle, owner))
}

/// The publishers of all nodes, each with its watch.
pub struct Fleet {
    cancel: CancellationToken,
    nodes: Vec<(PublisherHandle, Pool)>,
}

impl Fleet {
    /// Starts a publisher for each node, and waits until all are done.
    pub async fn publish(client: &Client, nodes: &[Node], uses: Uses) -> Result<Self> {
        let cancel = CancellationToken::new();
        let start = |(number, node): (usize, &Node)| {
            let (client, cancel, node) = (client.clone(), cancel.clone(), node.clone());
            async move {
                let (handle, owner) = publisher(&client, &node, &cancel)?;
                let pool = Pool { owner: Some(owner), ..pool(&node.name_any(), number, uses)? };
                published(&handle, pool.clone()).await?;
                Ok::<_, anyhow::Error>((handle, pool))
            }
        };
        let starting: Vec<_> = nodes.iter().enumerate().map(start).collect();
        let nodes = stream::iter(starting).buffered(AT_ONCE).try_collect().await?;
        Ok(Self { cancel, nodes })
    }

    /// Publishes that a link of a node is up or down, and waits until that is written.
    pub async fn set_link(&self, node: usize, link: &str, is_up: bool) -> Result<()> {
        let (handle, pool) = self.nodes.get(node).context("no such node")?;
        let mut pool = pool.clone();
        let down = Unhealthy { reason: Reason::LinkDown, message: String::new() };
        for device in &mut pool.devices {
            let uplink = device.attributes.as_ref().and_then(|all| all.get("uplink")?.string.as_deref());
            if uplink == Some(link) && !is_up {
                taint(device, std::slice::from_ref(&down));
            }
        }
        published(handle, pool).await
    }
}

/// Publishes a pool, and waits until it is written.
async fn published(handle: &PublisherHandle, pool: Pool) -> Result<()> {
    let revision = handle.publish(vec![pool]);
    let mut status = handle.status();
    let written = status.wait_for(|status| status.is_published(revision)).await;
    written.context("a publisher has ended").map(drop)
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
