//! Golden files, which `NETCLAIM_GENERATE=1` writes; the pictures of the documentation are among them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use crate::components::{AGENT, CONTROLLER, NAME};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// A cluster that grows by links of nodes and claims on them.
#[derive(Default)]
struct Cluster(Snapshot);

impl Cluster {
    fn with(networks: &[&str]) -> Self {
        let network = |name: &&str| {
            read(
                json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": name, "generation": 1},
                "spec": {"scope": if *name == "office" { "Cluster" } else { "Node" },
                    "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan"}]}},
                "status": {"conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                    "observedGeneration": 1, "lastTransitionTime": "2026-11-22T00:00:00Z"}]}}),
            )
        };
        let mut cluster = Self::default();
        cluster.0.networks = networks.iter().map(network).collect();
        cluster.0.rules = Some(Vec::new());
        cluster.pod(CONTROLLER, "node000", "True");
        cluster
    }

    fn pod(&mut self, component: &str, node: &str, ready: &str) {
        self.0.pods.push(read(json!({"metadata": {"name": component, "labels": {NAME: component}},
            "spec": {"nodeName": node, "containers": []}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})));
    }

    /// A node with these devices: link, ClaimNetwork, taint or nothing, attachments.
    fn node(&mut self, name: &str, ready: &str, labels: Value, devices: &[(&str, &str, &str, usize)]) {
        self.0.nodes.push(read(json!({"metadata": {"name": name, "labels": labels}})));
        self.pod(AGENT, name, ready);
        let device = |(link, network, taint, _): &(&str, &str, &str, usize)| {
            let taints: Vec<Value> = [*taint]
                .iter()
                .filter(|taint| !taint.is_empty())
                .map(|taint| json!({"key": format!("netclaim.dev/{taint}"), "effect": "NoSchedule"}))
                .collect();
            json!({"name": format!("net-{network}-{link}"), "taints": taints,
                "attributes": {"network": {"string": network}, "uplink": {"string": link}}})
        };
        let all: Vec<Value> = devices.iter().map(device).collect();
        self.0.slices.push(read(
            json!({"metadata": {"name": name}, "spec": {"driver": "netclaim.dev", "nodeName": name,
            "devices": all, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}}),
        ));
        for (link, network, _, attachments) in devices {
            let result = json!({"driver": "netclaim.dev", "pool": name, "device": format!("net-{network}-{link}"), "request": "net"});
            let claim = json!({"metadata": {"name": "c"}, "spec": {}, "status": {"allocation": {"devices": {"results": [result]}}}});
            self.0.claims.extend((0..*attachments).map(|_| read(claim.clone())));
        }
    }

    fn picture(&self) -> Picture {
        Picture::of(&Report::of(&self.0), &self.0)
    }
}

fn three_nodes() -> Cluster {
    let mut cluster = Cluster::with(&["backup", "office", "storage"]);
    let label = json!({"network.netclaim.dev/office": "up"});
    cluster.node("node0", "True", label.clone(), &[("eth1", "storage", "", 12), ("eth2", "backup", "", 1)]);
    cluster.node("node1", "True", label, &[("eth1", "storage", "", 3), ("eth2", "backup", "link-down", 2)]);
    cluster.node("node2", "False", json!({}), &[("eth1", "storage", "", 0), ("eth3", "", "", 1)]);
    let annotation = json!({"backup": {"pods": 2, "uids": []}}).to_string();
    cluster.0.slices[1].metadata.annotations =
        Some([("netclaim.dev/older-configuration".to_owned(), annotation)].into());
    cluster
}

