//! What has passed through a link.

/// What a link has received and sent since it was made (`struct rtnl_link_stats64`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// In the namespace of the link: what the pod has received.
    pub received: Passed,
    /// What the pod has sent.
    pub sent: Passed,
}

/// What has passed in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes of frames, with their headers.
    pub bytes: u64,
    /// Frames, or what the kernel has put together of some.
    pub packets: u64,
    /// Frames that were broken or could not be sent.
    pub errors: u64,
    /// Frames that the kernel has dropped.
    pub dropped: u64,
}

impl Counters {
    /// Decodes the attribute `IFLA_STATS64`; `None` if it is too short.
    pub(super) fn decode(value: &[u8]) -> Option<Self> {
        let number = |n: usize| {
            let bytes = value.get(n * 8..)?.first_chunk()?;
            Some(u64::from_ne_bytes(*bytes))
        };
        let passed = |first: usize| {
            Some(Passed {
                packets: number(first)?,
                bytes: number(first + 2)?,
                errors: number(first + 4)?,
                dropped: number(first + 6)?,
            })
        };
        Some(Self { received: passed(0)?, sent: passed(1)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_decoded_in_the_order_of_the_kernel() {
        let value: Vec<u8> = (1..=8_u64).flat_map(u64::to_ne_bytes).collect();
        let (received, sent) = (
            Passed { packets: 1, bytes: 3, errors: 5, dropped: 7 },
            Passed { packets: 2, bytes: 4, errors: 6, dropped: 8 },
        );
        assert_eq!(Counters::decode(&value), Some(Counters { received, sent }));
        assert_eq!(Counters::decode(&value[..63]), None);
        assert_eq!(Counters::decode(&[]), None);
    }
}
