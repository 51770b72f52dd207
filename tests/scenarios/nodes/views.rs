//! The three ways in which controllers go wrong (Sieve, OSDI 2022), for addresses: an old view, objects that
//! came and went unobserved, and a crash between two writes. No address is in two pods, free ones are found,
//! and nothing is left.

use anyhow::{Result, ensure};
use netclaim_tests::objects::{list, pod};
use netclaim_tests::{Test, eventually};
use serde_json::json;

use crate::addresses::{asking, blocks, network, no_duplicates, with_addresses};

/// Seconds until the blocks and leases of a ClaimNetwork that is gone are gone, too.
const GONE: u64 = 60;

/// Deletes pods, claims and the ClaimNetwork; makes sure that neither blocks nor leases are left.
fn nothing_is_left(test: &Test<'_>, pods: &[String], network: &str) -> Result<()> {
    test.kubectl(&["delete", "pods", "--all", "--timeout=90s"])?;
    test.kubectl(&["delete", "resourceclaims", "--all", "--timeout=60s"])?;
    ensure!(!pods.is_empty(), "no pod had an address");
    test.cluster.kubectl(&["delete", "claimnetworks", network, "--timeout=60s"])?;
    eventually(GONE, "neither blocks nor leases are left", || {
        let left = blocks(test, network)?;
        ensure!(left.is_empty(), "{left:?}");
        let leases = test.cluster.get(&["addressleases"])?;
        let left: Vec<_> =
            list(&leases["items"]).filter(|lease| lease["spec"]["networkName"] == network).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

pub fn a_leader_with_an_old_view_gives_no_address_twice(test: &Test<'_>) -> Result<()> {
    let addresses =
        json!({"ranges": [{"subnet": test.subnet(0).replace("/24", "/28")}], "blockSize": {"ipv4": 30}});
    let network = network(test, addresses, 3)?;
    test.pod_on("node0", "p0", &network)?;
    test.runs_with("p0", &["net1"])?;
    let shown = || -> Result<Vec<String>> {
        test.cluster.run_two_controllers()?;
        let old = test.cluster.leader()?;
        test.cluster.pause_controller(&old, true)?;
        let meanwhile = || -> Result<()> {
            eventually(60, "another one leads", || {
                ensure!(test.cluster.leader()? != old, "{old} leads");
                Ok(())
            })?;
            // The blocks that the old leader knows are others, and of other nodes.
            for block in blocks(test, &network)?.iter().filter(|block| block.node != "node0") {
                test.cluster.kubectl(&["delete", "addressblock", &block.name, "--wait=false"])?;
            }
            for (name, node) in [("p1", "node1"), ("p2", "node2"), ("p3", "node0")] {
                test.pod_on(node, name, &network)?;
            }
            Ok(())
        };
        let (done, resumed) = (meanwhile(), test.cluster.pause_controller(&old, false));
        done.and(resumed)?;
        let pods: Vec<String> = ["p0", "p1", "p2", "p3", "p4"].map(str::to_owned).into();
        test.pod_on("node1", "p4", &network)?;
        for name in &pods {
            test.runs_with(name, &["net1"])?;
        }
        no_duplicates(test, &pods, 1)?;
        Ok(pods)
    };
    let (shown, back) = (shown(), test.cluster.controller_back());
    back?;
    nothing_is_left(test, &shown?, &network)
}

pub fn changes_without_a_controller_give_no_address_twice(test: &Test<'_>) -> Result<()> {
    let addresses = json!({"ranges": [{"subnet": test.subnet(0)}], "blockSize": {"ipv4": 30}});
    let network = network(test, addresses, 3)?;
    let before = ["p0", "p1"].map(str::to_owned);
    for (name, node) in before.iter().zip(["node0", "node1"]) {
        test.pod_on(node, name, &network)?;
        test.runs_with(name, &["net1"])?;
    }
    test.cluster.controller_away()?;
    let meanwhile = || -> Result<()> {
        // One block goes, those of the pods stay; the ClaimNetwork comes back under its name.
        for block in blocks(test, &network)? {
            test.cluster.kubectl(&["delete", "addressblock", &block.name, "--wait=false"])?;
        }
        eventually(60, "the idle block is gone", || {
            let left = blocks(test, &network)?;
            ensure!(left.len() == 2, "{left:?}");
            Ok(())
        })?;
        let spec = test.cluster.get(&["claimnetworks.netclaim.dev", &network])?["spec"].clone();
        test.cluster.kubectl(&["delete", "claimnetworks", &network, "--timeout=60s"])?;
        test.create([json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": network}, "spec": spec})])
    };
    let (done, back) = (meanwhile(), test.cluster.controller_back());
    done.and(back)?;
    let after = ["q0", "q1", "q2"].map(str::to_owned);
    for (name, node) in after.iter().zip(["node0", "node1", "node2"]) {
        test.pod_on(node, name, &network)?;
    }
    for name in &after {
        test.runs_with(name, &["net1"])?;
    }
    let pods: Vec<String> = before.into_iter().chain(after).collect();
    no_duplicates(test, &pods, 1)?;
    nothing_is_left(test, &pods, &network)
}

pub fn agents_and_a_controller_that_die_between_two_writes_leave_nothing(test: &Test<'_>) -> Result<()> {
    let reserved = format!("{}-{}", test.address(0, 8), test.address(0, 14));
    let network = test.network("a", |network| {
        let range = json!({"subnet": test.subnet(0).replace("/24", "/27")});
        with_addresses(
            network,
            json!({"ranges": [range], "blockSize": {"ipv4": 30}, "reserved": [reserved]}),
        );
        network["spec"]["allow"] = json!({"ips": {}});
    })?;
    let mut pods = Vec::new();
    for n in 0..4u8 {
        let node = format!("node{}", n % 2);
        let (claim, name) = (format!("c{n}"), format!("asks{n}"));
        let mut asks = pod(&name, &[&claim]);
        asks["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        test.create([asking(&claim, &network, &test.address(0, 8 + n)), asks])?;
        test.pod_on(&node, &format!("p{n}"), &network)?;
        pods.extend([name, format!("p{n}")]);
        // Between the lease, its node, the plan and its ADD; and between a block, its status and its
        // finalizer.
        test.cluster.kill_agent_on(&node)?;
        if n % 2 == 0 {
            eventually(60, "the leader is killed", || test.cluster.kill_controller())?;
        }
    }
    for name in &pods {
        eventually(150, "the pod runs", || test.runs(name))?;
        test.began_with(name, &["net1"])?;
    }
    no_duplicates(test, &pods, 1)?;
    test.cluster.controller_ready()?;
    nothing_is_left(test, &pods, &network)
}
