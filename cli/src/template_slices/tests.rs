//! From a fake API server to objects and notes.

#![allow(clippy::unwrap_used, reason = "tests")]

use clap::Parser as _;
use netclaim_slices::{Placement, Scope, validate};
use serde_json::{Value, json};

use super::template::NODE;
use super::*;
use crate::mock::{api_server, items, status};
use crate::{Cli, Command};

fn args(line: &[&str]) -> Args {
    let line = ["netclaimctl", "template-slices"].iter().chain(line);
    match Cli::try_parse_from(line).unwrap().command {
        Command::TemplateSlices(args) => args,
        other => panic!("{other:?}"),
    }
}

/// ClaimNetworks: one with addresses of its own, two of an AddressPool that exclude each other on a link, one
/// without addresses, and one of the whole cluster.
fn networks() -> Vec<Value> {
    let network = |name: &str, spec: Value| {
        let mut all = json!({"cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan"}]}});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": name}, "spec": all})
    };
    let totals = |free: i64| json!({"blockSize": {"ipv4": 27, "ipv6": 122}, "size": 1000, "leased": 64, "used": 9, "free": free});
    let mut storage = network("storage", json!({"addresses": {"ranges": [{"subnet": "10.20.0.0/22"}]}}));
    storage["status"] = json!({"addresses": totals(900)});
    let mut last = network("last", json!({"addresses": {"ranges": [{"subnet": "10.21.0.0/22"}]}}));
    last["status"] = json!({"addresses": totals(0)});
    let drawing = |name: &str| network(name, json!({"addresses": {"poolName": "plant"}}));
    vec![
        storage,
        last,
        drawing("mac"),
        drawing("ip"),
        network("rack", json!({"nodeSelector": {"matchLabels": {"rack": "a"}}})),
        network(
            "fixed",
            json!({"addresses": {"ranges": [{"subnet": "10.22.0.0/22"}]}, "capacity": {"addresses": 9}}),
        ),
        network("uncounted", json!({"addresses": {"ranges": [{"subnet": "10.23.0.0/22"}]}})),
        network("backbone", json!({"scope": "Cluster"})),
    ]
}

/// A device of a ClaimNetwork as agents publish it.
fn device(network: &str, mac: &str, changes: Value) -> Value {
    let text = |text: &str| json!({"string": text});
    let policy = |least: &str| json!({"default": least, "validRange": {"min": least}});
    let mut device = json!({"name": format!("net-{network}"), "allowMultipleAllocations": true,
        "attributes": {"network": text(network), "uplink": text("eth1"), "mode": text("macvlan"), "mac": text(mac),
            "driver": text("ixgbe"), "physicalFunction": text(""), "mtu": {"int": 1500}, "speed": {"int": 10_000_000_000_i64},
            "resource.kubernetes.io/pciBusID": text("0000:03:00.0"), "resource.kubernetes.io/numaNode": {"int": 0}},
        "capacity": {"addresses": {"value": "2", "requestPolicy": policy("1")},
            "bandwidth": {"value": "10G", "requestPolicy": policy("0")},
            "interfaces": {"value": "64", "requestPolicy": policy("1")}}});
    device.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    device
}

fn slice(node: &str, number: u32, count: i64, content: Value) -> Value {
    let mut spec = json!({"driver": "netclaim.dev", "nodeName": node,
        "pool": {"name": node, "generation": 4, "resourceSliceCount": count}});
    spec.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": "1"}]);
    json!({"metadata": {"name": format!("{node}-{number}"), "ownerReferences": owner}, "spec": spec})
}

fn taint(key: &str) -> Value {
    json!([{"key": key, "effect": "NoSchedule", "timeAdded": "2026-11-22T00:00:00Z"}])
}

