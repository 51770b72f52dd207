//! The container runtime's side: sandboxes that come and go, the agent's readiness, which needs the connection, and a sweep for
//! what no event reports.

pub(crate) mod connection;
pub(crate) mod nri_events;
pub(crate) mod readiness;
pub(crate) mod sandboxes;
pub(crate) mod sweep;
pub(crate) mod tasks;
