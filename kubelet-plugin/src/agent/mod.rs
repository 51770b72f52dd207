//! The agent: what its parts share, and how each part is started. `run` starts and ends them in order.

mod http;
mod memory;
pub(crate) mod metrics;
mod mounts;
mod parts;
mod programs;
mod readiness;
pub(crate) mod run;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Client;
use netclaim_api::history::Subject;
use netclaim_api::question::{Answer, Question};
use netclaim_cni::ipam::host_local::Reservations;
use netclaim_cni::{Cache, Runtime};
use netclaim_driver::attach::{Attacher, CniPlugins};
use netclaim_driver::failpoint::Failpoint;
use netclaim_driver::links::Links;
use netclaim_process::sockets::listen;
use tokio::sync::{mpsc, watch};

use self::metrics::{Metrics, PluginRuns};
use self::parts::Parts;
use self::programs::Programs;
use self::readiness::{Readiness, update_gauges, watch_journal};
use crate::addresses::keeper::BlockKeeper;
use crate::addresses::leases::Leases;
use crate::addresses::plan::PlanLock;
use crate::args::Args;
use crate::capture;
use crate::devices::availability::{Availability, Unavailable};
use crate::devices::node_labels::NodeLabels;
use crate::devices::publish::{Devices, Inputs};
use crate::gate::keeper::{GateFiles, GateKeeper};
use crate::gate::socket::{self, GateSource};
use crate::guarantee::Guarantee;
use crate::history::{self, History};
use crate::hot_attach;
use crate::inventory::block_watch::BlockWatch;
use crate::inventory::facts::NodeFacts;
use crate::inventory::watch::NodeWatch;
use crate::inventory::{Inventory, OwnBlocks};
use crate::node_networks::{self, Keeper, NodeJournal, NodeNetworks, NodeSandbox};
use crate::parent::agent_socket::{self, Health};
use crate::parent::leftovers::Mark;
use crate::parent::{IDENTITY, STARTS};
use crate::ping;
use crate::pods::owner::{Journal, ObjectRef, Plan};
use crate::pods::{Change, KnownPods, KubeletPods, NodePods, SeenPod};
use crate::prepare::call::{Calls, NodeAgent};
use crate::prepare::handover;
use crate::prepare::revise::{Mend, Mender, Reviser};
use crate::questions;
use crate::repair::Repairer;
use crate::reports::spans::{self, Spans};
use crate::reports::{Events, StatusWriter, Update, report_cut_off};
use crate::runtime::connection::{Connection, NotConnected};
use crate::runtime::nri_events::RuntimeEvents;
use crate::runtime::primary::{self, PrimarySource};
use crate::runtime::sandboxes::Sandboxes;
use crate::sweep::{Intervals, Sweep};
use crate::traffic::{self, metrics::TrafficReader};
use crate::waking::{self, Observed, Patcher, Waker, Waking};

/// How long plugins may delay the end of the agent. The next agent undoes what they have not finished.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Values that most parts of the agent share.
pub(crate) struct Agent {
    pub(crate) args: Args,
    client: Client,
    events: Events,
    boot_id: String,
    metrics: Arc<Metrics>,
    spans: Arc<Spans>,
    pods: Arc<NodePods>,
    plugins: Arc<CniPlugins>,
    node_networks: Arc<NodeNetworks>,
    programs: (Programs, bool),
    /// Why no container with a claim can be created on this node.
    no_hook: watch::Sender<Option<String>>,
    journal: Journal,
    gate: Arc<GateKeeper>,
    history: Arc<History>,
    attacher: Arc<Attacher<CniPlugins, GateKeeper>>,
    reports: mpsc::UnboundedSender<Update>,
    blocks: watch::Receiver<OwnBlocks>,
    plan_lock: Arc<PlanLock>,
    leases: Arc<Leases>,
    mender: Arc<Mender>,
    guarantee: Option<Arc<Guarantee<CniPlugins, GateKeeper>>>,
    known_pods: Arc<KnownPods>,
    waker: Waker,
    waking: Option<waking::Events>,
    reservations: Reservations,
    /// Why nothing can be published on this API server.
    obstacle: watch::Sender<Option<String>>,
    pub(crate) parts: Parts,
}

