//! Chooses the blocks from which an attachment gets its addresses. Pure.
//!
//! Each plan has one block of each family, and not all that the node has at the time: so a block is free to go as soon as no
//! plan names it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::addresses::{Family, Leased, PoolKey, Span, block_name, lease_name};
use netclaim_api::merge::Merged;
use netclaim_api::{Invalid, NetworkName};
use serde_json::Value;

use super::plan::DeviceError;
use crate::inventory::{Block, NodeAddresses};
use crate::owner::{Addresses, AskedAddress, Plan};

/// Host bits of the largest block.
const MAX_HOST_BITS: u8 = 16;

/// What the node has given away of its blocks.
#[derive(Debug, Clone, Default)]
pub struct TakenAddresses {
    /// How many plans have an address of each block, by Network.
    plans: BTreeMap<(String, IpNet), u128>,
    /// Addresses that others hold under the name of each Network, from `host-local`'s files.
    foreign: BTreeMap<NetworkName, BTreeSet<IpAddr>>,
    /// UIDs of blocks that the node has given back.
    retired: BTreeSet<String>,
}

impl TakenAddresses {
    /// Nothing is given away but what others hold, and these blocks.
    pub fn new(foreign: BTreeMap<NetworkName, BTreeSet<IpAddr>>, retired: BTreeSet<String>) -> Self {
        Self { plans: BTreeMap::new(), foreign, retired }
    }

    /// Adds what a plan has.
    pub fn add(&mut self, plan: &Plan) {
        for block in plan.owner.addresses.iter().flat_map(|addresses| &addresses.blocks) {
            *self.plans.entry((plan.network.clone(), *block)).or_default() += 1;
        }
    }

    fn free_of(&self, network: &NetworkName, block: &Block) -> u128 {
        if self.retired.contains(&block.uid) {
            return 0;
        }
        let none = BTreeSet::new();
        let foreign = self.foreign.get(network).unwrap_or(&none);
        let plans = self.plans.get(&(network.to_string(), block.cidr)).copied().unwrap_or_default();
        block.free_of(foreign).saturating_sub(plans)
    }
}

/// Returns the `ipam` of an attachment, and what it has: the addresses that it asks for, or those of one block of each family.
///
/// # Errors
/// It asks for what it may not have, or the node has no address left.
pub(super) fn ipam<'a>(
    network: &NetworkName,
    of_node: &'a NodeAddresses,
    merged: &Merged,
    pod: &str,
    node: &str,
    taken: &TakenAddresses,
) -> Result<(Value, Addresses), DeviceError> {
    let Some(pool) = &of_node.pool else {
        let pool = match &of_node.key {
            PoolKey::Pool(pool) => pool.clone(),
            PoolKey::Network(name) => name.to_string(),
        };
        return Err(DeviceError::NoPool { network: network.to_string(), pool });
    };
    // A MAC address is the Network's, whatever pool its IP addresses are of.
    let mac = merged.capability_args.mac.map(|mac| AskedAddress {
        lease: lease_name(&PoolKey::Network(network.clone()), Leased::Mac(mac)),
        pool: None,
        ip: None,
        mac: Some(mac),
    });
    let asked = merged.asked.of_pod(pod)?;
    if !asked.is_empty() {
        let asked = pool.asked(&asked).map_err(|error| of(network, error))?;
        let ipam = pool.fixed(&asked).map_err(|error| of(network, error))?;
        let pool = match &of_node.key {
            PoolKey::Pool(pool) => Some(pool.clone()),
            PoolKey::Network(_) => None,
        };
        let leases = asked.into_iter().map(|ip| AskedAddress {
            lease: lease_name(&of_node.key, Leased::Address(ip)),
            pool: pool.clone(),
            ip: Some(ip),
            mac: None,
        });
        return Ok((ipam, Addresses { blocks: Vec::new(), leases: leases.chain(mac).collect() }));
    }
    let mut chosen: Vec<&Block> = Vec::new();
    for family in pool.families() {
        let fullest = |blocks: &'a [Block]| {
            let of_family = blocks.iter().filter(|block| block.family() == family);
            let free = of_family.map(|block| (taken.free_of(network, block), block));
            // The fullest first: the others may become empty, and go to nodes that need them.
            free.filter(|(free, _)| *free > 0).min_by_key(|(free, block)| (*free, block.cidr))
        };
        let found = fullest(&of_node.blocks).or_else(|| fullest(&of_node.leaving));
        let Some((_, block)) = found else { return Err(no_address(network, of_node, family, node)) };
        chosen.push(block);
    }
    let spans: Vec<Span> = chosen.iter().flat_map(|block| block.spans.iter().copied()).collect();
    let blocks: Vec<IpNet> = chosen.iter().map(|block| block.cidr).collect();
    let ipam = pool.host_local(&spans);
    Ok((ipam, Addresses { blocks, leases: mac.into_iter().collect() }))
}

/// Returns the names of the blocks that an address of the node's pool may be in. All blocks of a pool have one size, which the
/// node knows if it has one; otherwise any is possible.
pub fn blocks_of(of_node: &NodeAddresses, ip: IpAddr) -> Vec<String> {
    let (family, bits) = (Family::of(ip), Family::of(ip).bits());
    let own = of_node.blocks.iter().chain(&of_node.leaving).filter(|block| block.family() == family);
    let mut prefixes: BTreeSet<u8> = own.map(|block| block.cidr.prefix_len()).collect();
    if prefixes.is_empty() {
        prefixes = (bits - MAX_HOST_BITS..=bits).collect();
    }
    let blocks = prefixes.into_iter().filter_map(|prefix| IpNet::new(ip, prefix).ok());
    blocks.map(|block| block_name(&of_node.key, block.trunc())).collect()
}

