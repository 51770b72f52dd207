//! What the webhook counts.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use netclaim_process::label_values;
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use crate::admission::{Kind, Outcome};

label_values! {
    /// Where the certificate comes from.
    pub enum Source {
        /// This crate has made it.
        Own = "Own",
        /// Files that another program writes.
        Directory = "Directory",
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

/// Bounds of times to answer, in seconds. API servers give up after 5 s.
const ANSWER_SECONDS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0];

/// Counters, gauges and histograms of the webhook. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: Family<Request, Counter>,
    times: Histogram,
    expiry: Family<Origin, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { requests: Family::default(), times: Histogram::new(ANSWER_SECONDS), expiry: Family::default() }
    }
}

impl Metrics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.add(
            "webhook_requests",
            "Requests of the API server to review an object, by the kind of the object",
            [Label::one_of("kind", Kind::VALUES), Label::one_of("outcome", Outcome::VALUES)],
            self.requests.clone(),
        );
        registry.add_seconds(
            "webhook_request_duration",
            "Time to answer requests of the API server, which gives up after 5 s, including the wait for other reviews",
            [],
            self.times.clone(),
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

    /// Adds the time that a request took.
    pub fn took(&self, time: Duration) {
        self.times.observe(time.as_secs_f64());
    }

    /// Says when the certificate that is served ends.
    pub fn expires(&self, source: Source, at: Timestamp) {
        self.expiry.get_or_create(&Origin { source }).set(at.as_second());
    }
}
