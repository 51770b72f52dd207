//! Why a claim cannot be served. [`Display`](fmt::Display) is the sentence for users, and [`Cause::brief`] is
//! the same without the claims that hold devices, so that nodes with the same cause can be grouped.

use std::collections::BTreeSet;
use std::fmt;

use netclaim_api::taints::Reason;
use netclaim_api::{Quantity, attributes};
use netclaim_kubernetes::quantity::ONE;
use serde::Serialize;

use crate::holdings::{DeviceId, Holder};

/// Why a request cannot have a device, or any device of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Cause {
    /// The request's class does not exist.
    NoClass {
        /// Its name.
        class: String,
    },
    /// The request asks for something that is not known here.
    UnknownKind {
        /// What it is.
        what: String,
    },
    /// The node has no slice of the driver.
    NotPublished {
        /// The driver.
        driver: String,
    },
    /// A pool has fewer slices than its newest generation consists of.
    PoolIncomplete {
        /// The pool.
        pool: String,
        /// Slices that are there.
        slices: usize,
        /// Slices that the newest generation has.
        expected: i64,
    },
    /// The devices of a pool contradict each other.
    PoolInvalid {
        /// The pool.
        pool: String,
        /// The contradiction.
        why: String,
    },
    /// The class is one for a ClaimNetwork that the node does not offer.
    NetworkNotOffered {
        /// The ClaimNetwork.
        network: String,
    },
    /// The class and the request select no device of the node.
    NothingSelected {
        /// The class.
        class: String,
    },
    /// The request wants more devices than it can have.
    TooFew {
        /// How many it wants.
        wanted: i64,
        /// How many it can have.
        available: usize,
    },
    /// The requests of a claim are for more devices than a claim can have, and the scheduler gives up on the
    /// pod.
    TooManyDevices {
        /// How many they are for, at least.
        wanted: usize,
        /// How many a claim can have.
        most: usize,
    },
    /// A selector does not select the device.
    NotSelected {
        /// Where the selector is.
        by: Origin,
        /// The CEL expression.
        expression: String,
    },
    /// A selector has no value for the device, and the scheduler gives up on the pod.
    SelectorFails {
        /// Where the selector is.
        by: Origin,
        /// The CEL expression.
        expression: String,
        /// The scheduler's message.
        why: String,
    },
    /// It is not known whether a selector selects the device.
    SelectorUnknown {
        /// Where the selector is.
        by: Origin,
        /// The CEL expression.
        expression: String,
        /// Why it cannot be evaluated.
        why: String,
    },
    /// The device has a taint that the request does not tolerate.
    Tainted {
        /// The taint's key.
        key: String,
        /// The taint's value, or nothing.
        value: String,
        /// `NoSchedule` or `NoExecute`.
        effect: String,
        /// The DeviceTaintRule that it is from; `None` if the slice has it.
        #[serde(skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
    },
    /// A claim has the whole device.
    Allocated {
        /// The claim.
        holder: Holder,
    },
    /// The request names a capacity that the device does not have.
    NoCapacity {
        /// The capacity.
        capacity: String,
    },
    /// No claim may have as much of a capacity as the request wants.
    NotGranted {
        /// The capacity.
        capacity: String,
        /// How much the request wants.
        wanted: Amount,
    },
    /// A capacity of the device has no meaning, and the scheduler gives up on the pod.
    CapacityFails {
        /// The capacity.
        capacity: String,
        /// What is wrong with it.
        why: String,
    },
    /// Less of a capacity is free than the request takes.
    Capacity {
        /// The capacity.
        capacity: String,
        /// How much the request takes.
        wanted: Amount,
        /// How much the device has.
        total: Amount,
        /// How much of that no claim has.
        free: Amount,
        /// Claims that have the rest, the first ones by name; none if all of it were not enough.
        holders: Vec<Holder>,
    },
    /// No address is free, and the request needs none: its claim asks for reserved ones.
    NeedsNoAddress {
        /// How many the device has.
        total: Amount,
    },
    /// The request asks for no bandwidth, and the ClaimNetwork gives its device only to those that do.
    BandwidthNotAsked,
    /// Other devices of the pool are in a use that excludes the device's.
    Excluded {
        /// These uses; none if the counters do not tell them.
        by: Vec<Use>,
    },
    /// An amount cannot be read here, so nothing is known that depends on it.
    AmountUnknown {
        /// What it is an amount of.
        of: String,
    },
    /// The claims of other namespaces could not be read. They may have what the request wants.
    ClaimsUnread,
    /// The node could not be read, so it is not known whether the pool's device is for it.
    PlacementUnknown {
        /// The pool.
        pool: String,
    },
    /// Slices of the device's pool have a field that is not judged here.
    DeviceUnknown {
        /// The field.
        field: String,
    },
    /// The node could not be read, so it is not known whether the claim is allocated for it.
    AllocationUnknown {
        /// The nodes that it is allocated for.
        nodes: String,
    },
    /// The claim is allocated, and not for this node.
    AllocatedElsewhere {
        /// The nodes that it is allocated for.
        nodes: String,
    },
    /// The node could not be read, so it is not known whether a device plugin there has the resource.
    PluginUnknown {
        /// The resource.
        resource: String,
    },
    /// Each request alone could be served, but not all of them together.
    NoCombination,
    /// Each request alone could be served, but together they take more than is free.
    Shortage {
        /// What they take too much of.
        lacks: Vec<Lack>,
    },
    /// Whether all requests can be served together was not found out within bounds.
    CombinationUnknown,
}

