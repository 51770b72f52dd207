//! A Kubernetes cluster of `tests/node`: kubectl, its services and its nodes.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::api::Api;
use crate::command::{output, output_of};
use crate::deaths::{Deaths, container_restarts};
use crate::http;
use crate::install::image;
use crate::node::{Node, names};
use crate::objects::list;
use crate::process::is_paused;
use crate::runtime::Runtime;
use crate::services;
use crate::watch::SliceWatch;

/// The namespace that netclaim runs in.
pub const SYSTEM: &str = "netclaim-system";
/// The arguments by which kubectl selects netclaim's slices.
pub(crate) const SLICES: [&str; 2] = ["--field-selector", "spec.driver=netclaim.dev"];

/// A running cluster of `tests/node/up.sh`.
pub struct Cluster {
    dir: PathBuf,
    kubectl: PathBuf,
    api: Api,
    /// For programs that run on a node: where kubectl, ctr and crictl are, and what they talk to.
    environment: BTreeMap<String, String>,
    /// By number. A reboot replaces one.
    nodes: RwLock<Vec<Arc<Node>>>,
    /// Whether the DaemonSet selects nodes; see [`Self::agent_away`].
    pub(crate) agent_wanted: AtomicBool,
    deaths: Deaths,
}

/// A path of the project.
pub fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

impl Cluster {
    /// Starts what does not run yet of the cluster of so many nodes in `dir`, and installs netclaim from
    /// `deploy/`.
    pub fn start(dir: &Path, nodes: usize) -> Result<Self> {
        let image = image()?;
        let cluster = Self::up(dir, &[("NETCLAIM_NODES", &nodes.to_string())])?;
        cluster.install(image.as_deref()).inspect_err(|_| cluster.report_system())?;
        Ok(cluster)
    }

    /// Starts etcd and an API server in `dir`, without a node or netclaim.
    pub fn start_api_only(dir: &Path) -> Result<Self> {
        Self::up(dir, &[("NETCLAIM_API_ONLY", "1"), ("NETCLAIM_NODES", "1")])
    }

    fn up(dir: &Path, env: &[(&str, &str)]) -> Result<Self> {
        eprintln!("==> a cluster in {} (to end it by hand: tests/node/down.sh {0})", dir.display());
        let mut up = Command::new(project("tests/node/up.sh"));
        let up = up.arg(dir).envs(env.iter().copied()).status().context("cannot run up.sh")?;
        ensure!(up.success(), "tests/node/up.sh failed: see above, and {}/log", dir.display());
        let kubectl =
            output(Command::new("bash").args(["-c", ". \"$1\"/env; command -v kubectl", "-"]).arg(dir))?;
        let environment = script("node.sh", dir, &["env", "-0"])?;
        let variable =
            |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let nodes: usize = std::fs::read_to_string(dir.join("nodes"))?.trim().parse()?;
        let nodes = (0..nodes).map(|number| node(dir, number)).collect::<Result<_>>()?;
        Ok(Self {
            dir: dir.to_owned(),
            kubectl: kubectl.trim().into(),
            api: Api::of(&dir.join("kubeconfig"))?,
            environment: environment.split('\0').filter_map(variable).collect(),
            nodes: RwLock::new(nodes),
            agent_wanted: AtomicBool::new(true),
            deaths: Deaths::default(),
        })
    }

    /// A program of Kubernetes, of the cluster's version.
    pub fn kubernetes_program(&self, name: &str) -> PathBuf {
        self.kubectl.with_file_name(name)
    }

