//! Lists of spans of addresses. Pure.

use std::net::IpAddr;

use super::{Span, nth_after};

/// Joins spans that overlap or meet, and sorts them.
#[must_use]
pub fn merge(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::new();
    for span in spans {
        let joined = merged.last().and_then(|last| {
            let next = nth_after(last.last(), 1).unwrap_or_else(|| last.last());
            let meets = last.family() == span.family() && span.first() <= next;
            meets.then(|| Span::new(last.first(), last.last().max(span.last()))).flatten()
        });
        match (joined, merged.last_mut()) {
            (Some(joined), Some(last)) => *last = joined,
            _ => merged.push(span),
        }
    }
    merged
}

/// Whether one of the sorted, disjoint spans has the address.
#[must_use]
pub fn contains(sorted: &[Span], ip: IpAddr) -> bool {
    let address = Span::of_address(ip);
    let after =
        sorted.partition_point(|span| (span.family(), span.first()) <= (address.family(), address.first()));
    after.checked_sub(1).and_then(|i| sorted.get(i)).is_some_and(|span| span.contains(ip))
}

/// Returns what sorted spans without overlaps have of a span.
pub fn within(sorted: &[Span], all: Span) -> impl Iterator<Item = Span> {
    let start = sorted.partition_point(|span| span.last() < all.first());
    let spans = sorted.iter().skip(start).take_while(move |span| span.first() <= all.last());
    spans.filter_map(move |span| span.intersection(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_meet_become_one() {
        let spans =
            ["10.0.0.9", "10.0.0.0/30", "10.0.0.4-10.0.0.5", "10.0.0.2", "fd00::1", "255.255.255.255"];
        let merged = merge(spans.iter().map(|span| span.parse().unwrap()).collect());
        let texts: Vec<String> = merged.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.0-10.0.0.5", "10.0.0.9", "255.255.255.255", "fd00::1"]);
        for (address, is_in) in
            [("10.0.0.5", true), ("10.0.0.6", false), ("fd00::1", true), ("fd00::", false)]
        {
            assert_eq!(contains(&merged, address.parse().unwrap()), is_in, "{address}");
        }
    }
}