/// A capacity of a device that all requests together exceed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lack {
    /// The device.
    pub device: DeviceId,
    /// Its ClaimNetwork; `None` for a link's own device.
    pub network: Option<String>,
    /// The capacity.
    pub capacity: String,
    /// How much the requests take together.
    pub wanted: Amount,
    /// How much the device has.
    pub total: Amount,
    /// How much of that no claim has.
    pub free: Amount,
    /// Claims that have the rest, the first ones by name.
    pub holders: Vec<Holder>,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, free, .. } = self;
        let capacity = plain(&self.capacity);
        match &self.network {
            Some(network) => write!(f, "ClaimNetwork {network}: ")?,
            None => write!(f, "device {}: ", self.device.device)?,
        }
        if let Some(id) = attributes::id_of_segment(capacity) {
            write!(f, "its requests want segmentation id {id} {wanted} times, and one can have it")
        } else if is_counted(capacity) {
            let are = if *free == Amount(ONE) { "is" } else { "are" };
            write!(f, "needs {wanted} {capacity}, {free} of them {are} free")
        } else {
            write!(f, "needs {wanted} of {capacity}, {free} are free")
        }
    }
}

/// Where a selector is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// In this class.
    Class(String),
    /// In the request.
    Request,
}

/// A device in use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Use {
    /// What is in use, and how: `eth1 is used as ipvlan`.
    pub what: String,
    /// Who uses it, the first ones by name.
    pub holders: Vec<Holder>,
}

