//! Everything at one moment, what can happen next, and what must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ipnet::IpNet;
use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressPoolSpec, Family, Span};
use tokio::time::Instant;

use crate::controller::{Controller, Kind};
use crate::machine::{Machine, span_addresses};
use crate::server::{Config, Pod, PodObject, Seconds, Server, claim_uid};

/// How long a Node object must be gone before its blocks are free.
pub const SAFETY: Seconds = 600;

static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns what a clock that runs so many percent fast shows.
pub fn instant(now: Seconds, rate: u32) -> Instant {
    *BASE + Duration::from_millis(u64::from(now) * u64::from(rate) * 10)
}

#[derive(Debug, Clone)]
pub struct World {
    pub now: Seconds,
    pub server: Server,
    /// The copy of etcd.
    pub copy: Option<Arc<Server>>,
    pub controllers: Vec<Controller>,
    pub machines: Vec<Machine>,
    /// Addresses of routers and other devices.
    pub devices: BTreeSet<IpAddr>,
    /// Pods that the restored API server does not know: their kubelets end them.
    pub unknown: BTreeSet<Pod>,
    pub last_pod: Pod,
}

/// One step.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Action {
    // A controller, by its index.
    See(usize, Kind),
    Plan(usize),
    Deliver(usize, usize),
    Lose(usize, usize),
    Collect(usize),
    /// It dies, and another one leads.
    Lead(usize),
    /// It sees everything, plans, and its requests arrive.
    Act(usize),
    // A machine, by its index.
    Watch(usize),
    /// Only the watch of blocks.
    Hear(usize),
    /// Its agent sees everything, ends pods and keeps its blocks.
    Tend(usize),
    Prepare(usize, Pod),
    Add(usize, Pod),
    /// The pod gets a new sandbox.
    Sandbox(usize, Pod),
    /// The kubelet ends a pod that is deleted.
    End(usize, Pod),
    Keep(usize),
    /// The agent dies.
    Crash(usize),
    /// The machine is cut off from the API server, or reaches it again.
    Cut(usize),
    // Users.
    Create(NetworkName, usize, Option<IpAddr>),
    Delete(Pod),
    Force(Pod),
    // Admins.
    Edit(Edit),
    DeleteBlock(String),
    DeleteLease(String),
    Unfinalize(String),
    DeleteNode(usize),
    Register(usize),
    Copy,
    Restore,
    /// A device outside of the cluster takes an address that no ClaimNetwork has any more.
    Device(IpAddr),
    Wait(Seconds),
}

/// A change of ClaimNetworks and AddressPools.
#[derive(Clone)]
pub struct Edit {
    pub what: String,
    pub config: Arc<Config>,
}

impl PartialEq for Edit {
    fn eq(&self, other: &Self) -> bool {
        self.config.version == other.config.version
    }
}

impl Eq for Edit {}

