//! Counters that tell the scheduler which devices exclude each other on one link. Pure.
//!
//! A link has one receive handler, so macvlan, ipvlan and moving the whole link exclude each other. Moving it
//! also excludes everything else on it, such as VLANs. Each link has one set of shared counters: a device has
//! a counter of its own worth [`K`], takes all of it, and every device that it excludes takes 1 of it. The
//! largest group of devices that do not exclude each other needs none, since those that they exclude have
//! one. A shared device is charged with its first share and released with its last.
//!
//! A link has one child for each VLAN id, so ClaimNetworks of the same id exclude each other: the id has a
//! counter of 1 in the same set.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Counter, CounterSet, DeviceCounterConsumption};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use netclaim_api::device::link_label;
use netclaim_api::{IfName, LinkUse};

use crate::devices::candidate::Candidate;

/// Value of a counter: more than a link can have devices, so that one exclusive device outweighs all others.
const K: u64 = 1024;

/// Most counters in a set (`ResourceSliceMaxCountersPerCounterSet`, 1.35).
const MAX_COUNTERS: usize = 32;

/// Devices of one kind do not exclude each other. A link can be moved once, so a device that moves it is a
/// kind of its own, after all others.
type Kind = (Option<String>, Option<LinkUse>);

fn kind(candidate: &Candidate) -> Kind {
    let link_use = candidate.link_use;
    ((link_use == Some(LinkUse::Nic)).then(|| candidate.device.name.clone()), link_use)
}

/// An exclusion on a link, which one counter enforces.
struct Exclusion {
    name: String,
    value: u64,
    /// How much each device takes.
    takers: BTreeMap<String, u64>,
    /// The devices that must not be published without it.
    guarded: BTreeSet<String>,
}

/// Gives the candidates their counters, and returns the sets. Drops devices for which a link has no counter
/// left: they would not be protected from each other.
pub(in crate::devices) fn consume(candidates: &mut Vec<Candidate>) -> Vec<CounterSet> {
    let links: BTreeSet<IfName> = candidates.iter().filter_map(|candidate| candidate.link.clone()).collect();
    let mut sets = Vec::new();
    for link in links {
        let on_link: Vec<&Candidate> =
            candidates.iter().filter(|candidate| candidate.link.as_ref() == Some(&link)).collect();
        let mut exclusions = link_uses(&on_link);
        exclusions.extend(vlans(&on_link));
        let surplus = exclusions.split_off(exclusions.len().min(MAX_COUNTERS));
        let dropped: BTreeSet<String> = surplus.into_iter().flat_map(|exclusion| exclusion.guarded).collect();
        if !dropped.is_empty() {
            tracing::warn!(%link, ?dropped, "more than {MAX_COUNTERS} devices exclude others on one link: not published");
            candidates.retain(|candidate| !dropped.contains(&candidate.device.name));
        }
        if exclusions.is_empty() {
            continue;
        }
        let set = link_label(&link);
        for candidate in candidates.iter_mut().filter(|candidate| candidate.link.as_ref() == Some(&link)) {
            let taken = |exclusion: &Exclusion| {
                Some((exclusion.name.clone(), counter(*exclusion.takers.get(&candidate.device.name)?)))
            };
            let counters: BTreeMap<String, Counter> = exclusions.iter().filter_map(taken).collect();
            candidate.device.consumes_counters = (!counters.is_empty()).then(|| {
                vec![DeviceCounterConsumption { counter_set: set.clone(), counters, ..Default::default() }]
            });
        }
        let counters =
            exclusions.into_iter().map(|exclusion| (exclusion.name, counter(exclusion.value))).collect();
        sets.push(CounterSet { name: set, counters });
    }
    sets
}

/// Returns one exclusion for each device outside the largest group; of equal groups the first, so that the
/// set is stable.
fn link_uses(on_link: &[&Candidate]) -> Vec<Exclusion> {
    let mut kinds: BTreeMap<Kind, Vec<&str>> = BTreeMap::new();
    for candidate in on_link {
        kinds.entry(kind(candidate)).or_default().push(&candidate.device.name);
    }
    // A use without a receive handler can be beside macvlan and beside ipvlan.
    let of_group = |(_, link_use): &Kind| link_use.is_some_and(|link_use| link_use != LinkUse::Nic);
    let beside = kinds.contains_key(&(None, None));
    let candidates = kinds.iter().filter(|(kind, _)| of_group(kind) || !beside);
    let largest =
        candidates.max_by_key(|(kind, devices)| (devices.len(), std::cmp::Reverse((*kind).clone())));
    let largest = largest.map(|(kind, _)| kind.clone());
    let mut exclusions = Vec::new();
    for (kind, devices) in
        kinds.iter().filter(|(kind, _)| kind.1.is_some() && Some(*kind) != largest.as_ref())
    {
        let excluded = |(other, _): &(&Kind, &Vec<&str>)| *other != kind && LinkUse::exclude(kind.1, other.1);
        let others: Vec<&str> =
            kinds.iter().filter(excluded).flat_map(|(_, devices)| devices.iter().copied()).collect();
        if others.is_empty() {
            continue;
        }
        for device in devices {
            let mut takers: BTreeMap<String, u64> =
                others.iter().map(|other| ((*other).to_owned(), 1)).collect();
            takers.insert((*device).to_owned(), K);
            exclusions.push(Exclusion {
                name: (*device).to_owned(),
                value: K,
                takers,
                guarded: BTreeSet::from([(*device).to_owned()]),
            });
        }
    }
    exclusions
}

/// Returns one exclusion for each VLAN id that more than one device takes.
fn vlans(on_link: &[&Candidate]) -> Vec<Exclusion> {
    let mut takers: BTreeMap<u32, BTreeMap<String, u64>> = BTreeMap::new();
    for candidate in on_link {
        if let Some(id) = candidate.vlan {
            takers.entry(id).or_default().insert(candidate.device.name.clone(), 1);
        }
    }
    takers.retain(|_, takers| takers.len() > 1);
    let exclusion = |(id, takers): (u32, BTreeMap<String, u64>)| Exclusion {
        name: format!("vlan{id}"),
        value: 1,
        guarded: takers.keys().cloned().collect(),
        takers,
    };
    takers.into_iter().map(exclusion).collect()
}

fn counter(value: u64) -> Counter {
    Counter { value: ApiQuantity(value.to_string()) }
}
