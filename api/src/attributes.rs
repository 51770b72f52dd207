//! Names of the attributes and capacities of devices. Selectors of DeviceClasses use them, so they are API.
//!
//! Every device has every attribute of the driver's domain. If one does not apply, it is empty, `0` or `false`: a CEL
//! selector that reads a missing attribute stops the scheduling of its pods. Attributes of other domains
//! (`resource.kubernetes.io/…`) are left out if they do not apply.
//!
//! The scheduler makes a map of all attributes of a device each time that it looks at one. There are eight, because a map of
//! eight keys is cheap.

/// The Network's name; empty for uplinks.
pub const NETWORK: &str = "network";
/// The interface name of the link on the node; empty for Networks without an uplink.
pub const UPLINK: &str = "uplink";
/// How pods use the device's link: `nic`, `macvlan`, `ipvlan`, or the type of a Network's first plugin.
pub const MODE: &str = "mode";
/// MAC address of the link.
pub const MAC: &str = "mac";
/// MTU of the uplink in bytes.
pub const MTU: &str = "mtu";
/// Speed of the uplink in bit/s; 0 if the link does not report it.
pub const SPEED: &str = "speed";
/// Kernel driver of the uplink, or the kind of a virtual link.
pub const DRIVER: &str = "driver";
/// Interface name of the physical function of an SR-IOV virtual function. While the physical function is in a pod, its PCI
/// address. Empty for other links.
pub const PHYSICAL_FUNCTION: &str = "physicalFunction";

/// PCI root complex, shared with other drivers' devices (KEP-4381).
pub const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";
/// PCI address, such as `0000:03:00.1`.
pub const PCI_BUS_ID: &str = "resource.kubernetes.io/pciBusID";
/// NUMA node (KEP-6072).
pub const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";

/// Capacity: bit/s that claims can be granted. A claim that requests none takes none.
pub const BANDWIDTH: &str = "bandwidth";
/// Capacity: attachments that the Network's IPAM has addresses for on this node. Each claim takes at least one.
pub const ADDRESSES: &str = "addresses";
/// Capacity: interfaces that may exist at once. Each claim takes at least one.
pub const INTERFACES: &str = "interfaces";
/// Capacity: segmentation ids that the node hands out. Each claim takes one.
pub const SEGMENTS: &str = "segments";

/// Returns the capacity of one segmentation id, if claims choose. A claim requests `1` of the id that it takes.
pub fn segment(id: u32) -> String {
    format!("segment{id}")
}

/// Returns the id of a [`segment`] capacity.
pub fn id_of_segment(capacity: &str) -> Option<u32> {
    capacity.strip_prefix("segment")?.parse().ok()
}

/// Attributes of earlier versions. Claims that were prepared with them still have them, so nobody may declare them.
pub const RETIRED: [&str; 3] = ["ifName", "linkState", "pluginTypes"];

/// All attributes and capacities in the driver's domain, and those of earlier versions. They cannot be declared.
pub const OURS: [&str; 15] = [
    NETWORK,
    UPLINK,
    MODE,
    RETIRED[0],
    MAC,
    MTU,
    SPEED,
    DRIVER,
    PHYSICAL_FUNCTION,
    RETIRED[1],
    RETIRED[2],
    BANDWIDTH,
    ADDRESSES,
    INTERFACES,
    SEGMENTS,
];
