//! Messages about links.

use nix::libc;

use crate::rtnl::Body;

// linux/if_link.h, as far as the libc crate lacks them.
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;

/// sizeof(struct ifinfomsg): attributes begin here.
pub const IFINFOMSG: usize = 16;

/// Describes the link of this name.
pub fn by_name(name: &str) -> Body {
    ifinfomsg(0, 0).with_name(libc::IFLA_IFNAME, name)
}

/// Describes the link of this index.
pub fn by_index(index: u32) -> Body {
    ifinfomsg(index, 0)
}

/// Sets a link up.
pub fn up(index: u32) -> Body {
    ifinfomsg(index, libc::IFF_UP as u32)
}

/// Sets a link to get no IPv6 address of its own. A kernel without IPv6 answers EAFNOSUPPORT or EINVAL.
pub fn no_ipv6_address(index: u32) -> Body {
    let mode = Body::default().with(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
    let families = Body::default().with_nested(libc::AF_INET6 as u16, mode);
    by_index(index).with_nested(libc::IFLA_AF_SPEC, families)
}

/// struct ifinfomsg: family, device type, index, flags, change mask. `flags` are set, and no others changed.
fn ifinfomsg(index: u32, flags: u32) -> Body {
    let mut message = [0; IFINFOMSG];
    message[4..8].copy_from_slice(&index.to_ne_bytes());
    message[8..12].copy_from_slice(&flags.to_ne_bytes());
    message[12..].copy_from_slice(&flags.to_ne_bytes());
    Body::new(&message)
}
