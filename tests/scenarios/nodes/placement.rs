//! The scheduler chooses nodes that have what a claim requests.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{claim_template, list, network, pod_of_template, policy, text};
use netclaim_tests::{Plugged, Test, eventually, holds};
use serde_json::{Value, json};

pub fn pods_run_only_on_nodes_with_the_networks_uplink(test: &Test<'_>) -> Result<()> {
    let two = test.network_on("eth2", "a", |_| {})?;
    test.condition(60, ["claimnetwork", &two], "Available", |condition| {
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

pub fn a_node_that_offers_nothing_has_no_slice(test: &Test<'_>) -> Result<()> {
    let of_node = || -> Result<Vec<Value>> {
        Ok(test.cluster.slices()?.into_iter().filter(|slice| slice["spec"]["nodeName"] == "node2").collect())
    };
    let never = test.name("never");
    let selector = json!({"matchLabels": {"kubernetes.io/hostname": "node2"}});
    let nothing = json!({"nodeSelector": selector, "links": {"names": ["*"]}, "publish": "Never"});
    test.create([policy(&never, nothing)])?;
    // Autoscalers compare the number of pools between nodes: one that was there stays.
    eventually(20, "node2 offers nothing, in its pool", || {
        let slices = of_node()?;
        let devices: Vec<&Value> = slices.iter().flat_map(|slice| list(&slice["spec"]["devices"])).collect();
        ensure!(devices.is_empty() && slices.len() == 1, "{slices:?}");
        Ok(())
    })?;
    for slice in of_node()? {
        test.cluster.kubectl(&["delete", "resourceslice", &text(&slice["metadata"]["name"])])?;
    }
    holds(5, "node2 has no slice", || {
        ensure!(of_node()?.is_empty(), "{:?}", of_node()?);
        Ok(())
    })?;
    test.cluster.kubectl(&["delete", "uplinkpolicy", &never])?;
    test.is_published_on("node2", "nic-eth1", |_| true)
}

/// The nodes that say by their label that pods can be attached to a ClaimNetwork of scope `Cluster` there.
fn serving(test: &Test<'_>, network: &str) -> Result<BTreeSet<String>> {
    let label = format!("network.netclaim.dev/{network}=up");
    let nodes = test.cluster.get(&["nodes", "-l", &label])?;
    Ok(list(&nodes["items"]).map(|node| text(&node["metadata"]["name"])).collect())
}

fn serve(test: &Test<'_>, network: &str, expected: &[&str]) -> Result<()> {
    eventually(40, &format!("{expected:?} serve {network}"), || {
        let nodes = serving(test, network)?;
        ensure!(nodes.iter().eq(expected), "{nodes:?} do");
        if !expected.is_empty() {
            let counts = test.cluster.get(&["claimnetwork", network])?["status"]["nodes"].clone();
            ensure!(counts["available"] == expected.len(), "its status says {counts}");
        }
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

    // A label that is removed comes back, and those of a ClaimNetwork that is gone go.
    let label = format!("network.netclaim.dev/{network}-");
    test.cluster.kubectl(&["label", "node", "node0", &label])?;
    serve(test, &network, &["node0", "node1"])?;
    test.kubectl(&["delete", "pods", "--all", "--timeout=60s"])?;
    test.cluster.kubectl(&["delete", "claimnetwork", &network, "--timeout=30s"])?;
    serve(test, &network, &[])
}

/// Seconds after an agent within which the labels of its node go.
const WITHOUT_AGENT: u64 = 60;

pub fn labels_of_a_cluster_wide_network_go_soon_after_the_agent(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| network["spec"]["scope"] = json!("Cluster"))?;
    let all: Vec<String> = test.cluster.nodes().iter().map(|node| node.name()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    serve(test, &network, &all)?;
    // One agent is killed, and the others are told to stop.
    test.cluster.agent_away()?;
    let gone = eventually(WITHOUT_AGENT, "no node has the label", || {
        let nodes = serving(test, &network)?;
        ensure!(nodes.is_empty(), "{nodes:?} have it");
        Ok(())
    });
    test.cluster.agent_back()?;
    gone?;
    serve(test, &network, &all)
}

/// A label of Nodes, which no Node has any more when it is dropped.
pub(crate) struct NodeLabel<'a> {
    pub(crate) test: &'a Test<'a>,
    pub(crate) key: String,
}

impl NodeLabel<'_> {
    pub(crate) fn set(&self, node: &str, value: &str) -> Result<()> {
        let label = format!("{}={value}", self.key);
        self.test.cluster.kubectl(&["label", "node", node, "--overwrite", &label]).map(drop)
    }

    /// A selector of one requirement about the label.
    fn selector(&self, operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": self.key, "operator": operator, "values": values}]})
    }
}

impl Drop for NodeLabel<'_> {
    fn drop(&mut self) {
        let _ = self.test.cluster.kubectl(&["label", "node", "--all", &format!("{}-", self.key)]);
    }
}

/// Waits until the status of a policy says that so many nodes follow it.
fn follow(test: &Test<'_>, policy: &str, count: usize) -> Result<()> {
    eventually(60, &format!("{count} nodes follow {policy}"), || {
        let nodes = test.cluster.get(&["uplinkpolicy", policy])?["status"]["nodes"].clone();
        ensure!(nodes == json!({"selected": count, "following": count}), "its status says {nodes}");
        Ok(())
    })
}

/// Waits until exactly these nodes publish a ClaimNetwork, and its status says so.
fn is_on(test: &Test<'_>, network: &str, expected: &[&str]) -> Result<()> {
    let device = format!("net-{network}");
    eventually(60, &format!("{network} is on {expected:?}"), || {
        let mut on = Vec::new();
        for node in test.cluster.nodes() {
            let node = node.name();
            on.extend(test.cluster.device_of(&node, &device)?.map(|_| node));
        }
        ensure!(on == expected, "it is on {on:?}");
        let counts = test.cluster.get(&["claimnetwork", network])?["status"]["nodes"].clone();
        let all = json!({"selected": counts["selected"], "publishing": expected.len(), "available": expected.len()});
        ensure!(counts == all, "its status says {counts}");
        Ok(())
    })
}

pub fn networks_and_policies_apply_to_the_nodes_that_their_selectors_select(test: &Test<'_>) -> Result<()> {
    let nodes: Vec<String> = test.cluster.nodes().iter().map(|node| node.name()).collect();
    let all_but = |left_out: &[&str]| -> Vec<&str> {
        nodes.iter().map(String::as_str).filter(|node| !left_out.contains(node)).collect()
    };
    let label = NodeLabel { test, key: test.name("rack") };
    label.set("node0", "a")?;
    label.set("node1", "b")?;
    let select = |name: &str, selector: Value| {
        test.network(name, |network| network["spec"]["nodeSelector"] = selector)
    };
    let both = select("a", label.selector("In", &["a", "b"]))?;
    let not_a = select("b", label.selector("NotIn", &["a"]))?;
    let without = select("d", label.selector("DoesNotExist", &[]))?;
    let of_cluster = test.network("c", |network| {
        network["spec"]["scope"] = json!("Cluster");
        let mut selector = label.selector("Exists", &[]);
        selector["matchLabels"] = json!({"kubernetes.io/os": "linux"});
        network["spec"]["nodeSelector"] = selector;
    })?;
    is_on(test, &both, &["node0", "node1"])?;
    is_on(test, &not_a, &all_but(&["node0"]))?;
    is_on(test, &without, &all_but(&["node0", "node1"]))?;
    serve(test, &of_cluster, &["node0", "node1"])?;
    test.pod_on("node2", "p", &without)?;
    test.runs_with("p", &["net1"])?;
    test.pod_on("node0", "elsewhere", &without)?;
    test.is_unschedulable("elsewhere")?;

    let _links = (Plugged::on(test, "node0", "eth64")?, Plugged::on(test, "node1", "eth64")?);
    test.is_published_on("node0", "nic-eth64", |_| true)?;
    test.is_published_on("node1", "nic-eth64", |_| true)?;
    let not_on_b = json!({"nodeSelector": label.selector("In", &["b"]), "links": {"names": ["eth64"]}, "publish": "Never"});
    let never = test.name("never");
    test.create([policy(&never, not_on_b)])?;
    follow(test, &never, 1)?;
    test.is_not_published_on("node1", "nic-eth64")?;
    test.is_published_on("node0", "nic-eth64", |_| true)?;

    label.set("node0", "b")?;
    is_on(test, &both, &["node0", "node1"])?;
    is_on(test, &not_a, &all_but(&[]))?;
    test.is_not_published_on("node0", "nic-eth64")?;
    follow(test, &never, 2)?;
    label.set("node1", "c")?;
    is_on(test, &both, &["node0"])?;
    test.is_published_on("node1", "nic-eth64", |_| true)
}

pub fn a_node_selector_that_is_empty_or_misspelt_is_refused(test: &Test<'_>) -> Result<()> {
    for (selector, problem) in [
        (json!({"matchLabels": {}}), "write labels as matchLabels, such as matchLabels: {rack: a}"),
        (json!({"matchLabels": {"rack": "a"}, "rack": "a"}), "unknown field \"spec.nodeSelector.rack\""),
    ] {
        let mut lab = network(&test.name("a"), "macvlan", "eth1", &test.subnet(0));
        lab["spec"]["nodeSelector"] = selector.clone();
        for object in [lab, policy(&test.name("p"), json!({"nodeSelector": selector, "links": {}}))] {
            let refused = format!("{:#}", test.create([object]).err().context("it was accepted")?);
            ensure!(refused.contains(problem), "{refused}");
        }
    }
    Ok(())
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

/// A pod with a claim of the template `net`, the label `app=NAME` and a scheduling rule about the pods with
/// this label.
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
