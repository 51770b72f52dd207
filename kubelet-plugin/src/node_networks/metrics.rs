//! Which ClaimNetworks are set up on the node.

use std::collections::BTreeSet;

use netclaim_api::NetworkName;
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::states::{State, States};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    network: String,
}

impl Labels {
    fn of(network: &NetworkName) -> Self {
        Self { network: network.to_string() }
    }
}

/// Shows what is set up.
#[derive(Clone)]
pub(crate) struct SetUpMetrics(Family<Labels, Gauge>);

impl SetUpMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        Self(registry.add(
            "network_set_up",
            "1 while what `spec.node` of the ClaimNetwork makes is on the node, 0 while it is being made or removed, or fails; none where nothing of it is there",
            [Label::any("network", "a ClaimNetwork")],
            Family::default(),
        ))
    }

    /// Shows whether a ClaimNetwork is set up.
    pub(crate) fn set(&self, network: &NetworkName, is_set_up: bool) {
        self.0.get_or_create(&Labels::of(network)).set(i64::from(is_set_up));
    }

    /// Shows these. `shown` are those of the last time.
    pub(super) fn show(&self, states: &States, shown: &mut BTreeSet<NetworkName>) {
        for gone in shown.iter().filter(|name| !states.contains_key(*name)) {
            self.0.remove(&Labels::of(gone));
        }
        for (name, state) in states {
            self.set(name, *state == State::Ready);
        }
        *shown = states.keys().cloned().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_down_has_no_series() {
        let mut registry = Registry::new("netclaim");
        let (metrics, mut shown) = (SetUpMetrics::new(&mut registry), BTreeSet::new());
        let [a, b]: [NetworkName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        metrics.show(&[(a.clone(), State::Ready), (b, State::Failed("no".to_owned()))].into(), &mut shown);
        let line = |network: &str, value| format!("netclaim_network_set_up{{network=\"{network}\"}} {value}");
        let text = registry.render();
        assert!(text.contains(&line("a", 1)) && text.contains(&line("b", 0)), "{text}");
        metrics.show(&[(a, State::Working)].into(), &mut shown);
        let text = registry.render();
        assert!(text.contains(&line("a", 0)) && !text.contains("\"b\""), "{text}");
    }
}
