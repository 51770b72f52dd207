//! The cache of attachments: configuration, parameters and result, one file each.
//!
//! The files have the form of libcni's cache (`cniCacheV1`), so that each runtime can read the other's. They
//! are in a directory of their own, because other programs delete files of libcni's. Beyond libcni's
//! promises:
//!
//! * A file is written whole and durably, or not at all. A program that keeps a journal can do without
//!   durability.
//! * libcni's file names are ambiguous (`a-b` and `c`, `a` and `b-c`). The content counts: a file of another
//!   attachment is neither read nor overwritten.
//! * An attachment can be stored before its ADD, without a result, so that DEL finds one that failed
//!   half-way. A member that libcni ignores marks it.
//!
//! Writers must hold the attachment's lock, as [`Attachments`](super::Attachments) does: the temporary file
//! has a fixed name, so that the next write replaces what a crash leaves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::durable::{self, FileError, Lasting, Pending};
use super::error::Stopped;
use super::file_locks::{self, FileLock};
use crate::attachment::Attachment;
use crate::capability_args::CapabilityArgs;
use crate::config::{ConfError, NetworkList};
use crate::hex::hex;
use crate::names::{ContainerId, IfName, ListName, NameError};
use crate::result::{CniResult, ResultError};

const KIND: &str = "cniCacheV1";

/// Longest file name of the usual file systems, in bytes.
const NAME_MAX: usize = 255;

/// Longest part of a network's name in a file name that had to be shortened, in bytes.
const PREFIX_MAX: usize = 128;

/// Sent before all other `CNI_ARGS`; noted in the file as libcni's users do, and not part of
/// [`Attachment::args`].
const IGNORE_UNKNOWN: (&str, &str) = ("IgnoreUnknown", "1");

/// A directory of [`Cached`] attachments.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    lasting: Lasting,
}

/// An attachment with the configuration and result of its ADD, for CHECK and DEL.
#[derive(Clone, Debug, PartialEq)]
pub struct Cached {
    /// The network's configuration.
    pub list: NetworkList,
    /// The parameters.
    pub attachment: Attachment,
    /// The outcome of its ADD.
    pub outcome: AddOutcome,
}

/// The outcome of an ADD, as far as it is known.
#[derive(Clone, Debug, PartialEq)]
pub enum AddOutcome {
    /// It succeeded, with this result.
    Attached(CniResult),
    /// It is still under way, or it is unknown where it ended, with the result of the last plugin that
    /// succeeded. DEL is due.
    Unfinished(Option<CniResult>),
    /// It failed there, with the result of the last plugin that succeeded.
    Failed(Stopped, Option<CniResult>),
}

impl AddOutcome {
    /// `prevResult` for a DEL.
    pub fn result(&self) -> Option<&CniResult> {
        match self {
            Self::Attached(result) => Some(result),
            Self::Unfinished(last_good) | Self::Failed(_, last_good) => last_good.as_ref(),
        }
    }

    /// Where the ADD failed, if that is known.
    pub fn stopped(&self) -> Option<Stopped> {
        match self {
            Self::Failed(stopped, _) => Some(*stopped),
            Self::Attached(_) | Self::Unfinished(_) => None,
        }
    }
}

impl Cached {
    /// Parses a file of this cache or of libcni's.
    ///
    /// # Errors
    /// See [`EntryError`].
    pub fn from_slice(bytes: &[u8]) -> Result<Self, EntryError> {
        let entry: Entry = serde_json::from_slice(bytes)?;
        if entry.kind != KIND {
            return Err(EntryError::Kind(entry.kind));
        }
        let network = ListName::try_from(entry.network_name)?;
        let list = NetworkList::parse(&STANDARD.decode(entry.config)?)?;
        if *list.name() != network {
            return Err(EntryError::Network { network, conf: list.name().clone() });
        }
        let mut args = entry.cni_args.unwrap_or_default();
        args.retain(|(key, _)| key != IGNORE_UNKNOWN.0);
        let attachment = Attachment {
            container_id: entry.container_id.try_into()?,
            netns: Some(entry.netns).filter(|netns| !netns.is_empty()).map(PathBuf::from),
            if_name: entry.if_name.try_into()?,
            args,
            capability_args: entry.capability_args.unwrap_or_default(),
            trace: None,
        };
        let result = entry.result.map(|result| CniResult::parse(result.get(), list.version())).transpose()?;
        let outcome = match (result, entry.unfinished, entry.stopped) {
            (result, _, Some(stopped)) => AddOutcome::Failed(stopped, result),
            (Some(result), None | Some(false), None) => AddOutcome::Attached(result),
            (result, _, None) => AddOutcome::Unfinished(result),
        };
        Ok(Cached { list, attachment, outcome })
    }

