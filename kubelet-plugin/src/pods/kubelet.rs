//! The kubelet's own list of pods (its Pods API, on by default from Kubernetes 1.37): exact, local, and
//! without load for the API server.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::message::{EventType, Pod, WatchPodsEvent, WatchPodsRequest};
use super::seen::SeenPod;

/// The method that streams all pods and their changes.
const WATCH: &str = "/v1alpha1.Pods/WatchPods";
/// Delay before the next attempt after a stream has ended: a kubelet that starts refuses for a moment.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The same while there is no socket: an update of the kubelet creates one.
const ABSENT_DELAY: Duration = Duration::from_secs(5);

/// A change of the node's pods with claims.
#[derive(Debug)]
pub(crate) enum Change {
    /// These are all. Changes follow.
    All(Vec<SeenPod>),
    /// A pod is new or has changed.
    Pod(SeenPod),
    /// The pod with this UID has ended.
    Gone(String),
    /// The stream has ended; there will be another one.
    Lost,
    /// The kubelet has no Pods API.
    Absent,
}

/// The node's pods with claims, as the kubelet reports them.
#[derive(Debug, Default)]
pub(crate) struct KnownPods(Mutex<HashMap<String, KnownPod>>);

/// The facts about a pod.
#[derive(Debug, Clone)]
struct KnownPod {
    may_wait_in_hook: bool,
    claims: BTreeSet<String>,
    has_gate: bool,
}

impl KnownPod {
    fn of(seen: &SeenPod) -> (String, Self) {
        let &SeenPod { may_wait_in_hook, has_gate, .. } = seen;
        (seen.pod.uid.clone(), Self { may_wait_in_hook, claims: seen.claims.clone(), has_gate })
    }
}

impl KnownPods {
    /// Whether containers of the pod with this UID may wait in a hook; `None` for a pod that is not known.
    pub(crate) fn may_wait_in_hook(&self, uid: &str) -> Option<bool> {
        self.lock().get(uid).map(|known| known.may_wait_in_hook)
    }

    /// Returns the names of the claims of the pod with this UID; `None` for a pod that is not known.
    pub(crate) fn claims(&self, uid: &str) -> Option<BTreeSet<String>> {
        self.lock().get(uid).map(|known| known.claims.clone())
    }

    /// Whether the pod with this UID names netclaim's readiness gate; `None` for a pod that is not known.
    pub(crate) fn has_gate(&self, uid: &str) -> Option<bool> {
        self.lock().get(uid).map(|known| known.has_gate)
    }

    fn update(&self, change: &Change) {
        let mut known = self.lock();
        match change {
            Change::All(pods) => *known = pods.iter().map(KnownPod::of).collect(),
            Change::Pod(seen) => known.extend([KnownPod::of(seen)]),
            Change::Gone(uid) => drop(known.remove(uid)),
            // A pod's containers do not change: what was known stays true.
            Change::Lost | Change::Absent => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, KnownPod>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows the kubelet's pods.
pub(crate) struct KubeletPods {
    pub(crate) socket: PathBuf,
    /// The known pods.
    pub(crate) known: Arc<KnownPods>,
    /// Who gets changes.
    pub(crate) changes: mpsc::UnboundedSender<Change>,
}

impl KubeletPods {
    /// Follows the pods until dropped, over restarts of the kubelet.
    pub(crate) async fn follow(self) {
        let mut reported = None;
        loop {
            // The watch may end at once for as long as the kubelet starts: only the first time is worth a
            // line.
            let result =
                if self.socket.exists() { Some(self.follow_once(&mut reported).await) } else { None };
            let (change, delay) = match &result {
                Some(_) => (Change::Lost, RETRY_DELAY),
                None => (Change::Absent, ABSENT_DELAY),
            };
            if let Some(Err(error)) = &result {
                tracing::debug!(%error, "the kubelet's list of pods has ended");
            }
            let follows = Some(false);
            if reported != follows {
                let socket = self.socket.display();
                tracing::info!(%socket, "the kubelet does not report its pods: the agent asks the API server");
                reported = follows;
            }
            self.pass_on(change);
            tokio::time::sleep(delay).await;
        }
    }

    async fn follow_once(&self, reported: &mut Option<bool>) -> Result<(), Status> {
        let channel = connect(&self.socket).await.map_err(|error| Status::from_error(Box::new(error)))?;
        let mut client = Grpc::new(channel);
        client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        let codec = ProstCodec::<WatchPodsRequest, WatchPodsEvent>::default();
        let mut events = client
            .server_streaming(Request::new(WatchPodsRequest {}), PathAndQuery::from_static(WATCH), codec)
            .await?
            .into_inner();
        // `None` after the pods of the beginning.
        let mut first = Some(Vec::new());
        while let Some(event) = events.message().await? {
            if event.r#type() == EventType::InitialSyncComplete {
                self.pass_on(Change::All(first.take().unwrap_or_default()));
                tracing::info!("the kubelet reports its pods");
                *reported = Some(true);
                continue;
            }
            let pod = match Pod::decode(event.pod.as_slice()) {
                Ok(pod) => pod,
                Err(error) => {
                    tracing::debug!(%error, "a pod of the kubelet cannot be read");
                    continue;
                }
            };
            match (event.r#type(), &mut first) {
                (EventType::Deleted, _) => {
                    if let Some(uid) = pod.uid() {
                        self.pass_on(Change::Gone(uid.to_owned()));
                    }
                }
                (_, Some(first)) => first.extend(pod.into_seen()),
                (_, None) => {
                    if let Some(seen) = pod.into_seen() {
                        self.pass_on(Change::Pod(seen));
                    }
                }
            }
        }
        Ok(())
    }

    fn pass_on(&self, change: Change) {
        self.known.update(&change);
        // Where waking is switched off, changes have no receiver.
        let _ = self.changes.send(change);
    }
}

async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("unix://{}", socket.display()))?.connect().await
}
