//! Keeps what claims were granted free of the traffic of pods that were granted nothing
//! (`spec.bandwidth.unrequested`).
//!
//! ```text
//!   journalled plans ─┐                        ┌─ before a pod's containers start
//!   inventory ────────┴─> rates (pure) ────────┼─ when plans or the inventory change
//!                                              └─ now and then: the kernel has what it should
//! ```
//!
//! * What each attachment may send and receive follows from the plans, so nothing is journalled.
//! * The limits are those of the plugin `netclaim-bandwidth`, set in the pods' network namespaces. They stay
//!   while the agent is away.
//! * A part that shrinks for a pod that comes does so while the pod is being prepared. The pod's own
//!   containers do not start without their limits.

mod rates;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use netclaim_bandwidth::Limits;
use netclaim_driver::attach::{Attach, Attacher, Failure, Observer, Phase, Sandbox};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until};

pub(crate) use self::rates::Rate;
use self::rates::{is_needed, own_limits, rates};
use crate::gate::keeper::Limit;
use crate::inventory::Inventory;
use crate::pods::owner::{Owner, Plan, PodState, Record};

/// How often all limits are set again: a process of the pod that may change them has no more from it for
/// longer.
const AGAIN: Duration = Duration::from_secs(60);
/// Pods that come at once change the parts once.
const SETTLED: Duration = Duration::from_millis(20);
/// Namespaces that are entered at once.
const AT_ONCE: usize = 8;

/// An attachment, by its pod's UID and its key.
type Attachment = (String, String);

/// What was set, and in which sandbox.
type Set = HashMap<Attachment, (String, Limits)>;

/// Limits attachments on ports with guaranteed bandwidth.
pub(crate) struct Guarantee<N, O: Observer<Owner = Owner>> {
    /// What is journalled. The attacher has the guarantee, by its observer.
    attacher: Weak<Attacher<N, O>>,
    inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// Held from the look at the plans until limits by them are set.
    set: Mutex<Set>,
}

/// A limit to set.
struct Due {
    of: Attachment,
    if_name: String,
    sandbox: Sandbox,
    /// `None`: what the plugins have made.
    rate: Option<Rate>,
    limits: Limits,
}

impl<N: Attach, O: Observer<Owner = Owner>> Guarantee<N, O> {
    /// Limits what the attacher has.
    pub(crate) fn new(
        attacher: &Arc<Attacher<N, O>>,
        inventory: watch::Receiver<Option<Arc<Inventory>>>,
    ) -> Arc<Self> {
        Arc::new(Self { attacher: Arc::downgrade(attacher), inventory, set: Mutex::default() })
    }

    /// Keeps the limits until the agent ends.
    pub(crate) async fn run(self: Arc<Self>) {
        let attacher = self.attacher.upgrade();
        let Some((mut changes, mut opened)) = attacher.map(|known| (known.changes(), known.opened())) else {
            return;
        };
        let (mut inventory, mut again) = (self.inventory.clone(), Instant::now());
        // An earlier agent may have set limits that nobody wants any more.
        let mut is_first = true;
        loop {
            changes.mark_unchanged();
            opened.mark_unchanged();
            let known = inventory.borrow_and_update().clone();
            let is_known = known.is_some();
            if let Some(known) = known {
                let is_due = again <= Instant::now();
                self.update(&known, is_first, is_due).await;
                is_first = false;
                if is_due {
                    again = Instant::now() + AGAIN;
                }
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                // What has changed while its limit was being set has passed it over.
                changed = opened.changed() => if changed.is_err() { return },
                changed = inventory.changed() => if changed.is_err() { return },
                // Without an inventory there is nothing to do again.
                () = sleep_until(again), if is_known => {}
            }
            tokio::time::sleep(SETTLED).await;
        }
    }

    /// Sets the limits that differ from what was set, or all of them `again`.
    async fn update(&self, inventory: &Inventory, is_first: bool, again: bool) {
        let mut set = self.set.lock().await;
        if !is_first && set.is_empty() && !is_needed(inventory) {
            return;
        }
        let Some(attacher) = self.attacher.upgrade() else { return };
        let (plans, mut attached) = (attacher.all_plans(), Vec::new());
        attacher.for_each_pod(|state| attached.extend(state.attachments().cloned()));
        let rates = of_plans(inventory, &plans);
        let due = attached.iter().filter_map(|record| {
            let rate = rates.get(&key(&record.plan)).copied().flatten();
            due(record, rate).filter(|due| is_first && is_unplanned(record, rate) || due.is_due(&set, again))
        });
        let due: Vec<Due> = due.collect();
        set.retain(|of, _| rates.contains_key(of));
        for failure in set_all(due, &mut set).await {
            tracing::warn!(error = %failure, "cannot limit a pod on a link with guaranteed bandwidth: trying again");
        }
    }

