//! The agent's Prometheus metrics: each part registers its own, and the rest is here.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netclaim_cni::{PluginType, RunEnd, RunObserver, Verb};
use netclaim_process::metrics::{Label, Registry};
use netclaim_process::traces::Counters;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::addresses::metrics::AddressMetrics;
use crate::devices::metrics::{PluginMetrics, PoolMetrics};
use crate::gate::metrics::WaitMetrics;
use crate::node_networks::metrics::SetUpMetrics;
use crate::pods::owner::{PodState, Record};
use crate::prepare::metrics::CallMetrics;
use crate::repair::RepairMetrics;
use crate::reports::metrics::{NetworkMetrics, OPERATION_SECONDS};
use crate::runtime::metrics::attach_seconds;
use crate::sweep::SweepMetrics;
use crate::traffic::metrics::TrafficMetrics;
use crate::waking::metrics::WakeMetrics;

/// All metrics.
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    pub(crate) calls: CallMetrics,
    pub(crate) sweeps: SweepMetrics,
    pub(crate) repairs: RepairMetrics,
    pub(crate) set_up: SetUpMetrics,
    pub(crate) wakes: WakeMetrics,
    pub(crate) networks: NetworkMetrics,
    pub(crate) plugins: PluginMetrics,
    pub(crate) addresses: AddressMetrics,
    pub(crate) attach_seconds: Histogram,
    pub(crate) runs: PluginRuns,
    pub(crate) waits: WaitMetrics,
    pub(crate) attachments: AttachmentMetrics,
    pub(crate) traffic: TrafficMetrics,
    pub(crate) pool: PoolMetrics,
    /// 1 while the node has the hook or a plugin of an earlier agent.
    pub(crate) outdated: Gauge,
    /// How many agents the parent has started before this one.
    pub(crate) restarts: Counter,
}

impl Metrics {
    /// Metrics that have these numbers of spans among them.
    pub(crate) fn new(of_spans: Counters) -> Self {
        let mut registry = Registry::new("netclaim");
        let Counters { sent, lost } = of_spans;
        registry.add("trace_spans_sent", "Spans of traces that the collector has accepted", [], sent);
        registry.add(
            "trace_spans_lost",
            "Spans of traces that the collector did not accept, without those that did not fit in the queue",
            [],
            lost,
        );
        Self {
            calls: CallMetrics::new(&mut registry),
            sweeps: SweepMetrics::new(&mut registry),
            repairs: RepairMetrics::new(&mut registry),
            set_up: SetUpMetrics::new(&mut registry),
            wakes: WakeMetrics::new(&mut registry),
            networks: NetworkMetrics::new(&mut registry),
            plugins: PluginMetrics::new(&mut registry),
            addresses: AddressMetrics::new(&mut registry),
            attach_seconds: attach_seconds(&mut registry),
            runs: PluginRuns::new(&mut registry),
            waits: WaitMetrics::new(&mut registry),
            attachments: AttachmentMetrics::new(&mut registry),
            traffic: TrafficMetrics::new(&mut registry),
            pool: PoolMetrics::new(&mut registry),
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
                Counter::default(),
            ),
            registry,
        }
    }
}

/// Without the ClaimNetwork, because ClaimNetworks times plugins would be too many series: a cluster has
/// hundreds of ClaimNetworks and a few types of plugins. Ten types make some 300 series on a node. Only
/// admins name types, so the series of those that are gone stay.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    plugin: String,
    verb: &'static str,
    outcome: &'static str,
}

/// Measures the processes of CNI plugins.
#[derive(Clone)]
pub(crate) struct PluginRuns(Family<RunLabels, Histogram>);

impl PluginRuns {
    /// The verbs that are measured. The other verbs are not on a pod's path, and would triple the series.
    const VERBS: [Verb; 2] = [Verb::Add, Verb::Del];

