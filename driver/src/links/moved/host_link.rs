//! A host link as it was before it was moved into a pod, and how to recognize it afterwards.

use std::ops::Not;

use serde::{Deserialize, Serialize};

use super::sysctls::Sysctls;
use crate::links::address::Address;
use crate::links::link::Link;

/// A host link as it was before it was moved into a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostLink {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Alternative names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alt_names: Vec<String>,
    /// Free text (`ip link set … alias`), which `host-device` overwrites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// rtnetlink kind; `None` for a device that a driver made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The hardware address that the device came with, if it came with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_mac: Option<String>,
    /// Address of its PCI function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// Identity of that function. Another function that gets the address later has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_function: Option<u64>,
    /// Which link it is ([`Link::identity`]). `None` if sysfs does not show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<u64>,
    /// Hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The link was set up (`IFF_UP`).
    pub up: bool,
    /// It received all frames (`IFF_PROMISC`).
    #[serde(default, skip_serializing_if = "Not::not")]
    pub promisc: bool,
    /// It received all multicast frames (`IFF_ALLMULTI`).
    #[serde(default, skip_serializing_if = "Not::not")]
    pub allmulti: bool,
    /// Its static addresses, in the kernel's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Address>,
    /// Its sysctls that were not the default of the host's network namespace, such as `ipv6/accept_ra`.
    #[serde(default, skip_serializing_if = "Sysctls::is_empty")]
    pub sysctls: Sysctls,
    /// Its index in the pod, which stays if the pod renames it. `None` until the ADD has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_in_pod: Option<u32>,
}

impl HostLink {
    pub(super) fn of(link: &Link, addresses: Vec<Address>) -> Self {
        Self {
            index: link.index,
            name: link.name.clone(),
            alt_names: link.alt_names.clone(),
            alias: link.alias.clone(),
            kind: link.kind.clone(),
            permanent_mac: link.permanent_mac.clone(),
            pci_bus_id: link.pci_bus_id.clone(),
            pci_function: None,
            identity: link.identity,
            mac: link.mac.clone(),
            mtu: link.mtu,
            up: link.admin_up,
            promisc: link.promisc,
            allmulti: link.allmulti,
            addresses: addresses.into_iter().filter(Address::is_static).collect(),
            sysctls: Sysctls::new(),
            index_in_pod: None,
        }
    }

    /// Whether the kernel returns the link to the host when the pod's namespace ends. It does so with
    /// hardware, and destroys virtual links.
    pub fn outlives_namespaces(&self) -> bool {
        self.kind.is_none()
    }

