//! The cluster controller of netclaim: what has to be done once in a cluster and not on each node.
//!
//! | module | what it does |
//! |---|---|
//! | `leader` | lets one of several replicas do the rest |
//! | `networks` | the loop: watches, writes the status of Networks, publishes |
//! | `verdict` | whether a Network is accepted, and the status that says so |
//! | `nodes` | on how many nodes a Network is |
//! | [`pools`] | Networks of scope `Cluster` as pools of the cluster |
//! | `metrics` | `/metrics`, `/healthz`, `/readyz` |
//!
//! Nodes go on without the controller: what it published stays, and pods are attached by agents alone.

mod args;
mod leader;
mod metrics;
mod networks;
mod nodes;
mod policies;
pub mod pools;
mod verdict;

use std::{net::SocketAddr, path::PathBuf, pin::pin, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use netclaim_slices::{PublisherConfig, Scope};
use thiserror::Error;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    leader::{Candidacy, Candidate},
    metrics::Metrics,
    networks::Settings,
};

pub use args::Args;
pub use leader::LeaderError;

/// Between two tries to become a candidate.
const RETRY: Duration = Duration::from_secs(2);

/// How long a last write may take.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Why the controller ends.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("cannot use kubeconfig {}", path.display())]
    Kubeconfig { path: PathBuf, source: kube::config::KubeconfigError },
    #[error("cannot find out how to reach the API server: outside of a pod, give --kubeconfig")]
    Infer(#[source] kube::config::InferConfigError),
    #[error("cannot set up the client for the API server")]
    Client(#[source] kube::Error),
    #[error("cannot use --driver-name")]
    DriverName(#[source] netclaim_slices::ConfigError),
    #[error("cannot serve metrics on {address}: give another --metrics-address")]
    Metrics { address: SocketAddr, source: std::io::Error },
    #[error("cannot wait for signals")]
    Signal(#[source] std::io::Error),
    #[error("cannot lead")]
    Leader(#[source] LeaderError),
    #[error("the publisher of pools stopped")]
    Publisher(#[source] tokio::task::JoinError),
}

/// Runs the controller until SIGTERM or SIGINT; the lease is given back then.
///
/// # Errors
/// [`Error`]: a setting cannot work, or the lease is lost.
pub async fn run(args: Args) -> Result<(), Error> {
    let shutdown = CancellationToken::new();
    tokio::spawn(cancel_on_signal(shutdown.clone()).map_err(Error::Signal)?);
    let metrics = Metrics::default();
    let address = args.metrics_address;
    let failed = |source| Error::Metrics { address, source };
    let server = metrics.clone().serve(TcpListener::bind(address).await.map_err(failed)?);
    tokio::select! {
        never = server => match never {},
        result = control(args, metrics, shutdown) => result,
    }
}

fn cancel_on_signal(shutdown: CancellationToken) -> std::io::Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("asked to stop");
        shutdown.cancel();
    })
}

async fn control(args: Args, metrics: Metrics, shutdown: CancellationToken) -> Result<(), Error> {
    let config = config(&args).await?;
    let client = Client::try_from(config.clone()).map_err(Error::Client)?;
    let identity = args.identity();
    let publisher =
        PublisherConfig::new(&args.driver_name, "controller", Scope::Cluster).map_err(Error::DriverName)?;
    let settings = Settings { driver: args.driver_name, publisher, identity: identity.clone() };
    let candidacy = Candidacy {
        namespace: args.namespace.unwrap_or_else(|| config.default_namespace.clone()),
        lease: args.lease_name,
        identity,
    };

    let election = async {
        let mut candidate = register(&config, &candidacy).await?;
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
    let mut work = pin!(networks::run(client, settings, metrics.clone(), stop.clone()));
    let outcome = tokio::select! {
        error = candidate.lost() => Err(Error::Leader(error)),
        () = shutdown.cancelled() => Ok(()),
        result = &mut work => return result.map_err(Error::Publisher),
    };
    stop.cancel();
    if outcome.is_ok() {
        let _ = timeout(LAST_WRITE, work).await;
        candidate.resign().await;
    }
    outcome
}

async fn config(args: &Args) -> Result<Config, Error> {
    let Some(path) = &args.kubeconfig else {
        return Config::infer().await.map_err(Error::Infer);
    };
    let failed = |source| Error::Kubeconfig { path: path.clone(), source };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(failed)
}

/// Becomes a candidate as soon as the API server answers.
async fn register(config: &Config, candidacy: &Candidacy) -> Result<Candidate, Error> {
    loop {
        match Candidate::register(config.clone(), candidacy).await {
            Ok(candidate) => return Ok(candidate),
            Err(error @ LeaderError::Client(_)) => return Err(Error::Leader(error)),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "will try again");
                sleep(RETRY).await;
            }
        }
    }
}
