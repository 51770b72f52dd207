//! A plugin of the container runtime by [NRI](https://github.com/containerd/nri): it follows the sandboxes of
//! pods, and may hold back or refuse their containers.
//!
//! ```text
//!   runtime ── socket ── session ── events ──> Handler
//!                 │         │
//!                mux      ttrpc           plugin: reconnects when a session ends
//! ```
//!
//! [`run`] keeps this process connected to the runtime as a plugin and passes the events of pods' sandboxes
//! and containers to a [`Handler`]. It guarantees for every handler:
//!
//! * The runtime gets its answer in time, even if the handler is late. The runtime disconnects a plugin that
//!   misses a deadline. The pod of that call, and every other pod until the plugin is back, then starts
//!   without being checked.
//! * A handler is never interrupted. If it is late, it goes on, and its result is dropped.
//! * A container is created only after the handler has agreed: an error, a panic or a missing answer refuses
//!   it. For all other events a late handler counts as success, because the runtime does not repeat them.
//!
//! [`ConnectedPlugin`] is the other end: it passes the events that a handler gets on to a plugin in another
//! process.
//!
//! Events are hints. The runtime drops those that occur while no plugin is connected, and some others:
//! containerd does not report the end of sandboxes that are older than its own process.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod connected_plugin;
mod events;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod identity;
mod mux;
mod plugin;
mod proto;
mod received;
mod sandbox;
mod session;
mod session_end;
#[cfg(test)]
mod tests;
mod ttrpc;

pub use connected_plugin::{ConnectedPlugin, Event, RelayError};
pub use handler::{Adjustment, Denial, Handler, Hook, RuntimeInfo};
pub use identity::Identity;
pub use plugin::{DEFAULT_SOCKET, run};
pub use sandbox::{Container, Sandbox, SandboxNetwork};
