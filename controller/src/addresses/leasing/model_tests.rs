//! A simulation of a cluster in which everything goes wrong: two controllers act at once on old views,
//! requests come late or fail, agents crash and are cut off, nodes disappear and come back, and clocks differ
//! by 1 %. The model of the agent does what `docs/decisions/0013-address-blocks.md` says.
//!
//! `NETCLAIM_SEED` repeats one case, `NETCLAIM_CASES` runs more of them.

use std::collections::btree_map::Entry;

use netclaim_api::addresses::Span;
use serde_json::json;

use super::*;
use crate::demand::{Need, Places};

/// Seeds of a run; each is another cluster.
const CASES: u64 = 60;
/// Steps in which things go wrong.
const CHAOS: usize = 200;
/// Seconds of an empty block before the agent gives it back.
const EMPTY: f64 = 300.0;

/// A small generator of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    /// How fast a clock runs.
    fn rate(&mut self) -> f64 {
        0.99 + self.below(21) as f64 / 1000.0
    }
}

/// An AddressBlock in the API server.
#[derive(Clone)]
struct Stored {
    uid: String,
    spec: AddressBlockSpec,
    created: i64,
    is_deleting: bool,
    used: Option<i64>,
    wanted: Option<i64>,
}

/// The objects that the API server stores.
#[derive(Clone, Default)]
struct Api {
    blocks: BTreeMap<String, Stored>,
    nodes: BTreeSet<String>,
    networks: BTreeMap<NetworkName, Draw>,
    waiting: Waiting,
    /// AddressLeases of claims.
    held: BTreeSet<HeldAddress>,
    last_uid: u64,
}

impl Api {
    fn create(&mut self, spec: AddressBlockSpec, time: f64) {
        self.last_uid += 1;
        let uid = self.last_uid.to_string();
        if let Entry::Vacant(entry) = self.blocks.entry(spec.name()) {
            let created = time as i64;
            entry.insert(Stored { uid, spec, created, is_deleting: false, used: None, wanted: None });
        }
    }

    fn delete(&mut self, name: &str, uid: Option<&str>) {
        if let Some(block) = self.blocks.get_mut(name)
            && uid.is_none_or(|uid| uid == block.uid)
        {
            block.is_deleting = true;
        }
    }

    /// Removes the finalizer.
    fn release(&mut self, name: &str, uid: &str) {
        if self.blocks.get(name).is_some_and(|block| block.uid == uid && block.is_deleting) {
            self.blocks.remove(name);
        }
    }
}

enum Request {
    Create(AddressBlockSpec),
    Delete(Removal),
    Release(Removal, String),
}

struct Controller {
    leasing: Leasing,
    rate: f64,
    view: Option<Api>,
    /// Nodes that have existed since the last view: a watch shows every event, however late.
    seen: BTreeSet<String>,
    pending: BTreeMap<String, (AddressBlockSpec, f64)>,
    /// Requests under way, and when they arrive.
    requests: Vec<(f64, Request)>,
    moves: usize,
}

impl Controller {
    fn new(random: &mut Random) -> Self {
        Self {
            leasing: Leasing::new(SAFETY),
            rate: random.rate(),
            view: None,
            seen: BTreeSet::new(),
            pending: BTreeMap::new(),
            requests: Vec::new(),
            moves: 0,
        }
    }

