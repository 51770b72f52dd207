//! The life of attachments against a scripted network: what is executed, in which order, and what is told.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netclaim_cni::{Effect, Stopped};
use serde_json::json;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::journal::Journal;
use super::pod::{MADE_AGAIN, Pod};
use super::record::tests::{Claimant, plan, result, sandbox};
use super::*;
use crate::links::{Netns, NetnsId};

/// What a fake operation does.
#[derive(Clone, Copy)]
enum Script {
    Succeed,
    Fail,
    /// What fails until something changes.
    Never,
    /// An ADD that made nothing.
    MakeNothing,
    /// An ADD that stops at the second plugin, which made nothing outside of the pod.
    Stop,
    Panic,
    Slow,
    Hang,
}

/// A fake of the plugins: notes each call, and does as scripted; succeeds when the script is at its end.
#[derive(Default)]
struct Plugins {
    calls: Mutex<Vec<String>>,
    begin: Mutex<VecDeque<Script>>,
    add: Mutex<VecDeque<Script>>,
    prove: Mutex<VecDeque<Script>>,
    del: Mutex<VecDeque<Script>>,
    check: Mutex<VecDeque<Script>>,
    collect: Mutex<VecDeque<Script>>,
    give_back: Mutex<VecDeque<Script>>,
    /// The link that an ADD takes from the host.
    link: Mutex<Option<HostLink>>,
    /// Index of the link that an ADD makes its interface on.
    host_link: Mutex<Option<u32>>,
    /// Whether a look finds everything as it was made.
    is_as_made: Mutex<bool>,
    /// Whether sandboxes have no links.
    is_bare: Mutex<bool>,
    called: Notify,
    /// What becomes of the next DEL.
    left: Mutex<Option<DelOutcome>>,
}

impl Plugins {
    async fn run(&self, call: String, script: &Mutex<VecDeque<Script>>) -> Result<(), Failure> {
        self.calls.lock().unwrap().push(call);
        self.called.notify_waiters();
        let script = script.lock().unwrap().pop_front().unwrap_or(Script::Succeed);
        match script {
            Script::Succeed => Ok(()),
            Script::Fail | Script::MakeNothing | Script::Stop => Err(Failure::new("no")),
            Script::Never => Err(Failure { is_permanent: true, ..Failure::new("no such plugin") }),
            Script::Panic => panic!("a bug"),
            Script::Slow => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(())
            }
            Script::Hang => std::future::pending().await,
        }
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

impl Attach for Plugins {
    async fn can_begin(&self, _: &Spec, _: &Sandbox) -> Result<(), Failure> {
        match self.begin.lock().unwrap().pop_front() {
            Some(Script::Never) => Err(Failure { is_permanent: true, ..Failure::new("no such plugin") }),
            Some(_) => Err(Failure::new("the name is taken")),
            None => Ok(()),
        }
    }

    async fn lacks_link(&self, _: &Netns, _: &str) -> bool {
        *self.is_bare.lock().unwrap()
    }

    async fn link_to_move(&self, _: &Spec) -> Result<Option<HostLink>, Failure> {
        Ok(self.link.lock().unwrap().clone())
    }

    fn host_link(&self, _: &Spec) -> Option<u32> {
        *self.host_link.lock().unwrap()
    }

    async fn index_in_pod(&self, _: &Spec, _: &Sandbox) -> Option<u32> {
        Some(7)
    }

    async fn give_back(&self, _: &Spec, link: &HostLink) -> Result<DelOutcome, Failure> {
        self.run(format!("give back {} of index {:?}", link.name, link.index_in_pod), &self.give_back)
            .await?;
        Ok(DelOutcome::Clean)
    }

    async fn check(&self, spec: &Spec, sandbox: &Sandbox, _: &CniResult) -> Checked {
        let script = self.check.lock().unwrap().front().copied();
        match self.run(format!("check {} {}", spec.if_name, sandbox.id), &self.check).await {
            Ok(()) => Checked::Fine,
            Err(failure) if matches!(script, Some(Script::MakeNothing)) => Checked::Unknown(failure.message),
            Err(failure) => Checked::Failed(found(&failure.message)),
        }
    }

    async fn is_as_made(&self, _: &Spec, _: &Sandbox, _: &CniResult) -> bool {
        *self.is_as_made.lock().unwrap()
    }

    async fn collect(
        &self,
        spec: &Spec,
        valid: impl Fn() -> Vec<(ContainerId, IfName)> + Send,
    ) -> Result<usize, Failure> {
        let valid: Vec<String> = valid().iter().map(|(id, name)| format!("{id}/{name}")).collect();
        let call = format!("collect {} but {}", spec.conflist.name(), valid.join(" "));
        self.run(call, &self.collect).await?;
        Ok(0)
    }

    async fn add(&self, spec: &Spec, sandbox: &Sandbox) -> Result<CniResult, AddFailure> {
        let script = self.add.lock().unwrap().front().copied();
        let failed = |failure: Failure| match script {
            Some(Script::MakeNothing) => AddFailure::not_begun(failure),
            Some(Script::Stop) => {
                let stopped = Some(Stopped { completed: 1, effect: Effect::Container });
                AddFailure { stopped, ..failure.into() }
            }
            _ => failure.into(),
        };
        let add = format!("add {} {}", spec.if_name, sandbox.id);
        self.run(add, &self.add).await.map_err(failed)?;
        let made = json!({"cniVersion": "1.1.0", "interfaces": [{"name": spec.if_name}]});
        Ok(result(&made.to_string()))
    }

    async fn prove(&self, spec: &Spec, sandbox: &Sandbox, made: &CniResult) -> Result<(), Failure> {
        assert_eq!(made.interfaces()[0].name, spec.if_name.as_str());
        self.run(format!("prove {} {}", spec.if_name, sandbox.id), &self.prove).await
    }

    async fn finalize(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        prev: &CniResult,
    ) -> Result<CniResult, AddFailure> {
        let on: Vec<&str> = prev.interfaces().iter().map(|interface| interface.name.as_str()).collect();
        let call = format!("finalize {} {} on {}", spec.if_name, sandbox.id, on.join(" "));
        self.run(call, &self.add).await?;
        Ok(prev.clone())
    }

    async fn del(&self, spec: &Spec, del: Del<'_>) -> Result<DelOutcome, Failure> {
        let netns = if del.netns.is_some() { "" } else { " without netns" };
        let result = if del.result.is_some() { " with result" } else { "" };
        let link = del
            .moved_link
            .map_or_else(String::new, |link| format!(" giving back {} with {}", link.name, link.mtu));
        let stopped = del.stopped.map_or_else(String::new, |at| format!(" stopped at {}", at.completed));
        let call = format!("del {} {}{netns}{result}{stopped}{link}", spec.if_name, del.sandbox_id);
        self.run(call, &self.del).await?;
        Ok(self.left.lock().unwrap().take().unwrap_or(DelOutcome::Clean))
    }
}

fn found(message: &str) -> Finding {
    Finding { message: message.to_owned(), is_of_interface: true }
}

/// An observer that fails this many times when everything is attached, and keeps what it was told was given
/// up, and how operations ended. Its last field says how plans are revised: a success gives the interface the
/// name `anew`.
#[derive(Default)]
struct Watcher(
    Mutex<u32>,
    Mutex<Vec<String>>,
    Mutex<Vec<(Operation, End, Duration)>>,
    Mutex<VecDeque<Script>>,
);

impl Observer for Watcher {
    type Owner = Claimant;

    async fn observe(&self, _: &str, state: &PodState<Claimant>) -> Result<(), Failure> {
        let mut failures = self.0.lock().unwrap();
        if state.gate("s1") == Gate::Open && *failures > 0 {
            *failures -= 1;
            return Err(Failure::new("disk full"));
        }
        Ok(())
    }

    async fn revise(&self, record: &Record<Claimant>) -> Result<Option<Revised<Claimant>>, Failure> {
        let script = self.3.lock().unwrap().pop_front();
        match script {
            None => Ok(None),
            Some(Script::Fail) => Err(Failure::new("no address")),
            Some(Script::Hang) => std::future::pending().await,
            Some(_) => {
                let mut plan = Plan::clone(&record.plan);
                plan.spec.if_name = "anew".parse().unwrap();
                Ok(Some(Revised { plan, turn: Box::new(()) }))
            }
        }
    }

    fn is_repaired(&self, plan: &Plan<Claimant>) -> bool {
        plan.owner.group() != "kept-uid"
    }

    fn given_up(&self, plan: &Plan<Claimant>, why: &str) {
        self.1.lock().unwrap().push(format!("{}: {why}", plan.network));
    }

