//! Requests to stop: SIGTERM from the kubelet, SIGINT from a person.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals.
pub(crate) struct Stop {
    term: Signal,
    int: Signal,
}

impl Stop {
    /// Handles both signals from now on: neither ends the process by itself.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next request.
    pub(crate) async fn requested(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
