//! What the scheduler does with what the agent publishes.

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim, class, pod};
use netclaim_tests::{Test, eventually};
use serde_json::json;

/// A class of one way to use eth2, which this scenario has for itself.
fn use_of_eth2(test: &Test<'_>, mode: &str) -> Result<String> {
    let name = test.name(mode);
    let attribute = |name: &str| format!("device.attributes[\"netclaim.dev\"].{name}");
    let expression = format!(
        "{} == {mode:?} && {} == \"eth2\" && {} == \"\"",
        attribute("mode"),
        attribute("uplink"),
        attribute("network")
    );
    test.create([class(&name, &expression)])?;
    Ok(name)
}

pub fn a_whole_nic_and_macvlan_on_it_wait_for_each_other(test: &Test<'_>) -> Result<()> {
    let nic = use_of_eth2(test, "nic")?;
    let macvlan = test.network("m", |network| network["spec"]["uplink"]["interfaces"] = json!(["eth2"]))?;
    let before = test.cluster.node().links()?;
    ensure!(before.contains("eth2"), "the node has no eth2: {before:?}");

    test.pod("first", &macvlan)?;
    test.runs_with("first", &["net1"])?;
    test.pod("nic", &nic)?;
    test.is_unschedulable("nic")?;
    test.delete_pod("first")?;
    test.runs_with("nic", &["net1"])?;
    ensure!(!test.cluster.node().links()?.contains("eth2"), "the NIC is in the pod and on the node");

    test.pod("second", &macvlan)?;
    test.is_unschedulable("second")?;
    test.delete_pod("nic")?;
    test.runs_with("second", &["net1"])?;
    eventually(5, "the NIC is back on the node", || {
        ensure!(test.cluster.node().links()?.contains("eth2"), "it is not");
        Ok(())
    })
}

pub fn macvlan_and_ipvlan_on_one_uplink_wait_for_each_other(test: &Test<'_>) -> Result<()> {
    if test.cluster.on_node(&["ip", "link", "add", "probe0", "link", "eth1", "type", "ipvlan"]).is_err() {
        return test.skip("this kernel has no ipvlan");
    }
    test.cluster.on_node(&["ip", "link", "del", "probe0"])?;
    let macvlan = use_of_eth2(test, "macvlan")?;
    let ipvlan = use_of_eth2(test, "ipvlan")?;
    test.pod("first", &macvlan)?;
    test.runs_with("first", &["net1"])?;
    test.pod("second", &ipvlan)?;
    test.is_unschedulable("second")?;
    test.delete_pod("first")?;
    test.runs_with("second", &["net1"])
}

pub fn a_pod_waits_until_there_is_bandwidth_for_it(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| network["spec"]["capacity"] = json!({"bandwidth": "1G"}))?;
    for name in ["first", "second"] {
        let mut claim = claim(name, &network);
        claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] =
            json!({"requests": {"bandwidth": "600M"}});
        test.create([claim, pod(name, &[name])])?;
        if name == "first" {
            test.runs_with(name, &["net1"])?;
        }
    }
    test.is_unschedulable("second")?;
    test.delete_pod("first")?;
    test.runs_with("second", &["net1"])
}

pub fn a_network_of_the_cluster_counts_its_interfaces(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| {
        network["spec"]["scope"] = json!("Cluster");
        network["spec"]["capacity"] = json!({"interfaces": 1});
    })?;
    test.pod("first", &network)?;
    test.runs_with("first", &["net1"])?;
    let devices = test.claim_is_ready("first")?;
    ensure!(devices.iter().all(|device| device["pool"] == format!("networks/{network}")), "{devices:?}");
    test.pod("second", &network)?;
    test.is_unschedulable("second")?;
    test.delete_pod("first")?;
    test.runs_with("second", &["net1"])
}
