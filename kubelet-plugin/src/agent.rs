//! Puts the agent together, runs it, and takes it down in order.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Api, Client};
use netclaim_driver::attach::journal::{Journal, Ownership};
use netclaim_driver::attach::{Attacher, CniNetwork, PodState, boot_id};
use netclaim_driver::cni::{Cache, Runtime, close_inherited_descriptors};
use netclaim_driver::links::Links;
use netclaim_driver::nri::{self, PluginConfig};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::container::make_sysctls_writable;
use crate::dra::{self, Registration};
use crate::gate::cdi::{CdiSpecs, HookCommand};
use crate::gate::keeper::GateKeeper;
use crate::gate::markers::Markers;
use crate::gate::server;
use crate::metrics::Metrics;
use crate::node::NodeAgent;
use crate::nri::{Pods, RuntimeEvents};
use crate::parent::STARTS;
use crate::publishing::Devices;
use crate::sockets::{Sockets, with_tokio};
use crate::status::StatusWriter;
use crate::{http, watching};

/// The same, while the runtime holds up every pod of the node.
const LOOK_SOON_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the API server may take to say whether a pod is there.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs the agent until it is told to stop, or a part of it cannot go on.
///
/// # Errors
/// What could not be set up, or which part ended; a restart is the cure for the latter.
pub(crate) fn start(args: Args, sockets: Sockets) -> Result<ExitCode> {
    // Before anything is opened: CNI plugins inherit what our own parent left open.
    close_inherited_descriptors()?;
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("no TLS crypto provider"))?;
    if !args.single_process {
        // Where it is not the first process of a container, its end is not ours by itself.
        set_pdeathsig(Signal::SIGKILL).context("cannot tie the agent's life to its parent's")?;
    }
    // Two threads: the work is in the plugins, and the agent's memory is counted.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(args, sockets))?;
    Ok(ExitCode::SUCCESS)
}

