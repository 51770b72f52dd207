//! The plugin against NRI's own runtime side, in Go: `tests/nri-runtime`, which is what containerd and CRI-O contain.
//!
//! `cargo test -p netclaim-driver --test nri_real -- --ignored` needs Go 1.24 and its module cache or proxy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use netclaim_driver::nri::{
    Adjustment, Container, Handler, Hook, PluginConfig, RuntimeInfo, Sandbox, SandboxNetwork, run,
};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// More than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("did not happen in time")
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

/// What the simulated runtime says.
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

/// The simulated runtime; ends with this.
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

/// What the handler was told.
#[derive(Debug, PartialEq)]
enum Told {
    Configured(RuntimeInfo),
    Synchronized(Vec<Sandbox>, Vec<Container>),
    Run(Sandbox),
    Create(Sandbox, Container),
    Event(&'static str, String),
}

/// What the handler does when an event comes.
#[derive(Clone, Default)]
enum Script {
    #[default]
    Agree,
    Refuse(&'static str),
    Hook(Hook),
    /// Never answer.
    Hang,
    /// Keep the whole process from answering.
    BlockTheThread(Duration),
}

struct Scripted {
    script: Mutex<Script>,
    told: mpsc::UnboundedSender<Told>,
}

impl Scripted {
    fn script(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    async fn play(&self, told: Told) -> Result<Adjustment, String> {
        self.told.send(told).unwrap();
        let script = self.script.lock().unwrap().clone();
        match script {
            Script::Agree => Ok(Adjustment::default()),
            Script::Refuse(text) => Err(text.to_owned()),
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
        self.told.send(Told::Configured(runtime.clone())).unwrap();
    }

    async fn synchronize(&self, sandboxes: Vec<Sandbox>, containers: Vec<Container>) {
        self.told.send(Told::Synchronized(sandboxes, containers)).unwrap();
    }

    async fn run_pod_sandbox(&self, sandbox: Sandbox, _: Duration) -> Result<(), String> {
        self.play(Told::Run(sandbox)).await.map(drop)
    }

    async fn create_container(
        &self,
        sandbox: Sandbox,
        container: Container,
        _: Duration,
    ) -> Result<Adjustment, String> {
        self.play(Told::Create(sandbox, container)).await
    }

    async fn stop_container(&self, _: Sandbox, container: Container, _: Duration) {
        let _ = self.play(Told::Event("stop container", container.id)).await;
    }

    async fn remove_container(&self, _: Sandbox, container: Container, _: Duration) {
        let _ = self.play(Told::Event("remove container", container.id)).await;
    }

    async fn stop_pod_sandbox(&self, sandbox: Sandbox, _: Duration) {
        let _ = self.play(Told::Event("stop", sandbox.id)).await;
    }

    async fn remove_pod_sandbox(&self, sandbox: Sandbox, _: Duration) {
        let _ = self.play(Told::Event("remove", sandbox.id)).await;
    }
}

/// A plugin that runs; ends with this.
struct Plugin {
    handler: Arc<Scripted>,
    told: mpsc::UnboundedReceiver<Told>,
    connected: watch::Receiver<bool>,
    _cancel: DropGuard,
}

impl Plugin {
    fn start(dir: &TempDir) -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        let handler = Arc::new(Scripted { script: Mutex::default(), told: sender });
        let config = PluginConfig::new(dir.path().join("nri.sock"), "netclaim.dev", 0).unwrap();
        let (connected, watched) = watch::channel(false);
        let cancel = CancellationToken::new();
        tokio::spawn(run(config, Arc::clone(&handler), connected, cancel.clone()));
        Self { handler, told, connected: watched, _cancel: cancel.drop_guard() }
    }

    async fn told(&mut self) -> Told {
        soon(self.told.recv()).await.unwrap()
    }

    /// What every connection begins with.
    async fn told_of_connection(&mut self) -> (RuntimeInfo, Vec<Sandbox>, Vec<Container>) {
        let Told::Configured(runtime) = self.told().await else { panic!("not configured first") };
        let Told::Synchronized(sandboxes, containers) = self.told().await else { panic!("not synchronised") };
        soon(self.connected.wait_for(|connected| *connected)).await.unwrap();
        (runtime, sandboxes, containers)
    }
}

async fn connected(flags: &[&str]) -> (TempDir, Runtime, Plugin) {
    let dir = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::start(&dir, flags).await;
    let mut plugin = Plugin::start(&dir);
    plugin.told_of_connection().await;
    assert_eq!(runtime.plugins().await, 1);
    (dir, runtime, plugin)
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_real_runtime_takes_the_plugin_in_and_tells_it_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::start(&dir, &["-request-timeout", "3s"]).await;
    let mut plugin = Plugin::start(&dir);
    let (info, sandboxes, containers) = plugin.told_of_connection().await;
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
    assert_eq!(containers[0].cdi_devices, ["netclaim.dev/claim=1"]);
    assert_eq!(runtime.plugins().await, 1);
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_real_runtime_tells_every_event_of_a_pods_life() {
    let (_dir, mut runtime, mut plugin) = connected(&[]).await;
    assert_eq!(runtime.act("run").await.error, "");
    let Told::Run(sandbox) = plugin.told().await else { panic!("not told of the sandbox") };
    assert_eq!(
        (sandbox.uid.as_str(), sandbox.name.as_str(), sandbox.namespace.as_str()),
        ("uid-of-s1", "pod-of-s1", "default")
    );
    assert_eq!(sandbox.network, SandboxNetwork::Namespace("/run/netns/s1".into()));
    assert_eq!(sandbox.annotations["note"], "first\nsecond");

    assert_eq!(runtime.act("create").await.error, "");
    let Told::Create(created_in, container) = plugin.told().await else {
        panic!("not told of the container")
    };
    assert_eq!(created_in, sandbox);
    assert_eq!((container.id.as_str(), container.sandbox_id.as_str()), ("c1", "s1"));

    for (event, told) in [
        ("stop-container", Told::Event("stop container", "c1".to_owned())),
        ("remove-container", Told::Event("remove container", "c1".to_owned())),
        ("stop", Told::Event("stop", "s1".to_owned())),
        ("remove", Told::Event("remove", "s1".to_owned())),
    ] {
        assert_eq!(runtime.act(event).await.error, "");
        assert_eq!(plugin.told().await, told);
    }
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_pod_on_the_nodes_network_is_told_as_such() {
    let (_dir, mut runtime, mut plugin) = connected(&[]).await;
    runtime.send(serde_json::json!({"do": "run", "sandbox": "s2", "host": true})).await;
    assert_eq!(runtime.outcome().await.error, "");
    let Told::Run(sandbox) = plugin.told().await else { panic!("not told of the sandbox") };
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
async fn a_handler_that_hangs_does_not_cost_the_connection() {
    let (_dir, mut runtime, mut plugin) = connected(&["-request-timeout", "1s"]).await;
    plugin.handler.script(Script::Hang);
    for event in ["run", "stop-container", "remove-container", "stop", "remove"] {
        let outcome = runtime.act(event).await;
        assert_eq!(outcome.error, "");
        assert!(outcome.millis < 1000, "{event} took {} ms", outcome.millis);
        plugin.told().await;
    }
    let created = runtime.act("create").await;
    assert!(created.error.contains("had no answer within"), "{}", created.error);
    plugin.told().await;

    plugin.handler.script(Script::Agree);
    runtime.act("run").await;
    assert!(matches!(plugin.told().await, Told::Run(_)), "the runtime has dropped the plugin");
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_synchronisation_of_many_megabytes_arrives_whole() {
    let dir = tempfile::tempdir().unwrap();
    // 6 MiB: more than a message holds, so the runtime splits it.
    let flags = ["-sandboxes", "300", "-padding", "20972", "-request-timeout", "10s"];
    let mut runtime = Runtime::start(&dir, &flags).await;
    let mut plugin = Plugin::start(&dir);
    let (_, sandboxes, containers) = plugin.told_of_connection().await;
    assert_eq!(runtime.plugins().await, 1);
    assert_eq!((sandboxes.len(), containers.len()), (300, 300));
    for (number, sandbox) in sandboxes.iter().enumerate() {
        assert_eq!(sandbox.id, format!("listed-{number}"));
        assert_eq!(sandbox.annotations["padding"].len(), 20972);
    }
    assert_eq!(runtime.act("run").await.error, "");
    assert!(matches!(plugin.told().await, Told::Run(_)));
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_plugin_that_the_runtime_evicts_comes_back_and_is_synchronised_again() {
    let (_dir, mut runtime, mut plugin) = connected(&["-request-timeout", "300ms"]).await;
    plugin.handler.script(Script::BlockTheThread(Duration::from_secs(1)));
    runtime.send(serde_json::json!({"do": "run", "sandbox": "s1"})).await;
    assert!(matches!(plugin.told().await, Told::Run(_)));
    plugin.handler.script(Script::Agree);
    assert_eq!(runtime.plugins().await, 0, "the runtime has not evicted the plugin");
    let ran = runtime.outcome().await;
    assert_eq!(
        (ran.event.as_str(), ran.error.as_str()),
        ("run", ""),
        "the runtime does not fail open any more"
    );

    plugin.told_of_connection().await;
    assert_eq!(runtime.plugins().await, 1);
    runtime.act("run").await;
    assert!(matches!(plugin.told().await, Told::Run(_)));
}

#[tokio::test]
#[ignore = "needs Go"]
async fn a_real_runtime_that_restarts_is_found_again() {
    let (dir, runtime, mut plugin) = connected(&[]).await;
    drop(runtime);
    soon(plugin.connected.wait_for(|connected| !*connected)).await.unwrap();
    let mut runtime = Runtime::start(&dir, &[]).await;
    plugin.told_of_connection().await;
    assert_eq!(runtime.plugins().await, 1);
    runtime.act("run").await;
    assert!(matches!(plugin.told().await, Told::Run(_)));
}
