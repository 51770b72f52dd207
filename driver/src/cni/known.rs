//! What is known of single plugins, so that users need not learn it: where the reference plugins (release 1.9.1) make
//! two attachments of one pod collide, or fail a DEL that has nothing left to do.
//!
//! Everything here goes by the plugin's type. A plugin of that name from somebody else gets calls that the
//! specification allows all the same.

use sha2::{Digest as _, Sha512};

use super::attachment::Attachment;
use super::conf::{NetworkList, PluginConf};
use super::error::{Effect, Error};
use super::result::CniResult;
use crate::hex;

/// Plugins whose whole work lies inside the container's namespace and ends with it, apart from their IPAM plugin's.
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

/// Longest name of a device in bytes (`IFNAMSIZ` less the closing NUL), all of which `bandwidth` uses.
const DEVICE_NAME: usize = 15;

/// The network name to give to this plugin in this attachment, if not the network's.
///
/// `bandwidth` names its device on the host after network and container, not the interface: a second attachment of a
/// container to one network fails, and the DEL of one takes the other's device away. It uses the name for nothing else.
///
/// `prev` is the attachment's result: where it has the device under the plugin's own name, another runtime, or an
/// earlier version of this one, has made it, and the plugin is called by that name.
pub(super) fn name_of_its_own(
    list: &NetworkList,
    plugin: &PluginConf,
    attachment: &Attachment,
    prev: Option<&CniResult>,
) -> Option<String> {
    if plugin.plugin_type().as_str() != "bandwidth" {
        return None;
    }
    let plain = device(list.name().as_str(), attachment);
    if prev.is_some_and(|prev| prev.interfaces().iter().any(|interface| interface.name == plain)) {
        return None;
    }
    // An interface name holds nothing that a network name may not.
    Some(format!("{}.{}", list.name(), attachment.if_name.as_str()))
}

/// The plugin's name for its device: `bwp` and as much of a SHA-512 as fits.
fn device(network: &str, attachment: &Attachment) -> String {
    let mut name = format!("bwp{}", hex(&Sha512::digest(format!("{network}{}", attachment.container_id))));
    name.truncate(DEVICE_NAME);
    name
}

/// Whether DEL without a namespace can be left out: `sbr` opens the namespace before anything else, fails when there
/// is none, and has made nothing outside of it.
pub(super) fn has_nothing_to_delete_without_netns(plugin: &PluginConf) -> bool {
    plugin.plugin_type().as_str() == "sbr"
}

/// Whether a failed DEL leaves nothing behind after the namespace has gone, once the IPAM plugin itself was called.
///
/// `vlan` and `ipvlan` look for their master first and fail without it. `dhcp` fails when its daemon does not run; then
/// nobody renews the lease either, and it ends by itself.
pub(super) fn is_done_without_netns(error: &Error) -> bool {
    // One that says nothing may not have run.
    let Some(reported) = error.reported() else { return false };
    let plugin = error.plugin().as_str();
    error.effect() != Effect::Unknown
        || INSIDE.contains(&plugin)
        || (plugin == "dhcp" && reported.msg.contains("error dialing DHCP daemon"))
}
