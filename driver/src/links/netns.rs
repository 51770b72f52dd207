//! A network namespace held by a descriptor, so that it can neither vanish nor be mistaken for another.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{Error, Link, netlink};

/// The namespace of the process: that of its first thread, which never leaves it.
const OF_PROCESS: &str = "/proc/self/ns/net";
/// The namespace of the calling thread.
const OF_THREAD: &str = "/proc/thread-self/ns/net";

/// Identity of a namespace. The kernel gives the number to another one once the namespace is gone: two
/// identities taken at different times say something only if a [`Netns`] was held in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NetnsId {
    /// Device number of the namespace file system.
    pub dev: u64,
    /// Inode number, as in `net:[4026531840]`.
    pub ino: u64,
}

/// A pinned network namespace; clones share the pin.
///
/// While any clone lives, so do the namespace and the links in it, even after the pod is gone: let go as
/// soon as the last DEL is done.
#[derive(Debug, Clone)]
pub struct Netns {
    fd: Arc<OwnedFd>,
    id: NetnsId,
}

impl Netns {
    /// Pins the network namespace at `path`: a bind mount such as `/run/netns/cni-…`, or
    /// `/proc/<pid>/ns/net`. Blocks for as long as it takes to start a thread.
    ///
    /// The path is let go again: an open file on a bind mount would make the runtime's `umount` fail with
    /// `EBUSY`.
    ///
    /// # Errors
    /// [`Error::NetnsOpen`] (`CAP_SYS_ADMIN` is needed); [`Error::NotANetns`] for anything else than a
    /// network namespace, above all the empty file that stays behind when a bind mount is undone.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let failed = |source| Error::NetnsOpen { path: path.to_owned(), source };
        // O_NONBLOCK: a FIFO in its place must not stop us.
        let mounted =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        let file_system = fstatfs(&mounted).map_err(|errno| failed(errno.into()))?;
        if file_system.filesystem_type() != NSFS_MAGIC {
            return Err(Error::NotANetns { path: path.to_owned() });
        }
        let pin = match off_its_mount(&mounted) {
            // A namespace of another type.
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => {
                return Err(Error::NotANetns { path: path.to_owned() });
            }
            pin => pin.map_err(failed)?,
        };
        let id = id(&pin.metadata().map_err(failed)?);
        Ok(Self { fd: Arc::new(pin.into()), id })
    }

    /// The namespace's identity.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Whether this is the namespace this process runs in, as with a pod on the host's network.
    ///
    /// # Errors
    /// [`Error::NetnsOpen`] if procfs cannot be read.
    pub fn is_own(&self) -> Result<bool, Error> {
        let own = fs::metadata(OF_PROCESS)
            .map_err(|source| Error::NetnsOpen { path: OF_PROCESS.into(), source })?;
        Ok(id(&own) == self.id)
    }

    /// Whether `path` still leads to this namespace. A path that leads nowhere does not.
    ///
    /// # Errors
    /// [`Error::NetnsOpen`] if that cannot be told, for want of permission for example.
    pub fn still_at(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        let path = path.as_ref();
        match fs::metadata(path) {
            Ok(found) => Ok(id(&found) == self.id),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(false)
            }
            Err(source) => Err(Error::NetnsOpen { path: path.to_owned(), source }),
        }
    }

    /// A path to hand to CNI plugins as `CNI_NETNS`: it leads to this namespace for as long as this pin (or
    /// a clone of it) and this process live, even after the runtime has removed its own.
    pub fn path_for_plugins(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()).into()
    }

    /// Runs `work` inside the namespace, on a thread of its own that ends with it: a thread that has
    /// been elsewhere must never run anything else. `work` may block.
    ///
    /// # Errors
    /// [`Error::NetnsEnter`] if no thread can be had or it cannot enter (`CAP_SYS_ADMIN` is needed);
    /// [`Error::NetnsPanic`] if `work` panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (done, result) = oneshot::channel();
        let fd = Arc::clone(&self.fd);
        let enter_and_work = move || {
            let entered = setns(fd.as_fd(), CloneFlags::CLONE_NEWNET);
            // Nobody listens when the caller has been cancelled.
            let _ = done.send(entered.map(|()| work()));
        };
        let failed = |source| Error::NetnsEnter { ino: self.id.ino, source };
        thread::Builder::new().name("netns".to_owned()).spawn(enter_and_work).map_err(failed)?;
        match result.await {
            Ok(entered) => entered.map_err(|errno| failed(errno.into())),
            Err(_) => Err(Error::NetnsPanic { ino: self.id.ino }),
        }
    }

    /// The links in the namespace, without what sysfs knows.
    ///
    /// # Errors
    /// As [`Netns::run`], and what a dump of links can fail with.
    pub async fn links(&self) -> Result<Vec<Link>, Error> {
        self.run(|| netlink::Socket::open()?.links()).await?
    }

    /// The names taken in the namespace, alternative names included: none of them can be given to a new
    /// interface.
    ///
    /// # Errors
    /// As of [`Netns::links`].
    pub async fn link_names(&self) -> Result<BTreeSet<String>, Error> {
        let links = self.links().await?;
        Ok(links.into_iter().flat_map(|link| std::iter::once(link.name).chain(link.alt_names)).collect())
    }
}

/// Opens the same namespace by way of a thread that has entered it, and so on the kernel's own mount.
fn off_its_mount(mounted: &File) -> io::Result<File> {
    let enter_and_open = || {
        setns(mounted, CloneFlags::CLONE_NEWNET)?;
        File::open(OF_THREAD)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, enter_and_open)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that enters the namespace panicked")))
    })
}

fn id(metadata: &fs::Metadata) -> NetnsId {
    NetnsId { dev: metadata.dev(), ino: metadata.ino() }
}

#[cfg(test)]
impl Netns {
    /// A pin of nothing, for tests that only pass it around: opening a real one takes root.
    pub(crate) fn fake(id: NetnsId) -> Self {
        let file = fs::File::open("/dev/null").expect("/dev/null");
        Self { fd: Arc::new(file.into()), id }
    }
}
