//! Pods that do not run yet: where they wait for addresses, and why they have no node.
//!
//! ```text
//!                 ┌─> awaiting_addresses: where pods wait ──> addresses
//!   Pods ── watch ┤     └─ asked_networks ─┬─ read ──> claims, classes, slices
//!                 └─> explaining ──────────┘
//!                       └─> events of pods; what nodes need for them ──> addresses
//! ```

mod asked_networks;
mod awaiting_addresses;
pub(crate) mod explaining;
mod read;
mod waiting;
pub(crate) mod watch;

pub(crate) use self::awaiting_addresses::{AwaitingAddresses, Places};
