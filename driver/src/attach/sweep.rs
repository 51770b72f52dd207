//! When to look after what nobody tells about. No IO, and no clock: time is an argument.
//!
//! * GC, CHECK and the search for orphans each have a [`Beat`] of their own. What comes round is spread over the
//!   period by chance, so that neither a node does everything at once nor all nodes of a cluster the same.
//! * A pod is an orphan, by [`Orphans`], when three things hold together for a while:
//!   1. *Its Pod object is gone from the API server*, or has been replaced. That alone is normal: a pod that is deleted
//!      by force runs on until the kubelet hears of it. And while the API server is away nothing is known.
//!   2. *Its sandbox does not live*: its network namespace is not there any more. Before that its containers may run,
//!      and whether the runtime lists it is no proof: lists have gaps.
//!   3. *The kubelet has not unprepared the claim for that while.* It does so soon after the pod's end, and what it does
//!      is preferred: it knows the pod's end better. It never will when it has lost its notes of the claim.
//!
//!   What is owed for an orphan is paid, and its records are forgotten. That is safe: the claim of a pod that is gone is
//!   prepared for another pod, if at all, and then anew; and unpreparing a claim that is not known succeeds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

/// Things that come round again and again, one at a time.
#[derive(Debug)]
pub struct Beat<K> {
    period: Duration,
    due: BTreeMap<K, Instant>,
}

impl<K: Ord + Clone> Beat<K> {
    /// A beat on which each thing comes round once a `period`, 20 % more or less.
    pub fn new(period: Duration) -> Self {
        Self { period, due: BTreeMap::new() }
    }

    /// Has exactly `things` come round; a new one for the first time within a period. `chance` gives numbers from 0
    /// to 1.
    pub fn keep(&mut self, things: &BTreeSet<K>, now: Instant, mut chance: impl FnMut() -> f64) {
        self.due.retain(|thing, _| things.contains(thing));
        for thing in things {
            self.due.entry(thing.clone()).or_insert_with(|| now + self.period.mul_f64(chance()));
        }
    }

    /// The thing that has waited longest of those that are due; it comes round again a period later.
    pub fn next(&mut self, now: Instant, mut chance: impl FnMut() -> f64) -> Option<K> {
        let (thing, due) =
            self.due.iter_mut().min_by_key(|(_, due)| **due).filter(|(_, due)| **due <= now)?;
        *due = now + self.period.mul_f64(0.8 + 0.4 * chance());
        Some(thing.clone())
    }

    /// When the next thing is due.
    pub fn due(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }
}

/// What can be said of a pod that something is journalled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// Its object is there, or its sandbox lives.
    There,
    /// Neither is.
    Gone,
    /// The API server did not say.
    Unknown,
}

/// Since when pods are gone.
#[derive(Debug)]
pub struct Orphans {
    after: Duration,
    since: HashMap<String, Instant>,
}

impl Orphans {
    /// Pods are orphans when they are gone, at every look, for as long as `after`.
    pub fn new(after: Duration) -> Self {
        Self { after, since: HashMap::new() }
    }

    /// Notes what was seen of a pod; whether it is an orphan.
    pub fn seen(&mut self, pod_uid: &str, sighting: Sighting, now: Instant) -> bool {
        match sighting {
            Sighting::There | Sighting::Unknown => {
                self.since.remove(pod_uid);
                false
            }
            Sighting::Gone => {
                let since = *self.since.entry(pod_uid.to_owned()).or_insert(now);
                now.duration_since(since) >= self.after
            }
        }
    }

    /// Forgets all but these pods.
    pub fn keep(&mut self, pods: &BTreeSet<String>) {
        self.since.retain(|pod, _| pods.contains(pod));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(100);

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn everything_comes_round_once_a_period_one_at_a_time() {
        let (start, mut beat) = (Instant::now(), Beat::new(PERIOD));
        let mut chances = [0.0, 0.5, 0.99].into_iter();
        beat.keep(&BTreeSet::from(["a", "b", "c"]), start, || chances.next().unwrap());
        let mut order = Vec::new();
        for second in 0..200 {
            while let Some(thing) = beat.next(after(start, second), || 0.5) {
                order.push((second, thing));
            }
        }
        assert_eq!(order, [(0, "a"), (50, "b"), (99, "c"), (100, "a"), (150, "b"), (199, "c")]);
    }

    #[test]
    fn what_was_missed_is_done_once() {
        let (start, mut beat) = (Instant::now(), Beat::new(PERIOD));
        beat.keep(&BTreeSet::from(["a"]), start, || 0.0);
        let late = after(start, 1000);
        assert_eq!(beat.next(late, || 1.0), Some("a"));
        assert_eq!((beat.next(late, || 1.0), beat.due()), (None, Some(after(start, 1120))));
    }

    #[test]
    fn what_is_gone_does_not_come_round_and_what_stays_keeps_its_turn() {
        let (start, mut beat) = (Instant::now(), Beat::new(PERIOD));
        beat.keep(&BTreeSet::from(["a", "b"]), start, || 0.5);
        beat.keep(&BTreeSet::from(["b"]), after(start, 40), || 0.9);
        assert_eq!(beat.due(), Some(after(start, 50)));
        beat.keep(&BTreeSet::new(), start, || 0.5);
        assert_eq!((beat.next(after(start, 1000), || 0.5), beat.due()), (None, None));
    }

    #[test]
    fn a_pod_is_an_orphan_only_when_it_is_gone_at_every_look() {
        let (start, mut orphans) = (Instant::now(), Orphans::new(PERIOD));
        assert!(!orphans.seen("p", Sighting::Gone, start));
        assert!(!orphans.seen("p", Sighting::Gone, after(start, 99)));
        assert!(!orphans.seen("p", Sighting::Unknown, after(start, 100)), "the API server is away");
        assert!(!orphans.seen("p", Sighting::Gone, after(start, 101)));
        assert!(!orphans.seen("p", Sighting::There, after(start, 150)));
        assert!(!orphans.seen("p", Sighting::Gone, after(start, 202)));
        assert!(orphans.seen("p", Sighting::Gone, after(start, 302)));
        orphans.keep(&BTreeSet::new());
        assert!(!orphans.seen("p", Sighting::Gone, after(start, 302)));
    }
}
