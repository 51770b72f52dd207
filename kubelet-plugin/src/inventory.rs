//! What the node has, as one value: uplinks, kernel features, and the Networks that are meant for it.

use std::collections::BTreeMap;

use netclaim_api::NetworkName;
use netclaim_api::network::NetworkSpec;
use netclaim_driver::links::Link;

/// Everything that devices are made from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// Links that pods may be attached to, by index.
    pub uplinks: Vec<Link>,
    /// The kernel can make macvlan links.
    pub macvlan: bool,
    /// The kernel can make ipvlan links.
    pub ipvlan: bool,
    /// Valid Networks whose node selector fits this node.
    pub networks: BTreeMap<NetworkName, NetworkSpec>,
}

impl Inventory {
    /// The uplink with this name.
    pub fn uplink(&self, name: &str) -> Option<&Link> {
        self.uplinks.iter().find(|link| link.name == name)
    }

    /// The first of a Network's interfaces that is an uplink here; `None` where the Network has none or the node
    /// has none of them.
    pub fn uplink_of(&self, network: &NetworkSpec) -> Option<&Link> {
        network.uplink.as_ref()?.interfaces.iter().find_map(|name| self.uplink(name.as_str()))
    }

    /// Whether this node has what the Network needs.
    pub fn can_serve(&self, network: &NetworkSpec) -> bool {
        network.uplink.is_none() || self.uplink_of(network).is_some()
    }
}

/// Whether a node with these labels is selected.
pub fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}
