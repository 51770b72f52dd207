//! Keeps the statuses that are to be written, and writes them with retries.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::dra::Report;
use crate::pods::NodePods;
use crate::pods::owner::{DeviceRef, ObjectRef, Plan, PodState, Record};
use crate::reports::spans::Spans;
use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use http::header::{ACCEPT, HeaderValue};
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use kube::Resource as _;
use kube::api::{GetParams, Patch, PatchParams, Request};
use netclaim_api::NetworkName;
use netclaim_api::reasons::{PodEvent, ReadyReason};
use netclaim_cni::error_chain;
use netclaim_cni::spans::failed;
use netclaim_driver::attach::Failure;
use netclaim_driver::failpoint::Failpoint;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::annotations::Annotation;
use super::entries::{Entry, State, entries, has_entries, patch};
use super::events::Events;
use super::gate::Gate;
use super::pod_writes::{PodStates, PodWriter};

/// Backoff after failed writes of one status.
const RETRY: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_millis(500)).without_max_times();
/// Makes the API server answer with the metadata of an object.
pub(crate) const METADATA_ONLY: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
/// Timeout of one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);
/// Conflicts and refusals that are retried. A conflict that stays is a new claim with the old one's name; a
/// status that stays invalid is that of a claim without an allocation.
const MAX_CONFLICTS: u32 = 3;

/// A claim that is refused, with what is needed to say so in its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) claim: ObjectRef,
    /// Our devices in it.
    pub(crate) devices: Vec<DeviceRef>,
    /// The fault, and the way to correct it.
    pub(crate) message: String,
}

/// A report that is to be written.
#[derive(Debug)]
pub(crate) enum Update {
    /// A pod's attachments changed.
    Attachments { pod_uid: String, state: PodState },
    /// The DEL of a plan failed and is not retried.
    GivenUp { plan: Box<Plan>, why: String },
    /// A claim cannot be prepared.
    Refused(Box<Refusal>),
}

/// An ADD that has failed.
#[derive(Debug)]
pub(crate) struct FailedAdd {
    pub(crate) network: NetworkName,
    pub(crate) failure: Failure,
}

/// The desired status of a claim.
struct Desired {
    claim: ObjectRef,
    entries: Vec<Entry>,
    /// An earlier agent may have written the same.
    inherited: bool,
    failures: u32,
    backoff: ExponentialBackoff,
    due: Instant,
}

/// The writer of claims' statuses and pods' events.
pub(crate) struct StatusWriter {
    client: kube::Client,
    driver: String,
    events: Events,
    desired: HashMap<String, Desired>,
    /// The claims among them whose status is not written: few, on a node of hundreds.
    unwritten: HashSet<String>,
    claims_of_pod: HashMap<String, BTreeSet<String>>,
    /// Claims with a write under way: a second one at the same time could be overtaken.
    busy: HashSet<String>,
    annotations: Option<PodStates<Annotation>>,
    gates: Option<PodStates<Gate>>,
    spans: Arc<Spans>,
}

impl StatusWriter {
    /// Writes entries of `driver`, which is also the field manager.
    pub(crate) fn new(client: kube::Client, driver: &str, events: Events) -> Self {
        Self {
            client,
            driver: driver.to_owned(),
            events,
            desired: HashMap::new(),
            unwritten: HashSet::new(),
            claims_of_pod: HashMap::new(),
            busy: HashSet::new(),
            annotations: None,
            gates: None,
            spans: Arc::default(),
        }
    }

    /// Has the writes be part of the claims' traces.
    #[must_use]
    pub(crate) fn traced(self, spans: Arc<Spans>) -> Self {
        Self { spans, ..self }
    }

    /// Has the pods annotated, too. Returns the task that does it.
    pub(crate) fn annotate(&mut self, pods: Arc<NodePods>) -> PodWriter<Annotation> {
        let (annotations, writer) = PodWriter::new(Annotation { client: self.client.clone(), pods });
        self.annotations = Some(annotations);
        writer
    }

    /// Has the readiness gates of the pods kept, too. Returns the task that does it.
    pub(crate) fn keep_gates(
        &mut self,
        pods: Arc<NodePods>,
        health: watch::Receiver<Report>,
    ) -> PodWriter<Gate> {
        let (gates, writer) = PodWriter::new(Gate::new(self.client.clone(), pods, health));
        self.gates = Some(gates);
        writer
    }

