//! What the pages about tasks show, applied as it is there, with what their readers then see.
//!
//! The pages about bonds, virtual functions and VLANs for single pods need links that this machine's kernel
//! may not have: their objects are checked (`api/tests/examples.rs`), and `make test-qemu` makes such links.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use netclaim_tests::objects::{attachment, claim_template, list, pod, pod_of_template, text};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

use crate::addresses::no_duplicates;
use crate::disasters::gauge;
use crate::page::Page;
use crate::placement::NodeLabel;

/// The routes of a pod by one of its interfaces.
fn routes(test: &Test<'_>, pod: &str) -> Result<String> {
    test.kubectl(&["exec", pod, "--", "ip", "route", "show", "dev", "net1"])
}

/// Waits until all pods of the scenario are ready.
fn all_run(test: &Test<'_>) -> Result<()> {
    test.kubectl(&["wait", "--for=condition=Ready", "pods", "--all", "--timeout=60s"]).map(drop)
}

/// A pod for one node.
fn on(node: &str, mut pod: Value) -> Value {
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    pod
}

pub fn macvlan_across_nodes_works_as_its_page_shows(test: &Test<'_>) -> Result<()> {
    let page = Page::of(test, "macvlan.md")?;
    let [networks, wide, attachments, ping, neighbours] = page.checks()?;
    test.create(page.objects()?)?;
    test.kubectl(&["wait", "--for=condition=Available", "deployment/talk", "--timeout=120s"])?;
    let pods = test.cluster.get(&["-n", test.namespace(), "pods", "-l", "app=talk"])?;
    let pods: Vec<String> = list(&pods["items"]).map(|pod| text(&pod["metadata"]["name"])).collect();
    let [one, other] = pods.as_slice() else { anyhow::bail!("there are {pods:?}") };
    ensure!(test.node_of(one)? != test.node_of(other)?, "both are on {}", test.node_of(one)?);
    for pod in &pods {
        let address = test.ip(pod, "net1")?;
        let last: Option<u8> = address.strip_prefix("10.20.0.").and_then(|last| last.parse().ok());
        ensure!(last.is_none_or(|last| last > 31) && address.starts_with("10.20."), "{pod} has {address}");
        let routes = test.kubectl(&["exec", pod, "--", "ip", "route"])?;
        ensure!(routes.contains("10.21.0.0/16 via 10.20.0.1 dev net1"), "{routes}");
        ensure!(page.line(&wide, pod)?.contains(&test.node_of(pod)?), "{wide} does not say where {pod} is");
        let shown = page.line(&attachments, pod)?;
        let expected = ["net1", "lan", &format!("{address}/22"), &test.node_of(pod)?, "True", "Attached"];
        ensure!(shown.get(1..) == Some(&expected.map(str::to_owned)), "{shown:?}");
    }
    ensure!(page.line(&networks, "lan")?.contains(&"True".to_owned()), "{:?}", page.line(&networks, "lan")?);
    test.ping(one, other, "net1")?;
    test.ping(other, one, "net1")?;
    // The page has such names of pods, and such an address.
    let with_names = |command: &str| -> Result<String> {
        Ok(command.replace("talk-5c9f6d7c8b-6x2lq", one).replace("10.20.0.66", &test.ip(other, "net1")?))
    };
    page.run(&with_names(&ping)?)?;
    let neighbours = page.run(&with_names(&neighbours)?)?;
    ensure!(neighbours.contains(&test.interface(other, "net1")?.mac), "{neighbours}");
    test.kubectl(&["delete", "deployment", "talk", "--cascade=foreground", "--timeout=60s"]).map(drop)
}

