//! A device before it gets its counters, the ClaimNetworks that have one on this node, and the space of their
//! ids.

use k8s_openapi::api::resource::v1::Device;
use netclaim_api::network::{ClaimNetworkSpec, Scope};
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_api::{IfName, LinkUse, NetworkName};

use crate::inventory::Inventory;

/// A device before it gets its counters.
pub(super) struct Candidate {
    pub(super) device: Device,
    /// The link that it shares with other devices.
    pub(super) link: Option<IfName>,
    /// The use of the link, where it excludes other uses.
    pub(super) link_use: Option<LinkUse>,
    /// Whether its pods have it in a use of the link that its ClaimNetwork has no more. It stays that, for no
    /// new pod, until they end.
    pub(super) is_of_before: bool,
    /// Its VLAN id on the link.
    pub(super) vlan: Option<u32>,
    /// Whether the node offers it; else it is here because a claim holds it.
    pub(super) is_offered: bool,
    /// Why it cannot serve new pods.
    pub(super) unhealthy: Vec<Unhealthy>,
    /// Whether its link is in its pod. What new pods wait for is nothing that the pod suffers from then.
    pub(super) is_in_pod: bool,
}

impl Candidate {
    /// Returns what its pods suffer from, if it is anything.
    pub(super) fn ailment(&self) -> Option<String> {
        // A pod keeps the values that its network was made with.
        let is_problem = |unhealthy: &&Unhealthy| {
            Reason::is_problem(unhealthy.reason.key()) && unhealthy.reason != Reason::ValueMissing
        };
        self.unhealthy.iter().find(is_problem).filter(|_| !self.is_in_pod).map(ToString::to_string)
    }

    /// Whether the device's pods are cut off. `is_gone` says whether its link is not on the node any more.
    pub(super) fn stops_traffic(&self, is_gone: bool) -> bool {
        !self.is_in_pod && self.unhealthy.iter().any(|unhealthy| stops_traffic(unhealthy.reason, is_gone))
    }
}

/// Whether the reason cuts pods off. A link that is missing does so if it `is_gone` from the node: one that
/// is not an uplink any more may carry its pods' traffic.
pub(super) fn stops_traffic(reason: Reason, is_gone: bool) -> bool {
    if reason == Reason::LinkMissing { is_gone } else { reason.stops_traffic() }
}

/// Returns the ClaimNetworks that this node publishes; the controller publishes those of scope `Cluster`.
pub(super) fn networks(inventory: &Inventory) -> impl Iterator<Item = (&NetworkName, &ClaimNetworkSpec)> {
    let here = |(_, spec): &(&NetworkName, &ClaimNetworkSpec)| {
        spec.scope == Scope::Node && inventory.can_serve(spec)
    };
    inventory.networks.iter().filter(here)
}

/// Returns the space of the segmentation ids on an uplink, in which each id exists once.
pub(super) fn space_of_link(link: &str) -> String {
    format!("uplink {link}")
}
