//! CNI configurations: what a chain of plugins does with the links of the node, and the chains for uplinks
//! alone.

use netclaim_cni::placeholder::{Part, PlaceholderValue, parse};
use netclaim_cni::{BANDWIDTH_PLUGIN, PluginConf, SpecVersion, keys};
use serde_json::{Map, Value, json};

use crate::{Allow, Invalid, LinkUse, template};

/// An IPAM plugin that loses the addresses of pods under netclaim.
const WHEREABOUTS: &str = "whereabouts";

/// The plugin that the container runtime runs for a pod's primary network. It asks the agent for it.
const PRIMARY_PLUGIN: &str = "netclaim-primary";

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
    outside(plugins).find_map(|plugin| match LinkUse::of_plugin(plugin.plugin_type())? {
        // The kernel gives a link one child in this mode, and none in another one beside it.
        LinkUse::Macvlan if plugin.member("mode") == Some(json!(PASSTHRU)) => Some(LinkUse::Nic),
        link_use => Some(link_use),
    })
}

/// Whether a chain of plugins makes a link on its uplink, which stays on the node then.
pub fn has_child<'a, P: Plugin + 'a>(plugins: impl IntoIterator<Item = &'a P>) -> bool {
    outside(plugins).any(|plugin| matches!(plugin.plugin_type(), "macvlan" | "ipvlan" | "vlan"))
}

/// The mode of macvlan in which a link has one child, with the link's own MAC address.
pub(crate) const PASSTHRU: &str = "passthru";

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

/// Whether a version of the CNI specification, as it stands in a conflist, is known and older than `oldest`.
pub(crate) fn is_older(version: &Value, oldest: SpecVersion) -> bool {
    version.as_str().is_some_and(|text| SpecVersion::parse(text).is_ok_and(|version| version < oldest))
}

/// What is wrong with a plugin's type that a claim would choose.
pub(crate) const WRITTEN_OUT: &str = "must be written out: which plugins run decides what the nodes publish";

/// Returns the problems of parts that CNI permits and that no chain of a ClaimNetwork may have.
pub(crate) fn chain_problems(list: &Map<String, Value>) -> Vec<Invalid> {
    let mut problems = Vec::new();
    match list.get("plugins") {
        Some(Value::Array(_)) => {}
        Some(Value::String(_)) => problems.push(Invalid::new("plugins", WRITTEN_OUT)),
        None if list.contains_key("type") => {
            problems.push(Invalid::new("plugins", "is missing: put the plugin into a list"));
        }
        _ => {}
    }
    if list.contains_key(keys::SOCKETS) {
        let problem = "is written by the agent, for plugins that are daemons: remove it";
        problems.push(Invalid::new(format!("[{}]", keys::SOCKETS), problem));
    }
    let items = list.get("plugins").and_then(Value::as_array).into_iter().flatten();
    for (i, plugin) in items.enumerate() {
        let types = [("", plugin), (".type", &plugin["type"]), (".ipam.type", &plugin["ipam"]["type"])];
        let is_open = |value: &Value| value.as_str().is_some_and(|text| text.contains("${"));
        let open = types.into_iter().filter(|(_, value)| is_open(value));
        problems.extend(open.map(|(key, _)| Invalid::new(format!("plugins[{i}]{key}"), WRITTEN_OUT)));
    }
    problems.extend(runtime_plugin_problems(list));
    problems
}

/// Returns the plugins of a chain that only the container runtime may run.
pub(crate) fn runtime_plugin_problems(list: &Map<String, Value>) -> impl Iterator<Item = Invalid> {
    let found = plugins(list).enumerate().filter(|(_, plugin)| plugin.plugin_type() == PRIMARY_PLUGIN);
    found.map(|(i, _)| {
        let problem = "the container runtime runs it, and it would ask the agent that runs it here: name the plugins that make \
                       the interface, and set primary: true in a class or the claim";
        Invalid::new(format!("plugins[{i}].type"), problem)
    })
}

/// Returns the problems of a configuration that names whereabouts: as an IPAM plugin, or anywhere in what a
/// plugin passes on to plugins that it calls. Claims may set the parameters of `allow`.
pub(crate) fn whereabouts_problems(config: &Map<String, Value>, allow: &Allow) -> Vec<Invalid> {
    let mut problems = Vec::new();
    for (key, value) in config {
        let found = match value {
            // Plugins written in Go read keys in any case.
            Value::String(text) if key.eq_ignore_ascii_case("type") && may_be_whereabouts(text, allow) => {
                let problem = "whereabouts loses addresses under netclaim, because its reconciler frees those that no pod's \
                               network-status lists: have a ClaimNetwork hand out the range by spec.addresses or an AddressPool, and \
                               write \"ipam\": \"${addresses}\"; docs/migrate-from-multus.md says how pods keep their addresses";
                vec![Invalid::new("", problem)]
            }
            other => whereabouts_in(other, allow),
        };
        problems.extend(found.into_iter().map(|problem| problem.within(key)));
    }
    problems
}