    fn plan(
        &mut self,
        (pools, held): (&BTreeMap<PoolKey, AddressPoolSpec>, &BTreeSet<HeldAddress>),
        base: Instant,
        time: f64,
        random: &mut Random,
    ) {
        let Some(view) = &self.view else { return };
        let now = base + Duration::from_secs_f64(time * self.rate);
        let block = |stored: &Stored| Block {
            uid: stored.uid.clone(),
            spec: stored.spec.clone(),
            phase: if stored.is_deleting { Phase::Deleting } else { Phase::Live },
            has_finalizer: true,
            created: Timestamp::from_second(stored.created).ok(),
            used: stored.used,
            wanted: stored.wanted,
            reported: base,
            holders: Vec::new(),
        };
        let mut blocks: BTreeMap<String, Block> =
            view.blocks.iter().map(|(name, stored)| (name.clone(), block(stored))).collect();
        self.pending.retain(|name, (_, since)| !blocks.contains_key(name) && time - *since < 30.0);
        for (name, (spec, _)) in &self.pending {
            let stored = Stored {
                uid: String::new(),
                spec: spec.clone(),
                created: 0,
                is_deleting: false,
                used: None,
                wanted: None,
            };
            blocks.insert(name.clone(), Block { phase: Phase::Pending, ..block(&stored) });
        }
        // The ranges of a ClaimNetwork go with it.
        let draws = |key: &PoolKey| {
            view.networks.values().any(|draw| matches!(draw, Draw::From { pool, .. } if pool == key))
        };
        let pools = pools.iter().filter(|(key, _)| matches!(key, PoolKey::Pool(_)) || draws(key));
        // Each pod that waits needs several addresses.
        let mut needs = Needs::new();
        for (network, places) in
            view.waiting.iter().flat_map(|(network, all)| all.iter().map(move |one| (network, one)))
        {
            if let Places::Nodes(nodes) = places {
                let need = Need { used: 1, wanted: 3 };
                needs.extend(nodes.iter().map(|node| ((network.clone(), node.clone()), need)));
            }
        }
        let world = World {
            networks: &view.networks,
            pools: &pools.map(|(key, spec)| (key.clone(), spec.clone())).collect(),
            sizes: &BTreeMap::new(),
            blocks: &blocks,
            held,
            avoided: &BTreeMap::new(),
            lease_nodes: &BTreeSet::new(),
            nodes: &view.nodes,
            unready: &BTreeSet::new(),
            waiting: &view.waiting,
            needs: &needs,
        };
        let plan = self.leasing.plan(&world, now);
        self.moves += plan.delete.iter().filter(|removal| removal.why == Why::Moved).count();
        let mut send = |request| self.requests.push((time + random.below(20) as f64, request));
        for spec in plan.create {
            self.pending.insert(spec.name(), (spec.clone(), time));
            send(Request::Create(spec));
        }
        for removal in plan.delete {
            send(Request::Delete(removal));
        }
        for removal in plan.release {
            let node = blocks[&removal.name].spec.node.clone();
            send(Request::Release(removal, node));
        }
    }

    /// Lets the requests arrive that are due; some fail.
    fn deliver(&mut self, api: &mut Api, time: f64, failures: usize, random: &mut Random) {
        let (due, later) = std::mem::take(&mut self.requests).into_iter().partition(|(at, _)| *at <= time);
        self.requests = later;
        for (_, request) in due {
            if random.chance(failures) {
                continue;
            }
            match request {
                Request::Create(spec) => api.create(spec, time),
                Request::Delete(removal) => api.delete(&removal.name, Some(&removal.uid)),
                Request::Release(removal, node) => {
                    if !api.nodes.contains(&node) {
                        api.release(&removal.name, &removal.uid);
                    }
                }
            }
        }
    }
}

/// The addresses of a pod, each with its block.
struct PodPlan {
    network: NetworkName,
    addresses: Vec<(String, IpAddr)>,
}

struct Agent {
    rate: f64,
    is_connected: bool,
    /// Its blocks, as it saw them last; `None` after a crash.
    view: Option<BTreeMap<String, Stored>>,
    heard: f64,
    /// The journal, which a crash does not lose.
    pods: BTreeMap<u64, PodPlan>,
    empty_since: BTreeMap<String, f64>,
    /// When the Node object was deleted.
    removed: Option<f64>,
}

impl Agent {
    fn new(random: &mut Random) -> Self {
        Self {
            rate: random.rate(),
            is_connected: true,
            view: None,
            heard: 0.0,
            pods: BTreeMap::new(),
            empty_since: BTreeMap::new(),
            removed: None,
        }
    }

