//! Keeps a snapshot by the messages that the kernel sends when links, addresses and routes change. Pure.
//!
//! Messages are applied in their order to a dump that was taken after the subscription. Some of them are
//! older than the dump, and are applied once more. That is right because a message says all of one object:
//! the last message of an object leaves what the dump or a later change left, and for an object that has none
//! the dump is right. What is seen in between, such as a link that the dump lacks because it was deleted,
//! ends with the messages that were queued before the dump: they are applied before anybody looks.
//!
//! The kernel deletes some routes without a message: those through a link that is set down or that loses its
//! addresses, and those whose source is an address that is removed. Routes of which that may be true are read
//! again, and so are all routes after a message that does not say which ones it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::address::{Address, LinkAddress};
use super::link::Link;
use super::netlink::{Event, Route};
use super::snapshot::{OfLink, Snapshot};
use super::uplinks::{self, is_pod_end};

/// All that a snapshot is made of, as the kernel lists it, and what sysfs says of the links.
#[derive(Debug, Clone, Default)]
pub(super) struct Dump {
    pub(super) links: Vec<Link>,
    pub(super) addresses: Vec<(u32, Address)>,
    pub(super) routes: Vec<Route>,
}

/// What must be read before the snapshot is right.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Unread {
    All,
    Parts {
        routes: bool,
        /// Links for which sysfs may say something else now.
        sysfs: Vec<Link>,
    },
}

/// What tells an address of a link from the others: of IPv6 not the prefix.
type AddressKey = (IpNet, Option<IpAddr>);

/// A snapshot that follows the kernel's messages.
#[derive(Debug, Default)]
pub(super) struct Table {
    snapshot: Snapshot,
    addresses: BTreeMap<u32, BTreeMap<AddressKey, LinkAddress>>,
    /// The node's routes by the index of their links. They are ordered by destination first.
    routes: BTreeMap<u32, BTreeSet<Route>>,
    /// What changed links were like when changes were last taken.
    before: BTreeMap<u32, OfLink>,
    /// Something is unknown: all must be read.
    all_unread: bool,
    routes_unread: bool,
    /// Links whose part of sysfs must be read, and whether they are new or have a new name.
    sysfs_unread: BTreeMap<u32, bool>,
    /// Routes through these links, if there are any, may have been deleted.
    routeless_links: BTreeSet<u32>,
    /// Routes with these sources, if there are any, may have been deleted.
    gone_sources: BTreeSet<IpAddr>,
}

