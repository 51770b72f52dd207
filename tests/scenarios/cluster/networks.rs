//! ClaimNetworks as devices: addresses, bandwidth, interfaces and segmentation ids that a ClaimNetwork
//! grants, and to whom.

use anyhow::{Result, bail, ensure};
use netclaim_tests::objects::{claim, list, text};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

pub fn a_pod_waits_until_an_address_is_free(test: &Test<'_>) -> Result<()> {
    // Two addresses, one of which another program holds.
    let network = test.network("a", |network| {
        network["spec"]["cni"]["plugins"][0]["ipam"]["ranges"] = json!([[
            {"subnet": test.subnet(0), "rangeStart": test.address(0, 10), "rangeEnd": test.address(0, 11)}]]);
    })?;
    let name = format!("net-{network}");
    let addresses =
        |amount: &'static str| move |device: &Value| device["capacity"]["addresses"]["value"] == amount;
    test.is_published(&name, addresses("2"))?;
    let lease = test.foreign_lease(&network, &test.address(0, 11), "somebody")?;
    test.is_published(&name, addresses("1"))?;
    test.start_pod("first", &network)?;
    test.pod("second", &network)?;
    test.is_unschedulable("second")?;
    test.cluster.on_node(&["rm", &lease])?;
    test.runs_with("second", &["net1"])
}

/// Creates a ClaimNetwork that sets the MTU of the pod's interface to the segmentation id.
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

pub fn the_node_assigns_each_segmentation_id_once(test: &Test<'_>) -> Result<()> {
    let network = segmented(test, "Node")?;
    for (pod, id) in [("first", 1400), ("second", 1401)] {
        test.start_pod(pod, &network)?;
        ensure!(mtu(test, pod)? == id, "{pod} has another id");
    }
    test.pod("third", &network)?;
    test.is_unschedulable("third")?;
    test.delete_pod("first")?;
    test.runs_with("third", &["net1"])?;
    ensure!(mtu(test, "third")? == 1400, "it does not have the released id");
    Ok(())
}

pub fn a_claim_gets_the_segmentation_id_that_it_chooses(test: &Test<'_>) -> Result<()> {
    let network = segmented(test, "Claim")?;
    let choose = |name: &str, id: &str| test.pod_with_capacity(name, &network, id, "1");
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

pub fn a_network_serves_only_the_namespaces_that_it_selects(test: &Test<'_>) -> Result<()> {
    let label = test.name("in");
    let only = |network: &mut Value| {
        network["spec"]["namespaces"] =
            json!({"from": "Selector", "selector": {"matchLabels": {"netclaim-test": label}}});
    };
    let silent = test.network("a", only)?;
    let listing = test.network("b", |network| {
        only(network);
        network["spec"]["deviceClassNames"] = json!(["any", test.name("b")]);
    })?;
    let not_for =
        |network: &str| format!("ClaimNetwork {network:?} is not for namespace {:?}", test.namespace());
    // The admission policy may not know the ClaimNetwork yet.
    eventually(10, "a claim of a class that the ClaimNetwork lists is refused", || {
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
    ensure!(status["allocation"].is_null(), "the refused claim has devices: {status}");
    test.cluster.kubectl(&["label", "namespace", test.namespace(), &format!("netclaim-test={label}")])?;
    test.runs_with("p", &["net1"])?;
    test.start_pod("q", &listing)
}

pub fn networks_of_one_uplink_share_its_bandwidth(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth80")?;
    test.modes(&["eth80"], &["macvlan"])?;
    let with = |bandwidth: &'static str| {
        move |network: &mut Value| network["spec"]["capacity"] = json!({"bandwidth": bandwidth})
    };
    // A veth has a speed of 10G.
    let (first, second) =
        (test.network_on("eth80", "a", with("7G"))?, test.network_on("eth80", "b", with("7G"))?);
    let amount =
        |amount: &'static str| move |device: &Value| device["capacity"]["bandwidth"]["value"] == amount;
    test.is_published(&format!("net-{first}"), amount("7G"))?;
    test.is_published(&format!("net-{second}"), amount("3G"))?;
    test.is_published("macvlan-eth80", amount("0"))?;
    test.pod_with_capacity("greedy", &second, "bandwidth", "4G")?;
    test.is_unschedulable("greedy")?;

    // A ClaimNetwork without a capacity has no bandwidth to grant.
    let silent = test.network_on("eth80", "c", |_| {})?;
    test.is_published(&format!("net-{silent}"), |device| device["capacity"]["bandwidth"].is_null())?;
    // Granted bandwidth is not published again for a ClaimNetwork that comes later but precedes the other by
    // name.
    let network = test.cluster.get(&["claimnetwork", &first])?;
    test.cluster.kubectl(&["delete", "claimnetwork", &first])?;
    test.runs_with("greedy", &["net1"])?;
    test.is_published(&format!("net-{second}"), amount("7G"))?;
    let again = json!({"apiVersion": network["apiVersion"], "kind": "ClaimNetwork", "metadata": {"name": first},
        "spec": network["spec"]});
    test.create([again])?;
    test.is_published(&format!("net-{first}"), amount("6G"))?;
    test.is_published(&format!("net-{second}"), amount("4G"))?;
    test.delete_pod("greedy")
}

pub fn a_pod_waits_until_bandwidth_is_free(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| network["spec"]["capacity"] = json!({"bandwidth": "1G"}))?;
    test.pod_with_capacity("first", &network, "bandwidth", "600M")?;
    test.runs_with("first", &["net1"])?;
    test.pod_with_capacity("second", &network, "bandwidth", "600M")?;
    test.is_unschedulable("second")?;
    test.delete_pod("first")?;
    test.runs_with("second", &["net1"])
}

pub fn the_pool_of_a_cluster_wide_network_follows_its_spec(test: &Test<'_>) -> Result<()> {
    let network = test.cluster_network(1)?;
    let patch = |spec: Value| {
        let patch = json!({ "spec": spec }).to_string();
        test.cluster.kubectl(&["patch", "claimnetwork", &network, "--type=merge", "-p", &patch])
    };
    let offers = |interfaces: &[&str]| {
        eventually(30, &format!("the pool of {network} has {interfaces:?} interfaces"), || {
            let slices = test.cluster.slices()?.into_iter();
            let of_pool =
                slices.filter(|slice| slice["spec"]["pool"]["name"] == format!("networks/{network}"));
            let devices =
                of_pool.flat_map(|slice| list(&slice["spec"]["devices"]).cloned().collect::<Vec<_>>());
            let found: Vec<String> =
                devices.map(|device| text(&device["capacity"]["interfaces"]["value"])).collect();
            ensure!(found == interfaces, "it has {found:?}");
            Ok(())
        })
    };
    test.start_pod("first", &network)?;
    test.pod("second", &network)?;
    test.is_unschedulable("second")?;
    offers(&["1"])?;
    patch(json!({"capacity": {"interfaces": 2}}))?;
    offers(&["2"])?;
    test.runs_with("second", &["net1"])?;
    for pod in ["first", "second"] {
        test.delete_pod(pod)?;
    }
    // A ClaimNetwork that is not accepted has no pool.
    patch(json!({"nodeSelector": {"matchLabels": {"kubernetes.io/os": "no label"}}}))?;
    offers(&[])
}
