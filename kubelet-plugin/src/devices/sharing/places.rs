//! The pool that each device is in, and which devices of a link are offered together. Pure.
//!
//! Counters cost the scheduler for every device of their pool. So devices are in the node's pool, which has
//! none, and a link with devices that exclude each other has a pool of its own, `NODE/LINK`. The
//! ClaimNetworks on the link are in that pool, too, because a counter is known in its pool only.
//!
//! The scheduler charges a claim to the pool that it was allocated from. So a link stays in the pool that
//! claims hold its devices of, until they are gone. Meanwhile it has no device that they exclude: nobody
//! could use it anyway. A ClaimNetwork that they exclude is tainted, so that people see why it gets no pods.
//!
//! Without counters, or a scheduler that handles them, all devices are in the node's pool and those stay that
//! do not exclude each other: what claims hold before ClaimNetworks, and ClaimNetworks before bare links.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::CounterSet;
use netclaim_api::device::{DeviceName, link_pool};
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_api::{IfName, LinkUse};

use super::counters;
use crate::devices::candidate::Candidate;
use crate::devices::held::Held;
use crate::inventory::Inventory;

/// The devices of one pool.
pub(in crate::devices) struct Place {
    /// The name of a link's pool; `None` for the node's.
    pub(in crate::devices) link_pool: Option<String>,
    pub(in crate::devices) candidates: Vec<Candidate>,
    pub(in crate::devices) counters: Vec<CounterSet>,
}

/// How a device or an attachment uses its link.
#[derive(Clone, Copy)]
struct Use {
    link_use: Option<LinkUse>,
    vlan: Option<u32>,
}

impl Use {
    fn excludes(self, other: Self) -> bool {
        LinkUse::exclude(self.link_use, other.link_use) || (self.vlan.is_some() && self.vlan == other.vlan)
    }
}

impl Candidate {
    fn usage(&self) -> Use {
        Use { link_use: self.link_use, vlan: self.vlan }
    }

    fn is_network(&self) -> bool {
        matches!(self.device.name.parse(), Ok(DeviceName::Network(_)))
    }
}

/// Returns the pools of `node`, its own first. `counts` says whether the scheduler handles counters.
pub(in crate::devices) fn places(
    mut candidates: Vec<Candidate>,
    node: &str,
    held: &[Held],
    inventory: &Inventory,
    counts: bool,
) -> Vec<Place> {
    let order: BTreeMap<String, usize> =
        candidates.iter().zip(0..).map(|(candidate, place)| (candidate.device.name.clone(), place)).collect();
    let links: BTreeSet<IfName> = candidates.iter().filter_map(|candidate| candidate.link.clone()).collect();
    let held: Vec<(IfName, &Held)> = held
        .iter()
        .filter(|held| held.device.is_some())
        .filter_map(|held| Some((held.link(inventory)?, held)))
        .collect();
    let mut of_node = Vec::new();
    let mut of_links: BTreeMap<String, Place> = BTreeMap::new();
    for link in links {
        let held: Vec<&Held> = held.iter().filter(|(on, _)| *on == link).map(|(_, held)| *held).collect();
        let mut here: Vec<Candidate> =
            candidates.extract_if(.., |candidate| candidate.link.as_ref() == Some(&link)).collect();
        let own_pool = link_pool(node, &link).filter(|_| counts && exclude_each_other(&here));
        match home(own_pool, &held) {
            None => {
                withhold(&mut here, &held, &held);
                keep_together(&mut here, &held);
                of_node.extend(here);
            }
            Some(pool) => {
                let elsewhere: Vec<&Held> =
                    held.iter().copied().filter(|held| held.link_pool.as_ref() != Some(&pool)).collect();
                withhold(&mut here, if counts { &elsewhere } else { &held }, &held);
                let sets = if counts {
                    counters::consume(&mut here)
                } else {
                    keep_together(&mut here, &held);
                    Vec::new()
                };
                // A renamed link keeps the pool that another link may have now.
                let place = of_links.entry(pool.clone()).or_insert_with(|| Place {
                    link_pool: Some(pool),
                    candidates: Vec::new(),
                    counters: Vec::new(),
                });
                place.candidates.extend(here);
                place.counters.extend(sets);
            }
        }
    }
    candidates.extend(of_node);
    candidates.sort_by_key(|candidate| order.get(&candidate.device.name).copied());
    let of_node = Place { link_pool: None, candidates, counters: Vec::new() };
    std::iter::once(of_node).chain(of_links.into_values()).collect()
}

fn exclude_each_other(candidates: &[Candidate]) -> bool {
    let others = |n: usize| candidates.iter().skip(n + 1);
    (0..).zip(candidates).any(|(n, one)| others(n).any(|other| one.usage().excludes(other.usage())))
}

/// Returns the pool of a link: the one where it should be, unless claims hold its devices in others only.
fn home(wanted: Option<String>, held: &[&Held]) -> Option<String> {
    if held.iter().any(|held| held.link_pool == wanted) {
        return wanted;
    }
    held.first().map_or(wanted, |held| held.link_pool.clone())
}

fn is_held(candidate: &Candidate, held: &[&Held]) -> bool {
    held.iter().any(|held| held.device.as_ref() == Some(&candidate.device.name))
}

/// Of the devices that nobody holds and `uses` exclude, taints ClaimNetworks and leaves out others.
fn withhold(candidates: &mut Vec<Candidate>, uses: &[&Held], held: &[&Held]) {
    candidates.retain_mut(|candidate| {
        let excludes =
            |held: &&&Held| Use { link_use: held.link_use, vlan: held.vlan }.excludes(candidate.usage());
        let Some(by) = uses.iter().find(excludes).filter(|_| !is_held(candidate, held)) else { return true };
        let device = by.device.as_deref().unwrap_or_default();
        let message = format!("the uplink is in another use, by a pod with device {device}");
        candidate.unhealthy.push(Unhealthy::new(Reason::LinkInUse, message));
        candidate.is_network()
    });
}

/// Keeps devices that do not exclude each other, where no counters keep them apart.
fn keep_together(candidates: &mut Vec<Candidate>, held: &[&Held]) {
    // Nobody gets these now, and people see why.
    let is_tainted = |candidate: &Candidate| {
        candidate.unhealthy.iter().any(|unhealthy| unhealthy.reason == Reason::LinkInUse)
    };
    let mut ranked: Vec<&Candidate> = candidates.iter().collect();
    ranked.sort_by_key(|candidate| (!is_held(candidate, held), !candidate.is_network()));
    let mut kept: Vec<&Candidate> = Vec::new();
    for candidate in ranked {
        let is_free = |kept: &&Candidate| is_tainted(kept) || !kept.usage().excludes(candidate.usage());
        if is_held(candidate, held) || is_tainted(candidate) || kept.iter().all(is_free) {
            kept.push(candidate);
        }
    }
    let kept: BTreeSet<String> = kept.into_iter().map(|candidate| candidate.device.name.clone()).collect();
    candidates.retain(|candidate| kept.contains(&candidate.device.name));
}
