//! `/metrics`, `/healthz` (the process answers) and `/readyz` (the kubelet knows us and the runtime tells us).

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::get;

use crate::metrics::Metrics;

/// Serves until dropped.
///
/// # Errors
/// When the address cannot be listened on.
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
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, app).await
}
