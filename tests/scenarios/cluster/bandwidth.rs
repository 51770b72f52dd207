//! Granted bandwidth limits a pod, measured by its traffic.

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use netclaim_tests::{Plugged, Test, eventually, objects};
use serde_json::{Value, json};

/// Adds netclaim's bandwidth plugin to a ClaimNetwork, which limits pods to their claims' bandwidth.
fn limited(network: &mut Value) {
    let shaper = json!({"type": "netclaim-bandwidth", "capabilities": {"bandwidth": true}});
    if let Some(plugins) = network["spec"]["cni"]["plugins"].as_array_mut() {
        plugins.push(shaper);
    }
}

/// The rates of the token buckets in a pod's network namespace, in byte/s.
pub fn buckets(test: &Test<'_>, pod: &str) -> Result<Vec<u64>> {
    let netns = test.sandbox(pod)?.netns;
    let shown = test.cluster.node().in_network(&netns, &["tc", "-j", "qdisc", "show"])?;
    let shown: Vec<Value> = serde_json::from_str(&shown)?;
    Ok(shown.iter().filter_map(|qdisc| qdisc["options"]["rate"].as_u64()).collect())
}

/// Measures the Mbit/s from one pod to another over net1, after the burst.
fn measure(test: &Test<'_>, from: &str, to: &str) -> Result<f64> {
    let ip = test.ip(to, "net1")?;
    // nc ends with its input, and a FIFO does not end. The first bytes are the burst of a bucket of 20
    // Mbit/s. The output is the time of the beginning, the number of bytes, and the time of the end.
    let receive = "mkfifo /tmp/f 2>/dev/null; exec 3<>/tmp/f
        nc -l -p 5001 <&3 | { head -c 400000 >/dev/null; cut -d ' ' -f 1 /proc/uptime; wc -c; cut -d ' ' -f 1 /proc/uptime; }";
    let send = format!(
        "for i in $(seq 50); do dd if=/dev/zero bs=64k count=120 2>/dev/null | nc {ip} 5001 && exit; sleep 0.1; done; exit 1"
    );
    let exec = |pod: &str, script: &str| test.kubectl(&["exec", pod, "--", "sh", "-c", script]);
    let output = thread::scope(|scope| {
        let output = scope.spawn(|| exec(to, receive));
        exec(from, &send)?;
        output.join().map_err(|_| anyhow!("the receiver panicked"))?
    })?;
    let numbers: Result<Vec<f64>, _> = output.split_whitespace().map(str::parse).collect();
    let Ok([begin, bytes, end]) = numbers.as_deref() else { bail!("no numbers: {output:?}") };
    Ok(bytes * 8.0 / 1e6 / (end - begin).max(0.01))
}

/// What netclaimctl says of the traffic of the pod's only attachment.
fn traffic(test: &Test<'_>, pod: &str) -> Result<Value> {
    let line = ["attachments", pod, "-n", test.namespace(), "--traffic", "--output=json"];
    Ok(test.netclaimctl(&line)?["attachments"][0]["traffic"].clone())
}

