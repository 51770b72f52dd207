//! What a continuous migration knows of the cluster: its NetworkAttachmentDefinitions, and the workloads that name networks.
//!
//! ```text
//!   API server ── watches ──> events ── take ──> what a translation reads of each object ──> objects
//!                                        └─────> whether that has changed
//! ```
//!
//! Invariants:
//! * Only what a translation reads is kept, and what events name. A workload without networks is not, and a change of a status is no change.
//! * Nothing is known of a kind until all of it was listed. A list that is interrupted changes nothing.

use std::collections::BTreeMap;

use futures::stream::{BoxStream, StreamExt as _, select_all};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::core::DynamicObject;
use kube::runtime::{WatchStreamExt as _, watcher};
use netclaim_cni::error_chain;
use netclaim_whereabouts::ObjectRef;
use serde_json::{Map, Value};

use super::input::{DEFAULT_NETWORK, NETWORKS};
use super::read;
use crate::cluster::Refusal;
use crate::kinds::Kind;

/// The kinds that are watched: definitions, and the workloads that a patch moves. Deployments make ReplicaSets; pods and Jobs cannot be
/// changed, so that whoever makes them anew translates them once.
pub(super) const WATCHED: [Kind; 5] =
    [read::NADS, read::DEPLOYMENTS, read::STATEFUL_SETS, read::DAEMON_SETS, read::CRON_JOBS];

/// An event of a watch, with the index of its kind.
pub(super) type Event = (usize, watcher::Result<watcher::Event<DynamicObject>>);

/// Watches the kinds of [`WATCHED`]. A watch that fails is begun again after a while.
pub(super) fn watch(client: &Client) -> BoxStream<'static, Event> {
    let of_kind = |(i, kind): (usize, &Kind)| {
        let events = watcher(kind.api(client.clone(), None), watcher::Config::default()).default_backoff();
        events.map(move |event| (i, event)).boxed()
    };
    select_all(WATCHED.iter().enumerate().map(of_kind)).boxed()
}

/// Returns why a watch fails.
pub(super) fn reason(error: watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error_chain(&Refusal::from(error)).to_string(),
        watcher::Error::WatchError(status) => status.message,
        error @ watcher::Error::NoResourceVersion => error.to_string(),
    }
}

/// The objects of all kinds.
#[derive(Debug, Default)]
pub(super) struct Cache {
    kinds: [Known; WATCHED.len()],
}

/// Objects of a kind by namespace and name.
type Objects = BTreeMap<(String, String), Value>;

/// What is known of a kind.
#[derive(Debug, Default)]
struct Known {
    objects: Objects,
    /// Those of the list that is being read.
    listed: Objects,
    is_complete: bool,
}

impl Cache {
    /// Takes an event in. Returns whether a translation could be another one now.
    pub(super) fn take(&mut self, kind: usize, event: watcher::Event<DynamicObject>) -> bool {
        let (Some(of), Some(known)) = (WATCHED.get(kind), self.kinds.get_mut(kind)) else { return false };
        match event {
            watcher::Event::Init => {
                known.listed.clear();
                false
            }
            watcher::Event::InitApply(object) => {
                let key = key(&object);
                known.listed.extend(relevant(of, object).map(|object| (key, object)));
                false
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut known.listed);
                let is_first = !std::mem::replace(&mut known.is_complete, true);
                let is_changed = listed != known.objects;
                known.objects = listed;
                is_first || is_changed
            }
            watcher::Event::Apply(object) => {
                let key = key(&object);
                let object = relevant(of, object);
                let is_changed = known.objects.get(&key) != object.as_ref();
                match object {
                    Some(object) => drop(known.objects.insert(key, object)),
                    None => drop(known.objects.remove(&key)),
                }
                is_changed
            }
            watcher::Event::Delete(object) => known.objects.remove(&key(&object)).is_some(),
        }
    }

    /// Whether every kind was listed.
    pub(super) fn is_complete(&self) -> bool {
        self.kinds.iter().all(|known| known.is_complete)
    }

    /// Returns how events name an object; `None` if it is not known.
    pub(super) fn reference(&self, object: &ObjectRef) -> Option<ObjectReference> {
        let (kind, known) = WATCHED.iter().zip(&self.kinds).find(|(kind, _)| kind.kind == object.kind)?;
        let found = known.objects.get(&(object.namespace.clone(), object.name.clone()))?;
        Some(ObjectReference {
            api_version: Some(kind.api_version.to_owned()),
            kind: Some(kind.kind.to_owned()),
            namespace: Some(object.namespace.clone()),
            name: Some(object.name.clone()),
            uid: found.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned),
            ..ObjectReference::default()
        })
    }

    /// Returns all objects.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Value> {
        self.kinds.iter().flat_map(|known| known.objects.values())
    }
}

