//! Puts the agent together, runs it, and takes it down in order.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use netclaim_cni::BANDWIDTH_PLUGIN;
use netclaim_cni::{Cache, Runtime, close_inherited_descriptors};
use netclaim_driver::attach::journal::{Journal, take_turn};
use netclaim_driver::attach::record::ObjectRef;
use netclaim_driver::attach::{Attacher, CniNetwork, PodState, boot_id};
use netclaim_driver::failpoint::Failpoint;
use netclaim_driver::links::Links;
use netclaim_driver::nri::{self, PluginConfig};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::devices::availability::Availability;
use crate::devices::publish::{Devices, News as DeviceNews};
use crate::gate::cdi::{CdiSpecs, HookCommand};
use crate::gate::keeper::GateKeeper;
use crate::gate::markers::Markers;
use crate::gate::metadata_files::MetadataFiles;
use crate::gate::socket;
use crate::inventory::providers::Providers;
use crate::inventory::watch::NodeWatch;
use crate::parent::leftovers::Mark;
use crate::parent::relay;
use crate::parent::{FIT, STARTS};
use crate::prepare::call::{Calls, NodeAgent};
use crate::prepare::handover;
use crate::process::args::Args;
use crate::process::http;
use crate::process::memory;
use crate::process::metrics::Metrics;
use crate::process::mounts::{make_room_for_tuning, make_sysctls_writable};
use crate::process::sockets::listen;
use crate::process::stop::Stop;
use crate::runtime::connection::{Connection, not_connected};
use crate::runtime::nri_events::{Pods, RuntimeEvents};
use crate::runtime::pods::NodePods;
use crate::runtime::sandboxes::Sandboxes;
use crate::runtime::sweep;
use crate::runtime::sweep::Sweep;
use crate::status::StatusWriter;

/// How long the API server may take to say whether a pod is there.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);
/// The same, while the runtime holds up every pod of the node.
const LOOK_SOON_TIMEOUT: Duration = Duration::from_millis(500);
/// How old a metric may be.
const COUNT_PERIOD: Duration = Duration::from_secs(10);
/// How often a state directory that takes nothing is looked at.
const PROBE_PERIOD: Duration = Duration::from_secs(5);
/// How often programs that could not be installed are tried again.
const INSTALL_PERIOD: Duration = Duration::from_secs(30);
/// How often an agent that stands by looks whether the other one has ended.
const OWN_BEAT: Duration = Duration::from_millis(50);
/// How long plugins that run may keep an agent that is told to stop; the next one undoes what they did not finish.
const LAST_OPERATIONS: Duration = Duration::from_secs(5);