async fn run(args: Args, sockets: Sockets) -> Result<()> {
    let Sockets { calls, gate: gate_socket, registration, visible } = sockets;
    let stop = stop_signal()?;
    if let Err(error) = make_sysctls_writable() {
        tracing::warn!(%error, "/proc/sys stays read-only: plugins that set sysctls will fail");
    }
    let client = client(args.kubeconfig.as_deref()).await?;
    let metrics = Arc::new(Metrics::default());
    let boot = boot_id().context("cannot read the boot id")?;

    // One agent at a time: the next one starts while the last one ends.
    let journal = Journal::open(args.journal_dir())?;
    tokio::pin!(stop);
    let _ownership = tokio::select! {
        ownership = own(&journal) => ownership?,
        () = &mut stop => return Ok(()),
    };

    // What attaches, and what holds containers until it has.
    let hook =
        HookCommand { path: args.installed_hook(), socket: args.gate_socket(), markers: args.marker_dir() };
    install_hook(args.hook.clone(), &hook.path)?;
    let loaded = journal.load()?;
    for file in &loaded.unreadable {
        let (path, reason) = (file.path.display(), &file.reason);
        tracing::error!(%path, reason, "a journal file is kept but not understood: a DEL may be owed");
    }
    metrics.restarts.set(restarts());
    metrics.unreadable.set(i64::try_from(loaded.unreadable.len()).unwrap_or(i64::MAX));
    let specs = CdiSpecs::new(&args.cdi_dir, &args.driver_name, hook.clone())
        .context("cannot use the CDI directory")?;
    let markers = Markers::new(&args.marker_dir()).context("cannot use the run directory")?;
    let (news, told) = mpsc::unbounded_channel();
    let gate = GateKeeper::take_over(specs.clone(), markers, &loaded.records, &boot, news.clone());
    let gate = Arc::new(gate.context("cannot take over the CDI specs and markers of an earlier agent")?);
    let plugins = Arc::new(cni_network(&args)?);
    let attacher = Attacher::start(Arc::clone(&plugins), Arc::clone(&gate), journal, loaded, &boot);

    let cancel = CancellationToken::new();
    let mut parts = Parts::default();

    // What the node has, and what of it is published.
    let links = Links::new("/sys");
    let (inventory_sender, inventory) = watch::channel(None);
    parts.spawn(
        "watching the node",
        watching::watch_node(client.clone(), args.node_name.clone(), links, inventory_sender, cancel.clone()),
    );
    let devices =
        Devices { client: client.clone(), driver: args.driver_name.clone(), node: args.node_name.clone() };
    parts.spawn(
        "publishing devices",
        devices.publish(inventory.clone(), Arc::clone(&attacher), cancel.clone()),
    );

    // What is told to the API server.
    let reporter = Reporter { controller: args.driver_name.clone(), instance: Some(args.node_name.clone()) };
    let writer =
        StatusWriter::new(client.clone(), &args.driver_name, Recorder::new(client.clone(), reporter));
    parts.spawn("writing statuses", writer.run(told));

    // Who asks.
    let gate_socket = with_tokio(gate_socket).context("cannot listen for hooks")?;
    let source = Arc::new(GateSource { attacher: Arc::clone(&attacher), pods: LivePods(client.clone()) });
    parts.spawn("answering hooks", server::serve(gate_socket, source));
    let (nri_connected, connected) = watch::channel(false);
    let events = RuntimeEvents::new(
        Arc::clone(&attacher),
        LivePods(client.clone()),
        specs,
        hook,
        &boot,
        Arc::clone(&metrics),
    );
    let config = PluginConfig::new(&args.nri_socket, "netclaim", 0)?;
    parts
        .spawn("hearing from the runtime", nri::run(config, Arc::new(events), nri_connected, cancel.clone()));
    let node = NodeAgent {
        client,
        driver: args.driver_name.clone(),
        node_name: args.node_name.clone(),
        attacher,
        gate,
        inventory,
        plugins,
        news,
        metrics: Arc::clone(&metrics),
    };
    let registered = serve_kubelet(&args, calls, registration, node, &mut parts, &cancel)?;
    let (ready, seen) = (readiness(registered, connected.clone()), connected);
    parts.spawn("counting", count_connection(seen, Arc::clone(&metrics)));
    let address = args.metrics_address;
    parts.spawn("serving metrics", async move {
        if let Err(error) = http::serve(address, metrics, ready).await {
            tracing::error!(%address, %error, "cannot serve metrics");
        }
    });
    tracing::info!(node = args.node_name, driver = args.driver_name, "netclaim agent started");

    let ended = tokio::select! {
        () = &mut stop => None,
        part = parts.ended() => Some(part),
    };
    cancel.cancel();
    // Registration first: no socket, no new calls. Plugins that run are finished by the next agent's DEL.
    if let Some(visible) = visible {
        visible.withdraw();
    }
    parts.finish().await;
    match ended {
        None => Ok(()),
        Some(part) => bail!("{part} has ended: restarting is the cure"),
    }
}

/// How often the parent has started an agent before this one.
fn restarts() -> i64 {
    std::env::var(STARTS).ok().and_then(|starts| starts.parse().ok()).unwrap_or_default()
}

/// What runs CNI plugins.
fn cni_network(args: &Args) -> Result<CniNetwork> {
    let mut runtime = Runtime::new(args.cni_bin_dir.clone())?;
    for (name, value) in &args.cni_env {
        runtime = runtime.with_env(name, value);
    }
    if let Some(path) = &args.cni_mount_namespace {
        runtime = runtime.in_mount_namespace(path)?;
    }
    Ok(CniNetwork::new(runtime, Cache::new(args.cni_cache_dir()).beside_a_journal(), args.cni_timeout))
}

/// The agent's tasks by what they do. The end of one is the end of the agent.
#[derive(Default)]
struct Parts(JoinSet<&'static str>);

impl Parts {
    fn spawn(&mut self, what: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(async move {
            part.await;
            what
        });
    }

    async fn ended(&mut self) -> &'static str {
        match self.0.join_next().await {
            Some(Ok(what)) => what,
            _ => "a part of the agent",
        }
    }

    /// Gives those that end by themselves a moment.
    async fn finish(&mut self) {
        let all = async { while self.0.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(2), all).await;
        self.0.abort_all();
    }
}

/// Waits until no other agent has the journal: a node's agent may be deleted by force while it still ends.
async fn own(journal: &Journal) -> Result<Ownership> {
    let mut told = false;
    loop {
        match journal.own()? {
            Some(ownership) => return Ok(ownership),
            None if told => {}
            None => tracing::warn!("another agent has the journal, waiting for its end"),
        }
        told = true;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn stop_signal() -> Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("stopping");
    })
}

