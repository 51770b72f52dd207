//! Detects fields that the API server does not store, and adopts its version instead of sending the same
//! again.
//!
//! A server with a feature gate off silently drops the fields of that gate. If an answer differs from what
//! was sent, for whatever reason, the answer is adopted: it counts as published until something else is
//! desired.
//!
//! A probe is the dry run of a slice with every gated field. It shows what the server stores before anything
//! is published, and again after the watch failed or when the server has another version.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Counter, Device, DeviceCapacity,
    DeviceCounterConsumption, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    canonical::canonical,
    config::{PublisherConfig, Scope},
    kubernetes_version::KubernetesVersion,
};

/// The name of everything in a probe.
const PROBE: &str = "probe";

/// A field that this API server does not store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DroppedField {
    /// Taints of devices.
    Taints,
    /// Counters that devices consume. Without them, the scheduler does not know which devices exclude each
    /// other.
    ConsumesCounters,
    /// Counter sets.
    SharedCounters,
    /// Devices that several claims can share.
    AllowMultipleAllocations,
    /// How requests for a capacity are rounded and defaulted.
    RequestPolicy,
    /// Devices that pin their claim to a node.
    BindsToNode,
    /// Something else came back differently: another gate, or an admission webhook.
    Other,
}

impl DroppedField {
    /// All fields that depend on a feature gate.
    pub const GATED: [Self; 6] = [
        Self::AllowMultipleAllocations,
        Self::RequestPolicy,
        Self::ConsumesCounters,
        Self::SharedCounters,
        Self::Taints,
        Self::BindsToNode,
    ];

    /// Returns the path of the field in the slice.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Taints => "spec.devices[].taints",
            Self::ConsumesCounters => "spec.devices[].consumesCounters",
            Self::SharedCounters => "spec.sharedCounters",
            Self::AllowMultipleAllocations => "spec.devices[].allowMultipleAllocations",
            Self::RequestPolicy => "spec.devices[].capacity[].requestPolicy",
            Self::BindsToNode => "spec.devices[].bindsToNode",
            Self::Other => "spec",
        }
    }

    /// Returns the feature gate with which the API server stores the field, if it is known.
    #[must_use]
    pub fn gate(self) -> Option<&'static str> {
        match self {
            Self::Taints => Some("DRADeviceTaints"),
            Self::ConsumesCounters | Self::SharedCounters => Some("DRAPartitionableDevices"),
            Self::AllowMultipleAllocations | Self::RequestPolicy => Some("DRAConsumableCapacity"),
            Self::BindsToNode => Some("DRADeviceBindingConditions"),
            Self::Other => None,
        }
    }
}

/// Which fields of slices an API server stores, and what its scheduler can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerFeatures {
    dropped: BTreeSet<DroppedField>,
    version: Option<KubernetesVersion>,
}

impl ServerFeatures {
    /// Returns these features on a server of this version.
    #[must_use]
    pub fn of(self, version: KubernetesVersion) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Returns the version of the API server; `None` if it is unknown.
    #[must_use]
    pub fn version(&self) -> Option<KubernetesVersion> {
        self.version
    }

    /// Returns the version of the API server, if its scheduler cannot handle counters. No API reports the
    /// version of the scheduler itself.
    #[must_use]
    pub fn without_counters(&self) -> Option<KubernetesVersion> {
        self.version.filter(|version| *version < KubernetesVersion::FIRST_TO_COUNT)
    }

    /// Returns the feature gates that are off.
    #[must_use]
    pub fn gates_off(&self) -> BTreeSet<&'static str> {
        self.dropped.iter().filter_map(|field| field.gate()).collect()
    }

    /// Whether the scheduler walks over all shares of the cluster for each shared device without a record of
    /// consumed capacity.
    #[must_use]
    pub fn walks_shares(&self) -> bool {
        let walks = KubernetesVersion::FIRST_TO_COUNT..KubernetesVersion::FIRST_TO_LOOK_UP_SHARES;
        self.version.is_some_and(|version| walks.contains(&version))
    }
}

