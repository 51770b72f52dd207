//! What is known of single plugins, so that users need not learn it: where the reference plugins (release 1.9.1) make
//! two attachments of one pod collide, or fail a DEL that has nothing left to do.
//!
//! Everything here goes by the plugin's type. A plugin of that name from somebody else gets calls that the
//! specification allows all the same.

use sha2::{Digest as _, Sha512};

use crate::attachment::Attachment;
use crate::config::{NetworkList, PluginConf};
use crate::hex::hex;
use crate::result::CniResult;

/// Longest name of a device in bytes (`IFNAMSIZ` less the closing NUL), all of which `bandwidth` uses.
const DEVICE_NAME: usize = 15;

/// The network name to give to this plugin in this attachment, if not the network's.
///
/// `bandwidth` names its device on the host after network and container, not the interface: a second attachment of a
/// container to one network fails, and the DEL of one takes the other's device away. It uses the name for nothing else.
///
/// `prev` is the attachment's result: where it has the device under the plugin's own name, another runtime, or an
/// earlier version of this one, has made it, and the plugin is called by that name.
pub(crate) fn network_name_for(
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
