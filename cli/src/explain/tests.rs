//! Explanations of small clusters.

use serde_json::{Value, json};

use super::explanation::Explanation;
use super::facts::{ClaimFact, Cluster, Facts, NodeFacts, Unread};

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn pod(status: Value, node: Option<&str>) -> Value {
    json!({"metadata": {"namespace": "shop", "name": "web", "uid": "u"}, "status": status,
        "spec": {"nodeName": node, "containers": [], "resourceClaims": [{"name": "net", "resourceClaimName": "net"}]}})
}

fn pending() -> Value {
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 cannot allocate all claims."});
    pod(json!({"phase": "Pending", "conditions": [condition]}), None)
}

fn claim(class: &str, status: Value) -> Value {
    json!({"metadata": {"namespace": "shop", "name": "net", "uid": "c"}, "status": status,
        "spec": {"devices": {"requests": [{"name": "net", "exactly": {"deviceClassName": class}}]}}})
}

fn allocated(condition: Value) -> Value {
    let device = json!({"driver": "netclaim.dev", "pool": "a", "device": "net-storage", "shareID": "s"});
    let mut result = device.clone();
    result["request"] = json!("net");
    let mut status = device;
    status["conditions"] = json!([condition]);
    status["networkData"] =
        json!({"interfaceName": "net1", "hardwareAddress": "36:6f:e3:6d:91:81", "ips": ["10.20.0.2/22"]});
    json!({"allocation": {"devices": {"results": [result]}}, "devices": [status],
        "reservedFor": [{"resource": "pods", "name": "web", "uid": "u"}]})
}

fn condition(status: &str, reason: &str, message: &str) -> Value {
    json!({"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-22T00:00:00Z"})
}

fn holding(name: &str, node: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name}, "spec": {}, "status": {
        "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
        "allocation": {"devices": {"results": [{"request": "net", "driver": "netclaim.dev", "pool": node,
            "device": "net-storage", "shareID": "s", "consumedCapacity": {"interfaces": "1"}}]}}}})
}

fn slice(node: &str, network: &str) -> Value {
    json!({"metadata": {"name": node}, "spec": {"driver": "netclaim.dev", "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": format!("net-{network}"), "allowMultipleAllocations": true,
            "attributes": {"network": {"string": network}},
            "capacity": {"interfaces": {"value": "1", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}}}}]}})
}

fn class(name: &str, expression: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
}

fn network(name: &str) -> Value {
    json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": name},
        "spec": {"cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan"}]}}})
}

