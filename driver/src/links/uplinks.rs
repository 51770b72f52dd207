//! Which links a pod may be attached to or through, when nobody has said otherwise.
//!
//! A link is an uplink when none of these holds, tried in this order:
//!
//! 1. it is a loopback device;
//! 2. it carries the node's own traffic. That is a link that
//!    * a default route leads through, or that has an address of the Node object; else, if it is of a kind that leads out
//!    * has an address of more than link-local scope, or a route other than to the subnets of its addresses;
//!
//!    with the links that it is made of (`eth0` and `eth1` of a `bond0`, the `bond0` of a `bond0.100`) or is enslaved together
//!    with, and with those stacked on any of these (`bond0.200`, which takes nothing with it when it goes, but is on the
//!    node's wire);
//! 3. it is enslaved: its frames belong to its master, and its one rx_handler is taken;
//! 4. its kind is not one that leads out of the node:
//!
//! | kind | uplink |
//! |---|---|
//! | none: NIC, VF | yes |
//! | `bond`, `team`, `vlan` | yes |
//! | `veth` | when its name is a NIC's: `eth` and a number, or a systemd name (`eno1`, `enp3s0`, `enx…`) without a hyphen |
//! | any other, and any to come: `bridge`, `macvlan`, `ipvlan`, `netkit`, `tun`, `vxlan`, `geneve`, IP tunnels, `wireguard`, `ifb`, `dummy`, `vrf`, `openvswitch` … | no |
//!
//! The veth rule tells the NIC of a node that is itself a container (kind, a test's namespace) from the
//! host end of a pod's veth. Nothing but the name differs, and other CNI plugins keep clear of NICs' names:
//! `veth…`, `cali…`, `lxc…`, `gke…`, `azv…`, `eni…` (AWS; which is why `eni` is no such name),
//! `<pod>-<hash>` (Antrea; hence no hyphen: a tenant names pods).

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Link, Snapshot};

/// An IP address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddress {
    /// The address.
    pub ip: IpAddr,
    /// It is good for more than the link: of universal or site scope, and not link-local.
    pub global: bool,
}

/// Whether an address is good on its link only, whatever its scope is said to be.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// What the node itself uses a link for; of several, the first of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Traffic {
    /// A default route.
    DefaultRoute,
    /// An address of the Node object.
    NodeAddress(IpAddr),
    /// Another address of more than link-local scope.
    Address(IpAddr),
    /// A route to this network, which is no subnet of the link's addresses.
    Route(IpNet),
}

impl Traffic {
    /// Whether the node is lost without it, so that no policy can give the link away.
    pub fn is_vital(self) -> bool {
        matches!(self, Self::DefaultRoute | Self::NodeAddress(_))
    }
}

/// How a link carries traffic of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// The traffic passes through it.
    Carries,
    /// It is stacked on a link that the traffic passes through.
    Above,
}

/// Why a link is on the way of the node's own traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTraffic {
    /// What the traffic is.
    pub traffic: Traffic,
    /// Name of the link that has the route or the address; often the link itself.
    pub link: String,
    /// How the link in question stands to it.
    pub relation: Relation,
}

impl NodeTraffic {
    /// Whether the node can do without the link, so that a policy may give it away whole.
    pub fn is_dispensable(&self) -> bool {
        self.relation == Relation::Above || !self.traffic.is_vital()
    }
}

impl fmt::Display for NodeTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.relation {
            Relation::Carries => "carries the node's own traffic: ",
            Relation::Above => "is stacked on a link that carries the node's own traffic: ",
        })?;
        let link = &self.link;
        match self.traffic {
            Traffic::DefaultRoute => write!(f, "a default route leads through {link}"),
            Traffic::NodeAddress(ip) => write!(f, "{link} has the Node's address {ip}"),
            Traffic::Address(ip) => write!(f, "{link} has the address {ip}"),
            Traffic::Route(to) => write!(f, "the route to {to} leads through {link}"),
        }
    }
}

