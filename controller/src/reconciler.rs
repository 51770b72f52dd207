//! The loop of the leader: it derives the status of Networks and UplinkPolicies, and the cluster's pools, from what
//! the API server stores.
//!
//! ```text
//!   Networks ───────┬─> acceptance ─┬─> status, and an event for warnings and refusals
//!   ResourceSlices ─┼─> nodes ──────┤
//!   Nodes ──────────┤               └─> blocks: which nodes need addresses of which pool
//!   AddressPools ───┤   address_pools ─> status
//!                   └─> pools ────────> netclaim_slices::Publisher
//!   UplinkPolicies ───> policies ─────> status, and an event for refusals
//! ```
//!
//! After a change, at most every [`GATHER`], everything is derived anew. What is correct is not written, so an idle
//! cluster sees no writes. A restart loses no state that matters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ResourceExt as _};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::store::{Store, Writer};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressPool, AddressPoolSpec, PoolKey};
use netclaim_api::network::{Network, NetworkSpec, NetworkStatus, Scope};
use netclaim_api::shorten;
use netclaim_api::uplink_policy::UplinkPolicy;
use netclaim_slices::{
    DroppedField, Pool, PoolStatus, PublishStatus, Publisher, PublisherConfig, PublisherHandle, Revision,
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::acceptance::{Acceptance, Addresses};
use crate::address_pools::PoolAcceptance;
use crate::blocks::{self, Demand, Leased};
use crate::leasing::Draw;
use crate::metrics::{Accepted, Field, Metrics, Published};
use crate::node_objects::{self, NodeObject, NodeObjects};
use crate::nodes::{self, DevicesOfSlice};
use crate::status::{ACCEPTED_WITH_WARNINGS, CONTROLLER, INVALID, apply};
use crate::watches::{Refused, next, next_unless_refused};
use crate::{policies, pools, warnings};

/// Changes are gathered for this long: when a node starts, its slices come in a burst.
const GATHER: Duration = Duration::from_millis(500);

/// Time between two writes that change only the nodes of a Network. Every agent watches Networks, so each write goes
/// to every node; and while many nodes start, their number changes all the time.
const NODES_INTERVAL: Duration = Duration::from_secs(10);

/// Changes of blocks are gathered for this long: nodes report all the time what they use.
const LEASED_GATHER: Duration = Duration::from_secs(2);

/// Time between a failed write and the next try.
const RETRY: Duration = Duration::from_secs(5);

/// The longest note of an event, in bytes (`events.k8s.io/v1`).
const MAX_NOTE: usize = 1024;

/// What to publish as, and whose slices to read.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Driver whose slices say on which nodes a Network is.
    pub(crate) driver: String,
    /// Publisher of the cluster's pools.
    pub(crate) publisher: PublisherConfig,
    /// Name of this replica, for events.
    pub(crate) identity: String,
    /// How long a Node object must be gone before the addresses of its blocks are free.
    pub(crate) node_gone_after: Duration,
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
    let leasing = blocks::run(client.clone(), after, metrics.clone(), needed, report);
    tokio::select! {
        () = leasing => Ok(()),
        () = watch(client, settings, metrics, publisher, demand, leased) => Ok(()),
        // The publisher ends with `cancel`; after that, nothing may be written here either.
        result = &mut publishing => result,
    }
}

