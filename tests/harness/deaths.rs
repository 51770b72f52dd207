//! Deaths and bugs of netclaim's own programs, which its parent process and the kubelet would cover up.
//!
//! The agent's parent starts it again within moments, and a panic of one task need not end it. Whatever of that a scenario
//! has not brought about itself is a failure of the scenario.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cluster::{AGENT_PODS, Cluster, SYSTEM};
use crate::node::{Node, names};
use crate::wait::eventually;

/// What netclaim's programs log when they have a bug: the first is Rust's, the second the state machine's.
const BUGS: [&str; 2] = ["panicked at", "a bug: report this"];

/// What is known of deaths and bugs already.
#[derive(Default)]
pub(crate) struct Deaths(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// How many deaths of the agent scenarios have asked for, by the id of the agent's container.
    asked_for: HashMap<String, u64>,
    /// The node has lost its power: the kubelet has started every container again.
    power_lost: bool,
    /// Moves that the state machine has refused, and the agent's container.
    illegal_moves: (String, u64),
    /// Lines of logs that tell of bugs.
    bugs: BTreeSet<String>,
}

impl Deaths {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A scenario ends the agent of this container, now or a little later.
    pub(crate) fn asked_for(&self, container: &str) {
        *self.lock().asked_for.entry(container.to_owned()).or_default() += 1;
    }

    /// A scenario takes the node's power.
    pub(crate) fn power_lost(&self) {
        self.lock().power_lost = true;
    }

    /// Takes everything that was there before the first scenario for granted.
    pub(crate) fn forget(&self, cluster: &Cluster) -> Result<()> {
        let (container, restarts, illegal) = metrics(cluster)?;
        let bugs = bugs(&cluster.node())?;
        let asked_for = HashMap::from([(container.clone(), restarts)]);
        *self.lock() = Known { asked_for, power_lost: false, illegal_moves: (container, illegal), bugs };
        Ok(())
    }

    /// Fails when anything has died, or has told of a bug, that no scenario brought about. Each thing is told once.
    pub(crate) fn look(&self, cluster: &Cluster) -> Result<()> {
        let found = bugs(&cluster.node())?;
        let new: Vec<String> = {
            let mut known = self.lock();
            let new = found.difference(&known.bugs).cloned().collect();
            known.bugs.extend(found);
            new
        };
        ensure!(new.is_empty(), "netclaim's logs tell of bugs:\n  {}", new.join("\n  "));
        if !cluster.agent_is_wanted() {
            return Ok(());
        }
        let (container, restarts, illegal) =
            eventually(20, "the agent tells of itself", || metrics(cluster))?;
        let mut known = self.lock();
        let asked_for = known.asked_for.entry(container.clone()).or_default();
        let unasked = restarts.saturating_sub(*asked_for);
        *asked_for += unasked;
        ensure!(unasked == 0, "the agent died {unasked} times by itself: see its log");
        let (of, before) = std::mem::replace(&mut known.illegal_moves, (container.clone(), illegal));
        let before = if of == container { before } else { 0 };
        ensure!(
            illegal <= before,
            "attachments were moved illegally: netclaim_attachment_illegal_moves {illegal}"
        );
        if !known.power_lost {
            let restarts = restarts_of_containers(cluster)?;
            ensure!(restarts == 0, "the kubelet has started the agent's container again {restarts} times");
        }
        // Whoever loses the power has the agent's pod replaced afterwards.
        known.power_lost = false;
        Ok(())
    }
}

/// How often the kubelet has started containers of the agent again.
pub(crate) fn restarts_of_containers(cluster: &Cluster) -> Result<u64> {
    let restarts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    let restarts = cluster.kubectl(&["get", "pods", "-n", SYSTEM, "-l", AGENT_PODS, "-o", restarts])?;
    restarts.split_whitespace().map(|count| Ok(count.parse::<u64>()?)).sum()
}

/// The id of the agent's container, how often its parent has started it again, and its illegal moves.
fn metrics(cluster: &Cluster) -> Result<(String, u64, u64)> {
    let container = cluster.agent_container()?.id;
    let answer = cluster.ask_agent("/metrics")?;
    let value = |name: &str| {
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let line = line.with_context(|| format!("no {name} in {answer}"))?;
        line.trim().parse::<u64>().with_context(|| format!("{name} {line}"))
    };
    Ok((container, value("netclaim_agent_restarts")?, value("netclaim_attachment_illegal_moves")?))
}

/// Lines that tell of bugs, in the logs of netclaim's pods that the node has.
fn bugs(node: &Node) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let pods = node.path("/var/log/pods");
    for pod in names(&pods)?.into_iter().filter(|pod| pod.starts_with(SYSTEM)) {
        for container in names(&pods.join(&pod))? {
            for log in names(&pods.join(&pod).join(&container))? {
                // The kubelet removes logs of pods that are gone.
                let Ok(text) = fs::read(pods.join(&pod).join(&container).join(&log)) else { continue };
                let text = String::from_utf8_lossy(&text);
                let told = text.lines().filter(|line| BUGS.iter().any(|bug| line.contains(bug)));
                found.extend(told.map(|line| format!("{container}: {line}")));
            }
        }
    }
    Ok(found)
}

/// Services of a node and its cluster that run as long as no scenario stops them.
const SERVICES: [&str; 6] = ["etcd", "apiserver", "kcm", "scheduler", "runtime", "kubelet"];

/// Fails when a service has ended that should run.
pub(crate) fn services_run(cluster: &Cluster) -> Result<()> {
    for name in SERVICES {
        if let Err(error) = cluster.service_pid(name) {
            bail!("{name} has ended: {error:#}");
        }
    }
    Ok(())
}
