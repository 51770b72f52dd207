//! How long containers waited.

use std::time::Duration;

use netclaim_process::label_values;
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// From containers that come a moment too early to the hook's own timeout, in seconds.
pub(crate) const WAIT_SECONDS: [f64; 12] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 90.0];

label_values! {
    /// How the wait of a container in its hook ended.
    pub(crate) enum WaitEnd {
        /// All networks of the pod are attached.
        Open = "Open",
        /// The pod goes away.
        Gone = "Gone",
        /// The hook or the agent ended first. The next hook or agent goes on.
        Lost = "Lost",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabels {
    outcome: WaitEnd,
}

/// Measures the waits of containers in their hooks.
#[derive(Clone)]
pub(crate) struct WaitMetrics(Family<WaitLabels, Histogram>);

impl WaitMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        Self(registry.add_seconds(
            "gate_wait_duration",
            "How long containers waited in their hooks for the networks of their pods",
            [Label::one_of("outcome", WaitEnd::VALUES)],
            Family::new_with_constructor(|| Histogram::new(WAIT_SECONDS)),
        ))
    }

    /// Measures the wait of a container in its hook.
    pub(crate) fn observe(&self, outcome: WaitEnd, took: Duration) {
        self.0.get_or_create(&WaitLabels { outcome }).observe(took.as_secs_f64());
    }
}
