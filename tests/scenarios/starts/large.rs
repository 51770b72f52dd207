//! What a node costs that has much: ClaimNetworks that are not used now, and attachments that rest.

use std::time::Duration;

use anyhow::{Context as _, Result};
use netclaim_tests::objects::{claim_template, class_of_network, network, pod_of_templates};
use netclaim_tests::{CpuGroup, Test, setting};
use serde_json::{Value, json};

use crate::contestants::Netclaim;
use crate::measure::{
    CPU_CONTAINERD, CPU_KUBELET, CPU_OWN, CPU_PLUGINS, CPU_STARTED, ONE_BARE, START_TIMEOUT, Turn,
};
use crate::own::count;
use crate::pods::Pods;
use crate::samples::{Samples, short, table};

/// ClaimNetworks with different subnets, and the templates of their claims: each resting pod has all.
const TEMPLATES: [&str; NETWORKS] = ["a", "b", "c", "d"];
/// Networks of each pod that rests.
const NETWORKS: usize = 4;
/// Resting pods that are created together.
const TOGETHER: usize = 20;
/// ClaimNetworks of the node, in the order in which they are added.
const OFFERED: [usize; 3] = [NETWORKS, 10, 50];
/// The time in which what has just changed settles.
const SETTLED: Duration = Duration::from_secs(20);

/// Resting pods in all, in the order in which they are added, and the networks of each. The last ones have
/// none: what these cost a start is Kubernetes' own.
fn resting() -> Result<Vec<(usize, usize)>> {
    let most = setting("NETCLAIM_BENCH_RESTING", 200)?;
    Ok(vec![(0, NETWORKS), (most / 2, NETWORKS), (most, NETWORKS), (most, 0)])
}

/// Pods that have a network of each template, or none, and stay.
struct Resting<'a> {
    test: &'a Test<'a>,
    pods: &'a Pods,
    there: usize,
    networks: usize,
}

impl<'a> Resting<'a> {
    fn new(test: &'a Test<'a>, pods: &'a Pods) -> Result<Self> {
        for name in TEMPLATES {
            let class = test.macvlan(name)?;
            test.create([claim_template(name, &class)])?;
            test.is_published(&format!("net-{class}"), |device| device["taints"].is_null())?;
        }
        Ok(Self { test, pods, there: 0, networks: NETWORKS })
    }

