use netclaim_api::addresses::AddressRange;
use serde_json::{Value, json};

use super::*;
use crate::demand::{Need, Places};

/// A world that a test changes, and the leasing that plans for it.
pub(super) struct Lab {
    networks: BTreeMap<NetworkName, Draw>,
    pools: BTreeMap<PoolKey, AddressPoolSpec>,
    sizes: BTreeMap<PoolKey, BlockSize>,
    blocks: BTreeMap<String, Block>,
    held: BTreeSet<HeldAddress>,
    avoided: BTreeMap<(PoolKey, IpNet), Instant>,
    lease_nodes: BTreeSet<String>,
    nodes: BTreeSet<String>,
    unready: BTreeSet<String>,
    waiting: Waiting,
    needs: Needs,
    leasing: Leasing,
    now: Instant,
    seconds: i64,
}

fn network(name: &str) -> NetworkName {
    name.parse().unwrap()
}

fn inline(name: &str) -> PoolKey {
    PoolKey::Network(network(name))
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn pool(spec: Value) -> AddressPoolSpec {
    let pool: AddressPoolSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(pool.problems(), []);
    pool
}

impl Lab {
    /// The ClaimNetwork `storage` with a pool of its own, on these nodes.
    fn new(spec: Value, nodes: &[&str]) -> Self {
        let mut lab = Self {
            networks: BTreeMap::new(),
            pools: BTreeMap::from([(inline("storage"), pool(spec))]),
            sizes: BTreeMap::new(),
            blocks: BTreeMap::new(),
            held: BTreeSet::new(),
            avoided: BTreeMap::new(),
            lease_nodes: BTreeSet::new(),
            nodes: names(nodes),
            unready: BTreeSet::new(),
            waiting: Waiting::new(),
            needs: Needs::new(),
            leasing: Leasing::new(SAFETY),
            now: Instant::now(),
            seconds: 0,
        };
        lab.draws("storage", inline("storage"), nodes);
        lab
    }

    fn draws(&mut self, name: &str, pool: PoolKey, nodes: &[&str]) {
        self.networks.insert(network(name), Draw::From { pool, nodes: names(nodes), selected: names(nodes) });
    }

    /// Adds an AddressLease.
    fn hold(&mut self, pool: PoolKey, name: &str, ip: IpAddr) {
        let holder = "ResourceClaim shop/db".into();
        self.held.insert(HeldAddress { pool, network: network(name), address: ip, holder });
    }

    /// Lets a pod of the ClaimNetwork wait for one of these nodes.
    fn wants(&mut self, network: NetworkName, places: Places) {
        self.waiting.entry(network).or_default().insert(places);
    }

    /// Records the sizes of blocks, and returns the plan after it.
    fn plan(&mut self) -> Plan {
        let plan = self.plan_once();
        if plan.record.is_empty() {
            return plan;
        }
        self.sizes.extend(plan.record.into_iter().map(|(key, totals)| (key, totals.block_size)));
        self.plan_once()
    }

    fn plan_once(&mut self) -> Plan {
        let world = World {
            networks: &self.networks,
            pools: &self.pools,
            sizes: &self.sizes,
            blocks: &self.blocks,
            held: &self.held,
            avoided: &self.avoided,
            lease_nodes: &self.lease_nodes,
            nodes: &self.nodes,
            unready: &self.unready,
            waiting: &self.waiting,
            needs: &self.needs,
        };
        self.leasing.plan(&world, self.now)
    }

    /// Does what the plan says, and returns it.
    fn step(&mut self) -> Plan {
        let plan = self.plan();
        for spec in &plan.create {
            self.add(spec.clone());
        }
        for removal in &plan.delete {
            if let Some(block) = self.blocks.get_mut(&removal.name) {
                block.phase = Phase::Deleting;
            }
        }
        for removal in &plan.release {
            self.blocks.remove(&removal.name);
        }
        plan
    }

    fn add(&mut self, spec: AddressBlockSpec) -> String {
        self.seconds += 1;
        let block = Block {
            uid: format!("u{}", self.seconds),
            phase: Phase::Live,
            has_finalizer: true,
            created: Timestamp::from_second(self.seconds).ok(),
            used: None,
            wanted: None,
            reported: self.now,
            holders: Vec::new(),
            spec,
        };
        let name = block.spec.name();
        assert!(self.blocks.insert(name.clone(), block).is_none(), "{name} exists");
        name
    }

    fn lease(&mut self, node: &str, cidr: &str) -> String {
        self.add(AddressBlockSpec {
            pool: None,
            network: network("storage"),
            node: node.into(),
            cidr: cidr.parse().unwrap(),
            ranges: Vec::new(),
        })
    }

    fn block(&mut self, name: &str) -> &mut Block {
        self.blocks.get_mut(name).unwrap()
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    /// The live blocks of a node.
    fn of(&self, node: &str) -> Vec<String> {
        let live = self.blocks.values().filter(|block| block.phase == Phase::Live && block.spec.node == node);
        live.map(|block| block.spec.cidr.to_string()).collect()
    }
}

fn created(plan: &Plan) -> Vec<String> {
    plan.create.iter().map(|spec| format!("{} {}", spec.node, spec.cidr)).collect()
}

fn deleted(plan: &Plan) -> Vec<(&str, &Why)> {
    plan.delete.iter().map(|removal| (removal.name.as_str(), &removal.why)).collect()
}

/// `count` blocks of 16 addresses.
fn blocks_of_16(count: u8) -> Value {
    json!({"ranges": [{"subnet": "10.20.0.0/16", "gateway": "10.20.255.254", "rangeStart": "10.20.1.0",
        "rangeEnd": IpAddr::from([10, 20, 1, count * 16 - 1])}], "blockSize": {"ipv4": 28}})
}

#[test]
fn each_node_gets_its_first_block_before_the_first_pod() {
    let mut lab = Lab::new(blocks_of_16(8), &["a", "b"]);
    assert_eq!(created(&lab.step()), ["a 10.20.1.0/28", "b 10.20.1.16/28"]);
    assert_eq!(created(&lab.step()), [""; 0], "one is enough");
}

#[test]
fn a_node_gets_a_block_of_each_family() {
    let spec = json!({"ranges": [{"subnet": "10.20.0.0/24"}, {"subnet": "fd00::/64"}]});
    let mut lab = Lab::new(spec, &["a"]);
    let plan = lab.step();
    assert_eq!(created(&plan), ["a 10.20.0.0/29", "a fd00::/121"]);
    let totals = lab.plan().totals[&inline("storage")];
    assert_eq!((totals.size, totals.leased, totals.free), (253, 6, 247), "of the family with fewer");
    assert_eq!(totals.block_size, BlockSize { ipv4: Some(29), ipv6: Some(121) });
}

#[test]
fn a_node_without_its_node_object_gets_no_block() {
    let mut lab = Lab::new(blocks_of_16(8), &["a"]);
    lab.nodes.clear();
    assert_eq!(created(&lab.step()), [""; 0]);
}

#[test]
fn a_node_gets_blocks_until_it_has_what_it_wants() {
    let mut lab = Lab::new(blocks_of_16(8), &["a", "b"]);
    lab.step();
    lab.block("storage.10.20.1.0-28").wanted = Some(40);
    assert_eq!(created(&lab.step()), ["a 10.20.1.32/28", "a 10.20.1.48/28"]);
    assert_eq!(created(&lab.step()), [""; 0]);
}

#[test]
fn a_node_gets_the_blocks_that_one_pod_needs_at_once_and_no_others_do() {
    let mut lab = Lab::new(blocks_of_16(8), &["a", "b"]);
    lab.step();
    lab.needs.insert((network("storage"), "a".into()), Need { used: 10, wanted: 30 });
    assert_eq!(created(&lab.step()), ["a 10.20.1.32/28", "a 10.20.1.48/28"]);
    assert_eq!(created(&lab.step()), [""; 0], "48 are enough for 40");
    lab.needs.insert((network("storage"), "gone".into()), Need { used: 0, wanted: 30 });
    lab.needs.insert((network("other"), "a".into()), Need { used: 0, wanted: 30 });
    assert_eq!(created(&lab.step()), [""; 0]);
    lab.needs.insert((network("storage"), "b".into()), Need { used: 0, wanted: u128::MAX });
    assert_eq!(lab.step().supply[&network("storage")], Supply::Exhausted(names(&["b"])));
}

#[test]
fn a_pod_that_needs_several_addresses_gets_idle_blocks_of_others() {
    let mut lab = Lab::new(blocks_of_16(3), &["a", "b", "c"]);
    lab.step();
    lab.needs.insert((network("storage"), "a".into()), Need { used: 3, wanted: 20 });
    lab.block("storage.10.20.1.16-28").used = Some(1);
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.32-28", &Why::Moved)], "not a's own, though idle");
    lab.blocks.remove("storage.10.20.1.32-28");
    assert_eq!(created(&lab.step()), ["a 10.20.1.32/28"], "not to c, for which no pod waits");
    lab.wait(MOVE_INTERVAL);
    assert_eq!(deleted(&lab.step()), [], "the pod can be scheduled");
}

#[test]
fn scarce_blocks_go_round_robin_so_that_no_node_hoards() {
    let mut lab = Lab::new(blocks_of_16(7), &["a", "b"]);
    lab.step();
    lab.block("storage.10.20.1.0-28").wanted = Some(1000);
    lab.block("storage.10.20.1.16-28").wanted = Some(1000);
    lab.nodes.insert("c".into());
    lab.draws("storage", inline("storage"), &["a", "b", "c"]);
    let plan = lab.step();
    assert_eq!(plan.create[0].node, "c", "who has none is first");
    assert_eq!(["a", "b", "c"].map(|node| lab.of(node).len()), [3, 3, 1]);
    assert_eq!(plan.supply[&network("storage")], Supply::Exhausted(names(&["a", "b"])));
}

#[test]
fn a_node_wants_at_most_what_its_pods_have_and_some_more() {
    let mut lab = Lab::new(json!({"ranges": [{"subnet": "fd00::/64"}], "blockSize": {"ipv6": 122}}), &["a"]);
    lab.step();
    lab.block("storage.fd00-0-0-0-0-0-0-0-122").wanted = Some(i64::MAX);
    let plan = lab.step();
    assert_eq!(plan.create.len(), 64, "4096 addresses, two of the first block are not handed out");
    assert_eq!(lab.step().create.len(), 0, "they are enough");
    lab.block("storage.fd00-0-0-0-0-0-0-0-122").used = Some(i64::MAX);
    assert_eq!(lab.step().create.len(), 1, "no block has more pods than addresses");
}

#[test]
fn a_plan_creates_a_limited_number_of_blocks_and_the_next_one_goes_on() {
    let ranges = json!([{"subnet": "fd00::/64"}]);
    let mut lab = Lab::new(json!({"ranges": ranges, "blockSize": {"ipv6": 126}}), &["a", "b"]);
    lab.step();
    lab.block("storage.fd00-0-0-0-0-0-0-0-126").wanted = Some(400);
    let plan = lab.step();
    assert_eq!((plan.create.len(), plan.next), (64, Some(lab.now + NEXT_CREATES)));
    assert_eq!(plan.supply[&network("storage")], Supply::Free);
    assert_eq!(lab.step().create.len(), 36);
    assert_eq!(lab.step().create.len(), 0);
}

#[test]
fn blocks_that_are_being_created_leave_no_room_for_more_than_the_limit() {
    let nodes: Vec<String> = (0..MAX_CREATES + 10).map(|node| format!("n{node}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let mut lab = Lab::new(json!({"ranges": [{"subnet": "10.0.0.0/8"}]}), &nodes);
    lab.step();
    for block in lab.blocks.values_mut().take(995) {
        block.phase = Phase::Pending;
    }
    assert_eq!(lab.plan().create.len(), 5);
}

#[test]
fn the_node_for_which_a_pod_waits_is_first() {
    let mut lab = Lab::new(blocks_of_16(1), &["a", "b"]);
    lab.wants(network("storage"), Places::Nodes(names(&["b"])));
    assert_eq!(created(&lab.step()), ["b 10.20.1.0/28"]);
}

#[test]
fn no_block_overlaps_with_one_of_another_size_or_state() {
    let mut lab = Lab::new(blocks_of_16(8), &["a", "b"]);
    let wide = lab.lease("gone", "10.20.1.0/27");
    lab.block(&wide).phase = Phase::Deleting;
    lab.lease("x", "10.20.1.36/30");
    assert_eq!(
        created(&lab.plan()),
        ["a 10.20.1.32/30", "b 10.20.1.40/30"],
        "the size of the block that stays"
    );
    lab.block("storage.10.20.1.36-30").phase = Phase::Deleting;
    assert_eq!(
        created(&lab.plan()),
        ["a 10.20.1.64/27", "b 10.20.1.96/27"],
        "the size of the first that goes"
    );
}

#[test]
fn the_first_block_waits_until_the_size_of_blocks_is_recorded() {
    let mut lab = Lab::new(json!({"ranges": [{"subnet": "10.20.0.0/24"}]}), &["a"]);
    let plan = lab.plan_once();
    assert_eq!(created(&plan), [""; 0]);
    assert_eq!(plan.totals.get(&inline("storage")), None, "the size is not decided");
    let (key, totals) = &plan.record[0];
    assert_eq!((key, totals.block_size.ipv4, totals.size), (&inline("storage"), Some(29), 253));
    let draw = lab.networks.remove(&network("storage")).unwrap();
    let totals = lab.plan_once().totals[&inline("storage")];
    assert_eq!(
        (totals.size, totals.block_size),
        (253, BlockSize::default()),
        "no ClaimNetwork draws from it"
    );
    lab.networks.insert(network("storage"), draw);
    lab.sizes.insert(inline("storage"), BlockSize { ipv4: Some(28), ipv6: None });
    let plan = lab.plan_once();
    assert_eq!(created(&plan), ["a 10.20.0.0/28"], "another leader has recorded that");
    assert_eq!((plan.record.len(), plan.supply[&network("storage")].clone()), (0, Supply::Free));
}

#[test]
fn the_size_of_blocks_stays_while_one_is_leased() {
    let mut lab = Lab::new(blocks_of_16(8), &["a"]);
    lab.step();
    lab.pools.get_mut(&inline("storage")).unwrap().block_size =
        Some(BlockSize { ipv4: Some(30), ipv6: None });
    lab.block("storage.10.20.1.0-28").wanted = Some(20);
    assert_eq!(created(&lab.step()), ["a 10.20.1.16/28"]);
    lab.blocks.clear();
    lab.wait(2 * REST);
    assert_eq!(created(&lab.step()), ["a 10.20.1.0/30"]);
}

#[test]
fn a_block_that_cannot_be_created_is_avoided() {
    let mut lab = Lab::new(blocks_of_16(2), &["a"]);
    lab.avoided.insert((inline("storage"), "10.20.1.0/28".parse().unwrap()), lab.now);
    assert_eq!(created(&lab.step()), ["a 10.20.1.16/28"]);
}

#[test]
fn a_small_subnet_does_not_set_the_size_for_all() {
    let ranges = json!([{"subnet": "10.30.0.0/30"}, {"subnet": "10.20.0.0/24"}]);
    let mut lab = Lab::new(json!({"ranges": ranges, "blockSize": {"ipv4": 28}}), &["a", "b"]);
    assert_eq!(created(&lab.step()), ["a 10.30.0.0/30", "b 10.20.0.0/28"]);
}

#[test]
fn a_block_gets_the_usable_addresses_that_no_lease_holds() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b"]);
    let ip = |last: u8| IpAddr::from([10, 20, 1, last]);
    for last in (0..16).chain([20]) {
        lab.hold(inline("storage"), "storage", ip(last));
    }
    let plan = lab.step();
    assert_eq!(created(&plan), ["a 10.20.1.16/28"], "no pod could use the first");
    let ranges: Vec<String> = plan.create[0].ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.20.1.16/30", "10.20.1.21-10.20.1.31"]);
    assert_eq!(lab.plan().totals[&inline("storage")].leased, 15);
}

#[test]
fn a_block_counts_what_its_node_may_hand_out_and_the_pool_still_has() {
    let mut lab = Lab::new(blocks_of_16(2), &["a"]);
    let name = lab.lease("a", "10.20.1.0/28");
    lab.block(&name).spec.ranges = vec!["10.20.1.0-10.20.1.7".parse().unwrap()];
    assert_eq!(lab.plan().totals[&inline("storage")].leased, 8);
    let mut spec = blocks_of_16(2);
    spec["ranges"][0]["exclude"] = json!(["10.20.1.6-10.20.1.9"]);
    lab.pools.insert(inline("storage"), pool(spec));
    let plan = lab.plan();
    assert_eq!(created(&plan), ["a 10.20.1.16/28"]);
    assert_eq!(plan.totals[&inline("storage")].leased, 6 + 16);
}

#[test]
fn a_block_rests_after_it_became_free_if_there_are_others() {
    let mut lab = Lab::new(blocks_of_16(2), &["a"]);
    lab.step();
    lab.plan();
    lab.blocks.clear();
    assert_eq!(created(&lab.step()), ["a 10.20.1.16/28"]);
    lab.block("storage.10.20.1.16-28").wanted = Some(20);
    assert_eq!(created(&lab.step()), ["a 10.20.1.0/28"], "no other is free");
}

#[test]
fn two_networks_of_one_pool_have_blocks_of_their_own() {
    let lan = PoolKey::Pool("lan".into());
    let mut lab = Lab::new(blocks_of_16(1), &[]);
    lab.pools.insert(lan.clone(), pool(blocks_of_16(8)));
    lab.nodes = names(&["a"]);
    lab.draws("red", lan.clone(), &["a"]);
    lab.draws("blue", lan.clone(), &["a"]);
    let plan = lab.step();
    assert_eq!(created(&plan), ["a 10.20.1.0/28", "a 10.20.1.16/28"]);
    assert_eq!(plan.create[0].network, network("blue"));
    assert_eq!(plan.create[0].pool.as_deref(), Some("lan"));
    assert_eq!(created(&lab.step()), [""; 0]);
}

#[test]
fn an_empty_block_moves_to_the_node_for_which_a_pod_waits() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b"]);
    lab.step();
    for name in ["storage.10.20.1.0-28", "storage.10.20.1.16-28"] {
        lab.block(name).used = Some(0);
    }
    lab.block("storage.10.20.1.0-28").used = Some(3);
    lab.nodes.insert("c".into());
    lab.draws("storage", inline("storage"), &["a", "b", "c"]);
    assert_eq!(deleted(&lab.step()), [], "no pod waits");
    lab.wants(network("storage"), Places::Nodes(names(&["c"])));
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.16-28", &Why::Moved)]);
    assert_eq!(deleted(&lab.step()), [], "the round has 30 s");
    lab.blocks.remove("storage.10.20.1.16-28");
    assert_eq!(created(&lab.step()), ["c 10.20.1.16/28"], "not to b, which has none now either");
    lab.wait(MOVE_INTERVAL);
    assert_eq!(deleted(&lab.step()), [], "the pod can be scheduled");
}

#[test]
fn a_pod_that_other_nodes_can_take_moves_nothing() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b"]);
    lab.step();
    lab.nodes.insert("c".into());
    lab.draws("storage", inline("storage"), &["a", "b", "c"]);
    lab.wants(network("storage"), Places::Any);
    assert_eq!(deleted(&lab.step()), []);
    lab.waiting.clear();
    for nodes in [["c"].as_slice(), &["a", "x"]] {
        lab.wants(network("storage"), Places::Nodes(names(nodes)));
    }
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.16-28", &Why::Moved)], "a pod needs a's");
}

#[test]
fn a_pod_of_another_network_moves_and_protects_nothing() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b"]);
    lab.step();
    lab.nodes.insert("c".into());
    lab.draws("storage", inline("storage"), &["a", "b", "c"]);
    lab.wants(network("lab"), Places::Nodes(names(&["c"])));
    assert_eq!(deleted(&lab.step()), []);
    lab.wants(network("storage"), Places::Nodes(names(&["c"])));
    lab.wants(network("lab"), Places::Nodes(names(&["a"])));
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.0-28", &Why::Moved)], "no pod of storage needs it");
}

