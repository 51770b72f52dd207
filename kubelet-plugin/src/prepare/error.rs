//! Why a claim, or a device of it, cannot be planned.

use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::{Invalid, Quantity};

use crate::addresses::error::AddressError;
use crate::pods::owner::ObjectRef;

/// The advice for a claim of another node.
const ELSEWHERE: &str = "have the scheduler choose the pod's node (no spec.nodeName), or delete every pod of the claim \
                         for the claim to be allocated again";

/// Why a claim cannot be planned. Its text, with its sources, is for the user.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum PlanError {
    /// The allocation is for other nodes.
    #[error("ResourceClaim {claim}: status.allocation.nodeSelector does not select node {node}: {ELSEWHERE}")]
    OtherNode { claim: ObjectRef, node: String },
    /// More devices than can be counted.
    #[error("ResourceClaim {0} has too many devices")]
    TooManyDevices(ObjectRef),
    /// One of the claim's devices cannot be attached.
    #[error("request {request:?} of ResourceClaim {claim}")]
    Device {
        /// The request that it was allocated for.
        request: String,
        claim: ObjectRef,
        /// Why not.
        #[source]
        source: Box<DeviceError>,
    },
}

/// Why a device cannot be attached for a claim.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(
        "device {device:?} was allocated from pool {found:?}, but node {node} has it in pool {pool:?}: {ELSEWHERE}"
    )]
    OtherPool { device: String, found: String, node: String, pool: String },
    #[error(
        "node {node} does not offer device {device:?}: its UplinkPolicies or its kernel leave out this way to use the link; \
         see its ResourceSlices, and delete every pod of the claim for another device to be allocated"
    )]
    NotOffered { node: String, device: String },
    #[error(
        "ClaimNetwork {network:?} does not exist or is not accepted on node {node}: see `kubectl get claimnetworks {network}`"
    )]
    NoNetwork { network: String, node: String },
    #[error(
        "node {node} has none of the uplinks of ClaimNetwork {network:?} any more: see `kubectl get claimnetworks {network}`"
    )]
    NoUplink { node: String, network: String },
    #[error("device {device:?} is no longer on node {node}: delete the pod to have it scheduled again")]
    Gone { device: String, node: String },
    #[error(
        "capacity.requests.addresses: is 0, but the claim asks for none of the reserved addresses of ClaimNetwork {network:?}: ask \
         for some by ips, or remove the 0"
    )]
    NoAddressAsked { network: String },
    #[error(
        "all addresses of ClaimNetwork {network:?} are reserved: ask for some by ips, with \"0\" in capacity.requests.addresses"
    )]
    OnlyReserved { network: String },
    #[error(
        "defaultRoute: pods would lose DNS and Services: set agent.clusterCIDRs (--cluster-cidrs of the agent on node {node})"
    )]
    NoClusterCidrs { node: String },
    #[error(
        "defaultRoute: {holder} has the {family} default route of the pod already: one attachment of a pod can have that of a family"
    )]
    DefaultRouteTaken { family: &'static str, holder: String },
    #[error(
        "primary: primary networks are off on node {node}: have the admin set primary.enabled of the chart (--primary of the agent), or \
         use a class without primary"
    )]
    PrimaryOff { node: String },
    #[error(
        "primary: a pod that runs keeps its eth0: use a class without primary for the NetworkAttachment, or name the claim in the pod's \
         spec"
    )]
    PrimaryOfRunning,
    #[error(
        "primary: another attachment of the pod is its primary network already, and a pod has one: use a class without primary for one of \
         them"
    )]
    PrimaryTaken,
    #[error(
        "primary: {ip} is in {prefix}, which is the cluster's own (agent.clusterCIDRs, Services and the node): have the admin give the \
         ClaimNetwork other addresses, or ask for another one"
    )]
    ClustersOwn { ip: IpAddr, prefix: IpNet },
    #[error("interfaceName: {0:?} is taken by another claim of the pod: choose another name")]
    IfNameTaken(String),
    #[error("interfaceName: no free interface name is left")]
    NoIfName,
    #[error(
        "ClaimNetwork {network:?} is not for namespace {namespace:?}: its admin says for which in spec.namespaces of \
         claimnetworks; delete the pod, which holds what it was allocated until then"
    )]
    Namespace { network: String, namespace: String },
    #[error("no segmentation id of ClaimNetwork {network:?} is free on {space}")]
    NoSegment { network: String, space: String },
    #[error(
        "capacity.requests: ClaimNetwork {network:?} wants the claim to choose one segmentation id, of {ids}: write for \
         example segment{example}: 1"
    )]
    NoSegmentChosen { network: String, ids: String, example: u32 },
    #[error(
        "capacity.requests.bandwidth: port {port} has {has}, pods were granted {taken} of it, and {asked} more is too much: delete \
         pods that have it, or this one, for its claim to be allocated again"
    )]
    Bandwidth { asked: Quantity, taken: Quantity, port: String, has: Quantity },
    #[error("segmentation id {id} is taken on {space}: choose another one")]
    SegmentTaken { id: u32, space: String },
    #[error(
        "segmentation id {id} is no longer one of ClaimNetwork {network:?} on {space}: choose another one, and delete every pod \
         of the claim for it to be allocated again"
    )]
    SegmentGone { id: u32, network: String, space: String },
}

impl PlanError {
    /// Whether the node lacks the link of one of the devices now.
    pub(crate) fn is_for_lack_of_a_link(&self) -> bool {
        let lacks =
            |error: &DeviceError| matches!(error, DeviceError::Gone { .. } | DeviceError::NoUplink { .. });
        matches!(self, Self::Device { source, .. } if lacks(source))
    }

    /// Whether pods have the bandwidth of one of the devices now.
    pub(crate) fn is_for_lack_of_bandwidth(&self) -> bool {
        matches!(self, Self::Device { source, .. } if matches!(**source, DeviceError::Bandwidth { .. }))
    }

    /// Whether the node has no address for one of the devices now.
    pub(crate) fn is_for_lack_of_addresses(&self) -> bool {
        let lacks = |error: &DeviceError| matches!(error, DeviceError::Address(error) if error.is_for_lack_of_addresses());
        matches!(self, Self::Device { source, .. } if lacks(source))
    }
}
