//! From a fake API server to texts.

#![allow(clippy::unwrap_used, reason = "tests")]

use clap::Parser as _;
use kube::Client;
use netclaim_api::traffic::{Flow, Traffic};
use serde_json::{Value, json};

use super::*;
use crate::mock::{api_server, items, status};
use crate::{Cli, Command};

fn args(line: &[&str]) -> Args {
    let line = ["netclaimctl", "attachments"].iter().chain(line);
    match Cli::try_parse_from(line).unwrap().command {
        Command::Attachments(args) => args,
        other => panic!("{other:?}"),
    }
}

fn claim(namespace: &str, name: &str, pods: &[&str], devices: &Value) -> Value {
    let result = |device: &Value| {
        json!({"driver": device["driver"], "pool": device["pool"], "device": device["device"],
            "request": "net", "adminAccess": device["adminAccess"]})
    };
    let results: Vec<Value> = devices.as_array().unwrap().iter().map(result).collect();
    let consumer = |pod: &&str| json!({"resource": "pods", "name": pod, "uid": format!("uid-of-{pod}")});
    let consumers: Vec<Value> = pods.iter().map(consumer).collect();
    json!({"metadata": {"namespace": namespace, "name": name}, "spec": {}, "status": {
        "allocation": {"devices": {"results": results}}, "reservedFor": consumers, "devices": devices}})
}

fn device(pool: &str, device: &str, state: Value) -> Value {
    let mut all = json!({"driver": "netclaim.dev", "pool": pool, "device": device});
    all.as_object_mut().unwrap().extend(state.as_object().unwrap().clone());
    all
}

fn attached(interface: &str, ips: &[&str]) -> Value {
    json!({"networkData": {"interfaceName": interface, "ips": ips, "hardwareAddress": "02:00:5e:10:00:01"},
        "data": {"cniVersion": "1.0.0"}, "conditions": [condition("True", "Attached", &format!("attached as {interface}"))]})
}

fn condition(status: &str, reason: &str, message: &str) -> Value {
    json!({"type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-11-22T00:00:00Z"})
}

/// A ClaimNetwork on a link of each node, one of the whole cluster, and a link.
fn claims() -> Vec<Value> {
    let failed = json!({"conditions": [condition("False", "AttachFailed", "CNI plugin macvlan failed ADD:\nno link")]});
    let other = json!({"driver": "gpu.example.com", "pool": "a", "device": "gpu0"});
    let admin = device("a", "net-storage", json!({"adminAccess": true}));
    vec![
        claim(
            "shop",
            "web-lan",
            &["web"],
            &json!([device("networks/lan", "net-lan", attached("net2", &[])), other]),
        ),
        claim(
            "shop",
            "web",
            &["web"],
            &json!([device("a", "net-storage", attached("net1", &["10.20.0.2/22", "fd00::2/64"]))]),
        ),
        claim("shop", "db", &["db"], &json!([device("a", "net-storage", failed)])),
        claim("shop", "left", &[], &json!([device("b", "nic-eth2", json!({}))])),
        claim("shop", "watch", &["watcher"], &json!([admin])),
        claim(
            "bank",
            "vault",
            &["vault"],
            &json!([device("b", "net-storage", attached("net1", &["10.20.0.9/22"]))]),
        ),
        json!({"metadata": {"namespace": "shop", "name": "waiting"}, "spec": {}}),
    ]
}

fn slices() -> Vec<Value> {
    let slice = |pool: &str, generation: i64, uplink: &str| {
        json!({"metadata": {"name": format!("{pool}-{generation}")}, "spec": {"driver": "netclaim.dev",
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": "net-storage", "attributes": {
                "uplink": {"string": uplink}, "netclaim.dev/mode": {"string": "macvlan"}}}]}})
    };
    vec![slice("a", 2, "eth1"), slice("a", 1, "eth9"), slice("b", 1, "eth1")]
}

fn cluster(answer: impl Fn(&str) -> Option<(u16, Value)> + Send + 'static) -> Client {
    api_server(move |uri| {
        let pod = |name: &str, node: &str| json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"nodeName": node, "containers": []}});
        let of_namespace = |namespace: &'static str| {
            claims().into_iter().filter(move |claim| claim["metadata"]["namespace"] == namespace)
        };
        if let Some(answer) = answer(uri) {
            return answer;
        }
        match uri.split('?').next().unwrap() {
            "/apis/resource.k8s.io/v1/resourceclaims" => items(claims()),
            "/apis/resource.k8s.io/v1/namespaces/shop/resourceclaims" => items(of_namespace("shop")),
            "/apis/resource.k8s.io/v1/namespaces/empty/resourceclaims" => items([]),
            "/apis/resource.k8s.io/v1/resourceslices" => items(slices()),
            "/api/v1/pods" | "/api/v1/namespaces/shop/pods" => items([pod("web", "a"), pod("db", "a")]),
            "/api/v1/namespaces/shop/pods/web" => (200, pod("web", "a")),
            "/api/v1/namespaces/shop/pods/other" => (200, pod("other", "a")),
            _ => status(404, "NotFound"),
        }
    })
}

