//! When an agent that has ended is started again. Pure.

use std::process::ExitStatus;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

/// Delays from the second restart in a row on; the first restart is at once. The longest delay is as long as
/// pods should wait for an agent that may work again.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_max_delay(Duration::from_secs(2))
    .without_max_times();
/// An agent that lived this long ends the row of failures.
const GOOD_LIFE: Duration = Duration::from_secs(2);
/// Failures in a row after which the parent exits too, so that the kubelet shows it to people.
pub(super) const GIVE_UP: u32 = 5;

/// Agents in a row that lived for less than [`GOOD_LIFE`].
pub(super) struct Restarts {
    in_a_row: u32,
    delays: ExponentialBackoff,
}

impl Default for Restarts {
    fn default() -> Self {
        Self { in_a_row: 0, delays: BACKOFF.build() }
    }
}

impl Restarts {
    /// Returns the delay of the next start after an agent that has lived for `life`; `None` to give up. An
    /// agent that was killed is always started again.
    pub(super) fn delay_after(&mut self, life: Duration, status: ExitStatus) -> Option<Duration> {
        if life >= GOOD_LIFE {
            *self = Self::default();
        } else {
            self.in_a_row = self.in_a_row.saturating_add(1);
        }
        match self.in_a_row {
            GIVE_UP.. if status.code().is_some() => None,
            0 | 1 => Some(Duration::ZERO),
            _ => self.delays.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const KILLED: i32 = 9;
    const FAILED: i32 = 1 << 8;

    fn delays(lives: impl IntoIterator<Item = (u64, i32)>) -> Vec<Option<u128>> {
        let mut restarts = Restarts::default();
        let delay =
            |(life, status)| restarts.delay_after(Duration::from_millis(life), ExitStatus::from_raw(status));
        lives.into_iter().map(delay).map(|delay| delay.map(|delay| delay.as_millis())).collect()
    }

    #[test]
    fn the_first_restart_is_at_once_and_the_delays_grow_to_a_limit() {
        let killed = delays([(0, KILLED); 9]);
        assert_eq!(killed, [0, 100, 200, 400, 800, 1600, 2000, 2000, 2000].map(Some));
        assert_eq!(delays([(0, KILLED); 1000]).last(), Some(&Some(2000)));
    }

    #[test]
    fn the_parent_gives_up_an_agent_that_fails_repeatedly_and_not_one_that_is_killed() {
        let failed = [(10, FAILED); 5];
        assert_eq!(delays(failed), [Some(0), Some(100), Some(200), Some(400), None]);
        assert_eq!(
            delays([failed.as_slice()[..4].to_vec(), vec![(10, KILLED)]].concat()).last(),
            Some(&Some(800))
        );
        let lived = u64::try_from(GOOD_LIFE.as_millis()).unwrap();
        let one_good_life = [&failed[..4], &[(lived, FAILED)], &failed[..4]].concat();
        assert_eq!(delays(one_good_life)[4..], [0, 0, 100, 200, 400].map(Some));
    }
}
