//! Counters over all pods.

use std::sync::atomic::AtomicU64;

use tokio::sync::watch;

use super::plan::Owner;
use super::usage::Usage;

/// What is counted over all pods, and when records come and go.
pub(super) struct Counters<O: Owner> {
    /// What the records have. It is never older than `revision` says.
    pub(super) usage: Usage<O>,
    /// Moves that the machine refused.
    pub(super) illegal: AtomicU64,
    /// Panics in the tasks of pods.
    pub(super) panics: AtomicU64,
    /// How often a record came or went, or what is wrong with one did.
    pub(super) revision: watch::Sender<u64>,
    /// How often all that a pod has was made.
    pub(super) opened: watch::Sender<u64>,
}

impl<O: Owner> Default for Counters<O> {
    fn default() -> Self {
        Self {
            usage: Usage::default(),
            illegal: AtomicU64::default(),
            panics: AtomicU64::default(),
            revision: watch::Sender::default(),
            opened: watch::Sender::default(),
        }
    }
}
