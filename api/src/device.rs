//! Names of devices and pools. They are API: claims, policies and people refer to them.
//!
//! | device | what it is | shared |
//! |---|---|---|
//! | `nic-LINK` | the whole link, moved into one pod | no |
//! | `macvlan-LINK`, `ipvlan-LINK` | a child of the link in each pod | yes |
//! | `net-NETWORK` | a [`Network`](crate::network::Network) | yes, unless its plugin takes the whole link |
//!
//! A link whose name is no DNS label (`eth0.100`, `ETH1`) is spelled with `-` for every other character and
//! eight hex digits of the SHA-256 of its true name, so that two links never share a device name.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::names::is_dns_label;
use crate::{IfName, NetworkName};

/// A device, as the pools of netclaim name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceName {
    /// The whole link.
    Nic(IfName),
    /// A macvlan child of the link.
    Macvlan(IfName),
    /// An ipvlan child of the link.
    Ipvlan(IfName),
    /// A Network.
    Network(NetworkName),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nic(link) => write!(f, "nic-{}", link_label(link)),
            Self::Macvlan(link) => write!(f, "macvlan-{}", link_label(link)),
            Self::Ipvlan(link) => write!(f, "ipvlan-{}", link_label(link)),
            Self::Network(network) => write!(f, "net-{network}"),
        }
    }
}

/// The Network that a device name stands for; `None` for uplinks, whose spelling cannot be reversed.
pub fn network_of(device: &str) -> Option<NetworkName> {
    device.strip_prefix("net-")?.parse().ok()
}

/// The counter set and label of a link.
pub fn link_label(link: &IfName) -> String {
    let name = link.as_str();
    if is_dns_label(name) {
        return name.to_owned();
    }
    let spelled: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    let hash: String = Sha256::digest(name).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", spelled.trim_matches('-')).trim_start_matches('-').to_owned()
}

/// Name of the pool in which the controller publishes a Network of scope `Cluster`. Node pools are named like
/// their node, which never has a `/` in its name.
pub fn cluster_pool(network: &NetworkName) -> String {
    format!("networks/{network}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(link: &str) -> String {
        DeviceName::Nic(link.parse().expect("a link name")).to_string()
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
    fn the_network_of_a_device_is_found() {
        assert_eq!(network_of("net-storage").map(String::from).as_deref(), Some("storage"));
        assert_eq!(network_of("nic-eth1"), None);
        assert_eq!(network_of("net-"), None);
    }
}
