//! Says why the scheduler can or cannot allocate a pod's claims on a node.
//!
//! The scheduler says of a pod that waits only "cannot allocate all claims". This crate judges the same
//! objects by the same rules (`k8s.io/dynamic-resource-allocation/structured`, Kubernetes 1.37) and returns
//! the reasons:
//!
//! ```text
//!   claims, classes ──> Question ──┐
//!   all claims ───────> Holdings ──┼──> one NodeVerdict for each node: its requests ──> Reasons with a Cause
//!   a node, its slices, rules ─────┘              │                         └──> devices ──> Causes
//!                                                 └──> one Judgement of all nodes, in groups with the same cause
//! ```
//!
//! Invariants:
//! * Nothing here does IO, and nothing is decided: the scheduler allocates.
//! * Nodes are judged one by one, so that 5,000 nodes need not be in memory.
//! * What cannot be known is [`Answer::Unknown`], never a guess.
//! * A [`Cause`] is a type; its `Display` is the sentence for users.
//!
//! `tests/scheduler.rs` holds the answers against the scheduler's own tables, which come with its Go module.

mod capacity;
mod cause;
mod combination;
mod holdings;
mod judge;
mod judgement;
mod limits;
mod node_selector;
mod pool;
mod request;
pub mod selector;
pub mod taint_rules;

pub use cause::{Amount, Brief, Cause, HeldBy, Lack, Origin, Use};
pub use holdings::{DeviceId, Holder, Holdings};
pub use judge::{Answer, DeviceVerdict, NodeVerdict, Question, Reason, RequestVerdict};
pub use judgement::{Effort, Group, JudgedNode, Judgement, Needed, Outlook, World, counted, nodes_in_words};
pub use limits::{Limits, class_named_by, extended_resources, is_extended, serves};
pub use node_selector::{KnownNode, NO_EXECUTE, Unfit, unfit};
pub use request::{RequestName, tolerates};

#[cfg(test)]
mod tests;
