//! Files that are replaced whole or not at all, whenever the machine stops: a new file beside the old one,
//! fsync, rename, fsync of the directory. The cache uses them; they are public for programs that keep a
//! journal beside it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A file or directory that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}", path.display())]
pub struct FileError {
    /// What was tried.
    pub verb: &'static str,
    /// With what.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

impl FileError {
    pub(super) fn to(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { verb, path: path.to_owned(), source }
    }
}

/// How long a finished change must last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// Past a power cut.
    OnDisk,
    /// As long as the kernel runs: no write waits for the disk.
    InKernel,
}

/// A complete file under a temporary name.
#[must_use]
pub struct Pending<'a> {
    path: &'a Path,
    lasting: Lasting,
}

impl<'a> Pending<'a> {
    /// Writes the file at `path`, for its owner only. If that fails, no file is left.
    pub fn write(path: &'a Path, bytes: &[u8], lasting: Lasting) -> Result<Self, FileError> {
        let opened = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
        let mut file = opened.map_err(FileError::to("create", path))?;
        let synced = |file: &File| if lasting == Lasting::OnDisk { sync(file, path) } else { Ok(()) };
        if let Err(source) = file.write_all(bytes).and_then(|()| synced(&file)) {
            let _ = fs::remove_file(path);
            return Err(FileError::to("write", path)(source));
        }
        Ok(Self { path, lasting })
    }

    /// Renames the file to `path`, in the same directory, over an existing one.
    pub fn rename(self, path: &Path) -> Result<(), FileError> {
        fs::rename(self.path, path).map_err(FileError::to("rename to", path))?;
        #[cfg(any(test, feature = "write-trace"))]
        trace::note("rename to", path);
        sync_dir_of(path, self.lasting)
    }
}

/// Removes a file, which need not be there.
pub fn remove(path: &Path, lasting: Lasting) -> Result<(), FileError> {
    match fs::remove_file(path) {
        // An earlier removal may have ended before the directory was synced.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::to("remove", path)(error)),
        _ => {
            #[cfg(any(test, feature = "write-trace"))]
            trace::note("remove", path);
            sync_dir_of(path, lasting)
        }
    }
}

/// Creates a directory and those above it, for their owner only.
pub(super) fn create_dir(dir: &Path) -> Result<(), FileError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(FileError::to("create", dir))
}

fn sync_dir_of(path: &Path, lasting: Lasting) -> Result<(), FileError> {
    let dir = path.parent().unwrap_or(path);
    if lasting == Lasting::InKernel {
        return Ok(());
    }
    File::open(dir).and_then(|file| sync(&file, dir)).map_err(FileError::to("sync", dir))
}

/// Waits until what is at `path` is on disk.
fn sync(file: &File, path: &Path) -> io::Result<()> {
    #[cfg(any(test, feature = "write-trace"))]
    trace::note("sync", path);
    #[cfg(not(any(test, feature = "write-trace")))]
    let _ = path;
    file.sync_all()
}

/// The writes, removals and syncs of this thread, for tests: their order decides what a crash or a power cut
/// leaves.
#[cfg(any(test, feature = "write-trace"))]
pub mod trace {
    use std::cell::RefCell;
    use std::path::Path;

    /// Sees each step, as `VERB NAME`.
    pub type Watcher = Box<dyn FnMut(&str)>;

    thread_local!(static DONE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });
    thread_local!(static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) });

    pub(super) fn note(verb: &str, path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let step = format!("{verb} {name}");
        WATCHER.with_borrow_mut(|watcher| watcher.as_mut().map(|watcher| watcher(&step)));
        DONE.with_borrow_mut(|done| done.push(step));
    }

    /// Returns the steps since the last call.
    pub fn take() -> Vec<String> {
        DONE.take()
    }

    /// Calls `watcher` after each rename and removal, and before each sync.
    pub fn watch(watcher: Option<Watcher>) {
        WATCHER.set(watcher);
    }
}
