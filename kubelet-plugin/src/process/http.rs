//! `/metrics` for the cluster; `/healthz` (the process answers) and `/readyz` (the runtime tells us, and pods can be
//! attached) for the kubelet, on an address of the node's own: nobody else can take the probes away.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netclaim_process::http::{Answer, serve};
use tokio::net::TcpListener;

use crate::process::metrics::Metrics;

/// Pause before an address that is taken is tried again: no reason for pods to go without networks.
const TAKEN_PAUSE: Duration = Duration::from_secs(5);

/// Serves metrics until dropped.
pub async fn serve_metrics(address: SocketAddr, metrics: Arc<Metrics>) -> Infallible {
    let listener = bind(address, "--metrics-address").await;
    serve(listener, move |path| (path == "/metrics").then(|| Answer::Metrics(metrics.render()))).await
}

/// Serves probes until dropped.
pub async fn serve_health(
    address: SocketAddr,
    ready: impl Fn() -> Result<(), String> + Clone + Send + Sync + 'static,
) -> Infallible {
    let listener = bind(address, "--health-address").await;
    let answer = move |path: &str| match path {
        "/healthz" => Some(Answer::Ok),
        "/readyz" => Some(Answer::probe(ready())),
        _ => None,
    };
    serve(listener, answer).await
}

async fn bind(address: SocketAddr, flag: &str) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                tracing::error!(%address, %error, "cannot listen on {address}, trying again: see {flag}")
            }
        }
        tokio::time::sleep(TAKEN_PAUSE).await;
    }
}
