//! Where pods wait for addresses, for those who lease them.
//!
//! ```text
//!   watch ──> AwaitingAddresses ──> where pods wait ──> addresses
//!                │        ▲                               │
//!                └ claims ┘ <── whether a node is short ──┘
//! ```
//!
//! Claims are read only while a node is short of addresses, those of one pod at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::watcher;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::asked_networks::Reader;
use super::waiting::{PodObject, WaitingPods};
use crate::demand::Waiting;
use crate::objects::nodes::Nodes;

/// The pods that may wait for addresses, shared by the watch that shows them and those who lease addresses.
#[derive(Debug, Default)]
pub(crate) struct AwaitingAddresses {
    pods: Mutex<Pods>,
    /// Other pods wait, or they wait elsewhere.
    changed: watch::Sender<()>,
    is_short: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Pods {
    known: WaitingPods,
    /// Where they waited at the last look; `None` if that has changed.
    last: Option<(Arc<Nodes>, Places)>,
}

/// Where pods wait.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) waiting: Arc<Waiting>,
    /// When another pod waits, if no event comes before.
    pub(crate) until: Option<Instant>,
}

impl AwaitingAddresses {
    /// Takes in an event of the watch.
    pub(crate) fn apply(&self, event: watcher::Event<PodObject>) {
        let mut pods = self.pods();
        if pods.known.apply(event) {
            pods.last = None;
            self.changed.send_replace(());
        }
    }

    /// Returns where pods wait now. `nodes` are the same nodes as long as they are the same allocation.
    pub(crate) fn places(&self, nodes: &Arc<Nodes>, now: Instant) -> Places {
        let Pods { known, last } = &mut *self.pods();
        if let Some((of, places)) = last
            && Arc::ptr_eq(of, nodes)
            && places.until.is_none_or(|until| until > now)
        {
            return places.clone();
        }
        let time = Timestamp::now();
        let waiting = Arc::new(known.places(nodes, time));
        let places = Places { waiting, until: known.next_wait(time, now) };
        *last = Some((nodes.clone(), places.clone()));
        places
    }

    /// Returns what changes when other pods wait, or when they wait elsewhere.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Takes in whether a node is short of addresses.
    pub(crate) fn set_short(&self, is_short: bool) {
        self.is_short.send_if_modified(|before| std::mem::replace(before, is_short) != is_short);
    }

    /// Reads what the claims of pods ask for, while a node is short of addresses. Does not return.
    pub(crate) async fn read_claims(&self, client: Client) {
        let (mut changes, mut short) = (self.changes(), self.is_short.subscribe());
        let mut reader = Reader::new(client);
        loop {
            // Without a shortage, it does not matter which pods wait.
            let _ = short.wait_for(|is_short| *is_short).await;
            let (question, due) = {
                let (mut pods, time, now) = (self.pods(), Timestamp::now(), Instant::now());
                (pods.known.next_question(time, now), pods.known.next(time, now))
            };
            let Some(question) = question else {
                tokio::select! {
                    _ = changes.changed() => {}
                    _ = short.changed() => {}
                    () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                }
                continue;
            };
            match reader.networks(&question).await {
                Ok(Some(networks)) => {
                    let mut pods = self.pods();
                    pods.known.answer(question, networks);
                    pods.last = None;
                    self.changed.send_replace(());
                }
                Ok(None) => {}
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot read the claims of a pod that waits, will retry");
                }
            }
        }
    }

    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tokio::time::timeout;
    use tower_test::mock;

    use super::*;

    /// A pod that has had its node for long.
    fn pod(uid: &str) -> watcher::Event<PodObject> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": uid, "uid": uid, "namespace": "shop"},
            "spec": {"nodeName": "b", "resourceClaims": [{"name": "net", "resourceClaimName": uid}]},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True",
                "lastTransitionTime": Timestamp::UNIX_EPOCH.to_string()}]},
        });
        watcher::Event::Apply(serde_json::from_value(pod).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn claims_are_read_one_by_one_and_only_while_a_node_is_short_of_addresses() {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let awaiting = AwaitingAddresses::default();
        for uid in ["u1", "u2"] {
            awaiting.apply(pod(uid));
        }
        let check = async {
            let mut next = async || timeout(Duration::from_secs(5), requests.next_request()).await.ok();
            assert!(next().await.is_none(), "no node is short");
            awaiting.set_short(true);
            let (request, reply) = next().await.unwrap().unwrap();
            assert!(request.uri().path().ends_with("/resourceclaims/u1"));
            assert!(next().await.is_none(), "one at a time");
            awaiting.set_short(false);
            reply.send_error("the API server is away");
            assert!(next().await.is_none(), "no node is short any more");
            awaiting.set_short(true);
            let (request, _) = next().await.unwrap().unwrap();
            assert!(request.uri().path().ends_with("/resourceclaims/u2"), "the other one is tried later");
        };
        tokio::select! {
            () = awaiting.read_claims(Client::new(service, "default")) => {}
            () = check => {}
        }
    }

    #[tokio::test]
    async fn a_place_is_derived_again_when_pods_or_nodes_have_changed() {
        let (awaiting, nodes) = (AwaitingAddresses::default(), Arc::new(Nodes::new()));
        let mut changes = awaiting.changes();
        let first = awaiting.places(&nodes, Instant::now()).waiting;
        let is_first = |nodes| Arc::ptr_eq(&first, &awaiting.places(nodes, Instant::now()).waiting);
        assert!(is_first(&nodes) && !changes.has_changed().unwrap());
        assert!(!is_first(&Arc::new(Nodes::new())), "other nodes");
        let second = awaiting.places(&nodes, Instant::now()).waiting;
        awaiting.apply(pod("u1"));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(!Arc::ptr_eq(&second, &awaiting.places(&nodes, Instant::now()).waiting));
        awaiting.apply(pod("u1"));
        assert!(!changes.has_changed().unwrap(), "the same pod");
    }
}
