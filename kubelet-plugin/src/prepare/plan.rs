//! From a claim to the plans of its attachments. Pure: everything it looks at is an argument.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::merge::{Base, PlainUse, merge};
use netclaim_api::network::{self, NetworkSpec, conflist_name};
use netclaim_api::segmentation::ChosenBy;
use netclaim_api::template::Scope;
use netclaim_api::{IfName, device};
use netclaim_driver::attach::record::{DeviceRef, Plan, Segment};
use netclaim_driver::links::Link;
use serde_json::{Map, Value, json};

use crate::devices;
use crate::inventory::{Inventory, Uplink};
use crate::prepare::claim::{AllocatedDevice, Claim};
use crate::prepare::node_selector;

/// What every plan on this node is made with.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// The Node object's name.
    pub name: &'a str,
    /// What it has.
    pub inventory: &'a Inventory,
    /// Labels of the claim's namespace; needed where a Network [asks for them](asks_for_namespace).
    pub namespace_labels: &'a BTreeMap<String, String>,
}

/// What is journalled already: of other claims, and of this one.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// Plans of this very claim and pod, which stay as they are.
    pub own: Vec<Plan>,
    /// Interface names in the claim's pod.
    pub names: BTreeSet<IfName>,
    /// Segmentation ids on the node.
    pub segments: BTreeSet<Segment>,
}

/// Whether the labels of the claim's namespace decide whether it may use its Networks.
pub fn asks_for_namespace(claim: &Claim, inventory: &Inventory) -> bool {
    networks(claim, inventory).any(|spec| spec.namespace_selector.is_some())
}

fn networks<'a>(claim: &'a Claim, inventory: &'a Inventory) -> impl Iterator<Item = &'a NetworkSpec> {
    let names = claim.devices.iter().filter_map(|allocated| device::network_of(&allocated.device.device));
    names.filter_map(|name| inventory.networks.get(&name))
}

/// The attachments of `claim`, which get nothing that is `taken`.
///
/// # Errors
/// The first problem with the field or object and what to do, as the user shall read it.
pub fn plans(claim: &Claim, node: Node<'_>, taken: &Taken) -> Result<Vec<Plan>, String> {
    is_for_node(claim, node)?;
    let mut taken = taken.clone();
    let mut plans: Vec<Plan> = Vec::new();
    let of = u32::try_from(claim.devices.len()).map_err(|_| "too many devices in one claim".to_owned())?;
    for (index, device) in (0..of).zip(&claim.devices) {
        let known = taken.own.iter().find(|plan| plan.index == index && plan.device == device.device);
        let plan = match known.cloned() {
            Some(known) => known,
            None => plan(claim, device, index, node, &taken)
                .map_err(|problem| in_request(claim, device, &problem))?,
        };
        taken.names.insert(plan.if_name.clone());
        taken.segments.extend(plan.segment.clone());
        plans.push(Plan { of, ..plan });
    }
    Ok(plans)
}

/// Whether the allocation is for this node, and of devices that the node offers now.
///
/// # Errors
/// The first that is not, as the user shall read it. The kubelet asks for any claim that is reserved for its pod.
pub fn is_offered(claim: &Claim, node: Node<'_>) -> Result<(), String> {
    is_for_node(claim, node)?;
    claim.devices.iter().try_for_each(|device| {
        offer(&device.device, node).map(drop).map_err(|problem| in_request(claim, device, &problem))
    })
}

fn is_for_node(claim: &Claim, node: Node<'_>) -> Result<(), String> {
    let selects = |selector| node_selector::selects(selector, node.name, &node.inventory.labels);
    if claim.node_selector.as_ref().is_none_or(selects) {
        return Ok(());
    }
    Err(format!(
        "ResourceClaim {}: status.allocation.nodeSelector does not select node {}: {ELSEWHERE}",
        claim.object, node.name
    ))
}

/// What to do with a claim of another node.
const ELSEWHERE: &str = "have the scheduler choose the pod's node (no spec.nodeName), or delete every pod of the claim \
                         for the claim to be allocated anew";

