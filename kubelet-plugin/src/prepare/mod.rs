//! NodePrepareResources and NodeUnprepareResources: from the kubelet's claim to journalled plans, and back.
//!
//! `call` does the work and waits for what may pass; `claim`, `plan`, `exclusion` and `node_selector` are pure.

pub mod call;
pub mod claim;
pub mod exclusion;
pub mod handover;
pub mod node_selector;
pub mod plan;
