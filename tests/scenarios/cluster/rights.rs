//! What the agent, a stolen token and a kubelet may do.

use anyhow::{Context as _, Result, bail, ensure};
use netclaim_tests::objects::{attachment, claim, class_of_network, pod, request, text};
use netclaim_tests::{AGENT, AGENT_PODS, AuditLog, SYSTEM, Test, eventually};
use serde_json::{Value, json};

pub fn the_agent_has_only_the_documented_rights(test: &Test<'_>) -> Result<()> {
    let agent = test.cluster.get(&["-n", SYSTEM, AGENT])?;
    let spec = &agent["spec"]["template"]["spec"];
    let rights = &spec["containers"][0]["securityContext"];
    ensure!(rights["privileged"] == false && rights["readOnlyRootFilesystem"] == true, "{rights}");
    ensure!(
        rights["capabilities"] == json!({"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW", "SYS_ADMIN"]}),
        "{rights}"
    );
    for field in ["hostPID", "hostIPC"] {
        ensure!(spec[field] != json!(true), "{field} is on");
    }
    // The kernel's view: capabilities 12, 13 and 21 of capabilities(7).
    let status = std::fs::read_to_string(format!("/proc/{}/status", test.cluster.agent_pid()?))?;
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default().to_owned()
    };
    let expected = format!("{:016x}", 1_u64 << 12 | 1 << 13 | 1 << 21);
    for name in ["CapEff:", "CapPrm:", "CapBnd:"] {
        ensure!(field(name) == expected, "{name} {}, expected {expected}", field(name));
    }
    ensure!(field("Seccomp:") == "2", "no seccomp filter: {}", field("Seccomp:"));
    Ok(())
}

/// Creates two tokens of a service account: one bound to a pod, as the agent's is, and an unbound one.
fn tokens(test: &Test<'_>, namespace: &str, account: &str, pod: &str) -> Result<[String; 2]> {
    let create = ["-n", namespace, "create", "token", account];
    let bound = ["--bound-object-kind=Pod", "--bound-object-name", pod];
    let token = |args: &[&str]| test.cluster.kubectl(args).map(|token| token.trim().to_owned());
    Ok([token(&[create.as_slice(), bound.as_slice()].concat())?, token(&create)?])
}

/// Creates tokens of the agent, as [`tokens`].
pub(crate) fn agent_tokens(test: &Test<'_>) -> Result<[String; 2]> {
    let pods = test.cluster.get(&["-n", SYSTEM, "pods", "-l", AGENT_PODS])?;
    let name = pods["items"][0]["metadata"]["name"].as_str().context("no agent")?;
    tokens(test, SYSTEM, "netclaim-agent", name)
}

/// Makes sure that `result` is a refusal whose reason contains all of `words`.
pub(crate) fn refused(what: &str, result: Result<String>, words: &[&str]) -> Result<()> {
    let Err(error) = result else { bail!("{what} was accepted") };
    let error = error.to_string();
    ensure!(words.iter().all(|word| error.contains(word)), "{what}: {words:?} is not in {error}");
    Ok(())
}

/// Tries writes with a token, as dry runs.
struct Writer<'a> {
    test: &'a Test<'a>,
    token: String,
}

impl Writer<'_> {
    fn create(&self, object: &Value) -> Result<String> {
        let create = ["create", "--dry-run=server", "--validate=false", "-f", "-"];
        self.test.cluster.kubectl_as(&self.token, &create, &object.to_string())
    }

    fn slice(&self, node: &str, pool: &str, driver: &str) -> Result<String> {
        self.create(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": self.test.name("slice")},
            "spec": {"driver": driver, "nodeName": node, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}, "devices": []},
        }))
    }

    /// Applies a status to a claim as the field manager `manager`.
    fn status(&self, claim: &str, manager: &str, status: &Value) -> Result<String> {
        let object = claim_status(claim, status).to_string();
        let manager = format!("--field-manager={manager}");
        let apply = ["-n", self.test.namespace(), "apply", "--server-side", "--force-conflicts"];
        let how = ["--subresource=status", &manager, "--dry-run=server", "-f", "-"];
        self.test.cluster.kubectl_as(&self.token, &[apply, how].concat(), &object)
    }

    fn event(&self, controller: &str, instance: &str, kind: &str, name: &str) -> Result<String> {
        self.create(&json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": self.test.name("event"), "namespace": "default"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Warning", "reason": "Test", "action": "Test", "note": "test",
            "reportingController": controller, "reportingInstance": instance,
            "regarding": {"apiVersion": "v1", "kind": kind, "name": name},
        }))
    }
}

