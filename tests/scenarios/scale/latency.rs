//! One real node with an agent: how soon a link's change is in its slice, and the memory that many links cost
//! the agent.

use std::io::{BufRead as _, BufReader};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{AuditLog, Plugged, PluggedMany, Running, Test, Usage, eventually};
use serde_json::json;

use crate::report::Report;

/// Changes of a link, one after another.
const FLAPS: usize = 30;
/// Time between two changes, so that the publisher's budget of 2 writes a second does not matter.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// How often the slices are deleted.
const DELETIONS: usize = 10;
/// Links of a node that has many.
const MANY: usize = 300;
/// The deadline of every wait.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long no slice is written after all changes are published.
const QUIET: Duration = Duration::from_secs(5);

/// The kernel's messages about a link, with the time at which a program on the node gets them.
struct Monitor {
    _ip: Running,
    lines: Receiver<(Instant, String)>,
}

impl Monitor {
    fn of(test: &Test<'_>, link: &str) -> Result<Self> {
        let target = test.cluster.node().pid().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &target, "--net", "ip", "-o", "monitor", "link", "dev", link]);
        let (ip, stdout) = Running::piped(&mut command)?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines =
                BufReader::new(stdout).lines().map_while(Result::ok).map(|line| (Instant::now(), line));
            lines.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        Ok(Self { _ip: ip, lines })
    }

    /// Waits for the first message with this state of the link; returns its time.
    fn time_of(&self, state: &str) -> Result<Instant> {
        loop {
            let (at, line) = self.lines.recv_timeout(TIMEOUT).context("the kernel sends no such message")?;
            if line.contains(&format!(" state {state} ")) {
                return Ok(at);
            }
        }
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
            std::thread::sleep(ROUND_INTERVAL);
            link.set(&["far-eth80", word])?;
            let changed = monitor.time_of(state)?;
            let visible = watch.until(TIMEOUT, &format!("eth80 is {word} in its slice"), |write| {
                write.device("nic-eth80").is_some_and(|device| device["taints"].is_array() == tainted)
            })?;
            times.push(visible.at.saturating_duration_since(changed));
        }
    }
    report.times("netlink event to slice seen", "link-to-slice.csv", &times)
}

pub fn deleted_slices_are_soon_back(test: &Test<'_>) -> Result<()> {
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

/// Blocks that are leased one after another.
const BLOCKS: usize = 20;

pub fn a_block_is_soon_in_the_capacity_of_its_device(test: &Test<'_>) -> Result<()> {
    let mut report = Report::new("blocks")?;
    let network = test.network("a", |network| {
        network["spec"]["addresses"] =
            json!({"ranges": [{"subnet": test.subnet(0)}], "blockSize": {"ipv4": 29}});
        network["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
    })?;
    test.is_published(&format!("net-{network}"), |device| device["taints"].is_null())?;
    // Only this test leases blocks.
    test.cluster.controller_away()?;
    let leased = || -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        // The controller has the first one.
        for number in 1..=BLOCKS {
            std::thread::sleep(ROUND_INTERVAL);
            let log = AuditLog::from_now(test.cluster)?;
            let host = u8::try_from(number * 8)?;
            let name = format!("{network}.{}-29", test.address(0, host));
            let spec = json!({"networkName": network, "nodeName": "node0", "cidr": format!("{}/29", test.address(0, host))});
            let metadata = json!({"name": name, "finalizers": ["netclaim.dev/addresses"]});
            test.create([json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock", "metadata": metadata, "spec": spec})])?;
            times.push(eventually(10, "the block is in the capacity of the device", || {
                let created =
                    log.write_times("addressblocks")?.into_iter().find(|(_, verb)| verb == "create");
                let (created, _) = created.context("no block was created")?;
                let slices = log.write_times("resourceslices")?.into_iter().map(|(at, _)| at);
                slices
                    .filter(|at| *at > created)
                    .map(|at| at - created)
                    .next()
                    .context("no slice was written")
            })?);
        }
        Ok(times)
    };
    let (leased, back) = (leased(), test.cluster.controller_back());
    back?;
    report.times("block leased to slice written", "block-to-slice.csv", &leased?)
}

/// Waits until `count` links of [`PluggedMany`] are published as NICs.
fn are_published(test: &Test<'_>, count: usize) -> Result<()> {
    eventually(TIMEOUT.as_secs(), &format!("{count} links are published"), || {
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
    // A new agent has held nothing before.
    test.cluster.replace_agent()?;
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
