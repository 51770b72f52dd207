//! The connection to the container runtime: who waits behind it, and what it costs.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{claim, pod};
use netclaim_tests::{AGENT, SYSTEM, Test, Usage, eventually, percentile};
use serde_json::json;

/// Seconds that the slow container needs to end.
const GRACE: u32 = 30;
/// Pods of each kind that start beside it.
const PODS: usize = 3;
/// Far less than the rest of the grace period, which the pods waited for if the agent connected to the
/// runtime.
const SOON: Duration = Duration::from_secs(10);

pub fn an_agent_that_starts_again_beside_a_slow_stop_delays_no_pod(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    // The scheduler sees the ClaimNetwork's device while the agent runs.
    test.start_pod("warm", &network)?;
    let mut ending = pod("ending", &[]);
    ending["spec"]["terminationGracePeriodSeconds"] = json!(GRACE);
    ending["spec"]["containers"][0]["command"] = json!(["sh", "-c", "trap '' TERM; sleep 1000000"]);
    test.create([ending])?;
    test.runs("ending")?;
    let stopping = Instant::now();
    test.kubectl(&["delete", "pod", "ending", "--wait=false"])?;
    // The kubelet has told the runtime to stop the container by then.
    std::thread::sleep(Duration::from_secs(3));
    test.cluster.replace_agent()?;
    // An agent connects when it has taken over; one that has to connect to the runtime is held there.
    std::thread::sleep(Duration::from_secs(2));
    let watch = test.watch_pods()?;
    let names = |kind: &'static str| (0..PODS).map(move |n| format!("{kind}{n}"));
    let plain = names("plain").map(|name| pod(&name, &[]));
    let attached = names("attached").flat_map(|name| [claim(&name, &network), pod(&name, &[&name])]);
    test.create(plain.chain(attached))?;
    for name in names("plain").chain(names("attached")) {
        test.runs(&name)?;
    }
    let all_run = stopping.elapsed();
    let took = |kind: &str| -> Result<Vec<Duration>> {
        let started = eventually(20, "the watch has seen all of them", || {
            let started = watch.started(2 * PODS, 0)?;
            Ok(started.into_iter().filter(|(name, _)| name.starts_with(kind)).map(|(_, took)| took).collect())
        });
        let mut started: Vec<Duration> = started?;
        started.sort();
        Ok(started)
    };
    let (plain, attached) = (took("plain")?, took("attached")?);
    eprintln!("         after the agent's restart, plain: {plain:.2?}, with a claim: {attached:.2?}");
    ensure!(plain.len() == PODS && attached.len() == PODS, "{plain:?} {attached:?}");
    for took in plain.into_iter().chain(attached) {
        ensure!(took < SOON, "a pod took {took:?} while a container needed {GRACE} s to end");
    }
    ensure!(all_run < Duration::from_secs(GRACE.into()), "the container had ended when all pods ran");
    names("attached").try_for_each(|name| test.runs_with(&name, &["net1"]))
}

/// Pods with a slow plugin, and as many without networks.
const BESIDE: usize = 4;
/// What the handler may wait, 50 ms, and what a busy machine adds.
const ANSWERED: Duration = Duration::from_millis(500);

pub fn the_runtime_is_answered_at_once_while_an_add_takes_long(test: &Test<'_>) -> Result<()> {
    let network = test.network_after("/opt/cni/bin/busybox sleep 8")?;
    let log = || test.cluster.kubectl(&["logs", "-n", SYSTEM, AGENT, "--tail=20000"]);
    let names = |kind: &'static str| (0..BESIDE).map(move |n| format!("{kind}{n}"));
    let slow = names("slow").flat_map(|name| [claim(&name, &network), pod(&name, &[&name])]);
    test.create(slow.chain(names("plain").map(|name| pod(&name, &[]))))?;
    names("plain").try_for_each(|name| test.runs(&name))?;
    for name in names("slow") {
        ensure!(test.has_not_started(&name).is_ok(), "{name} was faster than its plugin");
    }
    names("slow").try_for_each(|name| test.runs_with(&name, &["net1"]))?;
    // First a line of the agent, which the parent waits for, then one of the parent, which the runtime waits
    // for.
    let log = log()?;
    let namespace = format!(" {}/", test.namespace());
    let mut answers = Vec::new();
    for line in log.lines().filter(|line| line.contains("has its answer") && line.contains(&namespace)) {
        let (_, number) = line.split_once("took_us=").with_context(|| format!("no time in {line}"))?;
        let number = number.split_whitespace().next().unwrap_or_default();
        let took = Duration::from_micros(number.parse().with_context(|| format!("no time in {line}"))?);
        let (_, call) = line.split_once("call=").with_context(|| format!("no call in {line}"))?;
        answers.push((call.split(" took_us=").next().unwrap_or_default(), took));
    }
    let pairs: Vec<_> = answers.windows(2).filter(|pair| pair[0].0 == pair[1].0).collect();
    let mut took: Vec<Duration> = pairs.iter().map(|pair| pair[1].1).collect();
    let mut relay: Vec<Duration> = pairs.iter().map(|pair| pair[1].1.saturating_sub(pair[0].1)).collect();
    took.sort();
    relay.sort();
    // RunPodSandbox and CreateContainer of each pod.
    ensure!(took.len() >= 4 * BESIDE, "the log has {} answers:\n{log}", took.len());
    let (p50, p99) = (percentile(&took, 50), percentile(&took, 99));
    eprintln!("         {} answers: p50 {p50:?}, p99 {p99:?}", took.len());
    eprintln!("         of it the relay: p50 {:?}, p99 {:?}", percentile(&relay, 50), percentile(&relay, 99));
    ensure!(p99.is_some_and(|p99| p99 < ANSWERED), "the runtime waited {p99:?} for an answer");
    Ok(())
}

/// KiB that the parent may have; a part of its program, which is larger in the tests' image than in a
/// release.
const RESIDENT: u64 = 6 << 10;
/// KiB of it without a file behind them.
const ANONYMOUS: u64 = 1 << 10;

pub fn the_parent_needs_little_memory(test: &Test<'_>) -> Result<()> {
    let parent = Usage::of(test.cluster.parent_pid()?)?;
    let agent = Usage::of(test.cluster.agent_pid()?)?;
    eprintln!(
        "         parent: {} KiB, anonymous {}; agent: {} KiB, anonymous {}",
        parent.rss, parent.anonymous, agent.rss, agent.anonymous
    );
    ensure!(parent.rss <= RESIDENT && parent.anonymous <= ANONYMOUS, "{parent:?}");
    Ok(())
}
