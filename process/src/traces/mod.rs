//! Traces: spans of the program, sent to an OpenTelemetry collector by OTLP over gRPC.
//!
//! ```text
//!   code ── tracing spans of one target ──> layer ── sampler ──> batches (bounded) ── gRPC ──> collector
//! ```
//!
//! OpenTelemetry's SDK reads the environment variables of the specification, and sends batches from a thread
//! of its own. Without an endpoint there is no layer and no thread, and creating a span costs one comparison.
//!
//! Invariants:
//! * Ending a span never waits: not for room in the queue, and not for the collector.
//! * Header values and events of the log are never part of a span, and header values never of the log.

mod environment;
mod export;
mod sampler;

use std::cell::Cell;
use std::io;
use std::time::Duration;

use opentelemetry::trace::{SpanId, TraceContextExt as _, TraceId, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    Config, IdGenerator, RandomIdGenerator, SdkTracerProvider, ShouldSample, SpanExporter as _, SpanProcessor,
};
use prometheus_client::metrics::counter::Counter;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{Layer as _, filter};

use self::export::{Counted, Deferred};
use self::sampler::RandomBits;
use crate::log::SpanLayer;

/// What the program calls itself, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` say otherwise.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name, such as `netclaim-agent`.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// More attributes, by the names of the semantic conventions.
    pub attributes: Vec<(&'static str, String)>,
}

/// Numbers of spans.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Spans that the collector has taken.
    pub sent: Counter,
    /// Spans that the collector did not take.
    pub lost: Counter,
}

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// A file of certificates cannot be read.
    #[error(
        "cannot read {path}, which OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE or _CLIENT_KEY names"
    )]
    File {
        /// The file.
        path: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The address has a user or a password in it, which the errors of the exporter would show in logs.
    #[error(
        "OTEL_EXPORTER_OTLP_ENDPOINT has a user or a password in it: write them into OTEL_EXPORTER_OTLP_HEADERS instead, \
         such as authorization=Basic%20…"
    )]
    Credentials,
    /// The exporter cannot use the address.
    #[error("cannot use the variables OTEL_EXPORTER_OTLP_…")]
    Exporter(#[from] ExporterBuildError),
}

/// Traces that are wanted, before the program's runtime exists.
#[derive(Debug)]
pub struct Traces {
    resource: Resource,
    provider: SdkTracerProvider,
    processor: Deferred,
    counters: Counters,
}

impl Traces {
    /// Reads the environment. `None` if it names no endpoint, or switches traces off.
    pub fn from_env(service: &Service) -> Option<Self> {
        environment::is_enabled(&variable).then(|| {
            let (processor, resource) = (Deferred::default(), resource(service));
            let provider = provider(Config::default().sampler, resource.clone(), processor.clone());
            Self { resource, provider, processor, counters: Counters::default() }
        })
    }

    /// Returns the layer that turns tracing spans of `target` into spans of traces. It sees nothing else: no
    /// event of the log, whatever it may have in it.
    pub fn layer(&self, target: &'static str) -> SpanLayer {
        layer(&self.provider, target)
    }

    /// The numbers of spans, which move from now on.
    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }

    /// Starts to send, in the runtime that calls it.
    ///
    /// # Errors
    /// [`TracesError`].
    pub fn start(self) -> Result<Sending, TracesError> {
        if environment::has_credentials(&variable) {
            return Err(TracesError::Credentials);
        }
        let mut builder = SpanExporter::builder().with_tonic();
        if let Some(tls) = environment::tls(&variable)? {
            builder = builder.with_tls_config(tls);
        }
        let mut exporter = builder.build()?;
        exporter.set_resource(&self.resource);
        self.processor.start(Counted::new(exporter, self.counters));
        tracing::info!("sending traces");
        Ok(Sending(self.provider))
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn resource(service: &Service) -> Resource {
    let own = [("service.name", service.name.to_owned()), ("service.version", service.version.to_owned())];
    let own = own.into_iter().chain(service.attributes.clone());
    let own = Resource::builder_empty().with_attributes(own.map(|(name, value)| KeyValue::new(name, value)));
    // The detectors come last, so that the environment wins. One of them would name the program if no one
    // does.
    let of_env = Resource::builder().build();
    let of_env = of_env.iter().filter(|(_, value)| !value.as_str().starts_with("unknown_service"));
    let of_env = of_env.map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    own.with_attributes(of_env.collect::<Vec<_>>()).build()
}

fn provider(
    sampler: Box<dyn ShouldSample>,
    resource: Resource,
    processor: impl SpanProcessor + 'static,
) -> SdkTracerProvider {
    SdkTracerProvider::builder()
        .with_sampler(RandomBits(sampler))
        .with_id_generator(GivenTraceIds::default())
        .with_resource(resource)
        .with_span_processor(processor)
        .build()
}

fn layer(provider: &SdkTracerProvider, target: &'static str) -> SpanLayer {
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(env!("CARGO_PKG_NAME")))
        .with_context_activation(false)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false);
    let is_ours = move |metadata: &tracing::Metadata<'_>| metadata.is_span() && metadata.target() == target;
    layer.with_filter(filter::filter_fn(is_ours)).boxed()
}

/// Traces that are being sent.
#[derive(Debug)]
pub struct Sending(SdkTracerProvider);

impl Sending {
    /// Sends what is left, but for no longer than `within`.
    pub async fn stop(self, within: Duration) {
        // It blocks, and the exporter needs the runtime's threads.
        let stopped = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(within)).await;
        if let Ok(Err(error)) = stopped {
            tracing::warn!(%error, "cannot send the last traces");
        }
    }
}

/// A span that others can be children of, also after it has ended.
#[derive(Debug, Clone)]
pub struct Parent(Context);

/// Begins a span, which must be new and without a parent: as a child of `parent`, or in the given trace.
/// Returns `None` if the span is not wanted.
pub fn begin(span: &Span, trace: Option<u128>, parent: Option<&Parent>) -> Option<Parent> {
    if span.is_disabled() {
        return None;
    }
    let parent = parent.map(|Parent(context)| context.clone()).unwrap_or_default();
    // This fails only without our layer.
    let _ = span.set_parent(parent);
    TRACE.set(trace);
    // The span gets its ids here.
    let context = span.context();
    TRACE.set(None);
    context.span().span_context().is_valid().then(|| Parent(context.clone()))
}

/// Returns the span's context as another program takes it, in the environment variable `TRACEPARENT` for
/// example; `None` if the span is not wanted.
pub fn traceparent(span: &Span) -> Option<String> {
    let context = span.context();
    let span = context.span();
    let context = span.span_context();
    let flags = context.trace_flags().to_u8();
    context.is_valid().then(|| format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id()))
}

thread_local! {
    /// The trace of the span that is begun on this thread.
    static TRACE: Cell<Option<u128>> = const { Cell::new(None) };
}

/// Random ids, but for traces whose id is given: the SDK has no other way to choose it.
#[derive(Debug, Default)]
struct GivenTraceIds(RandomIdGenerator);

impl IdGenerator for GivenTraceIds {
    fn new_trace_id(&self) -> TraceId {
        TRACE.get().map_or_else(|| self.0.new_trace_id(), TraceId::from)
    }

    fn new_span_id(&self) -> SpanId {
        self.0.new_span_id()
    }
}

#[cfg(test)]
mod tests;
