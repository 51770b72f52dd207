//! What a pod gets.

use anyhow::{Context as _, Result, ensure};

use netclaim_tests::objects::{
    attachment, claim, claim_template, class_of_network, list, network, pod, request, text,
};
use netclaim_tests::{AGENT, SYSTEM, Test, eventually};
use serde_json::{Value, json};

pub fn two_pods_of_a_claim_template_reach_each_other(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    let [mut one, mut two] = ["one", "two"].map(|name| pod(name, &["net"]));
    for pod in [&mut one, &mut two] {
        pod["spec"]["resourceClaims"] = json!([{"name": "net", "resourceClaimTemplateName": "net"}]);
    }
    test.create([claim_template("net", &network), one, two])?;
    for pod in ["one", "two"] {
        test.runs_with(pod, &["net1"])?;
    }
    ensure!(
        test.interface("one", "net1")?.ips != test.interface("two", "net1")?.ips,
        "two pods have the same address"
    );
    test.ping("one", "two", "net1")?;
    test.ping("two", "one", "net1")
}

pub fn a_claims_status_matches_the_pods_interface(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("p", &network)?;
    let inside = test.interface("p", "net1")?;
    let devices = test.claim_is_ready("p")?;
    let [device] = devices.as_slice() else {
        anyhow::bail!("the claim has one device, its status {devices:?}")
    };
    let data = &device["networkData"];
    ensure!(data["interfaceName"] == "net1", "{data}");
    ensure!(data["hardwareAddress"] == inside.mac, "{data}, in the pod: {inside:?}");
    ensure!(data["ips"] == json!(inside.ips), "{data}, in the pod: {inside:?}");
    ensure!(
        device["data"]["cniVersion"] == "1.0.0" && device["data"]["interfaces"].is_array(),
        "no CNI result: {device}"
    );
    ensure!(device["device"] == format!("net-{network}") && device["pool"] == "node0", "{device}");
    Ok(())
}

pub fn a_claim_serves_the_pod_that_replaces_one_deleted_by_force(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    // As a StatefulSet does it: the next pod has the same name, and exists before the node has ended the
    // first one.
    let mut slow = pod("web-0", &["web"]);
    slow["spec"]["terminationGracePeriodSeconds"] = json!(10);
    slow["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", "trap '' TERM; ls /sys/class/net; ip -o addr; sleep 1000000"]);
    test.create([claim("web", &network), slow])?;
    test.runs_with("web-0", &["net1"])?;
    let first = test.get("pod", "web-0")?["metadata"]["uid"].clone();
    test.kubectl(&["delete", "pod", "web-0", "--force", "--grace-period=0", "--wait=false"])?;
    test.create([pod("web-0", &["web"])])?;
    test.runs_with("web-0", &["net1"])?;
    ensure!(test.get("pod", "web-0")?["metadata"]["uid"] != first, "it is still the first pod");
    let inside = test.interface("web-0", "net1")?;
    eventually(15, "the claim has the next pod's addresses", || {
        let devices = test.claim_is_ready("web")?;
        ensure!(devices.first().is_some_and(|d| d["networkData"]["ips"] == json!(inside.ips)), "{devices:?}");
        Ok(())
    })
}

pub fn tools_on_the_node_see_the_attachments(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("p", &network)?;
    let sandbox = test.sandbox("p")?.sandbox;
    let agent = ["exec", "-n", SYSTEM, AGENT, "--", "netclaim-kubelet-plugin", "cni"];
    let listed = test.cluster.kubectl(&[agent.as_slice(), &["attachments", "--json"]].concat())?;
    let listed: Vec<Value> = serde_json::from_str(&listed)?;
    let of_pod: Vec<_> = listed.iter().filter(|one| one["containerID"] == sandbox).collect();
    let [one] = of_pod.as_slice() else { anyhow::bail!("the pod has one attachment, listed are {listed:?}") };
    ensure!(one["ifname"] == "net1" && one["attached"] == true, "{one}");
    ensure!(one["ips"] == json!(test.interface("p", "net1")?.ips), "{one}");
    Ok(())
}

pub fn a_pod_with_two_claims_has_two_interfaces(test: &Test<'_>) -> Result<()> {
    let (a, b) = (test.macvlan("a")?, test.macvlan("b")?);
    test.create([claim("a", &a), claim("b", &b), pod("p", &["a", "b"])])?;
    test.runs_with("p", &["net1", "net2"])?;
    // Interfaces are named in the order of the claims' names.
    for (claim, interface) in [("a", "net1"), ("b", "net2")] {
        let inside = test.interface("p", interface)?;
        let devices = test.claim_is_ready(claim)?;
        ensure!(
            devices.first().is_some_and(|d| d["networkData"]["ips"] == json!(inside.ips)),
            "{inside:?} is not {claim}'s: {devices:?}"
        );
    }
    Ok(())
}

pub fn a_claim_with_two_requests_gives_two_interfaces(test: &Test<'_>) -> Result<()> {
    let (a, b) = (test.macvlan("a")?, test.macvlan("b")?);
    let mut both = claim("both", &a);
    let mut config = attachment(json!({"interfaceName": "second0"}));
    config["requests"] = json!(["second"]);
    both["spec"]["devices"] =
        json!({"requests": [request("first", &a), request("second", &b)], "config": [config]});
    test.create([both, pod("p", &["both"])])?;
    test.runs_with("p", &["net1", "second0"])?;
    let devices = test.claim_is_ready("both")?;
    for (network, interface) in [(a, "net1"), (b, "second0")] {
        let inside = test.interface("p", interface)?;
        let device = devices.iter().find(|device| device["device"] == format!("net-{network}"));
        let device = device.with_context(|| format!("no status of {network}"))?;
        ensure!(device["networkData"]["ips"] == json!(inside.ips), "{device}, in the pod: {inside:?}");
    }
    Ok(())
}