fn claim_status(claim: &str, status: &Value) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": claim}, "status": status})
}

/// A claim's status whose `devices` has one entry.
fn entry(driver: &str, node: &str) -> Value {
    json!({"devices": [{"driver": driver, "pool": node, "device": "any", "data": {"by": "test"}}]})
}

pub fn the_agent_changes_only_the_labels_of_networks_of_its_own_node(test: &Test<'_>) -> Result<()> {
    // kubectl reads what it patches, and the agent does not.
    let read = test.name("read");
    let subject = json!({"kind": "ServiceAccount", "name": "netclaim-agent", "namespace": SYSTEM});
    test.create([
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": read},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": read},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": read}, "subjects": [subject]}),
    ])?;
    let result = labels_end_at_the_node(test);
    test.cluster.kubectl(&["delete", "clusterrole,clusterrolebinding", &read])?;
    result
}

fn labels_end_at_the_node(test: &Test<'_>) -> Result<()> {
    let [bound, unbound] = agent_tokens(test)?;
    let patch = |token: &str, change: Value| {
        let patch = ["patch", "node", "node0", "--type=merge", "--dry-run=server", "-p", &change.to_string()];
        test.cluster.kubectl_as(token, &patch, "")
    };
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    let ours = || labels(json!({"network.netclaim.dev/a": "up", "network.netclaim.dev/b": null}));
    eventually(10, "the right to read Nodes is in force", || patch(&bound, ours()))?;
    let words = "netclaim may only change the labels network.netclaim.dev/NETWORK of a Node";
    for (what, change) in [
        ("another label", labels(json!({"example.com/rack": "7"}))),
        ("a changed label", labels(json!({"kubernetes.io/hostname": "other"}))),
        ("a removed label", labels(json!({"kubernetes.io/hostname": null}))),
        ("an annotation", json!({"metadata": {"annotations": {"example.com/a": "1"}}})),
        ("a finalizer", json!({"metadata": {"finalizers": ["example.com/keep"]}})),
        ("a taint", json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}})),
        ("a cordon", json!({"spec": {"unschedulable": true}})),
    ] {
        refused(what, patch(&bound, change), &[words])?;
    }
    let words = "(token without a node) may only label that node";
    refused("a label by an unbound token", patch(&unbound, ours()), &[words])?;
    let mut elsewhere = pod(&test.name("elsewhere"), &[]);
    let name = text(&elsewhere["metadata"]["name"]);
    elsewhere["spec"]["nodeName"] = json!("node1");
    elsewhere["spec"]["serviceAccountName"] = json!("netclaim-agent");
    test.cluster.kubectl_with(&["-n", SYSTEM, "create", "-f", "-"], &elsewhere.to_string())?;
    let [of_other, _] = tokens(test, SYSTEM, "netclaim-agent", &name)?;
    let words = "the netclaim agent of node node1 may only label that node";
    let result = refused("another node's label", patch(&of_other, ours()), &[words]);
    // No kubelet would end it.
    test.cluster.kubectl(&["-n", SYSTEM, "delete", "pod", &name, "--grace-period=0", "--force"])?;
    result
}

pub fn the_agent_writes_only_slices_of_its_own_node(test: &Test<'_>) -> Result<()> {
    let [bound, unbound] = agent_tokens(test)?.map(|token| Writer { test, token });
    slices_are_of_its_own_node(&bound, &unbound)
}

fn slices_are_of_its_own_node(bound: &Writer<'_>, unbound: &Writer<'_>) -> Result<()> {
    bound.slice("node0", "node0", "netclaim.dev")?;
    let words = "the netclaim agent of node node0 may only write ResourceSlices of that node, not of node1";
    refused("a slice of node1", bound.slice("node1", "node1", "netclaim.dev"), &[words])?;
    let words = "may only write the pool that is named like its node";
    refused("a pool of node1", bound.slice("node0", "node1", "netclaim.dev"), &[words])?;
    for pool in ["node0/eth1", "networks/lab", "node01"] {
        refused("a pool of others", bound.slice("node0", pool, "netclaim.dev"), &[words])?;
    }
    let words = "may only write ResourceSlices of the driver netclaim.dev";
    refused("a slice of another driver", bound.slice("node0", "node0", "other.dev"), &[words])?;
    let words = "(token without a node)";
    refused("a slice by an unbound token", unbound.slice("node0", "node0", "netclaim.dev"), &[words])
}

