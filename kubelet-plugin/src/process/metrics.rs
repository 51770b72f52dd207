//! The agent's Prometheus metrics.

use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use netclaim_api::addresses;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// A call of the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(missing_docs, reason = "the kubelet's names")]
pub enum KubeletCall {
    Prepare,
    Unprepare,
}

/// The result of a call for one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(missing_docs, reason = "the names say it")]
pub enum CallResult {
    Ok,
    Error,
}

/// A kind of sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(missing_docs, reason = "see crate::runtime::sweep")]
pub enum SweepKind {
    Gc,
    Check,
    Orphan,
}

/// The result of a sweep for one network, attachment or claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum SweepResult {
    /// Nothing is wrong, or the sweep has corrected it.
    Ok,
    /// A CHECK found a fault.
    Failed,
    /// The sweep failed.
    Error,
    /// Nothing can be said.
    Skipped,
}

/// Why a pod is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum WakeCause {
    /// The kubelet has registered the driver.
    Registered,
    /// A claim of the pod has been released by its earlier pod.
    Released,
    /// The kubelet has the pod, and asks for no claim of it.
    NotPrepared,
    /// The networks of the pod are there, after a container was refused for lack of them.
    Attached,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum WakeResult {
    /// The kubelet was told to look at the pod.
    Ok,
    /// The agent may not wake pods.
    Forbidden,
    /// The pod was gone.
    Gone,
    /// The API server did not answer.
    Error,
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
struct FieldLabels {
    field: &'static str,
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

    fn of(network: &str, family: addresses::Family, state: &'static str) -> Self {
        let family = match family {
            addresses::Family::V4 => "ipv4",
            addresses::Family::V6 => "ipv6",
        };
        Self { network: network.to_owned(), family, state }
    }
}

/// All metrics.
pub struct Metrics {
    registry: Mutex<Registry>,
    calls: Family<CallLabels, Counter>,
    sweeps: Family<SweepLabels, Counter>,
    woken: Family<WakeLabels, Counter>,
    networks: Family<NetworkLabels, Gauge>,
    plugins: Family<PluginLabels, Gauge>,
    addresses: Family<AddressLabels, Gauge>,
    attach: Histogram,
    dropped: Family<FieldLabels, Gauge>,
    /// 1 when no counters are published because the scheduler cannot work with them.
    pub without_counters: Gauge,
    /// 1 when the node's pool is published as it should be.
    pub pool_published: Gauge,
    /// Devices that the published pool lacks.
    pub devices_left_out: Gauge,
    /// 1 while the container runtime is connected by NRI.
    pub nri_connected: Gauge,
    /// Journal files that cannot be read.
    pub unreadable: Gauge,
    /// 1 while the journal can be written.
    pub journal_writable: Gauge,
    /// Events that the state machine of attachments refused.
    pub illegal_moves: Gauge,
    /// Panics in the tasks of pods.
    pub panics: Gauge,
    /// 1 while the node has the hook or a plugin of an earlier agent.
    pub outdated: Gauge,
    /// How many agents the parent has started before this one.
    pub restarts: Gauge,
    /// Pods with addresses of blocks that the node has lost.
    pub without_block: Gauge,
}

/// Measures from its creation to [`Timer::observe`].
pub struct Timer<'a> {
    start: Instant,
    histogram: &'a Histogram,
}

