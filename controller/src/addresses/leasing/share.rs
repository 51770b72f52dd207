//! Who gets the next free block of a pool and family.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use netclaim_api::NetworkName;
use netclaim_api::addresses::{
    AddressBlockSpec, AddressTotals, BlockSize, Family, MAX_WANTED, PoolKey, Span,
};

use super::free::{Free, Usable};
use super::{ExistingBlock, OfPool, Phase, World};
use crate::demand::Places;

/// New blocks of a node for a ClaimNetwork and family in one plan.
const MAX_CREATES_OF_NODE: usize = 64;

/// Addresses that a node may want besides those that its pods have: more than pods start at once.
const MAX_SPARE: u128 = 4096;

/// The blocks of a pool and family, by who has them.
pub(super) struct Share<'a> {
    /// Blocks that go are not counted.
    pub(super) holdings: BTreeMap<(&'a NetworkName, &'a str), Holding<'a>>,
    /// For each ClaimNetwork, what pods wait for.
    pub(super) pressure: BTreeMap<&'a NetworkName, Pressure<'a>>,
    /// Usable and used addresses of all blocks, those that go too.
    leased: u128,
    used: u128,
    /// Blocks that this plan creates for nodes for which pods wait.
    pub(super) given: Vec<IpNet>,
    /// Who needs a block, the most urgent first.
    queue: BTreeSet<ShortNode<'a>>,
}

/// The blocks that a node has for one ClaimNetwork.
#[derive(Default)]
pub(super) struct Holding<'a> {
    pub(super) blocks: usize,
    /// Addresses that it can hand out.
    pub(super) usable: u128,
    /// Those of them in blocks without a finalizer, from which it hands out nothing until they have it again.
    unheld: u128,
    pub(super) wanted: u128,
    /// Addresses without which a pod waits that needs several.
    needed: u128,
    used: u128,
    /// Its empty blocks that the API server has, if its node exists, with their usable addresses.
    pub(super) empty: Vec<(&'a ExistingBlock<'a>, u128)>,
    /// Whether the node should have addresses for the ClaimNetwork: it publishes it.
    is_due: bool,
    /// Whether its Node object says that it is not Ready.
    is_unready: bool,
    /// Blocks that this plan creates.
    created: usize,
}

/// What pods wait for, of one ClaimNetwork.
#[derive(Default)]
pub(super) struct Pressure<'a> {
    /// Nodes without a free address that a pod could run on, if no other node has addresses for it.
    pub(super) awaited: BTreeSet<&'a str>,
    /// Pods of different places that could only run on such nodes, and these have blocks, but full ones.
    pub(super) crowded: usize,
    /// Nodes that are the only ones with addresses for a pod.
    pub(super) needed: BTreeSet<&'a str>,
}

/// A node that needs a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ShortNode<'a> {
    pub(super) rank: Rank,
    pub(super) blocks: usize,
    pub(super) node: &'a str,
    pub(super) network: &'a NetworkName,
}

/// How urgent a block is, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A pod waits for a node without a free address.
    Awaited,
    /// No pod waits for a node without a block.
    First,
    More,
}

impl<'a> Share<'a> {
    pub(super) fn new(
        world: &World<'a>,
        networks: &BTreeMap<&'a NetworkName, &'a BTreeSet<String>>,
        of_pool: &'a OfPool<'a>,
        usable: &Usable,
        family: Family,
    ) -> Self {
        let mut holdings: BTreeMap<(&NetworkName, &str), Holding<'a>> = BTreeMap::new();
        for (network, nodes) in networks {
            // Without its Node object, nothing would clean up after the node.
            for node in nodes.iter().filter(|node| world.nodes.contains(*node)) {
                holdings.entry((*network, node)).or_default().is_due = true;
            }
        }
        let (mut leased, mut used) = (0u128, 0u128);
        let of_family = |held: &&ExistingBlock<'_>| Family::of(held.block.spec.cidr.addr()) == family;
        for held in of_pool.blocks.iter().filter(of_family) {
            let block = held.block;
            let count = usable.count(&block.spec);
            // Agents report the numbers, and one of them may be broken.
            let number = |reported: Option<i64>, limit: u128| {
                u128::try_from(reported.unwrap_or_default()).unwrap_or_default().min(limit)
            };
            let used_of_block = number(block.used, Span::of_net(block.spec.cidr).size());
            leased = leased.saturating_add(count);
            used = used.saturating_add(used_of_block);
            if held.leaves {
                continue;
            }
            let holding = holdings.entry((&block.spec.network, &block.spec.node)).or_default();
            holding.blocks += 1;
            holding.usable = holding.usable.saturating_add(count);
            holding.used = holding.used.saturating_add(used_of_block);
            holding.wanted = holding.wanted.max(number(block.wanted, MAX_WANTED.unsigned_abs().into()));
            // Only an agent that runs can give a block back.
            if !block.has_finalizer {
                holding.unheld = holding.unheld.saturating_add(count);
            } else if block.phase == Phase::Live && block.is_empty() && world.nodes.contains(&block.spec.node)
            {
                holding.empty.push((held, count));
            }
        }
        for ((_, node), holding) in &mut holdings {
            holding.wanted = holding.wanted.min(holding.used.saturating_add(MAX_SPARE));
            holding.is_unready = world.unready.contains(*node);
        }
        for ((network, node), need) in world.needs {
            if let Some(holding) = holdings.get_mut(&(network, node.as_str())) {
                holding.needed = need.used.saturating_add(need.wanted.min(MAX_SPARE));
                holding.wanted = holding.wanted.max(holding.needed);
            }
        }
        let (pressure, given, queue) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        let mut share = Self { holdings, pressure, leased, used, given, queue };
        if share.holdings.values().any(|holding| holding.is_due && !holding.has_free()) {
            let waiting = world.waiting;
            let of =
                |network| waiting.get(network).map(|places| (network, share.pressure_of(network, places)));
            share.pressure = networks.keys().copied().filter_map(of).collect();
        }
        for ((network, node), holding) in share.holdings.iter().filter(|(_, holding)| holding.needed > 0) {
            let pressure = share.pressure.entry(network).or_default();
            pressure.needed.insert(node);
            if holding.is_open() && holding.is_short() {
                pressure.awaited.insert(node);
                pressure.crowded += usize::from(holding.blocks > 0);
            }
        }
        let due = share.holdings.iter().filter(|(_, holding)| holding.needs_block());
        share.queue =
            due.map(|((network, node), holding)| share.short_node(network, node, holding.blocks)).collect();
        share
    }

