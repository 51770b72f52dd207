//! `CNIConfig`: a whole CNI configuration on an uplink, from the admin's DeviceClass.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Allow, IfName};

/// Opaque device configuration of a **DeviceClass**: the CNI configuration that runs on the uplink device.
///
/// CNI configuration is root on the node, so a claim cannot bring one. Also read from the upstream spelling,
/// `apiVersion: cni.networking.x-k8s.io/v1alpha1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CniConfig {
    /// Name of the interface in the pod, where the claim does not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_name: Option<IfName>,
    /// A conflist (`plugins`) or the configuration of one plugin (`type`), with `${…}` places.
    pub config: Map<String, Value>,
    /// What claims may set; nothing by default.
    #[serde(default)]
    pub allow: Allow,
}