impl Agent {
    /// Takes over what an earlier agent has attached.
    pub(crate) fn take_over(
        args: Args,
        client: Client,
        boot_id: String,
        metrics: Arc<Metrics>,
        (plugins, on_node): (Arc<CniPlugins>, CniPlugins),
        journal: Journal,
        reports: mpsc::UnboundedSender<Update>,
    ) -> Result<Self> {
        let programs = Programs::find(&args)?;
        let no_hook = watch::Sender::new(None);
        let all_current = programs.install_or_say(&no_hook);
        let loaded = journal.load()?;
        for file in &loaded.unreadable {
            let (path, reason) = (file.path.display(), &file.reason);
            tracing::error!(%path, reason, "keeping a journal file that cannot be read: a DEL may be owed");
        }
        metrics.restarts.inc_by(restarts());
        metrics.attachments.unreadable.set(i64::try_from(loaded.unreadable.len()).unwrap_or(i64::MAX));
        let files = GateFiles::open(&args)?;
        let (of_gate, spans) = (metrics.networks.clone(), Arc::<Spans>::default());
        let gate = GateKeeper::take_over(files, &loaded.records, &boot_id, reports.clone(), of_gate)?;
        let history = Arc::new(History::open(&args.run_dir, &loaded.records));
        let gate = Arc::new(gate.traced(Arc::clone(&spans)).noting(Arc::clone(&history)));
        Failpoint::TakenOver.reach();
        let attacher =
            Attacher::start(Arc::clone(&plugins), Arc::clone(&gate), journal.clone(), loaded, &boot_id);
        let (durable, of_boot) = args.node_journal_dirs(&boot_id);
        let node_journal = NodeJournal::open(durable, of_boot)?;
        let node_networks = Arc::new(NodeNetworks::take_over(on_node, node_journal, &boot_id)?);
        let known_pods = Arc::<KnownPods>::default();
        let (waker, waking) = waking::channel();
        Ok(Self {
            pods: Arc::new(NodePods::new(client.clone(), &args.node_name, Arc::clone(&known_pods))),
            events: Events::new(client.clone(), &args.driver_name, &args.node_name),
            programs: (programs, all_current),
            no_hook,
            blocks: watch::channel(OwnBlocks::default()).1,
            plan_lock: Arc::default(),
            leases: Arc::new(Leases::new(client.clone(), &args.node_name)),
            mender: Arc::default(),
            guarantee: None,
            known_pods,
            waker,
            waking: Some(waking).filter(|_| args.wake_pods),
            reservations: Reservations::default(),
            obstacle: watch::Sender::new(None),
            parts: Parts::default(),
            args,
            client,
            boot_id,
            metrics,
            spans,
            plugins,
            node_networks,
            journal,
            gate,
            history,
            attacher,
            reports,
        })
    }

    /// Starts to watch what the node has. Returns that, and the UID of the Node object.
    pub(crate) fn watch_node(
        &mut self,
    ) -> (watch::Receiver<Option<Arc<Inventory>>>, watch::Receiver<Option<String>>) {
        let (inventory_sender, inventory) = watch::channel(None);
        let (uid_sender, node_uid) = watch::channel(None);
        let (blocks_sender, blocks) = watch::channel(OwnBlocks::default());
        self.blocks = blocks;
        let of_blocks = BlockWatch {
            client: self.client.clone(),
            node: self.args.node_name.clone(),
            stale_after: self.args.node_gone_after / 2,
        };
        self.parts.start("watching blocks of addresses", |cancel| of_blocks.run(blocks_sender, cancel));
        let watch = NodeWatch {
            client: self.client.clone(),
            node: self.args.node_name.clone(),
            events: self.events.clone(),
            links: Links::new("/sys"),
            facts: NodeFacts::new(&self.args.links_dir(), &self.args.networks_dir()),
            blocks: self.blocks.clone(),
            made_here: self.node_networks.links(),
        };
        self.parts.start("watching the node", |cancel| watch.run(inventory_sender, uid_sender, cancel));
        (inventory, node_uid)
    }

