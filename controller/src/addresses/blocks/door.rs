//! The door for the model of the whole (`tests/model`): what one controller decides about the objects that it
//! has seen, without its requests. Nothing else uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use netclaim_api::NetworkName;
use netclaim_api::addresses::{
    AddressBlock, AddressBlockSpec, AddressLease, AddressLeaseSpec, AddressPoolSpec, AddressTotals,
    BlockSize, Holder, PoolKey,
};
use netclaim_api::network::ClaimNetworkSpec;
use serde::Serialize;
use tokio::time::Instant;

use super::RETRY_DELAY;
use super::survey::{Found, Surveyed, Task};
use super::view::View;
use crate::addresses::leasing::Leasing;
use crate::demand::{Demand, Places};
use crate::objects::nodes::NodeFacts;

/// One controller: what it has seen of blocks and leases, and what it remembers.
#[derive(Debug, Clone)]
pub struct Controller {
    leasing: Leasing,
    view: View,
    in_flight: BTreeSet<String>,
    /// Requests that failed, and when they may be made again.
    delayed: BTreeMap<String, Instant>,
}

/// The other objects that it has seen.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The ClaimNetworks, each with whether it is accepted.
    pub networks: &'a BTreeMap<NetworkName, (ClaimNetworkSpec, bool)>,
    /// The accepted AddressPools.
    pub pools: &'a BTreeMap<String, AddressPoolSpec>,
    /// The nodes that publish all ClaimNetworks.
    pub publishing: &'a BTreeSet<String>,
    /// The names of all Node objects.
    pub nodes: &'a BTreeSet<String>,
    /// For each ClaimNetwork, the nodes for which pods wait.
    pub waiting: &'a BTreeMap<NetworkName, BTreeSet<String>>,
}

/// A request to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the writes are called")]
pub enum Request {
    Record {
        pool: PoolKey,
        totals: AddressTotals,
    },
    Create(AddressBlockSpec),
    Delete {
        name: String,
        uid: String,
    },
    Release {
        name: String,
        uid: String,
        node: String,
    },
    Hold {
        name: String,
        uid: String,
    },
    /// Look for addresses that pods have from before: the next call is that of [`Controller::survey`].
    Survey,
}

/// An address that the status of a claim has.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Written {
    pub address: IpAddr,
    pub network: NetworkName,
    pub node: String,
    pub holder: Holder,
}

impl Request {
    fn key(&self) -> String {
        match self {
            Self::Record { pool, .. } => format!("record {pool}"),
            Self::Create(spec) => format!("create {}", spec.name()),
            Self::Delete { name, .. } => format!("delete {name}"),
            Self::Release { name, .. } => format!("release {name}"),
            Self::Hold { name, .. } => format!("hold {name}"),
            Self::Survey => "survey".to_owned(),
        }
    }
}

/// How the API server answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum WriteOutcome {
    Done,
    Recorded(BlockSize),
    /// Another writer was faster, or the object is gone.
    Overtaken,
    Failed,
}

impl Controller {
    /// A controller that has just begun to lead.
    pub fn new(safety: Duration, now: Instant) -> Self {
        Self {
            leasing: Leasing::new(safety),
            view: View::new(now),
            in_flight: BTreeSet::new(),
            delayed: BTreeMap::new(),
        }
    }

    /// Takes in what the watch shows of a block; `None` for one that is gone.
    pub fn see_block(&mut self, name: &str, block: Option<&AddressBlock>, now: Instant) {
        self.view.apply_block(Ok(event(name, block)), now);
    }

    /// Takes in what the watch shows of a lease; `None` for one that is gone.
    pub fn see_lease(&mut self, name: &str, lease: Option<&AddressLease>, now: Instant) {
        self.view.apply_lease(Ok(event(name, lease)), now);
    }

    /// Plans, and returns what is to be asked of the API server.
    pub fn plan(&mut self, seen: &Seen<'_>, now: Instant) -> Vec<Request> {
        self.view.expire(now);
        self.delayed.retain(|_, until| *until > now);
        self.view.set_demand(demand(seen), now);
        let waiting = seen.waiting.iter().map(|(network, nodes)| {
            let places = nodes.iter().map(|node| Places::Nodes(BTreeSet::from([node.clone()])));
            (network.clone(), places.collect())
        });
        let (plan, unsurveyed) = self.view.plan(&mut self.leasing, &waiting.collect(), now);
        let is_due = unsurveyed.keys().any(|key| self.view.survey.due(key) <= now);
        let mut requests: Vec<Request> =
            plan.record.into_iter().map(|(pool, totals)| Request::Record { pool, totals }).collect();
        requests.extend(plan.create.into_iter().map(Request::Create));
        requests.extend(
            plan.delete.into_iter().map(|block| Request::Delete { name: block.name, uid: block.uid }),
        );
        requests.extend(plan.release.into_iter().map(|block| {
            let node = self.view.blocks.all().get(&block.name).map(|block| block.spec.node.clone());
            Request::Release { name: block.name, uid: block.uid, node: node.unwrap_or_default() }
        }));
        let holds = plan.hold.into_iter();
        requests.extend(holds.map(|block| Request::Hold { name: block.name, uid: block.uid }));
        requests.extend(is_due.then_some(Request::Survey));
        let delayed = &self.delayed;
        requests
            .retain(|request| !delayed.contains_key(&request.key()) && self.in_flight.insert(request.key()));
        for request in &requests {
            if let Request::Create(spec) = request {
                self.view.blocks.add_pending(spec.clone(), now);
            }
        }
        requests
    }

