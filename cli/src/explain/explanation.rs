//! What the facts mean. Pure.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt as _;
use netclaim_allocation::{Effort, Holdings, Judgement, Question, World, counted};
use netclaim_api::DRIVER_NAME;
use netclaim_api::network::opt_out;
use serde::Serialize;

use super::facts::{ClaimFact, Cluster, Facts, Stage, full_name, is_allocated, is_refused, limits_of};
use super::networks::{self, Attachment};
use super::primary::lacks_runtime_class;
use super::starting;
use crate::hot_attach::State;

/// An explanation.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    /// The answer in one sentence.
    pub(super) verdict: String,
    /// What else keeps the object waiting.
    pub(super) causes: Vec<String>,
    /// What the nodes can serve, if the scheduler has not allocated everything.
    pub(super) judgement: Option<Judgement>,
    /// What the claims have.
    pub(super) attachments: Vec<Attachment>,
    /// What the pod gets while it runs, or why not yet: a sentence for each NetworkAttachment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) network_attachments: Vec<String>,
    /// What else is to know: what could not be read, what is not judged.
    pub(super) notes: Vec<String>,
}

impl Explanation {
    /// Explains the facts. Only with `details` it has the judgement of each device.
    pub(super) fn of(facts: &Facts, details: bool) -> Self {
        let mut explanation = match &facts.pod {
            Some(pod) => of_pod(pod, facts, details),
            None if !facts.hot.is_empty() => {
                let verdicts: Vec<String> = facts.hot.iter().map(State::named).collect();
                return Self::saying(verdicts.join("\n"));
            }
            None => of_claim(facts, details),
        };
        let is_own = |claim: &&ResourceClaim| {
            facts.pod.as_ref().is_none_or(|pod| first_of_claim(claim, pod).is_none())
        };
        explanation.attachments = facts.found().filter(is_own).flat_map(networks::of_claim).collect();
        explanation.network_attachments = facts.hot.iter().map(State::named).collect();
        explanation.notes.extend(facts.pod.as_ref().and_then(left_out_by));
        explanation.notes.extend(facts.unread.iter().map(ToString::to_string));
        explanation
    }

    fn saying(verdict: String) -> Self {
        Self { verdict, ..Self::default() }
    }
}

fn of_pod(pod: &Pod, facts: &Facts, details: bool) -> Explanation {
    let name = format!("pod {}", full_name(pod));
    let stage = Stage::of(pod);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    let classes = facts.cluster.as_ref().map(|cluster| cluster.classes.as_deref());
    let limits = limits_of(pod, classes.flatten().unwrap_or_default());
    if let Some(what) = passed_by(pod, stage, facts) {
        return Explanation::saying(format!(
            "{name} does not start on node {node}, because {what}: {PASSED_BY}"
        ));
    }
    if facts.claims.is_empty() && (stage != Stage::Waiting || limits.is_none()) {
        return Explanation::saying(match classes {
            Some(None) => {
                format!(
                    "{name} names no ResourceClaim; it is not known whether it asks for a network by limits"
                )
            }
            _ => format!("{name} names no ResourceClaim, so it gets no network of netclaim"),
        });
    }
    let attachments: Vec<Attachment> = facts.found().flat_map(networks::of_claim).collect();
    let another = facts.found().find_map(|claim| Some((claim, first_of_claim(claim, pod)?)));
    if let (Stage::Starting | Stage::Running, Some((claim, first))) = (&stage, another) {
        return Explanation::saying(format!(
            "{name} waits on node {node}: claim {} is attached to pod {first}, and goes to the next one when that has ended",
            full_name(claim)
        ));
    }
    match stage {
        Stage::Waiting => waiting(pod, &name, facts, details),
        _ if attachments.is_empty() && stage != Stage::Ended => Explanation::saying(format!(
            "{name} is on node {node}, and none of its claims has a device of netclaim"
        )),
        Stage::Starting => {
            let node_facts = facts.node.iter();
            let of_node = node_facts.flat_map(|facts| starting::causes(pod, &attachments, facts));
            let causes: Vec<String> = lacks_runtime_class(pod, facts).into_iter().chain(of_node).collect();
            let all_ready = attachments.iter().all(|attachment| attachment.ready == Some(true));
            let verdict = match causes.first() {
                _ if all_ready => format!("{name} has its networks on node {node}, and does not run yet"),
                Some(cause) => format!("{name} does not start on node {node}: {cause}"),
                None => format!("{name} has been given node {node}, and its networks are being attached"),
            };
            Explanation { causes, ..Explanation::saying(verdict) }
        }
        Stage::Running => {
            let broken = attachments.iter().filter(|attachment| attachment.ready == Some(false)).count();
            let problem = match broken {
                0 => String::new(),
                broken => format!(", {broken} of which {} not ready", if broken == 1 { "is" } else { "are" }),
            };
            let networks = counted(attachments.len(), "network");
            let verdict = format!("{name} runs on node {node} with {networks}{problem}");
            // Containers without the claim run.
            let causes = lacks_runtime_class(pod, facts).into_iter().collect();
            Explanation { causes, ..Explanation::saying(verdict) }
        }
        Stage::Ended if pod.metadata.deletion_timestamp.is_some() => {
            Explanation::saying(format!("{name} is being deleted"))
        }
        Stage::Ended => Explanation::saying(format!("{name} has ended, and its networks are released")),
    }
}