    /// Limits a pod all of whose attachments are made. One may have been made again since it was limited.
    async fn limit_pod(&self, state: &PodState) -> Result<(), Failure> {
        // Without a word of the API server since its start, the agent goes on with what is journalled.
        let Some(inventory) = self.inventory.borrow().clone().filter(|known| is_needed(known)) else {
            return Ok(());
        };
        let Some(attacher) = self.attacher.upgrade() else { return Ok(()) };
        let mut set = self.set.lock().await;
        let rates = of_plans(&inventory, &attacher.all_plans());
        let due = state.attachments().filter_map(|record| {
            due(record, rates.get(&key(&record.plan)).copied().flatten()).filter(|due| due.is_due(&set, true))
        });
        let due: Vec<Due> = due.collect();
        set_all(due, &mut set).await.into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns what is shared out, by the pod's UID and the attachment's key.
    pub(crate) fn shares(&self) -> HashMap<Attachment, u64> {
        let inventory = self.inventory.borrow().clone();
        let Some((inventory, attacher)) = inventory.zip(self.attacher.upgrade()) else {
            return HashMap::new();
        };
        let of = |(of, rate)| match rate {
            Some(Rate::Share(share)) => Some((of, share)),
            _ => None,
        };
        of_plans(&inventory, &attacher.all_plans()).into_iter().filter_map(of).collect()
    }
}

impl<N: Attach, O: Observer<Owner = Owner>> Limit for Guarantee<N, O> {
    fn limit<'a>(&'a self, state: &'a PodState) -> BoxFuture<'a, Result<(), Failure>> {
        self.limit_pod(state).boxed()
    }
}

fn key(plan: &Plan) -> Attachment {
    (plan.owner.pod.uid.clone(), plan.key())
}

fn of_plans(inventory: &Inventory, plans: &[Arc<Plan>]) -> HashMap<Attachment, Option<Rate>> {
    let plans = plans.iter().map(|plan| &**plan);
    plans.clone().map(key).zip(rates(inventory, plans)).collect()
}

/// Whether an earlier agent may have limited what nothing limits now. What was granted is its plugin's, and a
/// CHECK says what has become of it.
fn is_unplanned(record: &Record, rate: Option<Rate>) -> bool {
    rate.is_none() && record.plan.owner.bandwidth.is_none_or(|granted| granted.value() == 0)
}

fn due(record: &Record, rate: Option<Rate>) -> Option<Due> {
    let Phase::Attached { sandbox, .. } = &record.phase else { return None };
    let plan = &record.plan;
    let limits = rate.map_or_else(|| own_limits(plan), |rate| rate.limits(plan));
    let if_name = plan.spec.if_name.to_string();
    Some(Due { of: key(plan), if_name, sandbox: sandbox.clone(), rate, limits })
}

impl Due {
    /// Whether another limit was set, or none.
    fn is_due(&self, set: &Set, again: bool) -> bool {
        match set.get(&self.of) {
            Some((sandbox, limits)) => {
                self.rate.is_none() || again || *sandbox != self.sandbox.id || *limits != self.limits
            }
            None => self.rate.is_some(),
        }
    }

    async fn set(&self) -> Result<(), Failure> {
        let (if_name, limits) = (self.if_name.clone(), self.limits);
        let set = if self.rate.is_some() { netclaim_bandwidth::share } else { netclaim_bandwidth::restore };
        let netns = self.sandbox.open_netns()?;
        let set = netns.run(move || set(&if_name, &limits)).await;
        set.map_err(|error| Failure::of(&error))?.map_err(|error| {
            let failure = Failure::of(&error);
            Failure::new(format!(
                "bandwidth of interface {} cannot be limited: {}",
                self.if_name, failure.message
            ))
        })
    }
}

/// Sets limits, and notes which. Returns why attachments could not be limited.
async fn set_all(due: Vec<Due>, set: &mut Set) -> Vec<Failure> {
    let outcomes = futures::stream::iter(due.into_iter().map(|due| async {
        let outcome = due.set().await;
        (due, outcome)
    }));
    let outcomes: Vec<_> = outcomes.buffer_unordered(AT_ONCE).collect().await;
    let mut failures = Vec::new();
    for (Due { of, sandbox, rate, limits, .. }, outcome) in outcomes {
        match (outcome, rate) {
            (Ok(()), Some(_)) => drop(set.insert(of, (sandbox.id, limits))),
            (Ok(()), None) => drop(set.remove(&of)),
            // What was set is unknown now.
            (Err(failure), Some(_)) => {
                set.remove(&of);
                failures.push(failure);
            }
            (Err(failure), None) => tracing::debug!(error = %failure, "cannot remove a pod's share yet"),
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use netclaim_bandwidth::Limit;

    use super::*;
    use crate::fixtures::attached;

    #[test]
    fn what_is_due_is_set_once_and_again_when_it_may_be_gone() {
        let record = attached("a", "s1");
        let due = |rate: Option<u64>| due(&record, rate.map(Rate::Share)).expect("it is attached");
        let (mut set, shares) = (Set::new(), due(Some(80)));
        assert!(shares.is_due(&set, false) && !due(None).is_due(&set, true));
        set.insert(shares.of.clone(), ("s1".to_owned(), shares.limits));
        assert!(!due(Some(80)).is_due(&set, false) && due(Some(80)).is_due(&set, true));
        assert!(due(Some(800)).is_due(&set, false) && due(None).is_due(&set, false), "another, or none");
        set.insert(shares.of, ("s0".to_owned(), shares.limits));
        assert!(due(Some(80)).is_due(&set, false), "another sandbox");
        assert_eq!(due(Some(80)).limits.egress, Some(Limit::of_rate(80)));
    }

    #[test]
    fn what_an_earlier_agent_limited_is_looked_for_where_nothing_was_granted() {
        let mut record = attached("a", "s1");
        assert!(is_unplanned(&record, None) && !is_unplanned(&record, Some(Rate::Share(8))));
        Arc::make_mut(&mut record.plan).owner.bandwidth = Some(netclaim_api::Quantity::new(8));
        assert!(!is_unplanned(&record, None));
    }
}
