//! What is to be done next for a NetworkAttachment. Pure.
//!
//! ```text
//!   Waiting ── pod runs ──> Asking ── the scheduler allocates ──> Allocated ── the agent attaches
//!      ^                      │ not within 5 s: the probe goes, later again      │
//!      │                      │                        pod gone, object or claim deleted, device evicted
//!      └── claim released <── the agent says Detached <── Revoked <──────────────┘
//! ```
//!
//! One step at a time, from what the API server stores and little else, so that each step can be repeated by
//! another replica. Two orders matter:
//! * Our reservation is in the claim before the probe is deleted. Otherwise Kubernetes deallocates the claim.
//! * A claim that an agent may have seen is released only after the agent has detached it, or its Node is
//!   gone.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use netclaim_api::network_attachment::{
    AttachmentClaim, DETACH_FINALIZER, NetworkAttachment, NetworkAttachmentStatus,
};
use netclaim_api::reasons::{AllocatedReason, AttachedReason, ConditionReason as _, Reason as _};
use tokio::time::Instant;

use crate::objects::conditions::{Finding, find};

/// How long the scheduler has for a probe.
pub(super) const ASK_TIME: Duration = Duration::from_secs(5);

/// The first pause after a failure. Each further one is twice as long.
const FIRST_RETRY: Duration = Duration::from_secs(10);

/// The longest pause after failures.
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// Time between two words about an agent that is away. One that writes although its pod is not ready would
/// answer each of them.
const AWAY_INTERVAL: Duration = Duration::from_secs(60);

/// How long a claim is kept whose NetworkAttachment is gone although an agent may have it attached: an admin
/// has removed the finalizer. The agent detaches it in this time.
pub(super) const ORPHAN_TIME: Duration = Duration::from_secs(600);

/// A pod that is to be attached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) uid: String,
    /// Its Node, once it has one.
    pub(super) node: Option<String>,
    pub(super) phase: String,
    pub(super) is_ending: bool,
    pub(super) has_host_network: bool,
    pub(super) scheduler: Option<String>,
    pub(super) is_windows: bool,
}

impl Target {
    /// Whether its containers have ended for good, and its sandbox with them.
    fn is_finished(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }
}

/// The claim of a NetworkAttachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimNow {
    pub(super) is_deleted: bool,
    /// Namespace, name and UID.
    pub(super) place: AttachmentClaim,
    pub(super) allocation: Option<Allocation>,
}

/// What the scheduler has allocated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Allocation {
    /// The only Node on which it can be used; `None` if there are several.
    pub(super) node: Option<String>,
    /// When it was allocated, and the devices: tells it from another one of the same claim.
    pub(super) devices: String,
    /// Whether it is reserved for the NetworkAttachment.
    pub(super) is_ours: bool,
    /// Whether it is reserved for something else, too: the probe.
    pub(super) is_others: bool,
}

impl ClaimNow {
    fn judged(&self) -> Option<Judged> {
        let devices = self.allocation.as_ref()?.devices.clone();
        Some(Judged { claim: self.place.uid.clone(), devices })
    }
}

/// One allocation of one claim, which may be used or not.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Judged {
    /// UID of the claim.
    claim: String,
    devices: String,
}

/// The probe pod of a NetworkAttachment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProbeNow {
    /// The Node that it is for.
    pub(super) node: String,
    pub(super) is_deleted: bool,
    /// What the scheduler says of it.
    pub(super) message: String,
}

/// What is known of a NetworkAttachment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen<'a> {
    /// `None`: it does not exist any more.
    pub(super) object: Option<&'a NetworkAttachment>,
    /// The pod of its name.
    pub(super) pod: Option<&'a Target>,
    pub(super) claim: Option<&'a ClaimNow>,
    pub(super) probe: Option<&'a ProbeNow>,
    /// Whether no agent has been ready for a while on the node of its status.
    pub(super) is_agent_away: bool,
    /// Whether the Node of its status does not exist any more.
    pub(super) is_node_gone: bool,
    /// A device of the claim that must be left, with its taint.
    pub(super) evicted: Option<&'a str>,
}

