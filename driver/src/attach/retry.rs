//! When a failed operation is tried again, and when it is given up: one policy for all of them. Pure: time is
//! an argument.
//!
//! | what fails | tried again | given up |
//! |---|---|---|
//! | ADD | after its DEL; 0.5 s, doubled up to 10 s | never: the claim stays prepared |
//! | ADD that cannot succeed as things are | as above, but doubled up to 60 s; at once after a change | never |
//! | DEL in a namespace | 0.5 s, doubled up to 10 s | never; after 5 failures a virtual link of the host is moved out, and the namespace of a sandbox that has ended is let go |
//! | DEL without a namespace | as above | at the 3rd failure of a plugin, at the 8th if it could not be run, did not end, or says that it may work later |
//! | DEL whose plugin's daemon does not answer | as above | without a namespace, at the 60th failure, after 9 min: an update of the daemon is over by then |
//! | giving back a moved link | as above | at the 8th failure the link is a stray: looked for every 60 s, and no release waits for it |

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// First delay before a failed operation is tried again; doubled with each failure.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// The longest delay: the kubelet asks for the container again every 10 to 15 s.
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// The same for an ADD that cannot succeed before something changes, which [`Retries::retry_permanent`] says:
/// the first tries are as soon as others, for what a plugin judges wrongly.
const PERMANENT_DELAY: Duration = Duration::from_secs(60);
/// Between looks for a stray link: mostly an admin has to act.
const STRAY_DELAY: Duration = Duration::from_secs(60);
/// Failed DELs after which the namespace of a sandbox that has ended is no longer held: a plugin that cannot
/// succeed in it may do without it, and pods must be able to go.
const HOPELESS: u32 = 5;
/// How often a DEL without a namespace is tried when a plugin fails: some always do.
const TRIES: u32 = 3;
/// The same for what may change by itself: a missing plugin is installed, a plugin's daemon starts again, the
/// kernel takes a namespace apart in its own time.
const LONG_TRIES: u32 = 8;
/// The same for a plugin's daemon that does not answer: only it has what is to be deleted, and its update,
/// which may pull an image, takes minutes.
const DAEMON_TRIES: u32 = 60;

// What cannot succeed in the namespace is tried without it before it is given up.
const _: () = assert!(HOPELESS < LONG_TRIES);

/// What is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// ADD.
    Add,
    /// DEL, or giving back a link.
    Del,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 2] = [Self::Add, Self::Del];

    /// Returns its name in CNI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
        }
    }
}

/// Why a DEL failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelFault {
    /// A plugin failed.
    Plugin,
    /// A plugin could not be run, did not end, or says that it may work later.
    NotRun,
    /// The plugin's daemon does not answer.
    Daemon,
    /// A moved link is not back on the host, or not as it was.
    Link,
}

/// How often a DEL has failed before this attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attempt(pub u32);

impl Attempt {
    /// Whether a DEL that fails now, without a namespace, is given up.
    pub fn is_last(self, fault: DelFault) -> bool {
        let tries = match fault {
            DelFault::Plugin => TRIES,
            DelFault::NotRun | DelFault::Link => LONG_TRIES,
            DelFault::Daemon => DAEMON_TRIES,
        };
        self.0 + 1 >= tries
    }

    /// The attempt after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Whether callers should not wait for this DEL any more, and its namespace be let go.
    pub fn is_hopeless(self) -> bool {
        self.0 >= HOPELESS
    }
}

/// The failed operations of a pod's attachments, by the attachments' keys.
#[derive(Debug, Default)]
pub struct Retries(HashMap<String, Retry>);

#[derive(Debug, Clone, Copy)]
struct Retry {
    operation: Operation,
    failures: u32,
    is_permanent: bool,
    due: Instant,
}

impl Retries {
    /// Notes a failure; the operation is due again after a delay that grows with the failures in a row.
    /// `is_permanent` means that it cannot succeed as things are. DELs are counted, and pods wait for
    /// their end: no DEL waits longer for it.
    pub fn failed(&mut self, key: &str, operation: Operation, is_permanent: bool, now: Instant) {
        let failures = self.of(key, operation).map_or(0, |retry| retry.failures);
        let is_permanent = is_permanent && operation == Operation::Add;
        let longest = if is_permanent { PERMANENT_DELAY } else { LONGEST_DELAY };
        let due = now + delay(failures, longest);
        self.0.insert(key.to_owned(), Retry { operation, failures: failures + 1, is_permanent, due });
    }

