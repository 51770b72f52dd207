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
    /// The first other route of each link, by index: its destination, which is not a subnet of the link's
    /// own addresses.
    pub routes: BTreeMap<u32, IpNet>,
    /// IP addresses in ascending order, by index.
    pub addresses: BTreeMap<u32, Vec<LinkAddress>>,
}

/// The data of one link in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OfLink {
    pub(super) link: Option<Link>,
    pub(super) addresses: Vec<LinkAddress>,
    pub(super) has_default_route: bool,
    pub(super) route: Option<IpNet>,
}

impl Snapshot {
    /// Returns the link of this index.
    pub(super) fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(self.place_of(index).ok()?)
    }

    /// Returns what the snapshot has of the link of this index.
    pub(super) fn of_link(&self, index: u32) -> OfLink {
        OfLink {
            link: self.link(index).cloned(),
            addresses: self.addresses.get(&index).cloned().unwrap_or_default(),
            has_default_route: self.default_route_links.contains(&index),
            route: self.routes.get(&index).copied(),
        }
    }

    /// Returns the indices of all links in the snapshot.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> {
        let links = self.links.iter().map(|link| link.index);
        let routes = self.default_route_links.iter().chain(self.routes.keys());
        links.chain(self.addresses.keys().chain(routes).copied())
    }

    /// Returns where the link of this index is in the list, or where it would be.
    pub(super) fn place_of(&self, index: u32) -> Result<usize, usize> {
        self.links.binary_search_by_key(&index, |link| link.index)
    }

    /// Returns the links that are stacked on the link of this index, as far as they are in this network
    /// namespace: the kernel does not list the others.
    pub fn stacked_on(&self, index: u32) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(move |link| link.parent == Some(index))
    }
}
