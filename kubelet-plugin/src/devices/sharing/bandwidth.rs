//! How an uplink's bandwidth is divided among its devices, so that claims never get more than the link has.
//! Pure.
//!
//! The scheduler counts the capacities of different devices separately, so each gets a part of its own:
//!
//! 1. Claims keep what they were granted, even if the device is gone.
//! 2. ClaimNetworks with `capacity.bandwidth` get that, in the order of their names, until the uplink has no
//!    more. Those without offer no bandwidth.
//! 3. The uplink's own devices get the rest.
//!
//! Uses that exclude each other never take from each other: macvlan does not take from ipvlan. Where the
//! uplink's bandwidth is unknown, ClaimNetworks offer what they declare, and the uplink's own devices offer
//! none.

use std::collections::BTreeMap;

use netclaim_api::device::DeviceName;
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_api::{IfName, LinkUse, NetworkName, Quantity};

use crate::devices::candidate::networks;
use crate::devices::held::HeldDevice;
use crate::inventory::{Inventory, Uplink};

/// The bandwidth of each device.
#[derive(Debug, Default)]
pub(in crate::devices) struct Shares {
    networks: BTreeMap<NetworkName, Quantity>,
    left: BTreeMap<(IfName, LinkUse), Quantity>,
}

impl Shares {
    /// Returns the bandwidth of a ClaimNetwork; `None` where it declares none, or its uplink's is unknown.
    pub(in crate::devices) fn of_network(&self, network: &NetworkName) -> Option<Quantity> {
        self.networks.get(network).copied()
    }

    /// Returns the bandwidth of the uplink's own device for this use. A device that takes the whole link has
    /// all of it.
    pub(in crate::devices) fn of_mode(&self, uplink: &Uplink, link_use: LinkUse) -> Option<Quantity> {
        match link_use {
            LinkUse::Nic => uplink.bandwidth,
            _ => self.left.get(&(uplink.name.clone(), link_use)).copied(),
        }
    }
}

/// The bandwidth of one uplink that is given away, by use; `None` are uses that exclude nothing.
struct Ledger {
    total: u64,
    given: BTreeMap<Option<LinkUse>, u64>,
}

impl Ledger {
    fn given(&self, link_use: Option<LinkUse>) -> u64 {
        self.given.get(&link_use).copied().unwrap_or_default()
    }

    /// Returns what is left for a use. One that excludes nothing is beside any other.
    fn left(&self, link_use: Option<LinkUse>) -> u64 {
        let others = match link_use {
            Some(_) => self.given(link_use),
            None => self.given.iter().filter(|(k, _)| k.is_some()).map(|(_, v)| *v).max().unwrap_or_default(),
        };
        self.total.saturating_sub(self.given(None)).saturating_sub(others)
    }

    fn give(&mut self, link_use: Option<LinkUse>, asked: u64) -> u64 {
        let given = asked.min(self.left(link_use));
        *self.given.entry(link_use).or_default() += given;
        given
    }
}

/// Divides the bandwidth of every uplink after deducting what `held` was granted.
pub(in crate::devices) fn shares(inventory: &Inventory, held: &[HeldDevice]) -> Shares {
    let mut shares = Shares::default();
    let mut by_uplink: BTreeMap<&IfName, Vec<(&NetworkName, &ClaimNetworkSpec)>> = BTreeMap::new();
    for (name, spec) in networks(inventory) {
        if let Some(uplink) = inventory.uplink_of(spec) {
            by_uplink.entry(&uplink.name).or_default().push((name, spec));
        }
    }
    for uplink in &inventory.uplinks {
        let Some(total) = uplink.bandwidth else { continue };
        let mut ledger = Ledger { total: total.value(), given: BTreeMap::new() };
        let held = || held.iter().filter(|held| held.link(inventory).as_ref() == Some(&uplink.name));
        for held in held() {
            let given = ledger.given.entry(held.link_use).or_default();
            *given = given.saturating_add(held.bandwidth_of_all());
        }
        let granted = |device: DeviceName| -> u64 {
            let device = Some(device.to_string());
            held().filter(|held| held.device == device).map(HeldDevice::bandwidth_of_all).sum()
        };
        let here = by_uplink.remove(&uplink.name).unwrap_or_default();
        let (whole, shared): (Vec<_>, Vec<_>) =
            here.into_iter().partition(|(_, spec)| spec.link_use() == Some(LinkUse::Nic));
        shares.networks.extend(whole.into_iter().map(|(name, _)| (name.clone(), total)));
        for (name, spec) in shared {
            let Some(asked) = spec.capacity.bandwidth else { continue };
            let granted = granted(DeviceName::Network(name.clone()));
            let more = ledger.give(spec.link_use(), asked.value().saturating_sub(granted));
            shares.networks.insert(name.clone(), Quantity::new(granted.saturating_add(more)));
        }
        for link_use in [LinkUse::Macvlan, LinkUse::Ipvlan] {
            let all = granted(DeviceName::of_link(link_use, &uplink.name))
                .saturating_add(ledger.left(Some(link_use)));
            shares.left.insert((uplink.name.clone(), link_use), Quantity::new(all));
        }
    }
    shares
}

#[cfg(test)]
mod tests {
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
}
