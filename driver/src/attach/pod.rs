//! The task of one pod. It carries out the steps that [`desired`](super::desired) chooses, one operation at a
//! time.
//!
//! * Attachments of a sandbox are made in the order of the plans and removed in reverse, never two at once
//!   (CNI specification, section 3). Pods do not wait for each other, and groups of a pod do not wait for
//!   each other's failed DELs.
//! * The task takes commands while an operation runs. It ends an ADD whose sandbox is gone or whose group is
//!   released. It never ends a DEL.

mod prove;

use std::any::Any;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt as _;
use netclaim_cni::CniResult;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::cause::Cause;
use super::counters::Counters;
use super::desired::{PodDesired, sort};
use super::journal::{self, Journal};
use super::machine::{self, Desired, Event, Step};
use super::plan::{Owner, PRIMARY_INTERFACE, Plan};
use super::record::{Finding, Phase, Record, Repaired, Sandbox};
use super::repair::same_again;
use super::retry::{Attempt, Operation, Retries, delay_after};
use super::state::{Gate, PodState};
use super::{AddFailure, Attach, Checked, Del, DelOutcome, End, Failure, Observer, Revised, Traced};
use crate::failpoint::Failpoint;
use crate::links::Netns;

/// Delay before an observer that failed is called again.
const OBSERVE_AGAIN: Duration = Duration::from_secs(1);

/// A command for a pod's task.
#[derive(Debug)]
pub(super) enum Command<O> {
    /// Journal these plans, unless they are journalled already.
    Prepare { plans: Vec<Plan<O>>, reply: oneshot::Sender<Result<(), Failure>> },
    /// The pod's sandbox is this one.
    SandboxUp(Sandbox, Netns),
    /// The runtime makes this sandbox of the pod, and waits for its primary network.
    SandboxAsks(Sandbox, Netns),
    /// The pod has a sandbox that nothing can be attached to.
    SandboxUnfit(String),
    /// This sandbox, or with `None` whatever sandbox there was, is gone.
    SandboxGone(Option<String>),
    /// Check this attachment, if it is made and the pod has no work to do. Otherwise there is no answer.
    Check(Check),
    /// Run the owed DELs of this group, forget its records, then answer.
    Release { group: String, reply: oneshot::Sender<Result<(), Failure>> },
    /// Try ADDs again that could not succeed as things were.
    RetryPermanent,
    /// Have the observer called again.
    Report,
    /// Make this attachment again, with the later ones of its group, which may be made of it. Answers whether
    /// that begins.
    Redo { key: String, reply: oneshot::Sender<bool> },
}

/// A wish to check an attachment.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) key: String,
    /// Whether a look into the pod may stand for a CHECK by the plugins.
    pub(super) may_look: bool,
    pub(super) reply: oneshot::Sender<Checked>,
}

pub(super) struct Pod<A, O: Observer> {
    uid: String,
    attach: Arc<A>,
    observer: Arc<O>,
    journal: Journal<O::Owner>,
    boot_id: Arc<str>,
    state: watch::Sender<PodState<O::Owner>>,
    counters: Arc<Counters<O::Owner>>,
    /// In the order in which attachments are made.
    records: Vec<Record<O::Owner>>,
    desired: PodDesired,
    retries: Retries,
    /// Network namespaces held open, by sandbox id, while DELs are owed there: CRI-O removes the name before
    /// it reports the end, and a held namespace keeps its links.
    pins: HashMap<String, Netns>,
    damaged: Option<String>,
    /// When to call the observer again, which has failed.
    observe_again: Option<Instant>,
    /// The callers that wait for the end of a release, by group.
    waiting: Vec<(String, oneshot::Sender<Result<(), Failure>>)>,
    checks: Vec<Check>,
    /// When the ADDs have begun whose outcome is being proven, by key.
    proving: HashMap<String, Instant>,
    /// When the plugins last made an attachment or found it to be fine, by key.
    found_fine: HashMap<String, Instant>,
    /// The same for what an earlier agent has attached: when this one took it over.
    since: Instant,
}

/// How long at most a look into the pod may stand for a CHECK by the plugins, which costs twenty times the
/// processor time. The least is half of it: what is taken over together is not due together.
const CHECK_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// What is wrong with an interface whose host link has another index than at the ADD.
pub(super) const MADE_AGAIN: &str =
    "the uplink was removed and made again since, so that the interface has none: delete the pod";

/// Why a primary network is not made in a sandbox for which the runtime does not ask.
const OTHER_ETH0: &str = "the sandbox's eth0 is another network's, or was lost: the container runtime does not ask netclaim for it. Delete the \
                          pod, and create it with the runtimeClassName of primary networks; if it has that, set cni_conf_dir of the \
                          handler in the runtime's configuration to their folder";

/// How an operation ended that could be interrupted.
enum Ended<T> {
    Done(T),
    CutShort,
}

type Commands<O> = mpsc::UnboundedReceiver<Command<O>>;

impl<A: Attach, O: Observer> Pod<A, O> {
    pub(super) fn new(
        uid: String,
        attach: Arc<A>,
        observer: Arc<O>,
        journal: Journal<O::Owner>,
        boot_id: Arc<str>,
        state: watch::Sender<PodState<O::Owner>>,
        counters: Arc<Counters<O::Owner>>,
    ) -> Self {
        let PodState { mut records, damaged, .. } = state.borrow().clone();
        sort(&mut records);
        Self {
            uid,
            attach,
            observer,
            journal,
            boot_id,
            state,
            counters,
            desired: PodDesired::at_start(&records),
            records,
            retries: Retries::default(),
            pins: HashMap::new(),
            damaged,
            observe_again: None,
            waiting: Vec::new(),
            checks: Vec::new(),
            proving: HashMap::new(),
            found_fine: HashMap::new(),
            since: Instant::now(),
        }
    }

