//! `/metrics`, `/healthz` (the process answers) and `/readyz` (the kubelet knows us and the runtime tells us).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::get;

use crate::metrics::Metrics;

/// Pause before an address that is taken is tried again: no reason for pods to go without networks.
const TAKEN_PAUSE: Duration = Duration::from_secs(5);

/// Serves until dropped.
///
/// # Errors
/// When the listener breaks.
pub async fn serve(
    address: SocketAddr,
    metrics: Arc<Metrics>,
    ready: impl Fn() -> Result<(), String> + Clone + Send + Sync + 'static,
) -> std::io::Result<()> {
    let render = move || async move {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], metrics.render())
    };
    let readyz = move || async move {
        match ready() {
            Ok(()) => (StatusCode::OK, "ok".to_owned()).into_response(),
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason).into_response(),
        }
    };
    let app = Router::new()
        .route("/metrics", get(render))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readyz));
    let listener = loop {
        match tokio::net::TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                tracing::error!(%address, %error, "cannot serve metrics, trying again: see --metrics-address")
            }
        }
        tokio::time::sleep(TAKEN_PAUSE).await;
    };
    axum::serve(listener, app).await
}
