//! Has pods reported again when a device begins or ceases to cut them off: nothing of their attachments
//! changes then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use netclaim_driver::attach::{Attach, Attacher, Observer};
use tokio::sync::watch;

use crate::dra::Report;
use crate::pods::owner::Owner;

/// A link that comes and goes has its pods written no more often.
const SETTLED: Duration = Duration::from_secs(2);

/// Reports the pods again of which a device has begun or ceased to cut them off, until the publisher of
/// devices ends.
pub(crate) async fn report_cut_off<A: Attach, O: Observer<Owner = Owner>>(
    mut health: watch::Receiver<Report>,
    attacher: Arc<Attacher<A, O>>,
) {
    let mut before = BTreeSet::new();
    loop {
        let now = health.borrow_and_update().clone();
        let now: BTreeSet<String> =
            now.iter().filter(|device| device.stops_traffic).map(|device| device.device.clone()).collect();
        let changed: BTreeSet<&String> = now.symmetric_difference(&before).collect();
        if !changed.is_empty() {
            let mut pods = BTreeSet::new();
            attacher.for_each_pod(|state| {
                let mut attachments = state.attachments();
                let first = attachments.find(|one| changed.contains(&one.plan.owner.device.device));
                pods.extend(first.map(|record| record.plan.owner.pod.uid.clone()));
            });
            // By the pod itself, so that no older state comes after a newer one.
            pods.iter().for_each(|uid| attacher.report(uid));
        }
        before = now;
        if health.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(SETTLED).await;
    }
}
