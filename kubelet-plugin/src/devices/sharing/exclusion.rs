//! Keeps devices of one link apart that exclude each other. Pure.
//!
//! * Where the node offers uses of a link that exclude each other, and the scheduler handles counters, the
//!   devices of the link have counters.
//! * Else, a link has one use at a time: what claims hold comes before ClaimNetworks, and ClaimNetworks
//!   before bare links. A ClaimNetwork that what is held excludes is tainted, so that people see why it gets
//!   no pods. Other devices are left out: no pod could use them anyway.
//!
//! Counters come and go with what is offered, not with pods: a pool with counters has one slice more, and is
//! of no use to the scheduler between the two writes that change the number of its slices.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::CounterSet;
use netclaim_api::device::DeviceName;
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_api::{IfName, LinkUse};

use super::counters;
use crate::devices::candidate::Candidate;
use crate::devices::held::HeldDevice;
use crate::inventory::Inventory;

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

impl HeldDevice {
    fn usage(&self) -> Use {
        Use { link_use: self.link_use, vlan: self.vlan }
    }
}

/// Leaves the devices of each link that can be published together, in their order, and returns the counters
/// that keep them apart. `counts` says whether the scheduler handles counters.
pub(in crate::devices) fn keep_apart(
    candidates: &mut Vec<Candidate>,
    held: &[HeldDevice],
    inventory: &Inventory,
    counts: bool,
) -> Vec<CounterSet> {
    let order: BTreeMap<String, usize> =
        candidates.iter().zip(0..).map(|(candidate, place)| (candidate.device.name.clone(), place)).collect();
    let links: BTreeSet<IfName> = candidates.iter().filter_map(|candidate| candidate.link.clone()).collect();
    let held: Vec<(IfName, &HeldDevice)> = held
        .iter()
        .filter(|held| held.device.is_some())
        .filter_map(|held| Some((held.link(inventory)?, held)))
        .collect();
    let mut sets = Vec::new();
    for link in links {
        let held: Vec<&HeldDevice> =
            held.iter().filter(|(on, _)| *on == link).map(|(_, held)| *held).collect();
        let mut here: Vec<Candidate> =
            candidates.extract_if(.., |candidate| candidate.link.as_ref() == Some(&link)).collect();
        if counts && exclude_each_other(&here) {
            sets.extend(counters::consume(&mut here));
        } else {
            withhold(&mut here, &held);
            keep_together(&mut here, &held);
        }
        candidates.extend(here);
    }
    candidates.sort_by_key(|candidate| order.get(&candidate.device.name).copied());
    sets
}

/// Whether the node offers devices that exclude each other.
fn exclude_each_other(candidates: &[Candidate]) -> bool {
    let offered: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.is_offered).collect();
    let others = |n: usize| offered.iter().skip(n + 1);
    (0..).zip(&offered).any(|(n, one)| others(n).any(|other| one.usage().excludes(other.usage())))
}

fn is_held(candidate: &Candidate, held: &[&HeldDevice]) -> bool {
    held.iter().any(|held| held.device.as_ref() == Some(&candidate.device.name))
}

/// Taints ClaimNetworks, and leaves out other devices, that no claim holds and that held devices exclude.
fn withhold(candidates: &mut Vec<Candidate>, held: &[&HeldDevice]) {
    candidates.retain_mut(|candidate| {
        let excludes = |held: &&&HeldDevice| held.usage().excludes(candidate.usage());
        let Some(by) = held.iter().find(excludes).filter(|_| !is_held(candidate, held)) else { return true };
        let device = by.device.as_deref().unwrap_or_default();
        let message = format!("the uplink is in another use, by a pod with device {device}");
        candidate.unhealthy.push(Unhealthy::new(Reason::LinkInUse, message));
        candidate.is_network()
    });
}

/// Keeps devices that do not exclude each other, where no counters keep them apart.
fn keep_together(candidates: &mut Vec<Candidate>, held: &[&HeldDevice]) {
    // No pod gets these now, and people see why.
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
