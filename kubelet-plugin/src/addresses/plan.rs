//! Chooses the addresses of an attachment, and whether it may keep them. Pure.
//!
//! Each plan names one address of each family and the block that it is of, so that the journal is the node's
//! lease book, whatever the CNI network is called. A block is free to go as soon as no plan names it.
//! `host-local` gets a range of that one address: its files are a second witness.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use netclaim_api::addresses::choice::{Choice, Taken, Usable, choose};
use netclaim_api::addresses::{AddressPoolSpec, Family, Leased, PoolKey, Span, block_name, lease_name};
use netclaim_api::merge::Merged;
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_api::{Invalid, NetworkName};
use netclaim_cni::{IpRequest, NetworkList};
use netclaim_driver::attach::record::Repaired;
use netclaim_driver::attach::{Attach, Attacher, Observer};
use serde_json::Value;
use tokio::time::Instant;

use super::error::AddressError;
use crate::inventory::{Block, NodeAddresses, OwnBlock, OwnBlocks};
use crate::pods::owner::{Addresses, AskedAddress, Owner, Plan, Record};

/// Host bits of the largest block.
const MAX_HOST_BITS: u8 = 16;

/// Addresses that others than the node's attachments hold of each ClaimNetwork, from `host-local`'s files.
pub type ForeignAddresses = BTreeMap<NetworkName, BTreeSet<IpAddr>>;

/// The state between two choices.
#[derive(Debug, Clone, Default, Hash)]
pub struct Book {
    /// UIDs of blocks that the node has given back, which no new plan may name.
    pub retired: BTreeSet<String>,
    /// The address that was chosen last of each block, by ClaimNetwork.
    last: BTreeMap<String, BTreeMap<IpNet, IpAddr>>,
    /// Until when no plan gets an address, because another host on the network has it, by ClaimNetwork.
    left_out: BTreeMap<String, BTreeMap<IpAddr, Instant>>,
}

/// How long no attachment gets an address that another host has.
pub const LEFT_OUT: Duration = Duration::from_secs(600);

impl Book {
    /// Notes the addresses of a plan that is journalled.
    pub fn note(&mut self, plan: &Plan) {
        let Some(Addresses { chosen, .. }) = &plan.owner.addresses else { return };
        let of_network = self.last.entry(plan.network.clone()).or_default();
        of_network.extend(chosen.iter().map(|choice| (choice.block, choice.address)));
    }

    /// Leaves addresses of a ClaimNetwork out for [a time](LEFT_OUT): other hosts have them.
    pub fn leave_out(&mut self, network: &str, ips: impl IntoIterator<Item = IpAddr>, now: Instant) {
        self.take_back(now);
        let of_network = self.left_out.entry(network.to_owned()).or_default();
        for ip in ips {
            of_network.entry(ip).or_insert(now + LEFT_OUT);
        }
    }

    /// Forgets which addresses were left out until `now`.
    fn take_back(&mut self, now: Instant) {
        self.left_out.values_mut().for_each(|of_network| of_network.retain(|_, until| *until > now));
        self.left_out.retain(|_, of_network| !of_network.is_empty());
    }

    /// Returns the addresses of a ClaimNetwork that are left out, or were until lately.
    pub fn left_out(&self, network: &NetworkName) -> impl Iterator<Item = &IpAddr> {
        self.left_out.get(network.as_str()).into_iter().flat_map(BTreeMap::keys)
    }

    /// Returns the names of blocks that the node has given back and that exist as before: etcd was restored
    /// from a copy of before that. Others may have got their addresses since, so that only a block of another
    /// UID may hand them out.
    pub fn come_back<'a>(&self, own: &'a BTreeMap<String, OwnBlock>) -> impl Iterator<Item = &'a String> {
        let is_back = |block: &OwnBlock| !block.is_deleting && self.retired.contains(&block.uid);
        own.iter().filter(move |(_, block)| is_back(block)).map(|(name, _)| name)
    }
}

/// Serialises planning, from reading what other claims have until the new plan is journalled, and has what is
/// known of addresses meanwhile.
pub type PlanLock = tokio::sync::Mutex<Book>;

/// The addresses of its blocks that the node has given away.
#[derive(Debug, Clone, Default)]
pub struct TakenAddresses {
    /// The addresses of attachments, by ClaimNetwork.
    attachments: BTreeMap<String, Taken>,
    foreign: ForeignAddresses,
    book: Book,
}