    /// Returns the attachment in the form of libcni's cache.
    ///
    /// # Errors
    /// [`EntryError::Netns`], [`EntryError::Json`].
    pub fn to_vec(&self) -> Result<Vec<u8>, EntryError> {
        let Cached { list, attachment, outcome } = self;
        let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let entry = Entry {
            kind: KIND.to_owned(),
            container_id: attachment.container_id.to_string(),
            config: STANDARD.encode(list.raw()),
            if_name: attachment.if_name.to_string(),
            network_name: list.name().to_string(),
            netns: match &attachment.netns {
                Some(path) => path.to_str().ok_or(EntryError::Netns)?.to_owned(),
                None => String::new(),
            },
            cni_args: Some(
                [own(IGNORE_UNKNOWN)].into_iter().chain(attachment.args.iter().cloned()).collect(),
            ),
            capability_args: Some(attachment.capability_args.clone()).filter(|args| !args.is_empty()),
            result: outcome
                .result()
                .map(|result| RawValue::from_string(result.raw().to_owned()))
                .transpose()?,
            unfinished: (!matches!(outcome, AddOutcome::Attached(_))).then_some(true),
            stopped: outcome.stopped(),
        };
        Ok(serde_json::to_vec(&entry)?)
    }
}

/// A cache that cannot be used, or a file in it.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// A file or directory.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that is not one of this form.
    #[error("CNI cache file {} cannot be used; delete it if its attachment is gone", path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// The fault.
        #[source]
        source: EntryError,
    },
    /// Another attachment has a file of the same name.
    #[error(
        "CNI cache file {} belongs to interface `{if_name}` of container `{container_id}` in network `{network}`; choose another name for the new one",
        path.display()
    )]
    Taken {
        /// The file.
        path: PathBuf,
        /// The network of the attachment that has it.
        network: ListName,
        /// Its container.
        container_id: ContainerId,
        /// Its interface.
        if_name: IfName,
    },
}

impl CacheError {
    /// Whether this may hide an attachment to the network.
    pub fn may_be_of(&self, network: &ListName) -> bool {
        let Self::Entry { path, .. } = self else { return true };
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.starts_with(prefix(network).as_bytes())
    }
}

