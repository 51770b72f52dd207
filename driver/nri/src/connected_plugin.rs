//! The runtime's end of a connection: passes events on to a plugin in another process.
//!
//! ```text
//!   runtime ── NRI ──> Handler of this process ── NRI, this module ──> plugin of another process
//! ```
//!
//! The plugin gets what this process has parsed and nothing else: pods' labels, mounts and environments stay
//! behind.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{mpsc, oneshot, watch};

use crate::events::PLUGIN_SERVICE;
use crate::handler::{Adjustment, Denial, RuntimeInfo};
use crate::mux::{self, Connection};
use crate::proto;
use crate::received::Received;
use crate::sandbox::{Container, Sandbox};
use crate::session::{OUTBOX, RUNTIME_SERVICE, write};
use crate::session_end::SessionEnd;
use crate::ttrpc::{self, CallError, Code, Service, Status};

/// How long to wait for an answer, in percent of the time that the plugin is granted: a plugin answers after
/// 70 % at the latest.
const WAIT: u32 = 75;

/// Sandboxes in one message of a synchronization: far from the 4 MiB that a message may have.
const LISTED_AT_ONCE: usize = 1000;

/// An event of a sandbox, as a handler gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A sandbox was made.
    Run(Sandbox),
    /// A sandbox stops.
    Stop(Sandbox),
    /// A sandbox was removed.
    Remove(Sandbox),
}

impl Event {
    fn method(&self) -> &'static str {
        match self {
            Self::Run(_) => "RunPodSandbox",
            Self::Stop(_) => "StopPodSandbox",
            Self::Remove(_) => "RemovePodSandbox",
        }
    }

    /// The sandbox that the event is about.
    #[must_use]
    pub fn sandbox(&self) -> &Sandbox {
        match self {
            Self::Run(sandbox) | Self::Stop(sandbox) | Self::Remove(sandbox) => sandbox,
        }
    }
}

/// Why a plugin has not handled an event.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The plugin refuses the sandbox or the container.
    #[error(transparent)]
    Denied(Denial),
    /// The plugin has ended, or has closed its connection.
    #[error("the plugin has closed the connection")]
    Closed,
    /// The plugin did not answer in time.
    #[error("the plugin did not answer within {0:?}")]
    Late(Duration),
    /// The plugin does not speak NRI.
    #[error("the plugin breaks the NRI protocol: {0}")]
    Protocol(String),
}

impl From<CallError> for RelayError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(status) => Self::Denied(Denial(status.into_message())),
            CallError::Malformed(error) => Self::Protocol(error.to_string()),
        }
    }
}

/// A plugin in another process.
#[derive(Clone, Debug)]
pub struct ConnectedPlugin {
    outbox: mpsc::Sender<Vec<u8>>,
    calls: Arc<Mutex<Calls>>,
    registered: watch::Receiver<bool>,
}

/// Calls that wait for their answers.
#[derive(Debug, Default)]
struct Calls {
    /// How many calls were made.
    made: u32,
    waiting: HashMap<u32, oneshot::Sender<ttrpc::Message>>,
}

impl ConnectedPlugin {
    /// Serves a plugin that has connected. Returns the plugin, and a future that runs the connection until it
    /// ends and returns why. Dropping the future ends the connection.
    pub fn serve(stream: UnixStream) -> (Self, impl Future<Output = String> + Send) {
        let (outbox, outgoing) = mpsc::channel(OUTBOX);
        let (registration, registered) = watch::channel(false);
        let plugin = Self { outbox: outbox.clone(), calls: Arc::default(), registered };
        let (reader, writer) = stream.into_split();
        let calls = Arc::clone(&plugin.calls);
        let connection = async move {
            let end = tokio::select! {
                Err(end) = read(reader, &calls, registration, &outbox) => end,
                Err(end) = write(writer, outgoing) => end,
            };
            // Those who wait get no answer any more.
            lock(&calls).waiting.clear();
            end.to_string()
        };
        (plugin, connection)
    }

    /// Waits until the plugin has registered; for ever if its connection ends before.
    pub async fn registered(&self) {
        if self.registered.clone().wait_for(|registered| *registered).await.is_err() {
            std::future::pending().await
        }
    }

    /// Tells the plugin about the runtime.
    ///
    /// # Errors
    /// See [`RelayError`].
    pub async fn configure(&self, runtime: &RuntimeInfo) -> Result<(), RelayError> {
        let request = proto::ConfigureRequest {
            runtime_name: runtime.name.clone(),
            runtime_version: runtime.version.clone(),
            request_timeout: runtime.request_timeout.as_millis().try_into().unwrap_or(i64::MAX),
        };
        self.call("Configure", &request, runtime.request_timeout).await.map(drop)
    }

