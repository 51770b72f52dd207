//! A ClaimNetwork that cannot serve gets no new pods, and its pods report an unhealthy device.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim, list, pod, request, text};
use netclaim_tests::{AGENT, SYSTEM, SliceEvent, Test, eventually, holds};
use serde_json::{Value, json};

const FINE: &str = "exit 0";
const NOT_READY: &str = r#"echo '{"cniVersion": "1.1.0", "code": 50, "msg": "the switch reboots"}'; exit 1"#;

/// Installs macvlan as the scenario's plugin, with `on_status` as its STATUS; returns its type.
fn macvlan_with_status(test: &Test<'_>, on_status: &str) -> Result<String> {
    let script =
        format!("if [ \"$CNI_COMMAND\" = STATUS ]; then\n{on_status}\nfi\nexec /opt/cni/bin/macvlan");
    test.plugin("plugin", &script)
}

/// Creates a ClaimNetwork of this plugin, which is ready, on `uplink`; returns its name.
fn network_with_status(test: &Test<'_>, uplink: &str) -> Result<String> {
    let plugin = macvlan_with_status(test, FINE)?;
    test.network_on(uplink, "a", |network| {
        network["spec"]["cni"]["cniVersion"] = json!("1.1.0");
        network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin);
    })
}

/// Waits until the kubelet reports `health` for the pod's device, with all of `words` in the message.
pub(crate) fn device_is(test: &Test<'_>, pod: &str, health: &str, words: &[&str]) -> Result<()> {
    eventually(60, &format!("the device of {pod} is {health}"), || {
        let status =
            test.get("pod", pod)?["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
        let (claim, device) = (&status[0], &status[0]["resources"][0]);
        let message = text(&device["message"]);
        ensure!(
            claim["name"] == format!("claim:{pod}")
                && device["health"] == health
                && words.iter().all(|word| message.contains(word)),
            "the pod's status is {status}"
        );
        Ok(())
    })
}

/// Makes sure that between `break_it` and `fix` a pod's device is unhealthy because of `words`, and another
/// pod waits.
fn gets_no_pods_meanwhile(
    test: &Test<'_>,
    network: &str,
    words: &[&str],
    break_it: impl FnOnce() -> Result<()>,
    fix: impl FnOnce() -> Result<()>,
) -> Result<()> {
    test.start_pod("first", network)?;
    device_is(test, "first", "Healthy", &[])?;
    break_it()?;
    let meanwhile = || {
        device_is(test, "first", "Unhealthy", words)?;
        // The kubelet may know before the scheduler: publishing has a budget, which other scenarios use too.
        test.is_published(&format!("net-{network}"), |device| device["taints"].is_array())?;
        test.pod("second", network)?;
        test.is_unschedulable("second")
    };
    // Fixed in any case: the first pod must be detached.
    let (seen, fixed) = (meanwhile(), fix());
    seen.and(fixed)?;
    device_is(test, "first", "Healthy", &[])?;
    test.runs_with("second", &["net1"])
}

pub fn a_network_gets_no_pods_while_its_plugin_is_not_ready(test: &Test<'_>) -> Result<()> {
    let network = network_with_status(test, "eth1")?;
    gets_no_pods_meanwhile(
        test,
        &network,
        &["failed STATUS", "error 50: the switch reboots"],
        || macvlan_with_status(test, NOT_READY).map(drop),
        || macvlan_with_status(test, FINE).map(drop),
    )
}

/// Creates a ClaimNetwork whose plugin fails ADD and STATUS with `code` while there is a file, and returns
/// its name with the file's. The plugin notes each ADD in another file.
fn network_that_fails(test: &Test<'_>, code: u32) -> Result<(String, PathBuf, PathBuf)> {
    let broken = format!("/opt/cni/bin/{}-{code}.broken", test.name("plugin"));
    let adds = format!("/var/lib/cni/{}-{code}.adds", test.name("plugin"));
    let script = format!(
        "[ \"$CNI_COMMAND\" != ADD ] || echo >>{adds}\n\
         case $CNI_COMMAND in ADD|STATUS) if [ -e {broken} ] && [ -e {adds} ]; then\n\
         echo '{{\"cniVersion\": \"1.1.0\", \"code\": {code}, \"msg\": \"the switch reboots\"}}'; exit 1\nfi;; esac\n\
         [ \"$CNI_COMMAND\" != STATUS ] || exit 0\nexec /opt/cni/bin/macvlan"
    );
    let plugin = test.plugin(&format!("plugin{code}"), &script)?;
    let network = test.network_on("eth1", if code == 50 { "a" } else { "b" }, |network| {
        network["spec"]["cni"]["cniVersion"] = json!("1.1.0");
        network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin);
    })?;
    Ok((network, test.cluster.node().path(&broken), test.cluster.node().path(&adds)))
}

