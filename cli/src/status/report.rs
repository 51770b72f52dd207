//! What a snapshot of the cluster means. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use k8s_openapi::api::resource::v1::Device;
use kube::ResourceExt as _;
use netclaim_allocation::{Unfit, nodes_in_words, taint_rules, unfit};
use netclaim_api::addresses::{AddressPool, AddressTotals};
use netclaim_api::labels::NETWORK_LABELS;
use netclaim_api::network::{ClaimNetwork, Scope};
use netclaim_api::node_selector::selects_node;
use netclaim_api::reasons::{AcceptedReason, Reason as _};
use netclaim_api::taints::Reason;
use netclaim_api::{DRIVER_NAME, attributes};
use netclaim_kubernetes::quantity::billionths;
use serde::Serialize;

use super::agents::{Answers, NotAsked};
use super::lacks::{self, Lack};
use super::older::{self, Older};
use super::owed;
use super::snapshot::Snapshot;
use crate::asking::Asked;
use crate::claimed;
use crate::colour::{Colours, Mark};
use crate::components::{self, AGENT, CONTROLLER, is_named, is_ready};
use crate::printable::printable;
use crate::slices::newest;
use crate::table::{Cell, table};

/// The status of netclaim on a cluster.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) networks: Vec<NetworkRow>,
    pub(super) nodes: Vec<NodeRow>,
    /// What somebody should look at, in sentences.
    pub(super) problems: Vec<String>,
    /// The same for people: one line for what is wrong with many nodes.
    #[serde(skip)]
    lines: Vec<String>,
    /// What netclaim does without on this cluster, and what is not known of it.
    pub(super) notes: Vec<String>,
}

/// One ClaimNetwork.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkRow {
    pub(super) name: String,
    scope: Scope,
    /// Whether it is accepted; `None` if the controller has not looked at it.
    pub(super) accepted: Option<bool>,
    /// Nodes that publish it; none if the scope is `Cluster`.
    pub(super) nodes: usize,
    /// Those of them that take new pods.
    pub(super) open_nodes: usize,
    pub(super) attachments: usize,
    /// Pods that run an older configuration of it.
    pub(super) older_pods: usize,
    /// Their names, `NAMESPACE/NAME`, as far as agents say which pods they are.
    older_pod_names: BTreeSet<String>,
    /// By name.
    capacity: BTreeMap<String, Amount>,
}

/// How much of a capacity claims have.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Amount {
    used: f64,
    total: f64,
}

/// One node.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRow {
    pub(super) name: String,
    pub(super) agent: Agent,
    devices: usize,
    pub(super) attachments: usize,
    /// Devices that take no new pods, with the keys of the taints that say why.
    pub(super) closed: BTreeMap<String, BTreeSet<String>>,
    /// What is no problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// The agent of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Agent {
    Ready,
    NotReady,
    /// It should have one.
    None,
    /// The DaemonSet does not put one there.
    NotSelected,
}

impl Agent {
    pub(super) fn cell(self) -> Cell {
        match self {
            Self::Ready => Cell::from("Ready"),
            Self::NotSelected => Cell::from("-"),
            Self::NotReady | Self::None => Cell::marked(format!("{self:?}"), Mark::Bad),
        }
    }
}

/// What claims have of a device.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) attachments: usize,
    capacity: BTreeMap<String, f64>,
}

/// A device that is published, and where.
pub(super) struct Published<'a> {
    pub(super) node: Option<&'a str>,
    /// The ClaimNetwork that it is of; `None` for a link's own devices.
    pub(super) network: Option<&'a str>,
    pub(super) pool: &'a str,
    pub(super) device: &'a Device,
    /// The keys of the taints by which it takes no new pods.
    pub(super) closed: BTreeSet<String>,
}

impl Report {
    /// Derives the status.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let held = held(snapshot);
        // Thousands of nodes have tens of thousands of devices: each is looked at once for its ClaimNetwork
        // and once for its node.
        let published = published(snapshot);
        let of_networks = grouped(&published, |published| published.network);
        let of_nodes = grouped(&published, |published| published.node);
        let older = older::by_network(snapshot);
        let networks: Vec<NetworkRow> = snapshot
            .networks
            .iter()
            .map(|network| {
                let mut row = network_row(network, devices(&of_networks, &network.name_any()), &held);
                row.count_addresses(totals(network, &snapshot.pools));
                if let Some(Older { pods, names }) = row.name.parse().ok().and_then(|name| older.get(&name)) {
                    (row.older_pods, row.older_pod_names) = (*pods, names.clone());
                }
                row
            })
            .collect();
        let agents = agents(&snapshot.pods);
        let rows = snapshot.nodes.iter().map(|node| {
            let (agent, _) = agent_of(node, &agents, snapshot);
            let mut row = node_row(node.name_any(), agent, devices(&of_nodes, &node.name_any()), &held);
            row.note = note(&row, node, &snapshot.networks);
            row
        });
        let nodes: Vec<NodeRow> = rows.collect();
        let mut problems = of_pods(&snapshot.pods);
        problems.extend(snapshot.networks.iter().filter_map(of_network));
        problems.extend(networks.iter().filter_map(|row| on_no_node(row, &snapshot.nodes)));
        problems.extend(owed::somewhere(snapshot));
        let mut of_nodes = Vec::new();
        for (row, node) in nodes.iter().zip(&snapshot.nodes) {
            let pod = agents.get(row.name.as_str()).map(|(_, pod)| *pod);
            let of_node = of_node(row, node, pod, snapshot);
            of_nodes.extend(of_node.into_iter().map(|problem| (row.name.as_str(), problem)));
        }
        let lines = problems.iter().cloned().chain(lines(&of_nodes)).collect();
        problems.extend(of_nodes.into_iter().map(|(_, problem)| problem));
        let older = older.iter().map(|(network, older)| older::note(network.as_str(), older));
        let notes = notes(&snapshot.answers).into_iter().chain(unread_rules(snapshot)).chain(older).collect();
        Self { networks, nodes, problems, lines, notes }
    }
}

