//! Which node leases which block of addresses. Pure: no IO, and the time is an argument.
//!
//! ```text
//!   ClaimNetworks, AddressPools ──┐             ┌─> stale: blocks that must go, and gone nodes
//!   AddressBlocks, leases ────────┼─> Leasing ──┼─> share: blocks for nodes that need one (free: which are left)
//!   Nodes, waiting pods ──────────┘             └─> moves: empty blocks that others need more
//! ```
//!
//! Invariants:
//! * No planned block overlaps with one that exists, whatever its size, its ClaimNetwork or its state.
//! * No block is created before the size of the pool's blocks is set or recorded, so that two leaders have
//!   the same.
//! * A finalizer is removed only of a block whose Node object is gone for the safety time, and no block is
//!   deleted without one.
//! * Nothing is deleted without a request: a ClaimNetwork or AddressPool that is invalid keeps its blocks.
//! * The work grows with the blocks that exist, never with the addresses of a pool.

mod free;
mod memory;
#[cfg(test)]
mod model_tests;
mod moves;
mod share;
mod stale;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;
use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressBlockSpec, AddressPoolSpec, AddressTotals, BlockSize, Family, PoolKey};
use netclaim_api::reasons::AddressesReason;
use tokio::time::Instant;

use self::free::{Taken, Usable};
use self::memory::Memory;
use self::share::{Rank, Share};
pub(crate) use self::stale::Why;
use crate::demand::{Draw, Needs, Waiting};

/// How long a Node object must be gone before its blocks are free. Agents hand out addresses for half of it
/// after they last heard of their blocks.
pub(crate) const SAFETY: Duration = Duration::from_secs(600);

/// The parts of the safety time before and after the blocks of a gone node are deleted, in percent. The
/// second one is more than half, because the clocks of controller and agent differ.
const PERCENT_BEFORE_DELETE: u32 = 45;
const PERCENT_BEFORE_RELEASE: u32 = 55;

/// How long a block rests after it became free, if there are others: neighbours may still remember who had
/// its addresses.
const REST: Duration = Duration::from_secs(60);

/// How long a node keeps its blocks of a ClaimNetwork that neither selects it nor is published by it.
const LEFT: Duration = Duration::from_secs(600);

/// Time between two rounds of moves of one pool: an agent needs some of it to give a block back.
const MOVE_INTERVAL: Duration = Duration::from_secs(30);

/// Time after which a round of moves ends although a block did not come: its node may be away for long.
const MOVE_DELAY: Duration = Duration::from_secs(20);

/// Blocks that are being created at once, so that no number that an agent reports exhausts the memory.
const MAX_CREATES: usize = 1000;

/// Time to the next plan after one that reached a limit.
const NEXT_CREATES: Duration = Duration::from_secs(1);

/// The input of the plan.
pub(crate) struct World<'a> {
    /// All ClaimNetworks that exist.
    pub(crate) networks: &'a BTreeMap<NetworkName, Draw>,
    /// The accepted pools: AddressPools, and the ranges of accepted ClaimNetworks.
    pub(crate) pools: &'a BTreeMap<PoolKey, AddressPoolSpec>,
    /// The sizes of blocks that the status of ClaimNetworks and AddressPools records.
    pub(crate) sizes: &'a BTreeMap<PoolKey, BlockSize>,
    /// All AddressBlocks by name, and those that are being created.
    pub(crate) blocks: &'a BTreeMap<String, Block>,
    pub(crate) held: &'a BTreeSet<HeldAddress>,
    /// Blocks that cannot be created for now.
    pub(crate) avoided: &'a BTreeMap<(PoolKey, IpNet), Instant>,
    /// Nodes where leased addresses may be in use.
    pub(crate) lease_nodes: &'a BTreeSet<String>,
    /// Names of all Node objects.
    pub(crate) nodes: &'a BTreeSet<String>,
    /// Those of them that are not Ready.
    pub(crate) unready: &'a BTreeSet<String>,
    /// Where pods wait.
    pub(crate) waiting: &'a Waiting,
    pub(crate) needs: &'a Needs,
}

