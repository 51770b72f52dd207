//! The links of a node: reads them, decides which are uplinks, and restores those that pods had.
//!
//! ```text
//!   kernel ──> netlink ─┐
//!                       ├──> LinkWatch ──> Snapshot ──> classify: uplink or not, and why
//!   sysfs ──────────────┤
//!                       └──> Links ──> moved links: note, make ready, give back
//! ```
//!
//! * A [`LinkWatch`] keeps a [`Snapshot`] by the kernel's messages, and says when readers see a change.
//! * [`classify`] decides which links pods may be attached to. It is a pure function of a snapshot.
//! * [`Netns`] pins a pod's network namespace and runs work inside it. It has new interfaces announce their
//!   addresses, and ignore router advertisements. It finds out whether other hosts have their addresses. It
//!   copies the frames of an interface for whoever looks into them.
//! * [`Ping`] is what agents send each other to find out what the network between two links passes.
//! * [`HostLink`] is a host link as it was before it was moved into a pod. Restoring these is the only thing
//!   here that changes links of the host.
//!
//! Invariant: only new threads enter another network namespace, and they run nothing else afterwards.

mod address;
mod capture;
mod counters;
mod error;
mod link;
mod moved;
mod netlink;
mod netns;
mod on_the_wire;
mod packets;
mod ping;
mod probe;
mod read;
mod snapshot;
mod sysfs;
mod table;
mod uplinks;
mod watch;

pub use address::{Address, LinkAddress};
pub use capture::{Capture, MAX_SNAPLEN};
pub use counters::{Counters, Passed};
pub use error::Error;
pub use link::{Link, OperState};
pub use moved::{GivenBack, HostLink, Which};
pub use netns::{Netns, NetnsId};
pub use ping::{Heard, Ping, Pinged};
pub use probe::InUse;
pub use read::Links;
pub use snapshot::Snapshot;
pub use uplinks::{NodeTraffic, NotUplink, Relation, Traffic, classify, leads_out};
pub use watch::LinkWatch;

/// What fuzz targets reach, see [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    pub(crate) use super::ping::Run;
    pub(crate) use super::probe::neighbour_in;
}
