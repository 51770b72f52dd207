//! Pods whose ClaimNetwork has changed since they were attached.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// What the node's slices say of the network's pods; null if nothing.
fn published(test: &Test<'_>, network: &str) -> Result<Value> {
    let slices = test.cluster.get(&["resourceslices"])?;
    let said = list(&slices["items"]).find_map(|slice| {
        let annotation = slice["metadata"]["annotations"]["netclaim.dev/older-configuration"].as_str()?;
        Some(serde_json::from_str::<Value>(annotation))
    });
    Ok(said.transpose()?.unwrap_or_default()[network].clone())
}

/// What `netclaimctl status` says of the network.
fn row(test: &Test<'_>, network: &str) -> Result<Value> {
    // Its exit code is about everything in the cluster.
    let output = test.run_netclaimctl(&["status", "--output=json"])?;
    let status: Value = serde_json::from_slice(&output.stdout)?;
    let row = list(&status["networks"]).find(|row| row["name"] == network).cloned();
    row.with_context(|| format!("no {network} in {status}"))
}

pub fn a_pod_with_an_older_configuration_of_its_network_is_counted_and_named_until_it_is_made_again(
    test: &Test<'_>,
) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("old", &network)?;
    let patch = |change: Value| {
        test.cluster.kubectl(&["patch", "claimnetwork", &network, "--type=json", "-p", &change.to_string()])
    };
    // No attachment is another one by this.
    patch(json!([{"op": "add", "path": "/spec/capacity", "value": {"interfaces": 50}}]))?;
    let device = format!("net-{network}");
    test.is_published(&device, |device| device["capacity"].to_string().contains("\"50\""))?;
    ensure!(published(test, &network)?.is_null(), "{}", published(test, &network)?);

    patch(json!([{"op": "add", "path": "/spec/cni/plugins/0/mtu", "value": 1400}]))?;
    test.condition(60, ["claimnetwork", &network], "PodsUpToDate", |condition| {
        let message = text(&condition["message"]);
        condition["status"] == "False"
            && condition["reason"] == "OlderConfiguration"
            && message.starts_with("1 pod runs an older configuration, on 1 node: node0.")
    })?;
    test.start_pod("new", &network)?;
    let named = json!([format!("{}/old", test.namespace())]);
    let shown = row(test, &network)?;
    ensure!(shown["olderPods"] == 1 && shown["olderPodNames"] == named, "{shown}");

    test.cluster.delete_agent_pod()?;
    test.cluster.agent_ready()?;
    eventually(30, "the next agent says the same", || {
        ensure!(published(test, &network)?["pods"] == 1, "{}", published(test, &network)?);
        Ok(())
    })?;

    test.delete_pod("old")?;
    test.start_pod("old", &network)?;
    test.condition(60, ["claimnetwork", &network], "PodsUpToDate", |condition| {
        condition["status"] == "True" && condition["reason"] == "UpToDate"
    })?;
    ensure!(published(test, &network)?.is_null(), "{}", published(test, &network)?);
    let shown = row(test, &network)?;
    ensure!(shown["olderPods"] == 0 && shown["olderPodNames"] == json!([]), "{shown}");
    test.delete_pod("old")?;
    test.delete_pod("new")
}
