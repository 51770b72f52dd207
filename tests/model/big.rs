//! Random steps in big worlds. `NETCLAIM_SEED` repeats one world, `NETCLAIM_CASES` runs other numbers of
//! them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use crate::controller::Kind;
use crate::server::Config;
use crate::world::{Action, Edit, World};
use crate::{config, network};

/// Worlds of a run; each has [`STEPS`] steps.
const CASES: u64 = 100;
const STEPS: usize = 1_000;
/// Pods at once.
const PODS: usize = 14;

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

    fn one<T: Clone>(&mut self, of: impl IntoIterator<Item = T>) -> Option<T> {
        let all: Vec<T> = of.into_iter().collect();
        all.get(self.below(all.len())).cloned()
    }
}

/// What admins want, from which the ClaimNetworks and AddressPools follow.
#[derive(Clone)]
struct Wanted {
    version: u32,
    /// `own` has 10.1.0.2 to this, and `moved` the rest up to .40, if it exists.
    own_end: u8,
    has_moved: bool,
    /// The last address of the pool `lan`.
    lan_end: u8,
    excluded: Option<u8>,
    reserved: Option<u8>,
    has_six: bool,
    sizes: Option<Value>,
    lists: BTreeMap<&'static str, &'static str>,
    /// ClaimNetworks that do not exist, or that are not accepted.
    gone: Vec<&'static str>,
    refused: Vec<&'static str>,
}

const NETWORKS: [&str; 4] = ["own", "moved", "red", "blue"];

impl Wanted {
    fn config(&self) -> Config {
        let range = |net: u8, first: u8, last: u8| {
            json!({"subnet": format!("10.{net}.0.0/24"), "rangeStart": format!("10.{net}.0.{first}"),
                "rangeEnd": format!("10.{net}.0.{last}")})
        };
        let with = |range: Value| {
            let mut addresses = json!({"ranges": [range]});
            if let Some(sizes) = &self.sizes {
                addresses["blockSize"] = sizes.clone();
            }
            addresses
        };
        let mut own = range(1, 2, self.own_end);
        if let Some(excluded) = self.excluded.filter(|ip| *ip > 1 && *ip < self.own_end) {
            own["exclude"] = json!([format!("10.1.0.{excluded}")]);
        }
        let mut lan = with(range(2, 2, self.lan_end));
        if self.has_six {
            lan["ranges"].as_array_mut().unwrap().push(json!({"subnet": "fd02::/120"}));
        }
        if let Some(reserved) = self.reserved {
            lan["reserved"] = json!([format!("10.2.0.{reserved}")]);
        }
        let of = |name: &str| match name {
            "own" => with(own.clone()),
            "moved" => with(range(1, self.own_end + 1, 40)),
            _ => json!({"poolName": "lan"}),
        };
        let exists = |name: &&&str| !self.gone.contains(*name) && (**name != "moved" || self.has_moved);
        let networks: Vec<_> = NETWORKS
            .iter()
            .filter(exists)
            .map(|name| {
                let (spec, _) = network(Some(of(name)), self.lists.get(name).copied());
                (*name, (spec, !self.refused.contains(name)))
            })
            .collect();
        config(self.version, &networks, &[("lan", lan)])
    }
}

