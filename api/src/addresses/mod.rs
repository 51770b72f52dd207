//! Addresses that the nodes of a cluster share: pools, the blocks of them that nodes lease, and leases of
//! single addresses.
//!
//! ```text
//!   ClaimNetwork.spec.addresses, or an AddressPool
//!     subnet 10.20.0.0/24
//!     ├── gateway, exclude            never handed out
//!     ├── reserved                    one AddressLease for each address that a claim asks for
//!     └── the rest, cut into blocks   one AddressBlock for each block that a node has
//!           10.20.0.16/28 -> node a, from which the agent there hands out addresses
//! ```
//!
//! Invariants:
//! * The name of a block or lease is made from its pool and its addresses, so that creating the object is the
//!   lock.
//! * A block belongs to one ClaimNetwork on one node, whose agent alone hands out its addresses.
//! * All blocks of one subnet have one size, so that two of different names have no address in common.

use std::time::Duration;

mod block;
pub mod choice;
mod lease;
mod pool;
mod span;
pub mod spans;

#[cfg(feature = "crd")]
pub use block::AddressBlock;
pub use block::{
    AddressBlockSpec, AddressBlockStatus, BLOCK_FINALIZER, BlockHolder, MAX_BLOCK_RANGES, MAX_WANTED,
    block_name,
};
#[cfg(feature = "crd")]
pub use lease::AddressLease;
pub use lease::{
    AddressLeaseSpec, AddressLeaseStatus, CONFIRMED_LABEL, Holder, HolderKind, Leased, lease_name,
};
#[cfg(feature = "crd")]
pub use pool::AddressPool;
pub use pool::{
    AddressPoolSpec, AddressPoolStatus, AddressRange, AddressTotals, BlockSize, NetworkAddresses, PoolKey,
    Route,
};
pub use span::{Family, Span, before, nth_after, overlap};

/// By default, how long a Node object must be gone before other nodes may get its blocks. A node that has not
/// heard of its blocks for half of that time hands out no addresses.
pub const NODE_GONE_AFTER: Duration = Duration::from_secs(600);
