//! Links of the node as devices: what is published when a link comes, changes, goes, or is in use.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::text;
use netclaim_tests::{Plugged, Test};
use serde_json::{Value, json};

use crate::availability::device_is;

pub fn devices_follow_a_link_that_is_added_changed_and_removed(test: &Test<'_>) -> Result<()> {
    test.modes(&["eth71", "eth72"], &["nic", "macvlan"])?;
    let link = Plugged::new(test, "eth71")?;
    test.is_published("macvlan-eth71", |device| device["taints"].is_null())?;
    link.set(&["eth71", "mtu", "1400"])?;
    test.is_published("nic-eth71", |device| device["attributes"]["mtu"]["int"] == 1400)?;
    link.set(&["far-eth71", "down"])?;
    test.is_published("nic-eth71", |device| device["taints"][0]["key"] == "netclaim.dev/link-down")?;
    test.is_published("macvlan-eth71", |device| device["taints"][0]["key"] == "netclaim.dev/link-down")?;
    link.set(&["far-eth71", "up"])?;
    test.is_published("nic-eth71", |device| device["taints"].is_null())?;
    link.set(&["eth71", "down"])?;
    link.set(&["eth71", "name", "eth72"])?;
    test.is_not_published("nic-eth71")?;
    // Only a pod that gets the whole link sets it up.
    test.is_published("nic-eth72", |device| device["taints"].is_null())?;
    test.is_published("macvlan-eth72", |device| device["taints"].is_array())?;
    drop(link);
    test.is_not_published("nic-eth72")
}

pub fn a_pod_waits_while_the_link_of_its_network_is_down(test: &Test<'_>) -> Result<()> {
    let link = Plugged::new(test, "eth73")?;
    let network = test.network_on("eth73", "a", |_| {})?;
    link.set(&["far-eth73", "down"])?;
    test.is_published(&format!("net-{network}"), |device| device["taints"].is_array())?;
    test.pod("p", &network)?;
    test.is_unschedulable("p")?;
    test.condition(60, ["claimnetwork", &network], "Available", |condition| {
        condition["status"] == "False"
            && text(&condition["message"]).contains("netclaim.dev/link-down on node0")
    })?;
    link.set(&["far-eth73", "up"])?;
    test.runs_with("p", &["net1"])?;
    test.delete_pod("p")
}

pub fn a_pod_leaves_its_services_while_its_link_is_down(test: &Test<'_>) -> Result<()> {
    let link = Plugged::new(test, "eth93")?;
    let network = test.network_on("eth93", "a", |_| {})?;
    test.pod_with("p", &network, |_, pod| {
        pod["spec"]["readinessGates"] = json!([{"conditionType": "netclaim.dev/networks"}]);
    })?;
    test.runs_with("p", &["net1"])?;
    link.set(&["far-eth93", "down"])?;
    test.pod_condition("p", "netclaim.dev/networks", |condition| {
        condition["status"] == "False"
            && condition["reason"] == "DeviceUnhealthy"
            && text(&condition["message"]).contains("eth93")
    })?;
    test.pod_condition("p", "Ready", |condition| condition["status"] == "False")?;
    // The pod keeps running.
    test.container("p", "shell").context("it was stopped")?;
    link.set(&["far-eth93", "up"])?;
    test.pod_condition("p", "Ready", |condition| condition["status"] == "True")?;
    test.delete_pod("p")
}

pub fn a_nic_in_a_pod_stays_published_and_exclusive(test: &Test<'_>) -> Result<()> {
    test.modes(&["eth74"], &["nic", "macvlan"])?;
    let _link = Plugged::new(test, "eth74")?;
    test.is_published("macvlan-eth74", |_| true)?;
    let nic = test.class_of_links("nic", &["eth74"])?;
    test.start_pod("first", &nic)?;
    test.is_not_published("macvlan-eth74")?;
    test.is_published("nic-eth74", |device| device["taints"].is_null())?;
    test.pod("second", &nic)?;
    test.is_unschedulable("second")?;
    test.delete_pod("first")?;
    test.runs_with("second", &["net1"])?;
    test.delete_pod("second")
}

pub fn a_whole_link_of_a_network_is_in_use_while_a_pod_has_it(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth51")?;
    let network = test.network_on("eth51", "a", |network| {
        let plugin = &mut network["spec"]["cni"]["plugins"][0];
        *plugin = json!({"type": "host-device", "device": "${uplink.name}", "ipam": plugin["ipam"]});
    })?;
    test.start_pod("first", &network)?;
    let in_use = |device: &Value| device["taints"][0]["key"] == "netclaim.dev/link-in-pod";
    test.is_published(&format!("net-{network}"), in_use)?;
    test.condition(60, ["claimnetwork", &network], "Available", |condition| {
        condition["status"] == "True" && text(&condition["message"]).contains("a pod has the uplink on node0")
    })?;
    device_is(test, "first", "Healthy", &[])?;
    test.pod("second", &network)?;
    test.is_unschedulable("second")?;
    test.delete_pod("first")?;
    test.runs_with("second", &["net1"])?;
    test.delete_pod("second")
}