    fn ended(
        &self,
        _: &Plan<Claimant>,
        operation: Operation,
        end: End,
        failure: Option<&Failure>,
        took: Duration,
    ) {
        assert_eq!(failure.is_some(), end == End::Failed);
        self.2.lock().unwrap().push((operation, end, took));
    }
}

/// A node with one pod; `restart` is a new agent on the same journal.
struct Node {
    dir: tempfile::TempDir,
    plugins: Arc<Plugins>,
    watcher: Arc<Watcher>,
    attacher: Arc<Attacher<Plugins, Watcher>>,
    boot: String,
}

const POD: &str = "pod-uid";

/// An attachment whose interface has the name of its claim.
fn named(claim: &str, index: u32) -> Plan<Claimant> {
    let mut plan = plan(claim, index);
    plan.spec.if_name = format!("{claim}{index}").parse().unwrap();
    plan
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (plugins, watcher) = (Arc::new(Plugins::default()), Arc::new(Watcher::default()));
        let attacher = Self::agent(&dir, &plugins, &watcher, "boot");
        Self { dir, plugins, watcher, attacher, boot: "boot".to_owned() }
    }

    fn agent(
        dir: &tempfile::TempDir,
        plugins: &Arc<Plugins>,
        watcher: &Arc<Watcher>,
        boot: &str,
    ) -> Arc<Attacher<Plugins, Watcher>> {
        let journal = Journal::open(dir.path().join("journal"), dir.path().join("run").join(boot)).unwrap();
        let loaded = journal.load().unwrap();
        Attacher::start(Arc::clone(plugins), Arc::clone(watcher), journal, loaded, boot)
    }

    async fn prepared(claims: &[(&str, u32)]) -> Self {
        let node = Self::new();
        let plans = claims.iter().map(|(claim, index)| Plan {
            of: claims.iter().filter(|(other, _)| other == claim).count().try_into().unwrap(),
            ..named(claim, *index)
        });
        node.attacher.prepare(plans.collect()).await.unwrap();
        node
    }

    fn restart(&mut self, boot: &str) {
        self.attacher = Self::agent(&self.dir, &self.plugins, &self.watcher, boot);
        boot.clone_into(&mut self.boot);
    }

    fn live(id: &str) -> LiveSandbox {
        let netns = Netns::fake(NetnsId { dev: 4, ino: 1 });
        LiveSandbox { pod_uid: POD.into(), sandbox: sandbox(id), netns }
    }

    fn up(&self, id: &str) {
        self.attacher.sandbox_up(Self::live(id));
    }

    async fn until(&self, what: &str, reached: impl FnMut(&PodState<Claimant>) -> bool) {
        let mut state = self.attacher.watch(POD).expect("a pod");
        let reached =
            tokio::time::timeout(Duration::from_secs(60), state.wait_for(reached)).await.map(|r| r.is_ok());
        assert!(reached.unwrap_or(false), "never {what}; calls: {:?}", self.plugins.calls());
        self.is_counted();
    }

    /// What is counted of all attachments is what a walk finds.
    fn is_counted(&self) {
        let (mut kinds, mut ids) = (BTreeMap::new(), BTreeSet::new());
        self.attacher.plans(|plan| *kinds.entry(Claimant::kind(plan)).or_default() += 1);
        self.attacher.for_each_pod(|state| {
            let sandboxes = state.records.iter().filter_map(|record| record.phase.sandbox());
            ids.extend(sandboxes.map(|sandbox| sandbox.id.clone()));
        });
        let counted = self.attacher.kinds().into_iter().map(|(kind, count)| (String::clone(&kind), count));
        assert_eq!((counted.collect(), self.attacher.sandbox_ids()), (kinds, ids));
    }

    async fn until_called(&self, call: &str) {
        loop {
            let called = self.plugins.called.notified();
            if self.plugins.calls().iter().any(|c| c == call) {
                return;
            }
            tokio::time::timeout(Duration::from_secs(60), called)
                .await
                .unwrap_or_else(|_| panic!("never {call}: {:?}", self.plugins.calls()));
        }
    }

    /// The path of a file in the folder of this boot.
    fn of_boot(&self, file: &str) -> PathBuf {
        self.dir.path().join("run").join(&self.boot).join(file)
    }

    /// Damages a file of the journal, wherever it is.
    fn tear(&self, file: &str) {
        for path in [self.dir.path().join("journal").join(file), self.of_boot(file)] {
            std::fs::write(path, "torn").unwrap();
        }
    }

    /// The run directory is emptied.
    fn empty_run_dir(&self) {
        std::fs::remove_dir_all(self.dir.path().join("run")).unwrap();
    }

    /// The number of attachments in the journal.
    fn journalled(&self) -> usize {
        let dirs = [self.dir.path().join("journal"), self.of_boot("")];
        let entries = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
        entries.map(|entry| entry.unwrap().file_name()).collect::<HashSet<_>>().len()
    }
}

fn open(id: &str) -> impl FnMut(&PodState<Claimant>) -> bool {
    move |state| state.sandbox.is_some() && state.gate(id) == Gate::Open
}

/// A node with the primary network of claim `p`, and one of claim `a`.
async fn with_primary() -> Node {
    let node = Node::new();
    let mut primary = named("p", 0);
    primary.spec.if_name = PRIMARY_INTERFACE.parse().unwrap();
    node.attacher.prepare(vec![named("a", 0), primary]).await.unwrap();
    node
}

#[tokio::test]
async fn a_primary_network_is_made_first_in_a_sandbox_that_asks_for_it() {
    let mut node = with_primary().await;
    node.attacher.sandbox_asks(Node::live("s1"));
    node.until("open", |state| state.gate("s1") == Gate::Open).await;
    node.up("s1");
    assert_eq!(node.plugins.calls(), ["add eth0 s1", "add a0 s1"]);
    // The next agent hears of the sandbox by the runtime's list.
    node.restart("boot");
    node.up("s1");
    node.until("open", |state| state.sandbox.is_some() && state.gate("s1") == Gate::Open).await;
    node.attacher.sandbox_gone(POD, "s1");
    node.until("clear", |state| state.is_clear_of("s1")).await;
    let dels = ["del a0 s1 with result", "del eth0 s1 with result"];
    assert_eq!(node.plugins.calls()[2..], dels, "the netns is there, and the primary network goes last");
}

#[tokio::test(start_paused = true)]
async fn a_primary_network_is_proven_before_others_are_made() {
    let node = Node::new();
    let mut primary = Plan { of: 2, ..named("b", 1) };
    primary.spec.if_name = PRIMARY_INTERFACE.parse().unwrap();
    let mut under = Plan { of: 2, ..named("b", 0) };
    under.spec.wire.probes = true;
    node.attacher.prepare(vec![named("a", 0), under, primary]).await.unwrap();
    node.plugins.prove.lock().unwrap().push_back(Script::Fail);
    node.attacher.sandbox_asks(Node::live("s1"));
    node.until("open", |state| state.gate("s1") == Gate::Open).await;
    let calls = node.plugins.calls();
    let dels = ["del eth0 s1 with result", "del b0 s1 with result"];
    let first = [["add b0 s1", "add eth0 s1", "prove b0 s1"].as_slice(), &dels].concat();
    assert_eq!(calls[..5], first, "in the order of its group: the runtime has no answer yet");
    assert_eq!(calls.last().map(String::as_str), Some("add a0 s1"), "{calls:?}");
}

#[tokio::test]
async fn a_primary_network_that_is_undone_is_not_made_again_in_the_same_sandbox() {
    let node = with_primary().await;
    node.attacher.sandbox_asks(Node::live("s1"));
    node.until("open", |state| state.gate("s1") == Gate::Open).await;
    node.attacher.sandbox_unfit(POD, "no more files".to_owned());
    node.until("undone", |state| state.is_clear_of("s1")).await;
    node.up("s1");
    let said = |state: &PodState<Claimant>| matches!(state.gate("s1"), Gate::Failed(why) if why.contains("or was lost"));
    node.until("said", said).await;
    assert_eq!(node.plugins.calls().iter().filter(|call| *call == "add eth0 s1").count(), 1);
    // Its sandbox goes after the next one has come.
    node.attacher.sandbox_asks(Node::live("s2"));
    node.attacher.sandbox_gone(POD, "s1");
    node.until("open", |state| state.gate("s2") == Gate::Open).await;
    node.attacher.sandbox_asks(Node::live("s3"));
    node.until("open", |state| state.gate("s3") == Gate::Open).await;
}

