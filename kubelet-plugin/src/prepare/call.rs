//! NodePrepareResources and NodeUnprepareResources: from the kubelet's claim to journalled plans, and back.
//!
//! An error costs the user 60 to 90 s until the kubelet asks again, so what may pass is waited for inside the
//! call.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use futures::FutureExt as _;
use futures::future::{BoxFuture, OptionFuture};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::ListParams;
use kube::{Api, Client};
use netclaim_api::NetworkName;
use netclaim_api::device::DeviceName;
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_api::reasons::PodEvent;
use netclaim_cni::NetworkList;
use netclaim_cni::ipam::host_local::Reservations;
use netclaim_cni::spans::failed;
use netclaim_driver::attach::{Attach, Attacher, CniPlugins, Failure};
use netclaim_driver::failpoint::Failpoint;
use tokio::sync::{OwnedMutexGuard, mpsc, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::claim::{Claim, ReadError, reserved_for};
use super::default_route::{self, DefaultRoutes};
use super::error::PlanError;
use super::exclusion::{self, Excluded, InPod};
use super::metrics::{CallMetrics, KubeletCall};
use super::offered::{Labels, Node};
use super::plan::{Taken, asks_for_namespace, asks_for_pod, is_offered, networks, plans};
use super::revise::Mend;
use crate::addresses::leases::{LeaseError, Leases};
use crate::addresses::plan::{self as addresses, Book, ForeignAddresses, PlanLock, TakenAddresses};
use crate::addresses::reservations::{foreign, journalled_dirs, journalled_lists};
use crate::devices;
use crate::dra::{CallFailure, ClaimRef, NodeResources, PreparedDevice};
use crate::gate::keeper::GateKeeper;
use crate::inventory::{Block, Inventory};
use crate::pods::NodePods;
use crate::pods::owner::{ByAttachment, DeviceRef, ObjectRef, OnLink, Owner, Plan, Record};
use crate::reports::spans::{self, Spans};
use crate::reports::{Events, Update};
use crate::runtime::sandboxes::{Inspection, Sandboxes};
use crate::waking::Waker;

/// The kubelet waits 45 s for the whole call, with all claims of a pod.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);
/// How long the API server may take for one answer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long is waited for a link that another pod uses: as long as one that is going mostly takes.
const LINK_TIMEOUT: Duration = Duration::from_secs(5);
/// After so long, the kubelet has asked again for a claim that was refused.
const KUBELET_RETRY: Duration = Duration::from_secs(90);
/// How long is waited for the end of the pod that had the claim: less than a Prepare has, and as long as pods
/// have to end by default.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const END_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Why a claim is not prepared. Its text, with its sources, becomes an event of the pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// It cannot be read, or makes no sense.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It cannot be served here, or not now.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Its CNI plugins cannot carry it out.
    #[error("request {request:?} of ResourceClaim {claim}, network {network}, node {node}")]
    Plugins { request: String, claim: ObjectRef, network: String, node: String, source: Failure },
    /// Others have the addresses that it asks for.
    #[error("ResourceClaim {claim}")]
    Lease { claim: ObjectRef, source: LeaseError },
    /// Another attachment has the link.
    #[error(transparent)]
    Excluded(#[from] Excluded),
    /// A pod has a link that the node lacks.
    #[error(transparent)]
    InPod(#[from] InPod),
    /// It cannot be journalled.
    #[error(transparent)]
    Journal(Failure),
    /// The networks of its earlier pod are still there.
    #[error("ResourceClaim {claim}")]
    Release { claim: ObjectRef, source: Failure },
    /// Its earlier pod runs.
    #[error(
        "ResourceClaim {claim} is with pod {pod} (UID {}), which has not ended on node {node}: the next pod gets it when that has ended",
        pod.uid
    )]
    NotEnded { claim: ObjectRef, pod: ObjectRef, node: String },
    /// The kubelet has unprepared it since.
    #[error("ResourceClaim {0} was unprepared meanwhile: try again")]
    Unprepared(ObjectRef),
    /// Its containers could not be created.
    #[error("node {node}: {reason}")]
    NoHook { node: String, reason: String },
    /// The agent ends.
    #[error("the agent is stopping: try again")]
    Stopping,
    /// The kubelet would not wait longer.
    #[error("node {node}: not ready within {} s, trying again", ANSWER_TIMEOUT.as_secs())]
    Late { node: String },
}

/// The facts from the API server that the plans of a claim need.
#[derive(Default)]
pub(super) struct Facts {
    labels: Labels,
    /// The prefixes that stay with `eth0` beside an attachment that has the pod's default route.
    kept: Vec<IpNet>,
}

pub(super) static UNKNOWN: Facts =
    Facts { labels: Labels { namespace: BTreeMap::new(), pod: BTreeMap::new() }, kept: Vec::new() };

/// The part of the CNI plugins that a Prepare needs.
pub(crate) trait Plugins: Attach {
    /// Looks whether a configuration can be carried out, and settles what its plugins decide.
    fn settle(&self, list: &NetworkList) -> impl Future<Output = Result<NetworkList, Failure>> + Send;
}

impl Plugins for CniPlugins {
    async fn settle(&self, list: &NetworkList) -> Result<NetworkList, Failure> {
        Self::settle(self, list).await
    }
}

/// Prepares and unprepares claims of this node.
pub(crate) struct NodeAgent<N> {
    /// Where claims are read.
    pub(crate) client: kube::Client,
    pub(crate) driver: String,
    /// The Node object's name.
    pub(crate) node_name: String,
    pub(crate) boot_id: String,
    pub(crate) attacher: Arc<Attacher<N, GateKeeper>>,
    /// Prefixes of the cluster's pods.
    pub(crate) cluster_cidrs: Vec<IpNet>,
    /// Whether the container runtime can ask for pods' primary networks.
    pub(crate) primary: bool,
    /// Who knows the names of CDI devices.
    pub(crate) gate: Arc<GateKeeper>,
    /// The node's inventory; `None` until it is known.
    pub(crate) inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// Looks whether a plan can be carried out.
    pub(crate) plugins: Arc<N>,
    /// The sandboxes of the node, also those of pods that nothing is planned for.
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) pods: Arc<NodePods>,
    /// Where pods are warned.
    pub(crate) events: Events,
    /// Where refusals are reported.
    pub(crate) reports: mpsc::UnboundedSender<Update>,
    /// Held from the look at what others have (names, ids, links, addresses) until it is journalled what this
    /// claim has.
    pub(crate) plan_lock: Arc<PlanLock>,
    /// Addresses that claims ask for.
    pub(crate) leases: Arc<Leases>,
    /// Prepares that have not ended.
    pub(crate) calls: Calls,
    pub(crate) metrics: CallMetrics,
    /// The traces of claims.
    pub(crate) spans: Arc<Spans>,
    /// Addresses that `host-local` has handed out.
    pub(crate) reservations: Reservations,
    /// Hears of pods that wait for what others have.
    pub(crate) waker: Waker,
    /// The ClaimNetworks by which attachments were planned again, by claim and index.
    pub(crate) mended: Mutex<HashMap<(String, u32), ClaimNetworkSpec>>,
    /// Why no container with a claim can be created; `None` while one can.
    pub(crate) no_hook: watch::Receiver<Option<String>>,
}

/// A plan of another pod that excludes a plan, and the refusal if it stays.
pub(super) struct Obstacle {
    plan: Plan,
    pub(super) refusal: Excluded,
}

/// Whether a pod has ended.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// A sandbox of it lives, or that cannot be known.
    NotYet,
    /// It has, and DELs are owed.
    Owing,
    /// It has.
    NothingOwed,
}

/// Prepares under way: an Unprepare of the claim has them journal nothing.
#[derive(Default)]
pub(crate) struct Calls(Mutex<Vec<Arc<Call>>>);

struct Call {
    claim_uid: String,
    is_over: AtomicBool,
}

struct UnderWay<'a> {
    calls: &'a Calls,
    call: Arc<Call>,
}

impl Calls {
    fn begin(&self, claim_uid: &str) -> UnderWay<'_> {
        let call = Arc::new(Call { claim_uid: claim_uid.to_owned(), is_over: AtomicBool::new(false) });
        self.lock().push(Arc::clone(&call));
        UnderWay { calls: self, call }
    }

    fn end(&self, claim_uid: &str) {
        let calls = self.lock();
        let of_claim = calls.iter().filter(|call| call.claim_uid == claim_uid);
        of_claim.for_each(|call| call.is_over.store(true, Ordering::Relaxed));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Call>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay<'_> {
    fn is_over(&self) -> bool {
        self.call.is_over.load(Ordering::Relaxed)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.calls.lock().retain(|call| !Arc::ptr_eq(call, &self.call));
    }
}

/// Between two questions to the API server, as long as the kubelet waits.
fn pauses() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(3))
        .without_max_times()
        .with_total_delay(Some(ANSWER_TIMEOUT.saturating_sub(READ_TIMEOUT)))
}

/// A claim's text that is being read.
type ReadAhead = AbortOnDropHandle<Result<String, ReadError>>;

/// Reads a claim's object.
async fn text_of(client: Client, claim: ClaimRef) -> Result<String, ReadError> {
    let url = Api::<ResourceClaim>::namespaced(client.clone(), &claim.namespace).resource_url().to_owned();
    let object = || format!("ResourceClaim {}/{}", claim.namespace, claim.name);
    let request = kube::core::Request::new(url).get(&claim.name, &kube::api::GetParams::default());
    let request = request.map_err(|source| ReadError::Request { object: object(), source })?;
    answer(client.request_text(request), object).await
}

