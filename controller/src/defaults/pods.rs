//! What pods have of the defaults of their namespace. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ApiResource, NotUsed, Object};
use netclaim_api::network::{DEFAULT_NETWORKS, default_claim, network_of_template};
use serde::{Deserialize, Serialize};

/// Annotation of the pods that stand for the static pods of a kubelet.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod with little of its spec.
pub(super) type PodObject = Object<Spec, NotUsed>;

/// The part of a pod's spec that is kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    host_network: bool,
    os: Option<Os>,
    resource_claims: Vec<ClaimOfPod>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Os {
    name: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimOfPod {
    name: String,
    resource_claim_template_name: Option<String>,
}

/// Returns the API's name of [`PodObject`].
pub(super) fn resource() -> ApiResource {
    ApiResource::erase::<Pod>(&())
}

/// The pods of one namespace at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NamespacePods {
    /// ClaimNetworks whose template a pod names.
    pub(super) named: BTreeSet<String>,
    /// How many pods lack a default, by its ClaimNetwork.
    pub(super) lacking: BTreeMap<String, usize>,
}

impl NamespacePods {
    /// Adds a pod of a namespace with these defaults.
    pub(super) fn add(&mut self, pod: &PodObject, defaults: &[String]) {
        let claims = &pod.spec.resource_claims;
        let templates = claims.iter().filter_map(|claim| claim.resource_claim_template_name.as_deref());
        self.named.extend(templates.filter_map(network_of_template).map(str::to_owned));
        for network in defaults.iter().filter(|network| lacks(pod, network)) {
            *self.lacking.entry(network.clone()).or_default() += 1;
        }
    }
}

/// Whether a pod would get this default if it were created now, and does not have it: the conditions are
/// those of the policy.
fn lacks(pod: &PodObject, network: &str) -> bool {
    let annotations = pod.annotations();
    let is_windows = pod.spec.os.as_ref().is_some_and(|os| os.name == "windows");
    let wants = annotations
        .get(DEFAULT_NETWORKS)
        .is_none_or(|wanted| wanted.split(',').any(|wanted| wanted.trim() == network));
    let has_it = pod.spec.resource_claims.iter().any(|claim| claim.name == default_claim(network));
    !pod.spec.host_network && !is_windows && !annotations.contains_key(MIRROR) && wants && !has_it
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(annotations: Value, spec: Value) -> PodObject {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": annotations},
            "spec": spec, "status": {"phase": "Running"}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_lacks_a_default_unless_it_opts_out_or_has_no_network_of_its_own() {
        let claim = |template: &str| json!({"resourceClaims": [{"name": "default-a", "resourceClaimTemplateName": template}]});
        for (annotations, spec, expected) in [
            (json!({}), json!({}), &["a", "b"][..]),
            (json!({}), claim("netclaim-default-a"), &["b"]),
            (json!({}), claim("mine"), &["b"]),
            (json!({"netclaim.dev/default-networks": ""}), json!({}), &[]),
            (json!({"netclaim.dev/default-networks": "c, b"}), json!({}), &["b"]),
            (json!({"kubernetes.io/config.mirror": "x"}), json!({}), &[]),
            (json!({}), json!({"hostNetwork": true}), &[]),
            (json!({}), json!({"os": {"name": "windows"}}), &[]),
        ] {
            let mut pods = NamespacePods::default();
            pods.add(&pod(annotations.clone(), spec.clone()), &["a", "b"].map(str::to_owned));
            let lacking: Vec<&String> = pods.lacking.keys().collect();
            assert_eq!(lacking, expected, "{annotations} {spec}");
        }
    }

    #[test]
    fn the_templates_that_pods_name_are_in_use() {
        let mut pods = NamespacePods::default();
        let claims = json!([{"name": "x", "resourceClaimTemplateName": "netclaim-default-a"},
            {"name": "y", "resourceClaimTemplateName": "mine"}, {"name": "z", "resourceClaimName": "other"}]);
        pods.add(&pod(json!({}), json!({"resourceClaims": claims})), &[]);
        assert_eq!(pods.named.into_iter().collect::<Vec<_>>(), ["a"]);
    }
}
