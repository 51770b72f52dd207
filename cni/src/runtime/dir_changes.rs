//! Changes in directories.
//!
//! Directories need not exist: the nearest one above that does is watched until they do. A watch belongs to
//! the directory itself and not to its path, so it works across mount namespaces once it has been set in the
//! right one.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

/// A subscription to changes in directories.
///
/// A tick means that a file may have been created, removed, written or changed in mode, never which one.
/// Subscribe before the first look, and look again after every tick. Changes to the target of a link or to a
/// directory further up (`/opt` renamed) are missed: look occasionally for those.
#[derive(Debug)]
pub struct DirChanges {
    dirs: Vec<PathBuf>,
    watches: Watches,
}

impl DirChanges {
    /// Watches these directories.
    ///
    /// # Errors
    /// When the kernel has no inotify instance or watch left; `fs.inotify` limits them.
    pub fn subscribe(dirs: Vec<PathBuf>) -> io::Result<Self> {
        let watches = Watches::start(watch(&dirs)?)?;
        Ok(Self { dirs, watches })
    }

    /// The directories.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Waits for the next change. Cancel safe.
    ///
    /// # Errors
    /// When the directories cannot be watched any more: subscribe and look again.
    pub async fn tick(&mut self) -> io::Result<()> {
        if self.watches.tick().await? == Coverage::Partial {
            // The new watches report everything from here on.
            self.watches = Watches::start(watch(&self.dirs)?)?;
        }
        Ok(())
    }
}

/// Whether watches report every later change. Those that do are kept: to close an inotify descriptor, a
/// thread waits for milliseconds in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// Every directory is there, and watched itself.
    Whole,
    /// A directory is missing, has come or is gone, or events were lost: watch again.
    Partial,
}

/// Watches that can be waited for.
#[derive(Debug)]
pub(crate) struct Watches {
    descriptor: AsyncFd<Descriptor>,
    coverage: Coverage,
}

#[derive(Debug)]
struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Watches {
    /// Has this runtime wait for new watches.
    pub(crate) fn start((watches, coverage): (Inotify, Coverage)) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types whose descriptor changes; ours does not"
        )]
        let descriptor = AsyncFd::new(Descriptor(watches))?;
        Ok(Self { descriptor, coverage })
    }

    /// Waits until something has changed. Cancel safe.
    pub(crate) async fn tick(&self) -> io::Result<Coverage> {
        loop {
            let mut ready = self.descriptor.readable().await?;
            let changes = changes(&ready.get_inner().0)?;
            ready.clear_ready();
            if let Some(coverage) = changes {
                return Ok(if self.coverage == Coverage::Whole { coverage } else { Coverage::Partial });
            }
        }
    }
}

/// Takes all events that wait. Returns whether the watches are as they were; `None` if there is no event.
fn changes(inotify: &Inotify) -> io::Result<Option<Coverage>> {
    let of_itself = AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_IGNORED
        | AddWatchFlags::IN_UNMOUNT
        | AddWatchFlags::IN_Q_OVERFLOW;
    let mut found = None;
    loop {
        match inotify.read_events() {
            Ok(events) if events.iter().any(|event| event.mask.intersects(of_itself)) => {
                found = Some(Coverage::Partial);
            }
            Ok(_) => {
                found.get_or_insert(Coverage::Whole);
            }
            Err(Errno::EAGAIN) => return Ok(found),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Watches for `dirs`, as the calling thread sees them.
pub(crate) fn watch(dirs: &[PathBuf]) -> io::Result<(Inotify, Coverage)> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let mut coverage = Coverage::Whole;
    for dir in dirs {
        if watch_nearest(&inotify, dir)? == Coverage::Partial {
            coverage = Coverage::Partial;
        }
    }
    Ok((inotify, coverage))
}

/// Watches `dir`, or what is above it until it is there.
fn watch_nearest(inotify: &Inotify, dir: &Path) -> io::Result<Coverage> {
    let mut missing = None;
    for there in dir.ancestors() {
        if !add(inotify, there)? {
            missing = Some(there);
            continue;
        }
        return match missing {
            // It may have come before its parent was watched.
            Some(missing) if add(inotify, missing)? => watch_nearest(inotify, dir),
            Some(_) => Ok(Coverage::Partial),
            None => Ok(Coverage::Whole),
        };
    }
    Ok(Coverage::Partial)
}

/// Watches one directory; whether it is there.
fn add(inotify: &Inotify, dir: &Path) -> io::Result<bool> {
    let files = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE;
    let itself = AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_ONLYDIR;
    match inotify.add_watch(dir, files | itself) {
        Ok(_) => Ok(true),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn ticks(changes: &mut DirChanges, what: &str, change: impl FnOnce()) {
        // What is left of the last change.
        while timeout(Duration::from_millis(20), changes.tick()).await.is_ok() {}
        change();
        timeout(Duration::from_secs(10), changes.tick()).await.expect(what).expect(what);
    }

    #[tokio::test]
    async fn a_plugin_that_comes_goes_or_changes_its_mode_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (plugin, other) = (dir.path().join("bridge"), dir.path().join(".bridge"));
        let mut changes = DirChanges::subscribe(vec![dir.path().to_owned()]).unwrap();
        ticks(&mut changes, "made", || fs::write(&plugin, "").unwrap()).await;
        ticks(&mut changes, "mode", || {
            fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        })
        .await;
        ticks(&mut changes, "renamed", || fs::rename(&plugin, &other).unwrap()).await;
        ticks(&mut changes, "back", || fs::rename(&other, &plugin).unwrap()).await;
        ticks(&mut changes, "removed", || fs::remove_file(&plugin).unwrap()).await;
    }

    #[tokio::test]
    async fn a_directory_that_is_made_later_is_watched_from_then_on() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("opt/cni/bin");
        let mut changes = DirChanges::subscribe(vec![dir.clone()]).unwrap();
        ticks(&mut changes, "made", || fs::create_dir_all(&dir).unwrap()).await;
        ticks(&mut changes, "plugin", || fs::write(dir.join("bridge"), "").unwrap()).await;
        ticks(&mut changes, "removed", || fs::remove_dir_all(&dir).unwrap()).await;
        ticks(&mut changes, "made again", || fs::create_dir(&dir).unwrap()).await;
        ticks(&mut changes, "plugin again", || fs::write(dir.join("bridge"), "").unwrap()).await;
    }

    #[tokio::test]
    async fn nothing_is_told_while_nothing_happens() {
        let dir = tempfile::tempdir().unwrap();
        let mut changes = DirChanges::subscribe(vec![dir.path().to_owned()]).unwrap();
        fs::write(dir.path().join("bridge"), "").unwrap();
        changes.tick().await.unwrap();
        // Reading is not a change.
        fs::read(dir.path().join("bridge")).unwrap();
        assert!(timeout(Duration::from_millis(50), changes.tick()).await.is_err());
    }
}
