//! Empty blocks that another node needs more.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ipnet::IpNet;
use tokio::time::Instant;

use super::share::{Rank, Share, ShortNode};
use super::{ExistingBlock, Removal, Why};

/// An empty block, in the order in which they are taken.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate<'a> {
    /// Whether nothing may come of it for long: its node is not Ready, or does not publish the ClaimNetwork.
    is_away: bool,
    /// Whether its node needs it: it is its last one, or the node wants as many addresses.
    is_needed: bool,
    /// Blocks of its node, before this one is taken.
    blocks: Reverse<usize>,
    reported: Instant,
    name: &'a str,
    uid: &'a str,
}

/// Returns the blocks to take: at most one for each node without a block, and one for each place where pods
/// wait beside full blocks. Without a waiting pod, no node loses a block that it needs. The blocks in `given`
/// rest.
pub(super) fn find(
    share: &Share<'_>,
    short: &[ShortNode<'_>],
    given: Option<&BTreeMap<IpNet, Instant>>,
) -> Vec<Removal> {
    let count = |rank, has_blocks| {
        short.iter().filter(|short| short.rank == rank && (short.blocks > 0) == has_blocks).count()
    };
    let crowded: usize = share.pressure.values().map(|pressure| pressure.crowded).sum();
    let awaited = count(Rank::Awaited, false) + count(Rank::Awaited, true).min(crowded);
    let mut candidates = candidates(share, given);
    candidates.sort_unstable();
    let rest = candidates.split_off(awaited.min(candidates.len()));
    let spare = rest.into_iter().filter(|candidate| !candidate.is_needed).take(count(Rank::First, false));
    let removal = |candidate: Candidate<'_>| Removal {
        name: candidate.name.to_owned(),
        uid: candidate.uid.to_owned(),
        why: Why::Moved,
    };
    candidates.into_iter().chain(spare).map(removal).collect()
}

fn candidates<'a>(share: &Share<'a>, given: Option<&BTreeMap<IpNet, Instant>>) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    for ((network, node), holding) in &share.holdings {
        let is_needed_by_pod =
            share.pressure.get(network).is_some_and(|pressure| pressure.needed.contains(node));
        let rests = |cidr: &IpNet| given.is_some_and(|given| given.contains_key(cidr));
        let empty = holding.empty.iter().filter(|(held, _)| !rests(&held.block.spec.cidr));
        let mut empty: Vec<&(&ExistingBlock<'a>, u128)> = empty.collect();
        empty.sort_by_key(|(held, _)| (held.block.reported, held.name));
        let (mut blocks, mut usable) = (holding.blocks, holding.usable);
        for (held, count) in empty {
            usable = usable.saturating_sub(*count);
            let is_needed = blocks == 1 || usable < holding.wanted;
            if is_needed && is_needed_by_pod {
                break;
            }
            found.push(Candidate {
                is_away: !holding.is_open(),
                is_needed,
                blocks: Reverse(blocks),
                reported: held.block.reported,
                name: held.name,
                uid: &held.block.uid,
            });
            blocks -= 1;
        }
    }
    found
}
