//! The node agent: a DRA driver for the kubelet, an NRI plugin for the container runtime, and a gate for
//! containers.
//!
//! ```text
//!  kubelet ── dra ──> prepare ───────────────┐                    ┌──> gate (CDI spec, marker, hook's socket)
//!                                            ├──> driver::attach ─┤
//!  runtime ── nri ──> sandbox up, gone ──────┘                    └──> reports (claim's status.devices, events)
//!
//!  netlink, ClaimNetworks, UplinkPolicies ──> inventory ──> devices ──> ResourceSlices
//! ```
//!
//! | room | what it does | may touch |
//! |---|---|---|
//! | `agent` | takes over from the last agent, starts the parts in order, ends them; programs on the host, metrics, probes | everything |
//! | `parent` | another program: restarts the agent when it dies, serves the kubelet for the agent that has the journal, and passes the runtime's events on | the kubelet's sockets, NRI, the agent's process |
//! | `args` | the flags | nothing |
//! | `dra` | translates the kubelet's gRPC | nothing |
//! | `prepare` | from a claim to journalled plans, and back | the API server (reads one claim), `driver::attach` |
//! | `questions` | answers what people ask of the node, and asks it | a socket |
//! | `capture` | copies what passes through an attachment, where the admin allows it | a socket, pods' network namespaces |
//! | `hot_attach` | attaches pods that run, and detaches them | the API server (NetworkAttachments), `prepare` |
//! | `history` | notes who was attached with which addresses, and when | files in the run directory |
//! | `addresses` | which addresses an attachment gets; says how many the node needs, and gives back blocks | the API server (AddressLeases, AddressBlocks), leases of `host-local` |
//! | `inventory` | what the node has: links, ClaimNetworks, policies | netlink, watches |
//! | `devices` | the devices that are published, their health, and the labels of the Node | the API server (slices, the Node's labels), CNI plugins (STATUS) |
//! | `gate` | holds containers until their networks are attached | CDI specs, markers, the hook's socket |
//! | `runtime` | follows sandboxes and the connection to the runtime | NRI |
//! | `sweep` | corrects what no event reports | CNI plugins (GC, CHECK) |
//! | `repair` | makes attachments again that have broken | `driver::attach` |
//! | `reports` | the claim's status, events, and the spans of its trace | the API server |
//! | `traffic` | measures what attachments receive and send, when asked or scraped | pods' network namespaces |
//! | `ping` | sends probes to other nodes and hears theirs, when asked | packet sockets on uplinks and in pods' network namespaces |
//! | `pods` | for whom attachments are made; the node's pods as the API server and the kubelet know them | the API server (reads pods), the kubelet's Pods API |
//! | `waking` | wakes pods that wait for the kubelet's next look | the API server (reads claims, patches one annotation of pods) |
//!
//! Invariants:
//! * No container that names a claim starts before all of its pod's attachments are made, with the agent
//!   alive or dead.
//! * NodeUnprepareResources succeeds only after every DEL that is owed.
//! * The API server is never on a pod's path after NodePrepareResources.

pub mod addresses;
mod agent;
mod args;
pub mod capture;
mod devices;
mod dra;
#[cfg(test)]
mod fixtures;
mod gate;
mod guarantee;
mod history;
mod hot_attach;
mod inventory;
mod json_lines;
mod node_networks;
mod parent;
mod ping;
mod pods;
mod prepare;
pub mod questions;
mod repair;
mod reports;
mod runtime;
mod sweep;
mod traffic;
mod waking;

use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use anyhow::Context as _;
use netclaim_process::traces::{Counters, Service, Traces};

pub use args::Args;

/// Returns what the agent's metrics are.
pub fn metrics() -> Vec<netclaim_process::metrics::Description> {
    agent::metrics::Metrics::new(Counters::default()).registry.descriptions().to_vec()
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
/// The setup that failed, or the part of the agent that ended.
pub fn run_agent(args: Args, traces: Option<Traces>) -> anyhow::Result<ExitCode> {
    if std::env::var_os(parent::STARTS).is_some() {
        return agent::run::start(args, traces);
    }
    let program = std::env::current_exe()?.with_file_name("netclaim-parent");
    let error = std::process::Command::new(&program).args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("cannot become the agent's parent {}", program.display()))
}

/// Runs the agent's parent, or reports whether it has registered with the kubelet.
///
/// # Errors
/// The setup that failed.
pub fn run_parent(args: &Args) -> anyhow::Result<ExitCode> {
    if args.is_started {
        return Ok(if args.started_note().exists() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    parent::start(args)
}