/// What agents are asked for a report of the whole cluster.
pub(super) struct Questions<'a> {
    /// Those that are not ready.
    pub(super) lack: Asked<'a>,
    /// Those whose nodes lack plugins, and one that is ready: the API server is the same for all.
    pub(super) found: Asked<'a>,
}

/// Returns whom to ask.
pub(super) fn questions(snapshot: &Snapshot) -> Questions<'_> {
    let missing = Reason::PluginMissing.key();
    let lacks_plugin = |published: &&Published<'_>| published.closed.contains(missing);
    let published = published(snapshot);
    let without: BTreeSet<&str> =
        published.iter().filter(lacks_plugin).filter_map(|published| published.node).collect();
    let agents = agents(&snapshot.pods);
    let of_nodes = || snapshot.nodes.iter().filter_map(|node| node.metadata.name.as_deref());
    let named = |node: &'_ str, is: Agent| {
        agents
            .get_key_value(node)
            .filter(|(_, (agent, _))| *agent == is)
            .map(|(node, (_, pod))| (*node, *pod))
    };
    let is_running = |(_, pod): &(&str, &Pod)| lacks::waiting(pod).is_none();
    let lack = of_nodes().filter_map(|node| named(node, Agent::NotReady)).filter(is_running).collect();
    let ready = || of_nodes().filter_map(|node| named(node, Agent::Ready));
    let mut found: Asked<'_> = ready().filter(|(node, _)| without.contains(node)).collect();
    if found.is_empty() {
        found.extend(ready().next());
    }
    Questions { lack, found }
}

/// What claims hold of netclaim's devices, by pool and device.
pub(super) fn held(snapshot: &Snapshot) -> BTreeMap<(&str, &str), Held> {
    let mut held: BTreeMap<(&str, &str), Held> = BTreeMap::new();
    for (result, _) in snapshot.claims.iter().flat_map(claimed::devices) {
        let held = held.entry((&result.pool, &result.device)).or_default();
        held.attachments += 1;
        for (name, quantity) in result.consumed_capacity.iter().flatten() {
            *held.capacity.entry(plain(name).to_owned()).or_default() += number(&quantity.0);
        }
    }
    held
}

/// The devices of the newest generation of each pool.
pub(super) fn published(snapshot: &Snapshot) -> Vec<Published<'_>> {
    let rules = snapshot.rules.as_deref().unwrap_or_default();
    newest(&snapshot.slices)
        .flat_map(|slice| {
            let (node, pool) = (slice.spec.node_name.as_deref(), slice.spec.pool.name.as_str());
            let devices = slice.spec.devices.iter().flatten();
            devices.map(move |device| {
                let of_slice = device.taints.iter().flatten();
                let of_slice =
                    of_slice.filter(|taint| taint.effect != "None" && Reason::is_problem(&taint.key));
                let of_rules = taint_rules::closing(rules, &slice.spec.driver, pool, &device.name);
                let of_slice = of_slice.map(|taint| taint.key.clone());
                let closed = of_slice.chain(of_rules.map(taint_rules::named)).collect();
                Published { node, network: network_of(device), pool, device, closed }
            })
        })
        .collect()
}

fn network_of(device: &Device) -> Option<&str> {
    attribute(device, attributes::NETWORK).filter(|name| !name.is_empty())
}

/// The text of an attribute of netclaim's.
pub(super) fn attribute<'a>(device: &'a Device, name: &str) -> Option<&'a str> {
    let mut attributes = device.attributes.iter().flatten();
    attributes.find(|(found, _)| plain(found) == name)?.1.string.as_deref()
}

type Groups<'a> = BTreeMap<&'a str, Vec<&'a Published<'a>>>;

fn grouped<'a>(published: &'a [Published<'a>], by: impl Fn(&Published<'a>) -> Option<&'a str>) -> Groups<'a> {
    let mut groups = Groups::new();
    for published in published {
        if let Some(key) = by(published) {
            groups.entry(key).or_default().push(published);
        }
    }
    groups
}

fn devices<'g, 'a>(groups: &'g Groups<'a>, name: &str) -> &'g [&'a Published<'a>] {
    groups.get(name).map(Vec::as_slice).unwrap_or_default()
}