/// Nodes a to d: a and b have ClaimNetwork storage, of which a's is taken, c has another ClaimNetwork, and d
/// is cordoned.
fn cluster() -> Cluster {
    let of_network =
        r#"device.driver == "netclaim.dev" && device.attributes["netclaim.dev"].network == "storage""#;
    let classes = [class("storage", of_network), class("gpu", r#"device.driver == "gpu.example.com""#)];
    let node = |name: &str| json!({"metadata": {"name": name}, "spec": {"unschedulable": name == "d"}});
    Cluster {
        classes: Some(classes.into_iter().map(from).collect()),
        slices: Some(
            [slice("a", "storage"), slice("b", "storage"), slice("c", "lab")].into_iter().map(from).collect(),
        ),
        rules: Vec::new(),
        nodes: Some(["a", "b", "c", "d"].into_iter().map(|name| from(node(name))).collect()),
        claims: vec![from(holding("x", "a")), from(holding("y", "b"))],
        lacks_claims: false,
        networks: Some(vec![from(network("storage"))]),
    }
}

fn found(claim: Value) -> Vec<ClaimFact> {
    vec![ClaimFact::Found(Box::new(from(claim)))]
}

fn waiting(class: &str, cluster: Cluster) -> Facts {
    Facts {
        pod: Some(from(pending())),
        claims: found(claim(class, json!({}))),
        cluster: Some(cluster),
        ..Facts::default()
    }
}

fn verdict(facts: &Facts) -> String {
    Explanation::of(facts, false).verdict
}

#[test]
fn a_pod_that_no_node_can_serve_is_told_the_causes_of_groups_of_nodes() {
    let explanation = Explanation::of(&waiting("storage", cluster()), true);
    assert_eq!(
        explanation.text(false),
        "pod shop/web waits: no node can serve request net of claim net\n\
         \n\
         request net of claim net\n\
         \x20 2 nodes (a, b): ClaimNetwork storage: 0 of 1 interfaces free; held by claim shop/x (pod shop/x), claim shop/y (pod shop/y)\n\
         \x20 1 node (c): the node does not offer ClaimNetwork storage\n\
         \n\
         nodes that do not take the pod\n\
         \x20 1 node (d): cordoned\n\
         \n\
         notes\n\
         \x20 the scheduler says: 0/3 nodes are available: 3 cannot allocate all claims.\n"
    );
    let details = explanation.text(true);
    assert!(details.contains("node a\n  request net of claim net\n    a/net-storage: 0 of 1 interfaces free; held by claim shop/x (pod shop/x)\n"), "{details}");
    let json = serde_json::to_value(&explanation).unwrap();
    let cause = &json["judgement"]["nodes"][0]["requests"][0]["devices"][0]["causes"][0];
    let holder = json!({"claim": "shop/x", "pods": ["shop/x"]});
    let expected = json!({"type": "capacity", "capacity": "interfaces", "wanted": "1", "total": "1", "free": "0", "holders": [holder]});
    assert_eq!(*cause, expected);
    assert_eq!(json["judgement"]["causes"][0]["nodes"], json!(["a", "b"]));
}

#[test]
fn a_node_that_can_serve_the_pod_is_named() {
    let mut cluster = cluster();
    cluster.claims.pop();
    let explanation = Explanation::of(&waiting("storage", cluster), true);
    assert!(
        explanation.verdict.starts_with("pod shop/web waits, but 1 node can serve its networks"),
        "{}",
        explanation.verdict
    );
    assert_eq!(explanation.judgement.unwrap().serving, ["b"]);
}

#[test]
fn a_node_that_could_serve_the_pod_and_does_not_take_it_is_counted() {
    let mut cluster = cluster();
    cluster.slices.as_mut().unwrap().push(from(slice("d", "storage")));
    let verdict = verdict(&waiting("storage", cluster));
    assert!(
        verdict
            .ends_with("no node can serve request net of claim net; 1 node could, but does not take the pod"),
        "{verdict}"
    );
}

#[test]
fn a_class_or_network_that_does_not_exist_comes_first() {
    assert!(verdict(&waiting("stroage", cluster())).contains("there is no DeviceClass stroage"));
    let mut without = cluster();
    without.networks = Some(vec![]);
    assert_eq!(
        verdict(&waiting("storage", without)),
        "pod shop/web waits: there is no ClaimNetwork storage: kubectl get claimnetworks lists those that exist"
    );
    let mut refused = cluster();
    let mut invalid = network("storage");
    invalid["status"] = json!({"conditions": [{"type": "Accepted", "status": "False", "reason": "Invalid",
        "message": "spec.cni: it is empty", "lastTransitionTime": "2026-11-22T00:00:00Z"}]});
    refused.networks = Some(vec![from(invalid)]);
    let verdict = verdict(&waiting("storage", refused));
    assert_eq!(verdict, "pod shop/web waits: ClaimNetwork storage is not accepted: spec.cni: it is empty");
}

#[test]
fn an_alternative_that_can_be_used_is_enough() {
    let asking = |classes: [&str; 2]| {
        let alternatives = classes.map(|class| json!({"name": class, "deviceClassName": class}));
        let mut asking = claim("storage", json!({}));
        asking["spec"]["devices"]["requests"] = json!([{"name": "net", "firstAvailable": alternatives}]);
        Facts { claims: found(asking), ..waiting("storage", cluster()) }
    };
    let of_gone = r#"device.driver == "netclaim.dev" && device.attributes["netclaim.dev"].network == "gone""#;
    let mut facts = asking(["gone", "storage"]);
    facts.cluster.as_mut().unwrap().classes.as_mut().unwrap().push(from(class("gone", of_gone)));
    assert_eq!(verdict(&facts), "pod shop/web waits: no node can serve request net of claim net");
    facts.cluster.as_mut().unwrap().networks = Some(vec![]);
    assert_eq!(
        verdict(&facts),
        "pod shop/web waits: there is no ClaimNetwork gone: kubectl get claimnetworks lists those that exist"
    );

    let explanation = Explanation::of(&asking(["gpu", "storage"]), true);
    assert_eq!(explanation.verdict, "pod shop/web waits; it is not known whether 3 nodes can serve it");
    assert_eq!(explanation.judgement.unwrap().foreign, ["request net/gpu of claim net"]);
    let mut without = asking(["gpu", "storage"]);
    without.cluster.as_mut().unwrap().networks = Some(vec![]);
    assert_eq!(verdict(&without), "pod shop/web waits; it is not known whether 3 nodes can serve it");
}

#[test]
fn a_network_of_an_allocated_claim_keeps_nothing_waiting() {
    let mut facts = waiting("storage", cluster());
    facts.claims = found(claim("storage", json!({"allocation": {"devices": {"results": []}}})));
    facts.cluster.as_mut().unwrap().networks = Some(vec![]);
    let verdict = verdict(&facts);
    assert!(verdict.starts_with("pod shop/web waits, but 3 nodes can serve its networks"), "{verdict}");
}

#[test]
fn claims_of_other_drivers_are_not_judged() {
    let verdict = verdict(&waiting("gpu", cluster()));
    assert!(verdict.contains("none of its claims and limits is for devices of netclaim"), "{verdict}");
    let mut both = waiting("storage", cluster());
    let mut gpu = claim("gpu", json!({}));
    gpu["metadata"]["name"] = json!("gpu");
    both.claims.extend(found(gpu));
    let explanation = Explanation::of(&both, true);
    assert_eq!(explanation.verdict, "pod shop/web waits: no node can serve request net of claim net");
    assert!(
        explanation
            .notes
            .iter()
            .any(|note| note.starts_with("request net of claim gpu is for devices of another driver"))
    );
}

#[test]
fn a_rule_that_keeps_pods_off_devices_is_named() {
    let mut cluster = cluster();
    cluster.claims.clear();
    let taint = json!({"key": "example.com/maintenance", "effect": "NoSchedule"});
    let selector = json!({"driver": "netclaim.dev", "device": "net-storage"});
    cluster.rules = vec![from(
        json!({"metadata": {"name": "work"}, "spec": {"deviceSelector": selector, "taint": taint}}),
    )];
    let explanation = Explanation::of(&waiting("storage", cluster), true);
    let text = explanation.text(true);
    let told = "it takes no new pods: example.com/maintenance (DeviceTaintRule work)";
    assert!(text.contains(&format!("2 nodes (a, b): ClaimNetwork storage: {told}\n")), "{text}");
    assert!(text.contains(&format!("    a/net-storage: {told}\n")), "{text}");
    assert_eq!(explanation.verdict, "pod shop/web waits: no node can serve request net of claim net");
}

#[test]
fn a_claim_that_is_not_there_is_the_cause() {
    let waits_for = |claim: ClaimFact| {
        verdict(&Facts { pod: Some(from(pending())), claims: vec![claim], ..Facts::default() })
    };
    let not_made = |has_template| ClaimFact::NotMade {
        name: "net".to_owned(),
        template: "storage".to_owned(),
        has_template,
    };
    assert_eq!(
        waits_for(ClaimFact::Missing { name: "net".to_owned() }),
        "pod shop/web waits: there is no ResourceClaim net"
    );
    assert!(
        waits_for(not_made(Some(false)))
            .ends_with("there is no ResourceClaimTemplate storage for its claim net")
    );
    assert!(
        waits_for(not_made(Some(true)))
            .ends_with("has not made its claim net from ResourceClaimTemplate storage yet")
    );
    assert!(waits_for(not_made(None)).ends_with("yet"));
    let none = Facts { pod: Some(from(pending())), ..Facts::default() };
    assert!(verdict(&none).contains("names no ResourceClaim"));
}

#[test]
fn a_pod_that_waits_for_a_default_is_told_how_it_does_without() {
    let notes = |mut pod: Value| {
        let claim =
            json!({"name": "default-storage", "resourceClaimTemplateName": "netclaim-default-storage"});
        pod["spec"]["resourceClaims"] = json!([claim]);
        let claim = ClaimFact::NotMade {
            name: "default-storage".to_owned(),
            template: "netclaim-default-storage".to_owned(),
            has_template: Some(false),
        };
        let facts = Facts { pod: Some(from(pod)), claims: vec![claim], ..Facts::default() };
        Explanation::of(&facts, false).notes.join("; ")
    };
    let note = "ClaimNetwork storage is a default of this namespace; the annotation netclaim.dev/default-networks: \"\" of";
    assert!(notes(pending()).contains(note), "{}", notes(pending()));
    assert_eq!(notes(pod(json!({"phase": "Running"}), Some("a"))), "");
}

/// A pod of two containers, of which the first has limits.
fn asking(limits: Value, cluster: Cluster) -> Facts {
    let mut pod = pending();
    let main = json!({"name": "main", "resources": {"limits": limits}});
    pod["spec"] = json!({"containers": [main, {"name": "other"}]});
    Facts { pod: Some(from(pod)), cluster: Some(cluster), ..Facts::default() }
}

/// The cluster with a class that serves limits.
fn with_resource() -> Cluster {
    let mut cluster = cluster();
    let classes = cluster.classes.as_mut().unwrap();
    classes[0].spec.as_mut().unwrap().extended_resource_name = Some("example.com/storage".to_owned());
    cluster
}

#[test]
fn a_pod_that_asks_by_limits_is_judged_as_with_the_claim_that_the_scheduler_would_make() {
    let storage = json!({"cpu": "1", "example.com/storage": "1"});
    let text = Explanation::of(&asking(storage.clone(), with_resource()), false).text(false);
    let expected = "pod shop/web waits: no node can serve limit example.com/storage of container main\n\
        \n\
        limit example.com/storage of container main\n\
        \x20 2 nodes (a, b): ClaimNetwork storage: 0 of 1 interfaces free; held by claim shop/x (pod shop/x), claim shop/y (pod shop/y)\n\
        \x20 1 node (c): the node does not offer ClaimNetwork storage\n";
    assert!(text.starts_with(expected), "{text}");
    let of_class = json!({"deviceclass.resource.kubernetes.io/storage": "1"});
    let of_class = verdict(&asking(of_class, with_resource()));
    let limit = "limit deviceclass.resource.kubernetes.io/storage of container main";
    assert_eq!(of_class, format!("pod shop/web waits: no node can serve {limit}"));

    let mut free = with_resource();
    free.claims.pop();
    let free = verdict(&asking(storage.clone(), free));
    assert!(free.starts_with("pod shop/web waits, but 1 node can serve its networks"), "{free}");

    // A device plugin serves the limit on its node.
    let mut plugin = with_resource();
    let status = json!({"allocatable": {"example.com/storage": "3"}});
    plugin.nodes.as_mut().unwrap()[2].status = Some(from(status));
    assert_eq!(Explanation::of(&asking(storage.clone(), plugin), false).judgement.unwrap().serving, ["c"]);

    let mut unread = with_resource();
    unread.nodes = None;
    let unread = Explanation::of(&asking(storage, unread), false).text(false);
    let unknown = "3 nodes (a, b, c): not known whether a device plugin of the node has example.com/storage";
    assert!(unread.contains(unknown), "{unread}");
}

const PASSED_BY: &str = "spec.nodeName passes the scheduler by, which alone allocates claims: leave spec.nodeName out of \
    the pod, or the template of its DaemonSet or Deployment, and select the node by spec.nodeSelector";

#[test]
fn a_pod_that_passed_the_scheduler_by_is_told_so() {
    let classes = || Cluster { classes: cluster().classes, ..Cluster::default() };
    let on_node = |class: &str, phase: &str, cluster: Cluster| Facts {
        pod: Some(from(pod(json!({"phase": phase}), Some("a")))),
        claims: found(claim(class, json!({}))),
        cluster: Some(cluster),
        ..Facts::default()
    };
    assert_eq!(
        verdict(&on_node("storage", "Pending", classes())),
        format!("pod shop/web does not start on node a, because its claim net is not allocated: {PASSED_BY}")
    );
    let gpu = verdict(&on_node("gpu", "Pending", classes()));
    assert_eq!(gpu, "pod shop/web is on node a, and none of its claims has a device of netclaim");
    let unread = verdict(&on_node("storage", "Pending", Cluster::default()));
    assert!(unread.contains("is not allocated"), "{unread}");
    assert!(verdict(&on_node("storage", "Succeeded", classes())).contains("has ended"));
}

#[test]
fn a_pod_that_asks_by_limits_and_passed_the_scheduler_by_is_told_so() {
    let on_node = |resource: &str, phase: &str| {
        let mut facts = asking(json!({resource: "1"}), with_resource());
        let mut pod = serde_json::to_value(facts.pod.take()).unwrap();
        (pod["spec"]["nodeName"], pod["status"]) = (json!("a"), json!({"phase": phase}));
        facts.pod = Some(from(pod));
        verdict(&facts)
    };
    for phase in ["Pending", "Failed"] {
        let verdict = on_node("deviceclass.resource.kubernetes.io/storage", phase);
        let expected = "pod shop/web does not start on node a, because its limits have no claim: ";
        assert_eq!(verdict, format!("{expected}{PASSED_BY}"));
    }
    // A device plugin may serve it, or have served it.
    let mut facts = asking(json!({"example.com/storage": "1"}), with_resource());
    let mut served = serde_json::to_value(facts.pod.take()).unwrap();
    (served["spec"]["nodeName"], served["status"]) = (json!("a"), json!({"phase": "Pending"}));
    facts.pod = Some(from(served));
    let node = json!({"metadata": {"name": "a"}, "status": {"allocatable": {"example.com/storage": "3"}}});
    facts.node = Some(NodeFacts { node: Some(from(node)), ..NodeFacts::default() });
    assert!(verdict(&facts).ends_with("so it gets no network of netclaim"), "{}", verdict(&facts));
    assert!(on_node("example.com/storage", "Running").ends_with("so it gets no network of netclaim"));
    assert!(on_node("deviceclass.resource.kubernetes.io/gpu", "Pending").ends_with("no network of netclaim"));
}

#[test]
fn limits_that_no_class_serves_are_not_for_netclaim() {
    for none in [json!({"example.com/other": "1"}), json!({"example.com/storage": "0"}), json!({"cpu": "1"})]
    {
        let verdict = verdict(&asking(none, with_resource()));
        assert!(verdict.ends_with("so it gets no network of netclaim"), "{verdict}");
    }
    let gpu = verdict(&asking(json!({"deviceclass.resource.kubernetes.io/gpu": "1"}), with_resource()));
    assert!(
        gpu.ends_with("none of its claims and limits is for devices of netclaim (netclaim.dev)"),
        "{gpu}"
    );
    let unread = verdict(&asking(json!({"example.com/storage": "1"}), Cluster::default()));
    assert!(unread.ends_with("it is not known whether it asks for a network by limits"), "{unread}");
}

#[test]
fn a_pod_is_judged_for_its_claims_and_limits_together() {
    let mut facts = asking(json!({"example.com/storage": "1"}), with_resource());
    facts.claims = found(claim("storage", json!({})));
    facts.cluster.as_mut().unwrap().claims.pop();
    let explanation = Explanation::of(&facts, false);
    assert_eq!(explanation.verdict, "pod shop/web waits: no node can serve all of its requests");
}

#[test]
fn missing_rights_are_said() {
    let mut cluster = cluster();
    cluster.slices = None;
    let unread =
        Unread { is_unknown: false, what: "ResourceSlices", follows: "what the nodes offer is not known" };
    let facts = Facts { unread: vec![unread], ..waiting("storage", cluster) };
    let text = Explanation::of(&facts, true).text(false);
    assert!(
        text.starts_with(
            "pod shop/web waits for the scheduler; why is not known, because of what cannot be read\n"
        ),
        "{text}"
    );
    assert!(
        text.contains("  you may not read ResourceSlices: what the nodes offer is not known\n"),
        "{text}"
    );
}

#[test]
fn without_the_right_to_read_nodes_slices_tell_which_there_are() {
    let mut cluster = cluster();
    cluster.nodes = None;
    let judgement = Explanation::of(&waiting("storage", cluster), true).judgement.unwrap();
    let nodes: Vec<_> = judgement.nodes.iter().map(|node| node.verdict.node.as_str()).collect();
    assert_eq!(nodes, ["a", "b", "c"]);
}

#[test]
fn without_the_claims_of_other_namespaces_nothing_is_known_to_be_free() {
    let mut cluster = cluster();
    cluster.claims.pop();
    cluster.lacks_claims = true;
    let explanation = Explanation::of(&waiting("storage", cluster), true);
    assert_eq!(explanation.verdict, "pod shop/web waits; it is not known whether 1 node can serve it");
    let text = explanation.text(false);
    let unknown =
        "1 node (b): not known whether enough is free: the claims of other namespaces could not be read\n";
    assert!(text.contains(unknown), "{text}");
    // What is missing in spite of that is missing.
    assert!(text.contains("1 node (a): ClaimNetwork storage: 0 of 1 interfaces free"), "{text}");
}

#[test]
fn without_nodes_it_is_not_known_where_a_pool_of_the_cluster_is() {
    let mut cluster = cluster();
    let mut shared = slice("shared", "storage");
    shared["spec"].as_object_mut().unwrap().remove("nodeName");
    shared["spec"]["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions":
        [{"key": "network.netclaim.dev/storage", "operator": "In", "values": ["up"]}]}]});
    cluster.slices = Some(vec![from(slice("c", "lab")), from(shared.clone())]);
    cluster.nodes = None;
    let explanation = Explanation::of(&waiting("storage", cluster), true);
    assert_eq!(explanation.verdict, "pod shop/web waits; it is not known whether 1 node can serve it");
    let text = explanation.text(false);
    assert!(
        text.contains("not known whether pool shared is for the node: the Node could not be read"),
        "{text}"
    );
    let mut alone = self::cluster();
    alone.slices = Some(vec![from(shared)]);
    alone.nodes = None;
    let verdict = verdict(&waiting("storage", alone));
    assert_eq!(
        verdict,
        "pod shop/web waits; it is not known whether a node that you may not read can serve it"
    );
}

