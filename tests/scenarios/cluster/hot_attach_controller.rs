//! Networks for pods that run: what the controller does on a real API server and scheduler, and what its
//! token may do. The agent is a fake here: the scenario writes its part of the status.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{claim_template, list, pod, pod_of_template, request, text};
use netclaim_tests::{SYSTEM, Test, eventually, long};
use serde_json::{Value, json};

use crate::rights::{agent_tokens, refused};

const KIND: &str = "networkattachments.netclaim.dev";
const CONTROLLER: &str = "system:serviceaccount:netclaim-system:netclaim-controller";
/// The label of claims and probes.
const LABEL: &str = "netclaim.dev/network-attachment";

fn attachment_of(name: &str, pod: &str, template: &str) -> Value {
    json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment", "metadata": {"name": name},
        "spec": {"podName": pod, "resourceClaimTemplateName": template}})
}

/// Returns a condition of a NetworkAttachment, as `STATUS REASON: MESSAGE`.
fn condition(test: &Test<'_>, name: &str, of_type: &str) -> Result<String> {
    let object = test.get("networkattachments", name)?;
    let condition =
        list(&object["status"]["conditions"]).find(|condition| condition["type"] == of_type).cloned();
    let condition = condition.unwrap_or_default();
    let [status, reason, message] = ["status", "reason", "message"].map(|field| text(&condition[field]));
    Ok(format!("{status} {reason}: {message}"))
}

fn becomes(test: &Test<'_>, name: &str, words: &[&str]) -> Result<()> {
    eventually(30, &format!("NetworkAttachment {name} says {words:?}"), || {
        let found = condition(test, name, "Allocated")?;
        ensure!(words.iter().all(|word| found.contains(word)), "{found}");
        Ok(())
    })
}

/// Says what the agent of the node would say.
fn agent_says(test: &Test<'_>, name: &str, status: &str, reason: &str) -> Result<()> {
    let condition = json!({"type": "Attached", "status": status, "reason": reason, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let object = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment", "metadata": {"name": name},
        "status": {"conditions": [condition]}});
    let apply = [
        "-n",
        test.namespace(),
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=netclaim-agent",
    ];
    let how = ["--subresource=status", "-f", "-"];
    test.cluster.kubectl_with(&[apply.as_slice(), &how].concat(), &object.to_string()).map(drop)
}

/// Deletes a NetworkAttachment, answers as the agent, and waits until nothing of it is left.
fn detach(test: &Test<'_>, name: &str) -> Result<()> {
    test.kubectl(&["delete", KIND, name, "--wait=false"])?;
    eventually(30, &format!("NetworkAttachment {name} is gone"), || {
        let Ok(object) = test.get("networkattachments", name) else { return Ok(()) };
        if !object["status"]["node"].is_null() && condition(test, name, "Allocated")?.starts_with("False") {
            agent_says(test, name, "False", "Detached")?;
        }
        anyhow::bail!("it is there: {}", object["status"])
    })?;
    eventually(20, "claim and probe are gone", || {
        let left =
            ["resourceclaims", "pods"].map(|kind| test.cluster.get(&["-n", SYSTEM, kind, "-l", LABEL]));
        for left in left {
            ensure!(list(&left?["items"]).next().is_none(), "something is left");
        }
        Ok(())
    })
}