impl<N: Plugins> NodeResources for NodeAgent<N> {
    async fn prepare(&self, claims: Vec<ClaimRef>) -> Vec<Result<Vec<PreparedDevice>, CallFailure>> {
        Failpoint::PrepareAsked.reach();
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        // Interface names are given in this order: it must not depend on the kubelet's maps.
        let mut order: Vec<usize> = (0..claims.len()).collect();
        order.sort_by(|a, b| claims.get(*a).map(|c| &c.name).cmp(&claims.get(*b).map(|c| &c.name)));
        // Each claim has a trace of its own, in which the whole call is seen.
        let calls: Vec<_> = claims.iter().map(|claim| self.spans.prepare_call(claim, claims.len())).collect();
        let mut results: Vec<Result<Vec<PreparedDevice>, CallFailure>> =
            claims.iter().map(|_| Err(CallFailure(String::new()))).collect();
        // The first one is read at once anyway.
        let others = claims.iter().enumerate().map(|(index, claim)| (order.first() != Some(&index), claim));
        let mut texts: Vec<_> =
            others.map(|(is_other, claim)| is_other.then(|| self.read_ahead(claim)).flatten()).collect();
        for index in order {
            let (Some(claim), Some(result)) = (claims.get(index), results.get_mut(index)) else {
                continue;
            };
            let span = self.spans.preparing(claim);
            let text = texts.get_mut(index).and_then(Option::take);
            let prepared = self.prepare_one(claim, text).instrument(span.clone());
            *result = match tokio::time::timeout_at(deadline, prepared).await {
                Ok(result) => result.map_err(|error| CallFailure::of(&error)),
                Err(_) => Err(CallFailure::of(&PrepareError::Late { node: self.node_name.clone() })),
            };
            self.metrics.call(KubeletCall::Prepare, result.is_ok());
            if let Err(error) = result {
                tracing::warn!(claim.uid, claim.namespace, claim.name, %error, "cannot prepare");
                [Some(&span), calls.get(index)].into_iter().flatten().for_each(|span| failed(span, error));
            }
        }
        results
    }

    async fn unprepare(&self, claim: ClaimRef) -> Result<(), CallFailure> {
        Failpoint::UnprepareAsked.reach();
        let span = self.spans.unprepare_call(&claim);
        // The controller says when what is attached to a running pod goes.
        let is_hot = self.attacher.plans_of(&claim.uid).iter().any(Plan::is_hot);
        let released = if is_hot { Ok(()) } else { self.release(&claim.uid).await };
        let result = released.map_err(|failure| CallFailure::of(&failure));
        self.metrics.call(KubeletCall::Unprepare, result.is_ok());
        if let Err(error) = &result {
            tracing::warn!(claim.uid, claim.namespace, claim.name, %error, "cannot unprepare yet");
            failed(&span, error);
            self.report_damage(&claim.uid).await;
        } else {
            self.spans.unprepared(&claim);
        }
        result
    }
}

impl<N: Plugins> Mend for NodeAgent<N> {
    fn mended<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Option<Plan>> {
        self.planned_again(plan).boxed()
    }
}

impl<N: Plugins> NodeAgent<N> {
    async fn prepare_one(
        &self,
        claim: &ClaimRef,
        text: Option<ReadAhead>,
    ) -> Result<Vec<PreparedDevice>, PrepareError> {
        let call = self.calls.begin(&claim.uid);
        let known = self.attacher.plans_of(&claim.uid);
        if known.is_empty() {
            if let Some(reason) = self.no_hook.borrow().clone() {
                return Err(PrepareError::NoHook { node: self.node_name.clone(), reason });
            }
            // Before the plans are journalled: the pod's task reports them at once.
            self.spans.prepared(claim);
        }
        match self.prepare_from(claim, known, text, &call).await {
            // Without netclaim's policy, the pod by which the scheduler was asked comes to the node. It needs
            // nothing, and goes.
            Err(PrepareError::Read(ReadError::OfAttachment(_))) => Ok(Vec::new()),
            prepared => prepared,
        }
    }

    /// Plans and journals what a NetworkAttachment asks for, in the sandbox in which its pod runs.
    ///
    /// # Errors
    /// As of a Prepare. What is refused is tried again by the caller.
    pub(crate) async fn attach(
        &self,
        (by, pod): (&ByAttachment, &ObjectRef),
        claim: &ClaimRef,
    ) -> Result<(), PrepareError> {
        let call = self.calls.begin(&claim.uid);
        self.spans.prepared(claim);
        let read = |text: &str, uid: &str| Claim::read_for(by, pod, (text, uid, &self.driver));
        let prepared = async {
            let known = self.attacher.plans_of(&claim.uid);
            let read = self.read(claim, None, read).await.inspect_err(|error| self.report(error))?;
            self.plan_and_journal(read, known, &call).await.map(drop)
        };
        let span = self.spans.preparing(claim);
        let prepared = match tokio::time::timeout(ANSWER_TIMEOUT, prepared.instrument(span.clone())).await {
            Ok(prepared) => prepared,
            Err(_) => Err(PrepareError::Late { node: self.node_name.clone() }),
        };
        prepared.inspect_err(|error| failed(&span, &error))
    }

    /// Waits until what is being planned now is in the journal.
    pub(crate) async fn journalled(&self) {
        drop(self.plan_lock.lock().await);
    }

    /// Detaches and forgets what is journalled of a claim.
    ///
    /// # Errors
    /// When a DEL fails. The agent retries it by itself, and a later call waits for it.
    pub(crate) async fn release(&self, claim_uid: &str) -> Result<(), Failure> {
        self.calls.end(claim_uid);
        // A Prepare that has its turn now journals before the release; one that comes to it later sees that
        // it is over.
        self.journalled().await;
        self.attacher.release(claim_uid).await
    }

    /// Reads a new claim while the claims before it are prepared. What is read after the kubelet's call has
    /// begun is what the kubelet has seen, or newer.
    fn read_ahead(&self, claim: &ClaimRef) -> Option<ReadAhead> {
        if !self.attacher.plans_of(&claim.uid).is_empty() {
            return None;
        }
        let text = text_of(self.client.clone(), claim.clone());
        Some(AbortOnDropHandle::new(tokio::spawn(text.in_current_span())))
    }

    /// Claims by name whose pod has ended without an Unprepare, each with the pod's UID. The kubelet asks for
    /// no Unprepare where another pod of the node uses the claim, and for no Prepare of the other pod either.
    pub(crate) async fn left_behind(&self) -> HashMap<ObjectRef, String> {
        let named = |plan: &Plan| {
            plan.owner.may_be_shared().then(|| (plan.owner.claim.clone(), plan.owner.pod.uid.clone()))
        };
        let mut claims: HashMap<ObjectRef, String> =
            self.attacher.plans(named).into_iter().flatten().collect();
        let mut ended = HashMap::new();
        for pod_uid in claims.values() {
            if !ended.contains_key(pod_uid) {
                ended.insert(pod_uid.clone(), self.end_of(pod_uid).await == End::NothingOwed);
            }
        }
        claims.retain(|_, pod_uid| ended.get(pod_uid).copied().unwrap_or(false));
        claims
    }

    /// Gives the claim of the pod `from`, which has ended, to the one pod that it is reserved for now, if
    /// that is on this node. Returns whether it did.
    ///
    /// # Errors
    /// Why the other pod cannot have it yet. The claim is still that of the first pod then.
    pub(crate) async fn hand_over(&self, claim: &ObjectRef, from: &str) -> Result<bool, PrepareError> {
        let ObjectRef { namespace, name, uid } = claim.clone();
        let claim = ClaimRef { namespace, name, uid };
        let call = self.calls.begin(&claim.uid);
        let known = self.attacher.plans_of(&claim.uid);
        if known.first().is_none_or(|plan| plan.owner.pod.uid != from) {
            return Ok(false);
        }
        let pods = self.read_once(&claim, reserved_for).await?;
        if pods.contains(from) || !pods.iter().any(|uid| self.sandboxes.has(uid)) {
            return Ok(false);
        }
        let span = self.spans.preparing(&claim);
        let prepared = self.prepare_from(&claim, known, None, &call).instrument(span.clone());
        // As long as a Prepare: the node of a lease that no plan names is cleared later.
        let prepared = match tokio::time::timeout(ANSWER_TIMEOUT, prepared).await {
            Ok(prepared) => prepared,
            Err(_) => Err(PrepareError::Late { node: self.node_name.clone() }),
        };
        prepared.inspect_err(|error| failed(&span, &error))?;
        Ok(self.attacher.plans_of(&claim.uid).first().is_some_and(|plan| plan.owner.pod.uid != from))
    }

    /// Prepares a claim whose plans `known` are journalled.
    async fn prepare_from(
        &self,
        claim: &ClaimRef,
        mut known: Vec<Plan>,
        text: Option<ReadAhead>,
        call: &UnderWay<'_>,
    ) -> Result<Vec<PreparedDevice>, PrepareError> {
        if let Some(first) = known.first() {
            // Without an answer the claim is its pod's: the containers of another one are refused all the
            // same.
            let pods = self.read_once(claim, reserved_for).await;
            let is_its = pods.map_or(true, |pods| pods.contains(&first.owner.pod.uid));
            // Half a claim may be left of a write that failed: it is completed.
            match (is_its, known.len() == first.of as usize) {
                (true, true) => return Ok(self.prepared(&known, &[])),
                (true, false) => {}
                (false, _) => {
                    if self.wait_for_end(first).await? == End::Owing {
                        self.attacher.release(&claim.uid).await.map_err(PrepareError::Journal)?;
                        known.clear();
                    }
                }
            }
        }
        let read = |text: &str, uid: &str| Claim::read(text, uid, &self.driver);
        let span = spans::reading(claim);
        let claim = self.read(claim, text, read).instrument(span.clone()).await.inspect_err(|error| {
            failed(&span, error);
            self.report(error);
        })?;
        drop(span);
        self.plan_and_journal(claim, known, call).await
    }

