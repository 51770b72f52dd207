//! Plans the attachments of a claim. Pure.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::configuration::Fingerprint;
use netclaim_api::conflist::link_use_of;
use netclaim_api::device::DeviceName;
use netclaim_api::merge::{Asked, Base, KEPT, merge};
use netclaim_api::network::{ClaimNetworkSpec, Conflicts, Gateway, POD_LABELS, Scope, conflist_name};
use netclaim_api::segmentation::{ChosenBy, Segmentation};
use netclaim_api::{IfName, IpRequest, LinkUse, NetworkName, Quantity};
use netclaim_driver::attach::{self, PRIMARY_INTERFACE, Spec, Wire};
use serde_json::json;

use super::claim::{AllocatedDevice, Claim};
use super::default_route::{DefaultRoutes, clusters_own};
use super::error::{DeviceError, PlanError};
use super::finalize::finalizers;
use super::node_selector;
use super::offered::{Node, in_request, offer, scope};
use crate::addresses::plan::{self as addresses, TakenAddresses};
use crate::devices;
use crate::inventory::{Inventory, Uplink};
use crate::pods::owner::{Addresses, OnLink, Owner, Plan, Segment};

/// Names, ids, links and plans that are journalled already.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taken {
    /// Plans of this very claim and pod, which stay as they are.
    pub(crate) own: Vec<Plan>,
    /// Interface names in the claim's pod.
    pub(crate) names: BTreeSet<IfName>,
    /// Segmentation ids on the node.
    pub(crate) segments: BTreeSet<Segment>,
    /// Bits per second that were granted, by port.
    pub(crate) bandwidth: BTreeMap<String, u64>,
    /// Addresses of the node's blocks.
    pub(crate) addresses: TakenAddresses,
    /// Default routes of the claim's pod.
    pub(crate) default_routes: DefaultRoutes,
}

impl Taken {
    /// Adds what was granted to a plan.
    pub(crate) fn grant(&mut self, plan: &Plan, inventory: &Inventory) {
        let Some(granted) = plan.owner.bandwidth.filter(|granted| granted.value() > 0) else { return };
        if let Some((_, port)) = devices::link_and_port(plan, inventory) {
            let of_port = self.bandwidth.entry(port).or_default();
            *of_port = of_port.saturating_add(granted.value());
        }
    }
}

/// Whether the labels of the pod's namespace decide whether it may use its ClaimNetworks.
pub(crate) fn asks_for_namespace(claim: &Claim, inventory: &Inventory) -> bool {
    networks(claim, inventory).any(|(_, spec)| !spec.namespaces.is_all())
}

/// Whether plugins get labels of the claim's pod.
pub(crate) fn asks_for_pod(claim: &Claim, inventory: &Inventory) -> bool {
    networks(claim, inventory).any(|(_, spec)| spec.pod_labels.is_some())
}

/// Returns the ClaimNetworks that the claim has devices of.
pub(super) fn networks<'a>(
    claim: &'a Claim,
    inventory: &'a Inventory,
) -> impl Iterator<Item = (&'a NetworkName, &'a ClaimNetworkSpec)> {
    claim.devices.iter().filter_map(|allocated| match allocated.device.device.parse() {
        Ok(DeviceName::Network(name)) => inventory.networks.get_key_value(&name),
        _ => None,
    })
}

/// Returns the plans of `claim`, which use nothing that is `taken`.
///
/// # Errors
/// The first problem, with its field or object and what to do, as the user reads it.
pub(crate) fn plans(claim: &Claim, node: Node<'_>, taken: &Taken) -> Result<Vec<Plan>, PlanError> {
    is_for_node(claim, node)?;
    let mut taken = taken.clone();
    taken.own.iter().for_each(|plan| taken.addresses.add(plan));
    let mut plans: Vec<Plan> = Vec::new();
    let of =
        u32::try_from(claim.devices.len()).map_err(|_| PlanError::TooManyDevices(claim.object.clone()))?;
    for (index, device) in (0..of).zip(&claim.devices) {
        let known = taken.own.iter().find(|plan| plan.index == index && plan.owner.device == device.device);
        let plan = match known.cloned() {
            Some(known) => known,
            None => {
                let plan = plan(claim, device, index, node, &taken)
                    .map_err(|source| in_request(claim, device, source))?;
                taken.default_routes.refuse(&plan).map_err(|source| in_request(claim, device, source))?;
                taken.addresses.add(&plan);
                plan
            }
        };
        taken.default_routes.add(&plan);
        taken.names.insert(plan.spec.if_name.clone());
        taken.segments.extend(plan.owner.segment.clone());
        taken.grant(&plan, node.inventory);
        plans.push(plan);
    }
    plans.extend(finalizers(claim, &plans, node, &taken.own)?);
    // What is journalled already says how many there are.
    let all = u32::try_from(plans.len()).map_err(|_| PlanError::TooManyDevices(claim.object.clone()))?;
    let of = taken.own.first().map_or(all, |known| known.of);
    Ok(plans.into_iter().map(|plan| Plan { of, ..plan }).collect())
}

