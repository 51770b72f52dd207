//! The plugin against a fake runtime in the same process, made from the same codecs: what it shows is behaviour. That
//! the bytes are right is for the test `nri_real`, which has the real other end.

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

use super::mux::{self, Connection, Demultiplexer};
use super::proto::{self, Event};
use super::ttrpc::{self, CallError, Code, Status};
use super::*;

/// More than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a fake runtime grants a call that is meant to be late.
const GRANTED: Duration = Duration::from_secs(1);

const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("did not happen in time")
}

/// Listens where a runtime would.
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

    /// Takes a plugin in all the way, with nothing to synchronise.
    async fn connect(&self) -> FakeConnection {
        let mut connection = self.accept().await;
        connection.register().await;
        connection.configure(Duration::from_secs(2)).await;
        connection.synchronize(Vec::new(), Vec::new(), false).await;
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
    /// The next message, `None` when the plugin has closed the connection.
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
        let response = self.call("Configure", request.encode_to_vec(), PATIENCE).await.unwrap();
        proto::ConfigureResponse::decode(response).unwrap()
    }

    /// Returns what the plugin answered for `more`.
    async fn synchronize(
        &mut self,
        pods: Vec<proto::PodSandbox>,
        containers: Vec<proto::Container>,
        more: bool,
    ) -> bool {
        let request = proto::SynchronizeRequest { pods, containers, more };
        let response = self.call("Synchronize", request.encode_to_vec(), PATIENCE).await.unwrap();
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

/// What plugins call in a runtime.
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
    proto::Container {
        id: id.to_owned(),
        pod_sandbox_id: "s1".to_owned(),
        name: "app".to_owned(),
        ..Default::default()
    }
}

fn of_pod() -> proto::Lifecycle {
    proto::Lifecycle { pod: Some(pod("s1")), container: None }
}

fn of_container() -> proto::Lifecycle {
    proto::Lifecycle { pod: Some(pod("s1")), container: Some(container("c1")) }
}

/// What the scripted handler does when an event comes.
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

/// Says what it was told, and does what it was scripted to.
struct Scripted {
    script: Mutex<Script>,
    told: mpsc::UnboundedSender<String>,
    release: Notify,
}

impl Scripted {
    fn tell(&self, what: impl Into<String>) {
        self.told.send(what.into()).unwrap();
    }

    fn script(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    async fn play(&self, event: &str, budget: Duration) -> Result<Adjustment, String> {
        self.tell(event);
        let script = self.script.lock().unwrap().clone();
        match script {
            Script::Agree => Ok(Adjustment::default()),
            Script::Refuse(text) => Err(text),
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
                Err("the budget is used up".to_owned())
            }
            Script::Wait => {
                self.release.notified().await;
                self.tell("released");
                Err("too late".to_owned())
            }
            Script::Panic => panic!("as scripted"),
        }
    }
}

impl Handler for Scripted {
    fn configured(&self, runtime: &RuntimeInfo) {
        self.tell(format!("configured {} {} {:?}", runtime.name, runtime.version, runtime.request_timeout));
    }

    async fn synchronize(&self, sandboxes: Vec<Sandbox>, containers: Vec<Container>) {
        let sandboxes: Vec<_> = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
        let containers: Vec<_> = containers.into_iter().map(|container| container.id).collect();
        self.tell(format!("synchronize {} {}", sandboxes.join(","), containers.join(",")));
    }