const PASSED_BY: &str = "spec.nodeName passes the scheduler by, which alone allocates claims: leave spec.nodeName out of \
    the pod, or the template of its DaemonSet or Deployment, and select the node by spec.nodeSelector";

/// Says what the scheduler has not done for a pod that has a node without it.
fn passed_by(pod: &Pod, stage: Stage, facts: &Facts) -> Option<String> {
    let classes = facts.cluster.as_ref().and_then(|cluster| cluster.classes.as_deref());
    // Without the classes it is unknown whose devices they are for.
    let is_ours = |question: Question| classes.is_none() || !question.of_driver().is_empty();
    let classes = classes.unwrap_or_default();
    let claim = facts
        .found()
        .find(|claim| !is_allocated(claim) && is_ours(Question::new(std::slice::from_ref(*claim), classes)));
    if let Some(claim) = claim.filter(|_| stage == Stage::Starting) {
        return Some(format!("its claim {} is not allocated", claim.name_any()));
    }
    // Where it runs, a device plugin serves its limits.
    let may_lack_it = stage == Stage::Starting && !facts.has_plugin_for(pod) || is_refused(pod);
    let limits = limits_of(pod, classes).filter(|_| may_lack_it)?;
    let question = Question::new(&[], &[]).with_limits(&limits, classes, None);
    is_ours(question).then(|| "its limits have no claim".to_owned())
}

fn waiting(pod: &Pod, name: &str, facts: &Facts, details: bool) -> Explanation {
    let mut causes: Vec<String> = facts.claims.iter().filter_map(missing).collect();
    let deleting = facts.found().filter(|claim| claim.metadata.deletion_timestamp.is_some());
    causes.extend(deleting.map(|claim| format!("claim {} is being deleted", full_name(claim))));
    if let Some(cause) = causes.first() {
        let verdict = format!("{name} waits: {cause}");
        return Explanation { causes, ..Explanation::saying(verdict) };
    }
    let mut notes: Vec<String> = facts.found().filter_map(|claim| reserved_for_another(claim, pod)).collect();
    notes.extend(scheduler_says(pod));
    let judgement = facts.cluster.as_ref().and_then(|cluster| judge(facts, Some(pod), cluster, details));
    let verdict = match &judgement {
        None => format!("{name} waits for the scheduler; why is not known, because of what cannot be read"),
        Some(judgement) if judgement.is_foreign => {
            format!(
                "{name} waits for the scheduler; none of its claims and limits is for devices of netclaim ({DRIVER_NAME})"
            )
        }
        Some(judgement) => format!("{name} {}", judgement.outlook()),
    };
    notes.extend(judgement.iter().flat_map(not_judged));
    causes.extend(lacks_runtime_class(pod, facts));
    Explanation { causes, judgement, notes, ..Explanation::saying(verdict) }
}

fn of_claim(facts: &Facts, details: bool) -> Explanation {
    let Some(claim) = facts.found().next() else { return Explanation::default() };
    let name = format!("claim {}", full_name(claim));
    let status = claim.status.as_ref();
    let reserved = status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    let pods: Vec<&str> = reserved
        .filter(|consumer| consumer.resource == "pods")
        .map(|consumer| consumer.name.as_str())
        .collect();
    if is_allocated(claim) {
        let attachments = networks::of_claim(claim);
        let reserved = match pods.as_slice() {
            [] => "no pod".to_owned(),
            pods => format!("pod {}", pods.join(", ")),
        };
        let what = match attachments.iter().find(|attachment| attachment.ready == Some(false)) {
            _ if attachments.is_empty() => "has no device of netclaim".to_owned(),
            Some(broken) => format!("is not ready ({}): {}", broken.reason, broken.message),
            None => format!("has {}", counted(attachments.len(), "network")),
        };
        return Explanation::saying(format!("{name} {what}; it is reserved for {reserved}"));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Explanation::saying(format!("{name} is being deleted"));
    }
    let judgement = facts.cluster.as_ref().and_then(|cluster| judge(facts, None, cluster, details));
    let verdict = match &judgement {
        None => format!("{name} is not allocated; why is not known, because of what cannot be read"),
        Some(judgement) if judgement.is_foreign => {
            format!("{name} is not allocated, and is not for devices of netclaim ({DRIVER_NAME})")
        }
        Some(_) if facts.bound.is_some() => {
            let pod = facts.bound.as_ref().map(full_name).unwrap_or_default();
            format!("{name} is not allocated, and its pod {pod} has a node: {PASSED_BY}")
        }
        Some(judgement) if !judgement.serving.is_empty() => {
            let nodes = counted(judgement.serving.len(), "node");
            format!("{name} is not allocated, but {nodes} can serve it: it waits for a pod that uses it")
        }
        Some(judgement) => format!("{name} {}", judgement.outlook()),
    };
    let notes = judgement.iter().flat_map(not_judged).collect();
    Explanation { judgement, notes, ..Explanation::saying(verdict) }
}

