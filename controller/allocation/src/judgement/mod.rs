//! The judgement of all nodes for the claims of a pod, in groups of nodes with the same cause.

mod needed;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Node, PodSpec};
use k8s_openapi::api::resource::v1::{DeviceTaintRule, ResourceSlice};
use netclaim_api::DRIVER_NAME;
use serde::Serialize;

pub use self::needed::Needed;
use crate::cause::{Cause, Lack};
use crate::holdings::{Holder, Holdings};
use crate::judge::{Answer, NodeVerdict, Question, RequestVerdict};
use crate::node_selector::{KnownNode, Unfit, unfit};
use crate::request::RequestName;

/// The scheduler's input.
#[derive(Clone, Copy)]
pub struct World<'a> {
    /// Those of the driver.
    pub slices: &'a [ResourceSlice],
    /// Taints that an admin gives devices.
    pub rules: &'a [DeviceTaintRule],
    /// Every node; `None` if they could not be read. Then slices tell which there are.
    pub nodes: Option<&'a [Node]>,
    /// What all claims hold.
    pub holdings: &'a Holdings,
    /// Says why a ClaimNetwork cannot be used on any node.
    pub refusal: &'a dyn Fn(&str) -> Option<String>,
}

/// How much is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// All nodes, and the judgement of each node and device is kept.
    Details,
    /// All nodes.
    Whole,
    /// The nodes that the pod selects, until this time. What its selectors say after that is not known.
    Until(Instant),
}

/// The verdicts of the nodes.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Judgement {
    /// Why nodes that take the pod cannot serve it, the most frequent cause first.
    pub causes: Vec<Group>,
    /// Nodes that can serve all requests and take the pod.
    pub serving: Vec<String>,
    /// Nodes that could serve all requests, but do not take the pod.
    pub serving_others: Vec<String>,
    /// Nodes whose answer is unknown.
    pub unknown: Vec<String>,
    /// Why nodes do not take the pod.
    pub unfit: Vec<Group>,
    /// Requests that no node that takes the pod can serve.
    pub unserved: Vec<String>,
    /// Requests for devices of other drivers, which are not judged.
    pub foreign: Vec<String>,
    /// Why ClaimNetworks that are asked for cannot be used at all.
    pub networks: Vec<String>,
    /// Every node; none without details.
    pub nodes: Vec<JudgedNode>,
    /// The nodes that take the pod and lack nothing but capacities, with what they lack.
    #[serde(skip)]
    pub short: Vec<(String, Vec<Lack>)>,
    /// Whether none of the claims is for devices of the driver.
    #[serde(skip)]
    pub is_foreign: bool,
    /// Whether nodes that could not be read may serve the claims, by a pool that is not one node's.
    #[serde(skip)]
    lacks_nodes: bool,
    /// How many nodes there are.
    #[serde(skip)]
    judged: usize,
    /// How many of them take the pod.
    #[serde(skip)]
    fit: usize,
}

/// Nodes with the same cause.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// The request that they cannot serve; `None` if the cause is about the node or about all requests.
    pub request: Option<String>,
    /// The cause in a sentence.
    pub text: String,
    /// The nodes.
    pub nodes: Vec<String>,
    /// The claims that have what is wanted, on all of these nodes.
    pub holders: Vec<Holder>,
    /// Whether the scheduler gives up on the pod for this.
    pub stops_the_scheduler: bool,
}

/// The judgement of a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JudgedNode {
    /// What it can serve.
    #[serde(flatten)]
    pub verdict: NodeVerdict,
    /// Why it does not take the pod.
    pub unfit: Vec<Unfit>,
}

/// What becomes of a pod or claim. [`Display`](fmt::Display) is the rest of a sentence that begins with its
/// name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// It waits for this, whatever the nodes have.
    Refused(String),
    /// No node can serve it. The groups of causes say why.
    Unserved(String),
    /// No node takes the pod.
    NotTaken(String),
    /// It is not known whether a node can serve it.
    Unknown(String),
    /// Nodes can serve it.
    Served(String),
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Unserved(why) | Self::NotTaken(why) => write!(f, "waits: {why}"),
            Self::Unknown(what) => write!(f, "waits; {what}"),
            Self::Served(but) => write!(f, "waits, but {but}"),
        }
    }
}

