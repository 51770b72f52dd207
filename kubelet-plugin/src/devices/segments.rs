//! Which segmentation ids each Network has on this node: an id is there once on an uplink.
//!
//! Of an id that several Networks list for one uplink the first by name has it, and none that lists it has one that
//! another Network's configuration fixes. Networks without an uplink keep theirs to themselves.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::NetworkName;
use netclaim_api::network::NetworkSpec;

use super::networks;
use crate::inventory::Inventory;

/// Among what there is only one of an id: the Network's uplink, or the Network itself.
pub fn space(name: &NetworkName, spec: &NetworkSpec, inventory: &Inventory) -> String {
    match inventory.uplink_of(spec) {
        Some(uplink) => format!("uplink {}", uplink.name),
        None => format!("network {name}"),
    }
}

/// The ids of each Network that hands out some.
pub fn segments(inventory: &Inventory) -> BTreeMap<NetworkName, BTreeSet<u32>> {
    let mut taken: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (name, spec) in networks(inventory) {
        taken.entry(space(name, spec, inventory)).or_default().extend(spec.fixed_vlan());
    }
    let mut segments = BTreeMap::new();
    for (name, spec) in networks(inventory) {
        let Some(segmentation) = &spec.segmentation else { continue };
        let taken = taken.entry(space(name, spec, inventory)).or_default();
        let ids: BTreeSet<u32> = segmentation.ids().difference(taken).copied().collect();
        taken.extend(&ids);
        segments.insert(name.clone(), ids);
    }
    segments
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::inventory::tests::uplink;

    fn network(uplink: &str, vlan: Value, ids: Option<Value>) -> NetworkSpec {
        let mut spec = json!({
            "uplink": {"interfaces": [uplink]},
            "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "vlan", "master": "${uplink.ifName}", "vlanId": vlan}]},
        });
        if let Some(ids) = ids {
            spec["segmentation"] = json!({"ids": ids});
        }
        serde_json::from_value(spec).expect("a network")
    }

    #[test]
    fn an_id_is_there_once_on_an_uplink() {
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
        let segments = segments(&inventory);
        let ids = |name: &str| segments[&name.parse().expect("a name")].iter().copied().collect::<Vec<_>>();
        assert_eq!((ids("a"), ids("b"), ids("c")), (vec![100, 101, 102], vec![104], vec![100, 101]));
    }
}