    /// Starts to keep the node's blocks of addresses, and the leases of addresses that claims ask for.
    pub(crate) fn keep_addresses(&mut self, inventory: watch::Receiver<Option<Arc<Inventory>>>) {
        let keeper = BlockKeeper {
            client: self.client.clone(),
            blocks: self.blocks.clone(),
            inventory,
            plan_lock: Arc::clone(&self.plan_lock),
            metrics: self.metrics.addresses.clone(),
            reservations: self.reservations.clone(),
            idle_after: self.args.block_idle_after,
        };
        let reviser = Reviser {
            attacher: Arc::downgrade(&self.attacher),
            inventory: keeper.inventory.clone(),
            blocks: self.blocks.clone(),
            plan_lock: Arc::clone(&self.plan_lock),
            leases: Arc::clone(&self.leases),
            reservations: self.reservations.clone(),
            node_name: self.args.node_name.clone(),
            node_networks: self.node_networks.readiness(),
            mender: Arc::clone(&self.mender),
        };
        self.gate.revise_by(Arc::new(reviser));
        let attacher = Arc::clone(&self.attacher);
        self.parts.start_until_cancelled("keeping blocks of addresses", keeper.run(attacher));
        let (leases, attacher) = (Arc::clone(&self.leases), Arc::clone(&self.attacher));
        self.parts.start_until_cancelled("keeping leases of addresses", async move {
            leases.keep(&attacher).await;
        });
    }

    /// Starts to hold pods that were granted nothing to what is not granted.
    pub(crate) fn guarantee_bandwidth(&mut self, inventory: watch::Receiver<Option<Arc<Inventory>>>) {
        let guarantee = Guarantee::new(&self.attacher, inventory);
        self.gate.limit_by(Arc::clone(&guarantee) as _);
        self.guarantee = Some(Arc::clone(&guarantee));
        self.parts.start_until_cancelled("guaranteeing bandwidth", guarantee.run());
    }

    /// Starts to set up on the node what pods' ClaimNetworks need there. Returns those that are not set up.
    fn keep_node_networks(
        &mut self,
        inventory: watch::Receiver<Option<Arc<Inventory>>>,
        node_uid: watch::Receiver<Option<String>>,
    ) -> Result<watch::Receiver<Arc<Unavailable>>> {
        let keeper = Keeper {
            networks: Arc::clone(&self.node_networks),
            pods: Arc::clone(&self.attacher),
            sandbox: NodeSandbox::open(&self.boot_id).context("cannot use the node's network namespace")?,
            inventory,
            node: self.args.node_name.clone(),
            node_uid,
            events: self.events.clone(),
            metrics: self.metrics.set_up.clone(),
        };
        let (sender, not_set_up) = watch::channel(Arc::default());
        self.parts.start_until_cancelled("setting networks up on the node", keeper.run(sender));
        let sweep = node_networks::Sweep {
            networks: Arc::clone(&self.node_networks),
            intervals: self.intervals(),
            metrics: self.metrics.sweeps.clone(),
        };
        self.parts.start("sweeping what is set up on the node", |cancel| sweep.run(cancel));
        Ok(not_set_up)
    }

    fn intervals(&self) -> Intervals {
        Intervals {
            gc: self.args.gc_period,
            check: self.args.check_period,
            orphan_after: self.args.orphan_after,
        }
    }

