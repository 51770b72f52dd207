//! The plugin against a fake runtime in the same process, which uses the same codecs. So these tests show
//! behaviour; the test `nri_real` checks the bytes against NRI's own code.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prost::Message as _;
use prost::bytes::Bytes;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::mux::{self, Connection, Demultiplexer};
use crate::proto::{self, Event};
use crate::ttrpc::{self, CallError, Code, Status};

/// Longer than any test waits unless it fails.
const LONG: Duration = Duration::from_secs(10);

/// What the fake runtime grants a call whose answer is to be late.
const GRANTED: Duration = Duration::from_secs(1);

const IDENTITY: Identity = Identity { name: "test", index: 7 };

const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("did not happen in time")
}

/// Listens as a runtime does.
struct FakeRuntime {
    listener: Option<UnixListener>,
    socket: PathBuf,
    _dir: TempDir,
}

impl FakeRuntime {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nri.sock");
        Self { listener: Some(UnixListener::bind(&socket).unwrap()), socket, _dir: dir }
    }

    fn stop(&mut self) {
        self.listener = None;
        std::fs::remove_file(&self.socket).unwrap();
    }

    fn start_again(&mut self) {
        self.listener = Some(UnixListener::bind(&self.socket).unwrap());
    }

    async fn accept(&self) -> FakeConnection {
        let (stream, _) = soon(self.listener.as_ref().unwrap().accept()).await.unwrap();
        FakeConnection {
            stream,
            demultiplexer: Demultiplexer::default(),
            registration: ttrpc::Decoder::default(),
            answers: ttrpc::Decoder::default(),
            arrived: VecDeque::new(),
            calls: 0,
        }
    }

    /// Registers a plugin and synchronizes it with no sandboxes.
    async fn connect(&self) -> FakeConnection {
        let mut connection = self.accept().await;
        connection.register().await;
        connection.configure(Duration::from_secs(2)).await;
        connection.synchronize(Vec::new(), false).await;
        connection
    }
}

/// The runtime's end of a connection.
struct FakeConnection {
    stream: UnixStream,
    demultiplexer: Demultiplexer,
    registration: ttrpc::Decoder,
    answers: ttrpc::Decoder,
    arrived: VecDeque<(Connection, ttrpc::Message)>,
    calls: u32,
}

impl FakeConnection {
    /// Returns the next message, `None` after the plugin has closed the connection.
    async fn receive(&mut self) -> Option<(Connection, ttrpc::Message)> {
        let mut buffer = vec![0; 700];
        while self.arrived.is_empty() {
            let length = self.stream.read(&mut buffer).await.unwrap();
            if length == 0 {
                return None;
            }
            let mut input = &buffer[..length];
            while let Some((connection, payload)) = self.demultiplexer.next(&mut input).unwrap() {
                let decoder = match connection {
                    Connection::Plugin => &mut self.answers,
                    Connection::Runtime => &mut self.registration,
                };
                decoder.push(payload);
                while let Some(message) = decoder.next().unwrap() {
                    self.arrived.push_back((connection, message));
                }
            }
        }
        self.arrived.pop_front()
    }

    async fn answer_registration(&mut self, service: RuntimeService) -> RuntimeService {
        let (connection, request) = soon(self.receive()).await.unwrap();
        assert_eq!(connection, Connection::Runtime);
        let response = ttrpc::answer(&service, request).await;
        self.stream.write_all(&mux::frames(Connection::Runtime, &response)).await.unwrap();
        service
    }

    async fn register(&mut self) -> (String, String) {
        let service = self.answer_registration(RuntimeService::default()).await;
        service.registered.into_inner().unwrap().unwrap()
    }

    /// Sends a call without waiting for its answer.
    async fn send(&mut self, method: &str, payload: Vec<u8>, timeout: Duration) {
        let stream = 2 * self.calls + 1;
        self.calls += 1;
        let request = ttrpc::request(stream, PLUGIN, method, payload, timeout).unwrap();
        self.stream.write_all(&mux::frames(Connection::Plugin, &request)).await.unwrap();
    }

    async fn call(&mut self, method: &str, payload: Vec<u8>, timeout: Duration) -> Result<Bytes, Status> {
        self.send(method, payload, timeout).await;
        let (connection, response) = soon(self.receive()).await.expect("the plugin closed the connection");
        assert_eq!(connection, Connection::Plugin);
        match ttrpc::outcome(response) {
            Ok(payload) => Ok(payload),
            Err(CallError::Refused(status)) => Err(status),
            Err(error) => panic!("{error}"),
        }
    }

