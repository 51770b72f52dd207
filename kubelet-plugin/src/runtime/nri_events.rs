//! The agent as an NRI plugin: what the runtime's events mean for attachments.
//!
//! Events are hints about what is desired; `netclaim_driver::attach` decides what follows. Every handler here
//! returns within its budget, because the runtime blocks all pods of the node meanwhile.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::pods::owner::PodState;
use netclaim_driver::attach::{Attach, Attacher, Gate};
use netclaim_driver::failpoint::Failpoint;
use netclaim_nri::{Adjustment, Container, Denial, Handler, Hook, RuntimeInfo, Sandbox as PodSandbox};
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::watch;

use crate::gate::cdi::{Form, HOOK_TIMEOUT, of_another_pod};
use crate::gate::keeper::GateKeeper;
use crate::pods::NodePods;
use crate::pods::owner::{ObjectRef, Owner, Plan};
use crate::runtime::sandboxes::{self, Inspection, Sandboxes};
use crate::runtime::tasks::SandboxTasks;
use crate::waking::Waker;

/// How long a sandbox waits for its networks while no other pod attaches. The runtime calls its plugins under
/// one lock, so a handler that waits blocks every pod of the node.
const HOLD: Duration = Duration::from_millis(50);
/// How long attaching may take before the agent asks the API server how the pod's containers may wait. Most
/// pods are attached sooner.
const LONG: Duration = Duration::from_millis(25);
/// How soon the kubelet retries a refused container by itself, once and at the earliest.
const RETRIED: Duration = Duration::from_millis(200);
/// How soon a late agent mostly learns that it was: it handles what came meanwhile, and then connects again.
const LATE: Duration = Duration::from_secs(3);
/// From one question to the API server to the next.
const ASK_INTERVAL: Duration = Duration::from_secs(3);

/// The handler of the runtime's events.
pub(crate) struct RuntimeEvents<N> {
    pub(crate) attacher: Arc<Attacher<N, GateKeeper>>,
    pub(crate) pods: Arc<NodePods>,
    /// Has pods woken whose containers were refused.
    pub(crate) waker: Waker,
    /// The files that containers wait for.
    pub(crate) gate: Arc<GateKeeper>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// The running boot, to which all sandboxes belong.
    pub(crate) boot_id: String,
    /// How long attaching takes.
    pub(crate) attach_seconds: Histogram,
    /// Tasks that retry the inspection of a sandbox, by its id.
    pub(crate) inspecting: SandboxTasks,
    /// Tasks that decide how a pod's containers wait, by its sandbox's id.
    pub(crate) deciding: SandboxTasks,
    /// Tasks that have a pod woken whose container was refused, by its sandbox's id.
    pub(crate) refused: Arc<SandboxTasks>,
}

/// Whether a pod has claims and is not attached yet, so that its sandbox may wait behind another one. One
/// with a primary network begins when the runtime asks for that, and may never.
fn is_attaching(state: &PodState) -> bool {
    if state.sandbox.is_none() && state.records.iter().any(|record| record.plan.is_primary()) {
        return false;
    }
    let waits = state.sandbox.as_ref().is_none_or(|sandbox| state.gate(&sandbox.id) == Gate::Wait);
    waits && !state.closing && !state.records.is_empty()
}

/// Whether the pod is being attached in this sandbox.
fn is_current(state: &PodState, sandbox_id: &str) -> bool {
    state.sandbox.as_ref().is_some_and(|sandbox| sandbox.id == sandbox_id)
}

/// Whether there is nothing more to wait for in this sandbox.
fn is_over(state: &PodState, sandbox_id: &str) -> bool {
    !is_current(state, sandbox_id) || state.closing || state.gate(sandbox_id) == Gate::Open
}

/// Waits until the pod's task knows the sandbox.
async fn processed(state: &mut watch::Receiver<PodState>, sandbox_id: &str) {
    let known = |state: &PodState| {
        is_current(state, sandbox_id) || state.closing || state.gate(sandbox_id) == Gate::Open
    };
    // An error is the end of the task, by which everything else ends too.
    let _ = state.wait_for(known).await;
}

/// Has a pod woken when it is attached, unless that is so before `retried`: the kubelet retries a container
/// that was refused soon once, and then after 10 to 15 s.
async fn wake_when_attached(
    mut state: watch::Receiver<PodState>,
    sandbox: PodSandbox,
    retried: Instant,
    waker: Waker,
) {
    let PodSandbox { id, namespace, name, uid, .. } = sandbox;
    processed(&mut state, &id).await;
    let over = state.wait_for(|state| is_over(state, &id)).await;
    if over.is_ok_and(|state| state.gate(&id) == Gate::Open) && Instant::now() >= retried {
        waker.attached(ObjectRef { namespace, name, uid });
    }
}

