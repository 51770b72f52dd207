//! Judgements of small clusters.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, PodSpec};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use serde_json::{Value, json};

use super::{Effort, Judgement, Needed, Outlook, World};
use crate::{Holdings, Question};

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn claim(name: &str, class: &str) -> ResourceClaim {
    from(json!({"metadata": {"namespace": "shop", "name": name},
        "spec": {"devices": {"requests": [{"name": "net", "exactly": {"deviceClassName": class}}]}}}))
}

fn holding(name: &str, node: &str) -> ResourceClaim {
    let result = json!({"request": "net", "driver": "netclaim.dev", "pool": node, "device": "net-storage",
        "shareID": "s", "consumedCapacity": {"interfaces": "1"}});
    from(json!({"metadata": {"namespace": "shop", "name": name}, "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}}}))
}

/// The slice of a node with one interface of each of these ClaimNetworks.
fn slice(node: &str, networks: &[&str]) -> ResourceSlice {
    let device = |network: &&str| {
        json!({"name": format!("net-{network}"), "allowMultipleAllocations": true,
            "attributes": {"network": {"string": network}},
            "capacity": {"interfaces": {"value": "1", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}}}})
    };
    let devices: Vec<Value> = networks.iter().map(device).collect();
    from(json!({"metadata": {"name": node, "labels": {"a": "b"}}, "spec": {"driver": "netclaim.dev",
        "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": devices}}))
}

struct Cluster {
    classes: Vec<DeviceClass>,
    slices: Vec<ResourceSlice>,
    nodes: Vec<Node>,
    claims: Vec<ResourceClaim>,
    /// The ClaimNetworks that exist.
    networks: Vec<&'static str>,
}

/// Nodes a to d: a and b have ClaimNetwork storage, c has another one, and d is cordoned.
fn cluster() -> Cluster {
    let class = |name: &str, expression: &str| {
        from(
            json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}),
        )
    };
    let network = |name: &str| {
        format!(r#"device.driver == "netclaim.dev" && device.attributes["netclaim.dev"].network == "{name}""#)
    };
    let node = |name: &str| from(json!({"metadata": {"name": name}, "spec": {"unschedulable": name == "d"}}));
    Cluster {
        classes: vec![
            class("storage", &network("storage")),
            class("any", r#"device.driver == "netclaim.dev""#),
            class("gpu", r#"device.driver == "gpu.example.com""#),
        ],
        slices: vec![slice("a", &["storage", "lab"]), slice("b", &["storage"]), slice("c", &["lab"])],
        nodes: ["a", "b", "c", "d"].map(node).into(),
        claims: vec![holding("x", "a"), holding("y", "b")],
        networks: vec!["storage", "lab"],
    }
}

impl Cluster {
    fn judge(&self, classes: &[&str], details: bool) -> Judgement {
        let effort = if details { Effort::Details } else { Effort::Whole };
        self.judge_for(&PodSpec::default(), classes, effort)
    }

    fn judge_for(&self, pod: &PodSpec, classes: &[&str], effort: Effort) -> Judgement {
        let mut holdings = Holdings::default();
        self.claims.iter().for_each(|claim| holdings.add(claim));
        let refusal =
            |name: &str| (!self.networks.contains(&name)).then(|| format!("there is no ClaimNetwork {name}"));
        let world = World {
            slices: &self.slices,
            rules: &[],
            nodes: Some(&self.nodes),
            holdings: &holdings,
            refusal: &refusal,
        };
        Judgement::of(Question::new(&claims(classes), &self.classes), Some(pod), &world, effort)
    }
}

fn claims(classes: &[&str]) -> Vec<ResourceClaim> {
    classes.iter().map(|class| claim(&format!("of-{class}"), class)).collect()
}

fn groups(judgement: &Judgement) -> Vec<String> {
    let causes = judgement.causes.iter();
    causes.map(|group| format!("{}: {}", group.nodes_in_words(5), group.text)).collect()
}

#[test]
fn nodes_with_the_same_cause_are_one_group_with_the_holders_of_all() {
    let judgement = cluster().judge(&["storage"], false);
    let expected = [
        "2 nodes (a, b): ClaimNetwork storage: 0 of 1 interfaces free",
        "1 node (c): the node does not offer ClaimNetwork storage",
    ];
    assert_eq!(groups(&judgement), expected);
    let holders: Vec<&str> = judgement.causes[0].holders.iter().map(|holder| holder.claim.as_str()).collect();
    assert_eq!(holders, ["shop/x", "shop/y"]);
    assert_eq!(judgement.causes[0].nodes_in_words(1), "2 nodes (a and 1 more)");
    let unserved = Outlook::Unserved("no node can serve request net of claim of-storage".to_owned());
    assert_eq!(judgement.outlook(), unserved);
}

#[test]
fn nodes_are_kept_only_with_details() {
    assert!(cluster().judge(&["storage"], false).nodes.is_empty());
    let nodes = cluster().judge(&["storage"], true).nodes;
    assert_eq!(nodes.len(), 4);
    assert!(!nodes[0].verdict.requests[0].devices.is_empty());
}

#[test]
fn a_node_that_does_not_take_the_pod_serves_nothing() {
    let mut cluster = cluster();
    cluster.slices.push(slice("d", &["storage"]));
    let outlook = cluster.judge(&["storage"], false).outlook().to_string();
    assert_eq!(
        outlook,
        "waits: no node can serve request net of claim of-storage; 1 node could, but does not take the pod"
    );
    cluster.nodes.drain(..3);
    let alone = cluster.judge(&["storage"], false);
    assert!(matches!(alone.outlook(), Outlook::NotTaken(_)), "{alone:?}");
}

#[test]
fn with_a_deadline_only_nodes_that_the_pod_selects_are_judged() {
    let mut cluster = cluster();
    cluster.claims.clear();
    let later = Effort::Until(Instant::now() + Duration::from_secs(60));
    let on_c = from(json!({"containers": [], "nodeSelector": {"name": "c"}}));
    cluster.nodes[2].metadata.labels = Some([("name".to_owned(), "c".to_owned())].into());
    let (whole, bounded) = (
        cluster.judge_for(&on_c, &["storage"], Effort::Whole),
        cluster.judge_for(&on_c, &["storage"], later),
    );
    assert_eq!((whole.serving_others.len(), bounded.serving_others.len()), (2, 0));
    assert_eq!(groups(&bounded), groups(&whole));
    assert_eq!((bounded.unserved, bounded.unfit), (whole.unserved, whole.unfit));
    let cordoned = cluster.judge_for(&PodSpec::default(), &["storage"], later);
    assert_eq!(cordoned.serving, ["a", "b"]);
}

#[test]
fn after_the_deadline_nothing_is_claimed() {
    let judgement = cluster().judge_for(&PodSpec::default(), &["storage"], Effort::Until(Instant::now()));
    assert!(matches!(judgement.outlook(), Outlook::Unknown(_)), "{judgement:?}");
    assert_eq!(judgement.unknown, ["a", "b", "c"]);
    let world = cluster();
    let late = Question::by(Instant::now(), &claims(&["storage"]), &world.classes);
    assert_eq!(late.only_networks(), None, "no selector is compiled");
    assert_eq!(late.of_driver().len(), 1, "that it names the driver is known");
}

#[test]
fn a_pod_that_a_node_can_serve_waits_for_something_else() {
    let mut cluster = cluster();
    cluster.claims.pop();
    let judgement = cluster.judge(&["storage"], false);
    assert_eq!(judgement.serving, ["b"]);
    assert!(matches!(judgement.outlook(), Outlook::Served(_)), "{judgement:?}");
}

#[test]
fn a_cause_that_no_node_can_change_comes_first() {
    let mut cluster = cluster();
    let refused = |cluster: &Cluster, class: &str| match cluster.judge(&[class], false).outlook() {
        Outlook::Refused(why) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(&cluster, "stroage").contains("there is no DeviceClass stroage"));
    cluster.networks.clear();
    assert_eq!(refused(&cluster, "storage"), "there is no ClaimNetwork storage");
}

#[test]
fn requests_for_devices_of_other_drivers_are_left_out() {
    let both = cluster().judge(&["gpu", "storage"], false);
    assert_eq!(both.foreign, ["request net of claim of-gpu"]);
    assert_eq!(both.unserved, ["request net of claim of-storage"]);
    assert!(!both.is_foreign);
    assert!(cluster().judge(&["gpu"], false).is_foreign);
}

#[test]
fn devices_that_matter_to_no_request_need_not_be_in_memory() {
    let whole = cluster();
    let trimmed = |classes: &[&str]| {
        let mut needed = Needed::default();
        needed.add(&Question::new(&claims(classes), &whole.classes));
        let mut cluster = cluster();
        cluster.slices.iter_mut().for_each(|slice| needed.trim(slice));
        cluster
    };
    let devices = |cluster: &Cluster| -> Vec<usize> {
        cluster.slices.iter().map(|slice| slice.spec.devices.as_ref().unwrap().len()).collect()
    };
    let storage = trimmed(&["storage", "gpu"]);
    assert_eq!(devices(&storage), [1, 1, 0]);
    assert_eq!(storage.slices[0].metadata.labels, None);
    assert_eq!(groups(&storage.judge(&["storage"], false)), groups(&whole.judge(&["storage"], false)));
    assert_eq!(devices(&trimmed(&["storage", "any"])), devices(&whole), "any device may matter");

    let mut excluding = slice("e", &["lab"]);
    let counters = json!([{"counterSet": "eth1", "counters": {"macvlan": {"value": "1"}}}]);
    excluding.spec.devices.as_mut().unwrap()[0].consumes_counters = from(counters);
    let mut needed = Needed::default();
    needed.add(&Question::new(&claims(&["storage"]), &whole.classes));
    needed.trim(&mut excluding);
    assert_eq!(excluding.spec.devices.unwrap().len(), 1, "it may exclude others");
}
