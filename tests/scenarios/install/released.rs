//! The files of a release, as `make release` writes and the workflow publishes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{AGENT, CONTROLLER, SYSTEM, Test, as_released, output, project};

use crate::helm::{MANIFESTS, and_then_as_before, blocks_are_given_back, timed, uninstall};
use crate::left::nothing_is_left;

/// The version of the workspace, which that of the chart has to be.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The images of netclaim, and what runs in each.
const IMAGES: [(&str, &str); 2] = [("netclaim-agent", AGENT), ("netclaim-controller", CONTROLLER)];

/// Writes the chart's archive and the manifests of a release whose images are on no registry, but on all
/// nodes.
fn files(test: &Test<'_>) -> Result<PathBuf> {
    let folder = test.cluster.dir().join("release");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir(&folder)?;
    output(Command::new(project("deploy/release/chart.sh")).arg(&folder).args(["localhost", VERSION]))?;
    for (image, _) in IMAGES {
        let [built, released] = ["dev", VERSION].map(|tag| format!("localhost/{image}:{tag}"));
        for node in test.cluster.nodes() {
            let tag = ["ctr", "-n", "k8s.io", "images", "tag", "--force", &built, &released];
            test.cluster.on(&node.name(), &tag)?;
        }
    }
    Ok(folder)
}

/// Makes sure that the programs are those of the release, and that pods on two nodes reach each other by a
/// claimed network.
fn serves_pods(test: &Test<'_>) -> Result<()> {
    test.cluster.agent_ready()?;
    test.cluster.controller_ready()?;
    for (image, program) in IMAGES {
        let object = test.cluster.get(&["-n", SYSTEM, program])?;
        let mut images =
            list(&object["spec"]["template"]["spec"]["containers"]).map(|one| text(&one["image"]));
        let released = format!("localhost/{image}:{VERSION}");
        ensure!(images.all(|image| image == released), "{program} has another image than {released}");
    }
    let network = test.macvlan("a")?;
    for (name, node) in [("p", "node0"), ("q", "node1")] {
        test.pod_on(node, name, &network)?;
    }
    test.runs_with("p", &["net1"])?;
    test.runs_with("q", &["net1"])?;
    test.ping("p", "q", "net1")?;
    test.delete_pod("p")?;
    test.delete_pod("q")?;
    test.kubectl(&["delete", "claimnetwork,deviceclass", &network])?;
    blocks_are_given_back(test).map(drop)
}

/// Applies or deletes the manifests of a release.
fn manifests(test: &Test<'_>, verb: &str, folder: &Path) -> Result<()> {
    let file = folder.join("netclaim.yaml");
    let mut args = vec![verb, "-f", file.to_str().unwrap_or_default()];
    args.extend(["--ignore-not-found", "--timeout=120s"].into_iter().filter(|_| verb == "delete"));
    test.cluster.kubectl(&args).map(drop)
}

pub fn the_files_of_a_release_install_netclaim(test: &Test<'_>) -> Result<()> {
    if !as_released() {
        return test.skip("it takes minutes: make test-released");
    }
    let folder = files(test)?;
    and_then_as_before(test, |helm| {
        blocks_are_given_back(test)?;
        test.cluster.kustomization("delete", MANIFESTS)?;
        nothing_is_left(test.cluster, &[])?;

        let chart = folder.join(format!("netclaim-{VERSION}.tgz"));
        let install = ["install", "netclaim", &chart.to_string_lossy(), "--create-namespace"];
        let wait = ["--wait", "--timeout=120s"];
        timed("the chart was installed", || helm.run(&[install.as_slice(), &wait].concat()))?;
        timed("pods of the chart's installation ran", || serves_pods(test))?;
        uninstall(helm)?;
        // The chart leaves the definitions.
        manifests(test, "delete", &folder)?;
        nothing_is_left(test.cluster, &[])?;

        manifests(test, "apply", &folder)?;
        timed("pods of the manifests' installation ran", || serves_pods(test))?;
        manifests(test, "delete", &folder)?;
        nothing_is_left(test.cluster, &[])
    })
}
