//! Reads the links of the network namespace that this process runs in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use netclaim_cni::IfName;

use super::error::Error;
use super::link::Link;
use super::snapshot::Snapshot;
use super::table::{Dump, Table};
use super::{netlink, sysfs, uplinks};

/// Reads the links of the network namespace that this process runs in, and restores [moved
/// ones](super::HostLink).
#[derive(Debug, Clone)]
pub struct Links {
    pub(super) sysfs: PathBuf,
}

impl Links {
    /// Uses the sysfs mounted at `sysfs`, usually `/sys`, for what netlink does not report. It must be of the
    /// same network namespace; if not, speeds and device data are unknown.
    pub fn new(sysfs: impl Into<PathBuf>) -> Self {
        Self { sysfs: sysfs.into() }
    }

    /// Reads all links, addresses and routes.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if links change faster than they can be listed: retry a little later.
    /// [`Error::HiddenNexthop`] if the kernel hides which links are the node's own. Otherwise netlink failed.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let sysfs = self.sysfs.clone();
        blocking(move || Ok(Table::new(read_all(&sysfs)?).into_snapshot())).await
    }

    /// Reads the hardware addresses, by the index of the link that receives frames for them, that no link of
    /// this namespace has: those of macvlan links in other namespaces.
    ///
    /// The kernel does not report when they change. An ipvlan has its parent's address, and usually a VLAN
    /// does, too: they are not found.
    ///
    /// # Errors
    /// As of [`snapshot`](Self::snapshot).
    pub async fn addresses_elsewhere(&self) -> Result<BTreeMap<u32, BTreeSet<String>>, Error> {
        blocking(|| {
            let mut socket = netlink::Socket::open()?;
            let mut addresses = socket.unicast_addresses()?;
            let links = socket.links()?;
            let here: BTreeSet<&str> = links.iter().filter_map(|link| link.mac.as_deref()).collect();
            // These list the addresses to which they forward frames.
            let forwards = |link: &&Link| matches!(link.kind.as_deref(), Some("bridge" | "vxlan" | "geneve"));
            for link in links.iter().filter(forwards) {
                addresses.remove(&link.index);
            }
            for addresses in addresses.values_mut() {
                addresses.retain(|address| !here.contains(address.as_str()));
            }
            addresses.retain(|_, addresses| !addresses.is_empty());
            Ok(addresses)
        })
        .await
    }

    /// Returns the index of the link of this name, by sysfs: this takes no lock of the kernel's. `None` if
    /// there is no such link.
    pub fn index_of(&self, name: &IfName) -> Option<u32> {
        sysfs::index_of(&self.sysfs, name.as_str())
    }

    /// Whether the kernel supports links of a kind, such as `macvlan` or `ipvlan`. Loads the module that a
    /// plugin would load, and makes no link.
    ///
    /// # Errors
    /// [`Error::Kind`] if the kernel does not answer (`CAP_NET_ADMIN` is needed).
    pub async fn kernel_has(&self, kind: &str) -> Result<bool, Error> {
        let kind = kind.to_owned();
        blocking(move || netlink::Socket::open()?.kernel_has(&kind)).await
    }
}

/// Reads all that a snapshot is made of. Blocks.
pub(super) fn read_all(sysfs: &Path) -> Result<Dump, Error> {
    let mut socket = netlink::Socket::open()?;
    let mut links = socket.links()?;
    read_sysfs(&mut links, sysfs);
    // Routes last: the kernel does not report all that goes with a link or an address. What has gone by now
    // is not listed, and links and addresses that go later are reported.
    Ok(Dump { links, addresses: socket.all_addresses()?, routes: socket.routes()? })
}

/// Reads all links, with their identities and their data in `sysfs`. Blocks.
pub(super) fn read_links(socket: &mut netlink::Socket, sysfs: &Path) -> Result<Vec<Link>, Error> {
    let mut links = socket.links()?;
    for link in &mut links {
        link.identity = sysfs::link_identity(link, sysfs);
    }
    read_sysfs(&mut links, sysfs);
    Ok(links)
}

/// Reads what `sysfs` says of links. Reading a speed takes the rtnl lock: not for the host ends of hundreds
/// of pods.
pub(super) fn read_sysfs(links: &mut [Link], sysfs: &Path) {
    for link in links.iter_mut().filter(|link| !uplinks::is_pod_end(link)) {
        sysfs::read_into(link, sysfs);
    }
}

/// Runs `work` on a thread where it may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(Error::Aborted)?
}
