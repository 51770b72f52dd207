//! What the node's links and the admin's Networks become for a real scheduler. Links that scenarios plug in are each
//! scenario's its own.

use anyhow::{Context as _, Result, bail, ensure};
use netclaim_tests::objects::{attachment, claim, class, pod, request};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

/// The device of this name that the node publishes now.
fn device(test: &Test<'_>, name: &str) -> Result<Option<Value>> {
    Ok(test.cluster.devices_of_node()?.into_iter().find(|device| device["name"] == name))
}

/// Waits until the device is published as `fits` wants it.
pub fn is_published(test: &Test<'_>, name: &str, fits: impl Fn(&Value) -> bool) -> Result<()> {
    eventually(60, &format!("{name} is published as it should be"), || {
        let device = device(test, name)?.with_context(|| format!("there is no {name}"))?;
        ensure!(fits(&device), "{device}");
        Ok(())
    })
}

/// Waits until there is no such device.
pub fn is_not_published(test: &Test<'_>, name: &str) -> Result<()> {
    eventually(60, &format!("{name} is not published"), || {
        ensure!(device(test, name)?.is_none(), "it is");
        Ok(())
    })
}

fn policy(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "UplinkPolicy", "metadata": {"name": name}, "spec": spec})
}

/// A Network on `uplink` with its class; both are called what is returned.
fn network_on(test: &Test<'_>, uplink: &str, name: &str, change: impl FnOnce(&mut Value)) -> Result<String> {
    test.network(name, |network| {
        network["spec"]["uplink"] = json!({"interfaces": [uplink]});
        change(network);
    })
}

pub fn a_link_that_is_plugged_in_renamed_and_taken_away_is_followed(test: &Test<'_>) -> Result<()> {
    let link = Plugged::new(test, "eth71")?;
    is_published(test, "macvlan-eth71", |device| device["taints"].is_null())?;
    link.set(&["eth71", "mtu", "1400"])?;
    is_published(test, "nic-eth71", |device| device["attributes"]["mtu"]["int"] == 1400)?;
    link.set(&["far-eth71", "down"])?;
    is_published(test, "nic-eth71", |device| device["taints"][0]["key"] == "netclaim.dev/link-down")?;
    is_published(test, "macvlan-eth71", |device| device["attributes"]["linkState"]["string"] == "down")?;
    link.set(&["far-eth71", "up"])?;
    is_published(test, "nic-eth71", |device| device["taints"].is_null())?;
    link.set(&["eth71", "down"])?;
    link.set(&["eth71", "name", "eth72"])?;
    is_not_published(test, "nic-eth71")?;
    // It is down: who takes it whole sets it up, others cannot use it.
    is_published(test, "nic-eth72", |device| device["taints"].is_null())?;
    is_published(test, "macvlan-eth72", |device| device["taints"].is_array())?;
    drop(link);
    is_not_published(test, "nic-eth72")
}

pub fn a_pod_waits_while_the_link_of_its_network_is_down(test: &Test<'_>) -> Result<()> {
    let link = Plugged::new(test, "eth73")?;
    let network = network_on(test, "eth73", "a", |_| {})?;
    link.set(&["far-eth73", "down"])?;
    is_published(test, &format!("net-{network}"), |device| device["taints"].is_array())?;
    test.pod("p", &network)?;
    test.is_unschedulable("p")?;
    eventually(60, "the Network tells where it is not available", || {
        let conditions = test.cluster.get(&["network", &network])?["status"]["conditions"].take();
        let available = conditions.as_array().into_iter().flatten().find(|c| c["type"] == "Available");
        let available = available.context("it has no such condition")?;
        let message = available["message"].as_str().unwrap_or_default();
        ensure!(
            available["status"] == "False" && message.contains("netclaim.dev/link-down on node0"),
            "{available}"
        );
        Ok(())
    })?;
    link.set(&["far-eth73", "up"])?;
    test.runs_with("p", &["net1"])?;
    test.delete_pod("p")
}

