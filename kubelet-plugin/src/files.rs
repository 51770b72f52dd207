//! Small files that are whole or not there.

use std::fs;
use std::io;
use std::path::Path;

/// Puts a file in place of what is at `path`, atomically.
///
/// # Errors
/// When it is not there afterwards.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let tmp = path.with_extension("tmp");
    fs::write(&tmp, text)?;
    fs::rename(&tmp, path)
}

/// Removes a file that need not be there.
///
/// # Errors
/// When it is still there afterwards.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
