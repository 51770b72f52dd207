//! `Network`: what an admin defines once and tenants ask for by claim.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Allow, IfName, Invalid, NetworkName, Quantity, template};

/// A network that pods can be attached to: a CNI configuration, where it works, how much there is of it, and
/// what tenants may set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(
    feature = "crd",
    derive(kube::CustomResource),
    kube(
        group = "netclaim.dev",
        version = "v1alpha1",
        kind = "Network",
        plural = "networks",
        shortname = "netw",
        category = "netclaim",
        status = "NetworkStatus",
        doc = "A network that pods can be attached to by ResourceClaim.",
        printcolumn = r#"{"name":"Scope","type":"string","jsonPath":".spec.scope"}"#,
        printcolumn = r#"{"name":"Accepted","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].status"}"#,
        printcolumn = r#"{"name":"Nodes","type":"integer","jsonPath":".status.nodes","description":"nodes that publish it"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkSpec {
    /// `Node`: each node hands out what it has. `Cluster`: one budget for all nodes.
    #[serde(default)]
    pub scope: Scope,
    /// Labels of the nodes that have this network; all nodes by default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The link of the node that the network goes through; none for networks that live inside the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<UplinkSelector>,
    /// The CNI conflist, with `${…}` places.
    #[schemars(schema_with = "conflist")]
    pub cni: Map<String, Value>,
    /// How much of it can be handed out.
    #[serde(default, skip_serializing_if = "NetworkCapacity::is_empty")]
    pub capacity: NetworkCapacity,
    /// What claims may set.
    #[serde(default)]
    pub allow: Allow,
}

fn conflist(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "The CNI conflist, with ${…} places.",
    })
}

/// Who counts what is handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum Scope {
    #[default]
    Node,
    Cluster,
}

/// Which link of a node a Network uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UplinkSelector {
    /// Interface names in order of preference; a node uses the first that it has as an uplink.
    #[schemars(length(min = 1, max = 32))]
    pub interfaces: Vec<IfName>,
}

/// How much of a Network can be handed out: on each node, or in the whole cluster where the scope is `Cluster`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkCapacity {
    /// Bits per second; by default the speed of the uplink where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Quantity>,
    /// Interfaces at once; not limited by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interfaces: Option<Quantity>,
    /// Addresses; by default what the ranges of a `host-local` IPAM hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Quantity>,
}

impl NetworkCapacity {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What the controller found out about a Network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Nodes that publish the network as a device; not set where the scope is `Cluster`, whose device belongs to no
    /// node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i64>,
    /// `Accepted`: the spec is valid, or what is wrong with it.
    #[cfg(feature = "crd")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
}

/// What a link becomes when the plugin uses it. The kernel gives a link one receive handler, so these exclude
/// each other on one uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkUse {
    /// Parent of macvlan children.
    Macvlan,
    /// Parent of ipvlan children.
    Ipvlan,
    /// Handed away whole.
    Nic,
}

/// Versions of the CNI specification that a conflist may name.
const CNI_VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Plugins that work on a link of the node, and the key that names it.
const LINK_KEYS: [(&str, &str); 4] =
    [("macvlan", "master"), ("ipvlan", "master"), ("vlan", "master"), ("host-device", "device")];

impl NetworkSpec {
    /// Every problem of the spec at once; empty means accepted. `name` is the object's name.
    pub fn problems(&self, name: &str) -> Vec<Invalid> {
        let mut problems = Vec::new();
        if let Err(problem) = name.parse::<NetworkName>() {
            problems.push(Invalid::new("metadata.name", problem));
        }
        if self.uplink.as_ref().is_some_and(|uplink| uplink.interfaces.is_empty()) {
            problems.push(Invalid::new("spec.uplink.interfaces", "is empty: name at least one interface"));
        }
        for (name, amount) in
            [("interfaces", self.capacity.interfaces), ("addresses", self.capacity.addresses)]
        {
            if amount == Some(Quantity::new(0)) {
                problems.push(Invalid::new(
                    format!("spec.capacity.{name}"),
                    "is 0: nobody could use the network",
                ));
            }
        }
        for (key, value) in &self.node_selector {
            if !is_label_key(key) || !(value.is_empty() || is_label_name(value)) {
                let problem = format!("{key}={value} cannot be a label: no node would be selected");
                problems.push(Invalid::new("spec.nodeSelector", problem));
            }
        }
        if self.scope == Scope::Cluster && self.is_exclusive() {
            let problem = "a plugin that takes a whole link belongs to its node: use scope Node";
            problems.push(Invalid::new("spec.scope", problem));
        }
        for (name, rule) in &self.allow.parameters {
            let path = format!("spec.allow.parameters.{name}");
            problems.extend(rule.problems().into_iter().map(|p| p.within(&path)));
        }
        problems.extend(self.cni_problems().into_iter().map(|p| p.within("spec.cni")));
        problems
    }