pub fn a_running_pod_gets_devices_from_the_scheduler_and_gives_them_back(test: &Test<'_>) -> Result<()> {
    test.cluster.with_hot_attach(|| {
        let a = test.macvlan("a")?;
        let not_for_us =
            json!({"from": "Selector", "selector": {"matchLabels": {"netclaim.dev/test-other": "yes"}}});
        let other = test.network("b", |network| network["spec"]["namespaces"] = not_for_us.clone())?;
        let mut two = claim_template("two", &a);
        two["spec"]["spec"]["devices"]["requests"] = json!([request("one", &a), request("two", &a)]);
        test.create([claim_template("a", &a), claim_template("b", &other), two, pod("p", &[])])?;
        let mut named = attachment_of("a", "p", "a");
        named["spec"]["interfaceName"] = json!("data0");
        test.create([named])?;
        test.runs("p")?;
        becomes(test, "a", &["True Allocated"])?;
        let object = test.get("networkattachments", "a")?;
        let pod_uid = test.get("pods", "p")?["metadata"]["uid"].clone();
        let status = &object["status"];
        ensure!(status["node"] == "node0" && status["podUID"] == pod_uid, "{status}");
        let name = text(&status["claim"]["name"]);
        let claim = test.cluster.get(&["-n", SYSTEM, "resourceclaims", &name])?;
        let uid = &object["metadata"]["uid"];
        let ours =
            json!([{"apiGroup": "netclaim.dev", "resource": "networkattachments", "name": "a", "uid": uid}]);
        ensure!(claim["status"]["reservedFor"] == ours, "{}", claim["status"]);
        ensure!(
            claim["status"]["allocation"]["devices"]["results"][0]["device"] == format!("net-{a}"),
            "{claim}"
        );
        let config = &claim["spec"]["devices"]["config"][0]["opaque"]["parameters"];
        ensure!(config["interfaceName"] == "data0", "{config}");
        ensure!(test.cluster.get(&["-n", SYSTEM, "pods", &name]).is_err(), "the probe is there");
        agent_says(test, "a", "True", "Attached")?;

        // What a pod cannot have, or that is not there.
        let mut too_many = attachment_of("too-many", "p", "two");
        too_many["spec"]["interfaceName"] = json!("data1");
        test.create([
            attachment_of("other", "p", "b"),
            attachment_of("missing", "p", "none"),
            attachment_of("nobody", "q", "a"),
            too_many,
        ])?;
        becomes(test, "other", &["False Refused", &format!("ClaimNetwork {other} is not for namespace")])?;
        becomes(test, "missing", &["False Refused", "there is no ResourceClaimTemplate none"])?;
        becomes(test, "nobody", &["False PodNotFound", "there is no pod q"])?;
        becomes(test, "too-many", &["False Refused", "asks for several devices"])?;
        ensure!(
            test.kubectl(&["patch", KIND, "a", "--type=merge", "-p", "{\"spec\":{\"podName\":\"q\"}}"])
                .is_err()
        );
        for name in ["other", "missing", "nobody", "too-many"] {
            test.kubectl(&["delete", KIND, name, "--timeout=20s"])?;
        }

        // Another pod of the name gets the devices after the first one has ended.
        test.delete_pod("p")?;
        becomes(test, "a", &["False PodGone"])?;
        agent_says(test, "a", "False", "Detached")?;
        becomes(test, "a", &["False PodNotFound"])?;
        test.create([pod("p", &[])])?;
        test.runs("p")?;
        becomes(test, "a", &["True Allocated"])?;
        detach(test, "a")?;
        test.delete_pod("p")
    })
}

pub fn of_a_pod_and_a_network_attachment_one_gets_the_last_unit(test: &Test<'_>) -> Result<()> {
    let races: u64 = if long() { 50 } else { 8 };
    test.cluster.with_hot_attach(|| {
        let a = test.network("a", |network| network["spec"]["capacity"] = json!({"interfaces": 1}))?;
        test.create([claim_template("a", &a), pod("p", &[])])?;
        test.runs("p")?;
        let (mut pods, mut attachments) = (0, 0);
        for race in 0..races {
            let name = format!("r{race}");
            test.create([attachment_of(&name, "p", "a")])?;
            // The controller needs about 100 ms until the scheduler has the probe.
            sleep(Duration::from_millis(20 * (1 + race % 8)));
            test.create([pod_of_template(&name, "a")])?;
            let won = || -> Result<(bool, bool)> {
                let allocated = condition(test, &name, "Allocated")?.starts_with("True");
                Ok((allocated, !test.get("pods", &name)?["spec"]["nodeName"].is_null()))
            };
            eventually(30, "one has the unit", || {
                ensure!(won()? != (false, false), "none has it");
                Ok(())
            })?;
            // A second allocation would become visible soon after the first one.
            sleep(Duration::from_millis(300));
            match won()? {
                (true, false) => attachments += 1,
                (false, true) => pods += 1,
                both => anyhow::bail!("race {race}: {both:?}"),
            }
            test.kubectl(&["delete", "pod", &name, "--grace-period=0", "--force", "--wait=false"])?;
            detach(test, &name)?;
        }
        println!("pods won {pods} times, and NetworkAttachments {attachments} times");
        test.delete_pod("p")
    })
}

