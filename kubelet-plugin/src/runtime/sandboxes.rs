//! Sandboxes: whether something can be attached to one, and if not, why.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netclaim_cni::error_chain;
use netclaim_driver::attach::LiveSandbox;
use netclaim_driver::attach::Sandbox;
use netclaim_driver::links::Netns;
use netclaim_nri::{Sandbox as PodSandbox, SandboxNetwork};

const HOST_NETWORK: &str = "the pod uses the node's network (hostNetwork: true), to which no network can be attached: \
                           remove hostNetwork or the claim";

/// From one inspection to the next of a sandbox that cannot be inspected.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long a pod counts that the runtime has asked for in vain: the kubelet has it ask again after 10 to
/// 20 s.
const ASKED_AGAIN: Duration = Duration::from_secs(60);

/// The result of an inspection.
#[derive(Debug)]
pub(crate) enum Inspection {
    /// The sandbox lives; its network namespace is held open.
    Live(LiveSandbox),
    /// The sandbox has ended.
    Gone,
    /// Nothing can be attached to the sandbox, for this reason.
    Unfit(String),
    /// The sandbox cannot be inspected, for this reason.
    Unclear(String),
}

/// The last sandbox of each pod that the runtime has reported, including pods that get a claim later.
#[derive(Debug, Default)]
pub(crate) struct Sandboxes(Mutex<Reported>);

#[derive(Debug, Default)]
struct Reported {
    /// By the UIDs of pods.
    of_pods: HashMap<String, ReportedSandbox>,
    /// When the runtime last asked for the primary network of a pod that has none here, by UID. It makes no
    /// sandbox without, and reports none.
    refused: HashMap<String, Instant>,
    /// Why the runtime reports no other sandbox.
    disconnected: Option<String>,
    /// Whether the runtime has listed its sandboxes.
    is_listed: bool,
}

#[derive(Debug, Clone)]
struct ReportedSandbox {
    id: String,
    network: SandboxNetwork,
    /// When its own event was handled.
    up: Option<Instant>,
}

impl ReportedSandbox {
    fn new(sandbox: &PodSandbox) -> Self {
        Self { id: sandbox.id.clone(), network: sandbox.network.clone(), up: None }
    }
}

impl Sandboxes {
    /// Replaces all sandboxes by those that the runtime lists.
    pub(crate) fn replace(&self, sandboxes: &[PodSandbox]) {
        let of_pods =
            sandboxes.iter().map(|sandbox| (sandbox.uid.clone(), ReportedSandbox::new(sandbox))).collect();
        let mut reported = self.lock();
        *reported = Reported {
            of_pods,
            refused: std::mem::take(&mut reported.refused),
            disconnected: None,
            is_listed: true,
        };
    }

    /// Adds a sandbox that the runtime has created.
    pub(crate) fn up(&self, sandbox: &PodSandbox) {
        let known = ReportedSandbox { up: Some(Instant::now()), ..ReportedSandbox::new(sandbox) };
        self.lock().of_pods.insert(sandbox.uid.clone(), known);
    }

    /// Returns the ids of the sandboxes whose own event was handled at most `ago`, and after the last list.
    pub(crate) fn up_within(&self, ago: Duration) -> HashSet<String> {
        let reported = self.lock();
        let recent = |known: &&ReportedSandbox| known.up.is_some_and(|up| up.elapsed() <= ago);
        reported.of_pods.values().filter(recent).map(|known| known.id.clone()).collect()
    }

    /// Removes a sandbox that the runtime stops or removes.
    pub(crate) fn gone(&self, sandbox: &PodSandbox) {
        self.lock().of_pods.retain(|_, known| known.id != sandbox.id);
    }

    /// Notes why the runtime reports no sandbox, until it lists them again.
    pub(crate) fn disconnected(&self, reason: &str) {
        self.lock().disconnected = Some(reason.to_owned());
    }

    /// Notes that the runtime would make a sandbox of the pod if that had a primary network.
    pub(crate) fn refused(&self, pod_uid: &str) {
        let mut reported = self.lock();
        reported.refused.retain(|_, last| last.elapsed() < ASKED_AGAIN);
        reported.refused.insert(pod_uid.to_owned(), Instant::now());
    }

    /// Whether the pod has a sandbox, or would have one if it had its primary network.
    pub(crate) fn has(&self, pod_uid: &str) -> bool {
        let reported = self.lock();
        let is_refused = |last: &Instant| last.elapsed() < ASKED_AGAIN;
        reported.of_pods.contains_key(pod_uid) || reported.refused.get(pod_uid).is_some_and(is_refused)
    }

