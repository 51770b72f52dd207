//! An owner for tests, benchmarks and fuzz targets: a claim and a pod, and whatever else is there.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::plan::{Hot, Owner, Plan};

/// A named object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Object {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// A claim of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claimant {
    /// The claim.
    pub claim: Object,
    /// The pod.
    pub pod: Object,
    /// Whatever else the agent has to say.
    #[serde(flatten)]
    pub rest: Map<String, serde_json::Value>,
}

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claim {} of pod {}", self.claim.name, self.pod.name)
    }
}

impl Owner for Claimant {
    /// The network.
    type Kind = String;

    fn kind(plan: &Plan<Self>) -> String {
        plan.network.clone()
    }

    fn pod_uid(&self) -> &str {
        &self.pod.uid
    }

    fn group(&self) -> &str {
        &self.claim.uid
    }

    fn group_name(&self) -> &str {
        &self.claim.name
    }

    fn tenant(&self) -> &str {
        &self.claim.namespace
    }

    fn hot(&self) -> Option<Hot<'_>> {
        let text = |name: &str| self.rest.get("hot")?.get(name)?.as_str();
        Some(Hot { sandbox_id: text("sandbox")?, since: text("since")? })
    }
}
