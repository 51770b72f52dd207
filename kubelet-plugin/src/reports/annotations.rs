//! Keeps the annotation `network-status` of the node's pods. Nothing waits for it, so one pod comes after the
//! other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use netclaim_cni::error_chain;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::network_status::{NETWORK_STATUS, NoList, entries, merged};
use crate::pods::owner::{ObjectRef, PodState};
use crate::pods::{NodePods, annotate};

/// Backoff after failed writes of one pod. The kubelet writes the pod's status at the same time, so that the
/// first ones conflict.
const RETRY: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(200))
    .with_max_delay(Duration::from_secs(60))
    .without_max_times();
/// Timeout of one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the states of pods go.
pub(super) struct Annotations(mpsc::UnboundedSender<Change>);

enum Change {
    Attached { pod: ObjectRef, entries: Vec<Value> },
    Gone { pod_uid: String },
}

impl Annotations {
    /// Notes the state of a pod.
    pub(super) fn attachments(&self, pod_uid: &str, state: &PodState) {
        // What a pod that ends still has, nobody needs to know.
        let change = match state.records.first() {
            Some(record) if !state.closing => {
                let Some(entries) = entries(state) else { return };
                Change::Attached { pod: record.plan.owner.pod.clone(), entries }
            }
            _ => Change::Gone { pod_uid: pod_uid.to_owned() },
        };
        // The task ends with the agent.
        let _ = self.0.send(change);
    }
}

/// What the annotation of a pod is to have.
struct Wanted {
    pod: ObjectRef,
    entries: Vec<Value>,
    /// Ours, as they were written last.
    before: Vec<Value>,
    /// The next write; `None` if there is nothing to write.
    due: Option<Instant>,
    backoff: ExponentialBackoff,
}

/// The task that writes the annotations.
pub(crate) struct AnnotationWriter {
    client: kube::Client,
    pods: Arc<NodePods>,
    changes: mpsc::UnboundedReceiver<Change>,
    wanted: HashMap<String, Wanted>,
}

impl AnnotationWriter {
    /// Writes as `client`, and reads pods as their node.
    pub(super) fn new(client: kube::Client, pods: Arc<NodePods>) -> (Annotations, Self) {
        let (sender, changes) = mpsc::unbounded_channel();
        (Annotations(sender), Self { client, pods, changes, wanted: HashMap::new() })
    }

    /// Writes until nobody notes anything any more.
    pub(crate) async fn run(mut self) {
        loop {
            let next = self.wanted.values().filter_map(|wanted| wanted.due).min();
            tokio::select! {
                biased;
                change = self.changes.recv() => match change {
                    Some(change) => self.note(change),
                    None => return,
                },
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => self.write_next().await,
            }
        }
    }

    fn note(&mut self, change: Change) {
        match change {
            Change::Gone { pod_uid } => drop(self.wanted.remove(&pod_uid)),
            Change::Attached { pod, entries } => {
                let before = match self.wanted.get(&pod.uid) {
                    Some(known) if known.entries == entries => return,
                    Some(Wanted { due: None, entries, .. }) => entries.clone(),
                    Some(Wanted { before, .. }) => before.clone(),
                    None => Vec::new(),
                };
                let (due, backoff) = (Some(Instant::now()), RETRY.build());
                self.wanted.insert(pod.uid.clone(), Wanted { pod, entries, before, due, backoff });
            }
        }
    }

    /// Writes the annotation of the pod that has waited longest.
    async fn write_next(&mut self) {
        let due = self.wanted.values_mut().filter(|wanted| wanted.due.is_some());
        let Some(wanted) = due.min_by_key(|wanted| wanted.due) else { return };
        let write = write(&self.client, &self.pods, wanted);
        let result = timeout(WRITE_TIMEOUT, write).await.unwrap_or(Err(WriteError::Timeout));
        let pod = &wanted.pod;
        wanted.due = match result {
            Ok(()) => None,
            Err(error) if error.is_final() => {
                let error = error_chain(&error);
                tracing::warn!(%pod, error, "cannot write the annotation {NETWORK_STATUS} of the pod");
                None
            }
            Err(error) => {
                let (delay, error) = (wanted.backoff.next().unwrap_or_default(), error_chain(&error));
                tracing::debug!(%pod, error, ?delay, "cannot write the pod's annotation, retrying");
                Some(Instant::now() + delay)
            }
        };
    }
}

