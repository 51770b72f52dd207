//! What claims hold on the node, and what that means for its devices.
//!
//! * A device that the node no longer makes or offers stays published, or the scheduler would stop charging
//!   its link. It looks as it did when the claim was prepared, and is tainted. A link that is in a pod has no
//!   taint, because no other pod could get it, unless a ClaimNetwork waits for the link: the next pod would
//!   take it away once more. The device of a ClaimNetwork whose whole link is in a pod says so by its taint.
//! * A ClaimNetwork stays on the link of its attachments, because a device is charged on one link only. New
//!   pods wait until no attachment is left and the ClaimNetwork can move.
//! * A VLAN id stays taken until the attachment is gone, even if its ClaimNetwork is deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::pods::owner::{Addresses, Plan, Segment};
use ipnet::IpNet;
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};
use netclaim_api::conflist::{Plugin as _, has_child, link_use_of, vlan_of};
use netclaim_api::device::DeviceName;
use netclaim_api::network::{ClaimNetworkSpec, NetworkCapacity, UplinkSelector};
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_api::{IfName, LinkUse, NetworkName, Quantity, attributes};
use netclaim_cni::PluginConf;
use serde_json::{Map, Value};

use super::candidate::{Candidate, space_of_link};
use crate::inventory::Inventory;

/// What devices need to know about one attachment that a claim holds, and of those that hold the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct HeldDevice {
    /// The device in the node's pool; `None` where it is one of the cluster.
    pub(crate) device: Option<String>,
    /// Its ClaimNetwork; `None` for a device of the uplink itself.
    pub(crate) network: Option<NetworkName>,
    /// Name of the CNI network, under which IPAMs keep their leases.
    pub(crate) list: Option<String>,
    /// The device's attributes when the claim was prepared.
    pub(crate) attributes: Map<String, Value>,
    /// What the link's frames left the node by, where that was another link.
    pub(super) port: Option<String>,
    /// How the link is used.
    pub(crate) link_use: Option<LinkUse>,
    /// Whether the link stays on the node, below the pod's interface, although the pod has all of it.
    pub(crate) stays_on_node: bool,
    /// The VLAN id that it has on the link.
    pub(crate) vlan: Option<u32>,
    /// The id that no other attachment can have: its segmentation id, or its VLAN id.
    pub(crate) segment: Option<Segment>,
    /// Bits per second that it was granted.
    pub(crate) bandwidth: u64,
    /// The blocks that its addresses are of.
    pub(crate) blocks: Vec<IpNet>,
    /// Whether its claim requested none of the capacity `addresses`.
    pub(crate) takes_no_address: bool,
    /// How many others hold the same.
    pub(super) more: usize,
}

impl HeldDevice {
    /// What `plan` holds, on the node of this name.
    pub(crate) fn of(plan: &Plan, node: &str) -> Self {
        let device = &plan.owner.device;
        let plugins = || plan.spec.conflist.plugins();
        let of_plan = plan.owner.link.as_ref().filter(|_| plan.owner.needs_node_network);
        let (own_use, network) = match device.device.parse() {
            Ok(DeviceName::Link(link_use, _)) => (Some(link_use), None),
            Ok(DeviceName::Network(network)) => (None, Some(network)),
            Err(_) => (None, None),
        };
        Self {
            device: (device.pool == node).then(|| device.device.clone()),
            network,
            list: Some(plan.spec.conflist.name().to_string()),
            attributes: plan.owner.attributes.clone(),
            port: noted_port(plan).map(str::to_owned),
            link_use: own_use
                .or_else(|| of_plan.map_or_else(|| link_use_of(plugins()), |link| link.link_use)),
            stays_on_node: stays_on_node(plan),
            vlan: fixed_vlan(plan),
            segment: id_of(plan),
            bandwidth: plan.owner.bandwidth.map(|bandwidth| bandwidth.value()).unwrap_or_default(),
            blocks: plan.owner.addresses.iter().flat_map(Addresses::blocks).collect(),
            takes_no_address: plan.owner.takes_no_address,
            more: 0,
        }
    }

    /// How many attachments hold this.
    pub(crate) fn many(&self) -> usize {
        1 + self.more
    }

    /// Bits per second that all of them were granted.
    pub(super) fn bandwidth_of_all(&self) -> u64 {
        self.bandwidth.saturating_mul(self.many() as u64)
    }

