//! The status of one node: its links, which program each CNI plugin is, and what it lacks. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use netclaim_api::attributes;
use serde::Serialize;

use super::agents::Found;
use super::lacks;
use super::report::{
    Agent, Published, agent_of, agents, attribute, held, node_row, noted, of_node, plain, published,
    unread_rules,
};
use super::snapshot::Snapshot;
use crate::asking::Asked;
use crate::colour::{Colours, Mark};
use crate::printable::printable;
use crate::table::{Cell, NONE, table};

/// The status of netclaim on a node.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeReport {
    name: String,
    agent: Agent,
    kubelet: String,
    runtime: String,
    attachments: usize,
    devices: Vec<DeviceRow>,
    node_networks: Vec<NodeNetworkRow>,
    plugins: Vec<PluginRow>,
    /// What somebody should look at, in sentences.
    pub(super) problems: Vec<String>,
    /// What netclaim does without, and what is not known.
    notes: Vec<String>,
}

/// A device of the node.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceRow {
    /// The link; empty for a ClaimNetwork without one.
    uplink: String,
    name: String,
    network: String,
    mode: String,
    attachments: usize,
    /// The keys of the taints by which it takes no new pods.
    closed: BTreeSet<String>,
}

/// A ClaimNetwork of which something is on the node by `spec.node`.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeNetworkRow {
    network: String,
    /// Whether all of it is there.
    ready: bool,
}

/// A CNI plugin that ClaimNetworks of the node use.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PluginRow {
    plugin: String,
    networks: BTreeSet<String>,
    /// The program; `None` if it is not installed, or not known.
    path: Option<String>,
}

/// Whom to ask for a report of this node: what it lacks, and what it has found.
pub(super) fn questions<'a>(snapshot: &'a Snapshot, node: &'a str) -> Asked<'a> {
    let agent = agents(&snapshot.pods).get(node).map(|(_, pod)| *pod);
    agent.filter(|pod| lacks::waiting(pod).is_none()).map(|pod| (node, pod)).into_iter().collect()
}

impl NodeReport {
    /// Derives the status of a node.
    pub(super) fn of(snapshot: &Snapshot, node: &Node) -> Self {
        let (name, held) = (node.name_any(), held(snapshot));
        let published = published(snapshot);
        let own: Vec<&Published<'_>> =
            published.iter().filter(|published| published.node == Some(name.as_str())).collect();
        let agents = agents(&snapshot.pods);
        let (agent, pod) = agent_of(node, &agents, snapshot);
        let row = node_row(name.clone(), agent, &own, &held);
        let found = snapshot.answers.found.get(&name);
        let known = found.and_then(|found| found.as_ref().ok());

        let mut devices: Vec<DeviceRow> = own
            .iter()
            .map(|Published { pool, device, closed, .. }| {
                let text = |name| attribute(device, name).unwrap_or_default().to_owned();
                DeviceRow {
                    uplink: text(attributes::UPLINK),
                    name: device.name.clone(),
                    network: text(attributes::NETWORK),
                    mode: text(attributes::MODE),
                    attachments: held.get(&(*pool, device.name.as_str())).map_or(0, |held| held.attachments),
                    closed: closed.iter().map(|taint| plain(taint).to_owned()).collect(),
                }
            })
            .collect();
        devices.sort_by(|a, b| (&a.uplink, &a.name).cmp(&(&b.uplink, &b.name)));

        let plugins = plugins(snapshot, &devices, known);
        let mut problems = of_node(&row, node, pod, snapshot);
        if known.is_some() {
            let missing = plugins.iter().filter(|row| row.path.is_none());
            let missing = missing.map(|row| lacks::not_installed(&name, &row.plugin, &row.networks));
            let unsaid: Vec<String> = missing.filter(|problem| !problems.contains(problem)).collect();
            problems.extend(unsaid);
        }
        let mut notes = Vec::from_iter(lacks::of_server(known.as_slice()));
        notes.extend(unread_rules(snapshot));
        if let Some(Err(why)) = found {
            notes.push(format!(
                "not known which programs the CNI plugins are, nor whether counters are published: the agent would say, but {why}"
            ));
        }
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        Self {
            agent,
            kubelet: info.map(|info| info.kubelet_version.clone()).unwrap_or_default(),
            runtime: info.map(|info| info.container_runtime_version.clone()).unwrap_or_default(),
            attachments: row.attachments,
            devices,
            node_networks: known.map(node_networks).unwrap_or_default(),
            plugins,
            problems,
            notes,
            name,
        }
    }