fn of(network: &NetworkName, error: Invalid) -> DeviceError {
    DeviceError::Invalid(error.within(&format!("Network {:?}", network.as_str())))
}

fn no_address(network: &NetworkName, of_node: &NodeAddresses, family: Family, node: &str) -> DeviceError {
    if of_node.is_stale {
        return DeviceError::Stale { network: network.to_string(), node: node.to_owned() };
    }
    let blocks = of_node.blocks.iter().filter(|block| block.family() == family).count();
    DeviceError::NoAddress { network: network.to_string(), family, node: node.to_owned(), blocks }
}

#[cfg(test)]
mod tests {
    use netclaim_api::merge::{Asked, Base, merge};
    use netclaim_api::network::NetworkSpec;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn storage() -> (NetworkName, NetworkSpec) {
        let spec = json!({
            "addresses": {"ranges": [{"subnet": "10.20.0.0/24"}, {"subnet": "fd00::/64"}], "reserved": ["10.20.0.192/26", "fd00::f00/120"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "capabilities": {"mac": true}}]},
        });
        ("storage".parse().expect("a name"), serde_json::from_value(spec).expect("a network"))
    }

    fn of_node(blocks: &[&str]) -> NodeAddresses {
        let (name, spec) = storage();
        let block = |cidr: &&str| Block {
            uid: (*cidr).to_owned(),
            cidr: cidr.parse().expect("a block"),
            spans: vec![cidr.parse().expect("a span")],
        };
        NodeAddresses {
            key: PoolKey::Network(name),
            pool: spec.addresses.and_then(|addresses| addresses.inline()),
            blocks: blocks.iter().map(block).collect(),
            leaving: Vec::new(),
            is_stale: false,
            is_scarce: false,
        }
    }

    fn chosen(blocks: &[&str], taken: &TakenAddresses) -> Result<Vec<String>, String> {
        let (name, spec) = storage();
        let merged = merge(Base::Network(&name, &spec), &[], None).expect("merges");
        let (_, addresses) =
            ipam(&name, &of_node(blocks), &merged, "p", "n", taken).map_err(|error| error.to_string())?;
        Ok(addresses.blocks.iter().map(ToString::to_string).collect())
    }

    fn plan(block: &str) -> Plan {
        let mut plan = fixtures::plan("c");
        plan.network = "storage".to_owned();
        let blocks = vec![block.parse().expect("a block")];
        plan.owner.addresses = Some(Addresses { blocks, leases: Vec::new() });
        plan
    }

    #[test]
    fn an_attachment_gets_the_fullest_block_of_each_family_that_has_an_address() {
        let blocks = ["10.20.0.16/30", "10.20.0.32/30", "fd00::40/122"];
        let mut taken = TakenAddresses::default();
        assert_eq!(chosen(&blocks, &taken).expect("free"), ["10.20.0.16/30", "fd00::40/122"]);
        taken.add(&plan("10.20.0.32/30"));
        assert_eq!(chosen(&blocks, &taken).expect("free"), ["10.20.0.32/30", "fd00::40/122"]);
        for _ in 0..3 {
            taken.add(&plan("10.20.0.32/30"));
        }
        assert_eq!(chosen(&blocks, &taken).expect("free"), ["10.20.0.16/30", "fd00::40/122"]);
        taken.retired.insert("10.20.0.16/30".to_owned());
        let error = chosen(&blocks, &taken).expect_err("nothing is left");
        assert!(
            error.starts_with("no IPv4 address of Network \"storage\" is free on node n, which has 2 blocks"),
            "{error}"
        );
    }

    #[test]
    fn addresses_of_others_are_counted() {
        let foreign = ["10.20.0.16", "10.20.0.17", "10.20.0.18", "10.20.0.19"];
        let foreign = foreign.iter().map(|ip| ip.parse().expect("an address")).collect();
        let taken =
            TakenAddresses { foreign: BTreeMap::from([(storage().0, foreign)]), ..Default::default() };
        assert!(chosen(&["10.20.0.16/30", "fd00::40/122"], &taken).is_err());
        assert!(chosen(&["10.20.0.16/29", "fd00::40/122"], &taken).is_ok());
    }

    #[test]
    fn asked_addresses_are_fixed_and_leased_by_name() {
        let (name, spec) = storage();
        let mut merged = merge(Base::Network(&name, &spec), &[], None).expect("merges");
        let ip = |text: &str| text.parse().expect("an address");
        merged.asked = Asked::ByReplica(vec![ip("10.20.0.199"), ip("fd00::f00")]);
        merged.capability_args.mac =
            Some(netclaim_api::MacAddr::try_from("02:00:00:00:00:01".to_owned()).expect("a MAC address"));
        let (ipam, addresses) =
            super::ipam(&name, &of_node(&[]), &merged, "web-1", "n", &TakenAddresses::default())
                .expect("reserved");
        assert_eq!(ipam["type"], "static");
        let leases = ["storage.10.20.0.200", "storage.fd00-0-0-0-0-0-0-f01", "storage.02-00-00-00-00-01"];
        assert_eq!(addresses.leases.iter().map(|asked| asked.lease.as_str()).collect::<Vec<_>>(), leases);
    }
}
