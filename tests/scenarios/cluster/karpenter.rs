//! Where Karpenter places pods with claims. Its own provisioner (`tests/programs/karpenter`) decides over the
//! objects of this cluster. The page Autoscalers says what is found here; it changes when an upgrade of
//! Karpenter makes a scenario fail.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{claim, class_of_network, list, pod, request, text};
use netclaim_tests::{Plugged, Test, eventually, output_of, programs};
use serde_json::{Value, json};

/// Karpenter's flag that makes it look at claims.
const LOOKS_AT_CLAIMS: &str = "--ignore-dra-requests=false";

/// How many pods Karpenter places on the node, on each new node, and nowhere.
type Placed<'a> = (usize, &'a [usize], usize);

struct Karpenter<'a> {
    test: &'a Test<'a>,
    program: PathBuf,
}

impl<'a> Karpenter<'a> {
    fn new(test: &'a Test<'a>) -> Result<Self> {
        Ok(Self { test, program: programs::built_or_skipped(test, "karpenter")? })
    }

    /// Creates claims without pods, whose names begin with `name`, and returns them with their defaults.
    fn claims(&self, name: &str, class: &str, count: usize) -> Result<Vec<Value>> {
        self.claims_with(name, class, count, |_| {})
    }

    /// As [`Self::claims`], with a change to each claim's request.
    fn claims_with(
        &self,
        name: &str,
        class: &str,
        count: usize,
        change: impl Fn(&mut Value),
    ) -> Result<Vec<Value>> {
        let names: Vec<String> = (0..count).map(|n| format!("{name}{n}")).collect();
        self.test.create(names.iter().map(|name| {
            let mut claim = claim(name, class);
            change(&mut claim["spec"]["devices"]["requests"][0]["exactly"]);
            claim
        }))?;
        names.iter().map(|name| self.test.get("resourceclaim", name)).collect()
    }

    /// netclaim's slices, when no pool is being written.
    fn slices(&self) -> Result<Vec<Value>> {
        eventually(60, "all pools are complete", || {
            let slices = self.test.cluster.slices()?;
            for slice in &slices {
                let pool = &slice["spec"]["pool"];
                let written = slices.iter().filter(|other| other["spec"]["pool"] == *pool).count();
                ensure!(pool["resourceSliceCount"] == written, "{written} slices of {pool}");
            }
            Ok(slices)
        })
    }

    /// Asks about the node as it is now, with pods for these claims. The cloud provider has no template.
    fn question(&self, claims: &[Value]) -> Result<Value> {
        let cluster = self.test.cluster;
        Ok(json!({
            "flags": [LOOKS_AT_CLAIMS],
            "nodes": [cluster.get(&["node", "node0"])?],
            "slices": self.slices()?,
            "classes": cluster.get(&["deviceclasses"])?["items"],
            "claims": claims,
        }))
    }

    /// As [`Self::question`], about a group of no nodes. The cloud provider has the node's slices as the
    /// template of new nodes.
    fn question_of_template(&self, claims: &[Value]) -> Result<Value> {
        let mut question = self.question(claims)?;
        let of_node = list(&question["slices"]).filter(|slice| slice["spec"]["nodeName"] == "node0");
        question["template"] = of_node.cloned().collect();
        question["nodes"] = json!([]);
        Ok(question)
    }

    /// Makes sure of where Karpenter places pods. Returns its answer.
    fn places(&self, situation: &str, question: &Value, expected: Placed<'_>) -> Result<Value> {
        let said = output_of(&mut Command::new(&self.program), &question.to_string())?;
        let answer: Value = serde_json::from_str(&said).with_context(|| format!("{situation}: {said:?}"))?;
        let here = list(&answer["existing"]["node0"]).count();
        let new: Vec<usize> = list(&answer["new"]).map(|pods| list(pods).count()).collect();
        let nowhere = answer["refused"].as_object().map_or(0, serde_json::Map::len);
        let found = (here, new.as_slice(), nowhere);
        ensure!(found == expected, "{situation}: {found:?} instead of {expected:?}: {answer}");
        Ok(answer)
    }
}

/// A device of the node as it is published now.
fn device(test: &Test<'_>, name: &str) -> Result<Value> {
    test.is_published(name, |_| true)?;
    test.cluster.device(name)?.with_context(|| format!("there is no {name}"))
}

pub fn karpenter_gives_pods_with_claims_no_node_by_default(test: &Test<'_>) -> Result<()> {
    let karpenter = Karpenter::new(test)?;
    let network = test.macvlan("a")?;
    test.is_published(&format!("net-{network}"), |_| true)?;
    let mut question = karpenter.question(&karpenter.claims("p", &network, 1)?)?;
    question["template"] = question["slices"].clone();
    karpenter.places("with the flag", &question, (1, &[], 0))?;
    question["flags"] = json!([]);
    let answer = karpenter.places("without the flag", &question, (0, &[], 1))?;
    let why = text(&answer["refused"]["p0"]);
    ensure!(why.contains("requirements that are not yet supported by Karpenter"), "{why}");
    Ok(())
}

