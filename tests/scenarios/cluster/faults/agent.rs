//! The agent dies, goes away and comes back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netclaim_tests::{Test, eventually, long};

/// Pods that start at once.
const AT_ONCE: usize = 10;

/// Attempts of [`prepared_only`].
const TRIES: usize = 3;

/// Creates a pod, and pauses the runtime when the claim is prepared and the pod has no sandbox yet.
///
/// The kubelet may need the runtime before it prepares the claim. Then the runtime continues, and the next
/// attempt begins.
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

/// How long the kubelet may use up the retry that comes within a second of a refusal.
const RETRIED: Duration = Duration::from_secs(2);
/// Without being woken the kubelet retries 10 s after the refusal, of which [`RETRIED`] are over.
const WOKEN: Duration = Duration::from_secs(7);

/// Creates a pod whose container is refused while something is stopped, and looks how soon it runs
/// afterwards.
fn starts_when_it_answers(test: &Test<'_>, stop: impl Fn(bool) -> Result<()>) -> Result<()> {
    let network = test.macvlan("a")?;
    prepared_only(test, "p", &network)?;
    stop(true)?;
    test.cluster.service("resume", "runtime")?;
    // The runtime has dropped the agent, created the sandbox without it, and refuses the container.
    test.event("p", &["Failed", "unresolvable CDI device"])?;
    std::thread::sleep(RETRIED);
    test.has_not_started("p")?;
    stop(false)?;
    let begin = Instant::now();
    test.runs_with("p", &["net1"])?;
    let took = begin.elapsed();
    eprintln!("       it runs {took:?} after the agent answers again");
    ensure!(took < WOKEN, "it took {took:?}");
    Ok(())
}

pub fn a_pod_waits_for_an_agent_that_does_not_answer(test: &Test<'_>) -> Result<()> {
    starts_when_it_answers(test, |stop| test.cluster.pause_agent(stop))
}

pub fn a_pod_waits_for_an_agent_and_a_parent_that_do_not_answer(test: &Test<'_>) -> Result<()> {
    starts_when_it_answers(test, |stop| test.cluster.pause_agent_and_parent(stop))
}

/// Longer than the kubelet waits for an answer to a Prepare: 45 s.
const GIVEN_UP: Duration = Duration::from_secs(50);

pub fn a_pod_whose_prepare_the_kubelet_gave_up_runs_soon_after_the_answer(test: &Test<'_>) -> Result<()> {
    if !long() {
        return test.skip("it takes minutes: make test-faults");
    }
    let network = test.macvlan("a")?;
    test.cluster.pause_agent(true)?;
    let given_up = test.pod("p", &network).map(|()| std::thread::sleep(GIVEN_UP));
    test.cluster.pause_agent(false)?;
    given_up?;
    let begin = Instant::now();
    test.runs_with("p", &["net1"])?;
    let took = begin.elapsed();
    eprintln!("       it runs {took:?} after the agent answers again");
    ensure!(took < WOKEN, "it took {took:?}");
    Ok(())
}

pub fn an_add_is_repeated_after_the_agent_is_killed(test: &Test<'_>) -> Result<()> {
    let network = test.network_after("/opt/cni/bin/macvlan && exec /opt/cni/bin/busybox sleep 1000")?;
    test.pod("p", &network)?;
    eventually(20, "the interface exists and the plugin has not ended", || test.interface("p", "net1"))?;
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
    test.delete_pod_by_force("by-force")?;
    test.node_has_leases(2)?;
    test.cluster.agent_away()?;
    test.kubectl(&["delete", "pod", "away-gently", "--wait=false"])?;
    test.delete_pod_by_force("away-by-force")?;
    eventually(20, "the containers have ended", || {
        test.has_not_started("away-gently")?;
        test.has_not_started("away-by-force")
    })?;
    test.cluster.agent_back()?;
    eventually(40, "nothing is left on the node", || test.cluster.node().is_clean(&Default::default()))
}

pub fn pods_that_are_deleted_by_force_without_an_agent_leave_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("p", &network)?;
    test.cluster.agent_away()?;
    // The claim's object is gone, too, when the agent comes back.
    test.delete_pod_by_force("p")?;
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
    // An agent acts at once when it learns of the sandboxes.
    std::thread::sleep(Duration::from_secs(2));
    ensure!(test.interfaces("one")? == before, "before: {before:?}, now: {:?}", test.interfaces("one")?);
    test.ping("one", "two", "net1")?;
    let now = test.get("resourceclaim", "one")?;
    ensure!(now["metadata"]["resourceVersion"] == written, "its status was written again: {now}");
    test.delete_pod("one")?;
    test.node_has_leases(1)
}

pub fn a_container_restarts_in_place_without_the_agent(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("p", &network)?;
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

/// Deaths of the agent while pods start.
const DEATHS: usize = 6;
/// Far less than the 60 to 90 s after which the kubelet retries a refused claim.
const LATE: Duration = Duration::from_secs(20);

pub fn pods_start_without_the_kubelets_retry_when_the_agent_dies(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    for n in 0..DEATHS {
        let name = format!("p{n}");
        // The agent dies just before the pod is created, or just after.
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

/// How long the agent is away during an ADD.
const AWAY: Duration = Duration::from_secs(8);
/// More than the hook's deadline.
const LONG_AWAY: Duration = Duration::from_secs(300);

pub fn a_pod_that_is_never_restarted_survives_an_agent_that_goes_away_during_an_add(
    test: &Test<'_>,
) -> Result<()> {
    let network = test.network_after("exec /opt/cni/bin/busybox sleep 1000")?;
    test.pod_without_restarts("p", &network)?;
    // The ADD runs.
    test.event("p", &["Failed", "not attached yet, see its events and its ResourceClaims"])?;
    test.cluster.agent_away()?;
    test.macvlan_after(":")?;
    std::thread::sleep(if long() { LONG_AWAY } else { AWAY });
    let phase = test.get("pod", "p")?["status"]["phase"].clone();
    ensure!(phase == "Pending", "without its network and without an agent the pod is {phase}");
    test.has_not_started("p")?;
    test.cluster.agent_back()?;
    test.runs_with("p", &["net1"])
}
