//! A network namespace held by a descriptor, so that it can neither end nor be confused with another.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
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

use super::address::Address;
use super::counters::Counters;
use super::error::Error;
use super::link::Link;
use super::netlink;
use super::on_the_wire;
use super::ping::{self, Ping, Pinged};
use super::probe::{self, InUse};

/// The namespace of the process: that of its first thread, which never leaves it.
const OF_PROCESS: &str = "/proc/self/ns/net";
/// The namespace of the calling thread.
const OF_THREAD: &str = "/proc/thread-self/ns/net";

/// Identity of a namespace. The kernel reuses the number after the namespace has ended: compare identities of
/// different times only if a [`Netns`] was held in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NetnsId {
    /// Device number of the namespace file system.
    pub dev: u64,
    /// Inode number, as in `net:[4026531840]`.
    pub ino: u64,
}

/// A pinned network namespace; clones share the pin.
///
/// While any clone exists, so do the namespace and its links, even after the pod has ended: drop it after the
/// last DEL.
#[derive(Debug, Clone)]
pub struct Netns {
    fd: Arc<OwnedFd>,
    id: NetnsId,
}

impl Netns {
    /// Pins the network namespace at `path`: a bind mount such as `/run/netns/cni-…`, or
    /// `/proc/<pid>/ns/net`. Blocks for as long as it takes to start a thread.
    ///
    /// The pin does not keep the path open: an open file on a bind mount would make the runtime's `umount`
    /// fail with `EBUSY`.
    ///
    /// # Errors
    /// [`Error::NetnsOpen`] (`CAP_SYS_ADMIN` is needed). [`Error::NotANetns`] for any other file, such as the
    /// empty file that unmounting a bind mount leaves.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let failed = |source| Error::NetnsOpen { path: path.to_owned(), source };
        // O_NONBLOCK: opening a FIFO at the path must not block.
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

    /// Pins the network namespace of the calling thread.
    ///
    /// # Errors
    /// As of [`Netns::open`].
    pub fn of_thread() -> Result<Self, Error> {
        Self::open(OF_THREAD)
    }

    /// The descriptor, for netlink messages.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The namespace's identity.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Whether this is the namespace that this process runs in, as for a pod on the host's network.
    ///
    /// # Errors
    /// [`Error::NetnsOpen`] if procfs cannot be read.
    pub fn is_own(&self) -> Result<bool, Error> {
        let own = fs::metadata(OF_PROCESS)
            .map_err(|source| Error::NetnsOpen { path: OF_PROCESS.into(), source })?;
        Ok(id(&own) == self.id)
    }

