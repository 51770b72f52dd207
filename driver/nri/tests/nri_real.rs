//! The plugin against NRI's own runtime side in Go (`tests/nri-runtime`), which containerd and CRI-O use.
//!
//! `cargo test -p netclaim-nri --test nri_real -- --ignored` needs Go 1.24 and its module cache or proxy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use netclaim_nri::{
    Adjustment, Container, Denial, Handler, Hook, Identity, RuntimeInfo, Sandbox, SandboxNetwork, run,
};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Longer than any test waits unless it fails.
const LONG: Duration = Duration::from_secs(20);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("did not happen in time")
}

/// Builds the runtime's side, once for all tests.
fn simulator() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nri-runtime");
        let built = std::process::Command::new("go")
            .args(["build", "-tags", "nri_no_wasm", "-o"])
            .arg(&binary)
            .arg(".")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nri-runtime"))
            .status()
            .expect("this test needs Go on the PATH");
        assert!(built.success(), "the simulated runtime does not build: {built}");
        binary
    })
}

/// The result of a command to the simulated runtime.
#[derive(Debug, Deserialize)]
struct Outcome {
    event: String,
    #[serde(default)]
    error: String,
    millis: u64,
    #[serde(default)]
    hooks: Vec<OciHook>,
    plugins: usize,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
struct OciHook {
    path: String,
    args: Vec<String>,
    env: Vec<String>,
    timeout: Timeout,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Timeout {
    value: i64,
}

/// The simulated runtime; dropping it ends the process.
struct Runtime {
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Runtime {
    async fn start(dir: &TempDir, flags: &[&str]) -> Self {
        let plugins = dir.path().join("plugins");
        std::fs::create_dir_all(&plugins).unwrap();
        let mut child = Command::new(simulator())
            .arg("-socket")
            .arg(dir.path().join("nri.sock"))
            .arg("-plugins")
            .arg(plugins)
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut runtime = Self { _child: child, stdin, stdout };
        assert_eq!(runtime.outcome().await.event, "listening");
        runtime
    }

    async fn outcome(&mut self) -> Outcome {
        let line = soon(self.stdout.next_line()).await.unwrap().expect("the simulated runtime ended");
        serde_json::from_str(&line).unwrap()
    }

    /// Waits until the number of plugins that get events has changed; returns it.
    async fn plugins(&mut self) -> usize {
        let outcome = self.outcome().await;
        assert_eq!(outcome.event, "plugins", "{outcome:?}");
        outcome.plugins
    }

    async fn send(&mut self, command: serde_json::Value) {
        self.stdin.write_all(format!("{command}\n").as_bytes()).await.unwrap();
    }

    async fn act(&mut self, event: &str) -> Outcome {
        let command = serde_json::json!({"do": event, "sandbox": "s1", "container": "c1"});
        self.send(command).await;
        let outcome = self.outcome().await;
        assert_eq!(outcome.event, event, "{outcome:?}");
        outcome
    }
}

/// A call of the handler.
#[derive(Debug, PartialEq)]
enum Call {
    Configured(RuntimeInfo),
    Synchronized(Vec<Sandbox>),
    Run(Sandbox),
    Create(Sandbox, Container),
    Event(&'static str, String),
}

/// What the handler does on an event.
#[derive(Clone, Default)]
enum Script {
    #[default]
    Agree,
    Refuse(&'static str),
    Hook(Hook),
    /// Never answer.
    Hang,
    /// Block the thread, so that the whole process does not answer.
    BlockTheThread(Duration),
}

struct Scripted {
    script: Mutex<Script>,
    calls: mpsc::UnboundedSender<Call>,
}

impl Scripted {
    fn script(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    async fn play(&self, call: Call) -> Result<Adjustment, Denial> {
        self.calls.send(call).unwrap();
        let script = self.script.lock().unwrap().clone();
        match script {
            Script::Agree => Ok(Adjustment::default()),
            Script::Refuse(text) => Err(Denial(text.to_owned())),
            Script::Hook(hook) => Ok(Adjustment { create_runtime: vec![hook] }),
            Script::Hang => std::future::pending().await,
            Script::BlockTheThread(time) => {
                std::thread::sleep(time);
                Ok(Adjustment::default())
            }
        }
    }
}

impl Handler for Scripted {
    fn configured(&self, runtime: &RuntimeInfo) {
        self.calls.send(Call::Configured(runtime.clone())).unwrap();
    }

    async fn synchronize(&self, sandboxes: Vec<Sandbox>) {
        self.calls.send(Call::Synchronized(sandboxes)).unwrap();
    }

