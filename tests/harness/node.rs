//! A node, seen from outside: through its mounts and its processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cluster::SYSTEM;
use crate::command::output;
use crate::objects::{list, text};
use crate::runtime::Runtime;

/// The CNI network that the runtime attaches to every pod (`tests/node/up.sh`).
const PRIMARY: &str = "pods";

/// A node's namespaces and its container runtime.
pub struct Node {
    number: usize,
    pid: i32,
    off: AtomicBool,
    cut_off: AtomicBool,
    root: PathBuf,
    runtime: Runtime,
    /// Mount points at the start.
    mounts: BTreeSet<String>,
    unfinished: Mutex<Unfinished>,
    /// Links that scenarios have added, and their other ends.
    plugged: Mutex<BTreeSet<String>>,
}

/// Network namespaces that a killed runtime had created but not used.
#[derive(Default)]
pub(crate) struct Unfinished {
    /// The runtime was killed since the node was last clean.
    pub(crate) possible: bool,
    pub(crate) names: BTreeSet<String>,
}

/// A running container or sandbox.
#[derive(Debug, Clone)]
pub struct Task {
    /// The runtime's id of the container or sandbox.
    pub id: String,
    /// Its first process. Some runtimes' sandboxes have none.
    pub pid: Option<i32>,
    /// Its network namespace.
    pub netns: PathBuf,
    /// The id of its sandbox: its own, for a sandbox.
    pub sandbox: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name; `None` for a sandbox.
    pub container: Option<String>,
}

/// A network interface of a network namespace.
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
    /// The global IPv6 addresses with their prefix lengths.
    pub ipv6: Vec<String>,
}

impl Node {
    /// The node with this number, whose namespaces the process `pid` is in.
    pub(crate) fn new(number: usize, pid: i32, runtime: Runtime) -> Self {
        Self {
            number,
            pid,
            off: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            root: format!("/proc/{pid}/root").into(),
            runtime,
            mounts: mounts(pid).unwrap_or_default().into_keys().collect(),
            unfinished: Mutex::default(),
            plugged: Mutex::default(),
        }
    }

    /// Its name: `node0`, `node1` and so on.
    pub fn name(&self) -> String {
        format!("node{}", self.number)
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// The name of its service `node`, `runtime` or `kubelet` (`tests/node/svc.sh`).
    pub fn service(&self, kind: &str) -> String {
        if self.number == 0 { kind.to_owned() } else { format!("{kind}{}", self.number) }
    }

    /// Notes that the node has no power any more.
    pub(crate) fn set_off(&self) {
        self.off.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.off.load(Ordering::SeqCst)
    }

    /// Notes whether the node reaches the API server.
    pub(crate) fn set_cut_off(&self, yes: bool) {
        self.cut_off.store(yes, Ordering::SeqCst);
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::SeqCst)
    }

