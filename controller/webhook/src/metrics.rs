//! What the webhook counts.

use k8s_openapi::jiff::Timestamp;
use netclaim_process::label_values;
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use crate::admission::{Kind, Outcome};

label_values! {
    /// Where the certificate comes from.
    pub enum Source {
        /// This crate has made it.
        Own = "own",
        /// Files that somebody else writes.
        Directory = "directory",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    kind: Kind,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Origin {
    source: Source,
}

/// Counters and gauges of the webhook. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    requests: Family<Request, Counter>,
    expiry: Family<Origin, Gauge>,
}

impl Metrics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.add(
            "webhook_requests",
            "Requests of the API server to judge an object, by the object's kind and how they ended",
            [Label::one_of("kind", Kind::VALUES), Label::one_of("outcome", Outcome::VALUES)],
            self.requests.clone(),
        );
        registry.add_seconds(
            "webhook_certificate_expiry_timestamp",
            "When the webhook's certificate ends, in seconds since 1970, by where it comes from; 0 if there is none",
            [Label::one_of("source", Source::VALUES)],
            self.expiry.clone(),
        );
    }

    /// Counts a request.
    pub fn request(&self, kind: Kind, outcome: Outcome) {
        self.requests.get_or_create(&Request { kind, outcome }).inc();
    }

    /// Says when the certificate that is served ends.
    pub fn expires(&self, source: Source, at: Timestamp) {
        self.expiry.get_or_create(&Origin { source }).set(at.as_second());
    }
}
