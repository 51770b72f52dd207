//! What a node lacks for netclaim, in sentences. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ContainerState, Node, Pod};
use kube::ResourceExt as _;
use netclaim_api::device::DeviceName;
use netclaim_api::network::ClaimNetwork;
use netclaim_api::taints::Reason;
use serde_json::{Value, json};

use super::agents::{Found, NotAsked};
use super::snapshot::Snapshot;

/// The first version of Kubernetes that netclaim works with.
const KUBERNETES: (u64, u64) = (1, 36);
/// The first version of containerd in which NRI and CDI are on by default.
const CONTAINERD: (u64, u64) = (2, 0);

/// What an agent that is not ready lacks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// It was not to be asked.
    Unasked,
    /// It could not be asked, for this reason.
    Unknown(String),
    /// Its container does not run, for this reason.
    Waits(String),
    /// It has become ready since its pod was read.
    Nothing,
    /// These, as it says itself.
    These(Vec<String>),
}

/// Returns what an agent lacks, by its pod and its answer.
pub(super) fn of_agent(pod: Option<&Pod>, answer: Option<&Result<Vec<String>, NotAsked>>) -> Lack {
    match (pod.and_then(waiting), answer) {
        (Some(why), _) => Lack::Waits(why),
        (None, None) => Lack::Unasked,
        (None, Some(Err(why))) => Lack::Unknown(why.to_string()),
        (None, Some(Ok(lines))) if lines.is_empty() => Lack::Nothing,
        (None, Some(Ok(lines))) => Lack::These(lines.clone()),
    }
}

/// Returns why the container of a pod does not run.
pub(super) fn waiting(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    status.container_statuses.iter().flatten().find_map(|container| {
        let why = not_running(container.state.as_ref()?)?;
        // Of a container that ends again and again, the kubelet says only that it waits.
        let ended = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        let words = ended.and_then(|ended| ended.message.as_deref()?.trim_end().lines().last());
        Some(words.map_or_else(|| why.clone(), |words| format!("{why}: {words}")))
    })
}

fn not_running(state: &ContainerState) -> Option<String> {
    let (reason, message) = match (&state.waiting, &state.terminated) {
        (Some(waiting), _) => (&waiting.reason, &waiting.message),
        (None, Some(ended)) => (&ended.reason, &ended.message),
        (None, None) => return None,
    };
    let parts = [reason, message].into_iter().flatten().filter(|part| !part.is_empty());
    Some(parts.cloned().collect::<Vec<_>>().join(": "))
}

/// Returns which versions of the node are too old.
pub(super) fn of_versions(node: &Node) -> Vec<String> {
    let name = node.name_any();
    let Some(info) = node.status.as_ref().and_then(|status| status.node_info.as_ref()) else {
        return Vec::new();
    };
    let (kubelet, runtime) = (&info.kubelet_version, &info.container_runtime_version);
    let kubelet_is_old = version(kubelet).is_some_and(|version| version < KUBERNETES);
    let containerd = runtime.strip_prefix("containerd://").and_then(version);
    let old_kubelet = kubelet_is_old.then(|| {
        format!("node {name}: its kubelet is {kubelet}, and netclaim needs Kubernetes 1.36 or newer")
    });
    let old_runtime = containerd.is_some_and(|version| version < CONTAINERD).then(|| {
        format!("node {name}: its container runtime is {runtime}, and netclaim needs containerd 2.0 or newer, with NRI and CDI on")
    });
    old_kubelet.into_iter().chain(old_runtime).collect()
}