pub fn an_add_that_says_its_plugin_cannot_serve_keeps_other_pods_away_until_status_says_otherwise(
    test: &Test<'_>,
) -> Result<()> {
    for (code, taint) in [(50, "netclaim.dev/not-ready"), (51, "netclaim.dev/limited")] {
        let (network, broken, adds) = network_that_fails(test, code)?;
        let device = format!("net-{network}");
        let [first, second] = ["first", "second"].map(|pod| format!("{pod}{code}"));
        // What STATUS has said of it stands for a while.
        test.is_published(&device, |device| device["taints"].is_null())?;
        fs::write(&broken, "")?;
        test.pod(&first, &network)?;
        let begin = eventually(30, "the claim says why", || {
            let claim = test.get("resourceclaim", &first)?;
            let condition = &claim["status"]["devices"][0]["conditions"][0];
            ensure!(
                condition["reason"] == "PluginNotReady" && text(&condition["message"]).contains("reboots"),
                "its condition is {condition}"
            );
            Ok(Instant::now())
        })?;
        test.is_published(&device, |device| device["taints"][0]["key"] == taint)?;
        eprintln!("code {code}: the device has its taint {:.1?} after the claim says why", begin.elapsed());
        test.pod(&second, &network)?;
        test.is_unschedulable(&second)?;
        // The plugin is asked meanwhile, and nothing else of it.
        let count = || Ok::<_, anyhow::Error>(fs::read_to_string(&adds)?.lines().count());
        let before = count()?;
        ensure!(before <= 2, "{before} ADDs have begun");
        holds(12, "no ADD begins", || {
            ensure!(count()? == before, "{} ADDs have begun, {before} before", count()?);
            Ok(())
        })?;
        fs::remove_file(&broken)?;
        test.runs_with(&first, &["net1"])?;
        test.runs_with(&second, &["net1"])?;
        fs::remove_file(&adds)?;
    }
    Ok(())
}

pub fn pods_are_evicted_where_their_network_says_so_when_a_plugin_says_for_a_minute_that_they_are_cut_off(
    test: &Test<'_>,
) -> Result<()> {
    let plugin = macvlan_with_status(test, FINE)?;
    let network = test.network("a", |network| {
        network["spec"]["cni"]["cniVersion"] = json!("1.1.0");
        network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin);
        network["spec"]["onFailure"] = json!({"traffic": "Evict"});
    })?;
    test.start_pod("p", &network)?;
    let limited = NOT_READY.replace("50", "51");
    macvlan_with_status(test, &limited)?;
    let has = |effect: &str| {
        test.is_published(&format!("net-{network}"), |device| {
            list(&device["taints"])
                .any(|taint| taint["key"] == "netclaim.dev/limited" && taint["effect"] == effect)
        })
    };
    has("NoSchedule")?;
    ensure!(test.get("pod", "p")?["metadata"]["deletionTimestamp"].is_null(), "it is evicted at once");
    eventually(100, "the pod is evicted", || {
        let names = test.kubectl(&["get", "pods", "-o", "name"])?;
        ensure!(!names.contains("pod/p"), "it is there");
        Ok(())
    })?;
    has("NoExecute")?;
    // The next agent hears of it only after a second.
    macvlan_with_status(test, &format!("sleep 1; {limited}"))?;
    let watch = test.cluster.watch_slices()?;
    test.cluster.replace_agent()?;
    let device = format!("net-{network}");
    let evicts = |taint: &Value| taint["effect"] == "NoExecute";
    let forgets = |write: &SliceEvent| {
        let mut devices = list(&write.slice["spec"]["devices"]).filter(|found| found["name"] == device);
        devices.any(|found| !list(&found["taints"]).any(evicts))
    };
    let written = watch.during(Duration::from_secs(15)).into_iter().find(forgets);
    ensure!(written.is_none(), "an agent that starts publishes {written:?}");
    has("NoExecute")?;
    macvlan_with_status(test, FINE)?;
    test.is_published(&format!("net-{network}"), |device| device["taints"].is_null())
}

