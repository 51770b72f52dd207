//! What the agent needs to know about a pod, from the API server's object or from the kubelet's.

use std::collections::BTreeSet;

use netclaim_api::reasons::READINESS_GATE;

use crate::pods::owner::ObjectRef;

/// The annotation whose change makes the kubelet look at a pod again.
pub(crate) const RETRY: &str = "netclaim.dev/retry";
/// The condition of a pod that has a sandbox with its networks.
pub(super) const SANDBOX_READY: &str = "PodReadyToStartContainers";

/// A pod with claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenPod {
    pub(crate) pod: ObjectRef,
    /// The names of its claims, of any driver, as far as they are known.
    pub(crate) claims: BTreeSet<String>,
    /// Whether a hook that fails does not end it.
    pub(crate) may_wait_in_hook: bool,
    /// Whether the kubelet mounts volumes before it asks for the claims.
    pub(crate) has_volumes: bool,
    /// Whether it has no sandbox yet and is to get one.
    pub(crate) waits: bool,
    /// The number in [`RETRY`]; 0 without one.
    pub(crate) retry: u16,
    /// Whether it names [`READINESS_GATE`].
    pub(crate) has_gate: bool,
}

/// The number in a value of [`RETRY`].
pub(super) fn number(value: Option<&String>) -> u16 {
    value.and_then(|value| value.parse().ok()).unwrap_or_default()
}

/// Whether one of these readiness gates is [`READINESS_GATE`].
pub(super) fn has_gate<'a>(mut gates: impl Iterator<Item = &'a str>) -> bool {
    gates.any(|gate| gate == READINESS_GATE)
}

/// Whether a hook that fails does not end a pod with these restart policies, its own and its containers'.
pub(super) fn may_wait_in_hook<'a>(mut policies: impl Iterator<Item = &'a String>) -> bool {
    policies.all(|policy| policy != "Never")
}

/// Whether a pod has no sandbox yet and has not ended, by its phase and the types and statuses of its
/// conditions.
pub(super) fn has_no_sandbox<'a>(
    phase: &str,
    mut conditions: impl Iterator<Item = (&'a str, &'a str)>,
) -> bool {
    !["Succeeded", "Failed"].contains(&phase)
        && !conditions.any(|condition| condition == (SANDBOX_READY, "True"))
}
