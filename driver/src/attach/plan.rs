//! What to attach, and for whom. A plan stays unchanged from an ADD to its last DEL (CNI specification,
//! section 3, "Lifecycle & Ordering"). Before the next ADD it may be [revised](super::Observer::revise).

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;

use netclaim_cni::{CapabilityArgs, IfName, NetworkList};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The owner of an attachment. The driver stores it, shows it in logs, and reads only these values.
///
/// Attachments of one *group* are prepared and released together; for Kubernetes that is a claim.
pub trait Owner:
    fmt::Debug + fmt::Display + Clone + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// What plans have alike, whosever they are. Whoever looks at all plans again and again looks at their
    /// [kinds](super::Attacher::kinds) instead.
    type Kind: Eq + Hash + Send + Sync;

    /// Returns the kind of a plan.
    fn kind(plan: &Plan<Self>) -> Self::Kind;

    /// UID of the pod that gets the attachment.
    fn pod_uid(&self) -> &str;

    /// UID of the group.
    fn group(&self) -> &str;

    /// Name of the group: a pod's groups are attached in the order of their names.
    fn group_name(&self) -> &str;

    /// Attachments share turns only with others of the same tenant, such as a namespace.
    fn tenant(&self) -> &str;

    /// Whether a container runtime makes the sandboxes that it is attached to, and asks for their first
    /// interface.
    fn has_runtime(&self) -> bool {
        true
    }

    /// Where and when a *hot* group came to its pod, which ran already; `None` for what the pod has from its
    /// start.
    fn hot(&self) -> Option<Hot<'_>> {
        None
    }
}

/// How a group came to a pod that ran already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hot<'a> {
    /// The sandbox in which the pod ran. Its containers do not wait for the group, those of later ones do.
    pub sandbox_id: &'a str,
    /// When it was asked for, as a text that sorts: a pod's hot groups are attached in this order.
    pub since: &'a str,
}

/// The interface that container runtimes ask CNI for.
pub const PRIMARY_INTERFACE: &str = "eth0";

/// What to attach: all parameters of CNI plugins but the sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The owner's [tenant](Owner::tenant), who has a part of a network's turns.
    pub tenant: String,
    /// Name of the interface in the pod.
    pub if_name: IfName,
    /// The CNI network configuration list.
    pub conflist: NetworkList,
    /// CNI_ARGS, without those that the runtime adds.
    pub args: BTreeMap<String, String>,
    /// Capability arguments by capability.
    pub capability_args: CapabilityArgs,
    /// How the interface behaves on its network.
    pub wire: Wire,
}

/// How an interface behaves on its network, beside what the plugins make of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wire {
    /// It takes addresses and routes from router advertisements.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accept_ra: bool,
    /// It does not use an address that another host has.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub probes: bool,
    /// It is attached when its gateways answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub needs_gateway: bool,
}

impl Wire {
    /// Whether something must be true on the network before the pod uses what an ADD has made.
    pub fn needs_proof(self) -> bool {
        self.probes || self.needs_gateway
    }
}

/// One attachment of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "O: Owner", from = "PlanFile<O>", into = "PlanFile<O>")]
pub struct Plan<O> {
    /// Its owner.
    pub owner: O,
    /// Its place among the attachments of its group, from 0.
    pub index: u32,
    /// The number of attachments of its group, finalizers included. The group is prepared when all of them
    /// are journalled.
    pub of: u32,
    /// For a *finalizer*, the index of the attachment that it works on, which is of the same group.
    ///
    /// Finalizers are made when all attachments that they [work on](Self::works_on) are, and undone before
    /// the first of these. They make no interface, and hold nothing.
    pub finalizes: Option<u32>,
    /// The network's name, for people.
    pub network: String,
    /// What to attach.
    pub spec: Spec,
}

impl<O: Owner> Plan<O> {
    /// Returns the attachment's key, which is unique in its pod.
    pub fn key(&self) -> String {
        format!("{}.{}", self.owner.group(), self.index)
    }

    /// Whether it is a [finalizer](Self::finalizes).
    pub fn is_finalizer(&self) -> bool {
        self.finalizes.is_some()
    }

    /// Whether it is the pod's *primary* network: the runtime asks for it while it makes the sandbox, and
    /// takes its addresses for the pod's. In a sandbox for which the runtime has not asked, that interface is
    /// another network's.
    pub fn is_primary(&self) -> bool {
        let is_first = self.spec.if_name.as_str() == PRIMARY_INTERFACE && !self.is_finalizer();
        is_first && self.owner.has_runtime()
    }

    /// Whether it is of a [hot](Owner::hot) group.
    pub fn is_hot(&self) -> bool {
        self.owner.hot().is_some()
    }

    /// Whether it works, as a finalizer, on what `other` has made: on all that the pod has from its start,
    /// and on its own group.
    ///
    /// Hot groups come and go while the pod runs. Finalizers of others do not see them: what these have set
    /// up for the running pod (routes, filters) would be undone and done again each time.
    pub fn works_on(&self, other: &Self) -> bool {
        let is_there = !other.is_hot() || other.owner.group() == self.owner.group();
        self.is_finalizer() && !other.is_finalizer() && is_there
    }
}

/// A plan as the journal stores it: the owner's fields stand beside the others.
#[derive(Serialize, Deserialize)]
#[serde(bound = "O: Owner", rename_all = "camelCase")]
struct PlanFile<O> {
    #[serde(flatten)]
    owner: O,
    index: u32,
    of: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finalizes: Option<u32>,
    network: String,
    if_name: IfName,
    conflist: NetworkList,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    args: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "CapabilityArgs::is_empty")]
    capability_args: CapabilityArgs,
    #[serde(flatten)]
    wire: Wire,
}

impl<O: Owner> From<PlanFile<O>> for Plan<O> {
    fn from(file: PlanFile<O>) -> Self {
        let PlanFile { owner, index, of, finalizes, network, if_name, conflist, args, capability_args, wire } =
            file;
        let tenant = owner.tenant().to_owned();
        let spec = Spec { tenant, if_name, conflist, args, capability_args, wire };
        Self { owner, index, of, finalizes, network, spec }
    }
}

impl<O> From<Plan<O>> for PlanFile<O> {
    fn from(plan: Plan<O>) -> Self {
        let Plan { owner, index, of, finalizes, network, spec } = plan;
        let Spec { tenant: _, if_name, conflist, args, capability_args, wire } = spec;
        Self { owner, index, of, finalizes, network, if_name, conflist, args, capability_args, wire }
    }
}