/// netclaim in a user's kustomization, with other names and another namespace than `deploy/manifests`.
const ELSEWHERE: &str = "tests/scenarios/cluster/elsewhere";

pub fn a_stolen_token_writes_only_objects_of_its_own_node(test: &Test<'_>) -> Result<()> {
    test.cluster.kustomization("apply", ELSEWHERE)?;
    let result = writes_end_at_the_node(test);
    let more = ["delete", "clusterrole,clusterrolebinding", &test.name("more"), "--ignore-not-found"];
    test.cluster.kubectl(&more)?;
    test.cluster.kustomization("delete", ELSEWHERE)?;
    result
}

fn writes_end_at_the_node(test: &Test<'_>) -> Result<()> {
    let mut thief = pod("thief", &[]);
    thief["spec"]["nodeName"] = json!("node0");
    thief["spec"]["serviceAccountName"] = json!("elsewhere-netclaim-agent");
    test.cluster.kubectl_with(&["-n", "elsewhere", "apply", "-f", "-"], &thief.to_string())?;
    let tokens = tokens(test, "elsewhere", "elsewhere-netclaim-agent", "thief")?;
    let [bound, unbound] = tokens.map(|token| Writer { test, token });
    // Since 1.36 the API server itself refuses what the policy refuses. These rights leave it to the policy.
    let more = test.name("more");
    let subject =
        json!({"kind": "ServiceAccount", "name": "elsewhere-netclaim-agent", "namespace": "elsewhere"});
    test.create([
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": more}, "rules": [
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/driver"], "verbs": ["arbitrary-node:patch"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/binding"], "verbs": ["patch"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": more},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": more}, "subjects": [subject]}),
    ])?;
    eventually(10, "the policies are in force", || slices_are_of_its_own_node(&bound, &unbound))?;

    for (claim, node) in [("here", "node0"), ("there", "node1")] {
        allocated(test, claim, node)?;
    }
    let ours = |node| entry("netclaim.dev", node);
    eventually(10, "the additional rights are in force", || {
        bound.status("here", "ours", &ours("node0")).map(drop)
    })?;
    let words = "the netclaim agent of node node0 may only write the status of ResourceClaims that are allocated on that node";
    refused("the status of another node's claim", bound.status("there", "ours", &ours("node1")), &[words])?;
    let words = "(token without a node)";
    refused("a status by an unbound token", unbound.status("here", "ours", &ours("node0")), &[words])?;
    let others = "may only write the entries of the driver netclaim.dev";
    let change = json!({"devices": [{"driver": "other.dev", "pool": "node0", "device": "any", "data": {"by": "thief"}}]});
    refused("a change of another driver's entry", bound.status("here", "ours", &change), &[others])?;
    let none = json!({"devices": []});
    refused("the end of another driver's entry", bound.status("here", "other", &none), &[others])?;
    let reserved = json!({"reservedFor": [{"resource": "pods", "name": "any", "uid": "any"}]});
    let words = "may only write status.devices of a ResourceClaim";
    refused("a reservation", bound.status("here", "ours", &reserved), &[words])?;

    addresses_are_of_its_own_node(test, &bound)?;

    bound.event("netclaim.dev", "node0", "Node", "node0")?;
    let words = "must have reportingController netclaim.dev and that node as reportingInstance";
    for (controller, instance) in [("netclaim.dev", "node1"), ("kubelet", "node0")] {
        let event = bound.event(controller, instance, "Node", "node0");
        refused(&format!("an event of {controller} on {instance}"), event, &[words])?;
    }
    refused(
        "an event by an unbound token",
        unbound.event("netclaim.dev", "node0", "Node", "node0"),
        &[words],
    )?;
    let words = "may not write events about another Node";
    refused("an event about node1", bound.event("netclaim.dev", "node0", "Node", "node1"), &[words])
}

