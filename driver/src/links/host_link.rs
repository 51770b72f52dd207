//! A link of the host that is lent to a pod, and given back as it was.
//!
//! A plugin that hands a whole link away (`host-device`) gives it back down, with the MTU and hardware address that the
//! pod left, and without addresses: those the kernel drops when a link changes its network namespace. Where the
//! namespace ends before the plugin's DEL, the kernel moves a hardware link back to the first namespace under the name
//! that it had in the pod (or `dev` and a number where that is taken), and destroys a virtual one.
//!
//! So the state is noted before ([`Links::note`]) and restored after ([`Links::give_back`]). What changes is computed
//! here, by functions without IO, and applied until nothing differs.
//!
//! * A link of the host is never taken for the lent one on its index: indices change with the namespace, and those of
//!   pods' links that move to the host collide. See [`HostLink::find`].
//! * A pod with `NET_ADMIN` can rename the link, give it names that the host has, and have another link answer to its
//!   name. So before the plugin's DEL the link is found in the pod by what the pod cannot change, and made what the plugin
//!   left ([`Links::ready`]).
//! * Nothing that somebody added meanwhile is taken away, but for names: those may be the pod's.
//! * Only addresses that were set for good come back, and with them the routes that the kernel makes for them. Addresses
//!   of DHCP and router advertisements are those services' own, and other routes their owner's.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use ipnet::IpNet;
use nix::errno::Errno;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec};
use serde::{Deserialize, Serialize};

use super::{Error, Link, Links, Netns, blocking, netlink, read_links, sysfs};

/// How often the differences are looked for and removed.
const ROUNDS: u32 = 3;

/// By what a configuration names a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// Its name, or an alternative one.
    Name(String),
    /// Its present hardware address, in any notation.
    Mac(String),
    /// Its device's directory below `/sys/devices`.
    KernelPath(PathBuf),
    /// Its device's PCI address.
    PciBusId(String),
}

/// A link as it was before it was lent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostLink {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Alternative names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alt_names: Vec<String>,
    /// Free text (`ip link set … alias`), which `host-device` writes over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// rtnetlink kind; `None` for a device that a driver made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The hardware address that the device came with, as far as it came with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_mac: Option<String>,
    /// Address of the PCI function behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// Identity of that function, which one that gets its address later has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_function: Option<u64>,
    /// Hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Somebody had set the link up.
    pub up: bool,
    /// Its addresses that were set for good, in the kernel's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Address>,
    /// The index that it got in the pod, which stays when the pod renames it; `None` until the ADD has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_in_pod: Option<u32>,
}

/// An address of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The address with its prefix length.
    pub local: IpNet,
    /// The other end, where the prefix is that one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// Broadcast address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<Ipv4Addr>,
    /// Label of an IPv4 address, mostly the link's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `IFA_F_*`, of which [`Address::CHOSEN`] are what somebody chose.
    pub flags: u32,
    /// Metric of the route that the kernel makes for the prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
}

impl Address {
    /// The flags that are given with an address: `NODAD`, `HOMEADDRESS`, `MANAGETEMPADDR`, `NOPREFIXROUTE` and
    /// `MCAUTOJOIN` (linux/if_addr.h). The others are the kernel's findings.
    const CHOSEN: u32 = 0x02 | 0x10 | 0x100 | 0x200 | 0x400;
    const PERMANENT: u32 = 0x80;
    const STABLE_PRIVACY: u32 = 0x800;

    /// Whether somebody set it for good, as opposed to DHCP, a router, or the kernel by itself.
    fn is_set_for_good(&self) -> bool {
        self.flags & Self::PERMANENT != 0 && self.flags & Self::STABLE_PRIVACY == 0
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.local, self.peer) == (other.local, other.peer)
    }
}

/// What became of a link that was to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenBack {
    /// It is as it was.
    AsItWas,
    /// No link of the host is the one that was lent.
    Missing,
}

/// Whether a link that a pod has can be taken from it by the plugin's DEL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPod {
    /// It is what the plugin left.
    Ready,
    /// It is not in the pod's namespace, nor does anything there answer to its name.
    Missing,
}

