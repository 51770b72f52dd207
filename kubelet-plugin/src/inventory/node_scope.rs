//! Values for the placeholders of a ClaimNetwork that depend on the node alone. Pure.

use netclaim_api::template::Scope;
use netclaim_driver::links::Link;
use serde_json::json;

/// The placeholders that have a value without a claim.
pub(crate) fn node_scope(network: &str, node: &str, uplink: Option<&Link>) -> Scope {
    let mut scope = vec![("network.name", json!(network)), ("node.name", json!(node))];
    if let Some(link) = uplink {
        scope.push(("uplink.name", json!(link.name)));
        scope.push(("uplink.mtu", json!(link.mtu)));
        scope.extend(link.mac.as_ref().map(|mac| ("uplink.mac", json!(mac))));
    }
    scope.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
