//! The container runtime's side: sandboxes that come and go, and a sweep for what no event reports.

pub mod connection;
pub mod nri_events;
pub mod pods;
pub mod sandboxes;
pub mod sweep;