fn network_row(
    network: &ClaimNetwork,
    published: &[&Published<'_>],
    held: &BTreeMap<(&str, &str), Held>,
) -> NetworkRow {
    let mut row = NetworkRow {
        name: network.name_any(),
        scope: network.spec.scope,
        accepted: network.acceptance().map(|condition| condition.status == "True"),
        nodes: 0,
        open_nodes: 0,
        attachments: 0,
        older_pods: 0,
        older_pod_names: BTreeSet::new(),
        capacity: BTreeMap::new(),
    };
    for Published { node, pool, device, closed, .. } in published {
        if node.is_some() {
            row.nodes += 1;
            row.open_nodes += usize::from(closed.is_empty());
        }
        let held = held.get(&(*pool, device.name.as_str()));
        row.attachments += held.map_or(0, |held| held.attachments);
        for (capacity, value) in device.capacity.iter().flatten() {
            let capacity = plain(capacity);
            // Without a number in the ClaimNetwork it is one that only the scheduler needs.
            if capacity == attributes::INTERFACES && network.spec.capacity.interfaces.is_none() {
                continue;
            }
            let used = held.and_then(|held| held.capacity.get(capacity)).copied().unwrap_or_default();
            let amount = row.capacity.entry(capacity.to_owned()).or_default();
            amount.total += number(&value.value.0);
            amount.used += used;
        }
    }
    row
}

/// The addresses that a ClaimNetwork draws from; `None` if the controller has not counted them, or the user
/// may not know.
fn totals(network: &ClaimNetwork, pools: &[AddressPool]) -> Option<AddressTotals> {
    match network.spec.addresses.as_ref()?.pool.as_deref() {
        Some(name) => pools.iter().find(|pool| pool.name_any() == name)?.status.as_ref()?.addresses,
        None => network.status.as_ref()?.addresses,
    }
}

pub(super) fn node_row(
    name: String,
    agent: Agent,
    published: &[&Published<'_>],
    held: &BTreeMap<(&str, &str), Held>,
) -> NodeRow {
    let mut row = NodeRow { agent, devices: 0, attachments: 0, closed: BTreeMap::new(), note: None, name };
    for Published { pool, device, closed, .. } in published {
        row.devices += 1;
        row.attachments += held.get(&(*pool, device.name.as_str())).map_or(0, |held| held.attachments);
        if !closed.is_empty() {
            row.closed.insert(device.name.clone(), closed.clone());
        }
    }
    row
}

/// The state of the agents, by node, each with its pod.
pub(super) fn agents(pods: &[Pod]) -> BTreeMap<&str, (Agent, &Pod)> {
    let state = |pod: &Pod| if is_ready(pod) { Agent::Ready } else { Agent::NotReady };
    components::agents(pods).into_iter().map(|(node, pod)| (node, (state(pod), pod))).collect()
}

/// Taints by which Kubernetes keeps pods off a node for a while. It has DaemonSets tolerate them.
const CONDITIONS: &str = "node.kubernetes.io/";

/// Returns the state of a node's agent, with its pod. Without the DaemonSets, every node should have one.
pub(super) fn agent_of<'a>(
    node: &Node,
    agents: &BTreeMap<&str, (Agent, &'a Pod)>,
    snapshot: &Snapshot,
) -> (Agent, Option<&'a Pod>) {
    if let Some((agent, pod)) = agents.get(node.name_any().as_str()) {
        return (*agent, Some(*pod));
    }
    let keeps_off = |unfit: &Unfit| match unfit {
        Unfit::Cordoned => false,
        Unfit::NotSelected => true,
        Unfit::Tainted { key, .. } => !key.starts_with(CONDITIONS),
    };
    let is_off = |agent: &PodSpec| unfit(agent, node).iter().any(keeps_off);
    let is_selected = snapshot.agents.is_empty() || !snapshot.agents.iter().all(is_off);
    (if is_selected { Agent::None } else { Agent::NotSelected }, None)
}

/// Whether a node should publish devices, because an accepted ClaimNetwork is for it.
fn is_wanted(node: &Node, networks: &[ClaimNetwork]) -> bool {
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    networks.iter().any(|network| {
        network.spec.scope == Scope::Node
            && network.acceptance().is_some_and(|condition| condition.status == "True")
            && selects_node(network.spec.node_selector.as_ref(), labels)
    })
}

fn note(row: &NodeRow, node: &Node, networks: &[ClaimNetwork]) -> Option<&'static str> {
    let is_idle = row.agent == Agent::Ready && row.devices == 0 && !is_wanted(node, networks);
    is_idle.then_some("no ClaimNetwork is for this node")
}

/// Problems of netclaim's own pods.
fn of_pods(pods: &[Pod]) -> Vec<String> {
    let of_name = |name| pods.iter().filter(move |pod| is_named(pod, name));
    if of_name(AGENT).next().is_none() && of_name(CONTROLLER).next().is_none() {
        return vec![
            "netclaim has no pods in this namespace: is it installed in another one (--netclaim-namespace)?"
                .to_owned(),
        ];
    }
    let mut problems = Vec::new();
    if !of_name(CONTROLLER).any(is_ready) {
        problems.push(
            "no controller is ready: ClaimNetworks are not accepted, and nodes get no addresses. See kubectl logs deployment/netclaim-controller"
                .to_owned(),
        );
    }
    problems
}

fn of_network(network: &ClaimNetwork) -> Option<String> {
    let name = network.name_any();
    if let Some(refusal) = network.refusal() {
        return Some(refusal);
    }
    match network.acceptance() {
        None => Some(format!("ClaimNetwork {name}: the controller has not looked at it yet")),
        Some(condition) if condition.reason == AcceptedReason::AcceptedWithWarnings.as_str() => {
            Some(format!("ClaimNetwork {name} is accepted with warnings: {}", condition.message))
        }
        Some(_) => None,
    }
}

/// Says that no node has an accepted ClaimNetwork: its pods would stay Pending.
fn on_no_node(row: &NetworkRow, nodes: &[Node]) -> Option<String> {
    let name = &row.name;
    let label = format!("{NETWORK_LABELS}{name}");
    let is_somewhere = match row.scope {
        Scope::Node => row.nodes > 0,
        Scope::Cluster => nodes.iter().any(|node| node.labels().contains_key(&label)),
    };
    (row.accepted == Some(true) && !is_somewhere).then(|| {
        format!(
            "ClaimNetwork {name} is on no node: no agent has found a link for its spec.uplink on a node that its spec.nodeSelector selects. \
             Compare them with the links and labels of your nodes"
        )
    })
}

/// Problems of a node. `pod` is that of its agent.
pub(super) fn of_node(row: &NodeRow, node: &Node, pod: Option<&Pod>, snapshot: &Snapshot) -> Vec<String> {
    let NodeRow { name, .. } = row;
    let owed = owed::on_node(name, snapshot);
    if row.agent == Agent::NotSelected {
        return owed;
    }
    let mut problems: Vec<String> =
        lacks::of_versions(node).into_iter().chain(lacks::of_cdi(name, snapshot)).collect();
    match row.agent {
        Agent::NotSelected => {}
        Agent::None => {
            problems.push(format!("node {name} has no agent: pods with networks do not run there"))
        }
        Agent::NotReady => {
            let lack = lacks::of_agent(pod, snapshot.answers.lacks.get(name));
            problems.extend(not_ready(name, lack));
        }
        Agent::Ready if row.devices == 0 => {
            problems.extend(is_wanted(node, &snapshot.networks).then(|| {
                format!(
                    "node {name} publishes no device: it has no uplink that a ClaimNetwork or an UplinkPolicy selects"
                )
            }));
        }
        Agent::Ready => {
            if !row.closed.is_empty() {
                let closed: Vec<String> = row.closed.iter().map(closed).collect();
                problems.push(format!("node {name} takes no new pods for {}", closed.join(", ")));
            }
            problems.extend(lacks::of_plugins(&row.name, &row.closed, snapshot));
        }
    }
    problems.extend(owed);
    problems
}

/// Most nodes that a line names.
const SHOWN: usize = 3;

/// Returns the problems of nodes, each with its node, with one line for the nodes that have the same problem.
fn lines(problems: &[(&str, String)]) -> Vec<String> {
    let mut groups: Vec<(&str, &str, Vec<String>)> = Vec::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for (node, problem) in problems {
        // What follows the node's name: `: the agent is not ready`, or ` has no agent`.
        let text = problem.strip_prefix("node ").and_then(|rest| rest.strip_prefix(node)).unwrap_or(problem);
        let index = *known.entry(text).or_insert(groups.len());
        match groups.get_mut(index) {
            // A node may say it more than once: of two pods of one name.
            Some((.., nodes)) if nodes.last().is_some_and(|last| last == node) => {}
            Some((.., nodes)) => nodes.push((*node).to_owned()),
            None => groups.push((problem, text, vec![(*node).to_owned()])),
        }
    }
    let line = |(problem, text, nodes): (&str, &str, Vec<String>)| match nodes.as_slice() {
        [_] => problem.to_owned(),
        nodes => format!("{}: {}", nodes_in_words(nodes, SHOWN), text.trim_start_matches([':', ' '])),
    };
    groups.into_iter().map(line).collect()
}

fn not_ready(name: &str, lack: Lack) -> Vec<String> {
    let unknown = format!(
        "node {name}: the agent is not ready. It needs NRI and CDI of the container runtime: see the events of the Node, and the agent's log"
    );
    match lack {
        Lack::Unasked => vec![unknown],
        Lack::Unknown(why) => vec![format!("{unknown} ({why})")],
        Lack::Waits(why) => vec![format!("node {name}: the agent does not run: {why}")],
        Lack::Nothing => {
            vec![format!(
                "node {name}: the agent is not ready, but says that it lacks nothing any more: look again in some seconds"
            )]
        }
        Lack::These(lines) => {
            lines.iter().map(|line| format!("node {name}: the agent is not ready: {line}")).collect()
        }
    }
}

/// What holds for the whole cluster, as the agents that were asked say.
fn notes(answers: &Answers) -> Vec<String> {
    let found: Vec<_> = answers.found.values().filter_map(|found| found.as_ref().ok()).collect();
    match (found.is_empty(), answers.found.values().find_map(|found| found.as_ref().err())) {
        (true, Some(why)) => vec![unknown_features(why)],
        _ => lacks::of_server(&found).into_iter().collect(),
    }
}

/// Returns that nobody knows what DeviceTaintRules do.
pub(super) fn unread_rules(snapshot: &Snapshot) -> Option<String> {
    let note = "DeviceTaintRules could not be read: devices that one of them keeps pods off count as open";
    snapshot.rules.is_none().then(|| note.to_owned())
}

/// The sentence about an agent that cannot be asked.
fn unknown_features(why: &NotAsked) -> String {
    format!("not known whether counters are published: an agent would say, but {why}")
}

/// `net-storage (link-down)`.
fn closed((device, taints): (&String, &BTreeSet<String>)) -> String {
    let taints: Vec<&str> = taints.iter().map(|taint| plain(taint)).collect();
    format!("{device} ({})", taints.join(", "))
}

/// A name without the driver's domain, which the API server adds or not.
pub(super) fn plain(name: &str) -> &str {
    name.strip_prefix(DRIVER_NAME).and_then(|name| name.strip_prefix('/')).unwrap_or(name)
}

/// The number of a Kubernetes quantity; what is none counts nothing.
fn number(quantity: &str) -> f64 {
    billionths(quantity).map(|billionths| billionths as f64 / 1e9).unwrap_or_default()
}

/// Few digits, as `2.5G`; numbers of addresses are written out.
fn short(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M")];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, suffix)) => format!("{}{suffix}", (value / unit * 10.0).round() / 10.0),
        None => format!("{}", value.round()),
    }
}