/// Any name that is free: the kernel fills in the number.
const FREE_NAME: &str = "dev%d";

/// One thing to change, in the order in which it must be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change<'a> {
    Down,
    DropAltName(&'a str),
    Name(&'a str),
    Mac(&'a str),
    Mtu(u32),
    Alias(&'a str),
    AltName(&'a str),
    Up,
    Address(&'a Address),
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("set it down"),
            Self::DropAltName(name) => write!(f, "remove its alternative name {name}"),
            Self::Name(name) => write!(f, "rename it to {name}"),
            Self::Mac(mac) => write!(f, "set its hardware address to {mac}"),
            Self::Mtu(mtu) => write!(f, "set its MTU to {mtu}"),
            Self::Alias(alias) => write!(f, "set its alias to {alias:?}"),
            Self::AltName(name) => write!(f, "add its alternative name {name}"),
            Self::Up => f.write_str("set it up"),
            Self::Address(address) => write!(f, "add its address {}", address.local),
        }
    }
}

impl Which {
    /// The link of `links` that is meant; of a device's several links the first by name, which is the plugin's choice.
    fn pick<'a>(&self, links: &'a [Link]) -> Option<&'a Link> {
        match self {
            Self::Name(name) => links.iter().find(|link| link.is_named(name)),
            Self::Mac(mac) => {
                links.iter().find(|link| link.mac.as_deref().is_some_and(|own| digits(own) == digits(mac)))
            }
            Self::KernelPath(path) => {
                let entries = fs::read_dir(path.join("net")).ok()?.filter_map(Result::ok);
                let name = entries.map(|entry| entry.file_name()).min()?;
                links.iter().find(|link| name.to_str() == Some(&link.name))
            }
            Self::PciBusId(id) => links
                .iter()
                .filter(|link| link.pci_bus_id.as_deref() == Some(id))
                .min_by(|a, b| a.name.cmp(&b.name)),
        }
    }
}

/// `02:00:5E:…`, `02-00-5e-…` and `0200.5e…` are the same address.
fn digits(mac: &str) -> String {
    mac.chars().filter(char::is_ascii_hexdigit).map(|c| c.to_ascii_lowercase()).collect()
}

impl HostLink {
    fn of(link: &Link, addresses: Vec<Address>) -> Self {
        Self {
            index: link.index,
            name: link.name.clone(),
            alt_names: link.alt_names.clone(),
            alias: link.alias.clone(),
            kind: link.kind.clone(),
            permanent_mac: link.permanent_mac.clone(),
            pci_bus_id: link.pci_bus_id.clone(),
            pci_function: None,
            mac: link.mac.clone(),
            mtu: link.mtu,
            up: link.admin_up,
            addresses: addresses.into_iter().filter(Address::is_set_for_good).collect(),
            index_in_pod: None,
        }
    }

    /// Whether the kernel gives the link back when the pod's namespace ends, as it does with hardware. A virtual link
    /// it destroys.
    pub fn outlives_namespaces(&self) -> bool {
        self.kind.is_none()
    }

    /// Which of the host's `links` is this one, if any; `lent_as` was its name in the pod.
    ///
    /// * Hardware is known by its permanent address, or where it has none, by its PCI function. If several links have
    ///   that, by the name.
    /// * Anything else is known by its name in the pod with `host-device`'s mark, the name on the host as an alias: so a
    ///   plugin that was killed on the way leaves it.
    /// * Or by its name, if its kind is the same. After the namespace is `gone` a link of that name may be one that
    ///   somebody made anew: then the index must be the same too.
    pub fn find<'a>(&self, links: &'a [Link], lent_as: &str, gone: bool) -> Option<&'a Link> {
        let of_kind = || links.iter().filter(|link| link.kind == self.kind);
        if self.is_hardware() {
            return self.hardware(links, |link| link.name == self.name);
        }
        let named = |link: &&Link| link.name == self.name && (!gone || link.index == self.index);
        let marked = |link: &&Link| link.name == lent_as && link.alias.as_ref() == Some(&self.name);
        of_kind().find(marked).or_else(|| of_kind().find(named))
    }

    /// Whether it has something that tells it from all other links, and that nobody can change.
    fn is_hardware(&self) -> bool {
        self.permanent_mac.is_some() || self.pci_bus_id.is_some()
    }

    /// The one of `links` with its permanent address, or with its PCI function where it has none; of several the one that
    /// is `likely`.
    fn hardware<'a>(&self, links: &'a [Link], likely: impl Fn(&Link) -> bool) -> Option<&'a Link> {
        let is_it = |link: &&Link| {
            link.kind == self.kind
                && match &self.permanent_mac {
                    Some(_) => link.permanent_mac == self.permanent_mac,
                    None => link.pci_bus_id == self.pci_bus_id,
                }
        };
        let mut found = links.iter().filter(is_it);
        match (found.next(), found.next()) {
            (one, None) => one,
            _ => links.iter().filter(is_it).find(|link| likely(link)),
        }
    }

    /// Which of the `links` of the pod that got it as `lent_as` is this one. Anything but hardware is known by its index
    /// in the pod; one that a pod has removed and made anew with that index comes back in its place. Before the ADD has
    /// told the index, no container has run: then it is known by its name.
    fn find_in_pod<'a>(&self, links: &'a [Link], lent_as: &str) -> Option<&'a Link> {
        let likely = |link: &Link| match self.index_in_pod {
            Some(index) => link.index == index,
            None => link.name == lent_as && link.alias.as_ref() == Some(&self.name),
        };
        // Not every kernel tells the function of a link in another namespace.
        let by_index = || links.iter().find(|link| link.kind == self.kind && likely(link));
        match self.permanent_mac {
            Some(_) => self.hardware(links, likely),
            None => self.hardware(links, likely).filter(|_| self.is_hardware()).or_else(by_index),
        }
    }

    /// What to do with the `links` of a pod, one of which is this one, for the plugin's DEL to take that one: it takes the
    /// link of the name `lent_as`, moves it with its alternative names, and calls it on the host what its alias says.
    fn changes_in_pod<'a>(&'a self, links: &'a [Link], lent_as: &'a str) -> Vec<(&'a Link, Change<'a>)> {
        let own = self.find_in_pod(links, lent_as);
        let is_own = |link: &Link| own.is_some_and(|own| own.index == link.index);
        let mut changes = Vec::new();
        for link in links.iter().filter(|link| !is_own(link) && link.is_named(lent_as)) {
            if link.name == lent_as {
                changes.extend(link.admin_up.then_some((link, Change::Down)));
                changes.push((link, Change::Name(FREE_NAME)));
            } else {
                changes.push((link, Change::DropAltName(lent_as)));
            }
        }
        let Some(own) = own else { return changes };
        let rename = own.name != lent_as;
        changes.extend((rename && own.admin_up).then_some((own, Change::Down)));
        changes.extend(self.foreign_names(own).map(|name| (own, Change::DropAltName(name))));
        changes.extend(rename.then_some((own, Change::Name(lent_as))));
        changes.extend((own.alias.as_ref() != Some(&self.name)).then_some((own, Change::Alias(&self.name))));
        changes
    }

    /// Alternative names that it had not. One of them may be its own name: a link cannot take one that it answers to.
    fn foreign_names<'a>(&self, now: &'a Link) -> impl Iterator<Item = &'a str> {
        now.alt_names.iter().filter(|name| !self.alt_names.contains(name)).map(String::as_str)
    }

    /// What to do with `now`, which has `addresses`, for it to be as it was.
    fn changes<'a>(&'a self, now: &'a Link, addresses: &[Address]) -> Vec<Change<'a>> {
        let name = (now.name != self.name).then_some(Change::Name(&self.name));
        let foreign = self.foreign_names(now).map(Change::DropAltName);
        let mac = self.mac.as_deref().filter(|_| now.mac != self.mac).map(Change::Mac);
        let mtu = (now.mtu != self.mtu).then_some(Change::Mtu(self.mtu));
        let alias = self.alias.as_deref().unwrap_or_default();
        let alias = (now.alias.as_deref().unwrap_or_default() != alias).then_some(Change::Alias(alias));
        let alt_names = self.alt_names.iter().filter(|name| !now.alt_names.contains(name));
        // Older kernels rename a link, and many drivers set the address of one, only while it is down.
        let pause = now.admin_up && (name.is_some() || mac.is_some());
        let down = (pause || now.admin_up && !self.up).then_some(Change::Down);
        let up = (self.up && (pause || !now.admin_up)).then_some(Change::Up);
        let missing = self.addresses.iter().filter(|address| !addresses.iter().any(|a| a.is_same(address)));
        let (alt_names, missing) =
            (alt_names.map(|name| Change::AltName(name)), missing.map(Change::Address));
        down.into_iter()
            .chain(foreign)
            .chain([name, mac, mtu, alias].into_iter().flatten())
            .chain(alt_names)
            .chain(up)
            .chain(missing)
            .collect()
    }
}

