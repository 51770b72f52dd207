//! The `addresses` capacity: how many attachments a ClaimNetwork's IPAM has room for on this node.
//!
//! A ClaimNetwork with `addresses` has those of the blocks that the node has leased, without what others hold
//! of them, and one for each attachment whose address is of no such block, if its claim is charged for one.
//!
//! ClaimNetworks with one `cni.name` and overlapping ranges share addresses. Each gets those of its own
//! attachments and an equal part of the free ones, because the scheduler counts the capacities of two devices
//! separately.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use netclaim_api::NetworkName;
use netclaim_api::addresses::Family;
use netclaim_api::network::{ClaimNetworkSpec, Scope};
use netclaim_cni::ListName;
use netclaim_cni::ipam::host_local::{HostLocal, Reservations};
use serde_json::Value;

use crate::addresses::reservations::{Lists, foreign, journalled_dirs, leases_dirs};
use crate::devices::HeldDevice;
use crate::devices::held::many;
use crate::inventory::{Block, NodeAddresses};

/// Who uses addresses on the node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Users<'a> {
    pub(crate) networks: &'a BTreeMap<NetworkName, ClaimNetworkSpec>,
    /// The sandboxes of all attachments.
    pub(crate) ours: &'a BTreeSet<String>,
    /// The addresses of ClaimNetworks that share them with other nodes.
    pub(crate) leased: &'a BTreeMap<NetworkName, NodeAddresses>,
    pub(crate) held: &'a [HeldDevice],
    /// Addresses that `host-local` has handed out.
    pub(crate) reservations: &'a Reservations,
}

/// Returns how many addresses the ranges of a `host-local` IPAM have for this ClaimNetwork's attachments; the
/// smallest number of several IPAMs. `None` for other IPAMs, and for ranges that depend on the claim. Reads
/// files.
pub(crate) fn of(name: &NetworkName, spec: &ClaimNetworkSpec, users: Users<'_>) -> Option<u64> {
    if let Some(leased) = users.leased.get(name) {
        return Some(u64::try_from(of_blocks(name, spec, leased, users)).unwrap_or(u64::MAX));
    }
    let left = host_locals(name, spec).filter_map(|(ipam, dir)| {
        // Without a directory no address is taken.
        let taken = users.reservations.read(&dir).unwrap_or_default();
        let foreign: Vec<IpAddr> =
            taken.iter().filter(|r| !users.ours.contains(&r.container_id)).map(|r| r.ip).collect();
        let left = u64::try_from(ipam.left(&foreign)).ok()?;
        Some(part(name, left, &sharing(name, spec, &ipam, &dir, users)))
    });
    left.min()
}

/// Returns how many attachments the node's blocks allow, those included that have addresses of others. Reads
/// files.
fn of_blocks(name: &NetworkName, spec: &ClaimNetworkSpec, leased: &NodeAddresses, users: Users<'_>) -> u128 {
    let held: Vec<&HeldDevice> = users.held.iter().filter(|held| held.takes_address_of(name)).collect();
    let all = many(held.iter().copied());
    let Some(pool) = &leased.pool else { return all as u128 };
    let lists = held.iter().filter_map(|held| held.list.as_deref());
    let foreign = foreign(&leases_dirs(name, spec, lists), users.ours, users.reservations);
    let of_family = |family: Family| {
        let blocks: Vec<&Block> = leased.blocks.iter().filter(|block| block.family() == family).collect();
        let is_inside = |held: &&HeldDevice| blocks.iter().any(|block| held.blocks.contains(&block.cidr));
        let outside = all - many(held.iter().copied().filter(is_inside));
        let sizes = blocks.iter().map(|block| block.free_of(&foreign));
        sizes.fold(outside as u128, u128::saturating_add)
    };
    pool.families().into_iter().map(of_family).min().unwrap_or_default()
}

/// Returns the ClaimNetworks that share addresses with this one, itself included, and how many attachments
/// each has. A ClaimNetwork whose device is not this node's has no part of the free addresses.
fn sharing(
    name: &NetworkName,
    spec: &ClaimNetworkSpec,
    ipam: &HostLocal,
    dir: &Path,
    users: Users<'_>,
) -> BTreeMap<NetworkName, Sharer> {
    let list = spec.list_name(name);
    let mut sharing = BTreeMap::from([(name.clone(), Sharer { is_offered: true, attachments: 0 })]);
    for (other, spec) in users.networks {
        if host_locals(other, spec).any(|(others, at)| at == dir && others.overlaps(ipam)) {
            let is_offered = spec.scope == Scope::Node;
            sharing.insert(other.clone(), Sharer { is_offered, attachments: 0 });
        }
    }
    for held in users.held.iter().filter(|held| held.list.as_ref() == Some(&list)) {
        let Some(network) = &held.network else { continue };
        // The ranges of a deleted ClaimNetwork are unknown.
        let is_gone = !users.networks.contains_key(network);
        if is_gone {
            sharing.entry(network.clone()).or_default();
        }
        if let Some(sharer) = sharing.get_mut(network) {
            sharer.attachments += held.many() as u64;
        }
    }
    sharing
}

#[derive(Debug, Clone, Copy, Default)]
struct Sharer {
    is_offered: bool,
    attachments: u64,
}

