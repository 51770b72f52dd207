//! The agent's Prometheus metrics.

use std::path::Path;
use std::time::{Duration, Instant};

use netclaim_api::addresses;
use netclaim_api::device::DeviceName;
use netclaim_cni::{self as cni, PluginType, RunEnd, RunObserver};
use netclaim_driver::attach::{self, Operation, Phase};
use netclaim_process::label_values;
use netclaim_process::metrics::{Label, Registry};
use netclaim_process::traces::Counters;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::pods::owner::{Plan, PodState};

label_values! {
    /// A call of the kubelet.
    pub(crate) enum KubeletCall {
        Prepare = "Prepare",
        Unprepare = "Unprepare",
    }
}

label_values! {
    /// The result of a call for one claim.
    pub(crate) enum CallResult {
        Ok = "Ok",
        Error = "Error",
    }
}

label_values! {
    /// A kind of sweep.
    pub(crate) enum SweepKind {
        Gc = "Gc",
        Check = "Check",
        Orphan = "Orphan",
    }
}

label_values! {
    /// The result of a sweep for one network, attachment or claim.
    pub(crate) enum SweepResult {
        /// Nothing is wrong, or the sweep has corrected it.
        Ok = "Ok",
        /// A CHECK found a fault.
        Failed = "Failed",
        /// The sweep failed.
        Error = "Error",
        /// Nothing can be said.
        Skipped = "Skipped",
    }
}

label_values! {
    /// Why a pod is woken.
    pub(crate) enum WakeCause {
        /// The kubelet has registered the driver.
        Registered = "Registered",
        /// A claim of the pod has been released by its earlier pod.
        Released = "Released",
        /// The kubelet has the pod, and asks for no claim of it.
        NotPrepared = "NotPrepared",
        /// The networks of the pod are there, after a container was refused for lack of them.
        Attached = "Attached",
    }
}

label_values! {
    /// What became of it.
    pub(crate) enum WakeResult {
        /// The kubelet was told to look at the pod.
        Ok = "Ok",
        /// The agent may not wake pods.
        Forbidden = "Forbidden",
        /// The pod was gone.
        Gone = "Gone",
        /// The API server did not answer.
        Error = "Error",
    }
}

label_values! {
    /// How the wait of a container in its hook ended.
    pub(crate) enum WaitEnd {
        /// All networks of the pod are attached.
        Open = "Open",
        /// The pod goes away.
        Gone = "Gone",
        /// The hook or the agent ended first. The next hook or agent goes on.
        Lost = "Lost",
    }
}

label_values! {
    /// An operation of CNI plugins on one attachment.
    pub(crate) enum Verb {
        Add = "ADD",
        Del = "DEL",
    }
}

label_values! {
    /// How an operation ended.
    pub(crate) enum OperationEnd {
        /// It succeeded.
        Ok = "Ok",
        /// It failed, and is retried.
        Failed = "Failed",
        /// An ADD that is no longer wanted was ended.
        CutShort = "CutShort",
        /// A DEL is not retried, although something may be left.
        GivenUp = "GivenUp",
        /// After a DEL a link of the host is not back as it was.
        Stray = "Stray",
    }
}

label_values! {
    /// How a plugin's process ended.
    pub(crate) enum PluginEnd {
        /// It succeeded.
        Ok = "Ok",
        /// It reported an error, crashed, or could not be started.
        Failed = "Failed",
        /// The time of its network (`--cni-timeout`) was over: it was killed, or not even started.
        TimedOut = "TimedOut",
        /// It was killed because it is no longer wanted: its pod or the agent ends.
        CutShort = "CutShort",
    }
}

