//! The agent dies, is away, and comes back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim, pod};
use netclaim_tests::{Test, eventually, long};
use serde_json::json;

/// Pods of the scenario with many.
const AT_ONCE: usize = 10;

/// How often a kubelet is given the chance to come to the claim before it needs the runtime.
const TRIES: usize = 3;

/// Holds the runtime still when the pod's claim is prepared and its sandbox is not yet made.
///
/// The kubelet does not always get that far: it may ask the runtime something first. Then the runtime goes on, and it is
/// tried again.
fn prepared_only(test: &Test<'_>, pod: &str, network: &str) -> Result<()> {
    for left in (0..TRIES).rev() {
        let before = test.cluster.node().journal()?.len();
        test.cluster.service("pause", "runtime")?;
        let prepared = test.pod(pod, network).and_then(|()| {
            eventually(15, "the claim is prepared", || {
                ensure!(test.cluster.node().journal()?.len() > before, "nothing new in the journal");
                Ok(())
            })
        });
        let Err(error) = prepared else { return Ok(()) };
        test.cluster.service("resume", "runtime")?;
        ensure!(left > 0, error);
        test.delete_pod(pod)?;
    }
    Ok(())
}

pub fn a_pod_waits_for_an_agent_that_was_killed_before_its_sandbox(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    prepared_only(test, "p", &network)?;
    test.cluster.kill_agent()?;
    test.cluster.service("resume", "runtime")?;
    test.runs_with("p", &["net1"])?;
    test.claim_is_ready("p").map(drop)
}

pub fn a_pod_waits_for_an_agent_that_does_not_answer(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    prepared_only(test, "p", &network)?;
    test.cluster.pause_agent(true)?;
    test.cluster.service("resume", "runtime")?;
    // The runtime has made the sandbox without us, has given us up and refuses the container.
    test.event("p", &["Failed", "unresolvable CDI device"])?;
    test.has_not_started("p")?;
    test.cluster.pause_agent(false)?;
    test.runs_with("p", &["net1"])
}

pub fn an_agent_that_is_killed_in_the_middle_of_an_add_starts_over(test: &Test<'_>) -> Result<()> {
    let network = test.network_after("/opt/cni/bin/macvlan && exec /opt/cni/bin/busybox sleep 1000")?;
    test.pod("p", &network)?;
    eventually(20, "the interface is there and the plugin has not ended", || test.interface("p", "net1"))?;
    test.macvlan_after(":")?;
    test.cluster.kill_agent()?;
    test.runs_with("p", &["net1"])?;
    test.node_has_leases(1)
}

pub fn pods_that_start_at_once_get_an_address_each(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    let names: Vec<String> = (1..=AT_ONCE).map(|n| format!("p{n}")).collect();
    for name in &names {
        test.pod(name, &network)?;
    }
    let mut ips = BTreeSet::new();
    for name in &names {
        test.runs_with(name, &["net1"])?;
        ips.extend(test.interface(name, "net1")?.ips);
    }
    ensure!(ips.len() == AT_ONCE, "{ips:?}");
    test.node_has_leases(AT_ONCE)
}

pub fn without_an_agent_a_pod_waits_until_there_is_one(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    // Seen by the scheduler while the agent is there.
    test.pod("warm", &network)?;
    test.runs_with("warm", &["net1"])?;
    test.cluster.agent_away()?;
    test.pod("p", &network)?;
    test.event("p", &["FailedPrepareDynamicResources"])?;
    test.has_not_started("p")?;
    test.cluster.agent_back()?;
    // Shown is that the agent serves the kubelet's next try, not when the kubelet makes it.
    test.wake("p")?;
    test.runs_with("p", &["net1"])
}

pub fn pods_that_are_deleted_leave_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    for name in ["gently", "by-force", "away-gently", "away-by-force"] {
        test.pod(name, &network)?;
    }
    for name in ["gently", "by-force", "away-gently", "away-by-force"] {
        test.runs_with(name, &["net1"])?;
    }
    test.node_has_leases(4)?;
    test.kubectl(&["delete", "pod", "gently", "--timeout=60s"])?;
    test.kubectl(&["delete", "pod", "by-force", "--grace-period=0", "--force", "--timeout=60s"])?;
    test.node_has_leases(2)?;
    test.cluster.agent_away()?;
    test.kubectl(&["delete", "pod", "away-gently", "--wait=false"])?;
    test.kubectl(&["delete", "pod", "away-by-force", "--grace-period=0", "--force", "--timeout=60s"])?;
    eventually(20, "the containers have ended", || {
        test.has_not_started("away-gently")?;
        test.has_not_started("away-by-force")
    })?;
    test.cluster.agent_back()?;
    eventually(40, "nothing is left on the node", || test.cluster.node().is_clean(&Default::default()))
}