pub fn workloads_get_networks_as_their_page_shows(test: &Test<'_>) -> Result<()> {
    let page = Page::of_docs(test, "workloads.md")?;
    let [attachments, wide, command, log] = page.checks()?;
    test.create(page.objects()?)?;
    for (rollout, what) in [
        ("--for=condition=Available", "deployment/reader"),
        ("--for=jsonpath={.status.readyReplicas}=2", "statefulset/store"),
        ("--for=condition=Complete", "job/import"),
    ] {
        test.kubectl(&["wait", rollout, what, "--timeout=120s"])?;
    }
    let shown = page.run(&attachments)?;
    ensure!(shown.matches("reader-").count() == 2 && shown.contains("data0"), "{shown}");
    page.run(&wide)?;
    for (replica, address) in [("store-0", "10.140.3.10"), ("store-1", "10.140.3.11")] {
        let shown = page.run(&command.replace("store-1", replica))?;
        ensure!(shown.contains(address), "{replica} has {shown}");
    }
    ensure!(page.run(&log)?.contains("inet 10.140."), "{}", page.run(&log)?);
    test.kubectl(&["delete", "deployment,statefulset,job", "--all", "--cascade=foreground", "--timeout=60s"])
        .map(drop)
}

pub fn a_claimed_network_is_the_pods_eth0_as_its_page_shows(test: &Test<'_>) -> Result<()> {
    let page = Page::of(test, "primary-networks.md")?;
    let [ips, routes, endpoints, attachments] = page.checks()?;
    test.cluster.with_primary_networks(|| {
        test.create(page.objects()?)?;
        test.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=120s"])?;
        let own = test.ip("web", "eth0")?;
        ensure!(own.starts_with("10.91."), "eth0 has {own}");
        for (command, has) in [(&ips, own.as_str()), (&routes, "dev eth0"), (&endpoints, own.as_str())] {
            let shown = page.run(command)?;
            ensure!(shown.contains(has), "{command} shows {shown}");
        }
        let shown = page.line(&attachments, "web")?;
        ensure!(shown.contains(&"eth0".to_owned()) && shown.contains(&"site".to_owned()), "{shown:?}");
        test.kubectl(&["delete", "pod", "web", "--timeout=60s"]).map(drop)
    })
}

pub fn pods_keep_their_addresses_as_the_page_about_them_shows(test: &Test<'_>) -> Result<()> {
    let page = Page::of(test, "static-addresses.md")?;
    let [attachments, leases] = page.checks()?;
    test.create(page.objects()?)?;
    let has = |name: &str, address: &str| {
        eventually(120, &format!("{name} has its address"), || {
            test.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=1s"])?;
            let ip = test.ip(name, "net1")?;
            ensure!(ip == address, "it has {ip}");
            Ok(())
        })
    };
    has("db", "10.30.3.77")?;
    for (replica, address) in [(0, "10.30.3.10"), (1, "10.30.3.11"), (2, "10.30.3.12")] {
        has(&format!("web-{replica}"), address)?;
    }
    let shown = page.line(&attachments, "db")?;
    ensure!(shown.contains(&"10.30.3.77/22".to_owned()), "{shown:?}");
    let shown = page.line(&leases, "plc.10.30.3.77")?;
    ensure!(shown.contains(&"db".to_owned()) && shown.contains(&test.node_of("db")?), "{shown:?}");
    test.kubectl(&["delete", "pod", "web-1", "--timeout=60s"])?;
    has("web-1", "10.30.3.11")?;
    test.ping("db", "web-1", "net1")?;
    test.kubectl(&["delete", "statefulset", "web", "--cascade=foreground", "--timeout=60s"])?;
    test.delete_pod("db")
}

/// A ClaimNetwork's blocks by node, as a page's command shows them.
fn blocks_of(page: &Page<'_>, command: &str, network: &str) -> Result<BTreeMap<String, Vec<IpNet>>> {
    let mut blocks: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
    for line in page.run(command)?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, of, node, block, ..] = words.as_slice()
            && *of == network
        {
            blocks.entry((*node).to_owned()).or_default().push(block.parse()?);
        }
    }
    Ok(blocks)
}

/// An object as a page's command prints it in YAML.
fn yaml(page: &Page<'_>, command: &str) -> Result<Value> {
    Ok(serde_saphyr::from_str(&page.run(command)?)?)
}