pub fn a_nic_in_a_pod_stays_published_and_goes_on_excluding_others(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth74")?;
    let nic = test.name("nic");
    test.create([class(&nic, "device.attributes[\"netclaim.dev\"].ifName == \"eth74\" && device.attributes[\"netclaim.dev\"].mode == \"nic\"")])?;
    test.pod("first", &nic)?;
    test.runs_with("first", &["net1"])?;
    is_not_published(test, "macvlan-eth74")?;
    is_published(test, "nic-eth74", |device| device["taints"].is_null())?;
    test.pod("second", &nic)?;
    test.is_unschedulable("second")?;
    test.delete_pod("first")?;
    test.runs_with("second", &["net1"])?;
    test.delete_pod("second")
}

pub fn a_port_of_a_bridge_is_for_the_networks_of_that_bridge(test: &Test<'_>) -> Result<()> {
    let link = Plugged::new(test, "eth75")?;
    is_published(test, "macvlan-eth75", |_| true)?;
    let bridged = |bridge: &'static str| {
        move |network: &mut Value| {
            let plugin = &mut network["spec"]["cni"]["plugins"][0];
            *plugin = json!({"type": "bridge", "bridge": bridge, "ipam": plugin["ipam"]});
        }
    };
    let (ours, other) =
        (network_on(test, "eth75", "a", bridged("br75"))?, network_on(test, "eth75", "b", bridged("br76"))?);
    test.pod("p", &ours)?;
    test.is_unschedulable("p")?;
    test.cluster.on_node(&["ip", "link", "add", "br75", "type", "bridge"])?;
    link.set(&["eth75", "master", "br75"])?;
    test.runs_with("p", &["net1"])?;
    is_not_published(test, "macvlan-eth75")?;
    is_not_published(test, &format!("net-{other}"))?;
    test.delete_pod("p")?;
    link.set(&["eth75", "nomaster"])?;
    is_published(test, "macvlan-eth75", |_| true)?;
    test.cluster.on_node(&["ip", "link", "del", "br75"]).map(drop)
}

pub fn a_pod_waits_until_there_is_an_address_for_it(test: &Test<'_>) -> Result<()> {
    // Two addresses, of which somebody else has one.
    let network = test.network("a", |network| {
        network["spec"]["cni"]["plugins"][0]["ipam"]["ranges"] = json!([[
            {"subnet": test.subnet(0), "rangeStart": test.subnet(0).replace(".0/24", ".10"), "rangeEnd": test.subnet(0).replace(".0/24", ".11")}]]);
    })?;
    let name = format!("net-{network}");
    let addresses =
        |amount: &'static str| move |device: &Value| device["capacity"]["addresses"]["value"] == amount;
    is_published(test, &name, addresses("2"))?;
    let lease =
        format!("/var/lib/cni/networks/netclaim-{network}/{}", test.subnet(0).replace(".0/24", ".11"));
    let write = format!("mkdir -p $(dirname {lease}) && printf 'somebody\\r\\neth0' > {lease}");
    test.cluster.on_node(&["sh", "-c", &write])?;
    is_published(test, &name, addresses("1"))?;
    test.pod("first", &network)?;
    test.runs_with("first", &["net1"])?;
    test.pod("second", &network)?;
    test.is_unschedulable("second")?;
    test.cluster.on_node(&["rm", &lease])?;
    test.runs_with("second", &["net1"])
}

/// A chain that shows the segmentation id as the MTU of the pod's interface.
fn segmented(test: &Test<'_>, chosen_by: &str) -> Result<String> {
    test.network("a", |network| {
        network["spec"]["segmentation"] = json!({"ids": ["1400-1401"], "chosenBy": chosen_by});
        let macvlan = network["spec"]["cni"]["plugins"][0].take();
        network["spec"]["cni"]["plugins"] = json!([macvlan, {"type": "tuning", "mtu": "${segmentation.id}"}]);
    })
}

fn mtu(test: &Test<'_>, pod: &str) -> Result<u32> {
    let path = "/sys/class/net/net1/mtu";
    Ok(test.kubectl(&["exec", pod, "--", "cat", path])?.trim().parse()?)
}

pub fn segmentation_ids_are_handed_out_once_by_the_node(test: &Test<'_>) -> Result<()> {
    let network = segmented(test, "Node")?;
    for (pod, id) in [("first", 1400), ("second", 1401)] {
        test.pod(pod, &network)?;
        test.runs_with(pod, &["net1"])?;
        ensure!(mtu(test, pod)? == id, "{pod} has another id");
    }
    test.pod("third", &network)?;
    test.is_unschedulable("third")?;
    test.delete_pod("first")?;
    test.runs_with("third", &["net1"])?;
    ensure!(mtu(test, "third")? == 1400, "the id that was given back is free");
    Ok(())
}

