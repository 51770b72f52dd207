//! What is really on the node: seen from outside through the node's own mounts and its processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::command::output;
use crate::runtime::Runtime;

/// Links of the node that are nobody's leftovers.
const OWN_LINKS: [&str; 4] = ["lo", "eth0", "eth1", "eth2"];

/// The node's namespaces.
pub struct Node {
    pid: i32,
    root: PathBuf,
    runtime: Runtime,
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
        Self { pid, root: format!("/proc/{pid}/root").into(), runtime }
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

    /// The node's own links.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn links(&self) -> Result<BTreeSet<String>> {
        let netns = PathBuf::from(format!("/proc/{}/ns/net", self.pid));
        Ok(self.interfaces_of(&netns)?.into_keys().collect())
    }

    /// Addresses that host-local has given away for networks of netclaim, with the sandbox that has each.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn leases(&self) -> Result<Vec<(String, String)>> {
        let mut leases = Vec::new();
        let dir = self.path("/var/lib/cni/networks");
        for network in names(&dir)?.into_iter().filter(|name| name.starts_with("netclaim-")) {
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
        for (lease, sandbox) in self.leases()? {
            if !sandboxes.contains(sandbox.as_str()) {
                left.push(format!("lease {lease} of sandbox {sandbox}"));
            }
        }
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
        let mut netns = 0;
        let dir = self.path("/run/netns");
        let plain = fs::metadata(&dir).map(|dir| dir.dev()).unwrap_or_default();
        for name in names(&dir)? {
            match fs::metadata(dir.join(&name)) {
                // What a runtime leaves that is killed before it has made the namespace.
                Ok(file) if file.dev() == plain => {}
                Ok(file) if namespaces.contains(&file.ino()) => netns += 1,
                // Or before it has called the first plugin, of which nobody else has heard then.
                Ok(_) if self.interfaces_of(&dir.join(&name))?.keys().eq(["lo"]) => {}
                _ => left.push(format!("network namespace {name}")),
            }
        }
        let links = self.links()?;
        for name in OWN_LINKS.iter().filter(|name| !links.contains(**name)) {
            left.push(format!("link {name} is missing"));
        }
        let foreign: Vec<_> = links.iter().filter(|name| !OWN_LINKS.contains(&name.as_str())).collect();
        // Each pod has one veth of the primary network.
        left.extend(
            foreign.iter().filter(|name| !name.starts_with("veth")).map(|name| format!("link {name}")),
        );
        if foreign.len() > netns {
            left.push(format!("{} links for {netns} network namespaces: {foreign:?}", foreign.len()));
        }
        ensure!(left.is_empty(), "left on the node:\n  {}", left.join("\n  "));
        Ok(())
    }
}

/// The names in a folder; none when there is no such folder.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", dir.display())),
    }
}
