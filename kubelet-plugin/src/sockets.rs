//! Unix sockets that nobody but root can use.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::Path;

use tokio::net::{UnixListener, UnixStream};

/// For tokio.
///
/// # Errors
/// When there is no room for more descriptors.
pub(crate) fn with_tokio(socket: StdListener) -> io::Result<UnixListener> {
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket)
}

/// A socket in place of what is at `path`.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn listen(path: &Path) -> io::Result<StdListener> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = StdListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(socket)
}

/// Refuses a peer that is neither root nor the user we are: the file's mode should have, already.
///
/// # Errors
/// For a stranger.
pub(crate) fn is_ours(stream: &UnixStream) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer is another user"));
    }
    Ok(())
}

/// Removes the sockets in `dir` with such names at which nobody listens any more.
pub(crate) fn remove_dead(dir: &Path, ours: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let dead = || matches!(StdStream::connect(&path), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused);
        if entry.file_name().to_str().is_some_and(&ours) && dead() {
            // One that cannot be removed is a nuisance and no more.
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_that_nobody_listens_at_are_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let _alive = listen(&path("a.sock")).expect("listens");
        drop(listen(&path("b.sock")).expect("listened"));
        drop(listen(&path("other")).expect("listened"));
        fs::write(path("c.sock"), "no socket").expect("written");
        remove_dead(dir.path(), |name| name.ends_with(".sock"));
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .expect("listed")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        left.sort();
        // What is no socket refuses connections too; nobody needs it there.
        assert_eq!(left, ["a.sock", "other"]);
    }
}
