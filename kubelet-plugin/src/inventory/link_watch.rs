//! Keeps a snapshot of the node's links, and looks again after a failure.

use std::time::Duration;

use netclaim_cni::error_chain;
use netclaim_driver::links::{self, Error, Links, Snapshot};

use super::uplinks::Interest;

/// Delay of the next look after netlink or sysfs has failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);

pub(super) struct LinkWatch {
    watch: links::LinkWatch,
    has_failed: bool,
    /// Changes of other links are not reported; `None` while all are.
    interest: Option<Interest>,
}

impl LinkWatch {
    pub(super) fn new(links: &Links) -> Self {
        Self { watch: links.watch(), has_failed: false, interest: None }
    }

    /// Returns the links as they are now; `None` while they cannot be read.
    pub(super) async fn snapshot(&mut self) -> Option<&Snapshot> {
        let snapshot = self.watch.snapshot().await;
        self.has_failed = snapshot.is_err();
        snapshot.inspect_err(log).ok()
    }

    /// Sets which links are read. Call it before [`changed`](Self::changed) with what was made of a snapshot.
    pub(super) fn set_interest(&mut self, interest: Interest) {
        self.interest = Some(interest);
    }

    /// Waits until what is read of the links has changed, or the next look is due. Cancel safe.
    pub(super) async fn changed(&mut self) {
        if self.has_failed {
            return tokio::time::sleep(RETRY_DELAY).await;
        }
        let Self { watch, interest, .. } = self;
        let changed = watch.changed(|link, addresses| {
            interest.as_ref().is_none_or(|interest| interest.includes(link, addresses))
        });
        if let Err(error) = changed.await {
            log(&error);
            self.has_failed = true;
        }
    }
}

fn log(error: &Error) {
    tracing::warn!(error = error_chain(error), "cannot look at the node's links");
}
