//! What became of an attachment, in the claim's `status.devices`.
//!
//! One server-side apply per change, retried until it is written or the claim is gone, and never on a pod's path.
//! An apply carries every entry of the claim that is ours, since those left out would be removed (KEP-4817).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::prepare::owner::PodState;
use crate::prepare::owner::{DeviceRef, ObjectRef, Plan, Record};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimStatus};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder};
use netclaim_cni::{CniResult, error_chain};
use netclaim_driver::attach::Interface;
use netclaim_driver::attach::record::{Phase, Sandbox};
use netclaim_driver::failpoint::Failpoint;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::prepare::claim::Refusal;

/// The API server takes no more than this in `data` (bytes).
const MAX_DATA: usize = 10 * 1024;
/// The API server takes no more addresses than this.
const MAX_IPS: usize = 16;
/// First pause after a failed write; doubled up to a minute.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long the API server may take for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);
/// A conflict is mostly somebody else's write in between; after this many it is a new claim with the old one's name. And
/// a status that stays invalid is that of a claim whose devices have been given back.
const CONFLICTS: u32 = 3;

/// What the writer is told.
#[derive(Debug)]
pub enum News {
    /// A pod's attachments changed.
    Attachments {
        /// The pod.
        pod_uid: String,
        /// Its state now.
        state: PodState,
    },
    /// What was made for a plan could not be undone, and will not be tried again.
    GivenUp {
        /// The plan.
        plan: Box<Plan>,
        /// Why.
        why: String,
    },
    /// A claim cannot be prepared.
    Refused(Box<Refusal>),
}

/// One device's entry.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    device: DeviceRef,
    outcome: Outcome,
}