pub fn a_claim_gets_the_segmentation_id_that_it_chooses(test: &Test<'_>) -> Result<()> {
    let network = segmented(test, "Claim")?;
    let choose = |name: &str, id: &str| {
        let mut claim = claim(name, &network);
        claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = json!({"requests": {id: "1"}});
        test.create([claim, pod(name, &[name])])
    };
    choose("first", "segment1401")?;
    test.runs_with("first", &["net1"])?;
    ensure!(mtu(test, "first")? == 1401, "it has another id");
    choose("second", "segment1401")?;
    test.is_unschedulable("second")?;
    choose("third", "segment1400")?;
    test.runs_with("third", &["net1"])?;
    test.pod("fourth", &network)?;
    test.event("fourth", &["wants the claim to choose one segmentation id", "segment1400: 1"])?;
    test.delete_pod("first")?;
    test.runs_with("second", &["net1"])
}

pub fn a_policy_says_which_links_are_uplinks_and_what_they_are(test: &Test<'_>) -> Result<()> {
    let _nic = Plugged::new(test, "eth76")?;
    let _odd = Plugged::new(test, "odd76")?;
    is_published(test, "nic-eth76", |_| true)?;
    ensure!(device(test, "nic-odd76")?.is_none(), "it is a pod's end by its name");
    let (never, always) = (test.name("never"), test.name("always"));
    test.create([
        policy(&never, json!({"links": {"names": ["eth76"]}, "publish": "Never"})),
        policy(&always, json!({
            "links": {"names": ["odd*"]}, "publish": "Always", "modes": ["macvlan"],
            "attributes": {"physicalNetwork": {"string": test.name("blue")}}, "capacity": {"bandwidth": "2G"}})),
    ])?;
    is_not_published(test, "nic-eth76")?;
    is_published(test, "macvlan-odd76", |device| {
        device["attributes"]["physicalNetwork"]["string"] == json!(test.name("blue"))
            && device["capacity"]["bandwidth"]["value"] == "2G"
    })?;
    ensure!(device(test, "nic-odd76")?.is_none(), "the policy allows macvlan only");
    // A Network finds its uplink by what the policy says.
    let network = test.network("a", |network| {
        network["spec"]["uplink"] = json!({"attributes": {"physicalNetwork": {"string": test.name("blue")}}});
    })?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    test.delete_pod("p")?;
    test.cluster.kubectl(&["delete", "uplinkpolicy", &never, &always])?;
    is_published(test, "nic-eth76", |_| true)?;
    is_not_published(test, "macvlan-odd76")
}

/// Waits until the policy's condition has this status and all of `words`.
fn policy_is(test: &Test<'_>, name: &str, status: &str, words: &[&str]) -> Result<()> {
    eventually(60, &format!("the policy is accepted: {status}"), || {
        let policy = test.cluster.get(&["uplinkpolicy", name])?;
        let condition = &policy["status"]["conditions"][0];
        let message = condition["message"].as_str().unwrap_or_default();
        let current = condition["observedGeneration"] == policy["metadata"]["generation"];
        let says_so = current && condition["status"] == status && words.iter().all(|w| message.contains(w));
        ensure!(says_so, "{condition}");
        Ok(())
    })
}

pub fn a_policy_that_cannot_work_says_why(test: &Test<'_>) -> Result<()> {
    let name = test.name("p");
    for (spec, why) in [
        (json!({"links": {}, "publish": "Always"}), "selects every link"),
        (json!({"links": {}, "attributes": {"mtu": {"int": 1500}}}), "what the driver itself says"),
    ] {
        let refused = format!("{:#}", test.create([policy(&name, spec)]).err().context("it was accepted")?);
        ensure!(refused.contains(why), "{refused}");
    }
    test.create([policy(&name, json!({"links": {}, "attributes": {"firmware": {"version": "7"}}}))])?;
    let words = ["spec.attributes.firmware: \"7\" is no version", "does without the policy if there is none"];
    policy_is(test, &name, "False", &words)
}

