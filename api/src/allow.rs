//! What an admin lets claims set.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::invalid::first_of;
use crate::{AttachmentConfig, Invalid, ParameterRule};

/// What claims may set in their `AttachmentConfig`. By default, a claim may set the name of the interface only. The rules do
/// not apply to DeviceClasses, which the admin writes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Allow {
    /// Claims may request IP addresses (`ips`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ips: bool,
    /// Claims may choose the MAC address (`mac`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mac: bool,
    /// Claims may limit their rates (`bandwidth`), up to the bandwidth that they were granted as capacity.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bandwidth: bool,
    /// Claims may map ports of the node (`portMappings`) from 1024, except the ports of Kubernetes, of netclaim and of
    /// NodePorts (2379, 2380, 6443, 9177 to 9179, 10248 to 10260, 30000 to 32767).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub port_mappings: bool,
    /// Claims may pass CNI_ARGS to the plugins (`args`), except `IP`, `GATEWAY` and `MAC`: `ips` and `mac` allow these.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub args: bool,
    /// Parameters that claims may set: a JSON schema by name. The configuration uses a parameter as `${parameters.NAME}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = MAX_PARAMETERS))]
    pub parameters: BTreeMap<String, ParameterRule>,
}

/// The most parameters that claims may set.
pub(crate) const MAX_PARAMETERS: usize = 64;
/// How many parameters a message names.
pub(crate) const NAMED_PARAMETERS: usize = 10;

/// Host ports that no claim gets: privileged ports, and ports on which a Kubernetes node listens (etcd, API server,
/// netclaim's metrics, kubelet to cloud-controller-manager, NodePorts).
const NODE_PORTS: [RangeInclusive<u16>; 6] =
    [0..=1023, 2379..=2380, 6443..=6443, 9177..=9179, 10248..=10260, 30000..=32767];

/// CNI_ARGS from which plugins take an address or a MAC, and the field that permits it.
const ADDRESS_ARGS: [(&str, &str); 3] = [("IP", "ips"), ("GATEWAY", "ips"), ("MAC", "mac")];

/// Returns why no claim may have this port of the node.
fn host_port_problem(port: u16) -> Option<String> {
    NODE_PORTS.iter().any(|ports| ports.contains(&port)).then(|| {
        let ports = NODE_PORTS.iter().map(|ports| match (ports.start(), ports.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        });
        format!(
            "{port} is a port of the node itself: choose one outside of {}",
            ports.collect::<Vec<_>>().join(", ")
        )
    })
}

/// Returns why no claim may pass this CNI_ARG.
fn arg_problem(key: &str) -> Option<String> {
    let (_, field) = ADDRESS_ARGS.iter().find(|(known, _)| key.eq_ignore_ascii_case(known))?;
    Some(format!(
        "plugins take an address from it: use the field `{field}`, which the admin allows by allow.{field}"
    ))
}

impl AttachmentConfig {
    /// Returns every setting that no claim may have, whatever the admin allows; paths are relative to the configuration.
    pub fn never_of_claims(&self) -> Vec<Invalid> {
        let ports = self.port_mappings.iter().enumerate().filter_map(|(i, mapping)| {
            Some(Invalid::new(format!("portMappings[{i}].hostPort"), host_port_problem(mapping.host_port)?))
        });
        let args =
            self.args.keys().filter_map(|key| Some(Invalid::new(format!("args.{key}"), arg_problem(key)?)));
        ports.chain(args).collect()
    }
}

impl Allow {
    /// Refuses the first field of a claim's configuration that the admin does not allow. `owner` names the object with these
    /// rules, for the message.
    pub(crate) fn permits(&self, config: &AttachmentConfig, owner: &str) -> Result<(), Invalid> {
        // Destructured, so that a new field cannot be forgotten here.
        let AttachmentConfig {
            if_name: _,
            ips,
            replica_ips,
            mac,
            bandwidth,
            port_mappings,
            args,
            parameters,
        } = config;
        let used = [
            ("ips", !ips.is_empty() && !self.ips),
            ("replicaIPs", !replica_ips.is_empty() && !self.ips),
            ("mac", mac.is_some() && !self.mac),
            ("bandwidth", bandwidth.is_some() && !self.bandwidth),
            ("portMappings", !port_mappings.is_empty() && !self.port_mappings),
            ("args", !args.is_empty() && !self.args),
        ];
        if let Some((field, _)) = used.into_iter().find(|(_, refused)| *refused) {
            let allow = if field == "replicaIPs" { "ips" } else { field };
            let problem = format!(
                "{owner} does not allow claims to set it: remove it, or have the admin set allow.{allow}"
            );
            return Err(Invalid::new(field, problem));
        }
        if let Some(never) = config.never_of_claims().into_iter().next() {
            return Err(never);
        }
        for (name, value) in parameters {
            let field = format!("parameters.{name}");
            let Some(rule) = self.parameters.get(name) else {
                let known = first_of(self.parameters.keys().cloned(), NAMED_PARAMETERS, ", ");
                let known = if known.is_empty() { "none".to_owned() } else { known };
                return Err(Invalid::new(field, format!("{owner} has no such parameter; it has: {known}")));
            };
            rule.check(value).map_err(|problem| problem.within(&field))?;
        }
        Ok(())
    }

    /// Returns a warning for each parameter that the conflist in `field` does not use; paths are relative to the object.
    pub(crate) fn unused(&self, conflist: &Map<String, Value>, field: &str) -> Vec<Invalid> {
        let text = Value::Object(conflist.clone()).to_string();
        let is_unused = |name: &&String| !text.contains(&format!("${{parameters.{name}}}"));
        let warning = |name: &String| {
            let problem =
                format!("{field} has no ${{parameters.{name}}}: what claims set here has no effect");
            Invalid::new(format!("parameters.{name}"), problem)
        };
        self.parameters.keys().filter(is_unused).map(warning).collect()
    }

    /// Returns what there is too much of to look at the rest: messages and placeholders go by all of it.
    pub(crate) fn too_much(&self) -> Vec<Invalid> {
        if let Some(many) = Invalid::too_many("parameters", self.parameters.len(), MAX_PARAMETERS) {
            return vec![many];
        }
        let of_rule = |(name, rule): (&String, &ParameterRule)| {
            Some(rule.too_much()?.within(&format!("parameters.{name}")))
        };
        self.parameters.iter().filter_map(of_rule).collect()
    }

    /// Returns every problem of the rules themselves; paths are relative to the object.
    pub(crate) fn problems(&self) -> Vec<Invalid> {
        let of_rule = |(name, rule): (&String, &ParameterRule)| {
            let path = format!("parameters.{name}");
            rule.problems().into_iter().map(move |problem| problem.within(&path)).collect::<Vec<_>>()
        };
        self.parameters.iter().flat_map(of_rule).collect()
    }
}
