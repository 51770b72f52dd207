//! Whether attachments may use one link at once. Pure.
//!
//! Counters in the slices have the scheduler see to it. It cannot where the API server does not store them
//! and what is published of a link has changed since a pod got it, nor for ClaimNetworks of scope `Cluster`,
//! which are in pools of their own. The kernel would refuse some of it, and take a NIC away below the macvlan
//! links and VLANs of other pods.

use netclaim_api::device::{DeviceName, link_label};
use netclaim_api::{IfName, LinkUse};

use super::claim::{AllocatedDevice, Claim};
use crate::devices::stays_on_node;
use crate::inventory::Inventory;
use crate::pods::owner::{ObjectRef, OnLink, Owner, Plan};

/// The first of `others` that excludes `plan`.
pub(crate) fn obstacle<'a>(plan: &Plan, mut others: impl Iterator<Item = &'a Plan>) -> Option<&'a Plan> {
    others.find(|other| excludes(plan, other.owner.link.as_ref()))
}

/// Whether an attachment on this link excludes `plan`.
pub(crate) fn excludes(plan: &Plan, other: Option<&OnLink>) -> bool {
    plan.owner.link.as_ref().zip(other).is_some_and(|(own, other)| links_exclude(own, other))
}

/// An attachment has to wait for another one on its link.
#[derive(Debug, thiserror::Error)]
#[error(
    "request {:?} of ResourceClaim {}: link {link} is in another use by {}, which excludes device {:?}: the pod starts when that \
     one is gone; delete it to have it scheduled again",
    own.device.request, own.claim, self.named(), own.device.device
)]
pub(crate) struct Excluded {
    link: String,
    own: Box<Owner>,
    other: Box<Owner>,
}

impl Excluded {
    /// Why `plan` has to wait for `other`.
    pub(crate) fn by(plan: &Plan, other: &Plan) -> Self {
        let link = plan.owner.link.as_ref().map(|link| link.name.to_string()).unwrap_or_default();
        Self { link, own: Box::new(plan.owner.clone()), other: Box::new(other.owner.clone()) }
    }

    /// Logs who has the link: the pod's event and the claim's status do not name other tenants.
    pub(crate) fn log(&self) {
        let Self { link, own, other } = self;
        tracing::info!(link, claim = %own.claim, holder = %other.pod, holder_claim = %other.claim, "a link is in another use");
    }

    /// Says who has the link, to the admin.
    pub(super) fn in_full(&self) -> String {
        format!("link {} is in another use by pod {}, which excludes this one", self.link, self.other.pod)
    }

    fn named(&self) -> String {
        named(&self.other, &self.own.pod.namespace)
    }
}

/// Returns what a tenant of `namespace` may know about another attachment.
fn named(other: &Owner, namespace: &str) -> String {
    let Owner { pod, claim, device, .. } = other;
    if pod.namespace == namespace {
        format!("pod {pod} (device {:?} of ResourceClaim {claim})", device.device)
    } else {
        "a pod of another namespace".to_owned()
    }
}

/// The node lacks a link, because a pod has it that has not ended.
#[derive(Debug, thiserror::Error)]
#[error(
    "request {request:?} of ResourceClaim {claim}: link {link} is with {}, which has not ended on this node: the pod starts when \
     that one has",
    named(other, namespace)
)]
pub(crate) struct InPod {
    request: String,
    claim: ObjectRef,
    namespace: String,
    link: IfName,
    /// Whose link it is.
    pub(crate) other: Box<Owner>,
}

impl InPod {
    /// Says who has the link, to the admin.
    pub(super) fn in_full(&self) -> String {
        format!("link {} is with pod {}, which has not ended on this node", self.link, self.other.pod)
    }

