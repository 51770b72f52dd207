//! What the agent and the controller share as programs that run until they are stopped.
//!
//! ```text
//!   Prometheus, kubelet ──> http ────────┐
//!   SIGTERM, SIGINT ──────> Stop ────────┼── the program
//!   API server <─────────── kubernetes ──┤
//!   reference, tests <───── metrics ─────┤
//!   flags, a file ────────> log ─────────┤
//!   collector <──────────── traces ──────┘
//! ```
//!
//! Invariants:
//! * HTTP clients share bounded descriptors, memory and time: see [`http`] and [`connections`].
//! * Once a [`Stop`] exists, neither signal ends the process by itself.
//! * TLS comes from rustls with ring, the only provider that is built in.

mod api_connection;
pub mod connections;
pub mod files;
pub mod http;
pub mod kubernetes;
pub mod log;
pub mod metrics;
mod own;
mod signals;
pub mod sockets;
mod time_limits;
#[cfg(feature = "traces")]
pub mod traces;

pub use signals::Stop;
