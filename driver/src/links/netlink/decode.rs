//! Decodes what the kernel reports of links, addresses and routes.
//!
//! Only the needed attributes are decoded, so that an unknown attribute cannot hide its link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::NetlinkBuffer;
use nix::libc;

use super::message::{attributes, i32_at, text, u32_at};
use crate::links::address::{Address, is_link_local};
use crate::links::link::Link;

// linux/rtnetlink.h, as far as the libc crate lacks it.
const IFA_RT_PRIORITY: u16 = 9;
const RTA_NH_ID: u16 = 30;

// The sizes of the structs with which messages start.
pub(super) const IFINFOMSG: usize = 16;
pub(super) const IFADDRMSG: usize = 8;
pub(super) const RTMSG: usize = 12;
pub(super) const NDMSG: usize = 12;

/// A route of the node's own traffic through one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) to: IpNet,
    /// `None` if the kernel hides it.
    pub(super) link: Option<u32>,
}

/// Whether a multicast message can change a snapshot: it is about a link, an address, or a route of the
/// node's traffic.
pub(in crate::links) fn is_change(message: &NetlinkBuffer<&[u8]>) -> bool {
    match message.message_type() {
        libc::RTM_NEWLINK | libc::RTM_DELLINK | libc::RTM_NEWADDR | libc::RTM_DELADDR => true,
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => destination(message.payload()).is_some(),
        _ => false,
    }
}

