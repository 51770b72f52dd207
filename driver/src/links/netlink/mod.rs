//! The rtnetlink conversation: links, addresses, routes and link kinds of the calling thread's network
//! namespace.
//!
//! * Everything here blocks, so it runs off the async workers: the kernel builds a dump inside `sendmsg` and
//!   `recvmsg`, and waits there for the rtnl lock, even if the socket is non-blocking.
//! * If the list changes during a dump, the dump may lack entries. The kernel then sets `NLM_F_DUMP_INTR` in
//!   any one message, even in the closing `NLMSG_DONE`. Such a dump is discarded and taken again.

mod decode;
mod message;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use nix::libc;

use super::address::Address;
use super::counters::Counters;
use super::error::Error;
use super::link::{Link, octets};

pub(super) use decode::{Event, Malformed, Neighbour, Route, event};
use decode::{IFADDRMSG, IFINFOMSG, NDMSG, RTMSG};
pub(super) use message::messages;
use message::{i32_at, push_attribute, u32_at};

/// How often an interrupted dump is taken before it fails.
const MAX_DUMPS: u32 = 5;

/// The kernel makes datagrams of at most 32 KiB unless one message needs more, and no message needs this
/// much.
pub(super) const DATAGRAM: usize = 64 * 1024;

/// A blocking rtnetlink socket.
#[derive(Debug)]
pub(super) struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Whether a dump is complete.
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
            // Otherwise the kernel ignores the filters of a dump.
            socket.set_netlink_get_strict_chk(true)?;
            Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(DATAGRAM) })
        };
        open().map_err(Error::Socket)
    }

    /// Reads all links, ordered by index, without the data of sysfs.
    pub(super) fn links(&mut self) -> Result<Vec<Link>, Error> {
        let mut body = vec![0; IFINFOMSG];
        push_attribute(&mut body, libc::IFLA_EXT_MASK, &libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let mut links = self
            .dump("links", libc::RTM_GETLINK, &body, |message, links| links.extend(decode::link(message)))?;
        links.sort_by_key(|link: &Link| link.index);
        Ok(links)
    }

    /// Reads what has passed through the link of this name; `None` if there is none.
    pub(super) fn counters(&mut self, name: &str) -> Result<Option<Counters>, Error> {
        let mut body = vec![0; IFINFOMSG];
        push_attribute(&mut body, libc::IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
        let mut counters = None;
        let read = self.exchange(libc::RTM_GETLINK, NLM_F_ACK, &body, |message| {
            counters = decode::counters(message);
        });
        match read {
            Ok(_) => Ok(counters),
            Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(None),
            Err(source) => Err(Error::Dump { what: "counters", source }),
        }
    }

    /// Reads the addresses of a link, IPv4 and IPv6.
    pub(super) fn addresses(&mut self, index: u32) -> Result<Vec<Address>, Error> {
        // struct ifaddrmsg: family, prefix length, flags, scope, link index.
        let mut body = [0; IFADDRMSG];
        body[4..].copy_from_slice(&index.to_ne_bytes());
        self.dump("addresses", libc::RTM_GETADDR, &body, |message, addresses| {
            // Not every kernel filters by the link.
            if u32_at(message, 4) == Some(index) {
                addresses.extend(decode::address(message));
            }
        })
    }

    /// Reads the IP addresses of all links, each with the index of its link.
    pub(super) fn all_addresses(&mut self) -> Result<Vec<(u32, Address)>, Error> {
        self.dump("addresses", libc::RTM_GETADDR, &[0; IFADDRMSG], |message, addresses| {
            addresses.extend(u32_at(message, 4).zip(decode::address(message)));
        })
    }

    /// Reads the hardware addresses that links receive frames for, by index: their own, and those of links
    /// that are stacked on them in any namespace.
    pub(super) fn unicast_addresses(&mut self) -> Result<BTreeMap<u32, BTreeSet<String>>, Error> {
        let mut body = [0; NDMSG];
        body[0] = libc::AF_BRIDGE as u8;
        let found = self.dump("hardware addresses", libc::RTM_GETNEIGH, &body, |message, found| {
            found.extend(decode::unicast_address(message));
        })?;
        let mut by_link: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
        for (link, address) in found {
            by_link.entry(link).or_default().insert(address);
        }
        Ok(by_link)
    }

    /// Whether the link has a permanent neighbour entry, IPv4 or IPv6.
    pub(super) fn has_permanent_neighbours(&mut self, index: u32) -> Result<bool, Error> {
        Ok(self.neighbours(index)?.iter().any(|neighbour| neighbour.state & libc::NUD_PERMANENT != 0))
    }

    /// Reads the neighbours of a link, IPv4 and IPv6.
    pub(super) fn neighbours(&mut self, index: u32) -> Result<Vec<Neighbour>, Error> {
        self.dump("neighbours", libc::RTM_GETNEIGH, &[0; NDMSG], |message, found| {
            if u32_at(message, 4) == Some(index) {
                found.extend(decode::neighbour(message));
            }
        })
    }

    /// Has the kernel ask for the hardware address of a neighbour, unless it knows it (`NTF_USE`).
    pub(super) fn ask_for_neighbour(&mut self, index: u32, ip: IpAddr) -> io::Result<()> {
        // struct ndmsg: family, index at 4, state at 8, flags at 10.
        let mut body = vec![0; NDMSG];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        body[10] = libc::NTF_USE;
        match ip {
            IpAddr::V4(ip) => {
                body[0] = libc::AF_INET as u8;
                push_attribute(&mut body, libc::NDA_DST, &ip.octets());
            }
            IpAddr::V6(ip) => {
                body[0] = libc::AF_INET6 as u8;
                push_attribute(&mut body, libc::NDA_DST, &ip.octets());
            }
        }
        self.exchange(libc::RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE, &body, |_| ()).map(drop)
    }

    /// Reads the routes of the node's own traffic, IPv4 and IPv6. Every table counts, because a node reaches
    /// other networks through its second card by policy routing.
    pub(super) fn routes(&mut self) -> Result<Vec<Route>, Error> {
        let mut routes = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut body = [0; RTMSG];
            body[0] = family as u8;
            body[7] = libc::RTN_UNICAST;
            let decode = |message: &[u8], routes: &mut Vec<Route>| routes.extend(decode::route(message));
            routes.extend(self.dump("routes", libc::RTM_GETROUTE, &body, decode)?);
        }
        if routes.iter().any(|route| route.links.is_empty()) {
            return Err(Error::HiddenNexthop);
        }
        Ok(routes)
    }

    /// Whether the kernel supports links of this kind. It loads a module if necessary.
    ///
    /// Requests a link with an impossible MTU. The kernel refuses an unknown kind with `EOPNOTSUPP`, and a
    /// known one for its MTU, before the kind's own code sees the request.
    pub(super) fn kernel_has(&mut self, kind: &str) -> Result<bool, Error> {
        let mut info = Vec::new();
        push_attribute(&mut info, libc::IFLA_INFO_KIND, kind.as_bytes());
        let mut body = vec![0; IFINFOMSG];
        push_attribute(&mut body, libc::IFLA_MTU, &u32::MAX.to_ne_bytes());
        push_attribute(&mut body, libc::IFLA_LINKINFO, &info);
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

    /// Gives a link a hardware address.
    pub(super) fn set_mac(&mut self, index: u32, mac: &str) -> io::Result<()> {
        // struct ifinfomsg: family, type, index, flags, mask of flags.
        let mut body = vec![0; IFINFOMSG];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        push_attribute(&mut body, libc::IFLA_ADDRESS, &octets(mac));
        self.exchange(libc::RTM_SETLINK, NLM_F_ACK, &body, |_| ()).map(drop)
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

    /// Sends one request and passes the body of each answer to `each`, until the kernel is done.
    fn exchange(
        &mut self,
        request: u16,
        flags: u16,
        body: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<Dump> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&message::request(request, flags | NLM_F_REQUEST, self.sequence, body), 0)?;
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
    /// Reads the next datagram. `Some` after the kernel is done.
    fn read(&mut self, datagram: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<Option<Dump>> {
        for message in messages(datagram).filter(|message| message.sequence_number() == self.sequence) {
            if message.flags() & NLM_F_DUMP_INTR != 0 {
                self.dump = Dump::Interrupted;
            }
            match i32::from(message.message_type()) {
                // Both start with an error number, negative or 0.
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

/// Replaces `buffer` by the next datagram.
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

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: u16 = libc::NLMSG_DONE as u16;
    const ERROR: u16 = libc::NLMSG_ERROR as u16;

    /// Reads an answer in these datagrams. Returns its end, and the number of its messages.
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
        message::request(libc::RTM_NEWLINK, flags, 7, &[0; IFINFOMSG])
    }

    #[test]
    fn an_answer_goes_on_until_the_kernel_is_done() {
        let two = [new_link(0), new_link(0)].concat();
        assert!(matches!(read(std::slice::from_ref(&two)), (Ok(None), 2)));
        let done = message::request(DONE, 0, 7, &0_i32.to_ne_bytes());
        assert!(matches!(read(&[two, new_link(0), done]), (Ok(Some(Dump::Whole)), 3)));
    }

    #[test]
    fn any_message_can_interrupt_a_dump() {
        let done = |flags| message::request(DONE, flags, 7, &0_i32.to_ne_bytes());
        for (first, second, end) in
            [(NLM_F_DUMP_INTR, 0, 0), (0, NLM_F_DUMP_INTR, 0), (0, 0, NLM_F_DUMP_INTR)]
        {
            let (dump, _) = read(&[new_link(first), [new_link(second), done(end)].concat()]);
            assert!(matches!(dump, Ok(Some(Dump::Interrupted))), "{first} {second} {end}");
        }
    }

    #[test]
    fn an_error_ends_the_answer_even_in_the_closing_message() {
        for kind in [DONE, ERROR] {
            let (dump, _) = read(&[new_link(0), message::request(kind, 0, 7, &(-libc::EPERM).to_ne_bytes())]);
            assert_eq!(dump.unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
    }

    #[test]
    fn the_answer_to_another_request_is_ignored() {
        let stray = message::request(DONE, NLM_F_DUMP_INTR, 6, &0_i32.to_ne_bytes());
        let done = message::request(DONE, 0, 7, &0_i32.to_ne_bytes());
        assert!(matches!(read(&[stray, done]), (Ok(Some(Dump::Whole)), 0)));
    }
}