label_values! {
    /// How far an attachment in the journal is.
    pub(crate) enum InJournal {
        Planned = "Planned",
        Adding = "Adding",
        Attached = "Attached",
        Deleting = "Deleting",
        /// Nothing is owed but a link of the host, which is not back as it was.
        Stray = "Stray",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WakeLabels {
    cause: WakeCause,
    result: WakeResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SweepLabels {
    sweep: SweepKind,
    result: SweepResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NetworkLabels {
    network: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    plugin: String,
    path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    network: String,
    verb: Verb,
    outcome: OperationEnd,
}

/// Without the ClaimNetwork, because ClaimNetworks times plugins would be too many series: a cluster has hundreds of ClaimNetworks and a few types
/// of plugins. Ten types make some 300 series on a node. Only admins name types, so nobody removes the series of those that are gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    plugin: String,
    verb: Verb,
    outcome: PluginEnd,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabels {
    outcome: WaitEnd,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JournalLabels {
    phase: InJournal,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: KubeletCall,
    result: CallResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabels {
    network: String,
    family: &'static str,
    state: &'static str,
}

impl AddressLabels {
    const STATES: [&str; 2] = ["free", "used"];
    const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

    fn of(network: &str, family: addresses::Family, state: &'static str) -> Self {
        let family = match family {
            addresses::Family::V4 => "ipv4",
            addresses::Family::V6 => "ipv6",
        };
        Self { network: network.to_owned(), family, state }
    }
}

/// All metrics.
pub(crate) struct Metrics {
    registry: Registry,
    calls: Family<CallLabels, Counter>,
    sweeps: Family<SweepLabels, Counter>,
    woken: Family<WakeLabels, Counter>,
    networks: Family<NetworkLabels, Gauge>,
    plugins: Family<PluginLabels, Gauge>,
    addresses: Family<AddressLabels, Gauge>,
    attach: Histogram,
    operations: Family<OperationLabels, Histogram>,
    runs: Family<RunLabels, Histogram>,
    waits: Family<WaitLabels, Histogram>,
    journal: Family<JournalLabels, Gauge>,
    dels_failing: Gauge,
    /// 1 when no counters are published because the scheduler cannot work with them.
    pub(crate) without_counters: Gauge,
    /// 1 when the node's pool is published as it should be.
    pub(crate) pool_published: Gauge,
    /// Devices that the published pool lacks.
    pub(crate) devices_left_out: Gauge,
    /// 1 while the container runtime is connected by NRI.
    pub(crate) nri_connected: Gauge,
    /// Journal files that cannot be read.
    pub(crate) unreadable: Gauge,
    /// 1 while the journal can be written.
    pub(crate) journal_writable: Gauge,
    /// Events that the state machine of attachments refused.
    pub(crate) illegal_moves: Gauge,
    /// Panics in the tasks of pods.
    pub(crate) panics: Gauge,
    /// 1 while the node has the hook or a plugin of an earlier agent.
    pub(crate) outdated: Gauge,
    /// How many agents the parent has started before this one.
    pub(crate) restarts: Gauge,
    /// Pods with addresses of blocks that the node has lost.
    pub(crate) without_block: Gauge,
    /// Addresses of sandboxes that live, of which the journal knows nothing.
    pub(crate) forgotten: Gauge,
}

/// Measures from its creation to [`Timer::observe`].
pub(crate) struct Timer<'a> {
    start: Instant,
    histogram: &'a Histogram,
}

impl Timer<'_> {
    /// Records the time that has passed.
    pub(crate) fn observe(self) {
        self.histogram.observe(self.start.elapsed().as_secs_f64());
    }
}

/// Counts attachments, pod by pod.
pub(crate) struct AttachmentCount<'a> {
    metrics: &'a Metrics,
    /// In the order of [`InJournal::ALL`].
    phases: [i64; InJournal::ALL.len()],
    dels_failing: i64,
}

impl AttachmentCount<'_> {
    /// Counts those of a pod.
    pub(crate) fn add(&mut self, pod: &PodState) {
        for record in &pod.records {
            let phase = match record.phase {
                _ if record.stray.is_some() => InJournal::Stray,
                Phase::Planned => InJournal::Planned,
                Phase::Adding { .. } => InJournal::Adding,
                Phase::Attached { .. } => InJournal::Attached,
                Phase::Deleting { .. } => InJournal::Deleting,
            };
            let counts = InJournal::ALL.iter().zip(&mut self.phases);
            counts.filter(|(of, _)| **of == phase).for_each(|(_, count)| *count += 1);
        }
        self.dels_failing += i64::try_from(pod.dels_failing).unwrap_or(i64::MAX);
    }

    /// Sets the gauges.
    pub(crate) fn set(self) {
        for (phase, count) in InJournal::ALL.iter().copied().zip(self.phases) {
            self.metrics.journal.get_or_create(&JournalLabels { phase }).set(count);
        }
        self.metrics.dels_failing.set(self.dels_failing);
    }
}

/// From a plugin that only writes to the kernel to one that uses its whole timeout, in seconds.
const OPERATION_SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0];
/// From containers that come a moment too early to the hook's own timeout, in seconds.
const WAIT_SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 90.0];

