//! The state of a pod, and whether its containers may start.

use std::collections::BTreeSet;

use super::plan::Owner;
use super::record::{Phase, Record, Sandbox};

/// The state of one pod's attachments.
#[derive(Debug, Clone, PartialEq)]
pub struct PodState<O> {
    /// The pod's sandbox, once the runtime has reported it.
    pub sandbox: Option<Sandbox>,
    /// Its attachments in the order in which they are made, and then their finalizers.
    pub records: Vec<Record<O>>,
    /// Whether groups of the pod are being released. The remaining attachments say nothing about the pod
    /// then.
    pub closing: bool,
    /// The hot groups that are being released. No container waits for them.
    pub leaving: BTreeSet<String>,
    /// Why the state is unknown: a file of its journal cannot be read.
    pub damaged: Option<String>,
    /// Why containers must wait although all is attached: the observer has failed.
    pub held: Option<String>,
    /// How many DELs have failed so often that no release waits for them any more. They are retried.
    pub dels_failing: usize,
}

/// Whether a container of a sandbox may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gate {
    /// Every attachment that it waits for is made in this very sandbox.
    Open,
    /// Not yet.
    Wait,
    /// Not yet. The last attempt failed, and is retried.
    Failed(String),
}

impl<O> Default for PodState<O> {
    fn default() -> Self {
        Self {
            sandbox: None,
            records: Vec::new(),
            closing: false,
            leaving: BTreeSet::new(),
            damaged: None,
            held: None,
            dels_failing: 0,
        }
    }
}

impl<O: Owner> PodState<O> {
    /// The attachments without their [finalizers](super::Plan::finalizes).
    pub fn attachments(&self) -> impl Iterator<Item = &Record<O>> {
        self.records.iter().filter(|record| !record.plan.is_finalizer())
    }

    /// Whether nothing is attached to this sandbox, and no DEL is owed to it.
    pub fn is_clear_of(&self, sandbox_id: &str) -> bool {
        self.records.iter().all(|record| record.phase.sandbox().is_none_or(|s| s.id != sandbox_id))
    }

    /// Whether a sandbox of the pod lives, whatever the runtime lists: its network namespace still exists.
    /// Blocks for a moment.
    pub fn sandbox_lives(&self, boot_id: &str) -> bool {
        let recorded = self.records.iter().filter_map(|record| record.phase.sandbox());
        recorded
            .chain(&self.sandbox)
            .any(|sandbox| sandbox.boot_id == boot_id && sandbox.open_netns().is_ok())
    }

    /// Whether containers of `sandbox_id` may start: when every attachment that [holds](Record::holds) them
    /// is made in this sandbox with all of its group, and the observer has succeeded.
    pub fn gate(&self, sandbox_id: &str) -> Gate {
        if let Some(reason) = &self.damaged {
            return Gate::Failed(reason.clone());
        }
        if self.closing || self.records.is_empty() {
            return Gate::Wait;
        }
        let is_complete = |record: &Record<O>| {
            let group = record.plan.owner.group();
            let of_group = self.records.iter().filter(|other| other.plan.owner.group() == group);
            of_group.count() == record.plan.of as usize
        };
        let attached = |record: &Record<O>| matches!(&record.phase, Phase::Attached { sandbox, .. } if sandbox.id == sandbox_id);
        let holds = |record: &&Record<O>| {
            record.holds(sandbox_id) && !self.leaving.contains(record.plan.owner.group())
        };
        let mut holding = self.records.iter().filter(holds);
        if holding.clone().all(|record| attached(record) && is_complete(record)) {
            return self.held.clone().map_or(Gate::Open, Gate::Failed);
        }
        let failed = holding.find_map(|record| {
            let error = record.error.as_ref().filter(|_| !attached(record))?;
            Some(format!("network {}: {error}", record.plan.network))
        });
        failed.map_or(Gate::Wait, Gate::Failed)
    }
}
