//! What the agent reads of a pod that the API server returns. The code that decodes a whole pod is larger than all of the
//! agent's own parts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::seen::may_wait_in_hook;

/// A pod, as far as it matters here.
#[derive(Debug, Clone, Deserialize)]
pub struct PodObject {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Option<PodSpec>,
    pub(super) status: Option<PodStatus>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSpec {
    restart_policy: Option<String>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    pub(super) volumes: Option<Vec<Anything>>,
    pub(super) resource_claims: Option<Vec<ClaimRef>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    restart_policy: Option<String>,
}

/// An object of which only its presence counts.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Anything {}

/// A claim in `spec.resourceClaims` or in a status.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimRef {
    pub(super) resource_claim_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    pub(super) conditions: Option<Vec<PodCondition>>,
    pub(super) resource_claim_statuses: Option<Vec<ClaimRef>>,
    pub(super) extended_resource_claim_status: Option<ClaimRef>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct PodCondition {
    pub(super) r#type: String,
    pub(super) status: String,
}

impl PodSpec {
    /// See [`may_wait_in_hook`].
    pub(super) fn may_wait_in_hook(&self) -> bool {
        let containers = self.containers.iter().chain(&self.init_containers).flatten();
        let policies = containers.map(|container| &container.restart_policy).chain([&self.restart_policy]);
        may_wait_in_hook(policies.flatten())
    }
}
