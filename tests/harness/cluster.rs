//! One Kubernetes cluster with netclaim on it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context as _, Result, ensure};
use netclaim_driver::failpoint::Failpoint;
use serde_json::{Value, json};

use crate::command::{output, output_of};
use crate::deaths::{Deaths, restarts_of_containers};
use crate::node::{Node, Task};
use crate::process::{command_line, signal};
use crate::runtime::Runtime;
use crate::test::list;
use crate::wait::eventually;
use crate::watch::SliceWatch;

/// The namespace that netclaim runs in.
pub const SYSTEM: &str = "netclaim-system";
/// The node agent.
pub const AGENT: &str = "daemonset/netclaim-agent";
/// The label of its pods.
pub const AGENT_PODS: &str = "app.kubernetes.io/name=netclaim-agent";
/// The cluster's controller.
const CONTROLLER: &str = "deployment/netclaim-controller";
/// Seconds that CNI plugins get on this cluster: a plugin that hangs must not make the tests hang.
const CNI_TIMEOUT: u32 = 10;
/// Seconds between the questions whether a plugin is ready. The networks of most scenarios have a CNI version without it.
const STATUS_PERIOD: u32 = 3;

/// Where a file arms a fail point of the agent (`netclaim_driver::failpoint`).
const FAILPOINTS: &str = "/run/netclaim/failpoints";

/// A running cluster of `tests/node/up.sh`.
pub struct Cluster {
    dir: PathBuf,
    kubectl: PathBuf,
    /// Another one after a reboot.
    node: RwLock<Arc<Node>>,
    /// The agent is where the DaemonSet wants it; see [`Self::agent_away`].
    agent_wanted: AtomicBool,
    deaths: Deaths,
}

/// A path of the project.
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

impl Cluster {
    /// Starts the cluster in `dir`, or what is missing of it, and installs netclaim from `deploy/`.
    ///
    /// # Errors
    /// When it does not come up, or netclaim does not become ready.
    pub fn start(dir: &Path) -> Result<Self> {
        let image = image()?;
        let cluster = Self::up(dir, &[])?;
        cluster.install(&image).inspect_err(|_| cluster.tell_system())?;
        Ok(cluster)
    }

    /// Starts etcd and an API server in `dir`, and nothing else: no node, no netclaim.
    ///
    /// # Errors
    /// When they do not come up.
    pub fn start_api_only(dir: &Path) -> Result<Self> {
        Self::up(dir, &[("NETCLAIM_API_ONLY", "1")])
    }

    fn up(dir: &Path, env: &[(&str, &str)]) -> Result<Self> {
        eprintln!("==> a cluster in {} (to end it by hand: tests/node/down.sh {0})", dir.display());
        let mut up = Command::new(project("tests/node/up.sh"));
        let up = up.arg(dir).envs(env.iter().copied()).status().context("cannot run up.sh")?;
        ensure!(up.success(), "tests/node/up.sh failed: see above, and {}/log", dir.display());
        let kubectl =
            output(Command::new("bash").args(["-c", ". \"$1\"/env; command -v kubectl", "-"]).arg(dir))?;
        Ok(Self {
            dir: dir.to_owned(),
            kubectl: kubectl.trim().into(),
            node: RwLock::new(node(dir)?),
            agent_wanted: AtomicBool::new(true),
            deaths: Deaths::default(),
        })
    }