pub fn a_policy_that_becomes_invalid_goes_on_withholding_what_it_withheld(test: &Test<'_>) -> Result<()> {
    let (_link, _other) = (Plugged::new(test, "eth88")?, Plugged::new(test, "eth89")?);
    is_published(test, "nic-eth88", |_| true)?;
    let (never, late) = (test.name("never"), test.name("late"));
    test.create([policy(&never, json!({"links": {"names": ["eth88"]}, "publish": "Never"}))])?;
    is_not_published(test, "nic-eth88")?;
    let fault = json!({"firmware": {"version": "7"}});
    let patch = json!({"spec": {"attributes": fault}}).to_string();
    test.cluster.kubectl(&["patch", "uplinkpolicy", &never, "--type=merge", "-p", &patch])?;
    policy_is(test, &never, "False", &["follows the last good version"])?;
    // One that no agent has ever seen good.
    is_published(test, "nic-eth89", |_| true)?;
    test.create([policy(
        &late,
        json!({"links": {"names": ["eth89"]}, "modes": ["nic"], "attributes": fault}),
    )])?;
    policy_is(test, &late, "False", &["publishes none of the links that it selects"])?;
    is_not_published(test, "nic-eth89")?;
    ensure!(device(test, "nic-eth88")?.is_none(), "a policy that became invalid published its link");
    test.cluster.kubectl(&["delete", "uplinkpolicy", &never, &late])?;
    is_published(test, "nic-eth88", |_| true)?;
    is_published(test, "nic-eth89", |_| true)
}

pub fn a_link_of_the_nodes_is_for_networks_that_name_it_and_whole_if_a_policy_says_so(
    test: &Test<'_>,
) -> Result<()> {
    let _link = Plugged::new(test, "eth86")?;
    is_published(test, "nic-eth86", |_| true)?;
    test.cluster.on_node(&["ip", "address", "add", "10.86.0.1/24", "dev", "eth86"])?;
    is_not_published(test, "nic-eth86")?;
    ensure!(device(test, "macvlan-eth86")?.is_none(), "the link is offered to share");
    let (network, none) = (
        network_on(test, "eth86", "a", |_| {})?,
        network_on(test, "eth86", "b", |network| {
            network["spec"]["cni"]["plugins"][0] =
                json!({"type": "host-device", "device": "${uplink.ifName}"});
        })?,
    );
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    ensure!(device(test, &format!("net-{none}"))?.is_none(), "a Network takes the link whole");
    for words in [
        format!("Network {network} has pods share link eth86, which carries the node's own traffic"),
        format!("Network {none} does not get link eth86"),
    ] {
        eventually(60, "the Node has an event that says so", || {
            let events = ["get", "events", "-n", "default", "--field-selector", "reason=UplinkOfTheNode"];
            let events = test.cluster.kubectl(&events)?;
            ensure!(events.contains(&words), "{events}");
            Ok(())
        })?;
    }
    test.delete_pod("p")?;
    // By a route, too.
    test.cluster.on_node(&["ip", "address", "del", "10.86.0.1/24", "dev", "eth86"])?;
    is_published(test, "nic-eth86", |_| true)?;
    test.cluster.on_node(&["ip", "route", "add", "10.87.0.0/16", "dev", "eth86"])?;
    is_not_published(test, "nic-eth86")?;
    let always = test.name("always");
    test.create([policy(&always, json!({"links": {"names": ["eth86"]}, "publish": "Always"}))])?;
    is_published(test, "nic-eth86", |_| true)?;
    is_published(test, &format!("net-{none}"), |_| true)?;
    test.cluster.kubectl(&["delete", "uplinkpolicy", &always])?;
    is_not_published(test, "nic-eth86")
}

pub fn pods_share_the_only_link_of_a_node(test: &Test<'_>) -> Result<()> {
    let network = network_on(test, "eth0", "a", |_| {})?;
    ensure!(device(test, "macvlan-eth0")?.is_none(), "the link is offered by itself");
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    test.delete_pod("p")
}

