//! What other programs have on the node's links in namespaces that the node cannot see into: the macvlan interfaces of
//! Multus' pods, for example. Pure.
//!
//! The link below takes frames for their addresses, and tells of no change of these: somebody has to look, now and then.
//! Whose an address is it does not tell either. So one is a stranger's when two looks in a row find it, and claims held
//! nothing on the link at the first of them. Where claims hold something, the scheduler keeps other uses away anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::inventory::Inventory;
use crate::inventory::uplinks::Stacked;

/// Hardware addresses by the index of the link that takes frames for them.
pub type Addresses = BTreeMap<u32, BTreeSet<String>>;

/// The strangers on a node's links.
#[derive(Debug, Default)]
pub struct Strangers {
    /// What the last look found on links that claims held nothing on.
    last: Addresses,
    found: Addresses,
}

impl Strangers {
    /// Takes in what a look has found; claims hold something on the links `held`. Returns whether there are other strangers
    /// now than before.
    pub fn look(&mut self, now: Addresses, held: &BTreeSet<u32>) -> bool {
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

    /// The inventory with the strangers on its uplinks.
    pub fn on(&self, inventory: &Arc<Inventory>) -> Arc<Inventory> {
        let mut with = Arc::clone(inventory);
        if self.found.is_empty() {
            return with;
        }
        for uplink in &mut Arc::make_mut(&mut with).uplinks {
            let addresses = self.found.get(&uplink.link.index).into_iter().flatten();
            // What has an address of its own on a link is a macvlan or a macvtap.
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
    use crate::inventory::tests::uplink;

    fn on_link_2(addresses: &[&str]) -> Addresses {
        BTreeMap::from([(2, addresses.iter().map(|mac| (*mac).to_owned()).collect())])
    }

    fn troubles(strangers: &Strangers) -> [Option<String>; 2] {
        let mut uplink = uplink("eth1");
        uplink.link.index = 2;
        let inventory = Arc::new(Inventory { uplinks: vec![uplink], ..Inventory::default() });
        let with = strangers.on(&inventory);
        [LinkUse::Nic, LinkUse::Macvlan]
            .map(|link_use| with.uplinks[0].in_use(Some(link_use)).map(|t| t.message))
    }

    #[test]
    fn an_address_that_is_there_twice_is_a_strangers_until_it_is_gone() {
        let (mut strangers, nobody) = (Strangers::default(), BTreeSet::new());
        strangers.look(on_link_2(&["02:00:00:00:00:0a"]), &nobody);
        assert_eq!(troubles(&strangers), [None, None], "once may be a pod's of ours that has just ended");
        strangers.look(on_link_2(&["02:00:00:00:00:0a", "02:00:00:00:00:0b"]), &nobody);
        let message = "uplink eth1 is below macvlan 02:00:00:00:00:0a of another program";
        assert_eq!(troubles(&strangers), [Some(message.to_owned()), None]);
        strangers.look(Addresses::new(), &nobody);
        assert_eq!(troubles(&strangers), [None, None]);
    }

    #[test]
    fn addresses_on_a_link_that_claims_hold_are_not_taken_for_strangers() {
        let (mut strangers, nobody, held) = (Strangers::default(), BTreeSet::new(), BTreeSet::from([2]));
        for _ in 0..3 {
            strangers.look(on_link_2(&["02:00:00:00:00:0a"]), &held);
        }
        strangers.look(on_link_2(&["02:00:00:00:00:0a"]), &nobody);
        assert_eq!(troubles(&strangers), [None, None], "the pod has just gone");
        strangers.look(on_link_2(&["02:00:00:00:00:0a"]), &nobody);
        assert!(troubles(&strangers)[0].is_some());
        strangers.look(on_link_2(&["02:00:00:00:00:0a", "02:00:00:00:00:0b"]), &held);
        let found = strangers.found.get(&2).map(BTreeSet::len);
        assert_eq!(found, Some(1), "a stranger stays one beside the pods of claims");
    }
}
