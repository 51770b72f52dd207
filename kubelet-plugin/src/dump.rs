//! What the agent knows of its pods at this moment, for a person who looks for a fault: `netclaim-parent --dump-state`.
//!
//! CNI configurations are not in it: they may have secrets.

use std::sync::Arc;

use netclaim_driver::attach::{Attach, Attacher, Gate, Observer, Phase};
use netclaim_process::dump;
use serde_json::{Map, Value, json};
use tokio::net::UnixListener;

use crate::owner::{Owner, PodState, Record};
use crate::runtime::readiness::Readiness;

/// Answers with the state of the agent until dropped.
pub(crate) async fn serve<N: Attach, V: Observer<Owner = Owner>>(
    listener: UnixListener,
    node: String,
    attacher: Arc<Attacher<N, V>>,
    readiness: Readiness,
) {
    let state = || {
        let not_ready = readiness.check().err().map(|error| error.to_string());
        let pods: Map<String, Value> =
            attacher.pods().iter().map(|(uid, state)| (uid.clone(), pod(state))).collect();
        let state =
            json!({"version": env!("CARGO_PKG_VERSION"), "node": node, "notReady": not_ready, "pods": pods});
        std::future::ready(state)
    };
    dump::serve(listener, state).await;
}

fn pod(state: &PodState) -> Value {
    let PodState { sandbox, records, closing, damaged, held, dels_failing } = state;
    let id = sandbox.as_ref().map(|sandbox| sandbox.id.as_str());
    let gate = match id.map(|id| state.gate(id)) {
        Some(Gate::Open) => json!("open"),
        Some(Gate::Failed(reason)) => json!({"waits": reason}),
        Some(Gate::Wait) | None => json!("waits"),
    };
    json!({
        "pod": records.first().map(|record| record.plan.owner.pod.to_string()),
        "sandbox": id,
        "gate": gate,
        "closing": closing,
        "damaged": damaged,
        "held": held,
        "delsFailing": dels_failing,
        "attachments": records.iter().map(attachment).collect::<Vec<_>>(),
    })
}

fn attachment(record: &Record) -> Value {
    let Record { plan, phase, moved_link, host_link, stopped, stray, error, failed: _, check } = record;
    let phase_name = match phase {
        Phase::Planned => "planned",
        Phase::Adding { .. } => "adding",
        Phase::Attached { .. } => "attached",
        Phase::Deleting { .. } => "deleting",
    };
    json!({
        "claim": plan.owner.claim.to_string(),
        "device": plan.owner.device,
        "network": plan.network,
        "interface": plan.spec.if_name,
        "link": plan.owner.link,
        "addresses": plan.owner.addresses,
        "phase": phase_name,
        "sandbox": phase.sandbox().map(|sandbox| &sandbox.id),
        "movedLink": moved_link.is_some(),
        "hostLink": host_link,
        "stopped": stopped,
        "stray": stray,
        "error": error,
        "check": check,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{attached, record};

    #[test]
    fn a_pod_shows_how_far_its_attachments_are_and_no_configuration() {
        let failed = Record { error: Some("no lease".to_owned()), ..record("d", Phase::Planned) };
        let state = PodState { records: vec![attached("c", "s"), failed], ..PodState::default() };
        let shown = pod(&state);
        assert_eq!(
            (&shown["pod"], &shown["gate"]),
            (&json!("default/p"), &json!("waits")),
            "the sandbox is not known"
        );
        let state = PodState { sandbox: Some(crate::fixtures::sandbox("s")), ..state };
        let shown = pod(&state);
        assert_eq!(shown["gate"], json!({"waits": "network storage: no lease"}));
        let [first, second] = [0, 1].map(|n| &shown["attachments"][n]);
        assert_eq!((&first["phase"], &first["sandbox"]), (&json!("attached"), &json!("s")));
        assert_eq!((&second["phase"], &second["error"]), (&json!("planned"), &json!("no lease")));
        assert!(!shown.to_string().contains("noop"), "the conflist's plugin");
    }
}
