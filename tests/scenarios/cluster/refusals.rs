//! What netclaim refuses, and the messages that the user reads in the pod's events and in the claim.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{attachment, claim, class, container, network, pod, policy, text};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

/// Makes sure that a pod whose claim has an `AttachmentConfig` with these fields is refused because of
/// `words`.
fn is_refused(test: &Test<'_>, class: &str, fields: Value, words: &[&str]) -> Result<()> {
    test.pod_with("p", class, |claim, _| claim["spec"]["devices"]["config"] = json!([attachment(fields)]))?;
    reports(test, words)
}

/// Makes sure that the pod `p` does not start, and that its events and its claim give `words` as the reason.
fn reports(test: &Test<'_>, words: &[&str]) -> Result<()> {
    test.event("p", &[&["FailedPrepareDynamicResources"], words].concat())?;
    test.claim_is_not_ready("p", words)?;
    test.does_not_start("p")
}

pub fn an_unknown_field_is_refused_by_name(test: &Test<'_>) -> Result<()> {
    let class = test.macvlan("a")?;
    is_refused(test, &class, json!({"ifNmae": "data0"}), &["claim config[0].opaque.parameters", "ifNmae"])
}

pub fn an_invalid_address_is_refused_with_an_example(test: &Test<'_>) -> Result<()> {
    let class = test.network("a", |network| network["spec"]["allow"] = json!({"ips": {}}))?;
    is_refused(test, &class, json!({"ips": ["10.20.0.300"]}), &["ips[0]", "10.20.0.300", "write for example"])
}

pub fn addresses_that_the_network_does_not_allow_are_refused(test: &Test<'_>) -> Result<()> {
    let class = test.macvlan("a")?;
    let words = ["claim config[0].ips", &class, "have the admin set allow.ips"];
    is_refused(test, &class, json!({"ips": ["10.20.0.3"]}), &words)
}

pub fn an_unknown_parameter_is_refused_with_the_known_ones(test: &Test<'_>) -> Result<()> {
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

pub fn a_value_that_breaks_its_schema_is_refused_with_its_path(test: &Test<'_>) -> Result<()> {
    let class = test.network("a", |network| {
        network["spec"]["allow"] = json!({"parameters": {"search": {"type": "array", "maxItems": 2,
            "items": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 20}, "default": ["lab"]}}});
        network["spec"]["cni"]["plugins"][0]["dns"] = json!({"search": "${parameters.search}"});
    })?;
    let words = ["claim config[0].parameters.search[1]", r"lab\n", "does not match ^[a-z]+$"];
    is_refused(test, &class, json!({"parameters": {"search": ["lab", "lab\n"]}}), &words)
}

pub fn an_invalid_network_reports_why(test: &Test<'_>) -> Result<()> {
    let name = test.network("a", |network| network["spec"]["cni"]["plugins"][0]["master"] = json!("eth1"))?;
    test.condition(30, ["claimnetwork", &name], "Accepted", |condition| {
        let message = text(&condition["message"]);
        condition["status"] == "False"
            && ["spec.cni.plugins[0].master", "${uplink.name}"].iter().all(|word| message.contains(word))
    })?;
    test.pod("p", &name)?;
    test.is_unschedulable("p")
}

pub fn a_network_with_addresses_of_whereabouts_is_not_accepted(test: &Test<'_>) -> Result<()> {
    let with_whereabouts = |network: &mut Value| {
        network["spec"]["cni"]["plugins"][0]["ipam"] =
            json!({"type": "whereabouts", "range": "10.77.0.0/24"});
    };
    let name = test.network("a", with_whereabouts)?;
    test.condition(30, ["claimnetworks.netclaim.dev", &name], "Accepted", |condition| {
        let message = text(&condition["message"]);
        let words = ["spec.cni.plugins[0].ipam.type", "whereabouts", "spec.addresses or an AddressPool"];
        condition["status"] == "False" && words.iter().all(|word| message.contains(word))
    })?;
    // The user who writes it gets the warning at once.
    let mut object = network(&test.name("b"), "macvlan", "eth1", "10.77.0.0/24");
    with_whereabouts(&mut object);
    let warned = ["create", "--dry-run=server", "--warnings-as-errors", "-f", "-"];
    let warned =
        test.cluster.kubectl_with(&warned, &object.to_string()).err().context("there is no warning")?;
    ensure!(format!("{warned:#}").contains("whereabouts loses addresses under netclaim"), "{warned:#}");
    Ok(())
}

