//! What the attachments of all pods have alike, counted as they come and go: a node has hundreds of them and
//! few kinds, and the start of one pod has many looks at what all have.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::plan::{Owner, Plan};
use super::record::Record;

/// The counts of one node.
pub(super) struct Usage<O: Owner>(Mutex<Counts<O::Kind>>);

struct Counts<K> {
    /// The plans of attachments, by their kind.
    kinds: HashMap<Arc<K>, usize>,
    /// The records that are in a sandbox, by its id.
    sandboxes: BTreeMap<String, usize>,
}

impl<O: Owner> Default for Usage<O> {
    fn default() -> Self {
        Self(Mutex::new(Counts { kinds: HashMap::new(), sandboxes: BTreeMap::new() }))
    }
}

impl<O: Owner> Usage<O> {
    /// Notes that a pod has the records `now`, which had those of `before`.
    pub(super) fn replace(&self, before: &[Record<O>], now: &[Record<O>]) {
        let (gone, new) = (only_in(before, now), only_in(now, before));
        let (left, entered): (Vec<&String>, Vec<&String>) =
            (sandboxes(before).collect(), sandboxes(now).collect());
        if gone.is_empty() && new.is_empty() && left == entered {
            return;
        }
        let mut counts = self.lock();
        for kind in new {
            *counts.kinds.entry(Arc::new(kind)).or_default() += 1;
        }
        for kind in gone {
            counts.kinds.entry(Arc::new(kind)).and_modify(|count| *count = count.saturating_sub(1));
        }
        for id in entered {
            *counts.sandboxes.entry(id.clone()).or_default() += 1;
        }
        for id in left {
            counts.sandboxes.entry(id.clone()).and_modify(|count| *count = count.saturating_sub(1));
        }
        counts.kinds.retain(|_, count| *count > 0);
        counts.sandboxes.retain(|_, count| *count > 0);
    }

    /// Returns the kinds, each with the number of its plans.
    pub(super) fn kinds(&self) -> Vec<(Arc<O::Kind>, usize)> {
        self.lock().kinds.iter().map(|(kind, count)| (Arc::clone(kind), *count)).collect()
    }

    /// Returns the ids of the sandboxes that records are in.
    pub(super) fn sandboxes(&self) -> BTreeSet<String> {
        self.lock().sandboxes.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Counts<O::Kind>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the kinds of the plans of attachments that `others` have not got. A plan that was made again is
/// another one.
fn only_in<O: Owner>(records: &[Record<O>], others: &[Record<O>]) -> Vec<O::Kind> {
    let is_new = |plan: &&Arc<Plan<O>>| !others.iter().any(|other| Arc::ptr_eq(&other.plan, plan));
    let plans = records.iter().map(|record| &record.plan).filter(is_new);
    plans.filter(|plan| !plan.is_finalizer()).map(|plan| O::kind(plan)).collect()
}

fn sandboxes<O>(records: &[Record<O>]) -> impl Iterator<Item = &String> {
    records.iter().filter_map(|record| Some(&record.phase.sandbox()?.id))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::Phase;
    use super::super::record::tests::{Claimant, plan, sandbox};
    use super::*;

    /// What becomes of a pod.
    #[derive(Debug, Clone)]
    enum Change {
        /// It gets a plan of this kind.
        Come { network: u8, finalizes: Option<u32> },
        /// One of its plans goes.
        Go(usize),
        /// One of its plans is made again, of this kind.
        Revise(usize, u8),
        /// One of its attachments is in this sandbox, or in none.
        Enter(usize, Option<u8>),
        /// Its task reads the journal again.
        Reload,
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            4 => (0..3u8, prop_oneof![3 => Just(None), 1 => Just(Some(0))])
                .prop_map(|(network, finalizes)| Change::Come { network, finalizes }),
            3 => (0..9usize).prop_map(Change::Go),
            2 => (0..9usize, 0..3u8).prop_map(|(index, network)| Change::Revise(index, network)),
            3 => (0..9usize, proptest::option::of(0..3u8)).prop_map(|(index, id)| Change::Enter(index, id)),
            1 => Just(Change::Reload),
        ]
    }

    fn of_kind(network: u8) -> Plan<Claimant> {
        Plan { network: network.to_string(), ..plan("c", 0) }
    }

    fn apply(change: Change, records: &mut Vec<Record<Claimant>>) {
        match change {
            Change::Come { network, finalizes } => {
                records.push(Record::new(Plan { finalizes, ..of_kind(network) }));
            }
            Change::Go(index) if index < records.len() => drop(records.remove(index)),
            Change::Revise(index, network) if index < records.len() => {
                records[index].plan = Arc::new(of_kind(network));
            }
            Change::Enter(index, id) if index < records.len() => {
                let adding = |id: u8| Phase::Adding { sandbox: sandbox(&id.to_string()) };
                records[index].phase = id.map_or(Phase::Planned, adding);
            }
            Change::Reload => {
                for record in records {
                    record.plan = Arc::new(Plan::clone(&record.plan));
                }
            }
            Change::Go(_) | Change::Revise(..) | Change::Enter(..) => {}
        }
    }

    proptest! {
        #[test]
        fn what_is_counted_is_what_a_walk_finds(
            history in proptest::collection::vec((0..3usize, change()), 1..60),
        ) {
            let (usage, mut pods) = (Usage::default(), vec![Vec::new(); 3]);
            for (pod, change) in history {
                let before = pods[pod].clone();
                apply(change, &mut pods[pod]);
                usage.replace(&before, &pods[pod]);
                let mut kinds = BTreeMap::new();
                for record in pods.iter().flatten().filter(|record| !record.plan.is_finalizer()) {
                    *kinds.entry(record.plan.network.clone()).or_default() += 1;
                }
                let counted = usage.kinds().into_iter().map(|(kind, count)| (String::clone(&kind), count));
                prop_assert_eq!(counted.collect::<BTreeMap<_, _>>(), kinds);
                let ids: BTreeSet<String> = pods.iter().flat_map(|pod| sandboxes(pod).cloned()).collect();
                prop_assert_eq!(usage.sandboxes(), ids);
            }
        }
    }
}