/// Whether the allocation is for this node, and of devices that the node offers now.
///
/// # Errors
/// The first device that is not, as the user reads it. The kubelet asks for any claim that is reserved for
/// its pod.
pub(crate) fn is_offered(claim: &Claim, node: Node<'_>) -> Result<(), PlanError> {
    is_for_node(claim, node)?;
    claim.devices.iter().try_for_each(|device| {
        offer(&device.device, node).map(drop).map_err(|source| in_request(claim, device, source))
    })
}

fn is_for_node(claim: &Claim, node: Node<'_>) -> Result<(), PlanError> {
    let selects = |selector| node_selector::selects(selector, node.name, &node.inventory.labels);
    if claim.node_selector.as_ref().is_none_or(selects) {
        return Ok(());
    }
    Err(PlanError::OtherNode { claim: claim.object.clone(), node: node.name.to_owned() })
}

fn plan(
    claim: &Claim,
    allocated: &AllocatedDevice,
    index: u32,
    node: Node<'_>,
    taken: &Taken,
) -> Result<Plan, DeviceError> {
    let offered = offer(&allocated.device, node)?;
    let (base, uplink) = (offered.base, offered.uplink);
    let merged = merge(base, &allocated.layers, allocated.bandwidth)?;
    let given = claim.by_attachment.as_ref().and_then(|by| by.interface_name.as_ref());
    let if_name = match given.or(merged.if_name.as_ref()) {
        _ if merged.primary => primary(claim, node, &taken.names)?,
        Some(name) if taken.names.contains(name) => return Err(DeviceError::IfNameTaken(name.to_string())),
        Some(name) => name.clone(),
        None => free_name(&taken.names)?,
    };
    let (network, segment) = match base {
        Base::Network(name, spec) => {
            if !spec.namespaces.include(&node.labels.namespace) {
                let (network, namespace) = (name.to_string(), claim.pod.namespace.clone());
                return Err(DeviceError::Namespace { network, namespace });
            }
            (name.as_str(), segment(name, spec, allocated, node.inventory, &taken.segments)?)
        }
        Base::Uplink(_) => (allocated.device.device.as_str(), None),
    };
    if merged.default_route && node.kept.is_empty() {
        return Err(DeviceError::NoClusterCidrs { node: node.name.to_owned() });
    }
    let mut scope = scope(claim, network, node, &offered, segment.as_ref())?;
    scope.insert(KEPT.to_owned(), json!(node.kept));
    let mut addresses = None;
    if let Base::Network(name, _) = base
        && let Some(of_node) = node.inventory.addresses.get(name)
    {
        let asks = !matches!(merged.asked, Asked::None);
        if allocated.takes_no_address && !asks {
            return Err(DeviceError::NoAddressAsked { network: network.to_owned() });
        }
        if !asks && of_node.pool.as_ref().is_some_and(|pool| !pool.has_usable()) {
            return Err(DeviceError::OnlyReserved { network: network.to_owned() });
        }
        let (ipam, of_plan) =
            addresses::ipam(name, of_node, &merged, &claim.pod.name, node.name, &taken.addresses)?;
        scope.insert("addresses".to_owned(), ipam);
        addresses = Some(of_plan);
    }
    if merged.primary {
        let asked = merged.capability_args.ips.iter().flatten().map(IpRequest::ip);
        let known = addresses.iter().flat_map(Addresses::known_ips);
        if let Some((ip, prefix)) = clusters_own(asked.chain(known), node.kept) {
            return Err(DeviceError::ClustersOwn { ip, prefix });
        }
    }
    let conflist = merged.resolve(&conflist_name(network), scope)?;
    let link_use = match base {
        // A whole NIC is its pod's, whatever the class's plugins make of it.
        Base::Uplink(LinkUse::Nic) => Some(LinkUse::Nic),
        // What pods' plugins work on may be made on the link first.
        Base::Network(_, spec) if spec.node.is_some() => spec.link_use(),
        _ => link_use_of(conflist.plugins()),
    };
    let owner = Owner {
        claim: claim.object.clone(),
        pod: claim.pod.clone(),
        pod_claim_name: claim.pod_claim_name.clone(),
        network_attachment: claim.by_attachment.clone(),
        device: allocated.device.clone(),
        bandwidth: granted(allocated, base, uplink, node.inventory, &taken.bandwidth)?,
        segment,
        addresses,
        takes_no_address: allocated.takes_no_address,
        needs_node_network: matches!(base, Base::Network(_, spec) if spec.node.is_some()),
        configuration: match base {
            Base::Network(_, spec) => Some(Fingerprint::of(spec)),
            Base::Uplink(_) => None,
        },
        link: uplink.and_then(|uplink| on_link(uplink, link_use)),
        attributes: offered.attributes,
    };
    let mut capability_args = merged.capability_args;
    if let Base::Network(_, ClaimNetworkSpec { pod_labels: Some(wanted), .. }) = base {
        capability_args.other.insert(POD_LABELS.to_owned(), wanted.of(&node.labels.pod));
    }
    let spec = Spec {
        tenant: attach::Owner::tenant(&owner).to_owned(),
        if_name,
        conflist,
        args: merged.args.into_iter().chain(pod_args(claim)).collect(),
        capability_args,
        wire: match base {
            Base::Network(_, spec) => wire(spec),
            Base::Uplink(_) => Wire::default(),
        },
    };
    Ok(Plan { owner, index, of: 1, finalizes: None, network: network.to_owned(), spec })
}

