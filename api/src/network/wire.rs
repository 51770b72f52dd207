//! `spec.conflicts` and `spec.gateway`: what must be true on the network before a pod uses it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ClaimNetworkSpec;
use crate::Invalid;
use crate::conflist::{Plugin as _, may_be};

/// What becomes of an address that another host on the network has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum Conflicts {
    #[default]
    Ignore,
    Probe,
}

/// Whether pods wait for the gateway of the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum Gateway {
    #[default]
    Optional,
    Required,
}

impl Conflicts {
    pub(super) fn is_ignore(&self) -> bool {
        *self == Self::Ignore
    }
}

impl Gateway {
    pub(super) fn is_optional(&self) -> bool {
        *self == Self::Optional
    }
}

/// The plugin whose interfaces share one hardware address. Frames to it reach the one that has the IP address
/// to which an answer goes, and the answer to a probe goes to none (Linux, `ipvlan_addr_lookup`).
const SHARED_MAC: &str = "ipvlan";

impl ClaimNetworkSpec {
    /// Returns why conflicts would not be found; paths are relative to the spec.
    pub(super) fn conflicts_problems(&self) -> Option<Invalid> {
        let is_shared = self.plugins().any(|plugin| may_be(plugin.plugin_type(), SHARED_MAC, &self.allow));
        (!self.conflicts.is_ignore() && is_shared).then(|| {
            let problem = "cannot be Probe for the plugin ipvlan, which the answers do not reach: use macvlan, or remove it";
            Invalid::new("conflicts", problem)
        })
    }
}