/// Returns the part of one of the ClaimNetworks that share `left` addresses; the first ones by name get the
/// remainder.
fn part(name: &NetworkName, left: u64, sharing: &BTreeMap<NetworkName, Sharer>) -> u64 {
    let held: u64 = sharing.values().map(|sharer| sharer.attachments).sum();
    let offered: Vec<&NetworkName> =
        sharing.iter().filter(|(_, sharer)| sharer.is_offered).map(|(name, _)| name).collect();
    let (free, many) = (left.saturating_sub(held), offered.len().max(1) as u64);
    let place = offered.iter().take_while(|offered| **offered != name).count() as u64;
    let own = sharing.get(name).map(|sharer| sharer.attachments).unwrap_or_default();
    // Alone it has all of them: an attachment may hold an address outside of a range that was made smaller.
    if sharing.len() == 1 { left } else { own + free / many + u64::from(place < free % many) }
}

/// Returns the directories in which the IPAMs of a ClaimNetwork keep their leases. Its attachments were made
/// with the conflists `lists`.
pub(crate) fn dirs(name: &NetworkName, spec: &ClaimNetworkSpec, lists: &Lists) -> BTreeSet<PathBuf> {
    host_locals(name, spec).map(|(_, dir)| dir).chain(journalled_dirs(name, spec, lists)).collect()
}

fn host_locals(name: &NetworkName, spec: &ClaimNetworkSpec) -> impl Iterator<Item = (HostLocal, PathBuf)> {
    let list_name = ListName::try_from(spec.list_name(name)).ok();
    let plugins = spec.cni.get("plugins").and_then(Value::as_array).into_iter().flatten();
    let ipams = plugins.filter_map(|plugin| plugin.get("ipam")).filter(|ipam| ipam["type"] == "host-local");
    ipams.filter_map(move |ipam| {
        let ipam = HostLocal::parse(&ipam.to_string()).ok()?;
        let dir = ipam.reservations_dir(list_name.as_ref()?);
        Some((ipam, dir))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inventory::fixtures::without_blocks;

    fn network(list: Option<&str>, range: (&str, &str)) -> ClaimNetworkSpec {
        let ipam = json!({"type": "host-local", "dataDir": "/nowhere",
            "ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": range.0, "rangeEnd": range.1}]]});
        let mut cni = json!({"cniVersion": "1.0.0", "plugins": [{"type": "bridge", "ipam": ipam}]});
        if let Some(list) = list {
            cni["name"] = json!(list);
        }
        serde_json::from_value(json!({"cni": cni})).expect("a network")
    }

    #[test]
    fn networks_with_one_lease_directory_divide_its_addresses() {
        let (ten, others) = (("10.1.0.11", "10.1.0.20"), ("10.1.0.21", "10.1.0.22"));
        let networks = [
            ("a", network(Some("lab"), ten)),
            ("b", network(Some("lab"), ten)),
            ("c", network(Some("lab"), others)),
            ("d", network(None, ten)),
        ];
        let networks: BTreeMap<NetworkName, ClaimNetworkSpec> =
            networks.into_iter().map(|(name, spec)| (name.parse().expect("a name"), spec)).collect();
        let all = |held: &[(&str, &str)]| {
            let held = held.iter().map(|(network, list)| HeldDevice {
                network: network.parse().ok(),
                list: Some((*list).to_owned()),
                ..HeldDevice::default()
            });
            let (held, ours) = (held.collect::<Vec<_>>(), BTreeSet::new());
            let (none, reservations) = (BTreeMap::new(), Reservations::default());
            let users = Users {
                networks: &networks,
                ours: &ours,
                leased: &none,
                held: &held,
                reservations: &reservations,
            };
            networks.iter().map(|(name, spec)| of(name, spec, users)).collect::<Option<Vec<_>>>()
        };
        assert_eq!(all(&[]), Some(vec![5, 5, 2, 10]));
        let held = [("a", "lab"), ("a", "lab"), ("a", "lab"), ("c", "lab"), ("d", "netclaim-d")];
        assert_eq!(all(&held), Some(vec![7, 3, 2, 10]), "3 of its own, and a half of 7");
        assert_eq!(all(&[("gone", "lab")]).map(|all| all[0] + all[1]), Some(9), "its pod has an address");
    }

    #[test]
    fn an_attachment_whose_claim_is_charged_no_address_adds_none() {
        let name: NetworkName = "plc".parse().expect("a name");
        let spec: ClaimNetworkSpec = serde_json::from_value(json!({
            "addresses": {"ranges": [{"subnet": "10.30.0.0/28"}], "reserved": ["10.30.0.8/29"]},
            "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}}))
        .expect("a network");
        let leased = without_blocks(&name, &spec);
        let held = |takes_no_address| HeldDevice {
            network: Some(name.clone()),
            takes_no_address,
            ..HeldDevice::default()
        };
        let (ours, reservations) = (BTreeSet::new(), Reservations::default());
        let (networks, leased) =
            (BTreeMap::from([(name.clone(), spec.clone())]), BTreeMap::from([(name.clone(), leased)]));
        let held = [held(true), held(false)];
        let users = Users {
            networks: &networks,
            ours: &ours,
            leased: &leased,
            held: &held,
            reservations: &reservations,
        };
        assert_eq!(of(&name, &spec, users), Some(1), "that of the claim of before");
    }
}