/// Devices on `eth1` that exclude each other: shares of `mac`, shares of `ip`, and the whole link.
fn exclusive() -> Vec<Value> {
    let value = |value: &str| json!({"value": value});
    let counters = json!({"net-ip": value("1024"), "nic-eth1": value("1024")});
    let consumes = |taken: Value| json!({"consumesCounters": [{"counterSet": "eth1", "counters": taken}]});
    let whole = device("none", "", consumes(json!({"nic-eth1": value("1024")})));
    vec![
        slice("e", 0, 2, json!({"sharedCounters": [{"name": "eth1", "counters": counters}]})),
        slice(
            "e",
            1,
            2,
            json!({"devices": [
            device("mac", "02:00:5e:10:00:05", consumes(json!({"net-ip": value("1"), "nic-eth1": value("1")}))),
            device("ip", "02:00:5e:10:00:05", consumes(json!({"net-ip": value("1024"), "nic-eth1": value("1")}))),
            whole]}),
        ),
    ]
}

fn storage() -> Vec<Value> {
    let tainted = json!({"taints": taint("netclaim.dev/exhausted")});
    let mut exhausted = device("storage", "02:00:5e:10:00:01", tainted);
    exhausted["capacity"]["addresses"] = json!({"value": "0"});
    let healthy = device("storage", "02:00:5e:10:00:02", json!({}));
    let mut fast = device("storage", "02:00:5e:10:00:03", json!({}));
    fast["attributes"]["speed"] = json!({"int": 25_000_000_000_i64});
    fast["attributes"]["switch"] = json!({"string": "tor\u{1b}-1"});
    let bare = json!({"name": "nic-eth2", "attributes": {"uplink": {"string": "eth2"}}});
    let mut old = slice("b", 9, 1, json!({"devices": [device("storage", "old", json!({}))]}));
    old["spec"]["pool"]["generation"] = json!(3);
    vec![
        slice("a", 0, 1, json!({"devices": [exhausted]})),
        slice("b", 0, 1, json!({"devices": [healthy, bare]})),
        old,
        slice("c", 0, 1, json!({"devices": [fast]})),
        slice("d", 0, 2, json!({"devices": [device("storage", "02:00:5e:10:00:04", json!({}))]})),
    ]
}

fn cluster(slices: Vec<Value>, pool: (u16, Value)) -> Client {
    api_server(move |uri| {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        if let Some(name) = path.strip_prefix("/apis/netclaim.dev/v1alpha1/claimnetworks/") {
            let found = networks().into_iter().find(|network| network["metadata"]["name"] == name);
            return found.map_or_else(|| status(404, "NotFound"), |network| (200, network));
        }
        match path {
            "/apis/netclaim.dev/v1alpha1/addresspools/plant" => pool.clone(),
            "/apis/resource.k8s.io/v1/resourceslices" => {
                assert!(query.contains("spec.driver%3Dnetclaim.dev"), "{query}");
                let node = query.split("spec.nodeName%3D").nth(1).and_then(|rest| rest.split('&').next());
                let is_asked = |slice: &&Value| node.is_none_or(|node| slice["spec"]["nodeName"] == node);
                items(slices.iter().filter(is_asked).cloned())
            }
            _ => panic!("{uri}"),
        }
    })
}

fn plant() -> (u16, Value) {
    let totals = json!({"blockSize": {"ipv4": 28}, "size": 1000, "leased": 0, "used": 0, "free": 1000});
    (
        200,
        json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": "plant"},
        "spec": {"ranges": [{"subnet": "10.60.0.0/20"}]}, "status": {"addresses": totals}}),
    )
}

async fn made(slices: Vec<Value>, line: &[&str]) -> Result<(Vec<Value>, Vec<String>), String> {
    let template = template(&cluster(slices, plant()), &args(line)).await;
    template.map(|made| (made.objects(), made.notes)).map_err(|error| error_chain(&error).to_string())
}

#[tokio::test]
async fn a_template_has_what_every_node_gets_and_nothing_of_one_card() {
    let (objects, notes) = made(storage(), &["storage", "storage"]).await.unwrap();
    let mut expected = device("storage", "", json!({}));
    expected["attributes"].as_object_mut().unwrap().remove("resource.kubernetes.io/pciBusID");
    // A block of 2⁵ IPv4 addresses, and of more IPv6 addresses.
    expected["capacity"]["addresses"]["value"] = json!("32");
    assert_eq!(
        objects,
        [json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": "${NODE_NAME}-netclaim.dev-0"},
            "spec": {"driver": "netclaim.dev", "nodeName": "${NODE_NAME}", "devices": [expected],
                "pool": {"name": "${NODE_NAME}", "generation": 1, "resourceSliceCount": 1}}})]
    );
    assert_eq!(
        notes,
        [
            "the pattern is node b",
            "attribute speed of net-storage is 10000000000 in the template, and 25000000000 on 1 node (c)",
            r#"attribute switch of net-storage is not set in the template, and "tor\u{1b}-1" on 1 node (c)"#,
            "a new node gets 32 addresses of ClaimNetwork storage, one block, before it asks for more",
        ]
    );
}