impl FromIterator<DroppedField> for ServerFeatures {
    /// Makes the features of a server that drops these fields.
    fn from_iter<T: IntoIterator<Item = DroppedField>>(dropped: T) -> Self {
        Self { dropped: dropped.into_iter().collect(), ..Self::default() }
    }
}

/// Returns a slice with every gated field, to be sent as a dry run. Counter sets are not allowed beside
/// devices since 1.35; they have the same gate as the counters of devices.
pub(crate) fn probe(config: &PublisherConfig) -> ResourceSlice {
    let one = || Quantity("1".to_owned());
    let range = CapacityRequestPolicyRange { min: one(), ..Default::default() };
    let policy =
        CapacityRequestPolicy { default: Some(one()), valid_range: Some(range), ..Default::default() };
    let capacity = DeviceCapacity { value: one(), request_policy: Some(policy) };
    let counters = [(PROBE.to_owned(), Counter { value: one() })].into();
    let device = Device {
        name: PROBE.to_owned(),
        allow_multiple_allocations: Some(true),
        binds_to_node: Some(true),
        capacity: Some([(PROBE.to_owned(), capacity)].into()),
        consumes_counters: Some(vec![DeviceCounterConsumption {
            counter_set: PROBE.to_owned(),
            counters,
            ..Default::default()
        }]),
        taints: Some(vec![DeviceTaint {
            key: PROBE.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Default::default()
        }]),
        ..Device::default()
    };
    let (pool, node_name) = match &config.scope {
        // An admission policy may allow a node to write only the pool of its own name.
        Scope::Node(node) => (node.clone(), Some(node.clone())),
        Scope::Cluster => (PROBE.to_owned(), None),
    };
    ResourceSlice {
        // A dry run stores nothing, so probes cannot collide.
        metadata: ObjectMeta { name: Some(format!("{}-{PROBE}", config.driver)), ..ObjectMeta::default() },
        spec: ResourceSliceSpec {
            driver: config.driver.clone(),
            pool: ResourcePool { name: pool, generation: 1, resource_slice_count: 1 },
            all_nodes: node_name.is_none().then_some(true),
            node_name,
            devices: Some(vec![device]),
            ..ResourceSliceSpec::default()
        },
    }
}

/// Counts each gated field in a canonical spec.
fn occurrences(spec: &ResourceSliceSpec) -> BTreeMap<DroppedField, usize> {
    let mut found = BTreeMap::new();
    let mut count = |field, n| *found.entry(field).or_insert(0) += n;
    count(DroppedField::SharedCounters, spec.shared_counters.as_ref().map_or(0, Vec::len));
    for device in spec.devices.iter().flatten() {
        count(DroppedField::Taints, device.taints.as_ref().map_or(0, Vec::len));
        count(DroppedField::ConsumesCounters, device.consumes_counters.as_ref().map_or(0, Vec::len));
        count(
            DroppedField::AllowMultipleAllocations,
            device.allow_multiple_allocations.map_or(0, usize::from),
        );
        count(DroppedField::BindsToNode, device.binds_to_node.map_or(0, usize::from));
        let policies = device.capacity.iter().flatten().filter(|(_, c)| c.request_policy.is_some());
        count(DroppedField::RequestPolicy, policies.count());
    }
    found
}

/// Returns the gated fields of a canonical spec that came back incomplete, and those that came back whole.
fn compared(
    sent: &ResourceSliceSpec,
    answer: &ResourceSliceSpec,
) -> (BTreeSet<DroppedField>, BTreeSet<DroppedField>) {
    let stored = occurrences(answer);
    let sent = occurrences(sent).into_iter().filter(|(_, sent)| *sent > 0);
    let (kept, lost): (Vec<_>, Vec<_>) =
        sent.partition(|(field, sent)| stored.get(field).is_some_and(|stored| stored >= sent));
    let fields = |found: Vec<(DroppedField, usize)>| found.into_iter().map(|(field, _)| field).collect();
    (fields(lost), fields(kept))
}

