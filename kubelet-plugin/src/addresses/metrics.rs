//! How many addresses the node has, and how many of them attachments have.

use netclaim_api::addresses;
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabels {
    network: String,
    family: &'static str,
    state: &'static str,
}

impl AddressLabels {
    const STATES: [&str; 2] = ["Free", "Used"];
    const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

    fn of(network: &str, family: addresses::Family, state: &'static str) -> Self {
        let family = match family {
            addresses::Family::V4 => "ipv4",
            addresses::Family::V6 => "ipv6",
        };
        Self { network: network.to_owned(), family, state }
    }
}

/// Says how many addresses there are.
#[derive(Clone)]
pub(crate) struct AddressMetrics {
    addresses: Family<AddressLabels, Gauge>,
    /// Pods with addresses of blocks that the node has lost.
    pub(crate) without_block: Gauge,
}

impl AddressMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        Self {
            addresses: registry.add(
                "addresses",
                "Addresses in the blocks that the node has of each ClaimNetwork, by whether attachments have them",
                [
                    Label::any("network", "a ClaimNetwork"),
                    Label::one_of("family", &AddressLabels::FAMILIES),
                    Label::one_of("state", &AddressLabels::STATES),
                ],
                Family::default(),
            ),
            without_block: registry.add(
                "pods_without_address_block",
                "Pods with addresses of blocks that the node has lost, and that other nodes may hand out",
                [],
                Gauge::default(),
            ),
        }
    }

    /// Forgets the addresses of a ClaimNetwork that is gone.
    pub(crate) fn forget(&self, network: &str, family: addresses::Family) {
        for state in AddressLabels::STATES {
            self.addresses.remove(&AddressLabels::of(network, family, state));
        }
    }

    /// Sets how many addresses the node's blocks of a ClaimNetwork have, and how many of them attachments
    /// have.
    pub(crate) fn set(&self, network: &str, family: addresses::Family, usable: u64, used: u64) {
        for (state, number) in AddressLabels::STATES.into_iter().zip([usable.saturating_sub(used), used]) {
            let labels = AddressLabels::of(network, family, state);
            self.addresses.get_or_create(&labels).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }
}