/// What this replica remembers of a NetworkAttachment. A new one does without.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    /// UID of the pod that the rest is about.
    pod: String,
    /// Since when the scheduler has had the probe.
    asked: Option<Instant>,
    failures: u32,
    problem: Option<Finding<AllocatedReason>>,
    retry: Option<Instant>,
    /// What may be used for the object.
    permitted: Option<Judged>,
    /// What may not.
    refused: Option<Judged>,
    /// Since when the object has been gone.
    gone: Option<Instant>,
    /// When the status got the word that the agent is away.
    said_away: Option<Instant>,
}

impl Memory {
    /// Notes why the devices cannot be had. They are asked for again later.
    pub(super) fn failed(&mut self, problem: Finding<AllocatedReason>, now: Instant) {
        if self.retry.is_some_and(|retry| retry + LONGEST_RETRY < now) {
            self.failures = 0;
        }
        let doubled = FIRST_RETRY.saturating_mul(1 << self.failures.min(16));
        self.retry = Some(now + doubled.min(LONGEST_RETRY));
        self.failures = self.failures.saturating_add(1);
        self.problem = Some(problem);
        self.asked = None;
    }

    /// Notes that what this claim has may be used: its devices are ours and for the object's namespace.
    pub(super) fn permit(&mut self, claim: &ClaimNow) {
        self.permitted = claim.judged();
    }

    /// Notes that what this claim has may not be used. Another claim is made later.
    pub(super) fn refuse(&mut self, claim: &ClaimNow, why: String, now: Instant) {
        self.refused = claim.judged();
        self.failed(Finding::new(AllocatedReason::Refused, why), now);
    }
}

/// The next step for a NetworkAttachment.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Nothing, until something changes or it is that time.
    Wait(Option<Instant>),
    /// Add the finalizer.
    Finalize,
    /// Create the claim from the template.
    CreateClaim,
    /// Find out whether the object's namespace may have what is allocated.
    Judge,
    /// Create the probe for a pod.
    CreateProbe(Target),
    /// Add our reservation to the claim.
    Reserve,
    /// Delete the probe at once.
    DeleteProbe,
    /// Clear allocation and reservation of the claim.
    Deallocate,
    DeleteClaim,
    /// Remove the finalizer.
    LetGo,
    Write(Change),
}

/// A change of the status.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// There are no devices, and why.
    Waiting(Finding<AllocatedReason>),
    /// There are devices for this pod on this node.
    Allocated { pod: String, node: String, claim: AttachmentClaim },
    /// The agent has to detach.
    Revoked(Finding<AllocatedReason>),
    /// Nothing is allocated or attached any more.
    Cleared,
    /// The agent of the node does not say what is attached.
    AgentAway,
}

/// Decides what to do next.
pub(super) fn next(seen: &Seen<'_>, memory: &mut Memory, now: Instant) -> Step {
    let Some(object) = seen.object else {
        let is_in_use = seen.claim.and_then(|claim| claim.allocation.as_ref()).is_some_and(|all| all.is_ours);
        let due = *memory.gone.get_or_insert(now) + ORPHAN_TIME;
        if is_in_use && now < due && seen.probe.is_none() {
            return Step::Wait(Some(due));
        }
        return undo(seen).unwrap_or(Step::Wait(None));
    };
    memory.gone = None;
    let status = object.status.clone().unwrap_or_default();
    match &status.node {
        Some(_) if is(object, AllocatedReason::TYPE, "True") => held(seen, object, &status, memory, now),
        Some(_) => revoked(seen, object, memory, now),
        None => waiting(seen, object, memory, now),
    }
}

/// Whether a condition of the object has this status.
fn is(object: &NetworkAttachment, type_: &str, status: &str) -> bool {
    let conditions = object.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == type_ && condition.status == status)
}