fn whereabouts_in(value: &Value, allow: &Allow) -> Vec<Invalid> {
    match value {
        Value::Object(object) => whereabouts_problems(object, allow),
        Value::Array(items) => {
            let of_item = |(i, item)| {
                whereabouts_in(item, allow).into_iter().map(move |problem| problem.within(&format!("[{i}]")))
            };
            items.iter().enumerate().flat_map(of_item).collect()
        }
        _ => Vec::new(),
    }
}

fn may_be_whereabouts(text: &str, allow: &Allow) -> bool {
    may_be(text, WHEREABOUTS, allow)
}

/// Whether `text` is `value`, or a placeholder that can have this value.
pub(crate) fn may_be(text: &str, value: &str, allow: &Allow) -> bool {
    match parse(text).as_deref() {
        Ok([Part::Placeholder(name)]) => {
            let values = template::place_with(name, allow);
            matches!(values, Ok(PlaceholderValue::OneOf(values)) if values.contains(&json!(value)))
        }
        _ => text == value,
    }
}

/// The most plugins of a chain. The `ipam` of a ClaimNetwork's addresses may be written into each.
const MAX_PLUGINS: usize = 32;
/// The most placeholders of a configuration, `$${` included.
const MAX_PLACEHOLDERS: usize = 256;

/// Returns what there is too much of in a configuration to check the rest of it. Paths are relative to the
/// configuration.
pub(crate) fn too_much(config: &Map<String, Value>) -> Vec<Invalid> {
    let plugins = config.get("plugins").and_then(Value::as_array).map_or(0, Vec::len);
    let placeholders: usize = config.values().map(placeholders).sum();
    let many = (placeholders > MAX_PLACEHOLDERS).then(|| {
        let problem = format!("has {placeholders} placeholders: write at most {MAX_PLACEHOLDERS}");
        Invalid::new("", problem)
    });
    Invalid::too_many("plugins", plugins, MAX_PLUGINS).into_iter().chain(many).collect()
}

fn placeholders(value: &Value) -> usize {
    match value {
        Value::String(text) => text.matches("${").count(),
        Value::Array(items) => items.iter().map(placeholders).sum(),
        Value::Object(object) => object.values().map(placeholders).sum(),
        _ => 0,
    }
}

/// The `cniVersion` of a configuration that is used in the highest version that all its plugins support.
const AUTO: &str = "auto";

/// Returns a conflist that offers all versions where it is written with the version `auto`: the runtime
/// chooses among them on each node.
pub(crate) fn with_versions(mut conflist: Map<String, Value>) -> Map<String, Value> {
    if conflist.get("cniVersion").and_then(Value::as_str) == Some(AUTO)
        && !conflist.contains_key("cniVersions")
    {
        conflist.remove("cniVersion");
        conflist.insert("cniVersions".to_owned(), json!(SpecVersion::ALL));
    }
    conflist
}

/// Returns a conflist as it is, and the configuration of a single plugin as a chain of one.
pub(crate) fn as_conflist(config: &Map<String, Value>) -> Map<String, Value> {
    if config.contains_key("plugins") || !config.contains_key("type") {
        return with_versions(config.clone());
    }
    let mut plugin = config.clone();
    let mut list = Map::new();
    for key in ["cniVersion", "name"] {
        list.extend(plugin.remove(key).map(|value| (key.to_owned(), value)));
    }
    list.insert("plugins".into(), json!([plugin]));
    with_versions(list)
}

