//! What can be asked of a running controller: `/metrics`, `/healthz` and `/readyz`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
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

    /// Serves until the process ends.
    pub(crate) async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        let app = Router::new()
            .route("/healthz", get(|| async { "ok" }))
            .route("/readyz", get(readyz))
            .with_state(self.ready.clone())
            .route("/metrics", get(metrics))
            .with_state(Arc::new(self.registry()));
        axum::serve(listener, app).await
    }
}

async fn readyz(State(Ready(ready)): State<Ready>) -> impl IntoResponse {
    if ready.load(Ordering::Relaxed) {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready: waiting for the API server, see the log")
    }
}

async fn metrics(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], text),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], error.to_string())
        }
    }
}
