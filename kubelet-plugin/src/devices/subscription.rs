//! A subscription to changes in directories that is renewed after a failure.

use std::future::Future;
use std::io;

use netclaim_cni::BinChanges;
use netclaim_cni::dir_changes::DirChanges;

/// Changes that can be waited for.
pub(super) trait DirectoryChanges {
    /// Waits for the next change. Cancel safe.
    fn tick(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

impl DirectoryChanges for BinChanges {
    async fn tick(&mut self) -> io::Result<()> {
        Self::tick(self).await
    }
}

impl DirectoryChanges for DirChanges {
    async fn tick(&mut self) -> io::Result<()> {
        Self::tick(self).await
    }
}

/// The subscription, if there is one. The first failure is logged with `warning`, later ones are not.
pub(super) struct Subscription<C> {
    pub(super) changes: Option<C>,
    warning: &'static str,
    is_warned: bool,
}

impl<C: DirectoryChanges> Subscription<C> {
    pub(super) fn new(warning: &'static str) -> Self {
        Self { changes: None, warning, is_warned: false }
    }

    /// Replaces the subscription, if there is a new one.
    pub(super) fn renew(&mut self, changes: io::Result<C>) {
        match changes {
            Ok(changes) => self.changes = Some(changes),
            Err(error) => self.warn(&error),
        }
    }

    /// Waits for a change; for ever without a subscription. Cancel safe.
    pub(super) async fn changed(&mut self) {
        let Some(changes) = &mut self.changes else { return std::future::pending().await };
        if let Err(error) = changes.tick().await {
            self.changes = None;
            self.warn(&error);
        }
    }

    fn warn(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_warned, true) {
            tracing::warn!(%error, "{}", self.warning);
        }
    }
}