    async fn run_pod_sandbox(&self, sandbox: Sandbox, _: Duration) -> Result<(), Denial> {
        self.play(Call::Run(sandbox)).await.map(drop)
    }

    async fn create_container(
        &self,
        sandbox: Sandbox,
        container: Container,
        _: Duration,
    ) -> Result<Adjustment, Denial> {
        self.play(Call::Create(sandbox, container)).await
    }

    async fn stop_pod_sandbox(&self, sandbox: Sandbox, _: Duration) {
        let _ = self.play(Call::Event("stop", sandbox.id)).await;
    }

    async fn remove_pod_sandbox(&self, sandbox: Sandbox, _: Duration) {
        let _ = self.play(Call::Event("remove", sandbox.id)).await;
    }
}

/// A running plugin; dropping it ends the plugin.
struct Plugin {
    handler: Arc<Scripted>,
    calls: mpsc::UnboundedReceiver<Call>,
    connected: watch::Receiver<bool>,
    _cancel: DropGuard,
}

impl Plugin {
    fn start(dir: &TempDir) -> Self {
        let (sender, calls) = mpsc::unbounded_channel();
        let handler = Arc::new(Scripted { script: Mutex::default(), calls: sender });
        let (connected, watched) = watch::channel(false);
        let cancel = CancellationToken::new();
        let (socket, identity) = (dir.path().join("nri.sock"), Identity { name: "test", index: 0 });
        tokio::spawn(run(socket, identity, Arc::clone(&handler), connected, cancel.clone()));
        Self { handler, calls, connected: watched, _cancel: cancel.drop_guard() }
    }

    /// Returns the handler's next call.
    async fn call(&mut self) -> Call {
        soon(self.calls.recv()).await.unwrap()
    }

