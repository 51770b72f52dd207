//! A workload moves from Multus to netclaim and back, with both on one node.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{container, list};
use netclaim_tests::{RawNumbers, Test, eventually};
use serde_json::{Value, json};

use crate::contestants::Contestant as _;
use crate::daemon::Programs;
use crate::multus::{Multus, NETWORK};

fn deployment(name: &str) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels, "annotations": {"k8s.v1.cni.cncf.io/networks": NETWORK}},
            "spec": {"terminationGracePeriodSeconds": 2, "containers": [container("shell")]}}}})
}

/// The address of `net1` in the pod of a Deployment.
fn address(test: &Test<'_>, deployment: &str) -> Result<String> {
    test.kubectl(&["rollout", "status", &format!("deployment/{deployment}"), "--timeout=120s"])?;
    let of = format!("deployment/{deployment}");
    let shown = test.kubectl(&["exec", &of, "--", "ip", "-o", "-4", "addr", "show", "net1"])?;
    let address = shown.split_whitespace().nth(3).and_then(|address| address.split('/').next());
    address.map(str::to_owned).with_context(|| format!("{deployment} has no net1: {shown}"))
}

fn reaches(test: &Test<'_>, from: &str, to: &str) -> Result<()> {
    let from = format!("deployment/{from}");
    eventually(20, &format!("{from} reaches {to}"), || {
        test.kubectl(&["exec", &from, "--", "ping", "-c1", "-W2", "-I", "net1", to]).map(drop)
    })
}

/// The claims of the scenario.
fn claims(test: &Test<'_>) -> Result<usize> {
    let found: Value = serde_json::from_str(&test.kubectl(&["get", "resourceclaims", "-o", "json"])?)?;
    Ok(list(&found["items"]).count())
}

pub fn a_deployment_moves_from_multus_to_netclaim_and_back(test: &Test<'_>) -> Result<()> {
    let logs = RawNumbers::new(env!("CARGO_TARGET_TMPDIR"), "peers", "moving")?;
    let multus = Multus::new(test, &Programs::build()?, logs.dir())?;
    test.create([deployment("stays"), deployment("moves")])?;
    let (stays, before) = (address(test, "stays")?, address(test, "moves")?);
    reaches(test, "moves", &stays)?;

    let migration = test.migrate()?;
    test.create(list(&migration["objects"]).cloned())?;
    let mut changes = list(&migration["workloads"]);
    let change =
        changes.find(|change| change["object"]["name"] == "moves").context("it is not translated")?;
    let patch = change["patch"].to_string();
    test.kubectl(&["patch", "deployment", "moves", "--type", "strategic", "--patch", &patch])?;
    let after = address(test, "moves")?;
    ensure!(claims(test)? == 1, "its pod has no claim");
    // The plugin keeps the leases of both under the network's name.
    ensure!(after != stays, "both have {stays}");
    reaches(test, "moves", &stays)?;
    reaches(test, "stays", &after)?;
    eprintln!("         {NETWORK}: {stays} by Multus; {before} by Multus, {after} by netclaim");

    test.kubectl(&["rollout", "undo", "deployment/moves"])?;
    let back = address(test, "moves")?;
    ensure!(claims(test)? == 0, "its pod has a claim still");
    ensure!(back != stays, "both have {stays}");
    reaches(test, "moves", &stays)?;

    test.kubectl(&["delete", "deployment", "--all", "--timeout=60s"])?;
    test.kubectl(&["wait", "--for=delete", "pods", "--all", "--timeout=60s"])?;
    eventually(30, "every address is free", || {
        ensure!(multus.left()? == 0, "addresses are left");
        Ok(())
    })
}