async fn watch(
    client: Client,
    settings: Settings,
    metrics: Metrics,
    publisher: PublisherHandle,
    demand: watch::Sender<Option<Demand>>,
    leased: watch::Receiver<Leased>,
) {
    let everything = watcher::Config::default;
    let resource = ApiResource::erase::<Network>(&());
    let network_api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let (networks, network_events) = reflect(network_api.clone(), everything(), resource, strip);
    let mut network_events = pin!(network_events);

    let resource = nodes::resource();
    let slice_api: Api<DevicesOfSlice> = Api::all_with(client.clone(), &resource);
    let of_driver = everything().fields(&format!("spec.driver={}", settings.driver));
    let (slices, slice_events) = reflect(slice_api, of_driver, resource, nodes::strip);
    let mut slice_events = pin!(slice_events);

    let resource = ApiResource::erase::<UplinkPolicy>(&());
    let policy_api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let (policies, policy_events) = reflect(policy_api.clone(), everything(), resource, strip);
    let mut policy_events = pin!(policy_events);

    let resource = ApiResource::erase::<AddressPool>(&());
    let pool_api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let (address_pools, pool_events) = reflect(pool_api.clone(), everything(), resource, strip);
    let mut pool_events = pin!(pool_events);

    let node_api: Api<NodeObject> = Api::all_with(client.clone(), &node_objects::resource());
    let mut node_events = pin!(watcher(node_api, everything()).default_backoff());

    let mut published = publisher.status();
    let mut news = leased.clone();
    let mut reconciler = Reconciler {
        network_api,
        policy_api,
        pool_api,
        client,
        settings,
        metrics,
        publisher,
        demand,
        leased,
        revision: 0,
        nodes: NodeObjects::default(),
        written: BTreeMap::new(),
        later: None,
    };
    let mut synced = Synced::default();
    let mut due: Option<Instant> = None;
    loop {
        let ready = synced == Synced::ALL;
        tokio::select! {
            () = changed(&mut policy_events, "uplink policies", &mut synced.policies) => within(&mut due, GATHER),
            () = changed(&mut network_events, "networks", &mut synced.networks) => within(&mut due, GATHER),
            () = changed(&mut slice_events, "resource slices", &mut synced.slices) => within(&mut due, GATHER),
            () = changed_if_any(&mut pool_events, "address pools", &mut synced.pools) => within(&mut due, GATHER),
            () = nodes_changed(&mut node_events, &mut reconciler.nodes, &mut synced.nodes) => within(&mut due, GATHER),
            Ok(()) = news.changed() => within(&mut due, LEASED_GATHER),
            Ok(()) = published.changed() => reconciler.count_published(&published.borrow_and_update()),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if ready && due.is_some() => {
                reconciler.metrics.ready.set(true);
                let done = reconciler.reconcile_networks(&networks, &slices, &address_pools).await
                    & reconciler.reconcile_policies(&policies).await;
                let retry = (!done).then(|| Instant::now() + RETRY);
                due = retry.into_iter().chain(reconciler.later).min();
            }
        }
    }
}

/// Which watches have seen a whole list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Synced {
    networks: bool,
    slices: bool,
    policies: bool,
    pools: bool,
    nodes: bool,
}

impl Synced {
    const ALL: Self = Self { networks: true, slices: true, policies: true, pools: true, nodes: true };
}

/// Makes the next reconciliation due in `time`, unless it is due earlier.
fn within(due: &mut Option<Instant>, time: Duration) {
    let gathered = Instant::now() + time;
    *due = Some(due.map_or(gathered, |due| due.min(gathered)));
}

fn strip(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
}

/// Returns a store of the objects that `config` selects, and the watch that fills it.
fn reflect<K>(
    api: Api<K>,
    config: watcher::Config,
    resource: ApiResource,
    strip: fn(&mut K),
) -> (Store<K>, impl Stream<Item = watcher::Result<watcher::Event<K>>>)
where
    K: Resource<DynamicType = ApiResource> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let writer = Writer::new(resource);
    let store = writer.as_reader();
    (store, watcher(api, config).default_backoff().modify(strip).reflect(writer))
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

/// Waits until the watch of `what` sees a change. Objects that the API server refuses to list are none: others do not need
/// them.
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