#[test]
fn a_claim_of_another_pod_is_noted() {
    let mut facts = waiting("storage", cluster());
    let status = json!({"reservedFor": [{"resource": "pods", "name": "old", "uid": "o"}],
        "allocation": {"devices": {"results": []}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields":
            [{"key": "metadata.name", "operator": "In", "values": ["d"]}]}]}}});
    facts.claims = found(claim("storage", status));
    let explanation = Explanation::of(&facts, true);
    assert!(
        explanation.verdict.starts_with("pod shop/web waits: no node can serve claim net"),
        "{}",
        explanation.verdict
    );
    let text = explanation.text(false);
    assert!(text.contains("3 nodes (a, b, c): the claim is allocated for node d"), "{text}");
    assert!(text.contains("claim shop/net is reserved for old"), "{text}");
}

fn starting(status: Value, node: NodeFacts) -> Facts {
    let pod = pod(json!({"phase": "Pending"}), Some("a"));
    Facts {
        pod: Some(from(pod)),
        claims: found(claim("storage", status)),
        node: Some(node),
        ..Facts::default()
    }
}

#[test]
fn a_pod_that_does_not_start_is_told_the_nearest_cause() {
    let agent = |ready: &str| {
        from(
            json!({"metadata": {"name": "netclaim-agent-x"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}),
        )
    };
    let event = |reason: &str, time: &str| {
        from(
            json!({"metadata": {}, "involvedObject": {}, "type": "Warning", "reason": reason, "message": "m", "lastTimestamp": time}),
        )
    };
    let events = vec![
        event("Old", "2026-11-22T00:00:00Z"),
        event("FailedPrepareDynamicResources", "2026-11-22T00:05:00Z"),
        event("FailedPrepareDynamicResources", "2026-11-22T00:04:00Z"),
    ];
    let facts = NodeFacts { node: None, agents: Some(vec![agent("False")]), events };
    let failed = allocated(condition("False", "AttachFailed", "plugin macvlan: no such device"));
    let explanation = Explanation::of(&starting(failed, facts), true);
    assert_eq!(
        explanation.verdict,
        "pod shop/web does not start on node a: request net of claim net is not ready (AttachFailed): plugin macvlan: no such device"
    );
    let expected = [
        "request net of claim net is not ready (AttachFailed): plugin macvlan: no such device",
        "the agent on node a is not ready: see the log of pod netclaim-agent-x",
        "event FailedPrepareDynamicResources: m",
        "event Old: m",
    ];
    assert_eq!(explanation.causes, expected);
    let healthy = NodeFacts { node: None, agents: Some(vec![agent("True")]), events: vec![] };
    let silent = json!({"allocation": {"devices": {"results": [{"request": "net", "driver": "netclaim.dev", "pool": "a", "device": "net-storage"}]}}});
    let verdict = verdict(&starting(silent, healthy));
    assert_eq!(verdict, "pod shop/web has been given node a, and its networks are being attached");
}

#[test]
fn a_pod_that_claims_its_primary_network_without_a_runtime_class_is_told_so() {
    let cause = "claim net is the pod's primary network, which needs the RuntimeClass of primary networks: delete the pod and create it \
                 with runtimeClassName";
    let parameters =
        json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AttachmentConfig", "primary": true});
    let config = json!([{"opaque": {"driver": "netclaim.dev", "parameters": parameters}}]);
    let mut by_class = waiting("storage", cluster());
    let class = &mut by_class.cluster.as_mut().unwrap().classes.as_mut().unwrap()[0];
    class.spec.as_mut().unwrap().config = from(config.clone());
    let mut by_claim = claim("storage", json!({}));
    by_claim["spec"]["devices"]["config"] = config.clone();
    let by_claim = Facts { claims: found(by_claim), ..waiting("storage", cluster()) };
    let mut status = allocated(condition("False", "AttachFailed", "eth0 exists"));
    status["allocation"]["devices"]["config"] = config;
    let by_allocation = starting(status, NodeFacts::default());
    assert_eq!(verdict(&by_allocation), format!("pod shop/web does not start on node a: {cause}"));
    for mut facts in [by_class, by_claim, by_allocation] {
        assert_eq!(Explanation::of(&facts, false).causes[0], cause);
        let spec = facts.pod.as_mut().unwrap().spec.as_mut().unwrap();
        spec.runtime_class_name = Some("netclaim".to_owned());
        let causes = Explanation::of(&facts, false).causes;
        assert!(!causes.iter().any(|other| other == cause), "{causes:?}");
    }
    assert_eq!(Explanation::of(&waiting("storage", cluster()), false).causes, [""; 0]);
}

#[test]
fn a_node_without_an_agent_is_told() {
    let status = json!({"allocation": {"devices": {"results": [{"request": "net", "driver": "netclaim.dev", "pool": "a", "device": "net-storage"}]}}});
    let facts = NodeFacts { agents: Some(vec![]), ..NodeFacts::default() };
    assert!(verdict(&starting(status, facts)).contains("node a has no agent of netclaim"));
}

#[test]
fn a_pod_that_runs_lists_its_networks() {
    let ready = claim("storage", allocated(condition("True", "Attached", "attached as net1")));
    let running = Some(from(pod(json!({"phase": "Running"}), Some("a"))));
    let facts = Facts { pod: running, claims: found(ready), ..Facts::default() };
    assert_eq!(
        Explanation::of(&facts, true).text(false),
        "pod shop/web runs on node a with 1 network\n\
         \n\
         attachments\n\
         \x20 net1: ClaimNetwork storage of pool a, by request net of claim net, 36:6f:e3:6d:91:81, 10.20.0.2/22\n"
    );
    let ended = Some(from(pod(json!({"phase": "Failed"}), Some("a"))));
    let facts = Facts { pod: ended, claims: found(claim("storage", json!({}))), ..Facts::default() };
    assert_eq!(verdict(&facts), "pod shop/web has ended, and its networks are released");
}

#[test]
fn a_pod_whose_claim_another_pod_has_waits_for_that_one() {
    let mut shared = claim("storage", allocated(condition("True", "Attached", "attached as net1")));
    let reserved = shared["status"]["reservedFor"].as_array_mut().unwrap();
    reserved.insert(0, json!({"resource": "pods", "name": "has", "uid": "uid-of-has"}));
    for phase in ["Pending", "Running"] {
        let of_pod = Some(from(pod(json!({"phase": phase}), Some("a"))));
        let facts = Facts { pod: of_pod, claims: found(shared.clone()), ..Facts::default() };
        let explanation = Explanation::of(&facts, true);
        assert_eq!(
            explanation.verdict,
            "pod shop/web waits on node a: claim shop/net is attached to pod has, and goes to the next one when that has ended"
        );
        assert_eq!(explanation.attachments.len(), 0, "they are the other's");
    }
    let foreign = json!({"allocation": {"devices": {"results": [{"request": "gpu", "driver": "gpu.example.com", "pool": "a",
        "device": "gpu0"}]}}, "reservedFor": shared["status"]["reservedFor"]});
    let of_pod = Some(from(pod(json!({"phase": "Running"}), Some("a"))));
    let facts = Facts { pod: of_pod, claims: found(claim("storage", foreign)), ..Facts::default() };
    assert!(!verdict(&facts).contains("waits"), "GPUs are shared");
}

#[test]
fn a_claim_is_explained_without_a_pod() {
    let of = |status: Value, cluster: Option<Cluster>| {
        verdict(&Facts { claims: found(claim("storage", status)), cluster, ..Facts::default() })
    };
    assert_eq!(
        of(json!({}), Some(cluster())),
        "claim shop/net waits: no node can serve request net of claim net"
    );
    let mut free = cluster();
    free.claims.clear();
    assert!(of(json!({}), Some(free)).contains("2 nodes can serve it: it waits for a pod"));
    let bound = Some(from(pod(json!({"phase": "Pending"}), Some("a"))));
    let cluster_of = Some(cluster());
    let facts =
        Facts { claims: found(claim("storage", json!({}))), cluster: cluster_of, bound, ..Facts::default() };
    assert_eq!(
        verdict(&facts),
        format!("claim shop/net is not allocated, and its pod shop/web has a node: {PASSED_BY}")
    );
    let ready = allocated(condition("True", "Attached", ""));
    assert_eq!(of(ready, None), "claim shop/net has 1 network; it is reserved for pod web");
    let refused = allocated(condition("False", "Refused", "no"));
    assert_eq!(of(refused, None), "claim shop/net is not ready (Refused): no; it is reserved for pod web");
}

#[test]
fn texts_of_tenants_and_plugins_cannot_move_the_cursor() {
    let event = json!({"metadata": {}, "involvedObject": {}, "type": "Warning", "reason": "Bad\u{1b}[31m",
        "message": "one\ntwo\u{1b}[2J"});
    let facts = NodeFacts { events: vec![from(event)], ..NodeFacts::default() };
    let failed = allocated(condition("False", "AttachFailed", "\u{1b}]0;owned\u{7}"));
    let explanation = Explanation::of(&starting(failed, facts), true);
    let text = explanation.text(true);
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    assert!(text.contains(r"  event Bad\u{1b}[31m: one\ntwo\u{1b}[2J"), "{text}");
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["attachments"][0]["message"], "\u{1b}]0;owned\u{7}");

    let selector =
        json!([{"cel": {"expression": "device.driver == \"netclaim.dev\" &&\n\t\"\u{1b}[2J\" == \"x\""}}]);
    let mut asking = claim("storage", json!({}));
    asking["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = selector;
    let facts = Facts { claims: found(asking), ..waiting("storage", cluster()) };
    let text = Explanation::of(&facts, true).text(true);
    assert!(text.contains(r"does not select it: device.driver"), "{text}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}
