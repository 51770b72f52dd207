//! Pods that do not run yet: who waits for what, and why.

pub(crate) mod asked_networks;
pub(crate) mod explaining;
pub(crate) mod read;
pub(crate) mod waiting;
