//! The node's one NRI connection: the parent passes the runtime's events on to its agent.
//!
//! ```text
//!   runtime ── NRI ──> parent ── NRI, RUN_DIR/runtime-INSTANCE.sock ──> agent
//! ```
//!
//! While a plugin connects, containerd starts and stops nothing until the slowest stop of a container is over
//! (containerd issue 14083). So only the parent connects, once its agent has the journal, and the agent's
//! death is not seen by the runtime:
//!
//! * Events of sandboxes are answered at once while no agent works. The next agent gets a list of the
//!   sandboxes and then the events that no agent has answered.
//! * A container is refused while no agent works, if the journal has its pod, the pod is not attached, and
//!   CDI does not hold the container already. Other pods are not delayed.
//! * An agent that does not answer in time has to connect again, as it would have to at the runtime.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use netclaim_nri::{
    Adjustment, ConnectedPlugin, Container, Denial, Event, Handler, Identity, RelayError, RuntimeInfo,
    Sandbox,
};
use netclaim_process::files;
use netclaim_process::sockets::{self, listen, remove_dead};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::sandboxes::Sandboxes;
use crate::args::Args;
use crate::pods::owner::Journal;

/// How the parent introduces itself to the runtime, and the agent to the parent. The runtime asks this plugin
/// first: it skips those after one that answers with an error.
pub(crate) const IDENTITY: Identity = Identity { name: "netclaim", index: 0 };

/// What an agent is granted for an event that it gets late, because no agent worked when the runtime reported
/// it.
const GRANTED_LATE: Duration = Duration::from_secs(2);

/// The runtime's events on their way to the agent.
pub(super) struct RuntimeRelay {
    gate: Gate,
    shared: Mutex<Shared>,
    connected: watch::Receiver<bool>,
    cancel: CancellationToken,
    socket: PathBuf,
}

#[derive(Default)]
struct Shared {
    sandboxes: Sandboxes,
    runtime: Option<RuntimeInfo>,
    /// How many agents were given the list of sandboxes.
    agents: u64,
    /// The agent that works, after it has the list.
    agent: Option<Agent>,
    /// What is needed to connect to the runtime; `None` once that has begun.
    connector: Option<Connector>,
}

struct Connector {
    socket: PathBuf,
    connected: watch::Sender<bool>,
}

#[derive(Clone)]
struct Agent {
    number: u64,
    plugin: ConnectedPlugin,
    cancel: CancellationToken,
}

/// What the parent knows about containers without an agent.
struct Gate {
    journal: Journal,
    markers: PathBuf,
    /// The beginning of the names of this driver's CDI devices.
    devices: String,
}

impl Gate {
    /// Decides about a container without an agent.
    fn check(&self, sandbox: &Sandbox, container: &Container) -> Result<Adjustment, Denial> {
        let is_attached = self.markers.join(&sandbox.id).exists();
        // The runtime refuses such a container by its CDI device, or holds it in the hook.
        let is_held = container.cdi_devices.iter().any(|device| device.starts_with(&self.devices));
        if is_attached || is_held {
            return Ok(Adjustment::default());
        }
        match self.journal.has_pod(&sandbox.uid) {
            Ok(false) => Ok(Adjustment::default()),
            Ok(true) => Err(Denial(
                "the pod's networks are not attached yet, and the node's network agent is starting: its containers are \
                 created when they are there"
                    .to_owned(),
            )),
            Err(error) => Err(Denial(format!("cannot see whether the pod has networks: {error}"))),
        }
    }
}