impl<N: Attach> RuntimeEvents<N> {
    /// Lets the containers of a pod wait in a hook if attaching takes `long`, and if the kubelet would start
    /// them again. Otherwise the pod is woken when it is attached.
    fn let_wait_in_hook(&self, sandbox: &PodSandbox, long: Duration) {
        let Some(mut state) = self.attacher.watch(&sandbox.uid) else { return };
        let (pods, gate) = (Arc::clone(&self.pods), Arc::clone(&self.gate));
        let (refused, waker) = (Arc::clone(&self.refused), self.waker.clone());
        let of = sandbox.clone();
        let begin = Instant::now();
        self.deciding.start(&sandbox.id, async move {
            let PodSandbox { id, namespace, name, uid, .. } = &of;
            let settled = |state: &PodState| state.gate(id) != Gate::Wait;
            processed(&mut state, id).await;
            let _ = tokio::time::timeout(long, state.wait_for(settled)).await;
            while !is_over(&state.borrow(), id) {
                let answer = pods.may_wait_in_hook(namespace, name, uid).await;
                if answer != Some(true) {
                    // Refused now, and perhaps for longer than the kubelet retries soon.
                    let wake = wake_when_attached(state.clone(), of.clone(), begin + RETRIED, waker.clone());
                    refused.start(id, wake);
                }
                match answer {
                    Some(true) => return gate.decide(uid, Form::Hook),
                    Some(false) => return gate.decide(uid, Form::Shut),
                    None => {
                        let over = state.wait_for(|state| is_over(state, id));
                        if let Ok(Err(_)) = tokio::time::timeout(ASK_INTERVAL, over).await {
                            return;
                        }
                    }
                }
            }
        });
    }

    /// Has a pod woken when it is attached, unless that is so before `retried`.
    fn wake_when_attached(&self, sandbox: &PodSandbox, retried: Instant) {
        if let Some(state) = self.attacher.watch(&sandbox.uid) {
            let wake = wake_when_attached(state, sandbox.clone(), retried, self.waker.clone());
            self.refused.start(&sandbox.id, wake);
        }
    }

    /// Measures how long attaching takes in a sandbox from now on.
    fn measure(&self, sandbox: &PodSandbox) {
        let (seconds, id) = (self.attach_seconds.clone(), sandbox.id.clone());
        let Some(mut state) = self.attacher.watch(&sandbox.uid) else { return };
        tokio::spawn(async move {
            let begin = Instant::now();
            if state.wait_for(|state| state.gate(&id) != Gate::Wait).await.is_ok() {
                seconds.observe(begin.elapsed().as_secs_f64());
            }
        });
    }

    fn inspect(&self, sandbox: &PodSandbox) -> Inspection {
        sandboxes::inspect(&sandbox.uid, &sandbox.id, &sandbox.network, &self.boot_id)
    }

    /// Retries an inspection until it succeeds or the sandbox ends.
    fn retry_inspection(&self, sandbox: &PodSandbox) {
        let (attacher, boot_id, sandbox) =
            (Arc::clone(&self.attacher), self.boot_id.clone(), sandbox.clone());
        let id = sandbox.id.clone();
        self.inspecting.replace(&id, async move {
            let PodSandbox { id, uid, network, .. } = &sandbox;
            // The pod may have a later sandbox by now.
            let is_current =
                |state: &PodState| state.sandbox.as_ref().is_none_or(|sandbox| sandbox.id == *id);
            let wanted = || attacher.watch(uid).is_some_and(|state| is_current(&state.borrow()));
            match sandboxes::retry(|| sandboxes::inspect(uid, id, network, &boot_id), wanted).await {
                Some(Inspection::Live(live)) => attacher.sandbox_up(live),
                Some(Inspection::Unfit(reason)) => attacher.sandbox_unfit(uid, reason),
                Some(Inspection::Gone | Inspection::Unclear(_)) | None => {}
            }
        });
    }

    /// Returns the UIDs of the claims that a container names.
    fn claims_of<'a>(&'a self, container: &'a Container) -> impl Iterator<Item = &'a str> {
        container.cdi_devices.iter().filter_map(|device| self.gate.specs().claim_of(device))
    }

    /// Returns why a container may not have a claim that it names. Where the runtime does not report the
    /// container's CDI devices, the hook refuses instead.
    fn claim_of_another_pod(&self, sandbox: &PodSandbox, container: &Container) -> Option<String> {
        let mut plans = self.claims_of(container).flat_map(|uid| self.attacher.plans_of(uid));
        let plan = plans.find(|plan| plan.owner.pod.uid != sandbox.uid)?;
        Some(of_another_pod(&plan))
    }

