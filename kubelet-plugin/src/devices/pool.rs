//! The pool of the node, its devices, and the health of these. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use netclaim_api::addresses::AddressPoolSpec;
use netclaim_api::device::DeviceName;
use netclaim_api::network::{ClaimNetworkSpec, Scope};
use netclaim_api::published::{self, Amounts, Facts, Segments};
use netclaim_api::segmentation::ChosenBy;
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_api::{IfName, LinkUse, NetworkName, attributes};
use netclaim_slices::{EmptyPool, Placement, Pool};
use serde_json::{Map, Value};

use super::availability::Unavailable;
use super::candidate::{Candidate, networks};
use super::held::{self, HeldDevice, settled};
use super::sharing::{self, Shares, keep_apart};
use super::{offer, settling};
use crate::dra::DeviceHealth;
use crate::inventory::{Inventory, NodeAddresses, Uplink, selects};

/// The input of the pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sources<'a> {
    /// The Node object's name.
    pub(super) node: &'a str,
    /// What the node has.
    pub(super) inventory: &'a Arc<Inventory>,
    /// ClaimNetworks whose plugins cannot serve an ADD now.
    pub(super) unavailable: &'a Unavailable,
    pub(super) held: &'a [HeldDevice],
    /// Links of what is held that the node has not got.
    pub(super) gone: &'a BTreeSet<IfName>,
    /// Whether the scheduler keeps devices apart by counters.
    pub(super) counts: bool,
}

/// Returns the pool of a node, without an owner, and the health of its devices. `addresses` returns how many
/// attachments a ClaimNetwork's IPAM has addresses for.
///
/// A node has one pool, whatever is on it: node autoscalers compare how many pools the nodes of a group have.
/// A node that has never offered anything has none: they look at devices instead of CPU and memory where
/// there is one.
///
/// ClaimNetworks come first: the scheduler looks at the devices in this order, and most claims are for
/// ClaimNetworks.
pub(super) fn pool(
    from: Sources<'_>,
    addresses: impl Fn(&NetworkName, &ClaimNetworkSpec) -> Option<u64>,
) -> (Pool, Vec<DeviceHealth>) {
    let Sources { node, inventory: wanted, unavailable, held, gone, counts } = from;
    let inventory = &*settled(wanted, held.iter().filter_map(|held| held.on_link(wanted)));
    let sharing::Amounts { bandwidth, segments } = sharing::Amounts::of(inventory, held);
    let mut candidates: Vec<Candidate> = Vec::new();
    for (name, spec) in networks(inventory) {
        let mut amounts = Amounts {
            bandwidth: bandwidth.of_network(name).or(spec.capacity.bandwidth),
            requires_bandwidth: spec.requires_bandwidth(),
            addresses: spec
                .capacity
                .addresses
                .or_else(|| addresses(name, spec).map(netclaim_api::Quantity::new)),
            reserved_addresses: serves_claims_that_ask(name, spec, inventory),
            interfaces: spec.capacity.interfaces,
            segments: spec.segmentation.as_ref().map(|segmentation| {
                let ids = segments.get(name).into_iter().flatten();
                match segmentation.chosen_by {
                    ChosenBy::Node => Segments::Counted(ids.count() as u64),
                    ChosenBy::Claim => Segments::Listed(ids.copied().collect()),
                }
            }),
        };
        let uplink = inventory.uplink_of(spec);
        let facts = inventory.facts.get(name);
        let exhausted = facts
            .and_then(|facts| facts.lower(name, &mut amounts, &held::amounts(name, held)))
            .or_else(|| exhausted(name, &amounts, inventory.addresses.get(name), held));
        let mut candidate = network_device(name, spec, uplink, amounts);
        candidate.unhealthy.extend(inventory.lacks(spec));
        candidate.unhealthy.extend(unavailable.get(name).cloned());
        candidate.unhealthy.extend(exhausted);
        candidate.unhealthy.extend(uplink.zip(wanted.networks.get(name)).and_then(|(uplink, wanted)| {
            let message = format!(
                "ClaimNetwork {name} no longer selects uplink {}, and moves when no pod is on it",
                uplink.name
            );
            (!selects(wanted, uplink)).then(|| Unhealthy::new(Reason::LinkMissing, message))
        }));
        candidates.push(candidate);
    }
    let with_networks = offer::with_networks([inventory, wanted]);
    for uplink in &inventory.uplinks {
        let offered = offer::offered(uplink, inventory, &with_networks);
        candidates.extend(offered.into_iter().map(|link_use| uplink_device(uplink, link_use, &bandwidth)));
    }
    held::keep(&mut candidates, held, inventory);
    let counters = keep_apart(&mut candidates, held, inventory, counts);
    let is_gone = |candidate: &Candidate| candidate.link.as_ref().is_some_and(|link| gone.contains(link));
    let health = candidates.iter().map(|candidate| DeviceHealth {
        pool: node.to_owned(),
        device: candidate.device.name.clone(),
        unhealthy: candidate.ailment(),
        stops_traffic: candidate.stops_traffic(is_gone(candidate)),
    });
    let health = health.collect();
    let devices = candidates.into_iter().map(|mut candidate| {
        if candidate.is_of_before {
            // Nothing that its pods suffer from.
            let message = "pods have the device in a use of its link that its ClaimNetwork has no more";
            candidate.unhealthy.push(Unhealthy::new(Reason::LinkInUse, message));
        }
        published::taint(&mut candidate.device, &candidate.unhealthy);
        let is_gone = is_gone(&candidate);
        settling::evict(&mut candidate.device, is_gone, inventory);
        candidate.device
    });
    let (devices, placement) = (devices.collect(), Placement::Node(node.to_owned()));
    // The controller removes the labels of a node without slices, and says of no node without slices that it
    // lacks a ClaimNetwork that selects it.
    let needs_slice = |spec: &ClaimNetworkSpec| {
        spec.node_selector.is_some() || (spec.scope == Scope::Cluster && inventory.can_serve(spec))
    };
    let needs_slice = inventory.networks.values().any(needs_slice);
    let empty = if needs_slice { EmptyPool::Publish } else { EmptyPool::Keep };
    (Pool { counters, empty, ..Pool::new(node, placement, devices) }, health)
}

