//! Sockets for whole frames on one link.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::sockopt::{RcvBuf, ReceiveTimeout};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send, setsockopt,
    socket,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::{setsockopt_impl, sockopt_impl};
use socket2::{SockFilter, SockRef};

/// A hardware address.
pub(super) type Mac = [u8; 6];

/// What is received is shorter, or matters only at its beginning. What is longer is cut.
const FRAME: usize = 512;

sockopt_impl!(
    /// What the link receives while the socket is open. The kernel reads the type that is declared here.
    Membership,
    SetOnly,
    libc::SOL_PACKET,
    libc::PACKET_ADD_MEMBERSHIP,
    libc::packet_mreq
);

/// A packet socket for what passes through one link of the network namespace in which it was opened
/// (`CAP_NET_RAW`).
#[derive(Debug)]
pub(super) struct LinkSocket {
    socket: OwnedFd,
    index: usize,
}

impl LinkSocket {
    /// Opens a socket on the link of this address.
    pub(super) fn open(address: &LinkAddr) -> io::Result<Self> {
        let all = SockProtocol::EthAll;
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, all)?;
        // The address says no protocol, and the socket keeps its own.
        bind(socket.as_raw_fd(), address)?;
        Ok(Self { socket, index: address.ifindex() })
    }

    /// Has so many bytes of frames wait until they are received.
    pub(super) fn keep(&self, bytes: usize) -> io::Result<()> {
        Ok(setsockopt(&self.socket, RcvBuf, &bytes)?)
    }

    /// Whether the link is there by this name: a name may become another link's.
    pub(super) fn is_on(&self, name: &str) -> bool {
        if_nametoindex(name).is_ok_and(|index| usize::try_from(index) == Ok(self.index))
    }

    /// Receives a frame of the link before `until`, as far as the buffer has room.
    pub(super) fn receive<'a>(&self, buffer: &'a mut [u8], until: Instant) -> io::Result<Option<&'a [u8]>> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            setsockopt(&self.socket, ReceiveTimeout, &timeout(left))?;
            match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), buffer) {
                // Before it was bound, the socket got those of all links.
                Ok((length, Some(from))) if from.ifindex() == self.index => return Ok(buffer.get(..length)),
                Ok(_) | Err(Errno::EINTR | Errno::EAGAIN | Errno::ENETDOWN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Returns the address and the flags of a link; `None` if there is none.
pub(super) fn address_of(name: &str) -> io::Result<Option<(LinkAddr, InterfaceFlags)>> {
    let mut links = getifaddrs()?.filter(|link| link.interface_name == name);
    Ok(links.find_map(|link| Some((*link.address?.as_link_addr()?, link.flags))))
}

/// A packet socket on an Ethernet link.
#[derive(Debug)]
pub(super) struct Packets {
    link: LinkSocket,
    /// Hardware address of the link.
    pub(super) own: Mac,
}

impl Packets {
    /// Opens a socket on a link; `None` where neighbours are not asked for addresses: links that are not of
    /// Ethernet, and those without ARP, such as `ipvlan` in mode `l3`.
    pub(super) fn open(name: &str) -> io::Result<Option<Self>> {
        let Some((address, flags)) = address_of(name)? else { return Ok(None) };
        let without_neighbours = InterfaceFlags::IFF_NOARP | InterfaceFlags::IFF_LOOPBACK;
        let own = address.addr().filter(|_| address.hatype() == libc::ARPHRD_ETHER && address.halen() == 6);
        let Some(own) = own.filter(|_| !flags.intersects(without_neighbours)) else { return Ok(None) };
        Ok(Some(Self { link: LinkSocket::open(&address)?, own }))
    }

    /// Has the kernel pass on what this filter (classic BPF) accepts, in the length that it returns.
    pub(super) fn filter(&self, filter: &[SockFilter]) -> io::Result<()> {
        SockRef::from(&self.link.socket).attach_filter(filter)
    }

    /// Has the link receive all frames while the socket is open, whatever becomes of this process: also those
    /// to other hardware addresses, and of VLANs that no link of the node has, which cards drop otherwise.
    pub(super) fn hear_all(&self) -> io::Result<()> {
        let all = libc::packet_mreq {
            mr_ifindex: i32::try_from(self.link.index).map_err(io::Error::other)?,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        Ok(setsockopt(&self.link.socket, Membership, &all)?)
    }

    /// Sends a frame. It is lost where a link that is down would lose it, and where the card does not send
    /// what is waiting.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        match send(self.link.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
            Ok(_) | Err(Errno::ENETDOWN | Errno::ENOBUFS | Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Receives a frame of the link before `until`.
    pub(super) fn receive(&self, until: Instant) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; FRAME];
        Ok(self.link.receive(&mut buffer, until)?.map(<[u8]>::to_vec))
    }
}

/// Returns how a hardware address is written.
pub(super) fn written(mac: Mac) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

/// Returns a timeout that is not 0, which would be none.
fn timeout(left: Duration) -> TimeVal {
    TimeVal::microseconds(i64::try_from(left.as_micros()).unwrap_or(i64::MAX).max(1000))
}
