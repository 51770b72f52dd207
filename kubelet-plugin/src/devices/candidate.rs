//! A device before its counters, and the Networks that have one here.

use k8s_openapi::api::resource::v1::Device;
use netclaim_api::network::{NetworkSpec, Scope};
use netclaim_api::taints::Trouble;
use netclaim_api::{IfName, LinkUse, NetworkName};

use crate::inventory::Inventory;

/// A device before its counters.
pub(super) struct Candidate {
    pub(super) device: Device,
    /// The link, where what is done with it concerns other devices on it.
    pub(super) link: Option<IfName>,
    /// The use of the link, where that excludes other uses.
    pub(super) link_use: Option<LinkUse>,
    /// The VLAN id that it takes on the link.
    pub(super) vlan: Option<u32>,
    /// Why it cannot serve new pods.
    pub(super) troubles: Vec<Trouble>,
    /// Whether the kubelet is told of its health: not while its link is in a pod, where nobody looks at it.
    pub(super) is_seen: bool,
}

/// The Networks that this node publishes; those of scope `Cluster` are in the controller's pools.
pub(super) fn networks(inventory: &Inventory) -> impl Iterator<Item = (&NetworkName, &NetworkSpec)> {
    let here =
        |(_, spec): &(&NetworkName, &NetworkSpec)| spec.scope == Scope::Node && inventory.can_serve(spec);
    inventory.networks.iter().filter(here)
}