    async fn run_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) -> Result<(), String> {
        self.play(&format!("run {}", sandbox.id), budget).await.map(drop)
    }

    async fn create_container(
        &self,
        _: Sandbox,
        container: Container,
        budget: Duration,
    ) -> Result<Adjustment, String> {
        self.play(&format!("create {}", container.id), budget).await
    }

    async fn stop_container(&self, _: Sandbox, container: Container, budget: Duration) {
        let _ = self.play(&format!("stop container {}", container.id), budget).await;
    }

    async fn remove_container(&self, _: Sandbox, container: Container, budget: Duration) {
        let _ = self.play(&format!("remove container {}", container.id), budget).await;
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
    told: mpsc::UnboundedReceiver<String>,
    connected: watch::Receiver<bool>,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Plugin {
    fn start(runtime: &FakeRuntime) -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        let handler = Arc::new(Scripted { script: Mutex::default(), told: sender, release: Notify::new() });
        let config = PluginConfig::new(&runtime.socket, "netclaim", 0).unwrap();
        let (connected, watched) = watch::channel(false);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(run(config, Arc::clone(&handler), connected, cancel.clone()));
        Self { handler, told, connected: watched, cancel, task }
    }

    async fn told(&mut self) -> String {
        soon(self.told.recv()).await.unwrap()
    }

    /// Passes over what every connection begins with.
    async fn told_of_connection(&mut self) {
        assert!(self.told().await.starts_with("configured"));
        assert!(self.told().await.starts_with("synchronize"));
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
    plugin.told_of_connection().await;
    (runtime, connection, plugin)
}

#[tokio::test]
async fn the_plugin_registers_is_configured_and_is_connected_once_it_is_synchronised() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    assert_eq!(connection.register().await, ("netclaim".to_owned(), "00".to_owned()));
    let subscribed = connection.configure(Duration::from_secs(7)).await;
    assert_eq!(subscribed.events, 0x60f);
    assert_eq!(plugin.told().await, "configured fake 1.2.3 7s");
    assert!(!*plugin.connected.borrow());
    connection.synchronize(vec![pod("s1")], vec![container("c1")], false).await;
    assert_eq!(plugin.told().await, "synchronize s1 c1");
    plugin.is_connected(true).await;
}

#[tokio::test]
async fn a_runtime_that_does_not_tell_its_request_timeout_has_the_default_one() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.configure(Duration::ZERO).await;
    assert_eq!(plugin.told().await, "configured fake 1.2.3 2s");
}

#[tokio::test]
async fn a_split_synchronisation_reaches_the_handler_in_one_piece() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.configure(Duration::from_secs(2)).await;
    assert!(connection.synchronize(vec![pod("s1"), pod("s2")], vec![container("c1")], true).await);
    assert!(connection.synchronize(vec![pod("s3")], Vec::new(), true).await);
    assert!(!connection.synchronize(Vec::new(), vec![container("c2")], false).await);
    plugin.told().await;
    assert_eq!(plugin.told().await, "synchronize s1,s2,s3 c1,c2");
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_understood_does_not_spoil_the_synchronisation() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.configure(Duration::from_secs(2)).await;
    connection.synchronize(vec![pod("../s1"), pod("s2")], Vec::new(), false).await;
    plugin.told().await;
    assert_eq!(plugin.told().await, "synchronize s2 ");
}

#[tokio::test]
async fn every_event_reaches_the_handler_by_its_own_call_and_by_state_change() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    for (method, event, told) in [
        ("RunPodSandbox", Event::RunPodSandbox, "run s1"),
        ("StopContainer", Event::StopContainer, "stop container c1"),
        ("RemoveContainer", Event::RemoveContainer, "remove container c1"),
        ("StopPodSandbox", Event::StopPodSandbox, "stop s1"),
        ("RemovePodSandbox", Event::RemovePodSandbox, "remove s1"),
    ] {
        connection.call(method, of_container().encode_to_vec(), PATIENCE).await.unwrap();
        assert_eq!(plugin.told().await, told);
        let proto::Lifecycle { pod, container } = of_container();
        let change = proto::StateChangeEvent { event: event.into(), pod, container };
        connection.call("StateChange", change.encode_to_vec(), PATIENCE).await.unwrap();
        assert_eq!(plugin.told().await, told);
    }
    connection.create_container(PATIENCE).await.unwrap();
    assert_eq!(plugin.told().await, "create c1");
}

#[tokio::test]
async fn a_state_change_that_nobody_subscribed_to_is_ignored() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    let change = proto::StateChangeEvent { event: 7, pod: Some(pod("s1")), container: None };
    connection.call("StateChange", change.encode_to_vec(), PATIENCE).await.unwrap();
    connection.run_pod_sandbox(PATIENCE).await.unwrap();
    assert_eq!(plugin.told().await, "run s1");
}

