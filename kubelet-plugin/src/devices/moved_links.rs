//! Links that were moved into pods and are not back on the node as they were. No new pod gets them, under any
//! name.

use k8s_openapi::api::resource::v1::{Device, DeviceTaint};
use netclaim_api::IfName;
use netclaim_api::attributes::UPLINK;
use netclaim_api::taints::Reason;
use netclaim_driver::links::{HostLink, Link};
use netclaim_slices::Pool;

use crate::inventory::Inventory;

/// One such link.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MovedLink {
    /// The link before it was moved.
    pub(super) link: HostLink,
    /// Its name in the pod.
    pub(super) name_in_pod: IfName,
}

/// Taints the devices on those links.
pub(super) fn taint(pool: &mut Pool, moved: &[MovedLink], inventory: &Inventory) {
    if moved.is_empty() {
        return;
    }
    let links: Vec<Link> = inventory.uplinks.iter().map(|uplink| uplink.link.clone()).collect();
    for MovedLink { link, name_in_pod } in moved {
        let now = link.find(&links, name_in_pod.as_str(), true).map(|link| link.name.as_str());
        let on_it = |device: &&mut Device| {
            let uplink = device.attributes.as_ref().and_then(|all| all.get(UPLINK)?.string.as_deref());
            uplink.is_some_and(|uplink| uplink == link.name || Some(uplink) == now)
        };
        for device in pool.devices.iter_mut().filter(on_it) {
            let key = Reason::LinkMissing.key();
            let taints = device.taints.get_or_insert_default();
            if taints.iter().all(|taint| taint.key != key) {
                let effect = "NoSchedule".to_owned();
                taints.push(DeviceTaint { key: key.to_owned(), effect, ..DeviceTaint::default() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use netclaim_api::LinkUse;
    use serde_json::json;

    use super::super::HeldDevice;
    use super::super::pool::{Sources, pool};
    use super::*;
    use crate::inventory::fixtures::uplink;

    #[test]
    fn a_link_that_a_pod_renamed_is_tainted_under_both_names() {
        let mut renamed = uplink("x");
        renamed.link.permanent_mac = Some("02:00:00:00:00:01".to_owned());
        let uplinks = vec![renamed, uplink("eth3")];
        let inventory = Inventory { uplinks, ..Inventory::default() };
        let link =
            json!({"index": 2, "name": "eth2", "permanentMac": "02:00:00:00:00:01", "mtu": 1500, "up": true});
        let moved = MovedLink {
            link: serde_json::from_value(link).expect("a link"),
            name_in_pod: "net1".parse().expect("a name"),
        };
        let held = [HeldDevice {
            device: Some("nic-eth2".to_owned()),
            attributes: json!({"uplink": {"string": "eth2"}}).as_object().cloned().unwrap_or_default(),
            link_use: Some(LinkUse::Nic),
            ..HeldDevice::default()
        }];
        let inventory = Arc::new(inventory);
        let unavailable = BTreeMap::new();
        let sources = Sources {
            node: "n",
            inventory: &inventory,
            unavailable: &unavailable,
            held: &held,
            gone: &BTreeSet::new(),
            counts: true,
        };
        let (mut pool, _) = pool(sources, |_, _| None);
        for _ in 0..2 {
            taint(&mut pool, std::slice::from_ref(&moved), &inventory);
        }
        let tainted =
            pool.devices.iter().filter(|device| device.taints.as_ref().is_some_and(|all| all.len() == 1));
        let tainted: Vec<&str> = tainted.map(|device| device.name.as_str()).collect();
        assert_eq!(tainted, ["nic-x", "macvlan-x", "ipvlan-x", "nic-eth2"]);
    }
}
