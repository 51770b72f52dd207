//! What this node's devices lack because the API server does not store it or its scheduler does not go by it, told by metrics
//! and by an event on the Node.
//!
//! Kubernetes 1.34 and 1.35 have the feature gates off by default that devices for many pods need; see
//! `docs/reference/kubernetes-versions.md`.

use std::collections::BTreeSet;
use std::sync::Arc;

use backon::{ExponentialBuilder, Retryable as _};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::Device;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use netclaim_api::{attributes, shorten};
use netclaim_slices::{DroppedField, KubernetesVersion, ServerFeatures};

use crate::process::metrics::Metrics;

/// The longest note that an event may have, in bytes (`events.k8s.io/v1`).
const MAX_NOTE: usize = 1024;

/// Which of the devices that exclude each other is published where the scheduler cannot know that they do: Networks, for
/// somebody has asked for them, before bare links.
pub fn rank(device: &Device) -> impl Ord + use<> {
    let network = device.attributes.as_ref().and_then(|attributes| attributes.get(attributes::NETWORK));
    network.and_then(|network| network.string.as_deref()).is_none_or(str::is_empty)
}

/// Tells what the API server lacks.
pub struct Teller {
    /// The client for events.
    pub client: kube::Client,
    /// Who says it.
    pub reporter: Reporter,
    /// The Node object.
    pub node: ObjectReference,
    /// Where it is counted.
    pub metrics: Arc<Metrics>,
}

impl Teller {
    /// Tells it once: the metrics at once, the event when the API server takes it.
    pub fn tell(&self, server: &ServerFeatures) {
        for field in DroppedField::GATED.into_iter().chain([DroppedField::Other]) {
            self.metrics.field_dropped(field.path(), !server.stores(field));
        }
        self.metrics.without_counters.set(server.without_counters().is_some().into());
        let Some(note) = note(server) else { return };
        tracing::warn!(missing = note, "devices are published with less than netclaim could do");
        self.warn("ServerLacksFeatures", note);
    }

    /// Tells which devices are not published, and why.
    pub fn left_out(&self, faults: &BTreeSet<String>) {
        let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
        self.warn("DeviceLeftOut", format!("not published: {}", faults.join("; ")));
    }

    fn warn(&self, reason: &'static str, note: String) {
        warn(self.client.clone(), self.reporter.clone(), self.node.clone(), reason, note);
    }
}

/// Writes a warning about the node's devices as an event on the Node, when the API server takes it.
pub fn warn(
    client: kube::Client,
    reporter: Reporter,
    node: ObjectReference,
    reason: &'static str,
    note: String,
) {
    let event = Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(shorten(note, MAX_NOTE)),
        action: "Publish".to_owned(),
        secondary: None,
    };
    // A new recorder each time: one that remembers the last event counts it up instead of telling the new note.
    let recorder = Recorder::new(client, reporter);
    tokio::spawn(async move {
        let publish = || recorder.publish(&event, &node);
        if let Err(error) = publish.retry(ExponentialBuilder::new().with_jitter()).await {
            tracing::warn!(reason, %error, "an event on the Node was lost");
        }
    });
}

/// What is missing or wrong and what that means; `None` when nothing is.
fn note(server: &ServerFeatures) -> Option<String> {
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
    fn a_server_with_everything_is_not_worth_a_word() {
        assert_eq!(note(&ServerFeatures::default()), None);
    }

    #[test]
    fn every_gate_is_named_once_with_what_it_means_in_a_note_that_fits() {
        let note = note(&DroppedField::GATED.into_iter().collect()).expect("a note");
        for field in DroppedField::GATED {
            let gate = field.gate().expect("a gate");
            assert_eq!(note.matches(gate).count(), 1, "{note}");
        }
        assert!(note.len() <= 1024, "{} bytes", note.len());
    }

    #[test]
    fn a_scheduler_that_gets_no_counters_is_told_with_the_way_out() {
        let version = "v1.36.6".parse().expect("a version");
        let note = note(&ServerFeatures::default().of(version)).expect("a note");
        for part in ["scheduler of Kubernetes 1.36.6", "issue 138917", "upgrade to 1.37.0"] {
            assert!(note.contains(part), "{note}");
        }
    }

    #[test]
    fn networks_come_before_bare_links() {
        let of = |network: &str| {
            let facts = Facts { network: network.into(), ..Facts::default() };
            rank(&device("d".into(), facts, Amounts::default(), true))
        };
        assert!(of("storage") < of(""));
    }
}
