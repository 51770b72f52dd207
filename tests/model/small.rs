//! Small worlds whose every state is visited: breadth first, so that the trace to what is wrong is a
//! shortest one.
//!
//! Each world allows a few disturbances. Everything else may happen whenever it can, in every order. A world
//! that has more states than [`STATES`] is explored to the depth that these reach; `NETCLAIM_STATES` is
//! another number (`make test-model`). In a world that is said to be whole, every state is visited if that
//! many are.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use netclaim_api::NetworkName;
use serde_json::{Value, json};

use crate::controller::Kind;
use crate::server::{Config, Seconds};
use crate::world::{Action, Edit, World};
use crate::{config, name, network};

/// The promise is checked in one of so many states: it takes as long as hundreds of steps.
const PROMISE: u64 = 100;

/// After so many states of a world, no deeper ones are visited.
const STATES: usize = 5_000;

/// How often each disturbance may happen still.
#[derive(Clone, Default, Hash)]
struct Left {
    /// The pods that come, in this order.
    pods: Vec<(NetworkName, usize, Option<IpAddr>)>,
    deletes: u8,
    forces: u8,
    sandboxes: u8,
    cuts: u8,
    crashes: u8,
    leads: u8,
    nodes: u8,
    blocks: u8,
    leases: u8,
    finalizers: u8,
    restores: u8,
    waits: u8,
    /// How many edits have been made.
    edits: usize,
}

struct Small {
    start: World,
    script: Vec<Edit>,
    left: Left,
    waits: &'static [Seconds],
    /// Addresses that routers take when no ClaimNetwork has them any more.
    devices: Vec<IpAddr>,
    /// Whether each watch and request of a controller is a step of its own.
    is_fine: bool,
    /// More states than the world has, if every one of them is to be visited.
    whole: Option<usize>,
}

#[derive(Clone)]
struct State {
    world: World,
    left: Left,
}

impl State {
    fn fingerprint(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        self.world.fingerprint().hash(&mut hasher);
        self.left.hash(&mut hasher);
        hasher.finish()
    }
}

impl Small {
    fn new(start: Config, controllers: usize) -> Self {
        Self {
            start: World::new(start, &[100, 100], &vec![100; controllers]),
            script: Vec::new(),
            left: Left::default(),
            waits: &[],
            devices: Vec::new(),
            is_fine: false,
            whole: None,
        }
    }

    /// Has fewer states than this, which are all visited.
    fn whole(mut self, states: usize) -> Self {
        self.whole = Some(states);
        self
    }

    fn pods(mut self, pods: &[(&str, usize)]) -> Self {
        self.left.pods = pods.iter().map(|(network, machine)| (name(network), *machine, None)).collect();
        self
    }

    fn script(mut self, edits: Vec<(&str, Config)>) -> Self {
        let edit = |(what, config): (&str, Config)| Edit { what: what.to_owned(), config: Arc::new(config) };
        self.script = edits.into_iter().map(edit).collect();
        self
    }

    fn left(mut self, change: impl FnOnce(&mut Left)) -> Self {
        change(&mut self.left);
        self
    }

    /// Begins when the nodes have their first blocks.
    fn settled(mut self) -> Self {
        for _ in 0..3 {
            self.start.round().expect("nothing has gone wrong yet");
        }
        self
    }

    /// Begins when every block has just been given back.
    fn emptied(mut self) -> Self {
        for name in self.start.server.blocks.keys().cloned().collect::<Vec<_>>() {
            self.start.take(&Action::DeleteBlock(name.clone()));
            self.start.server.remove_finalizer(&name, None);
        }
        self
    }

    /// Begins when these pods run, too.
    fn running(mut self, pods: &[(&str, usize)]) -> Self {
        for (network, machine) in pods {
            self.start.take(&Action::Create(name(network), *machine, None));
            self.start.round().expect("nothing has gone wrong yet");
        }
        self
    }

    fn waits(mut self, count: u8, waits: &'static [Seconds]) -> Self {
        (self.left.waits, self.waits) = (count, waits);
        self
    }