impl Entry {
    fn is_broken(&self) -> bool {
        matches!(self.outcome, Outcome::Attached { broken: Some(_), .. })
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Outcome {
    /// `broken` is what a CHECK has found since.
    Attached {
        network: Value,
        data: Option<Value>,
        broken: Option<String>,
    },
    NotReady {
        reason: &'static str,
        message: String,
    },
}

/// What is to be written for a claim.
struct Work {
    claim: ObjectRef,
    entries: Vec<Entry>,
    /// An earlier agent may have written the same.
    inherited: bool,
    written: bool,
    failures: u32,
    due: Instant,
}

/// Writes statuses.
pub struct StatusWriter {
    client: kube::Client,
    driver: String,
    recorder: Recorder,
    work: HashMap<String, Work>,
    claims_of_pod: HashMap<String, BTreeSet<String>>,
    /// Claims with a write under way: one at a time, or an old one could win.
    busy: HashSet<String>,
}

impl StatusWriter {
    /// A writer of entries of `driver`, which is also its field manager.
    pub fn new(client: kube::Client, driver: &str, recorder: Recorder) -> Self {
        Self {
            client,
            driver: driver.to_owned(),
            recorder,
            work: HashMap::new(),
            claims_of_pod: HashMap::new(),
            busy: HashSet::new(),
        }
    }

    /// Writes until nobody tells any more.
    pub async fn run(mut self, mut news: mpsc::UnboundedReceiver<News>) {
        let mut writes = JoinSet::new();
        loop {
            let due = self.start_due(&mut writes);
            tokio::select! {
                told = news.recv() => match told {
                    Some(News::Attachments { pod_uid, state }) => self.attachments(&pod_uid, &state).await,
                    Some(News::Refused(refusal)) => self.refused(&refusal),
                    Some(News::GivenUp { plan, why }) => {
                        self.publish(&plan, "NetworkDetachGivenUp", "Detach", &format!("something may be left on the node: {why}"));
                    }
                    None => break,
                },
                Some(done) = writes.join_next() => if let Ok((uid, entries, result)) = done {
                    self.done(&uid, &entries, result);
                },
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
        // On the way down: what is under way is worth a moment.
        let _ = tokio::time::timeout(Duration::from_secs(2), writes.join_all()).await;
    }

    async fn attachments(&mut self, pod_uid: &str, state: &PodState) {
        let mut by_claim: HashMap<&str, Vec<&Record>> = HashMap::new();
        for record in &state.records {
            by_claim.entry(&record.plan.owner.claim.uid).or_default().push(record);
        }
        let now: BTreeSet<String> = by_claim.keys().map(|uid| (*uid).to_owned()).collect();
        let before = self.claims_of_pod.insert(pod_uid.to_owned(), now.clone()).unwrap_or_default();
        for gone in before.difference(&now) {
            self.work.remove(gone);
        }
        if now.is_empty() {
            self.claims_of_pod.remove(pod_uid);
        }
        for (uid, records) in by_claim {
            // Half a claim is no news: it is written when every attachment is made, or one has failed.
            let Some(entries) = records.iter().map(|record| entry(record)).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let claim = records.first().map(|record| record.plan.owner.claim.clone());
            let known_broken =
                self.work.get(uid).is_some_and(|work| work.entries.iter().any(Entry::is_broken));
            if let Some(claim) = claim
                // The first that is heard of a claim that is prepared now is that nothing has been done yet.
                && self.want(uid, claim, entries.clone(), !before.contains(uid))
                && let Some(plan) = records.first().map(|record| &record.plan)
                // Once: the plugin may word it differently each time.
                && !(known_broken && entries.iter().any(Entry::is_broken))
            {
                self.tell_pod(plan, &entries);
            }
        }
    }

    fn refused(&mut self, refusal: &Refusal) {
        let outcome = Outcome::NotReady { reason: "Refused", message: refusal.message.clone() };
        let entries = refusal
            .devices
            .iter()
            .map(|device| Entry { device: device.clone(), outcome: outcome.clone() })
            .collect();
        // No pod's record leads to it: it is forgotten when it is written.
        self.want(&refusal.claim.uid, refusal.claim.clone(), entries, false);
    }

    /// Notes what is to be written; `true` when that is new.
    fn want(&mut self, uid: &str, claim: ObjectRef, entries: Vec<Entry>, inherited: bool) -> bool {
        if entries.is_empty() || self.work.get(uid).is_some_and(|work| work.entries == entries) {
            return false;
        }
        self.work.insert(
            uid.to_owned(),
            Work { claim, entries, inherited, written: false, failures: 0, due: Instant::now() },
        );
        true
    }

    /// The kubelet tells the pod's events only what the runtime answers; a failure while the gate waits is ours to
    /// tell.
    fn tell_pod(&self, plan: &Plan, entries: &[Entry]) {
        let Some((reason, action, message)) = entries.iter().find_map(|entry| match &entry.outcome {
            Outcome::NotReady { message, .. } => Some(("NetworkAttachFailed", "Attach", message)),
            Outcome::Attached { broken, .. } => Some(("NetworkCheckFailed", "Check", broken.as_ref()?)),
        }) else {
            return;
        };
        self.publish(plan, reason, action, message);
    }

    /// Publishes an event on the plan's pod, which may be lost.
    fn publish(&self, plan: &Plan, reason: &str, action: &str, message: &str) {
        let mut note = format!("network {}: {message}", plan.network);
        while note.len() > 1000 {
            note.pop();
        }
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        let pod = k8s_openapi::api::core::v1::ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(plan.owner.pod.namespace.clone()),
            name: Some(plan.owner.pod.name.clone()),
            uid: Some(plan.owner.pod.uid.clone()),
            ..Default::default()
        };
        let (recorder, pod_name) = (self.recorder.clone(), plan.owner.pod.to_string());
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &pod).await {
                tracing::debug!(pod = pod_name, %error, "the event was lost");
            }
        });
    }

