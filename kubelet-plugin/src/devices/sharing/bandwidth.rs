//! How a port's bandwidth is divided among the devices of its links, so that claims never get more than the
//! port has, nor more of a link than the link has. Pure.
//!
//! The scheduler counts the capacities of different devices separately, so each gets a part of its own:
//!
//! 1. Claims keep what they were granted, even if the device or the link is gone.
//! 2. ClaimNetworks with `capacity.bandwidth` get that, in the order of their names, until their link or its
//!    port has no more. Those without offer no bandwidth.
//! 3. The links' own devices get the rest: on a port of several links first what policies state for each, and
//!    then the port's own link what is left. Others offer none.
//!
//! Uses that exclude each other never take from each other: macvlan does not take from ipvlan on one link.
//! Where the bandwidth is unknown, ClaimNetworks offer what they declare, and the links' own devices offer
//! none.

use std::collections::BTreeMap;

use netclaim_api::device::DeviceName;
use netclaim_api::{IfName, LinkUse, NetworkName, Quantity};

use crate::devices::candidate::networks;
use crate::devices::held::HeldDevice;
use crate::devices::offer;
use crate::inventory::{Inventory, Uplink};

/// The bandwidth of each device.
#[derive(Debug, Default)]
pub(in crate::devices) struct Shares {
    networks: BTreeMap<NetworkName, Quantity>,
    links: BTreeMap<(IfName, LinkUse), Quantity>,
}

impl Shares {
    /// Returns the bandwidth of a ClaimNetwork; `None` where it declares none, or its uplink's is unknown.
    pub(in crate::devices) fn of_network(&self, network: &NetworkName) -> Option<Quantity> {
        self.networks.get(network).copied()
    }

    /// Returns the bandwidth of the uplink's own device for this use. The only link of a port that is taken
    /// whole has all of it.
    pub(in crate::devices) fn of_mode(&self, uplink: &Uplink, link_use: LinkUse) -> Option<Quantity> {
        self.links.get(&(uplink.name.clone(), link_use)).copied()
    }
}

/// The bandwidth of one link that is given away, by use; `None` are uses that exclude nothing.
#[derive(Default)]
struct Ledger {
    total: u64,
    given: BTreeMap<Option<LinkUse>, u64>,
}

impl Ledger {
    fn given(&self, link_use: Option<LinkUse>) -> u64 {
        self.given.get(&link_use).copied().unwrap_or_default()
    }

    /// Returns what is given in a use and beside it. One that excludes nothing is beside any other.
    fn taken(&self, link_use: Option<LinkUse>) -> u64 {
        let in_use = match link_use {
            Some(_) => self.given(link_use),
            None => self.given.iter().filter(|(k, _)| k.is_some()).map(|(_, v)| *v).max().unwrap_or_default(),
        };
        self.given(None).saturating_add(in_use)
    }

    fn add(&mut self, link_use: Option<LinkUse>, amount: u64) {
        let given = self.given.entry(link_use).or_default();
        *given = given.saturating_add(amount);
    }
}

/// The bandwidth of the links of one port.
struct PortLedger {
    total: u64,
    links: BTreeMap<IfName, Ledger>,
}

impl PortLedger {
    /// Returns what is left of a link for a use.
    fn left(&self, link: &IfName, link_use: Option<LinkUse>) -> u64 {
        let Some(ledger) = self.links.get(link) else { return 0 };
        let others =
            self.links.iter().filter(|(other, _)| *other != link).map(|(_, other)| other.taken(None));
        let of_port = self.total.saturating_sub(others.fold(0, u64::saturating_add));
        ledger.total.min(of_port).saturating_sub(ledger.taken(link_use))
    }

    fn give(&mut self, link: &IfName, link_use: Option<LinkUse>, asked: u64) -> u64 {
        let given = asked.min(self.left(link, link_use));
        self.links.entry(link.clone()).or_default().add(link_use, given);
        given
    }

