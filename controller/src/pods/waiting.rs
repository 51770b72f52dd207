//! Pods that wait for a node or for an address, the nodes where they may run, and the ClaimNetworks that they
//! ask for. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{ApiResource, Object};
use kube::runtime::watcher;
use netclaim_allocation::is_extended;
use netclaim_api::NetworkName;
use netclaim_kubernetes::labels::{has_all, meets_node_requirement};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::Instant;

use crate::demand::{Places, Waiting};
use crate::objects::nodes::{NodeFacts, Nodes};

/// How long a pod may take to start on its node before it counts as waiting for an address there.
const STUCK: SignedDuration = SignedDuration::from_secs(20);

/// Time between the first two reads of the claims of a pod whose ClaimNetworks are not known. Each further
/// one takes twice as long, up to [`LATEST`].
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// The longest time between two reads of the claims of a pod.
const LATEST: Duration = Duration::from_secs(300);

/// A pod with little of its spec and status.
pub(crate) type PodObject = Object<Spec, Status>;

/// The part of a pod's spec that is kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    resource_claims: Vec<ClaimOfPod>,
    #[serde(deserialize_with = "with_limits", skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "with_limits", skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Container>,
    node_name: Option<String>,
    node_selector: BTreeMap<String, String>,
    affinity: Option<Affinity>,
    tolerations: Vec<Toleration>,
}

/// The part of a pod's status that is kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Status {
    conditions: Vec<Condition>,
    resource_claim_statuses: Vec<ClaimOfPod>,
    /// The claim that the scheduler has made of limits.
    extended_resource_claim_status: Option<ClaimOfLimits>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimOfLimits {
    resource_claim_name: String,
}

/// A container that asks for resources which DeviceClasses may serve.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_policy: Option<String>,
    resources: Resources,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Resources {
    limits: BTreeMap<String, Quantity>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimOfPod {
    name: String,
    /// Absent in the spec if a template makes the claim, and in the status if the pod needs none.
    resource_claim_name: Option<String>,
    /// Always absent in the status.
    resource_claim_template_name: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: Option<String>,
    last_transition_time: Option<Time>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    node_affinity: Option<NodeAffinity>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<Required>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Required {
    node_selector_terms: Vec<Term>,
}

/// The requirements that a node must meet, all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Term {
    match_expressions: Vec<Requirement>,
    match_fields: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

/// Where one pod may run.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Constraint {
    labels: BTreeMap<String, String>,
    /// One of them is enough; `None` if all nodes are good.
    terms: Option<Vec<Term>>,
}

/// A pod that does not run yet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PendingPod {
    namespace: String,
    /// The names of its claims, those that exist.
    claims: BTreeSet<String>,
    /// The resources that it asks for by limits, until it has a claim for them.
    resources: BTreeSet<String>,
    stage: Stage,
}

/// How far a pod is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The scheduler has not tried it.
    New,
    /// The scheduler found no node.
    Unschedulable(Constraint),
    /// It has a node, since this time.
    Bound { node: String, since: Option<Timestamp> },
}

/// A pod for which the scheduler found no node, and whose claims exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unschedulable {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The names of its claims, by the names that it has for them.
    pub(crate) claims: BTreeMap<String, String>,
    /// Its claims, the limits that classes may serve, and its requirements on nodes: a part of its spec, as
    /// JSON.
    pub(crate) spec: String,
}

/// The pods that the watch has shown.
#[derive(Debug, Default)]
pub(crate) struct WaitingPods {
    known: BTreeMap<String, PendingPod>,
    /// The list in progress.
    listing: BTreeMap<String, PendingPod>,
    /// What the claims of pods ask for, as far as it was needed.
    asked: BTreeMap<String, ClaimsRead>,
    /// The namespace of the last question.
    last_namespace: String,
}

/// The facts about a pod's claims.
#[derive(Debug)]
struct ClaimsRead {
    /// The claims that were read.
    claims: BTreeSet<String>,
    networks: Result<BTreeSet<NetworkName>, RetryAt>,
}

/// When to read claims again, and how long to wait after that.
#[derive(Debug)]
struct RetryAt(Instant, Duration);

/// A pod whose claims are to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimsToRead {
    uid: String,
    pub(crate) namespace: String,
    pub(crate) claims: BTreeSet<String>,
    pub(crate) resources: BTreeSet<String>,
}