impl Default for Metrics {
    fn default() -> Self {
        Self::new(Counters::default())
    }
}

impl Metrics {
    /// Metrics that have these numbers of spans among them.
    pub(crate) fn new(of_spans: Counters) -> Self {
        let mut registry = Registry::new("netclaim");
        let Counters { sent, lost } = of_spans;
        registry.add(
            "trace_spans_sent",
            "Spans of traces that the collector has taken; none unless an endpoint is set",
            [],
            sent,
        );
        registry.add(
            "trace_spans_lost",
            "Spans of traces that the collector did not take; those that did not fit the queue are not counted",
            [],
            lost,
        );
        let network = || Label::any("network", "a ClaimNetwork");
        Self {
            calls: registry.add(
                "claims",
                "Claims that the kubelet asked to prepare or unprepare",
                [Label::one_of("call", KubeletCall::VALUES), Label::one_of("result", CallResult::VALUES)],
                Family::default(),
            ),
            sweeps: registry.add(
                "sweeps",
                "Networks collected, attachments checked, claims of pods that are gone released",
                [Label::one_of("sweep", SweepKind::VALUES), Label::one_of("result", SweepResult::VALUES)],
                Family::default(),
            ),
            woken: registry.add(
                "pods_woken",
                "Pods that waited and that the kubelet was asked to look at again, by the reason",
                [Label::one_of("cause", WakeCause::VALUES), Label::one_of("result", WakeResult::VALUES)],
                Family::default(),
            ),
            networks: registry.add(
                "network_available",
                "0 while a plugin of the ClaimNetwork is not installed, or says by STATUS that it cannot serve a pod",
                [network()],
                Family::default(),
            ),
            plugins: registry.add(
                "cni_plugin_info",
                "1 for the program that is run for each CNI plugin that the node's ClaimNetworks use",
                [Label::any("plugin", "the type of a plugin"), Label::any("path", "the program")],
                Family::default(),
            ),
            addresses: registry.add(
                "addresses",
                "Addresses in the blocks that the node has of each ClaimNetwork, by whether attachments have them",
                [
                    network(),
                    Label::one_of("family", &AddressLabels::FAMILIES),
                    Label::one_of("state", &AddressLabels::STATES),
                ],
                Family::default(),
            ),
            attach: registry.add_seconds(
                "attach",
                "From the sandbox's event to its last attachment, or to the first that failed",
                [],
                Histogram::new(WAIT_SECONDS),
            ),
            operations: registry.add_seconds(
                "operation",
                "How long an ADD or DEL took, with the wait for its turn",
                [
                    Label::any("network", "a ClaimNetwork; empty for a link's own devices, and for a ClaimNetwork that is gone"),
                    Label::one_of("verb", Verb::VALUES),
                    Label::one_of("outcome", OperationEnd::VALUES),
                ],
                Family::new_with_constructor(|| Histogram::new(OPERATION_SECONDS)),
            ),
            runs: registry.add_seconds(
                "plugin",
                "How long a CNI plugin's process ran for an ADD or DEL, with the plugins that it runs itself, such as its IPAM plugin",
                [
                    Label::any("plugin", "the type of a plugin"),
                    Label::one_of("verb", Verb::VALUES),
                    Label::one_of("outcome", PluginEnd::VALUES),
                ],
                Family::new_with_constructor(|| Histogram::new(OPERATION_SECONDS)),
            ),
            waits: registry.add_seconds(
                "gate_wait",
                "How long containers waited in their hooks for the networks of their pods, by how the wait ended",
                [Label::one_of("outcome", WaitEnd::VALUES)],
                Family::new_with_constructor(|| Histogram::new(WAIT_SECONDS)),
            ),
            journal: registry.add(
                "attachments",
                "Attachments in the journal, by how far they are",
                [Label::one_of("phase", InJournal::VALUES)],
                Family::default(),
            ),
            dels_failing: registry.add(
                "dels_failing",
                "Attachments whose DEL has failed five times or more and is retried",
                [],
                Gauge::default(),
            ),
            without_counters: registry.add(
                "without_counters",
                "1 where no counters are published because the scheduler of this Kubernetes version cannot work with them, else 0",
                [],
                Gauge::default(),
            ),
            pool_published: registry.add(
                "pool_published",
                "0 while the API server refuses the slices of the node",
                [],
                Gauge::default(),
            ),
            devices_left_out: registry.add(
                "devices_left_out",
                "Devices that cannot be published",
                [],
                Gauge::default(),
            ),
            nri_connected: registry.add(
                "nri_connected",
                "1 while the container runtime is connected by NRI",
                [],
                Gauge::default(),
            ),
            unreadable: registry.add(
                "journal_unreadable_files",
                "Journal files that cannot be read, which the agent keeps",
                [],
                Gauge::default(),
            ),
            journal_writable: registry.add(
                "journal_writable",
                "0 while the state directory refuses writes, so that no new pod is attached",
                [],
                Gauge::default(),
            ),
            illegal_moves: registry.add(
                "attachment_illegal_moves",
                "Events that the state machine of attachments refused: bugs, see the log",
                [],
                Gauge::default(),
            ),
            panics: registry.add(
                "attachment_panics",
                "Panics of the agent in the work on a pod's attachments: bugs, see the log",
                [],
                Gauge::default(),
            ),
            without_block: registry.add(
                "pods_without_address_block",
                "Pods with addresses of blocks that the node has lost, and that other nodes may hand out",
                [],
                Gauge::default(),
            ),
            forgotten: registry.add(
                "forgotten_addresses",
                "Addresses of running pods of which the journal knows nothing, because somebody has removed the state directory",
                [],
                Gauge::default(),
            ),
            outdated: registry.add(
                "programs_outdated",
                "1 while the agent's hook or CNI plugins cannot be installed on the node and those of an earlier agent are used",
                [],
                Gauge::default(),
            ),
            restarts: registry.add(
                "agent_restarts",
                "How often the agent died and was started again in this container, which the kubelet does not count",
                [],
                Gauge::default(),
            ),
            registry,
        }
    }
}

