//! The container runtime's side: sandboxes that come and go, the agent's readiness, which needs the connection, and a sweep for
//! what no event reports.

pub mod connection;
pub mod nri_events;
pub mod readiness;
pub mod sandboxes;
pub mod sweep;
pub mod tasks;
