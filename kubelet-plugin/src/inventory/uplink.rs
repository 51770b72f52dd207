//! A link that pods may use.

use std::collections::BTreeSet;

use netclaim_api::attribute::DeclaredAttributes;
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_api::uplink_policy::UplinkCapacity;
use netclaim_api::{IfName, LinkUse, Quantity};
use netclaim_driver::links::{Link, NodeTraffic};

/// The facts that a program on the node states about a link.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Provided {
    /// Attributes; those of policies take precedence.
    pub(crate) attributes: DeclaredAttributes,
    /// Capacity; that of policies takes precedence.
    pub(crate) capacity: UplinkCapacity,
}

/// A link that pods may use.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Uplink {
    pub(crate) link: Link,
    /// Its name as a CNI interface name.
    pub(crate) name: IfName,
    /// The ways in which pods may use it.
    pub(crate) modes: BTreeSet<LinkUse>,
    /// Whether an UplinkPolicy lists these ways.
    pub(crate) is_listed: bool,
    /// The ways in which ClaimNetworks may use a link that they must name; `None` where they need not.
    pub(crate) when_named: Option<BTreeSet<LinkUse>>,
    /// The node's own traffic that is on it.
    pub(crate) carries: Option<NodeTraffic>,
    /// The links that other programs have stacked on it.
    pub(crate) stacked: Vec<Stacked>,
    /// The bridge that it is a port of; it serves the ClaimNetworks of that bridge.
    pub(crate) bridge: Option<String>,
    /// The attributes that policies and providers declare for it.
    pub(crate) declared: DeclaredAttributes,
    /// Bits per second, where known.
    pub(crate) bandwidth: Option<Quantity>,
    /// Whether a policy or a provider states them.
    pub(crate) states_bandwidth: bool,
    /// What its frames leave the node by.
    pub(crate) port: Port,
}

/// The physical link that uplinks share: VLAN links, virtual functions and bridges are on the port of the
/// link below.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Port {
    /// Name of the lowest link, or the PCI address of a physical function that is in a pod.
    pub(crate) name: String,
    /// Bits per second, where known.
    pub(crate) bandwidth: Option<Quantity>,
}

/// A link of another program that is stacked on one of the node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stacked {
    /// Its name, or its hardware address where it is in another namespace.
    pub(crate) name: String,
    pub(crate) kind: String,
}

impl Stacked {
    pub(super) fn of(link: &Link) -> Self {
        Self { name: link.name.clone(), kind: link.kind.clone().unwrap_or_default() }
    }

    /// Returns how it uses the link below, where that excludes more than moving the link.
    fn link_use(&self) -> Option<LinkUse> {
        match self.kind.as_str() {
            "macvlan" | "macvtap" => Some(LinkUse::Macvlan),
            "ipvlan" | "ipvtap" => Some(LinkUse::Ipvlan),
            _ => None,
        }
    }
}

impl Uplink {
    /// Returns why new pods cannot use the link in this way: another program uses it in a way that excludes
    /// theirs.
    pub(crate) fn in_use(&self, link_use: Option<LinkUse>) -> Option<Unhealthy> {
        let excluding = self.stacked.iter().filter(|stacked| LinkUse::exclude(link_use, stacked.link_use()));
        let who: Vec<String> = excluding.map(|Stacked { name, kind }| format!("{kind} {name}")).collect();
        let message = || format!("uplink {} is below {} of another program", self.name, who.join(", "));
        (!who.is_empty()).then(|| Unhealthy::new(Reason::LinkInUse, message()))
    }
}