/// Runs the agent until it is told to stop, or a part of it cannot go on.
///
/// # Errors
/// What could not be set up, or which part ended; a restart is the cure for the latter.
pub(crate) fn start(args: Args) -> Result<ExitCode> {
    // Where the parent is not the first process of a container, its end is not ours by itself.
    set_pdeathsig(Signal::SIGKILL).context("cannot tie the agent's life to its parent's")?;
    // Before anything is opened: CNI plugins inherit what our own parent left open.
    close_inherited_descriptors()?;
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("no TLS crypto provider"))?;
    // Two threads: the work is in the plugins, and the agent's memory is counted.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn run(args: Args) -> Result<()> {
    let mut stop = Stop::new()?;
    if let Err(error) = make_sysctls_writable() {
        tracing::warn!(%error, "/proc/sys stays read-only: plugins that set sysctls will fail");
    }
    if let Err(error) = make_room_for_tuning() {
        tracing::warn!(%error, "the plugin tuning will fail where it sets MTU or MAC address");
    }
    let client = client(args.kubeconfig.as_deref()).await?;
    let pods = LivePods(Arc::new(NodePods::new(client.clone(), &args.node_name)));
    let metrics = Arc::new(Metrics::default());
    let boot = boot_id().context("cannot read the boot id")?;
    // Held by the parent too, which lets it go when everything that was started here is gone.
    let lock =
        File::from(io::stdin().as_fd().try_clone_to_owned().context("no journal's lock on standard input")?);
    let mark = Mark::of(&lock).context("cannot look at the journal's lock")?;
    let plugins = Arc::new(cni_network(&args, &mark)?);
    let journal = Journal::open(args.journal_dir())?;
    make_run_dir(&args.run_dir)?;
    io::stdout().write_all(FIT).context("cannot tell the parent that the agent is fit")?;

    // One agent at a time: the next one stands by until the last one has ended.
    tokio::select! {
        owned = own(&lock) => owned?,
        () = stop.told() => return Ok(()),
    }
    mark.end_bearers().await;

    // What attaches, and what holds containers until it has.
    let hook =
        HookCommand { path: args.installed_hook(), socket: args.gate_socket(), markers: args.marker_dir() };
    let programs = Programs::of(&args)?;
    let programs_are_new = programs.install()?;
    let loaded = journal.load()?;
    let (probed, health) = (journal.clone(), journal.health());
    for file in &loaded.unreadable {
        let (path, reason) = (file.path.display(), &file.reason);
        tracing::error!(%path, reason, "a journal file is kept but not understood: a DEL may be owed");
    }
    metrics.restarts.set(restarts());
    metrics.unreadable.set(i64::try_from(loaded.unreadable.len()).unwrap_or(i64::MAX));
    let specs = CdiSpecs::new(&args.cdi_dir, &args.driver_name, hook.clone())
        .context("cannot use the CDI directory")?;
    let markers = Markers::new(&args.marker_dir()).context("cannot use the run directory")?;
    let metadata = MetadataFiles::new(&args.metadata_dir(), &args.cdi_dir, &args.driver_name)
        .context("cannot use the run directory")?;
    let (news, told) = mpsc::unbounded_channel();
    let gate = GateKeeper::take_over(specs, metadata, markers, &loaded.records, &boot, news.clone());
    let gate = Arc::new(gate.context("cannot take over the CDI specs and markers of an earlier agent")?);
    Failpoint::TakenOver.reach();
    let attacher = Attacher::start(Arc::clone(&plugins), Arc::clone(&gate), journal, loaded, &boot);

    let cancel = CancellationToken::new();
    let mut parts = Parts { tasks: JoinSet::new(), cancel: cancel.clone() };

    // What the node has, and what of it is published.
    let links = Links::new("/sys");
    let reporter = Reporter { controller: args.driver_name.clone(), instance: Some(args.node_name.clone()) };
    let (inventory_sender, inventory) = watch::channel(None);
    let node_watch = NodeWatch {
        client: client.clone(),
        node: args.node_name.clone(),
        reporter: reporter.clone(),
        links: links.clone(),
        providers: Providers::new(&args.links_dir()),
    };
    let (uid_sender, node_uid) = watch::channel(None);
    parts.spawn("watching the node", node_watch.run(inventory_sender, uid_sender, cancel.clone()));
    let (unavailable_sender, unavailable) = watch::channel(Arc::default());
    let availability = Availability {
        plugins: Arc::clone(&plugins),
        node: args.node_name.clone(),
        period: args.status_period,
        metrics: Arc::clone(&metrics),
    };
    parts.spawn_until_cancelled(
        "looking whether Networks are available",
        availability.watch(inventory.clone(), unavailable_sender),
    );
    let (health_sender, health_of_devices) = watch::channel(Arc::default());
    let device_news = DeviceNews { inventory: inventory.clone(), unavailable, node_uid };
    let devices = Devices {
        client: client.clone(),
        driver: args.driver_name.clone(),
        node: args.node_name.clone(),
        links,
        metrics: Arc::clone(&metrics),
    };
    parts.spawn(
        "publishing devices",
        devices.publish(device_news, Arc::clone(&attacher), health_sender, cancel.clone()),
    );

    // What is told to the API server.
    let writer =
        StatusWriter::new(client.clone(), &args.driver_name, Recorder::new(client.clone(), reporter));
    parts.spawn("writing statuses", writer.run(told));

    // What nobody tells about.
    let periods =
        sweep::Periods { gc: args.gc_period, check: args.check_period, orphan_after: args.orphan_after };
    let sweep = Sweep {
        attacher: Arc::clone(&attacher),
        pods: pods.clone(),
        boot_id: boot.clone(),
        periods,
        metrics: Arc::clone(&metrics),
    };
    parts.spawn("sweeping", sweep.run(cancel.clone()));

    // Who asks.
    let gate_socket = args.gate_socket();
    let hooks = listen(&gate_socket);
    let hooks = hooks.with_context(|| format!("cannot listen for hooks on {}", gate_socket.display()))?;
    let (nri_connected, connected) = watch::channel(false);
    let sandboxes = Arc::new(Sandboxes::default());
    let not_connected = not_connected(&args.nri_socket);
    let connection = Connection {
        connected: connected.clone(),
        reason: not_connected.clone(),
        attacher: Arc::clone(&attacher),
        sandboxes: Arc::clone(&sandboxes),
        boot_id: boot.clone(),
    };
    parts.spawn_until_cancelled("watching the connection to the runtime", connection.watch());
    let source = Arc::new(GateSource { attacher: Arc::clone(&attacher), pods: pods.clone() });
    parts.spawn_until_cancelled("answering hooks", socket::serve(hooks, source));
    let events = RuntimeEvents::new(
        Arc::clone(&attacher),
        pods.clone(),
        Arc::clone(&gate),
        Arc::clone(&sandboxes),
        hook,
        &boot,
        Arc::clone(&metrics),
    );
    let config = PluginConfig::new(&args.nri_socket, "netclaim", 0)?;
    parts
        .spawn("hearing from the runtime", nri::run(config, Arc::new(events), nri_connected, cancel.clone()));
    let node = Arc::new(NodeAgent {
        client,
        driver: args.driver_name.clone(),
        node_name: args.node_name.clone(),
        boot_id: boot,
        attacher: Arc::clone(&attacher),
        gate,
        inventory,
        plugins,
        sandboxes,
        news,
        turn: Mutex::default(),
        calls: Calls::default(),
        metrics: Arc::clone(&metrics),
    });
    parts.spawn_until_cancelled("handing claims over", handover::run(Arc::clone(&node)));
    let agent_socket = args.agent_socket();
    let calls = listen(&agent_socket);
    let calls = calls.with_context(|| format!("cannot listen for calls on {}", agent_socket.display()))?;
    parts.spawn_until_cancelled("answering the kubelet", relay::serve(calls, node, health_of_devices));
    let (ready, seen) = (readiness(connected.clone(), not_connected, health.clone()), connected);
    parts.spawn_until_cancelled("giving back memory", memory::give_back());
    parts.spawn_until_cancelled(
        "installing programs",
        install_again(programs, programs_are_new, Arc::clone(&metrics)),
    );
    parts.spawn_until_cancelled("watching the journal", watch_journal(probed, health, Arc::clone(&metrics)));
    parts.spawn("counting", count(seen, Arc::clone(&attacher), Arc::clone(&metrics)));
    parts.spawn_until_cancelled("serving metrics", http::serve_metrics(args.metrics_address, metrics));
    parts.spawn_until_cancelled("serving probes", http::serve_health(args.health_address, ready));
    tracing::info!(node = args.node_name, driver = args.driver_name, "netclaim agent started");

    let ended = tokio::select! {
        () = stop.told() => None,
        part = parts.ended() => Some(part),
    };
    tracing::info!("stopping");
    // Nobody asks any more; the next agent makes sockets of its own as soon as it owns the journal.
    cancel.cancel();
    for socket in [agent_socket, gate_socket] {
        let _ = fs::remove_file(socket);
    }
    if tokio::time::timeout(LAST_OPERATIONS, attacher.drain()).await.is_err() {
        tracing::warn!("plugins still run: what they do is undone and done again by the next agent");
    }
    // With the last of those who have news, the status writer ends.
    drop(attacher);
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
fn cni_network(args: &Args, mark: &Mark) -> Result<CniNetwork> {
    let own = args.installed_plugins();
    let mut runtime = Runtime::new(args.cni_bin_dir.iter().cloned().chain([own]).collect())?;
    for (name, value) in &args.cni_env {
        runtime = runtime.with_env(name, value);
    }
    let (name, value) = mark.variable();
    runtime = runtime.with_env(name, value);
    if let Some(path) = &args.cni_mount_namespace {
        runtime = runtime.in_mount_namespace(path)?;
    }
    let cache = Cache::new(args.cni_cache_dir()).beside_a_journal();
    Ok(CniNetwork::new(runtime, cache, Links::new("/sys"), args.cni_timeout))
}

