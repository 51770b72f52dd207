//! A cluster with IPv4 and IPv6, and one with IPv6 alone: what programs ask each other at addresses of the
//! cluster, and addresses of pods. netclaim is installed by the chart, as docs/install.md says for such a
//! cluster, with the webhook.
//!
//! `make test-stacks` runs it on both; `NETCLAIM_STACK=ipv6 cargo test -p netclaim-tests --test stacks` on
//! one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::helm::Helm;
use netclaim_tests::objects::{attachment, claim, list, text};
use netclaim_tests::{FOR_IPV6, SYSTEM, Test, eventually, project, scenarios, suite};
use serde_json::{Value, json};

#[path = "../cluster/collector.rs"]
mod collector;
#[path = "../cluster/endpoints.rs"]
mod endpoints;
#[expect(dead_code, reason = "the others are not about addresses")]
#[path = "../cluster/traces.rs"]
mod traces;

use endpoints::*;
use traces::{
    a_trace_leads_from_prepare_over_the_plugins_to_the_claims_status_and_to_the_end,
    the_agent_sends_traces_by_tls_only_to_a_collector_with_a_certificate_of_its_ca,
};

fn main() -> ExitCode {
    suite::run(scenarios![
        beside:
            the_cluster_has_the_addresses_that_are_asked_for,
            metrics_are_read_at_the_first_addresses,
            the_webhook_refuses_a_wrong_claim,
            a_pod_gets_an_ipv6_address,
            a_pod_gets_an_address_of_each_family,
            a_pod_gets_the_ipv6_address_that_its_claim_asks_for,
            the_link_of_the_nodes_own_traffic_is_not_a_device,
            metrics_are_served,
            idle_connections_exhaust_neither_the_agents_descriptors_nor_its_probes;
        alone:
            netclaimctl_reads_the_cluster_and_asks_agents,
            agent_and_controller_take_another_log_filter_without_a_restart,
            pods_that_end_leave_no_addresses,
            a_trace_leads_from_prepare_over_the_plugins_to_the_claims_status_and_to_the_end,
            the_agent_sends_traces_by_tls_only_to_a_collector_with_a_certificate_of_its_ca,
            with_the_values_for_ipv6_every_address_answers;
    ])
}

/// The families of the cluster's addresses, the preferred one first.
fn families(test: &Test<'_>) -> Result<Vec<&'static str>> {
    Ok(match test.cluster.stack()?.as_str() {
        "ipv4" => vec!["IPv4"],
        "dual" => vec!["IPv4", "IPv6"],
        _ => vec!["IPv6"],
    })
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "IPv6" } else { "IPv4" }
}

/// The addresses of the first node.
fn of_node(test: &Test<'_>) -> Result<Vec<IpAddr>> {
    let node = test.cluster.get(&["node", "node0"])?;
    let internal = list(&node["status"]["addresses"]).filter(|address| address["type"] == "InternalIP");
    internal.map(|address| Ok(text(&address["address"]).parse()?)).collect()
}

/// The addresses of the controller's pod.
fn of_controller(test: &Test<'_>) -> Result<Vec<IpAddr>> {
    let pods =
        test.cluster.get(&["-n", SYSTEM, "pods", "-l", "app.kubernetes.io/name=netclaim-controller"])?;
    let mut running = list(&pods["items"]).filter(|pod| pod["metadata"].get("deletionTimestamp").is_none());
    let pod = running.next().context("no controller runs")?;
    list(&pod["status"]["podIPs"]).map(|ip| Ok(text(&ip["ip"]).parse()?)).collect()
}

fn connect(address: IpAddr, port: u16) -> Result<TcpStream> {
    let connection = TcpStream::connect_timeout(&(address, port).into(), Duration::from_secs(5));
    connection.with_context(|| format!("{address} does not answer at port {port}"))
}