impl RuntimeRelay {
    /// Listens for the agent. The runtime is connected when an agent asks for it, which it does when it has
    /// the journal.
    ///
    /// # Errors
    /// When the socket cannot be created.
    pub(super) fn start(args: &Args, journal: Journal) -> Result<Arc<Self>> {
        let socket = args.runtime_socket();
        remove_dead(&args.run_dir, Args::is_runtime_socket);
        let listener = listen(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        let gate =
            Gate { journal, markers: args.marker_dir(), devices: format!("{}/claim=", args.driver_name) };
        let (connected_sender, connected) = watch::channel(false);
        let connector = Connector { socket: args.nri_socket.clone(), connected: connected_sender };
        let shared = Shared { connector: Some(connector), ..Shared::default() };
        let relay = Arc::new(Self {
            gate,
            shared: Mutex::new(shared),
            connected,
            cancel: CancellationToken::new(),
            socket,
        });
        relay.listen_with(listener);
        Ok(relay)
    }

    fn listen_with(self: &Arc<Self>, listener: UnixListener) {
        let relay = Arc::clone(self);
        tokio::spawn(async move {
            let serving = sockets::serve(listener, |stream| Arc::clone(&relay).serve(stream));
            relay.cancel.run_until_cancelled(serving).await;
        });
    }

    /// Ends the connection to the runtime.
    pub(super) fn close(&self) {
        self.cancel.cancel();
        if let Err(error) = files::remove(&self.socket) {
            tracing::warn!(path = %self.socket.display(), %error, "cannot remove the socket of the runtime's events");
        }
    }

    /// Serves one agent until either end closes the connection.
    async fn serve(self: Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let (plugin, connection) = ConnectedPlugin::serve(stream);
        let cancel = self.cancel.child_token();
        let end = tokio::select! {
            end = connection => end,
            end = self.attend(plugin, cancel.clone()) => end,
            () = cancel.cancelled() => "the agent was late, or the parent ends".to_owned(),
        };
        tracing::debug!(end, "an agent hears no more of the runtime");
        cancel.cancel();
        let mut shared = self.lock();
        // Only if no later agent has taken its place.
        if shared.agent.as_ref().is_some_and(|agent| agent.cancel.is_cancelled()) {
            shared.agent = None;
        }
        Ok(())
    }

    /// Gives an agent the list of sandboxes and then their events. Returns why that has ended.
    async fn attend(self: &Arc<Self>, plugin: ConnectedPlugin, cancel: CancellationToken) -> String {
        plugin.registered().await;
        self.connect();
        let mut connected = self.connected.clone();
        if connected.wait_for(|connected| *connected).await.is_err() {
            return "the parent ends".to_owned();
        }
        if let Err(error) = self.introduce(plugin, cancel).await {
            return error.to_string();
        }
        // The agent is to know that it hears nothing any more.
        let _ = connected.wait_for(|connected| !*connected).await;
        "the container runtime has closed the connection".to_owned()
    }

    /// Connects to the runtime, if that has not begun.
    fn connect(self: &Arc<Self>) {
        if let Some(Connector { socket, connected }) = self.lock().connector.take() {
            let handler = Arc::new(FromRuntime(Arc::clone(self)));
            tokio::spawn(netclaim_nri::run(socket, IDENTITY, handler, connected, self.cancel.clone()));
        }
    }

    async fn introduce(
        self: &Arc<Self>,
        plugin: ConnectedPlugin,
        cancel: CancellationToken,
    ) -> Result<(), RelayError> {
        let (runtime, number, listed) = {
            let mut shared = self.lock();
            shared.agent = None;
            shared.agents += 1;
            (
                shared.runtime.clone().ok_or(RelayError::Closed)?,
                shared.agents,
                shared.sandboxes.list_for_next_agent(),
            )
        };
        plugin.configure(&runtime).await?;
        plugin.synchronize(&listed, runtime.request_timeout).await?;
        let agent = Agent { number, plugin, cancel };
        let due = {
            let mut shared = self.lock();
            if shared.agents != number {
                return Err(RelayError::Closed);
            }
            shared.agent = Some(agent.clone());
            shared.sandboxes.begin_all()
        };
        for event in due {
            self.catch_up(&agent, event);
        }
        Ok(())
    }

    /// Passes an event on that the runtime has its answer to.
    fn catch_up(self: &Arc<Self>, agent: &Agent, event: Event) {
        let (relay, agent) = (Arc::clone(self), agent.clone());
        tokio::spawn(async move {
            let mut next = Some(event);
            while let Some(event) = next {
                let outcome = agent.plugin.pass_on(&event, GRANTED_LATE).await;
                (_, next) = relay.finish(&agent, &event, outcome);
            }
        });
    }

    /// Notes what an agent made of an event. Returns its answer, and the next event of the sandbox.
    fn finish(
        &self,
        agent: &Agent,
        event: &Event,
        outcome: Result<(), RelayError>,
    ) -> (Result<(), Denial>, Option<Event>) {
        let answer = match outcome {
            Ok(()) => Ok(()),
            Err(RelayError::Denied(denial)) => Err(denial),
            Err(error) => {
                self.drop_agent(agent, &error);
                return (Ok(()), None);
            }
        };
        let mut shared = self.lock();
        // The next agent has the event by now, and handles it itself.
        let is_current = shared.agents == agent.number;
        (answer, if is_current { shared.sandboxes.handled(event) } else { None })
    }

    /// Lets go of an agent that has not answered. It connects again if it lives.
    fn drop_agent(&self, agent: &Agent, error: &RelayError) {
        tracing::warn!(%error, "the agent does not handle an event of the container runtime: the next one will");
        agent.cancel.cancel();
        let mut shared = self.lock();
        if shared.agents == agent.number {
            shared.agent = None;
        }
    }

    /// Passes an event on if an agent works, and keeps it for the next one otherwise.
    async fn pass_on(self: &Arc<Self>, event: Event, budget: Duration) -> Result<(), Denial> {
        let agent = {
            let mut shared = self.lock();
            let is_free = shared.sandboxes.note(&event);
            let agent = shared.agent.clone().filter(|_| is_free);
            if agent.is_some() {
                shared.sandboxes.begin(&event.sandbox().id);
            }
            agent
        };
        let Some(agent) = agent else { return Ok(()) };
        let outcome = agent.plugin.pass_on(&event, granted(budget)).await;
        let (answer, next) = self.finish(&agent, &event, outcome);
        if let Some(next) = next {
            self.catch_up(&agent, next);
        }
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to grant an agent so that the parent waits no longer than `budget`: it waits for three quarters of
/// it.
fn granted(budget: Duration) -> Duration {
    budget * 4 / 3
}

/// The handler that the runtime calls.
struct FromRuntime(Arc<RuntimeRelay>);

impl Handler for FromRuntime {
    fn configured(&self, runtime: &RuntimeInfo) {
        self.0.lock().runtime = Some(runtime.clone());
    }

    async fn synchronize(&self, sandboxes: Vec<Sandbox>) {
        let mut shared = self.0.lock();
        shared.sandboxes.replace(sandboxes);
        // An agent that has an earlier list connects again.
        shared.agents += 1;
        if let Some(agent) = shared.agent.take() {
            agent.cancel.cancel();
        }
    }

    async fn run_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) -> Result<(), Denial> {
        self.0.pass_on(Event::Run(sandbox), budget).await
    }

    async fn create_container(
        &self,
        sandbox: Sandbox,
        container: Container,
        budget: Duration,
    ) -> Result<Adjustment, Denial> {
        let Self(relay) = self;
        let agent = relay.lock().agent.clone();
        let Some(agent) = agent else { return relay.gate.check(&sandbox, &container) };
        match agent.plugin.create_container(&sandbox, &container, granted(budget)).await {
            Ok(adjustment) => Ok(adjustment),
            Err(RelayError::Denied(denial)) => Err(denial),
            Err(error) => {
                relay.drop_agent(&agent, &error);
                relay.gate.check(&sandbox, &container)
            }
        }
    }

    async fn stop_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) {
        // Neither event can be refused.
        let _ = self.0.pass_on(Event::Stop(sandbox), budget).await;
    }

    async fn remove_pod_sandbox(&self, sandbox: Sandbox, budget: Duration) {
        let _ = self.0.pass_on(Event::Remove(sandbox), budget).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use netclaim_driver::attach::Phase;
    use netclaim_nri::SandboxNetwork;
    use tokio::sync::{Semaphore, mpsc};
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::fixtures::record;

    /// What runtimes leave a handler by default.
    const BUDGET: Duration = Duration::from_millis(1200);
    /// Longer than any test waits unless it fails.
    const LONG: Duration = Duration::from_secs(10);
    /// An answer for which no agent was waited for.
    const AT_ONCE: Duration = Duration::from_millis(500);

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        timeout(LONG, future).await.expect("did not happen in time")
    }

    /// An agent that reports what it hears, and answers when it has a permit.
    struct FakeAgent {
        heard: mpsc::UnboundedSender<String>,
        permits: Semaphore,
    }

    impl FakeAgent {
        async fn hear(&self, event: String) {
            let _ = self.heard.send(event);
            drop(self.permits.acquire().await.unwrap());
        }
    }

    impl Handler for FakeAgent {
        fn configured(&self, _: &RuntimeInfo) {}

        async fn synchronize(&self, sandboxes: Vec<Sandbox>) {
            let ids: Vec<String> = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
            let _ = self.heard.send(format!("list {}", ids.join(" ")));
        }

        async fn run_pod_sandbox(&self, sandbox: Sandbox, _: Duration) -> Result<(), Denial> {
            self.hear(format!("run {}", sandbox.id)).await;
            Ok(())
        }

        async fn create_container(
            &self,
            sandbox: Sandbox,
            container: Container,
            _: Duration,
        ) -> Result<Adjustment, Denial> {
            self.hear(format!("create {}", sandbox.id)).await;
            match container.name.as_str() {
                "refused" => Err(Denial("the switch says no".to_owned())),
                "held" => Ok(Adjustment { create_runtime: vec![hook()] }),
                _ => Ok(Adjustment::default()),
            }
        }

        async fn stop_pod_sandbox(&self, sandbox: Sandbox, _: Duration) {
            self.hear(format!("stop {}", sandbox.id)).await;
        }

        async fn remove_pod_sandbox(&self, sandbox: Sandbox, _: Duration) {
            self.hear(format!("remove {}", sandbox.id)).await;
        }
    }

    fn hook() -> netclaim_nri::Hook {
        netclaim_nri::Hook {
            path: "/h".into(),
            args: vec!["h".into(), "s".into()],
            env: Vec::new(),
            timeout: Duration::from_secs(9),
        }
    }

    /// A running agent; it dies when it is dropped.
    struct Running {
        heard: mpsc::UnboundedReceiver<String>,
        connected: watch::Receiver<bool>,
        process: CancellationToken,
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.process.cancel();
        }
    }