/// The agent's tasks by what they do. The end of one is the end of the agent.
struct Parts {
    tasks: JoinSet<&'static str>,
    cancel: CancellationToken,
}

impl Parts {
    /// A part that ends by itself when it is to.
    fn spawn(&mut self, what: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            part.await;
            what
        });
    }

    /// A part that is dropped then.
    fn spawn_until_cancelled<T: Send>(
        &mut self,
        what: &'static str,
        part: impl Future<Output = T> + Send + 'static,
    ) {
        let cancel = self.cancel.clone();
        self.spawn(what, async move {
            cancel.run_until_cancelled(part).await;
        });
    }

    async fn ended(&mut self) -> &'static str {
        match self.tasks.join_next().await {
            Some(Ok(what)) => what,
            _ => "a part of the agent",
        }
    }

    /// Gives those that end by themselves a moment.
    async fn finish(&mut self) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(2), all).await;
        self.tasks.abort_all();
    }
}

/// Waits until no other agent has the journal.
async fn own(lock: &File) -> Result<()> {
    let mut told = false;
    while !take_turn(lock).context("cannot lock the journal")? {
        if !told {
            tracing::info!("another agent works on this node, standing by until it ends");
        }
        told = true;
        tokio::time::sleep(OWN_BEAT).await;
    }
    Ok(())
}

