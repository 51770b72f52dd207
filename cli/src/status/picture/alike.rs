//! Which nodes look alike in a picture: they have the same links with the same ClaimNetworks, and the same
//! health. So do ClaimNetworks on the same links of the same nodes. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use netclaim_api::attributes;
use netclaim_api::labels::NETWORK_LABELS;

use super::super::report::{Agent, NodeRow, Published, Report, attribute, held, plain};
use super::super::snapshot::Snapshot;

/// More links of a node than these are shown by kinds, such as all virtual functions in one.
const MANY_LINKS: usize = 6;

/// Keys of taints.
type Closed = BTreeSet<String>;

/// Nodes and their links, with the taints there.
type Places<'a> = BTreeSet<(&'a str, &'a str, &'a Closed)>;

/// What can be compared of a node.
type Look = (Agent, BTreeMap<String, OneLink>);

/// What can be compared of a link: why it is closed by itself, and the same of each ClaimNetwork on it.
type OneLink = (Closed, BTreeMap<String, Closed>);

/// Nodes that look alike.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) agent: Agent,
    /// Their names.
    pub(super) nodes: Vec<String>,
    links: BTreeMap<String, OneLink>,
    /// Attachments on all of them, by link and ClaimNetwork; the empty one stands for the link by itself.
    attachments: BTreeMap<(String, String), usize>,
}

/// A link, or several that look alike.
#[derive(Debug)]
pub(super) struct LinkNow {
    /// Their names; empty for ClaimNetworks without a link.
    pub(super) names: Vec<String>,
    /// Attachments to devices of the link that are of no ClaimNetwork, and why they are closed.
    pub(super) by_itself: usize,
    pub(super) closed: Closed,
    pub(super) networks: Vec<NetworkOn>,
}

/// A ClaimNetwork on a link.
#[derive(Debug)]
pub(super) struct NetworkOn {
    pub(super) network: String,
    /// `None` where claims do not say on which node they are.
    pub(super) attachments: Option<usize>,
    pub(super) closed: Closed,
}

/// Stands for all ClaimNetworks that are not shown: nodes may differ in them. No ClaimNetwork can have the
/// name.
const OTHERS: &str = "…";

/// Without any taint.
static OPEN: Closed = Closed::new();

/// The ClaimNetworks of scope `Cluster` that are on a node. Their pools do not say on which node an
/// attachment is.
fn of_cluster(node: &Node) -> impl Iterator<Item = &str> {
    node.labels().keys().filter_map(|label| label.strip_prefix(NETWORK_LABELS))
}

/// Returns the nodes and links that each ClaimNetwork is on, with the taints there.
pub(super) fn places<'a>(
    snapshot: &'a Snapshot,
    published: &'a [Published<'_>],
) -> BTreeMap<&'a str, Places<'a>> {
    let mut places: BTreeMap<&str, Places<'a>> = BTreeMap::new();
    for node in &snapshot.nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        for network in of_cluster(node) {
            places.entry(network).or_default().insert((name, "", &OPEN));
        }
    }
    for device in published {
        if let (Some(network), Some(node)) = (device.network, device.node) {
            let link = attribute(device.device, attributes::UPLINK).unwrap_or_default();
            places.entry(network).or_default().insert((node, link, &device.closed));
        }
    }
    places
}

/// Returns the kinds of nodes: those that are not well first, then those of most nodes. Without `summarise`
/// each node is one. `shown_as` returns the ClaimNetwork that stands for one, if it is shown.
pub(super) fn kinds(
    snapshot: &Snapshot,
    report: &Report,
    published: &[Published<'_>],
    shown_as: impl Fn(&str) -> Option<String>,
    summarise: bool,
) -> Vec<Kind> {
    let held = held(snapshot);
    let shown_as = |network: &str| shown_as(network).unwrap_or_else(|| OTHERS.to_owned());
    let mut of_node: BTreeMap<&str, Vec<&Published<'_>>> = BTreeMap::new();
    for device in published {
        if let Some(node) = device.node {
            of_node.entry(node).or_default().push(device);
        }
    }
    let mut kinds: BTreeMap<(Look, Option<&str>), Kind> = BTreeMap::new();
    for (NodeRow { name, agent, .. }, node) in report.nodes.iter().zip(&snapshot.nodes) {
        let mut links: BTreeMap<String, OneLink> = BTreeMap::new();
        let mut attachments: BTreeMap<(String, String), usize> = BTreeMap::new();
        for device in of_node.get(name.as_str()).into_iter().flatten() {
            let link = attribute(device.device, attributes::UPLINK).unwrap_or_default().to_owned();
            let network = device.network.map(&shown_as).unwrap_or_default();
            let closed = device.closed.iter().map(|taint| plain(taint).to_owned());
            let (by_itself, networks) = links.entry(link.clone()).or_default();
            if network.is_empty() { by_itself } else { networks.entry(network.clone()).or_default() }
                .extend(closed);
            let held = held.get(&(device.pool, device.device.name.as_str()));
            *attachments.entry((link, network)).or_default() += held.map_or(0, |held| held.attachments);
        }
        for network in of_cluster(node) {
            links.entry(String::new()).or_default().1.entry(shown_as(network)).or_default();
        }
        let own = (!summarise).then_some(name.as_str());
        let new =
            || Kind { agent: *agent, nodes: Vec::new(), links: links.clone(), attachments: BTreeMap::new() };
        let kind = kinds.entry(((*agent, links.clone()), own)).or_insert_with(new);
        kind.nodes.push(name.clone());
        for (place, count) in attachments {
            *kind.attachments.entry(place).or_default() += count;
        }
    }
    let mut kinds: Vec<Kind> = kinds.into_values().collect();
    let by_name = |kind: &Kind| kind.nodes.first().cloned();
    if summarise {
        kinds.sort_by_key(|kind| (kind.is_well(), Reverse(kind.nodes.len()), by_name(kind)));
    } else {
        kinds.sort_by_key(by_name);
    }
    kinds
}

impl Kind {
    fn is_well(&self) -> bool {
        let is_open =
            |(closed, networks): &OneLink| closed.is_empty() && networks.values().all(Closed::is_empty);
        matches!(self.agent, Agent::Ready | Agent::NotSelected) && self.links.values().all(is_open)
    }

    /// Returns the links; where there are many, those that look alike are one.
    pub(super) fn links(&self) -> Vec<LinkNow> {
        let mut groups: Vec<(&OneLink, Vec<String>)> = Vec::new();
        for (name, look) in &self.links {
            let is_alike = |(other, names): &&mut (&OneLink, Vec<String>)| {
                self.links.len() > MANY_LINKS && *other == look && names.iter().all(|name| !name.is_empty())
            };
            match groups.iter_mut().find(is_alike) {
                Some((_, names)) => names.push(name.clone()),
                None => groups.push((look, vec![name.clone()])),
            }
        }
        let count = |names: &[String], network: &str| -> Option<usize> {
            let places = names.iter().map(|name| (name.clone(), network.to_owned()));
            places.filter_map(|place| self.attachments.get(&place).copied()).reduce(|one, other| one + other)
        };
        let link = |((closed, networks), names): (&OneLink, Vec<String>)| LinkNow {
            by_itself: count(&names, "").unwrap_or_default(),
            closed: closed.clone(),
            networks: networks
                .iter()
                .map(|(network, closed)| NetworkOn {
                    network: network.clone(),
                    attachments: count(&names, network),
                    closed: closed.clone(),
                })
                .collect(),
            names,
        };
        groups.into_iter().map(link).collect()
    }
}
