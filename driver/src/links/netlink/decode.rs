//! Decodes what the kernel reports of links, addresses and routes.
//!
//! Only the needed attributes are decoded, so that an unknown attribute cannot hide its link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::NetlinkBuffer;
use nix::libc;

use super::message::{attributes, i32_at, push_attribute, text, u32_at};
use crate::links::address::{Address, is_link_local};
use crate::links::counters::Counters;
use crate::links::link::Link;

// linux/rtnetlink.h, as far as the libc crate lacks it.
const IFA_RT_PRIORITY: u16 = 9;
const RTA_NH_ID: u16 = 30;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;

// The sizes of the structs with which messages start.
pub(super) const IFINFOMSG: usize = 16;
pub(super) const IFADDRMSG: usize = 8;
pub(super) const RTMSG: usize = 12;
pub(super) const NDMSG: usize = 12;

/// A multicast message that is about a link, an address, or a route of the node's own traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::links) enum Event {
    /// A link as it is now, without the data of sysfs.
    Link(Box<Link>),
    /// The link has left the namespace.
    LinkGone {
        index: u32,
        /// It is in another namespace now.
        moved: bool,
    },
    /// A link has the address.
    Address(u32, Address),
    /// A link has the address no more.
    AddressGone(u32, Address),
    /// One more route through one link.
    Route(Route),
    /// The route is gone.
    RouteGone(Route),
    /// A route to this network may have taken the place of another, or have become part of another.
    RoutesTo(IpNet),
    /// Nexthops of routes have changed, and with them any routes.
    Nexthops,
}

/// A neighbour of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::links) struct Neighbour {
    pub(in crate::links) ip: IpAddr,
    /// `NUD_*`.
    pub(in crate::links) state: u16,
}

impl Neighbour {
    /// Whether the kernel has an answer of it, or needs none.
    pub(in crate::links) fn is_known(self) -> bool {
        self.state & (libc::NUD_INCOMPLETE | libc::NUD_FAILED) == 0 && self.state != libc::NUD_NONE
    }
}

/// A multicast message that does not say what it must.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::links) struct Malformed;

/// Decodes a multicast message; `None` for one that changes nothing that a snapshot shows.
pub(in crate::links) fn event(message: &NetlinkBuffer<&[u8]>) -> Result<Option<Event>, Malformed> {
    let (body, flags) = (message.payload(), message.flags());
    let kind = message.message_type();
    match kind {
        libc::RTM_NEWLINK | libc::RTM_DELLINK => link_event(kind, body),
        libc::RTM_NEWADDR | libc::RTM_DELADDR => {
            let family = body.first().copied().map(i32::from);
            if !matches!(family, Some(libc::AF_INET | libc::AF_INET6)) {
                return Ok(None);
            }
            let (link, address) = u32_at(body, 4).zip(address(body)).ok_or(Malformed)?;
            let is_new = kind == libc::RTM_NEWADDR;
            let event = if is_new { Event::Address } else { Event::AddressGone };
            Ok(Some(event(link, address)))
        }
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => {
            let Some(to) = network(body) else { return Ok(None) };
            let route = route(body);
            if kind == libc::RTM_DELROUTE {
                return Ok(route.map(Event::RouteGone));
            }
            let in_place = flags & (libc::NLM_F_REPLACE | libc::NLM_F_APPEND) as u16 != 0;
            Ok(match route {
                Some(route) if !in_place && route.is_through_one_link => Some(Event::Route(route)),
                route => (in_place || route.is_some()).then_some(Event::RoutesTo(to)),
            })
        }
        RTM_NEWNEXTHOP | RTM_DELNEXTHOP => Ok(Some(Event::Nexthops)),
        _ => Ok(None),
    }
}

/// Decodes what the group of links receives. Bridges report their ports there, too (`AF_BRIDGE`): the port
/// that such a message calls deleted is a link still. So do drivers of wireless cards, with nothing but a
/// name and the event.
fn link_event(kind: u16, body: &[u8]) -> Result<Option<Event>, Malformed> {
    let family = body.first().copied().ok_or(Malformed)?;
    if i32::from(family) != libc::AF_UNSPEC {
        return Ok(None);
    }
    let has =
        |wanted| body.get(IFINFOMSG..).is_some_and(|all| attributes(all).any(|(kind, _)| kind == wanted));
    if kind == libc::RTM_DELLINK {
        let index = u32_at(body, 4).ok_or(Malformed)?;
        return Ok(Some(Event::LinkGone { index, moved: has(libc::IFLA_NEW_NETNSID) }));
    }
    if has(libc::IFLA_WIRELESS) {
        return Ok(None);
    }
    let link = link(body).filter(|_| has(libc::IFLA_MTU)).ok_or(Malformed)?;
    Ok(Some(Event::Link(Box::new(link))))
}

