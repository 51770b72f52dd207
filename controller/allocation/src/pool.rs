//! The pools that a node can use, as the scheduler gathers them (`structured/internal/*/pools_*.go`).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    Device, DeviceCounterConsumption, DeviceTaintRule, ResourceSlice, ResourceSliceSpec,
};
use netclaim_api::{DRIVER_NAME, attributes};
use netclaim_kubernetes::quantity::billionths;

use crate::cause::Cause;
use crate::holdings::{DeviceId, Holdings};
use crate::node_selector::{KnownNode, selects};
use crate::selector::SelectableDevice;

/// A device of a node, ready to be judged.
pub(crate) struct Candidate<'a> {
    pub(crate) id: DeviceId,
    pub(crate) device: &'a Device,
    pub(crate) selectable: SelectableDevice,
    /// Index of its pool in [`Pools::pools`].
    pub(crate) pool: usize,
    /// Why it is not known whether the scheduler may take it.
    pub(crate) doubt: Option<Cause>,
}

/// A counter of a pool: its set and its name.
pub(crate) type Counter = (String, String);

/// A pool whose devices can be allocated.
pub(crate) struct Pool<'a> {
    /// What is left of each counter, in billionths.
    pub(crate) left: BTreeMap<Counter, i128>,
    /// All of its devices, those of other nodes, too.
    pub(crate) members: Vec<(DeviceId, &'a Device)>,
}

/// The devices that a node offers.
#[derive(Default)]
pub(crate) struct Pools<'a> {
    pub(crate) pools: Vec<Pool<'a>>,
    /// In the order in which the scheduler tries them.
    pub(crate) candidates: Vec<Candidate<'a>>,
    /// Why other pools of the node cannot be used.
    pub(crate) unusable: Vec<Cause>,
    /// Drivers of which the node has a slice.
    pub(crate) drivers: BTreeSet<&'a str>,
    /// The cluster's.
    pub(crate) rules: &'a [DeviceTaintRule],
}

impl<'a> Pools<'a> {
    /// Gathers the pools of the node from slices. They must have all slices of its pools.
    pub(crate) fn gather(
        node: KnownNode<'_>,
        slices: impl IntoIterator<Item = &'a ResourceSlice>,
        holdings: &Holdings,
    ) -> Self {
        let mut by_pool: BTreeMap<(&str, &str), Vec<&ResourceSlice>> = BTreeMap::new();
        for slice in slices {
            let (driver, pool) = (slice.spec.driver.as_str(), slice.spec.pool.name.as_str());
            by_pool.entry((driver, pool)).or_default().push(slice);
        }
        let mut pools = Self::default();
        for ((driver, pool), mut slices) in by_pool {
            let is_of_node = |slice: &&ResourceSlice| is_for(slice, node) != Some(false);
            let generation = |slice: &ResourceSlice| slice.spec.pool.generation;
            let newest = slices.iter().copied().map(generation).max();
            let of_node = slices.iter().copied().filter(is_of_node).map(generation).max();
            if of_node.is_none() {
                continue;
            }
            slices.retain(|slice| Some(generation(slice)) == of_node);
            // The scheduler looks at those of other nodes only if some lack: then it may find that they are
            // replaced.
            if of_node < newest && !is_complete(slices.iter().copied().filter(is_of_node)) {
                continue;
            }
            pools.drivers.insert(driver);
            slices.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
            pools.add(driver, pool, &slices, node, holdings);
        }
        pools
    }

