//! Says in an event why a pod has no node, as far as that is about its networks.
//!
//! ```text
//!   watch of pods ──> pods: who waits, in groups ──> read: claims, classes, slices ──┐
//!   reconciler ── Demand: nodes, Networks ───────────────────────────────────────────┴─> netclaim_allocation
//!   events of pods <── pods: who has not been told <── note: one text for the group <──────────┘
//! ```
//!
//! The scheduler says only "cannot allocate all claims". Nothing is read while no pod waits that asks for netclaim's devices, and
//! nothing of what is read is kept. Reading and judging take at most a part of the time.

mod note;
mod pods;
mod read;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference, PodSpec};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use kube::Client;
use kube::runtime::watcher;
use netclaim_allocation::{Judgement, Needed, Outlook, Question, World};
use netclaim_api::NetworkName;
use netclaim_api::reasons::{PodEvent, Reason as _};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use self::pods::{Finding, Group, Pods, Report};
use self::read::{Offers, Reader};
use crate::blocks::Demand;
use crate::events::Events;
use crate::leasing::Draw;
use crate::metrics::{Explained, Metrics};
use crate::waiting::PodObject;

pub(crate) use self::pods::Outcome;

/// Groups of pods that are judged with one reading of the cluster.
const GROUPS: usize = 50;

/// Time between two events.
const EVENT_INTERVAL: Duration = Duration::from_millis(200);

/// After a round, this many times as long as it took nothing is read or judged.
const REST: u32 = 9;

/// The pods that wait for a node, shared with the watch that shows them.
#[derive(Debug, Default)]
pub(crate) struct Unscheduled {
    pods: Mutex<Pods>,
    changed: Notify,
}

impl Unscheduled {
    /// Takes in an event of the watch.
    pub(crate) fn apply(&self, event: &watcher::Event<PodObject>) {
        if self.pods().apply(event, Instant::now()) {
            self.changed.notify_one();
        }
    }

    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports on pods that wait. Does not return.
pub(crate) async fn run(
    client: Client,
    events: Events,
    metrics: Metrics,
    unscheduled: Arc<Unscheduled>,
    mut demand: watch::Receiver<Option<Demand>>,
) {
    // Before that, it is not known which nodes and Networks there are.
    let _ = demand.wait_for(Option::is_some).await;
    let mut explainer = Explainer { reader: Reader::new(client), events, metrics, unscheduled, demand };
    let (mut next_round, mut next_event) = (Instant::now(), Instant::now());
    loop {
        let (due, has_reports) = {
            let pods = explainer.unscheduled.pods();
            (pods.next(), pods.has_reports())
        };
        let due = due.map(|due| due.max(next_round));
        tokio::select! {
            () = explainer.unscheduled.changed.notified() => {}
            () = sleep_until(next_event), if has_reports => {
                explainer.report().await;
                next_event = Instant::now() + EVENT_INTERVAL;
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let begin = Instant::now();
                explainer.round(begin).await;
                next_round = Instant::now() + begin.elapsed() * REST;
            }
        }
    }
}

struct Explainer {
    reader: Reader,
    events: Events,
    metrics: Metrics,
    unscheduled: Arc<Unscheduled>,
    demand: watch::Receiver<Option<Demand>>,
}

/// A group with the claims of one of its pods, under the names that the pods have for them.
struct Asking {
    group: Group,
    claims: Vec<ResourceClaim>,
}

impl Explainer {
    /// Judges the groups that are due.
    async fn round(&mut self, now: Instant) {
        let due = self.unscheduled.pods().take_due(now, GROUPS);
        let mut classes = BTreeMap::new();
        let mut asking = Vec::new();
        for (group, claims) in due {
            match self.reader.claims(&group.namespace, &claims, &mut classes).await {
                Ok(Some(claims)) => asking.push(Asking { group, claims }),
                // They are made or deleted just now.
                Ok(None) => self.answer(&group, &Finding::Other(Outcome::Unknown)),
                Err(error) => self.failed([&group], &error),
            }
        }
        let classes: Vec<DeviceClass> = classes.into_values().flatten().collect();
        let (ours, foreign): (Vec<Asking>, Vec<Asking>) =
            asking.into_iter().partition(|asking| is_ours(&asking.claims, &classes));
        for asking in foreign {
            self.answer(&asking.group, &Finding::Other(Outcome::Foreign));
        }
        if ours.is_empty() {
            return;
        }
        let mut needed = Needed::default();
        ours.iter().for_each(|asking| needed.add(&Question::new(&asking.claims, &classes)));
        let offers = match self.reader.offers(&needed).await {
            Ok(offers) => offers,
            Err(error) => return self.failed(ours.iter().map(|asking| &asking.group), &error),
        };
        let snapshot = Arc::new(Snapshot::new(classes, offers, self.demand.borrow().as_ref()));
        for Asking { group, claims } in ours {
            let snapshot = snapshot.clone();
            let judged = spawn_blocking(move || {
                let finding = snapshot.judge(&group, &claims);
                (group, finding)
            });
            // A panic is a bug; the group is judged again later.
            if let Ok((group, finding)) = judged.await {
                self.answer(&group, &finding);
            }
        }
    }

