//! How an uplink's bandwidth is divided among its devices, so that what claims are granted is never more than the link
//! has.
//!
//! Capacities of different devices know nothing of each other, so each gets a part of its own:
//!
//! 1. Networks with `capacity.bandwidth` get that, in the order of their names, until the uplink has no more.
//! 2. Networks without divide the rest equally.
//! 3. The uplink's own devices get what is left by then.
//!
//! Uses that exclude each other are never there at once: macvlan does not take from ipvlan. Where nobody knows what the
//! uplink has, Networks have what they say, and nothing else is promised.

use std::collections::BTreeMap;

use netclaim_api::network::{LinkUse, NetworkSpec};
use netclaim_api::{IfName, NetworkName, Quantity};

use super::networks;
use crate::inventory::Inventory;
use crate::uplinks::Uplink;

/// Who has how much.
#[derive(Debug, Default)]
pub(super) struct Shares {
    networks: BTreeMap<NetworkName, Quantity>,
    left: BTreeMap<(IfName, LinkUse), Quantity>,
}

impl Shares {
    /// What a Network has; `None` where nobody knows what its uplink has.
    pub(super) fn of_network(&self, network: &NetworkName) -> Option<Quantity> {
        self.networks.get(network).copied()
    }

    /// What the uplink's own device for this use has. Whoever takes the whole link has all of it.
    pub(super) fn of_mode(&self, uplink: &Uplink, link_use: LinkUse) -> Option<Quantity> {
        match link_use {
            LinkUse::Nic => uplink.bandwidth,
            _ => self.left.get(&(uplink.name.clone(), link_use)).copied(),
        }
    }
}

/// What has been given away of one uplink, by use; `None` are uses that exclude nothing.
struct Ledger {
    total: u64,
    given: BTreeMap<Option<LinkUse>, u64>,
}

impl Ledger {
    fn given(&self, link_use: Option<LinkUse>) -> u64 {
        self.given.get(&link_use).copied().unwrap_or_default()
    }

    /// What is left for a use. One that excludes nothing can meet any other.
    fn left(&self, link_use: Option<LinkUse>) -> u64 {
        let others = match link_use {
            Some(_) => self.given(link_use),
            None => self.given.iter().filter(|(k, _)| k.is_some()).map(|(_, v)| *v).max().unwrap_or_default(),
        };
        self.total.saturating_sub(self.given(None)).saturating_sub(others)
    }

    fn give(&mut self, link_use: Option<LinkUse>, asked: u64) -> Quantity {
        let granted = asked.min(self.left(link_use));
        *self.given.entry(link_use).or_default() += granted;
        Quantity::new(granted)
    }
}

/// Divides every uplink.
pub(super) fn shares(inventory: &Inventory) -> Shares {
    let mut shares = Shares::default();
    let mut by_uplink: BTreeMap<&IfName, Vec<(&NetworkName, &NetworkSpec)>> = BTreeMap::new();
    for (name, spec) in networks(inventory) {
        if let Some(uplink) = inventory.uplink_of(spec) {
            by_uplink.entry(&uplink.name).or_default().push((name, spec));
        }
    }
    for uplink in &inventory.uplinks {
        let Some(total) = uplink.bandwidth else { continue };
        let mut ledger = Ledger { total: total.value(), given: BTreeMap::new() };
        let here = by_uplink.remove(&uplink.name).unwrap_or_default();
        let (whole, shared): (Vec<_>, Vec<_>) =
            here.into_iter().partition(|(_, spec)| spec.link_use() == Some(LinkUse::Nic));
        shares.networks.extend(whole.into_iter().map(|(name, _)| (name.clone(), total)));
        let (said, unsaid): (Vec<_>, Vec<_>) =
            shared.into_iter().partition(|(_, spec)| spec.capacity.bandwidth.is_some());
        for (name, spec) in said {
            let asked = spec.capacity.bandwidth.map(Quantity::value).unwrap_or_default();
            shares.networks.insert(name.clone(), ledger.give(spec.link_use(), asked));
        }
        // Before any of them takes its part.
        let many = unsaid.len() as u64;
        let parts: Vec<u64> =
            unsaid.iter().map(|(_, spec)| ledger.left(spec.link_use()) / many.max(1)).collect();
        for ((name, spec), part) in unsaid.into_iter().zip(parts) {
            shares.networks.insert(name.clone(), ledger.give(spec.link_use(), part));
        }
        for link_use in [LinkUse::Macvlan, LinkUse::Ipvlan] {
            let left = if many == 0 { ledger.left(Some(link_use)) } else { 0 };
            shares.left.insert((uplink.name.clone(), link_use), Quantity::new(left));
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::inventory::tests::uplink;

    /// Networks on `eth1`, which has 10G: name, plugin, bandwidth.
    fn divided(networks: &[(&str, &str, Option<&str>)]) -> (BTreeMap<String, u64>, u64) {
        let spec = |(name, plugin, bandwidth): &(&str, &str, Option<&str>)| {
            let mut spec = json!({"uplink": {"interfaces": ["eth1"]},
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
        let shares = shares(&inventory);
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
    fn what_networks_say_is_taken_from_the_uplink_and_never_more_than_it_has() {
        let said = [("a", "macvlan", Some("4G")), ("b", "vlan", Some("5G")), ("c", "macvlan", Some("4G"))];
        assert_eq!(divided(&said), (map(&[("a", 4), ("b", 5), ("c", 1)]), 0));
    }

    #[test]
    fn uses_that_exclude_each_other_take_nothing_from_each_other() {
        let said = [("a", "macvlan", Some("8G")), ("b", "ipvlan", Some("9G"))];
        assert_eq!(divided(&said), (map(&[("a", 8), ("b", 9)]), 2));
    }

    #[test]
    fn networks_that_say_nothing_divide_the_rest() {
        let some = [("a", "macvlan", Some("4G")), ("b", "macvlan", None), ("c", "vlan", None)];
        assert_eq!(divided(&some), (map(&[("a", 4), ("b", 3), ("c", 3)]), 0));
        assert_eq!(divided(&[("a", "host-device", None)]), (map(&[("a", 10)]), 10));
    }
}
