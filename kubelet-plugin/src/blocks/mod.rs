//! The node's blocks of addresses: says how many it needs, and gives back those that it does not.
//!
//! | module | what it does |
//! |---|---|
//! | `demand` | decides what to report and what to give back; pure, and public for tests with thousands of simulated nodes |
//! | `keeper` | counts what attachments have, and writes to AddressBlocks |
//!
//! Nothing here is on a pod's path, and a node whose number of pods stays about the same writes nothing.

pub mod demand;
pub(crate) mod keeper;