/// Returns why no new pod can get the device: of an amount that each takes, nothing is there. The scheduler
/// cannot tell: a claim takes none of a capacity of 0.
///
/// A node whose blocks are full says so, too, once no block is free: node autoscalers make new nodes after
/// it, which would get no address.
fn exhausted(
    name: &NetworkName,
    amounts: &Amounts,
    shared: Option<&NodeAddresses>,
    held: &[HeldDevice],
) -> Option<Unhealthy> {
    let is_full = |shared: &&NodeAddresses| {
        let taken = held::many(held.iter().filter(|held| held.takes_address_of(name))) as u64;
        let is_full = amounts.addresses.is_some_and(|addresses| addresses.value() <= taken);
        is_full && shared.is_short() && !amounts.reserved_addresses
    };
    let see = format!("see `kubectl get claimnetworks {name}`");
    Some(match (amounts.exhausted(), shared) {
        (Some(attributes::ADDRESSES), Some(_)) => Unhealthy::new(
            Reason::Exhausted,
            format!("no block of the addresses of ClaimNetwork {name} is on this node: {see}"),
        ),
        (Some(what), _) => {
            let message = format!("others hold all {what} of ClaimNetwork {name} on this node");
            Unhealthy::new(Reason::Exhausted, message)
        }
        (None, shared) => {
            shared.filter(is_full)?;
            let message = format!(
                "pods have all addresses of ClaimNetwork {name} on this node, and no block is free: {see}"
            );
            Unhealthy::new(Reason::Full, message)
        }
    })
}

/// Whether claims that ask for addresses of the ClaimNetwork can have its device without any that the node
/// hands out.
fn serves_claims_that_ask(name: &NetworkName, spec: &ClaimNetworkSpec, inventory: &Inventory) -> bool {
    let pool = inventory.addresses.get(name).and_then(|addresses| addresses.pool.as_ref());
    // Without a request policy, a claim gets an exclusive device whatever it requests.
    let keeps_off_others = |pool: &AddressPoolSpec| !spec.is_exclusive() || !pool.has_usable();
    spec.allow.ips.is_some() && pool.is_some_and(|pool| pool.can_be_asked() && keeps_off_others(pool))
}

/// Returns the attributes of a device that pods may use, published or not; none when the node does not have
/// it.
pub(crate) fn attributes(name: &str, inventory: &Inventory) -> Map<String, Value> {
    let candidates: Vec<Candidate> = match name.parse() {
        Ok(DeviceName::Network(network)) => {
            let network = inventory.networks.get_key_value(&network).into_iter();
            let device = |(name, spec): (&NetworkName, &ClaimNetworkSpec)| {
                network_device(name, spec, inventory.uplink_of(spec), Amounts::default())
            };
            network.map(device).collect()
        }
        _ => {
            let shares = Shares::default();
            let devices = |uplink| {
                offer::allowed(uplink, inventory)
                    .map(|link_use| uplink_device(uplink, link_use, &shares))
                    .collect::<Vec<_>>()
            };
            inventory.uplinks.iter().flat_map(devices).collect()
        }
    };
    let device = candidates.into_iter().map(|candidate| candidate.device).find(|device| device.name == name);
    match serde_json::to_value(device.and_then(|device| device.attributes)) {
        Ok(Value::Object(attributes)) => attributes,
        _ => Map::new(),
    }
}

fn uplink_device(uplink: &Uplink, link_use: LinkUse, shares: &Shares) -> Candidate {
    let device = DeviceName::of_link(link_use, &uplink.name);
    let facts = Facts { mode: link_use.to_string(), ..link_facts(uplink) };
    let amounts = Amounts { bandwidth: shares.of_mode(uplink, link_use), ..Amounts::default() };
    Candidate {
        device: published::device(device.to_string(), facts, amounts, link_use != LinkUse::Nic),
        link: Some(uplink.name.clone()),
        link_use: Some(link_use),
        vlan: None,
        is_offered: true,
        is_of_before: false,
        unhealthy: link_unhealthy(uplink, Some(link_use), link_use == LinkUse::Nic).collect(),
        is_in_pod: false,
    }
}

fn link_facts(uplink: &Uplink) -> Facts {
    let link = &uplink.link;
    // Written out, so that a new fact cannot be forgotten.
    Facts {
        network: String::new(),
        mode: String::new(),
        uplink: link.name.clone(),
        mac: link.mac.clone().unwrap_or_default(),
        mtu: link.mtu,
        speed: link.speed.unwrap_or_default(),
        driver: link.driver.clone().or_else(|| link.kind.clone()).unwrap_or_default(),
        physical_function: link.physical_function.clone().unwrap_or_default(),
        pcie_root: link.pcie_root.clone(),
        pci_bus_id: link.pci_bus_id.clone(),
        numa_node: link.numa_node,
        declared: uplink.declared.clone(),
    }
}

