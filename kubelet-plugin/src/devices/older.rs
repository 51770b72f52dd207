//! Which pods run an older configuration of their ClaimNetwork, for its status. Pure.
//!
//! An attachment stays as it was made, also when its ClaimNetwork changes. The slices of the node say so in
//! an annotation, which nothing but such a change brings about.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use netclaim_api::NetworkName;
use netclaim_api::configuration::{Fingerprint, OLDER_CONFIGURATION, OlderPods};
use netclaim_api::device::DeviceName;
use netclaim_driver::attach::Phase;
use tokio::time::Instant;

use super::holdings::Kind;
use crate::inventory::Inventory;
use crate::pods::owner::PodState;

/// Pods are made again one after another, and each write of a slice has the scheduler look at all pending
/// pods: this much time is between two writes.
const INTERVAL: Duration = Duration::from_secs(15);

/// Compares attachments with the ClaimNetworks of a node.
pub(super) struct Comparison<'a> {
    inventory: &'a Inventory,
    /// Fingerprints of the ClaimNetworks that attachments are of.
    today: BTreeMap<NetworkName, Option<Fingerprint>>,
    older: BTreeMap<NetworkName, BTreeSet<String>>,
}

impl<'a> Comparison<'a> {
    pub(super) fn with(inventory: &'a Inventory) -> Self {
        Self { inventory, today: BTreeMap::new(), older: BTreeMap::new() }
    }

    /// Whether attachments of this kind have an older configuration. As long as no kind has, it need not be
    /// looked which pods do.
    pub(super) fn has_older(&mut self, kind: &Kind) -> bool {
        kind.made_by().is_some_and(|(network, made_by)| self.is_older(network, made_by))
    }

    fn is_older(&mut self, network: &NetworkName, made_by: &Fingerprint) -> bool {
        let of_today = || self.inventory.networks.get(network).map(Fingerprint::of);
        let today = self.today.entry(network.clone()).or_insert_with(of_today);
        today.as_ref().is_some_and(|today| made_by.is_older_than(today))
    }

    /// Takes in the attachments of a pod. What is being detached counts no more.
    pub(super) fn add(&mut self, state: &PodState) {
        for record in state.attachments() {
            let owner = &record.plan.owner;
            let Some(made_by) = &owner.configuration else { continue };
            let Ok(DeviceName::Network(network)) = owner.device.device.parse() else { continue };
            if matches!(record.phase, Phase::Deleting { .. }) {
                continue;
            }
            if self.is_older(&network, made_by) {
                self.older.entry(network).or_default().insert(owner.pod.uid.clone());
            }
        }
    }

    /// Returns the annotation of the slices; `None` if there is nothing to say.
    pub(super) fn annotation(&self) -> Option<String> {
        let of = |(network, uids): (&NetworkName, &BTreeSet<String>)| {
            (network.clone(), OlderPods::of(uids.iter().map(String::as_str)))
        };
        let older: BTreeMap<NetworkName, OlderPods> = self.older.iter().map(of).collect();
        (!older.is_empty()).then(|| serde_json::to_string(&older).ok()).flatten()
    }
}

/// The annotation that is published.
#[derive(Debug, Default)]
pub(super) struct Older {
    /// Whether there has been a look. The first one publishes what it finds: slices of an agent before may
    /// say the same, and would lose it until the next look.
    has_looked: bool,
    published: Option<String>,
    /// When it changed last.
    since: Option<Instant>,
    /// When a later change can be published.
    next: Option<Instant>,
}