    fn install(&self, image: &Path) -> Result<()> {
        let busybox = output(Command::new("bash").args(["-c", "command -v busybox"]))?;
        self.program("busybox", &std::fs::read(busybox.trim())?)?;
        eprintln!("==> installing netclaim: kubectl apply -k {}", self.manifests()?.display());
        let installed = self.kubectl(&["get", "-n", SYSTEM, AGENT]).is_ok();
        let sum = output(Command::new("sha256sum").arg(image))?;
        let known = self.dir.join("image.sha256");
        let new_image = std::fs::read_to_string(&known).ok() != Some(sum.clone());
        if new_image {
            output(Command::new(project("tests/node/image.sh")).arg(&self.dir).arg(image))?;
        }
        self.kubectl(&["apply", "-k", &self.manifests()?.to_string_lossy()])?;
        let timeout = format!("NETCLAIM_CNI_TIMEOUT={CNI_TIMEOUT}");
        let status = format!("NETCLAIM_STATUS_PERIOD={STATUS_PERIOD}");
        self.kubectl(&[
            "set",
            "env",
            "-n",
            SYSTEM,
            AGENT,
            &timeout,
            &status,
            &format!("NETCLAIM_FAILPOINTS={FAILPOINTS}"),
            "NETCLAIM_LOG=info,netclaim_driver=debug",
        ])?;
        if installed && new_image {
            // The tag is the same as before.
            self.kubectl(&["rollout", "restart", "-n", SYSTEM, AGENT, CONTROLLER])?;
        }
        std::fs::write(known, sum)?;
        self.agent_ready()?;
        self.kubectl(&["rollout", "status", "-n", SYSTEM, CONTROLLER, "--timeout=90s"]).map(drop)
    }

    /// The manifests for this Kubernetes.
    fn manifests(&self) -> Result<PathBuf> {
        let version = std::fs::read_to_string(self.dir.join("kubernetes"))?;
        let old = ["1.34", "1.35"].iter().any(|minor| version.trim().starts_with(minor));
        Ok(project(if old { "deploy/before-1.36" } else { "deploy/manifests" }))
    }

    /// Has kubectl apply or delete a kustomization of the project.
    ///
    /// # Errors
    /// As [`Self::kubectl`].
    pub fn kustomization(&self, verb: &str, path: &str) -> Result<()> {
        self.kubectl(&[verb, "-k", &project(path).to_string_lossy()]).map(drop)
    }

    /// Shows what became of netclaim's own pods.
    fn tell_system(&self) {
        for args in [
            ["get", "pods", "-o", "wide"],
            ["get", "events", "-o", "wide"],
            ["logs", AGENT, "--tail=30", "--prefix"],
        ] {
            let told = self.kubectl(&[["-n", SYSTEM].as_slice(), args.as_slice()].concat());
            eprintln!(
                "--- kubectl {}\n{}",
                args.join(" "),
                told.unwrap_or_else(|error| format!("{error:#}"))
            );
        }
    }

    /// Watches the slices of netclaim from now on.
    ///
    /// # Errors
    /// When the watch does not begin.
    pub fn watch_slices(&self) -> Result<SliceWatch> {
        SliceWatch::start(self)
    }

