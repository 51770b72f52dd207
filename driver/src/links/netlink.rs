//! The rtnetlink conversation: links, addresses, routes and link kinds of the calling thread's namespace.
//!
//! * Everything here blocks, and is meant to run off the async workers: the kernel builds a dump inside
//!   `sendmsg` and `recvmsg`, waiting there for the rtnl lock, whatever the socket's blocking mode.
//! * A dump during which the list changed may lack entries. The kernel says so by `NLM_F_DUMP_INTR` on any
//!   one message, the closing `NLMSG_DONE` included; such a dump is thrown away and taken again.
//! * Only the attributes we need are decoded, so that an attribute unknown to us cannot hide its link.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REQUEST, NetlinkBuffer,
    NlasIterator,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use nix::libc;

use super::uplinks::{LinkAddress, is_link_local};
use super::{Address, Error, Link};

/// How often an interrupted dump is taken before giving up.
const MAX_DUMPS: u32 = 5;

/// The kernel makes datagrams of at most 32 KiB, unless one message needs more; it never needs this much.
pub(super) const DATAGRAM: usize = 64 * 1024;

// linux/if_link.h and linux/rtnetlink.h, as far as the libc crate lacks them.
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_CARRIER: u16 = 33;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
const IFLA_PERM_ADDRESS: u16 = 54;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;
const IFLA_INFO_KIND: u16 = 1;
const IFA_RT_PRIORITY: u16 = 9;
const RTA_NH_ID: u16 = 30;
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

const NLMSG_HEADER: usize = 16;
const IFINFOMSG: usize = 16;
const IFADDRMSG: usize = 8;
const RTMSG: usize = 12;
const NDMSG: usize = 12;

/// A route of the node's own traffic, to this network, through one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) to: IpNet,
    /// `None` when the kernel hides it.
    link: Option<u32>,
}

