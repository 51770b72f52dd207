//! `/metrics`, `/healthz` and `/readyz` of a running controller.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netclaim_process::http::{Answer, serve};
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::net::TcpListener;

/// Label: whether a Network is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Accepted {
    pub(crate) accepted: bool,
}

/// Label: whether a pool is published as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Published {
    pub(crate) published: bool,
}

/// Label: a field of ResourceSlices.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Field {
    pub(crate) field: &'static str,
}

/// Counters and gauges of this replica. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) leader: Gauge,
    pub(crate) networks: Family<Accepted, Gauge>,
    pub(crate) pools: Family<Published, Gauge>,
    pub(crate) dropped: Family<Field, Gauge>,
    pub(crate) status_writes: Counter,
    pub(crate) addresses: Family<Vec<(&'static str, String)>, Gauge>,
    pub(crate) blocks_created: Counter,
    pub(crate) blocks_removed: Counter,
    pub(crate) address_moves: Counter,
    pub(crate) ready: Ready,
}

/// Whether this replica leads or can take over. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ready(Arc<AtomicBool>);

impl Ready {
    pub(crate) fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    fn probe(&self) -> Answer {
        Answer::probe(self.0.load(Ordering::Relaxed).then_some(()).ok_or(NotReady))
    }
}

#[derive(Debug, Error)]
#[error("not ready: waiting for the API server, see the log")]
struct NotReady;

impl Metrics {
    fn registry(&self) -> Registry {
        let Self { leader, networks, pools, dropped, status_writes, .. } = self;
        let Self { addresses, blocks_created, blocks_removed, address_moves, .. } = self;
        let mut registry = Registry::with_prefix("netclaim_controller");
        registry.register("leader", "1 if this replica leads, else 0", leader.clone());
        registry.register("networks", "Networks by whether they are accepted", networks.clone());
        registry.register(
            "pools",
            "Pools of cluster-wide Networks by whether they are published as they should be",
            pools.clone(),
        );
        registry.register(
            "server_field_dropped",
            "1 for each field of ResourceSlices that the API server does not store, else 0",
            dropped.clone(),
        );
        registry.register("status_writes", "Status of Networks written", status_writes.clone());
        registry.register(
            "addresses",
            "Addresses of each Network's own ranges or AddressPool: size, leased to nodes, used by pods, free",
            addresses.clone(),
        );
        registry.register("blocks_created", "AddressBlocks created", blocks_created.clone());
        registry.register(
            "blocks_removed",
            "AddressBlocks that the controller has deleted",
            blocks_removed.clone(),
        );
        registry.register(
            "address_moves",
            "Empty AddressBlocks deleted because another node needs them",
            address_moves.clone(),
        );
        registry
    }

    /// Serves metrics and probes until dropped.
    pub(crate) async fn serve(self, listener: TcpListener) -> Infallible {
        let (registry, ready) = (Arc::new(self.registry()), self.ready);
        let answer = move |path: &str| match path {
            "/metrics" => Some(metrics(&registry)),
            "/healthz" => Some(Answer::Ok),
            "/readyz" => Some(ready.probe()),
            _ => None,
        };
        serve(listener, answer).await
    }
}

fn metrics(registry: &Registry) -> Answer {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = encode(&mut text, registry);
    Answer::Metrics(text)
}
