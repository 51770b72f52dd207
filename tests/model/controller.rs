//! A controller: its watches, each of which may lag, and its requests, which arrive later or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressLease, HolderKind, PoolKey};
use netclaim_controller::door::{self, Request, Seen, WriteOutcome, Written};

use crate::server::{Blocks, Config, Leases, Pods, Seconds, Server, claim_uid, holder};
use crate::world::{SAFETY, instant};

#[derive(Debug, Clone)]
pub struct Controller {
    door: door::Controller,
    config: Arc<Config>,
    nodes: Arc<BTreeSet<String>>,
    /// Nodes that have existed since the last look at nodes: a watch shows every event, however late.
    nodes_since: BTreeSet<String>,
    blocks: Arc<Blocks>,
    leases: Arc<Leases>,
    pods: Arc<Pods>,
    pub requests: Vec<Request>,
    /// How fast its clock runs, in percent.
    rate: u32,
    /// Whether something is new since its last plan.
    pub is_due: bool,
}

/// What a watch is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// ClaimNetworks, AddressPools, Nodes and Pods.
    Objects,
    Blocks,
    Leases,
}

impl Controller {
    /// A controller that begins to lead, with complete lists.
    pub fn new(server: &Server, rate: u32, now: Seconds) -> Self {
        let mut controller = Self {
            door: door::Controller::new(Duration::from_secs(SAFETY.into()), instant(now, rate)),
            config: Arc::default(),
            nodes: Arc::default(),
            nodes_since: BTreeSet::new(),
            blocks: Arc::default(),
            leases: Arc::default(),
            pods: Arc::default(),
            requests: Vec::new(),
            rate,
            is_due: true,
        };
        for kind in [Kind::Objects, Kind::Blocks, Kind::Leases] {
            controller.see(kind, server, now);
        }
        controller
    }

    /// The nodes' watch shows this now or later.
    pub fn nodes_are(&mut self, nodes: &BTreeSet<String>) {
        if self.nodes_since != *nodes {
            self.nodes_since.extend(nodes.iter().cloned());
        }
    }

    pub fn is_behind(&self, kind: Kind, server: &Server) -> bool {
        match kind {
            Kind::Objects => {
                self.config.version != server.config.version
                    || self.nodes != server.nodes
                    || !Arc::ptr_eq(&self.pods, &server.pods)
            }
            Kind::Blocks => !Arc::ptr_eq(&self.blocks, &server.blocks),
            Kind::Leases => !Arc::ptr_eq(&self.leases, &server.leases),
        }
    }

    /// Lets one watch catch up.
    pub fn see(&mut self, kind: Kind, server: &Server, now: Seconds) {
        self.is_due = true;
        match kind {
            Kind::Objects => {
                self.config = Arc::clone(&server.config);
                self.pods = Arc::clone(&server.pods);
                let since = std::mem::take(&mut self.nodes_since);
                self.nodes = if since.iter().all(|node| server.nodes.contains(node)) {
                    Arc::clone(&server.nodes)
                } else {
                    Arc::new(since.into_iter().chain(server.nodes.iter().cloned()).collect())
                };
            }
            Kind::Blocks => {
                let now = instant(now, self.rate);
                for (name, block) in server.blocks.iter() {
                    if !self.blocks.get(name).is_some_and(|before| Arc::ptr_eq(before, block)) {
                        self.door.see_block(name, Some(block), now);
                    }
                }
                for name in self.blocks.keys().filter(|name| !server.blocks.contains_key(*name)) {
                    self.door.see_block(name, None, now);
                }
                self.blocks = Arc::clone(&server.blocks);
            }
            Kind::Leases => {
                for (name, lease) in server.leases.iter() {
                    if !self.leases.get(name).is_some_and(|before| Arc::ptr_eq(before, lease)) {
                        self.door.see_lease(name, Some(lease), instant(now, self.rate));
                    }
                }
                for name in self.leases.keys().filter(|name| !server.leases.contains_key(*name)) {
                    self.door.see_lease(name, None, instant(now, self.rate));
                }
                self.leases = Arc::clone(&server.leases);
            }
        }
    }

