//! CNI configurations: what a chain of plugins does with the links of the node, and the chains for uplinks alone.

use netclaim_cni::{BANDWIDTH_PLUGIN, PluginConf};
use serde_json::{Map, Value, json};

use crate::LinkUse;

/// The configuration of one plugin of a chain: JSON that may have placeholders, or parsed.
pub trait Plugin {
    /// The plugin's `type`; empty if it has none.
    fn plugin_type(&self) -> &str;

    /// A member of the configuration.
    fn member(&self, key: &str) -> Option<Value>;
}

impl Plugin for Map<String, Value> {
    fn plugin_type(&self) -> &str {
        self.get("type").and_then(Value::as_str).unwrap_or_default()
    }

    fn member(&self, key: &str) -> Option<Value> {
        self.get(key).cloned()
    }
}

impl Plugin for PluginConf {
    fn plugin_type(&self) -> &str {
        self.plugin_type().as_str()
    }

    fn member(&self, key: &str) -> Option<Value> {
        serde_json::from_str(self.get(key)?.get()).ok()
    }
}

/// Returns how a chain of plugins uses its uplink. A plugin that works on a link in the pod uses none.
pub fn link_use_of<'a, P: Plugin + 'a>(plugins: impl IntoIterator<Item = &'a P>) -> Option<LinkUse> {
    outside(plugins).find_map(|plugin| LinkUse::of_plugin(plugin.plugin_type()))
}

/// Returns the VLAN id that a chain of plugins takes on its uplink, where it is written out.
pub fn vlan_of<'a, P: Plugin + 'a>(plugins: impl IntoIterator<Item = &'a P>) -> Option<u32> {
    let vlan = outside(plugins).find(|plugin| plugin.plugin_type() == "vlan")?;
    vlan.member("vlanId")?.as_u64()?.try_into().ok()
}

fn outside<'a, P: Plugin + 'a>(plugins: impl IntoIterator<Item = &'a P>) -> impl Iterator<Item = &'a P> {
    plugins.into_iter().filter(|plugin| !is_inside_pod(*plugin))
}

/// Whether the plugin works on a link in the pod, and not on one of the node.
pub(crate) fn is_inside_pod(plugin: &impl Plugin) -> bool {
    plugin.member("linkInContainer") == Some(Value::Bool(true))
}

/// The plugins of a conflist, as far as they are objects.
pub(crate) fn plugins(conflist: &Map<String, Value>) -> impl Iterator<Item = &Map<String, Value>> {
    conflist.get("plugins").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

/// Whether a plugin of the conflist takes this capability.
pub(crate) fn declares(conflist: &Map<String, Value>, capability: &str) -> bool {
    let takes = |plugin: &Map<String, Value>| plugin.get("capabilities")?.get(capability)?.as_bool();
    plugins(conflist).any(|plugin| takes(plugin) == Some(true))
}

/// Returns a conflist as it is, and the configuration of a single plugin as a chain of one.
pub(crate) fn as_conflist(config: &Map<String, Value>) -> Map<String, Value> {
    if config.contains_key("plugins") || !config.contains_key("type") {
        return config.clone();
    }
    let mut plugin = config.clone();
    let mut list = Map::new();
    for key in ["cniVersion", "name"] {
        list.extend(plugin.remove(key).map(|value| (key.to_owned(), value)));
    }
    list.insert("plugins".into(), json!([plugin]));
    list
}

/// Returns what attaches an uplink device whose class has no configuration: layer 2 only, no address. `limited` adds the
/// bandwidth plugin.
pub(crate) fn plain_conflist(link_use: LinkUse, limited: bool) -> Map<String, Value> {
    let plugin = match link_use {
        LinkUse::Nic => json!({"type": "host-device", "device": "${uplink.ifName}"}),
        LinkUse::Macvlan => json!({"type": "macvlan", "master": "${uplink.ifName}", "mode": "bridge"}),
        LinkUse::Ipvlan => json!({"type": "ipvlan", "master": "${uplink.ifName}", "mode": "l2"}),
    };
    let shaper = json!({"type": BANDWIDTH_PLUGIN, "capabilities": {"bandwidth": true}});
    let plugins: Vec<Value> = [plugin].into_iter().chain(limited.then_some(shaper)).collect();
    Map::from_iter([("cniVersion".to_owned(), json!("1.0.0")), ("plugins".to_owned(), json!(plugins))])
}