    /// Starts to publish the node's devices, and to label the node for those of the whole cluster. Returns
    /// their health.
    pub(crate) fn publish_devices(
        &mut self,
        inventory: watch::Receiver<Option<Arc<Inventory>>>,
        node_uid: watch::Receiver<Option<String>>,
    ) -> Result<Health> {
        let (unavailable_sender, unavailable) = watch::channel(None);
        let not_set_up = self.keep_node_networks(inventory.clone(), node_uid.clone())?;
        let attacher = Arc::clone(&self.attacher);
        let availability = Availability {
            plugins: Arc::clone(&self.plugins),
            changed: Box::new(move || attacher.retry_permanent()),
            node: self.args.node_name.clone(),
            not_set_up,
            period: self.args.status_period,
            metrics: self.metrics.networks.clone(),
            of_plugins: self.metrics.plugins.clone(),
        };
        let (failed_adds_sender, failed_adds) = mpsc::unbounded_channel();
        self.gate.report_failed_adds(failed_adds_sender);
        self.parts.start_until_cancelled(
            "checking the availability of ClaimNetworks",
            availability.watch(inventory.clone(), failed_adds, unavailable_sender),
        );
        let labels = NodeLabels {
            client: self.client.clone(),
            node: self.args.node_name.clone(),
            inventory: inventory.clone(),
            unavailable: unavailable.clone(),
            node_uid: node_uid.clone(),
        };
        self.parts.start_until_cancelled("labelling the node", labels.keep());
        let (health_sender, health) = watch::channel(Arc::default());
        let devices = Devices {
            client: self.client.clone(),
            driver: self.args.driver_name.clone(),
            node: self.args.node_name.clone(),
            links: Links::new("/sys"),
            metrics: self.metrics.pool.clone(),
            events: self.events.clone(),
            reservations: self.reservations.clone(),
            obstacle: self.obstacle.clone(),
        };
        let no_hook = self.no_hook.subscribe();
        let (inputs, attacher) =
            (Inputs { inventory, unavailable, node_uid, no_hook }, Arc::clone(&self.attacher));
        self.parts
            .start("publishing devices", |cancel| devices.publish(inputs, attacher, health_sender, cancel));
        Ok(health)
    }

    /// Starts to report to the API server.
    pub(crate) fn write_statuses(&mut self, reported: mpsc::UnboundedReceiver<Update>, health: Health) {
        let writer = StatusWriter::new(self.client.clone(), &self.args.driver_name, self.events.clone());
        let mut writer = writer.traced(Arc::clone(&self.spans));
        if self.args.annotate_pods {
            let annotations = writer.annotate(Arc::clone(&self.pods));
            self.parts.start("annotating pods", |_| annotations.run());
        }
        let gates = writer.keep_gates(Arc::clone(&self.pods), health.clone());
        let again = report_cut_off(health, Arc::clone(&self.attacher));
        self.parts.start_until_cancelled("following the health of devices", again);
        self.parts.start("keeping readiness gates", |_| gates.run());
        self.parts.start("writing statuses", |_| writer.run(reported));
    }

    /// Starts to follow the kubelet's pods, and to wake those that wait for its next look.
    pub(crate) fn wake_pods(&mut self) {
        let (changes, changed) = mpsc::unbounded_channel::<Change>();
        let kubelet =
            KubeletPods { socket: self.args.pods_socket(), known: Arc::clone(&self.known_pods), changes };
        self.parts.start_until_cancelled("following the kubelet's pods", kubelet.follow());
        let Some(events) = self.waking.take() else { return };
        let attacher = Arc::clone(&self.attacher);
        let waking = Waking {
            pods: Arc::clone(&self.pods),
            patcher: Patcher::new(self.client.clone(), &self.args.driver_name),
            is_held: move |seen: &SeenPod| {
                let is_its = |plan: &Plan| {
                    let claim = &plan.owner.claim;
                    claim.namespace == seen.pod.namespace && seen.claims.contains(&claim.name)
                };
                seen.waits && attacher.plans(is_its).contains(&true)
            },
            metrics: self.metrics.wakes.clone(),
        };
        self.parts.start_until_cancelled("waking pods", waking.run(events, changed));
    }

    /// Starts to make again what has broken.
    pub(crate) fn repair(
        &mut self,
        inventory: watch::Receiver<Option<Arc<Inventory>>>,
        node_uid: watch::Receiver<Option<String>>,
    ) {
        let repairer = Repairer {
            attacher: Arc::clone(&self.attacher),
            inventory,
            node: self.args.node_name.clone(),
            node_uid,
            events: self.events.clone(),
            metrics: self.metrics.repairs.clone(),
        };
        self.parts.start_until_cancelled("repairing attachments", repairer.run());
    }

