//! Keeps the condition of pods that name netclaim's readiness gate: such a pod leaves its Services while one
//! of its networks is broken, or the device that it has by it cuts it off.
//!
//! A kubelet takes a gate without a condition for one that is closed, so it is first written when each
//! network is attached or one has failed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use netclaim_api::reasons::{ConditionReason as _, READINESS_GATE, ReadyReason, Reason as _};
use netclaim_api::shorten;
use netclaim_driver::attach::Phase;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::entries::{Entry, MAX_MESSAGE, State, entries};
use super::pod_writes::{OfPods, WriteError, Written, written};
use crate::dra::{DeviceHealth, Report};
use crate::pods::owner::{ObjectRef, PodState, Record};
use crate::pods::{NodePods, PodCondition, set_condition};

/// After so long, an agent that has started has run CHECK for each attachment, if it does so at all.
const FIRST_CHECK: Duration = Duration::from_secs(120);
/// After so long, it has asked plugins for their STATUS, which have 10 s for it.
const FIRST_STATUS: Duration = Duration::from_secs(15);

/// The condition about the networks of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Summary {
    reason: ReadyReason,
    message: String,
}

/// The condition, written as `client`; pods are read as their node.
pub(crate) struct Gate {
    client: kube::Client,
    pods: Arc<NodePods>,
    /// The health of the node's devices.
    health: watch::Receiver<Report>,
    /// When the agent has started.
    begin: Instant,
}

impl Gate {
    pub(super) fn new(client: kube::Client, pods: Arc<NodePods>, health: watch::Receiver<Report>) -> Self {
        Self { client, pods, health, begin: Instant::now() }
    }

    /// What cuts one of the pod's attachments off.
    fn cut_off(&self, state: &PodState) -> Option<Summary> {
        let health = self.health.borrow();
        state.attachments().find_map(|record| {
            let owner = &record.plan.owner;
            let device = health.iter().find(|device| device.stops_traffic && is_of(record, device))?;
            let why = device.unhealthy.as_deref()?;
            let message = format!("claim {}: device {}: {why}", owner.claim.name, device.device);
            Some(Summary { reason: ReadyReason::DeviceUnhealthy, message: shorten(message, MAX_MESSAGE) })
        })
    }

    /// Whether an agent that has just started has not looked again for what the one before has found.
    fn is_unchecked(&self, found: &PodCondition) -> bool {
        found.says(ReadyReason::CheckFailed)
            || (found.says(ReadyReason::DeviceUnhealthy)
                && (self.health.borrow().is_empty() || self.begin.elapsed() < FIRST_STATUS))
    }
}

fn is_of(record: &Record, device: &DeviceHealth) -> bool {
    let of = &record.plan.owner.device;
    of.device == device.device && of.pool == device.pool
}

impl OfPods for Gate {
    type Value = Summary;

    const NAME: &'static str = "the condition netclaim.dev/networks";
    // A pod that is not ready for lack of a right is to be so when the right is there.
    const GIVES_UP: bool = false;

    /// The worst network decides. Open until each claim's attachments are made or have failed.
    fn value(&self, state: &PodState) -> Option<Summary> {
        if state.damaged.is_some() {
            return None;
        }
        let mut by_claim: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
        // What comes to the running pod, or leaves it, says nothing about what the pod has.
        let is_here =
            |record: &&Record| !record.plan.is_hot() || matches!(record.phase, Phase::Attached { .. });
        for record in state.records.iter().filter(is_here) {
            by_claim.entry(&record.plan.owner.claim.name).or_default().push(record);
        }
        let is_stuck = state.attachments().any(|record| record.error.is_some());
        let decided =
            by_claim.into_iter().map(|(claim, records)| Some((claim, entries(&records, is_stuck)?)));
        let decided: Vec<(&str, Vec<Entry>)> = decided.collect::<Option<_>>()?;
        let wrong = decided.iter().find_map(|(claim, entries)| {
            let (reason, message) = entries.iter().find_map(wrong)?;
            Some(Summary { reason, message: shorten(format!("claim {claim}: {message}"), MAX_MESSAGE) })
        });
        let fine = "each network of the pod is attached";
        Some(
            wrong
                .or_else(|| self.cut_off(state))
                .unwrap_or_else(|| Summary { reason: ReadyReason::Attached, message: fine.to_owned() }),
        )
    }

