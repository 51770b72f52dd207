//! What a node offers to a claim, and the values of its placeholders. Pure.

use std::collections::BTreeMap;

use ipnet::IpNet;
use netclaim_api::device::{self, DeviceName};
use netclaim_api::merge::Base;
use netclaim_api::network::NODE_INTERFACE;
use netclaim_api::template::Scope;
use serde_json::{Map, Value, json};

use super::claim::{AllocatedDevice, Claim};
use super::error::{DeviceError, PlanError};
use crate::devices;
use crate::inventory::{Inventory, Uplink, node_scope};
use crate::pods::owner::{DeviceRef, Segment};

/// The node, as plans need it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    /// The Node object's name.
    pub(crate) name: &'a str,
    pub(crate) inventory: &'a Inventory,
    pub(crate) labels: &'a Labels,
    /// The prefixes that stay with `eth0` beside an attachment that has the pod's default route; empty if
    /// that is not known.
    pub(crate) kept: &'a [IpNet],
    /// Whether the container runtime can ask for pods' primary networks.
    pub(crate) primary: bool,
}

/// Labels of objects that only some ClaimNetworks ask for.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    /// Labels of the pod's namespace; needed where a ClaimNetwork [asks for them](asks_for_namespace).
    pub(crate) namespace: BTreeMap<String, String>,
    /// Labels of the pod; needed where a ClaimNetwork [asks for them](asks_for_pod).
    pub(crate) pod: BTreeMap<String, String>,
}

pub(super) fn in_request(claim: &Claim, allocated: &AllocatedDevice, source: DeviceError) -> PlanError {
    PlanError::Device {
        request: allocated.device.request.clone(),
        claim: claim.object.clone(),
        source: Box::new(source),
    }
}

/// A device that the node offers.
pub(super) struct Offer<'a> {
    pub(super) base: Base<'a>,
    /// The link that it is on.
    pub(super) uplink: Option<&'a Uplink>,
    /// What is published of it.
    pub(super) attributes: Map<String, Value>,
}

/// Returns what the node offers under the name of the allocated device.
pub(super) fn offer<'a>(allocated: &'a DeviceRef, node: Node<'a>) -> Result<Offer<'a>, DeviceError> {
    let (pool, base, uplink) = base(&allocated.device, node)?;
    let (device, node_name) = (&allocated.device, node.name.to_owned());
    if allocated.pool != pool {
        let (device, found) = (device.clone(), allocated.pool.clone());
        return Err(DeviceError::OtherPool { device, found, node: node_name, pool });
    }
    let attributes = devices::attributes(device, node.inventory);
    if attributes.is_empty() {
        return Err(DeviceError::NotOffered { node: node_name, device: device.clone() });
    }
    Ok(Offer { base, uplink, attributes })
}

/// Returns the device's pool, what it attaches to, and its link.
fn base<'a>(name: &'a str, node: Node<'a>) -> Result<(String, Base<'a>, Option<&'a Uplink>), DeviceError> {
    let gone = || DeviceError::Gone { device: name.to_owned(), node: node.name.to_owned() };
    match name.parse().map_err(|_| gone())? {
        DeviceName::Network(network) => {
            let Some((name, spec)) = node.inventory.networks.get_key_value(&network) else {
                let (network, node) = (network.to_string(), node.name.to_owned());
                return Err(DeviceError::NoNetwork { network, node });
            };
            let uplink = node.inventory.uplink_of(spec);
            if spec.uplink.is_some() && uplink.is_none() {
                let (network, node) = (network.to_string(), node.name.to_owned());
                return Err(DeviceError::NoUplink { node, network });
            }
            Ok((device::pool(name, spec.scope, node.name), Base::Network(name, spec), uplink))
        }
        DeviceName::Link(link_use, label) => {
            let is_it = |uplink: &&Uplink| device::link_label(&uplink.name) == label;
            let uplink = node.inventory.uplinks.iter().find(is_it).ok_or_else(gone)?;
            Ok((node.name.to_owned(), Base::Uplink(link_use), Some(uplink)))
        }
    }
}

/// Returns the values of the placeholders for an attachment of a claim.
///
/// # Errors
/// Why the interface of `spec.node` has no name on this node.
pub(super) fn scope(
    claim: &Claim,
    network: &str,
    node: Node<'_>,
    Offer { base, uplink, .. }: &Offer<'_>,
    segment: Option<&Segment>,
) -> Result<Scope, DeviceError> {
    let mut scope: Vec<(&str, Value)> = vec![
        ("claim.name", json!(claim.object.name)),
        // That of who asks: the claim of a NetworkAttachment is in netclaim's own.
        ("claim.namespace", json!(claim.pod.namespace)),
        ("claim.uid", json!(claim.object.uid)),
        ("pod.name", json!(claim.pod.name)),
        ("pod.namespace", json!(claim.pod.namespace)),
        ("pod.uid", json!(claim.pod.uid)),
    ];
    scope.extend(segment.map(|segment| ("segmentation.id", json!(segment.id))));
    let mut all = node_scope(network, node.name, &node.inventory.labels, *uplink);
    if let Base::Network(_, spec) = base
        && let Some(on_node) = &spec.node
    {
        let interface = on_node.interface(&all)?;
        all.insert(NODE_INTERFACE.to_owned(), json!(interface.as_str()));
    }
    all.extend(scope.into_iter().map(|(name, value)| (name.to_owned(), value)));
    Ok(all)
}
