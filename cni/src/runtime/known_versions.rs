//! Answers of installed plugins to VERSION.

use std::collections::{BTreeSet, HashMap};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::version::SpecVersion;

/// Supported versions by binary; an answer counts until the file is replaced.
#[derive(Debug, Default)]
pub(super) struct KnownVersions(Mutex<HashMap<PathBuf, (Fingerprint, BTreeSet<SpecVersion>)>>);

impl KnownVersions {
    /// The versions of the binary, if it is the one that was asked.
    pub(super) fn of(&self, program: &Program) -> Option<BTreeSet<SpecVersion>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, versions) = known.get(&program.path)?;
        (*file == program.file).then(|| versions.clone())
    }

    pub(super) fn insert(&self, program: Program, versions: BTreeSet<SpecVersion>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(program.path, (program.file, versions));
    }
}

/// An installed plugin: a binary, or the socket of the daemon that serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// Which file it is.
    pub file: Fingerprint,
    /// Whether it is a socket.
    pub is_socket: bool,
}

/// Tells an installed binary from the one that replaces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Fingerprint {
    pub(super) fn of(file: &Metadata) -> Self {
        let modified = (file.mtime(), file.mtime_nsec());
        Self { device: file.dev(), inode: file.ino(), size: file.size(), modified }
    }
}
