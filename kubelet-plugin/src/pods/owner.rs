//! For whom an attachment is made: the claim, its pod and the allocated device. The driver stores it with the
//! plan.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::addresses::choice::Choice;
use netclaim_api::configuration::Fingerprint;
use netclaim_api::{IfName, LinkUse, MacAddr, Quantity};
use netclaim_driver::attach;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A plan of a claim's attachment.
pub type Plan = attach::Plan<Owner>;
/// A record of its attachment.
pub type Record = attach::Record<Owner>;
/// The state of a pod.
pub type PodState = attach::PodState<Owner>;
/// The node's journal.
pub type Journal = attach::journal::Journal<Owner>;

/// A named object with a UID.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ObjectRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The allocated device that an attachment serves; together with the claim it is unique.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceRef {
    /// The request (`main` or `main/sub`) that it was allocated for.
    pub request: String,
    /// Name of the pool.
    pub pool: String,
    /// Name in the pool.
    pub device: String,
    /// Which share of a shared device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
}

impl DeviceRef {
    /// The request that containers name: of `main/sub` it is `main`.
    pub fn main_request(&self) -> &str {
        self.request.split('/').next().unwrap_or_default()
    }
}

/// A segmentation id (VLAN id, VNI) that an attachment has alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Segment {
    /// Among what there is only one of the id: an uplink, or a network without one.
    pub space: String,
    /// The id.
    pub id: u32,
}

/// The link of the node that an attachment is on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OnLink {
    /// Its name.
    pub name: IfName,
    /// The physical function, where the link is a virtual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_function: Option<IfName>,
    /// What its frames leave the node by, where that is another link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// How it is used; `None` for what is stacked on it or passes through it as a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_use: Option<LinkUse>,
}

/// The addresses that an attachment gets, of a ClaimNetwork with `addresses`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Addresses {
    /// The choice from the node's blocks: an address of each family, unless its claim asked for addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chosen: Vec<Choice>,
    /// The addresses that its claim asked for, with AddressLeases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<AskedAddress>,
}

/// An address that a claim asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskedAddress {
    /// Name of the AddressLease.
    pub lease: String,
    /// Name of the AddressPool, if it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// The MAC address, instead of an IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
}

impl Addresses {
    /// The blocks that its addresses are of.
    pub fn blocks(&self) -> impl Iterator<Item = IpNet> {
        self.chosen.iter().map(|choice| choice.block)
    }

    /// The addresses that are known before the ADD: those of these blocks, and those asked of a lease.
    pub(crate) fn known_ips(&self) -> impl Iterator<Item = IpAddr> {
        self.ips().chain(self.leases.iter().filter_map(|lease| lease.ip))
    }

    /// The addresses that it has of these blocks.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.chosen.iter().map(|choice| choice.address)
    }
}

/// The NetworkAttachment by which a pod that runs has got an attachment. It is of the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ByAttachment {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// When it was created, as the API server writes it.
    pub created: String,
    /// The name that it gives the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<IfName>,
    /// The sandbox in which the pod ran when this was planned.
    pub sandbox_id: String,
}

/// The claim, its pod and the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The claim that asked for it.
    pub claim: ObjectRef,
    /// The pod that gets it.
    pub pod: ObjectRef,
    /// The name by which the pod's specification calls the claim, where it was made from a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_claim_name: Option<String>,
    /// The NetworkAttachment that the claim is for; `None` for what the pod has from its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_attachment: Option<ByAttachment>,
    /// The allocated device.
    pub device: DeviceRef,
    /// Bits per second that the claim was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Quantity>,
    /// The segmentation id that the network handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Segment>,
    /// Its addresses, where the network has any that nodes share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Addresses>,
    /// Whether the claim was charged for none of the addresses that nodes hand out, because it asked for
    /// reserved ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_no_address: bool,
    /// Whether its ClaimNetwork is set up on the node first (`spec.node`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_node_network: bool,
    /// The configuration of its ClaimNetwork that made the plan. It is not known of plans that earlier
    /// versions have made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Fingerprint>,
    /// The link of the node that it is on; `None` for one on no link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<OnLink>,
    /// Attributes of the device as it is published, for the pod to read.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub attributes: Map<String, Value>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.network_attachment {
            Some(by) => write!(f, "NetworkAttachment {} of pod {}", by.name, self.pod),
            None => write!(f, "ResourceClaim {} of pod {}", self.claim, self.pod),
        }
    }
}

impl Owner {
    /// Whether the claim is in another namespace than its pod, as only those of NetworkAttachments are. An
    /// agent of before them, after a rollback, has written the record without the NetworkAttachment.
    pub(crate) fn has_claim_elsewhere(&self) -> bool {
        self.claim.namespace != self.pod.namespace
    }

    /// Whether the kubelet may give the claim to another pod: it is named, and not made for one.
    pub(crate) fn may_be_shared(&self) -> bool {
        self.pod_claim_name.is_none() && self.network_attachment.is_none()
    }
}
