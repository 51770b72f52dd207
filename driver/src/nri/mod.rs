//! The container runtime's events, by NRI, its plugin protocol.
//!
//! [`run`] keeps this process connected to the runtime as a plugin and tells a [`Handler`] what happens to pods'
//! sandboxes and containers. What has to hold, and is kept here for every handler:
//!
//! * The runtime's call is answered in time whatever the handler does. A plugin that lets a call pass its deadline is
//!   cut off, the pod of that call starts as if nothing had been asked, and so does every other pod until the plugin
//!   is back.
//! * A handler is never interrupted. When its call is answered without it, it goes on, and its result is dropped.
//! * A container is created only after the handler has agreed: an error, a panic or no answer in time refuse it.
//!   All the other events are answered with success when the handler is late, since an error would do harm and no
//!   good: the runtime does not repeat them.
//!
//! Events are hints. The runtime drops those of the time when nobody is connected, and some others: containerd does
//! not tell the end of sandboxes that are older than its own process.

mod events;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod mux;
mod plugin;
mod proto;
mod sandbox;
mod session;
#[cfg(test)]
mod tests;
mod ttrpc;

pub use plugin::{
    Adjustment, DEFAULT_SOCKET, Handler, Hook, InvalidPluginConfig, PluginConfig, RuntimeInfo, run,
};
pub use sandbox::{Container, ContainerState, Sandbox, SandboxNetwork};
