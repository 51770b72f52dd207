//! netclaim's own programs on a cluster: the agent and the controller die, go away and come back.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, bail, ensure};
use netclaim_driver::failpoint::Failpoint;
use serde_json::{Value, json};

use crate::cluster::{Cluster, SYSTEM, project};
use crate::command::output;
use crate::node::Task;
use crate::objects::{list, text};
use crate::pods::waking;
use crate::process::{command_line, signal};
use crate::wait::eventually;

/// The node agent.
pub const AGENT: &str = "daemonset/netclaim-agent";
/// The label of its pods.
pub const AGENT_PODS: &str = "app.kubernetes.io/name=netclaim-agent";
/// Its user at the API server.
pub const AGENT_USER: &str = "system:serviceaccount:netclaim-system:netclaim-agent";
/// The cluster's controller.
pub const CONTROLLER: &str = "deployment/netclaim-controller";
/// The folder where a file arms a fail point of the agent (`netclaim_driver::failpoint`).
pub(crate) const FAILPOINTS: &str = "/run/netclaim/failpoints";

impl Cluster {
    /// The process of the first node's agent, a child of the container's first process.
    pub fn agent_pid(&self) -> Result<i32> {
        agent_pid(&self.agent_container()?)
    }

    /// A program of the agent's image. It is static, and so it runs on this machine too.
    pub fn image_program(&self, name: &str) -> Result<PathBuf> {
        Ok(PathBuf::from(format!("/proc/{}/root/usr/bin/{name}", self.agent_pid()?)))
    }

    /// The process that holds the agent's sockets.
    pub fn parent_pid(&self) -> Result<i32> {
        self.agent_container()?.pid.context("no agent runs")
    }

    pub(crate) fn agent_container(&self) -> Result<Task> {
        self.node().agent()?.context("no agent runs")
    }

    /// Whether the DaemonSet selects nodes.
    pub(crate) fn agent_is_wanted(&self) -> bool {
        self.agent_wanted.load(Ordering::SeqCst)
    }

    /// Reads `path` from the first node's agent over HTTP; returns the headers, too.
    pub fn ask_agent(&self, path: &str) -> Result<String> {
        self.ask_agent_of("node0", path)
    }

    /// As [`Self::ask_agent`], from another node's agent.
    pub fn ask_agent_of(&self, node: &str, path: &str) -> Result<String> {
        self.http_get_on(node, "127.0.0.1", if path == "/metrics" { 9177 } else { 9179 }, path)
    }

    /// Waits until the agents' rollout is complete, on all nodes that are powered on.
    pub fn agent_ready(&self) -> Result<()> {
        eventually(90, "the rollout of the agents is complete", || {
            let agents = self.get(&["-n", SYSTEM, AGENT])?;
            let status = |field: &str| agents["status"][field].as_u64().unwrap_or_default();
            let wanted = status("desiredNumberScheduled");
            ensure!(
                agents["status"]["observedGeneration"] == agents["metadata"]["generation"]
                    && status("updatedNumberScheduled") >= wanted
                    && status("numberAvailable") >= wanted,
                "its status is {}",
                agents["status"]
            );
            Ok(())
        })?;
        // The rollout waits only for nodes whose kubelets have registered them, and not for the end of the
        // agents before.
        eventually(60, "every node has one agent, which is ready", || {
            let pods = self.get(&["pods", "-n", SYSTEM, "-l", AGENT_PODS])?;
            for node in self.nodes() {
                let is_of_node = |pod: &&Value| pod["spec"]["nodeName"] == node.name();
                let of_node: Vec<_> = list(&pods["items"]).filter(is_of_node).collect();
                let [pod] = of_node.as_slice() else { bail!("{} has {} agents", node.name(), of_node.len()) };
                let is_ready =
                    |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
                let is_ending = !pod["metadata"]["deletionTimestamp"].is_null();
                ensure!(!is_ending, "the agent of {} is ending", node.name());
                ensure!(
                    list(&pod["status"]["conditions"]).any(is_ready),
                    "the agent of {} is not ready",
                    node.name()
                );
            }
            Ok(())
        })
    }

    /// Sets (`NAME=VALUE`) or unsets (`NAME-`) environment variables of the agent.
    pub fn set_agent_env(&self, settings: &[&str]) -> Result<()> {
        self.kubectl(&[&["set", "env", "-n", SYSTEM, AGENT], settings].concat()).map(drop)
    }

    /// Runs `body` with agents that have this environment variable, and takes it away again.
    pub fn with_agent_env(
        &self,
        variable: &str,
        value: &str,
        body: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let set = |setting: &str| {
            self.set_agent_env(&[setting])?;
            self.agent_ready()
        };
        let result = set(&format!("{variable}={value}")).and_then(|()| body());
        let back = set(&format!("{variable}-"));
        result.and(back)
    }