/// The ClaimNetwork of a plan. A link's own devices have none, so that the label has as many values as there are ClaimNetworks.
fn network_of(plan: &Plan) -> String {
    match plan.owner.device.device.parse() {
        Ok(DeviceName::Network(name)) => name.to_string(),
        _ => String::new(),
    }
}

impl Metrics {
    /// Counts the result of a call for a claim.
    pub(crate) fn call(&self, call: KubeletCall, ok: bool) {
        let result = if ok { CallResult::Ok } else { CallResult::Error };
        self.calls.get_or_create(&CallLabels { call, result }).inc();
    }

    /// Counts the result of a sweep.
    pub(crate) fn sweep(&self, sweep: SweepKind, result: SweepResult) {
        self.sweeps.get_or_create(&SweepLabels { sweep, result }).inc();
    }

    /// Counts a pod that was woken, or was to be woken.
    pub(crate) fn woken(&self, cause: WakeCause, result: WakeResult) {
        self.woken.get_or_create(&WakeLabels { cause, result }).inc();
    }

    /// Sets whether a ClaimNetwork can serve a pod.
    pub(crate) fn network_available(&self, network: &str, available: bool) {
        let labels = NetworkLabels { network: network.to_owned() };
        self.networks.get_or_create(&labels).set(i64::from(available));
    }

    /// Forgets a ClaimNetwork that is gone. Its addresses are [forgotten](Self::addresses_gone) when its blocks are.
    pub(crate) fn network_gone(&self, network: &str) {
        let network = network.to_owned();
        self.networks.remove(&NetworkLabels { network: network.clone() });
        for verb in Verb::ALL.iter().copied() {
            for outcome in OperationEnd::ALL.iter().copied() {
                self.operations.remove(&OperationLabels { network: network.clone(), verb, outcome });
            }
        }
    }

