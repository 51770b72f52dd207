//! The node agent: a DRA driver for the kubelet, a plugin for the container runtime, a gate for containers.
//!
//! ```text
//!  kubelet ── dra ──> node ──> claim, plan ──┐                    ┌──> gate (CDI spec, marker, hook's socket)
//!                                            ├──> driver::attach ─┤
//!  runtime ── nri ──> sandbox up, gone ──────┘                    └──> status (claim's status.devices, events)
//!
//!  netlink, Networks, UplinkPolicies ── watching ──> inventory ── devices ──> ResourceSlices
//! ```
//!
//! * `claim`, `plan`, `devices`, `exclusion`, `inventory`, `node_selector`, `policies`, `strangers`, `uplinks` and
//!   `metadata` are pure: from values to values.
//! * `dra`, `nri`, `gate`, `status`, `server`, `watching`, `providers`, `pods` and `http` each talk to one outside world.
//! * `handover` gives a claim that pods share by its name to the next pod, which the kubelet does not tell of.
//! * `sweep` looks after what nobody tells about; `availability` after what Networks need of the node's CNI plugins.
//! * `agent` puts them together and is the only module that knows all of them.
//! * `parent` is another process: it starts the agent again when it dies, and talks to the kubelet (`dra`, `front`) for
//!   whichever agent works (`relay`). What an agent leaves running is ended before the next one works (`leftovers`).
//!
//! Invariants:
//! * No container that names a claim starts before all of its pod's attachments are made, with us alive or dead.
//! * NodeUnprepareResources succeeds only when every DEL that is owed has.
//! * The API server is never on a pod's path after NodePrepareResources.

mod addresses;
mod agent;
mod args;
mod availability;
mod claim;
mod container;
mod devices;
mod dra;
mod exclusion;
mod files;
#[cfg(test)]
mod fixtures;
mod front;
mod gate;
mod handover;
mod health;
mod http;
mod inventory;
mod leftovers;
mod memory;
mod metadata;
mod metrics;
mod node;
mod node_selector;
mod nri;
mod parent;
mod plan;
mod pods;
mod policies;
mod providers;
mod publishing;
mod relay;
mod sandboxes;
mod server;
mod sockets;
mod status;
mod stop;
mod strangers;
mod sweep;
mod uplinks;
mod watching;

use std::process::ExitCode;

pub use args::Args;

/// Runs the agent, and its parent first unless it has one.
///
/// # Errors
/// What could not be set up, or which part of the agent ended.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.is_started {
        return Ok(if args.started_note().exists() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    match std::env::var_os(parent::STARTS) {
        Some(_) => agent::start(args),
        None => parent::start(&args),
    }
}
