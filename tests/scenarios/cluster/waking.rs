//! Pods that would wait for the kubelet's next look, 60 to 90 s after a Prepare that failed and 10 to 15 s
//! after a container that was refused.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use netclaim_tests::objects::{claim, claim_template, class, list, pod, pod_of_template, request};
use netclaim_tests::{AGENT, AGENT_PODS, AuditLog, SYSTEM, Test, eventually, holds, long};
use serde_json::{Value, json};

use crate::authorizer::FirstReadRefused;

/// The annotation by which the agent wakes a pod.
const RETRY: &str = "netclaim.dev/retry";
/// Time after which the kubelet looks again by itself, and the shortest that a scenario leaves to it.
const RESYNC: Duration = Duration::from_secs(60);

/// The number of the annotation; 0 without it.
fn wakes(test: &Test<'_>, pod: &str) -> Result<u64> {
    let pod = test.get("pod", pod)?;
    Ok(pod["metadata"]["annotations"][RETRY].as_str().map_or(Ok(0), str::parse)?)
}

/// A counter of the agent.
fn woken(test: &Test<'_>, cause: &str, result: &str) -> Result<u64> {
    let metrics = test.cluster.ask_agent("/metrics")?;
    let labels = format!("netclaim_pods_woken_total{{cause=\"{cause}\",outcome=\"{result}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&labels));
    Ok(value.map_or(Ok(0), str::parse)?)
}

/// Whether the node's kubelet reports its pods (from Kubernetes 1.37).
fn kubelet_reports_pods(test: &Test<'_>) -> bool {
    test.cluster.node().path("/var/lib/kubelet/pods-api/pods-api.sock").exists()
}

/// When a container of a pod started, in whole seconds since an agent started.
fn seconds_after_the_agent(test: &Test<'_>, pod: &str) -> Result<i64> {
    let started = |pod: &Value| {
        let at = &pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"];
        at.as_str().map(str::to_owned).context("it does not run")
    };
    let agents = test.cluster.get(&["-n", SYSTEM, "pods", "-l", AGENT_PODS])?;
    let agent = started(&agents["items"][0])?;
    let pod = started(&test.get("pod", pod)?)?;
    let seconds = |at: &str| -> Result<i64> {
        let date = std::process::Command::new("date").args(["-u", "+%s", "-d", at]).output()?;
        Ok(String::from_utf8(date.stdout)?.trim().parse()?)
    };
    Ok(seconds(&pod)? - seconds(&agent)?)
}

pub fn a_pod_starts_as_soon_as_its_agent_and_parent_are_back(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("warm", &network)?;
    test.create([claim_template("made", &network)])?;
    test.cluster.agent_away()?;
    test.pod("p", &network)?;
    // The kubelet does not report the names of such claims to an agent that comes later.
    test.create([pod_of_template("q", "made")])?;
    for pod in ["p", "q"] {
        test.event(pod, &["FailedPrepareDynamicResources"])?;
        test.has_not_started(pod)?;
    }
    // The kubelet will not look again while the agent comes back.
    std::thread::sleep(Duration::from_secs(6));
    test.cluster.agent_back()?;
    for pod in ["p", "q"] {
        test.runs_with(pod, &["net1"])?;
        let after = seconds_after_the_agent(test, pod)?;
        eprintln!("       {pod} started {after} s after the agent, both in whole seconds");
        ensure!(after <= 4, "{pod} started {after} s after the agent");
        ensure!((1..=3).contains(&wakes(test, pod)?), "{} wakes of {pod}", wakes(test, pod)?);
    }
    ensure!(wakes(test, "warm")? == 0, "a pod that runs was woken");
    Ok(())
}

pub fn pods_whose_claims_the_kubelet_may_not_read_yet_are_woken(test: &Test<'_>) -> Result<()> {
    if !kubelet_reports_pods(test) {
        return test.skip("before Kubernetes 1.37 the kubelet does not report its pods");
    }
    let network = test.macvlan("a")?;
    test.start_pod("warm", &network)?;
    let before = woken(test, "NotPrepared", "Ok")?;
    let names: Vec<String> = (0..20).map(|n| format!("p{n}")).collect();
    let authorizer = FirstReadRefused::start(test)?;
    let log = AuditLog::from_now(test.cluster)?;
    let watch = test.watch_pods()?;
    test.create(names.iter().flat_map(|name| [claim(name, &network), pod(name, &[name])]))?;
    // The first pod, which runs, is among them.
    let started = watch.started(1 + names.len(), 100)?;
    drop(authorizer);
    let slowest = started.into_iter().map(|(_, took)| took).max().context("no pods")?;
    let reads = log.requests_of("system:node:node0")?;
    let refused = reads.get("get resourceclaims 403").copied().unwrap_or_default();
    let woken = woken(test, "NotPrepared", "Ok")? - before;
    eprintln!("       {refused} pods refused at first, {woken} wakes, slowest {slowest:?}");
    ensure!(refused >= names.len(), "the kubelet's requests: {reads:?}");
    ensure!(woken >= u64::try_from(refused)?, "{woken} wakes of {refused} pods");
    ensure!(slowest < Duration::from_secs(20), "a pod took {slowest:?}");
    Ok(())
}

pub fn a_pod_that_cannot_be_prepared_is_woken_three_times_and_no_more(test: &Test<'_>) -> Result<()> {
    if !kubelet_reports_pods(test) {
        return test.skip("before Kubernetes 1.37 the kubelet does not report its pods");
    }
    let network = test.macvlan("a")?;
    // A driver that publishes a device and is not there: the kubelet gets no further, and asks for no claim
    // of the pod.
    let other = test.name("other");
    let driver = format!("{other}.example.com");
    let mut of_other = class(&other, "true");
    of_other["spec"]["selectors"][0]["cel"]["expression"] = json!(format!("device.driver == {driver:?}"));
    let mut both = claim("both", &network);
    both["spec"]["devices"]["requests"] = json!([request("net", &network), request("other", &other)]);
    test.create([
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": other},
            "spec": {"driver": driver, "nodeName": "node0", "pool": {"name": "node0", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "one"}]}}),
        of_other,
        both,
        pod("p", &["both"]),
    ])?;
    let result = is_woken_three_times(test, &driver);
    // A kubelet that starts deletes the slices of drivers that do not register.
    test.cluster.kubectl(&["delete", "resourceslice", &other, "--ignore-not-found"])?;
    result
}