pub fn two_pods_share_an_uplink_through_two_networks(test: &Test<'_>) -> Result<()> {
    let (a, b) = (test.macvlan("a")?, test.macvlan("b")?);
    test.pod("one", &a)?;
    test.pod("two", &b)?;
    for pod in ["one", "two"] {
        test.runs_with(pod, &["net1"])?;
    }
    let (one, two) = (test.interface("one", "net1")?, test.interface("two", "net1")?);
    ensure!(one.ips != two.ips && one.mac != two.mac, "{one:?}, {two:?}");
    Ok(())
}

pub fn a_claim_overrides_the_defaults_of_its_class(test: &Test<'_>) -> Result<()> {
    let name = test.name("a");
    let mut network = network(&name, "macvlan", "eth1", &test.subnet(0));
    network["spec"]["allow"] =
        json!({"parameters": {"mtu": {"type": "integer", "minimum": 1000, "maximum": 1500}}});
    network["spec"]["cni"]["plugins"][0]["mtu"] = json!("${parameters.mtu}");
    let mut class = class_of_network(&name, &name);
    class["spec"]["config"] =
        json!([attachment(json!({"interfaceName": "class0", "parameters": {"mtu": 1400}}))]);
    let (plain, mut named, mut small) = (claim("plain", &name), claim("named", &name), claim("small", &name));
    named["spec"]["devices"]["config"] = json!([attachment(json!({"interfaceName": "data0"}))]);
    small["spec"]["devices"]["config"] = json!([attachment(json!({"parameters": {"mtu": 1200}}))]);
    test.create([network, class, plain, named, small])?;
    test.create(["plain", "named", "small"].map(|name| pod(name, &[name])))?;
    for (pod, interface, mtu) in
        [("plain", "class0", 1400), ("named", "data0", 1400), ("small", "class0", 1200)]
    {
        test.runs_with(pod, &[interface])?;
        let inside = test.interface(pod, interface)?;
        ensure!(inside.mtu == mtu, "{pod}: {inside:?}");
        eventually(15, "the claim has the interface's name", || {
            let devices = test.claim_is_ready(pod)?;
            ensure!(
                devices.first().is_some_and(|d| d["networkData"]["interfaceName"] == interface),
                "{devices:?}"
            );
            Ok(())
        })?;
    }
    Ok(())
}

pub fn a_chain_of_plugins_sets_sysctls_of_the_pod(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| {
        let macvlan = network["spec"]["cni"]["plugins"][0].take();
        let tuning = json!({"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}});
        network["spec"]["cni"]["plugins"] = json!([macvlan, tuning]);
    })?;
    test.start_pod("p", &network)?;
    let value = test.kubectl(&["exec", "p", "--", "cat", "/proc/sys/net/ipv4/conf/net1/arp_filter"])?;
    ensure!(value.trim() == "1", "arp_filter is {value}");
    Ok(())
}

pub fn a_container_starts_after_the_last_plugin_of_all_chains(test: &Test<'_>) -> Result<()> {
    // The interface has its address long before the chain's last plugin ends.
    let slow = "[ \"$CNI_COMMAND\" != ADD ] || /opt/cni/bin/busybox sleep 4\nexec /opt/cni/bin/tuning";
    let slow = test.plugin("plugin", slow)?;
    let quick = test.macvlan("a")?;
    let chain = test.network("b", |network| {
        let macvlan = network["spec"]["cni"]["plugins"][0].take();
        network["spec"]["cni"]["plugins"] = json!([macvlan, {"type": slow, "mtu": 1234}]);
    })?;
    let mut pod = pod("p", &["a", "b"]);
    let script = "cat /sys/class/net/net2/mtu; ls /sys/class/net; ip -o addr; sleep 1000000 & wait";
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", format!("trap 'exit 0' TERM; {script}")]);
    test.create([claim("a", &quick), claim("b", &chain), pod])?;
    test.runs_with("p", &["net1", "net2"])?;
    let log = test.kubectl(&["logs", "p"])?;
    ensure!(log.lines().next() == Some("1234"), "the container's first process found {log}");
    Ok(())
}

pub fn a_pod_with_a_user_namespace_gets_its_network(test: &Test<'_>) -> Result<()> {
    // The runtime's features of its default handler, as the kubelet reports them.
    let node = test.cluster.get(&["nodes"])?["items"][0]["status"].take();
    let handlers = list(&node["runtimeHandlers"]);
    let mut of_default = handlers.filter(|handler| text(&handler["name"]).is_empty());
    if !of_default.any(|handler| handler["features"]["userNamespaces"] == true) {
        return test.skip(&format!("the runtime has no user namespaces: {}", node["runtimeHandlers"]));
    }
    let network = test.macvlan("a")?;
    test.pod_with("p", &network, |_, pod| pod["spec"]["hostUsers"] = json!(false))?;
    test.runs_with("p", &["net1"])
}
