//! The connection to the container runtime by NRI. While it is down the agent learns of no sandbox and
//! attaches nothing, and the claims and events of pods that wait say why.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::pods::owner::{Owner, PodState};
use netclaim_driver::attach::{Attach, Attacher, Observer};
use tokio::sync::watch;

use crate::runtime::sandboxes::Sandboxes;

/// How long the connection is down before a report, and from one report to the next: a runtime restarts in
/// about 3 s.
const GRACE: Duration = Duration::from_secs(10);

/// Why nothing is attached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not connected to the container runtime by NRI: enable NRI in the runtime's configuration, with the socket {} \
     (--nri-socket), and restart the runtime", socket.display()
)]
pub(crate) struct NotConnected {
    /// Where the agent expects the runtime.
    pub(crate) socket: PathBuf,
}

/// Reports to pods that the connection is down.
pub(crate) struct Connection<N, O: Observer> {
    /// Whether the connection is up.
    pub(crate) connected: watch::Receiver<bool>,
    /// The text of a report.
    pub(crate) reason: NotConnected,
    /// Where the pods wait.
    pub(crate) attacher: Arc<Attacher<N, O>>,
    /// What a Prepare asks for its pod's sandbox.
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) boot_id: String,
}

impl<N: Attach, O: Observer<Owner = Owner>> Connection<N, O> {
    /// Watches until the agent lets go of the runtime.
    pub(crate) async fn watch(self) {
        let mut connected = self.connected.clone();
        while down_for_long(&mut connected).await.is_some() {
            self.report().await;
        }
    }

    /// Fails pods without a live sandbox, and those that are prepared from now on. A live one keeps its
    /// attachments.
    async fn report(&self) {
        let reason = self.reason.to_string();
        self.sandboxes.disconnected(&reason);
        for (pod_uid, state) in self.attacher.pods() {
            if !lacks_reason(&state) {
                continue;
            }
            let boot_id = self.boot_id.clone();
            let lives =
                tokio::task::spawn_blocking(move || state.sandbox_lives(&boot_id)).await.unwrap_or(true);
            if !lives && !*self.connected.borrow() {
                self.attacher.sandbox_unfit(&pod_uid, reason.clone());
            }
        }
    }
}

/// Whether an attachment of the pod has no error yet. A DEL that fails has an error of its own.
fn lacks_reason(state: &PodState) -> bool {
    !state.closing && state.records.iter().any(|record| record.error.is_none())
}

/// Returns when the connection has been down for [`GRACE`]; `None` when the agent lets go of the runtime.
async fn down_for_long(connected: &mut watch::Receiver<bool>) -> Option<()> {
    loop {
        let is_up = connected.wait_for(|connected| *connected);
        match tokio::time::timeout(GRACE, is_up).await {
            Ok(is_up) => drop(is_up.ok()?),
            Err(_) => return Some(()),
        }
        connected.wait_for(|connected| !*connected).await.ok()?;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use netclaim_driver::attach::Phase;
    use tokio::time::sleep;

    use super::*;
    use crate::fixtures::record;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_down_for_long_is_reported_again_and_again() {
        let (connected, mut seen) = watch::channel(false);
        let reports = Cell::new(0);
        let watch = async {
            while down_for_long(&mut seen).await.is_some() {
                reports.set(reports.get() + 1);
            }
        };
        let runtime = async {
            sleep(GRACE / 2).await;
            connected.send_replace(true);
            sleep(GRACE * 10).await;
            assert_eq!(reports.get(), 0, "the agent has just started");
            connected.send_replace(false);
            sleep(GRACE / 2).await;
            connected.send_replace(true);
            sleep(GRACE * 10).await;
            assert_eq!(reports.get(), 0, "the runtime has restarted");
            connected.send_replace(false);
            sleep(GRACE * 7 / 2).await;
            assert_eq!(reports.get(), 3, "pods may lose their sandbox meanwhile");
            connected.send_replace(true);
            sleep(GRACE * 10).await;
            assert_eq!(reports.get(), 3);
            drop(connected);
        };
        tokio::join!(watch, runtime);
    }

    #[test]
    fn a_pod_with_an_error_keeps_it() {
        let mut state = PodState { records: vec![record("a", Phase::Planned)], ..PodState::default() };
        assert!(lacks_reason(&state));
        assert!(!lacks_reason(&PodState { closing: true, ..state.clone() }), "it is being released");
        state.records[0].error = Some("the plugin cannot delete".to_owned());
        assert!(!lacks_reason(&state));
    }
}
