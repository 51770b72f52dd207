//! Blocks that must go: those that nothing describes any more, and those of nodes that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ipnet::IpNet;
use netclaim_api::addresses::{AddressBlockSpec, Leased, PoolKey, lease_name};
use tokio::time::Instant;

use super::free::{Taken, Usable};
use super::memory::Memory;
use super::{
    Block, BlockRef, ExistingBlock, HeldAddress, LEFT, Leaving, OfPool, Phase, Plan, Removal, Safety, World,
};
use crate::demand::Draw;

/// Why a block is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    NetworkGone,
    OtherPool,
    OutOfRange,
    /// Claims may ask for an address that its node has got.
    Reserved,
    /// Pods may not get an address any more that its node has got.
    Cut,
    OtherName,
    Overlaps(IpNet),
    NodeGone,
    /// Its node does not have the ClaimNetwork any more.
    NodeLeft,
    /// Another node needs it more.
    Moved,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetworkGone => f.write_str("its ClaimNetwork does not exist any more"),
            Self::OtherPool => f.write_str("its ClaimNetwork does not draw from its pool any more"),
            Self::OutOfRange => f.write_str("no range has its addresses any more"),
            Self::Reserved => f.write_str("addresses of it are reserved now"),
            Self::Cut => f.write_str("some of its addresses are excluded or in no range any more"),
            Self::OtherName => f.write_str("its name is not that of its spec"),
            Self::Overlaps(other) => write!(f, "it overlaps with the older block {other}"),
            Self::NodeGone => f.write_str("its node does not exist any more"),
            Self::NodeLeft => f.write_str("its node does not have the ClaimNetwork any more"),
            Self::Moved => f.write_str("it is empty, and another node needs it"),
        }
    }
}

/// Adds to the plan what must go, and marks it in `pools`, whose addresses it fills in.
///
/// The blocks of a node that is gone are deleted first, and released later. An agent that still hears of its
/// blocks stops to hand out their addresses when they are deleted. One that does not stops after half of the
/// safety time, before they are released: even if its Node object comes back, no address has two pods.
pub(super) fn find(
    world: &World<'_>,
    pools: &mut BTreeMap<PoolKey, OfPool<'_>>,
    usable: &BTreeMap<&PoolKey, Usable>,
    (memory, safety): (&Memory, Safety),
    now: Instant,
    plan: &mut Plan,
) {
    for (key, of_pool) in pools {
        let usable = usable.get(key);
        let overlaps = overlaps(of_pool);
        for held in &mut of_pool.blocks {
            let block = held.block;
            if block.phase == Phase::Pending {
                continue;
            }
            let gone_since = memory.gone_since(&block.spec.node);
            let mut is_gone_for =
                |time: Duration| gone_since.is_some_and(|since| plan.is_past(since + time, now));
            let (node_is_gone, is_over) = (is_gone_for(safety.before_delete()), is_gone_for(safety.0));
            let left_since = memory.left_since(&block.spec);
            let has_left = left_since.is_some_and(|since| plan.is_past(since + LEFT, now));
            let stale = stale(world, key, usable, held)
                .or_else(|| overlaps.get(held.name).map(|other| Why::Overlaps(*other)))
                .or_else(|| has_left.then_some(Why::NodeLeft));
            if let Some(why) = &stale
                && !node_is_gone
                && !block.is_empty()
            {
                plan.leaving.push(leaving(held.name, block, Some(why)));
            }
            if block.phase == Phase::Live && !block.has_finalizer {
                plan.hold.push(BlockRef { name: held.name.to_owned(), uid: block.uid.clone() });
            }
            let Some(why) = node_is_gone.then_some(Why::NodeGone).or(stale) else { continue };
            let removal = Removal { name: held.name.to_owned(), uid: block.uid.clone(), why };
            if !held.leaves {
                held.leaves = true;
                // Without its finalizer it would go at once, with or without pods.
                plan.delete.extend(Some(removal.clone()).filter(|_| block.has_finalizer));
            }
            let deleting_since = memory.deleting_since(&block.uid);
            if is_over
                && block.has_finalizer
                && deleting_since.is_some_and(|since| plan.is_past(since + safety.before_release(), now))
            {
                plan.release.push(removal);
            }
        }
    }
}