/// The differences between what was sent and what the server stored.
#[derive(Debug, Default)]
pub(crate) struct Adopted {
    /// By slice: what was sent, and what came back instead; canonical.
    answers: BTreeMap<String, (ResourceSliceSpec, ResourceSliceSpec)>,
    server: ServerFeatures,
}

impl Adopted {
    /// Returns what the server stores, as far as is known.
    pub(crate) fn features(&self) -> ServerFeatures {
        self.server.clone()
    }

    /// Whether the slice `stored` is the best that the server stores for `desired`.
    pub(crate) fn equal(&self, name: &str, desired: &ResourceSliceSpec, stored: &ResourceSliceSpec) -> bool {
        let (desired, stored) = (canonical(desired), canonical(stored));
        desired == stored
            || self.answers.get(name).is_some_and(|(sent, answer)| *sent == desired && *answer == stored)
    }

    /// Takes in the server's answer to a write. Returns `true` if the server now stores a field that it
    /// dropped before, so that all slices must be planned again.
    pub(crate) fn record(&mut self, name: &str, sent: &ResourceSliceSpec, answer: &ResourceSlice) -> bool {
        let (sent, answer) = (canonical(sent), canonical(&answer.spec));
        let (mut lost, kept) = compared(&sent, &answer);
        if sent == answer {
            self.answers.remove(name);
        } else {
            if lost.is_empty() {
                lost.insert(DroppedField::Other);
            }
            self.answers.insert(name.to_owned(), (sent, answer));
        }
        self.learn(lost, &kept)
    }

    /// Returns the version of the server, if it is known.
    pub(crate) fn version(&self) -> Option<KubernetesVersion> {
        self.server.version
    }

    /// Sets the version of the server; `None` if it is unknown, when the scheduler is assumed to handle
    /// counters.
    pub(crate) fn set_version(&mut self, version: Option<KubernetesVersion>) {
        self.server.version = version;
    }

    /// Takes in the server's answer to a [`probe`]. Returns the same as [`Self::record`].
    pub(crate) fn probed(&mut self, sent: &ResourceSliceSpec, answer: &ResourceSlice) -> bool {
        let (mut lost, mut kept) = compared(&canonical(sent), &canonical(&answer.spec));
        let counters = if lost.contains(&DroppedField::ConsumesCounters) { &mut lost } else { &mut kept };
        counters.insert(DroppedField::SharedCounters);
        self.learn(lost, &kept)
    }

    fn learn(&mut self, lost: BTreeSet<DroppedField>, kept: &BTreeSet<DroppedField>) -> bool {
        let dropped = &mut self.server.dropped;
        for field in lost.difference(dropped) {
            let (field, gate) = (field.path(), field.gate().unwrap_or("unknown"));
            tracing::warn!(field, gate, "the API server does not store a field as sent");
        }
        let back: Vec<_> = dropped.intersection(kept).copied().collect();
        dropped.extend(lost);
        for field in &back {
            tracing::info!(field = field.path(), "the API server stores a field that it dropped before");
            dropped.remove(field);
        }
        if !back.is_empty() {
            self.answers.clear();
        }
        if self.answers.is_empty() {
            dropped.remove(&DroppedField::Other);
        }
        !back.is_empty()
    }

