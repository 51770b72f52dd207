//! Asks agents within limits of number and time: a big cluster, a dead node or an agent gone wild holds
//! nothing up.
//!
//! [`exec`] asks by a program in the agents' pods. `netclaimctl status` asks over their port of metrics.

pub(crate) mod exec;

use std::collections::BTreeMap;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::{Instant, timeout_at};

/// Most agents that are asked one thing.
pub(crate) const MAX_ASKED: usize = 32;
/// Agents that are asked at once.
const AT_ONCE: usize = 8;

/// Agents to ask: a node, and its agent's pod.
pub(crate) type Asked<'a> = Vec<(&'a str, &'a Pod)>;

/// Returns the answer of each node's agent; `too_many` for those that were not asked, or had not answered in
/// time.
pub(crate) async fn ask_all<A>(
    asked: Asked<'_>,
    until: Instant,
    too_many: impl Fn() -> A,
    ask: impl AsyncFn(&Pod) -> A,
) -> BTreeMap<String, A> {
    let mut answers: BTreeMap<String, A> =
        asked.iter().map(|(node, _)| ((*node).to_owned(), too_many())).collect();
    let asked = asked.into_iter().take(MAX_ASKED).map(async |(node, pod)| (node, ask(pod).await));
    let mut asked = futures::stream::iter(asked).buffer_unordered(AT_ONCE);
    while let Ok(Some((node, answer))) = timeout_at(until, asked.next()).await {
        answers.insert(node.to_owned(), answer);
    }
    answers
}
