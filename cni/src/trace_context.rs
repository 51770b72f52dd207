//! Trace context that plugins get: [W3C Trace Context](https://www.w3.org/TR/trace-context/) and Baggage, as
//! the environment variables that OpenTelemetry gives them and libcni uses too.

use std::env;
use std::ffi::OsString;
use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::hex::hex;
use crate::names::{ContainerId, IfName};

pub(crate) const PARENT: &str = "TRACEPARENT";
const STATE: &str = "TRACESTATE";
const BAGGAGE: &str = "BAGGAGE";

/// Which trace a plugin's work belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// `00-<trace>-<parent>-<flags>`, checked.
    parent: String,
    state: Option<String>,
    baggage: Option<String>,
}

impl TraceContext {
    /// Returns the trace of all operations on one interface of one container. One id finds what plugins log
    /// about its ADD and its DEL, also after a restart of the caller.
    pub fn of_attachment(container_id: &ContainerId, if_name: &IfName) -> Self {
        // A slash is in neither name.
        let hash = Sha256::digest(format!("{container_id}/{if_name}"));
        let (trace, parent) = hash.split_at(16);
        let parent = format!("00-{}-{}-01", hex(trace), hex(parent.get(..8).unwrap_or(parent)));
        Self { parent, state: None, baggage: None }
    }

    /// Parses another program's `traceparent`. `None` if it is malformed: a broken trace must not fail an
    /// attachment.
    pub fn parse(parent: &str) -> Option<Self> {
        let mut parts = parent.split('-');
        let mut hex = |length: usize| {
            let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            parts.next().filter(|part| part.len() == length && part.bytes().all(digit))
        };
        let (version, trace, span, _flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let zero = |part: &str| part.bytes().all(|byte| byte == b'0');
        // Later versions may append parts; the first has none.
        let valid =
            version != "ff" && !zero(trace) && !zero(span) && (version != "00" || parts.next().is_none());
        valid.then(|| Self { parent: parent.to_owned(), state: None, baggage: None })
    }

    /// Returns the context in which this program was started, if any.
    pub fn from_env() -> Option<Self> {
        let text = |key: &str| env::var(key).ok().filter(|value| !value.is_empty());
        let context = Self::parse(&text(PARENT)?)?;
        Some(Self { state: text(STATE), baggage: text(BAGGAGE), ..context })
    }

    /// The trace's id: 32 hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        self.parent.get(3..35).unwrap_or_default()
    }

    /// The variables for a plugin.
    pub(crate) fn env(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        let given =
            [(PARENT, Some(&self.parent)), (STATE, self.state.as_ref()), (BAGGAGE, self.baggage.as_ref())];
        given.into_iter().filter_map(|(key, value)| Some((key, value?.into())))
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_handed_on_as_it_came() {
        let context = TraceContext::parse(GIVEN).unwrap();
        assert_eq!(context.to_string(), GIVEN);
        assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.env().collect::<Vec<_>>(), [("TRACEPARENT", GIVEN.into())]);
        assert!(TraceContext::parse(&format!("01{}-more", &GIVEN[2..])).is_some());
    }

    #[test]
    fn a_malformed_traceparent_is_ignored() {
        let zero_trace = GIVEN.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        let zero_span = GIVEN.replace("b7ad6b7169203331", &"0".repeat(16));
        let (upper, longer, version) =
            (GIVEN.to_uppercase(), format!("{GIVEN}-x"), GIVEN.replacen("00", "ff", 1));
        for text in ["", "x", &GIVEN[1..], &zero_trace, &zero_span, &upper, &longer, &version] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_attachment_has_a_trace_of_its_own_that_does_not_change() {
        let of = |container: &str, interface: &str| {
            TraceContext::of_attachment(&container.parse().unwrap(), &interface.parse().unwrap())
        };
        assert_eq!(of("c1", "net1"), of("c1", "net1"));
        assert_ne!(of("c1", "net1").trace_id(), of("c1", "net2").trace_id());
        assert_eq!(TraceContext::parse(&of("c1", "net1").to_string()), Some(of("c1", "net1")));
    }
}
