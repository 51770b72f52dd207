//! `UplinkPolicy`: which links of which nodes pods may use, and what is said of them.
//!
//! Without a policy the agent publishes the links that lead out of a node and do not carry its own traffic. A policy
//! publishes more, or less, and tells what a link cannot tell. Of several policies that select a link
//!
//! * one that says `Never` wins over all others;
//! * else what they say is put together, and where two say different things the first by name wins.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::attribute::{
    AttributeName, AttributeValue, DeclaredAttributes, MAX_DECLARED, admission_rules_of_declared,
};
use crate::labels::node_selector_problems;
use crate::stored::{Stored, read_stored};
use crate::{Invalid, LinkUse, Quantity};

/// Which links of which nodes pods may use, and what is said of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(
    feature = "crd",
    derive(kube::CustomResource),
    kube(
        group = "netclaim.dev",
        version = "v1alpha1",
        kind = "UplinkPolicy",
        plural = "uplinkpolicies",
        shortname = "uplinkpol",
        category = "netclaim",
        status = "UplinkPolicyStatus",
        doc = "Which links of which nodes pods may use, and what is said of them.",
        printcolumn = r#"{"name":"Publish","type":"string","jsonPath":".spec.publish"}"#,
        printcolumn = r#"{"name":"Accepted","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].status"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = admission_rules()))]
pub struct UplinkPolicySpec {
    /// Labels of the nodes that it is for; all nodes by default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The links that it is for: those that every field fits that is set.
    pub links: LinkSelector,
    /// Whether they become devices. `Auto`: as without a policy. `Always`: also links of kinds that are not taken by
    /// default, links with addresses or routes of the node, and whole cards that have virtual functions; but never a
    /// loopback device, a port of another link, or one that a default route or an address of the Node object needs.
    /// `Never`: whatever other policies say.
    #[serde(default)]
    pub publish: Publish,
    /// Links that carry the node's own traffic are devices too, to be shared by macvlan and ipvlan. A Network that names
    /// such a link needs no policy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub share_node_links: bool,
    /// The ways in which pods may use the links; all that the kernel can by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub modes: Vec<LinkUse>,
    /// Attributes of the links' devices, for selectors and constraints of claims.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = MAX_DECLARED, "x-kubernetes-validations" = admission_rules_of_declared()))]
    pub attributes: DeclaredAttributes,
    /// How much of a link can be handed out.
    #[serde(default, skip_serializing_if = "UplinkCapacity::is_empty")]
    pub capacity: UplinkCapacity,
}

/// What the API server refuses: as much of [`UplinkPolicySpec::problems`] as CEL says in a line.
fn admission_rules() -> Value {
    let selects = ["names", "drivers", "pciIDs", "pciBusIDs", "macs", "addresses", "minSpeed"];
    let selects = selects.map(|field| format!("has(self.links.{field})")).join(" || ");
    let shares = "has(self.shareNodeLinks) && self.shareNodeLinks";
    json!([
        {"rule": format!("self.publish != 'Always' || {selects}"), "message": ALWAYS_EVERY_LINK},
        {"rule": format!("self.publish != 'Never' || !({shares})"), "message": NEVER_SHARED},
        {"rule": format!("!({shares}) || !has(self.modes) || self.modes != ['nic']"), "message": SHARED_WHOLE},
    ])
}

const ALWAYS_EVERY_LINK: &str =
    "selects every link, the pods' own included: say which links are to be published Always";
const NEVER_SHARED: &str = "shareNodeLinks has no meaning with publish: Never";
const SHARED_WHOLE: &str = "a link cannot be shared and given away whole: allow macvlan or ipvlan";

/// What the controller found out about a policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UplinkPolicyStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Accepted`: True when nodes follow the policy, else False, with everything that is wrong.
    #[cfg(feature = "crd")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
}

/// Whether links become devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum Publish {
    #[default]
    Auto,
    Always,
    Never,
}

/// How much of a link can be handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UplinkCapacity {
    /// Bits per second, instead of the speed that the link tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Quantity>,
}

impl UplinkCapacity {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Selects links. Every field that is set must fit, by any of its entries; `*` stands for any characters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LinkSelector {
    /// Interface names, alternative ones too: `eth1`, `ens*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub names: Vec<Pattern>,
    /// Kernel drivers, or kinds of software links: `mlx5_core`, `bond`, `veth`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub drivers: Vec<Pattern>,
    /// PCI vendor and device: `8086:1572`, `15b3:*`.
    #[serde(rename = "pciIDs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub pci_ids: Vec<Pattern>,
    /// PCI addresses: `0000:3b:00.1`, `0000:3b:*`.
    #[serde(rename = "pciBusIDs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub pci_bus_ids: Vec<Pattern>,
    /// MAC addresses: `02:00:00:00:00:01`, `02:00:*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub macs: Vec<Pattern>,
    /// Links with an IP address in one of these networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), with = "Vec<String>")]
    pub addresses: Vec<IpNet>,
    /// Links of at least this speed, in bits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_speed: Option<Quantity>,
}

/// A text in which `*` stands for any characters, also none. Letters match in either case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Pattern(String);

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > 64 || !printable {
            return Err(format!(
                "{text:?} is no pattern: write 1 to 64 printable characters, * for any number of any"
            ));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0
    }
}

