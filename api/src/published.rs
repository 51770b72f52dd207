//! What a device looks like in a ResourceSlice: the same keys in every pool, and policies that hold.
//!
//! Rules that a real scheduler taught: every device carries the same attribute keys; a capacity that must be
//! taken has the minimum 1 (with a default alone a claim may ask for 0); amounts are whole; an exhausted capacity
//! has no upper bound in its policy, which could then not hold the default.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::{Quantity, attributes};

/// The longest text that an attribute may hold, in bytes (`DeviceAttributeMaxValueLength`).
const MAX_TEXT: usize = 64;

/// Everything that can be said about a device; [`Default`] is what does not apply.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "see the table in `attributes`")]
pub struct Facts {
    pub network: String,
    pub uplink: String,
    pub mode: String,
    pub if_name: String,
    pub mac: String,
    pub mtu: u32,
    pub speed: u64,
    pub driver: String,
    pub link_state: String,
    pub plugin_types: String,
    pub pcie_root: Option<String>,
    pub pci_bus_id: Option<String>,
    pub numa_node: Option<i64>,
}

/// How much of a device there is; `None` is not published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Bits per second.
    pub bandwidth: Option<Quantity>,
    /// Free and granted addresses together.
    pub addresses: Option<Quantity>,
    /// Interfaces.
    pub interfaces: Option<Quantity>,
}

/// A device with these facts and amounts. `shared` devices can be allocated many times, and only these have
/// request policies.
pub fn device(name: String, facts: Facts, amounts: Amounts, shared: bool) -> Device {
    // Destructured, so that a new fact cannot be forgotten.
    let Facts {
        network,
        uplink,
        mode,
        if_name,
        mac,
        mtu,
        speed,
        driver,
        link_state,
        plugin_types,
        pcie_root,
        pci_bus_id,
        numa_node,
    } = facts;
    let texts = [
        (attributes::NETWORK, network),
        (attributes::UPLINK, uplink),
        (attributes::MODE, mode),
        (attributes::IF_NAME, if_name),
        (attributes::MAC, mac),
        (attributes::DRIVER, driver),
        (attributes::LINK_STATE, link_state),
        (attributes::PLUGIN_TYPES, plugin_types),
    ];
    let numbers =
        [(attributes::MTU, i64::from(mtu)), (attributes::SPEED, i64::try_from(speed).unwrap_or(i64::MAX))];
    let mut published: BTreeMap<String, DeviceAttribute> = BTreeMap::new();
    published.extend(texts.into_iter().map(|(key, value)| (key.to_owned(), text(value))));
    published.extend(numbers.into_iter().map(|(key, value)| (key.to_owned(), number(value))));
    published.extend(pcie_root.map(|value| (attributes::PCIE_ROOT.to_owned(), text(value))));
    published.extend(pci_bus_id.map(|value| (attributes::PCI_BUS_ID.to_owned(), text(value))));
    published.extend(numa_node.map(|value| (attributes::NUMA_NODE.to_owned(), number(value))));
    let capacities = [
        (attributes::BANDWIDTH, amounts.bandwidth, 0),
        (attributes::ADDRESSES, amounts.addresses, 1),
        (attributes::INTERFACES, amounts.interfaces, 1),
    ];
    let capacity: BTreeMap<String, DeviceCapacity> = capacities
        .into_iter()
        .filter_map(|(key, amount, least)| Some((key.to_owned(), capacity(amount?, least, shared))))
        .collect();
    Device {
        name,
        attributes: Some(published),
        capacity: Some(capacity).filter(|capacity| !capacity.is_empty()),
        allow_multiple_allocations: shared.then_some(true),
        ..Device::default()
    }
}

fn capacity(amount: Quantity, least: u64, shared: bool) -> DeviceCapacity {
    let quantity = |amount: Quantity| ApiQuantity(amount.to_string());
    let least = Quantity::new(least);
    let policy = CapacityRequestPolicy {
        default: Some(quantity(least)),
        valid_range: Some(CapacityRequestPolicyRange { min: quantity(least), ..Default::default() }),
        valid_values: None,
    };
    DeviceCapacity { value: quantity(amount), request_policy: shared.then_some(policy) }
}

fn text(mut value: String) -> DeviceAttribute {
    while value.len() > MAX_TEXT {
        value.pop();
    }
    DeviceAttribute { string: Some(value), ..Default::default() }
}

fn number(value: i64) -> DeviceAttribute {
    DeviceAttribute { int: Some(value), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_the_same_keys_of_ours() {
        let bare = device("a".into(), Facts::default(), Amounts::default(), false);
        let full = Facts { network: "x".repeat(100), numa_node: Some(1), ..Facts::default() };
        let full = device("b".into(), full, Amounts::default(), true);
        let ours = |device: &Device| {
            let attributes = device.attributes.iter().flatten();
            attributes.map(|(key, _)| key.clone()).filter(|key| !key.contains('/')).collect::<Vec<_>>()
        };
        assert_eq!(ours(&bare), ours(&full));
        let network = full
            .attributes
            .iter()
            .flatten()
            .find(|(key, _)| *key == "network")
            .and_then(|(_, v)| v.string.clone());
        assert_eq!(network.map(|text| text.len()), Some(MAX_TEXT));
    }

    #[test]
    fn what_must_be_taken_has_the_minimum_one_and_bandwidth_none() {
        let amounts = Amounts {
            bandwidth: Some(Quantity::new(10)),
            addresses: Some(Quantity::new(5)),
            interfaces: None,
        };
        let policies: Vec<_> = device("a".into(), Facts::default(), amounts, true)
            .capacity
            .into_iter()
            .flatten()
            .map(|(key, c)| (key, c.request_policy.and_then(|p| p.valid_range).map(|range| range.min.0)))
            .collect();
        assert_eq!(
            policies,
            [("addresses".into(), Some("1".into())), ("bandwidth".into(), Some("0".into()))]
        );
        let exclusive = device("a".into(), Facts::default(), amounts, false).capacity.into_iter().flatten();
        assert!(exclusive.into_iter().all(|(_, c)| c.request_policy.is_none()));
    }
}