    /// Forgets a deleted slice.
    pub(crate) fn forget(&mut self, name: &str) {
        self.answers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(device: Value) -> ResourceSliceSpec {
        let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
        serde_json::from_value(json!({"driver": "d", "pool": pool, "devices": [device]})).unwrap()
    }

    fn answer(device: Value) -> ResourceSlice {
        ResourceSlice { spec: spec(device), ..ResourceSlice::default() }
    }

    fn full() -> Value {
        json!({"name": "a", "allowMultipleAllocations": true, "bindsToNode": true,
            "capacity": {"x": {"value": "1", "requestPolicy": {"default": "0"}}},
            "consumesCounters": [{"counterSet": "s", "counters": {}}],
            "taints": [{"key": "k", "effect": "NoSchedule"}]})
    }

    #[test]
    fn every_dropped_field_is_found_and_the_answer_counts_as_published() {
        let mut adopted = Adopted::default();
        let bare = json!({"name": "a", "capacity": {"x": {"value": "1"}}});
        assert!(!adopted.equal("s", &spec(full()), &spec(bare.clone())));
        adopted.record("s", &spec(full()), &answer(bare.clone()));
        use DroppedField::*;
        let dropped = [Taints, ConsumesCounters, AllowMultipleAllocations, RequestPolicy, BindsToNode];
        assert_eq!(adopted.features(), dropped.into_iter().collect());
        assert!(adopted.equal("s", &spec(full()), &spec(bare.clone())));
        assert!(
            !adopted.equal("s", &spec(full()), &spec(json!({"name": "b"}))),
            "a foreign edit still counts"
        );
        assert!(!adopted.equal("s", &spec(json!({"name": "b"})), &spec(bare)), "so does a new desired spec");
    }

    #[test]
    fn an_unknown_alteration_is_adopted_too() {
        let mut adopted = Adopted::default();
        adopted.record("s", &spec(json!({"name": "a"})), &answer(json!({"name": "b"})));
        assert_eq!(adopted.features(), [DroppedField::Other].into_iter().collect());
        assert!(adopted.equal("s", &spec(json!({"name": "a"})), &spec(json!({"name": "b"}))));
    }

    #[test]
    fn a_field_that_is_stored_again_clears_all_answers() {
        let mut adopted = Adopted::default();
        let tainted = json!({"name": "a", "taints": [{"key": "k", "effect": "NoSchedule"}]});
        let bare = json!({"name": "a"});
        assert!(!adopted.record("s1", &spec(tainted.clone()), &answer(bare.clone())));
        assert!(adopted.record("s2", &spec(tainted.clone()), &answer(tainted.clone())));
        assert_eq!(adopted.features(), ServerFeatures::default());
        assert!(!adopted.equal("s1", &spec(tainted), &spec(bare)));
    }

    #[test]
    fn a_version_shows_what_the_scheduler_handles() {
        let mut adopted = Adopted::default();
        assert!(adopted.features().without_counters().is_none() && !adopted.features().walks_shares());
        for (version, walks) in [("v1.36.6", false), ("v1.37.0", true), ("v1.37.9", true), ("v1.38.0", false)]
        {
            adopted.set_version(version.parse().ok());
            assert_eq!(adopted.features().walks_shares(), walks, "{version}");
        }
        adopted.set_version(None);
        for old in ["v1.36.0", "v1.36.2", "v1.36.99"].map(|text| text.parse().unwrap()) {
            adopted.set_version(Some(old));
            assert_eq!(adopted.features().without_counters(), Some(old));
        }
        adopted.set_version("v1.37.0".parse().ok());
        assert_eq!(adopted.features().without_counters(), None, "upgraded");
    }

    #[test]
    fn a_probe_has_every_gated_field_and_its_answer_decides() {
        let config = PublisherConfig::new("netclaim.dev", "agent", Scope::Node("n1".into())).unwrap();
        let probe = probe(&config);
        let mut bare = probe.clone();
        bare.spec.devices = Some(vec![Device {
            name: PROBE.into(),
            capacity: Some(Default::default()),
            ..Device::default()
        }]);
        let mut adopted = Adopted::default();
        assert!(!adopted.probed(&probe.spec, &bare));
        assert_eq!(adopted.features(), DroppedField::GATED.into_iter().collect());
        assert!(adopted.probed(&probe.spec, &probe), "an upgraded server");
        assert_eq!(adopted.features(), ServerFeatures::default());
    }
}