pub fn pods_that_are_deleted_by_force_without_an_agent_leave_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    test.cluster.agent_away()?;
    // The claim's object is gone as well when the agent comes back.
    test.kubectl(&["delete", "pod", "p", "--grace-period=0", "--force", "--timeout=60s"])?;
    test.kubectl(&["delete", "resourceclaim", "p", "--timeout=60s"])?;
    test.cluster.agent_back()?;
    eventually(40, "nothing is left on the node", || test.cluster.node().is_clean(&Default::default()))
}

pub fn interfaces_outlive_the_agent(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("one", &network)?;
    test.pod("two", &network)?;
    for pod in ["one", "two"] {
        test.runs_with(pod, &["net1"])?;
    }
    let before = test.interfaces("one")?;
    test.claim_is_ready("one")?;
    let written = test.get("resourceclaim", "one")?["metadata"]["resourceVersion"].clone();
    test.cluster.kill_agent()?;
    test.cluster.agent_ready()?;
    // What an agent that has just heard of the sandboxes does, it does at once.
    std::thread::sleep(Duration::from_secs(2));
    ensure!(test.interfaces("one")? == before, "before: {before:?}, now: {:?}", test.interfaces("one")?);
    test.ping("one", "two", "net1")?;
    let now = test.get("resourceclaim", "one")?;
    ensure!(now["metadata"]["resourceVersion"] == written, "its status was written once more: {now}");
    test.delete_pod("one")?;
    test.node_has_leases(1)
}

pub fn a_container_restarts_in_place_without_the_agent(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    let (sandbox, before) = (test.sandbox("p")?, test.interface("p", "net1")?);
    test.cluster.agent_away()?;
    let old = test.container("p", "shell")?;
    test.kill(&old)?;
    eventually(30, "the container runs again", || {
        let new = test.container("p", "shell")?;
        ensure!(new.id != old.id, "it is the old one");
        Ok(())
    })?;
    test.began_with("p", &["net1"])?;
    ensure!(test.sandbox("p")?.id == sandbox.id, "the sandbox was replaced too");
    ensure!(test.interface("p", "net1")? == before, "it was {before:?}");
    test.cluster.agent_back()?;
    ensure!(test.interface("p", "net1")? == before, "it was {before:?}");
    test.delete_pod("p")?;
    test.node_has_leases(0)
}

/// How often the agent dies under pods that start.
const DEATHS: usize = 6;
/// Far less than the 60 to 90 s after which a kubelet tries a refused claim again.
const LATE: Duration = Duration::from_secs(20);

pub fn pods_do_not_wait_for_the_kubelets_next_try_when_the_agent_dies(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    for n in 0..DEATHS {
        let name = format!("p{n}");
        // Half of them just before, half of them just after.
        let begin = Instant::now();
        if n % 2 == 0 {
            test.cluster.kill_agent()?;
            test.pod(&name, &network)?;
        } else {
            test.pod(&name, &network)?;
            test.cluster.kill_agent()?;
        }
        test.runs_with(&name, &["net1"])?;
        let took = begin.elapsed();
        ensure!(took < LATE, "{name} took {took:?}");
    }
    Ok(())
}

/// How long an agent is away in the middle of an attach; more than a hook has patience, where there is time for it.
const AWAY: Duration = Duration::from_secs(20);
const LONG_AWAY: Duration = Duration::from_secs(300);

pub fn a_pod_that_is_never_restarted_survives_an_agent_that_goes_away_in_an_attach(
    test: &Test<'_>,
) -> Result<()> {
    let network = test.network_after("exec /opt/cni/bin/busybox sleep 1000")?;
    let mut pod = pod("p", &["p"]);
    pod["spec"]["restartPolicy"] = json!("Never");
    test.create([claim("p", &network), pod])?;
    eventually(20, "the pod has a sandbox", || test.sandbox("p"))?;
    test.cluster.agent_away()?;
    test.macvlan_after(":")?;
    std::thread::sleep(if long() { LONG_AWAY } else { AWAY });
    let phase = test.get("pod", "p")?["status"]["phase"].clone();
    ensure!(phase == "Pending", "without its network and without an agent the pod is {phase}");
    test.has_not_started("p")?;
    test.event("p", &["Failed", "not attached yet, see its events and its ResourceClaims"])?;
    test.cluster.agent_back()?;
    test.runs_with("p", &["net1"])
}