/// An agent attaches, or has attached.
fn held(
    seen: &Seen<'_>,
    object: &NetworkAttachment,
    status: &NetworkAttachmentStatus,
    memory: &mut Memory,
    now: Instant,
) -> Step {
    use AllocatedReason::{ClaimDeleted, Deleted, Evicted, PodGone};
    let spec = &object.spec;
    let is_same = |pod: &&Target| Some(&pod.uid) == status.pod_uid.as_ref() && !pod.is_finished();
    let is_whole = |claim: &&ClaimNow| {
        let is_ours = claim.allocation.as_ref().is_some_and(|allocation| allocation.is_ours);
        Some(&claim.place) == status.claim.as_ref() && !claim.is_deleted && is_ours
    };
    let why = if object.metadata.deletion_timestamp.is_some() {
        Some(Finding::new(Deleted, "the NetworkAttachment is being deleted"))
    } else if seen.pod.filter(is_same).is_none() {
        let pod = format!("pod {} is gone, has ended or was replaced", spec.pod_name);
        Some(Finding::new(PodGone, pod))
    } else if seen.claim.filter(is_whole).is_none() {
        let name = status.claim.as_ref().map_or("", |claim| claim.name.as_str());
        Some(Finding::new(ClaimDeleted, format!("ResourceClaim {name} was deleted or changed by somebody")))
    } else {
        seen.evicted.map(|device| Finding::new(Evicted, device))
    };
    match why {
        Some(why) => {
            // The scheduler may allocate at once what would be taken away again.
            if matches!(why.reason, Evicted | ClaimDeleted) {
                memory.pod = status.pod_uid.clone().unwrap_or_default();
                memory.failed(why.clone(), now);
            }
            Step::Write(Change::Revoked(why))
        }
        None if seen.probe.is_some_and(|probe| !probe.is_deleted) => Step::DeleteProbe,
        None => agent_away(seen, object, memory, now),
    }
}

/// Says that the agent is away, if that is news.
fn agent_away(seen: &Seen<'_>, object: &NetworkAttachment, memory: &mut Memory, now: Instant) -> Step {
    if !seen.is_agent_away {
        memory.said_away = None;
    }
    let is_known = is(object, AttachedReason::TYPE, "Unknown");
    let next = memory.said_away.map_or(now, |said| said + AWAY_INTERVAL);
    if !seen.is_agent_away || is_known {
        return Step::Wait(None);
    }
    if now < next {
        return Step::Wait(Some(next));
    }
    memory.said_away = Some(now);
    Step::Write(Change::AgentAway)
}

fn is_detached(object: &NetworkAttachment) -> bool {
    object.condition::<AttachedReason>().is_some_and(|attached| {
        attached.status == "False" && attached.reason == AttachedReason::Detached.as_str()
    })
}

/// The agent has to detach before the claim is released.
fn revoked(seen: &Seen<'_>, object: &NetworkAttachment, memory: &mut Memory, now: Instant) -> Step {
    if !is_detached(object) && !seen.is_node_gone {
        return agent_away(seen, object, memory, now);
    }
    match undo(seen) {
        Some(step) => step,
        None if object.metadata.deletion_timestamp.is_some() => let_go(object),
        None => Step::Write(Change::Cleared),
    }
}

fn has_finalizer(object: &NetworkAttachment) -> bool {
    object.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == DETACH_FINALIZER)
}

fn let_go(object: &NetworkAttachment) -> Step {
    if has_finalizer(object) { Step::LetGo } else { Step::Wait(None) }
}

