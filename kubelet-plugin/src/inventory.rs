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

#[cfg(test)]
pub(crate) mod tests {
    use netclaim_driver::links::OperState;

    use super::*;

    /// A NIC that is up.
    pub(crate) fn link(name: &str) -> Link {
        Link {
            index: 2,
            name: name.into(),
            alt_names: Vec::new(),
            alias: None,
            kind: None,
            mac: Some("02:00:00:00:00:01".into()),
            permanent_mac: None,
            mtu: 1500,
            admin_up: true,
            oper: OperState::Up,
            carrier: true,
            master: None,
            parent: None,
            peer_in_other_netns: false,
            loopback: false,
            speed: Some(10_000_000_000),
            driver: Some("ixgbe".into()),
            pci_bus_id: None,
            pcie_root: None,
            numa_node: None,
        }
    }

    #[test]
    fn a_selector_wants_every_label() {
        let labels = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let node = labels(&[("rack", "a"), ("zone", "z")]);
        assert!(selects(&labels(&[]), &node) && selects(&labels(&[("rack", "a")]), &node));
        assert!(
            !selects(&labels(&[("rack", "b")]), &node)
                && !selects(&labels(&[("rack", "a"), ("gpu", "")]), &node)
        );
    }
}
