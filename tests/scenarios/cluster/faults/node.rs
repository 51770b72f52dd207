//! The kubelet, the container runtime, the API server and sandboxes die and come back.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Plugged, Test, eventually, long};
use serde_json::{Value, json};

use super::state_directory::agent_is_ready;

pub fn pods_and_slices_outlive_a_kubelet_restart(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("old", &network)?;
    let (container, before) = (test.container("old", "shell")?, test.interface("old", "net1")?);
    let old = test.cluster.slices()?;
    let uids: Vec<&Value> = old.iter().map(|slice| &slice["metadata"]["uid"]).collect();
    ensure!(!uids.is_empty(), "there are no slices");

    test.cluster.service("restart", "kubelet")?;
    let begin = Instant::now();
    eventually(30, "the kubelet has deleted the slices, and they are back", || {
        let new = test.cluster.slices()?;
        ensure!(
            new.len() == uids.len() && new.iter().all(|slice| !uids.contains(&&slice["metadata"]["uid"])),
            "{} slices",
            new.len()
        );
        Ok(())
    })?;
    let took = begin.elapsed();
    ensure!(took < Duration::from_secs(10), "the slices were away for {took:?}");

    test.start_pod("new", &network)?;
    ensure!(test.container("old", "shell")?.id == container.id, "the container was replaced");
    ensure!(test.interface("old", "net1")? == before, "it was {before:?}");
    test.delete_pod("old")?;
    test.node_has_leases(1)
}

/// Waits until other slices have replaced these.
fn are_replaced(test: &Test<'_>, old: &[Value]) -> Result<()> {
    let uids: Vec<&Value> = old.iter().map(|slice| &slice["metadata"]["uid"]).collect();
    eventually(30, "the slices are recreated", || {
        let new = test.cluster.slices()?;
        let is_old = |slice: &Value| uids.contains(&&slice["metadata"]["uid"]);
        ensure!(!new.is_empty() && !new.iter().any(is_old), "{} slices", new.len());
        Ok(())
    })
}

pub fn exhausted_addresses_do_not_stop_publishing(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| {
        network["spec"]["cni"]["plugins"][0]["ipam"]["ranges"] =
            json!([[{"subnet": test.subnet(0), "rangeStart": test.address(0, 10), "rangeEnd": test.address(0, 11)}]]);
    })?;
    let name = format!("net-{network}");
    test.is_published(&name, |device| device["capacity"]["addresses"]["value"] == "2")?;
    let lease = test.foreign_lease(&network, &test.address(0, 10), "somebody")?;
    let last = test.foreign_lease(&network, &test.address(0, 11), "somebody")?;
    let is_exhausted = |device: &Value| {
        device["taints"][0]["key"] == "netclaim.dev/exhausted"
            && device["capacity"]["addresses"]["value"] == "0"
    };
    test.is_published(&name, is_exhausted)?;
    // The pool still follows changes.
    let link = Plugged::new(test, "eth88")?;
    test.is_published("nic-eth88", |_| true)?;
    let old = test.cluster.slices()?;
    test.cluster.service("restart", "kubelet")?;
    are_replaced(test, &old)?;
    test.is_published(&name, is_exhausted)?;
    drop(link);
    test.is_not_published("nic-eth88")?;
    test.pod("p", &network)?;
    test.is_unschedulable("p")?;
    test.cluster.on_node(&["rm", &lease])?;
    test.runs_with("p", &["net1"])?;
    test.delete_pod("p")?;
    test.cluster.on_node(&["rm", &last]).map(drop)
}

pub fn a_pod_older_than_its_runtime_leaves_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    for pod in ["one", "two", "three"] {
        test.pod(pod, &network)?;
    }
    for pod in ["one", "two", "three"] {
        test.runs_with(pod, &["net1"])?;
    }
    let before = test.interface("one", "net1")?;
    test.cluster.service("kill", "runtime")?;
    test.cluster.service("start", "runtime")?;
    test.cluster.agent_ready()?;
    test.start_pod("new", &network)?;
    ensure!(test.interface("one", "net1")? == before, "it was {before:?}");
    // The runtime sends no event when these sandboxes stop.
    test.delete_pod("one")?;
    test.delete_pod_by_force("two")?;
    test.node_has_leases(2)?;
    // Nor when this one is replaced.
    sandbox_is_replaced(test, "three")?;
    test.delete_pod("three")?;
    test.node_has_leases(1)
}

pub fn a_new_sandbox_gets_the_interface_again(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("p", &network)?;
    sandbox_is_replaced(test, "p")?;
    test.node_has_leases(1)?;
    let inside = test.interface("p", "net1")?;
    eventually(15, "the claim has the new interface", || {
        let devices = test.claim_is_ready("p")?;
        let data = &devices.first().context("no device")?["networkData"];
        ensure!(data["hardwareAddress"] == inside.mac, "it has {data}, in the pod: {inside:?}");
        Ok(())
    })
}

