//! Spans of addresses: arithmetic that does not count one by one, because an IPv6 subnet has 2^64 addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Invalid;

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns the number of bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Addresses of one family from the first to the last, both included. Written as `10.0.0.7`, `10.0.0.0/28` or
/// `10.0.0.7-10.0.0.9`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span {
    family: Family,
    first: u128,
    last: u128,
}

impl Span {
    /// Returns the span from `first` to `last`; `None` if they are of two families or in the wrong order.
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Self> {
        let (family, first_number, last_number) = (Family::of(first), number(first), number(last));
        (family == Family::of(last) && first_number <= last_number).then_some(Self {
            family,
            first: first_number,
            last: last_number,
        })
    }

    /// Returns all addresses of a subnet or block, the network's own and the broadcast address included.
    pub fn of_net(net: IpNet) -> Self {
        Self { family: Family::of(net.addr()), first: number(net.network()), last: number(net.broadcast()) }
    }

    /// Returns the span of one address.
    pub fn of_address(ip: IpAddr) -> Self {
        Self { family: Family::of(ip), first: number(ip), last: number(ip) }
    }

    /// The family of its addresses.
    pub fn family(self) -> Family {
        self.family
    }

    /// The first address.
    pub fn first(self) -> IpAddr {
        address(self.family, self.first)
    }

    /// The last address.
    pub fn last(self) -> IpAddr {
        address(self.family, self.last)
    }

    /// Returns the number of addresses; one less than there are for all of IPv6.
    pub fn size(self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    /// Whether the address is in the span.
    pub fn contains(self, ip: IpAddr) -> bool {
        self.family == Family::of(ip) && (self.first..=self.last).contains(&number(ip))
    }

    /// Whether all of the other span is in this one.
    pub fn covers(self, other: Self) -> bool {
        self.intersection(other) == Some(other)
    }

    /// Returns the addresses that both have.
    pub fn intersection(self, other: Self) -> Option<Self> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (self.family == other.family && first <= last).then_some(Self { first, last, ..self })
    }

    /// Returns what is left of it without the other span: nothing, one or two spans.
    fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let common = self.intersection(other);
        let before = match common {
            None => Some(self),
            Some(common) => common
                .first
                .checked_sub(1)
                .filter(|last| *last >= self.first)
                .map(|last| Self { last, ..self }),
        };
        let after = common
            .and_then(|common| common.last.checked_add(1))
            .filter(|first| *first <= self.last)
            .map(|first| Self { first, ..self });
        before.into_iter().chain(after)
    }

    /// Returns the blocks of `prefix` bits that have addresses of the span, in order. Lazy: there may be
    /// 2^64.
    pub fn blocks(self, prefix: u8) -> impl Iterator<Item = IpNet> {
        let host_bits = u32::from(self.family.bits().saturating_sub(prefix));
        let index = move |number: u128| number.checked_shr(host_bits).unwrap_or(0);
        let net = move |index: u128| {
            let start = address(self.family, index.checked_shl(host_bits).unwrap_or(0));
            IpNet::new(start, prefix).ok()
        };
        (index(self.first)..=index(self.last)).filter_map(net)
    }
}

/// Removes the spans `taken` from `spans`.
pub(super) fn subtract(spans: Vec<Span>, taken: impl IntoIterator<Item = Span>) -> Vec<Span> {
    taken
        .into_iter()
        .fold(spans, |left, taken| left.into_iter().flat_map(|span| span.without(taken)).collect())
}

/// Returns an address range that both lists have.
pub fn overlap(one: &[Span], other: &[Span]) -> Option<Span> {
    one.iter().find_map(|a| other.iter().find_map(|b| a.intersection(*b)))
}

/// Returns the address `count` after this one; `None` beyond the last of its family.
pub fn nth_after(ip: IpAddr, count: u128) -> Option<IpAddr> {
    let (family, number) = (Family::of(ip), number(ip).checked_add(count)?);
    let is_address = family == Family::V6 || u32::try_from(number).is_ok();
    is_address.then(|| address(family, number))
}

