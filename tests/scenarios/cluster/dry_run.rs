//! `netclaimctl explain network`: what a ClaimNetwork would give a pod, before there is one.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Test, eventually, names};
use serde_json::{Value, json};

/// What netclaimctl says of the network on the node.
fn explained(test: &Test<'_>, network: &str) -> Result<Value> {
    let said = test.netclaimctl(&["explain", "network", network, "--node=node0", "--output=json"])?;
    ensure!(said["nodes"][0]["name"] == "node0", "{said}");
    Ok(said["nodes"][0].clone())
}

/// Waits until what is said of the network has `words` as its verdict.
fn is_said(test: &Test<'_>, network: &str, can_attach: bool, words: &str) -> Result<Value> {
    eventually(60, &format!("netclaimctl says {words:?}"), || {
        let said = explained(test, network)?;
        ensure!(
            said["canAttach"] == can_attach && text(&said["verdict"]).contains(words),
            "it says {} of {said}",
            said["verdict"]
        );
        Ok(said)
    })
}

/// Installs macvlan as the scenario's plugin, which notes its verbs in a file of the node.
fn noting_plugin(test: &Test<'_>, verbs: &str) -> Result<String> {
    test.plugin("plugin", &format!("echo \"$CNI_COMMAND\" >>{verbs}\nexec /opt/cni/bin/macvlan"))
}

/// The conflist that is journalled for the pod's attachment.
fn journalled(test: &Test<'_>, pod: &str) -> Result<Value> {
    let uid = text(&test.get("pod", pod)?["metadata"]["uid"]);
    let journal = test.cluster.node().path("/var/lib/netclaim/journal");
    let file = names(&journal)?.into_iter().find(|name| name.starts_with(&uid));
    let file = fs::read_to_string(journal.join(file.context("the pod has no file in the journal")?))?;
    Ok(serde_json::from_str::<Value>(&file)?["record"]["plan"]["conflist"].clone())
}

pub fn a_network_is_explained_before_its_first_pod_and_nothing_is_done(test: &Test<'_>) -> Result<()> {
    let verbs = format!("/var/lib/cni/{}.verbs", test.name("plugin"));
    let plugin = noting_plugin(test, &verbs)?;
    let network = test.network("a", |network| {
        network["spec"]["cni"]["cniVersion"] = json!("1.1.0");
        network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin);
        network["spec"]["allow"] = json!({"parameters": {"mtu": {"type": "integer", "minimum": 1280, "maximum": 1500, "default": 1400}}});
        network["spec"]["cni"]["plugins"][0]["mtu"] = json!("${parameters.mtu}");
    })?;
    let said = is_said(test, &network, true, "pods can be attached")?;
    ensure!(said["published"]["device"] == format!("net-{network}"), "{said}");
    ensure!(said["uplink"]["name"] == "eth1" && said["uplink"]["problem"].is_null(), "{said}");
    ensure!(said["addresses"]["left"] == said["addresses"]["all"] && said["addresses"]["all"] != 0, "{said}");
    let path = format!("/opt/cni/bin/{plugin}");
    ensure!(list(&said["plugins"]).any(|found| found["plugin"] == plugin && found["path"] == path), "{said}");
    ensure!(said["status"]["isReady"] == true, "{said}");
    let run = fs::read_to_string(test.cluster.node().path(&verbs))?;
    ensure!(run.lines().all(|verb| ["VERSION", "STATUS"].contains(&verb)), "the plugin has run {run}");
    let leases = test.cluster.node().leases()?;
    ensure!(!leases.iter().any(|(lease, _)| lease.contains(&network)), "{leases:?}");

    test.start_pod("p", &network)?;
    let found = journalled(test, "p")?;
    ensure!(found == said["conflist"], "the pod got {found}, and it was said {}", said["conflist"]);
    let one_less = said["addresses"]["all"].as_u64().map(|all| all - 1);
    ensure!(explained(test, &network)?["addresses"]["left"].as_u64() == one_less, "one address is held");

    test.cluster.on_node(&["mv", &path, &format!("{path}.away")])?;
    let missing = is_said(test, &network, false, &plugin);
    test.cluster.on_node(&["mv", &format!("{path}.away"), &path])?;
    ensure!(missing?["conflist"].is_null(), "a chain without its plugin");
    is_said(test, &network, true, "pods can be attached")?;
    test.delete_pod("p")
}

pub fn a_network_is_explained_where_it_has_no_address_and_without_its_secrets(test: &Test<'_>) -> Result<()> {
    let network = test.network("b", |network| {
        let plugin = &mut network["spec"]["cni"]["plugins"][0];
        plugin["ipam"]["ranges"] = json!([[
            {"subnet": test.subnet(2), "rangeStart": test.address(2, 10), "rangeEnd": test.address(2, 10)}]]);
        plugin["password"] = json!("planted-in-network");
        plugin["note"] = json!("${pod.name}");
    })?;
    test.start_pod("p", &network)?;
    let said = is_said(test, &network, false, "claims hold all addresses")?;
    let plugin = &said["conflist"]["plugins"][0];
    ensure!(plugin["password"] == "(redacted)" && plugin["note"] == "${pod.name}", "{said}");
    ensure!(said["status"]["isReady"].is_null(), "the plugins were asked in the name of a pod: {said}");
    ensure!(!said.to_string().contains("planted-in-network"), "{said}");
    let everywhere = test.netclaimctl(&["explain", "network", &network, "--output=json"])?;
    ensure!(everywhere["nodes"][0]["verdict"] == said["verdict"], "{everywhere}");
    let of_others = test.network("c", |network| {
        network["spec"]["nodeSelector"] = json!({"matchLabels": {"no-node": "has-it"}});
    })?;
    is_said(test, &of_others, false, "spec.nodeSelector").map(drop)
}
