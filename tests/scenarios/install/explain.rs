//! `netclaimctl explain` on a real cluster.

use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::list;
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// Runs `netclaimctl explain` as the cluster's admin, in the scenario's namespace.
fn explain(test: &Test<'_>, args: &[&str]) -> Result<Output> {
    test.run_netclaimctl(&[&["explain"], args, &["--namespace", test.namespace()]].concat())
}

/// What it says of an object.
fn explained(test: &Test<'_>, object: &str, name: &str) -> Result<String> {
    let output = explain(test, &[object, name])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

pub fn netclaimctl_says_why_a_pod_waits_and_who_has_what_it_wants(test: &Test<'_>) -> Result<()> {
    let namespace = test.namespace();
    let network = test.network("a", |network| {
        let node0 =
            json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node1", "node2"]});
        network["spec"]["nodeSelector"] = json!({"matchExpressions": [node0]});
        network["spec"]["capacity"] = json!({"interfaces": 1});
    })?;
    test.start_pod("holder", &network)?;
    test.pod("waiting", &network)?;
    test.is_unschedulable("waiting")?;

    eventually(20, "the cause and the holder are named", || {
        let text = explained(test, "pod", "waiting")?;
        let verdict = format!("pod {namespace}/waiting waits: no node can serve request");
        ensure!(text.starts_with(&verdict), "{text}");
        let holder = format!("held by claim {namespace}/holder (pod {namespace}/holder)");
        let full = format!("1 node (node0): ClaimNetwork {network}: 0 of 1 interfaces free; {holder}\n");
        ensure!(text.contains(&full), "{text}");
        ensure!(
            text.contains(&format!(
                "2 nodes (node1, node2): the node does not offer ClaimNetwork {network}\n"
            )),
            "{text}"
        );
        ensure!(text.contains("the scheduler says: "), "{text}");
        Ok(())
    })?;
    let claim = explained(test, "claim", "waiting")?;
    ensure!(claim.contains("0 of 1 interfaces free"), "{claim}");
    let details = explain(test, &["pod", "waiting", "--output=json"])?;
    let details: Value = serde_json::from_slice(&details.stdout)
        .with_context(|| String::from_utf8_lossy(&details.stderr).into_owned())?;
    let node =
        list(&details["judgement"]["nodes"]).find(|node| node["node"] == "node0").context("no node0")?;
    ensure!(node["answer"] == "no" && node["requests"][0]["answer"] == "no", "{node:#}");

    let running = explained(test, "pod", "holder")?;
    ensure!(
        running.starts_with(&format!("pod {namespace}/holder runs on node node0 with 1 network\n")),
        "{running}"
    );
    ensure!(running.contains(&format!("net1: ClaimNetwork {network} of pool node0")), "{running}");

    test.delete_pod("holder")?;
    test.runs_with("waiting", &["net1"])?;
    test.delete_pod("waiting")?;
    let gone = explain(test, &["pod", "waiting"])?;
    let error = String::from_utf8_lossy(&gone.stderr);
    ensure!(
        gone.status.code() == Some(1) && error.contains(&format!("there is no pod {namespace}/waiting")),
        "{error}"
    );
    Ok(())
}
