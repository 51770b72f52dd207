//! What a ClaimNetwork of scope `Cluster` says while the cluster has a node autoscaler. None runs here: the
//! objects by which it is known are made by hand.

use anyhow::{Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Test, eventually};
use serde_json::json;

/// The status of a cluster autoscaler.
const STATUS: [&str; 4] = ["-n", "kube-system", "configmap", "cluster-autoscaler-status"];
/// A kind of Karpenter.
const NODE_POOLS: &str = "nodepools.karpenter.sh";

pub fn a_network_of_the_cluster_has_a_warning_while_there_is_an_autoscaler(test: &Test<'_>) -> Result<()> {
    let network = test.cluster_network(1)?;
    let of_node = test.macvlan("b")?;
    let result = warns_of_autoscalers(test, &network, &of_node);
    for what in [STATUS.as_slice(), &["crd", NODE_POOLS]] {
        test.cluster.kubectl(&[&["delete", "--ignore-not-found"], what].concat())?;
    }
    result?;
    test.condition(30, ["claimnetwork", &network], "Accepted", |condition| condition["reason"] == "Accepted")
}

fn warns_of_autoscalers(test: &Test<'_>, network: &str, of_node: &str) -> Result<()> {
    let says = |network: &str, reason: &str, words: &[&str]| {
        test.condition(30, ["claimnetwork", network], "Accepted", |condition| {
            let message = text(&condition["message"]);
            condition["status"] == "True"
                && condition["reason"] == reason
                && words.iter().all(|word| message.contains(word))
        })
    };
    says(network, "Accepted", &[])?;
    let words = "can't be sanitized";
    test.cluster.kubectl(&[&["create"], &STATUS[..]].concat())?;
    says(network, "AcceptedWithWarnings", &["kube-system/cluster-autoscaler-status", words])?;
    let warnings = test.cluster.get(&["claimnetwork", network])?["status"]["warnings"].clone();
    ensure!(warnings[0]["field"] == "spec.scope", "{warnings}");
    eventually(10, "the ClaimNetwork has an event", || {
        let events = test.cluster.get(&["-n", "default", "events"])?;
        let mut of_network =
            list(&events["items"]).filter(|event| event["involvedObject"]["name"] == network);
        let is_there = of_network.any(|event| {
            event["reason"] == "AcceptedWithWarnings" && text(&event["message"]).contains(words)
        });
        ensure!(is_there, "none says it");
        Ok(())
    })?;
    says(of_node, "Accepted", &[])?;

    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    test.create([json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": NODE_POOLS}, "spec": {
            "group": "karpenter.sh", "scope": "Cluster",
            "names": {"kind": "NodePool", "plural": "nodepools"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}})])?;
    let label = format!("network.netclaim.dev/{network} In [up]");
    says(network, "AcceptedWithWarnings", &[words, &label])
}
