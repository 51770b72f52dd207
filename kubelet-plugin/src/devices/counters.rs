//! Which devices exclude each other on one link, as the scheduler understands it.
//!
//! A link has one receive handler, so macvlan, ipvlan and handing the whole link away exclude each other; and handing it
//! away excludes whatever else is on it, such as VLANs, which would go with it. The scheduler decides this itself with
//! shared counters, one set for each link: a device has a counter of its own worth [`K`], takes all of it, and every
//! device that it excludes takes 1 of it. The largest group of devices that do not exclude each other has none, since
//! those that they exclude have. A shared device is charged once, with its first share, and gives back with its last.
//!
//! A link has one child for each VLAN id, so Networks of the same id exclude each other: the id has a counter of 1 in
//! the same set.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Counter, CounterSet, DeviceCounterConsumption};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use netclaim_api::device::link_label;
use netclaim_api::{IfName, LinkUse};

use super::candidate::Candidate;
use crate::prepare::exclusion::exclude;

/// What a counter holds: more than a link can have devices, so that one exclusive device outweighs all others.
const K: u64 = 1024;

/// Counters in a set at most (`ResourceSliceMaxCountersPerCounterSet`, 1.35).
const MAX_COUNTERS: usize = 32;

/// Devices of one kind do not exclude each other. A link can be handed away once, so a device that does so is a
/// kind of its own, after all others.
type Kind = (Option<String>, Option<LinkUse>);

fn kind(candidate: &Candidate) -> Kind {
    let link_use = candidate.link_use;
    ((link_use == Some(LinkUse::Nic)).then(|| candidate.device.name.clone()), link_use)
}

/// A counter of a link: its name, what it holds, and who takes how much of it.
struct Contest {
    name: String,
    value: u64,
    /// By device.
    takers: BTreeMap<String, u64>,
    /// The devices that must not be published without it.
    guarded: BTreeSet<String>,
}

/// Gives the candidates their counters, and returns the sets. A device whose link has no counter left for it is
/// dropped: unpublished is safe, unprotected is not.
pub(super) fn consume(candidates: &mut Vec<Candidate>) -> Vec<CounterSet> {
    let links: BTreeSet<IfName> = candidates.iter().filter_map(|candidate| candidate.link.clone()).collect();
    let mut sets = Vec::new();
    for link in links {
        let on_link: Vec<&Candidate> =
            candidates.iter().filter(|candidate| candidate.link.as_ref() == Some(&link)).collect();
        let mut contests = uses(&on_link);
        contests.extend(vlans(&on_link));
        let surplus = contests.split_off(contests.len().min(MAX_COUNTERS));
        let dropped: BTreeSet<String> = surplus.into_iter().flat_map(|contest| contest.guarded).collect();
        if !dropped.is_empty() {
            tracing::warn!(%link, ?dropped, "more than {MAX_COUNTERS} devices exclude others on one link: not published");
            candidates.retain(|candidate| !dropped.contains(&candidate.device.name));
        }
        if contests.is_empty() {
            continue;
        }
        let set = link_label(&link);
        for candidate in candidates.iter_mut().filter(|candidate| candidate.link.as_ref() == Some(&link)) {
            let taken = |contest: &Contest| {
                Some((contest.name.clone(), counter(*contest.takers.get(&candidate.device.name)?)))
            };
            let counters: BTreeMap<String, Counter> = contests.iter().filter_map(taken).collect();
            candidate.device.consumes_counters = (!counters.is_empty()).then(|| {
                vec![DeviceCounterConsumption { counter_set: set.clone(), counters, ..Default::default() }]
            });
        }
        let counters = contests.into_iter().map(|contest| (contest.name, counter(contest.value))).collect();
        sets.push(CounterSet { name: set, counters });
    }
    sets
}

/// One contest for each device outside the largest group; of equals the first, for the set to be stable.
fn uses(on_link: &[&Candidate]) -> Vec<Contest> {
    let mut kinds: BTreeMap<Kind, Vec<&str>> = BTreeMap::new();
    for candidate in on_link {
        kinds.entry(kind(candidate)).or_default().push(&candidate.device.name);
    }
    // What takes no receive handler is beside macvlan and beside ipvlan.
    let of_group = |(_, link_use): &Kind| link_use.is_some_and(|link_use| link_use != LinkUse::Nic);
    let beside = kinds.contains_key(&(None, None));
    let candidates = kinds.iter().filter(|(kind, _)| of_group(kind) || !beside);
    let largest =
        candidates.max_by_key(|(kind, devices)| (devices.len(), std::cmp::Reverse((*kind).clone())));
    let largest = largest.map(|(kind, _)| kind.clone());
    let mut contests = Vec::new();
    for (kind, devices) in
        kinds.iter().filter(|(kind, _)| kind.1.is_some() && Some(*kind) != largest.as_ref())
    {
        let excluded = |(other, _): &(&Kind, &Vec<&str>)| *other != kind && exclude(kind.1, other.1);
        let others: Vec<&str> =
            kinds.iter().filter(excluded).flat_map(|(_, devices)| devices.iter().copied()).collect();
        if others.is_empty() {
            continue;
        }
        for device in devices {
            let mut takers: BTreeMap<String, u64> =
                others.iter().map(|other| ((*other).to_owned(), 1)).collect();
            takers.insert((*device).to_owned(), K);
            contests.push(Contest {
                name: (*device).to_owned(),
                value: K,
                takers,
                guarded: BTreeSet::from([(*device).to_owned()]),
            });
        }
    }
    contests
}

/// One contest for each VLAN id that more than one device takes.
fn vlans(on_link: &[&Candidate]) -> Vec<Contest> {
    let mut takers: BTreeMap<u32, BTreeMap<String, u64>> = BTreeMap::new();
    for candidate in on_link {
        if let Some(id) = candidate.vlan {
            takers.entry(id).or_default().insert(candidate.device.name.clone(), 1);
        }
    }
    takers.retain(|_, takers| takers.len() > 1);
    let contest = |(id, takers): (u32, BTreeMap<String, u64>)| Contest {
        name: format!("vlan{id}"),
        value: 1,
        guarded: takers.keys().cloned().collect(),
        takers,
    };
    takers.into_iter().map(contest).collect()
}

fn counter(value: u64) -> Counter {
    Counter { value: ApiQuantity(value.to_string()) }
}
