//! `/metrics`, `/healthz` and `/readyz` of a running controller.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use netclaim_api::reasons::{AddressesReason, Reason as _};
use netclaim_process::http::{Answer, serve};
use netclaim_process::label_values;
use netclaim_process::metrics::{Label, Registry};
use netclaim_webhook::{Health, NotServing};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use thiserror::Error;
use tokio::net::TcpListener;

/// Label: whether a ClaimNetwork is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Accepted {
    pub(crate) accepted: bool,
}

/// Label: whether a ClaimNetwork has addresses for its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Addressing {
    pub(crate) reason: &'static str,
}

/// Label: whether a pool is published as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Published {
    pub(crate) published: bool,
}

label_values! {
    /// What came of the judgement of a pod.
    pub(crate) enum Outcome {
        /// An event was written.
        Reported = "Reported",
        /// An earlier event has the cause, or events of other pods of the group.
        Known = "Known",
        /// A node can serve it, so that the scheduler has another reason.
        Served = "Served",
        /// No node takes it, whatever its claims.
        NotTaken = "NotTaken",
        /// It is not known why it waits.
        Unknown = "Unknown",
        /// It asks for devices of other drivers.
        Foreign = "Foreign",
        /// The cluster could not be read, or the event not be written.
        Failed = "Failed",
    }
}

/// Label: what came of the judgement of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Explained {
    pub(crate) outcome: Outcome,
}

label_values! {
    /// How far a NetworkAttachment is.
    pub(crate) enum AttachmentState {
        /// It has no devices.
        Waiting = "Waiting",
        /// It has devices, and the agent attaches.
        Allocated = "Allocated",
        /// The pod has its interfaces.
        Attached = "Attached",
        /// The agent detaches.
        Detaching = "Detaching",
    }
}

/// Label: how far NetworkAttachments are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OfState {
    pub(crate) state: AttachmentState,
}

label_values! {
    /// What came of asking for the devices of a NetworkAttachment.
    pub(crate) enum ProbeOutcome {
        /// The scheduler has allocated them.
        Allocated = "Allocated",
        /// It has not within 5 s.
        NotAllocated = "NotAllocated",
        /// The API server or netclaim refuses it.
        Refused = "Refused",
    }
}

/// Label: what came of asking for devices.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Probed {
    pub(crate) outcome: ProbeOutcome,
}

/// Counters and gauges of this replica. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) leader: Gauge,
    pub(crate) networks: Family<Accepted, Gauge>,
    pub(crate) pools: Family<Published, Gauge>,
    pub(crate) status_writes: Counter,
    pub(crate) addresses: Family<Vec<(&'static str, String)>, Gauge>,
    pub(crate) addressing: Family<Addressing, Gauge>,
    pub(crate) blocks_created: Counter,
    pub(crate) blocks_removed: Counter,
    pub(crate) address_moves: Counter,
    pub(crate) pods_explained: Family<Explained, Counter>,
    pub(crate) attachments: Family<OfState, Gauge>,
    pub(crate) probes: Family<Probed, Counter>,
    pub(crate) webhook: netclaim_webhook::Metrics,
    pub(crate) ready: Ready,
}

/// Whether this replica leads or can take over; with a webhook, whether it can answer API servers. Clones
/// share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ready {
    is_synced: Arc<AtomicBool>,
    /// That of the webhook, if there is one.
    webhook: Arc<OnceLock<Health>>,
}

impl Ready {
    pub(crate) fn set(&self, ready: bool) {
        self.is_synced.store(ready, Ordering::Relaxed);
    }

    /// Makes this replica ready only while the webhook can answer, so that Services do not route to it
    /// before.
    pub(crate) fn needs(&self, webhook: &Health) {
        self.webhook.get_or_init(|| webhook.clone());
    }

    fn check(&self) -> Result<(), NotReady> {
        ready(self.is_synced.load(Ordering::Relaxed), self.webhook.get().map(Health::check))
    }
}

