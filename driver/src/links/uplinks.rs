//! Decides which links pods may be attached to by default.
//!
//! A link is an uplink unless one of these holds, in this order:
//!
//! 1. it is a loopback device;
//! 2. it carries the node's own traffic, that is:
//!    * a default route leads through it, or it has an address of the Node object;
//!    * or its kind leads out of the node, and it has an address of more than link-local scope, or a route
//!      other than to the subnets of its addresses;
//!    * or such a link is made of it (`eth0` and `eth1` of a `bond0`, the `bond0` of a `bond0.100`), or is
//!      enslaved together with it;
//!    * or it is stacked on any of these (`bond0.200`: the node does not need it, but it is on the node's
//!      wire);
//! 3. it is enslaved: its frames belong to its master, which has its only rx_handler;
//! 4. its kind does not lead out of the node:
//!
//! | kind | uplink |
//! |---|---|
//! | none: NIC, VF | yes |
//! | `bond`, `team`, `vlan` | yes |
//! | `veth` | if it has a NIC's name: `eth` and a number, or a systemd name (`eno1`, `enp3s0`, `enx…`) without a hyphen |
//! | any other, and any new one: `bridge`, `macvlan`, `ipvlan`, `netkit`, `tun`, `vxlan`, `geneve`, IP tunnels, `wireguard`, `ifb`, `dummy`, `vrf`, `openvswitch` … | no |
//!
//! The veth rule distinguishes the NIC of a node that is itself a container (kind, a test's namespace) from
//! the host end of a pod's veth. Only the name differs, and other CNI plugins avoid the names of NICs:
//! `veth…`, `cali…`, `lxc…`, `gke…`, `azv…`, `eni…` (AWS; so `eni` is not a NIC's name), `<pod>-<hash>`
//! (Antrea; so hyphens are not allowed: tenants choose the names of pods).

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::address::LinkAddress;
use super::link::Link;
use super::snapshot::{OfLink, Snapshot};

/// The use that the node itself makes of a link. If several apply, the first of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Traffic {
    /// A default route.
    DefaultRoute,
    /// An address of the Node object.
    NodeAddress(IpAddr),
    /// Another address of more than link-local scope.
    Address(IpAddr),
    /// A route to this network, which is not a subnet of the link's addresses.
    Route(IpNet),
}