    /// Looks through what the claims have. Returns the leases to make, each with its node.
    pub fn survey(
        &mut self,
        seen: &Seen<'_>,
        written: &[Written],
        now: Instant,
    ) -> Vec<(String, AddressLeaseSpec, String)> {
        let demand = demand(seen);
        let mut pools = self.view.survey.missing(&demand);
        pools.retain(|key, _| self.view.survey.due(key) <= now);
        let task = Task::new(pools, &demand, &self.view.blocks, &self.view.leases);
        let specs = seen.networks.iter().map(|(name, (spec, _))| (name.clone(), spec.clone())).collect();
        let mut surveyed = Surveyed::default();
        let mut made = Vec::new();
        for Written { address, network, node, holder } in written {
            let (network, node) = (Some(network.clone()), Some(node.clone()));
            let found = Found { address: *address, network, node, holder: holder.clone() };
            for (name, spec, held) in task.leases(&found, &specs) {
                if surveyed.leases.contains_key(&name) {
                    surveyed.shared.insert(held.pool);
                    continue;
                }
                made.push((name.clone(), spec, found.node.clone().unwrap_or_default()));
                surveyed.leases.insert(name, held);
            }
        }
        surveyed.pools = task.pools.into_iter().map(|(key, pool)| (key, pool.digest)).collect();
        self.view.survey.finish(surveyed, now);
        made
    }

    /// Takes in the answer to a request.
    pub fn finish(&mut self, request: &Request, answer: WriteOutcome, now: Instant) {
        self.in_flight.remove(&request.key());
        match (request, answer) {
            (_, WriteOutcome::Failed) => {
                if let Request::Create(spec) = request {
                    self.view.blocks.remove_pending(&spec.name());
                }
                self.delayed.insert(request.key(), now + RETRY_DELAY);
            }
            (Request::Record { pool, .. }, WriteOutcome::Recorded(size)) => {
                self.view.sizes.insert(pool.clone(), size);
            }
            (Request::Create(spec), WriteOutcome::Overtaken) if !self.view.blocks.has(spec) => {
                self.view.avoid(spec, now);
            }
            (Request::Delete { name, uid }, _) => self.view.blocks.set_deleting(name, uid),
            _ => {}
        }
    }
}

/// Returns what the ClaimNetworks draw from, and the pools.
fn demand(seen: &Seen<'_>) -> Demand {
    let nodes = seen.nodes.iter().map(|node| (node.clone(), NodeFacts::default())).collect();
    let networks = seen.networks.iter();
    let networks = networks.map(|(name, (spec, is_accepted))| (name.clone(), is_accepted.then_some(spec)));
    let nodes_of = |_: &NetworkName| (seen.publishing.clone(), seen.nodes.clone());
    // Any of them may have been edited before this leader saw it.
    let revised = seen.networks.keys().cloned().collect();
    Demand { revised, nodes: Arc::new(nodes), ..Demand::of(seen.pools, networks, nodes_of) }
}

fn event(name: &str, object: Option<&impl Serialize>) -> Event<DynamicObject> {
    let read = |object| serde_json::from_value(serde_json::to_value(object).ok()?).ok();
    match object.and_then(read) {
        Some(object) => Event::Apply(object),
        None => Event::Delete(DynamicObject {
            types: None,
            metadata: kube::api::ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
            data: serde_json::Value::Null,
        }),
    }
}

impl Hash for Controller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.leasing.hash(state);
        for (name, block) in self.view.blocks.all() {
            (name, &block.uid, &block.spec.node, block.spec.network.as_str()).hash(state);
            (block.phase as u8, block.has_finalizer, block.used, block.wanted, block.reported).hash(state);
            block.holders.len().hash(state);
        }
        for (name, lease) in self.view.leases.all() {
            (name, &lease.uid, &lease.resource_version, lease.node.as_ref().map(|node| node.as_str()))
                .hash(state);
            (lease.is_deleting, lease.is_confirmed).hash(state);
        }
        self.view.survey.hash(state);
        self.view.sizes.keys().for_each(|key| key.hash(state));
        (&self.view.avoided, &self.in_flight, &self.delayed).hash(state);
    }
}