impl World<'_> {
    /// Whether a ClaimNetwork has blocks and leases of a pool from which it does not draw any more.
    fn is_astray(&self, network: &NetworkName, pool: &PoolKey) -> bool {
        match self.networks.get(network) {
            None | Some(Draw::Nothing) => true,
            Some(Draw::Unknown) => false,
            Some(Draw::From { pool: present, .. }) => present != pool,
        }
    }
}

/// An address that an AddressLease holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HeldAddress {
    pub(crate) pool: PoolKey,
    pub(crate) network: NetworkName,
    pub(crate) address: IpAddr,
    /// Who has it, for messages.
    pub(crate) holder: String,
}

/// An AddressBlock as far as leasing needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) uid: String,
    pub(crate) spec: AddressBlockSpec,
    pub(crate) phase: Phase,
    pub(crate) has_finalizer: bool,
    pub(crate) created: Option<Timestamp>,
    /// `status.used`.
    pub(crate) used: Option<i64>,
    /// `status.wanted`.
    pub(crate) wanted: Option<i64>,
    /// When its status was first seen as it is.
    pub(crate) reported: Instant,
    /// `status.holders`, for messages.
    pub(crate) holders: Vec<String>,
}

/// How far a block is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The API server has been asked to create it.
    Pending,
    Live,
    Deleting,
}

impl Block {
    /// Whether no pod has an address of it, as the node reported last.
    fn is_empty(&self) -> bool {
        self.used.unwrap_or(0) <= 0 && self.holders.is_empty()
    }
}

/// What is to be done, and how things are.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) create: Vec<AddressBlockSpec>,
    /// Pools whose first block waits until the size of blocks is recorded.
    pub(crate) record: Vec<(PoolKey, AddressTotals)>,
    pub(crate) delete: Vec<Removal>,
    /// Blocks whose finalizer is to be removed, after they are deleted.
    pub(crate) release: Vec<Removal>,
    /// Blocks whose finalizer was removed, which is to be put back: without it, their nodes do not
    /// use them.
    pub(crate) hold: Vec<BlockRef>,
    pub(crate) totals: BTreeMap<PoolKey, AddressTotals>,
    /// Whether there are addresses for each accepted ClaimNetwork that draws some.
    pub(crate) supply: BTreeMap<NetworkName, Supply>,
    /// Blocks that go but still have holders, and other holders of addresses that are not its
    /// ClaimNetwork's any more.
    pub(crate) leaving: Vec<Leaving>,
    /// Nodes with blocks or leases whose Node object is gone for the safety time.
    pub(crate) gone: BTreeSet<String>,
    /// When to plan again, if nothing changes before.
    pub(crate) next: Option<Instant>,
}

/// One AddressBlock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BlockRef {
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// A block to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Removal {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) why: Why,
}

/// A block that goes when its last pod goes, or another object with addresses that are not its ClaimNetwork's
/// any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaving {
    /// The ClaimNetwork that has lost the addresses.
    pub(crate) network: NetworkName,
    pub(crate) pool: Option<String>,
    /// Name of the AddressBlock or AddressLease.
    pub(crate) object: String,
    /// Why it goes; `None` if that is not known, or if the addresses are still its ClaimNetwork's.
    pub(crate) why: Option<String>,
    /// How long it remains, and who has its addresses.
    pub(crate) remains: String,
    /// Other pools that have the addresses now, and lease them when the object is gone.
    pub(crate) awaited_by: BTreeSet<PoolKey>,
}

impl Leaving {
    /// Returns what the condition of the ClaimNetwork says that has lost the addresses.
    pub(crate) fn lost(&self) -> Option<String> {
        self.why.as_ref().map(|why| format!("{why}: {}", self.remains))
    }

    /// Returns what the conditions of those say that get the addresses afterwards.
    pub(crate) fn awaited(&self) -> String {
        format!("addresses of ClaimNetwork {} are not free yet: {}", self.network, self.remains)
    }
}

/// Whether there are addresses for a ClaimNetwork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Supply {
    /// Every node has as many as it wants, or can get them.
    Free,
    /// Nodes need none: all are reserved for claims that ask for them.
    OnlyReserved,
    /// No block is free for these nodes.
    Exhausted(BTreeSet<String>),
    /// There is no accepted AddressPool of this name.
    PoolMissing(String),
}