    /// Finds this link among the host's `links`. `name_in_pod` was its name in the pod; `netns_gone` says
    /// that the pod's namespace has ended.
    ///
    /// * Hardware is recognized by its permanent address or, without one, by its PCI function. If several
    ///   links have the same, the name decides.
    /// * A virtual link is recognized by its identity.
    /// * Without one, it may still have its name in the pod, with its name on the host as the alias:
    ///   `host-device` sets that mark, and leaves the link so if it is killed.
    /// * Otherwise such a link is recognized by name and kind. After the namespace has ended, the index must
    ///   be the same, too: a link of that name may be a new one.
    pub fn find<'a>(&self, links: &'a [Link], name_in_pod: &str, netns_gone: bool) -> Option<&'a Link> {
        let of_kind = || links.iter().filter(|link| link.kind == self.kind);
        if self.is_hardware() {
            return self.hardware(links, |link| link.name == self.name);
        }
        if self.identity.is_some() {
            return of_kind().find(|link| link.identity == self.identity);
        }
        let named = |link: &&Link| link.name == self.name && (!netns_gone || link.index == self.index);
        let marked = |link: &&Link| self.is_marked(link, name_in_pod);
        of_kind().find(marked).or_else(|| of_kind().find(named))
    }

    /// Whether `host-device` has moved the link to `name_in_pod` and marked it.
    fn is_marked(&self, link: &Link, name_in_pod: &str) -> bool {
        link.name == name_in_pod && link.alias.as_ref() == Some(&self.name)
    }

    /// Whether the link has an identity that no program can change.
    fn is_hardware(&self) -> bool {
        self.permanent_mac.is_some() || self.pci_bus_id.is_some()
    }

    /// Finds the link with the same permanent address or, without one, the same PCI function. If there are
    /// several, the `likely` one.
    fn hardware<'a>(&self, links: &'a [Link], likely: impl Fn(&Link) -> bool) -> Option<&'a Link> {
        let is_it = |link: &&Link| {
            link.kind == self.kind
                && match &self.permanent_mac {
                    Some(_) => link.permanent_mac == self.permanent_mac,
                    None => link.pci_bus_id == self.pci_bus_id,
                }
        };
        let mut found = links.iter().filter(is_it);
        match (found.next(), found.next()) {
            (one, None) => one,
            _ => links.iter().filter(is_it).find(|link| likely(link)),
        }
    }

    /// Finds this link among the `links` of the pod that got it as `name_in_pod`.
    ///
    /// A virtual link is recognized by its index in the pod; if the pod replaced it by a new one with that
    /// index, the new one is returned to the host. Before the ADD has reported the index, no container has
    /// run, so the name decides.
    pub(super) fn find_in_pod<'a>(&self, links: &'a [Link], name_in_pod: &str) -> Option<&'a Link> {
        let likely = |link: &Link| match self.index_in_pod {
            Some(index) => link.index == index,
            None => self.is_marked(link, name_in_pod),
        };
        // Not every kernel reports the PCI function of a link in another namespace.
        let by_index = || links.iter().find(|link| link.kind == self.kind && likely(link));
        match self.permanent_mac {
            Some(_) => self.hardware(links, likely),
            None => self.hardware(links, likely).filter(|_| self.is_hardware()).or_else(by_index),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use nix::libc;

    use super::*;

    pub(in crate::links) fn link(name: &str, index: u32) -> Link {
        Link {
            index,
            name: name.into(),
            mac: Some("02:00:00:00:00:01".into()),
            permanent_mac: Some("02:00:00:00:00:01".into()),
            mtu: 1500,
            admin_up: true,
            pci_bus_id: Some("0000:3b:00.0".into()),
            ..Link::default()
        }
    }

    pub(in crate::links) fn address(local: &str) -> Address {
        Address {
            local: local.parse().unwrap(),
            peer: None,
            broadcast: None,
            label: None,
            scope: 0,
            flags: libc::IFA_F_PERMANENT,
            metric: None,
        }
    }

    pub(in crate::links) fn veth(name: &str, index: u32) -> Link {
        Link { kind: Some("veth".into()), permanent_mac: None, pci_bus_id: None, ..link(name, index) }
    }

    fn found(moved: &Link, links: &[Link], gone: bool) -> Option<String> {
        let moved = HostLink::of(moved, Vec::new());
        moved.find(links, "net1", gone).map(|link| format!("{} {}", link.name, link.index))
    }

    #[test]
    fn hardware_is_recognized_by_its_permanent_address_under_any_name_and_index() {
        let mut back = link("dev7", 9);
        back.mac = Some("02:ff:00:00:00:00".into());
        let other = Link { permanent_mac: Some("02:00:00:00:00:02".into()), ..link("eth2", 3) };
        assert_eq!(found(&link("eth2", 3), &[other.clone(), back], true).as_deref(), Some("dev7 9"));
        assert_eq!(found(&link("eth2", 3), &[other], false), None, "another card took the name");
    }

    #[test]
    fn hardware_without_a_permanent_address_is_recognized_by_its_pci_function() {
        let moved = Link { permanent_mac: None, ..link("eth2", 3) };
        let back = Link { permanent_mac: None, ..link("net1", 3) };
        assert_eq!(found(&moved, std::slice::from_ref(&back), true).as_deref(), Some("net1 3"));
        let port = Link { name: "eth3".into(), ..back.clone() };
        assert_eq!(
            found(&moved, &[back.clone(), port.clone()], true),
            None,
            "two ports have the same function"
        );
        let named = Link { name: "eth2".into(), ..back };
        assert_eq!(found(&moved, &[port, named], true).as_deref(), Some("eth2 3"));
    }

    #[test]
    fn a_virtual_link_is_recognized_by_its_name_unless_it_may_be_a_new_one() {
        let moved = veth("eth2", 3);
        assert_eq!(found(&moved, &[veth("eth2", 8)], false).as_deref(), Some("eth2 8"));
        assert_eq!(found(&moved, &[veth("eth2", 8)], true), None, "made again after the namespace was gone");
        assert_eq!(found(&moved, &[veth("eth2", 3)], true).as_deref(), Some("eth2 3"));
        assert_eq!(found(&moved, &[veth("veth9", 3)], false), None, "an index says nothing");
        let bridge = Link { kind: Some("bridge".into()), ..veth("eth2", 3) };
        assert_eq!(found(&moved, &[bridge], false), None, "another kind of link took the name");
    }

    #[test]
    fn a_virtual_link_with_an_identity_is_recognized_by_nothing_else() {
        let known = |link: Link, identity| Link { identity: Some(identity), ..link };
        let moved = known(veth("eth2", 3), 77);
        let other = known(veth("eth2", 3), 78);
        let marked = known(Link { alias: Some("eth2".into()), ..veth("net1", 12) }, 79);
        for gone in [false, true] {
            assert_eq!(found(&moved, &[other.clone(), marked.clone(), veth("eth2", 4)], gone), None);
            let back = known(veth("dev0", 9), 77);
            assert_eq!(found(&moved, &[other.clone(), back], gone).as_deref(), Some("dev0 9"));
        }
        let card = known(link("eth2", 3), 77);
        let reset = known(link("eth2", 8), 80);
        assert_eq!(found(&card, &[reset], false).as_deref(), Some("eth2 8"), "hardware stays the same card");
    }

    #[test]
    fn a_link_of_a_killed_plugin_is_recognized_by_its_mark() {
        let moved = veth("eth2", 3);
        let marked = Link { alias: Some("eth2".into()), ..veth("net1", 12) };
        assert_eq!(found(&moved, std::slice::from_ref(&marked), true).as_deref(), Some("net1 12"));
        let namesake = veth("eth2", 13);
        assert_eq!(found(&moved, &[namesake, marked], false).as_deref(), Some("net1 12"));
        assert_eq!(found(&moved, &[veth("net1", 12)], true), None);
    }

    #[test]
    fn a_virtual_link_in_the_pod_is_recognized_by_its_index_there() {
        let moved = HostLink { index_in_pod: Some(9), ..HostLink::of(&veth("eth2", 3), Vec::new()) };
        let found =
            |moved: &HostLink, links: &[Link]| moved.find_in_pod(links, "net1").map(|link| link.name.clone());
        let marked = Link { alias: Some("eth2".into()), ..veth("net1", 10) };
        assert_eq!(found(&moved, &[marked.clone(), veth("x", 9)]).as_deref(), Some("x"));
        let bridge = Link { kind: Some("bridge".into()), ..veth("x", 9) };
        assert_eq!(found(&moved, &[bridge]), None);
        let cut_short = HostLink { index_in_pod: None, ..moved };
        assert_eq!(found(&cut_short, &[veth("x", 9), marked]).as_deref(), Some("net1"));
        assert_eq!(found(&cut_short, &[veth("net1", 9)]), None, "without the plugin's mark");
    }

    #[test]
    fn hardware_in_the_pod_is_recognized_by_its_permanent_identity() {
        let moved = HostLink { index_in_pod: Some(9), ..HostLink::of(&link("eth2", 3), Vec::new()) };
        let other = Link { permanent_mac: Some("02:00:00:00:00:02".into()), ..link("net1", 9) };
        assert_eq!(
            moved.find_in_pod(&[other.clone(), link("x", 12)], "net1").map(|link| link.index),
            Some(12)
        );
        assert_eq!(moved.find_in_pod(&[other], "net1"), None);
        // A function without an address of its own, on a kernel that does not report functions.
        let anonymous = HostLink { permanent_mac: None, ..moved };
        let own = Link { permanent_mac: None, pci_bus_id: None, ..link("x", 9) };
        assert_eq!(anonymous.find_in_pod(&[own], "net1").map(|link| link.index), Some(9));
    }

    #[test]
    fn only_static_addresses_are_noted() {
        let dynamic = Address { flags: 0, ..address("10.0.0.7/24") };
        let private =
            Address { flags: libc::IFA_F_PERMANENT | libc::IFA_F_STABLE_PRIVACY, ..address("fe80::1234/64") };
        let moved = HostLink::of(&link("eth2", 3), vec![dynamic, address("10.0.0.1/24"), private]);
        assert_eq!(moved.addresses, [address("10.0.0.1/24")]);
    }

    #[test]
    fn a_noted_link_survives_serialization() {
        let addresses = vec![address("10.0.0.1/24"), address("fd00::1/64")];
        let sysctls = [("ipv6/accept_ra".to_owned(), "0".to_owned())].into();
        let noted = Link { identity: Some(u64::MAX), ..link("eth2", 3) };
        let moved = HostLink { sysctls, ..HostLink::of(&noted, addresses) };
        let text = serde_json::to_string(&moved).unwrap();
        assert_eq!(serde_json::from_str::<HostLink>(&text).unwrap(), moved, "{text}");
    }
}