impl Older {
    /// Takes in what the annotation would be `now`. Returns the annotation to publish: a change waits for an
    /// interval at most, and until the one before it has stood for one. `random` is from 0 to 1: all nodes
    /// see the change of a ClaimNetwork at once.
    pub(super) fn update(
        &mut self,
        found: Option<String>,
        now: Instant,
        random: impl FnOnce() -> f64,
    ) -> Option<(String, String)> {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.published = found;
        } else if found == self.published {
            self.next = None;
        } else {
            let earliest = self.since.map_or(now, |since| (since + INTERVAL).max(now));
            let due = *self.next.get_or_insert_with(|| earliest + INTERVAL.mul_f64(random()));
            if due <= now {
                (self.published, self.since, self.next) = (found, Some(now), None);
            }
        }
        Some((OLDER_CONFIGURATION.to_owned(), self.published.clone()?))
    }

    /// Returns when to look again, if a change waits.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{attached, sandbox};
    use crate::pods::owner::Record;

    fn inventory(cni: Value) -> Inventory {
        let spec = serde_json::from_value(json!({"cni": cni})).expect("a spec");
        Inventory { networks: [("storage".parse().expect("a name"), spec)].into(), ..Inventory::default() }
    }

    /// The pod of an attachment that was made while the ClaimNetwork had this `cni`.
    fn pod(uid: &str, cni: Option<Value>) -> PodState {
        let mut record: Record = attached("c", "s");
        let owner = &mut Arc::make_mut(&mut record.plan).owner;
        owner.device.device = "net-storage".to_owned();
        owner.pod.uid = uid.to_owned();
        owner.configuration =
            cni.and_then(|cni| inventory(cni).networks.values().next().map(Fingerprint::of));
        PodState { records: vec![record], ..PodState::default() }
    }

    fn annotation(inventory: &Inventory, pods: &[PodState]) -> Option<String> {
        let mut comparison = Comparison::with(inventory);
        pods.iter().for_each(|pod| comparison.add(pod));
        let annotation = comparison.annotation();
        let mut kinds = pods.iter().flat_map(|pod| pod.attachments()).map(|record| Kind::of(&record.plan));
        assert!(kinds.any(|kind| comparison.has_older(&kind)) || annotation.is_none(), "it is looked");
        annotation
    }

    #[test]
    fn pods_of_an_older_configuration_are_counted_and_named_by_their_uids() {
        let (old, new) = (json!({"plugins": [{"type": "a"}]}), json!({"plugins": [{"type": "b"}]}));
        let pods = [
            pod("0a0a0a0a-1", Some(old.clone())),
            pod("0b0b0b0b-1", Some(new.clone())),
            pod("0c0c0c0c-1", Some(old.clone())),
        ];
        let said = r#"{"storage":{"pods":2,"uids":["0a0a0a0a","0c0c0c0c"]}}"#;
        assert_eq!(annotation(&inventory(new.clone()), &pods).as_deref(), Some(said));
        assert_eq!(annotation(&inventory(new.clone()), &pods[1..2]), None, "nothing is written");
        assert_eq!(annotation(&Inventory::default(), &pods), None, "the ClaimNetwork is gone");
        let changed_back = r#"{"storage":{"pods":1,"uids":["0b0b0b0b"]}}"#;
        assert_eq!(annotation(&inventory(old), &pods).as_deref(), Some(changed_back));
        assert_eq!(annotation(&inventory(new), &[pod("p", None)]), None, "an earlier agent made it");
    }

    #[test]
    fn a_pod_that_is_being_detached_counts_no_more() {
        let old = json!({"plugins": [{"type": "a"}]});
        let mut ending = pod("p", Some(old));
        ending.records[0].phase = Phase::Deleting { sandbox: sandbox("s"), result: None };
        assert_eq!(annotation(&inventory(json!({})), &[ending]), None);
    }

    #[test]
    fn an_agent_that_starts_publishes_at_once_what_the_one_before_it_has_published() {
        let (mut older, start) = (Older::default(), Instant::now());
        let annotation = older.update(Some("3".to_owned()), start, || 1.0);
        assert_eq!(annotation.map(|(_, text)| text).as_deref(), Some("3"));
        assert_eq!(older.next(), None);
    }

    #[test]
    fn pods_that_go_one_after_another_are_written_in_one() {
        let (mut older, start) = (Older::default(), Instant::now());
        let mut update = |found: Option<&str>, seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            let annotation = older.update(found.map(str::to_owned), now, || 0.2);
            (annotation.map(|(_, text)| text), older.next().map(|next| (next - start).as_secs()))
        };
        let says = |text: &str| Some(text.to_owned());
        assert_eq!(update(None, 0), (None, None));
        assert_eq!(update(Some("3"), 1), (None, Some(4)), "other nodes write at other times");
        assert_eq!(update(Some("3"), 4), (says("3"), None));
        assert_eq!(update(Some("2"), 5), (says("3"), Some(22)));
        assert_eq!(update(Some("1"), 9), (says("3"), Some(22)));
        assert_eq!(update(Some("1"), 22), (says("1"), None));
        assert_eq!(update(None, 25), (says("1"), Some(40)));
        assert_eq!(update(Some("1"), 26), (says("1"), None), "it is as before");
        assert_eq!(update(None, 90), (says("1"), Some(93)));
        assert_eq!(update(None, 93), (None, None));
    }
}
