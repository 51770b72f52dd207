//! When the status of each object may be written. Pure.
//!
//! Every agent watches ClaimNetworks, so each write goes to every node. What a person has changed is written
//! at once. For values that change by themselves, such as the number of nodes, the first change is written at
//! once, and then the latest state at most every [`INTERVAL`].

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Time between two writes that no person has caused.
pub(crate) const INTERVAL: Duration = Duration::from_secs(15);

/// Who has changed an object, or what its status says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// Nodes, links or pods.
    Nodes,
    /// A person: the object itself, or another one that matters to it.
    Spec,
}

/// One object.
#[derive(Debug, Clone, Default)]
struct Entry {
    /// When its status was last written.
    written: Option<Instant>,
    /// Why its status must be looked at.
    cause: Option<Cause>,
}

/// The objects of one kind, by name.
#[derive(Debug, Default)]
pub(crate) struct Schedule(BTreeMap<String, Entry>);

impl Schedule {
    /// Has the status of this object be looked at.
    pub(crate) fn mark(&mut self, name: &str, cause: Cause) {
        let entry = match self.0.get_mut(name) {
            Some(entry) => entry,
            None => self.0.entry(name.to_owned()).or_default(),
        };
        entry.cause = entry.cause.max(Some(cause));
    }

    /// Returns the objects whose status can be looked at now, and why. They are marked no more.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<(String, Cause)> {
        let due = |(name, entry): (&String, &mut Entry)| {
            let is_due = entry.due() <= Some(now);
            Some((name.clone(), entry.cause.take_if(|_| is_due)?))
        };
        self.0.iter_mut().filter_map(due).collect()
    }

    /// Whether the status of this object may be written for what changes by itself.
    pub(crate) fn may_write(&self, name: &str, now: Instant) -> bool {
        self.0.get(name).is_none_or(|entry| entry.next() <= Some(now))
    }

    /// Notes that the status of this object was written.
    pub(crate) fn wrote(&mut self, name: &str, now: Instant) {
        self.0.entry(name.to_owned()).or_default().written = Some(now);
    }

    /// Forgets the objects that do not exist any more.
    pub(crate) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| exists(name));
    }

    /// Returns when the first marked object is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let waiting = self.0.values().filter(|entry| entry.cause.is_some());
        // `None` is earlier than any time.
        waiting.map(Entry::due).min().map(|first| first.unwrap_or_else(Instant::now))
    }
}

impl Entry {
    /// Returns when the status can be looked at for its cause; `None` at any time.
    fn due(&self) -> Option<Instant> {
        self.next().filter(|_| self.cause != Some(Cause::Spec))
    }

    /// Returns when the status may be written again; `None` at any time.
    fn next(&self) -> Option<Instant> {
        self.written.map(|written| written + INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_change_is_due_at_once_and_the_next_after_the_interval() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        schedule.mark("a", Cause::Nodes);
        assert_eq!(schedule.take_due(start), [("a".to_owned(), Cause::Nodes)]);
        schedule.wrote("a", start);
        assert_eq!(schedule.next(), None, "nothing has changed");
        schedule.mark("a", Cause::Nodes);
        assert_eq!(schedule.take_due(start + INTERVAL - SECOND), []);
        assert_eq!(schedule.next(), Some(start + INTERVAL));
        assert_eq!(schedule.take_due(start + INTERVAL).len(), 1);
    }

    #[test]
    fn a_change_by_a_person_does_not_wait() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        schedule.wrote("a", start);
        schedule.mark("a", Cause::Spec);
        schedule.mark("a", Cause::Nodes);
        assert_eq!(schedule.take_due(start), [("a".to_owned(), Cause::Spec)]);
        assert!(!schedule.may_write("a", start), "if only numbers have changed");
    }

    #[test]
    fn changes_every_second_are_written_every_interval_and_the_last_one_is() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let (mut now, mut state, mut written, mut times) = (start, 0, 0, Vec::new());
        let mut look = |schedule: &mut Schedule, now: Instant, state: i32| {
            for (name, _) in schedule.take_due(now) {
                if written != state {
                    written = state;
                    schedule.wrote(&name, now);
                    times.push(now);
                }
            }
            written
        };
        for _ in 0..120 {
            state += 1;
            schedule.mark("a", Cause::Nodes);
            look(&mut schedule, now, state);
            now += SECOND;
        }
        let last = schedule.next().unwrap();
        assert!(last <= now + INTERVAL);
        assert_eq!(look(&mut schedule, last, state), state);
        assert_eq!(schedule.next(), None);
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= INTERVAL), "{times:?}");
        assert_eq!(times.len(), 9);
    }

    #[test]
    fn objects_that_are_gone_are_forgotten() {
        let mut schedule = Schedule::default();
        schedule.mark("a", Cause::Spec);
        schedule.retain(|name| name != "a");
        assert_eq!(schedule.next(), None);
    }
}