/// A blocking rtnetlink socket.
#[derive(Debug)]
pub(super) struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Whether a dump can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dump {
    Whole,
    Interrupted,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub(super) fn open() -> Result<Self, Error> {
        let open = || {
            let mut socket = netlink_sys::Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            // Without it the kernel ignores the filters of a dump.
            socket.set_netlink_get_strict_chk(true)?;
            Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(DATAGRAM) })
        };
        open().map_err(Error::Socket)
    }

    /// All links, by index, without what sysfs knows.
    pub(super) fn links(&mut self) -> Result<Vec<Link>, Error> {
        let mut body = vec![0; IFINFOMSG];
        push_attribute(&mut body, IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let mut links =
            self.dump("links", libc::RTM_GETLINK, &body, |message, links| links.extend(parse_link(message)))?;
        links.sort_by_key(|link: &Link| link.index);
        Ok(links)
    }

    /// The addresses of a link, IPv4 and IPv6.
    pub(super) fn addresses(&mut self, index: u32) -> Result<Vec<Address>, Error> {
        // struct ifaddrmsg: family, prefix length, flags, scope, link index.
        let mut body = [0; IFADDRMSG];
        body[4..].copy_from_slice(&index.to_ne_bytes());
        self.dump("addresses", libc::RTM_GETADDR, &body, |message, addresses| {
            // Where a kernel does not filter by the link.
            if u32_at(message, 4) == Some(index) {
                addresses.extend(parse_address(message));
            }
        })
    }

    /// The IP addresses of all links, by index.
    pub(super) fn all_addresses(&mut self) -> Result<BTreeMap<u32, Vec<LinkAddress>>, Error> {
        let found = self.dump("addresses", libc::RTM_GETADDR, &[0; IFADDRMSG], |message, addresses| {
            let address = parse_address(message).map(|address| {
                let ip = address.local.addr();
                LinkAddress { ip, global: address.scope < libc::RT_SCOPE_LINK && !is_link_local(ip) }
            });
            addresses.extend(u32_at(message, 4).zip(address));
        })?;
        let mut by_link: BTreeMap<u32, Vec<LinkAddress>> = BTreeMap::new();
        for (link, address) in found {
            by_link.entry(link).or_default().push(address);
        }
        Ok(by_link)
    }

    /// The hardware addresses that links take frames for, by index: their own, and those of what is stacked on them in any
    /// namespace and has one of its own.
    pub(super) fn unicast_addresses(&mut self) -> Result<BTreeMap<u32, BTreeSet<String>>, Error> {
        let mut body = [0; NDMSG];
        body[0] = libc::AF_BRIDGE as u8;
        let found = self.dump("hardware addresses", libc::RTM_GETNEIGH, &body, |message, found| {
            found.extend(parse_unicast_address(message));
        })?;
        let mut by_link: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
        for (link, address) in found {
            by_link.entry(link).or_default().insert(address);
        }
        Ok(by_link)
    }

    /// The routes of the node's own traffic, IPv4 and IPv6, each with the index of its link: from every table, since
    /// policy routing is how a node reaches the world through its second card.
    pub(super) fn routes(&mut self) -> Result<Vec<(u32, IpNet)>, Error> {
        let mut routes = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut body = [0; RTMSG];
            body[0] = family as u8;
            body[7] = libc::RTN_UNICAST;
            for route in self.dump("routes", libc::RTM_GETROUTE, &body, parse_route)? {
                routes.push((route.link.ok_or(Error::HiddenNexthop)?, route.to));
            }
        }
        Ok(routes)
    }

    /// Whether the kernel can make links of this kind, loading a module if it has to.
    ///
    /// We ask for a link with an impossible MTU: an unknown kind is refused with `EOPNOTSUPP`, and a known
    /// one a moment later for its MTU, before the kind's own code sees the request.
    pub(super) fn kernel_has(&mut self, kind: &str) -> Result<bool, Error> {
        let mut info = Vec::new();
        push_attribute(&mut info, IFLA_INFO_KIND, kind.as_bytes());
        let mut body = vec![0; IFINFOMSG];
        push_attribute(&mut body, IFLA_MTU, &u32::MAX.to_ne_bytes());
        push_attribute(&mut body, IFLA_LINKINFO, &info);
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let refused = match self.exchange(libc::RTM_NEWLINK, flags, &body, |_| ()) {
            Err(error) => error,
            Ok(_) => io::Error::other("the kernel accepted a link with an MTU of 4294967295"),
        };
        match refused.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EOPNOTSUPP) => Ok(false),
            Some(Errno::EINVAL) => Ok(true),
            _ => Err(Error::Kind { kind: kind.to_owned(), source: refused }),
        }
    }

    fn dump<T>(
        &mut self,
        what: &'static str,
        request: u16,
        body: &[u8],
        parse: impl Fn(&[u8], &mut Vec<T>),
    ) -> Result<Vec<T>, Error> {
        for _ in 0..MAX_DUMPS {
            let mut found = Vec::new();
            match self.exchange(request, NLM_F_DUMP, body, |message| parse(message, &mut found)) {
                Ok(Dump::Whole) => return Ok(found),
                Ok(Dump::Interrupted) => {}
                Err(source) => return Err(Error::Dump { what, source }),
            }
        }
        Err(Error::Interrupted { what, tries: MAX_DUMPS })
    }

    /// Sends one request and gives the body of each answer to `each`, until the kernel is done.
    fn exchange(
        &mut self,
        request: u16,
        flags: u16,
        body: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<Dump> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&message(request, flags | NLM_F_REQUEST, self.sequence, body), 0)?;
        let mut answer = Answer { sequence: self.sequence, dump: Dump::Whole };
        loop {
            receive(&self.socket, &mut self.buffer)?;
            if let Some(dump) = answer.read(&self.buffer, &mut each)? {
                return Ok(dump);
            }
        }
    }
}