    /// Whether nothing but this link is on the port.
    fn has_only(&self, uplink: &Uplink) -> bool {
        self.links.len() == 1 && uplink.port.name == uplink.name.as_str()
    }
}

/// Divides the bandwidth of every port after deducting what `held` was granted.
pub(in crate::devices) fn shares(inventory: &Inventory, held: &[HeldDevice]) -> Shares {
    let mut shares = Shares::default();
    let mut ports: BTreeMap<&str, PortLedger> = BTreeMap::new();
    for uplink in &inventory.uplinks {
        let Some(total) = uplink.bandwidth.or(uplink.port.bandwidth) else { continue };
        let of_port = uplink.port.bandwidth.map_or(u64::MAX, Quantity::value);
        let new = || PortLedger { total: of_port, links: BTreeMap::new() };
        let ledger = Ledger { total: total.value(), ..Ledger::default() };
        ports.entry(&uplink.port.name).or_insert_with(new).links.insert(uplink.name.clone(), ledger);
    }
    let mut granted: BTreeMap<(IfName, &str), u64> = BTreeMap::new();
    for held in held.iter().filter(|held| held.bandwidth > 0) {
        let (Some(link), Some(port)) = (held.link(inventory), held.port(inventory)) else { continue };
        let Some(ledger) = ports.get_mut(port.as_str()) else { continue };
        ledger.links.entry(link.clone()).or_default().add(held.link_use, held.bandwidth_of_all());
        if let Some(device) = &held.device {
            let of_device = granted.entry((link, device)).or_default();
            *of_device = of_device.saturating_add(held.bandwidth_of_all());
        }
    }
    let granted = |uplink: &Uplink, device: DeviceName| {
        granted.get(&(uplink.name.clone(), device.to_string().as_str())).copied().unwrap_or_default()
    };
    for (name, spec) in networks(inventory) {
        let Some(uplink) = inventory.uplink_of(spec) else { continue };
        let Some(port) = ports.get_mut(uplink.port.name.as_str()) else { continue };
        let Some(total) = port.links.get(&uplink.name).map(|ledger| ledger.total) else { continue };
        let link_use = spec.link_use();
        let asked = match link_use {
            Some(LinkUse::Nic) if port.has_only(uplink) => {
                shares.networks.insert(name.clone(), Quantity::new(total));
                continue;
            }
            Some(LinkUse::Nic) => {
                spec.capacity.bandwidth.or_else(|| uplink.bandwidth.filter(|_| uplink.states_bandwidth))
            }
            _ => spec.capacity.bandwidth,
        };
        let Some(asked) = asked else { continue };
        let granted = granted(uplink, DeviceName::Network(name.clone()));
        let more = port.give(&uplink.name, link_use, asked.value().saturating_sub(granted));
        shares.networks.insert(name.clone(), Quantity::new(granted.saturating_add(more)));
    }
    for (uplink, is_rest) in own_devices(inventory) {
        let Some(port) = ports.get_mut(uplink.port.name.as_str()) else { continue };
        for link_use in LinkUse::ALL {
            let granted = granted(uplink, DeviceName::of_link(link_use, &uplink.name));
            let all = match uplink.bandwidth {
                Some(all) if link_use == LinkUse::Nic && port.has_only(uplink) => all.value(),
                Some(stated) if !is_rest => {
                    let asked = stated.value().saturating_sub(granted);
                    granted.saturating_add(port.give(&uplink.name, Some(link_use), asked))
                }
                _ => granted.saturating_add(port.left(&uplink.name, Some(link_use))),
            };
            shares.links.insert((uplink.name.clone(), link_use), Quantity::new(all));
        }
    }
    shares
}

