//! `netclaimctl ping`: what the network passes between nodes and between pods, by agents that send and
//! listen. The switch between the nodes is the scenario's own, and drops what the scenario says.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Switch, Test, eventually};
use serde_json::{Value, json};

const NODES: [&str; 2] = ["node0", "node1"];

/// What is said, and whether everything passes by the exit status.
fn ping(test: &Test<'_>, args: &[&str]) -> Result<(Value, bool)> {
    let output = test.run_netclaimctl(&[&["ping", "--output=json"], args].concat())?;
    let said = serde_json::from_slice(&output.stdout);
    Ok((said.with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?, output.status.success()))
}

/// The verdict on what passes from one to the other.
fn verdict(said: &Value, from: &str, to: &str) -> Result<String> {
    let mut pairs = list(&said["pairs"]);
    let pair = pairs.find(|pair| pair["from"] == from && pair["to"] == to);
    Ok(text(&pair.with_context(|| format!("nothing is said of {from} and {to}: {said:#}"))?["verdict"]))
}

/// Pings between both nodes, and expects this verdict on what passes from the first to the second. The others
/// are on no such link.
fn nodes_say(test: &Test<'_>, args: &[&str], passes: bool, expected: &str) -> Result<()> {
    let (said, succeeds) = ping(test, args)?;
    let found = verdict(&said, "node0", "node1")?;
    ensure!(found.contains(expected), "{expected:?} is not said: {said:#}");
    ensure!(succeeds == passes, "it exits as if all were well: {said:#}");
    let others = list(&said["notes"]).map(text).collect::<Vec<_>>().concat();
    ensure!(others.contains("node2 takes no part: the node has no link for ClaimNetwork"), "{others}");
    Ok(())
}

pub fn what_a_switch_does_not_pass_is_found_before_the_first_pod(test: &Test<'_>) -> Result<()> {
    let switch = Switch::between(test, &NODES, "eth64", 9000)?;
    let network = test.network_on("eth64", "a", |_| {})?;
    let vlan = test.network_on("eth64", "b", |network| {
        let plugin = &mut network["spec"]["cni"]["plugins"][0];
        (plugin["type"], plugin["vlanId"]) = (json!("vlan"), json!(100));
    })?;
    let (network, vlan) = (format!("--network={network}"), format!("--network={vlan}"));
    for node in NODES {
        // Where the kernel has no such links, the VLAN's is tainted, but it can be probed.
        for device in [&network, &vlan] {
            test.is_published_on(node, &device.replace("--network=", "net-"), |_| true)?;
        }
    }
    nodes_say(test, &[&network], true, "passes with MTU 9000")?;
    nodes_say(test, &[&vlan], true, "VLAN 100 passes with MTU 9000")?;

    switch.drops("node1", "vlan id 100")?;
    let does_not = "VLAN 100 does not pass from node0's to node1's port";
    let (said, succeeds) = ping(test, &[&vlan])?;
    ensure!(verdict(&said, "node0", "node1")?.starts_with("VLAN 100 passes"), "{said:#}");
    let does_not_pass_back = does_not.replace("node0's to node1's", "node1's to node0's");
    ensure!(verdict(&said, "node1", "node0")?.contains(&does_not_pass_back) && !succeeds, "{said:#}");
    nodes_say(test, &[&vlan, "--vlan=101"], true, "VLAN 101 passes")?;
    switch.drops("node0", "vlan id 100")?;
    nodes_say(test, &[&vlan], false, does_not)?;
    let table = test.run_netclaimctl(&["ping", &vlan])?;
    let table = String::from_utf8_lossy(&table.stdout);
    for line in
        ["VLAN 100 does not pass between node0's and node1's ports", "To do: allow VLAN 100 on both ports"]
    {
        ensure!(table.contains(line), "{line:?} is not said: {table}");
    }
    switch.drops_nothing()?;

    let mac = mac(test, "node0", "eth64")?;
    switch.drops("node0", &format!("ether saddr != {mac}"))?;
    nodes_say(test, &[&network], false, "node0's port drops second MAC addresses")?;
    // Pods with a VLAN's link have the node's address.
    nodes_say(test, &[&vlan], true, "VLAN 100 passes")?;
    switch.drops_nothing()?;

    switch.on(&format!("ip link set {} mtu 1500", switch.port("node1")))?;
    nodes_say(test, &[&network], false, "MTU 9000 passes only to 1500 from node0's to node1's port")?;
    switch.on(&format!("ip link set {} mtu 9000", switch.port("node1")))?;

    switch.on(&format!("ip link set {} down", switch.port("node1")))?;
    eventually(20, "the agent knows that the link has no carrier", || {
        let (said, succeeds) = ping(test, &[&network])?;
        let notes = said["notes"].to_string();
        ensure!(notes.contains("node1 takes no part: uplink eth64 is down") && !succeeds, "{said:#}");
        Ok(())
    })
}

pub fn what_a_network_does_not_pass_between_pods_is_found(test: &Test<'_>) -> Result<()> {
    let switch = Switch::between(test, &NODES, "eth65", 1500)?;
    let network = test.network_on("eth65", "a", |_| {})?;
    for (node, pod) in NODES.iter().zip(["web", "db"]) {
        test.pod_on(node, pod, &network)?;
    }
    for pod in ["web", "db"] {
        test.runs_with(pod, &["net1"])?;
    }
    let [web, db] = ["web", "db"].map(|pod| format!("{}/{pod}", test.namespace()));
    let network = format!("--network={network}");
    let args = [&network, "--from=web", "--to=db", "--namespace", test.namespace()];
    let says = |passes: bool, from: &str, to: &str, expected: &str| {
        let (said, succeeds) = ping(test, &args)?;
        let found = verdict(&said, from, to)?;
        ensure!(found.contains(expected) && succeeds == passes, "{expected:?} is not said: {said:#}");
        Ok(said)
    };
    // Both nodes hand out the same addresses, and each pod has the first one.
    let said = says(false, &web, &db, "passes with MTU 1500")?;
    let twice = format!(
        "address used twice: another host than {web} has {}: MAC {}",
        test.ip("web", "net1")?,
        test.interface("db", "net1")?.mac
    );
    ensure!(list(&said["usedTwice"]).any(|line| line == twice.as_str()), "{twice:?} is not said: {said:#}");

    let mac = mac(test, "node0", "eth65")?;
    switch.drops("node0", &format!("ether saddr != {mac}"))?;
    let said = says(false, &web, &db, "nothing passes from")?;
    let of_nodes = verdict(&said, "node0", "node1")?;
    ensure!(of_nodes.contains("node0's port drops second MAC addresses"), "{said:#}");
    switch.drops_nothing()?;
    let (said, succeeds) = ping(test, &[&network, "--from", &web, "--to=node1"])?;
    ensure!(verdict(&said, "node1", &web)?.starts_with("passes") && !succeeds, "{said:#}");
    let refused = test.run_netclaimctl(&["ping", &network, "--from", &web, "--to=node0"])?;
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.contains("is on node node0 itself"), "{refused}");
    test.delete_pod("web")?;
    test.delete_pod("db")
}

/// The MAC address of a node's link.
fn mac(test: &Test<'_>, node: &str, link: &str) -> Result<String> {
    let shown = test.cluster.on(node, &["ip", "-j", "link", "show", "dev", link])?;
    Ok(text(&serde_json::from_str::<Value>(&shown)?[0]["address"]))
}