fn is_woken_three_times(test: &Test<'_>, driver: &str) -> Result<()> {
    test.event("p", &["FailedPrepareDynamicResources", driver])?;
    eventually(15, "the pod was woken three times", || {
        let wakes = wakes(test, "p")?;
        ensure!(wakes == 3, "{wakes} times");
        Ok(())
    })?;
    // Even a new reason is not enough.
    test.cluster.service("restart", &test.cluster.node().service("kubelet"))?;
    test.cluster.agent_ready()?;
    holds(10, "the pod is left alone", || {
        let wakes = wakes(test, "p")?;
        ensure!(wakes == 3, "it was woken {wakes} times");
        Ok(())
    })
}

pub fn without_the_right_to_wake_pods_they_start_by_the_kubelets_next_look(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("warm", &network)?;
    let role = test.cluster.get(&["clusterrole", "netclaim-agent"])?;
    let mut less = role.clone();
    let rules = list(&role["rules"]).filter(|rule| rule["resources"] != json!(["pods/status"]));
    less["rules"] = rules.cloned().collect();
    ensure!(less != role, "the role has no such right");
    less["metadata"].as_object_mut().context("no metadata")?.remove("resourceVersion");
    test.cluster.kubectl_with(&["replace", "-f", "-"], &less.to_string())?;
    let result = starts_without_the_right(test, &network);
    let mut more = role;
    more["metadata"].as_object_mut().context("no metadata")?.remove("resourceVersion");
    test.cluster.kubectl_with(&["replace", "-f", "-"], &more.to_string())?;
    result
}

