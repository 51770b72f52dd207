//! Tracing spans that are meant for traces, not for the log.
//!
//! They have a target and a level of their own, so that a log at level `debug` does not show them. Their
//! fields have the names of OpenTelemetry's semantic conventions where there are any. This crate does not
//! know who takes them.

use std::fmt::Display;

use tracing::Span;
use tracing::field::Empty;

use crate::request::Verb;
use crate::trace_context::TraceContext;

use super::error::Context;

/// The target of spans that are meant for traces. Their level is `TRACE`.
pub const SPANS: &str = "netclaim_trace";

/// Returns the trace context of a span; `None` if the span is part of no trace.
pub type TraceOf = fn(&Span) -> Option<TraceContext>;

/// Longest description of an error in a span, in bytes.
const MAX_DESCRIPTION: usize = 1 << 10;

/// Marks a span as failed. The span needs the fields `otel.status_code` and `otel.status_description`.
pub fn failed(span: &Span, error: &dyn Display) {
    if span.is_disabled() {
        return;
    }
    let mut text = error.to_string();
    text.truncate(text.floor_char_boundary(MAX_DESCRIPTION));
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", text);
}

/// Returns the span of one plugin's part in an ADD or a DEL, as a child of the current span. Only ADD and DEL
/// have spans: other verbs are not part of a pod's trace. The configuration is never part of it: it may have
/// secrets.
pub(super) fn of_plugin(verb: Verb, context: &Context) -> Span {
    if !matches!(verb, Verb::Add | Verb::Del) {
        return Span::none();
    }
    let span = tracing::trace_span!(
        target: SPANS,
        "plugin",
        otel.name = Empty,
        otel.status_code = Empty,
        otel.status_description = Empty,
        cni.command = verb.as_str(),
        cni.plugin.type = context.plugin.as_str(),
        cni.network.name = Empty,
        process.executable.name = context.plugin.as_str(),
    );
    if !span.is_disabled() {
        span.record("otel.name", format!("{verb} {}", context.plugin));
        if let Some(network) = &context.network {
            span.record("cni.network.name", network.as_str());
        }
    }
    span
}
