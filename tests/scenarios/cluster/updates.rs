//! An agent that is replaced finishes what it does.

use std::fs;

use anyhow::{Result, ensure};
use netclaim_tests::{Test, eventually};

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