impl TakenAddresses {
    /// Nothing is given away but what others hold, and blocks.
    pub fn new(foreign: ForeignAddresses, mut book: Book) -> Self {
        book.take_back(Instant::now());
        Self { attachments: BTreeMap::new(), foreign, book }
    }

    /// Adds what a plan has.
    pub fn add(&mut self, plan: &Plan) {
        self.add_all(plan, []);
    }

    /// Adds what an attachment has: its plan, or a result that says otherwise; and what it comes back with
    /// from a repair.
    pub fn add_record(&mut self, record: &Record) {
        let made = record.phase.result().into_iter().flat_map(|result| result.ips());
        let kept = record.repaired.iter().flat_map(Repaired::ips);
        self.add_all(&record.plan, made.map(|ip| ip.address.addr()).chain(kept));
    }

    fn add_all(&mut self, plan: &Plan, made: impl IntoIterator<Item = IpAddr>) {
        let of_plan = plan.owner.addresses.iter();
        let planned = of_plan
            .flat_map(|of_plan| of_plan.ips().chain(of_plan.leases.iter().filter_map(|asked| asked.ip)));
        let all = planned.chain(made);
        // A name is copied once for each ClaimNetwork, not for each of hundreds of attachments.
        match self.attachments.get_mut(&plan.network) {
            Some(taken) => taken.extend(all),
            None => drop(self.attachments.insert(plan.network.clone(), all.collect())),
        }
    }

    fn of(&self, network: &NetworkName) -> Taken {
        let mut taken = self.attachments.get(network.as_str()).cloned().unwrap_or_default();
        taken.extend(self.foreign.get(network).into_iter().flatten());
        taken.extend(self.book.left_out(network));
        taken
    }

    /// Returns the address that an attachment gets now.
    fn choose(&self, network: &NetworkName, of_node: &NodeAddresses, family: Family) -> Option<Choice> {
        let (taken, none) = (self.of(network), BTreeMap::new());
        let last = self.book.last.get(network.as_str()).unwrap_or(&none);
        let of = |blocks: &[Block]| {
            let is_fit = |block: &&Block| {
                block.family() == family && !block.is_retired && !self.book.retired.contains(&block.uid)
            };
            let fit = blocks.iter().filter(is_fit);
            choose(fit.map(|block| Usable { block: block.cidr, spans: &block.spans }), &taken, last)
        };
        of(&of_node.blocks).or_else(|| of(&of_node.leaving))
    }
}

/// Returns the sandboxes whose attachments all name their addresses: what `host-local` has of these is known
/// from the plans.
pub fn sandboxes_of_named<A: Attach, O: Observer<Owner = Owner>>(
    attacher: &Attacher<A, O>,
) -> BTreeSet<String> {
    // In this order: a sandbox that comes meanwhile is not one of them.
    let (all, mut unnamed) = (attacher.sandbox_ids(), BTreeSet::new());
    attacher.for_each_pod(|state| {
        for record in state.attachments() {
            let is_named = record.plan.owner.addresses.is_some();
            unnamed.extend(record.phase.sandbox().filter(|_| !is_named).map(|sandbox| sandbox.id.clone()));
        }
    });
    &all - &unnamed
}

/// Returns the `ipam` of an attachment, and what it has: the addresses that it asks for, or one of a block of
/// each family.
///
/// # Errors
/// It asks for what it may not have, or the node has no address left.
pub(crate) fn ipam(
    network: &NetworkName,
    of_node: &NodeAddresses,
    merged: &Merged,
    pod: &str,
    node: &str,
    taken: &TakenAddresses,
) -> Result<(Value, Addresses), AddressError> {
    let Some(pool) = &of_node.pool else { return Err(no_pool(network, of_node)) };
    // A MAC address is the ClaimNetwork's, whatever pool its IP addresses are of.
    let mac = merged.capability_args.mac.map(|mac| AskedAddress {
        lease: lease_name(&PoolKey::Network(network.clone()), Leased::Mac(mac)),
        pool: None,
        ip: None,
        mac: Some(mac),
    });
    let asked = merged.asked.of_pod(pod)?;
    if !asked.is_empty() {
        let (ipam, leases) = fixed(network, of_node, pool, &asked)?;
        let leases = leases.into_iter().chain(mac).collect();
        return Ok((ipam, Addresses { leases, ..Addresses::default() }));
    }
    let chosen = pool.families().into_iter().map(|family| {
        let choice = taken.choose(network, of_node, family);
        choice.ok_or_else(|| no_address(network, of_node, family, node, taken))
    });
    let chosen: Vec<Choice> = chosen.collect::<Result<_, _>>()?;
    Ok((one_of_each(pool, &chosen), Addresses { chosen, leases: mac.into_iter().collect() }))
}

