//! When to act: gathers changes, limits writes, delays retries.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::WriteBudget;

/// Waits until changes pause, up to a limit.
#[derive(Debug)]
pub(super) struct Gather {
    quiet: Duration,
    max_delay: Duration,
    /// First and last change since the last action.
    pending: Option<(Instant, Instant)>,
}

impl Gather {
    pub(super) fn new(quiet: Duration, max_delay: Duration) -> Self {
        Self { quiet, max_delay, pending: None }
    }

    pub(super) fn changed(&mut self) {
        let now = Instant::now();
        self.pending = Some((self.pending.map_or(now, |(first, _)| first), now));
    }

    pub(super) fn acted(&mut self) {
        self.pending = None;
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.pending.map(|(first, last)| (last + self.quiet).min(first + self.max_delay))
    }
}

/// A token bucket.
#[derive(Debug)]
pub(super) struct Budget {
    limits: WriteBudget,
    tokens: f64,
    counted: Instant,
}

impl Budget {
    pub(super) fn new(limits: WriteBudget) -> Self {
        Self { limits, tokens: f64::from(limits.burst), counted: Instant::now() }
    }

    /// Waits until requests of this cost may be sent. A single write costs 1.
    pub(super) async fn spend(&mut self, cost: u32) {
        let per_second = f64::from(self.limits.per_second);
        let now = Instant::now();
        let refill = now.duration_since(self.counted).as_secs_f64() * per_second;
        self.tokens = (self.tokens + refill).min(f64::from(self.limits.burst)) - f64::from(cost);
        self.counted = now;
        if self.tokens < 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(-self.tokens / per_second)).await;
        }
    }
}

/// Consecutive failures, and when to retry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failures {
    pub(super) count: u32,
    pub(super) retry_at: Instant,
}

impl Failures {
    const FIRST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(60);

    /// Adds a failure: the next try is 200 ms away, doubled with each failure, at most 60 s.
    pub(super) fn after(before: Option<Self>) -> Self {
        let count = before.map_or(1, |failures| failures.count.saturating_add(1));
        let delay = Self::FIRST.saturating_mul(1 << (count - 1).min(10)).min(Self::LONGEST);
        Self { count, retry_at: Instant::now() + delay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_are_gathered_until_they_pause_or_the_limit_is_reached() {
        let ms = Duration::from_millis;
        let (start, mut gather) = (Instant::now(), Gather::new(ms(100), ms(250)));
        assert_eq!(gather.due(), None);
        gather.changed();
        assert_eq!(gather.due(), Some(start + ms(100)));
        tokio::time::advance(ms(90)).await;
        gather.changed();
        assert_eq!(gather.due(), Some(start + ms(190)));
        tokio::time::advance(ms(90)).await;
        gather.changed();
        assert_eq!(gather.due(), Some(start + ms(250)));
        gather.acted();
        assert_eq!(gather.due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_budget_allows_a_burst_and_then_its_rate() {
        let mut budget = Budget::new(WriteBudget { per_second: 2, burst: 3 });
        let start = Instant::now();
        for cost in [1, 2] {
            budget.spend(cost).await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for cost in [1, 2, 1] {
            budget.spend(cost).await;
        }
        assert!((1990..2010).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn retries_are_delayed_up_to_a_minute() {
        let mut failures = Failures::after(None);
        assert_eq!(failures.retry_at - Instant::now(), Duration::from_millis(200));
        for _ in 0..40 {
            failures = Failures::after(Some(failures));
        }
        assert_eq!(failures.retry_at - Instant::now(), Duration::from_secs(60));
    }
}
