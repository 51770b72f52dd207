//! Host links that are moved into pods, and restored afterwards.
//!
//! A plugin that moves a whole link into a pod (`host-device`) returns it down, with the MTU and hardware
//! address that the pod left, and without addresses and sysctls: the kernel drops those when a link changes
//! its network namespace. If the namespace ends before the plugin's DEL, the kernel returns a hardware link
//! to the first namespace under its name in the pod (or `dev` and a number if that is taken), and destroys a
//! virtual one. So the state is noted before and restored afterwards:
//!
//! ```text
//!   note ──> ADD: host-device moves the link ──> make ready ──> DEL: host-device moves it back ──> give back
//!   HostLink                                     changes_in_pod                                    changes
//! ```
//!
//! Pure functions compute the changes, and they are applied until nothing differs.
//!
//! * A host link is never recognized by its index or name alone: a link gets another index when it changes
//!   its namespace, the indices of different namespaces collide, and the host may have given its name to
//!   another link. See [`HostLink::find`].
//! * A pod with `NET_ADMIN` can rename the link, give it names of host links, and give its name to another
//!   link. So the link is found in the pod by what the pod cannot change, and made as the plugin left it,
//!   before DEL ([`Links::ready`]).
//! * What other programs added meanwhile stays, except names: they may be the pod's.
//! * Only static addresses are restored, and with them the routes that the kernel makes for them. Addresses
//!   of DHCP and router advertisements, and other routes, belong to the programs that made them.
//! * Sysctls are restored before the link is up. Otherwise a router of the link's network could give the host
//!   an address and a default route.

mod apply;
mod changes;
mod host_link;
mod sysctls;
mod which;

use std::fmt;

use super::address::Address;
use super::error::Error;
use super::link::Link;
use super::netns::Netns;
use super::read::{Links, blocking, read_links};
use super::{netlink, sysfs};
use apply::{apply, connect};
use changes::Change;
use sysctls::Sysctls;

pub use host_link::HostLink;
pub use which::Which;

/// How often differences are looked for and removed.
const ROUNDS: u32 = 3;

/// The result of giving a link back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenBack {
    /// The link is as it was before the pod.
    AsItWas,
    /// The host does not have the link.
    Missing,
}

impl Links {
    /// Reads the state of the named link. `None` if there is none.
    ///
    /// # Errors
    /// If links or addresses cannot be read.
    pub async fn note(&self, which: Which) -> Result<Option<HostLink>, Error> {
        let sysfs = self.sysfs.clone();
        blocking(move || {
            let mut socket = netlink::Socket::open()?;
            let links = read_links(&mut socket, &sysfs)?;
            let Some(link) = which.pick(&links) else { return Ok(None) };
            let addresses = socket.addresses(link.index)?;
            let pci_function = link.pci_bus_id.as_ref().and_then(|id| sysfs::identity(&sysfs, id).ok());
            let sysctls = sysctls::read_own(&link.name);
            Ok(Some(HostLink { pci_function, sysctls, ..HostLink::of(link, addresses) }))
        })
        .await
    }

    /// Whether the moved link is on the host; the arguments are those of [`HostLink::find`].
    ///
    /// # Errors
    /// If links cannot be read.
    pub async fn has(&self, moved: &HostLink, name_in_pod: &str, netns_gone: bool) -> Result<bool, Error> {
        Ok(self.find(moved, name_in_pod, netns_gone).await?.is_some())
    }