    /// Plans, and sends requests.
    pub fn plan(&mut self, attached: &BTreeSet<u32>, now: Seconds) {
        self.is_due = false;
        let mut waiting: BTreeMap<NetworkName, BTreeSet<String>> = BTreeMap::new();
        let waits = |pod: &u32, asked: bool| !attached.contains(pod) && !asked;
        for (_, object) in self.pods.iter().filter(|(pod, object)| waits(pod, object.asked.is_some())) {
            waiting.entry(object.network.clone()).or_default().insert(object.node.clone());
        }
        let requests = self.door.plan(&seen(&self.config, &self.nodes, &waiting), instant(now, self.rate));
        self.requests.extend(requests);
    }

    /// Lets a request arrive; `is_lost` if its answer is an error and nothing was done.
    pub fn deliver(&mut self, index: usize, is_lost: bool, server: &mut Server, now: Seconds) {
        let request = self.requests.remove(index);
        if request == Request::Survey && !is_lost {
            let written = server.pods.iter().flat_map(|(pod, object)| {
                object.written.iter().map(move |address| Written {
                    address: *address,
                    network: object.network.clone(),
                    node: object.node.clone(),
                    holder: holder(HolderKind::Pod, *pod),
                })
            });
            let (written, waiting): (Vec<Written>, _) = (written.collect(), BTreeMap::new());
            let seen = seen(&self.config, &self.nodes, &waiting);
            for (name, spec, node) in self.door.survey(&seen, &written, instant(now, self.rate)) {
                if !server.leases.contains_key(&name) {
                    server.create_lease(&name, spec);
                    server.confirm_lease(&name);
                    server.set_lease_node(&name, Some(&node));
                }
            }
        }
        let answer = if is_lost { WriteOutcome::Failed } else { server.answer(&request, now) };
        self.door.finish(&request, answer, instant(now, self.rate));
        self.is_due = true;
    }

    fn is_reserved(&self, lease: &AddressLease) -> bool {
        let pool = match lease.spec.key() {
            PoolKey::Pool(name) => self.config.pools.get(&name).cloned(),
            PoolKey::Network(name) => {
                let network = self.config.networks.get(&name);
                network.and_then(|(spec, _)| spec.addresses.as_ref()?.inline())
            }
        };
        let spans = pool.map(|pool| pool.reserved).unwrap_or_default();
        lease.spec.address.is_some_and(|ip| spans.iter().any(|span| span.contains(ip)))
    }

    /// Confirms leases of claims that exist. Deletes leases that no node uses and whose claim is gone, if
    /// they have not changed since they were seen.
    pub fn collect(&self, server: &mut Server) {
        for (name, lease) in self.leases.iter() {
            let is_idle = lease.status.as_ref().is_none_or(|status| status.node.is_none());
            let is_gone = !server.pods.keys().any(|pod| claim_uid(*pod) == lease.spec.holder.uid);
            let is_same = server.leases.get(name).is_some_and(|now| Arc::ptr_eq(now, lease));
            if is_idle && (is_gone || lease.metadata.deletion_timestamp.is_some()) && is_same {
                server.release_lease(name);
            } else if is_same && !is_gone && self.is_reserved(lease) {
                server.confirm_lease(name);
            }
        }
    }
}

fn seen<'a>(
    config: &'a Config,
    nodes: &'a BTreeSet<String>,
    waiting: &'a BTreeMap<NetworkName, BTreeSet<String>>,
) -> Seen<'a> {
    Seen { networks: &config.networks, pools: &config.pools, publishing: nodes, nodes, waiting }
}

impl Hash for Controller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.door.hash(state);
        (self.config.version, &self.nodes, &self.nodes_since, &self.pods, self.is_due).hash(state);
        for request in &self.requests {
            match request {
                Request::Record { pool, .. } => pool.hash(state),
                Request::Create(spec) => (spec.name(), &spec.node, spec.network.as_str()).hash(state),
                Request::Delete { name, uid } => (1, name, uid).hash(state),
                Request::Release { name, uid, node } => (name, uid, node).hash(state),
                Request::Hold { name, uid } => (2, name, uid).hash(state),
                Request::Survey => 3.hash(state),
            }
        }
    }
}