/// Reads metrics as a Prometheus beside the node does.
fn metrics(address: IpAddr, port: u16) -> Result<()> {
    let mut stream = connect(address, port)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.contains(" 200 OK") && answer.contains("# EOF"), "{address}, port {port}: {answer}");
    Ok(())
}

fn the_cluster_has_the_addresses_that_are_asked_for(test: &Test<'_>) -> Result<()> {
    let expected = families(test)?;
    for (whose, addresses) in [("node", of_node(test)?), ("controller", of_controller(test)?)] {
        let found: Vec<_> = addresses.iter().copied().map(family).collect();
        ensure!(found == expected, "the {whose} has {addresses:?}");
    }
    let api = test.cluster.get(&["service", "kubernetes"])?;
    ensure!(api["spec"]["ipFamilies"][0] == expected[0], "{api}");
    Ok(())
}

fn metrics_are_read_at_the_first_addresses(test: &Test<'_>) -> Result<()> {
    metrics(*of_node(test)?.first().context("the node has no address")?, 9177)?;
    metrics(*of_controller(test)?.first().context("the controller has no address")?, 9178)
}

fn with_the_values_for_ipv6_every_address_answers(test: &Test<'_>) -> Result<()> {
    let page = fs::read_to_string(project("docs/install.md"))?;
    ensure!(page.contains(FOR_IPV6), "docs/install.md names other values than {FOR_IPV6}");
    Helm::new(test.cluster)?.release("upgrade", &["--reuse-values", "--set", FOR_IPV6])?;
    test.cluster.agent_ready()?;
    for address in of_node(test)? {
        metrics(address, 9177)?;
    }
    for address in of_controller(test)? {
        metrics(address, 9178)?;
        connect(address, 9443)?;
    }
    the_webhook_refuses_a_wrong_claim(test)
}

fn the_webhook_refuses_a_wrong_claim(test: &Test<'_>) -> Result<()> {
    let slices = ["-n", SYSTEM, "endpointslices", "-l", "kubernetes.io/service-name=netclaim-webhook"];
    let slices = test.cluster.get(&slices)?;
    let types: Vec<_> = list(&slices["items"]).map(|slice| &slice["addressType"]).collect();
    ensure!(types == families(test)?[..1], "the API server reaches the webhook by {types:?}");
    let network = test.macvlan("webhook")?;
    let mut wrong = claim("wrong", &network);
    wrong["spec"]["devices"]["config"] = json!([attachment(json!({"mac": "02:00:5e:10:00"}))]);
    // The controllers may have begun to serve just now.
    eventually(40, "the webhook refuses the claim", || {
        let refused = test.create([wrong.clone()]).err().context("it is accepted")?;
        let refused = format!("{refused:#}");
        ensure!(refused.contains("\"02:00:5e:10:00\" is not a MAC address"), "{refused}");
        Ok(())
    })
}

