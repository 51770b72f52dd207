//! Warnings that more than one object gives rise to. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::DynamicObject;
use netclaim_api::addresses::NetworkAddresses;
use netclaim_api::network::overlap::overlaps;
use netclaim_api::{Invalid, NetworkName};

use crate::acceptance::Acceptance;
use crate::address_pools::{PoolAcceptance, of_nodes};
use crate::blocks::Leased;
use crate::leasing::Leaving;
use crate::node_objects::Nodes;
use crate::nodes::NetworkNodes;

/// A condition names this many blocks that go.
const NAMED_BLOCKS: usize = 5;

/// Adds to each accepted Network and AddressPool what others make a likely mistake of it.
pub(crate) fn add(
    networks: &mut [(&Arc<DynamicObject>, Acceptance)],
    pools: &mut [(&Arc<DynamicObject>, PoolAcceptance)],
    on: &BTreeMap<NetworkName, NetworkNodes>,
    nodes: &Nodes,
    leased: &Leased,
) {
    let mut overlapping = overlapping(networks, pools);
    for (_, acceptance) in networks.iter_mut() {
        let Ok((name, spec)) = &acceptance.result else { continue };
        let mut warnings = overlapping.remove(name).unwrap_or_default();
        let is_on_several = on.get(name).is_some_and(|nodes| nodes.bandwidth.len() + nodes.missing.len() > 1);
        warnings.extend(spec.repeated_addresses().filter(|_| is_on_several));
        if let Some(pool) = spec.addresses.as_ref().and_then(NetworkAddresses::inline) {
            warnings.extend(of_nodes(&pool, nodes, "spec.addresses.ranges"));
        }
        warnings.extend(leaving("spec.addresses", leased, |block| block.network == *name));
        acceptance.warnings.extend(warnings);
    }
    let is_known = |network: &NetworkName| {
        networks
            .iter()
            .any(|(_, acceptance)| acceptance.result.as_ref().is_ok_and(|(name, _)| name == network))
    };
    for (_, acceptance) in pools {
        let Ok(spec) = &acceptance.result else { continue };
        let mut warnings = of_nodes(spec, nodes, "spec.ranges");
        let of_pool =
            |block: &Leaving| block.pool.as_ref() == Some(&acceptance.name) && !is_known(&block.network);
        warnings.extend(leaving("spec.ranges", leased, of_pool));
        acceptance.warnings.extend(warnings);
    }
}

/// Returns the warnings of accepted Networks that hand out the same addresses as others.
fn overlapping(
    networks: &[(&Arc<DynamicObject>, Acceptance)],
    pools: &[(&Arc<DynamicObject>, PoolAcceptance)],
) -> BTreeMap<NetworkName, Vec<Invalid>> {
    let accepted = networks.iter().filter_map(|(_, acceptance)| acceptance.result.as_ref().ok());
    let pools = pools.iter().filter_map(|(_, pool)| Some((pool.name.clone(), pool.result.clone().ok()?)));
    let mut found: BTreeMap<NetworkName, Vec<Invalid>> = BTreeMap::new();
    for (name, warning) in overlaps(accepted.map(|(name, spec)| (name, spec)), &pools.collect()) {
        found.entry(name.clone()).or_default().push(warning);
    }
    found
}

/// Returns a warning for the blocks that go when their last pod goes.
fn leaving(field: &str, leased: &Leased, of: impl Fn(&Leaving) -> bool) -> Option<Invalid> {
    let blocks: Vec<&Leaving> = leased.leaving.iter().filter(|block| of(block)).collect();
    let more = blocks.len().saturating_sub(NAMED_BLOCKS);
    let mut texts: Vec<String> =
        blocks.into_iter().take(NAMED_BLOCKS).map(|block| block.message.clone()).collect();
    if more > 0 {
        texts.push(format!("and {more} more blocks"));
    }
    (!texts.is_empty()).then(|| Invalid::new(field, texts.join("; ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(spec: serde_json::Value) -> Arc<DynamicObject> {
        let network = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "Network", "metadata": {"name": "storage"}, "spec": spec});
        Arc::new(serde_json::from_value(network).unwrap())
    }

    fn warnings(network: &Arc<DynamicObject>, nodes: usize, leased: &Leased) -> Vec<String> {
        let mut acceptances = [(network, Acceptance::of(network))];
        assert!(acceptances[0].1.result.is_ok(), "{:?}", acceptances[0].1.result);
        let bandwidth = (0..nodes).map(|node| (format!("n{node}"), None)).collect();
        let on = NetworkNodes { bandwidth, ..NetworkNodes::default() };
        let on = BTreeMap::from([("storage".parse().unwrap(), on)]);
        add(&mut acceptances, &mut [], &on, &Nodes::new(), leased);
        acceptances[0].1.warnings.iter().map(Invalid::to_string).collect()
    }

    #[test]
    fn a_range_that_several_nodes_hand_out_gets_a_warning() {
        let ipam = json!({"type": "host-local", "subnet": "10.20.0.0/24"});
        let plugin = json!({"type": "macvlan", "master": "${uplink.ifName}", "ipam": ipam});
        let network = network(json!({"uplink": {"interfaces": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [plugin]}}));
        assert_eq!(warnings(&network, 1, &Leased::default()), [""; 0]);
        let found = warnings(&network, 2, &Leased::default());
        assert!(
            found[0].starts_with("spec.cni.plugins[0].ipam: host-local counts on each node"),
            "{found:?}"
        );
    }

    #[test]
    fn blocks_that_go_are_named_up_to_a_number() {
        let network = network(
            json!({"uplink": {"interfaces": ["eth1"]}, "addresses": {"ranges": [{"subnet": "10.20.0.0/24"}]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.ifName}"}]}}),
        );
        let block = |index: usize| Leaving {
            network: "storage".parse().unwrap(),
            pool: None,
            block: format!("b{index}"),
            message: format!("block {index} remains"),
        };
        let leased = Leased { leaving: (0..7).map(block).collect(), ..Leased::default() };
        let found = warnings(&network, 1, &leased);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("spec.addresses: block 0 remains; block 1 remains; "), "{found:?}");
        assert!(found[0].ends_with("block 4 remains; and 2 more blocks"), "{found:?}");
    }
}
