//! What pods find on their networks: another host that has their address, and a gateway that is away.

use anyhow::{Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

/// A machine that is no node, at the other end of an uplink of the node.
struct Machine<'a> {
    test: &'a Test<'a>,
    name: String,
    link: String,
}

impl<'a> Machine<'a> {
    /// Moves the far end of `uplink` into a network namespace of its own.
    fn at(test: &'a Test<'a>, uplink: &str) -> Result<Self> {
        let machine = Self { test, name: format!("machine-{uplink}"), link: format!("far-{uplink}") };
        test.cluster.on_node(&["ip", "netns", "add", &machine.name])?;
        test.cluster.on_node(&["ip", "link", "set", &machine.link, "netns", &machine.name])?;
        machine.ip(&["link", "set", &machine.link, "up"])?;
        Ok(machine)
    }

    fn has(&self, address: &str) -> Result<()> {
        self.ip(&["address", "add", &format!("{address}/24"), "dev", &self.link]).map(drop)
    }

    fn mac(&self) -> Result<String> {
        let links: Value = serde_json::from_str(&self.ip(&["-json", "link", "show", "dev", &self.link])?)?;
        Ok(text(&links[0]["address"]))
    }

    fn ip(&self, words: &[&str]) -> Result<String> {
        self.test.cluster.on_node(&[&["ip", "-n", &self.name], words].concat())
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        let _ = self.test.cluster.on_node(&["ip", "netns", "del", &self.name]);
    }
}

pub fn a_pod_gets_another_address_than_a_machine_beside_the_cluster(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth43")?;
    let machine = Machine::at(test, "eth43")?;
    let taken = test.address(0, 10);
    machine.has(&taken)?;
    let except = [(0, 9), (12, 255)]
        .map(|(first, last)| format!("{}-{}", test.address(0, first), test.address(0, last)));
    let network = test.network_on("eth43", "a", |network| {
        network["spec"]["conflicts"] = json!("Probe");
        network["spec"]["addresses"] = json!({"ranges": [{"subnet": test.subnet(0), "exclude": except}]});
        network["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
    })?;
    test.pod("p", &network)?;
    test.event("p", &["NetworkAttachFailed", &taken, &machine.mac()?])?;
    test.runs_with("p", &["net1"])?;
    ensure!(test.ip("p", "net1")? == test.address(0, 11), "it has {}", test.ip("p", "net1")?);
    Ok(())
}

pub fn a_pod_waits_while_another_host_has_the_address_that_its_claim_asks_for(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth48")?;
    let machine = Machine::at(test, "eth48")?;
    let address = test.address(0, 10);
    machine.has(&address)?;
    let network = test.network_on("eth48", "a", |network| {
        network["spec"]["conflicts"] = json!("Probe");
        let fixed = json!([{"address": format!("{address}/24")}]);
        network["spec"]["cni"]["plugins"][0]["ipam"] = json!({"type": "static", "addresses": fixed});
    })?;
    test.pod("p", &network)?;
    test.claim_is_not_ready("p", &[&address, &machine.mac()?])?;
    let reason = &test.get("resourceclaim", "p")?["status"]["devices"][0]["conditions"][0]["reason"];
    ensure!(reason == "AddressInUse", "its reason is {reason}");
    machine.ip(&["address", "flush", "dev", &machine.link])?;
    test.runs_with("p", &["net1"])?;
    eventually(15, "its claim says so", || {
        let claim = test.get("resourceclaim", "p")?;
        let ips = &claim["status"]["devices"][0]["networkData"]["ips"];
        ensure!(list(ips).any(|ip| text(ip) == format!("{address}/24")), "it has {ips}");
        Ok(())
    })
}

pub fn a_pod_waits_for_the_gateway_that_its_network_requires(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth44")?;
    let machine = Machine::at(test, "eth44")?;
    let gateway = test.address(0, 254);
    let network = test.network_on("eth44", "a", |network| {
        network["spec"]["gateway"] = json!("Required");
        network["spec"]["cni"]["plugins"][0]["ipam"]["ranges"] =
            json!([[{"subnet": test.subnet(0), "gateway": gateway}]]);
    })?;
    test.pod("p", &network)?;
    test.does_not_start("p")?;
    machine.has(&gateway)?;
    test.runs_with("p", &["net1"])
}
