//! Files that are replaced whole, or not at all, whenever the machine stops: a new file beside the old one, fsync, rename,
//! fsync of the directory.

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

/// Whether a change that is done has to outlast the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// Also when the power goes.
    OnDisk,
    /// As long as the kernel runs: nobody waits for the disk.
    InKernel,
}

/// A file that is complete, under a name that means nothing yet.
#[must_use]
pub struct Pending<'a> {
    path: &'a Path,
    lasting: Lasting,
}

impl<'a> Pending<'a> {
    /// Writes the file at `path`, for its owner only. There is none if that fails: a full disk has no room for halves.
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

    /// Puts it in the place of what is at `path`, in the same directory.
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
        // Whoever removed it may not have lived to sync the directory.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::to("remove", path)(error)),
        _ => sync_dir_of(path, lasting),
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

/// What was done in this thread, for tests: what a power cut leaves can only be told from the order.
#[cfg(any(test, feature = "write-trace"))]
pub mod trace {
    use std::cell::RefCell;
    use std::path::Path;

    thread_local!(static DONE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });

    pub(super) fn note(verb: &str, path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        DONE.with_borrow_mut(|done| done.push(format!("{verb} {name}")));
    }

    /// What was done since the last question.
    pub fn take() -> Vec<String> {
        DONE.take()
    }
}
