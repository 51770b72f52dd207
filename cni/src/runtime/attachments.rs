//! The attachments of a host: a [`Runtime`] that remembers.
//!
//! ```text
//!            ┌─ file locks ── in-process locks ─┐
//!   add ─────┤ store "unfinished" → ADD → store │
//!   del ─────┤ load → DEL → remove              ├──  <cache dir>/{results,locks}
//!   check ───┤ load → CHECK                     │
//!   gc ──────┤ load all → DEL stale → GC        │
//!            └──────────────────────────────────┘
//! ```
//!
//! * An attachment is on disk before its first plugin runs and until its DEL has succeeded, so that GC also
//!   finds a failed or interrupted ADD. For a failed one the file says which plugins made nothing.
//! * DEL and CHECK use the configuration, arguments and result of the ADD, not today's configuration.
//! * Processes that use the same cache directory wait for each other as the specification wants.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::statfs::{NSFS_MAGIC, statfs};

use super::cache::{AddOutcome, Cache, CacheError, Cached};
use super::chain::Runtime;
use super::deadline::Deadline;
use super::error::{AddError, CallPhase, Context, Error};
use super::file_locks::FileLock;
use crate::attachment::{Attachment, ValidAttachment};
use crate::config::NetworkList;
use crate::error_chain::error_chain;
use crate::names::ListName;
use crate::request::Verb;
use crate::result::CniResult;

/// Makes, checks and removes attachments, and remembers them.
#[derive(Debug)]
pub struct Attachments {
    runtime: Runtime,
    cache: Cache,
}

/// A failed operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachmentError {
    /// The cache cannot be read or written. No plugin has run, or DEL is due.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// ADD succeeded, and its result could not be stored: DEL is due, with this result.
    #[error(
        "the result of a successful ADD is not known on disk; `del` it, and `add` it again when there is room"
    )]
    Unrecorded {
        /// The result of the ADD.
        result: Box<CniResult>,
        /// Why it could not be stored.
        #[source]
        source: CacheError,
    },
    /// The attachment's network namespace cannot be looked at.
    #[error("cannot look at the network namespace {}", path.display())]
    Netns {
        /// Its path.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// ADD failed.
    #[error(transparent)]
    Add(#[from] AddError),
    /// A plugin failed.
    #[error(transparent)]
    Plugin(#[from] Error),
    /// ADD of an attachment that exists.
    #[error("interface `{}` of container `{}` is attached already, or an ADD of it failed; `del` it first", .0.if_name, .0.container_id)]
    Attached(ValidAttachment),
    /// CHECK of an attachment that is not known.
    #[error("no ADD is known for interface `{}` of container `{}`; `add` it first", .0.if_name, .0.container_id)]
    NotAttached(ValidAttachment),
    /// Plugins that failed to delete what a vanished namespace left.
    #[error(
        "a plugin fails although the namespace is gone, and the addresses stay taken until it succeeds or is given up: {}",
        .0.iter().map(|e| error_chain(e)).collect::<Vec<_>>().join("; ")
    )]
    Left(Vec<Error>),
}

/// The outcome of a GC.
#[derive(Debug, Default)]
pub struct Collected {
    /// Stale attachments that were deleted.
    pub deleted: Vec<ValidAttachment>,
    /// Everything that failed; the rest was done all the same.
    pub failed: Vec<AttachmentError>,
}

impl Attachments {
    /// Creates attachments by `runtime`, remembered in `cache`.
    pub fn new(runtime: Runtime, cache: Cache) -> Self {
        Self { runtime, cache }
    }

