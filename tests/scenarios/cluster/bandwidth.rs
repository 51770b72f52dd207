//! Bandwidth that was granted is what a pod has, measured by what comes through.

use std::thread;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use netclaim_tests::objects::{claim, class, pod};
use netclaim_tests::{Plugged, Test};
use serde_json::{Value, json};

/// Adds netclaim's own plugin to a Network, for bandwidth as claims are granted it.
fn limited(network: &mut Value) {
    let shaper = json!({"type": "netclaim-bandwidth", "capabilities": {"bandwidth": true}});
    if let Some(plugins) = network["spec"]["cni"]["plugins"].as_array_mut() {
        plugins.push(shaper);
    }
}

/// Creates a pod with a claim of `class` that asks for bandwidth.
fn pod_with(test: &Test<'_>, name: &str, class: &str, bandwidth: &str) -> Result<()> {
    let mut claim = claim(name, class);
    claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] =
        json!({"requests": {"bandwidth": bandwidth}});
    test.create([claim, pod(name, &[name])])
}

/// The rates of the token buckets in a pod's network namespace, in byte/s.
pub fn buckets(test: &Test<'_>, pod: &str) -> Result<Vec<u64>> {
    let netns = test.sandbox(pod)?.netns;
    let shown = test.cluster.node().in_network(&netns, &["tc", "-j", "qdisc", "show"])?;
    let shown: Vec<Value> = serde_json::from_str(&shown)?;
    Ok(shown.iter().filter_map(|qdisc| qdisc["options"]["rate"].as_u64()).collect())
}

/// How many Mbit/s come through from one pod to another over net1, after the burst.
fn measure(test: &Test<'_>, from: &str, to: &str) -> Result<f64> {
    let target = test.interface(to, "net1")?;
    let ip = target.ips.first().context("no address")?;
    let ip = ip.split('/').next().unwrap_or_default();
    // nc ends with its input, which a FIFO has no end of. The first part is what a bucket of 20 Mbit/s holds. Told are
    // the seconds of the beginning and the end, and the bytes between.
    let receive = "mkfifo /tmp/f 2>/dev/null; exec 3<>/tmp/f
        nc -l -p 5001 <&3 | { head -c 400000 >/dev/null; cut -d ' ' -f 1 /proc/uptime; wc -c; cut -d ' ' -f 1 /proc/uptime; }";
    let send = format!(
        "for i in $(seq 50); do dd if=/dev/zero bs=64k count=90 2>/dev/null | nc {ip} 5001 && exit; sleep 0.1; done; exit 1"
    );
    let exec = |pod: &str, script: &str| test.kubectl(&["exec", pod, "--", "sh", "-c", script]);
    let told = thread::scope(|scope| {
        let told = scope.spawn(|| exec(to, receive));
        exec(from, &send)?;
        told.join().map_err(|_| anyhow!("the receiver panicked"))?
    })?;
    let numbers: Result<Vec<f64>, _> = told.split_whitespace().map(str::parse).collect();
    let Ok([begin, bytes, end]) = numbers.as_deref() else { bail!("no numbers: {told:?}") };
    Ok(bytes * 8.0 / 1e6 / (end - begin).max(0.01))
}

pub fn a_pod_has_the_bandwidth_that_it_was_granted_in_both_directions(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| {
        limited(network);
        network["spec"]["capacity"] = json!({"bandwidth": "30M"});
    })?;
    pod_with(test, "granted", &network, "20M")?;
    test.pod("free", &network)?;
    for pod in ["granted", "free"] {
        test.runs_with(pod, &["net1"])?;
    }
    for (from, to) in [("granted", "free"), ("free", "granted")] {
        let found = measure(test, from, to)?;
        ensure!((10.0..=23.0).contains(&found), "{from} -> {to}: {found:.1} Mbit/s, granted were 20");
    }
    // What asked for nothing is not charged, and not limited.
    ensure!(buckets(test, "free")?.is_empty(), "{:?}", buckets(test, "free")?);
    pod_with(test, "too-much", &network, "20M")?;
    test.is_unschedulable("too-much")?;
    test.delete_pod("granted")?;
    test.runs_with("too-much", &["net1"])?;
    ensure!(buckets(test, "too-much")? == [2_500_000; 2], "{:?}", buckets(test, "too-much")?);
    Ok(())
}

pub fn an_uplink_without_a_network_is_limited_too(test: &Test<'_>) -> Result<()> {
    // Of its own: Networks of other scenarios may leave nothing of eth1's bandwidth.
    let _link = Plugged::new(test, "eth86")?;
    let name = test.name("plain");
    let attribute = |name: &str| format!("device.attributes[\"netclaim.dev\"].{name}");
    let expression = format!(
        "{} == \"macvlan\" && {} == \"eth86\" && {} == \"\"",
        attribute("mode"),
        attribute("uplink"),
        attribute("network")
    );
    test.create([class(&name, &expression)])?;
    pod_with(test, "p", &name, "8M")?;
    test.runs_with("p", &["net1"])?;
    ensure!(buckets(test, "p")? == [1_000_000; 2], "{:?}", buckets(test, "p")?);
    test.delete_pod("p")
}
