//! How to reach the API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::{HeaderValue, USER_AGENT};
use kube::api::Patch;
use kube::client::ClientBuilder;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::api_connection;
use crate::time_limits::TimeLimits;

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

/// Returns the configuration in `kubeconfig`; by default that of $KUBECONFIG, ~/.kube/config or the pod's
/// service account. `program` is the name by which the API server's audit log and its metrics know who asks
/// (`User-Agent`).
///
/// # Errors
/// See [`ConfigError`].
pub async fn config(program: &str, kubeconfig: Option<&Path>) -> Result<Config, ConfigError> {
    let mut config = match kubeconfig {
        None => Config::infer().await.map_err(ConfigError::Infer)?,
        Some(path) => {
            let unusable = |source| ConfigError::Kubeconfig { path: path.to_owned(), source };
            let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .map_err(unusable)?
        }
    };
    let name = HeaderValue::from_str(&format!("{program}/{}", env!("CARGO_PKG_VERSION")));
    config.headers.extend(name.ok().map(|name| (USER_AGENT, name)));
    Ok(config)
}

/// Returns a client whose requests end: without a limit, an API server that does not answer, or whose answer
/// does not end, would be waited for.
///
/// # Errors
/// The configuration makes no client.
pub fn client(config: Config) -> kube::Result<Client> {
    client_within(config, TimeLimits::default())
}

pub(crate) fn client_within(config: Config, limits: TimeLimits) -> kube::Result<Client> {
    Ok(match api_connection::builder(&config)? {
        Some(builder) => builder.with_layer(&limits).build(),
        None => ClientBuilder::try_from(config)?.with_layer(&limits).build(),
    })
}

/// How long the API server may take to answer a request whose caller does not wait longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request has failed that was not answered.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", ANSWER_TIMEOUT.as_secs())]
struct NoAnswer;

/// Gives a request up that is not answered in time. kube waits for as long as the connection seems to live,
/// which may be a quarter of an hour after the network is lost.
///
/// # Errors
/// Those of the request, and that there was no answer.
pub async fn answered<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, request).await;
    answer.unwrap_or_else(|_| Err(kube::Error::Service(Box::new(NoAnswer))))
}

/// Returns a JSON patch that removes the value at `path`, if each of `tests` is the value at its path. The
/// API server answers 422 if one is not.
///
/// # Errors
/// A path is not a JSON pointer.
pub fn removal(path: &str, tests: &[(&str, &str)]) -> kube::Result<Patch<()>> {
    let tests = tests.iter().map(|(path, value)| json!({"op": "test", "path": path, "value": value}));
    let operations: Value = tests.chain([json!({"op": "remove", "path": path})]).collect();
    serde_json::from_value(operations).map(Patch::Json).map_err(kube::Error::SerdeError)
}

/// Returns a JSON patch that removes a finalizer, which is the one at `index`, of the object with this UID.
///
/// # Errors
/// None: its paths are JSON pointers.
pub fn finalizer_removal(uid: &str, finalizer: &str, index: usize) -> kube::Result<Patch<()>> {
    let path = format!("/metadata/finalizers/{index}");
    removal(&path, &[("/metadata/uid", uid), (&path, finalizer)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_finds_its_tls_provider_without_help() {
        let config = Config::new("https://127.0.0.1:1".parse().unwrap());
        assert!(client(config).is_ok());
    }

    #[test]
    fn a_finalizer_is_removed_from_the_object_that_was_seen() {
        let Patch::Json(patch) = finalizer_removal("uid", "netclaim.dev/block", 1).unwrap() else {
            panic!("another kind of patch")
        };
        let expected = json!([
            {"op": "test", "path": "/metadata/uid", "value": "uid"},
            {"op": "test", "path": "/metadata/finalizers/1", "value": "netclaim.dev/block"},
            {"op": "remove", "path": "/metadata/finalizers/1"},
        ]);
        assert_eq!(serde_json::to_value(patch).unwrap(), expected);
    }

    #[tokio::test]
    async fn an_unusable_kubeconfig_is_named_in_the_error() {
        let error = config("test", Some(Path::new("/nonexistent/config"))).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot use kubeconfig /nonexistent/config");
    }
}