impl Links {
    /// The state of the link that `which` means; `None` when there is none.
    ///
    /// # Errors
    /// When links or addresses cannot be read.
    pub async fn note(&self, which: Which) -> Result<Option<HostLink>, Error> {
        let sysfs = self.sysfs.clone();
        blocking(move || {
            let mut socket = netlink::Socket::open()?;
            let links = read_links(&mut socket, &sysfs)?;
            let Some(link) = which.pick(&links) else { return Ok(None) };
            let addresses = socket.addresses(link.index)?;
            let pci_function = link.pci_bus_id.as_ref().and_then(|id| sysfs::identity(&sysfs, id).ok());
            Ok(Some(HostLink { pci_function, ..HostLink::of(link, addresses) }))
        })
        .await
    }

    /// Whether the link that was `lent_as` this name in a pod is on the host; see [`Links::give_back`].
    ///
    /// # Errors
    /// When links cannot be read.
    pub async fn has(&self, lent: &HostLink, lent_as: &str, gone: bool) -> Result<bool, Error> {
        Ok(self.find(lent, lent_as, gone).await?.is_some())
    }

    /// Whether the device of a link that was lent is gone from the machine, as virtual functions are when their number
    /// is changed. Then the link is in no namespace, and what is at its PCI address now is another.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub async fn is_removed(&self, lent: &HostLink) -> Result<bool, Error> {
        let Some(pci_bus_id) = lent.pci_bus_id.clone() else { return Ok(false) };
        let (sysfs, noted) = (self.sysfs.clone(), lent.pci_function);
        blocking(move || Ok(sysfs::is_removed(&sysfs, &pci_bus_id, noted))).await
    }

    /// Makes the link that was `lent_as` this name in a pod what it was, if it is on the host. `gone`: the pod's
    /// namespace has ended. Can be repeated.
    ///
    /// # Errors
    /// [`Error::Change`] for the first change that the kernel refused, after the others were made;
    /// [`Error::NotAsItWas`] when changes do not last.
    pub async fn give_back(&self, lent: &HostLink, lent_as: &str, gone: bool) -> Result<GivenBack, Error> {
        let mut left = String::new();
        for _ in 0..ROUNDS {
            let Some((link, addresses)) = self.find(lent, lent_as, gone).await? else {
                return Ok(GivenBack::Missing);
            };
            let changes = lent.changes(&link, &addresses);
            if changes.is_empty() {
                return Ok(GivenBack::AsItWas);
            }
            left = told(changes.iter());
            tracing::info!(link = lent.name, index = link.index, changes = left, "giving a link back");
            let changes: Vec<_> = changes.into_iter().map(|change| (&link, change)).collect();
            apply(connect(), changes).await?;
        }
        Err(Error::NotAsItWas { link: lent.name.clone(), left })
    }

    /// Makes the link that was `lent_as` this name in a pod, and whatever else answers to that name there, what the
    /// plugin's DEL expects; nothing changes where the pod has not changed anything. Can be repeated.
    ///
    /// # Errors
    /// When the pod's links cannot be read; [`Error::Change`] and [`Error::NotAsItWas`] as of
    /// [`give_back`](Self::give_back).
    pub async fn ready(&self, netns: &Netns, lent: &HostLink, lent_as: &str) -> Result<InPod, Error> {
        let mut left = String::new();
        for _ in 0..ROUNDS {
            let links = netns.links().await?;
            let changes = lent.changes_in_pod(&links, lent_as);
            if changes.is_empty() {
                let own = lent.find_in_pod(&links, lent_as);
                return Ok(if own.is_some() { InPod::Ready } else { InPod::Missing });
            }
            left = told(changes.iter().map(|(link, change)| format!("{change} ({})", link.name)));
            tracing::warn!(
                link = lent.name,
                changes = left,
                "the pod has changed its links: they are made ready to be taken"
            );
            let runtime = tokio::runtime::Handle::current();
            // A socket stays in the namespace in which it was made.
            let connected = netns.run(move || {
                let _runtime = runtime.enter();
                connect()
            });
            apply(connected.await?, changes).await?;
        }
        Err(Error::NotAsItWas { link: lent.name.clone(), left })
    }

    async fn find(
        &self,
        lent: &HostLink,
        lent_as: &str,
        gone: bool,
    ) -> Result<Option<(Link, Vec<Address>)>, Error> {
        let (sysfs, lent, lent_as) = (self.sysfs.clone(), lent.clone(), lent_as.to_owned());
        blocking(move || {
            let mut socket = netlink::Socket::open()?;
            let links = read_links(&mut socket, &sysfs)?;
            let Some(link) = lent.find(&links, &lent_as, gone).cloned() else { return Ok(None) };
            let addresses = socket.addresses(link.index)?;
            Ok(Some((link, addresses)))
        })
        .await
    }
}

