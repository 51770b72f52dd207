//! Which ClaimNetworks can serve a pod, and how long their operations take.

use std::time::Duration;

use netclaim_api::NetworkName;
use netclaim_api::device::DeviceName;
use netclaim_driver::attach::{Cause, End, Operation};
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::pods::owner::Plan;

/// From a plugin that only writes to the kernel to one that uses its whole timeout, in seconds.
pub(crate) const OPERATION_SECONDS: [f64; 12] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NetworkLabels {
    network: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    network: String,
    verb: &'static str,
    outcome: &'static str,
    cause: &'static str,
}

impl OperationLabels {
    fn of(network: String, operation: Operation, end: End, cause: Option<Cause>) -> Self {
        let cause = cause.map_or("", Cause::as_str);
        Self { network, verb: operation.as_str(), outcome: end.as_str(), cause }
    }
}

/// Measures ClaimNetworks.
#[derive(Clone)]
pub(crate) struct NetworkMetrics {
    available: Family<NetworkLabels, Gauge>,
    operations: Family<OperationLabels, Histogram>,
}

impl NetworkMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        Self {
            available: registry.add(
                "network_available",
                "0 while a plugin of the ClaimNetwork is not installed, or STATUS or a file of facts says that it cannot serve a pod",
                [Label::any("network", "a ClaimNetwork")],
                Family::default(),
            ),
            operations: registry.add_seconds(
                "operation_duration",
                "How long an ADD or DEL took, with the wait for its turn",
                [
                    Label::any(
                        "network",
                        "a ClaimNetwork; empty for a link's own devices, and for a ClaimNetwork that is gone",
                    ),
                    Label::one_of("verb", &Operation::ALL.map(Operation::as_str)),
                    Label::one_of("outcome", &End::ALL.map(End::as_str)),
                    Label::any(
                        "cause",
                        "why it failed: `PluginMissing`, `PluginNotReady` (CNI error 50), `PluginLimited` (51), `TryAgainLater` (11), `OutOfAddresses`, `AddressInUse`, `GatewayUnreachable`, `TimedOut` or `Other`; empty for other outcomes",
                    ),
                ],
                Family::new_with_constructor(|| Histogram::new(OPERATION_SECONDS)),
            ),
        }
    }

    /// Sets whether a ClaimNetwork can serve a pod.
    pub(crate) fn set_available(&self, network: &str, available: bool) {
        let labels = NetworkLabels { network: network.to_owned() };
        self.available.get_or_create(&labels).set(i64::from(available));
    }

    /// Forgets a ClaimNetwork that is gone.
    pub(crate) fn forget(&self, network: &str) {
        let network = network.to_owned();
        self.available.remove(&NetworkLabels { network: network.clone() });
        for operation in Operation::ALL {
            for end in End::ALL {
                for cause in Cause::ALL.map(Some).into_iter().chain([None]) {
                    self.operations.remove(&OperationLabels::of(network.clone(), operation, end, cause));
                }
            }
        }
    }

    /// Measures an ADD or DEL.
    pub(crate) fn operation(
        &self,
        plan: &Plan,
        operation: Operation,
        end: End,
        cause: Option<Cause>,
        took: Duration,
    ) {
        // The DELs of a ClaimNetwork that is gone would make series that are never removed.
        let mut network = network_of(plan).map(|name| name.to_string()).unwrap_or_default();
        if self.available.get(&NetworkLabels { network: network.clone() }).is_none() {
            network.clear();
        }
        let labels = OperationLabels::of(network, operation, end, cause);
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

/// The ClaimNetwork of a plan. A link's own devices have none, so that the label has as many values as there
/// are ClaimNetworks.
pub(crate) fn network_of(plan: &Plan) -> Option<NetworkName> {
    match plan.owner.device.device.parse() {
        Ok(DeviceName::Network(name)) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn plan(device: &str) -> Plan {
        let mut plan = fixtures::plan("c");
        plan.owner.device.device = device.to_owned();
        plan
    }

    #[test]
    fn operations_on_links_of_their_own_have_no_network() {
        let mut registry = Registry::new("netclaim");
        let metrics = NetworkMetrics::new(&mut registry);
        metrics.set_available("storage", true);
        for device in ["nic-eth1", "macvlan-eth2", "net-storage"] {
            metrics.operation(&plan(device), Operation::Add, End::Succeeded, None, Duration::ZERO);
        }
        let text = registry.render();
        let count = |network: &str| {
            format!(
                "netclaim_operation_duration_seconds_count{{network=\"{network}\",verb=\"ADD\",outcome=\"Ok\",cause=\"\"}}"
            )
        };
        assert!(text.contains(&format!("{} 2", count(""))) && text.contains(&count("storage")), "{text}");
        let full = Some(Cause::OutOfAddresses);
        metrics.operation(&plan("net-storage"), Operation::Add, End::Failed, full, Duration::ZERO);
        assert!(registry.render().contains("cause=\"OutOfAddresses\""));
        metrics.forget("storage");
        metrics.operation(&plan("net-storage"), Operation::Del, End::Succeeded, None, Duration::ZERO);
        assert!(!registry.render().contains("storage"), "a ClaimNetwork that is gone has no series");
    }
}
