use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer as _};
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{Sampler, SpanData};
use tracing::{Level, info, info_span, span};
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;

const TARGET: &str = "netclaim_trace";
const CLAIM: u128 = 0x6ba7_b810_9dad_4d80_b400_c04f_d430_c801;

macro_rules! of_trace {
    ($($tokens:tt)*) => { span!(target: TARGET, parent: None, Level::TRACE, $($tokens)*) };
}

fn service() -> Service {
    let attributes = vec![("k8s.node.name", "node0".to_owned())];
    Service { name: "netclaim-agent", version: "1", attributes }
}

/// A processor that keeps the spans, and an exporter that does so while its collector is up.
#[derive(Debug, Clone, Default)]
struct Fake {
    spans: Arc<Mutex<Vec<SpanData>>>,
    is_down: Arc<AtomicBool>,
}

impl SpanProcessor for Fake {
    fn on_start(&self, _span: &mut opentelemetry_sdk::trace::Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.spans.lock().unwrap().push(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl opentelemetry_sdk::trace::SpanExporter for Fake {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        if self.is_down.load(Ordering::Relaxed) {
            return Err(OTelSdkError::InternalFailure("connection refused".to_owned()));
        }
        self.spans.lock().unwrap().extend(batch);
        Ok(())
    }
}

/// Returns the spans that `work` ends.
fn spans_of(sampler: Sampler, work: impl FnOnce()) -> Vec<SpanData> {
    let fake = Fake::default();
    let provider = provider(sampler.into(), resource(&service()), fake.clone());
    let subscriber = tracing_subscriber::registry().with(layer(&provider, TARGET));
    tracing::subscriber::with_default(subscriber, work);
    std::mem::take(&mut *fake.spans.lock().unwrap())
}

/// Ends this many spans.
fn end_spans(provider: &SdkTracerProvider, count: usize) {
    let tracer = provider.tracer("t");
    (0..count).for_each(|_| tracer.start("s").end());
}

/// Starts to send to this exporter.
fn sending(exporter: impl opentelemetry_sdk::trace::SpanExporter + 'static) -> (Sending, Counters) {
    let (processor, counters) = (Deferred::default(), Counters::default());
    let provider = provider(Sampler::AlwaysOn.into(), resource(&service()), processor.clone());
    processor.start(Counted::new(exporter, counters.clone()));
    (Sending(provider), counters)
}

#[test]
fn spans_of_a_claim_are_in_the_trace_of_its_uid_and_below_the_first() {
    let mut seen = None;
    let spans = spans_of(Sampler::AlwaysOn, || {
        let call = of_trace!("call", otel.kind = "server", k8s.pod.name = "p");
        let parent = begin(&call, Some(CLAIM), None).unwrap();
        drop(call);
        // Later, and on another thread.
        let attach = of_trace!("attach");
        begin(&attach, Some(CLAIM), Some(&parent));
        // A span of the log in between, which the layer does not see.
        attach.in_scope(|| {
            info_span!("attachment").in_scope(|| {
                let plugin =
                    span!(target: TARGET, Level::TRACE, "plugin", otel.name = "ADD bridge", otel.status_code = tracing::field::Empty);
                seen = traceparent(&plugin);
                plugin.record("otel.status_code", "ERROR");
                info!(secret = "s3cret", "an event of the log");
            });
        });
    });
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
    assert_eq!(names, ["call", "ADD bridge", "attach"]);
    let [call, plugin, attach] = spans.as_slice() else { unreachable!("three spans") };
    assert!(spans.iter().all(|span| span.span_context.trace_id() == TraceId::from(CLAIM)), "{spans:?}");
    assert_eq!(call.parent_span_id, SpanId::INVALID);
    assert_eq!(attach.parent_span_id, call.span_context.span_id());
    assert_eq!(plugin.parent_span_id, attach.span_context.span_id());
    assert_eq!(call.span_kind, SpanKind::Server);
    assert_eq!(call.attributes, [KeyValue::new("k8s.pod.name", "p")], "nothing but what was given");
    assert!(matches!(plugin.status, Status::Error { .. }));
    assert!(plugin.events.events.is_empty() && attach.events.events.is_empty(), "no event of the log");
    let plugin = plugin.span_context.span_id();
    assert_eq!(seen, Some(format!("00-6ba7b8109dad4d80b400c04fd430c801-{plugin}-01")));
}

#[test]
fn a_trace_without_a_given_id_has_one_of_its_own() {
    let spans = spans_of(Sampler::AlwaysOn, || {
        for trace in [None, Some(CLAIM), None] {
            begin(&of_trace!("call"), trace, None);
        }
    });
    let ids: Vec<TraceId> = spans.iter().map(|span| span.span_context.trace_id()).collect();
    assert!(matches!(ids.as_slice(), [a, b, c] if a != b && b != c && a != c), "{ids:?}");
}

#[test]
fn an_unsampled_trace_is_not_sent_and_plugins_hear_so() {
    let mut seen = None;
    let off = Sampler::ParentBased(Sampler::TraceIdRatioBased(0.0).into());
    let spans = spans_of(off, || {
        let call = of_trace!("call");
        let parent = begin(&call, Some(CLAIM), None);
        let attach = of_trace!("attach");
        begin(&attach, None, parent.as_ref());
        seen = traceparent(&attach);
    });
    assert!(spans.is_empty(), "{spans:?}");
    let seen = seen.unwrap();
    assert!(seen.starts_with("00-6ba7b8109dad4d80b400c04fd430c801-") && seen.ends_with("-00"), "{seen}");
}

#[test]
fn no_plugin_gets_a_context_where_traces_are_off() {
    tracing::subscriber::with_default(tracing_subscriber::registry(), || {
        let call = of_trace!("call");
        assert!(begin(&call, Some(CLAIM), None).is_none());
        assert_eq!(traceparent(&call), None);
    });
}

#[test]
fn the_program_says_what_it_is() {
    let resource = resource(&service());
    let of = |name: &'static str| resource.get(&name.into()).map(|value| value.to_string());
    assert_eq!(of("service.name").as_deref(), Some("netclaim-agent"));
    assert_eq!(of("k8s.node.name").as_deref(), Some("node0"));
}

#[tokio::test]
async fn queued_spans_are_sent_at_the_end() {
    let fake = Fake::default();
    let (sending, counters) = sending(fake.clone());
    end_spans(&sending.0, 6);
    sending.stop(Duration::from_secs(5)).await;
    assert_eq!((fake.spans.lock().unwrap().len(), counters.sent.get(), counters.lost.get()), (6, 6, 0));
}

#[tokio::test]
async fn spans_that_a_collector_missed_are_counted_and_later_ones_are_sent() {
    let fake = Fake::default();
    let (sending, counters) = sending(fake.clone());
    for (is_down, numbers) in [(true, (0, 4)), (false, (4, 4))] {
        fake.is_down.store(is_down, Ordering::Relaxed);
        end_spans(&sending.0, 4);
        let _ = sending.0.force_flush();
        assert_eq!((counters.sent.get(), counters.lost.get()), numbers);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_or_hangs_delays_neither_spans_nor_the_end() {
    // No program listens at the first port. At the second the kernel takes connections, and no program
    // answers.
    let hanging = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    for address in [closed, hanging.local_addr().unwrap()] {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(format!("http://{address}"));
        let (sending, counters) = sending(exporter.build().unwrap());
        let begin = Instant::now();
        // More than the queue has room for.
        end_spans(&sending.0, 5000);
        assert!(begin.elapsed() < Duration::from_secs(1), "{address}: {:?}", begin.elapsed());
        sending.stop(Duration::from_secs(2)).await;
        assert!(begin.elapsed() < Duration::from_secs(4), "{address}: {:?}", begin.elapsed());
        assert_eq!(counters.sent.get(), 0);
    }
}
