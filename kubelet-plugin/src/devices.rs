//! The node's pool: which devices the inventory makes, and which of them exclude each other. Pure.
//!
//! A link has one receive handler, so macvlan, ipvlan and handing the whole link away exclude each other. The
//! scheduler decides this itself with shared counters, one set for each link: a device outside the link's largest
//! kind has a counter of its own worth [`K`], takes all of it, and every device of another kind takes 1 of it.
//! A shared device is charged once, with its first share, and gives back with its last.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Counter, CounterSet, Device, DeviceCounterConsumption};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use netclaim_api::device::{DeviceName, link_label};
use netclaim_api::network::{LinkUse, NetworkSpec};
use netclaim_api::published::{Amounts, Facts, device};
use netclaim_api::{IfName, NetworkName, Quantity};
use netclaim_driver::links::Link;
use netclaim_slices::{Placement, Pool};
use serde_json::{Map, Value};

use crate::inventory::Inventory;

/// What a counter holds: more than a link can have devices, so that one exclusive device outweighs all others.
const K: u64 = 1024;

/// Counters in a set at most (`ResourceSliceMaxCountersPerCounterSet`, 1.35).
const MAX_COUNTERS: usize = 32;

/// A device before its counters.
struct Candidate {
    device: Device,
    /// The link and its use, where that excludes other uses.
    exclusive: Option<(IfName, LinkUse)>,
}

/// Devices of one kind do not exclude each other. A link can be handed away once, so a device that does so is a
/// kind of its own.
type Kind = (LinkUse, Option<String>);

impl Candidate {
    fn kind(&self) -> Option<(&IfName, Kind)> {
        let (link, link_use) = self.exclusive.as_ref()?;
        Some((link, (*link_use, (*link_use == LinkUse::Nic).then(|| self.device.name.clone()))))
    }
}

/// The pool of `node`. `addresses` tells how many attachments the Network's IPAM has addresses for.
pub fn pool(
    node: &str,
    inventory: &Inventory,
    addresses: impl Fn(&NetworkName, &NetworkSpec) -> Option<u64>,
) -> Pool {
    let mut candidates: Vec<Candidate> = Vec::new();
    for link in &inventory.uplinks {
        candidates.extend(uplink_devices(link, inventory));
    }
    for (name, spec) in
        inventory.networks.iter().filter(|(_, spec)| is_node_device(spec) && inventory.can_serve(spec))
    {
        candidates.push(network_device(name, spec, inventory.uplink_of(spec), addresses(name, spec)));
    }
    let counters = consume_counters(&mut candidates);
    Pool {
        name: node.to_owned(),
        placement: Placement::Node(node.to_owned()),
        devices: candidates.into_iter().map(|candidate| candidate.device).collect(),
        counters,
    }
}

/// What is published of a device, by its name; nothing when the node does not have it.
pub fn attributes(name: &str, inventory: &Inventory) -> Map<String, Value> {
    let candidates = match netclaim_api::device::network_of(name) {
        Some(network) => {
            let network = inventory.networks.get_key_value(&network).into_iter();
            network
                .map(|(name, spec)| network_device(name, spec, inventory.uplink_of(spec), None))
                .collect::<Vec<_>>()
        }
        None => inventory.uplinks.iter().flat_map(|link| uplink_devices(link, inventory)).collect(),
    };
    let device = candidates.into_iter().map(|candidate| candidate.device).find(|device| device.name == name);
    match serde_json::to_value(device.and_then(|device| device.attributes)) {
        Ok(Value::Object(attributes)) => attributes,
        _ => Map::new(),
    }
}

/// Networks of scope `Cluster` are in the controller's pools.
fn is_node_device(spec: &NetworkSpec) -> bool {
    spec.scope == netclaim_api::network::Scope::Node
}

