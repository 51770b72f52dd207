//! The scheduler chooses nodes that have what a claim requests.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim_template, list, pod_of_template, text};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

pub fn pods_run_only_on_nodes_with_the_networks_uplink(test: &Test<'_>) -> Result<()> {
    let two = test.network_on("eth2", "a", |_| {})?;
    test.condition(60, ["network", &two], "Available", |condition| {
        text(&condition["message"]).contains("not on node2")
    })?;
    for pod in ["p0", "p1", "p2"] {
        test.start_pod(pod, &two)?;
        let node = test.node_of(pod)?;
        ensure!(["node0", "node1"].contains(&node.as_str()), "{pod} runs on {node}, which has no eth2");
    }
    test.pod_on("node2", "elsewhere", &two)?;
    test.is_unschedulable("elsewhere")?;

    let _link = Plugged::on(test, "node2", "eth61")?;
    let one = test.network_on("eth61", "b", |_| {})?;
    test.start_pod("only", &one)?;
    ensure!(test.node_of("only")? == "node2", "it runs on {}", test.node_of("only")?);
    test.delete_pod("only")
}

/// The nodes that say by their label that pods can be attached to a Network of scope `Cluster` there.
fn serving(test: &Test<'_>, network: &str) -> Result<BTreeSet<String>> {
    let label = format!("network.netclaim.dev/{network}=up");
    let nodes = test.cluster.get(&["nodes", "-l", &label])?;
    Ok(list(&nodes["items"]).map(|node| text(&node["metadata"]["name"])).collect())
}

fn serve(test: &Test<'_>, network: &str, expected: &[&str]) -> Result<()> {
    eventually(40, &format!("{expected:?} serve {network}"), || {
        let nodes = serving(test, network)?;
        ensure!(nodes.iter().eq(expected), "{nodes:?} do");
        Ok(())
    })
}

pub fn pods_of_a_cluster_wide_network_run_only_on_nodes_that_serve_it(test: &Test<'_>) -> Result<()> {
    let _first = Plugged::on(test, "node0", "eth62")?;
    let second = Plugged::on(test, "node1", "eth62")?;
    let network = test.network_on("eth62", "a", |network| {
        network["spec"]["scope"] = json!("Cluster");
        network["spec"]["capacity"] = json!({"interfaces": 100});
    })?;
    serve(test, &network, &["node0", "node1"])?;
    test.pod_on("node2", "elsewhere", &network)?;
    test.is_unschedulable("elsewhere")?;
    test.pod_on("node1", "before", &network)?;
    test.runs_with("before", &["net1"])?;

    second.set(&["far-eth62", "down"])?;
    serve(test, &network, &["node0"])?;
    for pod in ["p0", "p1"] {
        test.start_pod(pod, &network)?;
        ensure!(test.node_of(pod)? == "node0", "{pod} runs where the link is down");
    }
    test.pod_on("node1", "waiting", &network)?;
    test.is_unschedulable("waiting")?;
    second.set(&["far-eth62", "up"])?;
    test.runs_with("waiting", &["net1"])?;

    // A label that somebody removes comes back, and those of a Network that is gone go.
    let label = format!("network.netclaim.dev/{network}-");
    test.cluster.kubectl(&["label", "node", "node0", &label])?;
    serve(test, &network, &["node0", "node1"])?;
    test.kubectl(&["delete", "pods", "--all", "--timeout=60s"])?;
    test.cluster.kubectl(&["delete", "network", &network, "--timeout=30s"])?;
    serve(test, &network, &[])
}

pub fn the_last_free_interface_goes_to_one_pod(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| network["spec"]["capacity"] = json!({"interfaces": 1}))?;
    let nodes = test.cluster.nodes();
    let mut used = BTreeSet::new();
    for node in &nodes {
        let pod = node.name();
        test.start_pod(&pod, &network)?;
        used.insert(test.node_of(&pod)?);
    }
    ensure!(used.len() == nodes.len(), "two pods share a node: {used:?}");
    test.pod("last", &network)?;
    test.is_unschedulable("last")?;
    let free = test.node_of("node1")?;
    test.delete_pod("node1")?;
    test.runs_with("last", &["net1"])?;
    ensure!(test.node_of("last")? == free, "it runs on {}, free is {free}", test.node_of("last")?);
    Ok(())
}

pub fn a_pod_goes_to_a_node_with_enough_bandwidth(test: &Test<'_>) -> Result<()> {
    let network = test.network_on("eth2", "a", |network| {
        network["spec"]["capacity"] = json!({"bandwidth": "1G"});
    })?;
    let start = |pod: &str, bandwidth: &str| -> Result<String> {
        test.pod_with_capacity(pod, &network, "bandwidth", bandwidth)?;
        test.runs_with(pod, &["net1"])?;
        test.node_of(pod)
    };
    let (first, second) = (start("first", "600M")?, start("second", "700M")?);
    ensure!(first != second, "1.3G on one node with 1G: {first}");
    test.pod_with_capacity("greedy", &network, "bandwidth", "500M")?;
    test.is_unschedulable("greedy")?;
    ensure!(start("third", "400M")? == first, "only {first} has 400M left");
    test.delete_pod("second")?;
    test.runs_with("greedy", &["net1"])?;
    ensure!(test.node_of("greedy")? == second, "it runs on {}", test.node_of("greedy")?);
    Ok(())
}

/// A pod with a claim of the template `net`, the label `app=NAME` and a scheduling rule about the pods with this label.
fn pod_with_rule(name: &str, app: &str, rule: impl FnOnce(&mut Value, Value)) -> Value {
    let mut pod = pod_of_template(name, "net");
    pod["metadata"]["labels"] = json!({"app": app});
    rule(&mut pod["spec"], json!({"matchLabels": {"app": app}}));
    pod
}

pub fn pods_with_claims_are_spread_over_the_nodes(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| network["spec"]["capacity"] = json!({"interfaces": 2}))?;
    test.create([claim_template("net", &network)])?;
    let spread = |name: &str| {
        pod_with_rule(name, "spread", |spec, pods| {
            spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": pods}]);
        })
    };
    let nodes = test.cluster.nodes().len();
    let mut used = Vec::new();
    for n in 0..2 * nodes {
        let name = format!("p{n}");
        test.create([spread(&name)])?;
        test.runs_with(&name, &["net1"])?;
        used.push(test.node_of(&name)?);
    }
    let count = |node: &String| used.iter().filter(|used| *used == node).count();
    ensure!(used.iter().all(|node| count(node) == 2), "the pods run on {used:?}");
    test.create([spread("last")])?;
    test.is_unschedulable("last")
}

pub fn pods_with_claims_avoid_each_other(test: &Test<'_>) -> Result<()> {
    let network = test.network_on("eth2", "a", |_| {})?;
    test.create([claim_template("net", &network)])?;
    for name in ["p0", "p1", "p2"] {
        test.create([pod_with_rule(name, "alone", |spec, pods| {
            spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!([{"labelSelector": pods, "topologyKey": "kubernetes.io/hostname"}]);
        })])?;
        if name != "p2" {
            test.runs_with(name, &["net1"])?;
        }
    }
    ensure!(test.node_of("p0")? != test.node_of("p1")?, "both run on {}", test.node_of("p0")?);
    // node2 has no other pod, but no eth2 either.
    test.is_unschedulable("p2")?;
    test.kubectl(&["delete", "pod", "p0", "--timeout=60s"])?;
    test.runs_with("p2", &["net1"])
}
