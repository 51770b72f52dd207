//! Reads what is needed to explain an object, and no more.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Event, Node, Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate};
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt as _};
use netclaim_api::DRIVER_NAME;
use netclaim_api::network_attachment::NetworkAttachment;
use serde::de::DeserializeOwned;

use super::Args;
use super::facts::{
    ClaimFact, Cluster, Facts, NodeFacts, Stage, Unread, asks_by_limits, is_allocated, is_refused, limits_of,
};
use crate::cluster::{ReadError, get, list, list_kept};
use crate::components::{AGENT, NAME};
use crate::trim;

/// Reads the facts about a pod.
///
/// # Errors
/// Fails if the pod itself or the claims of its namespace cannot be read. See [`ReadError`].
pub(super) async fn of_pod(name: &str, args: &Args) -> Result<Facts, ReadError> {
    let mut reader = Reader::new(args).await?;
    let facts = reader.pod(name, &args.netclaim_namespace).await?;
    Ok(Facts { unread: reader.unread, ..facts })
}

/// Reads the facts about a claim.
///
/// # Errors
/// Fails if the claims of the namespace cannot be read. See [`ReadError`].
pub(super) async fn of_claim(name: &str, args: &Args) -> Result<Facts, ReadError> {
    let mut reader = Reader::new(args).await?;
    let facts = reader.claim(name).await?;
    Ok(Facts { unread: reader.unread, ..facts })
}

/// Reads a NetworkAttachment.
///
/// # Errors
/// Fails if it cannot be read. See [`ReadError`].
pub(super) async fn of_attachment(name: &str, args: &Args) -> Result<Facts, ReadError> {
    let Reader { client, namespace, .. } = Reader::new(args).await?;
    let what = format!("NetworkAttachment {namespace}/{name}");
    let object = get(what, Api::<NetworkAttachment>::namespaced(client, &namespace), name).await?;
    Ok(Facts { hot: vec![object], ..Facts::default() })
}

struct Reader {
    client: Client,
    namespace: String,
    unread: Vec<Unread>,
}

impl Reader {
    async fn new(args: &Args) -> Result<Self, ReadError> {
        let client = args.connection.client().await?;
        let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        Ok(Self { client, namespace, unread: Vec::new() })
    }

    async fn pod(&mut self, name: &str, netclaim_namespace: &str) -> Result<Facts, ReadError> {
        let what = format!("pod {}/{name}", self.namespace);
        let pod = get(what, Api::<Pod>::namespaced(self.client.clone(), &self.namespace), name).await?;
        let mut facts = Facts { claims: self.claims_of(&pod).await?, ..Facts::default() };
        let stage = Stage::of(&pod);
        let is_unallocated = facts.found().any(|claim| !is_allocated(claim));
        let may_be_passed_by = match stage {
            Stage::Starting => is_unallocated || asks_by_limits(&pod),
            _ => is_refused(&pod) && asks_by_limits(&pod),
        };
        if may_be_passed_by {
            facts.cluster = Some(Cluster { classes: self.classes().await?, ..Cluster::default() });
        }
        match stage {
            Stage::Waiting if facts.found().next().is_some() => {
                let classes = self.classes().await?;
                facts.cluster = Some(self.cluster(classes).await?);
            }
            Stage::Waiting if asks_by_limits(&pod) => {
                let classes = self.classes().await?;
                let is_served = limits_of(&pod, classes.as_deref().unwrap_or_default()).is_some();
                facts.cluster = Some(match is_served {
                    true => self.cluster(classes).await?,
                    false => Cluster { classes, ..Cluster::default() },
                });
            }
            Stage::Starting => facts.node = Some(self.node(&pod, netclaim_namespace).await?),
            _ => {}
        }
        facts.hot = self.hot_attachments(name).await?;
        facts.pod = Some(pod);
        Ok(facts)
    }

    /// Returns the NetworkAttachments for pods of this name.
    async fn hot_attachments(&mut self, pod: &str) -> Result<Vec<NetworkAttachment>, ReadError> {
        let (what, api) = ("NetworkAttachments", Api::namespaced(self.client.clone(), &self.namespace));
        let is_its = |object: &NetworkAttachment| object.spec.pod_name.as_str() == pod;
        let kept = list_kept(what, api, &ListParams::default(), |object| Some(object).filter(is_its)).await;
        match kept {
            // A cluster without the kind has none.
            Err(error) if error.is_unknown() => Ok(Vec::new()),
            read => {
                let follows = "what the pod gets while it runs is not known";
                Ok(self.readable(what, follows, read)?.unwrap_or_default())
            }
        }
    }

