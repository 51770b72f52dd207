//! What happens on a node, without Kubernetes.
//!
//! ```text
//!   nri ──> sandboxes ──┐
//!                       ├──> attach ──> cni ──> plugins
//!   plans ──────────────┘      │
//!                           journal            links ──> what there is to attach to
//! ```
//!
//! * [`attach`] owns the life of an attachment: plan, journal, state machine, one task per pod.
//! * [`cni`] runs CNI plugins and knows nothing of the rest.
//! * [`links`] reads the node's links and pins network namespaces.
//! * [`nri`] hears from the container runtime about pods' sandboxes.
//!
//! Invariant: no module here knows an API server, a kubelet or a claim's fields.

pub mod attach;
pub mod failpoint;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod links;
pub mod nri;
