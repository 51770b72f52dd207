//! What the controller says of pods for which the scheduler finds no node.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{claim, pod, text};
use netclaim_tests::{Plugged, Test, holds};
use serde_json::json;

/// More than the time until the controller looks at a pod again.
const AGAIN: u64 = 75;

const REASON: &str = "NetworkNotAllocated: ";

pub fn a_pod_that_no_node_can_serve_is_told_once_why(test: &Test<'_>) -> Result<()> {
    let namespace = test.namespace();
    let _first = Plugged::on(test, "node0", "eth63")?;
    let second = Plugged::on(test, "node1", "eth63")?;
    let network = test.network_on("eth63", "a", |network| {
        network["spec"]["capacity"] = json!({"interfaces": 1});
    })?;
    test.pod_on("node0", "holder", &network)?;
    test.runs_with("holder", &["net1"])?;
    second.set(&["far-eth63", "down"])?;
    test.condition(60, ["claimnetwork", &network], "Available", |condition| {
        ["node1", "link-down"].iter().all(|word| text(&condition["message"]).contains(word))
    })?;

    test.pod("waiting", &network)?;
    test.is_unschedulable("waiting")?;
    let event = test.event("waiting", &[REASON])?;
    let held = format!("held by claim {namespace}/holder (pod {namespace}/holder)");
    for part in [
        format!("{REASON}no node can serve request net of claim waiting. "),
        format!("1 node (node0): ClaimNetwork {network}: 0 of 1 interfaces free; {held}"),
        format!("1 node (node1): ClaimNetwork {network}: it takes no new pods: netclaim.dev/link-down"),
        format!("1 node (node2): the node does not offer ClaimNetwork {network}"),
    ] {
        ensure!(event.contains(&part), "{part:?} is not in {event:?}");
    }
    holds(AGAIN, "the pod has one event", || {
        let events = test.events("waiting")?;
        let told = events.iter().filter(|event| event.starts_with(REASON)).count();
        ensure!(told == 1, "{events:#?}");
        Ok(())
    })?;

    second.set(&["far-eth63", "up"])?;
    test.runs_with("waiting", &["net1"])?;
    ensure!(test.node_of("waiting")? == "node1", "it runs on {}", test.node_of("waiting")?);
    let others = test.events("holder")?;
    ensure!(!others.iter().any(|event| event.starts_with(REASON)), "{others:#?}");
    Ok(())
}

pub fn devices_that_an_admin_takes_out_of_service_are_said_to_be_so(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    let selector = json!({"driver": "netclaim.dev", "device": format!("net-{network}")});
    let taint = json!({"key": "example.com/maintenance", "effect": "NoSchedule"});
    let rule = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": network},
        "spec": {"deviceSelector": selector, "taint": taint}});
    test.create([rule])?;
    let told = taken_out_of_service(test, &network);
    test.cluster.kubectl(&["delete", "devicetaintrule", &network])?;
    told?;
    test.runs_with("waiting", &["net1"])?;
    test.condition(20, ["claimnetwork", &network], "Available", |condition| condition["status"] == "True")
}

fn taken_out_of_service(test: &Test<'_>, network: &str) -> Result<()> {
    let rule = format!("example.com/maintenance (DeviceTaintRule {network})");
    test.condition(30, ["claimnetwork", network], "Available", |condition| {
        condition["status"] == "False" && text(&condition["message"]).contains(&rule)
    })?;
    test.pod("waiting", network)?;
    test.is_unschedulable("waiting")?;
    test.event("waiting", &[REASON, "no node can serve", &rule])?;
    let explain = ["explain", "pod", "waiting", "--namespace", test.namespace(), "--output=json"];
    let said = test.netclaimctl(&explain)?;
    ensure!(said.to_string().contains(&rule), "{said:#}");
    // It exits with 1: this is a problem.
    let problems = test.netclaimctl(&["status", "--output=json"]).err().context("status has no problem")?;
    ensure!(problems.to_string().contains(&rule), "{problems:#}");
    Ok(())
}

pub fn a_pod_whose_selector_has_no_value_is_told_why(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    let mut asking = claim("odd", &network);
    let selector = json!({"cel": {"expression": "device.attributes[\"example.com\"].rack == \"a\""}});
    asking["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = json!([selector]);
    test.create([asking, pod("odd", &["odd"])])?;
    test.event("odd", &[REASON, "no such key: rack"]).map(drop)
}
