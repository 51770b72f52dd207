//! Networks that pods get and lose while they run, by NetworkAttachments.
//!
//! The controller's part is played here: claims are made and allocated by hand, which races with the
//! scheduler, so that these scenarios run alone.

use anyhow::{Context as _, Result, ensure};
use netclaim_driver::failpoint::Failpoint;
use netclaim_tests::objects::{claim_template, list, pod, text};
use netclaim_tests::{SYSTEM, Test, eventually};
use serde_json::{Value, json};

/// The right of the agent, of which the chart knows nothing yet.
const RIGHT: &str = "netclaim-test-hot-attach";

/// Runs a scenario with an agent that attaches running pods.
fn with_hot_attach(test: &Test<'_>, scenario: impl FnOnce() -> Result<()>) -> Result<()> {
    let rules = json!([
        {"apiGroups": ["netclaim.dev"], "resources": ["networkattachments"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["netclaim.dev"], "resources": ["networkattachments/status"], "verbs": ["patch"]}]);
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": RIGHT}, "rules": rules},
        {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": RIGHT},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": RIGHT},
            "subjects": [{"kind": "ServiceAccount", "name": "netclaim-agent", "namespace": SYSTEM}]}]});
    test.cluster.kubectl_with(&["apply", "-f", "-"], &objects.to_string())?;
    let result = test.cluster.with_agent_env("NETCLAIM_HOT_ATTACH", "true", scenario);
    test.cluster.kubectl(&["delete", "clusterrole,clusterrolebinding", RIGHT])?;
    result
}

/// Creates a NetworkAttachment and has it allocated; `more` of the spec. Returns the UID of its claim.
fn attach(test: &Test<'_>, name: &str, pod: &str, class: &str, more: Value) -> Result<String> {
    let mut spec = json!({"podName": pod, "resourceClaimTemplateName": name});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    let object = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment",
        "metadata": {"name": name}, "spec": spec});
    test.create([claim_template(name, class), object])?;
    allocate(test, name, pod, class)
}

