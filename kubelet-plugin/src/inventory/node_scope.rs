//! Values for the placeholders of a ClaimNetwork that depend on the node alone. Pure.

use std::collections::BTreeMap;

use netclaim_api::attribute::AttributeValue;
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_api::template::{self, NODE_LABELS, Scope, UPLINK_ATTRIBUTES};
use netclaim_kubernetes::labels::is_label_value;
use serde_json::{Map, Value, json};

use super::uplink::Uplink;

/// The placeholders that have a value without a claim.
pub(crate) fn node_scope(
    network: &str,
    node: &str,
    labels: &BTreeMap<String, String>,
    uplink: Option<&Uplink>,
) -> Scope {
    let own = [("network.name", network), ("node.name", node)];
    let own = own.map(|(name, value)| (name.to_owned(), json!(value))).into_iter();
    let labels = labels.iter().map(|(key, value)| (format!("{NODE_LABELS}{key}"), json!(value)));
    let mut scope: Scope = own.chain(labels).collect();
    if let Some(Uplink { link, declared, .. }) = uplink {
        scope.insert("uplink.name".to_owned(), json!(link.name));
        scope.insert("uplink.mtu".to_owned(), json!(link.mtu));
        scope.extend(link.mac.as_ref().map(|mac| ("uplink.mac".to_owned(), json!(mac))));
        scope.extend(declared.iter().filter_map(|(name, declared)| {
            Some((format!("{UPLINK_ATTRIBUTES}{}", name.as_str()), value(declared)?))
        }));
    }
    scope
}

/// Returns the value of a declared attribute. A switch may have a say in it, so that a text has no value here
/// that could not be the value of a label: no quotes, spaces or slashes.
fn value(declared: &AttributeValue) -> Option<Value> {
    match declared {
        AttributeValue::String(text) | AttributeValue::Version(text) => {
            is_label_value(text).then(|| json!(text))
        }
        AttributeValue::Int(number) => Some(json!(number)),
        AttributeValue::Bool(flag) => Some(json!(flag)),
    }
}

/// Returns which label of the node or attribute of its uplink the ClaimNetwork's configuration needs, and has
/// no value here.
pub(super) fn lacks_value(
    spec: &ClaimNetworkSpec,
    labels: &BTreeMap<String, String>,
    uplink: Option<&Uplink>,
) -> Option<Unhealthy> {
    let on_node: Vec<Value> = spec.node.iter().flat_map(|on_node| on_node.templates()).collect();
    let finalizers = spec.finalize.iter().flat_map(Map::values);
    let names = template::names(spec.cni.values().chain(finalizers).chain(&on_node));
    let needed =
        names.into_iter().filter(|name| name.starts_with(NODE_LABELS) || name.starts_with(UPLINK_ATTRIBUTES));
    let mut needed = needed.peekable();
    needed.peek()?;
    let scope = node_scope("", "", labels, uplink);
    let name = needed.find(|name| !scope.contains_key(*name))?;
    let message = match (name.strip_prefix(NODE_LABELS), uplink) {
        (Some(key), _) => format!("the node has no label {key}, which the ClaimNetwork needs as ${{{name}}}"),
        (None, Some(uplink)) => format!(
            "uplink {} has no attribute for ${{{name}}} of the ClaimNetwork, or one that is not of letters, digits, -, _ and .",
            uplink.name
        ),
        (None, None) => return None,
    };
    Some(Unhealthy::new(Reason::ValueMissing, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::inventory::fixtures::uplink;

    fn network(plugin: Value) -> ClaimNetworkSpec {
        let cni = json!({"cniVersion": "1.1.0", "plugins": [plugin]});
        serde_json::from_value(json!({"uplink": {"links": ["eth1"]}, "cni": cni})).expect("a network")
    }

    fn inventory(labels: Value, declared: Value) -> Inventory {
        let mut uplink = uplink("eth1");
        uplink.declared = serde_json::from_value(declared).expect("attributes");
        let labels = serde_json::from_value(labels).expect("labels");
        Inventory { labels, uplinks: vec![uplink], ..Inventory::default() }
    }

    #[test]
    fn a_node_lacks_the_labels_and_attributes_that_a_network_needs() {
        let spec = network(json!({"type": "macvlan", "master": "${uplink.name}",
            "x": "${node.labels.topology.kubernetes.io/zone}", "vlan": ["${uplink.attributes.example.com/vlan}"]}));
        let lacks = |labels, declared| {
            let unhealthy = inventory(labels, declared).lacks(&spec)?;
            assert_eq!(unhealthy.reason, Reason::ValueMissing);
            Some(unhealthy.message)
        };
        let (zone, vlan) =
            (json!({"topology.kubernetes.io/zone": "eu-1a"}), json!({"example.com/vlan": {"int": 100}}));
        assert_eq!(lacks(zone.clone(), vlan.clone()), None);
        let message = lacks(json!({"topology.kubernetes.io/region": "eu"}), vlan).expect("lacks a label");
        assert!(message.contains("no label topology.kubernetes.io/zone"), "{message}");
        let message = lacks(zone, json!({"vlan": {"int": 100}})).expect("lacks an attribute");
        assert!(message.contains("eth1") && message.contains("example.com/vlan"), "{message}");
    }

    #[test]
    fn only_plain_texts_are_values_of_attributes() {
        let spec = network(json!({"type": "x", "switch": "${uplink.attributes.switch}"}));
        let serves = |switch: Value| inventory(json!({}), json!({"switch": switch})).lacks(&spec).is_none();
        assert!(
            serves(json!({"string": "tor-7.a_1"}))
                && serves(json!({"int": -1}))
                && serves(json!({"bool": true}))
        );
        for hostile in ["$(reboot)", "a b", "../x", "\"}", "a\nb"] {
            assert!(!serves(json!({"string": hostile})), "{hostile}");
        }
    }
}
