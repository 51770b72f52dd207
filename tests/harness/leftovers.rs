//! What is on a node for pods that do not run there.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::command::output;
use crate::node::{Node, Unfinished, mounts, names};
use crate::objects::list;
use crate::process::{command_line, pids};

/// Folders where the runtime and the kubelet mount things. Network namespaces are checked one by one.
const FOREIGN_MOUNTS: [&str; 9] = [
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

/// Lists what other users than root can open in the agent's state directory, but for the programs in it.
fn open_to_others(dir: &Path) -> Result<Vec<String>> {
    const PROGRAMS: [&str; 2] = ["bin", "plugins"];
    let Ok(found) = fs::symlink_metadata(dir) else { return Ok(Vec::new()) };
    let mut open = Vec::new();
    if found.mode() & 0o077 != 0 {
        open.push(format!("{} has mode {:o}", dir.display(), found.mode() & 0o7777));
    }
    if found.is_dir() {
        for name in names(dir)?.into_iter().filter(|name| !PROGRAMS.contains(&name.as_str())) {
            open.extend(open_to_others(&dir.join(name))?);
        }
    }
    Ok(open)
}

impl Node {
    /// Makes sure that nothing is set up on the node for a ClaimNetwork that is gone.
    pub(crate) fn has_only_networks(&self, networks: &BTreeSet<String>) -> Result<()> {
        let of_network = |file: &str| file.split('_').next().unwrap_or_default().to_owned();
        let mut left = self.node_journal()?;
        left.retain(|file| !networks.contains(&of_network(file)));
        ensure!(left.is_empty(), "set up on {} and not taken down: {}", self.name(), left.join(", "));
        Ok(())
    }

    /// Makes sure that the node has nothing of pods that are gone. `claims` are the UIDs of claims that pods
    /// have.
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
        left.extend(self.files_left(&sandboxes, claims)?);
        left.extend(open_to_others(&self.path("/var/lib/netclaim"))?);
        // What follows starts programs, and scenarios look again and again until nothing is left.
        ensure!(left.is_empty(), "left on {}, at least:\n  {}", self.name(), left.join("\n  "));
        left.extend(self.firewall_left(&sandboxes, &addresses)?);
        let (in_use, unused) = self.namespaces_left(&namespaces, &mut left)?;
        left.extend(self.links_left(in_use)?);
        ensure!(left.is_empty(), "left on {}:\n  {}", self.name(), left.join("\n  "));
        *self.unfinished() = Unfinished { possible: false, names: unused };
        Ok(())
    }

    /// Files of the agent and its plugins for sandboxes and claims that are gone.
    fn files_left(&self, sandboxes: &BTreeSet<&str>, claims: &BTreeSet<String>) -> Result<Vec<String>> {
        let mut left = Vec::new();
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
            // The agent may have removed it since.
            let Ok(text) = fs::read(results.join(&name)) else { continue };
            let cached: Value = serde_json::from_slice(&text).unwrap_or_default();
            let of = cached["containerId"].as_str().unwrap_or_default();
            // What is set up on the node for a ClaimNetwork.
            let of_node =
                || of.starts_with("node-") && self.node_journal().is_ok_and(|names| !names.is_empty());
            if !sandboxes.contains(of) && !of_node() {
                left.push(format!("CNI cache file {name}"));
            }
        }
        let of_request = |file: &str| file.split('_').next().unwrap_or_default().to_owned();
        let specs = self.path("/run/cdi");
        for name in names(&specs)? {
            // The agent may have removed it since.
            let Ok(text) = fs::read(specs.join(&name)) else { continue };
            let spec: Value = serde_json::from_slice(&text).unwrap_or_default();
            let mut devices = list(&spec["devices"]).filter_map(|device| device["name"].as_str());
            if !devices.any(|device| claims.contains(&of_request(device))) {
                left.push(format!("CDI spec {name}"));
            }
        }
        for name in names(&self.path("/run/netclaim/metadata"))? {
            if !claims.contains(&of_request(&name)) {
                left.push(format!("metadata file {name}"));
            }
        }
        Ok(left)
    }

    /// Network namespaces without a pod go to `left`. Returns how many are in use, and the names of those
    /// that a killed runtime may have left behind.
    fn namespaces_left(
        &self,
        in_use: &BTreeSet<u64>,
        left: &mut Vec<String>,
    ) -> Result<(usize, BTreeSet<String>)> {
        let (mut count, mut unused) = (0, BTreeSet::new());
        let dir = self.path("/run/netns");
        let plain = fs::metadata(&dir).map(|dir| dir.dev()).unwrap_or_default();
        for name in names(&dir)? {
            match fs::metadata(dir.join(&name)) {
                Ok(file) if file.dev() != plain && in_use.contains(&file.ino()) => count += 1,
                // A runtime that was killed may have created the file only, or have called no plugin yet.
                // Then no other process knows the namespace.
                Ok(file) if file.dev() == plain || self.is_unused(&dir.join(&name))? => {
                    unused.insert(name);
                }
                _ => left.push(format!("network namespace {name}")),
            }
        }
        let known = self.unfinished();
        let other = unused.iter().filter(|name| !known.possible && !known.names.contains(*name));
        left.extend(other.map(|name| format!("network namespace {name}, without links")));
        Ok((count, unused))
    }

    /// Whether a network namespace has no link but `lo`.
    fn is_unused(&self, netns: &Path) -> Result<bool> {
        Ok(self.interfaces_of(netns)?.keys().eq(["lo"]))
    }

    /// Links of pods that are gone, and own links that are missing; each of `pods` has one veth.
    fn links_left(&self, pods: usize) -> Result<Vec<String>> {
        let links = self.links()?;
        let own = self.own_links();
        let missing = own.iter().filter(|name| !links.contains(**name));
        let mut left: Vec<String> = missing.map(|name| format!("link {name} is missing")).collect();
        let plugged = self.plugged();
        let is_foreign = |name: &&String| !own.contains(&name.as_str()) && !plugged.contains(*name);
        let foreign: Vec<_> = links.iter().filter(is_foreign).collect();
        left.extend(
            foreign.iter().filter(|name| !name.starts_with("veth")).map(|name| format!("link {name}")),
        );
        if foreign.len() > pods {
            left.push(format!("{} links for {pods} network namespaces: {foreign:?}", foreign.len()));
        }
        Ok(left)
    }

    /// CNI plugins of sandboxes that are gone. If `no_claims` is set, any plugin and any hook.
    fn processes_left(&self, sandboxes: &BTreeSet<&str>, no_claims: bool) -> Result<Vec<String>> {
        let mut left = Vec::new();
        let cgroup = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok();
        let mounts = |pid: i32| fs::metadata(format!("/proc/{pid}/ns/mnt")).ok().map(|ns| ns.ino());
        let agent = self.agent()?.and_then(|agent| agent.pid).and_then(cgroup);
        let of_node = mounts(self.pid());
        for pid in pids()? {
            let words = command_line(pid).replace('\0', " ");
            let is_own =
                ["netclaim-parent", "netclaim-kubelet-plugin"].iter().any(|name| words.contains(name));
            if agent.is_some() && cgroup(pid) == agent && !is_own {
                let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap_or_default();
                let sandbox = environment.split('\0').find_map(|line| line.strip_prefix("CNI_CONTAINERID="));
                // A process without a command line has ended.
                if !words.is_empty() && (no_claims || sandbox.is_none_or(|id| !sandboxes.contains(id))) {
                    left.push(format!("process {pid} of sandbox {sandbox:?}: {words}"));
                }
            }
            if no_claims && words.contains("netclaim-hook") && mounts(pid) == of_node {
                left.push(format!("process {pid}: {words}"));
            }
        }
        Ok(left)
    }

    /// Mounts that the node did not have at its start, and network namespaces that the agent has mounted.
    fn mounts_left(&self) -> Result<Vec<String>> {
        let is_foreign = |point: &str| FOREIGN_MOUNTS.iter().any(|dir| Path::new(point).starts_with(dir));
        let mut left: Vec<String> = mounts(self.pid())?
            .into_keys()
            .filter(|point| !self.had_mount(point) && !is_foreign(point))
            .map(|point| format!("mount {point}"))
            .collect();
        if let Some(pid) = self.agent()?.and_then(|agent| agent.pid) {
            let namespaces =
                mounts(pid)?.into_iter().filter(|(point, kind)| kind == "nsfs" && !is_foreign(point));
            left.extend(
                namespaces.map(|(point, _)| format!("namespace on {point} in the agent's container")),
            );
        }
        Ok(left)
    }

    /// Firewall rules of plugins like `portmap` and `firewall` for pods that are gone: they contain the id of
    /// the sandbox, or its address.
    fn firewall_left(
        &self,
        sandboxes: &BTreeSet<&str>,
        addresses: &BTreeSet<Ipv4Addr>,
    ) -> Result<Vec<String>> {
        static INSTALLED: [OnceLock<bool>; 2] = [OnceLock::new(), OnceLock::new()];
        let mut left = Vec::new();
        for (command, installed) in
            [["iptables-save"].as_slice(), &["nft", "list", "ruleset"]].into_iter().zip(&INSTALLED)
        {
            let is_installed = installed.get_or_init(|| {
                let found =
                    output(Command::new("sh").args(["-c", &format!("command -v {}", command[0])])).is_ok();
                if !found {
                    eprintln!("leftovers are checked without {}, which is not installed", command[0]);
                }
                found
            });
            if !is_installed {
                continue;
            }
            let rules = self.in_network(&self.netns(), command)?;
            let is_left = |rule: &&str| {
                let mut words = rule.split(|c: char| !(c.is_ascii_alphanumeric() || ".-_/".contains(c)));
                words.any(|word| is_gone(word, sandboxes, addresses))
            };
            left.extend(rules.lines().filter(is_left).map(|rule| format!("{}: {}", command[0], rule.trim())));
        }
        Ok(left)
    }
}

/// Whether a word of a firewall rule is the id of a sandbox that is gone, or a pod's address that no pod has.
fn is_gone(word: &str, sandboxes: &BTreeSet<&str>, addresses: &BTreeSet<Ipv4Addr>) -> bool {
    let is_id = word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (ip, prefix) = word.split_once('/').unwrap_or((word, "32"));
    let ip: Option<Ipv4Addr> = ip.parse().ok().filter(|_| prefix == "32");
    // See `Test::subnet`.
    let is_free = |ip: Ipv4Addr| {
        matches!(ip.octets(), [10, 100..=103, _, host] if host != 0) && !addresses.contains(&ip)
    };
    is_id && !sandboxes.contains(word) || ip.is_some_and(is_free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_left_if_it_names_a_sandbox_or_an_address_that_is_gone() {
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
