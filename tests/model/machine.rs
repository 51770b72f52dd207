//! A machine: its agent, the files of `host-local`, and what its pods really have.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use netclaim_api::NetworkName;
use netclaim_api::addresses::{
    AddressBlock, AddressBlockStatus, AddressLeaseSpec, BlockHolder, Family, HolderKind, MAX_WANTED, Span,
};
use netclaim_api::network::{ClaimNetworkSpec, conflist_name};
use netclaim_kubelet_plugin::addresses::door::{
    self, Book, NodeAddresses, OwnBlock, OwnBlocks, Plan, TakenAddresses, blocks_of,
};
use netclaim_kubelet_plugin::addresses::wanted::{BlockNow, IDLE, UseHistory};
use serde_json::Value;

use crate::server::{Config, Pod, Seconds, Server, claim_uid, holder};
use crate::world::{SAFETY, instant};

/// How long a block that is being deleted is kept after it is withdrawn from the devices.
const WITHDRAWN: Seconds = 10;
/// How long a lease may be without a plan.
const UNPLANNED: Seconds = 60;
/// How long a Prepare takes at most: then it begins again.
const PREPARE: Seconds = 35;

/// A plan in the journal.
#[derive(Debug, Clone)]
pub struct Record {
    plan: Arc<Plan>,
    /// What its `ipam` says: the ranges of each family, or the addresses themselves.
    ranges: Vec<Vec<Span>>,
    fixed: Vec<IpAddr>,
}

impl Record {
    fn of(plan: Plan) -> Self {
        let ipam = plan.spec.conflist.first_plugin().ipam_conf().map(|conf| conf.get().to_owned());
        let ipam: Value = ipam.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let ip = |value: &Value| value.as_str()?.split('/').next()?.parse::<IpAddr>().ok();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let span = |range: &Value| Span::new(ip(&range["rangeStart"])?, ip(&range["rangeEnd"])?);
        let sets = list(&ipam["ranges"]);
        let ranges = sets.iter().map(|set| list(set).iter().filter_map(span).collect());
        let fixed = list(&ipam["addresses"]).iter().filter_map(|one| ip(&one["address"])).collect();
        Self { ranges: ranges.collect(), fixed, plan: Arc::new(plan) }
    }
}

/// A directory of `host-local`.
#[derive(Debug, Clone, Default, Hash)]
struct Files {
    reservations: BTreeMap<IpAddr, Pod>,
    last: BTreeMap<usize, IpAddr>,
}

#[derive(Debug, Clone)]
pub struct Machine {
    pub name: String,
    rate: u32,
    /// Whether it reaches the API server.
    pub is_connected: bool,
    /// The addresses in the network namespaces of pods, by pod.
    pub attached: BTreeMap<Pod, Vec<IpAddr>>,
    books: BTreeMap<String, Files>,
    /// The journal.
    pub plans: BTreeMap<Pod, Record>,
    /// What the agent has in memory.
    memory: Memory,
    /// Since when the Node object has been gone.
    pub gone_since: Option<Seconds>,
    /// Deafness: how often etcd had been restored when the agent listed its blocks.
    listed: u32,
    listed_at: Seconds,
}

#[derive(Debug, Clone, Default)]
struct Memory {
    config: Arc<Config>,
    own: OwnBlocks,
    heard: Seconds,
    book: Book,
    withdrawn: BTreeMap<String, Seconds>,
    strangers: BTreeMap<String, Seconds>,
    histories: BTreeMap<(NetworkName, Family), UseHistory>,
    /// Leases of this node, each with the time when it was taken, if no plan has named it since.
    leases: BTreeMap<String, Option<Seconds>>,
    /// Pods whose leases are taken, and which are to be journalled, each with the time when they were taken.
    taken: BTreeMap<Pod, Seconds>,
}

impl Machine {
    pub fn new(name: &str, rate: u32) -> Self {
        Self {
            name: name.to_owned(),
            rate,
            is_connected: true,
            attached: BTreeMap::new(),
            books: BTreeMap::new(),
            plans: BTreeMap::new(),
            memory: Memory::default(),
            gone_since: None,
            listed: 0,
            listed_at: 0,
        }
    }

    /// The agent dies, and the next one begins with lists and its journal.
    pub fn crash(&mut self) {
        self.memory = Memory::default();
    }