/// Keeps the containers that ask for resources which DeviceClasses may serve, and these resources.
fn with_limits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Container>, D::Error> {
    let mut containers = Option::<Vec<Container>>::deserialize(deserializer)?.unwrap_or_default();
    for container in &mut containers {
        container.resources.limits.retain(|resource, amount| is_extended(resource) && amount.0 != "0");
    }
    containers.retain(|container| !container.resources.limits.is_empty());
    Ok(containers)
}

/// Returns the API's name of [`PodObject`].
pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<Pod>(&())
}

impl WaitingPods {
    /// Takes in an event of the watch. Returns whether other pods may wait now.
    pub(crate) fn apply(&mut self, event: watcher::Event<PodObject>) -> bool {
        let (uid, before, after) = match event {
            watcher::Event::Init => {
                self.listing.clear();
                return false;
            }
            watcher::Event::InitApply(pod) => {
                self.listing.extend(read(&pod));
                return false;
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                let before = std::mem::replace(&mut self.known, listed);
                self.asked.retain(|uid, _| self.known.contains_key(uid));
                return before != self.known;
            }
            watcher::Event::Apply(pod) => match read(&pod) {
                Some((uid, pod)) => (uid.clone(), self.known.insert(uid, pod.clone()), Some(pod)),
                None => self.forget(&pod),
            },
            watcher::Event::Delete(pod) => self.forget(&pod),
        };
        if after.is_none() {
            self.asked.remove(&uid);
        }
        let is_new = |pod: &Option<PendingPod>| pod.as_ref().is_none_or(|pod| pod.stage == Stage::New);
        before != after && !(is_new(&before) && is_new(&after))
    }

    fn forget(&mut self, pod: &PodObject) -> (String, Option<PendingPod>, Option<PendingPod>) {
        let uid = pod.uid().unwrap_or_default();
        let before = self.known.remove(&uid);
        (uid, before, None)
    }

    /// Returns where pods wait at this time, by ClaimNetwork, once for pods that may run on the same nodes.
    /// Pods whose claims have not been read wait for nothing.
    pub(crate) fn places(&self, nodes: &Nodes, time: Timestamp) -> Waiting {
        let mut by_stage: BTreeMap<&Stage, BTreeSet<&NetworkName>> = BTreeMap::new();
        for (uid, pod) in self.waiting(time) {
            if let Some(Ok(networks)) = self.asked(uid, pod) {
                by_stage.entry(&pod.stage).or_default().extend(networks);
            }
        }
        let mut waiting = Waiting::new();
        for (stage, networks) in by_stage.into_iter().filter(|(_, networks)| !networks.is_empty()) {
            let places = stage.places(nodes);
            for network in networks {
                waiting.entry(network.clone()).or_default().insert(places.clone());
            }
        }
        waiting
    }

    /// Returns a pod that waits and whose claims have not been read. It is not returned again for a while.
    /// Namespaces take turns, so that many pods of one do not delay those of others; in each, pods that
    /// were never asked about go first.
    pub(crate) fn next_question(&mut self, time: Timestamp, now: Instant) -> Option<ClaimsToRead> {
        let due = self.waiting(time).filter_map(|(uid, pod)| {
            let (at, wait) = match self.asked(uid, pod) {
                Some(Ok(_)) => return None,
                Some(Err(RetryAt(at, wait))) => (Some(*at), *wait),
                None => (None, RETRY_DELAY),
            };
            // The namespaces after the last one come before the others.
            let turn = (pod.namespace <= self.last_namespace, &pod.namespace);
            at.is_none_or(|at| at <= now).then_some(((turn, at, uid), pod, wait))
        });
        let ((_, _, uid), pod, wait) = due.min_by_key(|(key, ..)| *key)?;
        let question = ClaimsToRead {
            uid: uid.clone(),
            namespace: pod.namespace.clone(),
            claims: pod.claims.clone(),
            resources: pod.resources.clone(),
        };
        let retry = RetryAt(now + wait, LATEST.min(wait * 2));
        self.asked.insert(
            question.uid.clone(),
            ClaimsRead { claims: question.claims.clone(), networks: Err(retry) },
        );
        self.last_namespace.clone_from(&question.namespace);
        Some(question)
    }