pub fn the_controller_writes_events_only_in_its_own_name(test: &Test<'_>) -> Result<()> {
    let token = test.cluster.kubectl(&["-n", SYSTEM, "create", "token", "netclaim-controller"])?;
    let controller = Writer { test, token: token.trim().to_owned() };
    controller.event("netclaim-controller", "any", "ClaimNetwork", "any")?;
    let words = "must have reportingController netclaim-controller";
    for reporter in ["default-scheduler", "kubelet", "netclaim.dev"] {
        let event = controller.event(reporter, "any", "ClaimNetwork", "any");
        refused(&format!("an event of {reporter}"), event, &[words])?;
    }
    Ok(())
}

pub fn the_controller_writes_only_classes_of_networks(test: &Test<'_>) -> Result<()> {
    let token = test.cluster.kubectl(&["-n", SYSTEM, "create", "token", "netclaim-controller"])?;
    let controller = Writer { test, token: token.trim().to_owned() };
    let class = |change: &dyn Fn(&mut Value)| {
        let owner = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "name": "any", "uid": "any",
            "controller": true});
        let mut class = class_of_network(&test.name("class"), "any");
        class["metadata"]["ownerReferences"] = json!([owner]);
        class["spec"]["config"] = json!([attachment(json!({"interfaceName": "data0"}))]);
        change(&mut class);
        controller.create(&class)
    };
    class(&|_| ())?;
    let nobodys = class(&|class| class["metadata"]["ownerReferences"] = json!([]));
    refused("a class of nobody", nobodys, &["may only write DeviceClasses that belong to a ClaimNetwork"])?;
    let admins = class(&|class| class["metadata"]["ownerReferences"][0]["controller"] = json!(false));
    refused("a class of an admin", admins, &["may only write DeviceClasses that belong to a ClaimNetwork"])?;
    let others = class(&|class| {
        class["spec"]["selectors"][0]["cel"]["expression"] = json!("device.driver == \"gpu.example.com\"");
    });
    let words =
        "may only write DeviceClasses that select the devices of the ClaimNetwork that they belong to";
    refused("a class of another driver", others, &[words])?;
    let wide = class(&|class| {
        class["spec"]["selectors"][0]["cel"]["expression"] = json!("device.driver == \"netclaim.dev\"");
    });
    refused("a class of all devices", wide, &[words])?;
    let words = "may only write DeviceClasses with an AttachmentConfig of netclaim.dev";
    for (field, value) in [("driver", json!("gpu.example.com")), ("parameters", json!({"kind": "CNIConfig"}))]
    {
        let config = class(&|class| class["spec"]["config"][0]["opaque"][field] = value.clone());
        refused(&format!("a class with {field} {value}"), config, &[words])?;
    }
    // That of an admin.
    let foreign = test.name("foreign");
    test.create([class_of_network(&foreign, "any")])?;
    let words = "may only write DeviceClasses that belong to a ClaimNetwork";
    let delete = ["delete", "deviceclass", &foreign, "--dry-run=server", "--wait=false"];
    refused("the end of a class", test.cluster.kubectl_as(token.trim(), &delete, ""), &[words])?;
    test.cluster.kubectl(&["delete", "deviceclass", &foreign]).map(drop)
}

pub fn the_controller_only_removes_labels_of_networks_from_nodes(test: &Test<'_>) -> Result<()> {
    let token = test.cluster.kubectl(&["-n", SYSTEM, "create", "token", "netclaim-controller"])?;
    let patch = |change: Value| {
        let patch = ["patch", "node", "node0", "--type=merge", "--dry-run=server", "-p", &change.to_string()];
        test.cluster.kubectl_as(token.trim(), &patch, "")
    };
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    let label = format!("network.netclaim.dev/{}", test.name("gone"));
    let has = |value: &str| {
        test.cluster.kubectl(&["label", "node", "node0", "--overwrite", &format!("{label}{value}")]).map(drop)
    };
    // The agent removes it, too: no ClaimNetwork has it.
    eventually(20, "the controller may remove a label that is there", || {
        has("=up")?;
        patch(labels(json!({label.as_str(): null}))).map(drop)
    })?;
    refused("a label", patch(labels(json!({label.as_str(): "no"}))), &["may only remove labels of a Node"])?;
    let words = "netclaim may only change the labels network.netclaim.dev/NETWORK of a Node";
    for (what, change) in [
        ("another label", labels(json!({"kubernetes.io/hostname": null}))),
        ("an annotation", json!({"metadata": {"annotations": {"example.com/a": "1"}}})),
        ("a taint", json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}})),
    ] {
        refused(what, patch(change), &[words])?;
    }
    has("-")
}