fn in_request(claim: &Claim, allocated: &AllocatedDevice, problem: &str) -> String {
    format!("request {:?} of ResourceClaim {}: {problem}", allocated.device.request, claim.object)
}

fn plan(
    claim: &Claim,
    allocated: &AllocatedDevice,
    index: u32,
    node: Node<'_>,
    taken: &Taken,
) -> Result<Plan, String> {
    let Offer { base, uplink, attributes } = offer(&allocated.device, node)?;
    let merged = merge(base, &allocated.layers, allocated.bandwidth).map_err(|e| e.to_string())?;
    let if_name = match &merged.if_name {
        Some(name) if taken.names.contains(name) => {
            return Err(format!(
                "ifName: {name:?} is taken by another claim of the pod: choose another name",
                name = name.as_str()
            ));
        }
        Some(name) => name.clone(),
        None => free_name(&taken.names)?,
    };
    let (network, segment) = match base {
        Base::Network(name, spec) => {
            let labels = node.namespace_labels;
            if !spec.namespace_selector.as_ref().is_none_or(|selector| selector.selects(labels)) {
                return Err(format!(
                    "Network {name:?} is not for namespace {:?}: its admin says for which in spec.namespaceSelector; delete \
                     the pod, which holds what it was allocated until then",
                    claim.object.namespace
                ));
            }
            (name, segment(name, spec, allocated, node.inventory, &taken.segments)?)
        }
        Base::Uplink(_) => (allocated.device.device.as_str(), None),
    };
    let conflist = merged
        .resolve(&conflist_name(network), scope(claim, network, node.name, uplink, segment.as_ref()))
        .map_err(|e| e.to_string())?;
    Ok(Plan {
        claim: claim.object.clone(),
        index,
        of: 1,
        pod: claim.pod.clone(),
        pod_claim_name: claim.pod_claim_name.clone(),
        device: allocated.device.clone(),
        network: network.to_owned(),
        if_name,
        conflist,
        args: merged.args.into_iter().chain(pod_args(claim)).collect(),
        capability_args: merged.capability_args,
        bandwidth: allocated.bandwidth,
        segment,
        attributes,
    })
}

/// A device that the node offers.
struct Offer<'a> {
    base: Base<'a>,
    /// The link that it is on.
    uplink: Option<&'a Link>,
    /// What is published of it.
    attributes: Map<String, Value>,
}

/// What the allocated device is here.
fn offer<'a>(allocated: &'a DeviceRef, node: Node<'a>) -> Result<Offer<'a>, String> {
    let (pool, base, uplink) = base(&allocated.device, node)?;
    if allocated.pool != pool {
        return Err(format!(
            "device {:?} was allocated from pool {:?}, but node {} has it in pool {pool:?}: {ELSEWHERE}",
            allocated.device, allocated.pool, node.name
        ));
    }
    let attributes = devices::attributes(&allocated.device, node.inventory);
    if attributes.is_empty() {
        return Err(format!(
            "node {} does not offer device {:?}: its UplinkPolicies or its kernel leave out this way to use the link; \
             see its ResourceSlices, and delete every pod of the claim for another device to be allocated",
            node.name, allocated.device
        ));
    }
    Ok(Offer { base, uplink, attributes })
}

/// The pool that the device is in, what it is here, and the link that it is on.
fn base<'a>(name: &'a str, node: Node<'a>) -> Result<(String, Base<'a>, Option<&'a Link>), String> {
    if let Some(network) = device::network_of(name) {
        let Some((name, spec)) = node.inventory.networks.get_key_value(&network) else {
            return Err(format!(
                "Network {:?} does not exist or is not accepted on node {}: see `kubectl get network {network}`",
                network.as_str(),
                node.name
            ));
        };
        let uplink = node.inventory.uplink_of(spec);
        if spec.uplink.is_some() && uplink.is_none() {
            return Err(format!(
                "node {} has none of the uplinks of Network {:?} any more",
                node.name,
                name.as_str()
            ));
        }
        let pool = match spec.scope {
            network::Scope::Node => node.name.to_owned(),
            network::Scope::Cluster => device::cluster_pool(name),
        };
        return Ok((pool, Base::Network(name.as_str(), spec), uplink.map(|uplink| &uplink.link)));
    }
    let plain_use = [("nic-", PlainUse::Nic), ("macvlan-", PlainUse::Macvlan), ("ipvlan-", PlainUse::Ipvlan)];
    let found = plain_use.into_iter().find_map(|(prefix, plain)| {
        let label = name.strip_prefix(prefix)?;
        let is_it = |uplink: &&Uplink| device::link_label(&uplink.name) == label;
        node.inventory.uplinks.iter().find(is_it).map(|uplink| (plain, &uplink.link))
    });
    match found {
        Some((plain, link)) => Ok((node.name.to_owned(), Base::Uplink(plain), Some(link))),
        None => Err(format!(
            "device {name:?} is no longer on node {}: delete the pod to have it scheduled anew",
            node.name
        )),
    }
}