/// Returns the interface of the pod's primary network.
fn primary(claim: &Claim, node: Node<'_>, taken: &BTreeSet<IfName>) -> Result<IfName, DeviceError> {
    if claim.by_attachment.is_some() {
        return Err(DeviceError::PrimaryOfRunning);
    }
    if !node.primary {
        return Err(DeviceError::PrimaryOff { node: node.name.to_owned() });
    }
    let eth0 = PRIMARY_INTERFACE.parse().map_err(|_| DeviceError::NoIfName)?;
    if taken.contains(&eth0) { Err(DeviceError::PrimaryTaken) } else { Ok(eth0) }
}

fn wire(spec: &ClaimNetworkSpec) -> Wire {
    Wire {
        accept_ra: spec.accept_ra,
        probes: spec.conflicts == Conflicts::Probe,
        needs_gateway: spec.gateway == Gateway::Required,
    }
}

/// Returns the bandwidth that the claim is granted. What the scheduler has charged is refused where the port
/// does not have it: the scheduler knows a change of the node's links and ClaimNetworks later than the agent.
/// It counts a ClaimNetwork of the whole cluster on no node, so that its grants are limits only, unless
/// bandwidth is guaranteed on the port. The device of one pod is not charged: beside others on its port, it
/// has what was stated for it, as far as that is left.
fn granted(
    allocated: &AllocatedDevice,
    base: Base<'_>,
    uplink: Option<&Uplink>,
    inventory: &Inventory,
    taken: &BTreeMap<String, u64>,
) -> Result<Option<Quantity>, DeviceError> {
    let Some(Uplink { name, port, bandwidth, states_bandwidth, .. }) = uplink else {
        return Ok(allocated.bandwidth);
    };
    let taken = taken.get(&port.name).copied().unwrap_or_default();
    let left = |has: Quantity| Quantity::new(has.value().saturating_sub(taken));
    let is_counted = !matches!(base, Base::Network(_, spec) if spec.scope == Scope::Cluster);
    let is_guaranteed = || inventory.guaranteed_ports().contains(port.name.as_str());
    match (allocated.bandwidth, port.bandwidth) {
        (Some(asked), Some(has)) if asked > left(has) && (is_counted || is_guaranteed()) => {
            let (taken, port) = (Quantity::new(taken), port.name.clone());
            Err(DeviceError::Bandwidth { asked, taken, port, has })
        }
        (Some(asked), _) => Ok(Some(asked)),
        (None, has) => {
            let stated = bandwidth.filter(|_| *states_bandwidth);
            let is_whole = match base {
                Base::Network(_, spec) => spec.link_use() == Some(LinkUse::Nic),
                Base::Uplink(link_use) => link_use == LinkUse::Nic,
            };
            let is_alone = is_whole && port.name == name.as_str() && !inventory.is_shared(port);
            let of_one_pod = match base {
                _ if is_alone => None,
                Base::Network(_, spec) if spec.is_exclusive() => spec.capacity.bandwidth.or(stated),
                Base::Uplink(LinkUse::Nic) => stated,
                _ => None,
            };
            Ok(of_one_pod.map(|of_one_pod| has.map_or(of_one_pod, |has| of_one_pod.min(left(has)))))
        }
    }
}

fn on_link(uplink: &Uplink, link_use: Option<LinkUse>) -> Option<OnLink> {
    let link = &uplink.link;
    let port = Some(uplink.port.name.clone()).filter(|port| *port != link.name);
    let physical_function = link.physical_function.as_ref().and_then(|name| name.parse().ok());
    Some(OnLink { name: link.name.parse().ok()?, physical_function, port, link_use })
}

/// The segmentation id of an attachment, where its ClaimNetwork has any: the one that the claim chose, or the
/// lowest that is free. An id that was allocated may belong to another ClaimNetwork by now, or to none.
fn segment(
    name: &NetworkName,
    spec: &ClaimNetworkSpec,
    allocated: &AllocatedDevice,
    inventory: &Inventory,
    taken: &BTreeSet<Segment>,
) -> Result<Option<Segment>, DeviceError> {
    let Some(segmentation) = &spec.segmentation else { return Ok(None) };
    let space = devices::space(name, spec, inventory);
    let of = |id: u32| Segment { space: space.clone(), id };
    let ids = devices::segments(inventory, &[]).remove(name).unwrap_or_default();
    match segmentation.chosen_by {
        ChosenBy::Node => {
            let free = ids.into_iter().map(of).find(|segment| !taken.contains(segment));
            let network = name.to_string();
            free.map(Some).ok_or_else(|| DeviceError::NoSegment { network, space: space.clone() })
        }
        ChosenBy::Claim => {
            let mut chosen = allocated.segments.iter().copied();
            let (Some(id), None) = (chosen.next(), chosen.next()) else {
                return Err(none_chosen(name, segmentation));
            };
            if !ids.contains(&id) {
                return Err(DeviceError::SegmentGone { id, network: name.to_string(), space });
            }
            if taken.contains(&of(id)) {
                return Err(DeviceError::SegmentTaken { id, space });
            }
            Ok(Some(of(id)))
        }
    }
}

