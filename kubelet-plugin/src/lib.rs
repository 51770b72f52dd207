//! The node agent: a DRA driver for the kubelet, a plugin for the container runtime, a gate for containers.
//!
//! ```text
//!  kubelet ── dra ──> node ──> claim, plan ──┐                    ┌──> gate (CDI spec, marker, hook's socket)
//!                                            ├──> driver::attach ─┤
//!  runtime ── nri ──> sandbox up, gone ──────┘                    └──> status (claim's status.devices, events)
//!
//!  netlink, Networks, node labels ── watching ──> inventory ── devices ──> ResourceSlices
//! ```
//!
//! * `claim`, `plan`, `devices` and `inventory` are pure: from values to values.
//! * `dra`, `nri`, `gate`, `status`, `watching` and `http` each talk to one outside world.
//! * `agent` puts them together and is the only module that knows all of them.
//!
//! Invariants:
//! * No container that names a claim starts before all of its pod's attachments are made, with us alive or dead.
//! * NodeUnprepareResources succeeds only when every DEL that is owed has.
//! * The API server is never on a pod's path after NodePrepareResources.

mod addresses;
mod agent;
mod args;
mod claim;
mod container;
mod devices;
mod dra;
#[cfg(test)]
mod fixtures;
mod gate;
mod http;
mod inventory;
mod metrics;
mod node;
mod nri;
mod plan;
mod publishing;
mod status;
mod watching;

pub use agent::run;
pub use args::Args;
