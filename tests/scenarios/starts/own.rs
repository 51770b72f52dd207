//! netclaim's pods beside plain ones on the same node, in turns; and what slow plugins and an absent agent
//! cost them.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netclaim_tests::objects::{pod, text};
use netclaim_tests::{Test, setting};
use serde_json::{Value, json};

use crate::contestants::{Contestant, Netclaim, Plain, claim_from_template, netclaim_runs};
use crate::goals::{WHO, goals};
use crate::measure::{
    CPU_API_SERVER, CPU_CONTAINERD, CPU_CONTROL_PLANE, CPU_KUBELET, CPU_NODE, CPU_OWN, CPU_PLUGINS,
    CPU_STARTED, GONE, KINDS, NO_VOLUMES, ONE_BARE, START_TIMEOUT, TOKENS, Turn, slowest_of,
};
use crate::nri::Nri;
use crate::picture::{self, Panel};
use crate::pods::{Pods, Started};
use crate::samples::{Samples, table};

/// How long the slow ADD takes that plain pods start beside, in seconds.
const SLOW: usize = 8;
/// How long the slow ADD takes that pods wait for themselves.
const SLOW_OWN: usize = 5;
/// How long agent and parent are away.
const AWAY: Duration = Duration::from_secs(8);
const AWAY_TOOK: &str = "away: create to Running ms";
const AWAY_AFTER: &str = "away: ready again to Running ms";
const AWAY_WITHOUT: &str = "away: runs without net1";

/// Pods of a measurement.
pub fn count() -> Result<usize> {
    setting("NETCLAIM_BENCH_PODS", 20)
}

/// The order of turns in a round: in every second one the opposite.
pub fn order<T>(round: usize, who: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut order: Vec<T> = who.into_iter().collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Turns of each contestant.
pub fn rounds(default: usize) -> Result<usize> {
    setting("NETCLAIM_BENCH_ROUNDS", default)
}

/// The kinds of starts to measure, by `$NETCLAIM_BENCH_KINDS`: all by default, or those that begin so, such
/// as `one by one`.
pub fn kinds() -> Vec<&'static str> {
    let wanted = std::env::var("NETCLAIM_BENCH_KINDS").unwrap_or_default();
    KINDS.into_iter().filter(|kind| kind.starts_with(&wanted)).collect()
}

/// Has the agent log when an ADD begins and ends, which the marks need.
pub fn log_marks(test: &Test<'_>) -> Result<()> {
    test.cluster.set_agent_env(&["NETCLAIM_LOG=info,netclaim_driver=debug"])?;
    test.cluster.agent_ready()
}

/// Gives the node to the contestant of this name: netclaim runs there for its pods and for those of `plain`.
pub fn contestant<'a>(
    test: &'a Test<'a>,
    name: &'static str,
    samples: &Samples,
) -> Result<Box<dyn Contestant + 'a>> {
    netclaim_runs(test, ["plain", "netclaim"].contains(&name))?;
    Ok(match name {
        "netclaim" => Box::new(Netclaim::new(test)?),
        "nri" => Box::new(Nri::new(test, samples.dir())?),
        name => Box::new(Plain(name)),
    })
}

pub fn pods_with_a_claim_start_beside_plain_pods(test: &Test<'_>) -> Result<()> {
    let mut samples = Samples::new("starts", "starts")?;
    let pods = Pods::of(test)?;
    log_marks(test)?;
    let (kinds, count) = (kinds(), count()?);
    let pinned = test.cluster.dir().join("pinned").exists();
    for _ in 0..rounds(3)? {
        let round = samples.next_round();
        for name in order(round, WHO) {
            let who = contestant(test, name, &samples)?;
            eprintln!("         round {round}: {name}");
            Turn { test, pods: &pods, samples: &mut samples, who: &*who, round }.measure(&kinds, count)?;
            samples.save()?;
        }
    }
    netclaim_runs(test, true)?;
    let others = pinned.then(|| "control plane and node on processors of their own".to_owned());
    summarize(test, &samples, &WHO, others.as_slice())?;
    samples.publish("goals.md", &goals(&samples, pinned))
}

/// Milliseconds by which the slowest pod of a burst may be later than the slowest plain one.
const LATE: f64 = 500.0;

/// Counts the bursts with a claim whose slowest pod was not late, and says so.
fn bursts_in_time(samples: &Samples, base: &str) -> String {
    let of_kind = |kind: &str| {
        let slowest = |who: &str| samples.by_round(who, &slowest_of(kind));
        let (base, with) = (slowest(base), slowest("netclaim"));
        let pairs = with.iter().filter_map(|(round, with)| Some((with, base.get(round)?)));
        let in_time = pairs.filter(|(with, base)| **with <= **base + LATE).count();
        format!("{kind}: {in_time} of {}", with.len())
    };
    let kinds = [NO_VOLUMES, TOKENS].map(of_kind).join("; ");
    format!(
        "\nBursts whose slowest netclaim pod started at most {LATE} ms after the slowest one of `{base}`: {kinds}\n"
    )
}

