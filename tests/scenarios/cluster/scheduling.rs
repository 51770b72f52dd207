//! How claims get devices, and which devices exclude each other.

use anyhow::{Result, ensure};
use netclaim_tests::objects::{attachment, claim, class_of_network, list, pod, policy, request, text};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

pub fn a_nic_and_macvlan_on_it_exclude_each_other(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth96")?;
    test.modes(&["eth96"], &["nic", "macvlan"])?;
    let nic = test.class_of_links("nic", &["eth96"])?;
    let macvlan = test.network_on("eth96", "m", |_| {})?;
    test.is_published(&format!("net-{macvlan}"), |device| device["consumesCounters"].is_array())?;
    test.is_published("nic-eth96", |device| device["consumesCounters"].is_array())?;

    test.start_pod("first", &macvlan)?;
    test.pod("nic", &nic)?;
    test.is_unschedulable("nic")?;
    test.delete_pod("first")?;
    test.runs_with("nic", &["net1"])?;
    ensure!(!test.cluster.node().links()?.contains("eth96"), "the NIC is in the pod and on the node");

    test.pod("second", &macvlan)?;
    test.is_unschedulable("second")?;
    test.delete_pod("nic")?;
    test.runs_with("second", &["net1"])?;
    eventually(5, "the NIC is back on the node", || {
        ensure!(test.cluster.node().links()?.contains("eth96"), "it is not");
        Ok(())
    })?;
    test.delete_pod("second")
}

pub fn macvlan_and_ipvlan_on_one_uplink_exclude_each_other(test: &Test<'_>) -> Result<()> {
    if test.cluster.on_node(&["ip", "link", "add", "probe0", "link", "eth1", "type", "ipvlan"]).is_err() {
        return test.skip("this kernel has no ipvlan");
    }
    test.cluster.on_node(&["ip", "link", "del", "probe0"])?;
    let _link = Plugged::new(test, "eth97")?;
    test.modes(&["eth97"], &["macvlan", "ipvlan"])?;
    test.is_published("ipvlan-eth97", |device| device["consumesCounters"].is_array())?;
    let macvlan = test.class_of_links("macvlan", &["eth97"])?;
    let ipvlan = test.class_of_links("ipvlan", &["eth97"])?;
    test.start_pod("first", &macvlan)?;
    test.pod("second", &ipvlan)?;
    test.is_unschedulable("second")?;
    test.delete_pod("first")?;
    test.runs_with("second", &["net1"])?;
    test.delete_pod("second")
}

