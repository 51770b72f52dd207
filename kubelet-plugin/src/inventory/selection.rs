//! What the node has, and which uplink each ClaimNetwork gets. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netclaim_api::network::{ClaimNetworkSpec, UplinkSelector};
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_api::{IfName, NetworkName};

use super::addresses::NodeAddresses;
use super::facts::NetworkFacts;
use super::node_scope::lacks_value;
use super::shared::Shared;
use super::uplink::{Port, Uplink};
use super::uplinks::PolicyLinks;

/// Plugins, and the kind of link that each makes. Of `tap` the kernel does not say beforehand.
pub(crate) const KINDS: [(&str, &str); 8] = [
    ("bond", "bond"),
    ("bridge", "bridge"),
    ("dummy", "dummy"),
    ("ipvlan", "ipvlan"),
    ("macvlan", "macvlan"),
    ("ptp", "veth"),
    ("vlan", "vlan"),
    ("vrf", "vrf"),
];

/// Everything that devices are made from.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Inventory {
    /// Labels of the Node object.
    pub(crate) labels: BTreeMap<String, String>,
    /// Internal and external addresses of the Node object.
    pub(crate) node_addresses: BTreeSet<IpAddr>,
    /// Links that pods may be attached to, by index.
    pub(crate) uplinks: Vec<Uplink>,
    /// Why links that ClaimNetworks name are not uplinks, by name.
    pub(crate) withheld: BTreeMap<String, String>,
    /// The links that follow each UplinkPolicy of this node, without those that are in pods.
    pub(crate) followers: PolicyLinks,
    /// The kinds of links among [`KINDS`] that the kernel cannot make.
    pub(crate) lacking: BTreeSet<&'static str>,
    /// Valid ClaimNetworks whose node selector fits this node.
    pub(crate) networks: Shared<BTreeMap<NetworkName, ClaimNetworkSpec>>,
    /// The addresses of ClaimNetworks that share them with other nodes.
    pub(crate) addresses: Shared<BTreeMap<NetworkName, NodeAddresses>>,
    /// What programs on the node state about ClaimNetworks, also about those that are not for this node.
    pub(crate) facts: Shared<BTreeMap<NetworkName, NetworkFacts>>,
}

impl Inventory {
    /// Returns what programs state about the ClaimNetworks of this node.
    pub(crate) fn facts_of_networks(&self) -> impl Iterator<Item = (&NetworkName, &NetworkFacts)> {
        self.facts.iter().filter(|(name, _)| self.networks.contains_key(*name))
    }

    /// Returns the first uplink that a ClaimNetwork selects and can use here. `None` where the ClaimNetwork
    /// needs no uplink or the node has none for it.
    pub(crate) fn uplink_of(&self, network: &ClaimNetworkSpec) -> Option<&Uplink> {
        let UplinkSelector { links, .. } = network.uplink.as_ref()?;
        let fits = |uplink: &&Uplink| selects(network, uplink);
        if links.is_empty() {
            return self.uplinks.iter().find(fits);
        }
        links.iter().filter_map(|name| self.uplink(name)).find(fits)
    }

    /// Returns the uplink with this name, or with this alternative name.
    pub(super) fn uplink(&self, name: &IfName) -> Option<&Uplink> {
        self.uplinks.iter().find(|uplink| uplink.link.is_named(name.as_str()))
    }

    /// Returns the ports on which a ClaimNetwork keeps free what claims were granted.
    pub(crate) fn guaranteed_ports(&self) -> BTreeSet<&str> {
        let networks = self.networks.values().filter(|spec| spec.bandwidth.is_guaranteed());
        networks.filter_map(|spec| Some(self.uplink_of(spec)?.port.name.as_str())).collect()
    }

    /// Whether several uplinks are on the port.
    pub(crate) fn is_shared(&self, port: &Port) -> bool {
        self.uplinks.iter().filter(|uplink| uplink.port.name == port.name).nth(1).is_some()
    }

    /// Returns what the node lacks for the ClaimNetwork's plugins: a kind of links in the kernel, a label, or
    /// an attribute of the uplink.
    pub(crate) fn lacks(&self, network: &ClaimNetworkSpec) -> Option<Unhealthy> {
        self.lacks_kind(network).or_else(|| lacks_value(network, &self.labels, self.uplink_of(network)))
    }

    fn lacks_kind(&self, network: &ClaimNetworkSpec) -> Option<Unhealthy> {
        let types = network.link_types();
        let (plugin, kind) =
            KINDS.iter().find(|(plugin, kind)| types.contains(plugin) && self.lacking.contains(kind))?;
        let message = format!("the node's kernel has no links of kind {kind}, which plugin {plugin} makes");
        Some(Unhealthy::new(Reason::KernelLacks, message))
    }