pub fn karpenter_counts_addresses_of_nodes_and_of_templates(test: &Test<'_>) -> Result<()> {
    let karpenter = Karpenter::new(test)?;
    let network = test.network("a", |network| {
        let few = format!("{}/29", test.address(0, 0));
        network["spec"]["cni"]["plugins"][0]["ipam"]["ranges"] = json!([[{"subnet": few}]]);
    })?;
    let device = device(test, &format!("net-{network}"))?;
    let addresses: usize = text(&device["capacity"]["addresses"]["value"]).parse()?;
    let claims = karpenter.claims("p", &network, addresses + 1)?;
    let mut question = karpenter.question(&claims)?;
    karpenter.places("a node", &question, (addresses, &[], 1))?;
    // Slices of nodes say nothing about new nodes.
    question["nodes"] = json!([]);
    karpenter.places("no template", &question, (0, &[], addresses + 1))?;
    let template = karpenter.question_of_template(&claims)?;
    karpenter.places("a template", &template, (0, &[addresses, 1], 0))?;
    let mut both = template;
    both["nodes"] = json!([test.cluster.get(&["node", "node0"])?]);
    karpenter.places("a node and a template", &both, (addresses, &[1], 0))?;

    // Every new node is thought to have the template's MAC.
    let mac = text(&device["attributes"]["mac"]["string"]);
    let expression = format!("device.attributes[\"netclaim.dev\"].mac == {mac:?}");
    let same = karpenter.claims_with("m", &network, addresses + 1, |request| {
        request["selectors"] = json!([{"cel": {"expression": expression}}]);
    })?;
    let template = karpenter.question_of_template(&same)?;
    karpenter.places("a selected MAC", &template, (0, &[addresses, 1], 0)).map(drop)
}

pub fn karpenter_counts_bandwidth_of_nodes_and_of_templates(test: &Test<'_>) -> Result<()> {
    let karpenter = Karpenter::new(test)?;
    let _link = Plugged::new(test, "eth45")?;
    let network =
        test.network_on("eth45", "a", |network| network["spec"]["capacity"] = json!({"bandwidth": "10G"}))?;
    test.is_published(&format!("net-{network}"), |device| device["capacity"]["bandwidth"]["value"] == "10G")?;
    let ask = |name: &str, count: usize, amount: &str| {
        karpenter.claims_with(name, &network, count, |request| {
            request["capacity"] = json!({"requests": {"bandwidth": amount}});
        })
    };
    let (large, halves, huge) = (ask("large", 2, "6G")?, ask("half", 3, "5G")?, ask("huge", 1, "11G")?);
    karpenter.places("6G twice on a node", &karpenter.question(&large)?, (1, &[], 1))?;
    karpenter.places("5G three times on a node", &karpenter.question(&halves)?, (2, &[], 1))?;
    karpenter.places("6G twice by a template", &karpenter.question_of_template(&large)?, (0, &[1, 1], 0))?;
    karpenter.places("11G by a template", &karpenter.question_of_template(&huge)?, (0, &[], 1)).map(drop)
}