impl Supply {
    /// The reason of the condition that says so.
    pub(crate) fn reason(&self) -> AddressesReason {
        match self {
            Self::Free => AddressesReason::Free,
            Self::OnlyReserved => AddressesReason::OnlyReserved,
            Self::Exhausted(_) => AddressesReason::Exhausted,
            Self::PoolMissing(_) => AddressesReason::PoolMissing,
        }
    }
}

/// The safety time.
#[derive(Debug, Clone, Copy, Hash)]
struct Safety(Duration);

impl Safety {
    /// How long a Node object must be gone before its blocks are deleted.
    fn before_delete(self) -> Duration {
        self.0 * PERCENT_BEFORE_DELETE / 100
    }

    /// How long such a block must be deleted before its addresses are free.
    fn before_release(self) -> Duration {
        self.0 * PERCENT_BEFORE_RELEASE / 100
    }
}

/// Decides about blocks, and remembers between two plans what the API server does not store.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Leasing {
    safety: Safety,
    memory: Memory,
}

impl Leasing {
    /// `safety` is how long a Node object must be gone before its blocks are free.
    pub(crate) fn new(safety: Duration) -> Self {
        Self { safety: Safety(safety), memory: Memory::default() }
    }

    /// Returns what to do about the blocks of the world at this time.
    pub(crate) fn plan(&mut self, world: &World<'_>, now: Instant) -> Plan {
        self.memory.observe(world, now);
        let mut plan = Plan::default();
        let mut pools = by_pool(world);
        let usable: BTreeMap<&PoolKey, Usable> =
            world.pools.iter().map(|(key, spec)| (key, Usable::of(spec))).collect();
        stale::find(world, &mut pools, &usable, (&self.memory, self.safety), now, &mut plan);
        plan.gone = self.memory.gone_for(now, self.safety.0);
        if let Some(due) = self.memory.next_gone(now, self.safety.0) {
            plan.look_at(due);
        }
        keep_apart(world, &usable, &mut pools, &mut plan);
        let pending = world.blocks.values().filter(|block| block.phase == Phase::Pending).count();
        let limit = MAX_CREATES.saturating_sub(pending);
        for (key, spec) in world.pools {
            let blocks = pools.remove(key).unwrap_or_default();
            let Some(usable) = usable.get(key) else { continue };
            self.plan_pool(world, (key, spec, usable), &blocks, limit, now, &mut plan);
        }
        for (network, draw) in world.networks {
            if let Draw::From { pool: PoolKey::Pool(pool), .. } = draw
                && !world.pools.contains_key(&PoolKey::Pool(pool.clone()))
            {
                plan.supply.insert(network.clone(), Supply::PoolMissing(pool.clone()));
            }
        }
        plan
    }

