//! Pods of different nodes on one network segment.

use anyhow::{Result, ensure};
use netclaim_tests::objects::{class, list, network};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

use crate::addresses::with_addresses;

/// Creates a ClaimNetwork on `uplink` for one node, with addresses that no other node has.
fn network_of_node(test: &Test<'_>, uplink: &str, node: u8) -> Result<()> {
    let name = test.name(&format!("{uplink}-node{node}"));
    let mut network = network(&name, "macvlan", uplink, "");
    network["spec"]["nodeSelector"] =
        json!({"matchLabels": {"kubernetes.io/hostname": format!("node{node}")}});
    let (first, last) = (50 * node + 10, 50 * node + 50);
    network["spec"]["cni"]["plugins"][0]["ipam"]["ranges"] = json!([
        [{"subnet": test.subnet(0), "rangeStart": test.address(0, first), "rangeEnd": test.address(0, last)}],
        [{"subnet": test.subnet6(), "rangeStart": test.address6(first.into()), "rangeEnd": test.address6(last.into())}],
    ]);
    test.create([network])
}

pub fn pods_on_different_nodes_reach_each_other(test: &Test<'_>) -> Result<()> {
    for (uplink, nodes) in [("eth1", [0, 2]), ("eth2", [0, 1])] {
        let networks = nodes.map(|node| test.name(&format!("{uplink}-node{node}")));
        let class_name = test.name(uplink);
        let of_networks = format!("device.attributes[\"netclaim.dev\"].network in {networks:?}");
        test.create([class(&class_name, &of_networks)])?;
        let pods = nodes.map(|node| format!("{uplink}-node{node}"));
        for (node, pod) in nodes.iter().zip(&pods) {
            network_of_node(test, uplink, *node)?;
            test.pod_on(&format!("node{node}"), pod, &class_name)?;
        }
        let [one, other] = &pods;
        test.runs_with(one, &["net1"])?;
        test.runs_with(other, &["net1"])?;
        for (from, to) in [(one, other), (other, one)] {
            test.ping(from, to, "net1")?;
            test.ping6(from, to, "net1")?;
        }
    }
    Ok(())
}

pub fn a_bridge_that_nodes_make_connects_their_pods_and_goes_after_the_last(test: &Test<'_>) -> Result<()> {
    let bridge =
        json!({"type": "netclaim-link", "kind": "bridge", "bridge": "br91", "master": "${uplink.name}"});
    let _wire = Plugged::between(test, NODES, "eth91")?;
    nodes_connect_pods(test, "eth91", "br91", json!([bridge]), &["br91"])
}

pub fn a_vlan_and_a_bridge_that_nodes_make_connect_their_pods_and_go_after_the_last(
    test: &Test<'_>,
) -> Result<()> {
    let _wire = Plugged::between(test, NODES, "eth92")?;
    let probe = ["ip", "link", "add", "link", "eth92", "name", "probe92", "type", "vlan", "id", "1"];
    if test.cluster.on("node0", &probe).is_err() {
        return test.skip("the kernel has no links of kind vlan");
    }
    test.cluster.on("node0", &["ip", "link", "del", "probe92"])?;
    let plugins = json!([
        {"type": "netclaim-link", "kind": "vlan", "master": "${uplink.name}", "id": 100},
        {"type": "netclaim-link", "kind": "bridge", "bridge": "br92"},
    ]);
    nodes_connect_pods(test, "eth92", "${uplink.name}.100", plugins, &["eth92.100", "br92"])
}

const NODES: [&str; 2] = ["node0", "node1"];

/// Has two nodes set a network up, whose last plugin makes a bridge for pods, and a pod on each reach the
/// other. What is set up are links of these names.
fn nodes_connect_pods(
    test: &Test<'_>,
    uplink: &str,
    interface: &str,
    plugins: Value,
    links: &[&str],
) -> Result<()> {
    let are_there = |node: &str| -> Result<bool> {
        let found = test.cluster.node_named(node)?.links()?;
        let there = links.iter().filter(|link| found.contains(**link)).count();
        ensure!(there == 0 || there == links.len(), "{there} of {links:?} are on {node}: {found:?}");
        Ok(there > 0)
    };
    let bridge = links.last().copied().unwrap_or_default();
    let network = test.network_on(uplink, "a", |network| {
        let plugin = json!({"type": "bridge", "bridge": bridge, "ipam": {}});
        network["spec"]["cni"]["plugins"] = json!([plugin]);
        network["spec"]["node"] = json!({"interfaceName": interface, "idleSeconds": 3,
            "cni": {"cniVersion": "1.1.0", "plugins": plugins}});
        with_addresses(network, json!({"ranges": [{"subnet": test.subnet(0)}]}));
    })?;
    for node in NODES {
        test.is_published_on(node, &format!("net-{network}"), |device| device["taints"].is_null())?;
        ensure!(!are_there(node)?, "{links:?} are on {node} before its first pod");
        test.pod_on(node, &format!("on-{node}"), &network)?;
    }
    for node in NODES {
        test.runs_with(&format!("on-{node}"), &["net1"])?;
        ensure!(are_there(node)?, "no {links:?} on {node}");
    }
    test.ping("on-node0", "on-node1", "net1")?;
    test.ping("on-node1", "on-node0", "net1")?;
    // Something may be wrong with another scenario's pods.
    let status = test.run_netclaimctl(&["status", "--node=node1", "--output=json"])?.stdout;
    let status: Value = serde_json::from_slice(&status)?;
    let mut set_up = list(&status["nodeNetworks"]);
    ensure!(
        set_up.any(|row| *row == json!({"network": network, "ready": true})),
        "the status of node1 does not say that {network} is set up: {status}"
    );
    for node in NODES {
        test.delete_pod(&format!("on-{node}"))?;
        eventually(60, "what was set up is gone", || {
            ensure!(!are_there(node)?, "{links:?} are on {node} after its last pod");
            Ok(())
        })?;
    }
    Ok(())
}
