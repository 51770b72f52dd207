//! Addresses of `spec.addresses` on several nodes: none twice, none lost, and blocks where pods need them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{attachment, claim, claim_template, list, pod, pod_of_template, request, text};
use netclaim_tests::{AGENT_PODS, CONTROLLER, SYSTEM, Test, eventually, long};
use serde_json::{Value, json};

use crate::lost_nodes::lose;

/// Pods of the test of duplicates, and those where there is time.
const PODS: [usize; 2] = [24, 60];
/// Seconds until the first blocks of a ClaimNetwork are on all nodes.
const LEASED: u64 = 20;
/// Seconds after which blocks of a node that is gone go to others (`NETCLAIM_NODE_GONE_AFTER` of the
/// cluster), with some more: the leader may have been on that node, and the next one counts from its own
/// first look.
const NODE_GONE: u64 = 120;

/// Has a ClaimNetwork hand out these addresses.
pub(crate) fn with_addresses(network: &mut Value, addresses: Value) {
    network["spec"]["addresses"] = addresses;
    network["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
}

/// Creates a ClaimNetwork `a` on eth1 with these addresses, and waits until nodes have blocks of it.
pub fn network(test: &Test<'_>, addresses: Value, nodes: usize) -> Result<String> {
    let name = test.network("a", |network| with_addresses(network, addresses))?;
    eventually(LEASED, &format!("{nodes} nodes have a block"), || {
        let having: BTreeSet<String> = blocks(test, &name)?.into_iter().map(|block| block.node).collect();
        ensure!(having.len() == nodes, "{having:?} have one");
        Ok(())
    })?;
    Ok(name)
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) name: String,
    pub(crate) node: String,
    cidr: String,
}

/// The blocks of a ClaimNetwork.
pub(crate) fn blocks(test: &Test<'_>, network: &str) -> Result<Vec<Block>> {
    let all = test.cluster.get(&["addressblocks"])?;
    let of_network = list(&all["items"]).filter(|block| block["spec"]["networkName"] == network);
    Ok(of_network
        .map(|block| Block {
            name: text(&block["metadata"]["name"]),
            node: text(&block["spec"]["nodeName"]),
            cidr: text(&block["spec"]["cidr"]),
        })
        .collect())
}

/// Makes sure that no address is in two pods; returns the pods by address.
pub(crate) fn no_duplicates(
    test: &Test<'_>,
    pods: &[String],
    families: usize,
) -> Result<BTreeMap<String, String>> {
    no_duplicates_on(test, "net1", pods, families)
}

fn no_duplicates_on(
    test: &Test<'_>,
    interface: &str,
    pods: &[String],
    families: usize,
) -> Result<BTreeMap<String, String>> {
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for pod in pods {
        let interface = test.interface(pod, interface)?;
        let addresses: Vec<&String> = interface.ips.iter().chain(&interface.ipv6).collect();
        ensure!(addresses.len() == families, "{pod} has {addresses:?}");
        for address in addresses {
            if let Some(other) = owners.insert(address.clone(), pod.clone()) {
                anyhow::bail!("{address} is in {other} and in {pod}");
            }
        }
    }
    Ok(owners)
}

/// Has the scheduler give each node as many of these pods.
fn spread(mut pod: Value) -> Value {
    pod["metadata"]["labels"] = json!({"app": "spread"});
    pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "spread"}}}]);
    pod
}

pub fn pods_that_start_at_once_on_three_nodes_have_different_addresses_and_reach_each_other(
    test: &Test<'_>,
) -> Result<()> {
    let ranges = json!([{"subnet": test.subnet(0)}, {"subnet": test.subnet6()}]);
    let network = network(test, json!({"ranges": ranges}), 3)?;
    let names: Vec<String> = (0..PODS[usize::from(long())]).map(|n| format!("p{n}")).collect();
    let pods = names.iter().map(|name| spread(pod_of_template(name, "net")));
    test.create([claim_template("net", &network)].into_iter().chain(pods))?;
    // Many pods at once take their time. None may take the minute after which a kubelet retries: addresses
    // that a node lacks keep pods Pending, and are not a reason to refuse a claim.
    test.kubectl(&["wait", "--for=condition=Ready", "pods", "--all", "--timeout=300s"])?;
    test.no_claim_was_refused()?;
    let owners = no_duplicates(test, &names, 2)?;
    let nodes: BTreeSet<String> = names.iter().map(|pod| test.node_of(pod)).collect::<Result<_>>()?;
    ensure!(nodes.len() == 3, "the pods are on {nodes:?}");
    every_pair_pings(test, &names, &owners)
}

/// How many pods ping before the neighbour tables are emptied: all nodes share that of one kernel, with 1,024
/// places, and other clusters on the machine have entries there, too. A pod that pings costs 120.
const PINGING: usize = 4;

/// Makes sure that every pod reaches every address.
fn every_pair_pings(test: &Test<'_>, pods: &[String], owners: &BTreeMap<String, String>) -> Result<()> {
    let targets: Vec<&str> = owners.keys().map(|ip| ip.split('/').next().unwrap_or_default()).collect();
    let script = "for ip in \"$@\"; do n=0; until ping -c 1 -W 2 $ip >/dev/null 2>&1; do \
                  n=$((n + 1)); [ $n != 4 ] || { echo $ip; break; }; done; done";
    let node = test.cluster.node();
    let netns = |pod: &String| Ok::<_, anyhow::Error>(test.sandbox(pod)?.netns);
    let all: Vec<_> = pods.iter().map(netns).collect::<Result<_>>()?;
    for (pods, of_pods) in pods.chunks(PINGING).zip(all.chunks(PINGING)) {
        for (pod, netns) in pods.iter().zip(of_pods) {
            let lost = node
                .in_network(netns, &[["busybox", "sh", "-c", script, "-"].as_slice(), &targets].concat())?;
            ensure!(lost.trim().is_empty(), "{pod} does not reach {lost}");
        }
        for netns in &all {
            node.in_network(netns, &["ip", "neigh", "flush", "all"])?;
        }
    }
    Ok(())
}