pub fn the_controllers_token_makes_probes_and_nothing_else(test: &Test<'_>) -> Result<()> {
    let writes: [&[&str]; 6] = [
        &["create", "pods"],
        &["delete", "pods"],
        &["create", "resourceclaims"],
        &["patch", "resourceclaims", "--subresource=status"],
        &["patch", "networkattachments.netclaim.dev"],
        &["patch", "networkattachments.netclaim.dev", "--subresource=status"],
    ];
    let may = |right: &[&str], namespace| test.cluster.may(CONTROLLER, &[right, &["-n", namespace]].concat());
    for right in writes {
        ensure!(!may(right, SYSTEM), "the controller may {right:?} without hot attach");
    }
    test.cluster.with_hot_attach(|| {
        for right in writes {
            ensure!(may(right, SYSTEM), "the controller may not {right:?}");
        }
        for right in writes.iter().take(4) {
            ensure!(!may(right, "default"), "the controller may {right:?} in another namespace");
        }
        // A probe as the controller makes it, and what becomes of it.
        let uid = "0f0f";
        let good = probe(uid);
        let create = |object: &Value| {
            let create = ["-n", SYSTEM, "create", "--dry-run=server", "--validate=false", "--as", CONTROLLER, "-f", "-"];
            test.cluster.kubectl_with(&create, &object.to_string())
        };
        eventually(20, "the policies are in force", || {
            create(&good)?;
            refused("a pod with a token", create(&changed(&good, "/spec/automountServiceAccountToken", json!(true))?), &["without a token"])
        })?;
        let privileged = json!([{"name": "c", "image": "registry.k8s.io/pause:3.10.1", "securityContext": {"privileged": true}}]);
        let one = "with one container of registry.k8s.io/pause";
        for (path, value, words) in [
            ("/metadata/name", json!("mine"), "may only create and delete pods attachment-UID"),
            ("/metadata/labels", json!({}), "may only create and delete pods attachment-UID"),
            ("/spec/containers", privileged, one),
            ("/spec/containers/0/image", json!("localhost/busybox:1"), one),
            ("/spec/containers/0/command", json!(["sh"]), one),
            ("/spec/hostNetwork", json!(true), "namespaces of the node"),
            ("/spec/volumes", json!([{"name": "host", "hostPath": {"path": "/"}}]), "volumes"),
            ("/spec/serviceAccountName", json!("netclaim-agent"), "without a token"),
            ("/spec/nodeName", json!("node0"), "to which they are not bound"),
            ("/spec/priorityClassName", json!("system-node-critical"), "the PriorityClass netclaim-probe"),
            ("/spec/affinity", json!({}), "for one node"),
        ] {
            refused(path, create(&changed(&good, path, value)?), &[words])?;
        }
        // Nobody binds a probe, not even an admin.
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": format!("attachment-{uid}")},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "node0"}});
        let path = format!("/api/v1/namespaces/{SYSTEM}/bindings");
        let bound = test.cluster.kubectl_with(&["create", "--raw", &path, "-f", "-"], &binding.to_string());
        refused("a binding", bound, &["never bound to a node"])?;
        claims_are_confined(test, &create)?;
        agents_are_confined(test)
    })
}

/// Claims: no owner, no admin access, nobody else's.
fn claims_are_confined(test: &Test<'_>, create: &impl Fn(&Value) -> Result<String>) -> Result<()> {
    let a = test.macvlan("a")?;
    let mut good = netclaim_tests::objects::claim("attachment-0f0f", &a);
    good["metadata"]["labels"] = json!({LABEL: "0f0f"});
    good["metadata"]["finalizers"] = json!(["resource.kubernetes.io/delete-protection"]);
    create(&good)?;
    for (path, value, words) in [
        ("/metadata/name", json!("mine"), "may only write ResourceClaims attachment-UID"),
        ("/metadata/finalizers", json!([]), "with the finalizer"),
        ("/metadata/annotations", json!({"a": "b"}), "annotations"),
    ] {
        refused(path, create(&changed(&good, path, value)?), &[words])?;
    }
    // The controller deletes a claim without a NetworkAttachment.
    test.cluster.controller_away()?;
    let result = reservations_are_confined(test, good);
    test.cluster.controller_back()?;
    result
}

