//! What an admin lets tenants decide.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Invalid, ParameterRule};

/// What claims may set in their [`AttachmentConfig`](crate::AttachmentConfig). Everything is off by default but
/// the interface's name, which concerns nobody else. DeviceClasses are the admin's and not bound by this.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Allow {
    /// Claims may ask for addresses (`ips`).
    #[serde(skip_serializing_if = "is_false")]
    pub ips: bool,
    /// Claims may choose the MAC address (`mac`).
    #[serde(skip_serializing_if = "is_false")]
    pub mac: bool,
    /// Claims may set rates (`bandwidth`), up to the bandwidth they were granted as capacity.
    #[serde(skip_serializing_if = "is_false")]
    pub bandwidth: bool,
    /// Claims may open ports of the node (`portMappings`).
    #[serde(skip_serializing_if = "is_false")]
    pub port_mappings: bool,
    /// Claims may pass CNI_ARGS to the plugins (`args`).
    #[serde(skip_serializing_if = "is_false")]
    pub args: bool,
    /// Parameters that claims may set, by name, each with a JSON schema of what it may be; used in the configuration
    /// as `${parameters.NAME}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, ParameterRule>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

impl Allow {
    /// Checks the rules themselves; paths are relative to the object.
    pub(crate) fn problems(&self) -> Vec<Invalid> {
        let of_rule = |(name, rule): (&String, &ParameterRule)| {
            let path = format!("parameters.{name}");
            rule.problems().into_iter().map(move |problem| problem.within(&path)).collect::<Vec<_>>()
        };
        self.parameters.iter().flat_map(of_rule).collect()
    }
}
