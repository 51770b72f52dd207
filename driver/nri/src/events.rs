//! Serves the runtime's calls: decodes each, passes it to the handler, and answers in time.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use prost::Message as _;
use prost::bytes::Bytes;
use tokio::sync::{Mutex, Notify};

use crate::handler::{Adjustment, Handler, Hook, RuntimeInfo};
use crate::proto::{self, Event};
use crate::sandbox::{Container, InvalidObject, Moment, Sandbox};
use crate::ttrpc::{Code, Service, Status};

/// The handler's budget, in percent of the time that the runtime grants a call.
const BUDGET: u32 = 60;

/// When a call is answered without the handler, in percent of the time that the runtime grants. Later than
/// the budget, so that a handler that used all of it still decides; early enough for a busy node to send the
/// answer.
const ANSWER: u32 = 70;

/// What runtimes grant by default; those before NRI 0.8 do not say.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Full name of the plugin's service.
pub(crate) const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// Longest text of an error, in bytes: far below the 1 MiB at which the runtime's end of the connection may
/// overflow.
const MAX_TEXT: usize = 16 << 10;

/// The runtime calls the plugin for each of these, for every pod of the node: no more than the handler needs.
const SUBSCRIBED: [Event; 4] =
    [Event::RunPodSandbox, Event::StopPodSandbox, Event::RemovePodSandbox, Event::CreateContainer];

/// Serves the runtime's calls on one connection.
#[derive(Debug)]
pub(crate) struct Events<H> {
    handler: Arc<H>,
    request_timeout: OnceLock<Duration>,
    /// Sandboxes that the messages of a split synchronization have listed so far.
    listed: Mutex<Vec<Sandbox>>,
    synchronized: Notify,
}

/// Why a call is answered without its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unanswered {
    Late,
    Panicked,
}

impl<H: Handler> Events<H> {
    pub(crate) fn new(handler: Arc<H>) -> Self {
        Self {
            handler,
            request_timeout: OnceLock::new(),
            listed: Mutex::default(),
            synchronized: Notify::new(),
        }
    }

    /// Waits until the handler knows the sandboxes that existed at the start of the connection.
    pub(crate) async fn synchronized(&self) {
        self.synchronized.notified().await;
    }

    async fn configure(&self, request: proto::ConfigureRequest, deadline: Deadline) -> Vec<u8> {
        let request_timeout = match request.request_timeout.try_into() {
            Ok(0) | Err(_) => DEFAULT_REQUEST_TIMEOUT,
            Ok(millis) => Duration::from_millis(millis),
        };
        let _ = self.request_timeout.set(request_timeout);
        let runtime =
            RuntimeInfo { name: request.runtime_name, version: request.runtime_version, request_timeout };
        tracing::info!(
            runtime = runtime.name,
            version = runtime.version,
            ?request_timeout,
            "connected to the container runtime"
        );
        let handler = Arc::clone(&self.handler);
        let _ = in_time(&"Configure", deadline, async move { handler.configured(&runtime) }).await;
        let events = SUBSCRIBED.iter().fold(0, |mask, event| mask | 1 << (*event as i32 - 1));
        proto::ConfigureResponse { events }.encode_to_vec()
    }

    async fn synchronize(&self, request: proto::SynchronizeRequest, deadline: Deadline) -> Vec<u8> {
        let mut listed = self.listed.lock().await;
        for pod in request.pods {
            match Sandbox::parse(Some(pod), Moment::Later) {
                Ok(sandbox) => listed.extend(sandbox),
                Err(error) => skip(&"Synchronize", &error),
            }
        }
        if !request.more {
            let sandboxes = std::mem::take(&mut *listed);
            let handler = Arc::clone(&self.handler);
            let work = async move { handler.synchronize(sandboxes).await };
            let _ = in_time(&"Synchronize", deadline, work).await;
            self.synchronized.notify_one();
        }
        proto::SynchronizeResponse { more: request.more }.encode_to_vec()
    }

