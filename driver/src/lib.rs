//! Attaches pods to networks on a node, without Kubernetes.
//!
//! ```text
//!   sandboxes ──┐
//!               ├──> attach ──> netclaim_cni ──> plugins
//!   plans ──────┘      │
//!                   journal                    links ──> uplinks, and links that pods had
//! ```
//!
//! * [`attach`] owns the life of an attachment: plan, journal, state machine, one task per pod.
//! * [`links`] reads the node's links, moves them back, and pins network namespaces.
//!
//! Invariant: no module knows an API server, a kubelet, a claim or netclaim's API. What an attachment is for
//! is an opaque [`attach::Owner`].

pub mod attach;
pub mod failpoint;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod links;
