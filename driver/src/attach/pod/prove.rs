//! The proof that what a pod's ADDs have made can be used: all of it at once, after the ADDs that can be
//! done.

use std::sync::Arc;

use futures::future::try_join_all;
use netclaim_cni::CniResult;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{AddFailure, Attach, Commands, End, Ended, Observer, Pod, Step, machine, span};
use crate::attach::machine::Event;
use crate::attach::record::{Phase, Record, Sandbox};
use crate::attach::retry::Operation;
use crate::attach::{Failure, Traced};

impl<A: Attach, O: Observer> Pod<A, O> {
    /// Proves what is made. The first failure ends that, and so does other work: what was not proven by then
    /// is proven later, or made again by the next agent if this one is `ending`.
    pub(super) async fn prove(&mut self, commands: &mut Commands<O::Owner>, ending: &CancellationToken) {
        let now = Instant::now();
        let is_due = |record: &&Record<O::Owner>| {
            let desired = self.desired.of(record, &self.records, &self.boot_id);
            machine::next(record, &desired, &self.boot_id) == Step::Prove
                && !self.retries.waits(&record.key(), Operation::Add, now)
        };
        let due: Vec<Record<O::Owner>> = self.records.iter().filter(is_due).cloned().collect();
        let proofs = due.iter().filter_map(|record| {
            let (sandbox, made) = (record.phase.sandbox()?.clone(), record.made.clone()?);
            Some(self.proof(record, sandbox, made))
        });
        let (proofs, started) = (try_join_all(proofs.collect::<Vec<_>>()), Instant::now());
        let next_due = self.retries.next_due(started);
        let operation = async {
            tokio::select! {
                proven = proofs => Some(proven),
                () = ending.cancelled() => None,
                // Another ADD is due.
                () = tokio::time::sleep_until(next_due.unwrap_or(started)), if next_due.is_some() => None,
            }
        };
        let has_nothing_else = |pod: &Self| {
            let now = Instant::now();
            let next = pod.desired.next_step(&pod.records, &pod.retries, &pod.boot_id, now);
            due.iter().all(|due| pod.record(&due.key()).is_some_and(|record| record.made.is_some()))
                && next.is_some_and(|(_, step)| step == Step::Prove)
        };
        match self.attend(operation, commands, has_nothing_else).await {
            Ended::Done(Some(Ok(proven))) => {
                for (key, made, index) in proven {
                    let began = self.proving.remove(&key).unwrap_or(started);
                    self.ended(&key, Operation::Add, End::Succeeded, None, began);
                    self.added(&key, made, index).await;
                }
            }
            Ended::Done(Some(Err((key, failure)))) => self.not_proven(&key, failure, started).await,
            Ended::Done(None) | Ended::CutShort => {}
        }
    }

    /// Returns the key of a proven attachment with its result, and its index in the pod where it has moved a
    /// link; or its key with the failure.
    fn proof(
        &self,
        record: &Record<O::Owner>,
        sandbox: Sandbox,
        made: CniResult,
    ) -> impl Future<Output = Result<(String, CniResult, Option<u32>), (String, Failure)>> + use<A, O> {
        let (attach, key, moves) = (Arc::clone(&self.attach), record.key(), record.moved_link.is_some());
        let spec = record.asks_in(&sandbox.id).unwrap_or_else(|| record.plan.spec.clone());
        let span = span(&record.plan, &sandbox.id, &Traced::default());
        let proof = async move {
            match attach.prove(&spec, &sandbox, &made).await {
                Ok(()) => {
                    let index = if moves { attach.index_in_pod(&spec, &sandbox).await } else { None };
                    Ok((key, made, index))
                }
                Err(failure) => Err((key, failure)),
            }
        };
        proof.instrument(span)
    }

    /// Has a DEL follow, as after a failed ADD, also for the later attachments of the group, which may be
    /// made of this one.
    async fn not_proven(&mut self, key: &str, failure: Failure, started: Instant) {
        let Some(failed) = self.record(key).cloned() else { return };
        let began = self.proving.remove(key).unwrap_or(started);
        self.ended(key, Operation::Add, End::Failed, Some(&failure), began);
        let later = self.records.iter().filter(|other| failed.is_redone_with(other)).cloned();
        for mut record in later.collect::<Vec<_>>() {
            let key = record.key();
            match (&record.phase, record.made.take()) {
                (Phase::Adding { .. }, last_good) => {
                    let failure = failure.clone();
                    self.add_failed(&key, AddFailure { failure, last_good, stopped: None }).await;
                }
                (Phase::Attached { .. }, _) => {
                    self.desired.undone(&record);
                    if self.advance(&mut record, Event::DelDue) {
                        if let Err(error) = self.write(&record).await {
                            tracing::warn!(attachment = %key, %error, "cannot journal that a DEL is due");
                        }
                        self.replace(record);
                    }
                }
                (Phase::Planned | Phase::Deleting { .. }, _) => {}
            }
        }
        self.failed(key, Operation::Add, failure).await;
    }
}
