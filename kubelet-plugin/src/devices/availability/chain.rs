//! The plugins that a ClaimNetwork needs on this node, and the configuration that they are asked with by
//! STATUS. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use netclaim_api::addresses::AddressPoolSpec;
use netclaim_api::network::{ClaimNetworkSpec, conflist_name};
use netclaim_api::template::{self, Scope};
use netclaim_api::{Allow, NetworkName, ParameterRule};
use netclaim_cni::reference::status_looks_at_nothing;
use netclaim_cni::{NetworkList, PluginType};
use serde_json::{Map, Value, json};

use crate::inventory::{self, Inventory, node_scope};

/// The plugins of one ClaimNetwork.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chain {
    /// Every plugin, IPAM plugins and those of `finalize` included.
    pub(crate) plugins: Vec<PluginType>,
    /// Name of the CNI network.
    pub(super) list: String,
    /// The configuration for STATUS; `None` where they cannot be asked.
    pub(crate) conflist: Option<Arc<NetworkList>>,
    /// Whether the configuration has defaults of parameters, so that an ADD may have another one.
    pub(super) is_by_default: bool,
    uplink: Option<Uplink>,
}

/// Values that may matter to the answer, although no placeholder names them.
#[derive(Debug, Clone, PartialEq)]
struct Uplink {
    name: String,
    index: u32,
    is_up: bool,
}

impl Uplink {
    fn of(inventory::Uplink { link, .. }: &inventory::Uplink) -> Self {
        Self { name: link.name.clone(), index: link.index, is_up: link.is_up() }
    }
}

/// Returns the chains of the node's ClaimNetworks.
pub(super) fn chains(inventory: &Inventory, node: &str) -> BTreeMap<NetworkName, Chain> {
    let chain = |(name, spec): (&NetworkName, &ClaimNetworkSpec)| {
        (name.clone(), Chain::of(name, spec, inventory, node))
    };
    inventory.networks.iter().map(chain).collect()
}

/// Whether plugins would get another configuration now, apart from the addresses of a pod and from links.
pub(super) fn configures_otherwise(before: Option<&Inventory>, now: Option<&Inventory>) -> bool {
    let (Some(before), Some(now)) = (before, now) else { return before.is_some() != now.is_some() };
    let pool = |inventory: &Inventory, name| inventory.addresses.get(name).and_then(|of| of.pool.clone());
    before.networks != now.networks || now.networks.keys().any(|name| pool(before, name) != pool(now, name))
}

impl Chain {
    /// The plugins of a ClaimNetwork on the node of this name.
    pub(crate) fn of(name: &NetworkName, spec: &ClaimNetworkSpec, inventory: &Inventory, node: &str) -> Self {
        let uplink = inventory.uplink_of(spec);
        // Not the node's blocks, which change: whether plugins can serve does not depend on them.
        let pool = inventory.addresses.get(name).and_then(|addresses| addresses.pool.as_ref());
        let ipam = pool.map(AddressPoolSpec::sample).unwrap_or_default();
        let cni = spec.cni_with(&ipam);
        let scope = node_scope(name.as_str(), node, &inventory.labels, uplink);
        let without = conflist(&cni, name, &scope);
        let is_by_default = without.is_none();
        let by_default = || conflist(&cni, name, &with_defaults(scope, &spec.allow));
        let conflist = without.or_else(by_default);
        let mut chain = Self {
            plugins: plugins_of(&cni).collect(),
            list: spec.list_name(name),
            is_by_default: is_by_default && conflist.is_some(),
            conflist: conflist.map(Arc::new),
            uplink: uplink.map(Uplink::of),
        };
        chain.plugins.extend(spec.node.iter().flat_map(|on_node| plugins_of(&on_node.cni)));
        chain.plugins.extend(spec.finalize_types().into_iter().filter_map(|name| name.parse().ok()));
        chain
    }

    /// Whether STATUS of all plugins looks at nothing on the node, so that a yes stays one.
    pub(super) fn looks_at_nothing(&self) -> bool {
        self.plugins.iter().all(status_looks_at_nothing)
    }
}

/// Adds the values that parameters have where a claim sets none.
fn with_defaults(mut scope: Scope, allow: &Allow) -> Scope {
    let default =
        |(name, rule): (&String, &ParameterRule)| Some((format!("parameters.{name}"), rule.default.clone()?));
    scope.extend(allow.parameters.iter().filter_map(default));
    scope
}

/// Returns every plugin that a conflist names.
fn plugins_of(cni: &Map<String, Value>) -> impl Iterator<Item = PluginType> {
    let plugins = cni.get("plugins").and_then(Value::as_array).into_iter().flatten();
    let types = plugins.flat_map(|plugin| [&plugin["type"], &plugin["ipam"]["type"]]);
    // `"type": ""` is not a plugin: some configurations ask for no addresses in this way.
    types.filter_map(|name| name.as_str()?.parse().ok())
}

/// Returns the ClaimNetwork's conflist as an ADD on this node would have it. `None` before CNI 1.1.0, which
/// has no STATUS, and where placeholders need a pod, or a claim that sets a parameter.
fn conflist(cni: &Map<String, Value>, name: &NetworkName, scope: &Scope) -> Option<NetworkList> {
    let mut conflist = Map::new();
    for (key, value) in cni {
        conflist.insert(key.clone(), template::resolve(value, scope).ok()?);
    }
    conflist.entry("name").or_insert_with(|| json!(conflist_name(name.as_str())));
    let list = NetworkList::parse(Value::Object(conflist).to_string().as_bytes()).ok()?;
    Some(list).filter(|list| list.version().has_gc_and_status())
}