pub fn a_network_gets_no_pods_while_its_plugin_is_missing(test: &Test<'_>) -> Result<()> {
    let network = network_with_status(test, "eth1")?;
    let plugin = test.name("plugin");
    gets_no_pods_meanwhile(
        test,
        &network,
        &[&format!("CNI plugin `{plugin}`: not found in /opt/cni/bin")],
        || Ok(fs::remove_file(test.cluster.node().path(&format!("/opt/cni/bin/{plugin}")))?),
        || macvlan_with_status(test, FINE).map(drop),
    )
}

pub fn a_missing_plugin_is_named_in_the_log_and_pods_wait_for_it(test: &Test<'_>) -> Result<()> {
    let missing = test.name("plugin");
    let network = test.network_by(&missing)?;
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

pub fn a_network_gets_no_pods_while_its_uplink_is_down(test: &Test<'_>) -> Result<()> {
    let network = network_with_status(test, "eth2")?;
    let set = |state: &str| test.cluster.on_node(&["ip", "link", "set", "eth2", state]).map(drop);
    gets_no_pods_meanwhile(test, &network, &["eth2"], || set("down"), || set("up"))
}

pub fn each_request_of_a_claim_reports_its_own_health(test: &Test<'_>) -> Result<()> {
    let (fine, broken) = (test.macvlan("fine")?, network_with_status(test, "eth1")?);
    let mut claim = claim("p", &fine);
    claim["spec"]["devices"]["requests"] = json!([request("fine", &fine), request("broken", &broken)]);
    test.create([claim, pod("p", &["p"])])?;
    test.runs_with("p", &["net1", "net2"])?;
    macvlan_with_status(test, NOT_READY)?;
    eventually(60, "one of two devices is unhealthy", || {
        let status =
            test.get("pod", "p")?["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
        let is = |request: &str, health: &str| {
            let devices = list(&status[0]["resources"]);
            let of_request = |device: &Value| text(&device["resourceID"]).ends_with(request);
            devices.filter(|device| of_request(device) && device["health"] == health).count() == 1
        };
        ensure!(is("_fine", "Healthy") && is("_broken", "Unhealthy"), "the pod's status is {status}");
        Ok(())
    })
}

pub fn the_next_agent_reports_the_health_of_devices(test: &Test<'_>) -> Result<()> {
    let network = network_with_status(test, "eth1")?;
    test.start_pod("p", &network)?;
    device_is(test, "p", "Healthy", &[])?;
    test.cluster.kill_agent()?;
    macvlan_with_status(test, NOT_READY)?;
    device_is(test, "p", "Unhealthy", &["the switch reboots"])?;
    // A new parent process, too.
    test.cluster.kubectl(&["rollout", "restart", "-n", SYSTEM, AGENT])?;
    test.cluster.agent_ready()?;
    macvlan_with_status(test, FINE)?;
    device_is(test, "p", "Healthy", &[])
}
