//! The cluster controller of netclaim: what is done once in a cluster and not on each node.
//!
//! ```text
//!   leader: one of several replicas leads, and runs the reconciler
//!
//!   ClaimNetworks ────┐             ┌─> networks: on which nodes each is ──> status, events, labels of Nodes
//!   ResourceSlices ───┤             │     └─ cluster_pools ──> netclaim_slices ──> slices of the cluster
//!   Nodes ────────────┼─ reconciler ┼─> policies ─────────> status, events
//!   AddressPools ─────┤             └─> addresses ────────> status, events
//!   UplinkPolicies ───┤                   │
//!   DeviceClasses ────┘ (classes ───────> DeviceClasses, events)
//!   AddressBlocks, AddressLeases ─────────┴─ leasing ─────> AddressBlocks of nodes
//!                                              ▲
//!   Pods ─────> pods: who waits for an address ┘
//!   slices, claims ──> └─ explaining ──> netclaim_allocation ──> events of pods
//!
//!   Namespaces, templates, pods ──> defaults ──> templates of claims that pods get without asking
//!
//!   NetworkAttachments, pods, claims ──> hot_attach ──> claims and probe pods, by which running pods get networks
//!
//!   ConfigMap, API groups ──> autoscalers ──> reconciler: a warning for ClaimNetworks of scope `Cluster`
//!
//!   API server ──> netclaim_webhook, which every replica serves if --webhook-address is set
//! ```
//!
//! Invariants:
//! * Everything that is written follows from what the API server stores: `networks`, `classes`, `policies`,
//!   `leasing` and `pool_status` are pure.
//! * Nodes do not need the controller: published pools stay, and agents attach pods alone.
//! * A replica that loses its lease exits.

mod addresses;
mod args;
mod autoscalers;
mod classes;
mod defaults;
mod demand;
mod hot_attach;
mod leader;
mod metrics;
mod networks;
mod objects;
mod pods;
mod policies;
mod reconciler;

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use kube::{Client, Config};
use netclaim_process::Stop;
use netclaim_process::kubernetes::{self, ConfigError};
use netclaim_slices::{PublisherConfig, Scope};
use netclaim_webhook::{Certificates, Names, Webhook, WebhookError};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::autoscalers::Lookout;
use crate::hot_attach::HotAttach;
use crate::leader::{Candidacy, Candidate};
use crate::metrics::Metrics;
use crate::reconciler::Settings;

#[doc(hidden)]
pub use addresses::blocks::door;
pub use args::Args;
pub use leader::LostLease;

/// Returns what the controller's metrics are.
pub fn metrics() -> Vec<netclaim_process::metrics::Description> {
    Metrics::default().registry().descriptions().to_vec()
}

