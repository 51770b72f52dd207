//! The loop that leases blocks of addresses to nodes: it carries out what [`crate::addresses::leasing`]
//! plans.
//!
//! ```text
//!   reconciler ── Demand ──> watch ──> leasing ──> creates, deletes, releases ──> API server
//!   AddressBlocks, AddressLeases ──┘      │
//!   pods that wait, claims ────────┘      └── Leased ──> reconciler: status of ClaimNetworks and AddressPools
//! ```
//!
//! It is apart from the reconciler, so that no status write delays a lease. Requests run beside the watches;
//! a block counts as taken from the moment it is asked for.
//!
//! * [`view::View`] is the known state of the cluster, and says what is to be done.
//! * [`requests::Requests`] are those that wait, run or have failed.
//! * [`timers::Timers`] say when to plan, and when to look for leases whose holder is gone.

mod claims;
#[doc(hidden)]
pub mod door;
mod requests;
mod store;
mod survey;
mod timers;
mod view;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressBlock, AddressLease, AddressTotals, PoolKey};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::claims::Claims;
use self::requests::{Action, Requests};
use self::survey::{Surveyed, Task};
use self::timers::Timers;
use self::view::View;
use self::writes::{Done, Unused, Writes};
use crate::addresses::leasing::{Leasing, Leaving, Plan, Supply, Why};
use crate::demand::{Demand, Needs};
use crate::metrics::{ADDRESS_STATES, Metrics};
use crate::objects::watches::next_unless_refused;
use crate::pods::{AwaitingAddresses, Places};

/// Time between a failed request and the next try for the same object.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Time between two looks for leases whose holder is gone.
const COLLECT_INTERVAL: Duration = Duration::from_secs(1);

/// How the pools are, for the status of ClaimNetworks and AddressPools.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Leased {
    pub(crate) totals: BTreeMap<PoolKey, AddressTotals>,
    pub(crate) supply: BTreeMap<NetworkName, Supply>,
    pub(crate) leaving: Vec<Leaving>,
}

/// Leases blocks as `demand` says and as `pods` need them, and reports how the pools are. `driver` is whose
/// addresses the status of claims has. Does not return.
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
        let ready = state.view.is_ready();
        let plan = state.timers.plan().filter(|_| ready);
        let collect = state.timers.collect().filter(|_| ready);
        tokio::select! {
            event = next_unless_refused(&mut block_events, "address blocks") => {
                if state.view.apply_block(event, Instant::now()) {
                    state.timers.plan_soon();
                }
            }
            event = next_unless_refused(&mut lease_events, "address leases") => {
                if state.view.apply_lease(event, Instant::now()) {
                    state.timers.collect_at(Instant::now());
                    state.timers.plan_soon();
                }
            }
            // Pods come and go all the time; they matter only if addresses are scarce.
            Ok(()) = pod_changes.changed() => {
                if state.is_short {
                    state.timers.plan_soon();
                }
            }
            () = claims.changed() => state.timers.collect_at(Instant::now() + COLLECT_INTERVAL),
            Ok(()) = demand.changed() => {
                if let Some(demand) = demand.borrow_and_update().clone() {
                    state.set_demand(demand);
                }
            }
            Ok(()) = needs.changed() => {
                state.view.needs = needs.borrow_and_update().clone();
                state.timers.plan_soon();
            }
            ended = state.requests.ended() => {
                // An action that panics is a bug; the next plan makes it again.
                if let Some((action, result)) = ended {
                    state.finish(&action, result);
                }
                state.requests.start();
            }
            Some(result) = state.surveying.join_next(), if !state.surveying.is_empty() => {
                // After a panic, the next plan begins another one.
                if let Ok(result) = result {
                    state.finish_survey(result, Instant::now());
                }
            }
            () = sleep_until(plan.unwrap_or_else(Instant::now)), if plan.is_some() => state.plan(),
            () = sleep_until(collect.unwrap_or_else(Instant::now)), if collect.is_some() => {
                state.collect(&claims);
            }
        }
        claims.watch(state.view.needs_claims());
    }
}

