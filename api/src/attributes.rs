//! Attributes and capacities of devices: one table, read by DeviceClasses, so it is API.
//!
//! Every device carries every attribute of the driver's domain, with an empty text, `0` or `false` where it does
//! not apply: a CEL selector that reads an attribute missing on one device stops the scheduling of its pods.
//! The standard ones (`resource.kubernetes.io/…`) are there only where they are true.

/// The Network's name; empty for uplinks.
pub const NETWORK: &str = "network";
/// The uplink's interface name; empty for Networks without an uplink.
pub const UPLINK: &str = "uplink";
/// How pods share it: `nic`, `macvlan`, `ipvlan`, or the type of a Network's first plugin.
pub const MODE: &str = "mode";
/// Interface name of the link on the node; the same as [`UPLINK`] for uplink devices, empty for Networks.
pub const IF_NAME: &str = "ifName";
/// MAC address of the link.
pub const MAC: &str = "mac";
/// MTU of the uplink in bytes.
pub const MTU: &str = "mtu";
/// Speed of the uplink in bit/s; 0 where the link does not tell.
pub const SPEED: &str = "speed";
/// Kernel driver of the uplink, or its kind for software links.
pub const DRIVER: &str = "driver";
/// Of an SR-IOV virtual function: interface name of its physical function, or that one's PCI address while the physical
/// function is itself in a pod and has no name on the node. Empty for what is no virtual function.
pub const PHYSICAL_FUNCTION: &str = "physicalFunction";
/// `up`, `down` or `unknown`.
pub const LINK_STATE: &str = "linkState";
/// The Network's plugin types in order, joined by `,`; empty for uplinks.
pub const PLUGIN_TYPES: &str = "pluginTypes";

/// PCI root complex, shared with other drivers' devices (KEP-4381).
pub const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";
/// PCI address, such as `0000:03:00.1`.
pub const PCI_BUS_ID: &str = "resource.kubernetes.io/pciBusID";
/// NUMA node (KEP-6072).
pub const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";

/// Capacity: bit/s that claims can be granted. Nothing is charged where a claim does not ask.
pub const BANDWIDTH: &str = "bandwidth";
/// Capacity: attachments that the Network's IPAM has addresses for on this node. Each claim takes at least one.
pub const ADDRESSES: &str = "addresses";
/// Capacity: interfaces that may exist at once. Each claim takes at least one.
pub const INTERFACES: &str = "interfaces";
/// Capacity: segmentation ids that are handed out by the node. Each claim takes one.
pub const SEGMENTS: &str = "segments";

/// Capacity: one segmentation id, where claims choose. A claim takes the id that it asks `1` of.
pub fn segment(id: u32) -> String {
    format!("segment{id}")
}

/// The id of a [`segment`] capacity.
pub fn id_of_segment(capacity: &str) -> Option<u32> {
    capacity.strip_prefix("segment")?.parse().ok()
}

/// All attributes and capacities in the driver's domain: names that nobody else can declare.
pub const OURS: [&str; 15] = [
    NETWORK,
    UPLINK,
    MODE,
    IF_NAME,
    MAC,
    MTU,
    SPEED,
    DRIVER,
    PHYSICAL_FUNCTION,
    LINK_STATE,
    PLUGIN_TYPES,
    BANDWIDTH,
    ADDRESSES,
    INTERFACES,
    SEGMENTS,
];
