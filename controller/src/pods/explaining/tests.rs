//! The loop, with an API server that is none.

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock;

use super::*;
use crate::demand::Need;
use crate::objects::nodes::NodeFacts;

/// Answers requests by their path and query for some time, and returns those that were made, and the notes of
/// events.
async fn serve(
    mut requests: mock::Handle<Request<Body>, Response<Body>>,
    objects: BTreeMap<&'static str, Value>,
    time: Duration,
) -> (Vec<String>, Vec<Value>) {
    let (mut seen, mut events) = (Vec::new(), Vec::new());
    let end = Instant::now() + time;
    while let Ok(Some((request, reply))) = tokio::time::timeout_at(end, requests.next_request()).await {
        let (head, body) = request.into_parts();
        let path = head.uri.path().trim_start_matches("/apis/").to_owned();
        let answer = if head.method == http::Method::POST {
            let event: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
            events.push(event.clone());
            Some(event)
        } else {
            let query = head.uri.query().unwrap_or_default();
            let part = if query.contains("continue=next") { "?continue" } else { "" };
            objects.get(format!("{path}{part}").as_str()).cloned()
        };
        seen.push(path);
        let missing = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": "NotFound", "code": 404});
        let status = if answer.is_some() { 200 } else { 404 };
        let body = Body::from(answer.unwrap_or(missing).to_string().into_bytes());
        reply.send_response(Response::builder().status(status).body(body).unwrap());
    }
    (seen, events)
}

fn pod(uid: &str) -> PodObject {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": uid, "uid": uid, "namespace": "shop"},
        "spec": {"resourceClaims": [{"name": "net", "resourceClaimTemplateName": "storage"}]},
        "status": {
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
            "resourceClaimStatuses": [{"name": "net", "resourceClaimName": "web-net-x7"}]},
    });
    serde_json::from_value(pod).unwrap()
}

fn class(expression: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "storage"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]}})
}

const OF_STORAGE: &str =
    r#"device.driver == "netclaim.dev" && device.attributes["netclaim.dev"].network == "storage""#;

/// Two nodes with one interface each, which claims of this namespace and of another one have.
fn objects(expression: &str) -> BTreeMap<&'static str, Value> {
    let slice = |node: &str| {
        json!({"metadata": {"name": node}, "spec": {"driver": "netclaim.dev", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "net-storage", "allowMultipleAllocations": true,
                "attributes": {"network": {"string": "storage"}},
                "capacity": {"interfaces": {"value": "1", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}}}}]}})
    };
    let holding = |namespace: &str, name: &str, node: &str| {
        json!({"metadata": {"namespace": namespace, "name": name}, "spec": {}, "status": {
            "allocation": {"devices": {"results": [{"request": "net", "driver": "netclaim.dev", "pool": node,
                "device": "net-storage", "shareID": "s", "consumedCapacity": {"interfaces": "1"}}]}}}})
    };
    let list = |token: &str, items: Value| json!({"apiVersion": "resource.k8s.io/v1", "kind": "List", "metadata": {"continue": token}, "items": items});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "shop", "name": "web-net-x7"},
        "spec": {"devices": {"requests": [{"name": "net", "exactly": {"deviceClassName": "storage"}}]}}});
    BTreeMap::from([
        ("resource.k8s.io/v1/namespaces/shop/resourceclaims/web-net-x7", claim),
        ("resource.k8s.io/v1/deviceclasses/storage", class(expression)),
        ("resource.k8s.io/v1/resourceslices", list("next", json!([slice("a")]))),
        ("resource.k8s.io/v1/resourceslices?continue", list("", json!([slice("b")]))),
        ("resource.k8s.io/v1/resourceclaims", list("next", json!([holding("bank", "vault", "a")]))),
        ("resource.k8s.io/v1/resourceclaims?continue", list("", json!([holding("shop", "db", "b")]))),
    ])
}

