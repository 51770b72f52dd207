//! NodePrepareResources and NodeUnprepareResources: from the kubelet's claim to journalled plans, and back.
//!
//! `call` does the work and waits for what may pass; `revise` plans anew before an ADD; `leases` makes sure of addresses that claims ask for; `claim`, `plan`,
//! `addresses`, `exclusion` and `node_selector` are pure.

pub mod addresses;
pub mod call;
pub mod claim;
pub mod error;
pub mod exclusion;
pub mod handover;
pub mod leases;
pub mod node_selector;
pub mod plan;
pub mod revise;
