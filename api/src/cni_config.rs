//! `CNIConfig`: a CNI configuration for uplink devices, in the admin's DeviceClass.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Allow, IfName};

/// Opaque device configuration of a **DeviceClass**: the CNI configuration that attaches an uplink device.
///
/// A claim cannot have one, because CNI plugins run as root on the node. The upstream spelling
/// `apiVersion: cni.networking.x-k8s.io/v1alpha1` is accepted, too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CniConfig {
    /// Name of the interface in the pod, unless the claim sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_name: Option<IfName>,
    /// A CNI network configuration list (`plugins`) or the configuration of one plugin (`type`), with placeholders such as
    /// `${uplink.ifName}`.
    pub config: Map<String, Value>,
    /// What claims may set. By default, a claim may set the name of the interface only.
    #[serde(default)]
    pub allow: Allow,
}
