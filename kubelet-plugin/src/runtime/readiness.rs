//! Whether pods can be attached: the agent's readiness, and the gauges that follow it.

use std::sync::Arc;
use std::time::Duration;

use crate::owner::{Journal, Owner};
use netclaim_driver::attach::{Attach, Attacher, Observer};
use tokio::sync::watch;

use crate::process::metrics::Metrics;
use crate::runtime::connection::NotConnected;

/// How often the agent tries to write to a state directory that refuses writes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// The largest age of a gauge.
const GAUGE_INTERVAL: Duration = Duration::from_secs(10);

/// Why the agent is not ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error("no pod can be attached: {0}")]
    Journal(String),
    #[error(transparent)]
    Runtime(NotConnected),
}

/// What readiness depends on.
#[derive(Clone)]
pub struct Readiness {
    /// Why the journal refuses writes; `None` while it takes them.
    pub journal: watch::Receiver<Option<String>>,
    /// Whether the runtime is connected by NRI.
    pub connected: watch::Receiver<bool>,
    /// What the agent says while it is not.
    pub not_connected: NotConnected,
}

impl Readiness {
    /// Succeeds when the agent is ready.
    ///
    /// # Errors
    /// Why it is not.
    pub fn check(&self) -> Result<(), NotReady> {
        match (&*self.journal.borrow(), *self.connected.borrow()) {
            (Some(reason), _) => Err(NotReady::Journal(reason.clone())),
            (None, false) => Err(NotReady::Runtime(self.not_connected.clone())),
            (None, true) => Ok(()),
        }
    }
}

/// Counts a journal that refuses writes, and tries to write again.
pub async fn watch_journal(journal: Journal, metrics: Arc<Metrics>) {
    let mut health = journal.health();
    loop {
        let is_writable = health.borrow_and_update().is_none();
        metrics.journal_writable.set(i64::from(is_writable));
        let probe = tokio::time::sleep(PROBE_INTERVAL);
        tokio::select! {
            changed = health.changed() => if changed.is_err() {
                return;
            },
            () = probe, if !is_writable => {
                let journal = journal.clone();
                let _ = tokio::task::spawn_blocking(move || journal.probe()).await;
            }
        }
    }
}

/// Sets the gauges of the attacher and of the connection, until the runtime's sender is dropped.
pub async fn update_gauges<N: Attach, O: Observer<Owner = Owner>>(
    mut connected: watch::Receiver<bool>,
    attacher: Arc<Attacher<N, O>>,
    metrics: Arc<Metrics>,
) {
    loop {
        metrics.nri_connected.set(i64::from(*connected.borrow_and_update()));
        metrics.panics.set(i64::try_from(attacher.panics()).unwrap_or(i64::MAX));
        metrics.illegal_moves.set(i64::try_from(attacher.illegal_moves()).unwrap_or(i64::MAX));
        let mut count = metrics.count_attachments();
        attacher.for_each_pod(|pod| count.add(pod));
        count.set();
        if let Ok(Err(_)) = tokio::time::timeout(GAUGE_INTERVAL, connected.changed()).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_ready_when_it_can_write_its_journal_and_hears_the_runtime() {
        let (journal, journal_seen) = watch::channel(None);
        let (connected, connected_seen) = watch::channel(false);
        let not_connected = NotConnected { socket: "/nri.sock".into() };
        let readiness = Readiness { journal: journal_seen, connected: connected_seen, not_connected };
        let reason = || readiness.check().map_err(|error| error.to_string());
        assert!(reason().is_err_and(|reason| reason.contains("/nri.sock")));
        connected.send_replace(true);
        assert_eq!(reason(), Ok(()));
        journal.send_replace(Some("the disk is full".to_owned()));
        assert_eq!(reason(), Err("no pod can be attached: the disk is full".to_owned()));
    }
}
