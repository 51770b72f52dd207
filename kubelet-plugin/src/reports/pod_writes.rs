//! Keeps something up to date in the API server's objects of the node's pods. Nothing waits for it, so only a
//! few are written at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use netclaim_cni::error_chain;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::network_status::NoList;
use crate::pods::owner::{ObjectRef, PodState};

/// Backoff after failed writes of one pod. The kubelet writes the pod's status at the same time, so that the
/// first ones may conflict.
const RETRY: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(200))
    .with_max_delay(Duration::from_secs(60))
    .without_max_times();
/// Timeout of one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Writes at once: one pod whose write hangs must not hold up the others.
const AT_ONCE: usize = 8;

/// The values that are kept of pods.
pub(crate) trait OfPods: Send + Sync + 'static {
    type Value: Clone + PartialEq + Send + Sync + 'static;

    /// Its name, for logs.
    const NAME: &'static str;

    /// Whether what the API server refuses is given up until the value is another one.
    const GIVES_UP: bool;

    /// Returns what the state of a pod says; `None` while that is open.
    fn value(&self, state: &PodState) -> Option<Self::Value>;

    /// Writes the value to the pod, if it has another one. `before` is what this agent has written last.
    fn write(
        &self,
        pod: &ObjectRef,
        before: Option<&Self::Value>,
        value: &Self::Value,
    ) -> impl Future<Output = Result<Written, WriteError>> + Send;
}

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// The pod has the value.
    Done,
    /// The pod is gone, or wants no value, now and later.
    Unwanted,
}

/// Where the states of pods go.
pub(super) struct PodStates<K: OfPods> {
    kept: Arc<K>,
    changes: mpsc::UnboundedSender<Change<K::Value>>,
}

enum Change<V> {
    Attached { pod: ObjectRef, value: V },
    Gone { pod_uid: String },
}

impl<K: OfPods> PodStates<K> {
    /// Notes the state of a pod.
    pub(super) fn note(&self, pod_uid: &str, state: &PodState) {
        // The devices of a pod that ends are of no interest.
        let change = match state.records.first() {
            Some(record) if !state.closing => {
                let Some(value) = self.kept.value(state) else { return };
                Change::Attached { pod: record.plan.owner.pod.clone(), value }
            }
            _ => Change::Gone { pod_uid: pod_uid.to_owned() },
        };
        // The task ends with the agent.
        let _ = self.changes.send(change);
    }
}

/// The value that a pod is to have.
struct PodValue<V> {
    pod: ObjectRef,
    value: V,
    /// Ours, as it was written last.
    before: Option<V>,
    /// The next write; `None` if there is nothing to write.
    due: Option<Instant>,
    backoff: ExponentialBackoff,
    is_unwanted: bool,
    has_warned: bool,
}

impl<V> PodValue<V> {
    fn new(pod: ObjectRef, value: V) -> Self {
        let (due, backoff) = (Some(Instant::now()), RETRY.build());
        Self { pod, value, before: None, due, backoff, is_unwanted: false, has_warned: false }
    }
}

/// The end of a write: the pod's UID, and the value.
type Ended<V> = (String, V, Result<Written, WriteError>);

/// The task that writes.
pub(crate) struct PodWriter<K: OfPods> {
    kept: Arc<K>,
    changes: mpsc::UnboundedReceiver<Change<K::Value>>,
    wanted: HashMap<String, PodValue<K::Value>>,
    /// Pods with a write under way: a second one at the same time could be overtaken.
    busy: HashSet<String>,
}

impl<K: OfPods> PodWriter<K> {
    pub(super) fn new(kept: K) -> (PodStates<K>, Self) {
        let ((sender, changes), kept) = (mpsc::unbounded_channel(), Arc::new(kept));
        let states = PodStates { kept: Arc::clone(&kept), changes: sender };
        (states, Self { kept, changes, wanted: HashMap::new(), busy: HashSet::new() })
    }

