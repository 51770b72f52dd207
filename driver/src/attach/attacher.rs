//! All pods of the node. Passes each event to the task of its pod.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use netclaim_cni::ListName;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::counters::Counters;
use super::journal::{Journal, Loaded, Unreadable};
use super::plan::{Owner, Plan, Spec};
use super::pod::{Check, Command, Pod, blocking};
use super::record::{Phase, Record, Sandbox};
use super::state::PodState;
use super::{Attach, Checked, Failure, Observer, Operation};
use crate::links::{HostLink, Netns};

/// A live sandbox, as the runtime lists it.
#[derive(Debug)]
pub struct LiveSandbox {
    /// The pod it belongs to.
    pub pod_uid: String,
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Its network namespace, held open.
    pub netns: Netns,
}

struct Handle<O> {
    commands: mpsc::UnboundedSender<Command<O>>,
    state: watch::Receiver<PodState<O>>,
}

struct Pods<O> {
    by_uid: HashMap<String, Handle<O>>,
    /// UIDs of the pods that have attachments of a group, by the group's UID. A group that was given to the
    /// next pod has two pods until the first one's DELs have succeeded.
    of_group: HashMap<String, BTreeSet<String>>,
}

impl<O> Default for Pods<O> {
    fn default() -> Self {
        Self { by_uid: HashMap::new(), of_group: HashMap::new() }
    }
}

/// The pods and groups whose journal files cannot be read, with the reasons.
#[derive(Default)]
struct Damage {
    pods: HashMap<String, String>,
    /// By the UIDs of group and pod.
    groups: BTreeMap<(String, String), String>,
}

impl Damage {
    fn of(unreadable: &[Unreadable]) -> Self {
        let mut damage = Self::default();
        for file in unreadable {
            let Some((pod, group)) = file.owner() else { continue };
            let reason = format!(
                "the journal file {} {}: repair it, or remove it to give up what it stands for, and restart the agent",
                file.path.display(),
                file.reason
            );
            damage.pods.insert(pod.to_owned(), reason.clone());
            damage.groups.insert((group.to_owned(), pod.to_owned()), reason);
        }
        damage
    }

    /// Fails if it is unknown which DELs are owed for this group, in this pod or with `None` in any.
    fn of_group(&self, group: &str, pod_uid: Option<&str>) -> Result<(), Failure> {
        let damaged = self
            .groups
            .iter()
            .find(|((damaged, pod), _)| damaged == group && pod_uid.is_none_or(|wanted| pod == wanted));
        damaged.map_or(Ok(()), |(_, reason)| Err(Failure::new(reason.clone())))
    }
}

/// All attachments of the node.
pub struct Attacher<A, O: Observer> {
    attach: Arc<A>,
    observer: Arc<O>,
    journal: Journal<O::Owner>,
    boot_id: Arc<str>,
    damage: Damage,
    pods: Arc<Mutex<Pods<O::Owner>>>,
    tasks: TaskTracker,
    ending: CancellationToken,
    counters: Arc<Counters<O::Owner>>,
}

