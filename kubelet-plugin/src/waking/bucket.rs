//! A token bucket, without a clock of its own.

use std::time::Duration;

use tokio::time::Instant;

/// Bounds how often something is done.
#[derive(Debug)]
pub(super) struct Bucket {
    burst: u32,
    /// Time in which one token comes.
    interval: Duration,
    /// When the bucket was or will be empty, if no token is taken until then: a full one was empty long
    /// ago.
    empty_at: Option<Instant>,
}

impl Bucket {
    /// A full bucket of `burst` tokens, to which `rate` come each second.
    pub(super) fn new(rate: u32, burst: u32) -> Self {
        Self { burst, interval: Duration::from_secs(1) / rate, empty_at: None }
    }

    /// Returns when there is a token: now or later.
    pub(super) fn next(&self, now: Instant) -> Instant {
        let full = now.checked_sub(self.interval * self.burst).unwrap_or(now);
        (self.empty_at.unwrap_or(full).max(full) + self.interval).max(now)
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let full = now.checked_sub(self.interval * self.burst).unwrap_or(now);
        let next = self.empty_at.unwrap_or(full).max(full) + self.interval;
        if next > now {
            return false;
        }
        self.empty_at = Some(next);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let now = Instant::now() + Duration::from_secs(60);
        let mut bucket = Bucket::new(20, 50);
        let passed = (0..60).filter(|_| bucket.take(now)).count();
        assert_eq!(passed, 50);
        assert_eq!(bucket.next(now), now + Duration::from_millis(50));
        let later = now + Duration::from_millis(120);
        assert_eq!((0..5).filter(|_| bucket.take(later)).count(), 2);
        let much_later = now + Duration::from_secs(600);
        assert_eq!((0..60).filter(|_| bucket.take(much_later)).count(), 50, "no more than the burst");
    }
}
