//! `UplinkPolicy`: which links of which nodes pods may use, and which attributes their devices have.
//!
//! By default, the agent publishes the links that lead out of a node and do not carry the node's own traffic.
//! A policy publishes more or fewer links, and declares what the kernel does not know about a link. If
//! several policies select a link:
//!
//! * a policy with `publish: Never` wins over all others;
//! * otherwise the policies are combined, and if two contradict each other, the first by name wins.

mod admission;
mod selector;
mod validation;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::attribute::{
    AttributeName, AttributeValue, DeclaredAttributes, MAX_DECLARED, admission_rules_of_declared,
};
use crate::node_selector::NodeSelector;
use crate::{LinkUse, Quantity};

pub use selector::{LinkFacts, LinkSelector, Pattern};

/// Which links of which nodes pods may use, and which attributes their devices have.
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
        doc = "Which links of which nodes pods may use, and which attributes their devices have.",
        printcolumn = r#"{"name":"Publish","type":"string","jsonPath":".spec.publish"}"#,
        printcolumn = r#"{"name":"Accepted","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].status","description":"whether nodes follow the policy"}"#,
        printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].reason","description":"why it is accepted or not"}"#,
        printcolumn = r#"{"name":"Nodes","type":"integer","jsonPath":".status.nodes.following","description":"number of nodes that follow the policy"}"#,
        printcolumn = r#"{"name":"Links","type":"integer","jsonPath":".status.links","description":"number of links that follow the policy"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = admission::admission_rules()))]
pub struct UplinkPolicySpec {
    /// Selects the nodes that the policy applies to, by their labels. By default, it applies to every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// The links that the policy applies to. A link must match every field that is set.
    pub links: LinkSelector,
    /// Whether the links become devices. `Auto`: as without a policy. `Always`: also virtual links, links
    /// with addresses or routes of the node, and physical functions with virtual functions. Loopback devices,
    /// ports of other links, and links that a default route or an address of the Node object needs are never
    /// published. `Never`: no device, whatever other policies say.
    #[serde(default)]
    pub publish: Publish,
    /// What becomes of links that carry the node's own traffic. `Exclude`: only ClaimNetworks that name one
    /// use it. `Share`: they are also devices of their own, for macvlan and ipvlan.
    #[serde(default)]
    pub node_links: NodeLinks,
    /// How pods may use the links, such as `[macvlan, ipvlan]`. By default, all that the kernel supports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_MODES), extend("x-kubernetes-list-type" = "set"))]
    pub modes: Vec<LinkUse>,
    /// Attributes of the links' devices, which selectors and constraints of claims can use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = MAX_DECLARED, "x-kubernetes-validations" = admission_rules_of_declared()))]
    pub attributes: DeclaredAttributes,
    /// How much of each link claims can be granted.
    #[serde(default, skip_serializing_if = "UplinkCapacity::is_empty")]
    pub capacity: UplinkCapacity,
}

/// The most modes of a policy: there are no more.
const MAX_MODES: usize = 3;

/// The state of a policy, as the controller sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UplinkPolicyStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Numbers of nodes. It is not set while the spec is invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<PolicyNodes>,
    /// Links of these nodes that follow the policy: those that it selects and pods may use, or could if no
    /// policy withheld them. 0 means that `spec.links` selects nothing on nodes with devices: others are not
    /// counted. It is not set while the spec is invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<i64>,
    /// `Accepted` is True if nodes follow the policy, and False, with every problem, if the spec is invalid.
    #[cfg(feature = "crd")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
}

/// Numbers of nodes of a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyNodes {
    /// Nodes that `spec.nodeSelector` selects.
    pub selected: i64,
    /// Selected nodes with an agent that publishes devices: these follow the policy.
    pub following: i64,
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

/// What becomes of links that carry the node's own traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum NodeLinks {
    #[default]
    Exclude,
    Share,
}

/// How much of a link claims can be granted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = admission::capacity_rules()))]
pub struct UplinkCapacity {
    /// Bandwidth of the link in bits per second, such as `10G`. By default, it is the speed that the link
    /// reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Quantity>,
}

impl UplinkCapacity {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the first value that a policy gives to each attribute.
pub fn first_values<'a>(
    policies: impl IntoIterator<Item = &'a UplinkPolicySpec>,
) -> BTreeMap<AttributeName, AttributeValue> {
    let mut values = BTreeMap::new();
    for (name, value) in policies.into_iter().flat_map(|policy| &policy.attributes) {
        values.entry(name.clone()).or_insert_with(|| value.clone());
    }
    values
}