#[tokio::test]
async fn a_sandbox_without_an_eth0_gets_it_and_again_after_a_crash() {
    let mut node = with_primary().await;
    *node.plugins.is_bare.lock().unwrap() = true;
    node.plugins.add.lock().unwrap().push_back(Script::Hang);
    node.up("s1");
    node.until_called("add eth0 s1").await;
    // The rest of it is there, and is ours.
    *node.plugins.is_bare.lock().unwrap() = false;
    node.restart("boot");
    node.up("s1");
    node.until("open", |state| state.sandbox.is_some() && state.gate("s1") == Gate::Open).await;
    let calls = ["add eth0 s1", "del eth0 s1", "add eth0 s1", "add a0 s1"];
    assert_eq!(node.plugins.calls(), calls);
}

#[tokio::test]
async fn a_sandbox_that_does_not_ask_has_another_eth0() {
    let node = with_primary().await;
    node.up("s1");
    node.until("attached as far as possible", |state| state.records[1].phase.sandbox().is_some()).await;
    let failed = |state: &PodState<Claimant>| matches!(state.gate("s1"), Gate::Failed(why) if why.contains("the sandbox's eth0 is another network's"));
    node.until("said", failed).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1"]);
    node.attacher.sandbox_gone(POD, "s1");
    node.attacher.sandbox_asks(Node::live("s2"));
    node.until("open", |state| state.gate("s2") == Gate::Open).await;
}

#[tokio::test(start_paused = true)]
async fn networks_are_attached_in_order_and_detached_in_reverse() {
    let node = Node::prepared(&[("b", 0), ("a", 0), ("a", 1)]).await;
    assert!(node.plugins.calls().is_empty(), "nothing before there is a sandbox");
    node.up("s1");
    node.until("open", open("s1")).await;
    node.attacher.sandbox_gone(POD, "s1");
    node.until("detached", |state| state.records.iter().all(|r| r.phase == Phase::Planned)).await;
    let calls = node.plugins.calls();
    let dels = ["del b0 s1 with result", "del a1 s1 with result", "del a0 s1 with result"];
    assert_eq!(calls[..3], ["add a0 s1", "add a1 s1", "add b0 s1"]);
    assert_eq!(calls[3..], dels);
}

/// A pod of claim `a`, with a finalizer of its attachment, and claim `b`.
async fn finalized() -> Node {
    let node = Node::new();
    let finalizer = Plan { finalizes: Some(0), ..named("a", 1) };
    let plans = [named("a", 0), finalizer].map(|plan| Plan { of: 2, ..plan });
    node.attacher.prepare(plans.to_vec()).await.unwrap();
    node.attacher.prepare(vec![named("b", 0)]).await.unwrap();
    node
}

const FINALIZE: &str = "finalize a1 s1 on a0 b0";