/// An amount of a capacity, in billionths of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub i128);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u64::try_from(self.0 / ONE) {
            Ok(whole) if self.0 % ONE == 0 => Quantity::new(whole).fmt(f),
            _ => (self.0 as f64 / ONE as f64).fmt(f),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Cause {
    /// Whether the scheduler gives up on the pod where it meets this, whatever other nodes have.
    pub fn stops_the_scheduler(&self) -> bool {
        matches!(
            self,
            Self::SelectorFails { .. }
                | Self::CapacityFails { .. }
                | Self::NoClass { .. }
                | Self::TooManyDevices { .. }
        )
    }

    /// The sentence without the claims that hold devices.
    pub fn brief(&self) -> Brief<'_> {
        Brief(self)
    }

    /// The claims that have what is wanted, each once.
    pub fn holders(&self) -> BTreeSet<&Holder> {
        match self {
            Self::Allocated { holder } => BTreeSet::from([holder]),
            Self::Capacity { holders, .. } => holders.iter().collect(),
            Self::Excluded { by } => by.iter().flat_map(|by| &by.holders).collect(),
            Self::Shortage { lacks } => lacks.iter().flat_map(|lack| &lack.holders).collect(),
            _ => BTreeSet::new(),
        }
    }

    /// Whether the device cannot serve the request, whatever claims hold.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            Self::NotSelected { .. }
            | Self::NoCapacity { .. }
            | Self::NotGranted { .. }
            | Self::BandwidthNotAsked => true,
            Self::Capacity { wanted, total, .. } => wanted > total,
            _ => false,
        }
    }

    /// Whether this is not an answer.
    pub fn is_unknown(&self) -> bool {
        matches!(
            self,
            Self::SelectorUnknown { .. }
                | Self::UnknownKind { .. }
                | Self::AmountUnknown { .. }
                | Self::ClaimsUnread
                | Self::PlacementUnknown { .. }
                | Self::DeviceUnknown { .. }
                | Self::AllocationUnknown { .. }
                | Self::PluginUnknown { .. }
                | Self::CombinationUnknown
        )
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.brief(), HeldBy(&self.holders()))
    }
}

/// A cause without the claims that hold devices.
#[derive(Debug, Clone, Copy)]
pub struct Brief<'a>(&'a Cause);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Cause::NoClass { class } => {
                write!(f, "there is no DeviceClass {class}: kubectl get deviceclasses lists those that exist")
            }
            Cause::UnknownKind { what } => write!(f, "not known, because the request has {what}"),
            Cause::NotPublished { driver } => {
                write!(f, "the node has no ResourceSlice of {driver}: no agent runs there, it has not published yet, or the node offers nothing")
            }
            Cause::PoolIncomplete { pool, slices, expected } => {
                write!(f, "pool {pool} is being updated: {slices} of its {expected} ResourceSlices are there")
            }
            Cause::PoolInvalid { pool, why } => write!(f, "the scheduler cannot use pool {pool}: {why}"),
            Cause::NetworkNotOffered { network } => write!(f, "the node does not offer ClaimNetwork {network}"),
            Cause::NothingSelected { class } => {
                write!(f, "class {class} and the request select no device of the node")
            }
            Cause::TooFew { wanted, available } => {
                write!(f, "the request wants {wanted} devices, and can have {available}: it gets none of them twice")
            }
            Cause::TooManyDevices { wanted, most } => {
                write!(f, "its requests are for {wanted} devices, and one claim can have {most}: use several claims")
            }
            Cause::NotSelected { by, expression } => write!(f, "{by} does not select it: {expression}"),
            Cause::SelectorFails { by, expression, why } => {
                write!(f, "{by} has no value for it, so the scheduler tries no further node: {why}, in {expression}")
            }
            Cause::SelectorUnknown { by, expression, why } => {
                write!(f, "not known whether {by} selects it: {why}, in {expression}")
            }
            Cause::Tainted { key, value, rule, .. } => {
                let equals = if value.is_empty() { "" } else { "=" };
                write!(f, "it takes no new pods: {key}{equals}{value}")?;
                match (rule, Reason::of_key(key)) {
                    (Some(rule), _) => write!(f, " (DeviceTaintRule {rule})"),
                    (None, Some(reason)) => write!(f, " ({})", reason.words()),
                    (None, None) => Ok(()),
                }
            }
            Cause::Allocated { .. } => f.write_str("it is held, and serves one claim at a time"),
            Cause::NoCapacity { capacity } => {
                write!(f, "it has no capacity {capacity}: claims must spell it as the device does")
            }
            Cause::NotGranted { capacity, wanted } => {
                write!(f, "{wanted} of {capacity} is not what one claim may have")
            }
            Cause::CapacityFails { capacity, why } => {
                write!(f, "its capacity {capacity} stops the scheduler: {why}")
            }
            Cause::Capacity { capacity, wanted, total, free, .. } => {
                write_capacity(f, plain(capacity), *wanted, *total, *free)
            }
            Cause::NeedsNoAddress { total } => write!(
                f,
                "0 of {total} addresses free, and a request with ips needs none of them: write capacity.requests.addresses: \"0\""
            ),
            Cause::BandwidthNotAsked => f.write_str(
                "the claim asks for no bandwidth, and only claims that do get it (spec.bandwidth.unrequested: Refuse): write \
                 capacity.requests.bandwidth, such as 1G",
            ),
            Cause::Excluded { by } if by.is_empty() => {
                f.write_str("other devices of its link are in a use that excludes it")
            }
            Cause::Excluded { by } => {
                let uses: BTreeSet<&str> = by.iter().map(|by| by.what.as_str()).collect();
                f.write_str(&Vec::from_iter(uses).join(", "))
            }
            Cause::AmountUnknown { of } => {
                write!(f, "not known whether enough is free: the amount of {of} cannot be read here")
            }
            Cause::ClaimsUnread => f.write_str(
                "not known whether enough is free: the claims of other namespaces could not be read",
            ),
            Cause::PlacementUnknown { pool } => {
                write!(f, "not known whether pool {pool} is for the node: the Node could not be read")
            }
            Cause::DeviceUnknown { field } => write!(
                f,
                "not known, because of its {field}: kubectl describe pod says what the scheduler makes of it"
            ),
            Cause::AllocationUnknown { nodes } => write!(
                f,
                "not known whether the node is one that the claim is allocated for ({nodes}): the Node could not be read"
            ),
            Cause::PluginUnknown { resource } => write!(
                f,
                "not known whether a device plugin of the node has {resource}: the Node could not be read"
            ),
            Cause::AllocatedElsewhere { nodes } => write!(f, "the claim is allocated for {nodes}"),
            Cause::NoCombination => f.write_str(
                "each request alone can be served, but no combination of devices serves all of them with their constraints",
            ),
            Cause::Shortage { lacks } => {
                let lacks: Vec<String> = lacks.iter().map(Lack::to_string).collect();
                f.write_str(&lacks.join(", "))
            }
            Cause::CombinationUnknown => f.write_str(
                "each request alone can be served; could not determine whether all of them can be served together",
            ),
        }
    }
}

