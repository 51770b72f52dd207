//! What an admin lets claims set.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attachment_config::arg_name_problem;
use crate::invalid::first_of;
use crate::{AttachmentConfig, Invalid, ParameterRule, Setting};

/// What claims may set in their `AttachmentConfig`. By default, a claim may set the name of the interface
/// only. The rules do not apply to DeviceClasses, which the admin writes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Allow {
    /// Claims may request IP addresses (`ips`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ips: Option<Allowed>,
    /// Claims may choose the MAC address (`mac`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Allowed>,
    /// Claims may limit their rates (`bandwidth`), up to the bandwidth that they were granted as capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Allowed>,
    /// Claims may map ports of the node (`portMappings`) from 1024, except the ports of Kubernetes, of
    /// netclaim and of NodePorts (2379, 2380, 6443, 9177 to 9179, 10248 to 10260, 30000 to 32767).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_mappings: Option<Allowed>,
    /// Claims may have the pod's default route lead by the network (`defaultRoute`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_route: Option<Allowed>,
    /// Claims may have the network as the primary one of their pod (`primary`). NetworkPolicies of the
    /// cluster do not hold for such a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<Allowed>,
    /// CNI_ARGS that claims may pass to the plugins (`args`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<AllowedArgs>,
    /// Parameters that claims may set: a JSON schema by name. The configuration uses a parameter as
    /// `${parameters.NAME}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = MAX_PARAMETERS))]
    pub parameters: BTreeMap<String, ParameterRule>,
}

/// What claims may set, written `{}`. It is an object so that limits can be added to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allowed {}

/// The CNI_ARGS that claims may pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedArgs {
    /// Their names, except `IP`, `GATEWAY` and `MAC`: `ips` and `mac` allow these.
    #[schemars(length(min = 1, max = MAX_ARGS), inner(length(min = 1, max = MAX_ARG_BYTES)), extend("x-kubernetes-list-type" = "set"))]
    pub names: Vec<String>,
}

/// The most CNI_ARGS that claims may pass, and the most bytes of a name.
const MAX_ARGS: usize = 64;
const MAX_ARG_BYTES: usize = 256;

/// The most parameters that claims may set.
pub(crate) const MAX_PARAMETERS: usize = 64;
/// How many parameters a message names.
pub(crate) const NAMED_PARAMETERS: usize = 10;

/// Host ports that no claim gets: privileged ports, and ports on which a Kubernetes node listens (etcd, API
/// server, netclaim's metrics, kubelet to cloud-controller-manager, NodePorts).
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
    /// Returns every setting that no claim may have, whatever the admin allows; paths are relative to the
    /// configuration.
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
    /// Whether claims may set this.
    pub const fn allows(&self, setting: Setting) -> bool {
        match setting {
            Setting::Ips => self.ips.is_some(),
            Setting::Mac => self.mac.is_some(),
            Setting::Bandwidth => self.bandwidth.is_some(),
            Setting::PortMappings => self.port_mappings.is_some(),
            Setting::DefaultRoute => self.default_route.is_some(),
            Setting::Primary => self.primary.is_some(),
        }
    }

    /// Lets claims set this.
    pub const fn allow(&mut self, setting: Setting) {
        let allowed = match setting {
            Setting::Ips => &mut self.ips,
            Setting::Mac => &mut self.mac,
            Setting::Bandwidth => &mut self.bandwidth,
            Setting::PortMappings => &mut self.port_mappings,
            Setting::DefaultRoute => &mut self.default_route,
            Setting::Primary => &mut self.primary,
        };
        *allowed = Some(Allowed {});
    }

    /// Refuses the first field of a claim's configuration that the admin does not allow. `owner` names the
    /// object with these rules, for the message.
    pub(crate) fn permits(&self, config: &AttachmentConfig, owner: &str) -> Result<(), Invalid> {
        if let Some((field, setting)) = config.settings().find(|(_, setting)| !self.allows(*setting)) {
            let problem = format!(
                "{owner} does not allow claims to set it: remove it, or have the admin set allow.{}",
                setting.as_str()
            );
            return Err(Invalid::new(field, problem));
        }
        if let Some(never) = config.never_of_claims().into_iter().next() {
            return Err(never);
        }
        let names = self.args.iter().flat_map(|args| &args.names);
        if let Some(name) = config.args.keys().find(|name| !names.clone().any(|allowed| allowed == *name)) {
            let problem = format!(
                "{owner} does not allow claims to pass it: remove it, or have the admin add it to allow.args.names"
            );
            return Err(Invalid::new(format!("args.{name}"), problem));
        }
        for (name, value) in &config.parameters {
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

    /// Returns a warning for each parameter that the conflist in `field` does not use; paths are relative to
    /// the object.
    pub(crate) fn unused<'a>(
        &self,
        conflists: impl IntoIterator<Item = &'a Map<String, Value>>,
        field: &str,
    ) -> Vec<Invalid> {
        let texts: Vec<String> =
            conflists.into_iter().map(|conflist| Value::Object(conflist.clone()).to_string()).collect();
        let uses = |text: &String, name: &str| text.contains(&format!("${{parameters.{name}}}"));
        let is_unused = |name: &&String| !texts.iter().any(|text| uses(text, name));
        let warning = |name: &String| {
            let problem =
                format!("{field} has no ${{parameters.{name}}}: what claims set here has no effect");
            Invalid::new(format!("parameters.{name}"), problem)
        };
        self.parameters.keys().filter(is_unused).map(warning).collect()
    }

    /// Returns what there is too much of to look at the rest: messages and placeholders go by all of it.
    pub(crate) fn too_much(&self) -> Vec<Invalid> {
        let args = self.args.as_ref().map_or(0, |args| args.names.len());
        let many = Invalid::too_many("parameters", self.parameters.len(), MAX_PARAMETERS);
        if let Some(many) = many.or_else(|| Invalid::too_many("args.names", args, MAX_ARGS)) {
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
        let names = self.args.iter().flat_map(|args| &args.names).enumerate();
        let of_names = names.filter_map(|(i, name)| {
            let problem = arg_problem(name).or_else(|| arg_name_problem(name).map(str::to_owned))?;
            Some(Invalid::new(format!("args.names[{i}]"), problem))
        });
        let none = self.args.as_ref().filter(|args| args.names.is_empty());
        let none = none.map(|_| Invalid::new("args.names", "is empty: list the names, or remove args"));
        self.parameters.iter().flat_map(of_rule).chain(none).chain(of_names).collect()
    }
}
