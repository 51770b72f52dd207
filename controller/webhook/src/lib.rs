//! A validating admission webhook: the API server asks it about objects for netclaim before it stores them.
//!
//! ```text
//!   API server ──HTTPS──> server ──JSON──> admission ──weight──> netclaim_validation
//!                           ▲ ▲
//!                           │ SecretPath <── path: the ValidatingWebhookConfiguration, which all replicas read
//!                        Served <── own:       a Secret that all replicas share, renewed by the first that notices
//!                               <── directory: files that another program renews, such as cert-manager
//! ```
//!
//! Invariants:
//! * A client that does not know the path gets nothing read. One that knows it may ask for anything: memory,
//!   time and connections are bounded whatever the body is, and an answer says nothing of the cluster.
//! * What is not for netclaim is allowed, and so is every update that leaves `spec` as it is.
//! * A new certificate is served without a restart, and clients trust it before it is served.

mod admission;
mod certificate;
mod metrics;
mod path;
mod server;
mod weight;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::Client;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::TcpListener;

pub use admission::{Kind, Outcome};
pub use certificate::Served;
pub use metrics::{Metrics, Source};

use certificate::{directory, own};
use path::SecretPath;
use server::{Permits, Reviewer};

/// Where the certificate comes from.
#[derive(Debug, Clone)]
pub enum Certificates {
    /// The replicas make it.
    Own,
    /// Another program writes `tls.crt` and `tls.key` into this folder.
    Directory(PathBuf),
}

/// Names of the objects.
#[derive(Debug, Clone)]
pub struct Names {
    /// Namespace of Service and Secret.
    pub namespace: String,
    /// Name of the Service, the Secret and the ValidatingWebhookConfiguration.
    pub name: String,
}

impl Names {
    /// The name by which API servers know the Service.
    fn dns(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }

    /// Returns whether a webhook is served by the Service.
    fn are_of(&self, webhook: &ValidatingWebhook) -> bool {
        let service = webhook.client_config.service.as_ref();
        service.is_some_and(|service| service.name == self.name && service.namespace == self.namespace)
    }

    /// Returns the JSON patch that writes `value` into this field of `clientConfig` of our webhooks, unless
    /// the object has changed since it was read; `None` if `has_it` says that they all have it.
    fn patch(
        &self,
        configuration: &ValidatingWebhookConfiguration,
        field: &str,
        value: &Value,
        has_it: impl Fn(&WebhookClientConfig) -> bool,
    ) -> Option<Value> {
        let webhooks = configuration.webhooks.iter().flatten().enumerate();
        let others = webhooks.filter(|(_, webhook)| self.are_of(webhook) && !has_it(&webhook.client_config));
        let mut operations: Vec<Value> = others
            .map(|(index, _)| {
                json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/{field}"), "value": value})
            })
            .collect();
        if operations.is_empty() {
            return None;
        }
        let version = &configuration.metadata.resource_version;
        operations.insert(0, json!({"op": "test", "path": "/metadata/resourceVersion", "value": version}));
        Some(operations.into())
    }
}

/// Why API servers get no answers now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotServing {
    /// No client can connect.
    #[error("the webhook has no certificate yet, see the log")]
    Certificate,
    /// API servers are not told where to ask.
    #[error("the webhook has no path yet, see the log")]
    Path,
    /// No review ends.
    #[error("the webhook's reviews do not end")]
    Reviews,
}

/// Whether the webhook can answer. Clones share it.
#[derive(Debug, Clone)]
pub struct Health {
    served: Served,
    path: SecretPath,
    permits: Permits,
}

impl Health {
    /// Returns whether API servers get answers.
    ///
    /// # Errors
    /// What they lack.
    pub fn check(&self) -> Result<(), NotServing> {
        if self.served.is_empty() {
            return Err(NotServing::Certificate);
        }
        if self.path.is_empty() {
            return Err(NotServing::Path);
        }
        if self.permits.are_stuck(Instant::now()) { Err(NotServing::Reviews) } else { Ok(()) }
    }
}

/// Why the webhook cannot be served.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum WebhookError {
    #[error("cannot serve the webhook on {address}: give another --webhook-address")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot set up TLS")]
    Tls(#[source] tokio_rustls::rustls::Error),
}

/// A webhook that listens.
#[derive(Debug)]
pub struct Webhook {
    listener: TcpListener,
    names: Names,
    certificates: Certificates,
    health: Health,
    metrics: Metrics,
}

impl Webhook {
    /// Listens, without answering yet.
    ///
    /// # Errors
    /// The address cannot be used.
    pub async fn bind(
        address: SocketAddr,
        names: Names,
        certificates: Certificates,
        metrics: Metrics,
    ) -> Result<Self, WebhookError> {
        let listener =
            TcpListener::bind(address).await.map_err(|source| WebhookError::Listen { address, source })?;
        let source = match &certificates {
            Certificates::Own => Source::Own,
            Certificates::Directory(_) => Source::Directory,
        };
        let served = Served::new(source, metrics.clone());
        let health = Health { served, path: SecretPath::default(), permits: Permits::default() };
        Ok(Self { listener, names, certificates, health, metrics })
    }

    /// Whether it can answer, which it can a moment after the start.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Serves reviews for this driver, and keeps path and certificate, until dropped.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub async fn run(self, client: Client, driver: &str) -> Result<Infallible, WebhookError> {
        let Self { listener, names, certificates, health, metrics } = self;
        let Health { served, path, permits } = health;
        let tls = server::tls(served.clone()).map_err(WebhookError::Tls)?;
        let keep_path = path::keep(client.clone(), names.clone(), path.clone());
        let certificate = async {
            match certificates {
                Certificates::Own => own::Keeper::new(client, names, served).keep().await,
                Certificates::Directory(dir) => directory::follow(&dir, &served).await,
            }
        };
        tokio::select! {
            never = server::serve(listener, tls, Reviewer::new(driver, path, permits, metrics)) => match never {},
            never = keep_path => match never {},
            never = certificate => match never {},
        }
    }
}
