//! The face of NRI: what a handler is told and may answer, and the connection that is kept up for it.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::events::Events;
use super::sandbox::{Container, Sandbox};
use super::session::{self, SessionEnd};

/// Where runtimes listen for plugins unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/var/run/nri/nri.sock";

/// First pause before connecting again. Up to as much again is added at random, so that the agents of a rack that
/// lost power do not move in step.
const MIN_DELAY: Duration = Duration::from_millis(50);

/// Longest pause before connecting again, likewise doubled at most: 5 s.
const MAX_DELAY: Duration = Duration::from_millis(2500);

/// One outside world: what the agent does with the runtime's events.
///
/// `budget` is how long a handler may keep the runtime waiting: 60 % of what the runtime grants the call. The runtime
/// holds up every other pod on the node meanwhile. Past the budget the call is soon answered without the handler,
/// which goes on nevertheless; so events may overlap, even those of one sandbox.
///
/// Sandboxes that no kubelet made (they have no pod UID) are not told.
pub trait Handler: Send + Sync + 'static {
    /// A connection is up, and this is the runtime at its other end. No events before [`Self::synchronize`].
    fn configured(&self, runtime: &RuntimeInfo);

    /// Everything that the runtime knows at the start of a connection. Stopped sandboxes are among it until they are
    /// removed; those have mostly [`SandboxNetwork::Unknown`](super::SandboxNetwork::Unknown).
    fn synchronize(
        &self,
        sandboxes: Vec<Sandbox>,
        containers: Vec<Container>,
    ) -> impl Future<Output = ()> + Send;

    /// A sandbox was made; its containers are created after the answer.
    ///
    /// # Errors
    /// The text fails the sandbox, reaches the user, and the kubelet makes another one. Many releases of containerd
    /// then refuse to start the next time (containerd issue 13609): prefer to refuse the containers.
    fn run_pod_sandbox(
        &self,
        sandbox: Sandbox,
        budget: Duration,
    ) -> impl Future<Output = Result<(), String>> + Send;

    /// A container is about to be created. The kubelet tries again, after less than 1 s and then every 10 to 15 s,
    /// in the same sandbox.
    ///
    /// # Errors
    /// The text refuses the container and reaches the user as the message of a `CreateContainerError`.
    fn create_container(
        &self,
        sandbox: Sandbox,
        container: Container,
        budget: Duration,
    ) -> impl Future<Output = Result<Adjustment, String>> + Send;

    /// A container has ended, or could not be created.
    fn stop_container(
        &self,
        sandbox: Sandbox,
        container: Container,
        budget: Duration,
    ) -> impl Future<Output = ()> + Send;

    /// A container was removed.
    fn remove_container(
        &self,
        sandbox: Sandbox,
        container: Container,
        budget: Duration,
    ) -> impl Future<Output = ()> + Send;

    /// A sandbox ends. containerd waits with the removal of its network for the answer; CRI-O has removed it.
    fn stop_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) -> impl Future<Output = ()> + Send;

    /// A sandbox was removed, seconds to minutes after it stopped.
    fn remove_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) -> impl Future<Output = ()> + Send;
}

/// The runtime at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// `containerd`, `cri-o`.
    pub name: String,
    /// Its version, in the runtime's own spelling.
    pub version: String,
    /// How long it waits for the answer to an event; as configured, or NRI's default where it does not say.
    pub request_timeout: Duration,
}

/// What is changed in a container before it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjustment {
    /// OCI `createRuntime` hooks to add: run on the node, in the runtime's namespaces, before the container's process.
    pub create_runtime: Vec<Hook>,
}

/// An OCI hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Absolute path of the executable on the node.
    pub path: String,
    /// Its arguments, the first of which is its own name.
    pub args: Vec<String>,
    /// Its whole environment, `NAME=value` each.
    pub env: Vec<String>,
    /// How long it may run before it is killed and the container fails; rounded up to seconds, at least 1.
    pub timeout: Duration,
}

/// Where and as what the plugin connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    pub(super) socket: PathBuf,
    pub(super) name: String,
    pub(super) index: String,
}

/// Why a plugin cannot be called that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPluginConfig {
    /// The name has characters that NRI does not allow, or none at all.
    #[error("the NRI plugin name {0:?} is not made of letters, digits and `-_.+`; choose another one")]
    Name(String),
    /// The index has more than two digits.
    #[error("the NRI plugin index {0} is above 99; choose a lower one")]
    Index(u8),
}

impl PluginConfig {
    /// A plugin called `name` that connects to `socket`. Runtimes call plugins in the order of `index`, 0 to 99, and
    /// when one answers with an error leave out those after it: be early.
    ///
    /// # Errors
    /// When the name or the index is not one that runtimes accept.
    pub fn new(socket: impl Into<PathBuf>, name: &str, index: u8) -> Result<Self, InvalidPluginConfig> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
        if name.is_empty() || !name.bytes().all(valid) {
            return Err(InvalidPluginConfig::Name(name.to_owned()));
        }
        if index > 99 {
            return Err(InvalidPluginConfig::Index(index));
        }
        Ok(Self { socket: socket.into(), name: name.to_owned(), index: format!("{index:02}") })
    }
}

/// Keeps the plugin connected and tells `handler` what happens, until `cancel`.
///
/// `connected` is true while the runtime tells us everything: from the end of the synchronisation until the
/// connection ends. The connection is made anew for ever, after pauses of 50 ms to 5 s. Handlers that still run
/// when this returns go on.
pub async fn run<H: Handler>(
    config: PluginConfig,
    handler: Arc<H>,
    connected: watch::Sender<bool>,
    cancel: CancellationToken,
) {
    let mut delays = delays();
    let mut reported = false;
    loop {
        let events = Arc::new(Events::new(Arc::clone(&handler)));
        let ended = cancel.run_until_cancelled(session::attend(&config, &events, &connected)).await;
        let was_connected = connected.send_replace(false);
        let Some(error) = ended else { return };
        report(&config, &error, was_connected, reported);
        reported = true;
        if was_connected {
            delays = self::delays();
        }
        let pause = tokio::time::sleep(delays.next().unwrap_or(MAX_DELAY));
        if cancel.run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
}

/// Logs once per change of state: a runtime may be away for hours.
fn report(config: &PluginConfig, error: &SessionEnd, was_connected: bool, reported: bool) {
    let (socket, error) = (config.socket.display(), error as &dyn std::error::Error);
    if was_connected {
        tracing::warn!(%socket, error, "lost the container runtime, connecting to it again");
    } else if !reported {
        tracing::warn!(%socket, error, "cannot connect to the container runtime, trying again");
    } else {
        tracing::debug!(%socket, error, "still no connection to the container runtime");
    }
}

fn delays() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(MIN_DELAY)
        .with_max_delay(MAX_DELAY)
        .without_max_times()
        .with_jitter()
        .build()
}