/// What was measured, on what and when.
pub fn conditions(test: &Test<'_>, pods: usize, others: &[String]) -> Result<String> {
    let info = test.cluster.get(&["node", "node0"])?["status"]["nodeInfo"].clone();
    let date = Command::new("date").args(["-u", "+%F"]).output()?;
    let revision = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output()?;
    let said = |output: Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let processors = std::thread::available_parallelism()?;
    let mut facts = vec![
        said(date),
        format!("netclaim {}", said(revision)),
        format!("Kubernetes {}", text(&info["kubeletVersion"])),
        text(&info["containerRuntimeVersion"]).replace("://", " "),
        format!("Linux {}", text(&info["kernelVersion"])),
        format!("{processors} processors"),
    ];
    facts.extend(others.iter().cloned());
    facts.push(format!("p50 / p90 / p99 of {pods} pods for each kind of start"));
    Ok(facts.join(", "))
}

/// Writes the tables and the picture; `others` are the versions of the peers.
pub fn summarize(test: &Test<'_>, samples: &Samples, who: &[&str], others: &[String]) -> Result<()> {
    let head: Vec<&str> = std::iter::once("").chain(who.iter().copied()).collect();
    let row = |title: &str, cell: &dyn Fn(&str) -> String| {
        std::iter::once(title.to_owned()).chain(who.iter().map(|who| cell(who))).collect::<Vec<String>>()
    };
    let number = who.first().map_or(0, |who| samples.values(who, &format!("{ONE_BARE} ms")).len());
    let mut rows = Vec::new();
    for kind in KINDS {
        rows.push(row(&format!("{kind}: create to Running, ms"), &|who| {
            samples.cell(who, &format!("{kind} ms"))
        }));
    }
    for kind in [NO_VOLUMES, TOKENS] {
        let what = slowest_of(kind);
        rows.push(row(&format!("{kind}: slowest pod of a burst, ms"), &|who| samples.cell(who, &what)));
    }
    rows.push(row("deleted at once: gone, ms", &|who| samples.cell(who, GONE)));
    for (title, whats) in [
        (
            "its processes: memory; of it anonymous, MiB",
            ["memory before MiB", "of it anonymous before MiB"].as_slice(),
        ),
        ("the same after the pods", &["memory after MiB", "of it anonymous after MiB"]),
        ("CPU for a pod's life: its processes; plugins, ms", &[CPU_OWN, CPU_PLUGINS]),
        (
            "containerd; shims, runc, hooks, primary CNI; kubelet, ms",
            &[CPU_CONTAINERD, CPU_STARTED, CPU_KUBELET],
        ),
        (
            "all of the node's parts; API server; rest of the control plane, ms",
            &[CPU_NODE, CPU_API_SERVER, CPU_CONTROL_PLANE],
        ),
        ("API requests for a pod's life: its own; all", &["requests of its own", "requests of all"]),
    ] {
        rows.push(row(title, &|who| samples.medians(who, whats)));
    }
    let mut page = format!("{}\n\n{}", conditions(test, number, others)?, table(&head, rows));
    page += &who.first().map(|base| bursts_in_time(samples, base)).unwrap_or_default();
    for kind in [ONE_BARE, NO_VOLUMES] {
        page += &format!("\n{kind}: median of each mark, ms after the request\n\n");
        page += &table(&head, picture::rows(samples, kind, who));
    }
    let panels = [
        Panel { title: "One by one, pods without volumes", kind: ONE_BARE },
        Panel { title: "All at once, pods without volumes", kind: NO_VOLUMES },
    ];
    std::fs::write(samples.dir().join("starts.svg"), picture::svg(samples, &panels, who))?;
    samples.publish("table.md", &page)
}

/// A ClaimNetwork whose ADD takes so long, and the template of its claims; returns the template's name.
fn slow_template(test: &Test<'_>, seconds: usize) -> Result<String> {
    let class = test.network_after(&format!("sleep {seconds}"))?;
    test.create([netclaim_tests::objects::claim_template("slow", &class)])?;
    test.is_published(&format!("net-{class}"), |device| device["taints"].is_null())?;
    Ok("slow".to_owned())
}

fn slow_pod(name: &str, template: &str, restarts: &str) -> Value {
    let mut pod = pod(name, &[]);
    claim_from_template(&mut pod, template);
    pod["spec"]["restartPolicy"] = json!(restarts);
    pod
}