pub fn a_link_that_another_program_uses_is_not_given_away_whole(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth87")?;
    is_published(test, "nic-eth87", |device| device["taints"].is_null())?;
    let child = ["ip", "link", "add", "multus87", "link", "eth87", "type", "macvlan", "mode", "bridge"];
    test.cluster.on_node(&child)?;
    let in_use = |device: &Value| device["taints"][0]["key"] == "netclaim.dev/link-in-use";
    is_published(test, "nic-eth87", in_use)?;
    // Where the kernel has no ipvlan there is no such device.
    if device(test, "ipvlan-eth87")?.is_some() {
        is_published(test, "ipvlan-eth87", in_use)?;
    }
    is_published(test, "macvlan-eth87", |device| device["taints"].is_null())?;
    // As in a pod of Multus: the node does not see it any more.
    test.cluster.on_node(&["ip", "netns", "add", "pod87"])?;
    test.cluster.on_node(&["ip", "link", "set", "multus87", "netns", "pod87"])?;
    is_published(test, "nic-eth87", |device| device["taints"].is_null())?;
    test.cluster.on_node(&["ip", "-n", "pod87", "link", "set", "multus87", "up"])?;
    is_published(test, "nic-eth87", in_use)?;
    is_published(test, "macvlan-eth87", |device| device["taints"].is_null())?;
    test.cluster.on_node(&["ip", "netns", "del", "pod87"])?;
    is_published(test, "nic-eth87", |device| device["taints"].is_null())
}

pub fn what_a_provider_says_of_links_brings_two_of_them_together(test: &Test<'_>) -> Result<()> {
    let _links = [Plugged::new(test, "eth77")?, Plugged::new(test, "eth78")?, Plugged::new(test, "eth79")?];
    for (link, switch) in [("eth77", "tor-1"), ("eth78", "tor-2"), ("eth79", "tor-1")] {
        let text = json!({"attributes": {"switch": {"string": switch}}});
        let file = format!("/run/netclaim/links.d/{link}.json");
        let write = format!("echo '{text}' > {file}.new && mv {file}.new {file}");
        test.cluster.on_node(&["sh", "-c", &write])?;
        is_published(test, &format!("nic-{link}"), |device| {
            device["attributes"]["switch"]["string"] == switch
        })?;
    }
    let nic = test.name("nic");
    test.create([class(
        &nic,
        "device.attributes[\"netclaim.dev\"].mode == \"nic\" && device.attributes[\"netclaim.dev\"].uplink.startsWith(\"eth7\")",
    )])?;
    let pair = |name: &str| {
        let mut pair = claim(name, &nic);
        pair["spec"]["devices"] = json!({
            "requests": [request("a", &nic), request("b", &nic)],
            "constraints": [{"matchAttribute": "netclaim.dev/switch"}],
        });
        test.create([pair, pod(name, &[name])])
    };
    pair("both")?;
    test.runs_with("both", &["net1", "net2"])?;
    let claim = test.get("resourceclaim", "both")?;
    let results = claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
    let mut devices: Vec<_> =
        results.iter().map(|result| result["device"].as_str().unwrap_or_default()).collect();
    devices.sort_unstable();
    ensure!(devices == ["nic-eth77", "nic-eth79"], "{devices:?}");
    pair("none")?;
    test.is_unschedulable("none")?;
    // In this order: it would get the links that are about to be plugged out.
    test.delete_pod("none")?;
    test.delete_pod("both")?;
    test.cluster.on_node(&["sh", "-c", "rm /run/netclaim/links.d/eth7?.json"]).map(drop)
}

pub fn a_network_is_for_the_namespaces_that_it_selects(test: &Test<'_>) -> Result<()> {
    let label = test.name("in");
    let only = |network: &mut Value| {
        network["spec"]["namespaceSelector"] = json!({"matchLabels": {"netclaim-test": label}});
    };
    let silent = test.network("a", only)?;
    let listing = test.network("b", |network| {
        only(network);
        network["metadata"]["annotations"]["netclaim.dev/device-classes"] =
            json!(format!("any, {}", test.name("b")));
    })?;
    let not_for = |network: &str| format!("Network {network:?} is not for namespace {:?}", test.namespace());
    // The policy may not have heard of the Network yet.
    eventually(10, "a claim of a class that the Network lists is refused", || {
        let Err(error) = test.create([claim("q", &listing)]) else {
            test.kubectl(&["delete", "resourceclaim", "q"])?;
            bail!("it was accepted")
        };
        ensure!(error.to_string().contains(&not_for(&listing)), "{error}");
        Ok(())
    })?;
    test.pod("p", &silent)?;
    test.event("p", &["FailedScheduling", &not_for(&silent)])?;
    let status = test.get("resourceclaim", "p")?["status"].clone();
    ensure!(status["allocation"].is_null(), "what is refused holds {status}");
    test.cluster.kubectl(&["label", "namespace", test.namespace(), &format!("netclaim-test={label}")])?;
    test.runs_with("p", &["net1"])?;
    test.pod("q", &listing)?;
    test.runs_with("q", &["net1"])
}

