//! Networks that a pod gets while it runs (NetworkAttachment).
//!
//! ```text
//!   NetworkAttachments ──────────────┐
//!   pods of their namespaces ────────┼─> machine: one step ──> claims and probe pods in our own namespace
//!   our claims and probe pods ───────┤                    └──> status, events, finalizers
//!   agents and Nodes, every 15 s ────┤
//!   reconciler ── devices to leave ──┘
//! ```
//!
//! The scheduler allocates for pods only. So the controller creates a pod that names the claim, a *probe*,
//! and an admission policy refuses to bind it to its node. The scheduler has written the allocation by then.
//! Nothing else may allocate: it would race with the scheduler, which keeps its own books.

mod keeper;
mod machine;
mod objects;

pub(crate) use self::keeper::{HotAttach, run};
