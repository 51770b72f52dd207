//! Publishing and scheduling on each version of Kubernetes. `docs/reference/kubernetes-versions.md` has the
//! results.
//!
//! `make test-versions` runs it on each; `NETCLAIM_KUBERNETES=1.36 cargo test -p netclaim-tests --test
//! versions` on one.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netclaim_slices::KubernetesVersion;
use netclaim_tests::objects::{list, text};
use netclaim_tests::{AGENT_USER, AuditLog, Cluster, Test, eventually, scenarios, suite};
use serde_json::{Value, json};

#[path = "../cluster/classes.rs"]
mod classes;
#[path = "../cluster/defaults.rs"]
mod defaults;
#[path = "../cluster/endpoints.rs"]
mod endpoints;
// Each API server must support the manifests' policies and rights, too.
#[path = "../cluster/rights.rs"]
mod rights;
mod upgrade;

use classes::*;
use defaults::*;
use endpoints::*;
use rights::*;
use upgrade::*;

/// How long an idle agent is watched.
const IDLE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    suite::run(scenarios![
        alone:
            slices_are_complete_and_an_idle_agent_writes_nothing,
            event_and_metric_report_a_scheduler_that_cannot_count,
            a_pod_gets_its_network_and_its_claim_reports_it,
            pods_share_a_network,
            a_pod_asks_for_a_network_with_one_line,
            each_container_with_the_line_gets_its_pod_one_more_interface,
            a_pod_that_asks_by_limits_for_too_much_is_told_so,
            a_container_with_the_line_does_not_start_before_its_network,
            a_limit_in_a_namespace_that_the_network_is_not_for_is_refused,
            a_class_follows_its_network_and_no_other_class_is_touched,
            a_nic_and_macvlan_on_it_are_never_in_use_together,
            a_cluster_wide_network_serves_a_pod,
            the_node_refuses_a_conflicting_use_that_the_scheduler_cannot_count,
            metrics_are_served,
            agent_and_controller_take_another_log_filter_without_a_restart,
            the_agent_has_only_the_documented_rights,
            the_controller_only_removes_labels_of_networks_from_nodes,
            the_controller_writes_only_classes_of_networks,
            a_stolen_token_of_the_controller_writes_no_pod_claim_network_or_node,
            the_agent_writes_only_slices_of_its_own_node,
            a_stolen_token_writes_only_objects_of_its_own_node,
            the_controller_writes_events_only_in_its_own_name,
            a_stolen_token_reads_only_pods_of_its_own_node,
            the_agent_changes_one_annotation_of_its_own_nodes_pods,
            the_agent_changes_only_the_labels_of_networks_of_its_own_node,
            an_account_with_the_agents_name_in_another_namespace_is_not_limited,
            idle_connections_exhaust_neither_the_agents_descriptors_nor_its_probes,
            a_burst_of_pods_has_no_claim_refused,
            every_kind_of_pod_gets_the_defaults_of_its_namespace,
            a_pod_waits_for_what_its_default_lacks_and_says_so,
            every_container_waits_for_the_networks_of_its_pod_where_the_namespace_says_so,
            the_controller_writes_only_templates_of_defaults,
            kubernetes_is_upgraded_and_goes_back_under_running_pods;
    ])
}

/// Whether the scheduler keeps exclusive uses of a link apart.
fn counts(cluster: &Cluster) -> Result<bool> {
    Ok(version(cluster)? >= KubernetesVersion::FIRST_TO_COUNT)
}

fn version(cluster: &Cluster) -> Result<KubernetesVersion> {
    let version: Value = serde_json::from_str(&cluster.kubectl(&["version", "-o", "json"])?)?;
    Ok(version["serverVersion"]["gitVersion"].as_str().context("the API server has no version")?.parse()?)
}

/// Reads the slices of the node's pool, which must be complete.
fn slices(test: &Test<'_>) -> Result<Vec<Value>> {
    of_pool(test.cluster.slices()?, "node0")
}

/// Returns the slices of a pool, which must be complete.
fn of_pool(mut slices: Vec<Value>, pool: &str) -> Result<Vec<Value>> {
    slices.retain(|slice| slice["spec"]["pool"]["name"] == pool);
    let first = slices.first().context("the pool has no slices")?;
    for slice in &slices {
        let (pool, expected) = (&slice["spec"]["pool"], &first["spec"]["pool"]);
        ensure!(pool == expected, "the slices disagree on the pool: {pool}, {expected}");
        ensure!(pool["resourceSliceCount"] == slices.len(), "{} slices, {pool}", slices.len());
    }
    Ok(slices)
}

fn devices(slices: &[Value]) -> BTreeSet<String> {
    slices
        .iter()
        .flat_map(|slice| list(&slice["spec"]["devices"]))
        .map(|device| text(&device["name"]))
        .collect()
}

