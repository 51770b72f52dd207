//! Publishing and scheduling on one version of Kubernetes after the other: what works everywhere, and what netclaim does
//! where the API server lacks a feature. `docs/reference/kubernetes-versions.md` is the result as a table.
//!
//! `make test-versions` runs it on each; `NETCLAIM_KUBERNETES=1.35 cargo test -p netclaim-tests --test versions` on one.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netclaim_slices::KubernetesVersion;
use netclaim_tests::objects::class;
use netclaim_tests::{Cluster, Requests, SYSTEM, Test, eventually, scenarios, suite};
use serde_json::{Value, json};

// Whether its API server knows the policies and the rights of the manifests too.
#[path = "../cluster/rights.rs"]
mod rights;

use rights::*;

/// How long nothing may be written while nothing happens.
const IDLE: Duration = Duration::from_secs(20);

/// Gates that are off by default up to 1.35, and the fields of ResourceSlices that the API server does not store then.
const GATED: [(&str, &[&str]); 4] = [
    (
        "DRAConsumableCapacity",
        &["spec.devices[].allowMultipleAllocations", "spec.devices[].capacity[].requestPolicy"],
    ),
    ("DRAPartitionableDevices", &["spec.devices[].consumesCounters", "spec.sharedCounters"]),
    ("DRADeviceTaints", &["spec.devices[].taints"]),
    ("DRADeviceBindingConditions", &["spec.devices[].bindsToNode"]),
];

fn main() -> ExitCode {
    suite::run(scenarios![
        alone:
            slices_are_complete_and_nothing_is_written_while_nothing_happens,
            what_the_server_lacks_is_told_by_event_and_metrics,
            a_pod_gets_its_network_and_its_claim_tells_of_it,
            pods_share_a_network_or_wait_for_each_other,
            macvlan_and_the_whole_nic_are_never_in_use_at_once,
            a_network_of_the_cluster_serves_a_pod,
            a_use_of_a_link_that_the_scheduler_cannot_count_is_refused_on_the_node,
            metrics_are_served,
            the_agent_has_the_rights_of_the_manual_and_no_more,
            the_agent_writes_slices_of_its_own_node_only,
            a_stolen_token_writes_nothing_of_another_node_under_whatever_name_the_agent_runs,
            a_stolen_token_reads_the_pods_of_its_node_only,
            who_is_only_called_like_the_agent_is_not_held_to_its_limits,
            connections_that_say_nothing_cost_the_agent_neither_descriptors_nor_its_probes,
            no_pod_of_a_burst_is_refused_its_claim;
    ])
}

/// Whether the API server stores everything that netclaim says of devices.
fn has_everything(cluster: &Cluster) -> Result<bool> {
    Ok(version(cluster)? >= "v1.36.0".parse()?)
}

/// Whether the scheduler can tell what excludes each other.
fn counts(cluster: &Cluster) -> Result<bool> {
    Ok(version(cluster)? >= KubernetesVersion::FIRST_TO_COUNT)
}

fn version(cluster: &Cluster) -> Result<KubernetesVersion> {
    let version: Value = serde_json::from_str(&cluster.kubectl(&["version", "-o", "json"])?)?;
    Ok(version["serverVersion"]["gitVersion"].as_str().context("the API server has no version")?.parse()?)
}

/// The slices of the node's pool, which has to be complete.
fn slices(test: &Test<'_>) -> Result<Vec<Value>> {
    let all = test.cluster.get(&["resourceslices"])?;
    let of_node = |slice: &&Value| {
        slice["spec"]["driver"] == "netclaim.dev" && slice["spec"]["pool"]["name"] == "node0"
    };
    let slices: Vec<Value> = all["items"].as_array().into_iter().flatten().filter(of_node).cloned().collect();
    let first = slices.first().context("the node has no slices")?;
    for slice in &slices {
        let (pool, expected) = (&slice["spec"]["pool"], &first["spec"]["pool"]);
        ensure!(pool == expected, "two states of a pool: {pool}, {expected}");
        ensure!(pool["resourceSliceCount"] == slices.len(), "{} slices, {pool}", slices.len());
    }
    Ok(slices)
}

