//! What is refused, and what the user reads then: in the pod's events and in the claim.

use anyhow::{Result, ensure};
use netclaim_tests::objects::{attachment, claim, class, class_of_network, network, pod};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

use crate::devices::{is_not_published, is_published};

/// A pod whose claim has an `AttachmentConfig` with these fields does not start, and `words` are told why.
fn is_refused(test: &Test<'_>, class: &str, fields: Value, words: &[&str]) -> Result<()> {
    let mut claim = claim("p", class);
    claim["spec"]["devices"]["config"] = json!([attachment(fields)]);
    test.create([claim, pod("p", &["p"])])?;
    told(test, words)
}

fn told(test: &Test<'_>, words: &[&str]) -> Result<()> {
    test.event("p", &[&["FailedPrepareDynamicResources"], words].concat())?;
    test.claim_is_not_ready("p", words)?;
    test.has_not_started("p")
}

pub fn a_field_that_is_unknown_is_refused_by_name(test: &Test<'_>) -> Result<()> {
    let class = test.macvlan("a")?;
    is_refused(test, &class, json!({"ifNmae": "data0"}), &["claim config[0].opaque.parameters", "ifNmae"])
}

pub fn an_address_that_is_none_is_refused_with_an_example(test: &Test<'_>) -> Result<()> {
    let class = test.network("a", |network| network["spec"]["allow"] = json!({"ips": true}))?;
    is_refused(test, &class, json!({"ips": ["10.20.0.300"]}), &["ips[0]", "10.20.0.300", "write for example"])
}

pub fn what_the_network_does_not_allow_is_refused(test: &Test<'_>) -> Result<()> {
    let class = test.macvlan("a")?;
    let words = ["claim config[0].ips", &class, "have the admin set allow.ips"];
    is_refused(test, &class, json!({"ips": ["10.20.0.3"]}), &words)
}

pub fn a_parameter_that_the_network_does_not_have_is_refused(test: &Test<'_>) -> Result<()> {
    let class = test.network("a", |network| {
        network["spec"]["allow"] = json!({"parameters": {"mtu": {"type": "integer", "default": 1400}}});
        network["spec"]["cni"]["plugins"][0]["mtu"] = json!("${parameters.mtu}");
    })?;
    is_refused(
        test,
        &class,
        json!({"parameters": {"mut": 1200}}),
        &["claim config[0].parameters.mut", "it has: mtu"],
    )
}

pub fn a_value_that_is_not_what_its_schema_says_is_refused_with_its_place(test: &Test<'_>) -> Result<()> {
    let class = test.network("a", |network| {
        network["spec"]["allow"] = json!({"parameters": {"search": {"type": "array", "maxItems": 2,
            "items": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 20}, "default": ["lab"]}}});
        network["spec"]["cni"]["plugins"][0]["dns"] = json!({"search": "${parameters.search}"});
    })?;
    let words = ["claim config[0].parameters.search[1]", r"lab\n", "does not match ^[a-z]+$"];
    is_refused(test, &class, json!({"parameters": {"search": ["lab", "lab\n"]}}), &words)
}

pub fn a_network_that_cannot_work_says_why(test: &Test<'_>) -> Result<()> {
    let name = test.network("a", |network| network["spec"]["cni"]["plugins"][0]["master"] = json!("eth1"))?;
    eventually(10, "the Network is not accepted", || {
        let network = test.cluster.get(&["network", &name])?;
        let condition = &network["status"]["conditions"][0];
        let message = condition["message"].as_str().unwrap_or_default();
        ensure!(condition["type"] == "Accepted" && condition["status"] == "False", "{condition}");
        ensure!(
            message.contains("spec.cni.plugins[0].master") && message.contains("${uplink.ifName}"),
            "{condition}"
        );
        Ok(())
    })?;
    test.pod("p", &name)?;
    test.is_unschedulable("p")
}

pub fn a_network_is_told_all_faults_of_its_conflist_at_once(test: &Test<'_>) -> Result<()> {
    let name = test.network("a", |network| {
        let plugin = &mut network["spec"]["cni"]["plugins"][0];
        plugin["mode"] = json!("bridged");
        plugin["mtu"] = json!("1400");
        plugin["ipam"]["ranges"][0][0]["gateway"] = json!("none");
    })?;
    eventually(10, "the Network is not accepted", || {
        let network = test.cluster.get(&["network", &name])?;
        let condition = &network["status"]["conditions"][0];
        let message = condition["message"].as_str().unwrap_or_default();
        ensure!(condition["reason"] == "Invalid", "{condition}");
        for place in ["mode: ", "mtu: ", "ipam.ranges[0][0].gateway: "] {
            ensure!(
                message.contains(&format!("spec.cni.plugins[0].{place}")),
                "{place} is not in {condition}"
            );
        }
        Ok(())
    })
}

