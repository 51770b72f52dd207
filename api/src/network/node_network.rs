//! `spec.node`: what is set up on a node before its first pod of a ClaimNetwork, and removed after the last
//! one: a chain of ordinary CNI plugins, with ADD and DEL in the node's own network namespace.
//!
//! The CNI specification has no verb for it (issue 975 of the specification is open), and reference plugins
//! know ADD and DEL only.

use netclaim_cni::placeholder::{Part, PlaceholderValue, parse};
use netclaim_cni::validate::{Severity, UnknownPlaceholder, validate, validate_template};
use netclaim_cni::{BANDWIDTH_PLUGIN, LINK_PLUGIN, NetworkList, ROUTE_PLUGIN, error_chain};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::default_route::to_everywhere;
use super::{ClaimNetworkSpec, Scope, conflist_name};
use crate::addresses::Family;
use crate::conflist::{Plugin, chain_problems, is_inside_pod, plugins, too_much, with_versions};
use crate::template::{self, NODE_LABELS, UPLINK_ATTRIBUTES};
use crate::{Allow, IfName, Invalid, NetworkName};

/// The placeholder for the interface that is set up on the node.
pub const NODE_INTERFACE: &str = "node.interfaceName";

/// How long an unused setup stays, in seconds: a CronJob does not make and remove a VLAN each minute.
const IDLE_SECONDS: u32 = 300;

/// The longest that it can stay, in seconds: a week.
const MAX_IDLE_SECONDS: u32 = 7 * 24 * 3600;

/// What a node gets once, before its first pod of the ClaimNetwork, and loses after the last one: links that
/// pods share, such as a VLAN link and a bridge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeNetwork {
    /// Name of the interface that the plugins make on the node (CNI_IFNAME), such as `${uplink.name}.100`: at
    /// most 15 characters on the node. Pods' plugins use it as `${node.interfaceName}`.
    #[schemars(length(min = 1, max = 253))]
    pub interface_name: String,
    /// The CNI network configuration list, whose plugins run in the node's network namespace, with
    /// placeholders such as `${uplink.name}` or `${node.labels.KEY}`: none of a pod or a claim.
    #[schemars(schema_with = "conflist")]
    pub cni: Map<String, Value>,
    /// How long it stays on a node without pods of the ClaimNetwork, in seconds: at most 604800.
    #[serde(default = "idle_seconds")]
    #[schemars(range(max = MAX_IDLE_SECONDS))]
    pub idle_seconds: u32,
}

const fn idle_seconds() -> u32 {
    IDLE_SECONDS
}

fn conflist(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "The CNI network configuration list, whose plugins run in the node's network namespace, with \
                        placeholders such as ${uplink.name} or ${node.labels.KEY}: none of a pod or a claim.",
    })
}

/// Why plugins have no place on a node, by type.
const REFUSED: [(&str, &str); 8] = [
    ("host-device", "would rename a link of the node, which loses its addresses"),
    ("loopback", "would set the node's own lo down"),
    ("portmap", "forwards ports to a pod, and there is none here"),
    ("ptp", "connects a pod with the node, and there is none here"),
    ("sbr", "would move the node's own routes"),
    ("bandwidth", "limits the interface of a pod"),
    (BANDWIDTH_PLUGIN, "limits the interface of a pod"),
    (ROUTE_PLUGIN, "sets the default route of a pod"),
];

/// The reference plugin whose ADD on a node fails without an IPAM after it has made the link, and whose DEL
/// fails for ever then (release 1.9.1). `vlan` and `dummy` do, too, and never go without one.
const NEEDS_IPAM: &str = "ipvlan";

/// Plugins that work on a link of the node, their `master`.
const ON_MASTER: [&str; 4] = ["macvlan", "ipvlan", "vlan", LINK_PLUGIN];

/// What is set up on one node.
#[derive(Debug, Clone, PartialEq)]
pub struct OnNode {
    /// The interface (CNI_IFNAME).
    pub interface: IfName,
    /// The CNI network configuration list.
    pub conflist: NetworkList,
}