    /// Returns the status for people.
    pub(super) fn text(&self, colours: Colours) -> String {
        let or_none = |text: &str| Cell::from(if text.is_empty() { NONE } else { text });
        let row = vec![
            self.name.as_str().into(),
            self.agent.cell(),
            or_none(&self.kubelet),
            or_none(&self.runtime),
            self.attachments.to_string().into(),
        ];
        let mut text = table(&["NODE", "AGENT", "KUBELET", "RUNTIME", "ATTACHMENTS"], [row], colours);
        let devices = self.devices.iter().map(|device| {
            let closed: Vec<&str> = device.closed.iter().map(String::as_str).collect();
            vec![
                or_none(&device.uplink),
                device.name.as_str().into(),
                or_none(&device.network),
                or_none(&device.mode),
                device.attachments.to_string().into(),
                Cell::marked(closed.join(", "), Mark::Warning),
            ]
        });
        if !self.devices.is_empty() {
            let head = ["UPLINK", "DEVICE", "NETWORK", "MODE", "ATTACHMENTS", "NO NEW PODS"];
            text += &format!("\n{}", table(&head, devices, colours));
        }
        let node_networks = self.node_networks.iter().map(|row| {
            let state = if row.ready { Cell::from("Ready") } else { Cell::marked("NotReady", Mark::Warning) };
            vec![row.network.as_str().into(), state]
        });
        if !self.node_networks.is_empty() {
            text += &format!("\n{}", table(&["NETWORK", "ON THE NODE"], node_networks, colours));
        }
        let plugins = self.plugins.iter().map(|row| {
            let networks: Vec<&str> = row.networks.iter().map(String::as_str).collect();
            let path = row.path.as_deref().map_or_else(|| Cell::marked(NONE, Mark::Bad), Cell::from);
            vec![row.plugin.as_str().into(), or_none(&networks.join(", ")), path]
        });
        if !self.plugins.is_empty() {
            text += &format!("\n{}", table(&["PLUGIN", "NETWORKS", "PROGRAM"], plugins, colours));
        }
        if !self.problems.is_empty() {
            text += &format!("\n{}\n", colours.paint(Mark::Bad, "PROBLEMS"));
        }
        for problem in &self.problems {
            text += &format!("* {}\n", printable(problem));
        }
        text + &noted(&self.notes)
    }
}

fn node_networks(found: &Found) -> Vec<NodeNetworkRow> {
    let row = |(network, ready): (&String, &bool)| NodeNetworkRow { network: network.clone(), ready: *ready };
    found.node_networks.iter().map(row).collect()
}

/// The plugins that the node's ClaimNetworks use. Without an answer of the agent there is nothing to show.
fn plugins(snapshot: &Snapshot, devices: &[DeviceRow], known: Option<&Found>) -> Vec<PluginRow> {
    let Some(found) = known else { return Vec::new() };
    let here: BTreeSet<&str> = devices.iter().map(|device| device.network.as_str()).collect();
    let networks = snapshot.networks.iter().filter(|network| here.contains(network.name_any().as_str()));
    let mut needed: BTreeMap<String, BTreeSet<String>> = lacks::needed(networks);
    for plugin in found.plugins.keys() {
        needed.entry(plugin.clone()).or_default();
    }
    let row = |(plugin, networks): (String, BTreeSet<String>)| {
        let path = found.plugins.get(&plugin).cloned();
        PluginRow { plugin, networks, path }
    };
    needed.into_iter().map(row).collect()
}