impl Pattern {
    /// Whether `text` is what the pattern says.
    pub fn fits(&self, text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        let mut pieces = self.0.split('*');
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let Some(last) = pieces.next_back() else { return rest.is_empty() };
        for piece in pieces {
            let Some((_, after)) = rest.split_once(piece) else { return false };
            rest = after;
        }
        rest.ends_with(last)
    }
}

/// What a policy looks at in a link.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "see `LinkSelector`")]
pub struct LinkFacts<'a> {
    pub names: &'a [&'a str],
    pub driver: Option<&'a str>,
    pub pci_id: Option<&'a str>,
    pub pci_bus_id: Option<&'a str>,
    pub mac: Option<&'a str>,
    pub addresses: &'a [IpAddr],
    pub speed: Option<u64>,
}

impl LinkSelector {
    /// Whether a link is selected.
    pub fn selects(&self, link: &LinkFacts<'_>) -> bool {
        let any = |patterns: &[Pattern], text: Option<&str>| {
            patterns.is_empty() || text.is_some_and(|text| patterns.iter().any(|pattern| pattern.fits(text)))
        };
        let named = |name: &&str| self.names.iter().any(|pattern| pattern.fits(name));
        let within = |address: &IpAddr| self.addresses.iter().any(|network| network.contains(address));
        (self.names.is_empty() || link.names.iter().any(named))
            && any(&self.drivers, link.driver)
            && any(&self.pci_ids, link.pci_id)
            && any(&self.pci_bus_ids, link.pci_bus_id)
            && any(&self.macs, link.mac)
            && (self.addresses.is_empty() || link.addresses.iter().any(within))
            && self.min_speed.is_none_or(|least| link.speed.is_some_and(|speed| speed >= least.value()))
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl UplinkPolicySpec {
    /// Reads the spec of a stored policy that nodes can follow, without fields that this version does not know. Those of
    /// `links` it has to know: it would select more than is meant.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(spec: &Value) -> Result<Stored<Self>, Vec<Invalid>> {
        let stored = read_stored::<Self>(spec).map_err(|problem| vec![problem.within("spec")])?;
        let of_links = stored.unknown.iter().filter(|path| path.starts_with("links."));
        let mut problems: Vec<Invalid> =
            of_links.map(|path| Invalid::new(format!("spec.{path}"), "unknown field")).collect();
        problems.extend(stored.value.problems());
        if problems.is_empty() { Ok(stored) } else { Err(problems) }
    }

    /// What nodes do instead of a policy that they cannot follow: one that publishes less than there would be without it
    /// becomes one that publishes nothing of what it selects, as far as that can be read, and else nothing at all. `None`
    /// where it publishes more or only says something of links.
    pub fn instead_of(spec: &Value) -> Option<Self> {
        fn readable<T: DeserializeOwned>(spec: &Value, field: &str) -> Option<T> {
            Some(read_stored(spec.get(field)?).ok()?.value)
        }
        let restricts = |field: &str, harmless: &[Value]| {
            spec.get(field).is_some_and(|value| !value.is_null() && !harmless.contains(value))
        };
        let publishes_less = !spec.is_object()
            || restricts("publish", &[json!("Auto"), json!("Always")])
            || restricts("modes", &[json!([])]);
        publishes_less.then(|| Self {
            node_selector: readable(spec, "nodeSelector")
                .filter(|labels| node_selector_problems(labels).is_empty())
                .unwrap_or_default(),
            links: readable(spec, "links").unwrap_or_default(),
            publish: Publish::Never,
            ..Self::default()
        })
    }

    /// Every problem at once; empty means that the policy holds.
    pub fn problems(&self) -> Vec<Invalid> {
        let mut problems = node_selector_problems(&self.node_selector);
        if self.publish == Publish::Always && self.links.is_empty() {
            problems.push(Invalid::new("spec.links", ALWAYS_EVERY_LINK));
        }
        if self.publish == Publish::Never && self.share_node_links {
            problems.push(Invalid::new("spec.shareNodeLinks", NEVER_SHARED));
        }
        if self.share_node_links && self.modes.as_slice() == [LinkUse::Nic] {
            problems.push(Invalid::new("spec.modes", SHARED_WHOLE));
        }
        if self.capacity.bandwidth == Some(Quantity::new(0)) {
            problems.push(Invalid::new("spec.capacity.bandwidth", "is 0: leave it out, or publish Never"));
        }
        problems.extend(
            crate::attribute::problems(&self.attributes).into_iter().map(|p| p.within("spec.attributes")),
        );
        problems
    }
}

/// The first value that a policy gives to each attribute.
pub fn first_values<'a>(
    policies: impl IntoIterator<Item = &'a UplinkPolicySpec>,
) -> BTreeMap<AttributeName, AttributeValue> {
    let mut values = BTreeMap::new();
    for (name, value) in policies.into_iter().flat_map(|policy| &policy.attributes) {
        values.entry(name.clone()).or_insert_with(|| value.clone());
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(value: Value) -> UplinkPolicySpec {
        serde_json::from_value(value).expect("a policy")
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        let fits =
            |pattern: &str, text: &str| Pattern::try_from(pattern.to_owned()).expect("a pattern").fits(text);
        assert!(fits("eth1", "eth1") && fits("eth*", "eth1") && fits("*", "") && fits("15B3:*", "15b3:1017"));
        assert!(fits("e*s*np0", "enp3s0f0np0") && fits("a*a", "aa"));
        assert!(
            !fits("eth1", "eth10") && !fits("*h1", "eth10") && !fits("a*a", "a") && !fits("a*b*c", "acb")
        );
    }

    #[test]
    fn every_field_that_is_set_has_to_fit() {
        let nic = LinkFacts {
            names: &["ens1f0", "storage0"],
            driver: Some("mlx5_core"),
            pci_id: Some("15b3:1017"),
            pci_bus_id: Some("0000:3b:00.0"),
            mac: Some("02:00:00:00:00:01"),
            addresses: &["10.1.2.3".parse().expect("an address")],
            speed: Some(25_000_000_000),
        };
        let selects = |links: Value| policy(json!({"links": links})).links.selects(&nic);
        assert!(selects(json!({})));
        assert!(selects(json!({"names": ["storage*"], "pciIDs": ["8086:*", "15b3:*"], "minSpeed": "25G"})));
        assert!(selects(json!({"addresses": ["10.1.0.0/16"], "drivers": ["mlx5_core"]})));
        assert!(!selects(json!({"names": ["ens1f0"], "minSpeed": "40G"})));
        assert!(!selects(json!({"addresses": ["fd00::/8"]})));
    }

    #[test]
    fn a_policy_of_a_newer_version_is_read_without_what_is_new_unless_that_chooses_links() {
        let read = UplinkPolicySpec::read(&json!({"links": {"names": ["eth1"]}, "drainFirst": true}));
        assert_eq!(read.expect("readable").unknown, ["drainFirst"]);
        let read = UplinkPolicySpec::read(&json!({"links": {"names": ["eth*"], "switches": ["a"]}}));
        assert_eq!(
            read.expect_err("it would select more")[0].to_string(),
            "spec.links.switches: unknown field"
        );
    }

    #[test]
    fn a_policy_that_cannot_be_followed_publishes_no_more_than_it_meant() {
        let instead = |spec: Value| {
            assert!(UplinkPolicySpec::read(&spec).is_err(), "{spec}");
            UplinkPolicySpec::instead_of(&spec)
        };
        let never = |rest: Value| {
            let mut spec = policy(rest);
            spec.publish = Publish::Never;
            Some(spec)
        };
        let bad = json!({"mtu": {"int": 1}});
        let eth3 = json!({"names": ["eth3"]});
        for (field, value) in
            [("publish", json!("Never")), ("publish", json!("Perhaps")), ("modes", json!(["vdpa"]))]
        {
            let mut spec = json!({"links": eth3, "nodeSelector": {"rack": "a"}, "attributes": bad});
            spec[field] = value;
            assert_eq!(instead(spec), never(json!({"links": eth3, "nodeSelector": {"rack": "a"}})));
        }
        // Where it cannot be read what it selects, it selects everything.
        let unread = json!({"links": {"names": [7]}, "nodeSelector": {"a b": "c"}, "publish": "Never"});
        assert_eq!(instead(unread), never(json!({"links": {}})));
        assert_eq!(instead(Value::Null), never(json!({"links": {}})));
        // It gives more than there is without it, or says something only.
        for spec in [json!({"links": {}, "publish": "Always"}), json!({"links": eth3, "attributes": bad})] {
            assert_eq!(instead(spec), None);
        }
    }

    #[test]
    fn a_policy_that_cannot_be_meant_is_refused_by_field() {
        let fields = |value| policy(value).problems().into_iter().map(|p| p.field).collect::<Vec<_>>();
        assert_eq!(fields(json!({"links": {}, "publish": "Always"})), ["spec.links"]);
        assert_eq!(fields(json!({"links": {}, "nodeSelector": {"a b": "c"}})), ["spec.nodeSelector"]);
        assert_eq!(fields(json!({"links": {}, "attributes": {"mtu": {"int": 1}}})), ["spec.attributes.mtu"]);
        assert_eq!(fields(json!({"links": {}, "shareNodeLinks": true, "modes": ["nic"]})), ["spec.modes"]);
        assert!(fields(json!({"links": {"names": ["dummy*"]}, "publish": "Always"})).is_empty());
    }
}