fn five_hundred_nodes() -> Cluster {
    let names: Vec<String> = (0..40).map(|n| format!("tenant-{n:02}")).collect();
    let names: Vec<&str> =
        ["backup", "storage"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut cluster = Cluster::with(&names);
    for n in 0..500 {
        let down = if n % 40 == 7 { "link-down" } else { "" };
        let mut devices = vec![("eth1", "storage", down, n % 4)];
        if n < 200 {
            devices.push(("eth1", "backup", down, 1));
        }
        if n >= 450 {
            devices.extend(
                names.iter().skip(2).enumerate().map(|(tenant, name)| ("eth2", *name, "", tenant % 2)),
            );
        }
        let functions: Vec<String> = (0..32).map(|v| format!("eth3v{v}")).collect();
        if n < 20 {
            devices.extend(functions.iter().map(|link| (link.as_str(), "", "", 0)));
        }
        cluster.node(&format!("node{n:03}"), if n == 3 { "False" } else { "True" }, json!({}), &devices);
    }
    cluster
}

/// Checks that a file has the content, and writes it with `NETCLAIM_GENERATE=1`.
fn assert_fresh(path: &str, content: &str) {
    let path = root().join(path);
    if std::env::var_os("NETCLAIM_GENERATE").is_some() {
        std::fs::write(&path, content).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == content, "{} is stale: run `make generate` and commit the result", path.display());
}

#[test]
fn the_pictures_of_the_documentation_are_fresh() {
    for (name, cluster) in [("status", three_nodes()), ("status-500", five_hundred_nodes())] {
        let picture = cluster.picture();
        assert_fresh(&format!("docs/{name}.svg"), &svg(&picture));
        assert_fresh(&format!("cli/src/status/picture/golden/{name}.dot"), &dot(&picture));
        assert_fresh(&format!("cli/src/status/picture/golden/{name}.mmd"), &mermaid(&picture));
    }
}

#[test]
fn many_nodes_are_summarised() {
    let picture = five_hundred_nodes().picture();
    assert!(picture.nodes.len() <= MAX_BOXES && picture.networks.len() <= MAX_BOXES);
    let svg = svg(&picture);
    assert!(svg.len() < 64 * 1024, "{}", svg.len());
    let shown: usize = picture.lines.iter().filter_map(|line| line.attachments).sum();
    assert!(shown > 1000, "{shown}");
    assert_eq!(picture.left_out, [""; 0]);
    let labels: Vec<&str> = picture.networks.iter().map(|network| network.label.as_str()).collect();
    assert_eq!(labels, ["backup", "storage", "40 ClaimNetworks like tenant-00"]);
    let functions =
        picture.nodes.iter().flat_map(|node| &node.links).find(|link| link.label.starts_with("eth3v"));
    assert_eq!(functions.unwrap().label, "eth3v0 and 31 more");
}

#[test]
fn what_does_not_fit_is_counted() {
    let names: Vec<String> = (0..30).map(|n| format!("net-{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut cluster = Cluster::with(&names);
    for (n, name) in names.iter().enumerate() {
        cluster.node(&format!("node{n:02}"), "True", json!({}), &[("eth1", name, "", 30 - n)]);
    }
    let picture = cluster.picture();
    let nodes = "not shown: 14 ClaimNetworks with 105 attachments";
    assert_eq!(picture.left_out, [nodes, "not shown: 1 node, of 1 more kind"]);
    assert_eq!(
        picture.nodes[0].label, "14 nodes like node16",
        "they have other ClaimNetworks than those shown"
    );
}

#[test]
fn networks_of_the_cluster_on_other_nodes_do_not_look_alike() {
    let names: Vec<String> = (0..10).map(|n| format!("net-{n}")).collect();
    let mut cluster = Cluster::with(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let on = |networks: std::ops::Range<usize>| -> Value {
        networks
            .map(|n| (format!("network.netclaim.dev/net-{n}"), json!("up")))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    cluster.node("a", "True", on(0..4), &[]);
    cluster.node("b", "True", on(4..10), &[]);
    let picture = cluster.picture();
    let labels: Vec<&str> = picture.networks.iter().map(|network| network.label.as_str()).collect();
    assert_eq!(labels, ["4 ClaimNetworks like net-0", "6 ClaimNetworks like net-4"]);
    assert_eq!(picture.lines.len(), 2);
    assert!(picture.lines.iter().all(|line| line.label().is_empty()), "it is not known how many are there");
}

#[test]
fn each_of_a_few_nodes_has_a_box_and_its_health() {
    let picture = three_nodes().picture();
    let seen: Vec<_> = picture.nodes.iter().map(|node| (node.label.as_str(), node.health)).collect();
    let expected =
        [("node0", Health::Good), ("node1", Health::Doubtful), ("node2 (agent not ready)", Health::Bad)];
    assert_eq!(seen, expected);
    let facts: Vec<_> = picture.networks.iter().map(|network| network.facts.as_str()).collect();
    assert_eq!(
        facts,
        [
            "3 attachments, on 1 of 2 nodes, 2 pods of an older configuration",
            "0 attachments",
            "15 attachments"
        ]
    );
    let down = picture.lines.iter().find(|line| line.health == Health::Bad).unwrap();
    assert_eq!((down.label(), down.width()), ("2, link-down".to_owned(), 5));
    let link = picture.nodes[2].links.last().unwrap();
    assert_eq!(link.label, "eth3 (by itself: 1 attachment)");
}

#[test]
fn names_of_others_are_no_markup_in_any_form() {
    let hostile = "a\"]; b -> c //<script>alert('x')</script>&\\\u{1b}\u{ffff}|`#\n";
    let mut cluster = Cluster::with(&["storage"]);
    cluster.node(hostile, "True", json!({}), &[(hostile, "storage", "", 1)]);
    cluster.node("b", "True", json!({}), &[("eth1", "storage", "x\"y<z", 1)]);
    let picture = cluster.picture();
    let svg = svg(&picture);
    assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;alert(&#39;x"), "{svg}");
    assert!(svg.chars().all(|c| c == '\n' || !c.is_control()) && !svg.contains('\u{ffff}'));
    for text in svg.split("&").skip(1) {
        assert!(
            ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|entity| text.starts_with(entity)),
            "{text}"
        );
    }
    let dot = dot(&picture);
    for line in dot.lines().filter(|line| line.contains("script")) {
        let bare = line.replace("\\\\", "").replace("\\\"", "");
        assert_eq!(bare.matches('"').count() % 2, 0, "{line}");
        assert!(line.contains("a\\\"]; b -> c"), "{line}");
    }
    let mermaid = mermaid(&picture);
    for line in mermaid.lines().filter(|line| line.contains("script")) {
        let name = &line[line.find("[\"").unwrap() + 2..line.rfind("\"]").unwrap()];
        assert!(!name.contains(['"', '<', '>', '`', '[', ']', '|', '\\', '&']), "{line}");
    }
    let long = "é".repeat(300);
    assert_eq!(cut(&long).chars().count(), MAX_NAME);
}

#[test]
fn a_cluster_with_nothing_has_a_picture() {
    let nothing = Cluster::default().picture();
    assert!(svg(&nothing).ends_with("</svg>\n") && dot(&nothing).ends_with("}\n"));
    assert!(mermaid(&nothing).contains("flowchart LR"));
}

#[test]
fn of_many_lines_those_are_shown_that_are_not_well_or_have_most_attachments() {
    let line = |n: usize| Line {
        node: 0,
        link: 0,
        network: 0,
        attachments: Some(n),
        closed: String::new(),
        health: if n == 1 { Health::Bad } else { Health::Good },
    };
    let mut picture = Picture {
        title: String::new(),
        nodes: Vec::new(),
        networks: Vec::new(),
        lines: (0..310).map(line).collect(),
        left_out: Vec::new(),
    };
    picture.leave_out_lines();
    assert_eq!(picture.left_out, ["not shown: 10 more lines"]);
    assert_eq!(picture.lines.len(), MAX_LINES);
    let least = picture.lines.iter().filter_map(|line| line.attachments).min();
    assert_eq!((least, picture.lines[1].attachments), (Some(1), Some(309)));
}