pub fn addresses_for_the_whole_cluster_work_as_their_page_shows(test: &Test<'_>) -> Result<()> {
    let page = Page::of(test, "addresses.md")?;
    let [blocks, network] = page.checks()?;
    // The page about VLANs has a ClaimNetwork on such a link, too. A veth pair of the name does where the
    // kernel has no VLANs.
    let vlans = Page::of(test, "vlan.md")?.objects()?.into_iter().take(1);
    let _links = ["eth1.60", "eth1.61", "eth1.100"]
        .map(|link| Plugged::on(test, "node1", link))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let templates = ["dual", "plant-a", "plant-b", "vlan100"].map(|class| claim_template(class, class));
    let dual = ["node0", "node1"].map(|node| on(node, pod_of_template(node, "dual")));
    // Only node1 offers these.
    let others = ["plant-a", "plant-b", "vlan100"].map(|template| pod_of_template(template, template));
    test.create(page.objects()?.into_iter().chain(vlans).chain(templates).chain(dual).chain(others))?;
    all_run(test)?;

    let dual = ["node0", "node1"].map(str::to_owned);
    let owners = no_duplicates(test, &dual, 2)?;
    let leased = blocks_of(&page, &blocks, "dual")?;
    for (address, pod) in &owners {
        let ip: IpAddr = address.split('/').next().unwrap_or_default().parse()?;
        let of_node = leased.get(pod).with_context(|| format!("{pod} has no block: {leased:?}"))?;
        ensure!(of_node.iter().any(|block| block.contains(&ip)), "{pod} has {ip}, but {of_node:?}");
        let not_for_pods =
            ["10.30.0.0/29", "10.30.0.8/31", "10.30.1.0/28", "10.30.3.0/24", "fd00:30::f000/116"];
        for none in not_for_pods {
            ensure!(!none.parse::<IpNet>()?.contains(&ip), "{pod} has {ip} of {none}");
        }
    }
    let sizes: BTreeSet<u8> = leased.values().flatten().map(IpNet::prefix_len).collect();
    ensure!(sizes == BTreeSet::from([27, 122]), "the blocks are {leased:?}");
    for pod in &dual {
        let routes = routes(test, pod)?;
        ensure!(routes.contains("10.31.0.0/16 via 10.30.0.1"), "{routes}");
    }
    test.ping("node0", "node1", "net1")?;
    test.ping6("node0", "node1", "net1")?;

    eventually(30, "the ClaimNetwork shows its totals", || {
        let shown = yaml(&page, &network)?["status"].clone();
        let number =
            |field: &str| shown["addresses"][field].as_u64().with_context(|| format!("no {field}: {shown}"));
        ensure!(number("size")? == number("leased")? + number("free")? && number("used")? <= 2, "{shown}");
        let available =
            |condition: &Value| condition["type"] == "AddressesAvailable" && condition["status"] == "True";
        ensure!(list(&shown["conditions"]).any(available), "{shown}");
        Ok(())
    })?;
    for node in &dual {
        for family in ["ipv4", "ipv6"] {
            let used = format!("netclaim_addresses{{network=\"dual\",family=\"{family}\",state=\"Used\"}}");
            eventually(10, &format!("{node} counts its pod"), || {
                let counted = gauge(test, node, &used)?;
                ensure!(counted == 1, "{used} {counted}");
                Ok(())
            })?;
        }
    }

    let of_pool = no_duplicates(test, &["plant-a", "plant-b"].map(str::to_owned), 1)?;
    let pool: IpNet = "10.60.0.0/20".parse()?;
    for (address, pod) in of_pool {
        let ip: IpAddr = address.split('/').next().unwrap_or_default().parse()?;
        let own = blocks_of(&page, &blocks, &pod)?;
        ensure!(own.values().flatten().any(|block| block.contains(&ip)), "{pod} has {ip}, but {own:?}");
        ensure!(pool.contains(&ip) && test.node_of(&pod)? == "node1", "{pod} has {ip}");
    }
    ensure!(test.ip("vlan100", "net1")?.starts_with("10.100."), "{}", test.ip("vlan100", "net1")?);
    // Its pods go before the links do.
    test.kubectl(&["delete", "pods", "--all", "--timeout=60s"]).map(drop)
}