    /// Whether the pod has taken its link away from the node.
    pub(crate) fn is_in_pod(&self, inventory: &Inventory) -> bool {
        self.link_use == Some(LinkUse::Nic) && !self.stays_on_node && !self.link_is_there(inventory)
    }

    fn link_is_there(&self, inventory: &Inventory) -> bool {
        let link = self.link(inventory);
        inventory.uplinks.iter().any(|uplink| Some(&uplink.name) == link.as_ref())
    }

    /// Whether its claim takes one of the ClaimNetwork's addresses that the node hands out.
    pub(crate) fn takes_address_of(&self, network: &NetworkName) -> bool {
        self.network.as_ref() == Some(network) && !self.takes_no_address
    }

    /// Returns the current name of its link.
    pub(crate) fn link(&self, inventory: &Inventory) -> Option<IfName> {
        link_of(&self.attributes, inventory)
    }

    /// Returns the name of the port that it is on.
    pub(super) fn port(&self, inventory: &Inventory) -> Option<String> {
        port(&self.attributes, self.port.as_deref(), inventory)
    }

    /// Returns its ClaimNetwork, where the device is in the node's pool, and its link.
    pub(super) fn on_link(&self, inventory: &Inventory) -> Option<(NetworkName, IfName)> {
        self.device.as_ref().and(Some((self.network.clone()?, self.link(inventory)?)))
    }

    fn text(&self, key: &str) -> Option<&str> {
        text(&self.attributes, key)
    }
}

fn text<'a>(attributes: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    attributes.get(key)?.get("string")?.as_str()
}

/// Returns the current name of the link of a device with these attributes. It is found by PCI address and
/// MAC, because links are renamed.
fn link_of(attributes: &Map<String, Value>, inventory: &Inventory) -> Option<IfName> {
    let (pci, mac) = (text(attributes, attributes::PCI_BUS_ID), text(attributes, attributes::MAC));
    let is_it = |link: &netclaim_driver::links::Link| {
        pci.is_some() && link.pci_bus_id.as_deref() == pci && link.mac.as_deref() == mac
    };
    let found = inventory.uplinks.iter().find(|uplink| is_it(&uplink.link));
    found.map(|uplink| uplink.name.clone()).or_else(|| text(attributes, attributes::UPLINK)?.parse().ok())
}

fn noted_port(plan: &Plan) -> Option<&str> {
    plan.owner.link.as_ref()?.port.as_deref()
}

/// Returns the name of the port of a device with these attributes. That of a link that is in a pod is what
/// was noted.
fn port(attributes: &Map<String, Value>, noted: Option<&str>, inventory: &Inventory) -> Option<String> {
    let link = link_of(attributes, inventory)?;
    let uplink = inventory.uplinks.iter().find(|uplink| uplink.name == link);
    let card = || text(attributes, attributes::PHYSICAL_FUNCTION).filter(|card| !card.is_empty());
    let gone = || noted.or_else(card).unwrap_or(link.as_str()).to_owned();
    Some(uplink.map_or_else(gone, |uplink| uplink.port.name.clone()))
}

/// Returns the link that a plan is on, and its port.
pub(crate) fn link_and_port(plan: &Plan, inventory: &Inventory) -> Option<(IfName, String)> {
    let of = &plan.owner.attributes;
    Some((link_of(of, inventory)?, port(of, noted_port(plan), inventory)?))
}

/// Returns how many attachments hold these.
pub(super) fn many<'a>(held: impl IntoIterator<Item = &'a HeldDevice>) -> usize {
    held.into_iter().map(HeldDevice::many).sum()
}

/// Returns what claims hold of the ClaimNetwork's device in the node's pool.
pub(super) fn amounts(network: &NetworkName, held: &[HeldDevice]) -> NetworkCapacity {
    let device = DeviceName::Network(network.clone()).to_string();
    let here = || held.iter().filter(|held| held.device.as_ref() == Some(&device));
    let number = |count: usize| Some(Quantity::new(count as u64));
    NetworkCapacity {
        bandwidth: Some(Quantity::new(here().map(HeldDevice::bandwidth_of_all).fold(0, u64::saturating_add))),
        interfaces: number(many(here())),
        addresses: number(many(here().filter(|held| held.takes_address_of(network)))),
    }
}

