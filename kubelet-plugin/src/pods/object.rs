//! What the agent reads of a pod that the API server returns. The code that decodes a whole pod is larger
//! than all of the agent's own parts.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use netclaim_api::reasons::{READINESS_GATE, ReadyReason, Reason as _};
use serde::Deserialize;

use super::seen::{RETRY, SeenPod, has_gate, has_no_sandbox, may_wait_in_hook, number};
use crate::pods::owner::ObjectRef;

/// A pod, as far as it matters here.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PodObject {
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
    readiness_gates: Option<Vec<ReadinessGate>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadinessGate {
    condition_type: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    restart_policy: Option<String>,
}

/// An object; only its presence counts.
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

/// A condition of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodCondition {
    pub(crate) r#type: String,
    pub(crate) status: String,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) last_transition_time: Option<String>,
}

impl PodCondition {
    /// Whether it is `False` for this reason.
    pub(crate) fn says(&self, reason: ReadyReason) -> bool {
        self.status == "False" && self.reason.as_deref() == Some(reason.as_str())
    }
}

impl PodObject {
    /// Returns what the agent needs to know about the pod; `None` for one without claims.
    pub(crate) fn seen(&self) -> Option<SeenPod> {
        let (metadata, spec, status) = (&self.metadata, self.spec.as_ref()?, self.status.as_ref());
        let made = status.and_then(|status| status.resource_claim_statuses.as_ref()).into_iter().flatten();
        let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
        let claims = spec.resource_claims.iter().flatten().chain(made).chain(extended);
        let claims: BTreeSet<String> = claims.filter_map(|claim| claim.resource_claim_name.clone()).collect();
        if claims.is_empty() {
            return None;
        }
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let conditions = conditions.map(|condition| (condition.r#type.as_str(), condition.status.as_str()));
        Some(SeenPod {
            pod: ObjectRef {
                namespace: metadata.namespace.clone()?,
                name: metadata.name.clone()?,
                uid: metadata.uid.clone()?,
            },
            claims,
            may_wait_in_hook: spec.may_wait_in_hook(),
            has_volumes: spec.volumes.as_ref().is_some_and(|volumes| !volumes.is_empty()),
            waits: metadata.deletion_timestamp.is_none() && has_no_sandbox(phase, conditions),
            retry: number(metadata.annotations.as_ref().and_then(|all| all.get(RETRY))),
            has_gate: spec.has_gate(),
        })
    }

    /// Returns the condition of [`READINESS_GATE`], if it has one; `None` if the pod does not name the gate.
    pub(crate) fn gate(self) -> Option<Option<PodCondition>> {
        let conditions = self.status.and_then(|status| status.conditions).unwrap_or_default();
        let condition = conditions.into_iter().find(|condition| condition.r#type == READINESS_GATE);
        self.spec.is_some_and(|spec| spec.has_gate()).then_some(condition)
    }
}

impl PodSpec {
    fn has_gate(&self) -> bool {
        has_gate(self.readiness_gates.iter().flatten().map(|gate| gate.condition_type.as_str()))
    }

    /// See [`may_wait_in_hook`].
    pub(super) fn may_wait_in_hook(&self) -> bool {
        let containers = self.containers.iter().chain(&self.init_containers).flatten();
        let policies = containers.map(|container| &container.restart_policy).chain([&self.restart_policy]);
        may_wait_in_hook(policies.flatten())
    }
}