/// Returns what attaches an uplink device whose class has no configuration: layer 2 only, no address.
/// `limited` adds the bandwidth plugin.
pub(crate) fn plain_conflist(link_use: LinkUse, limited: bool) -> Map<String, Value> {
    let plugin = match link_use {
        LinkUse::Nic => json!({"type": "host-device", "device": "${uplink.name}"}),
        LinkUse::Macvlan => json!({"type": "macvlan", "master": "${uplink.name}", "mode": "bridge"}),
        LinkUse::Ipvlan => json!({"type": "ipvlan", "master": "${uplink.name}", "mode": "l2"}),
    };
    let shaper = json!({"type": BANDWIDTH_PLUGIN, "capabilities": {"bandwidth": true}});
    let plugins: Vec<Value> = [plugin].into_iter().chain(limited.then_some(shaper)).collect();
    Map::from_iter([("cniVersion".to_owned(), json!("1.0.0")), ("plugins".to_owned(), json!(plugins))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_auto_offers_every_version() {
        let of = |config: Value| {
            let mut list = as_conflist(config.as_object().expect("an object"));
            list.insert("name".to_owned(), json!("n"));
            let json = Value::Object(list).to_string();
            assert_eq!(netclaim_cni::validate::validate(json.as_bytes()), [], "{json}");
            let list = netclaim_cni::NetworkList::parse(json.as_bytes()).expect("a list");
            (list.version(), list.versions().len())
        };
        let all = (SpecVersion::CURRENT, SpecVersion::ALL.len());
        assert_eq!(of(json!({"cniVersion": "auto", "plugins": [{"type": "x"}]})), all);
        let mut single = json!({"cniVersion": "auto", "type": "x"});
        assert_eq!(of(single.clone()), all);
        single["cniVersion"] = json!("1.0.0");
        assert_eq!(of(single), (SpecVersion::V1_0_0, 1));
    }

    fn places(config: Value, allow: Value) -> Vec<String> {
        let config: Map<String, Value> = serde_json::from_value(config).expect("an object");
        let allow: Allow = serde_json::from_value(allow).expect("decodes");
        whereabouts_problems(&config, &allow).into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn whereabouts_is_found_wherever_a_plugin_would_call_it() {
        let ipam = json!({"type": "whereabouts", "range": "10.0.0.0/24"});
        for (plugin, place) in [
            (json!({"type": "macvlan", "ipam": ipam}), "ipam.type"),
            (json!({"type": "whereabouts", "ipam": {"range": "10.0.0.0/24"}}), "type"),
            (json!({"type": "flannel", "delegate": {"type": "bridge", "ipam": ipam}}), "delegate.ipam.type"),
            (
                json!({"type": "many", "delegates": [{"conf": {"IPAM": {"Type": "whereabouts"}}}]}),
                "delegates[0].conf.IPAM.Type",
            ),
        ] {
            let list = json!({"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}, plugin]});
            assert_eq!(places(list, json!({})), [format!("plugins[1].{place}")]);
        }
        let other = json!({"type": "macvlan", "note": "whereabouts", "ipam": {"type": "dhcp"}});
        assert_eq!(places(json!({"name": "whereabouts", "plugins": [other]}), json!({})), [""; 0]);
    }

    #[test]
    fn a_macvlan_in_mode_passthru_takes_the_whole_link() {
        let used = |plugin: Value| {
            let plugins = [plugin.as_object().cloned().expect("an object")];
            (link_use_of(&plugins), has_child(&plugins))
        };
        let macvlan = |mode: &str| json!({"type": "macvlan", "master": "eth1", "mode": mode});
        assert_eq!(used(macvlan("bridge")), (Some(LinkUse::Macvlan), true));
        assert_eq!(used(macvlan("passthru")), (Some(LinkUse::Nic), true));
        assert_eq!(used(json!({"type": "host-device", "device": "eth1"})), (Some(LinkUse::Nic), false));
        let inside =
            json!({"type": "macvlan", "master": "bond0", "mode": "passthru", "linkInContainer": true});
        assert_eq!(used(inside), (None, false));
    }

    #[test]
    fn a_configuration_of_which_there_is_too_much_is_refused_by_count() {
        let config = |plugins: usize, texts: usize| {
            let plugin = json!({"type": "x", "y": vec!["${a}$${b"; texts]});
            let config = json!({"plugins": vec![plugin; plugins]});
            too_much(config.as_object().expect("an object"))
        };
        let texts = |problems: Vec<Invalid>| problems.iter().map(Invalid::to_string).collect::<Vec<_>>();
        assert_eq!(config(32, 4), []);
        assert_eq!(texts(config(33, 0)), ["plugins: has 33 items: write at most 32"]);
        assert_eq!(texts(config(1, 129)), ["has 258 placeholders: write at most 256"]);
    }

    #[test]
    fn whereabouts_is_found_among_what_claims_may_choose() {
        let list = json!({"plugins": [{"type": "macvlan", "ipam": {"type": "${parameters.ipam}"}}]});
        let choice = |values: Value| json!({"parameters": {"ipam": {"type": "string", "enum": values}}});
        assert_eq!(places(list.clone(), choice(json!(["dhcp", "whereabouts"]))), ["plugins[0].ipam.type"]);
        assert_eq!(places(list, choice(json!(["dhcp", "static"]))), [""; 0]);
    }
}
