//! Takes the address pools of whereabouts over, with the addresses that pods have of them.
//!
//! ```text
//!   Objects ── plan (pure) ──> Takeover ──> cluster::apply
//!     NetworkAttachmentDefinition, IPPool,         per pool: addresses of the ClaimNetworks, an AddressPool
//!     OverlappingRangeIPReservation,               if several share it, an AddressLease for each address
//!     NodeSlicePool, Pod                           in use, orphans, and problems that stop it
//! ```
//!
//! Invariants:
//! * An address that whereabouts or a pod's `network-status` says is in use is leased, excluded or reported
//!   (as an orphan, or by an [`Unclaimed`] pool); or its pool is stopped.
//! * Nothing that is dropped is dropped silently: [`Note`] names object, field and reason.
//! * The leases are created before anything that lets nodes lease blocks.
//!
//! Whereabouts goes on handing out addresses of a range until its NetworkAttachmentDefinitions exclude it or
//! are gone. The caller stops it first, and then reads.
//!
//! The formats are those of whereabouts 3a262bd (June 2026): `pkg/types/types.go` and `pkg/config/config.go`
//! for the `ipam` object, `pkg/api/whereabouts.cni.cncf.io/v1alpha1` for the objects,
//! `pkg/storage/kubernetes/ipam.go` for their names.

mod arithmetic;
mod cluster;
mod ipam;
mod objects;
mod plan;
mod report;

#[cfg(test)]
mod tests;

pub use cluster::{Applied, ApplyError, apply};
pub use ipam::{Fixed, Ipam, IpamRoute, Range};
pub use objects::{
    Allocation, DecodeError, IpPool, Nad, NodeSlice, NodeSlicePool, ObjectRef, Objects, Pod, Reservation,
    default_network,
};
pub use plan::{Orphans, plan};
pub use report::{
    NetworkAddressing, Note, Orphan, PoolTakeover, Problem, SharedPool, Takeover, Unclaimed, UnclaimedReason,
};
