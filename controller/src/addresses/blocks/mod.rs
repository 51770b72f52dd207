//! The loop that leases blocks of addresses to nodes: it carries out what [`crate::addresses::leasing`] plans.
//!
//! ```text
//!   reconciler ── Demand ──> watch ──> leasing ──> creates, deletes, releases ──> API server
//!   AddressBlocks, AddressLeases ──┘      │
//!   pods that wait, claims ────────┘      └── Leased ──> reconciler: status of ClaimNetworks and AddressPools
//! ```
//!
//! It is apart from the reconciler, so that no status write delays a lease. Requests run beside the watches; a block counts as
//! taken from the moment it is asked for.

mod claims;
#[doc(hidden)]
pub mod door;
mod store;
mod survey;
mod writes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kube::api::{ApiResource, DynamicObject, ResourceExt as _};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use netclaim_api::addresses::{
    AddressBlock, AddressBlockSpec, AddressLease, AddressTotals, BlockSize, Holder, HolderKind, PoolKey,
};
use netclaim_api::{NetworkName, ObjectName};
use netclaim_process::kubernetes::answered;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::claims::{Claims, Standing};
use self::store::{Blocks, Lease, Leases};
use self::survey::{Survey, Surveyed, Task};
use self::writes::{Done, LeaseRef, Unused, Writes};
use crate::addresses::leasing::{BlockRef, Leasing, Leaving, Plan, Removal, Supply, Why, World};
use crate::demand::{Demand, Needs};
use crate::metrics::{ADDRESS_STATES, Metrics};
use crate::objects::watches::{Refused, next_unless_refused};
use crate::pods::{AwaitingAddresses, Places};

/// Changes are gathered for this long before blocks are planned anew.
const GATHER: Duration = Duration::from_millis(100);

/// Planning takes at most this part of the time: one in so many.
const PLAN_SHARE: u32 = 5;

/// Actions on blocks that run at once.
const BLOCK_ACTIONS: usize = 32;

/// Actions on leases that run at once. They have slots of their own: whoever makes leases delays no block.
const LEASE_ACTIONS: usize = 8;

/// How long no block is created of which the API server says that it exists, but the watch does not show it.
const AVOID: Duration = Duration::from_secs(300);

/// Time between a failed request and the next try for the same object.
const RETRY: Duration = Duration::from_secs(5);

/// Time between two looks for leases whose holder is gone.
const COLLECT_INTERVAL: Duration = Duration::from_secs(1);

/// Holders of which no watch tells that are looked up at each [`COLLECT_INTERVAL`].
const LOOKUPS: usize = 5;

/// How long a node may be said to use an address before the watch of claims shows why.
const UNPROVEN: Duration = Duration::from_secs(10);

/// How the pools are, for the status of ClaimNetworks and AddressPools.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Leased {
    pub(crate) totals: BTreeMap<PoolKey, AddressTotals>,
    pub(crate) supply: BTreeMap<NetworkName, Supply>,
    pub(crate) leaving: Vec<Leaving>,
}

/// A request to be made.
#[derive(Debug, Clone)]
enum Action {
    Record { pool: PoolKey, totals: AddressTotals },
    Create(AddressBlockSpec),
    Delete(Removal),
    Release { block: Removal, node: ObjectName },
    Hold(BlockRef),
    DeleteLease { lease: LeaseRef, holder: Option<Holder> },
    ReleaseLease { lease: LeaseRef, pod: Option<Holder> },
    ConfirmLease(LeaseRef),
    ClearNode { lease: LeaseRef, node: ObjectName, why: Unused },
}

/// Actions of one kind, which wait and run.
struct Lane {
    slots: usize,
    queue: VecDeque<Action>,
    running: JoinSet<(Action, kube::Result<Done>)>,
}

impl Lane {
    fn new(slots: usize) -> Self {
        Self { slots, queue: VecDeque::new(), running: JoinSet::new() }
    }

    /// Begins as many actions as there are slots. An API server that does not answer takes none of them for long.
    fn start(&mut self, writes: &Writes) {
        while self.running.len() < self.slots
            && let Some(action) = self.queue.pop_front()
        {
            let writes = writes.clone();
            self.running.spawn(async move {
                let result = answered(action.carry_out(&writes)).await;
                (action, result)
            });
        }
    }
}

