//! IP addresses of links.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use nix::libc;
use serde::{Deserialize, Serialize};

/// An IP address of a link, as far as it says what the link is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkAddress {
    /// The address.
    pub ip: IpAddr,
    /// Valid beyond the link: of universal or site scope, and not link-local.
    pub global: bool,
}

impl From<&Address> for LinkAddress {
    fn from(address: &Address) -> Self {
        let ip = address.local.addr();
        Self { ip, global: address.scope < libc::RT_SCOPE_LINK && !is_link_local(ip) }
    }
}

/// Whether an address is valid on its link only, regardless of its scope.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// An IP address of a link with its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The address with its prefix length.
    pub local: IpNet,
    /// The peer's address, if the prefix is the peer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// Broadcast address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<Ipv4Addr>,
    /// Label of an IPv4 address, usually the link's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `IFA_F_*`.
    pub flags: u32,
    /// Metric of the route that the kernel makes for the prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
}

impl Address {
    /// The flags that can be configured. The kernel sets the others.
    const CONFIGURED: u32 = libc::IFA_F_NODAD
        | libc::IFA_F_HOMEADDRESS
        | libc::IFA_F_MANAGETEMPADDR
        | libc::IFA_F_NOPREFIXROUTE
        | libc::IFA_F_MCAUTOJOIN;

    /// The flags to add the address with.
    pub(super) fn configured_flags(&self) -> u32 {
        self.flags & Self::CONFIGURED
    }

    /// Whether the address is static, not set by DHCP, a router advertisement, or the kernel itself.
    pub(super) fn is_static(&self) -> bool {
        self.flags & libc::IFA_F_PERMANENT != 0 && self.flags & libc::IFA_F_STABLE_PRIVACY == 0
    }

    /// Whether the kernel would refuse one of the two on a link that has the other.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.local, self.peer) == (other.local, other.peer)
    }
}