/// The answer to one request, over as many datagrams as it takes.
struct Answer {
    sequence: u32,
    dump: Dump,
}

impl Answer {
    /// Reads the next datagram; `Some` once the kernel is done.
    fn read(&mut self, datagram: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<Option<Dump>> {
        for message in messages(datagram).filter(|message| message.sequence_number() == self.sequence) {
            if message.flags() & NLM_F_DUMP_INTR != 0 {
                self.dump = Dump::Interrupted;
            }
            match i32::from(message.message_type()) {
                // Both open with an error number, negative or 0.
                libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                    return match i32_at(message.payload(), 0) {
                        Some(code) if code < 0 => Err(io::Error::from_raw_os_error(-code)),
                        _ => Ok(Some(self.dump)),
                    };
                }
                _ => each(message.payload()),
            }
        }
        Ok(None)
    }
}

/// Reads one datagram into `buffer`, in place of what was there.
pub(super) fn receive(socket: &netlink_sys::Socket, buffer: &mut Vec<u8>) -> io::Result<()> {
    loop {
        buffer.clear();
        buffer.reserve(DATAGRAM);
        return match socket.recv(buffer, libc::MSG_TRUNC) {
            Ok(length) if length > buffer.len() => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a netlink datagram of {length} bytes"),
            )),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
    }
}

/// The messages of a datagram, up to the first that is malformed.
pub(super) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(datagram).ok()?;
        let length = message.length() as usize;
        let (this, _) = datagram.split_at_checked(length)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkBuffer::new(this))
    })
}

/// Whether a multicast message can change a snapshot: any link or address, and the routes that are in one.
pub(super) fn is_change(message: &NetlinkBuffer<&[u8]>) -> bool {
    match message.message_type() {
        libc::RTM_NEWLINK | libc::RTM_DELLINK | libc::RTM_NEWADDR | libc::RTM_DELADDR => true,
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => destination(message.payload()).is_some(),
        _ => false,
    }
}

/// Where a route of the node's own traffic leads to: any unicast route but those that the kernel itself makes for the
/// subnets of addresses, and those to link-local or multicast addresses, which every link has.
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
    let is_every_links =
        length > 0 && (protocol == libc::RTPROT_KERNEL || is_link_local(to) || to.is_multicast());
    IpNet::new(to, length).ok().filter(|_| kind == libc::RTN_UNICAST && !is_every_links)
}

/// A link's index, and an address that it takes frames for itself; not what a bridge has learned behind it.
fn parse_unicast_address(message: &[u8]) -> Option<(u32, String)> {
    // struct ndmsg: index at 4, flags at 10.
    let (link, flags) = (u32_at(message, 4)?, *message.get(10)?);
    let address = attributes(message.get(NDMSG..)?).find(|(kind, _)| *kind == libc::NDA_LLADDR)?.1;
    let is_multicast = address.first()? & 1 == 1;
    (flags & libc::NTF_SELF != 0 && !is_multicast).then_some((link, hardware_address(address)?))
}

