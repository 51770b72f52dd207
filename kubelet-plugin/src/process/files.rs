//! Small files that are whole or not there.

use std::fs;
use std::io;
use std::path::Path;

/// Puts a file in place of what is at `path`, atomically. One that is the same stays, whether or not the disk is full.
///
/// # Errors
/// When it is not there afterwards.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    if fs::read(path).is_ok_and(|known| known == text.as_bytes()) {
        return Ok(());
    }
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
