//! Measures what attachments receive and send, when asked.

use std::collections::HashMap;
use std::time::Duration;

use netclaim_api::traffic::{Flow, Selection, Traffic};
use netclaim_driver::attach::{Attach, Attacher, Observer};
use netclaim_driver::links::Passed;

use super::look::look;
use crate::pods::attached::attached;
use crate::pods::owner::{Owner, Plan};

/// Between the two looks.
const MEASURED: Duration = Duration::from_secs(1);

/// Returns what the selected attachments receive and send. One whose interface is gone is left out. `shares`
/// are what attachments have of what is not granted, by the pod's UID and their key.
pub(crate) async fn measure<A: Attach, O: Observer<Owner = Owner>>(
    attacher: &Attacher<A, O>,
    selection: &Selection,
    shares: &HashMap<(String, String), u64>,
) -> Vec<Traffic> {
    let of_pod = |plan: &Plan| selection.selects(&plan.owner.pod.namespace, &plan.owner.pod.name);
    let pods = attached(attacher, of_pod);
    let first = look(&pods).await;
    tokio::time::sleep(MEASURED).await;
    let second = look(&pods).await;
    let all = pods
        .iter()
        .zip(first.into_iter().zip(second))
        .flat_map(|(pod, (first, second))| pod.plans.iter().zip(first.into_iter().zip(second)));
    all.filter_map(|(plan, (first, second))| {
        let ((first, begin), (second, end)) = (first?, second?);
        let flow = |first, second| flow(first, second, end - begin);
        Some(Traffic {
            namespace: plan.owner.pod.namespace.clone(),
            pod: plan.owner.pod.name.clone(),
            interface: plan.spec.if_name.to_string(),
            granted: plan.owner.bandwidth.map(|bandwidth| bandwidth.value()).filter(|granted| *granted > 0),
            share: shares.get(&(plan.owner.pod.uid.clone(), plan.key())).copied(),
            received: flow(first.received, second.received),
            sent: flow(first.sent, second.sent),
        })
    })
    .collect()
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