    /// Measures an ADD or DEL.
    pub(crate) fn operation(&self, plan: &Plan, operation: Operation, end: attach::End, took: Duration) {
        let verb = match operation {
            Operation::Add => Verb::Add,
            Operation::Del => Verb::Del,
        };
        let outcome = match end {
            attach::End::Succeeded => OperationEnd::Ok,
            attach::End::Failed => OperationEnd::Failed,
            attach::End::CutShort => OperationEnd::CutShort,
            attach::End::GivenUp => OperationEnd::GivenUp,
            attach::End::Stray => OperationEnd::Stray,
        };
        // The DELs of a ClaimNetwork that is gone would make series that nobody removes.
        let mut network = network_of(plan);
        if self.networks.get(&NetworkLabels { network: network.clone() }).is_none() {
            network.clear();
        }
        let labels = OperationLabels { network, verb, outcome };
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Measures the wait of a container in its hook.
    pub(crate) fn gate_wait(&self, outcome: WaitEnd, took: Duration) {
        self.waits.get_or_create(&WaitLabels { outcome }).observe(took.as_secs_f64());
    }

    /// Starts to count the attachments of all pods.
    pub(crate) fn count_attachments(&self) -> AttachmentCount<'_> {
        AttachmentCount { metrics: self, phases: [0; InJournal::ALL.len()], dels_failing: 0 }
    }

    /// Sets whether the program at `path` is run for a CNI plugin.
    pub(crate) fn plugin(&self, plugin: &str, path: &Path, is_run: bool) {
        let labels = PluginLabels { plugin: plugin.to_owned(), path: path.display().to_string() };
        if is_run {
            self.plugins.get_or_create(&labels).set(1);
        } else {
            self.plugins.remove(&labels);
        }
    }

    /// Forgets the addresses of a ClaimNetwork that is gone.
    pub(crate) fn addresses_gone(&self, network: &str, family: addresses::Family) {
        for state in AddressLabels::STATES {
            self.addresses.remove(&AddressLabels::of(network, family, state));
        }
    }

    /// Sets how many addresses the node's blocks of a ClaimNetwork have, and how many of them attachments have.
    pub(crate) fn addresses(&self, network: &str, family: addresses::Family, usable: u64, used: u64) {
        for (state, number) in AddressLabels::STATES.into_iter().zip([usable.saturating_sub(used), used]) {
            let labels = AddressLabels::of(network, family, state);
            self.addresses.get_or_create(&labels).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }

    /// Starts to measure how long an attachment takes.
    pub(crate) fn attach_seconds(&self) -> Timer<'_> {
        Timer { start: Instant::now(), histogram: &self.attach }
    }

    /// Returns what the metrics are.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns all metrics as OpenMetrics text.
    pub(crate) fn render(&self) -> String {
        self.registry.render()
    }
}

