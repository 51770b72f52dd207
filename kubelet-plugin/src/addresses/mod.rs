//! The node's addresses: which of them an attachment gets, and how many blocks of them the node has.
//!
//! | module | what it does |
//! |---|---|
//! | `plan` | chooses the addresses of an attachment, and says whether it may keep them; pure |
//! | `leases` | makes sure of addresses that claims ask for, by AddressLeases |
//! | `reservations` | reads what `host-local` has handed out |
//! | `wanted` | decides what to report and what to give back; pure, and public for tests with thousands of simulated nodes |
//! | `keeper` | counts what attachments have, and writes to AddressBlocks |
//! | `door` | lets the model of the whole (`tests/model`) in; nothing else uses it |
//!
//! `wanted` and `keeper` are not on a pod's path, and a node whose number of pods stays about the same writes
//! nothing.

#[doc(hidden)]
pub mod door;
pub(crate) mod error;
pub(crate) mod keeper;
pub(crate) mod leases;
pub(crate) mod metrics;
pub(crate) mod plan;
pub(crate) mod reservations;
pub mod wanted;
