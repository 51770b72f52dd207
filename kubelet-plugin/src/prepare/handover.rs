//! Claims that go from a pod that has ended to the next one, as those of a StatefulSet do whose pod was
//! force-deleted.
//!
//! The kubelet prepares a claim once for all pods of the node that use it (`pkg/kubelet/cm/dra/manager.go`).
//! Where the next pod is there before the first has ended, it asks neither for an Unprepare nor for a
//! Prepare: it only starts the next pod's containers, again and again. So the agent looks who has the claim,
//! at a pace that costs one system call each while every pod with such a claim lives.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use netclaim_cni::error_chain;
use tokio::time::Instant;

use crate::prepare::call::{NodeAgent, Plugins};

/// How often the agent looks for pods that have ended.
const INTERVAL: Duration = Duration::from_secs(1);
/// The longest delay between two looks at a claim. The first is one interval, in which most pods get a
/// sandbox.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// When a claim is looked at next.
struct Look {
    due: Instant,
    delay: Duration,
}

/// Hands claims over until dropped.
pub(crate) async fn run<N: Plugins>(node: Arc<NodeAgent<N>>) {
    let mut looks: HashMap<String, Look> = HashMap::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let claims = node.left_behind().await;
        looks.retain(|uid, _| claims.keys().any(|claim| claim.uid == *uid));
        let now = Instant::now();
        let mut is_due = |uid: &str| {
            let look = looks.entry(uid.to_owned()).or_insert(Look { due: now + INTERVAL, delay: INTERVAL });
            let is_due = look.due <= now;
            if is_due {
                *look = Look { due: now + look.delay, delay: (look.delay * 2).min(LONGEST_DELAY) };
            }
            is_due
        };
        let due: Vec<_> = claims.iter().filter(|(claim, _)| is_due(&claim.uid)).collect();
        join_all(due.into_iter().map(async |(claim, from)| match node.hand_over(claim, from).await {
            Ok(true) => tracing::info!(%claim, claim.uid, from, "the next pod has the claim now"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%claim, claim.uid, from, error = error_chain(&error), "the next pod cannot have the claim yet")
            }
        }))
        .await;
    }
}