    async fn claim(&mut self, name: &str) -> Result<Facts, ReadError> {
        let what = format!("ResourceClaim {}/{name}", self.namespace);
        let api = Api::<ResourceClaim>::namespaced(self.client.clone(), &self.namespace);
        let claim = get(what, api, name).await?;
        let cluster = match is_allocated(&claim) {
            true => None,
            false => {
                let classes = self.classes().await?;
                Some(self.cluster(classes).await?)
            }
        };
        let bound = if cluster.is_some() { self.bound(name).await? } else { None };
        Ok(Facts { claims: vec![ClaimFact::Found(Box::new(claim))], cluster, bound, ..Facts::default() })
    }

    /// Returns a pod of the claim that has a node.
    async fn bound(&mut self, claim: &str) -> Result<Option<Pod>, ReadError> {
        let names = |pod: &Pod| {
            let mut named = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
            named.any(|named| claim_name(pod, named).as_deref() == Some(claim))
        };
        let is_bound = |pod: &Pod| Stage::of(pod) == Stage::Starting && names(pod);
        let (what, api) = ("Pods", Api::<Pod>::namespaced(self.client.clone(), &self.namespace));
        let everything = ListParams::default();
        let pods = list_kept(what, api, &everything, |pod| is_bound(&pod).then_some(pod)).await;
        let follows = "whether a pod of the claim has passed the scheduler by is not known";
        Ok(self.readable(what, follows, pods)?.and_then(|pods| pods.into_iter().next()))
    }