/// Returns why pods cannot use a link. `moves` says that it is moved into the pod.
pub(crate) fn link_unhealthy(
    uplink: &Uplink,
    link_use: Option<LinkUse>,
    moves: bool,
) -> impl Iterator<Item = Unhealthy> {
    uplink.in_use(link_use).into_iter().chain(link_down(uplink, moves))
}

/// Returns why no frames pass through a link. One that is moved into a pod may be down: the plugin sets it up
/// there.
fn link_down(uplink: &Uplink, moves: bool) -> Option<Unhealthy> {
    let link = &uplink.link;
    let why = match (link.is_up(), link.admin_up) {
        (true, _) => return None,
        (false, false) if moves => return None,
        (false, false) => "is set down",
        (false, true) if link.carrier => "is not operational",
        (false, true) => "has no carrier",
    };
    Some(Unhealthy::new(Reason::LinkDown, format!("uplink {} {why}", link.name)))
}

fn network_device(
    name: &NetworkName,
    spec: &ClaimNetworkSpec,
    uplink: Option<&Uplink>,
    amounts: Amounts,
) -> Candidate {
    let types = spec.plugin_types();
    let mut declared = spec.attributes.clone();
    for (key, value) in uplink.iter().flat_map(|uplink| &uplink.declared) {
        declared.entry(key.clone()).or_insert_with(|| value.clone());
    }
    let facts = Facts {
        network: name.to_string(),
        mode: types.first().copied().unwrap_or_default().to_owned(),
        declared,
        ..uplink.map(link_facts).unwrap_or_default()
    };
    Candidate {
        device: published::device(
            DeviceName::Network(name.clone()).to_string(),
            facts,
            amounts,
            !spec.is_exclusive(),
        ),
        link: uplink.map(|uplink| uplink.name.clone()),
        link_use: spec.link_use(),
        vlan: spec.fixed_vlan(),
        is_offered: true,
        is_of_before: false,
        unhealthy: uplink
            .into_iter()
            .flat_map(|uplink| link_unhealthy(uplink, spec.link_use(), spec.moves_link()))
            .collect(),
        is_in_pod: false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::resource::v1::Device;
    use netclaim_api::attributes;
    use serde_json::json;

    use super::super::holdings::Kind;
    use super::*;
    use crate::fixtures::{self, conflist};
    use crate::inventory::fixtures::{facts, uplink, without_blocks};

    fn network(plugin: &str) -> ClaimNetworkSpec {
        serde_json::from_value(json!({
            "uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.0.0", "plugins": [{"type": plugin}]},
        }))
        .expect("a network")
    }

    /// The pool of a node that has all its links, in a cluster whose scheduler counts.
    fn sources<'a>(
        inventory: &'a Arc<Inventory>,
        unavailable: &'a Unavailable,
        held: &'a [HeldDevice],
    ) -> Sources<'a> {
        static NONE: BTreeSet<IfName> = BTreeSet::new();
        Sources { node: "n", inventory, unavailable, held, gone: &NONE, counts: true }
    }

    /// The devices of a node whose claims hold `held`, and their health.
    fn made(inventory: &Inventory, held: &[HeldDevice]) -> (Pool, Vec<DeviceHealth>) {
        let (unavailable, inventory) = (BTreeMap::new(), Arc::new(inventory.clone()));
        let from = sources(&inventory, &unavailable, held);
        pool(from, |_, _| None)
    }

    /// What a pool has: `DEVICE DEVICE! …`, with `!` for a taint, and `+ ` before them for counters.
    fn shown(pool: &Pool) -> String {
        let device =
            |device: &Device| format!("{}{}", device.name, if device.taints.is_some() { "!" } else { "" });
        let devices: Vec<String> = pool.devices.iter().map(device).collect();
        format!("{}{}", if pool.counters.is_empty() { "" } else { "+ " }, devices.join(" "))
    }

    fn pool_of(inventory: &Inventory) -> Pool {
        made(inventory, &[]).0
    }

    /// What a claim holds that was prepared with this inventory.
    fn held(device: &str, with: &Inventory) -> HeldDevice {
        let network = match device.parse() {
            Ok(DeviceName::Network(network)) => with.networks.get(&network),
            _ => None,
        };
        let mut plan = fixtures::plan("c");
        device.clone_into(&mut plan.owner.device.device);
        plan.owner.device.pool = "n".to_owned();
        if let Some(spec) = network {
            plan.spec.conflist = conflist(spec.cni["plugins"].clone());
        }
        plan.owner.attributes = attributes(device, with);
        let held = HeldDevice::of(&plan, "n");
        for (node, held) in [("n", &held), ("m", &HeldDevice::of(&plan, "m"))] {
            assert_eq!(
                Kind::of(&plan).on_link(node, with),
                held.on_link(with),
                "the short way finds the same"
            );
        }
        held
    }

    /// The VLAN network of this id on `eth1`.
    fn vlan(id: u32) -> ClaimNetworkSpec {
        let plugin = json!({"type": "vlan", "master": "${uplink.name}", "vlanId": id});
        let spec =
            json!({"uplink": {"links": ["eth1"]}, "cni": {"cniVersion": "1.0.0", "plugins": [plugin]}});
        serde_json::from_value(spec).expect("a network")
    }

    fn taints(device: &Device) -> Vec<&str> {
        device.taints.iter().flatten().map(|taint| taint.key.as_str()).collect()
    }

    #[test]
    fn an_exhausted_network_is_tainted_and_can_be_published() {
        let inventory = Arc::new(inventory(&[("m", "macvlan"), ("n", "macvlan")]));
        let unavailable = BTreeMap::new();
        let from = sources(&inventory, &unavailable, &[]);
        let (pool, _) = pool(from, |name, _| Some(u64::from(name.as_str() == "n")));
        assert_eq!(netclaim_slices::validate(&pool, &netclaim_slices::Scope::Node("n".into())), []);
        let device = |name: &str| pool.devices.iter().find(|device| device.name == name).expect("published");
        assert_eq!(taints(device("net-m")), ["netclaim.dev/exhausted"]);
        assert!(taints(device("net-n")).is_empty());
    }

    #[test]
    fn without_an_address_claims_that_ask_for_reserved_ones_can_have_the_device() {
        let mut inventory = inventory(&[("m", "macvlan"), ("h", "host-device")]);
        let spec = json!({"ranges": [{"subnet": "10.30.0.0/28"}], "reserved": ["10.30.0.8/29"]});
        for (name, network) in inventory.networks.iter_mut() {
            network.allow.ips = Some(netclaim_api::Allowed {});
            network.addresses = Some(serde_json::from_value(spec.clone()).expect("addresses"));
            let addresses = NodeAddresses { is_scarce: true, ..without_blocks(name, network) };
            inventory.addresses.insert(name.clone(), addresses);
        }
        let tainted = |inventory: Inventory| {
            let (inventory, unavailable) = (Arc::new(inventory), BTreeMap::new());
            let from = sources(&inventory, &unavailable, &[]);
            let (pool, _) = pool(from, |_, _| Some(0));
            assert_eq!(netclaim_slices::validate(&pool, &netclaim_slices::Scope::Node("n".into())), []);
            let device = |name: &str| {
                let device = pool.devices.iter().find(|device| device.name == name);
                taints(device.expect("published")).contains(&"netclaim.dev/exhausted")
            };
            [device("net-m"), device("net-h")]
        };
        // An exclusive device has no request policy, which would keep off other claims.
        assert_eq!(tainted(inventory.clone()), [false, true]);
        for network in inventory.networks.values_mut() {
            network.allow.ips = None;
        }
        assert_eq!(tainted(inventory), [true, true]);
    }

    #[test]
    fn a_node_without_a_block_is_exhausted_and_a_full_one_once_no_block_is_free() {
        let mut inventory = inventory(&[("m", "macvlan")]);
        let held = [held("net-m", &inventory)];
        let spec = json!({"ranges": [{"subnet": "10.30.0.0/28"}]});
        let tainted = |inventory: &Inventory, held: &[HeldDevice], addresses: u64| {
            let (inventory, unavailable) = (Arc::new(inventory.clone()), BTreeMap::new());
            let from = sources(&inventory, &unavailable, held);
            let (pool, _) = pool(from, |_, _| Some(addresses));
            let device = pool.devices.iter().find(|device| device.name == "net-m").expect("published");
            taints(device).join(" ").replace("netclaim.dev/", "")
        };
        let (name, network) = inventory.networks.iter_mut().next().expect("a network");
        network.addresses = Some(serde_json::from_value(spec).expect("addresses"));
        let addresses = without_blocks(name, network);
        let short = [
            addresses.clone(),
            NodeAddresses { is_scarce: true, ..addresses.clone() },
            NodeAddresses { is_stale: true, ..addresses.clone() },
            NodeAddresses { pool: None, ..addresses },
        ];
        let name = name.clone();
        let exhausted = short.map(|addresses| {
            inventory.addresses.insert(name.clone(), addresses);
            // Without a block, with one whose addresses are all in use, and with one more.
            [(&[][..], 0), (&held[..], 1), (&held[..], 2)].map(|(held, has)| tainted(&inventory, held, has))
        });
        let short = ["exhausted", "full", ""];
        assert_eq!(exhausted, [["exhausted", "", ""], short, short, short]);
    }

    #[test]
    fn a_file_of_facts_lowers_what_is_published_but_not_below_what_claims_hold() {
        let mut inventory = inventory(&[("lab", "macvlan"), ("other", "macvlan")]);
        for spec in inventory.networks.values_mut() {
            spec.capacity =
                serde_json::from_value(json!({"bandwidth": "2G", "interfaces": 10})).expect("any");
        }
        let holding =
            [held("net-lab", &inventory), held("net-lab", &inventory), held("net-other", &inventory)];
        let mut published = |stated: serde_json::Value, held: &[HeldDevice]| {
            inventory.facts = [("lab".parse().expect("a name"), facts(&json!({"capacity": stated})))].into();
            let (unavailable, inventory) = (BTreeMap::new(), Arc::new(inventory.clone()));
            let from = sources(&inventory, &unavailable, held);
            let (pool, health) = pool(from, |_, _| Some(20));
            assert_eq!(netclaim_slices::validate(&pool, &netclaim_slices::Scope::Node("n".into())), []);
            let [lab, other] = ["net-lab", "net-other"]
                .map(|name| pool.devices.iter().find(|device| device.name == name).expect("published"));
            let amounts = |device: &Device| {
                let capacity = device.capacity.iter().flatten();
                capacity.map(|(_, capacity)| capacity.value.0.clone()).collect::<Vec<_>>().join(" ")
            };
            assert_eq!(amounts(other), "20 2G 10", "the other one's stay");
            let health = health.into_iter().find(|health| health.device == "net-lab").expect("known");
            format!("{} {}{}", amounts(lab), taints(lab).join(" "), health.unhealthy.unwrap_or_default())
        };
        assert_eq!(published(json!({}), &[]), "20 2G 10 ");
        assert_eq!(published(json!({"addresses": 7, "interfaces": 11, "bandwidth": "1G"}), &[]), "7 1G 10 ");
        assert_eq!(published(json!({"addresses": 1, "interfaces": 0}), &holding), "2 2G 2 ");
        assert_eq!(
            published(json!({"interfaces": 0}), &[]),
            "20 2G 0 netclaim.dev/exhausted\
             networks.d/lab.json says that the node has no interfaces of ClaimNetwork lab"
        );
    }

    #[test]
    fn a_network_stays_on_the_uplink_that_claims_hold_it_on() {
        let mut inventory = inventory(&[("m", "macvlan")]);
        inventory.networks.insert("lab".parse().expect("a name"), {
            let mut lab = network("macvlan");
            lab.uplink = serde_json::from_value(json!({"links": ["eth1", "eth2"]})).expect("a selector");
            lab
        });
        inventory.uplinks = vec![uplink("eth2")];
        let held = [held("net-lab", &inventory)];
        // The link that the ClaimNetwork prefers is there again.
        inventory.uplinks = vec![uplink("eth1"), uplink("eth2")];
        let (pool, _) = made(&inventory, &held);
        let device = |name: &str| pool.devices.iter().find(|device| device.name == name).expect("published");
        assert!(!fits(&pool, &[device("net-lab"), device("nic-eth2")]), "it is used");
        assert!(fits(&pool, &[device("net-lab"), device("nic-eth1")]), "it is free");
        assert!(taints(device("net-lab")).is_empty());
        assert_eq!(made(&inventory, &[]).0.devices, pool_of(&inventory).devices);

        // Its admin does not want it there any more.
        for spec in inventory.networks.values_mut() {
            spec.uplink = network("macvlan").uplink;
        }
        let (pool, _) = made(&inventory, &held);
        let lab = pool.devices.iter().find(|device| device.name == "net-lab").expect("published");
        assert_eq!(taints(lab), ["netclaim.dev/link-missing"], "until it can move");
    }

    #[test]
    fn a_renamed_link_is_still_charged() {
        let mut inventory = inventory(&[]);
        inventory.uplinks[0].link.pci_bus_id = Some("0000:3b:00.1".into());
        let held = [held("macvlan-eth1", &inventory)];
        let mut renamed = uplink("eth5");
        renamed.link.pci_bus_id = Some("0000:3b:00.1".into());
        inventory.uplinks = vec![renamed];
        let (pool, _) = made(&inventory, &held);
        let device = |name: &str| pool.devices.iter().find(|device| device.name == name).expect("published");
        assert!(!fits(&pool, &[device("macvlan-eth1"), device("nic-eth5")]));
    }

    #[test]
    fn a_vlan_id_stays_taken_when_its_network_is_gone_or_has_another() {
        let mut inventory = inventory(&[]);
        inventory.networks.insert("v1".parse().expect("a name"), vlan(100));
        let held = [held("net-v1", &inventory)];
        inventory.networks.insert("v1".parse().expect("a name"), vlan(101));
        inventory.networks.insert("v2".parse().expect("a name"), vlan(100));
        for gone in [false, true] {
            if gone {
                inventory.networks.remove(&"v1".parse().expect("a name"));
            }
            let (pool, _) = made(&inventory, &held);
            let device =
                |name: &str| pool.devices.iter().find(|device| device.name == name).expect("published");
            assert!(!fits(&pool, &[device("net-v1"), device("net-v2")]), "gone: {gone}");
        }
        let of_another_pool = [HeldDevice { device: None, ..held[0].clone() }];
        let (pool, _) = made(&inventory, &of_another_pool);
        let v2 = pool.devices.iter().find(|device| device.name == "net-v2").expect("published");
        assert_eq!(taints(v2), ["netclaim.dev/exhausted"], "no counter keeps them apart");
    }

    fn inventory(networks: &[(&str, &str)]) -> Inventory {
        Inventory {
            uplinks: vec![uplink("eth1")],
            networks: networks
                .iter()
                .map(|(name, plugin)| (name.parse().expect("a name"), network(plugin)))
                .collect(),
            ..Inventory::default()
        }
    }

    fn value(counter: &k8s_openapi::api::resource::v1::Counter) -> u64 {
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
        let pool = pool_of(&inventory);
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
            // The VLAN goes with the device that takes the link whole.
            let vlan = chosen.iter().any(|device| device.name == "net-v");
            let whole = kinds.iter().any(|kind| kind.ends_with("nic"));
            assert_eq!(fits(&pool, &chosen), kinds.len() <= 1 && !(vlan && whole), "{names:?}");
        }
    }

    #[test]
    fn a_network_whose_uplink_is_missing_is_not_published() {
        let mut inventory = inventory(&[("m", "macvlan")]);
        inventory.uplinks = vec![uplink("eth2")];
        let names: Vec<_> = pool_of(&inventory).devices.into_iter().map(|device| device.name).collect();
        assert_eq!(names, ["nic-eth2", "macvlan-eth2", "ipvlan-eth2"]);
    }

    #[test]
    fn a_link_with_one_use_needs_no_counters() {
        let mut inventory = inventory(&[]);
        inventory.lacking = ["macvlan", "ipvlan"].into();
        let pool = pool_of(&inventory);
        assert!(pool.counters.is_empty() && pool.devices[0].consumes_counters.is_none());
    }

    #[test]
    fn networks_with_one_vlan_id_on_one_uplink_exclude_each_other() {
        let mut inventory = inventory(&[("m", "macvlan")]);
        for (name, id) in [("v1", 100), ("v2", 100), ("v3", 101)] {
            inventory.networks.insert(name.parse().expect("a name"), vlan(id));
        }
        let pool = pool_of(&inventory);
        let device = |name: &str| pool.devices.iter().find(|device| device.name == name).expect("published");
        let together = |one, other| fits(&pool, &[device(one), device(other)]);
        assert!(!together("net-v1", "net-v2"));
        assert!(together("net-v1", "net-v3") && together("net-v1", "net-m"));
        assert!(!together("net-v1", "nic-eth1"), "the VLAN goes with its link");
        assert_eq!(device("net-v1").allow_multiple_allocations, None, "the kernel has one link of an id");
    }

    #[test]
    fn a_device_that_a_claim_holds_stays_published_and_charged() {
        let with = inventory(&[("m", "macvlan")]);
        let held = ["nic-eth1", "net-m"].map(|name| held(name, &with));
        let without = Inventory { uplinks: vec![uplink("eth2")], ..with.clone() };
        let (pool, health) = made(&without, &held);
        let device = |name: &str| pool.devices.iter().find(|device| device.name == name).expect("published");
        assert_eq!(
            device("net-m").attributes,
            pool_of(&with).devices.into_iter().find(|d| d.name == "net-m").expect("there").attributes
        );
        assert_eq!(taints(device("net-m")), ["netclaim.dev/link-missing"]);
        assert_eq!(taints(device("nic-eth1")), ["netclaim.dev/withdrawn"], "net-m waits for it");
        let without_networks = Inventory { networks: [].into(), ..without.clone() };
        let (pool, _) = made(&without_networks, &held);
        let nic = pool.devices.iter().find(|device| device.name == "nic-eth1").expect("published");
        assert!(taints(nic).is_empty(), "it is in a pod");
        let nic = health.iter().find(|health| health.device == "nic-eth1").expect("reported");
        assert_eq!(nic.unhealthy, None, "its pod has it");
        assert_eq!(health.iter().filter(|health| health.unhealthy.is_some()).count(), 1);
    }

    #[test]
    fn a_network_whose_whole_link_is_in_a_pod_is_in_use_and_healthy() {
        for uplink in [json!({"links": ["eth1"]}), json!({"attributes": {"net": {"string": "a"}}})] {
            let mut with = inventory(&[("h", "host-device")]);
            with.uplinks[0].declared =
                serde_json::from_value(json!({"net": {"string": "a"}})).expect("attributes");
            with.networks.values_mut().for_each(|spec| {
                spec.uplink = serde_json::from_value(uplink.clone()).expect("a selector");
            });
            let held = [held("net-h", &with)];
            let in_pod = Inventory { uplinks: Vec::new(), ..with.clone() };
            let (pool, health) = made(&in_pod, &held);
            assert_eq!(taints(&pool.devices[0]), ["netclaim.dev/link-in-pod"], "{uplink}");
            assert_eq!(health[0].unhealthy, None, "{uplink}");
            let (pool, _) = made(&with, &[]);
            assert!(pool.devices.iter().all(|device| device.taints.is_none()), "{uplink}");
        }
    }

    #[test]
    fn a_link_that_is_down_taints_all_devices_but_those_that_move_it_into_a_pod() {
        let mut inventory = inventory(&[("m", "macvlan")]);
        inventory.uplinks[0].link.admin_up = false;
        let tainted = |inventory: &Inventory| {
            let tainted = pool_of(inventory).devices.into_iter().filter(|device| device.taints.is_some());
            tainted.map(|device| device.name).collect::<Vec<_>>()
        };
        assert_eq!(tainted(&inventory), ["net-m", "macvlan-eth1", "ipvlan-eth1"]);
        inventory.uplinks[0].link.admin_up = true;
        inventory.uplinks[0].link.carrier = false;
        assert_eq!(tainted(&inventory).len(), 4);
        inventory.uplinks[0].link.carrier = true;
        assert!(tainted(&inventory).is_empty());
    }

    #[test]
    fn a_link_below_another_programs_macvlan_is_tainted_where_that_excludes_a_use() {
        let mut inventory =
            inventory(&[("m", "macvlan"), ("i", "ipvlan"), ("h", "host-device"), ("v", "vlan")]);
        inventory.uplinks[0]
            .stacked
            .push(crate::inventory::Stacked { name: "net1".into(), kind: "macvlan".into() });
        let (pool, health) = made(&inventory, &[]);
        let tainted: BTreeSet<_> =
            pool.devices.iter().filter(|device| device.taints.is_some()).map(|d| d.name.as_str()).collect();
        assert_eq!(tainted, BTreeSet::from(["nic-eth1", "ipvlan-eth1", "net-i", "net-h"]));
        let nic = health.iter().find(|health| health.device == "nic-eth1").and_then(|h| h.unhealthy.clone());
        assert_eq!(nic.as_deref(), Some("uplink eth1 is below macvlan net1 of another program"));
    }

    #[test]
    fn a_network_is_tainted_whose_kind_of_link_the_kernel_lacks() {
        let mut inventory = inventory(&[("i", "ipvlan"), ("m", "macvlan")]);
        inventory.lacking = ["ipvlan", "vlan"].into();
        inventory.networks.insert("v".parse().expect("a name"), vlan(100));
        let pool = pool_of(&inventory);
        let tainted = pool.devices.iter().filter(|device| device.taints.is_some());
        let tainted: Vec<_> = tainted.map(|device| (device.name.as_str(), taints(device))).collect();
        let lacks = vec!["netclaim.dev/kernel-lacks"];
        assert_eq!(tainted, [("net-i", lacks.clone()), ("net-v", lacks)]);
    }

    #[test]
    fn a_label_that_goes_keeps_new_pods_away_and_harms_none() {
        let mut inventory = inventory(&[("m", "macvlan")]);
        let name = "m".parse().expect("a name");
        inventory.networks.get_mut(&name).expect("there").cni["plugins"][0]["x"] =
            json!("${node.labels.topology.kubernetes.io/zone}");
        let (pool, health) = made(&inventory, &[held("net-m", &inventory)]);
        let device = pool.devices.iter().find(|device| device.name == "net-m").expect("published");
        assert_eq!(taints(device), ["netclaim.dev/value-missing"]);
        assert!(health.iter().all(|health| health.unhealthy.is_none()));
        inventory.labels.insert("topology.kubernetes.io/zone".to_owned(), "eu-1a".to_owned());
        let pool = pool_of(&inventory);
        assert!(pool.devices.iter().all(|device| device.taints.is_none()));
    }

    #[test]
    fn a_macvlan_that_takes_the_whole_link_is_exclusive_and_stays_on_the_node() {
        let mut with = inventory(&[("m", "macvlan"), ("p", "macvlan")]);
        let spec = with.networks.get_mut(&"p".parse().expect("a name")).expect("there");
        spec.cni["plugins"][0]["mode"] = json!("passthru");
        let pool = pool_of(&with);
        let device = |pool: &Pool, name: &str| {
            pool.devices.iter().find(|d| d.name == name).expect("published").clone()
        };
        let whole = device(&pool, "net-p");
        assert_eq!(whole.allow_multiple_allocations, None);
        assert!(!fits(&pool, &[&whole, &device(&pool, "net-m")]));
        assert!(!fits(&pool, &[&whole, &device(&pool, "macvlan-eth1")]));
        let held = [held("net-p", &with)];
        let gone = Inventory { uplinks: Vec::new(), ..with.clone() };
        let (pool, health) = made(&gone, &held);
        assert_eq!(taints(&device(&pool, "net-p")), ["netclaim.dev/link-missing"], "it is in no pod");
        assert!(health.iter().any(|health| health.device == "net-p" && health.unhealthy.is_some()));
        // Its plugin does not set the link up.
        with.uplinks[0].link.admin_up = false;
        assert_eq!(taints(&device(&pool_of(&with), "net-p")), ["netclaim.dev/link-down"]);
    }

    #[test]
    fn a_network_whose_plugins_cannot_serve_is_tainted() {
        let inventory = inventory(&[("m", "macvlan")]);
        let unhealthy = Unhealthy::new(Reason::NotReady, "plugin macvlan: the daemon is away");
        let unavailable = BTreeMap::from([("m".parse().expect("a name"), unhealthy.clone())]);
        let inventory = Arc::new(inventory);
        let from = sources(&inventory, &unavailable, &[]);
        let (pool, health) = pool(from, |_, _| None);
        let tainted: Vec<_> =
            pool.devices.iter().filter(|device| device.taints.is_some()).map(|d| &d.name).collect();
        assert_eq!(tainted, ["net-m"]);
        assert!(health.contains(&DeviceHealth {
            pool: "n".into(),
            device: "net-m".into(),
            unhealthy: Some(unhealthy.message),
            stops_traffic: false,
        }));
    }

    #[test]
    fn devices_on_a_virtual_function_name_the_physical_one_and_others_have_an_empty_text() {
        let mut inventory = inventory(&[("m", "macvlan")]);
        let functions = |inventory: &Inventory| {
            let text = |device: Device| device.attributes?.remove(attributes::PHYSICAL_FUNCTION)?.string;
            pool_of(inventory).devices.into_iter().map(text).collect::<Option<BTreeSet<_>>>()
        };
        assert_eq!(functions(&inventory), Some(BTreeSet::from([String::new()])));
        inventory.uplinks[0].link.physical_function = Some("ens1f0".into());
        assert_eq!(functions(&inventory), Some(BTreeSet::from(["ens1f0".into()])));
    }

    /// A node without UplinkPolicies.
    fn by_default(networks: &[(&str, &str)]) -> Inventory {
        let mut inventory = inventory(networks);
        inventory.uplinks = ["eth1", "eth2"].map(|name| Uplink { is_listed: false, ..uplink(name) }).into();
        inventory
    }

    #[test]
    fn without_policies_a_link_is_offered_by_its_networks_or_whole() {
        let networks = [("b", "macvlan"), ("a", "vlan")];
        assert_eq!(shown(&pool_of(&by_default(&[]))), "nic-eth1 nic-eth2");
        assert_eq!(shown(&pool_of(&by_default(&networks))), "net-a net-b nic-eth2");
    }

    #[test]
    fn only_a_node_that_offers_exclusive_uses_has_counters() {
        let mut inventory = by_default(&[("m", "macvlan")]);
        assert_eq!(shown(&pool_of(&inventory)), "net-m nic-eth2");
        inventory.uplinks[0].is_listed = true;
        assert_eq!(shown(&pool_of(&inventory)), "+ net-m nic-eth1 macvlan-eth1 ipvlan-eth1 nic-eth2");
        let both = by_default(&[("i", "ipvlan"), ("m", "macvlan")]);
        assert_eq!(shown(&pool_of(&both)), "+ net-i net-m nic-eth2");
    }

    #[test]
    fn a_use_that_is_offered_no_more_stays_while_a_claim_holds_it() {
        let before = by_default(&[]);
        let after = by_default(&[("m", "macvlan")]);
        let held = [held("nic-eth1", &before)];
        let (pool, _) = made(&after, &held);
        assert_eq!(shown(&pool), "net-m! nic-eth2 nic-eth1!");
        let device = |name: &str| pool.devices.iter().find(|device| device.name == name).expect("published");
        assert_eq!(taints(device("net-m")), ["netclaim.dev/link-in-use"]);
        assert_eq!(taints(device("nic-eth1")), ["netclaim.dev/withdrawn"]);
        // In its pod.
        let shown = |inventory: &Inventory, held: &[HeldDevice]| shown(&made(inventory, held).0);
        let moved = Inventory { uplinks: after.uplinks[1..].to_vec(), ..after.clone() };
        assert_eq!(shown(&moved, &held), "nic-eth2 nic-eth1!", "the ClaimNetwork is the next");
        let unnamed = Inventory { networks: [].into(), ..moved };
        assert_eq!(shown(&unnamed, &held), "nic-eth2 nic-eth1");
        assert_eq!(shown(&after, &[]), "net-m nic-eth2");
    }

    #[test]
    fn counters_come_and_go_with_what_is_offered_and_know_what_claims_hold() {
        let shared = by_default(&[("m", "macvlan")]);
        let mut listed = shared.clone();
        listed.uplinks[0].is_listed = true;
        let held = [held("net-m", &shared)];
        assert_eq!(shown(&made(&shared, &held).0), "net-m nic-eth2");
        let (pool, _) = made(&listed, &held);
        assert_eq!(shown(&pool), "+ net-m nic-eth1 macvlan-eth1 ipvlan-eth1 nic-eth2");
        let device = |name: &str| pool.devices.iter().find(|device| device.name == name).expect("published");
        let together = |other| fits(&pool, &[device("net-m"), device(other)]);
        assert!(together("macvlan-eth1") && !together("nic-eth1") && !together("ipvlan-eth1"));
    }

    #[test]
    fn a_device_stays_what_its_pods_have_while_its_network_is_of_another_kind() {
        let mut inventory = by_default(&[("m", "macvlan"), ("v", "vlan")]);
        inventory.uplinks[0].is_listed = true;
        let held = [held("net-m", &inventory), held("macvlan-eth1", &inventory)];
        inventory.networks.insert("m".parse().expect("a name"), network("ipvlan"));
        let (pool, health) = made(&inventory, &held);
        assert_eq!(shown(&pool), "+ net-m! net-v nic-eth1 macvlan-eth1 ipvlan-eth1 nic-eth2");
        let device = |name: &str| pool.devices.iter().find(|device| device.name == name).expect("published");
        // Counters that are overdrawn would close all links.
        assert!(fits(&pool, &[device("net-m"), device("macvlan-eth1")]));
        assert!(!fits(&pool, &[device("net-m"), device("ipvlan-eth1")]));
        assert_eq!(taints(device("net-m")), ["netclaim.dev/link-in-use"]);
        assert!(health.iter().all(|health| health.unhealthy.is_none()), "its pods suffer from nothing");
        assert_eq!(
            shown(&made(&inventory, &[]).0),
            "+ net-m net-v nic-eth1 macvlan-eth1 ipvlan-eth1 nic-eth2"
        );
    }

    #[test]
    fn a_scheduler_that_does_not_count_sees_uses_that_do_not_exclude_each_other() {
        let mut inventory = by_default(&[("m", "macvlan"), ("v", "vlan"), ("i", "ipvlan")]);
        inventory.uplinks[0].is_listed = true;
        let shown = |inventory: &Inventory, held: &[HeldDevice]| {
            let (unavailable, inventory) = (BTreeMap::new(), Arc::new(inventory.clone()));
            let from = Sources { counts: false, ..sources(&inventory, &unavailable, held) };
            shown(&pool(from, |_, _| None).0)
        };
        assert_eq!(shown(&inventory, &[]), "net-i net-v ipvlan-eth1 nic-eth2");
        let held = [held("net-m", &inventory)];
        assert_eq!(shown(&inventory, &held), "net-i! net-m net-v macvlan-eth1 nic-eth2");
    }

    #[test]
    fn declared_attributes_of_a_link_and_of_a_network_are_published() {
        let mut inventory = inventory(&[("m", "macvlan")]);
        let declared = |value| serde_json::from_value(value).expect("attributes");
        inventory.uplinks[0].declared =
            declared(json!({"switch": {"string": "tor-1"}, "tier": {"string": "bronze"}}));
        let network = inventory.networks.values_mut().next().expect("a network");
        network.attributes = declared(json!({"tier": {"string": "gold"}}));
        let pool = pool_of(&inventory);
        let text = |device: &str, key: &str| {
            let device = pool.devices.iter().find(|d| d.name == device).expect("published");
            device.attributes.as_ref().and_then(|a| a.get(key)).and_then(|v| v.string.clone())
        };
        assert_eq!(text("nic-eth1", "switch").as_deref(), Some("tor-1"));
        assert_eq!(text("net-m", "switch").as_deref(), Some("tor-1"));
        assert_eq!(text("net-m", "tier").as_deref(), Some("gold"));
    }
}
