//! What all claims of the node hold, with little work for each look: a node has hundreds of attachments, and
//! most hold the same as others. Pure.
//!
//! What a plan holds is found out once, because plans do not change. Those that hold the same are counted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::held::HeldDevice;
use crate::pods::owner::Plan;

/// The devices that plans hold, as far as the plans have been seen.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// By where the plan is in memory. That it is kept here makes sure that no other plan comes there.
    of_plans: HashMap<usize, (Arc<Plan>, Arc<HeldDevice>)>,
}

impl Holdings {
    /// Returns what these plans hold on the node of this name: what several hold alike is there once, with
    /// their number.
    pub(super) fn see(&mut self, plans: Vec<Arc<Plan>>, node: &str) -> Vec<HeldDevice> {
        let mut before = std::mem::take(&mut self.of_plans);
        let mut kinds: Vec<Arc<HeldDevice>> = Vec::new();
        let mut many: BTreeMap<usize, usize> = BTreeMap::new();
        let mut new = Vec::new();
        let mut count = |held: &Arc<HeldDevice>, kinds: &mut Vec<Arc<HeldDevice>>| {
            let known = many.entry(address(held)).or_default();
            if *known == 0 {
                kinds.push(Arc::clone(held));
            }
            *known += 1;
        };
        for plan in plans {
            match before.remove(&address(&plan)) {
                Some((_, held)) => {
                    count(&held, &mut kinds);
                    self.of_plans.insert(address(&plan), (plan, held));
                }
                None => new.push(plan),
            }
        }
        for plan in new {
            let held = HeldDevice::of(&plan, node);
            let alike = kinds.iter().find(|kind| ***kind == held).cloned();
            let held = alike.unwrap_or_else(|| Arc::new(held));
            count(&held, &mut kinds);
            self.of_plans.insert(address(&plan), (plan, held));
        }
        let each = |kind: Arc<HeldDevice>| {
            let more = many.get(&address(&kind)).copied().unwrap_or_default().saturating_sub(1);
            HeldDevice { more, ..HeldDevice::clone(&kind) }
        };
        // The order of the devices that are made of it would be another in each look.
        kinds.sort_by(|one, other| {
            let key = |kind: &HeldDevice| (kind.device.clone(), kind.list.clone(), kind.vlan, kind.bandwidth);
            key(one).cmp(&key(other))
        });
        kinds.into_iter().map(each).collect()
    }
}

fn address<T>(value: &Arc<T>) -> usize {
    Arc::as_ptr(value).addr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn plan(claim: &str, bandwidth: u64) -> Arc<Plan> {
        let mut plan = fixtures::plan(claim);
        plan.owner.bandwidth = Some(netclaim_api::Quantity::new(bandwidth));
        Arc::new(plan)
    }

    #[test]
    fn plans_that_hold_the_same_are_there_once_and_counted() {
        let [a, b, c] = [("a", 1), ("b", 1), ("c", 2)].map(|(claim, bandwidth)| plan(claim, bandwidth));
        let mut holdings = Holdings::default();
        let mut see = |plans: &[&Arc<Plan>]| {
            let plans = plans.iter().map(|plan| Arc::clone(plan)).collect();
            let mut seen: Vec<(u64, usize)> =
                holdings.see(plans, "n").iter().map(|held| (held.bandwidth, held.many())).collect();
            seen.sort_unstable();
            seen
        };
        assert_eq!(see(&[]), []);
        assert_eq!(see(&[&a, &b, &c]), [(1, 2), (2, 1)]);
        let d = plan("d", 1);
        assert_eq!(see(&[&d, &a, &b]), [(1, 3)], "a new one is like the others");
        assert_eq!(see(&[&c]), [(2, 1)], "it is seen again");
        drop(d);
        let many: Vec<Arc<Plan>> = (0..100).map(|n| plan(&n.to_string(), n)).collect();
        assert_eq!(see(&many.iter().collect::<Vec<_>>()).len(), 100);
    }
}
