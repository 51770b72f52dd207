//! Attachments: from a plan to an interface in a pod and back, whatever happens in between.
//!
//! ```text
//!   prepare ──> journal ──┐                                   ┌──> Observer: gate, status
//!   sandbox up / gone ────┼──> one task per pod ── machine ───┤
//!   release ──────────────┘        (pod.rs)     (machine.rs)  └──> Network: CNI ADD, DEL
//! ```
//!
//! Invariants:
//! * The journal is the truth; what the runtime or the orchestrator tells are hints about what is wanted.
//! * Nothing is executed before the journal says that it may have been.
//! * A release is answered when every DEL that is owed has succeeded, and not before. Only where the namespace is
//!   proven gone is a DEL given up, after a bounded number of tries and with an error in the log.

mod cni_network;
mod cni_status;
mod cni_sweep;
pub mod journal;
#[cfg(test)]
mod journal_formats;
pub mod machine;
mod pod;
pub mod record;
pub mod sweep;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netclaim_api::IfName;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use cni_network::{CniNetwork, Made, made};
pub use cni_status::Status;
use journal::{Journal, Loaded, Unreadable};
use pod::{Command, Pod};
use record::{Phase, Plan, Record, Sandbox};

use crate::links::{HostLink, Netns};

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// For people: the whole chain of causes in one line.
    pub message: String,
    /// How far a chain of plugins came before: the `prevResult` of the DEL that is owed.
    pub last_good: Option<Value>,
}

impl Failure {
    /// Longest message that is kept, in bytes. It may be a plugin's own, and is journalled, logged and reported.
    pub const MAX_MESSAGE: usize = 16 << 10;

    /// A failure that left no result. Of a longer message the beginning is kept.
    pub fn new(message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(Self::MAX_MESSAGE));
        Self { message, last_good: None }
    }
}

/// How a DEL ended that need not be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    /// Nothing is left.
    All,
    /// Something may be left, for this reason; trying again would not help.
    GivenUp(String),
    /// Nothing is left but a link that was moved: it is not back on the host, or not as it was, for this reason.
    Stray(String),
}

/// The outside world in which interfaces are made and removed.
pub trait Network: Send + Sync + 'static {
    /// The link of the host that [`add`](Self::add) will move into the pod, as it is now; `None` when it moves none, or
    /// there is none to move.
    fn lends(&self, plan: &Plan) -> impl Future<Output = Result<Option<HostLink>, Failure>> + Send;

    /// The index that the link that an [`add`](Self::add) has moved got in the pod; `None` where it cannot be told.
    fn index_in_pod(&self, plan: &Plan, sandbox: &Sandbox) -> impl Future<Output = Option<u32>> + Send;

    /// Makes the attachment and returns the CNI result. Dropping the future ends what it started; a DEL follows.
    fn add(&self, plan: &Plan, sandbox: &Sandbox) -> impl Future<Output = Result<Value, Failure>> + Send;

    /// Undoes an ADD that succeeded, failed or was cut short. `netns` is `None` when the namespace is gone; then
    /// there is a number of `tries` (failed ones so far) after which what cannot be undone is given up. The link that
    /// was `lent` is then on the host as it was, unless it is gone or a [stray](Undone::Stray).
    fn del(
        &self,
        plan: &Plan,
        sandbox_id: &str,
        netns: Option<&Path>,
        result: Option<&Value>,
        lent: Option<&HostLink>,
        tries: u32,
    ) -> impl Future<Output = Result<Undone, Failure>> + Send;

    /// Makes a stray link what it was.
    fn give_back(&self, plan: &Plan, lent: &HostLink)
    -> impl Future<Output = Result<Undone, Failure>> + Send;

    /// Looks whether an attachment is what its ADD made. Dropping the future ends what it started.
    fn check(&self, plan: &Plan, sandbox: &Sandbox, result: &Value) -> impl Future<Output = Checked> + Send;

    /// Removes what is left in the network of `plan` of attachments that are not `valid`: ids of sandboxes with
    /// interface names. `valid` is called when nobody works on the network. Returns how many were found.
    fn collect(
        &self,
        plan: &Plan,
        valid: impl Fn() -> Vec<(String, IfName)> + Send,
    ) -> impl Future<Output = Result<usize, Failure>> + Send;
}

/// What came of a CHECK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// The attachment is as it should be.
    Fine,
    /// It is not; what a plugin says of it.
    Failed(String),
    /// Nothing can be said, and why: its CNI version has no CHECK, it is switched off, or a plugin could not be run.
    Unknown(String),
}

