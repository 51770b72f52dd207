//! Reports the result of attachments: in the claim's `status.devices`, by events, in the spans of its trace,
//! in the readiness gate of pods that name it, and in the annotation by which programs made for Multus learn
//! it, if that is switched on.
//!
//! The claim's status is written by one server-side apply per change, retried until it is written or the
//! claim is gone, and never on a pod's path. Each apply has all of our entries, because the API server
//! removes those left out (KEP-4817).

mod annotations;
mod cut_off;
mod entries;
mod events;
mod gate;
pub(crate) mod metrics;
mod network_status;
mod pod_writes;
pub(crate) mod spans;
mod writer;

pub(crate) use cut_off::report_cut_off;
pub(crate) use entries::network_data;
pub(crate) use events::Events;
pub(crate) use writer::{FailedAdd, METADATA_ONLY, Refusal, StatusWriter, Update};

/// Returns the time as objects have it: RFC 3339, in seconds.
pub(crate) fn now() -> String {
    k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
