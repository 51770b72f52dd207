//! Pods whose default route leads by a claimed network.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{attachment, claim, pod};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// Something outside of the cluster, and a client that a load balancer would pass on.
const OUTSIDE: &str = "203.0.113.9";

/// Creates a pod, ready when the node's kubelet reaches it by TCP, whose claim asks for the default route.
fn asking_pod(test: &Test<'_>, name: &str, network: &str) -> Result<()> {
    test.pod_with(name, network, |claim, pod| {
        claim["spec"]["devices"]["config"] = json!([attachment(json!({"defaultRoute": true}))]);
        let shell = &mut pod["spec"]["containers"][0];
        let listen =
            "trap 'exit 0' TERM; while :; do nc -l -p 8080 </dev/null >/dev/null; done & sleep 1000000 & wait";
        shell["command"] = json!(["sh", "-c", listen]);
        shell["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    })
}

/// The interface by which packets of the pod to an address leave.
fn way(test: &Test<'_>, pod: &str, to: &[&str]) -> Result<String> {
    let netns = test.sandbox(pod)?.netns;
    let command = [&["ip", "-j", "route", "get"], to].concat();
    let found: Value = serde_json::from_str(&test.cluster.node().in_network(&netns, &command)?)?;
    Ok(found[0]["dev"].as_str().unwrap_or_default().to_owned())
}

pub fn a_default_route_leads_by_the_claimed_network_and_the_cluster_stays_with_eth0(
    test: &Test<'_>,
) -> Result<()> {
    let network = test.network("a", |network| network["spec"]["allow"] = json!({"defaultRoute": {}}))?;
    asking_pod(test, "early", &network)?;
    test.event("early", &["defaultRoute: pods would lose DNS and Services: set agent.clusterCIDRs"])?;
    test.delete_pod("early")?;
    test.cluster.with_agent_env("NETCLAIM_CLUSTER_CIDRS", "10.97.0.0/16", || {
        asking_pod(test, "p", &network)?;
        test.runs("p")?;
        // The kubelet's probes and what they are answered with go by eth0.
        test.kubectl(&["wait", "--for=condition=Ready", "--timeout=60s", "pod/p"])?;
        ensure!(way(test, "p", &[OUTSIDE])? == "net1", "the default route is not net1's");
        let own = test.ip("p", "eth0")?;
        ensure!(way(test, "p", &[OUTSIDE, "from", &own])? == "eth0", "answers do not leave as they came in");
        let host = test.get("node", "node0")?["status"]["addresses"][0]["address"].clone();
        let node = host.as_str().context("the node has no address")?;
        let service = test.kubectl(&["exec", "p", "--", "sh", "-c", "echo $KUBERNETES_SERVICE_HOST"])?;
        for address in [service.trim(), node] {
            ensure!(way(test, "p", &[address])? == "eth0", "{address} is not kept by eth0");
            test.kubectl(&["exec", "p", "--", "ping", "-c", "1", "-W", "5", address])?;
        }
        test.pod("plain", &network)?;
        test.runs("plain")?;
        test.ping("plain", "p", "eth0")?;

        // A second attachment of one pod.
        let asks = |name: &str| {
            let mut claim = claim(name, &network);
            claim["spec"]["devices"]["config"] = json!([attachment(json!({"defaultRoute": true}))]);
            claim
        };
        test.create([asks("one"), asks("two"), pod("both", &["one", "two"])])?;
        test.event(
            "both",
            &["defaultRoute: interface net1 of ResourceClaim", "/one has the IPv4 default route"],
        )?;
        test.does_not_start("both")?;

        for pod in ["p", "plain", "both"] {
            test.delete_pod(pod)?;
        }
        eventually(60, "no address is taken", || test.node_has_leases(0))
    })
}
