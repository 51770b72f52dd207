//! When to plan, and when to look for leases whose holder is gone.

use std::time::Duration;

use tokio::time::Instant;

/// Changes are gathered for this long before blocks are planned again.
pub(super) const GATHER_DELAY: Duration = Duration::from_millis(100);

/// Planning takes at most this part of the time: one in so many.
const PLAN_SHARE: u32 = 5;

/// What is due, and when.
#[derive(Debug)]
pub(super) struct Timers {
    plan: Option<Instant>,
    /// No plan before this.
    not_before: Instant,
    collect: Option<Instant>,
}

impl Timers {
    pub(super) fn new(now: Instant) -> Self {
        Self { plan: None, not_before: now, collect: None }
    }

    /// Returns when to plan.
    pub(super) fn plan(&self) -> Option<Instant> {
        self.plan
    }

    pub(super) fn plan_soon(&mut self) {
        self.plan_at(Instant::now() + GATHER_DELAY);
    }

    pub(super) fn plan_at(&mut self, time: Instant) {
        self.plan = Some(self.plan.map_or(time, |plan| plan.min(time)).max(self.not_before));
    }

    /// Notes that a plan begins.
    pub(super) fn begin_plan(&mut self) {
        self.plan = None;
    }

    /// Notes that a plan took from `begin` to now.
    pub(super) fn end_plan(&mut self, begin: Instant) {
        self.not_before = self.not_before.max(begin + begin.elapsed() * PLAN_SHARE);
    }

    /// Returns when to look for leases whose holder is gone.
    pub(super) fn collect(&self) -> Option<Instant> {
        self.collect
    }

    pub(super) fn collect_at(&mut self, time: Instant) {
        self.collect = Some(self.collect.map_or(time, |collect| collect.min(time)));
    }

    /// Notes that leases are looked through.
    pub(super) fn begin_collect(&mut self) {
        self.collect = None;
    }
}
