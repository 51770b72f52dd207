//! What the images of netclaim have in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::list;
use netclaim_tests::{SYSTEM, Task, Test};

/// Every node pulls this one. What it does not need is elsewhere.
const OF_AGENT: [&str; 8] = [
    "bin/netclaim-hook",
    "bin/netclaim-kubelet-plugin",
    "bin/netclaim-parent",
    "bin/netclaim-primary",
    "libexec/cni/netclaim-bandwidth",
    "libexec/cni/netclaim-link",
    "libexec/cni/netclaim-route",
    "share/licenses/netclaim/LICENSE",
];
const OF_CONTROLLER: [&str; 3] =
    ["bin/netclaim-controller", "bin/netclaimctl", "share/licenses/netclaim/LICENSE"];

/// The files below `folder`, by their paths from `root`.
fn files(root: &Path, folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files(root, &entry.path(), found)?;
        } else {
            found.insert(entry.path().strip_prefix(root)?.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// The files of a container's /usr, where only its image puts any.
fn usr(container: &Task) -> Result<BTreeSet<String>> {
    let usr = format!("/proc/{}/root/usr", container.pid.context("it does not run")?);
    let mut found = BTreeSet::new();
    files(Path::new(&usr), Path::new(&usr), &mut found)?;
    Ok(found)
}

pub fn agents_and_controllers_have_images_with_only_their_own_programs(test: &Test<'_>) -> Result<()> {
    let agents = test.cluster.node().tasks()?;
    let is_agent = |task: &&Task| task.namespace == SYSTEM && task.container.as_deref() == Some("agent");
    let agent = agents.iter().find(is_agent).context("no agent runs")?;
    let controllers = test.cluster.controllers()?;
    let controller = controllers.first().context("no controller runs")?;
    for (container, expected) in [(agent, OF_AGENT.as_slice()), (controller, &OF_CONTROLLER)] {
        let found = usr(container)?;
        ensure!(found.iter().eq(expected), "{:?} has {found:?}", container.container);
    }
    let mut images = BTreeSet::new();
    for task in [agent, controller] {
        let pod = test.cluster.get(&["-n", SYSTEM, "pod", &task.pod])?;
        images.extend(list(&pod["status"]["containerStatuses"]).map(|status| status["imageID"].to_string()));
    }
    ensure!(images.len() == 2, "agent and controller run from {images:?}");
    Ok(())
}