impl NetworkRow {
    /// Counts all addresses of the ranges: devices have those of the blocks that their nodes have leased.
    fn count_addresses(&mut self, totals: Option<AddressTotals>) {
        let Some(AddressTotals { size, used, .. }) = totals else { return };
        let amount = self.capacity.entry(attributes::ADDRESSES.to_owned()).or_default();
        // Claims are read now, and nodes report what they use after a while.
        amount.used = amount.used.max(used as f64);
        amount.total = size as f64;
    }

    fn cells(&self) -> Vec<Cell> {
        let accepted = match self.accepted {
            Some(true) => Cell::from("True"),
            Some(false) => Cell::marked("False", Mark::Bad),
            None => Cell::marked("Unknown", Mark::Warning),
        };
        let nodes = match self.scope {
            Scope::Cluster => Cell::from("-"),
            Scope::Node => {
                let mark = match self.open_nodes {
                    open if open == self.nodes => Mark::Plain,
                    0 => Mark::Bad,
                    _ => Mark::Warning,
                };
                Cell::marked(format!("{}/{}", self.open_nodes, self.nodes), mark)
            }
        };
        let amount = |name: &str| match self.capacity.get(name) {
            Some(Amount { used, total }) => format!("{}/{}", short(*used), short(*total)),
            None => "-".to_owned(),
        };
        vec![
            self.name.as_str().into(),
            format!("{:?}", self.scope).into(),
            accepted,
            nodes,
            self.attachments.to_string().into(),
            amount(attributes::ADDRESSES).into(),
            amount(attributes::INTERFACES).into(),
            amount(attributes::BANDWIDTH).into(),
        ]
    }
}

