//! Certificates: what is served, where it comes from, and when it ends. Keys are never printed.

pub(crate) mod directory;
mod generation;
pub(crate) mod own;
mod validity;

use std::fmt;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use thiserror::Error;
use tokio::sync::watch;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use crate::metrics::{Metrics, Source};
use validity::{NoValidity, Validity};

/// The only provider of cryptography, as in kube's clients.
pub(crate) fn provider() -> CryptoProvider {
    ring::default_provider()
}

/// A certificate with the chain up to its CA, and its key.
#[derive(Clone)]
pub(crate) struct Certificate {
    key: Arc<CertifiedKey>,
    validity: Validity,
}

/// Why a certificate or its key cannot be used.
#[derive(Debug, Error)]
pub(crate) enum Unusable {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is not PEM")]
    Pem(&'static str, #[source] pem::Error),
    #[error("the certificate and its key do not fit together")]
    Key(#[source] tokio_rustls::rustls::Error),
    #[error("the certificate cannot be read")]
    Validity(#[from] NoValidity),
    #[error("the certificate is not valid now, for {name}, by its CA")]
    Verification { name: String, source: tokio_rustls::rustls::Error },
}

impl Certificate {
    /// Reads a chain, the certificate first, and its key, in PEM.
    pub(crate) fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, Unusable> {
        let chain = certificates(CHAIN, chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| Unusable::Pem(KEY, error))?;
        let validity = Validity::of(chain.first().ok_or(Unusable::Missing(CHAIN))?)?;
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(Unusable::Key)?;
        Ok(Self { key: Arc::new(key), validity })
    }

    fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }
}

/// The names that Kubernetes gives to the parts of a certificate, in Secrets and in the folders where they
/// are mounted.
const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
const CAS: &str = "ca.crt";

/// Reads certificates in PEM.
fn certificates(name: &'static str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    read.map_err(|error| Unusable::Pem(name, error))
}

/// The certificate that is served. Clones share it, and new connections get the newest.
#[derive(Clone)]
pub struct Served {
    certificate: Arc<watch::Sender<Option<Arc<CertifiedKey>>>>,
    source: Source,
    metrics: Metrics,
}

impl Served {
    pub(crate) fn new(source: Source, metrics: Metrics) -> Self {
        // Without a certificate the alert about one that ends shall fire, too.
        metrics.expires(source, Timestamp::UNIX_EPOCH);
        Self { certificate: Arc::new(watch::Sender::new(None)), source, metrics }
    }

    /// Returns whether there is no certificate yet, so that no client can connect.
    pub fn is_empty(&self) -> bool {
        self.certificate.borrow().is_none()
    }

    /// Serves this certificate from now on.
    pub(crate) fn serve(&self, certificate: &Certificate) {
        let until: Timestamp = certificate.validity.until;
        tracing::info!(%until, "serving a certificate");
        self.metrics.expires(self.source, until);
        self.certificate.send_replace(Some(Arc::clone(&certificate.key)));
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("source", &self.source).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certificate.borrow().clone()
    }
}

/// Certificates for tests of the server.
#[cfg(test)]
pub(crate) mod testing {
    use k8s_openapi::jiff::Timestamp;
    use tokio_rustls::rustls::RootCertStore;

    use super::generation::Generation;
    use super::{CAS, Certificate, certificates};

    pub(crate) const DNS: &str = "netclaim-webhook.netclaim-system.svc";

    /// A new certificate, and what its clients trust.
    pub(crate) fn certificate(now: Timestamp) -> (Certificate, RootCertStore) {
        let generation = Generation::read(&Generation::make(DNS, &[], now).unwrap(), DNS, now).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(CAS, &generation.trusted(now).0).unwrap());
        (generation.certificate, roots)
    }
}
