//! What is measured of each contestant: starts one by one and at once, ends, and what they cost.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use netclaim_tests::objects::pod;
use netclaim_tests::{CpuGroup, Test, Usage};
use serde_json::{Value, json};

use crate::contestants::Contestant;
use crate::picture::sample;
use crate::pods::{Pods, Started};
use crate::samples::Samples;
use crate::timeline::Logs;

/// Starts one after another, of pods with the volume of a service account's token, the default.
pub const ONE_TOKENS: &str = "one by one, token volumes";
/// Starts one after another, of pods without volumes.
pub const ONE_BARE: &str = "one by one, no volumes";
/// Starts at once, of pods with such volumes.
pub const TOKENS: &str = "at once, token volumes";
/// Starts at once, of pods without volumes.
pub const NO_VOLUMES: &str = "at once, no volumes";
/// All kinds of starts.
pub const KINDS: [&str; 4] = [ONE_BARE, NO_VOLUMES, ONE_TOKENS, TOKENS];
/// The ends of pods that are deleted at once.
pub const GONE: &str = "deleted at once: gone ms";
/// Longer than the kubelet takes for its next look at a pod by itself, 60 to 90 s.
pub const START_TIMEOUT: Duration = Duration::from_secs(150);
/// The user that creates and deletes the pods.
const OURSELVES: &str = "admin";
/// What every contestant makes work, beside the API server.
const CONTROL_PLANE: [&str; 3] = ["etcd", "kcm", "scheduler"];

/// The slowest pod of each burst of a kind.
pub fn slowest_of(kind: &str) -> String {
    format!("{kind}: slowest ms")
}

/// One contestant's turn.
pub struct Turn<'a> {
    pub test: &'a Test<'a>,
    pub pods: &'a Pods,
    pub samples: &'a mut Samples,
    pub who: &'a dyn Contestant,
    pub round: usize,
}

impl Turn<'_> {
    pub fn add(&mut self, what: &str, of: &str, value: f64) {
        self.samples.add(self.round, self.who.name(), what, of, value);
    }

    /// New pods of this turn.
    fn new_pods(&self, label: &str, count: usize, tokens: bool) -> Vec<Value> {
        let pod = |n: usize| {
            let mut pod = pod(&format!("{}-{label}-{}-{n}", self.who.name(), self.round), &[]);
            pod["spec"]["automountServiceAccountToken"] = json!(tokens);
            self.who.dress(&mut pod);
            pod
        };
        (0..count).map(pod).collect()
    }

    /// Makes sure that pods have what they asked for.
    fn have_networks(&self, started: &[Started]) -> Result<()> {
        for pod in started {
            let there = self.test.interfaces(&pod.name)?.contains_key("net1");
            ensure!(there == self.who.attaches(), "net1 in {}: {there}", pod.name);
        }
        Ok(())
    }

    fn note(&mut self, kind: &str, logs: &Logs, started: &[Started]) -> Result<()> {
        for (pod, marks) in logs.marks(self.test, started)? {
            for (mark, millis) in marks {
                self.add(&sample(kind, mark), &pod, millis);
            }
        }
        for pod in started {
            self.add(&format!("{kind} ms"), &pod.name, pod.took());
        }
        self.have_networks(started)
    }

    fn end(&mut self, started: &[Started]) -> Result<()> {
        let names: Vec<String> = started.iter().map(|pod| pod.name.clone()).collect();
        for (pod, millis) in self.pods.delete(&names)? {
            self.add(GONE, &pod, millis);
        }
        Ok(())
    }

    /// Starts and ends pods that do not count: caches fill.
    pub fn warm_up(&mut self) -> Result<()> {
        let started = self.pods.start(&self.new_pods("warm", 2, true), START_TIMEOUT)?;
        self.have_networks(&started)?;
        self.pods.delete(&started.into_iter().map(|pod| pod.name).collect::<Vec<_>>()).map(drop)
    }

    /// Starts pods one after another, and ends them at once.
    fn one_by_one(&mut self, count: usize, tokens: bool) -> Result<()> {
        let (label, kind) = if tokens { ("one-tokens", ONE_TOKENS) } else { ("one-bare", ONE_BARE) };
        let logs = Logs::from_now(self.test)?;
        let mut started = Vec::new();
        for pod in self.new_pods(label, count, tokens) {
            started.extend(self.pods.start(&[pod], START_TIMEOUT)?);
            // The kubelet still writes what became of this one.
            std::thread::sleep(Duration::from_millis(100));
        }
        self.note(kind, &logs, &started)?;
        self.end(&started)
    }

    /// Starts pods at once, and ends them at once.
    fn at_once(&mut self, count: usize, tokens: bool) -> Result<()> {
        let (label, kind) = if tokens { ("tokens", TOKENS) } else { ("bare", NO_VOLUMES) };
        let logs = Logs::from_now(self.test)?;
        let started = self.pods.start(&self.new_pods(label, count, tokens), START_TIMEOUT)?;
        self.note(kind, &logs, &started)?;
        self.add(&slowest_of(kind), "burst", started.iter().map(Started::took).fold(0.0, f64::max));
        self.end(&started)
    }

    /// Starts and ends pods of these kinds, and adds what that costs.
    pub fn measure(&mut self, kinds: &[&str], count: usize) -> Result<()> {
        self.warm_up()?;
        self.measure_warm(kinds, count)
    }

    /// As [`Self::measure`], after a [`Self::warm_up`].
    pub fn measure_warm(&mut self, kinds: &[&str], count: usize) -> Result<()> {
        self.with_costs(kinds.len() * count, |turn| {
            for kind in kinds {
                match *kind {
                    ONE_BARE => turn.one_by_one(count, false)?,
                    ONE_TOKENS => turn.one_by_one(count, true)?,
                    NO_VOLUMES => turn.at_once(count, false)?,
                    TOKENS => turn.at_once(count, true)?,
                    other => bail!("no kind of start {other:?}: {}", KINDS.join("; ")),
                }
            }
            Ok(())
        })
    }

    /// Adds what `work` costs for each of the `lives` of pods in it, and the memory before and after.
    fn with_costs(&mut self, lives: usize, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let before = Costs::now(self)?;
        let logs = Logs::from_now(self.test)?;
        work(self)?;
        let after = Costs::now(self)?;
        for (what, of) in COSTS {
            let millis = of(&after).saturating_sub(of(&before)) as f64 / 1000.0;
            self.add(what, "pod", millis / lives as f64);
        }
        for (when, costs) in [("before", &before), ("after", &after)] {
            self.add(&format!("memory {when} MiB"), "all", costs.rss as f64 / 1024.0);
            self.add(&format!("of it anonymous {when} MiB"), "all", costs.anonymous as f64 / 1024.0);
        }
        let (mut own, mut all) = (0, 0);
        for event in logs.audit().requests()?.filter(|event| event["user"]["username"] != OURSELVES) {
            all += 1;
            own += usize::from(self.who.user().is_some_and(|user| event["user"]["username"] == user));
        }
        self.add("requests of its own", "pod", own as f64 / lives as f64);
        self.add("requests of all", "pod", all as f64 / lives as f64);
        Ok(())
    }
}

