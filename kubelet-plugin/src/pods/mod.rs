//! The pods of this node, as the API server knows them.
//!
//! The agent asks as the node itself: the Node authorizer shows a node its own pods only. With a right of its
//! own to get pods, the agent could read every pod of the cluster, including secrets in `env`.
//!
//! It lists pods by name, since a node may list its own pods at once. A node may get a pod only some time
//! after the pod is bound, and for a pod that is gone the answer would be "forbidden", not "not found".
//!
//! From Kubernetes 1.37 the kubelet itself reports its pods ([`KubeletPods`]), which costs no request.

pub(crate) mod attached;
mod driver;
mod kubelet;
mod message;
mod object;
pub(crate) mod owner;
mod seen;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PartialObjectMeta, Patch, PatchParams};
use kube::{Client, Error, Resource as _};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) use kubelet::{Change, KnownPods, KubeletPods};
pub(crate) use object::PodCondition;
use object::{PodObject, PodSpec};
pub(crate) use seen::{RETRY, SeenPod};

use crate::pods::owner::ObjectRef;

/// How long the API server may take to return a pod.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The same, for a pod whose container is about to be created.
const SHORT_TIMEOUT: Duration = Duration::from_millis(500);

/// The objects of a list. With the type fields of kube's own list, each object would be decoded twice.
#[derive(Deserialize)]
struct Items<T> {
    /// `null` where there are none.
    items: Option<Vec<T>>,
}

/// Finds pods of one node.
pub(crate) struct NodePods {
    client: Client,
    node: String,
    /// The kubelet's report about them.
    known: Arc<KnownPods>,
}

impl NodePods {
    /// Finds pods of `node`, at first among those that are `known`.
    pub(crate) fn new(client: Client, node: &str, known: Arc<KnownPods>) -> Self {
        Self { client, node: node.to_owned(), known }
    }