    fn pressure_of(&self, network: &'a NetworkName, waiting: &'a BTreeSet<Places>) -> Pressure<'a> {
        let mut pressure = Pressure::default();
        let holdings = || self.holdings.range((network, "")..).take_while(|((of, _), _)| *of == network);
        for places in waiting {
            let reachable: Box<dyn Iterator<Item = (&'a str, &Holding<'a>)>> =
                match places {
                    Places::Any => Box::new(holdings().map(|((_, node), holding)| (*node, holding))),
                    Places::Nodes(nodes) => Box::new(nodes.iter().filter_map(|node| {
                        Some((node.as_str(), self.holdings.get(&(network, node.as_str()))?))
                    })),
                };
            // The scheduler places no pod on the others.
            let reachable = reachable.filter(|(_, holding)| holding.is_open());
            let (with, without): (Vec<_>, Vec<_>) = reachable.partition(|(_, holding)| holding.has_free());
            match with.as_slice() {
                [] => {
                    pressure.awaited.extend(without.iter().map(|(node, _)| *node));
                    pressure.crowded += usize::from(without.iter().all(|(_, holding)| holding.blocks > 0));
                }
                [(node, _)] => {
                    pressure.needed.insert(*node);
                }
                _ => {}
            }
        }
        pressure
    }

    fn short_node(&self, network: &'a NetworkName, node: &'a str, blocks: usize) -> ShortNode<'a> {
        let is_awaited =
            || self.pressure.get(network).is_some_and(|pressure| pressure.awaited.contains(node));
        let rank = match blocks {
            _ if is_awaited() => Rank::Awaited,
            0 => Rank::First,
            _ => Rank::More,
        };
        ShortNode { rank, blocks, node, network }
    }

    /// Leases free blocks one by one, each to the node whose turn it is, so that no node gets many while
    /// others get none. Returns whether a limit of one plan stopped it: `limit` blocks in `create`, or those
    /// of one node.
    pub(super) fn out(
        &mut self,
        key: &PoolKey,
        free: &mut Free<'_, impl Iterator<Item = IpNet>>,
        create: &mut Vec<AddressBlockSpec>,
        limit: usize,
    ) -> bool {
        let mut is_limited = false;
        while let Some(short) = self.queue.pop_first() {
            if create.len() >= limit {
                // Whether the others are short, the next plan knows.
                self.queue.clear();
                return true;
            }
            let Some(block) = free.next() else {
                self.queue.insert(short);
                return is_limited;
            };
            let Some(holding) = self.holdings.get_mut(&(short.network, short.node)) else { continue };
            holding.blocks += 1;
            holding.created += 1;
            holding.usable = holding.usable.saturating_add(block.usable);
            let (blocks, again, is_short) = (holding.blocks, holding.needs_block(), holding.is_short());
            let is_last = holding.created >= MAX_CREATES_OF_NODE;
            is_limited |= again && is_last;
            if short.rank == Rank::Awaited {
                self.given.push(block.cidr);
                // The first of those that wait has an address now.
                if let Some(pressure) = self.pressure.get_mut(short.network).filter(|_| !is_short) {
                    pressure.awaited.remove(short.node);
                }
            }
            if again && !is_last {
                self.queue.insert(self.short_node(short.network, short.node, blocks));
            }
            self.leased = self.leased.saturating_add(block.usable);
            create.push(AddressBlockSpec {
                pool: key.address_pool(),
                network: short.network.clone(),
                node: short.node.to_owned(),
                cidr: block.cidr,
                ranges: block.ranges,
            });
        }
        is_limited
    }

    /// Returns who got no block or fewer than it wants, the most urgent first.
    pub(super) fn short(&self) -> Vec<ShortNode<'a>> {
        self.queue.iter().copied().collect()
    }

    /// Returns the totals of the family, whose pool has so many addresses.
    pub(super) fn totals(&self, size: u128) -> AddressTotals {
        let number = |count: u128| i64::try_from(count).unwrap_or(i64::MAX);
        AddressTotals {
            block_size: BlockSize::default(),
            size: number(size),
            leased: number(self.leased),
            used: number(self.used),
            free: number(size.saturating_sub(self.leased)),
            surveyed: None,
        }
    }
}

impl Holding<'_> {
    fn needs_block(&self) -> bool {
        self.is_due && (self.blocks == 0 || self.usable < self.wanted)
    }

    /// Whether pods can be placed on the node, and its agent can give a block back.
    pub(super) fn is_open(&self) -> bool {
        self.is_due && !self.is_unready
    }

    /// Whether a pod waits for more addresses than it has.
    fn is_short(&self) -> bool {
        self.usable < self.needed
    }

    fn has_free(&self) -> bool {
        self.used < self.usable.saturating_sub(self.unheld)
    }
}