/// Major and minor version of `v1.37.1` or `2.3.7`.
fn version(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.trim_start_matches('v').split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Returns that the node's runtime has CDI off, if a pod shows it.
pub(super) fn of_cdi(node: &str, snapshot: &Snapshot) -> Option<String> {
    let refused = snapshot.refused.iter().find(|refused| refused.node == node)?;
    Some(format!(
        "node {node}: CDI is off in its container runtime, which refuses the containers of pod {}: set enable_cdi = true in \
         the runtime's configuration, and restart the runtime",
        refused.pod
    ))
}

/// Returns which plugins are not on the node, for its devices that lack one. `closed` has the taints of
/// devices that take no new pods.
pub(super) fn of_plugins(
    node: &str,
    closed: &BTreeMap<String, BTreeSet<String>>,
    snapshot: &Snapshot,
) -> Vec<String> {
    let missing = Reason::PluginMissing.key();
    let without: BTreeSet<String> = closed
        .iter()
        .filter(|(_, taints)| taints.contains(missing))
        .filter_map(|(device, _)| network_of(device))
        .collect();
    if without.is_empty() {
        return Vec::new();
    }
    match snapshot.answers.found.get(node) {
        None => Vec::new(),
        Some(Err(why)) => vec![format!(
            "node {node}: not known which CNI plugins are missing: its agent would say, but {why}"
        )],
        Some(Ok(found)) => {
            let networks = snapshot.networks.iter().filter(|network| without.contains(&network.name_any()));
            let missing =
                needed(networks).into_iter().filter(|(plugin, _)| !found.plugins.contains_key(plugin));
            missing.map(|(plugin, networks)| not_installed(node, &plugin, &networks)).collect()
        }
    }
}

/// The sentence about a plugin that is not on the node.
pub(super) fn not_installed(node: &str, plugin: &str, networks: &BTreeSet<String>) -> String {
    let networks: Vec<&str> = networks.iter().map(String::as_str).collect();
    format!(
        "node {node}: CNI plugin {plugin} of ClaimNetwork {} is not installed: put it where the agent looks (--cni-bin-dir, by default \
         /opt/cni/bin), or into the image of plugins.image",
        networks.join(", ")
    )
}

/// Returns the name of the ClaimNetwork whose device this is.
pub(super) fn network_of(device: &str) -> Option<String> {
    match device.parse() {
        Ok(DeviceName::Network(name)) => Some(name.to_string()),
        _ => None,
    }
}

/// Returns the CNI plugins that ClaimNetworks need, each with their names. Types that a claim chooses are not
/// among them.
pub(super) fn needed<'a>(
    networks: impl Iterator<Item = &'a ClaimNetwork>,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut needed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for network in networks {
        // What the agent writes for `${addresses}`.
        let conflist = network.spec.cni_with(&json!({"type": "host-local"}));
        let plugins = conflist.get("plugins").and_then(Value::as_array).into_iter().flatten();
        let types = plugins.flat_map(|plugin| [&plugin["type"], &plugin["ipam"]["type"]]);
        for plugin in
            types.filter_map(Value::as_str).filter(|plugin| !plugin.is_empty() && !plugin.contains('$'))
        {
            needed.entry(plugin.to_owned()).or_default().insert(network.name_any());
        }
    }
    needed
}

/// Returns what netclaim does without because of the scheduler, as agents have found.
pub(super) fn of_server(found: &[&Found]) -> Option<String> {
    found.iter().any(|found| found.without_counters).then(|| {
        "no counters are published, because the scheduler of this Kubernetes version cannot work with them: of devices that \
         exclude each other on one link, one kind is offered"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(kubelet: &str, runtime: &str) -> Node {
        let version = |text: &str| json!(text);
        serde_json::from_value(json!({"metadata": {"name": "a"}, "status": {"nodeInfo": {
            "kubeletVersion": version(kubelet), "containerRuntimeVersion": version(runtime), "architecture": "", "bootID": "",
            "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}}}))
        .unwrap()
    }

    #[test]
    fn versions_that_are_too_old_are_named() {
        for runtime in ["containerd://2.0.0", "containerd://2.3.7-rc.1", "cri-o://1.36.0", "docker://x"] {
            assert_eq!(of_versions(&node("v1.36.0+k3s1", runtime)), [""; 0], "{runtime}");
        }
        let old = of_versions(&node("v1.35.4", "containerd://1.7.27"));
        assert_eq!(old.len(), 2, "{old:?}");
        assert!(
            old.concat().contains("v1.35.4") && old.concat().contains("containerd 2.0 or newer"),
            "{old:?}"
        );
        assert_eq!(of_versions(&Node::default()), [""; 0]);
    }

    #[test]
    fn an_agent_that_ends_again_and_again_is_shown_with_its_last_words() {
        let container = |last: Value| {
            let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
            json!({"name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 3, "state": waiting, "lastState": last})
        };
        let pod = |last: Value| {
            let pod = json!({"spec": {"containers": []}, "status": {"containerStatuses": [container(last)]}});
            waiting(&serde_json::from_value(pod).unwrap()).unwrap()
        };
        assert_eq!(pod(json!({})), "CrashLoopBackOff: back-off 10s");
        let ended = json!({"terminated": {"exitCode": 1, "message": "one\nERROR Read-only file system\n"}});
        assert_eq!(pod(ended), "CrashLoopBackOff: back-off 10s: ERROR Read-only file system");
    }

    #[test]
    fn a_network_needs_the_plugins_of_its_chain_and_their_ipam_plugins() {
        let network: ClaimNetwork = serde_json::from_value(json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork",
            "metadata": {"name": "n"}, "spec": {"addresses": {"ranges": [{"subnet": "10.0.0.0/24"}]}, "cni": {"cniVersion": "1.1.0",
            "plugins": [{"type": "macvlan", "ipam": "${addresses}"}, {"type": "tuning"}, {"type": "${parameters.x}"},
                {"type": "ipvlan", "ipam": {"type": "dhcp"}}]}}}))
        .unwrap();
        let needed = needed([&network].into_iter());
        assert_eq!(Vec::from_iter(needed.keys()), ["dhcp", "host-local", "ipvlan", "macvlan", "tuning"]);
    }
}