/// An allocation of its own, and a reservation for a pod.
fn reservations_are_confined(test: &Test<'_>, mut claim: Value) -> Result<()> {
    claim["metadata"]["finalizers"] = json!([]);
    test.cluster.kubectl_with(&["-n", SYSTEM, "create", "-f", "-"], &claim.to_string())?;
    let name = "attachment-0f0f";
    // kubectl reads what it patches, and the controller does not.
    let patch = |status: Value| {
        let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "status": status});
        let apply = ["-n", SYSTEM, "apply", "--server-side", "--force-conflicts", "--validate=false"];
        let how = ["--subresource=status", "--as", CONTROLLER, "--dry-run=server", "-f", "-"];
        test.cluster.kubectl_with(&[apply.as_slice(), &how].concat(), &object.to_string())
    };
    let device = json!({"request": "net", "driver": "netclaim.dev", "pool": "node0", "device": "any"});
    let allocation = json!({"devices": {"results": [device]}});
    refused("an allocation", patch(json!({"allocation": allocation})), &["allocate nothing"])?;
    let pod = json!([{"resource": "pods", "name": "p", "uid": "u"}]);
    let reserved = json!({"allocation": allocation, "reservedFor": pod});
    refused("a reservation of a pod", patch(reserved), &["netclaim-attachment-claims"])?;
    test.cluster.kubectl(&["-n", SYSTEM, "delete", "resourceclaim", name]).map(drop)
}

/// The agent of a node says nothing of another node's attachments.
fn agents_are_confined(test: &Test<'_>) -> Result<()> {
    let [bound, unbound] = agent_tokens(test)?;
    test.create([attachment_of("mine", "p", "a"), attachment_of("foreign", "p", "a")])?;
    for (name, node) in [("mine", "node0"), ("foreign", "node9")] {
        let patch = json!({"status": {"node": node}}).to_string();
        test.kubectl(&["patch", KIND, name, "--subresource=status", "--type=merge", "-p", &patch])?;
    }
    let apply = |token: &str, name: &str, status: Value| {
        let object = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment", "metadata": {"name": name}, "status": status});
        let apply = [
            "-n",
            test.namespace(),
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=netclaim-agent",
        ];
        let how = ["--validate=false", "--subresource=status", "--dry-run=server", "-f", "-"];
        test.cluster.kubectl_as(token, &[apply.as_slice(), &how].concat(), &object.to_string())
    };
    let interfaces = || json!({"interfaces": [{"name": "net1", "ips": ["10.0.0.1"]}]});
    apply(&bound, "mine", interfaces()).context("the agent of the node")?;
    refused("another node's", apply(&bound, "foreign", interfaces()), &["of that node"])?;
    refused("a token without a node", apply(&unbound, "mine", interfaces()), &["token without a node"])?;
    refused(
        "another field",
        apply(&bound, "mine", json!({"node": "node9"})),
        &["may only change status.interfaces"],
    )
}

fn changed(object: &Value, path: &str, value: Value) -> Result<Value> {
    let mut object = object.clone();
    let (parent, key) = path.rsplit_once('/').context("a path")?;
    object.pointer_mut(parent).context("no such field")?[key] = value;
    Ok(object)
}

/// A probe as the controller makes it.
fn probe(uid: &str) -> Value {
    let name = format!("attachment-{uid}");
    let on_node = json!({"key": "metadata.name", "operator": "In", "values": ["node0"]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {LABEL: uid}}, "spec": {
        "priorityClassName": "netclaim-probe", "automountServiceAccountToken": false,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [on_node]}]}}},
        "resourceClaims": [{"name": "networks", "resourceClaimName": name}],
        "containers": [{"name": "probe", "image": "registry.k8s.io/pause:3.10.1", "resources": {"claims": [{"name": "networks"}]}}],
    }})
}
