//! What the reference plugins (github.com/containernetworking/plugins, release 1.9.1) and netclaim's own
//! look at in STATUS and CHECK, by their source.

use crate::config::NetworkList;
use crate::names::PluginType;
use crate::validate::BANDWIDTH_PLUGIN;

/// Plugins whose STATUS looks at nothing but its configuration and the STATUS of its IPAM plugin: their
/// answer stays the same. Some of them have no STATUS, which is a yes: the library that they use gives it.
pub const STATUS_LOOKS_AT_NOTHING: [&str; 19] = [
    BANDWIDTH_PLUGIN,
    "bandwidth",
    "bridge",
    "dhcp",
    "dummy",
    "firewall",
    "host-device",
    "host-local",
    "ipvlan",
    "loopback",
    "macvlan",
    "portmap",
    "ptp",
    "sbr",
    "static",
    "tap",
    "tuning",
    "vlan",
    "vrf",
];

/// Whether STATUS of the plugin looks at nothing: see [`STATUS_LOOKS_AT_NOTHING`].
pub fn status_looks_at_nothing(plugin: &PluginType) -> bool {
    STATUS_LOOKS_AT_NOTHING.contains(&plugin.as_str())
}

/// Plugins whose CHECK looks at nothing but the interface, its addresses and routes, the link below, and what
/// their IPAM plugin has noted. `bridge` also looks at the host's side, and chained ones at what they have
/// set.
const CHECK_LOOKS_AT_INTERFACE: [&str; 8] =
    ["dummy", "host-device", "ipvlan", "macvlan", "ptp", "sbr", "tap", "vlan"];

/// IPAM plugins whose CHECK looks at nothing but the result and their file of the address.
const CHECK_LOOKS_AT_LEASE: [&str; 2] = ["host-local", "static"];

/// Whether CHECK of a chain looks at nothing but the interface in the pod, its addresses, its routes and the
/// leases of `host-local`.
pub fn check_looks_at_interface(list: &NetworkList) -> bool {
    list.plugins().all(|plugin| {
        CHECK_LOOKS_AT_INTERFACE.contains(&plugin.plugin_type().as_str())
            && plugin.ipam().is_none_or(|ipam| CHECK_LOOKS_AT_LEASE.contains(&ipam.as_str()))
    })
}
