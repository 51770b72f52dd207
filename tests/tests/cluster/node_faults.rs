//! The kubelet, the container runtime and sandboxes come and go.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Test, eventually};
use serde_json::Value;

fn slices(test: &Test<'_>) -> Result<Vec<Value>> {
    let slices = test.cluster.get(&["resourceslices", "--field-selector", "spec.driver=netclaim.dev"])?;
    Ok(slices["items"].as_array().cloned().unwrap_or_default())
}

pub fn pods_and_slices_outlive_a_kubelet_restart(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("old", &network)?;
    test.runs_with("old", &["net1"])?;
    let (container, before) = (test.container("old", "shell")?, test.interface("old", "net1")?);
    let old = slices(test)?;
    let uids: Vec<&Value> = old.iter().map(|slice| &slice["metadata"]["uid"]).collect();
    ensure!(!uids.is_empty(), "there are no slices");

    test.cluster.service("restart", "kubelet")?;
    let begin = Instant::now();
    eventually(30, "the kubelet has deleted the slices, and they are back", || {
        let new = slices(test)?;
        ensure!(
            new.len() == uids.len() && new.iter().all(|slice| !uids.contains(&&slice["metadata"]["uid"])),
            "{} slices",
            new.len()
        );
        Ok(())
    })?;
    let took = begin.elapsed();
    ensure!(took < Duration::from_secs(10), "the slices were away for {took:?}");

    test.pod("new", &network)?;
    test.runs_with("new", &["net1"])?;
    ensure!(test.container("old", "shell")?.id == container.id, "the container was replaced");
    ensure!(test.interface("old", "net1")? == before, "it was {before:?}");
    test.delete_pod("old")?;
    test.node_has_leases(1)
}

pub fn a_pod_older_than_its_containerd_leaves_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    for pod in ["one", "two", "three"] {
        test.pod(pod, &network)?;
    }
    for pod in ["one", "two", "three"] {
        test.runs_with(pod, &["net1"])?;
    }
    let before = test.interface("one", "net1")?;
    test.cluster.service("kill", "containerd")?;
    test.cluster.service("start", "containerd")?;
    test.cluster.agent_ready()?;
    test.pod("new", &network)?;
    test.runs_with("new", &["net1"])?;
    ensure!(test.interface("one", "net1")? == before, "it was {before:?}");
    // The runtime tells nobody that these sandboxes are stopped.
    test.delete_pod("one")?;
    test.kubectl(&["delete", "pod", "two", "--grace-period=0", "--force", "--timeout=60s"])?;
    test.node_has_leases(2)?;
    // Nor that this one is replaced.
    replaced(test, "three")?;
    test.delete_pod("three")?;
    test.node_has_leases(1)
}

pub fn a_new_sandbox_gets_the_interface_again(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    replaced(test, "p")?;
    test.node_has_leases(1)?;
    let inside = test.interface("p", "net1")?;
    eventually(15, "the claim tells of the new interface", || {
        let devices = test.claim_is_ready("p")?;
        let told = &devices.first().context("no device")?["networkData"];
        ensure!(told["hardwareAddress"] == inside.mac, "it tells {told}, in the pod: {inside:?}");
        Ok(())
    })
}

/// Kills the pod's sandbox; the kubelet makes another, in which the pod has its interface.
fn replaced(test: &Test<'_>, pod: &str) -> Result<()> {
    let old = test.sandbox(pod)?;
    test.kill(&old)?;
    eventually(60, "the container runs in a new sandbox", || {
        let container = test.container(pod, "shell")?;
        ensure!(container.sandbox != old.id, "it is the old one");
        Ok(())
    })?;
    test.began_with(pod, &["net1"])?;
    test.interface(pod, "net1").map(drop)
}

pub fn a_pod_whose_namespace_is_taken_away_leaves_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    let inode = fs::metadata(format!("/proc/{}/ns/net", test.sandbox("p")?.pid))?.ino();
    let names = fs::read_dir(test.cluster.node().path("/run/netns"))?;
    let is_its = |entry: &fs::DirEntry| fs::metadata(entry.path()).is_ok_and(|file| file.ino() == inode);
    let entry = names.filter_map(Result::ok).find(is_its).context("the sandbox's namespace has no name")?;
    let path = format!("/run/netns/{}", entry.file_name().to_string_lossy());
    test.cluster.on_node(&["umount", &path])?;
    test.cluster.on_node(&["rm", &path])?;
    test.delete_pod("p")?;
    test.node_has_leases(0)
}

pub fn a_state_directory_that_takes_nothing_holds_up_new_pods_only(test: &Test<'_>) -> Result<()> {
    let journal = "/var/lib/netclaim/journal";
    let network = test.macvlan("a")?;
    test.pod("old", &network)?;
    test.runs_with("old", &["net1"])?;
    if let Err(error) = test.cluster.on_node(&["chattr", "+i", journal]) {
        return test.skip(&format!("no directory can be closed to root here: {error:#}"));
    }
    let held = test.pod("new", &network).and_then(|()| {
        test.event(
            "new",
            &["FailedPrepareDynamicResources", "is the state directory full, read-only or gone?"],
        )?;
        test.has_not_started("new")?;
        // Its DEL is run all the same; that it was is only believed when it is on disk.
        test.kubectl(&["delete", "pod", "old", "--wait=false"])?;
        eventually(30, "the address is given back", || {
            let leases = test.cluster.node().leases()?;
            ensure!(leases.is_empty(), "{leases:?}");
            Ok(())
        })
    });
    test.cluster.on_node(&["chattr", "-i", journal])?;
    held?;
    test.delete_pod("old")?;
    test.delete_pod("new")?;
    test.pod("next", &network)?;
    test.runs_with("next", &["net1"])?;
    test.node_has_leases(1)
}
