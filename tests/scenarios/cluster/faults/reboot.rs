//! The node loses its power and starts again.
//!
//! Real are the end of every process at once, the loss of all network namespaces, links, mounts, cgroups and of
//! `/run`, and the start of the runtime and the kubelet on what is left on the disks. The kernel is the machine's and goes on:
//! so that the boot id differs all the same, the agent before the reboot is shown an invented one; the agent after
//! it reads the kernel's.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{claim, pod};
use netclaim_tests::{Test, eventually};
use serde_json::json;

const EARLIER_BOOT: &str = "00000000-0000-4000-8000-000000000001";

/// Boot ids of the sandboxes in the journal.
fn boots(test: &Test<'_>) -> Result<BTreeSet<String>> {
    let node = test.cluster.node();
    let mut boots = BTreeSet::new();
    for file in node.journal()? {
        let text = fs::read_to_string(node.path("/var/lib/netclaim/journal").join(file))?;
        let (_, rest) = text.split_once("\"bootId\":\"").context("no boot id in the journal")?;
        boots.insert(rest.split('"').next().unwrap_or_default().to_owned());
    }
    Ok(boots)
}

/// What the scenario's plugin was asked for since `log` was emptied: commands with their sandboxes.
fn asked(test: &Test<'_>, log: &str) -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string(test.cluster.node().path(log)).unwrap_or_default();
    let words = text.lines().filter_map(|line| line.split_once(' '));
    Ok(words.map(|(command, sandbox)| (command.to_owned(), sandbox.to_owned())).collect())
}

pub fn after_a_reboot_addresses_are_given_back_and_pods_come_up_with_their_networks(
    test: &Test<'_>,
) -> Result<()> {
    let log = format!("/var/lib/cni/{}", test.name("log"));
    let plugin = test.plugin(
        "plugin",
        &format!("echo \"$CNI_COMMAND $CNI_CONTAINERID\" >>{log}; exec /opt/cni/bin/macvlan"),
    )?;
    let network =
        test.network("a", |network| network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin))?;
    test.cluster.agent_reads_boot_id(EARLIER_BOOT)?;
    let mut never = pod("never", &["never"]);
    never["spec"]["restartPolicy"] = json!("Never");
    test.create([claim("never", &network), never])?;
    for name in ["one", "two", "deleted"] {
        test.pod(name, &network)?;
    }
    let mut old = BTreeSet::new();
    for name in ["one", "two", "deleted", "never"] {
        test.runs_with(name, &["net1"])?;
        old.insert(test.sandbox(name)?.id);
    }
    test.node_has_leases(4)?;
    ensure!(boots(test)? == BTreeSet::from([EARLIER_BOOT.to_owned()]), "{:?}", boots(test)?);

    fs::remove_file(test.cluster.node().path(&log))?;
    test.cluster.power_off()?;
    test.kubectl(&["delete", "pod", "deleted", "--grace-period=0", "--force"])?;
    test.kubectl(&["delete", "resourceclaim", "deleted", "--timeout=60s"])?;
    test.cluster.power_on()?;

    // What the API server says may be of the time before.
    for name in ["one", "two"] {
        eventually(120, &format!("{name} runs in a new sandbox"), || test.container(name, "shell"))?;
        test.began_with(name, &["net1"])?;
        test.interface(name, "net1")?;
    }
    test.ping("one", "two", "net1")?;
    test.cluster.agent_ready()?;
    eventually(60, "the pod that is never restarted has failed", || {
        let phase = test.get("pod", "never")?["status"]["phase"].clone();
        ensure!(phase == "Failed", "it is {phase}");
        Ok(())
    })?;
    eventually(20, "the others' addresses are given back", || {
        let leases = test.cluster.node().leases()?;
        ensure!(leases.len() == 2, "{leases:?}");
        Ok(())
    })?;
    // The kubelet looks for claims of pods that it knows no more a minute after its start.
    eventually(120, "the others' claims are released", || test.node_has_leases(2))?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    ensure!(boots(test)? == BTreeSet::from([boot]), "{:?}", boots(test)?);

    // Everything of before was given back, and nothing was attached but what the runtime has made since.
    let asked = asked(test, &log)?;
    let new: BTreeSet<String> = ["one", "two"]
        .map(|name| test.sandbox(name).map(|task| task.id))
        .into_iter()
        .collect::<Result<_>>()?;
    let of = |command: &str| -> BTreeSet<String> {
        asked.iter().filter(|(asked, _)| asked == command).map(|(_, sandbox)| sandbox.clone()).collect()
    };
    ensure!(of("ADD").is_disjoint(&old) && of("ADD").is_superset(&new), "{asked:?}; before: {old:?}");
    ensure!(of("DEL").is_superset(&old), "{asked:?}; before: {old:?}");
    fs::remove_file(test.cluster.node().path(&log))?;
    for name in ["one", "two", "never"] {
        test.delete_pod(name)?;
    }
    test.node_has_leases(0)
}