fn uplink_devices(link: &Link, inventory: &Inventory) -> Vec<Candidate> {
    // A name that the kernel took but CNI cannot name is of no use.
    let Ok(name) = link.name.parse::<IfName>() else {
        return Vec::new();
    };
    let amounts = Amounts { bandwidth: link.speed.map(Quantity::new), ..Amounts::default() };
    let candidate = |device_name: DeviceName, mode: &str, shared, link_use| {
        let facts = Facts { mode: mode.to_owned(), if_name: link.name.clone(), ..link_facts(link) };
        let device = device(device_name.to_string(), facts, amounts, shared);
        Candidate { device, exclusive: Some((name.clone(), link_use)) }
    };
    let mut devices = vec![candidate(DeviceName::Nic(name.clone()), "nic", false, LinkUse::Nic)];
    if inventory.macvlan {
        devices.push(candidate(DeviceName::Macvlan(name.clone()), "macvlan", true, LinkUse::Macvlan));
    }
    if inventory.ipvlan {
        devices.push(candidate(DeviceName::Ipvlan(name.clone()), "ipvlan", true, LinkUse::Ipvlan));
    }
    devices
}

fn link_facts(link: &Link) -> Facts {
    Facts {
        uplink: link.name.clone(),
        mac: link.mac.clone().unwrap_or_default(),
        mtu: link.mtu,
        speed: link.speed.unwrap_or_default(),
        driver: link.driver.clone().or_else(|| link.kind.clone()).unwrap_or_default(),
        link_state: if link.is_up() { "up" } else { "down" }.to_owned(),
        pcie_root: link.pcie_root.clone(),
        pci_bus_id: link.pci_bus_id.clone(),
        numa_node: link.numa_node,
        ..Facts::default()
    }
}

fn network_device(
    name: &NetworkName,
    spec: &NetworkSpec,
    uplink: Option<&Link>,
    addresses: Option<u64>,
) -> Candidate {
    let types = spec.plugin_types();
    let facts = Facts {
        network: name.to_string(),
        mode: types.first().copied().unwrap_or_default().to_owned(),
        plugin_types: types.join(","),
        ..uplink.map(link_facts).unwrap_or_default()
    };
    let amounts = Amounts {
        bandwidth: spec.capacity.bandwidth.or_else(|| uplink.and_then(|link| link.speed).map(Quantity::new)),
        addresses: spec.capacity.addresses.or_else(|| addresses.map(Quantity::new)),
        interfaces: spec.capacity.interfaces,
    };
    let device = device(DeviceName::Network(name.clone()).to_string(), facts, amounts, !spec.is_exclusive());
    let link = uplink.and_then(|link| link.name.parse().ok());
    Candidate { device, exclusive: link.zip(spec.link_use()) }
}

/// Gives the candidates their counters, and returns the sets. A device whose link has no counter left for it is
/// dropped: unpublished is safe, unprotected is not.
fn consume_counters(candidates: &mut Vec<Candidate>) -> Vec<CounterSet> {
    let mut links: BTreeMap<IfName, BTreeMap<Kind, Vec<String>>> = BTreeMap::new();
    for candidate in &*candidates {
        if let Some((link, kind)) = candidate.kind() {
            links
                .entry(link.clone())
                .or_default()
                .entry(kind)
                .or_default()
                .push(candidate.device.name.clone());
        }
    }
    let mut sets = Vec::new();
    for (link, kinds) in links {
        // The largest kind needs no counters of its own; of equals the first, for the set to be stable.
        let largest =
            kinds.iter().max_by_key(|(kind, devices)| (devices.len(), std::cmp::Reverse((*kind).clone())));
        let largest = largest.map(|(kind, _)| kind.clone());
        let others = kinds.into_iter().filter(|(kind, _)| Some(kind) != largest.as_ref());
        let mut counted: Vec<(Kind, String)> = others
            .flat_map(|(kind, devices)| devices.into_iter().map(move |device| (kind.clone(), device)))
            .collect();
        let dropped: Vec<String> =
            counted.drain(counted.len().min(MAX_COUNTERS)..).map(|(_, device)| device).collect();
        if !dropped.is_empty() {
            tracing::warn!(%link, ?dropped, "more than {MAX_COUNTERS} devices exclude others on one link: not published");
            candidates.retain(|candidate| !dropped.contains(&candidate.device.name));
        }
        if counted.is_empty() {
            continue;
        }
        let set = link_label(&link);
        for candidate in candidates.iter_mut() {
            let Some((_, own)) = candidate.kind().filter(|(on, _)| **on == link) else {
                continue;
            };
            let amount = |(kind, name): &(Kind, String)| match (*name == candidate.device.name, *kind == own)
            {
                (true, _) => Some((name.clone(), counter(K))),
                (false, false) => Some((name.clone(), counter(1))),
                (false, true) => None,
            };
            let counters: BTreeMap<String, Counter> = counted.iter().filter_map(amount).collect();
            let consumption =
                DeviceCounterConsumption { counter_set: set.clone(), counters, ..Default::default() };
            candidate.device.consumes_counters = Some(vec![consumption]);
        }
        let counters = counted.into_iter().map(|(_, name)| (name, counter(K))).collect();
        sets.push(CounterSet { name: set, counters });
    }
    sets
}

