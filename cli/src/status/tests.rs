//! From a fake API server, which also stands for the agents behind it, to the printed status.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::mock::{api_server, items, status};

const NETWORK: &str = "/apis/netclaim.dev/v1alpha1/claimnetworks?";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices?";
const NODES: &str = "/api/v1/nodes?";
const OWN_PODS: &str = "/api/v1/namespaces/netclaim-system/pods?";
const PENDING: &str = "fieldSelector=status.phase%3DPending";

fn network() -> Value {
    let plugins = json!([{"type": "sriov", "ipam": "${addresses}"}]);
    json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": "fast", "generation": 1},
        "spec": {"addresses": {"ranges": [{"subnet": "10.0.0.0/24"}]}, "cni": {"cniVersion": "1.1.0", "plugins": plugins}},
        "status": {"conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
            "observedGeneration": 1, "lastTransitionTime": "2026-11-22T00:00:00Z"}]}})
}

fn slice(node: &str, taints: Value) -> Value {
    let text = |text: &str| json!({"string": text});
    let device = json!({"name": "net-fast", "taints": taints,
        "attributes": {"network": text("fast"), "uplink": text("eth1"), "mode": text("sriov")}});
    json!({"metadata": {"name": node}, "spec": {"driver": "netclaim.dev", "nodeName": node, "devices": [device],
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": "v1.37.1", "containerRuntimeVersion":
        "containerd://2.3.7", "architecture": "", "bootID": "", "kernelVersion": "", "kubeProxyVersion": "", "machineID": "",
        "operatingSystem": "", "osImage": "", "systemUUID": ""}}})
}

fn own_pod(component: &str, node: &str, ready: &str, state: Value) -> Value {
    json!({"metadata": {"name": format!("{component}-{node}"), "namespace": "netclaim-system",
            "labels": {"app.kubernetes.io/name": format!("netclaim-{component}")}},
        "spec": {"nodeName": node, "containers": []},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "containerStatuses": [{"name": component, "image": "",
            "imageID": "", "ready": ready == "True", "restartCount": 0, "state": state}]}})
}

/// Four nodes: `a` is well, `b` lacks a plugin, the agents of `c` and `d` are not ready. `agent` answers for
/// them.
fn cluster(agent: impl Fn(&str) -> (u16, Value) + Send + 'static) -> Client {
    let running = || json!({"running": {}});
    let missing = json!([{"key": "netclaim.dev/plugin-missing", "effect": "NoSchedule"}]);
    api_server(move |uri| match uri {
        _ if uri.contains("/proxy/") => agent(uri),
        _ if uri.starts_with(NETWORK) => items([network()]),
        _ if uri.starts_with(SLICES) => items([slice("a", json!([])), slice("b", missing.clone())]),
        _ if uri.starts_with(NODES) => items(["a", "b", "c", "d"].map(node)),
        _ if uri.starts_with(OWN_PODS) => items([
            own_pod("agent", "a", "True", running()),
            own_pod("agent", "b", "True", running()),
            own_pod("agent", "c", "False", running()),
            own_pod(
                "agent",
                "d",
                "False",
                json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            ),
            own_pod("controller", "a", "True", running()),
        ]),
        _ if uri.contains(PENDING) => {
            let message =
                "CDI devices (netclaim.dev/claim=1) requested but CDI support is explicitly disabled";
            let mut pod = own_pod(
                "x",
                "c",
                "False",
                json!({"waiting": {"reason": "CreateContainerError", "message": message}}),
            );
            pod["metadata"]["namespace"] = json!("shop");
            items([pod])
        }
        _ => items([]),
    })
}

/// What agents of a cluster say whose scheduler cannot count.
fn agents(uri: &str) -> (u16, Value) {
    let plugin = |name: &str| {
        format!("netclaim_cni_plugin_info{{plugin=\"{name}\",path=\"/opt/cni/bin/{name}\"}} 1\n")
    };
    let uncounted = "netclaim_without_counters 1\n";
    match uri.rsplit_once('/').unwrap().1 {
        "readyz" => (
            503,
            json!(
                "not connected to the container runtime by NRI: enable NRI\nthe kubelet has not registered the driver"
            ),
        ),
        _ if uri.contains("agent-b:9177") => {
            let node_networks =
                "netclaim_network_set_up{network=\"fast\"} 1\nnetclaim_network_set_up{network=\"slow\"} 0\n";
            (200, json!(plugin("host-local") + uncounted + node_networks))
        }
        _ => (200, json!(plugin("host-local") + &plugin("sriov") + uncounted)),
    }
}

