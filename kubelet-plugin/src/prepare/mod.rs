//! NodePrepareResources and NodeUnprepareResources: from the kubelet's claim to journalled plans, and back.
//!
//! `call` does the work and waits for what may pass; `revise` plans again before an ADD; `dry_run` plans for
//! people who ask, and changes nothing; `claim`, `offered`, `plan`, `finalize`, `exclusion` and
//! `node_selector` are pure.

pub(crate) mod call;
pub(crate) mod claim;
pub(crate) mod default_route;
mod dry_run;
mod error;
pub(crate) mod exclusion;
mod finalize;
pub(crate) mod handover;
pub(crate) mod metrics;
pub(crate) mod node_selector;
mod offered;
pub(crate) mod plan;
pub(crate) mod revise;