    /// Gives a pod an address of each family, of the fullest block that has one.
    fn attach(&mut self, pod: u64, network: &NetworkName, spec: &AddressPoolSpec, time: f64) -> bool {
        let Some(view) = &self.view else { return false };
        if (time - self.heard) * self.rate > SAFETY.as_secs_f64() / 2.0 {
            return false;
        }
        let taken: BTreeSet<IpAddr> =
            self.pods.values().flat_map(|pod| &pod.addresses).map(|(_, ip)| *ip).collect();
        let mut addresses = Vec::new();
        for family in spec.families() {
            let usable = view.iter().filter(|(_, block)| {
                !block.is_deleting
                    && block.spec.network == *network
                    && Family::of(block.spec.cidr.addr()) == family
            });
            let free = usable.filter_map(|(name, block)| {
                let free: Vec<IpAddr> = block
                    .spec
                    .cidr
                    .hosts()
                    .filter(|ip| {
                        !taken.contains(ip) && block.spec.usable(spec).iter().any(|span| span.contains(*ip))
                    })
                    .collect();
                Some((free.len(), name.clone(), *free.first()?))
            });
            let Some((_, name, ip)) = free.min() else { return false };
            addresses.push((name, ip));
        }
        self.pods.insert(pod, PodPlan { network: network.clone(), addresses });
        true
    }

    /// Reports, and gives back what it can.
    fn report(&mut self, node: &str, api: &mut Api, wanting: &BTreeMap<NetworkName, i64>, time: f64) {
        if !self.is_connected {
            return;
        }
        let own = api.blocks.iter().filter(|(_, block)| block.spec.node == node);
        let own: BTreeMap<String, Stored> = own.map(|(name, block)| (name.clone(), block.clone())).collect();
        self.heard = time;
        let used = |name: &str| {
            self.pods.values().flat_map(|pod| &pod.addresses).filter(|(block, _)| block == name).count()
                as i64
        };
        let mut live: BTreeMap<(NetworkName, Family), i64> = BTreeMap::new();
        for (name, block) in &own {
            if block.is_deleting && used(name) == 0 {
                api.release(name, &block.uid);
            } else if !block.is_deleting {
                let family = Family::of(block.spec.cidr.addr());
                *live.entry((block.spec.network.clone(), family)).or_default() += 1;
            }
        }
        self.empty_since.retain(|name, _| own.get(name).is_some_and(|block| !block.is_deleting));
        for (name, block) in own.iter().filter(|(_, block)| !block.is_deleting) {
            let used = used(name);
            let pods = self.pods.values().filter(|pod| pod.network == block.spec.network).count() as i64;
            let wanted = pods + wanting.get(&block.spec.network).copied().unwrap_or_default();
            if let Some(stored) = api.blocks.get_mut(name) {
                (stored.used, stored.wanted) = (Some(used), Some(wanted));
            }
            if used > 0 {
                self.empty_since.remove(name);
                continue;
            }
            let since = *self.empty_since.entry(name.clone()).or_insert(time);
            let family = Family::of(block.spec.cidr.addr());
            let left = live.entry((block.spec.network.clone(), family)).or_default();
            if (time - since) * self.rate > EMPTY && *left > 1 && wanted == 0 {
                *left -= 1;
                api.delete(name, Some(&block.uid));
            }
        }
        let own = api.blocks.iter().filter(|(_, block)| block.spec.node == node);
        self.view = Some(own.map(|(name, block)| (name.clone(), block.clone())).collect());
    }
}