    /// Starts to look for what no event reports, beside the runtime's `sandboxes`.
    pub(crate) fn sweep(
        &mut self,
        sandboxes: &Arc<Sandboxes>,
        inventory: watch::Receiver<Option<Arc<Inventory>>>,
    ) {
        let sweep = Sweep {
            attacher: Arc::clone(&self.attacher),
            pods: Arc::clone(&self.pods),
            sandboxes: Arc::clone(sandboxes),
            boot_id: self.boot_id.clone(),
            intervals: self.intervals(),
            metrics: self.metrics.sweeps.clone(),
            inventory,
        };
        self.parts.start("sweeping", |cancel| sweep.run(cancel));
    }

    /// Starts to follow the container runtime and to answer hooks. Returns the runtime's sandboxes and the
    /// agent's readiness.
    pub(crate) fn follow_runtime(&mut self) -> Result<(Arc<Sandboxes>, Readiness)> {
        let socket = self.args.gate_socket();
        let hooks = listen(&socket);
        let hooks = hooks.with_context(|| format!("cannot listen for hooks on {}", socket.display()))?;
        let (connected_sender, connected) = watch::channel(false);
        let not_connected = NotConnected { socket: self.args.nri_socket.clone() };
        let sandboxes = Arc::new(Sandboxes::default());
        let connection = Connection {
            connected: connected.clone(),
            reason: not_connected.clone(),
            attacher: Arc::clone(&self.attacher),
            sandboxes: Arc::clone(&sandboxes),
            boot_id: self.boot_id.clone(),
        };
        self.parts.start_until_cancelled("watching the connection to the runtime", connection.watch());
        let source = Arc::new(GateSource {
            attacher: Arc::clone(&self.attacher),
            pods: Arc::clone(&self.pods),
            waits: self.metrics.waits.clone(),
        });
        self.parts.start_until_cancelled("answering hooks", socket::serve(hooks, source));
        if self.args.primary {
            let socket = self.args.primary_socket();
            let asked = listen(&socket);
            let asked =
                asked.with_context(|| format!("cannot listen for the runtime on {}", socket.display()))?;
            let source = Arc::new(PrimarySource {
                attacher: Arc::clone(&self.attacher),
                sandboxes: Arc::clone(&sandboxes),
                boot_id: self.boot_id.clone(),
                cluster: self.args.cluster_cidrs.clone(),
            });
            self.parts.start_until_cancelled("attaching primary networks", primary::serve(asked, source));
        }
        let events = Arc::new(RuntimeEvents {
            attacher: Arc::clone(&self.attacher),
            pods: Arc::clone(&self.pods),
            waker: self.waker.clone(),
            gate: Arc::clone(&self.gate),
            sandboxes: Arc::clone(&sandboxes),
            boot_id: self.boot_id.clone(),
            attach_seconds: self.metrics.attach_seconds.clone(),
            inspecting: Default::default(),
            deciding: Default::default(),
            refused: Default::default(),
        });
        // The parent's end, which is connected to the runtime itself.
        let socket = self.args.runtime_socket();
        self.parts.start("following the runtime", |cancel| {
            netclaim_nri::run(socket, IDENTITY, events, connected_sender, cancel)
        });
        let readiness = Readiness {
            journal: self.journal.health(),
            no_hook: self.no_hook.subscribe(),
            obstacle: self.obstacle.subscribe(),
            connected,
            not_connected,
            registered: self.args.started_note(),
            kubelet_dir: self.args.kubelet_dir.clone(),
        };
        Ok((sandboxes, readiness))
    }

