//! `ClaimNetwork`: a network that an admin defines and that tenants request through claims.

mod admission;
mod bandwidth;
mod classes;
mod default_network;
mod default_route;
mod finalize;
mod frames;
mod namespaces;
mod node_network;
mod on_failure;
pub mod overlap;
mod primary;
mod repair;
mod traffic_metrics;
mod validation;
mod wire;

use std::collections::BTreeMap;

use netclaim_kubernetes::labels::is_label_key;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::addresses::{AddressTotals, NetworkAddresses};
use crate::attribute::{self, DeclaredAttributes, MAX_DECLARED, admission_rules_of_declared};
use crate::conflist::{Plugin, has_child, link_use_of, plugins, vlan_of, with_versions};
use crate::decode::decode;
use crate::node_selector::NodeSelector;
use crate::segmentation::Segmentation;
use crate::{Allow, IfName, Invalid, LinkUse, NetworkName, ObjectName, Quantity};

pub use bandwidth::{LEAST_BANDWIDTH, NetworkBandwidth, Unrequested};
pub use classes::{NetworkClass, OwnClass, class_expression};
pub use default_network::{
    DEFAULT_LABEL, DEFAULT_NETWORKS, DefaultCapacity, DefaultClaim, DefaultNetwork, MADE_BY, default_claim,
    default_template, network_of_template, opt_out,
};
pub use finalize::finalize_name;
pub use namespaces::{Namespaces, NamespacesFrom};
pub use node_network::{NODE_CONFLIST, NODE_INTERFACE, NodeNetwork, OnNode, node_conflist_name};
pub use on_failure::{OnFailure, OnTrafficFailure};
pub use repair::Repair;
pub use traffic_metrics::TrafficMetrics;
pub use wire::{Conflicts, Gateway};

