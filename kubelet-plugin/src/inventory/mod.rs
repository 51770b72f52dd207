//! What the node has, as one value: uplinks, kernel features, and the Networks that are meant for it.

pub mod foreign_use;
pub mod policies;
pub mod providers;
pub mod uplinks;
pub mod watch;

use std::collections::BTreeMap;

use netclaim_api::network::{NetworkSpec, UplinkSelector};
use netclaim_api::{IfName, NetworkName};

use crate::inventory::uplinks::Uplink;

/// Everything that devices are made from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// Labels of the Node object.
    pub labels: BTreeMap<String, String>,
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
        interfaces.iter().filter_map(|name| self.uplink(name)).find(fits)
    }

    fn uplink(&self, name: &IfName) -> Option<&Uplink> {
        self.uplinks.iter().find(|uplink| uplink.name == *name)
    }

    /// What admins of Networks should know whose uplink carries the node's own traffic: what that is, and where the
    /// Network cannot have the link for it, the way out.
    pub fn node_link_warnings(&self) -> BTreeMap<NetworkName, String> {
        let warning = |(name, network): (&NetworkName, &NetworkSpec)| {
            let text = match self.uplink_of(network) {
                Some(Uplink { name: link, carries: Some(carries), .. }) => {
                    format!("Network {name} has pods share link {link}, which {carries}")
                }
                Some(_) => return None,
                None => {
                    let named = network.uplink.iter().flat_map(|uplink| &uplink.interfaces);
                    let uplink =
                        named.filter_map(|link| self.uplink(link)).find(|uplink| uplink.carries.is_some())?;
                    let (link, carries) = (&uplink.name, uplink.carries.as_ref()?);
                    let way_out = if carries.is_dispensable() {
                        "an UplinkPolicy with `publish: Always` gives it away whole"
                    } else {
                        "macvlan, ipvlan and VLANs can share it, but it is never given away"
                    };
                    format!("Network {name} does not get link {link}, which {carries}: {way_out}")
                }
            };
            Some((name.clone(), text))
        };
        self.networks.iter().filter_map(warning).collect()
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
        && serves(uplink, network, !interfaces.is_empty())
}

/// Whether the Network can use the uplink in its way; whether it names it counts where the uplink is the node's own.
fn serves(uplink: &Uplink, network: &NetworkSpec, is_named: bool) -> bool {
    let modes = match &uplink.when_named {
        Some(_) if !is_named => return false,
        Some(modes) => modes,
        None => &uplink.modes,
    };
    match (network.link_use(), network.bridge()) {
        (_, Some(bridge)) => uplink.bridge.as_deref() == Some(bridge),
        (Some(link_use), None) => modes.contains(&link_use),
        // A VLAN on the link, say, which shares it with every use but the whole.
        (None, None) => uplink.bridge.is_none(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use netclaim_api::LinkUse;
    use netclaim_api::attribute::DeclaredAttributes;
    use netclaim_driver::links::{Link, NodeTraffic, OperState, Relation, Traffic};
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
            modes: LinkUse::ALL.into(),
            when_named: None,
            carries: None,
            stacked: Vec::new(),
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
    fn a_link_of_the_nodes_is_shared_by_networks_that_name_it_and_they_are_warned_of() {
        let carries = |traffic| NodeTraffic { traffic, link: "eth0".into(), relation: Relation::Carries };
        let of_node = |traffic| Uplink {
            modes: [].into(),
            when_named: Some([LinkUse::Macvlan, LinkUse::Ipvlan].into()),
            carries: Some(carries(traffic)),
            ..uplink("eth0")
        };
        let mut inventory =
            Inventory { uplinks: vec![of_node(Traffic::DefaultRoute)], ..Inventory::default() };
        inventory.uplinks[0].declared =
            serde_json::from_value(json!({"net": {"string": "a"}})).expect("attributes");
        let named = json!({"interfaces": ["eth0"]});
        let chosen = |selector: &serde_json::Value, plugin| {
            chosen(&inventory, selector.clone(), json!({"type": plugin}))
        };
        for plugin in ["macvlan", "ipvlan", "vlan"] {
            assert_eq!(chosen(&named, plugin).as_deref(), Some("eth0"), "{plugin}");
            assert_eq!(chosen(&json!({"attributes": {"net": {"string": "a"}}}), plugin), None, "{plugin}");
        }
        assert_eq!(chosen(&named, "host-device"), None);

        let mut warned = |plugin: &str, traffic| {
            let plugins = json!([{"type": plugin}]);
            let spec = network(json!({"uplink": named, "cni": {"cniVersion": "1.0.0", "plugins": plugins}}));
            inventory.networks = [("n".parse().expect("a name"), spec)].into();
            inventory.uplinks = vec![of_node(traffic)];
            inventory.node_link_warnings().into_values().collect::<Vec<_>>().join("; ")
        };
        assert_eq!(
            warned("macvlan", Traffic::DefaultRoute),
            "Network n has pods share link eth0, which carries the node's own traffic: a default route leads through eth0"
        );
        let address = Traffic::Address("10.1.2.3".parse().expect("an address"));
        for (traffic, way_out) in
            [(Traffic::DefaultRoute, "it is never given away"), (address, "gives it away whole")]
        {
            let warning = warned("host-device", traffic);
            assert!(warning.starts_with("Network n does not get link eth0, which carries"), "{warning}");
            assert!(warning.ends_with(way_out), "{warning}");
        }
    }

    #[test]
    fn a_port_is_for_the_networks_of_its_bridge_and_a_mode_for_those_that_use_it() {
        let port = Uplink { bridge: Some("br0".into()), modes: [].into(), ..uplink("eth1") };
        let shared = Uplink { modes: [LinkUse::Macvlan].into(), ..uplink("eth2") };
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
