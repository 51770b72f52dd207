//! CNI plugins fail, print garbage, hang, are slow or are killed.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{claim, container, list, pod, text};
use netclaim_tests::{Process, Test, eventually, long, processes};
use serde_json::json;

use crate::bandwidth::buckets;

const FAIL: &str = r#"echo '{"cniVersion": "1.0.0", "code": 101, "msg": "the switch says no", "details": "port 7"}'; exit 1"#;
const HANG: &str = "/opt/cni/bin/busybox sleep 1000";

/// Makes sure that a pod does not start because of `words`, and that it starts by itself when the plugin is
/// fixed.
fn starts_when_fixed(test: &Test<'_>, on_add: &str, policy: &str, words: &[&str]) -> Result<()> {
    let network = test.network_after(on_add)?;
    test.pod_with("p", &network, |_, pod| pod["spec"]["restartPolicy"] = json!(policy))?;
    test.event("p", &[&[network.as_str()], words].concat())?;
    test.claim_is_not_ready("p", words)?;
    test.does_not_start("p")?;
    test.macvlan_after(":")?;
    test.runs_with("p", &["net1"])?;
    test.claim_is_ready("p").map(drop)
}

pub fn a_failing_plugin_is_quoted_and_the_pod_starts_when_it_is_fixed(test: &Test<'_>) -> Result<()> {
    starts_when_fixed(test, FAIL, "Always", &["the switch says no", "port 7"])
}

pub fn a_container_names_the_plugin_that_fails(test: &Test<'_>) -> Result<()> {
    let network = test.network_after(FAIL)?;
    test.pod("p", &network)?;
    // On a slow machine it was created before the plugin had failed, and waits in its hook first.
    eventually(120, "the container is refused with the plugin's error", || {
        let pod = test.get("pod", "p")?;
        let status = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        let is_named = text(&status["message"]).contains("the switch says no");
        ensure!(status["reason"] == "CreateContainerError" && is_named, "it is {status}");
        Ok(())
    })?;
    test.macvlan_after(":")?;
    test.runs("p")?;
    test.began_with("p", &["net1"])
}

pub fn a_plugin_that_fails_in_two_ways_has_one_event_that_counts_both(test: &Test<'_>) -> Result<()> {
    let network = test.network_after(FAIL)?;
    test.pod("p", &network)?;
    test.event("p", &["NetworkAttachFailed", "the switch says no"])?;
    test.macvlan_after(&FAIL.replace("says no", "is busy"))?;
    test.claim_is_not_ready("p", &["the switch is busy"])?;
    eventually(20, "one event counts both failures", || {
        let events = test.cluster.get(&["-n", test.namespace(), "events"])?;
        let of_pod = list(&events["items"]).filter(|event| {
            event["reason"] == "NetworkAttachFailed" && event["involvedObject"]["name"] == "p"
        });
        let counts: Vec<Option<u64>> = of_pod.map(|event| event["series"]["count"].as_u64()).collect();
        ensure!(matches!(counts.as_slice(), [Some(2..)]), "they count {counts:?}");
        Ok(())
    })?;
    test.macvlan_after(":")?;
    test.runs_with("p", &["net1"])
}

pub fn a_pod_that_is_never_restarted_survives_a_plugin_that_fails(test: &Test<'_>) -> Result<()> {
    starts_when_fixed(test, FAIL, "Never", &["the switch says no", "port 7"])
}

pub fn a_plugin_that_prints_garbage_is_quoted_and_the_pod_starts_when_it_is_fixed(
    test: &Test<'_>,
) -> Result<()> {
    starts_when_fixed(test, "echo 'Hello, world'; exit 0", "Always", &["Hello, world"])
}

pub fn a_hanging_plugin_is_stopped_and_the_pod_starts_when_it_is_fixed(test: &Test<'_>) -> Result<()> {
    starts_when_fixed(test, HANG, "Always", &["10 s"])
}

pub fn containers_that_do_not_name_the_claim_wait_too(test: &Test<'_>) -> Result<()> {
    let network = test.network_after("/opt/cni/bin/busybox sleep 4")?;
    let mut pod = pod("p", &["p"]);
    pod["spec"]["containers"].as_array_mut().context("containers")?.push(container("beside"));
    let mut init = container("before");
    init["command"] = json!(["ls", "/sys/class/net"]);
    pod["spec"]["initContainers"] = json!([init]);
    test.create([claim("p", &network), pod])?;
    test.runs_with("p", &["net1"])?;
    let log = test.kubectl(&["logs", "p", "-c", "before"])?;
    ensure!(log.lines().any(|line| line == "net1"), "the init container began without net1: {log}");
    Ok(())
}

