//! What plugins still owe on the nodes, and what was given up and may be left there. Pure.
//!
//! A DEL that fails is in the status of its claim. One that was given up is an event of its pod, which the
//! API server keeps for an hour by default.

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt as _;
use netclaim_api::DRIVER_NAME;
use netclaim_api::device::node_of_pool;
use netclaim_api::reasons::{ReadyReason, Reason as _};

use super::snapshot::Snapshot;
use crate::claimed;

/// Returns what is owed or left on a node, in sentences.
pub(super) fn on_node(node: &str, snapshot: &Snapshot) -> Vec<String> {
    let owed = owed(&snapshot.claims).filter(|(of, _)| *of == Some(node));
    let owed = owed.map(|(_, text)| format!("node {node}: {text}"));
    let left = snapshot.given_up.iter().filter(|event| event.reporting_instance.as_deref() == Some(node));
    owed.chain(left.filter_map(|event| Some(format!("node {node}: {}", left_by(event)?)))).collect()
}

/// Returns what is owed for devices of the whole cluster: their claims do not name the node.
pub(super) fn somewhere(snapshot: &Snapshot) -> Vec<String> {
    owed(&snapshot.claims).filter(|(node, _)| node.is_none()).map(|(_, text)| text).collect()
}

/// The DELs that fail, each with its node.
fn owed(claims: &[ResourceClaim]) -> impl Iterator<Item = (Option<&str>, String)> {
    claims.iter().flat_map(|claim| {
        claimed::devices(claim).filter_map(move |(result, reported)| {
            let ready = claimed::ready(reported?)?;
            let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
            let text = format!("a DEL of claim {namespace}/{name} is owed and fails: {}", ready.message);
            (ready.reason == ReadyReason::DetachFailed.as_str()).then(|| (node_of_pool(&result.pool), text))
        })
    })
}

/// What an event says of a pod whose DEL was given up.
fn left_by(event: &Event) -> Option<String> {
    if event.reporting_controller.as_deref() != Some(DRIVER_NAME) {
        return None;
    }
    let pod = event.regarding.as_ref()?;
    let (namespace, name) = (pod.namespace.as_deref()?, pod.name.as_deref()?);
    Some(format!(
        "a DEL of pod {namespace}/{name} was given up: {}",
        event.note.as_deref().unwrap_or_default()
    ))
}
