//! How to reach the API server.

use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Why the API server cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The given kubeconfig is unusable.
    #[error("cannot use kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: KubeconfigError,
    },
    /// Nothing tells where the API server is.
    #[error("cannot find out how to reach the API server: outside of a pod, give --kubeconfig")]
    Infer(#[source] InferConfigError),
}

/// Returns the configuration in `kubeconfig`; by default that of $KUBECONFIG, ~/.kube/config or the pod's service
/// account.
///
/// # Errors
/// See [`ConfigError`].
pub async fn config(kubeconfig: Option<&Path>) -> Result<Config, ConfigError> {
    let Some(path) = kubeconfig else {
        return Config::infer().await.map_err(ConfigError::Infer);
    };
    let unusable = |source| ConfigError::Kubeconfig { path: path.to_owned(), source };
    let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(unusable)
}

#[cfg(test)]
mod tests {
    use kube::Client;

    use super::*;

    #[tokio::test]
    async fn a_client_finds_its_tls_provider_without_help() {
        let config = Config::new("https://127.0.0.1:1".parse().unwrap());
        assert!(Client::try_from(config).is_ok());
    }

    #[tokio::test]
    async fn an_unusable_kubeconfig_is_named_in_the_error() {
        let error = config(Some(Path::new("/nonexistent/config"))).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot use kubeconfig /nonexistent/config");
    }
}