/// Returns the `ipam` of an attachment that asks for these addresses, and the leases that it needs.
fn fixed(
    network: &NetworkName,
    of_node: &NodeAddresses,
    pool: &AddressPoolSpec,
    asked: &[IpRequest],
) -> Result<(Value, Vec<AskedAddress>), AddressError> {
    let asked = pool.asked(asked).map_err(|error| of(network, error))?;
    let ipam = pool.fixed(&asked).map_err(|error| of(network, error))?;
    let leases = asked.into_iter().map(|ip| AskedAddress {
        lease: lease_name(&of_node.key, Leased::Address(ip)),
        pool: of_node.key.address_pool(),
        ip: Some(ip),
        mac: None,
    });
    Ok((ipam, leases.collect()))
}

/// Returns the `ipam` by which `host-local` can give an attachment these addresses and no other.
fn one_of_each(pool: &AddressPoolSpec, chosen: &[Choice]) -> Value {
    let spans: Vec<Span> = chosen.iter().map(|choice| Span::of_address(choice.address)).collect();
    pool.host_local(&spans)
}

/// The current pool and blocks of a ClaimNetwork on the node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now<'a> {
    /// Its name.
    pub(crate) network: &'a NetworkName,
    /// The ClaimNetwork; `None` where it is gone, invalid or not for this node.
    pub(crate) spec: Option<&'a ClaimNetworkSpec>,
    /// Its addresses, if it has any.
    pub(crate) of_node: Option<&'a NodeAddresses>,
    /// The blocks of the node.
    pub(crate) own: &'a OwnBlocks,
    /// The name of the node.
    pub(crate) node: &'a str,
}

/// Returns the plan by which to attach now, if it is another one than `plan`, which is not attached or
/// owed. Others have what is `taken`. A pod keeps its address over a new sandbox as long as the address is
/// usable, also one of a block that goes.
///
/// # Errors
/// Why the plan cannot be carried out now: with another address of the ClaimNetwork, or with that for which
/// its claim asks.
pub(crate) fn revised(
    plan: &Plan,
    now: Now<'_>,
    taken: &TakenAddresses,
) -> Result<Option<Plan>, AddressError> {
    let Now { network, of_node, own, node, .. } = now;
    // That of a claim, too: once the Node object is gone for long, the claim may serve a pod on another node.
    if own.is_stale && (plan.owner.addresses.is_some() || of_node.is_some()) {
        return Err(AddressError::Stale { network: network.to_string(), node: node.to_owned() });
    }
    let planned = plan.owner.addresses.clone().unwrap_or_default();
    let Some((of_node, pool)) = of_node.and_then(|of_node| Some((of_node, of_node.pool.as_ref()?))) else {
        return match of_node.filter(|_| plan.owner.addresses.is_none()) {
            Some(of_node) => Err(no_pool(network, of_node)),
            None => still_has_blocks(&planned, now).map(|()| None),
        };
    };
    let asked: Vec<IpAddr> = planned.leases.iter().filter_map(|asked| asked.ip).collect();
    if let Some(ip) = asked.iter().find(|ip| !pool.permits(**ip)) {
        return Err(AddressError::NotPermitted { network: network.to_string(), ip: *ip });
    }
    if !asked.is_empty() {
        return Ok(None);
    }
    let requests = plan.spec.capability_args.ips.clone().unwrap_or_default();
    if plan.owner.addresses.is_none() && !requests.is_empty() {
        // From before the ClaimNetwork had addresses, which serve such claims themselves.
        let (ipam, leases) = fixed(network, of_node, pool, &requests)?;
        let mut plan = with(plan, now, Addresses { leases, ..Addresses::default() }, &ipam)?;
        plan.spec.capability_args.ips = None;
        return Ok(Some(plan));
    }
    let others = taken.of(network);
    let is_kept = |choice: &Choice| {
        let mut blocks = of_node.blocks.iter().chain(&of_node.leaving);
        let has = |block: &Block| block.spans.iter().any(|span| span.contains(choice.address));
        blocks.any(|block| block.cidr == choice.block && has(block)) && !others.contains(&choice.address)
    };
    let kept: Vec<Choice> = planned.chosen.iter().copied().filter(is_kept).collect();
    let chosen = pool.families().into_iter().map(|family| {
        let kept = kept.iter().find(|choice| Family::of(choice.address) == family).copied();
        let choice = kept.or_else(|| taken.choose(network, of_node, family));
        choice.ok_or_else(|| no_address(network, of_node, family, node, taken))
    });
    let chosen: Vec<Choice> = chosen.collect::<Result<_, _>>()?;
    if chosen == planned.chosen {
        return Ok(None);
    }
    let ipam = one_of_each(pool, &chosen);
    with(plan, now, Addresses { chosen, leases: planned.leases }, &ipam).map(Some)
}

