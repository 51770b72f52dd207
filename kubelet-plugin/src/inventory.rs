//! What the node has, as one value: uplinks, kernel features, and the Networks that are meant for it.

use std::collections::BTreeMap;

use netclaim_api::network::{LinkUse, NetworkSpec, UplinkSelector};
use netclaim_api::uplink_policy::UplinkMode;
use netclaim_api::{IfName, NetworkName};

use crate::uplinks::Uplink;

/// Everything that devices are made from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// Links that pods may be attached to, by index.
    pub uplinks: Vec<Uplink>,
    /// The kernel can make macvlan links.
    pub macvlan: bool,
    /// The kernel can make ipvlan links.
    pub ipvlan: bool,
    /// Valid Networks whose node selector fits this node.
    pub networks: BTreeMap<NetworkName, NetworkSpec>,
}

impl Inventory {
    /// The uplink that a Network uses here: of those that it selects, the first that fits how it uses it. `None` where the
    /// Network has no uplink or the node has none for it.
    pub fn uplink_of(&self, network: &NetworkSpec) -> Option<&Uplink> {
        let UplinkSelector { interfaces, .. } = network.uplink.as_ref()?;
        let fits = |uplink: &&Uplink| selects(network, uplink);
        if interfaces.is_empty() {
            return self.uplinks.iter().find(fits);
        }
        let named = |name: &IfName| self.uplinks.iter().find(|uplink| uplink.name == *name);
        interfaces.iter().filter_map(named).find(fits)
    }

    /// Whether this node has what the Network needs.
    pub fn can_serve(&self, network: &NetworkSpec) -> bool {
        network.uplink.is_none() || self.uplink_of(network).is_some()
    }
}

/// Whether the uplink is one of those that the Network could use.
pub fn selects(network: &NetworkSpec, uplink: &Uplink) -> bool {
    let Some(UplinkSelector { interfaces, attributes }) = &network.uplink else { return false };
    (interfaces.is_empty() || interfaces.contains(&uplink.name))
        && attributes.iter().all(|(name, value)| uplink.declared.get(name) == Some(value))
        && serves(uplink, network)
}

/// Whether the Network can use the uplink in its way.
fn serves(uplink: &Uplink, network: &NetworkSpec) -> bool {
    let has = |mode| uplink.modes.contains(&mode);
    match (network.link_use(), network.bridge()) {
        (_, Some(bridge)) => uplink.bridge.as_deref() == Some(bridge),
        (Some(LinkUse::Nic), None) => has(UplinkMode::Nic),
        (Some(LinkUse::Macvlan), None) => has(UplinkMode::Macvlan),
        (Some(LinkUse::Ipvlan), None) => has(UplinkMode::Ipvlan),
        // A VLAN on the link, say, which concerns no other use of it.
        (None, None) => uplink.bridge.is_none(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use netclaim_api::attribute::DeclaredAttributes;
    use netclaim_driver::links::{Link, OperState};
    use serde_json::json;

    use super::*;

    /// A NIC that is up.
    pub(crate) fn link(name: &str) -> Link {
        Link {
            index: 2,
            name: name.into(),
            mac: Some("02:00:00:00:00:01".into()),
            mtu: 1500,
            admin_up: true,
            oper: OperState::Up,
            carrier: true,
            speed: Some(10_000_000_000),
            driver: Some("ixgbe".into()),
            ..Link::default()
        }
    }

    /// The same as an uplink in all modes.
    pub(crate) fn uplink(name: &str) -> Uplink {
        let link = link(name);
        Uplink {
            name: name.parse().expect("a name"),
            modes: [UplinkMode::Nic, UplinkMode::Macvlan, UplinkMode::Ipvlan].into(),
            bridge: None,
            declared: DeclaredAttributes::new(),
            bandwidth: link.speed.map(netclaim_api::Quantity::new),
            link,
        }
    }

    fn network(spec: serde_json::Value) -> NetworkSpec {
        serde_json::from_value(spec).expect("a network")
    }

    fn chosen(inventory: &Inventory, uplink: serde_json::Value, plugin: serde_json::Value) -> Option<String> {
        let spec = network(json!({"uplink": uplink, "cni": {"cniVersion": "1.0.0", "plugins": [plugin]}}));
        inventory.uplink_of(&spec).map(|uplink| uplink.name.to_string())
    }

    #[test]
    fn a_network_takes_the_first_uplink_that_has_a_name_and_all_attributes() {
        let mut fast = uplink("eth2");
        fast.declared = serde_json::from_value(json!({"net": {"string": "fast"}})).expect("attributes");
        let inventory = Inventory { uplinks: vec![uplink("eth1"), fast], ..Inventory::default() };
        let macvlan = json!({"type": "macvlan"});
        let chosen = |selector| chosen(&inventory, selector, macvlan.clone());
        assert_eq!(chosen(json!({"interfaces": ["eth9", "eth2", "eth1"]})).as_deref(), Some("eth2"));
        let fast = json!({"net": {"string": "fast"}});
        assert_eq!(chosen(json!({"attributes": fast})).as_deref(), Some("eth2"));
        assert_eq!(chosen(json!({"interfaces": ["eth1"], "attributes": fast})), None);
    }

    #[test]
    fn a_port_is_for_the_networks_of_its_bridge_and_a_mode_for_those_that_use_it() {
        let port = Uplink { bridge: Some("br0".into()), modes: [].into(), ..uplink("eth1") };
        let shared = Uplink { modes: [UplinkMode::Macvlan].into(), ..uplink("eth2") };
        let inventory = Inventory { uplinks: vec![port, shared], ..Inventory::default() };
        let any = json!({"interfaces": ["eth1", "eth2"]});
        let chosen = |plugin| chosen(&inventory, any.clone(), plugin);
        assert_eq!(chosen(json!({"type": "bridge", "bridge": "br0"})).as_deref(), Some("eth1"));
        assert_eq!(chosen(json!({"type": "bridge", "bridge": "br1"})), None);
        assert_eq!(chosen(json!({"type": "macvlan"})).as_deref(), Some("eth2"));
        assert_eq!(chosen(json!({"type": "host-device"})), None);
        assert_eq!(chosen(json!({"type": "vlan"})).as_deref(), Some("eth2"));
    }
}
