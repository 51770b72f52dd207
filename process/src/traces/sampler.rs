//! Which traces are sent.

use opentelemetry::trace::{Link, SpanKind, TraceContextExt as _, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SamplingDecision, SamplingResult, ShouldSample};

/// Bits of a trace id that are random: the last 56, as W3C Trace Context (level 2) has it.
const RANDOM_BITS: u32 = 56;

/// Samples a share of the traces, by the last 56 bits of their ids.
///
/// The SDK's own sampler reads 63 bits. The two highest of them are the same in every UUID, and our trace ids are UUIDs. So it would
/// sample no trace up to a share of 0.5, and all from 0.75 on.
#[derive(Debug, Clone)]
pub(super) struct Ratio {
    /// Traces with random bits from here on are sampled.
    from: u64,
}

impl Ratio {
    /// Samples this share of the traces, from 0 to 1.
    pub(super) fn new(share: f64) -> Self {
        let all = 1u64 << RANDOM_BITS;
        // Exact enough: a double has 53 bits.
        Self { from: ((1.0 - share) * all as f64) as u64 }
    }
}

impl ShouldSample for Ratio {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        _name: &str,
        _kind: &SpanKind,
        _attributes: &[KeyValue],
        _links: &[Link],
    ) -> SamplingResult {
        let random = u128::from_be_bytes(trace.to_bytes()) & ((1 << RANDOM_BITS) - 1);
        let is_sampled = random >= u128::from(self.from);
        SamplingResult {
            decision: if is_sampled { SamplingDecision::RecordAndSample } else { SamplingDecision::Drop },
            attributes: Vec::new(),
            trace_state: parent
                .map(|parent| parent.span().span_context().trace_state().clone())
                .unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(share: f64, trace: u128) -> bool {
        let ratio = Ratio::new(share);
        let result = ratio.should_sample(None, trace.into(), "a", &SpanKind::Internal, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }

    #[test]
    fn a_share_of_traces_with_uuids_as_ids_is_sampled() {
        // UUIDs of version 4: the version and the variant are the same in all of them.
        let uuid = |random: u64| 0x6ba7_b810_9dad_4000_8000_0000_0000_0000 | u128::from(random >> 8);
        let mut random = 1u64;
        let mut uuids = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            uuid(random)
        });
        let ids: Vec<u128> = uuids.by_ref().take(10_000).collect();
        for (share, expected) in [(0.0, 0..=0), (0.1, 900..=1100), (0.5, 4800..=5200), (1.0, 10_000..=10_000)]
        {
            let count = ids.iter().filter(|id| sampled(share, **id)).count();
            assert!(expected.contains(&count), "{share}: {count}");
        }
        let of_less = ids.iter().filter(|id| sampled(0.1, **id));
        assert!(
            of_less.clone().all(|id| sampled(0.5, *id)),
            "a greater share has the traces of a smaller one"
        );
    }
}
