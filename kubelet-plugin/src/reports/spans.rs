//! The spans of a claim's trace, from the kubelet's call to the written status.
//!
//! ```text
//!   NodePrepareResources                                     NodeUnprepareResources
//!    ├── prepare claim                                        └── detach NETWORK
//!    │    └── read ResourceClaim                                   └── DEL PLUGIN …
//!    ├── wait for sandbox
//!    ├── attach NETWORK
//!    │    └── ADD PLUGIN …     ── TRACEPARENT ──> the plugin's own spans
//!    ├── hold containers
//!    └── write ResourceClaim status
//! ```
//!
//! The id of the trace is the claim's UID, so that an agent that starts again, or the DEL of next week, needs
//! no memory to be in the same trace. What is below the kubelet's call is remembered: without a call that
//! this agent has heard, a span has no parent.
//!
//! Attributes have the names of OpenTelemetry's semantic conventions, or begin with `netclaim.`. The
//! configuration of plugins is in none.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use netclaim_cni::TraceContext;
use netclaim_cni::spans::SPANS;
use netclaim_driver::attach::{Gate, Operation, Traced};
use netclaim_process::traces::{Parent, begin, traceparent};
use tracing::Span;
use tracing::field::Empty;

use crate::dra::ClaimRef;
use crate::pods::owner::{ObjectRef, Plan, PodState};

/// Claims without a pod that are remembered. The kubelet does not say when it has given up a claim that could
/// not be prepared.
const MOST_REFUSED: usize = 1000;

/// A span for traces, with the fields that all have.
macro_rules! claim_span {
    ($name:literal, $claim:expr, $($fields:tt)*) => {
        tracing::trace_span!(
            target: SPANS,
            parent: None,
            $name,
            otel.name = Empty,
            otel.status_code = Empty,
            otel.status_description = Empty,
            k8s.namespace.name = $claim.namespace.as_str(),
            k8s.pod.name = Empty,
            k8s.pod.uid = Empty,
            netclaim.claim.name = $claim.name.as_str(),
            netclaim.claim.uid = $claim.uid.as_str(),
            $($fields)*
        )
    };
}

/// The traces of the node's claims.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// By the claim's UID.
    claims: Mutex<HashMap<String, Claim>>,
}

/// The remembered part of a claim's trace.
#[derive(Debug, Default)]
struct Claim {
    /// The kubelet's last call.
    call: Option<Parent>,
    pod_uid: Option<String>,
    /// It was prepared, and its pod has had no sandbox since.
    awaits_sandbox: bool,
    /// The span of the wait for the sandbox.
    waiting: Option<Span>,
    /// The sandbox whose containers were let go.
    opened: Option<String>,
    /// The span of the containers' wait, and their sandbox.
    gate: Option<(String, Span)>,
}

/// Returns the id of the claim's trace.
fn trace_of(claim_uid: &str) -> Option<u128> {
    u128::from_str_radix(&claim_uid.replace('-', ""), 16).ok().filter(|id| *id != 0)
}

/// Returns the context of a span for a plugin.
pub(crate) fn context_of(span: &Span) -> Option<TraceContext> {
    TraceContext::parse(&traceparent(span)?)
}

/// Notes in the current span which pod the claim is for.
pub(crate) fn is_for_pod(pod: &ObjectRef) {
    note_pod(&Span::current(), pod);
}

fn note_pod(span: &Span, pod: &ObjectRef) {
    span.record("k8s.pod.name", pod.name.as_str());
    span.record("k8s.pod.uid", pod.uid.as_str());
}

/// Returns the span of a read of the claim, as a child of the current span.
pub(crate) fn reading(claim: &ClaimRef) -> Span {
    tracing::trace_span!(
        target: SPANS,
        "read ResourceClaim",
        otel.kind = "client",
        otel.status_code = Empty,
        otel.status_description = Empty,
        http.request.method = "GET",
        k8s.namespace.name = claim.namespace.as_str(),
        netclaim.claim.name = claim.name.as_str(),
    )
}

impl Spans {
    /// Begins the span of the kubelet's NodePrepareResources for one of its `count` claims.
    pub(crate) fn prepare_call(&self, claim: &ClaimRef, count: usize) -> Span {
        let span = claim_span!(
            "NodePrepareResources",
            claim,
            otel.kind = "server",
            rpc.system.name = "grpc",
            rpc.method = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            netclaim.call.claims = count,
        );
        self.begin_call(&span, claim);
        span
    }

    /// Begins the span of the kubelet's NodeUnprepareResources for one claim.
    pub(crate) fn unprepare_call(&self, claim: &ClaimRef) -> Span {
        let span = claim_span!(
            "NodeUnprepareResources",
            claim,
            otel.kind = "server",
            rpc.system.name = "grpc",
            rpc.method = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
        );
        self.begin_call(&span, claim);
        span
    }

    fn begin_call(&self, span: &Span, claim: &ClaimRef) {
        let Some(call) = begin(span, trace_of(&claim.uid), None) else { return };
        let mut claims = self.lock();
        if claims.len() >= MOST_REFUSED {
            claims.retain(|_, claim| claim.pod_uid.is_some());
        }
        claims.entry(claim.uid.clone()).or_default().call = Some(call);
    }