pub fn a_pod_that_is_deleted_while_its_plugin_hangs_leaves_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.network_after(HANG)?;
    test.pod("p", &network)?;
    eventually(20, "the pod has a sandbox", || test.sandbox("p"))?;
    let begin = Instant::now();
    test.delete_pod("p")?;
    let took = begin.elapsed();
    ensure!(took < Duration::from_secs(20), "deletion took {took:?}");
    Ok(())
}

pub fn a_pod_whose_plugin_cannot_delete_is_kept_until_it_can(test: &Test<'_>) -> Result<()> {
    let network = test.network_after(":")?;
    test.start_pod("p", &network)?;
    test.plugin("plugin", FAIL)?;
    test.kubectl(&["delete", "pod", "p", "--wait=false"])?;
    test.claim_is_not_ready("p", &["failed DEL", "the switch says no"])?;
    test.does_not_start("p")?;
    // The kubelet keeps the pod, so that no other pod gets what the plugin has not released.
    test.get("pod", "p").context("the pod went without its DEL")?;
    test.macvlan_after(":")?;
    test.delete_pod("p")
}

/// Says that nothing was made, as the draft of the specification has it.
const MADE_NOTHING: &str = r#"echo '{"cniVersion": "1.0.0", "code": 50, "msg": "the daemon is away", "effectState": "none"}'; exit 1"#;
const AWAY: &str = r#"echo '{"cniVersion": "1.0.0", "code": 11, "msg": "the daemon is away"}'; exit 1"#;

/// Returns a script that runs `real`, with these beginnings of ADD and DEL.
fn before(on_add: &str, on_del: &str, real: &str) -> String {
    format!("case $CNI_COMMAND in ADD)\n{on_add}\n;; DEL)\n{on_del}\n;; esac\nexec /opt/cni/bin/{real}")
}

/// Installs a chained plugin that stands for one with rules on the host. Returns its type.
fn rules(test: &Test<'_>, on_add: &str, on_del: &str) -> Result<String> {
    test.plugin("rules", &before(on_add, on_del, "tuning"))
}

/// Creates a ClaimNetwork whose macvlan has the plugin chained. Returns its name.
fn network_with(test: &Test<'_>, rules: &str) -> Result<String> {
    test.network("a", |network| {
        let first = network["spec"]["cni"]["plugins"][0].take();
        network["spec"]["cni"]["plugins"] = json!([first, {"type": rules}]);
    })
}

pub fn a_plugin_that_made_nothing_and_cannot_delete_keeps_no_pod_from_its_networks(
    test: &Test<'_>,
) -> Result<()> {
    let chained = network_with(test, &rules(test, MADE_NOTHING, AWAY)?)?;
    let alone = test.plugin("plugin", &before(MADE_NOTHING, AWAY, "macvlan"))?;
    let alone = test.network("b", |network| network["spec"]["cni"]["plugins"][0]["type"] = json!(alone))?;
    test.create([claim("chained", &chained), claim("alone", &alone)])?;
    test.create([pod("one", &["chained"]), pod("two", &["alone"])])?;
    for pod in ["one", "two"] {
        test.event(pod, &["NetworkAttachFailed", "the daemon is away"])?;
    }
    // Their ADD works now, and their DEL does not.
    rules(test, ":", AWAY)?;
    test.plugin("plugin", &before(":", AWAY, "macvlan"))?;
    for pod in ["one", "two"] {
        test.runs_with(pod, &["net1"])?;
    }
    rules(test, ":", ":")?;
    test.macvlan_after(":")?;
    test.delete_pod("one")?;
    test.delete_pod("two")
}

/// How long an address is looked at that must stay taken. The agent tries a plugin that may work later for 35
/// s.
const TAKEN: Duration = Duration::from_secs(8);

pub fn an_address_stays_taken_until_every_plugin_has_deleted_what_it_made(test: &Test<'_>) -> Result<()> {
    let network = network_with(test, &rules(test, ":", ":")?)?;
    test.start_pod("p", &network)?;
    test.cluster.agent_away()?;
    rules(test, ":", AWAY)?;
    test.kubectl(&["delete", "pod", "p", "--wait=false"])?;
    // The next agent finds neither the sandbox nor its namespace.
    eventually(60, "the sandbox has ended", || {
        ensure!(test.sandbox("p").is_err(), "it is there");
        Ok(())
    })?;
    test.cluster.agent_back()?;
    test.claim_is_not_ready("p", &["failed DEL", "the daemon is away"])?;
    let ready = &test.get("resourceclaim", "p")?["status"]["devices"][0]["conditions"][0];
    ensure!(ready["reason"] == "DetachFailed", "{ready}");
    test.event("p", &["NetworkDetachFailed", "the daemon is away"])?;
    let begin = Instant::now();
    while begin.elapsed() < TAKEN {
        let leases = test.cluster.node().leases()?;
        ensure!(leases.len() == 1, "{leases:?} while the plugin has its rules");
        std::thread::sleep(Duration::from_millis(200));
    }
    let problems = test.netclaimctl(&["status", "--output=json"]).err().context("nothing is owed")?;
    let owed = format!("a DEL of claim {}/p is owed and fails", test.namespace());
    ensure!(problems.to_string().contains(&owed), "not in the status: {problems}");
    rules(test, ":", ":")?;
    test.node_has_leases(0)?;
    test.kubectl(&["wait", "--for=delete", "pod/p", "--timeout=150s"]).map(drop)
}