/// Returns the links whose own devices have bandwidth, in the order in which they get it, and whether that is
/// the rest of the port.
fn own_devices(inventory: &Inventory) -> Vec<(&Uplink, bool)> {
    let is_lowest = |uplink: &Uplink| uplink.port.name == uplink.name.as_str();
    let with_networks = offer::with_networks([inventory, inventory]);
    let offers = |uplink: &&Uplink| !offer::offered(uplink, inventory, &with_networks).is_empty();
    let others = |uplink: &Uplink| {
        let on_port = inventory.uplinks.iter().filter(|other| other.port.name == uplink.port.name);
        on_port.filter(offers).any(|other| other.name != uplink.name)
    };
    let all = inventory.uplinks.iter();
    let stated = all.clone().filter(|uplink| uplink.states_bandwidth && !is_lowest(uplink)).filter(offers);
    // Functions that are in pods are not among the others.
    let is_function = |uplink: &Uplink| uplink.link.physical_function.is_some();
    let is_only = |uplink: &&Uplink| !uplink.states_bandwidth && offers(uplink) && !others(uplink);
    let rest = all.filter(|uplink| is_lowest(uplink) || !is_function(uplink) && is_only(uplink));
    stated.map(|uplink| (uplink, false)).chain(rest.map(|uplink| (uplink, true))).collect()
}

#[cfg(test)]
mod tests {
    use netclaim_api::network::ClaimNetworkSpec;
    use serde_json::{Value, json};

    use super::*;
    use crate::inventory::fixtures::uplink;

    /// ClaimNetworks on `eth1`, which has 10G: name, plugin, bandwidth.
    fn divided(networks: &[(&str, &str, Option<&str>)]) -> (BTreeMap<String, u64>, u64) {
        divided_beside(networks, &[])
    }

    /// The same, beside what claims were granted: device, bandwidth in Gbit/s.
    fn divided_beside(
        networks: &[(&str, &str, Option<&str>)],
        granted: &[(Option<&str>, u64)],
    ) -> (BTreeMap<String, u64>, u64) {
        let held = |(device, bandwidth): &(Option<&str>, u64)| HeldDevice {
            device: device.map(str::to_owned),
            attributes: json!({"uplink": {"string": "eth1"}}).as_object().cloned().unwrap_or_default(),
            link_use: Some(LinkUse::Macvlan),
            bandwidth: bandwidth * 1_000_000_000,
            ..HeldDevice::default()
        };
        let held: Vec<HeldDevice> = granted.iter().map(held).collect();
        let spec = |(name, plugin, bandwidth): &(&str, &str, Option<&str>)| {
            let mut spec = json!({"uplink": {"links": ["eth1"]},
                "cni": {"cniVersion": "1.0.0", "plugins": [{"type": plugin}]}, "capacity": {}});
            if let Some(bandwidth) = bandwidth {
                spec["capacity"] = json!({"bandwidth": Value::from(*bandwidth)});
            }
            (name.parse().expect("a name"), serde_json::from_value(spec).expect("a network"))
        };
        let inventory = Inventory {
            uplinks: vec![uplink("eth1")],
            networks: networks.iter().map(spec).collect(),
            ..Inventory::default()
        };
        let shares = shares(&inventory, &held);
        let left = shares.of_mode(&inventory.uplinks[0], LinkUse::Macvlan).expect("known");
        let gigabits = |q: Quantity| q.value() / 1_000_000_000;
        (shares.networks.into_iter().map(|(n, q)| (n.to_string(), gigabits(q))).collect(), gigabits(left))
    }

