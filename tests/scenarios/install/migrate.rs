//! `netclaimctl migrate` on a real cluster, which knows Multus' objects and has no Multus.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{deployment_of_multus, foreign_definition, list};
use netclaim_tests::{Test, eventually, project};
use serde_json::{Value, json};

/// The definition of NetworkAttachmentDefinitions.
fn definition() -> Value {
    foreign_definition(
        "k8s.cni.cncf.io",
        "v1",
        "NetworkAttachmentDefinition",
        "network-attachment-definitions",
    )
}

pub fn a_deployment_of_multus_gets_its_network_from_netclaim(test: &Test<'_>) -> Result<()> {
    with_definition(test, moved)
}

/// Calls `scenario` while the cluster knows NetworkAttachmentDefinitions.
fn with_definition(test: &Test<'_>, scenario: impl Fn(&Test<'_>) -> Result<()>) -> Result<()> {
    test.create([definition()])?;
    test.cluster.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"])?;
    let result = scenario(test);
    // Their pods would come back.
    test.kubectl(&["delete", "deployment", "--all", "--timeout=60s"])?;
    let name = definition()["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    test.cluster.kubectl(&["delete", "crd", &name, "--timeout=60s"])?;
    result
}

/// What the guide writes before anything moves: labels of nodes, and the policy that keeps netclaim from
/// their virtual functions.
fn prepared(test: &Test<'_>) -> Result<()> {
    let guide = fs::read_to_string(project("docs/migrate-from-multus.md"))?;
    let label = guide.lines().map(str::trim).find(|line| line.starts_with("kubectl label node NODE "));
    let label = label.context("no node is labelled")?.replace("kubectl label node NODE ", "");
    let policy =
        guide.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).context("no policy")?;
    test.cluster.kubectl(&["label", "node", "node0", &label])?;
    let written = test.cluster.kubectl_with(&["apply", "-f", "-"], policy).and_then(|_| {
        test.condition(30, ["uplinkpolicy", "not-yet"], "Accepted", |condition| condition["status"] == "True")
    });
    let key = label.split('=').next().unwrap_or_default();
    test.cluster.kubectl(&["label", "node", "node0", &format!("{key}-")])?;
    test.cluster.kubectl(&["delete", "uplinkpolicy", "not-yet", "--ignore-not-found"])?;
    written
}

fn moved(test: &Test<'_>) -> Result<()> {
    prepared(test)?;
    let address = test.address(1, 9);
    let config = json!({"cniVersion": "0.3.1", "name": test.name("lan"), "type": "macvlan", "master": "eth1",
        "ipam": {"type": "static"}});
    let networks = json!([{"name": "lan", "interface": "data0", "ips": [format!("{address}/24")], "mac": "02:00:5e:10:00:01"}]);
    test.create([
        json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "lan"},
            "spec": {"config": config.to_string()}}),
        deployment_of_multus("web", &networks.to_string()),
    ])?;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"])?;

    let migration = test.migrate(&[])?;
    test.create(list(&migration["objects"]).cloned())?;
    test.move_deployment(&migration, "web")?;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    eventually(30, "the pod of the Deployment has the interface", || {
        let addresses = test.kubectl(&["exec", "deployment/web", "--", "ip", "addr", "show", "data0"])?;
        ensure!(addresses.contains(&format!("{address}/24")), "{addresses}");
        ensure!(addresses.contains("02:00:5e:10:00:01"), "{addresses}");
        Ok(())
    })?;
    let deployment = test.get("deployment", "web")?;
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    ensure!(annotations.get("k8s.v1.cni.cncf.io/networks").is_none(), "{annotations}");
    let again = test.migrate(&[])?;
    ensure!(list(&again["workloads"]).next().is_none(), "nothing is left to move: {again}");
    Ok(())
}