/// Creates a ClaimNetwork on eth1 that hands out these addresses.
fn network(test: &Test<'_>, addresses: &Value) -> Result<String> {
    test.network("a", |network| {
        network["spec"]["addresses"] = addresses.clone();
        let asks = addresses["reserved"].is_array();
        network["spec"]["allow"] = if asks { json!({"ips": {}}) } else { json!({}) };
        network["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
    })
}

/// Starts two pods, which get as many addresses of each family and reach each other by all of them.
fn two_pods_get(test: &Test<'_>, ranges: &Value, [ipv4, ipv6]: [usize; 2]) -> Result<()> {
    let network = network(test, &json!({"ranges": ranges}))?;
    for pod in ["one", "two"] {
        test.start_pod(pod, &network)?;
        test.claim_was_not_refused(pod)?;
        let inside = test.interface(pod, "net1")?;
        ensure!(inside.ips.len() == ipv4 && inside.ipv6.len() == ipv6, "{pod} has {inside:?}");
        let devices = test.claim_is_ready(pod)?;
        let [device] = devices.as_slice() else { anyhow::bail!("the claim has one device: {devices:?}") };
        let reported: BTreeSet<String> = list(&device["networkData"]["ips"]).map(text).collect();
        let found: BTreeSet<String> = inside.ips.iter().chain(&inside.ipv6).cloned().collect();
        ensure!(reported == found, "the claim has {reported:?}, the pod {found:?}");
    }
    for (from, to) in [("one", "two"), ("two", "one")] {
        test.ping6(from, to, "net1")?;
        if ipv4 > 0 {
            test.ping(from, to, "net1")?;
        }
    }
    test.delete_pod("one")?;
    test.delete_pod("two")
}

fn a_pod_gets_an_ipv6_address(test: &Test<'_>) -> Result<()> {
    two_pods_get(test, &json!([{"subnet": test.subnet6()}]), [0, 1])
}

fn a_pod_gets_an_address_of_each_family(test: &Test<'_>) -> Result<()> {
    two_pods_get(test, &json!([{"subnet": test.subnet(0)}, {"subnet": test.subnet6()}]), [1, 1])
}

fn a_pod_gets_the_ipv6_address_that_its_claim_asks_for(test: &Test<'_>) -> Result<()> {
    let address = test.address6(0xab);
    let network = network(test, &json!({"ranges": [{"subnet": test.subnet6()}], "reserved": [address]}))?;
    let start = |name: &str| {
        test.pod_with(name, &network, |claim, _| {
            claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] =
                json!({"requests": {"addresses": "0"}});
            // As a person may write it.
            let address = address.to_uppercase();
            claim["spec"]["devices"]["config"] = json!([attachment(json!({"ips": [address]}))]);
        })?;
        test.runs_with(name, &["net1"])?;
        let found = test.interface(name, "net1")?;
        ensure!(found.ips.is_empty() && found.ipv6 == [format!("{address}/64")], "{name} has {found:?}");
        test.delete_pod(name)
    };
    start("one")?;
    start("another")
}

fn the_link_of_the_nodes_own_traffic_is_not_a_device(test: &Test<'_>) -> Result<()> {
    // Its address and its default route are of IPv6 where the cluster has no others.
    test.is_published("nic-eth2", |_| true)?;
    for device in ["nic-eth0", "macvlan-eth0"] {
        ensure!(test.cluster.device(device)?.is_none(), "{device} is published");
    }
    let network = test.network_on("eth0", "a", |_| {})?;
    test.is_published(&format!("net-{network}"), |_| true)
}

fn netclaimctl_reads_the_cluster_and_asks_agents(test: &Test<'_>) -> Result<()> {
    let network = network(test, &json!({"ranges": [{"subnet": test.subnet6()}]}))?;
    test.start_pod("p", &network)?;
    eventually(40, "all is well", || {
        let report = test.netclaimctl(&["status", "--output=json"])?;
        ensure!(report["nodes"][0]["agent"] == "Ready" && report["problems"] == json!([]), "{report:#}");
        // Only the agent knows which program a plugin is.
        let node = test.netclaimctl(&["status", "--node=node0", "--output=json"])?;
        let mut paths = list(&node["plugins"]).map(|plugin| text(&plugin["path"]));
        ensure!(paths.any(|path| path == "/opt/cni/bin/host-local"), "{node:#}");
        Ok(())
    })?;
    test.delete_pod("p")
}

fn pods_that_end_leave_no_addresses(test: &Test<'_>) -> Result<()> {
    let ranges = json!([{"subnet": test.subnet(0)}, {"subnet": test.subnet6()}]);
    let network = network(test, &json!({"ranges": ranges}))?;
    test.start_pod("p", &network)?;
    test.delete_pod("p")?;
    test.nodes_are_clean()?;
    test.node_has_leases(0)?;
    test.kubectl(&["delete", "claimnetwork", &network, "--timeout=60s"])?;
    test.kubectl(&["wait", "--for=delete", "addressblocks.netclaim.dev", "--all", "--timeout=60s"]).map(drop)
}
