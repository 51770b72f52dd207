//! `spec.trafficMetrics`: which traffic is in the agents' metrics.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether the agents' metrics have what attachments receive and send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum TrafficMetrics {
    #[default]
    None,
    Attachments,
}

impl TrafficMetrics {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::None
    }
}