    /// Whether a watch has something new.
    pub fn is_behind(&self, server: &Server) -> bool {
        self.is_connected
            && (self.memory.config.version != server.config.version
                || self.memory.own.known.as_ref().is_none_or(|known| {
                    let now = self.blocks_of(server).into_iter();
                    now.map(|(name, block)| (name.clone(), block.after(known.get(&name)))).ne(known.clone())
                }))
    }

    fn blocks_of(&self, server: &Server) -> BTreeMap<String, OwnBlock> {
        let own = server.blocks.values().filter(|block| block.spec.node == self.name);
        own.filter_map(|block| OwnBlock::of(block.as_ref().clone())).collect()
    }

    /// The watches show what there is.
    pub fn see(&mut self, server: &Server, now: Seconds) {
        if !self.is_connected {
            return;
        }
        self.memory.config = Arc::clone(&server.config);
        self.hear(server, now);
    }

    /// The watch of blocks shows what there is.
    pub fn hear(&mut self, server: &Server, now: Seconds) {
        self.memory.heard = now;
        // A watch of before hears nothing of a restored etcd, but lists again within half of the time after
        // which it is stale.
        let is_over = now - self.listed_at >= SAFETY / 2;
        if self.memory.own.known.is_none() || is_over || self.listed == server.restored {
            (self.listed, self.listed_at) = (server.restored, now);
            let before = self.memory.own.known.take().unwrap_or_default();
            let after = self.blocks_of(server).into_iter().map(|(name, block)| {
                let block = block.after(before.get(&name));
                (name, block)
            });
            self.memory.own.known = Some(after.collect());
        }
    }

    fn is_stale(&self, now: Seconds) -> bool {
        (now - self.memory.heard) * self.rate / 100 > SAFETY / 2
    }

    fn addresses(&self, now: Seconds) -> BTreeMap<NetworkName, NodeAddresses> {
        let own = OwnBlocks { is_stale: self.is_stale(now), ..self.memory.own.clone() };
        let accepted = self.memory.config.networks.iter().filter(|(_, (_, is_accepted))| *is_accepted);
        let networks = accepted.map(|(name, (spec, _))| (name.clone(), spec.clone())).collect();
        let scarce = self.memory.config.networks.keys().cloned().collect();
        door::addresses(&networks, &scarce, &self.memory.config.pools, &own)
    }

    fn spec(&self, network: &NetworkName) -> Option<&ClaimNetworkSpec> {
        self.memory.config.networks.get(network).map(|(spec, _)| spec)
    }

    /// The names under which `host-local` may have files of a ClaimNetwork.
    fn lists(&self, network: &NetworkName) -> BTreeSet<String> {
        let of_plans = self.plans.values().filter(|record| record.plan.network == network.as_str());
        let of_plans = of_plans.map(|record| record.plan.spec.conflist.name().to_string());
        let of_spec = self.spec(network).map(|spec| spec.list_name(network));
        of_plans.chain(of_spec).chain([conflist_name(network.as_str())]).collect()
    }

    /// The addresses that `host-local` has handed out to others than attachments.
    fn foreign(&self, network: &NetworkName) -> BTreeSet<IpAddr> {
        let lists = self.lists(network);
        let files = lists.iter().filter_map(|list| self.books.get(list)).flat_map(|book| &book.reservations);
        files.filter(|(_, pod)| !self.plans.contains_key(pod)).map(|(ip, _)| *ip).collect()
    }

    /// What others than the pod have.
    fn taken(&self, pod: Pod, network: &NetworkName) -> TakenAddresses {
        let foreign = BTreeMap::from([(network.clone(), self.foreign(network))]);
        let mut taken = TakenAddresses::new(foreign, self.memory.book.clone());
        for (_, record) in self.plans.iter().filter(|(other, _)| **other != pod) {
            taken.add(&record.plan);
        }
        taken
    }

    fn plan_of(&self, pod: Pod, server: &Server, now: Seconds) -> Option<Plan> {
        let object = server.pods.get(&pod)?;
        let network = &object.network;
        let of_node = self.addresses(now).remove(network)?;
        let taken = self.taken(pod, network);
        let spec = self.spec(network)?;
        door::plan(&pod.to_string(), (network, spec), &of_node, object.asked, &taken).ok()
    }

    /// Whether a Prepare of the pod could do something.
    pub fn can_prepare(&self, pod: Pod, server: &Server) -> bool {
        self.is_connected
            && !self.plans.contains_key(&pod)
            && !self.attached.contains_key(&pod)
            && self.memory.own.known.is_some()
            && server.pods.get(&pod).is_some_and(|object| object.node == self.name && !object.is_deleting)
    }

