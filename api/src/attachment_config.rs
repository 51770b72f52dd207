//! `AttachmentConfig`: the settings of one attachment, in a DeviceClass or a ResourceClaim.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::written::{ip, ips};
use crate::{IfName, Invalid, IpRequest, MacAddr, Quantity};

/// Opaque device configuration of a DeviceClass or a ResourceClaim: the settings of an attachment.
///
/// Several may apply to one request. They are merged field by field in the order of the allocation, those of
/// the class first; a later one wins. The admin decides in `allow` what a claim may set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AttachmentConfig {
    /// Name of the interface in the pod. By default, interfaces are called `net1`, `net2` and so on, in the
    /// alphabetical order of the ResourceClaims' names, and in a claim in the order of its requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<IfName>,
    /// Addresses of the interface. For a ClaimNetwork with `addresses`, they are in its `reserved` part,
    /// without a prefix length, such as `10.20.0.5`. Otherwise plugins get them as they are, as the CNI
    /// capability `ips`, such as `10.20.0.5/24`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpRequest>,
    /// Addresses of the first replica of a StatefulSet, such as `10.20.0.5`; replica N gets the Nth address
    /// after each. So claims from one template have addresses of their own that stay. The ClaimNetwork must
    /// have them in `addresses.reserved`.
    #[serde(default, deserialize_with = "ips", skip_serializing_if = "Vec::is_empty", rename = "replicaIPs")]
    #[schemars(with = "Vec<String>")]
    pub replica_ips: Vec<IpAddr>,
    /// MAC address of the interface, such as `02:00:5e:10:00:01`. Plugins get it as the CNI capability `mac`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Limits of the rate in each direction. Plugins get them as the CNI capability `bandwidth`. By default,
    /// the limit of both directions is the bandwidth that the claim was granted as capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    /// Ports of the node that lead to the pod. Plugins get them as the CNI capability `portMappings`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    /// The pod's default route leads by this network, for the families in which the network gives an address
    /// and a gateway. `eth0` stays for pods, Services and the node, and for answers to what came by it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub default_route: bool,
    /// The attachment is the pod's primary network: its interface is `eth0`, and its addresses are those of
    /// the pod, for Services and probes. The pod needs the RuntimeClass of primary networks.
    #[serde(default, skip_serializing_if = "is_false")]
    pub primary: bool,
    /// CNI_ARGS for the plugins, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// Values of the configuration's parameters, by name: each replaces the placeholder `${parameters.NAME}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "any_object")]
    pub parameters: BTreeMap<String, Value>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "additionalProperties": true})
}

/// Limits of the rate in bits per second, seen from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bandwidth {
    /// Rate towards the pod, in bits per second, such as `500M`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Quantity>,
    /// Rate from the pod, in bits per second, such as `500M`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Quantity>,
}

impl Bandwidth {
    /// Returns the limit `rate` for both directions.
    pub const fn both(rate: Quantity) -> Self {
        Self { ingress: Some(rate), egress: Some(rate) }
    }
}

/// One port of the node that leads to the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortMapping {
    /// Port on the node.
    #[schemars(range(min = 1))]
    pub host_port: u16,
    /// Port in the pod.
    #[schemars(range(min = 1))]
    pub container_port: u16,
    /// Protocol of the ports. By default, it is TCP.
    #[serde(default)]
    pub protocol: Protocol,
    /// Address of the node to listen on, such as `192.0.2.10`. By default, the node listens on all of its
    /// addresses.
    #[serde(default, deserialize_with = "ip", skip_serializing_if = "Option::is_none", rename = "hostIP")]
    #[schemars(with = "Option<String>")]
    pub host_ip: Option<IpAddr>,
}

/// Transport protocols that can be mapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// The name, as the fields `protocol` of this API and of CNI spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// What separates CNI_ARGS and ends them.
const NOT_IN_ARGS: [char; 3] = ['=', ';', '\0'];
const UNWRITABLE: &str = "CNI_ARGS cannot carry \"=\" or \";\" in a name or value, nor an empty name";