    fn new(registry: &mut Registry) -> Self {
        Self(registry.add_seconds(
            "plugin_duration",
            "How long a CNI plugin's process ran for an ADD or DEL, with the plugins that it runs itself, such as its IPAM plugin",
            [
                Label::any("plugin", "the type of a plugin"),
                Label::one_of("verb", &Self::VERBS.map(Verb::as_str)),
                Label::one_of("outcome", &RunEnd::ALL.map(RunEnd::as_str)),
            ],
            Family::new_with_constructor(|| Histogram::new(OPERATION_SECONDS)),
        ))
    }
}

impl RunObserver for PluginRuns {
    fn ran(&self, plugin: &PluginType, verb: Verb, end: RunEnd, took: Duration) {
        if Self::VERBS.contains(&verb) {
            let labels = RunLabels { plugin: plugin.to_string(), verb: verb.as_str(), outcome: end.as_str() };
            self.0.get_or_create(&labels).observe(took.as_secs_f64());
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
}

/// A count of attachments, pod by pod.
#[derive(Default)]
pub(crate) struct AttachmentCount {
    phases: BTreeMap<&'static str, i64>,
    dels_failing: i64,
}

impl AttachmentCount {
    /// Counts those of a pod.
    pub(crate) fn add(&mut self, pod: &PodState) {
        for record in pod.attachments() {
            *self.phases.entry(record.phase_name()).or_default() += 1;
        }
        self.dels_failing += i64::try_from(pod.dels_failing).unwrap_or(i64::MAX);
    }
}

/// Says what the journal has, and whether pods can be attached.
#[derive(Clone)]
pub(crate) struct AttachmentMetrics {
    attachments: Family<PhaseLabels, Gauge>,
    dels_failing: Gauge,
    /// 1 while the container runtime is connected by NRI.
    pub(crate) nri_connected: Gauge,
    /// Journal files that cannot be read.
    pub(crate) unreadable: Gauge,
    /// 1 while the journal can be written.
    pub(crate) journal_writable: Gauge,
    /// Events that the state machine of attachments refused.
    pub(crate) illegal_moves: Counter,
    /// Panics in the tasks of pods.
    pub(crate) panics: Counter,
}

impl AttachmentMetrics {
    fn new(registry: &mut Registry) -> Self {
        let attachments = registry.add(
            "attachments",
            "Attachments in the journal, by how far they are",
            [Label::one_of("phase", &Record::PHASE_NAMES)],
            Family::default(),
        );
        let illegal_moves = registry.add(
            "attachment_illegal_moves",
            "Events that the state machine of attachments refused: bugs, see the log",
            [],
            Counter::default(),
        );
        let panics = registry.add(
            "attachment_panics",
            "Panics of the agent in the work on a pod's attachments: bugs, see the log",
            [],
            Counter::default(),
        );
        let mut gauge = |name, help| registry.add(name, help, [], Gauge::default());
        Self {
            attachments,
            dels_failing: gauge(
                "dels_failing",
                "Attachments whose DEL has failed five times or more and is retried",
            ),
            nri_connected: gauge("nri_connected", "1 while the container runtime is connected by NRI"),
            unreadable: gauge(
                "journal_unreadable_files",
                "Journal files that cannot be read, which the agent keeps",
            ),
            journal_writable: gauge(
                "journal_writable",
                "0 while the state directory or the run directory refuses writes, so that no new pod is attached",
            ),
            illegal_moves,
            panics,
        }
    }

    /// Takes over how many bugs the attacher has counted since the agent started.
    pub(crate) fn count_bugs(&self, illegal_moves: u64, panics: u64) {
        self.illegal_moves.inner().store(illegal_moves, Ordering::Relaxed);
        self.panics.inner().store(panics, Ordering::Relaxed);
    }

    /// Sets the gauges of the journal.
    pub(crate) fn set(&self, count: &AttachmentCount) {
        for phase in Record::PHASE_NAMES {
            let of_phase = count.phases.get(phase).copied().unwrap_or_default();
            self.attachments.get_or_create(&PhaseLabels { phase }).set(of_phase);
        }
        self.dels_failing.set(count.dels_failing);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::sync::Arc;

    use netclaim_api::addresses;
    use netclaim_cni as cni;
    use netclaim_driver::attach::{End, Operation, Phase};
    use netclaim_driver::links::{Counters as Traffic, Passed};
    use netclaim_process::metrics::testing::assert_all_move;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{self, conflist, record, sandbox};
    use crate::gate::metrics::WaitEnd;
    use crate::prepare::metrics::KubeletCall;
    use crate::repair::RepairOutcome;
    use crate::sweep::{SweepKind, SweepResult};
    use crate::waking::metrics::{WakeCause, WakeOutcome};

    #[test]
    fn calls_are_counted_by_their_outcome() {
        let Metrics { registry, calls, .. } = Metrics::new(Counters::default());
        calls.call(KubeletCall::Prepare, true);
        calls.call(KubeletCall::Prepare, false);
        calls.call(KubeletCall::Prepare, false);
        let text = registry.render();
        assert!(text.contains("netclaim_claims_total{call=\"Prepare\",outcome=\"Error\"} 2"), "{text}");
    }

    /// Runs a plugin by the runtime of production until it has ended in each way.
    fn run_plugin(runs: &PluginRuns) {
        const SHORT: Duration = Duration::from_millis(300);
        const LONG: Duration = Duration::from_secs(30);
        let dir = tempfile::tempdir().unwrap();
        let plugin = dir.path().join("p");
        let script =
            "#!/bin/sh\ncase $CNI_CONTAINERID in fails) exit 1;; hangs) exec sleep 60;; esac\necho '{}'\n";
        std::fs::write(&plugin, script).unwrap();
        std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
        let runtime = cni::Runtime::new(vec![dir.path().to_owned()]).unwrap();
        let runtime = &runtime.observed_by(Arc::new(runs.clone()));
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
        let metrics = Metrics::new(Counters::default());
        run_plugin(&metrics.runs);
        let own = |text: String| -> Vec<String> {
            text.lines().filter(|line| line.contains("netclaim_")).map(str::to_owned).collect()
        };
        let text = metrics.registry.render();
        for outcome in RunEnd::ALL.map(RunEnd::as_str) {
            for verb in PluginRuns::VERBS.map(Verb::as_str) {
                let labels = format!("plugin=\"p\",verb=\"{verb}\",outcome=\"{outcome}\"");
                let count = format!("netclaim_plugin_duration_seconds_count{{{labels}}} 1");
                assert!(text.contains(&count), "no {count} in {text}");
            }
        }
        metrics.runs.ran(&"q".parse().unwrap(), Verb::Status, RunEnd::Succeeded, Duration::ZERO);
        assert_eq!(
            own(metrics.registry.render()),
            own(text),
            "STATUS comes every few seconds, and delays no pod"
        );
    }

    #[test]
    fn every_metric_moves_with_the_labels_of_its_description() {
        let of_spans = Counters::default();
        let metrics = &Metrics::new(of_spans.clone());
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
            let attached = fixtures::attached("a", "s");
            phases.into_iter().map(|phase| record("c", phase)).chain([stray, attached]).collect()
        };
        let pod = || PodState { records: records(), dels_failing: 2, ..PodState::default() };
        let count = || {
            let mut count = AttachmentCount::default();
            count.add(&pod());
            metrics.attachments.set(&count);
        };
        let one = |gauge: &Gauge| {
            gauge.set(1);
        };
        let families = [addresses::Family::V4, addresses::Family::V6];
        let show = |traffic: u64| {
            let mut plan = fixtures::plan("c");
            plan.owner.bandwidth = Some(format!("{traffic}M").parse().unwrap());
            let passed = Passed { bytes: traffic, packets: traffic, errors: 0, dropped: traffic };
            metrics.traffic.set(&plan, Traffic { received: passed, sent: passed });
        };
        assert_all_move(
            &metrics.registry,
            &[
                ("netclaim_claims_total", &|| {
                    for call in KubeletCall::ALL {
                        [true, false].iter().for_each(|ok| metrics.calls.call(*call, *ok));
                    }
                }),
                ("netclaim_sweeps_total", &|| {
                    for sweep in SweepKind::ALL {
                        SweepResult::ALL.iter().for_each(|outcome| metrics.sweeps.count(*sweep, *outcome));
                    }
                }),
                ("netclaim_repairs_total", &|| {
                    RepairOutcome::ALL.iter().for_each(|outcome| metrics.repairs.count(*outcome));
                }),
                ("netclaim_network_set_up", &|| metrics.set_up.set(&"storage".parse().unwrap(), true)),
                ("netclaim_pods_woken_total", &|| {
                    for cause in WakeCause::ALL {
                        WakeOutcome::ALL.iter().for_each(|outcome| metrics.wakes.woken(*cause, *outcome));
                    }
                }),
                ("netclaim_network_available", &|| metrics.networks.set_available("storage", true)),
                ("netclaim_cni_plugin_info", &|| {
                    metrics.plugins.set("bridge", Path::new("/opt/bridge"), true)
                }),
                ("netclaim_addresses", &|| {
                    families.iter().for_each(|of| metrics.addresses.set("s", *of, 9, 3))
                }),
                ("netclaim_attach_duration_seconds", &|| metrics.attach_seconds.observe(1.0)),
                ("netclaim_operation_duration_seconds", &|| {
                    for operation in Operation::ALL {
                        let plan = fixtures::plan("c");
                        End::ALL.iter().for_each(|end| {
                            metrics.networks.operation(&plan, operation, *end, None, Duration::ZERO)
                        });
                    }
                }),
                ("netclaim_plugin_duration_seconds", &|| run_plugin(&metrics.runs)),
                ("netclaim_gate_wait_duration_seconds", &|| {
                    WaitEnd::ALL.iter().for_each(|end| metrics.waits.observe(*end, Duration::ZERO));
                }),
                ("netclaim_attachments", &count),
                ("netclaim_attachment_info", &|| show(1)),
                ("netclaim_attachment_granted_bytes_per_second", &|| show(2)),
                ("netclaim_attachment_bytes_total", &|| show(3)),
                ("netclaim_attachment_packets_total", &|| show(4)),
                ("netclaim_attachment_dropped_packets_total", &|| show(5)),
                ("netclaim_dels_failing", &|| metrics.attachments.set(&AttachmentCount::default())),
                ("netclaim_without_counters", &|| one(&metrics.pool.without_counters)),
                ("netclaim_pool_published", &|| one(&metrics.pool.published)),
                ("netclaim_devices_left_out", &|| one(&metrics.pool.left_out)),
                ("netclaim_nri_connected", &|| one(&metrics.attachments.nri_connected)),
                ("netclaim_journal_unreadable_files", &|| one(&metrics.attachments.unreadable)),
                ("netclaim_journal_writable", &|| one(&metrics.attachments.journal_writable)),
                ("netclaim_trace_spans_sent_total", &|| _ = of_spans.sent.inc()),
                ("netclaim_trace_spans_lost_total", &|| _ = of_spans.lost.inc()),
                ("netclaim_attachment_illegal_moves_total", &|| metrics.attachments.count_bugs(1, 0)),
                ("netclaim_attachment_panics_total", &|| metrics.attachments.count_bugs(0, 1)),
                ("netclaim_pods_without_address_block", &|| one(&metrics.addresses.without_block)),
                ("netclaim_forgotten_addresses", &|| one(&metrics.sweeps.forgotten)),
                ("netclaim_programs_outdated", &|| one(&metrics.outdated)),
                ("netclaim_agent_restarts_total", &|| _ = metrics.restarts.inc()),
            ],
        );
    }
}