    /// NodePrepareResources: takes the leases of a claim that asks for an address, or journals a plan.
    pub fn prepare(&mut self, pod: Pod, server: &mut Server, now: Seconds) {
        if !self.can_prepare(pod, server) {
            return;
        }
        let Some(plan) = self.plan_of(pod, server, now) else { return };
        let leases = plan.owner.addresses.iter().flat_map(|addresses| &addresses.leases);
        let leases: Vec<_> = leases.cloned().collect();
        let is_taken = self.memory.taken.get(&pod).is_some_and(|since| now - since <= PREPARE);
        if !leases.is_empty() && !is_taken {
            let of_node = self.addresses(now);
            let of_network = plan.network.parse().ok().and_then(|name: NetworkName| of_node.get(&name));
            for asked in leases {
                let (Some(ip), Some(of_network)) = (asked.ip, of_network) else { return };
                match server.leases.get(&asked.lease) {
                    None => {
                        let names = blocks_of(of_network, ip);
                        let is_meant = |(name, block): &(&String, &Arc<AddressBlock>)| {
                            block.spec.network.as_str() == plan.network || names.contains(name)
                        };
                        if server.blocks.iter().filter(is_meant).any(|(_, block)| block.spec.hands_out(ip)) {
                            return;
                        }
                        let Ok(network) = plan.network.parse() else { return };
                        let holder = holder(HolderKind::ResourceClaim, pod);
                        let spec = AddressLeaseSpec {
                            pool: asked.pool,
                            network,
                            address: Some(ip),
                            mac: None,
                            holder,
                        };
                        server.create_lease(&asked.lease, spec);
                    }
                    Some(lease) if lease.spec.holder.uid != claim_uid(pod) => return,
                    Some(lease) if lease.metadata.deletion_timestamp.is_some() => return,
                    Some(lease) => {
                        let node = lease.status.as_ref().and_then(|status| status.node.as_deref());
                        if node.is_some_and(|node| node != self.name) {
                            return;
                        }
                    }
                }
                server.set_lease_node(&asked.lease, Some(&self.name));
                self.memory.leases.insert(asked.lease, Some(now));
            }
            self.memory.taken.insert(pod, now);
            return;
        }
        self.memory.taken.remove(&pod);
        self.memory.book.note(&plan);
        self.plans.insert(pod, Record::of(plan));
    }

    pub fn can_add(&self, pod: Pod) -> bool {
        self.plans.contains_key(&pod) && !self.attached.contains_key(&pod)
    }

    /// The ADD of a planned attachment, whose plan is made again if it has not its addresses any more.
    /// Without the API server, too.
    pub fn add(&mut self, pod: Pod, now: Seconds) {
        let Some(record) = self.plans.get(&pod).filter(|_| !self.attached.contains_key(&pod)) else { return };
        // Without any word since the agent's start, it is carried out as it is.
        if self.memory.own.known.is_some() {
            let Ok(network) = record.plan.network.parse::<NetworkName>() else { return };
            let own = OwnBlocks { is_stale: self.is_stale(now), ..self.memory.own.clone() };
            let (of_node, taken) = (self.addresses(now), self.taken(pod, &network));
            let spec = (&network, self.spec(&network));
            match door::revised(&record.plan, spec, of_node.get(&network), &own, &taken) {
                Ok(None) => {}
                Ok(Some(plan)) => {
                    self.memory.book.note(&plan);
                    self.plans.insert(pod, Record::of(plan));
                }
                Err(_) => return,
            }
        }
        let Some(record) = self.plans.get(&pod) else { return };
        if !record.fixed.is_empty() {
            self.attached.insert(pod, record.fixed.clone());
            return;
        }
        let book = self.books.entry(record.plan.spec.conflist.name().to_string()).or_default();
        let mut addresses = Vec::new();
        for (set, ranges) in record.ranges.iter().enumerate() {
            // As host-local: the first free address after the last one.
            let all: Vec<IpAddr> = ranges.iter().flat_map(|span| span_addresses(*span)).collect();
            let last = book.last.get(&set);
            let start = last.and_then(|last| all.iter().position(|ip| ip == last)).map_or(0, |at| at + 1);
            let order = all.iter().cycle().skip(start).take(all.len());
            let Some(ip) = order.copied().find(|ip| !book.reservations.contains_key(ip)) else {
                // A failed ADD gives back what it had.
                book.reservations.retain(|_, holder| *holder != pod);
                return;
            };
            book.reservations.insert(ip, pod);
            book.last.insert(set, ip);
            addresses.push(ip);
        }
        self.attached.insert(pod, addresses);
    }

