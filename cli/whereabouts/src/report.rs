//! What a takeover does, what stops it, and what it drops.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressLeaseSpec, AddressPoolSpec, Family, NetworkAddresses, Span};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::objects::{DecodeError, ObjectRef};

/// Everything that is taken over from whereabouts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Takeover {
    /// The pools, those that problems stop too.
    pub pools: Vec<PoolTakeover>,
    /// Objects of whereabouts that cannot be read. They stop everything, because they may have addresses in
    /// use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<DecodeError>,
    /// NetworkAttachmentDefinitions that are not taken over, such as those without a range of their own.
    /// Addresses of their pods are leased where another one has their range.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<DecodeError>,
    /// Pools of whereabouts from which no NetworkAttachmentDefinition draws.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unclaimed: Vec<Unclaimed>,
    /// What is dropped and of no single pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A pool of netclaim that takes over addresses of whereabouts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolTakeover {
    /// `network_name` of whereabouts, empty by default.
    pub network_name: String,
    /// The ranges. With `network_name` they are the key of a pool of whereabouts.
    pub ranges: Vec<IpNet>,
    /// The IPPools whose addresses are taken over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_pools: Vec<ObjectRef>,
    /// The AddressPool, if several ClaimNetworks draw from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<SharedPool>,
    /// What `spec.addresses` of the ClaimNetworks says.
    pub networks: Vec<NetworkAddressing>,
    /// The addresses in use, by the name of the AddressLease.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub leases: BTreeMap<String, AddressLeaseSpec>,
    /// Addresses whose pods are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<Orphan>,
    /// Excluded addresses: an IPPool holds them without a pod, or they are orphans that the caller wants to
    /// hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<IpAddr>,
    /// Why nothing of this pool may be taken over yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    /// What is dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

impl PoolTakeover {
    /// Whether problems forbid to take the pool over.
    pub fn is_stopped(&self) -> bool {
        !self.problems.is_empty()
    }
}

/// An AddressPool to create.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SharedPool {
    pub name: String,
    pub spec: AddressPoolSpec,
}

/// What a ClaimNetwork gets instead of an `ipam` object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetworkAddressing {
    /// The NetworkAttachmentDefinition.
    pub nad: ObjectRef,
    /// The ClaimNetwork that it becomes.
    pub network: NetworkName,
    /// Its `spec.addresses`.
    pub addresses: NetworkAddresses,
}

/// An address of a pod that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// The address.
    pub address: IpAddr,
    /// The pod that had it, as NAMESPACE/NAME.
    pub podref: String,
    /// The interface in the pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ifname: String,
    /// The IPPool.
    pub pool: ObjectRef,
}

/// An IPPool from which no NetworkAttachmentDefinition draws.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unclaimed {
    /// The IPPool.
    pub pool: ObjectRef,
    /// How many of its addresses are not taken over.
    pub addresses: usize,
    /// Why.
    pub reason: UnclaimedReason,
}

/// Why an IPPool is not taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum UnclaimedReason {
    #[error("no NetworkAttachmentDefinition has its range and network_name")]
    Unused,
    #[error("spec.range is not a CIDR, so its addresses are unknown")]
    NoRange,
    #[error("its name is not made from its spec.range, so whereabouts does not read it")]
    OtherName,
}

/// The losses and changes of a takeover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The object that says it.
    pub object: ObjectRef,
    /// The field.
    pub field: String,
    /// Why, and what to do.
    pub reason: String,
}

/// Why a pool must not be taken over.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "problem", rename_all_fields = "camelCase")]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Problem {
    #[error(
        "{nad}: pods get one address of each of {ranges:?}, and netclaim gives one {family} address: make two networks"
    )]
    SeveralRanges { nad: ObjectRef, family: FamilyName, ranges: Vec<IpNet> },
    #[error(
        "{nad}: {field} has {count} entries after they were joined, and at most {max} are possible: reduce them"
    )]
    TooMany { nad: ObjectRef, field: String, count: usize, max: usize },
    #[error("{nad}: its addresses cannot be those of a ClaimNetwork: {field}: {reason}")]
    Invalid { nad: ObjectRef, field: String, reason: String },
    #[error("{nad} and {other} would both become the ClaimNetwork {network}: give one of them another name")]
    SameNetwork { nad: ObjectRef, other: ObjectRef, network: NetworkName },
    #[error(
        "{nad} and {other} both hand out {span}, with different settings: make {differing} equal to share one pool, or let \
         one exclude what the other hands out; if they are different networks, set network_name"
    )]
    Overlap { nad: ObjectRef, other: ObjectRef, span: Span, differing: String },
    #[error(
        "{address} is in {pool} for {podref:?} and in {other} for {other_podref:?}: delete the pod that does not use it"
    )]
    TwoPools { address: IpAddr, pool: ObjectRef, podref: String, other: ObjectRef, other_podref: String },
    #[error(
        "pod {pod} has {address} by its network-status, but {pool} has it for {podref:?}: restart one of the pods"
    )]
    TwoPods { address: IpAddr, pod: String, pool: ObjectRef, podref: String },
    #[error("pods {pod} and {other} both have the fixed address {address}: stop one of them")]
    FixedTwice { address: IpAddr, pod: String, other: String },
    #[error(
        "pod {pod} has {address} of {nad} by its network-status, and no IPPool has it: restart the pod, or exclude the \
         address"
    )]
    InNoPool { address: IpAddr, pod: String, nad: ObjectRef },
    #[error(
        "{reservation} reserves {address} for {podref:?}, and no IPPool has it: delete it if the pod does not use it"
    )]
    NotAllocated { reservation: ObjectRef, address: IpAddr, podref: String },
    #[error(
        "{reservation} reserves {address} for pod {podref}, and {pool} has it for {other:?}: restart one of the pods"
    )]
    ReservedForOther {
        reservation: ObjectRef,
        address: IpAddr,
        podref: String,
        pool: ObjectRef,
        other: String,
    },
    #[error("{object}: {field}: {value:?} is not a CIDR, so the addresses in use are unknown: correct it")]
    NoRange { object: ObjectRef, field: String, value: String },
}

/// A family's name, as it is written in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum FamilyName {
    #[serde(rename = "IPv4")]
    V4,
    #[serde(rename = "IPv6")]
    V6,
}

impl From<Family> for FamilyName {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }
}

impl std::fmt::Display for FamilyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}
