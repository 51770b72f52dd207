//! Plans attachments again before their ADD, where they may not have their addresses any more.
//!
//! A plan is made once, and carried out again in each sandbox of its pod: after a reboot, or when a sandbox
//! has died. Meanwhile the admin may have excluded its address, moved the range, or given the ClaimNetwork
//! `addresses` in the first place. Agents before did not choose addresses at all.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use netclaim_api::NetworkName;
use netclaim_api::device::DeviceName;
use netclaim_cni::ipam::host_local::Reservations;
use netclaim_driver::attach::{Attach, Attacher, Failure, Revised};
use tokio::sync::watch;
use tokio::time::Instant;

use super::plan::keeps_segment;
use crate::addresses::leases::Leases;
use crate::addresses::plan::{
    self as addresses, Book, ForeignAddresses, Now, PlanLock, TakenAddresses, blocks_of,
};
use crate::addresses::reservations::{foreign, journalled_dirs, journalled_lists};
use crate::gate::keeper::{GateKeeper, Revise};
use crate::inventory::{Inventory, OwnBlocks};
use crate::node_networks::Readiness;
use crate::pods::owner::{Owner, Plan, Record};
use crate::repair::is_repaired;

/// How long an ADD waits for the first word of the API server after the agent's start.
const FIRST_WORD: Duration = Duration::from_secs(10);

/// Revises plans by what the node has now.
pub(crate) struct Reviser<N> {
    /// What is journalled. The attacher has the reviser, by its observer.
    pub(crate) attacher: Weak<Attacher<N, GateKeeper>>,
    /// The node's inventory.
    pub(crate) inventory: watch::Receiver<Option<Arc<Inventory>>>,
    pub(crate) blocks: watch::Receiver<OwnBlocks>,
    /// Excludes other choices of addresses.
    pub(crate) plan_lock: Arc<PlanLock>,
    /// Addresses that claims ask for.
    pub(crate) leases: Arc<Leases>,
    /// Addresses that `host-local` has handed out.
    pub(crate) reservations: Reservations,
    /// The Node object's name.
    pub(crate) node_name: String,
    /// The ClaimNetworks that are set up on the node.
    pub(crate) node_networks: Readiness,
    /// Plans claims again, as soon as it is there.
    pub(crate) mender: Arc<Mender>,
}

/// Plans a claim again by what its ClaimNetwork says today.
pub(crate) type Mender = OnceLock<Weak<dyn Mend>>;

/// Plans attachments again that were never made.
pub(crate) trait Mend: Send + Sync {
    /// Returns the plan that the attachment would get today, if its ClaimNetwork has changed since and only
    /// plugins and addresses differ.
    fn mended<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Option<Plan>>;
}

/// The facts about the node.
struct NodeView {
    inventory: Arc<Inventory>,
    own: OwnBlocks,
}

impl<N: Attach> Revise for Reviser<N> {
    fn revise<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<Option<Revised<Owner>>, Failure>> {
        self.revised(record).boxed()
    }

    fn is_repaired(&self, plan: &Plan) -> bool {
        self.inventory.borrow().as_deref().is_some_and(|inventory| is_repaired(inventory, &plan.network))
    }
}

impl<N: Attach> Reviser<N> {
    async fn revised(&self, record: &Record) -> Result<Option<Revised<Owner>>, Failure> {
        if !record.in_use.is_empty() {
            let ips = record.in_use.iter().map(|in_use| in_use.ip);
            self.plan_lock.lock().await.leave_out(&record.plan.network, ips, Instant::now());
        }
        if record.repaired.is_some() {
            // The pod runs, and keeps what it has.
            self.wait_for_node(&record.plan).await?;
            return Ok(None);
        }
        let mender = self.mender.get().and_then(Weak::upgrade).filter(|_| record.error.is_some());
        let mended = match mender {
            Some(mender) => mender.mended(&record.plan).await,
            None => None,
        };
        if record.plan.is_finalizer() {
            // It has no address and no id that could be another's by now.
            return Ok(mended.map(|plan| Revised { plan, turn: Box::new(()) }));
        }
        let plan = mended.as_ref().unwrap_or(&record.plan);
        let Ok(DeviceName::Network(network)) = plan.owner.device.device.parse() else { return Ok(None) };
        self.wait_for_node(plan).await?;
        // Without any word since the agent's start, the plan is carried out: its blocks are the node's as
        // long as a plan names them, unless the Node object is gone for long, and then the kubelet has no
        // word of its pods either.
        let Some(known) = self.wait_for_word(plan, &network).await else { return Ok(None) };
        keeps_segment(plan, &network, &known.inventory).map_err(|error| Failure::of(&error))?;
        let taken = self.taken(record, (&known, &network), ForeignAddresses::new(), Book::default())?;
        match addresses::revised(plan, self.now(&known, &network), &taken) {
            // After a failure it is looked for what others have: the plugin may have met that.
            Ok(None) if record.error.is_none() => return Ok(None),
            Ok(Some(plan)) if plan.owner.addresses.iter().any(|of_plan| of_plan.chosen.is_empty()) => {
                return self.with_leases(plan, &known, &network).await.map(Some);
            }
            _ => {}
        }
        let mut turn = Arc::clone(&self.plan_lock).lock_owned().await;
        let foreign = self.foreign(&known, &network).await?;
        let known = self.known().unwrap_or(known);
        let taken = self.taken(record, (&known, &network), foreign, turn.clone())?;
        let revised = addresses::revised(plan, self.now(&known, &network), &taken);
        let revised = revised.map_err(|error| Failure::of(&error))?;
        Ok(revised.or(mended).map(|plan| {
            turn.note(&plan);
            Revised { plan, turn: Box::new(turn) }
        }))
    }