    /// The devices that are published for the node now.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn devices_of_node(&self) -> Result<Vec<Value>> {
        let slices = self.get(&["resourceslices"])?;
        let of_node = list(&slices["items"]).filter(|slice| slice["spec"]["nodeName"].is_string());
        Ok(of_node.flat_map(|slice| list(&slice["spec"]["devices"])).cloned().collect())
    }

    /// The process of a service (`tests/node/svc.sh`).
    ///
    /// # Errors
    /// When it does not run.
    pub fn service_pid(&self, name: &str) -> Result<i32> {
        Ok(self.service("pid", name)?.trim().parse()?)
    }

    /// Ends the cluster in `dir`, if there is one. Its logs stay.
    ///
    /// # Errors
    /// When something of it is left.
    pub fn stop(dir: &Path) -> Result<()> {
        output(Command::new(project("tests/node/down.sh")).arg(dir)).map(drop)
    }

    /// The cluster's folder; logs are in `log`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is really on the node.
    pub fn node(&self) -> Arc<Node> {
        Arc::clone(&self.node.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the power from the node (`tests/node/power.sh`).
    ///
    /// # Errors
    /// When something of it goes on.
    pub fn power_off(&self) -> Result<()> {
        self.deaths.power_lost();
        output(Command::new(project("tests/node/power.sh")).arg(&self.dir).arg("off")).map(drop)
    }

    /// Gives the node its power back: its runtime and its kubelet run when this returns, and nothing else of it yet.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn power_on(&self) -> Result<()> {
        output(Command::new(project("tests/node/power.sh")).arg(&self.dir).arg("on"))?;
        *self.node.write().unwrap_or_else(PoisonError::into_inner) = node(&self.dir)?;
        Ok(())
    }

    /// Has the agent in its present container read `id` for the kernel's boot id, by a file that is mounted over
    /// the kernel's, and waits until one does. The next container's agent reads the kernel's own again.
    ///
    /// # Errors
    /// When it cannot be mounted, or no new agent starts.
    pub fn agent_reads_boot_id(&self, id: &str) -> Result<()> {
        std::fs::write(self.node().path("/run/netclaim/boot_id"), format!("{id}\n"))?;
        let old = self.agent_pid()?;
        let mount = ["/opt/cni/bin/busybox", "mount", "-o", "bind"];
        let files = ["/run/netclaim/boot_id", "/proc/sys/kernel/random/boot_id"];
        let target = old.to_string();
        output(Command::new("nsenter").args(["--target", &target, "--mount"]).args(mount).args(files))?;
        self.kill_agent()?;
        eventually(20, "another agent runs", || {
            ensure!(self.agent_pid()? != old, "it is the old one");
            Ok(())
        })
    }

    /// Runs kubectl as the cluster's admin.
    ///
    /// # Errors
    /// When it fails; with what it said.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with(args, "")
    }

    /// Runs kubectl with `input` on standard input.
    ///
    /// # Errors
    /// As [`Self::kubectl`].
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> Result<String> {
        output_of(self.kubectl_command().args(args), input)
    }

    /// kubectl as the cluster's admin, to be run.
    pub(crate) fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", self.dir.join("kubeconfig"));
        command
    }

    /// Runs kubectl with a token instead of the admin's certificate.
    ///
    /// # Errors
    /// As [`Self::kubectl`].
    pub fn kubectl_as(&self, token: &str, args: &[&str], input: &str) -> Result<String> {
        let server = self.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", "/dev/null").args(["--token", token, "--server", &server]);
        command.arg("--certificate-authority").arg(self.dir.join("pki/ca.crt")).args(args);
        output_of(&mut command, input)
    }

    /// `kubectl get ARGS -o json`.
    ///
    /// # Errors
    /// As [`Self::kubectl`].
    pub fn get(&self, args: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[&["get", "-o", "json"], args].concat())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Runs a command in the node's mounts and network (`tests/node/node.sh`).
    ///
    /// # Errors
    /// When it fails; with what it said.
    pub fn on_node(&self, command: &[&str]) -> Result<String> {
        output(Command::new(project("tests/node/node.sh")).arg(&self.dir).args(command))
    }

    /// `tests/node/svc.sh`: start, stop, restart, kill, pause or resume a service.
    ///
    /// # Errors
    /// When it fails; with what it said.
    pub fn service(&self, verb: &str, name: &str) -> Result<String> {
        if (verb, name) == ("kill", "runtime") {
            self.node().runtime_dies();
        }
        output(Command::new(project("tests/node/svc.sh")).arg(&self.dir).args([verb, name]))
    }

    /// Writes a CNI plugin of the tests' own into the node's `/opt/cni/bin`. The agent's image has no shell: the
    /// script runs in the static busybox that is installed beside it.
    pub(crate) fn plugin(&self, name: &str, script: &str) -> Result<()> {
        self.program(name, format!("#!/opt/cni/bin/busybox sh\n{script}\n").as_bytes())
    }

    fn program(&self, name: &str, content: &[u8]) -> Result<()> {
        let bin = self.node().path("/opt/cni/bin");
        let new = bin.join(format!(".{name}"));
        std::fs::write(&new, content)?;
        std::fs::set_permissions(&new, Permissions::from_mode(0o755))?;
        // One that runs keeps its old file.
        Ok(std::fs::rename(new, bin.join(name))?)
    }

    /// Removes the plugins that an earlier run left.
    pub(crate) fn remove_plugins(&self, prefix: &str) -> Result<()> {
        for entry in std::fs::read_dir(self.node().path("/opt/cni/bin"))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The agent's process, the child of the container's first one.
    ///
    /// # Errors
    /// When there is none.
    pub fn agent_pid(&self) -> Result<i32> {
        let parent = self.parent_pid()?;
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
        // Others are what CNI plugins have left behind.
        let mut pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.find(|pid| command_line(*pid).contains("netclaim-kubelet-plugin")).context("no agent runs")
    }

    /// The process that holds the agent's sockets.
    ///
    /// # Errors
    /// When there is none.
    pub fn parent_pid(&self) -> Result<i32> {
        self.agent_container()?.pid.context("no agent runs")
    }

    /// The agent's container.
    pub(crate) fn agent_container(&self) -> Result<Task> {
        self.node().agent()?.context("no agent runs")
    }

    /// Whether the agent is where the DaemonSet wants it.
    pub(crate) fn agent_is_wanted(&self) -> bool {
        self.agent_wanted.load(Ordering::SeqCst)
    }

    /// What is known of deaths and bugs of netclaim's programs.
    pub(crate) fn deaths(&self) -> &Deaths {
        &self.deaths
    }

    /// What the agent answers to a GET of `path`, headers included.
    ///
    /// # Errors
    /// When it does not listen.
    pub fn ask_agent(&self, path: &str) -> Result<String> {
        let port = if path == "/metrics" { 9177 } else { 9179 };
        let ask = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
        );
        self.on_node(&["bash", "-c", &ask])
    }

    /// Waits until the agent runs in its newest version and is ready.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub fn agent_ready(&self) -> Result<()> {
        self.kubectl(&["rollout", "status", "-n", SYSTEM, AGENT, "--timeout=90s"]).map(drop)
    }

    /// Ends the agent by SIGKILL; its parent starts it again. It is one death that the scenario has asked for.
    ///
    /// # Errors
    /// When none runs.
    pub fn kill_agent(&self) -> Result<()> {
        let pid = self.agent_pid()?;
        self.deaths.asked_for(&self.agent_container()?.id);
        signal(pid, "KILL")
    }

    /// Has the agent die where it next comes to `point`: one death that the scenario has asked for.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn arm(&self, point: Failpoint) -> Result<()> {
        self.deaths.asked_for(&self.agent_container()?.id);
        let dir = self.node().path(FAILPOINTS);
        std::fs::create_dir_all(&dir)?;
        Ok(std::fs::write(dir.join(point.name()), "")?)
    }

    /// Whether the agent has yet to come to `point` and die.
    pub fn is_armed(&self, point: Failpoint) -> bool {
        self.node().path(FAILPOINTS).join(point.name()).exists()
    }

    /// Holds the agent still, or lets it go on.
    ///
    /// # Errors
    /// When none runs.
    pub fn pause_agent(&self, pause: bool) -> Result<()> {
        signal(self.agent_pid()?, if pause { "STOP" } else { "CONT" })
    }

    /// Ends the agent by SIGKILL and keeps it away, until [`Self::agent_back`].
    ///
    /// # Errors
    /// When it does not go.
    pub fn agent_away(&self) -> Result<()> {
        let (parent, pid) = (self.parent_pid()?, self.agent_pid()?);
        // Stopped first: it must not hear of its end and tidy up.
        signal(parent, "STOP")?;
        signal(pid, "STOP")?;
        self.agent_wanted.store(false, Ordering::SeqCst);
        self.select_nodes(json!({"netclaim.dev/test": "nowhere"}))?;
        signal(parent, "KILL")?;
        eventually(20, "the agent's pod is gone", || {
            let pods = self.get(&["pods", "-n", SYSTEM, "-l", AGENT_PODS])?;
            ensure!(pods["items"] == json!([]), "still there");
            Ok(())
        })
    }

    /// Lets the agent run again, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn agent_back(&self) -> Result<()> {
        if !self.agent_wanted.swap(true, Ordering::SeqCst) {
            self.select_nodes(json!({"netclaim.dev/test": null}))?;
        }
        self.agent_ready()
    }

    /// Ends the controller, and has the cluster without one until [`Self::controller_back`].
    ///
    /// # Errors
    /// When it does not go.
    pub fn controller_away(&self) -> Result<()> {
        self.kubectl(&["scale", "-n", SYSTEM, CONTROLLER, "--replicas=0"])?;
        eventually(40, "the controller is gone", || {
            ensure!(self.controller_pid().is_err(), "it runs");
            Ok(())
        })
    }

    /// Lets a controller run again, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn controller_back(&self) -> Result<()> {
        self.kubectl(&["scale", "-n", SYSTEM, CONTROLLER, "--replicas=1"])?;
        self.kubectl(&["rollout", "status", "-n", SYSTEM, CONTROLLER, "--timeout=90s"]).map(drop)
    }

    /// Ends the controller by SIGKILL; the kubelet starts it again.
    ///
    /// # Errors
    /// When none runs.
    pub fn kill_controller(&self) -> Result<()> {
        signal(self.controller_pid()?, "KILL")
    }

    fn controller_pid(&self) -> Result<i32> {
        let tasks = self.node().tasks()?.into_iter();
        let is_its =
            |task: &Task| task.namespace == SYSTEM && task.container.as_deref() == Some("controller");
        tasks.filter(is_its).find_map(|task| task.pid).context("no controller runs")
    }

    /// The node as after its installation: every service runs, and so does the agent, with no restart that the
    /// kubelet would hold against it.
    pub(crate) fn mend(&self) -> Result<()> {
        if self.service("pid", "node").is_err() {
            self.power_on()?;
        }
        for name in ["apiserver", "runtime", "kubelet"] {
            // One that does not run is not paused.
            let _ = self.service("resume", name);
            self.service("start", name)?;
        }
        self.agent_back()?;
        if restarts_of_containers(self)? != 0 {
            self.kubectl(&["delete", "pods", "-n", SYSTEM, "-l", AGENT_PODS])?;
            self.agent_ready()?;
        }
        Ok(())
    }

    /// Has the agent run CNI plugins with the node's files, as `deploy/host-mounts` does, or with its own again.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn plugins_see_the_node(&self, yes: bool) -> Result<()> {
        let variable = "NETCLAIM_CNI_MOUNT_NAMESPACE";
        if yes {
            let patch = project("deploy/host-mounts/agent.yaml");
            self.kubectl(&["patch", "-n", SYSTEM, AGENT, "--patch-file", &patch.to_string_lossy()])?;
            // The node's first process is none of its own: its processes are the machine's.
            let namespace = format!("{variable}=/proc/{}/ns/mnt", self.node().pid());
            self.kubectl(&["set", "env", "-n", SYSTEM, AGENT, &namespace])?;
        } else {
            let patch = r#"{"spec": {"template": {"spec": {"hostPID": null}}}}"#;
            self.kubectl(&["patch", "-n", SYSTEM, AGENT, "-p", patch])?;
            self.kubectl(&["set", "env", "-n", SYSTEM, AGENT, &format!("{variable}-")])?;
            self.kubectl(&["apply", "-k", &self.manifests()?.to_string_lossy()])?;
        }
        self.agent_ready()
    }

    fn select_nodes(&self, selector: Value) -> Result<()> {
        let patch = json!({"spec": {"template": {"spec": {"nodeSelector": selector}}}}).to_string();
        self.kubectl(&["patch", "-n", SYSTEM, AGENT, "-p", &patch]).map(drop)
    }
}

