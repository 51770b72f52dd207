//! Links of the calling thread's network namespace: what the kernel says of them, and the plugin's messages.

use std::fs::File;

use netclaim_plugin::rtnl::{Body, Rtnl, attribute, errno, text, u32_at};
use netclaim_plugin::{Failure, link};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc::{self, RTM_DELLINK, RTM_GETADDR, RTM_GETLINK, RTM_NEWLINK, RTM_SETLINK};

use crate::alias::Alias;

const THREAD_NETNS: &str = "/proc/thread-self/ns/net";
/// Group of a link that has no alias yet: the kernel takes a group, and no alias, with the message that makes
/// a link. A process that finds a link in it under the lock knows that its maker was killed.
const UNFINISHED: u32 = u32::from_be_bytes(*b"nclk");
// linux/if_link.h and linux/rtnetlink.h, as far as the libc crate lacks them.
const IFLA_VLAN_ID: u16 = 1;
const RTEXT_FILTER_SKIP_STATS: u32 = 8;
/// sizeof(struct ifaddrmsg).
const IFADDRMSG: usize = 8;

/// A link.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) alias: Alias,
    /// `bridge`, `vlan` and the like; empty for hardware.
    pub(crate) kind: String,
    /// Index of the bridge, bond or VRF that it is in.
    pub(crate) master: Option<u32>,
    /// Index of the link that it is made on.
    pub(crate) parent: Option<u32>,
    pub(crate) vlan: Option<u16>,
    pub(crate) is_up: bool,
    pub(crate) mtu: u32,
    pub(crate) mac: Vec<u8>,
    group: u32,
}

impl Link {
    fn decode(message: &[u8]) -> Option<Self> {
        let attributes = message.get(link::IFINFOMSG..)?;
        let number = |kind| attribute(attributes, kind).and_then(|value| u32_at(value, 0));
        let string = |kind| attribute(attributes, kind).map(text).unwrap_or_default();
        let info = attribute(attributes, libc::IFLA_LINKINFO).unwrap_or_default();
        let vlan = attribute(info, libc::IFLA_INFO_DATA).and_then(|data| attribute(data, IFLA_VLAN_ID));
        let kind = attribute(info, libc::IFLA_INFO_KIND).map(text).unwrap_or_default();
        Some(Self {
            index: u32_at(message, 4)?,
            name: string(libc::IFLA_IFNAME),
            alias: Alias::parse(&string(libc::IFLA_IFALIAS)),
            // Other kinds have other attributes of this number.
            vlan: vlan
                .filter(|_| kind == "vlan")
                .and_then(|id| id.first_chunk())
                .map(|id| u16::from_ne_bytes(*id)),
            kind,
            master: number(libc::IFLA_MASTER),
            parent: number(libc::IFLA_LINK),
            is_up: u32_at(message, 8)? & libc::IFF_UP as u32 != 0,
            mtu: number(libc::IFLA_MTU)?,
            mac: attribute(attributes, libc::IFLA_ADDRESS).unwrap_or_default().to_vec(),
            group: number(libc::IFLA_GROUP).unwrap_or_default(),
        })
    }

    /// Whether the plugin was killed before the link had its alias.
    fn is_unfinished(&self) -> bool {
        self.group == UNFINISHED
            && self.alias == Alias::default()
            && matches!(self.kind.as_str(), "vlan" | "bridge")
    }
}

/// The links that the plugin makes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum New {
    Bridge,
    Vlan { parent: u32, id: u16 },
}

impl New {
    /// The message that makes a link of this name.
    fn message(self, name: &str) -> Body {
        let body = link::by_name(name).with(libc::IFLA_GROUP, &UNFINISHED.to_ne_bytes());
        let kind = |kind| Body::default().with_name(libc::IFLA_INFO_KIND, kind);
        match self {
            Self::Bridge => body.with_nested(libc::IFLA_LINKINFO, kind("bridge")),
            Self::Vlan { parent, id } => {
                let data = Body::default().with(IFLA_VLAN_ID, &id.to_ne_bytes());
                let info = kind("vlan").with_nested(libc::IFLA_INFO_DATA, data);
                body.with(libc::IFLA_LINK, &parent.to_ne_bytes()).with_nested(libc::IFLA_LINKINFO, info)
            }
        }
    }
}