#[tokio::test]
async fn a_call_that_is_not_served_is_unimplemented_so_that_the_runtime_falls_back() {
    let (_runtime, mut connection, _plugin) = connected(Script::Agree).await;
    let refused = connection.call("PostStartContainer", of_container().encode_to_vec(), PATIENCE).await;
    assert!(refused.unwrap_err().is(Code::Unimplemented));
}

#[tokio::test]
async fn a_slow_handler_of_a_sandbox_is_answered_for_in_time_and_goes_on() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Wait).await;
    for method in ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer"]
    {
        let called = Instant::now();
        connection.call(method, of_container().encode_to_vec(), GRANTED).await.unwrap();
        assert!(called.elapsed() < GRANTED, "{method} was answered after {:?}", called.elapsed());
        plugin.told().await;
        plugin.handler.release.notify_one();
        assert_eq!(plugin.told().await, "released");
    }
}

#[tokio::test]
async fn a_slow_handler_of_a_container_has_it_refused_in_time_and_goes_on() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Wait).await;
    let called = Instant::now();
    let refused = connection.create_container(GRANTED).await.unwrap_err();
    assert!(called.elapsed() < GRANTED, "answered after {:?}", called.elapsed());
    assert_eq!(
        refused,
        Status::new(
            Code::Unknown,
            "CreateContainer of pod shop/web-0, container app: the node's network agent had no answer within 700ms; \
             this is tried again"
        )
    );
    plugin.told().await;
    plugin.handler.release.notify_one();
    assert_eq!(plugin.told().await, "released");
}

#[tokio::test]
async fn a_handler_that_uses_its_whole_budget_still_has_its_say() {
    let (_runtime, mut connection, _plugin) = connected(Script::UseTheBudget).await;
    let refused = connection.create_container(Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(refused, Status::new(Code::Unknown, "the budget is used up"));
}

#[tokio::test]
async fn a_call_without_a_deadline_has_the_configured_one() {
    let runtime = FakeRuntime::start();
    let plugin = Plugin::start(&runtime);
    plugin.handler.script(Script::Wait);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.configure(GRANTED).await;
    connection.synchronize(Vec::new(), Vec::new(), false).await;
    let called = Instant::now();
    connection.run_pod_sandbox(Duration::ZERO).await.unwrap();
    assert!(called.elapsed() < GRANTED, "answered after {:?}", called.elapsed());
}

#[tokio::test]
async fn a_slow_handler_does_not_hold_up_other_calls() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Wait).await;
    connection.send("RunPodSandbox", of_pod().encode_to_vec(), PATIENCE).await;
    assert_eq!(plugin.told().await, "run s1");
    plugin.handler.script(Script::Agree);
    connection.create_container(PATIENCE).await.unwrap();
    assert_eq!(plugin.told().await, "create c1");
}

#[tokio::test]
async fn a_handler_that_panics_refuses_a_container_and_nothing_else() {
    let (_runtime, mut connection, _plugin) = connected(Script::Panic).await;
    connection.run_pod_sandbox(PATIENCE).await.unwrap();
    let refused = connection.create_container(PATIENCE).await.unwrap_err();
    assert_eq!(
        refused,
        Status::new(
            Code::Unknown,
            "CreateContainer of pod shop/web-0, container app: the node's network agent failed, see its log; this is \
             tried again"
        )
    );
}

#[tokio::test]
async fn the_text_of_a_refusal_reaches_the_runtime_unchanged() {
    let (_runtime, mut connection, _plugin) =
        connected(Script::Refuse("storage: no addresses".to_owned())).await;
    let text = Status::new(Code::Unknown, "storage: no addresses");
    assert_eq!(connection.run_pod_sandbox(PATIENCE).await.unwrap_err(), text);
    assert_eq!(connection.create_container(PATIENCE).await.unwrap_err(), text);
}

#[tokio::test]
async fn an_endless_text_is_cut_short() {
    let (_runtime, mut connection, _plugin) = connected(Script::Refuse("é".repeat(1 << 20))).await;
    let refused = connection.create_container(PATIENCE).await.unwrap_err();
    assert_eq!(refused, Status::new(Code::Unknown, "é".repeat(8 << 10)));
}

