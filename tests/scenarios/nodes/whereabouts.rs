//! Pools of whereabouts that are taken over, with pods that have addresses of them.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{foreign_definition, list, pod, text};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// What stops whereabouts.
const STOPPED: &str = "deploy/whereabouts-stopped";
/// Takes its ranges over.
const APPLY: [&str; 4] = ["migrate", "whereabouts", "--apply", "--output=json"];

pub fn pods_of_whereabouts_keep_their_addresses_when_its_pool_is_taken_over(test: &Test<'_>) -> Result<()> {
    let (whereabouts, multus) = ("whereabouts.cni.cncf.io", "k8s.cni.cncf.io");
    test.create([
        foreign_definition(whereabouts, "v1alpha1", "IPPool", "ippools"),
        foreign_definition(multus, "v1", "NetworkAttachmentDefinition", "network-attachment-definitions"),
    ])?;
    test.cluster.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"])?;
    let shown = taken_over(test);
    test.cluster.kustomization_gone(STOPPED)?;
    let definitions = [format!("ippools.{whereabouts}"), format!("network-attachment-definitions.{multus}")];
    for name in &definitions {
        test.cluster.kubectl(&["delete", "crd", name, "--timeout=60s"])?;
    }
    shown
}

fn taken_over(test: &Test<'_>) -> Result<()> {
    // One block, so that one node has it all: .2 to .14, without the gateway .1.
    let range = test.subnet(0).replace("/24", "/28");
    let config = json!({"cniVersion": "0.3.1", "name": "lan", "type": "macvlan", "master": "eth1",
        "ipam": {"type": "whereabouts", "range": range}});
    let allocation =
        |pod: &str| json!({"id": "any", "podref": format!("{}/{pod}", test.namespace()), "ifname": "net1"});
    test.create([
        json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "lan"},
            "spec": {"config": config.to_string()}}),
        json!({"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool", "metadata": {"name": range.replace('/', "-")},
            "spec": {"range": range, "allocations": {"3": allocation("old"), "6": allocation("gone")}}}),
        pod("old", &[]),
    ])?;
    test.runs("old")?;
    let planned = test.netclaimctl(&["migrate", "whereabouts", "--output=json"])?;
    let pool = &planned["takeover"]["pools"][0];
    ensure!(pool["orphans"][0]["podref"] == format!("{}/gone", test.namespace()), "{planned}");
    let refused = test.netclaimctl(&APPLY).err().context("whereabouts is not stopped")?;
    ensure!(format!("{refused:#}").contains(STOPPED), "{refused:#}");
    let leases = test.cluster.get(&["addressleases"])?;
    let is_own = |lease: &Value| lease["spec"]["holder"]["namespace"] == test.namespace();
    ensure!(!list(&leases["items"]).any(is_own), "something is leased: {leases}");
    test.cluster.kustomization("apply", STOPPED)?;
    let done = eventually(30, "the addresses are taken over", || test.netclaimctl(&APPLY))?;
    ensure!(done["applied"] == json!({"leases": 1, "pools": 0, "created": 1, "stopped": 0}), "{done}");
    let again = test.netclaimctl(&APPLY)?;
    ensure!(again["applied"]["created"] == 0, "{again}");
    let patch = json!({"spec": {"allocations": {"9": allocation("late")}}}).to_string();
    let late = ["patch", "ippools", &range.replace('/', "-"), "--type=merge", "-p", &patch];
    let late = test.kubectl(&late).err().context("whereabouts hands out an address")?;
    ensure!(format!("{late:#}").contains("whereabouts is stopped"), "{late:#}");

    let mut migration = test.migrate(&["--taken-over"])?;
    let objects = migration["objects"].as_array_mut().context("nothing is translated")?;
    let object =
        objects.iter_mut().find(|object| object["kind"] == "ClaimNetwork").context("no ClaimNetwork")?;
    object["spec"]["addresses"]["blockSize"] = json!({"ipv4": 28});
    let network = text(&object["metadata"]["name"]);
    let class = network.clone();
    test.create(objects.iter().cloned())?;
    eventually(30, "the node may hand out all but the address of the pod", || {
        let blocks = test.cluster.get(&["addressblocks"])?;
        let block = list(&blocks["items"]).find(|block| block["spec"]["networkName"] == network);
        let block = block.context("there is no block")?;
        let (second, rest) = (test.address(0, 2), format!("{}-{}", test.address(0, 4), test.address(0, 14)));
        ensure!(block["spec"]["ranges"] == json!([second, rest]), "{block}");
        Ok(())
    })?;
    let names: Vec<String> = (0..5).map(|n| format!("p{n}")).collect();
    for name in &names {
        test.pod(name, &class)?;
    }
    let mut addresses = Vec::new();
    for name in &names {
        test.runs_with(name, &["net1"])?;
        addresses.push(test.ip(name, "net1")?);
    }
    addresses.sort();
    let expected: Vec<String> = [2, 4, 5, 6, 7].map(|host| test.address(0, host)).into();
    ensure!(addresses == expected, "{addresses:?}: .3 is whereabouts', .6 is free");
    test.kubectl(&["delete", "pod", "old", "--timeout=60s"])?;
    eventually(60, "the lease of the pod is gone", || {
        let leases = test.cluster.get(&["addressleases"])?;
        let left = list(&leases["items"]).find(|lease| text(&lease["spec"]["networkName"]) == network);
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    })
}
