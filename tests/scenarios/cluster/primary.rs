//! Pods whose eth0 is a claimed network: the RuntimeClass of primary networks.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{
    attachment, claim, claim_template, class_of_network, list, pod, pod_of_template,
};
use netclaim_tests::{Runtime, Test, eventually};
use serde_json::{Value, json};

/// The DeviceClass of a network as pods' primary one.
fn primary_class(network: &str) -> Value {
    let mut class = class_of_network(network, network);
    class["spec"]["config"] = json!([attachment(json!({"primary": true}))]);
    class
}

/// Creates a ClaimNetwork of point-to-point links, which the node reaches, with a class that makes it pods'
/// primary network.
fn ptp(test: &Test<'_>, name: &str, ranges: Value, routes: Value) -> Result<String> {
    let full = test.name(name);
    let ipam = json!({"type": "host-local", "ranges": ranges, "routes": routes});
    let plugins = json!([{"type": "ptp", "ipam": ipam}]);
    test.create([network(&full, &plugins), primary_class(&full)])?;
    Ok(full)
}

fn network(name: &str, plugins: &Value) -> Value {
    json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": name},
        "spec": {"deviceClass": "None", "allow": {"primary": {}}, "cni": {"cniVersion": "1.0.0", "plugins": plugins}}})
}

fn default_routes() -> Value {
    json!([{"dst": "0.0.0.0/0"}])
}

/// A pod of the RuntimeClass whose claims these are, ready when the kubelet reaches it by TCP.
fn primary_pod(name: &str, claims: &[&str]) -> Value {
    let mut pod = pod(name, claims);
    pod["metadata"]["labels"] = json!({"app": name});
    pod["spec"]["runtimeClassName"] = json!("netclaim");
    let shell = &mut pod["spec"]["containers"][0];
    let listen =
        "trap 'exit 0' TERM; while :; do nc -l -p 8080 </dev/null >/dev/null; done & sleep 1000000 & wait";
    shell["command"] = json!(["sh", "-c", listen]);
    shell["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    pod
}

fn is_ready(test: &Test<'_>, pod: &str) -> Result<()> {
    test.kubectl(&["wait", "--for=condition=Ready", "--timeout=90s", &format!("pod/{pod}")]).map(drop)
}

/// The addresses in the pod's status.
fn pod_ips(test: &Test<'_>, pod: &str) -> Result<Vec<String>> {
    let status = test.get("pod", pod)?["status"].take();
    Ok(list(&status["podIPs"]).filter_map(|ip| Some(ip["ip"].as_str()?.to_owned())).collect())
}

/// Makes sure that the pod's only interfaces are these, beside the loopback.
fn has_only(test: &Test<'_>, pod: &str, interfaces: &[&str]) -> Result<()> {
    let found = test.interfaces(pod)?;
    let others: Vec<&str> = found.keys().map(String::as_str).filter(|name| *name != "lo").collect();
    ensure!(others == interfaces, "{pod} has {others:?}");
    Ok(())
}

/// Whether the node's runtime can have a CNI directory for a RuntimeClass.
fn is_served(test: &Test<'_>) -> Result<bool> {
    if test.cluster.node().runtime() == Runtime::Containerd {
        return Ok(true);
    }
    test.skip("CRI-O has no CNI directory for a RuntimeClass").map(|()| false)
}

pub fn a_claimed_network_is_the_pods_own(test: &Test<'_>) -> Result<()> {
    if !is_served(test)? {
        return Ok(());
    }
    test.cluster.with_primary_networks(|| {
        let network = ptp(test, "a", json!([[{"subnet": test.subnet(0)}]]), default_routes())?;
        let second = test.macvlan("b")?;
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "p"},
            "spec": {"selector": {"app": "p"}, "ports": [{"port": 80, "targetPort": 8080}]}});
        test.create([
            service,
            claim("zone", &network),
            claim("also", &second),
            primary_pod("p", &["also", "zone"]),
        ])?;
        test.runs("p")?;
        // By the kubelet's probe, over the network.
        is_ready(test, "p")?;
        has_only(test, "p", &["eth0", "net1"])?;
        let own = test.ip("p", "eth0")?;
        ensure!(own.starts_with(&test.subnet(0)[..7]), "eth0 has {own}, which is not the network's");
        ensure!(pod_ips(test, "p")? == [own.clone()], "the pod's addresses are {:?}", pod_ips(test, "p")?);
        eventually(30, "the Service leads to the claimed address", || {
            let slices = test.cluster.get(&[
                "-n",
                test.namespace(),
                "endpointslices",
                "-l",
                "kubernetes.io/service-name=p",
            ])?;
            let mut endpoints = list(&slices["items"]).flat_map(|slice| list(&slice["endpoints"]));
            let endpoint = endpoints.next().context("no endpoint")?;
            ensure!(endpoint["addresses"][0] == own.as_str(), "it is {endpoint}");
            Ok(())
        })?;
        let devices = test.claim_is_ready("zone")?;
        ensure!(devices[0]["networkData"]["interfaceName"] == "eth0", "{devices:?}");

        // A pod without the RuntimeClass has nothing to do with it.
        test.create([pod("plain", &[])])?;
        test.runs("plain")?;
        test.ping("plain", "p", "eth0")?;
        ensure!(!test.ip("plain", "eth0")?.starts_with(&test.subnet(0)[..7]), "plain is in the network");

        // What restarts costs the pod nothing, and no plugin is called.
        let sandbox = test.sandbox("p")?.id;
        test.cluster.kill_agent()?;
        test.cluster.service("restart", "runtime")?;
        test.cluster.service("restart", "kubelet")?;
        test.cluster.agent_ready()?;
        is_ready(test, "p")?;
        ensure!(
            test.sandbox("p")?.id == sandbox && test.ip("p", "eth0")? == own,
            "the pod has another sandbox"
        );

        // A new sandbox asks again, also one that is made while the agent starts.
        test.replace_sandbox("p")?;
        is_ready(test, "p")?;
        has_only(test, "p", &["eth0", "net1"])?;
        test.end_sandbox("p")?;
        test.cluster.kill_agent()?;
        eventually(90, "the pod has its networks in the next sandbox", || {
            has_only(test, "p", &["eth0", "net1"])
        })?;
        is_ready(test, "p")?;
        eventually(30, "the status follows", || {
            ensure!(pod_ips(test, "p")? == [test.ip("p", "eth0")?], "it is {:?}", pod_ips(test, "p")?);
            Ok(())
        })?;
        for pod in ["p", "plain"] {
            test.delete_pod(pod)?;
        }
        eventually(60, "no address is taken", || test.node_has_leases(0))
    })
}