pub fn granted_bandwidth_limits_a_pod_in_both_directions(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| {
        limited(network);
        network["spec"]["capacity"] = json!({"bandwidth": "30M"});
    })?;
    test.pod_with_capacity("granted", &network, "bandwidth", "20M")?;
    test.pod("free", &network)?;
    for pod in ["granted", "free"] {
        test.runs_with(pod, &["net1"])?;
    }
    for (from, to) in [("granted", "free"), ("free", "granted")] {
        let found = measure(test, from, to)?;
        ensure!((16.0..=23.0).contains(&found), "{from} -> {to}: {found:.1} Mbit/s, granted were 20");
    }
    let busiest = thread::scope(|scope| {
        let sending = scope.spawn(|| measure(test, "granted", "free"));
        let mut seen = vec![traffic(test, "granted")?];
        while !sending.is_finished() {
            seen.push(traffic(test, "granted")?);
        }
        sending.join().map_err(|_| anyhow!("the sender panicked"))??;
        anyhow::Ok(seen.into_iter().max_by_key(|seen| seen["sent"]["rate"].as_u64()).unwrap_or_default())
    })?;
    // The rate is of whole frames, and the first second may have the burst.
    let rate = busiest["sent"]["rate"].as_u64().unwrap_or_default();
    ensure!((14_000_000..=40_000_000).contains(&rate), "netclaimctl has seen {busiest}");
    ensure!(busiest["granted"] == 20_000_000 && busiest["received"]["rate"] != 0, "{busiest}");
    // A claim without a request is neither charged nor limited.
    ensure!(buckets(test, "free")?.is_empty(), "{:?}", buckets(test, "free")?);
    test.pod_with_capacity("too-much", &network, "bandwidth", "20M")?;
    test.is_unschedulable("too-much")?;
    test.delete_pod("granted")?;
    test.runs_with("too-much", &["net1"])?;
    ensure!(buckets(test, "too-much")? == [2_500_000; 2], "{:?}", buckets(test, "too-much")?);
    Ok(())
}

pub fn granted_bandwidth_limits_a_pod_without_a_network(test: &Test<'_>) -> Result<()> {
    // Its own link: other scenarios' ClaimNetworks may use all of eth1's bandwidth.
    let _link = Plugged::new(test, "eth91")?;
    test.modes(&["eth91"], &["macvlan"])?;
    let class = test.class_of_links("macvlan", &["eth91"])?;
    test.pod_with_capacity("p", &class, "bandwidth", "8M")?;
    test.runs_with("p", &["net1"])?;
    ensure!(buckets(test, "p")? == [1_000_000; 2], "{:?}", buckets(test, "p")?);
    test.delete_pod("p")
}

/// The series of a pod's attachment that the agent serves, with their values.
fn series(test: &Test<'_>, pod: &str) -> Result<BTreeMap<String, f64>> {
    let of_pod = format!("namespace=\"{}\",pod=\"{pod}\",interface=\"net1\"", test.namespace());
    let metrics = test.cluster.ask_agent("/metrics")?;
    let lines = metrics
        .lines()
        .filter_map(|line| line.rsplit_once(' ').filter(|(series, _)| series.contains(&of_pod)));
    lines.map(|(series, value)| Ok((series.replace(&of_pod, "POD"), value.parse()?))).collect()
}

