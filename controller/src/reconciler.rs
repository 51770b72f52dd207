//! The loop of the leader: it derives the status of ClaimNetworks and UplinkPolicies, and the cluster's
//! pools, from what the API server stores.
//!
//! ```text
//!   ClaimNetworks ──┬─> networks ─────┬─> status, and an event for warnings and refusals
//!   ResourceSlices ─┤                 ├─> cluster_pools ──> netclaim_slices::Publisher
//!   DeviceTaintRules┤                 ├─> blocks: which nodes need addresses of which pool
//!   Nodes ──────────┤                 └─> labels of nodes without an agent, which are removed
//!   AddressPools ───┴─> pool_status ──> status, and an event for warnings and refusals
//!   DeviceClasses ────> classes ──────> DeviceClasses of ClaimNetworks
//!   UplinkPolicies ───> policies ─────> status, and an event for refusals
//!   networks <───────────────────────── defaults: who has the networks that pods get without asking
//! ```
//!
//! After a change, at most every [`GATHER_DELAY`], what depends on it is derived again: the change of one
//! node costs the same in a small and in a large cluster, but for the nodes of UplinkPolicies, which are
//! counted again: there are few policies, and a count looks at labels only. `schedule` says when a status may
//! be written. What is correct is not written, so an idle cluster sees no writes. A restart loses no state
//! that matters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{DeviceClass, DeviceTaintRule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta, Patch, PatchParams, ResourceExt as _};
use kube::runtime::reflector::store::{Store, Writer};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressPool, PoolKey};
use netclaim_api::labels::network_label;
use netclaim_api::network::{ClaimNetwork, ClaimNetworkSpec, Scope};
use netclaim_api::reasons::{AddressesReason, Reason as _};
use netclaim_api::uplink_policy::UplinkPolicy;
use netclaim_slices::{
    Pool, PoolStatus, PublishStatus, Publisher, PublisherConfig, PublisherHandle, Revision,
};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::addresses::blocks::{self, Leased};
use crate::addresses::leasing::Supply;
use crate::addresses::pool_status::PoolAcceptance;
use crate::autoscalers::{self, Autoscalers, Lookout};
use crate::classes::keeper::Keeper;
use crate::defaults::{self, Kept, Reports, Wanted};
use crate::demand::{Demand, Needs};
use crate::hot_attach::{self, HotAttach};
use crate::metrics::{self, Accepted, Addressing, Metrics};
use crate::networks::abandoned_labels::AbandonedLabels;
use crate::networks::cluster_pools;
use crate::networks::nodes::NetworkNodes;
use crate::networks::published::{self, Changes, DevicesOfSlice, Evictions, NodeAsk, Published};
use crate::networks::status::{Acceptance, Found};
use crate::networks::warnings::Overlaps;
use crate::objects::catalog::Catalog;
use crate::objects::events::Events;
use crate::objects::kind::Kind;
use crate::objects::nodes::{self, NodeObject, NodeObjects};
use crate::objects::schedule::Cause;
use crate::objects::watches::{Refused, next, next_unless_refused, none_if_refused};
use crate::pods::explaining::{self, Unscheduled};
use crate::pods::{self, AwaitingAddresses};
use crate::policies::PolicyAcceptance;

/// Changes are gathered for this long: when a node starts, its slices come in a burst.
const GATHER_DELAY: Duration = Duration::from_millis(500);

/// Changes of blocks are gathered for this long: nodes report all the time what they use.
const LEASED_GATHER_DELAY: Duration = Duration::from_secs(2);

/// Nodes whose labels are removed at once, before other changes are taken in.
const NODES_AT_ONCE: usize = 50;

/// Time between a failed write and the next try.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// What to publish as, and whose slices to read.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Driver whose slices say on which nodes a ClaimNetwork is.
    pub(crate) driver: String,
    /// Publisher of the cluster's pools.
    pub(crate) publisher: PublisherConfig,
    /// Name of this replica, for events.
    pub(crate) identity: String,
    /// How long a Node object must be gone before the addresses of its blocks are free.
    pub(crate) node_gone_after: Duration,
    /// Whether pods that wait for a node get an event that says why.
    pub(crate) explain_pending_pods: bool,
    /// Namespaces whose pods get no network without asking; `None` if no pod does.
    pub(crate) no_defaults_in: Option<BTreeSet<String>>,
    /// Where pods get networks while they run; `None` if none does.
    pub(crate) hot_attach: Option<HotAttach>,
    /// Where to look for node autoscalers.
    pub(crate) lookout: Lookout,
}