impl NodeNetwork {
    /// Returns what is set up on the node whose placeholders `scope` fills.
    ///
    /// # Errors
    /// What has no value there, or makes no sense with these values; the path is relative to the spec.
    pub fn resolve(&self, network: &NetworkName, scope: &template::Scope) -> Result<OnNode, Invalid> {
        let of_cni = |problem: Invalid| problem.within("spec.node.cni");
        let mut conflist = with_versions(self.cni.clone());
        conflist.insert("name".to_owned(), Value::String(node_conflist_name(network)));
        let json = template::resolve(&Value::Object(conflist), scope).map_err(of_cni)?.to_string();
        if let Some(finding) =
            validate(json.as_bytes()).into_iter().find(|finding| finding.severity == Severity::Error)
        {
            return Err(of_cni(finding.into()));
        }
        let conflist = NetworkList::parse(json.as_bytes());
        let conflist = conflist.map_err(|error| Invalid::new("spec.node.cni", error_chain(&error)))?;
        Ok(OnNode { interface: self.interface(scope)?, conflist })
    }

    /// Returns the name of the interface on the node whose placeholders `scope` fills.
    ///
    /// # Errors
    /// Why it has none there.
    pub fn interface(&self, scope: &template::Scope) -> Result<IfName, Invalid> {
        let at = |problem: String| Invalid::new("spec.node.interfaceName", problem);
        let name =
            template::resolve(&json!(self.interface_name), scope).map_err(|error| at(error.to_string()))?;
        let name = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
        name.parse().map_err(|error| at(format!("{name:?}: {}", error_chain(&error))))
    }

    pub(super) fn plugins(&self) -> impl Iterator<Item = &Map<String, Value>> {
        plugins(&self.cni)
    }

    /// The VLAN that the network has on its uplink, where it is written out.
    pub(super) fn vlan(&self) -> Option<u64> {
        self.vlan_as_written()?.as_u64()
    }

    /// The VLAN that the network has on its uplink: an id, or a placeholder.
    pub(super) fn vlan_as_written(&self) -> Option<&Value> {
        self.plugins().find_map(|plugin| match plugin.plugin_type() {
            "vlan" => plugin.get("vlanId"),
            LINK_PLUGIN => plugin.get("id"),
            _ => None,
        })
    }

    /// Whether the uplink itself becomes a port of a bridge.
    pub(super) fn makes_uplink_a_port(&self) -> bool {
        self.plugins().any(|plugin| {
            plugin.plugin_type() == LINK_PLUGIN
                && plugin.contains_key("bridge")
                && plugin.contains_key("master")
        })
    }

    /// The kinds of links that its plugins make in the kernel, as the types of plugins that make them for
    /// pods.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &str> {
        self.plugins().map(|plugin| match plugin.plugin_type() {
            LINK_PLUGIN => plugin.get("kind").and_then(Value::as_str).unwrap_or_default(),
            other => other,
        })
    }

    /// Every value that may have placeholders.
    pub fn templates(&self) -> impl Iterator<Item = Value> {
        self.cni.values().cloned().chain([json!(self.interface_name)])
    }
}

impl ClaimNetworkSpec {
    /// Problems of `spec.node`.
    pub(super) fn node_problems(&self) -> Vec<Invalid> {
        let Some(node) = &self.node else { return Vec::new() };
        let mut problems: Vec<Invalid> = too_much(&node.cni).into_iter().map(|p| p.within("cni")).collect();
        if problems.is_empty() {
            if self.scope == Scope::Cluster {
                problems.push(Invalid::new("", OF_A_NODE));
            }
            if node.idle_seconds > MAX_IDLE_SECONDS {
                let problem = format!("is longer than a week: write at most {MAX_IDLE_SECONDS}");
                problems.push(Invalid::new("idleSeconds", problem));
            }
            problems.extend(self.interface_problem(node));
            problems.extend(self.node_findings(node, Severity::Error));
            problems.extend(plugin_problems(node).into_iter().map(|p| p.within("cni")));
        }
        problems.into_iter().map(|problem| problem.within("spec.node")).collect()
    }

    /// Likely mistakes in `spec.node`.
    pub(super) fn node_warnings(&self) -> impl Iterator<Item = Invalid> {
        let findings = self.node.iter().flat_map(|node| self.node_findings(node, Severity::Warning));
        findings.map(|problem| problem.within("spec.node"))
    }

