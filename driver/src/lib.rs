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
pub mod cni;
pub mod dir_changes;
mod durable;
pub mod failpoint;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod links;
pub mod nri;

/// Bytes as people and file names have them, two digits each.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An error with all its causes in one line, for people: `what failed: why: and why that`.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |chain, cause| format!("{chain}: {cause}"))
}