/// Waits until the watch of nodes sees a change that counts. Sets `synced` at the end of a list.
async fn nodes_changed(
    events: &mut (impl Stream<Item = watcher::Result<watcher::Event<NodeObject>>> + Unpin),
    nodes: &mut NodeObjects,
    synced: &mut bool,
) {
    loop {
        let event = next(events, "nodes").await;
        let is_first = !*synced && matches!(event, watcher::Event::InitDone);
        *synced |= is_first;
        if nodes.apply(event) || is_first {
            return;
        }
    }
}

struct Reconciler {
    network_api: Api<DynamicObject>,
    policy_api: Api<DynamicObject>,
    pool_api: Api<DynamicObject>,
    client: Client,
    settings: Settings,
    metrics: Metrics,
    publisher: PublisherHandle,
    /// Which nodes need addresses.
    demand: watch::Sender<Option<Demand>>,
    /// Which addresses nodes have.
    leased: watch::Receiver<Leased>,
    /// Revision last handed to the publisher.
    revision: Revision,
    nodes: NodeObjects,
    /// When each status was last written, by the UID of its Network or AddressPool.
    written: BTreeMap<String, Instant>,
    /// When the first postponed status is due.
    later: Option<Instant>,
}

impl Reconciler {
    /// Publishes the cluster's pools, says which nodes need addresses, and writes the status of Networks and AddressPools.
    /// Returns whether all writes succeeded.
    async fn reconcile_networks(
        &mut self,
        networks: &Store<DynamicObject>,
        slices: &Store<DevicesOfSlice>,
        address_pools: &Store<DynamicObject>,
    ) -> bool {
        let slices = slices.state();
        let (mut nodes, with_agent) = (nodes::by_network(&slices), nodes::with_agent(&slices));
        let mut networks = networks.state();
        networks.sort_by_cached_key(|network| network.name_any());
        let mut acceptances: Vec<_> =
            networks.iter().map(|network| (network, Acceptance::of(network))).collect();
        let address_pools = address_pools.state();
        let mut pool_acceptances: Vec<_> =
            address_pools.iter().map(|pool| (pool, PoolAcceptance::of(pool))).collect();

        let accepted = || acceptances.iter().filter_map(|(_, acceptance)| acceptance.result.as_ref().ok());
        let pools = acceptances.iter().filter_map(|(network, acceptance)| {
            let (name, spec) = acceptance.result.as_ref().ok()?;
            pools::pool(name, spec, network.metadata.uid.as_deref()?)
        });
        self.publish(pools.collect());
        for (name, spec) in accepted() {
            let on = nodes.entry(name.clone()).or_default();
            let selected = self.nodes.selected(spec).filter(|node| with_agent.contains(node.as_str()));
            on.missing = selected.filter(|node| !on.bandwidth.contains_key(*node)).cloned().collect();
        }
        let drawing = |name: &NetworkName, spec: &NetworkSpec| {
            let selected: BTreeSet<String> = self.nodes.selected(spec).cloned().collect();
            let drawing = match spec.scope {
                Scope::Node => {
                    nodes.get(name).map(|on| on.bandwidth.keys().cloned().collect()).unwrap_or_default()
                }
                Scope::Cluster => {
                    selected.iter().filter(|node| with_agent.contains(node.as_str())).cloned().collect()
                }
            };
            (drawing, selected)
        };
        self.demand_addresses(demand(&acceptances, &pool_acceptances, drawing));
        let (good, all) = (accepted().count(), acceptances.len());
        for (accepted, count) in [(true, good), (false, all - good)] {
            let gauge = self.metrics.networks.get_or_create(&Accepted { accepted });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let leased = self.leased.borrow().clone();
        warnings::add(&mut acceptances, &mut pool_acceptances, &nodes, self.nodes.all(), &leased);

        let mut done = true;
        self.later = None;
        let uids: BTreeSet<String> =
            networks.iter().chain(&address_pools).filter_map(|object| object.uid()).collect();
        self.written.retain(|uid, _| uids.contains(uid));
        for (network, acceptance) in &acceptances {
            let name = network.name_any();
            let nodes = name.parse().ok().and_then(|name| nodes.get(&name)).cloned().unwrap_or_default();
            let addresses = addresses_of(acceptance, &leased);
            let Some(status) = acceptance.status(&nodes, addresses, &Time(Timestamp::now())) else {
                continue;
            };
            let uid = network.uid().unwrap_or_default();
            if !acceptance.changes_with(&status) && self.is_too_early(&uid) {
                continue;
            }
            match apply::<Network>(&self.network_api, network, &status).await {
                Ok(true) => {
                    self.written.insert(uid, Instant::now());
                    self.report(network, acceptance, status).await;
                }
                // The Network was deleted; the watch is about to report it.
                Ok(false) => {}
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, network = name, "cannot write the status of a network, will retry");
                    done = false;
                }
            }
        }
        for (pool, acceptance) in &pool_acceptances {
            done &= self.reconcile_address_pool(pool, acceptance, &leased).await;
        }
        done
    }

    /// Hands over which nodes need addresses.
    fn demand_addresses(
        &self,
        (networks, pools): (BTreeMap<NetworkName, Draw>, BTreeMap<PoolKey, AddressPoolSpec>),
    ) {
        let demand = Some(Demand { networks, pools, nodes: self.nodes.all().clone() });
        self.demand.send_if_modified(|known| {
            let is_new = *known != demand;
            *known = demand;
            is_new
        });
    }

    /// Whether the last status of this object was written so recently that the next one waits if nothing but numbers changes.
    fn is_too_early(&mut self, uid: &str) -> bool {
        let due = self.written.get(uid).map(|written| *written + NODES_INTERVAL);
        let Some(due) = due.filter(|due| *due > Instant::now()) else { return false };
        self.later = Some(self.later.map_or(due, |later| later.min(due)));
        true
    }

    /// Writes the status of an AddressPool. Returns whether that succeeded.
    async fn reconcile_address_pool(
        &mut self,
        pool: &DynamicObject,
        acceptance: &PoolAcceptance,
        leased: &Leased,
    ) -> bool {
        let totals = leased.totals.get(&PoolKey::Pool(acceptance.name.clone())).copied();
        let Some(status) = acceptance.status(totals, &Time(Timestamp::now())) else { return true };
        let (uid, is_new) = (pool.uid().unwrap_or_default(), acceptance.changes_with(&status));
        if !is_new && self.is_too_early(&uid) {
            return true;
        }
        match apply::<AddressPool>(&self.pool_api, pool, &status).await {
            Ok(true) => {
                self.metrics.status_writes.inc();
                self.written.insert(uid, Instant::now());
                let condition = status.conditions.into_iter().next().filter(|_| is_new);
                let unclean = condition
                    .filter(|found| found.status == "False" || found.reason == ACCEPTED_WITH_WARNINGS);
                if let Some(found) = unclean {
                    tracing::warn!(
                        pool = acceptance.name,
                        problems = found.message,
                        "look at the address pool"
                    );
                    self.warn::<AddressPool>(pool, found.reason, found.message).await;
                }
                true
            }
            // The pool was deleted; the watch is about to report it.
            Ok(false) => true,
            Err(error) => {
                let (error, pool) = (&error as &dyn std::error::Error, &acceptance.name);
                tracing::warn!(error, pool, "cannot write the status of an address pool, will retry");
                false
            }
        }
    }

    /// Writes the status of uplink policies. Returns whether all writes succeeded.
    async fn reconcile_policies(&self, policies: &Store<DynamicObject>) -> bool {
        let mut done = true;
        for policy in policies.state() {
            let Some(status) = policies::status(&policy, &Time(Timestamp::now())) else { continue };
            match apply::<UplinkPolicy>(&self.policy_api, &policy, &status).await {
                Ok(true) => {
                    self.metrics.status_writes.inc();
                    let refused = status.conditions.into_iter().find(|condition| condition.status == "False");
                    if let Some(problems) = refused.map(|condition| condition.message) {
                        tracing::warn!(
                            policy = policy.name_any(),
                            problems,
                            "nodes cannot follow the policy"
                        );
                        self.warn::<UplinkPolicy>(&policy, INVALID.to_owned(), problems).await;
                    }
                }
                // The policy was deleted; the watch is about to report it.
                Ok(false) => {}
                Err(error) => {
                    let (error, policy) = (&error as &dyn std::error::Error, policy.name_any());
                    tracing::warn!(error, policy, "cannot write the status of an uplink policy, will retry");
                    done = false;
                }
            }
        }
        done
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
            let gauge = self.metrics.pools.get_or_create(&Published { published });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let Some(server) = &status.server else { return };
        for field in DroppedField::GATED.into_iter().chain([DroppedField::Other]) {
            let gauge = self.metrics.dropped.get_or_create(&Field { field: field.path() });
            gauge.set(i64::from(!server.stores(field)));
        }
    }

    /// Counts and logs a written status, with an event if people have to act on it.
    async fn report(&self, network: &DynamicObject, acceptance: &Acceptance, status: NetworkStatus) {
        self.metrics.status_writes.inc();
        let name = network.name_any();
        let Some(condition) = status.conditions.into_iter().next() else { return };
        if !acceptance.is_new(&condition) {
            tracing::debug!(network = name, nodes = status.nodes, "status written");
        } else if condition.status == "True" && condition.reason != ACCEPTED_WITH_WARNINGS {
            tracing::info!(network = name, "accepted");
        } else {
            let (reason, problems) = (condition.reason, condition.message);
            tracing::info!(network = name, reason, problems, "acceptance changed");
            self.warn::<Network>(network, reason, problems).await;
        }
    }

    /// Writes a warning event. The status says the same, so a failure is not retried.
    async fn warn<K: Resource<DynamicType = ()>>(
        &self,
        object: &DynamicObject,
        reason: String,
        message: String,
    ) {
        let event = Event {
            type_: EventType::Warning,
            reason,
            note: Some(shorten(message, MAX_NOTE)),
            action: "Accept".to_owned(),
            secondary: None,
        };
        let reporter =
            Reporter { controller: CONTROLLER.to_owned(), instance: Some(self.settings.identity.clone()) };
        // A new recorder each time: one that knows the last event counts it up and drops the new note.
        let recorder = Recorder::new(self.client.clone(), reporter);
        let about = object.object_ref(&ApiResource::erase::<K>(&()));
        if let Err(error) = recorder.publish(&event, &about).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot write an event");
        }
    }
}

