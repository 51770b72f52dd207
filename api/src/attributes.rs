//! Names of the attributes and capacities of devices. Selectors of DeviceClasses use them, so they are API.
//!
//! Every device has every attribute of the driver's domain. If one does not apply, it is empty, `0` or
//! `false`: a CEL selector that reads a missing attribute stops the scheduling of its pods. Attributes of
//! other domains (`resource.kubernetes.io/…`) are left out if they do not apply.
//!
//! The scheduler makes a map of all attributes of a device each time that it looks at one. There are eight,
//! because a map of eight keys is cheap.

use crate::reasons::paragraph;

/// The type of an attribute's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ValueType {
    String,
    Int,
}

impl ValueType {
    /// Returns the type as a ResourceSlice spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Int => "int",
        }
    }
}

/// An attribute's text in the reference.
#[derive(Debug, Clone, Copy)]
pub struct Attribute {
    /// Its name, without the driver's domain.
    pub name: &'static str,
    /// The type of its value.
    pub value: ValueType,
    doc: &'static [&'static str],
}

impl Attribute {
    /// Returns what its value says.
    pub fn meaning(&self) -> String {
        paragraph(self.doc, 0)
    }

    /// Returns which devices it says something of.
    pub fn devices(&self) -> String {
        paragraph(self.doc, 1)
    }

    /// Whether every device has it: it is in the driver's domain.
    pub fn is_everywhere(&self) -> bool {
        !self.name.contains('/')
    }
}

/// A capacity's text in the reference.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Its name; that of [`SEGMENT_ID`] stands for all names of [`segment`].
    pub name: &'static str,
    doc: &'static [&'static str],
}

impl Capacity {
    /// Returns what there is so much of.
    pub fn meaning(&self) -> String {
        paragraph(self.doc, 0)
    }

    /// Returns which devices have it.
    pub fn devices(&self) -> String {
        paragraph(self.doc, 1)
    }

    /// Returns what a claim takes.
    pub fn taken(&self) -> String {
        paragraph(self.doc, 2)
    }
}