/// A network that pods can be attached to through ResourceClaims.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(
    feature = "crd",
    derive(kube::CustomResource),
    kube(
        group = "netclaim.dev",
        version = "v1alpha1",
        kind = "ClaimNetwork",
        plural = "claimnetworks",
        shortname = "cnet",
        category = "netclaim",
        status = "ClaimNetworkStatus",
        doc = "A network that pods can be attached to through ResourceClaims.",
        validation = kube::core::Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,56}[a-z0-9])?$')").message(
            "the name must be a DNS label of at most 58 bytes, because net-NAME is the name of its devices"
        ),
        validation = kube::core::Rule::new("!has(self.spec.default) || size(self.metadata.name) <= 55").message(
            "a ClaimNetwork with spec.default may have a name of at most 55 bytes, because default-NAME is what pods call their claim"
        ),
        printcolumn = r#"{"name":"Uplink","type":"string","jsonPath":".spec.uplink.links[0]","description":"first name of the link that carries the network; empty if attributes select it"}"#,
        printcolumn = r#"{"name":"Accepted","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].status","description":"whether claims can use the network"}"#,
        printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].reason","description":"why it is accepted or not"}"#,
        printcolumn = r#"{"name":"Available","type":"string","jsonPath":".status.conditions[?(@.type==\"Available\")].status","description":"whether a node can serve the network now"}"#,
        printcolumn = r#"{"name":"Nodes","type":"integer","jsonPath":".status.nodes.available","description":"number of nodes where pods can get the network now"}"#,
        printcolumn = r#"{"name":"Leased","type":"integer","jsonPath":".status.addresses.leased","description":"addresses in blocks that nodes have leased"}"#,
        printcolumn = r#"{"name":"Free","type":"integer","jsonPath":".status.addresses.free","description":"addresses in blocks that no node has leased"}"#,
        printcolumn = r#"{"name":"Used","type":"integer","jsonPath":".status.addresses.used","description":"addresses that pods have, as the nodes reported last","priority":1}"#,
        printcolumn = r#"{"name":"Scope","type":"string","jsonPath":".spec.scope","description":"where the capacity is counted","priority":1}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[schemars(extend("x-kubernetes-validations" = admission::spec_rules()))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimNetworkSpec {
    /// Where the network's capacity is counted. `Node`: each node has the whole `capacity`. `Cluster`: all
    /// nodes share it; do not use it on node groups that an autoscaler scales, because one pod can stop the
    /// cluster autoscaler. It cannot change.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-validations" = admission::scope_rules()))]
    pub scope: Scope,
    /// Selects the nodes that offer the network, by their labels. By default, every node offers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// The namespaces whose claims may use the network. By default, those of every namespace may.
    #[serde(default, skip_serializing_if = "Namespaces::is_all")]
    pub namespaces: Namespaces,
    /// Whether the controller makes a DeviceClass of the ClaimNetwork's name, by which pods ask for the
    /// network: `Own` or `None`. By default, it makes one unless `deviceClassNames` lists some. It is deleted
    /// with the ClaimNetwork. A DeviceClass of this name that the controller has not made is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OwnClass")]
    pub device_class: Option<OwnClass>,
    /// More DeviceClasses that the controller makes, each with its own settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_CLASSES), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub device_classes: Vec<NetworkClass>,
    /// Names of DeviceClasses beside these that select the network. A claim from another namespace than
    /// `namespaces` that names any of them is refused when it is created. What asks by another class is
    /// refused when it is allocated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_CLASSES), extend("x-kubernetes-list-type" = "set"))]
    pub device_class_names: Vec<ObjectName>,
    /// Makes the network a default: pods of the namespaces that it selects get it without asking, unless
    /// their annotation `netclaim.dev/default-networks` leaves it out. The chart's `defaultNetworks.enabled`
    /// must be on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<DefaultNetwork>,
    /// The link of each node that carries the network. Leave it out for networks inside a node, such as a
    /// bridge without a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<UplinkSelector>,
    /// What each node gets once, before its first pod of the network, such as a VLAN link and a bridge that
    /// all its pods share. It is removed after the last pod. It cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = admission::node_rules()))]
    pub node: Option<NodeNetwork>,
    /// The CNI network configuration list, with placeholders such as `${uplink.name}` or
    /// `${parameters.NAME}`. With `cniVersion: auto` each node uses the highest version that its plugins
    /// support.
    #[schemars(schema_with = "conflist")]
    pub cni: Map<String, Value>,
    /// A CNI network configuration list that runs for each attachment after all attachments of its pod, and
    /// before the pod's containers start, such as one of `tuning` or `sbr`. Its first plugin gets the results
    /// of all attachments as `prevResult`. It has the placeholders of `cni`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "finalize::schema")]
    pub finalize: Option<Map<String, Value>>,
    /// What becomes of an attachment whose interface a CHECK finds broken, for example because its uplink was
    /// removed and made again. `None`: the claim and an event say so. `Reattach`: it is made again in the
    /// running pod, with the same addresses. What the pod itself has set up on the interface is lost then.
    #[serde(default, skip_serializing_if = "Repair::is_none")]
    pub repair: Repair,
    /// What becomes of running pods on a node where the network fails.
    #[serde(default, skip_serializing_if = "OnFailure::is_default")]
    pub on_failure: OnFailure,
    /// The addresses of the network. Nodes lease blocks of them, so that no two pods of the cluster get one
    /// address. Use them in `cni` as `"ipam": "${addresses}"`; the first plugin gets them where no plugin has
    /// an `ipam`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<NetworkAddresses>,
    /// How much of the network claims can be granted.
    #[serde(default, skip_serializing_if = "NetworkCapacity::is_empty")]
    pub capacity: NetworkCapacity,
    /// How the bandwidth of the network's links is kept for the claims that were granted it.
    #[serde(default, skip_serializing_if = "NetworkBandwidth::is_default")]
    pub bandwidth: NetworkBandwidth,
    /// VLAN ids or VNIs. Each attachment gets one of them. Use it in `cni` as `${segmentation.id}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segmentation: Option<Segmentation>,
    /// Attributes of the network's devices, which selectors and constraints of claims can use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = MAX_DECLARED, "x-kubernetes-validations" = admission_rules_of_declared()))]
    pub attributes: DeclaredAttributes,
    /// Labels of pods that plugins get, by the capability `podLabels`. By default, they get none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_labels: Option<PodLabels>,
    /// Whether interfaces take addresses and routes from the network's IPv6 routers (router advertisements).
    /// By default, they take none: whatever sends on the network could give pods another default route.
    #[serde(default, rename = "acceptRA", skip_serializing_if = "std::ops::Not::not")]
    pub accept_ra: bool,
    /// What becomes of an address that another host on the network has. `Ignore`: the pod uses it, too.
    /// `Probe`: before the pod's containers start, the agent asks the network for up to 1 s who has the
    /// address (ARP, IPv6 neighbour discovery). If another host has it, the pod gets another address or
    /// waits, and its claim names the host's MAC address.
    #[serde(default, skip_serializing_if = "Conflicts::is_ignore")]
    pub conflicts: Conflicts,
    /// Whether the pod's containers wait until the gateway of each address answers (ARP, IPv6 neighbour
    /// discovery). `Optional`: they do not. `Required`: they wait, and the claim names a gateway that does
    /// not answer.
    #[serde(default, skip_serializing_if = "Gateway::is_optional")]
    pub gateway: Gateway,
    /// Whether the agents' metrics have what each attachment receives and sends. `None`: they do not.
    /// `Attachments`: they have eight time series for each attachment, which are read at each scrape.
    #[serde(default, skip_serializing_if = "TrafficMetrics::is_none")]
    pub traffic_metrics: TrafficMetrics,
    /// What claims may set. By default, a claim may set the name of the interface only.
    #[serde(default)]
    pub allow: Allow,
}