async fn shown(client: &Client, line: &[&str]) -> String {
    let args = args(line);
    let found = find(client, &args.chosen("shop"), |_| true).await.unwrap();
    assert_eq!(found.notes, [""; 0]);
    text(&found, &args, Colours::Off).unwrap()
}

#[tokio::test]
async fn the_attachments_of_a_namespace_are_sorted_and_say_what_is_wrong() {
    assert_eq!(
        shown(&cluster(|_| None), &[]).await,
        "POD      INTERFACE   NETWORK   ADDRESSES                 NODE   READY     REASON\n\
         <none>   <none>      <none>    <none>                    b      Unknown   <none>\n\
         db       <none>      storage   <none>                    a      False     AttachFailed\n\
         web      net1        storage   10.20.0.2/22,fd00::2/64   a      True      Attached\n\
         web      net2        lan       <none>                    a      True      Attached\n"
    );
}

#[tokio::test]
async fn all_namespaces_have_a_column_of_their_own() {
    assert_eq!(
        shown(&cluster(|_| None), &["-A", "--network=storage"]).await,
        "NAMESPACE   POD     INTERFACE   NETWORK   ADDRESSES                 NODE   READY   REASON\n\
         bank        vault   net1        storage   10.20.0.9/22              b      True    Attached\n\
         shop        db      <none>      storage   <none>                    a      False   AttachFailed\n\
         shop        web     net1        storage   10.20.0.2/22,fd00::2/64   a      True    Attached\n"
    );
}

#[tokio::test]
async fn a_wide_table_has_links_claims_and_messages_in_one_line_each() {
    let wide = shown(&cluster(|_| None), &["-o", "wide"]).await;
    let lines: Vec<Vec<&str>> = wide
        .lines()
        .map(|line| line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(lines[0][7..], ["MAC", "UPLINK", "MODE", "CNI", "DEVICE", "CLAIM", "REQUEST", "MESSAGE"]);
    let expected = [
        "<none>",
        "eth1",
        "macvlan",
        "<none>",
        "net-storage",
        "db",
        "net",
        r"CNI plugin macvlan failed ADD:\nno link",
    ];
    assert_eq!(lines[2][7..], expected);
    let expected =
        ["02:00:5e:10:00:01", "<none>", "<none>", "1.0.0", "net-lan", "web-lan", "net", "attached as net2"];
    assert_eq!(lines[4][7..], expected);
}

#[test]
fn the_attachment_of_a_shared_claim_is_that_of_its_first_pod_and_the_others_wait() {
    let devices = json!([device("a", "net-storage", attached("net1", &["10.20.0.2/22"]))]);
    let shared = claim("shop", "shared", &["has", "waits", "third"], &devices);
    let mut found = Attachment::of_claim(&serde_json::from_value(shared).unwrap());
    found.sort();
    let lines: Vec<_> =
        found.iter().map(|one| (one.pod.as_deref(), one.addresses.len(), one.ready)).collect();
    assert_eq!(
        lines,
        [(Some("has"), 1, Some(true)), (Some("third"), 0, Some(false)), (Some("waits"), 0, Some(false))]
    );
    assert_eq!((&found[2].interface, &found[2].mac), (&None, &None));
    assert_eq!(found[2].message.as_deref(), Some("waits for pod has, which has the claim, to end"));
}

#[tokio::test]
async fn one_pod_or_one_node_can_be_chosen() {
    let client = cluster(|_| None);
    let pod = shown(&client, &["web"]).await;
    assert_eq!(pod.lines().count(), 3, "{pod}");
    let node = shown(&client, &["-A", "--node=b"]).await;
    assert!(node.lines().skip(1).all(|line| line.contains(" b ")), "{node}");
    assert_eq!(node.lines().count(), 3, "{node}");
    let error = find(&client, &args(&["gone"]).chosen("shop"), |_| true).await.unwrap_err();
    assert!(error.to_string().starts_with("there is no pod shop/gone"), "{error}");
}

#[tokio::test]
async fn programs_get_everything() {
    let client = cluster(|_| None);
    let json: Value = serde_json::from_str(&shown(&client, &["web", "--output=json"]).await).unwrap();
    let expected = json!({"namespace": "shop", "pod": "web", "interface": "net1", "claim": "web", "request": "net",
        "network": "storage", "addresses": ["10.20.0.2/22", "fd00::2/64"], "mac": "02:00:5e:10:00:01", "node": "a",
        "uplink": "eth1", "mode": "macvlan", "cniVersion": "1.0.0", "pool": "a", "device": "net-storage", "ready": true,
        "reason": "Attached", "message": "attached as net1"});
    assert_eq!(json["attachments"][0], expected);
    let yaml = shown(&client, &["web", "--output=yaml"]).await;
    assert!(yaml.starts_with("---\nattachments:\n"), "{yaml}");
}

#[tokio::test]
async fn nothing_is_said_as_kubectl_says_it() {
    let client = cluster(|_| None);
    let line = args(&["--namespace=empty"]);
    let found = find(&client, &line.chosen("shop"), |_| true).await.unwrap();
    assert_eq!(nothing(&line, found.namespace.as_deref()), "No resources found in empty namespace.");
    assert_eq!(nothing(&args(&["-A"]), None), "No resources found");
    let line = args(&["other"]);
    let found = find(&client, &line.chosen("shop"), |_| true).await.unwrap();
    assert_eq!(found.attachments, []);
    assert_eq!(
        nothing(&line, found.namespace.as_deref()),
        "pod shop/other has no such attachment: netclaimctl explain pod other --namespace shop"
    );
}

#[tokio::test]
async fn a_tenant_sees_what_the_claims_say() {
    let client = cluster(|uri| {
        let is_closed = uri.starts_with("/api/v1/namespaces/shop/pods?") || uri.contains("resourceslices");
        is_closed.then(|| status(403, "Forbidden"))
    });
    let found = find(&client, &args(&["-o", "wide"]).chosen("shop"), |_| true).await.unwrap();
    assert_eq!(
        found.notes,
        [
            "you may not read Pods: the nodes of ClaimNetworks of scope Cluster are not shown",
            "you may not read ResourceSlices: uplinks and modes are not shown",
        ]
    );
    assert_eq!(found.attachments.len(), 4);
    let of_claim =
        |claim: &str| found.attachments.iter().find(|attachment| attachment.claim == claim).unwrap();
    let web = of_claim("web");
    assert_eq!(web.addresses, ["10.20.0.2/22", "fd00::2/64"]);
    let said = [&web.pod, &web.interface, &web.network, &web.node, &web.reason, &web.uplink, &web.mode];
    let attached = [Some("web"), Some("net1"), Some("storage"), Some("a"), Some("Attached"), None, None];
    assert_eq!(said.map(|text| text.as_deref()), attached);
    assert_eq!((web.ready, of_claim("db").ready), (Some(true), Some(false)));
    assert_eq!(of_claim("web-lan").node, None, "the pool of the cluster has no node");
    let error = find(&cluster(|_| Some(status(403, "Forbidden"))), &args(&[]).chosen("shop"), |_| true)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "cannot list ResourceClaims");
}

