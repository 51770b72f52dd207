//! `/metrics` and `/readyz` for the cluster; `/healthz` (the process answers) and `/readyz` (pods can be
//! attached) for the kubelet.
//!
//! The kubelet's probes have an address that only the node reaches, so other clients cannot exhaust it.
//! `netclaimctl status` asks the other one, through the API server.

use std::convert::Infallible;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netclaim_process::http::{Answer, serve};
use tokio::net::TcpListener;

use netclaim_driver::attach::{Attach, Observer};

use super::metrics::Metrics;
use crate::pods::owner::Owner;
use crate::traffic::metrics::TrafficReader;

/// From one try to bind an address that is taken to the next. Pods get their networks meanwhile.
const BIND_INTERVAL: Duration = Duration::from_secs(5);

/// Serves metrics until dropped, and what the agent lacks.
pub(crate) async fn serve_metrics<E: Display, A: Attach, O: Observer<Owner = Owner>>(
    address: SocketAddr,
    metrics: Arc<Metrics>,
    traffic: Arc<TrafficReader<A, O>>,
    check_readiness: impl Fn() -> Result<(), E> + Clone + Send + Sync + 'static,
) -> Infallible {
    let listener = bind(address, "--metrics-address").await;
    let answer = move |path: String| {
        let (metrics, traffic, check_readiness) =
            (Arc::clone(&metrics), Arc::clone(&traffic), check_readiness.clone());
        async move {
            match &*path {
                "/metrics" => Some(Answer::Metrics(traffic.render(|| metrics.registry.render()).await)),
                "/readyz" => Some(Answer::probe(check_readiness())),
                _ => None,
            }
        }
    };
    serve(listener, answer).await
}

/// Serves probes until dropped; `check_readiness` fails with why no pod can be attached.
pub(crate) async fn serve_health<E: Display>(
    address: SocketAddr,
    check_readiness: impl Fn() -> Result<(), E> + Clone + Send + Sync + 'static,
) -> Infallible {
    let listener = bind(address, "--health-address").await;
    let answer = move |path: String| {
        std::future::ready(match &*path {
            "/healthz" => Some(Answer::Ok),
            "/readyz" => Some(Answer::probe(check_readiness())),
            _ => None,
        })
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
        tokio::time::sleep(BIND_INTERVAL).await;
    }
}
