//! Wakes pods that the kubelet would look at again after 60 to 90 s only (a Prepare that failed) or after 10
//! to 15 s (a container that was refused because its network was not there yet).
//!
//! A changed annotation makes the kubelet look at a pod at once. The agent knows best when that is of use:
//! the kubelet has registered the driver, a claim has been released, the node has got addresses that a claim
//! was refused for, the networks of a pod are there, or the kubelet has a pod with a claim and no Prepare
//! comes.
//!
//! | module | what it does |
//! |---|---|
//! | `schedule`, `bucket` | decide which pods to wake and when; pure |
//! | `patch` | looks whether a claim is this driver's, and writes the annotation |
//! | `observed` | tells the waker of the kubelet's calls |

mod bucket;
pub(crate) mod metrics;
mod observed;
mod patch;
mod schedule;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use observed::Observed;
use patch::Outcome;
pub(crate) use patch::Patcher;
use schedule::{ClaimName, Schedule};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::metrics::{WakeCause, WakeMetrics};
use crate::pods::owner::ObjectRef;
use crate::pods::{Change, NodePods, SeenPod};

/// How long the kubelet's own list of pods is waited for before the API server is asked: a kubelet that
/// starts needs a moment.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(5);

/// An event of claims and pods.
#[derive(Debug)]
enum Event {
    Asked(Vec<ClaimName>),
    Releasing(ClaimName),
    Released(Released),
    Registered,
    Attached(ObjectRef),
    Blocked(ObjectRef, ClaimName),
    Supplied(ObjectRef),
    Late(ObjectRef),
}

/// A claim that has been released.
#[derive(Debug, Clone)]
struct Released {
    claim: ClaimName,
    /// UID of the pod that had it.
    holder: Option<String>,
}

/// Tells what may be a reason to wake a pod.
#[derive(Debug, Clone)]
pub(crate) struct Waker(mpsc::UnboundedSender<Event>);

/// Where the [`Waking`] part hears of it.
pub(crate) struct Events(mpsc::UnboundedReceiver<Event>);

#[cfg(test)]
impl Events {
    /// Returns the UIDs of the pods that were blocked, each with the name of the claim.
    pub(crate) fn blocked(&mut self) -> Vec<(String, String)> {
        let events = std::iter::from_fn(|| self.0.try_recv().ok());
        let blocked = events.filter_map(|event| match event {
            Event::Blocked(pod, (_, claim)) => Some((pod.uid, claim)),
            _ => None,
        });
        blocked.collect()
    }

    /// Returns the UID of the next pod for which there are addresses now.
    pub(crate) async fn supplied(&mut self) -> String {
        loop {
            if let Event::Supplied(pod) = self.0.recv().await.expect("a waker") {
                return pod.uid;
            }
        }
    }
}

/// Returns both ends.
pub(crate) fn channel() -> (Waker, Events) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Waker(sender), Events(receiver))
}

impl Waker {
    /// The networks of a pod are there, after the runtime has refused a container of it.
    pub(crate) fn attached(&self, pod: ObjectRef) {
        self.tell(Event::Attached(pod));
    }

    /// A pod got no Prepare, because the pod of the claim `by` has what it needs.
    pub(crate) fn blocked(&self, pod: ObjectRef, by: &ObjectRef) {
        self.tell(Event::Blocked(pod, (by.namespace.clone(), by.name.clone())));
    }

    /// The node has got addresses, after a claim of the pod was refused for lack of them.
    pub(crate) fn supplied(&self, pod: ObjectRef) {
        self.tell(Event::Supplied(pod));
    }

    /// A claim was released without the kubelet, as one of a NetworkAttachment is.
    pub(crate) fn released(&self, claim: &ObjectRef, holder: &ObjectRef) {
        let claim = (claim.namespace.clone(), claim.name.clone());
        self.tell(Event::Released(Released { claim, holder: Some(holder.uid.clone()) }));
    }

    fn tell(&self, event: Event) {
        // Where waking is switched off, there is no receiver.
        let _ = self.0.send(event);
    }
}

/// Where the node's pods are known from.
enum Source {
    /// Not known yet, at the latest until then.
    Unknown(Instant),
    /// The kubelet reports every change.
    Kubelet,
    /// The API server is asked for the node's pods upon a registration, and for the claim upon its release.
    ApiServer,
}

/// Reasons that wait for a list of the node's pods.
#[derive(Default)]
struct Pending {
    registered: bool,
    released: Vec<Released>,
}

/// Wakes pods.
pub(crate) struct Waking<P> {
    pub(crate) pods: Arc<NodePods>,
    pub(crate) patcher: Patcher,
    /// Whether attachments of a pod, or of an earlier pod with its claims, are journalled.
    pub(crate) is_held: P,
    pub(crate) metrics: WakeMetrics,
}

