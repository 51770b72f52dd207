//! The measurements, their files and their limits.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use netclaim_tests::{RawNumbers, Test, Usage, percentile};

/// KiB by which the agent may grow after the first quarter: pages that the allocator keeps.
const DRIFT: u64 = 2048;
/// Descriptors by which it may grow: connections to the API server.
const FD_DRIFT: usize = 4;

/// How long pods took from being scheduled to running.
#[derive(Default)]
pub struct Latencies(pub Vec<(String, Duration)>);

impl Latencies {
    /// Milliseconds that `percent` of the pods did not exceed.
    fn percentile(&self, percent: usize) -> u128 {
        let mut all: Vec<u128> = self.0.iter().map(|(_, took)| took.as_millis()).collect();
        all.sort_unstable();
        percentile(&all, percent).unwrap_or_default()
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (self.percentile(50), self.percentile(99));
        write!(f, "p50 {p50} ms, p99 {p99} ms ({} pods)", self.0.len())
    }
}

/// What the agent and its parent hold at a moment.
pub struct Held {
    when: String,
    pid: i32,
    agent: Usage,
    parent: Usage,
}

impl Held {
    /// Reads it now; `when` is a label for people.
    pub fn now(test: &Test<'_>, when: &str) -> Result<Self> {
        let pid = test.cluster.agent_pid()?;
        let parent = Usage::of(test.cluster.parent_pid()?)?;
        Ok(Self { when: when.to_owned(), pid, agent: Usage::of(pid)?, parent })
    }
}

/// The numbers of one scenario, in files for programs and on standard error for people.
pub struct Report {
    raw: RawNumbers,
    held: Vec<Held>,
}

impl Report {
    /// Creates a report in a new folder below `target/density`.
    pub fn new(name: &str) -> Result<Self> {
        let raw = RawNumbers::new(env!("CARGO_TARGET_TMPDIR"), "density", name)?;
        say(&format!("raw numbers: {}", raw.dir().display()));
        Ok(Self { raw, held: Vec::new() })
    }

    /// Records what is held at a moment.
    pub fn held(&mut self, held: Held) -> Result<()> {
        let Held { when, agent, parent, .. } = &held;
        say(&format!(
            "{when}: agent {} KiB ({} anonymous), {} descriptors; parent {} KiB ({} anonymous), {} descriptors",
            agent.rss, agent.anonymous, agent.fds, parent.rss, parent.anonymous, parent.fds
        ));
        self.held.push(held);
        let line = |held: &Held| {
            let Held { when, pid, agent, parent } = held;
            let of = |Usage { rss, anonymous, fds, cpu, programs, .. }: &Usage| {
                format!("{rss},{anonymous},{fds},{cpu},{programs}")
            };
            format!("{when},{pid},{},{}", of(agent), of(parent))
        };
        let head = "when,agent_pid,agent_rss_kib,agent_anonymous_kib,agent_fds,agent_cpu_ms,plugins_cpu_ms,\
                    parent_rss_kib,parent_anonymous_kib,parent_fds,parent_cpu_ms,programs_cpu_ms";
        self.raw.write("held.csv", head, self.held.iter().map(line))
    }

    /// Records the requests for `pods` pods, from their start to their end.
    pub fn requests(&self, counts: &BTreeMap<String, usize>, pods: usize) -> Result<()> {
        let all: usize = counts.values().sum();
        let hundredths = all * 100 / pods;
        say(&format!("requests: {}.{:02} for each pod: {counts:?}", hundredths / 100, hundredths % 100));
        let lines = counts.iter().map(|(what, count)| format!("{what},{count},{pods}"));
        self.raw.write("requests.csv", "request,count,pods", lines)
    }

    /// Prints the CPU time for each of `pods` pods since the first [`Held`].
    pub fn cpu(&self, pods: usize) -> Result<()> {
        let (Some(first), Some(last)) = (self.held.first(), self.held.last()) else {
            bail!("nothing was measured");
        };
        ensure!(first.pid == last.pid, "the agent was restarted");
        let each = |of: fn(&Held) -> u64| {
            let micros = (of(last) - of(first)) * 1000 / pods as u64;
            format!("{}.{:03} ms", micros / 1000, micros % 1000)
        };
        let (own, plugins) = (each(|held| held.agent.cpu), each(|held| held.agent.programs));
        say(&format!(
            "CPU for each pod: agent {own}, plugins {plugins}, parent {}",
            each(|held| held.parent.cpu)
        ));
        Ok(())
    }

    /// Records how long pods took.
    pub fn latencies(&self, plain: &Latencies, with: &Latencies) -> Result<()> {
        say(&format!("scheduled to running without networks: {plain}"));
        say(&format!("scheduled to running with two networks: {with}"));
        let of = |kind: &'static str, latencies: &'_ Latencies| -> Vec<String> {
            latencies.0.iter().map(|(pod, took)| format!("{kind},{pod},{}", took.as_millis())).collect()
        };
        self.raw.write(
            "latencies.csv",
            "kind,pod,milliseconds",
            of("plain", plain).into_iter().chain(of("with", with)),
        )
    }

    /// Makes sure that the agent was one process all the time, and did not grow after the first quarter.
    pub fn is_flat(&self) -> Result<()> {
        let (Some(early), Some(last)) = (self.held.get(self.held.len() / 4), self.held.last()) else {
            bail!("nothing was measured");
        };
        ensure!(self.held.iter().all(|held| held.pid == last.pid), "the agent was restarted");
        for (who, early, last) in [("agent", early.agent, last.agent), ("parent", early.parent, last.parent)]
        {
            ensure!(last.rss <= early.rss + DRIFT, "the {who} grew from {} to {} KiB", early.rss, last.rss);
            ensure!(
                last.fds <= early.fds + FD_DRIFT,
                "the {who} had {} descriptors, now {}",
                early.fds,
                last.fds
            );
        }
        Ok(())
    }
}

fn say(text: &str) {
    eprintln!("         {text}");
}