#[test]
fn a_pod_on_a_node_that_lost_its_last_block_gets_one() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b", "c"]);
    assert_eq!(created(&lab.step()), ["a 10.20.1.0/28", "b 10.20.1.16/28"]);
    lab.block("storage.10.20.1.0-28").used = Some(3);
    lab.wants(network("storage"), Places::Nodes(names(&["c"])));
    lab.wants(network("storage"), Places::Nodes(names(&["a"])));
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.16-28", &Why::Moved)]);
    lab.blocks.remove("storage.10.20.1.16-28");
    assert_eq!(created(&lab.step()), ["c 10.20.1.16/28"], "not to b");
}

#[test]
fn a_full_node_has_no_addresses_for_a_pod() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b"]);
    lab.step();
    lab.nodes.insert("c".into());
    lab.draws("storage", inline("storage"), &["a", "b", "c"]);
    lab.block("storage.10.20.1.0-28").used = Some(15);
    lab.wants(network("storage"), Places::Nodes(names(&["a", "c"])));
    assert_eq!(deleted(&lab.step()), [], "a has one left");
    lab.block("storage.10.20.1.0-28").used = Some(16);
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.16-28", &Why::Moved)]);
}

#[test]
fn a_spare_empty_block_moves_to_a_node_without_one() {
    let mut lab = Lab::new(blocks_of_16(3), &["a", "b"]);
    lab.step();
    lab.block("storage.10.20.1.0-28").wanted = Some(32);
    lab.step();
    lab.nodes.insert("c".into());
    lab.draws("storage", inline("storage"), &["a", "b", "c"]);
    assert_eq!(deleted(&lab.step()), [], "a wants both");
    lab.block("storage.10.20.1.0-28").wanted = Some(4);
    lab.block("storage.10.20.1.0-28").used = Some(1);
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.32-28", &Why::Moved)]);
}