/// Lets pods wait for some time, and returns the requests and the events.
async fn explain(
    pods: &[PodObject],
    objects: BTreeMap<&'static str, Value>,
    seconds: u64,
) -> (Vec<String>, Vec<Value>, Metrics) {
    explain_with(Vec::new(), pods, objects, seconds).await
}

async fn explain_with(
    rules: Vec<DeviceTaintRule>,
    pods: &[PodObject],
    objects: BTreeMap<&'static str, Value>,
    seconds: u64,
) -> (Vec<String>, Vec<Value>, Metrics) {
    let (service, requests) = mock::pair();
    let client = Client::new(service, "default");
    let metrics = Metrics::default();
    let unscheduled = Arc::new(Unscheduled::default());
    let networks = BTreeMap::from([("storage".parse().unwrap(), Draw::Nothing)]);
    let nodes = ["a", "b"].map(|node| (node.to_owned(), NodeFacts::default()));
    let demand = Demand { networks, nodes: Arc::new(nodes.into()), rules, ..Demand::default() };
    let (_demand, needed) = watch::channel(Some(demand));
    for pod in pods {
        unscheduled.apply(&watcher::Event::Apply(pod.clone()));
    }
    let events = Events::new(client.clone(), "pod-1".to_owned());
    let explaining = run(client, events, metrics.clone(), unscheduled, needed);
    tokio::select! {
        () = explaining => unreachable!(),
        (seen, events) = serve(requests, objects, Duration::from_secs(seconds)) => (seen, events, metrics),
    }
}

fn count(metrics: &Metrics, outcome: Outcome) -> u64 {
    metrics.pods_explained.get_or_create(&Explained { outcome }).get()
}

