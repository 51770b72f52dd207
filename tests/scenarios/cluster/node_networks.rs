//! ClaimNetworks that are set up on the node before their first pod (`spec.node`).

use anyhow::{Result, ensure};
use netclaim_driver::failpoint::Failpoint;
use netclaim_tests::objects::text;
use netclaim_tests::{Plugged, Test, eventually, holds};
use serde_json::{Value, json};

/// Creates a ClaimNetwork of a bridge that is made on the node, with `uplink` as its port, for its pods. It
/// goes three seconds after the last one.
fn bridged(test: &Test<'_>, uplink: &str, bridge: &str) -> Result<String> {
    test.network_on(uplink, "a", |network| {
        network["spec"]["node"] = json!({
            "interfaceName": bridge,
            "idleSeconds": 3,
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "netclaim-link", "kind": "bridge", "bridge": bridge, "master": "${uplink.name}"}]},
        });
        let plugin = &mut network["spec"]["cni"]["plugins"][0];
        *plugin = json!({"type": "bridge", "bridge": "${node.interfaceName}", "ipam": plugin["ipam"]});
    })
}

/// The bridge that a link of the node is in; empty if it is in none.
fn master(test: &Test<'_>, link: &str) -> Result<String> {
    let found: Value = serde_json::from_str(&test.cluster.on_node(&["ip", "-j", "link", "show", link])?)?;
    Ok(text(&found[0]["master"]))
}

fn is_there(test: &Test<'_>, link: &str) -> Result<bool> {
    Ok(test.cluster.node().links()?.contains(link))
}

/// Waits until nothing is set up for the network any more.
fn is_taken_down(test: &Test<'_>, network: &str, uplink: &str, bridge: &str) -> Result<()> {
    eventually(60, "what was set up on the node is gone", || {
        ensure!(!is_there(test, bridge)?, "{bridge} is there");
        ensure!(master(test, uplink)?.is_empty(), "{uplink} is in a bridge");
        let journalled = test.cluster.node().node_journal()?;
        ensure!(!journalled.iter().any(|name| name.starts_with(network)), "it is journalled");
        Ok(())
    })
}

pub fn a_bridge_is_made_for_the_first_pod_and_goes_after_the_last(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth81")?;
    let network = bridged(test, "eth81", "br81")?;
    test.is_published(&format!("net-{network}"), |device| device["taints"].is_null())?;
    ensure!(!is_there(test, "br81")?, "the bridge was made without a pod");
    test.start_pod("first", &network)?;
    ensure!(master(test, "eth81")? == "br81", "the uplink is not in the bridge");
    // As a port of the bridge, the uplink still serves its network, and neither link serves others.
    test.is_published(&format!("net-{network}"), |device| device["taints"].is_null())?;
    for device in ["nic-br81", "macvlan-br81", "macvlan-eth81"] {
        test.is_not_published(device)?;
    }
    test.start_pod("second", &network)?;
    test.ping("second", "first", "net1")?;
    test.delete_pod("first")?;
    holds(6, "the bridge stays for the second pod", || {
        ensure!(is_there(test, "br81")?, "the bridge went with the first pod");
        Ok(())
    })?;
    test.runs("second")?;
    test.delete_pod("second")?;
    is_taken_down(test, &network, "eth81", "br81")
}

pub fn an_agent_that_is_killed_sets_a_network_up_once_and_takes_it_down(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth82")?;
    let network = bridged(test, "eth82", "br82")?;
    for point in [Failpoint::AddDue, Failpoint::Added] {
        test.cluster.arm(point)?;
        test.pod("p", &network)?;
        test.cluster.dies_at(point, 60)?;
        test.runs_with("p", &["net1"])?;
        ensure!(master(test, "eth82")? == "br82", "the uplink is not in the bridge");
        test.delete_pod("p")?;
        is_taken_down(test, &network, "eth82", "br82")?;
    }
    test.start_pod("p", &network)?;
    test.delete_pod("p")?;
    test.cluster.kill_agent()?;
    is_taken_down(test, &network, "eth82", "br82")?;
    for point in [Failpoint::DelDue, Failpoint::Deleted] {
        test.start_pod("p", &network)?;
        test.delete_pod("p")?;
        test.cluster.arm(point)?;
        test.cluster.dies_at(point, 60)?;
        is_taken_down(test, &network, "eth82", "br82")?;
    }
    Ok(())
}