pub const CPU_OWN: &str = "CPU of its processes ms";
pub const CPU_PLUGINS: &str = "CPU of plugins ms";
pub const CPU_CONTAINERD: &str = "CPU of containerd ms";
/// What containerd starts: shims, runc with its hooks, and the plugins of the pod's own network. A shim is no
/// child of containerd, so that only the cgroup has them all.
pub const CPU_STARTED: &str = "CPU of shims, runc, hooks and primary CNI ms";
pub const CPU_KUBELET: &str = "CPU of the kubelet ms";
pub const CPU_NODE: &str = "CPU of the node's parts ms";
pub const CPU_API_SERVER: &str = "CPU of the API server ms";
pub const CPU_CONTROL_PLANE: &str = "CPU of the rest of the control plane ms";

/// One of the CPU times.
type OfCosts = fn(&Costs) -> u64;

/// The CPU times for a pod's life, each in microseconds.
const COSTS: [(&str, OfCosts); 8] = [
    (CPU_OWN, |costs| costs.own),
    (CPU_PLUGINS, |costs| costs.programs),
    (CPU_CONTAINERD, |costs| costs.containerd),
    (CPU_STARTED, |costs| costs.runtime.saturating_sub(costs.containerd)),
    (CPU_KUBELET, |costs| costs.kubelet),
    (CPU_NODE, |costs| costs.runtime + costs.kubelet + costs.own + costs.programs),
    (CPU_API_SERVER, |costs| costs.api_server),
    (CPU_CONTROL_PLANE, |costs| costs.control_plane),
];

/// CPU time in microseconds and memory in KiB.
#[derive(Default)]
struct Costs {
    own: u64,
    programs: u64,
    rss: u64,
    anonymous: u64,
    /// CPU of the runtime's cgroup.
    runtime: u64,
    containerd: u64,
    kubelet: u64,
    api_server: u64,
    control_plane: u64,
}

impl Costs {
    fn now(turn: &Turn<'_>) -> Result<Self> {
        let mut costs = Self::default();
        let daemons = turn.who.daemons()?;
        for pid in &daemons {
            let usage = Usage::of(*pid)?;
            costs.own += usage.cpu * 1000;
            costs.rss += usage.rss;
            costs.anonymous += usage.anonymous;
            // netclaim's agent is a child of its parent, and counts once.
            costs.programs += usage.programs * 1000;
        }
        let cluster = turn.test.cluster;
        let of_service = |name: &str| CpuGroup::of(cluster.service_pid(name)?)?.cpu();
        costs.runtime = of_service("runtime")?;
        costs.containerd = Usage::of(cluster.service_pid("runtime")?)?.cpu * 1000;
        costs.kubelet = of_service("kubelet")?;
        costs.api_server = of_service("apiserver")?;
        for name in CONTROL_PLANE {
            costs.control_plane += of_service(name)?;
        }
        Ok(costs)
    }
}
