//! Names of devices and pools. They are API: claims, policies and people use them.
//!
//! | device | what it is | shared |
//! |---|---|---|
//! | `nic-LINK` | the whole link, moved into one pod | no |
//! | `macvlan-LINK`, `ipvlan-LINK` | a child of the link in each pod | yes |
//! | `net-NETWORK` | a [`ClaimNetwork`](crate::network::ClaimNetwork) | yes, unless its plugin takes the whole link |
//!
//! If a link's name is not a DNS label (`eth0.100`, `ETH1`), `-` replaces every other character, and eight
//! hex digits of the name's SHA-256 follow. Two links therefore never share a device name.

use std::fmt;
use std::str::FromStr;

use netclaim_cni::hex;
use netclaim_kubernetes::names::is_dns_label;
use sha2::{Digest, Sha256};

use crate::network::Scope;
use crate::{IfName, Invalid, LinkUse, NetworkName};

/// The name of a device in netclaim's pools.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceName {
    /// One use of a link, with the link's [label](link_label). The link's name cannot always be read from the
    /// label.
    Link(LinkUse, String),
    /// A ClaimNetwork.
    Network(NetworkName),
}

impl DeviceName {
    /// Returns the name of the device for this use of the link.
    pub fn of_link(link_use: LinkUse, link: &IfName) -> Self {
        Self::Link(link_use, link_label(link))
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(link_use, label) => write!(f, "{link_use}-{label}"),
            Self::Network(network) => write!(f, "net-{network}"),
        }
    }
}

impl FromStr for DeviceName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = || {
            let known = "nic-LINK, macvlan-LINK, ipvlan-LINK or net-NETWORK";
            Invalid::new("", format!("{text:?} is not the name of a netclaim device: use {known}"))
        };
        let (prefix, rest) = text.split_once('-').ok_or_else(wrong)?;
        if prefix == "net" {
            return rest.parse().map(Self::Network);
        }
        let link_use = prefix.parse().map_err(|_| wrong())?;
        if is_dns_label(rest) { Ok(Self::Link(link_use, rest.to_owned())) } else { Err(wrong()) }
    }
}

/// Returns how a link is spelled in the names of devices and counter sets.
pub fn link_label(link: &IfName) -> String {
    let name = link.as_str();
    if is_dns_label(name) {
        return name.to_owned();
    }
    let spelled: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    let hash = hex(&Sha256::digest(name)[..4]);
    format!("{}-{hash}", spelled.trim_matches('-')).trim_start_matches('-').to_owned()
}

/// How the names of the controller's pools begin.
const OF_CLUSTER: &str = "networks";

/// Returns the name of the pool in which the controller publishes a ClaimNetwork of scope `Cluster`. A node's
/// pool has the node's name, which never contains `/`.
pub fn cluster_pool(network: &NetworkName) -> String {
    format!("{OF_CLUSTER}/{network}")
}

/// Returns the name of the pool that has the device of a ClaimNetwork on this node: the node's own, or that
/// of scope `Cluster`.
pub fn pool(network: &NetworkName, scope: Scope, node: &str) -> String {
    match scope {
        Scope::Node => node.to_owned(),
        Scope::Cluster => cluster_pool(network),
    }
}

/// Returns the node that publishes in this pool, which has its name; `None` if it is a pool of the
/// controller.
pub fn node_of_pool(pool: &str) -> Option<&str> {
    (!pool.contains('/')).then_some(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(link: &str) -> String {
        DeviceName::of_link(LinkUse::Nic, &link.parse().expect("a link name")).to_string()
    }

    #[test]
    fn ordinary_links_are_spelled_as_they_are() {
        assert_eq!(nic("eth1"), "nic-eth1");
        assert_eq!(nic("enp3s0f0np0"), "nic-enp3s0f0np0");
    }

    #[test]
    fn odd_links_stay_apart() {
        let names = ["eth0.100", "eth0_100", "ETH0-100", "eth0-100", "e...", "e_"].map(nic);
        for (i, name) in names.iter().enumerate() {
            assert!(is_dns_label(name), "{name}");
            assert!(!names[..i].contains(name), "{name}");
        }
    }

    #[test]
    fn a_pool_is_its_nodes_or_the_controllers() {
        let lab = cluster_pool(&"lab".parse().expect("a name"));
        assert_eq!(node_of_pool(&lab), None);
        // A node may have any name.
        assert_eq!(["n1.example", "networks"].map(node_of_pool), [Some("n1.example"), Some("networks")]);
    }

    #[test]
    fn a_device_name_tells_the_use_of_a_link_or_the_network() {
        let parsed = |name: &str| name.parse::<DeviceName>().ok();
        let storage = DeviceName::Network("storage".parse().expect("a name"));
        assert_eq!(parsed("net-storage"), Some(storage));
        assert_eq!(parsed("nic-eth1"), Some(DeviceName::Link(LinkUse::Nic, "eth1".to_owned())));
        for name in ["nic-eth1", "macvlan-eth0-100-1f2e3d4c", "ipvlan-eth1", "net-a-b"] {
            assert_eq!(parsed(name).map(|name| name.to_string()).as_deref(), Some(name));
        }
        for name in ["", "net-", "nic-", "nic", "vlan-eth1", "gpu0", "nic-a.b"] {
            assert_eq!(parsed(name), None, "{name}");
        }
    }
}
