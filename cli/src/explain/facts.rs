//! What an explanation is made of.

use std::fmt;

use k8s_openapi::api::core::v1::{Event, Node, Pod, PodStatus};
use k8s_openapi::api::resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice};
use kube::ResourceExt as _;
use netclaim_allocation::{Limits, extended_resources};
use netclaim_api::network::ClaimNetwork;
use netclaim_api::network_attachment::NetworkAttachment;

/// The objects of one moment, more or less.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The pod that is explained; `None` if it is a claim.
    pub(super) pod: Option<Pod>,
    /// The pod's claims, or the claim that is explained.
    pub(super) claims: Vec<ClaimFact>,
    /// The scheduler's input, if something waits for it.
    pub(super) cluster: Option<Cluster>,
    /// The pod's NetworkAttachments, or the one that is explained.
    pub(super) hot: Vec<NetworkAttachment>,
    /// A pod of the explained claim that has a node, though the claim is not allocated.
    pub(super) bound: Option<Pod>,
    /// The pod's node, if it has one and is not running.
    pub(super) node: Option<NodeFacts>,
    /// What could not be read.
    pub(super) unread: Vec<Unread>,
}

/// A claim, or why there is none.
#[derive(Debug)]
pub(super) enum ClaimFact {
    Found(Box<ResourceClaim>),
    /// Kubernetes has not made it from its template yet.
    NotMade {
        /// What the pod calls it.
        name: String,
        template: String,
        /// Whether the template exists; `None` if that could not be read.
        has_template: Option<bool>,
    },
    /// The pod names a claim that does not exist.
    Missing {
        name: String,
    },
}

/// The scheduler's input; `None` could not be read.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) classes: Option<Vec<DeviceClass>>,
    /// Those of netclaim.
    pub(super) slices: Option<Vec<ResourceSlice>>,
    /// None if they could not be read.
    pub(super) rules: Vec<DeviceTaintRule>,
    pub(super) nodes: Option<Vec<Node>>,
    /// All that could be read.
    pub(super) claims: Vec<ResourceClaim>,
    /// Whether these are not those of all namespaces.
    pub(super) lacks_claims: bool,
    pub(super) networks: Option<Vec<ClaimNetwork>>,
}

/// What may keep a pod from starting on its node; `None` is what could not be read.
#[derive(Debug, Default)]
pub(super) struct NodeFacts {
    pub(super) node: Option<Node>,
    /// Pods of netclaim's agent on the node.
    pub(super) agents: Option<Vec<Pod>>,
    /// Events of the pod.
    pub(super) events: Vec<Event>,
}

/// Something that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unread {
    /// Whether the cluster does not know such objects. Otherwise the user may not read them.
    pub(super) is_unknown: bool,
    pub(super) what: &'static str,
    pub(super) follows: &'static str,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.is_unknown { "the cluster has no" } else { "you may not read" };
        write!(f, "{verb} {}: {}", self.what, self.follows)
    }
}

/// How far a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for a node.
    Waiting,
    /// It has a node and does not run.
    Starting,
    Running,
    /// It has ended, or is being deleted.
    Ended,
}

impl Stage {
    pub(super) fn of(pod: &Pod) -> Self {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        match phase {
            Some("Succeeded" | "Failed") => Self::Ended,
            _ if pod.metadata.deletion_timestamp.is_some() => Self::Ended,
            Some("Running") => Self::Running,
            _ if node.is_some() => Self::Starting,
            _ => Self::Waiting,
        }
    }
}

impl Facts {
    /// The claims that exist.
    pub(super) fn found(&self) -> impl Iterator<Item = &ResourceClaim> {
        self.claims.iter().filter_map(|claim| match claim {
            ClaimFact::Found(claim) => Some(claim.as_ref()),
            _ => None,
        })
    }

    /// Whether a device plugin of the pod's node has a resource that the pod asks for by limits.
    pub(super) fn has_plugin_for(&self, pod: &Pod) -> bool {
        let node = self.node.as_ref().and_then(|facts| facts.node.as_ref());
        let allocatable = node.and_then(|node| node.status.as_ref()?.allocatable.as_ref());
        let resources = pod.spec.iter().flat_map(extended_resources);
        let has = |resource: &str| allocatable?.get(resource).map(|amount| amount.0 != "0");
        resources.into_iter().any(|resource| has(resource) == Some(true))
    }
}

/// Whether the kubelet has refused the pod before it started a container.
pub(super) fn is_refused(pod: &Pod) -> bool {
    let has_none = |status: &PodStatus| status.container_statuses.as_ref().is_none_or(Vec::is_empty);
    let status = pod.status.as_ref().filter(|_| pod.metadata.deletion_timestamp.is_none());
    status.is_some_and(|status| status.phase.as_deref() == Some("Failed") && has_none(status))
}

/// Whether the claim has been allocated.
pub(super) fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.allocation.is_some())
}

/// `NAMESPACE/NAME`.
pub(super) fn full_name(object: &impl kube::Resource) -> String {
    format!("{}/{}", object.meta().namespace.as_deref().unwrap_or_default(), object.name_any())
}

/// Whether a pod may ask for devices by `limits`, and has no claim for them yet: the scheduler makes it when
/// it has found a node.
pub(super) fn asks_by_limits(pod: &Pod) -> bool {
    let has_claim = pod.status.as_ref().is_some_and(|status| status.extended_resource_claim_status.is_some());
    !has_claim && pod.spec.as_ref().is_some_and(|spec| !extended_resources(spec).is_empty())
}

/// Returns what a pod asks for by limits without a claim.
pub(super) fn limits_of(pod: &Pod, classes: &[DeviceClass]) -> Option<Limits> {
    pod.spec.as_ref().filter(|_| asks_by_limits(pod)).and_then(|spec| Limits::of(spec, classes))
}