/// Returns what the Networks draw from, and the accepted pools. `drawing` returns the nodes that need addresses of a Network,
/// and those that it selects.
fn demand(
    networks: &[(&Arc<DynamicObject>, Acceptance)],
    pools: &[(&Arc<DynamicObject>, PoolAcceptance)],
    drawing: impl Fn(&NetworkName, &NetworkSpec) -> (BTreeSet<String>, BTreeSet<String>),
) -> (BTreeMap<NetworkName, Draw>, BTreeMap<PoolKey, AddressPoolSpec>) {
    let accepted = pools.iter().filter_map(|(_, pool)| Some((&pool.name, pool.result.as_ref().ok()?)));
    let mut specs: BTreeMap<PoolKey, AddressPoolSpec> =
        accepted.map(|(name, spec)| (PoolKey::Pool(name.clone()), spec.clone())).collect();
    let mut draws = BTreeMap::new();
    for (network, acceptance) in networks {
        match &acceptance.result {
            Ok((name, spec)) => {
                let draw = spec.addresses.as_ref().map(|addresses| {
                    let pool = addresses.key(name);
                    specs.extend(addresses.inline().map(|spec| (pool.clone(), spec)));
                    let (nodes, selected) = drawing(name, spec);
                    Draw::From { pool, nodes, selected }
                });
                draws.insert(name.clone(), draw.unwrap_or(Draw::Nothing));
            }
            Err(_) => draws.extend(network.name_any().parse().ok().map(|name| (name, Draw::Unknown))),
        }
    }
    (draws, specs)
}