    /// Has the search for a stray link wait longer than other operations.
    pub fn is_stray(&mut self, key: &str, now: Instant) {
        if let Some(retry) = self.0.get_mut(key) {
            retry.due = now + STRAY_DELAY;
        }
    }

    /// Forgets the failures of an attachment.
    pub fn succeeded(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// Something has changed: what failed is due now. Failed DELs are remembered, since their number decides.
    pub fn retry_now(&mut self, now: Instant) {
        self.0.retain(|_, retry| retry.operation == Operation::Del);
        self.0.values_mut().for_each(|retry| retry.due = now);
    }

    /// Plugins or networks have changed: ADDs that could not succeed before are due now.
    pub fn retry_permanent(&mut self) {
        self.0.retain(|_, retry| !retry.is_permanent);
    }

    /// Whether the operation has to wait.
    pub fn waits(&self, key: &str, operation: Operation, now: Instant) -> bool {
        self.of(key, operation).is_some_and(|retry| retry.due > now)
    }

    /// The attempt that a DEL would be now.
    pub fn del_attempt(&self, key: &str) -> Attempt {
        Attempt(self.of(key, Operation::Del).map_or(0, |retry| retry.failures))
    }

    /// When the next operation is due, of those that wait.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        self.0.values().map(|retry| retry.due).filter(|due| *due > now).min()
    }

    fn of(&self, key: &str, operation: Operation) -> Option<&Retry> {
        self.0.get(key).filter(|retry| retry.operation == operation)
    }
}

/// The delay after so many failures before this one.
pub fn delay_after(failures: u32) -> Duration {
    delay(failures, LONGEST_DELAY)
}

fn delay(failures: u32, longest: Duration) -> Duration {
    FIRST_DELAY.saturating_mul(1 << failures.min(8)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let delays: Vec<u64> =
            (0..7).map(|failures| delay_after(failures).as_millis().try_into().unwrap()).collect();
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(delay_after(u32::MAX), LONGEST_DELAY);
    }

    #[test]
    fn an_add_that_cannot_succeed_waits_longer_but_a_del_does_not() {
        let delays = |operation, is_permanent| {
            let (mut retries, now) = (Retries::default(), Instant::now());
            let delays = (0..9).map(|_| {
                retries.failed("a", operation, is_permanent, now);
                retries.next_due(now).unwrap().duration_since(now).as_millis()
            });
            delays.collect::<Vec<_>>()
        };
        let usual = [500, 1000, 2000, 4000, 8000, 10_000, 10_000, 10_000, 10_000];
        assert_eq!(delays(Operation::Add, false), usual);
        assert_eq!(delays(Operation::Del, true), usual);
        let longer = [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000];
        assert_eq!(delays(Operation::Add, true), longer);
    }

    #[test]
    fn a_changed_plugin_hurries_only_adds_that_could_not_succeed() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        retries.failed("permanent", Operation::Add, true, now);
        retries.failed("temporary", Operation::Add, false, now);
        retries.failed("del", Operation::Del, true, now);
        retries.retry_permanent();
        assert!(!retries.waits("permanent", Operation::Add, now));
        assert!(retries.waits("temporary", Operation::Add, now) && retries.waits("del", Operation::Del, now));
    }

    #[test]
    fn a_failed_add_does_not_hold_up_its_del() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        retries.failed("a", Operation::Add, false, now);
        assert!(retries.waits("a", Operation::Add, now) && !retries.waits("a", Operation::Del, now));
        assert_eq!(retries.del_attempt("a"), Attempt(0));
        assert!(!retries.waits("a", Operation::Add, now + FIRST_DELAY));
    }

    #[test]
    fn a_change_makes_everything_due_and_forgets_failed_adds_only() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        retries.failed("a", Operation::Add, false, now);
        (0..3).for_each(|_| retries.failed("d", Operation::Del, true, now));
        retries.retry_now(now);
        assert!(!retries.waits("a", Operation::Add, now) && !retries.waits("d", Operation::Del, now));
        assert_eq!((retries.del_attempt("d"), retries.next_due(now)), (Attempt(3), None));
    }

    #[test]
    fn a_del_without_a_namespace_is_given_up_sooner_when_a_plugin_says_no() {
        let last = |fault| (0..100).find(|failures| Attempt(*failures).is_last(fault));
        assert_eq!(
            [DelFault::Plugin, DelFault::NotRun, DelFault::Link, DelFault::Daemon].map(last),
            [Some(2), Some(7), Some(7), Some(59)]
        );
        assert_eq!((0..20).find(|failures| Attempt(*failures).is_hopeless()), Some(5));
    }
}