fn key(object: &DynamicObject) -> (String, String) {
    let metadata = &object.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// Returns what a translation reads of an object; `None` if it reads nothing.
fn relevant(kind: &Kind, object: DynamicObject) -> Option<Value> {
    let mut object = kind.object(object)?;
    let is_nad = kind.kind == read::NADS.kind;
    if !is_nad && !names_networks(&object) {
        return None;
    }
    let fields = object.as_object_mut()?;
    fields.retain(|field, _| matches!(field.as_str(), "apiVersion" | "kind" | "metadata" | "spec"));
    let metadata = fields.get_mut("metadata").and_then(Value::as_object_mut)?;
    let is_read = |field: &str| match field {
        // `kubectl describe` finds events by the UID.
        "namespace" | "name" | "uid" | "ownerReferences" => true,
        "labels" | "annotations" => is_nad,
        _ => false,
    };
    metadata.retain(|field, _| is_read(field));
    Some(object)
}

/// Whether the pods of a workload name networks.
fn names_networks(workload: &Value) -> bool {
    ["/spec/template/metadata/annotations", "/spec/jobTemplate/spec/template/metadata/annotations"]
        .into_iter()
        .filter_map(|annotations| workload.pointer(annotations).and_then(Value::as_object))
        .any(|annotations: &Map<String, Value>| {
            annotations.contains_key(NETWORKS) || annotations.contains_key(DEFAULT_NETWORK)
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    const NAD: usize = 0;
    const DEPLOYMENT: usize = 1;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    fn web(networks: &str, revision: &str) -> DynamicObject {
        object(json!({
            "metadata": {"namespace": "shop", "name": "web", "resourceVersion": revision,
                "annotations": {"deployment.kubernetes.io/revision": revision}},
            "spec": {"template": {"metadata": {"annotations": {NETWORKS: networks}}}},
            "status": {"observedGeneration": revision},
        }))
    }

    fn plain() -> DynamicObject {
        object(
            json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"template": {"metadata": {}}}}),
        )
    }

    #[test]
    fn only_what_a_translation_reads_is_a_change() {
        let mut cache = Cache::default();
        assert!(cache.take(DEPLOYMENT, Event::Apply(web("lan", "1"))));
        assert!(!cache.take(DEPLOYMENT, Event::Apply(web("lan", "2"))), "the status of a rollout");
        assert!(cache.take(DEPLOYMENT, Event::Apply(web("wan", "3"))));
        let kept = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"template": {"metadata": {"annotations": {NETWORKS: "wan"}}}}});
        assert_eq!(cache.objects().collect::<Vec<_>>(), [&kept]);
        assert!(cache.take(DEPLOYMENT, Event::Apply(plain())), "it has moved");
        assert!(!cache.take(DEPLOYMENT, Event::Apply(plain())));
        assert!(!cache.take(DEPLOYMENT, Event::Delete(plain())), "it had no networks");
        assert_eq!(cache.objects().count(), 0);
    }

    #[test]
    fn labels_and_annotations_of_a_definition_are_read() {
        let nad = |labels: Value| {
            Event::Apply(object(
                json!({"metadata": {"namespace": "shop", "name": "lan", "labels": labels}, "spec": {}}),
            ))
        };
        let mut cache = Cache::default();
        assert!(cache.take(NAD, nad(json!({"import": "yes"}))));
        assert!(cache.take(NAD, nad(json!({"import": "no"}))));
        assert!(!cache.take(NAD, nad(json!({"import": "no"}))));
    }

    #[test]
    fn an_interrupted_list_changes_nothing() {
        let mut cache = Cache::default();
        for event in [Event::Init, Event::InitApply(web("lan", "1")), Event::Init] {
            assert!(!cache.take(DEPLOYMENT, event));
        }
        assert_eq!(cache.objects().count(), 0);
        assert!(!cache.take(DEPLOYMENT, Event::InitApply(web("lan", "1"))));
        assert!(cache.take(DEPLOYMENT, Event::InitDone));
        // What a second list repeats is no change, and what it lacks is gone.
        for event in [Event::Init, Event::InitApply(web("lan", "2")), Event::InitDone, Event::Init] {
            assert!(!cache.take(DEPLOYMENT, event));
        }
        assert!(cache.take(DEPLOYMENT, Event::InitDone));
        assert_eq!(cache.objects().count(), 0);
    }

    #[test]
    fn a_cache_is_complete_when_every_kind_was_listed() {
        let mut cache = Cache::default();
        for kind in 0..WATCHED.len() {
            assert!(!cache.is_complete());
            cache.take(kind, Event::Init);
            assert!(cache.take(kind, Event::InitDone), "an empty list is news, too");
        }
        assert!(cache.is_complete());
    }
}