/// Whether a replica is ready that knows the cluster, or does not; `webhook` says whether its webhook
/// answers, if it has one.
fn ready(is_synced: bool, webhook: Option<Result<(), NotServing>>) -> Result<(), NotReady> {
    match webhook {
        // Reviews need nothing of the cluster: a replica that has just become the leader goes on answering
        // them.
        Some(answers) => Ok(answers?),
        None if is_synced => Ok(()),
        None => Err(NotReady::ApiServer),
    }
}

#[derive(Debug, PartialEq, Eq, Error)]
enum NotReady {
    #[error("not ready: waiting for the API server, see the log")]
    ApiServer,
    #[error("not ready: {0}")]
    Webhook(#[from] NotServing),
}

/// States of the addresses of a pool.
pub(crate) const ADDRESS_STATES: [&str; 4] = ["Size", "Leased", "Used", "Free"];

impl Metrics {
    pub(crate) fn registry(&self) -> Registry {
        let Self { leader, networks, pools, status_writes, .. } = self.clone();
        let Self {
            addresses, addressing, blocks_created, blocks_removed, address_moves, pods_explained, ..
        } = self.clone();
        let is = |name| Label::one_of(name, &["true", "false"]);
        let reasons: Vec<&str> = AddressesReason::ALL.iter().map(|reason| reason.as_str()).collect();
        let mut registry = Registry::new("netclaim_controller");
        registry.add("leader", "1 if this replica leads, else 0", [], leader);
        registry.add("networks", "ClaimNetworks by whether they are accepted", [is("accepted")], networks);
        registry.add(
            "pools",
            "Pools of cluster-wide ClaimNetworks by whether they are published as they should be",
            [is("published")],
            pools,
        );
        registry.add(
            "status_writes",
            "Statuses of ClaimNetworks, AddressPools and UplinkPolicies written",
            [],
            status_writes,
        );
        registry.add(
            "addresses",
            "Addresses of each ClaimNetwork's own ranges or AddressPool: size, leased to nodes, used by pods, free",
            [
                Label::any("network", "a ClaimNetwork with ranges of its own"),
                Label::any("pool", "an AddressPool"),
                Label::one_of("state", &ADDRESS_STATES),
            ],
            addresses,
        );
        registry.add(
            "networks_addressing",
            "ClaimNetworks with addresses by the reason of their condition AddressesAvailable",
            [Label::one_of("reason", &reasons)],
            addressing,
        );
        registry.add("blocks_created", "AddressBlocks created", [], blocks_created);
        registry.add("blocks_removed", "AddressBlocks that the controller has deleted", [], blocks_removed);
        registry.add(
            "address_moves",
            "Empty AddressBlocks deleted because another node needs them",
            [],
            address_moves,
        );
        registry.add(
            "pods_explained",
            "Pods that wait for a node and were judged",
            [Label::one_of("outcome", Outcome::VALUES)],
            pods_explained,
        );
        registry.add(
            "network_attachments",
            "NetworkAttachments by how far they are; only with --hot-attach",
            [Label::one_of("state", AttachmentState::VALUES)],
            self.attachments.clone(),
        );
        registry.add(
            "network_attachment_requests",
            "Times that the scheduler was asked for the devices of a NetworkAttachment",
            [Label::one_of("outcome", ProbeOutcome::VALUES)],
            self.probes.clone(),
        );
        self.webhook.register(&mut registry);
        registry
    }