/// Defines the names of attributes with their types, and a table of them. The docstring of each is what
/// `docs/reference/devices.md` says of it: the first paragraph is what it means, the second which devices it
/// says something of.
macro_rules! attributes {
    ($($(#[doc = $doc:literal])+ $constant:ident = $name:literal: $value:ident,)+) => {
        $($(#[doc = $doc])+ pub const $constant: &str = $name;)+

        /// All attributes of devices but the declared ones, in the order of the reference.
        pub const ATTRIBUTES: &[Attribute] =
            &[$(Attribute { name: $name, value: ValueType::$value, doc: &[$($doc),+] }),+];
    };
}

/// Defines the names of capacities, and a table of them. The third paragraph of a docstring is what a claim
/// takes.
macro_rules! capacities {
    ($($(#[doc = $doc:literal])+ $constant:ident = $name:literal,)+) => {
        $($(#[doc = $doc])+ pub const $constant: &str = $name;)+

        /// All capacities of devices, in the order of the reference.
        pub const CAPACITIES: &[Capacity] = &[$(Capacity { name: $name, doc: &[$($doc),+] }),+];
    };
}

attributes! {
    /// Name of the ClaimNetwork; empty for a link's own devices.
    ///
    /// devices of ClaimNetworks
    NETWORK = "network": String,
    /// Name of the link on the node; empty for ClaimNetworks without an uplink.
    ///
    /// devices with an uplink
    UPLINK = "uplink": String,
    /// How pods use the link: `nic`, `macvlan`, `ipvlan`, or the type of the ClaimNetwork's first plugin.
    ///
    /// all
    MODE = "mode": String,
    /// Hardware address of the link.
    ///
    /// devices with an uplink
    MAC = "mac": String,
    /// MTU of the link, in bytes.
    ///
    /// devices with an uplink
    MTU = "mtu": Int,
    /// Speed of the link, in bit/s; 0 if it does not report one.
    ///
    /// devices with an uplink
    SPEED = "speed": Int,
    /// Kernel driver of the link, or the kind of a virtual link.
    ///
    /// devices with an uplink
    DRIVER = "driver": String,
    /// Name of the link that an SR-IOV virtual function belongs to, and its PCI address while a pod has it;
    /// empty for other links.
    ///
    /// devices on a virtual function
    PHYSICAL_FUNCTION = "physicalFunction": String,
    /// PCI root complex, as other drivers of Kubernetes name it (KEP-4381): a claim can ask for devices that
    /// are close to each other.
    ///
    /// devices on a PCI card
    PCIE_ROOT = "resource.kubernetes.io/pcieRoot": String,
    /// PCI address, such as `0000:03:00.1`.
    ///
    /// devices on a PCI card
    PCI_BUS_ID = "resource.kubernetes.io/pciBusID": String,
    /// NUMA node (KEP-6072).
    ///
    /// devices whose card is on a NUMA node
    NUMA_NODE = "resource.kubernetes.io/numaNode": Int,
}

capacities! {
    /// Bandwidth in bit/s ([who gets how much](../tasks/bandwidth.md)).
    ///
    /// ClaimNetworks with `capacity.bandwidth`, and a link's own devices
    ///
    /// 0 or more
    BANDWIDTH = "bandwidth",
    /// Attachments for which there are addresses on the node.
    ///
    /// ClaimNetworks whose addresses the node counts, or with `capacity.addresses`
    ///
    /// 1 or more; also 0 for [an address that the claim asks for](../tasks/static-addresses.md)
    ADDRESSES = "addresses",
    /// Interfaces that may exist at once.
    ///
    /// ClaimNetworks with `capacity.interfaces`. On Kubernetes 1.37 also 4096 of each shared device that
    /// counts nothing ([why](kubernetes-versions.md))
    ///
    /// 1 or more
    INTERFACES = "interfaces",
    /// Segmentation ids; the node chooses one of them.
    ///
    /// ClaimNetworks that hand out segmentation ids
    ///
    /// 1
    SEGMENTS = "segments",
    /// The segmentation id of that number, such as `segment120`, which the claim chooses.
    ///
    /// ClaimNetworks that let claims choose segmentation ids
    ///
    /// 1
    SEGMENT_ID = "segmentID",
}

/// Returns the capacity of one segmentation id, if claims choose. A claim requests `1` of the id that it
/// takes.
pub fn segment(id: u32) -> String {
    format!("segment{id}")
}

/// Returns the id of a [`segment`] capacity.
pub fn id_of_segment(capacity: &str) -> Option<u32> {
    capacity.strip_prefix("segment")?.parse().ok()
}

/// All attributes and capacities in the driver's domain. They cannot be declared.
pub const OURS: [&str; 12] = [
    NETWORK,
    UPLINK,
    MODE,
    MAC,
    MTU,
    SPEED,
    DRIVER,
    PHYSICAL_FUNCTION,
    BANDWIDTH,
    ADDRESSES,
    INTERFACES,
    SEGMENTS,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn whatever_is_in_the_drivers_domain_cannot_be_declared() {
        let own =
            ATTRIBUTES.iter().filter(|attribute| attribute.is_everywhere()).map(|attribute| attribute.name);
        // No name of an attribute ends like a capacity of one id.
        let counted = CAPACITIES.iter().map(|capacity| capacity.name).filter(|name| *name != SEGMENT_ID);
        let all: BTreeSet<&str> = own.chain(counted).collect();
        assert_eq!(all, OURS.into());
    }

    #[test]
    fn every_attribute_and_capacity_is_described() {
        for attribute in ATTRIBUTES {
            let texts = [attribute.meaning(), attribute.devices()];
            assert!(texts.iter().all(|text| !text.is_empty()), "{attribute:?}");
        }
        for capacity in CAPACITIES {
            let texts = [capacity.meaning(), capacity.devices(), capacity.taken()];
            assert!(texts.iter().all(|text| !text.is_empty()), "{capacity:?}");
        }
    }
}
