//! The controller goes away and comes back. Pods do not need it.

use anyhow::{Result, ensure};
use netclaim_tests::Test;
use serde_json::Value;

/// The slices of a cluster-wide ClaimNetwork.
fn slices(test: &Test<'_>, network: &str) -> Result<Vec<Value>> {
    let all = test.cluster.slices()?.into_iter();
    Ok(all.filter(|slice| slice["spec"]["pool"]["name"] == format!("networks/{network}")).collect())
}

/// Waits until the controller has accepted a ClaimNetwork.
fn is_accepted(test: &Test<'_>, network: &str) -> Result<()> {
    test.condition(60, ["claimnetwork", network], "Accepted", |condition| condition["status"] == "True")
}

pub fn pods_start_while_the_controller_is_away(test: &Test<'_>) -> Result<()> {
    let (cluster, node) = (test.cluster_network(2)?, test.macvlan("b")?);
    for network in [&cluster, &node] {
        is_accepted(test, network)?;
    }
    test.start_pod("before", &cluster)?;
    let published = slices(test, &cluster)?;
    ensure!(published.len() == 1, "{published:?}");

    test.cluster.controller_away()?;
    let meanwhile = || -> Result<String> {
        for (pod, network) in [("cluster", &cluster), ("node", &node)] {
            test.start_pod(pod, network)?;
        }
        ensure!(slices(test, &cluster)? == published, "{:?}", slices(test, &cluster)?);
        test.delete_pod("cluster")?;
        test.macvlan("c")
    };
    let (new, back) = (meanwhile(), test.cluster.controller_back());
    let new = new.and_then(|new| back.map(|()| new))?;
    // The next controller adopts the slices, accepts the new ClaimNetwork, and keeps counting.
    is_accepted(test, &new)?;
    ensure!(slices(test, &cluster)? == published, "{:?}", slices(test, &cluster)?);
    test.start_pod("after", &cluster)?;
    test.pod("too-many", &cluster)?;
    test.is_unschedulable("too-many")
}
