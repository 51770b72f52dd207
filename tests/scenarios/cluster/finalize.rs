//! ClaimNetworks with plugins that run after all attachments of a pod.

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim, list, pod, text};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// Passes its configuration on to `tuning`, unless `on_add` ends it. `$config` is what it is given.
fn before_tuning(test: &Test<'_>, on_add: &str) -> Result<String> {
    let script = format!(
        "config=$(/opt/cni/bin/busybox cat)\nif [ \"$CNI_COMMAND\" = ADD ]; then\n{on_add}\nfi\n\
         printf %s \"$config\" | /opt/cni/bin/tuning"
    );
    test.plugin("plugin", &script)
}

/// Fails unless it is given the interfaces of both claims.
const LOOK: &str = r#"case $config in *'"name":"net1"'*'"name":"net2"'*) ;; *)
    echo '{"cniVersion": "1.1.0", "code": 101, "msg": "an interface is missing"}'; exit 1;;
esac"#;

const FAIL: &str = r#"echo '{"cniVersion": "1.1.0", "code": 101, "msg": "the firewall says no"}'; exit 1"#;

/// Has this plugin set a sysctl of each attachment.
fn finalize(network: &mut Value, plugin: &str) {
    let tuning = json!({"type": plugin, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}});
    network["spec"]["finalize"] = json!({"cniVersion": "1.1.0", "plugins": [tuning]});
}

fn is_set(test: &Test<'_>, pod: &str, interface: &str) -> Result<()> {
    let file = format!("/proc/sys/net/ipv4/conf/{interface}/arp_filter");
    let value = test.kubectl(&["exec", pod, "--", "cat", &file])?;
    ensure!(value.trim() == "1", "{file} has {value}");
    Ok(())
}

pub fn finalizers_of_two_claims_run_after_both_attachments(test: &Test<'_>) -> Result<()> {
    let looks = before_tuning(test, LOOK)?;
    let a = test.network("a", |network| finalize(network, &looks))?;
    let b = test.network("b", |network| finalize(network, "tuning"))?;
    test.create([claim("a", &a), claim("b", &b), pod("p", &["a", "b"])])?;
    test.runs_with("p", &["net1", "net2"])?;
    is_set(test, "p", "net1")?;
    is_set(test, "p", "net2")?;
    for (claim, interface) in [("a", "net1"), ("b", "net2")] {
        let (inside, devices) = (test.interface("p", interface)?, test.claim_is_ready(claim)?);
        ensure!(devices.len() == 1, "finalizers are not devices: {devices:?}");
        ensure!(devices[0]["networkData"]["ips"] == json!(inside.ips), "{inside:?} is not in {devices:?}");
    }
    // A new sandbox gets all of it again.
    test.replace_sandbox("p")?;
    test.began_with("p", &["net1", "net2"])?;
    is_set(test, "p", "net1")?;
    is_set(test, "p", "net2")?;
    test.delete_pod("p")?;
    test.node_has_leases(0)
}

pub fn a_finalizer_that_fails_keeps_the_container_waiting_until_it_succeeds(test: &Test<'_>) -> Result<()> {
    let fails = before_tuning(test, FAIL)?;
    let network = test.network("a", |network| finalize(network, &fails))?;
    test.pod("p", &network)?;
    test.claim_is_not_ready("p", &["the firewall says no"])?;
    let claim = test.get("resourceclaim", "p")?;
    let reasons: Vec<String> = list(&claim["status"]["devices"])
        .flat_map(|device| list(&device["conditions"]))
        .map(|condition| text(&condition["reason"]))
        .collect();
    ensure!(reasons == ["FinalizeFailed"], "{reasons:?}");
    test.event("p", &[network.as_str(), "NetworkAttachFailed", "the firewall says no"])?;
    test.does_not_start("p")?;
    // The attachment stays.
    let (sandbox, node) = (test.sandbox("p")?, test.cluster.node());
    let made =
        || anyhow::Ok(node.interfaces_of(&sandbox.netns)?.remove("net1").map(|net1| (net1.mac, net1.ips)));
    let before = made()?;
    ensure!(before.is_some(), "net1 is gone");
    before_tuning(test, ":")?;
    test.runs_with("p", &["net1"])?;
    test.claim_is_ready("p")?;
    is_set(test, "p", "net1")?;
    ensure!(made()? == before, "it was attached again");
    test.delete_pod("p")?;
    let uid = text(&claim["metadata"]["uid"]);
    eventually(60, "nothing is journalled", || {
        let journal = node.journal()?;
        ensure!(!journal.iter().any(|file| file.contains(&uid)), "{journal:?}");
        Ok(())
    })
}