    /// Returns the ids of all sandboxes that live; `None` while the runtime does not say which do.
    pub(crate) fn ids(&self) -> Option<HashSet<String>> {
        let reported = self.lock();
        let is_known = reported.is_listed && reported.disconnected.is_none();
        is_known.then(|| reported.of_pods.values().map(|known| known.id.clone()).collect())
    }

    /// Inspects the pod's sandbox; `None` when it has none.
    pub(crate) fn inspect(&self, pod_uid: &str, boot_id: &str) -> Option<Inspection> {
        let (known, disconnected) = {
            let reported = self.lock();
            (reported.of_pods.get(pod_uid).cloned(), reported.disconnected.clone())
        };
        match known {
            Some(ReportedSandbox { id, network, .. }) => Some(inspect(pod_uid, &id, &network, boot_id)),
            None => disconnected.map(Inspection::Unfit),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Inspects the sandbox `id` of a pod, in the boot `boot_id`.
pub(crate) fn inspect(pod_uid: &str, id: &str, network: &SandboxNetwork, boot_id: &str) -> Inspection {
    let path: &Path = match network {
        SandboxNetwork::Namespace(path) => path,
        SandboxNetwork::Host => return Inspection::Unfit(HOST_NETWORK.to_owned()),
        SandboxNetwork::Unknown => return Inspection::Gone,
    };
    let netns = match Netns::open(path) {
        Ok(netns) => netns,
        Err(error) if error.is_gone() => return Inspection::Gone,
        Err(error) => return Inspection::Unclear(error_chain(&error)),
    };
    match netns.is_own() {
        Ok(false) => {}
        // CRI-O names the node's own namespace for pods with hostNetwork.
        Ok(true) => return Inspection::Unfit(HOST_NETWORK.to_owned()),
        Err(error) => return Inspection::Unclear(error_chain(&error)),
    }
    let sandbox = Sandbox {
        id: id.to_owned(),
        netns: path.to_owned(),
        netns_id: netns.id(),
        boot_id: boot_id.to_owned(),
    };
    Inspection::Live(LiveSandbox { pod_uid: pod_uid.to_owned(), sandbox, netns })
}

/// Retries `inspect` until it succeeds or the sandbox is no longer `wanted`. The node may have been out of
/// descriptors or threads, and the runtime reports a sandbox only once.
pub(crate) async fn retry(inspect: impl Fn() -> Inspection, wanted: impl Fn() -> bool) -> Option<Inspection> {
    loop {
        tokio::time::sleep(RETRY_INTERVAL).await;
        if !wanted() {
            return None;
        }
        match inspect() {
            Inspection::Unclear(error) => tracing::debug!(error, "cannot inspect a sandbox"),
            clear => return Some(clear),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_pod_without_a_sandbox_gets_the_reason_while_the_runtime_is_disconnected() {
        let sandboxes = Sandboxes::default();
        assert!(sandboxes.inspect("p", "b").is_none(), "its sandbox may come any moment");
        sandboxes.disconnected("NRI is off");
        let found = sandboxes.inspect("p", "b");
        assert!(matches!(&found, Some(Inspection::Unfit(reason)) if reason == "NRI is off"), "{found:?}");
        sandboxes.replace(&[]);
        assert!(sandboxes.inspect("p", "b").is_none(), "the runtime is connected again");
    }

    #[test]
    fn a_pod_whose_primary_network_another_one_has_counts_as_there() {
        let sandboxes = Sandboxes::default();
        assert!(!sandboxes.has("p"));
        sandboxes.refused("p");
        sandboxes.replace(&[]);
        assert!(sandboxes.has("p") && sandboxes.inspect("p", "b").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_inspection_that_fails_is_retried() {
        let tries = Cell::new(0);
        let inspect = || {
            tries.set(tries.get() + 1);
            match tries.get() {
                1 | 2 => Inspection::Unclear("Too many open files".to_owned()),
                _ => Inspection::Unfit(HOST_NETWORK.to_owned()),
            }
        };
        assert!(matches!(retry(inspect, || true).await, Some(Inspection::Unfit(_))));
        assert_eq!(tries.get(), 3);
        let unclear = || Inspection::Unclear(String::new());
        assert!(retry(unclear, || false).await.is_none(), "the sandbox is no longer wanted");
    }
}
