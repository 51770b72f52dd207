//! `UplinkPolicy`: which links of which nodes pods may use, and what is said of them.
//!
//! Without a policy the agent publishes the links that lead out of a node and do not carry its own traffic. A policy
//! publishes more, or less, and tells what a link cannot tell. Of several policies that select a link
//!
//! * one that says `Never` wins over all others;
//! * else what they say is put together, and where two say different things the first by name wins.

mod admission;
mod selector;
mod validation;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::attribute::{
    AttributeName, AttributeValue, DeclaredAttributes, MAX_DECLARED, admission_rules_of_declared,
};
use crate::{LinkUse, Quantity};

pub use selector::{LinkFacts, LinkSelector, Pattern};

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
#[schemars(extend("x-kubernetes-validations" = admission::admission_rules()))]
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
