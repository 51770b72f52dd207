//! Networks that pods get while they run, and lose again: carries out the NetworkAttachments of the node.
//!
//! ```text
//!   NetworkAttachments with status.node ──> wanted (pure) ──> one task each ──> prepare ──> journal
//!                                                                 │                            │
//!            condition Attached, interfaces <── report (pure) ────┴────── state of the pod <───┘
//! ```
//!
//! Such an attachment is a record like any other, with the same checks, retries and DELs. Only what begins
//! and ends it is different: the object, by its condition `Allocated`, instead of the kubelet. What the
//! driver does differently for it follows from [`Owner::hot`](netclaim_driver::attach::Owner::hot).

mod keeper;
mod report;
mod wanted;

pub(crate) use keeper::Keeper;
