//! What is really on the node: seen from outside through the node's own mounts and its processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::cluster::SYSTEM;
use crate::command::output;
use crate::process::{command_line, pids};
use crate::runtime::Runtime;

/// Links of the node that are nobody's leftovers.
const OWN_LINKS: [&str; 4] = ["lo", "eth0", "eth1", "eth2"];

/// The CNI network of every pod, which the runtime attaches by itself: `tests/node/up.sh`.
const PRIMARY: &str = "pods";
/// Folders in which the runtime and the kubelet mount what is theirs. Network namespaces are looked at one by one.
const MOUNTS_OF_OTHERS: [&str; 9] = [
    "/run/containerd",
    "/var/lib/containerd",
    "/run/containers",
    "/var/lib/containers",
    "/run/crio",
    "/var/lib/kubelet",
    "/run/netns",
    "/run/ipcns",
    "/run/utsns",
];

/// The node's namespaces.
pub struct Node {
    pid: i32,
    root: PathBuf,
    runtime: Runtime,
    /// What was mounted when it was new.
    mounts: BTreeSet<String>,
    unfinished: Mutex<Unfinished>,
    /// Links that scenarios have plugged in now, and their other ends.
    plugged: Mutex<BTreeSet<String>>,
}

/// Network namespaces that a runtime which was killed had made, and not come to use.
#[derive(Default)]
struct Unfinished {
    /// The runtime was killed since the node was last found clean.
    possible: bool,
    names: BTreeSet<String>,
}

/// A running container or sandbox.
#[derive(Debug, Clone)]
pub struct Task {
    /// The runtime's id of the container, or of the sandbox.
    pub id: String,
    /// Its first process. Some runtimes' sandboxes have none.
    pub pid: Option<i32>,
    /// Its network namespace.
    pub netns: PathBuf,
    /// The sandbox that it belongs to, or is.
    pub sandbox: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name; `None` for the sandbox itself.
    pub container: Option<String>,
}

/// A network interface as the kernel describes it to a process beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Index in its network namespace.
    pub index: u64,
    /// Hardware address.
    pub mac: String,
    /// MTU in bytes.
    pub mtu: u64,
    /// The IPv4 addresses with their prefix lengths.
    pub ips: Vec<String>,
}

impl Node {
    pub(crate) fn new(pid: i32, runtime: Runtime) -> Self {
        let mounts = mounts(pid).unwrap_or_default().into_keys().collect();
        let root = format!("/proc/{pid}/root").into();
        Self { pid, root, runtime, mounts, unfinished: Mutex::default(), plugged: Mutex::default() }
    }

    /// The runtime is about to be killed, whatever it is doing.
    pub(crate) fn runtime_dies(&self) {
        self.unfinished().possible = true;
    }

    fn unfinished(&self) -> MutexGuard<'_, Unfinished> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The links that scenarios have plugged in and will take out: the leftovers of nobody.
    pub(crate) fn plugged(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.plugged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its container runtime.
    pub fn runtime(&self) -> Runtime {
        self.runtime
    }

    /// A process that is in the node's namespaces as long as the node is there.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Where a path of the node is for the tests.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Every container and sandbox that runs, also while the container runtime is away.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn tasks(&self) -> Result<Vec<Task>> {
        self.runtime.tasks(&self.root)
    }

    /// The agent's container, if it runs.
    ///
    /// # Errors
    /// When the node is gone.
    pub(crate) fn agent(&self) -> Result<Option<Task>> {
        let is_agent = |task: &Task| task.namespace == SYSTEM && task.container.as_deref() == Some("agent");
        Ok(self.tasks()?.into_iter().find(is_agent))
    }

    /// Runs a command in a network namespace.
    ///
    /// # Errors
    /// When the namespace is gone, or the command fails; with what it said.
    pub fn in_network(&self, netns: &Path, command: &[&str]) -> Result<String> {
        output(Command::new("nsenter").arg(format!("--net={}", netns.display())).args(command))
    }

