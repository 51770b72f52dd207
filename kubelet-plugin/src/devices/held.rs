//! Devices that claims hold and the node no longer makes: they stay published, or the scheduler would stop charging what
//! they use of their link.
//!
//! They look as they did when the claim was prepared. A link that is in a pod is one of them; its device is no trouble,
//! for nobody else could have it. A shared one is tainted.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};
use netclaim_api::attributes;
use netclaim_api::device::network_of;
use netclaim_api::network::{LinkUse, link_use};
use netclaim_api::taints::{Trouble, TroubleKind};
use serde_json::{Map, Value};

use super::Candidate;
use crate::inventory::Inventory;

/// Devices of the node's pool that claims hold, with the attributes that they were prepared with.
pub type Held = BTreeMap<String, Map<String, Value>>;

/// Adds what is held and not among the candidates.
pub(super) fn keep(candidates: &mut Vec<Candidate>, held: &Held, inventory: &Inventory) {
    for (name, attributes) in held {
        if candidates.iter().all(|candidate| candidate.device.name != *name) {
            candidates.push(candidate(name, attributes, inventory));
        }
    }
}

fn candidate(name: &str, attributes: &Map<String, Value>, inventory: &Inventory) -> Candidate {
    // One that does not decode any more is one less attribute.
    let decoded = attributes.iter().filter_map(|(key, value)| {
        Some((key.clone(), serde_json::from_value::<DeviceAttribute>(value.clone()).ok()?))
    });
    let published: BTreeMap<String, DeviceAttribute> = decoded.collect();
    let text = |key: &str| published.get(key).and_then(|value| value.string.clone()).unwrap_or_default();
    let (uplink, types) = (text(attributes::UPLINK), text(attributes::PLUGIN_TYPES));
    let link_use = match name.split_once('-') {
        Some(("nic", _)) => Some(LinkUse::Nic),
        Some(("macvlan", _)) => Some(LinkUse::Macvlan),
        Some(("ipvlan", _)) => Some(LinkUse::Ipvlan),
        _ => link_use(&types.split(',').collect::<Vec<_>>()),
    };
    let in_pod = link_use == Some(LinkUse::Nic);
    let trouble = match network_of(name) {
        Some(network) if !inventory.networks.contains_key(&network) => Trouble::new(
            TroubleKind::Withdrawn,
            format!(
                "Network {network} is gone, or is not for this node any more: see `kubectl get network {network}`"
            ),
        ),
        _ => Trouble::new(
            TroubleKind::LinkMissing,
            format!("uplink {uplink} is gone, or is no uplink any more"),
        ),
    };
    Candidate {
        device: Device {
            name: name.to_owned(),
            attributes: Some(published),
            allow_multiple_allocations: (!in_pod).then_some(true),
            ..Device::default()
        },
        link: uplink.parse().ok(),
        link_use,
        vlan: None,
        troubles: if in_pod { Vec::new() } else { vec![trouble] },
        is_seen: !in_pod,
    }
}
