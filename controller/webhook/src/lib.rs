//! A validating admission webhook: the API server asks it about objects for netclaim before it stores them.
//!
//! ```text
//!   API server ──HTTPS──> server ──JSON──> admission ──> netclaim_validation
//!                           ▲
//!                        Served <── own:       a Secret that all replicas share, renewed by whoever notices first
//!                               <── directory: files that somebody else renews, such as cert-manager
//! ```
//!
//! Invariants:
//! * Anybody who reaches the address may ask. Memory, time and connections are bounded, and an answer says nothing of the cluster.
//! * What is not for netclaim is allowed, and so is every update that leaves `spec` as it is.
//! * A new certificate is served without a restart, and clients trust it before it is served.

mod admission;
mod certificate;
mod metrics;
mod server;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;

use kube::Client;
use thiserror::Error;
use tokio::net::TcpListener;

pub use admission::{Kind, Outcome};
pub use certificate::Served;
pub use metrics::{Metrics, Source};
pub use server::PATH;

use certificate::{directory, own};

/// Where the certificate comes from.
#[derive(Debug, Clone)]
pub enum Certificates {
    /// The replicas make it, for the Service of this name in this namespace. The Secret and the
    /// ValidatingWebhookConfiguration have the same name.
    Own {
        /// Namespace of Service and Secret.
        namespace: String,
        /// Name of all three.
        name: String,
    },
    /// Somebody else writes `tls.crt` and `tls.key` into this folder.
    Directory(PathBuf),
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
    certificates: Certificates,
    served: Served,
    metrics: Metrics,
}

impl Webhook {
    /// Listens, and answers nobody yet.
    ///
    /// # Errors
    /// The address cannot be used.
    pub async fn bind(
        address: SocketAddr,
        certificates: Certificates,
        metrics: Metrics,
    ) -> Result<Self, WebhookError> {
        let listener =
            TcpListener::bind(address).await.map_err(|source| WebhookError::Listen { address, source })?;
        let source = match &certificates {
            Certificates::Own { .. } => Source::Own,
            Certificates::Directory(_) => Source::Directory,
        };
        Ok(Self { listener, certificates, served: Served::new(source, metrics.clone()), metrics })
    }

    /// The certificate, which comes a moment after the start.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// Serves reviews for this driver, and keeps the certificate, until dropped.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub async fn run(self, client: Client, driver: &str) -> Result<Infallible, WebhookError> {
        let Self { listener, certificates, served, metrics } = self;
        let tls = server::tls(served.clone()).map_err(WebhookError::Tls)?;
        let certificate = async {
            match certificates {
                Certificates::Own { namespace, name } => {
                    own::Keeper::new(client, own::Names { namespace, name }, served).keep().await
                }
                Certificates::Directory(dir) => directory::follow(&dir, &served).await,
            }
        };
        tokio::select! {
            never = server::serve(listener, tls, server::Reviewer::new(driver, metrics)) => match never {},
            never = certificate => match never {},
        }
    }
}