impl NodeRow {
    fn cells(&self) -> Vec<Cell> {
        let closed: Vec<String> = self.closed.iter().map(closed).collect();
        let closed = Cell::marked(closed.join(", "), Mark::Warning);
        vec![
            self.name.as_str().into(),
            self.agent.cell(),
            self.devices.to_string().into(),
            self.attachments.to_string().into(),
            self.note.map_or(closed, |note| format!("({note})").into()),
        ]
    }
}

impl Report {
    /// Returns the status for people.
    pub(super) fn text(&self, colours: Colours) -> String {
        let head =
            ["NETWORK", "SCOPE", "ACCEPTED", "NODES", "ATTACHMENTS", "ADDRESSES", "INTERFACES", "BANDWIDTH"];
        let networks = table(&head, self.networks.iter().map(NetworkRow::cells), colours);
        let head = ["NODE", "AGENT", "DEVICES", "ATTACHMENTS", "NO NEW PODS"];
        let nodes = table(&head, self.nodes.iter().map(NodeRow::cells), colours);
        let mut text = format!("{networks}\n{nodes}");
        if !self.problems.is_empty() {
            text += &format!("\n{}\n", colours.paint(Mark::Bad, "PROBLEMS"));
        }
        for problem in &self.lines {
            text += &format!("* {}\n", printable(problem));
        }
        text + &noted(&self.notes)
    }
}

