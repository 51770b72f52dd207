//! An update replaces the agent while pods come and go.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{AGENT, AGENT_PODS, SYSTEM, Test, eventually, names};

/// Pods that start one after another during the update.
const PODS: usize = 12;
/// Time between their starts.
const INTERVAL: Duration = Duration::from_millis(600);

/// The UIDs of the agent's pods.
fn agents(test: &Test<'_>) -> Result<Vec<String>> {
    let uids = ["-l", AGENT_PODS, "-o", "jsonpath={.items[*].metadata.uid}"];
    let uids = test.cluster.kubectl(&[["get", "pods", "-n", SYSTEM].as_slice(), &uids].concat())?;
    Ok(uids.split_whitespace().map(str::to_owned).collect())
}

pub fn pods_that_start_during_an_update_of_the_agent_get_their_networks(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("before", &network)?;
    let old = agents(test)?;
    test.cluster.kubectl(&["rollout", "restart", "-n", SYSTEM, AGENT])?;
    for n in 0..PODS {
        test.pod(&format!("p{n}"), &network)?;
        std::thread::sleep(INTERVAL);
    }
    for n in 0..PODS {
        let name = format!("p{n}");
        test.runs_with(&name, &["net1"])?;
        test.claim_was_not_refused(&name)?;
    }
    test.cluster.agent_ready()?;
    eventually(30, "the old agent is gone", || {
        let now = agents(test)?;
        ensure!(now.len() == 1 && !old.contains(&now[0]), "{old:?}, then {now:?}");
        Ok(())
    })?;
    // The kubelet finds only the new agent's sockets.
    let own = agents(test)?.pop().context("no agent")?;
    for dir in ["/var/lib/kubelet/plugins/netclaim.dev", "/var/lib/kubelet/plugins_registry"] {
        let names = names(&test.cluster.node().path(dir))?;
        ensure!(names.len() == 1 && names[0].contains(&own), "{dir} has {names:?}, the agent is {own}");
    }
    test.delete_pod("before")
}

pub fn a_stopping_agent_finishes_the_running_add(test: &Test<'_>) -> Result<()> {
    let calls = "/var/lib/cni/netclaim-test-calls";
    let script = format!(
        "echo \"$CNI_COMMAND\" >>{calls}\n[ \"$CNI_COMMAND\" = ADD ] && /opt/cni/bin/busybox sleep 3\nexec /opt/cni/bin/macvlan"
    );
    let plugin = test.plugin("plugin", &script)?;
    let network = test.network_by(&plugin)?;
    let file = test.cluster.node().path(calls);
    let called = || fs::read_to_string(&file).unwrap_or_default();
    let begin = called().lines().count();
    test.pod("p", &network)?;
    eventually(20, "the plugin runs", || {
        ensure!(called().lines().count() > begin, "it does not");
        Ok(())
    })?;
    test.cluster.delete_agent_pod()?;
    test.runs_with("p", &["net1"])?;
    let calls = called();
    fs::remove_file(&file)?;
    let verbs: Vec<_> = calls.lines().skip(begin).filter(|verb| ["ADD", "DEL"].contains(verb)).collect();
    ensure!(verbs == ["ADD"], "the plugin was called with {verbs:?}");
    test.cluster.agent_ready()
}
