//! Which cluster a command talks to.

use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// The options that choose a cluster.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig file [default: $KUBECONFIG, or ~/.kube/config]
    #[arg(long)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: the current one]
    #[arg(long)]
    pub(crate) context: Option<String>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// No cluster is configured.
    #[error("cannot use the kubeconfig: see --kubeconfig and --context")]
    Kubeconfig(#[source] KubeconfigError),
    /// The configuration makes no client.
    #[error("cannot connect to the cluster")]
    Client(#[source] kube::Error),
}

impl ClusterArgs {
    /// Returns a client of the chosen cluster. It has not connected yet.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) async fn client(&self) -> Result<Client, ConnectError> {
        let config = self.config().await.map_err(ConnectError::Kubeconfig)?;
        Client::try_from(config).map_err(ConnectError::Client)
    }

    async fn config(&self) -> Result<Config, KubeconfigError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match &self.kubeconfig {
            Some(path) => Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await,
            None => Config::from_kubeconfig(&options).await,
        }
    }
}