    /// Prepares a claim that has been read, and whose plans `known` are journalled.
    async fn plan_and_journal(
        &self,
        claim: Claim,
        known: Vec<Plan>,
        call: &UnderWay<'_>,
    ) -> Result<Vec<PreparedDevice>, PrepareError> {
        spans::is_for_pod(&claim.pod);
        // What comes to a running pod is tried again without the kubelet.
        let has_kubelet = claim.by_attachment.is_none();
        let refuse = |error: PrepareError| self.refuse(&claim, error);
        let deadline = Instant::now() + LINK_TIMEOUT;
        let mut inventory = self.inventory_with(&claim, known.is_empty(), deadline).await?;
        let facts = self.facts(&claim, &inventory).await?;
        loop {
            let mut changes = self.attacher.changes();
            let foreign = self.foreign_addresses(&claim, &inventory).await;
            let book = self.plan_lock.lock().await.clone();
            let made = match self.plan(&claim, None, &inventory, &facts, (&foreign, &book)) {
                Ok(made) => made,
                // The controller may be about to lease another block, or an attachment to end.
                Err(error)
                    if (error.is_for_lack_of_addresses() || error.is_for_lack_of_bandwidth())
                        && Instant::now() < deadline =>
                {
                    tokio::select! {
                        changed = self.changed_inventory(&inventory, deadline) => inventory = changed?,
                        _ = changes.changed() => {}
                    }
                    continue;
                }
                Err(error) => {
                    if error.is_for_lack_of_addresses() && has_kubelet {
                        self.wake_when_supplied(&claim, &inventory);
                    }
                    let in_pod =
                        error.is_for_lack_of_a_link().then(|| self.wake_after(&claim, &inventory)).flatten();
                    return Err(refuse(in_pod.map_or_else(|| error.into(), PrepareError::from)));
                }
            };
            let settled = self.settle(made.clone()).await.map_err(refuse)?;
            for plan in &settled {
                let of_node = plan.network.parse().ok().and_then(|name| inventory.addresses.get(&name));
                let blocks =
                    |ip| of_node.map(|of_node| addresses::blocks_of(of_node, ip)).unwrap_or_default();
                let taken = self.leases.take(plan, blocks).await;
                taken
                    .map_err(|source| refuse(PrepareError::Lease { claim: claim.object.clone(), source }))?;
            }
            let other = {
                let turn = Arc::clone(&self.plan_lock).lock_owned().await;
                if call.is_over() || self.attacher.plans_of(&claim.object.uid) != known {
                    return Err(PrepareError::Unprepared(claim.object.clone()));
                }
                // Others may have got something since, and blocks may be gone.
                inventory = self.current_inventory(inventory);
                let now = self.plan(&claim, None, &inventory, &facts, (&foreign, &turn));
                let now = now.ok().filter(|now| addresses::differ_in_choice_only(&made, now));
                // Which address it is does not matter to the plugins. What was chosen before the turn, others
                // may have by now.
                let Some(settled) = now.and_then(|now| settled_as(&now, &made, &settled)) else { continue };
                match self.obstacle(&settled).map_err(|error| refuse(error.into()))? {
                    None => {
                        self.journal(&claim, &known, settled.clone(), turn).await?;
                        return Ok(self.prepared(&settled, &claim.observed));
                    }
                    Some(other) => other,
                }
            };
            let holder = other.plan.owner.claim.clone();
            self.wait_for_release(other, deadline).await.map_err(|error| {
                if has_kubelet {
                    self.waker.blocked(claim.pod.clone(), &holder);
                }
                refuse(error.into())
            })?;
            inventory = self.inventory_with(&claim, known.is_empty(), deadline).await?;
        }
    }

    /// Returns who has the link that the node lacks for the claim. Its pod is woken when that one gives it
    /// back.
    fn wake_after(&self, claim: &Claim, inventory: &Inventory) -> Option<InPod> {
        let in_pod = self.in_pod(claim, inventory)?;
        if claim.by_attachment.is_none() {
            self.waker.blocked(claim.pod.clone(), &in_pod.other.claim);
        }
        Some(in_pod)
    }

    /// Returns who has the link that the node lacks for the claim.
    pub(super) fn in_pod(&self, claim: &Claim, inventory: &Inventory) -> Option<InPod> {
        let mut plans = Vec::new();
        self.attacher.for_each_pod(|state| {
            // A stray link is in no pod.
            let there = state.records.iter().filter(|record| record.stray.is_none());
            plans.extend(there.map(|record| Arc::clone(&record.plan)));
        });
        InPod::of(claim, inventory, plans.iter().map(|plan| &**plan))
    }

    /// Has the claim's pod woken when the node gets addresses that it has not got now.
    fn wake_when_supplied(&self, claim: &Claim, inventory: &Inventory) {
        fn blocks<'a>(known: &'a Inventory, names: &'a [NetworkName]) -> impl Iterator<Item = &'a Block> {
            names.iter().filter_map(|name| known.addresses.get(name)).flat_map(|of_node| &of_node.blocks)
        }
        let names: Vec<NetworkName> = networks(claim, inventory).map(|(name, _)| name.clone()).collect();
        let before: HashMap<String, u128> =
            blocks(inventory, &names).map(|block| (block.uid.clone(), block.size())).collect();
        let (mut inventory, waker, pod) = (self.inventory.clone(), self.waker.clone(), claim.pod.clone());
        tokio::spawn(async move {
            let is_new = |block: &Block| before.get(&block.uid).is_none_or(|size| block.size() > *size);
            let is_supplied = |now: &Option<Arc<Inventory>>| {
                now.as_ref().is_some_and(|now| blocks(now, &names).any(is_new))
            };
            let supplied = tokio::time::timeout(KUBELET_RETRY, inventory.wait_for(is_supplied)).await;
            if matches!(supplied, Ok(Ok(_))) {
                waker.supplied(pod);
            }
        });
    }

    /// Replaces the claim's plans, which are `known`, by those that are `made`.
    async fn journal(
        &self,
        claim: &Claim,
        known: &[Plan],
        made: Vec<Plan>,
        mut turn: OwnedMutexGuard<Book>,
    ) -> Result<(), PrepareError> {
        if known.iter().any(|plan| plan.owner.pod.uid != claim.pod.uid) {
            let released = self.attacher.release(&claim.object.uid);
            let late = || Failure::new("the networks of its earlier pod are not released yet: try again");
            let released = tokio::time::timeout(LINK_TIMEOUT, released).await;
            released
                .unwrap_or_else(|_| Err(late()))
                .map_err(|source| PrepareError::Release { claim: claim.object.clone(), source })?;
        }
        let attacher = Arc::clone(&self.attacher);
        let journalling = async move {
            made.iter().for_each(|plan| turn.note(plan));
            let journalled = attacher.prepare(made).await;
            drop(turn);
            journalled
        };
        // A call that ends at its deadline leaves the order to journal behind: no other call may look at what
        // others have before that.
        let journalled = tokio::spawn(journalling.in_current_span()).await;
        let journalled = journalled.unwrap_or_else(|error| Err(Failure::of(&error)));
        journalled.map_err(|failure| self.refuse(claim, PrepareError::Journal(failure)))?;
        Failpoint::Planned.reach();
        // The pod of a claim that is handed over has its sandbox already, and so has one that runs. That one
        // keeps what it has, whatever this look says.
        let runs = claim.by_attachment.is_some();
        match self.sandboxes.inspect(&claim.pod.uid, &self.boot_id) {
            Some(Inspection::Live(live)) => self.attacher.sandbox_up(live),
            Some(Inspection::Unfit(reason) | Inspection::Unclear(reason)) if !runs => {
                self.attacher.sandbox_unfit(&claim.pod.uid, reason);
            }
            Some(Inspection::Gone | Inspection::Unfit(_) | Inspection::Unclear(_)) | None => {}
        }
        Ok(())
    }

    /// Returns whether the pod has ended as far as the node knows, whatever the kubelet asks.
    async fn end_of(&self, pod_uid: &str) -> End {
        let Some(state) = self.attacher.watch(pod_uid).map(|state| state.borrow().clone()) else {
            return End::NothingOwed;
        };
        if state.damaged.is_some() {
            return End::NotYet;
        }
        let boot_id = self.boot_id.clone();
        let owed = state.records.iter().any(|record| record.phase.sandbox().is_some());
        let lives = tokio::task::spawn_blocking(move || state.sandbox_lives(&boot_id));
        match (lives.await.unwrap_or(true), owed) {
            (true, _) => End::NotYet,
            (false, true) => End::Owing,
            (false, false) => End::NothingOwed,
        }
    }

    /// Waits until the pod of `plan` has ended, for which the claim is reserved no more.
    async fn wait_for_end(&self, plan: &Plan) -> Result<End, PrepareError> {
        let deadline = Instant::now() + END_TIMEOUT;
        loop {
            let end = self.end_of(&plan.owner.pod.uid).await;
            if end != End::NotYet {
                return Ok(end);
            }
            if Instant::now() >= deadline {
                let Owner { claim, pod, .. } = plan.owner.clone();
                return Err(PrepareError::NotEnded { claim, pod, node: self.node_name.clone() });
            }
            tokio::time::sleep(END_POLL_INTERVAL).await;
        }
    }

