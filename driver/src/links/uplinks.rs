//! Which links a pod may be attached to or through, when nobody has said otherwise.
//!
//! A link is an uplink when none of these holds, tried in this order:
//!
//! 1. it is a loopback device;
//! 2. it carries the node's own traffic: a default route leads through it, or it lies under such a link
//!    (`eth0` and `eth1` of a `bond0`, the `bond0` of a `bond0.100`), or is enslaved together with it. A
//!    VLAN *above* the node's link is a network of its own and stays: taking `bond0.200` away does nothing
//!    to `bond0.100`;
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

use std::collections::{BTreeMap, BTreeSet};

use super::Link;

/// Why a link is not an uplink by default. The text follows the link's name in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUplink {
    /// A loopback device.
    #[error("is a loopback device")]
    Loopback,
    /// The link is on the way of a default route.
    #[error("carries the node's own traffic: a default route leads through {default_route_link}")]
    NodeTraffic {
        /// Name of the link the default route names; often the link itself.
        default_route_link: String,
    },
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

/// The links of a node that are uplinks by default, in the order given. See the module's rules.
///
/// `default_route_links` are the indices of the links that default routes lead through.
pub fn uplinks<'a>(links: &'a [Link], default_route_links: &BTreeSet<u32>) -> Vec<&'a Link> {
    classify(links, default_route_links)
        .filter_map(|(link, verdict)| verdict.is_ok().then_some(link))
        .collect()
}

/// Every link with its verdict: what a policy overrules, and what a person who misses a link wants to read.
pub fn classify<'a>(
    links: &'a [Link],
    default_route_links: &BTreeSet<u32>,
) -> impl Iterator<Item = (&'a Link, Result<(), NotUplink>)> {
    let names: BTreeMap<u32, &str> = links.iter().map(|link| (link.index, link.name.as_str())).collect();
    let node_traffic = node_traffic(links, default_route_links);
    let name =
        move |index: u32| names.get(&index).map_or_else(|| format!("#{index}"), |name| (*name).to_owned());
    links.iter().map(move |link| {
        let verdict = if link.loopback {
            Err(NotUplink::Loopback)
        } else if let Some(&through) = node_traffic.get(&link.index) {
            Err(NotUplink::NodeTraffic { default_route_link: name(through) })
        } else if let Some(master) = link.master {
            Err(NotUplink::Enslaved { master: name(master) })
        } else {
            leads_out(link)
        };
        (link, verdict)
    })
}

/// The links that carry the node's own traffic, each with the default route's link it does so for.
fn node_traffic(links: &[Link], default_route_links: &BTreeSet<u32>) -> BTreeMap<u32, u32> {
    let by_index: BTreeMap<u32, &Link> = links.iter().map(|link| (link.index, link)).collect();
    let mut ports: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for link in links {
        if let Some(master) = link.master {
            ports.entry(master).or_default().push(link.index);
        }
    }

    let mut carries = BTreeMap::new();
    let mut to_visit: Vec<(u32, u32)> = default_route_links.iter().map(|&i| (i, i)).collect();
    while let Some((index, through)) = to_visit.pop() {
        if carries.contains_key(&index) {
            continue;
        }
        carries.insert(index, through);
        let link = by_index.get(&index);
        let below = link.filter(|link| !is_pair(link)).and_then(|link| link.parent);
        let master = link.and_then(|link| link.master);
        let enslaved = ports.get(&index).into_iter().flatten().copied();
        to_visit.extend(below.into_iter().chain(master).chain(enslaved).map(|next| (next, through)));
    }
    // A link with a default route of its own is named for that, not for one it lies under.
    carries.extend(default_route_links.iter().map(|&index| (index, index)));
    carries
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
