//! Decides which slices to write, and in which order. Pure: after a crash, the same slices give the same
//! plan.
//!
//! The scheduler reads only the slices of the highest generation. It allocates nothing from a pool until the
//! number of these slices equals their `resourceSliceCount`, and refuses a pool with a duplicate device or a
//! missing counter.
//!
//! * A single slice that differs is replaced in place: the pool is complete and consistent before and after.
//! * So are a counter slice and a device slice, in two plans: first the counters get those that the devices
//!   will need beside those that they still have, and then the devices are written. The next plan removes
//!   counters that nothing needs any more. The pool is complete all the time, whatever crashes: node
//!   autoscalers take a node with an incomplete pool for a broken one.
//! * Otherwise, every slice is written with the next generation. The first write makes the pool incomplete,
//!   the last one complete again, so new devices never appear without their counters. Counter slices are
//!   written first anyway.
//! * If slices of the highest generation are as desired, a rewrite was interrupted, or slices were deleted.
//!   The rest is written with that generation.
//! * Undesired slices are deleted first. That only makes a pool incomplete, or undoes what someone else
//!   added.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::resource::v1::{CounterSet, DeviceTaint, ResourceSlice, ResourceSliceSpec},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};

use crate::{
    config::PublisherConfig,
    dropped::Adopted,
    error::PublishError,
    layout::{COUNTER_SETS_PER_SLICE, Kind, Names, Slot, layout},
    pool::{EmptyPool, Pool},
    validate::COUNTERS_PER_SET,
};

/// Label with the name of the publisher on every slice that it writes.
pub const PUBLISHER_LABEL: &str = "netclaim.dev/publisher";

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    /// Removes this slice, unless it changed meanwhile.
    Delete(ResourceSlice),
    /// Replaces it, unless it changed meanwhile (`resourceVersion`).
    Update(ResourceSlice),
    /// Stores it, unless there is one of this name.
    Create(ResourceSlice),
}

impl Write {
    pub(crate) fn name(&self) -> &str {
        let (Self::Delete(slice) | Self::Update(slice) | Self::Create(slice)) = self;
        slice.metadata.name.as_deref().unwrap_or_default()
    }
}

/// The way from the current slices to the desired ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Generation of the pool after all writes; `None` if there is no pool then.
    pub(crate) generation: Option<i64>,
    /// Empty when there is nothing to do.
    pub(crate) writes: Vec<Write>,
}

impl Plan {
    /// Returns the writes that store something.
    pub(crate) fn puts(&self) -> impl Iterator<Item = &Write> {
        self.writes.iter().filter(|write| !matches!(write, Write::Delete(_)))
    }

    /// Whether a refusal between two writes would break a pool that may be in use.
    pub(crate) fn rewrites(&self) -> bool {
        self.puts().count() > 1 && self.puts().any(|write| matches!(write, Write::Update(_)))
    }
}

/// Returns the publisher in the label of `slice`.
pub(crate) fn publisher_of(slice: &ResourceSlice) -> Option<&str> {
    slice.metadata.labels.as_ref()?.get(PUBLISHER_LABEL).map(String::as_str)
}

/// Plans to withdraw a pool: deletes only slices with the publisher's label.
pub(crate) fn withdraw(config: &PublisherConfig, existing: &[&ResourceSlice]) -> Plan {
    let ours = existing.iter().filter(|slice| publisher_of(slice) == Some(config.publisher.as_str()));
    Plan { generation: None, writes: ours.map(|slice| Write::Delete((*slice).clone())).collect() }
}