    /// The version of Kubernetes that the cluster was started with, as `$NETCLAIM_KUBERNETES` names it.
    pub fn kubernetes(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.dir.join("kubernetes"))?.trim().to_owned())
    }

    /// Replaces services by those of another version of Kubernetes, one after the other, or all that kubeadm
    /// has made if there are none (`tests/node/upgrade.sh`).
    pub fn replace_kubernetes(&self, version: &str, services: &[&str]) -> Result<()> {
        self.script("upgrade.sh", &[&[version], services].concat()).map(drop)
    }

    /// Ends the cluster in `dir`, if there is one. Its logs stay.
    pub fn stop(dir: &Path) -> Result<()> {
        script("down.sh", dir, &[]).map(drop)
    }

    /// The cluster's folder; logs are in `log`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The cluster's address families: `ipv4`, `dual` or `ipv6` (`tests/node/cluster.sh`).
    pub fn stack(&self) -> Result<String> {
        let file = self.dir.join("stack");
        let stack = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()));
        Ok(stack?.trim().to_owned())
    }

    /// The first node, `node0`, seen from outside. Functions that name no node are about this one.
    #[allow(clippy::indexing_slicing)] // a cluster has at least one node
    pub fn node(&self) -> Arc<Node> {
        Arc::clone(&self.nodes.read().unwrap_or_else(PoisonError::into_inner)[0])
    }

    /// All nodes, also those without power.
    pub(crate) fn all_nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The nodes that are powered on.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.all_nodes().into_iter().filter(|node| node.is_on()).collect()
    }

    /// The node with this name.
    pub fn node_named(&self, name: &str) -> Result<Arc<Node>> {
        let node = self.all_nodes().into_iter().find(|node| node.name() == name);
        node.with_context(|| format!("the cluster has no {name}"))
    }

    pub(crate) fn deaths(&self) -> &Deaths {
        &self.deaths
    }

    /// The API server, without kubectl.
    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    /// Runs kubectl as the cluster's admin.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with(args, "")
    }

    /// Runs kubectl with `input` on standard input.
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> Result<String> {
        output_of(self.kubectl_command().args(args), input)
    }

    /// A command that runs kubectl as the cluster's admin.
    pub(crate) fn kubectl_command(&self) -> Command {
        let (program, config) = self.kubectl_parts();
        let mut command = Command::new(program);
        command.env("KUBECONFIG", config);
        command
    }

    /// The program, and the admin's kubeconfig.
    pub(crate) fn kubectl_parts(&self) -> (PathBuf, PathBuf) {
        (self.kubectl.clone(), self.dir.join("kubeconfig"))
    }

    /// Runs kubectl with a token instead of the admin's certificate.
    pub fn kubectl_as(&self, token: &str, args: &[&str], input: &str) -> Result<String> {
        let server = self.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", "/dev/null").args(["--token", token, "--server", &server]);
        command.arg("--certificate-authority").arg(self.dir.join("pki/ca.crt")).args(args);
        output_of(&mut command, input)
    }

    /// Whether the API server says that an account may do this; `args` are those of `kubectl auth can-i`.
    pub fn may(&self, account: &str, args: &[&str]) -> bool {
        self.kubectl(&[&["auth", "can-i", "--quiet", "--as", account], args].concat()).is_ok()
    }

    /// Reads what `kubectl get ARGS -o json` prints.
    pub fn get(&self, args: &[&str]) -> Result<Value> {
        if let Some(found) = self.api.get(args) {
            return found;
        }
        let text = self.kubectl(&[&["get", "-o", "json"], args].concat())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Reads netclaim's slices.
    pub fn slices(&self) -> Result<Vec<Value>> {
        let slices = self.get(&[&["resourceslices"], SLICES.as_slice()].concat())?;
        Ok(list(&slices["items"]).cloned().collect())
    }

    /// Watches netclaim's slices from now on.
    pub fn watch_slices(&self) -> Result<SliceWatch> {
        SliceWatch::start(self)
    }

    /// Reads the devices that netclaim publishes for the first node.
    pub fn devices_of_node(&self) -> Result<Vec<Value>> {
        self.devices_of("node0")
    }

    /// Reads the devices that netclaim publishes for a node.
    pub fn devices_of(&self, node: &str) -> Result<Vec<Value>> {
        let slices = self.slices()?.into_iter().filter(|slice| slice["spec"]["nodeName"] == node);
        Ok(slices.flat_map(|slice| list(&slice["spec"]["devices"]).cloned().collect::<Vec<_>>()).collect())
    }

    /// Reads one device that netclaim publishes for the first node.
    pub fn device(&self, name: &str) -> Result<Option<Value>> {
        self.device_of("node0", name)
    }

    /// Reads one device that netclaim publishes for a node.
    pub fn device_of(&self, node: &str, name: &str) -> Result<Option<Value>> {
        Ok(self.devices_of(node)?.into_iter().find(|device| device["name"] == name))
    }

    /// Runs a script of `tests/node` with the cluster's folder as the first argument.
    pub(crate) fn script(&self, name: &str, args: &[&str]) -> Result<String> {
        script(name, &self.dir, args)
    }

    /// Runs a command in the first node's mounts and network.
    pub fn on_node(&self, command: &[&str]) -> Result<String> {
        self.on("node0", command)
    }

    /// Runs a command in a node's mounts and network, as `tests/node/node.sh` does.
    pub fn on(&self, node: &str, command: &[&str]) -> Result<String> {
        let node = self.node_named(node)?;
        ensure!(node.is_on(), "{} is off", node.name());
        let target = node.pid().to_string();
        let enter = ["--target", &target, "--mount", "--net", "--"];
        output(Command::new("nsenter").args(enter).args(command).env_clear().envs(self.environment.clone()))
    }

    /// Reads `path` from an HTTP server that the first node reaches; returns the headers, too.
    pub fn http_get(&self, address: &str, port: u16, path: &str) -> Result<String> {
        self.http_get_on("node0", address, port, path)
    }

    /// As [`Self::http_get`], on another node.
    pub(crate) fn http_get_on(&self, node: &str, address: &str, port: u16, path: &str) -> Result<String> {
        http::get(&self.node_named(node)?.netns(), &format!("{address}:{port}"), path)
    }

    /// Starts, stops, restarts, kills, pauses or resumes a service (`tests/node/svc.sh`).
    pub fn service(&self, verb: &str, name: &str) -> Result<String> {
        for node in self.nodes().iter().filter(|node| verb == "kill" && node.service("runtime") == name) {
            node.runtime_dies();
        }
        self.script("svc.sh", &[verb, name])
    }

    /// The services of the control plane: none, if kubeadm has made the cluster (`tests/node/kubeadm.sh`).
    pub(crate) fn control_plane(&self) -> Result<Vec<String>> {
        let of_nodes = ["wire", "node", "runtime", "kubelet"];
        let mut services = names(&self.dir.join("cmd"))?;
        services.retain(|name| !of_nodes.iter().any(|kind| name.starts_with(kind)));
        Ok(services)
    }

    /// The process of a service, which must run.
    pub fn service_pid(&self, name: &str) -> Result<i32> {
        services::pid(&self.dir, name).with_context(|| format!("{name} does not run"))
    }

    /// Expects the kubelets to restart the agents' containers, as after a loss of power.
    pub fn expect_restarts(&self) {
        self.deaths.expect_power_loss();
    }

    /// Powers a node off (`tests/node/power.sh`). It stays off until [`Self::power_on`], or until the
    /// scenario has ended.
    pub fn power_off(&self, name: &str) -> Result<()> {
        self.deaths.expect_power_loss();
        self.node_named(name)?.set_off();
        self.script("power.sh", &["--node", name, "off"]).map(drop)
    }

    /// Powers a node on, and returns when its runtime and its kubelet run.
    pub fn power_on(&self, name: &str) -> Result<()> {
        let number = self.node_named(name)?.number();
        self.script("power.sh", &["--node", name, "on"])?;
        let new = node(&self.dir, number)?;
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes.splice(number..=number, [new]);
        Ok(())
    }

    /// Cuts a node off from the API server and from other nodes' pods (`tests/node/link.sh`), until
    /// [`Self::reconnect`], or until the scenario has ended. Its programs go on.
    pub fn cut_off(&self, name: &str) -> Result<()> {
        self.node_named(name)?.set_cut_off(true);
        self.script("link.sh", &["--node", name, "down"]).map(drop)
    }

    /// Connects a node again.
    pub fn reconnect(&self, name: &str) -> Result<()> {
        self.script("link.sh", &["--node", name, "up"])?;
        self.node_named(name)?.set_cut_off(false);
        Ok(())
    }

    /// Makes every node like one of a distribution whose root is read-only and that has no shell
    /// (`tests/node/seal.sh`), until [`Self::unseal`]. Its services cannot be started.
    pub fn seal(&self) -> Result<()> {
        let nodes = self.nodes();
        nodes.iter().try_for_each(|node| self.script("seal.sh", &["--node", &node.name(), "on"]).map(drop))
    }

    /// Undoes [`Self::seal`], also where it has failed.
    pub fn unseal(&self) -> Result<()> {
        let nodes = self.nodes();
        nodes.iter().try_for_each(|node| self.script("seal.sh", &["--node", &node.name(), "off"]).map(drop))
    }

    /// Writes a CNI plugin into every node's `/opt/cni/bin`. Its shell is the static busybox there: the
    /// agent's image has none.
    pub(crate) fn plugin(&self, name: &str, script: &str) -> Result<()> {
        self.program(name, format!("#!/opt/cni/bin/busybox sh\n{script}\n").as_bytes())
    }

    /// Writes a program into every node's `/opt/cni/bin`. A process of the old one keeps its file.
    pub(crate) fn program(&self, name: &str, content: &[u8]) -> Result<()> {
        for node in self.nodes() {
            let bin = node.path("/opt/cni/bin");
            let new = bin.join(format!(".{name}"));
            std::fs::write(&new, content)?;
            std::fs::set_permissions(&new, Permissions::from_mode(0o755))?;
            std::fs::rename(new, bin.join(name))?;
        }
        Ok(())
    }

    /// Removes plugins of earlier runs.
    pub(crate) fn remove_plugins(&self, prefix: &str) -> Result<()> {
        for node in self.nodes() {
            let bin = node.path("/opt/cni/bin");
            for name in names(&bin)?.iter().filter(|name| name.starts_with(prefix)) {
                std::fs::remove_file(bin.join(name))?;
            }
        }
        Ok(())
    }

    /// Restores the nodes as after the installation: every service and the agents run, without counted
    /// restarts, which would make the kubelets delay the next one.
    pub(crate) fn repair(&self) -> Result<()> {
        let mut services = self.control_plane()?;
        for node in self.all_nodes() {
            if self.service_pid(&node.service("node")).is_err() {
                self.power_on(&node.name())?;
            }
            if node.is_cut_off() {
                self.reconnect(&node.name())?;
                // Its Node object may be deleted.
                self.service("restart", &node.service("kubelet"))?;
            }
            services.extend(["runtime", "kubelet"].map(|kind| node.service(kind)));
        }
        for name in &services {
            match self.service_pid(name) {
                Err(_) => drop(self.service("start", name)?),
                Ok(pid) if is_paused(pid) => drop(self.service("resume", name)?),
                Ok(_) => {}
            }
        }
        self.agent_back()?;
        if self.deaths.take_power_loss() || container_restarts(self)? != 0 {
            self.delete_agent_pod()?;
            self.agent_ready()?;
        }
        Ok(())
    }
}

/// Runs a script of `tests/node` for the cluster in `dir`.
fn script(name: &str, dir: &Path, args: &[&str]) -> Result<String> {
    output(Command::new(project("tests/node").join(name)).arg(dir).args(args))
}

/// A node of the cluster in `dir`, which must be on.
fn node(dir: &Path, number: usize) -> Result<Arc<Node>> {
    let service = if number == 0 { "node".to_owned() } else { format!("node{number}") };
    let pid = services::pid(dir, &service).with_context(|| format!("{service} does not run"))?;
    let runtime = Runtime::parse(std::fs::read_to_string(dir.join("runtime"))?.trim())?;
    Ok(Arc::new(Node::new(number, pid, runtime)))
}