    /// Serves metrics and probes until dropped.
    pub(crate) async fn serve(self, listener: TcpListener) -> Infallible {
        let (registry, ready) = (Arc::new(self.registry()), self.ready);
        let answer = move |path: String| {
            std::future::ready(match &*path {
                "/metrics" => Some(Answer::Metrics(registry.render())),
                "/healthz" => Some(Answer::Ok),
                "/readyz" => Some(Answer::probe(ready.check())),
                _ => None,
            })
        };
        serve(listener, answer).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::jiff::Timestamp;
    use netclaim_process::metrics::testing::assert_all_move;
    use netclaim_webhook::{Certificates, Kind, Names, Outcome, Source, Webhook};

    use super::*;

    #[test]
    fn every_metric_moves_with_the_labels_of_its_description() {
        let metrics = Metrics::default();
        let Metrics { networks, pools, addresses, .. } = &metrics;
        let one = |gauge: &Gauge| {
            gauge.set(1);
        };
        let count = |counter: &Counter| {
            counter.inc();
        };
        assert_all_move(
            &metrics.registry(),
            &[
                ("netclaim_controller_leader", &|| one(&metrics.leader)),
                ("netclaim_controller_networks", &|| {
                    for accepted in [true, false] {
                        one(&networks.get_or_create(&Accepted { accepted }));
                    }
                }),
                ("netclaim_controller_pools", &|| {
                    for published in [true, false] {
                        one(&pools.get_or_create(&Published { published }));
                    }
                }),
                ("netclaim_controller_status_writes_total", &|| count(&metrics.status_writes)),
                ("netclaim_controller_addresses", &|| {
                    for (of, state) in
                        ["network", "pool"].into_iter().flat_map(|of| ADDRESS_STATES.map(|s| (of, s)))
                    {
                        let labels = vec![(of, "storage".to_owned()), ("state", state.to_owned())];
                        one(&addresses.get_or_create(&labels));
                    }
                }),
                ("netclaim_controller_networks_addressing", &|| {
                    for reason in AddressesReason::ALL {
                        one(&metrics.addressing.get_or_create(&Addressing { reason: reason.as_str() }));
                    }
                }),
                ("netclaim_controller_blocks_created_total", &|| count(&metrics.blocks_created)),
                ("netclaim_controller_blocks_removed_total", &|| count(&metrics.blocks_removed)),
                ("netclaim_controller_address_moves_total", &|| count(&metrics.address_moves)),
                ("netclaim_controller_pods_explained_total", &|| {
                    for &outcome in super::Outcome::ALL {
                        count(&metrics.pods_explained.get_or_create(&Explained { outcome }));
                    }
                }),
                ("netclaim_controller_network_attachments", &|| {
                    for &state in AttachmentState::ALL {
                        one(&metrics.attachments.get_or_create(&OfState { state }));
                    }
                }),
                ("netclaim_controller_network_attachment_requests_total", &|| {
                    for &outcome in ProbeOutcome::ALL {
                        count(&metrics.probes.get_or_create(&Probed { outcome }));
                    }
                }),
                ("netclaim_controller_webhook_requests_total", &|| {
                    for (kind, outcome) in
                        Kind::ALL.iter().flat_map(|kind| Outcome::ALL.iter().map(move |o| (*kind, *o)))
                    {
                        metrics.webhook.request(kind, outcome);
                    }
                }),
                ("netclaim_controller_webhook_request_duration_seconds", &|| {
                    metrics.webhook.took(Duration::from_millis(1));
                }),
                ("netclaim_controller_webhook_certificate_expiry_timestamp_seconds", &|| {
                    for source in Source::ALL {
                        metrics.webhook.expires(*source, Timestamp::MAX);
                    }
                }),
            ],
        );
    }

    #[tokio::test]
    async fn a_replica_with_a_webhook_is_ready_when_it_has_a_certificate() {
        let ready = Ready::default();
        ready.set(true);
        assert_eq!(ready.check(), Ok(()));
        let names = Names { namespace: "netclaim-system".into(), name: "netclaim-webhook".into() };
        let certificates = Certificates::Directory("/nonexistent".into());
        let address = "127.0.0.1:0".parse().unwrap();
        let webhook =
            Webhook::bind(address, names, certificates, netclaim_webhook::Metrics::default()).await.unwrap();
        ready.needs(webhook.health());
        assert_eq!(ready.check(), Err(NotReady::Webhook(NotServing::Certificate)));
    }

    #[test]
    fn a_new_leader_goes_on_answering_reviews_while_it_reads_the_cluster() {
        assert_eq!(super::ready(false, Some(Ok(()))), Ok(()));
        for lacks in [NotServing::Certificate, NotServing::Path, NotServing::Reviews] {
            assert_eq!(super::ready(true, Some(Err(lacks))), Err(NotReady::Webhook(lacks)));
        }
        assert_eq!(super::ready(true, None), Ok(()));
        assert_eq!(super::ready(false, None), Err(NotReady::ApiServer));
    }
}
