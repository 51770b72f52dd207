//! Makes attachments again that have broken, where their ClaimNetwork says so (`spec.repair`).
//!
//! One repair at a time on the node: what decides is [`netclaim_driver::attach::repair`], and the machine of
//! attachments carries it out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use netclaim_api::NetworkName;
use netclaim_api::network::Repair;
use netclaim_api::reasons::{NodeEvent, PodEvent};
use netclaim_driver::attach::repair::{Due, MOST, Repairs, Unwell};
use netclaim_driver::attach::{Attach, Attacher, Checked, Observer, Phase};
use netclaim_process::label_values;
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::inventory::Inventory;
use crate::pods::owner::{ObjectRef, Owner, Record};
use crate::reports::Events;

/// How long a repair may take before the next one begins. It goes on, and its network's others wait for it.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of looks without an event.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

label_values! {
    /// The outcome of a repair.
    pub(crate) enum RepairOutcome {
        /// The attachment is as it should be.
        Ok = "Ok",
        /// It is not, so that no other one of its ClaimNetwork is repaired on the node.
        Failed = "Failed",
        /// It is not repaired any more.
        GivenUp = "GivenUp",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepairLabels {
    outcome: RepairOutcome,
}

/// Counts repairs.
#[derive(Clone)]
pub(crate) struct RepairMetrics(Family<RepairLabels, Counter>);

impl RepairMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        Self(registry.add(
            "repairs",
            "Repairs of attachments in running pods (spec.repair)",
            [Label::one_of("outcome", RepairOutcome::VALUES)],
            Family::default(),
        ))
    }

    /// Counts a repair.
    pub(crate) fn count(&self, outcome: RepairOutcome) {
        self.0.get_or_create(&RepairLabels { outcome }).inc();
    }
}

/// Returns whether attachments of the ClaimNetwork are repaired.
pub(crate) fn is_repaired(inventory: &Inventory, network: &str) -> bool {
    let spec = network.parse::<NetworkName>().ok().and_then(|name| inventory.networks.get(&name));
    spec.is_some_and(|spec| spec.repair == Repair::Reattach)
}

/// An attachment, by its pod's UID and its key.
type Attachment = (String, String);

/// Repairs the attachments of a node.
pub(crate) struct Repairer<N, O: Observer<Owner = Owner>> {
    pub(crate) attacher: Arc<Attacher<N, O>>,
    pub(crate) inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// The Node object's name, and its UID.
    pub(crate) node: String,
    pub(crate) node_uid: watch::Receiver<Option<String>>,
    pub(crate) events: Events,
    pub(crate) metrics: RepairMetrics,
}

