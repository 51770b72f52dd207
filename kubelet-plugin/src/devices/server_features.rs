//! What this node's devices lack because the API server does not store it, or because its scheduler ignores it. Pure.
//!
//! Kubernetes 1.34 and 1.35 have the feature gates off by default that devices for many pods need; see
//! `docs/reference/kubernetes-versions.md`.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::Device;
use netclaim_api::{attributes, published};
use netclaim_slices::{DroppedField, KubernetesVersion, Pool, ServerFeatures};

/// Returns the pool as this server and its scheduler can handle it.
///
/// The scheduler of 1.37 walks over all shares of the cluster for each free shared device, unless there is a record of consumed
/// capacity. A device that counts nothing gets a capacity for that.
pub(super) fn fitted(pool: Pool, server: &ServerFeatures) -> Pool {
    let mut pool = pool.fitted(server, rank);
    let is_shared = |device: &&mut Device| device.allow_multiple_allocations == Some(true);
    if server.walks_shares() {
        pool.devices.iter_mut().filter(is_shared).for_each(published::record_claims);
    }
    pool
}

/// Ranks devices that exclude each other where the scheduler cannot know it, so that only the first is published:
/// Networks, which an admin has defined, before bare links.
fn rank(device: &Device) -> impl Ord + use<> {
    let network = device.attributes.as_ref().and_then(|attributes| attributes.get(attributes::NETWORK));
    network.and_then(|network| network.string.as_deref()).is_none_or(str::is_empty)
}

/// Returns what is missing or wrong and what that means; `None` when nothing is.
pub(super) fn note(server: &ServerFeatures) -> Option<String> {
    let mut gates = BTreeSet::new();
    let missing = |field: DroppedField| match field.gate() {
        Some(gate) if gates.insert(gate) => Some(format!("{gate} ({})", consequence(field))),
        Some(_) => None,
        None => Some(consequence(field).to_owned()),
    };
    let missing: Vec<String> = server.dropped().filter_map(missing).collect();
    let stored = (!missing.is_empty()).then(|| {
        format!(
            "the API server stores ResourceSlices without what these feature gates are for, which are on by default from \
             Kubernetes 1.36: {}",
            missing.join("; ")
        )
    });
    let counted = server.without_counters().map(|version| {
        format!(
            "no counters are published: with them the scheduler of Kubernetes {version} would look at all nodes for each node, \
             for every pod with a claim of any driver (kubernetes issue 138917); {}; upgrade to {} or newer",
            consequence(DroppedField::ConsumesCounters),
            KubernetesVersion::FIRST_TO_COUNT
        )
    });
    let notes: Vec<String> = stored.into_iter().chain(counted).collect();
    (!notes.is_empty()).then(|| notes.join(". "))
}

fn consequence(field: DroppedField) -> &'static str {
    match field {
        DroppedField::AllowMultipleAllocations | DroppedField::RequestPolicy => {
            "each device serves one claim at a time, whatever its capacity"
        }
        DroppedField::ConsumesCounters | DroppedField::SharedCounters => {
            "of devices that exclude each other on one link, only the first Network's kind is published, or the link itself \
             where there is no Network"
        }
        DroppedField::Taints => "a device that is not well is left out instead of tainted",
        DroppedField::BindsToNode => "a claim of a cluster-wide Network is not tied to its pod's node",
        _ => "something else was stored differently: see the agent's log",
    }
}

#[cfg(test)]
mod tests {
    use netclaim_api::published::{Amounts, Facts, device};

    use super::*;

    #[test]
    fn a_server_with_all_features_gets_no_note() {
        assert_eq!(note(&ServerFeatures::default()), None);
    }

    #[test]
    fn a_note_names_each_gate_once_with_its_consequence_and_fits() {
        let note = note(&DroppedField::GATED.into_iter().collect()).expect("a note");
        for field in DroppedField::GATED {
            let gate = field.gate().expect("a gate");
            assert_eq!(note.matches(gate).count(), 1, "{note}");
        }
        assert!(note.len() <= 1024, "{} bytes", note.len());
    }

    #[test]
    fn a_note_about_missing_counters_names_the_version_to_upgrade_to() {
        let version = "v1.36.6".parse().expect("a version");
        let note = note(&ServerFeatures::default().of(version)).expect("a note");
        for part in ["scheduler of Kubernetes 1.36.6", "issue 138917", "upgrade to 1.37.0"] {
            assert!(note.contains(part), "{note}");
        }
    }

    #[test]
    fn a_shared_device_has_a_counted_capacity_where_the_scheduler_walks_over_shares() {
        let devices = [("macvlan-eth1", true), ("nic-eth2", false)].map(|(name, is_shared)| {
            device(name.to_owned(), Facts::default(), Amounts::default(), is_shared)
        });
        let pool = Pool {
            name: "n".into(),
            placement: netclaim_slices::Placement::Node("n".into()),
            owner: None,
            devices: devices.into(),
            counters: Vec::new(),
        };
        let on = |version: &str| {
            let server = ServerFeatures::default().of(version.parse().expect("a version"));
            let devices = fitted(pool.clone(), &server).devices.into_iter();
            devices.map(|device| device.capacity.iter().flatten().count()).collect::<Vec<_>>()
        };
        assert_eq!([on("v1.36.6"), on("v1.37.1"), on("v1.38.0")], [[0, 0], [1, 0], [0, 0]]);
    }

    #[test]
    fn networks_rank_before_bare_links() {
        let of = |network: &str| {
            let facts = Facts { network: network.into(), ..Facts::default() };
            rank(&device("d".into(), facts, Amounts::default(), true))
        };
        assert!(of("storage") < of(""));
    }
}