/// The outside world that wants to know. Called after every change, before it is visible elsewhere; what it does
/// delays the pod, so it must not wait for anything slow.
pub trait Observer: Send + Sync + 'static {
    /// `pod_uid` is now in `state`.
    ///
    /// # Errors
    /// Why containers of the pod must not start, whatever is attached. It is told again in a moment.
    fn observe(&self, pod_uid: &str, state: &PodState) -> impl Future<Output = Result<(), String>> + Send;

    /// Something that was made for `plan` may be left, and why. Nobody will hear of it again.
    fn given_up(&self, plan: &Plan, why: &str);
}

/// What is known of one pod's attachments.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodState {
    /// The pod's sandbox, once the runtime has told.
    pub sandbox: Option<Sandbox>,
    /// Its attachments in the order in which they are made.
    pub records: Vec<Record>,
    /// Claims of it are being released: what is left says nothing about the pod any more.
    pub closing: bool,
    /// Why nothing can be said: a file of its journal cannot be read.
    pub damaged: Option<String>,
    /// Why containers must wait all the same: what the observer has not done yet.
    pub held: Option<String>,
}

/// Whether a container of a sandbox may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gate {
    /// Every attachment is made in this very sandbox.
    Open,
    /// Not yet.
    Wait,
    /// Not yet, and the last try failed. It is tried again.
    Failed(String),
}

impl PodState {
    /// Whether a sandbox that is known of the pod is still there, whatever the runtime lists: its namespace is where it
    /// was. Blocks for a moment.
    pub fn sandbox_lives(&self, boot_id: &str) -> bool {
        let recorded = self.records.iter().filter_map(|record| record.phase.sandbox());
        recorded.chain(&self.sandbox).any(|sandbox| {
            sandbox.boot_id == boot_id
                && Netns::open(&sandbox.netns).is_ok_and(|netns| netns.id() == sandbox.netns_id)
        })
    }

    /// Whether containers of `sandbox_id` may start: only when every attachment of every claim that is known of
    /// the pod is there and made in this sandbox, and the observer has done its part.
    pub fn gate(&self, sandbox_id: &str) -> Gate {
        if let Some(reason) = &self.damaged {
            return Gate::Failed(reason.clone());
        }
        if self.closing || self.records.is_empty() {
            return Gate::Wait;
        }
        let complete = |record: &Record| {
            let of_claim = self.records.iter().filter(|r| r.plan.claim.uid == record.plan.claim.uid);
            of_claim.count() == record.plan.of as usize
        };
        let attached = |record: &Record| matches!(&record.phase, Phase::Attached { sandbox, .. } if sandbox.id == sandbox_id);
        if self.records.iter().all(|record| attached(record) && complete(record)) {
            return self.held.clone().map_or(Gate::Open, Gate::Failed);
        }
        let failed = self.records.iter().filter(|record| !attached(record)).find_map(|record| {
            record.error.as_ref().map(|error| format!("network {}: {error}", record.plan.network))
        });
        failed.map_or(Gate::Wait, Gate::Failed)
    }
}

/// A sandbox that lives, as the runtime lists it.
#[derive(Debug)]
pub struct LiveSandbox {
    /// The pod it belongs to.
    pub pod_uid: String,
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Its network namespace, held open.
    pub netns: Netns,
}

struct Handle {
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<PodState>,
}

#[derive(Default)]
struct Pods {
    by_uid: HashMap<String, Handle>,
    /// UIDs of the pods that have something of a claim, by the claim's. A claim that was given to the next pod has two
    /// until everything is undone in the first.
    of_claim: HashMap<String, BTreeSet<String>>,
}

/// What journal files that cannot be read stand for.
#[derive(Default)]
struct Damage {
    pods: HashMap<String, String>,
    /// By the UIDs of claim and pod.
    claims: BTreeMap<(String, String), String>,
}

impl Damage {
    fn of(unreadable: &[Unreadable]) -> Self {
        let mut damage = Self::default();
        for file in unreadable {
            let Some((pod, claim)) = file.owner() else { continue };
            let reason = format!(
                "the journal file {} {}: repair it, or remove it to give up what it stands for, and restart the agent",
                file.path.display(),
                file.reason
            );
            damage.pods.insert(pod.to_owned(), reason.clone());
            damage.claims.insert((claim.to_owned(), pod.to_owned()), reason);
        }
        damage
    }

    /// Why it is not known what is owed for this claim, in this pod or with `None` in any.
    fn of_claim(&self, claim_uid: &str, pod_uid: Option<&str>) -> Result<(), Failure> {
        let damaged = self
            .claims
            .iter()
            .find(|((claim, pod), _)| claim == claim_uid && pod_uid.is_none_or(|wanted| pod == wanted));
        damaged.map_or(Ok(()), |(_, reason)| Err(Failure::new(reason.clone())))
    }
}

