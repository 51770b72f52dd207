//! Which nodes without an agent still have the labels of ClaimNetworks of scope `Cluster`. Pure.
//!
//! Agents label their own nodes, and an agent that is gone takes no label away: pods would be placed on its
//! node for ever. Its ResourceSlices say that it is gone: the kubelet deletes them 30 s after it, unless
//! another agent follows, as in an update.

use std::collections::BTreeMap;
use std::time::Duration;

use netclaim_api::labels::NETWORK_LABELS;
use tokio::time::Instant;

/// How long a node must be without slices. Agents publish them again at once when a kubelet has deleted them
/// at its start.
const GRACE: Duration = Duration::from_secs(10);

/// The longest time between two removals of labels that come back on a node without slices.
const LONGEST: Duration = Duration::from_secs(600);

/// A node without an agent that has or had such labels.
#[derive(Debug)]
struct Abandoned {
    labels: Vec<String>,
    /// When to remove them.
    due: Instant,
    /// How long to wait after the next removal.
    wait: Duration,
}

/// The nodes that agents have left with their labels.
#[derive(Debug, Default)]
pub(crate) struct AbandonedLabels(BTreeMap<String, Abandoned>);

impl AbandonedLabels {
    /// Takes in the labels of a node, `None` if it is gone, and whether it has an agent.
    pub(crate) fn see(
        &mut self,
        node: &str,
        labels: Option<&BTreeMap<String, String>>,
        has_agent: bool,
        now: Instant,
    ) {
        let Some(labels) = labels.filter(|_| !has_agent) else {
            self.0.remove(node);
            return;
        };
        let of_networks = labels.keys().filter(|label| label.starts_with(NETWORK_LABELS));
        let labels: Vec<String> = of_networks.cloned().collect();
        if let Some(known) = self.0.get_mut(node) {
            known.labels = labels;
        } else if !labels.is_empty() {
            self.0.insert(node.to_owned(), Abandoned { labels, due: now + GRACE, wait: GRACE });
        }
    }

    /// Returns the labels that are to be removed now, by node.
    pub(crate) fn due(&self, now: Instant) -> BTreeMap<String, Vec<String>> {
        let due = self.labelled().filter(|(_, abandoned)| abandoned.due <= now);
        due.map(|(node, abandoned)| (node.clone(), abandoned.labels.clone())).collect()
    }

    /// Returns when the next labels are to be removed.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.labelled().map(|(_, abandoned)| abandoned.due).min()
    }

    /// Notes that the labels of a node were removed. An agent that cannot publish would set them again: that
    /// must not go on as fast as both can write.
    pub(crate) fn removed(&mut self, node: &str, now: Instant) {
        if let Some(abandoned) = self.0.get_mut(node) {
            abandoned.wait = LONGEST.min(abandoned.wait * 2);
            abandoned.due = now + abandoned.wait;
        }
    }

    fn labelled(&self) -> impl Iterator<Item = (&String, &Abandoned)> {
        self.0.iter().filter(|(_, abandoned)| !abandoned.labels.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: &str = "network.netclaim.dev/backbone";

    fn labels(keys: &[&str]) -> BTreeMap<String, String> {
        keys.iter().map(|key| ((*key).to_owned(), "up".to_owned())).collect()
    }

    #[test]
    fn the_labels_of_a_node_go_when_it_has_been_without_an_agent_for_a_while() {
        let (mut abandoned, now) = (AbandonedLabels::default(), Instant::now());
        let both = labels(&["rack", LABEL]);
        abandoned.see("a", Some(&both), true, now);
        abandoned.see("b", Some(&labels(&["rack"])), false, now);
        assert_eq!((abandoned.due(now + LONGEST), abandoned.next()), (BTreeMap::new(), None));
        abandoned.see("a", Some(&both), false, now);
        assert_eq!((abandoned.due(now), abandoned.next()), (BTreeMap::new(), Some(now + GRACE)));
        // Other changes of the node do not restart the time.
        abandoned.see("a", Some(&both), false, now + GRACE / 2);
        assert_eq!(abandoned.due(now + GRACE), BTreeMap::from([("a".to_owned(), vec![LABEL.to_owned()])]));
    }

    #[test]
    fn an_agent_that_follows_in_time_keeps_the_labels() {
        let (mut abandoned, now) = (AbandonedLabels::default(), Instant::now());
        abandoned.see("a", Some(&labels(&[LABEL])), false, now);
        abandoned.see("a", Some(&labels(&[LABEL])), true, now + GRACE / 2);
        assert_eq!(abandoned.next(), None);
        abandoned.see("a", Some(&labels(&[LABEL])), false, now + GRACE);
        abandoned.see("a", None, false, now + GRACE);
        assert_eq!(abandoned.next(), None, "the node is gone");
    }

    #[test]
    fn labels_that_come_back_without_slices_are_removed_more_and_more_seldom() {
        let (mut abandoned, mut now) = (AbandonedLabels::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..9 {
            abandoned.see("a", Some(&labels(&[LABEL])), false, now);
            let next = abandoned.next().unwrap();
            waits.push((next - now).as_secs());
            now = next;
            abandoned.removed("a", now);
            abandoned.see("a", Some(&labels(&[])), false, now);
            assert_eq!(abandoned.next(), None);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    }
}