    fn plan_pool(
        &mut self,
        world: &World<'_>,
        (key, spec, usable): (&PoolKey, &AddressPoolSpec, &Usable),
        blocks: &OfPool<'_>,
        limit: usize,
        now: Instant,
        plan: &mut Plan,
    ) {
        // A node needs no block from which no pod gets an address.
        let (has_usable, no_nodes) = (spec.has_usable(), BTreeSet::new());
        let networks: BTreeMap<&NetworkName, &BTreeSet<String>> = world
            .networks
            .iter()
            .filter_map(|(name, draw)| match draw {
                Draw::From { pool, nodes, .. } if pool == key => {
                    Some((name, if has_usable { nodes } else { &no_nodes }))
                }
                _ => None,
            })
            .collect();
        for network in networks.keys() {
            let supply = if has_usable { Supply::Free } else { Supply::OnlyReserved };
            plan.supply.insert((*network).clone(), supply);
        }
        let moves_are_due = self.memory.moves_due(key);
        let (mut totals, mut sizes, mut moved) = (None, BlockSize::default(), Vec::new());
        let recorded = world.sizes.get(key).copied().unwrap_or_default();
        let mut is_decided = true;
        for family in spec.families() {
            let nodes: BTreeSet<&String> = networks.values().copied().flatten().collect();
            let set = spec.block_size.and_then(|size| size.of(family));
            // The default depends on the number of nodes, which two leaders may see differently.
            let decided = blocks.prefix(spec, family).or(set).or_else(|| recorded.of(family));
            let prefix = decided.unwrap_or_else(|| spec.block_prefix(family, nodes.len()));
            let limit = if decided.is_some() { limit } else { 0 };
            is_decided &= decided.is_some();
            match family {
                Family::V4 => sizes.ipv4 = Some(prefix),
                Family::V6 => sizes.ipv6 = Some(prefix),
            }
            let mut share = Share::new(world, &networks, blocks, usable, family);
            let mut free = free::Free::new(
                spec.blocks(family, prefix),
                &blocks.taken,
                usable,
                &blocks.held,
                self.memory.resting(key),
            );
            if share.out(key, &mut free, &mut plan.create, limit) {
                plan.look_at(now + NEXT_CREATES);
            }
            self.memory.gave(key, &share.given, now);
            let short = share.short();
            for node in &short {
                let supply = plan.supply.entry(node.network.clone()).or_insert(Supply::Free);
                if let Supply::Exhausted(nodes) = supply {
                    nodes.insert(node.node.to_owned());
                } else {
                    *supply = Supply::Exhausted(BTreeSet::from([node.node.to_owned()]));
                }
            }
            if short.iter().any(|node| node.rank != Rank::More) {
                match moves_are_due {
                    Some(due) if due > now => plan.look_at(due),
                    _ => {
                        let given = self.memory.given(key);
                        if let Some(due) = given.and_then(|given| given.values().min()) {
                            plan.look_at(*due + REST);
                        }
                        let found = moves::find(&share, &short, given);
                        moved.extend(found.iter().map(Removal::block));
                        plan.delete.extend(found);
                    }
                }
            }
            let of_family = share.totals(usable.size(family));
            totals = Some(totals.map_or(of_family, |other| smaller(other, of_family)));
        }
        if !moved.is_empty() {
            self.memory.moved(key, moved, now);
            plan.look_at(now + MOVE_DELAY);
        }
        if let Some(totals) = totals {
            let totals = AddressTotals { block_size: sizes, ..totals };
            if is_decided {
                plan.totals.insert(key.clone(), totals);
            } else if networks.is_empty() || !has_usable {
                // Nodes are to come yet, or no block is.
                plan.totals.insert(key.clone(), AddressTotals { block_size: recorded, ..totals });
            } else {
                plan.record.push((key.clone(), totals));
            }
        }
    }
}

impl Removal {
    fn block(&self) -> BlockRef {
        BlockRef { name: self.name.clone(), uid: self.uid.clone() }
    }
}

impl Plan {
    /// Whether the time is not later than `now`; otherwise, the next plan is due then.
    fn is_past(&mut self, time: Instant, now: Instant) -> bool {
        if time > now {
            self.look_at(time);
        }
        time <= now
    }

    fn look_at(&mut self, time: Instant) {
        self.next = Some(self.next.map_or(time, |next| next.min(time)));
    }
}

/// The blocks of one pool.
#[derive(Default)]
struct OfPool<'a> {
    blocks: Vec<ExistingBlock<'a>>,
    /// Their addresses, and those of blocks of other pools that pods may still have.
    taken: Taken,
    /// Addresses that AddressLeases hold.
    held: BTreeSet<IpAddr>,
}

/// A block that exists.
struct ExistingBlock<'a> {
    name: &'a str,
    block: &'a Block,
    /// Whether it goes: it is being deleted, or this plan deletes it.
    leaves: bool,
}

impl OfPool<'_> {
    /// Returns the prefix length of the blocks of a family, if there are any. Blocks that go count only if no
    /// other is left. A block that is a whole subnet has no say: the subnet may be smaller than the other
    /// blocks.
    fn prefix(&self, spec: &AddressPoolSpec, family: Family) -> Option<u8> {
        let is_part = |cidr: IpNet| {
            let part_of =
                |subnet: IpNet| subnet.prefix_len() < cidr.prefix_len() && subnet.contains(&cidr.addr());
            spec.ranges.iter().any(|range| range.family() == family && part_of(range.subnet))
        };
        let parts = self.blocks.iter().filter(|held| is_part(held.block.spec.cidr));
        // `false` is less than `true`.
        parts.map(|held| (held.leaves, held.block.spec.cidr.prefix_len())).min().map(|(_, prefix)| prefix)
    }
}

