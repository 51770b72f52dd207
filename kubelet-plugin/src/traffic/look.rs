//! One look at the counters of attachments.

use futures::StreamExt as _;
use netclaim_driver::attach::Sandbox;
use netclaim_driver::links::Counters;
use tokio::time::Instant;

use crate::pods::attached::AttachedPod;

/// Namespaces that are looked into at once.
const AT_ONCE: usize = 8;

/// The counters of an attachment, and when they were read; `None` if its interface is gone.
pub(super) type Look = Option<(Counters, Instant)>;

/// Reads the counters of each attachment of each pod, in their order.
pub(super) async fn look(pods: &[AttachedPod]) -> Vec<Vec<Look>> {
    let names = |pod: &AttachedPod| pod.plans.iter().map(|plan| plan.spec.if_name.to_string()).collect();
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
