//! Nodes that keep their folders elsewhere, and whose state directory is not executable: the values of
//! docs/distributions.md.

use anyhow::{Result, ensure};
use netclaim_tests::helm::chart;
use netclaim_tests::objects::list;
use netclaim_tests::{Cluster, Test, eventually, names};

use crate::helm::{and_then_as_before, timed, uninstall};
use crate::status::says;

/// Folders of the node, and where other distributions have such: there is the same in both.
const ELSEWHERE: [(&str, &str); 3] = [
    ("/var/lib/kubelet", "/opt/k0s/kubelet"),
    ("/run/nri", "/run/k0s/nri"),
    ("/opt/cni/bin", "/opt/kubernetes/bin"),
];
/// The values for them. As on Container-Optimized OS, the state is below the plugins, which are mounted
/// read-only. The runtime reads CDI specs of /etc/cdi, too.
const VALUES: &str = "agent.kubeletDir=/opt/k0s/kubelet,agent.nriSocket=/run/k0s/nri/nri.sock,agent.cniBinDir=/opt/kubernetes/bin,\
                      agent.stateDir=/opt/kubernetes/bin/netclaim,agent.runDir=/run/k0s/netclaim,agent.cdiDir=/etc/cdi,\
                      agent.cniStateDir=/opt/k0s/cni";
/// A folder that no node has.
const MISSING: &str = "/opt/missing/bin";

fn on_all_nodes(cluster: &Cluster, script: &str) -> Result<()> {
    cluster.nodes().iter().try_for_each(|node| cluster.on(&node.name(), &["bash", "-c", script]).map(drop))
}

/// Has the nodes be as on another distribution.
fn move_folders(cluster: &Cluster) -> Result<()> {
    let binds = ELSEWHERE.map(|(here, there)| format!("mkdir -p {there} && mount --bind {here} {there}"));
    on_all_nodes(
        cluster,
        &format!("{} && mount -o remount,bind,noexec /var/lib/netclaim", binds.join(" && ")),
    )
}

fn move_folders_back(cluster: &Cluster) -> Result<()> {
    let unbinds = ELSEWHERE.map(|(_, there)| format!("umount -l {there}")).join("; ");
    let folders = format!("rm -rf /opt/k0s /run/k0s /opt/kubernetes {MISSING}");
    // The state is in a folder of the plugins, which the node has at another path, too.
    let script = format!(
        "{unbinds}; mount -o remount,bind,exec /var/lib/netclaim; rm -rf /opt/cni/bin/netclaim; {folders}"
    );
    on_all_nodes(cluster, &script)
}

pub fn an_agent_whose_state_directory_is_not_executable_says_which_value_to_set(
    test: &Test<'_>,
) -> Result<()> {
    let cluster = test.cluster;
    move_folders(cluster)?;
    and_then_as_before(test, |helm| {
        let shown = || -> Result<()> {
            let args = ["--take-ownership", "--force-conflicts", "--set"];
            let missing = format!("agent.cniBinDir={MISSING}");
            helm.release_of(&chart(), "dev", "install", &[&args[..], &[missing.as_str()]].concat())?;
            let reason = "no claim is prepared: the container runtime cannot run the hook \
                          /var/lib/netclaim/bin/netclaim-hook: its file system is mounted noexec. Set agent.stateDir of the chart";
            eventually(120, "the agent is not ready and says why", || {
                let answer = cluster.ask_agent("/readyz")?;
                ensure!(answer.contains(" 503 ") && answer.contains(reason), "{answer}");
                Ok(())
            })?;
            says(
                test,
                &[],
                &[&format!("* 3 nodes (node0, node1, node2): the agent is not ready: {reason}")],
            )?;
            eventually(30, "no device is published", || {
                let slices = cluster.get(&["resourceslices"])?;
                ensure!(list(&slices["items"]).next().is_none(), "{slices}");
                Ok(())
            })?;
            for node in cluster.nodes() {
                ensure!(node.path(MISSING).is_dir(), "the kubelet of {} has not made {MISSING}", node.name());
            }

            timed("installed with the values", || {
                helm.release("upgrade", &["--force-conflicts", "--reset-values", "--set", VALUES])
            })?;
            let network = test.macvlan("a")?;
            test.pod_on("node0", "p", &network)?;
            test.runs_with("p", &["net1"])?;
            let journal = names(&cluster.node().path("/opt/kubernetes/bin/netclaim/journal"))?;
            ensure!(journal.iter().any(|name| !name.starts_with('.')), "{journal:?}");
            test.delete_pod("p")
        }();
        // Also after a failure.
        let uninstalled = uninstall(helm).map(drop);
        let moved = move_folders_back(cluster);
        shown.and(uninstalled).and(moved)
    })
}