    /// The runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Calls [`Runtime::add`] and remembers the attachment. If the configuration offers several versions,
    /// uses the highest that all plugins support.
    ///
    /// # Errors
    /// [`AttachmentError::Attached`] if the attachment exists, also unfinished: the specification forbids a
    /// second ADD without a DEL.
    pub async fn add(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Duration,
    ) -> Result<CniResult, AttachmentError> {
        let deadline = Deadline::after(deadline);
        let _lock = self.lock(Verb::Add, list, attachment, deadline).await?;
        let known = self.find(list.name(), attachment)?;
        let owes_nothing = |known: &Cached| known.outcome.stopped().is_some_and(|at| !at.needs_del());
        if known.is_some_and(|known| !owes_nothing(&known)) {
            return Err(AttachmentError::Attached(attachment.key()));
        }
        // With a single version there is no choice: a plugin that does not support it says so.
        let has_choice = list.versions().len() >= 2 || self.runtime.has_daemons();
        let list = if has_choice { self.runtime.settle(list).await? } else { list.clone() };
        let mut cached =
            Cached { list, attachment: attachment.clone(), outcome: AddOutcome::Unfinished(None) };
        self.cache.store(&cached)?;
        match self.runtime.add_until(&cached.list, attachment, None, deadline).await {
            Ok(result) => {
                cached.outcome = AddOutcome::Attached(result.clone());
                match self.cache.store(&cached) {
                    Ok(()) => Ok(result),
                    Err(source) => Err(AttachmentError::Unrecorded { result: Box::new(result), source }),
                }
            }
            Err(failed) if failed.has_begun() => {
                cached.outcome = AddOutcome::Failed(failed.stopped(), failed.last_good.as_deref().cloned());
                // It is known already; without its result at worst.
                if let Err(error) = self.cache.store(&cached) {
                    tracing::warn!(error = error_chain(&error), "the result of a failed ADD is not kept");
                }
                Err(failed.into())
            }
            Err(failed) => {
                if let Err(error) = self.forget(cached.list.name(), attachment) {
                    tracing::warn!(
                        error = error_chain(&error),
                        "the record of an ADD that never began stays"
                    );
                }
                Err(failed.into())
            }
        }
    }

    /// Calls DEL with the configuration and result of the ADD, but in the network namespace of `request`, and
    /// forgets the attachment. If the namespace is gone, calls [`Runtime::release`], which ends at the first
    /// error.
    ///
    /// `request` names the attachment. The rest of it counts only if the cache has no readable entry.
    ///
    /// # Errors
    /// As [`Runtime::del`]; [`AttachmentError::Left`] without a namespace. The attachment stays known then.
    pub async fn del(&self, request: &Cached, deadline: Duration) -> Result<(), AttachmentError> {
        self.detach(request, deadline, false).await.map(drop)
    }

    /// As [`del`](Self::del), and goes on past plugins that fail if the namespace is gone. Returns their
    /// errors: something of the attachment, which is forgotten, may be left.
    ///
    /// # Errors
    /// As [`Runtime::del`] in a namespace.
    pub async fn give_up(&self, request: &Cached, deadline: Duration) -> Result<Vec<Error>, AttachmentError> {
        self.detach(request, deadline, true).await
    }

    async fn detach(
        &self,
        request: &Cached,
        deadline: Duration,
        gives_up: bool,
    ) -> Result<Vec<Error>, AttachmentError> {
        let deadline = Deadline::after(deadline);
        let (network, attachment) = (request.list.name(), &request.attachment);
        let _lock = self.lock(Verb::Del, &request.list, attachment, deadline).await?;
        let known = match self.find(network, attachment) {
            // A damaged file must not prevent a DEL.
            Err(error @ CacheError::Entry { .. }) => {
                tracing::warn!(error = error_chain(&error), "deleting by today's configuration");
                None
            }
            known => known?,
        };
        let known = known.map(|mut known| {
            known.attachment.netns.clone_from(&attachment.netns);
            known.attachment.trace.clone_from(&attachment.trace);
            known
        });
        let left = self.delete(known.as_ref().unwrap_or(request), deadline, gives_up).await?;
        self.forget(network, attachment)?;
        Ok(left)
    }

    /// Calls [`Runtime::check`] with the configuration and result of the ADD.
    ///
    /// # Errors
    /// [`AttachmentError::NotAttached`] if no successful ADD is known.
    pub async fn check(
        &self,
        network: &ListName,
        attachment: &Attachment,
        deadline: Duration,
    ) -> Result<(), AttachmentError> {
        let deadline = Deadline::after(deadline);
        let unlocked = self.find(network, attachment)?;
        let list = unlocked.ok_or_else(|| AttachmentError::NotAttached(attachment.key()))?.list;
        let _lock = self.lock(Verb::Check, &list, attachment, deadline).await?;
        match self.find(network, attachment)? {
            Some(Cached { list, attachment: known, outcome: AddOutcome::Attached(result) }) => {
                let attachment = Attachment { trace: attachment.trace.clone(), ..known };
                Ok(self.runtime.check_until(&list, &attachment, &result, deadline).await?)
            }
            _ => Err(AttachmentError::NotAttached(attachment.key())),
        }
    }

