//! The addresses of the node's ClaimNetworks: the blocks that it has leased, and the pools that they are of.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::NetworkName;
use netclaim_api::addresses::{
    AddressBlock, AddressBlockSpec, AddressBlockStatus, AddressPoolSpec, BLOCK_FINALIZER, Family, PoolKey,
    Span,
};
use netclaim_api::network::ClaimNetworkSpec;

/// The node's blocks, as the API server stores them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnBlocks {
    /// By the name of the object; `None` until the first list is complete.
    pub known: Option<BTreeMap<String, OwnBlock>>,
    /// The API server has been silent for so long that other nodes may soon have the blocks.
    pub is_stale: bool,
}

/// One AddressBlock of the node.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "as in the object")]
pub struct OwnBlock {
    pub uid: String,
    pub spec: AddressBlockSpec,
    pub status: AddressBlockStatus,
    /// Seconds since 1970.
    pub created: i64,
    pub is_deleting: bool,
    /// It was being deleted when this agent first heard of it: an agent before may have let it go.
    pub is_retired: bool,
    /// The finalizer, by its index, that keeps the object until no attachment has an address of the block.
    pub finalizer: Option<usize>,
}

impl OwnBlock {
    /// Returns what matters of an object, with its name.
    pub fn of(object: AddressBlock) -> Option<(String, Self)> {
        let metadata = object.metadata;
        let finalizers = metadata.finalizers.unwrap_or_default();
        let block = Self {
            uid: metadata.uid?,
            spec: object.spec,
            status: object.status.unwrap_or_default(),
            created: metadata.creation_timestamp.map(|time| time.0.as_second()).unwrap_or_default(),
            is_deleting: metadata.deletion_timestamp.is_some(),
            is_retired: metadata.deletion_timestamp.is_some(),
            finalizer: finalizers.iter().position(|finalizer| finalizer == BLOCK_FINALIZER),
        };
        Some((metadata.name?, block))
    }

    /// Adds what this agent knew of the block `before`.
    #[must_use]
    pub fn after(self, before: Option<&Self>) -> Self {
        let is_same = |before: &&Self| before.uid == self.uid;
        Self {
            is_retired: before.filter(is_same).map_or(self.is_deleting, |before| before.is_retired),
            ..self
        }
    }
}

/// The addresses of one ClaimNetwork on the node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeAddresses {
    /// What the blocks are of.
    pub key: PoolKey,
    /// The ranges; `None` if the ClaimNetwork names an AddressPool that does not exist or is invalid.
    pub pool: Option<AddressPoolSpec>,
    /// Blocks from which new attachments get addresses.
    pub blocks: Vec<Block>,
    /// Blocks that are being deleted. The scheduler may have counted on them just before, so that attachments
    /// get their addresses if no other block has any, until the node lets go of them.
    pub leaving: Vec<Block>,
    /// The API server has been silent about the blocks for so long that none of them is used.
    pub is_stale: bool,
    /// Some node needs addresses of the ClaimNetwork, and no block is free, as the controller says.
    pub is_scarce: bool,
}

impl NodeAddresses {
    /// Whether the node gets no more addresses for now: none are free, or none is known.
    pub fn is_short(&self) -> bool {
        self.is_scarce || self.is_stale || self.pool.is_none()
    }
}

/// A block from which new attachments get addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// UID of the object.
    pub uid: String,
    /// The block.
    pub cidr: IpNet,
    /// The addresses of it that the node may hand out.
    pub spans: Vec<Span>,
    /// No new plan may name it.
    pub is_retired: bool,
}

impl Block {
    /// The family of its addresses.
    pub fn family(&self) -> Family {
        Family::of(self.cidr.addr())
    }

    /// Returns how many addresses the node may hand out.
    pub fn size(&self) -> u128 {
        self.spans.iter().fold(0, |sum, span| sum.saturating_add(span.size()))
    }

