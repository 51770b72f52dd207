//! Why the scheduler allocates no devices: the judgement of all nodes, in groups of nodes with the same cause.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::ResourceExt as _;
use netclaim_allocation::{
    Answer, Cause, Holder, Holdings, KnownNode, NodeVerdict, Question, RequestName, RequestVerdict, Unfit,
    unfit,
};
use netclaim_api::network::Network;
use serde::Serialize;

use super::facts::Cluster;

/// What the nodes can serve.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Judgement {
    /// Why nodes that take the pod cannot serve it, the most frequent cause first.
    pub(super) causes: Vec<Group>,
    /// Nodes that can serve all requests and take the pod.
    pub(super) serving: Vec<String>,
    /// Nodes that could serve all requests, but do not take the pod.
    pub(super) serving_others: Vec<String>,
    /// Nodes of which it is not known.
    pub(super) unknown: Vec<String>,
    /// Why nodes do not take the pod.
    pub(super) unfit: Vec<Group>,
    /// Requests that no node that takes the pod can serve.
    pub(super) unserved: Vec<String>,
    /// Requests for devices of other drivers, which are not judged.
    pub(super) foreign: Vec<String>,
    /// Networks that are asked for and cannot be used at all.
    pub(super) networks: Vec<String>,
    /// Every node.
    pub(super) nodes: Vec<JudgedNode>,
    /// Whether nodes that could not be read may serve the claims, by a pool that is not one node's.
    #[serde(skip)]
    pub(super) lacks_nodes: bool,
    #[serde(skip)]
    pub(super) is_foreign: bool,
}

/// Nodes with the same cause.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Group {
    /// The request that they cannot serve; `None` if the cause is about the node or about all requests.
    pub(super) request: Option<String>,
    /// The cause in a sentence.
    pub(super) text: String,
    pub(super) nodes: Vec<String>,
    /// The claims that have what is wanted, on all of these nodes.
    pub(super) holders: Vec<Holder>,
    /// Whether the scheduler gives up on the pod for this.
    pub(super) stops_the_scheduler: bool,
}

/// The judgement of a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JudgedNode {
    #[serde(flatten)]
    pub(super) verdict: NodeVerdict,
    /// Why it does not take the pod.
    pub(super) unfit: Vec<Unfit>,
}

impl JudgedNode {
    /// Whether it can serve a request, by one of its alternatives. The scheduler gives up if the class of only one of them
    /// does not exist.
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
    /// Judges all nodes for the claims; `None` if classes or slices could not be read. Only with `details` it keeps the
    /// judgement of each device.
    pub(super) fn of(
        claims: &[ResourceClaim],
        pod: Option<&PodSpec>,
        cluster: &Cluster,
        details: bool,
    ) -> Option<Self> {
        let (classes, slices) = (cluster.classes.as_ref()?, cluster.slices.as_ref()?);
        let mut holdings = if cluster.lacks_claims { Holdings::partial() } else { Holdings::default() };
        cluster.claims.iter().for_each(|claim| holdings.add(claim));
        let mut question = Question::new(claims, classes);
        let nodes: Vec<KnownNode<'_>> = match &cluster.nodes {
            Some(nodes) => nodes.iter().map(KnownNode::Whole).collect(),
            None => nodes_of(slices),
        };
        let by_node = by_node(slices);
        let judge = |question: &mut Question| -> Vec<(NodeVerdict, BTreeSet<RequestName>)> {
            let verdicts = nodes.iter().map(|node| {
                let slices =
                    [node.name(), None].into_iter().filter_map(|name| by_node.get(&name)).flatten().copied();
                let mut verdict = question.judge(*node, slices, &holdings);
                let ours = ours(&verdict);
                if !details {
                    verdict.requests.iter_mut().for_each(|request| request.devices.clear());
                }
                (verdict, ours)
            });
            verdicts.collect()
        };
        let mut verdicts = judge(&mut question);
        let foreign = foreign(&question, &verdicts);
        if !foreign.is_empty() {
            question.retain(|request| !foreign.contains(request));
            verdicts = judge(&mut question);
        }
        let nodes = verdicts.into_iter().zip(&nodes).map(|((verdict, _), node)| {
            let unfit = match (pod, node) {
                (Some(pod), KnownNode::Whole(node)) => unfit(pod, node),
                // Without Nodes it is not known which of them take the pod.
                _ => Vec::new(),
            };
            JudgedNode { verdict, unfit }
        });
        let mut judgement = Self::grouped(nodes.collect());
        let is_shared = |slice: &ResourceSlice| slice.spec.node_name.is_none();
        judgement.lacks_nodes = cluster.nodes.is_none() && slices.iter().any(is_shared);
        let judged: BTreeSet<String> = judgement
            .nodes
            .iter()
            .flat_map(|node| &node.verdict.requests)
            .map(|verdict| whole_request(&verdict.request))
            .collect();
        // Of a request that is judged, it is only an alternative.
        let foreign = foreign.iter().map(|name| (whole_request(name), name.to_string()));
        let foreign = foreign.map(|(whole, name)| if judged.contains(&whole) { name } else { whole });
        judgement.foreign = foreign.collect::<BTreeSet<_>>().into_iter().collect();
        judgement.is_foreign = question.is_empty() && !claims.is_empty();
        judgement.networks = unusable_networks(&question, cluster.networks.as_deref());
        Some(judgement)
    }

    fn grouped(nodes: Vec<JudgedNode>) -> Self {
        let mut judgement = Self::default();
        let mut causes = Groups::default();
        let mut unfit = Groups::default();
        let mut requests: BTreeSet<String> = BTreeSet::new();
        let fit = || nodes.iter().filter(|node| node.unfit.is_empty());
        for node in &nodes {
            let name = &node.verdict.node;
            requests.extend(node.verdict.requests.iter().map(|verdict| whole_request(&verdict.request)));
            for reason in &node.unfit {
                unfit.add(None, reason.to_string(), None, name);
            }
            match (node.verdict.answer, node.unfit.is_empty()) {
                (Answer::Yes, true) => judgement.serving.push(name.clone()),
                (Answer::Yes, false) => judgement.serving_others.push(name.clone()),
                (Answer::Unknown, true) => judgement.unknown.push(name.clone()),
                _ => {}
            }
            if !node.unfit.is_empty() || node.verdict.answer == Answer::Yes {
                continue;
            }
            let refused = |verdict: &&RequestVerdict| {
                node.answer(&whole_request(&verdict.request)) != Answer::Yes
                    || verdict.answer == Answer::Unknown
            };
            for verdict in node.verdict.requests.iter().filter(refused) {
                for reason in &verdict.reasons {
                    let request = Some(verdict.request.to_string());
                    causes.add(request, reason.brief(), Some(&reason.cause), name);
                }
            }
            if let Some(cause) = &node.verdict.together {
                causes.add(None, cause.to_string(), Some(cause), name);
            }
        }
        let is_unserved = |request: &String| fit().all(|node| node.answer(request) == Answer::No);
        judgement.unserved = requests.into_iter().filter(is_unserved).collect();
        judgement.causes = causes.sorted();
        judgement.unfit = unfit.sorted();
        judgement.nodes = nodes;
        judgement
    }

    /// The cause by which the scheduler gives up on the pod, if there is one.
    pub(super) fn stop(&self) -> Option<&Group> {
        self.causes.iter().find(|group| group.stops_the_scheduler)
    }
}