/// `count` nodes with one block of 16 addresses each, of which the first node's is full and its pods have
/// told the others.
fn one_is_full(count: u8, nodes: &[&str]) -> Lab {
    let mut lab = Lab::new(blocks_of_16(count), nodes);
    lab.step();
    let block = lab.block("storage.10.20.1.0-28");
    (block.used, block.wanted) = (Some(16), Some(17));
    lab
}

#[test]
fn a_pod_beside_full_blocks_gets_the_last_idle_block_of_a_node_for_which_no_pod_waits() {
    let mut lab = one_is_full(3, &["a", "b", "c"]);
    let plan = lab.step();
    assert_eq!(deleted(&plan), [], "no pod waits");
    assert_eq!(plan.supply[&network("storage")], Supply::Exhausted(names(&["a"])));
    lab.wants(network("storage"), Places::Nodes(names(&["a"])));
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.16-28", &Why::Moved)]);
    lab.blocks.remove("storage.10.20.1.16-28");
    assert_eq!(created(&lab.step()), ["a 10.20.1.16/28"], "not to b, for which no pod waits");
    lab.wait(MOVE_INTERVAL);
    assert_eq!(deleted(&lab.step()), [], "a has free addresses");
    // All of them are in use, and pods still wait.
    for name in ["storage.10.20.1.0-28", "storage.10.20.1.16-28"] {
        lab.block(name).used = Some(16);
    }
    lab.block("storage.10.20.1.0-28").wanted = Some(33);
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.32-28", &Why::Moved)]);
}

