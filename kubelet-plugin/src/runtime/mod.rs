//! The container runtime's side: sandboxes that come and go.

pub(crate) mod connection;
pub(crate) mod metrics;
pub(crate) mod nri_events;
pub(crate) mod primary;
pub(crate) mod sandboxes;
pub(crate) mod tasks;
