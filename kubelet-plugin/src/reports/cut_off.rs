//! Has pods reported again when a device begins or ceases to cut them off: nothing of their attachments
//! changes then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use netclaim_driver::attach::{Attach, Attacher, Observer};
use tokio::sync::{mpsc, watch};

use super::writer::Update;
use crate::dra::Report;
use crate::pods::owner::Owner;

/// A link that comes and goes has its pods written no more often.
const SETTLED: Duration = Duration::from_secs(2);

/// Reports the pods again of which a device has begun or ceased to cut them off, until the publisher of
/// devices ends.
pub(crate) async fn report_cut_off<A: Attach, O: Observer<Owner = Owner>>(
    mut health: watch::Receiver<Report>,
    attacher: Arc<Attacher<A, O>>,
    reports: mpsc::UnboundedSender<Update>,
) {
    let mut before = BTreeSet::new();
    loop {
        let now = health.borrow_and_update().clone();
        let now: BTreeSet<String> =
            now.iter().filter(|device| device.stops_traffic).map(|device| device.device.clone()).collect();
        let changed: BTreeSet<&String> = now.symmetric_difference(&before).collect();
        if !changed.is_empty() {
            attacher.for_each_pod(|state| {
                let first = state.attachments().find(|one| changed.contains(&one.plan.owner.device.device));
                if let Some(record) = first {
                    let pod_uid = record.plan.owner.pod.uid.clone();
                    // The writer ends with the agent.
                    let _ = reports.send(Update::Attachments { pod_uid, state: state.clone() });
                }
            });
        }
        before = now;
        if health.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(SETTLED).await;
    }
}
