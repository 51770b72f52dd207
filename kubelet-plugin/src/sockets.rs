//! The agent's listening sockets: made by the agent itself, or made by its [parent](crate::parent) and inherited.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use listenfd::ListenFd;
use tokio::net::UnixListener;

use crate::args::Args;

/// Number of [`Sockets`].
pub(crate) const COUNT: usize = 3;

/// Where others find us. Nobody but root can connect.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// The kubelet's DRA calls.
    pub(crate) calls: StdListener,
    /// Waiting hooks.
    pub(crate) gate: StdListener,
    /// The kubelet's question who we are. The last one: who comes by it finds the others.
    pub(crate) registration: StdListener,
    /// For the process that made them.
    pub(crate) visible: Option<Visible>,
}

/// The registration socket's file, by which the kubelet knows that we are here.
#[derive(Debug)]
pub(crate) struct Visible {
    path: PathBuf,
    inode: u64,
}

impl Visible {
    fn of(path: PathBuf) -> io::Result<Self> {
        let inode = path.symlink_metadata()?.ino();
        Ok(Self { path, inode })
    }

    /// Takes the file away, and with it us from the kubelet's list; not the file of another agent that has come since.
    pub(crate) fn withdraw(&self) {
        if self.path.symlink_metadata().is_ok_and(|file| file.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Sockets {
    /// Listens, in place of what an earlier process left there.
    ///
    /// # Errors
    /// Which socket cannot be made.
    pub(crate) fn bind(args: &Args) -> Result<Self> {
        let listen =
            |path: &Path| listen(path).with_context(|| format!("cannot listen on {}", path.display()));
        let (calls, gate) = (listen(&args.calls_socket())?, listen(&args.gate_socket())?);
        fs::set_permissions(&args.run_dir, Permissions::from_mode(0o700))
            .with_context(|| format!("cannot close {} to others", args.run_dir.display()))?;
        let path = args.registration_socket();
        let registration = listen(&path)?;
        let visible = Visible::of(path).context("cannot find the registration socket again")?;
        Ok(Self { calls, gate, registration, visible: Some(visible) })
    }

    /// Those that the parent has passed, if it has.
    ///
    /// # Errors
    /// When they are not what a parent passes.
    pub(crate) fn inherited() -> Result<Option<Self>> {
        let mut passed = ListenFd::from_env();
        if passed.len() == 0 {
            return Ok(None);
        }
        ensure!(passed.len() == COUNT, "LISTEN_FDS is {}, not {COUNT}", passed.len());
        let mut take = |index| -> Result<StdListener> {
            let socket =
                passed.take_unix_listener(index).with_context(|| format!("inherited socket {index}"))?;
            socket.with_context(|| format!("inherited socket {index} is missing"))
        };
        Ok(Some(Self { calls: take(0)?, gate: take(1)?, registration: take(2)?, visible: None }))
    }

    /// Copies to pass on, in the order in which [`Self::inherited`] takes them.
    ///
    /// # Errors
    /// When there is no room for more descriptors.
    pub(crate) fn copies(&self) -> io::Result<[OwnedFd; COUNT]> {
        let copy = |socket: &StdListener| socket.as_fd().try_clone_to_owned();
        Ok([copy(&self.calls)?, copy(&self.gate)?, copy(&self.registration)?])
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_of_a_later_agent_is_not_taken_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("reg.sock");
        let _first = listen(&path).expect("listens");
        let visible = Visible::of(path.clone()).expect("is there");
        let _second = listen(&path).expect("listens in its place");
        visible.withdraw();
        assert!(path.exists());
        Visible::of(path.clone()).expect("is there").withdraw();
        assert!(!path.exists());
    }
}
