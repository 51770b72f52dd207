//! Says in an event why a pod has no node, as far as that is about its networks.
//!
//! ```text
//!   watch of pods ──> groups: who waits ─────────────> read: claims, classes, slices ────┐
//!   reconciler ── Demand: nodes, ClaimNetworks ──────────────────────────────────────────┴─> netclaim_allocation
//!   events of pods <── groups: who has no report yet <── note: one text for the group <──┘
//! ```
//!
//! What a pod waits for may be addresses that its node could lease: who leases them is told how many
//! ([`needs`]).
//!
//! What a pod asks for by limits is judged as the claim that the scheduler would make of them.
//!
//! The scheduler says only "cannot allocate all claims". Nothing is read while no pod waits that asks for
//! netclaim's devices, and nothing of what is read is kept. Reading and judging take at most a part of the
//! time, and end however many claims, classes and selectors a tenant writes.

mod groups;
mod needs;
mod note;
mod queue;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference, PodSpec};
use k8s_openapi::api::resource::v1::{DeviceClass, DeviceTaintRule};
use kube::Client;
use kube::runtime::watcher;
use netclaim_allocation::{Effort, Judgement, Limits, Needed, Outlook, Question, World, extended_resources};
use netclaim_api::NetworkName;
use netclaim_api::network::opt_out;
use netclaim_api::reasons::{PodEvent, Reason as _};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use self::groups::{Finding, PodGroup, Pods, Report};
use super::read::{Offers, Reader};
use super::waiting::PodObject;
use crate::demand::{Demand, Draw, Needs};
use crate::metrics::{Explained, Metrics, Outcome};
use crate::objects::events::Events;

/// Groups of pods that are judged with one reading of the cluster.
const GROUPS: usize = 50;

/// Time between two events.
const EVENT_INTERVAL: Duration = Duration::from_millis(200);

/// The pause after a round is this many times as long as the round.
const REST_FACTOR: u32 = 9;

/// The longest pause after a round.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// The longest time to compile the selectors of a group, and the longest time to evaluate them: tenants write
/// them.
const GROUP_TIME: Duration = Duration::from_secs(5);

/// The longest time to compile and evaluate the selectors of all groups of a round.
const ROUND_TIME: Duration = Duration::from_secs(30);

/// The pods that wait for a node, shared with the watch that shows them.
#[derive(Debug, Default)]
pub(crate) struct Unscheduled {
    pods: Mutex<Pods>,
    changed: Notify,
    /// What nodes need for them.
    needs: watch::Sender<Needs>,
}

impl Unscheduled {
    /// Takes in an event of the watch.
    pub(super) fn apply(&self, event: &watcher::Event<PodObject>) {
        if self.pods().apply(event, Instant::now()) {
            self.changed.notify_one();
        }
    }

    /// Returns the addresses that nodes need for the pods.
    pub(crate) fn needs(&self) -> watch::Receiver<Needs> {
        self.needs.subscribe()
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
    // Before that, it is not known which nodes and ClaimNetworks there are.
    let _ = demand.wait_for(Option::is_some).await;
    let (reader, needs) = (Reader::new(client), BTreeMap::new());
    let mut explainer = Explainer { reader, events, metrics, unscheduled, demand, needs };
    let (mut next_round, mut next_event) = (Instant::now(), Instant::now());
    loop {
        explainer.publish_needs();
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
                next_round = Instant::now() + pause(begin.elapsed());
            }
        }
    }
}

/// How long nothing is read or judged after a round that took this long.
fn pause(round: Duration) -> Duration {
    LONGEST_REST.min(round * REST_FACTOR)
}

/// Time for selectors that is left in a round.
struct TimeLeft(Duration);

impl TimeLeft {
    /// Runs work that ends by a deadline, beside the other tasks. `None`: it panicked, which is a bug; the
    /// group is judged again later.
    async fn spend<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(std::time::Instant) -> T + Send + 'static,
    ) -> Option<T> {
        let begin = std::time::Instant::now();
        let deadline = begin + self.0.min(GROUP_TIME);
        let done = spawn_blocking(move || work(deadline)).await.ok();
        self.0 = self.0.saturating_sub(begin.elapsed());
        done
    }
}

struct Explainer {
    reader: Reader,
    events: Events,
    metrics: Metrics,
    unscheduled: Arc<Unscheduled>,
    demand: watch::Receiver<Option<Demand>>,
    /// What nodes need for each group.
    needs: BTreeMap<PodGroup, Needs>,
}

impl Explainer {
    /// Tells who leases addresses what the groups need that still wait.
    fn publish_needs(&mut self) {
        let pods = self.unscheduled.pods();
        self.needs.retain(|group, _| pods.count(group) > 0);
        drop(pods);
        let mut all = Needs::new();
        for (of, need) in self.needs.values().flatten() {
            let sum = all.entry(of.clone()).or_default();
            sum.used = sum.used.max(need.used);
            sum.wanted = sum.wanted.saturating_add(need.wanted);
        }
        self.unscheduled.needs.send_if_modified(|now| std::mem::replace(now, all.clone()) != all);
    }