fn told(changes: impl Iterator<Item = impl fmt::Display>) -> String {
    changes.map(|change| change.to_string()).collect::<Vec<_>>().join(", ")
}

fn connect() -> io::Result<(impl Future<Output = ()> + Send + 'static, Handle)> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    Ok((connection, handle))
}

/// Makes all `changes` that can be made; the first error of those that cannot.
async fn apply<'a>(
    connected: io::Result<(impl Future<Output = ()> + Send + 'static, Handle)>,
    changes: Vec<(&'a Link, Change<'a>)>,
) -> Result<(), Error> {
    let (connection, handle) = connected.map_err(Error::Socket)?;
    let connection = tokio::spawn(connection);
    let (mut result, mut named) = (Ok(()), true);
    for (link, change) in changes {
        // Until a link has its name, the plugin's mark tells whose it is. Labels of addresses follow a rename.
        if matches!(change, Change::Alias(_) | Change::Address(_)) && !named {
            continue;
        }
        match make(&handle, link.index, &change).await {
            // The kernel has made a link-local address itself. A name that exists is another link's.
            Err(error)
                if error.raw_os_error() == Some(Errno::EEXIST as i32)
                    && matches!(change, Change::Address(_)) => {}
            Err(source) => {
                named &= !matches!(change, Change::Name(_));
                let change = change.to_string();
                result = result.and(Err(Error::Change { link: link.name.clone(), change, source }));
            }
            Ok(()) => {}
        }
    }
    connection.abort();
    result
}

