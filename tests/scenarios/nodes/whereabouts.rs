//! Pools of whereabouts that are taken over, with pods that have addresses of them.

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use netclaim_tests::objects::{self, class_of_network, list, pod, text};
use netclaim_tests::{Test, eventually};
use netclaim_whereabouts::{Orphans, Takeover, apply, plan, read};
use serde_json::{Value, json};

/// A definition that takes any object.
fn definition(group: &str, version: &str, kind: &str, plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    })
}

/// What an importer does: reads, plans and applies.
fn take_over(test: &Test<'_>) -> Result<Takeover> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let kubeconfig = test.cluster.dir().join("kubeconfig");
        let client = Client::try_from(
            netclaim_process::kubernetes::config("netclaim-tests", Some(&kubeconfig)).await?,
        )?;
        let takeover = plan(&read(&client).await?, Orphans::Free);
        apply(&client, &takeover).await?;
        Ok(takeover)
    })
}

pub fn pods_of_whereabouts_keep_their_addresses_when_its_pool_is_taken_over(test: &Test<'_>) -> Result<()> {
    let (whereabouts, multus) = ("whereabouts.cni.cncf.io", "k8s.cni.cncf.io");
    test.create([
        definition(whereabouts, "v1alpha1", "IPPool", "ippools"),
        definition(multus, "v1", "NetworkAttachmentDefinition", "network-attachment-definitions"),
    ])?;
    test.cluster.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"])?;
    let shown = taken_over(test);
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
    let takeover = take_over(test)?;
    let pool = takeover.pools.first().context("no pool was found")?;
    ensure!(!pool.is_stopped() && pool.orphans.len() == 1, "{pool:?}");
    let of_nad = pool.networks.first().context("no Network would have it")?;

    let (network, class) = (of_nad.network.to_string(), test.name("lan"));
    let mut object = objects::network(&network, "macvlan", "eth1", "");
    object["spec"]["addresses"] = serde_json::to_value(&of_nad.addresses)?;
    object["spec"]["addresses"]["blockSize"] = json!({"ipv4": 28});
    object["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
    test.create([object, class_of_network(&class, &network)])?;
    eventually(30, "the node may hand out all but the address of the pod", || {
        let blocks = test.cluster.get(&["addressblocks"])?;
        let block = list(&blocks["items"]).find(|block| block["spec"]["network"] == network);
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
        let left = list(&leases["items"]).find(|lease| text(&lease["spec"]["network"]) == network);
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    })
}
