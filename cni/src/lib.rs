//! A [CNI](https://www.cni.dev) runtime: it parses and validates network configurations, runs chains of
//! plugins, and remembers the attachments that it made. Implements the
//! [specification](https://www.cni.dev/docs/spec/) from version 0.1.0 to 1.1.0.
//!
//! ```text
//!   JSON ──> NetworkList ──┐                                 ┌──> CniResult
//!              │           ├──> Attachments ──> Runtime ─────┤
//!              │ validate  │        │             │          └──> Error
//!              v           │      Cache        plugins
//!           findings       │
//!            Attachment ───┘
//! ```
//!
//! The core is values and checks, without IO:
//!
//! * [`NetworkList`] is a network configuration, [`Attachment`] holds the parameters of one container
//!   interface, and [`CniResult`] is the result of its ADD. They are parsed once, keep their JSON byte for
//!   byte, and can be stored and read back.
//! * [`CapabilityArgs`] has a type for each capability of CNI's conventions.
//! * [`Request`] is the environment and standard input of one plugin call.
//! * [`validate`] finds everything that is wrong with a configuration at once.
//!
//! The feature `runtime`, on by default, runs plugins:
//!
//! * [`Attachments`] is what most programs want: a runtime with a cache.
//! * [`Runtime`] runs chains of plugins in the specification's order.
//! * [`Cache`] keeps what DEL and CHECK need, in libcni's format.
//! * [`Error`] is a failed call, with its known effect.
//! * [`RunObserver`] hears how long each plugin ran and how it ended.
//! * [`BinChanges`] reports when the installed plugins may have changed.
//!
//! The feature `sockets` adds plugins that are daemons: `Runtime::with_daemons` calls them, and `serve` is a
//! daemon for plugins that are programs.
//!
//! Invariants:
//! * A key or number that this crate does not know reaches the plugin unchanged, byte for byte.
//! * A program cannot outlive its deadline. A daemon is told to stop.
//! * An attachment is on disk before its first plugin runs and until its DEL succeeds.
//! * Nothing is deleted unless the caller asks for it. Nothing here knows Kubernetes or netclaim.
//!
//! The README has a complete example, and the differences from libcni.

#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../README.md")]
mod readme {}

mod address;
mod attachment;
mod bandwidth_device;
mod capability_args;
mod config;
mod error_chain;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hex;
#[cfg(feature = "runtime")]
pub mod ipam;
mod json;
pub mod keys;
pub mod names;
pub mod placeholder;
pub mod reference;
mod request;
mod result;
#[cfg(feature = "runtime")]
mod runtime;
mod trace_context;
pub mod validate;
pub mod version;

pub use address::{IpRequest, IpRequestError, MacAddr, MacAddrError};
pub use attachment::{Attachment, ValidAttachment};
pub use capability_args::{BandwidthArg, CapabilityArgs, DnsArg, IpRangeArg, PortMappingArg};
pub use config::{ConfError, ConfProblem, NetworkList, PluginConf};
pub use error_chain::error_chain;
pub use hex::hex;
pub use json::refuse_duplicate_keys;
pub use names::{ContainerId, IfName, ListName, NameError, NameKind, PluginType};
pub use request::{Request, RequestError, Verb};
pub use result::{CniResult, Dns, Interface, IpConfig, ResultError, Route};
#[cfg(feature = "runtime")]
pub use runtime::*;
pub use trace_context::TraceContext;
pub use validate::{BANDWIDTH_PLUGIN, LINK_PLUGIN, ROUTE_PLUGIN};
pub use version::{SpecVersion, VersionError};