/// Returns why a CNI_ARG of this name must not be passed.
pub(crate) fn arg_name_problem(name: &str) -> Option<&'static str> {
    match name {
        "IgnoreUnknown" => Some("is the driver's to say: plugins trust it"),
        name if name.starts_with("K8S_POD_") => Some("is the driver's to say: plugins trust it"),
        name => (name.is_empty() || name.contains(NOT_IN_ARGS)).then_some(UNWRITABLE),
    }
}

impl AttachmentConfig {
    /// Returns what a primary network cannot have.
    pub(crate) fn primary_problems(&self) -> impl Iterator<Item = Invalid> {
        let is_named = self.primary && self.interface_name.is_some();
        let name = is_named.then_some("is eth0 for a primary network: remove it");
        let routes = (self.primary && self.default_route)
            .then_some("comes from the routes of a primary network itself: remove it");
        let named = name.map(|problem| Invalid::new("interfaceName", problem));
        named.into_iter().chain(routes.map(|problem| Invalid::new("defaultRoute", problem)))
    }

    /// Sets what `later` sets: field by field, and maps by key.
    pub(crate) fn overlay(&mut self, later: &Self) {
        let Self {
            interface_name,
            ips,
            replica_ips,
            mac,
            bandwidth,
            port_mappings,
            default_route,
            primary,
            args,
            parameters,
        } = later.clone();
        self.interface_name = interface_name.or_else(|| self.interface_name.take());
        // Two ways to ask for addresses: one replaces the other.
        if !ips.is_empty() || !replica_ips.is_empty() {
            self.ips = ips;
            self.replica_ips = replica_ips;
        }
        self.mac = mac.or(self.mac);
        if let Some(Bandwidth { ingress, egress }) = bandwidth {
            let known = self.bandwidth.unwrap_or(Bandwidth { ingress: None, egress: None });
            self.bandwidth =
                Some(Bandwidth { ingress: ingress.or(known.ingress), egress: egress.or(known.egress) });
        }
        if !port_mappings.is_empty() {
            self.port_mappings = port_mappings;
        }
        self.default_route |= default_route;
        self.primary |= primary;
        self.args.extend(args);
        self.parameters.extend(parameters);
    }

    /// Returns every problem that decoding does not find; paths are relative to the configuration.
    pub(crate) fn problems(&self) -> Vec<Invalid> {
        let mut problems = Vec::new();
        let name = self.interface_name.as_ref().map(IfName::as_str);
        let own = match name {
            Some("lo") => Some("is the pod's loopback: choose another name"),
            Some("eth0") => Some("is the pod's own interface: choose another name, or set primary: true"),
            _ => None,
        };
        if let (Some(name), Some(problem)) = (name, own) {
            problems.push(Invalid::new("interfaceName", format!("{name:?} {problem}")));
        }
        problems.extend(self.primary_problems());
        for (field, rate) in
            self.bandwidth.iter().flat_map(|b| [("ingress", b.ingress), ("egress", b.egress)])
        {
            if rate == Some(Quantity::new(0)) {
                problems.push(Invalid::new(
                    format!("bandwidth.{field}"),
                    "0 would let nothing through: leave it out",
                ));
            }
        }
        for (i, port) in self.port_mappings.iter().enumerate() {
            if port.host_port == 0 || port.container_port == 0 {
                problems.push(Invalid::new(format!("portMappings[{i}]"), "ports start at 1"));
            }
        }
        for (key, value) in &self.args {
            let of_value = value.contains(NOT_IN_ARGS).then_some(UNWRITABLE);
            let problem = arg_name_problem(key).or(of_value);
            problems.extend(problem.map(|problem| Invalid::new(format!("args.{key}"), problem)));
        }
        problems
    }
}