#[test]
fn a_block_that_an_admin_deletes_goes_to_the_full_node_for_which_a_pod_waits() {
    let mut lab = one_is_full(2, &["a", "b"]);
    lab.wants(network("storage"), Places::Nodes(names(&["a"])));
    lab.blocks.remove("storage.10.20.1.16-28");
    assert_eq!(created(&lab.step()), ["a 10.20.1.16/28"]);
}

#[test]
fn a_node_that_gives_blocks_away_gets_none_back_from_a_node_that_needs_it() {
    let mut lab = one_is_full(2, &["a", "b"]);
    let [first, second] = ["storage.10.20.1.0-28", "storage.10.20.1.16-28"];
    lab.wants(network("storage"), Places::Nodes(names(&["a"])));
    assert_eq!(deleted(&lab.step()), [(second, &Why::Moved)]);
    lab.blocks.remove(second);
    assert_eq!(created(&lab.step()), ["a 10.20.1.16/28"]);
    // The pod runs on a, which has not reported it yet, and another one waits for b.
    lab.waiting.clear();
    lab.wants(network("storage"), Places::Nodes(names(&["b"])));
    lab.wait(MOVE_INTERVAL);
    let plan = lab.step();
    assert_eq!((deleted(&plan), plan.next), (vec![], Some(lab.now + REST - MOVE_INTERVAL)));
    lab.block(second).used = Some(1);
    lab.wait(REST);
    assert_eq!(deleted(&lab.step()), [], "it is in use");
    lab.block(second).used = Some(0);
    lab.block(first).used = Some(3);
    assert_eq!(deleted(&lab.step()), [(second, &Why::Moved)], "it is idle after all");
}

