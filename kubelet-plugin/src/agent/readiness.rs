//! Whether pods can be attached: the agent's readiness, and the gauges that follow it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::pods::owner::{Journal, Owner};
use netclaim_driver::attach::{Attach, Attacher, Observer};
use tokio::sync::watch;

use super::metrics::{AttachmentCount, AttachmentMetrics};
use crate::runtime::connection::NotConnected;

/// How often the agent tries to write to a state directory that refuses writes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// The largest age of a gauge.
const GAUGE_INTERVAL: Duration = Duration::from_secs(10);

/// Something that the agent lacks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Missing {
    #[error("no pod can be attached: {0}")]
    Journal(String),
    #[error("no claim is prepared: {0}")]
    Hook(String),
    #[error(transparent)]
    Runtime(NotConnected),
    #[error("no device is published: {0}")]
    Server(String),
    #[error(
        "the kubelet has not registered the driver: it needs the feature gate DynamicResourceAllocation and the --root-dir {} \
         (--kubelet-dir of the agent)", kubelet_dir.display()
    )]
    Registration {
        /// Where the agent expects the kubelet.
        kubelet_dir: PathBuf,
    },
}

/// Everything that the agent lacks, a line for each.
#[derive(Debug)]
pub(crate) struct NotReady(Vec<Missing>);

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// The input of readiness.
#[derive(Clone)]
pub(crate) struct Readiness {
    /// Why the journal refuses writes; `None` while it takes them.
    pub(crate) journal: watch::Receiver<Option<String>>,
    /// Why no container with a claim can be created; `None` while one can.
    pub(crate) no_hook: watch::Receiver<Option<String>>,
    /// Why nothing can be published on this API server; `None` while something can.
    pub(crate) obstacle: watch::Receiver<Option<String>>,
    /// Whether the runtime is connected by NRI.
    pub(crate) connected: watch::Receiver<bool>,
    /// The agent's message while it is not.
    pub(crate) not_connected: NotConnected,
    /// The file that exists when the kubelet has registered the driver.
    pub(crate) registered: PathBuf,
    pub(crate) kubelet_dir: PathBuf,
}

impl Readiness {
    /// Succeeds when the agent is ready.
    ///
    /// # Errors
    /// Everything that it lacks.
    pub(crate) fn check(&self) -> Result<(), NotReady> {
        let journal = self.journal.borrow().clone().map(Missing::Journal);
        let hook = self.no_hook.borrow().clone().map(Missing::Hook);
        let runtime = (!*self.connected.borrow()).then(|| Missing::Runtime(self.not_connected.clone()));
        let registration = (!self.registered.exists())
            .then(|| Missing::Registration { kubelet_dir: self.kubelet_dir.clone() });
        let server = self.obstacle.borrow().clone().map(Missing::Server);
        let missing = [journal, hook, runtime, registration, server];
        let missing: Vec<Missing> = missing.into_iter().flatten().collect();
        if missing.is_empty() { Ok(()) } else { Err(NotReady(missing)) }
    }
}

/// Counts a journal that refuses writes, and tries to write again.
pub(crate) async fn watch_journal(journal: Journal, metrics: AttachmentMetrics) {
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
pub(crate) async fn update_gauges<N: Attach, O: Observer<Owner = Owner>>(
    mut connected: watch::Receiver<bool>,
    attacher: Arc<Attacher<N, O>>,
    metrics: AttachmentMetrics,
) {
    loop {
        metrics.nri_connected.set(i64::from(*connected.borrow_and_update()));
        metrics.count_bugs(attacher.illegal_moves(), attacher.panics());
        let mut count = AttachmentCount::default();
        attacher.for_each_pod(|pod| count.add(pod));
        metrics.set(&count);
        if let Ok(Err(_)) = tokio::time::timeout(GAUGE_INTERVAL, connected.changed()).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_ready_when_it_lacks_nothing() {
        let (journal, journal_seen) = watch::channel(None);
        let (no_hook, no_hook_seen) = watch::channel(None);
        let (connected, connected_seen) = watch::channel(false);
        let (obstacle, obstacle_seen) = watch::channel(None);
        let dir = tempfile::tempdir().unwrap();
        let registered = dir.path().join("agent");
        let readiness = Readiness {
            journal: journal_seen,
            no_hook: no_hook_seen,
            obstacle: obstacle_seen,
            connected: connected_seen,
            not_connected: NotConnected { socket: "/nri.sock".into() },
            registered: registered.clone(),
            kubelet_dir: "/var/lib/kubelet".into(),
        };
        let reasons = || {
            let reasons = readiness.check().err().map(|error| error.to_string()).unwrap_or_default();
            reasons.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let begin_with = |beginnings: &[&str]| {
            let reasons = reasons();
            assert_eq!(reasons.len(), beginnings.len(), "{reasons:?}");
            assert!(
                reasons.iter().zip(beginnings).all(|(reason, begin)| reason.starts_with(begin)),
                "{reasons:?}"
            );
        };
        let (runtime, kubelet) =
            ("not connected to the container runtime by NRI", "the kubelet has not registered the driver");
        begin_with(&[runtime, kubelet]);
        assert!(reasons().concat().contains("/nri.sock") && reasons().concat().contains("/var/lib/kubelet"));
        connected.send_replace(true);
        begin_with(&[kubelet]);
        std::fs::write(registered, "").unwrap();
        begin_with(&[]);
        journal.send_replace(Some("the disk is full".to_owned()));
        assert_eq!(reasons(), ["no pod can be attached: the disk is full"]);
        journal.send_replace(None);
        no_hook.send_replace(Some("its file system is mounted noexec".to_owned()));
        assert_eq!(reasons(), ["no claim is prepared: its file system is mounted noexec"]);
        no_hook.send_replace(None);
        obstacle.send_replace(Some("the API server is too old".to_owned()));
        assert_eq!(reasons(), ["no device is published: the API server is too old"]);
    }
}