pub fn karpenter_keeps_exclusive_uses_of_a_link_apart(test: &Test<'_>) -> Result<()> {
    let karpenter = Karpenter::new(test)?;
    let _link = Plugged::new(test, "eth46")?;
    test.modes(&["eth46"], &["nic", "macvlan"])?;
    let nic = test.class_of_links("nic", &["eth46"])?;
    let macvlan = test.network_on("eth46", "a", |_| {})?;
    for device in ["nic-eth46", &format!("net-{macvlan}")] {
        test.is_published(device, |device| device["consumesCounters"].is_array())?;
    }
    let (shares, whole) = (karpenter.claims("share", &macvlan, 2)?, karpenter.claims("whole", &nic, 1)?);
    let shares_first = [shares.as_slice(), &whole].concat();
    let whole_first = [whole.as_slice(), &shares].concat();
    karpenter.places("shares first", &karpenter.question(&shares_first)?, (2, &[], 1))?;
    karpenter.places("the link first", &karpenter.question(&whole_first)?, (1, &[], 2))?;
    let template = karpenter.question_of_template(&shares_first)?;
    karpenter.places("shares first, by a template", &template, (0, &[2, 1], 0))?;
    // Admin access is a use like any other, other than for the scheduler.
    let mut admin = shares_first.clone();
    for claim in &mut admin {
        claim["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = json!(true);
    }
    karpenter.places("admin access", &karpenter.question(&admin)?, (2, &[], 1))?;

    test.start_pod("first", &macvlan)?;
    let beside = [vec![test.get("resourceclaim", "first")?], shares_first].concat();
    karpenter.places("beside a pod with a share", &karpenter.question(&beside)?, (2, &[], 1))?;
    test.delete_pod("first")
}

pub fn karpenter_skips_incomplete_pools_and_ignores_taints(test: &Test<'_>) -> Result<()> {
    let karpenter = Karpenter::new(test)?;
    let link = Plugged::new(test, "eth47")?;
    let network = test.network_on("eth47", "a", |_| {})?;
    let name = format!("net-{network}");
    test.is_published(&name, |device| device["taints"].is_null())?;
    let claims = karpenter.claims("p", &network, 1)?;
    let incomplete = |mut question: Value, of: &str| {
        for slice in question[of].as_array_mut().into_iter().flatten() {
            let count = slice["spec"]["pool"]["resourceSliceCount"].as_u64().unwrap_or_default();
            slice["spec"]["pool"]["resourceSliceCount"] = json!(count + 1);
        }
        question
    };
    let node = incomplete(karpenter.question(&claims)?, "slices");
    karpenter.places("a slice is missing", &node, (0, &[], 1))?;
    let template = incomplete(karpenter.question_of_template(&claims)?, "template");
    karpenter.places("a slice of the template is missing", &template, (0, &[1], 0))?;

    link.set(&["far-eth47", "down"])?;
    test.is_published(&name, |device| device["taints"][0]["key"] == "netclaim.dev/link-down")?;
    karpenter.places("the device is tainted", &karpenter.question(&claims)?, (1, &[], 0))?;
    // The scheduler does not allocate it.
    test.pod("refused", &network)?;
    test.is_unschedulable("refused")?;
    test.delete_pod("refused")
}

pub fn karpenter_makes_nodes_for_a_cluster_wide_network_only_by_its_label(test: &Test<'_>) -> Result<()> {
    let karpenter = Karpenter::new(test)?;
    let network = test.cluster_network(3)?;
    let (pool, label) = (format!("networks/{network}"), format!("network.netclaim.dev/{network}"));
    eventually(60, "the network is offered", || {
        let slices = test.cluster.slices()?;
        ensure!(slices.iter().any(|slice| slice["spec"]["pool"]["name"] == pool), "there is no pool {pool}");
        let node = test.cluster.get(&["node", "node0"])?;
        ensure!(node["metadata"]["labels"][&label] == "up", "{}", node["metadata"]["labels"]);
        Ok(())
    })?;
    let mut question = karpenter.question(&karpenter.claims("p", &network, 4)?)?;
    karpenter.places("a node with the label", &question, (3, &[], 1))?;
    question["nodes"] = json!([]);
    karpenter.places("a NodePool without the label", &question, (0, &[], 4))?;
    question["labels"] = json!({ label: "up" });
    karpenter.places("a NodePool with the label", &question, (0, &[3], 1)).map(drop)
}

pub fn karpenter_takes_any_node_for_a_claim_that_is_allocated_on_one(test: &Test<'_>) -> Result<()> {
    let karpenter = Karpenter::new(test)?;
    let network = test.macvlan("a")?;
    test.start_pod("p", &network)?;
    // A second pod of the claim waits.
    let mut claim = test.get("resourceclaim", "p")?;
    claim["status"]["reservedFor"] = json!([]);
    let allocation = &claim["status"]["allocation"];
    let term = &allocation["nodeSelector"]["nodeSelectorTerms"][0];
    ensure!(term["matchFields"][0]["values"] == json!(["node0"]), "{allocation}");
    let mut question = karpenter.question(&[claim])?;
    question["nodes"] = json!([]);
    karpenter.places("the claim's node is left out", &question, (0, &[1], 0))?;
    test.delete_pod("p")
}

pub fn karpenter_knows_neither_extended_resources_of_classes_nor_distinct_attributes(
    test: &Test<'_>,
) -> Result<()> {
    let karpenter = Karpenter::new(test)?;
    let network = test.macvlan("a")?;
    test.is_published(&format!("net-{network}"), |_| true)?;
    let resource = format!("netclaim.dev/{network}");
    let mut extended = class_of_network(&test.name("x"), &network);
    extended["spec"]["extendedResourceName"] = json!(resource);
    let mut distinct = claim("distinct", &network);
    distinct["spec"]["devices"] = json!({
        "requests": [request("a", &network), request("b", &network)],
        "constraints": [{"distinctAttribute": "netclaim.dev/uplink"}],
    });
    test.create([extended, distinct])?;

    let mut asking = pod("extended", &[]);
    asking["metadata"]["namespace"] = json!(test.namespace());
    let amount = json!({resource.as_str(): "1"});
    asking["spec"]["containers"][0]["resources"] = json!({"limits": amount, "requests": amount});
    let mut question = karpenter.question(&[test.get("resourceclaim", "distinct")?])?;
    question["template"] = question["slices"].clone();
    question["pods"] = json!([asking]);
    let answer = karpenter.places("both", &question, (0, &[], 2))?;
    for (pod, words) in [
        ("extended", "no instance type has enough resources"),
        ("distinct", "DistinctAttribute constraints not done yet"),
    ] {
        let why = text(&answer["refused"][pod]);
        ensure!(why.contains(words), "{pod}: {why}");
    }
    Ok(())
}
