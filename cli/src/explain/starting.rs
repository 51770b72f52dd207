//! Why a pod does not start on its node.

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::ResourceExt as _;

use super::facts::NodeFacts;
use super::networks::Attachment;
use crate::components::is_ready;

/// The most events that are shown, the latest ones.
const EVENTS: usize = 3;

/// What keeps a pod from starting, the nearest cause first.
pub(super) fn causes(pod: &Pod, attachments: &[Attachment], facts: &NodeFacts) -> Vec<String> {
    let mut causes = Vec::new();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    for attachment in attachments.iter().filter(|attachment| attachment.ready == Some(false)) {
        let Attachment { request, claim, reason, message, .. } = attachment;
        causes.push(format!("request {request} of claim {claim} is not ready ({reason}): {message}"));
    }
    if facts.node.as_ref().is_some_and(|node| !is_node_ready(node)) {
        causes.push(format!("node {node} is not ready"));
    }
    match facts.agents.as_deref() {
        Some([]) => causes.push(format!(
            "node {node} has no agent of netclaim: is it in another namespace (--netclaim-namespace)?"
        )),
        Some(agents) if !agents.iter().any(is_ready) => {
            let names: Vec<String> = agents.iter().map(kube::ResourceExt::name_any).collect();
            causes.push(format!(
                "the agent on node {node} is not ready: see the log of pod {}",
                names.join(", ")
            ));
        }
        _ => {}
    }
    causes.extend(containers(pod));
    causes.extend(warnings(&facts.events));
    causes
}

fn is_node_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The kubelet's reasons why containers wait. Before the first one is created it says only that it
/// creates them.
fn containers(pod: &Pod) -> Vec<String> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    let all = init.into_iter().chain(main).flatten();
    let waiting = all.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let message = waiting.message.as_deref()?;
        let reason = waiting.reason.as_deref().unwrap_or("waiting");
        Some(format!("container {}: {reason}: {message}", container.name))
    });
    waiting.collect()
}

/// The latest warnings, each text once.
fn warnings(events: &[Event]) -> Vec<String> {
    let mut warnings: Vec<&Event> =
        events.iter().filter(|event| event.type_.as_deref() == Some("Warning")).collect();
    warnings.sort_by_key(|event| std::cmp::Reverse(time(event)));
    let texts = warnings.into_iter().map(|event| {
        let reason = event.reason.as_deref().unwrap_or_default();
        format!("event {reason}: {}", event.message.as_deref().unwrap_or_default())
    });
    let mut latest: Vec<String> = Vec::new();
    for text in texts {
        if latest.len() < EVENTS && !latest.contains(&text) {
            latest.push(text);
        }
    }
    latest
}

fn time(event: &Event) -> Option<k8s_openapi::jiff::Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let times = [
        event.last_timestamp.as_ref().map(|time| time.0),
        series.or(event.event_time.as_ref()).map(|time| time.0),
        event.creation_timestamp().map(|time| time.0),
    ];
    times.into_iter().flatten().next()
}