/// Reconciles until `cancel`. Published pools stay.
///
/// # Errors
/// The publisher panicked.
pub(crate) async fn run(
    client: Client,
    settings: Settings,
    metrics: Metrics,
    cancel: CancellationToken,
) -> Result<(), JoinError> {
    let config = settings.publisher.clone();
    let (publisher, mut publishing) = Publisher::spawn(client.clone(), config, cancel.clone());
    let (demand, needed) = watch::channel(None);
    let (report, leased) = watch::channel(Leased::default());
    let after = settings.node_gone_after;
    let events = Events::new(client.clone(), settings.identity.clone());
    let unscheduled = settings.explain_pending_pods.then(|| Arc::new(Unscheduled::default()));
    // A task of its own: what it reads may be large. It ends with this function.
    let _explaining = unscheduled.clone().map(|pods| {
        let (client, events, metrics) = (client.clone(), events.clone(), metrics.clone());
        AbortOnDropHandle::new(tokio::spawn(explaining::run(client, events, metrics, pods, needed.clone())))
    });
    let awaiting = Arc::new(AwaitingAddresses::default());
    let pods = pods::watch::run(client.clone(), &awaiting, unscheduled.as_deref());
    let claims = awaiting.read_claims(client.clone());
    let driver = settings.driver.clone();
    let needs = unscheduled.as_ref().map_or_else(|| watch::channel(Needs::new()).1, |pods| pods.needs());
    let channels = (needed, needs);
    let leasing =
        blocks::run((client.clone(), driver), after, metrics.clone(), channels, report, awaiting.clone());
    let (seen, autoscalers) = watch::channel(Autoscalers::default());
    let lookout = autoscalers::run(client.clone(), settings.lookout.clone(), seen);
    let (wanted, to_keep) = watch::channel(None);
    let (reports, defaulted) = watch::channel(None);
    let keeping = defaults::run(client.clone(), settings.no_defaults_in.clone(), to_keep, reports);
    let (evict, evictions) = watch::channel(Evictions::default());
    let attaching = hot_attach::run(
        client.clone(),
        settings.hot_attach.clone(),
        events.clone(),
        metrics.clone(),
        evictions,
    );
    let channels = Channels { demand, leased, autoscalers, wanted, defaulted, evict };
    tokio::select! {
        () = leasing => Ok(()),
        () = pods => Ok(()),
        () = claims => Ok(()),
        () = lookout => Ok(()),
        () = keeping => Ok(()),
        () = attaching => Ok(()),
        () = watch(client, settings, metrics, publisher, events, channels) => Ok(()),
        // The publisher ends with `cancel`; after that, nothing may be written here either.
        result = &mut publishing => result,
    }
}

/// What ties the loop to the others.
struct Channels {
    /// Which nodes need addresses.
    demand: watch::Sender<Option<Demand>>,
    /// Which addresses nodes have.
    leased: watch::Receiver<Leased>,
    /// Which node autoscalers there are.
    autoscalers: watch::Receiver<Autoscalers>,
    /// Which networks pods get without asking.
    wanted: watch::Sender<Option<Wanted>>,
    /// Which pods have them.
    defaulted: watch::Receiver<Option<Reports>>,
    /// Which devices have to be left.
    evict: watch::Sender<Evictions>,
}

async fn watch(
    client: Client,
    settings: Settings,
    metrics: Metrics,
    publisher: PublisherHandle,
    events: Events,
    Channels { demand, leased, mut autoscalers, wanted, mut defaulted, evict }: Channels,
) {
    let everything = watcher::Config::default;
    let (networks, network_events) = reflect::<ClaimNetwork>(client.clone());
    let mut network_events = pin!(network_events);

    let slice_api: Api<DevicesOfSlice> = Api::all_with(client.clone(), &published::resource());
    let of_driver = everything().fields(&format!("spec.driver={}", settings.driver));
    let mut slice_events = pin!(watcher(slice_api, of_driver).default_backoff());

    let (policies, policy_events) = reflect::<UplinkPolicy>(client.clone());
    let mut policy_events = pin!(policy_events);
    let (address_pools, pool_events) = reflect::<AddressPool>(client.clone());
    let mut pool_events = pin!(pool_events);

    let (classes, class_events) = reflect::<DeviceClass>(client.clone());
    let mut class_events = pin!(class_events);

    let rule_api: Api<DeviceTaintRule> = Api::all(client.clone());
    let writer = Writer::default();
    let rules = writer.as_reader();
    let rule_events = watcher(rule_api, everything()).default_backoff();
    let mut rule_events = pin!(none_if_refused(rule_events, "device taint rules").reflect(writer));

    let node_api: Api<NodeObject> = Api::all_with(client.clone(), &nodes::resource());
    let mut node_events = pin!(watcher(node_api, everything()).default_backoff());

    let mut published = publisher.status();
    let mut news = leased.clone();
    let mut reconciler = Reconciler {
        labels_api: Api::all(client.clone()),
        events,
        metrics,
        publisher,
        demand,
        leased,
        wanted,
        revision: 0,
        stale: Stale::ALL,
        known: ClusterView::new(&client),
        classes: Keeper::new(client, &settings.driver),
        abandoned: AbandonedLabels::default(),
    };
    let mut synced = Synced::default();
    let mut due: Option<Instant> = None;
    loop {
        let ready = synced == Synced::ALL;
        let (known, stale) = (&mut reconciler.known, &mut reconciler.stale);
        tokio::select! {
            () = changed(&mut policy_events, "uplink policies", &mut synced.policies) => {
                stale.policies = true;
                within(&mut due, GATHER_DELAY);
            }
            () = changed(&mut network_events, "networks", &mut synced.networks) => {
                stale.networks = true;
                within(&mut due, GATHER_DELAY);
            }
            () = changed_if_any(&mut pool_events, "address pools", &mut synced.pools) => {
                stale.address_pools = true;
                within(&mut due, GATHER_DELAY);
            }
            () = changed_if_any(&mut class_events, "device classes", &mut synced.classes) => {
                stale.classes = true;
                within(&mut due, GATHER_DELAY);
            }
            event = next(&mut slice_events, "resource slices") => {
                let is_first = first_list(&event, &mut synced.slices);
                if known.published.apply(event) || is_first {
                    within(&mut due, GATHER_DELAY);
                }
            }
            () = changed(&mut rule_events, "device taint rules", &mut synced.rules) => {
                let rules = rules.state().into_iter().map(Arc::unwrap_or_clone);
                if known.published.rule(rules.collect()) {
                    stale.rules = true;
                    within(&mut due, GATHER_DELAY);
                }
            }
            event = next(&mut node_events, "nodes") => {
                let is_first = first_list(&event, &mut synced.nodes);
                if known.nodes.apply(event) || is_first {
                    within(&mut due, GATHER_DELAY);
                }
            }
            Ok(()) = news.changed() => {
                stale.leased = true;
                within(&mut due, LEASED_GATHER_DELAY);
            }
            Ok(()) = autoscalers.changed() => {
                known.autoscalers = autoscalers.borrow_and_update().clone();
                known.networks.mark_all(Cause::Spec);
                synced.autoscalers = true;
                within(&mut due, GATHER_DELAY);
            }
            Ok(()) = defaulted.changed() => {
                known.defaulted = defaulted.borrow_and_update().clone();
                known.networks.mark_all(Cause::Nodes);
                within(&mut due, GATHER_DELAY);
            }
            Ok(()) = published.changed() => reconciler.count_published(&published.borrow_and_update()),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if ready && due.is_some() => {
                reconciler.metrics.ready.set(true);
                due = reconciler.reconcile(&networks, &address_pools, &policies, &classes).await;
                if !evict.is_closed() {
                    let evictions = reconciler.known.published.evictions();
                    evict.send_if_modified(|before| std::mem::replace(before, evictions.clone()) != evictions);
                }
            }
        }
    }
}