    /// Returns a path for CNI plugins (`CNI_NETNS`). It is valid while this pin or a clone of it and this
    /// process exist, even after the runtime has removed its own path.
    pub fn path_for_plugins(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()).into()
    }

    /// Runs `work` inside the namespace, on a new thread that ends afterwards: a thread that has entered a
    /// namespace must not run anything else. `work` may block.
    ///
    /// # Errors
    /// [`Error::NetnsEnter`] if no thread can be started or it cannot enter (`CAP_SYS_ADMIN` is needed).
    /// [`Error::NetnsPanic`] if `work` panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (done, result) = oneshot::channel();
        let fd = Arc::clone(&self.fd);
        let enter_and_work = move || {
            let entered = setns(fd.as_fd(), CloneFlags::CLONE_NEWNET);
            // Fails if the caller was cancelled.
            let _ = done.send(entered.map(|()| work()));
        };
        let failed = |source| Error::NetnsEnter { ino: self.id.ino, source };
        thread::Builder::new().name("netns".to_owned()).spawn(enter_and_work).map_err(failed)?;
        match result.await {
            Ok(entered) => entered.map_err(|errno| failed(errno.into())),
            Err(_) => Err(Error::NetnsPanic { ino: self.id.ino }),
        }
    }

    /// Has links that come to the namespace from now on announce their addresses if `announces`, and take
    /// addresses and routes from router advertisements if `accept_ra`.
    ///
    /// # Errors
    /// As of [`Netns::run`], and [`Error::Default`] if `/proc/sys` cannot be written.
    pub async fn set_defaults(&self, accept_ra: bool, announces: bool) -> Result<(), Error> {
        self.run(move || on_the_wire::set_defaults(accept_ra, announces)).await?
    }

    /// Returns those of the addresses of a link in the namespace that other hosts on its network have. Takes
    /// 0.75 s, or up to 2.5 s where the kernel is still looking.
    ///
    /// # Errors
    /// As of [`Netns::links`], and [`Error::Probe`] (`CAP_NET_RAW` is needed).
    pub async fn in_use(&self, name: &str, ips: Vec<IpAddr>) -> Result<Vec<InUse>, Error> {
        let name = name.to_owned();
        self.run(move || probe::in_use(&name, &ips)).await?
    }

    /// Returns the addresses of a link in the namespace of which the kernel has found that other hosts have
    /// them. If there is one, takes as long as [`Netns::in_use`].
    ///
    /// # Errors
    /// As of [`Netns::in_use`].
    pub async fn found_in_use(&self, name: &str) -> Result<Vec<InUse>, Error> {
        let name = name.to_owned();
        self.run(move || probe::found_by_kernel(&name)).await?
    }

    /// Returns those of the addresses of a link in the namespace that other hosts have besides, as
    /// [`Netns::in_use`] does, and tells no neighbour.
    ///
    /// # Errors
    /// As of [`Netns::in_use`].
    pub async fn used_twice(&self, name: &str, ips: Vec<IpAddr>) -> Result<Vec<InUse>, Error> {
        let name = name.to_owned();
        self.run(move || probe::used_twice(&name, &ips)).await?
    }

    /// Sends probes by a link in the namespace, and returns which it has heard of others. Takes
    /// [`Ping::WINDOW`].
    ///
    /// # Errors
    /// As of [`Netns::in_use`].
    pub async fn ping(&self, name: &str, ping: Ping) -> Result<Pinged, Error> {
        let name = name.to_owned();
        self.run(move || ping::ping(&name, ping)).await?
    }

    /// Announces addresses of a link in the namespace that [nobody else has](Netns::in_use), and has the
    /// kernel announce all addresses of the link from now on.
    ///
    /// # Errors
    /// As of [`Netns::run`], and [`Error::Announce`].
    pub async fn announce_probed(&self, name: &str, ips: Vec<IpAddr>) -> Result<(), Error> {
        let name = name.to_owned();
        self.run(move || probe::announce(&name, &ips)).await?
    }

    /// Returns those of the neighbours of a link in the namespace whose hardware address is not known, and
    /// has the kernel ask for them.
    ///
    /// # Errors
    /// As of [`Netns::links`], and [`Error::Neighbour`].
    pub async fn unknown_neighbours(&self, name: &str, ips: Vec<IpAddr>) -> Result<Vec<IpAddr>, Error> {
        let name = name.to_owned();
        self.run(move || on_the_wire::unknown(&name, &ips)).await?
    }

    /// Announces the addresses of a link in the namespace to its neighbours.
    ///
    /// # Errors
    /// As of [`Netns::links`], and [`Error::Announce`].
    pub async fn announce(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.run(move || on_the_wire::announce(&name)).await?
    }

    /// Reads the links in the namespace, without the data of sysfs.
    ///
    /// # Errors
    /// As of [`Netns::run`] and of a dump of links.
    pub async fn links(&self) -> Result<Vec<Link>, Error> {
        self.run(|| netlink::Socket::open()?.links()).await?
    }

    /// Reads a link in the namespace, without the data of sysfs, and its addresses.
    ///
    /// # Errors
    /// As of [`Netns::links`].
    pub async fn link_with_addresses(&self, name: &str) -> Result<Option<(Link, Vec<Address>)>, Error> {
        let name = name.to_owned();
        let read = move || {
            let mut socket = netlink::Socket::open()?;
            let Some(link) = socket.links()?.into_iter().find(|link| link.name == name) else {
                return Ok(None);
            };
            let addresses = socket.addresses(link.index)?;
            Ok(Some((link, addresses)))
        };
        self.run(read).await?
    }

    /// Reads what has passed through these links of the namespace, in their order; `None` for one that is not
    /// there.
    ///
    /// # Errors
    /// As of [`Netns::links`].
    pub async fn counters(&self, names: Vec<String>) -> Result<Vec<Option<Counters>>, Error> {
        let read = move || {
            let mut socket = netlink::Socket::open()?;
            names.iter().map(|name| socket.counters(name)).collect()
        };
        self.run(read).await?
    }

    /// Reads all names of links in the namespace, alternative names included. A new interface can have none
    /// of them.
    ///
    /// # Errors
    /// As of [`Netns::links`].
    pub async fn link_names(&self) -> Result<BTreeSet<String>, Error> {
        let links = self.links().await?;
        Ok(links.into_iter().flat_map(|link| std::iter::once(link.name).chain(link.alt_names)).collect())
    }
}

/// Opens the same namespace from a thread that has entered it, and so on the kernel's own mount.
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
    /// A pin of no namespace, for tests that only pass it on: a real one needs root.
    pub(crate) fn fake(id: NetnsId) -> Self {
        let file = fs::File::open("/dev/null").expect("/dev/null");
        Self { fd: Arc::new(file.into()), id }
    }
}