/// The fault of a cache file.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// Not JSON of this form.
    #[error("is not a CNI cache entry")]
    Json(#[from] serde_json::Error),
    /// An entry of another kind.
    #[error("its kind is {0:?}, not \"cniCacheV1\"")]
    Kind(String),
    /// JSON cannot express other paths.
    #[error("the path of its network namespace is not UTF-8")]
    Netns,
    /// A name that is not allowed.
    #[error("holds a name that is not allowed")]
    Name(#[from] NameError),
    /// The configuration is not encoded as it should be.
    #[error("its configuration is not in base64")]
    Encoding(#[from] base64::DecodeError),
    /// The configuration cannot be used.
    #[error("its configuration cannot be used")]
    Conf(#[from] ConfError),
    /// The network's name and the configuration's differ.
    #[error("is of network `{network}` and holds the configuration of `{conf}`")]
    Network {
        /// The entry's network.
        network: ListName,
        /// The configuration's name.
        conf: ListName,
    },
    /// The result cannot be used.
    #[error("its result cannot be used")]
    Result(#[from] ResultError),
}

/// The file's form, field by field libcni's but for the last two.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    kind: String,
    container_id: String,
    config: String,
    if_name: String,
    network_name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    netns: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cni_args: Option<Vec<(String, String)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capability_args: Option<CapabilityArgs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unfinished: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stopped: Option<Stopped>,
}

impl Cache {
    /// The cache below `dir`, which is created when first needed, for its owner only. Files are in `results`
    /// there, locks in `locks`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), lasting: Lasting::OnDisk }
    }

    /// The same cache for a program that keeps a durable journal: storing does not wait for the disk, and a
    /// power cut may lose entries. Such a program still needs the cache, for people, tools and other runtimes
    /// that read it.
    #[must_use]
    pub fn beside_a_journal(self) -> Self {
        Self { lasting: Lasting::InKernel, ..self }
    }

    /// Locks a container against operations of other processes, and its network against their GC. `None` if
    /// `until` comes first.
    ///
    /// # Errors
    /// [`CacheError::File`].
    pub async fn lock(
        &self,
        container_id: &ContainerId,
        network: &ListName,
        until: Instant,
    ) -> Result<Option<FileLock>, CacheError> {
        Ok(file_locks::attachment(&self.dir, container_id, network, until).await?)
    }

    /// Locks a network against all operations, also of other processes. `None` if `until` comes first.
    ///
    /// # Errors
    /// [`CacheError::File`].
    pub async fn lock_network(
        &self,
        network: &ListName,
        until: Instant,
    ) -> Result<Option<FileLock>, CacheError> {
        Ok(file_locks::whole_network(&self.dir, network, until).await?)
    }

    /// Locks a container; `None` if an operation on it is under way.
    pub(super) fn try_lock_container(
        &self,
        container_id: &ContainerId,
    ) -> Result<Option<FileLock>, CacheError> {
        Ok(file_locks::try_container(&self.dir, container_id)?)
    }

    /// Stores an attachment, in place of an earlier entry.
    ///
    /// # Errors
    /// [`CacheError`] if the entry may not be stored, or if another attachment has a file of that name.
    pub fn store(&self, cached: &Cached) -> Result<(), CacheError> {
        let Cached { list, attachment, .. } = cached;
        let path = self.path(list.name(), &attachment.container_id, &attachment.if_name);
        // An unreadable file is replaced.
        if let Ok(Some(old)) = read(&path)
            && !is_of(&old, list.name(), &attachment.container_id, &attachment.if_name)
        {
            return Err(CacheError::Taken {
                path,
                network: old.list.name().clone(),
                container_id: old.attachment.container_id,
                if_name: old.attachment.if_name,
            });
        }
        let bytes = cached.to_vec().map_err(|source| CacheError::Entry { path: path.clone(), source })?;
        let results = self.results();
        durable::create_dir(&results)?;
        let tmp = results
            .join(format!(".{}", file_name(list.name(), &attachment.container_id, &attachment.if_name)));
        Ok(Pending::write(&tmp, &bytes, self.lasting)?.rename(&path)?)
    }

    /// Loads an attachment; `None` if it is not known.
    ///
    /// # Errors
    /// [`CacheError`] if the file is there and cannot be read or used.
    pub fn load(
        &self,
        network: &ListName,
        container_id: &ContainerId,
        if_name: &IfName,
    ) -> Result<Option<Cached>, CacheError> {
        let found = read(&self.path(network, container_id, if_name))?;
        Ok(found.filter(|cached| is_of(cached, network, container_id, if_name)))
    }

    /// Removes an attachment, which need not be known.
    ///
    /// # Errors
    /// [`CacheError`] if the file may still be there.
    pub fn remove(
        &self,
        network: &ListName,
        container_id: &ContainerId,
        if_name: &IfName,
    ) -> Result<(), CacheError> {
        let path = self.path(network, container_id, if_name);
        match read(&path) {
            Ok(None) => Ok(()),
            Ok(Some(found)) if !is_of(&found, network, container_id, if_name) => Ok(()),
            _ => Ok(durable::remove(&path, self.lasting)?),
        }
    }

    /// Loads all attachments, in the order of the file names, with the errors of unreadable files.
    ///
    /// # Errors
    /// [`CacheError::File`] if the directory cannot be read; one that does not exist is empty.
    pub fn attachments(&self) -> Result<(Vec<Cached>, Vec<CacheError>), CacheError> {
        let results = self.results();
        let entries = match fs::read_dir(&results) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
            entries => entries.map_err(FileError::to("read", &results))?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(FileError::to("read", &results))?.path();
            // Hidden files are unfinished, or not the cache's: names begin with a letter or digit.
            let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            if !hidden && path.is_file() {
                paths.push(path);
            }
        }
        paths.sort();
        let (mut known, mut unusable) = (Vec::new(), Vec::new());
        for path in paths {
            match read(&path) {
                Ok(cached) => known.extend(cached),
                Err(error) => unusable.push(error),
            }
        }
        Ok((known, unusable))
    }

    /// The path of an attachment's file.
    fn path(&self, network: &ListName, container_id: &ContainerId, if_name: &IfName) -> PathBuf {
        self.results().join(file_name(network, container_id, if_name))
    }

    fn results(&self) -> PathBuf {
        self.dir.join("results")
    }
}

/// libcni's file name, unless it is too long with the temporary file's dot.
fn file_name(network: &ListName, container_id: &ContainerId, if_name: &IfName) -> String {
    let name = format!("{network}-{container_id}-{if_name}");
    if name.len() < NAME_MAX {
        return name;
    }
    format!("{}-{}", prefix(network), hex(&Sha256::digest(&name)))
}

/// The beginning of the names of all files of a network.
fn prefix(network: &ListName) -> &str {
    network.as_str().get(..PREFIX_MAX).unwrap_or(network.as_str())
}

fn is_of(cached: &Cached, network: &ListName, container_id: &ContainerId, if_name: &IfName) -> bool {
    let Cached { list, attachment, .. } = cached;
    list.name() == network && attachment.container_id == *container_id && attachment.if_name == *if_name
}

fn read(path: &Path) -> Result<Option<Cached>, CacheError> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(FileError::to("read", path))?,
    };
    Cached::from_slice(&bytes).map(Some).map_err(|source| CacheError::Entry { path: path.to_owned(), source })
}