pub fn primary_networks_have_both_families_and_other_plugins(test: &Test<'_>) -> Result<()> {
    if !is_served(test)? {
        return Ok(());
    }
    test.cluster.with_primary_networks(|| {
        let both = json!([[{"subnet": test.subnet(0)}], [{"subnet": test.subnet6()}]]);
        let dual = ptp(test, "a", both, json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]))?;
        let bridge = test.name("b");
        let ipam = json!({"type": "host-local", "ranges": [[{"subnet": test.subnet(1)}]], "routes": default_routes()});
        let plugin = json!([{"type": "bridge", "bridge": "ncprimary0", "isGateway": true, "ipam": ipam}]);
        test.create([network(&bridge, &plugin), primary_class(&bridge)])?;
        // The node does not reach its own macvlan pods: no probe.
        let macvlan = test.network("c", |network| network["spec"]["allow"] = json!({"primary": {}}))?;
        for (name, class) in [("dual", &dual), ("bridged", &bridge)] {
            test.create([claim(name, class), primary_pod(name, &[name])])?;
        }
        for name in ["far", "near"] {
            test.pod_with(name, &macvlan, |claim, pod| {
                claim["spec"]["devices"]["config"] = json!([attachment(json!({"primary": true}))]);
                pod["spec"]["runtimeClassName"] = json!("netclaim");
            })?;
        }
        for name in ["dual", "bridged"] {
            is_ready(test, name)?;
            has_only(test, name, &["eth0"])?;
        }
        let ips = pod_ips(test, "dual")?;
        ensure!(ips.len() == 2 && ips[1].contains(':'), "the pod's addresses are {ips:?}");
        for name in ["far", "near"] {
            test.runs(name)?;
            has_only(test, name, &["eth0"])?;
        }
        test.ping("far", "near", "eth0")?;
        for name in ["dual", "bridged", "far", "near"] {
            test.delete_pod(name)?;
        }
        test.cluster.on_node(&["ip", "link", "delete", "ncprimary0"])?;
        eventually(60, "no address is taken", || test.node_has_leases(0))
    })
}