pub fn traffic_is_in_the_metrics_where_a_network_asks_for_it(test: &Test<'_>) -> Result<()> {
    let seen = test.network("a", |network| {
        limited(network);
        network["spec"]["capacity"] = json!({"bandwidth": "30M"});
        network["spec"]["trafficMetrics"] = json!("Attachments");
    })?;
    let unseen = test.macvlan("b")?;
    test.pod_with_capacity("seen", &seen, "bandwidth", "20M")?;
    test.pod("other", &seen)?;
    test.pod("unseen", &unseen)?;
    for pod in ["seen", "other", "unseen"] {
        test.runs_with(pod, &["net1"])?;
    }
    let sent = "netclaim_attachment_bytes_total{POD,direction=\"transmit\"}";
    let before = eventually(10, "the traffic of the pod is in the metrics", || {
        let series = series(test, "seen")?;
        series.get(sent).copied().with_context(|| format!("no {sent} in {series:?}"))
    })?;
    measure(test, "seen", "other")?;
    eventually(10, "what the pod has sent is counted", || {
        let series = series(test, "seen")?;
        let now = series.get(sent).copied().unwrap_or_default();
        ensure!(now > before + 1e6, "{sent} was {before}, and is {now}");
        ensure!(series.len() == 8, "{series:?}");
        ensure!(
            series.get("netclaim_attachment_granted_bytes_per_second{POD}") == Some(&2.5e6),
            "{series:?}"
        );
        let info = series.keys().find(|name| name.starts_with("netclaim_attachment_info"));
        let info = info.context("no netclaim_attachment_info")?;
        ensure!(info.contains(&format!("network=\"{seen}\"")) && info.contains("uplink=\"eth1\""), "{info}");
        Ok(())
    })?;
    ensure!(series(test, "unseen")?.is_empty(), "{:?}", series(test, "unseen")?);
    test.delete_pod("seen")?;
    eventually(10, "the metrics forget the pod", || {
        let left = series(test, "seen")?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

/// What the link of two senders has, in bit/s.
const WIRE: u64 = 40_000_000;

/// A process in a pod's network namespace that sends as fast as it can while this value lives.
struct Sender(Child);

impl Sender {
    /// Begins to send to a machine that takes everything.
    fn start(test: &Test<'_>, pod: &str, to: &str) -> Result<Self> {
        let netns = test.sandbox(pod)?.netns;
        let far =
            ["ip", "neigh", "replace", to, "lladdr", "02:00:00:00:00:fe", "dev", "net1", "nud", "permanent"];
        test.cluster.node().in_network(&netns, &far)?;
        let send = format!("exec dd if=/dev/zero bs=1400 status=none >/dev/udp/{to}/9");
        let sender = Command::new("nsenter")
            .arg(format!("--net={}", netns.display()))
            .args(["bash", "-c", &send])
            .spawn()?;
        Ok(Self(sender))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the pods send, and what they are granted or share, in bit/s: the middle one of three measurements.
fn rates(test: &Test<'_>, pods: &[&str]) -> Result<Vec<(f64, Value, Value)>> {
    let all = ["attachments", "-n", test.namespace(), "--traffic", "--output=json"];
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(test.netclaimctl(&all)?["attachments"].clone());
    }
    let of = |seen: &Value, pod: &str| {
        let mut all = seen.as_array().into_iter().flatten();
        all.find(|one| one["pod"] == pod).map(|one| one["traffic"].clone()).unwrap_or_default()
    };
    let rate = |pod: &&str| {
        let mut sent: Vec<f64> = seen
            .iter()
            .map(|seen| of(seen, pod)["sent"]["rate"].as_f64().unwrap_or_default() / 1e6)
            .collect();
        sent.sort_by(f64::total_cmp);
        let last = seen.last().map(|seen| of(seen, pod)).unwrap_or_default();
        (sent[1], last["granted"].clone(), last["share"].clone())
    };
    let rates: Vec<_> = pods.iter().map(rate).collect();
    eprintln!("{pods:?} send, in Mbit/s, and have: {rates:?}");
    Ok(rates)
}

/// Waits until the pod with a grant sends what it was granted, and the other one what is left.
fn divided(test: &Test<'_>, pods: [&str; 2], expected: [f64; 2]) -> Result<()> {
    let near = |found: f64, expected: f64| (expected * 0.9..=expected * 1.06).contains(&found);
    eventually(30, &format!("{pods:?} send {expected:?} Mbit/s"), || {
        let rates = rates(test, &pods)?;
        ensure!(
            rates.iter().zip(expected).all(|((found, ..), expected)| near(*found, expected)),
            "{rates:?}"
        );
        Ok(())
    })
}

pub fn of_two_senders_the_one_with_a_grant_gets_it_and_the_other_the_rest(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth92")?;
    // A wire that really has no more.
    let wire = [
        "tc", "qdisc", "add", "dev", "eth92", "root", "tbf", "rate", "40mbit", "burst", "64k", "latency",
        "25ms",
    ];
    test.cluster.on_node(&wire)?;
    let policy = json!({"links": {"names": ["eth92"]}, "capacity": {"bandwidth": "40M"}});
    test.create([objects::policy(&test.name("wire"), policy)])?;
    let network = test.network_on("eth92", "a", |network| {
        limited(network);
        network["spec"]["capacity"] = json!({"bandwidth": "40M"});
    })?;
    let change = |unrequested: &str| {
        let patch = json!({"spec": {"bandwidth": {"unrequested": unrequested}}}).to_string();
        test.kubectl(&["patch", "claimnetwork", &network, "--type=merge", "-p", &patch])
    };
    test.pod_with_capacity("granted", &network, "bandwidth", "25M")?;
    test.pod("free", &network)?;
    for pod in ["granted", "free"] {
        test.runs_with(pod, &["net1"])?;
    }
    let own = test.ip("free", "net1")?;
    let nobody = format!("{}.250", own.rsplit_once('.').map_or("", |(net, _)| net));
    let granted = Sender::start(test, "granted", &nobody)?;
    let _free = Sender::start(test, "free", &nobody)?;
    // Without a guarantee the one that asked for nothing takes what it can.
    eventually(30, "the sender without a grant takes from the other", || {
        let rates = rates(test, &["granted", "free"])?;
        ensure!(rates[1].0 > 17.0 && rates[0].0 < 24.0, "{rates:?}");
        Ok(())
    })?;
    // With one, both run on, and the one that was granted 25 of 40 has them.
    change("Share")?;
    divided(test, ["granted", "free"], [25.0, 15.0])?;
    let of_pods = rates(test, &["granted", "free"])?;
    ensure!(of_pods[0].1 == 25_000_000 && of_pods[1].2 == WIRE - 25_000_000, "{of_pods:?}");
    let shown = test.run_netclaimctl(&["attachments", "-n", test.namespace(), "--traffic"])?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    ensure!(shown.contains("25.0M") && shown.contains("share 15.0M"), "{shown}");
    // A grant that comes takes from the share before its pod starts, and one that ends gives back.
    test.pod_with_capacity("more", &network, "bandwidth", "10M")?;
    test.runs_with("more", &["net1"])?;
    ensure!(buckets(test, "free")? == [5_000_000 / 8; 2], "{:?}", buckets(test, "free")?);
    divided(test, ["granted", "free"], [25.0, 5.0])?;
    test.pod("freer", &network)?;
    test.runs_with("freer", &["net1"])?;
    for pod in ["free", "freer"] {
        ensure!(buckets(test, pod)? == [2_500_000 / 8; 2], "{pod}: {:?}", buckets(test, pod)?);
    }
    test.delete_pod("more")?;
    eventually(10, "the share grows", || {
        ensure!(buckets(test, "free")? == [7_500_000 / 8; 2], "{:?}", buckets(test, "free")?);
        Ok(())
    })?;
    test.delete_pod("freer")?;
    drop(granted);
    test.delete_pod("granted")?;
    // The next agent knows the shares by the plans, and what a container has changed is set again.
    let netns = test.sandbox("free")?.netns;
    test.cluster.node().in_network(&netns, &["tc", "qdisc", "del", "dev", "net1", "root"])?;
    test.cluster.replace_agent()?;
    eventually(30, "the next agent limits the pod again", || {
        ensure!(buckets(test, "free")? == [WIRE / 8; 2], "{:?}", buckets(test, "free")?);
        Ok(())
    })?;
    // What asks for nothing can be kept off, too.
    change("Refuse")?;
    eventually(20, "the device is for claims that ask", || {
        let slices = test.kubectl(&["get", "resourceslices", "-o", "json"])?;
        ensure!(slices.contains("\"1E\""), "no default is 1E");
        Ok(())
    })?;
    test.pod("refused", &network)?;
    test.is_unschedulable("refused")?;
    let explained = test.run_netclaimctl(&["explain", "pod", "refused", "-n", test.namespace()])?;
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    ensure!(explained.contains("asks for no bandwidth"), "{explained}");
    test.pod_with_capacity("asking", &network, "bandwidth", "30M")?;
    test.runs_with("asking", &["net1"])?;
    ensure!(buckets(test, "free")? == [10_000_000 / 8; 2], "{:?}", buckets(test, "free")?);
    // Without the guarantee nothing limits the pod that runs.
    change("Unlimited")?;
    eventually(20, "the pod is not limited", || {
        ensure!(buckets(test, "free")?.is_empty(), "{:?}", buckets(test, "free")?);
        Ok(())
    })
}
