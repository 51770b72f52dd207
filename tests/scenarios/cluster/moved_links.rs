//! A NIC that a pod had is what it was.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::class;
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// What somebody has set of eth2.
const SET: [&str; 3] = [
    "ip link set eth2 address 02:00:00:00:be:ef mtu 1400 alias storage-card up",
    "ip address replace 192.0.2.1/24 dev eth2 label eth2:s",
    "ip address replace 2001:db8::1/64 dev eth2 nodad",
];
/// How the cluster's node begins.
const UNSET: [&str; 2] = ["ip address flush dev eth2 scope global", "ip link set eth2 mtu 1500 alias '' up"];

pub fn a_nic_is_given_back_as_it_was(test: &Test<'_>) -> Result<()> {
    // With addresses of the node it is given away only if somebody says so.
    let always = test.name("always");
    test.create([json!({
        "apiVersion": "netclaim.dev/v1alpha1", "kind": "UplinkPolicy", "metadata": {"name": always},
        "spec": {"links": {"names": ["eth2"]}, "publish": "Always"},
    })])?;
    let set = |commands: &[&str]| test.cluster.on_node(&["sh", "-c", &commands.join(" && ")]).map(drop);
    set(&SET)?;
    let result = every_way_back(test);
    // The link may be in a pod still, when something failed: that is what is told then.
    let unset =
        set(&UNSET).and_then(|()| test.cluster.kubectl(&["delete", "uplinkpolicy", &always]).map(drop));
    result.and(unset)
}

fn every_way_back(test: &Test<'_>) -> Result<()> {
    let nic = test.name("nic");
    let is_eth2 = r#"device.attributes["netclaim.dev"].mode == "nic" && device.attributes["netclaim.dev"].ifName == "eth2" && device.attributes["netclaim.dev"].network == """#;
    test.create([class(&nic, is_eth2)])?;
    let before = eth2(test)?;

    taken(test, "deleted", &nic)?;
    test.delete_pod("deleted")?;
    is_back(test, &before)?;

    taken(test, "killed", &nic)?;
    let old = test.sandbox("killed")?;
    test.end_sandbox(&old)?;
    eventually(60, "the pod has the NIC in a new sandbox", || {
        ensure!(test.sandbox("killed")?.id != old.id, "it is the old one");
        let inside = test.interface("killed", "net1")?;
        ensure!(inside.mtu == before["mtu"] && before["mac"] == inside.mac, "{inside:?}");
        Ok(())
    })?;
    test.delete_pod("killed")?;
    is_back(test, &before)?;

    taken(test, "agentless", &nic)?;
    // The next agent knows it from the journal. Without any when the namespace ends, a veth is gone with it.
    test.cluster.kill_agent()?;
    test.cluster.agent_ready()?;
    test.delete_pod("agentless")?;
    is_back(test, &before)
}

/// A pod gets the NIC and changes what it can.
fn taken(test: &Test<'_>, pod: &str, nic: &str) -> Result<()> {
    test.pod(pod, nic)?;
    test.runs_with(pod, &["net1"])?;
    let netns = test.sandbox(pod)?.netns;
    for change in ["down", "address 02:00:00:00:00:99", "mtu 1280", "up"] {
        let command = format!("ip link set net1 {change}");
        test.cluster.node().in_network(&netns, &command.split(' ').collect::<Vec<_>>())?;
    }
    Ok(())
}

fn is_back(test: &Test<'_>, before: &Value) -> Result<()> {
    eventually(60, "eth2 is what it was", || {
        let now = eth2(test)?;
        ensure!(now == *before, "it is {now}, and was {before}");
        Ok(())
    })
}

fn eth2(test: &Test<'_>) -> Result<Value> {
    let shown = test.cluster.on_node(&["ip", "-d", "-j", "address", "show", "dev", "eth2"])?;
    let shown: Value = serde_json::from_str(&shown)?;
    let link = shown.get(0).context("no eth2")?;
    // The kernel gives a link that comes up an address of its own scope, by the MAC that it has then.
    let addresses = link["addr_info"].as_array().into_iter().flatten().filter(|a| a["scope"] != "link");
    let addresses: Vec<Value> =
        addresses.map(|a| json!([a["local"], a["prefixlen"], a["label"], a["scope"]])).collect();
    let up = link["flags"].as_array().is_some_and(|flags| flags.contains(&json!("UP")));
    Ok(
        json!({"mac": link["address"], "mtu": link["mtu"], "alias": link["ifalias"], "up": up, "addresses": addresses}),
    )
}
