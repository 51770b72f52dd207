//! Keeps a snapshot of the node's links: by netlink notifications, and by looking again after a failure.

use std::time::Duration;

use netclaim_cni::error_chain;
use netclaim_driver::links::{Changes, Links, Snapshot};

/// Delay of the next look after netlink or sysfs has failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);

pub(super) struct LinkWatch {
    links: Links,
    changes: Option<Changes>,
    /// `None` when the links may have changed.
    snapshot: Option<Snapshot>,
}

impl LinkWatch {
    pub(super) fn new(links: Links) -> Self {
        Self { links, changes: None, snapshot: None }
    }

    /// Returns the links as they are now; `None` while they cannot be read.
    pub(super) async fn snapshot(&mut self) -> Option<&Snapshot> {
        if self.snapshot.is_none() {
            // Subscribed before the look, so that no later change is missed.
            self.subscribe();
            match self.links.snapshot().await {
                Ok(snapshot) => self.snapshot = Some(snapshot),
                Err(error) => tracing::warn!(error = error_chain(&error), "cannot look at the node's links"),
            }
        }
        self.snapshot.as_ref()
    }

    /// Waits until the links may have changed, or the next look is due. Cancel safe.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            () = tokio::time::sleep(RETRY_DELAY), if self.changes.is_none() || self.snapshot.is_none() => {}
            result = next(&mut self.changes) => if let Err(error) = result {
                tracing::warn!(error = error_chain(&error), "cannot watch links, subscribing again");
                self.changes = None;
            },
        }
        self.snapshot = None;
    }

    fn subscribe(&mut self) {
        if self.changes.is_none() {
            match self.links.changes() {
                Ok(changes) => self.changes = Some(changes),
                Err(error) => tracing::warn!(error = error_chain(&error), "cannot watch links"),
            }
        }
    }
}

async fn next(changes: &mut Option<Changes>) -> Result<(), netclaim_driver::links::Error> {
    match changes {
        Some(changes) => changes.tick().await,
        None => std::future::pending().await,
    }
}