    /// Adds pods until there are so many with so many networks; returns the seconds that this took.
    fn grow(&mut self, to: usize, networks: usize) -> Result<f64> {
        if networks != self.networks {
            self.end()?;
            self.networks = networks;
        }
        let templates = TEMPLATES.get(..networks).context("there are not so many templates")?;
        let begin = std::time::Instant::now();
        while self.there < to {
            let until = to.min(self.there + TOGETHER);
            let new: Vec<Value> =
                (self.there..until).map(|n| pod_of_templates(&self.name(n), templates)).collect();
            self.pods.start(&new, START_TIMEOUT)?;
            self.there = until;
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Pods of another number of networks have other names: the watch knows when each name first ran.
    fn name(&self, n: usize) -> String {
        format!("rest{}-{n}", self.networks)
    }

    fn end(&mut self) -> Result<()> {
        let names: Vec<String> = (0..std::mem::take(&mut self.there)).map(|n| self.name(n)).collect();
        names.chunks(TOGETHER).try_for_each(|names| self.pods.delete(names).map(drop))?;
        self.test.node_has_leases(0)
    }
}

pub fn a_pod_costs_as_much_on_a_full_node_as_on_an_empty_one(test: &Test<'_>) -> Result<()> {
    let mut samples = Samples::new("starts", "full")?;
    let pods = Pods::of(test)?;
    let mut rest = Resting::new(test, &pods)?;
    let netclaim = Netclaim::new(test)?;
    let mut rows = Vec::new();
    for (there, networks) in resting()? {
        let took = rest.grow(there, networks)?;
        let round = samples.next_round();
        let mut turn = Turn { test, pods: &pods, samples: &mut samples, who: &netclaim, round };
        turn.measure(&[ONE_BARE], count()?)?;
        samples.save()?;
        let of_round = |what: &str| samples.by_round("netclaim", what).get(&round).copied();
        let start = samples.median_of_round("netclaim", &format!("{ONE_BARE} ms"), round);
        let costs = [CPU_OWN, CPU_PLUGINS, CPU_CONTAINERD, CPU_STARTED, CPU_KUBELET].map(of_round);
        let cells = [start].into_iter().chain(costs).map(|cell| cell.map_or_else(|| "–".to_owned(), short));
        let head = [format!("{there}"), format!("{}", there * networks), short(took)];
        rows.push(head.into_iter().chain(cells).collect());
    }
    rest.end()?;
    let head = [
        "pods there",
        "attachments",
        "s to add them",
        "one by one p50, ms",
        "agent, ms",
        "plugins",
        "containerd",
        "shims, runc, hooks, CNI",
        "kubelet",
    ];
    samples.publish("table.md", &table(&head, rows))
}

pub fn an_idle_node_uses_little_cpu(test: &Test<'_>) -> Result<()> {
    let mut samples = Samples::new("starts", "idle")?;
    let pods = Pods::of(test)?;
    let time = Duration::from_secs(setting("NETCLAIM_BENCH_IDLE", 240)? as u64);
    let most = setting("NETCLAIM_BENCH_RESTING", 200)?;
    let mut rest = Resting::new(test, &pods)?;
    let mut rows = Vec::new();
    let mut offered = NETWORKS;
    for (networks, resting) in OFFERED.map(|networks| (networks, 0)).into_iter().chain([(50, most)]) {
        for n in offered..networks {
            let name = test.name(&format!("idle{n}"));
            let network = network(&name, "macvlan", "eth1", &format!("10.200.{n}.0/24"));
            test.create([network, class_of_network(&name, &name)])?;
            test.is_published(&format!("net-{name}"), |device| device["taints"].is_null())?;
        }
        offered = offered.max(networks);
        rest.grow(resting, NETWORKS)?;
        std::thread::sleep(SETTLED);
        let group = agent_group(test)?;
        let before = group.cpu()?;
        std::thread::sleep(time);
        let share = (group.cpu()? - before) as f64 / time.as_micros() as f64 * 100.0;
        let round = samples.next_round();
        samples.add(round, "netclaim", "idle: % of a processor", &format!("{networks}/{resting}"), share);
        samples.save()?;
        rows.push(vec![networks.to_string(), (resting * NETWORKS).to_string(), format!("{share:.3}")]);
    }
    let (scrape, series) = scrape_traffic(test)?;
    let round = samples.next_round();
    samples.add(round, "netclaim", "CPU of a scrape with traffic, ms", &format!("{series} series"), scrape);
    samples.save()?;
    rest.end()?;
    let what = format!("% of a processor in {} s: agent, parent, plugins (goal: 0.2)", time.as_secs());
    let head = ["ClaimNetworks", "attachments", what.as_str()];
    samples.publish("table.md", &table(&head, rows))
}

/// The agent's CPU for a scrape of its metrics with the traffic of all attachments, in ms, and how many
/// series of traffic it has.
fn scrape_traffic(test: &Test<'_>) -> Result<(f64, usize)> {
    const SCRAPES: u32 = 10;
    let of_networks = |traffic: &str| {
        let patch = json!({"spec": {"trafficMetrics": traffic}}).to_string();
        TEMPLATES.iter().try_for_each(|name| {
            let line = ["patch", "claimnetwork", &test.name(name), "--type=merge", "-p", &patch];
            test.kubectl(&line).map(drop)
        })
    };
    of_networks("Attachments")?;
    std::thread::sleep(SETTLED);
    let (group, mut series) = (agent_group(test)?, 0);
    let mut used = Duration::ZERO;
    for _ in 0..SCRAPES {
        let before = group.cpu()?;
        let metrics = test.cluster.ask_agent("/metrics")?;
        used += Duration::from_micros(group.cpu()? - before);
        series = metrics
            .lines()
            .filter(|line| line.starts_with("netclaim_attachment_") && line.contains("pod="))
            .count();
        // What an agent has read it serves again for a while.
        std::thread::sleep(Duration::from_secs(6));
    }
    of_networks("None")?;
    Ok((used.as_secs_f64() * 1000.0 / f64::from(SCRAPES), series))
}

/// The cgroup of the agent's pod: agent, parent and the plugins that the agent runs.
fn agent_group(test: &Test<'_>) -> Result<CpuGroup> {
    CpuGroup::of(test.cluster.parent_pid()?).context("the agent's cgroup")
}
