//! Many pods at once, and many one after another, on a real node: how long they take compared with pods
//! without networks, what memory and descriptors the agent holds, and its requests to the API server.
//!
//! `make test-density` (root, a quarter of an hour). Raw numbers go to `target/density/TIME/*.csv`, a summary
//! to standard error.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{claim_template, pod_of_templates};
use netclaim_tests::{AGENT_USER, AuditLog, Test, scenarios, suite};
use serde_json::Value;

mod measure;

use measure::{Held, Latencies, Report};

/// Pods that are started at once.
const AT_ONCE: usize = 100;
/// Networks of each pod.
const NETWORKS: usize = 2;
/// Pods of a batch, and batches: a round is an ADD and a DEL of one network of one pod.
const BATCH: usize = 50;
const BATCHES: usize = 20;
/// Batches with networks for each batch without.
const PLAIN_EVERY: usize = 4;
/// Time until the agent has returned the memory of a burst to the kernel.
const SETTLED: Duration = Duration::from_secs(60);
/// Seconds until all pods of a batch run, or are gone.
const TIMEOUT: u64 = 300;

fn main() -> ExitCode {
    suite::run(scenarios![
        alone:
            a_hundred_pods_with_two_networks_each_start_at_once,
            two_thousand_rounds_leave_the_agent_as_it_was;
    ])
}

/// Creates two ClaimNetworks, each with a claim template.
fn networks(test: &Test<'_>) -> Result<()> {
    for name in ["a", "b"] {
        let class = test.macvlan(name)?;
        test.create([claim_template(name, &class)])?;
    }
    Ok(())
}

fn pods(prefix: &str, count: usize, networks: bool) -> impl Iterator<Item = Value> {
    (0..count)
        .map(move |n| pod_of_templates(&format!("{prefix}-{n}"), if networks { &["a", "b"] } else { &[] }))
}

/// Starts `count` pods at once and waits until they run; returns how long each took.
fn start(test: &Test<'_>, prefix: &str, count: usize, networks: bool) -> Result<Latencies> {
    let watch = test.watch_pods()?;
    test.create(pods(prefix, count, networks))?;
    let started = watch.started(count, TIMEOUT).with_context(|| format!("pods {prefix}-*"))?;
    if networks {
        for (name, _) in &started {
            let interfaces = test.interfaces(name)?;
            ensure!(
                interfaces.contains_key("net1") && interfaces.contains_key("net2"),
                "{name}: {interfaces:?}"
            );
        }
    }
    Ok(Latencies(started))
}

/// Deletes all pods, and makes sure that the node is clean.
fn end(test: &Test<'_>) -> Result<()> {
    test.kubectl(&["delete", "pods", "--all", &format!("--timeout={TIMEOUT}s")])?;
    test.nodes_are_clean()
}

fn a_hundred_pods_with_two_networks_each_start_at_once(test: &Test<'_>) -> Result<()> {
    let mut report = Report::new("at-once")?;
    networks(test)?;
    report.held(Held::now(test, "start")?)?;
    let plain = start(test, "plain", AT_ONCE, false)?;
    end(test)?;
    let log = AuditLog::from_now(test.cluster)?;
    let with = start(test, "with", AT_ONCE, true)?;
    report.held(Held::now(test, "full")?)?;
    // What the burst needed and the attachments do not is given back by then.
    sleep(SETTLED);
    report.held(Held::now(test, "full, a minute later")?)?;
    end(test)?;
    report.held(Held::now(test, "end")?)?;
    report.requests(&log.requests_of(AGENT_USER)?, AT_ONCE)?;
    report.cpu(AT_ONCE)?;
    report.latencies(&plain, &with)
}

fn two_thousand_rounds_leave_the_agent_as_it_was(test: &Test<'_>) -> Result<()> {
    let mut report = Report::new("rounds")?;
    networks(test)?;
    let (mut plain, mut with) = (Latencies::default(), Latencies::default());
    let mut log = None;
    for batch in 0..BATCHES {
        if batch % PLAIN_EVERY == 0 {
            plain.0.extend(start(test, &format!("plain{batch}"), BATCH, false)?.0);
            end(test)?;
        }
        report.held(Held::now(test, &format!("{} rounds", batch * BATCH * NETWORKS))?)?;
        // The first batch fills caches that stay, in the agent and in the allocator.
        if batch == 1 {
            log = Some(AuditLog::from_now(test.cluster)?);
        }
        with.0.extend(start(test, &format!("with{batch}"), BATCH, true)?.0);
        end(test)?;
    }
    report.held(Held::now(test, &format!("{} rounds", BATCHES * BATCH * NETWORKS))?)?;
    let log = log.context("there was only one batch")?;
    report.requests(&log.requests_of(AGENT_USER)?, (BATCHES - 1) * BATCH)?;
    report.cpu(BATCHES * BATCH)?;
    report.latencies(&plain, &with)?;
    report.is_flat()
}