/// Which watches have seen a whole list, and whether autoscalers were looked for: a status that is written
/// before would lose its warnings for a moment.
#[derive(Debug, Default, PartialEq, Eq)]
struct Synced {
    networks: bool,
    slices: bool,
    policies: bool,
    pools: bool,
    classes: bool,
    rules: bool,
    nodes: bool,
    autoscalers: bool,
}

impl Synced {
    const ALL: Self = Self {
        networks: true,
        slices: true,
        policies: true,
        pools: true,
        classes: true,
        rules: true,
        nodes: true,
        autoscalers: true,
    };
}

/// Makes the next reconciliation due in `time`, unless it is due earlier.
fn within(due: &mut Option<Instant>, time: Duration) {
    let gathered = Instant::now() + time;
    *due = Some(due.map_or(gathered, |due| due.min(gathered)));
}

/// Whether the event ends the first list. Sets `synced` then.
fn first_list<K>(event: &watcher::Event<K>, synced: &mut bool) -> bool {
    matches!(event, watcher::Event::InitDone) && !std::mem::replace(synced, true)
}

/// Returns a store of all objects of a kind, and the watch that fills it.
fn reflect<K: Resource<DynamicType = ()>>(
    client: Client,
) -> (Store<DynamicObject>, impl Stream<Item = watcher::Result<watcher::Event<DynamicObject>>> + use<K>) {
    let resource = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    let writer = Writer::new(resource);
    let store = writer.as_reader();
    let strip = |object: &mut DynamicObject| object.metadata.managed_fields = None;
    let events = watcher(api, watcher::Config::default()).default_backoff().modify(strip);
    (store, events.reflect(writer))
}

/// Waits until the watch of `what` sees a change. Sets `synced` at the end of a list.
async fn changed<K>(
    events: &mut (impl Stream<Item = watcher::Result<watcher::Event<K>>> + Unpin),
    what: &str,
    synced: &mut bool,
) {
    loop {
        match next(events, what).await {
            watcher::Event::Apply(_) | watcher::Event::Delete(_) => return,
            watcher::Event::InitDone => {
                *synced = true;
                return;
            }
            // Parts of a list, which `InitDone` ends.
            watcher::Event::Init | watcher::Event::InitApply(_) => {}
        }
    }
}

/// Waits until the watch of `what` sees a change. If the API server refuses the list, treats it as
/// empty, so that other kinds are still reconciled.
async fn changed_if_any<K>(
    events: &mut (impl Stream<Item = watcher::Result<watcher::Event<K>>> + Unpin),
    what: &str,
    synced: &mut bool,
) {
    loop {
        match next_unless_refused(events, what).await {
            Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_)) => return,
            Ok(watcher::Event::InitDone) => {
                *synced = true;
                return;
            }
            // Parts of a list, which `InitDone` ends.
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
            Err(Refused) if *synced => {}
            Err(Refused) => {
                *synced = true;
                return;
            }
        }
    }
}

/// The state of the cluster, as far as it is derived from changes one by one.
struct ClusterView {
    networks: Kind<Acceptance>,
    address_pools: Kind<PoolAcceptance>,
    policies: Kind<PolicyAcceptance>,
    nodes: NodeObjects,
    published: Published,
    overlaps: Overlaps,
    leased: Leased,
    autoscalers: Autoscalers,
    /// `None` if it is not known yet.
    defaulted: Option<Reports>,
}

impl ClusterView {
    fn new(client: &Client) -> Self {
        Self {
            networks: Kind::new(client.clone()),
            address_pools: Kind::new(client.clone()),
            policies: Kind::new(client.clone()),
            nodes: NodeObjects::default(),
            published: Published::default(),
            overlaps: Overlaps::default(),
            leased: Leased::default(),
            autoscalers: Autoscalers::default(),
            defaulted: None,
        }
    }
}

/// Which stores have changed since the last look.
#[derive(Debug)]
struct Stale {
    networks: bool,
    address_pools: bool,
    policies: bool,
    classes: bool,
    rules: bool,
    leased: bool,
    /// Nothing was derived yet.
    all: bool,
}

impl Stale {
    const ALL: Self = Self {
        networks: true,
        address_pools: true,
        policies: true,
        classes: true,
        rules: true,
        leased: true,
        all: true,
    };
    const NOTHING: Self = Self {
        networks: false,
        address_pools: false,
        policies: false,
        classes: false,
        rules: false,
        leased: false,
        all: false,
    };
}