    /// Reads the claim until it is what the kubelet has seen; the first time, that is what was read ahead.
    async fn read<T>(
        &self,
        claim: &ClaimRef,
        ahead: Option<ReadAhead>,
        understand: impl Fn(&str, &str) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let (mut ahead, understand) = (ahead, &understand);
        let read = || {
            let ahead = ahead.take();
            async move {
                let Some(Ok(text)) = OptionFuture::from(ahead).await else {
                    return self.read_once(claim, understand).await;
                };
                understand(&text?, &claim.uid)
            }
        };
        let is_final =
            |error: &ReadError| matches!(error, ReadError::Refused(_) | ReadError::OfAttachment(_));
        read.retry(pauses()).when(|error| !is_final(error)).await
    }

    async fn read_once<T>(
        &self,
        claim: &ClaimRef,
        understand: impl Fn(&str, &str) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        understand(&text_of(self.client.clone(), claim.clone()).await?, &claim.uid)
    }

    /// Returns the node's inventory. Where the claim is `new`, it is waited until `deadline` for its devices
    /// to be offered: a link that another pod had is on its way back, or a ClaimNetwork is new.
    async fn inventory_with(
        &self,
        claim: &Claim,
        new: bool,
        deadline: Instant,
    ) -> Result<Arc<Inventory>, PrepareError> {
        let mut inventory = self.inventory.clone();
        let known = inventory.wait_for(Option::is_some).await.ok().and_then(|known| known.clone());
        let known = self.settled(&known.ok_or(PrepareError::Stopping)?);
        if !new || is_offered(claim, self.node(&known, &UNKNOWN)).is_ok() {
            return Ok(known);
        }
        let offers = |known: &Option<Arc<Inventory>>| {
            let offers = |inventory| is_offered(claim, self.node(&self.settled(inventory), &UNKNOWN)).is_ok();
            known.as_ref().is_some_and(offers)
        };
        match tokio::time::timeout_at(deadline, inventory.wait_for(offers)).await {
            Ok(Ok(offering)) => {
                offering.as_ref().map(|inventory| self.settled(inventory)).ok_or(PrepareError::Stopping)
            }
            Ok(Err(_)) => Err(PrepareError::Stopping),
            // What is not offered is refused by name.
            Err(_) => Ok(known),
        }
    }

    /// Returns the inventory of now, or `before` where there is none any more.
    fn current_inventory(&self, before: Arc<Inventory>) -> Arc<Inventory> {
        let now = self.inventory.borrow().clone();
        now.map_or(before, |now| self.settled(&now))
    }

    /// Waits for another inventory than `before`; returns the same one at `deadline`.
    async fn changed_inventory(
        &self,
        before: &Arc<Inventory>,
        deadline: Instant,
    ) -> Result<Arc<Inventory>, PrepareError> {
        let mut inventory = self.inventory.clone();
        let is_other =
            |now: &Option<Arc<Inventory>>| now.as_ref().is_some_and(|now| self.settled(now) != *before);
        match tokio::time::timeout_at(deadline, inventory.wait_for(is_other)).await {
            Ok(Ok(now)) => now.as_ref().map(|now| self.settled(now)).ok_or(PrepareError::Stopping),
            Ok(Err(_)) => Err(PrepareError::Stopping),
            Err(_) => Ok(Arc::clone(before)),
        }
    }

    /// Addresses that others than the node's attachments hold of the claim's ClaimNetworks.
    pub(super) async fn foreign_addresses(
        &self,
        claim: &Claim,
        inventory: &Arc<Inventory>,
    ) -> ForeignAddresses {
        let leased: Vec<NetworkName> = networks(claim, inventory)
            .filter(|(name, _)| inventory.addresses.contains_key(name))
            .map(|(name, _)| name.clone())
            .collect();
        if leased.is_empty() {
            return BTreeMap::new();
        }
        let ours = addresses::sandboxes_of_named(&self.attacher);
        let lists = journalled_lists(&self.attacher);
        let specs = leased.into_iter().filter_map(|name| {
            let spec = inventory.networks.get(&name)?;
            let dirs = journalled_dirs(&name, spec, &lists);
            Some((name, dirs))
        });
        let (dirs, reservations): (Vec<_>, _) = (specs.collect(), self.reservations.clone());
        // It reads files.
        let read = tokio::task::spawn_blocking(move || {
            dirs.into_iter().map(|(name, dirs)| (name, foreign(&dirs, &ours, &reservations))).collect()
        });
        read.await.unwrap_or_default()
    }

    /// The inventory with each ClaimNetwork on the link that it is held on.
    pub(super) fn settled(&self, inventory: &Arc<Inventory>) -> Arc<Inventory> {
        let kinds = self.attacher.kinds();
        devices::settled(
            inventory,
            kinds.iter().filter_map(|(kind, _)| kind.on_link(&self.node_name, inventory)),
        )
    }

