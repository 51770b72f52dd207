//! Schedules for what no event reports. No IO, and no clock: time is an argument.
//!
//! * GC, CHECK and the search for orphans each have a [`Schedule`]. A random share of the interval keeps a
//!   node from doing everything at once, and the nodes of a cluster from doing the same.
//! * A pod is an orphan, by [`Orphans`], when three things hold together for a while:
//!   1. *Its Pod object is gone from the API server*, or has been replaced. That alone is normal: a pod that
//!      is deleted by force runs until the kubelet hears of it. While the API server is away nothing is
//!      known.
//!   2. *Its sandbox is gone*: its network namespace does not exist any more. Before that its containers may
//!      run. The runtime's list is not a proof, because lists have gaps.
//!   3. *The kubelet has not unprepared the claim for that while.* It usually does soon after the pod's end,
//!      and knows that end better. It never will when it has lost its checkpoint of the claim.
//!
//!   The agent runs the DELs that are owed for an orphan, and forgets its records. That is safe: if the claim
//!   of the gone pod is prepared for another pod, it is prepared again, and unpreparing an unknown claim
//!   succeeds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

/// Tasks that are due again and again, one at a time.
#[derive(Debug)]
pub struct Schedule<K> {
    interval: Duration,
    /// In the order in which they are due: a node has hundreds.
    due: BTreeSet<(Instant, K)>,
    /// When the tasks are looked for again.
    outdated: Option<Instant>,
}

/// How often a schedule takes up new tasks, at most: to list those of a node with hundreds of attachments for
/// each that is due would cost more than many of them do.
const UPDATE_INTERVAL: Duration = Duration::from_secs(30);

impl<K: Ord + Clone> Schedule<K> {
    /// A schedule on which each task is due once an `interval`, 20 % more or less.
    pub fn new(interval: Duration) -> Self {
        Self { interval, due: BTreeSet::new(), outdated: None }
    }

    /// When the tasks are to be replaced: at once if they never were, and then each 30 s, or ten times an
    /// interval.
    pub fn outdated(&self, now: Instant) -> Instant {
        self.outdated.unwrap_or(now)
    }

    /// Replaces the tasks. A new one is due for the first time within an interval. `random` returns numbers
    /// from 0 to 1.
    pub fn keep(&mut self, tasks: &BTreeSet<K>, now: Instant, mut random: impl FnMut() -> f64) {
        self.outdated = Some(now + UPDATE_INTERVAL.min(self.interval / 10));
        let before = std::mem::take(&mut self.due).into_iter();
        let mut due: BTreeMap<K, Instant> =
            before.filter(|(_, task)| tasks.contains(task)).map(|(due, task)| (task, due)).collect();
        for task in tasks {
            due.entry(task.clone()).or_insert_with(|| now + self.interval.mul_f64(random()));
        }
        self.due = due.into_iter().map(|(task, due)| (due, task)).collect();
    }

    /// Has every task be due for the first time within this time.
    pub fn hurry(&mut self, within: Duration, now: Instant, mut random: impl FnMut() -> f64) {
        let before = std::mem::take(&mut self.due).into_iter();
        self.due = before.map(|(due, task)| (due.min(now + within.mul_f64(random())), task)).collect();
    }

    /// Returns the task that has been due longest; it is due again an interval later.
    pub fn next(&mut self, now: Instant, mut random: impl FnMut() -> f64) -> Option<K> {
        self.due.first().filter(|(due, _)| *due <= now)?;
        let (_, task) = self.due.pop_first()?;
        self.due.insert((now + self.interval.mul_f64(0.8 + 0.4 * random()), task.clone()));
        Some(task)
    }

    /// When the next task is due.
    pub fn due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }
}

/// The state of a pod that has journalled attachments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// Its object is there, or its sandbox lives.
    There,
    /// Neither is.
    Gone,
    /// The API server did not say.
    Unknown,
}

/// The times since which pods are gone.
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

    /// Notes what was seen of a pod, and returns whether it is an orphan.
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

    const INTERVAL: Duration = Duration::from_secs(100);

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn each_task_is_due_once_an_interval_one_at_a_time() {
        let (start, mut schedule) = (Instant::now(), Schedule::new(INTERVAL));
        let mut chances = [0.0, 0.5, 0.99].into_iter();
        schedule.keep(&BTreeSet::from(["a", "b", "c"]), start, || chances.next().unwrap());
        let mut order = Vec::new();
        for second in 0..200 {
            while let Some(thing) = schedule.next(after(start, second), || 0.5) {
                order.push((second, thing));
            }
        }
        assert_eq!(order, [(0, "a"), (50, "b"), (99, "c"), (100, "a"), (150, "b"), (199, "c")]);
    }

    #[test]
    fn tasks_in_a_hurry_come_sooner_once_and_none_comes_later() {
        let (start, mut schedule) = (Instant::now(), Schedule::new(INTERVAL));
        let mut chances = [0.1, 0.9].into_iter();
        schedule.keep(&BTreeSet::from(["a", "b"]), start, || chances.next().unwrap());
        schedule.hurry(Duration::from_secs(40), start, || 0.5);
        assert_eq!(schedule.next(after(start, 10), || 0.5), Some("a"));
        assert_eq!(schedule.next(after(start, 20), || 0.5), Some("b"));
        assert_eq!(schedule.due(), Some(after(start, 110)));
    }

    #[test]
    fn a_missed_task_is_done_once() {
        let (start, mut schedule) = (Instant::now(), Schedule::new(INTERVAL));
        schedule.keep(&BTreeSet::from(["a"]), start, || 0.0);
        let late = after(start, 1000);
        assert_eq!(schedule.next(late, || 1.0), Some("a"));
        assert_eq!((schedule.next(late, || 1.0), schedule.due()), (None, Some(after(start, 1120))));
    }

    #[test]
    fn a_removed_task_is_not_due_and_the_others_keep_their_turn() {
        let (start, mut schedule) = (Instant::now(), Schedule::new(INTERVAL));
        schedule.keep(&BTreeSet::from(["a", "b"]), start, || 0.5);
        schedule.keep(&BTreeSet::from(["b"]), after(start, 40), || 0.9);
        assert_eq!(schedule.due(), Some(after(start, 50)));
        schedule.keep(&BTreeSet::new(), start, || 0.5);
        assert_eq!((schedule.next(after(start, 1000), || 0.5), schedule.due()), (None, None));
    }

    #[test]
    fn tasks_are_outdated_after_a_tenth_of_their_interval_and_after_half_a_minute() {
        let start = Instant::now();
        for (interval, update) in [(100, 10), (3000, 30)] {
            let mut schedule = Schedule::<u8>::new(Duration::from_secs(interval));
            assert_eq!(schedule.outdated(start), start, "there never were any");
            schedule.keep(&BTreeSet::new(), start, || 0.5);
            assert_eq!(schedule.outdated(after(start, 1)), after(start, update));
        }
    }

    #[test]
    fn a_pod_is_an_orphan_only_when_it_is_gone_at_every_look() {
        let (start, mut orphans) = (Instant::now(), Orphans::new(INTERVAL));
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