    /// Runs until no record is left, or until `ending` is cancelled and no operation runs. When no record is
    /// left, `retire` decides whether the task may end. A panic costs one step: the task reads the journal
    /// again, as after a crash.
    pub(super) async fn run(
        mut self,
        mut commands: Commands<O::Owner>,
        retire: impl Fn(&Commands<O::Owner>) -> bool,
        ending: CancellationToken,
    ) {
        let mut failures = 0;
        loop {
            let life = async {
                if failures > 0 {
                    self.reload().await?;
                }
                self.live(&mut commands, &retire, &ending).await;
                Ok::<_, Failure>(())
            };
            match AssertUnwindSafe(life).catch_unwind().await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => {
                    tracing::error!(pod.uid = %self.uid, %error, "cannot read the pod's journal after a panic: trying again")
                }
                Err(_) => {
                    self.counters.panics.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(
                        pod.uid = %self.uid,
                        "a bug: the pod's task panicked and goes on from the journal; report this with the log"
                    );
                }
            }
            tokio::select! {
                () = tokio::time::sleep(delay_after(failures)) => failures += 1,
                () = ending.cancelled() => return,
            }
        }
    }

    /// Reads the records from the journal again.
    async fn reload(&mut self) -> Result<(), Failure> {
        let (journal, uid) = (self.journal.clone(), self.uid.clone());
        let loaded = blocking(move || journal.load_pod(&uid)).await?;
        // A pod that is damaged since the start is not an update.
        if let Some(file) = loaded.unreadable.first().filter(|_| self.damaged.is_none()) {
            return Err(Failure::new(format!("the journal file {} {}", file.path.display(), file.reason)));
        }
        self.records = loaded.records;
        sort(&mut self.records);
        self.answer_released();
        Ok(())
    }

    async fn live(
        &mut self,
        commands: &mut Commands<O::Owner>,
        retire: &impl Fn(&Commands<O::Owner>) -> bool,
        ending: &CancellationToken,
    ) {
        self.publish().await;
        loop {
            if ending.is_cancelled() {
                return;
            }
            // What a step or a command needs is many times what a pod needs that rests, as most do: it is on
            // the heap until it is done. The task would have room for all of it as long as the pod lives.
            while let Ok(command) = commands.try_recv() {
                Box::pin(self.apply(command)).await;
            }
            match self.desired.next_step(&self.records, &self.retries, &self.boot_id, Instant::now()) {
                Some((_, Step::Prove)) => Box::pin(self.prove(commands, ending)).await,
                Some((index, step)) => Box::pin(self.perform(index, step, commands)).await,
                None => {
                    if let Some(check) = self.checks.pop() {
                        Box::pin(self.check(check, commands)).await;
                        continue;
                    }
                    self.drop_idle_pins();
                    let now = Instant::now();
                    if self.observe_again.is_some_and(|due| due <= now) {
                        self.publish().await;
                    }
                    // A damaged pod stays, because its gate must stay shut.
                    if self.records.is_empty() && self.damaged.is_none() && retire(commands) {
                        return;
                    }
                    let observe_again = self.observe_again.filter(|due| *due > now);
                    let next = self.retries.next_due(now).into_iter().chain(observe_again).min();
                    tokio::select! {
                        command = commands.recv() => match command {
                            Some(command) => Box::pin(self.apply(command)).await,
                            None => return,
                        },
                        () = ending.cancelled() => return,
                        () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => {}
                    }
                }
            }
        }
    }

    async fn apply(&mut self, command: Command<O::Owner>) {
        match command {
            Command::Prepare { plans, reply } => {
                // What comes to a pod says nothing about whether it ends.
                let is_hot = plans.iter().all(Plan::is_hot);
                let result = self.prepare(plans).await;
                if !is_hot {
                    self.desired.prepared(&self.records);
                }
                self.publish().await;
                let _ = reply.send(result);
            }
            Command::SandboxUp(sandbox, netns) => {
                let asks = self.is_left_out(&sandbox, &netns).await;
                self.sandbox_up(sandbox, netns, asks).await;
            }
            Command::SandboxAsks(sandbox, netns) => self.sandbox_up(sandbox, netns, true).await,
            Command::SandboxUnfit(reason) => {
                self.desired.sandbox_unfit();
                for record in &mut self.records {
                    (record.error, record.failed) = (Some(reason.clone()), None);
                    record.cause = Cause::Other;
                }
                self.publish().await;
            }
            Command::SandboxGone(id) => {
                let Self { desired, records, boot_id, .. } = self;
                let known = desired.sandbox().cloned();
                let lives = || {
                    let records = records.clone();
                    PodState { sandbox: known, records, ..PodState::default() }.sandbox_lives(boot_id)
                };
                if desired.sandbox_gone(id.as_deref(), records, lives) {
                    self.begin_again();
                    self.publish().await;
                }
            }
            Command::Check(check) => self.checks.push(check),
            Command::RetryPermanent => self.retries.retry_permanent(),
            Command::Report => self.publish().await,
            Command::Redo { key, reply } => {
                let begins = self.redo(&key).await;
                self.publish().await;
                let _ = reply.send(begins);
            }
            Command::Release { group, reply } => {
                self.desired.release(&group, &self.records);
                self.retries.retry_now(Instant::now());
                self.waiting.push((group, reply));
                self.publish().await;
                self.answer_released();
            }
        }
    }

    /// Journals that an attachment and the later ones of its group are to be made again: the next agent would
    /// not find out with a part of them gone. Returns false if one of them cannot be, or there is other work.
    async fn redo(&mut self, key: &str) -> bool {
        let Some(broken) = self.record(key).filter(|record| record.can_be_repaired()) else { return false };
        let all: Vec<_> = self.records.iter().filter(|other| broken.is_redone_with(other)).cloned().collect();
        let is_here = |record: &Record<O::Owner>| {
            record.phase.sandbox().is_some_and(|sandbox| self.desired.is_current(&sandbox.id))
        };
        let can_be = |record: &Record<O::Owner>| {
            // Its DEL would be done, and its ADD would wait.
            let may_begin = self.attach.may_begin(&record.plan.spec).is_ok();
            record.can_be_redone() && is_here(record) && self.observer.is_repaired(&record.plan) && may_begin
        };
        if !self.is_settled() || !all.iter().all(can_be) {
            return false;
        }
        for record in all {
            let record = Record { is_redone: true, ..record };
            if let Err(error) = self.write(&record).await {
                // Without those that stand on it, the first one is made again alone.
                tracing::warn!(pod.uid = %self.uid, attachment = key, %error, "cannot journal a repair");
                return record.key() != key;
            }
            self.replace(record);
        }
        true
    }

    async fn sandbox_up(&mut self, sandbox: Sandbox, netns: Netns, asks: bool) {
        self.pins.insert(sandbox.id.clone(), netns);
        let is_new = if asks { self.desired.sandbox_asks(sandbox) } else { self.desired.sandbox_up(sandbox) };
        if is_new {
            // Failures in another sandbox say nothing about this one.
            self.begin_again();
        }
        self.publish().await;
    }

    /// Whether the runtime has made this sandbox without any network, so that the pod's primary one is made
    /// now, as if it had asked. What is made of it already, or its rest, is ours.
    async fn is_left_out(&self, sandbox: &Sandbox, netns: &Netns) -> bool {
        let mut records = self.records.iter();
        let Some(primary) = records.find(|record| record.plan.is_primary()) else { return false };
        let is_here = primary.phase.sandbox().is_some_and(|of| of.id == sandbox.id);
        is_here || self.attach.lacks_link(netns, PRIMARY_INTERFACE).await
    }

    /// Says why a primary network is not made in the pod's sandbox.
    fn note_other_eth0(&mut self) {
        let Self { desired, records, .. } = self;
        for record in records.iter_mut().filter(|record| desired.has_other_eth0(record)) {
            (record.error, record.failed) = (Some(OTHER_ETH0.to_owned()), None);
            record.cause = Cause::Other;
        }
    }

    /// Forgets failures in the earlier sandbox.
    fn begin_again(&mut self) {
        self.records.iter_mut().for_each(|record| record.error = None);
        self.retries.retry_now(Instant::now());
    }

    async fn prepare(&mut self, plans: Vec<Plan<O::Owner>>) -> Result<(), Failure> {
        for plan in plans {
            let record = Record::new(plan);
            if self.desired.is_released(record.plan.owner.group()) {
                return Err(Failure::new(format!("{} is being released: try again", record.plan.owner)));
            }
            if self.records.iter().any(|known| known.key() == record.key()) {
                continue;
            }
            self.write(&record).await?;
            self.records.push(record);
        }
        sort(&mut self.records);
        Ok(())
    }

    async fn perform(&mut self, index: usize, step: Step, commands: &mut Commands<O::Owner>) {
        match step {
            Step::Add(sandbox) => self.add(index, sandbox, commands).await,
            Step::Del(sandbox) => self.del(index, sandbox, commands).await,
            Step::Forget => self.forget(index).await,
            Step::Prove | Step::Rest => {}
        }
    }

    async fn add(&mut self, index: usize, sandbox: Sandbox, commands: &mut Commands<O::Owner>) {
        let Some(key) = self.records.get(index).map(Record::key) else { return };
        if !self.can_begin(&key, &sandbox, commands).await {
            return;
        }
        let Some((mut record, turn)) = self.revised(&key, &sandbox, commands).await else { return };
        if !self.advance(&mut record, Event::AddDue(sandbox.clone())) {
            return;
        }
        let traced = self.observer.trace(&record.plan, Operation::Add, &sandbox.id);
        let prev = match self.begin(&mut record).await {
            Ok(prev) => prev,
            Err(failure) => {
                traced.failed(&failure);
                return self.failed(&key, Operation::Add, failure).await;
            }
        };
        Failpoint::AddDue.reach();
        let (plan, moves) = (Arc::clone(&record.plan), record.moved_link.is_some());
        let asks = record.asks_in(&sandbox.id);
        let wire = asks.as_ref().unwrap_or(&plan.spec).wire;
        // The next agent would leave it on one that is made again.
        let is_on_unproven =
            self.records.iter().any(|earlier| earlier.made.is_some() && earlier.is_redone_with(&record));
        // Finalizers make nothing that is on a network.
        let is_proven_later = !plan.is_finalizer() && (wire.needs_proof() || is_on_unproven);
        self.replace(record);
        self.publish().await;
        if turn.is_some() {
            self.counters.revision.send_modify(|revision| *revision += 1);
        }
        drop(turn);
        tracing::debug!(pod.uid = %self.uid, attachment = %key, sandbox = %sandbox.id, "add");
        let (attach, span) = (Arc::clone(&self.attach), span(&plan, &sandbox.id, &traced));
        let operation = async move {
            let result = match &prev {
                Some(prev) => attach.finalize(&plan.spec, &sandbox, prev).await?,
                None => {
                    let spec = asks.as_ref().unwrap_or(&plan.spec);
                    attach.make_ready(spec, &sandbox).await.map_err(AddFailure::not_begun)?;
                    attach.add(spec, &sandbox).await?
                }
            };
            let index = if moves { attach.index_in_pod(&plan.spec, &sandbox).await } else { None };
            Ok((result, index))
        };
        let is_wanted = |pod: &Self| {
            let wants = |record| pod.desired.still_wants(record, &pod.records, &pod.boot_id);
            pod.record(&key).is_some_and(wants)
        };
        let started = Instant::now();
        let operation = operation.instrument(traced.span.clone()).instrument(span);
        let ended = self.attend(operation, commands, is_wanted).await;
        match &ended {
            Ended::Done(Ok(_)) => {}
            Ended::Done(Err(AddFailure { failure, .. })) => traced.failed(failure),
            Ended::CutShort => traced.failed(&"no longer wanted"),
        }
        drop(traced);
        let (end, failure) = match &ended {
            Ended::Done(Ok(_)) => (End::Succeeded, None),
            Ended::Done(Err(AddFailure { failure, .. })) => (End::Failed, Some(failure)),
            Ended::CutShort => (End::CutShort, None),
        };
        if is_proven_later && end == End::Succeeded {
            self.proving.insert(key.clone(), started);
        } else {
            self.ended(&key, Operation::Add, end, failure, started);
        }
        match ended {
            Ended::Done(Ok((result, _))) if is_proven_later => {
                if let Some(record) = self.records.iter_mut().find(|record| record.key() == key) {
                    record.made = Some(result);
                }
            }
            Ended::Done(Ok((result, index))) => self.added(&key, result, index).await,
            Ended::Done(Err(failed)) => {
                let failure = failed.failure.clone();
                self.add_failed(&key, failed).await;
                self.failed(&key, Operation::Add, failure).await;
            }
            Ended::CutShort => {
                tracing::info!(pod.uid = %self.uid, attachment = %key, "add cut short: no longer wanted")
            }
        }
    }

    /// Journals the beginning of an ADD with what it has to be undone by. Returns the `prevResult` of a
    /// finalizer.
    async fn begin(&self, record: &mut Record<O::Owner>) -> Result<Option<CniResult>, Failure> {
        let prev = self.prev_result(record)?;
        record.checked = false;
        if !record.plan.is_finalizer() {
            record.host_link = self.attach.host_link(&record.plan.spec);
            record.moved_link = self.attach.link_to_move(&record.plan.spec).await?;
        }
        self.write(record).await?;
        Ok(prev)
    }

    /// Returns what the pod's attachments have made, for a finalizer.
    fn prev_result(&self, record: &Record<O::Owner>) -> Result<Option<CniResult>, Failure> {
        if !record.plan.is_finalizer() {
            return Ok(None);
        }
        let attachments = self.records.iter().filter(|other| record.plan.works_on(&other.plan));
        let results = attachments.filter_map(|attachment| attachment.phase.result());
        let merged = CniResult::merged(results, record.plan.spec.conflist.version());
        merged.map(Some).map_err(|error| Failure::of(&error))
    }

    /// Whether the ADD that is due can begin. The journal does not have it yet, so that nothing is owed if
    /// not.
    async fn can_begin(&mut self, key: &str, sandbox: &Sandbox, commands: &mut Commands<O::Owner>) -> bool {
        let Some(plan) = self.record(key).map(|record| Arc::clone(&record.plan)) else { return false };
        let (attach, of_add) = (Arc::clone(&self.attach), sandbox.clone());
        let looked = async move {
            let begins = if plan.is_finalizer() {
                attach.can_finalize(&plan.spec).await
            } else {
                attach.can_begin(&plan.spec, &of_add).await
            };
            begins.map_err(|failure| {
                let message = Failure::new(format!("{}: {}", plan.owner, failure.message)).message;
                Failure { message, ..failure }
            })
        };
        match self.attend(looked, commands, |pod| pod.wants_in(key, sandbox)).await {
            Ended::Done(Ok(())) => true,
            Ended::Done(Err(failure)) => {
                self.failed(key, Operation::Add, failure).await;
                false
            }
            Ended::CutShort => false,
        }
    }

    /// Whether an attachment is wanted in this sandbox.
    fn wants_in(&self, key: &str, sandbox: &Sandbox) -> bool {
        let desired = self.record(key).map(|record| self.desired.of(record, &self.records, &self.boot_id));
        matches!(desired, Some(Desired::Attached(desired)) if desired.id == sandbox.id)
    }

    /// Returns the record whose ADD is due, with the plan of now, and what keeps that from others until it is
    /// journalled. `None` if there is nothing to add any more, or not now.
    async fn revised(
        &mut self,
        key: &str,
        sandbox: &Sandbox,
        commands: &mut Commands<O::Owner>,
    ) -> Option<(Record<O::Owner>, Option<Box<dyn Any + Send>>)> {
        let (mut record, observer) = (self.record(key)?.clone(), Arc::clone(&self.observer));
        record.begin_in(&sandbox.id);
        let wants = |pod: &Self| pod.wants_in(key, sandbox);
        match self.attend(async move { observer.revise(&record).await }, commands, wants).await {
            Ended::Done(Ok(revised)) => {
                let mut record = self.record(key)?.clone();
                record.begin_in(&sandbox.id);
                let turn = revised.map(|Revised { plan, turn }| {
                    tracing::info!(pod.uid = %self.uid, attachment = %key, "planned again");
                    record.plan = Arc::new(plan);
                    turn
                });
                Some((record, turn))
            }
            Ended::Done(Err(failure)) => {
                self.failed(key, Operation::Add, failure).await;
                None
            }
            Ended::CutShort => None,
        }
    }

    /// Journals what a failed ADD has left. If that cannot be written, the journal says that a DEL is owed.
    async fn add_failed(&mut self, key: &str, failed: AddFailure) {
        let Some(mut record) = self.record(key).cloned() else { return };
        let owes_del = failed.owes_del();
        let event = if owes_del { Event::AddFailed(failed.last_good) } else { Event::AddMadeNothing };
        if !self.advance(&mut record, event) {
            return;
        }
        if owes_del {
            record.stopped = failed.stopped;
        } else {
            record.moved_link = None;
        }
        let written = self.write(&record).await;
        if let Err(error) = &written {
            tracing::warn!(pod.uid = %self.uid, attachment = %key, %error, "cannot journal that an ADD failed");
        }
        if owes_del || written.is_ok() {
            self.replace(record);
        }
    }

    async fn added(&mut self, key: &str, result: CniResult, index_in_pod: Option<u32>) {
        let Some(mut record) = self.record(key).cloned() else { return };
        self.found_fine.insert(key.to_owned(), Instant::now());
        Failpoint::Added.reach();
        if !self.advance(&mut record, Event::Added(result)) {
            return;
        }
        (record.error, record.failed) = (None, None);
        record.in_use.clear();
        // A bridge may be made by the ADD.
        if !record.plan.is_finalizer() {
            record.host_link = record.host_link.or_else(|| self.attach.host_link(&record.plan.spec));
        }
        if let Some(link) = &mut record.moved_link {
            link.index_in_pod = index_in_pod;
        }
        // Without the record a crash would detach a running pod, so this counts as a failed ADD. What is to
        // be proven stays made, and is proven again after a while.
        match self.write(&record).await {
            Ok(()) => {
                Failpoint::AddNoted.reach();
                tracing::debug!(pod.uid = %self.uid, attachment = %key, "added");
                self.retries.succeeded(key);
                self.replace(record);
                self.publish().await;
            }
            Err(failure) => self.failed(key, Operation::Add, failure).await,
        }
    }

    async fn del(&mut self, index: usize, sandbox: Sandbox, commands: &mut Commands<O::Owner>) {
        let Some(mut record) = self.records.get(index).cloned() else { return };
        let key = record.key();
        if record.stray.is_some() {
            return self.look_for_stray(record, sandbox, commands).await;
        }
        if !matches!(record.phase, Phase::Deleting { .. }) {
            if record.is_redone
                && let Phase::Attached { sandbox, result } = &record.phase
            {
                let capability_args = same_again(&record.plan.spec, sandbox, result);
                record.repaired = Some(Repaired { sandbox_id: sandbox.id.clone(), capability_args });
                record.checked = false;
            }
            record.is_redone = false;
            if let Some(started) = self.proving.remove(&key) {
                self.ended(&key, Operation::Add, End::CutShort, None, started);
            }
            self.desired.undone(&record);
            // The DEL needs what the ADD has made.
            let event = record.made.take().map_or(Event::DelDue, |made| Event::AddFailed(Some(made)));
            if !self.advance(&mut record, event) {
                return;
            }
            record.check = None;
            // The journal says already that a DEL is owed. It runs although this cannot be written.
            if let Err(error) = self.write(&record).await {
                tracing::warn!(pod.uid = %self.uid, attachment = %key, %error, "cannot journal the start of a DEL: running it nevertheless");
            }
            self.replace(record.clone());
            self.publish().await;
        }
        let Phase::Deleting { result, .. } = &record.phase else { return };
        // That of a finalizer's ADD which failed at once is what it was given.
        let result = result.clone().or_else(|| self.prev_result(&record).ok().flatten());
        let (stopped, attempt) = (record.stopped, self.retries.del_attempt(&key));
        let netns = match self.netns_for_del(&sandbox, attempt) {
            Ok(netns) => netns,
            Err(failure) => return self.failed(&key, Operation::Del, failure).await,
        };
        tracing::debug!(pod.uid = %self.uid, attachment = %key, sandbox = %sandbox.id, ?netns, "del");
        let after_reboot = sandbox.boot_id != *self.boot_id;
        // After a reboot the host sets up its links itself.
        let moved_link = record.moved_link.clone().filter(|_| !after_reboot);
        Failpoint::DelDue.reach();
        let traced = self.observer.trace(&record.plan, Operation::Del, &sandbox.id);
        let (attach, plan, span) =
            (Arc::clone(&self.attach), Arc::clone(&record.plan), span(&record.plan, &sandbox.id, &traced));
        let asked = record.asks_in(&sandbox.id);
        let operation = async move {
            let netns = netns.as_ref().map(|(path, _)| path.as_path());
            let (result, moved_link) = (result.as_ref(), moved_link.as_ref());
            let sandbox_id = &sandbox.id;
            let del = Del { sandbox_id, netns, result, stopped, after_reboot, moved_link, attempt };
            attach.del(asked.as_ref().unwrap_or(&plan.spec), del).await
        };
        let started = Instant::now();
        let operation = operation.instrument(traced.span.clone()).instrument(span);
        let ended = self.attend(operation, commands, |_| true).await;
        match &ended {
            Ended::Done(Ok(DelOutcome::GivenUp(why) | DelOutcome::Stray(why))) => traced.failed(why),
            Ended::Done(Err(failure)) => traced.failed(failure),
            Ended::Done(Ok(DelOutcome::Clean)) | Ended::CutShort => {}
        }
        drop(traced);
        if let Ended::Done(result) = &ended {
            self.ended(&key, Operation::Del, result.into(), result.as_ref().err(), started);
        }
        match ended {
            Ended::Done(Ok(DelOutcome::Stray(why))) => self.strayed(&key, why).await,
            Ended::Done(Ok(outcome)) => self.finished(&key, outcome).await,
            Ended::Done(Err(failure)) => self.failed(&key, Operation::Del, failure).await,
            Ended::CutShort => {}
        }
    }

    /// Reports an operation that has ended.
    fn ended(&self, key: &str, operation: Operation, end: End, failure: Option<&Failure>, started: Instant) {
        if let Some(record) = self.record(key) {
            self.observer.ended(&record.plan, operation, end, failure, started.elapsed());
        }
    }

    async fn finished(&mut self, key: &str, outcome: DelOutcome) {
        if let (DelOutcome::GivenUp(mut why), Some(record)) = (outcome, self.record(key)) {
            // A DEL that failed in the namespace says more than what is missing without it.
            let failed = record.error.as_ref().filter(|_| record.failed == Some(Operation::Del));
            if let Some(error) = failed.filter(|error| !why.contains(error.as_str())) {
                why = format!("{why}; DEL has failed before: {error}");
            }
            tracing::error!(pod.uid = %self.uid, attachment = %key, why, "given up: something may be left on the node");
            self.observer.given_up(&record.plan, &why);
        }
        self.deleted(key).await;
    }

    /// Keeps the record of a link that is not back, so that no other pod gets it. The group does not wait for
    /// it.
    async fn strayed(&mut self, key: &str, why: String) {
        let Some(mut record) = self.record(key).cloned() else { return };
        tracing::error!(pod.uid = %self.uid, attachment = %key, why, "a link has not come back to the node as it was: no pod gets it until it has");
        let note = format!("{why}; the agent looks for the link, and no pod gets it until it is as it was");
        self.observer.given_up(&record.plan, &note);
        record.stray = Some(why.clone());
        // If this is lost, the next agent runs one more DEL.
        if let Err(error) = self.write(&record).await {
            tracing::warn!(pod.uid = %self.uid, attachment = %key, %error, "cannot journal that a link is a stray");
        }
        self.replace(record);
        self.answer_released();
        self.failed(key, Operation::Del, Failure::new(why)).await;
    }

    async fn look_for_stray(
        &mut self,
        record: Record<O::Owner>,
        sandbox: Sandbox,
        commands: &mut Commands<O::Owner>,
    ) {
        let key = record.key();
        let (attach, plan) = (Arc::clone(&self.attach), Arc::clone(&record.plan));
        // After a reboot the host sets up its links itself.
        let Some(link) = record.moved_link.filter(|_| sandbox.boot_id == *self.boot_id) else {
            return self.deleted(&key).await;
        };
        let operation = async move { attach.give_back(&plan.spec, &link).await };
        match self.attend(operation, commands, |_| true).await {
            Ended::Done(Ok(DelOutcome::Stray(why)) | Err(Failure { message: why, .. })) => {
                self.failed(&key, Operation::Del, Failure::new(why)).await;
                self.retries.is_stray(&key, Instant::now());
            }
            Ended::Done(Ok(outcome)) => self.finished(&key, outcome).await,
            Ended::CutShort => {}
        }
    }

    async fn deleted(&mut self, key: &str) {
        Failpoint::Deleted.reach();
        let Some(mut record) = self.record(key).cloned() else { return };
        if !self.advance(&mut record, Event::Deleted) {
            return;
        }
        (record.moved_link, record.host_link, record.stopped, record.stray) = (None, None, None, None);
        if record.failed == Some(Operation::Del) {
            (record.error, record.failed) = (None, None);
        }
        if self.desired.is_released(record.plan.owner.group()) {
            // The record goes at once: no `Planned` in between.
            self.replace(record);
            if let Some(index) = self.records.iter().position(|r| r.key() == key) {
                self.forget(index).await;
            }
            return;
        }
        match self.write(&record).await {
            Ok(()) => {
                // After a failed ADD the delay continues. After any other DEL there is nothing to wait for.
                if record.error.is_none() {
                    self.retries.succeeded(key);
                }
                self.replace(record);
                self.publish().await;
            }
            Err(failure) => self.failed(key, Operation::Del, failure).await,
        }
    }

    async fn forget(&mut self, index: usize) {
        let Some(record) = self.records.get(index).cloned() else { return };
        let (journal, gone) = (self.journal.clone(), record.clone());
        match blocking(move || journal.remove(&gone)).await {
            Ok(()) => {
                Failpoint::Forgotten.reach();
                self.records.remove(index);
                self.retries.succeeded(&record.key());
                self.publish().await;
                self.answer_released();
            }
            Err(failure) => self.failed(&record.key(), Operation::Del, failure).await,
        }
    }

    fn is_settled(&self) -> bool {
        self.desired.is_reached(&self.records, &self.boot_id)
    }

    async fn check(&mut self, check: Check, commands: &mut Commands<O::Owner>) {
        let Check { key, may_look, mut reply } = check;
        let key = key.as_str();
        let Some(record) = self.record(key).filter(|_| self.is_settled()).cloned() else { return };
        let Phase::Attached { sandbox, result } = record.phase.clone() else { return };
        let span = span(&record.plan, &sandbox.id, &Traced::default());
        let (attach, plan) = (Arc::clone(&self.attach), Arc::clone(&record.plan));
        let asked = record.asks_in(&sandbox.id);
        // Plugins decide where something was wrong or their answer is old, and where the link was made again.
        // What is repaired by their word must have had their word first.
        let may_look = may_look
            && record.check.is_none()
            && (record.checked || !self.observer.is_repaired(&plan))
            && self.found_fine.get(key).unwrap_or(&self.since).elapsed() < self.check_lifetime(key)
            && (record.host_link.is_none() || self.attach.host_link(&plan.spec) == record.host_link);
        let check = async move {
            if may_look && attach.is_as_made(&plan.spec, &sandbox, &result).await {
                return (Checked::Fine, false);
            }
            (attach.check(asked.as_ref().unwrap_or(&plan.spec), &sandbox, &result).await, true)
        };
        let operation = async move {
            tokio::select! {
                checked = check => Some((checked, reply)),
                // The caller is gone: the agent ends.
                () = reply.closed() => None,
            }
        };
        let ended = self.attend(operation.instrument(span), commands, Self::is_settled).await;
        let Ended::Done(Some(((mut checked, is_by_plugins), reply))) = ended else { return };
        if checked == Checked::Fine && is_by_plugins {
            self.found_fine.insert(key.to_owned(), Instant::now());
            self.note_checked(key).await;
        }
        let now = record.host_link.and_then(|_| self.attach.host_link(&record.plan.spec));
        // What a plugin finds to be fine is fine. Without a CHECK, the index decides.
        if checked != Checked::Fine && now != record.host_link && now.is_some() {
            let message = match checked {
                Checked::Failed(found) => format!("{MADE_AGAIN}: {found}"),
                Checked::Fine | Checked::Unknown(_) => MADE_AGAIN.to_owned(),
            };
            checked = Checked::Failed(Finding { message, is_of_interface: true });
        }
        let found = match &checked {
            Checked::Fine => Some(None),
            Checked::Failed(found) => Some(Some(found.clone())),
            Checked::Unknown(_) => None,
        };
        if let Some(found) = found
            && let Some(record) = self.records.iter_mut().find(|record| record.key() == key)
            && record.check != found
        {
            record.check = found;
            self.publish().await;
        }
        let _ = reply.send(checked);
    }

    /// How long a look may stand for a CHECK of this attachment: the same for as long as it lives.
    fn check_lifetime(&self, key: &str) -> Duration {
        let mut hasher = DefaultHasher::new();
        (&self.uid, key).hash(&mut hasher);
        CHECK_LIFETIME / 2 + CHECK_LIFETIME.mul_f64((hasher.finish() % 1024) as f64 / 2048.0)
    }

    /// Journals that a CHECK has succeeded, where that decides about repairs. If it cannot be written, the
    /// next one tries again.
    async fn note_checked(&mut self, key: &str) {
        let Some(record) = self.record(key).filter(|record| !record.checked) else { return };
        if !self.observer.is_repaired(&record.plan) {
            return;
        }
        let record = Record { checked: true, ..record.clone() };
        match self.write(&record).await {
            Ok(()) => {
                self.replace(record);
                self.publish().await;
            }
            Err(error) => {
                tracing::warn!(pod.uid = %self.uid, attachment = %key, %error, "cannot journal that a CHECK has succeeded");
            }
        }
    }

    /// Runs `operation` while taking commands. Ends it when `is_wanted` returns false after a command.
    async fn attend<T>(
        &mut self,
        operation: impl Future<Output = T>,
        commands: &mut Commands<O::Owner>,
        is_wanted: impl Fn(&Self) -> bool,
    ) -> Ended<T> {
        tokio::pin!(operation);
        loop {
            tokio::select! {
                biased;
                result = &mut operation => return Ended::Done(result),
                command = commands.recv() => match command {
                    Some(command) => {
                        self.apply(command).await;
                        if !is_wanted(self) {
                            return Ended::CutShort;
                        }
                    }
                    // The agent ends. The journal has the operation.
                    None => return Ended::Done(operation.await),
                },
            }
        }
    }

    /// Returns the sandbox's network namespace and its current path for plugins; `None` when it is proven
    /// gone.
    fn netns_for_del(
        &mut self,
        sandbox: &Sandbox,
        attempt: Attempt,
    ) -> Result<Option<(PathBuf, Netns)>, Failure> {
        if sandbox.boot_id != *self.boot_id {
            return Ok(None);
        }
        match Netns::open(&sandbox.netns) {
            // The path may belong to another namespace by now.
            Ok(netns) if netns.id() == sandbox.netns_id => return Ok(Some((sandbox.netns.clone(), netns))),
            Err(error) if !error.is_gone() && !self.pins.contains_key(&sandbox.id) => {
                return Err(Failure::of(&error));
            }
            Ok(_) | Err(_) => {}
        }
        if attempt.is_hopeless() && !self.desired.is_current(&sandbox.id) {
            self.pins.remove(&sandbox.id);
        }
        Ok(self.pins.get(&sandbox.id).map(|netns| (netns.path_for_plugins(), netns.clone())))
    }

    fn drop_idle_pins(&mut self) {
        let Self { desired, records, pins, .. } = self;
        let owes = |record: &Record<O::Owner>, id: &str| {
            record.stray.is_none() && record.phase.sandbox().is_some_and(|sandbox| sandbox.id == id)
        };
        pins.retain(|id, _| desired.is_current(id) || records.iter().any(|record| owes(record, id)));
    }

    async fn failed(&mut self, key: &str, operation: Operation, failure: Failure) {
        tracing::warn!(pod.uid = %self.uid, attachment = %key, error = %failure, "attachment failed");
        self.retries.failed(key, operation, failure.is_permanent, Instant::now());
        if let Some(record) = self.records.iter_mut().find(|r| r.key() == key) {
            (record.error, record.failed) = (Some(failure.message.clone()), Some(operation));
            record.cause = failure.cause;
            // Neither a DEL nor an ADD that did not begin makes an address free.
            let has_run = operation == Operation::Add && record.phase != Phase::Planned;
            if has_run || !failure.in_use.is_empty() {
                record.in_use.clone_from(&failure.in_use);
            }
            let group = record.plan.owner.group();
            for (_, reply) in self.waiting.extract_if(.., |(waiting, _)| waiting == group) {
                let _ = reply.send(Err(failure.clone()));
            }
        }
        self.publish().await;
    }

    /// Answers the releases of groups that have no record left but those of stray links.
    fn answer_released(&mut self) {
        let records = &self.records;
        let owes = |group: &str| records.iter().any(|r| r.plan.owner.group() == group && r.stray.is_none());
        for (_, reply) in self.waiting.extract_if(.., |(group, _)| !owes(group)) {
            let _ = reply.send(Ok(()));
        }
        // A release that was answered with an error, or while a link is a stray, continues by itself and ends
        // here.
        self.desired.forget_released(records);
    }

    /// The number of DELs that no release waits for any more.
    fn dels_failing(&self) -> usize {
        let is_hopeless = |record: &&Record<O::Owner>| {
            matches!(record.phase, Phase::Deleting { .. })
                && record.stray.is_none()
                && self.retries.del_attempt(&record.key()).is_hopeless()
        };
        self.records.iter().filter(is_hopeless).count()
    }

    async fn publish(&mut self) {
        self.note_other_eth0();
        let mut state = PodState {
            sandbox: self.desired.believed_sandbox(&self.records, &self.boot_id),
            records: self.records.clone(),
            closing: self.desired.is_closing(),
            leaving: self.desired.leaving(&self.records),
            damaged: self.damaged.clone(),
            held: None,
            dels_failing: self.dels_failing(),
        };
        state.held = self.observer.observe(&self.uid, &state).await.err().map(|failure| failure.message);
        self.observe_again = state.held.is_some().then(|| Instant::now() + OBSERVE_AGAIN);
        let held = |state: &PodState<O::Owner>| {
            let count =
                |is: fn(&Record<O::Owner>) -> bool| state.records.iter().filter(|one| is(one)).count();
            (state.records.len(), count(|one| one.stray.is_some()), count(|one| one.check.is_some()))
        };
        let is_open = |state: &PodState<O::Owner>| {
            state.sandbox.as_ref().is_some_and(|one| state.gate(&one.id) == Gate::Open)
        };
        let (now, opens) = (held(&state), is_open(&state));
        let before = self.state.send_replace(state);
        self.counters.usage.replace(&before.records, &self.records);
        if held(&before) != now {
            self.counters.revision.send_modify(|revision| *revision += 1);
        }
        if opens && !is_open(&before) {
            self.counters.opened.send_modify(|opened| *opened += 1);
        }
    }

    fn record(&self, key: &str) -> Option<&Record<O::Owner>> {
        self.records.iter().find(|record| record.key() == key)
    }

    /// Applies an event to a record. Returns false, and counts a bug, if the state machine refuses it.
    fn advance(&self, record: &mut Record<O::Owner>, event: Event) -> bool {
        match machine::after(record.phase.clone(), event) {
            Ok(phase) => {
                (record.phase, record.made) = (phase, None);
                true
            }
            Err(illegal) => {
                self.counters.illegal.fetch_add(1, Ordering::Relaxed);
                tracing::error!(pod.uid = %self.uid, attachment = record.key(), %illegal, "a bug: report this with the log");
                false
            }
        }
    }

    fn replace(&mut self, record: Record<O::Owner>) {
        let key = record.key();
        if let Some(known) = self.records.iter_mut().find(|known| known.key() == key) {
            *known = record;
        }
    }

    async fn write(&self, record: &Record<O::Owner>) -> Result<(), Failure> {
        let (journal, record) = (self.journal.clone(), record.clone());
        blocking(move || journal.write(&record)).await
    }
}

/// Returns the log's span of an operation: its fields appear in all logs, above all with a plugin's standard
/// error. The trace's id is the one that plugins get.
fn span<O: Owner>(plan: &Plan<O>, sandbox_id: &str, traced: &Traced) -> tracing::Span {
    let span = tracing::info_span!("attachment", owner = %plan.owner, sandbox = sandbox_id, trace_id = tracing::field::Empty);
    if let Some(id) = &traced.trace_id {
        span.record("trace_id", tracing::field::display(id));
    }
    span
}

/// Runs an operation of the journal off the async threads, because it may wait for the disk.
pub(super) async fn blocking<T: Send + 'static>(
    operation: impl FnOnce() -> Result<T, journal::Error> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(operation).await {
        Ok(result) => result.map_err(|error| Failure::of(&error)),
        Err(_) => Err(Failure::new("the journal's thread died")),
    }
}
