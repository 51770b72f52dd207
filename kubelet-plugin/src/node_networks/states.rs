//! What has become of each ClaimNetwork that is set up on the node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use netclaim_api::NetworkName;
use netclaim_driver::attach::{Failure, Observer, Phase, PodState};
use tokio::sync::watch;

use super::owner::{NodeOwner, Plan, Record};

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It is being set up or taken down.
    Working,
    /// It is set up.
    Ready,
    /// It is not, and that is tried again. The text says why.
    Failed(String),
}

/// Those that are set up, are to be, or are not yet taken down.
pub(crate) type States = BTreeMap<NetworkName, State>;

/// The names of the links that were made for each.
pub(crate) type MadeLinks = BTreeMap<NetworkName, BTreeSet<String>>;

/// Why nothing is attached to what has lost a link.
const LINK_LOST: &str =
    "a link that was made is gone: it is made again when no pod is on it, or all have broken (spec.repair)";

/// How long an ADD of a pod waits before it says why.
const READY_WAIT: Duration = Duration::from_secs(10);

/// Tells when a ClaimNetwork is set up.
#[derive(Debug, Clone)]
pub(crate) struct Readiness(pub(super) watch::Receiver<States>);

impl Default for Readiness {
    /// Of a node where nothing is set up.
    fn default() -> Self {
        Self(watch::channel(States::new()).1)
    }
}

impl Readiness {
    /// Waits until the ClaimNetwork is set up.
    ///
    /// # Errors
    /// Why it is not, so far.
    pub(crate) async fn of(&self, network: &NetworkName) -> Result<(), Failure> {
        let mut states = self.0.clone();
        let is_ready = |states: &States| states.get(network) == Some(&State::Ready);
        if let Ok(Ok(_)) = tokio::time::timeout(READY_WAIT, states.wait_for(is_ready)).await {
            return Ok(());
        }
        let why = match self.0.borrow().get(network) {
            Some(State::Failed(why)) => why.clone(),
            _ => "its plugins have not ended yet".to_owned(),
        };
        Err(Failure::new(format!("ClaimNetwork {network} is not set up on the node (spec.node): {why}")))
    }
}

/// Notes every change.
#[derive(Default)]
pub(crate) struct NodeObserver {
    states: watch::Sender<States>,
    links: watch::Sender<MadeLinks>,
}

impl NodeObserver {
    pub(super) fn states(&self) -> watch::Receiver<States> {
        self.states.subscribe()
    }

    pub(super) fn links(&self) -> watch::Receiver<MadeLinks> {
        self.links.subscribe()
    }

    /// Notes whether a link is gone that was made: until it is made again, no pod is attached.
    pub(super) fn lost(&self, network: &NetworkName, is_lost: bool) {
        let lost = State::Failed(LINK_LOST.to_owned());
        self.states.send_if_modified(|states| {
            let Some(state) = states.get_mut(network) else { return false };
            let now = match &*state {
                State::Ready if is_lost => lost,
                other if !is_lost && *other == lost => State::Ready,
                _ => return false,
            };
            *state = now;
            true
        });
    }

    /// Notes why what is wanted has not even been planned; `None` when nothing is wanted any more.
    pub(super) fn refused(&self, network: &NetworkName, why: Option<String>) {
        set(&self.states, network, why.map(State::Failed));
    }
}

/// Notes the value of a ClaimNetwork, or that it has none.
fn set<T: PartialEq + Clone>(
    all: &watch::Sender<BTreeMap<NetworkName, T>>,
    network: &NetworkName,
    value: Option<T>,
) {
    all.send_if_modified(|all| {
        let before = match &value {
            Some(value) => all.insert(network.clone(), value.clone()),
            None => all.remove(network),
        };
        before != value
    });
}

impl Observer for NodeObserver {
    type Owner = NodeOwner;

    async fn observe(&self, network: &str, state: &PodState<NodeOwner>) -> Result<(), Failure> {
        if let Ok(network) = network.parse() {
            set(&self.links, &network, state.records.first().map(links_of));
            set(&self.states, &network, state_of(state));
        }
        Ok(())
    }

    fn given_up(&self, plan: &Plan, why: &str) {
        tracing::error!(network = %plan.owner.claim_network, why, "given up: something may be left on the node");
    }
}

fn state_of(state: &PodState<NodeOwner>) -> Option<State> {
    if let Some(damaged) = &state.damaged {
        return Some(State::Failed(damaged.clone()));
    }
    let record = state.records.first()?;
    let is_here = |id: &str| state.sandbox.as_ref().is_some_and(|sandbox| sandbox.id == id);
    Some(match (&record.phase, &record.error, &record.check) {
        (Phase::Attached { .. }, _, Some(fault)) => State::Failed(format!("CHECK: {fault}")),
        (Phase::Attached { sandbox, .. }, ..) if is_here(&sandbox.id) && !state.closing => State::Ready,
        (_, Some(error), _) => State::Failed(error.clone()),
        _ => State::Working,
    })
}

/// The names of the links that a record stands for: the interface, and what was made.
fn links_of(record: &Record) -> BTreeSet<String> {
    made(record).map(str::to_owned).chain([record.plan.spec.if_name.to_string()]).collect()
}

/// The names of the links that plugins say that they have made.
pub(super) fn made(record: &Record) -> impl Iterator<Item = &str> {
    let interfaces = record.phase.result().into_iter().flat_map(|result| result.interfaces());
    interfaces.map(|interface| interface.name.as_str())
}
