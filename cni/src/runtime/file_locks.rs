//! Locks among the processes of a host, by files in the directory of a [`Cache`](super::Cache).
//!
//! The rules are those among the tasks of one process ([`Locks`](super::locks::Locks)). The kernel drops the
//! locks of a process that dies.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};

use super::durable::{FileError, create_dir};
use crate::names::{ContainerId, ListName};

/// First and longest pause before a retry.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// No network has this name: names begin with a letter or digit.
const CONTAINERS: &str = ".containers";

/// Held until dropped.
#[derive(Debug)]
pub struct FileLock {
    _files: Vec<File>,
}

/// Waits for operations on the container, and for GC of the network. `None` if `until` comes first.
pub(super) async fn attachment(
    dir: &Path,
    container: &ContainerId,
    network: &ListName,
    until: Instant,
) -> Result<Option<FileLock>, FileError> {
    let (containers, path) = open_off_thread(dir, CONTAINERS).await?;
    if !wait(until, || take_container(&containers, &path, container)).await? {
        return Ok(None);
    }
    let (network, path) = open_off_thread(dir, network.as_str()).await?;
    let taken = wait(until, || outcome(network.try_lock_shared(), &path)).await?;
    Ok(taken.then(|| FileLock { _files: vec![containers, network] }))
}

/// `None` while another operation on the container is under way.
pub(super) fn try_container(dir: &Path, container: &ContainerId) -> Result<Option<FileLock>, FileError> {
    let (containers, path) = open(dir, CONTAINERS)?;
    let taken = take_container(&containers, &path, container)?;
    Ok(taken.then(|| FileLock { _files: vec![containers] }))
}

fn take_container(file: &File, path: &Path, container: &ContainerId) -> Result<bool, FileError> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&range_of(container))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(FileError::to("lock", path)(error.into())),
    }
}

/// Waits for all operations on the network. `None` if `until` comes first.
pub(super) async fn whole_network(
    dir: &Path,
    network: &ListName,
    until: Instant,
) -> Result<Option<FileLock>, FileError> {
    let (network, path) = open_off_thread(dir, network.as_str()).await?;
    let taken = wait(until, || outcome(network.try_lock(), &path)).await?;
    Ok(taken.then(|| FileLock { _files: vec![network] }))
}

/// One byte of one file for each container: no file is left for every container that ever was. Two containers
/// whose bytes are the same one of 2^56 wait for each other, and that is all.
fn range_of(container: &ContainerId) -> libc::flock {
    // The same in every process, of whichever version.
    let hash = Sha256::digest(container.as_str());
    let byte = hash.iter().take(7).fold(0, |byte, next| (byte << 8) | i64::from(*next));
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

/// Polls, because a thread that sleeps in the kernel cannot be woken at the deadline.
async fn wait(
    until: Instant,
    mut try_lock: impl FnMut() -> Result<bool, FileError>,
) -> Result<bool, FileError> {
    let (mut pause, longest) = RETRY_DELAYS;
    loop {
        if try_lock()? {
            return Ok(true);
        }
        if Instant::now() + pause >= until {
            return Ok(false);
        }
        sleep(pause).await;
        pause = longest.min(pause * 2);
    }
}

fn outcome(tried: Result<(), TryLockError>, path: &Path) -> Result<bool, FileError> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(FileError::to("lock", path)(error)),
    }
}

/// Opens on another thread: the disk may be slow.
async fn open_off_thread(dir: &Path, name: &str) -> Result<(File, PathBuf), FileError> {
    let (dir, name) = (dir.to_owned(), name.to_owned());
    let path = dir.clone();
    let opened = tokio::task::spawn_blocking(move || open(&dir, &name)).await;
    opened.unwrap_or_else(|aborted| Err(FileError::to("open", &path)(io::Error::other(aborted))))
}

fn open(dir: &Path, name: &str) -> Result<(File, PathBuf), FileError> {
    let dir = dir.join("locks");
    let path = dir.join(name);
    let open = || File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_dir(&dir)?;
            open()
        }
        opened => opened,
    };
    Ok((file.map_err(FileError::to("open", &path))?, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[tokio::test]
    async fn one_container_has_one_operation_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, net, other) =
            ("a".parse().unwrap(), "b".parse().unwrap(), "net".parse().unwrap(), "other".parse().unwrap());
        let lock =
            async |container, network| attachment(dir.path(), container, network, soon()).await.unwrap();
        let held = lock(&a, &net).await.unwrap();
        assert!(lock(&a, &other).await.is_none());
        assert!(lock(&b, &net).await.is_some());
        drop(held);
        assert!(lock(&a, &other).await.is_some());
    }

    #[tokio::test]
    async fn gc_runs_alone_on_its_network() {
        let dir = tempfile::tempdir().unwrap();
        let (a, net, other) = ("a".parse().unwrap(), "net".parse().unwrap(), "other".parse().unwrap());
        let held = attachment(dir.path(), &a, &net, soon()).await.unwrap().unwrap();
        assert!(whole_network(dir.path(), &net, soon()).await.unwrap().is_none());
        assert!(whole_network(dir.path(), &other, soon()).await.unwrap().is_some());
        drop(held);
        let _held = whole_network(dir.path(), &net, soon()).await.unwrap().unwrap();
        assert!(attachment(dir.path(), &a, &net, soon()).await.unwrap().is_none());
    }
}