/// Makes sure that a plan's segmentation id is still its ClaimNetwork's: it is carried out again in each
/// sandbox of its pod. The id of a ClaimNetwork that is gone stays the pod's until another ClaimNetwork has
/// it.
pub(super) fn keeps_segment(
    plan: &Plan,
    network: &NetworkName,
    inventory: &Inventory,
) -> Result<(), DeviceError> {
    let Some(Segment { space, id }) = &plan.owner.segment else { return Ok(()) };
    let segments = devices::segments(inventory, &[]);
    let has_it = |name: &NetworkName| segments.get(name).is_some_and(|ids| ids.contains(id));
    let is_there = |(name, spec): (&NetworkName, &ClaimNetworkSpec)| {
        has_it(name) && devices::space(name, spec, inventory) == *space
    };
    let is_free = !inventory.networks.contains_key(network) && !inventory.networks.iter().any(is_there);
    if has_it(network) || is_free {
        return Ok(());
    }
    Err(DeviceError::SegmentGone { id: *id, network: network.to_string(), space: space.clone() })
}

fn none_chosen(network: &NetworkName, segmentation: &Segmentation) -> DeviceError {
    let ids = segmentation.ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let example = segmentation.ids().first().copied().unwrap_or_default();
    DeviceError::NoSegmentChosen { network: network.to_string(), ids, example }
}

/// CNI_ARGS that name the pod, as other runtimes pass them. The driver adds the sandbox.
fn pod_args(claim: &Claim) -> [(String, String); 3] {
    let pod = &claim.pod;
    [("K8S_POD_NAMESPACE", &pod.namespace), ("K8S_POD_NAME", &pod.name), ("K8S_POD_UID", &pod.uid)]
        .map(|(key, value)| (key.to_owned(), value.clone()))
}

