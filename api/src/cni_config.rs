//! `CNIConfig`: a CNI configuration for uplink devices, in the admin's DeviceClass.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use netclaim_cni::validate::{Severity, validate_template};

use crate::conflist::{as_conflist, runtime_plugin_problems, too_much, whereabouts_problems};
use crate::{Allow, IfName, Invalid, template};

/// Opaque device configuration of a **DeviceClass**: the CNI configuration that attaches an uplink device.
///
/// A claim cannot have one, because CNI plugins run as root on the node. The upstream spelling
/// `apiVersion: cni.networking.x-k8s.io/v1alpha1` is accepted, too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CniConfig {
    /// Name of the interface in the pod, unless the claim sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<IfName>,
    /// A CNI network configuration list (`plugins`) or the configuration of one plugin (`type`), with
    /// placeholders such as `${uplink.name}`.
    pub config: Map<String, Value>,
    /// What claims may set. By default, a claim may set the name of the interface only.
    #[serde(default)]
    pub allow: Allow,
}

impl CniConfig {
    /// Returns every problem; none means that an uplink can be attached with it. Paths are relative to the
    /// configuration, and lead through `plugins` also where a single plugin is written.
    pub fn problems(&self) -> Vec<Invalid> {
        let many = self.too_much();
        if !many.is_empty() {
            return many;
        }
        let rules = self.allow.problems().into_iter().map(|problem| problem.within("allow"));
        let conflist = as_conflist(&self.config);
        let of_plugins = whereabouts_problems(&conflist, &self.allow);
        let of_plugins = of_plugins.into_iter().chain(runtime_plugin_problems(&conflist));
        let of_plugins = of_plugins.map(|problem| problem.within("config"));
        rules.chain(self.findings(Severity::Error)).chain(of_plugins).collect()
    }

    /// Returns every likely mistake.
    pub fn warnings(&self) -> Vec<Invalid> {
        if !self.too_much().is_empty() {
            return Vec::new();
        }
        let unused = self.allow.unused([&self.config], "config").into_iter().map(|p| p.within("allow"));
        self.findings(Severity::Warning).chain(unused).collect()
    }

    /// What there is too much of to check the rest.
    fn too_much(&self) -> Vec<Invalid> {
        let of_allow = self.allow.too_much().into_iter().map(|problem| problem.within("allow"));
        let of_config = too_much(&as_conflist(&self.config)).into_iter();
        of_config.map(|problem| problem.within("config")).chain(of_allow).collect()
    }

    fn findings(&self, severity: Severity) -> impl Iterator<Item = Invalid> {
        let mut conflist = as_conflist(&self.config);
        conflist.entry("name").or_insert_with(|| json!("netclaim"));
        let findings = validate_template(Value::Object(conflist).to_string().as_bytes(), &|name| {
            template::place_with(name, &self.allow)
        });
        let of_severity = findings.into_iter().filter(move |finding| finding.severity == severity);
        of_severity.map(|finding| Invalid::from(finding).within("config"))
    }
}