/// Everything that is attached, or is to be, on this node.
pub struct Attacher<N, O> {
    network: Arc<N>,
    observer: Arc<O>,
    journal: Journal,
    boot_id: Arc<str>,
    damage: Damage,
    pods: Arc<Mutex<Pods>>,
    tasks: TaskTracker,
    ending: CancellationToken,
    tally: Arc<Tally>,
}

/// What is counted over all pods.
#[derive(Default)]
struct Tally {
    /// Moves that the machine refused.
    illegal: AtomicU64,
    /// Panics in the tasks of pods.
    panics: AtomicU64,
    /// How often a record came or went.
    revision: watch::Sender<u64>,
}

impl<N: Network, O: Observer> Attacher<N, O> {
    /// Takes up what was `loaded` from the journal.
    pub fn start(
        network: Arc<N>,
        observer: Arc<O>,
        journal: Journal,
        loaded: Loaded,
        boot_id: &str,
    ) -> Arc<Self> {
        let damage = Damage::of(&loaded.unreadable);
        let mut by_pod: HashMap<String, Vec<Record>> =
            damage.pods.keys().map(|uid| (uid.clone(), Vec::new())).collect();
        let attacher = Arc::new(Self {
            network,
            observer,
            journal,
            boot_id: boot_id.into(),
            damage,
            pods: Arc::default(),
            tasks: TaskTracker::new(),
            ending: CancellationToken::new(),
            tally: Arc::default(),
        });
        for record in loaded.records {
            by_pod.entry(record.plan.pod.uid.clone()).or_default().push(record);
        }
        let mut pods = attacher.lock();
        for (uid, records) in by_pod {
            for record in &records {
                pods.note(&record.plan);
            }
            let handle = attacher.spawn(&uid, records);
            pods.by_uid.insert(uid, handle);
        }
        drop(pods);
        attacher
    }

    /// Journals `plans`, all of one pod; those that are known already stay as they are. Another pod may still have
    /// something of the claim that is being undone.
    ///
    /// # Errors
    /// When a plan is not safely on disk, or this pod's part of its claim is just being released.
    pub async fn prepare(&self, plans: Vec<Plan>) -> Result<(), Failure> {
        let Some(pod_uid) = plans.first().map(|plan| plan.pod.uid.clone()) else { return Ok(()) };
        if let Some(reason) = self.damage.pods.get(&pod_uid) {
            return Err(Failure::new(reason.clone()));
        }
        let (reply, answer) = oneshot::channel();
        {
            let mut pods = self.lock();
            for plan in &plans {
                pods.note(plan);
            }
            if !pods.by_uid.contains_key(&pod_uid) {
                let handle = self.spawn(&pod_uid, Vec::new());
                pods.by_uid.insert(pod_uid.clone(), handle);
            }
            pods.send(&pod_uid, Command::Prepare { plans, reply });
        }
        self.answered(answer).await
    }

    /// What is wanted of every plan that is journalled.
    pub fn plans<T>(&self, mut of: impl FnMut(&Plan) -> T) -> Vec<T> {
        let pods = self.lock();
        let mut all = Vec::new();
        for handle in pods.by_uid.values() {
            all.extend(handle.state.borrow().records.iter().map(|record| of(&record.plan)));
        }
        all
    }