/// Plays the controller: makes the claim, allocates it, reserves it, and says so in the object.
fn allocate(test: &Test<'_>, name: &str, pod: &str, class: &str) -> Result<String> {
    let object = test.get("networkattachment", name)?;
    let uid = text(&object["metadata"]["uid"]);
    let claim = format!("attachment-{uid}");
    let template = test.get("resourceclaimtemplate", name)?;
    let labels = json!({"netclaim.dev/network-attachment": uid});
    let annotations = json!({"netclaim.dev/network-attachment-of": format!("{}/{name}", test.namespace())});
    let made = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": claim, "labels": labels, "annotations": annotations,
            "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": template["spec"]["spec"]});
    test.cluster.kubectl_with(&["-n", SYSTEM, "create", "-f", "-"], &made.to_string())?;
    let device = format!("net-{class}");
    test.is_published(&device, |_| true)?;
    let published = test.cluster.device(&device)?.context("it is published")?;
    let capacity = published["capacity"].as_object().cloned().unwrap_or_default();
    let taken = |(name, of): (String, Value)| {
        let amount = of["requestPolicy"]["default"].as_str().unwrap_or("0").to_owned();
        (name, json!(amount))
    };
    let mut result = json!({"request": "net", "driver": "netclaim.dev", "pool": "node0", "device": device});
    if published["allowMultipleAllocations"] == true {
        result["shareID"] = json!(uid);
        result["consumedCapacity"] = capacity.into_iter().map(taken).collect();
    }
    let selector = json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["node0"]}]}]});
    let ours =
        json!({"apiGroup": "netclaim.dev", "resource": "networkattachments", "name": name, "uid": uid});
    let status = json!({"status": {"reservedFor": [ours],
        "allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}});
    patch(test, SYSTEM, ["resourceclaim", &claim], &status)?;
    let claim_uid = text(&test.cluster.get(&["-n", SYSTEM, "resourceclaim", &claim])?["metadata"]["uid"]);
    let status = json!({"status": {
        "podUID": test.get("pod", pod)?["metadata"]["uid"], "node": "node0",
        "claim": {"namespace": SYSTEM, "name": claim, "uid": claim_uid},
        "conditions": [condition("True", "Allocated")]}});
    patch(test, test.namespace(), ["networkattachment", name], &status)?;
    Ok(claim_uid)
}

/// Plays the controller: takes the allocation back, and releases the claim when the agent says that it is
/// detached.
fn take_back(test: &Test<'_>, name: &str) -> Result<()> {
    let before = test.get("networkattachment", name)?;
    let kept = list(&before["status"]["conditions"]).cloned();
    let kept = kept.filter(|condition| condition["type"] != "Allocated");
    let conditions: Vec<Value> = kept.chain([condition("False", "Deleted")]).collect();
    let namespace = test.namespace();
    patch(test, namespace, ["networkattachment", name], &json!({"status": {"conditions": conditions}}))?;
    says(test, name, "Detached")?;
    let object = test.get("networkattachment", name)?;
    ensure!(object["status"]["interfaces"].is_null(), "{}", object["status"]);
    release(test, &text(&object["metadata"]["uid"]))?;
    test.kubectl(&["delete", "networkattachment", name]).map(drop)
}

/// Plays the controller: gives back what a claim has.
fn release(test: &Test<'_>, uid: &str) -> Result<()> {
    let claim = format!("attachment-{uid}");
    let nothing = json!({"status": {"allocation": null, "reservedFor": null, "devices": null}});
    patch(test, SYSTEM, ["resourceclaim", &claim], &nothing)?;
    test.cluster.kubectl(&["-n", SYSTEM, "delete", "resourceclaim", &claim, "--timeout=30s"]).map(drop)
}

fn condition(status: &str, reason: &str) -> Value {
    json!({"type": "Allocated", "status": status, "reason": reason, "message": "by hand",
        "lastTransitionTime": "2026-11-29T00:00:00Z"})
}

fn patch(test: &Test<'_>, namespace: &str, [kind, name]: [&str; 2], change: &Value) -> Result<()> {
    let patch = ["-n", namespace, "patch", kind, name, "--subresource=status", "--type=merge", "-p"];
    test.cluster.kubectl(&[&patch[..], &[&change.to_string()]].concat()).map(drop)
}

/// Waits until the condition `Attached` has this reason; returns its message.
fn says(test: &Test<'_>, name: &str, reason: &str) -> Result<String> {
    eventually(30, &format!("{name} is {reason}"), || {
        let object = test.get("networkattachment", name)?;
        let mut conditions = list(&object["status"]["conditions"]);
        let condition = conditions.find(|condition| condition["type"] == "Attached");
        let condition = condition.with_context(|| format!("{}", object["status"]))?;
        ensure!(condition["reason"] == reason, "{condition}");
        Ok(text(&condition["message"]))
    })
}

fn has_lost(test: &Test<'_>, pod: &str, interface: &str) -> Result<()> {
    eventually(20, &format!("{pod} has no {interface}"), || {
        ensure!(!test.interfaces(pod)?.contains_key(interface), "it has");
        Ok(())
    })
}

pub fn a_pod_that_runs_gets_networks_and_loses_them_again(test: &Test<'_>) -> Result<()> {
    let [a, b, c] = ["a", "b", "c"].map(|name| test.macvlan(name));
    let (a, b, c) = (a?, b?, c?);
    test.start_pod("p", &a)?;
    // One that claims nothing.
    test.create([pod("q", &[])])?;
    test.runs("q")?;
    let containers =
        || Ok::<_, anyhow::Error>([test.container("p", "shell")?.pid, test.container("q", "shell")?.pid]);
    let before = containers()?;
    with_hot_attach(test, || {
        attach(test, "one", "p", &b, json!({}))?;
        attach(test, "two", "p", &c, json!({"interfaceName": "lan0"}))?;
        let of_q = attach(test, "three", "q", &b, json!({}))?;
        for (name, interface) in [("one", "net2"), ("two", "lan0"), ("three", "net1")] {
            ensure!(says(test, name, "Attached")? == format!("attached as {interface}"));
        }
        let (net2, lan0) = (test.interface("p", "net2")?, test.interface("p", "lan0")?);
        ensure!(net2.index < lan0.index, "they came in another order: {net2:?}, {lan0:?}");
        let shown = test.get("networkattachment", "one")?["status"]["interfaces"].clone();
        let ip = test.ip("p", "net2")?;
        ensure!(shown[0]["name"] == "net2" && shown[0]["ips"] == json!([ip]), "{shown}");
        test.ping("q", "p", "net2").or_else(|_| {
            // Its own interface in the network has another name.
            test.kubectl(&["exec", "q", "--", "ping", "-c", "1", "-w", "10", &ip]).map(drop)
        })?;
        let claims =
            test.cluster.get(&["-n", SYSTEM, "resourceclaims", "-l", "netclaim.dev/network-attachment"])?;
        let of_claim = list(&claims["items"]).find(|claim| claim["metadata"]["uid"] == of_q.as_str());
        let devices = of_claim.context("the claim is there")?["status"]["devices"].clone();
        ensure!(devices[0]["networkData"]["interfaceName"] == "net1", "{devices}");
        let metadata = test.cluster.on_node(&["ls", "/run/netclaim/metadata", "/run/cdi"])?;
        ensure!(!metadata.contains(&of_q), "a container cannot name it: {metadata}");

        take_back(test, "one")?;
        has_lost(test, "p", "net2")?;
        // Somebody removes the finalizer, or there is none.
        let uid = text(&test.get("networkattachment", "two")?["metadata"]["uid"]);
        test.kubectl(&["delete", "networkattachment", "two"])?;
        has_lost(test, "p", "lan0")?;
        release(test, &uid)?;
        take_back(test, "three")?;
        has_lost(test, "q", "net1")?;
        test.interface("p", "net1")?;
        ensure!(containers()? == before, "a container was started again");
        test.claim_is_ready("p").map(drop)
    })
}

pub fn what_cannot_be_attached_to_a_running_pod_leaves_it_alone(test: &Test<'_>) -> Result<()> {
    let a = test.macvlan("a")?;
    let answer = "{\"cniVersion\": \"1.0.0\", \"code\": 100, \"msg\": \"no such thing today\"}";
    let broken =
        test.plugin("broken", &format!("[ \"$CNI_COMMAND\" = ADD ] || exit 0\necho '{answer}'\nexit 1"))?;
    let b = test.network("b", |network| network["spec"]["cni"]["plugins"][0]["type"] = json!(broken))?;
    test.start_pod("p", &a)?;
    let mut host = pod("host", &[]);
    host["spec"]["hostNetwork"] = json!(true);
    test.create([host])?;
    test.runs("host")?;
    let before = test.container("p", "shell")?.pid;
    with_hot_attach(test, || {
        attach(test, "bad", "p", &b, json!({}))?;
        attach(test, "of-host", "host", &a, json!({}))?;
        let message = says(test, "bad", "AttachFailed")?;
        ensure!(message.contains("no such thing today"), "{message}");
        test.event("p", &["NetworkAttachFailed", "no such thing today"])?;
        let events = test.kubectl(&["events", "--for", "networkattachment/bad"])?;
        ensure!(events.contains("NetworkAttachFailed"), "{events}");
        let message = says(test, "of-host", "Refused")?;
        ensure!(message.contains("hostNetwork"), "{message}");
        // A container that ends is started again, in the sandbox in which the network is not there.
        test.kill(&test.container("p", "shell")?)?;
        eventually(30, "the container runs again", || {
            ensure!(test.container("p", "shell")?.pid != before, "it is the old one");
            Ok(())
        })?;
        let names: Vec<String> = test.interfaces("p")?.into_keys().collect();
        ensure!(names == ["eth0", "lo", "net1"], "{names:?}");
        take_back(test, "bad")?;
        take_back(test, "of-host")
    })
}

pub fn what_came_to_a_running_pod_outlives_its_sandbox_and_the_agent(test: &Test<'_>) -> Result<()> {
    let (a, b) = (test.macvlan("a")?, test.macvlan("b")?);
    test.start_pod("p", &a)?;
    with_hot_attach(test, || {
        test.cluster.arm(Failpoint::Added)?;
        attach(test, "one", "p", &b, json!({}))?;
        test.cluster.dies_at(Failpoint::Added, 60)?;
        says(test, "one", "Attached")?;
        test.interface("p", "net2")?;
        test.replace_sandbox("p")?;
        // Its containers have waited for it.
        test.began_with("p", &["net1", "net2"])?;
        says(test, "one", "Attached")?;
        // The pod goes, and the kubelet knows nothing of the claim.
        test.delete_pod("p")?;
        take_back(test, "one")
    })
}
