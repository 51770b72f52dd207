//! One look at the counters of attachments.

use std::sync::Arc;

use futures::StreamExt as _;
use netclaim_driver::attach::{Attach, Attacher, Observer, Phase, Sandbox};
use netclaim_driver::links::Counters;
use tokio::time::Instant;

use crate::pods::owner::{Owner, Plan};

/// Namespaces that are looked into at once.
const AT_ONCE: usize = 8;

/// The attachments of one pod.
pub(super) struct Pod {
    sandbox: Sandbox,
    pub(super) plans: Vec<Arc<Plan>>,
}

/// The counters of an attachment, and when they were read; `None` if its interface is gone.
pub(super) type Look = Option<(Counters, Instant)>;

/// Returns the attachments that `selects` selects, by their pods.
pub(super) fn attached<A: Attach, O: Observer<Owner = Owner>>(
    attacher: &Attacher<A, O>,
    selects: impl Fn(&Plan) -> bool,
) -> Vec<Pod> {
    let mut pods = Vec::new();
    attacher.for_each_pod(|state| {
        let attached = state.attachments().filter_map(|record| match &record.phase {
            Phase::Attached { sandbox, .. } if selects(&record.plan) => Some((sandbox, &record.plan)),
            _ => None,
        });
        let (sandboxes, plans): (Vec<_>, Vec<_>) = attached.map(|(s, plan)| (s, Arc::clone(plan))).unzip();
        let sandbox = sandboxes.first().map(|sandbox| (*sandbox).clone());
        pods.extend(sandbox.map(|sandbox| Pod { sandbox, plans }));
    });
    pods
}

/// Reads the counters of each attachment of each pod, in their order.
pub(super) async fn look(pods: &[Pod]) -> Vec<Vec<Look>> {
    let names = |pod: &Pod| pod.plans.iter().map(|plan| plan.spec.if_name.to_string()).collect();
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