impl JudgedNode {
    /// Whether it can serve a request, by one of its alternatives. The scheduler gives up if the class of
    /// only one of them does not exist.
    fn answer(&self, request: &str) -> Answer {
        let of_request =
            || self.verdict.requests.iter().filter(|verdict| whole_request(&verdict.request) == request);
        if of_request().any(has_no_class) {
            return Answer::No;
        }
        of_request().map(|verdict| verdict.answer).max().unwrap_or(Answer::Yes)
    }
}

fn has_no_class(verdict: &RequestVerdict) -> bool {
    verdict.reasons.iter().any(|reason| matches!(reason.cause, Cause::NoClass { .. }))
}

impl Judgement {
    /// Judges nodes for the claims of a question.
    pub fn of(mut question: Question, pod: Option<&PodSpec>, world: &World<'_>, effort: Effort) -> Self {
        let has_claims = !question.is_empty();
        question = question.with_rules(world.rules);
        if let Effort::Until(deadline) = effort {
            question.deadline = Some(deadline);
        }
        let nodes: Vec<KnownNode<'_>> = match world.nodes {
            Some(nodes) => nodes.iter().map(KnownNode::Whole).collect(),
            None => nodes_of(world.slices),
        };
        let by_node = by_node(world.slices);
        let judge = |question: &mut Question| {
            let (mut gathered, mut requests) = (Gathered::default(), Requests::default());
            for node in &nodes {
                let unfit = match (pod, node) {
                    (Some(pod), KnownNode::Whole(node)) => unfit(pod, node),
                    // Without Nodes it is not known which of them take the pod.
                    _ => Vec::new(),
                };
                // A pod of a DaemonSet selects one node of thousands.
                if matches!(effort, Effort::Until(_)) && unfit.contains(&Unfit::NotSelected) {
                    gathered.count(node.name().unwrap_or_default(), &unfit);
                    continue;
                }
                let slices =
                    [node.name(), None].into_iter().filter_map(|name| by_node.get(&name)).flatten().copied();
                let verdict = question.judge(*node, slices, world.holdings);
                requests.add(&verdict);
                gathered.add(JudgedNode { verdict, unfit }, effort == Effort::Details);
            }
            (gathered, requests)
        };
        let (mut gathered, requests) = judge(&mut question);
        let foreign = requests.foreign(&question);
        if !foreign.is_empty() {
            question.retain(|request| !foreign.contains(request));
            (gathered, _) = judge(&mut question);
        }
        let mut judgement = gathered.judgement();
        let is_shared = |slice: &ResourceSlice| slice.spec.node_name.is_none();
        judgement.lacks_nodes = world.nodes.is_none() && world.slices.iter().any(is_shared);
        // For a request that is judged, it is only an alternative.
        let judged: BTreeSet<String> = question.requests().map(whole_request).collect();
        let foreign = foreign.iter().map(|name| (whole_request(name), name.to_string()));
        let foreign = foreign.map(|(whole, name)| if judged.contains(&whole) { name } else { whole });
        judgement.foreign = foreign.collect::<BTreeSet<_>>().into_iter().collect();
        judgement.is_foreign = question.is_empty() && has_claims;
        judgement.networks = unusable_networks(&question, world.refusal);
        judgement
    }

    /// Returns what becomes of the pod or claim, with the shortest reason.
    pub fn outlook(&self) -> Outlook {
        let others = match self.serving_others.len() {
            0 => String::new(),
            1 => "; 1 node could, but does not take the pod".to_owned(),
            others => format!("; {others} nodes could, but do not take the pod"),
        };
        if let Some(network) = self.networks.first().filter(|_| self.serving.is_empty()) {
            Outlook::Refused(network.clone())
        } else if let Some(stop) = self.causes.iter().find(|group| group.stops_the_scheduler) {
            Outlook::Refused(match &stop.request {
                Some(request) => format!("the scheduler cannot serve {request}: {}", stop.text),
                None => stop.text.clone(),
            })
        } else if !self.serving.is_empty() {
            Outlook::Served(format!(
                "{} can serve its networks: the scheduler has another reason, or has not tried yet",
                counted(self.serving.len(), "node")
            ))
        } else if !self.unknown.is_empty() {
            let nodes = counted(self.unknown.len(), "node");
            Outlook::Unknown(format!("it is not known whether {nodes} can serve it"))
        } else if self.lacks_nodes {
            Outlook::Unknown("it is not known whether a node that you may not read can serve it".to_owned())
        } else if self.judged == 0 {
            Outlook::Unserved(format!("no node has a ResourceSlice of {DRIVER_NAME}"))
        } else if self.fit == 0 {
            Outlook::NotTaken(format!("no node takes the pod{others}"))
        } else {
            Outlook::Unserved(match self.unserved.as_slice() {
                [] => format!("no node can serve all of its requests{others}"),
                requests => format!("no node can serve {}{others}", requests.join(" or ")),
            })
        }
    }
}