    /// Starts to answer the kubelet's calls, which the parent passes on.
    pub(crate) fn serve_kubelet(
        &mut self,
        inventory: watch::Receiver<Option<Arc<Inventory>>>,
        sandboxes: Arc<Sandboxes>,
        health: Health,
    ) -> Result<()> {
        let known = inventory.clone();
        let node = Arc::new(NodeAgent {
            client: self.client.clone(),
            driver: self.args.driver_name.clone(),
            node_name: self.args.node_name.clone(),
            boot_id: self.boot_id.clone(),
            cluster_cidrs: self.args.cluster_cidrs.clone(),
            primary: self.args.primary,
            attacher: Arc::clone(&self.attacher),
            gate: Arc::clone(&self.gate),
            inventory,
            plugins: Arc::clone(&self.plugins),
            sandboxes,
            pods: Arc::clone(&self.pods),
            events: self.events.clone(),
            reports: self.reports.clone(),
            plan_lock: Arc::clone(&self.plan_lock),
            leases: Arc::clone(&self.leases),
            calls: Calls::default(),
            metrics: self.metrics.calls.clone(),
            spans: Arc::clone(&self.spans),
            reservations: self.reservations.clone(),
            waker: self.waker.clone(),
            mended: Default::default(),
            no_hook: self.no_hook.subscribe(),
        });
        let mender: Arc<dyn Mend> = Arc::clone(&node) as _;
        let _ = self.mender.set(Arc::downgrade(&mender));
        self.parts.start_until_cancelled("handing claims over", handover::run(Arc::clone(&node)));
        if self.args.hot_attach {
            let keeper = hot_attach::Keeper(Arc::clone(&node));
            self.parts.start_until_cancelled("attaching running pods", keeper.run());
        }
        let socket = self.args.agent_socket();
        let calls = listen(&socket);
        let calls = calls.with_context(|| format!("cannot listen for calls on {}", socket.display()))?;
        let socket = self.args.questions_socket();
        let asked = listen(&socket);
        let asked = asked.with_context(|| format!("cannot listen for questions on {}", socket.display()))?;
        let (answering, readiness) = (Arc::clone(&node), self.node_networks.readiness());
        let (history, attached) = (self.history.files().clone(), Arc::clone(&self.attacher));
        let (events, may_capture) = (self.events.clone(), self.args.allow_capture);
        let guarantee = self.guarantee.clone();
        self.parts.start_until_cancelled(
            "answering questions",
            questions::serve(asked, move |question| {
                let (node, readiness, history) = (Arc::clone(&answering), readiness.clone(), history.clone());
                let (attacher, events) = (Arc::clone(&attached), events.clone());
                let tell = move |pod: &ObjectRef, reason, note| events.note_pod(pod, reason, "Capture", note);
                let (known, guarantee) = (known.clone(), guarantee.clone());
                async move {
                    match question {
                        Question::Network(name) => {
                            Answer::DryRun(Box::new(node.dry_run(&name, &readiness).await))
                        }
                        Question::Who(subject) => answer_of(history, subject).await,
                        Question::Traffic(of) => {
                            let shares = guarantee.map(|guarantee| guarantee.shares()).unwrap_or_default();
                            Answer::Traffic(traffic::measure(&attacher, &of, &shares).await)
                        }
                        Question::Capture(of) => capture::permit(&*attacher, may_capture, &of, tell),
                        Question::Ping(run) => {
                            let known = known.borrow().clone();
                            ping::probe(&run, &node.node_name, known.as_deref(), &attacher).await
                        }
                    }
                }
            }),
        );
        let attacher = Arc::clone(&self.attacher);
        let holder =
            move |claim: &str| attacher.plans_of(claim).into_iter().next().map(|plan| plan.owner.pod.clone());
        let node = Arc::new(Observed { node, waker: self.waker.clone(), holder });
        self.parts.start_until_cancelled("answering the kubelet", agent_socket::serve(calls, node, health));
        Ok(())
    }

