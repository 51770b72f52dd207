//! Devices in ResourceSlices: the same attribute keys in every pool, and request policies that the API server
//! accepts.
//!
//! The scheduler needs these rules: every device has the same attribute keys; a capacity that every claim
//! takes has the minimum 1 (with a default alone, a claim may request 0); amounts are whole; an exhausted
//! capacity has no policy, whose default would be more than is there, and its device is tainted. Where claims
//! can ask for reserved addresses, `addresses` has the minimum 0 instead: if none is left, its default keeps
//! off all claims but those that request 0. Where claims must ask for bandwidth, its default is more than
//! there is, too.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity, DeviceTaint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::attribute::{AttributeValue, DeclaredAttributes, MAX_DECLARED, MAX_TEXT};
use crate::network::LEAST_BANDWIDTH;
use crate::taints::Unhealthy;
use crate::{Quantity, attributes};

/// Annotation of the slices of a node: how many of its links follow each UplinkPolicy, as a JSON object of
/// numbers.
pub const POLICY_LINKS: &str = "netclaim.dev/policy-links";

/// The attributes of a device. [`Default`] stands for attributes that do not apply.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "see `attributes::ATTRIBUTES`")]
pub struct Facts {
    pub network: String,
    pub uplink: String,
    pub mode: String,
    pub mac: String,
    pub mtu: u32,
    pub speed: u64,
    pub driver: String,
    pub physical_function: String,
    pub pcie_root: Option<String>,
    pub pci_bus_id: Option<String>,
    pub numa_node: Option<i64>,
    /// Declared attributes.
    pub declared: DeclaredAttributes,
}

/// How much of a device there is; `None` is not published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Bandwidth in bits per second.
    pub bandwidth: Option<Quantity>,
    /// Whether claims must ask for bandwidth.
    pub requires_bandwidth: bool,
    /// Number of addresses, free and granted together.
    pub addresses: Option<Quantity>,
    /// Whether claims can ask for reserved addresses, for which they need none of `addresses`.
    pub reserved_addresses: bool,
    /// Number of interfaces.
    pub interfaces: Option<Quantity>,
    /// Segmentation ids.
    pub segments: Option<Segments>,
}

impl Amounts {
    /// Returns a capacity that every claim of the device takes and that is used up.
    pub fn exhausted(&self) -> Option<&'static str> {
        let none = |amount: Option<Quantity>| amount.is_some_and(|amount| amount.value() == 0);
        match &self.segments {
            _ if none(self.addresses) && !self.reserved_addresses => Some(attributes::ADDRESSES),
            _ if self.requires_bandwidth && self.bandwidth.is_some_and(|left| left < LEAST_BANDWIDTH) => {
                Some(attributes::BANDWIDTH)
            }
            _ if none(self.interfaces) => Some(attributes::INTERFACES),
            Some(Segments::Counted(0)) => Some(attributes::SEGMENTS),
            Some(Segments::Listed(ids)) if ids.is_empty() => Some(attributes::SEGMENTS),
            _ => None,
        }
    }
}

/// Segmentation ids that a device hands out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segments {
    /// The number of ids; the node chooses.
    Counted(u64),
    /// The ids from which a claim chooses one.
    Listed(Vec<u32>),
}