    /// Begins the span of one claim's part in NodePrepareResources.
    pub(crate) fn preparing(&self, claim: &ClaimRef) -> Span {
        let span = claim_span!("prepare claim", claim,);
        self.begin(&span, &claim.uid);
        span
    }

    /// Notes that the claim is prepared: from now on it waits for its pod's sandbox.
    pub(crate) fn prepared(&self, claim: &ClaimRef) {
        if let Some(claim) = self.lock().get_mut(&claim.uid) {
            claim.awaits_sandbox = true;
        }
    }

    /// Notes that the claim is unprepared.
    pub(crate) fn unprepared(&self, claim: &ClaimRef) {
        self.lock().remove(&claim.uid);
    }

    /// Begins the span of an operation on an attachment.
    pub(crate) fn attachment(&self, plan: &Plan, operation: Operation, sandbox_id: &str) -> Traced {
        let (verb, claim) = match operation {
            Operation::Add => ("attach", &plan.owner.claim),
            Operation::Del => ("detach", &plan.owner.claim),
        };
        let span = claim_span!(
            "attachment",
            claim,
            netclaim.network = plan.network.as_str(),
            netclaim.request = plan.owner.device.request.as_str(),
            netclaim.pool = plan.owner.device.pool.as_str(),
            netclaim.device = plan.owner.device.device.as_str(),
            netclaim.sandbox.id = sandbox_id,
            network.interface.name = plan.spec.if_name.as_str(),
        );
        if span.is_disabled() {
            return Traced::default();
        }
        // A span that has begun keeps its name.
        span.record("otel.name", format!("{verb} {}", plan.network));
        if self.begin(&span, &claim.uid).is_none() {
            return Traced::default();
        }
        note_pod(&span, &plan.owner.pod);
        let trace_id = context_of(&span).map(|context| context.trace_id().to_owned());
        Traced { span, trace_id }
    }

    /// Begins the span of a write of the claim's status.
    pub(crate) fn status_write(&self, claim: &ObjectRef) -> Span {
        let span = claim_span!(
            "write ResourceClaim status",
            claim,
            otel.kind = "client",
            http.request.method = "PATCH",
        );
        self.begin(&span, &claim.uid);
        span
    }

    /// Begins and ends the waits of a pod's claims. The containers are let go when the files that they wait
    /// for are `written`.
    pub(crate) fn observe(&self, pod_uid: &str, state: &PodState, written: bool) {
        if !tracing::span_enabled!(target: SPANS, tracing::Level::TRACE) {
            return;
        }
        let mut claims = self.lock();
        for plan in state.records.iter().map(|record| &record.plan) {
            let claim = claims.entry(plan.owner.claim.uid.clone()).or_default();
            claim.pod_uid = Some(pod_uid.to_owned());
            claim.observe(plan, state, written);
        }
        let has = |uid: &str| state.records.iter().any(|record| record.plan.owner.claim.uid == uid);
        claims.retain(|uid, claim| claim.pod_uid.as_deref() != Some(pod_uid) || has(uid));
    }

    fn begin(&self, span: &Span, claim_uid: &str) -> Option<Parent> {
        if span.is_disabled() {
            return None;
        }
        let call = self.lock().get(claim_uid).and_then(|claim| claim.call.clone());
        begin(span, trace_of(claim_uid), call.as_ref())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Claim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Begins and ends the waits. A span ends when it is dropped.
    fn observe(&mut self, plan: &Plan, state: &PodState, written: bool) {
        if state.closing {
            (self.awaits_sandbox, self.waiting, self.gate) = (false, None, None);
            return;
        }
        let Some(sandbox) = &state.sandbox else {
            self.gate = None;
            // The next sandbox of a pod that had one is not an update about this Prepare.
            if self.awaits_sandbox && self.waiting.is_none() {
                let span = claim_span!("wait for sandbox", plan.owner.claim,);
                self.waiting = Some(self.begun(span, plan));
            }
            return;
        };
        (self.awaits_sandbox, self.waiting) = (false, None);
        match state.gate(&sandbox.id) {
            Gate::Open if written => {
                self.gate = None;
                self.opened = Some(sandbox.id.clone());
            }
            _ if self.opened.as_deref() == Some(&sandbox.id) => {}
            _ if self.gate.as_ref().is_some_and(|(id, _)| *id == sandbox.id) => {}
            _ => {
                let span = claim_span!(
                    "hold containers",
                    plan.owner.claim,
                    netclaim.sandbox.id = sandbox.id.as_str()
                );
                self.gate = Some((sandbox.id.clone(), self.begun(span, plan)));
            }
        }
    }

    fn begun(&self, span: Span, plan: &Plan) -> Span {
        begin(&span, trace_of(&plan.owner.claim.uid), self.call.as_ref());
        note_pod(&span, &plan.owner.pod);
        span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_trace_is_the_claims_uid() {
        let id = trace_of("6ba7b810-9dad-4d80-b400-c04fd430c801");
        assert_eq!(id, Some(0x6ba7_b810_9dad_4d80_b400_c04f_d430_c801));
        for other in
            ["", "claim", "00000000-0000-0000-0000-000000000000", "6ba7b810-9dad-4d80-b400-c04fd430c801-1"]
        {
            assert_eq!(trace_of(other), None, "{other}");
        }
    }
}