/// Replaces the pod's sandbox, and makes sure that the pod has its interface in the new one.
fn sandbox_is_replaced(test: &Test<'_>, pod: &str) -> Result<()> {
    test.replace_sandbox(pod)?;
    test.began_with(pod, &["net1"])?;
    test.interface(pod, "net1").map(drop)
}

pub fn a_pod_whose_namespace_is_taken_away_leaves_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("p", &network)?;
    test.take_namespace_away("p")?;
    test.delete_pod("p")?;
    test.node_has_leases(0)
}

pub fn a_pod_whose_uplink_is_removed_starts_again_when_it_is_back(test: &Test<'_>) -> Result<()> {
    let uplink = Plugged::new(test, "eth87")?;
    let network = test.network("a", |network| network["spec"]["uplink"]["links"] = json!(["eth87"]))?;
    test.start_pod("p", &network)?;
    drop(uplink);
    ensure!(test.interface("p", "net1").is_err(), "the interface exists without its uplink");
    test.end_sandbox("p")?;
    test.event("p", &["NetworkAttachFailed", &network, "Link not found"])?;
    ensure!(test.container("p", "shell").is_err(), "the container runs without its network");
    let _again = Plugged::new(test, "eth87")?;
    eventually(60, "the container runs in a new sandbox", || test.container("p", "shell"))?;
    test.began_with("p", &["net1"])?;
    test.delete_pod("p")?;
    test.node_has_leases(0)
}

/// How much longer the API server hangs with `$NETCLAIM_LONG`.
const HANGS: Duration = Duration::from_secs(60);

pub fn pods_are_attached_while_the_api_server_hangs(test: &Test<'_>) -> Result<()> {
    let network = test.network_after("/opt/cni/bin/busybox sleep 4")?;
    test.start_pod("old", &network)?;
    let (container, before) = (test.container("old", "shell")?, test.interface("old", "net1")?);
    test.pod("new", &network)?;
    // With a sandbox, the kubelet has read the claim and needs nothing else from the API server.
    eventually(20, "the pod has a sandbox", || test.sandbox("new"))?;
    // Connections to a paused server hang, which is worse than a refusal.
    test.cluster.service("pause", "apiserver")?;
    let shown = || -> Result<()> {
        // The next agent never reaches the API server.
        test.cluster.kill_agent()?;
        test.kill(&container)?;
        eventually(60, "both containers run", || {
            ensure!(test.container("old", "shell")?.id != container.id, "it is the old one");
            test.container("new", "shell")
        })?;
        test.interface("new", "net1")?;
        ensure!(test.interface("old", "net1")? == before, "it was {before:?}");
        std::thread::sleep(if long() { HANGS } else { Duration::ZERO });
        Ok(())
    }();
    test.cluster.service("resume", "apiserver")?;
    shown?;
    test.began_with("new", &["net1"])?;
    test.began_with("old", &["net1"])?;
    test.claim_is_ready("new")?;
    test.delete_pod("old")?;
    test.node_has_leases(1)
}

pub fn without_nri_the_agent_is_not_ready_and_no_container_starts(test: &Test<'_>) -> Result<()> {
    let (on, off) = ("disable = false", "disable = true");
    let file = test.cluster.dir().join("runtime.toml");
    let config = fs::read_to_string(&file)?;
    if !config.contains(on) {
        return test.skip("only containerd's configuration is changed here");
    }
    let why = "not connected to the container runtime by NRI: enable NRI in the runtime's configuration";
    let network = test.network_after(":")?;
    test.start_pod("old", &network)?;
    fs::write(&file, config.replace(on, off))?;
    let shown = || -> Result<()> {
        test.cluster.service("restart", "runtime")?;
        test.pod("new", &network)?;
        let waits = |pod: &str| -> Result<()> {
            test.event(pod, &["NetworkAttachFailed", why])?;
            test.claim_is_not_ready(pod, &[why])?;
            test.does_not_start(pod)
        };
        let says_why = || -> Result<()> {
            let answer = test.cluster.ask_agent("/readyz")?;
            ensure!(answer.contains(" 503 Service Unavailable") && answer.contains(why), "it says {answer}");
            Ok(())
        };
        waits("new")?;
        says_why()?;
        // A new sandbox of a pod that was attached is none that the agent hears of.
        test.end_sandbox("old")?;
        waits("old")?;
        test.cluster.kill_agent()?;
        test.pod("next", &network)?;
        waits("next")?;
        says_why()?;
        waits("new")
    }();
    fs::write(&file, config)?;
    test.cluster.service("restart", "runtime")?;
    shown?;
    for pod in ["old", "new", "next"] {
        test.began_with(pod, &["net1"])?;
        test.interface(pod, "net1")?;
    }
    eventually(20, "the agent is ready again", || agent_is_ready(test, true))?;
    test.node_has_leases(3)
}