    /// Makes the kubelets look at the pods of a program (`agent` or `controller`) now, by an annotation, and
    /// so bring files of ConfigMaps and Secrets up to date.
    pub fn wake(&self, program: &str) -> Result<()> {
        let label = format!("app.kubernetes.io/name=netclaim-{program}");
        self.kubectl(&["annotate", "--overwrite", "pods", "-n", SYSTEM, "-l", &label, &waking()?]).map(drop)
    }

    /// Deletes the pods of all agents; the DaemonSet creates others.
    pub fn delete_agent_pod(&self) -> Result<()> {
        self.kubectl(&["delete", "pods", "-n", SYSTEM, "-l", AGENT_PODS]).map(drop)
    }

    /// Kills the first node's agent with SIGKILL; its parent starts the next one. The harness expects this
    /// death.
    pub fn kill_agent(&self) -> Result<()> {
        self.kill_agent_on("node0")
    }

    /// As [`Self::kill_agent`], on another node.
    pub fn kill_agent_on(&self, node: &str) -> Result<()> {
        let container = self.node_named(node)?.agent()?.context("no agent runs")?;
        let pid = agent_pid(&container)?;
        self.deaths().expect(&container.id);
        signal(pid, "KILL")
    }

    /// Kills the agent, and waits until the next one runs.
    pub fn replace_agent(&self) -> Result<()> {
        let old = self.agent_pid()?;
        self.kill_agent()?;
        eventually(20, "another agent runs", || {
            ensure!(self.agent_pid()? != old, "the old one runs");
            Ok(())
        })
    }

    /// Makes the agent die when it next reaches `point`. The harness expects this death.
    pub fn arm(&self, point: Failpoint) -> Result<()> {
        self.deaths().expect(&self.agent_container()?.id);
        let dir = self.node().path(FAILPOINTS);
        std::fs::create_dir_all(&dir)?;
        Ok(std::fs::write(dir.join(point.name()), "")?)
    }

    /// Whether the agent has not reached `point` since [`Self::arm`].
    fn is_armed(&self, point: Failpoint) -> bool {
        self.node().path(FAILPOINTS).join(point.name()).exists()
    }

    /// Waits until the agent has died at `point`, for which it is [armed](Self::arm).
    pub fn dies_at(&self, point: Failpoint, seconds: u64) -> Result<()> {
        eventually(seconds, "the agent dies at the point", || {
            ensure!(
                !self.is_armed(point),
                "{} is not reached: does the agent's image have fail points (NETCLAIM_FEATURES)?",
                point.name()
            );
            Ok(())
        })
    }

    /// Stops the agent with SIGSTOP, or continues it.
    pub fn pause_agent(&self, pause: bool) -> Result<()> {
        signal(self.agent_pid()?, if pause { "STOP" } else { "CONT" })
    }

    /// Stops or continues the agent and its parent.
    pub fn pause_agent_and_parent(&self, pause: bool) -> Result<()> {
        let (parent, pid) = (self.parent_pid()?, self.agent_pid()?);
        [parent, pid].into_iter().try_for_each(|pid| signal(pid, if pause { "STOP" } else { "CONT" }))
    }

    /// Kills the agent with SIGKILL, and keeps it away until [`Self::agent_back`].
    pub fn agent_away(&self) -> Result<()> {
        let (parent, pid) = (self.parent_pid()?, self.agent_pid()?);
        // Both are stopped first, so that neither receives SIGTERM and cleans up.
        signal(parent, "STOP")?;
        signal(pid, "STOP")?;
        self.agent_wanted.store(false, Ordering::SeqCst);
        self.select_nodes(json!({"netclaim.dev/test": "nowhere"}))?;
        signal(parent, "KILL")?;
        eventually(20, "the agent's pod is gone", || {
            let pods = self.get(&["pods", "-n", SYSTEM, "-l", AGENT_PODS])?;
            ensure!(pods["items"] == json!([]), "it still exists");
            Ok(())
        })
    }

    /// Lets the agent run again, and waits until it is ready.
    pub fn agent_back(&self) -> Result<()> {
        if !self.agent_wanted.swap(true, Ordering::SeqCst) {
            self.select_nodes(json!({"netclaim.dev/test": null}))?;
        }
        self.agent_ready()
    }

    fn select_nodes(&self, selector: Value) -> Result<()> {
        let patch = json!({"spec": {"template": {"spec": {"nodeSelector": selector}}}}).to_string();
        self.kubectl(&["patch", "-n", SYSTEM, AGENT, "-p", &patch]).map(drop)
    }

