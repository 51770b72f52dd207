//! What the agent looks after by itself, on beats that are short here.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{AGENT, SYSTEM, Test, eventually};

/// Runs `body` with an agent that has `variable` set to one second.
fn with_beat(test: &Test<'_>, variable: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let set = |setting: &str| {
        test.cluster.kubectl(&["set", "env", "-n", SYSTEM, AGENT, setting])?;
        test.cluster.agent_ready()
    };
    let result = set(&format!("{variable}=1")).and_then(|()| body());
    set(&format!("{variable}-"))?;
    result
}

pub fn an_address_of_a_sandbox_that_never_was_is_collected(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    let held = test.cluster.node().leases()?;
    let [(_, sandbox)] = held.as_slice() else { anyhow::bail!("one pod has {held:?}") };
    ensure!(*sandbox == test.sandbox("p")?.sandbox, "it is {sandbox}'s");

    let folder = test.cluster.node().path(&format!("/var/lib/cni/networks/netclaim-{network}"));
    let subnet = test.subnet(0);
    let (prefix, _) = subnet.rsplit_once('.').context("no subnet")?;
    fs::write(folder.join(format!("{prefix}.77")), "no-such-sandbox\r\nnet1")?;
    ensure!(test.cluster.node().leases()?.len() == 2, "the lease is not one");
    with_beat(test, "NETCLAIM_GC_PERIOD", || {
        eventually(60, "the address is free, and the pod's is not", || {
            let leases = test.cluster.node().leases()?;
            ensure!(leases == held, "{leases:?}");
            Ok(())
        })
    })
}

pub fn an_interface_that_lost_its_address_is_told_until_it_has_it_again(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    test.claim_is_ready("p")?;
    let (netns, inside) = (test.sandbox("p")?.netns, test.interface("p", "net1")?);
    let ip = inside.ips.first().context("no address")?;
    let address =
        |verb: &str| test.cluster.node().in_network(&netns, &["ip", "address", verb, ip, "dev", "net1"]);
    with_beat(test, "NETCLAIM_CHECK_PERIOD", || {
        address("del")?;
        test.claim_is_not_ready("p", &["macvlan"])?;
        test.event("p", &["NetworkCheckFailed"])?;
        // The pod is not touched.
        test.container("p", "shell").context("it was stopped")?;
        address("add")?;
        eventually(60, "the claim is ready again", || test.claim_is_ready("p").map(drop))
    })
}

pub fn a_pod_that_is_gone_is_released_without_the_kubelet(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("stays", &network)?;
    test.pod("goes", &network)?;
    test.runs_with("stays", &["net1"])?;
    test.runs_with("goes", &["net1"])?;
    with_beat(test, "NETCLAIM_ORPHAN_AFTER", || {
        test.cluster.service("stop", "kubelet")?;
        let released = || {
            // Of this one only the object is gone: it runs on.
            test.kubectl(&["delete", "pod", "stays", "--grace-period=0", "--force", "--timeout=60s"])?;
            test.kubectl(&["delete", "pod", "goes", "--grace-period=0", "--force", "--timeout=60s"])?;
            test.take_namespace_away("goes")?;
            test.node_has_leases(1)?;
            eventually(20, "the journal has forgotten it", || {
                let journal = test.cluster.node().journal()?;
                ensure!(journal.len() == 1, "{journal:?}");
                Ok(())
            })?;
            test.interface("stays", "net1").map(drop)
        };
        let result = released();
        test.cluster.service("start", "kubelet")?;
        result?;
        // It ends the other one too, and comes to its claim a minute later.
        test.node_has_leases(0)
    })
}