#[derive(Default)]
struct Groups(BTreeMap<(Option<String>, String), Gathered>);

#[derive(Default)]
struct Gathered {
    nodes: Vec<String>,
    holders: BTreeSet<Holder>,
    stops_the_scheduler: bool,
}

impl Groups {
    fn add(&mut self, request: Option<String>, text: String, cause: Option<&Cause>, node: &str) {
        let gathered = self.0.entry((request, text)).or_default();
        gathered.nodes.push(node.to_owned());
        if let Some(cause) = cause {
            gathered.holders.extend(cause.holders().into_iter().cloned());
            gathered.stops_the_scheduler |= cause.stops_the_scheduler();
        }
    }

    fn sorted(self) -> Vec<Group> {
        let groups = self.0.into_iter().map(|((request, text), gathered)| Group {
            request,
            text,
            nodes: gathered.nodes,
            holders: gathered.holders.into_iter().collect(),
            stops_the_scheduler: gathered.stops_the_scheduler,
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

/// The requests that are about netclaim's devices, as far as one node's devices tell.
fn ours(verdict: &NodeVerdict) -> BTreeSet<RequestName> {
    let is_ours = |verdict: &&RequestVerdict| {
        let is_about_claim = verdict.request.request.is_none();
        let is_selected = verdict
            .devices
            .iter()
            .any(|device| !device.causes.iter().any(|cause| matches!(cause, Cause::NotSelected { .. })));
        is_about_claim || has_no_class(verdict) || is_selected
    };
    verdict.requests.iter().filter(is_ours).map(|verdict| verdict.request.clone()).collect()
}

/// Requests that do not name netclaim and select none of its devices.
fn foreign(question: &Question, verdicts: &[(NodeVerdict, BTreeSet<RequestName>)]) -> BTreeSet<RequestName> {
    let named = question.of_driver();
    let all = verdicts.iter().flat_map(|(verdict, _)| &verdict.requests).map(|verdict| &verdict.request);
    let is_ours = |request: &RequestName| {
        named.contains(request) || verdicts.iter().any(|(_, ours)| ours.contains(request))
    };
    let all: BTreeSet<&RequestName> = all.collect();
    all.into_iter().filter(|request| !is_ours(request)).cloned().collect()
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

fn unusable_networks(question: &Question, networks: Option<&[Network]>) -> Vec<String> {
    let Some(networks) = networks else { return Vec::new() };
    let problem = |name: &str| match networks.iter().find(|network| network.name_any() == name) {
        None => Some(format!("there is no Network {name}")),
        Some(network) => network.refusal(),
    };
    // An alternative that can be used is enough.
    let of_request = |alternatives: Vec<Option<&str>>| -> Vec<String> {
        let problems = alternatives.into_iter().map(|network| network.and_then(problem));
        problems.collect::<Option<Vec<String>>>().unwrap_or_default()
    };
    question.networks().flat_map(of_request).collect::<BTreeSet<_>>().into_iter().collect()
}
