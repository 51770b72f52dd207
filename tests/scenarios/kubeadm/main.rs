//! A cluster that kubeadm has made: a control plane in static pods of a node that takes no others,
//! kube-proxy, and kubelets with kubeadm's configuration. netclaim is installed as the quick start has it and
//! used on the workers. Nodes lose power, and the cluster is upgraded.
//!
//! `make test-kubeadm` runs it on each supported version; `NETCLAIM_BOOTSTRAP=kubeadm cargo test -p
//! netclaim-tests --test kubeadm` on one.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::suite::Lane;
use netclaim_tests::{AGENT_PODS, SYSTEM, Test, eventually, scenarios, suite};
use serde_json::Value;

#[expect(dead_code, reason = "the others are about the chart")]
#[path = "../install/helm.rs"]
mod helm;
#[path = "../install/left.rs"]
mod left;
#[path = "../install/quick_start.rs"]
mod quick_start;

use quick_start::the_quick_start_works_as_it_is_written;

/// The node with the control plane.
const CONTROL_PLANE: &str = "node0";
const WORKERS: [&str; 2] = ["node1", "node2"];
/// The version of Kubernetes that the tests have by default.
const NEWEST: &str = "newest";
/// Seconds until a node that has no power is back with its pods: kubelets wait longer from try to try.
const BACK: u64 = 180;

fn main() -> ExitCode {
    suite::run_on(
        &Lane { name: "kubeadm", nodes: 3, cluster: "NETCLAIM_TEST_KUBEADM_CLUSTER" },
        scenarios![
            alone:
                the_cluster_is_as_kubeadm_makes_it,
                pods_on_workers_get_networks_and_leave_nothing,
                the_quick_start_works_as_it_is_written,
                a_control_plane_that_had_no_power_comes_back_beside_its_agent,
                all_nodes_come_back_together_with_the_networks_of_their_pods,
                kubeadm_upgrades_the_cluster_under_running_pods;
        ],
    )
}

/// What other clusters of the tests do not have, so that the other scenarios show something.
fn the_cluster_is_as_kubeadm_makes_it(test: &Test<'_>) -> Result<()> {
    let node = test.cluster.get(&["node", CONTROL_PLANE])?;
    let is_tainted = |taint: &Value| text(&taint["key"]) == "node-role.kubernetes.io/control-plane";
    ensure!(list(&node["spec"]["taints"]).any(is_tainted), "{CONTROL_PLANE} takes every pod: {node}");
    let pods = test.cluster.get(&["-n", "kube-system", "pods"])?;
    let mut names = list(&pods["items"]).map(|pod| text(&pod["metadata"]["name"])).collect::<Vec<_>>();
    names.retain(|name| !name.starts_with("kube-proxy-"));
    let expected = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
        .map(|name| format!("{name}-{CONTROL_PLANE}"));
    ensure!(names == expected, "{names:?}");

    let agents = test.cluster.get(&["-n", SYSTEM, "pods", "-l", AGENT_PODS])?;
    let mut on: Vec<String> = list(&agents["items"]).map(|agent| text(&agent["spec"]["nodeName"])).collect();
    on.sort();
    ensure!(on == [CONTROL_PLANE, WORKERS[0], WORKERS[1]], "agents are on {on:?}");
    // The only uplink of all nodes.
    on.iter().try_for_each(|node| test.is_published_on(node, "nic-eth1", |_| true))
}

/// Starts a pod on each worker.
fn start_on_workers(test: &Test<'_>, network: &str) -> Result<()> {
    for node in WORKERS {
        test.pod_on(node, node, network)?;
    }
    WORKERS.iter().try_for_each(|node| test.runs_with(node, &["net1"]))?;
    reach_each_other(test)
}

fn reach_each_other(test: &Test<'_>) -> Result<()> {
    for node in WORKERS {
        test.claim_is_ready(node)?;
    }
    test.ping(WORKERS[0], WORKERS[1], "net1")?;
    test.ping(WORKERS[1], WORKERS[0], "net1")
}