struct Reconciler {
    /// For the labels of Nodes.
    labels_api: Api<PartialObjectMeta<Node>>,
    events: Events,
    metrics: Metrics,
    publisher: PublisherHandle,
    /// Which nodes need addresses.
    demand: watch::Sender<Option<Demand>>,
    /// Which addresses nodes have.
    leased: watch::Receiver<Leased>,
    /// Which networks pods get without asking.
    wanted: watch::Sender<Option<Wanted>>,
    /// Revision last handed to the publisher.
    revision: Revision,
    stale: Stale,
    known: ClusterView,
    /// The DeviceClasses of ClaimNetworks.
    classes: Keeper,
    /// Labels of ClaimNetworks on nodes whose agent is gone.
    abandoned: AbandonedLabels,
}

impl Reconciler {
    /// Does what follows from all changes since the last call, and returns when there is more to do.
    async fn reconcile(
        &mut self,
        networks: &Store<DynamicObject>,
        address_pools: &Store<DynamicObject>,
        policies: &Store<DynamicObject>,
        classes: &Store<DynamicObject>,
    ) -> Option<Instant> {
        if self.stale.classes {
            self.classes.classes.know(classes.state());
            self.known.networks.mark_all(Cause::Nodes);
        }
        self.take_in(networks, address_pools, policies);
        // The statuses say what has become of the classes.
        let written = self.classes.write(&self.events).await;
        if written.is_some() {
            self.known.networks.mark_all(Cause::Nodes);
        }
        let done = self.remove_labels().await & self.write_statuses().await & written.unwrap_or(true);
        if !done {
            return Some(Instant::now() + RETRY_DELAY);
        }
        let ClusterView { networks, address_pools, policies, .. } = &self.known;
        let of_statuses = [networks.next(), address_pools.next(), policies.next()];
        of_statuses.into_iter().chain([self.abandoned.next(), self.classes.next()]).flatten().min()
    }

    /// Takes in what has changed, hands on what the publisher and the blocks need, and marks each status that
    /// may be wrong.
    fn take_in(
        &mut self,
        networks: &Store<DynamicObject>,
        address_pools: &Store<DynamicObject>,
        policies: &Store<DynamicObject>,
    ) {
        let stale = std::mem::replace(&mut self.stale, Stale::NOTHING);
        let mut specs = stale.all;
        if stale.networks {
            specs |= self.known.networks.update(networks.state());
        }
        if stale.address_pools {
            specs |= self.known.address_pools.update(address_pools.state());
        }
        if stale.policies && self.known.policies.update(policies.state()) {
            self.known.policies.mark_all(Cause::Spec);
        }
        let changed_nodes = self.known.nodes.take_changed();
        if specs {
            self.take_in_specs();
        }
        for node in &changed_nodes {
            let ClusterView { networks, address_pools, nodes, published, overlaps, .. } = &mut self.known;
            let facts = nodes.all().get(node);
            published.label(node, facts.map(|facts| &facts.labels));
            let changed = overlaps.node(node, facts);
            changed.networks.iter().for_each(|name| networks.mark(name, Cause::Nodes));
            changed.pools.iter().for_each(|name| address_pools.mark(name, Cause::Nodes));
        }
        let Changes { networks, places, agents, followers } = self.known.published.take_changes();
        networks.iter().for_each(|name| self.known.networks.mark(name.as_ref(), Cause::Nodes));
        if !changed_nodes.is_empty() || !agents.is_empty() || followers {
            self.known.policies.mark_all(Cause::Nodes);
        }
        for node in changed_nodes.union(&agents) {
            let labels = self.known.nodes.all().get(node).map(|facts| &facts.labels);
            self.abandoned.see(node, labels, self.known.published.has_agent(node), Instant::now());
        }
        if specs || places || stale.rules || !changed_nodes.is_empty() {
            self.demand_addresses();
        }
        if stale.leased {
            self.known.leased = self.leased.borrow().clone();
            for reason in AddressesReason::ALL {
                let has_it = |supply: &&Supply| supply.reason() == *reason;
                let count = self.known.leased.supply.values().filter(has_it).count();
                let gauge = self.metrics.addressing.get_or_create(&Addressing { reason: reason.as_str() });
                gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            self.mark_all(Cause::Nodes);
        }
    }

    /// Derives what follows from the specs of all ClaimNetworks and AddressPools, one of which has changed.
    fn take_in_specs(&mut self) {
        let ClusterView { networks, address_pools, nodes, published, overlaps, .. } = &mut self.known;
        let networks = networks.catalog();
        *overlaps = Overlaps::of(networks, address_pools.catalog(), nodes.all());
        let wanted = accepted(networks).map(|(name, spec)| {
            let node_selector = spec.node_selector.clone();
            let (bandwidth, label) = match spec.scope {
                Scope::Node => (spec.capacity.bandwidth, None),
                Scope::Cluster => (None, Some(network_label(name))),
            };
            (name.clone(), NodeAsk { node_selector, bandwidth, label })
        });
        published.want(wanted.collect(), nodes.all());
        let with_uids = || {
            networks.all().filter_map(|reviewed| {
                let (name, spec) = reviewed.review.result.as_ref().ok()?;
                Some((name, spec, reviewed.object.metadata.uid.as_deref()?))
            })
        };
        // Kubernetes deletes the classes of those that are being deleted.
        let is_deleted = |name: &NetworkName| {
            let object = networks.get(name.as_str()).map(|reviewed| &reviewed.object);
            object.is_some_and(|object| object.metadata.deletion_timestamp.is_some())
        };
        self.classes.classes.want(with_uids().filter(|(name, ..)| !is_deleted(name)));
        let pools =
            with_uids().filter_map(|(name, spec, uid)| cluster_pools::pool(name, spec, uid)).collect();
        let (good, all) = (accepted(networks).count(), networks.all().count());
        for (accepted, count) in [(true, good), (false, all - good)] {
            let gauge = self.metrics.networks.get_or_create(&Accepted { accepted });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.wanted.send_replace(Some(wanted_defaults(networks)));
        self.publish(pools);
        self.mark_all(Cause::Spec);
    }

    fn mark_all(&mut self, cause: Cause) {
        self.known.networks.mark_all(cause);
        self.known.address_pools.mark_all(cause);
    }

    /// Removes the labels of ClaimNetworks from nodes whose agent is gone. Returns whether all writes
    /// succeeded.
    async fn remove_labels(&mut self) -> bool {
        let mut done = true;
        for (node, labels) in self.abandoned.due(Instant::now()).into_iter().take(NODES_AT_ONCE) {
            let nulls: Map<String, Value> = labels.iter().map(|label| (label.clone(), Value::Null)).collect();
            let patch = Patch::Merge(json!({"metadata": {"labels": nulls}}));
            match self.labels_api.patch_metadata(&node, &PatchParams::default(), &patch).await {
                Ok(_) => {
                    tracing::info!(
                        node,
                        ?labels,
                        "removed the labels of ClaimNetworks from a node without an agent"
                    );
                    self.abandoned.removed(&node, Instant::now());
                }
                // The watch is about to report it.
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    self.abandoned.removed(&node, Instant::now());
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        node,
                        "cannot remove labels of a node without an agent, will retry"
                    );
                    done = false;
                }
            }
        }
        done
    }