#[test]
fn two_nodes_for_which_pods_wait_take_no_block_from_each_other() {
    let mut lab = one_is_full(3, &["a", "b", "c"]);
    let second = lab.block("storage.10.20.1.16-28");
    (second.used, second.wanted) = (Some(16), Some(17));
    for node in ["a", "b"] {
        lab.wants(network("storage"), Places::Nodes(names(&[node])));
    }
    let mut moves = 0;
    for _ in 0..20 {
        let plan = lab.step();
        moves += plan.delete.len();
        lab.blocks.retain(|_, block| block.phase == Phase::Live);
        lab.wait(MOVE_INTERVAL);
    }
    assert_eq!((moves, lab.of("a").len(), lab.of("b").len(), lab.of("c").len()), (1, 2, 1, 0));
}

#[test]
fn one_waiting_pod_takes_one_block_at_a_time_however_many_full_nodes_it_could_run_on() {
    let lan = PoolKey::Pool("lan".into());
    let nodes = ["a", "b", "c", "d"];
    let mut lab = Lab::new(blocks_of_16(1), &nodes);
    lab.pools = BTreeMap::from([(lan.clone(), pool(blocks_of_16(8)))]);
    for name in ["storage", "other"] {
        lab.draws(name, lan.clone(), &nodes);
    }
    lab.step();
    for block in lab.blocks.values_mut().filter(|block| block.spec.network == network("storage")) {
        (block.used, block.wanted) = (Some(16), Some(17));
    }
    lab.wants(network("storage"), Places::Any);
    assert_eq!(lab.step().delete.len(), 1, "the other ClaimNetwork's nodes keep theirs");
}

#[test]
fn nodes_that_are_away_are_asked_for_blocks_last() {
    let mut lab = Lab::new(blocks_of_16(4), &["a", "b", "c", "d"]);
    lab.step();
    lab.unready = names(&["a"]);
    lab.nodes.insert("e".into());
    // The agent of b is away: it publishes nothing.
    lab.draws("storage", inline("storage"), &["a", "c", "d", "e"]);
    lab.wants(network("storage"), Places::Nodes(names(&["e"])));
    let mut asked = Vec::new();
    for _ in 0..4 {
        asked.extend(lab.step().delete.into_iter().map(|removal| removal.name));
        lab.wait(MOVE_INTERVAL);
    }
    let blocks = ["10.20.1.32-28", "10.20.1.48-28", "10.20.1.0-28", "10.20.1.16-28"];
    assert_eq!(asked, blocks.map(|block| format!("storage.{block}")));
}

#[test]
fn addresses_of_a_node_that_is_away_serve_no_pod_that_waits() {
    let mut lab = one_is_full(3, &["a", "b", "c"]);
    let third = lab.block("storage.10.20.1.32-28");
    (third.used, third.wanted) = (Some(16), Some(17));
    lab.unready = names(&["b"]);
    lab.wants(network("storage"), Places::Any);
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.16-28", &Why::Moved)]);
}

#[test]
fn a_block_that_does_not_come_delays_the_next_round_by_less() {
    let mut lab = Lab::new(blocks_of_16(3), &["a", "b", "c"]);
    lab.step();
    lab.nodes.insert("d".into());
    lab.draws("storage", inline("storage"), &["a", "b", "c", "d"]);
    lab.wants(network("storage"), Places::Nodes(names(&["d"])));
    let plan = lab.step();
    assert_eq!((plan.delete.len(), plan.next), (1, Some(lab.now + Duration::from_secs(20))));
    lab.wait(Duration::from_secs(19));
    assert_eq!(deleted(&lab.step()), []);
    lab.wait(Duration::from_secs(1));
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.16-28", &Why::Moved)]);
}

#[test]
fn a_block_without_its_finalizer_gets_it_back_and_is_not_deleted_before() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b"]);
    lab.step();
    let name = "storage.10.20.1.0-28";
    lab.block(name).has_finalizer = false;
    let plan = lab.step();
    assert_eq!(plan.hold, [BlockRef { name: name.into(), uid: lab.block(name).uid.clone() }]);
    assert_eq!(created(&plan), [""; 0], "it is about to be used again");
    // Meanwhile, its node has nothing for pods: they need the block of b.
    lab.wants(network("storage"), Places::Nodes(names(&["a", "b"])));
    lab.nodes.insert("c".into());
    lab.draws("storage", inline("storage"), &["a", "b", "c"]);
    lab.wants(network("storage"), Places::Nodes(names(&["c"])));
    assert_eq!(deleted(&lab.step()), []);
    lab.networks.clear();
    let plan = lab.step();
    assert_eq!(deleted(&plan), [("storage.10.20.1.16-28", &Why::NetworkGone)], "pods may have its addresses");
    assert_eq!(plan.hold.len(), 1);
    lab.block(name).has_finalizer = true;
    let plan = lab.step();
    assert_eq!((deleted(&plan), plan.hold.len()), (vec![(name, &Why::NetworkGone)], 0));
}

#[test]
fn blocks_of_a_gone_node_are_free_after_the_safety_time() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b"]);
    lab.step();
    lab.block("storage.10.20.1.0-28").used = Some(5);
    lab.nodes = names(&["b"]);
    let plan = lab.step();
    assert!(plan.delete.is_empty() && plan.release.is_empty());
    let until_delete = Safety(SAFETY).before_delete();
    assert_eq!(plan.next, Some(lab.now + until_delete));
    lab.wait(until_delete / 2);
    lab.nodes = names(&["a", "b"]);
    lab.step();
    lab.nodes = names(&["b"]);
    lab.step();
    lab.wait(until_delete - Duration::from_secs(1));
    assert!(lab.step().delete.is_empty(), "the node came back meanwhile");
    lab.wait(Duration::from_secs(1));
    let plan = lab.step();
    assert_eq!(
        deleted(&plan),
        [("storage.10.20.1.0-28", &Why::NodeGone)],
        "the agent may still hear of that"
    );
    assert!(plan.release.is_empty());
    let begin = lab.now;
    while lab.step().release.is_empty() {
        let next = lab.plan().next.unwrap();
        assert!(next > lab.now);
        lab.now = next;
    }
    assert_eq!(lab.now - begin, Safety(SAFETY).before_release(), "an agent that hears nothing stops before");
    assert_eq!(lab.plan().gone, names(&[]), "it has no blocks any more");
    assert_eq!(lab.of("b").len(), 1);
}