pub fn plain_pods_start_beside_a_slow_add(test: &Test<'_>) -> Result<()> {
    let mut samples = Samples::new("starts", "slow-add")?;
    let pods = Pods::of(test)?;
    let template = slow_template(test, SLOW)?;
    for _ in 0..rounds(3)? {
        let round = samples.next_round();
        for (who, beside) in [("alone", false), ("beside a slow ADD", true)] {
            let slow = beside.then(|| slow_pod(&format!("slow-{round}"), &template, "Always"));
            let slow = pods.create(&slow.into_iter().collect::<Vec<_>>())?;
            // The slow pod starts a little after this many seconds.
            let end = Instant::now() + Duration::from_secs_f64(SLOW as f64 - 0.5);
            let mut started: Vec<Started> = Vec::new();
            while Instant::now() < end {
                let name = format!("plain-{}-{round}-{}", u8::from(beside), started.len());
                started.extend(pods.start(&[pod(&name, &[])], START_TIMEOUT)?);
            }
            ensure!(slow.iter().all(|(name, _)| !pods.runs(name)), "the slow pod is not slow");
            for pod in &started {
                samples.add(round, who, "plain pod ms", &pod.name, pod.took());
            }
            for pod in pods.running(&slow, START_TIMEOUT)? {
                samples.add(round, who, "slow pod ms", &pod.name, pod.took());
            }
            let all = started.into_iter().map(|pod| pod.name).chain(slow.into_iter().map(|(name, _)| name));
            pods.delete(&all.collect::<Vec<_>>())?;
            samples.save()?;
        }
    }
    let row = |who: &str| {
        vec![
            who.to_owned(),
            samples.values(who, "plain pod ms").len().to_string(),
            samples.cell(who, "plain pod ms"),
            samples.cell(who, "slow pod ms"),
        ]
    };
    let head = ["plain pods, one by one", "n", "p50 / p90 / p99, ms", "the slow pod, ms"];
    samples.publish("table.md", &table(&head, ["alone", "beside a slow ADD"].map(row)))
}

pub fn pods_that_never_restart_wait_for_a_slow_add(test: &Test<'_>) -> Result<()> {
    let mut samples = Samples::new("starts", "never")?;
    let pods = Pods::of(test)?;
    let template = slow_template(test, SLOW_OWN)?;
    for _ in 0..rounds(3)? {
        let round = samples.next_round();
        for restarts in ["Always", "Never"] {
            let name = format!("{}-{round}", restarts.to_lowercase());
            let started = pods.start(&[slow_pod(&name, &template, restarts)], START_TIMEOUT)?;
            for pod in &started {
                ensure!(test.interfaces(&pod.name)?.contains_key("net1"), "{} has no net1", pod.name);
                samples.add(round, restarts, "start ms", &pod.name, pod.took());
            }
            pods.delete(&[name])?;
            samples.save()?;
        }
    }
    let row = |restarts: &str| vec![format!("`{restarts}`"), samples.cell(restarts, "start ms")];
    let head = ["restartPolicy", &format!("an ADD of {SLOW_OWN} s: p50 / p90 / p99, ms")];
    samples.publish("table.md", &table(&head, ["Always", "Never"].map(row)))
}

pub fn pods_start_when_the_agent_is_back(test: &Test<'_>) -> Result<()> {
    let mut samples = Samples::new("starts", "away")?;
    let pods = Pods::of(test)?;
    let netclaim = Netclaim::new(test)?;
    for _ in 0..rounds(1)? {
        let round = samples.next_round();
        away(&mut Turn { test, pods: &pods, samples: &mut samples, who: &netclaim, round })?;
        samples.save()?;
    }
    samples.publish("table.md", &away_table(&samples, &["netclaim"]))
}

/// Kills a contestant's processes, creates a pod, and starts them again after [`AWAY`].
pub fn away(turn: &mut Turn<'_>) -> Result<()> {
    let (test, pods, who) = (turn.test, turn.pods, turn.who);
    who.kill()?;
    let mut pod = pod(&format!("{}-waits-{}", who.name(), turn.round), &[]);
    who.dress(&mut pod);
    let begin = Instant::now();
    let created = pods.create(&[pod])?;
    std::thread::sleep(AWAY.saturating_sub(begin.elapsed()));
    who.restart()?;
    let back = begin.elapsed().as_secs_f64() * 1000.0;
    for pod in pods.running(&created, START_TIMEOUT)? {
        let there = test.interfaces(&pod.name)?.contains_key("net1");
        turn.add(AWAY_TOOK, &pod.name, pod.took());
        turn.add(AWAY_AFTER, &pod.name, (pod.took() - back).max(0.0));
        turn.add(AWAY_WITHOUT, &pod.name, f64::from(u8::from(!there)));
        pods.delete(&[pod.name])?;
    }
    Ok(())
}

/// The table of [`away`].
pub fn away_table(samples: &Samples, who: &[&str]) -> String {
    let row = |who: &&str| {
        let without: f64 = samples.values(who, AWAY_WITHOUT).iter().sum();
        let cells = [AWAY_TOOK, AWAY_AFTER].map(|what| samples.cell(who, what));
        std::iter::once((*who).to_owned()).chain(cells).chain([format!("{without}")]).collect::<Vec<_>>()
    };
    let head = [
        "away for 8 s, killed before the pod",
        "create to Running, ms",
        "after it is ready again, ms",
        "without net1",
    ];
    table(&head, who.iter().map(row))
}
