//! The way of ended spans to the collector: the SDK's batch processor, once the program's runtime exists.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};

use super::Counters;

/// Passes spans on to the batch processor from when that exists: the layers of the log come before it.
#[derive(Debug, Clone, Default)]
pub(super) struct Deferred(Arc<OnceLock<BatchSpanProcessor>>);

impl Deferred {
    /// Starts the batch processor's thread.
    pub(super) fn start<E: SpanExporter + 'static>(&self, exporter: Counted<E>) {
        self.0.get_or_init(|| BatchSpanProcessor::builder(exporter).build());
    }
}

impl SpanProcessor for Deferred {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if let Some(processor) = self.0.get() {
            processor.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.get().map_or(Ok(()), SpanProcessor::force_flush)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.get().map_or(Ok(()), |processor| processor.shutdown_with_timeout(timeout))
    }
}

/// Counts what an exporter sends, and logs once when the collector takes nothing and once when it does again.
/// The SDK's own log has a line for every batch.
#[derive(Debug)]
pub(super) struct Counted<E> {
    exporter: E,
    counters: Counters,
    is_failing: AtomicBool,
}

impl<E> Counted<E> {
    pub(super) fn new(exporter: E, counters: Counters) -> Self {
        Self { exporter, counters, is_failing: AtomicBool::new(false) }
    }
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let exported = self.exporter.export(batch).await;
        let was_failing = self.is_failing.swap(exported.is_err(), Ordering::Relaxed);
        match &exported {
            Ok(()) => {
                self.counters.sent.inc_by(count);
                if was_failing {
                    tracing::info!(lost = self.counters.lost.get(), "traces are sent again");
                }
            }
            Err(error) => {
                self.counters.lost.inc_by(count);
                if !was_failing {
                    tracing::warn!(
                        %error,
                        "cannot send traces: pods do not wait for them, and spans are lost until the collector \
                         takes them"
                    );
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