/// Returns the destination of a route of the node's own traffic. `None` for routes that every link with an
/// address has: the kernel's own to the subnets of addresses, and those to link-local or multicast addresses.
fn destination(message: &[u8]) -> Option<IpNet> {
    // struct rtmsg: family, destination prefix length, …, protocol at 5, type at 7.
    let (family, length) = (i32::from(*message.first()?), *message.get(1)?);
    let (protocol, kind) = (*message.get(5)?, *message.get(7)?);
    let to = attributes(message.get(RTMSG..)?).find(|(kind, _)| *kind == libc::RTA_DST).map(|(_, to)| to);
    let to = match (family, to) {
        (libc::AF_INET, Some(to)) => IpAddr::from(Ipv4Addr::from(*to.first_chunk()?)),
        (libc::AF_INET6, Some(to)) => IpAddr::from(Ipv6Addr::from(*to.first_chunk()?)),
        (libc::AF_INET, None) => Ipv4Addr::UNSPECIFIED.into(),
        (libc::AF_INET6, None) => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let is_on_every_link =
        length > 0 && (protocol == libc::RTPROT_KERNEL || is_link_local(to) || to.is_multicast());
    IpNet::new(to, length).ok().filter(|_| kind == libc::RTN_UNICAST && !is_on_every_link)
}

/// Returns a link's index, and a hardware address that it receives frames for itself, not one that a bridge
/// has learned.
pub(super) fn unicast_address(message: &[u8]) -> Option<(u32, String)> {
    // struct ndmsg: index at 4, flags at 10.
    let (link, flags) = (u32_at(message, 4)?, *message.get(10)?);
    let address = attributes(message.get(NDMSG..)?).find(|(kind, _)| *kind == libc::NDA_LLADDR)?.1;
    let is_multicast = address.first()? & 1 == 1;
    (flags & libc::NTF_SELF != 0 && !is_multicast).then_some((link, hardware_address(address)?))
}

/// Decodes a link, without the data of sysfs.
pub(super) fn link(message: &[u8]) -> Option<Link> {
    // struct ifinfomsg: family, device type, index, flags, change mask.
    let index = u32_at(message, 4)?;
    let flags = i32_at(message, 8)?;
    let mut link = Link {
        index,
        admin_up: flags & libc::IFF_UP != 0,
        loopback: flags & libc::IFF_LOOPBACK != 0,
        promisc: flags & libc::IFF_PROMISC != 0,
        allmulti: flags & libc::IFF_ALLMULTI != 0,
        ..Link::default()
    };
    let (mut device, mut bus) = (None, None);
    for (kind, value) in attributes(message.get(IFINFOMSG..)?) {
        match kind {
            libc::IFLA_PARENT_DEV_NAME => device = Some(text(value)),
            libc::IFLA_PARENT_DEV_BUS_NAME => bus = Some(text(value)),
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_ADDRESS => link.mac = hardware_address(value),
            libc::IFLA_PERM_ADDRESS => link.permanent_mac = hardware_address(value),
            libc::IFLA_IFALIAS => link.alias = Some(text(value)).filter(|alias| !alias.is_empty()),
            libc::IFLA_MTU => link.mtu = u32_at(value, 0)?,
            libc::IFLA_LINK => {
                link.parent = u32_at(value, 0).filter(|parent| *parent != 0 && *parent != index)
            }
            libc::IFLA_MASTER => link.master = u32_at(value, 0).filter(|master| *master != 0),
            libc::IFLA_OPERSTATE => link.oper = value.first().copied().unwrap_or_default().into(),
            libc::IFLA_CARRIER => link.carrier = value.first() == Some(&1),
            libc::IFLA_LINK_NETNSID => link.peer_in_other_netns = true,
            libc::IFLA_LINKINFO => {
                link.kind = attributes(value)
                    .find(|(kind, _)| *kind == libc::IFLA_INFO_KIND)
                    .map(|(_, kind)| text(kind));
            }
            libc::IFLA_PROP_LIST => {
                let names = attributes(value).filter(|(kind, _)| *kind == libc::IFLA_ALT_IFNAME);
                link.alt_names = names.map(|(_, name)| text(name)).collect();
            }
            _ => {}
        }
    }
    link.pci_bus_id = device.filter(|_| bus.as_deref() == Some("pci"));
    if link.peer_in_other_netns {
        // The index is of that namespace; another link may have it in this one.
        link.parent = None;
    }
    (!link.name.is_empty()).then_some(link)
}

/// Decodes an address. `None` for families other than IPv4 and IPv6.
pub(super) fn address(message: &[u8]) -> Option<Address> {
    let ip = |value: &[u8]| match i32::from(*message.first()?) {
        libc::AF_INET => Some(IpAddr::from(Ipv4Addr::from(*value.first_chunk()?))),
        libc::AF_INET6 => Some(IpAddr::from(Ipv6Addr::from(*value.first_chunk()?))),
        _ => None,
    };
    // The header has the first eight of the flags in the attribute.
    let (mut flags, scope) = (u32::from(*message.get(2)?), *message.get(3)?);
    let (mut address, mut local, mut broadcast, mut label, mut metric) = (None, None, None, None, None);
    for (kind, value) in attributes(message.get(IFADDRMSG..)?) {
        match kind {
            libc::IFA_ADDRESS => address = ip(value),
            libc::IFA_LOCAL => local = ip(value),
            libc::IFA_BROADCAST => broadcast = value.first_chunk().map(|four| Ipv4Addr::from(*four)),
            libc::IFA_LABEL => label = Some(text(value)),
            libc::IFA_FLAGS => flags = u32_at(value, 0)?,
            IFA_RT_PRIORITY => metric = u32_at(value, 0),
            _ => {}
        }
    }
    // With a peer, IFA_ADDRESS is the peer's address.
    let own = local.or(address)?;
    let local = IpNet::new(own, *message.get(1)?).ok()?;
    let peer = address.filter(|address| *address != own);
    Some(Address { local, peer, broadcast, label, scope, flags, metric })
}

/// Decodes a route of the node's own traffic: one for each of its links.
pub(super) fn routes_of(message: &[u8], routes: &mut Vec<Route>) {
    let Some(to) = destination(message) else { return };
    let before = routes.len();
    let through = |link: Option<u32>| Route { to, link };
    let mut by_nexthop_id = false;
    for (kind, value) in attributes(message.get(RTMSG..).unwrap_or_default()) {
        match kind {
            libc::RTA_OIF => routes.extend(u32_at(value, 0).map(Some).map(through)),
            libc::RTA_MULTIPATH => routes.extend(multipath_links(value).map(Some).map(through)),
            RTA_NH_ID => by_nexthop_id = true,
            _ => {}
        }
    }
    if by_nexthop_id && routes.len() == before {
        routes.push(through(None));
    }
}

/// Returns the interface indices in a list of `struct rtnexthop` (u16 length, u8 flags, u8 weight, i32
/// index), each followed by attributes.
fn multipath_links(mut hops: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let index = u32_at(hops, 4)?;
        let length = usize::from(u16::from_ne_bytes(*hops.first_chunk()?));
        hops = hops.get(length.max(8).next_multiple_of(4)..).unwrap_or_default();
        Some(index)
    })
}

/// `None` for an address of zeros only.
fn hardware_address(value: &[u8]) -> Option<String> {
    if value.iter().all(|b| *b == 0) {
        return None;
    }
    Some(value.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":"))
}

