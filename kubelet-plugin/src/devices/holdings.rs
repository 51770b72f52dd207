//! What the claims of the node hold, by kinds: a node has hundreds of attachments, and most hold the same as
//! others. Pure.
//!
//! What a plan holds is found out when the plan comes and when it goes, because plans do not change. The
//! driver counts the kinds.

use std::sync::Arc;

use netclaim_api::configuration::Fingerprint;
use netclaim_api::{IfName, NetworkName};

use super::held::HeldDevice;
use crate::inventory::Inventory;
use crate::pods::owner::{OnLink, Plan};

/// What plans have alike, whosever they are.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// The pool of the device.
    pool: String,
    /// What a plan holds. The device is that of its pool, whichever node has it.
    pub(crate) held: HeldDevice,
    /// The network's name, for people.
    pub(crate) network: String,
    /// The link of the node.
    pub(crate) link: Option<OnLink>,
    /// The configuration of its ClaimNetwork that made the plan.
    configuration: Option<Fingerprint>,
}

impl Kind {
    /// Returns the kind of a plan.
    pub(crate) fn of(plan: &Plan) -> Self {
        let pool = plan.owner.device.pool.clone();
        Self {
            held: HeldDevice::of(plan, &pool),
            pool,
            network: plan.network.clone(),
            link: plan.owner.link.clone(),
            configuration: plan.owner.configuration.clone(),
        }
    }

    /// Returns its ClaimNetwork, with the configuration that made the plan.
    pub(super) fn made_by(&self) -> Option<(&NetworkName, &Fingerprint)> {
        self.held.network.as_ref().zip(self.configuration.as_ref())
    }

    /// Returns its ClaimNetwork, where the device is of the node of this name, and its link.
    pub(crate) fn on_link(&self, node: &str, inventory: &Inventory) -> Option<(NetworkName, IfName)> {
        (self.pool == node).then(|| self.held.on_link(inventory)).flatten()
    }
}

/// Returns what plans of these kinds hold on the node of this name, each with their number.
pub(crate) fn held_on(node: &str, kinds: &[(Arc<Kind>, usize)]) -> Vec<HeldDevice> {
    let held = kinds.iter().map(|(kind, count)| HeldDevice {
        device: kind.held.device.clone().filter(|_| kind.pool == node),
        more: count.saturating_sub(1),
        ..kind.held.clone()
    });
    let mut held: Vec<HeldDevice> = held.collect();
    // The order of the devices that are made of it would be another in each look.
    held.sort_by(|one, other| {
        let key = |held: &HeldDevice| (held.device.clone(), held.list.clone(), held.vlan, held.bandwidth);
        key(one).cmp(&key(other))
    });
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn claims_hold_the_device_of_their_own_node_and_the_link_of_any() {
        let mut plan = fixtures::plan("c");
        plan.owner.device.device = "net-storage".to_owned();
        let kinds = [(Arc::new(Kind::of(&plan)), 3)];
        for node in ["n", "m"] {
            let held = held_on(node, &kinds);
            assert_eq!(held, [HeldDevice { more: 2, ..HeldDevice::of(&plan, node) }]);
            assert_eq!(held[0].many(), 3);
        }
    }

    #[test]
    fn plans_of_other_pods_are_of_one_kind_unless_they_hold_something_else() {
        let (plan, mut other) = (fixtures::plan("a"), fixtures::plan("b"));
        other.owner.pod.uid = "q".to_owned();
        assert_eq!(Kind::of(&plan), Kind::of(&other));
        other.owner.bandwidth = Some(netclaim_api::Quantity::new(1));
        assert_ne!(Kind::of(&plan), Kind::of(&other));
    }
}