    /// Changes whenever a plan comes or goes, or a link becomes a stray.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.tally.revision.subscribe()
    }

    /// The plans that are journalled for a claim, of every pod that has something of it.
    pub fn plans_of_claim(&self, claim_uid: &str) -> Vec<Plan> {
        let pods = self.lock();
        let handles =
            pods.of_claim.get(claim_uid).into_iter().flatten().filter_map(|pod| pods.by_uid.get(pod));
        let plans = handles.flat_map(|handle| {
            let state = handle.state.borrow();
            state.records.iter().map(|record| record.plan.clone()).collect::<Vec<_>>()
        });
        plans.filter(|plan| plan.claim.uid == claim_uid).collect()
    }

    /// Ids of the sandboxes that anything is, was or may be attached to: what a lease of ours is filed under.
    pub fn sandbox_ids(&self) -> BTreeSet<String> {
        let pods = self.lock();
        let ids = |handle: &Handle| {
            let state = handle.state.borrow();
            state
                .records
                .iter()
                .filter_map(|record| Some(record.phase.sandbox()?.id.clone()))
                .collect::<Vec<_>>()
        };
        pods.by_uid.values().flat_map(ids).collect()
    }

    /// Every pod that anything is journalled for, with what is known of it.
    pub fn pods(&self) -> BTreeMap<String, PodState> {
        self.lock().by_uid.iter().map(|(uid, handle)| (uid.clone(), handle.state.borrow().clone())).collect()
    }

    /// Whether `holds` of any pod that anything is journalled for.
    pub fn any_pod(&self, mut holds: impl FnMut(&str, &PodState) -> bool) -> bool {
        self.lock().by_uid.iter().any(|(uid, handle)| holds(uid, &handle.state.borrow()))
    }

    /// The links that pods have had and that are not back on the host as they were, each with its plan and why. Until
    /// they are, they are looked for, and nobody should get them.
    pub fn strays<T>(&self, mut of: impl FnMut(&Plan, &HostLink, &str) -> T) -> Vec<T> {
        let pods = self.lock();
        let mut all = Vec::new();
        for handle in pods.by_uid.values() {
            let state = handle.state.borrow();
            let strays = state
                .records
                .iter()
                .filter_map(|record| Some(of(&record.plan, record.lent.as_ref()?, record.stray.as_ref()?)));
            all.extend(strays);
        }
        all
    }

    /// The CNI networks of everything that is journalled, by name, each with one of its plans.
    pub fn networks(&self) -> BTreeMap<String, Plan> {
        let named = |plan: &Plan| Some((plan.network_name()?.to_owned(), plan.clone()));
        self.plans(named).into_iter().flatten().collect()
    }

    /// Removes what is left in the network of `plan` of attachments that nothing is known of; returns how many.
    ///
    /// # Errors
    /// What a plugin says. And while a journal file cannot be read: what it stands for is not known.
    pub async fn collect(&self, plan: &Plan) -> Result<usize, Failure> {
        if let Some(reason) = self.damage.pods.values().next() {
            return Err(Failure::new(format!("it is not known what is attached: {reason}")));
        }
        let valid = || {
            let records = self.pods().into_values().flat_map(|state| state.records);
            let same = records.filter(|record| record.plan.network_name() == plan.network_name());
            same.filter_map(|record| Some((record.phase.sandbox()?.id.clone(), record.plan.if_name)))
                .collect()
        };
        self.network.collect(plan, valid).await
    }

    /// Checks the attachment of a pod that has this [key](Record::key), and has it known what was found. `None` when it
    /// is not attached, or its pod is being changed: that goes before, and cuts a CHECK short.
    pub async fn check(&self, pod_uid: &str, key: &str) -> Option<Checked> {
        let (reply, answer) = oneshot::channel();
        self.lock().send(pod_uid, Command::Check { key: key.to_owned(), reply });
        answer.await.ok()
    }

    /// What is known of a pod; `None` when it has no attachments.
    pub fn watch(&self, pod_uid: &str) -> Option<watch::Receiver<PodState>> {
        self.lock().by_uid.get(pod_uid).map(|handle| handle.state.clone())
    }

    /// The runtime made a sandbox for a pod.
    pub fn sandbox_up(&self, live: LiveSandbox) {
        let LiveSandbox { pod_uid, sandbox, netns } = live;
        self.lock().send(&pod_uid, Command::SandboxUp(sandbox, netns));
    }

    /// The runtime made a sandbox that cannot be attached to, for this reason.
    pub fn sandbox_unfit(&self, pod_uid: &str, reason: String) {
        self.lock().send(pod_uid, Command::SandboxUnfit(reason));
    }

    /// The runtime stops, or has stopped, a sandbox of a pod.
    pub fn sandbox_gone(&self, pod_uid: &str, sandbox_id: &str) {
        self.lock().send(pod_uid, Command::SandboxGone(Some(sandbox_id.to_owned())));
    }

    /// The runtime lists every sandbox that lives: pods that are in neither list have none. `unclear` are pods
    /// with a sandbox that could not be looked at; what was known of them stays. So does what is known of a sandbox
    /// that is not listed but lives: runtimes have lists with gaps.
    pub fn synchronize(&self, live: Vec<LiveSandbox>, unclear: &HashSet<String>) {
        let pods = self.lock();
        let mut gone: Vec<String> = pods.by_uid.keys().cloned().collect();
        gone.retain(|uid| !unclear.contains(uid) && live.iter().all(|sandbox| sandbox.pod_uid != *uid));
        for LiveSandbox { pod_uid, sandbox, netns } in live {
            pods.send(&pod_uid, Command::SandboxUp(sandbox, netns));
        }
        for pod_uid in gone {
            pods.send(&pod_uid, Command::SandboxGone(None));
        }
    }

    /// Undoes and forgets everything of a claim, in every pod. Returns when every DEL that was owed has succeeded; of a
    /// [stray](Self::strays) the record stays.
    ///
    /// # Errors
    /// When a DEL failed; it is tried again without being asked, and a later call waits for it. When it cannot be
    /// known what is owed.
    pub async fn release(&self, claim_uid: &str) -> Result<(), Failure> {
        self.damage.of_claim(claim_uid, None)?;
        let answers = {
            let pods = self.lock();
            let of_claim = pods.of_claim.get(claim_uid).into_iter().flatten();
            of_claim.filter_map(|pod| pods.release(pod, claim_uid)).collect::<Vec<_>>()
        };
        let mut released = Ok(());
        for answer in answers {
            released = released.and(self.answered(answer).await);
        }
        released
    }

    /// Undoes and forgets what one pod has of a claim. Another pod that has the claim by now keeps its own.
    ///
    /// # Errors
    /// As of [`release`](Self::release).
    pub async fn release_of(&self, pod_uid: &str, claim_uid: &str) -> Result<(), Failure> {
        self.damage.of_claim(claim_uid, Some(pod_uid))?;
        let answer = self.lock().release(pod_uid, claim_uid);
        match answer {
            Some(answer) => self.answered(answer).await,
            None => Ok(()),
        }
    }

    /// How often something happened to an attachment that cannot: bugs, each of them.
    pub fn illegal_moves(&self) -> u64 {
        self.tally.illegal.load(Ordering::Relaxed)
    }

    /// How often the task of a pod has panicked: bugs, each of them.
    pub fn panics(&self) -> u64 {
        self.tally.panics.load(Ordering::Relaxed)
    }

    /// Begins nothing more, and returns when what runs has ended. What is left to do is in the journal, for the next
    /// agent; calls that wait for it are never answered.
    pub async fn drain(&self) {
        self.ending.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn answered(&self, answer: oneshot::Receiver<Result<(), String>>) -> Result<(), Failure> {
        match answer.await {
            Ok(result) => result.map_err(Failure::new),
            // Whoever asked will ask the next agent; an error would cost a pod the kubelet's long pause.
            Err(_) if self.ending.is_cancelled() => std::future::pending().await,
            Err(_) => Err(Failure::new("the task of the pod panicked: report this with the agent's log")),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, uid: &str, records: Vec<Record>) -> Handle {
        let (commands, receiver) = mpsc::unbounded_channel();
        let damaged = self.damage.pods.get(uid).cloned();
        let first = PodState { records, damaged, ..PodState::default() };
        let (state, watch) = watch::channel(first);
        let pod = Pod::new(
            uid.to_owned(),
            Arc::clone(&self.network),
            Arc::clone(&self.observer),
            self.journal.clone(),
            Arc::clone(&self.boot_id),
            state,
            Arc::clone(&self.tally),
        );
        let (pods, retired) = (Arc::clone(&self.pods), uid.to_owned());
        let retire = move |commands: &mpsc::UnboundedReceiver<Command>| {
            // Commands are sent under the lock: none can slip in between the look and the removal.
            let mut pods = pods.lock().unwrap_or_else(PoisonError::into_inner);
            if !commands.is_empty() {
                return false;
            }
            pods.by_uid.remove(&retired);
            pods.of_claim.retain(|_, pods| {
                pods.remove(&retired);
                !pods.is_empty()
            });
            true
        };
        self.tasks.spawn(pod.run(receiver, retire, self.ending.clone()));
        Handle { commands, state: watch }
    }
}

impl Pods {
    fn note(&mut self, plan: &Plan) {
        self.of_claim.entry(plan.claim.uid.clone()).or_default().insert(plan.pod.uid.clone());
    }

    /// Has a pod release a claim; `None` when nothing is known of the pod.
    fn release(&self, pod_uid: &str, claim_uid: &str) -> Option<oneshot::Receiver<Result<(), String>>> {
        let handle = self.by_uid.get(pod_uid)?;
        let (reply, answer) = oneshot::channel();
        let _ = handle.commands.send(Command::Release { claim_uid: claim_uid.to_owned(), reply });
        Some(answer)
    }

    /// A pod that nothing is known of has no use for commands; one whose task has ended takes none.
    fn send(&self, pod_uid: &str, command: Command) {
        if let Some(handle) = self.by_uid.get(pod_uid) {
            let _ = handle.commands.send(command);
        }
    }
}

/// The id of the running boot, which every sandbox of another boot is known by.
///
/// # Errors
/// When `/proc` is not there.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