#[test]
fn a_block_of_a_gone_node_that_was_deleted_late_is_released_late() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b"]);
    lab.step();
    lab.nodes = names(&["b"]);
    lab.plan();
    lab.wait(2 * SAFETY);
    assert_eq!(lab.plan().gone, names(&["a"]));
    let plan = lab.step();
    assert_eq!((plan.delete.len(), plan.release.len()), (1, 0), "the API server was away");
    lab.plan();
    lab.wait(Safety(SAFETY).before_release() - Duration::from_secs(1));
    assert_eq!(lab.step().release.len(), 0);
    lab.wait(Duration::from_secs(1));
    assert_eq!(lab.step().release.len(), 1);
}

#[test]
fn a_node_that_a_network_does_not_select_any_more_gives_its_blocks_back() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b"]);
    lab.step();
    let select = |lab: &mut Lab, nodes: &[&str], selected: &[&str]| {
        let draw = Draw::From { pool: inline("storage"), nodes: names(nodes), selected: names(selected) };
        lab.networks.insert(network("storage"), draw);
    };
    select(&mut lab, &["a"], &["a", "b"]);
    assert_eq!(lab.plan().next, None, "its uplink or its agent is away");
    select(&mut lab, &["a"], &["a"]);
    assert_eq!(lab.plan().next, Some(lab.now + LEFT));
    lab.wait(LEFT / 2);
    select(&mut lab, &["a", "b"], &["a"]);
    lab.step();
    select(&mut lab, &["a"], &["a"]);
    lab.step();
    lab.wait(LEFT - Duration::from_secs(1));
    assert_eq!(deleted(&lab.step()), [], "it came back meanwhile");
    lab.wait(Duration::from_secs(1));
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.16-28", &Why::NodeLeft)]);
}

#[test]
fn blocks_of_a_deleted_network_go() {
    let mut lab = Lab::new(blocks_of_16(2), &["a"]);
    lab.step();
    lab.networks.clear();
    lab.pools.clear();
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.0-28", &Why::NetworkGone)]);
    assert_eq!(deleted(&lab.step()), [], "once");
}

#[test]
fn a_mistake_in_a_network_or_pool_destroys_nothing() {
    let mut lab = Lab::new(blocks_of_16(2), &["a"]);
    lab.step();
    lab.networks.insert(network("storage"), Draw::Unknown);
    let inline_pools = std::mem::take(&mut lab.pools);
    assert!(lab.step().delete.is_empty());
    lab.pools = inline_pools;

    let lan = PoolKey::Pool("lan".into());
    lab.draws("red", lan.clone(), &["a"]);
    lab.pools.insert(lan.clone(), pool(blocks_of_16(2)));
    assert_eq!(lab.step().create.len(), 1);
    lab.pools.remove(&lan);
    let plan = lab.step();
    assert!(plan.delete.is_empty() && plan.create.is_empty());
    assert_eq!(plan.supply[&network("red")], Supply::PoolMissing("lan".into()));
}

#[test]
fn a_block_of_no_range_goes_and_the_condition_names_its_pods() {
    let mut lab = Lab::new(blocks_of_16(2), &["a", "b"]);
    lab.step();
    lab.block("storage.10.20.1.16-28").used = Some(1);
    lab.block("storage.10.20.1.16-28").holders = vec!["shop/web-0".into()];
    lab.pools.insert(inline("storage"), pool(blocks_of_16(1)));
    let plan = lab.step();
    assert_eq!(deleted(&plan), [("storage.10.20.1.16-28", &Why::OutOfRange)]);
    let leaving = &lab.step().leaving;
    assert_eq!(leaving.len(), 1);
    assert_eq!(
        leaving[0].lost().unwrap(),
        "no range has its addresses any more: AddressBlock storage.10.20.1.16-28 of node b remains as long as pods have its \
         addresses (shop/web-0)"
    );
}

#[test]
fn a_block_goes_if_one_of_its_addresses_is_reserved_later() {
    let mut lab = Lab::new(blocks_of_16(3), &["a", "b"]);
    let mut spec = blocks_of_16(3);
    spec["reserved"] = json!(["10.20.1.0/29", "10.20.1.4-10.20.1.5"]);
    lab.pools.insert(inline("storage"), pool(spec.clone()));
    assert_eq!(created(&lab.step()), ["a 10.20.1.0/28", "b 10.20.1.16/28"]);
    assert_eq!(deleted(&lab.step()), [], "the node of the first never had the reserved ones");
    lab.block("storage.10.20.1.16-28").holders = vec!["shop/web-0".into()];
    spec["reserved"] = json!(["10.20.1.0/29", "10.20.1.20"]);
    lab.pools.insert(inline("storage"), pool(spec));
    let plan = lab.step();
    assert_eq!(deleted(&plan), [("storage.10.20.1.16-28", &Why::Reserved)]);
    assert_eq!(
        plan.leaving[0].lost().unwrap(),
        "addresses of it are reserved now: AddressBlock storage.10.20.1.16-28 of node b remains as long as pods have its \
         addresses (shop/web-0)"
    );
    lab.block("storage.10.20.1.0-28").spec.ranges.clear();
    assert_eq!(deleted(&lab.step()), [("storage.10.20.1.0-28", &Why::Reserved)], "it has all of them");
}