pub fn vlans_with_the_same_id_on_one_uplink_exclude_each_other(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth85")?;
    test.modes(&["eth85"], &["nic"])?;
    let vlan = |name: &str, id: u32| {
        test.network_on("eth85", name, |network| {
            network["spec"]["cni"]["plugins"][0] = json!({
                "type": "vlan", "master": "${uplink.name}", "vlanId": id,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": test.subnet(0)}]]}});
        })
    };
    let (one, same, other) = (vlan("a", 100)?, vlan("b", 100)?, vlan("c", 101)?);
    for network in [&one, &same, &other] {
        test.is_published(&format!("net-{network}"), |device| device["consumesCounters"].is_array())?;
    }
    let probe = ["ip", "link", "add", "probe85", "link", "eth85", "type", "vlan", "id", "99"];
    let has_vlans = test.cluster.on_node(&probe).is_ok();
    if has_vlans {
        test.cluster.on_node(&["ip", "link", "del", "probe85"])?;
    }
    test.is_published(&format!("net-{one}"), |device| {
        device["taints"].is_null() == has_vlans
            && (has_vlans || device["taints"][0]["key"] == "netclaim.dev/kernel-lacks")
    })?;
    // On a kernel without VLANs a pod that tolerates it is scheduled as well, but does not start.
    let pod = |name: &str, class: &str| {
        test.pod_with(name, class, |claim, _| {
            let lacks = json!([{"key": "netclaim.dev/kernel-lacks", "operator": "Exists"}]);
            claim["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = lacks;
        })
    };
    let is_allocated = |claim: &str| {
        eventually(60, "the claim is allocated", || {
            ensure!(test.get("resourceclaim", claim)?["status"]["allocation"].is_object(), "it is not");
            Ok(())
        })
    };
    pod("one", &one)?;
    is_allocated("one")?;
    pod("same", &same)?;
    test.is_unschedulable("same")?;
    pod("other", &other)?;
    is_allocated("other")?;
    // A pod with the whole link would take the VLANs away.
    let nic = test.class_of_links("nic", &["eth85"])?;
    test.pod("whole", &nic)?;
    test.is_unschedulable("whole")
}

/// The devices that a claim was allocated.
fn devices(test: &Test<'_>, claim: &str) -> Result<Vec<String>> {
    let claim = test.get("resourceclaim", claim)?;
    let results: &Value = &claim["status"]["allocation"]["devices"]["results"];
    Ok(list(results).map(|result| text(&result["device"])).collect())
}

pub fn a_claim_gets_two_links_with_the_same_provided_attribute(test: &Test<'_>) -> Result<()> {
    let _links = [Plugged::new(test, "eth77")?, Plugged::new(test, "eth78")?, Plugged::new(test, "eth79")?];
    for (link, switch) in [("eth77", "tor-1"), ("eth78", "tor-2"), ("eth79", "tor-1")] {
        let text = json!({"attributes": {"switch": {"string": switch}}});
        let file = format!("/run/netclaim/links.d/{link}.json");
        let write = format!("echo '{text}' > {file}.new && mv {file}.new {file}");
        test.cluster.on_node(&["sh", "-c", &write])?;
        test.is_published(&format!("nic-{link}"), |device| {
            device["attributes"]["switch"]["string"] == switch
        })?;
    }
    let nic = test.class_of_links("nic", &["eth77", "eth78", "eth79"])?;
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
    let mut devices = devices(test, "both")?;
    devices.sort_unstable();
    ensure!(devices == ["nic-eth77", "nic-eth79"], "{devices:?}");
    pair("none")?;
    test.is_unschedulable("none")?;
    // In this order: otherwise `none` would get the links that are about to be deleted.
    test.delete_pod("none")?;
    test.delete_pod("both")?;
    test.cluster.on_node(&["sh", "-c", "rm /run/netclaim/links.d/eth7?.json"]).map(drop)
}

pub fn a_pod_gets_a_network_as_an_extended_resource(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    let resource = format!("netclaim.dev/{network}");
    let mut extended = class_of_network(&test.name("x"), &network);
    extended["spec"]["extendedResourceName"] = json!(resource);
    extended["spec"]["config"] = json!([attachment(json!({"interfaceName": "data0"}))]);
    let mut asking = pod("p", &[]);
    asking["spec"]["containers"][0]["resources"] = json!({"limits": {resource.as_str(): "1"}});
    test.create([extended, asking])?;
    test.runs_with("p", &["data0"])
}

pub fn a_claim_gets_the_first_alternative_that_is_available(test: &Test<'_>) -> Result<()> {
    let _slow = Plugged::new(test, "eth81")?;
    let nic = test.class_of_links("nic", &["eth81"])?;
    let speed = |name: &str, least: u64| {
        let expression = format!("device.attributes[\"netclaim.dev\"].speed >= {least}");
        json!({"name": name, "deviceClassName": nic, "selectors": [{"cel": {"expression": expression}}]})
    };
    let mut either = claim("either", &nic);
    either["spec"]["devices"] = json!({
        "requests": [{"name": "net", "firstAvailable": [speed("fast", 25_000_000_000), speed("slow", 10_000_000_000)]}],
        "config": [{"requests": ["net/slow"], "opaque": attachment(json!({"interfaceName": "slow0"}))["opaque"]}],
    });
    test.create([either, pod("p", &["either"])])?;
    test.runs_with("p", &["slow0"])?;
    test.delete_pod("p")
}

pub fn admin_access_to_a_device_disturbs_no_pod(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth82")?;
    let nic = test.class_of_links("nic", &["eth82"])?;
    test.start_pod("user", &nic)?;
    test.cluster.kubectl(&[
        "label",
        "namespace",
        test.namespace(),
        "resource.kubernetes.io/admin-access=true",
    ])?;
    test.pod_with("admin", &nic, |claim, _| {
        claim["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = json!(true);
    })?;
    test.runs_with("admin", &[])?;
    let own = test.interfaces("admin")?;
    ensure!(
        own.keys().all(|name| ["lo", "eth0"].contains(&name.as_str())),
        "the admin's pod has {:?}",
        own.keys()
    );
    ensure!(test.interfaces("user")?.contains_key("net1"), "the user's NIC is gone");
    test.delete_pod("admin")?;
    ensure!(test.interfaces("user")?.contains_key("net1"), "the user's NIC is gone");
    test.delete_pod("user")
}

pub fn a_link_is_allocated_near_another_drivers_device(test: &Test<'_>) -> Result<()> {
    let _links = [Plugged::new(test, "eth83")?, Plugged::new(test, "eth84")?];
    let (one, other) = (test.name("one"), test.name("other"));
    let at = |link: &str, place: i64| json!({"links": {"names": [link]}, "attributes": {"example.com/place": {"int": place}}});
    test.create([policy(&one, at("eth83", 1)), policy(&other, at("eth84", 2))])?;
    test.is_published("nic-eth84", |device| device["attributes"]["example.com/place"]["int"] == 2)?;
    // A device of another driver, which does not run: the pod is scheduled and does not start.
    let (driver, slice) = (format!("{}.example.com", test.name("gpu")), test.name("gpu"));
    test.create([
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": slice},
            "spec": {
                "driver": driver, "nodeName": "node0", "pool": {"name": slice, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu0", "attributes": {"example.com/place": {"int": 2}}}],
            },
        }),
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": slice},
            "spec": {"selectors": [{"cel": {"expression": format!("device.driver == {driver:?}")}}]},
        }),
    ])?;
    let nic = test.class_of_links("nic", &["eth83", "eth84"])?;
    let mut both = claim("both", &nic);
    both["spec"]["devices"] = json!({
        "requests": [request("net", &nic), request("gpu", &slice)],
        "constraints": [{"matchAttribute": "example.com/place"}],
    });
    test.create([both, pod("p", &["both"])])?;
    eventually(60, "the devices are allocated", || {
        let devices = devices(test, "both")?;
        ensure!(devices == ["nic-eth84", "gpu0"], "{devices:?}");
        Ok(())
    })?;
    test.kubectl(&["delete", "pod", "p", "--grace-period=0", "--force"])?;
    test.cluster.kubectl(&["delete", "resourceslice", &slice]).map(drop)
}