    async fn claims_of(&mut self, pod: &Pod) -> Result<Vec<ClaimFact>, ReadError> {
        let mut claims = Vec::new();
        for named in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
            match claim_name(pod, named) {
                Some(name) => claims.push(self.found(&name).await?),
                None => claims.extend(self.not_made(named).await?),
            }
        }
        // The scheduler makes it for a pod that asks by limits.
        let implied = pod.status.iter().filter_map(|status| status.extended_resource_claim_status.as_ref());
        for implied in implied {
            claims.push(self.found(&implied.resource_claim_name).await?);
        }
        Ok(claims)
    }

    async fn found(&self, name: &str) -> Result<ClaimFact, ReadError> {
        let what = format!("ResourceClaim {}/{name}", self.namespace);
        match get(what, Api::namespaced(self.client.clone(), &self.namespace), name).await {
            Ok(claim) => Ok(ClaimFact::Found(Box::new(claim))),
            Err(ReadError::Missing { .. }) => Ok(ClaimFact::Missing { name: name.to_owned() }),
            Err(error) => Err(error),
        }
    }

    async fn not_made(&mut self, named: &PodResourceClaim) -> Result<Option<ClaimFact>, ReadError> {
        let Some(template) = named.resource_claim_template_name.clone() else { return Ok(None) };
        let api = Api::<ResourceClaimTemplate>::namespaced(self.client.clone(), &self.namespace);
        let has_template = match get("ResourceClaimTemplate".to_owned(), api, &template).await {
            Ok(_) => Some(true),
            Err(ReadError::Missing { .. }) => Some(false),
            Err(error) => {
                let follows = "whether the template of a claim exists is not known";
                self.note(error, "ResourceClaimTemplates", follows)?;
                None
            }
        };
        Ok(Some(ClaimFact::NotMade { name: named.name.clone(), template, has_template }))
    }

    async fn cluster(&mut self, classes: Option<Vec<DeviceClass>>) -> Result<Cluster, ReadError> {
        let everything = ListParams::default();
        let ours = ListParams::default().fields(&format!("spec.driver={DRIVER_NAME}"));
        let offers = "what the nodes offer is not known. An admin can run this command, too";
        let slices = self.all("ResourceSlices", offers, &ours, trim::whole).await?;
        let tainted = "devices that one of them keeps pods off count as available";
        let rules =
            self.all("DeviceTaintRules", tainted, &everything, trim::whole).await?.unwrap_or_default();
        let nodes =
            "whether a node takes the pod is not known, and nodes without a ResourceSlice are not shown";
        let nodes = self.all("Nodes", nodes, &everything, trim::node).await?;
        let claims =
            "whether enough is free is not known, because the claims of other namespaces are not counted";
        let claims = self.all("ResourceClaims of all namespaces", claims, &everything, trim::held).await?;
        let lacks_claims = claims.is_none();
        let claims = match claims {
            Some(claims) => claims,
            None => {
                let api = Api::namespaced(self.client.clone(), &self.namespace);
                list_kept("ResourceClaims of the namespace", api, &everything, trim::held).await?
            }
        };
        let networks = "whether a ClaimNetwork exists and is accepted is not known";
        let networks = self.all("ClaimNetworks", networks, &everything, trim::whole).await?;
        Ok(Cluster { classes, slices, rules, nodes, claims, lacks_claims, networks })
    }

    async fn classes(&mut self) -> Result<Option<Vec<DeviceClass>>, ReadError> {
        self.all("DeviceClasses", "what the pod asks for is not known", &ListParams::default(), trim::whole)
            .await
    }

    async fn node(&mut self, pod: &Pod, netclaim_namespace: &str) -> Result<NodeFacts, ReadError> {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let node = match get(format!("node {name}"), Api::<Node>::all(self.client.clone()), &name).await {
            Err(ReadError::Missing { .. }) => None,
            node => self.readable("Nodes", "whether the pod's node is ready is not known", node)?,
        };
        let agents =
            ListParams::default().labels(&format!("{NAME}={AGENT}")).fields(&format!("spec.nodeName={name}"));
        let api = Api::<Pod>::namespaced(self.client.clone(), netclaim_namespace);
        let agents = list(PODS, api, &agents).await;
        let agents = self.readable(PODS, "whether the node's agent is ready is not known", agents)?;
        let of_pod =
            ListParams::default().fields(&format!("involvedObject.uid={}", pod.uid().unwrap_or_default()));
        let api = Api::<Event>::namespaced(self.client.clone(), &self.namespace);
        let events = list(EVENTS, api, &of_pod).await;
        let events =
            self.readable(EVENTS, "what the kubelet and the agent have reported is not known", events)?;
        Ok(NodeFacts { node, agents, events: events.unwrap_or_default() })
    }

    /// Lists objects of the whole cluster; `None` if the user may not, or the cluster has no such objects.
    async fn all<K>(
        &mut self,
        what: &'static str,
        follows: &'static str,
        params: &ListParams,
        keep: impl Fn(K) -> Option<K>,
    ) -> Result<Option<Vec<K>>, ReadError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let listed = list_kept(what, Api::<K>::all(self.client.clone()), params, keep).await;
        self.readable(what, follows, listed)
    }

    /// Goes on without what the user may not read, and without what the cluster does not know.
    fn readable<T>(
        &mut self,
        what: &'static str,
        follows: &'static str,
        read: Result<T, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error) => self.note(error, what, follows).map(|()| None),
        }
    }

    fn note(&mut self, error: ReadError, what: &'static str, follows: &'static str) -> Result<(), ReadError> {
        let is_unknown = error.is_unknown();
        if !is_unknown && !error.is_forbidden() {
            return Err(error);
        }
        self.unread.push(Unread { is_unknown, what, follows });
        Ok(())
    }
}

const PODS: &str = "netclaim's Pods";
const EVENTS: &str = "Events";

/// The name of the claim that a pod means; `None` if there is none yet.
fn claim_name(pod: &Pod, named: &PodResourceClaim) -> Option<String> {
    let made = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let made = made.filter(|made| made.name == named.name).find_map(|made| made.resource_claim_name.clone());
    named.resource_claim_name.clone().or(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{api_server, items, status};

    #[tokio::test]
    async fn kinds_that_the_cluster_does_not_know_are_told_from_those_that_the_user_may_not_read() {
        let client = api_server(|uri| match uri.split('?').next() {
            Some("/apis/netclaim.dev/v1alpha1/claimnetworks") => status(404, "NotFound"),
            Some("/apis/resource.k8s.io/v1/devicetaintrules") => status(404, "NotFound"),
            Some("/api/v1/nodes") => status(403, "Forbidden"),
            _ => items([]),
        });
        let mut reader = Reader { client, namespace: "shop".to_owned(), unread: Vec::new() };
        reader.cluster(None).await.expect("reads");
        let notes: Vec<String> = reader.unread.iter().map(ToString::to_string).collect();
        assert_eq!(
            notes,
            [
                "the cluster has no DeviceTaintRules: devices that one of them keeps pods off count as available",
                "you may not read Nodes: whether a node takes the pod is not known, and nodes without a ResourceSlice are not shown",
                "the cluster has no ClaimNetworks: whether a ClaimNetwork exists and is accepted is not known",
            ]
        );
    }
}