    /// The DEL of an attachment. The plan stays, for the pod's next sandbox.
    pub fn del(&mut self, pod: Pod) {
        if let Some(record) = self.plans.get(&pod)
            && let Some(book) = self.books.get_mut(record.plan.spec.conflist.name().as_str())
        {
            book.reservations.retain(|_, holder| *holder != pod);
        }
        self.attached.remove(&pod);
    }

    /// NodeUnprepareResources, after every DEL.
    pub fn unprepare(&mut self, pod: Pod) {
        self.del(pod);
        self.plans.remove(&pod);
        self.memory.taken.remove(&pod);
    }

    /// Pods that the kubelet ends: those that are deleted, or that the API server does not know.
    pub fn ending(&self, server: &Server) -> Vec<Pod> {
        let known: BTreeSet<Pod> = self.plans.keys().chain(self.attached.keys()).copied().collect();
        let is_over = |pod: &Pod| server.pods.get(pod).is_none_or(|object| object.is_deleting);
        known.into_iter().filter(is_over).collect()
    }

    fn uses(&self) -> BTreeMap<(String, IpNet), (u64, Vec<BlockHolder>)> {
        let mut uses: BTreeMap<(String, IpNet), (u64, Vec<BlockHolder>)> = BTreeMap::new();
        for (pod, record) in &self.plans {
            for block in record.plan.owner.addresses.iter().flat_map(|addresses| addresses.blocks()) {
                let (count, holders) = uses.entry((record.plan.network.clone(), block)).or_default();
                *count += 1;
                holders.push(BlockHolder { pod: format!("default/{pod}"), address: None });
            }
        }
        uses
    }

    /// One look of the keepers of blocks and leases.
    pub fn keep(&mut self, server: &mut Server, now: Seconds) {
        let Some(own) = self.memory.own.known.clone().filter(|_| self.is_connected) else { return };
        let of_node = self.addresses(now);
        // What the status of claims says.
        for (pod, addresses) in &self.attached {
            if server.pods.get(pod).is_some_and(|object| object.written != *addresses)
                && let Some(object) = Arc::make_mut(&mut server.pods).get_mut(pod)
            {
                object.written = addresses.clone();
            }
        }
        self.let_go(&own, server, now);
        self.decide(&own, &of_node, server, now);
        let uses = self.uses();
        let is_stranger = |block: &OwnBlock| {
            !block.is_deleting
                && !uses.contains_key(&(block.spec.network.to_string(), block.spec.cidr))
                && !of_node.contains_key(&block.spec.network)
        };
        self.memory
            .strangers
            .retain(|uid, _| own.values().any(|block| block.uid == *uid && is_stranger(block)));
        for (name, block) in own.iter().filter(|(_, block)| is_stranger(block)) {
            let since = *self.memory.strangers.entry(block.uid.clone()).or_insert(now);
            if now - since >= IDLE.as_secs() as Seconds {
                server.delete_block(name, Some(&block.uid), now);
            }
        }
        let planned: BTreeSet<String> = self
            .plans
            .values()
            .flat_map(|record| &record.plan.owner.addresses)
            .flat_map(|addresses| addresses.leases.iter().map(|asked| asked.lease.clone()))
            .collect();
        for lease in &planned {
            self.memory.leases.insert(lease.clone(), None);
        }
        for (name, lease) in server.leases.iter() {
            let node = lease.status.as_ref().and_then(|status| status.node.as_ref());
            if node == Some(&self.name) {
                self.memory.leases.entry(name.clone()).or_insert(None);
            }
        }
        let had: BTreeSet<IpAddr> = self.attached.values().flatten().copied().collect();
        let is_had = |lease: &String| {
            let address = server.leases.get(lease).and_then(|lease| lease.spec.address);
            address.is_some_and(|ip| had.contains(&ip))
        };
        let is_old = |since: &Option<Seconds>| since.is_none_or(|since| now - since >= UNPLANNED);
        let unused: Vec<String> = (self.memory.leases.iter())
            .filter(|(lease, since)| !planned.contains(*lease) && !is_had(lease) && is_old(since))
            .map(|(lease, _)| lease.clone())
            .collect();
        for lease in unused {
            let is_ours = |node: &String| *node == self.name;
            let of_lease = server.leases.get(&lease).and_then(|lease| lease.status.as_ref()?.node.as_ref());
            if of_lease.is_some_and(is_ours) {
                server.set_lease_node(&lease, None);
            }
            self.memory.leases.remove(&lease);
        }
    }