    /// Returns why no container of a pod starts, also one that names no claim: another pod of the node has
    /// one of its claims.
    async fn waits_for_another_pod(&self, sandbox: &PodSandbox) -> Option<String> {
        // A claim of a template is one pod's, and what others have is seldom named: hardly any pod is asked
        // about.
        let shared = self.attacher.plans(|plan| {
            let Owner { claim, pod, .. } = &plan.owner;
            let may_be_its = plan.owner.may_be_shared() && claim.namespace == sandbox.namespace;
            (may_be_its && pod.uid != sandbox.uid).then(|| plan.clone())
        });
        let shared: Vec<Plan> = shared.into_iter().flatten().collect();
        if shared.is_empty() {
            return None;
        }
        let claims = self.pods.claims(&sandbox.namespace, &sandbox.name, &sandbox.uid).await?;
        // Another pod may still have an earlier claim of the same name.
        let name = |plan: &Plan| (plan.owner.pod.uid == sandbox.uid).then(|| plan.owner.claim.name.clone());
        let own: HashSet<String> = self.attacher.plans(name).into_iter().flatten().collect();
        let is_its = |plan: &&Plan| {
            let name = &plan.owner.claim.name;
            claims.contains(name) && !own.contains(name)
        };
        shared.iter().find(is_its).map(of_another_pod)
    }

    /// Waits until no DEL is owed to the sandbox, at most for `budget`.
    async fn detach(&self, sandbox: &PodSandbox, budget: Duration) {
        self.sandboxes.gone(sandbox);
        let Some(mut state) = self.attacher.watch(&sandbox.uid) else {
            return;
        };
        Failpoint::SandboxStopped.reach();
        self.inspecting.stop(&sandbox.id);
        self.deciding.stop(&sandbox.id);
        self.refused.stop(&sandbox.id);
        self.attacher.sandbox_gone(&sandbox.uid, &sandbox.id);
        let nothing_owed = |state: &PodState| state.is_clear_of(&sandbox.id);
        if tokio::time::timeout(budget, state.wait_for(nothing_owed)).await.is_err() {
            tracing::info!(
                pod.uid = sandbox.uid,
                sandbox = sandbox.id,
                "detaching goes on after the sandbox's end"
            );
        }
    }
}

impl<N: Attach> Handler for RuntimeEvents<N> {
    fn configured(&self, runtime: &RuntimeInfo) {
        tracing::info!(name = runtime.name, version = runtime.version, timeout = ?runtime.request_timeout, "container runtime");
    }

    async fn synchronize(&self, sandboxes: Vec<PodSandbox>) {
        let maybe_late = self.sandboxes.up_within(LATE);
        self.sandboxes.replace(&sandboxes);
        let (mut live, mut unclear, mut unfit) = (Vec::new(), HashSet::new(), Vec::new());
        let mut pods = Vec::new();
        for sandbox in &sandboxes {
            let Some(state) = self.attacher.watch(&sandbox.uid) else { continue };
            match self.inspect(sandbox) {
                Inspection::Live(found) => {
                    live.push(found);
                    let is_open = state.borrow().gate(&sandbox.id) == Gate::Open;
                    pods.push((sandbox, !is_open || maybe_late.contains(&sandbox.id)));
                }
                Inspection::Gone => {}
                Inspection::Unfit(reason) => {
                    unclear.insert(sandbox.uid.clone());
                    unfit.push((&sandbox.uid, reason));
                }
                Inspection::Unclear(error) => {
                    tracing::warn!(
                        pod.uid = sandbox.uid,
                        sandbox = sandbox.id,
                        error,
                        "cannot inspect a sandbox, trying again"
                    );
                    unclear.insert(sandbox.uid.clone());
                    self.retry_inspection(sandbox);
                }
            }
        }
        // Before the live ones: the list may have an earlier, unfit sandbox of the same pod.
        for (pod_uid, reason) in unfit {
            self.attacher.sandbox_unfit(pod_uid, reason);
        }
        self.attacher.synchronize(live, &unclear);
        let now = Instant::now();
        for (sandbox, may_be_refused) in pods {
            if may_be_refused {
                // One of before may expect that the kubelet retries soon.
                self.refused.stop(&sandbox.id);
                self.wake_when_attached(sandbox, now);
            }
            self.let_wait_in_hook(sandbox, Duration::ZERO);
        }
    }