fn by_pool<'a>(world: &World<'a>) -> BTreeMap<PoolKey, OfPool<'a>> {
    let mut pools: BTreeMap<PoolKey, OfPool<'a>> = BTreeMap::new();
    for (name, block) in world.blocks {
        let held = ExistingBlock { name, block, leaves: block.phase == Phase::Deleting };
        pools.entry(block.spec.key()).or_default().blocks.push(held);
    }
    pools
}

/// Makes addresses count as taken in every pool that has them, if a holder still has them that may get no
/// more of them: their ClaimNetwork is gone or draws from another pool now, or their own pool does not have
/// all of them any more, or its content is unknown. Leases of other ClaimNetworks count in their own pool.
/// The ranges of two pools may be the same, such as when they move from a ClaimNetwork to an AddressPool, or
/// on two links. So what other ClaimNetworks may still hand out does not count.
fn keep_apart(
    world: &World<'_>,
    usable: &BTreeMap<&PoolKey, Usable>,
    pools: &mut BTreeMap<PoolKey, OfPool<'_>>,
    plan: &mut Plan,
) {
    for (pool, block) in world.avoided.keys() {
        pools.entry(pool.clone()).or_default().taken.insert(*block);
    }
    let is_astray = |network: &NetworkName, key: &PoolKey, has: &dyn Fn(&Usable) -> bool| {
        world.is_astray(network, key) || !usable.get(key).is_some_and(has)
    };
    let mut blocks: Vec<(PoolKey, &str, &Block)> = Vec::new();
    for (key, of_pool) in pools.iter() {
        let of_pool = of_pool.blocks.iter().map(|held| (held.name, held.block));
        let astray = of_pool.filter(|(_, Block { spec, .. })| {
            is_astray(&spec.network, key, &|own: &Usable| own.has_all_of(spec))
        });
        blocks.extend(astray.map(|(name, block)| (key.clone(), name, block)));
    }
    let is_astray = |held: &&HeldAddress| {
        is_astray(&held.network, &held.pool, &|own: &Usable| own.has_address(held.address))
    };
    let (leases, own): (Vec<&HeldAddress>, Vec<&HeldAddress>) = world.held.iter().partition(is_astray);
    for held in &own {
        pools.entry(held.pool.clone()).or_default().held.insert(held.address);
    }
    let mut leaving: BTreeMap<String, Leaving> =
        std::mem::take(&mut plan.leaving).into_iter().map(|one| (one.object.clone(), one)).collect();
    for (own, name, block) in blocks {
        let cidr = block.spec.cidr;
        let others = usable.iter().filter(|(key, usable)| ***key != own && usable.has_any_of(cidr));
        let others: BTreeSet<PoolKey> = others.map(|(key, _)| (*key).clone()).collect();
        for other in &others {
            pools.entry(other.clone()).or_default().taken.insert(cidr);
        }
        if !others.is_empty() && !block.is_empty() {
            let one = leaving.entry(name.to_owned()).or_insert_with(|| stale::leaving(name, block, None));
            one.awaited_by = others;
        }
    }
    for held in leases {
        let others = usable.iter().filter(|(_, usable)| usable.has_address(held.address));
        let others: BTreeSet<PoolKey> = others.map(|(key, _)| (*key).clone()).collect();
        for other in &others {
            pools.entry(other.clone()).or_default().held.insert(held.address);
        }
        let is_lost = match world.networks.get(&held.network) {
            None | Some(Draw::Nothing) => true,
            Some(Draw::Unknown) => false,
            Some(Draw::From { pool, .. }) => usable.contains_key(pool) && !others.contains(pool),
        };
        if is_lost || !others.is_empty() {
            let lease = stale::leaving_lease(held, is_lost, others);
            leaving.insert(lease.object.clone(), lease);
        }
    }
    plan.leaving = leaving.into_values().collect();
}

/// Returns the totals of the family that allows fewer attachments.
fn smaller(one: AddressTotals, other: AddressTotals) -> AddressTotals {
    AddressTotals {
        block_size: one.block_size,
        size: one.size.min(other.size),
        leased: one.leased.min(other.leased),
        used: one.used.min(other.used),
        free: one.free.min(other.free),
        surveyed: None,
    }
}