#[tokio::test]
async fn a_status_says_what_is_missing_on_which_node() {
    let text = text(&cluster(agents), &cluster(agents), "netclaim-system").await.unwrap();
    let (_, said) = text.split_once("PROBLEMS\n").unwrap();
    assert_eq!(
        said,
        "* node b takes no new pods for net-fast (plugin-missing)\n\
         * node b: CNI plugin sriov of ClaimNetwork fast is not installed: put it where the agent looks (--cni-bin-dir, by default \
         /opt/cni/bin), or into the image of plugins.image\n\
         * node c: CDI is off in its container runtime, which refuses the containers of pod shop/x-c: set enable_cdi = true in \
         the runtime's configuration, and restart the runtime\n\
         * node c: the agent is not ready: not connected to the container runtime by NRI: enable NRI\n\
         * node c: the agent is not ready: the kubelet has not registered the driver\n\
         * node d: the agent does not run: ImagePullBackOff: no such image\n\
         \n\
         NOTES\n\
         * no counters are published, because the scheduler of this Kubernetes version cannot work with them: of devices that \
         exclude each other on one link, one kind is offered\n"
    );
}

#[tokio::test]
async fn a_status_without_the_right_to_ask_agents_says_so() {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let client = cluster(move |uri| {
        seen.lock().unwrap().push(uri.to_owned());
        status(403, "Forbidden")
    });
    let text = text(&client, &client, "netclaim-system").await.unwrap();
    let right = "you may not ask it: that takes the right to get pods/proxy in namespace netclaim-system";
    for sentence in [
        format!(
            "* node c: the agent is not ready. It needs NRI and CDI of the container runtime: see the events of the Node, and the agent's log ({right})\n"
        ),
        format!("* node b: not known which CNI plugins are missing: its agent would say, but {right}\n"),
        format!("* not known whether counters are published: an agent would say, but {right}\n"),
    ] {
        assert!(text.contains(&sentence), "no {sentence:?} in {text}");
    }
    let mut asked = asked.lock().unwrap().clone();
    asked.sort();
    let of = |pod: &str| format!("/api/v1/namespaces/netclaim-system/pods/agent-{pod}:9177/proxy");
    assert_eq!(
        asked,
        [of("b") + "/metrics", of("c") + "/readyz"],
        "the agent of d does not run, and a's has nothing to say"
    );
}

#[tokio::test]
async fn the_status_of_a_node_has_its_devices_its_networks_and_plugins() {
    let report = of_node(&cluster(agents), &cluster(agents), "netclaim-system", "b").await.unwrap();
    let missing = "node b: CNI plugin sriov of ClaimNetwork fast is not installed: put it where the agent looks (--cni-bin-dir, by default \
        /opt/cni/bin), or into the image of plugins.image";
    let lines = [
        "NODE   AGENT   KUBELET   RUNTIME              ATTACHMENTS",
        "b      Ready   v1.37.1   containerd://2.3.7   0",
        "",
        "UPLINK   DEVICE     NETWORK   MODE    ATTACHMENTS   NO NEW PODS",
        "eth1     net-fast   fast      sriov   0             plugin-missing",
        "",
        "NETWORK   ON THE NODE",
        "fast      Ready",
        "slow      NotReady",
        "",
        "PLUGIN       NETWORKS   PROGRAM",
        "host-local   fast       /opt/cni/bin/host-local",
        "sriov        fast       <none>",
        "",
        "PROBLEMS",
        "* node b takes no new pods for net-fast (plugin-missing)",
    ];
    let text = report.text(Colours::Off);
    assert!(text.starts_with(&lines.join("\n")), "{text}");
    assert_eq!(text.matches(missing).count(), 1, "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        json["plugins"][0],
        json!({"plugin": "host-local", "networks": ["fast"], "path": "/opt/cni/bin/host-local"})
    );
    assert_eq!(json["nodeNetworks"][1], json!({"network": "slow", "ready": false}));
}

#[tokio::test]
async fn the_status_of_a_node_says_what_is_not_known_and_which_nodes_there_are_not() {
    let unreachable = || cluster(|_| status(503, "ServiceUnavailable"));
    let report = of_node(&unreachable(), &unreachable(), "netclaim-system", "a").await.unwrap();
    let text = report.text(Colours::Off);
    assert!(!text.contains("PLUGIN ") && !text.contains("PROBLEMS"), "{text}");
    let note = "* not known which programs the CNI plugins are, nor whether counters are published: the agent would say, but \
        the API server cannot ask it: ServiceUnavailable is why\n";
    assert!(text.ends_with(&format!("\nNOTES\n{note}")), "{text}");
    let error = of_node(&unreachable(), &unreachable(), "netclaim-system", "nowhere").await.unwrap_err();
    assert_eq!(error.to_string(), "there is no node nowhere");
}

