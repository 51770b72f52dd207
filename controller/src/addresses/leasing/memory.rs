//! What leasing remembers between two plans. A restart forgets it, which delays things and breaks nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipnet::IpNet;
use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressBlockSpec, PoolKey};
use tokio::time::Instant;

use super::{BlockRef, MOVE_DELAY, MOVE_INTERVAL, Phase, REST, World};

/// The part of the state that the API server does not store.
#[derive(Debug, Default, Clone, Hash)]
pub(super) struct Memory {
    /// Since when nodes with blocks or leases have had no Node object.
    gone: BTreeMap<String, Instant>,
    /// Since when nodes that exist have blocks of ClaimNetworks that they do not have any more.
    left: BTreeMap<(NetworkName, String), Instant>,
    /// Since when blocks are being deleted, by UID.
    deleting: BTreeMap<String, Instant>,
    /// The blocks of the last plan.
    known: BTreeMap<PoolKey, BTreeSet<IpNet>>,
    /// When blocks became free, of the last [`REST`].
    freed: BTreeMap<PoolKey, BTreeMap<IpNet, Instant>>,
    /// When blocks of each pool were last moved, and those of them that are still there.
    moved: BTreeMap<PoolKey, (Instant, Vec<BlockRef>)>,
    /// Blocks that were leased to nodes for which pods waited, in the last [`REST`].
    given: BTreeMap<PoolKey, BTreeMap<IpNet, Instant>>,
}

impl Memory {
    /// Takes in the world as it is now.
    pub(super) fn observe(&mut self, world: &World<'_>, now: Instant) {
        let nodes = world.blocks.values().map(|block| &block.spec.node).chain(world.lease_nodes);
        let mut gone = BTreeMap::new();
        for node in nodes.filter(|node| !world.nodes.contains(*node)) {
            if !gone.contains_key(node) {
                gone.insert(node.clone(), self.gone.get(node).copied().unwrap_or(now));
            }
        }
        self.gone = gone;
        let specs = world.blocks.values().map(|block| &block.spec);
        let has_left = |spec: &&AddressBlockSpec| {
            world.nodes.contains(&spec.node)
                && world.networks.get(&spec.network).is_some_and(|draw| draw.is_without(&spec.node))
        };
        let mut left = BTreeMap::new();
        for spec in specs.filter(has_left) {
            let key = (spec.network.clone(), spec.node.clone());
            let since = self.left.get(&key).copied().unwrap_or(now);
            left.insert(key, since);
        }
        self.left = left;
        let deleting = world.blocks.values().filter(|block| block.phase == Phase::Deleting);
        let since = |uid: &String| self.deleting.get(uid).copied().unwrap_or(now);
        self.deleting = deleting.map(|block| (block.uid.clone(), since(&block.uid))).collect();
        let mut known: BTreeMap<PoolKey, BTreeSet<IpNet>> = BTreeMap::new();
        for block in world.blocks.values() {
            known.entry(block.spec.key()).or_default().insert(block.spec.cidr);
        }
        for (key, before) in std::mem::take(&mut self.known) {
            let after = known.get(&key);
            let left = before.into_iter().filter(|cidr| after.is_none_or(|after| !after.contains(cidr)));
            let freed = left.map(|cidr| (cidr, now)).collect::<Vec<_>>();
            if !freed.is_empty() {
                self.freed.entry(key).or_default().extend(freed);
            }
        }
        self.known = known;
        for recent in [&mut self.freed, &mut self.given] {
            recent.retain(|_, blocks| {
                blocks.retain(|_, since| now.saturating_duration_since(*since) < REST);
                !blocks.is_empty()
            });
        }
        self.moved.retain(|key, _| world.pools.contains_key(key));
        for (_, moved) in self.moved.values_mut() {
            moved.retain(|moved| world.blocks.get(&moved.name).is_some_and(|block| block.uid == moved.uid));
        }
    }

    /// Returns since when a node has had no Node object.
    pub(super) fn gone_since(&self, node: &str) -> Option<Instant> {
        self.gone.get(node).copied()
    }

    /// Returns since when a node that exists does not have the ClaimNetwork of its block any more.
    pub(super) fn left_since(&self, block: &AddressBlockSpec) -> Option<Instant> {
        self.left.get(&(block.network.clone(), block.node.clone())).copied()
    }

    /// Returns since when the block of this UID is being deleted.
    pub(super) fn deleting_since(&self, uid: &str) -> Option<Instant> {
        self.deleting.get(uid).copied()
    }

    /// Returns the nodes without a Node object for so long.
    pub(super) fn gone_for(&self, now: Instant, time: Duration) -> BTreeSet<String> {
        let is_long = |since: &Instant| now.saturating_duration_since(*since) >= time;
        self.gone.iter().filter(|(_, since)| is_long(since)).map(|(node, _)| node.clone()).collect()
    }

    /// Returns when the first of the other nodes is gone for so long.
    pub(super) fn next_gone(&self, now: Instant, time: Duration) -> Option<Instant> {
        self.gone.values().map(|since| *since + time).filter(|due| *due > now).min()
    }

    /// Returns the blocks of a pool that became free in the last [`REST`].
    pub(super) fn resting(&self, key: &PoolKey) -> Option<&BTreeMap<IpNet, Instant>> {
        self.freed.get(key)
    }

    /// Returns when the next round of moves of a pool may begin, if there was one.
    pub(super) fn moves_due(&self, key: &PoolKey) -> Option<Instant> {
        let (began, left) = self.moved.get(key)?;
        Some(*began + if left.is_empty() { MOVE_INTERVAL } else { MOVE_DELAY })
    }

    /// Remembers that these blocks of a pool are moved now.
    pub(super) fn moved(&mut self, key: &PoolKey, blocks: Vec<BlockRef>, now: Instant) {
        self.moved.insert(key.clone(), (now, blocks));
    }

    /// Returns the blocks of a pool that were leased in the last [`REST`] to nodes for which pods waited.
    /// Those pods are on the way there, or run there and are not reported yet.
    pub(super) fn given(&self, key: &PoolKey) -> Option<&BTreeMap<IpNet, Instant>> {
        self.given.get(key)
    }

    /// Remembers that these blocks are leased now to nodes for which pods wait.
    pub(super) fn gave(&mut self, key: &PoolKey, blocks: &[IpNet], now: Instant) {
        if !blocks.is_empty() {
            self.given.entry(key.clone()).or_default().extend(blocks.iter().map(|block| (*block, now)));
        }
    }
}
