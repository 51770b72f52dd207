//! The sweep, for what no event reports: GC of networks, CHECK of attachments, and pods that are gone. CHECK
//! runs at once where the link of attachments has changed, or a file of facts names them.
//!
//! * Each of the three does one thing at a time. `netclaim_driver::attach::sweep` schedules it.
//! * GC leaves a network alone in which a sandbox that lives has an address, and the journal knows nothing of
//!   it: the state directory was removed, and the address would go to another pod.
//! * An idle node does not ask the API server: the agent only looks for pods whose sandbox is gone.
//! * GC runs for networks that have had an attachment since the agent started, and for those of which an
//!   earlier agent has left something on disk.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use netclaim_api::NetworkName;
use netclaim_api::device::DeviceName;
use netclaim_api::network::{NODE_CONFLIST, conflist_name};
use netclaim_cni::ListName;
use netclaim_cni::ipam::host_local::{Reservation, default_reservations_dir, reservations};
use netclaim_driver::attach::sweep::{Orphans, Schedule, Sighting};
use netclaim_driver::attach::{Attach, Attacher, Checked, Observer};
use netclaim_driver::attach::{Phase, Spec};
use netclaim_process::label_values;
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::inventory::{Inventory, NetworkFacts, Version};
use crate::pods::NodePods;
use crate::pods::owner::{ObjectRef, Owner, PodState, Record};
use crate::runtime::sandboxes::Sandboxes;

label_values! {
    /// A kind of sweep.
    pub(crate) enum SweepKind {
        Gc = "Gc",
        Check = "Check",
        Orphan = "Orphan",
    }
}

label_values! {
    /// The outcome of a sweep for one network, attachment or claim.
    pub(crate) enum SweepResult {
        /// Nothing is wrong, or the sweep has corrected it.
        Ok = "Ok",
        /// A CHECK found a fault.
        Failed = "Failed",
        /// The sweep failed.
        Error = "Error",
        /// Nothing can be said.
        Skipped = "Skipped",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SweepLabels {
    sweep: SweepKind,
    outcome: SweepResult,
}

/// Counts what sweeps do and find.
#[derive(Clone)]
pub(crate) struct SweepMetrics {
    sweeps: Family<SweepLabels, Counter>,
    /// Addresses of live sandboxes that the journal does not know.
    pub(crate) forgotten: Gauge,
}

impl SweepMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        Self {
            sweeps: registry.add(
                "sweeps",
                "Networks collected (GC), attachments checked (CHECK), and claims of pods that are gone released",
                [Label::one_of("sweep", SweepKind::VALUES), Label::one_of("outcome", SweepResult::VALUES)],
                Family::default(),
            ),
            forgotten: registry.add(
                "forgotten_addresses",
                "Addresses of running pods that the journal does not know, because the state directory was removed",
                [],
                Gauge::default(),
            ),
        }
    }

    /// Counts and logs the outcome of a CHECK.
    pub(crate) fn checked(&self, pod: &str, key: &str, checked: Checked) {
        let outcome = match checked {
            Checked::Fine => SweepResult::Ok,
            Checked::Failed(found) => {
                tracing::warn!(pod.uid = pod, attachment = key, error = %found, "check failed");
                SweepResult::Failed
            }
            Checked::Unknown(reason) => {
                tracing::debug!(pod.uid = pod, attachment = key, reason, "not checked");
                SweepResult::Skipped
            }
        };
        self.count(SweepKind::Check, outcome);
    }

    /// Counts the outcome of a sweep.
    pub(crate) fn count(&self, sweep: SweepKind, outcome: SweepResult) {
        self.sweeps.get_or_create(&SweepLabels { sweep, outcome }).inc();
    }
}

/// How often attachments are looked for that are checked at once, if nothing says that there are any.
const UPDATE_INTERVAL: Duration = Duration::from_secs(30);
/// Time until the next look at attachments whose pods had work to do.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);
/// Time from the agent's start in which it checks what earlier agents have attached.
const FIRST_CHECK: Duration = Duration::from_secs(60);
/// How often the agent looks for a pod before the pod is an orphan.
const LOOKS: u32 = 4;

/// How often; zero is never.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Intervals {
    /// GC of each network.
    pub(crate) gc: Duration,
    /// CHECK of each attachment.
    pub(crate) check: Duration,
    /// For how long a pod must be gone to be an orphan.
    pub(crate) orphan_after: Duration,
}