    fn answer(&self, group: &Group, finding: &Finding) {
        let (pods, outcome) = self.unscheduled.pods().answer(group, finding, Instant::now());
        self.count(outcome, pods);
    }

    fn failed<'a>(&self, groups: impl IntoIterator<Item = &'a Group>, error: &kube::Error) {
        tracing::warn!(error = error as &dyn Error, "cannot read why pods wait for a node, will retry");
        for group in groups {
            self.answer(group, &Finding::Other(Outcome::Failed));
        }
    }

    /// Writes the next event.
    async fn report(&self) {
        let next = self.unscheduled.pods().next_report(Instant::now());
        let Some(report) = next else { return };
        let Report { uid, namespace, name, note } = &report;
        tracing::debug!(pod = format!("{namespace}/{name}"), note = &**note, "a pod waits for its networks");
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            uid: Some(uid.clone()),
            ..ObjectReference::default()
        };
        let reason = PodEvent::NetworkNotAllocated.as_str();
        if self.events.warn(&pod, reason, "Allocate", note.to_string()).await {
            self.count(Outcome::Reported, 1);
        } else {
            self.unscheduled.pods().not_reported(uid);
            self.count(Outcome::Failed, 1);
        }
    }

    fn count(&self, outcome: Outcome, pods: usize) {
        let counter = self.metrics.pods_explained.get_or_create(&Explained { outcome: outcome.as_str() });
        counter.inc_by(u64::try_from(pods).unwrap_or(u64::MAX));
    }
}

/// Whether a request names the driver.
fn is_ours(claims: &[ResourceClaim], classes: &[DeviceClass]) -> bool {
    !Question::new(claims, classes).of_driver().is_empty()
}

/// What the scheduler works with, at one moment.
struct Snapshot {
    classes: Vec<DeviceClass>,
    offers: Offers,
    nodes: Vec<Node>,
    /// Whether each Network is accepted.
    networks: BTreeMap<NetworkName, bool>,
}

impl Snapshot {
    fn new(classes: Vec<DeviceClass>, offers: Offers, demand: Option<&Demand>) -> Self {
        let nodes = demand.iter().flat_map(|demand| demand.nodes.iter());
        let networks = demand.iter().flat_map(|demand| &demand.networks);
        Self {
            classes,
            offers,
            nodes: nodes.map(|(name, facts)| facts.object(name)).collect(),
            networks: networks.map(|(name, draw)| (name.clone(), *draw != Draw::Unknown)).collect(),
        }
    }

    /// Judges all nodes for a group.
    fn judge(&self, group: &Group, claims: &[ResourceClaim]) -> Finding {
        let refusal = |name: &str| self.refusal(name);
        let world = World {
            classes: &self.classes,
            slices: &self.offers.slices,
            nodes: Some(&self.nodes),
            holdings: &self.offers.holdings,
            refusal: &refusal,
        };
        // It was written from what the API server sent.
        let pod: PodSpec = serde_json::from_str(&group.spec).unwrap_or_default();
        let judgement = Judgement::of(claims, Some(&pod), &world, false);
        match judgement.outlook() {
            Outlook::Refused(why) => Finding::Cause(note::of_all(&why)),
            Outlook::Unserved(why) => {
                Finding::Cause(note::of_groups(&why, &judgement.causes, &group.namespace))
            }
            Outlook::NotTaken(_) => Finding::Other(Outcome::NotTaken),
            Outlook::Unknown(_) => Finding::Other(Outcome::Unknown),
            Outlook::Served(_) => Finding::Other(Outcome::Served),
        }
    }

    /// Why a Network cannot be used. What is wrong with its configuration is for those who may read it.
    fn refusal(&self, name: &str) -> Option<String> {
        let is_accepted = name.parse::<NetworkName>().ok().and_then(|name| self.networks.get(&name));
        match is_accepted {
            Some(true) => None,
            Some(false) => Some(format!("Network {name} is not accepted: its condition Accepted says why")),
            None => Some(format!("there is no Network {name}")),
        }
    }
}

#[cfg(test)]
mod tests;