    /// Lists all sandboxes to the plugin.
    ///
    /// # Errors
    /// See [`RelayError`].
    pub async fn synchronize(&self, sandboxes: &[Sandbox], granted: Duration) -> Result<(), RelayError> {
        let count = sandboxes.len().div_ceil(LISTED_AT_ONCE).max(1);
        for n in 0..count {
            let part = sandboxes.iter().skip(n * LISTED_AT_ONCE).take(LISTED_AT_ONCE);
            let request =
                proto::SynchronizeRequest { pods: part.map(Into::into).collect(), more: n + 1 < count };
            self.call("Synchronize", &request, granted).await?;
        }
        Ok(())
    }

    /// Passes an event on, and waits until the plugin has handled it, for 75 % of `granted` at most. The
    /// handler's budget is 60 % of `granted`.
    ///
    /// # Errors
    /// See [`RelayError`].
    pub async fn pass_on(&self, event: &Event, granted: Duration) -> Result<(), RelayError> {
        let request = proto::Lifecycle { pod: Some(event.sandbox().into()), container: None };
        self.call(event.method(), &request, granted).await.map(drop)
    }

    /// Asks the plugin about a container, as [`Self::pass_on`] does.
    ///
    /// # Errors
    /// See [`RelayError`].
    pub async fn create_container(
        &self,
        sandbox: &Sandbox,
        container: &Container,
        granted: Duration,
    ) -> Result<Adjustment, RelayError> {
        let request = proto::Lifecycle { pod: Some(sandbox.into()), container: Some(container.into()) };
        let answer = self.call("CreateContainer", &request, granted).await?;
        Adjustment::decode(answer).map_err(|error| RelayError::Protocol(error.to_string()))
    }

    async fn call(
        &self,
        method: &str,
        request: &impl prost::Message,
        granted: Duration,
    ) -> Result<Bytes, RelayError> {
        let (answer, answered) = oneshot::channel();
        let stream = {
            let mut calls = lock(&self.calls);
            // Streams of a caller have odd numbers.
            let stream = calls.made.wrapping_mul(2) | 1;
            calls.made = calls.made.wrapping_add(1);
            calls.waiting.insert(stream, answer);
            stream
        };
        let request = ttrpc::request(stream, PLUGIN_SERVICE, method, request.encode_to_vec(), granted)
            .map_err(|error| RelayError::Protocol(error.to_string()))?;
        let exchange = async {
            let sent = self.outbox.send(mux::frames(Connection::Plugin, &request)).await;
            sent.map_err(|_| RelayError::Closed)?;
            answered.await.map_err(|_| RelayError::Closed)
        };
        let wait = granted * WAIT / 100;
        let result = tokio::time::timeout(wait, exchange).await;
        lock(&self.calls).waiting.remove(&stream);
        Ok(ttrpc::outcome(result.map_err(|_| RelayError::Late(wait))??)?)
    }
}

fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the plugin's registration and its answers.
async fn read(
    trunk: OwnedReadHalf,
    calls: &Mutex<Calls>,
    registration: watch::Sender<bool>,
    outbox: &mpsc::Sender<Vec<u8>>,
) -> Result<Infallible, SessionEnd> {
    let mut received = Received::from(trunk);
    let registration = Registration(registration);
    loop {
        match received.next().await? {
            (Connection::Plugin, answer) => {
                let waiting = lock(calls).waiting.remove(&answer.stream());
                if let Some(waiting) = waiting.filter(|_| !answer.is_request()) {
                    // Fails for a caller that has just given up.
                    let _ = waiting.send(answer);
                }
            }
            (Connection::Runtime, request) => {
                let answer = ttrpc::answer(&registration, request).await;
                // Cannot fail: the receiving end lives as long as this future.
                let _ = outbox.send(mux::frames(Connection::Runtime, &answer)).await;
            }
        }
    }
}

/// The only calls of a plugin.
struct Registration(watch::Sender<bool>);

impl Service for Registration {
    const NAME: &'static str = RUNTIME_SERVICE;

    async fn call(&self, method: &str, _: Bytes, _: Option<Duration>) -> Result<Vec<u8>, Status> {
        if method != "RegisterPlugin" {
            return Err(Status::new(Code::Unimplemented, format!("method {method} is not served here")));
        }
        self.0.send_replace(true);
        Ok(Vec::new())
    }
}