pub fn networks_of_one_uplink_are_never_granted_more_than_it_has(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth80")?;
    let with = |bandwidth: &'static str| {
        move |network: &mut Value| network["spec"]["capacity"] = json!({"bandwidth": bandwidth})
    };
    // A veth says that it has 10G.
    let (first, second) =
        (network_on(test, "eth80", "a", with("7G"))?, network_on(test, "eth80", "b", with("7G"))?);
    let amount =
        |amount: &'static str| move |device: &Value| device["capacity"]["bandwidth"]["value"] == amount;
    is_published(test, &format!("net-{first}"), amount("7G"))?;
    is_published(test, &format!("net-{second}"), amount("3G"))?;
    is_published(test, "macvlan-eth80", amount("0"))?;
    let mut greedy = claim("greedy", &second);
    greedy["spec"]["devices"]["requests"][0]["exactly"]["capacity"] =
        json!({"requests": {"bandwidth": "4G"}});
    test.create([greedy, pod("greedy", &["greedy"])])?;
    test.is_unschedulable("greedy")?;

    // One that says nothing has nothing to give.
    let silent = network_on(test, "eth80", "c", |_| {})?;
    is_published(test, &format!("net-{silent}"), |device| device["capacity"]["bandwidth"].is_null())?;
    // What is granted is not promised again when a Network comes that would have been served first.
    let network = test.cluster.get(&["network", &first])?;
    test.cluster.kubectl(&["delete", "network", &first])?;
    test.runs_with("greedy", &["net1"])?;
    is_published(test, &format!("net-{second}"), amount("7G"))?;
    let again = json!({"apiVersion": network["apiVersion"], "kind": "Network", "metadata": {"name": first},
        "spec": network["spec"]});
    test.create([again])?;
    is_published(test, &format!("net-{first}"), amount("6G"))?;
    is_published(test, &format!("net-{second}"), amount("4G"))?;
    test.delete_pod("greedy")
}

pub fn a_pod_asks_for_a_network_as_an_extended_resource(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    let resource = format!("netclaim.dev/{network}");
    let mut extended =
        class(&test.name("x"), &format!("device.attributes[\"netclaim.dev\"].network == {network:?}"));
    extended["spec"]["extendedResourceName"] = json!(resource);
    extended["spec"]["config"] = json!([attachment(json!({"ifName": "data0"}))]);
    let mut asking = pod("p", &[]);
    asking["spec"]["containers"][0]["resources"] = json!({"limits": {resource.as_str(): "1"}});
    test.create([extended, asking])?;
    test.runs_with("p", &["data0"])
}

pub fn a_claim_takes_the_first_of_its_alternatives_that_there_is(test: &Test<'_>) -> Result<()> {
    let _slow = Plugged::new(test, "eth81")?;
    let nic = test.name("nic");
    test.create([class(&nic, "device.attributes[\"netclaim.dev\"].mode == \"nic\" && device.attributes[\"netclaim.dev\"].uplink == \"eth81\"")])?;
    let speed = |name: &str, least: u64| {
        let expression = format!("device.attributes[\"netclaim.dev\"].speed >= {least}");
        json!({"name": name, "deviceClassName": nic, "selectors": [{"cel": {"expression": expression}}]})
    };
    let mut either = claim("either", &nic);
    either["spec"]["devices"] = json!({
        "requests": [{"name": "net", "firstAvailable": [speed("fast", 25_000_000_000), speed("slow", 10_000_000_000)]}],
        "config": [{"requests": ["net/slow"], "opaque": attachment(json!({"ifName": "slow0"}))["opaque"]}],
    });
    test.create([either, pod("p", &["either"])])?;
    test.runs_with("p", &["slow0"])?;
    test.delete_pod("p")
}