/// Returns the device with these attributes and capacities. A `shared` device can be allocated many times;
/// only such devices have request policies. Declared attributes for which there is no room are left out, the
/// last by name first.
pub fn device(name: String, facts: Facts, amounts: Amounts, shared: bool) -> Device {
    // Destructured, so that a new fact cannot be forgotten.
    let Facts {
        network,
        uplink,
        mode,
        mac,
        mtu,
        speed,
        driver,
        physical_function,
        pcie_root,
        pci_bus_id,
        numa_node,
        declared,
    } = facts;
    let Amounts { bandwidth, requires_bandwidth, addresses, reserved_addresses, interfaces, segments } =
        amounts;
    let texts = [
        (attributes::NETWORK, network),
        (attributes::UPLINK, uplink),
        (attributes::MODE, mode),
        (attributes::MAC, mac),
        (attributes::DRIVER, driver),
        (attributes::PHYSICAL_FUNCTION, physical_function),
    ];
    let numbers =
        [(attributes::MTU, i64::from(mtu)), (attributes::SPEED, i64::try_from(speed).unwrap_or(i64::MAX))];
    let mut published: BTreeMap<String, DeviceAttribute> = BTreeMap::new();
    published.extend(texts.into_iter().map(|(key, value)| (key.to_owned(), text(value))));
    published.extend(numbers.into_iter().map(|(key, value)| (key.to_owned(), number(value))));
    published.extend(pcie_root.map(|value| (attributes::PCIE_ROOT.to_owned(), text(value))));
    published.extend(pci_bus_id.map(|value| (attributes::PCI_BUS_ID.to_owned(), text(value))));
    published.extend(numa_node.map(|value| (attributes::NUMA_NODE.to_owned(), number(value))));
    let of_bandwidth = match requires_bandwidth {
        false => Least { amount: 0, default: 0 },
        true => Least { amount: LEAST_BANDWIDTH.value(), default: MORE_THAN_THERE_IS },
    };
    let capacities = [
        (attributes::BANDWIDTH, bandwidth, of_bandwidth),
        (attributes::ADDRESSES, addresses, Least { amount: u64::from(!reserved_addresses), default: 1 }),
        (attributes::INTERFACES, interfaces, Least { amount: 1, default: 1 }),
    ];
    let mut capacity: BTreeMap<String, DeviceCapacity> = capacities
        .into_iter()
        .filter_map(|(key, amount, least)| Some((key.to_owned(), capacity(amount?, least, shared))))
        .collect();
    capacity.extend(segments.map(segment_capacities).unwrap_or_default());
    // Capacities of segmentation ids use the room of declared attributes.
    let room = MAX_DECLARED.saturating_sub(capacity.len().saturating_sub(capacities.len()));
    published
        .extend(declared.into_iter().take(room).map(|(name, value)| (name.into(), declared_value(value))));
    Device {
        name,
        attributes: Some(published),
        capacity: Some(capacity).filter(|capacity| !capacity.is_empty()),
        allow_multiple_allocations: shared.then_some(true),
        ..Device::default()
    }
}

/// An amount that no claim gets: no capacity has as much. The scheduler and the API server calculate with it
/// in 63 bits.
const MORE_THAN_THERE_IS: u64 = 1_000_000_000_000_000_000;

/// The least that a claim takes of a capacity.
#[derive(Debug, Clone, Copy)]
struct Least {
    amount: u64,
    /// The amount for a claim that requests nothing.
    default: u64,
}

fn capacity(amount: Quantity, least: Least, shared: bool) -> DeviceCapacity {
    let quantity = |amount: Quantity| ApiQuantity(amount.to_string());
    let (least, default) = (Quantity::new(least.amount), Quantity::new(least.default));
    let policy = CapacityRequestPolicy {
        default: Some(quantity(default)),
        valid_range: Some(CapacityRequestPolicyRange { min: quantity(least), ..Default::default() }),
        valid_values: None,
    };
    DeviceCapacity { value: quantity(amount), request_policy: (shared && amount >= least).then_some(policy) }
}

/// More interfaces than the pods of a node can have.
const INTERFACES_OF_A_NODE: u64 = 4096;

/// Gives a shared device that counts nothing a capacity that every claim takes one of, so that the scheduler
/// has a record of its claims.
pub fn record_claims(device: &mut Device) {
    let counted = [attributes::ADDRESSES, attributes::INTERFACES, attributes::SEGMENTS];
    let is_counted =
        |key: &String| counted.contains(&key.as_str()) || attributes::id_of_segment(key).is_some();
    let capacities = device.capacity.get_or_insert_default();
    if !capacities.keys().any(is_counted) {
        let least = Least { amount: 1, default: 1 };
        let interfaces = capacity(Quantity::new(INTERFACES_OF_A_NODE), least, true);
        capacities.insert(attributes::INTERFACES.to_owned(), interfaces);
    }
}

/// A claim takes one id.
fn segment_capacities(segments: Segments) -> BTreeMap<String, DeviceCapacity> {
    let quantity = |amount: u64| ApiQuantity(amount.to_string());
    let of = |value: u64, default: u64, values: &[u64]| DeviceCapacity {
        value: quantity(value),
        request_policy: (value > 0).then(|| CapacityRequestPolicy {
            default: Some(quantity(default)),
            valid_values: Some(values.iter().copied().map(quantity).collect()),
            valid_range: None,
        }),
    };
    match segments {
        Segments::Counted(many) => BTreeMap::from([(attributes::SEGMENTS.to_owned(), of(many, 1, &[1]))]),
        Segments::Listed(ids) => {
            ids.into_iter().map(|id| (attributes::segment(id), of(1, 0, &[0, 1]))).collect()
        }
    }
}