/// A pod with one claim, which asks for `count` interfaces of a ClaimNetwork.
fn many(network: &str, count: usize) -> [Value; 2] {
    let mut claim = claim("many", network);
    let requests = (1..=count).map(|n| request(&format!("r{n}"), network));
    claim["spec"]["devices"]["requests"] = requests.collect();
    [claim, pod("many", &["many"])]
}

pub fn a_pod_starts_soon_that_needs_more_addresses_than_its_node_has_left(test: &Test<'_>) -> Result<()> {
    let network =
        network(test, json!({"ranges": [{"subnet": test.subnet(0)}], "blockSize": {"ipv4": 29}}), 3)?;
    let begin = Instant::now();
    test.create(many(&network, 9))?;
    let names: Vec<String> = (1..=9).map(|n| format!("net{n}")).collect();
    test.runs_with("many", &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let after = begin.elapsed();
    ensure!(after < Duration::from_secs(30), "it started after {after:?}");
    println!("a pod with nine interfaces started after {:.1} s", after.as_secs_f64());
    Ok(())
}

pub fn a_pod_that_needs_more_addresses_than_there_are_is_told_so(test: &Test<'_>) -> Result<()> {
    let subnet = test.subnet(0).replace("/24", "/29");
    let network = network(test, json!({"ranges": [{"subnet": subnet}], "blockSize": {"ipv4": 30}}), 2)?;
    test.create(many(&network, 9))?;
    test.is_unschedulable("many")?;
    test.event("many", &["NetworkNotAllocated", &network, "needs 9 addresses, ", "of them are free"])
        .map(drop)
}

pub fn a_pod_waits_until_an_address_is_free_on_any_node(test: &Test<'_>) -> Result<()> {
    // 10.x.y.0/29 in two blocks: .2 and .3, and .4 to .6. The gateway is .1.
    let subnet = test.subnet(0).replace("/24", "/29");
    let network = network(test, json!({"ranges": [{"subnet": subnet}], "blockSize": {"ipv4": 30}}), 2)?;
    let names: Vec<String> = (0..5).map(|n| format!("p{n}")).collect();
    for name in &names {
        test.pod(name, &network)?;
    }
    for name in &names {
        test.runs_with(name, &["net1"])?;
    }
    no_duplicates(test, &names, 1)?;
    test.pod("late", &network)?;
    test.is_unschedulable("late")?;
    test.condition(30, ["claimnetwork", &network], "AddressesAvailable", |condition| {
        condition["status"] == "False" && condition["reason"] == "Exhausted"
    })?;
    // Node autoscalers make new nodes after the ones that there are, and a new node would get no address.
    let device = format!("net-{network}");
    for node in ["node0", "node1", "node2"] {
        test.is_published_on(node, &device, is_exhausted)?;
    }
    test.delete_pod("p3")?;
    test.runs_with("late", &["net1"])?;
    test.delete_pod("late")?;
    test.delete_pod("p0")?;
    let left = |node| {
        Ok::<_, anyhow::Error>(test.cluster.device_of(node, &device)?.is_some_and(|d| !is_exhausted(&d)))
    };
    eventually(30, "a node with a free address says so", || {
        ensure!(
            ["node0", "node1", "node2"].into_iter().map(left).collect::<Result<Vec<_>>>()?.contains(&true),
            "none"
        );
        Ok(())
    })
}

fn is_exhausted(device: &Value) -> bool {
    // A node without a block, or one whose addresses are all in use.
    let keys = ["netclaim.dev/exhausted", "netclaim.dev/full"];
    list(&device["taints"]).any(|taint| keys.iter().any(|key| taint["key"] == **key))
}

/// Addresses of a /24 without the gateway.
const RANGE: usize = 253;

pub fn a_range_is_used_up_to_its_last_address_and_no_pod_waits_on_a_node(test: &Test<'_>) -> Result<()> {
    if !long() {
        return test.skip("it takes minutes: make test-faults");
    }
    // Three networks for each pod, so that fewer pods are enough.
    const PODS: usize = 78;
    let network = network(test, json!({"ranges": [{"subnet": test.subnet(0)}]}), 3)?;
    let device = format!("net-{network}");
    let watch = test.cluster.watch_slices()?;
    let (begin, names): (_, Vec<String>) = (Instant::now(), (0..PODS).map(|n| format!("p{n}")).collect());
    let mut three = claim_template("three", &network);
    three["spec"]["spec"]["devices"]["requests"] =
        ["a", "b", "c"].map(|name| request(name, &network)).to_vec().into();
    let pods = names.iter().map(|name| spread(pod_of_template(name, "three")));
    test.create([three, claim_template("net", &network)].into_iter().chain(pods))?;
    test.kubectl(&["wait", "--for=condition=Ready", "pods", "--all", "--timeout=600s"])?;
    eprintln!(
        "         {PODS} pods of three addresses on three nodes ran after {:.0} s",
        begin.elapsed().as_secs_f64()
    );
    test.no_claim_was_refused()?;
    let mut owners = no_duplicates(test, &names, 1)?;
    for interface in ["net2", "net3"] {
        for (address, pod) in no_duplicates_on(test, interface, &names, 1)? {
            ensure!(owners.insert(address.clone(), pod).is_none(), "{address} is in two pods");
        }
    }
    // Five more than there are addresses: each that is bound runs, and the others wait for a node.
    let more: Vec<String> = (3 * PODS..RANGE + 5).map(|n| format!("p{n}")).collect();
    test.create(more.iter().map(|name| pod_of_template(name, "net")))?;
    let on_node =
        |name: &String| Ok::<_, anyhow::Error>(!test.get("pod", name)?["spec"]["nodeName"].is_null());
    eventually(120, "the last addresses are in use", || {
        let bound =
            more.iter().map(on_node).collect::<Result<Vec<_>>>()?.into_iter().filter(|bound| *bound).count();
        ensure!(bound == RANGE - 3 * PODS, "{bound} pods have a node");
        Ok(())
    })?;
    for name in more.iter().filter(|name| on_node(name).unwrap_or(true)) {
        test.runs(name)?;
    }
    test.no_claim_was_refused()?;
    for node in ["node0", "node1", "node2"] {
        test.is_published_on(node, &device, is_exhausted)?;
    }
    // At no time did the nodes together promise more than the range has.
    let mut promised: BTreeMap<String, usize> = BTreeMap::new();
    let mut writes = 0;
    for event in watch.during(Duration::from_secs(1)) {
        let Some(published) = event.device(&device) else { continue };
        let number = text(&published["capacity"]["addresses"]["value"]).parse()?;
        promised.insert(text(&event.slice["spec"]["nodeName"]), number);
        writes += 1;
        let all: usize = promised.values().sum();
        ensure!(all <= RANGE, "{promised:?}: more than {RANGE}");
    }
    eprintln!("         {writes} writes of slices; in the end {promised:?}");
    Ok(())
}

pub fn an_idle_block_goes_to_the_node_of_a_pod_that_waits(test: &Test<'_>) -> Result<()> {
    let subnet = test.subnet(0).replace("/24", "/29");
    let network = network(test, json!({"ranges": [{"subnet": subnet}], "blockSize": {"ipv4": 30}}), 2)?;
    let having: BTreeSet<String> = blocks(test, &network)?.into_iter().map(|block| block.node).collect();
    let without = test.cluster.nodes().iter().map(|node| node.name()).find(|name| !having.contains(name));
    test.pod_on(&without.context("every node has one")?, "p", &network)?;
    test.runs_with("p", &["net1"])
}

/// Seconds after which a node gives an empty block back in the next scenario. Elsewhere it stays at five
/// minutes, in which no block moves without need.
const IDLE_AFTER: u64 = 10;

pub fn an_empty_block_is_given_back_after_the_idle_time_and_another_node_gets_it(
    test: &Test<'_>,
) -> Result<()> {
    // Five blocks of eight addresses: one on each node, and two more on the node of a pod with nine.
    let range =
        json!({"subnet": test.subnet(0), "rangeStart": test.address(0, 8), "rangeEnd": test.address(0, 47)});
    let network = network(test, json!({"ranges": [range], "blockSize": {"ipv4": 29}}), 3)?;
    let of = |node: &str| -> Result<BTreeSet<String>> {
        let of_node = blocks(test, &network)?.into_iter().filter(|block| block.node == node);
        Ok(of_node.map(|block| block.name).collect())
    };
    let run_on = |node: &str| -> Result<()> {
        let [claim, mut pod] = many(&network, 9);
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        test.create([claim, pod])?;
        test.runs("many")
    };
    run_on("node0")?;
    let had = eventually(30, "node0 has all blocks that were free", || {
        let had = of("node0")?;
        ensure!(had.len() == 3, "it has {had:?}");
        Ok(had)
    })?;
    test.cluster.with_agent_env("NETCLAIM_BLOCK_IDLE_AFTER", &IDLE_AFTER.to_string(), || {
        test.delete_pod("many")?;
        let kept = eventually(60, "node0 has one block left", || {
            let left = of("node0")?;
            ensure!(left.len() == 1, "it has {left:?}");
            Ok(left)
        })?;
        run_on("node2")?;
        let given = of("node2")?;
        ensure!(given.intersection(&had).next().is_some(), "node0 had {had:?}, node2 has {given:?}");
        ensure!(given.is_disjoint(&kept), "node0 and node2 have {kept:?}");
        test.delete_pod("many")
    })
}

pub fn idle_blocks_go_to_the_one_node_on_which_pods_wait(test: &Test<'_>) -> Result<()> {
    // Three blocks of 2, 4 and 4 addresses, one on each node.
    let range = json!({"subnet": test.subnet(0).replace("/24", "/28"),
        "exclude": [format!("{}-{}", test.address(0, 12), test.address(0, 14))]});
    let network = network(test, json!({"ranges": [range], "blockSize": {"ipv4": 30}}), 3)?;
    let names: Vec<String> = (0..6).map(|n| format!("p{n}")).collect();
    for name in &names {
        test.pod_on("node0", name, &network)?;
    }
    test.kubectl(&["wait", "--for=condition=Ready", "pods", "--all", "--timeout=90s"])?;
    no_duplicates(test, &names, 1)?;
    // A block that an admin deletes goes to the node on which a pod waits, too, and not back to its own.
    let rest = ["p6", "p7", "p8", "p9"];
    for name in rest {
        test.pod_on("node0", name, &network)?;
    }
    test.is_unschedulable("p9")?;
    if let Some(block) = blocks(test, &network)?.iter().find(|block| block.node != "node0") {
        test.cluster.kubectl(&["delete", "addressblock", &block.name, "--wait=false"])?;
    }
    test.kubectl(&["wait", "--for=condition=Ready", "pods", "--all", "--timeout=90s"])?;
    let all: Vec<String> = names.into_iter().chain(rest.map(String::from)).collect();
    no_duplicates(test, &all, 1).map(drop)
}

pub fn pods_start_without_the_controller_while_blocks_last(test: &Test<'_>) -> Result<()> {
    let addresses = json!({"ranges": [{"subnet": test.subnet(0)}], "blockSize": {"ipv4": 29}});
    let network = network(test, addresses, 3)?;
    test.cluster.controller_away()?;
    let shown = || -> Result<()> {
        let nodes = test.cluster.nodes();
        let names: Vec<String> = (0..9).map(|n| format!("p{n}")).collect();
        for (n, name) in names.iter().enumerate() {
            test.pod_on(&nodes[n % nodes.len()].name(), name, &network)?;
        }
        for name in &names {
            test.runs_with(name, &["net1"])?;
        }
        no_duplicates(test, &names, 1).map(drop)
    };
    let (shown, back) = (shown(), test.cluster.controller_back());
    shown.and(back)
}

pub fn addresses_of_a_deleted_node_return_after_the_safety_time(test: &Test<'_>) -> Result<()> {
    let network = network_with_reserved(test)?;
    test.pod_on("node2", "lost", &network)?;
    test.runs_with("lost", &["net1"])?;
    let fixed = test.address(0, 203);
    let mut first = pod("first", &["c"]);
    first["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "node2"});
    test.create([asking("c", &network, &fixed), first])?;
    test.runs_with("first", &["net1"])?;
    let user = || -> Result<Value> {
        Ok(test.cluster.get(&["addressleases", &format!("{network}.{fixed}")])?["status"]["nodeName"].clone())
    };
    ensure!(user()? == "node2", "{} uses the address", user()?);
    let address = test.ip("lost", "net1")?;
    lose(test, "node2")?;
    let of_node = || -> Result<Vec<Block>> {
        Ok(blocks(test, &network)?.into_iter().filter(|block| block.node == "node2").collect())
    };
    ensure!(!of_node()?.is_empty(), "its blocks are gone at once: they may be in use");
    ensure!(user()? == "node2", "the claim's address is free at once: it may be in use");
    eventually(NODE_GONE, "the node's blocks are gone", || {
        let left = of_node()?;
        ensure!(left.is_empty(), "{left:?}");
        ensure!(user()?.is_null(), "{} still uses the claim's address", user()?);
        Ok(())
    })?;
    // The claim has its address on another node now.
    test.create([pod("second", &["c"])])?;
    test.runs_with("second", &["net1"])?;
    ensure!(test.ip("second", "net1")? == fixed, "{}, not {fixed}", test.ip("second", "net1")?);
    // Another node can have the address of the other pod, too: it is the only one left.
    test.kubectl(&["delete", "pod", "second", "--timeout=60s"])?;
    test.kubectl(&["delete", "resourceclaim", "c", "--timeout=60s"])?;
    let only = json!([{"subnet": test.subnet(0), "rangeStart": address, "rangeEnd": address}]);
    let only = json!({"spec": {"addresses": {"ranges": only, "reserved": null}}}).to_string();
    test.cluster.kubectl(&["patch", "claimnetwork", &network, "--type=merge", "-p", &only])?;
    test.start_pod("next", &network)?;
    ensure!(test.ip("next", "net1")? == address, "{}, not {address}", test.ip("next", "net1")?);
    Ok(())
}

pub fn a_controller_that_dies_while_it_leases_hands_out_nothing_twice(test: &Test<'_>) -> Result<()> {
    let addresses = json!({"ranges": [{"subnet": test.subnet(0)}], "blockSize": {"ipv4": 30}});
    let network = network(test, addresses, 3)?;
    let names: Vec<String> = (0..24).map(|n| format!("p{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        test.pod(name, &network)?;
        // The kubelet starts each later one after a longer time.
        if [4, 10].contains(&n) || long() && n == 16 {
            eventually(60, "the next controller is killed", || test.cluster.kill_controller())?;
        }
    }
    for name in &names {
        test.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"])?;
    }
    no_duplicates(test, &names, 1)?;
    test.cluster.controller_ready()
}

pub fn two_networks_draw_from_one_pool(test: &Test<'_>) -> Result<()> {
    let pool = test.name("pool");
    test.create([json!({
        "apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": pool},
        "spec": {"ranges": [{"subnet": test.subnet(0)}], "reserved": [test.address(0, 250)]},
    })])?;
    let mut names = Vec::new();
    for letter in ["a", "b"] {
        let network = test.network(letter, |network| {
            with_addresses(network, json!({"poolName": pool}));
            network["spec"]["allow"] = json!({"ips": {}});
        })?;
        for n in 0..6 {
            let name = format!("{letter}{n}");
            test.pod(&name, &network)?;
            names.push(name);
        }
    }
    for name in &names {
        test.runs_with(name, &["net1"])?;
    }
    test.create([asking_alone("asks", &test.name("b"), &test.address(0, 250)), pod("asks", &["asks"])])?;
    test.runs_with("asks", &["net1"])?;
    names.push("asks".to_owned());
    no_duplicates(test, &names, 1)?;
    // The pool has no blockSize: the controller has recorded the one that it chose before it leased the first
    // block.
    let recorded = test.cluster.get(&["addresspool", &pool])?["status"]["addresses"]["blockSize"].clone();
    ensure!(recorded["ipv4"].is_u64(), "the recorded size is {recorded}");
    Ok(())
}

/// A claim for an address of the reserved part.
pub(crate) fn asking(name: &str, class: &str, ip: &str) -> Value {
    let mut claim = claim(name, class);
    claim["spec"]["devices"]["config"] = json!([attachment(json!({"ips": [ip]}))]);
    claim
}

/// Creates a ClaimNetwork `a` of which claims can ask for addresses from .200 on.
fn network_with_reserved(test: &Test<'_>) -> Result<String> {
    let reserved = format!("{}-{}", test.address(0, 200), test.address(0, 250));
    let name = test.network("a", |network| {
        with_addresses(network, json!({"ranges": [{"subnet": test.subnet(0)}], "reserved": [reserved]}));
        network["spec"]["allow"] = json!({"ips": {}});
    })?;
    eventually(LEASED, "3 nodes have a block", || {
        ensure!(blocks(test, &name)?.len() == 3, "{:?}", blocks(test, &name)?);
        Ok(())
    })?;
    Ok(name)
}

pub fn a_claim_keeps_the_address_that_it_asked_for_on_every_node(test: &Test<'_>) -> Result<()> {
    let network = network_with_reserved(test)?;
    let ip = test.address(0, 201);
    test.create([asking("c", &network, &ip)])?;
    for node in ["node0", "node1", "node0"] {
        let mut object = pod("p", &["c"]);
        object["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        test.create([object])?;
        test.runs_with("p", &["net1"])?;
        ensure!(test.ip("p", "net1")? == ip, "{} on {node}", test.ip("p", "net1")?);
        let lease = test.cluster.get(&["addressleases", &format!("{network}.{ip}")])?;
        ensure!(lease["spec"]["holder"]["name"] == "c" && lease["status"]["nodeName"] == node, "{lease}");
        test.kubectl(&["delete", "pod", "p", "--timeout=60s"])?;
    }
    test.kubectl(&["delete", "resourceclaim", "c", "--timeout=60s"])?;
    eventually(60, "the address is free", || {
        let leases = test.cluster.get(&["addressleases"])?;
        let left = list(&leases["items"]).find(|lease| lease["spec"]["networkName"] == network);
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    })
}

/// A claim for an address that needs none of a node.
pub(crate) fn asking_alone(name: &str, class: &str, ip: &str) -> Value {
    let mut claim = asking(name, class, ip);
    claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = json!({"requests": {"addresses": "0"}});
    claim
}

pub fn a_pod_with_a_reserved_address_starts_and_starts_again_in_a_full_range(test: &Test<'_>) -> Result<()> {
    // Two blocks for three nodes: .2 and .3, and .4 and .5.
    let subnet = test.subnet(0).replace("/24", "/29");
    let ip = test.address(0, 6);
    let network = test.network("a", |network| {
        let size = json!({"ipv4": 30});
        with_addresses(network, json!({"ranges": [{"subnet": subnet}], "blockSize": size, "reserved": [ip]}));
        network["spec"]["allow"] = json!({"ips": {}});
    })?;
    let names: Vec<String> = (0..4).map(|n| format!("p{n}")).collect();
    for name in &names {
        test.pod(name, &network)?;
    }
    for name in &names {
        test.runs_with(name, &["net1"])?;
    }
    let having: BTreeSet<String> = blocks(test, &network)?.into_iter().map(|block| block.node).collect();
    let nodes: Vec<String> = test.cluster.nodes().iter().map(|node| node.name()).collect();
    let without = nodes.iter().find(|name| !having.contains(*name)).context("every node has a block")?;
    test.create([asking_alone("db", &network, &ip)])?;
    // On a node without a block, on one whose block is full, and again on that.
    let full = having.first().context("no node has a block")?;
    for node in [without, full, full] {
        let mut db = pod("db", &["db"]);
        db["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        test.create([db])?;
        test.runs_with("db", &["net1"])?;
        ensure!(test.ip("db", "net1")? == ip, "{} on {node}", test.ip("db", "net1")?);
        test.kubectl(&["delete", "pod", "db", "--timeout=60s"])?;
    }
    test.kubectl(&["delete", "resourceclaim", "db", "--timeout=60s"])?;
    // Without the 0 it waits as before, and is told what to write; one that only writes the 0 is refused.
    test.create([asking("old", &network, &ip), pod("old", &["old"])])?;
    test.is_unschedulable("old")?;
    test.event("old", &["NetworkNotAllocated", "write capacity.requests.addresses: \"0\""])?;
    test.pod_with("none", &network, |claim, _| {
        claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] =
            json!({"requests": {"addresses": "0"}});
    })?;
    test.event("none", &["FailedPrepareDynamicResources", "capacity.requests.addresses: is 0"]).map(drop)
}

pub fn a_network_whose_addresses_are_all_reserved_serves_claims_that_ask(test: &Test<'_>) -> Result<()> {
    let subnet = test.subnet(0).replace("/24", "/28");
    let network = test.network("a", |network| {
        with_addresses(network, json!({"ranges": [{"subnet": subnet}], "reserved": [subnet]}));
        network["spec"]["allow"] = json!({"ips": {}});
    })?;
    let ip = test.address(0, 5);
    test.create([asking_alone("db", &network, &ip), pod("db", &["db"])])?;
    test.runs_with("db", &["net1"])?;
    ensure!(test.ip("db", "net1")? == ip, "{}", test.ip("db", "net1")?);
    test.pod("other", &network)?;
    test.is_unschedulable("other")?;
    test.condition(30, ["claimnetwork", &network], "AddressesAvailable", |condition| {
        condition["status"] == "True" && condition["reason"] == "OnlyReserved"
    })?;
    ensure!(blocks(test, &network)?.is_empty(), "{:?}", blocks(test, &network)?);
    Ok(())
}

pub fn no_pod_gets_an_address_that_another_one_has_from_an_ipam_of_before(test: &Test<'_>) -> Result<()> {
    let subnet = test.subnet(0);
    let network = test.network("a", |network| {
        network["spec"]["cni"]["plugins"][0]["ipam"] =
            json!({"type": "host-local", "ranges": [[{"subnet": subnet}]]});
    })?;
    let old: Vec<String> = (0..3).map(|n| format!("old{n}")).collect();
    for name in &old {
        test.pod_on("node1", name, &network)?;
    }
    for name in &old {
        test.runs_with(name, &["net1"])?;
    }
    let mut patch = json!({"spec": {"addresses": {"ranges": [{"subnet": subnet}]}}});
    let mut plugins = test.cluster.get(&["claimnetwork", &network])?["spec"]["cni"]["plugins"].clone();
    plugins[0]["ipam"] = json!("${addresses}");
    patch["spec"]["cni"] = json!({"plugins": plugins});
    test.cluster.kubectl(&["patch", "claimnetwork", &network, "--type=merge", "-p", &patch.to_string()])?;
    let new: Vec<String> = (0..4).map(|n| format!("new{n}")).collect();
    for name in &new {
        test.pod_on("node0", name, &network)?;
    }
    for name in &new {
        test.runs_with(name, &["net1"])?;
    }
    no_duplicates(test, &[old.clone(), new].concat(), 1)?;
    let pod = format!(
        "of node node1 remains as long as pod {}/old0 has {}",
        test.namespace(),
        test.ip("old0", "net1")?
    );
    test.condition(30, ["claimnetwork", &network], "Accepted", |condition| {
        condition["reason"] == "AcceptedWithWarnings" && text(&condition["message"]).contains(&pod)
    })?;
    // What the controller found stays the pod's, on its node.
    let lease = test.cluster.get(&["addressleases", &format!("{network}.{}", test.ip("old1", "net1")?)])?;
    ensure!(lease["spec"]["holder"]["name"] == "old1" && lease["status"]["nodeName"] == "node1", "{lease}");
    Ok(())
}

pub fn an_address_that_another_claim_has_is_refused_with_its_name(test: &Test<'_>) -> Result<()> {
    let network = network_with_reserved(test)?;
    let ip = test.address(0, 202);
    test.create([asking("first", &network, &ip), pod("first", &["first"])])?;
    test.runs_with("first", &["net1"])?;
    test.create([asking("second", &network, &ip), pod("second", &["second"])])?;
    let holder = format!("{ip} is taken by ResourceClaim {}/first", test.namespace());
    test.event("second", &["FailedPrepareDynamicResources", &holder])?;
    test.create([asking("third", &network, &test.address(0, 7)), pod("third", &["third"])])?;
    test.event(
        "third",
        &["FailedPrepareDynamicResources", "is none of the addresses that claims can ask for"],
    )
    .map(drop)
}

pub fn a_lease_that_an_admin_deletes_stays_until_its_pod_has_ended(test: &Test<'_>) -> Result<()> {
    let network = network_with_reserved(test)?;
    let ip = test.address(0, 204);
    let on = |node: &str, name: &str| {
        let mut object = pod(name, &[name]);
        object["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        [asking(name, &network, &ip), object]
    };
    test.create(on("node0", "first"))?;
    test.runs_with("first", &["net1"])?;
    let lease = format!("{network}.{ip}");
    eventually(30, "the controller has confirmed the lease", || {
        let labels = test.cluster.get(&["addressleases", &lease])?["metadata"]["labels"].clone();
        ensure!(labels["netclaim.dev/confirmed"] == "true", "{labels}");
        Ok(())
    })?;
    test.cluster.kubectl(&["delete", "addresslease", &lease, "--wait=false"])?;
    test.create(on("node1", "second"))?;
    test.event("second", &["FailedPrepareDynamicResources", &format!("{ip} is taken by ResourceClaim")])?;
    let deleted = test.cluster.get(&["addressleases", &lease])?;
    ensure!(deleted["metadata"]["deletionTimestamp"].is_string(), "{deleted}");
    ensure!(deleted["status"]["nodeName"] == "node0", "{deleted}");
    test.delete_pod("first")?;
    test.wake("second")?;
    test.runs_with("second", &["net1"])?;
    ensure!(test.ip("second", "net1")? == ip, "{}", test.ip("second", "net1")?);
    let lease = test.cluster.get(&["addressleases", &lease])?;
    ensure!(lease["spec"]["holder"]["name"] == "second", "{lease}");
    Ok(())
}

pub fn a_stolen_token_of_an_agent_takes_no_address_from_other_nodes(test: &Test<'_>) -> Result<()> {
    let of_node = ["-n", SYSTEM, "pods", "-l", AGENT_PODS, "--field-selector=spec.nodeName=node2"];
    let agent = test.cluster.get(&of_node)?["items"][0]["metadata"]["name"].clone();
    let token = ["-n", SYSTEM, "create", "token", "netclaim-agent", "--bound-object-kind=Pod"];
    let token =
        test.cluster.kubectl(&[token.as_slice(), &["--bound-object-name", &text(&agent)]].concat())?;
    let thief = |args: &[&str], input: &str| test.cluster.kubectl_as(token.trim(), args, input);
    let network = test.name("a");
    let take = |host: u8| -> Result<String> {
        let ip = test.address(0, host);
        let name = format!("{network}.{ip}");
        let holder = json!({"kind": "ResourceClaim", "namespace": "default", "name": "none", "uid": "none"});
        let lease = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease",
            "metadata": {"name": name, "finalizers": ["netclaim.dev/addresses"]},
            "spec": {"networkName": network, "address": ip, "holder": holder}});
        thief(&["create", "--validate=false", "-f", "-"], &lease.to_string())?;
        let status = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease", "metadata": {"name": name},
            "status": {"nodeName": "node2"}});
        let apply = ["apply", "--server-side", "--subresource=status", "--validate=false", "-f", "-"];
        if let Err(error) = thief(&apply, &status.to_string()) {
            // The controller removes a lease whose claim does not exist within a second.
            ensure!(format!("{error:#}").contains("not found"), "{error:#}");
        }
        Ok(name)
    };
    // All addresses that nodes hand out, and one that a claim is about to ask for.
    let taken = (16..28).chain([29]).map(take).collect::<Result<Vec<_>>>()?;
    test.network("a", |network| {
        let range = json!({"subnet": test.subnet(0), "rangeStart": test.address(0, 16), "rangeEnd": test.address(0, 31)});
        let reserved = [format!("{}-{}", test.address(0, 28), test.address(0, 31))];
        with_addresses(network, json!({"ranges": [range], "reserved": reserved, "blockSize": {"ipv4": 30}}));
        network["spec"]["allow"] = json!({"ips": {}});
    })?;
    eventually(LEASED, "3 nodes have a block", || {
        ensure!(blocks(test, &network)?.len() == 3, "{:?}", blocks(test, &network)?);
        Ok(())
    })?;
    let mut pinned = pod("c", &["c"]);
    pinned["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "node0"});
    test.create([asking("c", &network, &test.address(0, 29)), pinned])?;
    test.runs_with("c", &["net1"])?;
    let own = format!("{network}.{}", test.address(0, 29));
    eventually(60, "what was stolen is free", || {
        for name in taken.iter().filter(|name| **name != own) {
            ensure!(test.cluster.get(&["addressleases", name]).is_err(), "{name} is there");
        }
        Ok(())
    })
}

pub fn a_mac_address_that_another_claim_has_is_refused_with_its_name(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| {
        with_addresses(network, json!({"ranges": [{"subnet": test.subnet(0)}]}));
        network["spec"]["cni"]["plugins"][0]["capabilities"] = json!({"mac": true});
        network["spec"]["allow"] = json!({"mac": {}});
    })?;
    let asking = |name: &str| {
        let mut claim = claim(name, &network);
        claim["spec"]["devices"]["config"] = json!([attachment(json!({"mac": "02:00:5e:10:00:07"}))]);
        claim
    };
    test.create([asking("first"), pod("first", &["first"])])?;
    test.runs_with("first", &["net1"])?;
    ensure!(
        test.interface("first", "net1")?.mac == "02:00:5e:10:00:07",
        "{:?}",
        test.interface("first", "net1")?
    );
    test.create([asking("second"), pod("second", &["second"])])?;
    let holder = format!("02:00:5e:10:00:07 is taken by ResourceClaim {}/first", test.namespace());
    test.event("second", &["FailedPrepareDynamicResources", &holder]).map(drop)
}