pub fn no_container_runs_on_another_network_than_its_primary_one(test: &Test<'_>) -> Result<()> {
    if !is_served(test)? {
        return Ok(());
    }
    let ranges = || json!([[{"subnet": test.subnet(0)}]]);
    let network = ptp(test, "a", ranges(), default_routes())?;
    test.create([claim("off", &network), pod("off", &["off"])])?;
    test.event("off", &["primary networks are off on node node0", "primary.enabled"])?;
    test.delete_pod("off")?;
    test.cluster.with_primary_networks(|| {
        // Without the RuntimeClass the runtime makes the sandbox with the cluster's network.
        let mut other = primary_pod("other", &["other"]);
        other["spec"]["runtimeClassName"] = Value::Null;
        test.create([claim("other", &network), other])?;
        test.event("other", &["the sandbox's eth0 is another network's", "runtimeClassName"])?;
        test.does_not_start("other")?;

        // With it and without a claim there is no network.
        test.create([primary_pod("bare", &[])])?;
        test.event("bare", &["FailedCreatePodSandBox", "no ResourceClaim with primary: true is prepared"])?;

        // Two of them, and one that a pod before has.
        test.create([claim("one", &network), claim("two", &network), primary_pod("both", &["one", "two"])])?;
        test.event("both", &["another attachment of the pod is its primary network already"])?;
        test.create([claim("shared", &network), primary_pod("first", &["shared"])])?;
        test.runs("first")?;
        test.create([primary_pod("later", &["shared"])])?;
        test.event("later", &["FailedCreatePodSandBox", "no ResourceClaim with primary: true is prepared"])?;

        // Nothing would lead a port of the node to it.
        let mut port = primary_pod("port", &["port"]);
        port["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 18080}]);
        test.create([claim("port", &network), port])?;
        test.event("port", &["FailedCreatePodSandBox", "hostPort"])?;

        // Without its configuration the runtime makes no sandbox. The next agent writes it again.
        fs::remove_file(test.cluster.node().path("/var/lib/netclaim/primary/10-netclaim.conflist"))?;
        test.create([claim("late", &network), primary_pod("late", &["late"])])?;
        test.event("late", &["FailedCreatePodSandBox", "cni"])?;
        test.does_not_start("late")?;
        test.cluster.kill_agent()?;
        is_ready(test, "late")?;
        has_only(test, "late", &["eth0"])?;
        test.delete_pod("late")?;

        for name in ["other", "bare", "both", "later", "port"] {
            test.does_not_start(name)?;
        }
        for name in ["other", "bare", "both", "port", "first"] {
            test.delete_pod(name)?;
        }
        // The kubelet asks for no other Prepare of the claim.
        is_ready(test, "later")?;
        has_only(test, "later", &["eth0"])?;
        test.delete_pod("later")?;
        eventually(60, "no address is taken", || test.node_has_leases(0))
    })
}

pub fn a_pod_waits_for_its_primary_network_while_the_agent_is_away(test: &Test<'_>) -> Result<()> {
    if !is_served(test)? {
        return Ok(());
    }
    test.cluster.with_primary_networks(|| {
        let network = ptp(test, "a", json!([[{"subnet": test.subnet(0)}]]), default_routes())?;
        test.create([claim("p", &network), primary_pod("p", &["p"])])?;
        is_ready(test, "p")?;
        test.cluster.agent_away()?;
        // Its next sandbox has no network until the agent is back.
        test.end_sandbox("p")?;
        eventually(150, "the next sandbox waits for the agent", || {
            let events = test.events("p")?;
            let is_said = |event: &String| {
                event.contains("DRA driver netclaim.dev is not registered")
                    || event.contains("has not answered at")
            };
            ensure!(events.iter().any(is_said), "it has {events:#?}");
            Ok(())
        })?;
        test.does_not_start("p")?;
        test.cluster.agent_back()?;
        test.runs("p")?;
        is_ready(test, "p")?;
        has_only(test, "p", &["eth0"])?;
        test.delete_pod("p")?;
        eventually(60, "no address is taken", || test.node_has_leases(0))
    })
}

pub fn a_reboot_gives_pods_their_primary_networks_again(test: &Test<'_>) -> Result<()> {
    if !is_served(test)? {
        return Ok(());
    }
    test.cluster.with_primary_networks(|| {
        let network = ptp(test, "a", json!([[{"subnet": test.subnet(0)}]]), default_routes())?;
        test.cluster.agent_reads_boot_id("00000000-0000-4000-8000-000000000001")?;
        test.create([claim("stays", &network), primary_pod("stays", &["stays"])])?;
        test.create([claim("goes", &network), primary_pod("goes", &["goes"])])?;
        for name in ["stays", "goes"] {
            is_ready(test, name)?;
        }
        let old = test.sandbox("stays")?.id;
        test.cluster.power_off("node0")?;
        test.delete_pod_by_force("goes")?;
        test.kubectl(&["delete", "resourceclaim", "goes", "--timeout=60s"])?;
        test.cluster.power_on("node0")?;
        eventually(120, "the pod has its network in a new sandbox", || {
            let sandbox = test.container("stays", "shell")?.sandbox;
            ensure!(sandbox != old, "it is the old one");
            has_only(test, "stays", &["eth0"])
        })?;
        test.cluster.agent_ready()?;
        is_ready(test, "stays")?;
        // The kubelet releases claims of pods that are gone a minute after its start.
        eventually(150, "the other's address is released", || test.node_has_leases(1))?;
        test.delete_pod("stays")?;
        eventually(60, "no address is taken", || test.node_has_leases(0))
    })
}

pub fn many_pods_get_their_primary_networks_at_once(test: &Test<'_>) -> Result<()> {
    const PODS: usize = 25;
    if !is_served(test)? {
        return Ok(());
    }
    test.cluster.with_primary_networks(|| {
        let network = ptp(test, "a", json!([[{"subnet": test.subnet(0)}]]), default_routes())?;
        let names: Vec<String> = (0..PODS).map(|n| format!("p{n}")).collect();
        let pods = names.iter().map(|name| {
            let mut own = pod_of_template(name, "own");
            own["spec"]["runtimeClassName"] = json!("netclaim");
            own
        });
        test.create([claim_template("own", &network)])?;
        test.create(pods)?;
        for name in &names {
            test.runs(name)?;
        }
        let mut ips = BTreeSet::new();
        for name in &names {
            has_only(test, name, &["eth0"])?;
            let of_pod = pod_ips(test, name)?;
            ensure!(of_pod == [test.ip(name, "eth0")?], "{name} has {of_pod:?}");
            ips.extend(of_pod);
        }
        ensure!(ips.len() == PODS, "some have the same address: {ips:?}");
        test.kubectl(&["delete", "pods", "--all", "--timeout=120s"])?;
        eventually(60, "no address is taken", || test.node_has_leases(0))
    })
}

/// A plugin that makes nothing, and says that the pod has an address: containerd makes no sandbox without.
const NOTHING: &str = r#"case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
ADD) echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}],
  "ips": [{"address": "192.0.2.99/32", "interface": 0}]}' ;;
