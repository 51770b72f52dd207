//! Splits a pool into slices, so that a change touches as few of them as possible.
//!
//! Counter sets and devices have separate slices (required since 1.35). Each stays in its slice as long as it
//! is desired; a new one goes into the first slice with room. So one changed device is one written slice.
//!
//! The name of a slice contains its place: `<pool>-<driver>-<hash>-d0000`. With fixed names, a create that is
//! sent twice fails the second time; generated names would put two slices with the same devices into the
//! pool. Counter slices (`c0000`) sort before device slices, which the scheduler reads in the order of their
//! names.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{ResourcePool, ResourceSlice, ResourceSliceSpec};

use crate::pool::{Placement, Pool};

/// Devices in a slice. The API allows 128, but 64 if one of them has a taint or consumes counters. With 64
/// always, a new taint does not split a slice.
pub(crate) const DEVICES_PER_SLICE: usize = 64;

/// Counter sets in a slice (API limit).
pub(crate) const COUNTER_SETS_PER_SLICE: usize = 8;

/// The content of a slice. Counters come first, also in the order of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Counters,
    Devices,
}

/// The place of a slice in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) kind: Kind,
    pub(crate) index: u32,
}

/// Names the slices of one pool.
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    /// Room for `-<hash>-d0000` and a driver of 63 bytes in a name of 253.
    const POOL_BYTES: usize = 160;

    pub(crate) fn new(driver: &str, pool: &str) -> Self {
        let readable: String = pool
            .chars()
            .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' { c } else { '-' })
            .take(Self::POOL_BYTES)
            .collect();
        let readable = readable.trim_matches(['-', '.']);
        // The hash distinguishes names with the same readable part: `a/b` and `a-b`, long names, other
        // drivers.
        let hash = fnv1a(driver.bytes().chain([0]).chain(pool.bytes()));
        Self { prefix: format!("{readable}-{driver}-{hash:08x}-").trim_start_matches('-').to_owned() }
    }

    pub(crate) fn name(&self, slot: Slot) -> String {
        let letter = match slot.kind {
            Kind::Counters => 'c',
            Kind::Devices => 'd',
        };
        format!("{}{letter}{:04}", self.prefix, slot.index)
    }

    /// Returns the place of the slice `name`, or `None` if this pool has no slice of such a name.
    pub(crate) fn slot(&self, name: &str) -> Option<Slot> {
        let place = name.strip_prefix(&self.prefix)?;
        let kind = match place.as_bytes().first()? {
            b'c' => Kind::Counters,
            b'd' => Kind::Devices,
            _ => return None,
        };
        let slot = Slot { kind, index: place.get(1..)?.parse().ok()? };
        (self.name(slot) == name).then_some(slot)
    }
}

/// 32-bit FNV-1a, which is stable across releases, unlike the hashers of std.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns the specs of the slices of `pool`, with generation 0, given its current slices.
pub(crate) fn layout(
    driver: &str,
    pool: &Pool,
    current: &BTreeMap<Slot, &ResourceSlice>,
) -> BTreeMap<Slot, ResourceSliceSpec> {
    // A half-written pool can have a device in two slices; the newer generation decides.
    let mut newest_first: Vec<_> = current.iter().collect();
    newest_first.sort_by_key(|(_, slice)| std::cmp::Reverse(slice.spec.pool.generation));

    let mut places = BTreeMap::new();
    for (slot, slice) in newest_first {
        let devices = slice.spec.devices.iter().flatten().map(|device| device.name.as_str());
        let sets = slice.spec.shared_counters.iter().flatten().map(|set| set.name.as_str());
        for name in devices.chain(sets) {
            places.entry((slot.kind, name)).or_insert(slot.index);
        }
    }
    let place = |kind, name| places.get(&(kind, name)).copied();

    let mut specs = BTreeMap::new();
    let sets = pool.counters.iter().map(|set| place(Kind::Counters, set.name.as_str()));
    for (set, index) in pool.counters.iter().zip(assign(sets, COUNTER_SETS_PER_SLICE)) {
        let spec = specs.entry(Slot { kind: Kind::Counters, index });
        let spec = spec.or_insert_with(|| empty(driver, pool));
        spec.shared_counters.get_or_insert_default().push(set.clone());
    }
    let devices = pool.devices.iter().map(|device| place(Kind::Devices, device.name.as_str()));
    for (device, index) in pool.devices.iter().zip(assign(devices, DEVICES_PER_SLICE)) {
        let spec = specs.entry(Slot { kind: Kind::Devices, index });
        let mut device = device.clone();
        device.taints.iter_mut().flatten().for_each(|taint| taint.time_added = None);
        spec.or_insert_with(|| empty(driver, pool)).devices.get_or_insert_default().push(device);
    }
    if specs.is_empty() {
        specs.insert(Slot { kind: Kind::Devices, index: 0 }, empty(driver, pool));
    }
    let count = i64::try_from(specs.len()).unwrap_or(i64::MAX);
    specs.values_mut().for_each(|spec| spec.pool.resource_slice_count = count);
    specs
}

