//! The agent's turn: one agent at a time works on a node, and the next one stands by.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use netclaim_driver::attach::journal::take_turn;

use crate::parent::leftovers::Mark;

/// How often an agent that stands by tries to lock the journal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why an agent cannot wait for its turn.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TurnError {
    #[error("standard input is not the journal's lock file")]
    NoLock(#[source] io::Error),
    #[error("cannot lock the journal")]
    Lock(#[source] io::Error),
}

/// The lock of the journal. The parent holds it too, and releases it when everything that it started has
/// ended.
pub(crate) struct Turn {
    lock: File,
    mark: Mark,
}

impl Turn {
    /// Takes the lock file from standard input, unlocked.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn from_stdin() -> Result<Self, TurnError> {
        let lock = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(TurnError::NoLock)?);
        let mark = Mark::of(&lock).map_err(TurnError::NoLock)?;
        Ok(Self { lock, mark })
    }

    /// The mark that the agent's CNI plugins carry.
    pub(crate) fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Waits until no other agent works on the node.
    ///
    /// # Errors
    /// When the file cannot be locked.
    pub(crate) async fn take(&self) -> Result<(), TurnError> {
        let mut logged = false;
        while !take_turn(&self.lock).map_err(TurnError::Lock)? {
            if !logged {
                tracing::info!("another agent works on this node, standing by until it ends");
            }
            logged = true;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}