/// Returns what is known of the addresses of a Network.
fn addresses_of<'a>(acceptance: &Acceptance, leased: &'a Leased) -> Addresses<'a> {
    let Ok((name, spec)) = &acceptance.result else { return Addresses::default() };
    let totals = spec.addresses.as_ref().and_then(|addresses| leased.totals.get(&addresses.key(name)));
    Addresses { totals: totals.copied(), supply: leased.supply.get(name) }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use netclaim_slices::Scope;
    use serde_json::{Value, json};
    use tokio::time::timeout;
    use tower_test::mock;

    use super::*;

    type Requests = mock::Handle<Request<Body>, Response<Body>>;

    fn reconciler() -> (Reconciler, Requests) {
        let (service, requests) = mock::pair();
        let client = Client::new(service, "default");
        let publisher = PublisherConfig::new("netclaim.dev", "controller", Scope::Cluster).unwrap();
        // Cancelled: these tests ignore the publisher's requests.
        let cancel = CancellationToken::new();
        cancel.cancel();
        let (handle, _) = Publisher::spawn(client.clone(), publisher.clone(), cancel);
        let settings = Settings {
            driver: "netclaim.dev".into(),
            publisher,
            identity: "pod-1".into(),
            node_gone_after: Duration::from_secs(600),
        };
        let reconciler = Reconciler {
            network_api: Api::all_with(client.clone(), &ApiResource::erase::<Network>(&())),
            policy_api: Api::all_with(client.clone(), &ApiResource::erase::<UplinkPolicy>(&())),
            pool_api: Api::all_with(client.clone(), &ApiResource::erase::<AddressPool>(&())),
            demand: watch::channel(None).0,
            leased: watch::channel(Leased::default()).1,
            client,
            settings,
            metrics: Metrics::default(),
            publisher: handle,
            revision: 0,
            nodes: NodeObjects::default(),
            written: BTreeMap::new(),
            later: None,
        };
        (reconciler, requests)
    }

    fn networks(network: &Value) -> Store<DynamicObject> {
        let mut writer = Writer::new(ApiResource::erase::<Network>(&()));
        let network = serde_json::from_value(network.clone()).unwrap();
        writer.apply_watcher_event(&watcher::Event::Apply(network));
        writer.as_reader()
    }

    fn slices() -> Store<DevicesOfSlice> {
        Writer::new(nodes::resource()).as_reader()
    }

    fn address_pools() -> Store<DynamicObject> {
        Writer::new(ApiResource::erase::<AddressPool>(&())).as_reader()
    }

    fn network(cni: Value) -> Value {
        json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "Network",
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

    const STATUS: &str = "PATCH /apis/netclaim.dev/v1alpha1/networks/storage/status";

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
        let (store, slices, pools) = (networks(&bad), slices(), address_pools());
        let server = async {
            let status = answer(&mut requests, 200).await;
            (status, answer(&mut requests, 200).await)
        };
        let (done, ((request, status), (event_request, event))) =
            tokio::join!(reconciler.reconcile_networks(&store, &slices, &pools), server);
        assert!(done);
        assert_eq!(request, STATUS);
        assert_eq!(status["metadata"], json!({"name": "storage", "uid": "u1"}));
        assert_eq!(status["status"]["conditions"][0]["reason"], "Invalid");
        assert_eq!(event_request, "POST /apis/events.k8s.io/v1/namespaces/default/events");
        assert_eq!(event["note"], status["status"]["conditions"][0]["message"]);

        bad["status"] = status["status"].clone();
        assert!(reconciler.reconcile_networks(&networks(&bad), &slices, &pools).await);
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
        let (slices, pools) = (slices(), address_pools());
        let (done, (status, event)) =
            tokio::join!(reconciler.reconcile_networks(&odd, &slices, &pools), server);
        assert!(done);
        assert_eq!(status["status"]["conditions"][0]["status"], "True");
        assert_eq!(event["reason"], "AcceptedWithWarnings");
        assert!(event["note"].as_str().unwrap().contains("spec.cni.plugins[0].colour"), "{event}");
    }

    fn slice_of(node: &str) -> watcher::Event<DevicesOfSlice> {
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
            "spec": {"driver": "netclaim.dev", "nodeName": node, "devices": [{"name": "net-storage"}]}
        });
        watcher::Event::Apply(serde_json::from_value(slice).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_join_one_by_one_share_status_writes() {
        let (mut reconciler, mut requests) = reconciler();
        let mut good = network(json!({"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}));
        let mut writer = Writer::new(nodes::resource());
        let (slices, pools) = (writer.as_reader(), address_pools());
        let mut writes = 0;
        for node in 0..50 {
            writer.apply_watcher_event(&slice_of(&format!("n{node}")));
            let networks = networks(&good);
            let mut status = None;
            tokio::select! {
                biased;
                done = reconciler.reconcile_networks(&networks, &slices, &pools) => assert!(done),
                (_, body) = answer(&mut requests, 200) => status = Some(body["status"].clone()),
            }
            if let Some(status) = status {
                good["status"] = status;
                writes += 1;
                reconciler.written.insert("u1".into(), Instant::now());
            }
            tokio::time::advance(Duration::from_millis(500)).await;
        }
        assert!((3..=4).contains(&writes), "{writes} writes in 25 s");
        assert!(
            reconciler.later.is_some_and(|later| later <= Instant::now() + NODES_INTERVAL),
            "the last is due"
        );
    }

    #[tokio::test]
    async fn networks_with_the_same_addresses_warn_of_each_other() {
        let ipam = json!({"type": "host-local", "subnet": "10.30.0.0/24"});
        let plugins = json!([{"type": "bridge", "bridge": "br0", "ipam": ipam}]);
        let one = network(json!({"cniVersion": "1.1.0", "plugins": plugins}));
        let mut other = one.clone();
        other["metadata"] = json!({"name": "backup", "uid": "u2", "generation": 1});
        let objects = [one, other].map(|object| Arc::new(serde_json::from_value(object).unwrap()));
        let mut acceptances: Vec<_> = objects.iter().map(|object| (object, Acceptance::of(object))).collect();
        warnings::add(&mut acceptances, &mut [], &BTreeMap::new(), &Default::default(), &Leased::default());
        for ((_, acceptance), other) in acceptances.iter().zip(["Network backup ", "Network storage "]) {
            let status = acceptance
                .status(&Default::default(), Addresses::default(), &Time(Timestamp::now()))
                .unwrap();
            let Some(accepted) = status.conditions.first() else { panic!("{status:?}") };
            assert_eq!(
                (accepted.status.as_str(), accepted.reason.as_str()),
                ("True", ACCEPTED_WITH_WARNINGS)
            );
            assert!(accepted.message.contains(other), "{}", accepted.message);
        }
    }

    #[tokio::test]
    async fn a_failed_write_is_retried_unless_the_network_is_gone() {
        for (code, expected) in [(404, true), (500, false)] {
            let (mut reconciler, mut requests) = reconciler();
            let good = network(json!({"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}));
            let (store, slices, pools) = (networks(&good), slices(), address_pools());
            let (done, (request, _)) = tokio::join!(
                reconciler.reconcile_networks(&store, &slices, &pools),
                answer(&mut requests, code)
            );
            assert_eq!((request.as_str(), done), (STATUS, expected));
        }
    }
}
