//! An earlier version becomes this one, and this one that again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::helm::{Helm, chart};
use netclaim_tests::{Test, output, project};

use crate::helm::{and_then_as_before, timed, uninstall};
use crate::left::nothing_is_left;

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
            let mut build = Command::new(folder.join("deploy/image/build.sh"));
            // Its dependencies are this version's, but for a few.
            build.env("CARGO_TARGET_DIR", project("target/upgrade/target")).env("NETCLAIM_PROFILE", "quick");
            build.current_dir(&folder).arg(&archive).arg(format!("localhost/netclaim:{tag}"));
            timed("built", || {
                let built = build.stdout(Stdio::null()).status().context("cannot build it")?;
                ensure!(built.success(), "the build of {revision} ends with {built}");
                Ok(())
            })?;
        }
        test.cluster.load_image(&archive)?;
        Ok(Self { folder, tag })
    }

    fn install(&self, helm: &Helm<'_>) -> Result<String> {
        let image = format!("image.repository=localhost/netclaim,image.tag={}", self.tag);
        let chart = self.folder.join("deploy/helm/netclaim");
        let release = ["install", "netclaim", &chart.to_string_lossy(), "--wait", "--timeout=120s"];
        helm.run(&[release.as_slice(), &["--set", &image, "--set", "crds.keep=false"]].concat())
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
        uninstall(helm)?;
        test.cluster.kustomization("delete", "deploy/manifests")?;
        timed("installed as it was", || earlier.install(helm))?;
        let network = test.macvlan("a")?;
        test.pod_on("node0", "p", &network)?;
        test.pod_on("node1", "q", &network)?;
        test.runs("p")?;
        test.runs("q")?;
        let containers =
            || Ok::<_, anyhow::Error>((test.container("p", "shell")?.id, test.container("q", "shell")?.id));
        let before = containers()?;

        let chart = chart();
        let upgrade = ["upgrade", "netclaim", &chart.to_string_lossy(), "--wait", "--timeout=120s"];
        let image =
            ["--set", "image.repository=localhost/netclaim,image.tag=dev", "--set", "crds.keep=false"];
        timed("upgraded", || helm.run(&[upgrade.as_slice(), &image].concat()))?;
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
        test.kubectl(&["delete", "network,deviceclass", &network])?;
        timed("uninstalled", || uninstall(helm))?;
        nothing_is_left(test.cluster, &[])
    })
}