/// Whether the link of a plan stays on the node, below what the pod gets.
pub(crate) fn stays_on_node(plan: &Plan) -> bool {
    plan.owner.needs_node_network || has_child(plan.spec.conflist.plugins())
}

/// The VLAN id that a plan takes on its link. Pods' plugins may work on what is set up on the node instead.
fn fixed_vlan(plan: &Plan) -> Option<u32> {
    let of_plan = plan.owner.link.as_ref().filter(|_| plan.owner.needs_node_network);
    let is_on_link = |plugin: &&PluginConf| {
        of_plan.is_none_or(|link| plugin.member("master") == Some(link.name.as_str().into()))
    };
    vlan_of(plan.spec.conflist.plugins().filter(is_on_link))
}

/// The id that an attachment has alone: the one that it was given, or the one that its ClaimNetwork fixes.
pub(crate) fn id_of(plan: &Plan) -> Option<Segment> {
    let fixed = || {
        let link = plan.owner.link.as_ref()?;
        Some(Segment { space: space_of_link(link.name.as_str()), id: fixed_vlan(plan)? })
    };
    plan.owner.segment.clone().or_else(fixed)
}

/// Returns the inventory with each held ClaimNetwork on the link of its attachments.
pub(crate) fn settled(
    inventory: &Arc<Inventory>,
    held: impl IntoIterator<Item = (NetworkName, IfName)>,
) -> Arc<Inventory> {
    let mut settled = Arc::clone(inventory);
    let mut links: BTreeMap<NetworkName, Vec<IfName>> = BTreeMap::new();
    for (network, link) in held {
        let links = links.entry(network).or_default();
        if !links.contains(&link) {
            links.push(link);
        }
    }
    for (network, links) in links {
        let Some(spec) = inventory.networks.get(&network).filter(|spec| spec.uplink.is_some()) else {
            continue;
        };
        let chosen = inventory.uplink_of(spec).map(|uplink| &uplink.name);
        let Some(first) = links.first().filter(|_| chosen.is_none_or(|name| !links.contains(name))) else {
            continue;
        };
        if let Some(spec) = Arc::make_mut(&mut settled).networks.get_mut(&network) {
            spec.uplink = Some(UplinkSelector { links: vec![first.clone()], ..UplinkSelector::default() });
        }
    }
    settled
}

/// Adds held devices that are missing among the candidates, and reserves VLAN ids that attachments have.
pub(super) fn keep(candidates: &mut Vec<Candidate>, held: &[HeldDevice], inventory: &Inventory) {
    for one in held {
        let Some(name) = &one.device else { continue };
        match candidates.iter_mut().find(|candidate| candidate.device.name == *name) {
            // A device with a VLAN id serves one pod at a time, which keeps the id that it got.
            Some(candidate) if candidate.vlan.is_some() => candidate.vlan = one.vlan.or(candidate.vlan),
            // One counter that is overdrawn makes the scheduler refuse all devices of the pool that count.
            Some(candidate) if candidate.link_use != one.link_use => {
                candidate.link_use = one.link_use;
                candidate.is_of_before = true;
            }
            Some(_) => {}
            None => candidates.push(candidate(name, one, inventory)),
        }
    }
    for one in held {
        let (Some(id), Some(link)) = (one.vlan, one.link(inventory)) else { continue };
        let is_counted = |candidate: &Candidate| {
            one.device.as_ref() == Some(&candidate.device.name) && candidate.vlan == Some(id)
        };
        if candidates.iter().any(is_counted) {
            continue;
        }
        // No counter keeps these apart: the other device has many ids, or is in another pool.
        let same = |candidate: &&mut Candidate| {
            candidate.vlan == Some(id)
                && candidate.link.as_ref() == Some(&link)
                && one.device.as_ref() != Some(&candidate.device.name)
        };
        let by =
            one.network.as_ref().map(|network| format!(" of ClaimNetwork {network}")).unwrap_or_default();
        for candidate in candidates.iter_mut().filter(same) {
            let message = format!("VLAN id {id} on uplink {link} is taken by a pod{by}");
            candidate.unhealthy.push(Unhealthy::new(Reason::Exhausted, message));
        }
    }
}