pub fn a_value_that_the_plugin_would_refuse_is_named_with_its_place(test: &Test<'_>) -> Result<()> {
    let class = test.network("a", |network| {
        let plugin = &mut network["spec"]["cni"]["plugins"][0];
        plugin["bcqueuelen"] = json!("${parameters.queue}");
        network["spec"]["allow"] = json!({"parameters": {"queue": {"type": "integer"}}});
    })?;
    eventually(10, "the Network is accepted with a warning", || {
        let network = test.cluster.get(&["network", &class])?;
        let condition = &network["status"]["conditions"][0];
        ensure!(
            condition["status"] == "True" && condition["reason"] == "AcceptedWithWarnings",
            "{condition}"
        );
        Ok(())
    })?;
    let words = [&class, "spec.cni.plugins[0].bcqueuelen", "-1 is out of range"];
    is_refused(test, &class, json!({"parameters": {"queue": -1}}), &words)
}

pub fn a_network_that_is_gone_after_scheduling_is_named(test: &Test<'_>) -> Result<()> {
    let name = test.macvlan("a")?;
    test.cluster.service("pause", "kubelet")?;
    test.pod("p", &name)?;
    eventually(20, "the pod is scheduled", || {
        ensure!(test.get("pod", "p")?["spec"]["nodeName"] == "node0", "it is not");
        Ok(())
    })?;
    test.cluster.kubectl(&["delete", "network", &name])?;
    test.cluster.service("resume", "kubelet")?;
    told(test, &[&name, "does not exist", "kubectl get network"])?;
    // And it starts at the kubelet's next try when the Network is there again.
    test.create([network(&name, "macvlan", "eth1", &test.subnet(0))])?;
    test.wake("p")?;
    test.runs_with("p", &["net1"])
}

pub fn a_claim_of_two_pods_is_refused_with_the_way_out(test: &Test<'_>) -> Result<()> {
    let class = test.macvlan("a")?;
    test.create([claim("shared", &class), pod("one", &["shared"])])?;
    test.runs_with("one", &["net1"])?;
    test.create([pod("two", &["shared"])])?;
    test.event("two", &["shared", "one", "resourceClaimTemplateName"])?;
    test.has_not_started("two")?;
    test.runs_with("one", &["net1"])
}

pub fn a_claim_of_its_own_does_not_let_a_pod_use_anothers_too(test: &Test<'_>) -> Result<()> {
    let class = test.macvlan("a")?;
    test.create([claim("shared", &class), pod("one", &["shared"])])?;
    test.runs_with("one", &["net1"])?;
    test.create([claim("own", &class), pod("two", &["own", "shared"])])?;
    test.event("two", &["shared", "one", "resourceClaimTemplateName"])?;
    test.has_not_started("two")
}

pub fn a_pod_on_the_nodes_network_is_refused_with_the_reason(test: &Test<'_>) -> Result<()> {
    let name = test.name("a");
    test.create([network(&name, "macvlan", "eth1", &test.subnet(0)), class_of_network(&name, &name)])?;
    let mut pod = pod("p", &["p"]);
    pod["spec"]["hostNetwork"] = json!(true);
    test.create([claim("p", &name), pod])?;
    test.event("p", &["hostNetwork", "remove hostNetwork or the claim"])?;
    test.claim_is_not_ready("p", &["hostNetwork: true", "remove hostNetwork or the claim"])?;
    test.has_not_started("p")
}

/// An admin writes an allocation that the scheduler would not make: `device` of `pool` for a pod on node0. The pod does not
/// start, and `words` are told why.
fn allocated_by_hand(test: &Test<'_>, pool: &str, device: &str, words: &[&str]) -> Result<()> {
    let any = test.name("any");
    let mut pod = pod("p", &["p"]);
    pod["spec"]["nodeName"] = json!("node0");
    test.create([class(&any, "true"), claim("p", &any), pod])?;
    let uid = test.get("pod", "p")?["metadata"]["uid"].clone();
    let node = json!({"key": "metadata.name", "operator": "In", "values": [pool]});
    let status = json!({"status": {
        "allocation": {
            "devices": {"results": [{"request": "net", "driver": "netclaim.dev", "pool": pool, "device": device}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [node]}]},
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}],
    }});
    test.kubectl(&[
        "patch",
        "resourceclaim",
        "p",
        "--subresource=status",
        "--type=merge",
        "-p",
        &status.to_string(),
    ])?;
    // The kubelet may have asked before the claim was the pod's.
    test.wake("p")?;
    test.event("p", &[&["FailedPrepareDynamicResources"], words].concat())?;
    test.has_not_started("p")
}

pub fn a_claim_that_is_allocated_for_another_node_is_refused(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth94")?;
    is_published(test, "nic-eth94", |_| true)?;
    let words = ["status.allocation.nodeSelector does not select node node0", "have the scheduler choose"];
    allocated_by_hand(test, "node1", "nic-eth94", &words)
}

pub fn a_device_that_a_policy_leaves_out_is_refused(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth95")?;
    let policy = json!({
        "apiVersion": "netclaim.dev/v1alpha1", "kind": "UplinkPolicy", "metadata": {"name": test.name("shared")},
        "spec": {"links": {"names": ["eth95"]}, "modes": ["macvlan"]},
    });
    test.create([policy])?;
    is_published(test, "macvlan-eth95", |_| true)?;
    is_not_published(test, "nic-eth95")?;
    allocated_by_hand(
        test,
        "node0",
        "nic-eth95",
        &["node node0 does not offer device \"nic-eth95\"", "UplinkPolicies"],
    )
}