impl Table {
    pub(super) fn new(dump: Dump) -> Self {
        let Dump { mut links, addresses, routes } = dump;
        links.sort_by_key(|link| link.index);
        let mut table = Self { snapshot: Snapshot { links, ..Snapshot::default() }, ..Self::default() };
        for (link, address) in addresses {
            table.addresses.entry(link).or_default().insert(key(&address), LinkAddress::from(&address));
        }
        for route in routes {
            table.insert_route(route);
        }
        let known = table.addresses.keys().chain(table.routes.keys()).copied().collect::<BTreeSet<_>>();
        known.into_iter().for_each(|index| table.show(index));
        table
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub(super) fn into_snapshot(self) -> Snapshot {
        self.snapshot
    }

    /// Everything must be read again.
    pub(super) fn doubt(&mut self) {
        self.all_unread = true;
    }

    /// Returns what must be read after the messages that were applied; `None` if the snapshot is right.
    pub(super) fn unread(&mut self) -> Option<Unread> {
        let (links, sources) =
            (std::mem::take(&mut self.routeless_links), std::mem::take(&mut self.gone_sources));
        let has_gone = |route: &Route| route.source.is_some_and(|source| sources.contains(&source));
        self.routes_unread |= links.iter().any(|link| self.routes.contains_key(link))
            || !sources.is_empty() && self.routes.values().flatten().any(has_gone);
        if self.all_unread {
            return Some(Unread::All);
        }
        let sysfs: Vec<Link> =
            self.sysfs_unread.keys().filter_map(|index| self.snapshot.link(*index).cloned()).collect();
        let routes = self.routes_unread;
        (routes || !sysfs.is_empty()).then_some(Unread::Parts { routes, sysfs })
    }

    /// Takes a dump of everything.
    pub(super) fn replace(&mut self, dump: Dump) {
        let mut now = Self::new(dump);
        now.before = std::mem::take(&mut self.before);
        let indices = self.snapshot.indices().chain(now.snapshot.indices()).collect::<BTreeSet<_>>();
        for index in indices {
            now.before.entry(index).or_insert_with(|| self.snapshot.of_link(index));
        }
        *self = now;
    }

    /// Takes what was [unread](Self::unread): all routes, and links with their data of sysfs.
    pub(super) fn fill(&mut self, routes: Option<Vec<Route>>, links: Vec<Link>) {
        if let Some(routes) = routes {
            let new = Self::new(Dump { routes, ..Dump::default() }).routes;
            let before = std::mem::replace(&mut self.routes, new);
            let indices: BTreeSet<u32> = before.into_keys().chain(self.routes.keys().copied()).collect();
            indices.into_iter().for_each(|index| self.touch(index).show(index));
            self.routes_unread = false;
        }
        let mut unread = std::mem::take(&mut self.sysfs_unread);
        for link in links {
            let is_new = unread.remove(&link.index).unwrap_or_default();
            self.set_sysfs(link, is_new);
        }
    }

    /// Applies a message.
    pub(super) fn apply(&mut self, event: Event) {
        match event {
            Event::Link(link) => self.apply_link(*link),
            Event::LinkGone { index, moved } => self.remove_link(index, moved),
            Event::Address(index, address) => {
                let of_link = self.touch(index).addresses.entry(index).or_default();
                of_link.insert(key(&address), LinkAddress::from(&address));
                self.show(index);
            }
            Event::AddressGone(index, address) => {
                self.touch(index).routeless_links.insert(index);
                self.gone_sources.insert(address.local.addr());
                if let Some(of_link) = self.addresses.get_mut(&index) {
                    of_link.remove(&key(&address));
                }
                self.show(index);
            }
            Event::Route(route) => {
                let links = route.links.clone();
                links.iter().for_each(|index| _ = self.touch(*index));
                self.insert_route(route);
                links.into_iter().for_each(|index| self.show(index));
            }
            Event::RouteGone(route) => {
                let is_known = |index| self.routes.get(index).is_some_and(|routes| routes.contains(&route));
                if !route.links.is_empty() && route.links.iter().all(is_known) {
                    route.links.iter().for_each(|index| self.touch(*index).remove_route(*index, &route));
                } else {
                    self.doubt_routes_to(route.to);
                }
            }
            // Also a new route whose links are hidden, or several.
            Event::RoutesTo(_) | Event::Nexthops => self.routes_unread = true,
        }
    }

    /// Returns whether anything has changed since the last call that readers see. They read the links that
    /// lead out of the node or have a default route, those of which `is_read`, and what is stacked on them
    /// or enslaved together with them.
    pub(super) fn take_change(&mut self, is_read: impl Fn(&Link, &[LinkAddress]) -> bool) -> bool {
        let mut before = std::mem::take(&mut self.before);
        before.retain(|index, before| self.snapshot.of_link(*index) != *before);
        !before.is_empty() && uplinks::is_seen(&self.snapshot, &before, is_read)
    }

    /// Takes the snapshot for what readers have seen.
    pub(super) fn forget_changes(&mut self) {
        self.before.clear();
    }

    fn apply_link(&mut self, mut link: Link) {
        let index = link.index;
        self.touch(index);
        if !link.admin_up {
            self.routeless_links.insert(index);
        }
        let known = self.snapshot.link(index);
        let is_new = known.is_none_or(|known| (&known.name, &known.kind) != (&link.name, &link.kind));
        let state = |link: &Link| (link.admin_up, link.carrier, link.oper, link.master);
        let is_stirred = is_new || known.is_none_or(|known| state(known) != state(&link));
        // It may be what is below one of them: the kernel does not say so.
        let is_awaited = known.is_none() && self.snapshot.links.iter().any(|link| link.parent_elsewhere);
        let (was_seen, is_pod_end) = (known.is_some_and(|known| !is_pod_end(known)), is_pod_end(&link));
        if is_stirred && was_seen {
            self.speed_above(index);
        }
        if !is_pod_end {
            match self.snapshot.link(index) {
                Some(known) => link.set_sysfs(known.clone()),
                None => link.set_sysfs(Link::default()),
            }
        }
        match self.snapshot.place_of(index) {
            Ok(place) => self.snapshot.links[place] = link,
            Err(place) => self.snapshot.links.insert(place, link),
        }
        if is_stirred && !is_pod_end {
            *self.sysfs_unread.entry(index).or_default() |= is_new;
            self.speed_above(index);
        }
        self.all_unread |= is_awaited;
    }

    fn remove_link(&mut self, index: u32, moved: bool) {
        self.touch(index).addresses.remove(&index);
        // A route with several links may be left, or not.
        let routes = self.routes.remove(&index).unwrap_or_default();
        self.routes_unread |= routes.iter().any(|route| route.links.len() > 1);
        self.show(index);
        if let Ok(place) = self.snapshot.place_of(index) {
            if !is_pod_end(&self.snapshot.links[place]) {
                self.speed_above(index);
            }
            let gone = self.snapshot.links.remove(place);
            if gone.is_hardware() {
                self.function_stirred(&gone, true);
            }
        }
        self.sysfs_unread.remove(&index);
        let above = self.snapshot.links.iter().filter(|link| link.parent == Some(index));
        for above in above.map(|link| link.index).collect::<Vec<_>>() {
            self.touch(above);
            if let Ok(place) = self.snapshot.place_of(above) {
                let link = &mut self.snapshot.links[place];
                (link.parent, link.parent_elsewhere) = (None, moved);
            }
        }
    }

    /// Takes what sysfs says of a link.
    fn set_sysfs(&mut self, read: Link, is_new: bool) {
        self.touch(read.index);
        let Ok(place) = self.snapshot.place_of(read.index) else { return };
        let link = &mut self.snapshot.links[place];
        link.set_sysfs(read);
        if link.is_hardware() {
            let link = link.clone();
            self.function_stirred(&link, is_new);
        }
    }

    /// Has the counts of virtual functions and the names of physical ones read again.
    fn function_stirred(&mut self, stirred: &Link, is_new: bool) {
        let has_changed = |link: &&Link| match &stirred.physical_function {
            Some(physical) => link.name == *physical,
            None => is_new && link.physical_function.is_some(),
        };
        for link in self.snapshot.links.iter().filter(has_changed) {
            self.sysfs_unread.entry(link.index).or_default();
        }
    }

    /// Has the speeds read again of the links that are made of this one.
    fn speed_above(&mut self, index: u32) {
        let mut seen = BTreeSet::from([index]);
        let mut to_visit = vec![index];
        while let Some(index) = to_visit.pop() {
            let master = self.snapshot.link(index).and_then(|link| link.master);
            let above = self.snapshot.stacked_on(index).map(|link| link.index).chain(master);
            to_visit.extend(above.filter(|index| seen.insert(*index)));
        }
        seen.remove(&index);
        for index in seen {
            if self.snapshot.link(index).is_some_and(|link| !is_pod_end(link)) {
                self.sysfs_unread.entry(index).or_default();
            }
        }
    }

    fn insert_route(&mut self, route: Route) {
        for link in &route.links {
            self.routes.entry(*link).or_default().insert(route.clone());
        }
    }

    fn remove_route(&mut self, index: u32, route: &Route) {
        if let Some(routes) = self.routes.get_mut(&index) {
            routes.remove(route);
        }
        self.show(index);
    }

    /// Has routes read again if one to this network is known.
    fn doubt_routes_to(&mut self, to: IpNet) {
        self.routes_unread |= self.routes.values().flatten().any(|route| route.to == to);
    }

    /// Notes what a link was like before the first change.
    fn touch(&mut self, index: u32) -> &mut Self {
        self.before.entry(index).or_insert_with(|| self.snapshot.of_link(index));
        self
    }

    /// Shows a link's addresses and routes in the snapshot.
    fn show(&mut self, index: u32) {
        let Self { snapshot, addresses, routes, .. } = self;
        let of_link: BTreeSet<LinkAddress> =
            addresses.get(&index).into_iter().flat_map(BTreeMap::values).copied().collect();
        if of_link.is_empty() {
            addresses.remove(&index);
            snapshot.addresses.remove(&index);
        } else {
            snapshot.addresses.insert(index, of_link.into_iter().collect());
        }
        if routes.get(&index).is_some_and(BTreeSet::is_empty) {
            routes.remove(&index);
        }
        let to = || routes.get(&index).into_iter().flatten().map(|route| route.to);
        if to().any(|to| to.prefix_len() == 0) {
            snapshot.default_route_links.insert(index);
        } else {
            snapshot.default_route_links.remove(&index);
        }
        match to().find(|to| to.prefix_len() > 0) {
            Some(to) => _ = snapshot.routes.insert(index, to),
            None => _ = snapshot.routes.remove(&index),
        }
    }
}

/// The kernel takes two IPv6 addresses of a link for the same whatever their prefixes and peers are.
fn key(address: &Address) -> AddressKey {
    match address.local.addr() {
        IpAddr::V4(_) => (address.local, address.peer),
        ip @ IpAddr::V6(_) => (ip.into(), None),
    }
}

#[cfg(test)]
mod tests;
