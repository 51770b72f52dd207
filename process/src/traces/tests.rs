use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_sdk::trace::SpanData;
use tracing::{Level, info, info_span, span};
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;

const TARGET: &str = "netclaim_trace";
const CLAIM: u128 = 0x6ba7_b810_9dad_4d80_b400_c04f_d430_c801;

macro_rules! of_trace {
    ($($tokens:tt)*) => { span!(target: TARGET, parent: None, Level::TRACE, $($tokens)*) };
}

fn traces(more: &[(&str, &str)]) -> Traces {
    let lookup = |name: &str| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some("http://127.0.0.1:4317".to_owned()),
        _ => more.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()),
    };
    let service = Service {
        name: "netclaim-agent",
        version: "1",
        attributes: vec![("k8s.node.name", "node0".to_owned())],
    };
    Traces::new(Settings::read(&lookup).unwrap().unwrap(), &service)
}

/// Returns the spans that `work` ends.
fn spans_of(traces: &mut Traces, work: impl FnOnce()) -> Vec<SpanData> {
    let subscriber = tracing_subscriber::registry().with(traces.layer(TARGET));
    tracing::subscriber::with_default(subscriber, work);
    std::iter::from_fn(|| traces.spans.try_recv().ok()).collect()
}

#[test]
fn spans_of_a_claim_are_in_the_trace_of_its_uid_and_below_the_first() {
    let mut seen = None;
    let spans = spans_of(&mut traces(&[]), || {
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
    let spans = spans_of(&mut traces(&[]), || {
        for trace in [None, Some(CLAIM), None] {
            begin(&of_trace!("call"), trace, None);
        }
    });
    let ids: Vec<TraceId> = spans.iter().map(|span| span.span_context.trace_id()).collect();
    assert!(matches!(ids.as_slice(), [a, b, c] if a != b && b != c && a != c), "{ids:?}");
}

#[test]
fn what_is_not_sampled_is_not_sent_and_plugins_hear_so() {
    let mut seen = None;
    let off = [("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0")];
    let spans = spans_of(&mut traces(&off), || {
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
fn nobody_gets_a_context_where_traces_are_off() {
    tracing::subscriber::with_default(tracing_subscriber::registry(), || {
        let call = of_trace!("call");
        assert!(begin(&call, Some(CLAIM), None).is_none());
        assert_eq!(traceparent(&call), None);
    });
}

#[test]
fn the_program_says_what_it_is() {
    let traces = traces(&[]);
    let of = |name: &'static str| traces.resource.get(&name.into()).map(|value| value.to_string());
    assert_eq!(of("service.name").as_deref(), Some("netclaim-agent"));
    assert_eq!(of("k8s.node.name").as_deref(), Some("node0"));
}