    /// Expects the calls with which every connection begins.
    async fn synchronized(&mut self) -> (RuntimeInfo, Vec<Sandbox>) {
        let Call::Configured(runtime) = self.call().await else { panic!("not configured first") };
        let Call::Synchronized(sandboxes) = self.call().await else { panic!("not synchronized") };
        soon(self.connected.wait_for(|connected| *connected)).await.unwrap();
        (runtime, sandboxes)
    }
}

async fn connected(flags: &[&str]) -> (TempDir, Runtime, Plugin) {
    let dir = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::start(&dir, flags).await;
    let mut plugin = Plugin::start(&dir);
    plugin.synchronized().await;
    assert_eq!(runtime.plugins().await, 1);
    (dir, runtime, plugin)
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_real_runtime_registers_the_plugin_and_lists_its_sandboxes() {
    let dir = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::start(&dir, &["-request-timeout", "3s"]).await;
    let mut plugin = Plugin::start(&dir);
    let (info, sandboxes) = plugin.synchronized().await;
    assert_eq!(
        info,
        RuntimeInfo {
            name: "simulated".to_owned(),
            version: "v1".to_owned(),
            request_timeout: Duration::from_secs(3)
        }
    );
    assert_eq!(sandboxes.len(), 1);
    assert_eq!(sandboxes[0].id, "listed-0");
    assert_eq!(runtime.plugins().await, 1);
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_real_runtime_reports_every_subscribed_event_of_a_pods_life_and_no_other() {
    let (_dir, mut runtime, mut plugin) = connected(&[]).await;
    assert_eq!(runtime.act("run").await.error, "");
    let Call::Run(sandbox) = plugin.call().await else { panic!("no call for the sandbox") };
    assert_eq!(
        (sandbox.uid.as_str(), sandbox.name.as_str(), sandbox.namespace.as_str()),
        ("uid-of-s1", "pod-of-s1", "default")
    );
    assert_eq!(sandbox.network, SandboxNetwork::Namespace("/run/netns/s1".into()));

    assert_eq!(runtime.act("create").await.error, "");
    let Call::Create(created_in, container) = plugin.call().await else {
        panic!("no call for the container")
    };
    assert_eq!(created_in, sandbox);
    assert_eq!((container.id.as_str(), container.name.as_str()), ("c1", "app"));
    assert_eq!(container.cdi_devices, ["netclaim.dev/claim=1"]);

    // The plugin has not subscribed to the end of containers.
    for event in ["stop-container", "remove-container"] {
        assert_eq!(runtime.act(event).await.error, "");
    }
    for event in ["stop", "remove"] {
        assert_eq!(runtime.act(event).await.error, "");
        assert_eq!(plugin.call().await, Call::Event(event, "s1".to_owned()));
    }
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_pod_on_the_nodes_network_is_reported_as_such() {
    let (_dir, mut runtime, mut plugin) = connected(&[]).await;
    runtime.send(serde_json::json!({"do": "run", "sandbox": "s2", "host": true})).await;
    assert_eq!(runtime.outcome().await.error, "");
    let Call::Run(sandbox) = plugin.call().await else { panic!("no call for the sandbox") };
    assert_eq!(sandbox.network, SandboxNetwork::Host);
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_real_runtime_adds_the_hook_to_the_container() {
    let (_dir, mut runtime, plugin) = connected(&[]).await;
    // Longer than what the runtime reads at once.
    let args = vec!["hook".to_owned(), "x".repeat(50_000)];
    plugin.handler.script(Script::Hook(Hook {
        path: "/opt/netclaim/hook".to_owned(),
        args: args.clone(),
        env: vec!["A=b".to_owned()],
        timeout: Duration::from_secs(100),
    }));
    let created = runtime.act("create").await;
    assert_eq!(created.error, "");
    assert_eq!(
        created.hooks,
        [OciHook {
            path: "/opt/netclaim/hook".to_owned(),
            args,
            env: vec!["A=b".to_owned()],
            timeout: Timeout { value: 100 },
        }]
    );
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_real_runtime_passes_on_the_text_of_a_refusal() {
    let (_dir, mut runtime, plugin) = connected(&[]).await;
    plugin.handler.script(Script::Refuse("storage: no addresses"));
    for event in ["run", "create"] {
        assert_eq!(runtime.act(event).await.error, "rpc error: code = Unknown desc = storage: no addresses");
    }
    plugin.handler.script(Script::Agree);
    assert_eq!(runtime.act("create").await.error, "");
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_handler_that_hangs_does_not_end_the_connection() {
    let (_dir, mut runtime, mut plugin) = connected(&["-request-timeout", "1s"]).await;
    plugin.handler.script(Script::Hang);
    for event in ["run", "stop", "remove"] {
        let outcome = runtime.act(event).await;
        assert_eq!(outcome.error, "");
        assert!(outcome.millis < 1000, "{event} took {} ms", outcome.millis);
        plugin.call().await;
    }
    let created = runtime.act("create").await;
    assert!(created.error.contains("did not answer within"), "{}", created.error);
    plugin.call().await;

    plugin.handler.script(Script::Agree);
    runtime.act("run").await;
    assert!(matches!(plugin.call().await, Call::Run(_)), "the runtime has dropped the plugin");
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_synchronization_of_many_megabytes_arrives_whole() {
    let dir = tempfile::tempdir().unwrap();
    // 6 MiB: more than a message holds, so the runtime splits it.
    let flags = ["-sandboxes", "300", "-padding", "20972", "-request-timeout", "10s"];
    let mut runtime = Runtime::start(&dir, &flags).await;
    let mut plugin = Plugin::start(&dir);
    let (_, sandboxes) = plugin.synchronized().await;
    assert_eq!(runtime.plugins().await, 1);
    let ids: Vec<_> = sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
    assert_eq!(ids, (0..300).map(|number| format!("listed-{number}")).collect::<Vec<_>>());
    assert_eq!(runtime.act("run").await.error, "");
    assert!(matches!(plugin.call().await, Call::Run(_)));
}

#[tokio::test]
#[ignore = "needs Go"]
async fn an_evicted_plugin_reconnects_and_is_synchronized_again() {
    let (_dir, mut runtime, mut plugin) = connected(&["-request-timeout", "300ms"]).await;
    plugin.handler.script(Script::BlockTheThread(Duration::from_secs(1)));
    runtime.send(serde_json::json!({"do": "run", "sandbox": "s1"})).await;
    assert!(matches!(plugin.call().await, Call::Run(_)));
    plugin.handler.script(Script::Agree);
    assert_eq!(runtime.plugins().await, 0, "the runtime has not evicted the plugin");
    let ran = runtime.outcome().await;
    assert_eq!(
        (ran.event.as_str(), ran.error.as_str()),
        ("run", ""),
        "the runtime does not fail open any more"
    );

    plugin.synchronized().await;
    assert_eq!(runtime.plugins().await, 1);
    runtime.act("run").await;
    assert!(matches!(plugin.call().await, Call::Run(_)));
}

#[tokio::test]
#[ignore = "needs Go"]
async fn the_plugin_reconnects_to_a_restarted_real_runtime() {
    let (dir, runtime, mut plugin) = connected(&[]).await;
    drop(runtime);
    soon(plugin.connected.wait_for(|connected| !*connected)).await.unwrap();
    let mut runtime = Runtime::start(&dir, &[]).await;
    plugin.synchronized().await;
    assert_eq!(runtime.plugins().await, 1);
    runtime.act("run").await;
    assert!(matches!(plugin.call().await, Call::Run(_)));
}
