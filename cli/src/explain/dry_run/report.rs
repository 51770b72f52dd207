//! What a ClaimNetwork would give a pod on each node. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::ResourceExt as _;
use netclaim_allocation::nodes_in_words;
use netclaim_api::device::{self, DeviceName};
use netclaim_api::dry_run::{DryRun, FoundPlugin, SetUp, Status};
use netclaim_api::network::ClaimNetwork;
use netclaim_api::node_selector::selects_node;
use netclaim_api::reasons::{AcceptedReason, ConditionReason as _};
use netclaim_api::taints;
use serde::Serialize;
use serde_json::Value;

use super::{Asked, Facts};
use crate::bugreport::redaction::{Redaction, redact};
use crate::printable::{escaped, printable};
use crate::slices::newest;

/// The most nodes that a line names.
const SHOWN: usize = 5;
/// What is said of a node where nothing is wrong.
const FINE: &str = "pods can be attached";

/// The explanation of a ClaimNetwork.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    network: String,
    nodes: Vec<NodeReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeReport {
    name: String,
    /// What keeps pods from being attached, the nearest cause; or that nothing does.
    verdict: String,
    /// `None` where that is not known.
    can_attach: Option<bool>,
    /// The device as it is published.
    published: Option<Published>,
    /// What the agent would do.
    #[serde(flatten)]
    answer: Option<DryRun>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Published {
    pool: String,
    device: String,
    /// The keys of the taints that keep pods off.
    taints: Vec<String>,
}

impl Report {
    /// Derives the explanation.
    pub(super) fn of(facts: &Facts) -> Self {
        let redaction = Redaction::new().ok();
        let nodes = facts.nodes.iter().map(|node| {
            let name = node.name_any();
            let published = facts.slices.as_deref().map(|slices| published(&facts.network, &name, slices));
            let asked = facts.answers.get(&name);
            let (can_attach, verdict) = judged(&facts.network, node, published.as_ref(), asked);
            // Without a redaction nothing of the agent is shown.
            let answer = redaction.as_ref().zip(asked.and_then(|asked| asked.as_ref().ok()));
            NodeReport {
                verdict: redaction.as_ref().map(|redaction| redaction.text(&verdict)).unwrap_or_default(),
                name,
                can_attach,
                published: published.flatten(),
                answer: answer.and_then(|(redaction, answer)| without_secrets(answer, redaction)),
            }
        });
        Self { network: facts.network.name_any(), nodes: nodes.collect() }
    }

    /// Returns the explanation for people; of one node if it `is_one`, in full.
    pub(crate) fn text(&self, is_one: bool) -> String {
        if let (true, [node]) = (is_one, self.nodes.as_slice()) {
            return node.text(&self.network);
        }
        let mut groups: BTreeMap<(Option<bool>, &str), Vec<String>> = BTreeMap::new();
        for node in &self.nodes {
            groups.entry((node.can_attach, &node.verdict)).or_default().push(node.name.clone());
        }
        let mut text = format!("ClaimNetwork {}\n", printable(&self.network));
        for ((_, verdict), nodes) in groups.iter().rev() {
            let _ = writeln!(text, "  {}: {}", nodes_in_words(nodes, SHOWN), printable(verdict));
        }
        text + "\nWith --node NAME: the configuration on that node, its plugins, link and addresses\n"
    }
}

/// Whether a pod could be attached on the node, and what keeps it off.
fn judged(
    network: &ClaimNetwork,
    node: &Node,
    published: Option<&Option<Published>>,
    asked: Option<&Asked>,
) -> (Option<bool>, String) {
    if !selects_node(network.spec.node_selector.as_ref(), node.labels()) {
        return (Some(false), "spec.nodeSelector does not select the node's labels".to_owned());
    }
    let mut conditions = network.status.iter().flat_map(|status| &status.conditions);
    let accepted = conditions.find(|condition| condition.type_ == AcceptedReason::TYPE);
    if let Some(refused) = accepted.filter(|accepted| accepted.status == "False") {
        return (Some(false), format!("the ClaimNetwork is not accepted: {}", refused.message));
    }
    let answer = match asked {
        None => return (Some(false), "the node has no agent of netclaim".to_owned()),
        Some(Err(why)) => return (None, why.to_string()),
        Some(Ok(answer)) => answer,
    };
    let missing = answer.plugins.iter().find_map(|plugin| plugin.problem.clone());
    let not_ready = (answer.status.is_ready == Some(false)).then(|| answer.status.message.clone());
    let down = answer.uplink.as_ref().and_then(|uplink| uplink.problem.clone());
    let on_node = answer.node.as_ref().and_then(|node| node.problem.clone());
    let exhausted = answer.addresses.as_ref().filter(|addresses| addresses.left == 0);
    let exhausted = exhausted.map(|addresses| match addresses.all {
        0 => "the node has no addresses of it".to_owned(),
        all => format!("claims hold all addresses that the node has of it ({all})"),
    });
    let problem = answer.refusal.clone().or(missing).or(not_ready).or(down).or(on_node).or(exhausted);
    let of_device = || match published? {
        None => Some("its device is not published".to_owned()),
        Some(published) => published.taints.first().map(|key| {
            taints::Reason::of_key(key).map_or_else(|| key.clone(), |reason| reason.words().to_owned())
        }),
    };
    match problem.or_else(of_device) {
        Some(problem) => (Some(false), problem),
        None => (Some(true), FINE.to_owned()),
    }
}

/// Returns the ClaimNetwork's device on the node, if it is published.
fn published(network: &ClaimNetwork, node: &str, slices: &[ResourceSlice]) -> Option<Published> {
    let name = network.name_any().parse().ok()?;
    let pool = device::pool(&name, network.spec.scope, node);
    let name = DeviceName::Network(name).to_string();
    let mut devices = newest(slices).filter(|slice| slice.spec.pool.name == pool);
    let found =
        devices.find_map(|slice| slice.spec.devices.iter().flatten().find(|found| found.name == name))?;
    let taints = found.taints.iter().flatten().filter(|taint| taint.effect != "None");
    Some(Published { taints: taints.map(|taint| taint.key.clone()).collect(), pool, device: name })
}

/// Returns the answer as it may be shown: CNI configurations have secrets, and plugins repeat them.
fn without_secrets(answer: &DryRun, redaction: &Redaction) -> Option<DryRun> {
    let mut answer = serde_json::to_value(answer).ok()?;
    redact(&mut answer);
    redact_texts(&mut answer, redaction);
    serde_json::from_value(answer).ok()
}

fn redact_texts(value: &mut Value, redaction: &Redaction) {
    match value {
        Value::String(text) => *text = redaction.text(text),
        Value::Array(items) => items.iter_mut().for_each(|item| redact_texts(item, redaction)),
        Value::Object(fields) => fields.values_mut().for_each(|field| redact_texts(field, redaction)),
        _ => {}
    }
}

impl NodeReport {
    fn text(&self, network: &str) -> String {
        let head = format!("ClaimNetwork {network} on node {}: {}", self.name, self.verdict);
        let mut text = printable(&head) + "\n";
        if let Some(published) = &self.published {
            let taints = match published.taints.as_slice() {
                [] => "takes new pods".to_owned(),
                taints => format!("takes no new pods: {}", taints.join(", ")),
            };
            section(&mut text, "published", [format!("{}/{}: {taints}", published.pool, published.device)]);
        }
        let Some(answer) = &self.answer else { return text };
        section(&mut text, "plugins", plugins(&answer.plugins, &answer.status));
        section(
            &mut text,
            "uplink",
            answer.uplink.iter().map(|uplink| {
                let state = uplink.problem.as_deref().unwrap_or("can be used");
                format!("{}: {state}, MTU {}", uplink.name, uplink.mtu)
            }),
        );
        section(
            &mut text,
            "addresses",
            answer
                .addresses
                .iter()
                .map(|addresses| format!("{} of {} are left on the node", addresses.left, addresses.all)),
        );
        section(&mut text, "notes", answer.notes.iter().cloned());
        conflist(&mut text, "conflist of the next pod", answer.conflist.as_ref());
        conflist(&mut text, "conflist of spec.finalize", answer.finalize.as_ref());
        if let Some(SetUp { interface, conflist: chain, is_ready, problem }) = &answer.node {
            let state = match (problem, is_ready) {
                (Some(problem), _) => problem.clone(),
                (None, true) => format!("{interface} is set up"),
                (None, false) => format!("{interface} is not set up: a pod of the node has it set up"),
            };
            section(&mut text, "spec.node", [state]);
            conflist(&mut text, "conflist of spec.node", chain.as_ref());
        }
        text
    }
}

/// The plugins, and what they say to STATUS.
fn plugins<'a>(plugins: &'a [FoundPlugin], status: &'a Status) -> impl Iterator<Item = String> + 'a {
    let place = |found: &FoundPlugin| {
        let place = found.path.as_deref().or(found.problem.as_deref()).unwrap_or("missing");
        format!("{}: {place}", found.plugin)
    };
    let status = match status {
        Status { is_ready: Some(true), .. } => "STATUS: ready".to_owned(),
        Status { is_ready: Some(false), message } => format!("STATUS: not ready: {message}"),
        Status { is_ready: None, message } => format!("STATUS: {message}"),
    };
    plugins.iter().map(place).chain([status])
}

fn section(text: &mut String, title: &str, items: impl IntoIterator<Item = String>) {
    let mut items = items.into_iter().peekable();
    if items.peek().is_some() {
        let _ = writeln!(text, "\n{title}");
    }
    for item in items {
        let _ = writeln!(text, "  {}", printable(&item));
    }
}

fn conflist(text: &mut String, title: &str, conflist: Option<&Value>) {
    if let Some(json) = conflist.and_then(|conflist| serde_json::to_string_pretty(conflist).ok()) {
        let _ = writeln!(text, "\n{title}");
        for line in json.lines() {
            let _ = writeln!(text, "  {}", escaped(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::NotAsked;
    use super::*;

    fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn node(name: &str, labels: Value) -> Node {
        from(json!({"metadata": {"name": name, "labels": labels}}))
    }

    fn slice(node: &str, taints: Value) -> ResourceSlice {
        from(json!({"metadata": {"name": node}, "spec": {"driver": "netclaim.dev", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "net-storage", "taints": taints}]}}))
    }

    fn facts(answers: impl IntoIterator<Item = (&'static str, Asked)>, taints: Value) -> Facts {
        let network = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork",
            "metadata": {"name": "storage"},
            "spec": {"nodeSelector": {"matchLabels": {"rack": "1"}}, "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}}});
        let answers: BTreeMap<String, Asked> =
            answers.into_iter().map(|(node, answer)| (node.to_owned(), answer)).collect();
        let rack = json!({"rack": "1"});
        let mut nodes: Vec<Node> = answers.keys().map(|name| node(name, rack.clone())).collect();
        nodes.push(node("elsewhere", json!({})));
        let slices = answers.keys().map(|name| slice(name, taints.clone())).collect();
        Facts { network: from(network), nodes, slices: Some(slices), answers }
    }

    fn well() -> DryRun {
        from(json!({
            "conflist": {"cniVersion": "1.1.0", "plugins": [{"type": "bridge", "password": "hunter2", "note": "${pod.name}"}]},
            "plugins": [{"plugin": "bridge", "path": "/opt/cni/bin/bridge"}], "status": {"isReady": true},
            "uplink": {"name": "eth1", "mtu": 1500}, "addresses": {"left": 2, "all": 5}}))
    }

    #[test]
    fn the_nearest_cause_is_the_verdict_on_a_node() {
        let verdict = |change: Value| {
            let mut answer = serde_json::to_value(well()).unwrap();
            answer.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            let report = Report::of(&facts([("a", Ok(from(answer)))], json!([])));
            (report.nodes[0].can_attach, report.nodes[0].verdict.clone())
        };
        assert_eq!(verdict(json!({})), (Some(true), FINE.to_owned()));
        for (change, cause) in [
            (json!({"refusal": "no block"}), "no block"),
            (json!({"plugins": [{"plugin": "x", "problem": "x is not installed"}]}), "x is not installed"),
            (json!({"status": {"isReady": false, "message": "the switch reboots"}}), "the switch reboots"),
            (
                json!({"uplink": {"name": "eth1", "problem": "uplink eth1 is set down"}}),
                "uplink eth1 is set down",
            ),
            (
                json!({"addresses": {"left": 0, "all": 5}}),
                "claims hold all addresses that the node has of it (5)",
            ),
        ] {
            assert_eq!(verdict(change), (Some(false), cause.to_owned()));
        }
        let tainted =
            facts([("a", Ok(well()))], json!([{"key": "netclaim.dev/link-down", "effect": "NoSchedule"}]));
        assert_eq!(Report::of(&tainted).nodes[0].verdict, "the uplink is down or has no carrier");
        let mut unpublished = facts([("a", Ok(well()))], json!([]));
        unpublished.slices = Some(Vec::new());
        assert_eq!(Report::of(&unpublished).nodes[0].verdict, "its device is not published");
        unpublished.slices = None;
        assert_eq!(Report::of(&unpublished).nodes[0].verdict, FINE, "nobody can say that of slices unread");
    }

    #[test]
    fn nodes_are_grouped_by_what_is_said_of_them() {
        let forbidden = || Err(NotAsked::Forbidden("netclaim-system".to_owned()));
        let facts = facts([("a", Ok(well())), ("b", Ok(well())), ("c", forbidden())], json!([]));
        let text = Report::of(&facts).text(false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "ClaimNetwork storage",
                "  2 nodes (a, b): pods can be attached",
                "  1 node (elsewhere): spec.nodeSelector does not select the node's labels",
                "  1 node (c): you may not ask its agent: that takes the rights to get and create pods/exec in namespace netclaim-system",
            ]
        );
    }

    #[test]
    fn one_node_is_shown_in_full_and_without_secrets() {
        let mut facts = facts([("a", Ok(well()))], json!([]));
        facts.nodes.truncate(1);
        let report = Report::of(&facts);
        let text = report.text(true);
        for shown in [
            "ClaimNetwork storage on node a: pods can be attached\n",
            "\npublished\n  a/net-storage: takes new pods\n",
            "\nplugins\n  bridge: /opt/cni/bin/bridge\n  STATUS: ready\n",
            "\nuplink\n  eth1: can be used, MTU 1500\n",
            "\naddresses\n  2 of 5 are left on the node\n",
            "\"note\": \"${pod.name}\"",
        ] {
            assert!(text.contains(shown), "{shown} is not in {text}");
        }
        let json = crate::print::json(&report).unwrap();
        assert!(!text.contains("hunter2") && !json.contains("hunter2"), "{text}{json}");
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["nodes"][0]["name"], &json["nodes"][0]["canAttach"]), (&json!("a"), &json!(true)));
        assert_eq!(json["nodes"][0]["conflist"]["plugins"][0]["type"], "bridge");
    }
}
