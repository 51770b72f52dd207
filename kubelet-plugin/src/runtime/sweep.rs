//! Looks after what nobody tells about, on slow beats: GC of networks, CHECK of attachments, and pods that are gone.
//!
//! * Each beat does one thing at a time, and `netclaim_driver::attach::sweep` says which and when.
//! * An idle node asks the API server nothing: only pods whose sandbox does not live are looked up.
//! * Networks are collected that have had an attachment since the agent started.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use crate::owner::ObjectRef;
use crate::owner::{Owner, PodState};
use netclaim_cni::ListName;
use netclaim_driver::attach::record::Phase;
use netclaim_driver::attach::sweep::{Beat, Orphans, Sighting};
use netclaim_driver::attach::{Attach, Attacher, Checked, Observer, Spec};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::process::metrics::{Metrics, Sweep as Kind, SweepResult};

/// How long something new may wait until it is known to a beat.
const LOOK: Duration = Duration::from_secs(30);
/// Looks at a pod before it is an orphan.
const LOOKS: u32 = 4;

/// How often; zero is never.
#[derive(Debug, Clone, Copy)]
pub struct Periods {
    /// GC of each network.
    pub gc: Duration,
    /// CHECK of each attachment.
    pub check: Duration,
    /// How long a pod is gone before it is an orphan.
    pub orphan_after: Duration,
}

/// What the API server knows of pods.
pub trait Pods: Send + Sync + 'static {
    /// Whether this very pod is there; `None` where that cannot be said.
    fn is_there(&self, pod: &ObjectRef) -> impl Future<Output = Option<bool>> + Send;
}

/// The sweep of a node.
pub struct Sweep<N, O: Observer<Owner = Owner>, P> {
    /// What is attached.
    pub attacher: Arc<Attacher<N, O>>,
    /// Where pods are looked up.
    pub pods: P,
    /// The running boot.
    pub boot_id: String,
    /// How often.
    pub periods: Periods,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl<N: Attach, O: Observer<Owner = Owner>, P: Pods> Sweep<N, O, P> {
    /// Sweeps until `cancel`.
    pub async fn run(self, cancel: CancellationToken) {
        let beats = async { tokio::join!(self.collect(), self.check(), self.find_orphans()) };
        let _ = cancel.run_until_cancelled(beats).await;
        cancel.cancelled().await;
    }

    async fn collect(&self) {
        let Some(mut beat) = beat(self.periods.gc) else { return };
        let mut seen: BTreeMap<ListName, Spec> = BTreeMap::new();
        loop {
            let network = turn(&mut beat, || {
                seen.extend(self.attacher.networks());
                seen.keys().cloned().collect()
            });
            let network = network.await;
            let Some(spec) = seen.get(&network) else { continue };
            match self.attacher.collect(spec).await {
                Ok(released) => {
                    tracing::debug!(%network, released, "gc");
                    self.metrics.sweep(Kind::Gc, SweepResult::Ok);
                }
                Err(failure) => {
                    tracing::warn!(%network, error = failure.message, "gc failed");
                    self.metrics.sweep(Kind::Gc, SweepResult::Error);
                }
            }
        }
    }

    async fn check(&self) {
        let Some(mut beat) = beat(self.periods.check) else { return };
        loop {
            let (pod, key) = turn(&mut beat, || attached(&self.attacher.pods())).await;
            // One that is being changed is none of the sweep's business now.
            let Some(checked) = self.attacher.check(&pod, &key).await else { continue };
            let result = match checked {
                Checked::Fine => SweepResult::Ok,
                Checked::Failed(error) => {
                    tracing::warn!(pod.uid = pod, attachment = key, error, "check failed");
                    SweepResult::Failed
                }
                Checked::Unknown(reason) => {
                    tracing::debug!(pod.uid = pod, attachment = key, reason, "not checked");
                    SweepResult::Skipped
                }
            };
            self.metrics.sweep(Kind::Check, result);
        }
    }

    async fn find_orphans(&self) {
        let Some(mut beat) = beat(self.periods.orphan_after / LOOKS) else { return };
        let mut orphans = Orphans::new(self.periods.orphan_after);
        loop {
            let pod_uid = turn(&mut beat, || {
                let pods = self.attacher.pods().into_keys().collect();
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
            if !orphans.seen(&pod_uid, self.look(&pod, state).await, Instant::now()) {
                continue;
            }
            tracing::warn!(%pod, pod.uid = pod_uid, "the pod is gone and nobody has unprepared its claims: they are released");
            for claim in claims {
                let released = self.attacher.release_of(&pod_uid, &claim).await;
                let result = if released.is_ok() { SweepResult::Ok } else { SweepResult::Error };
                self.metrics.sweep(Kind::Orphan, result);
            }
        }
    }

    async fn look(&self, pod: &ObjectRef, state: PodState) -> Sighting {
        let boot_id = self.boot_id.clone();
        let lives = tokio::task::spawn_blocking(move || state.closing || state.sandbox_lives(&boot_id));
        if lives.await.unwrap_or(true) {
            return Sighting::There;
        }
        match self.pods.is_there(pod).await {
            Some(true) => Sighting::There,
            Some(false) => Sighting::Gone,
            None => Sighting::Unknown,
        }
    }
}

/// UIDs of pods and keys of attachments that can be checked.
fn attached(pods: &BTreeMap<String, PodState>) -> BTreeSet<(String, String)> {
    let records = pods.iter().flat_map(|(uid, state)| state.records.iter().map(move |record| (uid, record)));
    let attached = records.filter(|(_, record)| matches!(record.phase, Phase::Attached { .. }));
    attached.map(|(uid, record)| (uid.clone(), record.key())).collect()
}

/// `None` when it is switched off.
fn beat<K: Ord + Clone>(period: Duration) -> Option<Beat<K>> {
    (!period.is_zero()).then(|| Beat::new(period))
}

/// Waits for the turn of the next of `things`.
async fn turn<K: Ord + Clone>(beat: &mut Beat<K>, mut things: impl FnMut() -> BTreeSet<K>) -> K {
    loop {
        let now = Instant::now();
        beat.keep(&things(), now, chance);
        if let Some(thing) = beat.next(now, chance) {
            return thing;
        }
        let look = now + LOOK;
        tokio::time::sleep_until(beat.due().map_or(look, |due| due.min(look))).await;
    }
}

/// A number from 0 to 1: nobody's secret, only another one each time and on each node.
pub(crate) fn chance() -> f64 {
    let number = RandomState::new().hash_one(0_u8);
    // 53 bits are what fits.
    (number >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_new_has_its_turn_within_a_period_and_a_look() {
        let mut beat = Beat::new(Duration::from_secs(100));
        let start = Instant::now();
        let things = || if start.elapsed() < LOOK { BTreeSet::new() } else { BTreeSet::from(["new"]) };
        assert_eq!(turn(&mut beat, things).await, "new");
        assert!(start.elapsed() <= LOOK + Duration::from_secs(100), "{:?}", start.elapsed());
    }

    #[test]
    fn chances_differ_and_are_spread() {
        let chances: Vec<f64> = (0..1000).map(|_| chance()).collect();
        assert!(chances.iter().all(|chance| (0.0..1.0).contains(chance)));
        let mean = chances.iter().sum::<f64>() / 1000.0;
        assert!((0.4..0.6).contains(&mean), "{mean}");
    }
}