pub fn bandwidth_is_granted_and_kept_as_its_page_shows(test: &Test<'_>) -> Result<()> {
    let page = Page::of(test, "bandwidth.md")?;
    let [status, consumed, queues, traffic] = page.checks()?;
    let objects = page.objects()?;
    let camera =
        objects.iter().find(|object| object["kind"] == "Pod").context("the page has no pod")?.clone();
    test.create(objects)?;
    test.runs("camera")?;
    let node = test.node_of("camera")?;
    // Five such pods fit on a node. The sixth stays Pending, or goes to another node.
    let another = |name: &str| {
        let mut pod = camera.clone();
        pod["metadata"]["name"] = json!(name);
        pod
    };
    let more = ["camera-2", "camera-3", "camera-4", "camera-5"];
    test.create(more.map(|name| on(&node, another(name))))?;
    all_run(test)?;
    test.create([on(&node, another("stays")), another("goes")])?;
    test.runs("goes")?;
    ensure!(test.node_of("goes")? != node, "six such pods are on {node}");
    test.is_unschedulable("stays")?;

    // It fails if anything is wrong on the cluster, on which other scenarios are at work.
    let shown = page.line(&format!("{status} || true"), "video")?;
    ensure!(shown.last().is_some_and(|bandwidth| bandwidth == "12G/30G"), "{shown:?}");
    for pod in ["camera", "goes"] {
        let consumed = page.run(&consumed.replace("NAME", &page.claim_of(pod)?))?;
        ensure!(serde_json::from_str::<Value>(&consumed)?["bandwidth"] == "2G", "{pod}: {consumed}");
        let words: Vec<&str> = queues.split_whitespace().collect();
        let netns = test.sandbox(pod)?.netns;
        let queues = test.cluster.node().in_network(&netns, &words)?;
        ensure!(queues.contains("tbf") && queues.contains("rate 2Gbit"), "{pod}: {queues}");
    }
    let shown = page.line(&traffic, "camera")?;
    ensure!(shown.iter().any(|word| word == "2.00G"), "{shown:?}");
    Ok(())
}

pub fn claims_set_parameters_as_their_page_shows(test: &Test<'_>) -> Result<()> {
    let page = Page::of(test, "parameters.md")?;
    let [describe, claim] = page.checks()?;
    let mut wrong = claim_template("wrong", "office");
    wrong["spec"]["spec"]["devices"]["config"] =
        json!([attachment(json!({"parameters": {"nameservers": ["10.40.0.53", "10.40.0"]}}))]);
    let pods = ["office", "wrong"].map(|template| pod_of_template(template, template));
    test.create(page.objects()?.into_iter().chain([wrong]).chain(pods))?;
    test.runs_with("office", &["net1"])?;
    let interface = test.interface("office", "net1")?;
    ensure!(interface.mtu == 1500, "{interface:?}");
    let routes = routes(test, "office")?;
    ensure!(routes.contains("10.51.0.0/16 via 10.40.0.1") && !routes.contains("10.50.0.0/16"), "{routes}");

    let shown = yaml(&page, &claim.replace("NAME", &page.claim_of("office")?))?;
    let dns = &shown["status"]["devices"][0]["data"]["dns"];
    let expected = json!({"nameservers": ["10.40.0.53", "10.40.0.54"], "search": ["web.office.example"]});
    ensure!(*dns == expected, "{dns}");
    let refused = "claim config[0].parameters.nameservers[1]: \"10.40.0\" is not an IPv4 address: write for example 10.20.0.5";
    test.event("wrong", &[refused])?;
    test.has_not_started("wrong")?;
    // As the page about addresses says of its IPAM.
    let described = page.run(&describe)?;
    ensure!(described.contains("AcceptedWithWarnings"), "{described}");
    Ok(())
}

/// What a program on a node says of its links, until it is dropped.
struct Facts<'a> {
    test: &'a Test<'a>,
    files: Vec<PathBuf>,
}

impl<'a> Facts<'a> {
    fn of(test: &'a Test<'a>) -> Self {
        Self { test, files: Vec::new() }
    }

