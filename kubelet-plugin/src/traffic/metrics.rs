//! What attachments receive and send, as metrics, where their ClaimNetworks ask for it.
//!
//! The counters are read at a scrape, at most every [`FRESH`]: who reaches the port cannot have the agent
//! enter pods' namespaces more often. While no ClaimNetwork asks, nothing is read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netclaim_api::network::TrafficMetrics as Wanted;
use netclaim_driver::attach::{Attach, Attacher, Observer};
use netclaim_driver::links::{Counters, Passed};
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

use super::look::look;
use crate::inventory::Inventory;
use crate::pods::attached::attached;
use crate::pods::owner::{Owner, Plan};

/// How long what was read is served.
const FRESH: Duration = Duration::from_secs(5);

/// How long a scrape waits for the counters: it has 10 s for everything.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// One attachment, by the names that a pod's other metrics have, too.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Attachment {
    namespace: String,
    pod: String,
    interface: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Direction {
    #[prometheus(flatten)]
    attachment: Attachment,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Info {
    #[prometheus(flatten)]
    attachment: Attachment,
    network: String,
    claim: String,
    uplink: String,
}

const RECEIVE: &str = "receive";
const TRANSMIT: &str = "transmit";

/// What passes through attachments.
#[derive(Clone)]
pub(crate) struct TrafficMetrics {
    info: Family<Info, Gauge>,
    granted: Family<Attachment, Gauge>,
    bytes: Family<Direction, Counter>,
    packets: Family<Direction, Counter>,
    dropped: Family<Direction, Counter>,
}

impl TrafficMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let attachment = [
            Label::any("namespace", "the pod's namespace"),
            Label::any("pod", "the pod"),
            Label::any("interface", "the interface in the pod"),
        ];
        let info = [
            Label::any("network", "the ClaimNetwork"),
            Label::any("claim", "the ResourceClaim"),
            Label::any("uplink", "the link of the node; empty without one"),
        ];
        let direction = [Label::one_of("direction", &[RECEIVE, TRANSMIT])];
        let of_direction = || [&attachment[..], &direction].concat();
        Self {
            info: registry.add(
                "attachment_info",
                "1 for each attachment of a ClaimNetwork with `trafficMetrics: Attachments`",
                [&attachment[..], &info].concat(),
                Family::default(),
            ),
            granted: registry.add(
                "attachment_granted_bytes_per_second",
                "Bandwidth that the attachment's claim was granted, for each direction; none if it was granted none",
                attachment.clone(),
                Family::default(),
            ),
            bytes: registry.add(
                "attachment_bytes",
                "Bytes of frames that passed through the attachment's interface since it was made, as the pod sees it",
                of_direction(),
                Family::default(),
            ),
            packets: registry.add(
                "attachment_packets",
                "Packets that passed through the attachment's interface since it was made",
                of_direction(),
                Family::default(),
            ),
            dropped: registry.add(
                "attachment_dropped_packets",
                "Packets that the kernel dropped at the attachment's interface since it was made",
                of_direction(),
                Family::default(),
            ),
        }
    }

    /// Forgets all attachments.
    fn clear(&self) {
        self.info.clear();
        self.granted.clear();
        self.bytes.clear();
        self.packets.clear();
        self.dropped.clear();
    }

    /// Shows an attachment.
    pub(crate) fn set(&self, plan: &Plan, counters: Counters) {
        let owner = &plan.owner;
        let attachment = Attachment {
            namespace: owner.pod.namespace.clone(),
            pod: owner.pod.name.clone(),
            interface: plan.spec.if_name.to_string(),
        };
        let info = Info {
            attachment: attachment.clone(),
            network: plan.network.clone(),
            claim: owner.claim.name.clone(),
            uplink: owner.link.as_ref().map(|link| link.name.to_string()).unwrap_or_default(),
        };
        self.info.get_or_create(&info).set(1);
        if let Some(bandwidth) = owner.bandwidth.filter(|bandwidth| bandwidth.value() > 0) {
            let bytes = i64::try_from(bandwidth.value() / 8).unwrap_or(i64::MAX);
            self.granted.get_or_create(&attachment).set(bytes);
        }
        for (direction, passed) in [(RECEIVE, counters.received), (TRANSMIT, counters.sent)] {
            let Passed { bytes, packets, dropped, .. } = passed;
            let labels = Direction { attachment: attachment.clone(), direction };
            for (of, value) in [(&self.bytes, bytes), (&self.packets, packets), (&self.dropped, dropped)] {
                of.get_or_create(&labels).inner().store(value, Ordering::Relaxed);
            }
        }
    }
}

/// Reads the counters for scrapes.
pub(crate) struct TrafficReader<A: Attach, O: Observer> {
    metrics: TrafficMetrics,
    attacher: Arc<Attacher<A, O>>,
    inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// When the counters were read last.
    read: Mutex<Option<Instant>>,
}

impl<A: Attach, O: Observer<Owner = Owner>> TrafficReader<A, O> {
    /// Reads the counters of the attachments of this agent for these metrics.
    pub(crate) fn new(
        metrics: TrafficMetrics,
        attacher: Arc<Attacher<A, O>>,
        inventory: watch::Receiver<Option<Arc<Inventory>>>,
    ) -> Self {
        Self { metrics, attacher, inventory, read: Mutex::default() }
    }

    /// Reads them unless they are [fresh](FRESH), and returns what `render` makes of the metrics. Who
    /// scrapes at the same time waits.
    pub(crate) async fn render(&self, render: impl FnOnce() -> String) -> String {
        let mut read = self.read.lock().await;
        if read.is_none_or(|read| read.elapsed() >= FRESH) {
            let inventory = self.inventory.borrow().clone();
            let networks = inventory.iter().flat_map(|inventory| inventory.networks.iter());
            let wanting: BTreeSet<&str> = networks
                .filter(|(_, spec)| spec.traffic_metrics == Wanted::Attachments)
                .map(|(name, _)| name.as_str())
                .collect();
            let pods = attached(&*self.attacher, |plan| wanting.contains(&*plan.network));
            // Also where the client goes away meanwhile, or the look takes too long: the other metrics are
            // served without it.
            *read = Some(Instant::now());
            let looks = timeout(LOOK_TIMEOUT, look(&pods)).await.unwrap_or_default();
            self.metrics.clear();
            for (plan, found) in pods.iter().zip(looks).flat_map(|(pod, looks)| pod.plans.iter().zip(looks)) {
                if let Some((counters, _)) = found {
                    self.metrics.set(plan, counters);
                }
            }
        }
        render()
    }
}