    /// Starts every write that is due; returns when the next one is.
    fn start_due(
        &mut self,
        writes: &mut JoinSet<(String, Vec<Entry>, Result<(), WriteError>)>,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        for (uid, work) in &mut self.work {
            if work.written || self.busy.contains(uid) {
                continue;
            }
            if work.due > now {
                next = Some(next.map_or(work.due, |next: Instant| next.min(work.due)));
                continue;
            }
            Failpoint::StatusDue.reach();
            self.busy.insert(uid.clone());
            let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &work.claim.namespace);
            let patch = Patch::Apply(patch(&self.driver, &work.claim, &work.entries));
            let (uid, name, entries, driver, inherited) = (
                uid.clone(),
                work.claim.name.clone(),
                work.entries.clone(),
                self.driver.clone(),
                work.inherited,
            );
            writes.spawn(async move {
                // That it cannot be read is no yes.
                if inherited
                    && let Ok(Ok(claim)) = tokio::time::timeout(WRITE_TIMEOUT, api.get(&name)).await
                    && says(claim.status, &driver, &entries)
                {
                    return (uid, entries, Ok(()));
                }
                let params = PatchParams::apply(&driver).force();
                let write = api.patch_status(&name, &params, &patch);
                let result = match tokio::time::timeout(WRITE_TIMEOUT, write).await {
                    Ok(result) => result.map(drop).map_err(WriteError::Api),
                    Err(_) => Err(WriteError::Timeout),
                };
                (uid, entries, result)
            });
        }
        next
    }

    fn done(&mut self, uid: &str, entries: &[Entry], result: Result<(), WriteError>) {
        self.busy.remove(uid);
        let known = self.claims_of_pod.values().any(|claims| claims.contains(uid));
        // Changed meanwhile: the new wish goes its own way.
        let Some(work) = self.work.get_mut(uid).filter(|work| work.entries == entries) else { return };
        work.written = match &result {
            Ok(()) => true,
            Err(WriteError::Api(kube::Error::Api(status))) => {
                status.code == 404 || matches!(status.code, 409 | 422) && work.failures >= CONFLICTS
            }
            Err(_) => false,
        };
        match result {
            Err(error) if !work.written => {
                let pause = FIRST_PAUSE.saturating_mul(1 << work.failures.min(8)).min(LONGEST_PAUSE);
                work.failures += 1;
                work.due = Instant::now() + pause;
                let error = error_chain(&error);
                tracing::warn!(claim = %work.claim, error, ?pause, "cannot write the claim's status, trying again");
            }
            // The status of a claim that is gone is nobody's news.
            _ if !known => drop(self.work.remove(uid)),
            _ => {}
        }
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

/// What there is to say of a record; `None` while it is under way.
fn entry(record: &Record) -> Option<Entry> {
    let outcome = match (&record.phase, &record.error) {
        (Phase::Attached { sandbox, result }, _) => Outcome::Attached {
            network: network_data(&record.plan, sandbox, result),
            data: Some(result.raw())
                .filter(|data| data.len() <= MAX_DATA)
                .and_then(|data| serde_json::from_str(data).ok()),
            broken: record.check.clone(),
        },
        (_, Some(error)) => Outcome::NotReady { reason: "AttachFailed", message: error.clone() },
        (_, None) => return None,
    };
    Some(Entry { device: record.plan.owner.device.clone(), outcome })
}

/// What became of a plan in a sandbox, as the API's `NetworkDeviceData`.
pub fn network_data(plan: &Plan, sandbox: &Sandbox, result: &CniResult) -> Value {
    let made = Interface::made(&plan.spec, sandbox, result);
    let mut network = json!({"interfaceName": plan.spec.if_name});
    if let Some(mac) = made.mac {
        network["hardwareAddress"] = json!(mac);
    }
    let ips: Vec<String> = made.ips.iter().take(MAX_IPS).map(ToString::to_string).collect();
    if !ips.is_empty() {
        network["ips"] = json!(ips);
    }
    network
}

fn patch(driver: &str, claim: &ObjectRef, entries: &[Entry]) -> Value {
    let now = k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let devices: Vec<Value> = entries.iter().map(|entry| device_status(driver, entry, &now)).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        // The UID makes the API server refuse a patch of a new claim with the old one's name.
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": devices},
    })
}

/// Whether a claim's status has exactly these entries of ours.
fn says(status: Option<ResourceClaimStatus>, driver: &str, entries: &[Entry]) -> bool {
    let devices = status.and_then(|status| status.devices).unwrap_or_default();
    let found = devices.iter().filter(|device| device.driver == driver);
    let found: Vec<Value> =
        found.filter_map(|device| serde_json::to_value(device).ok()).map(timeless).collect();
    let wanted: Vec<Value> = entries.iter().map(|entry| timeless(device_status(driver, entry, ""))).collect();
    found.len() == wanted.len() && wanted.iter().all(|device| found.contains(device))
}

/// A device's status without the times of its conditions.
fn timeless(mut status: Value) -> Value {
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition.as_object_mut().map(|condition| condition.remove("lastTransitionTime"));
    }
    status
}

