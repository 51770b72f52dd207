//! Nodes whose root is read-only, which have no shell and few CNI plugins, as those of Talos and
//! Bottlerocket: the values of docs/distributions.md.

use std::fs;

use anyhow::{Result, ensure};
use netclaim_tests::helm::{Helm, chart};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Cluster, SYSTEM, Test, eventually, names};

use crate::helm::{KEPT, and_then_as_before, nodes_have_no_sockets, timed, uninstall};
use crate::left::nothing_is_left;
use crate::plugins::load_image_of_plugins;

const BIN: &str = "/opt/cni/bin";
/// Where the scenario keeps the other plugins: the agent looks at files only.
const AWAY: &str = "/opt/cni/bin/.away";
/// The plugins that the nodes keep: those of the runtime's own network.
const OF_CLUSTER: [&str; 3] = ["host-local", "loopback", "ptp"];
/// A folder that can be made on other nodes only.
const READ_ONLY: &str = "/opt/netclaim";

fn take_plugins_away(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        let (bin, away) = (node.path(BIN), node.path(AWAY));
        let other = names(&bin)?.into_iter().filter(|name| !OF_CLUSTER.contains(&name.as_str()));
        let other: Vec<String> = other.collect();
        fs::create_dir(&away)?;
        other.iter().try_for_each(|name| fs::rename(bin.join(name), away.join(name)))?;
    }
    Ok(())
}

fn put_plugins_back(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        let (bin, away) = (node.path(BIN), node.path(AWAY));
        names(&away)?.iter().try_for_each(|name| fs::rename(away.join(name), bin.join(name)))?;
        if away.exists() {
            fs::remove_dir(away)?;
        }
    }
    Ok(())
}

/// Makes sure that the nodes are what this scenario is about.
fn are_sealed(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes().iter().map(|node| node.name()) {
        for (folder, is_writable) in
            [("/", false), ("/usr/lib", false), ("/etc", false), ("/opt", false), ("/var/lib", true)]
        {
            let writable = cluster.on(&node, &["test", "-w", folder]);
            ensure!(writable.is_ok() == is_writable, "{node}: {folder}: {writable:?}");
        }
        for shell in ["/bin/sh", "/bin/bash", "/usr/bin/env"] {
            let run = cluster.on(&node, &[shell, "-c", "true"]).err().map(|error| format!("{error:#}"));
            let is_denied = run.as_ref().is_some_and(|error| error.contains("Permission denied"));
            ensure!(is_denied, "{node}: {shell}: {run:?}");
        }
    }
    Ok(())
}

/// The agents' pods wait for a folder that cannot be made, and their events name it.
fn events_name_the_read_only_folder(cluster: &Cluster) -> Result<()> {
    eventually(60, "the events of the agents' pods name the folder that cannot be made", || {
        let events = cluster.get(&["events", "-n", SYSTEM])?;
        let mounts = list(&events["items"]).filter(|event| event["reason"] == "FailedMount");
        let said: Vec<String> = mounts.map(|event| text(&event["message"])).collect();
        let expected = format!("mkdir {READ_ONLY}: read-only file system");
        ensure!(said.iter().any(|message| message.contains(&expected)), "{said:?}");
        Ok(())
    })
}

fn serve(test: &Test<'_>, helm: &Helm<'_>) -> Result<()> {
    let image = "plugins.image=localhost/cni-plugins:test";
    let wrong = format!("{image},agent.stateDir={READ_ONLY}");
    let args = ["--take-ownership", "--force-conflicts", "--set", &wrong];
    helm.release_of(&chart(), "dev", "install", &args)?;
    events_name_the_read_only_folder(test.cluster)?;

    timed("installed with the values", || {
        helm.release("upgrade", &["--force-conflicts", "--reset-values", "--set", image])
    })?;
    let network = test.macvlan("a")?;
    test.pod_on("node0", "p", &network)?;
    test.pod_on("node0", "q", &network)?;
    test.runs_with("p", &["net1"])?;
    test.runs_with("q", &["net1"])?;
    test.ping("p", "q", "net1")?;
    timed("a sandbox was replaced", || test.replace_sandbox("p"))?;
    test.runs("p")?;
    test.began_with("p", &["net1"])?;
    test.ping("q", "p", "net1")?;
    test.delete_pod("p")?;
    test.delete_pod("q")?;
    eventually(20, "the journal is empty", || {
        let journal = test.cluster.node().journal()?;
        ensure!(journal.is_empty(), "{journal:?}");
        Ok(())
    })
}

pub fn nodes_with_a_read_only_root_and_without_a_shell_give_pods_networks(test: &Test<'_>) -> Result<()> {
    let cluster = test.cluster;
    load_image_of_plugins(cluster)?;
    and_then_as_before(test, |helm| {
        let shown = || -> Result<()> {
            take_plugins_away(cluster)?;
            cluster.seal()?;
            are_sealed(cluster)?;
            serve(test, helm)
        }();
        // Also after a failure.
        let uninstalled = uninstall(helm).map(drop);
        let left = shown.and(uninstalled).and_then(|()| {
            nothing_is_left(cluster, &KEPT)?;
            nodes_have_no_sockets(test)
        });
        let unsealed = cluster.unseal();
        let put_back = put_plugins_back(cluster);
        left.and(unsealed).and(put_back)?;
        // The agent is gone: nobody has cleaned up since.
        test.nodes_are_clean()
    })
}