#[tokio::test(start_paused = true)]
async fn a_finalizer_follows_all_attachments_of_the_pod_and_is_undone_first() {
    let mut node = finalized().await;
    // It makes no interface: what could move a link or be displaced with one is not asked for it.
    *node.plugins.host_link.lock().unwrap() = Some(5);
    node.up("s1");
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1", "add b0 s1", FINALIZE]);
    let links = |node: &Node| {
        let state = node.attacher.watch(POD).unwrap().borrow().clone();
        state.records.iter().map(|record| record.host_link).collect::<Vec<_>>()
    };
    assert_eq!(links(&node), [Some(5), Some(5), None]);
    // The next agent knows the order, too, and leaves it as it is.
    node.attacher.drain().await;
    node.restart("boot");
    node.attacher.synchronize(vec![Node::live("s1")], &HashSet::new());
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls().len(), 3);
    // Another claim of the pod is released first.
    node.attacher.release("b-uid").await.unwrap();
    node.attacher.release("a-uid").await.unwrap();
    let dels = ["del a1 s1 with result", "del b0 s1 with result", "del a0 s1 with result"];
    let in_netns =
        node.plugins.calls()[3..].iter().map(|call| call.replace(" without netns", "")).collect::<Vec<_>>();
    assert_eq!(in_netns, dels);
    assert_eq!(node.journalled(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_fails_is_retried_and_the_attachments_stay() {
    let node = finalized().await;
    node.plugins.add.lock().unwrap().extend([
        Script::Succeed,
        Script::Succeed,
        Script::Fail,
        Script::Succeed,
    ]);
    node.up("s1");
    node.until("failed", |state| matches!(state.gate("s1"), Gate::Failed(_))).await;
    node.until("open", open("s1")).await;
    // The DEL has what the plugins were given: none of them has returned a result.
    let del = "del a1 s1 with result";
    assert_eq!(node.plugins.calls(), ["add a0 s1", "add b0 s1", FINALIZE, del, FINALIZE]);
}

#[tokio::test(start_paused = true)]
async fn a_new_attachment_has_the_finalizer_made_again() {
    let node = finalized().await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.attacher.prepare(vec![named("c", 0)]).await.unwrap();
    node.until("open again", open("s1")).await;
    let anew = ["del a1 s1 with result", "add c0 s1", "finalize a1 s1 on a0 b0 c0"];
    assert_eq!(node.plugins.calls()[3..], anew);
}

/// The claim `claim`, which comes to the pod in this sandbox.
fn hot(claim: &str, sandbox: &str) -> Plan<Claimant> {
    let mut plan = named(claim, 0);
    let hot = serde_json::json!({"sandbox": sandbox, "since": "1"});
    plan.owner.rest.insert("hot".to_owned(), hot);
    plan
}

#[tokio::test(start_paused = true)]
async fn what_comes_to_a_running_pod_and_goes_leaves_its_gate_and_its_finalizer_alone() {
    let mut node = finalized().await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.plugins.add.lock().unwrap().extend([Script::Fail, Script::Succeed]);
    node.attacher.prepare(vec![hot("c", "s1")]).await.unwrap();
    let of_c = |phase: fn(&Phase) -> bool| {
        move |state: &PodState<Claimant>| {
            assert_eq!(state.gate("s1"), Gate::Open);
            let mut records = state.records.iter();
            records.any(|record| record.plan.owner.group() == "c-uid" && phase(&record.phase))
        }
    };
    let is_attached = |phase: &Phase| matches!(phase, Phase::Attached { .. });
    node.until("attached", of_c(is_attached)).await;
    assert_eq!(node.plugins.calls()[3..], ["add c0 s1", "del c0 s1", "add c0 s1"]);
    // The next agent knows it, too. In the next sandbox of the pod it comes last.
    node.attacher.drain().await;
    node.restart("boot");
    node.up("s2");
    node.until("open", open("s2")).await;
    let calls = node.plugins.calls();
    let adds: Vec<&String> = calls[6..].iter().filter(|call| !call.starts_with("del")).collect();
    assert_eq!(adds, ["add a0 s2", "add b0 s2", &FINALIZE.replace("s1", "s2"), "add c0 s2"]);
    node.attacher.release("c-uid").await.unwrap();
    let state = node.attacher.watch(POD).unwrap().borrow().clone();
    assert_eq!((state.closing, state.gate("s2")), (false, Gate::Open));
    assert!(node.plugins.calls().last().is_some_and(|call| call.starts_with("del c0 s2")));
}

#[tokio::test(start_paused = true)]
async fn attachments_wait_for_the_del_of_a_finalizer_until_it_seems_hopeless() {
    let node = finalized().await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.plugins.del.lock().unwrap().extend([Script::Fail; 5]);
    node.attacher.release("b-uid").await.expect("it is another claim's DEL that fails");
    let calls = node.plugins.calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("del a1")).count(), 5, "{calls:?}");
    assert!(calls.last().is_some_and(|call| call.starts_with("del b0")), "{calls:?}");
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.journalled(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_network_waits_for_the_del_of_a_later_one_of_its_claim() {
    let node = Node::prepared(&[("a", 0), ("b", 0), ("b", 1)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.plugins.del.lock().unwrap().push_back(Script::Fail);
    node.attacher.sandbox_gone(POD, "s1");
    node.until("detached", |state| state.records.iter().all(|r| r.phase == Phase::Planned)).await;
    let del = |name: &str| format!("del {name} s1 with result");
    assert_eq!(node.plugins.calls()[3..], ["b1", "a0", "b1", "b0"].map(del), "other claims do not wait");
}

#[tokio::test(start_paused = true)]
async fn an_add_that_cannot_succeed_waits_for_a_minute_or_for_a_change() {
    for (begin, add) in [(vec![Script::Never; 9], vec![]), (vec![], vec![Script::Never; 9])] {
        let node = Node::prepared(&[("a", 0)]).await;
        node.plugins.begin.lock().unwrap().extend(begin);
        node.plugins.add.lock().unwrap().extend(add);
        let started = tokio::time::Instant::now();
        node.up("s1");
        node.until("failed", |state| state.records[0].failed == Some(Operation::Add)).await;
        tokio::time::sleep(Duration::from_secs(70)).await;
        let left = || node.plugins.begin.lock().unwrap().len() + node.plugins.add.lock().unwrap().len();
        assert_eq!(left(), 1, "0.5 to 32 s between the first eight");
        node.attacher.retry_permanent();
        while left() == 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(started.elapsed() < Duration::from_secs(71), "{:?}", started.elapsed());
        node.until("open", open("s1")).await;
        assert!(
            started.elapsed() < Duration::from_secs(72),
            "a change starts it again: {:?}",
            started.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn every_operation_is_reported_with_its_end_and_its_time() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.plugins.add.lock().unwrap().extend([Script::Fail, Script::Slow, Script::Hang]);
    *node.plugins.left.lock().unwrap() = Some(DelOutcome::GivenUp("no".into()));
    node.up("s1");
    node.until("open", open("s1")).await;
    node.plugins.del.lock().unwrap().extend([Script::Fail, Script::Slow]);
    node.attacher.sandbox_gone(POD, "s1");
    node.until("detached", |state| state.records.iter().all(|r| r.phase == Phase::Planned)).await;
    node.up("s2");
    node.until_called("add a0 s2").await;
    node.attacher.release("a-uid").await.unwrap();
    let (short, long) = (Duration::ZERO, Duration::from_secs(1));
    let expected = [
        (Operation::Add, End::Failed, short),
        (Operation::Del, End::GivenUp, short),
        (Operation::Add, End::Succeeded, long),
        (Operation::Del, End::Failed, short),
        (Operation::Del, End::Succeeded, long),
        (Operation::Add, End::CutShort, short),
        (Operation::Del, End::Succeeded, short),
    ];
    let ended = node.watcher.2.lock().unwrap();
    // The paused clock counts whole milliseconds.
    let near = |took: Duration| {
        if took < Duration::from_millis(10) { short } else { Duration::from_secs(took.as_secs()) }
    };
    let ended: Vec<_> = ended.iter().map(|(operation, end, took)| (*operation, *end, near(*took))).collect();
    assert_eq!(ended, expected);
}

#[tokio::test(start_paused = true)]
async fn a_del_that_seems_hopeless_does_not_keep_the_rest_of_its_claim() {
    let node = Node::prepared(&[("a", 0), ("a", 1)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.plugins.del.lock().unwrap().extend([Script::Fail; 5]);
    node.attacher.sandbox_gone(POD, "s1");
    node.until("hopeless", |state| state.dels_failing == 1).await;
    node.until("detached", |state| state.records.iter().all(|r| r.phase == Phase::Planned)).await;
    node.attacher.for_each_pod(|state| assert_eq!(state.dels_failing, 0, "it has succeeded"));
    let calls = node.plugins.calls();
    assert_eq!(calls[2..7], ["del a1 s1 with result"; 5]);
    // The namespace, and a link in it, is there for as long as it is needed.
    assert_eq!(calls[7..], ["del a0 s1 with result", "del a1 s1 without netns with result"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_add_is_undone_at_once_and_tried_again() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.plugins.add.lock().unwrap().push_back(Script::Fail);
    node.up("s1");
    node.until("failed", |state| state.gate("s1") == Gate::Failed("network storage: no".into())).await;
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1", "del a0 s1", "add a0 s1"]);
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_is_revised_is_journalled_with_its_add() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    let changes = node.attacher.changes();
    node.watcher.3.lock().unwrap().push_back(Script::Succeed);
    node.plugins.add.lock().unwrap().push_back(Script::Hang);
    node.up("s1");
    node.until_called("add anew s1").await;
    assert!(changes.has_changed().unwrap(), "others see what the plan has now");
    node.restart("boot");
    node.up("s1");
    node.until("open", open("s1")).await;
    let calls = node.plugins.calls();
    assert!(calls.ends_with(&["del anew s1".into(), "add anew s1".into()]), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_cannot_be_revised_owes_nothing_and_is_tried_again() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.watcher.3.lock().unwrap().extend([Script::Fail, Script::Fail]);
    node.up("s1");
    node.until("failed", |state| state.gate("s1") == Gate::Failed("network storage: no address".into()))
        .await;
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_takes_commands_while_its_plan_is_revised() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.watcher.3.lock().unwrap().extend([Script::Hang, Script::Hang]);
    node.up("s1");
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.attacher.prepare(vec![named("b", 0)]).await.unwrap();
    node.attacher.release("a-uid").await.unwrap();
    node.attacher.release("b-uid").await.unwrap();
    assert_eq!((node.journalled(), node.plugins.calls().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_add_that_made_nothing_is_tried_again_without_a_del() {
    let node = Node::prepared(&[("a", 0)]).await;
    *node.plugins.link.lock().unwrap() =
        serde_json::from_value(json!({"index": 2, "name": "eth2", "mtu": 1500, "up": true})).unwrap();
    node.plugins.add.lock().unwrap().extend([Script::MakeNothing, Script::MakeNothing]);
    node.up("s1");
    node.until("failed", |state| state.gate("s1") == Gate::Failed("network storage: no".into())).await;
    node.attacher.for_each_pod(|state| assert_eq!(state.records[0].moved_link, None));
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1"; 3]);
}

#[tokio::test(start_paused = true)]
async fn an_add_that_cannot_begin_is_not_journalled_and_owes_nothing() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.plugins.begin.lock().unwrap().extend([Script::Fail; 2]);
    node.up("s1");
    let why = "network storage: claim a of pod pod: the name is taken";
    node.until("refused", |state| state.gate("s1") == Gate::Failed(why.into())).await;
    node.attacher.for_each_pod(|state| assert_eq!(state.records[0].phase, Phase::Planned));
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1"], "it is tried again");
}

#[tokio::test(start_paused = true)]
async fn where_an_add_stopped_is_known_to_its_del_also_of_the_next_agent() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    node.plugins.add.lock().unwrap().push_back(Script::Stop);
    node.plugins.del.lock().unwrap().push_back(Script::Hang);
    node.up("s1");
    node.until_called("del a0 s1 stopped at 1").await;
    node.restart("boot");
    node.attacher.synchronize(vec![Node::live("s1")], &HashSet::new());
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls()[1..3], ["del a0 s1 stopped at 1"; 2]);
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.plugins.calls()[4..], ["del a0 s1 with result"], "it is forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_failing_del_is_told_from_a_failing_add_until_it_succeeds() {
    let node = Node::prepared(&[("a", 0)]).await;
    let failed = |operation| {
        move |state: &PodState<Claimant>| state.records.iter().any(|record| record.failed == operation)
    };
    node.plugins.add.lock().unwrap().push_back(Script::Fail);
    node.plugins.del.lock().unwrap().push_back(Script::Fail);
    node.up("s1");
    node.until("the DEL failed", failed(Some(Operation::Del))).await;
    node.until("nothing fails", |state| state.records[0].error.is_none()).await;
    node.until("open", open("s1")).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_costs_a_pod_one_step_and_the_journal_says_what_is_owed() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.plugins.add.lock().unwrap().push_back(Script::Panic);
    node.up("s1");
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1", "del a0 s1", "add a0 s1"]);
    node.plugins.del.lock().unwrap().extend([Script::Panic; 2]);
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.plugins.calls()[3..], ["del a0 s1 with result"; 3]);
    assert_eq!((node.journalled(), node.attacher.panics()), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn the_gate_stays_shut_while_one_of_two_networks_fails() {
    let node = Node::prepared(&[("a", 0), ("a", 1)]).await;
    node.plugins.add.lock().unwrap().extend([Script::Succeed, Script::Fail, Script::Fail]);
    node.up("s1");
    node.until("failed", |state| matches!(state.gate("s1"), Gate::Failed(_))).await;
    node.until("open", open("s1")).await;
    let calls = node.plugins.calls();
    assert_eq!(calls, ["add a0 s1", "add a1 s1", "del a1 s1", "add a1 s1", "del a1 s1", "add a1 s1"]);
}

#[tokio::test(start_paused = true)]
async fn the_gate_stays_shut_until_the_observer_has_done_its_part() {
    let node = Node::prepared(&[("a", 0)]).await;
    *node.watcher.0.lock().unwrap() = 2;
    node.up("s1");
    node.until("held", |state| state.gate("s1") == Gate::Failed("disk full".into())).await;
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1"], "what is attached stays so");
}

#[tokio::test(start_paused = true)]
async fn a_release_cuts_a_hanging_add_short() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.plugins.add.lock().unwrap().push_back(Script::Hang);
    node.up("s1");
    node.until_called("add a0 s1").await;
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.plugins.calls(), ["add a0 s1", "del a0 s1"]);
    assert_eq!(node.journalled(), 0);
    assert!(node.attacher.watch(POD).is_none(), "nothing is remembered");
}

/// The claim `a` of [`POD`], given to the pod of this UID.
fn moved_to(pod_uid: &str) -> Plan<Claimant> {
    let mut plan = plan("a", 0);
    plan.spec.if_name = "b0".parse().unwrap();
    plan.owner.pod.uid = pod_uid.to_owned();
    plan
}

#[tokio::test(start_paused = true)]
async fn a_release_for_the_old_pod_leaves_the_claims_next_pod_alone() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.plugins.del.lock().unwrap().push_back(Script::Fail);
    assert!(node.attacher.release_of(POD, "a-uid").await.is_err());
    // What the old pod owes does not hold up the next one.
    node.attacher.prepare(vec![moved_to("next")]).await.unwrap();
    assert_eq!(node.attacher.plans_of("a-uid").len(), 2);
    let netns = Netns::fake(NetnsId { dev: 4, ino: 1 });
    node.attacher.sandbox_up(LiveSandbox { pod_uid: "next".into(), sandbox: sandbox("s2"), netns });
    node.until_called("add b0 s2").await;
    node.attacher.release_of(POD, "a-uid").await.unwrap();
    assert_eq!(node.attacher.plans_of("a-uid"), [moved_to("next")]);
    assert_eq!(node.attacher.release_of(POD, "a-uid").await, Ok(()), "it is not known any more");
    // Two agents never write at once.
    node.attacher.drain().await;
    node.restart("boot");
    assert!(
        node.plugins.calls().iter().all(|call| !call.starts_with("del b0")),
        "{:?}",
        node.plugins.calls()
    );
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.journalled(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_claim_is_of_every_pod_that_has_something_of_it() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.attacher.prepare(vec![moved_to("next")]).await.unwrap();
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.journalled(), 0);
    assert!(node.attacher.pods().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_damaged_file_of_the_old_pod_does_not_keep_the_claims_next_pod() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    node.tear("pod-uid_a-uid.0.json");
    node.restart("boot");
    node.attacher.prepare(vec![moved_to("next")]).await.unwrap();
    node.attacher.release_of(POD, "a-uid").await.expect_err("a DEL may be owed");
    node.attacher.release_of("next", "a-uid").await.unwrap();
    node.attacher.release("a-uid").await.expect_err("a DEL may be owed");
}

#[tokio::test(start_paused = true)]
async fn a_del_that_fails_keeps_the_claim_and_goes_on_by_itself() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.plugins.del.lock().unwrap().extend([Script::Fail, Script::Fail]);
    assert_eq!(node.attacher.release("a-uid").await, Err(Failure::new("no")));
    assert_eq!(node.journalled(), 1);
    // The kubelet asks again.
    while node.attacher.release("a-uid").await.is_err() {}
    assert_eq!(node.journalled(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_del_that_is_given_up_is_reported_once_and_lets_the_claim_go() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    let left = DelOutcome::GivenUp("the IPAM plugin is not there".to_owned());
    *node.plugins.left.lock().unwrap() = Some(left);
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(*node.watcher.1.lock().unwrap(), ["storage: the IPAM plugin is not there"]);
    assert_eq!(node.journalled(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_del_that_is_given_up_is_reported_with_its_last_failure() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.plugins.del.lock().unwrap().push_back(Script::Fail);
    *node.plugins.left.lock().unwrap() = Some(DelOutcome::GivenUp("link eth2 is gone".to_owned()));
    node.attacher.release("a-uid").await.unwrap_err();
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(*node.watcher.1.lock().unwrap(), ["storage: link eth2 is gone; DEL has failed before: no"]);
}

#[test]
fn a_lost_link_does_not_hide_what_the_plugins_have_left() {
    let plugins = || DelOutcome::GivenUp("bridge: no".to_owned());
    let joined =
        [DelOutcome::GivenUp, DelOutcome::Stray].map(|lost| lost("eth2".to_owned()).beside(plugins()));
    let text = "eth2; bridge: no".to_owned();
    assert_eq!(joined, [DelOutcome::GivenUp(text.clone()), DelOutcome::Stray(text)]);
    let alone = DelOutcome::Stray("eth2".to_owned());
    assert_eq!(alone.clone().beside(DelOutcome::Clean), alone);
}

#[tokio::test(start_paused = true)]
async fn a_new_sandbox_is_attached_after_the_old_one_is_detached() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    // The runtime does not always tell of the old sandbox's end.
    node.up("s2");
    node.until("open again", open("s2")).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1", "del a0 s1 with result", "add a0 s2"]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_old_sandbox_does_not_touch_the_new_one() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.up("s2");
    node.until("open", open("s2")).await;
    node.attacher.sandbox_gone(POD, "s1");
    node.attacher.prepare(vec![plan("a", 0)]).await.unwrap();
    assert!(open("s2")(&node.attacher.watch(POD).unwrap().borrow()));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_leaves_running_pods_alone_and_finishes_what_was_cut_short() {
    let mut node = Node::prepared(&[("a", 0), ("a", 1)]).await;
    node.plugins.add.lock().unwrap().extend([Script::Succeed, Script::Hang]);
    node.up("s1");
    node.until_called("add a1 s1").await;
    node.restart("boot");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(node.plugins.calls().len(), 2, "nothing before the runtime has told what lives");
    node.attacher.synchronize(vec![Node::live("s1")], &HashSet::new());
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls()[2..], ["del a1 s1", "add a1 s1"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_finishes_what_runs_and_begins_nothing_more() {
    let mut node = Node::prepared(&[("a", 0), ("a", 1)]).await;
    node.plugins.del.lock().unwrap().push_back(Script::Slow);
    node.up("s1");
    node.until("open", open("s1")).await;
    let attacher = Arc::clone(&node.attacher);
    let asked = tokio::spawn(async move { attacher.release("a-uid").await });
    node.until_called("del a1 s1 with result").await;
    node.attacher.drain().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(node.plugins.calls().len(), 3, "the DEL of the other network is left to the next agent");
    assert_eq!(node.journalled(), 1);
    assert!(!asked.is_finished(), "an agent that ends does not answer what the next one can");
    asked.abort();
    node.restart("boot");
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.plugins.calls()[3..], ["del a0 s1 without netns with result"]);
}

#[tokio::test(start_paused = true)]
async fn an_add_that_runs_when_the_agent_ends_is_there_for_the_next_one() {
    let mut node = Node::prepared(&[("a", 0), ("a", 1)]).await;
    node.plugins.add.lock().unwrap().push_back(Script::Slow);
    node.up("s1");
    node.until_called("add a0 s1").await;
    node.attacher.drain().await;
    node.restart("boot");
    node.attacher.synchronize(vec![Node::live("s1")], &HashSet::new());
    node.until("open", open("s1")).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1", "add a1 s1"], "nothing is made twice");
}

#[tokio::test(start_paused = true)]
async fn pods_that_the_runtime_no_longer_lists_are_detached() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.restart("boot");
    node.attacher.synchronize(Vec::new(), &HashSet::from([POD.to_owned()]));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1"], "an unclear sandbox is not a gone one");
    node.attacher.synchronize(Vec::new(), &HashSet::new());
    node.until("detached", |state| state.records.iter().all(|r| r.phase == Phase::Planned)).await;
    assert_eq!(node.plugins.calls()[1..], ["del a0 s1 without netns with result"]);
}

#[tokio::test(start_paused = true)]
async fn after_a_power_cut_everything_is_released_and_nothing_is_attached_unasked() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.restart("another boot");
    node.until("detached", |state| state.records.iter().all(|r| r.phase == Phase::Planned)).await;
    assert_eq!(node.plugins.calls()[1..], ["del a0 s1 without netns"]);
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.journalled(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_an_orderly_reboot_a_del_has_the_result_of_its_add() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.attacher.drain().await;
    node.restart("another boot");
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.plugins.calls()[1..], ["del a0 s1 without netns with result"]);
}

#[tokio::test(start_paused = true)]
async fn a_plan_without_an_add_is_gone_after_a_power_cut_and_prepared_again() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    node.restart("another boot");
    assert!(node.attacher.pods().is_empty());
    node.attacher.prepare(vec![named("a", 0)]).await.unwrap();
    assert_eq!((node.attacher.plans_of("a-uid").len(), node.journalled()), (1, 1));
    assert!(node.plugins.calls().is_empty(), "nothing is owed");
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_its_network_again_when_the_run_directory_was_emptied() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.empty_run_dir();
    node.restart("boot");
    node.attacher.synchronize(vec![Node::live("s1")], &HashSet::new());
    node.until("open", open("s1")).await;
    // What the ADD has left is not known any more.
    assert_eq!(node.plugins.calls()[1..], ["del a0 s1", "add a0 s1"]);
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!((node.plugins.calls().len(), node.journalled()), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn an_agent_needs_no_run_directory_that_it_has_not_emptied_itself() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.empty_run_dir();
    node.up("s1");
    node.until("open", open("s1")).await;
    node.empty_run_dir();
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.plugins.calls(), ["add a0 s1", "del a0 s1 with result"]);
}

#[tokio::test(start_paused = true)]
async fn a_link_is_given_back_as_it_was_before_the_first_add_whatever_comes_between() {
    let link = |mtu: u32| {
        serde_json::from_value(json!({"index": 2, "name": "eth2", "mtu": mtu, "up": true})).unwrap()
    };
    let mut node = Node::prepared(&[("a", 0)]).await;
    *node.plugins.link.lock().unwrap() = link(1500);
    node.plugins.add.lock().unwrap().push_back(Script::Hang);
    node.up("s1");
    node.until_called("add a0 s1").await;
    // Half moved, and the agent dies: twice in the ADD, once in the DEL.
    *node.plugins.link.lock().unwrap() = link(9);
    node.restart("boot");
    node.plugins.del.lock().unwrap().push_back(Script::Hang);
    node.attacher.synchronize(vec![Node::live("s1")], &HashSet::new());
    node.until_called("del a0 s1 giving back eth2 with 1500").await;
    node.restart("boot");
    node.plugins.del.lock().unwrap().push_back(Script::Fail);
    node.attacher.synchronize(vec![Node::live("s1")], &HashSet::new());
    *node.plugins.link.lock().unwrap() = link(1400);
    node.until("open", open("s1")).await;
    // Given back once, it is noted again: another program may have changed it since.
    node.attacher.release("a-uid").await.unwrap();
    let calls = node.plugins.calls();
    assert_eq!(calls[1..4], ["del a0 s1 giving back eth2 with 1500"; 3]);
    assert_eq!(calls[4..], ["add a0 s1", "del a0 s1 with result giving back eth2 with 1400"]);
}

/// A node whose pod has had `eth2`, which is not back now that the claim is released.
async fn with_a_stray() -> Node {
    let node = Node::prepared(&[("a", 0)]).await;
    *node.plugins.link.lock().unwrap() =
        serde_json::from_value(json!({"index": 2, "name": "eth2", "mtu": 1500, "up": true})).unwrap();
    node.up("s1");
    node.until("open", open("s1")).await;
    *node.plugins.left.lock().unwrap() = Some(DelOutcome::Stray("eth2 has another name".to_owned()));
    node.plugins.give_back.lock().unwrap().extend([Script::Fail; 3]);
    node.attacher.release("a-uid").await.expect("the claim need not wait for the link");
    node
}

fn strays(node: &Node) -> Vec<String> {
    node.attacher.strays(|plan, link, why| format!("{} of {}: {why}", link.name, plan.owner.pod.name))
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_not_back_is_kept_from_others_and_looked_for_until_it_is() {
    let node = with_a_stray().await;
    assert_eq!(strays(&node), ["eth2 of pod: eth2 has another name"]);
    let told = node.watcher.1.lock().unwrap().clone();
    assert!(matches!(&told[..], [told] if told.contains("eth2 has another name")), "{told:?}");
    assert!(!node.attacher.plans_of("a-uid").is_empty(), "its device is held");
    tokio::time::sleep(Duration::from_secs(600)).await;
    let calls = node.plugins.calls();
    assert_eq!(calls[2..], ["give back eth2 of index Some(7)"; 4], "no plugin is run for it again");
    assert!(node.attacher.pods().is_empty() && node.journalled() == 0);
}

#[tokio::test(start_paused = true)]
async fn the_next_agent_looks_for_a_stray_link_too() {
    let mut node = with_a_stray().await;
    node.plugins.give_back.lock().unwrap().clear();
    node.restart("boot");
    node.attacher.synchronize(Vec::new(), &HashSet::new());
    node.until("given back", |state| state.records.iter().all(|r| r.stray.is_none())).await;
    assert_eq!(node.plugins.calls()[2..], ["give back eth2 of index Some(7)"]);
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.journalled(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_reboot_a_stray_link_is_the_hosts() {
    let mut node = with_a_stray().await;
    node.restart("another boot");
    node.until("left", |state| state.records.iter().all(|r| r.stray.is_none())).await;
    assert_eq!(node.plugins.calls()[2..], [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn after_a_reboot_links_are_left_to_the_host() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    *node.plugins.link.lock().unwrap() =
        serde_json::from_value(json!({"index": 2, "name": "eth2", "mtu": 1500, "up": true})).unwrap();
    node.up("s1");
    node.until("open", open("s1")).await;
    node.restart("another boot");
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.plugins.calls()[1..], ["del a0 s1 without netns"]);
}

fn checked(state: &PodState<Claimant>) -> Option<&str> {
    state.records[0].check.as_ref().map(|found| found.message.as_str())
}

#[tokio::test(start_paused = true)]
async fn a_failed_check_is_shown_until_the_next_one_succeeds() {
    let node = Node::prepared(&[("a", 0)]).await;
    assert_eq!(node.attacher.check(POD, "a-uid.0", true).await, None, "it is not attached");
    node.up("s1");
    node.until("open", open("s1")).await;
    node.plugins.check.lock().unwrap().push_back(Script::Fail);
    assert_eq!(node.attacher.check(POD, "a-uid.0", true).await, Some(Checked::Failed(found("no"))));
    let state = node.attacher.watch(POD).unwrap();
    assert_eq!((checked(&state.borrow()), state.borrow().gate("s1")), (Some("no"), Gate::Open));
    assert_eq!(node.attacher.check(POD, "a-uid.0", true).await, Some(Checked::Fine));
    assert_eq!(checked(&state.borrow()), None);
    assert_eq!(node.attacher.check(POD, "b-uid.0", true).await, None);
    assert_eq!(node.attacher.check("nobody", "a-uid.0", true).await, None);
}

#[tokio::test(start_paused = true)]
async fn an_attachment_fails_its_check_when_its_link_was_made_again() {
    let mut node = Node::prepared(&[("a", 0)]).await;
    let link = |node: &Node, index| *node.plugins.host_link.lock().unwrap() = index;
    let displaced =
        |node: &Node| node.attacher.displaced().into_iter().map(|(_, _, now)| now).collect::<Vec<_>>();
    link(&node, Some(4));
    node.up("s1");
    node.until("open", open("s1")).await;
    assert_eq!(displaced(&node), []);
    link(&node, None);
    assert_eq!(displaced(&node), [None]);
    link(&node, Some(9));
    // The journal has the index.
    node.restart("boot");
    node.up("s1");
    node.until("open", open("s1")).await;
    assert_eq!(displaced(&node), [Some(9)]);
    let changes = node.attacher.changes();
    // A plugin without a CHECK, one that finds something, and one that does not.
    node.plugins.check.lock().unwrap().extend([Script::MakeNothing, Script::Fail, Script::Succeed]);
    let state = node.attacher.watch(POD).unwrap();
    node.attacher.check(POD, "a-uid.0", true).await;
    assert_eq!(checked(&state.borrow()), Some(MADE_AGAIN));
    assert!(changes.has_changed().unwrap(), "the device is unhealthy now");
    node.attacher.check(POD, "a-uid.0", true).await;
    assert_eq!(checked(&state.borrow()), Some(format!("{MADE_AGAIN}: no").as_str()));
    node.attacher.check(POD, "a-uid.0", true).await;
    assert_eq!(checked(&state.borrow()), None);
    // In its next sandbox it is on the new link.
    node.up("s2");
    node.until("open", open("s2")).await;
    assert_eq!(displaced(&node), []);
}

#[tokio::test(start_paused = true)]
async fn a_look_stands_for_a_check_for_a_day_while_everything_is_as_it_was() {
    let node = Node::prepared(&[("kept", 0)]).await;
    let is_as_made = |is: bool| *node.plugins.is_as_made.lock().unwrap() = is;
    let link = |index| *node.plugins.host_link.lock().unwrap() = index;
    let check = async || {
        let before = node.plugins.calls().len();
        let checked = node.attacher.check(POD, "kept-uid.0", true).await.unwrap();
        (checked, node.plugins.calls().len() - before)
    };
    link(Some(4));
    is_as_made(true);
    node.up("s1");
    node.until("open", open("s1")).await;
    assert_eq!(check().await, (Checked::Fine, 0), "the plugins have just made it");
    let before = node.plugins.calls().len();
    assert_eq!(node.attacher.check(POD, "kept-uid.0", false).await, Some(Checked::Fine));
    assert_eq!(node.plugins.calls().len() - before, 1, "a look is not wanted");
    tokio::time::advance(Duration::from_secs(12 * 3600 - 1)).await;
    assert_eq!(check().await, (Checked::Fine, 0));
    tokio::time::advance(Duration::from_secs(12 * 3600 + 1)).await;
    assert_eq!(check().await, (Checked::Fine, 1));
    assert_eq!(check().await, (Checked::Fine, 0));
    // Something differs, and then a plugin has found something.
    is_as_made(false);
    node.plugins.check.lock().unwrap().push_back(Script::Fail);
    assert_eq!(check().await, (Checked::Failed(found("no")), 1));
    is_as_made(true);
    assert_eq!(check().await, (Checked::Fine, 1));
    assert_eq!(check().await, (Checked::Fine, 0));
    link(Some(9));
    assert_eq!(check().await, (Checked::Fine, 1), "the link was made again");
    // A new sandbox has a new interface.
    link(Some(4));
    node.up("s2");
    node.until("open", open("s2")).await;
    assert_eq!(check().await, (Checked::Fine, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_repaired_has_a_check_by_its_plugins_first() {
    let node = Node::prepared(&[("a", 0)]).await;
    *node.plugins.is_as_made.lock().unwrap() = true;
    node.up("s1");
    node.until("open", open("s1")).await;
    for checks in [1, 0] {
        let before = node.plugins.calls().len();
        assert_eq!(node.attacher.check(POD, "a-uid.0", true).await, Some(Checked::Fine));
        assert_eq!(node.plugins.calls().len() - before, checks);
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_agent_has_attached_is_looked_at_first() {
    let mut node = Node::prepared(&[("kept", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    *node.plugins.is_as_made.lock().unwrap() = true;
    node.restart("boot");
    node.up("s1");
    node.until("open", open("s1")).await;
    let before = node.plugins.calls().len();
    assert_eq!(node.attacher.check(POD, "kept-uid.0", true).await, Some(Checked::Fine));
    assert_eq!(node.plugins.calls().len(), before, "no plugin was asked");
}

#[tokio::test(start_paused = true)]
async fn a_check_never_holds_up_the_pod() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.plugins.check.lock().unwrap().push_back(Script::Hang);
    let check = node.attacher.check(POD, "a-uid.0", true);
    let release = async {
        node.until_called("check a0 s1").await;
        node.attacher.release("a-uid").await
    };
    assert_eq!(tokio::join!(check, release), (None, Ok(())));
    assert_eq!(node.plugins.calls(), ["add a0 s1", "check a0 s1", "del a0 s1 with result"]);
}

#[tokio::test(start_paused = true)]
async fn gc_keeps_everything_that_was_begun() {
    let node = Node::prepared(&[("a", 0), ("a", 1), ("b", 0)]).await;
    node.plugins.add.lock().unwrap().extend([Script::Succeed, Script::Hang]);
    node.up("s1");
    node.until_called("add a1 s1").await;
    let networks = node.attacher.networks();
    let [(name, spec)] = networks.iter().collect::<Vec<_>>()[..] else { panic!("{networks:?}") };
    assert_eq!(name.as_str(), "n");
    node.attacher.collect(spec).await.unwrap();
    assert_eq!(node.plugins.calls().last().map(String::as_str), Some("collect n but s1/a0 s1/a1"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_collected_while_a_journal_file_cannot_be_read() {
    let mut node = Node::prepared(&[("a", 0), ("b", 0)]).await;
    node.tear("pod-uid_b-uid.0.json");
    node.restart("boot");
    let (_, spec) = node.attacher.networks().pop_first().unwrap();
    let error = node.attacher.collect(&spec).await.expect_err("an address may be in use").message;
    assert!(error.contains("pod-uid_b-uid.0.json"), "{error}");
    assert!(node.plugins.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_unfit_sandbox_fails_the_gate_with_the_reason() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.attacher.sandbox_unfit(POD, "hostNetwork".into());
    node.until("refused", |state| state.gate("s1") == Gate::Failed("network storage: hostNetwork".into()))
        .await;
    assert!(node.plugins.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn preparing_again_changes_nothing() {
    let node = Node::prepared(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.attacher.prepare(vec![plan("a", 0)]).await.unwrap();
    assert_eq!(node.plugins.calls(), ["add a0 s1"]);
    assert_eq!(node.attacher.plans_of("a-uid").len(), 1);
    assert_eq!(node.attacher.release("unknown").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn no_add_without_a_journal() {
    let node = Node::prepared(&[("a", 0)]).await;
    // A directory in the way of the temporary file makes every write fail.
    std::fs::create_dir(node.dir.path().join("journal/.pod-uid_a-uid.0.tmp")).unwrap();
    node.up("s1");
    node.until("failed", |state| matches!(state.gate("s1"), Gate::Failed(_))).await;
    assert!(node.plugins.calls().is_empty());
    std::fs::remove_dir(node.dir.path().join("journal/.pod-uid_a-uid.0.tmp")).unwrap();
    node.until("open", open("s1")).await;
}

#[tokio::test(start_paused = true)]
async fn half_a_claim_does_not_open_the_gate() {
    let node = Node::new();
    let plans = [0, 1].map(|index| Plan { of: 2, ..named("a", index) });
    std::fs::create_dir(node.of_boot(".pod-uid_a-uid.1.tmp")).unwrap();
    node.attacher.prepare(plans.to_vec()).await.expect_err("the second cannot be written");
    assert_eq!(node.attacher.plans_of("a-uid").len(), 1);
    node.up("s1");
    node.until("attached", |state| state.records.iter().all(|r| matches!(r.phase, Phase::Attached { .. })))
        .await;
    assert_eq!(node.attacher.watch(POD).unwrap().borrow().gate("s1"), Gate::Wait);
    std::fs::remove_dir(node.of_boot(".pod-uid_a-uid.1.tmp")).unwrap();
    node.attacher.prepare(plans.to_vec()).await.unwrap();
    node.until("open", open("s1")).await;
}

#[tokio::test(start_paused = true)]
async fn the_gate_of_a_pod_that_is_being_released_never_opens() {
    let node = Node::prepared(&[("a", 0), ("b", 0)]).await;
    node.plugins.add.lock().unwrap().push_back(Script::Fail);
    node.up("s1");
    node.until("failed", |state| matches!(state.gate("s1"), Gate::Failed(_))).await;
    let mut state = node.attacher.watch(POD).unwrap();
    node.attacher.release("a-uid").await.unwrap();
    let last = state.borrow_and_update().clone();
    assert_ne!(last.gate("s1"), Gate::Open, "{last:?}");
    node.attacher.release("b-uid").await.unwrap();
    assert_ne!(state.borrow_and_update().gate("s1"), Gate::Open);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_journal_file_keeps_its_claim_and_shuts_its_pods_gate() {
    let mut node = Node::prepared(&[("a", 0), ("b", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    node.tear("pod-uid_b-uid.0.json");
    node.restart("boot");
    let error = node.attacher.release("b-uid").await.expect_err("a DEL may be owed").message;
    assert!(error.contains("pod-uid_b-uid.0.json") && error.contains("remove it to give up"), "{error}");
    let error = node.attacher.prepare(vec![plan("b", 0)]).await.expect_err("would be written over").message;
    assert!(error.contains("pod-uid_b-uid.0.json"), "{error}");
    node.attacher.synchronize(vec![Node::live("s1")], &HashSet::new());
    node.until("told", |state| state.sandbox.is_some()).await;
    assert!(matches!(node.attacher.watch(POD).unwrap().borrow().gate("s1"), Gate::Failed(_)));
    node.attacher.release("a-uid").await.unwrap();
    assert_eq!(node.journalled(), 1, "the damaged one stays");
}

#[test]
fn a_message_without_end_keeps_its_beginning() {
    let kept = Failure::new("ü".repeat(Failure::MAX_MESSAGE)).message;
    assert_eq!(kept.len(), Failure::MAX_MESSAGE);
    assert!(kept.starts_with('ü'));
}

/// A node has hundreds of them, and all of them rest for most of their lives.
#[test]
fn the_task_of_a_pod_needs_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (state, _) = watch::channel(PodState::default());
    let (_, commands) = mpsc::unbounded_channel();
    let (plugins, watcher) = (Arc::<Plugins>::default(), Arc::<Watcher>::default());
    let journal = Journal::open(dir.path().join("journal"), dir.path().join("run")).unwrap();
    let pod = Pod::new(POD.into(), plugins, watcher, journal, "boot".into(), state, Arc::default());
    let task = pod.run(commands, |_| true, CancellationToken::new());
    let size = size_of_val(&task);
    assert!(size <= 4096, "{size} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_broken_attachment_is_made_again_with_those_that_were_made_of_it() {
    let mut node = Node::prepared(&[("a", 0), ("a", 1), ("b", 0)]).await;
    node.up("s1");
    node.until("open", open("s1")).await;
    let before = node.plugins.calls().len();
    // Nothing has found it to be fine.
    node.plugins.check.lock().unwrap().push_back(Script::Fail);
    node.attacher.check(POD, "a-uid.0", true).await;
    assert!(!node.attacher.redo(POD, "a-uid.0").await);
    assert_eq!(node.attacher.check(POD, "a-uid.0", true).await, Some(Checked::Fine));
    // The journal knows.
    node.restart("boot");
    node.up("s1");
    node.until("open", open("s1")).await;
    assert!(!node.attacher.redo(POD, "a-uid.0").await, "nothing is wrong");
    node.plugins.check.lock().unwrap().push_back(Script::Fail);
    node.attacher.check(POD, "a-uid.0", true).await;
    assert_eq!(node.plugins.calls()[before..], ["check a0 s1"; 3]);
    // A DEL that fails holds the others of the network up, too.
    node.plugins.del.lock().unwrap().push_back(Script::Fail);
    assert!(node.attacher.redo(POD, "a-uid.0").await);
    let on_trial = |state: &PodState<Claimant>| state.records[..2].iter().all(Record::is_on_trial);
    node.until("a DEL has failed", |state| on_trial(state) && state.records[1].error.is_some()).await;
    node.until("open", open("s1")).await;
    let again =
        ["del a1 s1 with result", "del a1 s1 with result", "del a0 s1 with result", "add a0 s1", "add a1 s1"];
    assert_eq!(node.plugins.calls()[before + 3..], again);
    let state = node.attacher.watch(POD).unwrap();
    let on_trial = || state.borrow().records.iter().map(Record::is_on_trial).collect::<Vec<_>>();
    assert_eq!(on_trial(), [true, true, false]);
    node.attacher.check(POD, "a-uid.0", true).await;
    assert_eq!(on_trial(), [false, true, false]);
}

/// A pod with attachments of these claims, whose networks want a proof.
async fn to_be_proven(claims: &[(&str, u32)]) -> Node {
    let node = Node::new();
    let plans = claims.iter().map(|(claim, index)| {
        let of = claims.iter().filter(|(other, _)| other == claim).count().try_into().unwrap();
        let mut plan = Plan { of, ..named(claim, *index) };
        plan.spec.wire.probes = true;
        plan
    });
    node.attacher.prepare(plans.collect()).await.unwrap();
    node
}

#[tokio::test(start_paused = true)]
async fn all_attachments_of_a_pod_are_made_and_then_proven_at_once() {
    let node = to_be_proven(&[("a", 0), ("b", 0)]).await;
    node.plugins.prove.lock().unwrap().extend([Script::Slow, Script::Slow]);
    node.up("s1");
    let started = tokio::time::Instant::now();
    node.until_called("prove b0 s1").await;
    let state = node.attacher.watch(POD).unwrap().borrow().clone();
    assert!(state.records.iter().all(|record| matches!(record.phase, Phase::Adding { .. })), "{state:?}");
    assert_eq!(state.gate("s1"), Gate::Wait, "nothing is proven");
    node.until("open", |state| state.gate("s1") == Gate::Open).await;
    assert_eq!(started.elapsed(), Duration::from_secs(1), "they are slow together");
    assert_eq!(node.plugins.calls(), ["add a0 s1", "add b0 s1", "prove a0 s1", "prove b0 s1"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_proven_is_made_again_with_the_later_ones_of_its_claim() {
    let node = to_be_proven(&[("a", 0), ("a", 1), ("b", 0)]).await;
    node.plugins.prove.lock().unwrap().push_back(Script::Fail);
    node.up("s1");
    node.until("failed", |state| matches!(state.gate("s1"), Gate::Failed(_))).await;
    node.until("open", |state| state.gate("s1") == Gate::Open).await;
    let expected = [
        "add a0 s1",
        "add a1 s1",
        "add b0 s1",
        "prove a0 s1",
        "del a1 s1 with result",
        "del a0 s1 with result",
        "prove b0 s1",
        "add a0 s1",
        "add a1 s1",
        "prove a0 s1",
        "prove a1 s1",
    ];
    assert_eq!(node.plugins.calls(), expected);
    let ended: Vec<End> = node.watcher.2.lock().unwrap().iter().map(|(_, end, _)| *end).collect();
    assert_eq!(ended.iter().filter(|end| **end == End::Failed).count(), 1, "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_not_proven_when_the_agent_ended_is_made_again() {
    let mut node = to_be_proven(&[("a", 0)]).await;
    node.plugins.prove.lock().unwrap().push_back(Script::Hang);
    node.up("s1");
    node.until_called("prove a0 s1").await;
    node.restart("boot");
    node.up("s1");
    node.until("open", |state| state.gate("s1") == Gate::Open).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1", "prove a0 s1", "del a0 s1", "add a0 s1", "prove a0 s1"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_does_not_wait_for_a_proof() {
    let node = to_be_proven(&[("a", 0)]).await;
    node.plugins.prove.lock().unwrap().push_back(Script::Hang);
    node.up("s1");
    node.until_called("prove a0 s1").await;
    tokio::time::timeout(Duration::from_secs(5), node.attacher.drain()).await.expect("it ends");
    assert_eq!(node.journalled(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_proof_ends_with_its_sandbox_and_its_claim() {
    let node = to_be_proven(&[("a", 0)]).await;
    node.plugins.prove.lock().unwrap().extend([Script::Hang, Script::Hang]);
    node.up("s1");
    node.until_called("prove a0 s1").await;
    node.up("s2");
    node.until_called("prove a0 s2").await;
    node.attacher.release("a-uid").await.unwrap();
    let expected = [
        "add a0 s1",
        "prove a0 s1",
        "del a0 s1 with result",
        "add a0 s2",
        "prove a0 s2",
        "del a0 s2 with result",
    ];
    assert_eq!(node.plugins.calls(), expected);
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_was_prepared_meanwhile_is_made_before_the_proof_goes_on() {
    let node = to_be_proven(&[("a", 0)]).await;
    node.plugins.prove.lock().unwrap().push_back(Script::Hang);
    node.up("s1");
    node.until_called("prove a0 s1").await;
    node.attacher.prepare(vec![Plan { of: 1, ..named("b", 0) }]).await.unwrap();
    node.until("open", |state| state.records.len() == 2 && state.gate("s1") == Gate::Open).await;
    assert_eq!(node.plugins.calls(), ["add a0 s1", "prove a0 s1", "add b0 s1", "prove a0 s1"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_made_on_what_is_not_proven_is_made_again_by_the_next_agent() {
    let mut node = Node::new();
    let mut plans = [named("a", 0), named("a", 1)].map(|plan| Plan { of: 2, ..plan });
    plans[0].spec.wire.needs_gateway = true;
    node.attacher.prepare(plans.to_vec()).await.unwrap();
    node.plugins.prove.lock().unwrap().push_back(Script::Hang);
    node.up("s1");
    node.until_called("prove a1 s1").await;
    let state = node.attacher.watch(POD).unwrap().borrow().clone();
    assert!(state.records.iter().all(|record| matches!(record.phase, Phase::Adding { .. })), "{state:?}");
    node.restart("boot");
    node.up("s1");
    node.until("open", |state| state.gate("s1") == Gate::Open).await;
    let calls = node.plugins.calls();
    let again: Vec<&str> = calls.iter().skip(4).map(String::as_str).collect();
    let expected = ["del a1 s1", "del a0 s1", "add a0 s1", "add a1 s1", "prove a0 s1", "prove a1 s1"];
    assert_eq!(again, expected, "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_is_repaired_without_a_proof() {
    let node = to_be_proven(&[("a", 0)]).await;
    node.up("s1");
    node.until("open", |state| state.gate("s1") == Gate::Open).await;
    assert_eq!(node.attacher.check(POD, "a-uid.0", true).await, Some(Checked::Fine));
    node.plugins.check.lock().unwrap().push_back(Script::Fail);
    node.attacher.check(POD, "a-uid.0", true).await;
    assert!(node.attacher.redo(POD, "a-uid.0").await);
    node.until("repaired", |state| state.records[0].repaired.is_some() && state.gate("s1") == Gate::Open)
        .await;
    let proofs = node.plugins.calls().iter().filter(|call| call.starts_with("prove")).count();
    assert_eq!(proofs, 1, "{:?}", node.plugins.calls());
}