    fn node<'a>(&'a self, inventory: &'a Inventory, facts: &'a Facts) -> Node<'a> {
        let Facts { labels, kept } = facts;
        Node { name: &self.node_name, inventory, labels, kept, primary: self.primary }
    }

    async fn facts(&self, claim: &Claim, inventory: &Inventory) -> Result<Facts, ReadError> {
        Ok(Facts { labels: self.labels(claim, inventory).await?, kept: self.kept(claim, inventory).await? })
    }

    /// The prefixes that stay with `eth0`, where they are needed. The cluster has few ServiceCIDRs, and they
    /// hardly ever change: a list for each such claim is less than a watch of each node.
    async fn kept(&self, claim: &Claim, inventory: &Inventory) -> Result<Vec<IpNet>, ReadError> {
        if self.cluster_cidrs.is_empty() || !default_route::is_asked(claim) {
            return Ok(Vec::new());
        }
        let services = Api::<ServiceCIDR>::all(self.client.clone());
        // From the API server's cache.
        let params = ListParams::default().match_any();
        let read = || answer(services.list(&params), || "ServiceCIDRs".to_owned());
        let services = read.retry(pauses()).await?.items;
        Ok(default_route::kept(&self.cluster_cidrs, &services, &inventory.node_addresses))
    }

    /// The labels of the claim's pod and its namespace, where they are needed.
    async fn labels(&self, claim: &Claim, inventory: &Inventory) -> Result<Labels, ReadError> {
        let mut labels = Labels::default();
        if asks_for_pod(claim, inventory) {
            let ObjectRef { namespace, name, uid } = &claim.pod;
            let found = self.pods.metadata(namespace, name, uid).await;
            labels.pod =
                found.flatten().ok_or_else(|| ReadError::Pod(claim.pod.clone()))?.labels.unwrap_or_default();
        }
        if !asks_for_namespace(claim, inventory) {
            return Ok(labels);
        }
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let name = &claim.pod.namespace;
        let read = || answer(namespaces.get_metadata(name), || format!("Namespace {name}"));
        labels.namespace = read.retry(pauses()).await?.metadata.labels.unwrap_or_default();
        Ok(labels)
    }

    /// Plans an attachment as [`Mend::mended`] says. The claim is read once for each change of the
    /// ClaimNetwork.
    async fn planned_again(&self, before: &Plan) -> Option<Plan> {
        let Ok(DeviceName::Network(network)) = before.owner.device.device.parse() else { return None };
        let inventory = self.inventory.borrow().clone().map(|known| self.settled(&known))?;
        let spec = inventory.networks.get(&network)?;
        let ObjectRef { namespace, name, uid } = before.owner.claim.clone();
        let key = (uid.clone(), before.index);
        let lock = || self.mended.lock().unwrap_or_else(PoisonError::into_inner);
        if lock().get(&key) == Some(spec) {
            return None;
        }
        let read = |text: &str, uid: &str| match &before.owner.network_attachment {
            Some(by) => Claim::read_for(by, &before.owner.pod, (text, uid, &self.driver)),
            None => Claim::read(text, uid, &self.driver),
        };
        let claim = self.read_once(&ClaimRef { namespace, name, uid }, read).await.ok()?;
        let facts = self.facts(&claim, &inventory).await.ok()?;
        let foreign = self.foreign_addresses(&claim, &inventory).await;
        let book = self.plan_lock.lock().await.clone();
        let planned = self.plan(&claim, Some(before.index), &inventory, &facts, (&foreign, &book));
        let planned = planned.ok()?.into_iter().find(|plan| plan.index == before.index)?;
        let planned = self.settle(vec![Plan { of: before.of, ..planned }]).await.ok()?.pop()?;
        let is_same = addresses::differ_in_choice_only(slice::from_ref(before), slice::from_ref(&planned));
        if !is_same && differ_in_plugins_only(before, &planned) {
            return Some(planned);
        }
        let mut known = lock();
        known.retain(|(uid, _), _| !self.attacher.plans_of(uid).is_empty());
        known.insert(key, spec.clone());
        None
    }

    /// Returns the plans that the claim would get if it were journalled now. Others hold the `foreign`
    /// addresses. What is journalled of it stays, except for the attachment `anew`.
    pub(super) fn plan(
        &self,
        claim: &Claim,
        anew: Option<u32>,
        inventory: &Inventory,
        facts: &Facts,
        (foreign, book): (&ForeignAddresses, &Book),
    ) -> Result<Vec<Plan>, PlanError> {
        let state =
            self.attacher.watch(&claim.pod.uid).map(|state| state.borrow().clone()).unwrap_or_default();
        let of_pod = state.records.into_iter().map(|record| record.plan);
        let (own, others): (Vec<Arc<Plan>>, Vec<Arc<Plan>>) =
            of_pod.partition(|plan| plan.owner.claim.uid == claim.object.uid);
        let mut default_routes = DefaultRoutes::default();
        others.iter().for_each(|plan| default_routes.add(plan));
        let mut taken = Taken {
            addresses: TakenAddresses::new(foreign.clone(), book.clone()),
            bandwidth: BTreeMap::new(),
            default_routes,
            own: own.into_iter().filter(|plan| Some(plan.index) != anew).map(Arc::unwrap_or_clone).collect(),
            names: others.iter().map(|plan| plan.spec.if_name.clone()).collect(),
            segments: BTreeSet::new(),
        };
        // A node has hundreds of attachments: of others only what can matter to this claim is looked at.
        let networks: Vec<_> = networks(claim, inventory).collect();
        let leased: Vec<&str> = networks
            .iter()
            .filter(|(name, _)| inventory.addresses.contains_key(*name))
            .map(|(name, _)| name.as_str())
            .collect();
        let has_segments = networks.iter().any(|(_, spec)| spec.segmentation.is_some());
        let are_granted = || self.attacher.kinds().iter().any(|(kind, _)| kind.held.bandwidth > 0);
        if has_segments || !leased.is_empty() || are_granted() {
            self.attacher.for_each_pod(|state| {
                let is_others = |record: &&Record| record.plan.owner.claim.uid != claim.object.uid;
                for record in state.attachments().filter(is_others) {
                    if leased.contains(&record.plan.network.as_str()) {
                        taken.addresses.add_record(record);
                    }
                    if has_segments {
                        taken.segments.extend(devices::id_of(&record.plan));
                    }
                    taken.grant(&record.plan, inventory);
                }
            });
        }
        plans(claim, self.node(inventory, facts), &taken)
    }

    pub(super) async fn settle(&self, mut plans: Vec<Plan>) -> Result<Vec<Plan>, PrepareError> {
        for plan in &mut plans {
            let settled = self.plugins.settle(&plan.spec.conflist).await;
            plan.spec.conflist = settled.map_err(|source| PrepareError::Plugins {
                request: plan.owner.device.request.clone(),
                claim: plan.owner.claim.clone(),
                network: plan.network.clone(),
                node: self.node_name.clone(),
                source,
            })?;
        }
        Ok(plans)
    }

    /// Says on the claim's pods which file of the journal cannot be read: they end only when an admin has
    /// repaired or removed it, and a record that could say which pod it is of is not there.
    async fn report_damage(&self, claim_uid: &str) {
        let damaged = self.attacher.damaged_pods(claim_uid);
        if damaged.is_empty() {
            return;
        }
        let pods = self.pods.with_claims().await.unwrap_or_default();
        for (uid, reason) in damaged {
            if let Some(seen) = pods.iter().find(|seen| seen.pod.uid == uid) {
                self.events.warn_pod(&seen.pod, PodEvent::NetworkDetachFailed, "Detach", reason);
            }
        }
    }

    /// What has a link of `plans` in a use that excludes theirs.
    ///
    /// # Errors
    /// When the plans exclude each other.
    pub(super) fn obstacle(&self, plans: &[Plan]) -> Result<Option<Obstacle>, Excluded> {
        // A node has hundreds of plans, and few that exclude another one.
        let excludes = |link: Option<&OnLink>| plans.iter().any(|plan| exclusion::excludes(plan, link));
        let mut others = Vec::new();
        if self.attacher.kinds().iter().any(|(kind, _)| excludes(kind.link.as_ref())) {
            let of = |other: &Plan| excludes(other.owner.link.as_ref()).then(|| other.clone());
            others.extend(self.attacher.plans(of).into_iter().flatten());
        }
        // From the claim itself only what comes before: the other way round it would be said twice.
        let obstacle = (0..).zip(plans).find_map(|(index, plan)| {
            let others = others.iter().filter(|other| other.owner.claim.uid != plan.owner.claim.uid);
            Some((plan, exclusion::obstacle(plan, others.chain(plans.iter().take(index)))?))
        });
        let Some((plan, other)) = obstacle else { return Ok(None) };
        let refusal = Excluded::by(plan, other);
        if other.owner.claim.uid == plan.owner.claim.uid {
            return Err(refusal);
        }
        Ok(Some(Obstacle { plan: other.clone(), refusal }))
    }

    /// Waits until the obstacle is gone.
    ///
    /// # Errors
    /// When it is still there at `deadline`.
    async fn wait_for_release(
        &self,
        Obstacle { plan, refusal }: Obstacle,
        deadline: Instant,
    ) -> Result<(), Excluded> {
        let Some(mut state) = self.attacher.watch(&plan.owner.pod.uid) else { return Ok(()) };
        let released = state.wait_for(|state| state.records.iter().all(|record| *record.plan != plan));
        // Its task ends with the last plan of a pod.
        let released = tokio::time::timeout_at(deadline, released).await.map(drop);
        released.map_err(|_| {
            refusal.log();
            refusal
        })
    }

    fn prepared(&self, plans: &[Plan], observed: &[DeviceRef]) -> Vec<PreparedDevice> {
        let device = |device: &DeviceRef, cdi_devices| PreparedDevice {
            request: device.main_request().to_owned(),
            pool: device.pool.clone(),
            device: device.device.clone(),
            cdi_devices,
            share_id: device.share_id.clone(),
        };
        let attachments = plans.iter().filter(|plan| !plan.is_finalizer());
        let attached =
            attachments.map(|plan| device(&plan.owner.device, vec![self.gate.specs().device(plan)]));
        attached.chain(observed.iter().map(|observed| device(observed, Vec::new()))).collect()
    }

    /// Has a refusal noted in the claim's status.
    fn refuse(&self, claim: &Claim, error: PrepareError) -> PrepareError {
        let _ = self.reports.send(Update::Refused(Box::new(claim.refuse(&error))));
        error
    }

    fn report(&self, error: &ReadError) {
        if let ReadError::Refused(refusal) = error {
            let _ = self.reports.send(Update::Refused(refusal.clone()));
        }
    }
}

/// Whether plans of one attachment differ in nothing that others see: in the plugins, their arguments and
/// chosen addresses only.
fn differ_in_plugins_only(one: &Plan, other: &Plan) -> bool {
    let leases =
        |plan: &Plan| plan.owner.addresses.clone().map(|addresses| addresses.leases).unwrap_or_default();
    let Owner { addresses, attributes, configuration, .. } = one.owner.clone();
    let owner = Owner { addresses, attributes, configuration, ..other.owner.clone() };
    owner == one.owner && leases(one) == leases(other) && one.spec.if_name == other.spec.if_name
}

/// Returns the plans of `now` in the versions in which those that were `made` are `settled`.
fn settled_as(now: &[Plan], made: &[Plan], settled: &[Plan]) -> Option<Vec<Plan>> {
    let one = |((now, made), settled): ((&Plan, &Plan), &Plan)| {
        let mut plan = now.clone();
        if made.spec.conflist != settled.spec.conflist {
            plan.spec.conflist = now.spec.conflist.settled_as(&settled.spec.conflist).ok()?;
        }
        Some(plan)
    };
    now.iter().zip(made).zip(settled).map(one).collect()
}

/// Returns the API server's answer about an object, within the time that one answer may take.
async fn answer<T>(
    request: impl Future<Output = kube::Result<T>>,
    object: impl Fn() -> String,
) -> Result<T, ReadError> {
    match tokio::time::timeout(READ_TIMEOUT, request).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(source)) => Err(ReadError::Api { object: object(), source: Box::new(source) }),
        Err(_) => Err(ReadError::Timeout { object: object(), limit: READ_TIMEOUT }),
    }
}

#[cfg(test)]
mod tests {
    use crate::node_networks::Readiness;
    use std::net::IpAddr;
    use std::path::Path;

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use netclaim_api::addresses::{NetworkAddresses, PoolKey};
    use netclaim_cni::{CniResult, ContainerId, IfName};
    use netclaim_driver::attach::{AddFailure, Checked, Del, DelOutcome, LiveSandbox, Sandbox, Spec};
    use netclaim_driver::links::{HostLink, Netns};
    use netclaim_nri::{Sandbox as PodSandbox, SandboxNetwork};
    use serde_json::{Value, json};
    use tokio::sync::Semaphore;

    use netclaim_cni::error_chain;

    use super::*;
    use crate::fixtures::{gate_files, network_metrics, result};
    use crate::inventory::fixtures::uplink;
    use crate::inventory::{NodeAddresses, OwnBlocks};
    use crate::pods::owner::Journal;
    use crate::prepare::revise::{Mender, Reviser};

    /// A fake of the plugins: all is well, as soon as plans may be settled, and pods look for the links that
    /// they move.
    struct Fake(Semaphore, Semaphore);

    impl Plugins for Fake {
        async fn settle(&self, list: &NetworkList) -> Result<NetworkList, Failure> {
            self.0.acquire().await.expect("open").forget();
            Ok(list.clone())
        }
    }

    impl Attach for Fake {
        async fn link_to_move(&self, _: &Spec) -> Result<Option<HostLink>, Failure> {
            self.1.acquire().await.expect("open").forget();
            Ok(None)
        }

        async fn index_in_pod(&self, _: &Spec, _: &Sandbox) -> Option<u32> {
            None
        }

        async fn give_back(&self, _: &Spec, _: &HostLink) -> Result<DelOutcome, Failure> {
            Ok(DelOutcome::Clean)
        }

        async fn add(&self, spec: &Spec, _: &Sandbox) -> Result<CniResult, AddFailure> {
            if spec.conflist.raw().contains("\"mtu\":9000") {
                return Err(AddFailure::not_begun(Failure::new("the link has a smaller MTU")));
            }
            Ok(result(&json!({})))
        }