impl RunObserver for Metrics {
    /// Measures an ADD or DEL. The other verbs are not on a pod's path, and would triple the series.
    fn ran(&self, plugin: &PluginType, verb: cni::Verb, end: RunEnd, took: Duration) {
        let verb = match verb {
            cni::Verb::Add => Verb::Add,
            cni::Verb::Del => Verb::Del,
            _ => return,
        };
        let outcome = match end {
            RunEnd::Succeeded => PluginEnd::Ok,
            RunEnd::Failed => PluginEnd::Failed,
            RunEnd::TimedOut => PluginEnd::TimedOut,
            RunEnd::CutShort => PluginEnd::CutShort,
        };
        let labels = RunLabels { plugin: plugin.to_string(), verb, outcome };
        self.runs.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    use netclaim_process::metrics::testing::assert_all_move;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{self, conflist, record, sandbox};

    fn plan(device: &str) -> Plan {
        let mut plan = fixtures::plan("c");
        plan.owner.device.device = device.to_owned();
        plan
    }

    #[test]
    fn calls_are_counted_by_their_result() {
        let metrics = Metrics::default();
        metrics.call(KubeletCall::Prepare, true);
        metrics.call(KubeletCall::Prepare, false);
        metrics.call(KubeletCall::Prepare, false);
        let text = metrics.render();
        assert!(text.contains("netclaim_claims_total{call=\"Prepare\",result=\"Error\"} 2"), "{text}");
    }

    #[test]
    fn an_attach_of_30_s_is_in_a_finite_bucket() {
        let metrics = Metrics::default();
        metrics.attach.observe(30.0);
        let text = metrics.render();
        assert!(text.contains("netclaim_attach_seconds_bucket{le=\"10.0\"} 0"), "{text}");
        assert!(text.contains("netclaim_attach_seconds_bucket{le=\"30.0\"} 1"), "{text}");
    }

    #[test]
    fn operations_on_links_of_their_own_have_no_network() {
        let metrics = Metrics::default();
        metrics.network_available("storage", true);
        for device in ["nic-eth1", "macvlan-eth2", "net-storage"] {
            metrics.operation(&plan(device), Operation::Add, attach::End::Succeeded, Duration::ZERO);
        }
        let text = metrics.render();
        let count = |network: &str| {
            format!("netclaim_operation_seconds_count{{network=\"{network}\",verb=\"ADD\",outcome=\"Ok\"}}")
        };
        assert!(text.contains(&format!("{} 2", count(""))) && text.contains(&count("storage")), "{text}");
        metrics.network_gone("storage");
        metrics.operation(&plan("net-storage"), Operation::Del, attach::End::Succeeded, Duration::ZERO);
        assert!(!metrics.render().contains("storage"), "a ClaimNetwork that is gone has no series");
    }

    /// Runs a plugin by the runtime of production until it has ended in each way.
    fn run_plugin(metrics: &Arc<Metrics>) {
        const SHORT: Duration = Duration::from_millis(300);
        const LONG: Duration = Duration::from_secs(30);
        let dir = tempfile::tempdir().unwrap();
        let plugin = dir.path().join("p");
        let script =
            "#!/bin/sh\ncase $CNI_CONTAINERID in fails) exit 1;; hangs) exec sleep 60;; esac\necho '{}'\n";
        std::fs::write(&plugin, script).unwrap();
        std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
        let runtime = cni::Runtime::new(vec![dir.path().to_owned()]).unwrap();
        let runtime = &runtime.observed_by(Arc::<Metrics>::clone(metrics));
        let list = &conflist(json!([{"type": "p"}]));
        let of = |container: &str| {
            let (container, interface) = (container.parse().unwrap(), "net1".parse().unwrap());
            cni::Attachment::new(container, Some("/n".into()), interface)
        };
        let add = async |container: &str, deadline| _ = runtime.add(list, &of(container), deadline).await;
        let del =
            async |container: &str, deadline| _ = runtime.del(list, &of(container), None, deadline).await;
        let threads = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        threads.block_on(async {
            for (container, deadline) in [("succeeds", LONG), ("fails", LONG), ("hangs", SHORT)] {
                add(container, deadline).await;
                del(container, deadline).await;
            }
            let _ = tokio::time::timeout(SHORT, add("hangs", LONG)).await;
            let _ = tokio::time::timeout(SHORT, del("hangs", LONG)).await;
        });
    }

    #[test]
    fn the_runs_of_a_plugin_are_measured_by_how_they_ended() {
        let metrics = Arc::new(Metrics::default());
        run_plugin(&metrics);
        let own = |text: String| -> Vec<String> {
            text.lines().filter(|line| line.contains("netclaim_")).map(str::to_owned).collect()
        };
        let text = metrics.render();
        for outcome in PluginEnd::VALUES {
            for verb in Verb::VALUES {
                let labels = format!("plugin=\"p\",verb=\"{verb}\",outcome=\"{outcome}\"");
                let count = format!("netclaim_plugin_seconds_count{{{labels}}} 1");
                assert!(text.contains(&count), "no {count} in {text}");
            }
        }
        let runtime: &dyn RunObserver = &*metrics;
        runtime.ran(&"q".parse().unwrap(), cni::Verb::Status, RunEnd::Succeeded, Duration::ZERO);
        assert_eq!(own(metrics.render()), own(text), "STATUS comes every few seconds, and delays no pod");
    }

    #[test]
    fn every_metric_moves_with_the_labels_of_its_description() {
        let of_spans = Counters::default();
        let metrics = &Arc::new(Metrics::new(of_spans.clone()));
        let sandbox = || sandbox("s");
        let records = || {
            let stray = netclaim_driver::attach::Record {
                stray: Some("gone".to_owned()),
                ..record("s", Phase::Deleting { sandbox: sandbox(), result: None })
            };
            let phases = [
                Phase::Planned,
                Phase::Adding { sandbox: sandbox() },
                Phase::Deleting { sandbox: sandbox(), result: None },
            ];
            let attached = crate::fixtures::attached("a", "s");
            phases.into_iter().map(|phase| record("c", phase)).chain([stray, attached]).collect()
        };
        let pod = || PodState { records: records(), dels_failing: 2, ..PodState::default() };
        let count = || {
            let mut count = metrics.count_attachments();
            count.add(&pod());
            count.set();
        };
        let one = |gauge: &Gauge| {
            gauge.set(1);
        };
        let families = [addresses::Family::V4, addresses::Family::V6];
        let ends = [
            attach::End::Succeeded,
            attach::End::Failed,
            attach::End::CutShort,
            attach::End::GivenUp,
            attach::End::Stray,
        ];
        assert_all_move(
            metrics.registry(),
            &[
                ("netclaim_claims_total", &|| {
                    for call in KubeletCall::ALL {
                        [true, false].iter().for_each(|ok| metrics.call(*call, *ok));
                    }
                }),
                ("netclaim_sweeps_total", &|| {
                    for sweep in SweepKind::ALL {
                        SweepResult::ALL.iter().for_each(|result| metrics.sweep(*sweep, *result));
                    }
                }),
                ("netclaim_pods_woken_total", &|| {
                    for cause in WakeCause::ALL {
                        WakeResult::ALL.iter().for_each(|result| metrics.woken(*cause, *result));
                    }
                }),
                ("netclaim_network_available", &|| metrics.network_available("storage", true)),
                ("netclaim_cni_plugin_info", &|| metrics.plugin("bridge", Path::new("/opt/bridge"), true)),
                ("netclaim_addresses", &|| families.iter().for_each(|of| metrics.addresses("s", *of, 9, 3))),
                ("netclaim_attach_seconds", &|| metrics.attach_seconds().observe()),
                ("netclaim_operation_seconds", &|| {
                    for operation in [Operation::Add, Operation::Del] {
                        ends.iter().for_each(|end| {
                            metrics.operation(&plan("net-s"), operation, *end, Duration::ZERO)
                        });
                    }
                }),
                ("netclaim_plugin_seconds", &|| run_plugin(metrics)),
                ("netclaim_gate_wait_seconds", &|| {
                    WaitEnd::ALL.iter().for_each(|end| metrics.gate_wait(*end, Duration::ZERO));
                }),
                ("netclaim_attachments", &count),
                ("netclaim_dels_failing", &|| metrics.count_attachments().set()),
                ("netclaim_without_counters", &|| one(&metrics.without_counters)),
                ("netclaim_pool_published", &|| one(&metrics.pool_published)),
                ("netclaim_devices_left_out", &|| one(&metrics.devices_left_out)),
                ("netclaim_nri_connected", &|| one(&metrics.nri_connected)),
                ("netclaim_journal_unreadable_files", &|| one(&metrics.unreadable)),
                ("netclaim_journal_writable", &|| one(&metrics.journal_writable)),
                ("netclaim_trace_spans_sent_total", &|| _ = of_spans.sent.inc()),
                ("netclaim_trace_spans_lost_total", &|| _ = of_spans.lost.inc()),
                ("netclaim_attachment_illegal_moves", &|| one(&metrics.illegal_moves)),
                ("netclaim_attachment_panics", &|| one(&metrics.panics)),
                ("netclaim_pods_without_address_block", &|| one(&metrics.without_block)),
                ("netclaim_forgotten_addresses", &|| one(&metrics.forgotten)),
                ("netclaim_programs_outdated", &|| one(&metrics.outdated)),
                ("netclaim_agent_restarts", &|| one(&metrics.restarts)),
            ],
        );
    }
}
