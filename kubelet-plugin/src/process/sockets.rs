//! Unix sockets that nobody but root can use.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};

use crate::process::files;

/// A socket in place of what is at `path`.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    files::remove(path)?;
    let socket = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(socket)
}

/// Answers everyone who connects, each in a task of its own, until dropped; the tasks go on.
pub(crate) async fn serve<A>(listener: UnixListener, answer: impl Fn(UnixStream) -> A)
where
    A: Future<Output = io::Result<()>> + Send + 'static,
{
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match is_ours(&stream) {
                Ok(()) => {
                    let answer = answer(stream);
                    tokio::spawn(async move {
                        if let Err(error) = answer.await {
                            tracing::debug!(%error, "whoever asked went away");
                        }
                    });
                }
                Err(error) => tracing::debug!(%error, "a connection is refused"),
            },
            Err(error) => {
                // Out of descriptors, most likely: whoever asks waits, and so can we.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Refuses a peer that is neither root nor the user we are: the file's mode should have, already.
fn is_ours(stream: &UnixStream) -> io::Result<()> {
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

    #[tokio::test]
    async fn only_sockets_that_nobody_listens_at_are_removed() {
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