/// Returns why a block may not be used, as far as the block itself says.
fn stale(world: &World<'_>, key: &PoolKey, usable: Option<&Usable>, held: &ExistingBlock<'_>) -> Option<Why> {
    let spec = &held.block.spec;
    match world.networks.get(&spec.network) {
        None => Some(Why::NetworkGone),
        Some(Draw::Unknown) => None,
        Some(Draw::Nothing) => Some(Why::OtherPool),
        Some(Draw::From { pool, .. }) if pool != key => Some(Why::OtherPool),
        Some(Draw::From { .. }) if spec.name() != held.name => Some(Why::OtherName),
        // Without an accepted AddressPool, its ranges are unknown.
        Some(Draw::From { .. }) => match usable? {
            usable if usable.reserves(spec) => Some(Why::Reserved),
            usable if usable.count(spec) == 0 => Some(Why::OutOfRange),
            // It is not known what the node of a block without ranges has got.
            usable if !spec.ranges.is_empty() && !usable.has_all_of(spec) => Some(Why::Cut),
            _ => None,
        },
    }
}

/// Fills in the addresses of the blocks, and returns those that overlap with an older one.
fn overlaps<'a>(of_pool: &mut OfPool<'a>) -> BTreeMap<&'a str, IpNet> {
    let (mut taken, mut found) = (Taken::default(), false);
    for held in &of_pool.blocks {
        found |= taken.overlap(held.block.spec.cidr).is_some();
        taken.insert(held.block.spec.cidr);
    }
    of_pool.taken = taken;
    if !found {
        return BTreeMap::new();
    }
    // The API server's times have seconds. A block of another name than its spec's is a copy.
    let age =
        |held: &&ExistingBlock<'a>| (held.block.spec.name() != held.name, held.block.created, held.name);
    let mut by_age: Vec<&ExistingBlock<'a>> = of_pool.blocks.iter().collect();
    by_age.sort_by_key(age);
    let mut older = Taken::default();
    let younger = by_age.into_iter().filter_map(|held| {
        let overlap = older.overlap(held.block.spec.cidr);
        older.insert(held.block.spec.cidr);
        Some((held.name, overlap?))
    });
    younger.collect()
}

/// Describes a block that goes when its last pod goes, and why. Without a reason, it may stay.
pub(super) fn leaving(name: &str, block: &Block, why: Option<&Why>) -> Leaving {
    let holders = match block.holders.as_slice() {
        [] => format!("{} pods", block.used.unwrap_or_default()),
        holders => holders.join(", "),
    };
    let has = if why.is_some() { "remains as long as pods have its addresses" } else { "has them" };
    let AddressBlockSpec { network, pool, node, .. } = &block.spec;
    Leaving {
        network: network.clone(),
        pool: pool.clone(),
        object: name.to_owned(),
        why: why.map(ToString::to_string),
        remains: format!("AddressBlock {name} of node {node} {has} ({holders})"),
        awaited_by: BTreeSet::new(),
    }
}

/// Describes an address that has a holder and is not its ClaimNetwork's any more, if that `is_lost`.
pub(super) fn leaving_lease(held: &HeldAddress, is_lost: bool, awaited_by: BTreeSet<PoolKey>) -> Leaving {
    let HeldAddress { pool, network, address, holder } = held;
    let name = lease_name(pool, Leased::Address(*address));
    Leaving {
        network: network.clone(),
        pool: pool.address_pool(),
        why: is_lost.then(|| Why::OutOfRange.to_string()),
        remains: format!("AddressLease {name} remains as long as {holder} does, which has {address}"),
        object: name,
        awaited_by,
    }
}