    /// Starts the upkeep of the process: memory, programs, gauges, metrics and probes.
    pub(crate) fn serve_process(
        &mut self,
        inventory: watch::Receiver<Option<Arc<Inventory>>>,
        readiness: Readiness,
    ) {
        let (parts, metrics) = (&mut self.parts, &self.metrics);
        parts.start_until_cancelled("trimming memory", memory::trim_regularly());
        let (programs, all_current) = self.programs.clone();
        let installing =
            programs.keep_installing(all_current, self.no_hook.clone(), metrics.outdated.clone());
        parts.start_until_cancelled("installing programs", installing);
        let journal = watch_journal(self.journal.clone(), metrics.attachments.clone());
        parts.start_until_cancelled("watching the journal", journal);
        let attachments = metrics.attachments.clone();
        let gauges = update_gauges(readiness.connected.clone(), Arc::clone(&self.attacher), attachments);
        parts.start("updating gauges", |_| gauges);
        let of_cluster = readiness.clone();
        let (address, metrics) = (self.args.metrics_address, Arc::clone(metrics));
        let traffic = TrafficReader::new(metrics.traffic.clone(), Arc::clone(&self.attacher), inventory);
        let serve_metrics =
            http::serve_metrics(address, metrics, Arc::new(traffic), move || of_cluster.check());
        parts.start_until_cancelled("serving metrics", serve_metrics);
        parts.start_until_cancelled(
            "serving probes",
            http::serve_health(self.args.health_address, move || readiness.check()),
        );
    }

    /// Stops the parts, and waits for plugins and for the last reports.
    pub(crate) async fn stop(self) {
        tracing::info!("stopping");
        // No client asks any more; the next agent creates its own sockets as soon as it has the journal.
        self.parts.cancel();
        let args = &self.args;
        let sockets =
            [args.agent_socket(), args.gate_socket(), args.questions_socket(), args.primary_socket()];
        for socket in sockets {
            let _ = fs::remove_file(socket);
        }
        let drained = async { tokio::join!(self.attacher.drain(), self.node_networks.drain()) };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!("plugins still run: the next agent undoes what they do and does it again");
        }
        self.into_parts().finish().await;
    }

    /// Drops all but the parts. With the last sender of reports, the status writer ends.
    fn into_parts(self) -> Parts {
        self.parts
    }
}

/// What the history says of the subject.
async fn answer_of(history: history::Files, subject: Subject) -> Answer {
    match tokio::task::spawn_blocking(move || history.find(&subject)).await {
        Ok(Ok(entries)) => Answer::History(entries),
        Ok(Err(error)) => Answer::Error(format!("the agent cannot read its history: {error}")),
        Err(_) => Answer::Error("the agent is ending".to_owned()),
    }
}

/// How many agents the parent has started before this one.
fn restarts() -> u64 {
    std::env::var(STARTS).ok().and_then(|starts| starts.parse().ok()).unwrap_or_default()
}

/// Returns what runs CNI plugins. `runs` measures them.
pub(crate) fn cni_plugins(args: &Args, mark: &Mark, runs: PluginRuns) -> Result<CniPlugins> {
    let own = args.installed_plugins();
    let mut runtime = Runtime::new(args.cni_bin_dir.iter().cloned().chain([own]).collect())?;
    for (name, value) in &args.cni_env {
        runtime = runtime.with_env(name, value);
    }
    let (name, value) = mark.variable();
    runtime = runtime.with_env(name, value).observed_by(Arc::new(runs)).with_trace_of(spans::context_of);
    if let Some(path) = &args.cni_mount_namespace {
        runtime = runtime.in_mount_namespace(path)?;
    }
    // Without it, all of RUN_DIR would be watched until it is there.
    make_run_dir(&args.cni_sockets)?;
    runtime = runtime.with_daemons(&args.cni_sockets, args.cni_daemons.iter().cloned());
    let cache = Cache::new(args.cni_cache_dir()).beside_a_journal();
    Ok(CniPlugins::new(runtime, cache, Links::new("/sys"), args.cni_timeout))
}

/// Creates the directory of sockets and markers, which only root may use.
pub(crate) fn make_run_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)
        .and_then(|()| fs::set_permissions(dir, fs::Permissions::from_mode(0o700)))
        .with_context(|| format!("cannot use the run directory {}", dir.display()))
}
