//! The links of a node at one moment: plain data.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::address::LinkAddress;
use super::link::Link;

/// The links of a node at one moment, and what the node itself uses them for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// All links, ordered by index.
    pub links: Vec<Link>,
    /// Indices of the links of default routes: IPv4 and IPv6, in any table.
    pub default_route_links: BTreeSet<u32>,
    /// One other route of each link, by index: its destination, which is not a subnet of the link's own
    /// addresses.
    pub routes: BTreeMap<u32, IpNet>,
    /// IP addresses, by index.
    pub addresses: BTreeMap<u32, Vec<LinkAddress>>,
}

impl Snapshot {
    /// Returns the links that are stacked on the link of this index, as far as they are in this network
    /// namespace: the kernel does not list the others.
    pub fn stacked_on(&self, index: u32) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(move |link| link.below() == Some(index))
    }
}