fn device_status(driver: &str, entry: &Entry, now: &str) -> Value {
    let DeviceRef { pool, device, share_id, .. } = &entry.device;
    let condition = |status: &str, reason: &str, message: &str| {
        // 32 KiB is the API's limit; nobody reads that much.
        let message: String = message.chars().take(4096).collect();
        json!([{"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": now}])
    };
    let mut status = json!({"driver": driver, "pool": pool, "device": device});
    if let Some(share) = share_id {
        status["shareID"] = json!(share);
    }
    match &entry.outcome {
        Outcome::Attached { network, data, broken } => {
            let if_name = network["interfaceName"].as_str().unwrap_or_default();
            status["conditions"] = match broken {
                None => condition("True", "Attached", &format!("attached as {if_name}")),
                Some(error) => condition("False", "CheckFailed", error),
            };
            status["networkData"] = network.clone();
            if let Some(data) = data {
                status["data"] = data.clone();
            }
        }
        Outcome::NotReady { reason, message } => status["conditions"] = condition("False", reason, message),
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(outcome: Outcome) -> Entry {
        let device = DeviceRef {
            request: "net".into(),
            pool: "node0".into(),
            device: "net-storage".into(),
            share_id: Some("s".into()),
        };
        Entry { device, outcome }
    }

    #[test]
    fn a_ready_device_shows_interface_addresses_and_result() {
        let ready = attached(None);
        let status = device_status("netclaim.dev", &entry(ready), "now");
        assert_eq!(status["networkData"], json!({"interfaceName": "data0", "ips": ["10.20.0.2/24"]}));
        assert_eq!(status["conditions"][0]["message"], "attached as data0");
        assert_eq!(status["conditions"][0]["status"], "True");
        assert_eq!(status["shareID"], "s");
        assert_eq!(status["data"]["cniVersion"], "1.1.0");
    }

    fn attached(broken: Option<&str>) -> Outcome {
        Outcome::Attached {
            network: json!({"interfaceName": "data0", "ips": ["10.20.0.2/24"]}),
            data: Some(json!({"cniVersion": "1.1.0"})),
            broken: broken.map(str::to_owned),
        }
    }

    #[test]
    fn a_device_that_a_check_found_broken_says_so_and_what_it_was() {
        let status = device_status("netclaim.dev", &entry(attached(Some("no link"))), "now");
        let expected = json!([{"type": "Ready", "status": "False", "reason": "CheckFailed", "message": "no link", "lastTransitionTime": "now"}]);
        assert_eq!(status["conditions"], expected);
        assert_eq!(status["networkData"]["interfaceName"], "data0");
    }

    #[test]
    fn what_an_earlier_agent_wrote_is_known_again() {
        let ready = |ip: &str| {
            let network = json!({"interfaceName": "data0", "ips": [ip]});
            let data = Some(json!({"cniVersion": "1.1.0", "ips": []}));
            entry(Outcome::Attached { network, data, broken: None })
        };
        let now = ready("10.20.0.2/24");
        let ours = device_status("netclaim.dev", &now, "2026-01-01T00:00:00Z");
        let mut others = ours.clone();
        others["driver"] = json!("other.dev");
        let status = |devices: Value| serde_json::from_value(json!({"devices": devices})).unwrap();
        let says = |status, entries: &[Entry]| says(status, "netclaim.dev", entries);
        assert!(says(status(json!([others, ours])), std::slice::from_ref(&now)));
        assert!(!says(status(json!([others, ours])), &[ready("10.20.0.3/24")]), "another address");
        assert!(!says(status(json!([others])), std::slice::from_ref(&now)), "nothing of ours");
        assert!(!says(status(json!([ours, ours])), std::slice::from_ref(&now)), "one too many");
        assert!(!says(None, &[now]));
    }

    #[test]
    fn a_failed_device_says_why() {
        let failed = Outcome::NotReady { reason: "AttachFailed", message: "no".into() };
        let status = device_status("netclaim.dev", &entry(failed), "now");
        let expected = json!([{"type": "Ready", "status": "False", "reason": "AttachFailed", "message": "no", "lastTransitionTime": "now"}]);
        assert_eq!(status["conditions"], expected);
        assert!(status.get("networkData").is_none());
    }
}