struct Cluster {
    seed: u64,
    random: Random,
    base: Instant,
    time: f64,
    api: Api,
    pools: BTreeMap<PoolKey, AddressPoolSpec>,
    /// When the reserved addresses of each pool were last changed.
    reserved: BTreeMap<PoolKey, f64>,
    /// The ClaimNetworks that there are at times, with what they draw from.
    networks: BTreeMap<NetworkName, PoolKey>,
    controllers: Vec<Controller>,
    agents: BTreeMap<String, Agent>,
    /// Pods that no node could take yet, with the node that they must run on.
    waiting: BTreeMap<u64, (NetworkName, String)>,
    last_pod: u64,
    /// Claims that got the address that they asked for.
    claims: usize,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let nodes: Vec<String> = (0..2 + random.below(4)).map(|node| format!("n{node}")).collect();
        let spec = |random: &mut Random, index: u8| {
            let end = [15, 31, 63][random.below(3)];
            let mut ranges = vec![
                json!({"subnet": format!("10.{index}.0.0/24"), "rangeEnd": format!("10.{index}.0.{end}")}),
            ];
            if random.chance(50) {
                ranges.push(json!({"subnet": format!("fd0{index}::/64")}));
            }
            let sizes = json!({"ipv4": 29 + random.below(2), "ipv6": 126});
            serde_json::from_value::<AddressPoolSpec>(json!({"ranges": ranges, "blockSize": sizes})).unwrap()
        };
        let name = |name: &str| name.parse::<NetworkName>().unwrap();
        let (own, lan) = (PoolKey::Network(name("own")), PoolKey::Pool("lan".into()));
        let pools =
            BTreeMap::from([(own.clone(), spec(&mut random, 1)), (lan.clone(), spec(&mut random, 2))]);
        let networks = BTreeMap::from([(name("own"), own), (name("red"), lan.clone()), (name("blue"), lan)]);
        let agents = nodes.iter().map(|node| (node.clone(), Agent::new(&mut random))).collect();
        let controllers = vec![Controller::new(&mut random), Controller::new(&mut random)];
        let mut cluster = Self {
            seed,
            random,
            base: Instant::now(),
            time: 0.0,
            api: Api { nodes: nodes.into_iter().collect(), ..Api::default() },
            pools,
            reserved: BTreeMap::new(),
            networks,
            controllers,
            agents,
            waiting: BTreeMap::new(),
            last_pod: 0,
            claims: 0,
        };
        cluster.restore_networks();
        cluster
    }

    fn restore_networks(&mut self) {
        let nodes: BTreeSet<String> = self.agents.keys().cloned().collect();
        let draws = self.networks.iter().map(|(name, pool)| {
            (name.clone(), Draw::From { pool: pool.clone(), nodes: nodes.clone(), selected: nodes.clone() })
        });
        self.api.networks = draws.collect();
    }

    /// Lets one thing go wrong, or a pod come or go.
    fn disturb(&mut self) {
        let nodes: Vec<String> = self.agents.keys().cloned().collect();
        let networks: Vec<NetworkName> = self.networks.keys().cloned().collect();
        let node = self.random.one(&nodes).unwrap().clone();
        let network = self.random.one(&networks).unwrap().clone();
        match self.random.below(100) {
            0..36 => {
                self.last_pod += 1;
                self.waiting.insert(self.last_pod, (network, node));
            }
            36..60 => {
                let pods: Vec<u64> = self.agents[&node].pods.keys().copied().collect();
                if let Some(pod) = self.random.one(&pods) {
                    self.agents.get_mut(&node).unwrap().pods.remove(pod);
                }
            }
            60..64 => self.reserve(&network),
            64..69 => self.ask(&network),
            69..70 => {
                let waiting: Vec<u64> = self.waiting.keys().copied().collect();
                if let Some(pod) = self.random.one(&waiting) {
                    self.waiting.remove(pod);
                }
            }
            70..76 => {
                let agent = self.agents.get_mut(&node).unwrap();
                agent.is_connected = !agent.is_connected;
            }
            76..79 => self.agents.get_mut(&node).unwrap().view = None,
            79..85 => self.toggle_node(&node),
            85..88 => {
                let index = self.random.below(2);
                self.controllers[index] = Controller::new(&mut self.random);
            }
            88..91 => {
                if self.api.networks.remove(&network).is_none() {
                    self.restore_networks();
                }
            }
            91..94 => {
                if let Some(draw) = self.api.networks.get_mut(&network) {
                    *draw = Draw::Unknown;
                }
            }
            94..97 => self.restore_networks(),
            _ => {
                let blocks: Vec<String> = self.api.blocks.keys().cloned().collect();
                if let Some(name) = self.random.one(&blocks) {
                    self.api.delete(name, None);
                }
            }
        }
        self.waiting.retain(|_, (_, node)| self.api.nodes.contains(node));
    }

    /// Reserves four other addresses of the ClaimNetwork's pool, or none.
    fn reserve(&mut self, network: &NetworkName) {
        let key = &self.networks[network];
        let spec = self.pools.get_mut(key).unwrap();
        let first = u32::try_from(self.random.below(60)).unwrap();
        let IpAddr::V4(net) = spec.ranges[0].subnet.network() else { return };
        let ip = |n: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(net.to_bits() + n));
        let span = Span::new(ip(first), ip(first + 3)).filter(|_| self.random.chance(70));
        spec.reserved = span.into_iter().collect();
        self.reserved.insert(key.clone(), self.time);
    }

    /// Lets a claim ask for a reserved address, or go. An agent refuses an address that a block has. People
    /// ask for what they reserved a minute ago, so that no block with it is under way.
    fn ask(&mut self, network: &NetworkName) {
        let key = &self.networks[network];
        let Some(span) = self.pools[key].reserved.first() else { return };
        let (network, holder) = (network.clone(), "a claim".into());
        let held = HeldAddress { pool: key.clone(), network, address: span.first(), holder };
        let of_block = |block: &Stored| {
            block.spec.key() == *key && block.spec.ranges.iter().any(|range| range.contains(held.address))
        };
        let is_known = self.time - self.reserved[key] > 60.0;
        if self.api.held.remove(&held) || !is_known || self.api.blocks.values().any(of_block) {
            return;
        }
        self.api.held.insert(held);
        self.claims += 1;
    }

    /// Deletes a Node object, or lets the node register again.
    fn toggle_node(&mut self, node: &str) {
        let agent = self.agents.get_mut(node).unwrap();
        if self.api.nodes.remove(node) {
            agent.removed = Some(self.time);
            return;
        }
        self.api.nodes.insert(node.to_owned());
        // The pods of a node that was away for long have been deleted.
        if let Some(removed) = agent.removed.take()
            && self.time - removed > 0.9 * SAFETY.as_secs_f64()
        {
            agent.pods.clear();
        }
    }

    fn step(&mut self, is_healthy: bool) {
        self.time += 1.0 + self.random.below(20) as f64;
        let mut wanting: BTreeMap<String, BTreeMap<NetworkName, i64>> = BTreeMap::new();
        for (network, node) in self.waiting.values() {
            *wanting.entry(node.clone()).or_default().entry(network.clone()).or_default() += 1;
        }
        let none = BTreeMap::new();
        for (node, agent) in &mut self.agents {
            if is_healthy || self.random.chance(80) {
                agent.report(node, &mut self.api, wanting.get(node).unwrap_or(&none), self.time);
            }
        }
        let (agents, pools, networks, time) = (&mut self.agents, &self.pools, &self.networks, self.time);
        self.waiting.retain(|pod, (network, node)| {
            !agents.get_mut(node).unwrap().attach(*pod, network, &pools[&networks[network]], time)
        });
        self.api.waiting.clear();
        for (network, node) in self.waiting.values() {
            let places = Places::Nodes(BTreeSet::from([node.clone()]));
            self.api.waiting.entry(network.clone()).or_default().insert(places);
        }
        for controller in &mut self.controllers {
            let percent = if is_healthy { 100 } else { 60 };
            controller.seen.extend(self.api.nodes.iter().cloned());
            if self.random.chance(percent) {
                let nodes = std::mem::take(&mut controller.seen);
                controller.view = Some(Api { nodes, ..self.api.clone() });
            }
            controller.plan((&self.pools, &self.api.held), self.base, self.time, &mut self.random);
            let failures = if is_healthy { 0 } else { 15 };
            controller.deliver(&mut self.api, self.time, failures, &mut self.random);
        }
        self.check();
    }

    /// No two pods or claims have one address of one pool, unless the node of one is gone for the safety
    /// time.
    fn check(&self) {
        let mut holders: BTreeMap<(&PoolKey, IpAddr), (&str, u64)> = BTreeMap::new();
        holders.extend(self.api.held.iter().map(|held| ((&held.pool, held.address), ("a claim", 0))));
        for (node, agent) in &self.agents {
            // A clock of 1 % that runs fast.
            let is_over = |removed: f64| self.time - removed >= 0.98 * SAFETY.as_secs_f64();
            if agent.removed.is_some_and(is_over) {
                continue;
            }
            for (pod, plan) in &agent.pods {
                for (_, ip) in &plan.addresses {
                    let other = holders.insert((&self.networks[&plan.network], *ip), (node.as_str(), *pod));
                    assert!(
                        other.is_none(),
                        "NETCLAIM_SEED={}: at {} s, pod {pod} on {node} has {ip}, and so has {other:?}",
                        self.seed,
                        self.time
                    );
                }
            }
        }
    }

    fn moves(&self) -> usize {
        self.controllers.iter().map(|controller| controller.moves).sum()
    }

    /// Lets everything work again, without pods.
    fn heal(&mut self) {
        self.controllers.truncate(1);
        self.api.held.clear();
        for spec in self.pools.values_mut() {
            spec.reserved.clear();
        }
        self.waiting.clear();
        self.restore_networks();
        let nodes: Vec<String> = self.agents.keys().cloned().collect();
        for node in &nodes {
            if !self.api.nodes.contains(node) {
                self.toggle_node(node);
            }
        }
        for agent in self.agents.values_mut() {
            agent.is_connected = true;
            agent.pods.clear();
        }
        for _ in 0..80 {
            self.step(true);
        }
    }

    /// Each node has at most one block of each family for each ClaimNetwork, and none only if no block is
    /// free.
    fn check_shares(&self) {
        for (network, pool) in &self.networks {
            let spec = &self.pools[pool];
            for (node, family) in self
                .agents
                .keys()
                .flat_map(|node| spec.families().into_iter().map(move |family| (node, family)))
            {
                let of = |block: &&Stored| {
                    block.spec.key() == *pool && Family::of(block.spec.cidr.addr()) == family
                };
                let blocks: Vec<&Stored> = self.api.blocks.values().filter(of).collect();
                let own =
                    blocks.iter().filter(|block| block.spec.network == *network && block.spec.node == *node);
                assert!(
                    blocks.iter().all(|block| !block.is_deleting),
                    "NETCLAIM_SEED={}: a block is stuck",
                    self.seed
                );
                let count = own.count();
                let prefix = spec.block_prefix(family, 1);
                let all = spec.blocks(family, prefix).take(100).count();
                assert!(
                    count == 1 || (count == 0 && blocks.len() >= all),
                    "NETCLAIM_SEED={}: {node} has {count} {family} blocks of {network}; {} of {all} are leased",
                    self.seed,
                    blocks.len()
                );
            }
        }
    }
}