impl<P: Fn(&SeenPod) -> bool + Send + Sync + 'static> Waking<P> {
    /// Wakes pods until dropped.
    pub(crate) async fn run(self, mut events: Events, mut changes: mpsc::UnboundedReceiver<Change>) {
        let mut schedule = Schedule::new();
        let mut source = Source::Unknown(Instant::now() + KUBELET_TIMEOUT);
        let mut pending = Pending::default();
        let mut patches: JoinSet<(String, Outcome)> = JoinSet::new();
        let mut lookups: JoinSet<Vec<ObjectRef>> = JoinSet::new();
        let patcher = Arc::new(self.patcher.clone());
        loop {
            let now = Instant::now();
            for wake in schedule.due(now) {
                let patcher = Arc::clone(&patcher);
                let metrics = self.metrics.clone();
                patches.spawn(async move {
                    let outcome = patcher.wake(&wake).await;
                    if let Some(result) = outcome.counted() {
                        metrics.woken(wake.cause, result);
                    }
                    (wake.pod.uid, outcome)
                });
            }
            if pending.is_there() {
                match source {
                    Source::Kubelet if !pending.registered => pending.apply(&mut schedule, now),
                    // For a pod that was there before this agent, the kubelet does not report the names of
                    // all claims.
                    Source::Kubelet | Source::ApiServer => {
                        for Released { claim, holder } in pending.released.clone() {
                            let patcher = Arc::clone(&patcher);
                            lookups.spawn(async move { patcher.next_pods(&claim, holder.as_deref()).await });
                        }
                        if pending.registered
                            && let Some(pods) = self.pods.with_claims().await
                        {
                            schedule.replace(self.with_state(pods), Instant::now());
                        }
                        pending.apply(&mut schedule, Instant::now());
                        continue;
                    }
                    Source::Unknown(_) => {}
                }
            }
            let next = match source {
                Source::Unknown(until) => Some(schedule.next(now).map_or(until, |next| next.min(until))),
                Source::Kubelet | Source::ApiServer => schedule.next(now),
            };
            tokio::select! {
                event = events.0.recv() => match event {
                    Some(event) => take(event, &mut schedule, &mut pending),
                    // Without the agent's other parts there is nothing to wake for.
                    None => return,
                },
                Some(change) = changes.recv() => self.follow(change, &mut source, &mut schedule),
                Some(done) = patches.join_next() => {
                    if let Ok((uid, outcome)) = done && outcome.is_final() {
                        schedule.over(&uid);
                    }
                }
                Some(found) = lookups.join_next() => {
                    for pod in found.into_iter().flatten() {
                        schedule.next_of_claim(pod, Instant::now());
                    }
                }
                () = sleep_until(next) => {
                    if matches!(source, Source::Unknown(until) if until <= Instant::now()) {
                        source = Source::ApiServer;
                    }
                }
            }
        }
    }

    fn follow(&self, change: Change, source: &mut Source, schedule: &mut Schedule) {
        let now = Instant::now();
        match change {
            Change::All(pods) => {
                *source = Source::Kubelet;
                schedule.follow(true);
                schedule.replace(self.with_state(pods), now);
            }
            Change::Pod(seen) => {
                let is_held = (self.is_held)(&seen);
                schedule.seen(seen, is_held, now);
            }
            Change::Gone(uid) => schedule.gone(&uid),
            Change::Lost => {
                schedule.follow(false);
                if matches!(source, Source::Kubelet) {
                    *source = Source::Unknown(now + KUBELET_TIMEOUT);
                }
            }
            Change::Absent => {
                schedule.follow(false);
                *source = Source::ApiServer;
            }
        }
    }

    fn with_state(&self, pods: Vec<SeenPod>) -> Vec<(SeenPod, bool)> {
        let with_state = |seen: SeenPod| {
            let is_held = (self.is_held)(&seen);
            (seen, is_held)
        };
        pods.into_iter().map(with_state).collect()
    }
}

fn take(event: Event, schedule: &mut Schedule, pending: &mut Pending) {
    let now = Instant::now();
    match event {
        Event::Asked(claims) => schedule.asked(claims, now),
        Event::Releasing(claim) => schedule.releasing(claim),
        Event::Released(released) => pending.released.push(released),
        Event::Registered => pending.registered = true,
        Event::Attached(pod) => schedule.attached(pod, now),
        Event::Blocked(pod, by) => schedule.blocked(pod, by),
        Event::Supplied(pod) => schedule.can_be_prepared(pod, WakeCause::Supplied, now),
        Event::Late(pod) => schedule.can_be_prepared(pod, WakeCause::Late, now),
    }
}

impl Pending {
    fn is_there(&self) -> bool {
        self.registered || !self.released.is_empty()
    }

    fn apply(&mut self, schedule: &mut Schedule, now: Instant) {
        let Self { registered, released } = std::mem::take(self);
        if registered {
            schedule.registered(now);
        }
        for Released { claim, .. } in released {
            schedule.released(&claim, now);
        }
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