/// Removes probe and claim. `None`: both are gone.
fn undo(seen: &Seen<'_>) -> Option<Step> {
    if seen.probe.is_some_and(|probe| !probe.is_deleted) {
        return Some(Step::DeleteProbe);
    }
    let Some(claim) = seen.claim else {
        return seen.probe.map(|_| Step::Wait(None));
    };
    // Kubernetes deallocates a claim by itself that only a pod has reserved.
    let is_ours = claim.allocation.as_ref().is_some_and(|all| all.is_ours && !all.is_others);
    Some(match is_ours {
        true => Step::Deallocate,
        false if claim.is_deleted => Step::Wait(None),
        false => Step::DeleteClaim,
    })
}

/// Nothing is allocated for an agent.
fn waiting(seen: &Seen<'_>, object: &NetworkAttachment, memory: &mut Memory, now: Instant) -> Step {
    if object.metadata.deletion_timestamp.is_some() {
        return undo(seen).unwrap_or_else(|| let_go(object));
    }
    let (pod, node) = match suitable(seen.pod, object) {
        Ok(found) => found,
        Err(why) => {
            *memory = Memory::default();
            return undo(seen).unwrap_or_else(|| say(object, why));
        }
    };
    if memory.pod != pod.uid {
        *memory = Memory { pod: pod.uid.clone(), ..Memory::default() };
    }
    if !has_finalizer(object) {
        return Step::Finalize;
    }
    if let Some(step) = allocated(seen, memory, pod, node) {
        return step;
    }
    // A probe of an earlier pod, or one that has had its time.
    let probe = seen.probe.filter(|probe| !probe.is_deleted);
    if let Some(probe) = probe {
        let asked = *memory.asked.get_or_insert(now);
        if memory.retry.is_none_or(|retry| retry <= now) && probe.node == node {
            if now < asked + ASK_TIME {
                return Step::Wait(Some(asked + ASK_TIME));
            }
            memory.failed(not_allocated(probe, node), now);
        }
        return Step::DeleteProbe;
    }
    if let (Some(retry), Some(problem)) = (memory.retry.filter(|retry| *retry > now), &memory.problem) {
        return match say(object, problem.clone()) {
            // The template may be another one by then.
            Step::Wait(_) => undo(seen).unwrap_or(Step::Wait(Some(retry))),
            step => step,
        };
    }
    match (seen.claim, seen.probe) {
        (Some(claim), _) if claim.is_deleted => Step::Wait(None),
        (None, _) => Step::CreateClaim,
        (_, Some(_)) => Step::Wait(None),
        (_, None) => {
            memory.asked = Some(now);
            Step::CreateProbe(pod.clone())
        }
    }
}

fn not_allocated(probe: &ProbeNow, node: &str) -> Finding<AllocatedReason> {
    let why = match probe.message.as_str() {
        "" => "the scheduler has not looked at it yet",
        message => message,
    };
    let time = ASK_TIME.as_secs();
    Finding::new(
        AllocatedReason::NotAllocated,
        format!("no devices on node {node} within {time} s, asking again later: {why}"),
    )
}

/// What follows from an allocation; `None` if there is none that can be used.
fn allocated(seen: &Seen<'_>, memory: &Memory, pod: &Target, node: &str) -> Option<Step> {
    let claim = seen.claim?;
    let allocation = claim.allocation.as_ref()?;
    let is_elsewhere = allocation.node.as_deref().is_some_and(|of| of != node);
    if is_elsewhere || claim.is_deleted {
        return undo(seen);
    }
    let judged = claim.judged();
    if memory.refused == judged {
        return undo(seen);
    }
    if memory.permitted != judged {
        return Some(Step::Judge);
    }
    Some(if !allocation.is_ours {
        Step::Reserve
    } else if seen.probe.is_some_and(|probe| !probe.is_deleted) {
        Step::DeleteProbe
    } else if allocation.is_others {
        Step::Wait(None)
    } else {
        let (pod, node) = (pod.uid.clone(), node.to_owned());
        Step::Write(Change::Allocated { pod, node, claim: claim.place.clone() })
    })
}