fn delete_on_workers(test: &Test<'_>) -> Result<()> {
    WORKERS.iter().try_for_each(|node| test.delete_pod(node))?;
    test.nodes_are_clean()
}

fn pods_on_workers_get_networks_and_leave_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    start_on_workers(test, &network)?;
    for node in WORKERS {
        test.claim_was_not_refused(node)?;
    }
    test.replace_sandbox(WORKERS[0])?;
    test.began_with(WORKERS[0], &["net1"])?;
    reach_each_other(test)?;
    delete_on_workers(test)
}

/// Waits until the API server answers and all agents are ready, and prints how long both took.
fn is_back(test: &Test<'_>, since: Instant) -> Result<()> {
    eventually(BACK, "the API server answers", || {
        test.cluster.kubectl(&["get", "--raw", "/readyz"]).map(drop)
    })?;
    eprintln!("       the API server answered after {:.1} s", since.elapsed().as_secs_f64());
    test.cluster.agent_ready()?;
    eprintln!("       all agents were ready after {:.1} s", since.elapsed().as_secs_f64());
    Ok(())
}

/// The containers of the workers' pods.
fn containers(test: &Test<'_>) -> Result<Vec<String>> {
    WORKERS.iter().map(|node| Ok(test.container(node, "shell")?.id)).collect()
}

/// Starts one more pod on the first worker, and deletes it.
fn another_starts(test: &Test<'_>, network: &str) -> Result<()> {
    test.pod_on(WORKERS[0], "new", network)?;
    test.runs_with("new", &["net1"])?;
    test.ping("new", WORKERS[1], "net1")?;
    test.delete_pod("new")
}

/// Nothing of the control plane is to wait for its node's agent, which waits for the API server.
fn a_control_plane_that_had_no_power_comes_back_beside_its_agent(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    start_on_workers(test, &network)?;
    let containers = containers(test)?;
    test.cluster.power_off(CONTROL_PLANE)?;
    let since = Instant::now();
    test.cluster.power_on(CONTROL_PLANE)?;
    is_back(test, since)?;
    reach_each_other(test)?;
    ensure!(self::containers(test)? == containers, "pods were started again");
    another_starts(test, &network)?;
    delete_on_workers(test)
}

fn all_nodes_come_back_together_with_the_networks_of_their_pods(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    start_on_workers(test, &network)?;
    let sandboxes = WORKERS.map(|node| test.sandbox(node).map(|sandbox| sandbox.id));
    let nodes = [CONTROL_PLANE, WORKERS[0], WORKERS[1]];
    nodes.iter().try_for_each(|node| test.cluster.power_off(node))?;
    let since = Instant::now();
    nodes.iter().try_for_each(|node| test.cluster.power_on(node))?;
    is_back(test, since)?;
    for (node, before) in WORKERS.iter().zip(sandboxes) {
        let before = before?;
        eventually(BACK, "the pod has a new sandbox", || {
            ensure!(test.sandbox(node)?.id != before, "the pod of {node} has the old one");
            Ok(())
        })?;
    }
    eventually(BACK, "the pods have their networks", || {
        WORKERS.iter().try_for_each(|node| test.began_with(node, &["net1"]))?;
        reach_each_other(test)
    })?;
    eprintln!("       all pods had their networks after {:.1} s", since.elapsed().as_secs_f64());
    delete_on_workers(test)
}

fn kubeadm_upgrades_the_cluster_under_running_pods(test: &Test<'_>) -> Result<()> {
    if test.cluster.kubernetes()? == NEWEST {
        return test.skip("there is no newer Kubernetes that the cluster could be upgraded to");
    }
    let network = test.macvlan("a")?;
    start_on_workers(test, &network)?;
    let containers = containers(test)?;
    let since = Instant::now();
    test.cluster.replace_kubernetes(NEWEST, &[])?;
    eprintln!("       upgraded after {:.1} s", since.elapsed().as_secs_f64());
    is_back(test, Instant::now())?;
    ensure!(self::containers(test)? == containers, "pods were started again");
    reach_each_other(test)?;
    another_starts(test, &network)?;
    delete_on_workers(test)
}