pub fn a_link_of_another_program_in_the_pod_is_left_alone(test: &Test<'_>) -> Result<()> {
    // The other program has made `net2` before the second network is attached.
    let other = test.plugin(
        "plugin",
        "in=$(/opt/cni/bin/busybox cat)\n[ $CNI_COMMAND = VERSION ] || echo \"$in\" | CNI_IFNAME=net2 /opt/cni/bin/macvlan >&2\n\
         echo \"$in\" | /opt/cni/bin/macvlan",
    )?;
    let (first, second) = (test.network_by(&other)?, test.macvlan("b")?);
    test.create([claim("first", &first), claim("second", &second), pod("p", &["first", "second"])])?;
    test.event("p", &["NetworkAttachFailed", &second, "the pod has a link net2 already"])?;
    test.claim_is_not_ready("second", &["interfaceName"])?;
    let before = test.interface("p", "net2")?;
    test.does_not_start("p")?;
    let after = test.interface("p", "net2")?;
    ensure!(before.index == after.index, "{before:?} is {after:?} now");
    test.delete_pod("p")
}

pub fn a_plugin_can_use_the_programs_of_the_node(test: &Test<'_>) -> Result<()> {
    let missing = r#"echo '{"code": 101, "msg": "no env on this host"}'; exit 1"#;
    let plugin = test.macvlan_after(&format!("/usr/bin/env true 2>/dev/null || {{ {missing}; }}"))?;
    let network = test.network("a", |network| {
        // A plugin of the agent's image must be available, too.
        let bandwidth = json!({"type": "netclaim-bandwidth", "egressRate": 8_000_000});
        let mut first = network["spec"]["cni"]["plugins"][0].take();
        first["type"] = json!(plugin);
        network["spec"]["cni"]["plugins"] = json!([first, bandwidth]);
    })?;
    test.pod("p", &network)?;
    test.event("p", &[network.as_str(), "no env on this host"])?;
    let works = || {
        test.runs_with("p", &["net1"])?;
        ensure!(buckets(test, "p")? == [1_000_000], "{:?}", buckets(test, "p")?);
        test.delete_pod("p")
    };
    let done = test.cluster.plugins_see_the_node(true).and_then(|()| works());
    test.cluster.plugins_see_the_node(false)?;
    done
}

pub fn a_pod_does_not_start_if_one_of_its_networks_fails(test: &Test<'_>) -> Result<()> {
    let (good, bad) = (test.macvlan("b")?, test.network_after(FAIL)?);
    test.create([claim("first", &good), claim("second", &bad), pod("p", &["first", "second"])])?;
    test.event("p", &[bad.as_str(), "the switch says no"])?;
    test.claim_is_ready("first")?;
    test.does_not_start("p")?;
    test.delete_pod("p")
}

pub fn a_pod_that_is_never_restarted_is_not_held_in_a_hook(test: &Test<'_>) -> Result<()> {
    // Longer than the runtime waits for an NRI plugin, 2 s.
    let network = test.network_after("/opt/cni/bin/busybox sleep 6")?;
    test.pod_without_restarts("p", &network)?;
    test.event("p", &["Failed", "not attached yet, see its events and its ResourceClaims"])?;
    test.runs_with("p", &["net1"])
}

pub fn a_plugin_that_is_killed_is_run_again(test: &Test<'_>) -> Result<()> {
    let note = format!("/var/lib/cni/{}", test.name("killed"));
    let network = test.network_after(&format!("[ -e {note} ] || {{ : >{note}; kill -KILL $$; }}"))?;
    test.pod("p", &network)?;
    test.event("p", &[network.as_str(), "signal"])?;
    test.runs_with("p", &["net1"])?;
    Ok(fs::remove_file(test.cluster.node().path(&note))?)
}