/// A route of the node's own traffic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::links) struct Route {
    pub(in crate::links) to: IpNet,
    /// The links that it leads through; none if the kernel hides them.
    pub(in crate::links) links: Vec<u32>,
    /// It has no other links, and is not a part of a group of nexthops.
    pub(in crate::links) is_through_one_link: bool,
    /// The node's address that packets get as their source.
    pub(in crate::links) source: Option<IpAddr>,
    /// All that tells it from other routes.
    pub(in crate::links) id: Vec<u8>,
}

/// Returns the destination of a route.
fn network(message: &[u8]) -> Option<IpNet> {
    // struct rtmsg: family, destination prefix length, …
    let (family, length) = (i32::from(*message.first()?), *message.get(1)?);
    let to = attributes(message.get(RTMSG..)?).find(|(kind, _)| *kind == libc::RTA_DST).map(|(_, to)| to);
    let to = match (family, to) {
        (libc::AF_INET, None) => Ipv4Addr::UNSPECIFIED.into(),
        (libc::AF_INET6, None) => Ipv6Addr::UNSPECIFIED.into(),
        (_, to) => ip(family, to?)?,
    };
    IpNet::new(to, length).ok()
}

/// Returns the destination of a route of the node's own traffic. `None` for routes that every link with an
/// address has: the kernel's own to the subnets of addresses, and those to link-local or multicast addresses.
fn destination(message: &[u8]) -> Option<IpNet> {
    // struct rtmsg: …, protocol at 5, type at 7.
    let (protocol, kind) = (*message.get(5)?, *message.get(7)?);
    let to = network(message)?;
    let ip = to.addr();
    let is_on_every_link =
        to.prefix_len() > 0 && (protocol == libc::RTPROT_KERNEL || is_link_local(ip) || ip.is_multicast());
    (kind == libc::RTN_UNICAST && !is_on_every_link).then_some(to)
}