/// Whether the blocks of a plan are the node's. Where nothing says which addresses are usable, it keeps those
/// of its blocks: no other node gets them while a plan names them.
fn still_has_blocks(planned: &Addresses, now: Now<'_>) -> Result<(), AddressError> {
    let is_own = |block: &IpNet| {
        let mut own = now.own.known.iter().flat_map(BTreeMap::values);
        own.any(|known| known.spec.cidr == *block && known.spec.network == *now.network)
    };
    match planned.blocks().find(|block| !is_own(block)) {
        None => Ok(()),
        Some(block) => {
            Err(AddressError::NoBlock { network: now.network.to_string(), block, node: now.node.to_owned() })
        }
    }
}

/// Returns the plan with other addresses.
fn with(plan: &Plan, now: Now<'_>, addresses: Addresses, ipam: &Value) -> Result<Plan, AddressError> {
    let other_chain = || AddressError::OtherChain { network: now.network.to_string() };
    let conflist = with_ipam(&plan.spec.conflist, now.spec, ipam).ok_or_else(other_chain)?;
    let mut plan = plan.clone();
    plan.spec.conflist = conflist;
    plan.owner.addresses = Some(addresses);
    Ok(plan)
}

/// Returns a conflist with another `ipam`: in the one plugin that has any, or else in that which has the
/// ClaimNetwork's addresses today, if it is of the same type. `None` where neither is there.
fn with_ipam(list: &NetworkList, spec: Option<&ClaimNetworkSpec>, ipam: &Value) -> Option<NetworkList> {
    let mut conflist: Value = serde_json::from_str(list.raw()).ok()?;
    let plugins = conflist.get_mut("plugins")?.as_array_mut()?;
    let having = plugins.iter().enumerate().filter(|(_, plugin)| plugin.get("ipam").is_some());
    let having: Vec<usize> = having.map(|(index, _)| index).collect();
    let place = match having.as_slice() {
        [one] => *one,
        _ => spec?.addresses_plugin().filter(|place| {
            let types = spec.map(ClaimNetworkSpec::plugin_types).unwrap_or_default();
            plugins.get(*place).map(|plugin| plugin["type"].as_str())
                == types.get(*place).map(|name| Some(*name))
        })?,
    };
    plugins.get_mut(place)?.as_object_mut()?.insert("ipam".to_owned(), ipam.clone());
    NetworkList::parse(conflist.to_string().as_bytes()).ok()
}

/// Whether plans differ in nothing but which addresses of blocks they have.
pub(crate) fn differ_in_choice_only(one: &[Plan], other: &[Plan]) -> bool {
    let is_same = |(one, other): (&Plan, &Plan)| {
        let mut other = other.clone();
        let chosen = one.owner.addresses.as_ref().filter(|addresses| !addresses.chosen.is_empty());
        if let (Some(of_one), Some(addresses)) = (chosen, &mut other.owner.addresses)
            && !addresses.chosen.is_empty()
            && without_ranges(&one.spec.conflist) == without_ranges(&other.spec.conflist)
        {
            addresses.chosen = of_one.chosen.clone();
            other.spec.conflist = one.spec.conflist.clone();
        }
        *one == other
    };
    one.len() == other.len() && one.iter().zip(other).all(is_same)
}

/// The conflist without what depends on the chosen address: the range of it, and the routes that it reaches.
fn without_ranges(list: &NetworkList) -> Value {
    let mut conflist: Value = serde_json::from_str(list.raw()).unwrap_or_default();
    for plugin in conflist["plugins"].as_array_mut().into_iter().flatten() {
        if let Some(ipam) = plugin.get_mut("ipam").and_then(Value::as_object_mut) {
            ipam.retain(|key, _| key != "ranges" && key != "routes");
        }
    }
    conflist
}