/// How long a last write may take.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the controller ends.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error(transparent)]
    Config(ConfigError),
    #[error("cannot set up the client for the API server")]
    Client(#[source] kube::Error),
    #[error("cannot use --driver-name")]
    DriverName(#[source] netclaim_slices::ConfigError),
    #[error("cannot serve metrics on {address}: give another --metrics-address")]
    Metrics { address: std::net::SocketAddr, source: std::io::Error },
    #[error("cannot wait for signals")]
    Signal(#[source] std::io::Error),
    #[error("cannot lead")]
    Leader(#[source] LostLease),
    #[error("the publisher of pools stopped")]
    Publisher(#[source] tokio::task::JoinError),
    #[error(transparent)]
    Webhook(WebhookError),
}

/// Runs the controller until SIGTERM or SIGINT, and then releases the lease.
///
/// # Errors
/// [`Error`]: a setting cannot work, or the lease is lost.
pub async fn run(args: Args) -> Result<(), Error> {
    let mut stop = Stop::new().map_err(Error::Signal)?;
    let shutdown = CancellationToken::new();
    let stopped = shutdown.clone();
    tokio::spawn(async move {
        stop.requested().await;
        tracing::info!("asked to stop");
        stopped.cancel();
    });
    let metrics = Metrics::default();
    let address = args.metrics_address;
    let failed = |source| Error::Metrics { address, source };
    let server = metrics.clone().serve(TcpListener::bind(address).await.map_err(failed)?);
    let config =
        kubernetes::config("netclaim-controller", args.kubeconfig.as_deref()).await.map_err(Error::Config)?;
    let client = kubernetes::client(config.clone()).map_err(Error::Client)?;
    let webhook = webhook(&args, &config, &metrics).await.map_err(Error::Webhook)?;
    let reviews = serve(webhook, client.clone(), args.driver_name.clone());
    tokio::select! {
        never = server => match never {},
        result = reviews => match result.map_err(Error::Webhook)? {},
        result = control(args, config, client, metrics, shutdown) => result,
    }
}

/// Listens for the API server's questions, if the flags ask for it.
async fn webhook(args: &Args, config: &Config, metrics: &Metrics) -> Result<Option<Webhook>, WebhookError> {
    let Some(address) = args.webhook_address else { return Ok(None) };
    let certificates = match args.webhook_certificate_dir.clone() {
        Some(dir) => Certificates::Directory(dir),
        None => Certificates::Own,
    };
    let names = Names { namespace: args.namespace(config), name: args.webhook_name.clone() };
    let webhook = Webhook::bind(address, names, certificates, metrics.webhook.clone()).await?;
    metrics.ready.needs(webhook.health());
    Ok(Some(webhook))
}

async fn serve(webhook: Option<Webhook>, client: Client, driver: String) -> Result<Infallible, WebhookError> {
    match webhook {
        Some(webhook) => webhook.run(client, &driver).await,
        None => std::future::pending().await,
    }
}

async fn control(
    args: Args,
    config: Config,
    client: Client,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let (identity, namespace) = (args.identity(), args.namespace(&config));
    let publisher =
        PublisherConfig::new(&args.driver_name, "controller", Scope::Cluster).map_err(Error::DriverName)?;
    let settings = Settings {
        driver: args.driver_name.clone(),
        publisher,
        identity: identity.clone(),
        node_gone_after: Duration::from_secs(args.node_gone_after),
        explain_pending_pods: args.explain_pending_pods,
        no_defaults_in: args
            .default_networks
            .then(|| args.default_networks_except.into_iter().map(|name| name.trim().to_owned()).collect()),
        hot_attach: args.hot_attach.then(|| HotAttach {
            namespace: namespace.clone(),
            driver: args.driver_name.clone(),
            config: config.clone(),
        }),
        lookout: Lookout {
            namespace: args.autoscaler_namespace,
            period: Some(args.autoscaler_period).filter(|period| *period > 0).map(Duration::from_secs),
        },
    };
    let candidacy = Candidacy { namespace, lease: args.lease_name, identity };

    let election = async {
        let mut candidate = Candidate::register(config, &candidacy).await.map_err(Error::Client)?;
        metrics.ready.set(true);
        let Candidacy { namespace, lease, identity } = &candidacy;
        tracing::info!(namespace, lease, identity, "waiting for the lease");
        candidate.elected().await;
        Ok(candidate)
    };
    let Some(mut candidate) = shutdown.run_until_cancelled(election).await.transpose()? else {
        return Ok(());
    };

    tracing::info!("leading");
    metrics.leader.set(1);
    metrics.ready.set(false);
    let stop = CancellationToken::new();
    let mut work = pin!(reconciler::run(client, settings, metrics.clone(), stop.clone()));
    let outcome = tokio::select! {
        lost = candidate.lost() => Err(Error::Leader(lost)),
        () = shutdown.cancelled() => Ok(()),
        result = &mut work => return result.map_err(Error::Publisher),
    };
    stop.cancel();
    if outcome.is_ok() {
        let _ = timeout(LAST_WRITE_TIMEOUT, work).await;
        candidate.resign().await;
    }
    outcome
}
