//! Runs plugins: everything of the crate that does IO.

mod attachments;
mod bin_changes;
mod cache;
pub mod dir_changes;
pub mod durable;
mod error;
mod exec;
mod file_locks;
mod launcher;
mod locks;
mod namespace_gone;
pub(crate) mod reply;
#[allow(clippy::module_inception, reason = "the module of the type `Runtime`")]
mod runtime;

pub use attachments::{AttachmentError, Attachments, Collected};
pub use bin_changes::BinChanges;
pub use cache::{Cache, CacheError, Cached, EntryError, Outcome};
pub use error::{AddError, Effect, EffectState, Error, ErrorKind, Phase, PluginError, Retry};
pub use exec::{DRAIN_AFTER_EXIT, STDERR_TAIL, STDOUT_LIMIT, TERM_GRACE, close_inherited_descriptors};
pub use file_locks::FileLock;
pub use launcher::MountNamespaceError;
pub use runtime::{BinDirError, Runtime};
