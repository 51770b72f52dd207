//! The links of a node, and which of them are uplinks.
//!
//! * [`Links`] reads them: a [`Snapshot`] on request, and [`Changes`] to know when to request.
//! * [`uplinks`] and [`classify`] decide, as pure functions of a snapshot, which links pods may be attached
//!   to.
//! * [`Netns`] pins a pod's network namespace and works inside it.
//!
//! * [`HostLink`] is a link that is lent to a pod, and given back as it was: the one thing here that changes links.
//!
//! No thread but a fresh one ever enters another namespace.

mod changes;
mod host_link;
mod link;
mod netlink;
mod netns;
mod sysfs;
mod uplinks;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

pub use changes::Changes;
pub use host_link::{Address, GivenBack, HostLink, InPod, Which};
pub use link::{Link, OperState};
pub use netns::{Netns, NetnsId};
pub use uplinks::{LinkAddress, NodeTraffic, NotUplink, Relation, Traffic, classify, leads_out, uplinks};

/// Reads the links of the network namespace this process runs in.
#[derive(Debug, Clone)]
pub struct Links {
    sysfs: PathBuf,
}

/// The links of a node at one moment, and what the node itself uses them for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// All links, ordered by index.
    pub links: Vec<Link>,
    /// Indices of the links that default routes lead through: IPv4 and IPv6, in any table.
    pub default_route_links: BTreeSet<u32>,
    /// Where other routes lead to than into the subnets of the link's own addresses, by index: one of them for each link.
    pub routes: BTreeMap<u32, IpNet>,
    /// IP addresses, by index.
    pub addresses: BTreeMap<u32, Vec<LinkAddress>>,
}

impl Snapshot {
    /// The links that are uplinks by default; see [`uplinks()`].
    pub fn uplinks(&self) -> Vec<&Link> {
        uplinks(self)
    }

    /// The links that are stacked on the one of this index, in this network namespace: the kernel does not tell of those in
    /// others.
    pub fn stacked_on(&self, index: u32) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(move |link| uplinks::parent(link) == Some(index))
    }
}

impl Links {
    /// Reads what netlink does not tell from the sysfs mounted at `sysfs`, usually `/sys`. It must show the
    /// same network namespace; if not, speeds and device data are unknown.
    pub fn new(sysfs: impl Into<PathBuf>) -> Self {
        Self { sysfs: sysfs.into() }
    }

