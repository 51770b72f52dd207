//! The ways in which a link is offered to pods by devices of its own, beside its ClaimNetworks. Pure.
//!
//! | a link that | is offered |
//! |---|---|
//! | an UplinkPolicy lists modes of | in these modes |
//! | has a ClaimNetwork on it, on this node | not at all: pods use it through its ClaimNetworks |
//! | has none | in one way: whole, or where that is not allowed, by macvlan |
//!
//! Uses of one link exclude each other, and keeping them apart costs the scheduler for every pod of the
//! cluster. A link that is offered in one way needs nothing for it. No claim takes a link of ClaimNetworks
//! away whole by a class that selects any NIC.

use std::collections::BTreeSet;

use netclaim_api::{IfName, LinkUse};

use crate::inventory::{Inventory, Uplink};

/// Returns the ways that policies and the kernel allow. A claim that was allocated before a ClaimNetwork was
/// defined on the link may use them.
pub(super) fn allowed(uplink: &Uplink, inventory: &Inventory) -> impl Iterator<Item = LinkUse> {
    uplink.modes.iter().copied().filter(|link_use| !inventory.lacking.contains(link_use.as_str()))
}

/// Returns the uplinks that ClaimNetworks are on. One that moves to another link is on both until it has
/// moved, so `inventories` are the node's before and after.
pub(super) fn with_networks<'a>(inventories: [&'a Inventory; 2]) -> BTreeSet<&'a IfName> {
    let of = |inventory: &'a Inventory| {
        let uplinks = inventory.networks.values().filter_map(|spec| inventory.uplink_of(spec));
        uplinks.map(|uplink| &uplink.name)
    };
    inventories.into_iter().flat_map(of).collect()
}

/// Returns the ways that are offered to new claims, of a link of this inventory. `with_networks` are the
/// links that are offered through their ClaimNetworks only.
pub(super) fn offered(
    uplink: &Uplink,
    inventory: &Inventory,
    with_networks: &BTreeSet<&IfName>,
) -> Vec<LinkUse> {
    let allowed = allowed(uplink, inventory);
    if uplink.is_listed {
        return allowed.collect();
    }
    let most = usize::from(!with_networks.contains(&uplink.name));
    allowed.take(most).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inventory::fixtures::uplink;

    fn shown(change: impl FnOnce(&mut Inventory)) -> String {
        let link = Uplink { is_listed: false, ..uplink("eth1") };
        let mut inventory = Inventory { uplinks: vec![link], ..Inventory::default() };
        change(&mut inventory);
        let offered = offered(&inventory.uplinks[0], &inventory, &with_networks([&inventory, &inventory]));
        offered.into_iter().map(LinkUse::as_str).collect::<Vec<_>>().join(" ")
    }

    fn add_network(inventory: &mut Inventory, scope: &str) {
        let network = serde_json::from_value(json!({
            "scope": scope, "uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "macvlan"}]},
        }));
        inventory.networks.insert("m".parse().expect("a name"), network.expect("a network"));
    }

    #[test]
    fn a_link_without_networks_is_offered_in_one_way() {
        assert_eq!(shown(|_| {}), "nic");
        // Such as a card with virtual functions.
        let shared = |inventory: &mut Inventory| {
            inventory.uplinks[0].modes.remove(&LinkUse::Nic);
        };
        assert_eq!(shown(shared), "macvlan");
        let without_macvlan = |inventory: &mut Inventory| {
            shared(inventory);
            inventory.lacking = ["macvlan"].into();
        };
        assert_eq!(shown(without_macvlan), "ipvlan");
    }

    #[test]
    fn a_link_with_networks_is_offered_only_as_a_policy_lists() {
        for scope in ["Node", "Cluster"] {
            assert_eq!(shown(|inventory| add_network(inventory, scope)), "");
            let listed = |inventory: &mut Inventory| {
                add_network(inventory, scope);
                inventory.uplinks[0].is_listed = true;
                inventory.uplinks[0].modes.remove(&LinkUse::Ipvlan);
            };
            assert_eq!(shown(listed), "nic macvlan");
        }
    }
}
