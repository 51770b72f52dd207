//! Addresses that `host-local` has handed out on the node, by the directories in which it keeps its leases.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use netclaim_api::NetworkName;
use netclaim_api::network::{ClaimNetworkSpec, conflist_name};
use netclaim_cni::ListName;
use netclaim_cni::ipam::host_local::{Reservations, default_reservations_dir};
use netclaim_driver::attach::{Attach, Attacher, Observer};

use crate::pods::owner::Owner;

/// Names of conflists by ClaimNetwork.
pub(crate) type Lists = BTreeMap<String, BTreeSet<String>>;

/// Returns the addresses that others than the sandboxes `ours` hold in these directories of `host-local`.
/// Reads files.
pub(crate) fn foreign(
    dirs: &BTreeSet<PathBuf>,
    ours: &BTreeSet<String>,
    reservations: &Reservations,
) -> BTreeSet<IpAddr> {
    let mut foreign = BTreeSet::new();
    for dir in dirs {
        // Without a directory no address is taken.
        let taken = reservations.read(dir).unwrap_or_default();
        foreign.extend(taken.iter().filter(|r| !ours.contains(&r.container_id)).map(|r| r.ip));
    }
    foreign
}

/// Returns the directories in which `host-local` may keep leases of a ClaimNetwork with `addresses`: under
/// its present name, the one that it has by default, and those of the conflists `lists` that its attachments
/// were made with.
pub(crate) fn leases_dirs<'a>(
    name: &NetworkName,
    spec: &ClaimNetworkSpec,
    lists: impl IntoIterator<Item = &'a str>,
) -> BTreeSet<PathBuf> {
    if spec.addresses.is_none() {
        return BTreeSet::new();
    }
    let own = [spec.list_name(name), conflist_name(name.as_str())];
    let all = own.into_iter().chain(lists.into_iter().map(str::to_owned));
    let names = all.filter_map(|name| ListName::try_from(name).ok());
    names.map(|name| default_reservations_dir(name.as_str())).collect()
}

/// Returns the same directories for the `lists` of the journal.
pub(crate) fn journalled_dirs(
    name: &NetworkName,
    spec: &ClaimNetworkSpec,
    lists: &Lists,
) -> BTreeSet<PathBuf> {
    leases_dirs(name, spec, lists.get(name.as_str()).into_iter().flatten().map(String::as_str))
}

/// Returns the names of the conflists that attachments of each ClaimNetwork were made with.
pub(crate) fn journalled_lists<A: Attach, O: Observer<Owner = Owner>>(attacher: &Attacher<A, O>) -> Lists {
    let mut lists = Lists::new();
    for (kind, _) in attacher.kinds() {
        lists.entry(kind.network.clone()).or_default().extend(kind.held.list.clone());
    }
    lists
}