pub fn a_network_is_refused_at_once_for_what_its_object_shows(test: &Test<'_>) -> Result<()> {
    let accepted = test.macvlan("a")?;
    let with = |change: &dyn Fn(&mut Value)| {
        let mut object = network(&test.name("b"), "macvlan", "eth1", "10.77.0.0/24");
        change(&mut object);
        test.create([object]).err().map(|error| format!("{error:#}"))
    };
    let long = "a".repeat(59);
    for (refused, why) in [
        (with(&|network| network["metadata"]["name"] = json!(long)), "at most 58 bytes"),
        (with(&|network| network["metadata"]["name"] = json!("a.b")), "must be a DNS label"),
        (
            with(&|network| {
                network["spec"]["scope"] = json!("Cluster");
                network["spec"]["segmentation"] = json!({"ids": ["100-199"]});
            }),
            "use scope Node",
        ),
        (
            with(&|network| {
                network["spec"]["scope"] = json!("Cluster");
                network["spec"]["addresses"] = json!({"ranges": [{"subnet": "10.77.0.0/24"}]});
            }),
            "an IPAM that all nodes share",
        ),
        (with(&|network| network["spec"]["uplink"] = json!({})), "selects every link"),
        (
            with(&|network| network["spec"]["uplink"] = json!({"attributes": {"mtu": {"int": 9000}}})),
            "what the driver itself says",
        ),
        (
            with(&|network| network["spec"]["attributes"] = json!({"speed": {"int": 1}})),
            "what the driver itself says",
        ),
        (with(&|network| network["spec"]["capacity"] = json!({"interfaces": 0})), "at least 1"),
        (with(&|network| network["spec"]["capacity"] = json!({"addresses": "0"})), "at least 1"),
        (with(&|network| network["spec"]["capacity"] = json!({"bandwidth": "-1G"})), "an amount such as 10G"),
        (
            with(&|network| network["spec"]["capacity"] = json!({"bandwidth": "10 Gbit"})),
            "an amount such as 10G",
        ),
        (
            with(&|network| {
                network["spec"]["addresses"] = json!({"ranges": [{"subnet": "10.77.0.0/24"}]});
                network["spec"]["capacity"] = json!({"addresses": 254});
            }),
            "is counted from spec.addresses",
        ),
        (
            with(&|network| network["spec"]["addresses"] = json!({"ranges": [{"subnet": "lab"}]})),
            "must be of type cidr",
        ),
    ] {
        let refused = refused.with_context(|| format!("{why}: it was accepted"))?;
        ensure!(refused.contains(why), "{refused}");
    }
    let scope = r#"{"spec": {"scope": "Cluster"}}"#;
    let changed = test.cluster.kubectl(&["patch", "claimnetwork", &accepted, "--type=merge", "-p", scope]);
    let refused = format!("{:#}", changed.err().context("the scope has changed")?);
    ensure!(refused.contains("spec.scope") && refused.contains("create it again"), "{refused}");
    Ok(())
}

pub fn a_network_reports_all_faults_of_its_conflist_at_once(test: &Test<'_>) -> Result<()> {
    let name = test.network("a", |network| {
        let plugin = &mut network["spec"]["cni"]["plugins"][0];
        plugin["mode"] = json!("bridged");
        plugin["mtu"] = json!("1400");
        plugin["ipam"]["ranges"][0][0]["gateway"] = json!("none");
    })?;
    test.condition(30, ["claimnetwork", &name], "Accepted", |condition| {
        let message = text(&condition["message"]);
        condition["reason"] == "Invalid"
            && ["mode: ", "mtu: ", "ipam.ranges[0][0].gateway: "]
                .iter()
                .all(|field| message.contains(&format!("spec.cni.plugins[0].{field}")))
    })
}

pub fn a_value_that_the_plugin_would_refuse_is_refused_with_its_path(test: &Test<'_>) -> Result<()> {
    let class = test.network("a", |network| {
        let plugin = &mut network["spec"]["cni"]["plugins"][0];
        plugin["bcqueuelen"] = json!("${parameters.queue}");
        network["spec"]["allow"] = json!({"parameters": {"queue": {"type": "integer"}}});
    })?;
    test.condition(30, ["claimnetwork", &class], "Accepted", |condition| {
        condition["status"] == "True" && condition["reason"] == "AcceptedWithWarnings"
    })?;
    let words = [&class, "spec.cni.plugins[0].bcqueuelen", "-1 is out of range"];
    is_refused(test, &class, json!({"parameters": {"queue": -1}}), &words)
}

