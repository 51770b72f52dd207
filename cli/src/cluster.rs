//! Which cluster a command reads, and how.

use std::path::PathBuf;

use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;

/// The flags that choose a cluster.
#[derive(Debug, clap::Args)]
pub struct Connection {
    /// The kubeconfig file [default: $KUBECONFIG, or ~/.kube/config]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: the current one]
    #[arg(long)]
    pub context: Option<String>,
}

/// Why a cluster cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No cluster is configured.
    #[error("cannot use the kubeconfig: see --kubeconfig and --context")]
    Kubeconfig(#[source] KubeconfigError),
    /// The configuration makes no client.
    #[error("cannot connect to the cluster")]
    Client(#[source] kube::Error),
    /// The API server does not list these objects.
    #[error("cannot list {what}")]
    List {
        /// The objects.
        what: &'static str,
        /// What the API server says.
        #[source]
        source: kube::Error,
    },
    /// The API server does not return this object.
    #[error("cannot read {what}")]
    Get {
        /// The object.
        what: String,
        /// What the API server says.
        #[source]
        source: kube::Error,
    },
    /// There is no such object.
    #[error("there is no {what}: it may have been deleted, or is in another namespace (--namespace)")]
    Missing {
        /// The object.
        what: String,
    },
}

impl Connection {
    /// Connects as the user of the kubeconfig.
    ///
    /// # Errors
    /// Fails without a usable kubeconfig. Whether the cluster answers is not looked at.
    pub async fn client(&self) -> Result<Client, ReadError> {
        Client::try_from(self.config().await?).map_err(ReadError::Client)
    }

    async fn config(&self) -> Result<Config, ReadError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match &self.kubeconfig {
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(ReadError::Kubeconfig)?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        config.map_err(ReadError::Kubeconfig)
    }
}

/// Lists objects; `what` names them in an error.
///
/// # Errors
/// Fails with what the API server says.
pub async fn list<K: Clone + std::fmt::Debug + DeserializeOwned>(
    what: &'static str,
    api: Api<K>,
    params: &ListParams,
) -> Result<Vec<K>, ReadError> {
    api.list(params).await.map(|list| list.items).map_err(|source| ReadError::List { what, source })
}

/// Reads an object; `what` names it in an error.
///
/// # Errors
/// Fails with what the API server says, and if there is no such object.
pub async fn get<K: Clone + std::fmt::Debug + DeserializeOwned>(
    what: String,
    api: Api<K>,
    name: &str,
) -> Result<K, ReadError> {
    match api.get_opt(name).await {
        Ok(Some(object)) => Ok(object),
        Ok(None) => Err(ReadError::Missing { what }),
        Err(source) => Err(ReadError::Get { what, source }),
    }
}