impl Hash for Edit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.config.version.hash(state);
    }
}

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::See(c, kind) => write!(f, "controller {c} sees {kind:?}"),
            Self::Plan(c) => write!(f, "controller {c} plans"),
            Self::Deliver(c, n) => write!(f, "request {n} of controller {c} arrives"),
            Self::Lose(c, n) => write!(f, "request {n} of controller {c} fails"),
            Self::Collect(c) => write!(f, "controller {c} deletes idle leases"),
            Self::Act(c) => write!(f, "controller {c} sees everything and acts"),
            Self::Lead(c) => write!(f, "controller {c} dies, and another one leads"),
            Self::Watch(m) => write!(f, "the agent of node{m} sees everything"),
            Self::Hear(m) => write!(f, "the agent of node{m} sees its blocks"),
            Self::Tend(m) => write!(f, "the agent of node{m} sees everything and keeps its blocks"),
            Self::Prepare(m, pod) => write!(f, "the agent of node{m} prepares pod {pod}"),
            Self::Add(m, pod) => write!(f, "ADD of pod {pod} on node{m}"),
            Self::Sandbox(m, pod) => write!(f, "pod {pod} on node{m} gets a new sandbox"),
            Self::End(m, pod) => write!(f, "pod {pod} ends on node{m}"),
            Self::Keep(m) => write!(f, "the agent of node{m} keeps its blocks"),
            Self::Crash(m) => write!(f, "the agent of node{m} dies"),
            Self::Cut(m) => write!(f, "node{m} is cut off, or reaches the API server again"),
            Self::Create(network, m, None) => write!(f, "a pod on node{m} wants an address of {network}"),
            Self::Create(network, m, Some(ip)) => write!(f, "a pod on node{m} wants {ip} of {network}"),
            Self::Delete(pod) => write!(f, "pod {pod} is deleted"),
            Self::Force(pod) => write!(f, "pod {pod} is deleted by force"),
            Self::Edit(edit) => write!(f, "admin: {edit:?}"),
            Self::DeleteBlock(name) => write!(f, "admin deletes AddressBlock {name}"),
            Self::DeleteLease(name) => write!(f, "admin deletes AddressLease {name}"),
            Self::Unfinalize(name) => write!(f, "admin takes the finalizer off AddressBlock {name}"),
            Self::DeleteNode(m) => write!(f, "admin deletes Node node{m}"),
            Self::Register(m) => write!(f, "node{m} registers again"),
            Self::Copy => f.write_str("etcd is copied"),
            Self::Restore => f.write_str("etcd is restored from the copy"),
            Self::Device(ip) => write!(f, "a router takes {ip}"),
            Self::Wait(seconds) => write!(f, "{seconds} s pass"),
        }
    }
}

impl World {
    /// A cluster that begins, whose clocks run at these rates, in percent.
    pub fn new(config: Config, machines: &[u32], controllers: &[u32]) -> Self {
        let names: Vec<String> = (0..machines.len()).map(|n| format!("node{n}")).collect();
        let server = Server {
            config: Arc::new(config),
            nodes: Arc::new(names.iter().cloned().collect()),
            ..Server::default()
        };
        let now = 1;
        let controllers = controllers.iter().map(|rate| Controller::new(&server, *rate, now)).collect();
        let mut machines: Vec<Machine> =
            names.iter().zip(machines).map(|(name, rate)| Machine::new(name, *rate)).collect();
        for machine in &mut machines {
            machine.see(&server, now);
        }
        Self {
            now,
            server,
            copy: None,
            controllers,
            machines,
            devices: BTreeSet::new(),
            unknown: BTreeSet::new(),
            last_pod: 0,
        }
    }

    /// A pod has an address from before its ClaimNetwork had `addresses`.
    pub fn start_before(&mut self, network: &NetworkName, machine: usize, ip: IpAddr) {
        self.take(&Action::Create(network.clone(), machine, None));
        self.machines[machine].attached.insert(self.last_pod, vec![ip]);
        if let Some(object) = Arc::make_mut(&mut self.server.pods).get_mut(&self.last_pod) {
            object.written = vec![ip];
        }
    }

    fn attached(&self) -> BTreeSet<Pod> {
        self.machines.iter().flat_map(|machine| machine.attached.keys().copied()).collect()
    }