fn devices(slices: &[Value]) -> BTreeSet<String> {
    let devices = slices.iter().filter_map(|slice| slice["spec"]["devices"].as_array()).flatten();
    devices.filter_map(|device| device["name"].as_str().map(str::to_owned)).collect()
}

fn slices_are_complete_and_nothing_is_written_while_nothing_happens(test: &Test<'_>) -> Result<()> {
    let network = format!("net-{}", test.macvlan("a")?);
    let counts = counts(test.cluster)?;
    let slices = eventually(10, "the network is published", || {
        let slices = slices(test)?;
        ensure!(devices(&slices).contains(&network), "{:?}", devices(&slices));
        Ok(slices)
    })?;
    let found = devices(&slices);
    for (device, here) in [
        // What does not exclude the Network on eth1 is there beside it.
        ("macvlan-eth1", true),
        ("nic-eth1", counts),
        ("nic-eth2", true),
        ("macvlan-eth2", counts),
    ] {
        ensure!(found.contains(device) == here, "{device}: {found:?}");
    }
    let counted = slices.iter().any(|slice| slice["spec"]["sharedCounters"].is_array());
    ensure!(counted == counts, "{slices:?}");

    let requests = Requests::begin(test.cluster)?;
    sleep(IDLE);
    let requests = requests.end()?;
    let reads = ["get ", "list ", "watch "];
    let writes: Vec<_> =
        requests.keys().filter(|request| !reads.iter().any(|read| request.starts_with(read))).collect();
    ensure!(writes.is_empty(), "written in {IDLE:?}: {writes:?}");
    ensure!(self::slices(test)? == slices, "the slices have changed");
    Ok(())
}

/// What a program on the node answers over HTTP.
fn metrics_of(test: &Test<'_>, address: &str, port: u16) -> Result<String> {
    let ask =
        format!("exec 3<>/dev/tcp/{address}/{port}; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3");
    test.cluster.on_node(&["bash", "-c", &ask])
}

fn what_the_server_lacks_is_told_by_event_and_metrics(test: &Test<'_>) -> Result<()> {
    let (everything, counts) = (has_everything(test.cluster)?, counts(test.cluster)?);
    let controller =
        test.cluster.get(&["-n", SYSTEM, "pods", "-l", "app.kubernetes.io/name=netclaim-controller"])?;
    let address = controller["items"][0]["status"]["podIP"].as_str().context("no controller")?;
    for (prefix, address, port) in [("netclaim", "127.0.0.1", 9177), ("netclaim_controller", address, 9178)] {
        eventually(20, "the metrics tell", || {
            let metrics = metrics_of(test, address, port)?;
            for field in GATED.iter().flat_map(|(_, fields)| *fields) {
                let line =
                    format!("{prefix}_server_field_dropped{{field=\"{field}\"}} {}", u8::from(!everything));
                ensure!(metrics.contains(&line), "no {line} in {metrics}");
            }
            Ok(())
        })?;
    }
    let line = format!("netclaim_without_counters {}", u8::from(everything && !counts));
    ensure!(metrics_of(test, "127.0.0.1", 9177)?.contains(&line), "no {line} in the agent's metrics");
    let node = test.cluster.kubectl(&["describe", "node", "node0"])?;
    for (gate, _) in GATED {
        ensure!(node.contains(gate) != everything, "{gate}, kubectl describe node: {node}");
    }
    ensure!(node.contains("ServerLacksFeatures") != counts, "kubectl describe node: {node}");
    Ok(())
}