/// The notes under a report for people.
pub(super) fn noted(notes: &[String]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = notes.iter().map(|note| format!("* {}\n", printable(note))).collect();
    format!("\nNOTES\n{}", lines.concat())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::components::NAME;
    use k8s_openapi::api::resource::v1::ResourceSlice;

    fn network(name: &str, spec: Value, accepted: Value) -> ClaimNetwork {
        let mut all = json!({"cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan"}]}});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let mut condition = json!({"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
            "observedGeneration": 1, "lastTransitionTime": "2026-11-22T00:00:00Z"});
        condition.as_object_mut().unwrap().extend(accepted.as_object().unwrap().clone());
        let object = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork",
            "metadata": {"name": name, "generation": 1}, "spec": all, "status": {"conditions": [condition]}});
        serde_json::from_value(object).unwrap()
    }

    fn slice(node: &str, generation: i64, devices: Value) -> ResourceSlice {
        serde_json::from_value(json!({"metadata": {"name": format!("{node}-{generation}")}, "spec": {
            "driver": "netclaim.dev", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1}}}))
        .unwrap()
    }

    fn storage(taints: Value) -> Value {
        json!({"name": "net-storage", "attributes": {"network": {"string": "storage"}}, "taints": taints,
            "capacity": {"addresses": {"value": "254"}, "bandwidth": {"value": "10G"}, "interfaces": {"value": "4096"}}})
    }

    fn claim(pool: &str, consumed: Value) -> k8s_openapi::api::resource::v1::ResourceClaim {
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {}, "status": {"allocation": {"devices": {"results": [
            {"driver": "netclaim.dev", "pool": pool, "device": "net-storage", "request": "net", "consumedCapacity": consumed},
            {"driver": "other.example.com", "pool": pool, "device": "net-storage", "request": "gpu"}]}}}}))
        .unwrap()
    }

    fn pod(name: &str, node: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {NAME: name}}, "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    fn node(name: &str) -> k8s_openapi::api::core::v1::Node {
        serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
    }

    fn healthy() -> Snapshot {
        let used = json!({"netclaim.dev/addresses": "1", "bandwidth": "2500M"});
        Snapshot {
            networks: vec![network("storage", json!({}), json!({}))],
            slices: vec![
                slice("a", 1, json!([storage(json!([])), {"name": "nic-eth9"}])),
                slice("a", 2, json!([storage(json!([]))])),
                slice("b", 1, json!([storage(json!([]))])),
            ],
            claims: vec![claim("a", used.clone()), claim("a", used), claim("b", json!({"addresses": "1"}))],
            nodes: vec![node("a"), node("b")],
            pods: vec![pod(AGENT, "a", "True"), pod(AGENT, "b", "True"), pod(CONTROLLER, "b", "True")],
            rules: Some(Vec::new()),
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_healthy_cluster_shows_what_is_used_and_of_how_much() {
        let report = Report::of(&healthy());
        assert_eq!(report.problems, [""; 0]);
        assert_eq!(
            report.text(Colours::Off),
            "NETWORK   SCOPE   ACCEPTED   NODES   ATTACHMENTS   ADDRESSES   INTERFACES   BANDWIDTH\n\
             storage   Node    True       2/2     3             3/508       -            5G/20G\n\
             \n\
             NODE   AGENT   DEVICES   ATTACHMENTS   NO NEW PODS\n\
             a      Ready   1         2\n\
             b      Ready   1         1\n"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["networks"][0]["capacity"]["addresses"], json!({"used": 3.0, "total": 508.0}));
        assert_eq!(json["nodes"][0]["agent"], "Ready");
    }

    #[test]
    fn pods_that_run_an_older_configuration_are_named_and_no_problem() {
        let mut snapshot = healthy();
        let annotate = |slice: &mut ResourceSlice, older: Value| {
            let text = json!({"storage": older}).to_string();
            slice.metadata.annotations = Some([("netclaim.dev/older-configuration".to_owned(), text)].into());
        };
        annotate(&mut snapshot.slices[0], json!({"pods": 9, "uids": []}));
        annotate(&mut snapshot.slices[1], json!({"pods": 2, "uids": ["00000001", "00000002"]}));
        annotate(&mut snapshot.slices[2], json!({"pods": 1, "uids": ["00000003"]}));
        let of_pod = |claim: &mut k8s_openapi::api::resource::v1::ResourceClaim, pod: &str, uid: &str| {
            claim.metadata.namespace = Some("shop".to_owned());
            let consumer = json!([{"resource": "pods", "name": pod, "uid": uid}]);
            claim.status.as_mut().unwrap().reserved_for = serde_json::from_value(consumer).unwrap();
        };
        of_pod(&mut snapshot.claims[0], "web-0", "00000001-1111");
        of_pod(&mut snapshot.claims[1], "new", "00000009-1111");
        of_pod(&mut snapshot.claims[2], "web-1", "00000003-1111");
        let report = Report::of(&snapshot);
        assert_eq!(report.problems, [""; 0]);
        let note = "ClaimNetwork storage: 3 pods run an older configuration: shop/web-0, shop/web-1, and 1 more. To \
                    update them, recreate them, for example by kubectl rollout restart";
        assert_eq!(report.notes, [note], "what an older generation of a pool says does not count");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["networks"][0]["olderPods"], 3);
        assert_eq!(json["networks"][0]["olderPodNames"], json!(["shop/web-0", "shop/web-1"]));
    }

    #[test]
    fn a_whole_link_that_a_pod_has_is_no_problem() {
        let with = |key: &str| {
            let mut snapshot = healthy();
            let taints = json!([{"key": key, "effect": "NoSchedule"}]);
            snapshot.slices =
                vec![slice("a", 2, json!([storage(json!([]))])), slice("b", 1, json!([storage(taints)]))];
            Report::of(&snapshot).problems.len()
        };
        assert_eq!((with("netclaim.dev/link-in-pod"), with("netclaim.dev/link-down")), (0, 1));
    }

    #[test]
    fn a_rule_that_keeps_pods_off_a_device_is_named() {
        let mut snapshot = healthy();
        let rule = json!({"metadata": {"name": "work"}, "spec": {"deviceSelector": {"pool": "b"},
            "taint": {"key": "example.com/maintenance", "effect": "NoSchedule"}}});
        snapshot.rules = Some(vec![serde_json::from_value(rule).unwrap()]);
        let report = Report::of(&snapshot);
        let closed = "net-storage (example.com/maintenance (DeviceTaintRule work))";
        assert_eq!(report.problems, [format!("node b takes no new pods for {closed}")]);
        let text = report.text(Colours::Off);
        assert!(text.contains("storage   Node    True       1/2 "), "{text}");
        assert!(text.contains(&format!("b      Ready   1         1             {closed}\n")), "{text}");
        snapshot.rules = None;
        let text = Report::of(&snapshot).text(Colours::Off);
        assert!(text.contains("\n* DeviceTaintRules could not be read: "), "{text}");
    }

    #[test]
    fn addresses_are_those_of_the_ranges_and_not_only_of_leased_blocks() {
        let totals = |used: i64| json!({"size": 1022, "leased": 128, "used": used, "free": 894});
        let shown = |addresses: Value, status: Value, pools: Vec<AddressPool>| {
            let mut snapshot = healthy();
            let mut network =
                serde_json::to_value(network("storage", json!({"addresses": addresses}), json!({}))).unwrap();
            network["status"]["addresses"] = status;
            snapshot.networks = vec![serde_json::from_value(network).unwrap()];
            snapshot.pools = pools;
            let amount = &Report::of(&snapshot).networks[0].capacity["addresses"];
            (amount.used, amount.total)
        };
        let own = || json!({"ranges": [{"subnet": "10.20.0.0/22"}]});
        assert_eq!(shown(own(), totals(7), vec![]), (7.0, 1022.0));
        assert_eq!(shown(own(), totals(0), vec![]), (3.0, 1022.0), "no node has reported yet");
        assert_eq!(shown(own(), Value::Null, vec![]), (3.0, 508.0), "the controller has not counted yet");
        let pool = |name: &str| {
            serde_json::from_value(json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressPool",
                "metadata": {"name": name}, "spec": own(), "status": {"addresses": totals(9)}}))
            .unwrap()
        };
        let drawn = || json!({"poolName": "office"});
        assert_eq!(shown(drawn(), Value::Null, vec![pool("other"), pool("office")]), (9.0, 1022.0));
        assert_eq!(shown(drawn(), Value::Null, vec![]), (3.0, 508.0), "pools cannot be read");
    }

    #[test]
    fn a_node_that_no_agent_and_no_network_is_for_is_no_problem() {
        let mut snapshot = healthy();
        let racks = json!({"nodeSelector": {"matchLabels": {"rack": "1"}}});
        snapshot.networks = vec![network("storage", racks, json!({}))];
        let labelled = |name: &str, labels: Value, spec: Value| {
            serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec}))
                .unwrap()
        };
        let taint = |key: &str| json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
        snapshot.nodes.extend([
            labelled("c", json!({"os": "linux"}), json!({})),
            labelled("d", json!({"os": "windows"}), json!({})),
            labelled("e", json!({"os": "linux"}), taint("gpu")),
            labelled("f", json!({"os": "linux"}), taint("node.kubernetes.io/not-ready")),
            labelled("g", json!({"os": "linux", "edge": "yes"}), json!({})),
        ]);
        snapshot.pods.push(pod(AGENT, "c", "True"));
        let field = |name: &str| json!({"key": name, "operator": "DoesNotExist"});
        let required = json!({"nodeSelectorTerms": [{"matchExpressions": [field("edge")]}]});
        let agent = json!({"containers": [], "nodeSelector": {"os": "linux"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}});
        snapshot.agents = vec![serde_json::from_value(agent).unwrap()];
        let report = Report::of(&snapshot);
        assert_eq!(report.problems, ["node f has no agent: pods with networks do not run there"]);
        let text = report.text(Colours::Off);
        let rows: Vec<&str> =
            text.lines().filter(|line| line.starts_with(['c', 'd', 'e', 'f', 'g'])).collect();
        assert_eq!(
            rows,
            [
                "c      Ready   0         0             (no ClaimNetwork is for this node)",
                "d      -       0         0",
                "e      -       0         0",
                "f      None    0         0",
                "g      -       0         0",
            ]
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["nodes"][2]["note"], "no ClaimNetwork is for this node");
        assert_eq!(json["nodes"][3]["agent"], "NotSelected");

        snapshot.agents = Vec::new();
        let problems = Report::of(&snapshot).problems;
        assert_eq!(problems.len(), 4, "without DaemonSets every node should have an agent: {problems:#?}");
        snapshot.nodes[2].metadata.labels = Some([("rack".to_owned(), "1".to_owned())].into());
        let problems = Report::of(&snapshot).problems;
        assert!(problems[0].starts_with("node c publishes no device"), "{problems:#?}");
    }

    #[test]
    fn a_problem_that_a_node_has_twice_is_said_once() {
        let owed = |node| (node, format!("node {node}: a DEL was given up"));
        assert_eq!(lines(&[owed("a"), owed("a")]), ["node a: a DEL was given up"]);
        assert_eq!(lines(&[owed("a"), owed("a"), owed("b")]), ["2 nodes (a, b): a DEL was given up"]);
    }

    #[test]
    fn nodes_with_the_same_problem_share_a_line_and_json_has_all() {
        let mut snapshot = healthy();
        let names: Vec<String> = (100..1100).map(|number| format!("n{number}")).collect();
        snapshot.nodes.extend(names.iter().map(|name| node(name)));
        snapshot.pods.extend(names.iter().skip(1).take(2).map(|name| pod(AGENT, name, "False")));
        snapshot.slices[2] = slice(
            "b",
            1,
            json!([storage(json!([{"key": "netclaim.dev/link-down", "effect": "NoSchedule"}]))]),
        );
        let report = Report::of(&snapshot);
        assert_eq!(report.problems.len(), 1001);
        let text = report.text(Colours::Off);
        let (_, problems) = text.split_once("PROBLEMS\n").unwrap();
        assert_eq!(
            problems,
            "* node b takes no new pods for net-storage (link-down)\n\
             * 998 nodes (n100, n103, n104 and 995 more): has no agent: pods with networks do not run there\n\
             * 2 nodes (n101, n102): the agent is not ready. It needs NRI and CDI of the container runtime: see the events of \
             the Node, and the agent's log\n"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["problems"][1], "node n100 has no agent: pods with networks do not run there");
        assert_eq!(json["lines"], Value::Null);
    }

    #[test]
    fn a_network_that_no_node_has_is_a_problem() {
        let mut snapshot = healthy();
        snapshot.networks.push(network("nowhere", json!({}), json!({})));
        snapshot.networks.push(network("whole", json!({"scope": "Cluster"}), json!({})));
        let nowhere = |snapshot: &Snapshot| -> Vec<String> {
            let problems = Report::of(snapshot).problems.into_iter();
            problems.map(|problem| problem.split(':').next().unwrap().to_owned()).collect()
        };
        assert_eq!(
            nowhere(&snapshot),
            ["ClaimNetwork nowhere is on no node", "ClaimNetwork whole is on no node"]
        );
        let mut served = node("a");
        served.metadata.labels = Some([("network.netclaim.dev/whole".to_owned(), "up".to_owned())].into());
        snapshot.nodes[0] = served;
        assert_eq!(nowhere(&snapshot), ["ClaimNetwork nowhere is on no node"]);
        let taint = json!([{"key": "netclaim.dev/link-down", "effect": "NoSchedule"}]);
        let mut closed = storage(taint);
        closed["attributes"]["network"] = json!({"string": "nowhere"});
        closed["name"] = json!("net-nowhere");
        snapshot.slices[2] = slice("b", 1, json!([storage(json!([])), closed]));
        assert_eq!(nowhere(&snapshot), ["node b takes no new pods for net-nowhere (link-down)"]);
    }

    #[test]
    fn what_is_wrong_is_said_in_sentences() {
        let mut snapshot = healthy();
        let invalid = json!({"status": "False", "reason": "Invalid", "message": "spec.cni: it is empty"});
        let odd = json!({"scope": "Cluster", "nodeSelector": {"matchLabels": {"rack": "no label"}}});
        snapshot.networks.push(network("odd", odd, invalid));
        snapshot.networks.push(network("new", json!({}), json!({"observedGeneration": 0})));
        let warned =
            json!({"status": "True", "reason": "AcceptedWithWarnings", "message": "look at spec.scope: no"});
        snapshot.networks[0] = network("storage", json!({}), warned);
        let down = json!([{"key": "netclaim.dev/link-down", "effect": "NoSchedule"}]);
        snapshot.slices[2] = slice("b", 1, json!([storage(down)]));
        snapshot.nodes.extend([node("c"), node("d"), node("e")]);
        snapshot.pods = vec![
            pod(AGENT, "a", "False"),
            pod(AGENT, "a", "True"),
            pod(AGENT, "b", "True"),
            pod(AGENT, "c", "False"),
            pod(AGENT, "e", "True"),
            pod(CONTROLLER, "b", "False"),
        ];
        let problems = Report::of(&snapshot).problems;
        let beginnings = [
            "no controller is ready",
            "ClaimNetwork storage is accepted with warnings: look at spec.scope: no",
            "ClaimNetwork odd is not accepted: spec.cni: it is empty",
            "ClaimNetwork new: the controller has not looked at it yet",
            "node b takes no new pods for net-storage (link-down)",
            "node c: the agent is not ready",
            "node d has no agent",
            "node e publishes no device",
        ];
        assert_eq!(problems.len(), beginnings.len(), "{problems:#?}");
        for (problem, beginning) in problems.iter().zip(beginnings) {
            assert!(problem.starts_with(beginning), "{problem}");
        }
    }

    #[test]
    fn a_terminal_shows_in_colours_what_is_wrong() {
        let mut snapshot = healthy();
        let down = json!([{"key": "netclaim.dev/link-down", "effect": "NoSchedule"}]);
        snapshot.slices[2] = slice("b", 1, json!([storage(down)]));
        snapshot.pods[0] = pod(AGENT, "a", "False");
        let report = Report::of(&snapshot);
        let (red, yellow) = (
            |text: &str| format!("\u{1b}[31m{text}\u{1b}[0m"),
            |text: &str| format!("\u{1b}[33m{text}\u{1b}[0m"),
        );
        let text = report.text(Colours::On);
        for marked in [red("NotReady"), yellow("1/2"), yellow("net-storage (link-down)"), red("PROBLEMS")] {
            assert!(text.contains(&marked), "{text}");
        }
        assert!(!report.text(Colours::Off).contains('\u{1b}'));
    }

    #[test]
    fn a_cluster_without_netclaim_has_one_problem_of_its_own() {
        let report = Report::of(&Snapshot::default());
        assert!(report.problems[0].contains("--netclaim-namespace"), "{:?}", report.problems);
    }

    #[test]
    fn numbers_have_few_digits() {
        for (value, expected) in
            [(0.0, "0"), (65534.0, "65534"), (2.5e9, "2.5G"), (1e12, "1T"), (1_250_000.0, "1.3M")]
        {
            assert_eq!(short(value), expected);
        }
    }
}