    async fn configure(&mut self, request_timeout: Duration) -> proto::ConfigureResponse {
        let request = proto::ConfigureRequest {
            runtime_name: "fake".to_owned(),
            runtime_version: "1.2.3".to_owned(),
            request_timeout: request_timeout.as_millis() as i64,
        };
        let response = self.call("Configure", request.encode_to_vec(), LONG).await.unwrap();
        proto::ConfigureResponse::decode(response).unwrap()
    }

    /// Returns the plugin's `more`.
    async fn synchronize(&mut self, pods: Vec<proto::PodSandbox>, more: bool) -> bool {
        let request = proto::SynchronizeRequest { pods, more };
        let response = self.call("Synchronize", request.encode_to_vec(), LONG).await.unwrap();
        proto::SynchronizeResponse::decode(response).unwrap().more
    }

    async fn run_pod_sandbox(&mut self, timeout: Duration) -> Result<Bytes, Status> {
        self.call("RunPodSandbox", of_pod().encode_to_vec(), timeout).await
    }

    async fn create_container(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<proto::ContainerAdjustment>, Status> {
        let response = self.call("CreateContainer", of_container().encode_to_vec(), timeout).await?;
        Ok(proto::CreateContainerResponse::decode(response).unwrap().adjust)
    }
}

/// The service that plugins call in a runtime.
#[derive(Default)]
struct RuntimeService {
    refuses: bool,
    registered: Mutex<Option<(String, String)>>,
}

impl ttrpc::Service for RuntimeService {
    const NAME: &'static str = "nri.pkg.api.v1alpha1.Runtime";

    async fn call(&self, method: &str, payload: Bytes, _: Option<Duration>) -> Result<Vec<u8>, Status> {
        assert_eq!(method, "RegisterPlugin");
        if self.refuses {
            return Err(Status::new(Code::Unknown, "plugins are not welcome"));
        }
        let request = proto::RegisterPluginRequest::decode(payload).unwrap();
        *self.registered.lock().unwrap() = Some((request.plugin_name, request.plugin_idx));
        Ok(Vec::new())
    }
}

fn pod(id: &str) -> proto::PodSandbox {
    proto::PodSandbox {
        id: id.to_owned(),
        name: "web-0".to_owned(),
        uid: format!("uid-of-{id}"),
        namespace: "shop".to_owned(),
        linux: Some(proto::LinuxPodSandbox {
            namespaces: vec![proto::LinuxNamespace {
                r#type: "network".to_owned(),
                path: format!("/run/netns/{id}"),
            }],
        }),
        ..Default::default()
    }
}

fn container(id: &str) -> proto::Container {
    proto::Container { id: id.to_owned(), name: "app".to_owned(), ..Default::default() }
}

fn of_pod() -> proto::Lifecycle {
    proto::Lifecycle { pod: Some(pod("s1")), container: None }
}

fn of_container() -> proto::Lifecycle {
    proto::Lifecycle { pod: Some(pod("s1")), container: Some(container("c1")) }
}

/// What the scripted handler does on an event.
#[derive(Clone, Default)]
enum Script {
    #[default]
    Agree,
    Refuse(String),
    /// Add hooks with these arguments.
    Hook(Vec<String>),
    /// Use up the budget, then refuse.
    UseTheBudget,
    /// Wait to be released.
    Wait,
    Panic,
}

/// Reports its events to the test, and does what it was scripted to.
struct Scripted {
    script: Mutex<Script>,
    events: mpsc::UnboundedSender<String>,
    release: Notify,
}

impl Scripted {
    fn report(&self, event: impl Into<String>) {
        self.events.send(event.into()).unwrap();
    }

    fn script(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    async fn play(&self, event: &str, budget: Duration) -> Result<Adjustment, Denial> {
        self.report(event);
        let script = self.script.lock().unwrap().clone();
        match script {
            Script::Agree => Ok(Adjustment::default()),
            Script::Refuse(text) => Err(Denial(text)),
            Script::Hook(args) => Ok(Adjustment {
                create_runtime: vec![Hook {
                    path: "/opt/hook".to_owned(),
                    args,
                    env: vec!["A=b".to_owned()],
                    timeout: Duration::from_millis(1500),
                }],
            }),
            Script::UseTheBudget => {
                tokio::time::sleep(budget).await;
                Err(Denial("the budget is used up".to_owned()))
            }
            Script::Wait => {
                self.release.notified().await;
                self.report("released");
                Err(Denial("too late".to_owned()))
            }
            Script::Panic => panic!("as scripted"),
        }
    }
}

impl Handler for Scripted {
    fn configured(&self, runtime: &RuntimeInfo) {
        self.report(format!("configured {} {} {:?}", runtime.name, runtime.version, runtime.request_timeout));
    }