    /// Takes one step.
    pub fn take(&mut self, action: &Action) {
        let now = self.now;
        match action {
            Action::See(c, kind) => self.controllers[*c].see(*kind, &self.server, now),
            Action::Plan(c) => {
                let attached = self.attached();
                self.controllers[*c].plan(&attached, now);
            }
            Action::Deliver(c, index) => self.controllers[*c].deliver(*index, false, &mut self.server, now),
            Action::Lose(c, index) => self.controllers[*c].deliver(*index, true, &mut self.server, now),
            Action::Collect(c) => self.controllers[*c].collect(&mut self.server),
            Action::Lead(c) => self.controllers[*c] = Controller::new(&self.server, 100, now),
            Action::Act(c) => {
                for kind in [Kind::Objects, Kind::Blocks, Kind::Leases] {
                    self.take(&Action::See(*c, kind));
                }
                self.take(&Action::Collect(*c));
                self.take(&Action::Plan(*c));
                while !self.controllers[*c].requests.is_empty() {
                    self.take(&Action::Deliver(*c, 0));
                }
                for kind in [Kind::Blocks, Kind::Leases] {
                    self.take(&Action::See(*c, kind));
                }
                self.controllers[*c].is_due = false;
            }
            Action::Watch(m) => self.machines[*m].see(&self.server, now),
            Action::Hear(m) => self.machines[*m].hear(&self.server, now),
            Action::Tend(m) => {
                self.take(&Action::Watch(*m));
                for pod in self.machines[*m].ending(&self.server) {
                    self.take(&Action::End(*m, pod));
                }
                self.take(&Action::Keep(*m));
            }
            Action::Prepare(m, pod) => self.machines[*m].prepare(*pod, &mut self.server, now),
            Action::Add(m, pod) => self.machines[*m].add(*pod, now),
            Action::Sandbox(m, pod) => self.machines[*m].del(*pod),
            Action::End(m, pod) => {
                self.machines[*m].unprepare(*pod);
                Arc::make_mut(&mut self.server.pods).remove(pod);
            }
            Action::Keep(m) => self.machines[*m].keep(&mut self.server, now),
            Action::Crash(m) => self.machines[*m].crash(),
            Action::Cut(m) => {
                let machine = &mut self.machines[*m];
                machine.is_connected = !machine.is_connected;
            }
            Action::Create(network, m, asked) => {
                self.last_pod += 1;
                let object = PodObject {
                    network: network.clone(),
                    node: self.machines[*m].name.clone(),
                    asked: *asked,
                    is_deleting: false,
                    written: Vec::new(),
                };
                Arc::make_mut(&mut self.server.pods).insert(self.last_pod, object);
            }
            Action::Delete(pod) => {
                if let Some(object) = Arc::make_mut(&mut self.server.pods).get_mut(pod) {
                    object.is_deleting = true;
                }
                // Without anything on a node, the kubelet removes it at once.
                let has =
                    |machine: &Machine| machine.plans.contains_key(pod) || machine.attached.contains_key(pod);
                if !self.machines.iter().any(has) {
                    Arc::make_mut(&mut self.server.pods).remove(pod);
                }
            }
            Action::Force(pod) => {
                Arc::make_mut(&mut self.server.pods).remove(pod);
            }
            Action::Edit(edit) => self.server.config = Arc::clone(&edit.config),
            Action::DeleteBlock(name) => {
                self.server.delete_block(name, None, now);
            }
            Action::DeleteLease(name) => self.server.delete_lease(name, now),
            Action::Unfinalize(name) => {
                self.server.remove_finalizer(name, None);
            }
            Action::DeleteNode(m) => {
                let name = &self.machines[*m].name;
                Arc::make_mut(&mut self.server.nodes).remove(name);
                Arc::make_mut(&mut self.server.pods).retain(|_, pod| pod.node != *name);
                self.machines[*m].gone_since = Some(now);
            }
            Action::Register(m) => {
                let machine = &mut self.machines[*m];
                Arc::make_mut(&mut self.server.nodes).insert(machine.name.clone());
                // The kubelet ends what the API server does not know before anything else.
                if machine.is_connected && machine.gone_since.take().is_some() {
                    for pod in machine.ending(&self.server) {
                        machine.unprepare(pod);
                    }
                }
            }
            Action::Copy => self.copy = Some(Arc::new(self.server.clone())),
            Action::Restore => {
                let Some(copy) = self.copy.take() else { return };
                self.server.restore(&copy);
                let running = self.attached();
                self.unknown.extend(running.into_iter().filter(|pod| !self.server.pods.contains_key(pod)));
                for machine in &mut self.machines {
                    machine.gone_since =
                        if self.server.nodes.contains(&machine.name) { None } else { Some(now) };
                }
                // The API server is another one: controllers start again.
                for controller in &mut self.controllers {
                    *controller = Controller::new(&self.server, 100, now);
                }
            }
            Action::Device(ip) => {
                self.devices.insert(*ip);
            }
            Action::Wait(seconds) => {
                self.now += seconds;
                for controller in &mut self.controllers {
                    controller.is_due = true;
                }
            }
        }
        for controller in &mut self.controllers {
            controller.nodes_are(&self.server.nodes);
        }
    }