/// The segmentation id of an attachment, where its Network has any: the one that the claim chose, or the lowest that is
/// free.
fn segment(
    name: &str,
    spec: &NetworkSpec,
    allocated: &AllocatedDevice,
    inventory: &Inventory,
    taken: &BTreeSet<Segment>,
) -> Result<Option<Segment>, String> {
    let (Some(segmentation), Ok(network)) = (&spec.segmentation, name.parse()) else { return Ok(None) };
    let space = devices::space(&network, spec, inventory);
    let of = |id: u32| Segment { space: space.clone(), id };
    match segmentation.chosen_by {
        ChosenBy::Node => {
            let ids = devices::segments(inventory, &[]).remove(&network).unwrap_or_default();
            let free = ids.into_iter().map(of).find(|segment| !taken.contains(segment));
            free.map(Some).ok_or_else(|| format!("no segmentation id of Network {name:?} is free on {space}"))
        }
        ChosenBy::Claim => {
            let mut chosen = allocated.segments.iter().copied();
            let (Some(id), None) = (chosen.next(), chosen.next()) else {
                return Err(format!(
                    "capacity.requests: Network {name:?} wants the claim to choose one segmentation id, of {}: write for \
                     example segment{}: 1",
                    segmentation.ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                    segmentation.ids().first().copied().unwrap_or_default()
                ));
            };
            if taken.contains(&of(id)) {
                return Err(format!("segmentation id {id} is taken on {space}: choose another one"));
            }
            Ok(Some(of(id)))
        }
    }
}

/// What CNI plugins are used to be told of a pod; the runtime adds the sandbox.
fn pod_args(claim: &Claim) -> [(String, String); 3] {
    let pod = &claim.pod;
    [("K8S_POD_NAMESPACE", &pod.namespace), ("K8S_POD_NAME", &pod.name), ("K8S_POD_UID", &pod.uid)]
        .map(|(key, value)| (key.to_owned(), value.clone()))
}

/// `net1`, `net2` …: the first that no other attachment of the pod has.
fn free_name(taken: &BTreeSet<IfName>) -> Result<IfName, String> {
    (1..=taken.len() + 1)
        .filter_map(|n| format!("net{n}").parse::<IfName>().ok())
        .find(|name| !taken.contains(name))
        .ok_or_else(|| "ifName: no free interface name is left".to_owned())
}

fn scope(
    claim: &Claim,
    network: &str,
    node: &str,
    uplink: Option<&Link>,
    segment: Option<&Segment>,
) -> Scope {
    let mut scope: Vec<(&str, Value)> = vec![
        ("claim.name", json!(claim.object.name)),
        ("claim.namespace", json!(claim.object.namespace)),
        ("claim.uid", json!(claim.object.uid)),
        ("pod.name", json!(claim.pod.name)),
        ("pod.namespace", json!(claim.pod.namespace)),
        ("pod.uid", json!(claim.pod.uid)),
    ];
    scope.extend(segment.map(|segment| ("segmentation.id", json!(segment.id))));
    let mut all = places_of_node(network, node, uplink);
    all.extend(scope.into_iter().map(|(name, value)| (name.to_owned(), value)));
    all
}

