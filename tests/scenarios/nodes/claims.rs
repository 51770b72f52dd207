//! Claims on several nodes: one node's claim on another, and budgets of the whole cluster.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{claim, list, pod, text};
use netclaim_tests::{Node, Test, eventually};
use serde_json::json;

pub fn a_claim_of_another_node_is_refused(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod_on("node0", "first", &network)?;
    test.runs_with("first", &["net1"])?;
    // Without the scheduler, only the agent compares the node of the claim with that of the pod.
    let mut second = pod("second", &["first"]);
    second["spec"]["nodeName"] = json!("node1");
    test.create([second])?;
    eventually(60, "the claim is reserved for the pod", || {
        let claim = test.get("resourceclaim", "first")?;
        let mut pods = list(&claim["status"]["reservedFor"]);
        ensure!(pods.any(|pod| pod["name"] == "second"), "its status is {}", claim["status"]);
        Ok(())
    })?;
    test.wake("second")?;
    test.event("second", &["FailedPrepareDynamicResources", "is shared by pods first, second"])?;
    test.interface("first", "net1")?;
    // Without the first pod, the claim stays allocated on its node.
    test.kubectl(&["delete", "pod", "first", "--timeout=60s"])?;
    eventually(60, "the claim is reserved for the second pod alone", || {
        let reserved = test.get("resourceclaim", "first")?["status"]["reservedFor"].clone();
        let names: Vec<String> = list(&reserved).map(|pod| text(&pod["name"])).collect();
        ensure!(names == ["second"], "{names:?}");
        Ok(())
    })?;
    test.wake("second")?;
    let words =
        ["FailedPrepareDynamicResources", "status.allocation.nodeSelector does not select node node1"];
    test.event("second", &words)?;
    test.does_not_start("second")
}

/// Whether the journal of a node has an attachment of a claim.
fn has_attachment(node: &Node, uid: &str) -> Result<bool> {
    Ok(node.journal()?.iter().any(|file| file.contains(uid)))
}

pub fn a_named_claim_moves_to_another_node_with_its_pod(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.create([claim("c", &network)])?;
    let uid = text(&test.get("resourceclaim", "c")?["metadata"]["uid"]);
    for (name, other) in [("node0", "node1"), ("node1", "node2"), ("node2", "node0")] {
        let mut object = pod("p", &["c"]);
        object["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": name});
        test.create([object])?;
        test.runs_with("p", &["net1"])?;
        test.claim_was_not_refused("p")?;
        let mac = test.interface("p", "net1")?.mac;
        eventually(15, "the claim has the interface on the new node", || {
            let devices = test.claim_is_ready("c")?;
            let device = devices.first().context("no device")?;
            ensure!(device["networkData"]["hardwareAddress"] == mac && device["pool"] == name, "{device}");
            Ok(())
        })?;
        ensure!(has_attachment(&*test.cluster.node_named(name)?, &uid)?, "{name} has no attachment");
        ensure!(!has_attachment(&*test.cluster.node_named(other)?, &uid)?, "{other} has an attachment");
        test.kubectl(&["delete", "pod", "p", "--timeout=60s"])?;
        test.nodes_are_clean()?;
    }
    Ok(())
}

pub fn a_cluster_wide_network_counts_its_interfaces_over_all_nodes(test: &Test<'_>) -> Result<()> {
    let network = test.cluster_network(3)?;
    for node in ["node0", "node1", "node2"] {
        test.pod_on(node, node, &network)?;
        test.runs_with(node, &["net1"])?;
        let devices = test.claim_is_ready(node)?;
        let pool = format!("networks/{network}");
        ensure!(devices.iter().all(|device| device["pool"] == pool), "{devices:?}");
    }
    test.pod("fourth", &network)?;
    test.is_unschedulable("fourth")?;
    test.delete_pod("node1")?;
    test.runs_with("fourth", &["net1"])?;
    test.pod_on("node1", "fifth", &network)?;
    test.is_unschedulable("fifth")?;
    test.delete_pod("node2")?;
    test.runs_with("fifth", &["net1"])
}