#[tokio::test]
async fn a_chosen_node_is_the_pattern_even_if_its_device_is_exhausted() {
    let (objects, notes) = made(storage(), &["storage", "--node", "a"]).await.unwrap();
    let (other, _) = made(storage(), &["storage"]).await.unwrap();
    assert_eq!(objects, other, "policy, addresses and taints are those of a new node");
    assert_eq!(
        notes[..2],
        [
            "the pattern is node a",
            "device net-storage of the pattern is tainted netclaim.dev/exhausted: the template has no taint"
        ]
    );
}

#[tokio::test]
async fn the_policy_of_claims_that_ask_for_an_address_stays() {
    let mut slices = storage();
    let policy = json!({"default": "1", "validRange": {"min": "0"}});
    slices[1]["spec"]["devices"][0]["capacity"]["addresses"] = json!({"value": "0", "requestPolicy": policy});
    let (objects, _) = made(slices, &["storage"]).await.unwrap();
    let addresses = &objects[0]["spec"]["devices"][0]["capacity"]["addresses"];
    assert_eq!(addresses, &json!({"value": "32", "requestPolicy": policy}));
}

#[tokio::test]
async fn addresses_are_those_of_the_network_the_pool_or_the_pattern() {
    for (network, pool, expected, note) in [
        ("fixed", plant(), "2", None),
        ("rack", plant(), "2", Some("ClaimNetwork rack has a nodeSelector")),
        ("uncounted", plant(), "2", Some("is not known")),
        ("last", plant(), "32", Some("no block of ClaimNetwork last is free")),
        ("mac", plant(), "16", None),
        ("mac", status(403, "Forbidden"), "2", Some("is not known")),
        ("mac", status(404, "NotFound"), "2", Some("is not known")),
    ] {
        let slices = vec![slice("a", 0, 1, json!({"devices": [device(network, "", json!({}))]}))];
        let made = template(&cluster(slices, pool), &args(&[network])).await.unwrap();
        let addresses = &made.objects()[0]["spec"]["devices"][0]["capacity"]["addresses"]["value"];
        assert_eq!(addresses, expected, "{network}");
        let notes = made.notes.join("\n");
        assert!(note.is_none_or(|note| notes.contains(note)), "{network}: {notes}");
        assert!(note.is_some() || made.notes.len() <= 2, "{network}: {notes}");
    }
}

#[tokio::test]
async fn a_network_alone_needs_no_counters_and_two_that_exclude_each_other_keep_theirs() {
    for alone in ["mac", "ip"] {
        let (objects, _) = made(exclusive(), &[alone]).await.unwrap();
        assert_eq!(objects.len(), 1);
        assert!(objects[0]["spec"]["devices"][0].get("consumesCounters").is_none(), "{objects:?}");
    }
    let (objects, _) = made(exclusive(), &["mac", "ip"]).await.unwrap();
    let [counters, devices] = &objects[..] else { panic!("{objects:?}") };
    // The whole link is not in the template: no device takes from its counter.
    let set = json!({"name": "eth1", "counters": {"net-ip": {"value": "1024"}}});
    assert_eq!(counters["spec"]["sharedCounters"], json!([set]));
    let taken = |name: &str| {
        let devices = devices["spec"]["devices"].as_array().unwrap();
        devices.iter().find(|device| device["name"] == name).unwrap()["consumesCounters"].clone()
    };
    let of = |value: &str| json!([{"counterSet": "eth1", "counters": {"net-ip": {"value": value}}}]);
    assert_eq!((taken("net-mac"), taken("net-ip")), (of("1"), of("1024")));
    for slice in [counters, devices] {
        assert_eq!(slice["spec"]["pool"], json!({"name": NODE, "generation": 1, "resourceSliceCount": 2}));
    }
}