fn slices_are_complete_and_an_idle_agent_writes_nothing(test: &Test<'_>) -> Result<()> {
    let network = format!("net-{}", test.macvlan("a")?);
    let counts = counts(test.cluster)?;
    let slices = eventually(10, "the network is published", || {
        let slices = slices(test)?;
        ensure!(devices(&slices).contains(&network), "{:?}", devices(&slices));
        Ok(slices)
    })?;
    let found = devices(&slices);
    for (device, here) in
        [("macvlan-eth1", false), ("nic-eth1", false), ("nic-eth2", true), ("macvlan-eth2", false)]
    {
        ensure!(found.contains(device) == here, "{device}: {found:?}");
    }
    let has_counters = |slice: &Value| slice["spec"]["sharedCounters"].is_array();
    ensure!(!slices.iter().any(has_counters), "{slices:?}");
    // Devices that exclude each other have counters, or only one of them is published.
    let policy = test.modes(&["eth2"], &["nic", "macvlan"])?;
    eventually(10, "the policy is in force", || {
        let slices = self::slices(test)?;
        let found = devices(&slices);
        ensure!(found.contains("nic-eth2") && found.contains("macvlan-eth2") == counts, "{found:?}");
        ensure!(slices.iter().any(has_counters) == counts, "{slices:?}");
        Ok(())
    })?;
    test.cluster.kubectl(&["delete", "uplinkpolicy", &policy])?;
    let slices = eventually(10, "the node's pool is as before", || {
        let now = self::slices(test)?;
        ensure!(devices(&now) == found, "{:?}", devices(&now));
        Ok(now)
    })?;

    let log = AuditLog::from_now(test.cluster)?;
    sleep(IDLE);
    let requests = log.requests_of(AGENT_USER)?;
    let reads = ["get ", "list ", "watch "];
    let writes: Vec<_> =
        requests.keys().filter(|request| !reads.iter().any(|read| request.starts_with(read))).collect();
    ensure!(writes.is_empty(), "written in {IDLE:?}: {writes:?}");
    ensure!(self::slices(test)? == slices, "the slices have changed");
    Ok(())
}

fn event_and_metric_report_a_scheduler_that_cannot_count(test: &Test<'_>) -> Result<()> {
    let counts = counts(test.cluster)?;
    let line = format!("netclaim_without_counters {}", u8::from(!counts));
    ensure!(test.cluster.ask_agent("/metrics")?.contains(&line), "no {line} in the agent's metrics");
    let node = test.cluster.kubectl(&["describe", "node", "node0"])?;
    ensure!(node.contains("ServerLacksFeatures") != counts, "kubectl describe node: {node}");
    Ok(())
}

fn a_pod_gets_its_network_and_its_claim_reports_it(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("p", &network)?;
    test.claim_was_not_refused("p")?;
    let inside = test.interface("p", "net1")?;
    let devices = test.claim_is_ready("p")?;
    let [device] = devices.as_slice() else { anyhow::bail!("the claim has one device: {devices:?}") };
    ensure!(device["networkData"]["ips"] == json!(inside.ips), "{device}, in the pod: {inside:?}");
    ensure!(device["data"]["cniVersion"] == "1.0.0", "no CNI result: {device}");
    ensure!(device["shareID"].is_string(), "{device}");
    test.delete_pod("p")?;
    test.nodes_are_clean()?;
    test.node_has_leases(0)
}

fn pods_share_a_network(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("one", &network)?;
    test.start_pod("two", &network)?;
    test.ping("one", "two", "net1")
}

fn a_nic_and_macvlan_on_it_are_never_in_use_together(test: &Test<'_>) -> Result<()> {
    test.modes(&["eth2"], &["nic", "macvlan"])?;
    let nic = test.class_of_links("nic", &["eth2"])?;
    let macvlan = test.network_on("eth2", "m", |_| {})?;
    test.start_pod("macvlan", &macvlan)?;
    test.pod("nic", &nic)?;
    test.is_unschedulable("nic")?;
    test.delete_pod("macvlan")?;
    if !counts(test.cluster)? {
        // Without counters a link with a ClaimNetwork is published for uses that do not exclude it.
        test.kubectl(&["delete", "claimnetwork", &macvlan])?;
    }
    test.runs_with("nic", &["net1"])?;
    ensure!(!test.cluster.node().links()?.contains("eth2"), "the NIC is in the pod and on the node");
    test.delete_pod("nic")?;
    eventually(5, "the NIC is back on the node", || {
        ensure!(test.cluster.node().links()?.contains("eth2"), "it is not");
        Ok(())
    })
}

fn a_cluster_wide_network_serves_a_pod(test: &Test<'_>) -> Result<()> {
    let network = test.cluster_network(2)?;
    test.start_pod("one", &network)?;
    let devices = test.claim_is_ready("one")?;
    ensure!(devices.iter().all(|device| device["pool"] == format!("networks/{network}")), "{devices:?}");
    test.start_pod("two", &network)
}

fn the_node_refuses_a_conflicting_use_that_the_scheduler_cannot_count(test: &Test<'_>) -> Result<()> {
    test.modes(&["eth2"], &["nic", "macvlan"])?;
    let nic = test.class_of_links("nic", &["eth2"])?;
    let macvlan = test.network_on("eth2", "m", |network| network["spec"]["scope"] = json!("Cluster"))?;
    test.start_pod("macvlan", &macvlan)?;
    test.pod("nic", &nic)?;
    test.event("nic", &["FailedPrepareDynamicResources", "link eth2 is in another use by pod", "/macvlan"])?;
    test.does_not_start("nic")?;
    test.delete_pod("macvlan")?;
    test.wake("nic")?;
    test.runs_with("nic", &["net1"])
}
