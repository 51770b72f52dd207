//! A network name for the reference plugin `bandwidth` (release 1.9.1) with which two attachments of one
//! container do not collide.
//!
//! The plugin is recognised by its type. Another plugin of that name still gets calls that the specification
//! allows.

use sha2::{Digest as _, Sha512};

use crate::attachment::Attachment;
use crate::config::{NetworkList, PluginConf};
use crate::hex::hex;
use crate::result::CniResult;

/// Longest name of a device in bytes (`IFNAMSIZ` less the closing NUL), all of which `bandwidth` uses.
const DEVICE_NAME: usize = 15;

/// Returns the network name for this plugin in this attachment, or `None` for the network's own.
///
/// `bandwidth` names its device on the host after network and container, not the interface: a second
/// attachment of a container to one network fails, and the DEL of one takes the other's device away. It uses
/// the name for nothing else.
///
/// `prev` is the attachment's result. If it has a device of the plugin's usual name, another runtime made it,
/// and the plugin must get the network's own name.
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