/// Leases blocks as `demand` says and as `pods` need them, and reports how the pools are. `driver` is whose addresses
/// the status of claims has. Does not return.
pub(crate) async fn run(
    (client, driver): (Client, String),
    safety: Duration,
    metrics: Metrics,
    (mut demand, mut needs): (watch::Receiver<Option<Demand>>, watch::Receiver<Needs>),
    report: watch::Sender<Leased>,
    pods: Arc<AwaitingAddresses>,
) {
    let objects = |resource: ApiResource| {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        watcher(api, watcher::Config::default()).default_backoff()
    };
    let mut block_events = pin!(objects(ApiResource::erase::<AddressBlock>(&())));
    let mut lease_events = pin!(objects(ApiResource::erase::<AddressLease>(&())));
    let mut pod_changes = pods.changes();
    let mut claims = Claims::new(client.clone());
    let mut state = State::new((client, driver), pods, safety, metrics, report);
    loop {
        let ready = state.is_ready();
        let due = state.due.filter(|_| ready);
        tokio::select! {
            event = next_unless_refused(&mut block_events, "address blocks") => state.apply_block(event),
            event = next_unless_refused(&mut lease_events, "address leases") => state.apply_lease(event),
            // Pods come and go all the time; they matter only if addresses are scarce.
            Ok(()) = pod_changes.changed() => {
                if state.is_short {
                    state.plan_soon();
                }
            }
            () = claims.changed() => state.collect_at(Instant::now() + COLLECT_INTERVAL),
            Ok(()) = demand.changed() => {
                if let Some(demand) = demand.borrow_and_update().clone() {
                    state.set_demand(demand);
                }
            }
            Ok(()) = needs.changed() => {
                state.needs = needs.borrow_and_update().clone();
                state.plan_soon();
            }
            // An action that panics is a bug; the next plan makes it anew.
            Some(result) = state.of_blocks.running.join_next(), if !state.of_blocks.running.is_empty() => {
                if let Ok((action, result)) = result {
                    state.finish(&action, result);
                }
                state.start();
            }
            Some(result) = state.of_leases.running.join_next(), if !state.of_leases.running.is_empty() => {
                if let Ok((action, result)) = result {
                    state.finish(&action, result);
                }
                state.start();
            }
            Some(result) = state.surveying.join_next(), if !state.surveying.is_empty() => {
                // After a panic, the next plan begins another one.
                if let Ok(result) = result {
                    state.finish_survey(result, Instant::now());
                }
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => state.plan(),
            () = sleep_until(state.collect.unwrap_or_else(Instant::now)), if ready && state.collect.is_some() => {
                state.collect(&claims);
            }
        }
        let needed = state.leases.all().values().any(|lease| lease.holder.kind == HolderKind::ResourceClaim)
            || state.demand.pools.values().any(|pool| !pool.reserved.is_empty());
        claims.watch(needed);
    }
}

/// Which watches have seen a whole list.
#[derive(Default)]
struct Synced {
    blocks: bool,
    leases: bool,
}

struct State {
    client: Client,
    driver: String,
    writes: Writes,
    metrics: Metrics,
    report: watch::Sender<Leased>,
    leasing: Leasing,
    blocks: Blocks,
    leases: Leases,
    pods: Arc<AwaitingAddresses>,
    needs: Needs,
    demand: Demand,
    has_demand: bool,
    nodes: BTreeSet<String>,
    /// Those of the nodes that are not Ready.
    unready: BTreeSet<String>,
    synced: Synced,
    /// When to plan.
    due: Option<Instant>,
    /// No plan before this.
    not_before: Instant,
    /// When to look for leases whose holder is gone.
    collect: Option<Instant>,
    /// The lease after which the next lookup begins.
    looked_up: String,
    /// Nodes that are gone for good, of those with blocks or leases.
    gone: BTreeSet<String>,
    /// Whether a node is short of addresses.
    is_short: bool,
    of_blocks: Lane,
    of_leases: Lane,
    /// The objects of the actions in both.
    in_flight: BTreeSet<String>,
    survey: Survey,
    /// The survey under way: one at a time.
    surveying: JoinSet<kube::Result<Surveyed>>,
    /// The sizes of blocks that are recorded.
    sizes: BTreeMap<PoolKey, BlockSize>,
    /// Requests that failed, and when they may be made again.
    delayed: BTreeMap<String, Instant>,
    /// Blocks that cannot be created before this.
    avoided: BTreeMap<(PoolKey, IpNet), Instant>,
    /// Blocks of ClaimNetworks that are gone, of which a warning is logged.
    warned: BTreeSet<String>,
}

impl State {
    fn new(
        (client, driver): (Client, String),
        pods: Arc<AwaitingAddresses>,
        safety: Duration,
        metrics: Metrics,
        report: watch::Sender<Leased>,
    ) -> Self {
        Self {
            writes: Writes::new(client.clone()),
            client,
            driver,
            metrics,
            report,
            leasing: Leasing::new(safety),
            blocks: Blocks::default(),
            leases: Leases::default(),
            pods,
            needs: Needs::new(),
            demand: Demand::default(),
            has_demand: false,
            nodes: BTreeSet::new(),
            unready: BTreeSet::new(),
            synced: Synced::default(),
            due: None,
            not_before: Instant::now(),
            collect: None,
            looked_up: String::new(),
            gone: BTreeSet::new(),
            is_short: false,
            of_blocks: Lane::new(BLOCK_ACTIONS),
            of_leases: Lane::new(LEASE_ACTIONS),
            in_flight: BTreeSet::new(),
            survey: Survey::new(Instant::now()),
            surveying: JoinSet::new(),
            sizes: BTreeMap::new(),
            delayed: BTreeMap::new(),
            avoided: BTreeMap::new(),
            warned: BTreeSet::new(),
        }
    }

    /// Takes in an event of the watch of blocks. Nothing is leased while the API server refuses to list them.
    fn apply_block(&mut self, event: Result<watcher::Event<DynamicObject>, Refused>) {
        let Ok(event) = event else {
            self.synced.blocks = false;
            return;
        };
        self.synced.blocks |= matches!(event, watcher::Event::InitDone);
        if self.blocks.apply(event, Instant::now()) {
            self.plan_soon();
        }
    }

    /// Takes in an event of the watch of leases. Nothing is leased while the API server refuses to list them.
    fn apply_lease(&mut self, event: Result<watcher::Event<DynamicObject>, Refused>) {
        let Ok(event) = event else {
            self.synced.leases = false;
            return;
        };
        self.synced.leases |= matches!(event, watcher::Event::InitDone);
        if let watcher::Event::Delete(lease) = &event
            && let Some(held) = self.leases.all().get(&lease.name_any()).and_then(|lease| lease.held.as_ref())
        {
            self.survey.released(&held.pool);
        }
        if self.leases.apply(event, Instant::now()) {
            self.collect_at(Instant::now());
            self.plan_soon();
        }
    }

    /// Whether everything is known that a plan needs.
    fn is_ready(&self) -> bool {
        self.synced.blocks && self.synced.leases && self.has_demand
    }

    fn plan_soon(&mut self) {
        self.plan_at(Instant::now() + GATHER);
    }

    fn plan_at(&mut self, time: Instant) {
        self.due = Some(self.due.map_or(time, |due| due.min(time)).max(self.not_before));
    }

    fn collect_at(&mut self, time: Instant) {
        self.collect = Some(self.collect.map_or(time, |collect| collect.min(time)));
    }

    fn set_demand(&mut self, demand: Demand) {
        if !Arc::ptr_eq(&self.demand.nodes, &demand.nodes) || !self.has_demand {
            self.nodes = demand.nodes.keys().cloned().collect();
            let unready = demand.nodes.iter().filter(|(_, facts)| facts.is_unready);
            self.unready = unready.map(|(name, _)| name.clone()).collect();
        }
        self.demand = demand;
        self.survey.observe(&self.demand, Instant::now());
        // The status of a pool that is created again has none.
        self.sizes.retain(|key, _| self.demand.pools.contains_key(key));
        self.has_demand = true;
        self.plan_at(Instant::now());
        // Addresses may be reserved now that leases have.
        self.collect_at(Instant::now() + COLLECT_INTERVAL);
    }

    fn plan(&mut self) {
        let begin = Instant::now();
        self.due = None;
        for spec in self.blocks.expire_pending(begin) {
            self.avoid(&spec, begin);
        }
        self.avoided.retain(|_, until| *until > begin);
        self.delayed.retain(|_, until| *until > begin);
        let Places { waiting, until } = self.pods.places(&self.demand.nodes, begin);
        let (mut held, lease_nodes) = (self.leases.held(&self.demand.pools), self.leases.nodes());
        held.extend(self.survey.held());
        let blocks = self.blocks.within_reason(&self.demand.nodes);
        let world = World {
            networks: &self.demand.networks,
            pools: &self.demand.pools,
            sizes: &self.sizes,
            blocks: &blocks,
            held: &held,
            avoided: &self.avoided,
            lease_nodes: &lease_nodes,
            nodes: &self.nodes,
            unready: &self.unready,
            waiting: &waiting,
            needs: &self.needs,
        };
        let mut plan = self.leasing.plan(&world, begin);
        let unsurveyed = self.survey.missing(&self.demand);
        plan.create.retain(|block| !unsurveyed.contains_key(&block.key()));
        self.begin_survey(unsurveyed, begin);
        self.not_before = self.not_before.max(begin + begin.elapsed() * PLAN_SHARE);
        let next = plan.next;
        self.carry_out(plan, begin);
        let unseen = self.blocks.any_pending().then(|| begin + RETRY);
        let next = next.into_iter().chain(unseen).chain(self.delayed.values().copied());
        let next = next.chain(self.avoided.values().copied()).min();
        // Without a shortage, nobody needs to know which pods wait.
        let next = next.into_iter().chain(until.filter(|_| self.is_short)).min();
        if let Some(next) = next {
            self.plan_at(next);
        }
    }

    /// Looks for pods that have addresses of pools from before, if the time has come.
    fn begin_survey(&mut self, pools: BTreeMap<PoolKey, survey::Pool>, now: Instant) {
        let mut due = BTreeMap::new();
        for (key, pool) in pools {
            match self.survey.due(&key) {
                at if at > now => self.plan_at(at),
                _ => drop(due.insert(key, pool)),
            }
        }
        if due.is_empty() || !self.surveying.is_empty() {
            return;
        }
        let task = Task::new(due, &self.demand, &self.blocks, &self.leases);
        self.surveying.spawn(task.run(self.client.clone(), self.driver.clone()));
    }

    fn finish_survey(&mut self, result: kube::Result<Surveyed>, now: Instant) {
        match result {
            Ok(surveyed) => {
                let found = self.survey.finish(surveyed, now);
                if found > 0 {
                    tracing::info!(found, "leased addresses that pods have from before");
                }
                self.plan_soon();
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "cannot look for addresses that pods have from before, will retry");
                self.survey.retry(now + RETRY);
                self.plan_at(now + RETRY);
            }
        }
    }

    fn carry_out(&mut self, mut plan: Plan, now: Instant) {
        let known: BTreeSet<String> = plan.leaving.iter().map(|leaving| leaving.object.clone()).collect();
        plan.leaving.extend(survey::leaving(&self.leases).filter(|one| !known.contains(&one.object)));
        for (pool, totals) in &mut plan.totals {
            totals.surveyed = self.survey.written(pool, &self.demand);
        }
        self.is_short = plan.supply.values().any(|supply| matches!(supply, Supply::Exhausted(_)));
        self.pods.set_short(self.is_short);
        if self.gone != plan.gone {
            self.gone = plan.gone;
            self.collect_at(now);
        }
        for (pool, totals) in plan.record {
            self.push(Action::Record { pool, totals });
        }
        for spec in plan.create {
            if self.push(Action::Create(spec.clone())) {
                self.blocks.add_pending(spec, now);
            }
        }
        for block in plan.delete {
            if self.push(Action::Delete(block.clone())) {
                tracing::info!(block = block.name, reason = %block.why, "deleting a block of addresses");
                if block.why == Why::Moved {
                    self.metrics.address_moves.inc();
                }
            }
        }
        for block in plan.release {
            let node = self.blocks.all().get(&block.name).and_then(|block| block.spec.node.parse().ok());
            if let Some(node) = node {
                self.push(Action::Release { block, node });
            }
        }
        for block in plan.hold {
            if self.push(Action::Hold(block.clone())) {
                tracing::warn!(
                    block = block.name,
                    "somebody has removed the finalizer of a block: putting it back"
                );
            }
        }
        self.start();
        self.warn_of_leaving(&plan.leaving);
        count(&self.metrics, &plan.totals, &self.report.borrow().totals);
        let leased = Leased { totals: plan.totals, supply: plan.supply, leaving: plan.leaving };
        self.report.send_if_modified(|known| {
            let is_new = *known != leased;
            *known = leased;
            is_new
        });
    }

    /// Logs which blocks go of ClaimNetworks that are gone, which have no status that says so.
    fn warn_of_leaving(&mut self, leaving: &[Leaving]) {
        let of_gone = leaving.iter().filter(|leaving| !self.demand.networks.contains_key(&leaving.network));
        let before = std::mem::take(&mut self.warned);
        for one @ Leaving { network, object, .. } in of_gone {
            let Some(message) = one.lost() else { continue };
            if self.warned.insert(object.clone()) && !before.contains(object) {
                tracing::warn!(%network, object, "{message}");
            }
        }
    }

    /// Lets no block of this name be created for some time.
    fn avoid(&mut self, spec: &AddressBlockSpec, now: Instant) {
        tracing::warn!(
            block = spec.name(),
            "the API server has an AddressBlock of this name, but the watch shows none that can be read: delete it"
        );
        self.avoided.insert((spec.key(), spec.cidr), now + AVOID);
    }

    /// Adds a request, unless the same one is under way or failed just before. A block is released after it is deleted.
    fn push(&mut self, action: Action) -> bool {
        if self.delayed.get(&action.key()).is_some_and(|until| *until > Instant::now()) {
            return false;
        }
        let is_new = self.in_flight.insert(action.key());
        if is_new {
            let lane = if action.is_of_a_lease() { &mut self.of_leases } else { &mut self.of_blocks };
            lane.queue.push_back(action);
        }
        is_new
    }

    fn start(&mut self) {
        self.of_blocks.start(&self.writes);
        self.of_leases.start(&self.writes);
    }

    fn finish(&mut self, action: &Action, result: kube::Result<Done>) {
        self.in_flight.remove(&action.key());
        match &result {
            Ok(done) => match action {
                Action::Record { pool, .. } => {
                    if let Done::Recorded(size) = done {
                        self.sizes.insert(pool.clone(), *size);
                        self.plan_soon();
                    }
                }
                Action::Create(spec) if *done == Done::Yes => {
                    self.metrics.blocks_created.inc();
                    tracing::debug!(block = spec.name(), node = spec.node, "leased a block of addresses");
                }
                // Another object has the name.
                Action::Create(spec) if !self.blocks.has(spec) => self.avoid(spec, Instant::now()),
                Action::Delete(block) => {
                    self.metrics.blocks_removed.inc();
                    self.blocks.set_deleting(&block.name, &block.uid);
                    // The watch shows nothing new then, and the time until its release begins with the next plan.
                    self.plan_soon();
                }
                Action::Release { block, .. } if *done == Done::Yes => {
                    tracing::info!(block = block.name, "released the block of a node that is gone");
                }
                Action::DeleteLease { lease, holder: Some(holder) } if *done == Done::Yes => {
                    tracing::info!(lease = lease.name, %holder, "deleted the lease of a holder that is gone");
                }
                Action::DeleteLease { lease, holder: None } if *done == Done::Yes => {
                    tracing::warn!(lease = lease.name, "deleted a lease whose name is not that of its spec");
                }
                Action::ClearNode { lease, node, why: Unused::NodeGone } if *done == Done::Yes => {
                    tracing::info!(lease = lease.name, %node, "freed the address of a claim from a gone node");
                }
                Action::ClearNode { lease, node, why: Unused::NotAllocated(holder) }
                    if *done == Done::Yes =>
                {
                    tracing::warn!(
                        lease = lease.name, %node, %holder,
                        "a node was said to use the address of a claim that is not allocated there: freed it; somebody else may \
                         have the token of its agent"
                    );
                }
                Action::ReleaseLease { lease, .. } if *done == Done::Yes => {
                    tracing::debug!(
                        lease = lease.name,
                        "a deleted lease is gone, because no pod has its address"
                    );
                }
                _ => {}
            },
            Err(error) => {
                let (object, error) = (action.key(), error as &dyn std::error::Error);
                tracing::warn!(error, object, "cannot write, will retry");
                if let Action::Create(spec) = action {
                    self.blocks.remove_pending(&spec.name());
                }
                let until = Instant::now() + RETRY;
                self.delayed.insert(action.key(), until);
                self.plan_at(until);
                self.collect_at(until);
            }
        }
    }

    /// Confirms leases of claims that exist, frees those that no node uses, and deletes those that nobody holds.
    fn collect(&mut self, claims: &Claims) {
        self.collect = None;
        let now = Instant::now();
        let forged = self.judge(claims, now);
        let all = self.leases.all().iter();
        let due = all.filter_map(|(name, lease)| {
            Some((name, self.due_of(name, lease, forged.contains(name), claims)?))
        });
        let (of_pods, others): (Vec<_>, Vec<_>) = due.partition(|(_, action)| action.asks_for_a_pod());
        let mut actions: Vec<Action> = others.into_iter().map(|(_, action)| action).collect();
        let (after, before): (Vec<_>, Vec<_>) =
            of_pods.into_iter().partition(|(name, _)| **name > self.looked_up);
        let looked_up: Vec<_> = after.into_iter().chain(before).take(LOOKUPS).collect();
        self.looked_up = looked_up.last().map(|(name, _)| (*name).clone()).unwrap_or_default();
        actions.extend(looked_up.into_iter().map(|(_, action)| action));
        let is_unproven = self.leases.all().values().any(|lease| lease.unproven.is_some());
        if !actions.is_empty() || is_unproven {
            self.collect_at(now + COLLECT_INTERVAL);
        }
        for action in actions {
            self.push(action);
        }
        self.start();
    }

    /// Returns what is to be done about a lease. Of one that `is_forged`, a node is said to use the address without the claim.
    fn due_of(&self, name: &str, lease: &Lease, is_forged: bool, claims: &Claims) -> Option<Action> {
        let reference = LeaseRef {
            name: name.to_owned(),
            uid: lease.uid.clone(),
            resource_version: lease.resource_version.clone(),
        };
        let holder = &lease.holder;
        let is_of_pod = holder.kind == HolderKind::Pod;
        if let Some(node) = &lease.node {
            let is_gone = self.gone.contains(node.as_str());
            let why = is_gone.then_some(Unused::NodeGone);
            let why = why.or_else(|| is_forged.then(|| Unused::NotAllocated(holder.clone())));
            match why {
                Some(why) if lease.is_deleting || lease.has_own_name => {
                    return Some(Action::ClearNode { lease: reference, node: node.clone(), why });
                }
                Some(_) => return Some(Action::DeleteLease { lease: reference, holder: None }),
                None => {}
            }
        } else if lease.is_deleting {
            let pod = is_of_pod.then(|| holder.clone());
            return lease.has_finalizer.then_some(Action::ReleaseLease { lease: reference, pod });
        } else if !lease.has_own_name {
            return Some(Action::DeleteLease { lease: reference, holder: None });
        } else if is_of_pod || !claims.may_exist(&holder.uid) {
            return Some(Action::DeleteLease { lease: reference, holder: Some(holder.clone()) });
        }
        self.is_to_be_confirmed(lease, claims).then_some(Action::ConfirmLease(reference))
    }

    /// Looks at what is said of nodes since the last list, and returns the leases of which a node is said to use the address
    /// without the claim.
    fn judge(&mut self, claims: &Claims, now: Instant) -> BTreeSet<String> {
        let unproven = self.leases.all().iter().filter_map(|(name, lease)| {
            let (since, node) = lease.unproven.zip(lease.node.as_ref())?;
            let standing = match lease.holder.kind {
                HolderKind::ResourceClaim => claims.standing(&lease.holder.uid, node, since, UNPROVEN, now),
                HolderKind::Pod => Standing::Proven,
            };
            // The watch of claims began, or began anew, too late to tell.
            let is_over = standing == Standing::Unknown && claims.is_listed_since(since + UNPROVEN);
            Some((name.clone(), since, if is_over { Standing::Proven } else { standing }))
        });
        let (mut proven, mut forged) = (Vec::new(), BTreeSet::new());
        for (name, since, standing) in unproven {
            match standing {
                Standing::Proven => proven.push(name),
                Standing::Refuted if now.saturating_duration_since(since) >= UNPROVEN => {
                    forged.insert(name);
                }
                Standing::Refuted | Standing::Unknown => {}
            }
        }
        proven.iter().for_each(|name| self.leases.set_proven(name));
        forged
    }

    /// Whether a lease is to hold its address whatever becomes of the pool, and to stay until no pod has it.
    fn is_to_be_confirmed(&self, lease: &Lease, claims: &Claims) -> bool {
        if lease.is_deleting || !lease.has_own_name {
            return false;
        }
        if !lease.has_finalizer {
            return true;
        }
        let is_proven = lease.unproven.is_none() && claims.exists(&lease.holder.uid);
        !lease.is_confirmed && is_proven && lease.is_reserved(&self.demand.pools)
    }
}

