//! What each node has of the ClaimNetworks. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourceSlice};
use netclaim_allocation::nodes_in_words;

use super::error::TemplateError;
use crate::slices::newest;

/// The most names of nodes in a sentence.
pub(super) const SHOWN_NODES: usize = 3;

/// The devices that a node has of the ClaimNetworks.
#[derive(Debug)]
pub(super) struct Offer<'a> {
    pub(super) node: &'a str,
    /// One of each ClaimNetwork, by name.
    pub(super) devices: BTreeMap<&'a str, &'a Device>,
    /// The counters of their pools, by name of the set.
    pub(super) counters: BTreeMap<&'a str, &'a CounterSet>,
    /// Whether the pools have all of their slices, and the counters that the devices consume.
    is_complete: bool,
}

impl<'a> Offer<'a> {
    /// Returns the devices that take no new pods, each with the keys of its taints.
    pub(super) fn tainted(&self) -> impl Iterator<Item = (&'a str, Vec<&'a str>)> {
        let keys = |device: &&'a Device| {
            let taints = device.taints.iter().flatten().filter(|taint| taint.effect != "None");
            taints.map(|taint| taint.key.as_str()).collect::<Vec<_>>()
        };
        self.devices
            .iter()
            .map(move |(name, device)| (*name, keys(device)))
            .filter(|(_, keys)| !keys.is_empty())
    }
}

/// Returns the nodes that have all of the devices, by name.
pub(super) fn offers<'a>(slices: &'a [ResourceSlice], devices: &BTreeSet<String>) -> Vec<Offer<'a>> {
    let mut by_node: BTreeMap<&str, BTreeMap<&str, Vec<&ResourceSlice>>> = BTreeMap::new();
    for slice in newest(slices) {
        let Some(node) = slice.spec.node_name.as_deref() else { continue };
        by_node.entry(node).or_default().entry(&slice.spec.pool.name).or_default().push(slice);
    }
    let all = by_node.into_iter().map(|(node, pools)| offer(node, pools));
    all.filter(|offer| devices.iter().all(|name| offer.devices.contains_key(name.as_str()))).collect()
}

fn offer<'a>(node: &'a str, pools: BTreeMap<&'a str, Vec<&'a ResourceSlice>>) -> Offer<'a> {
    let mut offer = Offer { node, devices: BTreeMap::new(), counters: BTreeMap::new(), is_complete: true };
    for slices in pools.into_values() {
        let devices = || slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
        if devices().next().is_none() {
            continue;
        }
        let count = slices.first().map(|slice| slice.spec.pool.resource_slice_count);
        offer.is_complete &= i64::try_from(slices.len()).ok() == count;
        offer.devices.extend(devices().map(|device| (device.name.as_str(), device)));
        let sets = slices.iter().flat_map(|slice| slice.spec.shared_counters.iter().flatten());
        offer.counters.extend(sets.map(|set| (set.name.as_str(), set)));
    }
    offer.is_complete &= offer.devices.values().all(|device| has_its_counters(device, &offer.counters));
    offer
}

fn has_its_counters(device: &Device, sets: &BTreeMap<&str, &CounterSet>) -> bool {
    device.consumes_counters.iter().flatten().all(|consumed| {
        let set = sets.get(consumed.counter_set.as_str());
        set.is_some_and(|set| consumed.counters.keys().all(|name| set.counters.contains_key(name)))
    })
}

/// Returns the offer that is the pattern: the first of a complete pool, preferably with healthy devices.
///
/// # Errors
/// There is none.
pub(super) fn pattern<'o, 'a>(
    offers: &'o [Offer<'a>],
    networks: String,
    node: Option<&str>,
) -> Result<&'o Offer<'a>, TemplateError> {
    let complete = offers.iter().filter(|offer| offer.is_complete);
    if let Some(offer) = complete.min_by_key(|offer| offer.tainted().next().is_some()) {
        return Ok(offer);
    }
    Err(match (offers, node) {
        ([], None) => TemplateError::Unpublished { networks },
        ([], Some(node)) => TemplateError::NotOnNode { node: node.to_owned(), networks },
        (offers, _) => {
            let nodes: Vec<String> = offers.iter().map(|offer| offer.node.to_owned()).collect();
            TemplateError::Incomplete { nodes: nodes_in_words(&nodes, SHOWN_NODES) }
        }
    })
}