    /// Writes a file as the page says: in full under another name, and then renamed.
    fn write(&mut self, node: &str, link: &str, facts: &str) -> Result<()> {
        let folder = self.test.cluster.node_named(node)?.path("/run/netclaim/links.d");
        let (new, file) = (folder.join(format!(".{link}")), folder.join(format!("{link}.json")));
        fs::write(&new, facts)?;
        fs::rename(new, &file)?;
        self.files.push(file);
        Ok(())
    }
}

impl Drop for Facts<'_> {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

pub fn links_are_described_and_given_away_whole_as_their_pages_show(test: &Test<'_>) -> Result<()> {
    // The links of the tests are veth pairs, which report 10 Gbit/s.
    let uplinks =
        Page::of(test, "uplinks.md")?.with(&[("mlx5_core", "veth"), ("minSpeed: 25G", "minSpeed: 10G")])?;
    let whole = Page::of(test, "whole-links.md")?.with(&[("25000000000", "10000000000")])?;
    let [policies, describe, offers, node_events] = uplinks.checks()?;
    let [links, attachments, on_node] = whole.checks()?;

    let rack = NodeLabel { test, key: "rack".to_owned() };
    rack.set("node2", "a")?;
    let mut facts = Facts::of(test);
    for (node, link) in [("node0", "eth1"), ("node0", "eth2"), ("node1", "eth1"), ("node1", "eth2")] {
        facts.write(node, link, uplinks.json()?)?;
    }
    let fabric = test.network("a", |network| {
        network["spec"]["uplink"] = json!({"attributes": {"physicalNetwork": {"string": "storage-a"}}});
    })?;
    test.create(uplinks.objects()?)?;
    let attribute = |device: &Value, name: &str| text(&device["attributes"][name]["string"]);
    for device in ["nic-eth1", "macvlan-eth1"] {
        test.is_published_on("node2", device, |device| {
            attribute(device, "physicalNetwork") == "storage-a"
                && device["capacity"]["bandwidth"]["value"] == "40G"
        })?;
    }
    test.is_published_on("node2", &format!("net-{fabric}"), |device| attribute(device, "uplink") == "eth1")?;
    eventually(20, "the policy is accepted", || {
        let accepted = uplinks.line(&policies, "storage-fabric")?;
        ensure!(accepted.contains(&"True".to_owned()), "{accepted:?}");
        Ok(())
    })?;
    ensure!(uplinks.run(&describe)?.contains("storage-a"), "{}", uplinks.run(&describe)?);
    let offered = uplinks.run(&offers.replace("NODE", "node2"))?;
    ensure!(offered.contains("consumesCounters"), "{offered}");
    uplinks.run(&node_events.replace("NODE", "node2"))?;
    for device in ["nic-eth1", "nic-eth2"] {
        test.is_published_on("node0", device, |device| attribute(device, "switch") == "tor-7")?;
    }

    // Whichever link the one pod gets, the links of a switch on one of the nodes are left for the other.
    let mut two = pod("two", &["net"]);
    two["spec"]["resourceClaims"] =
        json!([{"name": "net", "resourceClaimTemplateName": "two-on-one-switch"}]);
    test.create(whole.objects()?.into_iter().chain([two]))?;
    all_run(test)?;
    let node = test.node_of("two")?;
    ensure!(["node0", "node1"].contains(&node.as_str()), "the two links are of {node}");
    test.interface("two", "net2")?;

    let mtu = test.interface("capture", "net1")?.mtu;
    ensure!(mtu == 9000, "its MTU is {mtu}");
    let shown = whole.line(&attachments, "capture")?;
    let link =
        shown.iter().find(|word| ["eth1", "eth2"].contains(&word.as_str())).context("no link is shown")?;
    let node = test.node_of("capture")?;
    let device = format!("nic-{link}");
    ensure!(whole.run(&links)?.contains(&device), "{}", whole.run(&links)?);
    let command = on_node.replace("LINK", link);
    let there = || test.cluster.on(&node, &command.split_whitespace().collect::<Vec<_>>());
    let gone = there().err().with_context(|| format!("{link} is on the node and in the pod"))?;
    ensure!(format!("{gone:#}").contains("does not exist"), "{gone:#}");
    test.kubectl(&["delete", "pods", "--all", "--timeout=60s"])?;
    eventually(20, &format!("{link} is back as it was"), || {
        let shown = there()?;
        ensure!(shown.contains("mtu 1500"), "{shown}");
        Ok(())
    })
}

