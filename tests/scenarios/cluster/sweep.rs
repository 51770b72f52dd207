//! What the agent does by itself at intervals, which are short here: garbage collection, CHECK, release of
//! orphans.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::text;
use netclaim_tests::{Test, eventually};
use serde_json::json;

/// Runs `body` with an agent whose interval `variable` is one second.
pub fn with_interval(test: &Test<'_>, variable: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    test.cluster.with_agent_env(variable, "1", body)
}

pub fn a_lease_of_an_unknown_sandbox_is_collected(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("p", &network)?;
    let held = test.cluster.node().leases()?;
    let [(_, sandbox)] = held.as_slice() else { anyhow::bail!("one pod has {held:?}") };
    ensure!(*sandbox == test.sandbox("p")?.sandbox, "{sandbox} has the lease");

    test.foreign_lease(&network, &test.address(0, 77), "no-such-sandbox")?;
    ensure!(test.cluster.node().leases()?.len() == 2, "the new lease is not found");
    with_interval(test, "NETCLAIM_GC_PERIOD", || {
        eventually(60, "only the pod's lease is left", || {
            let leases = test.cluster.node().leases()?;
            ensure!(leases == held, "{leases:?}");
            Ok(())
        })
    })
}

pub fn a_lease_in_a_network_without_pods_is_collected(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    // An earlier agent's DEL was given up: of the node's attachments none is in the network.
    test.foreign_lease(&network, &test.address(0, 77), "no-such-sandbox")?;
    ensure!(test.cluster.node().leases()?.len() == 1, "the lease is not found");
    with_interval(test, "NETCLAIM_GC_PERIOD", || test.node_has_leases(0))
}

pub fn a_pod_that_has_lost_an_address_says_so_and_leaves_its_services_until_it_is_back(
    test: &Test<'_>,
) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod_with("p", &network, |_, pod| {
        pod["spec"]["readinessGates"] = json!([{"conditionType": "netclaim.dev/networks"}]);
    })?;
    // It is ready, so that the gate is open.
    test.runs_with("p", &["net1"])?;
    test.claim_is_ready("p")?;
    let (netns, inside) = (test.sandbox("p")?.netns, test.interface("p", "net1")?);
    let ip = inside.ips.first().context("no address")?;
    let address =
        |verb: &str| test.cluster.node().in_network(&netns, &["ip", "address", verb, ip, "dev", "net1"]);
    with_interval(test, "NETCLAIM_CHECK_PERIOD", || {
        address("del")?;
        test.claim_is_not_ready("p", &["macvlan"])?;
        test.event("p", &["NetworkCheckFailed"])?;
        test.pod_condition("p", "netclaim.dev/networks", |gate| {
            gate["reason"] == "CheckFailed" && text(&gate["message"]).contains("macvlan")
        })?;
        test.pod_condition("p", "Ready", |ready| {
            ready["status"] == "False" && ready["reason"] == "ReadinessGatesNotReady"
        })?;
        // The pod keeps running.
        test.container("p", "shell").context("it was stopped")?;
        address("add")?;
        eventually(60, "the claim is ready again", || test.claim_is_ready("p").map(drop))?;
        test.runs("p")
    })
}

pub fn a_deleted_pod_is_released_without_the_kubelet(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("stays", &network)?;
    test.pod("goes", &network)?;
    test.runs_with("stays", &["net1"])?;
    test.runs_with("goes", &["net1"])?;
    with_interval(test, "NETCLAIM_ORPHAN_AFTER", || {
        test.cluster.service("stop", "kubelet")?;
        let released = || {
            // Its object is deleted, but it keeps running.
            test.delete_pod_by_force("stays")?;
            test.delete_pod_by_force("goes")?;
            test.take_namespace_away("goes")?;
            test.node_has_leases(1)?;
            eventually(20, "the journal has only the other one", || {
                let journal = test.cluster.node().journal()?;
                ensure!(journal.len() == 1, "{journal:?}");
                Ok(())
            })?;
            test.interface("stays", "net1").map(drop)
        };
        let result = released();
        test.cluster.service("start", "kubelet")?;
        result?;
        // The kubelet also ends the other pod, and releases its claim a minute later.
        test.node_has_leases(0)
    })
}
