//! Which blocks of a pool are free.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::addresses::{AddressPoolSpec, Family, Span};
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

    /// Returns a block that has addresses of this one. Blocks are aligned: of two that overlap, one contains the other.
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
}

impl Usable {
    pub(super) fn of(spec: &AddressPoolSpec) -> Self {
        let mut spans = spec.usable();
        spans.sort_unstable();
        Self { spans }
    }

    /// Returns the number of addresses of a family.
    pub(super) fn size(&self, family: Family) -> u128 {
        let of_family = self.spans.iter().filter(|span| span.family() == family);
        of_family.fold(0, |sum, span| sum.saturating_add(span.size()))
    }

    /// Returns the number of addresses of a block, without excluded ones.
    pub(super) fn count(&self, block: IpNet, excluded: &[IpAddr]) -> u128 {
        let all = Span::of_net(block);
        let start = self.spans.partition_point(|span| span.last() < all.first());
        let spans = self.spans.iter().skip(start).take_while(|span| span.first() <= all.last());
        let count = spans
            .filter_map(|span| span.intersection(all))
            .fold(0u128, |sum, span| sum.saturating_add(span.size()));
        let excluded = excluded.iter().filter(|ip| all.contains(**ip) && self.contains(**ip)).count();
        count.saturating_sub(excluded as u128)
    }

    fn contains(&self, ip: IpAddr) -> bool {
        let index = self.spans.partition_point(|span| span.last() < ip);
        self.spans.get(index).is_some_and(|span| span.contains(ip))
    }
}

/// The free blocks of a pool and family, those that rest last.
pub(super) struct Free<'a, I> {
    candidates: I,
    taken: Taken,
    usable: &'a Usable,
    held: Option<&'a BTreeSet<IpAddr>>,
    resting: Option<&'a BTreeMap<IpNet, Instant>>,
    /// Candidates that rest, the one that is free for longest first.
    rested: BTreeSet<(Instant, IpNet)>,
}

/// A free block.
pub(super) struct FreeBlock {
    pub(super) cidr: IpNet,
    pub(super) exclude: Vec<IpAddr>,
    pub(super) usable: u128,
}

impl<'a, I: Iterator<Item = IpNet>> Free<'a, I> {
    pub(super) fn new(
        candidates: I,
        taken: &Taken,
        usable: &'a Usable,
        held: Option<&'a BTreeSet<IpAddr>>,
        resting: Option<&'a BTreeMap<IpNet, Instant>>,
    ) -> Self {
        Self { candidates, taken: taken.clone(), usable, held, resting, rested: BTreeSet::new() }
    }

    /// Returns the block if it is free and somebody can get an address of it.
    fn check(&self, cidr: IpNet) -> Option<FreeBlock> {
        if self.taken.overlap(cidr).is_some() {
            return None;
        }
        let held = self.held.into_iter().flat_map(|held| held.range(cidr.network()..=cidr.broadcast()));
        let exclude: Vec<IpAddr> = held.copied().filter(|ip| self.usable.contains(*ip)).collect();
        let usable = self.usable.count(cidr, &exclude);
        (usable > 0).then_some(FreeBlock { cidr, exclude, usable })
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