struct Case {
    seed: u64,
    random: Random,
    world: World,
    wanted: Wanted,
    /// The last steps.
    trace: Vec<String>,
    pods: usize,
    claims: usize,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let sizes = [Some(json!({"ipv4": 29, "ipv6": 126})), Some(json!({"ipv4": 30})), None];
        let wanted = Wanted {
            version: 0,
            own_end: 40,
            has_moved: false,
            lan_end: [15, 31, 63][random.below(3)],
            excluded: None,
            reserved: None,
            has_six: random.chance(40),
            sizes: sizes[random.below(3)].clone(),
            lists: BTreeMap::new(),
            gone: Vec::new(),
            refused: Vec::new(),
        };
        let machines: Vec<u32> = (0..2 + random.below(4)).map(|_| 99 + random.below(3) as u32).collect();
        let controllers = [99 + random.below(3) as u32, 99 + random.below(3) as u32];
        let world = World::new(wanted.config(), &machines, &controllers);
        Self { seed, random, world, wanted, trace: Vec::new(), pods: 0, claims: 0 }
    }

    fn fail(&self, wrong: &str) -> ! {
        let last = self.trace[self.trace.len().saturating_sub(60)..].join("\n  ");
        panic!("NETCLAIM_SEED={} repeats this: {wrong}. The last steps:\n  {last}", self.seed);
    }

    fn take(&mut self, action: Action) {
        self.trace.push(format!("{action:?}"));
        self.world.take(&action);
        if let Err(wrong) = self.world.check() {
            self.fail(&wrong);
        }
    }

    fn step(&mut self) {
        if let Some(action) = self.action() {
            self.take(action);
        }
    }

    fn action(&mut self) -> Option<Action> {
        let (random, world) = (&mut self.random, &self.world);
        let c = random.below(world.controllers.len());
        let m = random.below(world.machines.len());
        let machine = &world.machines[m];
        let block = |random: &mut Random| {
            let has_finalizer = world.server.blocks.iter().filter(|(_, block)| {
                block.metadata.finalizers.is_some() && block.metadata.deletion_timestamp.is_none()
            });
            random.one(has_finalizer.map(|(name, _)| name.clone()))
        };
        Some(match random.below(1000) {
            0..90 => Action::See(c, random.one([Kind::Objects, Kind::Blocks, Kind::Leases])?),
            90..160 => Action::Plan(c),
            160..270 => {
                let index = random.below(world.controllers[c].requests.len().max(1));
                let is_lost = random.chance(10);
                let _ = world.controllers[c].requests.get(index)?;
                if is_lost { Action::Lose(c, index) } else { Action::Deliver(c, index) }
            }
            270..280 => Action::Collect(c),
            280..370 => Action::Watch(m),
            370..390 => {
                if !machine.is_connected {
                    return None;
                }
                Action::Hear(m)
            }
            390..470 => Action::Keep(m),
            470..570 => Action::Prepare(m, random.one(world.server.pods.keys().copied())?),
            570..670 => Action::Add(m, random.one(machine.plans.keys().copied())?),
            670..720 => {
                let ending = machine.ending(&world.server).into_iter();
                Action::End(m, random.one(ending.filter(|_| machine.is_connected))?)
            }
            720..800 => {
                let networks: Vec<_> = world.server.config.networks.keys().cloned().collect();
                let network = random.one(networks)?;
                if world.server.pods.len() >= PODS || !world.server.nodes.contains(&machine.name) {
                    return None;
                }
                let is_asking = random.chance(20) && network.as_str() == "red" && !self.wanted.has_six;
                let asked = self.wanted.reserved.filter(|_| is_asking);
                self.pods += 1;
                self.claims += usize::from(asked.is_some());
                Action::Create(network, m, asked.map(|ip| IpAddr::from([10, 2, 0, ip])))
            }
            800..850 => Action::Delete(random.one(world.server.pods.keys().copied())?),
            850..858 => Action::Force(random.one(world.server.pods.keys().copied())?),
            858..868 => Action::Sandbox(m, random.one(machine.attached.keys().copied())?),
            868..878 => Action::Cut(m),
            878..888 => Action::Crash(m),
            888..892 => Action::Lead(c),
            892..896 => match machine.gone_since {
                None => Action::DeleteNode(m),
                Some(_) if machine.is_connected => Action::Register(m),
                Some(_) => return None,
            },
            896..902 => Action::DeleteBlock(block(random)?),
            902..904 => Action::DeleteLease(random.one(world.server.leases.keys().cloned())?),
            904..906 => Action::Unfinalize(block(random)?),
            906..926 => return self.edit(),
            926..930 => {
                // People check that no pod has an address, and that all programs have seen that it is
                // excluded.
                let excluded = self.wanted.excluded?;
                let ip = IpAddr::from([10, 1, 0, excluded]);
                if !world.has_seen_config() || world.used().contains(&ip) || excluded >= self.wanted.own_end {
                    return None;
                }
                Action::Device(ip)
            }
            930..933 => Action::Wait(60 + random.below(300) as u32),
            _ => Action::Wait(1 + random.below(8) as u32),
        })
    }

    /// One change of ClaimNetworks and AddressPools. No admin gives a range to two ClaimNetworks.
    fn edit(&mut self) -> Option<Action> {
        let random = &mut self.random;
        let mut wanted = self.wanted.clone();
        wanted.version += 1;
        let network = random.one(NETWORKS)?;
        let what = match random.below(8) {
            0 => {
                let list = random.one([None, Some("lan"), Some("other")])?;
                match list {
                    Some(list) => wanted.lists.insert(network, list),
                    None => wanted.lists.remove(network),
                };
                format!("{network} gets cni.name {list:?}")
            }
            1 => {
                // The router goes before its address is a pod's again.
                self.world.devices.clear();
                wanted.excluded = random.chance(60).then(|| 2 + random.below(20) as u8);
                format!("own excludes {:?}", wanted.excluded)
            }
            2 => {
                wanted.reserved = random.chance(70).then(|| 2 + random.below(12) as u8);
                format!("lan reserves {:?}", wanted.reserved)
            }
            3 if !wanted.has_moved && wanted.own_end == 40 => {
                wanted.own_end = 4 + random.below(30) as u8;
                format!("own ends at {}", wanted.own_end)
            }
            3 if !wanted.has_moved && random.chance(30) => {
                wanted.own_end = 40;
                "own has everything again".to_owned()
            }
            3 => {
                wanted.has_moved = !wanted.has_moved && wanted.own_end < 40;
                format!("moved exists: {}", wanted.has_moved)
            }
            4 => {
                wanted.lan_end = random.one([15, 31, 63])?;
                format!("lan ends at {}", wanted.lan_end)
            }
            5 => {
                match wanted.gone.iter().position(|gone| *gone == network) {
                    Some(at) => drop(wanted.gone.remove(at)),
                    None => wanted.gone.push(network),
                }
                format!("{network} is deleted or made again")
            }
            _ => {
                match wanted.refused.iter().position(|refused| *refused == network) {
                    Some(at) => drop(wanted.refused.remove(at)),
                    None => wanted.refused.push(network),
                }
                format!("{network} becomes invalid or valid")
            }
        };
        let config = Arc::new(wanted.config());
        self.wanted = wanted;
        Some(Action::Edit(Edit { what, config }))
    }

    /// Lets everything work again; in the end, nothing is left.
    fn end(mut self) -> (usize, usize) {
        let wanted = Wanted {
            gone: Vec::new(),
            refused: Vec::new(),
            version: self.wanted.version + 1,
            ..self.wanted.clone()
        };
        self.take(Action::Edit(Edit {
            what: "everything is valid".into(),
            config: Arc::new(wanted.config()),
        }));
        if let Err(wrong) = self.world.clone().heal(80) {
            self.fail(&format!("when nothing goes wrong any more, {wrong}"));
        }
        let none = Config { version: wanted.version + 1, ..Config::default() };
        self.take(Action::Edit(Edit { what: "there is no ClaimNetwork".into(), config: Arc::new(none) }));
        for pod in self.world.server.pods.keys().copied().collect::<Vec<_>>() {
            self.take(Action::Delete(pod));
        }
        for m in 0..self.world.machines.len() {
            self.world.machines[m].is_connected = true;
            if self.world.machines[m].gone_since.is_some() {
                self.take(Action::Register(m));
            }
        }
        for _ in 0..12 {
            if let Err(wrong) = self.world.round() {
                self.fail(&wrong);
            }
        }
        let left: Vec<&String> =
            self.world.server.blocks.keys().chain(self.world.server.leases.keys()).collect();
        if !left.is_empty() {
            self.fail(&format!("without ClaimNetworks and pods, {left:?} are left"));
        }
        (self.pods, self.claims)
    }
}

#[test]
fn no_address_is_in_two_pods_and_no_pod_waits_for_ever() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let seeds = match number("NETCLAIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("NETCLAIM_CASES").unwrap_or(CASES),
    };
    let (begin, cases, mut pods, mut claims) = (Instant::now(), seeds.end - seeds.start, 0, 0);
    for seed in seeds {
        let mut case = Case::new(seed);
        for _ in 0..STEPS {
            case.step();
        }
        let (of_case, claims_of_case) = case.end();
        pods += of_case;
        claims += claims_of_case;
    }
    let (steps, seconds) = (cases * STEPS as u64, begin.elapsed().as_secs_f64());
    println!(
        "{steps} steps, {pods} pods, {claims} claims for addresses, {:.0} steps/s",
        steps as f64 / seconds
    );
    assert!(pods > 0, "nothing has happened");
}
