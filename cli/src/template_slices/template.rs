//! The slices of a node that does not exist yet, and the labels of its Node object. Pure.
//!
//! An autoscaler asks what a new node would offer. A template that says more than the node will have brings
//! nodes on which the pod finds nothing, again and again; one that says less brings none. So a template has
//! what every node of the group gets: no taint, no owner, and nothing that names one card.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{CounterSet, Device, DeviceCapacity, ResourceSlice};
use netclaim_api::addresses::{AddressTotals, Family};
use netclaim_api::labels::{SERVED, network_label};
use netclaim_api::published::{self, Amounts, Facts};
use netclaim_api::{DRIVER_NAME, Quantity, attributes};
use netclaim_kubernetes::quantity::billionths;
use netclaim_slices::{Placement, Pool, specs};
use serde_json::{Value, json};

use super::differences::differences;
use super::error::TemplateError;
use super::offers::{Offer, offers, pattern};
use super::read::{Cluster, Network};

/// What stands for the node's name. It is not a name, so that no API server accepts a slice with it.
pub(super) const NODE: &str = "${NODE_NAME}";

/// The input for a template of a node.
#[derive(Debug, Default)]
pub(super) struct Template {
    /// Its one pool; `None` if all ClaimNetworks have the scope `Cluster`.
    pub(super) pool: Option<Pool>,
    labels: BTreeMap<String, &'static str>,
    /// What people should know about it.
    pub(super) notes: Vec<String>,
}

impl Template {
    /// Makes the template from what the chosen node publishes, or some node.
    ///
    /// # Errors
    /// Fails if there is no such node.
    pub(super) fn of(cluster: &Cluster, node: Option<&str>) -> Result<Self, TemplateError> {
        let (of_nodes, of_cluster): (Vec<&Network>, Vec<&Network>) =
            cluster.networks.iter().partition(|network| network.is_of_nodes());
        let mut template = Self::default();
        if !of_nodes.is_empty() {
            template.take_from_a_node(cluster, &of_nodes, node)?;
        }
        for network in of_cluster {
            let label = network_label(&network.name);
            template.notes.push(format!(
                "ClaimNetwork {} has the scope Cluster: the controller publishes its device once for all nodes \
                 with the label {label}, so no slice of a node has it. The template needs the label, and real \
                 nodes must get it from their agents only. The cluster autoscaler stops while a pod with such \
                 a device is on the node from which it makes a template",
                network.name,
            ));
            template.labels.insert(label, SERVED);
        }
        Ok(template)
    }

    fn take_from_a_node(
        &mut self,
        cluster: &Cluster,
        networks: &[&Network],
        node: Option<&str>,
    ) -> Result<(), TemplateError> {
        let names: BTreeSet<String> = networks.iter().map(|network| network.device()).collect();
        let offers = offers(&cluster.slices, &names);
        let chosen = pattern(&offers, in_words(networks), node)?;
        let of = |offer: &Offer<'_>| networks.iter().filter_map(|network| device(network, offer)).collect();
        let mut devices: Vec<Device> = of(chosen);
        self.notes.push(format!("the pattern is node {}", chosen.node));
        self.notes.extend(chosen.tainted().map(|(device, taints)| {
            let taints = taints.join(", ");
            format!("device {device} of the pattern is tainted {taints}: the template has no taint")
        }));
        let others = offers.iter().filter(|offer| offer.node != chosen.node);
        self.notes.extend(differences(&devices, others.map(|offer| (offer.node, of(offer)))));
        self.notes.extend(networks.iter().flat_map(|network| notes(network)));
        let counters = keep_exclusions(&mut devices, &chosen.counters);
        let placement = Placement::Node(NODE.to_owned());
        self.pool = Some(Pool { counters, ..Pool::new(NODE, placement, devices) });
        Ok(())
    }

    /// Returns the objects: slices, counters first, and a Node with the labels, if there are any.
    pub(super) fn objects(&self) -> Vec<Value> {
        let specs = self.pool.iter().flat_map(|pool| specs(DRIVER_NAME, pool));
        let slices = specs.zip(0..).filter_map(|(mut spec, number): (_, u32)| {
            // The agent's pools count their changes; 0 is not a generation.
            spec.pool.generation = 1;
            let mut slice = ResourceSlice { spec, ..ResourceSlice::default() };
            slice.metadata.name = Some(format!("{NODE}-{DRIVER_NAME}-{number}"));
            serde_json::to_value(slice).ok()
        });
        let node = (!self.labels.is_empty()).then(
            || json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": self.labels}}),
        );
        slices.chain(node).collect()
    }
}

fn in_words(networks: &[&Network]) -> String {
    match networks {
        [network] => format!("ClaimNetwork {}", network.name),
        networks => {
            let names: Vec<&str> = networks.iter().map(|network| network.name.as_str()).collect();
            format!("all of the ClaimNetworks {}", names.join(", "))
        }
    }
}