/// The places that have a value without a claim.
pub fn places_of_node(network: &str, node: &str, uplink: Option<&Link>) -> Scope {
    let mut scope = vec![("network.name", json!(network)), ("node.name", json!(node))];
    if let Some(link) = uplink {
        scope.push(("uplink.ifName", json!(link.name)));
        scope.push(("uplink.mtu", json!(link.mtu)));
        scope.extend(link.mac.as_ref().map(|mac| ("uplink.mac", json!(mac))));
    }
    scope.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use netclaim_api::merge::{Author, Layer};
    use netclaim_api::opaque::Opaque;
    use netclaim_api::uplink_policy::UplinkMode;
    use netclaim_api::{AttachmentConfig, Quantity};
    use netclaim_driver::attach::record::ObjectRef;

    use super::*;
    use crate::inventory::fixtures::uplink;

    static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

    fn node(inventory: &Inventory) -> Node<'_> {
        Node { name: "node0", inventory, namespace_labels: &NO_LABELS }
    }

    fn inventory() -> Inventory {
        let storage: NetworkSpec = serde_json::from_value(json!({
            "uplink": {"interfaces": ["eth9", "eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.ifName}", "node": "${node.name}", "capabilities": {"bandwidth": true}}]},
        }))
        .expect("a network");
        Inventory {
            uplinks: vec![uplink("eth1")],
            macvlan: true,
            networks: BTreeMap::from([("storage".parse().expect("a name"), storage)]),
            ..Inventory::default()
        }
    }

    fn claim(devices: &[(&str, Option<&str>)]) -> Claim {
        let object = |name: &str| ObjectRef {
            namespace: "default".into(),
            name: name.into(),
            uid: format!("{name}-uid"),
        };
        let device = |(device, if_name): &(&str, Option<&str>)| {
            let config = AttachmentConfig {
                if_name: if_name.map(|n| n.parse().expect("a name")),
                ..Default::default()
            };
            AllocatedDevice {
                device: DeviceRef {
                    request: "net".into(),
                    pool: "node0".into(),
                    device: (*device).into(),
                    share_id: None,
                },
                bandwidth: Some(Quantity::new(1_000_000_000)),
                segments: BTreeSet::new(),
                layers: vec![Layer { author: Author::Claim, index: 0, config: Opaque::Attachment(config) }],
            }
        };
        let devices = devices.iter().map(device).collect();
        Claim {
            object: object("c"),
            pod: object("p"),
            pod_claim_name: None,
            node_selector: None,
            devices,
            observed: Vec::new(),
        }
    }

    fn planned(devices: &[(&str, Option<&str>)], taken: &[&str]) -> Result<Vec<Plan>, String> {
        let names = taken.iter().map(|name| name.parse().expect("a name")).collect();
        plans(&claim(devices), node(&inventory()), &Taken { names, ..Taken::default() })
    }

    #[test]
    fn a_network_is_resolved_for_this_node_and_told_of_the_pod() {
        let plan = planned(&[("net-storage", Some("data0"))], &[]).expect("planned").remove(0);
        assert_eq!(plan.if_name.as_str(), "data0");
        assert_eq!(plan.conflist["name"], "netclaim-storage");
        assert_eq!(plan.conflist["plugins"][0]["master"], "eth1", "the first of its interfaces that is here");
        assert_eq!(plan.conflist["plugins"][0]["node"], "node0");
        assert_eq!(plan.capability_args["bandwidth"]["ingressRate"], 1_000_000_000);
        assert_eq!(plan.args["K8S_POD_UID"], "p-uid");
        assert_eq!(plan.attributes["network"], json!({"string": "storage"}));
        assert_eq!(plan.attributes["uplink"], json!({"string": "eth1"}));
    }

    #[test]
    fn what_a_plugin_would_refuse_is_told_with_claim_request_network_and_place() {
        let mut inventory = inventory();
        let vlan: NetworkSpec = serde_json::from_value(json!({
            "uplink": {"interfaces": ["eth1"]},
            "allow": {"parameters": {"vlan": {"type": "integer", "default": 5000}}},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "vlan", "master": "${uplink.ifName}",
                "vlanId": "${parameters.vlan}", "ipam": {"type": "dhcp"}, "unknown": 1}]},
        }))
        .expect("a network");
        assert_eq!(vlan.problems("vlan"), [], "what claims may choose is not known before");
        inventory.networks.insert("vlan".parse().expect("a name"), vlan);
        let error =
            plans(&claim(&[("net-vlan", None)]), node(&inventory), &Taken::default()).expect_err("refused");
        assert_eq!(
            error,
            "request \"net\" of ResourceClaim default/c: Network \"vlan\": spec.cni.plugins[0].vlanId: 5000 is out of range; \
             write a number from 0 to 4094"
        );
    }

    #[test]
    fn an_uplink_without_a_class_configuration_is_attached_plainly() {
        let plans = planned(&[("nic-eth1", None), ("macvlan-eth1", None)], &[]).expect("planned");
        let types: Vec<_> = plans.iter().map(|plan| plan.conflist["plugins"][0]["type"].clone()).collect();
        assert_eq!(types, ["host-device", "macvlan"]);
    }

    #[test]
    fn interfaces_are_numbered_around_the_names_that_are_taken() {
        let plans = planned(
            &[("net-storage", None), ("net-storage", Some("net3")), ("net-storage", None)],
            &["net1"],
        );
        let names: Vec<String> =
            plans.expect("planned").into_iter().map(|plan| plan.if_name.to_string()).collect();
        assert_eq!(names, ["net2", "net3", "net4"]);
        let error = planned(&[("net-storage", Some("net1"))], &["net1"]).expect_err("taken");
        assert_eq!(
            error,
            "request \"net\" of ResourceClaim default/c: ifName: \"net1\" is taken by another claim of the pod: choose another name"
        );
    }

    #[test]
    fn what_is_gone_from_the_node_is_named_with_the_way_out() {
        let error = planned(&[("net-backup", None)], &[]).expect_err("unknown");
        assert!(
            error.contains("Network \"backup\" does not exist or is not accepted on node node0"),
            "{error}"
        );
        let error = planned(&[("nic-eth7", None)], &[]).expect_err("unknown");
        assert!(error.contains("device \"nic-eth7\" is no longer on node node0: delete the pod"), "{error}");
    }

    #[test]
    fn an_allocation_of_another_node_or_pool_is_refused() {
        let mut inventory = inventory();
        inventory.labels = BTreeMap::from([("rack".to_owned(), "7".to_owned())]);
        let refused = |claim: &Claim, inventory: &Inventory| {
            let refused = plans(claim, node(inventory), &Taken::default()).map(drop);
            assert_eq!(refused, is_offered(claim, node(inventory)), "what is waited for is what is refused");
            refused.expect_err("refused")
        };
        for device in ["nic-eth1", "net-storage"] {
            for pool in ["node1", "networks/storage", ""] {
                let mut claim = claim(&[(device, None)]);
                pool.clone_into(&mut claim.devices[0].device.pool);
                let error = refused(&claim, &inventory);
                let expected = format!(
                    "device {device:?} was allocated from pool {pool:?}, but node node0 has it in pool \"node0\""
                );
                assert!(error.contains(&expected), "{error}");
            }
        }
        let mut claim = claim(&[("net-storage", None)]);
        let term =
            |value: &str| json!({"matchExpressions": [{"key": "rack", "operator": "In", "values": [value]}]});
        let selector =
            |value| serde_json::from_value(json!({"nodeSelectorTerms": [term(value)]})).expect("a selector");
        claim.node_selector = Some(selector("7"));
        plans(&claim, node(&inventory), &Taken::default()).expect("planned");
        claim.node_selector = Some(selector("8"));
        let error = refused(&claim, &inventory);
        assert!(error.contains("status.allocation.nodeSelector does not select node node0"), "{error}");
        claim.node_selector = None;
        inventory.networks.values_mut().for_each(|spec| spec.scope = network::Scope::Cluster);
        assert!(refused(&claim, &inventory).contains("has it in pool \"networks/storage\""));
        "networks/storage".clone_into(&mut claim.devices[0].device.pool);
        plans(&claim, node(&inventory), &Taken::default()).expect("planned");
    }

    #[test]
    fn a_device_that_is_not_offered_is_refused_unless_the_claim_holds_it() {
        let mut inventory = inventory();
        let claim = claim(&[("nic-eth1", None), ("net-storage", None)]);
        let plan = |inventory: &Inventory, own: &[Plan]| {
            plans(&claim, node(inventory), &Taken { own: own.to_vec(), ..Taken::default() })
        };
        let held = plan(&inventory, &[]).expect("planned");
        inventory.uplinks[0].modes.remove(&UplinkMode::Nic);
        let error = plan(&inventory, &[]).expect_err("refused");
        assert!(error.contains("node node0 does not offer device \"nic-eth1\""), "{error}");
        assert_eq!(plan(&inventory, &held[..1]).expect("half of it is journalled"), held);
        // In the pod: the node has the link no more.
        inventory.networks.clear();
        inventory.uplinks.clear();
        assert_eq!(plan(&inventory, &held).expect("held"), held);
        let mut inventory = Inventory { macvlan: false, ..self::inventory() };
        inventory.uplinks[0].modes.insert(UplinkMode::Macvlan);
        let claim = self::claim(&[("macvlan-eth1", None)]);
        plans(&claim, node(&inventory), &Taken::default()).expect_err("the kernel cannot");
    }

    /// A node with Network `seg`, which hands out the ids 100 and 101 on eth1.
    fn segmented(chosen_by: &str) -> Inventory {
        let network: NetworkSpec = serde_json::from_value(json!({
            "uplink": {"interfaces": ["eth1"]},
            "segmentation": {"ids": ["100-101"], "chosenBy": chosen_by},
            "namespaceSelector": {"matchLabels": {"team": "a"}},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "vlan", "master": "${uplink.ifName}", "vlanId": "${segmentation.id}", "ipam": {"type": "dhcp"}}]},
        }))
        .expect("a network");
        assert_eq!(network.problems("seg"), []);
        Inventory { networks: BTreeMap::from([("seg".parse().expect("a name"), network)]), ..inventory() }
    }

    fn segments(inventory: &Inventory, claim: &Claim, taken: &[u32]) -> Result<Vec<Value>, String> {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let node = Node { name: "node0", inventory, namespace_labels: &labels };
        let segments = taken.iter().map(|id| Segment { space: "uplink eth1".into(), id: *id }).collect();
        let plans = plans(claim, node, &Taken { segments, ..Taken::default() })?;
        Ok(plans.iter().map(|plan| plan.conflist["plugins"][0]["vlanId"].clone()).collect())
    }

    #[test]
    fn a_node_hands_out_the_lowest_id_that_is_free_on_the_uplink() {
        let inventory = segmented("Node");
        let (one, two) = (claim(&[("net-seg", None)]), claim(&[("net-seg", None), ("net-seg", None)]));
        assert_eq!(segments(&inventory, &one, &[]), Ok(vec![json!(100)]));
        assert_eq!(segments(&inventory, &one, &[100]), Ok(vec![json!(101)]));
        assert_eq!(segments(&inventory, &two, &[]), Ok(vec![json!(100), json!(101)]));
        let error = segments(&inventory, &two, &[100]).expect_err("one is left");
        assert!(error.contains("no segmentation id of Network \"seg\" is free on uplink eth1"), "{error}");
    }

    #[test]
    fn a_claim_that_has_to_choose_gets_the_id_that_it_was_charged_for() {
        let inventory = segmented("Claim");
        let mut claim = claim(&[("net-seg", None)]);
        let error = segments(&inventory, &claim, &[]).expect_err("nothing chosen");
        assert!(error.contains("write for example segment100: 1"), "{error}");
        claim.devices[0].segments = BTreeSet::from([101]);
        assert_eq!(segments(&inventory, &claim, &[100]), Ok(vec![json!(101)]));
    }

    #[test]
    fn a_claim_of_another_namespace_is_refused() {
        let inventory = segmented("Node");
        let error =
            plans(&claim(&[("net-seg", None)]), node(&inventory), &Taken::default()).expect_err("refused");
        assert!(error.contains("Network \"seg\" is not for namespace \"default\""), "{error}");
    }
}
