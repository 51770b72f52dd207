//! What frames of a network's pods are like on its uplink.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{ClaimNetworkSpec, NodeNetwork};
use crate::LinkUse;
use crate::conflist::Plugin as _;

/// The placeholder for the id of an attachment.
const SEGMENTATION_ID: &str = "${segmentation.id}";
/// What the kernel gives links that no plugin gives another one, in bytes.
const DEFAULT_MTU: u32 = 1500;

impl ClaimNetworkSpec {
    /// Returns the VLAN ids that pods have on the uplink; none for frames without a tag.
    ///
    /// # Errors
    /// The value as written, where a claim or a node fills it in.
    pub fn vlans(&self) -> Result<BTreeSet<u32>, String> {
        let of_pods = || {
            self.plugins().find_map(|plugin| match plugin.plugin_type() {
                "vlan" => plugin.get("vlanId"),
                "bridge" => plugin.get("vlan"),
                _ => None,
            })
        };
        let written = self.node.as_ref().and_then(NodeNetwork::vlan_as_written).or_else(of_pods);
        match (written, &self.segmentation) {
            (None, _) => Ok(BTreeSet::new()),
            (Some(Value::String(id)), Some(segmentation)) if id == SEGMENTATION_ID => Ok(segmentation.ids()),
            (Some(written), _) => match written.as_u64().map(u32::try_from) {
                // A bridge takes it for none.
                Some(Ok(0)) => Ok(BTreeSet::new()),
                Some(Ok(id)) => Ok([id].into()),
                _ => Err(written.to_string()),
            },
        }
    }

    /// Returns the MTU that pods have, in bytes, on an uplink of this one.
    pub fn mtu_on(&self, uplink: u32) -> u32 {
        let by_default = if self.is_bridge() { DEFAULT_MTU } else { uplink };
        let of_pods = mtu_of(self.plugins()).unwrap_or(by_default);
        let on_node = mtu_of(self.node.iter().flat_map(NodeNetwork::plugins)).unwrap_or(uplink);
        of_pods.min(on_node).min(uplink)
    }

    /// Whether pods have MAC addresses of their own on the uplink, beside that of the uplink.
    pub fn has_own_macs(&self) -> bool {
        let is_macvlan = self.link_types().contains(&"macvlan") && self.link_use() != Some(LinkUse::Nic);
        is_macvlan || self.is_bridge()
    }

    fn is_bridge(&self) -> bool {
        self.link_types().contains(&"bridge")
    }
}

/// Returns the least MTU that plugins have written.
fn mtu_of<'a>(plugins: impl Iterator<Item = &'a Map<String, Value>>) -> Option<u32> {
    let written = plugins.filter_map(|plugin| u32::try_from(plugin.get("mtu")?.as_u64()?).ok());
    written.filter(|mtu| *mtu > 0).min()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(plugin: Value, more: Value) -> ClaimNetworkSpec {
        let mut spec =
            json!({"uplink": {"links": ["eth1"]}, "cni": {"cniVersion": "1.0.0", "plugins": [plugin]}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn the_vlan_is_that_of_the_pods_or_of_the_node() {
        let vlans =
            |plugin, more| network(plugin, more).vlans().map(|ids| ids.into_iter().collect::<Vec<_>>());
        let none = || json!({});
        assert_eq!(vlans(json!({"type": "macvlan"}), none()), Ok(vec![]));
        assert_eq!(vlans(json!({"type": "vlan", "vlanId": 100}), none()), Ok(vec![100]));
        assert_eq!(vlans(json!({"type": "bridge", "vlan": 0}), none()), Ok(vec![]));
        assert_eq!(vlans(json!({"type": "bridge", "vlan": 7}), none()), Ok(vec![7]));
        let ids = json!({"segmentation": {"ids": ["101-102", 100]}});
        let of_each = json!({"type": "vlan", "vlanId": "${segmentation.id}"});
        assert_eq!(vlans(of_each, ids.clone()), Ok(vec![100, 101, 102]));
        assert_eq!(vlans(json!({"type": "overlay", "vni": "${segmentation.id}"}), ids), Ok(vec![]));
        let chosen = json!({"type": "vlan", "vlanId": "${parameters.vlan}"});
        assert_eq!(vlans(chosen, none()), Err("\"${parameters.vlan}\"".to_owned()));
        let on_node = |id: Value| {
            json!({"node": {"interfaceName": "v", "cni": {"cniVersion": "1.0.0", "plugins": [
                {"type": "netclaim-link", "kind": "vlan", "master": "${uplink.name}", "id": id}]}}})
        };
        let pods = || json!({"type": "macvlan", "master": "${node.interfaceName}"});
        assert_eq!(vlans(pods(), on_node(json!(60))), Ok(vec![60]));
        assert!(vlans(pods(), on_node(json!("${node.labels.vlan}"))).is_err());
    }

    #[test]
    fn pods_have_the_mtu_of_the_uplink_unless_a_plugin_says_otherwise() {
        let mtu = |plugin| network(plugin, json!({})).mtu_on(9000);
        assert_eq!(mtu(json!({"type": "macvlan"})), 9000);
        assert_eq!(mtu(json!({"type": "macvlan", "mtu": 1400})), 1400);
        assert_eq!(mtu(json!({"type": "macvlan", "mtu": 9216})), 9000);
        assert_eq!(mtu(json!({"type": "bridge"})), 1500);
        assert_eq!(mtu(json!({"type": "bridge", "mtu": 8900})), 8900);
        let on_node = |plugin: Value| {
            let node = json!({"node": {"interfaceName": "v", "cni": {"cniVersion": "1.0.0", "plugins": [
                {"type": "netclaim-link", "kind": "vlan", "master": "${uplink.name}", "id": 60, "mtu": 1400}]}}});
            network(plugin, node).mtu_on(9000)
        };
        assert_eq!(on_node(json!({"type": "macvlan", "master": "${node.interfaceName}"})), 1400);
        assert_eq!(on_node(json!({"type": "macvlan", "master": "${node.interfaceName}", "mtu": 1300})), 1300);
    }

    #[test]
    fn pods_of_macvlan_and_bridges_have_mac_addresses_of_their_own() {
        let has = |plugin| network(plugin, json!({})).has_own_macs();
        assert!(has(json!({"type": "macvlan", "mode": "bridge"})) && has(json!({"type": "bridge"})));
        assert!(!has(json!({"type": "ipvlan"})) && !has(json!({"type": "vlan", "vlanId": 1})));
        assert!(!has(json!({"type": "macvlan", "mode": "passthru"})), "it takes the uplink's");
    }
}
