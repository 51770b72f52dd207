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
//! use netclaim_driver::cni::{Attachment, Attachments, Cache, Cached, NetworkList, Outcome, Runtime};
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
//! let request = Cached { list, attachment, outcome: Outcome::Unfinished(None) };
//! attachments.del(&request, deadline).await?;
//! # Ok(())
//! # }
//! ```
//!
//! What holds throughout: a key or number that this module does not know reaches the plugin unchanged; a plugin can
//! neither outlive its deadline nor make us keep more of its output than the stated limits; nothing is deleted
//! unless asked for ([`Runtime::add`] never calls DEL).

mod attachment;
mod attachments;
mod bin_changes;
mod cache;
mod conf;
mod error;
mod exec;
mod file_locks;
pub mod ipam;
mod json;
mod known;
mod launcher;
mod locks;
pub(crate) mod reply;
mod request;
mod result;
mod runtime;
mod trace;

use netclaim_api::cni::{keys, names, version};

pub use attachment::Attachment;
pub use attachments::{AttachmentError, Attachments, Collected};
pub use bin_changes::BinChanges;
pub use cache::{Cache, CacheError, Cached, EntryError, Outcome};
pub use conf::{ConfError, ConfProblem, NetworkList, PluginConf};
pub use error::{AddError, Effect, EffectState, Error, ErrorKind, Phase, PluginError, Retry};
pub use exec::{DRAIN_AFTER_EXIT, STDERR_TAIL, STDOUT_LIMIT, TERM_GRACE, close_inherited_descriptors};
pub use file_locks::FileLock;
pub use launcher::MountNamespaceError;
pub use netclaim_api::cni::{
    ContainerId, IfName, NameError, NameKind, NetworkName, PluginType, SpecVersion, VersionError, validate,
};
pub use request::{Request, RequestError, ValidAttachment, Verb};
pub use result::{CniResult, Dns, Interface, IpConfig, ResultError, Route};
pub use runtime::{BinDirError, Runtime};
pub use trace::TraceContext;
