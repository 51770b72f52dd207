//! Pods of different nodes on one network segment.

use anyhow::Result;
use netclaim_tests::Test;
use netclaim_tests::objects::{class, network};
use serde_json::json;

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
