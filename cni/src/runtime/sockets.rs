//! Sockets of daemons that serve plugins: `DIR/TYPE.sock`.
//!
//! Who can put a socket there gets what plugins get, and answers for them. So both the directory and the
//! socket must be root's alone, or those of the user that runs this program.

use std::fs::{Metadata, symlink_metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use super::error::ErrorKind;
use super::known_versions::{Fingerprint, Program};
use crate::names::PluginType;

/// Permissions of the group and of others to write.
const WRITABLE: u32 = 0o022;

/// Returns the path of the plugin's socket in `dir`.
pub(crate) fn path(dir: &Path, plugin: &PluginType) -> PathBuf {
    dir.join(format!("{plugin}.sock"))
}

/// Finds the plugin's socket.
///
/// # Errors
/// [`ErrorKind::Daemon`] if it is not there, [`ErrorKind::Untrusted`] if others could have put it there.
pub(crate) fn find(dir: &Path, plugin: &PluginType) -> Result<Program, ErrorKind> {
    let path = path(dir, plugin);
    let look =
        |of: &Path| symlink_metadata(of).map_err(|source| ErrorKind::Daemon { path: path.clone(), source });
    let (above, socket) = (look(dir)?, look(&path)?);
    let refused = |path: &Path, problem| ErrorKind::Untrusted { path: path.to_owned(), problem };
    if let Some(problem) = fault(&above) {
        return Err(refused(dir, problem));
    }
    if !socket.file_type().is_socket() {
        return Err(refused(&path, "is not a socket".to_owned()));
    }
    if let Some(problem) = fault(&socket) {
        return Err(refused(&path, problem));
    }
    Ok(Program { path, file: Fingerprint::of(&socket), is_socket: true })
}

/// Returns why a file or directory is not this user's or root's alone.
pub(crate) fn fault(file: &Metadata) -> Option<String> {
    if file.is_symlink() {
        return Some("is a symbolic link".to_owned());
    }
    if !is_trusted(file.uid()) {
        return Some(format!("belongs to user {}", file.uid()));
    }
    (file.mode() & WRITABLE != 0)
        .then(|| format!("has mode {:03o}: others can write it", file.mode() & 0o777))
}

/// Whether the user may serve plugins: root, or the user that runs this program.
pub(crate) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}
