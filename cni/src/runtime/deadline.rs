//! Deadlines of operations.

use std::time::Duration;

use tokio::time::Instant;

use super::error::{CallPhase, ErrorKind};

/// The deadline of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    after: Duration,
}

impl Deadline {
    pub(crate) fn after(after: Duration) -> Self {
        let now = Instant::now();
        // A time too far to express is as good as a year.
        let at = now.checked_add(after).unwrap_or(now + Duration::from_secs(365 * 24 * 3600));
        Self { at, after }
    }

    /// The deadline of a call that leaves half of the remaining time to others.
    pub(crate) fn half(self) -> Self {
        let now = Instant::now();
        Self { at: now + self.at.saturating_duration_since(now) / 2, ..self }
    }

    /// The whole time from the beginning.
    pub(crate) fn whole(self) -> Duration {
        self.after
    }

    pub(crate) fn at(self) -> Instant {
        self.at
    }

    pub(crate) fn passed(self, phase: CallPhase) -> ErrorKind {
        ErrorKind::Timeout { after: self.after, phase }
    }
}
