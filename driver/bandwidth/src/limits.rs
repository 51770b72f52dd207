//! Limits, and the token buckets that enforce them.
//!
//! * A burst that is not given is what the rate yields in 4 ms, the interval of a slow kernel timer. It is at
//!   least one packet of 64 KiB, which segmentation offload leaves whole.
//! * A given burst counts, but is at least one full frame: below that, nothing would pass. The kernel then
//!   splits packets that offload leaves whole.
//! * A packet that does not pass at once waits up to 25 ms longer than the burst takes, and is dropped then,
//!   as with the reference plugin.

use netclaim_plugin::Failure;

/// How long a packet waits at most, in addition to the burst's own time.
const LATENCY_MS: u64 = 25;
/// A default burst lasts this part of a second.
const BURSTS_PER_SECOND: u64 = 250;
/// Ethernet header with a VLAN tag.
const FRAME_HEADER: u64 = 18;
/// The longest packet before segmentation, with its header.
const OFFLOADED: u64 = 64 * 1024 + FRAME_HEADER;

/// The limits of an interface. A direction without one stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// For received packets.
    pub ingress: Option<Limit>,
    /// For sent packets.
    pub egress: Option<Limit>,
}

/// The limit of one direction: a rate, and a burst. A burst that is not given is what the rate yields in
/// 4 ms, and at least a packet of 64 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Bytes per second, not 0.
    rate: u64,
    /// Bytes.
    burst: Option<u32>,
}

/// The parameters of the kernel's token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Bytes per second.
    pub(crate) rate: u64,
    /// Bytes that may pass at once.
    pub(crate) burst: u32,
    /// Bytes that may wait.
    pub(crate) limit: u32,
}

impl Limit {
    /// Converts bit/s and bits; 0 means none. `direction` is the prefix of the keys in errors.
    ///
    /// # Errors
    /// A burst without a rate, a rate of less than a byte per second, or a burst of more than 32 bits.
    pub fn new(direction: &str, rate: Option<u64>, burst: Option<u64>) -> Result<Option<Self>, Failure> {
        let set = |value: Option<u64>| value.filter(|value| *value > 0);
        let (rate, burst) = match (set(rate), set(burst)) {
            (Some(rate), burst) => (rate, burst),
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                let problem = format!("has no effect without {direction}Rate: write both, or none");
                return Err(Failure::config(format!("{direction}Burst"), problem));
            }
        };
        if rate < 8 {
            let problem = format!("{rate} bit/s is less than a byte per second: write at least 8");
            return Err(Failure::config(format!("{direction}Rate"), problem));
        }
        let burst = burst.map(|bits| {
            u32::try_from(bits.div_ceil(8)).map_err(|_| {
                let problem = format!("{bits} bits are too much: write at most {}", u64::from(u32::MAX) * 8);
                Failure::config(format!("{direction}Burst"), problem)
            })
        });
        Ok(Some(Self { rate: rate / 8, burst: burst.transpose()? }))
    }

    /// Returns the limit of this rate in bit/s, with a burst that fits it; at least a byte per second.
    pub fn of_rate(rate: u64) -> Self {
        Self { rate: (rate / 8).max(1), burst: None }
    }

    /// Returns the stricter one: of lower rate.
    #[must_use]
    pub fn stricter(self, other: Option<Self>) -> Self {
        other.filter(|other| other.rate < self.rate).unwrap_or(self)
    }

    /// Returns the bucket for an interface with this MTU.
    pub(crate) fn bucket(self, mtu: u32) -> Bucket {
        let frame = u64::from(mtu) + FRAME_HEADER;
        let burst = match self.burst {
            Some(burst) => u64::from(burst).max(frame),
            // Independent of the MTU, which may change before CHECK.
            None => (self.rate / BURSTS_PER_SECOND).max(OFFLOADED),
        };
        let waiting =
            u64::try_from(u128::from(self.rate) * u128::from(LATENCY_MS) / 1000).unwrap_or(u64::MAX);
        let bytes = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Bucket { rate: self.rate, burst: bytes(burst), limit: bytes(waiting.saturating_add(burst)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(rate: u64, burst: Option<u64>) -> Bucket {
        Limit::new("egress", Some(rate), burst).expect("is valid").expect("a limit").bucket(1500)
    }

    #[test]
    fn a_rate_and_a_burst_are_converted_to_bytes() {
        let limit = |rate, burst| Limit::new("egress", Some(rate), burst).expect("is valid");
        assert_eq!(limit(80, None), Some(Limit { rate: 10, burst: None }));
        assert_eq!(limit(160, Some(8)), Some(Limit { rate: 20, burst: Some(1) }));
    }

    #[test]
    fn the_stricter_limit_is_that_of_the_lower_rate() {
        let (low, high) = (Limit::of_rate(80), Limit::of_rate(160));
        assert_eq!([high.stricter(Some(low)), low.stricter(Some(high)), low.stricter(None)], [low; 3]);
        assert_eq!(Limit::of_rate(0), Limit { rate: 1, burst: None });
    }

    #[test]
    fn a_default_burst_lasts_four_milliseconds_and_has_room_for_an_offloaded_packet() {
        assert_eq!(
            bucket(10_000_000_000, None),
            Bucket { rate: 1_250_000_000, burst: 5_000_000, limit: 36_250_000 }
        );
        assert_eq!(bucket(1_000_000, None), Bucket { rate: 125_000, burst: 65_554, limit: 68_679 });
    }

    #[test]
    fn a_given_burst_counts_but_a_frame_always_passes() {
        assert_eq!(bucket(8000, Some(80_000)).burst, 10_000);
        assert_eq!(bucket(8000, Some(8)).burst, 1518);
    }

    #[test]
    fn no_rate_overflows_the_kernels_counters() {
        assert_eq!(bucket(u64::MAX, None), Bucket { rate: u64::MAX / 8, burst: u32::MAX, limit: u32::MAX });
    }
}