    async fn synchronize(&self, sandboxes: Vec<Sandbox>) {
        let sandboxes: Vec<_> = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
        self.report(format!("synchronize {}", sandboxes.join(",")));
    }

    async fn run_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) -> Result<(), Denial> {
        self.play(&format!("run {}", sandbox.id), budget).await.map(drop)
    }

    async fn create_container(
        &self,
        _: Sandbox,
        container: Container,
        budget: Duration,
    ) -> Result<Adjustment, Denial> {
        self.play(&format!("create {}", container.id), budget).await
    }

    async fn stop_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) {
        let _ = self.play(&format!("stop {}", sandbox.id), budget).await;
    }

    async fn remove_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) {
        let _ = self.play(&format!("remove {}", sandbox.id), budget).await;
    }
}

/// A plugin that runs.
struct Plugin {
    handler: Arc<Scripted>,
    events: mpsc::UnboundedReceiver<String>,
    connected: watch::Receiver<bool>,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Plugin {
    fn start(runtime: &FakeRuntime) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let handler = Arc::new(Scripted { script: Mutex::default(), events: sender, release: Notify::new() });
        let (connected, watched) = watch::channel(false);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(run(
            runtime.socket.clone(),
            IDENTITY,
            Arc::clone(&handler),
            connected,
            cancel.clone(),
        ));
        Self { handler, events, connected: watched, cancel, task }
    }

    /// Returns the handler's next event.
    async fn event(&mut self) -> String {
        soon(self.events.recv()).await.unwrap()
    }

    /// Expects the events with which every connection begins.
    async fn is_synchronized(&mut self) {
        assert!(self.event().await.starts_with("configured"));
        assert!(self.event().await.starts_with("synchronize"));
    }

    async fn is_connected(&mut self, wanted: bool) {
        soon(self.connected.wait_for(|connected| *connected == wanted)).await.unwrap();
    }
}

/// A plugin, connected and ready for events.
async fn connected(script: Script) -> (FakeRuntime, FakeConnection, Plugin) {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    plugin.handler.script(script);
    let connection = runtime.connect().await;
    plugin.is_synchronized().await;
    (runtime, connection, plugin)
}

#[tokio::test]
async fn the_plugin_registers_is_configured_and_is_connected_once_it_is_synchronized() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    assert_eq!(connection.register().await, ("test".to_owned(), "07".to_owned()));
    let subscribed = connection.configure(Duration::from_secs(7)).await;
    assert_eq!(subscribed.events, 0x0f, "the events of sandboxes, and the creation of containers");
    assert_eq!(plugin.event().await, "configured fake 1.2.3 7s");
    assert!(!*plugin.connected.borrow());
    connection.synchronize(vec![pod("s1")], false).await;
    assert_eq!(plugin.event().await, "synchronize s1");
    plugin.is_connected(true).await;
}

#[tokio::test]
async fn a_runtime_that_does_not_report_its_request_timeout_gets_the_default() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.configure(Duration::ZERO).await;
    assert_eq!(plugin.event().await, "configured fake 1.2.3 2s");
}

#[tokio::test]
async fn a_split_synchronization_reaches_the_handler_in_one_piece() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.configure(Duration::from_secs(2)).await;
    assert!(connection.synchronize(vec![pod("s1"), pod("s2")], true).await);
    assert!(connection.synchronize(vec![pod("s3")], true).await);
    assert!(!connection.synchronize(vec![pod("s4")], false).await);
    plugin.event().await;
    assert_eq!(plugin.event().await, "synchronize s1,s2,s3,s4");
}

#[tokio::test]
async fn an_invalid_sandbox_does_not_spoil_the_synchronization() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.configure(Duration::from_secs(2)).await;
    connection.synchronize(vec![pod("../s1"), pod("s2")], false).await;
    plugin.event().await;
    assert_eq!(plugin.event().await, "synchronize s2");
}

#[tokio::test]
async fn every_event_reaches_the_handler_by_its_own_call_and_by_state_change() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    for (method, event, expected) in [
        ("RunPodSandbox", Event::RunPodSandbox, "run s1"),
        ("StopPodSandbox", Event::StopPodSandbox, "stop s1"),
        ("RemovePodSandbox", Event::RemovePodSandbox, "remove s1"),
    ] {
        connection.call(method, of_container().encode_to_vec(), LONG).await.unwrap();
        assert_eq!(plugin.event().await, expected);
        let proto::Lifecycle { pod, container } = of_container();
        let change = proto::StateChangeEvent { event: event.into(), pod, container };
        connection.call("StateChange", change.encode_to_vec(), LONG).await.unwrap();
        assert_eq!(plugin.event().await, expected);
    }
    connection.create_container(LONG).await.unwrap();
    assert_eq!(plugin.event().await, "create c1");
}