    /// Deletes the known attachments of the network whose ADD did not succeed or whose namespace is gone.
    /// Then calls the plugins' GC with all others and `keep`, which names attachments of another runtime in a
    /// network of that name. Locks the network meanwhile. `deadline` is for each attachment, and for the
    /// plugins' GC.
    ///
    /// # Errors
    /// [`AttachmentError::Cache`] if the cache has an unreadable file: its attachment may be in use, so
    /// nothing is done.
    pub async fn gc(
        &self,
        list: &NetworkList,
        keep: &[ValidAttachment],
        deadline: Duration,
    ) -> Result<Collected, AttachmentError> {
        let network = list.name();
        let limit = Deadline::after(deadline);
        let context = || Context::network(Verb::Gc, list, list.first_plugin().plugin_type());
        let lock = self.cache.lock_network(network, limit.at()).await?;
        let _lock = lock.ok_or_else(|| context().error(limit.passed(CallPhase::Queued)))?;
        let (known, unusable) = self.cache.attachments()?;
        if let Some(error) = unusable.into_iter().find(|error| error.may_be_of(network)) {
            return Err(error.into());
        }
        let mut valid = keep.to_vec();
        let mut done = Collected::default();
        for known in known.into_iter().filter(|known| known.list.name() == network) {
            let key = known.attachment.key();
            let lives = match is_there(known.attachment.netns.as_deref()) {
                Ok(lives) => lives,
                Err(error) => {
                    valid.push(key);
                    done.failed.push(error);
                    continue;
                }
            };
            // Another operation on the container, in another network, may be under way.
            let alone = self.cache.try_lock_container(&key.container_id)?;
            if alone.is_none() || (lives && matches!(known.outcome, AddOutcome::Attached(_))) {
                valid.push(key);
                continue;
            }
            let deleted = self.delete(&known, Deadline::after(deadline), false).await;
            match deleted.and_then(|_| Ok(self.forget(network, &known.attachment)?)) {
                Ok(()) => done.deleted.push(key),
                Err(error) => done.failed.push(error),
            }
        }
        if let Err(errors) = self.runtime.gc(list, &valid, deadline).await {
            done.failed.extend(errors.into_iter().map(AttachmentError::from));
        }
        Ok(done)
    }

    /// Forgets an attachment without a DEL.
    ///
    /// # Errors
    /// See [`Cache::remove`].
    pub fn forget(&self, network: &ListName, attachment: &Attachment) -> Result<(), CacheError> {
        self.cache.remove(network, &attachment.container_id, &attachment.if_name)
    }

    /// Runs the DEL; returns the errors of plugins that are given up.
    async fn delete(
        &self,
        known: &Cached,
        deadline: Deadline,
        gives_up: bool,
    ) -> Result<Vec<Error>, AttachmentError> {
        let Cached { list, attachment, outcome } = known;
        if is_there(attachment.netns.as_deref())? {
            self.runtime.del_until(list, attachment, outcome.into(), deadline).await?;
            return Ok(Vec::new());
        }
        let attachment = Attachment { netns: None, ..attachment.clone() };
        let errors = self.runtime.release(list, &attachment, outcome, deadline.whole(), |_| gives_up).await;
        if errors.is_empty() || gives_up { Ok(errors) } else { Err(AttachmentError::Left(errors)) }
    }

    fn find(&self, network: &ListName, attachment: &Attachment) -> Result<Option<Cached>, CacheError> {
        self.cache.load(network, &attachment.container_id, &attachment.if_name)
    }

    async fn lock(
        &self,
        verb: Verb,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Deadline,
    ) -> Result<FileLock, AttachmentError> {
        let lock = self.cache.lock(&attachment.container_id, list.name(), deadline.at()).await?;
        let context = || Context::attachment(verb, list, list.first_plugin().plugin_type(), attachment);
        Ok(lock.ok_or_else(|| context().error(deadline.passed(CallPhase::Queued)))?)
    }
}

/// Whether the path leads to a namespace. One that is gone leaves an ordinary file, or nothing.
fn is_there(path: Option<&Path>) -> Result<bool, AttachmentError> {
    match path.map(|path| (path, statfs(path))) {
        None | Some((_, Err(Errno::ENOENT | Errno::ENOTDIR))) => Ok(false),
        Some((_, Ok(found))) => Ok(found.filesystem_type() == NSFS_MAGIC),
        Some((path, Err(error))) => {
            Err(AttachmentError::Netns { path: path.to_owned(), source: error.into() })
        }
    }
}
