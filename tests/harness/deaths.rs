//! Deaths and bugs of netclaim's programs, which the agent's parent process and the kubelet would hide.
//!
//! The parent restarts the agent within moments, and the agent survives a panic of one task. A scenario fails
//! for each of these that it did not cause.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail, ensure};

use crate::agent::AGENT_PODS;
use crate::cluster::{Cluster, SYSTEM};
use crate::node::{Node, names};
use crate::objects::list;
use crate::wait::eventually;

/// What netclaim's programs log when they have a bug: Rust's message, and the state machine's.
const BUGS: [&str; 2] = ["panicked at", "a bug: report this"];

/// Deaths and bugs that are accounted for.
#[derive(Default)]
pub(crate) struct Deaths(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Deaths of the agent that scenarios have caused, by the id of the agent's container.
    expected: HashMap<String, u64>,
    /// A node was powered off, so that its kubelet has restarted every container.
    power_lost: bool,
    /// How many moves the agent's state machine has refused, by the id of the agent's container.
    illegal_moves: HashMap<String, u64>,
    /// Lines of logs that report bugs.
    bugs: BTreeSet<String>,
}

impl Deaths {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Expects one death of the agent in this container.
    pub(crate) fn expect(&self, container: &str) {
        *self.lock().expected.entry(container.to_owned()).or_default() += 1;
    }

    /// Expects restarts of all containers.
    pub(crate) fn expect_power_loss(&self) {
        self.lock().power_lost = true;
    }

    /// Ignores everything that happened before the first scenario.
    pub(crate) fn forget(&self, cluster: &Cluster) -> Result<()> {
        let mut known = Known::default();
        for node in cluster.nodes() {
            let (container, restarts, illegal) = metrics(cluster, &node)?;
            known.expected.insert(container.clone(), restarts);
            known.illegal_moves.insert(container, illegal);
            known.bugs.extend(bugs(&node)?);
        }
        *self.lock() = known;
        Ok(())
    }

    /// Makes sure that only expected deaths and no bugs have happened since the last call.
    pub(crate) fn check(&self, cluster: &Cluster) -> Result<()> {
        let mut found = BTreeSet::new();
        for node in cluster.nodes() {
            found.extend(bugs(&node)?);
        }
        let new: Vec<String> = {
            let mut known = self.lock();
            let new = found.difference(&known.bugs).cloned().collect();
            known.bugs.extend(found);
            new
        };
        ensure!(new.is_empty(), "netclaim's logs report bugs:\n  {}", new.join("\n  "));
        if !cluster.agent_is_wanted() {
            return Ok(());
        }
        for node in cluster.nodes() {
            self.check_agent(cluster, &node).with_context(|| node.name())?;
        }
        if !self.lock().power_lost {
            let restarts = container_restarts(cluster)?;
            ensure!(restarts == 0, "the kubelet has restarted the agent's container {restarts} times");
        }
        Ok(())
    }

    /// Whether a node has lost its power since the last call: its kubelet may report only later that it has
    /// restarted containers.
    pub(crate) fn take_power_loss(&self) -> bool {
        std::mem::take(&mut self.lock().power_lost)
    }

    fn check_agent(&self, cluster: &Cluster, node: &Node) -> Result<()> {
        let (container, restarts, illegal) =
            eventually(20, "the agent serves metrics", || metrics(cluster, node))?;
        let mut known = self.lock();
        let expected = known.expected.entry(container.clone()).or_default();
        let unexpected = restarts.saturating_sub(*expected);
        *expected += unexpected;
        ensure!(unexpected == 0, "the agent died {unexpected} times by itself: see its log");
        let before = known.illegal_moves.insert(container, illegal).unwrap_or_default();
        ensure!(
            illegal <= before,
            "the state machine refused moves: netclaim_attachment_illegal_moves_total {illegal}"
        );
        Ok(())
    }
}

/// Counts how often the kubelet has restarted the agent's containers.
pub(crate) fn container_restarts(cluster: &Cluster) -> Result<u64> {
    let pods = cluster.get(&["pods", "-n", SYSTEM, "-l", AGENT_PODS])?;
    let containers = list(&pods["items"]).flat_map(|pod| list(&pod["status"]["containerStatuses"]));
    Ok(containers.filter_map(|container| container["restartCount"].as_u64()).sum())
}

/// The id of the container of a node's agent, how often the parent has restarted the agent, and the refused
/// moves.
fn metrics(cluster: &Cluster, node: &Node) -> Result<(String, u64, u64)> {
    let container = node.agent()?.context("no agent runs")?.id;
    let answer = cluster.ask_agent_of(&node.name(), "/metrics")?;
    let value = |name: &str| {
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let line = line.with_context(|| format!("no {name} in {answer}"))?;
        line.trim().parse::<u64>().with_context(|| format!("{name} {line}"))
    };
    Ok((
        container,
        value("netclaim_agent_restarts_total")?,
        value("netclaim_attachment_illegal_moves_total")?,
    ))
}

/// Lines that report bugs in the logs of netclaim's pods on the node.
fn bugs(node: &Node) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let pods = node.path("/var/log/pods");
    for pod in names(&pods)?.into_iter().filter(|pod| pod.starts_with(SYSTEM)) {
        for container in names(&pods.join(&pod))? {
            for log in names(&pods.join(&pod).join(&container))? {
                // The kubelet may have removed the log with its pod.
                let Ok(text) = fs::read(pods.join(&pod).join(&container).join(&log)) else { continue };
                let text = String::from_utf8_lossy(&text);
                let bugs = text.lines().filter(|line| BUGS.iter().any(|bug| line.contains(bug)));
                found.extend(bugs.map(|line| format!("{container}: {line}")));
            }
        }
    }
    Ok(found)
}

/// Makes sure that every service runs, but for those of nodes without power.
pub(crate) fn services_run(cluster: &Cluster) -> Result<()> {
    let mut services = cluster.control_plane()?;
    for node in cluster.nodes() {
        services.extend(["runtime", "kubelet"].map(|kind| node.service(kind)));
    }
    for name in services {
        if let Err(error) = cluster.service_pid(&name) {
            bail!("{name} has ended: {error:#}");
        }
    }
    Ok(())
}
