//! How interfaces of a pod behave on the wire: what they tell their neighbours, and what they believe.
//!
//! The kernel gives a link the defaults of the network namespace when it is made there or moved there, and so
//! before it can be up. For all interfaces that plugins make, they are:
//!
//! | sysctl | value | effect |
//! |---|---|---|
//! | `ipv4/arp_notify` | 1, or 0 | addresses are announced (gratuitous ARP, RFC 5227) when the interface comes up |
//! | `ipv6/ndisc_notify` | 1, or 0 | so are IPv6 ones (RFC 4861, section 7.2.6), when no other host has them |
//! | `ipv6/accept_ra` | 0, or 1 | addresses and routes of router advertisements are ignored, or taken |
//!
//! They are not announced where they are [probed](super::probe) first.
//!
//! Plugins may set an interface up before it has its addresses, and a switch may not forward yet when it
//! comes up. So addresses are announced again after the ADD.

use std::net::IpAddr;
use std::{fs, io};

use nix::errno::Errno;

use super::error::Error;
use super::netlink::{Neighbour, Socket};

/// Sets what links have that come to the calling thread's network namespace. Without IPv6 there is less to
/// set.
pub(super) fn set_defaults(accept_ra: bool, announces: bool) -> Result<(), Error> {
    let value = |is_on| if is_on { "1" } else { "0" };
    for (name, value) in [
        ("ipv4/arp_notify", value(announces)),
        ("ipv6/ndisc_notify", value(announces)),
        ("ipv6/accept_ra", value(accept_ra)),
    ] {
        let (family, sysctl) = name.split_once('/').unwrap_or_default();
        match fs::write(format!("/proc/sys/net/{family}/conf/default/{sysctl}"), value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => written.map_err(|source| Error::Default { name, value, source })?,
        }
    }
    Ok(())
}

/// Has the kernel announce all addresses of a link of the calling thread's network namespace. It does so when
/// the link gets a hardware address, also if that is the one that it has (since Linux 6.5 without its
/// driver).
///
/// Three are left alone. They have announced their addresses when they came up, if they had them by then:
/// * links without a hardware address, or whose driver takes none now (`ipvlan`, some NICs that are up);
/// * a `vlan`, which follows the address of the link below only until it is given one;
/// * links with permanent neighbours, which the kernel would forget.
pub(super) fn announce(name: &str) -> Result<(), Error> {
    let mut socket = Socket::open()?;
    let Some(link) = socket.links()?.into_iter().find(|link| link.name == name && !link.loopback) else {
        return Ok(());
    };
    let Some(mac) = link.mac.filter(|_| link.kind.as_deref() != Some("vlan")) else { return Ok(()) };
    if socket.has_permanent_neighbours(link.index)? {
        return Ok(());
    }
    let refused = [Errno::EOPNOTSUPP, Errno::EBUSY].map(|errno| Some(errno as i32));
    match socket.set_mac(link.index, &mac) {
        Err(source) if !refused.contains(&source.raw_os_error()) => {
            Err(Error::Announce { link: link.name, source })
        }
        _ => Ok(()),
    }
}

/// Returns those of the neighbours of a link of the calling thread's network namespace whose hardware address
/// is not known, and has the kernel ask for them.
pub(super) fn unknown(name: &str, ips: &[IpAddr]) -> Result<Vec<IpAddr>, Error> {
    let mut socket = Socket::open()?;
    let Some(link) = socket.links()?.into_iter().find(|link| link.name == name) else {
        return Ok(ips.to_vec());
    };
    let known = socket.neighbours(link.index)?;
    let is_known =
        |ip: &IpAddr| known.iter().any(|neighbour: &Neighbour| neighbour.ip == *ip && neighbour.is_known());
    let unknown: Vec<IpAddr> = ips.iter().copied().filter(|ip| !is_known(ip)).collect();
    for ip in &unknown {
        let asked = socket.ask_for_neighbour(link.index, *ip);
        asked.map_err(|source| Error::Neighbour { link: link.name.clone(), ip: *ip, source })?;
    }
    Ok(unknown)
}
