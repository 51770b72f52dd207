//! Use of the node's links by other programs in namespaces that the node cannot see into, such as the macvlan
//! interfaces of Multus' pods. Pure.
//!
//! The link below lists the hardware addresses that it takes frames for, but neither announces changes nor
//! names owners. So an address is foreign when two looks in a row find it and claims held nothing on the link
//! at the first one. Where claims hold something, the scheduler keeps other uses away anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::selection::Inventory;
use super::uplink::Stacked;

/// Hardware addresses by the index of the link that takes frames for them.
pub(crate) type Addresses = BTreeMap<u32, BTreeSet<String>>;

/// The foreign addresses on a node's links.
#[derive(Debug, Default)]
pub(crate) struct ForeignUse {
    /// Addresses of the last look on links that claims held nothing on.
    last: Addresses,
    found: Addresses,
}

impl ForeignUse {
    /// Takes the addresses that a look has found; claims hold something on the links `held`. Returns whether
    /// the foreign addresses have changed.
    pub(crate) fn update(&mut self, now: Addresses, held: &BTreeSet<u32>) -> bool {
        let both = |link: &u32, before: &Addresses| {
            let (now, before) = (now.get(link)?, before.get(link)?);
            let both: BTreeSet<String> = now & before;
            (!both.is_empty()).then_some((*link, both))
        };
        let still = self.found.keys().filter(|link| held.contains(link));
        let new = self.last.keys().filter(|link| !held.contains(link));
        let still: Addresses = still.filter_map(|link| both(link, &self.found)).collect();
        let new: Addresses = new.filter_map(|link| both(link, &self.last)).collect();
        self.last = now;
        self.last.retain(|link, _| !held.contains(link));
        let found = still.into_iter().chain(new).collect();
        std::mem::replace(&mut self.found, found) != self.found
    }

    /// Returns the inventory with foreign links on its uplinks.
    pub(crate) fn add_to(&self, inventory: &Arc<Inventory>) -> Arc<Inventory> {
        let mut with = Arc::clone(inventory);
        if self.found.is_empty() {
            return with;
        }
        for uplink in &mut Arc::make_mut(&mut with).uplinks {
            let addresses = self.found.get(&uplink.link.index).into_iter().flatten();
            // Only macvlan and macvtap links have addresses of their own on a link.
            let stacked = addresses.map(|mac| Stacked { name: mac.clone(), kind: "macvlan".to_owned() });
            uplink.stacked.extend(stacked);
        }
        with
    }
}

#[cfg(test)]
mod tests {
    use netclaim_api::LinkUse;

    use super::*;
    use crate::inventory::fixtures::uplink;

    fn on_link_2(addresses: &[&str]) -> Addresses {
        BTreeMap::from([(2, addresses.iter().map(|mac| (*mac).to_owned()).collect())])
    }

    fn messages(foreign: &ForeignUse) -> [Option<String>; 2] {
        let mut uplink = uplink("eth1");
        uplink.link.index = 2;
        let inventory = Arc::new(Inventory { uplinks: vec![uplink], ..Inventory::default() });
        let with = foreign.add_to(&inventory);
        [LinkUse::Nic, LinkUse::Macvlan]
            .map(|link_use| with.uplinks[0].in_use(Some(link_use)).map(|unhealthy| unhealthy.message))
    }

    #[test]
    fn an_address_that_is_found_twice_is_foreign_until_it_is_gone() {
        let (mut foreign, none) = (ForeignUse::default(), BTreeSet::new());
        foreign.update(on_link_2(&["02:00:00:00:00:0a"]), &none);
        assert_eq!(messages(&foreign), [None, None], "it may be that of a pod of ours that has just ended");
        foreign.update(on_link_2(&["02:00:00:00:00:0a", "02:00:00:00:00:0b"]), &none);
        let message = "uplink eth1 is below macvlan 02:00:00:00:00:0a of another program";
        assert_eq!(messages(&foreign), [Some(message.to_owned()), None]);
        foreign.update(Addresses::new(), &none);
        assert_eq!(messages(&foreign), [None, None]);
    }

    #[test]
    fn addresses_on_a_link_that_claims_hold_are_not_foreign() {
        let (mut foreign, none, held) = (ForeignUse::default(), BTreeSet::new(), BTreeSet::from([2]));
        for _ in 0..3 {
            foreign.update(on_link_2(&["02:00:00:00:00:0a"]), &held);
        }
        foreign.update(on_link_2(&["02:00:00:00:00:0a"]), &none);
        assert_eq!(messages(&foreign), [None, None], "the pod has just gone");
        foreign.update(on_link_2(&["02:00:00:00:00:0a"]), &none);
        assert!(messages(&foreign)[0].is_some());
        foreign.update(on_link_2(&["02:00:00:00:00:0a", "02:00:00:00:00:0b"]), &held);
        let found = foreign.found.get(&2).map(BTreeSet::len);
        assert_eq!(found, Some(1), "a foreign address stays one beside the pods of claims");
    }
}