#[tokio::test(start_paused = true)]
async fn pods_that_no_node_can_serve_get_one_event_each_with_the_cause() {
    let (seen, events, metrics) = explain(&[pod("web-1"), pod("web-2")], objects(OF_STORAGE), 200).await;
    assert_eq!(events.len(), 2, "{events:#?}");
    let note = "no node can serve request net of claim net. 2 nodes (a, b): ClaimNetwork storage: \
        0 of 1 interfaces free; held by claim shop/db, and claims of other namespaces";
    for (event, name) in events.iter().zip(["web-1", "web-2"]) {
        assert_eq!((&event["note"], &event["reason"]), (&json!(note), &json!("NetworkNotAllocated")));
        assert_eq!(event["regarding"]["name"], name);
        assert_eq!((&event["type"], &event["metadata"]["namespace"]), (&json!("Warning"), &json!("shop")));
    }
    let reads = |path: &str| seen.iter().filter(|seen| seen.ends_with(path)).count();
    assert_eq!(reads("/resourceclaims/web-net-x7"), 3, "after 5, 65 and 185 s: {seen:?}");
    assert_eq!(reads("/resourceslices"), 6, "in parts");
    assert_eq!((count(&metrics, Outcome::Reported), count(&metrics, Outcome::Known)), (2, 4));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_asks_by_limits_gets_an_event_that_names_its_limit() {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1", "uid": "web-1", "namespace": "shop"},
        "spec": {"containers": [{"name": "web",
            "resources": {"limits": {"deviceclass.resource.kubernetes.io/storage": "1"}}}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    });
    let mut objects = objects(OF_STORAGE);
    let classes = json!({"apiVersion": "resource.k8s.io/v1", "kind": "List", "metadata": {}, "items": [class(OF_STORAGE)]});
    objects.insert("resource.k8s.io/v1/deviceclasses", classes);
    let asking = serde_json::from_value(pod.clone()).unwrap();
    let (_, events, _) = explain(&[asking], objects.clone(), 60).await;
    let note = "no node can serve limit deviceclass.resource.kubernetes.io/storage of container web. 2 nodes (a, b): \
        ClaimNetwork storage: 0 of 1 interfaces free; held by claim shop/db, and claims of other namespaces";
    assert_eq!(events.iter().map(|event| &event["note"]).collect::<Vec<_>>(), [note]);

    pod["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1"});
    let (seen, events, metrics) = explain(&[serde_json::from_value(pod).unwrap()], objects, 60).await;
    assert_eq!(seen, ["resource.k8s.io/v1/deviceclasses"], "a device plugin's");
    assert_eq!((events.len(), count(&metrics, Outcome::Foreign)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn who_leases_addresses_is_told_how_many_a_pod_needs_that_waits_for_nothing_else() {
    let mut objects = objects(OF_STORAGE);
    let slice = |node: &str| {
        json!({"metadata": {"name": node}, "spec": {"driver": "netclaim.dev", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "net-storage", "allowMultipleAllocations": true,
                "attributes": {"network": {"string": "storage"}},
                "capacity": {"addresses": {"value": "6", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}}}}]}})
    };
    let list = |items: Value| json!({"apiVersion": "resource.k8s.io/v1", "kind": "List", "metadata": {}, "items": items});
    objects.insert("resource.k8s.io/v1/resourceslices", list(json!([slice("b")])));
    let mut held = objects["resource.k8s.io/v1/resourceclaims?continue"]["items"].clone();
    held[0]["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = json!({"addresses": "1"});
    objects.insert("resource.k8s.io/v1/resourceclaims", list(held));
    let requests: Vec<Value> =
        (0..9).map(|n| json!({"name": format!("r{n}"), "exactly": {"deviceClassName": "storage"}})).collect();
    let claim = "resource.k8s.io/v1/namespaces/shop/resourceclaims/web-net-x7";
    objects.get_mut(claim).unwrap()["spec"]["devices"]["requests"] = json!(requests);
    let unscheduled = Arc::new(Unscheduled::default());
    let mut needs = unscheduled.needs();
    unscheduled.apply(&watcher::Event::Apply(pod("web-1")));
    let (service, handle) = mock::pair();
    let client = Client::new(service, "default");
    let networks = BTreeMap::from([("storage".parse().unwrap(), Draw::Nothing)]);
    let nodes = ["a", "b"].map(|node| (node.to_owned(), NodeFacts::default()));
    let demand = Demand { networks, nodes: Arc::new(nodes.into()), ..Demand::default() };
    let (_demand, needed) = watch::channel(Some(demand));
    let events = Events::new(client.clone(), "pod-1".to_owned());
    let begin = Instant::now();
    let told = async {
        needs.changed().await.unwrap();
        let after = begin.elapsed();
        let first = needs.borrow_and_update().clone();
        unscheduled.apply(&watcher::Event::Delete(pod("web-1")));
        needs.changed().await.unwrap();
        (after, first, needs.borrow_and_update().clone())
    };
    let explaining = run(client, events, Metrics::default(), unscheduled.clone(), needed);
    let (after, first, then) = tokio::select! {
        () = explaining => unreachable!(),
        _ = serve(handle, objects, Duration::from_secs(100)) => panic!("nothing was told"),
        told = told => told,
    };
    let need = Need { used: 1, wanted: 9 };
    assert_eq!(first, Needs::from([(("storage".parse().unwrap(), "b".to_owned()), need)]));
    assert!(after < Duration::from_secs(8), "{after:?}");
    assert_eq!(then, Needs::new(), "no pod waits any more");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_rule_keeps_off_its_devices_gets_an_event_that_names_it() {
    let rule = json!({"metadata": {"name": "work"}, "spec": {"deviceSelector": {"device": "net-storage"},
        "taint": {"key": "example.com/maintenance", "effect": "NoSchedule"}}});
    let mut objects = objects(OF_STORAGE);
    let none = json!({"apiVersion": "resource.k8s.io/v1", "kind": "List", "metadata": {}, "items": []});
    objects.insert("resource.k8s.io/v1/resourceclaims", none);
    let rules = vec![serde_json::from_value(rule).unwrap()];
    let (_, events, _) = explain_with(rules, &[pod("web-1")], objects, 60).await;
    let note = "no node can serve request net of claim net. 2 nodes (a, b): ClaimNetwork storage: \
        it takes no new pods: example.com/maintenance (DeviceTaintRule work)";
    assert_eq!(events.iter().map(|event| &event["note"]).collect::<Vec<_>>(), [note]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_while_no_pod_waits() {
    let (seen, ..) = explain(&[], objects(OF_STORAGE), 200).await;
    assert_eq!(seen, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn slices_are_not_read_for_pods_that_ask_for_devices_of_other_drivers() {
    let foreign = objects(r#"device.driver == "gpu.example.com""#);
    let (seen, events, metrics) = explain(&[pod("web-1")], foreign, 200).await;
    assert_eq!(seen.len(), 2, "the claim and its class: {seen:?}");
    assert!(events.is_empty());
    assert_eq!(count(&metrics, Outcome::Foreign), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_node_can_serve_gets_no_event() {
    let mut objects = objects(OF_STORAGE);
    objects.remove("resource.k8s.io/v1/resourceclaims?continue");
    let claims = json!({"apiVersion": "resource.k8s.io/v1", "kind": "List", "metadata": {}, "items": []});
    objects.insert("resource.k8s.io/v1/resourceclaims", claims);
    let (_, events, metrics) = explain(&[pod("web-1")], objects, 60).await;
    assert!(events.is_empty());
    assert_eq!(count(&metrics, Outcome::Served), 1);
}

#[tokio::test(start_paused = true)]
async fn a_network_that_does_not_exist_is_named() {
    let expression = OF_STORAGE.replace(r#"network == "storage""#, r#"network == "gone""#);
    let (_, events, _) = explain(&[pod("web-1")], objects(&expression), 60).await;
    assert_eq!(
        events[0]["note"],
        "there is no ClaimNetwork gone: kubectl get claimnetworks lists those that exist"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_is_retried() {
    let mut partial = objects(OF_STORAGE);
    partial.remove("resource.k8s.io/v1/resourceslices");
    let (seen, events, metrics) = explain(&[pod("web-1")], partial, 100).await;
    assert!(events.is_empty());
    assert_eq!(count(&metrics, Outcome::Failed), 2, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_group_is_read_within_a_limit() {
    let mut many = objects(OF_STORAGE);
    let names: Vec<Value> =
        (0..256).map(|n| json!({"name": format!("a{n}"), "deviceClassName": format!("gone-{n}")})).collect();
    let requests: Vec<Value> = names
        .chunks(8)
        .enumerate()
        .map(|(n, names)| json!({"name": format!("r{n}"), "firstAvailable": names}))
        .collect();
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "shop", "name": "web-net-x7"}, "spec": {"devices": {"requests": requests}}});
    many.insert("resource.k8s.io/v1/namespaces/shop/resourceclaims/web-net-x7", claim);
    let (seen, events, metrics) = explain(&[pod("web-1")], many, 60).await;
    assert_eq!(seen.len(), 64, "{seen:?}");
    assert!(events.is_empty());
    assert_eq!(count(&metrics, Outcome::Unknown), 1);
}

#[test]
fn the_pause_after_a_round_is_long_but_has_a_limit() {
    assert_eq!(pause(Duration::from_secs(2)), Duration::from_secs(18));
    assert_eq!(pause(Duration::from_secs(1200)), LONGEST_REST);
}

#[tokio::test]
async fn work_of_a_round_gets_the_time_that_is_left() {
    let mut left = TimeLeft(GROUP_TIME + Duration::from_millis(50));
    let given = |deadline: std::time::Instant| deadline.saturating_duration_since(std::time::Instant::now());
    let first = left.spend(move |deadline| {
        let given = given(deadline);
        std::thread::sleep(Duration::from_millis(100));
        given
    });
    let first = first.await.unwrap();
    assert!(first <= GROUP_TIME && first > GROUP_TIME - Duration::from_secs(1), "{first:?}");
    let second = left.spend(given).await.unwrap();
    assert!(second < GROUP_TIME - Duration::from_millis(50), "{second:?}");
    let mut none = TimeLeft(Duration::ZERO);
    assert_eq!(none.spend(given).await, Some(Duration::ZERO));
}