impl Traffic {
    /// Whether the node is unreachable without it, so that no policy can give the link to pods.
    fn is_vital(self) -> bool {
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

/// The node's own traffic that a link carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTraffic {
    /// The traffic.
    pub traffic: Traffic,
    /// Name of the link that has the route or the address; often the link itself.
    pub link: String,
    /// How the link relates to that one.
    pub relation: Relation,
}

impl NodeTraffic {
    /// Whether the node stays reachable without the link, so that a policy may give the whole link to a pod.
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
    /// The link carries the node's own traffic.
    #[error("{0}")]
    NodeTraffic(NodeTraffic),
    /// The link is a port of another one.
    #[error("is a port of {master}")]
    Enslaved {
        /// Name of the bridge, bond, team or VRF.
        master: String,
    },
    /// A veth without a NIC's name, which is probably the host end of a pod's.
    #[error("is a veth without a network card's name, probably the host end of a pod's link")]
    PodEnd,
    /// A kind of link that does not lead out of the node.
    #[error("is a link of kind {kind}")]
    Virtual {
        /// The rtnetlink kind.
        kind: String,
    },
}

/// Returns every link, and why it is not an uplink by default. Policies may overrule that.
/// `node_addresses` are those of the Node object.
pub fn classify<'a>(
    snapshot: &'a Snapshot,
    node_addresses: &BTreeSet<IpAddr>,
) -> impl Iterator<Item = (&'a Link, Result<(), NotUplink>)> + use<'a> {
    let links = &snapshot.links;
    let names: BTreeMap<u32, &str> = links.iter().map(|link| (link.index, link.name.as_str())).collect();
    let node_traffic = node_traffic(links, own_traffic(snapshot, node_addresses));
    let name =
        move |index: u32| names.get(&index).map_or_else(|| format!("#{index}"), |name| (*name).to_owned());
    let judge = move |link: &Link| {
        if link.loopback {
            return Err(NotUplink::Loopback);
        }
        let kind = leads_out(link);
        let traffic = node_traffic.get(&link.index).map(|&(traffic, through, relation)| NodeTraffic {
            traffic,
            link: name(through),
            relation,
        });
        // A bridge with an address, for example, is refused for its kind.
        if let Some(traffic) = traffic.filter(|traffic| kind.is_ok() || !traffic.is_dispensable()) {
            return Err(NotUplink::NodeTraffic(traffic));
        }
        link.master.map_or(kind, |master| Err(NotUplink::Enslaved { master: name(master) }))
    };
    links.iter().map(move |link| (link, judge(link)))
}

/// The use that the node itself makes of each link, by index.
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

/// The links that carry the node's traffic, by index: the traffic, the link that has it, and how they relate.
/// A link's own traffic comes first, unless only that of a link above is vital.
fn node_traffic(links: &[Link], own: BTreeMap<u32, Traffic>) -> BTreeMap<u32, (Traffic, u32, Relation)> {
    let by_index: BTreeMap<u32, &Link> = links.iter().map(|link| (link.index, link)).collect();
    let (mut ports, mut above) = (BTreeMap::<u32, Vec<u32>>::new(), BTreeMap::<u32, Vec<u32>>::new());
    for link in links {
        if let Some(master) = link.master {
            ports.entry(master).or_default().push(link.index);
            above.entry(link.index).or_default().push(master);
        }
        if let Some(below) = link.parent {
            above.entry(below).or_default().push(link.index);
        }
    }
    let around = |index: u32| {
        let link = by_index.get(&index);
        let (below, master) = (link.and_then(|link| link.parent), link.and_then(|link| link.master));
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

/// Adds the links of `from` that are missing, and all links that `around` reaches from them, for the same
/// reason.
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

/// Whether the link's kind leads out of the node, regardless of what the link is used for.
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

/// Whether the link is the host end of a pod's. A node may have very many.
pub(super) fn is_pod_end(link: &Link) -> bool {
    let kind = link.kind.as_deref();
    kind == Some("netkit") || (kind == Some("veth") && !is_nic_name(&link.name))
}

/// Whether a reader of `now` sees a difference to the snapshot in which links were as in `before`.
///
/// Readers want the links that lead out of the node, those with default routes, and those of which `is_read`.
/// What a link is for depends on those that it is connected to, as master, port or link below. So a
/// difference is not seen if neither a changed link nor any that it was or is connected to is wanted.
pub(super) fn is_seen(
    now: &Snapshot,
    before: &BTreeMap<u32, OfLink>,
    is_read: impl Fn(&Link, &[LinkAddress]) -> bool,
) -> bool {
    let mut connected = BTreeMap::<u32, Vec<u32>>::new();
    for link in now.links.iter().chain(before.values().filter_map(|before| before.link.as_ref())) {
        for other in link.master.into_iter().chain(link.parent) {
            connected.entry(link.index).or_default().push(other);
            connected.entry(other).or_default().push(link.index);
        }
    }
    let is_wanted = |link: Option<&Link>, addresses: &[LinkAddress], has_default_route: bool| {
        let leads_out = |link: &Link| !link.loopback && leads_out(link).is_ok();
        has_default_route || link.is_some_and(|link| leads_out(link) || is_read(link, addresses))
    };
    let is_wanted_now = |index: u32| {
        let addresses = now.addresses.get(&index).map(Vec::as_slice).unwrap_or_default();
        is_wanted(now.link(index), addresses, now.default_route_links.contains(&index))
    };
    let was_wanted =
        |before: &OfLink| is_wanted(before.link.as_ref(), &before.addresses, before.has_default_route);
    let mut seen: BTreeSet<u32> = before.keys().copied().collect();
    let mut to_visit: Vec<u32> = seen.iter().copied().collect();
    while let Some(index) = to_visit.pop() {
        if is_wanted_now(index) || before.get(&index).is_some_and(was_wanted) {
            return true;
        }
        let around = connected.get(&index).into_iter().flatten().copied();
        to_visit.extend(around.filter(|index| seen.insert(*index)));
    }
    false
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
