//! Keeps something up to date in the API server's objects of the node's pods. Nothing waits for it, so one
//! pod comes after the other.

use std::collections::HashMap;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use netclaim_cni::error_chain;
use tokio::sync::mpsc;
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

/// What is kept of pods.
pub(crate) trait OfPods {
    type Value: Clone + Default + PartialEq + Send;

    /// Its name, for logs.
    const NAME: &'static str;

    /// Returns what the state of a pod says; `None` while that is open.
    fn value(state: &PodState) -> Option<Self::Value>;

    /// Writes the value to the pod, if it has another one. `before` is what was written last.
    fn write(
        &self,
        pod: &ObjectRef,
        before: &Self::Value,
        value: &Self::Value,
    ) -> impl Future<Output = Result<(), WriteError>> + Send;
}

/// Where the states of pods go.
pub(super) struct PodStates<K: OfPods>(mpsc::UnboundedSender<Change<K::Value>>);

enum Change<V> {
    Attached { pod: ObjectRef, value: V },
    Gone { pod_uid: String },
}

impl<K: OfPods> PodStates<K> {
    /// Notes the state of a pod.
    pub(super) fn note(&self, pod_uid: &str, state: &PodState) {
        // What a pod that ends still has, nobody needs to know.
        let change = match state.records.first() {
            Some(record) if !state.closing => {
                let Some(value) = K::value(state) else { return };
                Change::Attached { pod: record.plan.owner.pod.clone(), value }
            }
            _ => Change::Gone { pod_uid: pod_uid.to_owned() },
        };
        // The task ends with the agent.
        let _ = self.0.send(change);
    }
}

/// What a pod is to have.
struct Wanted<V> {
    pod: ObjectRef,
    value: V,
    /// Ours, as it was written last.
    before: V,
    /// The next write; `None` if there is nothing to write.
    due: Option<Instant>,
    backoff: ExponentialBackoff,
}

/// The task that writes.
pub(crate) struct PodWriter<K: OfPods> {
    kept: K,
    changes: mpsc::UnboundedReceiver<Change<K::Value>>,
    wanted: HashMap<String, Wanted<K::Value>>,
}

impl<K: OfPods> PodWriter<K> {
    pub(super) fn new(kept: K) -> (PodStates<K>, Self) {
        let (sender, changes) = mpsc::unbounded_channel();
        (PodStates(sender), Self { kept, changes, wanted: HashMap::new() })
    }

    /// Writes until nobody notes anything any more.
    pub(crate) async fn run(mut self) {
        loop {
            let next = self.wanted.values().filter_map(|wanted| wanted.due).min();
            tokio::select! {
                biased;
                change = self.changes.recv() => match change {
                    Some(change) => self.take(change),
                    None => return,
                },
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => self.write_next().await,
            }
        }
    }

    fn take(&mut self, change: Change<K::Value>) {
        match change {
            Change::Gone { pod_uid } => drop(self.wanted.remove(&pod_uid)),
            Change::Attached { pod, value } => {
                let before = match self.wanted.get(&pod.uid) {
                    Some(known) if known.value == value => return,
                    Some(Wanted { due: None, value, .. }) => value.clone(),
                    Some(Wanted { before, .. }) => before.clone(),
                    None => K::Value::default(),
                };
                let (due, backoff) = (Some(Instant::now()), RETRY.build());
                self.wanted.insert(pod.uid.clone(), Wanted { pod, value, before, due, backoff });
            }
        }
    }

    /// Writes to the pod that has waited longest.
    async fn write_next(&mut self) {
        let due = self.wanted.values_mut().filter(|wanted| wanted.due.is_some());
        let Some(wanted) = due.min_by_key(|wanted| wanted.due) else { return };
        let write = self.kept.write(&wanted.pod, &wanted.before, &wanted.value);
        let result = timeout(WRITE_TIMEOUT, write).await.unwrap_or(Err(WriteError::Timeout));
        let pod = &wanted.pod;
        wanted.due = match result {
            Ok(()) => None,
            Err(error) if error.is_final() => {
                let error = error_chain(&error);
                tracing::warn!(%pod, error, "cannot write {} of the pod", K::NAME);
                None
            }
            Err(error) => {
                let (delay, error) = (wanted.backoff.next().unwrap_or_default(), error_chain(&error));
                tracing::debug!(%pod, error, ?delay, "cannot write {} of the pod, retrying", K::NAME);
                Some(Instant::now() + delay)
            }
        };
    }
}

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("the pod cannot be read")]
    Unread,
    #[error(transparent)]
    NoList(#[from] NoList),
    #[error("the API server refused or was not reached")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer in {} s", WRITE_TIMEOUT.as_secs())]
    Timeout,
}

impl WriteError {
    /// Whether another try is of no use.
    fn is_final(&self) -> bool {
        match self {
            Self::NoList(_) => true,
            Self::Api(kube::Error::Api(status)) => matches!(status.code, 403 | 422),
            Self::Api(_) | Self::Unread | Self::Timeout => false,
        }
    }
}

/// What a write has come to: a pod that is gone needs none.
pub(super) fn unless_gone(written: Result<(), kube::Error>) -> Result<(), WriteError> {
    match written {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        written => Ok(written?),
    }
}
