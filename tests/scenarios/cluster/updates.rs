//! The agent is replaced by another one while pods come and go.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{AGENT, AGENT_PODS, SYSTEM, Test, eventually};
use serde_json::json;

/// Pods that start during the update, one after another.
const PODS: usize = 12;
/// Between their starts.
const BEAT: Duration = Duration::from_millis(600);

/// UIDs of the agent's pods.
fn agents(test: &Test<'_>) -> Result<Vec<String>> {
    let uids = ["-l", AGENT_PODS, "-o", "jsonpath={.items[*].metadata.uid}"];
    let uids = test.cluster.kubectl(&[["get", "pods", "-n", SYSTEM].as_slice(), &uids].concat())?;
    Ok(uids.split_whitespace().map(str::to_owned).collect())
}

pub fn pods_that_start_during_an_update_of_the_agent_get_their_networks(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("before", &network)?;
    test.runs_with("before", &["net1"])?;
    let old = agents(test)?;
    test.cluster.kubectl(&["rollout", "restart", "-n", SYSTEM, AGENT])?;
    for n in 0..PODS {
        test.pod(&format!("p{n}"), &network)?;
        std::thread::sleep(BEAT);
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
    // And the new one is the kubelet's only one: its own sockets, and no others.
    let own = agents(test)?.pop().context("no agent")?;
    for dir in ["/var/lib/kubelet/plugins/netclaim.dev", "/var/lib/kubelet/plugins_registry"] {
        let names = fs::read_dir(test.cluster.node().path(dir))?;
        let names: Vec<_> = names
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        ensure!(names.len() == 1 && names[0].contains(&own), "{dir} has {names:?}, the agent is {own}");
    }
    test.delete_pod("before")
}

pub fn an_agent_that_is_told_to_stop_finishes_the_add_that_runs(test: &Test<'_>) -> Result<()> {
    let calls = "/var/lib/cni/netclaim-test-calls";
    let script = format!(
        "echo \"$CNI_COMMAND\" >>{calls}\n[ \"$CNI_COMMAND\" = ADD ] && /opt/cni/bin/busybox sleep 3\nexec /opt/cni/bin/macvlan"
    );
    let plugin = test.plugin("plugin", &script)?;
    let network =
        test.network("a", |network| network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin))?;
    let file = test.cluster.node().path(calls);
    let called = || fs::read_to_string(&file).unwrap_or_default();
    let begin = called().lines().count();
    test.pod("p", &network)?;
    eventually(20, "the plugin runs", || {
        ensure!(called().lines().count() > begin, "it does not");
        Ok(())
    })?;
    test.cluster.kubectl(&["delete", "pods", "-n", SYSTEM, "-l", AGENT_PODS])?;
    test.runs_with("p", &["net1"])?;
    let calls = called();
    fs::remove_file(&file)?;
    let verbs: Vec<_> = calls.lines().skip(begin).filter(|verb| ["ADD", "DEL"].contains(verb)).collect();
    ensure!(verbs == ["ADD"], "the plugin was called with {verbs:?}");
    test.cluster.agent_ready()
}