    /// Passes an event of a sandbox or a container to the handler.
    async fn lifecycle(
        &self,
        event: Event,
        request: proto::Lifecycle,
        deadline: Deadline,
    ) -> Result<Vec<u8>, Status> {
        let subject = match Subject::parse(event, request) {
            Ok(Some(subject)) => subject,
            Ok(None) => return Ok(Vec::new()),
            Err(error) if event == Event::CreateContainer => {
                return Err(Status::new(Code::InvalidArgument, error.to_string()));
            }
            Err(error) => {
                skip(&event.as_str_name(), &error);
                return Ok(Vec::new());
            }
        };
        let call = subject.to_string();
        let begin = Instant::now();
        let answer = self.handle(&call, subject, deadline).await;
        let took_us = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(%call, took_us, "the container runtime has its answer");
        answer
    }

    async fn handle(&self, call: &str, subject: Subject, deadline: Deadline) -> Result<Vec<u8>, Status> {
        let (handler, budget) = (Arc::clone(&self.handler), deadline.budget);
        match subject {
            Subject::Run(sandbox) => {
                let work = async move { handler.run_pod_sandbox(sandbox, budget).await };
                if let Ok(Err(text)) = in_time(call, deadline, work).await {
                    return Err(refusal(text.0));
                }
            }
            Subject::Create(sandbox, container) => {
                let work = async move { handler.create_container(sandbox, container, budget).await };
                return match in_time(call, deadline, work).await {
                    Ok(Ok(adjustment)) => Ok(adjustment.encode()),
                    Ok(Err(text)) => Err(refusal(text.0)),
                    Err(Unanswered::Late) => Err(refusal(format!(
                        "{call}: the node's network agent did not answer within {:?}; the kubelet retries",
                        deadline.answer
                    ))),
                    Err(Unanswered::Panicked) => Err(refusal(format!(
                        "{call}: the node's network agent failed, see its log; the kubelet retries"
                    ))),
                };
            }
            Subject::Stop(sandbox) => {
                let work = async move { handler.stop_pod_sandbox(sandbox, budget).await };
                let _ = in_time(call, deadline, work).await;
            }
            Subject::Remove(sandbox) => {
                let work = async move { handler.remove_pod_sandbox(sandbox, budget).await };
                let _ = in_time(call, deadline, work).await;
            }
        }
        Ok(Vec::new())
    }
}

impl<H: Handler> Service for Events<H> {
    const NAME: &'static str = PLUGIN_SERVICE;

    async fn call(&self, method: &str, payload: Bytes, granted: Option<Duration>) -> Result<Vec<u8>, Status> {
        let request_timeout = self.request_timeout.get().copied().unwrap_or(DEFAULT_REQUEST_TIMEOUT);
        let deadline = Deadline::of(granted.unwrap_or(request_timeout));
        let event = match method {
            "Configure" => return Ok(self.configure(decode(payload)?, deadline).await),
            "Synchronize" => return Ok(self.synchronize(decode(payload)?, deadline).await),
            // The connection ends by itself when the runtime does.
            "Shutdown" => return Ok(Vec::new()),
            // Runtimes with an NRI before 0.12 report the simple events this way.
            "StateChange" => {
                let change: proto::StateChangeEvent = decode(payload)?;
                let (event, request) =
                    (change.event(), proto::Lifecycle { pod: change.pod, container: change.container });
                return self.lifecycle(event, request, deadline).await;
            }
            "RunPodSandbox" => Event::RunPodSandbox,
            "StopPodSandbox" => Event::StopPodSandbox,
            "RemovePodSandbox" => Event::RemovePodSandbox,
            "CreateContainer" => Event::CreateContainer,
            _ => {
                return Err(Status::new(Code::Unimplemented, format!("method {method} is not served here")));
            }
        };
        self.lifecycle(event, decode(payload)?, deadline).await
    }
}

/// An event that the handler gets, with its sandbox and container.
enum Subject {
    Run(Sandbox),
    Create(Sandbox, Container),
    Stop(Sandbox),
    Remove(Sandbox),
}