/// Makes sure that an agent writes blocks and leases of addresses in the name of its own node only.
fn addresses_are_of_its_own_node(test: &Test<'_>, bound: &Writer<'_>) -> Result<()> {
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let name = test.name("block");
    let spec = json!({"networkName": "none", "nodeName": "node1", "cidr": "10.99.0.0/28"});
    test.create([object("AddressBlock", &name, spec)])?;
    let delete = ["delete", "addressblock", &name, "--dry-run=server", "--wait=false"];
    let words = "the netclaim agent of node node0 may only write AddressBlocks of that node, not of node1";
    // The controller deletes it, too: no ClaimNetwork has it.
    match test.cluster.kubectl_as(&bound.token, &delete, "") {
        Err(error) if error.to_string().contains("NotFound") => {}
        deleted => refused("the end of another node's block", deleted, &[words])?,
    }
    let block = object(
        "AddressBlock",
        "mine",
        json!({"networkName": "none", "nodeName": "node0", "cidr": "10.99.0.0/28"}),
    );
    refused("a block of its own", bound.create(&block), &["cannot create resource"])?;
    let lease = |change: &dyn Fn(&mut Value)| {
        let holder = json!({"kind": "ResourceClaim", "namespace": "default", "name": "any", "uid": "any"});
        let spec = json!({"networkName": "none", "address": "10.99.0.1", "holder": holder});
        let mut lease = object("AddressLease", "mine", spec);
        lease["metadata"]["finalizers"] = json!(["netclaim.dev/addresses"]);
        change(&mut lease);
        lease
    };
    bound.create(&lease(&|_| ()))?;
    let words = "may only lease addresses for ResourceClaims";
    let of_pod = lease(&|lease| lease["spec"]["holder"]["kind"] = json!("Pod"));
    refused("a pod's lease", bound.create(&of_pod), &[words])?;
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "node0", "uid": "any"}]);
    let words = "may only make AddressLeases with the finalizer netclaim.dev/addresses and without others";
    for (field, value) in [
        ("finalizers", json!([])),
        ("finalizers", json!(["netclaim.dev/addresses", "example.com/keep"])),
        ("labels", json!({"netclaim.dev/confirmed": "true"})),
        ("annotations", json!({"example.com/a": "1"})),
        ("ownerReferences", owner),
    ] {
        let lease = lease(&|lease| lease["metadata"][field] = value.clone());
        refused(&format!("a lease with {field}"), bound.create(&lease), &[words])?;
    }
    // Names become parts of URLs.
    let path = "shop/resourceclaims?watch=1&timeoutSeconds=2147483647&x=";
    for (field, value) in [("namespace", path), ("name", path), ("name", ".."), ("uid", "a/b")] {
        let lease = lease(&|lease| lease["spec"]["holder"][field] = json!(value));
        refused(&format!("a path as {field}"), bound.create(&lease), &[&format!("spec.holder.{field}")])?;
    }
    Ok(())
}

/// What the account of the controller may not do, beside what the policies refuse.
const NOT_THE_CONTROLLERS: [&[&str]; 17] = [
    &["create", "pods"],
    &["patch", "pods"],
    &["delete", "pods"],
    &["patch", "pods", "--subresource=status"],
    &["list", "secrets"],
    &["create", "secrets"],
    &["get", "configmaps"],
    &["delete", "nodes"],
    &["create", "resourceclaims.resource.k8s.io"],
    &["patch", "resourceclaims.resource.k8s.io", "--subresource=status"],
    &["delete", "resourceclaims.resource.k8s.io"],
    &["create", "claimnetworks.netclaim.dev"],
    &["patch", "claimnetworks.netclaim.dev"],
    &["delete", "claimnetworks"],
    &["patch", "uplinkpolicies.netclaim.dev"],
    &["patch", "addresspools.netclaim.dev"],
    &["create", "clusterrolebindings.rbac.authorization.k8s.io"],
];

