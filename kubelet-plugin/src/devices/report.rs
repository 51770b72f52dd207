//! Reports what is not published, or not as it should be, by metrics and by events on the Node.

use std::collections::BTreeSet;

use netclaim_api::reasons::NodeEvent;
use netclaim_slices::{Fault, PublishStatus, ServerFeatures};
use tokio::sync::watch;

use super::metrics::PoolMetrics;
use super::server_features;
use crate::reports::Events;

pub(super) struct PublishReporter {
    pub(super) events: Events,
    pub(super) metrics: PoolMetrics,
    /// The Node object's name.
    pub(super) node: String,
    /// Its UID; `None` while there is no such object.
    pub(super) node_uid: watch::Receiver<Option<String>>,
}

impl PublishReporter {
    /// Reports what the API server lacks; `obstacle` is why nothing can be published on it.
    pub(super) fn report_features(&self, server: &ServerFeatures, obstacle: Option<&str>) {
        self.metrics.without_counters.set(server.without_counters().is_some().into());
        let note = obstacle.map(str::to_owned).or_else(|| server_features::note(server));
        let Some(note) = note else { return };
        tracing::warn!("{note}");
        self.warn_node(NodeEvent::ServerLacksFeatures, note);
    }

    /// Reports devices that are left out of the slices, until the publisher ends.
    pub(super) async fn report_left_out(&self, mut status: watch::Receiver<PublishStatus>) {
        let mut known = BTreeSet::new();
        while status.changed().await.is_ok() {
            let (faults, is_published) = {
                let pools = &status.borrow_and_update().pools;
                let faults: Vec<Fault> = pools.values().flat_map(|pool| pool.left_out.clone()).collect();
                (faults, pools.values().all(|pool| pool.error.is_none()))
            };
            let devices: BTreeSet<_> = faults.iter().filter_map(|fault| fault.device.as_ref()).collect();
            self.metrics.left_out.set(i64::try_from(devices.len()).unwrap_or(i64::MAX));
            self.metrics.published.set(is_published.into());
            let now: BTreeSet<String> = faults.iter().map(ToString::to_string).collect();
            if !now.is_subset(&known) {
                let faults = now.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
                let note = format!("not published: {faults}");
                self.warn_node(NodeEvent::DeviceLeftOut, note);
            }
            known = now;
        }
    }

    fn warn_node(&self, reason: NodeEvent, note: String) {
        self.events.warn_own_node(&self.node, &self.node_uid, reason, note);
    }
}
