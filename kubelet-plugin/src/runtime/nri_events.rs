//! What the runtime's events mean for attachments.
//!
//! Events are hints about what is wanted; see `netclaim_driver::attach` for what follows from them. Every handler
//! here ends within its budget: the runtime holds up every pod of the node meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::owner::PodState;
use netclaim_driver::attach::{Attach, Attacher, Gate};
use netclaim_driver::failpoint::Failpoint;
use netclaim_driver::nri::{Adjustment, Container, Handler, Hook, RuntimeInfo, Sandbox};
use tokio::task::AbortHandle;

use crate::gate::cdi::{HOOK_TIMEOUT, HookCommand, of_another_pod};
use crate::gate::keeper::GateKeeper;
use crate::process::metrics::Metrics;
use crate::runtime::sandboxes::{self, Listed, Sandboxes};

/// How long a sandbox is held up for its networks while no other one is on its way: the runtime asks its plugins under one
/// lock, so every pod of the node stands behind a handler that waits.
const HOLD: Duration = Duration::from_millis(50);
/// Many pods are attached sooner, and nobody needs to know how they would wait.
const LONG: Duration = Duration::from_millis(25);
/// How long a pod's own task may take to hear of its sandbox.
const HEARD: Duration = Duration::from_secs(1);
/// Pause before it is asked again what kind of pod one is.
const ASK_AGAIN: Duration = Duration::from_secs(3);
/// The agent as an NRI plugin.
pub struct RuntimeEvents<N, P> {
    attacher: Arc<Attacher<N, GateKeeper>>,
    pods: Arc<P>,
    gate: Arc<GateKeeper>,
    sandboxes: Arc<Sandboxes>,
    hook: HookCommand,
    boot_id: String,
    metrics: Arc<Metrics>,
    /// What looks again at sandboxes that could not be looked at, by their ids.
    looking: Mutex<HashMap<String, AbortHandle>>,
}

/// What the runtime does not tell of pods.
pub trait Pods: Send + Sync + 'static {
    /// Whether the pod is one whose containers are never started again; `None` where that cannot be said soon.
    fn is_never_restarted(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> impl Future<Output = Option<bool>> + Send;
}

/// Whether a pod has claims and is not attached yet: its sandbox may stand behind another one's.
fn is_on_its_way(state: &PodState) -> bool {
    let waits = state.sandbox.as_ref().is_none_or(|sandbox| state.gate(&sandbox.id) == Gate::Wait);
    waits && !state.closing && !state.records.is_empty()
}

impl<N: Attach, P: Pods> RuntimeEvents<N, P> {
    /// Tells `attacher` and `sandboxes` about sandboxes of this boot, and gates containers with `hook`.
    pub fn new(
        attacher: Arc<Attacher<N, GateKeeper>>,
        pods: P,
        gate: Arc<GateKeeper>,
        sandboxes: Arc<Sandboxes>,
        hook: HookCommand,
        boot_id: &str,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (pods, boot_id, looking) = (Arc::new(pods), boot_id.to_owned(), Mutex::default());
        Self { attacher, pods, gate, hook, boot_id, metrics, looking, sandboxes }
    }

    /// Lets the containers of a pod that takes `long` wait in a hook, unless it is one whose containers are never
    /// started again.
    fn let_wait(&self, sandbox: &Sandbox, long: Duration) {
        let (attacher, pods, gate) =
            (Arc::clone(&self.attacher), Arc::clone(&self.pods), Arc::clone(&self.gate));
        let Sandbox { id, namespace, name, uid, .. } = sandbox.clone();
        tokio::spawn(async move {
            let Some(mut state) = attacher.watch(&uid) else { return };
            let settled = |state: &PodState| state.gate(&id) != Gate::Wait;
            let is_its = |state: &PodState| state.sandbox.as_ref().is_some_and(|sandbox| sandbox.id == id);
            let heard = |state: &PodState| settled(state) || is_its(state);
            let _ = tokio::time::timeout(HEARD, state.wait_for(heard)).await;
            let _ = tokio::time::timeout(long, state.wait_for(settled)).await;
            let over = |state: &PodState| !is_its(state) || state.closing || state.gate(&id) == Gate::Open;
            while !over(&state.borrow()) {
                match pods.is_never_restarted(&namespace, &name, &uid).await {
                    Some(true) => return,
                    Some(false) => return gate.let_wait(&uid),
                    None => {
                        if let Ok(Err(_)) = tokio::time::timeout(ASK_AGAIN, state.wait_for(over)).await {
                            return;
                        }
                    }
                }
            }
        });
    }

    /// Measures how long the attachments of a sandbox take from now on.
    fn measure(&self, sandbox: &Sandbox) {
        let (metrics, id) = (Arc::clone(&self.metrics), sandbox.id.clone());
        let Some(mut state) = self.attacher.watch(&sandbox.uid) else { return };
        tokio::spawn(async move {
            let timer = metrics.attach_seconds();
            if state.wait_for(|state| state.gate(&id) != Gate::Wait).await.is_ok() {
                timer.observe();
            }
        });
    }