/// Labels of pods that plugins get as they are when the claim is prepared. The author of the pod chooses
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodLabels {
    /// Keys of the labels, such as `app.kubernetes.io/name`. A pod without a label passes none for it.
    #[schemars(length(min = 1, max = MAX_POD_LABELS), extend("x-kubernetes-list-type" = "set"))]
    pub keys: Vec<String>,
}

/// The capability by which plugins get labels of the pod.
pub const POD_LABELS: &str = "podLabels";

/// The most labels that plugins get.
const MAX_POD_LABELS: usize = 16;

impl PodLabels {
    /// Returns every problem; paths are relative to it.
    fn problems(&self) -> Vec<Invalid> {
        let none =
            self.keys.is_empty().then(|| Invalid::new("keys", "is empty: list the labels, or remove it"));
        let many = Invalid::too_many("keys", self.keys.len(), MAX_POD_LABELS);
        let wrong = self.keys.iter().enumerate().filter(|(_, key)| !is_label_key(key)).map(|(i, key)| {
            Invalid::new(
                format!("keys[{i}]"),
                format!("{key:?} is not the key of a label: write for example app"),
            )
        });
        none.into_iter().chain(many).chain(wrong).collect()
    }

    /// Returns the value of the capability for a pod with these labels.
    pub fn of(&self, labels: &BTreeMap<String, String>) -> Value {
        let with =
            self.keys.iter().filter_map(|key| Some((key.clone(), Value::from(labels.get(key)?.as_str()))));
        Value::Object(with.collect())
    }
}

/// What stands for the `ipam` of a ClaimNetwork with [`ClaimNetworkSpec::addresses`].
pub const ADDRESSES: &str = "${addresses}";

fn conflist(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "properties": {"name": {
            "type": "string",
            "description": "Name of the CNI network, by which plugins keep their state on nodes. By default, it is netclaim-NAME.",
        }, "cniVersion": {
            "description": "Version of the CNI specification, such as 1.1.0; or auto, which is the highest one that all \
                            plugins on the node support.",
            "x-kubernetes-preserve-unknown-fields": true,
        }},
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "The CNI network configuration list, with placeholders such as ${uplink.name} or \
                        ${parameters.NAME}.",
    })
}

/// The most classes of a ClaimNetwork.
const MAX_CLASSES: usize = 64;

/// The most names of links, since every node looks for all of them.
const MAX_LINKS: usize = 32;

/// Where the capacity of a ClaimNetwork is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum Scope {
    #[default]
    Node,
    Cluster,
}

/// Selects the link of a node that a ClaimNetwork uses: the first with one of the names and all of the
/// attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("x-kubernetes-validations" = admission::uplink_rules()))]
pub struct UplinkSelector {
    /// Names of links, alternative ones included, the preferred one first, such as `[eth1, ens5]`. By
    /// default, any name is possible, and the link with the lowest index comes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_LINKS))]
    pub links: Vec<IfName>,
    /// Attributes that the link must have. An UplinkPolicy or a file on the node declares them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = MAX_DECLARED, "x-kubernetes-validations" = admission_rules_of_declared()))]
    pub attributes: DeclaredAttributes,
}

impl UplinkSelector {
    /// Returns every problem; paths are relative to the selector. What the driver says of a link is not
    /// declared, and selects none.
    fn problems(&self) -> Vec<Invalid> {
        let many = Invalid::too_many("links", self.links.len(), MAX_LINKS);
        let attributes = attribute::problems(&self.attributes).into_iter().map(|p| p.within("attributes"));
        many.into_iter().chain(attributes).collect()
    }
}

/// How much of a ClaimNetwork claims can be granted: on each node, or in the whole cluster if the scope is
/// `Cluster`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = admission::capacity_rules()))]
pub struct NetworkCapacity {
    /// Bandwidth that claims can request, in bits per second, such as `10G`. By default, claims can request
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Quantity>,
    /// Number of interfaces that may exist at once, such as `64`. By default, it is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interfaces: Option<Quantity>,
    /// Number of addresses. By default, it is counted from `addresses` or from the ranges of a `host-local`
    /// IPAM; set it for other IPAMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Quantity>,
}