pub fn a_link_that_is_in_the_way_is_named_and_stays(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth83")?;
    let network = bridged(test, "eth83", "br83")?;
    let bridge = Plugged::bridge(test, "br83")?;
    test.pod("p", &network)?;
    test.event("p", &["is not set up on the node (spec.node)", "has a link br83 already"])?;
    test.is_published(&format!("net-{network}"), |device| {
        device["taints"][0]["key"] == "netclaim.dev/not-ready"
    })?;
    test.does_not_start("p")?;
    ensure!(is_there(test, "br83")?, "another program's bridge was removed");
    drop(bridge);
    test.runs_with("p", &["net1"])?;
    test.is_published(&format!("net-{network}"), |device| device["taints"].is_null())?;
    test.delete_pod("p")?;
    is_taken_down(test, &network, "eth83", "br83")
}

pub fn two_networks_with_one_interface_are_refused_by_name(test: &Test<'_>) -> Result<()> {
    let _links = (Plugged::new(test, "eth84")?, Plugged::new(test, "eth85")?);
    let first = bridged(test, "eth84", "br84")?;
    test.start_pod("p", &first)?;
    let other = test.network_on("eth85", "b", |network| {
        network["spec"]["node"] = json!({"interfaceName": "br84", "idleSeconds": 3,
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "netclaim-link", "kind": "bridge", "bridge": "br85", "master": "${uplink.name}"}]}});
    })?;
    test.pod("q", &other)?;
    test.event("q", &[&format!("ClaimNetwork {first} has the interface br84 on this node")])?;
    test.delete_pod("q")?;
    test.delete_pod("p")?;
    is_taken_down(test, &first, "eth84", "br84")
}

pub fn a_setup_is_made_again_when_its_link_is_gone_and_no_pod_is_on_it(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth86")?;
    let network = bridged(test, "eth86", "br86")?;
    test.start_pod("p", &network)?;
    test.cluster.on_node(&["ip", "link", "del", "br86"])?;
    test.delete_pod("p")?;
    test.start_pod("q", &network)?;
    ensure!(master(test, "eth86")? == "br86", "the bridge was not made again");
    test.delete_pod("q")?;
    is_taken_down(test, &network, "eth86", "br86")
}

pub fn a_node_has_an_address_of_its_own_by_which_pods_reach_it(test: &Test<'_>) -> Result<()> {
    const LABEL: &str = "example.com/lab-address";
    let _link = Plugged::new(test, "eth87")?;
    let own = test.address(0, 200);
    test.kubectl(&["label", "node", "node0", &format!("{LABEL}={own}")])?;
    let shown = || -> Result<()> {
        let network = test.network_on("eth87", "d", |network| {
            let address = json!([{"address": format!("${{node.labels.{LABEL}}}/24")}]);
            network["spec"]["node"] = json!({
                "interfaceName": "lab0",
                "idleSeconds": 3,
                "cni": {"cniVersion": "1.1.0", "plugins": [
                    {"type": "macvlan", "master": "${uplink.name}", "mode": "bridge",
                     "ipam": {"type": "static", "addresses": address}}]},
            });
        })?;
        test.start_pod("p", &network)?;
        // The uplink alone does not lead from a pod to its node.
        test.kubectl(&["exec", "p", "--", "ping", "-I", "net1", "-c", "1", "-W", "5", &own])?;
        test.is_not_published("macvlan-lab0")?;
        test.delete_pod("p")?;
        eventually(60, "the node's interface is gone", || {
            ensure!(!is_there(test, "lab0")?, "lab0 is there");
            Ok(())
        })
    };
    let (shown, back) = (shown(), test.kubectl(&["label", "node", "node0", &format!("{LABEL}-")]));
    shown?;
    back.map(drop)
}