    fn cni_problems(&self) -> Vec<Invalid> {
        let mut problems = conflist_problems(&self.cni);
        let (places, malformed) = template::places(&Value::Object(self.cni.clone()));
        problems.extend(malformed);
        for (path, place) in places {
            let known = template::PLACES.contains(&place.as_str())
                || place
                    .strip_prefix("parameters.")
                    .is_some_and(|name| self.allow.parameters.contains_key(name));
            if !known {
                let parameters = self.allow.parameters.keys().map(|name| format!("parameters.{name}"));
                let names: Vec<String> =
                    template::PLACES.map(String::from).into_iter().chain(parameters).collect();
                problems.push(Invalid::new(
                    path,
                    format!("${{{place}}} is unknown: use one of {}", names.join(", ")),
                ));
            } else if place.starts_with("uplink.") && self.uplink.is_none() {
                problems.push(Invalid::new(path, format!("${{{place}}} needs spec.uplink")));
            }
        }
        for (i, plugin) in self.plugins().enumerate() {
            let Some((_, key)) = LINK_KEYS.iter().find(|(r#type, _)| *r#type == plugin_type(plugin)) else {
                continue;
            };
            let inside_pod = plugin.get("linkInContainer") == Some(&Value::Bool(true));
            if !inside_pod && plugin.get(*key).and_then(Value::as_str) != Some("${uplink.ifName}") {
                problems.push(Invalid::new(
                    format!("plugins[{i}].{key}"),
                    "must be \"${uplink.ifName}\", with the link listed in spec.uplink.interfaces: \
                     otherwise the scheduler does not know which link is used",
                ));
            }
        }
        problems
    }

    fn plugins(&self) -> impl Iterator<Item = &Map<String, Value>> {
        self.cni.get("plugins").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
    }

    /// The types of the plugins, in the order of the chain.
    pub fn plugin_types(&self) -> Vec<&str> {
        self.plugins().map(plugin_type).collect()
    }

    /// How the network uses its uplink, where it does so exclusively.
    pub fn link_use(&self) -> Option<LinkUse> {
        link_use(&self.plugin_types())
    }

    /// Whether one attachment at a time takes all of it.
    pub fn is_exclusive(&self) -> bool {
        self.link_use() == Some(LinkUse::Nic)
    }
}

/// How a chain of these plugin types uses its uplink.
pub fn link_use(plugin_types: &[&str]) -> Option<LinkUse> {
    plugin_types.iter().find_map(|plugin| match *plugin {
        "macvlan" => Some(LinkUse::Macvlan),
        "ipvlan" => Some(LinkUse::Ipvlan),
        "host-device" => Some(LinkUse::Nic),
        _ => None,
    })
}

fn plugin_type(plugin: &Map<String, Value>) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// What is wrong with the frame of a conflist; paths are relative to it. What is inside the plugins' own keys is
/// theirs to judge.
pub(crate) fn conflist_problems(conflist: &Map<String, Value>) -> Vec<Invalid> {
    let mut problems = Vec::new();
    match conflist.get("cniVersion").and_then(Value::as_str) {
        Some(version) if CNI_VERSIONS.contains(&version) => {}
        Some(version) => {
            let known = CNI_VERSIONS.join(", ");
            problems.push(Invalid::new("cniVersion", format!("{version:?} is unknown: use one of {known}")));
        }
        None => problems.push(Invalid::new("cniVersion", "is missing: write for example \"1.1.0\"")),
    }
    let plugins = match conflist.get("plugins") {
        Some(Value::Array(plugins)) if !plugins.is_empty() => plugins.as_slice(),
        Some(_) => {
            problems.push(Invalid::new("plugins", "must be a list with at least one plugin"));
            &[]
        }
        None => {
            problems.push(Invalid::new("plugins", "is missing: list at least one plugin with a \"type\""));
            &[]
        }
    };
    for (i, plugin) in plugins.iter().enumerate() {
        let path = format!("plugins[{i}]");
        let Value::Object(plugin) = plugin else {
            problems.push(Invalid::new(path, "must be an object"));
            continue;
        };
        if !is_plugin_name(plugin_type(plugin)) {
            problems.push(Invalid::new(
                format!("{path}.type"),
                "must be the file name of a CNI plugin, such as \"macvlan\"",
            ));
        }
        for key in plugin.keys().filter(|key| {
            matches!(key.as_str(), "prevResult" | "runtimeConfig") || key.starts_with("cni.dev/")
        }) {
            problems.push(Invalid::new(format!("{path}.{key}"), "is the runtime's to set: remove it"));
        }
        if let Some(ipam) = plugin.get("ipam").and_then(Value::as_object)
            && !ipam.is_empty()
            && !is_plugin_name(plugin_type(ipam))
        {
            problems.push(Invalid::new(
                format!("{path}.ipam.type"),
                "must be the file name of an IPAM plugin, such as \"host-local\"",
            ));
        }
    }
    problems
}

/// A label's key: a name, with a DNS subdomain in front or without.
fn is_label_key(key: &str) -> bool {
    let domain = |text: &str| text.len() <= 253 && text.split('.').all(crate::names::is_dns_label);
    match key.split_once('/') {
        Some((prefix, name)) => domain(prefix) && is_label_name(name),
        None => is_label_name(key),
    }
}

/// The name part of a label's key, or its value.
fn is_label_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |c: Option<&u8>| c.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |c: &u8| c.is_ascii_alphanumeric() || b"-_.".contains(c);
    bytes.len() <= 63 && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
}

