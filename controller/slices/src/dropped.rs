//! Notices fields that the API server did not store, and accepts its version lest it be written again and again.
//!
//! A server with a feature gate off drops the fields of that gate without a word. Whatever the reason for a difference
//! between what was sent and what came back, sending the same again is futile: the answer is remembered, and counts
//! as published until something else is wanted. After a restart of the publisher such slices are sent once more, which
//! is how it learns that the server has been upgraded.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};

use crate::canonical::canonical;

/// A field that this API server does not store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DroppedField {
    /// Taints of devices.
    Taints,
    /// Counters that devices consume: what excludes each other is no longer known to the scheduler.
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
    /// The field in the slice.
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

    /// The feature gate of the API server that makes it store the field; `None` when that is not known.
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

/// How often each gated field occurs in a canonical spec.
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

/// What is known about the differences between what was sent and what the server stored.
#[derive(Debug, Default)]
pub(crate) struct Adopted {
    /// By slice: what was sent, and what came back instead; canonical.
    answers: BTreeMap<String, (ResourceSliceSpec, ResourceSliceSpec)>,
    dropped: BTreeSet<DroppedField>,
}

impl Adopted {
    /// The fields that the server does not store.
    pub(crate) fn dropped(&self) -> &BTreeSet<DroppedField> {
        &self.dropped
    }

    /// Whether the slice, stored as `stored`, is as published as it can be when `wanted` is wanted.
    pub(crate) fn equal(&self, name: &str, wanted: &ResourceSliceSpec, stored: &ResourceSliceSpec) -> bool {
        let (wanted, stored) = (canonical(wanted), canonical(stored));
        wanted == stored
            || self.answers.get(name).is_some_and(|(sent, answer)| *sent == wanted && *answer == stored)
    }

    /// Remembers the server's answer to a write. Returns true when the server now stores a field that it dropped
    /// before, so that all slices have to be looked at again.
    pub(crate) fn record(&mut self, name: &str, sent: &ResourceSliceSpec, answer: &ResourceSlice) -> bool {
        let (sent, answer) = (canonical(sent), canonical(&answer.spec));
        let stored = occurrences(&answer);
        let mut lost = BTreeSet::new();
        let mut kept = BTreeSet::new();
        for (field, sent) in occurrences(&sent).into_iter().filter(|(_, sent)| *sent > 0) {
            let stored = stored.get(&field).copied().unwrap_or(0);
            if stored < sent {
                lost.insert(field)
            } else {
                kept.insert(field)
            };
        }
        if sent == answer {
            self.answers.remove(name);
        } else {
            if lost.is_empty() {
                lost.insert(DroppedField::Other);
            }
            self.answers.insert(name.to_owned(), (sent, answer));
        }
        for field in lost.difference(&self.dropped) {
            let (field, gate) = (field.path(), field.gate().unwrap_or("unknown"));
            tracing::warn!(slice = name, field, gate, "the API server does not store a field as sent");
        }
        let back: Vec<_> = self.dropped.intersection(&kept).copied().collect();
        self.dropped.extend(lost);
        for field in &back {
            tracing::info!(field = field.path(), "the API server stores a field that it dropped before");
            self.dropped.remove(field);
        }
        if !back.is_empty() {
            self.answers.clear();
        }
        if self.answers.is_empty() {
            self.dropped.remove(&DroppedField::Other);
        }
        !back.is_empty()
    }

    /// The slice is gone, and with it what was remembered.
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
    fn every_dropped_field_is_told_and_the_answer_counts_as_published() {
        let mut adopted = Adopted::default();
        let bare = json!({"name": "a", "capacity": {"x": {"value": "1"}}});
        assert!(!adopted.equal("s", &spec(full()), &spec(bare.clone())));
        adopted.record("s", &spec(full()), &answer(bare.clone()));
        use DroppedField::*;
        let dropped = [Taints, ConsumesCounters, AllowMultipleAllocations, RequestPolicy, BindsToNode].into();
        assert_eq!(adopted.dropped(), &dropped);
        assert!(adopted.equal("s", &spec(full()), &spec(bare.clone())));
        assert!(
            !adopted.equal("s", &spec(full()), &spec(json!({"name": "b"}))),
            "a foreign edit still counts"
        );
        assert!(!adopted.equal("s", &spec(json!({"name": "b"})), &spec(bare)), "so does a new wish");
    }

    #[test]
    fn an_unknown_alteration_is_adopted_too() {
        let mut adopted = Adopted::default();
        adopted.record("s", &spec(json!({"name": "a"})), &answer(json!({"name": "b"})));
        assert_eq!(adopted.dropped(), &[DroppedField::Other].into());
        assert!(adopted.equal("s", &spec(json!({"name": "a"})), &spec(json!({"name": "b"}))));
    }

    #[test]
    fn a_field_that_comes_back_makes_everything_due_again() {
        let mut adopted = Adopted::default();
        let tainted = json!({"name": "a", "taints": [{"key": "k", "effect": "NoSchedule"}]});
        let bare = json!({"name": "a"});
        assert!(!adopted.record("s1", &spec(tainted.clone()), &answer(bare.clone())));
        assert!(adopted.record("s2", &spec(tainted.clone()), &answer(tainted.clone())));
        assert!(adopted.dropped().is_empty());
        assert!(!adopted.equal("s1", &spec(tainted), &spec(bare)));
    }
}
