//! `spec.onFailure`: what becomes of running pods when their network fails on the node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClaimNetworkSpec, Scope};
use crate::Invalid;

/// What becomes of the pods of a network on a node where it fails.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnFailure {
    /// What becomes of them when their traffic has stopped for a minute: the uplink passes no frames or is
    /// gone from the node, or a plugin says so (STATUS with code 51) or a file of facts does (`traffic:
    /// false`). `Taint`: new pods go elsewhere. `Evict`: its pods are deleted, too, so that their controllers
    /// make others elsewhere. A claim can tolerate that, also for a time.
    #[serde(default)]
    pub traffic: OnTrafficFailure,
}

/// What becomes of pods whose traffic has stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum OnTrafficFailure {
    #[default]
    Taint,
    Evict,
}

impl OnFailure {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl ClaimNetworkSpec {
    /// Returns why pods cannot be evicted; paths are relative to the spec.
    pub(super) fn on_failure_problems(&self) -> Option<Invalid> {
        let problem = if self.on_failure.is_default() {
            return None;
        } else if self.scope == Scope::Cluster {
            "needs scope Node: with scope Cluster all nodes share one device"
        } else if self.moves_link() {
            "cannot be Evict for a plugin that moves a link into the pod: the node does not see what becomes of it there; remove it"
        } else {
            return None;
        };
        Some(Invalid::new("onFailure.traffic", problem))
    }
}
