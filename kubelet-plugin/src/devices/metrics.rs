//! What is published, and the programs of CNI plugins.

use std::path::Path;

use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    plugin: String,
    path: String,
}

/// Says which programs are run for CNI plugins.
#[derive(Debug, Clone)]
pub(crate) struct PluginMetrics(Family<PluginLabels, Gauge>);

impl PluginMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        Self(registry.add(
            "cni_plugin_info",
            "1 for the program that is run for each CNI plugin that the node's ClaimNetworks use",
            [Label::any("plugin", "the type of a plugin"), Label::any("path", "the program")],
            Family::default(),
        ))
    }

    /// Sets whether the program at `path` is run for a CNI plugin.
    pub(crate) fn set(&self, plugin: &str, path: &Path, is_run: bool) {
        let labels = PluginLabels { plugin: plugin.to_owned(), path: path.display().to_string() };
        if is_run {
            self.0.get_or_create(&labels).set(1);
        } else {
            self.0.remove(&labels);
        }
    }
}

/// Says how the node's pool is published.
#[derive(Debug, Clone)]
pub(crate) struct PoolMetrics {
    /// 1 when no counters are published because the scheduler cannot work with them.
    pub(crate) without_counters: Gauge,
    /// 1 when the node's pool is published as it should be.
    pub(crate) published: Gauge,
    /// Devices that the published pool lacks.
    pub(crate) left_out: Gauge,
}

impl PoolMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let mut gauge = |name, help| registry.add(name, help, [], Gauge::default());
        Self {
            without_counters: gauge(
                "without_counters",
                "1 where no counters are published because the scheduler of this Kubernetes version cannot work with them, else 0",
            ),
            published: gauge("pool_published", "0 while the API server refuses the slices of the node"),
            left_out: gauge("devices_left_out", "Devices that cannot be published"),
        }
    }
}
