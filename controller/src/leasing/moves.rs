//! Empty blocks that another node needs more.

use std::cmp::Reverse;

use tokio::time::Instant;

use super::share::{Rank, Share, Turn};
use super::{Held, Removal, Why};

/// An empty block, in the order in which they are taken.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate<'a> {
    /// Whether its node needs it: it is its last one, or the node wants as many addresses.
    is_needed: bool,
    /// Blocks of its node, before this one is taken.
    blocks: Reverse<usize>,
    reported: Instant,
    name: &'a str,
    uid: &'a str,
}

/// Returns the blocks to take for nodes that have none: at most one for each. Without a waiting pod, no node loses a block
/// that it needs.
pub(super) fn find(share: &Share<'_>, short: &[Turn<'_>]) -> Vec<Removal> {
    let count = |rank| short.iter().filter(|turn| turn.rank == rank).count();
    let (awaited, first) = (count(Rank::Awaited), count(Rank::First));
    let mut candidates = candidates(share);
    candidates.sort_unstable();
    let spare = candidates.iter().filter(|candidate| !candidate.is_needed).count();
    let number = if spare > awaited { spare.min(awaited + first) } else { awaited };
    let removal = |candidate: Candidate<'_>| Removal {
        name: candidate.name.to_owned(),
        uid: candidate.uid.to_owned(),
        why: Why::Moved,
    };
    candidates.into_iter().take(number).map(removal).collect()
}

fn candidates<'a>(share: &Share<'a>) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    for ((network, node), holding) in &share.holdings {
        let is_needed_by_pod =
            share.pressure.get(network).is_some_and(|pressure| pressure.needed.contains(node));
        let mut empty: Vec<&(&Held<'a>, u128)> = holding.empty.iter().collect();
        empty.sort_by_key(|(held, _)| (held.block.reported, held.name));
        let (mut blocks, mut usable) = (holding.blocks, holding.usable);
        for (held, count) in empty {
            usable = usable.saturating_sub(*count);
            let is_needed = blocks == 1 || usable < holding.wanted;
            if is_needed && is_needed_by_pod {
                break;
            }
            found.push(Candidate {
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