fn a_pod_gets_its_network_and_its_claim_tells_of_it(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    test.claim_was_not_refused("p")?;
    let inside = test.interface("p", "net1")?;
    let devices = test.claim_is_ready("p")?;
    let [device] = devices.as_slice() else { anyhow::bail!("one device was claimed: {devices:?}") };
    ensure!(device["networkData"]["ips"] == json!(inside.ips), "{device}, in the pod: {inside:?}");
    ensure!(device["data"]["cniVersion"] == "1.0.0", "no CNI result: {device}");
    ensure!(device["shareID"].is_string() == has_everything(test.cluster)?, "{device}");
    test.delete_pod("p")?;
    test.node_is_clean()?;
    test.node_has_leases(0)
}

fn pods_share_a_network_or_wait_for_each_other(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("one", &network)?;
    test.runs_with("one", &["net1"])?;
    test.pod("two", &network)?;
    if has_everything(test.cluster)? {
        test.runs_with("two", &["net1"])?;
        return test.ping("one", "two", "net1");
    }
    test.is_unschedulable("two")?;
    test.delete_pod("one")?;
    test.runs_with("two", &["net1"])
}

/// A class of the whole eth2.
fn nic(test: &Test<'_>) -> Result<String> {
    let name = test.name("nic");
    let attribute = |name: &str| format!("device.attributes[\"netclaim.dev\"].{name}");
    let expression = format!("{} == \"nic\" && {} == \"eth2\"", attribute("mode"), attribute("uplink"));
    test.create([class(&name, &expression)])?;
    Ok(name)
}

fn macvlan_and_the_whole_nic_are_never_in_use_at_once(test: &Test<'_>) -> Result<()> {
    let nic = nic(test)?;
    let macvlan = test.network("m", |network| network["spec"]["uplink"]["interfaces"] = json!(["eth2"]))?;
    test.pod("macvlan", &macvlan)?;
    test.runs_with("macvlan", &["net1"])?;
    test.pod("nic", &nic)?;
    test.is_unschedulable("nic")?;
    test.delete_pod("macvlan")?;
    if !counts(test.cluster)? {
        // Without counters a link is published for one of the two: for the Network while there is one.
        test.kubectl(&["delete", "network", &macvlan])?;
    }
    test.runs_with("nic", &["net1"])?;
    ensure!(!test.cluster.node().links()?.contains("eth2"), "the NIC is in the pod and on the node");
    test.delete_pod("nic")?;
    eventually(5, "the NIC is back on the node", || {
        ensure!(test.cluster.node().links()?.contains("eth2"), "it is not");
        Ok(())
    })
}

fn a_network_of_the_cluster_serves_a_pod(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| {
        network["spec"]["scope"] = json!("Cluster");
        network["spec"]["capacity"] = json!({"interfaces": 2});
    })?;
    test.pod("one", &network)?;
    test.runs_with("one", &["net1"])?;
    let devices = test.claim_is_ready("one")?;
    ensure!(devices.iter().all(|device| device["pool"] == format!("networks/{network}")), "{devices:?}");
    test.pod("two", &network)?;
    if has_everything(test.cluster)? {
        test.runs_with("two", &["net1"])
    } else {
        test.is_unschedulable("two")
    }
}

fn a_use_of_a_link_that_the_scheduler_cannot_count_is_refused_on_the_node(test: &Test<'_>) -> Result<()> {
    let nic = nic(test)?;
    let macvlan = test.network("m", |network| {
        network["spec"]["uplink"]["interfaces"] = json!(["eth2"]);
        network["spec"]["scope"] = json!("Cluster");
    })?;
    test.pod("macvlan", &macvlan)?;
    test.runs_with("macvlan", &["net1"])?;
    test.pod("nic", &nic)?;
    test.event("nic", &["FailedPrepareDynamicResources", "link eth2 is in another use by pod", "/macvlan"])?;
    test.has_not_started("nic")?;
    test.delete_pod("macvlan")?;
    test.wake("nic")?;
    test.runs_with("nic", &["net1"])
}