/// Returns the names of the blocks of an AddressPool that an address may be in, whatever ClaimNetwork they
/// are for: of any size, because a subnet that is smaller than others' blocks is one block, and because
/// blocks outlive the ranges and sizes that they were cut by. Those of a ClaimNetwork's own ranges are found
/// by the ClaimNetwork.
pub fn blocks_of(of_node: &NodeAddresses, ip: IpAddr) -> Vec<String> {
    if matches!(of_node.key, PoolKey::Network(_)) {
        return Vec::new();
    }
    let bits = Family::of(ip).bits();
    let blocks = (bits - MAX_HOST_BITS..=bits).filter_map(|prefix| IpNet::new(ip, prefix).ok());
    blocks.map(|block| block_name(&of_node.key, block.trunc())).collect()
}

fn of(network: &NetworkName, error: Invalid) -> AddressError {
    AddressError::Invalid(error.within(&format!("ClaimNetwork {:?}", network.as_str())))
}

fn no_pool(network: &NetworkName, of_node: &NodeAddresses) -> AddressError {
    let pool = match &of_node.key {
        PoolKey::Pool(pool) => pool.clone(),
        PoolKey::Network(name) => name.to_string(),
    };
    AddressError::NoPool { network: network.to_string(), pool }
}

fn no_address(
    network: &NetworkName,
    of_node: &NodeAddresses,
    family: Family,
    node: &str,
    taken: &TakenAddresses,
) -> AddressError {
    if of_node.is_stale {
        return AddressError::Stale { network: network.to_string(), node: node.to_owned() };
    }
    let blocks = of_node.blocks.iter().filter(|block| block.family() == family).count();
    let left_out = taken.book.left_out(network).filter(|ip| Family::of(**ip) == family).copied().collect();
    AddressError::NoAddress { network: network.to_string(), family, node: node.to_owned(), blocks, left_out }
}

#[cfg(test)]
mod tests {
    use netclaim_api::merge::{Asked, Base, merge};
    use netclaim_api::network::ClaimNetworkSpec;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn storage() -> (NetworkName, ClaimNetworkSpec) {
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
            is_retired: false,
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
        Ok(addresses.blocks().map(|block| block.to_string()).collect())
    }

    /// The plan of an attachment that has an address of a block.
    fn plan(block: &str, address: &str) -> Plan {
        let mut plan = fixtures::plan("c");
        plan.network = "storage".to_owned();
        let chosen =
            Choice { block: block.parse().expect("a block"), address: address.parse().expect("an address") };
        plan.owner.addresses = Some(Addresses { chosen: vec![chosen], ..Addresses::default() });
        plan
    }

    #[test]
    fn an_attachment_gets_the_fullest_block_of_each_family_that_has_an_address() {
        let blocks = ["10.20.0.16/30", "10.20.0.32/30", "fd00::40/122"];
        let mut taken = TakenAddresses::default();
        assert_eq!(chosen(&blocks, &taken).expect("free"), ["10.20.0.16/30", "fd00::40/122"]);
        taken.add(&plan("10.20.0.32/30", "10.20.0.32"));
        assert_eq!(chosen(&blocks, &taken).expect("free"), ["10.20.0.32/30", "fd00::40/122"]);
        for address in ["10.20.0.33", "10.20.0.34", "10.20.0.35"] {
            taken.add(&plan("10.20.0.32/30", address));
        }
        assert_eq!(chosen(&blocks, &taken).expect("free"), ["10.20.0.16/30", "fd00::40/122"]);
        taken.book.retired.insert("10.20.0.16/30".to_owned());
        let error = chosen(&blocks, &taken).expect_err("nothing is left");
        assert!(
            error.starts_with(
                "no IPv4 address of ClaimNetwork \"storage\" is free on node n, which has 2 blocks"
            ),
            "{error}"
        );
    }

    fn ips(addresses: &Addresses) -> Vec<String> {
        addresses.ips().map(|ip| ip.to_string()).collect()
    }