        async fn finalize(
            &self,
            spec: &Spec,
            sandbox: &Sandbox,
            _: &CniResult,
        ) -> Result<CniResult, AddFailure> {
            self.add(spec, sandbox).await
        }

        async fn del(&self, _: &Spec, _: Del<'_>) -> Result<DelOutcome, Failure> {
            Ok(DelOutcome::Clean)
        }

        async fn check(&self, _: &Spec, _: &Sandbox, _: &CniResult) -> Checked {
            Checked::Fine
        }

        async fn collect(
            &self,
            _: &Spec,
            _: impl Fn() -> Vec<(ContainerId, IfName)> + Send,
        ) -> Result<usize, Failure> {
            Ok(0)
        }
    }

    /// A fake of the API server: ResourceClaims by path.
    type Claims = Arc<Mutex<HashMap<String, Value>>>;

    /// The key of how many requests the API server waits for before it answers the first.
    const TOGETHER: &str = "answered together";

    async fn answer_to(request: Request<Body>, claims: &Claims) -> Response<Body> {
        if request.method() == http::Method::POST {
            let (head, body) = request.into_parts();
            let posted = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
            claims.lock().unwrap().insert(format!("posted to {}", head.uri.path()), posted);
            return Response::new(Body::from(b"{}".to_vec()));
        }
        let claim = claims.lock().unwrap().get(request.uri().path()).cloned();
        let missing = || json!({"kind": "Status", "status": "Failure", "code": 404});
        let status = if claim.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
        let body = claim.unwrap_or_else(missing).to_string().into_bytes();
        Response::builder().status(status).body(Body::from(body)).unwrap()
    }