#[tokio::test]
async fn one_pod_is_read_and_not_all_of_its_namespace() {
    let client = cluster(|uri| {
        assert!(!uri.starts_with("/api/v1/namespaces/shop/pods?"), "{uri}");
        None
    });
    let found = find(&client, &args(&["web"]).chosen("shop"), |_| true).await.unwrap();
    let nodes: Vec<_> = found.attachments.iter().map(|attachment| attachment.node.as_deref()).collect();
    assert_eq!(nodes, [Some("a"), Some("a")]);
}

#[tokio::test]
async fn a_tenant_who_may_not_read_pods_sees_one_pods_attachments() {
    let client =
        cluster(|uri| uri.starts_with("/api/v1/namespaces/shop/pods").then(|| status(403, "Forbidden")));
    let found = find(&client, &args(&["web"]).chosen("shop"), |_| true).await.unwrap();
    assert_eq!(found.attachments.len(), 2);
    assert_eq!(
        found.notes,
        ["you may not read Pods: the nodes of ClaimNetworks of scope Cluster are not shown"]
    );
    let found = find(&client, &args(&["db"]).chosen("shop"), |_| true).await.unwrap();
    assert_eq!((found.attachments.len(), found.notes.as_slice()), (1, [].as_slice()));
}

#[tokio::test]
async fn rows_that_a_node_cannot_choose_are_said_to_be_missing() {
    let client =
        cluster(|uri| uri.starts_with("/api/v1/namespaces/shop/pods").then(|| status(403, "Forbidden")));
    let found = find(&client, &args(&["--node=a", "--network=lan"]).chosen("shop"), |_| true).await.unwrap();
    assert_eq!(found.attachments, []);
    let note = "you may not read Pods: attachments to ClaimNetworks of scope Cluster are missing, because their nodes are not known";
    assert_eq!(found.notes, [note]);
}

#[tokio::test]
async fn traffic_stands_beside_the_grant() {
    let line = args(&["web", "--traffic"]);
    let mut found = find(&cluster(|_| None), &line.chosen("shop"), |_| true).await.unwrap();
    for attachment in &mut found.attachments {
        let known = attachment.interface.as_deref() == Some("net1");
        attachment.traffic = known.then(|| {
            let flow = |rate, dropped| Flow { rate, dropped, ..Flow::default() };
            Traffic {
                granted: Some(20_000_000),
                received: flow(19_840_000, 0),
                sent: flow(0, 7),
                ..Traffic::default()
            }
        });
    }
    assert_eq!(
        text(&found, &line, Colours::Off).unwrap(),
        "\
POD   INTERFACE   NETWORK   ADDRESSES                 NODE   READY   REASON     RX-BIT/S   TX-BIT/S   GRANTED   RX-DROPPED   TX-DROPPED
web   net1        storage   10.20.0.2/22,fd00::2/64   a      True    Attached   19.8M      0          20.0M     0            7
web   net2        lan       <none>                    a      True    Attached   <none>     <none>     <none>    <none>       <none>
"
    );
}