    impl Running {
        async fn hears(&mut self, event: &str) {
            assert_eq!(soon(self.heard.recv()).await.as_deref(), Some(event));
        }

        /// Dies, and waits until the parent knows.
        async fn dies(self, node: &Node) {
            drop(self);
            soon(async {
                while node.relay.lock().agent.is_some() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await;
        }
    }

    struct Node {
        relay: Arc<RuntimeRelay>,
        runtime: FromRuntime,
        connected: watch::Sender<bool>,
        dir: tempfile::TempDir,
    }

    impl Node {
        /// A node whose runtime is connected.
        async fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("runtime-i.sock");
            let listener = listen(&socket).unwrap();
            let (connected, seen) = watch::channel(false);
            let gate = Gate {
                journal: Journal::open(dir.path().join("journal"), dir.path().join("run")).unwrap(),
                markers: dir.path().join("ready"),
                devices: "netclaim.dev/claim=".to_owned(),
            };
            let relay = Arc::new(RuntimeRelay {
                gate,
                shared: Mutex::default(),
                connected: seen,
                cancel: CancellationToken::new(),
                socket,
            });
            relay.listen_with(listener);
            let node = Self { runtime: FromRuntime(Arc::clone(&relay)), relay, connected, dir };
            node.runtime_connects(Vec::new()).await;
            node
        }

        async fn runtime_connects(&self, sandboxes: Vec<Sandbox>) {
            let request_timeout = Duration::from_secs(2);
            let runtime = RuntimeInfo { name: "containerd".into(), version: "2".into(), request_timeout };
            self.runtime.configured(&runtime);
            self.runtime.synchronize(sandboxes).await;
            self.connected.send_replace(true);
        }

        /// Starts an agent that answers at once, and waits until it works.
        async fn agent(&self, list: &str) -> Running {
            self.agent_with(Semaphore::MAX_PERMITS, list).await
        }

        /// As [`Self::agent`], and answers events only with permits.
        async fn agent_with(&self, permits: usize, list: &str) -> Running {
            let (sender, heard) = mpsc::unbounded_channel();
            let handler = Arc::new(FakeAgent { heard: sender, permits: Semaphore::new(permits) });
            let (connected_sender, connected) = watch::channel(false);
            let process = CancellationToken::new();
            let socket = self.relay.socket.clone();
            tokio::spawn(netclaim_nri::run(socket, IDENTITY, handler, connected_sender, process.clone()));
            let mut running = Running { heard, connected, process };
            running.hears(&format!("list {list}")).await;
            soon(async {
                while self.relay.lock().agent.is_none() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await;
            running
        }

        async fn run(&self, id: &str) {
            soon(self.runtime.run_pod_sandbox(sandbox(id), BUDGET)).await.unwrap();
        }

        async fn stop(&self, id: &str) {
            soon(self.runtime.stop_pod_sandbox(sandbox(id), BUDGET)).await;
        }

        async fn remove(&self, id: &str) {
            soon(self.runtime.remove_pod_sandbox(sandbox(id), BUDGET)).await;
        }

        async fn create(&self, id: &str, name: &str) -> Result<Adjustment, Denial> {
            soon(self.runtime.create_container(sandbox(id), container(name, &[]), BUDGET)).await
        }

        fn path(&self) -> &Path {
            self.dir.path()
        }
    }

    /// The sandbox of pod `p`, to which the fixtures attach, or of one without networks.
    fn sandbox(id: &str) -> Sandbox {
        let uid = if id.starts_with("plain") { "plain" } else { "p" };
        let network = SandboxNetwork::Namespace("/run/netns/a".into());
        Sandbox { id: id.into(), uid: uid.into(), name: "web".into(), namespace: "default".into(), network }
    }

    fn container(name: &str, devices: &[&str]) -> Container {
        let cdi_devices = devices.iter().map(|device| (*device).to_owned()).collect();
        Container { id: "c".into(), name: name.into(), cdi_devices }
    }

    #[tokio::test]
    async fn an_agent_hears_of_every_event_and_its_answers_reach_the_runtime() {
        let node = Node::new().await;
        let mut agent = node.agent("").await;
        node.run("s1").await;
        agent.hears("run s1").await;
        assert_eq!(node.create("s1", "app").await, Ok(Adjustment::default()));
        let held = node.create("s1", "held").await.unwrap();
        assert_eq!(held.create_runtime, [hook()]);
        assert_eq!(node.create("s1", "refused").await, Err(Denial("the switch says no".to_owned())));
        for _ in 0..3 {
            agent.hears("create s1").await;
        }
        node.stop("s1").await;
        agent.hears("stop s1").await;
        node.remove("s1").await;
        agent.hears("remove s1").await;
        agent.dies(&node).await;
        node.agent("").await;
    }

    #[tokio::test]
    async fn the_next_agent_hears_of_what_the_last_one_died_of_and_of_what_happened_since() {
        let node = Node::new().await;
        for (event, expected) in [("run", "list s1"), ("stop", "stop s1"), ("remove", "remove s1")] {
            let list = if event == "stop" { "s1" } else { "" };
            let mut dying = node.agent_with(0, list).await;
            if event == "remove" {
                // An agent that answered nothing hears of the end again.
                dying.hears("stop s1").await;
            }
            let call = async {
                match event {
                    "run" => node.run("s1").await,
                    "stop" => node.stop("s1").await,
                    _ => node.remove("s1").await,
                }
            };
            let dies = async {
                if event != "remove" {
                    dying.hears(&format!("{event} s1")).await;
                }
                dying.dies(&node).await;
            };
            let begin = Instant::now();
            tokio::join!(call, dies);
            assert!(begin.elapsed() < AT_ONCE, "the runtime waited {:?} for a dead agent", begin.elapsed());
            let list = if event == "run" { "s1" } else { "" };
            let mut next = node.agent(list).await;
            if event != "run" {
                next.hears(expected).await;
            }
            next.dies(&node).await;
        }
        let mut last = node.agent("").await;
        node.run("s2").await;
        // It may hear once more of the end of the first sandbox.
        while soon(last.heard.recv()).await.as_deref() != Some("run s2") {}
    }

    #[tokio::test]
    async fn a_container_of_a_pod_without_its_networks_is_refused_while_no_agent_works() {
        let node = Node::new().await;
        assert_eq!(node.create("s1", "app").await, Ok(Adjustment::default()), "the journal has no such pod");
        node.relay.gate.journal.write(&record("a", Phase::Planned)).unwrap();
        let refused = node.create("s1", "app").await.unwrap_err();
        assert!(refused.0.contains("not attached yet"), "{refused}");
        assert_eq!(node.create("plain-1", "app").await, Ok(Adjustment::default()));
        let names_claim = container("app", &["netclaim.dev/claim=a"]);
        let by_cdi = node.runtime.create_container(sandbox("s1"), names_claim, BUDGET).await;
        assert_eq!(by_cdi, Ok(Adjustment::default()), "its CDI device holds it");
        std::fs::create_dir(node.path().join("ready")).unwrap();
        std::fs::write(node.path().join("ready/s1"), "").unwrap();
        assert_eq!(node.create("s1", "app").await, Ok(Adjustment::default()), "its networks are attached");
        assert!(node.create("s2", "app").await.is_err(), "another sandbox of the pod");
    }

    #[tokio::test]
    async fn a_container_that_an_agent_dies_of_is_refused_if_its_pod_has_networks() {
        let node = Node::new().await;
        node.relay.gate.journal.write(&record("a", Phase::Planned)).unwrap();
        for (id, is_refused) in [("s1", true), ("plain-1", false)] {
            let mut dying = node.agent_with(0, "").await;
            let create = node.create(id, "app");
            let dies = async {
                dying.hears(&format!("create {id}")).await;
                dying.dies(&node).await;
            };
            let (created, ()) = tokio::join!(create, dies);
            assert_eq!(created.is_err(), is_refused, "{created:?}");
        }
    }

    #[tokio::test]
    async fn an_agent_that_does_not_answer_delays_one_event_and_connects_again() {
        let node = Node::new().await;
        let mut agent = node.agent("").await;
        // As if it were stopped: the event goes to a connection that nobody reads.
        let (silent, unread) = UnixStream::pair().unwrap();
        let (plugin, connection) = ConnectedPlugin::serve(silent);
        let connection = tokio::spawn(connection);
        if let Some(agent) = &mut node.relay.lock().agent {
            agent.plugin = plugin;
        }
        let begin = Instant::now();
        node.run("s1").await;
        assert!(
            begin.elapsed() >= BUDGET * 9 / 10 && begin.elapsed() < BUDGET * 7 / 6,
            "{:?}",
            begin.elapsed()
        );
        let begin = Instant::now();
        node.run("s2").await;
        assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
        agent.hears("list s1 s2").await;
        drop(unread);
        soon(connection).await.unwrap();
    }

    #[tokio::test]
    async fn an_agent_is_connected_only_while_the_runtime_is() {
        let node = Node::new().await;
        let mut agent = node.agent("").await;
        soon(agent.connected.wait_for(|connected| *connected)).await.unwrap();
        node.connected.send_replace(false);
        soon(agent.connected.wait_for(|connected| !*connected)).await.unwrap();
        node.runtime_connects(vec![sandbox("s1")]).await;
        agent.hears("list s1").await;
        soon(agent.connected.wait_for(|connected| *connected)).await.unwrap();
    }

    #[tokio::test]
    async fn a_list_that_needs_several_messages_arrives_whole() {
        let node = Node::new().await;
        let ids: Vec<String> = (10_000..12_500).map(|n| format!("s{n}")).collect();
        node.runtime_connects(ids.iter().map(|id| sandbox(id)).collect()).await;
        node.agent(&ids.join(" ")).await;
    }
}
