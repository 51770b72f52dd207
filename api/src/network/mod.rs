//! `Network`: what an admin defines once and tenants ask for by claim.

pub mod overlap;
mod validation;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attribute::DeclaredAttributes;
use crate::conflist::{Plugin, link_use_of, plugins, vlan_of};
use crate::labels::LabelSelector;
use crate::segmentation::Segmentation;
use crate::{Allow, IfName, LinkUse, NetworkName, Quantity};

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
        printcolumn = r#"{"name":"Available","type":"string","jsonPath":".status.conditions[?(@.type==\"Available\")].status"}"#,
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
    /// Labels of the namespaces whose claims may use the network; all namespaces by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// The link of the node that the network goes through; none for networks that live inside the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<UplinkSelector>,
    /// The CNI conflist, with `${…}` places.
    #[schemars(schema_with = "conflist")]
    pub cni: Map<String, Value>,
    /// How much of it can be handed out.
    #[serde(default, skip_serializing_if = "NetworkCapacity::is_empty")]
    pub capacity: NetworkCapacity,
    /// VLAN ids or VNIs that attachments get, one each, as `${segmentation.id}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segmentation: Option<Segmentation>,
    /// Attributes of the network's devices, for selectors and constraints of claims.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: DeclaredAttributes,
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

/// Which link of a node a Network uses: the first that has one of the names and all of the attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UplinkSelector {
    /// Interface names in order of preference; any by default, in the order of the kernel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub interfaces: Vec<IfName>,
    /// Attributes that an UplinkPolicy, or a file on the node, gave the link.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: DeclaredAttributes,
}

/// How much of a Network can be handed out: on each node, or in the whole cluster where the scope is `Cluster`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkCapacity {
    /// Bits per second that claims can ask for; none by default.
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
    /// `Accepted`: True when pods can claim the network, with the reason `AcceptedWithWarnings` where something in the
    /// spec may not be meant as it is; else False, with everything that is wrong. `Available`: whether there is a node where
    /// it can be used now, with those where it cannot, and why; not set where the scope is `Cluster`.
    #[cfg(feature = "crd")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
}

impl NetworkSpec {
    /// The VLAN id that every attachment has on the uplink: the kernel makes one link of an id, so that one pod at a
    /// time can have it.
    pub fn fixed_vlan(&self) -> Option<u32> {
        vlan_of(self.plugins())
    }

    /// The bridge that the uplink has to be a port of, where the network is a bridge.
    pub fn bridge(&self) -> Option<&str> {
        let bridge = self.plugins().find(|plugin| plugin.plugin_type() == "bridge")?;
        Some(bridge.get("bridge").and_then(Value::as_str).filter(|name| !name.is_empty()).unwrap_or("cni0"))
    }

    fn plugins(&self) -> impl Iterator<Item = &Map<String, Value>> {
        plugins(&self.cni)
    }

    /// The types of the plugins, in the order of the chain.
    pub fn plugin_types(&self) -> Vec<&str> {
        self.plugins().map(Plugin::plugin_type).collect()
    }

    /// The name of the CNI network, by which IPAM plugins keep their leases. `name` is the object's name.
    pub fn list_name(&self, name: &NetworkName) -> String {
        let written = self.cni.get("name").and_then(Value::as_str).map(str::to_owned);
        written.unwrap_or_else(|| conflist_name(name.as_str()))
    }

    /// How the network uses its uplink, where it does so exclusively.
    pub fn link_use(&self) -> Option<LinkUse> {
        link_use_of(self.plugins())
    }

    /// Whether one attachment at a time takes all of it.
    pub fn is_exclusive(&self) -> bool {
        self.link_use() == Some(LinkUse::Nic) || self.fixed_vlan().is_some()
    }
}

/// The name that the conflist of a Network gets when it has none: what plugins keep on the node goes by it.
pub fn conflist_name(network: &str) -> String {
    format!("netclaim-{network}")
}