/// Keeps new pods off a device for these reasons; those that have it stay.
pub fn taint(device: &mut Device, unhealthy: &[Unhealthy]) {
    let taint = |unhealthy: &Unhealthy| DeviceTaint {
        key: unhealthy.reason.key().to_owned(),
        effect: "NoSchedule".to_owned(),
        value: None,
        time_added: None,
    };
    let mut taints: Vec<DeviceTaint> = unhealthy.iter().map(taint).collect();
    taints.dedup_by(|one, other| one.key == other.key);
    device.taints = Some(taints).filter(|taints| !taints.is_empty());
}

fn declared_value(value: AttributeValue) -> DeviceAttribute {
    match value {
        AttributeValue::String(value) => text(value),
        AttributeValue::Int(value) => number(value),
        AttributeValue::Bool(value) => DeviceAttribute { bool: Some(value), ..Default::default() },
        AttributeValue::Version(value) => DeviceAttribute { version: Some(value), ..Default::default() },
    }
}

fn text(mut value: String) -> DeviceAttribute {
    value.truncate(value.floor_char_boundary(MAX_TEXT));
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
        // Go's maps hold eight keys in one group, and the scheduler makes such a map for each device that it
        // looks at.
        assert!(ours(&bare).len() <= 8, "{:?}", ours(&bare));
        let network = full
            .attributes
            .iter()
            .flatten()
            .find(|(key, _)| *key == "network")
            .and_then(|(_, v)| v.string.clone());
        assert_eq!(network.map(|text| text.len()), Some(MAX_TEXT));
    }

    #[test]
    fn a_device_has_what_the_tables_say_with_their_types() {
        let facts = Facts {
            pcie_root: Some("pci0000:3a".to_owned()),
            pci_bus_id: Some("0000:3b:00.0".to_owned()),
            numa_node: Some(0),
            ..Facts::default()
        };
        let one = Some(Quantity::new(1));
        let amounts = |segments| Amounts {
            bandwidth: one,
            addresses: one,
            interfaces: one,
            segments: Some(segments),
            ..Amounts::default()
        };
        let counted = device("a".into(), facts, amounts(Segments::Counted(1)), true);
        let of = |attribute: &DeviceAttribute| match (&attribute.string, attribute.int) {
            (Some(_), None) => "string",
            (None, Some(_)) => "int",
            _ => "another type",
        };
        let published: BTreeMap<&str, &str> = counted
            .attributes
            .iter()
            .flatten()
            .map(|(name, attribute)| (name.as_str(), of(attribute)))
            .collect();
        let table = attributes::ATTRIBUTES.iter().map(|attribute| (attribute.name, attribute.value.as_str()));
        assert_eq!(published, table.collect());

        let listed = device("a".into(), Facts::default(), amounts(Segments::Listed(vec![120])), true);
        let names: std::collections::BTreeSet<&str> = [&counted, &listed]
            .into_iter()
            .flat_map(|device| device.capacity.iter().flatten().map(|(name, _)| name.as_str()))
            .map(|name| if attributes::id_of_segment(name).is_some() { attributes::SEGMENT_ID } else { name })
            .collect();
        assert_eq!(names, attributes::CAPACITIES.iter().map(|capacity| capacity.name).collect());
    }

    #[test]
    fn declared_attributes_leave_room_for_what_is_handed_out() {
        let declared =
            (0..16).map(|i| (format!("a{i:02}").try_into().expect("a name"), AttributeValue::Bool(true)));
        let facts = Facts { declared: declared.collect(), numa_node: Some(0), ..Facts::default() };
        let one = Some(Quantity::new(1));
        let segments = Some(Segments::Listed((100..112).collect()));
        let amounts =
            Amounts { bandwidth: one, addresses: one, interfaces: one, segments, ..Amounts::default() };
        let device = device("a".into(), facts, amounts, true);
        let attributes = device.attributes.iter().flatten().count();
        assert!(attributes + device.capacity.iter().flatten().count() <= 32);
        assert!(device.attributes.iter().flatten().any(|(key, _)| key == "a00"));
    }

    #[test]
    fn claims_are_recorded_by_one_capacity_of_each_device() {
        let one = Some(Quantity::new(1));
        let recorded = |amounts: Amounts| {
            let mut device = device("a".into(), Facts::default(), amounts, true);
            record_claims(&mut device);
            let keys = device.capacity.iter().flatten().map(|(key, _)| key.as_str());
            keys.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(recorded(Amounts::default()), "interfaces");
        assert_eq!(recorded(Amounts { bandwidth: one, ..Amounts::default() }), "bandwidth interfaces");
        assert_eq!(recorded(Amounts { addresses: one, ..Amounts::default() }), "addresses");
        let segments = Some(Segments::Listed(vec![7]));
        assert_eq!(recorded(Amounts { segments, ..Amounts::default() }), "segment7");
    }

    #[test]
    fn an_exhausted_capacity_has_no_policy_which_could_not_hold_its_default() {
        let zero = Some(Quantity::new(0));
        let segments = Some(Segments::Counted(0));
        let amounts =
            Amounts { bandwidth: zero, addresses: zero, interfaces: zero, segments, ..Amounts::default() };
        assert_eq!(amounts.exhausted(), Some("addresses"));
        let device = device("a".into(), Facts::default(), amounts, true);
        let with_policy = device.capacity.iter().flatten().filter(|(_, c)| c.request_policy.is_some());
        assert_eq!(with_policy.map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["bandwidth"]);
        let plenty = Amounts { bandwidth: zero, segments: Some(Segments::Counted(1)), ..Amounts::default() };
        assert_eq!(plenty.exhausted(), None, "no claim has to take bandwidth");
    }

    #[test]
    fn a_capacity_that_every_claim_takes_has_the_minimum_one_and_bandwidth_none() {
        let amounts = Amounts {
            bandwidth: Some(Quantity::new(10)),
            addresses: Some(Quantity::new(5)),
            ..Amounts::default()
        };
        let policies: Vec<_> = device("a".into(), Facts::default(), amounts.clone(), true)
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

    #[test]
    fn where_claims_must_ask_for_bandwidth_the_default_is_more_than_there_is() {
        let amounts = |bandwidth: u64| Amounts {
            bandwidth: Some(Quantity::new(bandwidth)),
            requires_bandwidth: true,
            ..Amounts::default()
        };
        let capacity = |amounts| {
            let device = device("a".into(), Facts::default(), amounts, true);
            serde_json::to_value(&device.capacity.expect("capacities")["bandwidth"]).expect("JSON")
        };
        let policy = serde_json::json!({"default": "1E", "validRange": {"min": "64k"}});
        assert_eq!(
            capacity(amounts(10_000_000_000)),
            serde_json::json!({"value": "10G", "requestPolicy": policy})
        );
        assert_eq!(amounts(64_000).exhausted(), None);
        // A policy cannot have a minimum of more than there is, and without one a claim gets all.
        assert_eq!(capacity(amounts(63_999)), serde_json::json!({"value": "63999"}));
        assert_eq!(amounts(63_999).exhausted(), Some("bandwidth"));
    }

    #[test]
    fn without_an_address_a_device_with_reserved_ones_takes_only_claims_that_request_none() {
        let (zero, five) = (Some(Quantity::new(0)), Some(Quantity::new(5)));
        for addresses in [zero, five] {
            let amounts = Amounts { addresses, reserved_addresses: true, ..Amounts::default() };
            assert_eq!(amounts.exhausted(), None, "no taint, which would keep off claims with `ips`");
            let device = device("a".into(), Facts::default(), amounts, true);
            let capacity = serde_json::to_value(&device.capacity.expect("capacities")["addresses"]);
            let policy = serde_json::json!({"default": "1", "validRange": {"min": "0"}});
            assert_eq!(capacity.expect("JSON")["requestPolicy"], policy);
        }
        let interfaces =
            Amounts { addresses: zero, reserved_addresses: true, interfaces: zero, ..Amounts::default() };
        assert_eq!(interfaces.exhausted(), Some("interfaces"));
    }
}
