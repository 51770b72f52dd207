//! What of a plugin's configuration means something else in a ClaimNetwork.

use netclaim_api::{IfName, Invalid, Setting};
use serde_json::{Map, Value, json};

/// The placeholder for the link of the node.
const UPLINK: &str = "${uplink.name}";
/// The placeholder for the `ipam` of a ClaimNetwork with addresses.
const ADDRESSES: &str = "${addresses}";
/// What runs plugins that need programs of the host.
const HOST_MOUNTS: &str =
    "the agent's image lacks what it calls on the node: install netclaim with deploy/host-mounts";

/// Plugins that cannot work under netclaim, with the reason and what to do.
const REFUSED: [(&str, &str); 7] = [
    (
        "sriov",
        "netclaim gives plugins no PCI address: use a DeviceClass that selects the virtual functions, with host-device; set VLAN, \
         trust, spoof check and rates on the card",
    ),
    ("ib-sriov", "netclaim has no InfiniBand: its pods stay on Multus"),
    ("rdma", "netclaim moves no RDMA devices: its pods stay on Multus"),
    ("accelerated-bridge", "netclaim gives plugins no PCI address: its pods stay on Multus"),
    (
        "ovn-k8s-cni-overlay",
        "the plugin reads the NetworkAttachmentDefinition and the pod's annotation: its pods stay on Multus",
    ),
    (
        "kube-ovn",
        "the plugin reads the NetworkAttachmentDefinition and the pod's annotation: its pods stay on Multus",
    ),
    ("userspace", "the plugin reads the pod's annotations of Multus: its pods stay on Multus"),
];

/// Plugins whose keys netclaim's validation knows.
const KNOWN: [&str; 15] = [
    "bridge",
    "macvlan",
    "ipvlan",
    "vlan",
    "host-device",
    "ptp",
    "tap",
    "dummy",
    "loopback",
    "tuning",
    "sbr",
    "vrf",
    "bandwidth",
    "firewall",
    "portmap",
];
/// Plugins that take the capability `mac`.
const TAKE_MAC: [&str; 4] = ["macvlan", "bridge", "tap", "tuning"];
/// IPAM plugins that take the capability `ips`.
const TAKE_IPS: [&str; 2] = ["static", "host-local"];

/// The findings of a translation in a plugin's configuration; fields are relative to it.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) problems: Vec<Invalid>,
    pub(super) notes: Vec<Invalid>,
    pub(super) uplink: Option<Uplink>,
    /// Whether its addresses come from whereabouts.
    pub(super) is_whereabouts: bool,
}

/// The link of the node that a plugin works on.
#[derive(Debug)]
pub(super) struct Uplink {
    /// The key that names it.
    pub(super) key: &'static str,
    pub(super) link: IfName,
}

impl Findings {
    fn refuse(&mut self, field: &str, problem: impl Into<String>) {
        self.problems.push(Invalid::new(field, problem));
    }

    fn note(&mut self, field: &str, note: impl Into<String>) {
        self.notes.push(Invalid::new(field, note));
    }
}

/// Changes a plugin's configuration into that of a ClaimNetwork.
pub(super) fn adapt(plugin: &mut Map<String, Value>) -> Findings {
    const NO_ARGS: &str = "netclaim gives plugins no args: write the values into keys that the plugin reads";
    const NO_MASTER: &str = "is not set, so the plugin takes the link of the node's default route: write its name here (`ip route` \
                             shows it); if it differs from node to node, select it by attributes in spec.uplink of a ClaimNetwork";
    const NO_DEVICE: &str = "is not set, and a ClaimNetwork knows links by their names: write the name here, or select the link in a \
                             DeviceClass by its PCI address or driver";
    const ONE_POD: &str =
        "the kernel allows one VLAN of an id on a link, so one pod on each node has it at a time";
    const PORT: &str = "if a link of the nodes is a port of the bridge, list it in spec.uplink.links of the ClaimNetwork: then pods \
                        come only to nodes where it is";
    const LINKS_OF_NODE: &str =
        "the scheduler would not know the links of the node: ask for them in the same claim, and set this";
    const LINKS_BEFORE: &str = "the annotation has to ask for these links before the bond, by their names";
    let mut found = Findings::default();
    let name = text(plugin, "type").to_owned();
    if plugin.remove("args").is_some_and(|args| !is_empty(&args)) {
        found.refuse("args", NO_ARGS);
    }
    let is_on =
        |plugin: &Map<String, Value>, key: &str| plugin.get(key).and_then(Value::as_bool) == Some(true);
    let calls_host = ["ipMasq", "macspoofchk"].into_iter().find(|key| is_on(plugin, key));
    match name.as_str() {
        "macvlan" | "ipvlan" | "vlan" if !is_on(plugin, "linkInContainer") => {
            found.uplink = uplink(plugin, "master", NO_MASTER, &mut found);
            if name == "vlan" {
                found.note("vlanId", ONE_POD);
            }
        }
        "host-device" => found.uplink = uplink(plugin, "device", NO_DEVICE, &mut found),
        "bridge" => found.note("bridge", PORT),
        "portmap" | "firewall" => found.note("type", HOST_MOUNTS),
        "bond" if !is_on(plugin, "linksInContainer") => found.refuse("linksInContainer", LINKS_OF_NODE),
        "bond" => found.note("links", LINKS_BEFORE),
        known if known.is_empty() || KNOWN.contains(&known) => {}
        other => match REFUSED.iter().find(|(refused, _)| *refused == other) {
            Some((_, problem)) => found.refuse("type", *problem),
            None => found.note("type", unknown(other)),
        },
    }
    if let Some(key) = calls_host.filter(|_| matches!(name.as_str(), "bridge" | "ptp")) {
        found.note(key, HOST_MOUNTS);
    }
    adapt_ipam(plugin, &mut found);
    found
}