    /// Takes in what the claims of a pod ask for.
    pub(crate) fn answer(&mut self, question: ClaimsToRead, networks: BTreeSet<NetworkName>) {
        if self.known.contains_key(&question.uid) {
            self.asked.insert(question.uid, ClaimsRead { claims: question.claims, networks: Ok(networks) });
        }
    }

    /// Returns when another pod waits, if no event comes before.
    pub(crate) fn next_wait(&self, time: Timestamp, now: Instant) -> Option<Instant> {
        let bound = self.known.values().filter_map(|pod| Some(now + pod.stage.waits_in(time)?));
        bound.filter(|at| *at > now).min()
    }

    /// Returns when another pod waits or can be asked about, if no event comes before.
    pub(crate) fn next(&self, time: Timestamp, now: Instant) -> Option<Instant> {
        let retries = self.waiting(time).filter_map(|(uid, pod)| match self.asked(uid, pod) {
            Some(Err(RetryAt(at, _))) => Some(*at),
            _ => None,
        });
        retries.filter(|at| *at > now).chain(self.next_wait(time, now)).min()
    }

    fn waiting(&self, time: Timestamp) -> impl Iterator<Item = (&String, &PendingPod)> {
        self.known.iter().filter(move |(_, pod)| pod.stage.waits_in(time) == Some(Duration::ZERO))
    }

    /// Returns the facts about the claims that the pod has now.
    fn asked(&self, uid: &str, pod: &PendingPod) -> Option<&Result<BTreeSet<NetworkName>, RetryAt>> {
        self.asked.get(uid).filter(|asked| asked.claims == pod.claims).map(|asked| &asked.networks)
    }
}

#[cfg(test)]
impl ClaimsToRead {
    pub(crate) fn new<const N: usize>(uid: &str, namespace: &str, claims: [&str; N]) -> Self {
        let claims = claims.map(String::from).into();
        Self { uid: uid.into(), namespace: namespace.into(), claims, resources: BTreeSet::new() }
    }
}

impl Spec {
    /// Returns the resources of limits that classes may serve.
    fn resources(&self) -> impl Iterator<Item = &String> {
        let containers = self.containers.iter().chain(&self.init_containers);
        containers.flat_map(|container| container.resources.limits.keys())
    }

    /// Whether the pod asks for devices, of whatever driver.
    fn asks_for_devices(&self) -> bool {
        !self.resource_claims.is_empty() || self.resources().next().is_some()
    }
}

/// Returns the UID of a pod that asks for devices, and the facts about the pod.
fn read(pod: &PodObject) -> Option<(String, PendingPod)> {
    let spec = &pod.spec;
    if !spec.asks_for_devices() || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let of_limits = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    let of_limits = of_limits.map(|claim| claim.resource_claim_name.clone());
    let resources = spec.resources().filter(|_| of_limits.is_none()).cloned().collect();
    let made = pod.status.iter().flat_map(|status| &status.resource_claim_statuses);
    let made: BTreeMap<&String, &ClaimOfPod> = made.map(|claim| (&claim.name, claim)).collect();
    let name = |claim: &ClaimOfPod| {
        let made = || made.get(&claim.name)?.resource_claim_name.clone();
        claim.resource_claim_name.clone().or_else(made)
    };
    let claims = spec.resource_claims.iter().filter_map(name).chain(of_limits).collect();
    Some((pod.uid()?, PendingPod { namespace: pod.namespace()?, claims, resources, stage: stage(pod) }))
}

impl Unschedulable {
    /// Returns the facts about a pod, if it is such a pod.
    pub(crate) fn of(pod: &PodObject) -> Option<Self> {
        let is_done = !pod.spec.asks_for_devices() || pod.metadata.deletion_timestamp.is_some();
        if is_done || !matches!(stage(pod), Stage::Unschedulable(_)) {
            return None;
        }
        let mut claims = BTreeMap::new();
        for claim in &pod.spec.resource_claims {
            let mut made = pod.status.iter().flat_map(|status| &status.resource_claim_statuses);
            let found = match &claim.resource_claim_name {
                Some(name) => Some(name),
                None => made.find(|made| made.name == claim.name)?.resource_claim_name.as_ref(),
            };
            claims.extend(found.map(|found| (claim.name.clone(), found.clone())));
        }
        Some(Self {
            uid: pod.uid()?,
            namespace: pod.namespace()?,
            name: pod.name_any(),
            claims,
            spec: serde_json::to_string(&pod.spec).ok()?,
        })
    }
}

