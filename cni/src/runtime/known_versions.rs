//! Answers of installed plugins to VERSION.

use std::collections::{BTreeSet, HashMap};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::version::SpecVersion;

/// Supported versions by binary; an answer counts until the file is replaced.
#[derive(Debug, Default)]
pub(super) struct KnownVersions(Mutex<HashMap<PathBuf, (Fingerprint, BTreeSet<SpecVersion>)>>);

impl KnownVersions {
    /// The versions of the binary at `path`; `file` is its current metadata.
    pub(super) fn of(&self, path: &Path, file: &Metadata) -> Option<BTreeSet<SpecVersion>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (fingerprint, versions) = known.get(path)?;
        (*fingerprint == Fingerprint::of(file)).then(|| versions.clone())
    }

    pub(super) fn insert(&self, path: PathBuf, file: &Metadata, versions: BTreeSet<SpecVersion>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(path, (Fingerprint::of(file), versions));
    }
}

/// Tells an installed binary from the one that replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Fingerprint {
    fn of(file: &Metadata) -> Self {
        let modified = (file.mtime(), file.mtime_nsec());
        Self { device: file.dev(), inode: file.ino(), size: file.size(), modified }
    }
}
