//! Which blocks of a pool are free.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::addresses::spans::{contains, merge, within};
use netclaim_api::addresses::{
    AddressBlockSpec, AddressPoolSpec, Family, MAX_BLOCK_RANGES, Span, before, nth_after,
};
use tokio::time::Instant;

/// The blocks of a pool that exist, of any size.
#[derive(Debug, Clone, Default)]
pub(super) struct Taken {
    blocks: BTreeSet<IpNet>,
    prefixes: BTreeSet<u8>,
}

impl Taken {
    pub(super) fn insert(&mut self, block: IpNet) {
        self.blocks.insert(block);
        self.prefixes.insert(block.prefix_len());
    }

    /// Returns a block that has addresses of this one. Blocks are aligned: of two that overlap, one contains
    /// the other.
    pub(super) fn overlap(&self, block: IpNet) -> Option<IpNet> {
        let wider = self.prefixes.range(..block.prefix_len());
        let containing = wider
            .filter_map(|prefix| IpNet::new(block.addr(), *prefix).ok())
            .find_map(|net| self.blocks.get(&net.trunc()).copied());
        let bounds = || {
            let first = IpNet::new(block.network(), 0).ok()?;
            Some(first..=IpNet::new(block.broadcast(), block.max_prefix_len()).ok()?)
        };
        containing.or_else(|| self.blocks.range(bounds()?).next().copied())
    }
}

/// The addresses of a pool that nodes may hand out.
#[derive(Debug)]
pub(super) struct Usable {
    /// Sorted, without overlaps.
    spans: Vec<Span>,
    /// Addresses that only claims get that ask for them: sorted, without overlaps.
    reserved: Vec<Span>,
}

impl Usable {
    pub(super) fn of(spec: &AddressPoolSpec) -> Self {
        Self { spans: merge(spec.usable()), reserved: merge(spec.reserved.clone()) }
    }

    /// Returns the number of addresses of a family.
    pub(super) fn size(&self, family: Family) -> u128 {
        size(self.spans.iter().copied().filter(|span| span.family() == family))
    }

    /// Returns the number of addresses that the node of a block may hand out.
    pub(super) fn count(&self, block: &AddressBlockSpec) -> u128 {
        let all = Span::of_net(block.cidr);
        if block.ranges.is_empty() {
            return self.size_within(all);
        }
        let ranges = block.ranges.iter().filter_map(|range| range.intersection(all));
        ranges.fold(0, |sum, range| sum.saturating_add(self.size_within(range)))
    }

    /// Returns the addresses of a block, without those that are held.
    fn left(&self, block: IpNet, held: &BTreeSet<IpAddr>) -> Vec<Span> {
        self.within(Span::of_net(block)).flat_map(|span| without(span, held)).collect()
    }

    fn size_within(&self, all: Span) -> u128 {
        size(self.within(all))
    }

    /// Whether a pod or a claim can get an address of a block.
    pub(super) fn has_any_of(&self, block: IpNet) -> bool {
        let all = Span::of_net(block);
        self.within(all).chain(within(&self.reserved, all)).next().is_some()
    }

    /// Whether nodes may still hand out all addresses that the node of a block has got.
    pub(super) fn has_all_of(&self, block: &AddressBlockSpec) -> bool {
        let has = |span: Span| self.size_within(span) == span.size();
        if block.ranges.is_empty() {
            has(Span::of_net(block.cidr))
        } else {
            block.ranges.iter().all(|range| has(*range))
        }
    }

    /// Whether a pod or a claim can get the address.
    pub(super) fn has_address(&self, ip: IpAddr) -> bool {
        contains(&self.spans, ip) || contains(&self.reserved, ip)
    }

    /// Whether claims may ask for an address that the node of the block has got.
    pub(super) fn reserves(&self, block: &AddressBlockSpec) -> bool {
        let all = Span::of_net(block.cidr);
        let is_reserved = |span| within(&self.reserved, span).next().is_some();
        match block.ranges.as_slice() {
            [] => is_reserved(all),
            ranges => ranges.iter().filter_map(|range| range.intersection(all)).any(is_reserved),
        }
    }

    /// Returns the usable addresses of a span.
    fn within(&self, all: Span) -> impl Iterator<Item = Span> {
        within(&self.spans, all)
    }
}

fn size(spans: impl Iterator<Item = Span>) -> u128 {
    spans.fold(0, |sum, span| sum.saturating_add(span.size()))
}

/// Returns the addresses of the span that are not held.
fn without(span: Span, held: &BTreeSet<IpAddr>) -> Vec<Span> {
    let mut left = Vec::new();
    let mut first = Some(span.first());
    for ip in held.range(span.first()..=span.last()) {
        left.extend(first.zip(before(*ip)).and_then(|(first, last)| Span::new(first, last)));
        first = nth_after(*ip, 1);
    }
    left.extend(first.and_then(|first| Span::new(first, span.last())));
    left
}

/// The free blocks of a pool and family, those that rest last.
pub(super) struct Free<'a, I> {
    candidates: I,
    taken: Taken,
    usable: &'a Usable,
    held: &'a BTreeSet<IpAddr>,
    resting: Option<&'a BTreeMap<IpNet, Instant>>,
    /// Candidates that rest, the one that is free for longest first.
    rested: BTreeSet<(Instant, IpNet)>,
}

/// A free block.
pub(super) struct FreeBlock {
    pub(super) cidr: IpNet,
    /// Its usable addresses that no lease holds.
    pub(super) ranges: Vec<Span>,
    pub(super) usable: u128,
}

impl<'a, I: Iterator<Item = IpNet>> Free<'a, I> {
    pub(super) fn new(
        candidates: I,
        taken: &Taken,
        usable: &'a Usable,
        held: &'a BTreeSet<IpAddr>,
        resting: Option<&'a BTreeMap<IpNet, Instant>>,
    ) -> Self {
        Self { candidates, taken: taken.clone(), usable, held, resting, rested: BTreeSet::new() }
    }

    /// Returns the block if it is free and a pod can get an address of it.
    fn check(&self, cidr: IpNet) -> Option<FreeBlock> {
        if self.taken.overlap(cidr).is_some() {
            return None;
        }
        let mut ranges = self.usable.left(cidr, self.held);
        ranges.truncate(MAX_BLOCK_RANGES);
        let usable = size(ranges.iter().copied());
        (usable > 0).then_some(FreeBlock { cidr, ranges, usable })
    }

    fn resting_since(&self, cidr: IpNet) -> Option<Instant> {
        self.resting?.get(&cidr).copied()
    }
}

impl<I: Iterator<Item = IpNet>> Iterator for Free<'_, I> {
    type Item = FreeBlock;

    fn next(&mut self) -> Option<FreeBlock> {
        while let Some(cidr) = self.candidates.next() {
            let Some(free) = self.check(cidr) else { continue };
            if let Some(since) = self.resting_since(cidr) {
                self.rested.insert((since, cidr));
                continue;
            }
            self.taken.insert(cidr);
            return Some(free);
        }
        while let Some((_, cidr)) = self.rested.pop_first() {
            if let Some(free) = self.check(cidr) {
                self.taken.insert(cidr);
                return Some(free);
            }
        }
        None
    }
}