pub fn a_stolen_token_of_the_controller_writes_no_pod_claim_network_or_node(test: &Test<'_>) -> Result<()> {
    let account = format!("system:serviceaccount:{SYSTEM}:netclaim-controller");
    for what in NOT_THE_CONTROLLERS {
        ensure!(
            !test.cluster.may(&account, &[what, ["-A"].as_slice()].concat()),
            "it may {}",
            what.join(" ")
        );
    }
    ensure!(
        test.cluster.may(&account, &["patch", "claimnetworks.netclaim.dev", "--subresource=status"]),
        "it may not do its work"
    );
    let token = test.cluster.kubectl(&["-n", SYSTEM, "create", "token", "netclaim-controller"])?;
    let controller = Writer { test, token: token.trim().to_owned() };
    let words = "may only write ResourceSlices that belong to no node";
    refused("a slice of a node", controller.slice("node0", "node0", "netclaim.dev"), &[words])?;
    let words = "netclaim may only write ResourceSlices of the driver netclaim.dev";
    refused("another driver's slice", controller.slice("node0", "any", "other.dev"), &[words])
}

/// Creates a claim of two drivers' devices, allocated on `node`, with the other driver's entry in its status.
fn allocated(test: &Test<'_>, name: &str, node: &str) -> Result<()> {
    let mut both = claim(name, "none");
    both["spec"]["devices"]["requests"] = json!([request("net", "none"), request("other", "none")]);
    test.create([both])?;
    let result = |request: &str, driver: &str| json!({"request": request, "driver": driver, "pool": node, "device": "any"});
    let mut status = json!({"allocation": {
        "devices": {"results": [result("net", "netclaim.dev"), result("other", "other.dev")]},
        "nodeSelector": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]},
    }});
    let apply = |manager: &str, status: &Value| {
        let manager = format!("--field-manager={manager}");
        let apply =
            ["-n", test.namespace(), "apply", "--server-side", "--subresource=status", &manager, "-f", "-"];
        test.cluster.kubectl_with(&apply, &claim_status(name, status).to_string()).map(drop)
    };
    apply("allocation", &status)?;
    status = entry("other.dev", node);
    apply("other", &status)
}

/// A pod's status is written by server-side apply, as a dry run. The manager `ours` owns the annotation
/// `a/ours`.
fn apply_to_pod(test: &Test<'_>, token: &str, pod: &str, mut change: Value) -> Result<String> {
    change["apiVersion"] = json!("v1");
    change["kind"] = json!("Pod");
    change["metadata"]["name"] = json!(pod);
    let apply =
        ["-n", test.namespace(), "apply", "--server-side", "--force-conflicts", "--field-manager=ours"];
    let how = ["--subresource=status", "--dry-run=server", "--validate=false", "-f", "-"];
    test.cluster.kubectl_as(token, &[apply.as_slice(), &how].concat(), &change.to_string())
}

pub fn the_agent_changes_one_annotation_of_its_own_nodes_pods(test: &Test<'_>) -> Result<()> {
    let mut elsewhere = pod("elsewhere", &[]);
    elsewhere["spec"]["nodeName"] = json!("node1");
    let mut gated = pod("gated", &[]);
    gated["spec"]["nodeName"] = json!("node0");
    gated["spec"]["readinessGates"] = json!([{"conditionType": GATE}]);
    test.create([elsewhere, gated, pod("here", &[])])?;
    test.runs("here")?;
    let result = writes_to_pods_end_at_the_annotation(test)
        .and_then(|()| writes_to_pods_end_at_the_condition_of_the_gate(test));
    // No kubelet would end it.
    test.delete_pod_by_force("elsewhere")?;
    result
}

/// The readiness gate whose condition the agent keeps.
const GATE: &str = "netclaim.dev/networks";

fn writes_to_pods_end_at_the_condition_of_the_gate(test: &Test<'_>) -> Result<()> {
    let [bound, _] = agent_tokens(test)?;
    let with = |conditions: Value| json!({"status": {"conditions": conditions}});
    let gate = |status: &str| json!({"type": GATE, "status": status});
    for status in ["False", "True"] {
        apply_to_pod(test, &bound, "gated", with(json!([gate(status)])))?;
    }
    let words = "may only change the condition netclaim.dev/networks in the status of a pod";
    let other = with(json!([gate("True"), {"type": "PodScheduled", "status": "False"}]));
    let words_of_others = "may only change the condition netclaim.dev/networks of a pod";
    refused("another condition", apply_to_pod(test, &bound, "gated", other), &[words_of_others])?;
    for (what, status) in [
        ("the phase", json!({"phase": "Failed"})),
        ("an address", json!({"podIPs": [{"ip": "192.0.2.1"}], "podIP": "192.0.2.1"})),
        ("a message", json!({"message": "from elsewhere"})),
        (
            "a container",
            json!({"containerStatuses": [{"name": "shell", "ready": false, "restartCount": 7, "image": "a", "imageID": "a"}]}),
        ),
    ] {
        refused(what, apply_to_pod(test, &bound, "gated", json!({"status": status})), &[words])?;
    }
    Ok(())
}

