//! The `addresses` capacity: how many attachments a Network's IPAM has room for on this node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use netclaim_api::NetworkName;
use netclaim_api::network::{NetworkSpec, conflist_name};
use netclaim_driver::cni::NetworkName as CniNetworkName;
use netclaim_driver::cni::ipam::host_local::{HostLocal, reservations};
use serde_json::Value;

/// What the ranges of a `host-local` IPAM hold less what others than us have taken; the smallest of several IPAMs.
/// `None` for IPAMs that do not tell, and for ranges that depend on the claim. Blocks for a moment.
pub fn of(name: &NetworkName, spec: &NetworkSpec, ours: &BTreeSet<String>) -> Option<u64> {
    let left = host_locals(name, spec).filter_map(|(ipam, dir)| {
        // No directory yet: nobody has taken anything.
        let taken = reservations(&dir).unwrap_or_default();
        let foreign: Vec<IpAddr> =
            taken.iter().filter(|r| !ours.contains(&r.container_id)).map(|r| r.ip).collect();
        u64::try_from(ipam.left(&foreign)).ok()
    });
    left.min()
}

/// Where the IPAMs of a Network note who has what.
pub fn dirs(name: &NetworkName, spec: &NetworkSpec) -> Vec<PathBuf> {
    host_locals(name, spec).map(|(_, dir)| dir).collect()
}

fn host_locals(name: &NetworkName, spec: &NetworkSpec) -> impl Iterator<Item = (HostLocal, PathBuf)> {
    let list_name = spec.cni.get("name").and_then(Value::as_str);
    let list_name = list_name.map_or_else(|| conflist_name(name.as_str()), str::to_owned);
    let list_name = CniNetworkName::try_from(list_name).ok();
    let plugins = spec.cni.get("plugins").and_then(Value::as_array).into_iter().flatten();
    let ipams = plugins.filter_map(|plugin| plugin.get("ipam")).filter(|ipam| ipam["type"] == "host-local");
    ipams.filter_map(move |ipam| {
        let ipam = HostLocal::parse(&ipam.to_string()).ok()?;
        let dir = ipam.reservations_dir(list_name.as_ref()?);
        Some((ipam, dir))
    })
}
