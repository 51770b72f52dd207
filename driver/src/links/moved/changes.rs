//! The changes that restore a moved link: pure functions.

use std::fmt;
use std::os::fd::RawFd;

use super::host_link::HostLink;
use super::sysctls::Sysctls;
use crate::links::address::Address;
use crate::links::link::Link;

/// A free name: the kernel fills in the number.
pub(super) const FREE_NAME: &str = "dev%d";

/// A change of a link, in the order in which changes must be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change<'a> {
    Down,
    DropAltName(&'a str),
    Name(&'a str),
    Mac(&'a str),
    Mtu(u32),
    Alias(&'a str),
    Sysctl(&'a str, &'a str),
    AltName(&'a str),
    Up,
    Promisc(bool),
    AllMulti(bool),
    Address(&'a Address),
    /// To the network namespace of this descriptor, under a free name.
    Out(RawFd),
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("set it down"),
            Self::DropAltName(name) => write!(f, "remove its alternative name {name}"),
            Self::Name(name) => write!(f, "rename it to {name}"),
            Self::Mac(mac) => write!(f, "set its hardware address to {mac}"),
            Self::Mtu(mtu) => write!(f, "set its MTU to {mtu}"),
            Self::Alias(alias) => write!(f, "set its alias to {alias:?}"),
            Self::Sysctl(name, value) => write!(f, "set its sysctl {name} to {value}"),
            Self::AltName(name) => write!(f, "add its alternative name {name}"),
            Self::Up => f.write_str("set it up"),
            Self::Promisc(on) => write!(f, "set its promiscuity to {on}"),
            Self::AllMulti(on) => write!(f, "set its reception of all multicast to {on}"),
            Self::Address(address) => write!(f, "add its address {}", address.local),
            Self::Out(_) => f.write_str("move it to the host under a free name"),
        }
    }
}

impl HostLink {
    /// Returns the changes after which the plugin's DEL moves this link of the pod's `links`, and no other,
    /// to the host. DEL takes the link called `name_in_pod` with its alternative names, and renames it to its
    /// alias.
    pub(super) fn changes_in_pod<'a>(
        &'a self,
        links: &'a [Link],
        name_in_pod: &'a str,
    ) -> Vec<(&'a Link, Change<'a>)> {
        let own = self.find_in_pod(links, name_in_pod);
        let is_own = |link: &Link| own.is_some_and(|own| own.index == link.index);
        let mut changes = Vec::new();
        for link in links.iter().filter(|link| !is_own(link) && link.is_named(name_in_pod)) {
            if link.name == name_in_pod {
                changes.extend(link.admin_up.then_some((link, Change::Down)));
                changes.push((link, Change::Name(FREE_NAME)));
            } else {
                changes.push((link, Change::DropAltName(name_in_pod)));
            }
        }
        let Some(own) = own else { return changes };
        let rename = own.name != name_in_pod;
        changes.extend((rename && own.admin_up).then_some((own, Change::Down)));
        changes.extend(self.foreign_names(own).map(|name| (own, Change::DropAltName(name))));
        changes.extend(rename.then_some((own, Change::Name(name_in_pod))));
        changes.extend((own.alias.as_ref() != Some(&self.name)).then_some((own, Change::Alias(&self.name))));
        changes
    }

    /// Returns the changes that move this link of the pod's `links` to the host in the place of DEL. It takes
    /// none of its names along: each of them may be another link's by now.
    pub(super) fn changes_to_move_out<'a>(
        &self,
        links: &'a [Link],
        name_in_pod: &str,
        host: RawFd,
    ) -> Vec<(&'a Link, Change<'a>)> {
        let Some(own) = self.find_in_pod(links, name_in_pod) else { return Vec::new() };
        let alt_names = own.alt_names.iter().map(|name| Change::DropAltName(name));
        alt_names.chain([Change::Out(host)]).map(|change| (own, change)).collect()
    }

    /// Alternative names that the link did not have. One of them may be its own name, which it then cannot
    /// take.
    fn foreign_names<'a>(&self, now: &'a Link) -> impl Iterator<Item = &'a str> {
        now.alt_names.iter().filter(|name| !self.alt_names.contains(name)).map(String::as_str)
    }

    /// Returns the changes that restore the link, which is now `now` with `addresses` and `sysctls`.
    pub(super) fn changes<'a>(
        &'a self,
        now: &'a Link,
        addresses: &[Address],
        sysctls: &Sysctls,
    ) -> Vec<Change<'a>> {
        let name = (now.name != self.name).then_some(Change::Name(&self.name));
        let foreign = self.foreign_names(now).map(Change::DropAltName);
        let mac = self.mac.as_deref().filter(|_| now.mac != self.mac).map(Change::Mac);
        let mtu = (now.mtu != self.mtu).then_some(Change::Mtu(self.mtu));
        let alias = self.alias.as_deref().unwrap_or_default();
        let alias = (now.alias.as_deref().unwrap_or_default() != alias).then_some(Change::Alias(alias));
        let promisc = (now.promisc != self.promisc).then_some(Change::Promisc(self.promisc));
        let allmulti = (now.allmulti != self.allmulti).then_some(Change::AllMulti(self.allmulti));
        // After the MTU, since a link with too small a one has no IPv6; before the link is up and heeds its
        // network.
        let sysctls = self.sysctls.iter().filter(|(name, value)| sysctls.get(*name) != Some(value));
        let sysctls = sysctls.map(|(name, value)| Change::Sysctl(name, value));
        let alt_names = self.alt_names.iter().filter(|name| !now.alt_names.contains(name));
        // Older kernels rename a link only while it is down, and many drivers set its address only then.
        let while_down = now.admin_up && (name.is_some() || mac.is_some());
        let down = (while_down || now.admin_up && !self.up).then_some(Change::Down);
        let up = (self.up && (while_down || !now.admin_up)).then_some(Change::Up);
        let missing = self.addresses.iter().filter(|address| !addresses.iter().any(|a| a.is_same(address)));
        let (alt_names, missing) =
            (alt_names.map(|name| Change::AltName(name)), missing.map(Change::Address));
        down.into_iter()
            .chain(foreign)
            .chain([name, mac, mtu, alias, promisc, allmulti].into_iter().flatten())
            .chain(sysctls)
            .chain(alt_names)
            .chain(up)
            .chain(missing)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::host_link::tests::{address, link, veth};
    use super::*;

    fn describe<'a>(changes: impl IntoIterator<Item = &'a (&'a Link, Change<'a>)>) -> Vec<String> {
        changes.into_iter().map(|(link, change)| format!("{}: {change}", link.index)).collect()
    }

    #[test]
    fn differences_are_changed_in_an_order_that_the_kernel_accepts() {
        let moved = HostLink::of(&link("eth2", 3), vec![address("10.0.0.1/24"), address("fd00::1/64")]);
        let now = Link {
            name: "net1".into(),
            alias: Some("eth2".into()),
            mac: Some("02:00:00:00:00:99".into()),
            mtu: 1300,
            ..link("eth2", 3)
        };
        let changes: Vec<String> = moved
            .changes(&now, &[address("fd00::1/64")], &Sysctls::new())
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            changes,
            [
                "set it down",
                "rename it to eth2",
                "set its hardware address to 02:00:00:00:00:01",
                "set its MTU to 1500",
                "set its alias to \"\"",
                "set it up",
                "add its address 10.0.0.1/24",
            ]
        );
    }

    #[test]
    fn sysctls_are_restored_before_the_link_is_up_and_when_it_has_its_mtu() {
        let sysctls = |values: &[(&str, &str)]| -> Sysctls {
            values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let own = sysctls(&[("ipv4/rp_filter", "2"), ("ipv6/accept_ra", "0")]);
        let moved = HostLink { sysctls: own.clone(), ..HostLink::of(&link("eth2", 3), Vec::new()) };
        let now = Link { admin_up: false, mtu: 1000, ..link("eth2", 11) };
        let there = sysctls(&[("ipv4/arp_ignore", "1"), ("ipv4/rp_filter", "2")]);
        let changes = moved.changes(&now, &[], &there);
        let accept_ra = Change::Sysctl("ipv6/accept_ra", "0");
        assert_eq!(changes, [Change::Mtu(1500), accept_ra, Change::Up], "without IPv6 there is none");
        assert_eq!(moved.changes(&link("eth2", 11), &[], &own), []);
    }

    #[test]
    fn a_link_is_moved_out_without_the_names_that_may_be_taken() {
        let moved = HostLink { index_in_pod: Some(9), ..HostLink::of(&veth("eth2", 3), Vec::new()) };
        let own = Link { alt_names: vec!["card".into()], ..veth("x", 9) };
        assert_eq!(
            describe(&moved.changes_to_move_out(&[veth("net1", 10), own], "net1", 3)),
            ["9: remove its alternative name card", "9: move it to the host under a free name"]
        );
        assert_eq!(moved.changes_to_move_out(&[veth("net1", 10)], "net1", 3), []);
    }

    #[test]
    fn a_restored_link_keeps_what_other_programs_added() {
        let moved = HostLink::of(&link("eth2", 3), vec![address("10.0.0.1/24")]);
        let now = link("eth2", 11);
        assert_eq!(
            moved.changes(&now, &[address("10.0.0.1/24"), address("10.0.0.2/24")], &Sysctls::new()),
            []
        );
        let was_down = HostLink { up: false, ..moved.clone() };
        assert_eq!(was_down.changes(&now, &[address("10.0.0.1/24")], &Sysctls::new()), [Change::Down]);
        assert_eq!(
            moved.changes(&Link { admin_up: false, ..now }, &moved.addresses, &Sysctls::new()),
            [Change::Up]
        );
    }

    #[test]
    fn a_link_receives_as_before_the_pod() {
        let spoiled = Link { promisc: true, allmulti: true, ..link("eth2", 11) };
        let moved = HostLink::of(&link("eth2", 3), Vec::new());
        assert_eq!(
            moved.changes(&spoiled, &[], &Sysctls::new()),
            [Change::Promisc(false), Change::AllMulti(false)]
        );
        let noted = HostLink::of(&spoiled, Vec::new());
        assert_eq!(
            noted.changes(&link("eth2", 11), &[], &Sysctls::new()),
            [Change::Promisc(true), Change::AllMulti(true)]
        );
    }

    #[test]
    fn names_of_the_pod_are_removed_before_the_link_takes_its_own() {
        let moved = HostLink::of(&Link { alt_names: vec!["card".into()], ..link("eth2", 3) }, Vec::new());
        let names = ["eth2", "eth1", "card"].map(str::to_owned).to_vec();
        let now = Link { alt_names: names, admin_up: false, ..link("x", 9) };
        let changes: Vec<String> =
            moved.changes(&now, &[], &Sysctls::new()).iter().map(ToString::to_string).collect();
        assert_eq!(
            changes,
            [
                "remove its alternative name eth2",
                "remove its alternative name eth1",
                "rename it to eth2",
                "set it up"
            ]
        );
    }

    #[test]
    fn a_link_that_the_pod_left_unchanged_needs_no_change() {
        let moved = HostLink::of(&Link { alt_names: vec!["card".into()], ..link("eth2", 3) }, Vec::new());
        let mark = Some("eth2".to_owned());
        let own = Link { alias: mark, alt_names: moved.alt_names.clone(), ..link("net1", 9) };
        assert_eq!(moved.changes_in_pod(&[veth("lo", 1), own.clone()], "net1"), []);
        assert_eq!(moved.changes_in_pod(&[veth("lo", 1)], "net1"), [], "it never came there");
    }

    #[test]
    fn a_renamed_link_takes_its_name_in_the_pod_back_from_any_other_link() {
        let moved = HostLink::of(&link("eth2", 3), Vec::new());
        let impostor = Link { alias: Some("eth0".into()), ..veth("net1", 10) };
        let own = Link { alias: Some("eth0".into()), alt_names: vec!["eth1".into()], ..link("x", 9) };
        let links = [own.clone(), impostor];
        assert_eq!(
            describe(&moved.changes_in_pod(&links, "net1")),
            [
                "10: set it down",
                "10: rename it to dev%d",
                "9: set it down",
                "9: remove its alternative name eth1",
                "9: rename it to net1",
                "9: set its alias to \"eth2\"",
            ]
        );
        let other = Link { alt_names: vec!["net1".into()], ..veth("y", 10) };
        let changes = describe(&moved.changes_in_pod(&[own, other], "net1"));
        assert_eq!(changes.first().map(String::as_str), Some("10: remove its alternative name net1"));
    }

    #[test]
    fn a_link_that_the_pod_made_in_place_of_a_removed_one_loses_the_name() {
        let moved = HostLink { index_in_pod: Some(9), ..HostLink::of(&veth("eth2", 3), Vec::new()) };
        let impostor = Link { alias: Some("eth2".into()), admin_up: false, ..veth("net1", 10) };
        assert_eq!(describe(&moved.changes_in_pod(&[impostor], "net1")), ["10: rename it to dev%d"]);
    }
}