fn writes_to_pods_end_at_the_annotation(test: &Test<'_>) -> Result<()> {
    let [bound, unbound] = agent_tokens(test)?;
    let own = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "here", "annotations": {"a/ours": "1"}}});
    let apply =
        ["-n", test.namespace(), "apply", "--server-side", "--field-manager=ours", "--subresource=status"];
    test.cluster.kubectl_with(&[apply.as_slice(), &["-f", "-"]].concat(), &own.to_string())?;
    let with = |annotations: Value| json!({"metadata": {"annotations": annotations}});
    let number = |n: &str| with(json!({"a/ours": "1", "netclaim.dev/retry": n}));
    for n in ["1", "0042", "9999"] {
        apply_to_pod(test, &bound, "here", number(n)).with_context(|| format!("the value {n}"))?;
    }
    let words = "may only change the annotation netclaim.dev/retry of a pod";
    let changed = |change: fn(&mut Value)| {
        let mut object = number("1");
        change(&mut object);
        object
    };
    for (what, change) in [
        ("a label", changed(|pod| pod["metadata"]["labels"] = json!({"app": "other"}))),
        ("a finalizer", changed(|pod| pod["metadata"]["finalizers"] = json!(["example.com/keep"]))),
        ("another annotation", with(json!({"a/ours": "1", "netclaim.dev/retry": "1", "b/other": "1"}))),
        ("a changed annotation", with(json!({"a/ours": "2", "netclaim.dev/retry": "1"}))),
        ("a removed annotation", with(json!({"netclaim.dev/retry": "1"}))),
    ] {
        refused(what, apply_to_pod(test, &bound, "here", change), &[words])?;
    }
    let words = "may only change the condition netclaim.dev/networks in the status of a pod";
    for (what, change) in [
        ("the phase", changed(|pod| pod["status"] = json!({"phase": "Failed"}))),
        (
            "an address",
            changed(|pod| pod["status"] = json!({"podIPs": [{"ip": "192.0.2.1"}], "podIP": "192.0.2.1"})),
        ),
        (
            "a condition",
            changed(|pod| pod["status"] = json!({"conditions": [{"type": "Ready", "status": "False"}]})),
        ),
        (
            "the condition of no gate",
            changed(|pod| pod["status"] = json!({"conditions": [{"type": GATE, "status": "True"}]})),
        ),
    ] {
        refused(
            what,
            apply_to_pod(test, &bound, "here", change),
            &[words, "where that names the readiness gate"],
        )?;
    }
    let words = "must be a number of up to four digits";
    for value in ["", "12345", "-1", "1a", "one", "1\n"] {
        refused(
            &format!("the value {value:?}"),
            apply_to_pod(test, &bound, "here", number(value)),
            &[words],
        )?;
    }
    let alone = || with(json!({"netclaim.dev/retry": "1"}));
    let words = "the netclaim agent of node node0 may only annotate pods of that node";
    refused("another node's pod", apply_to_pod(test, &bound, "elsewhere", alone()), &[words])?;
    let words = "(token without a node)";
    refused("a wake by an unbound token", apply_to_pod(test, &unbound, "here", number("1")), &[words])?;
    // Nothing but the status subresource, where the API server keeps the spec as it is.
    let image = json!([{"name": "shell", "image": "localhost/other:1"}]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "here"}, "spec": {"containers": image}});
    let apply = [
        "-n",
        test.namespace(),
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "-f",
        "-",
    ];
    refused(
        "a change of the image",
        test.cluster.kubectl_as(&bound, &apply, &pod.to_string()),
        &["cannot patch resource \"pods\""],
    )
}