#[tokio::test]
async fn networks_of_several_pools_of_a_node_are_one_pool_in_the_template() {
    let mut slices = exclusive();
    for slice in &mut slices {
        slice["spec"]["pool"]["name"] = json!("e/eth1");
    }
    slices.push(slice("e", 2, 1, json!({"devices": [device("rack", "", json!({}))]})));
    let (objects, _) = made(slices, &["rack", "mac"]).await.unwrap();
    assert_eq!(objects.len(), 1, "{objects:?}");
    assert_eq!(objects[0]["spec"]["devices"].as_array().unwrap().len(), 2);
    assert_eq!(objects[0]["spec"]["pool"]["name"], NODE);
}

#[tokio::test]
async fn a_pool_of_a_template_is_one_that_the_publisher_would_write() {
    let client = cluster(exclusive(), plant());
    let mut made = template(&client, &args(&["mac", "ip"])).await.unwrap();
    let pool = made.pool.as_mut().unwrap();
    pool.name = "node-1".to_owned();
    pool.placement = Placement::Node("node-1".to_owned());
    let faults = validate(pool, &Scope::Node("node-1".to_owned()));
    assert!(faults.is_empty(), "{faults:?}");
}

#[tokio::test]
async fn a_network_of_the_cluster_is_a_label_and_a_reason() {
    let (objects, notes) = made(Vec::new(), &["backbone"]).await.unwrap();
    let labels = json!({"network.netclaim.dev/backbone": "up"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}});
    assert_eq!(objects, std::slice::from_ref(&node));
    assert!(notes[0].starts_with("ClaimNetwork backbone has the scope Cluster: "), "{notes:?}");
    let (objects, _) = made(storage(), &["backbone", "storage"]).await.unwrap();
    assert_eq!((objects.len(), &objects[1]), (2, &node), "beside slices");
}

#[tokio::test]
async fn errors_say_what_no_node_has() {
    for (line, slices, expected) in [
        (&["nothing"][..], storage(), "there is no ClaimNetwork nothing: see `kubectl get claimnetworks`"),
        (
            &["rack"],
            storage(),
            "no node publishes ClaimNetwork rack, so there is no pattern for a new node: see `netclaimctl status` for why",
        ),
        (
            &["storage", "rack"],
            storage(),
            "no node publishes all of the ClaimNetworks rack, storage, so there is no pattern for a new node: see \
             `netclaimctl status` for why",
        ),
        (
            &["rack", "--node=b"],
            storage(),
            "node b does not publish ClaimNetwork rack: see `netclaimctl status --node b` for why",
        ),
        (
            &["storage", "--node=d"],
            storage(),
            "the ResourceSlices of 1 node (d) are incomplete: an agent is writing them, or cannot; run this command \
             again in some seconds, and then see `netclaimctl status`",
        ),
        (
            &["mac", "ip"],
            exclusive().split_off(1),
            "the ResourceSlices of 1 node (e) are incomplete: an agent is writing them, or cannot; run this command \
             again in some seconds, and then see `netclaimctl status`",
        ),
    ] {
        assert_eq!(made(slices, line).await.unwrap_err(), expected);
    }
}

#[tokio::test]
async fn objects_are_documents_of_yaml_or_a_list_in_json() {
    let client = cluster(storage(), plant());
    let made = template(&client, &args(&["storage", "backbone"])).await.unwrap();
    let yaml = text(&made, Output::Yaml).unwrap();
    let documents = crate::documents::read(&yaml).unwrap();
    assert_eq!(documents, made.objects());
    assert!(yaml.contains("nodeName: ${NODE_NAME}\n"), "{yaml}");
    let list: Value = serde_json::from_str(&text(&made, Output::Json).unwrap()).unwrap();
    assert_eq!((&list["kind"], &list["items"]), (&json!("List"), &json!(documents)));
}

#[test]
fn a_network_must_be_named() {
    assert!(Cli::try_parse_from(["netclaimctl", "template-slices"]).is_err());
    assert!(Cli::try_parse_from(["netclaimctl", "template-slices", "Not_a_name"]).is_err());
}