/// Plans to publish `pool`, given all current slices of that pool.
///
/// # Errors
/// [`PublishError::Taken`] when another publisher has a slice in this pool.
pub(crate) fn plan(
    config: &PublisherConfig,
    pool: &Pool,
    existing: &[&ResourceSlice],
    adopted: &Adopted,
) -> Result<Plan, PublishError> {
    for slice in existing {
        if let Some(publisher) = publisher_of(slice).filter(|name| *name != config.publisher) {
            return Err(PublishError::Taken {
                pool: pool.name.clone(),
                slice: slice.metadata.name.clone().unwrap_or_default(),
                publisher: publisher.to_owned(),
            });
        }
    }
    if existing.is_empty() && pool.is_empty() && pool.empty == EmptyPool::Keep {
        return Ok(Plan { generation: None, writes: Vec::new() });
    }
    let names = Names::new(&config.driver, &pool.name);
    let slot_of = |slice: &ResourceSlice| names.slot(slice.metadata.name.as_deref()?);
    let current: BTreeMap<Slot, &ResourceSlice> =
        existing.iter().filter_map(|slice| Some((slot_of(slice)?, *slice))).collect();
    let mut desired = layout(&config.driver, pool, &current);

    let undesired = existing.iter().filter(|slice| slot_of(slice).is_none_or(|s| !desired.contains_key(&s)));
    let mut writes: Vec<_> = undesired.map(|slice| Write::Delete((*slice).clone())).collect();

    let generation_of = |slot: &Slot| current.get(slot).map(|slice| slice.spec.pool.generation);
    let top = desired.keys().filter_map(generation_of).max();
    let has_spec = |slot: &Slot, spec: &ResourceSliceSpec| {
        let at_top = || {
            let mut spec = spec.clone();
            spec.pool.generation = top.unwrap_or_default();
            spec
        };
        current.get(slot).is_some_and(|slice| adopted.equal(&names.name(*slot), &at_top(), &slice.spec))
    };
    let due: Vec<Slot> =
        desired.iter().filter(|(slot, spec)| !has_spec(slot, spec)).map(|(slot, _)| *slot).collect();
    // Metadata is not the scheduler's: it is written in place.
    let is_owned = |slot: &Slot| current.get(slot).is_none_or(|slice| has_metadata(slice, config, pool));
    let unowned: Vec<Slot> =
        desired.keys().filter(|slot| !is_owned(slot) && !due.contains(slot)).copied().collect();
    let (generation, due) = match top {
        None => (1, due),
        Some(top) => {
            let interrupted = || due.iter().all(|slot| generation_of(slot) != Some(top));
            let is_published = |(slot, spec): (&Slot, &ResourceSliceSpec)| {
                let count = spec.pool.resource_slice_count;
                current.get(slot).is_some_and(|slice| {
                    (slice.spec.pool.generation, slice.spec.pool.resource_slice_count) == (top, count)
                })
            };
            let is_whole = current.len() == desired.len() && desired.iter().all(is_published);
            if due.len() <= 1 || interrupted() || (is_whole && widen(&mut desired, &current, &due)) {
                (top, due.into_iter().chain(unowned).collect())
            } else {
                (top.saturating_add(1), desired.keys().copied().collect())
            }
        }
    };

    let times = taint_times(existing);
    for slot in due {
        let Some(mut spec) = desired.remove(&slot) else {
            continue;
        };
        spec.pool.generation = generation;
        restore_taint_times(&mut spec, &times);
        writes.push(match current.get(&slot) {
            Some(slice) => {
                let metadata = with_ours(slice.metadata.clone(), config, pool);
                Write::Update(ResourceSlice { metadata, spec })
            }
            None => {
                let new = ObjectMeta { name: Some(names.name(slot)), ..ObjectMeta::default() };
                Write::Create(ResourceSlice { metadata: with_ours(new, config, pool), spec })
            }
        });
    }
    Ok(Plan { generation: Some(generation), writes })
}

