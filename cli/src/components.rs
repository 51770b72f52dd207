//! netclaim's own pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::cluster::{ReadError, list};

/// The label of netclaim's pods whose values are [`AGENT`] and [`CONTROLLER`].
pub(crate) const NAME: &str = "app.kubernetes.io/name";
pub(crate) const AGENT: &str = "netclaim-agent";
pub(crate) const CONTROLLER: &str = "netclaim-controller";

/// Whether the pod is one of this component.
pub(crate) fn is_named(pod: &Pod, name: &str) -> bool {
    is_labelled(&pod.metadata, name)
}

/// Whether the pod or the template of pods is labelled as one of this component.
pub(crate) fn is_labelled(metadata: &ObjectMeta, name: &str) -> bool {
    metadata.labels.as_ref().and_then(|labels| labels.get(NAME)).is_some_and(|label| label == name)
}

/// Whether the pod is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Reads the agents' pods.
///
/// # Errors
/// Fails with what the API server says.
pub(crate) async fn agents_of(client: &Client, netclaim_namespace: &str) -> Result<Vec<Pod>, ReadError> {
    let pods = Api::<Pod>::namespaced(client.clone(), netclaim_namespace);
    let of_agents = ListParams::default().labels(&format!("{NAME}={AGENT}"));
    list("netclaim's Pods", pods, &of_agents).await
}

/// The agents' pods, by node. During an update a node has two; one that is ready comes first.
pub(crate) fn agents(pods: &[Pod]) -> BTreeMap<&str, &Pod> {
    let mut agents = BTreeMap::new();
    for pod in pods.iter().filter(|pod| is_named(pod, AGENT)) {
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
            && (is_ready(pod) || !agents.contains_key(node))
        {
            agents.insert(node, pod);
        }
    }
    agents
}