    /// Returns whether this node has what the ClaimNetwork needs.
    pub(crate) fn can_serve(&self, network: &ClaimNetworkSpec) -> bool {
        network.uplink.is_none() || self.uplink_of(network).is_some()
    }
}

/// Returns whether the ClaimNetwork selects the uplink and can use it.
pub(crate) fn selects(network: &ClaimNetworkSpec, uplink: &Uplink) -> bool {
    let Some(UplinkSelector { links, attributes }) = &network.uplink else { return false };
    (links.is_empty() || links.iter().any(|name| uplink.link.is_named(name.as_str())))
        && attributes.iter().all(|(name, value)| uplink.declared.get(name) == Some(value))
        && serves(uplink, network, !links.is_empty())
}

/// Returns whether the ClaimNetwork can use the uplink in its way. A link with the node's own traffic must be
/// named.
fn serves(uplink: &Uplink, network: &ClaimNetworkSpec, is_named: bool) -> bool {
    let modes = match &uplink.when_named {
        Some(_) if !is_named => return false,
        Some(modes) => modes,
        None => &uplink.modes,
    };
    match (network.link_use(), network.bridge()) {
        (_, Some(bridge)) => uplink.bridge.as_deref() == Some(bridge),
        (Some(link_use), None) => modes.contains(&link_use),
        // Such as a VLAN on the link, which shares it with every use but the whole.
        (None, None) => uplink.bridge.is_none() || network.may_be_a_port(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use netclaim_api::LinkUse;

    use super::*;
    use crate::inventory::fixtures::uplink;

    fn network(spec: serde_json::Value) -> ClaimNetworkSpec {
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
        assert_eq!(chosen(json!({"links": ["eth9", "eth2", "eth1"]})).as_deref(), Some("eth2"));
        let fast = json!({"net": {"string": "fast"}});
        assert_eq!(chosen(json!({"attributes": fast})).as_deref(), Some("eth2"));
        assert_eq!(chosen(json!({"links": ["eth1"], "attributes": fast})), None);
    }

    #[test]
    fn a_network_names_its_uplink_by_any_of_its_names() {
        let mut named = uplink("eth1");
        named.link.alt_names = vec!["fabric-one".into()];
        let inventory = Inventory { uplinks: vec![uplink("eth0"), named], ..Inventory::default() };
        for name in ["eth1", "fabric-one"] {
            let chosen = chosen(&inventory, json!({"links": [name]}), json!({"type": "macvlan"}));
            assert_eq!(chosen.as_deref(), Some("eth1"), "{name}");
        }
    }

    #[test]
    fn a_network_needs_the_kinds_of_links_that_its_plugins_make() {
        let lacks = |lacking: &[&'static str], plugins: serde_json::Value| {
            let inventory = Inventory { lacking: lacking.iter().copied().collect(), ..Inventory::default() };
            let spec = network(json!({"cni": {"cniVersion": "1.0.0", "plugins": plugins}}));
            inventory.lacks(&spec).map(|unhealthy| unhealthy.message)
        };
        let ipvlan = json!([{"type": "ipvlan"}, {"type": "tuning"}]);
        assert_eq!(lacks(&[], ipvlan.clone()), None);
        assert_eq!(lacks(&["vlan", "macvlan"], ipvlan.clone()), None);
        let message = "the node's kernel has no links of kind ipvlan, which plugin ipvlan makes";
        assert_eq!(lacks(&["ipvlan"], ipvlan).as_deref(), Some(message));
        let chained = json!([{"type": "bridge"}, {"type": "vrf"}]);
        assert!(lacks(&["vrf"], chained).is_some_and(|message| message.contains("kind vrf")));
    }

    #[test]
    fn a_port_serves_networks_of_its_bridge_and_other_uplinks_serve_their_modes() {
        let port = Uplink { bridge: Some("br0".into()), modes: [].into(), ..uplink("eth1") };
        let shared = Uplink { modes: [LinkUse::Macvlan].into(), ..uplink("eth2") };
        let inventory = Inventory { uplinks: vec![port, shared], ..Inventory::default() };
        let any = json!({"links": ["eth1", "eth2"]});
        let chosen = |plugin| chosen(&inventory, any.clone(), plugin);
        assert_eq!(chosen(json!({"type": "bridge", "bridge": "br0"})).as_deref(), Some("eth1"));
        assert_eq!(chosen(json!({"type": "bridge", "bridge": "br1"})), None);
        assert_eq!(chosen(json!({"type": "macvlan"})).as_deref(), Some("eth2"));
        assert_eq!(chosen(json!({"type": "host-device"})), None);
        assert_eq!(chosen(json!({"type": "vlan"})).as_deref(), Some("eth2"));
    }
}
