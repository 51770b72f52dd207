//! The known state of the cluster: the blocks and leases that the watches have shown, what needs addresses,
//! and what has been found out about both. It makes no request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::watcher;
use netclaim_api::addresses::{AddressBlockSpec, BlockSize, HolderKind, PoolKey};
use tokio::time::Instant;

use super::claims::{Claims, Standing};
use super::requests::Action;
use super::store::{Blocks, Lease, Leases};
use super::survey::{self, Survey};
use super::writes::{LeaseRef, Unused};
use crate::addresses::leasing::{Leasing, Plan, World};
use crate::demand::{Demand, Needs, Waiting};
use crate::objects::watches::Refused;

/// How long a block is not created that exists for the API server but is not shown by the watch.
const AVOID: Duration = Duration::from_secs(300);

/// Holders that are looked up at once because no watch reports them.
const LOOKUPS: usize = 5;

/// How long a node may be said to use an address before the watch of claims shows why.
pub(super) const UNPROVEN: Duration = Duration::from_secs(10);

/// The objects of a watch.
type Shown = Result<watcher::Event<DynamicObject>, Refused>;

/// Which watches have seen a whole list.
#[derive(Debug, Default, Clone)]
struct Synced {
    blocks: bool,
    leases: bool,
}

/// The known state of the cluster.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) blocks: Blocks,
    pub(super) leases: Leases,
    pub(super) survey: Survey,
    pub(super) demand: Demand,
    has_demand: bool,
    pub(super) needs: Needs,
    nodes: BTreeSet<String>,
    /// Those of the nodes that are not Ready.
    unready: BTreeSet<String>,
    /// Nodes that are gone for good, of those with blocks or leases.
    pub(super) gone: BTreeSet<String>,
    synced: Synced,
    /// The sizes of blocks that are recorded.
    pub(super) sizes: BTreeMap<PoolKey, BlockSize>,
    /// Blocks that cannot be created before this.
    pub(super) avoided: BTreeMap<(PoolKey, IpNet), Instant>,
    /// The lease after which the next lookup begins.
    looked_up: String,
}

impl View {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            blocks: Blocks::default(),
            leases: Leases::default(),
            survey: Survey::new(now),
            demand: Demand::default(),
            has_demand: false,
            needs: Needs::new(),
            nodes: BTreeSet::new(),
            unready: BTreeSet::new(),
            gone: BTreeSet::new(),
            synced: Synced::default(),
            sizes: BTreeMap::new(),
            avoided: BTreeMap::new(),
            looked_up: String::new(),
        }
    }

    /// Takes in an event of the watch of blocks. Nothing is leased while the API server refuses to
    /// list them. Returns whether anything has changed.
    pub(super) fn apply_block(&mut self, event: Shown, now: Instant) -> bool {
        let Ok(event) = event else {
            self.synced.blocks = false;
            return false;
        };
        self.synced.blocks |= matches!(event, watcher::Event::InitDone);
        self.blocks.apply(event, now)
    }

    /// Takes in an event of the watch of leases. Nothing is leased while the API server refuses to
    /// list them. Returns whether anything has changed.
    pub(super) fn apply_lease(&mut self, event: Shown, now: Instant) -> bool {
        let Ok(event) = event else {
            self.synced.leases = false;
            return false;
        };
        self.synced.leases |= matches!(event, watcher::Event::InitDone);
        if let watcher::Event::Delete(lease) = &event
            && let Some(held) = self.leases.all().get(&lease.name_any()).and_then(|lease| lease.held.as_ref())
        {
            self.survey.released(&held.pool);
        }
        self.leases.apply(event, now)
    }

    /// Whether everything is known that a plan needs.
    pub(super) fn is_ready(&self) -> bool {
        self.synced.blocks && self.synced.leases && self.has_demand
    }

    /// Takes in what needs addresses.
    pub(super) fn set_demand(&mut self, demand: Demand, now: Instant) {
        if !Arc::ptr_eq(&self.demand.nodes, &demand.nodes) || !self.has_demand {
            self.nodes = demand.nodes.keys().cloned().collect();
            let unready = demand.nodes.iter().filter(|(_, facts)| facts.is_unready);
            self.unready = unready.map(|(name, _)| name.clone()).collect();
        }
        self.demand = demand;
        self.survey.observe(&self.demand, now);
        // The status of a pool that is created again has none.
        self.sizes.retain(|key, _| self.demand.pools.contains_key(key));
        self.has_demand = true;
    }

    /// Takes in which nodes are gone for good. Returns whether that is new.
    pub(super) fn set_gone(&mut self, gone: BTreeSet<String>) -> bool {
        std::mem::replace(&mut self.gone, gone) != self.gone
    }

    /// Gives up blocks that do not appear, and forgets those that may be created again.
    pub(super) fn expire(&mut self, now: Instant) {
        for spec in self.blocks.expire_pending(now) {
            self.avoid(&spec, now);
        }
        self.avoided.retain(|_, until| *until > now);
    }

    /// Plans. Returns also the pools that must be looked through before they get blocks.
    pub(super) fn plan(
        &self,
        leasing: &mut Leasing,
        waiting: &Waiting,
        now: Instant,
    ) -> (Plan, BTreeMap<PoolKey, survey::Pool>) {
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
            waiting,
            needs: &self.needs,
        };
        let mut plan = leasing.plan(&world, now);
        let unsurveyed = self.survey.missing(&self.demand);
        plan.create.retain(|block| !unsurveyed.contains_key(&block.key()));
        (plan, unsurveyed)
    }

    /// Returns when the first block may be created again that could not be.
    pub(super) fn next(&self) -> Option<Instant> {
        self.avoided.values().min().copied()
    }

    /// Lets no block of this name be created for some time.
    pub(super) fn avoid(&mut self, spec: &AddressBlockSpec, now: Instant) {
        tracing::warn!(
            block = spec.name(),
            "the API server has an AddressBlock of this name, but the watch shows none that can be read: delete it"
        );
        self.avoided.insert((spec.key(), spec.cidr), now + AVOID);
    }

    /// Whether claims matter: leases are theirs, or addresses are reserved for them.
    pub(super) fn needs_claims(&self) -> bool {
        self.leases.all().values().any(|lease| lease.holder.kind == HolderKind::ResourceClaim)
            || self.demand.pools.values().any(|pool| !pool.reserved.is_empty())
    }

    /// Whether a node is said to use an address, and it is not known yet whether its claim is there.
    pub(super) fn has_unproven(&self) -> bool {
        self.leases.all().values().any(|lease| lease.unproven.is_some())
    }

    /// Returns what is to be done about leases: some are confirmed, those that no node uses are freed, and
    /// those without a holder are deleted.
    pub(super) fn due(&mut self, claims: &Claims, now: Instant) -> Vec<Action> {
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
        actions
    }

    /// Returns what is to be done about a lease. If it `is_forged`, a node is said to use the address
    /// without the claim.
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

    /// Looks at what is said of nodes since the last list, and returns the leases that a node is said to
    /// use the address without the claim.
    fn judge(&mut self, claims: &Claims, now: Instant) -> BTreeSet<String> {
        let unproven = self.leases.all().iter().filter_map(|(name, lease)| {
            let (since, node) = lease.unproven.zip(lease.node.as_ref())?;
            let standing = match lease.holder.kind {
                HolderKind::ResourceClaim => claims.standing(&lease.holder.uid, node, since, UNPROVEN, now),
                HolderKind::Pod => Standing::Proven,
            };
            // The watch of claims began, or began again, too late to tell.
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
