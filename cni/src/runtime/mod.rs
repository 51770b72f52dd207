//! Runs plugins: everything of the crate that does IO.

mod attachments;
mod bin_changes;
mod cache;
mod chain;
#[cfg(feature = "sockets")]
mod daemon;
mod deadline;
pub mod dir_changes;
pub mod durable;
mod error;
mod exec;
mod file_locks;
mod known_versions;
mod launcher;
mod locks;
mod namespace_gone;
mod negotiation;
pub(crate) mod reply;
mod runs;
#[cfg(feature = "sockets")]
mod serve;
mod sockets;
pub mod spans;

pub use attachments::{AttachmentError, Attachments, Collected};
pub use bin_changes::BinChanges;
pub use cache::{AddOutcome, Cache, CacheError, Cached, EntryError};
pub use chain::{BinDirError, OfAdd, Runtime};
pub use error::{AddError, CallPhase, Effect, EffectState, Error, ErrorKind, PluginError, Retry, Stopped};
pub use exec::{DRAIN_AFTER_EXIT, STDERR_TAIL, TERM_GRACE, close_inherited_descriptors};
pub use file_locks::FileLock;
pub use known_versions::{Fingerprint, Program};
pub use launcher::MountNamespaceError;
pub use reply::STDOUT_LIMIT;
pub use runs::{RunEnd, RunObserver};
#[cfg(feature = "sockets")]
pub use serve::{ServeError, serve};