async fn make(handle: &Handle, index: u32, change: &Change<'_>) -> io::Result<()> {
    let link = LinkMessageBuilder::<LinkUnspec>::new().index(index);
    let link = match *change {
        Change::Down => link.down(),
        Change::Up => link.up(),
        Change::Name(name) => link.name(name),
        Change::Mac(mac) => link.address(octets(mac)),
        Change::Mtu(mtu) => link.mtu(mtu),
        Change::Alias(alias) => link.alias(alias),
        Change::DropAltName(name) => {
            return handle.link().property_del(index).alt_ifname(&[name]).execute().await.map_err(io_error);
        }
        Change::AltName(name) => {
            return handle.link().property_add(index).alt_ifname(&[name]).execute().await.map_err(io_error);
        }
        Change::Address(address) => return add(handle, index, address).await,
    };
    handle.link().set(link.build()).execute().await.map_err(io_error)
}

async fn add(handle: &Handle, index: u32, address: &Address) -> io::Result<()> {
    let local = address.local.addr();
    let mut request = handle.address().add(index, local, address.local.prefix_len());
    let message = request.message_mut();
    message.header.family = if local.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.scope = address.scope.into();
    let flags = AddressFlags::from_bits_retain(address.flags & Address::CHOSEN);
    message.attributes = vec![
        AddressAttribute::Local(local),
        AddressAttribute::Address(address.peer.unwrap_or(local)),
        AddressAttribute::Flags(flags),
    ];
    message.attributes.extend(address.broadcast.map(AddressAttribute::Broadcast));
    message.attributes.extend(address.label.clone().map(AddressAttribute::Label));
    message.attributes.extend(address.metric.map(AddressAttribute::RoutePriority));
    request.execute().await.map_err(io_error)
}