/// Sockets and markers, for nobody but root.
fn make_run_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)
        .and_then(|()| fs::set_permissions(dir, fs::Permissions::from_mode(0o700)))
        .with_context(|| format!("cannot use the run directory {}", dir.display()))
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

/// The programs that come with the agent, and where the host has them: each from its file to its path.
#[derive(Clone)]
struct Programs {
    hook: (PathBuf, PathBuf),
    plugins: Vec<(PathBuf, PathBuf)>,
}

impl Programs {
    /// Those of this installation.
    fn of(args: &Args) -> Result<Self> {
        let own = std::env::current_exe().context("cannot find this program")?;
        let hook = args.hook.clone().unwrap_or_else(|| own.with_file_name("netclaim-hook"));
        let mut plugins = Vec::new();
        let from = own.with_file_name("../libexec/cni");
        match from.read_dir() {
            // An agent that is run by hand.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(from = %from.display(), "the agent's own CNI plugins are not there: {BANDWIDTH_PLUGIN} is not installed");
            }
            found => {
                for plugin in found.with_context(|| format!("cannot read {}", from.display()))? {
                    let plugin = plugin?;
                    plugins.push((plugin.path(), args.installed_plugins().join(plugin.file_name())));
                }
            }
        }
        Ok(Self { hook: (hook, args.installed_hook()), plugins })
    }

    /// Installs them; `false` where those of an earlier agent have to do, for now: what is attached must be detached on
    /// a full disk too.
    ///
    /// # Errors
    /// When there is no hook then: no container could be created.
    fn install(&self) -> Result<bool> {
        let mut all_new = true;
        for (from, to) in std::iter::once(&self.hook).chain(&self.plugins) {
            if let Err(error) = install(from, to) {
                let (from, to) = (from.display(), to.display());
                tracing::warn!(%from, %to, %error, "cannot install a program: what an earlier agent installed is used");
                all_new = false;
            }
        }
        let (from, to) = &self.hook;
        ensure!(to.exists(), "cannot install the hook {} as {}: see --hook", from.display(), to.display());
        Ok(all_new)
    }
}