pub fn an_account_with_the_agents_name_in_another_namespace_is_not_limited(test: &Test<'_>) -> Result<()> {
    let (name, account) = (test.name("other"), "netclaim-agent");
    let mut pod = pod("other", &[]);
    pod["spec"]["serviceAccountName"] = json!(account);
    test.create([
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["create"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": test.namespace()}]}),
        pod,
    ])?;
    let write = || {
        let [bound, _] = tokens(test, test.namespace(), account, "other")?;
        Writer { test, token: bound }.slice("node0", "any", "other.dev").map(drop)
    };
    let written = eventually(10, "another driver's slice is written", write);
    test.cluster.kubectl(&["delete", "clusterrole,clusterrolebinding", &name])?;
    written
}

pub fn a_stolen_token_reads_only_pods_of_its_own_node(test: &Test<'_>) -> Result<()> {
    if test.cluster.kubectl(&["get", "clusterrole", "netclaim-agent-pods"]).is_ok() {
        return test.skip("before Kubernetes 1.36 an agent cannot ask as its node");
    }
    let mut elsewhere = pod("elsewhere", &[]);
    elsewhere["spec"]["nodeName"] = json!("node1");
    elsewhere["spec"]["containers"][0]["env"] = json!([{"name": "PASSWORD", "value": "secret"}]);
    test.create([elsewhere, pod("here", &[])])?;
    test.runs("here")?;
    let result = reads_end_at_the_node(test);
    // No kubelet would end it.
    test.delete_pod_by_force("elsewhere")?;
    result
}

fn reads_end_at_the_node(test: &Test<'_>) -> Result<()> {
    let [bound, unbound] = agent_tokens(test)?;
    let as_node = |token: &str, node: &str, what: &str, selector: &str| {
        let (user, selector) = (format!("--as=system:node:{node}"), format!("--field-selector={selector}"));
        test.cluster.kubectl_as(token, &["-n", test.namespace(), &user, "get", what, &selector], "")
    };
    let found = as_node(&bound, "node0", "pods", "spec.nodeName=node0")?;
    ensure!(found.contains("here") && !found.contains("elsewhere"), "{found}");
    let by_name = as_node(&bound, "node0", "pods", "metadata.name=elsewhere,spec.nodeName=node0")?;
    ensure!(!by_name.contains("elsewhere"), "{by_name}");
    for pod in ["here", "elsewhere"] {
        let get = test.cluster.kubectl_as(&bound, &["-n", test.namespace(), "get", "pod", pod], "");
        refused(&format!("a get of {pod}"), get, &["cannot get resource \"pods\""])?;
    }
    for (what, result) in [
        ("all pods, as the node", as_node(&bound, "node0", "pods", "")),
        ("pods of node1", as_node(&bound, "node0", "pods", "spec.nodeName=node1")),
        ("pods, as node1", as_node(&bound, "node1", "pods", "spec.nodeName=node1")),
        ("secrets, as the node", as_node(&bound, "node0", "secrets", "")),
        ("pods, by an unbound token", as_node(&unbound, "node0", "pods", "spec.nodeName=node0")),
    ] {
        refused(what, result, &["Forbidden"])?;
    }
    Ok(())
}

pub fn a_burst_of_pods_has_no_claim_refused(test: &Test<'_>) -> Result<()> {
    // The rights of any kubelet on a claim of another node.
    let kubelet = ["--as=system:node:node1", "--as-group=system:nodes"];
    for (verb, allowed) in [("get", true), ("list", false), ("update", false)] {
        let can = [["auth", "can-i", verb, "resourceclaims.resource.k8s.io"].as_slice(), &kubelet].concat();
        ensure!(test.kubectl(&can).is_ok() == allowed, "a kubelet may {verb} claims: {}", !allowed);
    }
    // Without volumes, nothing delays the kubelet's read of the claims until the API server's authorizer
    // knows the pods.
    let network = test.macvlan("a")?;
    let names: Vec<String> = (0..20).map(|n| format!("p{n}")).collect();
    let log = AuditLog::from_now(test.cluster)?;
    test.create(names.iter().flat_map(|name| [claim(name, &network), pod(name, &[name])]))?;
    for name in &names {
        test.runs(name)?;
    }
    let mut requests = log.requests_of("system:node:node0")?;
    requests.retain(|request, _| request.starts_with("get resourceclaims "));
    let refusals: Vec<_> = requests.keys().filter(|request| !request.ends_with(" 200")).collect();
    ensure!(refusals.is_empty() && !requests.is_empty(), "the kubelet's reads of claims: {requests:?}");
    Ok(())
}