/// `net1`, `net2` …: the first that no other attachment of the pod has.
fn free_name(taken: &BTreeSet<IfName>) -> Result<IfName, DeviceError> {
    (1..=taken.len() + 1)
        .filter_map(|n| format!("net{n}").parse::<IfName>().ok())
        .find(|name| !taken.contains(name))
        .ok_or(DeviceError::NoIfName)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use netclaim_api::AttachmentConfig;
    use netclaim_api::merge::{Author, Layer};
    use netclaim_api::network::Unrequested;
    use netclaim_api::opaque::Opaque;
    use netclaim_cni::error_chain;
    use serde_json::{Map, Value};

    use super::super::offered::Labels;
    use super::*;
    use crate::inventory::fixtures::{uplink, without_blocks};
    use crate::pods::owner::{DeviceRef, ObjectRef};

    static NO_LABELS: Labels = Labels { namespace: BTreeMap::new(), pod: BTreeMap::new() };

    fn node(inventory: &Inventory) -> Node<'_> {
        Node { name: "node0", inventory, labels: &NO_LABELS, kept: &[], primary: true }
    }

    fn inventory() -> Inventory {
        let storage: ClaimNetworkSpec = serde_json::from_value(json!({
            "uplink": {"links": ["eth9", "eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.name}", "node": "${node.name}", "capabilities": {"bandwidth": true}}]},
        }))
        .expect("a network");
        Inventory {
            uplinks: vec![uplink("eth1")],
            networks: [("storage".parse().expect("a name"), storage)].into(),
            ..Inventory::default()
        }
    }

    #[test]
    fn a_pod_has_one_primary_network_where_the_runtime_can_ask_for_it() {
        let mut inventory = inventory();
        let spec = inventory.networks.get_mut(&"storage".parse().expect("a name")).expect("there");
        spec.allow = serde_json::from_value(json!({"primary": {}})).expect("rules");
        spec.cni["plugins"][0]["capabilities"] = json!({"ips": true});
        let config = AttachmentConfig { primary: true, ..AttachmentConfig::default() };
        let layer = Layer { author: Author::Claim, index: 0, config: Opaque::Attachment(config) };
        let mut claim = claim(&[("net-storage", None)]);
        claim.devices[0].layers = vec![layer];
        let of = |claim: &Claim, node: Node<'_>, taken: &Taken| match plans(claim, node, taken) {
            Ok(plans) => Ok(plans[0].spec.if_name.to_string()),
            Err(error) => Err(error_chain(&error)),
        };
        let (on, none) = (node(&inventory), Taken::default());
        assert_eq!(of(&claim, on, &none), Ok("eth0".to_owned()));
        let cluster = ["10.20.0.0/16".parse().expect("a prefix")];
        let with = |ip: &str| {
            let config: AttachmentConfig =
                serde_json::from_value(json!({"primary": true, "ips": [ip]})).expect("a configuration");
            let mut claim = claim.clone();
            claim.devices[0].layers =
                vec![Layer { author: Author::Class, index: 0, config: Opaque::Attachment(config) }];
            of(&claim, Node { kept: &cluster, ..on }, &none)
        };
        assert_eq!(with("10.30.0.5/24"), Ok("eth0".to_owned()));
        assert!(with("10.20.0.5/24").expect_err("refused").contains("10.20.0.5 is in 10.20.0.0/16"));
        let taken = Taken { names: BTreeSet::from(["eth0".parse().expect("a name")]), ..Taken::default() };
        let refused = |claim: &Claim, node, taken: &Taken| of(claim, node, taken).expect_err("refused");
        assert!(refused(&claim, on, &taken).contains("another attachment of the pod is its primary network"));
        let off = refused(&claim, Node { primary: false, ..on }, &none);
        assert!(off.contains("primary networks are off on node node0"), "{off}");
        let by = json!({"name": "a", "uid": "u", "created": "t", "sandboxId": "s"});
        claim.by_attachment = Some(serde_json::from_value(by).expect("a NetworkAttachment"));
        assert!(refused(&claim, on, &none).contains("a pod that runs keeps its eth0"));
    }

    #[test]
    fn plugins_get_the_labels_of_the_pod_that_the_network_names() {
        let mut inventory = inventory();
        let spec = inventory.networks.get_mut(&"storage".parse().expect("a name")).expect("there");
        spec.pod_labels = serde_json::from_value(json!({"keys": ["app", "tier"]})).expect("labels");
        let pod = [("app", "web"), ("secret", "x")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let labels = Labels { pod: pod.into(), ..Labels::default() };
        let (claim, node) = (claim(&[("net-storage", None)]), Node { labels: &labels, ..node(&inventory) });
        assert!(asks_for_pod(&claim, &inventory));
        let plans = plans(&claim, node, &Taken::default()).expect("plans");
        assert_eq!(
            plans[0].spec.capability_args.other,
            Map::from_iter([("podLabels".into(), json!({"app": "web"}))])
        );
    }

    #[test]
    fn labels_of_the_node_and_attributes_of_the_uplink_are_filled_in() {
        let mut inventory = inventory();
        let name = "storage".parse().expect("a name");
        let plugin = &mut inventory.networks.get_mut(&name).expect("there").cni["plugins"][0];
        plugin["zone"] = json!("z-${node.labels.topology.kubernetes.io/zone}");
        plugin["vlan"] = json!("${uplink.attributes.vlan}");
        let claim = claim(&[("net-storage", None)]);
        let error = plans(&claim, node(&inventory), &Taken::default()).expect_err("no label");
        assert!(error_chain(&error).contains("has no value here"), "{}", error_chain(&error));
        inventory.labels.insert("topology.kubernetes.io/zone".into(), "eu-1a".into());
        inventory.uplinks[0].declared =
            serde_json::from_value(json!({"vlan": {"int": 7}})).expect("attributes");
        let plans = plans(&claim, node(&inventory), &Taken::default()).expect("plans");
        let conflist: Value = serde_json::from_str(plans[0].spec.conflist.raw()).expect("JSON");
        assert_eq!(
            (&conflist["plugins"][0]["zone"], &conflist["plugins"][0]["vlan"]),
            (&json!("z-eu-1a"), &json!(7))
        );
    }

    #[test]
    fn a_claim_is_not_granted_what_pods_on_other_links_of_the_port_have() {
        let mut inventory = inventory();
        let vlan = Uplink { port: uplink("eth1").port, ..uplink("eth1.100") };
        inventory.uplinks.push(vlan);
        let claim = claim(&[("net-storage", None)]);
        let mut taken = Taken::default();
        let mut other = plans(&claim, node(&inventory), &taken).expect("plans").remove(0);
        other.owner.attributes.insert("uplink".into(), json!({"string": "eth1.100"}));
        other.owner.bandwidth = Some(Quantity::new(9_500_000_000));
        taken.grant(&other, &inventory);
        let error = plans(&claim, node(&inventory), &taken).expect_err("the port has 10G");
        assert!(error.is_for_lack_of_bandwidth());
        let expected = "port eth1 has 10G, pods were granted 9500M of it, and 1G more is too much";
        assert!(error_chain(&error).contains(expected), "{}", error_chain(&error));
        let of_cluster = |unrequested| {
            let mut inventory = inventory.clone();
            let (name, mut spec) = inventory.networks.pop_first().expect("a network");
            (spec.scope, spec.bandwidth.unrequested) = (Scope::Cluster, unrequested);
            inventory.networks.insert(name.clone(), spec.clone());
            let (base, uplink) = (Base::Network(&name, &spec), inventory.uplink_of(&spec));
            granted(&claim.devices[0], base, uplink, &inventory, &taken.bandwidth).is_ok()
        };
        assert!(of_cluster(Unrequested::Unlimited), "its grants are limits");
        assert!(!of_cluster(Unrequested::Share), "the port is guaranteed");
        inventory.uplinks[1].port.name = "eth1.100".into();
        assert!(plans(&claim, node(&inventory), &Taken::default()).is_ok());
    }

    #[test]
    fn a_function_has_what_a_policy_states_as_far_as_its_port_has_it() {
        let mut inventory = inventory();
        let stated = Some(Quantity::new(6_000_000_000));
        let port = uplink("eth1").port;
        let function = Uplink { bandwidth: stated, states_bandwidth: true, port, ..uplink("eth1v0") };
        inventory.uplinks.push(function);
        let mut claim = claim(&[("nic-eth1v0", None)]);
        claim.devices[0].bandwidth = None;
        let granted = |inventory: &Inventory, taken: &Taken| {
            let plans = plans(&claim, node(inventory), taken).expect("plans");
            (plans[0].owner.bandwidth, plans[0].owner.link.clone().and_then(|link| link.port))
        };
        assert_eq!(granted(&inventory, &Taken::default()), (stated, Some("eth1".to_owned())));
        let taken = Taken { bandwidth: [("eth1".to_owned(), 7_000_000_000)].into(), ..Taken::default() };
        assert_eq!(granted(&inventory, &taken).0, Some(Quantity::new(3_000_000_000)));
        inventory.uplinks[1].states_bandwidth = false;
        assert_eq!(granted(&inventory, &taken).0, None);
    }

    #[test]
    fn a_plan_notes_its_configuration_which_what_is_filled_in_does_not_change() {
        let mut inventory = inventory();
        inventory.uplinks[0].modes.insert(LinkUse::Macvlan);
        let configuration = |inventory: &Inventory, devices: &[(&str, Option<&str>)]| {
            let plans = plans(&claim(devices), node(inventory), &Taken::default()).expect("plans");
            plans.into_iter().map(|plan| plan.owner.configuration).collect::<Vec<_>>()
        };
        let devices = [("net-storage", None), ("net-storage", Some("data0")), ("macvlan-eth1", None)];
        let [one, other, of_link] = configuration(&inventory, &devices).try_into().expect("three plans");
        assert!(one.is_some() && one == other && of_link.is_none(), "{one:?}, {other:?}, {of_link:?}");
        let spec = inventory.networks.values_mut().next().expect("a network");
        spec.cni["plugins"][0]["mtu"] = json!(1400);
        assert_ne!(configuration(&inventory, &devices[..1]), [one]);

        let made = plans(&claim(&devices[..1]), node(&inventory), &Taken::default()).expect("plans");
        let mut journalled = serde_json::to_value(&made[0]).expect("JSON");
        assert_eq!(serde_json::from_value::<Plan>(journalled.clone()).expect("a plan"), made[0]);
        journalled.as_object_mut().and_then(|plan| plan.remove("configuration")).expect("it is journalled");
        let of_before: Plan = serde_json::from_value(journalled).expect("a plan of an earlier version");
        assert_eq!(of_before.owner.configuration, None);
    }

    fn claim(devices: &[(&str, Option<&str>)]) -> Claim {
        let object = |name: &str| ObjectRef {
            namespace: "default".into(),
            name: name.into(),
            uid: format!("{name}-uid"),
        };
        let device = |(device, if_name): &(&str, Option<&str>)| {
            let config = AttachmentConfig {
                interface_name: if_name.map(|n| n.parse().expect("a name")),
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
                takes_no_address: false,
                layers: vec![Layer { author: Author::Claim, index: 0, config: Opaque::Attachment(config) }],
            }
        };
        let devices = devices.iter().map(device).collect();
        Claim {
            object: object("c"),
            pod: object("p"),
            pod_claim_name: None,
            by_attachment: None,
            node_selector: None,
            devices,
            observed: Vec::new(),
        }
    }

    /// The configuration of the first plugin.
    fn plugin(plan: &Plan) -> Value {
        let mut list: Value = serde_json::from_str(plan.spec.conflist.raw()).expect("JSON");
        list["plugins"][0].take()
    }

    /// The text for the user.
    fn refusal<T: std::fmt::Debug>(result: Result<T, PlanError>) -> String {
        error_chain(&result.expect_err("refused"))
    }

    fn planned(devices: &[(&str, Option<&str>)], taken: &[&str]) -> Result<Vec<Plan>, PlanError> {
        let names = taken.iter().map(|name| name.parse().expect("a name")).collect();
        plans(&claim(devices), node(&inventory()), &Taken { names, ..Taken::default() })
    }

    #[test]
    fn a_network_is_resolved_for_this_node_and_told_of_the_pod() {
        let plan = planned(&[("net-storage", Some("data0"))], &[]).expect("planned").remove(0);
        assert_eq!(plan.spec.if_name.as_str(), "data0");
        assert_eq!(plan.spec.conflist.name().as_str(), "netclaim-storage");
        assert_eq!(plugin(&plan)["master"], "eth1", "the first of its interfaces that is here");
        assert_eq!(plugin(&plan)["node"], "node0");
        assert_eq!(
            plan.spec.capability_args.bandwidth.and_then(|limits| limits.ingress_rate),
            Some(1_000_000_000)
        );
        assert_eq!(plan.spec.args["K8S_POD_UID"], "p-uid");
        assert_eq!(plan.owner.attributes["network"], json!({"string": "storage"}));
        assert_eq!(plan.owner.attributes["uplink"], json!({"string": "eth1"}));
    }

    #[test]
    fn a_value_that_a_plugin_would_refuse_is_named_with_claim_request_network_and_field() {
        let mut inventory = inventory();
        let vlan: ClaimNetworkSpec = serde_json::from_value(json!({
            "uplink": {"links": ["eth1"]},
            "allow": {"parameters": {"vlan": {"type": "integer", "default": 5000}}},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "vlan", "master": "${uplink.name}",
                "vlanId": "${parameters.vlan}", "ipam": {"type": "dhcp"}, "unknown": 1}]},
        }))
        .expect("a network");
        assert_eq!(vlan.problems("vlan"), [], "what claims may choose is not known before");
        inventory.networks.insert("vlan".parse().expect("a name"), vlan);
        let error = refusal(plans(&claim(&[("net-vlan", None)]), node(&inventory), &Taken::default()));
        assert_eq!(
            error,
            "request \"net\" of ResourceClaim default/c: ClaimNetwork \"vlan\": spec.cni.plugins[0].vlanId: 5000 is out of range; \
             write a number from 0 to 4094"
        );
    }

    #[test]
    fn an_uplink_without_a_class_configuration_is_attached_plainly() {
        let plans = planned(&[("nic-eth1", None), ("macvlan-eth1", None)], &[]).expect("planned");
        let types: Vec<_> = plans.iter().map(|plan| plugin(plan)["type"].clone()).collect();
        assert_eq!(types, ["host-device", "macvlan"]);
    }

    #[test]
    fn interfaces_are_numbered_around_the_names_that_are_taken() {
        let plans = planned(
            &[("net-storage", None), ("net-storage", Some("net3")), ("net-storage", None)],
            &["net1"],
        );
        let names: Vec<String> =
            plans.expect("planned").into_iter().map(|plan| plan.spec.if_name.to_string()).collect();
        assert_eq!(names, ["net2", "net3", "net4"]);
        let error = refusal(planned(&[("net-storage", Some("net1"))], &["net1"]));
        assert_eq!(
            error,
            "request \"net\" of ResourceClaim default/c: interfaceName: \"net1\" is taken by another claim of the pod: choose another name"
        );
    }

    #[test]
    fn a_device_that_is_gone_from_the_node_is_named_with_the_way_out() {
        let error = refusal(planned(&[("net-backup", None)], &[]));
        assert!(
            error.contains("ClaimNetwork \"backup\" does not exist or is not accepted on node node0"),
            "{error}"
        );
        let error = refusal(planned(&[("nic-eth7", None)], &[]));
        assert!(error.contains("device \"nic-eth7\" is no longer on node node0: delete the pod"), "{error}");
    }

    #[test]
    fn an_allocation_of_another_node_or_pool_is_refused() {
        let mut inventory = inventory();
        inventory.labels = BTreeMap::from([("rack".to_owned(), "7".to_owned())]);
        let refused = |claim: &Claim, inventory: &Inventory| {
            let refused = plans(claim, node(inventory), &Taken::default()).map(drop);
            assert_eq!(refused, is_offered(claim, node(inventory)), "what is waited for is what is refused");
            refusal(refused)
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
        inventory.networks.values_mut().for_each(|spec| spec.scope = netclaim_api::network::Scope::Cluster);
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
        inventory.uplinks[0].modes.remove(&LinkUse::Nic);
        let error = refusal(plan(&inventory, &[]));
        assert!(error.contains("node node0 does not offer device \"nic-eth1\""), "{error}");
        assert_eq!(plan(&inventory, &held[..1]).expect("half of it is journalled"), held);
        // In the pod: the node has the link no more.
        inventory.networks.clear();
        inventory.uplinks.clear();
        assert_eq!(plan(&inventory, &held).expect("held"), held);
        let mut inventory = Inventory { lacking: ["macvlan"].into(), ..self::inventory() };
        inventory.uplinks[0].modes.insert(LinkUse::Macvlan);
        let claim = self::claim(&[("macvlan-eth1", None)]);
        plans(&claim, node(&inventory), &Taken::default()).expect_err("the kernel cannot");
    }

    /// A node with ClaimNetwork `seg`, which hands out the ids 100 and 101 on eth1.
    fn segmented(chosen_by: &str) -> Inventory {
        let network: ClaimNetworkSpec = serde_json::from_value(json!({
            "uplink": {"links": ["eth1"]},
            "segmentation": {"ids": ["100-101"], "chosenBy": chosen_by},
            "namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "vlan", "master": "${uplink.name}", "vlanId": "${segmentation.id}", "ipam": {"type": "dhcp"}}]},
        }))
        .expect("a network");
        assert_eq!(network.problems("seg"), []);
        Inventory { networks: [("seg".parse().expect("a name"), network)].into(), ..inventory() }
    }

    fn labels(key: &str, value: &str) -> Labels {
        let namespace = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        Labels { namespace, ..Labels::default() }
    }

    fn segments(inventory: &Inventory, claim: &Claim, taken: &[u32]) -> Result<Vec<Value>, PlanError> {
        let labels = labels("team", "a");
        let node = Node { name: "node0", inventory, labels: &labels, kept: &[], primary: true };
        let segments = taken.iter().map(|id| Segment { space: "uplink eth1".into(), id: *id }).collect();
        let plans = plans(claim, node, &Taken { segments, ..Taken::default() })?;
        Ok(plans.iter().map(|plan| plugin(plan)["vlanId"].clone()).collect())
    }

    #[test]
    fn a_node_hands_out_the_lowest_id_that_is_free_on_the_uplink() {
        let inventory = segmented("Node");
        let (one, two) = (claim(&[("net-seg", None)]), claim(&[("net-seg", None), ("net-seg", None)]));
        assert_eq!(segments(&inventory, &one, &[]), Ok(vec![json!(100)]));
        assert_eq!(segments(&inventory, &one, &[100]), Ok(vec![json!(101)]));
        assert_eq!(segments(&inventory, &two, &[]), Ok(vec![json!(100), json!(101)]));
        let error = refusal(segments(&inventory, &two, &[100]));
        assert!(
            error.contains("no segmentation id of ClaimNetwork \"seg\" is free on uplink eth1"),
            "{error}"
        );
    }

    #[test]
    fn a_claim_that_has_to_choose_gets_the_id_that_it_was_charged_for() {
        let inventory = segmented("Claim");
        let mut claim = claim(&[("net-seg", None)]);
        let error = refusal(segments(&inventory, &claim, &[]));
        assert!(error.contains("write for example segment100: 1"), "{error}");
        claim.devices[0].segments = BTreeSet::from([101]);
        assert_eq!(segments(&inventory, &claim, &[100]), Ok(vec![json!(101)]));
    }

    #[test]
    fn a_claim_that_was_charged_no_address_has_to_ask_for_some() {
        let plc: ClaimNetworkSpec = serde_json::from_value(json!({
            "uplink": {"links": ["eth1"]}, "allow": {"ips": {}},
            "addresses": {"ranges": [{"subnet": "10.30.0.0/28"}], "reserved": ["10.30.0.0/28"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}"}]},
        }))
        .expect("a network");
        assert_eq!(plc.problems("plc"), []);
        let name: NetworkName = "plc".parse().expect("a name");
        let addresses = without_blocks(&name, &plc);
        let inventory = Inventory {
            networks: [(name.clone(), plc)].into(),
            addresses: [(name, addresses)].into(),
            ..inventory()
        };
        let mut claim = claim(&[("net-plc", None)]);
        let error = refusal(plans(&claim, node(&inventory), &Taken::default()));
        assert!(
            error.contains("all addresses of ClaimNetwork \"plc\" are reserved: ask for some by ips"),
            "{error}"
        );
        claim.devices[0].takes_no_address = true;
        let error = refusal(plans(&claim, node(&inventory), &Taken::default()));
        assert!(error.contains("capacity.requests.addresses: is 0, but the claim asks for none"), "{error}");
        let ips = AttachmentConfig {
            ips: vec!["10.30.0.5".to_owned().try_into().expect("an address")],
            ..Default::default()
        };
        claim.devices[0].layers =
            vec![Layer { author: Author::Claim, index: 0, config: Opaque::Attachment(ips) }];
        let made = plans(&claim, node(&inventory), &Taken::default()).expect("reserved");
        assert!(made[0].owner.takes_no_address);
        assert_eq!(plugin(&made[0])["ipam"]["type"], "static");
    }

    #[test]
    fn an_id_that_was_taken_from_its_network_is_not_given_again() {
        let mut claim = claim(&[("net-seg", None)]);
        claim.devices[0].segments = BTreeSet::from([101]);
        let network = |inventory: &mut Inventory, name: &str, ids: Value| {
            let mut spec = segmented("Claim").networks.values().next().cloned().expect("a network");
            spec.segmentation.as_mut().expect("ids").ids = serde_json::from_value(ids).expect("ids");
            inventory.networks.insert(name.parse().expect("a name"), spec);
        };
        let (mut moved, mut shared) = (segmented("Claim"), segmented("Claim"));
        network(&mut moved, "seg", json!(["100"]));
        // The first ClaimNetwork by name has an id that two list.
        network(&mut shared, "a-other", json!(["101"]));
        for inventory in [&moved, &shared] {
            let error = refusal(segments(inventory, &claim, &[]));
            assert!(
                error.contains("id 101 is no longer one of ClaimNetwork \"seg\" on uplink eth1"),
                "{error}"
            );
        }
        network(&mut shared, "z-other", json!(["100-101"]));
        shared.networks.remove(&"a-other".parse().expect("a name"));
        assert_eq!(segments(&shared, &claim, &[]), Ok(vec![json!(101)]));
    }

    #[test]
    fn an_id_that_was_taken_from_its_network_is_given_to_no_new_sandbox() {
        let inventory = segmented("Node");
        let labels = labels("team", "a");
        let node = Node { name: "node0", inventory: &inventory, labels: &labels, kept: &[], primary: true };
        let made = plans(&claim(&[("net-seg", None)]), node, &Taken::default()).expect("planned");
        let seg: NetworkName = "seg".parse().expect("a name");
        let keeps = |inventory: &Inventory| keeps_segment(&made[0], &seg, inventory).is_ok();
        assert!(keeps(&inventory));
        let gone = Inventory { networks: [].into(), ..segmented("Node") };
        assert!(keeps(&gone), "no other attachment has it");
        let mut spec = inventory.networks[&seg].clone();
        let other = |spec: &ClaimNetworkSpec, rest: &Inventory| {
            let mut networks = rest.networks.clone();
            networks.insert("a-other".parse().expect("a name"), spec.clone());
            Inventory { networks, ..segmented("Node") }
        };
        assert!(
            !keeps(&other(&spec, &gone)) && !keeps(&other(&spec, &inventory)),
            "it is another ClaimNetwork's"
        );
        spec.segmentation.as_mut().expect("ids").ids = serde_json::from_value(json!([101])).expect("ids");
        assert!(keeps(&other(&spec, &inventory)));
        assert!(!keeps(&Inventory { networks: [(seg.clone(), spec)].into(), ..segmented("Node") }));
    }

    #[test]
    fn a_claim_of_another_namespace_is_refused() {
        let inventory = segmented("Node");
        let error = refusal(plans(&claim(&[("net-seg", None)]), node(&inventory), &Taken::default()));
        assert!(error.contains("ClaimNetwork \"seg\" is not for namespace \"default\""), "{error}");
    }
}
