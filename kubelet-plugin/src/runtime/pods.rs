//! The pods of this node, which the agent asks for as the node itself: the Node authorizer shows it the pods of no other,
//! where a right of the agent's own to get pods would be one to read every pod of the cluster, secrets in `env` included.
//!
//! It lists them by name, since a list of its node's pods is allowed at once. Whether a node may get a pod is known a
//! moment after the pod is bound only, and what is gone would be forbidden, not missing.

use std::sync::atomic::{AtomicBool, Ordering};

use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, ObjectList, PartialObjectMeta};
use kube::{Client, Error, Resource as _};
use serde::de::DeserializeOwned;

/// HTTP status of what is not allowed.
const FORBIDDEN: u16 = 403;

/// Finds pods of one node.
pub(crate) struct NodePods {
    client: Client,
    node: String,
    /// The API server lets no agent be its node, as before Kubernetes 1.36, and lets this one get pods instead.
    directly: AtomicBool,
}

impl NodePods {
    pub(crate) fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_owned(), directly: AtomicBool::new(false) }
    }

    /// A pod of the node, if there is one of that name.
    ///
    /// # Errors
    /// When the API server does not say.
    pub(crate) async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, Error> {
        let listed = request(namespace).list(&self.only(name));
        let get = |pods: Api<Pod>| async move { pods.get_opt(name).await };
        self.find(namespace, listed, get).await
    }

    /// As [`Self::pod`], the metadata only.
    ///
    /// # Errors
    /// When the API server does not say.
    pub(crate) async fn metadata(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<PartialObjectMeta<Pod>>, Error> {
        let listed = request(namespace).list_metadata(&self.only(name));
        let get = |pods: Api<Pod>| async move { pods.get_metadata_opt(name).await };
        self.find(namespace, listed, get).await
    }

    fn only(&self, name: &str) -> ListParams {
        ListParams::default().fields(&format!("metadata.name={name},spec.nodeName={}", self.node))
    }

    async fn find<T, F>(
        &self,
        namespace: &str,
        listed: Result<Request<Vec<u8>>, kube::core::request::Error>,
        get: impl FnOnce(Api<Pod>) -> F,
    ) -> Result<Option<T>, Error>
    where
        T: Clone + DeserializeOwned,
        F: Future<Output = Result<Option<T>, Error>>,
    {
        if !self.directly.load(Ordering::Relaxed) {
            let mut listed = listed.map_err(Error::BuildRequest)?;
            let node = format!("system:node:{}", self.node).try_into();
            let node = node.map_err(|error| Error::HttpError(http::Error::from(error)))?;
            listed.headers_mut().insert("Impersonate-User", node);
            match self.client.request::<ObjectList<T>>(listed).await {
                Err(Error::Api(status)) if status.code == FORBIDDEN => {}
                found => return Ok(found?.items.into_iter().next()),
            }
        }
        let found = get(Api::namespaced(self.client.clone(), namespace)).await?;
        if !self.directly.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "the API server does not let the agent ask for pods as its node: it gets them directly"
            );
        }
        Ok(found)
    }
}

fn request(namespace: &str) -> kube::core::Request {
    kube::core::Request::new(Pod::url_path(&(), Some(namespace)))
}

#[cfg(test)]
mod tests {
    use http::Response;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower_test::mock::{self, Handle};

    use super::*;

    type Server = Handle<Request<Body>, Response<Body>>;

    fn pods() -> (NodePods, Server) {
        let (service, server) = mock::pair::<Request<Body>, Response<Body>>();
        (NodePods::new(Client::new(service, "default"), "node0"), server)
    }

    /// Answers the next request; returns who asks, and for what.
    async fn answer(server: &mut Server, code: u16, body: Value) -> (Option<String>, String) {
        let (request, send) = server.next_request().await.expect("a request");
        let user =
            request.headers().get("Impersonate-User").map(|user| user.to_str().expect("text").to_owned());
        let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
        send.send_response(response.expect("a response"));
        (user, request.uri().to_string())
    }

    fn list(items: Value) -> Value {
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
    }

    fn forbidden() -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no"})
    }

    #[tokio::test]
    async fn a_pod_is_asked_for_as_its_node() {
        let (pods, mut server) = pods();
        let found = json!([{"metadata": {"name": "p", "namespace": "ns", "uid": "1"}}]);
        let (pod, (user, uri)) = tokio::join!(pods.pod("ns", "p"), answer(&mut server, 200, list(found)));
        assert_eq!(pod.expect("an answer").expect("a pod").metadata.uid.as_deref(), Some("1"));
        assert_eq!(user.as_deref(), Some("system:node:node0"));
        assert_eq!(
            uri,
            "/api/v1/namespaces/ns/pods?&fieldSelector=metadata.name%3Dp%2Cspec.nodeName%3Dnode0"
        );
        let (gone, _) = tokio::join!(pods.metadata("ns", "p"), answer(&mut server, 200, list(json!([]))));
        assert!(gone.expect("an answer").is_none());
    }

    #[tokio::test]
    async fn where_nobody_may_be_a_node_pods_are_got_directly_from_then_on() {
        let (pods, mut server) = pods();
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "uid": "1"}});
        let server = async {
            let (as_node, _) = answer(&mut server, 403, forbidden()).await;
            let first = answer(&mut server, 200, pod.clone()).await;
            (as_node, first, answer(&mut server, 200, pod).await)
        };
        let both = async { (pods.pod("ns", "p").await, pods.pod("ns", "p").await) };
        let ((one, two), (as_node, first, second)) = tokio::join!(both, server);
        assert!(one.expect("an answer").is_some() && two.expect("an answer").is_some());
        assert!(as_node.is_some());
        assert_eq!([first, second], [(); 2].map(|()| (None, "/api/v1/namespaces/ns/pods/p".to_owned())));
    }

    #[tokio::test]
    async fn a_refusal_of_both_is_tried_again_as_the_node() {
        let (pods, mut server) = pods();
        let server = async {
            answer(&mut server, 403, forbidden()).await;
            answer(&mut server, 403, forbidden()).await;
            answer(&mut server, 200, list(json!([]))).await
        };
        let both = async { (pods.metadata("ns", "p").await, pods.metadata("ns", "p").await) };
        let ((one, two), (user, _)) = tokio::join!(both, server);
        assert!(one.is_err() && two.expect("an answer").is_none() && user.is_some());
    }
}