#[test]
fn a_block_goes_if_pods_may_not_get_one_of_its_addresses_any_more() {
    for (field, value) in [
        ("exclude", json!(["10.20.1.19"])),
        ("gateway", json!("10.20.1.31")),
        ("rangeEnd", json!("10.20.1.30")),
        ("rangeStart", json!("10.20.1.17")),
    ] {
        let mut lab = Lab::new(blocks_of_16(3), &["a", "b"]);
        lab.step();
        let name = "storage.10.20.1.16-28";
        lab.block(name).holders = vec!["shop/web-0 with 10.20.1.19".into()];
        let mut spec = blocks_of_16(3);
        spec["ranges"][0][field] = value;
        lab.pools.insert(inline("storage"), pool(spec));
        let plan = lab.step();
        let why = deleted(&plan).into_iter().find(|(of, _)| *of == name).map(|(_, why)| why.clone());
        assert_eq!(why, Some(Why::Cut), "{field}");
        let leaving = plan.leaving.iter().find(|one| one.object == name).unwrap();
        assert_eq!(
            leaving.lost().unwrap(),
            "some of its addresses are excluded or in no range any more: AddressBlock storage.10.20.1.16-28 of node b remains \
             as long as pods have its addresses (shop/web-0 with 10.20.1.19)"
        );
        let of_b = || plan.create.iter().filter(|spec| spec.node == "b").map(|spec| spec.cidr.to_string());
        let expected = if field == "rangeEnd" || field == "rangeStart" { 0 } else { 1 };
        assert_eq!(of_b().count(), expected, "{field}: another block, if there is one: {:?}", created(&plan));
    }
}

#[test]
fn a_range_that_grows_drains_nothing() {
    let mut lab = Lab::new(blocks_of_16(3), &["a", "b"]);
    let mut small = blocks_of_16(3);
    small["reserved"] = json!(["10.20.1.5"]);
    small["ranges"][0]["exclude"] = json!(["10.20.1.9"]);
    lab.pools.insert(inline("storage"), pool(small));
    lab.step();
    let wide = json!({"ranges": [{"subnet": "10.20.0.0/15", "gateway": "10.21.255.254"}], "blockSize": {"ipv4": 28}});
    for spec in [blocks_of_16(3), blocks_of_16(8), wide] {
        lab.pools.insert(inline("storage"), pool(spec));
        let plan = lab.step();
        assert_eq!((deleted(&plan), plan.leaving.len()), (vec![], 0));
    }
}

/// The upper half of `storage` becomes that of `b`, while a pod on node a has an address of it.
fn upper_half_moves(lab: &mut Lab) -> String {
    let name = lab.lease("a", "10.20.1.32/28");
    let block = lab.block(&name);
    block.spec.ranges = vec!["10.20.1.32/28".parse().unwrap()];
    (block.used, block.holders) = (Some(1), vec!["shop/web-0 with 10.20.1.40".into()]);
    lab.pools.insert(inline("storage"), pool(blocks_of_16(2)));
    let upper = json!({"ranges": [{"subnet": "10.20.0.0/16", "rangeStart": "10.20.1.32", "rangeEnd": "10.20.1.63"}],
        "blockSize": {"ipv4": 28}});
    lab.pools.insert(inline("b"), pool(upper));
    lab.draws("b", inline("b"), &["a", "c"]);
    lab.nodes.insert("c".into());
    name
}

#[test]
fn addresses_that_move_to_another_network_are_free_there_when_their_last_pod_has_ended() {
    let mut lab = Lab::new(blocks_of_16(4), &["a"]);
    let name = upper_half_moves(&mut lab);
    let plan = lab.step();
    assert_eq!(created(&plan), ["a 10.20.1.48/28", "a 10.20.1.0/28"], "b has one block less");
    assert_eq!(deleted(&plan), [(name.as_str(), &Why::OutOfRange)]);
    assert_eq!(plan.supply[&network("b")], Supply::Exhausted(names(&["c"])));
    let [leaving] = &plan.leaving[..] else { panic!("{:?}", plan.leaving) };
    assert_eq!(leaving.awaited_by, BTreeSet::from([inline("b")]));
    assert_eq!(
        leaving.awaited(),
        "addresses of ClaimNetwork storage are not free yet: AddressBlock storage.10.20.1.32-28 of node a remains as long as pods \
         have its addresses (shop/web-0 with 10.20.1.40)"
    );
    // Claims may not get them either.
    lab.pools.get_mut(&inline("b")).unwrap().reserved = vec!["10.20.1.32/28".parse().unwrap()];
    assert_eq!(lab.plan().leaving[0].awaited_by, BTreeSet::from([inline("b")]));
    lab.pools.get_mut(&inline("b")).unwrap().reserved.clear();
    lab.blocks.remove(&name);
    let plan = lab.step();
    assert_eq!((created(&plan), plan.leaving), (vec!["c 10.20.1.32/28".to_owned()], vec![]));
}

#[test]
fn addresses_of_a_network_with_unknown_ranges_go_to_no_other() {
    let mut lab = Lab::new(blocks_of_16(4), &["a"]);
    upper_half_moves(&mut lab);
    // The ClaimNetwork that had them has a mistake, too.
    lab.networks.insert(network("storage"), Draw::Unknown);
    lab.pools.remove(&inline("storage"));
    let plan = lab.step();
    assert_eq!((created(&plan), deleted(&plan)), (vec!["a 10.20.1.48/28".to_owned()], vec![]));
    let [leaving] = &plan.leaving[..] else { panic!("{:?}", plan.leaving) };
    assert_eq!(leaving.lost(), None, "it may stay");
    assert!(leaving.awaited().ends_with("of node a has them (shop/web-0 with 10.20.1.40)"), "{leaving:?}");
}

#[test]
fn a_leased_address_that_moves_to_another_network_is_in_no_block_of_it() {
    let mut lab = Lab::new(blocks_of_16(4), &["a"]);
    let name = upper_half_moves(&mut lab);
    lab.blocks.remove(&name);
    lab.hold(inline("storage"), "storage", IpAddr::from([10, 20, 1, 47]));
    lab.nodes.remove("c");
    let plan = lab.step();
    let of_b = plan.create.iter().find(|spec| spec.network == network("b")).unwrap();
    assert_eq!(of_b.ranges, ["10.20.1.32-10.20.1.46".parse().unwrap()]);
    let [leaving] = &plan.leaving[..] else { panic!("{:?}", plan.leaving) };
    assert_eq!(leaving.awaited_by, BTreeSet::from([inline("b")]));
    assert_eq!(
        leaving.lost().unwrap(),
        "no range has its addresses any more: AddressLease storage.10.20.1.47 remains as long as ResourceClaim shop/db does, \
         which has 10.20.1.47"
    );
}