    fn let_go(&mut self, own: &BTreeMap<String, OwnBlock>, server: &mut Server, now: Seconds) {
        self.memory.withdrawn.retain(|uid, _| own.values().any(|block| block.uid == *uid));
        for (name, block) in own.iter().filter(|(_, block)| block.is_deleting && block.finalizer.is_some()) {
            let since = *self.memory.withdrawn.entry(block.uid.clone()).or_insert(now);
            if now - since < WITHDRAWN {
                continue;
            }
            self.memory.book.retired.insert(block.uid.clone());
            let network = block.spec.network.as_str();
            if let Some((used, holders)) = self.uses().remove(&(network.to_owned(), block.spec.cidr)) {
                let status = AddressBlockStatus {
                    used: i64::try_from(used).ok(),
                    wanted: block.status.wanted,
                    holders,
                };
                server.report(name, status);
                continue;
            }
            let lists = self.lists(&block.spec.network);
            let all = Span::of_net(block.spec.cidr);
            let is_reserved = |list: &String| {
                self.books.get(list).is_some_and(|book| book.reservations.keys().any(|ip| all.contains(*ip)))
            };
            if !lists.iter().any(is_reserved) {
                server.remove_finalizer(name, Some(&block.uid));
            }
        }
        for name in self.memory.book.come_back(own) {
            let uid = own.get(name).map(|block| block.uid.as_str());
            server.delete_block(name, uid, now);
        }
        self.memory.book.retired.retain(|uid| own.values().any(|block| block.uid == *uid));
    }

    fn decide(
        &mut self,
        own: &BTreeMap<String, OwnBlock>,
        of_node: &BTreeMap<NetworkName, NodeAddresses>,
        server: &mut Server,
        now: Seconds,
    ) {
        let uses = self.uses();
        self.memory.histories.retain(|(network, _), _| of_node.contains_key(network));
        for (network, leased) in of_node {
            let Some(pool) = &leased.pool else { continue };
            let taken = self.foreign(network);
            for family in pool.families() {
                let of_family = leased.blocks.iter().filter(|block| block.family() == family);
                let blocks: Vec<BlockNow> = of_family
                    .filter_map(|block| {
                        let (name, object) = own.iter().find(|(_, object)| object.uid == block.uid)?;
                        let used = uses.get(&(network.to_string(), block.cidr)).map(|(used, _)| *used);
                        Some(BlockNow {
                            name: name.clone(),
                            usable: u64::try_from(block.free_of(&taken)).ok()?,
                            used: used.unwrap_or_default(),
                            reported_used: object.status.used,
                            reported_wanted: object.status.wanted,
                        })
                    })
                    .collect();
                let history = self.memory.histories.entry((network.clone(), family)).or_default();
                let decision = history.look(&blocks, leased.is_scarce, instant(now, self.rate));
                for (name, report) in decision.reports {
                    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
                    let wanted = report.wanted.map(|wanted| number(wanted).min(MAX_WANTED));
                    let status =
                        AddressBlockStatus { used: Some(number(report.used)), wanted, holders: Vec::new() };
                    server.report(&name, status);
                }
                if let Some(name) = decision.give_back {
                    let uid = own.get(&name).map(|block| block.uid.as_str());
                    server.delete_block(&name, uid, now);
                }
            }
        }
    }
}

/// Returns the addresses of a span; of a large one, the first ones.
pub fn span_addresses(span: Span) -> impl Iterator<Item = IpAddr> {
    let next =
        move |ip: &IpAddr| netclaim_api::addresses::nth_after(*ip, 1).filter(|next| span.contains(*next));
    std::iter::successors(Some(span.first()), next).take(256)
}

impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.is_connected, &self.attached, &self.books, self.gone_since, self.listed).hash(state);
        for (pod, record) in &self.plans {
            (pod, record.plan.spec.conflist.name().as_str(), &record.fixed).hash(state);
            for span in record.ranges.iter().flatten() {
                (span.first(), span.last()).hash(state);
            }
        }
        let memory = &self.memory;
        (memory.config.version, memory.heard, &memory.book, &memory.withdrawn).hash(state);
        (&memory.strangers, &memory.histories, &memory.leases, &memory.taken).hash(state);
        for (name, block) in memory.own.known.iter().flatten() {
            (name, &block.uid, block.is_deleting, block.is_retired, block.finalizer).hash(state);
            (block.status.used, block.status.wanted, block.status.holders.len()).hash(state);
        }
    }
}