impl NetworkCapacity {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The state of a ClaimNetwork, as the controller sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimNetworkStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Numbers of nodes. It is not set while the spec is invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// How many addresses there are and who has them. It is set if `spec.addresses` has ranges; an
    /// AddressPool has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressTotals>,
    /// What the spec may not mean as it is written, while it is accepted: at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WARNINGS), extend("x-kubernetes-list-type" = "atomic"))]
    pub warnings: Vec<Warning>,
    /// `Accepted` is True if claims can use the network, and False, with every problem, if the spec is
    /// invalid. The reason `AcceptedWithWarnings` points at a likely mistake. `Available` is True if pods can
    /// get the network on every node that should have it: those of `spec.nodeSelector`, and those that
    /// publish it. It lists the nodes that cannot, with reasons. `AddressesAvailable` is False if a node
    /// needs addresses of `spec.addresses` and no block is free for it. `PodsUpToDate` is False while pods
    /// run an older configuration of the network; it is there once pods have done so. `DeviceClassReady` is
    /// False if one of its DeviceClasses is another owner's or cannot be written. `Defaulted` is True if pods
    /// of the namespaces of `spec.default` have the network, and says how many lack it, and why.
    #[cfg(feature = "crd")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
}

/// Numbers of nodes of a ClaimNetwork.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCounts {
    /// Nodes that `spec.nodeSelector` selects.
    pub selected: i64,
    /// Nodes that publish the network as a device, or have its label if the scope is `Cluster`.
    pub publishing: i64,
    /// Publishing nodes that take new pods.
    pub available: i64,
}

/// A likely mistake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Warning {
    /// Path of the field, such as `spec.allow.mac`.
    #[schemars(length(max = 1024))]
    pub field: String,
    /// What is likely to be wrong, and what to do.
    #[schemars(length(max = 4096))]
    pub message: String,
}

/// The most warnings that a status has.
pub const MAX_WARNINGS: usize = 64;

#[cfg(feature = "crd")]
impl ClaimNetwork {
    /// Returns the condition `Accepted`; `None` if the controller has not looked at the present spec yet.
    pub fn acceptance(&self) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
        use crate::reasons::{AcceptedReason, ConditionReason as _};
        let mut conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.find(|condition| {
            condition.type_ == AcceptedReason::TYPE
                && condition.observed_generation == self.metadata.generation
        })
    }

    /// Returns why claims cannot use the network, in a sentence; `None` if they can, or if that is not known
    /// yet.
    pub fn refusal(&self) -> Option<String> {
        let refused = self.acceptance().filter(|condition| condition.status != "True")?;
        let name = self.metadata.name.as_deref().unwrap_or_default();
        Some(format!("ClaimNetwork {name} is not accepted: {}", refused.message))
    }
}