/// The links of a network namespace, which no other call of the plugin changes meanwhile.
#[derive(Debug)]
pub(crate) struct Kernel {
    rtnl: Rtnl,
    /// On the namespace itself: it needs no file, and ends with the process.
    _lock: Flock<File>,
}

impl Kernel {
    /// Waits until no other call works in the namespace, and removes what a killed one left unfinished.
    pub(crate) fn lock() -> Result<Self, Failure> {
        let failed = |source| Failure::Namespace { path: THREAD_NETNS.to_owned(), source };
        let netns = File::open(THREAD_NETNS).map_err(failed)?;
        let lock = Flock::lock(netns, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))?;
        let mut kernel = Self { rtnl: Rtnl::open().map_err(failed)?, _lock: lock };
        for link in kernel.links()?.iter().filter(|link| link.is_unfinished()) {
            kernel.delete(link)?;
        }
        Ok(kernel)
    }

    pub(crate) fn links(&mut self) -> Result<Vec<Link>, Failure> {
        let filter = RTEXT_FILTER_SKIP_STATS.to_ne_bytes();
        let all = link::by_index(0).with(libc::IFLA_EXT_MASK, &filter);
        let found = self.rtnl.ask(RTM_GETLINK, NLM_F_DUMP, &all);
        let found = found.map_err(|source| Failure::kernel("links", "list them", None, source))?;
        Ok(found.iter().filter_map(|message| Link::decode(message)).collect())
    }

    /// Whether a link has an address that the kernel did not give it by itself (IPv6, of the link only).
    pub(crate) fn has_address(&mut self, link: &Link) -> Result<bool, Failure> {
        let found = self.rtnl.ask(RTM_GETADDR, NLM_F_DUMP, &Body::new(&[0; IFADDRMSG]));
        let found =
            found.map_err(|source| Failure::kernel(&link.name, "read its addresses", None, source))?;
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        let is_own = |address: &Vec<u8>| {
            let by_itself = address.first() == Some(&(libc::AF_INET6 as u8))
                && address.get(3) == Some(&libc::RT_SCOPE_LINK);
            !by_itself && u32_at(address, 4) == Some(link.index)
        };
        Ok(found.iter().any(is_own))
    }

    /// Makes a link, gives it its alias and sets it up.
    pub(crate) fn make(&mut self, new: New, name: &str, alias: &Alias) -> Result<u32, Failure> {
        let alias = alias.to_bytes("name")?;
        let (action, module) = match new {
            New::Bridge => ("make the bridge", "bridge"),
            New::Vlan { .. } => ("make the VLAN link", "8021q"),
        };
        let request = (RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
        self.ask(name, (action, Some(module)), request, &new.message(name), &[])?;
        let Some(made) = self.links()?.into_iter().find(|link| link.name == name) else {
            let gone = std::io::Error::other("it is gone");
            return Err(Failure::kernel(name, action, None, gone));
        };
        let index = made.index;
        let owned = link::by_index(index).with(libc::IFLA_GROUP, &[0; 4]).with(libc::IFLA_IFALIAS, &alias);
        self.set(name, "give it its alias", &owned, &[])?;
        // The node is not to be reached by a network that is its pods'.
        let none = [Errno::EAFNOSUPPORT, Errno::EINVAL];
        self.set(name, "keep it without IPv6 address", &link::no_ipv6_address(index), &none)?;
        // Fails without IPv6, and where /proc/sys is read-only.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"), "0");
        self.set(name, "set it up", &link::up(index), &[])?;
        Ok(index)
    }

    /// Makes a link a port of a bridge, with this alias.
    pub(crate) fn enslave(&mut self, port: &Link, bridge: u32, alias: &Alias) -> Result<(), Failure> {
        // The kernel sets the alias first: no port of ours is without.
        let body = link::by_index(port.index)
            .with(libc::IFLA_IFALIAS, &alias.to_bytes("master")?)
            .with(libc::IFLA_MASTER, &bridge.to_ne_bytes());
        self.set(&port.name, "make it a port of the bridge", &body, &[])
    }

    /// Releases a port from its bridge, if `is_in` says that it still is in it, and gives it its alias back.
    pub(crate) fn release(&mut self, port: &Link, is_in: bool) -> Result<(), Failure> {
        const ACTION: &str = "release it from the bridge";
        if is_in {
            let free = link::by_index(port.index).with(libc::IFLA_MASTER, &[0; 4]);
            self.set(&port.name, ACTION, &free, &[Errno::ENODEV])?;
        }
        let alias = Alias { port: None, ..port.alias.clone() }.to_bytes("master")?;
        let body = link::by_index(port.index).with(libc::IFLA_IFALIAS, &alias);
        self.set(&port.name, ACTION, &body, &[Errno::ENODEV])
    }

    /// Sets the MTU; a bridge no longer follows its ports then.
    pub(crate) fn set_mtu(&mut self, link: &Link, mtu: u32) -> Result<(), Failure> {
        let body = link::by_index(link.index).with(libc::IFLA_MTU, &mtu.to_ne_bytes());
        self.set(&link.name, "set its MTU", &body, &[])
    }

    pub(crate) fn delete(&mut self, link: &Link) -> Result<(), Failure> {
        let body = link::by_index(link.index);
        self.ask(&link.name, ("remove it", None), (RTM_DELLINK, 0), &body, &[Errno::ENODEV])
    }

    fn set(
        &mut self,
        name: &str,
        action: &'static str,
        body: &Body,
        accepted: &[Errno],
    ) -> Result<(), Failure> {
        self.ask(name, (action, None), (RTM_SETLINK, 0), body, accepted)
    }

    /// Sends a request that changes something. `action` and the kernel's module are for the error.
    fn ask(
        &mut self,
        name: &str,
        (action, module): (&'static str, Option<&'static str>),
        (kind, flags): (u16, u16),
        body: &Body,
        accepted: &[Errno],
    ) -> Result<(), Failure> {
        #[cfg(test)]
        crate::tests::spend()?;
        match self.rtnl.ask(kind, flags, body) {
            Ok(_) => Ok(()),
            Err(error) if errno(&error).is_some_and(|errno| accepted.contains(&errno)) => Ok(()),
            Err(error) => Err(Failure::kernel(name, action, module, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_is_asked_for_with_its_link_its_id_and_the_mark_of_what_is_unfinished() {
        let body = New::Vlan { parent: 7, id: 100 }.message("eth1.100");
        let mut expected = vec![0; 16]; // struct ifinfomsg
        let attributes: [&[u8]; 6] = [
            b"\x0d\0\x03\0eth1.100\0\0\0\0",         // IFLA_IFNAME
            b"\x08\0\x1b\0klcn",                     // IFLA_GROUP
            b"\x08\0\x05\0\x07\0\0\0",               // IFLA_LINK
            b"\x1c\0\x12\0\x09\0\x01\0vlan\0\0\0\0", // IFLA_LINKINFO: IFLA_INFO_KIND
            b"\x0c\0\x02\0",                         // IFLA_INFO_DATA
            b"\x06\0\x01\0\x64\0\0\0",               // IFLA_VLAN_ID
        ];
        expected.extend(attributes.concat());
        if cfg!(target_endian = "little") {
            assert_eq!(body.as_bytes(), expected);
        }
    }

    #[test]
    fn a_vlan_is_told_with_its_link_and_id() {
        let message =
            New::Vlan { parent: 7, id: 4094 }.message("v").with(libc::IFLA_MTU, &1500_u32.to_ne_bytes());
        let message = message.with(libc::IFLA_IFALIAS, b"netclaim-made net c1 v\0");
        let link = Link::decode(message.as_bytes()).expect("decodes");
        assert_eq!((link.name.as_str(), link.parent, link.vlan), ("v", Some(7), Some(4094)));
        assert!(link.alias.made.is_some() && !link.is_unfinished());
    }
}