    /// Writes until all senders of updates are dropped.
    pub(crate) async fn run(mut self, mut updates: mpsc::UnboundedReceiver<Update>) {
        let mut writes = JoinSet::new();
        loop {
            let due = self.start_due(&mut writes);
            tokio::select! {
                update = updates.recv() => match update {
                    Some(Update::Attachments { pod_uid, state }) => {
                        self.attachments(&pod_uid, &state);
                        if let Some(annotations) = &self.annotations {
                            annotations.note(&pod_uid, &state);
                        }
                        if let Some(gates) = &self.gates {
                            gates.note(&pod_uid, &state);
                        }
                    }
                    Some(Update::Refused(refusal)) => self.refused(&refusal),
                    Some(Update::GivenUp { plan, why }) => {
                        self.publish(&plan, PodEvent::NetworkDetachGivenUp, "Detach", &format!("something may be left on the node: {why}"));
                    }
                    None => break,
                },
                Some(done) = writes.join_next() => if let Ok((uid, entries, result)) = done {
                    self.done(&uid, &entries, result);
                },
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
        // The agent ends: give writes under way a moment.
        let _ = tokio::time::timeout(Duration::from_secs(2), writes.join_all()).await;
    }

    fn attachments(&mut self, pod_uid: &str, state: &PodState) {
        let mut by_claim: HashMap<&str, Vec<&Record>> = HashMap::new();
        for record in &state.records {
            by_claim.entry(&record.plan.owner.claim.uid).or_default().push(record);
        }
        // Finalizers wait for an attachment of the pod that fails.
        let is_stuck = state.attachments().any(|record| record.error.is_some());
        let now: BTreeSet<String> = by_claim.keys().map(|uid| (*uid).to_owned()).collect();
        let before = self.claims_of_pod.insert(pod_uid.to_owned(), now.clone()).unwrap_or_default();
        for gone in before.difference(&now) {
            self.desired.remove(gone);
            self.unwritten.remove(gone);
        }
        if now.is_empty() {
            self.claims_of_pod.remove(pod_uid);
        }
        for (uid, records) in by_claim {
            // A claim is written when all of its attachments are made or have failed.
            let Some(entries) = entries(&records, is_stuck) else { continue };
            let claim = records.first().map(|record| record.plan.owner.claim.clone());
            let known_broken =
                self.desired.get(uid).is_some_and(|desired| desired.entries.iter().any(Entry::is_broken));
            if let Some(claim) = claim
                // This agent knows its claims before they have entries, so others may be written already.
                && self.set_desired(uid, claim, entries.clone(), !before.contains(uid))
                && let Some(plan) = records.first().map(|record| &record.plan)
                // One event only: the plugin's message may differ each time.
                && !(known_broken && entries.iter().any(Entry::is_broken))
            {
                self.report_to_pod(plan, &entries);
            }
        }
    }

    fn refused(&mut self, refusal: &Refusal) {
        let state = State::NotReady { reason: ReadyReason::Refused, message: refusal.message.clone() };
        let entries = refusal
            .devices
            .iter()
            .map(|device| Entry { device: device.clone(), state: state.clone() })
            .collect();
        // No pod has a record of it, so it is dropped once written.
        self.set_desired(&refusal.claim.uid, refusal.claim.clone(), entries, false);
    }

    /// Sets the status of a claim; returns whether it has changed.
    fn set_desired(&mut self, uid: &str, claim: ObjectRef, entries: Vec<Entry>, inherited: bool) -> bool {
        if entries.is_empty() || self.desired.get(uid).is_some_and(|desired| desired.entries == entries) {
            return false;
        }
        let (backoff, due) = (RETRY.build(), Instant::now());
        let desired = Desired { claim, entries, inherited, failures: 0, backoff, due };
        self.desired.insert(uid.to_owned(), desired);
        self.unwritten.insert(uid.to_owned());
        true
    }

    /// Reports a failure on the pod: the kubelet reports only what the runtime answers, not failures while
    /// the gate waits.
    fn report_to_pod(&self, plan: &Plan, entries: &[Entry]) {
        let Some((reason, action, message)) = entries.iter().find_map(|entry| match &entry.state {
            State::NotReady { reason: ReadyReason::DetachFailed, message } => {
                Some((PodEvent::NetworkDetachFailed, "Detach", message))
            }
            State::NotReady { message, .. } => Some((PodEvent::NetworkAttachFailed, "Attach", message)),
            State::Attached { broken, .. } => Some((PodEvent::NetworkCheckFailed, "Check", broken.as_ref()?)),
        }) else {
            return;
        };
        self.publish(plan, reason, action, message);
    }

    fn publish(&self, plan: &Plan, reason: PodEvent, action: &str, message: &str) {
        self.events.warn_pod(&plan.owner.pod, reason, action, format!("network {}: {message}", plan.network));
    }

    /// Starts every write that is due; returns when the next one is.
    fn start_due(
        &mut self,
        writes: &mut JoinSet<(String, Vec<Entry>, Result<(), WriteError>)>,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        for uid in self.unwritten.difference(&self.busy).cloned().collect::<Vec<_>>() {
            let Some(desired) = self.desired.get(&uid) else { continue };
            if desired.due > now {
                next = Some(next.map_or(desired.due, |next: Instant| next.min(desired.due)));
                continue;
            }
            Failpoint::StatusDue.reach();
            self.busy.insert(uid.clone());
            let claims = Claims { client: self.client.clone(), namespace: desired.claim.namespace.clone() };
            let patch = Patch::Apply(patch(&self.driver, &desired.claim, &desired.entries));
            let (name, entries, driver, inherited) =
                (desired.claim.name.clone(), desired.entries.clone(), self.driver.clone(), desired.inherited);
            let span = self.spans.status_write(&desired.claim);
            let of_write = span.clone();
            let write = async move {
                // A claim that cannot be read is written.
                if inherited
                    && let Ok(Ok(claim)) = tokio::time::timeout(WRITE_TIMEOUT, claims.get(&name)).await
                    && has_entries(&claim.status.devices, &driver, &entries)
                {
                    return (uid, entries, Ok(()));
                }
                let params = PatchParams::apply(&driver).force();
                let write = claims.patch_status(&name, &params, &patch);
                let result = match tokio::time::timeout(WRITE_TIMEOUT, write).await {
                    Ok(result) => result.map_err(WriteError::Api),
                    Err(_) => Err(WriteError::Timeout),
                };
                if let Err(error) = &result {
                    failed(&of_write, &error_chain(error));
                }
                (uid, entries, result)
            };
            writes.spawn(write.instrument(span));
        }
        next
    }

    fn done(&mut self, uid: &str, entries: &[Entry], result: Result<(), WriteError>) {
        self.busy.remove(uid);
        let known = self.claims_of_pod.values().any(|claims| claims.contains(uid));
        // The desired status may have changed meanwhile.
        let Some(desired) = self.desired.get_mut(uid).filter(|desired| desired.entries == entries) else {
            return;
        };
        let is_written = match &result {
            Ok(()) => true,
            Err(WriteError::Api(kube::Error::Api(status))) => {
                status.code == 404 || matches!(status.code, 409 | 422) && desired.failures >= MAX_CONFLICTS
            }
            Err(_) => false,
        };
        if is_written {
            self.unwritten.remove(uid);
        }
        match result {
            Err(error) if !is_written => {
                let delay = desired.backoff.next().unwrap_or_default();
                desired.failures += 1;
                desired.due = Instant::now() + delay;
                let error = error_chain(&error);
                tracing::warn!(claim = %desired.claim, error, ?delay, "cannot write the claim's status, retrying");
            }
            _ if !known => drop(self.desired.remove(uid)),
            _ => {}
        }
    }
}

/// The claims of one namespace. What the agent does not need of them is not decoded.
struct Claims {
    client: kube::Client,
    namespace: String,
}

#[derive(Deserialize)]
struct WrittenClaim {
    #[serde(default)]
    status: WrittenStatus,
}

#[derive(Default, Deserialize)]
struct WrittenStatus {
    #[serde(default)]
    devices: Vec<AllocatedDeviceStatus>,
}

impl Claims {
    fn request(&self) -> Request {
        Request::new(ResourceClaim::url_path(&(), Some(&self.namespace)))
    }

    async fn get(&self, name: &str) -> kube::Result<WrittenClaim> {
        let request = self.request().get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        self.client.request(request).await
    }

    async fn patch_status(&self, name: &str, params: &PatchParams, patch: &Patch<Value>) -> kube::Result<()> {
        let request = self.request().patch_subresource("status", name, params, patch);
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        // Only the outcome of the answer counts.
        request.headers_mut().insert(ACCEPT, METADATA_ONLY);
        self.client.request_text(request).await.map(drop)
    }
}

/// Why a status was not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("the API server refused or was not reached")]
    Api(#[source] kube::Error),
    #[error("the API server did not answer in {} s", WRITE_TIMEOUT.as_secs())]
    Timeout,
}