impl Group {
    /// `3 nodes (a, b, c)`, with the names of the first ones, at most `most`.
    pub fn nodes_in_words(&self, most: usize) -> String {
        nodes_in_words(&self.nodes, most)
    }
}

/// `3 nodes (a, b, c)`, with the names of the first ones, at most `most`.
pub fn nodes_in_words(nodes: &[String], most: usize) -> String {
    let shown = nodes.get(..most).unwrap_or(nodes);
    let more = match nodes.len().saturating_sub(shown.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} ({}{more})", counted(nodes.len(), "node"), shown.join(", "))
}

/// `1 node`, `2 nodes`.
pub fn counted(number: usize, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// A judgement in progress: the nodes come one by one, and need not be kept.
#[derive(Default)]
struct Gathered {
    judgement: Judgement,
    causes: Groups,
    unfit: Groups,
    /// For each request, how many of the nodes that take the pod cannot serve it.
    refusing: BTreeMap<String, usize>,
}

impl Gathered {
    /// Counts a node, and why it does not take the pod.
    fn count(&mut self, name: &str, unfit: &[Unfit]) {
        self.judgement.judged += 1;
        self.judgement.fit += usize::from(unfit.is_empty());
        for reason in unfit {
            self.unfit.add(None, reason.to_string(), None, name);
        }
    }

    fn add(&mut self, node: JudgedNode, details: bool) {
        let (name, is_fit) = (&node.verdict.node, node.unfit.is_empty());
        self.count(name, &node.unfit);
        let requests: BTreeSet<String> =
            node.verdict.requests.iter().map(|verdict| whole_request(&verdict.request)).collect();
        for request in requests {
            let is_refused = is_fit && node.answer(&request) == Answer::No;
            *self.refusing.entry(request).or_default() += usize::from(is_refused);
        }
        match (node.verdict.answer, is_fit) {
            (Answer::Yes, true) => self.judgement.serving.push(name.clone()),
            (Answer::Yes, false) => self.judgement.serving_others.push(name.clone()),
            (Answer::Unknown, true) => self.judgement.unknown.push(name.clone()),
            _ => {}
        }
        if is_fit && node.verdict.answer != Answer::Yes {
            if let Some(Cause::Shortage { lacks }) = &node.verdict.together {
                self.judgement.short.push((name.clone(), lacks.clone()));
            }
            self.add_causes(&node);
        }
        if details {
            self.judgement.nodes.push(node);
        }
    }

    fn add_causes(&mut self, node: &JudgedNode) {
        let name = &node.verdict.node;
        let refused = |verdict: &&RequestVerdict| {
            node.answer(&whole_request(&verdict.request)) != Answer::Yes || verdict.answer == Answer::Unknown
        };
        for verdict in node.verdict.requests.iter().filter(refused) {
            for reason in &verdict.reasons {
                let request = Some(verdict.request.to_string());
                self.causes.add(request, reason.brief(), Some(&reason.cause), name);
            }
        }
        if let Some(cause) = &node.verdict.together {
            self.causes.add(None, cause.brief().to_string(), Some(cause), name);
        }
    }

    fn judgement(self) -> Judgement {
        let fit = self.judgement.fit;
        let unserved = self.refusing.into_iter().filter(|(_, refusing)| *refusing == fit);
        Judgement {
            causes: self.causes.sorted(),
            unfit: self.unfit.sorted(),
            unserved: unserved.map(|(request, _)| request).collect(),
            ..self.judgement
        }
    }
}

#[derive(Default)]
struct Groups(BTreeMap<(Option<String>, String), GroupInProgress>);

#[derive(Default)]
struct GroupInProgress {
    nodes: Vec<String>,
    holders: BTreeSet<Holder>,
    stops_the_scheduler: bool,
}

impl Groups {
    fn add(&mut self, request: Option<String>, text: String, cause: Option<&Cause>, node: &str) {
        let group = self.0.entry((request, text)).or_default();
        group.nodes.push(node.to_owned());
        if let Some(cause) = cause {
            group.holders.extend(cause.holders().into_iter().cloned());
            group.stops_the_scheduler |= cause.stops_the_scheduler();
        }
    }

    fn sorted(self) -> Vec<Group> {
        let groups = self.0.into_iter().map(|((request, text), group)| Group {
            request,
            text,
            nodes: group.nodes,
            holders: group.holders.into_iter().collect(),
            stops_the_scheduler: group.stops_the_scheduler,
        });
        let mut groups: Vec<Group> = groups.collect();
        groups.sort_by(|one, other| {
            one.request.cmp(&other.request).then_with(|| other.nodes.len().cmp(&one.nodes.len()))
        });
        groups
    }
}

/// The slices of each node, and those of no single node.
fn by_node(slices: &[ResourceSlice]) -> BTreeMap<Option<&str>, Vec<&ResourceSlice>> {
    let mut by_node: BTreeMap<Option<&str>, Vec<&ResourceSlice>> = BTreeMap::new();
    for slice in slices {
        by_node.entry(slice.spec.node_name.as_deref()).or_default().push(slice);
    }
    by_node
}

/// Requests that nodes were judged for.
#[derive(Default)]
struct Requests {
    all: BTreeSet<RequestName>,
    /// Those that are about the driver's devices, as far as the devices of nodes tell.
    ours: BTreeSet<RequestName>,
}

impl Requests {
    fn add(&mut self, verdict: &NodeVerdict) {
        let is_ours = |verdict: &RequestVerdict| {
            let is_about_claim = verdict.request.request.is_none();
            let is_selected = verdict
                .devices
                .iter()
                .any(|device| !device.causes.iter().any(|cause| matches!(cause, Cause::NotSelected { .. })));
            is_about_claim || has_no_class(verdict) || is_selected
        };
        for verdict in &verdict.requests {
            if !self.all.contains(&verdict.request) {
                self.all.insert(verdict.request.clone());
            }
            if !self.ours.contains(&verdict.request) && is_ours(verdict) {
                self.ours.insert(verdict.request.clone());
            }
        }
    }

    /// Requests that do not name the driver and select none of its devices.
    fn foreign(self, question: &Question) -> BTreeSet<RequestName> {
        let named = question.of_driver();
        let is_foreign = |name: &RequestName| !named.contains(name) && !self.ours.contains(name);
        self.all.iter().filter(|name| is_foreign(name)).cloned().collect()
    }
}

/// Nodes as far as slices tell them.
fn nodes_of(slices: &[ResourceSlice]) -> Vec<KnownNode<'_>> {
    let names: BTreeSet<&str> = slices.iter().filter_map(|slice| slice.spec.node_name.as_deref()).collect();
    names.into_iter().map(KnownNode::Named).collect()
}

/// A request with all of its alternatives.
fn whole_request(name: &RequestName) -> String {
    RequestName { alternative: None, ..name.clone() }.to_string()
}

fn unusable_networks(question: &Question, refusal: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    // An alternative that can be used is enough.
    let of_request = |alternatives: Vec<Option<&str>>| -> Vec<String> {
        let problems = alternatives.into_iter().map(|network| network.and_then(refusal));
        problems.collect::<Option<Vec<String>>>().unwrap_or_default()
    };
    question.networks().flat_map(of_request).collect::<BTreeSet<_>>().into_iter().collect()
}