    /// Writes each status that is wrong, as far as it is due. Returns whether all writes succeeded.
    async fn write_statuses(&mut self) -> bool {
        let ClusterView {
            networks,
            address_pools,
            policies,
            nodes,
            published,
            overlaps,
            leased,
            autoscalers,
            defaulted,
        } = &mut self.known;
        let (events, writes, classes) = (&self.events, &self.metrics.status_writes, &self.classes.classes);
        let now = || Time(Timestamp::now());
        let of_network = |name: &str, network: &Acceptance| {
            let none = NetworkNodes::default();
            let nodes = name.parse().ok().and_then(|name| published.of(&name)).unwrap_or(&none);
            let accepted = network.result.as_ref().ok();
            let others = accepted.map(|accepted| {
                let mut others = autoscalers.warnings(accepted);
                others.extend(autoscalers.advice(accepted, nodes.counts().publishing));
                others.extend(overlaps.of_network(accepted, nodes, leased));
                others
            });
            let class = accepted.and_then(|_| classes.finding(name));
            let found = found_of(network, leased, defaulted.as_ref());
            network.status(nodes, found, others.unwrap_or_default(), class, &now())
        };
        let done = networks.write(events, writes, of_network).await;
        let of_pool = |name: &str, pool: &PoolAcceptance| {
            let totals = leased.totals.get(&PoolKey::Pool(name.to_owned())).copied();
            pool.status(totals, &overlaps.of_pool(pool, networks.catalog(), leased), &now())
        };
        let of_policy = |name: &str, policy: &PolicyAcceptance| {
            policy.status(nodes.all(), |node| published.followers(node, name), &now())
        };
        done & address_pools.write(events, writes, of_pool).await
            & policies.write(events, writes, of_policy).await
    }

    /// Hands over which nodes need addresses.
    fn demand_addresses(&self) {
        let demand = Some(demand(&self.known));
        self.demand.send_if_modified(|known| {
            let is_new = *known != demand;
            *known = demand;
            is_new
        });
    }

    fn publish(&mut self, pools: Vec<Pool>) {
        let count = pools.len();
        let revision = self.publisher.publish(pools);
        if std::mem::replace(&mut self.revision, revision) != revision {
            tracing::info!(pools = count, "publishing the networks of the cluster");
        }
    }

