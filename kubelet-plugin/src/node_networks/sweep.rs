//! CHECK and GC of what is set up on the node.

use std::collections::BTreeSet;
use std::sync::Arc;

use netclaim_driver::attach::Phase;
use tokio_util::sync::CancellationToken;

use super::NodeNetworks;
use crate::sweep::{Intervals, SweepKind, SweepMetrics, SweepResult, schedule, turn};

/// The sweep of what is set up on the node.
pub(crate) struct Sweep {
    pub(crate) networks: Arc<NodeNetworks>,
    pub(crate) intervals: Intervals,
    pub(crate) metrics: SweepMetrics,
}

impl Sweep {
    /// Sweeps until `cancel`.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let _ = cancel.run_until_cancelled(async { tokio::join!(self.check(), self.collect()) }).await;
        cancel.cancelled().await;
    }

    async fn check(&self) {
        let Some(mut schedule) = schedule(self.intervals.check) else { return };
        loop {
            let attached = || {
                let mut keys = BTreeSet::new();
                self.networks.attacher.for_each_pod(|state| {
                    let attached =
                        state.records.iter().filter(|one| matches!(one.phase, Phase::Attached { .. }));
                    keys.extend(attached.map(|one| (one.plan.network.clone(), one.key())));
                });
                keys
            };
            let (network, key) = turn(&mut schedule, attached).await;
            if let Some(checked) = self.networks.attacher.check(&network, &key, true).await {
                self.metrics.checked(&network, &key, checked);
            }
        }
    }

    async fn collect(&self) {
        let Some(mut schedule) = schedule(self.intervals.gc) else { return };
        loop {
            let list = turn(&mut schedule, || self.networks.attacher.networks().into_keys().collect()).await;
            let Some(spec) = self.networks.attacher.networks().remove(&list) else { continue };
            let result = match self.networks.attacher.collect(&spec).await {
                Ok(_) => SweepResult::Ok,
                Err(failure) => {
                    tracing::warn!(network = %list, error = failure.message, "gc on the node failed");
                    SweepResult::Error
                }
            };
            self.metrics.count(SweepKind::Gc, result);
        }
    }
}