pub fn an_admin_who_looks_at_a_device_disturbs_nobody(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth82")?;
    let nic = test.name("nic");
    test.create([class(&nic, "device.attributes[\"netclaim.dev\"].mode == \"nic\" && device.attributes[\"netclaim.dev\"].uplink == \"eth82\"")])?;
    test.pod("user", &nic)?;
    test.runs_with("user", &["net1"])?;
    let namespace = test.get("pod", "user")?["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    test.cluster.kubectl(&["label", "namespace", &namespace, "resource.kubernetes.io/admin-access=true"])?;
    let mut look = claim("look", &nic);
    look["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = json!(true);
    test.create([look, pod("admin", &["look"])])?;
    test.runs_with("admin", &[])?;
    ensure!(test.interfaces("user")?.contains_key("net1"), "the user's NIC is gone");
    test.delete_pod("admin")?;
    ensure!(test.interfaces("user")?.contains_key("net1"), "the user's NIC is gone");
    test.delete_pod("user")
}

pub fn a_device_is_chosen_beside_another_drivers(test: &Test<'_>) -> Result<()> {
    let _links = [Plugged::new(test, "eth83")?, Plugged::new(test, "eth84")?];
    let (one, other) = (test.name("one"), test.name("other"));
    let at = |link: &str, place: i64| json!({"links": {"names": [link]}, "attributes": {"example.com/place": {"int": place}}});
    test.create([policy(&one, at("eth83", 1)), policy(&other, at("eth84", 2))])?;
    is_published(test, "nic-eth84", |device| device["attributes"]["example.com/place"]["int"] == 2)?;
    // What another driver publishes; nobody serves it, so the pod is scheduled and does not start.
    let node =
        test.cluster.get(&["nodes"])?["items"][0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let (driver, slice) = (format!("{}.example.com", test.name("gpu")), test.name("gpu"));
    test.create([
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": slice},
            "spec": {
                "driver": driver, "nodeName": node, "pool": {"name": slice, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu0", "attributes": {"example.com/place": {"int": 2}}}],
            },
        }),
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": slice},
            "spec": {"selectors": [{"cel": {"expression": format!("device.driver == {driver:?}")}}]},
        }),
    ])?;
    let nic = test.name("nic");
    test.create([class(
        &nic,
        "device.attributes[\"netclaim.dev\"].mode == \"nic\" && device.attributes[\"netclaim.dev\"].uplink in [\"eth83\", \"eth84\"]",
    )])?;
    let mut both = claim("both", &nic);
    both["spec"]["devices"] = json!({
        "requests": [request("net", &nic), request("gpu", &slice)],
        "constraints": [{"matchAttribute": "example.com/place"}],
    });
    test.create([both, pod("p", &["both"])])?;
    eventually(60, "the devices are allocated", || {
        let claim = test.get("resourceclaim", "both")?;
        let results =
            claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
        let devices: Vec<_> =
            results.iter().map(|result| result["device"].as_str().unwrap_or_default()).collect();
        ensure!(devices == ["nic-eth84", "gpu0"], "{devices:?}");
        Ok(())
    })?;
    test.kubectl(&["delete", "pod", "p", "--grace-period=0", "--force"])?;
    test.cluster.kubectl(&["delete", "resourceslice", &slice]).map(drop)
}

pub fn vlans_of_one_id_on_one_uplink_wait_for_each_other(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth85")?;
    let vlan = |name: &str, id: u32| {
        network_on(test, "eth85", name, |network| {
            network["spec"]["cni"]["plugins"][0] = json!({
                "type": "vlan", "master": "${uplink.ifName}", "vlanId": id,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": test.subnet(0)}]]}});
        })
    };
    let (one, same, other) = (vlan("a", 100)?, vlan("b", 100)?, vlan("c", 101)?);
    // Where the kernel has no VLANs, pods are scheduled and do not start: what the scheduler does is the same.
    let is_allocated = |claim: &str| {
        eventually(60, "the claim is allocated", || {
            ensure!(test.get("resourceclaim", claim)?["status"]["allocation"].is_object(), "it is not");
            Ok(())
        })
    };
    test.pod("one", &one)?;
    is_allocated("one")?;
    test.pod("same", &same)?;
    test.is_unschedulable("same")?;
    test.pod("other", &other)?;
    is_allocated("other")?;
    // The VLANs would go with the link.
    let nic = test.name("nic");
    test.create([class(&nic, "device.attributes[\"netclaim.dev\"].ifName == \"eth85\" && device.attributes[\"netclaim.dev\"].mode == \"nic\"")])?;
    test.pod("whole", &nic)?;
    test.is_unschedulable("whole")
}