pub fn an_uplink_that_is_made_again_has_lost_its_pods(test: &Test<'_>) -> Result<()> {
    let link = Plugged::new(test, "eth52")?;
    let network = test.network_on("eth52", "a", |_| {})?;
    test.start_pod("first", &network)?;
    device_is(test, "first", "Healthy", &[])?;
    drop(link);
    let _link = Plugged::new(test, "eth52")?;
    test.claim_is_not_ready("first", &["made again"])?;
    device_is(test, "first", "Unhealthy", &["CHECK fails"])?;
    test.start_pod("second", &network)?;
    test.claim_is_ready("second")?;
    test.delete_pod("first")?;
    device_is(test, "second", "Healthy", &[])?;
    test.delete_pod("second")
}

pub fn a_network_names_a_bridge_and_a_link_by_its_alternative_name(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth53")?;
    test.cluster.on_node(&["ip", "link", "property", "add", "dev", "eth53", "altname", "fabric-53"])?;
    let named = test.network_on("fabric-53", "a", |_| {})?;
    test.is_published(&format!("net-{named}"), |device| device["attributes"]["uplink"]["string"] == "eth53")?;
    test.start_pod("named", &named)?;
    test.delete_pod("named")?;
    let _bridge = Plugged::bridge(test, "br53")?;
    let bridge = test.network_on("br53", "b", |_| {})?;
    test.start_pod("bridged", &bridge)?;
    test.delete_pod("bridged")
}

pub fn a_bridge_port_serves_only_networks_of_its_bridge(test: &Test<'_>) -> Result<()> {
    let link = Plugged::new(test, "eth75")?;
    test.is_published("nic-eth75", |_| true)?;
    let bridged = |bridge: &'static str| {
        move |network: &mut Value| {
            let plugin = &mut network["spec"]["cni"]["plugins"][0];
            *plugin = json!({"type": "bridge", "bridge": bridge, "ipam": plugin["ipam"]});
        }
    };
    let (ours, other) =
        (test.network_on("eth75", "a", bridged("br75"))?, test.network_on("eth75", "b", bridged("br76"))?);
    test.pod("p", &ours)?;
    test.is_unschedulable("p")?;
    test.cluster.on_node(&["ip", "link", "add", "br75", "type", "bridge"])?;
    link.set(&["eth75", "master", "br75"])?;
    test.runs_with("p", &["net1"])?;
    test.is_not_published("nic-eth75")?;
    test.is_not_published(&format!("net-{other}"))?;
    test.delete_pod("p")?;
    link.set(&["eth75", "nomaster"])?;
    test.is_published("nic-eth75", |_| true)?;
    test.cluster.on_node(&["ip", "link", "del", "br75"]).map(drop)
}

pub fn pods_share_the_only_link_of_a_node(test: &Test<'_>) -> Result<()> {
    let network = test.network_on("eth0", "a", |_| {})?;
    ensure!(test.cluster.device("macvlan-eth0")?.is_none(), "a node's only link is published as a device");
    test.start_pod("p", &network)?;
    test.delete_pod("p")
}

pub fn a_link_that_another_program_uses_is_tainted_as_a_nic(test: &Test<'_>) -> Result<()> {
    test.modes(&["eth87"], &["nic", "macvlan", "ipvlan"])?;
    let _link = Plugged::new(test, "eth87")?;
    test.is_published("macvlan-eth87", |_| true)?;
    test.is_published("nic-eth87", |device| device["taints"].is_null())?;
    let child = ["ip", "link", "add", "multus87", "link", "eth87", "type", "macvlan", "mode", "bridge"];
    test.cluster.on_node(&child)?;
    let in_use = |device: &Value| device["taints"][0]["key"] == "netclaim.dev/link-in-use";
    test.is_published("nic-eth87", in_use)?;
    // A kernel without ipvlan has no such device.
    if test.cluster.device("ipvlan-eth87")?.is_some() {
        test.is_published("ipvlan-eth87", in_use)?;
    }
    test.is_published("macvlan-eth87", |device| device["taints"].is_null())?;
    // As Multus does it: the link is in a pod, where the node does not see it. Other scenarios would take its
    // namespace for one that is left behind.
    test.cluster.on_node(&["ip", "netns", "add", "pod87"])?;
    test.cluster.on_node(&["ip", "link", "set", "multus87", "netns", "pod87"])?;
    test.is_published("nic-eth87", |device| device["taints"].is_null())?;
    test.cluster.on_node(&["ip", "-n", "pod87", "link", "set", "multus87", "up"])?;
    test.is_published("nic-eth87", in_use)?;
    test.is_published("macvlan-eth87", |device| device["taints"].is_null())?;
    test.cluster.on_node(&["ip", "netns", "del", "pod87"])?;
    test.is_published("nic-eth87", |device| device["taints"].is_null())
}
