//! A CNI runtime: network configurations, attachments, plugin processes and their results.
//!
//! Implements the [CNI specification](https://www.cni.dev/docs/spec/) 1.1.0 and everything before it, down to 0.1.0.
//!
//! * [`NetworkList`] is a network configuration, [`Attachment`] what differs from one container interface to the
//!   next, [`CniResult`] what came of it. All three are parsed once, at the edge, keep their JSON byte for byte and
//!   can be stored and read back.
//! * [`Request`] derives the environment and the standard input of one plugin call. It does no IO.
//! * [`Runtime`] runs chains of plugins in the specification's order; the `exec` module below it owns the process.
//! * [`BinChanges`] tells when the installed plugins may have changed.
//! * [`Cache`] keeps what DEL and CHECK need, in libcni's format. [`Attachments`] is a runtime with a cache: what most
//!   programs want.
//! * [`validate`] says everything that is wrong with a configuration at once, without running anything. It is the `api`
//!   crate's, as all names and versions are.
//! * Every way in which a call can fail is a value: [`Error`], with what is known of its effect.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use netclaim_cni::{Attachment, Attachments, Cache, Cached, NetworkList, AddOutcome, Runtime};
//!
//! let list = NetworkList::parse(br#"{"cniVersion": "1.1.0", "name": "lab", "plugins": [{"type": "bridge"}]}"#)?;
//! let attachment = Attachment::new("c1".parse()?, Some("/run/netns/c1".into()), "net1".parse()?);
//! let deadline = std::time::Duration::from_secs(60);
//!
//! let runtime = Runtime::new(vec!["/opt/cni/bin".into()])?;
//! let attachments = Attachments::new(runtime, Cache::new("/var/lib/my-program"));
//! let result = attachments.add(&list, &attachment, deadline).await?;
//! println!("{:?}", result.ips());
//!
//! // By what is known of the ADD; `list` and `outcome` are for what nothing is known of.
//! let request = Cached { list, attachment, outcome: AddOutcome::Unfinished(None) };
//! attachments.del(&request, deadline).await?;
//! # Ok(())
//! # }
//! ```
//!
//! What holds throughout: a key or number that this module does not know reaches the plugin unchanged; a plugin can
//! neither outlive its deadline nor make us keep more of its output than the stated limits; nothing is deleted
//! unless asked for ([`Runtime::add`] never calls DEL).

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
pub use names::{ContainerId, IfName, NameError, NameKind, NetworkName, PluginType};
pub use request::{Request, RequestError, Verb};
pub use result::{CniResult, Dns, Interface, IpConfig, ResultError, Route};
#[cfg(feature = "runtime")]
pub use runtime::*;
pub use trace_context::TraceContext;
pub use validate::BANDWIDTH_PLUGIN;
pub use version::{SpecVersion, VersionError};
