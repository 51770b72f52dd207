//! What a handler of NRI events receives and may answer.

use std::future::Future;
use std::time::Duration;

use crate::sandbox::{Container, Sandbox};

/// Why a sandbox or a container is refused, for the runtime and the pod's event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denial(pub String);

/// Handles the runtime's events.
///
/// `budget` is how long a handler may keep the runtime waiting: 60 % of what the runtime grants the call. The
/// runtime holds up every other pod on the node meanwhile. Soon after the budget the call is answered without
/// the handler, which goes on. So events may overlap, even those of one sandbox.
///
/// Sandboxes without a pod UID are skipped: no kubelet made them.
pub trait Handler: Send + Sync + 'static {
    /// A connection to this runtime is up. No events before [`Self::synchronize`].
    fn configured(&self, runtime: &RuntimeInfo);

    /// All sandboxes that the runtime knows at the start of a connection. Stopped ones are listed until they
    /// are removed, mostly with [`SandboxNetwork::Unknown`](super::SandboxNetwork::Unknown).
    fn synchronize(&self, sandboxes: Vec<Sandbox>) -> impl Future<Output = ()> + Send;

    /// A sandbox was made. The runtime creates its containers after the answer.
    ///
    /// # Errors
    /// The text reaches the user, the sandbox fails, and the kubelet makes another one. Many releases of
    /// containerd then refuse to start the next time (containerd issue 13609): prefer to refuse the
    /// containers.
    fn run_pod_sandbox(
        &self,
        sandbox: Sandbox,
        budget: Duration,
    ) -> impl Future<Output = Result<(), Denial>> + Send;

    /// A container is about to be created. If it is refused, the kubelet retries in the same sandbox, after
    /// less than 1 s and then every 10 to 15 s.
    ///
    /// # Errors
    /// The text reaches the user as the message of a `CreateContainerError`.
    fn create_container(
        &self,
        sandbox: Sandbox,
        container: Container,
        budget: Duration,
    ) -> impl Future<Output = Result<Adjustment, Denial>> + Send;

    /// A sandbox stops. containerd removes its network after the answer; CRI-O has already removed it.
    fn stop_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) -> impl Future<Output = ()> + Send;

    /// A sandbox was removed, seconds to minutes after it stopped.
    fn remove_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) -> impl Future<Output = ()> + Send;
}

/// The runtime at the other end of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// `containerd`, `cri-o`.
    pub name: String,
    /// Its version, in the runtime's own spelling.
    pub version: String,
    /// How long it waits for the answer to an event: as configured, or NRI's default if it does not say.
    pub request_timeout: Duration,
}

/// Changes to a container before it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjustment {
    /// OCI `createRuntime` hooks to add: run on the node, in the runtime's namespaces, before the container's
    /// process.
    pub create_runtime: Vec<Hook>,
}

/// An OCI hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Absolute path of the executable on the node.
    pub path: String,
    /// Its arguments, starting with its own name.
    pub args: Vec<String>,
    /// Its whole environment, `NAME=value` each.
    pub env: Vec<String>,
    /// How long it may run before it is killed and the container fails; rounded up to seconds, at least 1.
    pub timeout: Duration,
}