pub fn pods_get_a_network_without_asking_as_the_page_about_it_shows(test: &Test<'_>) -> Result<()> {
    test.cluster.with_default_networks(|| {
        let page = Page::of(test, "default-networks.md")?;
        let [condition, restart, explain] = page.checks()?;
        let mut web = pod("web", &[]);
        let spec = json!({"selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": web["spec"].take()}});
        let web =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec});
        test.create([web])?;
        test.kubectl(&["wait", "--for=condition=Available", "deployment/web", "--timeout=60s"])?;
        test.create(page.objects()?)?;
        test.cluster.kubectl(&["label", "namespace", test.namespace(), "net-storage=yes"])?;
        let says = |words: &str| {
            eventually(90, &format!("the condition says {words}"), || {
                let said = page.run(&condition)?;
                ensure!(said.contains(words), "it says {said}");
                Ok(())
            })
        };
        says("older than the default and without it: 1 pod in 1 of 1 namespace")?;
        page.run(&restart.replace("NAMESPACE", test.namespace()))?;
        says("pods of 1 namespace have it")?;
        test.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"])?;
        let pods = test.cluster.get(&["-n", test.namespace(), "pods", "-l", "app=web"])?;
        let name = list(&pods["items"]).map(|pod| text(&pod["metadata"]["name"])).next().context("no pod")?;
        test.runs_with(&name, &["storage0"])?;
        let explain = explain.replace("pod web -n shop", &format!("pod {name} -n {}", test.namespace()));
        ensure!(page.run(&explain)?.contains("with 1 network"), "{explain}");
        test.kubectl(&["delete", "deployment", "web", "--cascade=foreground", "--timeout=60s"]).map(drop)
    })
}

/// What the answers on the page of questions show, by what their questions are about.
const ANSWERS: [(&str, &[&str]); 13] = [
    ("several networks", &["inet 10.151."]),
    ("choose the interface's name", &["inet 10.150.3.7/22", "fd00:150::f007/64", "02:00:5e:10:00:07"]),
    ("IPv6", &["inet6 fd00:150::"]),
    ("routes", &["10.152.0.0/16 via 10.150.0.1"]),
    ("so much bandwidth", &["1.00G"]),
    ("an init container", &["inet 10.150."]),
    ("read its addresses", &["data0", "10.150.3.7"]),
    ("two pods of one node", &["1 packets received"]),
    ("by a resource name", &["inet 10.150."]),
    ("limit how many pods", &["green\":\"1\""]),
    ("see what a pod has", &["two", "chosen", "10.150.3.7"]),
    ("why a pod waits", &["with 2 networks"]),
    ("whether the switch passes", &["passes"]),
];

pub fn questions_are_answered_as_their_page_says(test: &Test<'_>) -> Result<()> {
    let page = Page::of_docs(test, "can-i.md")?;
    test.create(page.objects()?)?;
    all_run(test)?;
    let answers = page.answers();
    for (question, commands) in &answers {
        let known = ANSWERS.iter().find(|(about, _)| question.contains(about));
        let (_, expected) = known.with_context(|| format!("what is the answer to {question:?}?"))?;
        let shown = commands.iter().map(|command| page.run(command)).collect::<Result<Vec<_>>>()?.concat();
        for words in *expected {
            ensure!(shown.contains(words), "{question}: no {words:?} in {shown}");
        }
    }
    ensure!(answers.len() == ANSWERS.len(), "{} answers have commands", answers.len());
    // What the quota is for.
    let mut more = pod("more", &[]);
    more["spec"]["containers"][0]["resources"] =
        json!({"limits": {"deviceclass.resource.kubernetes.io/green": "1"}});
    let refused = test.create([more]).err().context("there is no quota")?;
    ensure!(format!("{refused:#}").contains("exceeded quota"), "{refused:#}");
    test.kubectl(&["delete", "pods", "--all", "--timeout=60s"]).map(drop)
}
