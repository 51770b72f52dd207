//! Sets networks up on the node and takes them down again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use netclaim_api::NetworkName;
use netclaim_api::network::{ClaimNetworkSpec, OnNode};
use netclaim_api::reasons::NodeEvent;
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_driver::attach::{Attacher, CniPlugins, Phase, Spec};
use tokio::sync::watch;
use tokio::time::Instant;

use super::NodeNetworks;
use super::decisions::{Absent, Decision, Idle, Journalled, Known, outdated};
use super::metrics::SetUpMetrics;
use super::owner::{NodeOwner, NodeSandbox, Plan};
use super::states::{State, made};
use crate::devices::availability::Unavailable;
use crate::gate::keeper::GateKeeper;
use crate::inventory::{Inventory, node_scope};
use crate::repair::is_repaired;
use crate::reports::Events;

/// Delay before a DEL that has failed is waited for again.
const RELEASE_AGAIN: Duration = Duration::from_secs(5);
/// Interval of looks without an event: whether what was made is still there.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// Keeps what the pods of the node need.
pub(crate) struct Keeper {
    pub(crate) networks: Arc<NodeNetworks>,
    /// The attachments of pods.
    pub(crate) pods: Arc<Attacher<CniPlugins, GateKeeper>>,
    pub(crate) sandbox: NodeSandbox,
    pub(crate) inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// The Node object's name, and its UID.
    pub(crate) node: String,
    pub(crate) node_uid: watch::Receiver<Option<String>>,
    pub(crate) events: Events,
    pub(crate) metrics: SetUpMetrics,
}

/// What goes on.
#[derive(Default)]
struct Work {
    idle: Idle,
    leaving: BTreeSet<NetworkName>,
    releases: FuturesUnordered<BoxFuture<'static, NetworkName>>,
    /// Those whose attacher knows the node as a sandbox.
    told: BTreeSet<NetworkName>,
    refused: BTreeSet<NetworkName>,
    /// Those with a metric.
    shown: BTreeSet<NetworkName>,
}

impl Keeper {
    /// Runs until it is dropped. `unavailable` are the ClaimNetworks that cannot serve a pod because of it.
    pub(crate) async fn run(mut self, unavailable: watch::Sender<Arc<Unavailable>>) {
        let (mut plans, mut states) = (self.pods.changes(), self.networks.observer.states());
        let mut work = Work::default();
        loop {
            states.mark_unchanged();
            plans.mark_unchanged();
            let all = self.look(&work);
            for (name, record) in all.iter().filter_map(|(name, known)| Some((name, known.record.as_ref()?)))
            {
                self.networks.observer.lost(name, record.has_lost_a_link);
            }
            let (decisions, again) = work.idle.decide(&all, Instant::now());
            let mut refused = BTreeSet::new();
            for (name, decision) in decisions {
                let refusal = match decision {
                    Decision::SetUp(spec) => self.set_up(&name, *spec, &mut work).await.err(),
                    Decision::TakeDown => {
                        self.take_down(name, &mut work);
                        continue;
                    }
                    Decision::Refuse(why) => Some(why),
                };
                if refusal.is_some() {
                    self.networks.observer.refused(&name, refusal);
                    refused.insert(name);
                }
            }
            for name in std::mem::replace(&mut work.refused, refused).difference(&work.refused) {
                if all.get(name).is_none_or(|known| known.record.is_none() && !known.is_wanted) {
                    self.networks.observer.refused(name, None);
                }
            }
            self.tell(&all, &mut work);
            self.report(&outdated(&all), &unavailable);
            self.metrics.show(&self.networks.observer.states().borrow(), &mut work.shown);
            let look = Instant::now() + LOOK_INTERVAL;
            tokio::select! {
                Ok(()) = plans.changed() => {}
                Ok(()) = states.changed() => {}
                Ok(()) = self.inventory.changed() => {}
                Some(gone) = work.releases.next() => {
                    work.leaving.remove(&gone);
                    work.told.remove(&gone);
                }
                () = tokio::time::sleep_until(again.map_or(look, |again| again.min(look))) => {}
            }
        }
    }

