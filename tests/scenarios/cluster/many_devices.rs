//! Claims that get several devices by one request, or one of several alternatives.
//!
//! A claim's interfaces are numbered in the order of its allocation, so that they keep their names when the
//! pod's sandbox is made again.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim, class, pod, request, text};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// Which device, and which share of it, each interface of the pod `p` is of, by the status of its claim.
fn interfaces(test: &Test<'_>) -> Result<BTreeMap<String, (String, String)>> {
    let of = |device: &Value| {
        let interface = text(&device["networkData"]["interfaceName"]);
        (interface, (text(&device["device"]), text(&device["shareID"])))
    };
    Ok(test.claim_is_ready("p")?.iter().map(of).collect())
}

/// Makes sure that these interfaces of `p` are of these ClaimNetworks, also in the next sandbox, and that
/// each has in the pod the addresses that the claim's status says.
fn stay(test: &Test<'_>, expected: &[(&str, &str)]) -> Result<()> {
    let names: Vec<&str> = expected.iter().map(|(interface, _)| *interface).collect();
    test.runs_with("p", &names)?;
    let before = interfaces(test)?;
    let networks: Vec<(&str, &str)> =
        before.iter().map(|(interface, (device, _))| (interface.as_str(), device.as_str())).collect();
    let devices: Vec<String> = expected.iter().map(|(_, network)| format!("net-{network}")).collect();
    let wanted: Vec<(&str, &str)> = names.into_iter().zip(devices.iter().map(String::as_str)).collect();
    ensure!(networks == wanted, "{networks:?}");
    test.replace_sandbox("p")?;
    eventually(15, "the claim's status is of the next sandbox", || {
        for device in test.claim_is_ready("p")? {
            let name = text(&device["networkData"]["interfaceName"]);
            let inside = test.interface("p", &name)?;
            ensure!(device["networkData"]["ips"] == json!(inside.ips), "{device}, in the pod: {inside:?}");
        }
        Ok(())
    })?;
    let after = interfaces(test)?;
    ensure!(after == before, "{before:?} became {after:?}");
    test.delete_pod("p")
}

/// Creates a class of the devices of two ClaimNetworks; returns its name.
fn class_of_both(test: &Test<'_>, networks: [&str; 2]) -> Result<String> {
    let both = test.name("both");
    test.create([class(&both, &format!("device.attributes[\"netclaim.dev\"].network in {networks:?}"))])?;
    for network in networks {
        test.is_published(&format!("net-{network}"), |device| device["taints"].is_null())?;
    }
    Ok(both)
}

/// The ClaimNetworks in the order that the scheduler has given their devices to `p`.
fn in_order<'a>(test: &Test<'_>, networks: [&'a str; 2]) -> Result<[(&'static str, &'a str); 2]> {
    test.runs_with("p", &["net1", "net2"])?;
    let results = test.get("resourceclaim", "p")?["status"]["allocation"]["devices"]["results"].take();
    let [one, other] = networks;
    let is_first = results[0]["device"] == format!("net-{one}");
    Ok(if is_first { [("net1", one), ("net2", other)] } else { [("net1", other), ("net2", one)] })
}

pub fn a_request_for_two_devices_gives_two_interfaces_that_keep_their_names(test: &Test<'_>) -> Result<()> {
    let (a, b) = (test.macvlan("a")?, test.macvlan("b")?);
    let both = class_of_both(test, [&a, &b])?;
    test.pod_with("p", &both, |claim, _| {
        claim["spec"]["devices"]["requests"][0]["exactly"]["count"] = json!(2);
    })?;
    stay(test, &in_order(test, [&a, &b])?)
}

pub fn two_requests_for_one_network_give_two_interfaces_of_it(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    let mut twice = claim("p", &network);
    twice["spec"]["devices"]["requests"] = json!([request("first", &network), request("second", &network)]);
    let mut one = claim("one", &network);
    one["spec"]["devices"]["requests"][0]["exactly"]["count"] = json!(2);
    test.create([twice, pod("p", &["p"]), one, pod("one", &["one"])])?;
    // The scheduler gives a request no device twice, which an event of its pod says.
    test.event("one", &["wants 2 devices, and can have 1: it gets none of them twice"])?;
    stay(test, &[("net1", &network), ("net2", &network)])
}

pub fn a_request_for_all_devices_gives_an_interface_of_each(test: &Test<'_>) -> Result<()> {
    let (a, b) = (test.macvlan("a")?, test.macvlan("b")?);
    let both = class_of_both(test, [&a, &b])?;
    test.pod_with("p", &both, |claim, _| {
        claim["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] = json!("All");
    })?;
    stay(test, &in_order(test, [&a, &b])?)
}

pub fn alternatives_of_two_networks_give_the_one_that_is_free_in_its_place(test: &Test<'_>) -> Result<()> {
    let (a, b) = (test.macvlan("a")?, test.macvlan("b")?);
    let alternative = |name: &str, class: &str| json!({"name": name, "deviceClassName": class});
    let mut wanted = alternative("fast", &a);
    wanted["capacity"] = json!({"requests": {"bandwidth": "900T"}});
    let mut either = claim("p", &a);
    either["spec"]["devices"]["requests"] = json!([
        {"name": "net", "firstAvailable": [wanted, alternative("other", &b)]},
        request("more", &a),
    ]);
    test.create([either, pod("p", &["p"])])?;
    stay(test, &[("net1", &b), ("net2", &a)])
}