pub fn replicas_of_a_stateful_set_keep_their_addresses(test: &Test<'_>) -> Result<()> {
    let network = network_with_reserved(test)?;
    let mut template = claim_template("net", &network);
    let config = attachment(json!({"replicaIPs": [test.address(0, 210)]}));
    template["spec"]["spec"]["devices"]["config"] = json!([config]);
    let mut object = pod_of_template("web", "net");
    object["metadata"] = json!({"labels": {"app": "web"}});
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "serviceName": "web", "podManagementPolicy": "Parallel", "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": object["metadata"], "spec": object["spec"]}},
    });
    test.create([template, set])?;
    let has = |name: &str, host: u8| -> Result<String> {
        eventually(90, &format!("{name} has its address"), || {
            let status = test.get("pod", name)?;
            let ready =
                list(&status["status"]["conditions"]).any(|c| c["type"] == "Ready" && c["status"] == "True");
            ensure!(ready && status["metadata"]["deletionTimestamp"].is_null(), "{}", status["status"]);
            let ip = test.ip(name, "net1")?;
            ensure!(ip == test.address(0, host), "it has {ip}");
            Ok(text(&status["metadata"]["uid"]))
        })
    };
    has("web-1", 211)?;
    let first = has("web-0", 210)?;
    test.kubectl(&["delete", "pod", "web-0", "--timeout=60s"])?;
    let second = has("web-0", 210)?;
    ensure!(first != second, "it is the same pod");
    test.kubectl(&["delete", "statefulset", "web", "--timeout=60s"]).map(drop)
}

