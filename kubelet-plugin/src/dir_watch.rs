//! Notices that something changed in directories, by inotify.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches directories. It tells that something changed, never what: look again after every tick.
#[derive(Debug)]
pub struct DirWatch(AsyncFd<Watcher>);

/// As tokio wants it.
#[derive(Debug)]
struct Watcher(Inotify);

impl AsRawFd for Watcher {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl DirWatch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// When there is no room for another inotify instance (`fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types whose descriptor changes; ours does not"
        )]
        let watched = AsyncFd::with_interest(Watcher(inotify), Interest::READABLE)?;
        Ok(Self(watched))
    }

    /// Watches one more directory: files that come, go, or have been written. Doing so twice changes nothing.
    ///
    /// # Errors
    /// When it is not there, or there is no room for another watch.
    pub fn watch(&self, dir: &Path) -> io::Result<()> {
        let events = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        self.0.get_ref().0.add_watch(dir, events)?;
        Ok(())
    }

    /// Waits for the next change, and takes all that have come by then.
    ///
    /// # Errors
    /// When the instance is broken.
    pub async fn changed(&self) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        loop {
            match ready.get_inner().0.read_events() {
                Ok(_) => {}
                Err(Errno::EAGAIN) => {
                    ready.clear_ready();
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_file_that_comes_and_goes_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let watch = DirWatch::new().expect("inotify");
        watch.watch(dir.path()).expect("watched");
        let soon = |watch| tokio::time::timeout(Duration::from_secs(5), DirWatch::changed(watch));
        let file = dir.path().join("a");
        std::fs::write(&file, "x").expect("written");
        soon(&watch).await.expect("noticed").expect("readable");
        std::fs::remove_file(&file).expect("removed");
        soon(&watch).await.expect("noticed").expect("readable");
        let quiet = tokio::time::timeout(Duration::from_millis(50), watch.changed()).await;
        assert!(quiet.is_err(), "nothing more happened");
    }
}