fn parse_link(message: &[u8]) -> Option<Link> {
    // struct ifinfomsg: family, device type, index, flags, change mask.
    let index = u32_at(message, 4)?;
    let flags = i32_at(message, 8)?;
    let mut link = Link {
        index,
        name: String::new(),
        alt_names: Vec::new(),
        alias: None,
        kind: None,
        mac: None,
        permanent_mac: None,
        mtu: 0,
        admin_up: flags & libc::IFF_UP != 0,
        oper: 0.into(),
        carrier: false,
        master: None,
        parent: None,
        peer_in_other_netns: false,
        loopback: flags & libc::IFF_LOOPBACK != 0,
        speed: None,
        driver: None,
        pci_bus_id: None,
        pcie_root: None,
        numa_node: None,
        physical_function: None,
        virtual_functions: 0,
        pci_id: None,
    };
    let (mut device, mut bus) = (None, None);
    for (kind, value) in attributes(message.get(IFINFOMSG..)?) {
        match kind {
            IFLA_PARENT_DEV_NAME => device = Some(text(value)),
            IFLA_PARENT_DEV_BUS_NAME => bus = Some(text(value)),
            IFLA_IFNAME => link.name = text(value),
            IFLA_ADDRESS => link.mac = hardware_address(value),
            IFLA_PERM_ADDRESS => link.permanent_mac = hardware_address(value),
            IFLA_IFALIAS => link.alias = Some(text(value)).filter(|alias| !alias.is_empty()),
            IFLA_MTU => link.mtu = u32_at(value, 0)?,
            IFLA_LINK => link.parent = u32_at(value, 0).filter(|parent| *parent != 0 && *parent != index),
            IFLA_MASTER => link.master = u32_at(value, 0).filter(|master| *master != 0),
            IFLA_OPERSTATE => link.oper = value.first().copied().unwrap_or_default().into(),
            IFLA_CARRIER => link.carrier = value.first() == Some(&1),
            IFLA_LINK_NETNSID => link.peer_in_other_netns = true,
            IFLA_LINKINFO => {
                link.kind =
                    attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND).map(|(_, kind)| text(kind));
            }
            IFLA_PROP_LIST => {
                let names = attributes(value).filter(|(kind, _)| *kind == IFLA_ALT_IFNAME);
                link.alt_names = names.map(|(_, name)| text(name)).collect();
            }
            _ => {}
        }
    }
    link.pci_bus_id = device.filter(|_| bus.as_deref() == Some("pci"));
    if link.peer_in_other_netns {
        // An index of that namespace, which may well be taken by some other link in ours.
        link.parent = None;
    }
    (!link.name.is_empty()).then_some(link)
}

/// `None` for families other than IPv4 and IPv6.
fn parse_address(message: &[u8]) -> Option<Address> {
    let ip = |value: &[u8]| match i32::from(*message.first()?) {
        libc::AF_INET => Some(IpAddr::from(Ipv4Addr::from(*value.first_chunk()?))),
        libc::AF_INET6 => Some(IpAddr::from(Ipv6Addr::from(*value.first_chunk()?))),
        _ => None,
    };
    // The flags of the header are the first eight of those in the attribute.
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
    // With a peer, IFA_ADDRESS is the peer's.
    let own = local.or(address)?;
    let local = IpNet::new(own, *message.get(1)?).ok()?;
    let peer = address.filter(|address| *address != own);
    Some(Address { local, peer, broadcast, label, scope, flags, metric })
}

fn parse_route(message: &[u8], routes: &mut Vec<Route>) {
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

/// The interface indices in a list of `struct rtnexthop` (u16 length, u8 flags, u8 weight, i32 index), each
/// followed by attributes.
fn multipath_links(mut hops: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let index = u32_at(hops, 4)?;
        let length = usize::from(u16::from_ne_bytes(*hops.first_chunk()?));
        hops = hops.get(length.max(8).next_multiple_of(4)..).unwrap_or_default();
        Some(index)
    })
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).filter_map(move |attribute| {
        // The value borrows from the iterator's item, so it is cut out of the whole slice again.
        let length = attribute.value_length();
        let kind = attribute.kind();
        let inner: &[u8] = attribute.into_inner();
        Some((kind, inner.get(4..4 + length)?))
    })
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0; NLMSG_HEADER];
    message.extend_from_slice(body);
    let length = message.len() as u32;
    let mut header = NetlinkBuffer::new(&mut message);
    header.set_length(length);
    header.set_message_type(kind);
    header.set_flags(flags);
    header.set_sequence_number(sequence);
    message
}

fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|four| u32::from_ne_bytes(*four))
}

fn i32_at(bytes: &[u8], offset: usize) -> Option<i32> {
    bytes.get(offset..)?.first_chunk().map(|four| i32::from_ne_bytes(*four))
}