fn candidate(name: &str, held: &HeldDevice, inventory: &Inventory) -> Candidate {
    // Attributes that do not decode are left out.
    let decoded = held.attributes.iter().filter_map(|(key, value)| {
        Some((key.clone(), serde_json::from_value::<DeviceAttribute>(value.clone()).ok()?))
    });
    let published: BTreeMap<String, DeviceAttribute> = decoded.collect();
    let text = |key: &str| held.text(key).unwrap_or_default();
    let link = held.link(inventory);
    let (is_there, is_in_pod) = (held.link_is_there(inventory), held.is_in_pod(inventory));
    let is_whole = held.link_use == Some(LinkUse::Nic);
    let unhealthy = match &held.network {
        Some(network) if is_in_pod && inventory.networks.contains_key(network) => {
            let message = format!("a pod has the whole uplink {}", text(attributes::UPLINK));
            Some(Unhealthy::new(Reason::LinkInPod, message))
        }
        // A link that is in its pod is not missing.
        _ if is_in_pod => link.as_ref().and_then(|link| waiting_network(link, inventory)).map(|network| {
            let message = format!("ClaimNetwork {network} waits for uplink {}", text(attributes::UPLINK));
            Unhealthy::new(Reason::Withdrawn, message)
        }),
        Some(network) if !inventory.networks.contains_key(network) => {
            let message = format!(
                "ClaimNetwork {network} is gone, or is not for this node any more: see `kubectl get claimnetworks {network}`"
            );
            Some(Unhealthy::new(Reason::Withdrawn, message))
        }
        None if is_there => {
            let message = format!(
                "device {name} is no longer offered: without an UplinkPolicy that lists modes, pods use a link with ClaimNetworks only \
                 through them, and another link in one way"
            );
            Some(Unhealthy::new(Reason::Withdrawn, message))
        }
        _ => {
            let uplink = text(attributes::UPLINK);
            let message = format!("uplink {uplink} is gone, or is not an uplink any more");
            Some(Unhealthy::new(Reason::LinkMissing, message))
        }
    };
    Candidate {
        device: Device {
            name: name.to_owned(),
            attributes: Some(published),
            allow_multiple_allocations: (!is_whole).then_some(true),
            ..Device::default()
        },
        link,
        link_use: held.link_use,
        vlan: held.vlan,
        is_offered: false,
        is_of_before: false,
        unhealthy: unhealthy.into_iter().collect(),
        is_in_pod,
    }
}

/// Returns a ClaimNetwork that names this link and has no other one. Of an absent link nothing but its
/// name can be selected.
fn waiting_network<'a>(link: &IfName, inventory: &'a Inventory) -> Option<&'a NetworkName> {
    let names =
        |spec: &ClaimNetworkSpec| spec.uplink.as_ref().is_some_and(|uplink| uplink.links.contains(link));
    let waits = |spec: &ClaimNetworkSpec| names(spec) && inventory.uplink_of(spec).is_none();
    inventory.networks.iter().find(|(_, spec)| waits(spec)).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use netclaim_cni::NetworkList;
    use serde_json::json;

    use super::*;
    use crate::fixtures;
    use crate::pods::owner::OnLink;

    #[test]
    fn an_attachment_on_an_interface_of_the_node_does_not_use_the_link_below_as_its_plugins_say() {
        let mut plan = fixtures::plan("c");
        let chain = json!([{"type": "macvlan", "master": "eth1.100"}, {"type": "vlan", "master": "eth1.100", "vlanId": 7}]);
        let list = json!({"cniVersion": "1.1.0", "name": "n", "plugins": chain}).to_string();
        plan.spec.conflist = NetworkList::parse(list.as_bytes()).expect("a list");
        let link = OnLink {
            name: "eth1".parse().expect("a name"),
            physical_function: None,
            port: None,
            link_use: None,
        };
        plan.owner.link = Some(link);
        let uses = |plan: &Plan| {
            let held = HeldDevice::of(plan, "n");
            (held.link_use, held.vlan, held.segment.map(|segment| segment.id))
        };
        assert_eq!(uses(&plan), (Some(LinkUse::Macvlan), Some(7), Some(7)));
        plan.owner.needs_node_network = true;
        assert_eq!(uses(&plan), (None, None, None));
        let chain = json!([{"type": "vlan", "master": "eth1", "vlanId": 7}]);
        let list = json!({"cniVersion": "1.1.0", "name": "n", "plugins": chain}).to_string();
        plan.spec.conflist = NetworkList::parse(list.as_bytes()).expect("a list");
        assert_eq!(uses(&plan), (None, Some(7), Some(7)));
    }
}
