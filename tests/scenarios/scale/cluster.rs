//! The cluster without kubelets that simulated nodes are on, and the controller beside it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use netclaim_tests::{Cluster, Usage, setting};

/// The deadline for all nodes to publish.
pub const PUBLISHING: Duration = Duration::from_secs(600);
/// The deadline of other waits, but for pods.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// Nodes, unless `$NETCLAIM_SCALE_NODES` says otherwise.
const NODES: usize = 1000;

/// Runs a measurement on its own etcd and API server, with so many nodes to simulate.
pub fn on_cluster(name: &str, measure: impl AsyncFnOnce(&Cluster, usize) -> Result<()>) -> Result<()> {
    let count = setting("NETCLAIM_SCALE_NODES", NODES)?;
    let dir = PathBuf::from(format!("/var/tmp/netclaim-scale-{name}-{}", std::process::id()));
    let cluster = Cluster::start_api_only(&dir)?;
    let measured = tokio::runtime::Runtime::new()?.block_on(measure(&cluster, count));
    Cluster::stop(&dir)?;
    match &measured {
        Ok(()) => std::fs::remove_dir_all(&dir)?,
        Err(_) => eprintln!("logs: {}/log", dir.display()),
    }
    measured
}

/// The kubeconfig of the cluster's admin.
pub fn admin(cluster: &Cluster) -> PathBuf {
    cluster.dir().join("kubeconfig")
}

/// Connects with a kubeconfig.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    Ok(Client::try_from(netclaim_process::kubernetes::config("netclaim-tests", Some(kubeconfig)).await?)?)
}

/// Creates netclaim's CRDs, and waits until the API server serves them.
pub fn create_crds(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["apply", "-k", concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds")])?;
    cluster.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"]).map(drop)
}

/// Creates the ServiceAccount that pods need: without a controller manager nothing else does.
pub fn create_account(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["create", "serviceaccount", "default"]).map(drop)
}

/// The controller as a process, from the same build as this program.
pub struct Controller(Child);

impl Controller {
    /// Starts it with this kubeconfig.
    pub fn start(cluster: &Cluster, kubeconfig: &Path) -> Result<Self> {
        Self::start_with(cluster, kubeconfig, &[])
    }

    /// The same, with more arguments.
    pub fn start_with(cluster: &Cluster, kubeconfig: &Path, args: &[&str]) -> Result<Self> {
        let this = std::env::current_exe()?;
        let program = this.ancestors().nth(2).context("no target folder")?.join("netclaim-controller");
        let log = File::options().create(true).append(true).open(cluster.dir().join("log/controller.log"))?;
        let child = Command::new(&program)
            .env("NETCLAIM_KUBECONFIG", kubeconfig)
            .args(["--metrics-address", "127.0.0.1:0"])
            .args(args)
            .stderr(log)
            .spawn();
        Ok(Self(child.with_context(|| {
            format!("cannot run {}: build it (cargo build -p netclaim-controller)", program.display())
        })?))
    }

    /// Reads what it uses.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(self.0.id().try_into()?)
    }

    /// Ends it by SIGTERM, so that it releases its lease for the next one.
    pub fn stop(&mut self) -> Result<()> {
        Command::new("kill").arg(self.0.id().to_string()).status()?;
        let status = self.0.wait()?;
        ensure!(status.success(), "the controller ended with {status}: see log/controller.log");
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
