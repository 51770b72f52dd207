//! What the agent needs to know of a pod, from the API server's object or from the kubelet's.

use std::collections::BTreeSet;

use super::object::PodObject;
use crate::owner::ObjectRef;

/// The annotation whose change makes the kubelet look at a pod again.
pub const RETRY: &str = "netclaim.dev/retry";
/// The condition of a pod that has a sandbox with its networks.
pub(super) const SANDBOX_READY: &str = "PodReadyToStartContainers";

/// A pod with claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPod {
    /// Which pod.
    pub pod: ObjectRef,
    /// The names of its claims, of any driver, as far as they are known.
    pub claims: BTreeSet<String>,
    /// Whether a hook that fails does not end it.
    pub may_wait_in_hook: bool,
    /// Whether the kubelet mounts volumes before it asks for the claims.
    pub has_volumes: bool,
    /// Whether it has no sandbox yet and is to get one.
    pub waits: bool,
    /// The number in [`RETRY`]; 0 without one.
    pub retry: u16,
}

/// The number in a value of [`RETRY`].
pub(super) fn number(value: Option<&String>) -> u16 {
    value.and_then(|value| value.parse().ok()).unwrap_or_default()
}

/// Whether a hook that fails does not end a pod with these restart policies, its own and its containers'.
pub(super) fn may_wait_in_hook<'a>(mut policies: impl Iterator<Item = &'a String>) -> bool {
    policies.all(|policy| policy != "Never")
}

/// Whether a pod has no sandbox yet and has not ended, by its phase and the types and statuses of its conditions.
pub(super) fn has_no_sandbox<'a>(
    phase: &str,
    mut conditions: impl Iterator<Item = (&'a str, &'a str)>,
) -> bool {
    !["Succeeded", "Failed"].contains(&phase)
        && !conditions.any(|condition| condition == (SANDBOX_READY, "True"))
}

impl SeenPod {
    /// Reads an object of the API server; `None` for a pod without claims.
    pub fn of(pod: &PodObject) -> Option<Self> {
        let (metadata, spec, status) = (&pod.metadata, pod.spec.as_ref()?, pod.status.as_ref());
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
        Some(Self {
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
        })
    }
}
