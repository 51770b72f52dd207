//! Counters over all pods.

use std::sync::atomic::AtomicU64;

use tokio::sync::watch;

/// What is counted over all pods, and when records come and go.
#[derive(Default)]
pub(super) struct Counters {
    /// Moves that the machine refused.
    pub(super) illegal: AtomicU64,
    /// Panics in the tasks of pods.
    pub(super) panics: AtomicU64,
    /// How often a record came or went, or what is wrong with one did.
    pub(super) revision: watch::Sender<u64>,
    /// How often all that a pod has was made.
    pub(super) opened: watch::Sender<u64>,
}
