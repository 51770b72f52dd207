//! A Network that cannot serve now gets no new pods, and the pods that it has are told.

use std::fs;

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim, pod, request};
use netclaim_tests::{AGENT, SYSTEM, Test, eventually};
use serde_json::{Value, json};

use crate::devices::is_published;

const FINE: &str = "exit 0";
const NOT_READY: &str = r#"echo '{"cniVersion": "1.1.0", "code": 50, "msg": "the switch reboots"}'; exit 1"#;

/// Makes the scenario's plugin one that is macvlan, but for what it says when it is asked by STATUS; returns its type.
fn macvlan_that_says(test: &Test<'_>, on_status: &str) -> Result<String> {
    let script =
        format!("if [ \"$CNI_COMMAND\" = STATUS ]; then\n{on_status}\nfi\nexec /opt/cni/bin/macvlan");
    test.plugin("plugin", &script)
}

/// A Network by such a plugin on `uplink`; returns its name.
fn network_on(test: &Test<'_>, uplink: &str) -> Result<String> {
    let plugin = macvlan_that_says(test, FINE)?;
    test.network("a", |network| {
        network["spec"]["uplink"]["interfaces"] = json!([uplink]);
        network["spec"]["cni"]["cniVersion"] = json!("1.1.0");
        network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin);
    })
}

/// Waits until the kubelet tells of the pod's device that it is `health`, with all of `words` in the message.
fn is_told(test: &Test<'_>, pod: &str, health: &str, words: &[&str]) -> Result<()> {
    eventually(60, &format!("{pod} is told that its device is {health}"), || {
        let status =
            test.get("pod", pod)?["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
        let (claim, device) = (&status[0], &status[0]["resources"][0]);
        let message = device["message"].as_str().unwrap_or_default();
        ensure!(
            claim["name"] == format!("claim:{pod}")
                && device["health"] == health
                && words.iter().all(|word| message.contains(word)),
            "it is told {status}"
        );
        Ok(())
    })
}

/// While `break_it` has been done and `mend` has not, the pod that runs is told `words` and another one waits.
fn takes_no_pods_meanwhile(
    test: &Test<'_>,
    network: &str,
    words: &[&str],
    break_it: impl FnOnce() -> Result<()>,
    mend: impl FnOnce() -> Result<()>,
) -> Result<()> {
    test.pod("first", network)?;
    test.runs_with("first", &["net1"])?;
    is_told(test, "first", "Healthy", &[])?;
    break_it()?;
    let meanwhile = || {
        is_told(test, "first", "Unhealthy", words)?;
        // The kubelet may hear of it before the scheduler: publishing has a budget, which other scenarios use too.
        is_published(test, &format!("net-{network}"), |device| device["taints"].is_array())?;
        test.pod("second", network)?;
        test.is_unschedulable("second")
    };
    // Mended in any case: the first pod has to be detached.
    let (seen, mended) = (meanwhile(), mend());
    seen.and(mended)?;
    is_told(test, "first", "Healthy", &[])?;
    test.runs_with("second", &["net1"])
}

pub fn a_network_whose_plugin_is_not_ready_takes_no_pods_until_it_is(test: &Test<'_>) -> Result<()> {
    let network = network_on(test, "eth1")?;
    takes_no_pods_meanwhile(
        test,
        &network,
        &["failed STATUS", "error 50: the switch reboots"],
        || macvlan_that_says(test, NOT_READY).map(drop),
        || macvlan_that_says(test, FINE).map(drop),
    )
}

pub fn a_network_whose_plugin_is_removed_takes_no_pods_until_it_is_back(test: &Test<'_>) -> Result<()> {
    let network = network_on(test, "eth1")?;
    let plugin = test.name("plugin");
    takes_no_pods_meanwhile(
        test,
        &network,
        &[&format!("CNI plugin `{plugin}`: not found in /opt/cni/bin")],
        || Ok(fs::remove_file(test.cluster.node().path(&format!("/opt/cni/bin/{plugin}")))?),
        || macvlan_that_says(test, FINE).map(drop),
    )
}

pub fn a_plugin_that_is_not_installed_is_named_in_the_log_and_pods_wait_for_it(
    test: &Test<'_>,
) -> Result<()> {
    let missing = test.name("plugin");
    let network =
        test.network("a", |network| network["spec"]["cni"]["plugins"][0]["type"] = json!(missing))?;
    eventually(60, "the agent's log names the plugin", || {
        let log = test.cluster.kubectl(&["logs", "-n", SYSTEM, AGENT, "--tail=500"])?;
        let words =
            [format!("CNI plugin `{missing}`: not found in /opt/cni/bin"), format!("network={network}")];
        ensure!(log.lines().any(|line| words.iter().all(|word| line.contains(word))), "it does not");
        Ok(())
    })?;
    test.pod("p", &network)?;
    test.is_unschedulable("p")?;
    test.plugin("plugin", "exec /opt/cni/bin/macvlan")?;
    test.runs_with("p", &["net1"])
}

pub fn a_network_whose_uplink_is_down_takes_no_pods_until_it_is_up(test: &Test<'_>) -> Result<()> {
    let network = network_on(test, "eth2")?;
    let set = |state: &str| test.cluster.on_node(&["ip", "link", "set", "eth2", state]).map(drop);
    takes_no_pods_meanwhile(test, &network, &["eth2"], || set("down"), || set("up"))
}

pub fn each_request_of_a_claim_is_told_its_own_health(test: &Test<'_>) -> Result<()> {
    let (fine, broken) = (test.macvlan("fine")?, network_on(test, "eth1")?);
    let mut claim = claim("p", &fine);
    claim["spec"]["devices"]["requests"] = json!([request("fine", &fine), request("broken", &broken)]);
    test.create([claim, pod("p", &["p"])])?;
    test.runs_with("p", &["net1", "net2"])?;
    macvlan_that_says(test, NOT_READY)?;
    eventually(60, "one of two is told that it is unhealthy", || {
        let status =
            test.get("pod", "p")?["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
        let told = |request: &str, health: &str| {
            let devices = status[0]["resources"].as_array().into_iter().flatten();
            let id = |device: &Value| device["resourceID"].as_str().is_some_and(|id| id.ends_with(request));
            devices.filter(|device| id(device) && device["health"] == health).count() == 1
        };
        ensure!(told("_fine", "Healthy") && told("_broken", "Unhealthy"), "they are told {status}");
        Ok(())
    })
}

pub fn the_next_agent_tells_the_health_of_devices_too(test: &Test<'_>) -> Result<()> {
    let network = network_on(test, "eth1")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    is_told(test, "p", "Healthy", &[])?;
    test.cluster.kill_agent()?;
    macvlan_that_says(test, NOT_READY)?;
    is_told(test, "p", "Unhealthy", &["the switch reboots"])?;
    // Another parent, too.
    test.cluster.kubectl(&["rollout", "restart", "-n", SYSTEM, AGENT])?;
    test.cluster.agent_ready()?;
    macvlan_that_says(test, FINE)?;
    is_told(test, "p", "Healthy", &[])
}