    /// Links of the node itself (`tests/node/machine.sh`).
    pub(crate) fn own_links(&self) -> &'static [&'static str] {
        if self.number < 2 { &["lo", "eth0", "eth1", "eth2"] } else { &["lo", "eth0", "eth1"] }
    }

    /// Notes that the runtime is about to be killed.
    pub(crate) fn runtime_dies(&self) {
        self.unfinished().possible = true;
    }

    pub(crate) fn unfinished(&self) -> MutexGuard<'_, Unfinished> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Links that scenarios have added and will delete.
    pub(crate) fn plugged(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.plugged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The container runtime.
    pub fn runtime(&self) -> Runtime {
        self.runtime
    }

    /// A process that is in the node's namespaces while the node is up.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The path by which the tests reach a path of the node.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Lists running containers and sandboxes, even while the container runtime is down.
    pub fn tasks(&self) -> Result<Vec<Task>> {
        self.runtime.tasks(&self.root)
    }

    /// The agent's container, if it runs.
    pub(crate) fn agent(&self) -> Result<Option<Task>> {
        let is_agent = |task: &Task| task.namespace == SYSTEM && task.container.as_deref() == Some("agent");
        Ok(self.tasks()?.into_iter().find(is_agent))
    }

    /// Runs a command in a network namespace.
    pub fn in_network(&self, netns: &Path, command: &[&str]) -> Result<String> {
        output(Command::new("nsenter").arg(format!("--net={}", netns.display())).args(command))
    }

    /// Reads the interfaces of a network namespace.
    pub fn interfaces_of(&self, netns: &Path) -> Result<BTreeMap<String, Interface>> {
        let links = self.in_network(netns, &["ip", "-j", "addr"])?;
        let links: Vec<Value> = serde_json::from_str(&links)?;
        let interface = |link: &Value| {
            let number = |field: &str| link[field].as_u64().unwrap_or_default();
            let ips = |family: &str| {
                let of_family =
                    |ip: &&Value| ip["family"] == family && (family == "inet" || ip["scope"] == "global");
                let address = |ip: &Value| format!("{}/{}", text(&ip["local"]), ip["prefixlen"]);
                list(&link["addr_info"]).filter(of_family).map(address).collect()
            };
            let interface = Interface {
                name: text(&link["ifname"]),
                index: number("ifindex"),
                mac: text(&link["address"]),
                mtu: number("mtu"),
                ips: ips("inet"),
                ipv6: ips("inet6"),
            };
            (interface.name.clone(), interface)
        };
        Ok(links.iter().map(interface).collect())
    }

    /// The node's own network namespace.
    pub(crate) fn netns(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.pid).into()
    }

    /// The names of the node's own links.
    pub fn links(&self) -> Result<BTreeSet<String>> {
        Ok(self.interfaces_of(&self.netns())?.into_keys().collect())
    }

    /// Lists host-local's leases, as `NETWORK/IP` with the sandbox, but for those of the runtime's own
    /// network.
    pub fn leases(&self) -> Result<Vec<(String, String)>> {
        let mut leases = Vec::new();
        let dir = self.path("/var/lib/cni/networks");
        for network in names(&dir)?.into_iter().filter(|name| name != PRIMARY) {
            let files = names(&dir.join(&network))?.into_iter();
            for ip in files.filter(|name| name.parse::<IpAddr>().is_ok()) {
                let Ok(lease) = fs::read_to_string(dir.join(&network).join(&ip)) else { continue };
                let sandbox = lease.lines().next().unwrap_or_default().trim();
                leases.push((format!("{network}/{ip}"), sandbox.to_owned()));
            }
        }
        Ok(leases)
    }

    /// Lists the files of the agent's journal, of both folders. An attachment has one or two, of one name.
    pub fn journal(&self) -> Result<Vec<String>> {
        let mut found: BTreeSet<String> =
            names(&self.path("/var/lib/netclaim/journal"))?.into_iter().collect();
        let of_boots = self.path("/run/netclaim/journal");
        for boot in names(&of_boots)? {
            found.extend(names(&of_boots.join(boot))?);
        }
        Ok(found.into_iter().filter(|name| !name.starts_with('.')).collect())
    }

    /// Lists the files of the agent's journal of what is set up on the node for ClaimNetworks.
    pub fn node_journal(&self) -> Result<Vec<String>> {
        let of_boots = self.path("/run/netclaim/node-journal");
        let mut found = names(&self.path("/var/lib/netclaim/node-journal"))?;
        for boot in names(&of_boots)? {
            found.extend(names(&of_boots.join(boot))?);
        }
        Ok(found.into_iter().filter(|name| !name.starts_with('.')).collect())
    }

    /// Whether something was mounted there at the start.
    pub(crate) fn had_mount(&self, point: &str) -> bool {
        self.mounts.contains(point)
    }
}

/// A process's mounts: the mount point and the kind of file system.
pub(crate) fn mounts(pid: i32) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    // proc(5): the fifth field is the mount point, the one after `-` the kind.
    let mount = |line: &str| {
        let (fields, kind) = line.split_once(" - ")?;
        Some((fields.split(' ').nth(4)?.to_owned(), kind.split(' ').next()?.to_owned()))
    };
    Ok(text.lines().filter_map(mount).collect())
}

/// Lists the names in a folder; none if there is no such folder.
pub fn names(dir: &Path) -> Result<Vec<String>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", dir.display())),
    }
}