/// Returns the pod and its node, if it can be attached.
fn suitable<'a>(
    pod: Option<&'a Target>,
    object: &NetworkAttachment,
) -> Result<(&'a Target, &'a str), Finding<AllocatedReason>> {
    use AllocatedReason::{PodNotFound, PodNotRunning, Refused};
    let name = &object.spec.pod_name;
    let Some(pod) = pod else {
        return Err(Finding::new(PodNotFound, format!("there is no pod {name} in this namespace")));
    };
    if let Some(wanted) = object.spec.pod_uid.as_ref().filter(|wanted| **wanted != pod.uid) {
        let message =
            format!("pod {name} has UID {}, and spec.podUID is {wanted}: that pod is gone", pod.uid);
        return Err(Finding::new(PodNotFound, message));
    }
    if pod.has_host_network || pod.is_windows {
        let why = if pod.is_windows { "spec.os.name: windows" } else { "spec.hostNetwork: true" };
        let message =
            format!("pod {name} has {why}: only pods with a network namespace of their own can be attached");
        return Err(Finding::new(Refused, message));
    }
    let is_running = pod.phase == "Running" && !pod.is_ending;
    pod.node.as_deref().filter(|_| is_running).map(|node| (pod, node)).ok_or_else(|| {
        let state = if pod.is_ending { "Terminating" } else { &pod.phase };
        Finding::new(PodNotRunning, format!("pod {name} is {state}: it must be Running"))
    })
}

/// Writes why there are no devices, if that is news.
fn say(object: &NetworkAttachment, why: Finding<AllocatedReason>) -> Step {
    let is_known = object.condition::<AllocatedReason>().is_some_and(|now| {
        now.reason == why.reason.as_str()
            && now.message == why.message
            && now.observed_generation == object.metadata.generation
    });
    if is_known { Step::Wait(None) } else { Step::Write(Change::Waiting(why)) }
}

impl Change {
    /// Returns the status of an object after the change.
    pub(super) fn status(self, object: &NetworkAttachment, at: &Time) -> NetworkAttachmentStatus {
        let mut status = object.status.clone().unwrap_or_default();
        let generation = object.metadata.generation;
        let (allocated, attached) = match self {
            Self::Waiting(why) => (Some(why), None),
            Self::Revoked(why) => {
                // Only what the agent says from now on counts.
                if is_detached(object) {
                    status.conditions.retain(|condition| condition.type_ != AttachedReason::TYPE);
                }
                (Some(why), None)
            }
            Self::Allocated { pod, node, claim } => {
                let message = format!("the devices are allocated on node {node}");
                status.pod_uid = Some(pod);
                status.node = node.parse().ok();
                status.claim = Some(claim);
                status.conditions.retain(|condition| condition.type_ != AttachedReason::TYPE);
                (Some(Finding::new(AllocatedReason::Allocated, message)), None)
            }
            Self::Cleared => {
                status.conditions.retain(|condition| condition.type_ != AttachedReason::TYPE);
                status = NetworkAttachmentStatus { conditions: status.conditions, ..Default::default() };
                (None, None)
            }
            Self::AgentAway => {
                let node = status.node.as_ref().map_or("", |node| node.as_str());
                let message = format!("no agent of netclaim has been ready on node {node} for 30 s");
                (None, Some(Finding::new(AttachedReason::AgentAway, message)))
            }
        };
        let before = status.conditions.clone();
        let allocated = allocated.map(|finding| finding.condition(&before, generation, at));
        let attached = attached.map(|finding| finding.condition(&before, generation, at));
        for condition in allocated.into_iter().chain(attached) {
            set(&mut status.conditions, condition);
        }
        status
    }
}

/// Replaces the condition of the same type.
fn set(conditions: &mut Vec<Condition>, condition: Condition) {
    match find(conditions, &condition.type_) {
        Some(_) => {
            let same = conditions.iter_mut().find(|now| now.type_ == condition.type_);
            same.into_iter().for_each(|now| *now = condition.clone());
        }
        None => conditions.push(condition),
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