impl Action {
    async fn carry_out(&self, writes: &Writes) -> kube::Result<Done> {
        match self {
            Self::Record { pool, totals } => writes.record(pool, *totals).await,
            Self::Create(spec) => writes.create(spec.clone()).await,
            Self::Delete(block) => writes.delete(block).await,
            Self::Release { block, node } => writes.release(block, node).await,
            Self::Hold(block) => writes.hold(block).await,
            Self::DeleteLease { lease, holder } => writes.delete_lease(lease, holder.as_ref()).await,
            Self::ReleaseLease { lease, pod } => writes.release_lease(lease, pod.as_ref()).await,
            Self::ConfirmLease(lease) => writes.confirm(lease).await,
            Self::ClearNode { lease, node, why } => writes.clear_node(lease, node, why).await,
        }
    }

    fn is_of_a_lease(&self) -> bool {
        match self {
            Self::Record { .. }
            | Self::Create(_)
            | Self::Delete(_)
            | Self::Release { .. }
            | Self::Hold(_) => false,
            Self::DeleteLease { .. }
            | Self::ReleaseLease { .. }
            | Self::ConfirmLease(_)
            | Self::ClearNode { .. } => true,
        }
    }

    /// Whether the pod that holds the lease is looked up first: no watch tells of pods that run.
    fn asks_for_a_pod(&self) -> bool {
        let holder = match self {
            Self::DeleteLease { holder, .. } => holder.as_ref(),
            Self::ReleaseLease { pod, .. } => pod.as_ref(),
            _ => None,
        };
        holder.is_some_and(|holder| holder.kind == HolderKind::Pod)
    }

