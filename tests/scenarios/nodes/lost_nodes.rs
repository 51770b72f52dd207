//! Nodes are drained, registered again and lost.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim_template, list, pod, pod_of_template, text};
use netclaim_tests::{Test, eventually, holds};
use serde_json::{Value, json};

/// netclaim's slices of a node.
fn slices_of(test: &Test<'_>, node: &str) -> Result<Vec<Value>> {
    Ok(test.cluster.slices()?.into_iter().filter(|slice| slice["spec"]["nodeName"] == node).collect())
}

/// Waits until so many nodes publish a ClaimNetwork.
fn is_on_nodes(test: &Test<'_>, network: &str, nodes: usize) -> Result<()> {
    eventually(60, &format!("{nodes} nodes publish {network}"), || {
        let status = test.cluster.get(&["claimnetwork", network])?["status"].clone();
        ensure!(status["nodes"]["publishing"] == nodes, "its status is {status}");
        Ok(())
    })
}

pub fn pods_of_a_drained_node_start_on_other_nodes(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    is_on_nodes(test, &network, test.cluster.nodes().len())?;
    let mut spec = pod_of_template("", "net")["spec"].take();
    // A drained node does not count: its pods have to fit on the others.
    spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {"app": "set"}}}]);
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "set"},
        "spec": {"replicas": 6, "selector": {"matchLabels": {"app": "set"}}, "template": {"metadata": {"labels": {"app": "set"}}, "spec": spec}}});
    test.create([claim_template("net", &network), set])?;
    // The nodes of the pods, all of which run.
    let run = || {
        eventually(90, "the pods run", || {
            let pods = test.cluster.get(&["-n", test.namespace(), "pods"])?;
            let pods: Vec<Value> = list(&pods["items"]).cloned().collect();
            let ready = |pod: &&Value| {
                pod["metadata"]["deletionTimestamp"].is_null()
                    && list(&pod["status"]["conditions"])
                        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
            };
            ensure!(pods.len() == 6 && pods.iter().filter(ready).count() == 6, "{} pods", pods.len());
            Ok(pods)
        })
    };
    let nodes = |pods: &[Value]| -> BTreeSet<String> {
        pods.iter().map(|pod| text(&pod["spec"]["nodeName"])).collect()
    };
    let before = nodes(&run()?);
    ensure!(before.contains("node1"), "no pod runs on node1: {before:?}");
    let drain = ["drain", "node1", "--ignore-daemonsets", "--force", "--timeout=60s"];
    let drained = test.cluster.kubectl(&drain).map(drop);
    let meanwhile = || -> Result<()> {
        drained?;
        let pods = run()?;
        ensure!(!nodes(&pods).contains("node1"), "a pod runs on node1: {:?}", nodes(&pods));
        pods.iter().try_for_each(|pod| test.began_with(&text(&pod["metadata"]["name"]), &["net1"]))?;
        let left = test.cluster.node_named("node1")?.journal()?;
        ensure!(left.is_empty(), "left in the journal of node1: {left:?}");
        // A drained node keeps its agent, and offers its devices.
        ensure!(!slices_of(test, "node1")?.is_empty(), "node1 has no slices");
        Ok(())
    };
    let (shown, back) = (meanwhile(), test.cluster.kubectl(&["uncordon", "node1"]));
    shown.and(back)?;
    test.pod_on("node1", "p", &network)?;
    test.runs_with("p", &["net1"])
}

pub fn slices_return_after_a_node_has_registered_again(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    is_on_nodes(test, &network, test.cluster.nodes().len())?;
    test.pod_on("node0", "other", &network)?;
    test.runs_with("other", &["net1"])?;
    let uid = || -> Result<Value> { Ok(test.cluster.get(&["node", "node1"])?["metadata"]["uid"].clone()) };
    let uids = |node: &str| -> Result<BTreeSet<String>> {
        Ok(slices_of(test, node)?.iter().map(|slice| text(&slice["metadata"]["uid"])).collect())
    };
    let (old, others) = (uid()?, uids("node0")?);
    test.cluster.kubectl(&["delete", "node", "node1"])?;
    test.cluster.service("restart", "kubelet1")?;
    let owns_its_slices = || {
        let new = uid()?;
        let slices = slices_of(test, "node1")?;
        let is_owned = |slice: &Value| slice["metadata"]["ownerReferences"][0]["uid"] == new;
        ensure!(new != old && !slices.is_empty() && slices.iter().all(is_owned), "{new}: {slices:?}");
        Ok(())
    };
    eventually(60, "node1 is registered and owns its slices", owns_its_slices)?;
    // Longer than the garbage collector takes to notice a missing owner.
    holds(10, "node1 owns its slices", owns_its_slices)?;
    is_on_nodes(test, &network, test.cluster.nodes().len())?;
    test.cluster.agent_ready()?;
    test.pod_on("node1", "p", &network)?;
    test.runs_with("p", &["net1"])?;
    ensure!(uids("node0")? == others, "the slices of node0 were written: {others:?}, {:?}", uids("node0")?);
    test.interface("other", "net1").map(drop)
}

/// Powers a node off, and deletes it and its pods.
pub fn lose(test: &Test<'_>, node: &str) -> Result<()> {
    test.cluster.power_off(node)?;
    forget(test, node)
}

/// Deletes a node and its pods as an operator does when a machine is broken. The controller may have been on
/// it: without that, another one comes when the pods of the lost node are collected, more than a minute
/// later.
pub fn forget(test: &Test<'_>, node: &str) -> Result<()> {
    test.cluster.kubectl(&["delete", "node", node])?;
    let force = ["delete", "pods", "--all-namespaces", "--grace-period=0", "--force", "--field-selector"];
    test.cluster.kubectl(&[force.as_slice(), &[&format!("spec.nodeName={node}")]].concat()).map(drop)
}

pub fn claims_of_a_lost_node_serve_pods_on_other_nodes(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    let whole = test.cluster_network_named("b", 1)?;
    let nodes = test.cluster.nodes().len();
    is_on_nodes(test, &network, nodes)?;
    for (name, class) in [("a", &network), ("b", &whole)] {
        test.pod_on("node1", name, class)?;
        test.runs_with(name, &["net1"])?;
    }
    lose(test, "node1")?;
    eventually(60, "the slices of the node are gone", || {
        let slices = slices_of(test, "node1")?;
        ensure!(slices.is_empty(), "{slices:?}");
        Ok(())
    })?;
    test.cluster.controller_ready()?;
    is_on_nodes(test, &network, nodes - 1)?;
    for name in ["a", "b"] {
        eventually(60, "the claim is free", || {
            let status = test.get("resourceclaim", name)?["status"].clone();
            ensure!(status["allocation"].is_null(), "its status is {status}");
            Ok(())
        })?;
        test.create([pod(name, &[name])])?;
        test.runs_with(name, &["net1"])?;
        ensure!(test.node_of(name)? != "node1", "it runs on node1");
    }
    // The machine is mended: it registers as a new node, and has nothing of its old pods.
    test.cluster.power_on("node1")?;
    is_on_nodes(test, &network, nodes)?;
    test.cluster.agent_ready()?;
    test.pod_on("node1", "new", &network)?;
    test.runs_with("new", &["net1"])?;
    let node = test.cluster.node_named("node1")?;
    eventually(120, "node1 has only its new pod", || {
        let (leases, journal) = (node.leases()?, node.journal()?);
        ensure!(leases.len() == 1 && journal.len() == 1, "leases {leases:?}, journal {journal:?}");
        Ok(())
    })
}