    fn add(
        &mut self,
        driver: &'a str,
        pool: &'a str,
        slices: &[&'a ResourceSlice],
        node: KnownNode<'_>,
        holdings: &Holdings,
    ) {
        if !is_complete(slices.iter().copied()) {
            let expected = slices.first().map_or(0, |slice| slice.spec.pool.resource_slice_count);
            let cause = Cause::PoolIncomplete { pool: pool.to_owned(), slices: slices.len(), expected };
            self.unusable.push(cause);
            return;
        }
        let id = |device: &Device| DeviceId {
            driver: driver.to_owned(),
            pool: pool.to_owned(),
            device: device.name.clone(),
        };
        let members: Vec<_> = slices
            .iter()
            .flat_map(|slice| slice.spec.devices.iter().flatten())
            .map(|device| (id(device), device))
            .collect();
        match counters_left(pool, slices, &members, holdings) {
            Ok(left) => {
                let index = self.pools.len();
                self.pools.push(Pool { left, members });
                let unjudged = slices.iter().find_map(|slice| unjudged(slice));
                let doubt = |is_placed: Option<bool>| match (is_placed, unjudged) {
                    (None, _) => Some(Cause::PlacementUnknown { pool: pool.to_owned() }),
                    (_, Some(field)) => Some(Cause::DeviceUnknown { field: field.to_owned() }),
                    _ => None,
                };
                let of_node = slices.iter().flat_map(|slice| {
                    let devices = slice.spec.devices.iter().flatten();
                    devices.map(move |device| (device, is_device_for(device, slice, node)))
                });
                let of_node = of_node.filter(|(_, is_placed)| *is_placed != Some(false));
                self.candidates.extend(of_node.map(|(device, is_placed)| Candidate {
                    id: id(device),
                    device,
                    selectable: SelectableDevice::new(driver, device),
                    pool: index,
                    doubt: doubt(is_placed),
                }));
            }
            Err(cause) => self.unusable.push(cause),
        }
    }
}

/// Whether these are as many slices as they say.
fn is_complete<'a>(mut slices: impl Iterator<Item = &'a ResourceSlice>) -> bool {
    let Some(first) = slices.next() else { return false };
    i64::try_from(1 + slices.count()) == Ok(first.spec.pool.resource_slice_count)
}

/// A field of the slice that the scheduler heeds and this crate does not. All of them belong to alpha
/// features, and without these features the scheduler does something else. Destructured, so that a new field
/// cannot be forgotten.
fn unjudged(slice: &ResourceSlice) -> Option<&'static str> {
    let ResourceSliceSpec {
        all_nodes: _,
        devices,
        driver: _,
        node_name: _,
        node_selector: _,
        // It is for those who count what is left.
        partition_type_attribute: _,
        per_device_node_selection: _,
        pool: _,
        shared_counters: _,
        skip_node_operations,
    } = &slice.spec;
    let of_slice = skip_node_operations.as_ref().filter(|skipped| !skipped.is_empty());
    let mut of_devices = devices.iter().flatten().filter_map(|device| {
        let Device {
            all_nodes: _,
            allow_multiple_allocations: _,
            attributes: _,
            // They hold a pod after its devices are allocated.
            binding_conditions: _,
            binding_failure_conditions: _,
            binds_to_node: _,
            capacity: _,
            consumes_counters,
            name: _,
            node_allocatable_resources,
            node_name: _,
            node_selector: _,
            taints: _,
        } = device;
        let mut groups = consumes_counters.iter().flatten().filter_map(|consumption| {
            let DeviceCounterConsumption { compatibility_groups, counter_set: _, counters: _ } = consumption;
            compatibility_groups.as_ref()
        });
        let resources = node_allocatable_resources.as_ref().filter(|resources| !resources.is_empty());
        match groups.any(|groups| !groups.is_empty()) {
            true => Some("compatibilityGroups"),
            false => resources.map(|_| "nodeAllocatableResources"),
        }
    });
    of_slice.map(|_| "skipNodeOperations").or_else(|| of_devices.next())
}