/// Reads the annotation, and writes it if it has not what it should. The version that was read keeps what
/// somebody else writes at the same time.
async fn write(client: &kube::Client, pods: &NodePods, wanted: &Wanted) -> Result<(), WriteError> {
    let ObjectRef { namespace, name, uid } = &wanted.pod;
    let Some(metadata) = pods.metadata(namespace, name, uid).await.ok_or(WriteError::Unread)? else {
        return Ok(());
    };
    let found = metadata.annotations.as_ref().and_then(|all| all.get(NETWORK_STATUS));
    let Some(text) = merged(found.map(String::as_str), &wanted.before, &wanted.entries)? else {
        return Ok(());
    };
    let version = metadata.resource_version.as_deref();
    match annotate(client, &wanted.pod, (NETWORK_STATUS, &text), version).await {
        // It is gone.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        written => Ok(written?),
    }
}

/// Why an annotation was not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("the pod cannot be read")]
    Unread,
    #[error(transparent)]
    NoList(#[from] NoList),
    #[error("the API server refused or was not reached")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer in {} s", WRITE_TIMEOUT.as_secs())]
    Timeout,
}

impl WriteError {
    /// Whether another try is of no use.
    fn is_final(&self) -> bool {
        match self {
            Self::NoList(_) => true,
            Self::Api(kube::Error::Api(status)) => matches!(status.code, 403 | 422),
            Self::Api(_) | Self::Unread | Self::Timeout => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{self, ApiServer, attached};

    /// Answers the next request; returns its method and body.
    async fn answer(server: &mut ApiServer, code: u16, body: Value) -> (Method, Option<Value>) {
        let (head, sent) = fixtures::answer(server, code, &body).await;
        (head.method, sent)
    }

    fn found(version: &str, annotation: Option<&str>) -> Value {
        let annotations = annotation.map(|text| json!({NETWORK_STATUS: text}));
        json!({"items": [{"metadata": {"name": "p", "namespace": "default", "uid": "p",
            "resourceVersion": version, "annotations": annotations}}]})
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_has_changed_meanwhile_is_read_again_and_keeps_what_others_wrote() {
        let (client, mut server) = fixtures::api_server();
        let pods = Arc::new(NodePods::new(client.clone(), "node0", Arc::default()));
        let (annotations, writer) = AnnotationWriter::new(client, pods);
        let state = PodState { records: vec![attached("c", "s")], ..PodState::default() };
        annotations.attachments("p", &state);
        annotations.attachments("p", &state);
        let server = async {
            answer(&mut server, 200, found("1", None)).await;
            let conflict = json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409, "message": "no"});
            let (_, first) = answer(&mut server, 409, conflict).await;
            answer(&mut server, 200, found("2", Some(r#"[{"interface": "eth0"}]"#))).await;
            let (method, second) = answer(&mut server, 200, json!({"metadata": {"name": "p"}})).await;
            drop(annotations);
            (first.expect("a patch"), method, second.expect("a patch"))
        };
        let ((), (first, method, second)) = tokio::join!(writer.run(), server);
        assert_eq!(method, Method::PATCH);
        assert_eq!(first["metadata"]["resourceVersion"], "1");
        let written = second["metadata"]["annotations"][NETWORK_STATUS].as_str().expect("text");
        assert_eq!(
            serde_json::from_str::<Value>(written).expect("JSON"),
            json!([{"interface": "eth0"}, {"name": "storage", "interface": "net1", "dns": {}}])
        );
        assert_eq!(
            (&second["metadata"]["resourceVersion"], &second["metadata"]["uid"]),
            (&json!("2"), &json!("p"))
        );
    }
}