fn stage(pod: &PodObject) -> Stage {
    let mut conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let scheduled = conditions.find(|condition| condition.kind == "PodScheduled");
    if let Some(node) = pod.spec.node_name.clone().filter(|node| !node.is_empty()) {
        let scheduled = scheduled.filter(|condition| condition.status == "True");
        let since = scheduled.and_then(|condition| Some(condition.last_transition_time.as_ref()?.0));
        return Stage::Bound { node, since };
    }
    // Also where a selector has no value (`SchedulerError`), and whatever other schedulers say. A gated pod
    // was not tried.
    let is_unschedulable = |condition: &Condition| {
        condition.status == "False" && condition.reason.as_deref() != Some("SchedulingGated")
    };
    if !scheduled.is_some_and(is_unschedulable) {
        return Stage::New;
    }
    let affinity = pod.spec.affinity.clone().and_then(|affinity| affinity.node_affinity);
    let terms = affinity.and_then(|affinity| affinity.required).map(|required| required.node_selector_terms);
    Stage::Unschedulable(Constraint { labels: pod.spec.node_selector.clone(), terms })
}

impl Stage {
    /// Returns after which time the pod waits, unless it runs before; `None` if that depends on an event.
    fn waits_in(&self, time: Timestamp) -> Option<Duration> {
        match self {
            Self::New => None,
            Self::Unschedulable(_) => Some(Duration::ZERO),
            Self::Bound { since, .. } => {
                Some(Duration::try_from(STUCK - time.duration_since((*since)?)).unwrap_or_default())
            }
        }
    }

    fn places(&self, nodes: &Nodes) -> Places {
        match self {
            Self::New => Places::Nodes(BTreeSet::new()),
            Self::Unschedulable(constraint) => constraint.places(nodes),
            Self::Bound { node, .. } => Places::Nodes(BTreeSet::from([node.clone()])),
        }
    }
}

impl Constraint {
    fn places(&self, nodes: &Nodes) -> Places {
        let schedulable = |facts: &NodeFacts| !facts.is_unschedulable;
        if *self == Self::default() && nodes.values().all(schedulable) {
            return Places::Any;
        }
        let fits = |(name, facts): &(&String, &NodeFacts)| schedulable(facts) && self.allows(name, facts);
        // A DaemonSet's pod names its node: there may be one for each of thousands of nodes.
        let named: Option<Vec<&String>> =
            self.terms.as_ref().and_then(|terms| terms.iter().map(Term::node).collect());
        let fitting: BTreeSet<String> = match named {
            Some(names) => {
                let known = names.into_iter().filter_map(|name| nodes.get_key_value(name));
                known.filter(fits).map(|(name, _)| name.clone()).collect()
            }
            None => nodes.iter().filter(fits).map(|(name, _)| name.clone()).collect(),
        };
        Places::Nodes(fitting)
    }

    fn allows(&self, name: &str, facts: &NodeFacts) -> bool {
        let by_term =
            self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.allows(name, facts)));
        has_all(&self.labels, &facts.labels) && by_term
    }
}

impl Term {
    /// Returns the only node that the term allows by its name.
    fn node(&self) -> Option<&String> {
        match self.match_fields.as_slice() {
            [Requirement { key, operator, values }] if key == "metadata.name" && operator == "In" => {
                <&[String; 1]>::try_from(values.as_slice()).ok().map(|[name]| name)
            }
            _ => None,
        }
    }

    fn allows(&self, name: &str, facts: &NodeFacts) -> bool {
        let is_empty = self.match_expressions.is_empty() && self.match_fields.is_empty();
        let of_label = |requirement: &Requirement| {
            requirement.holds(facts.labels.get(&requirement.key).map(String::as_str))
        };
        let of_field =
            |requirement: &Requirement| requirement.key == "metadata.name" && requirement.holds(Some(name));
        // A term without requirements selects nothing.
        !is_empty && self.match_expressions.iter().all(of_label) && self.match_fields.iter().all(of_field)
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        meets_node_requirement(&self.operator, &self.values, value)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};

    use super::*;