    /// The interfaces of a network namespace.
    ///
    /// # Errors
    /// When it is gone.
    pub fn interfaces_of(&self, netns: &Path) -> Result<BTreeMap<String, Interface>> {
        let text = self.in_network(netns, &["ip", "-j", "addr"])?;
        let links: Vec<Value> = serde_json::from_str(&text)?;
        let interface = |link: &Value| {
            let text = |field: &str| link[field].as_str().unwrap_or_default().to_owned();
            let number = |field: &str| link[field].as_u64().unwrap_or_default();
            let ips = link["addr_info"].as_array().into_iter().flatten().filter(|ip| ip["family"] == "inet");
            let ips =
                ips.map(|ip| format!("{}/{}", ip["local"].as_str().unwrap_or_default(), ip["prefixlen"]));
            let name = text("ifname");
            let interface = Interface {
                name: name.clone(),
                index: number("ifindex"),
                mac: text("address"),
                mtu: number("mtu"),
                ips: ips.collect(),
            };
            (name, interface)
        };
        Ok(links.iter().map(interface).collect())
    }

    /// The node's own network namespace.
    fn netns(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.pid).into()
    }

    /// The node's own links.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn links(&self) -> Result<BTreeSet<String>> {
        Ok(self.interfaces_of(&self.netns())?.into_keys().collect())
    }

    /// Addresses that host-local has given away, for every network but the runtime's own, with the sandbox that has each.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn leases(&self) -> Result<Vec<(String, String)>> {
        let mut leases = Vec::new();
        let dir = self.path("/var/lib/cni/networks");
        for network in names(&dir)?.into_iter().filter(|name| name != PRIMARY) {
            for ip in names(&dir.join(&network))?
                .into_iter()
                .filter(|name| name.parse::<std::net::IpAddr>().is_ok())
            {
                let Ok(holder) = fs::read_to_string(dir.join(&network).join(&ip)) else { continue };
                leases.push((
                    format!("{network}/{ip}"),
                    holder.lines().next().unwrap_or_default().trim().to_owned(),
                ));
            }
        }
        Ok(leases)
    }

    /// Files of the agent's journal.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn journal(&self) -> Result<Vec<String>> {
        let names = names(&self.path("/var/lib/netclaim/journal"))?;
        // The lock of the agent that writes there.
        Ok(names.into_iter().filter(|name| name != ".lock").collect())
    }

    /// Fails with a list of everything that is on the node for pods that do not run on it. `claims` are the UIDs of
    /// claims that pods have.
    ///
    /// # Errors
    /// What is left, or what could not be looked at.
    pub fn is_clean(&self, claims: &BTreeSet<String>) -> Result<()> {
        let mut left = Vec::new();
        let tasks = self.tasks()?;
        let sandboxes: BTreeSet<&str> = tasks.iter().map(|task| task.sandbox.as_str()).collect();
        let namespaces: BTreeSet<u64> =
            tasks.iter().filter_map(|task| fs::metadata(&task.netns).ok()).map(|ns| ns.ino()).collect();
        let mut addresses = BTreeSet::new();
        for (lease, sandbox) in self.leases()? {
            if sandboxes.contains(sandbox.as_str()) {
                addresses.extend(lease.rsplit('/').next().and_then(|ip| ip.parse::<Ipv4Addr>().ok()));
            } else {
                left.push(format!("lease {lease} of sandbox {sandbox}"));
            }
        }
        left.extend(self.processes_left(&sandboxes, claims.is_empty())?);
        left.extend(self.mounts_left()?);
        left.extend(self.firewall_left(&sandboxes, &addresses)?);
        for name in names(&self.path("/run/netclaim/ready"))? {
            if !sandboxes.contains(name.as_str()) {
                left.push(format!("marker {name}"));
            }
        }
        let claim_of = |file: &str| file.split('.').next().unwrap_or_default().to_owned();
        for name in self.journal()? {
            // POD-UID_CLAIM-UID.INDEX.json
            let claim = name.split_once('_').map(|(_, rest)| claim_of(rest));
            if claim.is_none_or(|claim| !claims.contains(&claim)) {
                left.push(format!("journal file {name}"));
            }
        }
        let results = self.path("/var/lib/netclaim/cni/results");
        for name in names(&results)? {
            // One that is gone by now is not left.
            let Ok(text) = fs::read(results.join(&name)) else { continue };
            let cached: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            if !cached["containerId"].as_str().is_some_and(|sandbox| sandboxes.contains(sandbox)) {
                left.push(format!("CNI cache file {name}"));
            }
        }
        let of_request = |file: &str| file.split('_').next().unwrap_or_default().to_owned();
        for name in names(&self.path("/run/cdi"))? {
            let gate = name.strip_prefix("netclaim.dev-claim_").map(claim_of);
            let claim = gate.or_else(|| name.strip_prefix("netclaim.dev_metadata_").map(of_request));
            if claim.is_none_or(|claim| !claims.contains(&claim)) {
                left.push(format!("CDI spec {name}"));
            }
        }
        for name in names(&self.path("/run/netclaim/metadata"))? {
            if !claims.contains(&of_request(&name)) {
                left.push(format!("metadata file {name}"));
            }
        }
        let (mut netns, mut unused) = (0, BTreeSet::new());
        let dir = self.path("/run/netns");
        let plain = fs::metadata(&dir).map(|dir| dir.dev()).unwrap_or_default();
        for name in names(&dir)? {
            match fs::metadata(dir.join(&name)) {
                Ok(file) if file.dev() != plain && namespaces.contains(&file.ino()) => netns += 1,
                // A runtime that is killed has made the file only, or has not come to call the first plugin. Nobody else
                // has heard of it then.
                Ok(file) if file.dev() == plain || self.is_unused(&dir.join(&name))? => {
                    unused.insert(name);
                }
                _ => left.push(format!("network namespace {name}")),
            }
        }
        {
            let known = self.unfinished();
            let other = unused.iter().filter(|name| !known.possible && !known.names.contains(*name));
            left.extend(other.map(|name| format!("network namespace {name}, without links")));
        }
        let links = self.links()?;
        for name in OWN_LINKS.iter().filter(|name| !links.contains(**name)) {
            left.push(format!("link {name} is missing"));
        }
        let is_foreign =
            |name: &&String| !OWN_LINKS.contains(&name.as_str()) && !self.plugged().contains(*name);
        let foreign: Vec<_> = links.iter().filter(is_foreign).collect();
        // Each pod has one veth of the primary network.
        left.extend(
            foreign.iter().filter(|name| !name.starts_with("veth")).map(|name| format!("link {name}")),
        );
        if foreign.len() > netns {
            left.push(format!("{} links for {netns} network namespaces: {foreign:?}", foreign.len()));
        }
        ensure!(left.is_empty(), "left on the node:\n  {}", left.join("\n  "));
        *self.unfinished() = Unfinished { possible: false, names: unused };
        Ok(())
    }

    /// Whether a network namespace has no link but `lo`.
    fn is_unused(&self, netns: &Path) -> Result<bool> {
        Ok(self.interfaces_of(netns)?.keys().eq(["lo"]))
    }

    /// CNI plugins that still run for sandboxes that are gone. When `nobody` has a claim, no plugin and no hook may run.
    fn processes_left(&self, sandboxes: &BTreeSet<&str>, nobody: bool) -> Result<Vec<String>> {
        let mut left = Vec::new();
        let cgroup = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok();
        let mounts = |pid: i32| fs::metadata(format!("/proc/{pid}/ns/mnt")).ok().map(|ns| ns.ino());
        let agent = self.agent()?.and_then(|agent| agent.pid).and_then(cgroup);
        let of_node = mounts(self.pid);
        for pid in pids()? {
            let words = command_line(pid).replace('\0', " ");
            if agent.is_some() && cgroup(pid) == agent && !words.contains("netclaim-kubelet-plugin") {
                let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap_or_default();
                let sandbox = environment.split('\0').find_map(|line| line.strip_prefix("CNI_CONTAINERID="));
                // One without words has ended.
                if !words.is_empty() && (nobody || sandbox.is_none_or(|id| !sandboxes.contains(id))) {
                    left.push(format!("process {pid} of sandbox {sandbox:?}: {words}"));
                }
            }
            if nobody && words.contains("netclaim-hook") && mounts(pid) == of_node {
                left.push(format!("process {pid}: {words}"));
            }
        }
        Ok(left)
    }

    /// What is mounted on the node and was not at its start, and network namespaces that the agent has mounted.
    fn mounts_left(&self) -> Result<Vec<String>> {
        let is_others = |point: &str| MOUNTS_OF_OTHERS.iter().any(|dir| Path::new(point).starts_with(dir));
        let mut left: Vec<String> = mounts(self.pid)?
            .into_keys()
            .filter(|point| !self.mounts.contains(point) && !is_others(point))
            .map(|point| format!("mount {point}"))
            .collect();
        if let Some(pid) = self.agent()?.and_then(|agent| agent.pid) {
            let namespaces =
                mounts(pid)?.into_iter().filter(|(point, kind)| kind == "nsfs" && !is_others(point));
            left.extend(
                namespaces.map(|(point, _)| format!("namespace on {point} in the agent's container")),
            );
        }
        Ok(left)
    }

    /// Rules of the node's firewall for sandboxes that are gone, as plugins like `portmap` and `firewall` leave them: they
    /// name the sandbox, or its address.
    fn firewall_left(
        &self,
        sandboxes: &BTreeSet<&str>,
        addresses: &BTreeSet<Ipv4Addr>,
    ) -> Result<Vec<String>> {
        static TOLD: [Once; 2] = [Once::new(), Once::new()];
        let mut left = Vec::new();
        for (command, told) in
            [["iptables-save"].as_slice(), &["nft", "list", "ruleset"]].into_iter().zip(&TOLD)
        {
            if output(Command::new("sh").args(["-c", &format!("command -v {}", command[0])])).is_err() {
                told.call_once(|| {
                    eprintln!("the leak check does without {}, which is not installed", command[0])
                });
                continue;
            }
            let rules = self.in_network(&self.netns(), command)?;
            let is_of_nobody = |rule: &&str| {
                let mut words = rule.split(|c: char| !(c.is_ascii_alphanumeric() || ".-_/".contains(c)));
                words.any(|word| is_gone(word, sandboxes, addresses))
            };
            left.extend(
                rules.lines().filter(is_of_nobody).map(|rule| format!("{}: {}", command[0], rule.trim())),
            );
        }
        Ok(left)
    }
}