fn octets(mac: &str) -> Vec<u8> {
    mac.split(':').filter_map(|octet| u8::from_str_radix(octet, 16).ok()).collect()
}

fn io_error(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, index: u32) -> Link {
        Link {
            index,
            name: name.into(),
            mac: Some("02:00:00:00:00:01".into()),
            permanent_mac: Some("02:00:00:00:00:01".into()),
            mtu: 1500,
            admin_up: true,
            pci_bus_id: Some("0000:3b:00.0".into()),
            ..Link::default()
        }
    }

    fn address(local: &str) -> Address {
        Address {
            local: local.parse().unwrap(),
            peer: None,
            broadcast: None,
            label: None,
            scope: 0,
            flags: Address::PERMANENT,
            metric: None,
        }
    }

    fn veth(name: &str, index: u32) -> Link {
        Link { kind: Some("veth".into()), permanent_mac: None, pci_bus_id: None, ..link(name, index) }
    }

    fn found(lent: &Link, links: &[Link], gone: bool) -> Option<String> {
        let lent = HostLink::of(lent, Vec::new());
        lent.find(links, "net1", gone).map(|link| format!("{} {}", link.name, link.index))
    }

    #[test]
    fn hardware_is_known_by_its_permanent_address_under_any_name_and_index() {
        let mut back = link("dev7", 9);
        back.mac = Some("02:ff:00:00:00:00".into());
        let other = Link { permanent_mac: Some("02:00:00:00:00:02".into()), ..link("eth2", 3) };
        assert_eq!(found(&link("eth2", 3), &[other.clone(), back], true).as_deref(), Some("dev7 9"));
        assert_eq!(found(&link("eth2", 3), &[other], false), None, "another card took the name");
    }

    #[test]
    fn without_a_permanent_address_it_is_known_by_its_pci_function() {
        let lent = Link { permanent_mac: None, ..link("eth2", 3) };
        let back = Link { permanent_mac: None, ..link("net1", 3) };
        assert_eq!(found(&lent, std::slice::from_ref(&back), true).as_deref(), Some("net1 3"));
        let port = Link { name: "eth3".into(), ..back.clone() };
        assert_eq!(found(&lent, &[back.clone(), port.clone()], true), None, "one of two ports, but which?");
        let named = Link { name: "eth2".into(), ..back };
        assert_eq!(found(&lent, &[port, named], true).as_deref(), Some("eth2 3"));
    }

    #[test]
    fn a_virtual_link_is_known_by_its_name_as_long_as_nobody_can_have_made_another() {
        let lent = veth("eth2", 3);
        assert_eq!(found(&lent, &[veth("eth2", 8)], false).as_deref(), Some("eth2 8"));
        assert_eq!(found(&lent, &[veth("eth2", 8)], true), None, "made anew after the namespace was gone");
        assert_eq!(found(&lent, &[veth("eth2", 3)], true).as_deref(), Some("eth2 3"));
        assert_eq!(found(&lent, &[veth("veth9", 3)], false), None, "an index says nothing");
        let bridge = Link { kind: Some("bridge".into()), ..veth("eth2", 3) };
        assert_eq!(found(&lent, &[bridge], false), None, "another kind of link took the name");
    }

    #[test]
    fn a_link_that_a_killed_plugin_dropped_is_known_by_its_mark() {
        let lent = veth("eth2", 3);
        let marked = Link { alias: Some("eth2".into()), ..veth("net1", 12) };
        assert_eq!(found(&lent, std::slice::from_ref(&marked), true).as_deref(), Some("net1 12"));
        let namesake = veth("eth2", 13);
        assert_eq!(found(&lent, &[namesake, marked], false).as_deref(), Some("net1 12"));
        assert_eq!(found(&lent, &[veth("net1", 12)], true), None);
    }

    #[test]
    fn what_differs_is_changed_in_an_order_that_the_kernel_takes() {
        let lent = HostLink::of(&link("eth2", 3), vec![address("10.0.0.1/24"), address("fd00::1/64")]);
        let now = Link {
            name: "net1".into(),
            alias: Some("eth2".into()),
            mac: Some("02:00:00:00:00:99".into()),
            mtu: 1300,
            ..link("eth2", 3)
        };
        let changes: Vec<String> =
            lent.changes(&now, &[address("fd00::1/64")]).iter().map(ToString::to_string).collect();
        assert_eq!(
            changes,
            [
                "set it down",
                "rename it to eth2",
                "set its hardware address to 02:00:00:00:00:01",
                "set its MTU to 1500",
                "set its alias to \"\"",
                "set it up",
                "add its address 10.0.0.1/24",
            ]
        );
    }

    #[test]
    fn a_link_that_is_as_it_was_is_left_alone_with_what_was_added() {
        let lent = HostLink::of(&link("eth2", 3), vec![address("10.0.0.1/24")]);
        let now = link("eth2", 11);
        assert_eq!(lent.changes(&now, &[address("10.0.0.1/24"), address("10.0.0.2/24")]), []);
        let was_down = HostLink { up: false, ..lent.clone() };
        assert_eq!(was_down.changes(&now, &[address("10.0.0.1/24")]), [Change::Down]);
        assert_eq!(lent.changes(&Link { admin_up: false, ..now }, &lent.addresses), [Change::Up]);
    }

    fn told_of(changes: &[(&Link, Change<'_>)]) -> Vec<String> {
        changes.iter().map(|(link, change)| format!("{}: {change}", link.index)).collect()
    }

    #[test]
    fn names_that_a_pod_gave_are_removed_before_the_link_takes_its_own() {
        let lent = HostLink::of(&Link { alt_names: vec!["card".into()], ..link("eth2", 3) }, Vec::new());
        let names = ["eth2", "eth1", "card"].map(str::to_owned).to_vec();
        let now = Link { alt_names: names, admin_up: false, ..link("x", 9) };
        let changes = told(lent.changes(&now, &[]).iter());
        assert_eq!(
            changes,
            "remove its alternative name eth2, remove its alternative name eth1, rename it to eth2, set it up"
        );
    }

    #[test]
    fn a_link_that_the_pod_left_alone_is_ready_to_be_taken() {
        let lent = HostLink::of(&Link { alt_names: vec!["card".into()], ..link("eth2", 3) }, Vec::new());
        let mark = Some("eth2".to_owned());
        let own = Link { alias: mark, alt_names: lent.alt_names.clone(), ..link("net1", 9) };
        assert_eq!(lent.changes_in_pod(&[veth("lo", 1), own.clone()], "net1"), []);
        assert_eq!(lent.changes_in_pod(&[veth("lo", 1)], "net1"), [], "it never came there");
    }

    #[test]
    fn a_renamed_link_gets_its_name_in_the_pod_back_from_whatever_has_it() {
        let lent = HostLink::of(&link("eth2", 3), Vec::new());
        let impostor = Link { alias: Some("eth0".into()), ..veth("net1", 10) };
        let own = Link { alias: Some("eth0".into()), alt_names: vec!["eth1".into()], ..link("x", 9) };
        let links = [own.clone(), impostor];
        assert_eq!(
            told_of(&lent.changes_in_pod(&links, "net1")),
            [
                "10: set it down",
                "10: rename it to dev%d",
                "9: set it down",
                "9: remove its alternative name eth1",
                "9: rename it to net1",
                "9: set its alias to \"eth2\"",
            ]
        );
        let other = Link { alt_names: vec!["net1".into()], ..veth("y", 10) };
        let changes = told_of(&lent.changes_in_pod(&[own, other], "net1"));
        assert_eq!(changes.first().map(String::as_str), Some("10: remove its alternative name net1"));
    }

    #[test]
    fn what_a_pod_put_in_the_place_of_a_link_that_it_removed_does_not_answer_to_its_name() {
        let lent = HostLink { index_in_pod: Some(9), ..HostLink::of(&veth("eth2", 3), Vec::new()) };
        let impostor = Link { alias: Some("eth2".into()), admin_up: false, ..veth("net1", 10) };
        assert_eq!(told_of(&lent.changes_in_pod(&[impostor], "net1")), ["10: rename it to dev%d"]);
    }

    #[test]
    fn in_the_pod_a_virtual_link_is_known_by_the_index_that_it_got_there() {
        let lent = HostLink { index_in_pod: Some(9), ..HostLink::of(&veth("eth2", 3), Vec::new()) };
        let found =
            |lent: &HostLink, links: &[Link]| lent.find_in_pod(links, "net1").map(|link| link.name.clone());
        let marked = Link { alias: Some("eth2".into()), ..veth("net1", 10) };
        assert_eq!(found(&lent, &[marked.clone(), veth("x", 9)]).as_deref(), Some("x"));
        let bridge = Link { kind: Some("bridge".into()), ..veth("x", 9) };
        assert_eq!(found(&lent, &[bridge]), None);
        let cut_short = HostLink { index_in_pod: None, ..lent };
        assert_eq!(found(&cut_short, &[veth("x", 9), marked]).as_deref(), Some("net1"));
        assert_eq!(found(&cut_short, &[veth("net1", 9)]), None, "without the plugin's mark");
    }

    #[test]
    fn in_the_pod_hardware_is_known_by_what_it_came_with() {
        let lent = HostLink { index_in_pod: Some(9), ..HostLink::of(&link("eth2", 3), Vec::new()) };
        let other = Link { permanent_mac: Some("02:00:00:00:00:02".into()), ..link("net1", 9) };
        assert_eq!(
            lent.find_in_pod(&[other.clone(), link("x", 12)], "net1").map(|link| link.index),
            Some(12)
        );
        assert_eq!(lent.find_in_pod(&[other], "net1"), None);
        // A function without an address of its own, on a kernel that does not tell functions.
        let anonymous = HostLink { permanent_mac: None, ..lent };
        let own = Link { permanent_mac: None, pci_bus_id: None, ..link("x", 9) };
        assert_eq!(anonymous.find_in_pod(&[own], "net1").map(|link| link.index), Some(9));
    }

    #[test]
    fn addresses_of_others_making_are_not_noted() {
        let dynamic = Address { flags: 0, ..address("10.0.0.7/24") };
        let private =
            Address { flags: Address::PERMANENT | Address::STABLE_PRIVACY, ..address("fe80::1234/64") };
        let lent = HostLink::of(&link("eth2", 3), vec![dynamic, address("10.0.0.1/24"), private]);
        assert_eq!(lent.addresses, [address("10.0.0.1/24")]);
    }

    #[test]
    fn a_link_is_meant_by_name_address_or_function() {
        let links = [link("eth2", 3), Link { pci_bus_id: None, mac: None, ..link("eth3", 4) }];
        let meant = |which: Which| which.pick(&links).map(|link| link.name.as_str());
        assert_eq!(meant(Which::Name("eth3".into())), Some("eth3"));
        assert_eq!(meant(Which::Mac("02-00-00-00-00-01".into())), Some("eth2"));
        assert_eq!(meant(Which::PciBusId("0000:3b:00.0".into())), Some("eth2"));
        assert_eq!(meant(Which::KernelPath("/sys/devices/none".into())), None);
    }

    #[test]
    fn a_noted_link_reads_back() {
        let lent = HostLink::of(&link("eth2", 3), vec![address("10.0.0.1/24"), address("fd00::1/64")]);
        let text = serde_json::to_string(&lent).unwrap();
        assert_eq!(serde_json::from_str::<HostLink>(&text).unwrap(), lent, "{text}");
    }
}