    /// Judges the groups that are due.
    async fn round(&mut self, now: Instant) {
        let due = self.unscheduled.pods().take_due(now, GROUPS);
        let mut classes = BTreeMap::new();
        let (by_limits, by_claims): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|(group, _)| asks_by_limits(group));
        let mut due = by_claims;
        if !by_limits.is_empty() {
            match self.reader.all_classes(&mut classes).await {
                Ok(()) => due.extend(by_limits),
                Err(error) => self.failed(by_limits.iter().map(|(group, _)| group), &error),
            }
        }
        // The claims have the names that the pods have for them.
        let mut asking = Vec::new();
        for (group, claims) in due {
            match self.reader.claims(&group.namespace, &claims, &mut classes).await {
                Ok(Some(claims)) => asking.push((group, claims)),
                // They are made or deleted just now, or too many.
                Ok(None) => self.answer(&group, &Finding::Other(Outcome::Unknown)),
                Err(error) => self.failed([&group], &error),
            }
        }
        let classes: Arc<[DeviceClass]> = classes.into_values().flatten().collect();
        let mut time_left = TimeLeft(ROUND_TIME);
        let mut ours = Vec::new();
        for (group, claims) in asking {
            let (classes, pod) = (classes.clone(), group.pod());
            let question = time_left.spend(move |deadline| {
                let question = Question::by(deadline, &claims, &classes);
                match Limits::of(&pod, &classes) {
                    Some(limits) => question.with_limits(&limits, &classes, Some(deadline)),
                    None => question,
                }
            });
            let question = question.await;
            match question {
                // No request names the driver.
                Some(question) if question.of_driver().is_empty() => {
                    self.answer(&group, &Finding::Other(Outcome::Foreign));
                }
                Some(question) => ours.push((group, question)),
                None => {}
            }
        }
        if ours.is_empty() {
            return;
        }
        let mut needed = Needed::default();
        ours.iter().for_each(|(_, question)| needed.add(question));
        let offers = match self.reader.offers(&needed).await {
            Ok(offers) => offers,
            Err(error) => return self.failed(ours.iter().map(|(group, _)| group), &error),
        };
        let snapshot = Arc::new(Snapshot::new(offers, self.demand.borrow().as_ref()));
        for (group, question) in ours {
            let snapshot = snapshot.clone();
            let pods = self.unscheduled.pods().count(&group);
            let judged = time_left.spend(move |deadline| {
                let judgement = snapshot.judge(&group, question, deadline);
                (finding(&judgement, &group), needs::of(&judgement, pods), group)
            });
            if let Some((finding, needs, group)) = judged.await {
                self.answer(&group, &finding);
                self.needs.insert(group, needs);
            }
        }
    }

    fn answer(&self, group: &PodGroup, finding: &Finding) {
        let (pods, outcome) = self.unscheduled.pods().answer(group, finding, Instant::now());
        self.count(outcome, pods);
    }

    fn failed<'a>(&self, groups: impl IntoIterator<Item = &'a PodGroup>, error: &kube::Error) {
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
        let counter = self.metrics.pods_explained.get_or_create(&Explained { outcome });
        counter.inc_by(u64::try_from(pods).unwrap_or(u64::MAX));
    }
}

/// The scheduler's input at one moment.
struct Snapshot {
    offers: Offers,
    nodes: Vec<Node>,
    rules: Vec<DeviceTaintRule>,
    /// Whether each ClaimNetwork is accepted.
    networks: BTreeMap<NetworkName, bool>,
}

impl Snapshot {
    fn new(offers: Offers, demand: Option<&Demand>) -> Self {
        let nodes = demand.iter().flat_map(|demand| demand.nodes.iter());
        let networks = demand.iter().flat_map(|demand| &demand.networks);
        Self {
            offers,
            rules: demand.map(|demand| demand.rules.clone()).unwrap_or_default(),
            nodes: nodes.map(|(name, facts)| facts.object(name)).collect(),
            networks: networks.map(|(name, draw)| (name.clone(), *draw != Draw::Unknown)).collect(),
        }
    }

    /// Judges the nodes that a group selects.
    fn judge(&self, group: &PodGroup, question: Question, deadline: std::time::Instant) -> Judgement {
        let refusal = |name: &str| self.refusal(name);
        let world = World {
            slices: &self.offers.slices,
            rules: &self.rules,
            nodes: Some(&self.nodes),
            holdings: &self.offers.holdings,
            refusal: &refusal,
        };
        Judgement::of(question, Some(&group.pod()), &world, Effort::Until(deadline))
    }

    /// Why a ClaimNetwork cannot be used. What is wrong with its configuration is for those who may read it.
    fn refusal(&self, name: &str) -> Option<String> {
        let is_accepted = name.parse::<NetworkName>().ok().and_then(|name| self.networks.get(&name));
        match is_accepted {
            Some(true) => None,
            Some(false) => Some(format!(
                "ClaimNetwork {name} is not accepted: kubectl describe claimnetworks {name} says why"
            )),
            None => Some(format!(
                "there is no ClaimNetwork {name}: kubectl get claimnetworks lists those that exist"
            )),
        }
    }
}

fn asks_by_limits(group: &PodGroup) -> bool {
    !extended_resources(&group.pod()).is_empty()
}

/// Says how pods do without the networks that they have not asked for.
fn hint(pod: &PodSpec) -> String {
    let claims = pod.resource_claims.iter().flatten();
    opt_out(claims.filter_map(|claim| claim.resource_claim_template_name.as_deref()))
}

/// Returns what to report on a group.
fn finding(judgement: &Judgement, group: &PodGroup) -> Finding {
    let hint = || hint(&group.pod());
    match judgement.outlook() {
        Outlook::Refused(why) => Finding::Cause(note::of_all(&why, &hint())),
        Outlook::Unserved(why) => {
            Finding::Cause(note::of_groups(&why, &hint(), &judgement.causes, &group.namespace))
        }
        Outlook::NotTaken(_) => Finding::Other(Outcome::NotTaken),
        Outlook::Unknown(_) => Finding::Other(Outcome::Unknown),
        Outlook::Served(_) => Finding::Other(Outcome::Served),
    }
}

#[cfg(test)]
mod tests;
