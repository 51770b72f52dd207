//! Chooses the address of an attachment from the blocks of its node. Pure, so that a model checker can drive
//! it.
//!
//! The agent alone chooses: neither a plan nor a result nor a reservation of another program may have the
//! address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::span::{Span, nth_after};

/// A block of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usable<'a> {
    /// The block.
    pub block: IpNet,
    /// The addresses of it that the node may hand out, without overlaps.
    pub spans: &'a [Span],
}

/// The addresses that attachments or other programs have.
pub type Taken = BTreeSet<IpAddr>;

/// The address that an attachment gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Choice {
    /// The block that it is of.
    pub block: IpNet,
    /// The address.
    pub address: IpAddr,
}

impl Usable<'_> {
    /// Whether the node may hand out the address.
    pub fn has(self, address: IpAddr) -> bool {
        self.spans.iter().any(|span| span.contains(address))
    }

    /// Returns how many addresses are free.
    pub fn free(self, taken: &Taken) -> u128 {
        let size = self.spans.iter().fold(0u128, |sum, span| sum.saturating_add(span.size()));
        size.saturating_sub(taken.iter().filter(|address| self.has(**address)).count() as u128)
    }

    /// Returns the first free address after `last`, and those before it in the end: an address that was just
    /// freed may still be in the caches of neighbours.
    fn next(self, last: Option<IpAddr>, taken: &Taken) -> Option<IpAddr> {
        let mut spans = self.spans.to_vec();
        spans.sort_unstable();
        let first = last.and_then(|last| nth_after(last, 1));
        let after = spans.iter().filter_map(|span| Span::new(span.first().max(first?), span.last()));
        let addresses = after.chain(spans.iter().copied()).flat_map(|span| {
            std::iter::successors(Some(span.first()), move |address| {
                nth_after(*address, 1).filter(|next| span.contains(*next))
            })
        });
        addresses.into_iter().find(|address| !taken.contains(address))
    }
}

/// Returns the address that an attachment gets of `blocks`, which are of one family: one of the fullest block
/// that has any, because the others may become empty and go to nodes that need them. `last` has the address
/// that was chosen last of each block.
pub fn choose<'a>(
    blocks: impl IntoIterator<Item = Usable<'a>>,
    taken: &Taken,
    last: &BTreeMap<IpNet, IpAddr>,
) -> Option<Choice> {
    let free = blocks.into_iter().map(|block| (block.free(taken), block)).filter(|(free, _)| *free > 0);
    let (_, fullest) = free.min_by_key(|(free, usable)| (*free, usable.block))?;
    let address = fullest.next(last.get(&fullest.block).copied(), taken)?;
    Some(Choice { block: fullest.block, address })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn net(text: &str) -> IpNet {
        text.parse().expect("a block")
    }

    fn spans(texts: &[&str]) -> Vec<Span> {
        texts.iter().map(|text| text.parse().expect("a span")).collect()
    }

    #[test]
    fn an_attachment_gets_an_address_of_the_fullest_block_that_has_any() {
        let (one, two) = (spans(&["10.0.0.0/30"]), spans(&["10.0.0.4/30"]));
        let blocks = [
            Usable { block: net("10.0.0.0/30"), spans: &one },
            Usable { block: net("10.0.0.4/30"), spans: &two },
        ];
        let mut taken = Taken::default();
        let next =
            |taken: &Taken| choose(blocks, taken, &BTreeMap::new()).map(|choice| choice.address.to_string());
        assert_eq!(next(&taken).as_deref(), Some("10.0.0.0"));
        taken.insert(ip("10.0.0.5"));
        assert_eq!(next(&taken).as_deref(), Some("10.0.0.4"));
        taken.extend(["10.0.0.4", "10.0.0.6", "10.0.0.7"].map(ip));
        assert_eq!(next(&taken).as_deref(), Some("10.0.0.0"));
        taken.extend(["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip));
        assert_eq!(next(&taken), None);
    }

    #[test]
    fn a_freed_address_is_the_last_one_that_is_given_again() {
        let spans = spans(&["10.0.0.6", "10.0.0.1-10.0.0.3"]);
        let block = Usable { block: net("10.0.0.0/29"), spans: &spans };
        let (mut last, taken, mut given) = (BTreeMap::new(), Taken::default(), Vec::new());
        for _ in 0..5 {
            let choice = choose([block], &taken, &last).expect("free");
            last.insert(choice.block, choice.address);
            given.push(choice.address.to_string());
        }
        assert_eq!(given, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.6", "10.0.0.1"]);
    }

    #[test]
    fn the_last_address_of_a_family_ends_no_search() {
        let all = spans(&["255.255.255.254/31"]);
        let block = Usable { block: net("255.255.255.254/31"), spans: &all };
        let last = BTreeMap::from([(block.block, ip("255.255.255.255"))]);
        let choice = choose([block], &Taken::default(), &last).expect("free");
        assert_eq!(choice.address.to_string(), "255.255.255.254");
    }

    proptest! {
        #[test]
        fn a_choice_is_usable_and_free_and_there_is_one_while_any_address_is(
            (used, excluded, after) in (prop::collection::btree_set(0u8..16, 0..16), 0u8..16, 0u8..16),
        ) {
            let address = |n: u8| IpAddr::from([10, 0, 0, n]);
            let all = [Span::new(address(0), address(15)).expect("ordered")];
            let spans = super::super::span::subtract(all.to_vec(), [Span::of_address(address(excluded))]);
            let block = Usable { block: net("10.0.0.0/28"), spans: &spans };
            let taken: Taken = used.iter().map(|n| address(*n)).collect();
            let last = BTreeMap::from([(block.block, address(after))]);
            let choice = choose([block], &taken, &last);
            let is_any_free = (0..16).any(|n| n != excluded && !used.contains(&n));
            prop_assert_eq!(choice.is_some(), is_any_free);
            if let Some(choice) = choice {
                prop_assert!(block.has(choice.address) && !taken.contains(&choice.address));
            }
        }
    }
}
