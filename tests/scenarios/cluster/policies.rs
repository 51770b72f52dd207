//! UplinkPolicies: which links are uplinks, and what the node keeps for itself.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{policy, text};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

pub fn a_policy_selects_uplinks_and_sets_their_attributes(test: &Test<'_>) -> Result<()> {
    let _nic = Plugged::new(test, "eth76")?;
    let _odd = Plugged::new(test, "odd76")?;
    test.is_published("nic-eth76", |_| true)?;
    ensure!(test.cluster.device("nic-odd76")?.is_none(), "a link with a name like this is a pod's end");
    let (never, always) = (test.name("never"), test.name("always"));
    test.create([
        policy(&never, json!({"links": {"names": ["eth76"]}, "publish": "Never"})),
        policy(&always, json!({
            "links": {"names": ["odd*"]}, "publish": "Always", "modes": ["macvlan"],
            "attributes": {"physicalNetwork": {"string": test.name("blue")}}, "capacity": {"bandwidth": "2G"}})),
    ])?;
    test.is_not_published("nic-eth76")?;
    test.is_published("macvlan-odd76", |device| {
        device["attributes"]["physicalNetwork"]["string"] == json!(test.name("blue"))
            && device["capacity"]["bandwidth"]["value"] == "2G"
    })?;
    ensure!(test.cluster.device("nic-odd76")?.is_none(), "the policy allows macvlan only");
    // A ClaimNetwork selects its uplink by the policy's attribute.
    let network = test.network("a", |network| {
        network["spec"]["uplink"] = json!({"attributes": {"physicalNetwork": {"string": test.name("blue")}}});
    })?;
    test.start_pod("p", &network)?;
    test.delete_pod("p")?;
    for policy in [&never, &always] {
        eventually(60, &format!("one link follows {policy}"), || {
            let status = test.cluster.get(&["uplinkpolicy", policy])?["status"].clone();
            ensure!(status["links"] == 1 && status["nodes"]["following"] == 1, "{status}");
            Ok(())
        })?;
    }
    test.cluster.kubectl(&["delete", "uplinkpolicy", &never, &always])?;
    test.is_published("nic-eth76", |_| true)?;
    test.is_not_published("macvlan-odd76")
}

/// Waits until the policy's acceptance has this status and all of `words` in its message.
fn policy_is(test: &Test<'_>, name: &str, status: &str, words: &[&str]) -> Result<()> {
    test.condition(60, ["uplinkpolicy", name], "Accepted", |condition| {
        let message = text(&condition["message"]);
        condition["status"] == status && words.iter().all(|word| message.contains(word))
    })
}

/// The API server refuses to create the object, and says why.
fn is_refused(test: &Test<'_>, object: Value, why: &str) -> Result<()> {
    let refused = format!("{:#}", test.create([object]).err().context("it was accepted")?);
    ensure!(refused.contains(why), "{refused}");
    Ok(())
}

pub fn an_invalid_policy_reports_why(test: &Test<'_>) -> Result<()> {
    let name = test.name("p");
    for (spec, why) in [
        (json!({"links": {}, "publish": "Always"}), "selects every link"),
        (json!({"links": {}, "attributes": {"mtu": {"int": 1500}}}), "what the driver itself says"),
        (json!({"links": {"minSpeed": "fast"}}), "must be a speed such as 25G"),
        (json!({"links": {}, "capacity": {"bandwidth": "10 Gbit"}}), "must be an amount of more than 0"),
        (json!({"links": {}, "publish": "Never", "nodeLinks": "Share"}), "nodeLinks: Share has no meaning"),
        (
            json!({"links": {}, "modes": ["nic"], "nodeLinks": "Share"}),
            "cannot be shared and given away whole",
        ),
    ] {
        is_refused(test, policy(&name, spec), why)?;
    }
    let pool = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressPool",
        "metadata": {"name": name}, "spec": {"ranges": []}});
    is_refused(test, pool, "spec.ranges")?;
    test.create([policy(&name, json!({"links": {}, "attributes": {"firmware": {"version": "7"}}}))])?;
    let words =
        ["spec.attributes.firmware: \"7\" is not a version", "does without the policy if there is none"];
    policy_is(test, &name, "False", &words)
}