    /// Looks at plans, the journal and what the node has today.
    fn look(&self, work: &Work) -> BTreeMap<NetworkName, Known> {
        let mut all = BTreeMap::<NetworkName, Known>::new();
        self.networks.attacher.for_each_pod(|state| {
            let Some(record) = state.records.first() else { return };
            let owner = &record.plan.owner;
            let lost =
                |name: &str| name.parse().is_ok_and(|name| self.networks.links.index_of(&name).is_none());
            let is_made =
                matches!(&record.phase, Phase::Attached { sandbox, .. } if sandbox.id == self.sandbox.id());
            let journalled = Journalled {
                spec: record.plan.spec.clone(),
                idle: Duration::from_secs(owner.idle_seconds.into()),
                is_leaving: work.leaving.contains(&owner.claim_network),
                has_lost_a_link: is_made && made(record).any(lost),
            };
            all.entry(owner.claim_network.clone()).or_default().record = Some(journalled);
        });
        let inventory = self.inventory.borrow().clone();
        let is_repaired =
            |network: &str| inventory.as_deref().is_some_and(|inventory| is_repaired(inventory, network));
        self.pods.for_each_pod(|state| {
            for record in state.records.iter().filter(|record| record.plan.owner.needs_node_network) {
                if let Ok(name) = record.plan.network.parse() {
                    let known = all.entry(name).or_default();
                    known.is_wanted = true;
                    let is_in_use = record.phase != Phase::Planned;
                    let is_broken = record.is_broken() || record.is_on_trial();
                    known.is_in_use |= is_in_use;
                    known.is_of_use |= is_in_use && !(is_broken && is_repaired(&record.plan.network));
                }
            }
        });
        for (name, known) in &mut all {
            known.today = inventory.as_deref().map(|inventory| today(name, inventory, &self.node));
        }
        all
    }

    async fn set_up(&self, name: &NetworkName, spec: Spec, work: &mut Work) -> Result<(), String> {
        let inventory = self.inventory.borrow().clone();
        let node = inventory.as_ref().and_then(|inventory| inventory.networks.get(name)?.node.as_ref());
        let idle_seconds = node.map(|node| node.idle_seconds).unwrap_or_default();
        let owner = NodeOwner { claim_network: name.clone(), idle_seconds };
        let plan = Plan { owner, index: 0, of: 1, finalizes: None, network: name.to_string(), spec };
        self.networks.attacher.prepare(vec![plan]).await.map_err(|failure| failure.message)?;
        self.networks.attacher.sandbox_up(self.sandbox.of(name));
        work.told.insert(name.clone());
        Ok(())
    }

    fn take_down(&self, name: NetworkName, work: &mut Work) {
        let attacher = Arc::clone(&self.networks.attacher);
        work.leaving.insert(name.clone());
        work.releases.push(Box::pin(async move {
            // The attacher goes on by itself. It answers the first failure, and this waits for the end.
            while let Err(failure) = attacher.release(name.as_str()).await {
                tracing::warn!(network = %name, error = failure.message, "cannot take a network down on the node: trying again");
                tokio::time::sleep(RELEASE_AGAIN).await;
            }
            name
        }));
    }

    /// Tells the attacher of the node where an earlier agent has left a record that is wanted.
    fn tell(&self, all: &BTreeMap<NetworkName, Known>, work: &mut Work) {
        for (name, known) in all.iter().filter(|(_, known)| known.is_wanted && known.record.is_some()) {
            let is_leaving = known.record.as_ref().is_some_and(|record| record.is_leaving);
            if !is_leaving && work.told.insert(name.clone()) {
                self.networks.attacher.sandbox_up(self.sandbox.of(name));
            }
        }
    }

    /// Reports what cannot serve pods, and writes an event where that is new.
    fn report(&self, outdated: &BTreeSet<NetworkName>, unavailable: &watch::Sender<Arc<Unavailable>>) {
        let mut now = Unavailable::new();
        for (name, state) in &*self.networks.observer.states().borrow() {
            if let State::Failed(why) = state {
                let message = format!("the network is not set up on the node (spec.node): {why}");
                now.insert(name.clone(), Unhealthy::new(Reason::NotReady, message));
            }
        }
        for name in outdated {
            let message = "pods are here for which the network was set up otherwise (spec.node), by an earlier ClaimNetwork of this name \
                           or on another uplink: delete them";
            now.entry(name.clone()).or_insert_with(|| Unhealthy::new(Reason::NotReady, message));
        }
        unavailable.send_if_modified(|before| {
            for (name, unhealthy) in now.iter().filter(|(name, _)| !before.contains_key(*name)) {
                tracing::warn!(network = %name, "{unhealthy}");
                let note = format!("ClaimNetwork {name}: {unhealthy}");
                self.events.warn_own_node(&self.node, &self.node_uid, NodeEvent::NodeNetworkFailed, note);
            }
            let is_new = **before != now;
            *before = Arc::new(now);
            is_new
        });
    }
}

/// Returns how the ClaimNetwork would be set up on the node now.
fn today(name: &NetworkName, inventory: &Inventory, node: &str) -> Result<Spec, Absent> {
    let spec: &ClaimNetworkSpec = inventory.networks.get(name).ok_or(Absent::Gone)?;
    let on_node = spec.node.as_ref().ok_or(Absent::Gone)?;
    let scope = node_scope(name.as_str(), node, &inventory.labels, inventory.uplink_of(spec));
    let resolved = on_node.resolve(name, &scope);
    let OnNode { interface, conflist } =
        resolved.map_err(|problem| Absent::Unresolved(problem.to_string()))?;
    Ok(Spec {
        tenant: String::new(),
        if_name: interface,
        conflist,
        args: BTreeMap::new(),
        capability_args: Default::default(),
        wire: Default::default(),
    })
}
