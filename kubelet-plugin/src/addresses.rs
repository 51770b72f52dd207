//! The `addresses` capacity: how many attachments a Network's IPAM has room for on this node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netclaim_api::NetworkName;
use netclaim_api::network::NetworkSpec;
use netclaim_driver::cni::NetworkName as CniNetworkName;
use netclaim_driver::cni::ipam::host_local::{HostLocal, reservations};
use serde_json::Value;

/// What the ranges of a `host-local` IPAM hold less what others than us have taken; the smallest of several IPAMs.
/// `None` for IPAMs that do not tell, and for ranges that depend on the claim.
pub fn of(name: &NetworkName, spec: &NetworkSpec, ours: &BTreeSet<String>) -> Option<u64> {
    let plugins = spec.cni.get("plugins")?.as_array()?;
    let list_name = spec
        .cni
        .get("name")
        .and_then(Value::as_str)
        .map_or_else(|| format!("netclaim-{name}"), str::to_owned);
    let list_name = CniNetworkName::try_from(list_name).ok()?;
    let ipams =
        plugins.iter().filter_map(|plugin| plugin.get("ipam")).filter(|ipam| ipam["type"] == "host-local");
    let left = ipams.filter_map(|ipam| {
        let ipam = HostLocal::parse(&ipam.to_string()).ok()?;
        // No directory yet: nobody has taken anything.
        let taken = reservations(&ipam.reservations_dir(&list_name)).unwrap_or_default();
        let foreign: Vec<IpAddr> =
            taken.iter().filter(|r| !ours.contains(&r.container_id)).map(|r| r.ip).collect();
        u64::try_from(ipam.left(&foreign)).ok()
    });
    left.min()
}