/// Returns the specs of the slices of a pool that has none yet, in the order of writes, with generation 0.
pub fn specs(driver: &str, pool: &Pool) -> Vec<ResourceSliceSpec> {
    layout(driver, pool, &BTreeMap::new()).into_values().collect()
}

/// Returns a slice index for each item: its current one if there is room, else the first with room.
fn assign(places: impl Iterator<Item = Option<u32>>, per_slice: usize) -> Vec<u32> {
    let mut places: Vec<_> = places.collect();
    let mut used: BTreeMap<u32, usize> = BTreeMap::new();
    for place in &mut places {
        *place = place.filter(|index| {
            let used = used.entry(*index).or_default();
            *used += 1;
            *used <= per_slice
        });
    }
    let mut full: BTreeSet<u32> =
        used.iter().filter(|(_, used)| **used >= per_slice).map(|(index, _)| *index).collect();
    let mut first = 0;
    places
        .into_iter()
        .map(|place| {
            place.unwrap_or_else(|| {
                while full.contains(&first) {
                    first += 1;
                }
                let used = used.entry(first).or_default();
                *used += 1;
                if *used >= per_slice {
                    full.insert(first);
                }
                first
            })
        })
        .collect()
}

fn empty(driver: &str, pool: &Pool) -> ResourceSliceSpec {
    let mut spec = ResourceSliceSpec {
        driver: driver.to_owned(),
        pool: ResourcePool { name: pool.name.clone(), ..ResourcePool::default() },
        ..ResourceSliceSpec::default()
    };
    match &pool.placement {
        Placement::Node(name) => spec.node_name = Some(name.clone()),
        Placement::NodeSelector(selector) => spec.node_selector = Some(selector.clone()),
        Placement::AllNodes => spec.all_nodes = Some(true),
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: Slot = Slot { kind: Kind::Devices, index: 3 };

    #[test]
    fn a_name_contains_pool_and_place() {
        let names = Names::new("netclaim.dev", "node-1.example");
        let name = names.name(DEVICES);
        assert!(name.starts_with("node-1.example-netclaim.dev-"), "{name}");
        assert!(name.ends_with("-d0003"), "{name}");
        assert_eq!(names.slot(&name), Some(DEVICES));
        for other in ["", "x", &name[..name.len() - 1], &format!("{name}x"), &name.replace("d0003", "d+003")]
        {
            assert_eq!(names.slot(other), None, "{other}");
        }
    }

    #[test]
    fn pools_never_share_a_name_and_names_stay_within_253_bytes() {
        let name = |pool: &str| Names::new(&"d".repeat(63), pool).name(DEVICES);
        assert_ne!(name("a/b"), name("a-b"));
        assert_ne!(name(&format!("{}a", "x".repeat(252))), name(&format!("{}b", "x".repeat(252))));
        assert!(name(&"x".repeat(253)).len() <= 253);
        assert!(name("ß/…").starts_with('d'), "no byte of a hostile name is cut in half");
    }

    #[test]
    fn an_item_stays_where_it_is_and_a_new_one_fills_the_first_gap() {
        assert_eq!(assign([None, None, None].into_iter(), 2), [0, 0, 1]);
        assert_eq!(assign([Some(1), None, Some(1), None, None].into_iter(), 2), [1, 0, 1, 0, 2]);
        assert_eq!(assign([Some(0), Some(0), Some(0)].into_iter(), 2), [0, 0, 1], "a foreign slice too full");
    }
}
