//! Measures what attachments receive and send, when asked.
//!
//! The counters are those of the interfaces in the pods' network namespaces, read twice.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt as _;
use netclaim_api::traffic::{Flow, Selection, Traffic};
use netclaim_driver::attach::{Attach, Attacher, Observer, Phase, Sandbox};
use netclaim_driver::links::{Counters, Passed};
use tokio::time::Instant;

use crate::pods::owner::{Owner, Record};

/// Between the two looks.
const MEASURED: Duration = Duration::from_secs(1);
/// Namespaces that are looked into at once.
const AT_ONCE: usize = 8;

/// The attachments of one pod.
struct Pod {
    sandbox: Sandbox,
    attachments: Vec<Traffic>,
}

/// Returns what the selected attachments receive and send. One whose interface is gone is left out. `shares`
/// are what attachments have of what is not granted, by the pod's UID and their key.
pub(crate) async fn measure<A: Attach, O: Observer<Owner = Owner>>(
    attacher: &Attacher<A, O>,
    selection: &Selection,
    shares: &HashMap<(String, String), u64>,
) -> Vec<Traffic> {
    let mut pods = Vec::new();
    attacher.for_each_pod(|state| {
        let attached: Vec<(&Sandbox, Traffic)> = state
            .attachments()
            .filter_map(|record| attached(record, shares))
            .filter(|(_, of)| selection.selects(&of.namespace, &of.pod))
            .collect();
        let sandbox = attached.first().map(|(sandbox, _)| (*sandbox).clone());
        if let Some(sandbox) = sandbox {
            let attachments = attached.into_iter().map(|(_, traffic)| traffic).collect();
            pods.push(Pod { sandbox, attachments });
        }
    });
    let first = look(&pods).await;
    tokio::time::sleep(MEASURED).await;
    let second = look(&pods).await;
    let all = pods
        .into_iter()
        .zip(first.into_iter().zip(second))
        .flat_map(|(pod, (first, second))| pod.attachments.into_iter().zip(first.into_iter().zip(second)));
    all.filter_map(|(traffic, (first, second))| {
        let ((first, begin), (second, end)) = (first?, second?);
        let flow = |first, second| flow(first, second, end - begin);
        let (received, sent) = (flow(first.received, second.received), flow(first.sent, second.sent));
        Some(Traffic { received, sent, ..traffic })
    })
    .collect()
}

/// An attachment, and where it is; nothing has been measured.
fn attached<'a>(
    record: &'a Record,
    shares: &HashMap<(String, String), u64>,
) -> Option<(&'a Sandbox, Traffic)> {
    let Phase::Attached { sandbox, .. } = &record.phase else { return None };
    let plan = &record.plan;
    let traffic = Traffic {
        namespace: plan.owner.pod.namespace.clone(),
        pod: plan.owner.pod.name.clone(),
        interface: plan.spec.if_name.to_string(),
        granted: plan.owner.bandwidth.map(|bandwidth| bandwidth.value()).filter(|granted| *granted > 0),
        share: shares.get(&(plan.owner.pod.uid.clone(), plan.key())).copied(),
        ..Traffic::default()
    };
    Some((sandbox, traffic))
}

/// The counters of an attachment, and when they were read.
type Look = Option<(Counters, Instant)>;

/// Reads the counters of each attachment of each pod.
async fn look(pods: &[Pod]) -> Vec<Vec<Look>> {
    let names = |pod: &Pod| pod.attachments.iter().map(|of| of.interface.clone()).collect();
    let looks: Vec<_> = pods.iter().map(|pod| look_into(pod.sandbox.clone(), names(pod))).collect();
    futures::stream::iter(looks).buffered(AT_ONCE).collect().await
}

async fn look_into(sandbox: Sandbox, interfaces: Vec<String>) -> Vec<Look> {
    let none = vec![None; interfaces.len()];
    match sandbox.open_netns() {
        Ok(netns) => netns.counters(interfaces).await.map_or(none, |all| {
            let now = Instant::now();
            all.into_iter().map(|counters| Some((counters?, now))).collect()
        }),
        Err(_) => none,
    }
}

/// What has passed until the second look. An interface that was made again in between has begun with 0.
fn flow(first: Passed, second: Passed, time: Duration) -> Flow {
    let Passed { bytes, packets, errors, dropped } = second;
    let bits = bytes.saturating_sub(first.bytes).saturating_mul(8);
    let rate = (u128::from(bits) * 1_000_000 / time.as_micros().max(1)).try_into().unwrap_or(u64::MAX);
    Flow { rate, bytes, packets, errors, dropped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_a_second() {
        let passed = |bytes| Passed { bytes, packets: 2, errors: 1, dropped: 0 };
        let flow = |first, second, ms| flow(passed(first), passed(second), Duration::from_millis(ms)).rate;
        assert_eq!(flow(1_000, 126_000, 1000), 1_000_000);
        assert_eq!(flow(1_000, 126_000, 2000), 500_000);
        assert_eq!(flow(1_000, 400, 1000), 0, "another interface");
        assert_eq!(flow(0, u64::MAX, 0), u64::MAX);
    }
}
