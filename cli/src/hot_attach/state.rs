//! How far a NetworkAttachment is, in words. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use netclaim_api::network_attachment::NetworkAttachment;
use netclaim_api::reasons::{AllocatedReason, AttachedReason, ConditionReason};

/// How far a NetworkAttachment is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Whether the pod has the interfaces.
    pub(crate) is_attached: bool,
    /// Whether nothing comes of it as it is.
    pub(crate) is_refused: bool,
    /// Why it waits, or what the pod has, in one sentence.
    pub(crate) text: String,
}

impl State {
    /// Reads the conditions.
    pub(crate) fn of(object: &NetworkAttachment) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let (pod, node) = (&object.spec.pod_name, status.node.map(|node| node.to_string()));
        let is_on_node = node.is_some();
        let node = node.unwrap_or_default();
        let allocated = object.condition::<AllocatedReason>();
        let attached = object.condition::<AttachedReason>();
        let is = |condition: Option<&Condition>, status: &str| {
            condition.is_some_and(|condition| condition.status == status)
        };
        let because = |condition: Option<&Condition>| {
            condition.map(|of| format!("{}: {}", of.reason, of.message)).unwrap_or_default()
        };
        let is_leaving = object.metadata.deletion_timestamp.is_some();
        let is_attached = is(allocated, "True") && is(attached, "True") && !is_leaving;
        let text = if is_leaving && !is_on_node {
            "is being removed by the controller".to_owned()
        } else if is_leaving {
            let fails = attached.filter(|_| says(attached, AttachedReason::DetachFailed));
            let why = fails.map(|of| format!(", whose plugin fails: {}", of.message)).unwrap_or_default();
            format!("is being detached from pod {pod} by the agent of node {node}{why}")
        } else if is_attached {
            let interfaces: Vec<String> = status
                .interfaces
                .iter()
                .map(|interface| {
                    let ips: Vec<String> = interface.ips.iter().map(ToString::to_string).collect();
                    let ips = if ips.is_empty() { String::new() } else { format!(" ({})", ips.join(", ")) };
                    format!("{}{ips}", interface.name)
                })
                .collect();
            format!("pod {pod} has {}", interfaces.join(", "))
        } else if allocated.is_none() {
            "waits for the controller: hotAttach.enabled of the chart must be set".to_owned()
        } else if !is(allocated, "True") {
            format!("waits for its devices: {}", because(allocated))
        } else if is(attached, "False") && !says(attached, AttachedReason::Detached) {
            format!("node {node} cannot attach pod {pod}: {}", because(attached))
        } else if is(attached, "Unknown") {
            format!("waits for the agent of node {node}: {}", because(attached))
        } else {
            format!("waits for the agent of node {node} to attach pod {pod}")
        };
        // What the agent refuses it tries again: an interface of the name may be about to go.
        let is_refused = says(allocated, AllocatedReason::Refused);
        Self { is_attached, is_refused: is_refused && !is_leaving, text }
    }

    /// The state with the name of the object.
    pub(crate) fn named(object: &NetworkAttachment) -> String {
        let State { text, .. } = Self::of(object);
        format!("NetworkAttachment {}: {text}", object.name_any())
    }
}

fn says<R: ConditionReason>(condition: Option<&Condition>, reason: R) -> bool {
    condition.is_some_and(|condition| condition.reason == reason.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state(conditions: &[[&str; 3]], interfaces: &Value) -> State {
        let condition = |[type_, status, reason]: &[&str; 3]| json!({"type": type_, "status": status, "reason": reason, "message": "why", "lastTransitionTime": "2026-11-29T00:00:00Z"});
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let object = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment",
            "metadata": {"name": "web-0-backup"}, "spec": {"podName": "web-0", "resourceClaimTemplateName": "backup"},
            "status": {"node": "a", "conditions": conditions, "interfaces": interfaces}});
        State::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_state_says_who_is_waited_for() {
        let allocated = ["Allocated", "True", "Allocated"];
        let none = json!([]);
        for (conditions, text) in [
            (&[][..], "waits for the controller: hotAttach.enabled of the chart must be set"),
            (&[["Allocated", "False", "NotAllocated"]], "waits for its devices: NotAllocated: why"),
            (&[allocated], "waits for the agent of node a to attach pod web-0"),
            (
                &[allocated, ["Attached", "False", "Detached"]],
                "waits for the agent of node a to attach pod web-0",
            ),
            (
                &[allocated, ["Attached", "Unknown", "AgentAway"]],
                "waits for the agent of node a: AgentAway: why",
            ),
            (
                &[allocated, ["Attached", "False", "AttachFailed"]],
                "node a cannot attach pod web-0: AttachFailed: why",
            ),
        ] {
            let state = state(conditions, &none);
            assert_eq!((state.text.as_str(), state.is_attached, state.is_refused), (text, false, false));
        }
        assert!(state(&[["Allocated", "False", "Refused"]], &none).is_refused);
        assert!(!state(&[allocated, ["Attached", "False", "Refused"]], &none).is_refused);
        let interfaces = json!([{"name": "net2", "ips": ["10.20.0.2", "fd00::2"]}, {"name": "lan0"}]);
        let attached = state(&[allocated, ["Attached", "True", "Attached"]], &interfaces);
        assert_eq!(
            (attached.text.as_str(), attached.is_attached),
            ("pod web-0 has net2 (10.20.0.2, fd00::2), lan0", true)
        );
    }
}