/// A string that the kernel ends with a NUL. Names are any bytes to the kernel; ours are UTF-8.
fn text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

fn hardware_address(value: &[u8]) -> Option<String> {
    if value.iter().all(|b| *b == 0) {
        return None;
    }
    Some(value.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DONE: u16 = libc::NLMSG_DONE as u16;
    const ERROR: u16 = libc::NLMSG_ERROR as u16;

    /// What an answer in these datagrams comes to, and how many messages it gave.
    fn read(datagrams: &[Vec<u8>]) -> (io::Result<Option<Dump>>, usize) {
        let mut answer = Answer { sequence: 7, dump: Dump::Whole };
        let mut count = 0;
        for datagram in datagrams {
            match answer.read(datagram, |_| count += 1) {
                Ok(None) => {}
                end => return (end, count),
            }
        }
        (Ok(None), count)
    }

    fn new_link(flags: u16) -> Vec<u8> {
        message(libc::RTM_NEWLINK, flags, 7, &[0; IFINFOMSG])
    }

    #[test]
    fn an_answer_goes_on_until_the_kernel_is_done() {
        let two = [new_link(0), new_link(0)].concat();
        assert!(matches!(read(std::slice::from_ref(&two)), (Ok(None), 2)));
        let done = message(DONE, 0, 7, &0_i32.to_ne_bytes());
        assert!(matches!(read(&[two, new_link(0), done]), (Ok(Some(Dump::Whole)), 3)));
    }

    #[test]
    fn a_dump_is_interrupted_whichever_message_says_so() {
        let done = |flags| message(DONE, flags, 7, &0_i32.to_ne_bytes());
        for (first, second, end) in
            [(NLM_F_DUMP_INTR, 0, 0), (0, NLM_F_DUMP_INTR, 0), (0, 0, NLM_F_DUMP_INTR)]
        {
            let (dump, _) = read(&[new_link(first), [new_link(second), done(end)].concat()]);
            assert!(matches!(dump, Ok(Some(Dump::Interrupted))), "{first} {second} {end}");
        }
    }

    #[test]
    fn an_error_ends_the_answer_be_it_in_the_closing_message() {
        for kind in [DONE, ERROR] {
            let (dump, _) = read(&[new_link(0), message(kind, 0, 7, &(-libc::EPERM).to_ne_bytes())]);
            assert_eq!(dump.unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
    }

    #[test]
    fn an_answer_to_somebody_elses_question_is_not_ours() {
        let stray = message(DONE, NLM_F_DUMP_INTR, 6, &0_i32.to_ne_bytes());
        let done = message(DONE, 0, 7, &0_i32.to_ne_bytes());
        assert!(matches!(read(&[stray, done]), (Ok(Some(Dump::Whole)), 0)));
    }

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
            parse_route(&route(to, protocol, 7), &mut routes);
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
        // The kernel's own, too: what it takes from a router.
        assert_eq!(found("::/0", libc::RTPROT_KERNEL).len(), 1);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_go_on_for_ever(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut routes = Vec::new();
            for message in messages(&bytes) {
                is_change(&message);
            }
            parse_link(&bytes);
            parse_address(&bytes);
            // A default route, in the fields that make one.
            let mut route = bytes;
            if let Some(family) = route.get_mut(0) { *family = libc::AF_INET as u8; }
            if let Some(prefix_length) = route.get_mut(1) { *prefix_length = 0; }
            if let Some(kind) = route.get_mut(7) { *kind = libc::RTN_UNICAST; }
            parse_route(&route, &mut routes);
        }

        #[test]
        fn messages_cut_short_yield_the_whole_ones(cut in 0_usize..96) {
            let datagram = [new_link(0), new_link(0), new_link(0)].concat();
            prop_assert_eq!(messages(&datagram[..cut]).count(), cut / 32);
        }
    }
}