    /// What can happen next, each with what is left then.
    fn actions(&self, State { world, left }: &State) -> Vec<(Action, Left)> {
        let mut actions: Vec<(Action, Left)> = Vec::new();
        let mut can = |action| actions.push((action, left.clone()));
        for (c, controller) in world.controllers.iter().enumerate() {
            let kinds = [Kind::Objects, Kind::Blocks, Kind::Leases];
            let behind: Vec<Kind> =
                kinds.into_iter().filter(|kind| controller.is_behind(*kind, &world.server)).collect();
            if !self.is_fine {
                if !behind.is_empty() || controller.is_due {
                    can(Action::Act(c));
                }
                continue;
            }
            behind.into_iter().for_each(|kind| can(Action::See(c, kind)));
            if controller.is_due && controller.requests.is_empty() {
                can(Action::Plan(c));
            }
            (0..controller.requests.len()).for_each(|index| can(Action::Deliver(c, index)));
        }
        for (m, machine) in world.machines.iter().enumerate() {
            if machine.is_connected && !self.is_fine {
                can(Action::Tend(m));
            } else if machine.is_behind(&world.server) {
                can(Action::Watch(m));
            }
            for pod in world.server.pods.keys().filter(|pod| machine.can_prepare(**pod, &world.server)) {
                can(Action::Prepare(m, *pod));
            }
            for pod in machine.plans.keys().filter(|pod| machine.can_add(**pod)) {
                can(Action::Add(m, *pod));
            }
            if machine.is_connected && self.is_fine {
                machine.ending(&world.server).into_iter().for_each(|pod| can(Action::End(m, pod)));
                can(Action::Keep(m));
            }
        }
        if let Some(edit) = self.script.get(left.edits) {
            actions.push((Action::Edit(edit.clone()), Left { edits: left.edits + 1, ..left.clone() }));
        }
        let used = world.used();
        let is_over = left.edits == self.script.len() && world.has_seen_config();
        for ip in self.devices.iter().filter(|ip| is_over && !used.contains(ip)) {
            actions.push((Action::Device(*ip), left.clone()));
        }
        if let Some((network, machine, asked)) = left.pods.first()
            && world.server.nodes.contains(&world.machines[*machine].name)
            && world.server.config.networks.contains_key(network)
        {
            let pods = left.pods[1..].to_vec();
            actions.push((Action::Create(network.clone(), *machine, *asked), Left { pods, ..left.clone() }));
        }
        let mut may = |count: fn(&mut Left) -> &mut u8, action: &mut dyn FnMut() -> Vec<Action>| {
            let mut next = left.clone();
            if let Some(less) = count(&mut next).checked_sub(1) {
                *count(&mut next) = less;
                actions.extend(action().into_iter().map(|action| (action, next.clone())));
            }
        };
        let live = || world.server.pods.iter().filter(|(_, pod)| !pod.is_deleting).map(|(pod, _)| *pod);
        let machines = || (0..world.machines.len()).collect::<Vec<_>>();
        may(|left| &mut left.deletes, &mut || live().map(Action::Delete).collect());
        may(|left| &mut left.forces, &mut || live().map(Action::Force).collect());
        may(|left| &mut left.sandboxes, &mut || {
            let of = |m: usize| world.machines[m].attached.keys().map(move |pod| Action::Sandbox(m, *pod));
            machines().into_iter().flat_map(of).collect()
        });
        may(|left| &mut left.cuts, &mut || machines().into_iter().map(Action::Cut).collect());
        may(|left| &mut left.crashes, &mut || machines().into_iter().map(Action::Crash).collect());
        may(|left| &mut left.leads, &mut || (0..world.controllers.len()).map(Action::Lead).collect());
        may(|left| &mut left.nodes, &mut || {
            let of = |m: usize| match world.machines[m].gone_since {
                None => Some(Action::DeleteNode(m)),
                Some(_) => world.machines[m].is_connected.then_some(Action::Register(m)),
            };
            machines().into_iter().filter_map(of).collect()
        });
        let of_blocks = |is_meant: fn(bool) -> bool, action: fn(String) -> Action| {
            let blocks = world.server.blocks.iter().filter(move |(_, block)| {
                is_meant(block.metadata.finalizers.is_some()) && block.metadata.deletion_timestamp.is_none()
            });
            blocks.map(|(name, _)| action(name.clone())).collect::<Vec<_>>()
        };
        may(|left| &mut left.blocks, &mut || of_blocks(|has| has, Action::DeleteBlock));
        may(|left| &mut left.finalizers, &mut || of_blocks(|has| has, Action::Unfinalize));
        may(|left| &mut left.leases, &mut || {
            world.server.leases.keys().cloned().map(Action::DeleteLease).collect()
        });
        may(|left| &mut left.restores, &mut || {
            vec![if world.copy.is_some() { Action::Restore } else { Action::Copy }]
        });
        may(|left| &mut left.waits, &mut || self.waits.iter().map(|time| Action::Wait(*time)).collect());
        actions
    }