fn counter(value: u64) -> Counter {
    Counter { value: ApiQuantity(value.to_string()) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::inventory::tests::link;

    fn network(plugin: &str) -> NetworkSpec {
        serde_json::from_value(json!({
            "uplink": {"interfaces": ["eth1"]},
            "cni": {"cniVersion": "1.0.0", "plugins": [{"type": plugin}]},
        }))
        .expect("a network")
    }

    fn inventory(networks: &[(&str, &str)]) -> Inventory {
        Inventory {
            uplinks: vec![link("eth1")],
            macvlan: true,
            ipvlan: true,
            networks: networks
                .iter()
                .map(|(name, plugin)| (name.parse().expect("a name"), network(plugin)))
                .collect(),
        }
    }

    fn value(counter: &Counter) -> u64 {
        counter.value.0.parse().expect("a number")
    }

    /// What the scheduler does: every chosen device takes its share of each counter.
    fn fits(pool: &Pool, chosen: &[&Device]) -> bool {
        pool.counters.iter().all(|set| {
            set.counters.iter().all(|(name, available)| {
                let taken: u64 = chosen
                    .iter()
                    .flat_map(|device| device.consumes_counters.iter().flatten())
                    .filter(|consumption| consumption.counter_set == set.name)
                    .filter_map(|consumption| consumption.counters.get(name))
                    .map(value)
                    .sum();
                taken <= value(available)
            })
        })
    }

    #[test]
    fn exactly_the_combinations_that_the_kernel_allows_fit() {
        let inventory = inventory(&[
            ("m1", "macvlan"),
            ("m2", "macvlan"),
            ("i1", "ipvlan"),
            ("i2", "ipvlan"),
            ("h1", "host-device"),
            ("v", "vlan"),
        ]);
        let pool = pool("n", &inventory, |_, _| None);
        assert_eq!(pool.devices.len(), 9);
        let kind = |device: &Device| match device.name.as_str() {
            "macvlan-eth1" | "net-m1" | "net-m2" => Some("macvlan"),
            "ipvlan-eth1" | "net-i1" | "net-i2" => Some("ipvlan"),
            "nic-eth1" => Some("nic"),
            "net-h1" => Some("another nic"),
            _ => None,
        };
        for combination in 1..1_u32 << pool.devices.len() {
            let chosen: Vec<&Device> = (0..)
                .zip(&pool.devices)
                .filter(|(i, _)| combination & (1 << i) != 0)
                .map(|(_, d)| d)
                .collect();
            let kinds: BTreeSet<_> = chosen.iter().filter_map(|device| kind(device)).collect();
            let names: Vec<_> = chosen.iter().map(|device| &device.name).collect();
            assert_eq!(fits(&pool, &chosen), kinds.len() <= 1, "{names:?}");
        }
    }

    #[test]
    fn a_network_whose_uplink_is_missing_is_not_published() {
        let mut inventory = inventory(&[("m", "macvlan")]);
        inventory.uplinks = vec![link("eth2")];
        let names: Vec<_> =
            pool("n", &inventory, |_, _| None).devices.into_iter().map(|device| device.name).collect();
        assert_eq!(names, ["nic-eth2", "macvlan-eth2", "ipvlan-eth2"]);
    }

    #[test]
    fn a_link_with_one_use_needs_no_counters() {
        let mut inventory = inventory(&[]);
        (inventory.macvlan, inventory.ipvlan) = (false, false);
        let pool = pool("n", &inventory, |_, _| None);
        assert!(pool.counters.is_empty() && pool.devices[0].consumes_counters.is_none());
    }
}