    fn interface_problem(&self, node: &NodeNetwork) -> Option<Invalid> {
        let at = |problem: String| Some(Invalid::new("interfaceName", problem));
        let parts = match parse(&node.interface_name) {
            Ok(parts) => parts,
            Err(error) => return at(error.to_string()),
        };
        let unknown = parts.iter().find_map(|part| match part {
            Part::Placeholder(name) => self.place_on_node(name).err(),
            Part::Text(_) => None,
        });
        if let Some(UnknownPlaceholder { problem, advice }) = unknown {
            return at(format!("{problem}: {advice}"));
        }
        let is_template = parts.iter().any(|part| matches!(part, Part::Placeholder(_)));
        let name: Result<IfName, _> = node.interface_name.parse();
        match name {
            Ok(name) if name.as_str() == "lo" => at("lo is the node's own: choose another name".to_owned()),
            Err(error) if !is_template => at(error_chain(&error)),
            _ => None,
        }
    }

    /// What validation finds in the conflist of the node, under the name that it will have.
    fn node_findings(&self, node: &NodeNetwork, severity: Severity) -> Vec<Invalid> {
        let mut conflist = with_versions(node.cni.clone());
        conflist.insert("name".to_owned(), json!("netclaim-network.node"));
        let places = |place: &str| self.place_on_node(place);
        let findings = validate_template(Value::Object(conflist).to_string().as_bytes(), &places).into_iter();
        let of_severity = findings.filter(|finding| finding.severity == severity);
        of_severity.map(|finding| Invalid::from(finding).within("cni")).collect()
    }

    /// Returns the facts about a placeholder that has a value without a pod.
    fn place_on_node(&self, name: &str) -> Result<PlaceholderValue, UnknownPlaceholder> {
        let is_of_node = matches!(name, "network.name" | "node.name") || name.starts_with(NODE_LABELS);
        let is_of_uplink = name.starts_with("uplink.");
        match &self.uplink {
            None if is_of_uplink => Err(UnknownPlaceholder {
                problem: format!("${{{name}}} needs spec.uplink"),
                advice: "list the links there".to_owned(),
            }),
            _ if is_of_node || is_of_uplink => template::place_with(name, &Allow::default()),
            _ => Err(UnknownPlaceholder {
                problem: format!("${{{name}}} has no value before there is a pod"),
                advice: format!(
                    "use network.name, node.name, {NODE_LABELS}KEY, uplink.name, uplink.mac, uplink.mtu or {UPLINK_ATTRIBUTES}NAME"
                ),
            }),
        }
    }
}

/// What the CNI specification permits and a node does not.
fn plugin_problems(node: &NodeNetwork) -> Vec<Invalid> {
    let mut problems = Vec::new();
    if node.cni.contains_key("name") {
        problems.push(Invalid::new("name", "is netclaim's to choose: remove it"));
    }
    problems.extend(chain_problems(&node.cni));
    if !matches!(node.cni.get("plugins"), Some(Value::Array(plugins)) if !plugins.is_empty()) {
        problems.push(Invalid::new("plugins", "has no plugin: list those that set the network up"));
    }
    for (index, plugin) in node.plugins().enumerate() {
        let at = |key: &str| format!("plugins[{index}].{key}");
        let kind = plugin.plugin_type();
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == kind) {
            problems.push(Invalid::new(at("type"), format!("{kind} {why}: remove it")));
        }
        if kind == NEEDS_IPAM && ipam_type(plugin).is_none() {
            let problem = format!(
                "is missing, and without it {kind} fails after it has made the link, and cannot remove it: write one, or \
                 use the plugin {LINK_PLUGIN}"
            );
            problems.push(Invalid::new(at("ipam"), problem));
        }
        if is_inside_pod(plugin) {
            problems.push(Invalid::new(at("linkInContainer"), "has no meaning on a node: remove it"));
        }
        for (key, family) in default_routes(plugin) {
            let problem = format!("would be the node's own {family} default route: remove it");
            problems.push(Invalid::new(at(&key), problem));
        }
        let master = plugin.get("master").filter(|_| ON_MASTER.contains(&kind));
        if master.is_some_and(|master| master != "${uplink.name}") {
            let problem = "must be \"${uplink.name}\", with the link listed in spec.uplink.links: otherwise the scheduler does \
                           not know which link is used";
            problems.push(Invalid::new(at("master"), problem));
        }
    }
    problems
}