impl Timer<'_> {
    /// Records the time that has passed.
    pub fn observe(self) {
        self.histogram.observe(self.start.elapsed().as_secs_f64());
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let gauge = Gauge::default();
    registry.register(name, help, gauge.clone());
    gauge
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("netclaim");
        let calls = Family::<CallLabels, Counter>::default();
        registry.register("claims", "Claims that the kubelet asked to prepare or unprepare", calls.clone());
        let sweeps = Family::<SweepLabels, Counter>::default();
        registry.register(
            "sweeps",
            "Networks collected, attachments checked, claims of pods that are gone released",
            sweeps.clone(),
        );
        let woken = Family::<WakeLabels, Counter>::default();
        registry.register(
            "pods_woken",
            "Pods that waited and that the kubelet was asked to look at again, by the reason",
            woken.clone(),
        );
        let networks = Family::<NetworkLabels, Gauge>::default();
        registry.register(
            "network_available",
            "0 while a plugin of the Network is not installed, or says by STATUS that it cannot serve a pod",
            networks.clone(),
        );
        let plugins = Family::<PluginLabels, Gauge>::default();
        registry.register(
            "cni_plugin_info",
            "1 for the program that is run for each CNI plugin that the node's Networks use",
            plugins.clone(),
        );
        let addresses = Family::<AddressLabels, Gauge>::default();
        registry.register(
            "addresses",
            "Addresses in the blocks that the node has of each Network, by whether attachments have them",
            addresses.clone(),
        );
        let attach = Histogram::new(exponential_buckets(0.002, 2.0, 12));
        registry.register(
            "attach_seconds",
            "From the sandbox's event to its last attachment, or to the first that failed",
            attach.clone(),
        );
        let dropped = Family::<FieldLabels, Gauge>::default();
        registry.register(
            "server_field_dropped",
            "1 for each field of ResourceSlices that the API server does not store, else 0",
            dropped.clone(),
        );
        let without_counters = gauge(
            &mut registry,
            "without_counters",
            "1 where no counters are published because the scheduler of this Kubernetes version cannot work with them, else 0",
        );
        let pool_published =
            gauge(&mut registry, "pool_published", "0 while the API server refuses the slices of the node");
        let devices_left_out = gauge(&mut registry, "devices_left_out", "Devices that cannot be published");
        let nri_connected =
            gauge(&mut registry, "nri_connected", "1 while the container runtime is connected by NRI");
        let unreadable = gauge(
            &mut registry,
            "journal_unreadable_files",
            "Journal files that cannot be read, which the agent keeps",
        );
        let journal_writable = gauge(
            &mut registry,
            "journal_writable",
            "0 while the state directory refuses writes, so that no new pod is attached",
        );
        let illegal_moves = gauge(
            &mut registry,
            "attachment_illegal_moves",
            "Events that the state machine of attachments refused: bugs, see the log",
        );
        let panics = gauge(
            &mut registry,
            "attachment_panics",
            "Panics of the agent in the work on a pod's attachments: bugs, see the log",
        );
        let without_block = gauge(
            &mut registry,
            "pods_without_address_block",
            "Pods with addresses of blocks that the node has lost, and that other nodes may hand out",
        );
        let outdated = gauge(
            &mut registry,
            "programs_outdated",
            "1 while the agent's hook or CNI plugins cannot be installed on the node and those of an earlier agent are used",
        );
        let restarts = gauge(
            &mut registry,
            "agent_restarts",
            "How often the agent died and was started again in this container, which the kubelet does not count",
        );
        Self {
            registry: Mutex::new(registry),
            calls,
            sweeps,
            woken,
            networks,
            plugins,
            addresses,
            attach,
            dropped,
            without_counters,
            pool_published,
            devices_left_out,
            nri_connected,
            unreadable,
            journal_writable,
            illegal_moves,
            panics,
            outdated,
            restarts,
            without_block,
        }
    }
}

impl Metrics {
    /// Counts the result of a call for a claim.
    pub fn call(&self, call: KubeletCall, ok: bool) {
        let result = if ok { CallResult::Ok } else { CallResult::Error };
        self.calls.get_or_create(&CallLabels { call, result }).inc();
    }

    /// Counts the result of a sweep.
    pub fn sweep(&self, sweep: SweepKind, result: SweepResult) {
        self.sweeps.get_or_create(&SweepLabels { sweep, result }).inc();
    }

    /// Counts a pod that was woken, or was to be woken.
    pub fn woken(&self, cause: WakeCause, result: WakeResult) {
        self.woken.get_or_create(&WakeLabels { cause, result }).inc();
    }

    /// Sets whether a Network can serve a pod; `None` when the Network is gone.
    pub fn network_available(&self, network: &str, available: Option<bool>) {
        let labels = NetworkLabels { network: network.to_owned() };
        match available {
            Some(available) => drop(self.networks.get_or_create(&labels).set(i64::from(available))),
            None => drop(self.networks.remove(&labels)),
        }
    }

    /// Sets whether the program at `path` is run for a CNI plugin.
    pub fn plugin(&self, plugin: &str, path: &Path, is_run: bool) {
        let labels = PluginLabels { plugin: plugin.to_owned(), path: path.display().to_string() };
        if is_run {
            self.plugins.get_or_create(&labels).set(1);
        } else {
            self.plugins.remove(&labels);
        }
    }

    /// Forgets the addresses of a Network that is gone.
    pub fn addresses_gone(&self, network: &str, family: addresses::Family) {
        for state in AddressLabels::STATES {
            self.addresses.remove(&AddressLabels::of(network, family, state));
        }
    }

    /// Sets how many addresses the node's blocks of a Network have, and how many of them attachments have.
    pub fn addresses(&self, network: &str, family: addresses::Family, usable: u64, used: u64) {
        for (state, number) in AddressLabels::STATES.into_iter().zip([usable.saturating_sub(used), used]) {
            let labels = AddressLabels::of(network, family, state);
            self.addresses.get_or_create(&labels).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }

    /// Sets whether the API server drops a field of ResourceSlices.
    pub fn field_dropped(&self, field: &'static str, dropped: bool) {
        self.dropped.get_or_create(&FieldLabels { field }).set(i64::from(dropped));
    }

    /// Starts to measure how long an attachment takes.
    pub fn attach_seconds(&self) -> Timer<'_> {
        Timer { start: Instant::now(), histogram: &self.attach }
    }

    /// Returns all metrics as OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Writing to a String does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_their_result() {
        let metrics = Metrics::default();
        metrics.call(KubeletCall::Prepare, true);
        metrics.call(KubeletCall::Prepare, false);
        metrics.call(KubeletCall::Prepare, false);
        metrics.field_dropped("spec.sharedCounters", true);
        let text = metrics.render();
        assert!(text.contains("netclaim_server_field_dropped{field=\"spec.sharedCounters\"} 1"), "{text}");
        assert!(text.contains("netclaim_claims_total{call=\"Prepare\",result=\"Error\"} 2"), "{text}");
    }
}
