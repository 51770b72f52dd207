//! An earlier version becomes this one, and this one that again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::helm::Helm;
use netclaim_tests::{Test, build_image, output, project};
use serde_json::json;

use crate::helm::{MANIFESTS, and_then_as_before, blocks_are_given_back, timed, uninstall};
use crate::left::nothing_is_left;

/// Uninstalling removes the definitions, too.
const DEFINITIONS: &str = "crds.keep=false";

/// A revision of this repository: its chart, and its image on the cluster's nodes.
struct Earlier {
    folder: PathBuf,
    tag: String,
}

impl Earlier {
    /// Checks out and builds a revision.
    fn build(test: &Test<'_>, revision: &str) -> Result<Self> {
        let named = output(git().args(["rev-parse", "--short=12", &format!("{revision}^{{commit}}")]))?;
        let tag = named.trim().to_owned();
        let folder = project("target/upgrade").join(&tag);
        let archive = folder.with_extension("tar");
        if !archive.exists() {
            check_out(&tag, &folder)?;
            // One for all earlier versions: their dependencies are the same, but for a few.
            let target = project("target/upgrade/target");
            let settings = [("CARGO_TARGET_DIR", &*target.to_string_lossy())];
            let name = format!("localhost/netclaim:{tag}");
            timed("built", || build_image(&folder, &archive, &name, &settings))?;
        }
        test.cluster.load_image(&archive)?;
        Ok(Self { folder, tag })
    }

    fn install(&self, helm: &Helm<'_>) -> Result<String> {
        let chart = self.folder.join("deploy/helm/netclaim");
        let args = ["--create-namespace", "--wait", "--timeout=120s", "--set", DEFINITIONS];
        helm.release_of(&chart, &self.tag, "install", &args)
    }
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(project("."));
    git
}

fn check_out(revision: &str, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut archive = git().args(["archive", revision]).stdout(Stdio::piped()).spawn()?;
    let files = archive.stdout.take().context("no output")?;
    let unpacked = Command::new("tar").arg("-x").current_dir(folder).stdin(files).status()?;
    ensure!(archive.wait()?.success() && unpacked.success(), "cannot check out {revision}");
    Ok(())
}

pub fn an_earlier_version_is_upgraded_and_rolled_back_under_running_pods(test: &Test<'_>) -> Result<()> {
    let Some(revision) = std::env::var("NETCLAIM_UPGRADE_FROM").ok().filter(|set| !set.is_empty()) else {
        return test.skip("it is built from an earlier revision: make test-upgrade FROM=REVISION");
    };
    let earlier = Earlier::build(test, &revision)?;
    and_then_as_before(test, |helm| {
        blocks_are_given_back(test)?;
        test.cluster.kustomization("delete", MANIFESTS)?;
        timed("installed as it was", || earlier.install(helm))?;
        // No address is on two nodes.
        let network = test.network("a", |network| {
            network["spec"]["addresses"] = json!({"ranges": [{"subnet": test.subnet(0)}]});
            network["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
        })?;
        test.pod_on("node0", "p", &network)?;
        test.pod_on("node1", "q", &network)?;
        test.runs("p")?;
        test.runs("q")?;
        test.ping("p", "q", "net1")?;
        let containers =
            || Ok::<_, anyhow::Error>((test.container("p", "shell")?.id, test.container("q", "shell")?.id));
        let before = containers()?;

        timed("upgraded", || helm.release("upgrade", &["--set", DEFINITIONS]))?;
        ensure!(containers()? == before, "a pod was started again");
        test.ping("p", "q", "net1")?;
        test.pod_on("node0", "r", &network)?;
        test.runs_with("r", &["net1"])?;
        test.ping("r", "q", "net1")?;
        // The earlier version has attached it.
        test.delete_pod("p")?;

        timed("rolled back", || helm.run(&["rollback", "netclaim", "1", "--wait", "--timeout=120s"]))?;
        test.ping("r", "q", "net1")?;
        test.start_pod("s", &network)?;
        for pod in ["q", "r", "s"] {
            test.delete_pod(pod)?;
        }
        test.nodes_are_clean()?;
        test.kubectl(&["delete", "claimnetwork,deviceclass", &network])?;
        timed("all blocks were given back", || blocks_are_given_back(test))?;
        timed("uninstalled", || uninstall(helm))?;
        nothing_is_left(test.cluster, &[])
    })
}