    /// Returns what distinguishes it from other requests.
    fn key(&self) -> String {
        match self {
            Self::Record { pool, .. } => format!("record the size of blocks of {pool}"),
            Self::Create(spec) => format!("create AddressBlock {}", spec.name()),
            Self::Delete(block) => format!("delete AddressBlock {}", block.name),
            Self::Release { block, .. } => format!("release AddressBlock {}", block.name),
            Self::Hold(block) => format!("put the finalizer of AddressBlock {} back", block.name),
            Self::DeleteLease { lease, .. } => format!("delete AddressLease {}", lease.name),
            Self::ReleaseLease { lease, .. } => format!("release AddressLease {}", lease.name),
            Self::ConfirmLease(lease) => format!("confirm AddressLease {}", lease.name),
            Self::ClearNode { lease, .. } => format!("clear the node of AddressLease {}", lease.name),
        }
    }
}

/// Sets the gauges of the pools, and removes those of pools that are gone.
fn count(
    metrics: &Metrics,
    totals: &BTreeMap<PoolKey, AddressTotals>,
    before: &BTreeMap<PoolKey, AddressTotals>,
) {
    let labels = |key: &PoolKey, state: &str| {
        let of = match key {
            PoolKey::Network(name) => ("network", name.to_string()),
            PoolKey::Pool(name) => ("pool", name.clone()),
        };
        vec![of, ("state", state.to_owned())]
    };
    let states = |totals: &AddressTotals| {
        let AddressTotals { size, leased, used, free, .. } = *totals;
        ADDRESS_STATES.into_iter().zip([size, leased, used, free])
    };
    for (key, totals) in totals {
        for (state, count) in states(totals) {
            metrics.addresses.get_or_create(&labels(key, state)).set(count);
        }
    }
    for (key, gone) in before.iter().filter(|(key, _)| !totals.contains_key(key)) {
        for (state, _) in states(gone) {
            metrics.addresses.remove(&labels(key, state));
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::jiff::Timestamp;
    use kube::client::Body;
    use netclaim_api::addresses::AddressPoolSpec;
    use serde_json::json;
    use tower_test::mock;

    use super::*;
    use crate::addresses::leasing::SAFETY;
    use crate::demand::Draw;

    fn state() -> State {
        let (service, _) = mock::pair::<Request<Body>, Response<Body>>();
        let client = Client::new(service, "default");
        State::new(
            (client, "netclaim.dev".to_owned()),
            Arc::default(),
            SAFETY,
            Metrics::default(),
            watch::channel(Leased::default()).0,
        )
    }

    /// The ClaimNetwork `storage`, whose only block the node `a` has.
    fn scarce(state: &mut State) {
        let block = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock",
            "metadata": {"name": "storage.10.20.0.0-30", "uid": "u", "finalizers": [netclaim_api::addresses::BLOCK_FINALIZER]},
            "spec": {"network": "storage", "node": "a", "cidr": "10.20.0.0/30"}});
        state.blocks.apply(watcher::Event::Apply(serde_json::from_value(block).unwrap()), Instant::now());
        let pool: AddressPoolSpec = serde_json::from_value(
            json!({"ranges": [{"subnet": "10.20.0.0/30"}], "blockSize": {"ipv4": 30}}),
        )
        .unwrap();
        let network: NetworkName = "storage".parse().unwrap();
        let key = PoolKey::Network(network.clone());
        let nodes = ["a", "b"].map(str::to_owned);
        let draw =
            Draw::From { pool: key.clone(), nodes: nodes.clone().into(), selected: nodes.clone().into() };
        state.set_demand(Demand {
            networks: [(network, draw)].into(),
            pools: [(key, pool)].into(),
            nodes: Arc::new(nodes.map(|node| (node, Default::default())).into()),
            ..Demand::default()
        });
        state.survey.pass(&state.demand);
    }

    /// Has the watch show a pod that has its node since then.
    fn show_pod(state: &State, since: Timestamp) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "u", "namespace": "shop"},
            "spec": {"nodeName": "b", "resourceClaims": [{"name": "net", "resourceClaimName": "c"}]},
            "status": {"conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": since.to_string()}]},
        });
        state.pods.apply(watcher::Event::Apply(serde_json::from_value(pod).unwrap()));
    }

    fn failure(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(kube::core::Status::failure("no", "X").with_code(code)))
    }

    #[tokio::test]
    async fn a_request_that_failed_delays_no_other() {
        let mut state = state();
        let spec = |cidr: &str| -> AddressBlockSpec {
            serde_json::from_value(json!({"network": "storage", "node": "a", "cidr": cidr})).unwrap()
        };
        let [failed, other] = ["10.20.0.0/28", "10.20.0.16/28"].map(|cidr| Action::Create(spec(cidr)));
        assert!(state.push(failed.clone()));
        state.finish(&failed, Err(failure(500)));
        assert!(!state.push(failed) && state.push(other));
        state.plan_soon();
        assert!(state.due.unwrap() <= Instant::now() + GATHER, "the next plan is not delayed");
        state.plan();
        let due = state.due.unwrap() - Instant::now();
        assert!(due > GATHER && due <= RETRY, "{due:?}");
    }

    #[tokio::test]
    async fn the_time_until_the_release_of_a_deleted_block_begins_before_the_watch_shows_it() {
        let mut state = state();
        scarce(&mut state);
        state.plan();
        state.due = None;
        let block = Removal { name: "storage.10.20.0.0-30".into(), uid: "u".into(), why: Why::NodeGone };
        state.finish(&Action::Delete(block), Ok(Done::Yes));
        assert!(state.due.is_some_and(|due| due <= Instant::now() + GATHER));
    }

    #[tokio::test]
    async fn a_name_that_another_object_has_is_not_tried_again_for_some_minutes() {
        let mut state = state();
        scarce(&mut state);
        let spec: AddressBlockSpec =
            serde_json::from_value(json!({"network": "storage", "node": "a", "cidr": "10.20.0.0/30"}))
                .unwrap();
        state.finish(&Action::Create(spec.clone()), Ok(Done::Overtaken));
        assert!(state.avoided.is_empty(), "the watch shows it");
        let other = AddressBlockSpec { cidr: "10.20.0.4/30".parse().unwrap(), ..spec };
        state.finish(&Action::Create(other.clone()), Ok(Done::Overtaken));
        assert!(state.avoided.contains_key(&(other.key(), other.cidr)));
    }

    #[tokio::test]
    async fn blocks_of_a_gone_network_are_logged_once() {
        let mut state = state();
        let leaving = |network: &str, object: &str| Leaving {
            network: network.parse().unwrap(),
            pool: None,
            object: object.to_owned(),
            why: Some("its ClaimNetwork is gone".to_owned()),
            remains: "remains".to_owned(),
            awaited_by: BTreeSet::new(),
        };
        state.demand.networks.insert("storage".parse().unwrap(), Draw::Nothing);
        state.warn_of_leaving(&[leaving("storage", "s"), leaving("gone", "g")]);
        assert_eq!(state.warned, BTreeSet::from(["g".to_owned()]), "the other one has a status");
        state.warn_of_leaving(&[]);
        assert!(state.warned.is_empty());
    }

    #[tokio::test]
    async fn nothing_is_leased_while_blocks_or_leases_cannot_be_listed() {
        let mut state = state();
        state.set_demand(Demand::default());
        state.apply_lease(Err(Refused));
        state.apply_block(Ok(watcher::Event::InitDone));
        assert!(!state.is_ready());
        state.apply_lease(Ok(watcher::Event::InitDone));
        assert!(state.is_ready());
        state.apply_block(Err(Refused));
        assert!(!state.is_ready(), "the definition was deleted");
    }

    #[tokio::test]
    async fn leases_of_claims_are_freed_from_gone_nodes_and_those_with_other_names_are_deleted() {
        let mut state = state();
        let lease = |name: &str, node: Option<&str>| {
            let lease = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease",
                "metadata": {"name": name, "uid": "u", "resourceVersion": "7"},
                "spec": {"network": "storage", "address": "10.20.0.200",
                    "holder": {"kind": "ResourceClaim", "namespace": "shop", "name": "c", "uid": "u7"}},
                "status": {"node": node}});
            watcher::Event::Apply(serde_json::from_value(lease).unwrap())
        };
        for (name, node) in [("storage.10.20.0.200", Some("a")), ("copy", None), ("busy-copy", Some("a"))] {
            state.leases.apply(lease(name, node), Instant::now());
        }
        let (service, _) = mock::pair::<Request<Body>, Response<Body>>();
        let claims = Claims::new(Client::new(service, "default"));
        let actions = |state: &mut State| {
            state.collect(&claims);
            std::mem::take(&mut state.in_flight).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(
            actions(&mut state),
            ["confirm AddressLease storage.10.20.0.200", "delete AddressLease copy"],
            "the claim may exist, and no agent of this version has made the lease"
        );
        state.gone.insert("a".into());
        assert_eq!(
            actions(&mut state),
            [
                "clear the node of AddressLease storage.10.20.0.200",
                "delete AddressLease busy-copy",
                "delete AddressLease copy"
            ]
        );
    }

    #[tokio::test]
    async fn a_plan_is_due_when_a_pod_begins_to_wait_only_if_a_node_is_short() {
        let mut state = state();
        show_pod(&state, Timestamp::now());
        state.plan();
        assert_eq!(state.due, None);
        scarce(&mut state);
        state.plan();
        let due = state.due.unwrap() - Instant::now();
        assert!(due > Duration::from_secs(15) && due <= Duration::from_secs(20), "{due:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_block_is_created_before_it_is_known_which_addresses_pods_have() {
        let mut state = state();
        state.set_demand(Demand::default());
        state.apply_block(Ok(watcher::Event::InitDone));
        state.apply_lease(Ok(watcher::Event::InitDone));
        scarce(&mut state);
        // Another block is free now, and nobody has looked who has its addresses.
        let wider: AddressPoolSpec = serde_json::from_value(
            json!({"ranges": [{"subnet": "10.20.0.0/28"}], "blockSize": {"ipv4": 30}}),
        )
        .unwrap();
        let key = PoolKey::Network("storage".parse().unwrap());
        let demand = Demand { pools: [(key, wider)].into(), ..state.demand.clone() };
        state.set_demand(demand);
        let creates = |state: &State| state.in_flight.iter().any(|action| action.starts_with("create "));
        for _ in 0..2 {
            state.plan();
            assert!(!creates(&state) && state.surveying.len() == 1, "one survey at a time");
        }
        state.survey.pass(&state.demand);
        state.plan();
        assert!(creates(&state));
    }

    fn lease(uid: &str, node: Option<&str>, deleted: bool) -> watcher::Event<DynamicObject> {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        let lease = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease",
            "metadata": {"name": "storage.10.20.0.2", "uid": "u", "resourceVersion": "7",
                "finalizers": [netclaim_api::addresses::BLOCK_FINALIZER], "deletionTimestamp": deleted},
            "spec": {"network": "storage", "address": "10.20.0.2",
                "holder": {"kind": "ResourceClaim", "namespace": "shop", "name": "c", "uid": uid}},
            "status": {"node": node}});
        watcher::Event::Apply(serde_json::from_value(lease).unwrap())
    }

    /// What `collect` begins.
    fn collected(state: &mut State, claims: &Claims) -> Vec<String> {
        state.collect(claims);
        std::mem::take(&mut state.in_flight).into_iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_said_to_use_an_address_without_the_claim_loses_it() {
        let (mut state, mut claims) = (state(), claims::tests::listed(&[]));
        state.leases.apply(lease("none", Some("a"), false), Instant::now());
        assert_eq!(collected(&mut state, &claims), [""; 0], "the watch may be late");
        tokio::time::advance(UNPROVEN).await;
        let cleared = ["clear the node of AddressLease storage.10.20.0.2"];
        assert_eq!(collected(&mut state, &claims), cleared, "there is no such claim");
        claims::tests::show(&mut claims, "none", "b");
        assert_eq!(collected(&mut state, &claims), cleared, "the claim is elsewhere");
        claims::tests::show(&mut claims, "none", "a");
        assert_eq!(collected(&mut state, &claims), [""; 0]);
        claims::tests::show(&mut claims, "none", "b");
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(collected(&mut state, &claims), [""; 0], "a pod may still have it there");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_lease_said_before_the_controller_saw_it_stays() {
        let (mut state, claims) = (state(), claims::tests::listed(&[]));
        let watcher::Event::Apply(object) = lease("none", Some("a"), false) else { unreachable!() };
        state.leases.apply(watcher::Event::InitApply(object), Instant::now());
        state.leases.apply(watcher::Event::InitDone, Instant::now());
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(collected(&mut state, &claims), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_of_a_claim_that_does_not_exist_goes() {
        let (mut state, claims) = (state(), claims::tests::listed(&[]));
        state.leases.apply(lease("none", None, false), Instant::now());
        assert_eq!(collected(&mut state, &claims), ["delete AddressLease storage.10.20.0.2"]);
        state.leases.apply(lease("none", Some("a"), true), Instant::now());
        assert_eq!(collected(&mut state, &claims), [""; 0], "a pod may have the address");
        state.leases.apply(lease("none", None, true), Instant::now());
        assert_eq!(collected(&mut state, &claims), ["release AddressLease storage.10.20.0.2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_confirmed_if_its_address_is_reserved_and_its_claim_is_on_its_node() {
        let (mut state, claims) = (state(), claims::tests::listed(&[("u7", "a"), ("u8", "b")]));
        scarce(&mut state);
        state.leases.apply(lease("u7", Some("a"), false), Instant::now());
        assert_eq!(collected(&mut state, &claims), [""; 0], "it is not reserved");
        let reserved = |pool: &mut AddressPoolSpec| pool.reserved = vec!["10.20.0.2".parse().unwrap()];
        state.demand.pools.values_mut().for_each(reserved);
        assert_eq!(collected(&mut state, &claims), ["confirm AddressLease storage.10.20.0.2"]);
        state.leases = Leases::default();
        state.leases.apply(lease("u8", Some("a"), false), Instant::now());
        assert_eq!(collected(&mut state, &claims), [""; 0], "its claim is on another node");
    }

    #[tokio::test(start_paused = true)]
    async fn leases_whose_requests_get_no_answer_delay_no_block() {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let mut state = state();
        state.writes = Writes::new(Client::new(service, "default"));
        let reference =
            |n: usize| LeaseRef { name: format!("l{n}"), uid: "u".into(), resource_version: "7".into() };
        for n in 0..100 {
            state.push(Action::DeleteLease { lease: reference(n), holder: None });
        }
        state.start();
        let spec = json!({"network": "storage", "node": "a", "cidr": "10.20.0.0/28"});
        state.push(Action::Create(serde_json::from_value(spec).unwrap()));
        state.start();
        assert_eq!(state.of_leases.running.len(), LEASE_ACTIONS);
        // Nobody answers the requests, and all are given up.
        let mut unanswered = Vec::new();
        let mut seen = Vec::new();
        while seen.last().is_none_or(|path: &String| !path.ends_with("addressblocks")) {
            let (request, reply) = requests.next_request().await.unwrap();
            seen.push(request.uri().path().to_owned());
            unanswered.push(reply);
        }
        assert!(seen.len() <= LEASE_ACTIONS + 1, "{seen:?}");
        let (action, result) = state.of_leases.running.join_next().await.unwrap().unwrap();
        assert!(matches!(action, Action::DeleteLease { .. }));
        assert!(result.unwrap_err().to_string().contains("no answer"));
    }
}