    fn look_at(&self, sandbox: &Sandbox) -> Listed {
        sandboxes::look_at(&sandbox.uid, &sandbox.id, &sandbox.network, &self.boot_id)
    }

    /// Looks at a sandbox again until it is clear what it is, or it ends.
    fn look_again(&self, sandbox: &Sandbox) {
        let (attacher, boot_id, sandbox) =
            (Arc::clone(&self.attacher), self.boot_id.clone(), sandbox.clone());
        let id = sandbox.id.clone();
        let looking = tokio::spawn(async move {
            let Sandbox { id, uid, network, .. } = &sandbox;
            // A sandbox that came later is the pod's.
            let is_or_none = |state: &PodState| state.sandbox.as_ref().is_none_or(|known| known.id == *id);
            let wanted = || attacher.watch(uid).is_some_and(|state| is_or_none(&state.borrow()));
            match sandboxes::look_again(|| sandboxes::look_at(uid, id, network, &boot_id), wanted).await {
                Some(Listed::Live(live)) => attacher.sandbox_up(live),
                Some(Listed::Unfit(reason)) => attacher.sandbox_unfit(uid, reason),
                Some(Listed::Gone | Listed::Unclear(_)) | None => {}
            }
        });
        let mut all = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, looking| !looking.is_finished());
        if let Some(earlier) = all.insert(id, looking.abort_handle()) {
            earlier.abort();
        }
    }

    /// UIDs of the claims that a container names.
    fn claims_of<'a>(&'a self, container: &'a Container) -> impl Iterator<Item = &'a str> {
        container.cdi_devices.iter().filter_map(|device| self.gate.specs().claim_of(device))
    }

    /// Why a container may not have what it names. Where the runtime does not tell the container's CDI devices, the
    /// hook says it.
    fn claim_of_another_pod(&self, sandbox: &Sandbox, container: &Container) -> Option<String> {
        let mut plans = self.claims_of(container).flat_map(|uid| self.attacher.plans_of(uid));
        let plan = plans.find(|plan| plan.owner.pod.uid != sandbox.uid)?;
        Some(of_another_pod(&plan))
    }

    /// Waits until nothing is owed to the sandbox any more, at most for `budget`.
    async fn detached(&self, sandbox: &Sandbox, budget: Duration) {
        self.sandboxes.gone(sandbox);
        let Some(mut state) = self.attacher.watch(&sandbox.uid) else {
            return;
        };
        Failpoint::SandboxStopped.reach();
        let looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner).remove(&sandbox.id);
        if let Some(looking) = looking {
            looking.abort();
        }
        self.attacher.sandbox_gone(&sandbox.uid, &sandbox.id);
        let nothing_owed = |state: &PodState| {
            state.records.iter().all(|record| record.phase.sandbox().is_none_or(|s| s.id != sandbox.id))
        };
        if tokio::time::timeout(budget, state.wait_for(nothing_owed)).await.is_err() {
            tracing::info!(
                pod.uid = sandbox.uid,
                sandbox = sandbox.id,
                "detaching goes on after the sandbox's end"
            );
        }
    }
}

impl<N: Attach, P: Pods> Handler for RuntimeEvents<N, P> {
    fn configured(&self, runtime: &RuntimeInfo) {
        tracing::info!(name = runtime.name, version = runtime.version, timeout = ?runtime.request_timeout, "container runtime");
    }

    async fn synchronize(&self, sandboxes: Vec<Sandbox>) {
        self.sandboxes.replace(&sandboxes);
        let (mut live, mut unclear, mut unfit) = (Vec::new(), HashSet::new(), Vec::new());
        let mut waiting = Vec::new();
        for sandbox in sandboxes.iter().filter(|sandbox| self.attacher.watch(&sandbox.uid).is_some()) {
            match self.look_at(sandbox) {
                Listed::Live(found) => {
                    live.push(found);
                    waiting.push(sandbox);
                }
                Listed::Gone => {}
                Listed::Unfit(reason) => {
                    unclear.insert(sandbox.uid.clone());
                    unfit.push((&sandbox.uid, reason));
                }
                Listed::Unclear(error) => {
                    tracing::warn!(
                        pod.uid = sandbox.uid,
                        sandbox = sandbox.id,
                        error,
                        "cannot look at a sandbox"
                    );
                    unclear.insert(sandbox.uid.clone());
                    self.look_again(sandbox);
                }
            }
        }
        // Before the live ones: an unfit sandbox may be one that the pod has left behind.
        for (pod_uid, reason) in unfit {
            self.attacher.sandbox_unfit(pod_uid, reason);
        }
        self.attacher.synchronize(live, &unclear);
        // The runtime may have refused their containers already, and the kubelet asks once more within a second.
        for sandbox in waiting {
            self.let_wait(sandbox, Duration::ZERO);
        }
    }

