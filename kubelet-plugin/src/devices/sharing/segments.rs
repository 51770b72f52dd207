//! The segmentation ids of each ClaimNetwork on this node. An uplink has each id once. Pure.
//!
//! An id that several ClaimNetworks list for one uplink goes to the first by name. A ClaimNetwork does not
//! get an id that another ClaimNetwork's configuration fixes, or that a claim holds of another ClaimNetwork,
//! even a deleted one. ClaimNetworks without an uplink do not share ids.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::NetworkName;
use netclaim_api::network::ClaimNetworkSpec;

use crate::devices::candidate::{networks, space_of_link};
use crate::devices::held::HeldDevice;
use crate::inventory::Inventory;

/// Returns the space in which each id exists once: the ClaimNetwork's uplink, or the ClaimNetwork itself.
pub(crate) fn space(name: &NetworkName, spec: &ClaimNetworkSpec, inventory: &Inventory) -> String {
    match inventory.uplink_of(spec) {
        Some(uplink) => space_of_link(uplink.name.as_str()),
        None => format!("network {name}"),
    }
}

/// Returns the ids of each ClaimNetwork that hands out some.
pub(crate) fn segments(inventory: &Inventory, held: &[HeldDevice]) -> BTreeMap<NetworkName, BTreeSet<u32>> {
    let mut taken: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (name, spec) in networks(inventory) {
        taken.entry(space(name, spec, inventory)).or_default().extend(spec.fixed_vlan());
    }
    let mut segments = BTreeMap::new();
    for (name, spec) in networks(inventory) {
        let Some(segmentation) = &spec.segmentation else { continue };
        let space = space(name, spec, inventory);
        let of_others = held.iter().filter(|held| held.network.as_ref() != Some(name));
        let of_others = of_others.filter_map(|held| held.segment.as_ref());
        let of_others: BTreeSet<u32> =
            of_others.filter(|segment| segment.space == space).map(|segment| segment.id).collect();
        let taken = taken.entry(space).or_default();
        let ids: BTreeSet<u32> = segmentation.ids().difference(taken).copied().collect();
        let ids: BTreeSet<u32> = ids.difference(&of_others).copied().collect();
        taken.extend(&ids);
        segments.insert(name.clone(), ids);
    }
    segments
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::pods::owner::Segment;

    use super::*;
    use crate::inventory::fixtures::uplink;

    fn network(uplink: &str, vlan: Value, ids: Option<Value>) -> ClaimNetworkSpec {
        let mut spec = json!({
            "uplink": {"links": [uplink]},
            "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "vlan", "master": "${uplink.name}", "vlanId": vlan}]},
        });
        if let Some(ids) = ids {
            spec["segmentation"] = json!({"ids": ids});
        }
        serde_json::from_value(spec).expect("a network")
    }

    #[test]
    fn an_uplink_has_each_id_once() {
        let place = json!("${segmentation.id}");
        let networks = [
            ("a", network("eth1", place.clone(), Some(json!(["100-102"])))),
            ("b", network("eth1", place.clone(), Some(json!(["101-104"])))),
            ("c", network("eth2", place, Some(json!(["100-101"])))),
            ("d", network("eth1", json!(103), None)),
        ];
        let inventory = Inventory {
            uplinks: vec![uplink("eth1"), uplink("eth2")],
            networks: networks
                .into_iter()
                .map(|(name, spec)| (name.parse().expect("a name"), spec))
                .collect(),
            ..Inventory::default()
        };
        let ids = |held: &[HeldDevice], name: &str| {
            let segments = segments(&inventory, held);
            segments[&name.parse().expect("a name")].iter().copied().collect::<Vec<_>>()
        };
        let all = |held: &[HeldDevice]| (ids(held, "a"), ids(held, "b"), ids(held, "c"));
        assert_eq!(all(&[]), (vec![100, 101, 102], vec![104], vec![100, 101]));

        let segment = |id| Some(Segment { space: "uplink eth1".into(), id });
        let of_b = HeldDevice { network: "b".parse().ok(), segment: segment(101), ..HeldDevice::default() };
        let of_a_gone_one = HeldDevice { segment: segment(104), ..HeldDevice::default() };
        let held = (vec![100, 102], vec![101], vec![100, 101]);
        assert_eq!(all(&[of_b, of_a_gone_one]), held, "claims keep their ids");
    }
}
