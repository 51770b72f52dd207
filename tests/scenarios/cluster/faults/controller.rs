//! The controller dies, is away, and comes back. Pods do not need it.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// A Network of the cluster for two pods; what is published of it is the controller's.
fn network_of_cluster(test: &Test<'_>) -> Result<String> {
    test.network("a", |network| {
        network["spec"]["scope"] = json!("Cluster");
        network["spec"]["capacity"] = json!({"interfaces": 2});
    })
}

/// The slices of a Network of the cluster, whole.
fn slices(test: &Test<'_>, network: &str) -> Result<Vec<Value>> {
    let slices = test.cluster.get(&["resourceslices"])?;
    let all = slices["items"].as_array().cloned().unwrap_or_default().into_iter();
    Ok(all.filter(|slice| slice["spec"]["pool"]["name"] == format!("networks/{network}")).collect())
}

/// Waits until the controller has judged a Network.
fn is_accepted(test: &Test<'_>, network: &str) -> Result<()> {
    eventually(60, &format!("{network} is accepted"), || {
        let conditions = test.cluster.get(&["network", network])?["status"]["conditions"].take();
        let is = |condition: &Value| condition["type"] == "Accepted" && condition["status"] == "True";
        ensure!(conditions.as_array().into_iter().flatten().any(is), "it has {conditions}");
        Ok(())
    })
}

pub fn pods_start_while_the_controller_is_away(test: &Test<'_>) -> Result<()> {
    let (cluster, node) = (network_of_cluster(test)?, test.macvlan("b")?);
    for network in [&cluster, &node] {
        is_accepted(test, network)?;
    }
    test.pod("before", &cluster)?;
    test.runs_with("before", &["net1"])?;
    let published = slices(test, &cluster)?;
    ensure!(published.len() == 1, "{published:?}");

    test.cluster.controller_away()?;
    let meanwhile = || -> Result<String> {
        for (pod, network) in [("cluster", &cluster), ("node", &node)] {
            test.pod(pod, network)?;
            test.runs_with(pod, &["net1"])?;
        }
        ensure!(slices(test, &cluster)? == published, "{:?}", slices(test, &cluster)?);
        test.delete_pod("cluster")?;
        test.macvlan("c")
    };
    let (new, back) = (meanwhile(), test.cluster.controller_back());
    let new = new.and_then(|new| back.map(|()| new))?;
    // The next one takes over what is published, judges what is new, and counts on.
    is_accepted(test, &new)?;
    ensure!(slices(test, &cluster)? == published, "{:?}", slices(test, &cluster)?);
    test.pod("after", &cluster)?;
    test.runs_with("after", &["net1"])?;
    test.pod("too-many", &cluster)?;
    test.is_unschedulable("too-many")
}

pub fn pods_start_while_the_controller_dies(test: &Test<'_>) -> Result<()> {
    let network = network_of_cluster(test)?;
    is_accepted(test, &network)?;
    test.pod("before", &network)?;
    test.runs_with("before", &["net1"])?;
    let published = slices(test, &network)?;
    test.cluster.kill_controller()?;
    test.pod("after", &network)?;
    test.runs_with("after", &["net1"])?;
    let new = test.macvlan("b")?;
    is_accepted(test, &new).context("by the controller that the kubelet has started")?;
    ensure!(slices(test, &network)? == published, "{:?}", slices(test, &network)?);
    Ok(())
}