    async fn write(
        &self,
        pod: &ObjectRef,
        before: Option<&Summary>,
        Summary { reason, message }: &Summary,
    ) -> Result<Written, WriteError> {
        let Some(found) = self.pods.gate(pod).await? else { return Ok(Written::Unwanted) };
        // What was found is not journalled. An agent that has just started does not open a gate that the one
        // before has closed, before it has looked.
        let is_first = before.is_none() && self.begin.elapsed() < FIRST_CHECK;
        if is_first && reason.status() && found.as_ref().is_some_and(|found| self.is_unchecked(found)) {
            return Err(WriteError::Unchecked);
        }
        match condition(*reason, message, found.as_ref()) {
            Some(condition) => written(set_condition(&self.client, pod, condition).await),
            None => Ok(Written::Done),
        }
    }
}

fn wrong(entry: &Entry) -> Option<(ReadyReason, &str)> {
    match &entry.state {
        State::Attached { broken, .. } => Some((ReadyReason::CheckFailed, broken.as_ref()?)),
        State::NotReady { reason, message } => Some((*reason, message)),
    }
}

/// Returns the condition to write; `None` if the pod has it.
fn condition(reason: ReadyReason, message: &str, found: Option<&PodCondition>) -> Option<Value> {
    let status = if reason.status() { "True" } else { "False" };
    let same = found.filter(|found| found.status == status);
    let is_there = |found: &PodCondition| {
        found.reason.as_deref() == Some(reason.as_str()) && found.message.as_deref() == Some(message)
    };
    if same.is_some_and(is_there) {
        return None;
    }
    // If the status stays, only the reason is new.
    let since = same.and_then(|found| found.last_transition_time.clone());
    Some(json!({
        "type": READINESS_GATE, "status": status, "reason": reason.as_str(), "message": message,
        "lastTransitionTime": since.unwrap_or_else(super::now),
    }))
}

#[cfg(test)]
mod tests {
    use http::Method;
    use netclaim_driver::attach::Finding;

    use super::*;
    use crate::fixtures::{self, attached, hot, record};
    use crate::reports::pod_writes::PodWriter;

    /// A gate on a node with these devices.
    fn gate(devices: &[DeviceHealth]) -> Gate {
        let (client, _) = fixtures::api_server();
        let pods = Arc::new(NodePods::new(client.clone(), "node0", Arc::default()));
        Gate::new(client, pods, watch::channel(devices.into()).1)
    }

    fn summary_beside(devices: &[DeviceHealth], records: Vec<Record>) -> Option<(&'static str, String)> {
        let state = PodState { records, ..PodState::default() };
        gate(devices).value(&state).map(|Summary { reason, message }| (reason.as_str(), message))
    }

    fn summary(records: Vec<Record>) -> Option<(&'static str, String)> {
        summary_beside(&[], records)
    }

    fn device(name: &str, unhealthy: Option<&str>, stops_traffic: bool) -> DeviceHealth {
        let (pool, device) = ("n".to_owned(), name.to_owned());
        DeviceHealth { pool, device, unhealthy: unhealthy.map(str::to_owned), stops_traffic }
    }

    #[tokio::test]
    async fn a_device_that_cuts_its_pods_off_closes_their_gates() {
        let of =
            |devices: &[DeviceHealth]| summary_beside(devices, vec![attached("a", "s")]).expect("attached").0;
        assert_eq!(of(&[device("d", Some("eth1 is down"), true)]), "DeviceUnhealthy");
        assert_eq!(of(&[device("d", Some("no plugin"), false)]), "Attached", "what new pods lack only");
        assert_eq!(of(&[device("e", Some("eth2 is down"), true)]), "Attached", "of other pods");
        let closed = |reason: &str| PodCondition {
            status: "False".to_owned(),
            reason: Some(reason.to_owned()),
            ..PodCondition::default()
        };
        let unchecked = |devices: &[DeviceHealth], reason| gate(devices).is_unchecked(&closed(reason));
        assert!(unchecked(&[], "DeviceUnhealthy") && unchecked(&[], "CheckFailed"));
        assert!(unchecked(&[device("d", None, false)], "DeviceUnhealthy"), "no plugin has been asked");
        assert!(!unchecked(&[], "AttachFailed"));
        let mut later = gate(&[device("d", None, false)]);
        later.begin -= FIRST_STATUS;
        assert!(!later.is_unchecked(&closed("DeviceUnhealthy")), "it has looked");
    }