    /// Returns how many addresses the node can hand out, without those that are `taken` by others.
    pub fn free_of(&self, taken: &BTreeSet<IpAddr>) -> u128 {
        let is_lost = |ip: &&IpAddr| self.spans.iter().any(|span| span.contains(**ip));
        self.size().saturating_sub(taken.iter().filter(is_lost).count() as u128)
    }
}

/// Returns the addresses of each ClaimNetwork that has any. The `scarce` ones have no free block; `pools`
/// are the valid AddressPools.
pub(crate) fn addresses(
    networks: &BTreeMap<NetworkName, ClaimNetworkSpec>,
    scarce: &BTreeSet<NetworkName>,
    pools: &BTreeMap<String, AddressPoolSpec>,
    own: &OwnBlocks,
) -> BTreeMap<NetworkName, NodeAddresses> {
    let of_network = |(name, spec): (&NetworkName, &ClaimNetworkSpec)| {
        let addresses = spec.addresses.as_ref()?;
        let pool = match &addresses.pool {
            Some(pool) => pools.get(pool).cloned(),
            None => addresses.inline(),
        };
        let key = addresses.key(name);
        let (leaving, blocks) = pool
            .iter()
            .flat_map(|pool| blocks(name, &key, pool, own))
            .partition::<Vec<_>, _>(|(is_deleting, _)| *is_deleting);
        let [blocks, leaving] =
            [blocks, leaving].map(|all| all.into_iter().map(|(_, block)| block).collect());
        Some((
            name.clone(),
            NodeAddresses {
                key,
                pool,
                blocks,
                leaving,
                is_stale: own.is_stale,
                is_scarce: scarce.contains(name),
            },
        ))
    };
    networks.iter().filter_map(of_network).collect()
}

