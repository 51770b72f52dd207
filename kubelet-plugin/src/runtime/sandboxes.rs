//! What a sandbox is that somebody tells of: one that can be attached to, or why not.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netclaim_cni::error_chain;
use netclaim_driver::attach::LiveSandbox;
use netclaim_driver::attach::record::Sandbox;
use netclaim_driver::links::Netns;
use netclaim_driver::nri::{Sandbox as Told, SandboxNetwork};

const ON_THE_NODE: &str = "the pod uses the node's network (hostNetwork: true), to which no network can be attached: \
                           remove hostNetwork or the claim";

/// Pause before a sandbox that could not be looked at is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What was found.
#[derive(Debug)]
pub enum Listed {
    /// It lives, and its network namespace is held open.
    Live(LiveSandbox),
    /// It has ended.
    Gone,
    /// Nothing can be attached to it, for this reason.
    Unfit(String),
    /// It could not be looked at, for this reason.
    Unclear(String),
}

/// The sandboxes that the runtime has told of, the last of each pod: also of pods that get a claim later.
#[derive(Debug, Default)]
pub struct Sandboxes(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    /// Ids and networks, by the UIDs of pods.
    of_pods: HashMap<String, (String, SandboxNetwork)>,
    /// Why nothing is heard of other pods.
    disconnected: Option<String>,
}

impl Sandboxes {
    /// The runtime lists these.
    pub fn replace(&self, sandboxes: &[Told]) {
        *self.lock() = Heard { of_pods: sandboxes.iter().map(entry).collect(), disconnected: None };
    }

    /// The runtime has made one.
    pub fn up(&self, sandbox: &Told) {
        self.lock().of_pods.extend([entry(sandbox)]);
    }

    /// The runtime stops or removes one.
    pub fn gone(&self, sandbox: &Told) {
        self.lock().of_pods.retain(|_, (id, _)| *id != sandbox.id);
    }

    /// The runtime lists none until it is connected again, for this reason.
    pub fn disconnected(&self, reason: &str) {
        self.lock().disconnected = Some(reason.to_owned());
    }

    /// Whether the pod has one.
    pub fn has(&self, pod_uid: &str) -> bool {
        self.lock().of_pods.contains_key(pod_uid)
    }

    /// Looks at the pod's sandbox; `None` where it has none.
    pub fn look_at(&self, pod_uid: &str, boot_id: &str) -> Option<Listed> {
        let (known, disconnected) = {
            let heard = self.lock();
            (heard.of_pods.get(pod_uid).cloned(), heard.disconnected.clone())
        };
        match known {
            Some((id, network)) => Some(look_at(pod_uid, &id, &network, boot_id)),
            None => disconnected.map(Listed::Unfit),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry(sandbox: &Told) -> (String, (String, SandboxNetwork)) {
    (sandbox.uid.clone(), (sandbox.id.clone(), sandbox.network.clone()))
}

/// Looks at the sandbox `id` of a pod, in the boot `boot_id`.
pub fn look_at(pod_uid: &str, id: &str, network: &SandboxNetwork, boot_id: &str) -> Listed {
    let path: &Path = match network {
        SandboxNetwork::Namespace(path) => path,
        SandboxNetwork::Host => return Listed::Unfit(ON_THE_NODE.to_owned()),
        SandboxNetwork::Unknown => return Listed::Gone,
    };
    let netns = match Netns::open(path) {
        Ok(netns) => netns,
        Err(error) if error.is_gone() => return Listed::Gone,
        Err(error) => return Listed::Unclear(error_chain(&error)),
    };
    match netns.is_own() {
        Ok(false) => {}
        // CRI-O names the node's own namespace for such pods.
        Ok(true) => return Listed::Unfit(ON_THE_NODE.to_owned()),
        Err(error) => return Listed::Unclear(error_chain(&error)),
    }
    let sandbox = Sandbox {
        id: id.to_owned(),
        netns: path.to_owned(),
        netns_id: netns.id(),
        boot_id: boot_id.to_owned(),
    };
    Listed::Live(LiveSandbox { pod_uid: pod_uid.to_owned(), sandbox, netns })
}

/// Looks at a sandbox that could not be looked at until it can be, or is no longer `wanted`: what failed may have been for
/// want of a descriptor or a thread, and nobody would tell of the sandbox once more.
pub async fn look_again(look: impl Fn() -> Listed, wanted: impl Fn() -> bool) -> Option<Listed> {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        if !wanted() {
            return None;
        }
        match look() {
            Listed::Unclear(error) => tracing::debug!(error, "cannot look at a sandbox"),
            clear => return Some(clear),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_pod_without_a_sandbox_reads_that_the_runtime_is_not_connected() {
        let sandboxes = Sandboxes::default();
        assert!(sandboxes.look_at("p", "b").is_none(), "its sandbox may come any moment");
        sandboxes.disconnected("NRI is off");
        let looked = sandboxes.look_at("p", "b");
        assert!(matches!(&looked, Some(Listed::Unfit(reason)) if reason == "NRI is off"), "{looked:?}");
        sandboxes.replace(&[]);
        assert!(sandboxes.look_at("p", "b").is_none(), "the runtime is connected again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_that_cannot_be_looked_at_is_looked_at_again() {
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            match looks.get() {
                1 | 2 => Listed::Unclear("Too many open files".to_owned()),
                _ => Listed::Unfit(ON_THE_NODE.to_owned()),
            }
        };
        assert!(matches!(look_again(look, || true).await, Some(Listed::Unfit(_))));
        assert_eq!(looks.get(), 3);
        let unclear = || Listed::Unclear(String::new());
        assert!(look_again(unclear, || false).await.is_none(), "nobody wants to know any more");
    }
}
