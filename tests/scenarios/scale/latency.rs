//! One real node with an agent: how soon the API server has what the kernel tells, and what many links cost the agent.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Plugged, PluggedMany, Test, Usage, eventually};

use crate::report::Report;

/// Changes of a link, one after another.
const FLAPS: usize = 30;
/// Between two changes: the publisher's budget of 2 writes a second is not to be part of what is measured.
const PAUSE: Duration = Duration::from_secs(1);
/// Times that slices are deleted.
const DELETIONS: usize = 10;
/// Links of a node that has many.
const MANY: usize = 300;
/// How long is waited for anything.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the slices are as they are, once all changes are in them.
const QUIET: Duration = Duration::from_secs(5);

/// When the kernel told what of a link, as any program on the node hears it.
struct Monitor {
    ip: Child,
    lines: Receiver<(Instant, String)>,
}

impl Monitor {
    fn of(test: &Test<'_>, link: &str) -> Result<Self> {
        let target = test.cluster.node().pid().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &target, "--net", "ip", "-o", "monitor", "link", "dev", link]);
        let mut ip = command.stdout(Stdio::piped()).spawn().context("cannot run nsenter")?;
        let told = BufReader::new(ip.stdout.take().context("no pipe")?);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = told.lines().map_while(Result::ok).map(|line| (Instant::now(), line));
            lines.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        Ok(Self { ip, lines })
    }

    /// When the link's state was first told to be this.
    fn told(&self, state: &str) -> Result<Instant> {
        loop {
            let (at, line) = self.lines.recv_timeout(PATIENCE).context("the kernel tells nothing")?;
            if line.contains(&format!(" state {state} ")) {
                return Ok(at);
            }
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.ip.kill();
        let _ = self.ip.wait();
    }
}

pub fn a_change_of_a_link_is_soon_in_its_slice(test: &Test<'_>) -> Result<()> {
    let mut report = Report::new("latency")?;
    let link = Plugged::new(test, "eth80")?;
    let watch = test.cluster.watch_slices()?;
    watch.until_quiet(QUIET)?;
    let monitor = Monitor::of(test, "eth80")?;
    let mut times = Vec::new();
    for _ in 0..FLAPS {
        for (word, state, tainted) in [("down", "LOWERLAYERDOWN", true), ("up", "UP", false)] {
            std::thread::sleep(PAUSE);
            link.set(&["far-eth80", word])?;
            let told = monitor.told(state)?;
            let visible = watch.until(PATIENCE, &format!("eth80 is {word} in its slice"), |write| {
                write.device("nic-eth80").is_some_and(|device| device["taints"].is_array() == tainted)
            })?;
            times.push(visible.at.saturating_duration_since(told));
        }
    }
    report.times("netlink event to slice seen", "link-to-slice.csv", &times)
}

pub fn slices_that_are_deleted_are_soon_back(test: &Test<'_>) -> Result<()> {
    let mut report = Report::new("deleted")?;
    let watch = test.cluster.watch_slices()?;
    watch.until_quiet(QUIET)?;
    let mut times = Vec::new();
    for _ in 0..DELETIONS {
        test.cluster.kubectl(&["delete", "resourceslices", "--all", "--wait=false"])?;
        let writes = watch.until_quiet(QUIET)?;
        let gone = writes.iter().rfind(|write| write.deleted).context("nothing was deleted")?;
        let back = writes.iter().rfind(|write| !write.deleted).context("no slice came back")?;
        ensure!(back.at > gone.at, "the last write was a deletion");
        times.push(back.at - gone.at);
    }
    report.times("slices deleted to all back", "deleted-to-back.csv", &times)
}

/// Waits until so many of the links of [`PluggedMany`] are published as NICs.
fn are_published(test: &Test<'_>, count: usize) -> Result<()> {
    eventually(PATIENCE.as_secs(), &format!("{count} links are published"), || {
        let devices = test.cluster.devices_of_node()?;
        let names = devices.iter().filter_map(|device| device["name"].as_str());
        let published =
            names.filter(|name| name.starts_with("nic-eth1") && name.len() == "nic-eth1000".len()).count();
        ensure!(published == count, "{published} are");
        Ok(())
    })
}

pub fn hundreds_of_links_cost_the_agent_little_memory(test: &Test<'_>) -> Result<()> {
    let mut report = Report::new("memory")?;
    let usage = || Usage::of(test.cluster.agent_pid()?);
    // One that has not seen anything yet.
    let old = test.cluster.agent_pid()?;
    test.cluster.kill_agent()?;
    eventually(20, "another agent runs", || {
        ensure!(test.cluster.agent_pid()? != old, "it is the old one");
        Ok(())
    })?;
    test.cluster.agent_ready()?;
    let watch = test.cluster.watch_slices()?;
    watch.until_quiet(QUIET)?;
    let few = usage()?;
    report.row("agent with 2 links: memory", few.rss as f64 / 1024.0, "MiB")?;
    let begin = Instant::now();
    let links = PluggedMany::new(test, MANY)?;
    let plugged = begin.elapsed();
    are_published(test, MANY)?;
    let published = begin.elapsed();
    let many = usage()?;
    links.take_out()?;
    are_published(test, 0)?;
    report.seconds(format!("{MANY} links plugged in"), plugged)?;
    report.seconds(format!("{MANY} links plugged in and published"), published)?;
    report.row("writes of slices until they are gone again", watch.until_quiet(QUIET)?.len() as f64, "")?;
    report.row(format!("agent with {MANY} links: memory"), many.rss as f64 / 1024.0, "MiB")?;
    report.row(format!("agent with {MANY} links: most memory"), many.peak as f64 / 1024.0, "MiB")?;
    let after = usage()?;
    report.row("agent after they are gone: memory", after.rss as f64 / 1024.0, "MiB")?;
    ensure!(many.rss < few.rss + 64 * 1024, "{MANY} links cost {} KiB", many.rss - few.rss);
    Ok(())
}
