//! Warnings that more than one object gives rise to. Pure.

use std::collections::BTreeMap;

use netclaim_api::addresses::{AddressPoolSpec, NetworkAddresses, PoolKey};
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_api::network::overlap::overlaps;
use netclaim_api::{Invalid, NetworkName};

use crate::addresses::blocks::Leased;
use crate::addresses::leasing::Leaving;
use crate::addresses::pool_status::{NodeOverlaps, PoolAcceptance};
use crate::networks::nodes::NetworkNodes;
use crate::networks::status::Acceptance;
use crate::objects::catalog::Catalog;
use crate::objects::nodes::{NodeFacts, Nodes};

/// A condition names this many blocks that go.
const NAMED_BLOCKS: usize = 5;

/// What accepted ClaimNetworks and AddressPools have in common with each other and with nodes, kept until it
/// changes.
#[derive(Debug, Default)]
pub(crate) struct Overlaps {
    /// ClaimNetworks that hand out the same addresses as others.
    networks: BTreeMap<NetworkName, Vec<Invalid>>,
    /// ClaimNetworks with ranges of their own that nodes have.
    own_ranges: BTreeMap<NetworkName, NodeOverlaps>,
    pools: BTreeMap<String, NodeOverlaps>,
}

/// Names of objects whose warnings have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedWarnings {
    pub(crate) networks: Vec<String>,
    pub(crate) pools: Vec<String>,
}

impl Overlaps {
    /// Compares all objects, because one of them has changed.
    pub(crate) fn of(networks: &Catalog<Acceptance>, pools: &Catalog<PoolAcceptance>, nodes: &Nodes) -> Self {
        let accepted = || {
            networks.all().filter_map(|reviewed| reviewed.review.result.as_ref().ok().map(|(n, s)| (n, s)))
        };
        let good_pools: BTreeMap<String, AddressPoolSpec> = pools
            .all()
            .filter_map(|pool| Some((pool.review.name.clone(), pool.review.result.clone().ok()?)))
            .collect();
        let mut found: BTreeMap<NetworkName, Vec<Invalid>> = BTreeMap::new();
        for (name, warning) in overlaps(accepted(), &good_pools) {
            found.entry(name.clone()).or_default().push(warning);
        }
        for (name, spec) in accepted() {
            let pool = spec.addresses.as_ref().and_then(|addresses| good_pools.get(addresses.pool.as_ref()?));
            let found = found.entry(name.clone()).or_default();
            found.extend(pool.and_then(|pool| spec.serves_no_pod(pool)));
            found.extend(pool.map(|pool| spec.route_warnings_of(pool)).unwrap_or_default());
        }
        let own_ranges = accepted().filter_map(|(name, spec)| {
            let pool = spec.addresses.as_ref().and_then(NetworkAddresses::inline)?;
            Some((name.clone(), NodeOverlaps::of(&pool, nodes)))
        });
        Self {
            networks: found,
            own_ranges: own_ranges.collect(),
            pools: good_pools
                .iter()
                .map(|(name, pool)| (name.clone(), NodeOverlaps::of(pool, nodes)))
                .collect(),
        }
    }

    /// Takes in a node; `None` if it is gone.
    pub(crate) fn node(&mut self, node: &str, facts: Option<&NodeFacts>) -> ChangedWarnings {
        let networks = self
            .own_ranges
            .iter_mut()
            .filter_map(|(name, overlaps)| overlaps.update(node, facts).then(|| name.to_string()));
        let pools = self
            .pools
            .iter_mut()
            .filter_map(|(name, overlaps)| overlaps.update(node, facts).then(|| name.clone()));
        ChangedWarnings { networks: networks.collect(), pools: pools.collect() }
    }

    /// Returns what others make a likely mistake of in an accepted ClaimNetwork.
    pub(crate) fn of_network(
        &self,
        (name, spec): &(NetworkName, ClaimNetworkSpec),
        nodes: &NetworkNodes,
        leased: &Leased,
    ) -> Vec<Invalid> {
        let mut warnings = self.networks.get(name).cloned().unwrap_or_default();
        let is_on_several = nodes.publishing().chain(nodes.missing()).nth(1).is_some();
        warnings.extend(spec.repeated_addresses().filter(|_| is_on_several));
        let ranges = self.own_ranges.get(name);
        warnings.extend(ranges.map(|ranges| ranges.warnings("spec.addresses.ranges")).unwrap_or_default());
        let key = spec.addresses.as_ref().map(|addresses| addresses.key(name));
        let message = |one: &Leaving| {
            if one.network == *name {
                return one.lost();
            }
            key.as_ref().filter(|key| one.awaited_by.contains(key)).map(|_| one.awaited())
        };
        warnings.extend(leaving("spec.addresses", leased, message));
        warnings
    }