/// Copies a program, unless it is there. Processes that run the old one keep it.
fn install(from: &Path, to: &Path) -> io::Result<()> {
    let new = fs::read(from)?;
    let is_executable = |file: fs::Metadata| file.permissions().mode() & 0o755 == 0o755;
    if fs::read(to).is_ok_and(|known| known == new) && fs::metadata(to).is_ok_and(is_executable) {
        return Ok(());
    }
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir)?;
    }
    let tmp = to.with_extension("new");
    let put = fs::write(&tmp, new)
        .and_then(|()| fs::set_permissions(&tmp, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&tmp, to));
    put.inspect_err(|_| drop(fs::remove_file(&tmp)))
}

/// Installs programs that could not be, as soon as they can.
async fn install_again(programs: Programs, mut all_new: bool, metrics: Arc<Metrics>) {
    loop {
        metrics.outdated.set(i64::from(!all_new));
        if all_new {
            return std::future::pending().await;
        }
        tokio::time::sleep(INSTALL_PERIOD).await;
        let programs = programs.clone();
        let installed = tokio::task::spawn_blocking(move || programs.install()).await;
        all_new = matches!(installed, Ok(Ok(true)));
    }
}

fn readiness(
    connected: watch::Receiver<bool>,
    not_connected: String,
    health: watch::Receiver<Option<String>>,
) -> impl Fn() -> Result<(), String> + Clone {
    move || match (&*health.borrow(), *connected.borrow()) {
        (Some(trouble), _) => Err(format!("no pod can be attached: {trouble}")),
        (None, false) => Err(not_connected.clone()),
        (None, true) => Ok(()),
    }
}

/// Tells of a state directory that takes nothing, and looks whether it does again.
async fn watch_journal(journal: Journal, mut health: watch::Receiver<Option<String>>, metrics: Arc<Metrics>) {
    loop {
        let trouble = health.borrow_and_update().clone();
        metrics.journal_writable.set(i64::from(trouble.is_none()));
        let probe = tokio::time::sleep(PROBE_PERIOD);
        tokio::select! {
            changed = health.changed() => if changed.is_err() {
                return;
            },
            () = probe, if trouble.is_some() => {
                let journal = journal.clone();
                let _ = tokio::task::spawn_blocking(move || journal.probe()).await;
            }
        }
    }
}

