//! Limits the bandwidth of an interface of a container from inside its network namespace: what the CNI plugin
//! `netclaim-bandwidth` does, for programs that change limits while the container runs.
//!
//! ```text
//!   egress:   process ──> net1: qdisc tbf ──> wire
//!   ingress:  wire ──> net1: qdisc ingress, filter ──> ifb device: qdisc tbf ──> process
//! ```
//!
//! The name of the `ifb` device is derived from the interface's name; its alias names the interface.
//!
//! # Limitations
//! * A container with CAP_NET_ADMIN can remove the qdiscs, or add an interface without limits. CHECK detects
//!   the first, nothing prevents it. Containers do not have CAP_NET_ADMIN by default.
//! * Received traffic has already crossed the wire when it waits or is dropped here: senders slow down only
//!   if the protocol does (TCP, QUIC).
//! * `ipvlan` in mode `l3s` passes received packets around the ingress hook: ingress is not limited there.
//! * Sockets that bypass the kernel's network stack (AF_XDP without copying, DPDK, RDMA) bypass its qdiscs,
//!   too.
#![forbid(unsafe_code)]

mod interface;
mod limits;
mod messages;

pub use interface::{Interface, remove_limits};
pub use limits::{Limit, Limits};
pub use netclaim_plugin::Failure;

use messages::Owner;

/// Gives an interface of the calling thread's network namespace its share of a link: these limits and no
/// others, instead of those of the plugin, whose CHECK accepts lower rates then. No packet that waits is lost
/// where only rates differ. An interface that is gone has no limits.
///
/// # Errors
/// What the kernel refused, and which module it may lack.
pub fn share(interface: &str, limits: &Limits) -> Result<(), Failure> {
    adjust(interface, limits, Owner::Sharer)
}

/// Gives an interface the limits that the plugin has made, or none.
///
/// # Errors
/// As of [`share`].
pub fn restore(interface: &str, limits: &Limits) -> Result<(), Failure> {
    adjust(interface, limits, Owner::Plugin)
}

fn adjust(interface: &str, limits: &Limits, owner: Owner) -> Result<(), Failure> {
    match Interface::find(interface)? {
        Some(mut interface) => interface.adjust(limits, owner),
        None => Ok(()),
    }
}
