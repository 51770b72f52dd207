//! A NIC that returns from a pod has the settings that it had before.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{list, policy};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// Settings of eth2 that an admin has made.
const SET: [&str; 5] = [
    "ip link set eth2 address 02:00:00:00:be:ef mtu 1400 alias storage-card up",
    "ip address replace 192.0.2.1/24 dev eth2 label eth2:s",
    "ip address replace 2001:db8::1/64 dev eth2 nodad",
    "echo 0 >/proc/sys/net/ipv6/conf/eth2/accept_ra",
    "echo 2 >/proc/sys/net/ipv4/conf/eth2/rp_filter",
];
/// Sysctls of eth2 that a network namespace has defaults for.
const SYSCTLS: [&str; 2] =
    ["/proc/sys/net/ipv6/conf/eth2/accept_ra", "/proc/sys/net/ipv4/conf/eth2/rp_filter"];
/// Restores the settings of a new node.
const UNSET: [&str; 4] = [
    "ip address flush dev eth2 scope global",
    "ip link set eth2 mtu 1500 alias '' up",
    "cat /proc/sys/net/ipv6/conf/default/accept_ra >/proc/sys/net/ipv6/conf/eth2/accept_ra",
    "cat /proc/sys/net/ipv4/conf/default/rp_filter >/proc/sys/net/ipv4/conf/eth2/rp_filter",
];

pub fn a_returned_nic_has_its_old_settings(test: &Test<'_>) -> Result<()> {
    // A link with the node's addresses is published only if a policy says so.
    let always = test.name("always");
    test.create([policy(
        &always,
        json!({"links": {"names": ["eth2"]}, "publish": "Always", "modes": ["nic"]}),
    )])?;
    let set = |commands: &[&str]| test.cluster.on_node(&["sh", "-c", &commands.join(" && ")]).map(drop);
    set(&SET)?;
    let result = every_way_back(test);
    // After a failure the link may still be in a pod: the first error matters.
    let unset =
        set(&UNSET).and_then(|()| test.cluster.kubectl(&["delete", "uplinkpolicy", &always]).map(drop));
    result.and(unset)
}

fn every_way_back(test: &Test<'_>) -> Result<()> {
    let nic = test.class_of_links("nic", &["eth2"])?;
    let before = eth2(test)?;

    pod_changes_nic(test, "deleted", &nic)?;
    test.delete_pod("deleted")?;
    is_back(test, &before)?;

    pod_changes_nic(test, "killed", &nic)?;
    let old = test.end_sandbox("killed")?;
    eventually(60, "the pod has the NIC in a new sandbox", || {
        ensure!(test.sandbox("killed")?.id != old.id, "it has the old one");
        let inside = test.interface("killed", "net1")?;
        ensure!(inside.mtu == before["mtu"] && before["mac"] == inside.mac, "{inside:?}");
        Ok(())
    })?;
    test.delete_pod("killed")?;
    is_back(test, &before)?;

    pod_changes_nic(test, "agentless", &nic)?;
    // The next agent reads the journal. Without an agent the kernel would delete a veth with its namespace.
    test.cluster.kill_agent()?;
    test.cluster.agent_ready()?;
    test.delete_pod("agentless")?;
    is_back(test, &before)
}

pub fn a_link_whose_name_is_taken_is_not_lost_and_the_other_one_stays_as_it_is(
    test: &Test<'_>,
) -> Result<()> {
    let result = loses_its_name_and_itself(test, "taken0", "taken0p");
    // After a failure, too: every scenario looks for links that are left.
    let remove = "for link in taken0 taken0p taken0q; do ip link del $link 2>/dev/null || true; done";
    let removed = test.cluster.on_node(&["sh", "-c", remove]).map(drop);
    result.and(removed)
}

fn loses_its_name_and_itself(test: &Test<'_>, link: &str, peer: &str) -> Result<()> {
    let on_node = |commands: &str| test.cluster.on_node(&["sh", "-ec", commands]).map(drop);
    let make = |mtu: u32| {
        on_node(&format!(
            "ip link add {link} mtu {mtu} up type veth peer name {peer} && ip link set {peer} up"
        ))
    };
    let mtu_is = |mtu: u32| {
        let now = test.cluster.on_node(&["cat", &format!("/sys/class/net/{link}/mtu")])?;
        ensure!(now.trim() == mtu.to_string(), "{link} has the MTU {now}");
        Ok(())
    };
    make(1480)?;
    let always = json!({"links": {"names": [link]}, "publish": "Always", "modes": ["nic"]});
    test.create([policy(&test.name("always"), always)])?;
    let nic = test.class_of_links("nic", &[link])?;

    test.start_pod("named", &nic)?;
    on_node(&format!("ip link add {link} mtu 1300 type veth peer name {link}q"))?;
    test.delete_pod("named")?;
    test.event("named", &["NetworkDetachGivenUp", "link dev", &format!("cannot rename it to {link}")])?;
    mtu_is(1300)?;
    on_node(&format!("ip link del {link}"))?;
    eventually(90, "the link has its name again", || mtu_is(1480))?;

    test.start_pod("destroyed", &nic)?;
    on_node(&format!("ip link del {peer}"))?;
    make(1300)?;
    test.delete_pod("destroyed")?;
    test.event("destroyed", &["NetworkDetachGivenUp", &format!("link {link} is gone")])?;
    mtu_is(1300)?;
    test.cluster.kubectl(&["delete", "uplinkpolicy", &test.name("always")]).map(drop)
}

/// Starts a pod that gets the NIC and changes its settings.
fn pod_changes_nic(test: &Test<'_>, pod: &str, nic: &str) -> Result<()> {
    test.start_pod(pod, nic)?;
    let netns = test.sandbox(pod)?.netns;
    for change in ["down", "address 02:00:00:00:00:99", "mtu 1280", "up"] {
        let command = format!("ip link set net1 {change}");
        test.cluster.node().in_network(&netns, &command.split(' ').collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Waits until eth2 is on the node with its old settings.
fn is_back(test: &Test<'_>, before: &Value) -> Result<()> {
    eventually(60, "eth2 has its old settings", || {
        let now = eth2(test)?;
        ensure!(now == *before, "it has {now}, and had {before}");
        Ok(())
    })
}

/// The settings of eth2 on the node.
fn eth2(test: &Test<'_>) -> Result<Value> {
    let shown = test.cluster.on_node(&["ip", "-d", "-j", "address", "show", "dev", "eth2"])?;
    let shown: Value = serde_json::from_str(&shown)?;
    let link = shown.get(0).context("no eth2")?;
    // The kernel adds a link-local address, by the MAC, when the link comes up.
    let addresses = list(&link["addr_info"]).filter(|a| a["scope"] != "link");
    let addresses: Vec<Value> =
        addresses.map(|a| json!([a["local"], a["prefixlen"], a["label"], a["scope"]])).collect();
    let up = link["flags"].as_array().is_some_and(|flags| flags.contains(&json!("UP")));
    let sysctls = test.cluster.on_node(&["cat", SYSCTLS[0], SYSCTLS[1]])?;
    Ok(
        json!({"mac": link["address"], "mtu": link["mtu"], "alias": link["ifalias"], "up": up, "addresses": addresses,
        "sysctls": sysctls.split_whitespace().collect::<Vec<_>>()}),
    )
}