esac"#;

pub fn a_pod_without_any_network_of_the_runtime_gets_those_that_it_claims(test: &Test<'_>) -> Result<()> {
    if !is_served(test)? {
        return Ok(());
    }
    let plugin = test.plugin("nothing", NOTHING)?;
    let list = json!({"cniVersion": "1.0.0", "name": "nothing", "plugins": [{"type": plugin}]});
    fs::write(test.cluster.node().path("/etc/cni/bare.d/10-nothing.conflist"), list.to_string())?;
    let class = test.name("bare");
    let runtime_class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": class}, "handler": "bare"});
    let bare = |name: &str, claims: &[&str]| {
        let mut pod = pod(name, claims);
        pod["spec"]["runtimeClassName"] = json!(class);
        pod
    };
    let start = || {
        let network = ptp(test, "a", json!([[{"subnet": test.subnet(0)}]]), default_routes())?;
        let second = test.network("b", |network| network["spec"]["allow"] = json!({"defaultRoute": {}}))?;
        test.create([
            runtime_class,
            claim("zone", &network),
            claim("also", &second),
            bare("p", &["also", "zone"]),
        ])?;
        // Nobody was asked for an eth0, and none is there.
        test.runs("p")?;
        has_only(test, "p", &["eth0", "net1"])?;
        test.cluster.kill_agent()?;
        test.replace_sandbox("p")?;
        has_only(test, "p", &["eth0", "net1"])?;

        let mut route = claim("route", &second);
        route["spec"]["devices"]["config"] = json!([attachment(json!({"defaultRoute": true}))]);
        test.create([route, bare("q", &["route"])])?;
        test.runs("q")?;
        has_only(test, "q", &["net1"])?;
        let routes = test.kubectl(&["exec", "q", "--", "ip", "route"])?;
        ensure!(routes.contains("default via") && routes.contains("dev net1"), "{routes}");
        for name in ["p", "q"] {
            test.delete_pod(name)?;
        }
        test.kubectl(&["delete", "runtimeclass", &class])?;
        eventually(60, "no address is taken", || test.node_has_leases(0))
    };
    test.cluster.with_primary_networks(|| {
        test.cluster.with_agent_env("NETCLAIM_CLUSTER_CIDRS", "10.97.0.0/16", start)
    })
}