    /// Whether the device of a moved link was removed from the machine, as virtual functions are when their
    /// number is changed. The link then is in no namespace, and a device at its PCI address is another one.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub async fn is_removed(&self, moved: &HostLink) -> Result<bool, Error> {
        let Some(pci_bus_id) = moved.pci_bus_id.clone() else { return Ok(false) };
        let (sysfs, noted) = (self.sysfs.clone(), moved.pci_function);
        blocking(move || Ok(sysfs::is_removed(&sysfs, &pci_bus_id, noted))).await
    }

    /// Restores the moved link, if it is on the host. The arguments are those of [`HostLink::find`]. Can be
    /// repeated.
    ///
    /// # Errors
    /// [`Error::Change`] for the first change that the kernel refused, after the others were made.
    /// [`Error::NotAsItWas`] if changes do not last.
    pub async fn give_back(
        &self,
        moved: &HostLink,
        name_in_pod: &str,
        netns_gone: bool,
    ) -> Result<GivenBack, Error> {
        let mut left = String::new();
        for _ in 0..ROUNDS {
            let Some((link, addresses, sysctls)) = self.find(moved, name_in_pod, netns_gone).await? else {
                return Ok(GivenBack::Missing);
            };
            let changes = moved.changes(&link, &addresses, &sysctls);
            if changes.is_empty() {
                return Ok(GivenBack::AsItWas);
            }
            left = list(changes.iter());
            tracing::info!(link = moved.name, index = link.index, changes = left, "restoring a moved link");
            let changes: Vec<_> = changes.into_iter().map(|change| (&link, change)).collect();
            apply(connect(), changes).await?;
        }
        Err(Error::NotAsItWas { link: moved.name.clone(), left })
    }

    /// Makes the pod's links as the plugin's DEL expects them: the moved link, and any other link with its
    /// name in the pod. Changes nothing if the pod changed nothing. Can be repeated.
    ///
    /// # Errors
    /// If the pod's links cannot be read; [`Error::Change`] and [`Error::NotAsItWas`] as of
    /// [`give_back`](Self::give_back).
    pub async fn ready(&self, netns: &Netns, moved: &HostLink, name_in_pod: &str) -> Result<(), Error> {
        let mut left = String::new();
        for _ in 0..ROUNDS {
            let links = netns.links().await?;
            let changes = moved.changes_in_pod(&links, name_in_pod);
            if changes.is_empty() {
                return Ok(());
            }
            left = list(changes.iter().map(|(link, change)| format!("{change} ({})", link.name)));
            tracing::warn!(
                link = moved.name,
                changes = left,
                "the pod has changed its links: undoing that before DEL"
            );
            apply_in(netns, changes).await?;
        }
        Err(Error::NotAsItWas { link: moved.name.clone(), left })
    }

    /// Moves a link that ends with its namespace from the pod to the host, if it is in the pod, because its
    /// DEL cannot. The plugin's work on the link is done then, and [`give_back`](Self::give_back) finds it.
    ///
    /// # Errors
    /// If the pod's links cannot be read; [`Error::Change`].
    pub async fn move_out(&self, netns: &Netns, moved: &HostLink, name_in_pod: &str) -> Result<(), Error> {
        let (host, links) = (Netns::of_thread()?, netns.links().await?);
        let changes = moved.changes_to_move_out(&links, name_in_pod, host.raw_fd());
        if changes.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            link = moved.name,
            "DEL does not return a link: moving it to the host under a free name"
        );
        apply_in(netns, changes).await
    }

    async fn find(
        &self,
        moved: &HostLink,
        name_in_pod: &str,
        netns_gone: bool,
    ) -> Result<Option<(Link, Vec<Address>, Sysctls)>, Error> {
        let (sysfs, moved, name_in_pod) = (self.sysfs.clone(), moved.clone(), name_in_pod.to_owned());
        blocking(move || {
            let mut socket = netlink::Socket::open()?;
            for _ in 0..ROUNDS {
                let links = read_links(&mut socket, &sysfs)?;
                if let Some(link) = moved.find(&links, &name_in_pod, netns_gone).cloned() {
                    let (addresses, sysctls) = (socket.addresses(link.index)?, sysctls::read(&link.name));
                    return Ok(Some((link, addresses, sysctls)));
                }
                // A link has no identity if it is renamed while they are read.
                let may_be_it = |link: &Link| link.kind == moved.kind && link.identity.is_none();
                if moved.identity.is_none() || !links.iter().any(may_be_it) {
                    return Ok(None);
                }
            }
            Err(Error::Interrupted { what: "links", tries: ROUNDS })
        })
        .await
    }
}

/// [`apply`] in another network namespace.
async fn apply_in(netns: &Netns, changes: Vec<(&Link, Change<'_>)>) -> Result<(), Error> {
    let runtime = tokio::runtime::Handle::current();
    let connected = netns.run(move || {
        let _runtime = runtime.enter();
        connect()
    });
    apply(connected.await?, changes).await
}

fn list(changes: impl Iterator<Item = impl fmt::Display>) -> String {
    changes.map(|change| change.to_string()).collect::<Vec<_>>().join(", ")
}