    /// A pod with one claim.
    fn pod(uid: &str, change: impl FnOnce(&mut Value)) -> PodObject {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": uid, "uid": uid, "namespace": "shop"},
            "spec": {"resourceClaims": [{"name": "net", "resourceClaimName": "c"}]},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn nodes() -> Nodes {
        let node = |name: &str, rack: &str| {
            let labels = BTreeMap::from([("rack".to_owned(), rack.to_owned())]);
            (name.to_owned(), NodeFacts { labels, ..NodeFacts::default() })
        };
        [node("a", "7"), node("b", "8"), node("c", "9")].into()
    }

    fn network(name: &str) -> NetworkName {
        name.parse().unwrap()
    }

    fn on(nodes: &[&str]) -> Places {
        Places::Nodes(nodes.iter().map(|node| (*node).to_owned()).collect())
    }

    /// Answers all questions: each pod asks for `storage`.
    fn answer(pods: &mut WaitingPods) {
        while let Some(question) = pods.next_question(TIME, Instant::now()) {
            pods.answer(question, BTreeSet::from([network("storage")]));
        }
    }

    const TIME: Timestamp = Timestamp::UNIX_EPOCH;

    /// Where the only pod waits.
    fn places(change: impl FnOnce(&mut Value)) -> Option<Places> {
        let mut pods = WaitingPods::default();
        pods.apply(watcher::Event::Apply(pod("u1", change)));
        answer(&mut pods);
        let mut waiting = pods.places(&nodes(), TIME);
        waiting.remove(&network("storage"))?.pop_first()
    }

    #[test]
    fn a_pod_waits_for_the_nodes_that_it_selects() {
        let affinity = |terms: Value| {
            let required =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            move |pod: &mut Value| pod["spec"]["affinity"] = json!({"nodeAffinity": required})
        };
        assert_eq!(places(|pod| pod["spec"] = json!({})), None, "without a claim");
        assert_eq!(places(|_| {}), Some(Places::Any));
        assert_eq!(places(|pod| pod["spec"]["nodeSelector"] = json!({"rack": "8"})), Some(on(&["b"])));
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["c"]});
        assert_eq!(places(affinity(json!([{"matchFields": [field]}]))), Some(on(&["c"])));
        let some = json!({"key": "rack", "operator": "Gt", "values": ["7"]});
        assert_eq!(places(affinity(json!([{"matchExpressions": [some]}]))), Some(on(&["b", "c"])));
        assert_eq!(places(affinity(json!([{}]))), Some(on(&[])));
    }

    #[test]
    fn a_pod_that_the_scheduler_has_not_tried_waits_for_nothing() {
        assert_eq!(places(|pod| pod["status"] = json!({"phase": "Pending"})), None);
        let condition = |reason: &str| json!([{"type": "PodScheduled", "status": "False", "reason": reason}]);
        assert_eq!(places(|pod| pod["status"]["conditions"] = condition("SchedulingGated")), None);
        for reason in ["Unschedulable", "SchedulerError", "ReasonOfAnotherScheduler"] {
            assert_eq!(
                places(|pod| pod["status"]["conditions"] = condition(reason)),
                Some(Places::Any),
                "{reason}"
            );
        }
        assert_eq!(places(|pod| pod["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z")), None);
    }

    #[test]
    fn a_pod_waits_only_for_the_networks_that_its_claims_ask_for() {
        let (mut pods, now) = (WaitingPods::default(), Instant::now());
        for uid in ["u1", "u2"] {
            assert!(pods.apply(watcher::Event::Apply(pod(uid, |_| {}))));
        }
        assert!(pods.places(&nodes(), TIME).is_empty(), "the claims are not read");
        let first = pods.next_question(TIME, now).unwrap();
        let second = pods.next_question(TIME, now).unwrap();
        assert_eq!((first.claims.first().unwrap().as_str(), first.namespace.as_str()), ("c", "shop"));
        assert_eq!(pods.next_question(TIME, now), None, "both are being read");
        pods.answer(first, BTreeSet::from([network("storage"), network("lab")]));
        pods.answer(second, BTreeSet::new());
        let waiting = pods.places(&nodes(), TIME);
        assert_eq!(waiting.keys().map(NetworkName::as_str).collect::<Vec<_>>(), ["lab", "storage"]);
        assert_eq!(pods.next_question(TIME, now + 2 * RETRY_DELAY), None, "both are known");
    }

    #[test]
    fn claims_that_cannot_be_read_are_read_again_later() {
        let (mut pods, now) = (WaitingPods::default(), Instant::now());
        pods.apply(watcher::Event::Apply(pod("u1", |_| {})));
        assert!(pods.next_question(TIME, now).is_some());
        assert_eq!(pods.next_question(TIME, now + RETRY_DELAY / 2), None);
        assert_eq!(pods.next(TIME, now), Some(now + RETRY_DELAY));
        assert!(pods.next_question(TIME, now + RETRY_DELAY).is_some());
        let mut at = now + RETRY_DELAY;
        let waits = [60, 120, 240, 300, 300].map(Duration::from_secs);
        for wait in waits {
            assert_eq!(pods.next(TIME, at), Some(at + wait), "each read costs requests");
            at += wait;
            assert!(pods.next_question(TIME, at).is_some());
        }
    }

    #[test]
    fn pods_of_one_namespace_do_not_keep_those_of_others_from_being_read() {
        let (mut pods, mut now) = (WaitingPods::default(), Instant::now());
        let of =
            |namespace: &'static str| move |pod: &mut Value| pod["metadata"]["namespace"] = json!(namespace);
        for n in 0..50 {
            pods.apply(watcher::Event::Apply(pod(&format!("a{n:02}"), of("greedy"))));
        }
        let mut asked = Vec::new();
        for round in 0..60 {
            // Reading the claims of one pod takes seconds, and is in vain.
            now += Duration::from_secs(3);
            match round {
                10 => drop(pods.apply(watcher::Event::Apply(pod("z1", of("shop"))))),
                20 => drop(pods.apply(watcher::Event::Apply(pod("z2", of("lab"))))),
                _ => {}
            }
            asked.extend(pods.next_question(TIME, now).map(|question| (round, question.uid)));
        }
        let first = |uid: &str| asked.iter().find(|(_, asked)| asked == uid).map(|(round, _)| *round);
        assert_eq!((first("z1"), first("z2"), first("a49")), (Some(10), Some(20), Some(55)), "{asked:?}");
    }

    #[test]
    fn a_claim_of_a_template_is_known_by_the_status() {
        let mut pods = WaitingPods::default();
        let templated = |pod: &mut Value| {
            pod["spec"]["resourceClaims"] = json!([{"name": "net", "resourceClaimTemplateName": "t"}]);
        };
        pods.apply(watcher::Event::Apply(pod("u1", templated)));
        answer(&mut pods);
        let made = json!([{"name": "net", "resourceClaimName": "p-net-x7"}, {"name": "other"}]);
        assert!(pods.apply(watcher::Event::Apply(pod("u1", |pod| {
            templated(pod);
            pod["status"]["resourceClaimStatuses"] = made;
        }))));
        let question = pods.next_question(TIME, Instant::now()).unwrap();
        assert_eq!(question.claims, BTreeSet::from(["p-net-x7".to_owned()]));
    }

    #[test]
    fn an_unschedulable_pod_is_known_with_all_of_its_claims() {
        let known = |change: fn(&mut Value)| Unschedulable::of(&pod("u1", change));
        let found = known(|_| {}).unwrap();
        assert_eq!((found.namespace.as_str(), found.name.as_str()), ("shop", "u1"));
        assert_eq!(found.claims, BTreeMap::from([("net".to_owned(), "c".to_owned())]));
        let spec = |pod: &Unschedulable| serde_json::from_str::<PodSpec>(&pod.spec).unwrap();
        assert_eq!(spec(&found).resource_claims.unwrap()[0].resource_claim_name.as_deref(), Some("c"));
        let templated = known(|pod| {
            let claims = ["net", "none"].map(|name| json!({"name": name, "resourceClaimTemplateName": "t"}));
            pod["spec"]["resourceClaims"] = json!(claims);
            pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
            pod["status"]["resourceClaimStatuses"] =
                json!([{"name": "net", "resourceClaimName": "p-net-x7"}, {"name": "none"}]);
        });
        let templated = templated.unwrap();
        assert_eq!(templated.claims, BTreeMap::from([("net".to_owned(), "p-net-x7".to_owned())]));
        assert_eq!(spec(&templated).tolerations.unwrap()[0].operator.as_deref(), Some("Exists"));
        let none: [fn(&mut Value); 4] = [
            |pod| pod["spec"]["resourceClaims"] = json!([{"name": "net", "resourceClaimTemplateName": "t"}]),
            |pod| pod["spec"]["resourceClaims"] = json!([]),
            |pod| pod["spec"]["nodeName"] = json!("a"),
            |pod| pod["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z"),
        ];
        assert_eq!(none.map(known), [const { None }; 4]);
    }

    const RESOURCE: &str = "deviceclass.resource.kubernetes.io/storage";

    /// Has the pod ask by limits instead of a claim.
    fn by_limits(pod: &mut Value) {
        let limits = json!({"cpu": "1", "nvidia.com/gpu": "0", RESOURCE: "2"});
        let containers =
            json!([{"name": "log"}, {"name": "web", "image": "x", "resources": {"limits": limits}}]);
        pod["spec"] = json!({"containers": containers, "initContainers": null});
    }

    #[test]
    fn a_pod_that_asks_by_limits_is_known_by_its_resources_and_then_by_the_schedulers_claim() {
        let mut pods = WaitingPods::default();
        pods.apply(watcher::Event::Apply(pod("u1", by_limits)));
        let question = pods.next_question(TIME, Instant::now()).unwrap();
        assert_eq!((question.claims.len(), &question.resources), (0, &BTreeSet::from([RESOURCE.to_owned()])));
        pods.answer(question, BTreeSet::from([network("storage")]));
        assert_eq!(pods.places(&nodes(), TIME).len(), 1);
        pods.apply(watcher::Event::Apply(pod("u1", |pod| {
            by_limits(pod);
            pod["status"]["extendedResourceClaimStatus"] =
                json!({"requestMappings": [], "resourceClaimName": "u1-extended-resources-x7"});
        })));
        let question = pods.next_question(TIME, Instant::now()).unwrap();
        assert_eq!(question.claims, BTreeSet::from(["u1-extended-resources-x7".to_owned()]));
        assert!(question.resources.is_empty());
        let found = Unschedulable::of(&pod("u1", by_limits)).unwrap();
        let spec: Value = serde_json::from_str(&found.spec).unwrap();
        assert_eq!(spec["containers"], json!([{"name": "web", "resources": {"limits": {RESOURCE: "2"}}}]));
        let plain = |pod: &mut Value| pod["spec"] = json!({"containers": [{"name": "web"}]});
        assert_eq!(Unschedulable::of(&pod("u1", plain)), None);
    }

    #[test]
    fn a_pod_that_does_not_start_on_its_node_waits_there_after_a_while() {
        let (mut pods, now) = (WaitingPods::default(), Instant::now());
        let bound = |pod: &mut Value| {
            pod["spec"]["nodeName"] = json!("b");
            let since = json!("1970-01-01T00:00:00Z");
            pod["status"]["conditions"] =
                json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]);
        };
        pods.apply(watcher::Event::Apply(pod("u1", bound)));
        let after = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        assert_eq!(pods.next_question(after(5), now), None, "it may start");
        assert_eq!(pods.next_wait(after(5), now), Some(now + Duration::from_secs(15)));
        let question = pods.next_question(after(20), now).unwrap();
        pods.answer(question, BTreeSet::from([network("storage")]));
        assert!(pods.places(&nodes(), after(19)).is_empty());
        let there = BTreeSet::from([on(&["b"])]);
        assert_eq!(pods.places(&nodes(), after(20)), Waiting::from([(network("storage"), there)]));
        assert_eq!((pods.next_wait(after(20), now), pods.next(after(20), now)), (None, None));
    }

    #[test]
    fn a_cordoned_node_is_not_a_place() {
        let mut pods = WaitingPods::default();
        assert!(pods.apply(watcher::Event::Apply(pod("u1", |_| {}))));
        assert!(!pods.apply(watcher::Event::Apply(pod("u1", |_| {}))), "the same");
        answer(&mut pods);
        let mut nodes = nodes();
        let waiting = |places: Places| Waiting::from([(network("storage"), BTreeSet::from([places]))]);
        assert_eq!(pods.places(&nodes, TIME), waiting(Places::Any));
        nodes.get_mut("a").unwrap().is_unschedulable = true;
        assert_eq!(pods.places(&nodes, TIME), waiting(on(&["b", "c"])));
        assert!(pods.apply(watcher::Event::Delete(pod("u1", |_| {}))));
        assert!(pods.places(&nodes, TIME).is_empty());
        assert!(pods.asked.is_empty(), "what was read goes with the pod");
    }
}