/// The sweep of a node.
pub(crate) struct Sweep<N, O: Observer<Owner = Owner>> {
    pub(crate) attacher: Arc<Attacher<N, O>>,
    pub(crate) pods: Arc<NodePods>,
    /// The sandboxes that live.
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) boot_id: String,
    pub(crate) intervals: Intervals,
    pub(crate) metrics: SweepMetrics,
    /// Changes when links do.
    pub(crate) inventory: watch::Receiver<Option<Arc<Inventory>>>,
}

impl<N: Attach, O: Observer<Owner = Owner>> Sweep<N, O> {
    /// Sweeps until `cancel`.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let sweeps = async {
            let displaced = self.check_at_once(true, || self.attacher.displaced());
            let named = self.check_at_once(false, || self.named_by_facts());
            tokio::join!(self.collect(), self.check(), displaced, named, self.find_orphans())
        };
        let _ = cancel.run_until_cancelled(sweeps).await;
        cancel.cancelled().await;
    }

    async fn collect(&self) {
        let Some(mut schedule) = schedule(self.intervals.gc) else { return };
        let mut seen: BTreeMap<ListName, Spec> = self.attacher.networks_on_disk().await;
        // What is set up on the node is not the pods'.
        seen.retain(|list, _| !list.as_str().ends_with(NODE_CONFLIST));
        let mut forgotten = BTreeMap::new();
        loop {
            let network = turn(&mut schedule, || {
                seen.extend(self.attacher.networks());
                seen.keys().cloned().collect()
            });
            let network = network.await;
            let Some(spec) = seen.get(&network) else { continue };
            if !self.knows_all(&network, &mut forgotten).await {
                self.metrics.count(SweepKind::Gc, SweepResult::Error);
                continue;
            }
            match self.attacher.collect(spec).await {
                Ok(released) => {
                    tracing::debug!(%network, released, "gc");
                    self.metrics.count(SweepKind::Gc, SweepResult::Ok);
                }
                Err(failure) => {
                    tracing::warn!(%network, error = failure.message, "gc failed");
                    self.metrics.count(SweepKind::Gc, SweepResult::Error);
                }
            }
        }
    }

    /// Whether the journal knows every sandbox that lives and has an address of the network. `forgotten` has
    /// the others.
    async fn knows_all(
        &self,
        network: &ListName,
        forgotten: &mut BTreeMap<ListName, BTreeSet<String>>,
    ) -> bool {
        // GC looks at no addresses in networks of other names.
        if !network.as_str().starts_with(&conflist_name("")) {
            return true;
        }
        // The journal is read before and after the rest: a plan comes before its address, and goes after it.
        let mut known = self.attacher.sandbox_ids();
        let Some(live) = self.sandboxes.ids() else {
            tracing::debug!(%network, "gc waits until the runtime has listed its sandboxes");
            return false;
        };
        let dir = default_reservations_dir(network.as_str());
        let read = tokio::task::spawn_blocking(move || reservations(&dir)).await;
        // Without the files GC releases no address, either.
        let reserved = read.ok().and_then(Result::ok).unwrap_or_default();
        known.extend(self.attacher.sandbox_ids());
        let found = unknown(&reserved, &live, &known);
        if !found.is_empty() && forgotten.get(network) != Some(&found) {
            let addresses = found.iter().cloned().collect::<Vec<_>>().join(", ");
            tracing::error!(
                %network, addresses,
                "pods have addresses that the journal does not know, so that no address of the network is collected: was the \
                 state directory removed? Delete these pods"
            );
        }
        forgotten.insert(network.clone(), found);
        let all = forgotten.values().map(BTreeSet::len).sum::<usize>();
        self.metrics.forgotten.set(i64::try_from(all).unwrap_or(i64::MAX));
        forgotten.get(network).is_none_or(BTreeSet::is_empty)
    }

    async fn check(&self) {
        let Some(mut schedule) = schedule(self.intervals.check) else { return };
        // No agent has looked meanwhile.
        schedule.keep(&self.attached(), Instant::now(), fastrand::f64);
        schedule.hurry(FIRST_CHECK, Instant::now(), fastrand::f64);
        loop {
            let (pod, key) = turn(&mut schedule, || self.attached()).await;
            self.check_one(&pod, &key, true).await;
        }
    }

    /// Returns the attachments that can be checked, each by its pod's UID and its key.
    fn attached(&self) -> BTreeSet<(String, String)> {
        let mut attached = BTreeSet::new();
        self.attacher.for_each_pod(|state| {
            let of_pod = state.records.iter().filter(|record| matches!(record.phase, Phase::Attached { .. }));
            attached.extend(of_pod.map(|record| (record.plan.owner.pod.uid.clone(), record.key())));
        });
        attached
    }

    /// Returns the attachments that files of facts name, each by its pod's UID, its key and the version of
    /// the file. A file speaks of its own ClaimNetwork only.
    fn named_by_facts(&self) -> BTreeSet<(String, String, Version)> {
        let inventory = self.inventory.borrow().clone();
        let facts = inventory.iter().flat_map(|inventory| inventory.facts_of_networks());
        let naming: BTreeMap<_, _> = facts.filter(|(_, facts)| !facts.check.is_empty()).collect();
        let mut all = BTreeSet::new();
        if !naming.is_empty() {
            let is_named = |record: &Record| {
                let version = named(record, &naming)?;
                Some((record.plan.owner.pod.uid.clone(), record.key(), version))
            };
            self.attacher.for_each_pod(|state| all.extend(state.records.iter().filter_map(is_named)));
        }
        all
    }

    /// Checks the attachments that `find` returns, each by its pod's UID, its key and why, once while it
    /// returns them: at once when it may return others.
    async fn check_at_once<Why: Ord>(
        &self,
        may_look: bool,
        find: impl Fn() -> BTreeSet<(String, String, Why)>,
    ) {
        let (mut inventory, mut checked) = (self.inventory.clone(), BTreeSet::new());
        if self.intervals.check.is_zero() {
            return;
        }
        loop {
            let found = find();
            checked.retain(|known| found.contains(known));
            let mut wait = UPDATE_INTERVAL;
            for one in found {
                if !checked.contains(&one) {
                    if self.check_one(&one.0, &one.1, may_look).await {
                        checked.insert(one);
                    } else {
                        wait = BUSY_INTERVAL;
                    }
                }
            }
            if let Ok(Err(_)) = tokio::time::timeout(wait, inventory.changed()).await {
                return;
            }
        }
    }

    /// Checks an attachment. Returns false if there is no answer, because the pod's attachments change.
    async fn check_one(&self, pod: &str, key: &str, may_look: bool) -> bool {
        let Some(checked) = self.attacher.check(pod, key, may_look).await else { return false };
        self.metrics.checked(pod, key, checked);
        true
    }

    async fn find_orphans(&self) {
        let Some(mut schedule) = schedule(self.intervals.orphan_after / LOOKS) else { return };
        let mut orphans = Orphans::new(self.intervals.orphan_after);
        loop {
            let pod_uid = turn(&mut schedule, || {
                let pods = self.attacher.pod_uids();
                orphans.keep(&pods);
                pods
            });
            let pod_uid = pod_uid.await;
            let Some(state) = self.attacher.watch(&pod_uid).map(|state| state.borrow().clone()) else {
                continue;
            };
            let Some(pod) = state.records.first().map(|record| record.plan.owner.pod.clone()) else {
                continue;
            };
            let claims: BTreeSet<String> =
                state.records.iter().map(|record| record.plan.owner.claim.uid.clone()).collect();
            if !orphans.seen(&pod_uid, self.sighting(&pod, state).await, Instant::now()) {
                continue;
            }
            tracing::warn!(%pod, pod.uid = pod_uid, "the pod is gone and the kubelet has not unprepared its claims: releasing them");
            for claim in claims {
                let released = self.attacher.release_of(&pod_uid, &claim).await;
                let result = if released.is_ok() { SweepResult::Ok } else { SweepResult::Error };
                self.metrics.count(SweepKind::Orphan, result);
            }
        }
    }

    async fn sighting(&self, pod: &ObjectRef, state: PodState) -> Sighting {
        let boot_id = self.boot_id.clone();
        // What ends is released already; what came to the running pod waits for the controller.
        let ends = state.closing && state.records.iter().any(|record| !record.plan.is_hot());
        let lives = tokio::task::spawn_blocking(move || ends || state.sandbox_lives(&boot_id));
        if lives.await.unwrap_or(true) {
            return Sighting::There;
        }
        match self.pods.metadata(&pod.namespace, &pod.name, &pod.uid).await {
            Some(Some(_)) => Sighting::There,
            Some(None) => Sighting::Gone,
            None => Sighting::Unknown,
        }
    }
}