    /// All links, addresses and routes as they are now.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when links change faster than they can be listed: try again a little later.
    /// [`Error::HiddenNexthop`] when the node's own links cannot be told from others. Else netlink failed.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let sysfs = self.sysfs.clone();
        blocking(move || {
            let mut socket = netlink::Socket::open()?;
            let links = read_links(&mut socket, &sysfs)?;
            let addresses = socket.all_addresses()?;
            let mut snapshot = Snapshot { links, addresses, ..Snapshot::default() };
            for (link, to) in socket.routes()? {
                if to.prefix_len() == 0 {
                    snapshot.default_route_links.insert(link);
                } else {
                    snapshot.routes.entry(link).or_insert(to);
                }
            }
            Ok(snapshot)
        })
        .await
    }

    /// Hardware addresses that links take frames for and that no link of this namespace has, by index: those of macvlan
    /// links in other namespaces. The kernel tells of no change of these. An ipvlan has its parent's address, and a VLAN
    /// mostly too: they are not found.
    ///
    /// # Errors
    /// As of [`snapshot`](Self::snapshot).
    pub async fn addresses_elsewhere(&self) -> Result<BTreeMap<u32, BTreeSet<String>>, Error> {
        blocking(|| {
            let mut socket = netlink::Socket::open()?;
            let mut addresses = socket.unicast_addresses()?;
            let links = socket.links()?;
            let here: BTreeSet<&str> = links.iter().filter_map(|link| link.mac.as_deref()).collect();
            // What these list are addresses of others that they forward to.
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

    /// Subscribes to changes; do so before the first snapshot.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn changes(&self) -> Result<Changes, Error> {
        Changes::subscribe()
    }

    /// Whether the kernel can make links of a kind, such as `macvlan` or `ipvlan`. Loads the module
    /// that a plugin would load, and makes no link.
    ///
    /// # Errors
    /// [`Error::Kind`] if the kernel refuses to say (`CAP_NET_ADMIN` is needed).
    pub async fn kernel_has(&self, kind: &str) -> Result<bool, Error> {
        let kind = kind.to_owned();
        blocking(move || netlink::Socket::open()?.kernel_has(&kind)).await
    }
}

/// All links, with what `sysfs` knows of them. Blocks.
fn read_links(socket: &mut netlink::Socket, sysfs: &Path) -> Result<Vec<Link>, Error> {
    let mut links = socket.links()?;
    // Reading a speed takes the rtnl lock; the hundreds of pods' ends are not worth it.
    for link in links.iter_mut().filter(|link| !uplinks::is_pod_end(link.kind.as_deref(), &link.name)) {
        let hardware = sysfs::hardware(sysfs, &link.name, link.index);
        link.speed = hardware.speed;
        link.driver = hardware.driver;
        link.pci_id = hardware.pci_id;
        link.pci_bus_id = hardware.pci_bus_id;
        link.pcie_root = hardware.pcie_root;
        link.numa_node = hardware.numa_node;
        link.physical_function = hardware.physical_function;
        link.virtual_functions = hardware.virtual_functions;
    }
    Ok(links)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(Error::Aborted)?
}

impl Error {
    /// Whether the namespace is proven not to be at the path any more, as opposed to not being looked at.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::NotANetns { .. } => true,
            Self::NetnsOpen { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }
}

/// Why links or a namespace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An rtnetlink socket could not be opened, or broke.
    #[error("no rtnetlink socket")]
    Socket(#[source] io::Error),
    /// The kernel did not answer a dump.
    #[error("cannot list the {what} of the network namespace")]
    Dump {
        /// `links`, `addresses` or `routes`.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Every one of the dumps was disturbed by a change.
    #[error("the {what} changed during each of {tries} attempts to list them")]
    Interrupted {
        /// `links`, `addresses` or `routes`.
        what: &'static str,
        /// How many dumps were taken.
        tries: u32,
    },
    /// A route names a nexthop object and not its link.
    #[error(
        "a route shows only the id of a nexthop object, which hides the node's own link: \
         set the sysctl net.ipv4.nexthop_compat_mode to 1"
    )]
    HiddenNexthop,
    /// The kernel did not tell whether it has a kind of link.
    #[error("cannot find out whether the kernel has links of kind {kind:?}")]
    Kind {
        /// The kind asked for.
        kind: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused to change a link.
    #[error("link {link}: cannot {change}")]
    Change {
        /// Its name at the time.
        link: String,
        /// What was to be done.
        change: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Changes of a link do not last: a driver ignores them, or somebody else changes it too.
    #[error("link {link} does not stay as it was before it was lent; still to do: {left}")]
    NotAsItWas {
        /// Its name.
        link: String,
        /// What is to be done.
        left: String,
    },
    /// The runtime stopped, or a bug panicked, while links were read.
    #[error("reading the links was cut short")]
    Aborted(#[source] tokio::task::JoinError),
    /// A namespace's path could not be opened.
    #[error("cannot open the network namespace at {path}", path = path.display())]
    NetnsOpen {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// What is at the path is not a network namespace.
    #[error(
        "{path} is not a network namespace; an empty file stays behind when one is unmounted",
        path = path.display()
    )]
    NotANetns {
        /// The path.
        path: PathBuf,
    },
    /// A namespace could not be entered.
    #[error("cannot enter network namespace {ino}")]
    NetnsEnter {
        /// Inode number of the namespace.
        ino: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Work inside a namespace panicked.
    #[error("work inside network namespace {ino} panicked")]
    NetnsPanic {
        /// Inode number of the namespace.
        ino: u64,
    },
}