#[test]
fn ranges_that_move_to_a_pool_are_not_leased_again_while_pods_have_their_addresses() {
    let ranges = json!({"ranges": [{"subnet": "10.20.1.0/24"}], "blockSize": {"ipv4": 26}});
    let mut lab = Lab::new(ranges.clone(), &["a", "b"]);
    lab.lease("a", "10.20.1.0/26");
    let lan = PoolKey::Pool("lan".into());
    lab.pools = BTreeMap::from([(lan.clone(), pool(ranges))]);
    lab.draws("storage", lan, &["a", "b"]);
    let plan = lab.step();
    let created: Vec<String> = plan.create.iter().map(|spec| spec.cidr.to_string()).collect();
    assert_eq!(
        created,
        ["10.20.1.64/26", "10.20.1.128/26"],
        "pods of node a have addresses of the first one"
    );
}

#[test]
fn addresses_of_a_network_that_is_gone_are_in_no_new_block_of_any_pool() {
    let mut lab = Lab::new(blocks_of_16(3), &["a", "b"]);
    lab.step();
    lab.networks.clear();
    lab.pools = BTreeMap::from([(inline("other"), pool(blocks_of_16(3)))]);
    lab.draws("other", inline("other"), &["a", "b"]);
    lab.hold(inline("storage"), "storage", IpAddr::from([10, 20, 1, 40]));
    let plan = lab.step();
    assert_eq!(created(&plan), ["a 10.20.1.32/28"], "pods still have addresses of the others");
    let ranges: Vec<String> = plan.create[0].ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.20.1.32/29", "10.20.1.41-10.20.1.47"]);
    lab.blocks.retain(|_, block| block.phase == Phase::Live);
    lab.wait(2 * REST);
    assert_eq!(created(&lab.step()), ["b 10.20.1.0/28"]);
}

#[test]
fn two_networks_on_different_links_have_the_same_addresses() {
    let mut lab = Lab::new(blocks_of_16(1), &["a"]);
    lab.hold(inline("storage"), "storage", IpAddr::from([10, 20, 1, 3]));
    lab.step();
    lab.pools.insert(inline("other"), pool(blocks_of_16(1)));
    lab.draws("other", inline("other"), &["a"]);
    let plan = lab.step();
    assert_eq!(created(&plan), ["a 10.20.1.0/28"]);
    assert_eq!(plan.create[0].ranges, ["10.20.1.0/28".parse().unwrap()]);
}

#[test]
fn the_leases_of_a_network_stay_held_in_the_pool_that_it_draws_from_now() {
    let mut lab = Lab::new(blocks_of_16(1), &["a"]);
    let lan = PoolKey::Pool("lan".into());
    lab.hold(inline("storage"), "storage", IpAddr::from([10, 20, 1, 0]));
    lab.pools = BTreeMap::from([(lan.clone(), pool(blocks_of_16(1)))]);
    lab.draws("storage", lan, &["a"]);
    let ranges: Vec<String> = lab.step().create[0].ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.20.1.1-10.20.1.15"]);
}

#[test]
fn a_network_that_draws_from_another_pool_gives_its_blocks_back() {
    let mut lab = Lab::new(blocks_of_16(2), &["a"]);
    lab.step();
    let lan = PoolKey::Pool("lan".into());
    lab.pools = BTreeMap::from([(lan.clone(), pool(blocks_of_16(2)))]);
    lab.draws("storage", lan, &["a"]);
    let plan = lab.step();
    assert_eq!(deleted(&plan), [("storage.10.20.1.0-28", &Why::OtherPool)]);
    assert_eq!(plan.create.len(), 1);
    lab.networks.insert(network("storage"), Draw::Nothing);
    assert_eq!(deleted(&lab.step()), [("pool.lan.10.20.1.16-28", &Why::OtherPool)]);
}

#[test]
fn the_younger_of_two_blocks_with_one_address_goes() {
    let mut lab = Lab::new(blocks_of_16(4), &["a", "b"]);
    lab.lease("a", "10.20.1.16/28");
    lab.lease("b", "10.20.1.0/27");
    lab.lease("a", "10.20.1.32/28");
    assert_eq!(
        deleted(&lab.plan()),
        [("storage.10.20.1.0-27", &Why::Overlaps("10.20.1.16/28".parse().unwrap()))]
    );
}

#[test]
fn a_restored_block_with_another_name_goes_and_the_one_of_the_right_name_stays() {
    let mut lab = Lab::new(blocks_of_16(4), &["a"]);
    let name = lab.lease("a", "10.20.1.16/28");
    let mut copy = lab.blocks[&name].clone();
    copy.created = Timestamp::from_second(0).ok();
    lab.blocks.insert("copy".into(), copy);
    assert_eq!(deleted(&lab.plan()), [("copy", &Why::OtherName)]);
}

#[test]
fn the_totals_count_attachments() {
    let mut lab = Lab::new(blocks_of_16(4), &["a", "b"]);
    lab.step();
    lab.block("storage.10.20.1.0-28").used = Some(5);
    let totals = lab.plan().totals[&inline("storage")];
    assert_eq!((totals.size, totals.leased, totals.used, totals.free), (64, 32, 5, 32));
    let all: AddressRange = serde_json::from_value(json!({"subnet": "::/0"})).unwrap();
    lab.pools.insert(inline("storage"), AddressPoolSpec { ranges: vec![all], ..AddressPoolSpec::default() });
    assert_eq!(lab.plan().totals[&inline("storage")].size, i64::MAX);
}

#[test]
fn a_plan_for_5000_nodes_with_three_networks_leases_a_step_at_a_time() {
    let nodes: Vec<String> = (0..5000).map(|node| format!("node-{node:04}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let mut lab = Lab::new(json!({"ranges": [{"subnet": "10.0.0.0/8"}, {"subnet": "fd00::/64"}]}), &nodes);
    for (name, subnet) in [("red", "172.16.0.0/12"), ("blue", "fd01::/64")] {
        lab.pools.insert(inline(name), pool(json!({"ranges": [{"subnet": subnet}]})));
        lab.draws(name, inline(name), &nodes);
    }
    lab.wants(network("storage"), Places::Any);
    for _ in 0..20 {
        let plan = lab.step();
        assert_eq!(plan.create.len(), MAX_CREATES);
        assert_eq!(plan.supply[&network("storage")], Supply::Free);
    }
    lab.block("blue.fd01-0-0-0-0-0-0-0-121").wanted = Some(140);
    assert_eq!(lab.step().create.len(), 1, "the node that asks for more gets one");
}