/// Returns the addresses of sandboxes that are `live` and not `known`.
fn unknown(reserved: &[Reservation], live: &HashSet<String>, known: &BTreeSet<String>) -> BTreeSet<String> {
    let is_unknown = |of: &&Reservation| live.contains(&of.container_id) && !known.contains(&of.container_id);
    reserved.iter().filter(is_unknown).map(|of| of.ip.to_string()).collect()
}

/// Returns the version of the file that names an attachment, if its ClaimNetwork's does.
fn named(record: &Record, naming: &BTreeMap<&NetworkName, &NetworkFacts>) -> Option<Version> {
    let Phase::Attached { sandbox, .. } = &record.phase else { return None };
    let Ok(DeviceName::Network(network)) = record.plan.owner.device.device.parse() else { return None };
    let facts = naming.get(&network)?;
    let name = format!("{}/{}", sandbox.id, record.plan.spec.if_name);
    facts.check.contains(&name).then_some(facts.origin.version)
}

/// Returns a schedule; `None` when the interval is zero.
pub(crate) fn schedule<K: Ord + Clone>(interval: Duration) -> Option<Schedule<K>> {
    (!interval.is_zero()).then(|| Schedule::new(interval))
}

/// Waits until one of `things` is due, and returns it. It may have ended within the last half a minute.
pub(crate) async fn turn<K: Ord + Clone>(
    schedule: &mut Schedule<K>,
    mut things: impl FnMut() -> BTreeSet<K>,
) -> K {
    loop {
        let now = Instant::now();
        if schedule.outdated(now) <= now {
            schedule.keep(&things(), now, fastrand::f64);
        }
        if let Some(thing) = schedule.next(now, fastrand::f64) {
            return thing;
        }
        let update = schedule.outdated(now);
        tokio::time::sleep_until(schedule.due().map_or(update, |due| due.min(update))).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{attached, record};
    use crate::inventory::fixtures::facts;

    #[test]
    fn a_file_names_attachments_of_its_own_network_only() {
        let facts = facts(&json!({"check": ["s1/net1", "s2/net2"]}));
        let network = "lab".parse().expect("a name");
        let naming = BTreeMap::from([(&network, &facts)]);
        let is_named = |device: &str, mut record: Record| {
            Arc::make_mut(&mut record.plan).owner.device.device = device.to_owned();
            named(&record, &naming).is_some()
        };
        assert!(is_named("net-lab", attached("c", "s1")));
        assert!(!is_named("net-lab", attached("c", "s2")), "its interface is net1");
        assert!(!is_named("net-other", attached("c", "s1")));
        assert!(!is_named("nic-eth1", attached("c", "s1")));
        assert!(!is_named("net-lab", record("c", Phase::Planned)), "it is not attached");
    }

    #[test]
    fn an_address_of_a_live_sandbox_that_the_journal_does_not_know_is_not_a_leftover() {
        let reserved = |ip: &str, of: &str| Reservation {
            ip: ip.parse().expect("an address"),
            container_id: of.to_owned(),
            if_name: Some("net1".to_owned()),
        };
        let reserved =
            [reserved("10.20.0.2", "known"), reserved("10.20.0.3", "gone"), reserved("10.20.0.4", "lost")];
        let live = HashSet::from(["known".to_owned(), "lost".to_owned()]);
        let known = BTreeSet::from(["known".to_owned()]);
        assert_eq!(unknown(&reserved, &live, &known), BTreeSet::from(["10.20.0.4".to_owned()]));
        assert!(unknown(&reserved[..2], &live, &known).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_thing_is_due_within_two_intervals() {
        let mut schedule = Schedule::new(Duration::from_secs(100));
        let start = Instant::now();
        let things =
            || if start.elapsed() < UPDATE_INTERVAL { BTreeSet::new() } else { BTreeSet::from(["new"]) };
        assert_eq!(turn(&mut schedule, things).await, "new");
        assert!(start.elapsed() <= UPDATE_INTERVAL + Duration::from_secs(100), "{:?}", start.elapsed());
    }
}