#[tokio::test]
async fn a_hook_is_passed_to_the_runtime_even_if_it_takes_many_frames() {
    let args = vec!["hook".to_owned(), "x".repeat(100_000)];
    let (_runtime, mut connection, _plugin) = connected(Script::Hook(args.clone())).await;
    let hooks = connection.create_container(PATIENCE).await.unwrap().unwrap().hooks.unwrap();
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
    assert_eq!(connection.create_container(PATIENCE).await.unwrap(), None);
}

#[tokio::test]
async fn what_cannot_be_understood_refuses_a_container_and_nothing_else() {
    let (_runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    let broken = proto::Lifecycle { pod: Some(pod("../s1")), container: Some(container("c1")) };
    connection.call("RunPodSandbox", broken.encode_to_vec(), PATIENCE).await.unwrap();
    connection.call("StopPodSandbox", Vec::new(), PATIENCE).await.unwrap();
    let refused = connection.call("CreateContainer", broken.encode_to_vec(), PATIENCE).await.unwrap_err();
    assert!(refused.is(Code::InvalidArgument), "{refused}");
    connection.run_pod_sandbox(PATIENCE).await.unwrap();
    assert_eq!(plugin.told().await, "run s1", "the handler was told of something broken");
}

#[tokio::test]
async fn a_connection_that_the_runtime_cuts_is_made_again_and_the_handler_goes_on() {
    let (runtime, mut connection, mut plugin) = connected(Script::Wait).await;
    plugin.is_connected(true).await;
    connection.send("RunPodSandbox", of_pod().encode_to_vec(), PATIENCE).await;
    assert_eq!(plugin.told().await, "run s1");
    drop(connection);
    plugin.is_connected(false).await;

    let _connection = runtime.connect().await;
    plugin.told_of_connection().await;
    plugin.is_connected(true).await;
    plugin.handler.release.notify_one();
    assert_eq!(plugin.told().await, "released");
}

#[tokio::test]
async fn a_runtime_that_is_restarted_is_found_again() {
    let (mut runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    plugin.is_connected(true).await;
    connection.call("Shutdown", Vec::new(), PATIENCE).await.unwrap();
    runtime.stop();
    drop(connection);
    plugin.is_connected(false).await;
    runtime.start_again();
    let _connection = runtime.connect().await;
    plugin.is_connected(true).await;
}

#[tokio::test]
async fn a_plugin_that_is_refused_tries_again() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    connection.answer_registration(RuntimeService { refuses: true, ..Default::default() }).await;
    assert!(soon(connection.receive()).await.is_none(), "a refused plugin hung on");
    let _connection = runtime.connect().await;
    plugin.is_connected(true).await;
}

#[tokio::test]
async fn a_synchronisation_that_was_cut_short_is_forgotten() {
    let runtime = FakeRuntime::start();
    let mut plugin = Plugin::start(&runtime);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.configure(Duration::from_secs(2)).await;
    connection.synchronize(vec![pod("s1")], Vec::new(), true).await;
    drop(connection);
    let mut connection = runtime.accept().await;
    connection.register().await;
    connection.synchronize(vec![pod("s2")], Vec::new(), false).await;
    plugin.told().await;
    assert_eq!(plugin.told().await, "synchronize s2 ");
}

#[tokio::test]
async fn bytes_that_are_not_nri_end_the_connection_and_it_is_made_again() {
    let (runtime, mut connection, mut plugin) = connected(Script::Agree).await;
    connection.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    assert!(soon(connection.receive()).await.is_none());
    let _connection = runtime.connect().await;
    plugin.told_of_connection().await;
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
async fn cancelling_ends_a_plugin_that_finds_no_runtime() {
    let mut runtime = FakeRuntime::start();
    runtime.stop();
    let mut plugin = Plugin::start(&runtime);
    plugin.cancel.cancel();
    soon(&mut plugin.task).await.unwrap();
}

#[test]
fn a_name_or_an_index_that_runtimes_refuse_is_refused_first() {
    for name in ["", "a b", "a/b", "é"] {
        assert_eq!(PluginConfig::new("/s", name, 0), Err(InvalidPluginConfig::Name(name.to_owned())));
    }
    assert_eq!(PluginConfig::new("/s", "netclaim.dev", 100), Err(InvalidPluginConfig::Index(100)));
    assert_eq!(PluginConfig::new("/s", "netclaim.dev", 7).unwrap().index, "07");
}