    /// Waits until the plan's ClaimNetwork is set up on the node, if it has to be.
    async fn wait_for_node(&self, plan: &Plan) -> Result<(), Failure> {
        match plan.owner.device.device.parse() {
            Ok(DeviceName::Network(network)) if plan.owner.needs_node_network => {
                self.node_networks.of(&network).await
            }
            _ => Ok(()),
        }
    }

    fn now<'a>(&'a self, known: &'a NodeView, network: &'a NetworkName) -> Now<'a> {
        let NodeView { inventory, own } = known;
        let (spec, of_node) = (inventory.networks.get(network), inventory.addresses.get(network));
        Now { network, spec, of_node, own, node: &self.node_name }
    }

    fn known(&self) -> Option<NodeView> {
        let inventory = self.inventory.borrow().clone()?;
        Some(NodeView { inventory, own: self.blocks.borrow().clone() })
    }

    /// Waits for what the API server says, as far as it matters to the plan; `None` if that does not come.
    async fn wait_for_word(&self, plan: &Plan, network: &NetworkName) -> Option<NodeView> {
        let (mut inventory, mut blocks) = (self.inventory.clone(), self.blocks.clone());
        let known = async {
            inventory.wait_for(Option::is_some).await.ok()?;
            let has_addresses = |known: &NodeView| {
                plan.owner.addresses.is_some() || known.inventory.addresses.contains_key(network)
            };
            if self.known().is_some_and(|known| has_addresses(&known)) {
                blocks.wait_for(|blocks| blocks.known.is_some()).await.ok()?;
                // The inventory follows the blocks.
                let shows = |known: &Option<Arc<Inventory>>| {
                    let of_node = known.as_ref().and_then(|known| known.addresses.get(network));
                    let has_some = |blocks: &OwnBlocks| {
                        blocks.known.iter().flatten().any(|(_, block)| block.spec.network == *network)
                    };
                    of_node.is_none_or(|of_node| {
                        of_node.is_stale
                            || !of_node.blocks.is_empty()
                            || !of_node.leaving.is_empty()
                            || !has_some(&self.blocks.borrow())
                    })
                };
                let _ = tokio::time::timeout(FIRST_WORD / 10, inventory.wait_for(shows)).await;
            }
            self.known()
        };
        tokio::time::timeout(FIRST_WORD, known).await.ok().flatten()
    }

    /// Has the leases of a plan whose claim asks for addresses.
    async fn with_leases(
        &self,
        plan: Plan,
        known: &NodeView,
        network: &NetworkName,
    ) -> Result<Revised<Owner>, Failure> {
        let of_node = known.inventory.addresses.get(network);
        let blocks = |ip| of_node.map(|of_node| blocks_of(of_node, ip)).unwrap_or_default();
        self.leases.take(&plan, blocks).await.map_err(|error| Failure::of(&error))?;
        // The lease excludes others.
        Ok(Revised { plan, turn: Box::new(()) })
    }

    /// What all attachments to the ClaimNetwork but this one have, where the node has addresses of it.
    fn taken(
        &self,
        of: &Record,
        (known, network): (&NodeView, &NetworkName),
        foreign: ForeignAddresses,
        book: Book,
    ) -> Result<TakenAddresses, Failure> {
        let (attacher, mut taken) = (self.attacher()?, TakenAddresses::new(foreign, book));
        if !known.inventory.addresses.contains_key(network) {
            return Ok(taken);
        }
        // Their keys would be made anew for each of hundreds.
        let is_other = |record: &&Record| {
            let [one, other] = [&record.plan, &of.plan].map(|plan| (&plan.owner, plan.index));
            one.1 != other.1 || one.0.claim.uid != other.0.claim.uid || one.0.pod.uid != other.0.pod.uid
        };
        attacher.for_each_pod(|state| {
            let of_network = state.attachments().filter(|record| record.plan.network == network.as_str());
            of_network.filter(is_other).for_each(|record| taken.add_record(record));
        });
        Ok(taken)
    }

    /// The addresses that `host-local` has given to anybody: the attachment itself has none.
    async fn foreign(&self, known: &NodeView, network: &NetworkName) -> Result<ForeignAddresses, Failure> {
        let Some(spec) = known.inventory.networks.get(network) else { return Ok(ForeignAddresses::new()) };
        let lists = journalled_lists(&*self.attacher()?);
        let dirs = journalled_dirs(network, spec, &lists);
        let reservations = self.reservations.clone();
        // It reads files.
        let read = tokio::task::spawn_blocking(move || foreign(&dirs, &BTreeSet::new(), &reservations)).await;
        let read = read.map_err(|error| Failure::of(&error))?;
        Ok(ForeignAddresses::from([(network.clone(), read)]))
    }

    fn attacher(&self) -> Result<Arc<Attacher<N, GateKeeper>>, Failure> {
        self.attacher.upgrade().ok_or_else(|| Failure::new("the agent is stopping: try again"))
    }
}