impl ClaimNetworkSpec {
    /// Reads the ClaimNetwork `name` from its spec.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(name: &str, spec: &Value) -> Result<(NetworkName, Self), Vec<Invalid>> {
        let named: Result<NetworkName, _> = name.parse();
        let spec: Self = match decode(spec) {
            Ok(spec) => spec,
            Err(errors) => {
                let of_name = named.err().map(|problem| problem.within("metadata.name"));
                return Err(of_name
                    .into_iter()
                    .chain(errors.into_iter().map(|error| error.within("spec")))
                    .collect());
            }
        };
        let problems = spec.problems(name);
        match named {
            Ok(name) if problems.is_empty() => Ok((name, spec)),
            _ => Err(problems),
        }
    }

    /// Returns the VLAN id that every attachment has on the uplink. The kernel makes one link for each id, so
    /// one pod at a time can have it.
    pub fn fixed_vlan(&self) -> Option<u32> {
        vlan_of(self.plugins().filter(|plugin| !is_on_node_interface(plugin)))
    }

    /// Returns the bridge that the uplink must be a port of, if the network is a bridge that the node has.
    pub fn bridge(&self) -> Option<&str> {
        if self.node.is_some() {
            return None;
        }
        let bridge = self.plugins().find(|plugin| plugin.plugin_type() == "bridge")?;
        Some(bridge.get("bridge").and_then(Value::as_str).filter(|name| !name.is_empty()).unwrap_or("cni0"))
    }

    fn plugins(&self) -> impl Iterator<Item = &Map<String, Value>> {
        plugins(&self.cni)
    }

    /// Returns the conflist with `ipam` for `"${addresses}"`, and in the first plugin where no plugin has an
    /// `ipam`. Without `addresses` it is the conflist as written. The version `auto` offers all versions.
    pub fn cni_with(&self, ipam: &Value) -> Map<String, Value> {
        let mut cni = with_versions(self.cni.clone());
        if self.addresses.is_none() {
            return cni;
        }
        let by_default = self.has_no_ipam();
        let plugins = cni.get_mut("plugins").and_then(Value::as_array_mut).into_iter().flatten();
        for (index, plugin) in plugins.filter_map(Value::as_object_mut).enumerate() {
            if is_place(plugin) || (by_default && index == 0) {
                plugin.insert("ipam".to_owned(), ipam.clone());
            }
        }
        cni
    }

    /// Returns the place in the chain of the plugin that gets the `addresses`.
    pub fn addresses_plugin(&self) -> Option<usize> {
        self.plugins().position(is_place).or_else(|| self.has_no_ipam().then_some(0))
    }

    fn has_no_ipam(&self) -> bool {
        self.plugins().all(|plugin| !plugin.contains_key("ipam"))
    }

    /// Returns the types of the plugins, in the order of the chain.
    pub fn plugin_types(&self) -> Vec<&str> {
        self.plugins().map(Plugin::plugin_type).collect()
    }

    /// Returns the types of the plugins that make the links of the network, those on the node included.
    pub fn link_types(&self) -> Vec<&str> {
        self.plugin_types().into_iter().chain(self.node.iter().flat_map(NodeNetwork::kinds)).collect()
    }

    /// Whether the uplink may be a port of a bridge: of the one that is made for the network.
    pub fn may_be_a_port(&self) -> bool {
        self.node.as_ref().is_some_and(NodeNetwork::makes_uplink_a_port)
    }

    /// The plugins that work on the uplink, and not on what another plugin has made on it.
    fn plugins_on_uplink(&self) -> impl Iterator<Item = &Map<String, Value>> {
        let of_pods = self.plugins().filter(|plugin| !is_on_node_interface(plugin));
        self.node.iter().flat_map(NodeNetwork::plugins).chain(of_pods)
    }

    /// Returns the name of the CNI network, by which IPAM plugins keep their leases. `name` is the object's
    /// name.
    pub fn list_name(&self, name: &NetworkName) -> String {
        let written = self.cni.get("name").and_then(Value::as_str).map(str::to_owned);
        written.unwrap_or_else(|| conflist_name(name.as_str()))
    }

    /// Returns how the network uses its uplink, if that excludes other uses.
    pub fn link_use(&self) -> Option<LinkUse> {
        link_use_of(self.plugins_on_uplink())
    }

    /// Whether an attachment moves the uplink into its pod.
    pub fn moves_link(&self) -> bool {
        self.link_use() == Some(LinkUse::Nic) && !has_child(self.plugins_on_uplink())
    }

    /// Whether the scheduler counts something of it on each node: addresses, ids, interfaces, who has it
    /// alone, or bandwidth that is guaranteed.
    pub fn is_counted_on_nodes(&self) -> bool {
        let is_of_node =
            |plugin: &Map<String, Value>| plugin.get("ipam").is_some_and(|ipam| ipam["type"] == "host-local");
        !self.capacity.is_empty()
            || self.addresses.is_some()
            || self.segmentation.is_some()
            || self.bandwidth.is_guaranteed()
            || self.is_exclusive()
            || self.plugins().any(is_of_node)
    }

    /// Whether one attachment takes the whole network on its node.
    pub fn is_exclusive(&self) -> bool {
        self.link_use() == Some(LinkUse::Nic) || self.fixed_vlan().is_some()
    }
}

/// Whether a plugin works on the interface that `spec.node` makes.
fn is_on_node_interface(plugin: &Map<String, Value>) -> bool {
    plugin.get("master").and_then(Value::as_str) == Some(ON_NODE_INTERFACE)
}

/// The `master` of plugins that work on the interface of `spec.node`.
const ON_NODE_INTERFACE: &str = "${node.interfaceName}";

/// Whether the `ipam` of a plugin stands for the ClaimNetwork's `addresses`.
fn is_place(plugin: &Map<String, Value>) -> bool {
    plugin.get("ipam").and_then(Value::as_str) == Some(ADDRESSES)
}

/// Returns the name of a conflist that has none of its own. Plugins keep their state on the node under it.
pub fn conflist_name(network: &str) -> String {
    format!("netclaim-{network}")
}