    /// Writes until all senders of changes are gone.
    pub(crate) async fn run(mut self) {
        let mut writes = JoinSet::new();
        loop {
            let next = self.start_due(&mut writes);
            tokio::select! {
                change = self.changes.recv() => match change {
                    Some(change) => self.take(change),
                    None => return,
                },
                Some(ended) = writes.join_next() => if let Ok(ended) = ended {
                    self.ended(ended);
                },
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    fn take(&mut self, change: Change<K::Value>) {
        match change {
            Change::Gone { pod_uid } => drop(self.wanted.remove(&pod_uid)),
            Change::Attached { pod, value } => {
                let uid = pod.uid.clone();
                let wanted = self.wanted.entry(uid).or_insert_with(|| PodValue::new(pod, value.clone()));
                if wanted.value != value && !wanted.is_unwanted {
                    (wanted.value, wanted.due, wanted.backoff) = (value, Some(Instant::now()), RETRY.build());
                }
            }
        }
    }

    /// Starts the writes that are due, those first that have waited longest; returns when the next one is.
    fn start_due(&mut self, writes: &mut JoinSet<Ended<K::Value>>) -> Option<Instant> {
        let now = Instant::now();
        let waiting = self.wanted.iter().filter(|(uid, _)| !self.busy.contains(*uid));
        let mut waiting: Vec<(Instant, &String)> =
            waiting.filter_map(|(uid, wanted)| Some((wanted.due?, uid))).collect();
        waiting.sort_unstable();
        for (due, uid) in waiting {
            if due > now {
                return Some(due);
            }
            // The end of a write comes back here.
            if writes.len() >= AT_ONCE {
                return None;
            }
            let Some(PodValue { pod, value, before, .. }) = self.wanted.get(uid) else { continue };
            let (kept, pod, before, value) =
                (Arc::clone(&self.kept), pod.clone(), before.clone(), value.clone());
            self.busy.insert(pod.uid.clone());
            writes.spawn(async move {
                let written = timeout(WRITE_TIMEOUT, kept.write(&pod, before.as_ref(), &value)).await;
                (pod.uid, value, written.unwrap_or(Err(WriteError::Timeout)))
            });
        }
        None
    }

    fn ended(&mut self, (uid, value, written): Ended<K::Value>) {
        self.busy.remove(&uid);
        let Some(wanted) = self.wanted.get_mut(&uid) else { return };
        // It may be another one by now, which is due.
        let is_current = wanted.value == value;
        let pod = &wanted.pod;
        let due = match written {
            Ok(Written::Done) => {
                wanted.before = Some(value);
                None
            }
            Ok(Written::Unwanted) => {
                (wanted.is_unwanted, wanted.due) = (true, None);
                return;
            }
            Err(error) => {
                let is_refused = error.is_refusal();
                let delay = wanted.backoff.next().unwrap_or_default();
                let due = (!is_refused || !K::GIVES_UP).then(|| Instant::now() + delay);
                let error = error_chain(&error);
                if is_refused && !std::mem::replace(&mut wanted.has_warned, true) {
                    tracing::warn!(%pod, error, "cannot write {} of the pod", K::NAME);
                } else {
                    tracing::debug!(%pod, error, ?delay, "cannot write {} of the pod, retrying", K::NAME);
                }
                due
            }
        };
        if is_current {
            wanted.due = due;
        }
    }
}

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("the pod cannot be read")]
    Unread,
    #[error("the agent has just started, and has not looked yet")]
    Unchecked,
    #[error(transparent)]
    NoList(#[from] NoList),
    #[error("the API server refused or was not reached")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer in {} s", WRITE_TIMEOUT.as_secs())]
    Timeout,
}

impl WriteError {
    /// Whether the same would be refused again.
    fn is_refusal(&self) -> bool {
        match self {
            Self::NoList(_) => true,
            Self::Api(kube::Error::Api(status)) => matches!(status.code, 403 | 422),
            Self::Api(_) | Self::Unread | Self::Unchecked | Self::Timeout => false,
        }
    }
}

/// The outcome of a write to a pod.
pub(super) fn written(result: Result<(), kube::Error>) -> Result<Written, WriteError> {
    match result {
        Ok(()) => Ok(Written::Done),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Written::Unwanted),
        Err(error) => Err(error.into()),
    }
}