/// Keeps the metrics that follow something else, until the runtime is let go of.
async fn count(
    mut connected: watch::Receiver<bool>,
    attacher: Arc<Attacher<CniNetwork, GateKeeper>>,
    metrics: Arc<Metrics>,
) {
    loop {
        metrics.nri_connected.set(i64::from(*connected.borrow_and_update()));
        metrics.panics.set(i64::try_from(attacher.panics()).unwrap_or(i64::MAX));
        metrics.illegal_moves.set(i64::try_from(attacher.illegal_moves()).unwrap_or(i64::MAX));
        if let Ok(Err(_)) = tokio::time::timeout(COUNT_PERIOD, connected.changed()).await {
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
#[derive(Clone)]
struct LivePods(Arc<NodePods>);

impl LivePods {
    /// The metadata of this very pod: `Some(None)` when it is gone or another has its name, `None` when the API server
    /// does not say.
    async fn metadata(&self, namespace: &str, name: &str, uid: &str) -> Option<Option<ObjectMeta>> {
        let look = self.0.metadata(namespace, name);
        let found = tokio::time::timeout(LOOK_TIMEOUT, look).await.ok()?.ok()?;
        Some(of_this_very_pod(found.map(|found| found.metadata), uid))
    }
}

/// What was found under a pod's name, unless another has the name by now.
fn of_this_very_pod(found: Option<ObjectMeta>, uid: &str) -> Option<ObjectMeta> {
    found.filter(|metadata| metadata.uid.as_deref() == Some(uid))
}

impl Pods for LivePods {
    async fn is_never_restarted(&self, namespace: &str, name: &str, uid: &str) -> Option<bool> {
        let look = self.0.pod(namespace, name);
        let pod = tokio::time::timeout(LOOK_SOON_TIMEOUT, look).await.ok()?.ok()??;
        let is_it = pod.metadata.uid.as_deref() == Some(uid);
        is_it.then(|| pod.spec.as_ref().is_some_and(has_containers_that_are_never_restarted))
    }
}

/// Whether the hook must not fail for the pod: for the whole of it, or for a container that says so itself.
fn has_containers_that_are_never_restarted(spec: &PodSpec) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut policies = containers.map(|container| &container.restart_policy).chain([&spec.restart_policy]);
    policies.any(|policy| policy.as_deref() == Some("Never"))
}

impl sweep::Pods for LivePods {
    async fn is_there(&self, pod: &ObjectRef) -> Option<bool> {
        Some(self.metadata(&pod.namespace, &pod.name, &pod.uid).await?.is_some())
    }
}

impl socket::Source for GateSource {
    fn watch(&self, pod_uid: &str) -> Option<watch::Receiver<PodState>> {
        self.attacher.watch(pod_uid)
    }

    async fn is_going(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let found = self.pods.metadata(namespace, name, uid).await;
        found.is_some_and(|pod| pod.is_none_or(|metadata| metadata.deletion_timestamp.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_container_that_is_never_restarted_makes_its_pod_impatient() {
        let is_impatient =
            |spec| has_containers_that_are_never_restarted(&serde_json::from_value(spec).unwrap());
        let container = |policy: Option<&str>| json!({"name": "c", "restartPolicy": policy});
        let never = Some("Never");
        assert!(is_impatient(json!({"restartPolicy": "Never", "containers": [container(None)]})));
        assert!(is_impatient(json!({"containers": [container(None), container(never)]})));
        assert!(is_impatient(json!({"containers": [container(None)], "initContainers": [container(never)]})));
        let patient = json!({"restartPolicy": "OnFailure", "containers": [container(None)], "initContainers": [container(Some("Always"))]});
        assert!(!is_impatient(patient));
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn an_agent_on_a_full_disk_makes_do_with_the_programs_of_an_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("image/hook"), dir.path().join("state/bin/hook"));
        let programs = Programs { hook: (from.clone(), to.clone()), plugins: Vec::new() };
        write(&from, "1");
        assert!(programs.install().unwrap());
        // A directory in the way of the new file: works for root too, unlike permissions.
        let obstacle = to.with_extension("new");
        fs::create_dir(&obstacle).unwrap();
        assert!(programs.install().unwrap(), "the same program needs no space");
        write(&from, "2");
        assert!(!programs.install().unwrap());
        assert_eq!(fs::read_to_string(&to).unwrap(), "1");
        fs::remove_file(&to).unwrap();
        programs.install().expect_err("no container could be created");
        fs::remove_dir(&obstacle).unwrap();
        assert!(programs.install().unwrap());
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn the_pod_that_has_the_name_by_now_is_another_one() {
        let found = || Some(ObjectMeta { uid: Some("new".to_owned()), ..ObjectMeta::default() });
        assert!(of_this_very_pod(found(), "new").is_some());
        assert_eq!(
            of_this_very_pod(found(), "old"),
            None,
            "the old one is gone, and what it has is an orphan's"
        );
        assert_eq!(of_this_very_pod(Some(ObjectMeta::default()), "old"), None);
    }
}