pub fn a_plugins_surviving_child_delays_no_pod(test: &Test<'_>) -> Result<()> {
    // The child keeps the plugin's standard output, and the agent must not kill it. The number identifies it.
    let network = test.network_after("/opt/cni/bin/busybox sleep 98765 &")?;
    test.start_pod("p", &network)?;
    let children: Vec<Process> = processes("sleep\098765")?;
    ensure!(!children.is_empty(), "the child has ended: the test shows nothing");
    children.iter().try_for_each(Process::kill)
}

/// How long an IPAM plugin delays its answer; the next agent runs far sooner.
const LATE: Duration = Duration::from_secs(8);

pub fn a_killed_agents_plugin_does_not_interfere_with_the_next_agents(test: &Test<'_>) -> Result<()> {
    let note = format!("/var/lib/cni/{}", test.name("asked"));
    let late = LATE.as_secs();
    let ipam = test.plugin(
        "late-ipam",
        &format!(
            "[ \"$CNI_COMMAND\" = ADD ] && [ ! -e {note} ] || exec /opt/cni/bin/host-local\n: >{note}\n\
             answer=$(/opt/cni/bin/host-local)\n/opt/cni/bin/busybox sleep {late}\necho \"$answer\""
        ),
    )?;
    let network = test.network("a", |network| {
        let config = &mut network["spec"]["cni"]["plugins"][0]["ipam"];
        config["type"] = json!(ipam);
        config["routes"] = json!([{"dst": "10.98.0.0/16"}]);
    })?;
    test.pod("p", &network)?;
    let file = test.cluster.node().path(&note);
    eventually(20, "the IPAM plugin is asked for an address", || Ok(fs::metadata(&file).map(drop)?))?;
    std::thread::sleep(Duration::from_secs(2));
    test.cluster.kill_agent()?;
    test.runs_with("p", &["net1"])?;
    ensure!(processes(&ipam)?.is_empty(), "a plugin of the killed agent still runs");
    std::thread::sleep(LATE);
    fs::remove_file(file)?;
    let inside = test.interface("p", "net1")?;
    let sandbox = test.sandbox("p")?.sandbox;
    let leases = test.cluster.node().leases()?;
    let of_pod: Vec<_> = leases.iter().filter(|(_, holder)| *holder == sandbox).collect();
    let ([ip], [(lease, _)]) = (inside.ips.as_slice(), of_pod.as_slice()) else {
        anyhow::bail!("not one address with one lease: {inside:?}, {leases:?}")
    };
    let address = ip.split('/').next().unwrap_or_default();
    ensure!(lease.ends_with(&format!("/{address}")), "{ip} is in the pod, {lease} is its lease");
    Ok(())
}

pub fn a_pod_that_waits_in_a_hook_survives_an_agent_that_is_stopped(test: &Test<'_>) -> Result<()> {
    // The plugin fails when the container already waits in its hook.
    let network = test.network_after(&format!("/opt/cni/bin/busybox sleep 4; {FAIL}"))?;
    test.pod("p", &network)?;
    hook_waits(test, "p")?;
    test.event("p", &["NetworkAttachFailed", "the switch says no"])?;
    test.cluster.delete_agent_pod()?;
    test.cluster.agent_ready()?;
    test.macvlan_after(":")?;
    test.runs_with("p", &["net1"])
}

/// Waits until a container of the pod waits in the hook of its claim.
pub(super) fn hook_waits(test: &Test<'_>, pod: &str) -> Result<()> {
    let uid = text(&test.get("pod", pod)?["metadata"]["uid"]);
    eventually(30, "a hook waits", || {
        ensure!(!processes(&format!("/run/netclaim/ready\0{uid}\0"))?.is_empty(), "none for {pod}");
        Ok(())
    })
}

/// Failures of the plugin. With growing backoffs, ten take more than a minute.
const FAILURES: usize = 4;
const MANY_FAILURES: usize = 10;

pub fn a_pod_that_is_never_restarted_survives_a_plugin_that_fails_many_times(test: &Test<'_>) -> Result<()> {
    let times = if long() { MANY_FAILURES } else { FAILURES };
    let note = format!("/var/lib/cni/{}", test.name("failed"));
    let network = test.network_after(&format!(
        "echo >>{note}\n[ $(/opt/cni/bin/busybox wc -l <{note}) -gt {times} ] || {{ {FAIL}; }}"
    ))?;
    test.pod_without_restarts("p", &network)?;
    let file = test.cluster.node().path(&note);
    eventually(150, "the plugin has failed often enough", || {
        let tries = fs::read_to_string(&file).unwrap_or_default().lines().count();
        ensure!(tries > times, "{tries} of {times} times");
        Ok(())
    })?;
    fs::remove_file(file)?;
    test.runs_with("p", &["net1"])
}