    /// Visits every state; fails with a shortest trace.
    fn explore(self, title: &str) {
        let begin = Instant::now();
        let first = State { world: self.start.clone(), left: self.left.clone() };
        let root = first.fingerprint();
        let mut from: HashMap<u64, (u64, Option<Action>)> = HashMap::from([(root, (root, None))]);
        let mut queue = VecDeque::from([(root, 0usize, first)]);
        let (mut steps, mut depth, mut promises, mut is_complete) = (0u64, 0, 0u64, true);
        let mut has_leased = false;
        let whole = self.whole;
        let most = std::env::var("NETCLAIM_STATES").ok().and_then(|most| most.parse().ok()).unwrap_or(STATES);
        let trace = |from: &HashMap<u64, (u64, Option<Action>)>, mut at: u64| {
            let mut trace = Vec::new();
            while let Some((before, Some(action))) = from.get(&at) {
                trace.push(format!("{action:?}"));
                at = *before;
            }
            trace.reverse();
            trace.iter().enumerate().map(|(n, step)| format!("  {}. {step}\n", n + 1)).collect::<String>()
        };
        while let Some((at, steps_to, state)) = queue.pop_front() {
            let is_whole = whole.is_some_and(|states| states <= most && from.len() <= states);
            if steps_to > depth && from.len() > most && !is_whole {
                is_complete = false;
                break;
            }
            depth = depth.max(steps_to);
            for (action, left) in self.actions(&state) {
                let mut next = State { world: state.world.clone(), left };
                next.world.take(&action);
                steps += 1;
                let print = next.fingerprint();
                if from.contains_key(&print) {
                    continue;
                }
                from.insert(print, (at, Some(action)));
                has_leased |= !next.world.server.blocks.is_empty() || !next.world.server.leases.is_empty();
                if let Err(wrong) = next.world.check() {
                    panic!("{title}: {wrong}\n{}", trace(&from, print));
                }
                if print.is_multiple_of(PROMISE) {
                    promises += 1;
                    if let Err(wrong) = next.world.clone().heal(80) {
                        panic!(
                            "{title}, and then nothing goes wrong any more: {wrong}\n{}",
                            trace(&from, print)
                        );
                    }
                }
                queue.push_back((print, steps_to + 1, next));
            }
        }
        let time = begin.elapsed();
        println!(
            "{title}: {} {} states, {steps} steps, depth {}, the promise in {promises}, {:.1} s",
            if is_complete { "all" } else { "the first" },
            from.len(),
            depth + 1,
            time.as_secs_f64()
        );
        assert!(has_leased && from.len() > 100, "{title}: a world in which nothing happens");
        let is_meant = |states: usize| states > most || (is_complete && from.len() < states);
        assert!(whole.is_none_or(is_meant), "{title}: a world of more states than it is said to have");
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Addresses from 10.0.0.`first` to 10.0.0.`last`, in blocks of two.
fn range(first: u8, last: u8) -> Value {
    json!({"subnet": "10.0.0.0/24", "rangeStart": format!("10.0.0.{first}"), "rangeEnd": format!("10.0.0.{last}")})
}

fn inline(range: Value) -> Option<Value> {
    Some(json!({"ranges": [range], "blockSize": {"ipv4": 31}}))
}

/// The ClaimNetwork `red` with 10.0.0.2, .3 and .4.
fn red() -> Config {
    config(0, &[("red", network(inline(range(2, 4)), None))], &[])
}

/// `red` and `blue` with a pool of the three addresses, in blocks of one.
fn shared() -> Config {
    let of_pool = || network(Some(json!({"poolName": "lan"})), None);
    let pool = json!({"ranges": [range(2, 4)], "blockSize": {"ipv4": 32}});
    config(0, &[("red", of_pool()), ("blue", of_pool())], &[("lan", pool)])
}

#[test]
fn pods_come_and_go_and_two_controllers_lead() {
    let mut small = Small::new(shared(), 2)
        .settled()
        .emptied()
        .pods(&[("red", 0), ("blue", 1)])
        .left(|left| left.deletes = 1);
    small.is_fine = true;
    small.explore("two controllers");
}

#[test]
fn the_name_of_a_cni_network_changes() {
    let renamed = config(1, &[("red", network(inline(range(2, 4)), Some("lan")))], &[]);
    Small::new(red(), 1)
        .settled()
        .pods(&[("red", 0), ("red", 0)])
        .script(vec![("red gets another cni.name", renamed)])
        .left(|left| left.sandboxes = 1)
        .whole(60_000)
        .explore("cni.name");
}

#[test]
fn an_excluded_address_goes_to_a_router() {
    let mut without = range(2, 4);
    without["exclude"] = json!(["10.0.0.3"]);
    let excluded = config(1, &[("red", network(inline(without), None))], &[]);
    let mut small = Small::new(red(), 1)
        .settled()
        .pods(&[("red", 0)])
        .script(vec![("red excludes 10.0.0.3", excluded)])
        .left(|left| left.sandboxes = 1)
        .waits(1, &[11]);
    small.devices = vec![ip("10.0.0.3")];
    small.whole(30_000).explore("exclude");
}

#[test]
fn a_range_moves_to_another_network() {
    for cut in [3, 4] {
        let less = || ("red", network(inline(range(2, cut - 1)), None));
        let moved = ("blue", network(inline(range(cut, 4)), None));
        Small::new(red(), 1)
            .settled()
            .running(&[("red", 0), ("red", 0), ("red", 1)])
            .pods(&[("blue", 0)])
            .script(vec![
                ("red has fewer addresses", config(1, &[less()], &[])),
                ("blue has them", config(2, &[less(), moved], &[])),
            ])
            .waits(1, &[11])
            .whole(5_000)
            .explore(&format!("a range from .{cut} moves"));
    }
}

#[test]
fn a_claim_moves_with_its_address_and_admins_delete_leases() {
    let with = json!({"ranges": [range(2, 4)], "blockSize": {"ipv4": 31}, "reserved": ["10.0.0.4"]});
    let asked = Some(ip("10.0.0.4"));
    let world = || {
        Small::new(config(0, &[("red", network(Some(with.clone()), None))], &[]), 1)
            .left(|left| left.pods = vec![(name("red"), 0, asked), (name("red"), 1, asked)])
    };
    world().left(|left| (left.leases, left.crashes) = (1, 1)).whole(5_000).explore("leases, an agent dies");
    let deleted = world().left(|left| (left.leases, left.deletes) = (1, 1)).waits(1, &[61]);
    deleted.whole(100_000).explore("leases, a pod is deleted");
    let all = world().left(|left| (left.leases, left.deletes, left.crashes) = (1, 1, 1));
    all.waits(1, &[61]).explore("leases");
}

#[test]
fn an_address_is_reserved_while_a_block_of_another_size_has_it() {
    let with = |reserved: Value| {
        let ranges = json!([{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.2", "rangeEnd": "10.0.0.3"},
            {"subnet": "10.0.1.0/30"}]);
        Some(json!({"ranges": ranges, "blockSize": {"ipv4": 29}, "reserved": reserved}))
    };
    let reserved = config(1, &[("red", network(with(json!(["10.0.1.2"])), None))], &[]);
    let asked = Some(ip("10.0.1.2"));
    Small::new(config(0, &[("red", network(with(json!([])), None))], &[]), 1)
        .script(vec![("red reserves 10.0.1.2", reserved)])
        .left(|left| {
            left.pods = vec![(name("red"), 1, None), (name("red"), 0, asked)];
            left.deletes = 1;
        })
        .waits(1, &[11])
        .whole(30_000)
        .explore("reserved later");
}

#[test]
fn nodes_are_cut_off_and_their_objects_are_deleted() {
    let world = || Small::new(red(), 1).settled().running(&[("red", 1), ("red", 0)]).pods(&[("red", 1)]);
    world().left(|left| left.nodes = 1).waits(2, &[335]).whole(30_000).explore("deleted nodes");
    let cut = world().left(|left| (left.cuts, left.nodes) = (1, 1)).waits(2, &[335]);
    cut.whole(100_000).explore("nodes that are cut off and deleted");
    world().left(|left| (left.cuts, left.nodes) = (2, 2)).waits(3, &[275, 335]).explore("nodes");
}

#[test]
fn blocks_are_deleted_and_agents_die() {
    let world = || Small::new(shared(), 1).settled().running(&[("red", 0), ("blue", 1)]);
    let crash = || world().left(|left| (left.blocks, left.crashes) = (1, 1)).whole(5_000);
    crash().pods(&[("red", 1)]).explore("a deleted block, an agent dies");
    crash().waits(1, &[11]).explore("a deleted block, an agent dies, later");
    let force = world().left(|left| (left.blocks, left.forces) = (1, 1)).pods(&[("red", 1)]);
    force.whole(5_000).explore("a deleted block and pod");
    let all = world().left(|left| (left.blocks, left.crashes, left.forces) = (1, 1, 1));
    all.pods(&[("red", 1)]).waits(2, &[11]).explore("deleted blocks");
}

#[test]
fn an_admin_takes_the_finalizer_off_a_block() {
    let world = || {
        let world = Small::new(red(), 1).settled().running(&[("red", 0)]).pods(&[("red", 1)]);
        world.left(|left| (left.finalizers, left.blocks, left.leads) = (1, 1, 1))
    };
    world().whole(20_000).explore("finalizers");
    world().waits(1, &[11]).explore("finalizers, later");
}

#[test]
fn a_block_that_was_given_back_and_is_there_again_serves_pods() {
    let mut world = Small::new(shared(), 1).settled().running(&[("red", 0)]).start;
    for action in [
        Action::Copy,
        Action::Wait(11),
        Action::Act(0),
        Action::DeleteBlock("pool.lan.10.0.0.4-32".into()),
        Action::Tend(1),
        Action::Restore,
        Action::Create(name("blue"), 1, None),
        Action::Wait(11),
        Action::Tend(1),
    ] {
        world.take(&action);
    }
    world.heal(80).expect("the pod gets the address");
}

#[test]
fn etcd_is_restored() {
    let world = || {
        let world = Small::new(shared(), 1).settled().running(&[("red", 0)]).pods(&[("blue", 1)]);
        world.left(|left| left.restores = 2)
    };
    world().waits(1, &[11]).whole(5_000).explore("restore, 11 s");
    world().waits(1, &[301]).whole(5_000).explore("restore, 301 s");
    world().left(|left| left.blocks = 1).waits(2, &[11, 301]).explore("restore");
}

#[test]
fn a_full_node_waits_beside_an_idle_one() {
    let world = || {
        let four = config(0, &[("red", network(inline(range(2, 5)), None))], &[]);
        Small::new(four, 1).pods(&[("red", 0), ("red", 0), ("red", 0)]).waits(1, &[31])
    };
    world().whole(20_000).explore("idle blocks");
    let disturbed = world().left(|left| (left.blocks, left.deletes) = (1, 1));
    disturbed.explore("idle blocks, and one is deleted");
}

#[test]
fn a_pod_from_before_the_addresses_of_its_network_keeps_its_own() {
    let before = config(0, &[("red", network(None, None))], &[]);
    let after = config(1, &[("red", network(inline(range(2, 4)), None))], &[]);
    let mut small = Small::new(before, 1)
        .settled()
        .script(vec![("red gets addresses", after)])
        .pods(&[("red", 0), ("red", 0)])
        .left(|left| left.deletes = 1)
        .waits(1, &[11]);
    small.start.start_before(&name("red"), 1, ip("10.0.0.3"));
    small.whole(20_000).explore("before");
}