    /// Returns what others make a likely mistake of in an accepted AddressPool.
    pub(crate) fn of_pool(
        &self,
        pool: &PoolAcceptance,
        networks: &Catalog<Acceptance>,
        leased: &Leased,
    ) -> Vec<Invalid> {
        let overlaps = self.pools.get(&pool.name);
        let mut warnings = overlaps.map(|pool| pool.warnings("spec.ranges")).unwrap_or_default();
        let is_known = |network: &NetworkName| {
            networks.get(network.as_ref()).is_some_and(|reviewed| reviewed.review.result.is_ok())
        };
        let key = PoolKey::Pool(pool.name.clone());
        let message = |one: &Leaving| {
            let of_pool = one.pool.as_ref() == Some(&pool.name) && !is_known(&one.network);
            let lost = one.lost().filter(|_| of_pool);
            lost.or_else(|| one.awaited_by.contains(&key).then(|| one.awaited()))
        };
        warnings.extend(leaving("spec.ranges", leased, message));
        warnings
    }
}

/// Returns a warning for the blocks and leases that have addresses which are not their ClaimNetwork's any
/// more.
fn leaving(field: &str, leased: &Leased, message: impl Fn(&Leaving) -> Option<String>) -> Option<Invalid> {
    let mut texts: Vec<String> = leased.leaving.iter().filter_map(message).collect();
    let more = texts.len().saturating_sub(NAMED_BLOCKS);
    texts.truncate(NAMED_BLOCKS);
    if more > 0 {
        texts.push(format!("and {more} more blocks or leases"));
    }
    (!texts.is_empty()).then(|| Invalid::new(field, texts.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::api::DynamicObject;
    use serde_json::json;

    use super::*;
    use crate::networks::nodes::{NodeNow, OnNode};

    fn network(spec: serde_json::Value) -> Arc<DynamicObject> {
        let network = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": "storage"}, "spec": spec});
        Arc::new(serde_json::from_value(network).unwrap())
    }

    fn warnings(network: &Arc<DynamicObject>, count: usize, leased: &Leased) -> Vec<String> {
        let mut networks = Catalog::<Acceptance>::default();
        networks.update(vec![Arc::clone(network)]);
        let accepted = networks.get("storage").unwrap().review.result.as_ref().unwrap();
        let mut nodes = NetworkNodes::default();
        for node in 0..count {
            let published = Some(OnNode::default());
            nodes.set(
                &format!("n{node}"),
                NodeNow { published, is_selected: true, has_agent: true, older: 0 },
            );
        }
        let overlaps = Overlaps::of(&networks, &Catalog::default(), &Nodes::new());
        overlaps.of_network(accepted, &nodes, leased).iter().map(Invalid::to_string).collect()
    }

    #[test]
    fn networks_with_the_same_addresses_warn_of_each_other() {
        let ipam = json!({"type": "host-local", "subnet": "10.30.0.0/24"});
        let plugins = json!([{"type": "bridge", "bridge": "br0", "ipam": ipam}]);
        let one = network(json!({"cni": {"cniVersion": "1.1.0", "plugins": plugins}}));
        let mut other = DynamicObject::clone(&one);
        other.metadata.name = Some("backup".to_owned());
        let mut networks = Catalog::<Acceptance>::default();
        networks.update(vec![one, Arc::new(other)]);
        let overlaps = Overlaps::of(&networks, &Catalog::default(), &Nodes::new());
        for (reviewed, other) in networks.all().zip(["ClaimNetwork storage ", "ClaimNetwork backup "]) {
            let accepted = reviewed.review.result.as_ref().unwrap();
            let found = overlaps.of_network(accepted, &NetworkNodes::default(), &Leased::default());
            assert!(found.len() == 1 && found[0].to_string().contains(other), "{found:?}");
        }
    }

    #[test]
    fn a_network_without_ips_gets_a_warning_of_a_pool_that_is_all_reserved() {
        let pool = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": "plant"},
            "spec": {"ranges": [{"subnet": "10.30.0.0/28"}], "reserved": ["10.30.0.0/28"]}});
        let mut pools = Catalog::<PoolAcceptance>::default();
        pools.update(vec![Arc::new(serde_json::from_value(pool).unwrap())]);
        let found = |allow: serde_json::Value| {
            let network = network(
                json!({"uplink": {"links": ["eth1"]}, "addresses": {"poolName": "plant"}, "allow": allow,
                "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}"}]}}),
            );
            let mut networks = Catalog::<Acceptance>::default();
            networks.update(vec![network]);
            let overlaps = Overlaps::of(&networks, &pools, &Nodes::new());
            let accepted = networks.get("storage").unwrap().review.result.as_ref().unwrap();
            overlaps.of_network(accepted, &NetworkNodes::default(), &Leased::default())
        };
        assert_eq!(found(json!({"ips": {}})), []);
        let warning = found(json!({})).remove(0).to_string();
        assert!(
            warning.starts_with("spec.allow.ips: is not set, and all addresses are reserved"),
            "{warning}"
        );
    }

    #[test]
    fn a_node_changes_the_warnings_of_ranges_that_have_its_addresses() {
        let network = network(
            json!({"uplink": {"links": ["eth1"]}, "addresses": {"ranges": [{"subnet": "10.20.0.0/24"}]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}"}]}}),
        );
        let mut networks = Catalog::<Acceptance>::default();
        networks.update(vec![network]);
        let mut overlaps = Overlaps::of(&networks, &Catalog::default(), &Nodes::new());
        let facts = |ip: &str| NodeFacts { addresses: vec![ip.parse().unwrap()], ..NodeFacts::default() };
        assert_eq!(overlaps.node("a", Some(&facts("192.0.2.7"))), ChangedWarnings::default());
        assert_eq!(overlaps.node("b", Some(&facts("10.20.0.7"))).networks, ["storage"]);
        assert_eq!(overlaps.node("b", None).networks, ["storage"]);
    }

    #[test]
    fn a_range_that_several_nodes_hand_out_gets_a_warning() {
        let ipam = json!({"type": "host-local", "subnet": "10.20.0.0/24"});
        let plugin = json!({"type": "macvlan", "master": "${uplink.name}", "ipam": ipam});
        let network = network(json!({"uplink": {"links": ["eth1"]},
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
            json!({"uplink": {"links": ["eth1"]}, "addresses": {"ranges": [{"subnet": "10.20.0.0/24"}]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}"}]}}),
        );
        let block = |index: usize| Leaving {
            network: "storage".parse().unwrap(),
            pool: None,
            object: format!("b{index}"),
            why: Some("its range is gone".into()),
            remains: format!("block {index} remains"),
            awaited_by: [PoolKey::Pool("lan".into())].into(),
        };
        let leased = Leased { leaving: (0..7).map(block).collect(), ..Leased::default() };
        let found = warnings(&network, 1, &leased);
        assert_eq!(found.len(), 1);
        let first =
            "spec.addresses: its range is gone: block 0 remains; its range is gone: block 1 remains; ";
        assert!(found[0].starts_with(first), "{found:?}");
        assert!(found[0].ends_with("block 4 remains; and 2 more blocks or leases"), "{found:?}");

        let others = |name: &str, addresses: serde_json::Value| {
            let mut other = DynamicObject::clone(&network);
            other.metadata.name = Some(name.to_owned());
            other.data["spec"]["addresses"] = addresses;
            let mut networks = Catalog::<Acceptance>::default();
            networks.update(vec![Arc::new(other)]);
            let accepted = networks.get(name).unwrap().review.result.as_ref().unwrap();
            let overlaps = Overlaps::of(&networks, &Catalog::default(), &Nodes::new());
            overlaps.of_network(accepted, &NetworkNodes::default(), &leased)
        };
        let waits = others("b", json!({"poolName": "lan"}));
        let first = "spec.addresses: addresses of ClaimNetwork storage are not free yet: block 0 remains; ";
        assert!(waits.len() == 1 && waits[0].to_string().starts_with(first), "{waits:?}");
        assert_eq!(others("c", json!({"ranges": [{"subnet": "10.20.0.0/24"}]})), []);
        let mut pools = Catalog::<PoolAcceptance>::default();
        let pool = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": "lan"},
            "spec": {"ranges": [{"subnet": "10.20.0.0/24"}]}});
        pools.update(vec![Arc::new(serde_json::from_value(pool).unwrap())]);
        let overlaps = Overlaps::of(&Catalog::default(), &pools, &Nodes::new());
        let of_pool = overlaps.of_pool(&pools.get("lan").unwrap().review, &Catalog::default(), &leased);
        assert!(of_pool.len() == 1 && of_pool[0].to_string().contains("are not free yet"), "{of_pool:?}");
    }
}
