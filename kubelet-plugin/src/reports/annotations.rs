//! Keeps the annotation `network-status` of the node's pods.

use std::sync::Arc;

use serde_json::Value;

use super::network_status::{NETWORK_STATUS, entries, merged};
use super::pod_writes::{OfPods, WriteError, Written, written};
use crate::pods::owner::{ObjectRef, PodState};
use crate::pods::{NodePods, annotate};

/// The annotation, written as `client`; pods are read as their node.
pub(crate) struct Annotation {
    pub(super) client: kube::Client,
    pub(super) pods: Arc<NodePods>,
}

impl OfPods for Annotation {
    type Value = Vec<Value>;

    const NAME: &'static str = "the annotation k8s.v1.cni.cncf.io/network-status";
    const GIVES_UP: bool = true;

    fn value(&self, state: &PodState) -> Option<Vec<Value>> {
        entries(state)
    }

    /// Reads the annotation, and writes it if it has not what it should. The version that was read keeps what
    /// another program writes at the same time.
    async fn write(
        &self,
        pod: &ObjectRef,
        before: Option<&Vec<Value>>,
        value: &Vec<Value>,
    ) -> Result<Written, WriteError> {
        let ObjectRef { namespace, name, uid } = pod;
        let Some(metadata) = self.pods.metadata(namespace, name, uid).await.ok_or(WriteError::Unread)? else {
            return Ok(Written::Unwanted);
        };
        let found = metadata.annotations.as_ref().and_then(|all| all.get(NETWORK_STATUS));
        let before = before.map_or(&[][..], Vec::as_slice);
        let Some(text) = merged(found.map(String::as_str), before, value)? else {
            return Ok(Written::Done);
        };
        let version = metadata.resource_version.as_deref();
        written(annotate(&self.client, pod, (NETWORK_STATUS, &text), version).await)
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{self, ApiServer, attached};
    use crate::reports::pod_writes::PodWriter;

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
        let (annotations, writer) = PodWriter::new(Annotation { client, pods });
        let state = PodState { records: vec![attached("c", "s")], ..PodState::default() };
        annotations.note("p", &state);
        annotations.note("p", &state);
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