/// Returns the ClaimNetwork's device as a new node would have it.
fn device(network: &Network, offer: &Offer<'_>) -> Option<Device> {
    let mut device = Device::clone(offer.devices.get(network.device().as_str())?);
    device.taints = None;
    for (name, attribute) in device.attributes.iter_mut().flatten() {
        // It stays, empty: a selector that reads a missing attribute fails. A claim that selects one address
        // gets no new node, which would have another one.
        if name == attributes::MAC {
            attribute.string = Some(String::new());
        }
    }
    if let Some(attributes) = &mut device.attributes {
        attributes.remove(attributes::PCI_BUS_ID);
    }
    if let Some(addresses) = addresses_of_a_new_node(network) {
        let capacities = device.capacity.get_or_insert_default();
        let live = capacities.remove(attributes::ADDRESSES);
        let is_shared = device.allow_multiple_allocations == Some(true);
        let mut capacity = address_capacity(addresses, is_shared);
        // One that is exhausted has no policy; claims that ask for an address have another one.
        if let (Some(capacity), Some(policy)) = (&mut capacity, live.and_then(|live| live.request_policy)) {
            capacity.request_policy = Some(policy);
        }
        capacities.extend(capacity.map(|capacity| (attributes::ADDRESSES.to_owned(), capacity)));
    }
    Some(device)
}

/// Returns what a node without pods has of the ClaimNetwork's addresses, if it is not what other nodes have
/// now: one block. It may lease more, but no node is sure of that. `spec.capacity.addresses` and other IPAMs
/// say the same on each node.
fn addresses_of_a_new_node(network: &Network) -> Option<u64> {
    if network.spec.addresses.is_none() || network.spec.capacity.addresses.is_some() {
        return None;
    }
    network.totals.and_then(block)
}

/// Returns the addresses of a block; of two families, the smaller number.
fn block(totals: AddressTotals) -> Option<u64> {
    let of_family = |family: Family| {
        let host_bits = family.bits().checked_sub(totals.block_size.of(family)?)?;
        Some(1_u64.checked_shl(host_bits.into()).unwrap_or(u64::MAX))
    };
    [Family::V4, Family::V6].into_iter().filter_map(of_family).min()
}

/// Returns the capacity `addresses` as agents publish it.
fn address_capacity(amount: u64, is_shared: bool) -> Option<DeviceCapacity> {
    let amounts = Amounts { addresses: Some(Quantity::new(amount)), ..Amounts::default() };
    let device = published::device(String::new(), Facts::default(), amounts, is_shared);
    device.capacity?.remove(attributes::ADDRESSES)
}

/// Returns what people should know about the ClaimNetwork in a template.
fn notes(network: &Network) -> Vec<String> {
    let (name, spec) = (&network.name, &network.spec);
    let mut notes = Vec::new();
    if spec.node_selector.is_some() {
        notes.push(format!(
            "ClaimNetwork {name} has a nodeSelector: use the template for groups whose nodes it selects"
        ));
    }
    match (addresses_of_a_new_node(network), network.totals) {
        (Some(addresses), totals) => {
            notes.push(format!(
                "a new node gets {addresses} addresses of ClaimNetwork {name}, one block, before it asks for more"
            ));
            if totals.is_some_and(|totals| totals.free == 0) {
                notes.push(format!(
                    "no block of ClaimNetwork {name} is free: a new node has no addresses for its pods now"
                ));
            }
        }
        (None, None) if spec.addresses.is_some() && spec.capacity.addresses.is_none() => notes.push(format!(
            "how many addresses of ClaimNetwork {name} a new node gets is not known: the template has what the \
             pattern has"
        )),
        _ => {}
    }
    notes
}

/// Leaves the devices the counters that keep them apart, and returns the sets of these.
///
/// A counter of the node keeps apart devices of one link: what a device consumes of it is consumed once, with
/// its first share. Where all devices of the template together consume no more than there is, it refuses
/// nothing, and the template is the same without it. Other devices that take from it on real nodes, such as
/// `nic-LINK`, is not in the template, so no autoscaler gives it away. Where they consume more, they exclude
/// each other: without the counter, an autoscaler would put their pods on one node, on which the scheduler
/// places some of them only.
fn keep_exclusions(devices: &mut [Device], sets: &BTreeMap<&str, &CounterSet>) -> Vec<CounterSet> {
    let mut consumed: BTreeMap<(String, String), i128> = BTreeMap::new();
    for consumption in devices.iter().flat_map(|device| device.consumes_counters.iter().flatten()) {
        for (name, counter) in &consumption.counters {
            let sum = consumed.entry((consumption.counter_set.clone(), name.clone())).or_default();
            *sum = sum.saturating_add(billionths(&counter.value.0).unwrap_or(i128::MAX));
        }
    }
    let refuses = |set: &str, name: &str| {
        let there = sets.get(set).and_then(|set| billionths(&set.counters.get(name)?.value.0).ok());
        consumed.get(&(set.to_owned(), name.to_owned())).copied() > there
    };
    for device in devices.iter_mut() {
        for consumption in device.consumes_counters.iter_mut().flatten() {
            consumption.counters.retain(|name, _| refuses(&consumption.counter_set, name));
        }
        device.consumes_counters.iter_mut().for_each(|all| all.retain(|one| !one.counters.is_empty()));
        device.consumes_counters.take_if(|all| all.is_empty());
    }
    let kept = sets.values().map(|set| {
        let mut set = CounterSet::clone(set);
        set.counters.retain(|name, _| refuses(&set.name, name));
        set
    });
    kept.filter(|set| !set.counters.is_empty()).collect()
}
