//! Networks that pods get and lose while they run, by NetworkAttachments.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use netclaim_driver::failpoint::Failpoint;
use netclaim_tests::objects::{claim_template, list, pod, pod_of_template, text};
use netclaim_tests::{SYSTEM, Test, eventually};
use serde_json::{Value, json};

/// Creates a NetworkAttachment for a device of `class`, and its template; `more` of the spec.
fn attach(test: &Test<'_>, name: &str, pod: &str, class: &str, more: Value) -> Result<()> {
    let mut spec = json!({"podName": pod, "resourceClaimTemplateName": name});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    let object = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment",
        "metadata": {"name": name}, "spec": spec});
    test.create([claim_template(name, class), object])
}

/// Deletes a NetworkAttachment, and waits until it is gone and its claim released.
fn detach(test: &Test<'_>, name: &str) -> Result<()> {
    let claim = claim_of(test, name)?;
    test.kubectl(&["delete", "networkattachment", name, "--timeout=30s"])?;
    claim.map_or(Ok(()), |(claim, _)| is_released(test, &claim))
}

/// The name and the UID of the claim of a NetworkAttachment.
fn claim_of(test: &Test<'_>, name: &str) -> Result<Option<(String, String)>> {
    let claim = test.get("networkattachment", name)?["status"]["claim"].take();
    Ok(claim.is_object().then(|| (text(&claim["name"]), text(&claim["uid"]))))
}

/// Waits until neither the claim nor the pod by which the scheduler was asked is there.
fn is_released(test: &Test<'_>, claim: &str) -> Result<()> {
    eventually(30, &format!("claim {claim} is gone"), || {
        let found = test.cluster.kubectl(&["-n", SYSTEM, "get", "resourceclaims,pods", "-o", "name"])?;
        ensure!(!found.contains(claim), "{found}");
        Ok(())
    })
}

/// Deallocates a claim and deletes it, as an admin would who has removed the finalizer.
fn give_back(test: &Test<'_>, claim: &str) -> Result<()> {
    let nothing = r#"{"status": {"allocation": null, "reservedFor": null, "devices": null}}"#;
    let patch = ["-n", SYSTEM, "patch", "resourceclaim", claim, "--subresource=status", "--type=merge", "-p"];
    test.cluster.kubectl(&[&patch[..], &[nothing]].concat())?;
    test.cluster.kubectl(&["-n", SYSTEM, "delete", "resourceclaim", claim, "--timeout=30s"]).map(drop)
}

/// Waits until a condition of a NetworkAttachment has this reason; returns its message.
fn says(test: &Test<'_>, name: &str, reason: &str) -> Result<String> {
    eventually(30, &format!("{name} is {reason}"), || {
        let status = test.get("networkattachment", name)?["status"].take();
        let mut conditions = list(&status["conditions"]);
        let condition = conditions.find(|condition| condition["reason"] == reason);
        Ok(text(&condition.with_context(|| format!("{status}"))?["message"]))
    })
}

fn is_attached_as(test: &Test<'_>, name: &str, interface: &str) -> Result<()> {
    let message = says(test, name, "Attached")?;
    ensure!(message == format!("attached as {interface}"), "{name}: {message}");
    Ok(())
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
    let pid = |pod| Ok::<_, anyhow::Error>(test.container(pod, "shell")?.pid);
    let before = [pid("p")?, pid("q")?];
    test.cluster.with_hot_attach_on_nodes(|| {
        attach(test, "one", "p", &b, json!({}))?;
        attach(test, "two", "p", &c, json!({"interfaceName": "lan0"}))?;
        attach(test, "three", "q", &b, json!({}))?;
        for (name, interface) in [("one", "net2"), ("two", "lan0"), ("three", "net1")] {
            is_attached_as(test, name, interface)?;
        }
        let shown = test.get("networkattachment", "one")?["status"]["interfaces"].clone();
        let ip = test.ip("p", "net2")?;
        ensure!(shown[0]["name"] == "net2" && shown[0]["ips"] == json!([ip]), "{shown}");
        test.kubectl(&["exec", "q", "--", "ping", "-c", "1", "-w", "10", &ip])?;
        let (claim, uid) = claim_of(test, "three")?.context("it has a claim")?;
        let devices = test.cluster.get(&["-n", SYSTEM, "resourceclaim", &claim])?["status"]["devices"].take();
        ensure!(devices[0]["networkData"]["interfaceName"] == "net1", "{devices}");
        let files = test.cluster.on_node(&["ls", "/run/netclaim/metadata", "/run/cdi"])?;
        ensure!(!files.contains(&uid), "a container cannot name it: {files}");
        let shown = test.netclaimctl(&["attachments", "q", "-n", test.namespace(), "-o", "json"])?;
        let shown = &shown["attachments"][0];
        ensure!(shown["networkAttachment"] == "three" && shown["network"] == b.as_str(), "{shown}");

        detach(test, "one")?;
        has_lost(test, "p", "net2")?;
        detach(test, "three")?;
        has_lost(test, "q", "net1")?;
        // Somebody removes the finalizer. The controller would keep the claim for 10 min.
        let (claim, _) = claim_of(test, "two")?.context("it has a claim")?;
        test.cluster.controller_away()?;
        test.kubectl(&["delete", "networkattachment", "two", "--wait=false"])?;
        let without = r#"{"metadata": {"finalizers": null}}"#;
        test.kubectl(&["patch", "networkattachment", "two", "--type=merge", "-p", without])?;
        has_lost(test, "p", "lan0")?;
        give_back(test, &claim)?;
        test.cluster.controller_back()?;
        test.interface("p", "net1")?;
        ensure!([pid("p")?, pid("q")?] == before, "a container was started again");
        test.claim_is_ready("p").map(drop)
    })
}

