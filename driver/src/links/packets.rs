//! A socket for whole Ethernet frames on one link.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::sockopt::ReceiveTimeout;
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

/// A packet socket on an Ethernet link of the network namespace in which it was opened (`CAP_NET_RAW`).
#[derive(Debug)]
pub(super) struct Packets {
    socket: OwnedFd,
    index: usize,
    /// Hardware address of the link.
    pub(super) own: Mac,
}

impl Packets {
    /// Opens a socket on a link; `None` where neighbours are not asked for addresses: links that are not of
    /// Ethernet, and those without ARP, such as `ipvlan` in mode `l3`.
    pub(super) fn open(name: &str) -> io::Result<Option<Self>> {
        let mut links = getifaddrs()?.filter(|link| link.interface_name == name);
        let found = links.find_map(|link| Some((*link.address?.as_link_addr()?, link.flags)));
        let Some((address, flags)) = found else { return Ok(None) };
        let without_neighbours = InterfaceFlags::IFF_NOARP | InterfaceFlags::IFF_LOOPBACK;
        let own = address.addr().filter(|_| address.hatype() == libc::ARPHRD_ETHER && address.halen() == 6);
        let Some(own) = own.filter(|_| !flags.intersects(without_neighbours)) else { return Ok(None) };
        let all = SockProtocol::EthAll;
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, all)?;
        // The address says no protocol, and the socket keeps its own.
        bind(socket.as_raw_fd(), &address)?;
        Ok(Some(Self { socket, index: address.ifindex(), own }))
    }

    /// Has the kernel pass on what this filter (classic BPF) accepts, in the length that it returns.
    pub(super) fn filter(&self, filter: &[SockFilter]) -> io::Result<()> {
        SockRef::from(&self.socket).attach_filter(filter)
    }

    /// Has the link receive all frames while the socket is open, whatever becomes of this process: also those
    /// to other hardware addresses, and of VLANs that no link of the node has, which cards drop otherwise.
    pub(super) fn hear_all(&self) -> io::Result<()> {
        let all = libc::packet_mreq {
            mr_ifindex: i32::try_from(self.index).map_err(io::Error::other)?,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        Ok(setsockopt(&self.socket, Membership, &all)?)
    }

    /// Sends a frame. It is lost where a link that is down would lose it, and where the card does not send
    /// what is waiting.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        match send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
            Ok(_) | Err(Errno::ENETDOWN | Errno::ENOBUFS | Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Receives a frame of the link before `until`.
    pub(super) fn receive(&self, until: Instant) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; FRAME];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            setsockopt(&self.socket, ReceiveTimeout, &timeout(left))?;
            match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut buffer) {
                // Before it was bound, the socket got those of all links.
                Ok((length, Some(from))) if from.ifindex() == self.index => {
                    return Ok(Some(buffer.get(..length).unwrap_or_default().to_vec()));
                }
                Ok(_) | Err(Errno::EINTR | Errno::EAGAIN | Errno::ENETDOWN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
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