/// Whether a word of a rule names a sandbox that is not there, or an address of the tests that nobody has.
fn is_gone(word: &str, sandboxes: &BTreeSet<&str>, addresses: &BTreeSet<Ipv4Addr>) -> bool {
    let is_id = word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (ip, prefix) = word.split_once('/').unwrap_or((word, "32"));
    let ip: Option<Ipv4Addr> = ip.parse().ok().filter(|_| prefix == "32");
    // See `Test::subnet`.
    let is_gone = |ip: Ipv4Addr| {
        matches!(ip.octets(), [10, 100..=103, _, host] if host != 0) && !addresses.contains(&ip)
    };
    is_id && !sandboxes.contains(word) || ip.is_some_and(is_gone)
}

/// What is mounted for a process: where, and which kind of file system.
fn mounts(pid: i32) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    // The fields of proc(5): the fifth is the mount point, the one after the `-` the kind.
    let mount = |line: &str| {
        let (fields, kind) = line.split_once(" - ")?;
        Some((fields.split(' ').nth(4)?.to_owned(), kind.split(' ').next()?.to_owned()))
    };
    Ok(text.lines().filter_map(mount).collect())
}

/// The names in a folder; none when there is no such folder.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_left_when_it_names_a_sandbox_or_an_address_that_nobody_has() {
        let (live, gone) = ("a".repeat(64), "b".repeat(64));
        let (sandboxes, addresses) =
            (BTreeSet::from([live.as_str()]), BTreeSet::from(["10.101.3.2".parse().unwrap()]));
        for word in [gone.as_str(), "10.101.3.4", "10.101.3.4/32"] {
            assert!(is_gone(word, &sandboxes, &addresses), "{word}");
        }
        for word in
            [live.as_str(), "10.101.3.2/32", "10.101.3.0/24", "10.97.4.16/32", "224.0.0.0/4", "CNI-FORWARD"]
        {
            assert!(!is_gone(word, &sandboxes, &addresses), "{word}");
        }
    }
}