#[tokio::test]
async fn a_state_change_without_a_subscription_is_ignored() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    // PostCreateContainer, StopContainer and RemoveContainer.
    for event in [7, 10, 11] {
        let proto::Lifecycle { pod, container } = of_container();
        let change = proto::StateChangeEvent { event, pod, container };
        connection.call("StateChange", change.encode_to_vec(), LONG).await.unwrap();
    }
    connection.run_pod_sandbox(LONG).await.unwrap();
    assert_eq!(plugin.event().await, "run s1");
}

#[tokio::test]
async fn a_call_that_is_not_served_is_unimplemented_so_that_the_runtime_falls_back() {
    let (_runtime, mut connection, _plugin) = connected(Script::Agree).await;
    for method in ["PostStartContainer", "StopContainer", "RemoveContainer"] {
        let refused = connection.call(method, of_container().encode_to_vec(), LONG).await;
        assert!(refused.unwrap_err().is(Code::Unimplemented), "{method}");
    }
}

#[tokio::test]
async fn a_sandbox_call_is_answered_in_time_and_its_slow_handler_goes_on() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Wait).await;
    for method in ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"] {
        let called = Instant::now();
        connection.call(method, of_container().encode_to_vec(), GRANTED).await.unwrap();
        assert!(called.elapsed() < GRANTED, "{method} was answered after {:?}", called.elapsed());
        plugin.event().await;
        plugin.handler.release.notify_one();
        assert_eq!(plugin.event().await, "released");
    }
}

#[tokio::test]
async fn a_container_is_refused_in_time_and_its_slow_handler_goes_on() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Wait).await;
    let called = Instant::now();
    let refused = connection.create_container(GRANTED).await.unwrap_err();
    assert!(called.elapsed() < GRANTED, "answered after {:?}", called.elapsed());
    assert_eq!(
        refused,
        Status::new(
            Code::Unknown,
            "CreateContainer of pod shop/web-0, container app: the node's network agent did not answer within 700ms; \
             the kubelet retries"
        )
    );
    plugin.event().await;
    plugin.handler.release.notify_one();
    assert_eq!(plugin.event().await, "released");
}

#[tokio::test]
async fn a_handler_that_uses_its_whole_budget_still_decides() {
    let (_runtime, mut connection, _plugin) = connected(Script::UseTheBudget).await;
    let refused = connection.create_container(Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(refused, Status::new(Code::Unknown, "the budget is used up"));
}

#[tokio::test]
async fn a_call_without_a_deadline_gets_the_configured_one() {
    let runtime = FakeRuntime::start();
    let plugin = Plugin::start(&runtime);
    plugin.handler.script(Script::Wait);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.configure(GRANTED).await;
    connection.synchronize(Vec::new(), false).await;
    let called = Instant::now();
    connection.run_pod_sandbox(Duration::ZERO).await.unwrap();
    assert!(called.elapsed() < GRANTED, "answered after {:?}", called.elapsed());
}

#[tokio::test]
async fn a_slow_handler_does_not_hold_up_other_calls() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Wait).await;
    connection.send("RunPodSandbox", of_pod().encode_to_vec(), LONG).await;
    assert_eq!(plugin.event().await, "run s1");
    plugin.handler.script(Script::Agree);
    connection.create_container(LONG).await.unwrap();
    assert_eq!(plugin.event().await, "create c1");
}

#[tokio::test]
async fn a_handler_that_panics_refuses_a_container_and_nothing_else() {
    let (_runtime, mut connection, _plugin) = connected(Script::Panic).await;
    connection.run_pod_sandbox(LONG).await.unwrap();
    let refused = connection.create_container(LONG).await.unwrap_err();
    assert_eq!(
        refused,
        Status::new(
            Code::Unknown,
            "CreateContainer of pod shop/web-0, container app: the node's network agent failed, see its log; the \
             kubelet retries"
        )
    );
}

#[tokio::test]
async fn the_text_of_a_refusal_reaches_the_runtime_unchanged() {
    let (_runtime, mut connection, _plugin) =
        connected(Script::Refuse("storage: no addresses".to_owned())).await;
    let text = Status::new(Code::Unknown, "storage: no addresses");
    assert_eq!(connection.run_pod_sandbox(LONG).await.unwrap_err(), text);
    assert_eq!(connection.create_container(LONG).await.unwrap_err(), text);
}

