//! How a process of ours is told to stop: SIGTERM from the kubelet, SIGINT from a person.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals.
pub(crate) struct Stop {
    term: Signal,
    int: Signal,
}

impl Stop {
    /// From now on neither ends the process by itself.
    ///
    /// # Errors
    /// When the signals cannot be heard.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Returns when the next one comes.
    pub(crate) async fn told(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