fn starts_without_the_right(test: &Test<'_>, network: &str) -> Result<()> {
    test.cluster.agent_away()?;
    for name in ["one", "two"] {
        test.pod(name, network)?;
    }
    for name in ["one", "two"] {
        test.event(name, &["FailedPrepareDynamicResources"])?;
    }
    test.cluster.agent_back()?;
    eventually(20, "the agent has found out", || {
        let refused = woken(test, "Registered", "Forbidden")? + woken(test, "NotPrepared", "Forbidden")?;
        ensure!(refused >= 2, "{refused} wakes were refused");
        Ok(())
    })?;
    let log = test.cluster.kubectl(&["logs", "-n", SYSTEM, AGENT])?;
    let lines = log.lines().filter(|line| line.contains("the agent may not wake pods")).count();
    ensure!(lines == 1, "the log says it {lines} times");
    for name in ["one", "two"] {
        ensure!(wakes(test, name)? == 0, "{name} was woken");
        if !long() {
            continue;
        }
        let limit = format!("--timeout={}s", 2 * RESYNC.as_secs());
        test.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), &limit])?;
    }
    Ok(())
}

pub fn a_pod_that_is_never_restarted_starts_as_soon_as_its_network_is_there(test: &Test<'_>) -> Result<()> {
    let note = format!("/var/lib/cni/{}", test.name("added"));
    let network = test.network_after(&format!("/opt/cni/bin/busybox sleep 5; : >{note}"))?;
    test.pod_without_restarts("p", &network)?;
    let file = test.cluster.node().path(&note);
    let added = loop {
        // In this order: it may start while kubectl asks.
        let phase = test.get("pod", "p")?["status"]["phase"].clone();
        match fs::metadata(&file) {
            Ok(file) => break file.modified()?,
            Err(_) if phase != "Pending" => bail!("it did not wait"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let late = eventually(30, "the container runs", || {
        test.container("p", "shell")?;
        Ok(SystemTime::now().duration_since(added)?)
    })?;
    eprintln!("       the container runs {late:?} after the plugin's end");
    fs::remove_file(file)?;
    test.event("p", &["Failed", "not attached yet"])?;
    test.runs_with("p", &["net1"])?;
    ensure!(late < Duration::from_secs(2), "the container started {late:?} after its network was there");
    Ok(())
}

pub fn a_pod_with_a_claim_of_an_earlier_name_starts_when_the_earlier_pod_has_ended(
    test: &Test<'_>,
) -> Result<()> {
    let network = test.macvlan("a")?;
    let mut slow = pod("old", &["web"]);
    slow["spec"]["terminationGracePeriodSeconds"] = json!(10);
    slow["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", "trap '' TERM; ls /sys/class/net; ip -o addr; sleep 1000000"]);
    test.create([claim("web", &network), slow])?;
    test.runs_with("old", &["net1"])?;
    let sandbox = test.sandbox("old")?;
    // As for a StatefulSet whose pod and claim were deleted by force: the kubelet still has the old claim.
    test.delete_pod_by_force("old")?;
    test.kubectl(&["delete", "resourceclaim", "web", "--timeout=60s"])?;
    test.create([claim("web", &network), pod("new", &["web"])])?;
    let has_ended = || {
        ensure!(test.cluster.node().tasks()?.iter().all(|task| task.id != sandbox.id), "its sandbox runs");
        Ok(())
    };
    // On a busy machine the old pod has ended before the kubelet looks at the new one.
    eventually(60, "the new claim is refused, or the old pod has ended", || {
        let events = test.events("new")?;
        let is_refused = |event: &String| {
            event.contains("FailedPrepareDynamicResources") && event.contains("still exists")
        };
        if events.iter().any(is_refused) { Ok(()) } else { has_ended() }
    })?;
    eventually(40, "the old pod has ended", has_ended)?;
    let begin = Instant::now();
    test.runs_with("new", &["net1"])?;
    let took = begin.elapsed();
    eprintln!("       the next pod runs {took:?} after the old one's sandbox has ended");
    ensure!(took < Duration::from_secs(30), "the next pod took {took:?}");
    Ok(())
}