fn ip(family: i32, octets: &[u8]) -> Option<IpAddr> {
    match family {
        libc::AF_INET => Some(Ipv4Addr::from(*octets.first_chunk()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(*octets.first_chunk()?).into()),
        _ => None,
    }
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

/// Decodes a neighbour. `None` for families other than IPv4 and IPv6.
pub(super) fn neighbour(message: &[u8]) -> Option<Neighbour> {
    // struct ndmsg: family, index at 4, state at 8.
    let family = i32::from(*message.first()?);
    let state = message.get(8..)?.first_chunk().map(|two| u16::from_ne_bytes(*two))?;
    let (_, of) = attributes(message.get(NDMSG..)?).find(|(kind, _)| *kind == libc::NDA_DST)?;
    Some(Neighbour { ip: ip(family, of)?, state })
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
            libc::IFLA_LINK_NETNSID => link.parent_elsewhere = true,
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
    // Each end of a pair has the other one there, which says nothing of what is below it.
    link.parent_elsewhere &= !link.is_of_pair();
    if link.parent_elsewhere || link.is_of_pair() {
        // In another namespace, the index is of that one: another link may have it in this one.
        link.parent = None;
    }
    (!link.name.is_empty()).then_some(link)
}

/// Decodes what has passed through a link.
pub(super) fn counters(message: &[u8]) -> Option<Counters> {
    let (_, value) = attributes(message.get(IFINFOMSG..)?).find(|(kind, _)| *kind == libc::IFLA_STATS64)?;
    Counters::decode(value)
}

/// Decodes an address. `None` for families other than IPv4 and IPv6.
pub(super) fn address(message: &[u8]) -> Option<Address> {
    let family = i32::from(*message.first()?);
    // The header has the first eight of the flags in the attribute.
    let (mut flags, scope) = (u32::from(*message.get(2)?), *message.get(3)?);
    let (mut address, mut local, mut broadcast, mut label, mut metric) = (None, None, None, None, None);
    for (kind, value) in attributes(message.get(IFADDRMSG..)?) {
        match kind {
            libc::IFA_ADDRESS => address = ip(family, value),
            libc::IFA_LOCAL => local = ip(family, value),
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

/// Decodes a route of the node's own traffic; `None` for others.
pub(super) fn route(message: &[u8]) -> Option<Route> {
    let to = destination(message)?;
    let family = i32::from(*message.first()?);
    // struct rtmsg without the flags, in which the kernel says what becomes of the route.
    let mut id = message.get(..8)?.to_vec();
    let (mut links, mut source, mut is_group) = (Vec::new(), None, false);
    for (kind, value) in attributes(message.get(RTMSG..)?) {
        match kind {
            libc::RTA_OIF => links.extend(u32_at(value, 0)),
            libc::RTA_MULTIPATH => {
                is_group = true;
                links.extend(multipath_links(value));
            }
            RTA_NH_ID => is_group = true,
            libc::RTA_PREFSRC => source = ip(family, value),
            _ => {}
        }
        // The time since its last use.
        if kind != libc::RTA_CACHEINFO {
            push_attribute(&mut id, kind, value);
        }
    }
    let is_through_one_link = !is_group && links.len() == 1;
    (is_group || !links.is_empty()).then_some(Route { to, links, is_through_one_link, source, id })
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
    use super::super::message::{messages, request};
    use super::*;
    use proptest::prelude::*;

    /// The body of a route message: destination, protocol, and the index of its link.
    fn through(to: &str, protocol: u8, link: u32) -> Vec<u8> {
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

    /// The body of a message about link 2, which is up, with these attributes.
    fn about_link(family: i32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; IFINFOMSG];
        body[0] = family as u8;
        body[4..8].copy_from_slice(&2_u32.to_ne_bytes());
        body[8..12].copy_from_slice(&libc::IFF_UP.to_ne_bytes());
        attributes.iter().for_each(|(kind, value)| push_attribute(&mut body, *kind, value));
        body
    }

    #[test]
    fn a_neighbour_is_known_when_it_has_answered() {
        let known = |state: u16| {
            let mut message = vec![0; NDMSG];
            message[0] = libc::AF_INET as u8;
            message[8..10].copy_from_slice(&state.to_ne_bytes());
            push_attribute(&mut message, libc::NDA_DST, &[10, 9, 0, 1]);
            let neighbour = neighbour(&message).unwrap();
            assert_eq!(neighbour.ip.to_string(), "10.9.0.1");
            neighbour.is_known()
        };
        let answered = [libc::NUD_REACHABLE, libc::NUD_STALE, libc::NUD_PERMANENT, libc::NUD_NOARP];
        assert!(answered.into_iter().all(known));
        assert!(![libc::NUD_NONE, libc::NUD_INCOMPLETE, libc::NUD_FAILED].into_iter().any(known));
        assert_eq!(neighbour(&[]), None);
    }

    fn decoded(kind: u16, flags: i32, body: &[u8]) -> Result<Option<Event>, Malformed> {
        let message = request(kind, flags as u16, 0, body);
        event(&NetlinkBuffer::new(&message[..]))
    }

    /// What describes link 2, which is called eth0 and is of this kind.
    fn described(kind: &str, more: &[(u16, &[u8])]) -> Vec<u8> {
        let mut info = Vec::new();
        push_attribute(&mut info, libc::IFLA_INFO_KIND, kind.as_bytes());
        let mtu = 1500_u32.to_ne_bytes();
        let known: [(u16, &[u8]); 3] =
            [(libc::IFLA_IFNAME, b"eth0\0"), (libc::IFLA_MTU, &mtu), (libc::IFLA_LINKINFO, &info)];
        about_link(libc::AF_UNSPEC, &[&known, more].concat())
    }

    #[test]
    fn the_other_end_of_a_pair_is_not_a_link_below() {
        let (three, nsid) = (3_u32.to_ne_bytes(), 0_u32.to_ne_bytes());
        let below = |kind: &str, more: &[(u16, &[u8])]| {
            let link = link(&described(kind, more)).unwrap();
            (link.parent, link.parent_elsewhere)
        };
        let here: [(u16, &[u8]); 1] = [(libc::IFLA_LINK, &three)];
        let elsewhere: [(u16, &[u8]); 2] = [(libc::IFLA_LINK, &three), (libc::IFLA_LINK_NETNSID, &nsid)];
        assert_eq!((below("vlan", &here), below("vlan", &elsewhere)), ((Some(3), false), (None, true)));
        for kind in ["veth", "netkit", "vxcan"] {
            assert_eq!((below(kind, &here), below(kind, &elsewhere)), ((None, false), (None, false)));
        }
    }

    #[test]
    fn only_messages_that_describe_a_link_are_about_one() {
        let new = |body: &[u8]| decoded(libc::RTM_NEWLINK, 0, body);
        assert!(matches!(new(&described("veth", &[])), Ok(Some(Event::Link(link))) if link.admin_up));
        let mtu = 1500_u32.to_ne_bytes();
        let name: (u16, &[u8]) = (libc::IFLA_IFNAME, b"eth0\0");
        let of_port = about_link(libc::AF_BRIDGE, &[name, (libc::IFLA_MTU, &mtu)]);
        assert_eq!(new(&of_port), Ok(None));
        assert_eq!(decoded(libc::RTM_DELLINK, 0, &of_port), Ok(None), "it has left the bridge only");
        assert_eq!(new(&about_link(libc::AF_UNSPEC, &[name, (libc::IFLA_WIRELESS, b"scan")])), Ok(None));
        assert_eq!(new(&about_link(libc::AF_UNSPEC, &[name])), Err(Malformed));
        assert_eq!(new(&[0; 3]), Err(Malformed));
        for (more, moved) in [(vec![], false), (vec![(libc::IFLA_NEW_NETNSID, &mtu[..])], true)] {
            let gone = decoded(libc::RTM_DELLINK, 0, &described("veth", &more));
            assert_eq!(gone, Ok(Some(Event::LinkGone { index: 2, moved })));
        }
    }

    #[test]
    fn a_route_is_one_more_unless_it_takes_the_place_of_another_or_has_several_links() {
        let new = |flags, body: &[u8]| decoded(libc::RTM_NEWROUTE, flags, body).unwrap();
        let to: IpNet = "10.9.0.0/16".parse().unwrap();
        let body = through("10.9.0.0/16", libc::RTPROT_STATIC, 7);
        assert!(matches!(new(libc::NLM_F_CREATE, &body), Some(Event::Route(route)) if route.links == [7]));
        for flags in [libc::NLM_F_REPLACE, libc::NLM_F_APPEND] {
            assert_eq!(new(flags, &body), Some(Event::RoutesTo(to)));
        }
        let mut of_group = body.clone();
        push_attribute(&mut of_group, RTA_NH_ID, &[7, 0, 0, 0]);
        assert_eq!(new(0, &of_group), Some(Event::RoutesTo(to)));
        let of_kernel = through("10.9.0.0/16", libc::RTPROT_KERNEL, 7);
        assert_eq!(new(0, &of_kernel), None);
        assert_eq!(
            new(libc::NLM_F_REPLACE, &of_kernel),
            Some(Event::RoutesTo(to)),
            "the node's route is gone"
        );
        // The kernel says of a route that is deleted what became of it.
        let mut dead = body.clone();
        dead[8] = 1;
        assert!(matches!(decoded(libc::RTM_DELROUTE, 0, &dead),
            Ok(Some(Event::RouteGone(gone))) if Some(&gone) == route(&body).as_ref()));
    }

    #[test]
    fn routes_count_unless_every_link_with_an_address_has_them() {
        let found = |to: &str, protocol| {
            let found = route(&through(to, protocol, 7)).into_iter();
            found.map(|route| (route.to.to_string(), route.links)).collect::<Vec<_>>()
        };
        for to in ["0.0.0.0/0", "::/0", "10.99.0.0/16", "10.1.1.1/32", "2001:db8::/48"] {
            assert_eq!(found(to, libc::RTPROT_STATIC), [(to.to_owned(), vec![7])]);
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
            for message in messages(&bytes) {
                let _ = event(&message);
            }
            for kind in [libc::RTM_NEWLINK, libc::RTM_DELLINK, libc::RTM_NEWADDR, libc::RTM_NEWROUTE] {
                let message = request(kind, 0, 0, &bytes);
                let _ = event(&NetlinkBuffer::new(&message[..]));
            }
            link(&bytes);
            address(&bytes);
            unicast_address(&bytes);
            // A default route, in the fields that make one.
            let mut default = bytes;
            if let Some(family) = default.get_mut(0) { *family = libc::AF_INET as u8; }
            if let Some(prefix_length) = default.get_mut(1) { *prefix_length = 0; }
            if let Some(kind) = default.get_mut(7) { *kind = libc::RTN_UNICAST; }
            route(&default);
        }
    }
}