/// Why a link is not an uplink by default. The text follows the link's name in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUplink {
    /// A loopback device.
    #[error("is a loopback device")]
    Loopback,
    /// The link is on the way of the node's own traffic.
    #[error("{0}")]
    NodeTraffic(NodeTraffic),
    /// The link is a port of another one.
    #[error("is a port of {master}")]
    Enslaved {
        /// Name of the bridge, bond, team or VRF.
        master: String,
    },
    /// A veth without a NIC's name: taken for the host end of a pod's.
    #[error("is a veth without a network card's name, as pods have them on the host")]
    PodEnd,
    /// A kind of link that does not lead out of the node.
    #[error("is a link of kind {kind}")]
    Virtual {
        /// The rtnetlink kind.
        kind: String,
    },
}

/// The links of a node that are uplinks by default, in the order given, as far as the links themselves tell: the addresses
/// of the Node object are among those of links. See the module's rules.
pub fn uplinks(snapshot: &Snapshot) -> Vec<&Link> {
    let none = BTreeSet::new();
    classify(snapshot, &none).filter_map(|(link, verdict)| verdict.is_ok().then_some(link)).collect()
}

/// Every link with its verdict: what a policy overrules, and what a person who misses a link wants to read.
/// `node_addresses` are those of the Node object.
pub fn classify<'a>(
    snapshot: &'a Snapshot,
    node_addresses: &BTreeSet<IpAddr>,
) -> impl Iterator<Item = (&'a Link, Result<(), NotUplink>)> {
    let links = &snapshot.links;
    let names: BTreeMap<u32, &str> = links.iter().map(|link| (link.index, link.name.as_str())).collect();
    let node_traffic = node_traffic(links, own_traffic(snapshot, node_addresses));
    let name =
        move |index: u32| names.get(&index).map_or_else(|| format!("#{index}"), |name| (*name).to_owned());
    let verdict = move |link: &Link| {
        if link.loopback {
            return Err(NotUplink::Loopback);
        }
        let kind = leads_out(link);
        let traffic = node_traffic.get(&link.index).map(|&(traffic, through, relation)| NodeTraffic {
            traffic,
            link: name(through),
            relation,
        });
        // A bridge with an address, say, is what it is for its kind.
        if let Some(traffic) = traffic.filter(|traffic| kind.is_ok() || !traffic.is_dispensable()) {
            return Err(NotUplink::NodeTraffic(traffic));
        }
        link.master.map_or(kind, |master| Err(NotUplink::Enslaved { master: name(master) }))
    };
    links.iter().map(move |link| (link, verdict(link)))
}

/// What the node uses each link itself for, where it does.
fn own_traffic(snapshot: &Snapshot, node_addresses: &BTreeSet<IpAddr>) -> BTreeMap<u32, Traffic> {
    let mut own = BTreeMap::new();
    for link in snapshot.links.iter().filter(|link| !link.loopback) {
        let addresses = || snapshot.addresses.get(&link.index).into_iter().flatten();
        let of_node = || addresses().find(|address| node_addresses.contains(&address.ip));
        let global = || addresses().find(|address| address.global);
        let traffic = if snapshot.default_route_links.contains(&link.index) {
            Some(Traffic::DefaultRoute)
        } else if let Some(address) = of_node() {
            Some(Traffic::NodeAddress(address.ip))
        } else if let Some(address) = global() {
            Some(Traffic::Address(address.ip))
        } else {
            snapshot.routes.get(&link.index).copied().map(Traffic::Route)
        };
        own.extend(traffic.map(|traffic| (link.index, traffic)));
    }
    own
}