/// Returns the address before this one; `None` before the first of its family.
pub fn before(ip: IpAddr) -> Option<IpAddr> {
    number(ip).checked_sub(1).map(|number| address(Family::of(ip), number))
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address(family: Family, number: u128) -> IpAddr {
    match (family, u32::try_from(number)) {
        (Family::V4, Ok(bits)) => Ipv4Addr::from_bits(bits).into(),
        _ => Ipv6Addr::from_bits(number).into(),
    }
}

impl FromStr for Span {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = |problem: &str| Invalid::new("", format!("{text:?} {problem}"));
        let form =
            "is not an address, CIDR or FIRST-LAST, such as 10.0.0.7, 10.0.0.0/28 or 10.0.0.7-10.0.0.9";
        if let Some((first, last)) = text.split_once('-') {
            let ip = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| invalid(form));
            return Self::new(ip(first)?, ip(last)?)
                .ok_or_else(|| invalid("must have two addresses of one family, the lower one first"));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::of_address(ip));
        }
        let net: IpNet = text.parse().map_err(|_| invalid(form))?;
        if net != net.trunc() {
            return Err(invalid(&format!("has host bits set: write {}", net.trunc())));
        }
        Ok(Self::of_net(net))
    }
}

impl TryFrom<String> for Span {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return self.first().fmt(f);
        }
        let bits = (self.last - self.first).checked_add(1).map_or(128, u128::trailing_zeros);
        let prefix = u8::try_from(u32::from(self.family.bits()).saturating_sub(bits)).unwrap_or_default();
        match IpNet::new(self.first(), prefix).ok().filter(|net| Self::of_net(*net) == *self) {
            Some(net) => net.fmt(f),
            None => write!(f, "{}-{}", self.first(), self.last()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(text: &str) -> Span {
        text.parse().expect("a span")
    }

    #[test]
    fn a_span_is_written_in_three_forms_and_printed_in_the_shortest() {
        for (text, printed, size) in [
            ("10.0.0.7", "10.0.0.7", 1),
            ("10.0.0.7/32", "10.0.0.7", 1),
            ("10.0.0.0/28", "10.0.0.0/28", 16),
            ("10.0.0.0-10.0.0.15", "10.0.0.0/28", 16),
            ("10.0.0.1-10.0.0.3", "10.0.0.1-10.0.0.3", 3),
            ("fd00::1 - fd00::2", "fd00::1-fd00::2", 2),
            ("::/0", "::/0", u128::MAX),
            ("0.0.0.0/0", "0.0.0.0/0", 1 << 32),
        ] {
            assert_eq!((span(text).to_string().as_str(), span(text).size()), (printed, size), "{text}");
        }
        for bad in ["", "10.0.0.1/24", "10.0.0.2-10.0.0.1", "10.0.0.1-fd00::1", "x", "10.0.0.1-"] {
            let error = bad.parse::<Span>().expect_err("refused").to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    #[test]
    fn blocks_cover_a_span_in_order() {
        let blocks = |text: &str, prefix| {
            span(text).blocks(prefix).take(3).map(|block| block.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(blocks("10.0.0.14-10.0.0.40", 28), ["10.0.0.0/28", "10.0.0.16/28", "10.0.0.32/28"]);
        assert_eq!(blocks("10.0.0.16/28", 28), ["10.0.0.16/28"]);
        assert_eq!(blocks("0.0.0.0/0", 0), ["0.0.0.0/0"]);
        assert_eq!(blocks("fd00::/64", 122), ["fd00::/122", "fd00::40/122", "fd00::80/122"]);
        assert_eq!(blocks("::/0", 0), ["::/0"]);
    }

    proptest! {
        #[test]
        fn the_rest_has_the_addresses_that_were_not_taken(
            (a, b, c, d) in (0u8.., 0u8.., 0u8.., 0u8..)
        ) {
            let of = |a: u8, b: u8| {
                let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
                Span::new(ip(a.min(b)), ip(a.max(b))).expect("ordered")
            };
            let (all, taken) = (of(a, b), of(c, d));
            let left = subtract(vec![all], [taken]);
            for host in 0..=255u8 {
                let ip = IpAddr::from([10, 0, 0, host]);
                let times = left.iter().filter(|span| span.contains(ip)).count();
                prop_assert_eq!(times, usize::from(all.contains(ip) && !taken.contains(ip)));
            }
        }
    }
}