    async fn run_pod_sandbox(&self, sandbox: PodSandbox, budget: Duration) -> Result<(), Denial> {
        // Before the inspection: a Prepare in between finds the sandbox.
        self.sandboxes.up(&sandbox);
        let Some(mut state) = self.attacher.watch(&sandbox.uid) else {
            return Ok(());
        };
        Failpoint::SandboxSeen.reach();
        let alone = !self.attacher.any_pod(|uid, state| uid != sandbox.uid && is_attaching(state));
        self.measure(&sandbox);
        match self.inspect(&sandbox) {
            Inspection::Live(live) => self.attacher.sandbox_up(live),
            Inspection::Gone => {
                self.attacher.sandbox_unfit(&sandbox.uid, "the runtime named no network namespace".to_owned())
            }
            Inspection::Unfit(reason) => self.attacher.sandbox_unfit(&sandbox.uid, reason),
            // The runtime has asked for its primary network, and so for all.
            Inspection::Unclear(_) if is_current(&state.borrow(), &sandbox.id) => {}
            Inspection::Unclear(reason) => {
                self.attacher.sandbox_unfit(&sandbox.uid, reason);
                self.retry_inspection(&sandbox);
            }
        }
        // The gate holds containers, so the sandbox itself is never refused.
        self.let_wait_in_hook(&sandbox, if alone { LONG } else { Duration::ZERO });
        let settled = |state: &PodState| state.gate(&sandbox.id) != Gate::Wait;
        if !alone || tokio::time::timeout(HOLD.min(budget), state.wait_for(settled)).await.is_err() {
            tracing::debug!(pod.uid = sandbox.uid, sandbox = sandbox.id, "attaching goes on behind the gate");
        }
        Ok(())
    }

    async fn create_container(
        &self,
        sandbox: PodSandbox,
        container: Container,
        _budget: Duration,
    ) -> Result<Adjustment, Denial> {
        if let Some(refusal) = self.claim_of_another_pod(&sandbox, &container) {
            return Err(Denial(refusal));
        }
        if let Some(refusal) = self.waits_for_another_pod(&sandbox).await {
            return Err(Denial(refusal));
        }
        let state = self.attacher.watch(&sandbox.uid).map(|state| state.borrow().clone());
        // What came to a pod without claims may just have gone.
        let state = state.filter(|state| !state.records.is_empty() || state.closing);
        if state.is_some() {
            Failpoint::ContainerSeen.reach();
        }
        if let Some(state) = &state
            && state.sandbox.as_ref().is_none_or(|known| known.id != sandbox.id)
            && let Inspection::Live(live) = self.inspect(&sandbox)
        {
            // The sandbox's own event was lost, or its inspection failed then.
            self.attacher.sandbox_up(live);
            self.let_wait_in_hook(&sandbox, LONG);
        }
        match state.map(|state| state.gate(&sandbox.id)) {
            None | Some(Gate::Open) => Ok(Adjustment::default()),
            Some(Gate::Failed(error)) => {
                self.wake_when_attached(&sandbox, Instant::now());
                Err(Denial(error))
            }
            Some(Gate::Wait) if !self.gate.wait_in_hook(&sandbox.uid) => Err(Denial(
                "the pod's networks are still being attached: its containers are created when they are there"
                    .to_owned(),
            )),
            // Containers that name the claim have the hook by CDI, also without the agent.
            Some(Gate::Wait) if self.claims_of(&container).next().is_some() => Ok(Adjustment::default()),
            Some(Gate::Wait) => {
                let hook = self.gate.specs().hook();
                let path = hook.path.to_string_lossy().into_owned();
                let hook = Hook { path, args: hook.args(), env: Vec::new(), timeout: HOOK_TIMEOUT };
                Ok(Adjustment { create_runtime: vec![hook] })
            }
        }
    }

    async fn stop_pod_sandbox(&self, sandbox: PodSandbox, budget: Duration) {
        self.detach(&sandbox, budget).await;
    }

    async fn remove_pod_sandbox(&self, sandbox: PodSandbox, budget: Duration) {
        self.detach(&sandbox, budget).await;
    }
}

#[cfg(test)]
mod tests {
    use netclaim_driver::attach::Phase;

    use super::*;
    use crate::fixtures::{attached, record, sandbox};

    #[test]
    fn a_pod_with_claims_is_attaching_until_its_networks_are_there_or_fail() {
        let planned = || vec![record("a", Phase::Planned)];
        let mut failed = planned();
        failed[0].error = Some("the switch says no".to_owned());
        let state = |sandbox_id: Option<&str>, records| PodState {
            sandbox: sandbox_id.map(sandbox),
            records,
            ..PodState::default()
        };
        assert!(is_attaching(&state(None, planned())), "its sandbox may come any moment");
        assert!(is_attaching(&state(Some("s1"), planned())), "it is being attached");
        assert!(is_attaching(&state(Some("s2"), vec![attached("a", "s1")])), "it has a new sandbox");
        assert!(!is_attaching(&state(Some("s1"), vec![attached("a", "s1")])), "it is attached");
        assert!(!is_attaching(&state(Some("s1"), failed)), "its next try may be long from now");
        assert!(
            !is_attaching(&PodState { closing: true, ..state(None, planned()) }),
            "its claims are being released"
        );
        assert!(!is_attaching(&state(None, Vec::new())), "it has no networks");
    }
}