pub fn a_network_deleted_after_scheduling_is_named(test: &Test<'_>) -> Result<()> {
    let name = test.macvlan("a")?;
    test.cluster.service("pause", "kubelet")?;
    test.pod("p", &name)?;
    eventually(20, "the pod is scheduled", || {
        ensure!(test.get("pod", "p")?["spec"]["nodeName"] == "node0", "it is not");
        Ok(())
    })?;
    test.cluster.kubectl(&["delete", "claimnetwork", &name])?;
    test.cluster.service("resume", "kubelet")?;
    reports(test, &[&name, "does not exist", "kubectl get claimnetworks"])?;
    // The kubelet's retry succeeds when the ClaimNetwork exists again.
    test.create([network(&name, "macvlan", "eth1", &test.subnet(0))])?;
    test.wake("p")?;
    test.runs_with("p", &["net1"])
}

pub fn a_claim_of_two_pods_is_refused_with_the_fix(test: &Test<'_>) -> Result<()> {
    let class = test.macvlan("a")?;
    test.create([claim("shared", &class), pod("one", &["shared"])])?;
    test.runs_with("one", &["net1"])?;
    let mut two = pod("two", &["shared"]);
    let named = two["spec"]["containers"][0].take();
    two["spec"]["containers"] = json!([container("unnamed"), named]);
    test.create([two])?;
    test.event("two", &["shared", "one", "resourceClaimTemplateName"])?;
    test.does_not_start("two")?;
    test.runs_with("one", &["net1"])
}

pub fn a_pod_with_its_own_claim_cannot_use_another_pods_claim(test: &Test<'_>) -> Result<()> {
    let class = test.macvlan("a")?;
    test.create([claim("shared", &class), pod("one", &["shared"])])?;
    test.runs_with("one", &["net1"])?;
    test.create([claim("own", &class), pod("two", &["own", "shared"])])?;
    test.event("two", &["shared", "one", "resourceClaimTemplateName"])?;
    test.does_not_start("two")
}

pub fn a_pod_on_the_host_network_is_refused_with_the_fix(test: &Test<'_>) -> Result<()> {
    let class = test.macvlan("a")?;
    test.pod_with("p", &class, |_, pod| pod["spec"]["hostNetwork"] = json!(true))?;
    test.event("p", &["hostNetwork", "remove hostNetwork or the claim"])?;
    test.claim_is_not_ready("p", &["hostNetwork: true", "remove hostNetwork or the claim"])?;
    test.does_not_start("p")
}

/// Makes sure that an allocation by an admin, of `device` in `pool` for a pod on node0, is refused because of
/// `words`.
fn manual_allocation_is_refused(test: &Test<'_>, pool: &str, device: &str, words: &[&str]) -> Result<()> {
    let any = test.name("any");
    test.create([class(&any, "true")])?;
    test.pod_with("p", &any, |_, pod| pod["spec"]["nodeName"] = json!("node0"))?;
    let uid = test.get("pod", "p")?["metadata"]["uid"].clone();
    let node = json!({"key": "metadata.name", "operator": "In", "values": [pool]});
    let status = json!({"status": {
        "allocation": {
            "devices": {"results": [{"request": "net", "driver": "netclaim.dev", "pool": pool, "device": device}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [node]}]},
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}],
    }});
    let patch = ["patch", "resourceclaim", "p", "--subresource=status", "--type=merge", "-p"];
    test.kubectl(&[patch.as_slice(), &[&status.to_string()]].concat())?;
    // The kubelet may have tried before the claim was reserved for the pod.
    test.wake("p")?;
    test.event("p", &[&["FailedPrepareDynamicResources"], words].concat())?;
    test.does_not_start("p")
}

pub fn a_device_that_a_policy_excludes_is_refused(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth95")?;
    let macvlan_only = json!({"links": {"names": ["eth95"]}, "modes": ["macvlan"]});
    test.create([policy(&test.name("shared"), macvlan_only)])?;
    test.is_published("macvlan-eth95", |_| true)?;
    test.is_not_published("nic-eth95")?;
    manual_allocation_is_refused(
        test,
        "node0",
        "nic-eth95",
        &["node node0 does not offer device \"nic-eth95\"", "UplinkPolicies"],
    )
}