#[tokio::test]
async fn a_status_lists_what_is_owed_or_left_on_each_node() {
    let claim = |name: &str, pool: &str, reason: &str| {
        let device = json!({"driver": "netclaim.dev", "pool": pool, "device": "net-fast", "request": "net"});
        let mut reported = device.clone();
        reported["conditions"] = json!([{"type": "Ready", "status": "False", "reason": reason, "message": "the switch says no",
            "lastTransitionTime": "2026-11-22T00:00:00Z"}]);
        json!({"metadata": {"namespace": "shop", "name": name}, "spec": {}, "status": {
            "allocation": {"devices": {"results": [device]}}, "devices": [reported]}})
    };
    let client = api_server(move |uri| match uri {
        _ if uri.starts_with(NETWORK) => items([network()]),
        _ if uri.starts_with(SLICES) => items([slice("a", json!([]))]),
        _ if uri.starts_with(NODES) => items([node("a")]),
        _ if uri.starts_with(OWN_PODS) => {
            items(["agent", "controller"].map(|name| own_pod(name, "a", "True", json!({"running": {}}))))
        }
        _ if uri.contains("/resourceclaims?") => items([
            claim("db", "a", "DetachFailed"),
            claim("web", "a", "AttachFailed"),
            claim("all", "networks/fast", "DetachFailed"),
        ]),
        _ if uri.starts_with("/apis/events.k8s.io/v1/events?") && uri.contains("NetworkDetachGivenUp") => {
            items([json!({"metadata": {"name": "e", "namespace": "shop"}, "eventTime": null,
                "reason": "NetworkDetachGivenUp", "reportingController": "netclaim.dev", "reportingInstance": "a",
                "regarding": {"kind": "Pod", "namespace": "shop", "name": "old"}, "note": "network fast: rules are left"})])
        }
        _ => items([]),
    });
    let text = text(&client, &client, "netclaim-system").await.unwrap();
    let (_, said) = text.split_once("PROBLEMS\n").unwrap();
    let (said, _) = said.split_once("\n\n").unwrap_or_else(|| (said.trim_end(), ""));
    assert_eq!(
        said,
        "* a DEL of claim shop/all is owed and fails: the switch says no\n\
         * node a: a DEL of claim shop/db is owed and fails: the switch says no\n\
         * node a: a DEL of pod shop/old was given up: network fast: rules are left"
    );
}

#[tokio::test]
async fn a_status_does_without_pools_and_daemon_sets_that_cannot_be_read() {
    for (code, reason) in [(403, "Forbidden"), (404, "NotFound")] {
        let client = api_server(move |uri| match uri {
            _ if uri.starts_with("/apis/netclaim.dev/v1alpha1/addresspools?") => status(code, reason),
            _ if uri.contains("/namespaces/netclaim-system/daemonsets?") => status(code, reason),
            _ if uri.starts_with(NETWORK) => items([network()]),
            _ => items([]),
        });
        let text = text(&client, &client, "netclaim-system").await.unwrap();
        assert!(text.contains("\nfast "), "{text}");
    }
}

#[tokio::test]
async fn the_daemon_set_of_the_agents_says_which_nodes_have_one() {
    let set = |name: &str, rack: &str| {
        json!({"metadata": {"name": name}, "spec": {"selector": {}, "template": {
            "metadata": {"labels": {"app.kubernetes.io/name": name}}, "spec": {"containers": [], "nodeSelector": {"rack": rack}}}}})
    };
    let client = api_server(move |uri| match uri {
        _ if uri.starts_with(NETWORK) => items([network()]),
        _ if uri.contains("/namespaces/netclaim-system/daemonsets?") => {
            items([set("other", "1"), set("netclaim-agent", "2")])
        }
        _ if uri.starts_with(OWN_PODS) => items([own_pod("controller", "a", "True", json!({"running": {}}))]),
        _ if uri.starts_with(NODES) => items(["1", "2"].map(|rack| {
            let mut node = node(&format!("rack{rack}"));
            node["metadata"]["labels"] = json!({"rack": rack});
            node
        })),
        _ => items([]),
    });
    let text = text(&client, &client, "netclaim-system").await.unwrap();
    let (_, problems) = text.split_once("PROBLEMS\n").unwrap();
    let of_nodes: Vec<&str> = problems.lines().filter(|line| line.starts_with("* node ")).collect();
    assert_eq!(of_nodes, ["* node rack2 has no agent: pods with networks do not run there"], "{text}");
}