pub fn what_cannot_be_attached_to_a_running_pod_leaves_it_alone(test: &Test<'_>) -> Result<()> {
    let a = test.macvlan("a")?;
    let answer = "{\"cniVersion\": \"1.0.0\", \"code\": 100, \"msg\": \"no such thing today\"}";
    let broken = format!("[ \"$CNI_COMMAND\" = ADD ] || exit 0\necho '{answer}'\nexit 1");
    let broken = test.plugin("broken", &broken)?;
    let b = test.network("b", |network| network["spec"]["cni"]["plugins"][0]["type"] = json!(broken))?;
    test.start_pod("p", &a)?;
    let mut host = pod("host", &[]);
    host["spec"]["hostNetwork"] = json!(true);
    test.create([host])?;
    test.runs("host")?;
    let before = test.container("p", "shell")?.pid;
    test.cluster.with_hot_attach_on_nodes(|| {
        attach(test, "bad", "p", &b, json!({}))?;
        attach(test, "of-host", "host", &a, json!({}))?;
        let message = says(test, "bad", "AttachFailed")?;
        ensure!(message.contains("no such thing today"), "{message}");
        test.event("p", &["NetworkAttachFailed", "no such thing today"])?;
        let events = test.kubectl(&["events", "--for", "networkattachment/bad"])?;
        ensure!(events.contains("NetworkAttachFailed"), "{events}");
        let explained = ["explain", "attachment", "bad", "-n", test.namespace()];
        let explained = test.run_netclaimctl(&explained)?;
        let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
        ensure!(explained.contains("cannot attach pod p: AttachFailed"), "{explained}");
        says(test, "of-host", "Refused")?;
        // A container that ends is started again, in the sandbox in which the network is not there.
        test.kill(&test.container("p", "shell")?)?;
        eventually(30, "the container runs again", || {
            ensure!(test.container("p", "shell")?.pid != before, "it is the old one");
            Ok(())
        })?;
        let names: Vec<String> = test.interfaces("p")?.into_keys().collect();
        ensure!(names == ["eth0", "lo", "net1"], "{names:?}");
        detach(test, "bad")?;
        detach(test, "of-host")
    })
}

pub fn what_came_to_a_running_pod_outlives_its_sandbox_and_the_agent(test: &Test<'_>) -> Result<()> {
    let [a, b, c] = ["a", "b", "c"].map(|name| test.macvlan(name));
    let (a, b, c) = (a?, b?, c?);
    test.start_pod("p", &a)?;
    test.cluster.with_hot_attach_on_nodes(|| {
        test.cluster.arm(Failpoint::Added)?;
        attach(test, "one", "p", &b, json!({}))?;
        test.cluster.dies_at(Failpoint::Added, 60)?;
        is_attached_as(test, "one", "net2")?;
        attach(test, "two", "p", &c, json!({"interfaceName": "lan0"}))?;
        is_attached_as(test, "two", "lan0")?;
        test.replace_sandbox("p")?;
        // Its containers have waited for both, which have come back in their order.
        test.began_with("p", &["net1", "net2", "lan0"])?;
        let (net2, lan0) = (test.interface("p", "net2")?, test.interface("p", "lan0")?);
        ensure!(net2.index < lan0.index, "{net2:?}, {lan0:?}");
        detach(test, "two")?;
        // The kubelet knows nothing of the claim, and the next pod of the name gets another one.
        let before = claim_of(test, "one")?;
        test.delete_pod("p")?;
        test.start_pod("p", &a)?;
        eventually(60, "the next pod has it", || {
            ensure!(claim_of(test, "one")? != before, "it is the old claim");
            test.interface("p", "net2").map(drop)
        })?;
        is_attached_as(test, "one", "net2")?;
        detach(test, "one")
    })
}

pub fn attachments_and_a_burst_of_pods_do_not_stop_each_other(test: &Test<'_>) -> Result<()> {
    const RUNNING: usize = 20;
    const BURST: usize = 60;
    let class = test.macvlan("a")?;
    let running: Vec<String> = (0..RUNNING).map(|n| format!("r{n}")).collect();
    test.create(running.iter().map(|name| pod(name, &[])))?;
    for name in &running {
        test.runs(name)?;
    }
    test.cluster.with_hot_attach_on_nodes(|| {
        let burst: Vec<String> = (0..BURST).map(|n| format!("b{n}")).collect();
        test.create([claim_template("net", &class)])?;
        let attachments = running.iter().map(|name| {
            json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment", "metadata": {"name": name},
                "spec": {"podName": name, "resourceClaimTemplateName": "net"}})
        });
        let begin = Instant::now();
        test.create(burst.iter().map(|name| pod_of_template(name, "net")).chain(attachments))?;
        for name in &running {
            let attached = format!("networkattachment/{name}");
            test.kubectl(&["wait", "--for=condition=Attached", "--timeout=120s", &attached])?;
        }
        let attached = begin.elapsed();
        for name in &burst {
            test.runs(name)?;
        }
        println!("         attached after {attached:.1?}, and all pods run after {:.1?}", begin.elapsed());
        let mut addresses = BTreeSet::new();
        for name in running.iter().chain(&burst) {
            addresses.insert(test.ip(name, "net1")?);
        }
        ensure!(addresses.len() == RUNNING + BURST, "some have the same address: {addresses:?}");
        test.kubectl(&["delete", "networkattachments", "--all", "--timeout=120s"])?;
        for name in &running {
            has_lost(test, name, "net1")?;
        }
        test.kubectl(&["delete", "pods", "--all", "--timeout=180s"]).map(drop)
    })
}