fn write_capacity(
    f: &mut fmt::Formatter<'_>,
    capacity: &str,
    wanted: Amount,
    total: Amount,
    free: Amount,
) -> fmt::Result {
    if let Some(id) = attributes::id_of_segment(capacity) {
        write!(f, "segmentation id {id} is taken")
    } else if wanted > total {
        write!(f, "{capacity}: {wanted} wanted, but there are {total} in all")
    } else if is_counted(capacity) && wanted == Amount(ONE) {
        write!(f, "{free} of {total} {capacity} free")
    } else {
        write!(f, "{capacity}: {wanted} wanted, {free} of {total} free")
    }
}

/// Whether people say "6 of them".
fn is_counted(capacity: &str) -> bool {
    [attributes::ADDRESSES, attributes::INTERFACES, attributes::SEGMENTS].contains(&capacity)
}

/// The name of a capacity without a domain.
fn plain(capacity: &str) -> &str {
    capacity.rsplit_once('/').map_or(capacity, |(_, name)| name)
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(class) => write!(f, "class {class}"),
            Self::Request => f.write_str("the request's selector"),
        }
    }
}

/// `; held by claim a/b (pod a/c) and others`, or nothing without holders.
#[derive(Debug, Clone, Copy)]
pub struct HeldBy<'a>(pub &'a BTreeSet<&'a Holder>);

impl fmt::Display for HeldBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A ClaimNetwork may have hundreds of claims: the first ones are enough to act on.
        let shown = self.0.iter().take(SHOWN);
        for (i, holder) in shown.enumerate() {
            let separator = if i == 0 { "; held by" } else { "," };
            write!(f, "{separator} {holder}")?;
        }
        if self.0.len() > SHOWN { f.write_str(" and others") } else { Ok(()) }
    }
}

/// The most holders that a sentence names.
const SHOWN: usize = 3;