/// Returns how many blocks moved, how many pods there were, and how many claims got the address that they
/// asked for.
fn run(seed: u64) -> (usize, u64, usize) {
    let mut cluster = Cluster::new(seed);
    for _ in 0..CHAOS {
        cluster.disturb();
        cluster.step(false);
    }
    // Each round of a pool takes at most one block for each node; both controllers may make one.
    let rounds = 2 * cluster.pools.len() * (cluster.time / MOVE_INTERVAL.as_secs_f64()) as usize;
    let moves = cluster.moves();
    assert!(moves <= rounds * cluster.agents.len(), "NETCLAIM_SEED={seed}: {moves} moves");
    cluster.heal();
    let before = cluster.moves();
    for _ in 0..30 {
        cluster.step(true);
    }
    assert_eq!(cluster.moves(), before, "NETCLAIM_SEED={seed}: blocks move though no pod waits");
    cluster.check_shares();
    cluster.api.networks.clear();
    for _ in 0..20 {
        cluster.step(true);
    }
    assert_eq!(
        cluster.api.blocks.keys().collect::<Vec<_>>(),
        [""; 0],
        "NETCLAIM_SEED={seed}: blocks without a ClaimNetwork"
    );
    (moves, cluster.last_pod, cluster.claims)
}

#[test]
fn no_two_pods_have_one_address_and_in_the_end_everything_is_free() {
    let seeds = match std::env::var("NETCLAIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..std::env::var("NETCLAIM_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES),
    };
    let (mut moves, mut pods, mut claims) = (0, 0, 0);
    for seed in seeds {
        let (of_case, pods_of_case, claims_of_case) = run(seed);
        moves += of_case;
        pods += pods_of_case;
        claims += claims_of_case;
    }
    println!("{pods} pods, {claims} claims with addresses of their own, {moves} moves");
    assert!(moves > 0 && claims > 0, "the cases have scarce addresses and claims");
}
