//! The agent's parent: serves the kubelet's sockets, and starts the agent again when it dies.
//!
//! ```text
//!   kubelet ──> kubelet sockets ──> relay ──> agent socket of the agent that owns the node's journal
//!                 parent (PID 1 of the container) ── starts, waits, starts again ──> its own agent
//!   container runtime ── NRI ──> runtime relay ──> its own agent
//! ```
//!
//! The kubelet's calls wait here while there is no agent: after a refused or dropped call the kubelet retries
//! only after 60 to 90 s. During a rolling update the parent's own agent stands by until the other node agent
//! ends.
//!
//! The connection to the container runtime is the parent's, so that an agent that starts again does not
//! connect.
//!
//! The parent is a program of its own (`src/bin/netclaim-parent.rs`), which has nothing of the agent's
//! clients and plugins. It has one thread and no network, so that little can kill it. It adopts the processes
//! that its agent leaves running, and ends them before it unlocks the journal, whose lock it shares with its
//! agent.
//!
//! | module | what it does |
//! |---|---|
//! | `supervisor` | starts and restarts the agent |
//! | `restarts` | decides when to restart and when to give up; pure |
//! | `agent_process` | a running agent, and how it ended |
//! | `leftovers` | ends the processes that an agent has left running |
//! | `turn` | the agent's turn: it stands by until it has the journal |
//! | `kubelet_sockets` | the registration and DRA sockets |
//! | `runtime_relay` | the connection to the container runtime, whose events it passes on to the agent |
//! | `sandboxes` | the node's sandboxes, and what the agent has heard of them; pure |
//! | `relay`, `agent_socket`, `wire` | the parent's end, the agent's end and the messages of the kubelet's calls |

mod agent_process;
pub(crate) mod agent_socket;
mod kubelet_sockets;
pub(crate) mod leftovers;
mod relay;
mod restarts;
mod runtime_relay;
mod sandboxes;
mod supervisor;
pub(crate) mod turn;
mod wire;

pub(crate) use agent_process::{FIT, STARTS};
pub(crate) use runtime_relay::IDENTITY;
pub(crate) use supervisor::start;