    /// The invariant: no address is in two pods, unless the Node object of one is gone for the safety time.
    pub fn check(&self) -> Result<(), String> {
        let mut holders: BTreeMap<IpAddr, String> = BTreeMap::new();
        for ip in &self.devices {
            holders.insert(*ip, "a router".to_owned());
        }
        for machine in &self.machines {
            // Clocks differ by one percent.
            let is_over = |since: Seconds| self.now - since >= SAFETY * 98 / 100;
            if machine.gone_since.is_some_and(is_over) {
                continue;
            }
            for (pod, addresses) in machine.attached.iter().filter(|(pod, _)| !self.unknown.contains(pod)) {
                for ip in addresses {
                    let holder = format!("pod {pod} on {}", machine.name);
                    if let Some(other) = holders.insert(*ip, holder.clone()) {
                        return Err(format!(
                            "{ip} is in {other} and in {holder}, {} s after the start",
                            self.now
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether everybody has seen what admins have written.
    pub fn has_seen_config(&self) -> bool {
        !self.controllers.iter().any(|controller| controller.is_behind(Kind::Objects, &self.server))
            && !self.machines.iter().any(|machine| machine.is_behind(&self.server))
    }

    /// Addresses that pods, claims and devices have.
    pub fn used(&self) -> BTreeSet<IpAddr> {
        let attached = self.machines.iter().flat_map(|machine| machine.attached.values().flatten());
        let leased = self.server.leases.values().filter_map(|lease| lease.spec.address.as_ref());
        attached.chain(leased).chain(&self.devices).copied().collect()
    }

    /// Lets everything work again. Returns what `check` or the promise says.
    pub fn heal(mut self, rounds: usize) -> Result<(), String> {
        self.controllers.truncate(1);
        for m in 0..self.machines.len() {
            self.machines[m].is_connected = true;
            if self.machines[m].gone_since.is_some() {
                self.take(&Action::Register(m));
            }
        }
        for _ in 0..rounds {
            self.round()?;
            if self.server.pods.keys().all(|pod| self.attached().contains(pod)) {
                return Ok(());
            }
        }
        self.promise()
    }

    /// Lets 15 s pass in which everybody does what is to be done.
    pub fn round(&mut self) -> Result<(), String> {
        for m in 0..self.machines.len() {
            self.take(&Action::Watch(m));
            for pod in self.machines[m].ending(&self.server) {
                self.take(&Action::End(m, pod));
            }
            for pod in self.server.pods.keys().copied().collect::<Vec<_>>() {
                self.take(&Action::Prepare(m, pod));
                self.take(&Action::Prepare(m, pod));
            }
            for pod in self.machines[m].plans.keys().copied().collect::<Vec<_>>() {
                self.take(&Action::Add(m, pod));
            }
            self.take(&Action::Keep(m));
        }
        for c in 0..self.controllers.len() {
            self.take(&Action::Act(c));
        }
        self.take(&Action::Wait(15));
        self.check()
    }

    /// The promise: no pod waits while an address is free that it could get.
    pub fn promise(&self) -> Result<(), String> {
        let (used, attached) = (self.used(), self.attached());
        for (pod, object) in self.server.pods.iter().filter(|(pod, _)| !attached.contains(pod)) {
            let Some((key, spec)) = self.pool_of(&object.network) else { continue };
            let found = match object.asked {
                Some(ip) => {
                    let others = self.server.leases.values().filter(|lease| lease.spec.address == Some(ip));
                    let mut others = others.filter(|lease| lease.spec.holder.uid != claim_uid(*pod));
                    let running =
                        self.machines.iter().flat_map(|machine| machine.attached.values().flatten());
                    let is_free =
                        others.next().is_none() && !running.chain(&self.devices).any(|one| *one == ip);
                    let is_asked = spec.reserved.iter().any(|span| span.contains(ip));
                    // A block that was leased before the address was reserved goes as a whole, with its last
                    // pod.
                    let has_pods = |block: &IpNet| used.iter().any(|one| block.contains(one));
                    let mut blocks = self.server.blocks.values().map(|block| &block.spec);
                    let is_in_use = blocks.any(|block| block.hands_out(ip) && has_pods(&block.cidr));
                    (is_free && is_asked && !is_in_use).then(|| ip.to_string())
                }
                None => {
                    let free = |family| self.free(&object.network, &object.node, &key, &spec, family, &used);
                    let free: Option<Vec<String>> = spec.families().into_iter().map(free).collect();
                    free.map(|free| free.join(", "))
                }
            };
            if let Some(free) = found {
                return Err(format!(
                    "pod {pod} of {} waits on {} though {free} is free, {} s after the start; blocks: {:?}",
                    object.network,
                    object.node,
                    self.now,
                    self.server
                        .blocks
                        .values()
                        .map(|block| {
                            let deleting = block.metadata.deletion_timestamp.is_some();
                            format!(
                                "{}@{}{}",
                                block.spec.name(),
                                block.spec.node,
                                if deleting { " (deleting)" } else { "" }
                            )
                        })
                        .collect::<Vec<_>>()
                ));
            }
        }
        Ok(())
    }

    pub fn pool_of(&self, network: &NetworkName) -> Option<(String, AddressPoolSpec)> {
        let (spec, is_accepted) = self.server.config.networks.get(network)?;
        let addresses = spec.addresses.as_ref().filter(|_| *is_accepted)?;
        let pool = match &addresses.pool {
            Some(pool) => self.server.config.pools.get(pool).cloned()?,
            None => addresses.inline()?,
        };
        Some((addresses.key(network).to_string(), pool))
    }

    /// Returns an address of a family that the node has free, or an unused block.
    fn free(
        &self,
        network: &NetworkName,
        node: &str,
        key: &str,
        spec: &AddressPoolSpec,
        family: Family,
        used: &BTreeSet<IpAddr>,
    ) -> Option<String> {
        let is_free = |span: &Span| span_addresses(*span).any(|ip| !used.contains(&ip));
        let own = self.server.blocks.values().filter(|block| {
            block.metadata.deletion_timestamp.is_none()
                && block.spec.network == *network
                && block.spec.node == node
                && block.spec.key().to_string() == key
                && Family::of(block.spec.cidr.addr()) == family
        });
        for block in own {
            if block.spec.usable(spec).iter().any(is_free) {
                return Some(format!("an address of {}", block.spec.cidr));
            }
        }
        let sizes = self.server.blocks.values().find(|block| block.spec.key().to_string() == key);
        let recorded = self.server.sizes.iter().find(|(of, _)| of.to_string() == key);
        let prefix = spec.block_size.and_then(|size| size.of(family));
        let prefix = prefix.or_else(|| recorded.and_then(|(_, size)| size.of(family)));
        let prefix = prefix.or_else(|| sizes.map(|block| block.spec.cidr.prefix_len()))?;
        let mut all = spec.blocks(family, prefix).take(64);
        let is_idle = |block: &IpNet| !used.iter().any(|ip| block.contains(ip));
        all.find(is_idle).map(|block| format!("block {block}"))
    }

    /// Returns a number that is the same for equal worlds.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        (self.now, &self.server, self.copy.is_some(), &self.controllers, &self.machines).hash(&mut hasher);
        (&self.devices, &self.unknown, self.last_pod).hash(&mut hasher);
        hasher.finish()
    }
}