    /// The plan of a claim that gets its addresses now.
    fn planned(blocks: &[&str], taken: &TakenAddresses) -> Plan {
        let (name, spec) = storage();
        let merged = merge(Base::Network(&name, &spec), &[], None).expect("merges");
        let (ipam, addresses) = ipam(&name, &of_node(blocks), &merged, "p", "n", taken).expect("free");
        let mut plan = fixtures::plan("c");
        plan.network = "storage".to_owned();
        plan.owner.addresses = Some(addresses);
        plan.spec.conflist = fixtures::conflist(json!([{"type": "macvlan", "ipam": ipam}]));
        plan
    }

    fn revise(plan: &Plan, of_node: &NodeAddresses, taken: &TakenAddresses) -> Result<Option<Plan>, String> {
        let (network, spec) = storage();
        let own = OwnBlocks { known: Some(BTreeMap::new()), is_stale: of_node.is_stale };
        let now = Now { network: &network, spec: Some(&spec), of_node: Some(of_node), own: &own, node: "n" };
        revised(plan, now, taken).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_are_given_once_whatever_the_network_is_called() {
        let blocks = ["10.20.0.16/30", "fd00::40/122"];
        let mut taken = TakenAddresses::default();
        let mut given = BTreeSet::new();
        for name in ["netclaim-storage", "lan", "lan-default", "lan"] {
            let mut plan = planned(&blocks, &taken);
            let conflist = plan.spec.conflist.raw().replace("netclaim-storage", name);
            plan.spec.conflist = NetworkList::parse(conflist.as_bytes()).expect("a conflist");
            assert!(given.insert(ips(plan.owner.addresses.as_ref().expect("some"))), "{name}: twice");
            taken.add(&plan);
        }
        assert!(chosen(&blocks, &taken).is_err(), "all are given");
    }

    #[test]
    fn host_local_gets_a_range_of_the_one_address() {
        let plan = planned(&["10.20.0.16/30", "fd00::40/122"], &TakenAddresses::default());
        let conflist: Value = serde_json::from_str(plan.spec.conflist.raw()).expect("JSON");
        let ranges = &conflist["plugins"][0]["ipam"]["ranges"];
        assert_eq!(
            *ranges,
            json!([
                [{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.16", "rangeEnd": "10.20.0.16", "gateway": "10.20.0.1"}],
                [{"subnet": "fd00::/64", "rangeStart": "fd00::40", "rangeEnd": "fd00::40", "gateway": "fd00::1"}]])
        );
    }

    #[test]
    fn a_plan_keeps_its_address_over_sandboxes_until_that_is_not_usable_any_more() {
        let blocks = ["10.20.0.16/30", "fd00::40/122"];
        let none = TakenAddresses::default();
        let plan = planned(&blocks, &none);
        assert_eq!(revise(&plan, &of_node(&blocks), &none), Ok(None));
        let mut leaving = of_node(&blocks);
        leaving.leaving = std::mem::take(&mut leaving.blocks);
        leaving.leaving[0].is_retired = true;
        assert_eq!(revise(&plan, &leaving, &none), Ok(None), "its block goes, but not before the pod");
        let mut excluded = of_node(&blocks);
        excluded.blocks[0].spans = vec!["10.20.0.17-10.20.0.19".parse().expect("a span")];
        let anew = revise(&plan, &excluded, &none).expect("another one is free").expect("anew");
        assert_eq!(ips(anew.owner.addresses.as_ref().expect("some")), ["10.20.0.17", "fd00::40"]);
        assert!(anew.spec.conflist.raw().contains("\"rangeStart\":\"10.20.0.17\""));
        assert_eq!(anew.spec.if_name, plan.spec.if_name);
        let error = revise(&plan, &of_node(&["fd00::40/122"]), &none).expect_err("none is left");
        assert!(
            error.starts_with("no IPv4 address of ClaimNetwork \"storage\" is free on node n"),
            "{error}"
        );
        let stale = NodeAddresses { is_stale: true, ..of_node(&[]) };
        assert!(revise(&plan, &stale, &none).expect_err("stale").contains("has not heard"));
    }

    #[test]
    fn no_plan_with_addresses_is_carried_out_while_other_nodes_may_soon_have_them() {
        let none = TakenAddresses::default();
        let of_block = planned(&["10.20.0.16/30", "fd00::40/122"], &none);
        let mut asking = of_block.clone();
        let ip = "10.20.0.200".parse().expect("an address");
        let asked = AskedAddress { lease: "l".to_owned(), pool: None, ip: Some(ip), mac: None };
        asking.owner.addresses = Some(Addresses { leases: vec![asked], ..Addresses::default() });
        let stale = NodeAddresses { is_stale: true, ..of_node(&[]) };
        let network = storage().0;
        let own = ["10.20.0.16/30", "fd00::40/122"];
        let own = own.map(|cidr| crate::inventory::fixtures::own_block("storage", cidr));
        let known = own.into_iter().map(|block| (block.spec.name(), block)).collect();
        let own = OwnBlocks { known: Some(known), is_stale: true };
        for plan in [&of_block, &asking] {
            assert!(revise(plan, &stale, &none).expect_err("stale").contains("has not heard"));
            let without_network = Now { network: &network, spec: None, of_node: None, own: &own, node: "n" };
            let error = revised(plan, without_network, &none).expect_err("stale").to_string();
            assert!(error.contains("has not heard"), "{error}");
        }
        let mut own_ipam = of_block;
        own_ipam.owner.addresses = None;
        let without_network = Now { network: &network, spec: None, of_node: None, own: &own, node: "n" };
        assert_eq!(revised(&own_ipam, without_network, &none), Ok(None));
    }

    #[test]
    fn a_plan_gets_another_address_than_one_that_is_taken() {
        let blocks = ["10.20.0.16/30", "fd00::40/122"];
        let plan = planned(&blocks, &TakenAddresses::default());
        let foreign = BTreeSet::from(["10.20.0.16".parse().expect("an address")]);
        let foreign = TakenAddresses::new(BTreeMap::from([(storage().0, foreign)]), Book::default());
        let mut record = fixtures::attached("other", "s");
        record.phase = netclaim_driver::attach::Phase::Attached {
            sandbox: fixtures::sandbox("s"),
            result: fixtures::result(&json!({"cniVersion": "1.1.0", "ips": [{"address": "10.20.0.16/24"}]})),
        };
        let mut made = TakenAddresses::default();
        made.add_record(&record);
        for taken in [foreign, made] {
            let anew = revise(&plan, &of_node(&blocks), &taken).expect("free").expect("anew");
            assert_eq!(ips(anew.owner.addresses.as_ref().expect("some"))[0], "10.20.0.17");
        }
    }

    #[test]
    fn an_address_that_another_host_has_is_left_out_for_a_time() {
        let (blocks, now) = (["10.20.0.16/30", "fd00::40/122"], Instant::now());
        let plan = planned(&blocks, &TakenAddresses::default());
        let mut book = Book::default();
        book.leave_out("storage", ["10.20.0.16".parse().expect("an address")], now);
        let without = TakenAddresses::new(ForeignAddresses::new(), book.clone());
        let anew = revise(&plan, &of_node(&blocks), &without).expect("free").expect("anew");
        let anew = anew.owner.addresses.expect("some");
        assert_eq!(ips(&anew), ["10.20.0.17", "fd00::40"], "the other family keeps its address");
        book.leave_out("storage", (16..20).map(|last| IpAddr::from([10, 20, 0, last])), now);
        let none = TakenAddresses::new(ForeignAddresses::new(), book.clone());
        let error = revise(&plan, &of_node(&blocks), &none).expect_err("all are left out");
        let left_out = "4 are left out for 10 minutes because other hosts on the network have them: 10.20.0.16, 10.20.0.17";
        assert!(error.contains(left_out), "{error}");
        book.take_back(now + LEFT_OUT);
        let back = TakenAddresses::new(ForeignAddresses::new(), book);
        assert_eq!(revise(&plan, &of_node(&blocks), &back), Ok(None));
    }

    #[test]
    fn plans_with_an_ipam_of_their_own_are_made_again() {
        let blocks = ["10.20.0.16/30", "fd00::40/122"];
        let none = TakenAddresses::default();
        let mut own_ipam = planned(&blocks, &none);
        own_ipam.owner.addresses = None;
        own_ipam.spec.conflist =
            fixtures::conflist(json!([{"type": "macvlan", "ipam": {"type": "dhcp"}}, {"type": "tuning"}]));
        let anew = revise(&own_ipam, &of_node(&blocks), &none).expect("free").expect("anew");
        assert!(
            anew.spec.conflist.raw().contains("host-local") && !anew.spec.conflist.raw().contains("dhcp")
        );
        assert_eq!(ips(anew.owner.addresses.as_ref().expect("some")), ["10.20.0.16", "fd00::40"]);
        let without_pool = NodeAddresses { pool: None, ..of_node(&blocks) };
        assert!(revise(&own_ipam, &without_pool, &none).is_err(), "its addresses are not known");
        let asked =
            ["10.20.0.200", "fd00::f00"].map(|ip| IpRequest::Address(ip.parse().expect("an address")));
        own_ipam.spec.capability_args.ips = Some(asked.to_vec());
        let anew = revise(&own_ipam, &of_node(&blocks), &none).expect("reserved").expect("anew");
        assert!(anew.spec.conflist.raw().contains("static") && anew.spec.capability_args.ips.is_none());
        assert_eq!(anew.owner.addresses.map(|addresses| addresses.leases.len()), Some(2));
    }

    #[test]
    fn an_address_that_a_claim_asks_for_is_not_given_when_it_is_excluded() {
        let (_, spec) = storage();
        let mut asking = plan("10.20.0.16/30", "10.20.0.16");
        let ip = "10.20.0.200".parse().expect("an address");
        let asked = AskedAddress { lease: "l".to_owned(), pool: None, ip: Some(ip), mac: None };
        asking.owner.addresses = Some(Addresses { leases: vec![asked], ..Addresses::default() });
        let mut of_node = of_node(&[]);
        assert_eq!(revise(&asking, &of_node, &TakenAddresses::default()), Ok(None));
        let mut pool = spec.addresses.and_then(|addresses| addresses.inline()).expect("inline");
        pool.ranges[0].exclude = vec!["10.20.0.200".parse().expect("a span")];
        of_node.pool = Some(pool);
        let error = revise(&asking, &of_node, &TakenAddresses::default()).expect_err("excluded");
        assert!(error.starts_with("address 10.20.0.200 is no longer one that pods"), "{error}");
    }

    #[test]
    fn a_plan_whose_network_is_gone_needs_its_block() {
        let blocks = ["10.20.0.16/30", "fd00::40/122"];
        let plan = planned(&blocks, &TakenAddresses::default());
        let network = storage().0;
        let of = |own: &OwnBlocks| {
            let now = Now { network: &network, spec: None, of_node: None, own, node: "n" };
            revised(&plan, now, &TakenAddresses::default()).map_err(|error| error.to_string())
        };
        let own = blocks.map(|cidr| crate::inventory::fixtures::own_block("storage", cidr));
        let known = own.into_iter().map(|block| (block.spec.name(), block)).collect();
        assert_eq!(of(&OwnBlocks { known: Some(known), is_stale: false }), Ok(None));
        let error = of(&OwnBlocks { known: Some(BTreeMap::new()), is_stale: false }).expect_err("lost");
        assert!(error.starts_with("node n has lost AddressBlock 10.20.0.16/30"), "{error}");
    }

    #[test]
    fn plans_that_differ_in_their_address_alone_are_one_plan() {
        let blocks = ["10.20.0.16/30", "fd00::40/122"];
        let one = planned(&blocks, &TakenAddresses::default());
        let mut taken = TakenAddresses::default();
        taken.add(&one);
        let other = planned(&blocks, &taken);
        assert_ne!(one, other);
        assert!(differ_in_choice_only(std::slice::from_ref(&one), std::slice::from_ref(&other)));
        let mut renamed = other;
        renamed.spec.if_name = "other".parse().expect("a name");
        assert!(!differ_in_choice_only(&[one], &[renamed]));
    }

    #[test]
    fn a_block_that_an_earlier_agent_may_have_let_go_gives_no_new_address() {
        let mut of_node = of_node(&["10.20.0.16/30", "fd00::40/122"]);
        of_node.leaving = std::mem::take(&mut of_node.blocks);
        let taken = TakenAddresses::default();
        assert!(taken.choose(&storage().0, &of_node, Family::V4).is_some(), "as a last resort");
        of_node.leaving[0].is_retired = true;
        assert_eq!(taken.choose(&storage().0, &of_node, Family::V4), None);
    }

    #[test]
    fn the_blocks_of_a_pool_that_may_have_an_address_are_of_any_size() {
        let ip = "10.20.1.2".parse().expect("an address");
        let mut of_node = of_node(&["10.20.0.16/28"]);
        assert_eq!(blocks_of(&of_node, ip), [""; 0], "they are found by the ClaimNetwork");
        of_node.key = PoolKey::Pool("lan".to_owned());
        let names = blocks_of(&of_node, ip);
        assert!(
            names.contains(&"pool.lan.10.20.1.0-29".to_owned())
                && names.contains(&"pool.lan.10.20.0.0-16".to_owned())
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
