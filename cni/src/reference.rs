//! What the reference plugins (github.com/containernetworking/plugins, release 1.9.1) and netclaim's own look at
//! in STATUS and CHECK, by their source.

use crate::names::PluginType;
use crate::validate::BANDWIDTH_PLUGIN;

/// Plugins whose STATUS looks at nothing but its configuration and the STATUS of its IPAM plugin: their answer
/// stays the same. Some of them have no STATUS, which is a yes: the library that they use gives it.
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
