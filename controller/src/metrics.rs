//! What can be asked of a running controller: `/metrics`, `/healthz` and `/readyz`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netclaim_process::http::{Answer, serve};
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

/// Whether a Network is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Accepted {
    pub(crate) accepted: bool,
}

/// Whether a pool is published as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Published {
    pub(crate) published: bool,
}

/// A field of ResourceSlices.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Field {
    pub(crate) field: &'static str,
}

/// Figures about this replica. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) leader: Gauge,
    pub(crate) networks: Family<Accepted, Gauge>,
    pub(crate) pools: Family<Published, Gauge>,
    pub(crate) dropped: Family<Field, Gauge>,
    pub(crate) status_writes: Counter,
    pub(crate) ready: Ready,
}

/// Whether this replica does what it is there for, be it to wait for its turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ready(Arc<AtomicBool>);

impl Ready {
    pub(crate) fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    fn get(&self) -> Result<(), String> {
        match self.0.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("not ready: waiting for the API server, see the log".to_owned()),
        }
    }
}

impl Metrics {
    fn registry(&self) -> Registry {
        let Self { leader, networks, pools, dropped, status_writes, ready: _ } = self;
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
        registry
    }

    /// Serves until dropped.
    pub(crate) async fn serve(self, listener: TcpListener) -> Infallible {
        let (registry, ready) = (Arc::new(self.registry()), self.ready);
        let answer = move |path: &str| match path {
            "/metrics" => Some(metrics(&registry)),
            "/healthz" => Some(Answer::Ok),
            "/readyz" => Some(Answer::probe(ready.get())),
            _ => None,
        };
        serve(listener, answer).await
    }
}

fn metrics(registry: &Registry) -> Answer {
    let mut text = String::new();
    match encode(&mut text, registry) {
        Ok(()) => Answer::Metrics(text),
        Err(error) => Answer::Unavailable(format!("cannot write the metrics down: {error}")),
    }
}