impl<N: Attach, O: Observer<Owner = Owner>> Repairer<N, O> {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let (mut repairs, mut changes) = (Repairs::default(), self.attacher.changes());
        loop {
            changes.mark_unchanged();
            let (due, again) = repairs.due(&self.unwell(), Instant::now());
            match due {
                Some(Due::Repair(of)) => self.repair(&of, &mut repairs).await,
                Some(Due::GiveUp(of)) => self.give_up(&of),
                None => {
                    let look = Instant::now() + LOOK_INTERVAL;
                    let look = again.map_or(look, |again| again.min(look));
                    tokio::select! {
                        changed = changes.changed() => if changed.is_err() { return },
                        () = sleep_until(look) => {}
                    }
                }
            }
        }
    }

    /// Returns the attachments of repaired ClaimNetworks that are not whole.
    fn unwell(&self) -> BTreeMap<Attachment, Unwell> {
        let Some(inventory) = self.inventory.borrow().clone() else { return BTreeMap::new() };
        let mut all = BTreeMap::new();
        self.attacher.for_each_pod(|state| {
            let is_unwell = |record: &&Record| record.check.is_some() || record.is_on_trial();
            for record in state.attachments().filter(is_unwell) {
                let network = record.plan.network.clone();
                let mut with = state.attachments().filter(|other| record.is_redone_with(other));
                let can_be_repaired = record.can_be_repaired()
                    && with.all(|one| one.can_be_redone() && is_repaired(&inventory, &one.plan.network));
                let of = (record.plan.owner.pod.uid.clone(), record.key());
                all.insert(of, Unwell { network, can_be_repaired, is_on_trial: record.is_on_trial() });
            }
        });
        all
    }

    async fn repair(&self, of: &Attachment, repairs: &mut Repairs<Attachment>) {
        let (pod_uid, key) = of;
        let broken = self.attacher.check(pod_uid, key, false).await;
        let Some((pod, network)) =
            self.record(of).filter(Record::can_be_repaired).map(|record| names(&record))
        else {
            return repairs.postponed(of);
        };
        let Some(Checked::Failed(found)) = broken else { return repairs.postponed(of) };
        if !self.attacher.redo(pod_uid, key).await {
            return repairs.postponed(of);
        }
        tracing::warn!(%pod, network, attachment = key, found = %found, "repairing");
        repairs.repaired(of, &network, Instant::now());
        let is_made = self.is_made_again(of);
        let is_whole = timeout(REPAIR_TIMEOUT, is_made).await.unwrap_or(false);
        if self.record(of).is_none() {
            // The pod ends.
        } else if is_whole {
            self.metrics.count(RepairOutcome::Ok);
            let note = format!("network {network}: made again in the running pod, because CHECK had failed");
            self.events.note_pod(&pod, PodEvent::NetworkRepaired, "Repair", note);
        } else {
            self.metrics.count(RepairOutcome::Failed);
            tracing::warn!(%pod, network, "the repair has not helped: others of the network wait for it");
            let note = format!(
                "ClaimNetwork {network}: the repair of pod {pod} has not helped, so that no other pod here is repaired until it is as \
                 it should be, or for an hour: {found}"
            );
            self.events.warn_own_node(&self.node, &self.node_uid, NodeEvent::NetworkRepairsStopped, note);
        }
    }

    /// Waits until an attachment that is to be made again is, with those that stand on it, and returns
    /// whether CHECK finds them whole.
    async fn is_made_again(&self, (pod_uid, key): &Attachment) -> bool {
        let Some(mut state) = self.attacher.watch(pod_uid) else { return false };
        let is_new = state.wait_for(|state| {
            let record = state.records.iter().find(|record| record.key() == *key);
            record.is_none_or(|record| matches!(record.phase, Phase::Attached { .. }) && !record.is_redone)
        });
        if is_new.await.is_err() {
            return false;
        }
        let on_trial = |record: &&Record| record.is_on_trial();
        let keys: Vec<String> = state.borrow().attachments().filter(on_trial).map(Record::key).collect();
        for key in keys {
            loop {
                match self.attacher.check(pod_uid, &key, false).await {
                    Some(Checked::Fine) => break,
                    Some(_) => return false,
                    // Its pod has work to do: what is made of the first one comes after it.
                    None if self.attacher.watch(pod_uid).is_none() => return false,
                    None => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        }
        true
    }

    fn give_up(&self, of: &Attachment) {
        let Some(record) = self.record(of) else { return };
        let (pod, network) = names(&record);
        self.metrics.count(RepairOutcome::GivenUp);
        let found = record.check.map(|found| found.message).unwrap_or_default();
        let note = format!("network {network}: not made again, after {MOST} times within an hour: {found}");
        tracing::warn!(%pod, note, "a repair is given up");
        self.events.warn_pod(&pod, PodEvent::NetworkRepairGivenUp, "Repair", note);
    }

    fn record(&self, (pod_uid, key): &Attachment) -> Option<Record> {
        let state = self.attacher.watch(pod_uid)?;
        state.borrow().records.iter().find(|record| record.key() == *key).cloned()
    }
}

fn names(record: &Record) -> (ObjectRef, String) {
    (record.plan.owner.pod.clone(), record.plan.network.clone())
}
