//! The controller dies, hangs and is updated, and the API server goes away, with pods on all nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use netclaim_tests::objects::text;
use netclaim_tests::{AGENT, AGENT_PODS, CONTROLLER, SYSTEM, Test, eventually, long, names};

/// Waits until the status of a ClaimNetwork says that every node publishes it.
fn is_everywhere(test: &Test<'_>, network: &str, seconds: u64) -> Result<()> {
    test.condition(seconds, ["claimnetwork", network], "Available", |condition| {
        condition["reason"] == "Everywhere"
            && text(&condition["message"]).contains(&format!("on {} nodes", test.cluster.nodes().len()))
    })
}

pub fn the_next_controller_reports_the_status_of_networks(test: &Test<'_>) -> Result<()> {
    is_everywhere(test, &test.macvlan("a")?, 60)?;
    test.cluster.kill_controller()?;
    is_everywhere(test, &test.macvlan("b")?, 90)?;
    test.cluster.controller_ready()
}

pub fn a_controller_makes_its_lease_again_when_it_was_deleted(test: &Test<'_>) -> Result<()> {
    test.cluster.controller_away()?;
    let deleted = test.cluster.kubectl(&["-n", SYSTEM, "delete", "lease", "netclaim-controller"]);
    let back = test.cluster.controller_back();
    deleted.map(drop).and(back)?;
    is_everywhere(test, &test.macvlan("a")?, 90)?;
    ensure!(!test.cluster.leader()?.is_empty(), "no replica holds the lease");
    Ok(())
}

pub fn a_second_controller_takes_over_from_a_leader_that_hangs(test: &Test<'_>) -> Result<()> {
    let whole = test.cluster_network(2)?;
    test.start_pod("before", &whole)?;
    let slices = || -> Result<BTreeSet<String>> {
        let of_network = test.cluster.slices()?.into_iter();
        let of_network =
            of_network.filter(|slice| slice["spec"]["pool"]["name"] == format!("networks/{whole}"));
        Ok(of_network.map(|slice| text(&slice["metadata"]["uid"])).collect())
    };
    let published = slices()?;
    ensure!(published.len() == 1, "{published:?}");
    let shown = || -> Result<()> {
        test.cluster.run_two_controllers()?;
        let leader = test.cluster.leader()?;
        test.cluster.pause_controller(&leader, true)?;
        let taken_over = || -> Result<()> {
            is_everywhere(test, &test.macvlan("b")?, 90)?;
            ensure!(test.cluster.leader()? != leader, "{leader} still leads");
            test.start_pod("after", &whole)
        };
        let (taken_over, resumed) = (taken_over(), test.cluster.pause_controller(&leader, false));
        taken_over.and(resumed)?;
        // The old leader exits when it finds the lease taken.
        let next = test.cluster.leader()?;
        is_everywhere(test, &test.macvlan("c")?, 60)?;
        ensure!(test.cluster.leader()? == next, "{} leads, before: {next}", test.cluster.leader()?);
        ensure!(slices()? == published, "{:?}, before: {published:?}", slices()?);
        test.pod("too-many", &whole)?;
        test.is_unschedulable("too-many")
    };
    let (shown, back) = (shown(), test.cluster.controller_back());
    shown.and(back)
}

/// Pods that start during an update, and the time between their starts.
const PODS: usize = 18;
const INTERVAL: Duration = Duration::from_millis(600);
/// Where a kubelet finds the agent's sockets.
const SOCKETS: [&str; 2] = ["/var/lib/kubelet/plugins/netclaim.dev", "/var/lib/kubelet/plugins_registry"];

pub fn pods_start_on_all_nodes_during_an_update(test: &Test<'_>) -> Result<()> {
    let networks = [test.macvlan("a")?, test.cluster_network_named("b", PODS)?];
    is_everywhere(test, &networks[0], 60)?;
    let uids = |label: &str| -> Result<BTreeSet<String>> {
        let uids = ["-l", label, "-o", "jsonpath={.items[*].metadata.uid}"];
        let uids = test.cluster.kubectl(&[["get", "pods", "-n", SYSTEM].as_slice(), &uids].concat())?;
        Ok(uids.split_whitespace().map(str::to_owned).collect())
    };
    let nodes = test.cluster.nodes();
    let old = uids(AGENT_PODS)?;
    test.cluster.kubectl(&["rollout", "restart", "-n", SYSTEM, AGENT, CONTROLLER])?;
    let name = |n: usize| format!("p{n}");
    for n in 0..PODS {
        test.pod_on(&nodes[n % nodes.len()].name(), &name(n), &networks[n % 2])?;
        std::thread::sleep(INTERVAL);
        if n >= PODS / 2 {
            // One that has started during the update ends during it, too.
            let ended = name(n - PODS / 2);
            test.runs_with(&ended, &["net1"])?;
            test.claim_was_not_refused(&ended)?;
            test.kubectl(&["delete", "pod", &ended, "--wait=false"])?;
        }
    }
    for n in PODS / 2..PODS {
        test.runs_with(&name(n), &["net1"])?;
        test.claim_was_not_refused(&name(n))?;
    }
    test.cluster.agent_ready()?;
    test.cluster.controller_ready()?;
    eventually(30, "the old agents are gone", || {
        let now = uids(AGENT_PODS)?;
        ensure!(now.len() == nodes.len() && now.is_disjoint(&old), "{old:?}, then {now:?}");
        Ok(())
    })?;
    // The kubelets find only the new agents' sockets.
    let new = uids(AGENT_PODS)?;
    for (node, dir) in nodes.iter().flat_map(|node| SOCKETS.map(|dir| (node, dir))) {
        let names = names(&node.path(dir))?;
        let is_of_new = |name: &String| new.iter().any(|uid| name.contains(uid.as_str()));
        ensure!(
            names.len() == 1 && names.iter().all(is_of_new),
            "{}: {dir} has {names:?}, not of {new:?}",
            node.name()
        );
    }
    is_everywhere(test, &test.macvlan("c")?, 60)
}

/// How long the API server is away, and with `$NETCLAIM_LONG`. Afterwards the scheduler waits as long again,
/// or a minute.
const AWAY: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

pub fn pods_on_all_nodes_outlive_the_api_server(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    let nodes = test.cluster.nodes();
    let mut before = Vec::new();
    for node in &nodes {
        test.pod_on(&node.name(), &node.name(), &network)?;
    }
    for node in &nodes {
        test.runs_with(&node.name(), &["net1"])?;
        before.push((test.container(&node.name(), "shell")?.id, test.interface(&node.name(), "net1")?));
    }
    test.cluster.service("stop", "apiserver")?;
    let killed = test.cluster.kill_agent_on("node1");
    std::thread::sleep(AWAY[usize::from(long())]);
    test.cluster.service("start", "apiserver")?;
    killed?;
    eventually(60, "the API server is ready", || test.cluster.kubectl(&["get", "--raw", "/readyz"]))?;
    for (node, (container, interface)) in nodes.iter().zip(&before) {
        let name = node.name();
        ensure!(test.container(&name, "shell")?.id == *container, "the container of {name} was replaced");
        ensure!(test.interface(&name, "net1")? == *interface, "{name} had {interface:?}");
        test.pod_on(&name, &format!("new-{name}"), &network)?;
    }
    for node in &nodes {
        let new = format!("new-{}", node.name());
        // The scheduler and the kubelets retry their watches with a backoff.
        eventually(120, "the new pods run", || test.runs(&new))?;
        test.began_with(&new, &["net1"])?;
        test.delete_pod(&node.name())?;
    }
    is_everywhere(test, &test.macvlan("b")?, 60)
}