/// The node of the cluster in `dir`.
fn node(dir: &Path) -> Result<Arc<Node>> {
    let pid = output(Command::new(project("tests/node/svc.sh")).arg(dir).args(["pid", "node"]))?;
    let runtime = Runtime::parse(std::fs::read_to_string(dir.join("runtime"))?.trim())?;
    Ok(Arc::new(Node::new(pid.trim().parse()?, runtime)))
}

/// The image archive: of `$NETCLAIM_IMAGE`, or built with Cargo's profile `$NETCLAIM_PROFILE`, by default `quick`.
fn image() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("NETCLAIM_IMAGE") {
        return Ok(path.into());
    }
    let path = project("target/netclaim-failpoints.tar");
    eprintln!("==> building the image {}", path.display());
    let profile = std::env::var("NETCLAIM_PROFILE").unwrap_or_else(|_| "quick".to_owned());
    let how = [("NETCLAIM_FEATURES", "netclaim-kubelet-plugin/failpoints"), ("NETCLAIM_PROFILE", &profile)];
    let mut build = Command::new(project("deploy/image/build.sh"));
    // What cargo tells a test of its own package: ring would be built anew for it, and all that needs TLS.
    let of_package = |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(of_package) {
        build.env_remove(name);
    }
    let built = build.envs(how).arg(&path).status()?;
    ensure!(built.success(), "deploy/image/build.sh failed: see above");
    Ok(path)
}