    fn api_server(claims: Claims) -> kube::Client {
        let (service, mut requests) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            while let Some(first) = requests.next_request().await {
                let together = claims.lock().unwrap().get(TOGETHER).and_then(Value::as_u64).unwrap_or(1);
                let mut waiting = vec![first];
                while (waiting.len() as u64) < together {
                    waiting.extend(requests.next_request().await);
                }
                for (request, answer) in waiting {
                    answer.send_response(answer_to(request, &claims).await);
                }
            }
        });
        kube::Client::new(service, "default")
    }

    /// An agent of `node0`, which has the uplink eth1.
    struct Agent {
        node: Arc<NodeAgent<Fake>>,
        claims: Claims,
        reported: mpsc::UnboundedReceiver<Update>,
        inventory: watch::Sender<Option<Arc<Inventory>>>,
        woken: crate::waking::Events,
        no_hook: watch::Sender<Option<String>>,
        _blocks: watch::Sender<OwnBlocks>,
        _dir: tempfile::TempDir,
    }

    impl Agent {
        fn new() -> Self {
            Self::after(|_| ())
        }

        /// The agent after another one, which has left its journal so.
        fn after(left: impl FnOnce(&Path)) -> Self {
            Self::with(left, vec!["10.244.0.0/16".parse().unwrap()])
        }

        fn with(left: impl FnOnce(&Path), cluster_cidrs: Vec<IpNet>) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = |name: &str| dir.path().join(name);
            let (reports, reported) = mpsc::unbounded_channel();
            let gate =
                GateKeeper::take_over(gate_files(dir.path()), &[], "b", reports.clone(), network_metrics());
            let (gate, plugins) =
                (Arc::new(gate.unwrap()), Arc::new(Fake(Semaphore::new(1000), Semaphore::new(1000))));
            let journal = Journal::open(path("journal"), path("run")).unwrap();
            left(&path("journal"));
            let loaded = journal.load().unwrap();
            let inventory = Inventory {
                uplinks: vec![uplink("eth1")],
                lacking: ["ipvlan"].into(),
                ..Inventory::default()
            };
            let (inventory, known) = watch::channel(Some(Arc::new(inventory)));
            let own = OwnBlocks { known: Some(BTreeMap::new()), is_stale: false };
            let (blocks, own) = watch::channel(own);
            let (claims, (waker, woken)) = (Claims::default(), crate::waking::channel());
            let (no_hook_sender, no_hook) = watch::channel(None);
            let node = NodeAgent {
                client: api_server(Arc::clone(&claims)),
                driver: "netclaim.dev".into(),
                node_name: "node0".into(),
                boot_id: "b".into(),
                cluster_cidrs,
                primary: true,
                attacher: Attacher::start(Arc::clone(&plugins), Arc::clone(&gate), journal, loaded, "b"),
                gate,
                inventory: known,
                plugins,
                sandboxes: Arc::default(),
                pods: Arc::new(NodePods::new(api_server(Arc::clone(&claims)), "node0", Arc::default())),
                events: Events::new(api_server(Arc::clone(&claims)), "netclaim.dev", "node0"),
                reports,
                plan_lock: Arc::default(),
                leases: Arc::new(Leases::new(api_server(Arc::clone(&claims)), "node0")),
                calls: Calls::default(),
                reservations: Reservations::default(),
                metrics: CallMetrics::default(),
                spans: Arc::default(),
                waker,
                mended: Default::default(),
                no_hook,
            };
            let mender = Arc::<Mender>::default();
            let reviser = Reviser {
                mender: Arc::clone(&mender),
                attacher: Arc::downgrade(&node.attacher),
                inventory: node.inventory.clone(),
                blocks: own,
                plan_lock: Arc::clone(&node.plan_lock),
                leases: Arc::clone(&node.leases),
                reservations: Reservations::default(),
                node_name: "node0".into(),
                node_networks: Readiness::default(),
            };
            node.gate.revise_by(Arc::new(reviser));
            let node = Arc::new(node);
            let weak: std::sync::Weak<NodeAgent<Fake>> = Arc::downgrade(&node);
            mender.set(weak).ok().unwrap();
            let no_hook = no_hook_sender;
            Self { node, claims, reported, inventory, woken, no_hook, _blocks: blocks, _dir: dir }
        }

        /// Has the node serve the ClaimNetwork `storage` from these addresses of one block.
        fn has_addresses(&self, span: &str) {
            let spec = json!({"uplink": {"links": ["eth1"]}, "addresses": {"ranges": [{"subnet": "10.20.0.0/24"}]},
                "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}"}]}});
            let spec: ClaimNetworkSpec = serde_json::from_value(spec).unwrap();
            let name: NetworkName = "storage".parse().unwrap();
            let (cidr, spans) = ("10.20.0.32/27".parse().unwrap(), vec![span.parse().unwrap()]);
            let of_node = NodeAddresses {
                key: PoolKey::Network(name.clone()),
                pool: spec.addresses.as_ref().and_then(NetworkAddresses::inline),
                blocks: vec![Block { uid: "u".into(), cidr, spans, is_retired: false }],
                leaving: Vec::new(),
                is_stale: false,
                is_scarce: false,
            };
            self.inventory.send_modify(|known| {
                let known = Arc::make_mut(known.as_mut().unwrap());
                known.networks.insert(name.clone(), spec);
                known.addresses.insert(name, of_node);
            });
        }

        /// The addresses that are journalled for the claim.
        fn addresses(&self, claim: &ClaimRef) -> Vec<IpAddr> {
            let plans = self.node.attacher.plans_of(&claim.uid).into_iter();
            plans
                .filter_map(|plan| plan.owner.addresses)
                .flat_map(|addresses| addresses.ips().collect::<Vec<_>>())
                .collect()
        }

        /// A pod gets its sandbox.
        fn runs(&self, pod: &str) {
            let netns = Netns::open(Path::new("/proc/self/ns/net")).unwrap();
            let sandbox = Sandbox {
                id: format!("sandbox-of-{pod}"),
                netns: "/proc/self/ns/net".into(),
                netns_id: netns.id(),
                boot_id: "b".into(),
            };
            self.node.attacher.sandbox_up(LiveSandbox { pod_uid: pod.into(), sandbox, netns });
        }

        /// A claim of this name, with `device` allocated, is reserved for `pods`.
        fn claim(&self, name: &str, device: &str, pods: &[&str]) -> ClaimRef {
            let pods = pods.iter().map(|pod| json!({"resource": "pods", "name": pod, "uid": pod}));
            let result =
                json!({"request": "net", "driver": "netclaim.dev", "pool": "node0", "device": device});
            let claim = json!({
                "metadata": {"namespace": "default", "name": name, "uid": name},
                "status": {"reservedFor": pods.collect::<Vec<_>>(), "allocation": {"devices": {"results": [result]}}},
            });
            let path = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
            self.claims.lock().unwrap().insert(path, claim);
            ClaimRef { namespace: "default".into(), name: name.into(), uid: name.into() }
        }

        async fn prepare(&self, claim: &ClaimRef) -> Result<(), String> {
            self.node.prepare(vec![claim.clone()]).await.remove(0).map(drop).map_err(|failure| failure.0)
        }

        /// The pods of what is journalled for the claim.
        fn pods(&self, claim: &ClaimRef) -> Vec<String> {
            self.node.attacher.plans_of(&claim.uid).into_iter().map(|plan| plan.owner.pod.uid).collect()
        }

        fn sandbox_up(&self, pod: &str) {
            self.node.sandboxes.up(&PodSandbox {
                id: format!("sandbox-of-{pod}"),
                uid: pod.into(),
                name: pod.into(),
                namespace: "default".into(),
                network: SandboxNetwork::Unknown,
            });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_claim_is_refused_while_no_container_of_its_pod_could_be_created() {
        let agent = Agent::new();
        let old = agent.claim("old", "macvlan-eth1", &["pod"]);
        agent.prepare(&old).await.unwrap();
        agent.no_hook.send_replace(Some("its file system is mounted noexec".to_owned()));
        agent.prepare(&old).await.unwrap();
        let new = agent.claim("new", "macvlan-eth1", &["other"]);
        let refusal = agent.prepare(&new).await.unwrap_err();
        assert!(refusal.contains("node node0: its file system is mounted noexec"), "{refusal}");
        assert!(agent.pods(&new).is_empty());
        agent.no_hook.send_replace(None);
        agent.prepare(&new).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_claims_of_a_pod_are_read_at_once() {
        let agent = Agent::new();
        let claims = ["a", "b", "c"].map(|name| agent.claim(name, "macvlan-eth1", &["pod"]));
        agent.claims.lock().unwrap().insert(TOGETHER.into(), json!(claims.len()));
        let prepared = agent.node.prepare(claims.to_vec()).await;
        assert!(prepared.iter().all(Result::is_ok), "{prepared:?}");
        for claim in &claims {
            assert_eq!(agent.pods(claim), ["pod"]);
        }
    }

    impl Agent {
        /// A claim for a macvlan of eth1 whose class gives it the pod's default route.
        fn default_route_claim(&self, name: &str) -> ClaimRef {
            let claim = self.claim(name, "macvlan-eth1", &["pod"]);
            let parameters = json!({"apiVersion": netclaim_api::API_VERSION, "kind": "AttachmentConfig", "defaultRoute": true});
            let config = json!([{"source": "FromClass", "opaque": {"driver": "netclaim.dev", "parameters": parameters}}]);
            let path = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
            let mut claims = self.claims.lock().unwrap();
            claims.get_mut(&path).unwrap()["status"]["allocation"]["devices"]["config"] = config;
            let services = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDRList", "metadata": {},
                "items": [{"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}}]});
            claims.insert("/apis/networking.k8s.io/v1/servicecidrs".into(), services);
            claim
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_default_route_keeps_pods_services_and_the_node_with_eth0() {
        let agent = Agent::new();
        agent.inventory.send_modify(|known| {
            let known = Arc::make_mut(known.as_mut().unwrap());
            known.node_addresses.insert("192.0.2.10".parse().unwrap());
        });
        let claim = agent.default_route_claim("c");
        agent.prepare(&claim).await.unwrap();
        let plan = agent.node.attacher.plans_of(&claim.uid).remove(0);
        let list: Value = serde_json::from_str(plan.spec.conflist.raw()).unwrap();
        let kept = ["10.96.0.0/12", "10.244.0.0/16", "192.0.2.10/32"];
        assert_eq!(list["plugins"][1], json!({"type": "netclaim-route", "keep": kept}));
    }

    #[tokio::test(start_paused = true)]
    async fn a_default_route_is_refused_without_the_prefixes_of_pods() {
        let agent = Agent::with(|_| (), Vec::new());
        let claim = agent.default_route_claim("c");
        let refusal = agent.prepare(&claim).await.unwrap_err();
        let words = "defaultRoute: pods would lose DNS and Services: set agent.clusterCIDRs";
        assert!(refusal.contains(words), "{refusal}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_attachment_with_the_default_route_of_a_pod_is_refused_by_name() {
        let agent = Agent::new();
        let [one, two] = ["one", "two"].map(|name| agent.default_route_claim(name));
        agent.prepare(&one).await.unwrap();
        let refusal = agent.prepare(&two).await.unwrap_err();
        let words = "request \"net\" of ResourceClaim default/two: defaultRoute: interface net1 of ResourceClaim default/one has the \
                     IPv4 default route of the pod already";
        assert!(refusal.contains(words), "{refusal}");
        let other = agent.claim("three", "macvlan-eth1", &["pod"]);
        agent.prepare(&other).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_two_prepares_that_exclude_each_other_is_refused() {
        for devices in [["nic-eth1", "macvlan-eth1"], ["nic-eth1", "nic-eth1"]] {
            let agent = Agent::new();
            let [one, two] = [("one", devices[0]), ("two", devices[1])]
                .map(|(name, device)| agent.claim(name, device, &[&format!("pod-{name}")]));
            // Both have looked before either may go on.
            agent.node.plugins.0.forget_permits(1000);
            let permits = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                agent.node.plugins.0.add_permits(1000);
            };
            let (one, two, ()) = tokio::join!(agent.prepare(&one), agent.prepare(&two), permits);
            let refusals: Vec<String> = [one, two].into_iter().filter_map(Result::err).collect();
            let [refusal] = refusals.as_slice() else { panic!("{devices:?}: {refusals:?}") };
            assert!(refusal.contains("link eth1 is in another use by pod default/pod-"), "{refusal}");
            assert_eq!(agent.node.attacher.plans(|_| ()).len(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn twenty_prepares_at_once_get_one_address_each_and_do_not_wait_for_each_other() {
        let agent = Agent::new();
        agent.has_addresses("10.20.0.40-10.20.0.59");
        let claims: Vec<ClaimRef> =
            (0..20).map(|n| agent.claim(&format!("c{n}"), "net-storage", &[&format!("p{n}")])).collect();
        let prepared = futures::future::join_all(claims.iter().map(|claim| agent.prepare(claim))).await;
        assert!(prepared.iter().all(Result::is_ok), "{prepared:?}");
        let addresses: BTreeSet<IpAddr> = claims.iter().flat_map(|claim| agent.addresses(claim)).collect();
        assert_eq!(addresses.len(), 20);
        assert_eq!(agent.node.plugins.0.available_permits(), 980, "each was planned once");
        let late = agent.claim("late", "net-storage", &["late"]);
        assert!(agent.prepare(&late).await.expect_err("none is left").contains("no IPv4 address"));
        let frees = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            agent.node.unprepare(claims[7].clone()).await
        };
        let (freed, again) = (agent.addresses(&claims[7]), agent.prepare(&late));
        let (again, unprepared) = tokio::join!(again, frees);
        assert_eq!((again, unprepared), (Ok(()), Ok(())));
        assert_eq!(agent.addresses(&late), freed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_prepare_that_ends_too_early_keeps_its_turn_until_its_plan_is_journalled() {
        let agent = Agent::new();
        let (one, two) =
            (agent.claim("one", "macvlan-eth1", &["p"]), agent.claim("two", "macvlan-eth1", &["p"]));
        agent.prepare(&one).await.expect("prepared");
        agent.node.plugins.1.forget_permits(1000);
        agent.runs("p");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(agent.prepare(&two).await.expect_err("the pod is busy").contains("not ready within"));
        assert!(agent.node.plan_lock.try_lock().is_err(), "its plan is on the way");
        agent.node.plugins.1.add_permits(1000);
        drop(agent.node.plan_lock.lock().await);
        assert_eq!(agent.pods(&two), ["p"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_gets_no_address_that_was_excluded_after_its_claim_was_prepared() {
        let agent = Agent::new();
        agent.has_addresses("10.20.0.40-10.20.0.41");
        let claims = ["a", "b"].map(|name| agent.claim(name, "net-storage", &[name]));
        for claim in &claims {
            agent.prepare(claim).await.expect("free");
        }
        let of_b = agent.addresses(&claims[1]);
        agent.has_addresses("10.20.0.41-10.20.0.42");
        for pod in ["a", "b"] {
            agent.runs(pod);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(agent.addresses(&claims[0]), [ip("10.20.0.42")]);
        assert_eq!(agent.addresses(&claims[1]), of_b, "it keeps its own");
        agent.node.attacher.for_each_pod(|state| {
            assert!(state.records.iter().all(|record| record.phase.result().is_some()), "{state:?}");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_gets_its_planned_address_if_the_api_server_says_nothing_for_long() {
        let agent = Agent::new();
        agent.has_addresses("10.20.0.40-10.20.0.41");
        let claim = agent.claim("a", "net-storage", &["a"]);
        agent.prepare(&claim).await.expect("free");
        let planned = agent.addresses(&claim);
        agent.inventory.send_replace(None);
        agent.runs("a");
        let is_attached = || {
            agent
                .node
                .attacher
                .any_pod(|_, state| state.records.iter().any(|record| record.phase.result().is_some()))
        };
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!is_attached(), "there may be word soon");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(is_attached());
        assert_eq!(agent.addresses(&claim), planned);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attachment_that_never_was_takes_the_mended_network_at_its_next_try() {
        let agent = Agent::new();
        agent.has_addresses("10.20.0.40-10.20.0.41");
        let set_mtu = |mtu: Option<u16>| {
            agent.inventory.send_modify(|known| {
                let known = Arc::make_mut(known.as_mut().unwrap());
                let spec = known.networks.values_mut().next().unwrap();
                let mut json = serde_json::to_value(&*spec).unwrap();
                match mtu {
                    Some(mtu) => json["cni"]["plugins"][0]["mtu"] = json!(mtu),
                    None => drop(json["cni"]["plugins"][0].as_object_mut().unwrap().remove("mtu")),
                }
                *spec = serde_json::from_value(json).unwrap();
            });
        };
        set_mtu(Some(9000));
        let (fails, runs) =
            (agent.claim("a", "net-storage", &["a"]), agent.claim("b", "net-storage", &["b"]));
        agent.prepare(&fails).await.expect("free");
        agent.runs("a");
        tokio::time::sleep(Duration::from_secs(30)).await;
        let error = |claim: &ClaimRef| {
            let mut errors = Vec::new();
            agent.node.attacher.for_each_pod(|state| {
                let own = state.records.iter().filter(|record| record.plan.owner.claim.uid == claim.uid);
                errors.extend(own.filter_map(|record| record.error.clone()));
            });
            errors
        };
        assert!(error(&fails)[0].contains("smaller MTU"));
        set_mtu(Some(1500));
        agent.prepare(&runs).await.expect("free");
        let planned = agent.node.attacher.plans_of("b");
        agent.runs("b");
        set_mtu(None);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(error(&fails), [""; 0], "its next try has the mended configuration");
        let mended = agent.node.attacher.plans_of("a").remove(0);
        assert!(!mended.spec.conflist.raw().contains("mtu"), "{}", mended.spec.conflist.raw());
        assert_ne!(agent.addresses(&fails), agent.addresses(&runs));
        assert_eq!(agent.node.attacher.plans_of("b"), planned, "what is attached stays");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_cannot_end_for_an_empty_journal_file_is_told_which_one() {
        let agent = Agent::after(|journal| std::fs::write(journal.join("p_c.0.json"), "").unwrap());
        let pod = json!({"metadata": {"namespace": "default", "name": "web", "uid": "p"},
            "spec": {"resourceClaims": [{"name": "net", "resourceClaimName": "c"}]}});
        agent.claims.lock().unwrap().insert("/api/v1/pods".into(), json!({"metadata": {}, "items": [pod]}));
        let error = agent
            .node
            .unprepare(agent.claim("c", "nic-eth1", &["p"]))
            .await
            .expect_err("a DEL may be owed")
            .0;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let events = "posted to /apis/events.k8s.io/v1/namespaces/default/events";
        let event = agent.claims.lock().unwrap().get(events).cloned().expect("an event");
        assert_eq!(
            (&event["regarding"]["name"], &event["reason"]),
            (&json!("web"), &json!("NetworkDetachFailed"))
        );
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("p_c.0.json") && note.contains("remove it to give up"), "{note}");
        assert_eq!(error, note);
    }

    #[tokio::test(start_paused = true)]
    async fn a_prepare_gets_the_link_that_another_pod_gives_back_meanwhile() {
        let agent = Agent::new();
        let (one, two) = (agent.claim("one", "nic-eth1", &["p"]), agent.claim("two", "nic-eth1", &["q"]));
        agent.prepare(&one).await.expect("free");
        let gives_back = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            agent.node.unprepare(one.clone()).await
        };
        let (prepared, unprepared) = tokio::join!(agent.prepare(&two), gives_back);
        assert_eq!((prepared, unprepared), (Ok(()), Ok(())));
        assert_eq!((agent.pods(&one), agent.pods(&two)), (vec![], vec!["q".to_owned()]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_prepare_that_ends_after_its_unprepare_journals_nothing() {
        let agent = Agent::new();
        let claim = agent.claim("c", "macvlan-eth1", &["p"]);
        agent.node.plugins.0.forget_permits(1000);
        let unprepare = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            agent.node.unprepare(claim.clone()).await.expect("nothing is owed");
            agent.node.plugins.0.add_permits(1000);
        };
        let (prepared, ()) = tokio::join!(agent.prepare(&claim), unprepare);
        assert!(prepared.expect_err("over").contains("was unprepared meanwhile"));
        assert_eq!(agent.pods(&claim), [""; 0]);
        agent.prepare(&claim).await.expect("asked again");
        assert_eq!(agent.pods(&claim), ["p"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_goes_to_the_pod_that_alone_has_it_reserved_when_the_first_has_ended() {
        let agent = Agent::new();
        let claim = agent.claim("c", "nic-eth1", &["old"]);
        agent.prepare(&claim).await.expect("prepared");
        let left: Vec<_> = agent.node.left_behind().await.into_iter().collect();
        let [(object, from)] = left.as_slice() else { panic!("{left:?}") };
        assert_eq!((object.uid.as_str(), from.as_str()), ("c", "old"));
        let hand_over = || agent.node.hand_over(object, from);
        assert!(!hand_over().await.unwrap(), "it is the old pod's");
        agent.claim("c", "nic-eth1", &["old", "new"]);
        agent.sandbox_up("new");
        assert!(!hand_over().await.unwrap(), "it is the old pod's, too");
        assert_eq!(agent.prepare(&claim).await, Ok(()), "the old pod is asked for again");
        agent.claim("c", "nic-eth1", &["elsewhere"]);
        assert!(!hand_over().await.unwrap(), "the next pod is on another node");
        assert_eq!(agent.pods(&claim), ["old"]);
        agent.claim("c", "nic-eth1", &["new"]);
        assert!(hand_over().await.unwrap());
        assert_eq!(agent.pods(&claim), ["new"]);
        assert!(!hand_over().await.unwrap(), "it is done");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_stays_with_the_first_pod_until_the_next_one_can_have_it() {
        let agent = Agent::new();
        let claim = agent.claim("c", "macvlan-eth1", &["old"]);
        agent.prepare(&claim).await.expect("prepared");
        agent.claim("c", "ipvlan-eth1", &["new"]);
        agent.sandbox_up("new");
        let object = ObjectRef { namespace: "default".into(), name: "c".into(), uid: "c".into() };
        let error = error_chain(&agent.node.hand_over(&object, "old").await.expect_err("no such device"));
        assert!(error.contains("does not offer device \"ipvlan-eth1\""), "{error}");
        assert_eq!(agent.pods(&claim), ["old"], "it is tried again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_prepare_waits_for_a_link_that_is_on_its_way_back_to_the_node() {
        let agent = Agent::new();
        let claim = agent.claim("c", "nic-eth1", &["p"]);
        let with_link = agent.inventory.send_replace(Some(Arc::default()));
        let comes_back = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            agent.inventory.send_replace(with_link);
        };
        let (prepared, ()) = tokio::join!(agent.prepare(&claim), comes_back);
        assert_eq!(prepared, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_was_refused_an_address_is_woken_when_the_node_has_a_block() {
        let mut agent = Agent::new();
        agent.has_addresses("10.20.0.40");
        let first = agent.claim("first", "net-storage", &["p"]);
        agent.prepare(&first).await.expect("one is free");
        let second = agent.claim("second", "net-storage", &["q"]);
        assert!(agent.prepare(&second).await.expect_err("none is free").contains("no IPv4 address"));
        tokio::time::sleep(Duration::from_secs(20)).await;
        agent.has_addresses("10.20.0.40-10.20.0.41");
        assert_eq!(agent.woken.supplied().await, "q");
        agent.prepare(&second).await.expect("another one is free");
    }

    #[tokio::test(start_paused = true)]
    async fn a_prepare_names_the_pod_that_still_has_the_link() {
        let mut agent = Agent::new();
        let whole = json!({"uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "host-device", "device": "${uplink.name}"}]}});
        agent.inventory.send_modify(|known| {
            let known = Arc::make_mut(known.as_mut().unwrap());
            known.networks.insert("whole".parse().unwrap(), serde_json::from_value(whole).unwrap());
        });
        let first = agent.claim("first", "nic-eth1", &["p"]);
        agent.prepare(&first).await.expect("free");
        agent.inventory.send_modify(|known| Arc::make_mut(known.as_mut().unwrap()).uplinks.clear());
        for device in ["nic-eth1", "net-whole"] {
            let error = agent.prepare(&agent.claim("next", device, &["q"])).await.expect_err("it is in use");
            let expected = "request \"net\" of ResourceClaim default/next: link eth1 is with pod default/p (device \"nic-eth1\" of \
                            ResourceClaim default/first), which has not ended on this node: the pod starts when that one has";
            assert_eq!(error, expected, "{device}");
            assert_eq!(agent.woken.blocked(), [("q".to_owned(), "first".to_owned())], "{device}");
        }
        agent
            .inventory
            .send_modify(|known| Arc::make_mut(known.as_mut().unwrap()).uplinks.push(uplink("eth1")));
        agent
            .prepare(&agent.claim("next", "macvlan-eth1", &["q"]))
            .await
            .expect_err("it is back and still held");
        assert_eq!(agent.woken.blocked(), [("q".to_owned(), "first".to_owned())]);
        agent.inventory.send_modify(|known| Arc::make_mut(known.as_mut().unwrap()).uplinks.clear());
        agent.node.unprepare(first).await.expect("nothing is owed");
        let error = agent.prepare(&agent.claim("next", "nic-eth1", &["q"])).await.expect_err("it is gone");
        assert!(error.contains("is no longer on node node0: delete the pod"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_refused_for_good_is_told_of_and_holds_nothing() {
        let mut agent = Agent::new();
        let claim = agent.claim("c", "ipvlan-eth1", &["p"]);
        let error = agent.prepare(&claim).await.expect_err("not offered");
        let Ok(Update::Refused(refusal)) = agent.reported.try_recv() else { panic!("nothing was reported") };
        assert_eq!((refusal.message, refusal.claim.uid.as_str()), (error, "c"));
        assert!(agent.reported.try_recv().is_err(), "once");
        assert_eq!(agent.node.attacher.plans(|_| ()).len(), 0);
        agent.node.unprepare(claim).await.expect("nothing is owed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_prepared_is_answered_without_the_api_server() {
        let agent = Agent::new();
        let claim = agent.claim("c", "macvlan-eth1", &["p"]);
        agent.prepare(&claim).await.expect("prepared");
        agent.claims.lock().unwrap().clear();
        assert_eq!(agent.prepare(&claim).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_kubelet_that_asks_for_the_next_pod_gets_it_prepared() {
        let agent = Agent::new();
        let claim = agent.claim("c", "macvlan-eth1", &["old"]);
        agent.prepare(&claim).await.expect("prepared");
        agent.claim("c", "macvlan-eth1", &["new"]);
        agent.prepare(&claim).await.expect("handed over");
        assert_eq!(agent.pods(&claim), ["new"]);
    }
}
