//! The signals that ask a process to stop: SIGTERM from the kubelet, SIGINT from a person.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Stop {
    term: Signal,
    int: Signal,
}

impl Stop {
    /// Takes both signals over: from now on, neither ends the process.
    ///
    /// # Errors
    /// The signals cannot be received.
    pub fn new() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal.
    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