#[tokio::test]
async fn a_long_refusal_is_truncated() {
    let (_runtime, mut connection, _plugin) = connected(Script::Refuse("é".repeat(1 << 20))).await;
    let refused = connection.create_container(LONG).await.unwrap_err();
    assert_eq!(refused, Status::new(Code::Unknown, "é".repeat(8 << 10)));
}

#[tokio::test]
async fn a_hook_longer_than_a_frame_reaches_the_runtime() {
    let args = vec!["hook".to_owned(), "x".repeat(100_000)];
    let (_runtime, mut connection, _plugin) = connected(Script::Hook(args.clone())).await;
    let hooks = connection.create_container(LONG).await.unwrap().unwrap().hooks.unwrap();
    assert_eq!(
        hooks.create_runtime,
        [proto::Hook {
            path: "/opt/hook".to_owned(),
            args,
            env: vec!["A=b".to_owned()],
            timeout: Some(proto::OptionalInt { value: 2 }),
        }]
    );
}

#[tokio::test]
async fn a_container_that_needs_nothing_is_not_adjusted() {
    let (_runtime, mut connection, _plugin) = connected(Script::Agree).await;
    assert_eq!(connection.create_container(LONG).await.unwrap(), None);
}

#[tokio::test]
async fn an_invalid_event_refuses_a_container_and_nothing_else() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    let broken = proto::Lifecycle { pod: Some(pod("../s1")), container: Some(container("c1")) };
    connection.call("RunPodSandbox", broken.encode_to_vec(), LONG).await.unwrap();
    connection.call("StopPodSandbox", Vec::new(), LONG).await.unwrap();
    let refused = connection.call("CreateContainer", broken.encode_to_vec(), LONG).await.unwrap_err();
    assert!(refused.is(Code::InvalidArgument), "{refused}");
    connection.run_pod_sandbox(LONG).await.unwrap();
    assert_eq!(plugin.event().await, "run s1", "the handler got an invalid event");
}

#[tokio::test]
async fn the_plugin_reconnects_after_the_runtime_closed_the_connection_and_the_handler_goes_on() {
    let (runtime, mut connection, mut plugin) = connected(Script::Wait).await;
    plugin.is_connected(true).await;
    connection.send("RunPodSandbox", of_pod().encode_to_vec(), LONG).await;
    assert_eq!(plugin.event().await, "run s1");
    drop(connection);
    plugin.is_connected(false).await;

    let _connection = runtime.connect().await;
    plugin.is_synchronized().await;
    plugin.is_connected(true).await;
    plugin.handler.release.notify_one();
    assert_eq!(plugin.event().await, "released");
}

#[tokio::test]
async fn the_plugin_reconnects_to_a_restarted_runtime() {
    let (mut runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    plugin.is_connected(true).await;
    connection.call("Shutdown", Vec::new(), LONG).await.unwrap();
    runtime.stop();
    drop(connection);
    plugin.is_connected(false).await;
    runtime.start_again();
    let _connection = runtime.connect().await;
    plugin.is_connected(true).await;
}

#[tokio::test]
async fn a_refused_plugin_retries() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    connection.answer_registration(RuntimeService { refuses: true, ..Default::default() }).await;
    assert!(soon(connection.receive()).await.is_none(), "a refused plugin kept its connection");
    let _connection = runtime.connect().await;
    plugin.is_connected(true).await;
}

#[tokio::test]
async fn an_incomplete_synchronization_is_forgotten() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.configure(Duration::from_secs(2)).await;
    connection.synchronize(vec![pod("s1")], true).await;
    drop(connection);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.synchronize(vec![pod("s2")], false).await;
    plugin.event().await;
    assert_eq!(plugin.event().await, "synchronize s2");
}

#[tokio::test]
async fn bytes_that_are_not_nri_end_the_connection_and_the_plugin_reconnects() {
    let (runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    connection.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    assert!(soon(connection.receive()).await.is_none());
    let _connection = runtime.connect().await;
    plugin.is_synchronized().await;
}

#[tokio::test]
async fn cancelling_ends_the_plugin_and_closes_its_connection() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    plugin.cancel.cancel();
    soon(&mut plugin.task).await.unwrap();
    assert!(!*plugin.connected.borrow());
    assert!(soon(connection.receive()).await.is_none());
}

#[tokio::test]
async fn cancelling_ends_a_plugin_without_a_runtime() {
    let mut runtime = FakeRuntime::start();
    runtime.stop();
    let mut plugin = Plugin::start(&runtime);
    plugin.cancel.cancel();
    soon(&mut plugin.task).await.unwrap();
}
