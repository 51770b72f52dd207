//! Failed DELs of the reference plugins (release 1.9.1) that leave nothing behind when the network namespace
//! is gone.

use super::error::{Effect, Error};
use crate::config::PluginConf;

/// Plugins whose whole work lies inside the container's namespace and ends with it, apart from their IPAM
/// plugin's.
///
/// Not `bridge` and `ptp`: they leave masquerading rules on the host.
const INSIDE: [&str; 11] = [
    "dummy",
    "host-device",
    "ipvlan",
    "loopback",
    "macvlan",
    "sbr",
    "tap",
    "tuning",
    "vlan",
    "vrf",
    "static",
];

/// Whether DEL without a namespace can be skipped: `sbr` has made nothing outside of the namespace, and fails
/// without it.
pub(crate) fn has_nothing_to_delete_without_netns(plugin: &PluginConf) -> bool {
    plugin.plugin_type().as_str() == "sbr"
}

/// Whether a failed DEL leaves nothing behind after the namespace has gone, once the IPAM plugin itself was
/// called.
///
/// `vlan` and `ipvlan` fail without their master. `dhcp` fails if its daemon does not run; then no renewal
/// keeps the lease.
pub(crate) fn is_done_without_netns(error: &Error) -> bool {
    // A plugin without an error object may not have run.
    let Some(reported) = error.reported() else { return false };
    let plugin = error.plugin().as_str();
    error.effect() != Effect::Unknown
        || INSIDE.contains(&plugin)
        || (plugin == "dhcp" && reported.msg.contains("error dialing DHCP daemon"))
}