/// The state of the loop. Only [`Requests`] asks the API server, and only [`View`] knows what there is.
struct State {
    client: Client,
    driver: String,
    metrics: Metrics,
    report: watch::Sender<Leased>,
    leasing: Leasing,
    timers: Timers,
    requests: Requests,
    view: View,
    pods: Arc<AwaitingAddresses>,
    /// Whether a node is short of addresses.
    is_short: bool,
    /// The survey under way: one at a time.
    surveying: JoinSet<kube::Result<Surveyed>>,
    /// Blocks of ClaimNetworks that are gone; a warning about them is logged.
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
        let now = Instant::now();
        Self {
            requests: Requests::new(Writes::new(client.clone())),
            client,
            driver,
            metrics,
            report,
            leasing: Leasing::new(safety),
            timers: Timers::new(now),
            view: View::new(now),
            pods,
            is_short: false,
            surveying: JoinSet::new(),
            warned: BTreeSet::new(),
        }
    }

    fn set_demand(&mut self, demand: Demand) {
        let now = Instant::now();
        self.view.set_demand(demand, now);
        self.timers.plan_at(now);
        // Addresses may be reserved now that leases have.
        self.timers.collect_at(now + COLLECT_INTERVAL);
    }

    fn plan(&mut self) {
        let begin = Instant::now();
        self.timers.begin_plan();
        self.view.expire(begin);
        self.requests.expire(begin);
        let Places { waiting, until } = self.pods.places(&self.view.demand.nodes, begin);
        let (plan, unsurveyed) = self.view.plan(&mut self.leasing, &waiting, begin);
        self.begin_survey(unsurveyed, begin);
        self.timers.end_plan(begin);
        let next = plan.next;
        self.carry_out(plan, begin);
        let unseen = self.view.blocks.any_pending().then(|| begin + RETRY_DELAY);
        // Without a shortage, it does not matter which pods wait.
        let until = until.filter(|_| self.is_short);
        let next = [next, unseen, self.requests.next(), self.view.next(), until];
        next.into_iter().flatten().for_each(|next| self.timers.plan_at(next));
    }

    /// Looks for pods that have addresses of pools from before, if the time has come.
    fn begin_survey(&mut self, pools: BTreeMap<PoolKey, survey::Pool>, now: Instant) {
        let mut due = BTreeMap::new();
        for (key, pool) in pools {
            match self.view.survey.due(&key) {
                at if at > now => self.timers.plan_at(at),
                _ => drop(due.insert(key, pool)),
            }
        }
        if due.is_empty() || !self.surveying.is_empty() {
            return;
        }
        let task = Task::new(due, &self.view.demand, &self.view.blocks, &self.view.leases);
        self.surveying.spawn(task.run(self.client.clone(), self.driver.clone()));
    }

    fn finish_survey(&mut self, result: kube::Result<Surveyed>, now: Instant) {
        match result {
            Ok(surveyed) => {
                let found = self.view.survey.finish(surveyed, now);
                if found > 0 {
                    tracing::info!(found, "leased addresses that pods have from before");
                }
                self.timers.plan_soon();
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "cannot look for addresses that pods have from before, will retry");
                self.view.survey.retry(now + RETRY_DELAY);
                self.timers.plan_at(now + RETRY_DELAY);
            }
        }
    }

    fn carry_out(&mut self, mut plan: Plan, now: Instant) {
        let known: BTreeSet<String> = plan.leaving.iter().map(|leaving| leaving.object.clone()).collect();
        plan.leaving.extend(survey::leaving(&self.view.leases).filter(|one| !known.contains(&one.object)));
        for (pool, totals) in &mut plan.totals {
            totals.surveyed = self.view.survey.written(pool, &self.view.demand);
        }
        self.is_short = plan.supply.values().any(|supply| matches!(supply, Supply::Exhausted(_)));
        self.pods.set_short(self.is_short);
        if self.view.set_gone(plan.gone) {
            self.timers.collect_at(now);
        }
        for (pool, totals) in plan.record {
            self.requests.push(Action::Record { pool, totals });
        }
        for spec in plan.create {
            if self.requests.push(Action::Create(spec.clone())) {
                self.view.blocks.add_pending(spec, now);
            }
        }
        for block in plan.delete {
            if self.requests.push(Action::Delete(block.clone())) {
                tracing::info!(block = block.name, reason = %block.why, "deleting a block of addresses");
                if block.why == Why::Moved {
                    self.metrics.address_moves.inc();
                }
            }
        }
        for block in plan.release {
            let node = self.view.blocks.all().get(&block.name).and_then(|block| block.spec.node.parse().ok());
            if let Some(node) = node {
                self.requests.push(Action::Release { block, node });
            }
        }
        for block in plan.hold {
            if self.requests.push(Action::Hold(block.clone())) {
                tracing::warn!(block = block.name, "the finalizer of a block was removed: putting it back");
            }
        }
        self.requests.start();
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
        let of_gone =
            leaving.iter().filter(|leaving| !self.view.demand.networks.contains_key(&leaving.network));
        let before = std::mem::take(&mut self.warned);
        for one @ Leaving { network, object, .. } in of_gone {
            let Some(message) = one.lost() else { continue };
            if self.warned.insert(object.clone()) && !before.contains(object) {
                tracing::warn!(%network, object, "{message}");
            }
        }
    }

    fn finish(&mut self, action: &Action, result: kube::Result<Done>) {
        self.requests.end(action);
        match &result {
            Ok(done) => match action {
                Action::Record { pool, .. } => {
                    if let Done::Recorded(size) = done {
                        self.view.sizes.insert(pool.clone(), *size);
                        self.timers.plan_soon();
                    }
                }
                Action::Create(spec) if *done == Done::Yes => {
                    self.metrics.blocks_created.inc();
                    tracing::debug!(block = spec.name(), node = spec.node, "leased a block of addresses");
                }
                // Another object has the name.
                Action::Create(spec) if !self.view.blocks.has(spec) => self.view.avoid(spec, Instant::now()),
                Action::Delete(block) => {
                    self.metrics.blocks_removed.inc();
                    self.view.blocks.set_deleting(&block.name, &block.uid);
                    // The watch shows nothing new then, and the time until its release begins with the next
                    // plan.
                    self.timers.plan_soon();
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
                        "a node was said to use the address of a claim that is not allocated there: freed it; another client may \
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
                    self.view.blocks.remove_pending(&spec.name());
                }
                let until = Instant::now() + RETRY_DELAY;
                self.requests.delay(action, until);
                self.timers.plan_at(until);
                self.timers.collect_at(until);
            }
        }
    }

    /// Confirms leases of claims that exist, frees those that no node uses, and deletes those that no pod
    /// holds.
    fn collect(&mut self, claims: &Claims) {
        self.timers.begin_collect();
        let now = Instant::now();
        let actions = self.view.due(claims, now);
        if !actions.is_empty() || self.view.has_unproven() {
            self.timers.collect_at(now + COLLECT_INTERVAL);
        }
        for action in actions {
            self.requests.push(action);
        }
        self.requests.start();
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
    use netclaim_api::addresses::{AddressBlockSpec, AddressPoolSpec};
    use serde_json::json;
    use tower_test::mock;

    use super::requests::LEASE_ACTIONS;
    use super::store::Leases;
    use super::timers::GATHER_DELAY;
    use super::view::UNPROVEN;
    use super::writes::LeaseRef;
    use super::*;
    use crate::addresses::leasing::{Removal, SAFETY};
    use crate::demand::Draw;
    use crate::objects::watches::Refused;

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
            "spec": {"networkName": "storage", "nodeName": "a", "cidr": "10.20.0.0/30"}});
        state
            .view
            .blocks
            .apply(watcher::Event::Apply(serde_json::from_value(block).unwrap()), Instant::now());
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
        state.view.survey.pass(&state.view.demand);
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

    #[tokio::test(start_paused = true)]
    async fn a_request_that_failed_delays_no_other() {
        let mut state = state();
        let spec = |cidr: &str| -> AddressBlockSpec {
            serde_json::from_value(json!({"networkName": "storage", "nodeName": "a", "cidr": cidr})).unwrap()
        };
        let [failed, other] = ["10.20.0.0/28", "10.20.0.16/28"].map(|cidr| Action::Create(spec(cidr)));
        assert!(state.requests.push(failed.clone()));
        state.finish(&failed, Err(failure(500)));
        assert!(!state.requests.push(failed) && state.requests.push(other));
        state.timers.plan_soon();
        assert!(
            state.timers.plan().unwrap() <= Instant::now() + GATHER_DELAY,
            "the next plan is not delayed"
        );
        state.plan();
        let due = state.timers.plan().unwrap() - Instant::now();
        assert!(due > GATHER_DELAY && due <= RETRY_DELAY, "{due:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_until_the_release_of_a_deleted_block_begins_before_the_watch_shows_it() {
        let mut state = state();
        scarce(&mut state);
        state.plan();
        state.timers.begin_plan();
        let block = Removal { name: "storage.10.20.0.0-30".into(), uid: "u".into(), why: Why::NodeGone };
        state.finish(&Action::Delete(block), Ok(Done::Yes));
        assert!(state.timers.plan().is_some_and(|due| due <= Instant::now() + GATHER_DELAY));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_another_object_has_is_not_tried_again_for_some_minutes() {
        let mut state = state();
        scarce(&mut state);
        let spec: AddressBlockSpec = serde_json::from_value(
            json!({"networkName": "storage", "nodeName": "a", "cidr": "10.20.0.0/30"}),
        )
        .unwrap();
        state.finish(&Action::Create(spec.clone()), Ok(Done::Overtaken));
        assert!(state.view.avoided.is_empty(), "the watch shows it");
        let other = AddressBlockSpec { cidr: "10.20.0.4/30".parse().unwrap(), ..spec };
        state.finish(&Action::Create(other.clone()), Ok(Done::Overtaken));
        assert!(state.view.avoided.contains_key(&(other.key(), other.cidr)));
    }

    #[tokio::test(start_paused = true)]
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
        state.view.demand.networks.insert("storage".parse().unwrap(), Draw::Nothing);
        state.warn_of_leaving(&[leaving("storage", "s"), leaving("gone", "g")]);
        assert_eq!(state.warned, BTreeSet::from(["g".to_owned()]), "the other one has a status");
        state.warn_of_leaving(&[]);
        assert!(state.warned.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_leased_while_blocks_or_leases_cannot_be_listed() {
        let mut state = state();
        state.set_demand(Demand::default());
        state.view.apply_lease(Err(Refused), Instant::now());
        state.view.apply_block(Ok(watcher::Event::InitDone), Instant::now());
        assert!(!state.view.is_ready());
        state.view.apply_lease(Ok(watcher::Event::InitDone), Instant::now());
        assert!(state.view.is_ready());
        state.view.apply_block(Err(Refused), Instant::now());
        assert!(!state.view.is_ready(), "the definition was deleted");
    }

    #[tokio::test(start_paused = true)]
    async fn leases_of_claims_are_freed_from_gone_nodes_and_those_with_other_names_are_deleted() {
        let mut state = state();
        let lease = |name: &str, node: Option<&str>| {
            let lease = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease",
                "metadata": {"name": name, "uid": "u", "resourceVersion": "7"},
                "spec": {"networkName": "storage", "address": "10.20.0.200",
                    "holder": {"kind": "ResourceClaim", "namespace": "shop", "name": "c", "uid": "u7"}},
                "status": {"nodeName": node}});
            watcher::Event::Apply(serde_json::from_value(lease).unwrap())
        };
        for (name, node) in [("storage.10.20.0.200", Some("a")), ("copy", None), ("busy-copy", Some("a"))] {
            state.view.leases.apply(lease(name, node), Instant::now());
        }
        let (service, _) = mock::pair::<Request<Body>, Response<Body>>();
        let claims = Claims::new(Client::new(service, "default"));
        let actions = |state: &mut State| {
            state.collect(&claims);
            std::mem::take(&mut state.requests.in_flight).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(
            actions(&mut state),
            ["confirm AddressLease storage.10.20.0.200", "delete AddressLease copy"],
            "the claim may exist, and no agent of this version has made the lease"
        );
        state.view.gone.insert("a".into());
        assert_eq!(
            actions(&mut state),
            [
                "clear the node of AddressLease storage.10.20.0.200",
                "delete AddressLease busy-copy",
                "delete AddressLease copy"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_is_due_when_a_pod_begins_to_wait_only_if_a_node_is_short() {
        let mut state = state();
        show_pod(&state, Timestamp::now());
        state.plan();
        assert_eq!(state.timers.plan(), None);
        scarce(&mut state);
        state.plan();
        let due = state.timers.plan().unwrap() - Instant::now();
        assert!(due > Duration::from_secs(15) && due <= Duration::from_secs(20), "{due:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_block_is_created_before_it_is_known_which_addresses_pods_have() {
        let mut state = state();
        state.set_demand(Demand::default());
        state.view.apply_block(Ok(watcher::Event::InitDone), Instant::now());
        state.view.apply_lease(Ok(watcher::Event::InitDone), Instant::now());
        scarce(&mut state);
        // Another block is free now, and no survey has looked who has its addresses.
        let wider: AddressPoolSpec = serde_json::from_value(
            json!({"ranges": [{"subnet": "10.20.0.0/28"}], "blockSize": {"ipv4": 30}}),
        )
        .unwrap();
        let key = PoolKey::Network("storage".parse().unwrap());
        let demand = Demand { pools: [(key, wider)].into(), ..state.view.demand.clone() };
        state.set_demand(demand);
        let creates =
            |state: &State| state.requests.in_flight.iter().any(|action| action.starts_with("create "));
        for _ in 0..2 {
            state.plan();
            assert!(!creates(&state) && state.surveying.len() == 1, "one survey at a time");
        }
        state.view.survey.pass(&state.view.demand);
        state.plan();
        assert!(creates(&state));
    }

    fn lease(uid: &str, node: Option<&str>, deleted: bool) -> watcher::Event<DynamicObject> {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        let lease = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease",
            "metadata": {"name": "storage.10.20.0.2", "uid": "u", "resourceVersion": "7",
                "finalizers": [netclaim_api::addresses::BLOCK_FINALIZER], "deletionTimestamp": deleted},
            "spec": {"networkName": "storage", "address": "10.20.0.2",
                "holder": {"kind": "ResourceClaim", "namespace": "shop", "name": "c", "uid": uid}},
            "status": {"nodeName": node}});
        watcher::Event::Apply(serde_json::from_value(lease).unwrap())
    }

    /// What `collect` begins.
    fn collected(state: &mut State, claims: &Claims) -> Vec<String> {
        state.collect(claims);
        std::mem::take(&mut state.requests.in_flight).into_iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_said_to_use_an_address_without_the_claim_loses_it() {
        let (mut state, mut claims) = (state(), claims::tests::listed(&[]));
        state.view.leases.apply(lease("none", Some("a"), false), Instant::now());
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
    async fn a_lease_from_before_the_controller_keeps_what_it_said() {
        let (mut state, claims) = (state(), claims::tests::listed(&[]));
        let watcher::Event::Apply(object) = lease("none", Some("a"), false) else { unreachable!() };
        state.view.leases.apply(watcher::Event::InitApply(object), Instant::now());
        state.view.leases.apply(watcher::Event::InitDone, Instant::now());
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(collected(&mut state, &claims), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_of_a_claim_that_does_not_exist_goes() {
        let (mut state, claims) = (state(), claims::tests::listed(&[]));
        state.view.leases.apply(lease("none", None, false), Instant::now());
        assert_eq!(collected(&mut state, &claims), ["delete AddressLease storage.10.20.0.2"]);
        state.view.leases.apply(lease("none", Some("a"), true), Instant::now());
        assert_eq!(collected(&mut state, &claims), [""; 0], "a pod may have the address");
        state.view.leases.apply(lease("none", None, true), Instant::now());
        assert_eq!(collected(&mut state, &claims), ["release AddressLease storage.10.20.0.2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_confirmed_if_its_address_is_reserved_and_its_claim_is_on_its_node() {
        let (mut state, claims) = (state(), claims::tests::listed(&[("u7", "a"), ("u8", "b")]));
        scarce(&mut state);
        state.view.leases.apply(lease("u7", Some("a"), false), Instant::now());
        assert_eq!(collected(&mut state, &claims), [""; 0], "it is not reserved");
        let reserved = |pool: &mut AddressPoolSpec| pool.reserved = vec!["10.20.0.2".parse().unwrap()];
        state.view.demand.pools.values_mut().for_each(reserved);
        assert_eq!(collected(&mut state, &claims), ["confirm AddressLease storage.10.20.0.2"]);
        state.view.leases = Leases::default();
        state.view.leases.apply(lease("u8", Some("a"), false), Instant::now());
        assert_eq!(collected(&mut state, &claims), [""; 0], "its claim is on another node");
    }

    #[tokio::test(start_paused = true)]
    async fn leases_whose_requests_get_no_answer_delay_no_block() {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let mut state = state();
        state.requests = Requests::new(Writes::new(Client::new(service, "default")));
        let reference =
            |n: usize| LeaseRef { name: format!("l{n}"), uid: "u".into(), resource_version: "7".into() };
        for n in 0..100 {
            state.requests.push(Action::DeleteLease { lease: reference(n), holder: None });
        }
        state.requests.start();
        let spec = json!({"networkName": "storage", "nodeName": "a", "cidr": "10.20.0.0/28"});
        state.requests.push(Action::Create(serde_json::from_value(spec).unwrap()));
        state.requests.start();
        assert_eq!(state.requests.leases.running.len(), LEASE_ACTIONS);
        // The requests are not answered, and all are given up.
        let mut unanswered = Vec::new();
        let mut seen = Vec::new();
        while seen.last().is_none_or(|path: &String| !path.ends_with("addressblocks")) {
            let (request, reply) = requests.next_request().await.unwrap();
            seen.push(request.uri().path().to_owned());
            unanswered.push(reply);
        }
        assert!(seen.len() <= LEASE_ACTIONS + 1, "{seen:?}");
        let (action, result) = state.requests.leases.running.join_next().await.unwrap().unwrap();
        assert!(matches!(action, Action::DeleteLease { .. }));
        assert!(result.unwrap_err().to_string().contains("no answer"));
    }
}