    fn count_published(&self, status: &PublishStatus) {
        let is_good = |pool: &&PoolStatus| pool.error.is_none() && pool.left_out.is_empty();
        let good = status.pools.values().filter(is_good).count();
        for (published, count) in [(true, good), (false, status.pools.len() - good)] {
            let gauge = self.metrics.pools.get_or_create(&metrics::Published { published });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

/// Returns the accepted ClaimNetworks.
fn accepted(networks: &Catalog<Acceptance>) -> impl Iterator<Item = &(NetworkName, ClaimNetworkSpec)> {
    networks.all().filter_map(|reviewed| reviewed.review.result.as_ref().ok())
}

/// Returns what the ClaimNetworks draw from, and the accepted pools.
fn demand(known: &ClusterView) -> Demand {
    let pools = known.address_pools.catalog().all().map(|reviewed| &reviewed.review);
    let pools = pools.filter_map(|pool| Some((&pool.name, pool.result.as_ref().ok()?)));
    let networks = known.networks.catalog().all().filter_map(|reviewed| match &reviewed.review.result {
        Ok((name, spec)) => Some((name.clone(), Some(spec))),
        Err(_) => reviewed.object.name_any().parse().ok().map(|name| (name, None)),
    });
    let nodes_of = |name: &NetworkName| {
        let Some(nodes) = known.published.of(name) else { return Default::default() };
        (nodes.publishing().cloned().collect(), nodes.selected().clone())
    };
    let (surveyed, nodes) = (surveyed(known), known.nodes.all().clone());
    let (revised, rules) = (revised(known).collect(), known.published.rules().to_vec());
    Demand { revised, surveyed, nodes, rules, ..Demand::of(pools, networks, nodes_of) }
}

/// Returns the ClaimNetworks whose specs have changed since they were created. The API server begins the
/// `generation` of a custom resource with a status at 1, and counts the changes of its spec.
fn revised(known: &ClusterView) -> impl Iterator<Item = NetworkName> {
    let has_changed = |object: &DynamicObject| object.metadata.generation != Some(1);
    let networks = known.networks.catalog().all().filter(move |reviewed| has_changed(&reviewed.object));
    networks.filter_map(|reviewed| reviewed.object.name_any().parse().ok())
}

/// Returns with which ranges and ClaimNetworks each pool was looked through last, as the statuses say.
fn surveyed(known: &ClusterView) -> BTreeMap<PoolKey, i64> {
    let of_pools = known.address_pools.catalog().all().map(|reviewed| &reviewed.review);
    let of_pools = of_pools.filter_map(|pool| Some((PoolKey::Pool(pool.name.clone()), pool.surveyed()?)));
    let of_networks = known.networks.catalog().all().filter_map(|reviewed| {
        let (name, _) = reviewed.review.result.as_ref().ok()?;
        Some((PoolKey::Network(name.clone()), reviewed.review.surveyed()?))
    });
    of_pools.chain(of_networks).collect()
}

/// Returns what others have found of a ClaimNetwork.
fn found_of<'a>(acceptance: &Acceptance, leased: &'a Leased, defaulted: Option<&'a Reports>) -> Found<'a> {
    let Ok((name, spec)) = &acceptance.result else { return Found::default() };
    let totals = spec.addresses.as_ref().and_then(|addresses| leased.totals.get(&addresses.key(name)));
    let defaulted = defaulted.and_then(|reports| reports.of(name));
    Found { totals: totals.copied(), supply: leased.supply.get(name), defaulted }
}

/// Returns the ClaimNetworks with a default; those that are not accepted keep what they had.
fn wanted_defaults(networks: &Catalog<Acceptance>) -> Wanted {
    let kept = networks.all().filter_map(|reviewed| match &reviewed.review.result {
        Ok((name, spec)) => Some((name.to_string(), Some(Arc::new(Kept::of(name, spec.default.as_ref()?))))),
        Err(_) => Some((reviewed.object.name_any(), None)),
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use netclaim_slices::Scope as Owner;
    use serde_json::{Value, json};
    use tokio::time::timeout;
    use tower_test::mock;

    use super::*;

    type Requests = mock::Handle<Request<Body>, Response<Body>>;

    fn reconciler() -> (Reconciler, Requests) {
        let (service, requests) = mock::pair();
        let client = Client::new(service, "default");
        let publisher = PublisherConfig::new("netclaim.dev", "controller", Owner::Cluster).unwrap();
        // Cancelled: these tests ignore the publisher's requests.
        let cancel = CancellationToken::new();
        cancel.cancel();
        let (handle, _) = Publisher::spawn(client.clone(), publisher, cancel);
        let reconciler = Reconciler {
            labels_api: Api::all(client.clone()),
            demand: watch::channel(None).0,
            leased: watch::channel(Leased::default()).1,
            wanted: watch::channel(None).0,
            known: ClusterView::new(&client),
            classes: Keeper::new(client.clone(), "netclaim.dev"),
            events: Events::new(client, "pod-1".into()),
            metrics: Metrics::default(),
            publisher: handle,
            revision: 0,
            stale: Stale::ALL,
            abandoned: AbandonedLabels::default(),
        };
        (reconciler, requests)
    }

    fn networks(network: &Value) -> Store<DynamicObject> {
        let mut writer = Writer::new(ApiResource::erase::<ClaimNetwork>(&()));
        let network = serde_json::from_value(network.clone()).unwrap();
        writer.apply_watcher_event(&watcher::Event::Apply(network));
        writer.as_reader()
    }

    fn none<K: Resource<DynamicType = ()>>() -> Store<DynamicObject> {
        Writer::new(ApiResource::erase::<K>(&())).as_reader()
    }

    fn network(cni: Value) -> Value {
        json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork",
            "metadata": {"name": "storage", "uid": "u1", "generation": 1}, "spec": {"cni": cni},
        })
    }

    /// Answers one request with `status` and an echo of its body, and returns its method, path and body.
    async fn answer(requests: &mut Requests, status: u16) -> (String, Value) {
        let next = timeout(Duration::from_secs(5), requests.next_request());
        let (request, reply) = next.await.unwrap().unwrap();
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let json: Value = serde_json::from_slice(&body).unwrap();
        let echo = match status {
            200 => body.to_vec(),
            code => serde_json::to_vec(&json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "no", "reason": "X", "code": code}))
            .unwrap(),
        };
        reply.send_response(Response::builder().status(status).body(Body::from(echo)).unwrap());
        (format!("{} {}", head.method, head.uri.path()), json)
    }

    /// Takes in changes and writes, and returns whether all writes succeeded.
    async fn reconcile(
        reconciler: &mut Reconciler,
        networks: &Store<DynamicObject>,
        pools: &Store<DynamicObject>,
    ) -> bool {
        reconciler.take_in(networks, pools, &none::<UplinkPolicy>());
        reconciler.write_statuses().await
    }

    const STATUS: &str = "PATCH /apis/netclaim.dev/v1alpha1/claimnetworks/storage/status";

    #[tokio::test]
    async fn address_pools_that_cannot_be_listed_are_none() {
        let status = kube::core::Status::failure("no", "NotFound").with_code(404);
        let error = watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)));
        let mut events = futures::stream::iter([Err::<watcher::Event<DynamicObject>, _>(error)]);
        let mut synced = false;
        changed_if_any(&mut events, "address pools", &mut synced).await;
        assert!(synced);
    }

    #[tokio::test]
    async fn an_invalid_network_gets_one_status_and_one_event() {
        let (mut reconciler, mut requests) = reconciler();
        let mut bad = network(json!({}));
        let (store, pools) = (networks(&bad), none::<AddressPool>());
        let server = async {
            let status = answer(&mut requests, 200).await;
            (status, answer(&mut requests, 200).await)
        };
        let (done, ((request, status), (event_request, event))) =
            tokio::join!(reconcile(&mut reconciler, &store, &pools), server);
        assert!(done);
        assert_eq!(request, STATUS);
        assert_eq!(status["metadata"], json!({"name": "storage", "uid": "u1"}));
        assert_eq!(status["status"]["conditions"][0]["reason"], "Invalid");
        assert_eq!(event_request, "POST /apis/events.k8s.io/v1/namespaces/default/events");
        assert_eq!(event["note"], status["status"]["conditions"][0]["message"]);

        bad["status"] = status["status"].clone();
        assert!(reconcile(&mut reconciler, &networks(&bad), &pools).await);
        assert_eq!(reconciler.metrics.status_writes.get(), 1);
    }

    #[tokio::test]
    async fn a_probable_mistake_gets_an_event_too() {
        let (mut reconciler, mut requests) = reconciler();
        let plugins = json!([{"type": "bridge", "colour": "red"}]);
        let odd = networks(&network(json!({"cniVersion": "1.1.0", "plugins": plugins})));
        let server = async {
            let status = answer(&mut requests, 200).await.1;
            (status, answer(&mut requests, 200).await.1)
        };
        let pools = none::<AddressPool>();
        let (done, (status, event)) = tokio::join!(reconcile(&mut reconciler, &odd, &pools), server);
        assert!(done);
        assert_eq!(status["status"]["conditions"][0]["status"], "True");
        assert_eq!(event["reason"], "AcceptedWithWarnings");
        assert!(event["note"].as_str().unwrap().contains("spec.cni.plugins[0].colour"), "{event}");
    }

    #[tokio::test]
    async fn a_network_of_the_cluster_has_a_warning_while_there_is_an_autoscaler() {
        let (mut reconciler, mut requests) = reconciler();
        let mut whole = network(json!({"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}));
        whole["spec"]["scope"] = json!("Cluster");
        let pools = none::<AddressPool>();
        for (cluster_autoscaler, reason) in
            [(None, "Accepted"), (Some("kube-system".to_owned()), "AcceptedWithWarnings"), (None, "Accepted")]
        {
            reconciler.known.autoscalers =
                Autoscalers { cluster_autoscaler, is_looked_for: true, ..Autoscalers::default() };
            reconciler.known.networks.mark_all(Cause::Spec);
            reconciler.stale.networks = true;
            let store = networks(&whole);
            let server = async {
                let status = answer(&mut requests, 200).await.1["status"].clone();
                let warned = status["warnings"].is_array();
                if warned {
                    let event = answer(&mut requests, 200).await.1;
                    assert_eq!(event["reason"], "AcceptedWithWarnings");
                    assert!(event["note"].as_str().unwrap().contains("can't be sanitized"), "{event}");
                    assert_eq!(status["warnings"][0]["field"], "spec.scope");
                }
                (status, warned)
            };
            let (done, (status, warned)) = tokio::join!(reconcile(&mut reconciler, &store, &pools), server);
            assert!(done);
            let accepted = &status["conditions"][0];
            assert_eq!((&accepted["reason"], &accepted["status"]), (&json!(reason), &json!("True")));
            assert_eq!(warned, reason == "AcceptedWithWarnings");
            whole["status"] = status;
        }
        reconciler.known.networks.mark_all(Cause::Spec);
        reconciler.stale.networks = true;
        assert!(reconcile(&mut reconciler, &networks(&whole), &pools).await, "nothing is written again");
        assert_eq!(reconciler.metrics.status_writes.get(), 3);
    }

    #[tokio::test]
    async fn a_policy_gets_an_event_only_if_nodes_cannot_follow_it() {
        let (mut reconciler, mut requests) = reconciler();
        let odd = json!({"links": {"names": ["eth3"]}, "publish": "Never", "modes": ["nic"]});
        for (generation, spec) in [(1, odd), (2, json!({"links": {"names": [7]}}))] {
            let policy = json!({
                "apiVersion": "netclaim.dev/v1alpha1", "kind": "UplinkPolicy",
                "metadata": {"name": "p", "uid": "u1", "generation": generation}, "spec": spec,
            });
            let mut writer = Writer::new(ApiResource::erase::<UplinkPolicy>(&()));
            writer.apply_watcher_event(&watcher::Event::Apply(serde_json::from_value(policy).unwrap()));
            reconciler.stale.policies = true;
            reconciler.take_in(&none::<ClaimNetwork>(), &none::<AddressPool>(), &writer.as_reader());
            let server = async {
                let status = answer(&mut requests, 200).await.1["status"]["conditions"][0].clone();
                if generation == 2 {
                    assert_eq!(answer(&mut requests, 200).await.1["note"], status["message"]);
                }
                status["reason"].clone()
            };
            let (done, reason) = tokio::join!(reconciler.write_statuses(), server);
            assert!(done);
            assert_eq!(reason, if generation == 2 { "Invalid" } else { "AcceptedWithWarnings" });
        }
        assert_eq!(reconciler.metrics.status_writes.get(), 2);
    }

    fn slice_of(node: &str, is_down: bool) -> watcher::Event<DevicesOfSlice> {
        let down = json!([{"key": "netclaim.dev/link-down", "effect": "NoSchedule"}]);
        let taints = if is_down { down } else { json!([]) };
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
            "spec": {"driver": "netclaim.dev", "nodeName": node, "devices": [{"name": "net-storage", "taints": taints}]}
        });
        watcher::Event::Apply(serde_json::from_value(slice).unwrap())
    }

    /// Reconciles for `seconds`, as the loop does, after a change each second. Returns when the status was
    /// written, in seconds, and the last status. Each write comes back by the watch of ClaimNetworks.
    async fn written_after(
        changes: impl Fn(u64) -> watcher::Event<DevicesOfSlice>,
        seconds: u64,
    ) -> (Vec<u64>, Value) {
        let (mut reconciler, mut requests) = reconciler();
        for n in 0..50 {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{n}")}, "spec": {}});
            reconciler.known.nodes.apply(watcher::Event::Apply(serde_json::from_value(node).unwrap()));
        }
        let mut good = network(json!({"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}));
        let pools = none::<AddressPool>();
        let (start, mut times) = (Instant::now(), Vec::new());
        let mut store = networks(&good);
        for second in 0..seconds + 40 {
            if second < seconds {
                reconciler.known.published.apply(changes(second));
            }
            let mut status = None;
            tokio::select! {
                biased;
                done = reconcile(&mut reconciler, &store, &pools) => assert!(done),
                (_, body) = answer(&mut requests, 200) => status = Some(body["status"].clone()),
            }
            if let Some(status) = status {
                times.push(start.elapsed().as_secs());
                good["status"] = status;
                // `select!` has ended it with the request.
                reconciler.known.networks.wrote("storage");
                store = networks(&good);
                reconciler.stale.networks = true;
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(reconciler.known.networks.next(), None, "nothing waits");
        (times, good["status"].clone())
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_join_one_by_one_share_status_writes() {
        let (times, status) = written_after(|second| slice_of(&format!("n{second}"), false), 50).await;
        assert_eq!(times, [0, 15, 30, 45, 60]);
        assert_eq!(status["nodes"]["publishing"], 50);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flapping_link_is_written_at_most_every_interval_and_its_last_state_is() {
        let (times, status) = written_after(|second| slice_of("n1", second % 2 == 0), 120).await;
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 15), "{times:?}");
        assert!((8..=9).contains(&times.len()), "{times:?}");
        assert_eq!(status["conditions"][1]["message"], "on 1 nodes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_by_a_person_is_written_while_a_link_flaps() {
        let (mut reconciler, mut requests) = reconciler();
        let pools = none::<AddressPool>();
        let mut network = network(json!({"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}));
        for generation in 1..=3 {
            network["metadata"]["generation"] = json!(generation);
            network["spec"]["cni"]["cniVersion"] = json!(if generation == 2 { "x" } else { "1.1.0" });
            reconciler.known.published.apply(slice_of("n1", generation == 2));
            reconciler.stale.networks = true;
            let store = networks(&network);
            let server = async {
                let status = answer(&mut requests, 200).await.1["status"].clone();
                if generation == 2 {
                    answer(&mut requests, 200).await;
                }
                status
            };
            let (done, status) = tokio::join!(reconcile(&mut reconciler, &store, &pools), server);
            assert!(done);
            assert_eq!(status["observedGeneration"], generation);
            assert_eq!(status["conditions"][0]["status"], if generation == 2 { "False" } else { "True" });
            network["status"] = status;
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_labels_of_a_node_whose_agent_is_gone_are_removed() {
        let (mut reconciler, mut requests) = reconciler();
        let store = none::<ClaimNetwork>();
        let (pools, policies) = (none::<AddressPool>(), none::<UplinkPolicy>());
        let classes = none::<DeviceClass>();
        let labels = json!({"rack": "7", "network.netclaim.dev/backbone": "up"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}, "spec": {}});
        reconciler.known.nodes.apply(watcher::Event::Apply(serde_json::from_value(node).unwrap()));
        reconciler.known.published.apply(slice_of("n1", false));
        assert_eq!(reconciler.reconcile(&store, &pools, &policies, &classes).await, None, "it has an agent");
        let watcher::Event::Apply(slice) = slice_of("n1", false) else { return };
        reconciler.known.published.apply(watcher::Event::Delete(slice));
        let due = reconciler.reconcile(&store, &pools, &policies, &classes).await.unwrap();
        tokio::time::advance(due - Instant::now()).await;
        let (next, (request, body)) = tokio::join!(
            reconciler.reconcile(&store, &pools, &policies, &classes),
            answer(&mut requests, 404)
        );
        assert_eq!(request, "PATCH /api/v1/nodes/n1");
        assert_eq!(body, json!({"metadata": {"labels": {"network.netclaim.dev/backbone": null}}}));
        assert!(next.unwrap() > Instant::now(), "the watch shows what was written");
    }

    #[tokio::test]
    async fn a_failed_write_is_retried_unless_the_network_is_gone() {
        for (code, expected) in [(404, true), (500, false)] {
            let (mut reconciler, mut requests) = reconciler();
            let good = network(json!({"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}));
            let (store, pools) = (networks(&good), none::<AddressPool>());
            let (done, (request, _)) =
                tokio::join!(reconcile(&mut reconciler, &store, &pools), answer(&mut requests, code));
            assert_eq!((request.as_str(), done), (STATUS, expected));
        }
    }
}
