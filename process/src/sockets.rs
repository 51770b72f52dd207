//! Unix sockets that only root and the program's own user can use.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};

/// Listens on a socket that replaces whatever is at `path`.
///
/// # Errors
/// When the socket cannot be created.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(socket)
}

/// Accepts connections until dropped, and answers each in a task of its own, which then still ends by itself.
pub async fn serve<A>(listener: UnixListener, answer: impl Fn(UnixStream) -> A)
where
    A: Future<Output = io::Result<()>> + Send + 'static,
{
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match check_peer(&stream) {
                Ok(()) => {
                    let answer = answer(stream);
                    tokio::spawn(async move {
                        if let Err(error) = answer.await {
                            tracing::debug!(%error, "the peer closed its connection");
                        }
                    });
                }
                Err(error) => tracing::debug!(%error, "refused a connection"),
            },
            Err(error) => {
                // Most likely the process has no free descriptors. Peers wait meanwhile.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Refuses a peer that is neither root nor the program's user. The mode of a socket that is a file keeps it
/// out already; anybody can have an abstract one.
pub(crate) fn check_peer(stream: &UnixStream) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if may_be_peer(peer, nix::unistd::geteuid().as_raw()) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the peer is another user: {peer}")))
}

const fn may_be_peer(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own
}

/// Removes the sockets in `dir` that have a name of `ours` and no listener.
pub fn remove_dead(dir: &Path, ours: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let dead = || matches!(StdStream::connect(&path), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused);
        if entry.file_name().to_str().is_some_and(&ours) && dead() {
            // A socket that stays does no harm.
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_root_or_the_own_user() {
        let may = [(0, 0), (0, 65532), (65532, 65532), (1000, 65532), (65532, 0)];
        assert_eq!(may.map(|(peer, own)| may_be_peer(peer, own)), [true, true, true, false, false]);
    }

    #[tokio::test]
    async fn only_sockets_without_a_listener_are_removed() {
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
        // A regular file refuses connections too, and is not needed there.
        assert_eq!(left, ["a.sock", "other"]);
    }
}
