//! Helm and kustomize on a real cluster.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::helm::Helm;
use netclaim_tests::objects::list;
use netclaim_tests::{AGENT, SYSTEM, Test, eventually};
use serde_json::Value;

use crate::left::nothing_is_left;

/// What Helm leaves: the definitions with their objects.
pub const KEPT: [&str; 5] =
    ["CustomResourceDefinition/", "ClaimNetwork/", "APIService/", "DeviceClass/", "Address"];

/// Does something to the installation, and installs the manifests again whatever became of it.
pub fn and_then_as_before(test: &Test<'_>, change: impl FnOnce(&Helm<'_>) -> Result<()>) -> Result<()> {
    let helm = Helm::new(test.cluster)?;
    let changed = change(&helm);
    let restored = restore(test, &helm);
    changed.and(restored)
}

fn restore(test: &Test<'_>, helm: &Helm<'_>) -> Result<()> {
    uninstall(helm)?;
    test.cluster.manifests("apply")?;
    test.cluster.agent_ready()?;
    test.cluster.controller_ready()
}

pub fn uninstall(helm: &Helm<'_>) -> Result<String> {
    helm.run(&["uninstall", "netclaim", "--ignore-not-found", "--wait", "--timeout=120s"])
}

/// Waits as the guide says: without the agents, blocks would keep their finalizers, and the definitions with
/// them. An earlier scenario may have left some, because an agent gives a block back 10 s after its own start
/// at the earliest.
pub fn blocks_are_given_back(test: &Test<'_>) -> Result<String> {
    test.kubectl(&["wait", "--for=delete", "addressblocks.netclaim.dev", "--all", "--timeout=60s"])
}

/// Does a step, and prints how long it took.
pub(crate) fn timed<T>(done: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let result = step().with_context(|| format!("not {done}"))?;
    eprintln!("       {done} after {:.1} s", begin.elapsed().as_secs_f64());
    Ok(result)
}

/// The value of a variable of the agent.
fn variable(test: &Test<'_>, name: &str) -> Result<Option<String>> {
    let agent = test.cluster.get(&["-n", SYSTEM, AGENT])?;
    let mut variables = list(&agent["spec"]["template"]["spec"]["containers"][0]["env"]);
    Ok(variables.find(|variable| variable["name"] == name).map(|found| found["value"].to_string()))
}

/// Whether a pod has the annotation `network-status` with its network, as the claim's status has it.
fn is_annotated(test: &Test<'_>, pod: &str, network: &str) -> Result<()> {
    let pod = test.get("pod", pod)?;
    let annotation = &pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"];
    let annotation = annotation.as_str().context("the pod has no annotation")?;
    let status: Value = serde_json::from_str(annotation)?;
    let entry = &status[0];
    ensure!(entry["name"] == network && entry["interface"] == "net1", "{status}");
    let is_address = entry["ips"][0].as_str().is_some_and(|ip| ip.parse::<std::net::IpAddr>().is_ok());
    ensure!(is_address && entry["mac"].is_string(), "{status}");
    Ok(())
}

pub fn helm_takes_over_upgrades_rolls_back_and_uninstalls(test: &Test<'_>) -> Result<()> {
    and_then_as_before(test, |helm| {
        let network = test.macvlan("a")?;
        test.start_pod("p", &network)?;
        let container = test.container("p", "shell")?.id;

        // What kubectl has applied stays, and is Helm's from now on.
        timed("installed", || helm.release("install", &["--take-ownership", "--force-conflicts"]))?;
        test.start_pod("q", &network)?;

        let values = "agent.logJSON=true,agent.networkStatusAnnotation=true";
        // kubectl counts as an owner of what it has applied, also after Helm has taken it over.
        timed("upgraded", || helm.release("upgrade", &["--force-conflicts", "--set", values]))?;
        ensure!(variable(test, "NETCLAIM_LOG_JSON")?.is_some(), "it is not upgraded");
        test.start_pod("r", &network)?;
        for pod in ["p", "r"] {
            eventually(20, "the annotation for programs made for Multus", || {
                is_annotated(test, pod, &network)
            })?;
        }

        timed("rolled back", || {
            helm.run(&["rollback", "netclaim", "1", "--force-conflicts", "--wait", "--timeout=120s"])
        })?;
        ensure!(variable(test, "NETCLAIM_LOG_JSON")?.is_none(), "it is not rolled back");
        test.start_pod("s", &network)?;
        ensure!(test.container("p", "shell")?.id == container, "a pod was started again");
        test.ping("p", "s", "net1")?;

        for pod in ["p", "q", "r", "s"] {
            test.delete_pod(pod)?;
        }
        timed("uninstalled", || uninstall(helm))?;
        // With the definitions go all ClaimNetworks, so that they stay, and the next installation finds them.
        test.kubectl(&["get", "claimnetwork", &network])?;
        timed("nothing was left", || nothing_is_left(test.cluster, &KEPT))?;

        timed("installed again", || helm.release("install", &["--set", "crds.keep=false"]))?;
        test.start_pod("p", &network)?;
        test.delete_pod("p")?;
        test.kubectl(&["delete", "claimnetwork,deviceclass", &network])?;
        timed("all blocks were given back", || blocks_are_given_back(test))?;
        timed("uninstalled with its definitions", || uninstall(helm))?;
        timed("nothing was left", || nothing_is_left(test.cluster, &[]))?;
        nodes_have_no_sockets(test)
    })
}

/// Neither the kubelet nor the runtime is to find the agent of an installation that is gone.
pub fn nodes_have_no_sockets(test: &Test<'_>) -> Result<()> {
    for node in test.cluster.nodes() {
        for folder in
            ["/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins/netclaim.dev", "/run/cdi"]
        {
            let names: Vec<String> = netclaim_tests::names(&node.path(folder))?;
            ensure!(names.is_empty(), "{} has {names:?} in {folder}", node.name());
        }
    }
    Ok(())
}
