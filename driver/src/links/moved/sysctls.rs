//! Sysctls of a link. The kernel makes new ones, with the defaults of the network namespace, whenever a link
//! changes that.

use std::collections::BTreeMap;
use std::{fs, io};

/// Values by name, such as `ipv6/accept_ra`.
pub(super) type Sysctls = BTreeMap<String, String>;

/// Those that decide what the host accepts from the link's network, what it answers there, and what it
/// forwards.
const NAMES: [&str; 27] = [
    "ipv4/accept_local",
    "ipv4/accept_redirects",
    "ipv4/accept_source_route",
    "ipv4/arp_accept",
    "ipv4/arp_announce",
    "ipv4/arp_evict_nocarrier",
    "ipv4/arp_filter",
    "ipv4/arp_ignore",
    "ipv4/arp_notify",
    "ipv4/forwarding",
    "ipv4/log_martians",
    "ipv4/proxy_arp",
    "ipv4/route_localnet",
    "ipv4/rp_filter",
    "ipv4/secure_redirects",
    "ipv4/send_redirects",
    "ipv4/src_valid_mark",
    "ipv6/accept_ra",
    "ipv6/accept_ra_defrtr",
    "ipv6/accept_ra_pinfo",
    "ipv6/accept_redirects",
    "ipv6/accept_source_route",
    "ipv6/autoconf",
    "ipv6/disable_ipv6",
    "ipv6/forwarding",
    "ipv6/proxy_ndp",
    "ipv6/use_tempaddr",
];

/// Reads the sysctls of a link in the calling thread's network namespace, as far as the kernel has them.
pub(super) fn read(link: &str) -> Sysctls {
    let value = |name: &str| Some(fs::read_to_string(path(link, name)).ok()?.trim().to_owned());
    NAMES.iter().filter_map(|name| Some(((*name).to_owned(), value(name)?))).collect()
}

/// As [`read`], without those that have the namespace's default: the link follows that, also if it changes
/// meanwhile.
pub(super) fn read_own(link: &str) -> Sysctls {
    let (mut own, defaults) = (read(link), read("default"));
    own.retain(|name, value| defaults.get(name) != Some(value));
    own
}

/// Sets a sysctl of a link in the calling thread's network namespace.
pub(super) async fn set(link: &str, name: &str, value: &str) -> io::Result<()> {
    tokio::fs::write(path(link, name), value).await
}

fn path(link: &str, name: &str) -> String {
    let (family, name) = name.split_once('/').unwrap_or_default();
    format!("/proc/sys/net/{family}/conf/{link}/{name}")
}