    /// Returns the metadata of the pod with this UID: `Some(None)` when it is gone or another pod has its
    /// name, `None` when the API server does not answer within 3 s.
    pub(crate) async fn metadata(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Option<Option<ObjectMeta>> {
        let found = tokio::time::timeout(TIMEOUT, self.get_metadata(namespace, name)).await.ok()?.ok()?;
        Some(with_uid(found.map(|found| found.metadata), uid))
    }

    /// Whether containers of the pod with this UID may wait in a hook; `None` when the kubelet has not said
    /// so and the API server does not answer within 0.5 s.
    pub(crate) async fn may_wait_in_hook(&self, namespace: &str, name: &str, uid: &str) -> Option<bool> {
        if let Some(known) = self.known.may_wait_in_hook(uid) {
            return Some(known);
        }
        let pod = tokio::time::timeout(SHORT_TIMEOUT, self.get(namespace, name)).await.ok()?.ok()??;
        with_uid(Some(pod.metadata), uid)?;
        Some(pod.spec.as_ref().is_none_or(PodSpec::may_wait_in_hook))
    }

    /// Returns the names of the claims of the pod with this UID; `None` when the kubelet has not said so and
    /// the API server does not answer within 0.5 s.
    pub(crate) async fn claims(&self, namespace: &str, name: &str, uid: &str) -> Option<BTreeSet<String>> {
        if let Some(known) = self.known.claims(uid) {
            return Some(known);
        }
        let pod = tokio::time::timeout(SHORT_TIMEOUT, self.get(namespace, name)).await.ok()?.ok()??;
        (pod.metadata.uid.as_deref() == Some(uid))
            .then(|| pod.seen().map(|seen| seen.claims).unwrap_or_default())
    }

    /// Returns the condition of netclaim's readiness gate that a pod has; `None` for a pod that does not name
    /// the gate or is gone. Where the kubelet reports its pods, only those with the gate are read.
    ///
    /// # Errors
    /// The API server's answer.
    pub(crate) async fn gate(&self, pod: &ObjectRef) -> Result<Option<Option<PodCondition>>, Error> {
        if self.known.has_gate(&pod.uid) == Some(false) {
            return Ok(None);
        }
        let found = self.get(&pod.namespace, &pod.name).await?;
        let found = found.filter(|found| found.metadata.uid.as_ref() == Some(&pod.uid));
        Ok(found.and_then(PodObject::gate))
    }

    /// Returns the pods of the node that have claims; `None` when the API server does not let the agent list
    /// them, or does not answer within 3 s.
    pub(crate) async fn with_claims(&self) -> Option<Vec<SeenPod>> {
        let of_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let listed = kube::core::Request::new(Pod::url_path(&(), None)).list(&of_node).ok()?;
        let listed = self.as_node(listed).ok()?;
        match tokio::time::timeout(TIMEOUT, self.client.request::<Items<PodObject>>(listed)).await.ok()? {
            Ok(found) => Some(found.items.iter().flatten().filter_map(PodObject::seen).collect()),
            Err(error) => {
                tracing::debug!(%error, "cannot list the pods of the node");
                None
            }
        }
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<Option<PodObject>, Error> {
        self.find(request(namespace).list(&self.only(name))).await
    }

    async fn get_metadata(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<PartialObjectMeta<Pod>>, Error> {
        self.find(request(namespace).list_metadata(&self.only(name))).await
    }

    fn only(&self, name: &str) -> ListParams {
        ListParams::default().fields(&format!("metadata.name={name},spec.nodeName={}", self.node))
    }

    /// Has the agent act as its node.
    fn as_node(&self, mut request: Request<Vec<u8>>) -> Result<Request<Vec<u8>>, Error> {
        let node = format!("system:node:{}", self.node).try_into();
        let node = node.map_err(|error| Error::HttpError(http::Error::from(error)))?;
        request.headers_mut().insert("Impersonate-User", node);
        Ok(request)
    }

    /// Returns the pod that the request lists, if there is one.
    async fn find<T: DeserializeOwned>(
        &self,
        listed: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Option<T>, Error> {
        let listed = self.as_node(listed.map_err(Error::BuildRequest)?)?;
        Ok(self.client.request::<Items<T>>(listed).await?.items.into_iter().flatten().next())
    }
}

/// Writes one condition of the pod with this UID, as the agent itself.
///
/// # Errors
///
/// The API server's answer: 409 or 422 if the pod has another UID.
pub(crate) async fn set_condition(client: &Client, pod: &ObjectRef, condition: Value) -> Result<(), Error> {
    let change = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
    // A strategic merge patch changes the list's entry of this type.
    patch(client, pod, &Patch::Strategic(change)).await
}

/// Writes one annotation of the pod with this UID, in this version if one is given, as the agent itself.
///
/// # Errors
///
/// The API server's answer: 409 if the pod has another version, 409 or 422 if it has another UID.
pub(crate) async fn annotate(
    client: &Client,
    pod: &ObjectRef,
    (key, value): (&str, &str),
    version: Option<&str>,
) -> Result<(), Error> {
    let mut metadata = json!({"uid": pod.uid, "annotations": {key: value}});
    if let Some(version) = version {
        metadata["resourceVersion"] = json!(version);
    }
    patch(client, pod, &Patch::Merge(json!({"metadata": metadata}))).await
}

/// Patches a pod through its status: with the right to patch whole pods, the agent could change what they
/// run.
async fn patch(client: &Client, pod: &ObjectRef, change: &Patch<Value>) -> Result<(), Error> {
    let request =
        request(&pod.namespace).patch_subresource("status", &pod.name, &PatchParams::default(), change);
    let request = request.map_err(Error::BuildRequest)?;
    client.request::<PartialObjectMeta<Pod>>(request).await.map(drop)
}

fn request(namespace: &str) -> kube::core::Request {
    kube::core::Request::new(Pod::url_path(&(), Some(namespace)))
}

/// Returns `found` if it is of the pod with this UID.
fn with_uid(found: Option<ObjectMeta>, uid: &str) -> Option<ObjectMeta> {
    found.filter(|metadata| metadata.uid.as_deref() == Some(uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, ApiServer};

    fn pods() -> (NodePods, ApiServer) {
        let (client, server) = fixtures::api_server();
        (NodePods::new(client, "node0", Arc::default()), server)
    }

    /// Answers the next request; returns its user and its URI.
    async fn answer(server: &mut ApiServer, code: u16, body: Value) -> (Option<String>, String) {
        let (head, _) = fixtures::answer(server, code, &body).await;
        let user = head.headers.get("Impersonate-User").map(|user| user.to_str().expect("text").to_owned());
        (user, head.uri.to_string())
    }

    fn list(items: Value) -> Value {
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
    }

    #[tokio::test]
    async fn the_agent_lists_pods_as_their_node() {
        let (pods, mut server) = pods();
        let found = json!([{"metadata": {"name": "p", "namespace": "ns", "uid": "1"}}]);
        let (pod, (user, uri)) = tokio::join!(pods.get("ns", "p"), answer(&mut server, 200, list(found)));
        assert_eq!(pod.expect("an answer").expect("a pod").metadata.uid.as_deref(), Some("1"));
        assert_eq!(user.as_deref(), Some("system:node:node0"));
        assert_eq!(
            uri,
            "/api/v1/namespaces/ns/pods?&fieldSelector=metadata.name%3Dp%2Cspec.nodeName%3Dnode0"
        );
        let (gone, _) =
            tokio::join!(pods.get_metadata("ns", "p"), answer(&mut server, 200, list(Value::Null)));
        assert!(gone.expect("an answer").is_none());
    }

    #[tokio::test]
    async fn the_claims_of_a_pod_that_the_kubelet_has_not_reported_are_read() {
        let (pods, mut server) = pods();
        let pod = |uid: &str, claims: Value| {
            let metadata = json!({"name": "p", "namespace": "ns", "uid": uid});
            list(json!([{"metadata": metadata, "spec": {"resourceClaims": claims}}]))
        };
        let named = json!([{"name": "net", "resourceClaimName": "shared"}]);
        let answers = [
            (pod("1", named.clone()), Some(BTreeSet::from(["shared".to_owned()]))),
            (pod("1", json!(null)), Some(BTreeSet::new())),
            (pod("2", named), None),
        ];
        for (body, expected) in answers {
            let (claims, _) = tokio::join!(pods.claims("ns", "p", "1"), answer(&mut server, 200, body));
            assert_eq!(claims, expected);
        }
    }

    #[test]
    fn one_container_that_is_never_restarted_keeps_its_pod_out_of_the_hook() {
        let may_wait = |spec| serde_json::from_value::<PodSpec>(spec).unwrap().may_wait_in_hook();
        let container = |policy: Option<&str>| json!({"name": "c", "restartPolicy": policy});
        let never = Some("Never");
        assert!(!may_wait(json!({"restartPolicy": "Never", "containers": [container(None)]})));
        assert!(!may_wait(json!({"containers": [container(None), container(never)]})));
        assert!(!may_wait(json!({"containers": [container(None)], "initContainers": [container(never)]})));
        let restarted = json!({"restartPolicy": "OnFailure", "containers": [container(None)], "initContainers": [container(Some("Always"))]});
        assert!(may_wait(restarted));
    }

    #[test]
    fn a_pod_that_has_the_name_of_a_deleted_one_is_another_pod() {
        let found = || Some(ObjectMeta { uid: Some("new".to_owned()), ..ObjectMeta::default() });
        assert!(with_uid(found(), "new").is_some());
        assert_eq!(
            with_uid(found(), "old"),
            None,
            "the old one is gone, and its attachments are an orphan's"
        );
        assert_eq!(with_uid(Some(ObjectMeta::default()), "old"), None);
    }
}