#[cfg(test)]
mod tests {
    use super::super::message::{messages, push_attribute};
    use super::*;
    use proptest::prelude::*;

    /// The body of a route message: destination, protocol, and the index of its link.
    fn route(to: &str, protocol: u8, link: u32) -> Vec<u8> {
        let to: IpNet = to.parse().unwrap();
        let (family, octets) = match to.addr() {
            IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
            IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
        };
        let mut body =
            vec![family as u8, to.prefix_len(), 0, 0, 254, protocol, 0, libc::RTN_UNICAST, 0, 0, 0, 0];
        if to.prefix_len() > 0 {
            push_attribute(&mut body, libc::RTA_DST, &octets);
        }
        push_attribute(&mut body, libc::RTA_OIF, &link.to_ne_bytes());
        body
    }

    #[test]
    fn routes_count_unless_every_link_with_an_address_has_them() {
        let found = |to: &str, protocol| {
            let mut routes = Vec::new();
            routes_of(&route(to, protocol, 7), &mut routes);
            routes.iter().map(|route| (route.to.to_string(), route.link)).collect::<Vec<_>>()
        };
        for to in ["0.0.0.0/0", "::/0", "10.99.0.0/16", "10.1.1.1/32", "2001:db8::/48"] {
            assert_eq!(found(to, libc::RTPROT_STATIC), [(to.to_owned(), Some(7))]);
        }
        for to in ["10.99.0.0/16", "fe80::/64", "2001:db8::/64"] {
            assert_eq!(found(to, libc::RTPROT_KERNEL), [], "{to}");
        }
        for to in ["169.254.0.0/16", "fe80::/64", "224.0.0.0/4", "ff00::/8"] {
            assert_eq!(found(to, libc::RTPROT_BOOT), [], "{to}");
        }
        // Also the kernel's own from router advertisements.
        assert_eq!(found("::/0", libc::RTPROT_KERNEL).len(), 1);
    }

    /// Bytes as the kernel sends them: attributes that the decoder knows, nested ones among them, behind a
    /// header, and what may be wrong with them: values of any length, and a message that is cut off.
    fn attributes_in_a_message() -> impl Strategy<Value = Vec<u8>> {
        let kinds = [
            libc::IFLA_ADDRESS,
            libc::IFLA_IFNAME,
            libc::IFLA_MTU,
            libc::IFLA_LINK,
            libc::IFLA_LINKINFO,
            libc::IFLA_PROP_LIST,
            libc::IFLA_ALT_IFNAME,
            libc::IFA_LOCAL,
            libc::RTA_DST,
            libc::RTA_OIF,
            libc::RTA_MULTIPATH,
        ];
        let value = proptest::collection::vec(any::<u8>(), 0..24);
        let attribute = move |value: BoxedStrategy<Vec<u8>>| {
            let kind = prop_oneof![proptest::sample::select(kinds.to_vec()), any::<u16>()];
            let all = proptest::collection::vec((kind, value), 0..5);
            all.prop_map(|all| {
                let mut bytes = Vec::new();
                all.iter().for_each(|(kind, value)| push_attribute(&mut bytes, *kind, value));
                bytes
            })
        };
        let nested = attribute(prop_oneof![value.clone(), attribute(value.boxed())].boxed());
        let header = proptest::collection::vec(any::<u8>(), RTMSG..=IFINFOMSG);
        (header, nested, any::<proptest::sample::Index>()).prop_map(|(header, attributes, end)| {
            let mut message = [header, attributes].concat();
            // Half of them are whole.
            message.truncate(end.index(2 * message.len() + 1));
            message
        })
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic_or_an_endless_loop(
            bytes in prop_oneof![attributes_in_a_message(), proptest::collection::vec(any::<u8>(), 0..200)]
        ) {
            let mut routes = Vec::new();
            for message in messages(&bytes) {
                is_change(&message);
            }
            link(&bytes);
            address(&bytes);
            unicast_address(&bytes);
            // A default route, in the fields that make one.
            let mut route = bytes;
            if let Some(family) = route.get_mut(0) { *family = libc::AF_INET as u8; }
            if let Some(prefix_length) = route.get_mut(1) { *prefix_length = 0; }
            if let Some(kind) = route.get_mut(7) { *kind = libc::RTN_UNICAST; }
            routes_of(&route, &mut routes);
        }
    }
}