/// Adds to the counter slice the counters that it has today, so that the device slice, which is the other one
/// that is due, can be replaced after it. Returns whether these two are due and can be written in this way.
fn widen(
    desired: &mut BTreeMap<Slot, ResourceSliceSpec>,
    current: &BTreeMap<Slot, &ResourceSlice>,
    due: &[Slot],
) -> bool {
    let [counters, devices] = due else { return false };
    if (counters.kind, devices.kind) != (Kind::Counters, Kind::Devices) {
        return false;
    }
    let (Some(now), Some(next)) = (current.get(counters), desired.get_mut(counters)) else { return false };
    let mut sets: BTreeMap<String, CounterSet> = BTreeMap::new();
    for set in now.spec.shared_counters.iter().chain(&next.shared_counters).flatten() {
        let wide = sets.entry(set.name.clone()).or_insert_with(|| set.clone());
        // A counter of another size would be wrong for the devices of before, or for the new ones.
        let is_other = |(name, counter)| wide.counters.get(name).is_some_and(|now| now != counter);
        if set.counters.iter().any(is_other) {
            return false;
        }
        wide.counters.extend(set.counters.clone());
    }
    let fits = sets.len() <= COUNTER_SETS_PER_SLICE
        && sets.values().all(|set| set.counters.len() <= COUNTERS_PER_SET);
    if fits {
        next.shared_counters = Some(sets.into_values().collect());
    }
    fits
}

fn has_metadata(slice: &ResourceSlice, config: &PublisherConfig, pool: &Pool) -> bool {
    let owned = |owner: &OwnerReference| {
        slice.metadata.owner_references.as_deref() == Some(std::slice::from_ref(owner))
    };
    let none = BTreeMap::new();
    let annotations = slice.metadata.annotations.as_ref().unwrap_or(&none);
    publisher_of(slice) == Some(config.publisher.as_str())
        && pool.owner.as_ref().is_none_or(owned)
        && of_driver(config, annotations).eq(of_driver(config, &pool.annotations))
}

/// Returns the annotations that are the publisher's.
fn of_driver<'a>(
    config: &'a PublisherConfig,
    annotations: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = (&'a String, &'a String)> {
    annotations.iter().filter(|(name, _)| is_of_driver(config, name))
}

fn is_of_driver(config: &PublisherConfig, annotation: &str) -> bool {
    annotation.strip_prefix(config.driver.as_str()).is_some_and(|rest| rest.starts_with('/'))
}

/// Adds what is the publisher's to the metadata of a slice, and keeps that of others, and the
/// `resourceVersion` that guards an update.
fn with_ours(mut metadata: ObjectMeta, config: &PublisherConfig, pool: &Pool) -> ObjectMeta {
    metadata.managed_fields = None;
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(PUBLISHER_LABEL.to_owned(), config.publisher.clone());
    let mut annotations = metadata.annotations.take().unwrap_or_default();
    annotations.retain(|name, _| !is_of_driver(config, name));
    annotations
        .extend(of_driver(config, &pool.annotations).map(|(name, value)| (name.clone(), value.clone())));
    metadata.annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
    if let Some(owner) = &pool.owner {
        metadata.owner_references = Some(vec![owner.clone()]);
    }
    metadata
}

/// Device, key, value and effect.
type TaintId = (String, String, Option<String>, String);

fn taint_id(device: &str, taint: &DeviceTaint) -> TaintId {
    let value = taint.value.clone().filter(|value| !value.is_empty());
    (device.to_owned(), taint.key.clone(), value, taint.effect.clone())
}

/// Returns when the server first saw each taint. Tolerations count from then, so an update must not reset it.
fn taint_times(existing: &[&ResourceSlice]) -> BTreeMap<TaintId, Time> {
    let devices = existing.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
    let taints = devices.flat_map(|device| device.taints.iter().flatten().map(|taint| (&device.name, taint)));
    taints.filter_map(|(device, taint)| Some((taint_id(device, taint), taint.time_added.clone()?))).collect()
}

fn restore_taint_times(spec: &mut ResourceSliceSpec, times: &BTreeMap<TaintId, Time>) {
    for device in spec.devices.iter_mut().flatten() {
        for taint in device.taints.iter_mut().flatten() {
            taint.time_added = times.get(&taint_id(&device.name, taint)).cloned();
        }
    }
}

#[cfg(test)]
mod tests;