async fn client(kubeconfig: Option<&Path>) -> Result<Client> {
    let config = match kubeconfig {
        Some(path) => {
            let kubeconfig = kube::config::Kubeconfig::read_from(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?
        }
        None => kube::Config::infer().await.context("found no kubeconfig and no service account")?,
    };
    Ok(Client::try_from(config)?)
}

/// Copies the hook to where the runtime finds it on the host.
fn install_hook(from: Option<PathBuf>, to: &Path) -> Result<()> {
    let beside = || Ok::<_, io::Error>(std::env::current_exe()?.with_file_name("netclaim-hook"));
    let from = from.map_or_else(beside, Ok)?;
    let install = || -> io::Result<()> {
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir)?;
        }
        let tmp = to.with_extension("new");
        fs::copy(&from, &tmp)?;
        fs::set_permissions(&tmp, fs::Permissions::from_mode(0o755))?;
        // A hook that runs keeps the old file.
        fs::rename(&tmp, to)
    };
    install().with_context(|| {
        format!("cannot install the hook {} as {}: see --hook", from.display(), to.display())
    })
}

/// Listens for the kubelet: the calls first, the registration when they are answered.
fn serve_kubelet(
    args: &Args,
    calls: UnixListener,
    registration_socket: UnixListener,
    node: NodeAgent,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> Result<watch::Receiver<bool>> {
    let listener = with_tokio(calls).context("cannot listen for the kubelet's calls")?;
    let cancelled = cancel.clone();
    parts.spawn("serving the kubelet", async move {
        if let Err(error) = dra::serve(listener, node, cancelled).await {
            tracing::error!(%error, "serving the kubelet failed");
        }
    });
    // The kubelet does not register anew by a socket that it knows.
    let (registered, seen) = watch::channel(restarts() > 0);
    let registration = Registration::new(&args.driver_name, args.calls_socket(), registered);
    let listener = with_tokio(registration_socket).context("cannot listen for the kubelet's registration")?;
    let cancelled = cancel.clone();
    parts.spawn("registering with the kubelet", async move {
        if let Err(error) = dra::register(listener, registration, cancelled).await {
            tracing::error!(%error, "registering with the kubelet failed");
        }
    });
    Ok(seen)
}

fn readiness(
    registered: watch::Receiver<bool>,
    connected: watch::Receiver<bool>,
) -> impl Fn() -> Result<(), String> + Clone {
    move || match (*registered.borrow(), *connected.borrow()) {
        (true, true) => Ok(()),
        (false, _) => Err("not registered with the kubelet".to_owned()),
        (_, false) => Err("not connected to the container runtime by NRI".to_owned()),
    }
}

async fn count_connection(mut connected: watch::Receiver<bool>, metrics: Arc<Metrics>) {
    loop {
        metrics.nri_connected.set(i64::from(*connected.borrow_and_update()));
        if connected.changed().await.is_err() {
            return;
        }
    }
}

/// What waiting hooks are answered from.
struct GateSource {
    attacher: Arc<Attacher<CniNetwork, GateKeeper>>,
    pods: LivePods,
}

/// Pods as the API server knows them.
struct LivePods(Client);

impl LivePods {
    fn of(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.0.clone(), namespace)
    }
}

impl Pods for LivePods {
    async fn is_never_restarted(&self, namespace: &str, name: &str, uid: &str) -> Option<bool> {
        let pods = self.of(namespace);
        let pod = tokio::time::timeout(LOOK_SOON_TIMEOUT, pods.get_opt(name)).await.ok()?.ok()??;
        let is_it = pod.metadata.uid.as_deref() == Some(uid);
        is_it.then(|| pod.spec.is_some_and(|spec| spec.restart_policy.as_deref() == Some("Never")))
    }
}

impl server::Source for GateSource {
    fn watch(&self, pod_uid: &str) -> Option<watch::Receiver<PodState>> {
        self.attacher.watch(pod_uid)
    }

    async fn is_going(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let pods = self.pods.of(namespace);
        let pod = tokio::time::timeout(LOOK_TIMEOUT, pods.get_metadata_opt(name)).await;
        match pod.unwrap_or(Err(kube::Error::Service(Box::from("no answer")))) {
            Ok(Some(pod)) => {
                pod.metadata.uid.as_deref() != Some(uid) || pod.metadata.deletion_timestamp.is_some()
            }
            Ok(None) => true,
            Err(_) => false,
        }
    }
}