pub fn a_policy_that_becomes_invalid_keeps_excluding_its_links(test: &Test<'_>) -> Result<()> {
    let (_link, _other) = (Plugged::new(test, "eth88")?, Plugged::new(test, "eth89")?);
    test.is_published("nic-eth88", |_| true)?;
    let (never, late) = (test.name("never"), test.name("late"));
    test.create([policy(&never, json!({"links": {"names": ["eth88"]}, "publish": "Never"}))])?;
    test.is_not_published("nic-eth88")?;
    let fault = json!({"firmware": {"version": "7"}});
    let patch = json!({"spec": {"attributes": fault}}).to_string();
    test.cluster.kubectl(&["patch", "uplinkpolicy", &never, "--type=merge", "-p", &patch])?;
    policy_is(test, &never, "False", &["follows the last good version"])?;
    // No agent has seen a valid version of this one.
    test.is_published("nic-eth89", |_| true)?;
    test.create([policy(
        &late,
        json!({"links": {"names": ["eth89"]}, "modes": ["nic"], "attributes": fault}),
    )])?;
    policy_is(test, &late, "False", &["publishes none of the links that it selects"])?;
    test.is_not_published("nic-eth89")?;
    ensure!(test.cluster.device("nic-eth88")?.is_none(), "a policy that became invalid published its link");
    test.cluster.kubectl(&["delete", "uplinkpolicy", &never, &late])?;
    test.is_published("nic-eth88", |_| true)?;
    test.is_published("nic-eth89", |_| true)
}

pub fn a_link_with_the_nodes_traffic_is_shared_by_name_and_whole_by_policy(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth86")?;
    test.is_published("nic-eth86", |_| true)?;
    test.cluster.on_node(&["ip", "address", "add", "10.86.0.1/24", "dev", "eth86"])?;
    test.is_not_published("nic-eth86")?;
    ensure!(test.cluster.device("macvlan-eth86")?.is_none(), "the link is published for sharing");
    let (network, none) = (
        test.network_on("eth86", "a", |_| {})?,
        test.network_on("eth86", "b", |network| {
            network["spec"]["cni"]["plugins"][0] = json!({"type": "host-device", "device": "${uplink.name}"});
        })?,
    );
    test.start_pod("p", &network)?;
    ensure!(
        test.cluster.device(&format!("net-{none}"))?.is_none(),
        "a ClaimNetwork that takes the whole link is published"
    );
    for words in [
        format!("ClaimNetwork {network} has pods share link eth86, which carries the node's own traffic"),
        format!("ClaimNetwork {none} does not get link eth86"),
    ] {
        eventually(60, "the Node has the event", || {
            let events = ["get", "events", "-n", "default", "--field-selector", "reason=UplinkOfTheNode"];
            let events = test.cluster.kubectl(&events)?;
            ensure!(events.contains(&words), "{events}");
            Ok(())
        })?;
    }
    test.delete_pod("p")?;
    // A route makes it a link of the node, too.
    test.cluster.on_node(&["ip", "address", "del", "10.86.0.1/24", "dev", "eth86"])?;
    let whole = format!("net-{none}");
    test.is_published(&whole, |_| true)?;
    test.cluster.on_node(&["ip", "route", "add", "10.87.0.0/16", "dev", "eth86"])?;
    test.is_not_published(&whole)?;
    let always = test.name("always");
    test.create([policy(&always, json!({"links": {"names": ["eth86"]}, "publish": "Always"}))])?;
    test.is_published(&whole, |_| true)?;
    ensure!(test.cluster.device("nic-eth86")?.is_none(), "a link with ClaimNetworks is offered beside them");
    test.cluster.kubectl(&["delete", "uplinkpolicy", &always])?;
    test.is_not_published(&whole)
}