    async fn run_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) -> Result<(), String> {
        // Before the look: who gets a claim in between finds the sandbox.
        self.sandboxes.up(&sandbox);
        let Some(mut state) = self.attacher.watch(&sandbox.uid) else {
            return Ok(());
        };
        Failpoint::SandboxSeen.reach();
        let alone = !self.attacher.any_pod(|uid, state| uid != sandbox.uid && is_on_its_way(state));
        self.measure(&sandbox);
        match self.look_at(&sandbox) {
            Listed::Live(live) => self.attacher.sandbox_up(live),
            Listed::Gone => {
                self.attacher.sandbox_unfit(&sandbox.uid, "the runtime named no network namespace".to_owned())
            }
            Listed::Unfit(reason) => self.attacher.sandbox_unfit(&sandbox.uid, reason),
            Listed::Unclear(reason) => {
                self.attacher.sandbox_unfit(&sandbox.uid, reason);
                self.look_again(&sandbox);
            }
        }
        // The gate is with the containers: whatever comes of this wait, the sandbox is let through.
        self.let_wait(&sandbox, if alone { LONG } else { Duration::ZERO });
        let settled = |state: &PodState| state.gate(&sandbox.id) != Gate::Wait;
        if !alone || tokio::time::timeout(HOLD.min(budget), state.wait_for(settled)).await.is_err() {
            tracing::debug!(pod.uid = sandbox.uid, sandbox = sandbox.id, "attaching goes on behind the gate");
        }
        Ok(())
    }

    async fn create_container(
        &self,
        sandbox: Sandbox,
        container: Container,
        _budget: Duration,
    ) -> Result<Adjustment, String> {
        if let Some(refusal) = self.claim_of_another_pod(&sandbox, &container) {
            return Err(refusal);
        }
        let state = self.attacher.watch(&sandbox.uid).map(|state| state.borrow().clone());
        if state.is_some() {
            Failpoint::ContainerSeen.reach();
        }
        if let Some(state) = &state
            && state.sandbox.as_ref().is_none_or(|known| known.id != sandbox.id)
            && let Listed::Live(live) = self.look_at(&sandbox)
        {
            // Its own event never came, or could not be followed then.
            self.attacher.sandbox_up(live);
            self.let_wait(&sandbox, LONG);
        }
        match state.map(|state| state.gate(&sandbox.id)) {
            None | Some(Gate::Open) => Ok(Adjustment::default()),
            Some(Gate::Failed(error)) => Err(error),
            Some(Gate::Wait) if !self.gate.is_patient(&sandbox.uid) => Err(
                "the pod's networks are still being attached: its containers are created when they are there"
                    .to_owned(),
            ),
            // Containers that name the claim have the hook by CDI, which works without us too.
            Some(Gate::Wait) if self.claims_of(&container).next().is_some() => Ok(Adjustment::default()),
            Some(Gate::Wait) => {
                let path = self.hook.path.to_string_lossy().into_owned();
                let hook = Hook { path, args: self.hook.args(), env: Vec::new(), timeout: HOOK_TIMEOUT };
                Ok(Adjustment { create_runtime: vec![hook] })
            }
        }
    }

    async fn stop_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) {
        self.detached(&sandbox, budget).await;
    }

    async fn remove_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) {
        self.detached(&sandbox, budget).await;
    }
}

#[cfg(test)]
mod tests {
    use netclaim_driver::attach::record::Phase;

    use super::*;
    use crate::fixtures::{attached, record, sandbox};

    #[test]
    fn a_sandbox_is_held_up_only_while_no_other_pod_waits_for_its_networks() {
        let planned = || vec![record("a", Phase::Planned)];
        let mut failed = planned();
        failed[0].error = Some("the switch says no".to_owned());
        let state = |sandbox_id: Option<&str>, records| PodState {
            sandbox: sandbox_id.map(sandbox),
            records,
            ..PodState::default()
        };
        assert!(is_on_its_way(&state(None, planned())), "its sandbox may come any moment");
        assert!(is_on_its_way(&state(Some("s1"), planned())), "it is being attached");
        assert!(is_on_its_way(&state(Some("s2"), vec![attached("a", "s1")])), "it has a new sandbox");
        assert!(!is_on_its_way(&state(Some("s1"), vec![attached("a", "s1")])), "it is attached");
        assert!(!is_on_its_way(&state(Some("s1"), failed)), "its next try may be long from now");
        assert!(!is_on_its_way(&PodState { closing: true, ..state(None, planned()) }), "it is going");
        assert!(!is_on_its_way(&state(None, Vec::new())), "it has no networks");
    }
}
