//! What the API server does not store and the scheduler cannot do, and what that means for the node. Pure.
//!
//! See `docs/reference/kubernetes-versions.md`.

use k8s_openapi::api::resource::v1::Device;
use netclaim_api::published;
use netclaim_slices::{KubernetesVersion, Pool, ServerFeatures};

/// The oldest version that has by default what netclaim needs.
const OLDEST: KubernetesVersion = KubernetesVersion::new(1, 36, 0);

/// Returns the pool as this server's scheduler can handle it.
///
/// The scheduler of 1.37 walks over all shares of the cluster for each free shared device, unless there is a
/// record of consumed capacity. A device that counts nothing gets a capacity for that.
pub(super) fn fitted(mut pool: Pool, server: &ServerFeatures) -> Pool {
    let is_shared = |device: &&mut Device| device.allow_multiple_allocations == Some(true);
    if server.walks_shares() {
        pool.devices.iter_mut().filter(is_shared).for_each(published::record_claims);
    }
    pool
}

/// Returns why nothing can be published; `None` when something can.
pub(super) fn obstacle(server: &ServerFeatures) -> Option<String> {
    if let Some(version) = server.version().filter(|version| *version < OLDEST) {
        return Some(format!("the API server is of Kubernetes {version}: netclaim needs {OLDEST} or newer"));
    }
    let off: Vec<&str> = server.gates_off().into_iter().collect();
    (!off.is_empty()).then(|| {
        format!(
            "the API server does not store what devices need: switch on its feature gates {}, which are on by default",
            off.join(", ")
        )
    })
}

/// Returns what is left out of what is published and why; `None` when nothing is.
pub(super) fn note(server: &ServerFeatures) -> Option<String> {
    let version = server.without_counters()?;
    Some(format!(
        "no counters are published: with them the scheduler of Kubernetes {version} would look at all nodes for each node, for \
         every pod with a claim of any driver (kubernetes issue 138917); of devices that exclude each other on one link, only the \
         first ClaimNetwork's kind is published, or the link itself where there is no ClaimNetwork; upgrade to {} or newer",
        KubernetesVersion::FIRST_TO_COUNT
    ))
}

#[cfg(test)]
mod tests {
    use netclaim_api::published::{Amounts, Facts, device};
    use netclaim_slices::DroppedField;

    use super::*;

    #[test]
    fn a_server_with_all_features_gets_no_note() {
        assert_eq!(note(&ServerFeatures::default()), None);
    }

    #[test]
    fn an_old_server_and_one_without_a_feature_gate_are_named() {
        let of = |version: &str| obstacle(&ServerFeatures::default().of(version.parse().expect("a version")));
        assert_eq!((of("v1.36.0"), of("v1.37.1")), (None, None));
        let old = of("v1.35.9").expect("too old");
        assert_eq!(old, "the API server is of Kubernetes 1.35.9: netclaim needs 1.36.0 or newer");
        assert_eq!(
            obstacle(&[DroppedField::Other].into_iter().collect()),
            None,
            "a webhook may change what is sent"
        );
        let off = obstacle(&[DroppedField::Taints, DroppedField::RequestPolicy].into_iter().collect())
            .expect("off");
        assert!(off.contains("feature gates DRAConsumableCapacity, DRADeviceTaints,"), "{off}");
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
        let pool = Pool::new("n", netclaim_slices::Placement::Node("n".into()), devices.into());
        let on = |version: &str| {
            let server = ServerFeatures::default().of(version.parse().expect("a version"));
            let devices = fitted(pool.clone(), &server).devices.into_iter();
            devices.map(|device| device.capacity.iter().flatten().count()).collect::<Vec<_>>()
        };
        assert_eq!([on("v1.36.6"), on("v1.37.1"), on("v1.38.0")], [[0, 0], [1, 0], [0, 0]]);
    }
}