    /// Makes the next agent in the present container read `id` as the kernel's boot id: a file is mounted
    /// over the kernel's. An agent in another container reads the kernel's own id.
    pub fn agent_reads_boot_id(&self, id: &str) -> Result<()> {
        std::fs::write(self.node().path("/run/netclaim/boot_id"), format!("{id}\n"))?;
        let mount = ["/opt/cni/bin/busybox", "mount", "-o", "bind"];
        let files = ["/run/netclaim/boot_id", "/proc/sys/kernel/random/boot_id"];
        let target = self.agent_pid()?.to_string();
        output(Command::new("nsenter").args(["--target", &target, "--mount"]).args(mount).args(files))?;
        self.replace_agent()
    }

    /// Makes the agent run CNI plugins in the node's mounts, as `deploy/host-mounts` does, or in its own
    /// again.
    pub fn plugins_see_the_node(&self, yes: bool) -> Result<()> {
        let variable = "NETCLAIM_CNI_MOUNT_NAMESPACE";
        if yes {
            let patch = project("deploy/host-mounts/agent.yaml");
            self.kubectl(&["patch", "-n", SYSTEM, AGENT, "--patch-file", &patch.to_string_lossy()])?;
            // PID 1 has the machine's mounts: the node has no process namespace of its own.
            self.set_agent_env(&[&format!("{variable}=/proc/{}/ns/mnt", self.node().pid())])?;
        } else {
            let patch = r#"{"spec": {"template": {"spec": {"hostPID": null}}}}"#;
            self.kubectl(&["patch", "-n", SYSTEM, AGENT, "-p", patch])?;
            self.set_agent_env(&[&format!("{variable}-")])?;
            self.manifests("apply")?;
        }
        self.agent_ready()
    }

    /// Removes the controller until [`Self::controller_back`].
    pub fn controller_away(&self) -> Result<()> {
        self.scale_controller(0)?;
        eventually(40, "the controller is gone", || {
            ensure!(self.controllers()?.is_empty(), "it runs");
            Ok(())
        })
    }

    /// Lets a controller run again, and waits until it is ready.
    pub fn controller_back(&self) -> Result<()> {
        self.scale_controller(1)?;
        self.controller_ready()
    }

    /// Changes the number of controllers, one of which is the leader.
    pub fn scale_controller(&self, replicas: usize) -> Result<()> {
        self.kubectl(&["scale", "-n", SYSTEM, CONTROLLER, &format!("--replicas={replicas}")]).map(drop)
    }

    /// Has two controllers run, one of which is the leader.
    pub fn run_two_controllers(&self) -> Result<()> {
        self.scale_controller(2)?;
        eventually(60, "two controllers run", || {
            let running = self.controllers()?.len();
            ensure!(running == 2, "{running} run");
            Ok(())
        })
    }

    /// Waits until the controller's rollout is complete.
    pub fn controller_ready(&self) -> Result<()> {
        self.kubectl(&["rollout", "status", "-n", SYSTEM, CONTROLLER, "--timeout=90s"]).map(drop)
    }

    /// Kills the leading controller with SIGKILL; the kubelet restarts it. Returns the name of its pod.
    pub fn kill_controller(&self) -> Result<String> {
        let leader = self.leader()?;
        signal(self.controller_pid(&leader)?, "KILL")?;
        Ok(leader)
    }

    fn controller_pid(&self, pod: &str) -> Result<i32> {
        let task = self.controllers()?.into_iter().find(|task| task.pod == pod);
        task.and_then(|task| task.pid).with_context(|| format!("controller {pod} does not run"))
    }

    /// Stops a controller with SIGSTOP, or continues it.
    pub fn pause_controller(&self, pod: &str, pause: bool) -> Result<()> {
        signal(self.controller_pid(pod)?, if pause { "STOP" } else { "CONT" })
    }

    /// The pod of the controller that holds the lease.
    pub fn leader(&self) -> Result<String> {
        Ok(text(&self.get(&["-n", SYSTEM, "lease/netclaim-controller"])?["spec"]["holderIdentity"]))
    }

    /// The controllers' containers on all nodes.
    pub fn controllers(&self) -> Result<Vec<Task>> {
        let mut found = Vec::new();
        for node in self.nodes() {
            let is_controller =
                |task: &Task| task.namespace == SYSTEM && task.container.as_deref() == Some("controller");
            found.extend(node.tasks()?.into_iter().filter(is_controller));
        }
        Ok(found)
    }
}

/// The agent's process in its container, a child of the container's first process.
fn agent_pid(container: &Task) -> Result<i32> {
    let parent = container.pid.context("no agent runs")?;
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    // The other children are orphans of CNI plugins.
    let mut pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.find(|pid| command_line(*pid).contains("netclaim-kubelet-plugin")).context("no agent runs")
}