impl Subject {
    fn parse(event: Event, request: proto::Lifecycle) -> Result<Option<Self>, InvalidObject> {
        let moment = match event {
            Event::Unknown => return Ok(None),
            Event::RunPodSandbox => Moment::Run,
            Event::CreateContainer => Moment::Later,
            Event::StopPodSandbox | Event::RemovePodSandbox => Moment::End,
        };
        let Some(sandbox) = Sandbox::parse(request.pod, moment)? else {
            return Ok(None);
        };
        Ok(Some(match event {
            Event::Unknown => return Ok(None),
            Event::RunPodSandbox => Self::Run(sandbox),
            Event::CreateContainer => Self::Create(sandbox, Container::parse(request.container)?),
            Event::StopPodSandbox => Self::Stop(sandbox),
            Event::RemovePodSandbox => Self::Remove(sandbox),
        }))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (event, sandbox, container) = match self {
            Self::Run(sandbox) => ("RunPodSandbox", sandbox, None),
            Self::Stop(sandbox) => ("StopPodSandbox", sandbox, None),
            Self::Remove(sandbox) => ("RemovePodSandbox", sandbox, None),
            Self::Create(sandbox, container) => ("CreateContainer", sandbox, Some(container)),
        };
        write!(f, "{event} of pod {}/{}", sandbox.namespace, sandbox.name)?;
        if let Some(container) = container {
            write!(f, ", container {}", container.name)?;
        }
        Ok(())
    }
}

/// When one call's handler should be done, and when the call is answered without it.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    budget: Duration,
    answer: Duration,
}

impl Deadline {
    fn of(granted: Duration) -> Self {
        Self { budget: granted * BUDGET / 100, answer: granted * ANSWER / 100 }
    }
}

/// Waits for a handler until the call must be answered. The handler is a task of its own and goes on after
/// that.
async fn in_time<T: Send + 'static>(
    call: &(impl fmt::Display + ?Sized),
    deadline: Deadline,
    handler: impl Future<Output = T> + Send + 'static,
) -> Result<T, Unanswered> {
    match tokio::time::timeout(deadline.answer, tokio::spawn(handler)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(panic)) => {
            tracing::error!(%call, error = &panic as &dyn std::error::Error, "the handler failed");
            Err(Unanswered::Panicked)
        }
        Err(_) => {
            tracing::warn!(%call, after = ?deadline.answer, "answered without the handler, which goes on");
            Err(Unanswered::Late)
        }
    }
}

fn skip(call: &(impl fmt::Display + ?Sized), error: &InvalidObject) {
    tracing::warn!(%call, error = error as &dyn std::error::Error, "skipped an invalid object of the runtime");
}

fn refusal(mut text: String) -> Status {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    Status::new(Code::Unknown, text)
}

fn decode<M: prost::Message + Default>(payload: Bytes) -> Result<M, Status> {
    M::decode(payload)
        .map_err(|error| Status::new(Code::InvalidArgument, format!("malformed request: {error}")))
}

impl Adjustment {
    /// Decodes a plugin's answer to CreateContainer.
    pub(crate) fn decode(answer: Bytes) -> Result<Self, prost::DecodeError> {
        let adjust = proto::CreateContainerResponse::decode(answer)?.adjust;
        let hooks = adjust.and_then(|adjust| adjust.hooks).map(|hooks| hooks.create_runtime);
        Ok(Self { create_runtime: hooks.into_iter().flatten().map(Hook::from).collect() })
    }

    fn encode(self) -> Vec<u8> {
        if self.create_runtime.is_empty() {
            return Vec::new();
        }
        let create_runtime = self.create_runtime.into_iter().map(proto::Hook::from).collect();
        let hooks = Some(proto::Hooks { create_runtime });
        let adjust = Some(proto::ContainerAdjustment { hooks });
        proto::CreateContainerResponse { adjust }.encode_to_vec()
    }
}

impl From<Hook> for proto::Hook {
    fn from(hook: Hook) -> Self {
        let seconds = hook.timeout.as_secs() + u64::from(hook.timeout.subsec_nanos() > 0);
        let value = seconds.clamp(1, i64::MAX as u64) as i64;
        Self { path: hook.path, args: hook.args, env: hook.env, timeout: Some(proto::OptionalInt { value }) }
    }
}

impl From<proto::Hook> for Hook {
    fn from(hook: proto::Hook) -> Self {
        let seconds = hook.timeout.and_then(|seconds| seconds.value.try_into().ok()).unwrap_or_default();
        Self { path: hook.path, args: hook.args, env: hook.env, timeout: Duration::from_secs(seconds) }
    }
}