    #[tokio::test]
    async fn a_pod_is_ready_when_each_network_is_attached_and_works() {
        let fine = Some(("Attached", "each network of the pod is attached".to_owned()));
        assert_eq!(summary(vec![attached("a", "s"), attached("b", "s")]), fine);
        assert_eq!(summary(vec![attached("a", "s"), record("b", Phase::Planned)]), None, "one is under way");
        let mut failed = record("b", Phase::Planned);
        failed.error = Some("no address".to_owned());
        let expected = Some(("AttachFailed", "claim b: no address".to_owned()));
        assert_eq!(summary(vec![attached("a", "s"), failed]), expected);
        let mut broken = attached("a", "s");
        broken.check = Some(Finding { message: "net1 is gone".to_owned(), is_of_interface: true });
        assert_eq!(summary(vec![broken.clone()]), Some(("CheckFailed", "claim a: net1 is gone".to_owned())));
        // What comes to the running pod counts when it is there.
        let mut failed = record("h", Phase::Planned);
        failed.error = Some("no address".to_owned());
        for coming in [failed, record("h", Phase::Planned)] {
            assert_eq!(summary(vec![attached("a", "s"), hot(coming, "s")]), fine);
        }
        assert_eq!(summary(vec![hot(broken, "s")]).map(|(reason, _)| reason), Some("CheckFailed"));
    }

    #[test]
    fn the_time_of_a_condition_is_that_of_its_status() {
        let found = |status: &str, message: &str| PodCondition {
            status: status.to_owned(),
            reason: Some("CheckFailed".to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some("then".to_owned()),
            ..PodCondition::default()
        };
        let wanted = |found: &PodCondition| condition(ReadyReason::CheckFailed, "lost", Some(found));
        assert_eq!(wanted(&found("False", "lost")), None);
        let other = wanted(&found("False", "other")).expect("another message");
        assert_eq!((&other["lastTransitionTime"], &other["status"]), (&json!("then"), &json!("False")));
        let changed = wanted(&found("True", "lost")).expect("another status");
        assert!(changed["lastTransitionTime"].as_str().is_some_and(|time| time.ends_with('Z')), "{changed}");
    }

    /// What the agent asks about a pod with these readiness gates and conditions, and when.
    async fn requests(gates: Value, conditions: Value) -> Vec<(Method, Option<Value>, Duration)> {
        let (client, mut server) = fixtures::api_server();
        let pods = Arc::new(NodePods::new(client.clone(), "node0", Arc::default()));
        let (states, writer) = PodWriter::new(Gate::new(client, pods, watch::channel(Report::default()).1));
        states.note("p", &PodState { records: vec![attached("c", "s")], ..PodState::default() });
        let begin = Instant::now();
        let server = async {
            let mut seen = Vec::new();
            let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "p"},
                "spec": {"readinessGates": gates}, "status": {"conditions": conditions}});
            let pod = json!({"items": [pod], "metadata": {"name": "p"}});
            while let Ok((head, body)) =
                tokio::time::timeout(Duration::from_secs(300), fixtures::answer(&mut server, 200, &pod)).await
            {
                seen.push((head.method, body, begin.elapsed()));
            }
            drop(states);
            seen
        };
        tokio::join!(writer.run(), server).1
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_pod_that_names_the_gate_gets_the_condition() {
        let gate = || json!([{"conditionType": READINESS_GATE}]);
        let seen = requests(gate(), json!([])).await;
        let [(Method::GET, ..), (Method::PATCH, Some(patch), _)] = seen.as_slice() else {
            panic!("{seen:?}")
        };
        let condition = &patch["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["status"]), (&json!(READINESS_GATE), &json!("True")));
        assert_eq!(patch["metadata"], json!({"uid": "p"}));
        let other = requests(json!([{"conditionType": "example.com/other"}]), json!([])).await;
        assert_eq!(other.len(), 1, "{other:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_has_just_started_opens_no_gate_that_check_has_closed() {
        let closed = json!([{"type": READINESS_GATE, "status": "False", "reason": "CheckFailed"}]);
        let seen = requests(json!([{"conditionType": READINESS_GATE}]), closed).await;
        let first =
            seen.iter().find(|(method, ..)| method == Method::PATCH).expect("no CHECK has said otherwise");
        assert!(first.2 >= FIRST_CHECK, "{:?}", first.2);
    }
}