/// The links on the way of the node's traffic: which traffic, the link that has it, and how they stand to it. A link is
/// named for its own traffic, unless that of one above it is vital and its own is not.
fn node_traffic(links: &[Link], own: BTreeMap<u32, Traffic>) -> BTreeMap<u32, (Traffic, u32, Relation)> {
    let by_index: BTreeMap<u32, &Link> = links.iter().map(|link| (link.index, link)).collect();
    let (mut ports, mut above) = (BTreeMap::<u32, Vec<u32>>::new(), BTreeMap::<u32, Vec<u32>>::new());
    for link in links {
        if let Some(master) = link.master {
            ports.entry(master).or_default().push(link.index);
            above.entry(link.index).or_default().push(master);
        }
        if let Some(parent) = parent(link) {
            above.entry(parent).or_default().push(link.index);
        }
    }
    let around = |index: u32| {
        let link = by_index.get(&index);
        let (below, master) = (link.and_then(|link| parent(link)), link.and_then(|link| link.master));
        let ports = ports.get(&index).into_iter().flatten().copied();
        below.into_iter().chain(master).chain(ports).collect::<Vec<u32>>()
    };

    let mut found = BTreeMap::new();
    for vital in [true, false] {
        let own = own.iter().filter(|(_, traffic)| traffic.is_vital() == vital);
        let own = own.map(|(&index, &traffic)| (index, (traffic, index, Relation::Carries)));
        spread(&mut found, own.collect(), around);
    }
    let below = found.clone().into_iter();
    let above = |index: u32| above.get(&index).cloned().unwrap_or_default();
    let next = below.flat_map(|(index, (traffic, through, _))| {
        above(index).into_iter().map(move |next| (next, (traffic, through, Relation::Above)))
    });
    spread(&mut found, next.collect(), above);
    found
}

/// Adds what is not there yet, and everything that `around` leads to from there, for the same reason.
fn spread<T: Copy>(found: &mut BTreeMap<u32, T>, from: Vec<(u32, T)>, around: impl Fn(u32) -> Vec<u32>) {
    let is_new = |found: &mut BTreeMap<u32, T>, index: u32, reason: T| match found.entry(index) {
        Entry::Vacant(entry) => {
            entry.insert(reason);
            true
        }
        Entry::Occupied(_) => false,
    };
    let mut to_visit = from;
    to_visit.retain(|&(index, reason)| is_new(found, index, reason));
    while let Some((index, reason)) = to_visit.pop() {
        let next = around(index).into_iter().filter(|&next| is_new(found, next, reason));
        to_visit.extend(next.map(|next| (next, reason)).collect::<Vec<_>>());
    }
}

/// Index of the link below.
pub(super) fn parent(link: &Link) -> Option<u32> {
    link.parent.filter(|_| !is_pair(link))
}

/// Links that come in pairs: their "parent" is the other end, not a link below.
fn is_pair(link: &Link) -> bool {
    matches!(link.kind.as_deref(), Some("veth" | "netkit" | "vxcan"))
}

/// Whether the link's kind is one that leads out of the node, whatever the link is used for.
///
/// # Errors
/// [`NotUplink::PodEnd`] and [`NotUplink::Virtual`].
pub fn leads_out(link: &Link) -> Result<(), NotUplink> {
    match link.kind.as_deref() {
        None | Some("bond" | "team" | "vlan") => Ok(()),
        Some("veth") if is_nic_name(&link.name) => Ok(()),
        Some("veth") => Err(NotUplink::PodEnd),
        Some(kind) => Err(NotUplink::Virtual { kind: kind.to_owned() }),
    }
}

/// Whether a pod's network plugin made this link as the pod's end on the host; there may be very many.
pub(super) fn is_pod_end(kind: Option<&str>, name: &str) -> bool {
    kind == Some("netkit") || (kind == Some("veth") && !is_nic_name(name))
}

/// `eth` and a number, or `en` and one of systemd's letters for where a card sits
/// (systemd.net-naming-scheme(7)), except `a` and `i`, followed by letters and digits.
fn is_nic_name(name: &str) -> bool {
    if let Some(number) = name.strip_prefix("eth") {
        return !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    }
    name.strip_prefix("en").is_some_and(|place| {
        place.starts_with(['b', 'c', 'd', 'o', 'p', 'P', 's', 'v', 'x', 'X'])
            && place.len() > 1
            && place.bytes().all(|b| b.is_ascii_alphanumeric())
    })
}
