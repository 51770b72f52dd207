//! Writes warnings as events, on the Node and on pods.

use crate::pods::owner::ObjectRef;
use backon::{ExponentialBuilder, Retryable as _};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use netclaim_api::reasons::{NodeEvent, PodEvent, Reason as _};
use netclaim_api::{API_VERSION, shorten};
use tokio::sync::watch;

/// Longest note of an event in bytes (`events.k8s.io/v1`).
const MAX_NOTE: usize = 1024;

/// The events of this agent.
#[derive(Clone)]
pub(crate) struct Events {
    client: Client,
    reporter: Reporter,
    recorder: Recorder,
}

impl Events {
    /// Reports as `driver` on `node`.
    pub(crate) fn new(client: Client, driver: &str, node: &str) -> Self {
        let reporter = Reporter { controller: driver.to_owned(), instance: Some(node.to_owned()) };
        Self { recorder: Recorder::new(client.clone(), reporter.clone()), client, reporter }
    }

    /// Warns about the node's devices on the Node, and retries for a while.
    pub(crate) fn warn_node(&self, node: ObjectReference, reason: NodeEvent, note: String) {
        let reason = reason.as_str();
        let event = warning(reason, "Publish", note);
        // A new recorder each time: one that has seen the last event would count it up and drop the new note.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        tokio::spawn(async move {
            let publish = || recorder.publish(&event, &node);
            if let Err(error) = publish.retry(ExponentialBuilder::new().with_jitter()).await {
                tracing::warn!(reason, %error, "cannot write an event on the Node");
            }
        });
    }

    /// Warns as [`warn_node`](Self::warn_node) on the Node of this name once its UID is known: `kubectl
    /// describe node` shows no event without it.
    pub(crate) fn warn_own_node(
        &self,
        name: &str,
        uid: &watch::Receiver<Option<String>>,
        reason: NodeEvent,
        note: String,
    ) {
        let (events, name, mut uid) = (self.clone(), name.to_owned(), uid.clone());
        tokio::spawn(async move {
            let Ok(uid) = uid.wait_for(Option::is_some).await.map(|uid| uid.clone()) else { return };
            let node = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(name),
                uid,
                ..ObjectReference::default()
            };
            events.warn_node(node, reason, note);
        });
    }

    /// Warns on a pod, without a retry.
    pub(crate) fn warn_pod(&self, pod: &ObjectRef, reason: PodEvent, action: &str, note: String) {
        self.tell_pod(pod, warning(reason.as_str(), action, note));
    }

    /// Notes what has gone well on a pod, without a retry.
    pub(crate) fn note_pod(&self, pod: &ObjectRef, reason: PodEvent, action: &str, note: String) {
        self.tell_pod(pod, Event { type_: EventType::Normal, ..warning(reason.as_str(), action, note) });
    }

    /// Warns on a NetworkAttachment, without a retry.
    pub(crate) fn warn_attachment(&self, object: &ObjectRef, reason: PodEvent, action: &str, note: String) {
        self.tell(("NetworkAttachment", API_VERSION), object, warning(reason.as_str(), action, note));
    }

    fn tell_pod(&self, pod: &ObjectRef, event: Event) {
        self.tell(("Pod", "v1"), pod, event);
    }

    fn tell(&self, (kind, api_version): (&'static str, &str), object: &ObjectRef, event: Event) {
        let reference = ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(object.namespace.clone()),
            name: Some(object.name.clone()),
            uid: Some(object.uid.clone()),
            ..ObjectReference::default()
        };
        let (recorder, object) = (self.recorder.clone(), object.to_string());
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &reference).await {
                tracing::debug!(kind, object, %error, "cannot write an event");
            }
        });
    }
}

fn warning(reason: &str, action: &str, note: String) -> Event {
    Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(shorten(note, MAX_NOTE)),
        action: action.to_owned(),
        secondary: None,
    }
}