pub fn a_range_that_pods_use_is_given_up_when_they_have_ended(test: &Test<'_>) -> Result<()> {
    let network = network(test, json!({"ranges": [{"subnet": test.subnet(0)}]}), 3)?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    let patch = json!({"spec": {"addresses": {"ranges": [{"subnet": test.subnet(1)}]}}}).to_string();
    test.cluster.kubectl(&["patch", "claimnetwork", &network, "--type=merge", "-p", &patch])?;
    let pod = format!("{}/p", test.namespace());
    test.condition(30, ["claimnetwork", &network], "Accepted", |condition| {
        condition["reason"] == "AcceptedWithWarnings" && text(&condition["message"]).contains(&pod)
    })?;
    test.pod("q", &network)?;
    test.runs_with("q", &["net1"])?;
    let of_q = test.ip("q", "net1")?;
    let prefix = test.address(1, 0);
    ensure!(of_q.starts_with(prefix.trim_end_matches('0')), "{of_q}");
    test.delete_pod("p")?;
    eventually(30, "the blocks of the old range are gone", || {
        let old = test.address(0, 0);
        let old = old.trim_end_matches('0');
        let left: Vec<Block> =
            blocks(test, &network)?.into_iter().filter(|block| block.cidr.starts_with(old)).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

pub fn a_range_that_moves_to_another_network_is_in_no_two_pods(test: &Test<'_>) -> Result<()> {
    let upper = json!([{"subnet": test.subnet(0), "rangeStart": test.address(0, 128)}]);
    let a = network(test, json!({"ranges": upper, "blockSize": {"ipv4": 28}}), 3)?;
    test.pod_on("node0", "old", &a)?;
    test.runs_with("old", &["net1"])?;
    let address = test.ip("old", "net1")?;
    let lower = json!([{"subnet": test.subnet(0), "rangeEnd": test.address(0, 127)}]);
    let patch = json!({"spec": {"addresses": {"ranges": lower}}}).to_string();
    test.cluster.kubectl(&["patch", "claimnetwork", &a, "--type=merge", "-p", &patch])?;
    let b = test.network("b", |network| {
        with_addresses(network, json!({"ranges": upper, "blockSize": {"ipv4": 28}}));
    })?;
    let nodes: Vec<String> = test.cluster.nodes().iter().map(|node| node.name()).collect();
    let mut names = vec!["old".to_owned()];
    for node in &nodes {
        for network in [&a, &b] {
            let name = format!("p{}", names.len());
            test.pod_on(node, &name, network)?;
            names.push(name);
        }
    }
    for name in &names {
        test.runs_with(name, &["net1"])?;
    }
    no_duplicates(test, &names, 1)?;
    // Both say who has what is not free yet.
    let holder = format!("{}/old with {address}", test.namespace());
    for network in [&a, &b] {
        test.condition(60, ["claimnetwork", network], "Accepted", |condition| {
            condition["reason"] == "AcceptedWithWarnings" && text(&condition["message"]).contains(&holder)
        })?;
    }
    test.delete_pod("old")?;
    test.condition(60, ["claimnetwork", &b], "Accepted", |condition| condition["reason"] == "Accepted")?;

    // An address that is excluded later ends the block of the pod that has it.
    let taken = test.ip("p2", "net1")?;
    let mut excluding = upper;
    excluding[0]["exclude"] = json!([taken]);
    let patch = json!({"spec": {"addresses": {"ranges": excluding}}}).to_string();
    test.cluster.kubectl(&["patch", "claimnetwork", &b, "--type=merge", "-p", &patch])?;
    let holder = format!("{}/p2 with {taken}", test.namespace());
    test.condition(60, ["claimnetwork", &b], "Accepted", |condition| {
        text(&condition["message"]).contains(&holder)
    })?;
    test.pod_on("node0", "new", &b)?;
    test.runs_with("new", &["net1"])?;
    names[0] = "new".to_owned();
    no_duplicates(test, &names, 1).map(drop)
}

pub fn a_block_that_an_admin_deletes_goes_when_its_last_pod_has_ended(test: &Test<'_>) -> Result<()> {
    let network = network(test, json!({"ranges": [{"subnet": test.subnet(0)}]}), 3)?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    let node = test.node_of("p")?;
    let all = blocks(test, &network)?;
    let block = all.iter().find(|block| block.node == node).context("its node has no block")?;
    test.cluster.kubectl(&["delete", "addressblock", &block.name, "--wait=false"])?;
    // The controller leases another one; the next pod gets an address of that.
    eventually(LEASED, "the node has another block", || {
        let has_other = blocks(test, &network)?.iter().any(|one| one.node == node && one.name != block.name);
        ensure!(has_other, "it has none");
        Ok(())
    })?;
    test.pod_on(&node, "q", &network)?;
    test.runs_with("q", &["net1"])?;
    no_duplicates(test, &["p".to_owned(), "q".to_owned()], 1)?;
    let is_there =
        || Ok::<_, anyhow::Error>(blocks(test, &network)?.iter().any(|one| one.name == block.name));
    ensure!(is_there()?, "it is gone, and a pod has an address of it");
    test.delete_pod("p")?;
    eventually(30, "the block is gone", || {
        ensure!(!is_there()?, "it is there");
        Ok(())
    })
}

/// Changes a ClaimNetwork by a merge patch.
fn change(test: &Test<'_>, network: &str, spec: Value) -> Result<()> {
    let patch = json!({"spec": spec}).to_string();
    test.cluster.kubectl(&["patch", "claimnetwork", network, "--type=merge", "-p", &patch]).map(drop)
}

pub fn a_changed_name_of_the_cni_network_gives_no_address_twice(test: &Test<'_>) -> Result<()> {
    let network = network(test, json!({"ranges": [{"subnet": test.subnet(0)}]}), 3)?;
    let renamed = format!("lan-{network}");
    let pods = ["a", "b", "c"].map(str::to_owned);
    for (pod, name) in pods.iter().zip([Value::Null, json!(renamed), Value::Null]) {
        change(test, &network, json!({"cni": {"name": name}}))?;
        test.pod_on("node0", pod, &network)?;
        test.runs_with(pod, &["net1"])?;
    }
    no_duplicates(test, &pods, 1)?;
    let books = test.cluster.on("node0", &["ls", &format!("/var/lib/cni/networks/{renamed}")])?;
    ensure!(books.contains(&test.ip("b", "net1")?), "the name had no effect: {books}");
    for pod in &pods {
        test.delete_pod(pod)?;
    }
    Ok(())
}

pub fn a_pod_keeps_its_address_in_a_new_sandbox_unless_that_is_excluded(test: &Test<'_>) -> Result<()> {
    let network = network(test, json!({"ranges": [{"subnet": test.subnet(0)}]}), 3)?;
    test.pod_on("node0", "p", &network)?;
    test.runs_with("p", &["net1"])?;
    let first = test.ip("p", "net1")?;
    test.replace_sandbox("p")?;
    ensure!(test.ip("p", "net1")? == first, "it has another address without need");
    // host-local would go on with the next one.
    let (net, host) = first.rsplit_once('.').context("it has no IPv4 address")?;
    let host: u8 = host.parse()?;
    let excluded = [first.clone(), format!("{net}.{}", host + 1)];
    let ranges = json!([{"subnet": test.subnet(0), "exclude": excluded}]);
    change(test, &network, json!({"addresses": {"ranges": ranges}}))?;
    test.replace_sandbox("p")?;
    let second = test.ip("p", "net1")?;
    ensure!(!excluded.contains(&second), "{second} is excluded");
    test.pod_on("node0", "q", &network)?;
    test.runs_with("q", &["net1"])?;
    let all = no_duplicates(test, &["p".to_owned(), "q".to_owned()], 1)?;
    ensure!(all.keys().all(|address| !excluded.contains(address)), "{all:?}");
    Ok(())
}

pub fn a_network_with_the_same_range_on_each_node_gets_a_warning(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.condition(30, ["claimnetwork", &network], "Accepted", |condition| {
        condition["reason"] == "AcceptedWithWarnings"
            && text(&condition["message"]).contains("move the ranges to spec.addresses")
    })
}

/// How long the API server is away, and with `$NETCLAIM_LONG`.
const AWAY: [Duration; 2] = [Duration::from_secs(8), Duration::from_secs(60)];

pub fn addresses_stay_unique_while_the_api_server_is_away(test: &Test<'_>) -> Result<()> {
    let addresses = json!({"ranges": [{"subnet": test.subnet(0)}], "blockSize": {"ipv4": 30}});
    let network = network(test, addresses, 3)?;
    let name = |n: usize| format!("p{n}");
    for n in 0..6 {
        test.pod(&name(n), &network)?;
    }
    test.cluster.service("pause", "apiserver")?;
    std::thread::sleep(AWAY[usize::from(long())]);
    test.cluster.service("resume", "apiserver")?;
    for n in 6..18 {
        test.pod(&name(n), &network)?;
    }
    for n in 0..18 {
        test.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{}", name(n)), "--timeout=240s"])?;
    }
    no_duplicates(test, &(0..18).map(name).collect::<Vec<_>>(), 1)?;
    test.cluster.kubectl(&["rollout", "status", "-n", SYSTEM, CONTROLLER, "--timeout=90s"]).map(drop)
}