fn is_plugin_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0', '$'])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn storage() -> Value {
        json!({
            "uplink": {"interfaces": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.ifName}", "mode": "bridge",
                 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.20.0.0/24"}]]}}]},
            "capacity": {"bandwidth": "10G", "interfaces": 64},
            "allow": {"ips": false, "bandwidth": true},
        })
    }

    fn problems_of(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut spec = storage();
        change(&mut spec);
        let spec: NetworkSpec = serde_json::from_value(spec).expect("decodes");
        spec.problems("storage").iter().map(Invalid::to_string).collect()
    }

    #[test]
    fn the_example_of_the_readme_is_accepted() {
        assert_eq!(problems_of(|_| {}), [""; 0]);
        let spec: NetworkSpec = serde_json::from_value(storage()).expect("decodes");
        assert_eq!(spec.link_use(), Some(LinkUse::Macvlan));
        assert_eq!(spec.plugin_types(), ["macvlan"]);
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let found = problems_of(|spec| {
            spec["cni"] = json!({"cniVersion": "9.9.9", "plugins": [{"type": "a/b", "prevResult": {}}, 1, {"type": "x", "y": "${nope}"}]});
            spec["capacity"]["interfaces"] = json!(0);
        });
        let fields: Vec<_> = found.iter().map(|p| p.split(": ").next().unwrap_or_default()).collect();
        let expected = [
            "spec.capacity.interfaces",
            "spec.cni.cniVersion",
            "spec.cni.plugins[0].type",
            "spec.cni.plugins[0].prevResult",
            "spec.cni.plugins[1]",
            "spec.cni.plugins[2].y",
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn a_link_that_the_scheduler_cannot_know_is_refused() {
        let found = problems_of(|spec| spec["cni"]["plugins"][0]["master"] = json!("eth1"));
        assert!(found.len() == 1 && found[0].starts_with("spec.cni.plugins[0].master: must be"), "{found:?}");
        let found = problems_of(|spec| {
            spec.as_object_mut().expect("object").remove("uplink");
        });
        assert_eq!(found, ["spec.cni.plugins[0].master: ${uplink.ifName} needs spec.uplink"]);
    }

    #[test]
    fn a_selector_that_selects_nothing_and_a_scope_that_cannot_be_counted_are_refused() {
        let found = problems_of(|spec| {
            spec["nodeSelector"] = json!({"rack": "no label", "example.org/zone": "a", "ok": ""})
        });
        assert_eq!(found, ["spec.nodeSelector: rack=no label cannot be a label: no node would be selected"]);
        let found = problems_of(|spec| {
            spec["scope"] = json!("Cluster");
            spec["cni"]["plugins"][0] = json!({"type": "host-device", "device": "${uplink.ifName}"});
        });
        assert_eq!(
            found,
            ["spec.scope: a plugin that takes a whole link belongs to its node: use scope Node"]
        );
    }

    #[test]
    fn parameters_must_be_declared_to_be_used() {
        let found = problems_of(|spec| {
            spec["allow"]["parameters"] = json!({"vlan": {"type": "integer", "minimum": 1, "maximum": 4094}});
            spec["cni"]["plugins"][0]["a"] = json!("${parameters.vlan}");
            spec["cni"]["plugins"][0]["b"] = json!("${parameters.vlam}");
        });
        assert!(
            found.len() == 1 && found[0].starts_with("spec.cni.plugins[0].b: ${parameters.vlam} is unknown"),
            "{found:?}"
        );
    }
}
