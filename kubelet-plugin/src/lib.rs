//! The node agent: a DRA driver for the kubelet, an NRI plugin for the container runtime, and a gate for containers.
//!
//! ```text
//!  kubelet ── dra ──> prepare ───────────────┐                    ┌──> gate (CDI spec, marker, hook's socket)
//!                                            ├──> driver::attach ─┤
//!  runtime ── nri ──> sandbox up, gone ──────┘                    └──> status (claim's status.devices, events)
//!
//!  netlink, ClaimNetworks, UplinkPolicies ──> inventory ──> devices ──> ResourceSlices
//! ```
//!
//! | room | what it does | may touch |
//! |---|---|---|
//! | `run` | takes over from the last agent, starts the parts in order, ends them | everything |
//! | `agent` | what the parts share, and how each is started | everything |
//! | `parent` | another program: restarts the agent when it dies, serves the kubelet for the agent that has the journal, and passes the runtime's events on | the kubelet's sockets, NRI, the agent's process |
//! | `dra` | translates the kubelet's gRPC | nothing |
//! | `prepare` | from a claim to journalled plans, and back | the API server (reads one claim, AddressLeases), `driver::attach` |
//! | `inventory` | what the node has: links, ClaimNetworks, policies | netlink, watches |
//! | `devices` | the devices that are published, and their health | the API server (slices), CNI plugins (STATUS) |
//! | `blocks` | says how many addresses the node needs, and gives back blocks | the API server (AddressBlocks), leases of `host-local` |
//! | `gate` | holds containers until their networks are attached | CDI specs, markers, the hook's socket |
//! | `runtime` | follows sandboxes and the connection to the runtime; sweeps what no event reports | NRI |
//! | `status` | reports in the claim's status and in events | the API server |
//! | `spans` | the spans of a claim's trace, from the kubelet's call to the written status | nothing |
//! | `waking` | wakes pods that wait for the kubelet's next look | the API server (reads claims, patches one annotation of pods) |
//! | `process` | arguments, programs, metrics, memory | the process |
//! | `owner`, `pods` | for whom attachments are made; the node's pods as the API server and the kubelet know them | the API server (reads pods), the kubelet's Pods API |
//!
//! Invariants:
//! * No container that names a claim starts before all of its pod's attachments are made, with the agent alive or dead.
//! * NodeUnprepareResources succeeds only after every DEL that is owed.
//! * The API server is never on a pod's path after NodePrepareResources.

mod agent;
pub mod blocks;
mod devices;
#[doc(hidden)]
pub mod door;
mod dra;
#[cfg(test)]
mod fixtures;
mod gate;
mod inventory;
mod node_labels;
mod owner;
mod parent;
mod pods;
mod prepare;
mod process;
mod run;
mod runtime;
mod spans;
mod status;
mod waking;

use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use anyhow::Context as _;
use netclaim_process::traces::{Service, Traces};

pub use process::args::Args;

/// Returns what the agent's metrics are.
pub fn metrics() -> Vec<netclaim_process::metrics::Description> {
    process::metrics::Metrics::default().registry().descriptions().to_vec()
}

/// Returns what the agent is called in traces.
pub fn service(args: &Args) -> Service {
    let mut attributes = vec![("k8s.node.name", args.node_name.clone())];
    attributes.extend(args.instance.clone().map(|instance| ("service.instance.id", instance)));
    Service { name: "netclaim-agent", version: env!("CARGO_PKG_VERSION"), attributes }
}

/// Runs the agent, with traces if they are wanted. Without a parent, the process becomes the agent's parent.
///
/// # Errors
/// What could not be set up, or which part of the agent ended.
pub fn run_agent(args: Args, traces: Option<Traces>) -> anyhow::Result<ExitCode> {
    if std::env::var_os(parent::STARTS).is_some() {
        return run::start(args, traces);
    }
    let program = std::env::current_exe()?.with_file_name("netclaim-parent");
    let error = std::process::Command::new(&program).args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("cannot become the agent's parent {}", program.display()))
}

/// Runs the agent's parent, or reports whether it has registered with the kubelet.
///
/// # Errors
/// What could not be set up.
pub fn run_parent(args: &Args) -> anyhow::Result<ExitCode> {
    if args.is_started {
        return Ok(if args.started_note().exists() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    parent::start(args)
}
