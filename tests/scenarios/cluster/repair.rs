//! Attachments that are made again in their running pods (`spec.repair`).

use std::fs;

use anyhow::{Context as _, Result, ensure};
use netclaim_driver::failpoint::Failpoint;
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Plugged, Test, eventually, holds, long};
use serde_json::{Value, json};

use crate::sweep::with_interval;

/// Has a ClaimNetwork repaired, with the same addresses.
fn repaired(network: &mut Value) {
    network["spec"]["repair"] = json!("Reattach");
    network["spec"]["cni"]["plugins"][0]["capabilities"] = json!({"ips": true, "mac": true});
}

/// Waits until a CHECK of all attachments has succeeded since their ADD.
fn is_checked(test: &Test<'_>, attachments: usize) -> Result<()> {
    let dir = test.cluster.node().path("/run/netclaim");
    eventually(60, "the journal says that CHECK has succeeded", || {
        let found =
            std::process::Command::new("grep").args(["-rl", r#""checked":true"#]).arg(&dir).output()?;
        let found = String::from_utf8_lossy(&found.stdout).lines().count();
        ensure!(found == attachments, "of {found} attachments");
        Ok(())
    })
}

/// Removes `net1` in the pod's network namespace, as a program in it could.
fn lose(test: &Test<'_>, pod: &str) -> Result<()> {
    let netns = test.sandbox(pod)?.netns;
    test.cluster.node().in_network(&netns, &["ip", "link", "del", "net1"]).map(drop)
}

fn has_events(test: &Test<'_>, pod: &str, reason: &str, count: usize) -> Result<()> {
    eventually(60, &format!("{pod} has {count} events {reason}"), || {
        let all = test.events(pod)?;
        let found = all.iter().filter(|event| event.contains(reason)).count();
        ensure!(found == count, "{found}: {all:?}");
        Ok(())
    })
}

pub fn an_interface_that_is_lost_comes_back_with_its_addresses(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", repaired)?;
    test.start_pod("other", &network)?;
    test.start_pod("p", &network)?;
    let (before, container) = (test.interface("p", "net1")?, test.container("p", "shell")?);
    with_interval(test, "NETCLAIM_CHECK_PERIOD", || {
        is_checked(test, 2)?;
        lose(test, "p")?;
        has_events(test, "p", "NetworkRepaired", 1)?;
        let after = test.interface("p", "net1")?;
        ensure!(
            (&after.ips, &after.mac) == (&before.ips, &before.mac) && after.index != before.index,
            "{before:?} has become {after:?}"
        );
        ensure!(test.container("p", "shell")?.pid == container.pid, "the container was started again");
        test.claim_is_ready("p")?;
        test.ping("p", "other", "net1")?;
        let repairs = "netclaim_repairs_total{outcome=\"Ok\"} 1";
        ensure!(test.cluster.ask_agent("/metrics")?.contains(repairs), "there is no {repairs}");
        // In another sandbox it asks for no address that another pod may have by then.
        test.replace_sandbox("p")?;
        eventually(60, "the new sandbox has the interface", || test.interface("p", "net1").map(drop))
    })
}

pub fn an_agent_that_is_killed_in_a_repair_gives_the_pod_its_addresses_back(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", repaired)?;
    test.start_pod("p", &network)?;
    let before = test.interface("p", "net1")?;
    with_interval(test, "NETCLAIM_CHECK_PERIOD", || {
        let all = [Failpoint::Deleted, Failpoint::DelDue, Failpoint::AddDue, Failpoint::Added];
        // Each takes half a minute. Between DEL and ADD only the journal has the addresses.
        for point in all.into_iter().take(if long() { all.len() } else { 1 }) {
            is_checked(test, 1)?;
            lose(test, "p")?;
            test.cluster.arm(point)?;
            test.cluster.dies_at(point, 60)?;
            eventually(60, "the interface is back", || {
                let after = test.interface("p", "net1")?;
                ensure!(after.ips == before.ips && after.mac == before.mac, "{point:?}: {after:?}");
                Ok(())
            })?;
            test.claim_is_ready("p")?;
        }
        Ok(())
    })
}

pub fn a_repair_that_does_not_help_costs_one_pod(test: &Test<'_>) -> Result<()> {
    let (calls, broken) = ("/var/lib/cni/netclaim-test-repairs", "/var/lib/cni/netclaim-test-broken");
    let script = format!(
        "if [ \"$CNI_COMMAND\" = ADD ]; then echo \"$CNI_CONTAINERID\" >>{calls}; fi\n\
         if [ \"$CNI_COMMAND\" = CHECK ] && [ -e {broken} ]; then\n\
         echo '{{\"cniVersion\": \"1.1.0\", \"code\": 100, \"msg\": \"the plugin is wrong\"}}'; exit 1\nfi\n\
         exec /opt/cni/bin/macvlan"
    );
    let (calls, broken) = (test.cluster.node().path(calls), test.cluster.node().path(broken));
    for left in [&calls, &broken] {
        let _ = fs::remove_file(left);
    }
    let plugin = test.plugin("plugin", &script)?;
    let network = test.network("a", |network| {
        repaired(network);
        network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin);
    })?;
    for pod in ["p", "q", "r"] {
        test.start_pod(pod, &network)?;
    }
    let adds = || fs::read_to_string(&calls).unwrap_or_default().lines().count();
    ensure!(adds() == 3, "{} ADDs", adds());
    let shown = with_interval(test, "NETCLAIM_CHECK_PERIOD", || {
        is_checked(test, 3)?;
        fs::write(&broken, "")?;
        eventually(60, "the node says that repairs have stopped", || {
            let events = test.kubectl(&["get", "events", "-n", "default", "-o", "json"])?;
            let events: Value = serde_json::from_str(&events)?;
            let stopped = list(&events["items"]).filter(|event| event["reason"] == "NetworkRepairsStopped");
            let notes: Vec<String> = stopped.map(|event| text(&event["message"])).collect();
            ensure!(notes.iter().any(|note| note.contains(&network)), "{notes:?}");
            Ok(())
        })?;
        holds(13, "no other pod is repaired", || {
            ensure!(adds() == 4, "{} ADDs", adds());
            Ok(())
        })?;
        fs::remove_file(&broken)?;
        ["p", "q", "r"].iter().try_for_each(|pod| test.claim_is_ready(pod).map(drop))?;
        ["p", "q", "r"].iter().try_for_each(|pod| test.runs_with(pod, &["net1"]))
    });
    let _ = fs::remove_file(&broken);
    shown?;
    fs::remove_file(&calls).context("cannot remove the notes")
}

pub fn a_setup_of_the_node_is_made_again_before_its_pods(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth88")?;
    let network = test.network_on("eth88", "a", |network| {
        repaired(network);
        network["spec"]["node"] = json!({
            "interfaceName": "br88",
            "idleSeconds": 3,
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "netclaim-link", "kind": "bridge", "bridge": "br88", "master": "${uplink.name}"}]},
        });
        network["spec"]["cni"]["plugins"][0]["master"] = json!("${node.interfaceName}");
    })?;
    test.start_pod("p", &network)?;
    test.start_pod("q", &network)?;
    let before = test.interface("p", "net1")?;
    with_interval(test, "NETCLAIM_CHECK_PERIOD", || {
        is_checked(test, 2)?;
        test.cluster.on_node(&["ip", "link", "del", "br88"])?;
        for pod in ["p", "q"] {
            has_events(test, pod, "NetworkRepaired", 1)?;
        }
        let after = test.interface("p", "net1")?;
        ensure!(after.ips == before.ips && after.mac == before.mac, "{before:?} has become {after:?}");
        ensure!(test.cluster.node().links()?.contains("br88"), "there is no br88");
        test.ping("p", "q", "net1")
    })
}
