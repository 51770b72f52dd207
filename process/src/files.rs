//! Small files that are complete or absent.

use std::fs;
use std::io;
use std::path::Path;

/// The extension of a file that is being written.
pub const UNFINISHED: &str = "tmp";

/// Replaces the file at `path` atomically. A file with the same text stays, so a full disk is not an error
/// then.
///
/// # Errors
/// When the file does not have this text afterwards.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    if fs::read(path).is_ok_and(|known| known == text.as_bytes()) {
        return Ok(());
    }
    let tmp = path.with_extension(UNFINISHED);
    let replaced = fs::write(&tmp, text).and_then(|()| fs::rename(&tmp, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&tmp);
    }
    replaced
}

/// Removes a file, which need not exist.
///
/// # Errors
/// When it exists afterwards.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
