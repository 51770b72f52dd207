//! The node loses its power and starts again.
//!
//! As on a real node, all processes end at once, network namespaces, links, mounts, cgroups and `/run` are
//! lost, and the runtime and the kubelet start with the disks' content. The kernel is the machine's and keeps
//! running, so the agent reads an invented boot id before the reboot, and the kernel's own after it.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Test, eventually};

const EARLIER_BOOT: &str = "00000000-0000-4000-8000-000000000001";

/// The boot ids of the sandboxes in the journal, as a power cut leaves it.
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

/// The calls in the plugin's `log`: commands with their sandboxes.
fn calls(test: &Test<'_>, log: &str) -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string(test.cluster.node().path(log)).unwrap_or_default();
    let words = text.lines().filter_map(|line| line.split_once(' '));
    Ok(words.map(|(command, sandbox)| (command.to_owned(), sandbox.to_owned())).collect())
}

pub fn a_reboot_releases_old_addresses_and_restarts_pods_with_their_networks(test: &Test<'_>) -> Result<()> {
    let log = format!("/var/lib/cni/{}", test.name("log"));
    let plugin = test.plugin(
        "plugin",
        &format!("echo \"$CNI_COMMAND $CNI_CONTAINERID\" >>{log}; exec /opt/cni/bin/macvlan"),
    )?;
    let network = test.network_by(&plugin)?;
    test.cluster.agent_reads_boot_id(EARLIER_BOOT)?;
    test.pod_without_restarts("never", &network)?;
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
    test.cluster.power_off("node0")?;
    test.delete_pod_by_force("deleted")?;
    test.kubectl(&["delete", "resourceclaim", "deleted", "--timeout=60s"])?;
    test.cluster.power_on("node0")?;

    // The pods' status may still be that from before the reboot.
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
    eventually(20, "the others' addresses are released", || {
        let leases = test.cluster.node().leases()?;
        ensure!(leases.len() == 2, "{leases:?}");
        Ok(())
    })?;
    // The kubelet releases claims of pods that are gone a minute after its start.
    eventually(120, "the others' claims are released", || test.node_has_leases(2))?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    ensure!(boots(test)? == BTreeSet::from([boot]), "{:?}", boots(test)?);

    // Every old sandbox was detached, and only new ones were attached.
    let calls = calls(test, &log)?;
    let new: BTreeSet<String> = ["one", "two"]
        .map(|name| test.sandbox(name).map(|task| task.id))
        .into_iter()
        .collect::<Result<_>>()?;
    let of = |command: &str| -> BTreeSet<String> {
        calls.iter().filter(|(called, _)| called == command).map(|(_, sandbox)| sandbox.clone()).collect()
    };
    ensure!(of("ADD").is_disjoint(&old) && of("ADD").is_superset(&new), "{calls:?}; before: {old:?}");
    ensure!(of("DEL").is_superset(&old), "{calls:?}; before: {old:?}");
    fs::remove_file(test.cluster.node().path(&log))?;
    for name in ["one", "two", "never"] {
        test.delete_pod(name)?;
    }
    test.node_has_leases(0)
}
