//! Requests to the API server that wait, run, or have failed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netclaim_api::ObjectName;
use netclaim_api::addresses::{AddressBlockSpec, AddressTotals, Holder, HolderKind, PoolKey};
use netclaim_process::kubernetes::answered;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::writes::{Done, LeaseRef, Unused, Writes};
use crate::addresses::leasing::{BlockRef, Removal};

/// Actions on blocks that run at once.
const BLOCK_ACTIONS: usize = 32;

/// Actions on leases that run at once. They have slots of their own: leases delay no block.
pub(super) const LEASE_ACTIONS: usize = 8;

/// A request to be made.
#[derive(Debug, Clone)]
pub(super) enum Action {
    Record { pool: PoolKey, totals: AddressTotals },
    Create(AddressBlockSpec),
    Delete(Removal),
    Release { block: Removal, node: ObjectName },
    Hold(BlockRef),
    DeleteLease { lease: LeaseRef, holder: Option<Holder> },
    ReleaseLease { lease: LeaseRef, pod: Option<Holder> },
    ConfirmLease(LeaseRef),
    ClearNode { lease: LeaseRef, node: ObjectName, why: Unused },
}

/// Actions of one kind, which wait and run.
pub(super) struct Lane {
    slots: usize,
    queue: VecDeque<Action>,
    pub(super) running: JoinSet<(Action, kube::Result<Done>)>,
}

impl Lane {
    fn new(slots: usize) -> Self {
        Self { slots, queue: VecDeque::new(), running: JoinSet::new() }
    }

    /// Begins as many actions as there are slots. An API server that does not answer takes none of them for
    /// long.
    fn start(&mut self, writes: &Writes) {
        while self.running.len() < self.slots
            && let Some(action) = self.queue.pop_front()
        {
            let writes = writes.clone();
            self.running.spawn(async move {
                let result = answered(action.carry_out(&writes)).await;
                (action, result)
            });
        }
    }
}

/// The requests of both lanes.
pub(super) struct Requests {
    writes: Writes,
    blocks: Lane,
    pub(super) leases: Lane,
    /// Those that wait or run.
    pub(super) in_flight: BTreeSet<String>,
    /// Those that failed, and when they may be made again.
    delayed: BTreeMap<String, Instant>,
}

impl Requests {
    pub(super) fn new(writes: Writes) -> Self {
        Self {
            writes,
            blocks: Lane::new(BLOCK_ACTIONS),
            leases: Lane::new(LEASE_ACTIONS),
            in_flight: BTreeSet::new(),
            delayed: BTreeMap::new(),
        }
    }

    /// Adds a request, unless the same one is under way or failed just before. A block is released after it
    /// is deleted.
    pub(super) fn push(&mut self, action: Action) -> bool {
        if self.delayed.get(&action.key()).is_some_and(|until| *until > Instant::now()) {
            return false;
        }
        let is_new = self.in_flight.insert(action.key());
        if is_new {
            let lane = if action.is_of_a_lease() { &mut self.leases } else { &mut self.blocks };
            lane.queue.push_back(action);
        }
        is_new
    }

    /// Begins as many requests as there are slots.
    pub(super) fn start(&mut self) {
        self.blocks.start(&self.writes);
        self.leases.start(&self.writes);
    }

    /// Returns the next request that has ended, and its result; `None` for one that panicked, which is a bug.
    /// Waits while none runs.
    pub(super) async fn ended(&mut self) -> Option<(Action, kube::Result<Done>)> {
        let ended = tokio::select! {
            Some(ended) = self.blocks.running.join_next() => ended,
            Some(ended) = self.leases.running.join_next() => ended,
            else => std::future::pending().await,
        };
        ended.ok()
    }

    /// Notes that a request has ended.
    pub(super) fn end(&mut self, action: &Action) {
        self.in_flight.remove(&action.key());
    }

    /// Makes a request that failed not again before this time.
    pub(super) fn delay(&mut self, action: &Action, until: Instant) {
        self.delayed.insert(action.key(), until);
    }

    /// Forgets which requests failed, as far as they may be made again.
    pub(super) fn expire(&mut self, now: Instant) {
        self.delayed.retain(|_, until| *until > now);
    }

    /// Returns when the first request that failed may be made again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.delayed.values().min().copied()
    }
}

impl Action {
    async fn carry_out(&self, writes: &Writes) -> kube::Result<Done> {
        match self {
            Self::Record { pool, totals } => writes.record(pool, *totals).await,
            Self::Create(spec) => writes.create(spec.clone()).await,
            Self::Delete(block) => writes.delete(block).await,
            Self::Release { block, node } => writes.release(block, node).await,
            Self::Hold(block) => writes.hold(block).await,
            Self::DeleteLease { lease, holder } => writes.delete_lease(lease, holder.as_ref()).await,
            Self::ReleaseLease { lease, pod } => writes.release_lease(lease, pod.as_ref()).await,
            Self::ConfirmLease(lease) => writes.confirm(lease).await,
            Self::ClearNode { lease, node, why } => writes.clear_node(lease, node, why).await,
        }
    }

    fn is_of_a_lease(&self) -> bool {
        match self {
            Self::Record { .. }
            | Self::Create(_)
            | Self::Delete(_)
            | Self::Release { .. }
            | Self::Hold(_) => false,
            Self::DeleteLease { .. }
            | Self::ReleaseLease { .. }
            | Self::ConfirmLease(_)
            | Self::ClearNode { .. } => true,
        }
    }

    /// Whether the pod that holds the lease is looked up first: no watch tells of pods that run.
    pub(super) fn asks_for_a_pod(&self) -> bool {
        let holder = match self {
            Self::DeleteLease { holder, .. } => holder.as_ref(),
            Self::ReleaseLease { pod, .. } => pod.as_ref(),
            _ => None,
        };
        holder.is_some_and(|holder| holder.kind == HolderKind::Pod)
    }

    /// Returns what distinguishes it from other requests.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Record { pool, .. } => format!("record the size of blocks of {pool}"),
            Self::Create(spec) => format!("create AddressBlock {}", spec.name()),
            Self::Delete(block) => format!("delete AddressBlock {}", block.name),
            Self::Release { block, .. } => format!("release AddressBlock {}", block.name),
            Self::Hold(block) => format!("put the finalizer of AddressBlock {} back", block.name),
            Self::DeleteLease { lease, .. } => format!("delete AddressLease {}", lease.name),
            Self::ReleaseLease { lease, .. } => format!("release AddressLease {}", lease.name),
            Self::ConfirmLease(lease) => format!("confirm AddressLease {}", lease.name),
            Self::ClearNode { lease, .. } => format!("clear the node of AddressLease {}", lease.name),
        }
    }
}
