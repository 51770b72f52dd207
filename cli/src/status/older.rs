//! Which pods run an older configuration of their ClaimNetwork. Pure.
//!
//! Agents publish how many these are, with the beginnings of their UIDs. The claims have the names.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use netclaim_api::NetworkName;
use netclaim_api::configuration::{OlderPods, older_pods, short_uid};

use super::snapshot::Snapshot;
use crate::slices::newest;

/// Most pods that a note names.
const SHOWN: usize = 10;

/// The pods that run an older configuration of a ClaimNetwork.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Older {
    /// How many there are.
    pub(super) pods: usize,
    /// `namespace/name` of those that are known by name.
    pub(super) names: BTreeSet<String>,
}

/// Returns the pods by ClaimNetwork.
pub(super) fn by_network(snapshot: &Snapshot) -> BTreeMap<NetworkName, Older> {
    // Each slice of a pool says the same.
    let mut said: BTreeMap<(NetworkName, &str), OlderPods> = BTreeMap::new();
    for slice in newest(&snapshot.slices) {
        let pool = slice.spec.pool.name.as_str();
        let of_slice = older_pods(slice.annotations()).into_iter();
        said.extend(of_slice.map(|(network, older)| ((network, pool), older)));
    }
    let mut networks: BTreeMap<NetworkName, Older> = BTreeMap::new();
    let mut of_pod: BTreeMap<&str, Vec<&NetworkName>> = BTreeMap::new();
    for ((network, _), older) in &said {
        networks.entry(network.clone()).or_default().pods +=
            usize::try_from(older.pods).unwrap_or(usize::MAX);
        older.uids.iter().for_each(|uid| of_pod.entry(uid).or_default().push(network));
    }
    for claim in snapshot.claims.iter().filter(|_| !of_pod.is_empty()) {
        let pods = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
        for pod in pods.filter(|consumer| consumer.resource == "pods") {
            for network in of_pod.get(short_uid(&pod.uid)).into_iter().flatten() {
                let name = format!("{}/{}", claim.namespace().unwrap_or_default(), pod.name);
                if let Some(older) = networks.get_mut(network) {
                    older.names.insert(name);
                }
            }
        }
    }
    networks.retain(|_, older| older.pods > 0);
    networks
}

/// Returns the sentence for people.
pub(super) fn note(network: &str, older: &Older) -> String {
    let Older { pods, names } = older;
    let more = pods.saturating_sub(names.len().min(SHOWN));
    let mut named: Vec<String> = names.iter().take(SHOWN).cloned().collect();
    if more > 0 && !named.is_empty() {
        named.push(format!("and {more} more"));
    }
    let run = if *pods == 1 { "pod runs" } else { "pods run" };
    let named = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
    format!(
        "ClaimNetwork {network}: {pods} {run} an older configuration{named}. To update them, recreate them, for \
         example by kubectl rollout restart"
    )
}