/// Returns the counters of a pool, less what devices consume that claims have. A shared device consumes once.
fn counters_left(
    pool: &str,
    slices: &[&ResourceSlice],
    members: &[(DeviceId, &Device)],
    holdings: &Holdings,
) -> Result<BTreeMap<Counter, i128>, Cause> {
    let invalid = |why: String| Cause::PoolInvalid { pool: pool.to_owned(), why };
    let unreadable = |set: &str, name: &str| Cause::AmountUnknown { of: format!("counter {set}/{name}") };
    let (mut left, mut sets) = (BTreeMap::new(), BTreeSet::new());
    for set in slices.iter().flat_map(|slice| slice.spec.shared_counters.iter().flatten()) {
        if !sets.insert(&set.name) {
            return Err(invalid(format!("there are two counter sets {}", set.name)));
        }
        for (name, counter) in &set.counters {
            let amount = billionths(&counter.value.0).map_err(|_| unreadable(&set.name, name))?;
            left.insert((set.name.clone(), name.clone()), amount);
        }
    }
    let mut names = BTreeSet::new();
    for (id, device) in members {
        if !names.insert(&device.name) {
            return Err(invalid(format!("there are two devices {}", device.name)));
        }
        let mut named = device.consumes_counters.iter().flatten().map(|consumption| &consumption.counter_set);
        if let Some(set) = named.find(|set| !sets.contains(set)) {
            let why = format!("device {} needs counter set {set}, which is not there", device.name);
            return Err(invalid(why));
        }
        if let Some((set, name)) = unreadable_counter(device) {
            return Err(unreadable(set, name));
        }
        let is_held = !holdings.of(id).is_empty();
        for (key, amount) in consumed_counters(device) {
            match left.get_mut(&key) {
                Some(left) if is_held => *left = left.saturating_sub(amount),
                Some(_) => {}
                None => {
                    return Err(invalid(format!(
                        "device {} needs counter {}/{}, which is not there",
                        device.name, key.0, key.1
                    )));
                }
            }
        }
    }
    Ok(left)
}

/// A counter that a device consumes in an amount that cannot be read: its set and its name.
fn unreadable_counter(device: &Device) -> Option<(&str, &str)> {
    device.consumes_counters.iter().flatten().find_map(|consumption| {
        let mut counters = consumption.counters.iter();
        let (name, _) = counters.find(|(_, counter)| billionths(&counter.value.0).is_err())?;
        Some((consumption.counter_set.as_str(), name.as_str()))
    })
}

/// The counters that a device in use consumes. A pool in which one of them cannot be read is not used.
pub(crate) fn consumed_counters(device: &Device) -> impl Iterator<Item = (Counter, i128)> {
    device.consumes_counters.iter().flatten().flat_map(|consumption| {
        consumption.counters.iter().filter_map(|(name, counter)| {
            let key = (consumption.counter_set.clone(), name.clone());
            Some((key, billionths(&counter.value.0).ok()?))
        })
    })
}

/// Whether the slice has devices for the node; `None` if that depends on unknown facts about the node.
fn is_for(slice: &ResourceSlice, node: KnownNode<'_>) -> Option<bool> {
    let spec = &slice.spec;
    if spec.per_device_node_selection == Some(true) {
        let devices = spec.devices.iter().flatten().map(|device| is_device_for(device, slice, node));
        let devices: Vec<Option<bool>> = devices.collect();
        return if devices.contains(&Some(true)) {
            Some(true)
        } else {
            (!devices.contains(&None)).then_some(false)
        };
    }
    matches_node(node, spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref())
}

fn is_device_for(device: &Device, slice: &ResourceSlice, node: KnownNode<'_>) -> Option<bool> {
    if slice.spec.per_device_node_selection == Some(true) {
        matches_node(node, device.node_name.as_deref(), device.all_nodes, device.node_selector.as_ref())
    } else {
        is_for(slice, node)
    }
}

fn matches_node(
    node: KnownNode<'_>,
    name: Option<&str>,
    all: Option<bool>,
    selector: Option<&NodeSelector>,
) -> Option<bool> {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => Some(node.name() == Some(name)),
        None if all == Some(true) => Some(true),
        None => selector.map_or(Some(false), |selector| selects(selector, node)),
    }
}

/// The ClaimNetwork that a device of the driver is of; `None` for a link's own devices.
pub(crate) fn network_of(device: &Device) -> Option<&str> {
    let mut all = device.attributes.iter().flatten();
    let network = all.find(|(key, _)| is_ours(key, attributes::NETWORK));
    network.and_then(|(_, value)| value.string.as_deref()).filter(|network| !network.is_empty())
}

/// Whether the key is the driver's attribute, with or without its domain.
pub(crate) fn is_ours(key: &str, name: &str) -> bool {
    key == name || key.strip_prefix(DRIVER_NAME).and_then(|key| key.strip_prefix('/')) == Some(name)
}