    /// Returns which of the `plans` of other claims has the link of a device that the node lacks.
    pub(crate) fn of<'a>(
        claim: &Claim,
        inventory: &Inventory,
        plans: impl Iterator<Item = &'a Plan> + Clone,
    ) -> Option<Self> {
        claim.devices.iter().find_map(|AllocatedDevice { device, .. }| {
            let is_missing = |link: &IfName| match device.device.parse() {
                Ok(DeviceName::Link(_, label)) => link_label(link) == label,
                Ok(DeviceName::Network(network)) => {
                    let uplink = inventory.networks.get(&network).and_then(|spec| spec.uplink.as_ref());
                    uplink.is_some_and(|uplink| uplink.links.contains(link))
                }
                Err(_) => false,
            };
            let mut others = plans.clone().filter(|plan| plan.owner.claim.uid != claim.object.uid);
            let (link, other) = others.find_map(|other| {
                // A link below an interface of the pod stays on the node.
                let moves = !stays_on_node(other);
                let link =
                    other.owner.link.as_ref().filter(|link| moves && link.link_use == Some(LinkUse::Nic))?;
                (is_missing(&link.name) || other.owner.device.device == device.device)
                    .then(|| (link.name.clone(), Box::new(other.owner.clone())))
            })?;
            let (request, namespace) = (device.request.clone(), claim.pod.namespace.clone());
            Some(Self { request, claim: claim.object.clone(), namespace, link, other })
        })
    }
}

fn links_exclude(one: &OnLink, other: &OnLink) -> bool {
    let is_above = |one: &OnLink, other: &OnLink| {
        other.link_use == Some(LinkUse::Nic) && one.physical_function.as_ref() == Some(&other.name)
    };
    (one.name == other.name && LinkUse::exclude(one.link_use, other.link_use))
        || is_above(one, other)
        || is_above(other, one)
}

#[cfg(test)]
mod tests {
    use netclaim_api::conflist::link_use_of;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{self, conflist};

    fn plan(link: &str, mode: &str) -> Plan {
        let mut plan = fixtures::plan(mode);
        let plugin = if mode == "nic" { "host-device" } else { mode };
        plan.spec.conflist = conflist(json!([{"type": plugin}, {"type": "tuning"}]));
        let link_use =
            if mode == "nic" { Some(LinkUse::Nic) } else { link_use_of(plan.spec.conflist.plugins()) };
        plan.owner.link = Some(OnLink {
            name: link.parse().expect("a name"),
            physical_function: None,
            port: None,
            link_use,
        });
        plan
    }

    #[test]
    fn one_link_is_used_in_one_way_and_a_nic_once() {
        let shared = [("macvlan", "macvlan"), ("ipvlan", "ipvlan"), ("vlan", "macvlan"), ("vlan", "vlan")];
        let exclusive = [
            ("macvlan", "ipvlan"),
            ("nic", "macvlan"),
            ("ipvlan", "host-device"),
            ("nic", "nic"),
            ("vlan", "nic"),
            ("nic", "bridge"),
        ];
        for (one, other) in shared {
            assert_eq!(
                obstacle(&plan("eth1", one), [&plan("eth1", other)].into_iter()),
                None,
                "{one}, {other}"
            );
        }
        for (one, other) in exclusive {
            let (one, other) = (plan("eth1", one), plan("eth1", other));
            assert_eq!(obstacle(&one, [&other].into_iter()), Some(&other));
            let mut on_eth2 = other.clone();
            on_eth2.owner.link =
                on_eth2.owner.link.map(|link| OnLink { name: "eth2".parse().expect("a name"), ..link });
            assert_eq!(obstacle(&one, [&on_eth2].into_iter()), None);
        }
    }

    #[test]
    fn a_card_that_is_given_away_whole_excludes_its_virtual_functions() {
        let card = plan("eth1", "nic");
        let mut function = plan("eth7", "nic");
        let of_card = |link| OnLink { physical_function: "eth1".parse().ok(), ..link };
        function.owner.link = function.owner.link.map(of_card);
        assert!(obstacle(&card, [&function].into_iter()).is_some());
        assert!(obstacle(&function, [&card].into_iter()).is_some());
        assert!(obstacle(&function, [&plan("eth1", "macvlan")].into_iter()).is_none());
    }

    #[test]
    fn a_refusal_names_link_pod_and_the_way_out() {
        let text = Excluded::by(&plan("eth1", "nic"), &plan("eth1", "macvlan")).to_string();
        for words in ["link eth1", "pod default/p", "ResourceClaim default/macvlan", "delete it"] {
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn a_refusal_names_no_other_tenant() {
        let mut other = plan("eth1", "macvlan");
        other.owner.pod.namespace = "bank".to_owned();
        other.owner.claim.namespace = "bank".to_owned();
        let text = Excluded::by(&plan("eth1", "nic"), &other).to_string();
        assert!(text.contains("in another use by a pod of another namespace, which excludes"), "{text}");
        assert!(!text.contains("bank") && !text.contains("default/macvlan"), "{text}");
    }
}
