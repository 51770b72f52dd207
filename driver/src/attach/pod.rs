//! One pod, one task: carries out what [`machine`](super::machine) decides, one operation at a time.
//!
//! Attachments of one sandbox are made in the order of the plans and removed in reverse, never two at once
//! (CNI specification, section 3); pods do not wait for each other, and claims of a pod not for each other's failed DELs.
//! Commands are taken while an operation runs: an ADD whose sandbox is gone or whose claim is released is cut short, a DEL
//! never.

use std::collections::{BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::journal::Journal;
use super::machine::{self, Event, Step, Want};
use super::record::{Phase, Plan, Record, Sandbox};
use super::{Checked, Failure, Network, Observer, PodState, Tally, Undone};
use crate::failpoint::Failpoint;
use crate::links::Netns;
use netclaim_cni::error_chain;

/// First pause before a failed operation is tried again; doubled with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Pause before an observer that failed is told again.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// Failed DELs after which the namespace of a sandbox that has ended is no longer held: a plugin that cannot succeed in
/// it may do without it, and pods must be able to go.
const HOPELESS: u32 = 5;
/// Between looks for a link that is not back: mostly somebody has to do something.
const STRAY_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause: the kubelet asks for the container again every 10 to 15 s.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What a pod's task is told.
#[derive(Debug)]
pub(super) enum Command {
    /// Take these plans, unless they are there already.
    Prepare { plans: Vec<Plan>, reply: oneshot::Sender<Result<(), String>> },
    /// The pod's sandbox is this one.
    SandboxUp(Sandbox, Netns),
    /// The pod has a sandbox that nothing can be attached to.
    SandboxUnfit(String),
    /// This sandbox, or with `None` whatever sandbox there was, is gone.
    SandboxGone(Option<String>),
    /// Check this attachment, if it is made and nothing is to be done; no answer if not.
    Check { key: String, reply: oneshot::Sender<Checked> },
    /// The claim is over: DEL what is owed, forget the rest, then answer.
    Release { claim_uid: String, reply: oneshot::Sender<Result<(), String>> },
}

/// Whether the pod has a sandbox.
enum Known {
    /// Not asked yet.
    Unknown,
    None,
    Sandbox(Sandbox),
}

/// A failed operation waits before it is tried again; the DEL that a failed ADD owes does not.
#[derive(Clone, Copy)]
struct Pause {
    failures: u32,
    until: Instant,
    verb: Verb,
}

/// What failed and is to be tried again.
#[derive(Clone, Copy, PartialEq)]
enum Verb {
    Add,
    Del,
}

pub(super) struct Pod<N, O> {
    pub(super) uid: String,
    pub(super) network: Arc<N>,
    pub(super) observer: Arc<O>,
    pub(super) journal: Journal,
    pub(super) boot_id: Arc<str>,
    pub(super) state: watch::Sender<PodState>,
    pub(super) tally: Arc<Tally>,
    records: Vec<Record>,
    pauses: HashMap<String, Pause>,
    sandbox: Known,
    /// Network namespaces held open, by sandbox id, until nothing is owed there: CRI-O removes the name before
    /// it tells, and a namespace that is held still has its links.
    pins: HashMap<String, Netns>,
    released: BTreeSet<String>,
    /// A claim was released; until the next Prepare the pod is on its way out.
    closing: bool,
    damaged: Option<String>,
    /// When the observer, which failed, is told the state again.
    tell_again: Option<Instant>,
    waiting: Vec<(String, oneshot::Sender<Result<(), String>>)>,
    checks: Vec<(String, oneshot::Sender<Checked>)>,
}

/// What came of an operation that could be interrupted.
enum Outcome<T> {
    Done(Result<T, Failure>),
    CutShort,
}

impl<N: Network, O: Observer> Pod<N, O> {
    pub(super) fn new(
        uid: String,
        network: Arc<N>,
        observer: Arc<O>,
        journal: Journal,
        boot_id: Arc<str>,
        state: watch::Sender<PodState>,
        tally: Arc<Tally>,
    ) -> Self {
        // Records from the journal may have a sandbox that the runtime has not told of yet.
        let PodState { records, damaged, .. } = state.borrow().clone();
        let sandbox = if records.is_empty() { Known::None } else { Known::Unknown };
        Self {
            uid,
            network,
            observer,
            journal,
            boot_id,
            state,
            tally,
            records,
            pauses: HashMap::new(),
            sandbox,
            pins: HashMap::new(),
            released: BTreeSet::new(),
            closing: false,
            damaged,
            tell_again: None,
            waiting: Vec::new(),
            checks: Vec::new(),
        }
    }

    /// Runs until nothing is left to remember, or `ending` and no operation runs. `retire` is asked when nothing is
    /// left, and says whether the task may end. A panic costs the step that it happened in: what that step has left
    /// half done is read from the journal, as after a crash.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        retire: impl Fn(&mpsc::UnboundedReceiver<Command>) -> bool,
        ending: CancellationToken,
    ) {
        let mut failures = 0;
        loop {
            let life = async {
                if failures > 0 {
                    self.reload().await?;
                }
                self.live(&mut commands, &retire, &ending).await;
                Ok::<_, String>(())
            };
            match AssertUnwindSafe(life).catch_unwind().await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => {
                    tracing::error!(pod.uid = %self.uid, %error, "cannot read the pod's journal after a panic: trying again")
                }
                Err(_) => {
                    self.tally.panics.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(
                        pod.uid = %self.uid,
                        "a bug: the pod's task panicked and goes on from the journal; report this with the log"
                    );
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause_after(failures)) => failures += 1,
                () = ending.cancelled() => return,
            }
        }
    }

    /// Takes the records anew from the journal.
    async fn reload(&mut self) -> Result<(), String> {
        let (journal, uid) = (self.journal.clone(), self.uid.clone());
        let loaded = blocking(move || journal.load_pod(&uid)).await?;
        // Of a damaged pod this is known since the start.
        if let Some(file) = loaded.unreadable.first().filter(|_| self.damaged.is_none()) {
            return Err(format!("the journal file {} {}", file.path.display(), file.reason));
        }
        self.records = loaded.records;
        self.sort();
        self.answer_released();
        Ok(())
    }

    async fn live(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        retire: &impl Fn(&mpsc::UnboundedReceiver<Command>) -> bool,
        ending: &CancellationToken,
    ) {
        self.publish().await;
        loop {
            if ending.is_cancelled() {
                return;
            }
            while let Ok(command) = commands.try_recv() {
                self.apply(command).await;
            }
            match self.next_step() {
                Some((index, step)) => self.perform(index, step, commands).await,
                None => {
                    if let Some((key, reply)) = self.checks.pop() {
                        self.check(&key, reply, commands).await;
                        continue;
                    }
                    self.drop_idle_pins();
                    let now = Instant::now();
                    if self.tell_again.is_some_and(|due| due <= now) {
                        self.publish().await;
                    }
                    // A damaged pod is remembered for its gate's sake.
                    if self.records.is_empty() && self.damaged.is_none() && retire(commands) {
                        return;
                    }
                    let pauses = self.pauses.values().map(|pause| pause.until);
                    let pause = pauses.chain(self.tell_again).filter(|until| *until > now).min();
                    tokio::select! {
                        command = commands.recv() => match command {
                            Some(command) => self.apply(command).await,
                            None => return,
                        },
                        () = ending.cancelled() => return,
                        () = tokio::time::sleep_until(pause.unwrap_or_else(Instant::now)), if pause.is_some() => {}
                    }
                }
            }
        }
    }

    async fn apply(&mut self, command: Command) {
        match command {
            Command::Prepare { plans, reply } => {
                let result = self.prepare(plans).await;
                self.closing = !self.released.is_empty();
                self.publish().await;
                let _ = reply.send(result);
            }
            Command::SandboxUp(sandbox, netns) => {
                self.pins.insert(sandbox.id.clone(), netns);
                if !matches!(&self.sandbox, Known::Sandbox(known) if known.id == sandbox.id) {
                    // What failed in another sandbox says nothing about this one.
                    self.records.iter_mut().for_each(|record| record.error = None);
                    self.hurry();
                }
                self.sandbox = Known::Sandbox(sandbox);
                self.publish().await;
            }
            Command::SandboxUnfit(reason) => {
                self.sandbox = Known::None;
                self.records.iter_mut().for_each(|record| record.error = Some(reason.clone()));
                self.publish().await;
            }
            Command::SandboxGone(id) => {
                let current = match (&self.sandbox, &id) {
                    (Known::Sandbox(sandbox), Some(id)) => sandbox.id == *id,
                    (_, None) => !self.lives(),
                    // Of a pod that nothing is known of, any sandbox may be the one that is recorded.
                    (Known::Unknown, Some(id)) => {
                        self.records.iter().any(|r| r.phase.sandbox().is_some_and(|s| s.id == *id))
                    }
                    (Known::None, Some(_)) => false,
                };
                if current {
                    self.sandbox = Known::None;
                    self.records.iter_mut().for_each(|record| record.error = None);
                    self.hurry();
                    self.publish().await;
                }
            }
            Command::Check { key, reply } => self.checks.push((key, reply)),
            Command::Release { claim_uid, reply } => {
                self.released.insert(claim_uid.clone());
                self.closing = true;
                self.hurry();
                self.waiting.push((claim_uid, reply));
                self.publish().await;
                self.answer_released();
            }
        }
    }

    /// What waits for its next try need not wait any longer; how often it has failed is remembered.
    fn hurry(&mut self) {
        self.pauses.retain(|_, pause| pause.verb == Verb::Del);
        let now = Instant::now();
        self.pauses.values_mut().for_each(|pause| pause.until = now);
    }

    /// Whether a sandbox that is known of the pod is still there, whatever the runtime lists.
    fn lives(&self) -> bool {
        let sandbox = match &self.sandbox {
            Known::Sandbox(sandbox) => Some(sandbox.clone()),
            Known::Unknown | Known::None => None,
        };
        let records = self.records.clone();
        PodState { sandbox, records, ..PodState::default() }.sandbox_lives(&self.boot_id)
    }

    async fn prepare(&mut self, plans: Vec<Plan>) -> Result<(), String> {
        for plan in plans {
            let record = Record::new(plan);
            if self.released.contains(&record.plan.claim.uid) {
                return Err(format!("claim {} is being released: try again", record.plan.claim));
            }
            if self.records.iter().any(|known| known.key() == record.key()) {
                continue;
            }
            self.write(&record).await?;
            self.records.push(record);
        }
        self.sort();
        Ok(())
    }

    /// Into the order in which attachments are made.
    fn sort(&mut self) {
        self.records
            .sort_by(|a, b| (&a.plan.claim.name, a.plan.index).cmp(&(&b.plan.claim.name, b.plan.index)));
    }

    fn want(&self, record: &Record) -> Want {
        if self.released.contains(&record.plan.claim.uid) {
            return Want::Forgotten;
        }
        match &self.sandbox {
            Known::Unknown => Want::Unknown,
            Known::None => Want::Detached,
            Known::Sandbox(sandbox) => Want::Attached(sandbox.clone()),
        }
    }

    /// What to do now: debts first, in reverse; then, while nothing is owed, the first ADD that is missing.
    fn next_step(&self) -> Option<(usize, Step)> {
        let now = Instant::now();
        let paused = |index: usize, step: &Step| {
            let pause = self.records.get(index).and_then(|record| self.pauses.get(&record.key()));
            pause.is_some_and(|pause| {
                pause.until > now && (pause.verb == Verb::Add) == matches!(step, Step::Add(_))
            })
        };
        let steps: Vec<(usize, Step)> = self
            .records
            .iter()
            .enumerate()
            .map(|(i, record)| (i, machine::next(record, &self.want(record), &self.boot_id)))
            .filter(|(_, step)| *step != Step::Rest)
            .collect();
        let payable = |i: usize, step: &Step| {
            !matches!(step, Step::Add(_)) && !paused(i, step) && !self.carries(i, &steps)
        };
        let debt = steps.iter().rev().find(|(i, step)| payable(*i, step));
        if debt.is_some() {
            return debt.cloned();
        }
        // A DEL that waits for its next try may hold what an ADD needs: a device, an address, a name.
        if steps.iter().any(|(_, step)| matches!(step, Step::Del(_))) {
            return None;
        }
        steps.into_iter().next().filter(|(i, step)| !paused(*i, step))
    }

    /// Whether a later attachment of the same claim is still to be undone, and with it perhaps what was made of this
    /// one: a bond of two links, a VLAN on the bond. Its DEL could not succeed any more without them. Other claims do
    /// not wait, and neither does the claim's rest for a DEL that seems hopeless.
    fn carries(&self, index: usize, steps: &[(usize, Step)]) -> bool {
        let claim = |index: usize| self.records.get(index).map(|record| &record.plan.claim.uid);
        let hopeless = |index: usize| {
            let pause = self.records.get(index).and_then(|record| self.pauses.get(&record.key()));
            pause.is_some_and(|pause| pause.verb == Verb::Del && pause.failures >= HOPELESS)
        };
        steps.iter().any(|(later, step)| {
            *later > index
                && matches!(step, Step::Del(_))
                && claim(*later) == claim(index)
                && !hopeless(*later)
                && self.records.get(*later).is_none_or(|record| record.stray.is_none())
        })
    }

    async fn perform(&mut self, index: usize, step: Step, commands: &mut mpsc::UnboundedReceiver<Command>) {
        match step {
            Step::Add(sandbox) => self.add(index, sandbox, commands).await,
            Step::Del(sandbox) => self.del(index, sandbox, commands).await,
            Step::Forget => self.forget(index).await,
            Step::Rest => {}
        }
    }

    async fn add(&mut self, index: usize, sandbox: Sandbox, commands: &mut mpsc::UnboundedReceiver<Command>) {
        let Some(mut record) = self.records.get(index).cloned() else { return };
        let key = record.key();
        if !self.advance(&mut record, Event::AddDue(sandbox.clone())) {
            return;
        }
        match self.network.lends(&record.plan).await {
            Ok(lent) => record.lent = lent,
            Err(failure) => {
                self.failed(&key, Verb::Add, failure.message).await;
                return;
            }
        }
        if let Err(error) = self.write(&record).await {
            self.failed(&key, Verb::Add, error).await;
            return;
        }
        Failpoint::AddDue.reach();
        let (plan, lends) = (record.plan.clone(), record.lent.is_some());
        self.replace(record);
        self.publish().await;
        tracing::debug!(pod.uid = %self.uid, attachment = %key, sandbox = %sandbox.id, "add");
        let network = Arc::clone(&self.network);
        let operation = async move {
            let result = network.add(&plan, &sandbox).await?;
            let index = if lends { network.index_in_pod(&plan, &sandbox).await } else { None };
            Ok((result, index))
        };
        let outcome = self.attend(operation, commands, |pod| pod.still_wanted(&key)).await;
        match outcome {
            Outcome::Done(Ok((result, index))) => self.added(&key, result, index).await,
            Outcome::Done(Err(failure)) => {
                if let Some(mut record) = self.record(&key).cloned()
                    && self.advance(&mut record, Event::AddFailed(failure.last_good))
                {
                    self.replace(record);
                }
                self.failed(&key, Verb::Add, failure.message).await;
            }
            Outcome::CutShort => {
                tracing::info!(pod.uid = %self.uid, attachment = %key, "add cut short: no longer wanted")
            }
        }
    }

    async fn added(&mut self, key: &str, result: Value, index_in_pod: Option<u32>) {
        let Some(mut record) = self.record(key).cloned() else { return };
        Failpoint::Added.reach();
        if !self.advance(&mut record, Event::Added(result)) {
            return;
        }
        record.error = None;
        if let Some(lent) = &mut record.lent {
            lent.index_in_pod = index_in_pod;
        }
        // Not on disk means that a crash would detach a running pod: it counts as a failed ADD.
        match self.write(&record).await {
            Ok(()) => {
                Failpoint::AddNoted.reach();
                self.pauses.remove(key);
                self.replace(record);
                self.publish().await;
            }
            Err(error) => self.failed(key, Verb::Add, error).await,
        }
    }

    async fn del(&mut self, index: usize, sandbox: Sandbox, commands: &mut mpsc::UnboundedReceiver<Command>) {
        let Some(mut record) = self.records.get(index).cloned() else { return };
        let key = record.key();
        if record.stray.is_some() {
            self.look_for_stray(record, sandbox, commands).await;
            return;
        }
        if !matches!(record.phase, Phase::Deleting { .. }) {
            if !self.advance(&mut record, Event::DelDue) {
                return;
            }
            record.check = None;
            // The journal owes this DEL already; that it cannot be written is no reason not to pay.
            if let Err(error) = self.write(&record).await {
                tracing::warn!(pod.uid = %self.uid, attachment = %key, %error, "deleting all the same");
            }
            self.replace(record.clone());
            self.publish().await;
        }
        let result = match &record.phase {
            Phase::Deleting { result, .. } => result.clone(),
            _ => None,
        };
        let tries =
            self.pauses.get(&key).filter(|pause| pause.verb == Verb::Del).map_or(0, |pause| pause.failures);
        let netns = match self.netns_for_del(&sandbox, tries) {
            Ok(netns) => netns,
            Err(error) => {
                self.failed(&key, Verb::Del, error).await;
                return;
            }
        };
        tracing::debug!(pod.uid = %self.uid, attachment = %key, sandbox = %sandbox.id, ?netns, "del");
        // A host that boots sets its links up itself.
        let lent = record.lent.clone().filter(|_| sandbox.boot_id == *self.boot_id);
        Failpoint::DelDue.reach();
        let (network, plan) = (Arc::clone(&self.network), record.plan.clone());
        let operation = async move {
            let path = netns.as_ref().map(|(path, _)| path.as_path());
            network.del(&plan, &sandbox.id, path, result.as_ref(), lent.as_ref(), tries).await
        };
        match self.attend(operation, commands, |_| true).await {
            Outcome::Done(Ok(Undone::Stray(why))) => self.strayed(&key, why).await,
            Outcome::Done(Ok(undone)) => self.undone(&key, undone).await,
            Outcome::Done(Err(failure)) => self.failed(&key, Verb::Del, failure.message).await,
            Outcome::CutShort => {}
        }
    }

    async fn undone(&mut self, key: &str, undone: Undone) {
        if let (Undone::GivenUp(why), Some(record)) = (undone, self.record(key)) {
            tracing::error!(pod.uid = %self.uid, attachment = %key, why, "given up: something may be left on the node");
            self.observer.given_up(&record.plan, &why);
        }
        self.deleted(key).await;
    }

    /// Keeps the record of a link that is not back, for nobody to get it; the claim need not wait for it.
    async fn strayed(&mut self, key: &str, why: String) {
        let Some(mut record) = self.record(key).cloned() else { return };
        tracing::error!(pod.uid = %self.uid, attachment = %key, why, "a link is not back on the node as it was: nobody gets it until it is");
        let told = format!("{why}; the link is looked for, and nobody gets it until it is as it was");
        self.observer.given_up(&record.plan, &told);
        record.stray = Some(why.clone());
        // Without it the next agent runs a DEL more.
        if let Err(error) = self.write(&record).await {
            tracing::warn!(pod.uid = %self.uid, attachment = %key, %error, "a stray link is not noted");
        }
        self.replace(record);
        self.answer_released();
        self.failed(key, Verb::Del, why).await;
    }

    async fn look_for_stray(
        &mut self,
        record: Record,
        sandbox: Sandbox,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) {
        let key = record.key();
        let (network, plan) = (Arc::clone(&self.network), record.plan);
        // A host that boots sets its links up itself.
        let Some(lent) = record.lent.filter(|_| sandbox.boot_id == *self.boot_id) else {
            return self.deleted(&key).await;
        };
        let operation = async move { network.give_back(&plan, &lent).await };
        match self.attend(operation, commands, |_| true).await {
            Outcome::Done(Ok(Undone::Stray(why)) | Err(Failure { message: why, .. })) => {
                self.failed(&key, Verb::Del, why).await;
                if let Some(pause) = self.pauses.get_mut(&key) {
                    pause.until = Instant::now() + STRAY_PAUSE;
                }
            }
            Outcome::Done(Ok(undone)) => self.undone(&key, undone).await,
            Outcome::CutShort => {}
        }
    }

    async fn deleted(&mut self, key: &str) {
        Failpoint::Deleted.reach();
        let Some(mut record) = self.record(key).cloned() else { return };
        if !self.advance(&mut record, Event::Deleted) {
            return;
        }
        (record.lent, record.stray) = (None, None);
        if self.want(&record) == Want::Forgotten {
            // Straight to the end: there is nothing to come back to.
            self.replace(record);
            if let Some(index) = self.records.iter().position(|r| r.key() == key) {
                self.forget(index).await;
            }
            return;
        }
        match self.write(&record).await {
            Ok(()) => {
                // After a failed ADD the pause goes on; after a DEL for its own sake there is nothing to wait for.
                if record.error.is_none() {
                    self.pauses.remove(key);
                }
                self.replace(record);
                self.publish().await;
            }
            Err(error) => self.failed(key, Verb::Del, error).await,
        }
    }

    async fn forget(&mut self, index: usize) {
        let Some(record) = self.records.get(index).cloned() else { return };
        let (journal, gone) = (self.journal.clone(), record.clone());
        match blocking(move || journal.remove(&gone)).await {
            Ok(()) => {
                Failpoint::Forgotten.reach();
                self.records.remove(index);
                self.pauses.remove(&record.key());
                self.publish().await;
                self.answer_released();
            }
            Err(error) => self.failed(&record.key(), Verb::Del, error).await,
        }
    }

    /// Whether there is nothing to do, now or later.
    fn is_settled(&self) -> bool {
        let rests = |record| machine::next(record, &self.want(record), &self.boot_id) == Step::Rest;
        self.records.iter().all(rests)
    }

    async fn check(
        &mut self,
        key: &str,
        mut reply: oneshot::Sender<Checked>,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) {
        let Some(record) = self.record(key).filter(|_| self.is_settled()).cloned() else { return };
        let Phase::Attached { sandbox, result } = record.phase else { return };
        let (network, plan) = (Arc::clone(&self.network), record.plan);
        let operation = async move {
            tokio::select! {
                checked = network.check(&plan, &sandbox, &result) => Ok((checked, reply)),
                // Nobody wants to know any more: the agent ends.
                () = reply.closed() => Err(Failure::new("nobody waits for the CHECK")),
            }
        };
        let Outcome::Done(Ok((checked, reply))) = self.attend(operation, commands, Self::is_settled).await
        else {
            return;
        };
        let found = match &checked {
            Checked::Fine => Some(None),
            Checked::Failed(error) => Some(Some(error.clone())),
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

    /// Runs `operation` while taking commands; gives it up when `wanted` says so.
    async fn attend<T>(
        &mut self,
        operation: impl Future<Output = Result<T, Failure>>,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        wanted: impl Fn(&Self) -> bool,
    ) -> Outcome<T> {
        tokio::pin!(operation);
        loop {
            tokio::select! {
                biased;
                result = &mut operation => return Outcome::Done(result),
                command = commands.recv() => match command {
                    Some(command) => {
                        self.apply(command).await;
                        if !wanted(self) {
                            return Outcome::CutShort;
                        }
                    }
                    // The agent is going down. What was begun is on disk.
                    None => return Outcome::Done(operation.await),
                },
            }
        }
    }

    /// Whether the ADD that runs for `key` leads to what is wanted.
    fn still_wanted(&self, key: &str) -> bool {
        self.record(key).is_some_and(|record| match (self.want(record), record.phase.sandbox()) {
            (Want::Attached(wanted), Some(sandbox)) => wanted.id == sandbox.id,
            (Want::Unknown, Some(_)) => true,
            _ => false,
        })
    }

    /// The sandbox's network namespace, and where the plugins find it now; `None` when it is proven gone.
    fn netns_for_del(&mut self, sandbox: &Sandbox, tries: u32) -> Result<Option<(PathBuf, Netns)>, String> {
        if sandbox.boot_id != *self.boot_id {
            return Ok(None);
        }
        match Netns::open(&sandbox.netns) {
            // A name may have been given to another namespace since.
            Ok(netns) if netns.id() == sandbox.netns_id => return Ok(Some((sandbox.netns.clone(), netns))),
            Err(error) if !error.is_gone() && !self.pins.contains_key(&sandbox.id) => {
                return Err(error_chain(&error));
            }
            Ok(_) | Err(_) => {}
        }
        let current = matches!(&self.sandbox, Known::Sandbox(known) if known.id == sandbox.id);
        if tries >= HOPELESS && !current {
            self.pins.remove(&sandbox.id);
        }
        Ok(self.pins.get(&sandbox.id).map(|netns| (netns.path_for_plugins(), netns.clone())))
    }

    fn drop_idle_pins(&mut self) {
        let current = match &self.sandbox {
            Known::Sandbox(sandbox) => Some(sandbox.id.as_str()),
            _ => None,
        };
        let records = &self.records;
        self.pins.retain(|id, _| {
            Some(id.as_str()) == current
                || records.iter().any(|r| r.stray.is_none() && r.phase.sandbox().is_some_and(|s| s.id == *id))
        });
    }

    async fn failed(&mut self, key: &str, verb: Verb, error: String) {
        tracing::warn!(pod.uid = %self.uid, attachment = %key, %error, "attachment failed");
        let failures =
            self.pauses.get(key).filter(|pause| pause.verb == verb).map_or(0, |pause| pause.failures);
        let until = Instant::now() + pause_after(failures);
        self.pauses.insert(key.to_owned(), Pause { failures: failures + 1, until, verb });
        if let Some(record) = self.records.iter_mut().find(|r| r.key() == key) {
            record.error = Some(error.clone());
            let claim_uid = record.plan.claim.uid.clone();
            for (_, reply) in self.waiting.extract_if(.., |(waiting, _)| *waiting == claim_uid) {
                let _ = reply.send(Err(error.clone()));
            }
        }
        self.publish().await;
    }

    /// Answers the releases that nothing is left of, or only links that are looked for.
    fn answer_released(&mut self) {
        let records = &self.records;
        let owes = |uid: &str| records.iter().any(|r| r.plan.claim.uid == uid && r.stray.is_none());
        for (_, reply) in self.waiting.extract_if(.., |(uid, _)| !owes(uid)) {
            let _ = reply.send(Ok(()));
        }
        // A release that was answered with an error, or with a link not back, goes on by itself and ends here.
        self.released.retain(|uid| records.iter().any(|r| r.plan.claim.uid == *uid));
    }

    async fn publish(&mut self) {
        let mut state = PodState {
            sandbox: match &self.sandbox {
                Known::Sandbox(sandbox) => Some(sandbox.clone()),
                // Until the runtime tells, a pod that was attached is believed to be.
                Known::Unknown => self.recorded_sandbox(),
                Known::None => None,
            },
            records: self.records.clone(),
            closing: self.closing,
            damaged: self.damaged.clone(),
            held: None,
        };
        state.held = self.observer.observe(&self.uid, &state).await.err();
        self.tell_again = state.held.is_some().then(|| Instant::now() + TELL_AGAIN);
        let held = |state: &PodState| {
            (state.records.len(), state.records.iter().filter(|record| record.stray.is_some()).count())
        };
        let now = held(&state);
        if held(&self.state.send_replace(state)) != now {
            self.tally.revision.send_modify(|revision| *revision += 1);
        }
    }

    /// The one sandbox to which everything is attached, by the journal.
    fn recorded_sandbox(&self) -> Option<Sandbox> {
        let attached = |record: &Record| match &record.phase {
            Phase::Attached { sandbox, .. } if sandbox.boot_id == *self.boot_id => Some(sandbox.clone()),
            _ => None,
        };
        let first = attached(self.records.first()?)?;
        self.records.iter().all(|record| attached(record).is_some_and(|s| s.id == first.id)).then_some(first)
    }

    fn record(&self, key: &str) -> Option<&Record> {
        self.records.iter().find(|record| record.key() == key)
    }

    /// Moves a record on; `false` where there is no such move, which is counted.
    fn advance(&self, record: &mut Record, event: Event) -> bool {
        match machine::after(record.phase.clone(), event) {
            Ok(phase) => {
                record.phase = phase;
                true
            }
            Err(illegal) => {
                self.tally.illegal.fetch_add(1, Ordering::Relaxed);
                tracing::error!(pod.uid = %self.uid, attachment = record.key(), %illegal, "a bug: report this with the log");
                false
            }
        }
    }

    fn replace(&mut self, record: Record) {
        let key = record.key();
        if let Some(known) = self.records.iter_mut().find(|known| known.key() == key) {
            *known = record;
        }
    }

    async fn write(&self, record: &Record) -> Result<(), String> {
        let (journal, record) = (self.journal.clone(), record.clone());
        blocking(move || journal.write(&record)).await
    }
}

fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(8)).min(LONGEST_PAUSE)
}

/// The journal waits for the disk: not on the async threads.
async fn blocking<T: Send + 'static>(
    operation: impl FnOnce() -> Result<T, super::journal::Error> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(operation).await {
        Ok(result) => result.map_err(|error| error_chain(&error)),
        Err(_) => Err("the journal's thread died".to_owned()),
    }
}