impl<A: Attach, O: Observer> Attacher<A, O> {
    /// Continues with the records that were `loaded` from the journal.
    pub fn start(
        attach: Arc<A>,
        observer: Arc<O>,
        journal: Journal<O::Owner>,
        loaded: Loaded<O::Owner>,
        boot_id: &str,
    ) -> Arc<Self> {
        let damage = Damage::of(&loaded.unreadable);
        let mut by_pod: HashMap<String, Vec<Record<O::Owner>>> =
            damage.pods.keys().map(|uid| (uid.clone(), Vec::new())).collect();
        let attacher = Arc::new(Self {
            attach,
            observer,
            journal,
            boot_id: boot_id.into(),
            damage,
            pods: Arc::default(),
            tasks: TaskTracker::new(),
            ending: CancellationToken::new(),
            counters: Arc::default(),
        });
        for record in loaded.records {
            by_pod.entry(record.plan.owner.pod_uid().to_owned()).or_default().push(record);
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

    /// Journals `plans`, which belong to one pod. Plans that are journalled already stay as they are. Another
    /// pod may still have attachments of the group that are being deleted.
    ///
    /// # Errors
    /// When a plan cannot be written to disk, or while this pod's part of its group is being released.
    pub async fn prepare(&self, plans: Vec<Plan<O::Owner>>) -> Result<(), Failure> {
        let Some(pod_uid) = plans.first().map(|plan| plan.owner.pod_uid().to_owned()) else { return Ok(()) };
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

    /// Calls `of` for the journalled plan of every attachment, and returns the results. Finalizers, which
    /// hold nothing, are left out.
    pub fn plans<T>(&self, mut of: impl FnMut(&Plan<O::Owner>) -> T) -> Vec<T> {
        let mut all = Vec::new();
        self.for_each_pod(|state| all.extend(state.attachments().map(|record| of(&record.plan))));
        all
    }

    /// Returns the journalled plan of every attachment, as [`plans`](Self::plans) does. A plan is the same
    /// one from look to look.
    pub fn all_plans(&self) -> Vec<Arc<Plan<O::Owner>>> {
        let mut all = Vec::new();
        self.for_each_pod(|state| all.extend(state.attachments().map(|record| Arc::clone(&record.plan))));
        all
    }

    /// Returns the [kinds](Owner::kind) of the plans of all attachments, each with how many are of it.
    pub fn kinds(&self) -> Vec<(Arc<<O::Owner as Owner>::Kind>, usize)> {
        self.counters.usage.kinds()
    }

    /// Returns the UIDs of the pods for which a file of this group cannot be read, with the reasons.
    pub fn damaged_pods(&self, group: &str) -> Vec<(String, String)> {
        let of_group = self.damage.groups.iter().filter(|((damaged, _), _)| damaged == group);
        of_group.map(|((_, pod), reason)| (pod.clone(), reason.clone())).collect()
    }

    /// Returns a value that changes when a plan comes or goes, when a link becomes a stray, or when a CHECK
    /// begins or ceases to fail.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.counters.revision.subscribe()
    }

    /// Returns a value that changes when all that a pod has is made, after the pod's state says so.
    pub fn opened(&self) -> watch::Receiver<u64> {
        self.counters.opened.subscribe()
    }

    /// Returns the journalled plans of a group, in all pods, with those of its finalizers.
    pub fn plans_of(&self, group: &str) -> Vec<Plan<O::Owner>> {
        let pods = self.lock();
        let handles = pods.of_group.get(group).into_iter().flatten().filter_map(|pod| pods.by_uid.get(pod));
        let plans = handles.flat_map(|handle| {
            let state = handle.state.borrow();
            state.records.iter().map(|record| Arc::clone(&record.plan)).collect::<Vec<_>>()
        });
        plans.filter(|plan| plan.owner.group() == group).map(Arc::unwrap_or_clone).collect()
    }

    /// Returns the ids of all sandboxes with attachments or owed DELs. IPAM plugins keep our leases under
    /// these ids.
    pub fn sandbox_ids(&self) -> BTreeSet<String> {
        self.counters.usage.sandboxes()
    }

    /// Returns the state of every pod that has a journalled attachment.
    pub fn pods(&self) -> BTreeMap<String, PodState<O::Owner>> {
        self.lock().by_uid.iter().map(|(uid, handle)| (uid.clone(), handle.state.borrow().clone())).collect()
    }

    /// Returns the UID of every pod that has a journalled attachment.
    pub fn pod_uids(&self) -> BTreeSet<String> {
        self.lock().by_uid.keys().cloned().collect()
    }

    /// Whether `holds` returns true for any pod that has a journalled attachment.
    pub fn any_pod(&self, mut holds: impl FnMut(&str, &PodState<O::Owner>) -> bool) -> bool {
        self.lock().by_uid.iter().any(|(uid, handle)| holds(uid, &handle.state.borrow()))
    }

    /// Calls `see` for the state of every pod that has a journalled attachment.
    pub fn for_each_pod(&self, mut see: impl FnMut(&PodState<O::Owner>)) {
        self.lock().by_uid.values().for_each(|handle| see(&handle.state.borrow()));
    }

    /// Calls `of` for every stray link, with its plan and the reason. A stray link was in a pod and is not
    /// back on the host as it was. The agent keeps looking for it, and no other pod should get it.
    pub fn strays<T>(&self, mut of: impl FnMut(&Plan<O::Owner>, &HostLink, &str) -> T) -> Vec<T> {
        let pods = self.lock();
        let mut all = Vec::new();
        for handle in pods.by_uid.values() {
            let state = handle.state.borrow();
            let strays = state.records.iter().filter_map(|record| {
                Some(of(&record.plan, record.moved_link.as_ref()?, record.stray.as_ref()?))
            });
            all.extend(strays);
        }
        all
    }

    /// Returns the CNI networks of all journalled attachments and finalizers by name, each with the spec of
    /// one of them.
    pub fn networks(&self) -> BTreeMap<ListName, Spec> {
        let mut networks = BTreeMap::new();
        self.for_each_pod(|state| {
            for spec in state.records.iter().map(|record| &record.plan.spec) {
                if !networks.contains_key(spec.conflist.name()) {
                    networks.insert(spec.conflist.name().clone(), spec.clone());
                }
            }
        });
        networks
    }

    /// Returns the CNI networks that have something on disk beside the journal, as
    /// [`networks`](Self::networks) does.
    pub async fn networks_on_disk(&self) -> BTreeMap<ListName, Spec> {
        self.attach.networks_on_disk().await
    }

    /// Removes the leftovers of unknown attachments from the network of `spec`, and returns their number.
    ///
    /// # Errors
    /// When a plugin fails, and while a journal file cannot be read: its attachment is unknown.
    pub async fn collect(&self, spec: &Spec) -> Result<usize, Failure> {
        if let Some(reason) = self.damage.pods.values().next() {
            return Err(Failure::new(format!("it is not known what is attached: {reason}")));
        }
        let valid = || {
            let records = self.pods().into_values().flat_map(|state| state.records);
            let same = records.filter(|record| record.plan.spec.conflist.name() == spec.conflist.name());
            same.filter_map(|record| {
                Some((record.phase.sandbox()?.id.parse().ok()?, record.plan.spec.if_name.clone()))
            })
            .collect()
        };
        self.attach.collect(spec, valid).await
    }

    /// Returns the attachments whose host link has another index than at their ADD, each as the pod's UID,
    /// its key and the index now; `None` while no link has the name.
    pub fn displaced(&self) -> BTreeSet<(String, String, Option<u32>)> {
        // It reads sysfs, and a node has hundreds of attachments by few configurations.
        let mut of_lists: BTreeMap<String, Option<u32>> = BTreeMap::new();
        let mut index_now = |spec: &Spec| {
            let list = spec.conflist.raw();
            of_lists.get(list).copied().unwrap_or_else(|| {
                let now = self.attach.host_link(spec);
                of_lists.insert(list.to_owned(), now);
                now
            })
        };
        let mut displaced = |record: &Record<O::Owner>| {
            let (Phase::Attached { .. }, Some(was)) = (&record.phase, record.host_link) else { return None };
            let now = index_now(&record.plan.spec);
            (now != Some(was)).then(|| (record.plan.owner.pod_uid().to_owned(), record.key(), now))
        };
        let mut all = BTreeSet::new();
        self.for_each_pod(|state| all.extend(state.records.iter().filter_map(&mut displaced)));
        all
    }

    /// Runs CHECK for the attachment with this [key](Record::key), and notes the result in the pod's state.
    /// With `may_look`, a look into the pod may stand for a CHECK by the plugins. Returns `None` when it is
    /// not attached, or when its pod has work to do: that work goes first, and ends a CHECK that runs.
    pub async fn check(&self, pod_uid: &str, key: &str, may_look: bool) -> Option<Checked> {
        let (reply, answer) = oneshot::channel();
        self.lock().send(pod_uid, Command::Check(Check { key: key.to_owned(), may_look, reply }));
        answer.await.ok()
    }

    /// Begins to make an attachment again that [can be repaired](Record::can_be_repaired), by DEL and ADD in
    /// its sandbox, with the later ones of its group. The pod keeps its addresses. Returns false if that is
    /// not possible, or not now.
    pub async fn redo(&self, pod_uid: &str, key: &str) -> bool {
        let (reply, answer) = oneshot::channel();
        self.lock().send(pod_uid, Command::Redo { key: key.to_owned(), reply });
        answer.await.unwrap_or(false)
    }

    /// Has the observer called again for a pod whose state has not changed.
    pub fn report(&self, pod_uid: &str) {
        self.lock().send(pod_uid, Command::Report);
    }

    /// Returns the state of a pod; `None` when it has no attachments.
    pub fn watch(&self, pod_uid: &str) -> Option<watch::Receiver<PodState<O::Owner>>> {
        self.lock().by_uid.get(pod_uid).map(|handle| handle.state.clone())
    }

    /// Notes a sandbox that the runtime has created.
    pub fn sandbox_up(&self, live: LiveSandbox) {
        let LiveSandbox { pod_uid, sandbox, netns } = live;
        self.lock().send(&pod_uid, Command::SandboxUp(sandbox, netns));
    }

    /// Notes a sandbox that the runtime is making, and that it waits for the pod's
    /// [primary](Plan::is_primary) network. It is attached in no other sandbox.
    pub fn sandbox_asks(&self, live: LiveSandbox) {
        let LiveSandbox { pod_uid, sandbox, netns } = live;
        self.lock().send(&pod_uid, Command::SandboxAsks(sandbox, netns));
    }

    /// Notes why a pod's sandbox cannot be attached to.
    pub fn sandbox_unfit(&self, pod_uid: &str, reason: String) {
        self.lock().send(pod_uid, Command::SandboxUnfit(reason));
    }

    /// Notes that the runtime stops, or has stopped, a sandbox.
    pub fn sandbox_gone(&self, pod_uid: &str, sandbox_id: &str) {
        self.lock().send(pod_uid, Command::SandboxGone(Some(sandbox_id.to_owned())));
    }

    /// Notes all live sandboxes, as the runtime lists them. Pods in neither list have none. `unclear` are
    /// pods with a sandbox that could not be inspected: their state stays. So does that of a sandbox that
    /// lives but is not listed, because runtimes have lists with gaps.
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

    /// Notes that plugins or networks have changed: ADDs that could not succeed before are tried at once.
    pub fn retry_permanent(&self) {
        let pods = self.lock();
        let failed = |handle: &&Handle<O::Owner>| {
            let state = handle.state.borrow();
            state.records.iter().any(|record| record.failed == Some(Operation::Add))
        };
        for handle in pods.by_uid.values().filter(failed) {
            let _ = handle.commands.send(Command::RetryPermanent);
        }
    }

    /// Detaches and forgets all attachments of a group, in every pod. Returns when every owed DEL has
    /// succeeded. The record of a [stray](Self::strays) stays.
    ///
    /// # Errors
    /// When a DEL fails: the agent retries it by itself, and a later call waits for it. When it is unknown
    /// which DELs are owed.
    pub async fn release(&self, group: &str) -> Result<(), Failure> {
        self.damage.of_group(group, None)?;
        let answers = {
            let pods = self.lock();
            let of_group = pods.of_group.get(group).into_iter().flatten();
            of_group.filter_map(|pod| pods.release(pod, group)).collect::<Vec<_>>()
        };
        let mut released = Ok(());
        for answer in answers {
            released = released.and(self.answered(answer).await);
        }
        released
    }

    /// Detaches and forgets one pod's attachments of a group. Another pod that has got the group since keeps
    /// its own.
    ///
    /// # Errors
    /// As of [`release`](Self::release).
    pub async fn release_of(&self, pod_uid: &str, group: &str) -> Result<(), Failure> {
        self.damage.of_group(group, Some(pod_uid))?;
        let answer = self.lock().release(pod_uid, group);
        match answer {
            Some(answer) => self.answered(answer).await,
            None => Ok(()),
        }
    }

    /// The number of events that the state machine refused. Each is a bug.
    pub fn illegal_moves(&self) -> u64 {
        self.counters.illegal.load(Ordering::Relaxed)
    }

    /// The number of panics in the tasks of pods. Each is a bug.
    pub fn panics(&self) -> u64 {
        self.counters.panics.load(Ordering::Relaxed)
    }

    /// Starts no new work, and returns when running operations have ended and everything is on disk. The
    /// journal has the rest for the next agent. Calls that wait for the rest are never answered.
    pub async fn drain(&self) {
        self.ending.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let journal = self.journal.clone();
        if let Err(error) = blocking(move || journal.move_to_disk()).await {
            tracing::warn!(%error, "cannot move the journal of this boot to disk: the next agent finds it where it is");
        }
    }

    async fn answered(&self, answer: oneshot::Receiver<Result<(), Failure>>) -> Result<(), Failure> {
        match answer.await {
            Ok(result) => result,
            // The caller will ask the next agent. An error would delay the pod until the kubelet's next sync.
            Err(_) if self.ending.is_cancelled() => std::future::pending().await,
            Err(_) => Err(Failure::new("the task of the pod panicked: report this with the agent's log")),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pods<O::Owner>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, uid: &str, records: Vec<Record<O::Owner>>) -> Handle<O::Owner> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let damaged = self.damage.pods.get(uid).cloned();
        self.counters.usage.replace(&[], &records);
        let first = PodState { records, damaged, ..PodState::default() };
        let (state, watch) = watch::channel(first);
        let pod = Pod::new(
            uid.to_owned(),
            Arc::clone(&self.attach),
            Arc::clone(&self.observer),
            self.journal.clone(),
            Arc::clone(&self.boot_id),
            state,
            Arc::clone(&self.counters),
        );
        let (pods, retired) = (Arc::clone(&self.pods), uid.to_owned());
        let retire = move |commands: &mpsc::UnboundedReceiver<Command<O::Owner>>| {
            // Commands are sent under the lock, so none can come between this check and the removal.
            let mut pods = pods.lock().unwrap_or_else(PoisonError::into_inner);
            if !commands.is_empty() {
                return false;
            }
            pods.by_uid.remove(&retired);
            pods.of_group.retain(|_, pods| {
                pods.remove(&retired);
                !pods.is_empty()
            });
            true
        };
        self.tasks.spawn(pod.run(receiver, retire, self.ending.clone()));
        Handle { commands, state: watch }
    }
}

impl<O: Owner> Pods<O> {
    fn note(&mut self, plan: &Plan<O>) {
        let pods = self.of_group.entry(plan.owner.group().to_owned()).or_default();
        pods.insert(plan.owner.pod_uid().to_owned());
    }

    /// Tells a pod's task to release a group; `None` when there is no such task.
    fn release(&self, pod_uid: &str, group: &str) -> Option<oneshot::Receiver<Result<(), Failure>>> {
        let handle = self.by_uid.get(pod_uid)?;
        let (reply, answer) = oneshot::channel();
        let _ = handle.commands.send(Command::Release { group: group.to_owned(), reply });
        Some(answer)
    }

    /// Sends a command to the task of a pod, if there is one.
    fn send(&self, pod_uid: &str, command: Command<O>) {
        if let Some(handle) = self.by_uid.get(pod_uid) {
            let _ = handle.commands.send(command);
        }
    }
}
