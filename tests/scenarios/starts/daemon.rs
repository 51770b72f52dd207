//! A program of another project on the node: a process of its own in the node's mounts and network, with the
//! identity that its pod would have.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Running, Test};
use serde_json::{Value, json};

/// Where a pod finds its service account's token.
const IDENTITY: &str = "/run/secrets/kubernetes.io/serviceaccount";
const NAMESPACE: &str = "kube-system";
/// The peers' folders in `tests/bench/peers`, and their modules.
const MULTUS: (&str, &str) = ("multus", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4");
const DRANET: (&str, &str) = ("dranet", "sigs.k8s.io/dranet");

/// The programs, built from pinned Go modules.
pub struct Programs(PathBuf);

impl Programs {
    /// Builds them, unless they are built.
    pub fn build() -> Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/peers/build.sh");
        let output = Command::new(script).stderr(std::process::Stdio::inherit()).output()?;
        ensure!(output.status.success(), "{script} failed: see above");
        Ok(Self(String::from_utf8(output.stdout)?.trim().into()))
    }

    /// The path of a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// The peers' names and versions, as their `go.mod` files pin them.
pub fn versions() -> Result<Vec<String>> {
    let version = |(peer, module): (&str, &str)| {
        let path = format!("{}/bench/peers/{peer}/go.mod", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(&path)?;
        let of = |line: &str| {
            Some(line.trim().strip_prefix(module)?.strip_prefix(' ')?.split(' ').next()?.to_owned())
        };
        let version = text.lines().find_map(of);
        Ok(format!("{peer} {}", version.with_context(|| format!("no version of {module} in {path}"))?))
    };
    [MULTUS, DRANET].into_iter().map(version).collect()
}

/// The rights of a service account, while this value lives.
pub struct Account<'a> {
    test: &'a Test<'a>,
    name: &'static str,
}

impl<'a> Account<'a> {
    /// Creates the account with these rules of a ClusterRole, and puts its token where a pod would find it.
    pub fn new(test: &'a Test<'a>, name: &'static str, rules: &Value) -> Result<Self> {
        let account = Self { test, name };
        account.remove();
        let metadata = json!({"name": name});
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata,
             "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
             "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]},
        ]});
        test.cluster.kubectl_with(&["create", "-f", "-"], &list.to_string())?;
        // A pod's token names its node, too.
        let words = ["create", "token", name, "-n", NAMESPACE, "--duration=2h"];
        let bound = ["--bound-object-kind=Node", "--bound-object-name=node0"];
        let token = test.cluster.kubectl(&[words.as_slice(), &bound].concat())?;
        let dir = test.cluster.node().path(IDENTITY);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("token"), token.trim())?;
        fs::write(dir.join("namespace"), NAMESPACE)?;
        fs::copy(test.cluster.dir().join("pki/ca.crt"), dir.join("ca.crt"))?;
        Ok(account)
    }

    /// Its user at the API server.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{NAMESPACE}:{}", self.name)
    }

    fn remove(&self) {
        for kind in ["clusterrole", "clusterrolebinding", "serviceaccount"] {
            let _ = self.test.cluster.kubectl(&[
                "delete",
                "--ignore-not-found",
                "-n",
                NAMESPACE,
                kind,
                self.name,
            ]);
        }
    }
}

impl Drop for Account<'_> {
    fn drop(&mut self) {
        self.remove();
        let _ = fs::remove_dir_all(self.test.cluster.node().path("/run/secrets"));
    }
}

/// A process on the node that ends with this value, or with this program.
pub struct Daemon {
    command: Vec<String>,
    log: PathBuf,
    running: Option<Running>,
}

impl Daemon {
    /// Starts a program on the node, with environment variables `NAME=VALUE`, and its output in a file of
    /// `logs`.
    pub fn start(test: &Test<'_>, program: &Path, env: &[&str], args: &[&str], logs: &Path) -> Result<Self> {
        let server =
            test.cluster.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
        let host = server.trim().trim_start_matches("https://").to_owned();
        let node = test.cluster.node().pid().to_string();
        let program_path = program.to_string_lossy().into_owned();
        // The node does not inherit the user's environment.
        let mut command: Vec<String> =
            ["--pdeathsig", "KILL", "nsenter", "--target", &node, "--mount", "--net", "--"]
                .map(str::to_owned)
                .to_vec();
        command.extend(["env", "-i", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"].map(str::to_owned));
        command.extend([format!("KUBERNETES_SERVICE_HOST={host}"), "KUBERNETES_SERVICE_PORT=443".to_owned()]);
        command.extend(env.iter().map(|word| (*word).to_owned()));
        command.push(program_path);
        command.extend(args.iter().map(|word| (*word).to_owned()));
        let name = program.file_name().context("a program has a name")?.to_string_lossy().into_owned();
        let mut daemon = Self { command, log: logs.join(format!("{name}.log")), running: None };
        daemon.restart()?;
        Ok(daemon)
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Starts it again.
    pub fn restart(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        self.running = Some(Running::logged(Command::new("setpriv").args(&self.command), log)?);
        Ok(())
    }

    /// Its process.
    pub fn pid(&self) -> Result<i32> {
        self.running.as_ref().context("it does not run")?.pid()
    }
}
