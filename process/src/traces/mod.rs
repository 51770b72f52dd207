//! Traces: spans of the program, sent to an OpenTelemetry collector by OTLP over gRPC.
//!
//! ```text
//!   code ── tracing spans of one target ──> layer ── sampler ──> queue (bounded) ──> sender ── gRPC ──> collector
//!                                                                  └── full: the span is lost, and counted
//! ```
//!
//! The environment variables of the OpenTelemetry specification configure it ([`settings`]). Without an endpoint there is no layer and no
//! queue, and creating a span costs one comparison.
//!
//! Invariants:
//! * Whoever ends a span never waits: not for room in the queue, and not for the collector.
//! * Header values and events of the log are never part of a span, and header values never of the log.

mod queue;
mod sampler;
mod settings;

use std::cell::Cell;
use std::time::Duration;

use opentelemetry::trace::{SpanId, TraceContextExt as _, TraceId, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, RetryPolicy, SpanExporter, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SdkTracerProvider, SpanExporter as _};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{Layer as _, filter};

use self::queue::{Queue, Sender};
use self::settings::Settings;
pub use self::settings::SettingsError;
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
    /// Spans that did not fit the queue, or that the collector did not take.
    pub lost: Counter,
}

/// Traces that are wanted, before the program's runtime exists.
#[derive(Debug)]
pub struct Traces {
    settings: Settings,
    resource: Resource,
    provider: SdkTracerProvider,
    spans: tokio::sync::mpsc::Receiver<opentelemetry_sdk::trace::SpanData>,
    counters: Counters,
}

impl Traces {
    /// Reads the environment. `None` if it names no endpoint, or switches traces off.
    ///
    /// # Errors
    /// Which variable has a value that cannot be used.
    pub fn from_env(service: &Service) -> Result<Option<Self>, SettingsError> {
        let settings = Settings::read(&|name| std::env::var(name).ok())?;
        Ok(settings.map(|settings| Self::new(settings, service)))
    }

    fn new(settings: Settings, service: &Service) -> Self {
        let own =
            [("service.name", service.name.to_owned()), ("service.version", service.version.to_owned())];
        let own = own.into_iter().chain(service.attributes.clone());
        let own =
            Resource::builder_empty().with_attributes(own.map(|(name, value)| KeyValue::new(name, value)));
        // The detectors come last, so that the environment wins. One of them would name the program if nobody does.
        let of_env = Resource::builder().build();
        let unnamed = "unknown_service";
        let of_env = of_env.iter().filter(|(_, value)| !value.as_str().starts_with(unnamed));
        let of_env = of_env.map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
        let resource = own.with_attributes(of_env.collect::<Vec<_>>()).build();
        let counters = Counters::default();
        let (queue, spans) = Queue::new(settings.queue.size, counters.lost.clone());
        let provider = SdkTracerProvider::builder()
            .with_sampler(settings.sampler.clone())
            .with_id_generator(GivenTraceIds::default())
            .with_resource(resource.clone())
            .with_span_processor(queue)
            .build();
        Self { settings, resource, provider, spans, counters }
    }

    /// Returns the layer that turns tracing spans of `target` into spans of traces. It sees nothing else: no event of the log,
    /// whatever it may have in it.
    pub fn layer(&self, target: &'static str) -> SpanLayer {
        let layer = tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(env!("CARGO_PKG_NAME")))
            .with_context_activation(false)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false);
        let is_ours =
            move |metadata: &tracing::Metadata<'_>| metadata.is_span() && metadata.target() == target;
        layer.with_filter(filter::filter_fn(is_ours)).boxed()
    }

    /// The numbers of spans, which move from now on.
    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }

    /// Starts to send, in the runtime that calls it.
    ///
    /// # Errors
    /// When the environment has something that only the exporter looks at.
    pub fn start(self) -> Result<Sending, ExporterBuildError> {
        let Self { settings, resource, provider, spans, counters } = self;
        // The headers of the environment come with the exporter, which alone ever has their values.
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_channel(settings.endpoint.connect_lazy())
            // The sender has pauses that last longer.
            .with_retry_policy(RetryPolicy::disabled());
        let mut exporter = exporter.build()?;
        exporter.set_resource(&resource);
        let (stop, stopped) = oneshot::channel();
        tracing::info!(collector = settings.address, "sending traces");
        let sender = Sender::new(exporter, spans, settings.queue, settings.address, counters);
        Ok(Sending { stop, task: tokio::spawn(sender.run(stopped)), _provider: provider })
    }
}

/// Traces that are being sent.
#[derive(Debug)]
pub struct Sending {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// The layer has another handle of it.
    _provider: SdkTracerProvider,
}

impl Sending {
    /// Sends what is left, but for no longer than `within`.
    pub async fn stop(mut self, within: Duration) {
        let _ = self.stop.send(());
        if tokio::time::timeout(within, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// A span that others can be children of, also after it has ended.
#[derive(Debug, Clone)]
pub struct Parent(Context);

/// Begins a span, which must be new and without a parent: as a child of `parent`, or in the given trace. Returns `None` if nobody wants
/// the span.
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

/// Returns the span's context as another program takes it, in the environment variable `TRACEPARENT` for example; `None` if nobody wants
/// the span.
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
