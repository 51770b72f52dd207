//! Watches the pools of nodes as a node autoscaler does, while scenarios run.
//!
//! The cluster autoscaler takes a node for broken that has another number of pools than the rest of its
//! group, or an incomplete one, and stops. It does not look at the CPU of nodes with a slice. So a node has
//! one pool, which is complete but for the time between two writes, and none if it never offered anything.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::objects::{list, text};
use crate::process::Running;
use crate::wait::eventually;
use crate::watch::slice_events;

/// How long two writes may take on a machine with much to do.
const TWO_WRITES: Duration = Duration::from_secs(2);
/// How long a pool may be incomplete at the end of a scenario: its agent may just have been killed.
const RESTART: u64 = 20;
/// Time between two watches: one ends with its API server.
const AGAIN: Duration = Duration::from_millis(300);

/// One slice of a node or of the controller.
struct Slice {
    node: String,
    generation: i64,
    count: i64,
    is_empty: bool,
    /// ClaimNetworks whose device says that it has nothing for new pods.
    exhausted: Vec<String>,
}

#[derive(Default)]
struct Seen {
    /// By name.
    slices: BTreeMap<String, Slice>,
    /// Since when the pool of a node is incomplete.
    incomplete: HashMap<String, Instant>,
    /// Nodes that have had devices, or a slice when the first watch began.
    offered: BTreeSet<String>,
    faults: Vec<String>,
}

/// A watch of all slices that notes what an autoscaler could not bear.
pub(crate) struct NodePools {
    seen: Arc<Mutex<Seen>>,
    kubectl: Arc<Mutex<Option<Running>>>,
    ended: Arc<AtomicBool>,
}

impl NodePools {
    /// Watches from now on, across restarts of the API server.
    pub(crate) fn watch(cluster: &Cluster) -> Result<Self> {
        let pools = Self { seen: Arc::default(), kubectl: Arc::default(), ended: Arc::default() };
        pools.lock().offered =
            cluster.slices()?.iter().map(|slice| text(&slice["spec"]["nodeName"])).collect();
        let (seen, kubectl, ended) =
            (Arc::clone(&pools.seen), Arc::clone(&pools.kubectl), Arc::clone(&pools.ended));
        let (program, config) = cluster.kubectl_parts();
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let mut command = Command::new(&program);
                command.env("KUBECONFIG", &config).stderr(Stdio::null());
                if let Ok((running, events)) = slice_events(&mut command) {
                    *kubectl.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
                    for event in events {
                        seen.lock().unwrap_or_else(PoisonError::into_inner).take(&event);
                    }
                }
                seen.lock().unwrap_or_else(PoisonError::into_inner).forget();
                sleep(AGAIN);
            }
        });
        Ok(pools)
    }

    /// Fails with what was noted since the last call, and if a pool stays incomplete.
    pub(crate) fn check(&self) -> Result<()> {
        eventually(RESTART, "the pools of all nodes are complete", || {
            let seen = self.lock();
            ensure!(seen.incomplete.is_empty(), "they are not: {:?}", seen.incomplete.keys());
            Ok(())
        })?;
        let faults = std::mem::take(&mut self.lock().faults);
        ensure!(faults.is_empty(), "a node autoscaler would take offence:\n  {}", faults.join("\n  "));
        Ok(())
    }

    /// Fails if a node says that a ClaimNetwork has no address left, and the controller has some for it: a
    /// node autoscaler makes new nodes after this one.
    pub(crate) fn offer_what_is_free(&self, cluster: &Cluster) -> Result<()> {
        let exhausted = || {
            let seen = self.lock();
            let of_slices = seen.slices.values().flat_map(|slice| slice.exhausted.iter().cloned());
            of_slices.collect::<BTreeSet<String>>()
        };
        if exhausted().is_empty() {
            return Ok(());
        }
        eventually(RESTART, "no node without addresses while blocks are free", || {
            let networks = cluster.get(&["claimnetworks"])?;
            let exhausted = exhausted();
            let has_some = |network: &&Value| {
                exhausted.contains(&text(&network["metadata"]["name"]))
                    && list(&network["status"]["conditions"]).any(|condition| {
                        condition["type"] == "AddressesAvailable" && condition["reason"] == "Free"
                    })
            };
            let names: Vec<String> = list(&networks["items"])
                .filter(has_some)
                .map(|network| text(&network["metadata"]["name"]))
                .collect();
            ensure!(names.is_empty(), "nodes have none of {names:?}, which have free blocks");
            Ok(())
        })
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NodePools {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.kubectl.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn is_tainted(device: &Value, key: &str) -> bool {
    list(&device["taints"]).any(|taint| taint["key"] == key)
}

impl Seen {
    /// Takes in an event of the watch.
    fn take(&mut self, event: &Value) {
        let (object, spec) = (&event["object"], &event["object"]["spec"]);
        let (name, node, pool) =
            (text(&object["metadata"]["name"]), text(&spec["nodeName"]), text(&spec["pool"]["name"]));
        if event["type"] == "DELETED" {
            self.slices.remove(&name);
        } else {
            let number = |field: &str| spec["pool"][field].as_i64().unwrap_or_default();
            let is_empty = list(&spec["devices"]).chain(list(&spec["sharedCounters"])).next().is_none();
            let (generation, count) = (number("generation"), number("resourceSliceCount"));
            let exhausted =
                list(&spec["devices"]).filter(|device| is_tainted(device, "netclaim.dev/exhausted"));
            let exhausted =
                exhausted.map(|device| text(&device["attributes"]["network"]["string"])).collect();
            let slice = Slice { node: node.clone(), generation, count, is_empty, exhausted };
            self.slices.insert(name, slice);
        }
        // A pool of the controller.
        if node.is_empty() {
            return;
        }
        if pool != node {
            self.faults.push(format!("node {node} has the pool {pool}"));
        }
        self.look_at(&node);
    }

    fn look_at(&mut self, node: &str) {
        let of_node: Vec<&Slice> = self.slices.values().filter(|slice| slice.node == node).collect();
        // The sign of life of an agent that serves ClaimNetworks of scope Cluster.
        let serves_cluster = self.slices.values().any(|slice| slice.node.is_empty());
        if of_node.iter().any(|slice| !slice.is_empty) {
            self.offered.insert(node.to_owned());
        } else if !of_node.is_empty() && !serves_cluster && !self.offered.contains(node) {
            self.faults.push(format!("node {node} offers nothing and has a slice"));
        }
        let top = of_node.iter().map(|slice| slice.generation).max();
        let newest: Vec<_> = of_node.iter().filter(|slice| Some(slice.generation) == top).collect();
        let number = i64::try_from(newest.len()).unwrap_or(i64::MAX);
        let is_complete = newest.iter().all(|slice| slice.count == number);
        let now = Instant::now();
        if !is_complete {
            self.incomplete.entry(node.to_owned()).or_insert(now);
        } else if let Some(since) = self.incomplete.remove(node)
            // A kubelet that has lost its agent deletes the slices.
            && !of_node.is_empty()
            && now - since > TWO_WRITES
        {
            let seconds = (now - since).as_secs_f64();
            self.faults.push(format!("the pool of node {node} was incomplete for {seconds:.1} s"));
        }
    }

    /// The watch has ended: what it did not see is unknown.
    fn forget(&mut self) {
        self.slices.clear();
        self.incomplete.clear();
    }
}