    fn map(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn an_uplink_without_networks_keeps_all() {
        assert_eq!(divided(&[]), (map(&[]), 10));
    }

    #[test]
    fn networks_get_what_they_declare_and_never_more_than_the_uplink_has() {
        let declared =
            [("a", "macvlan", Some("4G")), ("b", "vlan", Some("5G")), ("c", "macvlan", Some("4G"))];
        assert_eq!(divided(&declared), (map(&[("a", 4), ("b", 5), ("c", 1)]), 0));
    }

    #[test]
    fn uses_that_exclude_each_other_take_nothing_from_each_other() {
        let declared = [("a", "macvlan", Some("8G")), ("b", "ipvlan", Some("9G"))];
        assert_eq!(divided(&declared), (map(&[("a", 8), ("b", 9)]), 2));
    }

    #[test]
    fn networks_without_bandwidth_take_nothing_unless_they_take_the_whole_link() {
        let some = [("a", "macvlan", Some("4G")), ("b", "macvlan", None), ("c", "vlan", None)];
        assert_eq!(divided(&some), (map(&[("a", 4)]), 6));
        assert_eq!(divided(&[("a", "host-device", None)]), (map(&[("a", 10)]), 10));
    }

    #[test]
    fn a_grant_is_not_promised_again_when_networks_come_and_change() {
        let both = [("a", "macvlan", Some("7G")), ("b", "macvlan", Some("10G"))];
        let b_has_8 = [(Some("net-b"), 5), (Some("net-b"), 3)];
        assert_eq!(divided_beside(&both, &b_has_8), (map(&[("a", 2), ("b", 8)]), 0));
        let of_the_gone = [(Some("net-gone"), 6), (None, 1)];
        assert_eq!(divided_beside(&both, &of_the_gone), (map(&[("a", 3), ("b", 0)]), 0));
        let less = [("b", "macvlan", Some("2G"))];
        assert_eq!(divided_beside(&less, &b_has_8), (map(&[("b", 8)]), 2), "grants are kept");
        assert_eq!(divided_beside(&[], &[(Some("macvlan-eth1"), 4)]), (map(&[]), 10), "its own");
    }

    const G: u64 = 1_000_000_000;

    /// A link of the port `eth1`, which has 10G: name, Gbit/s that a policy states, and whether it is offered
    /// whole.
    fn on_port((name, stated, is_whole): (&str, Option<u64>, bool)) -> Uplink {
        let modes = if is_whole { LinkUse::Nic } else { LinkUse::Macvlan };
        let plain = uplink(name);
        Uplink {
            bandwidth: stated.map(|stated| Quantity::new(stated * G)).or(plain.bandwidth),
            states_bandwidth: stated.is_some(),
            modes: [modes].into(),
            is_listed: false,
            port: uplink("eth1").port,
            ..plain
        }
    }

    /// A ClaimNetwork of macvlan: name, link, Gbit/s.
    fn macvlan((name, link, bandwidth): &(&str, &str, u64)) -> (NetworkName, ClaimNetworkSpec) {
        let spec = json!({"uplink": {"links": [link]}, "capacity": {"bandwidth": format!("{bandwidth}G")},
            "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "macvlan"}]}});
        (name.parse().expect("a name"), serde_json::from_value(spec).expect("a network"))
    }

    fn of_port(links: &[(&str, Option<u64>, bool)], networks: &[(&str, &str, u64)]) -> Inventory {
        Inventory {
            uplinks: links.iter().copied().map(on_port).collect(),
            networks: networks.iter().map(macvlan).collect(),
            ..Inventory::default()
        }
    }

    /// The Gbit/s of each ClaimNetwork and of each link's own device.
    fn parts(inventory: &Inventory, held: &[HeldDevice]) -> BTreeMap<String, u64> {
        let shares = shares(inventory, held);
        let with_networks = offer::with_networks([inventory, inventory]);
        let own = inventory.uplinks.iter().flat_map(|uplink| {
            let offered = offer::offered(uplink, inventory, &with_networks).into_iter();
            offered.filter_map(|link_use| Some((uplink.name.to_string(), shares.of_mode(uplink, link_use)?)))
        });
        let networks = shares.networks.iter().map(|(name, of_network)| (name.to_string(), *of_network));
        networks.chain(own).map(|(name, bandwidth)| (name, bandwidth.value() / G)).collect()
    }

    #[test]
    fn a_vlan_and_the_link_below_it_have_one_port() {
        let links = [("eth1", None, false), ("eth1.100", None, false)];
        let both = [("a", "eth1", 7), ("b", "eth1.100", 7)];
        assert_eq!(parts(&of_port(&links, &both), &[]), map(&[("a", 7), ("b", 3)]));
        assert_eq!(parts(&of_port(&links, &both[1..]), &[]), map(&[("b", 7), ("eth1", 3)]));
        // A link's own share is a bound, too.
        let links = [("eth1", None, false), ("eth1.100", Some(2), false)];
        assert_eq!(parts(&of_port(&links, &both), &[]), map(&[("a", 7), ("b", 2)]));
    }

    #[test]
    fn functions_have_what_policies_state_and_the_card_the_rest() {
        let links = |stated| [("eth1", None, false), ("eth1v0", stated, true), ("eth1v1", stated, true)];
        assert_eq!(parts(&of_port(&links(None), &[]), &[]), map(&[("eth1", 10)]), "functions offer none");
        let divided = of_port(&links(Some(4)), &[]);
        assert_eq!(parts(&divided, &[]), map(&[("eth1", 2), ("eth1v0", 4), ("eth1v1", 4)]));
        let first = of_port(&links(Some(4)), &[("a", "eth1", 5)]);
        assert_eq!(parts(&first, &[]), map(&[("a", 5), ("eth1v0", 4), ("eth1v1", 1)]));
        // A function in a pod has what it was granted.
        let in_pod = HeldDevice {
            device: Some("nic-eth1v0".into()),
            attributes: json!({"uplink": {"string": "eth1v0"}, "physicalFunction": {"string": "eth1"}})
                .as_object()
                .cloned()
                .unwrap_or_default(),
            link_use: Some(LinkUse::Nic),
            bandwidth: 4 * G,
            ..HeldDevice::default()
        };
        let mut without = first.clone();
        without.uplinks.remove(1);
        assert_eq!(parts(&without, &[in_pod]), map(&[("a", 5), ("eth1v1", 1)]));
    }

    #[test]
    fn the_only_link_of_a_port_that_is_offered_by_itself_has_the_rest() {
        let links = [("eth1", None, false), ("eth1.100", None, true)];
        assert_eq!(parts(&of_port(&links, &[("a", "eth1", 4)]), &[]), map(&[("a", 4), ("eth1.100", 6)]));
    }

    mod histories {
        //! Random histories of a port: ClaimNetworks and links that come and go, claims that the scheduler
        //! allocates by the newest or by older devices and the agent refuses or prepares, and pods that end.

        use proptest::prelude::*;

        use super::*;

        const LINKS: [&str; 4] = ["eth1", "eth1.100", "eth1v0", "eth1v1"];

        #[derive(Debug, Clone)]
        enum Happening {
            /// A link comes or goes, with what a policy states for it.
            Link(usize, Option<u64>),
            /// A ClaimNetwork on a link comes, with this bandwidth, or goes.
            Network(usize, usize, Option<u64>),
            /// A claim asks for this much of the n-th device that has it.
            Claim(usize, u64),
            /// The same, by the devices of before the last change.
            LateClaim(usize, u64),
            End(usize),
        }

        fn happenings() -> impl Strategy<Value = Vec<Happening>> {
            let stated = || prop::option::of(1..12_u64);
            let one = prop_oneof![
                1 => (1..LINKS.len(), stated()).prop_map(|(link, stated)| Happening::Link(link, stated)),
                2 => (0..3_usize, 0..LINKS.len(), stated()).prop_map(|(n, link, rate)| Happening::Network(n, link, rate)),
                4 => (0..6_usize, 1..6_u64).prop_map(|(n, rate)| Happening::Claim(n, rate)),
                2 => (0..6_usize, 1..6_u64).prop_map(|(n, rate)| Happening::LateClaim(n, rate)),
                2 => (0..6_usize).prop_map(Happening::End),
            ];
            prop::collection::vec(one, 0..60)
        }

        /// The devices of the port: name, link, whether it is whole, and Gbit/s.
        fn offered(inventory: &Inventory, held: &[HeldDevice]) -> Vec<(String, String, bool, u64)> {
            let shares = shares(inventory, held);
            let mut all = Vec::new();
            for (name, spec) in networks(inventory) {
                let link =
                    inventory.uplink_of(spec).map(|uplink| uplink.name.to_string()).unwrap_or_default();
                let bandwidth = shares.of_network(name).map(Quantity::value).unwrap_or_default();
                all.push((format!("net-{name}"), link, false, bandwidth / G));
            }
            let with_networks = offer::with_networks([inventory, inventory]);
            for uplink in &inventory.uplinks {
                for link_use in offer::offered(uplink, inventory, &with_networks) {
                    let device = DeviceName::of_link(link_use, &uplink.name).to_string();
                    let bandwidth = shares.of_mode(uplink, link_use).map(Quantity::value).unwrap_or_default();
                    all.push((device, uplink.name.to_string(), link_use == LinkUse::Nic, bandwidth / G));
                }
            }
            all
        }

        fn sum(held: &[HeldDevice]) -> u64 {
            held.iter().map(|held| held.bandwidth / G).sum()
        }

        /// Allocates as the scheduler does: of each device by itself.
        fn allocated(
            devices: &[(String, String, bool, u64)],
            held: &[HeldDevice],
            (n, asked): (usize, u64),
        ) -> Option<HeldDevice> {
            let of = |device: &str| {
                let same = held.iter().filter(|held| held.device.as_deref() == Some(device));
                same.map(|held| held.bandwidth / G).sum::<u64>()
            };
            let fits = |(device, _, is_whole, total): &&(String, String, bool, u64)| {
                let taken = of(device);
                if *is_whole { taken == 0 && *total >= asked } else { taken + asked <= *total }
            };
            let (device, link, is_whole, total) = devices.iter().filter(fits).nth(n)?;
            let attributes = json!({"uplink": {"string": link}, "physicalFunction": {"string": "eth1"}});
            Some(HeldDevice {
                device: Some(device.clone()),
                attributes: attributes.as_object().cloned().unwrap_or_default(),
                link_use: Some(if *is_whole { LinkUse::Nic } else { LinkUse::Macvlan }),
                bandwidth: if *is_whole { *total } else { asked } * G,
                ..HeldDevice::default()
            })
        }

        proptest! {
            #[test]
            fn what_was_granted_never_exceeds_the_port(history in happenings()) {
                let mut links: BTreeMap<usize, Option<u64>> = [(0, None)].into();
                let mut of_networks: BTreeMap<usize, (usize, u64)> = BTreeMap::new();
                let mut held: Vec<HeldDevice> = Vec::new();
                let mut older = Vec::new();
                for happening in history {
                    let links_now: Vec<_> =
                        links.iter().map(|(n, stated)| (LINKS[*n], *stated, *n > 1)).collect();
                    let names = ["a", "b", "c"];
                    let networks_now: Vec<_> = of_networks
                        .iter()
                        .map(|(n, (link, bandwidth))| (names[*n], LINKS[*link], *bandwidth))
                        .collect();
                    let inventory = of_port(&links_now, &networks_now);
                    let now = offered(&inventory, &held);
                    match happening {
                        Happening::Claim(n, asked) => {
                            let claim = allocated(&now, &held, (n, asked));
                            held.extend(claim);
                            prop_assert!(sum(&held) <= 10, "the devices were {:?}, and {:?} is held", now, held);
                        }
                        // What is refused by the agent has not been granted.
                        Happening::LateClaim(n, asked) => {
                            let claim = allocated(&older, &held, (n, asked));
                            held.extend(claim.filter(|claim| sum(&held) + claim.bandwidth / G <= 10));
                        }
                        Happening::End(n) if n < held.len() => drop(held.remove(n)),
                        Happening::End(_) => {}
                        Happening::Link(n, stated) => match links.remove(&n) {
                            Some(_) => {}
                            None => drop(links.insert(n, stated)),
                        },
                        Happening::Network(n, link, bandwidth) => {
                            of_networks.remove(&n);
                            of_networks.extend(bandwidth.map(|bandwidth| (n, (link, bandwidth))));
                        }
                    }
                    older = now;
                }
            }
        }
    }
}
