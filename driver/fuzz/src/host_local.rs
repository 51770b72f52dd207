//! The files of host-local: the first line is an `ipam` object, the rest what the plugin wrote down for an
//! address.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netclaim_cni::fuzzing::reservation;
use netclaim_cni::ipam::host_local::HostLocal;
use serde_json::Value;

/// How many addresses of a subnet are looked at one by one.
const COUNTED: u128 = 1 << 10;

pub fn host_local(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (ipam, note) = text.split_once('\n').unwrap_or((&text, ""));
    let ip = IpAddr::from([10, 0, 0, 2]);
    let read = reservation(ip, note);
    assert!(read.ip == ip && !read.container_id.contains('\n'), "{read:?}");

    let Ok(ranges) = HostLocal::parse(ipam) else { return };
    let capacity = ranges.capacity();
    let none: [&IpAddr; 0] = [];
    assert_eq!(ranges.left(none), capacity);
    let dir = ranges.reservations_dir(&"net".parse().expect("a name"));
    assert_eq!(dir.file_name(), Some("net".as_ref()));

    let taken: BTreeSet<IpAddr> = note.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let left = ranges.left(&taken);
    assert!(left <= capacity && capacity - left <= taken.len() as u128);
    // Nothing is lost by what is not an address of the ranges: loopback and multicast are in no range.
    if let Some(addresses) = every_address(ipam) {
        assert_eq!(ranges.left(&addresses), 0, "every address is taken, and some are left");
        let handed_out = addresses.iter().filter(|ip| ranges.left([*ip]) < capacity).count();
        assert!(handed_out as u128 >= u128::from(capacity > 0));
    }
}

/// The addresses of a configuration with one small subnet.
fn every_address(ipam: &str) -> Option<Vec<IpAddr>> {
    let ipam: Value = serde_json::from_str(ipam).ok()?;
    if ipam["ranges"] != Value::Null {
        return None;
    }
    let (base, length) = ipam["subnet"].as_str()?.split_once('/')?;
    let (base, length): (IpAddr, u32) = (base.parse().ok()?, length.parse().ok()?);
    let count = 1u128.checked_shl(if base.is_ipv4() { 32 } else { 128 } - length)?;
    if count > COUNTED {
        return None;
    }
    Some(match base {
        IpAddr::V4(base) => {
            (0..count as u32).map(|n| Ipv4Addr::from_bits(base.to_bits() + n).into()).collect()
        }
        IpAddr::V6(base) => (0..count).map(|n| Ipv6Addr::from_bits(base.to_bits() + n).into()).collect(),
    })
}