/// Returns the blocks that attachments may use, each with whether it is being deleted. An object that was
/// edited or restored may say what no controller would.
fn blocks(name: &NetworkName, key: &PoolKey, pool: &AddressPoolSpec, own: &OwnBlocks) -> Vec<(bool, Block)> {
    let known = own.known.iter().flatten().filter(|_| !own.is_stale);
    let mut fit: Vec<&OwnBlock> = known
        .filter(|(object, block)| {
            let spec = &block.spec;
            spec.network == *name
                && spec.key() == *key
                && spec.name() == **object
                && block.finalizer.is_some()
        })
        .map(|(_, block)| block)
        .collect();
    fit.sort_by_key(|block| (block.created, block.spec.cidr));
    let mut blocks: Vec<(bool, Block)> = Vec::new();
    for block in fit {
        let cidr = block.spec.cidr;
        let overlaps =
            |(_, other): &(bool, Block)| Span::of_net(other.cidr).intersection(Span::of_net(cidr)).is_some();
        let spans = block.spec.usable(pool);
        if !blocks.iter().any(overlaps) && !spans.is_empty() {
            let (uid, is_retired) = (block.uid.clone(), block.is_retired);
            blocks.push((block.is_deleting, Block { uid, cidr, spans, is_retired }));
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inventory::fixtures::own_block;

    fn networks(addresses: serde_json::Value) -> BTreeMap<NetworkName, ClaimNetworkSpec> {
        let spec =
            json!({"addresses": addresses, "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "macvlan"}]}});
        let spec = serde_json::from_value(spec).expect("a network");
        BTreeMap::from([("storage".parse().expect("a name"), spec)])
    }

    fn own(blocks: impl IntoIterator<Item = OwnBlock>) -> OwnBlocks {
        let known = blocks.into_iter().map(|block| (block.spec.name(), block)).collect();
        OwnBlocks { known: Some(known), is_stale: false }
    }

    fn cidrs(own: &OwnBlocks) -> Vec<String> {
        let networks = networks(json!({"ranges": [{"subnet": "10.20.0.0/24"}]}));
        let all = addresses(&networks, &BTreeSet::new(), &BTreeMap::new(), own);
        all.into_values().flat_map(|one| one.blocks).map(|block| block.cidr.to_string()).collect()
    }

    #[test]
    fn only_blocks_that_say_what_the_controller_would_are_used() {
        let block = own_block("storage", "10.20.0.16/28");
        assert_eq!(cidrs(&own([block.clone()])), ["10.20.0.16/28"]);
        let deleting = own([OwnBlock { is_deleting: true, ..block.clone() }]);
        assert_eq!(cidrs(&deleting), [""; 0]);
        let networks = networks(json!({"ranges": [{"subnet": "10.20.0.0/24"}]}));
        let leaving = addresses(&networks, &BTreeSet::new(), &BTreeMap::new(), &deleting)
            .into_values()
            .map(|one| one.leaving.len());
        assert_eq!(leaving.sum::<usize>(), 1, "for pods that were scheduled before");
        let elsewhere = own_block("storage", "10.30.0.0/28");
        assert_eq!(cidrs(&own([elsewhere, own_block("other", "10.20.0.32/28")])), [""; 0]);
        let overlapping = OwnBlock { created: 1, ..own_block("storage", "10.20.0.24/29") };
        assert_eq!(cidrs(&own([overlapping, block.clone()])), ["10.20.0.16/28"], "the older one counts");
        let mut renamed = own([]);
        renamed.known.get_or_insert_default().insert("storage.10.20.0.0-28".to_owned(), block.clone());
        assert_eq!(cidrs(&renamed), [""; 0]);
        assert_eq!(cidrs(&OwnBlocks { is_stale: true, ..own([block]) }), [""; 0]);
    }

    #[test]
    fn a_block_that_is_deleting_when_an_agent_first_hears_of_it_is_retired() {
        let live = own_block("storage", "10.20.0.16/28");
        let deleting = OwnBlock { is_deleting: true, ..live.clone() };
        assert!(deleting.clone().after(None).is_retired, "an agent before may have let it go");
        assert!(!deleting.clone().after(Some(&live)).is_retired, "this agent withdraws it");
        let retired = OwnBlock { is_retired: true, ..deleting.clone() };
        assert!(deleting.clone().after(Some(&retired)).is_retired);
        let other = OwnBlock { uid: "other".to_owned(), ..live };
        assert!(deleting.after(Some(&other)).is_retired, "an object of the same name");
    }

    #[test]
    fn a_network_without_its_pool_has_no_addresses() {
        let networks = networks(json!({"poolName": "lan"}));
        let mut block = own_block("storage", "10.20.0.16/28");
        block.spec.pool = Some("lan".to_owned());
        let own = own([block]);
        let of = |pools: &BTreeMap<String, AddressPoolSpec>| {
            addresses(&networks, &BTreeSet::new(), pools, &own).into_values().next().expect("an entry")
        };
        let without = of(&BTreeMap::new());
        assert_eq!((without.pool, without.blocks.len()), (None, 0));
        let lan: AddressPoolSpec =
            serde_json::from_value(json!({"ranges": [{"subnet": "10.20.0.0/24"}]})).expect("a pool");
        assert_eq!(of(&BTreeMap::from([("lan".to_owned(), lan)])).blocks.len(), 1);
    }

    #[test]
    fn addresses_of_others_are_not_free() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut object = own_block("storage", "10.20.0.0/28");
        object.spec.ranges = vec!["10.20.0.0-10.20.0.9".parse().expect("a span")];
        let networks = networks(json!({"ranges": [{"subnet": "10.20.0.0/24"}]}));
        let of_network =
            addresses(&networks, &BTreeSet::new(), &BTreeMap::new(), &own([object])).into_values().next();
        let block = of_network.and_then(|one| one.blocks.into_iter().next()).expect("the block");
        assert_eq!(block.size(), 8, "without the subnet's own address and its gateway");
        let taken = BTreeSet::from([ip("10.20.0.1"), ip("10.20.0.6"), ip("10.20.0.12"), ip("10.20.0.99")]);
        assert_eq!(block.free_of(&taken), 7);
    }
}
