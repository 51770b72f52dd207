//! Which traces are sent.

use opentelemetry::trace::{Link, SpanKind, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SamplingResult, ShouldSample};

/// Bits of the lower half that may not be random: W3C Trace Context (level 2) promises the last 56.
const FIXED_BITS: u32 = 8;

/// Shows another sampler the random bits of a trace id alone, where it looks for them.
///
/// The SDK's sampler of a ratio reads 63 bits. The two highest of them are the same in every UUID, and our
/// trace ids are UUIDs. So it would sample no trace up to a ratio of 0.5, and all from 0.75 on.
#[derive(Debug, Clone)]
pub(super) struct RandomBits(pub(super) Box<dyn ShouldSample>);

impl ShouldSample for RandomBits {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        // The SDK samples low numbers. OpenTelemetry's programs have agreed on high ones.
        let random = u128::from_be_bytes(trace.to_bytes()) as u64;
        let trace = TraceId::from(u128::from(!random << FIXED_BITS));
        self.0.should_sample(parent, trace, name, kind, attributes, links)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::{Sampler, SamplingDecision};

    use super::*;

    fn sampled(share: f64, trace: u128) -> bool {
        let ratio = RandomBits(Sampler::TraceIdRatioBased(share).into());
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