fn unknown(plugin: &str) -> String {
    format!(
        "netclaim does not know {plugin}, and passes its configuration on: install it in /opt/cni/bin, try one pod first, and set \
         disableCheck if its CHECK fails"
    )
}

/// Puts the placeholder in the place of the link's name, and returns the link.
fn uplink(
    plugin: &mut Map<String, Value>,
    key: &'static str,
    missing: &str,
    found: &mut Findings,
) -> Option<Uplink> {
    match plugin.get(key) {
        None | Some(Value::Null) => found.refuse(key, missing),
        Some(Value::String(name)) if name.is_empty() => found.refuse(key, missing),
        Some(Value::String(name)) => match name.parse::<IfName>() {
            Ok(link) => {
                plugin.insert(key.to_owned(), Value::String(UPLINK.to_owned()));
                return Some(Uplink { key, link });
            }
            Err(error) => found.refuse(key, error.to_string()),
        },
        Some(other) => found.refuse(key, format!("{other} is not a name of a link")),
    }
    None
}

fn adapt_ipam(plugin: &mut Map<String, Value>, found: &mut Findings) {
    const NO_FOLDER: &str = "the agent's container does not have this folder of the node: leave it out, or install netclaim with \
                             deploy/host-mounts";
    const NO_FILE: &str = "is a file of the agent's container, not of the node: write dns instead, or install netclaim with \
                           deploy/host-mounts";
    const DAEMON: &str = "the dhcp daemon has to run on the nodes (/run/cni/dhcp.sock), as with Multus";
    let Some(ipam) = plugin.get("ipam").and_then(Value::as_object) else { return };
    let outside = |key: &str| {
        let path = text(ipam, key);
        !path.is_empty() && !path.starts_with("/var/lib/cni")
    };
    match text(ipam, "type") {
        "whereabouts" => {
            found.is_whereabouts = true;
            plugin.insert("ipam".to_owned(), json!(ADDRESSES));
        }
        "host-local" => {
            for (key, note) in [("dataDir", NO_FOLDER), ("resolvConf", NO_FILE)] {
                if outside(key) {
                    found.note(&format!("ipam.{key}"), note);
                }
            }
        }
        "dhcp" => found.note("ipam", DAEMON),
        "" | "static" => {}
        other => {
            found.note("ipam.type", unknown(other) + "; spec.capacity.addresses says how many pods it serves")
        }
    }
}

/// Whether the plugin's configuration has the capability.
pub(super) fn declares(plugin: &Map<String, Value>, setting: Setting) -> bool {
    let capabilities = plugin.get("capabilities").and_then(Value::as_object);
    capabilities.and_then(|capabilities| capabilities.get(setting.as_str())?.as_bool()) == Some(true)
}

/// Whether the plugin takes from CNI_ARGS what netclaim gives as a capability: Multus gives both.
pub(super) fn takes(plugin: &Map<String, Value>, setting: Setting) -> bool {
    match setting {
        Setting::Ips => {
            let ipam = plugin.get("ipam").and_then(Value::as_object);
            ipam.is_some_and(|ipam| TAKE_IPS.contains(&text(ipam, "type")))
        }
        Setting::Mac => TAKE_MAC.contains(&text(plugin, "type")),
        Setting::Bandwidth | Setting::PortMappings | Setting::DefaultRoute | Setting::Primary => false,
    }
}

/// Returns why a setting is refused that no plugin takes.
pub(super) fn untaken(setting: Setting) -> &'static str {
    match setting {
        Setting::Ips => {
            "the network has no IPAM that is known to take them (static, host-local): remove the key if it had no effect, else write \
             \"capabilities\": {\"ips\": true} into the plugin"
        }
        Setting::Mac => {
            "the network has no plugin that is known to take it (macvlan, bridge, tap, tuning): remove the key if it had no effect, \
             else write \"capabilities\": {\"mac\": true} into the plugin"
        }
        Setting::Bandwidth => {
            "no plugin of the network has the capability, so it had no effect: remove the key, or add {\"type\": \"bandwidth\", \
             \"capabilities\": {\"bandwidth\": true}}"
        }
        Setting::DefaultRoute => "the agent adds the plugin",
        Setting::Primary => "no plugin has to take it",
        Setting::PortMappings => {
            "no plugin of the network has the capability, so it had no effect: remove the key, or add {\"type\": \"portmap\", \
             \"capabilities\": {\"portMappings\": true}}"
        }
    }
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(object) => object.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