fn ipam_type(plugin: &Map<String, Value>) -> Option<&str> {
    plugin.get("ipam")?.get("type")?.as_str().filter(|kind| !kind.is_empty())
}

/// Returns the default routes that a plugin would add, with their fields.
fn default_routes(plugin: &Map<String, Value>) -> Vec<(String, Family)> {
    let routes = plugin.get("ipam").and_then(|ipam| ipam.get("routes")).and_then(Value::as_array);
    let dst = |(index, route): (usize, &Value)| {
        Some((format!("ipam.routes[{index}].dst"), to_everywhere(route.get("dst")?.as_str()?)?))
    };
    let by_key = (plugin.get("isDefaultGateway") == Some(&Value::Bool(true)))
        .then(|| ("isDefaultGateway".to_owned(), Family::V4));
    routes.into_iter().flatten().enumerate().filter_map(dst).chain(by_key).collect()
}

/// Returns the name of the conflist of `spec.node`. No ClaimNetwork's name has a dot, so that it is the name
/// of no other one.
pub fn node_conflist_name(network: &NetworkName) -> String {
    format!("{}{NODE_CONFLIST}", conflist_name(network.as_str()))
}

/// What the names of these conflists end with.
pub const NODE_CONFLIST: &str = ".node";

pub(super) const OF_A_NODE: &str =
    "is set up by nodes, and the capacity of a ClaimNetwork of scope Cluster is not a node's: use scope Node";

#[cfg(test)]
mod tests {
    use super::*;

    fn network(node: Value, plugin: Value) -> ClaimNetworkSpec {
        let spec = json!({"uplink": {"links": ["eth1"]}, "node": node,
            "cni": {"cniVersion": "1.1.0", "plugins": [plugin]}});
        serde_json::from_value(spec).expect("decodes")
    }

    fn bridge() -> Value {
        json!({"type": "bridge", "bridge": "br100"})
    }

    fn vlan_and_bridge() -> Value {
        json!({"interfaceName": "${uplink.name}.100", "cni": {"cniVersion": "1.1.0", "plugins": [
            {"type": "netclaim-link", "kind": "vlan", "master": "${uplink.name}", "id": 100},
            {"type": "netclaim-link", "kind": "bridge", "bridge": "br100"}]}})
    }

    fn problems(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut node = vlan_and_bridge();
        change(&mut node);
        network(node, bridge()).problems("storage").iter().map(Invalid::to_string).collect()
    }

    #[test]
    fn a_vlan_and_a_bridge_are_accepted_and_stay_five_minutes() {
        assert_eq!(problems(|_| {}), [""; 0]);
        let spec = network(vlan_and_bridge(), bridge());
        assert_eq!(spec.warnings("storage"), []);
        let node = spec.node.as_ref().expect("is set");
        assert_eq!((node.idle_seconds, node.vlan()), (300, Some(100)));
        assert_eq!((spec.bridge(), spec.link_use(), spec.is_exclusive()), (None, None, false));
    }