/// Says how a pod that does not run yet does without the networks that it has not asked for.
fn left_out_by(pod: &Pod) -> Option<String> {
    if matches!(Stage::of(pod), Stage::Running | Stage::Ended) {
        return None;
    }
    let claims = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let text = opt_out(claims.filter_map(|claim| claim.resource_claim_template_name.as_deref()));
    Some(text).filter(|text| !text.is_empty())
}

/// Judges all nodes; `None` if classes or slices could not be read.
fn judge(facts: &Facts, pod: Option<&Pod>, cluster: &Cluster, details: bool) -> Option<Judgement> {
    let claims: Vec<ResourceClaim> = facts.found().cloned().collect();
    let mut holdings = if cluster.lacks_claims { Holdings::partial() } else { Holdings::default() };
    cluster.claims.iter().for_each(|claim| holdings.add(claim));
    let refusal = |name: &str| {
        let networks = cluster.networks.as_ref()?;
        match networks.iter().find(|network| network.name_any() == name) {
            None => Some(format!(
                "there is no ClaimNetwork {name}: kubectl get claimnetworks lists those that exist"
            )),
            Some(network) => network.refusal(),
        }
    };
    let world = World {
        slices: cluster.slices.as_deref()?,
        rules: &cluster.rules,
        nodes: cluster.nodes.as_deref(),
        holdings: &holdings,
        refusal: &refusal,
    };
    let effort = if details { Effort::Details } else { Effort::Whole };
    let classes = cluster.classes.as_deref()?;
    let mut question = Question::new(&claims, classes);
    if let Some(limits) = pod.and_then(|pod| limits_of(pod, classes)) {
        question = question.with_limits(&limits, classes, None);
    }
    Some(Judgement::of(question, pod.and_then(|pod| pod.spec.as_ref()), &world, effort))
}

/// Why a pod's claim is not there.
fn missing(claim: &ClaimFact) -> Option<String> {
    match claim {
        ClaimFact::Found(_) => None,
        ClaimFact::NotMade { name, template, has_template: Some(false) } => {
            Some(format!("there is no ResourceClaimTemplate {template} for its claim {name}"))
        }
        ClaimFact::NotMade { name, template, .. } => Some(format!(
            "Kubernetes has not made its claim {name} from ResourceClaimTemplate {template} yet"
        )),
        ClaimFact::Missing { name } => Some(format!("there is no ResourceClaim {name}")),
    }
}

/// Returns the pod that has the claim, if that is another one: the first of those that it is reserved for.
/// Other drivers may give a claim to several pods at once.
fn first_of_claim<'a>(claim: &'a ResourceClaim, pod: &Pod) -> Option<&'a str> {
    let mut reserved = claim.status.as_ref()?.reserved_for.iter().flatten();
    let first = reserved.find(|consumer| consumer.resource == "pods")?;
    let is_another = Some(&first.uid) != pod.metadata.uid.as_ref() && !networks::of_claim(claim).is_empty();
    is_another.then_some(first.name.as_str())
}

/// netclaim gives a claim to one pod after another.
fn reserved_for_another(claim: &ResourceClaim, pod: &Pod) -> Option<String> {
    let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    let others: Vec<&str> = reserved
        .filter(|consumer| Some(&consumer.uid) != pod.metadata.uid.as_ref())
        .map(|consumer| consumer.name.as_str())
        .collect();
    (!others.is_empty()).then(|| {
        format!(
            "claim {} is reserved for {}: netclaim attaches a claim to one pod at a time, and to the next one when that has ended",
            full_name(claim),
            others.join(", ")
        )
    })
}

fn scheduler_says(pod: &Pod) -> Option<String> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let scheduled =
        conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
    scheduled.message.as_deref().map(|message| format!("the scheduler says: {message}"))
}

fn not_judged(judgement: &Judgement) -> Vec<String> {
    let foreign = judgement.foreign.iter();
    foreign.map(|request| format!("{request} is for devices of another driver, and was not judged")).collect()
}