    #[test]
    fn it_is_resolved_for_a_node() {
        let spec = network(vlan_and_bridge(), bridge());
        let node = spec.node.expect("is set");
        let name = "storage".parse().expect("a name");
        let scope = |uplink: &str| template::Scope::from_iter([("uplink.name".to_owned(), json!(uplink))]);
        let on_node = node.resolve(&name, &scope("eth1")).expect("resolves");
        assert_eq!(on_node.interface.as_str(), "eth1.100");
        assert_eq!(on_node.conflist.name().as_str(), "netclaim-storage.node");
        assert!(on_node.conflist.raw().contains(r#""master":"eth1""#), "{}", on_node.conflist.raw());
        let error = node.resolve(&name, &scope("enp65s0f0np0v12")).expect_err("too long").to_string();
        assert!(error.starts_with("spec.node.interfaceName: \"enp65s0f0np0v12.100\": "), "{error}");
        let error = node.resolve(&name, &template::Scope::new()).expect_err("no uplink").to_string();
        assert_eq!(error, "spec.node.cni.plugins[0].master: ${uplink.name} has no value here");
    }

    #[test]
    fn a_field_that_has_no_place_on_a_node_is_refused_by_name() {
        let of_plugin = |plugin: Value| problems(|node| node["cni"]["plugins"] = json!([plugin]));
        for (plugin, expected) in [
            (
                json!({"type": "loopback"}),
                "spec.node.cni.plugins[0].type: loopback would set the node's own lo down",
            ),
            (
                json!({"type": "host-device", "device": "eth1"}),
                "spec.node.cni.plugins[0].type: host-device would rename",
            ),
            (
                json!({"type": "ptp", "ipam": {"type": "host-local"}}),
                "spec.node.cni.plugins[0].type: ptp connects",
            ),
            (json!({"type": "sbr"}), "spec.node.cni.plugins[0].type: sbr would move the node's own routes"),
            (
                json!({"type": "ipvlan", "master": "${uplink.name}"}),
                "spec.node.cni.plugins[0].ipam: is missing",
            ),
            (
                json!({"type": "macvlan", "master": "eth9"}),
                "spec.node.cni.plugins[0].master: must be \"${uplink.name}\"",
            ),
            (
                json!({"type": "macvlan", "master": "${uplink.name}", "linkInContainer": true}),
                "spec.node.cni.plugins[0].linkInContainer: has no meaning",
            ),
            (
                json!({"type": "bridge", "isDefaultGateway": true}),
                "spec.node.cni.plugins[0].isDefaultGateway: would be",
            ),
            (
                json!({"type": "macvlan", "master": "${uplink.name}", "ipam": {"type": "static",
                "addresses": [{"address": "192.0.2.1/24"}], "routes": [{"dst": "::/0"}]}}),
                "spec.node.cni.plugins[0].ipam.routes[0].dst: would be the node's own IPv6 default route",
            ),
            (
                json!({"type": "x", "pod": "${pod.name}"}),
                "spec.node.cni.plugins[0].pod: ${pod.name} has no value before",
            ),
        ] {
            let found = of_plugin(plugin.clone());
            assert!(found.iter().any(|problem| problem.starts_with(expected)), "{plugin}: {found:?}");
        }
        let one = |change: &dyn Fn(&mut Value)| problems(change).first().cloned().unwrap_or_default();
        assert!(
            one(&|node| node["interfaceName"] = json!("lo")).starts_with("spec.node.interfaceName: lo is")
        );
        assert!(one(&|node| node["interfaceName"] = json!("a/b")).starts_with("spec.node.interfaceName: "));
        assert!(one(&|node| node["interfaceName"] = json!("${claim.uid}")).contains("before there is a pod"));
        assert!(
            one(&|node| node["cni"]["name"] = json!("x")).starts_with("spec.node.cni.name: is netclaim's")
        );
        assert!(one(&|node| node["cni"]["plugins"] = json!([])).starts_with("spec.node.cni"));
        assert!(
            one(&|node| node["idleSeconds"] = json!(700_000)).starts_with("spec.node.idleSeconds: is longer")
        );
        let mut spec = network(vlan_and_bridge(), bridge());
        spec.scope = Scope::Cluster;
        assert!(spec.problems("storage").iter().any(|problem| problem.field == "spec.node"));
        (spec.scope, spec.uplink) = (Scope::Node, None);
        assert!(spec.problems("storage").iter().any(|problem| problem.problem.contains("needs spec.uplink")));
    }

    #[test]
    fn pods_can_be_on_the_interface_of_the_node() {
        let macvlan = |master: &str| json!({"type": "macvlan", "master": master, "mode": "bridge"});
        let on_node = network(vlan_and_bridge(), macvlan("${node.interfaceName}"));
        assert_eq!(on_node.problems("storage"), []);
        assert_eq!(on_node.link_use(), None, "a VLAN shares the uplink with everybody");
        let own = json!({"interfaceName": "storage0", "cni": {"cniVersion": "1.1.0", "plugins": [macvlan("${uplink.name}")]}});
        let beside = network(own, macvlan("${uplink.name}"));
        assert_eq!(beside.problems("storage"), []);
        assert_eq!(beside.link_use(), Some(crate::LinkUse::Macvlan));
        let mut without = on_node;
        without.node = None;
        let found = without.problems("storage");
        assert!(found.iter().any(|problem| problem.problem.contains("needs spec.node")), "{found:?}");
    }
}
