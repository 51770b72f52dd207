//! Warnings about ClaimNetworks on links that carry the node's own traffic, about links that ClaimNetworks
//! name and do not get, and about links that the node takes from pods. Pure.

use std::collections::BTreeMap;

use netclaim_api::network::overlap::overlaps;
use netclaim_api::network::{ClaimNetworkSpec, UplinkSelector};
use netclaim_api::{IfName, NetworkName};

use super::selection::Inventory;
use super::uplink::Uplink;

impl Inventory {
    /// Returns warnings about ClaimNetworks whose uplink carries the node's own traffic, or that cannot have
    /// the link that they name: why, and what to do.
    pub(crate) fn node_link_warnings(&self) -> BTreeMap<NetworkName, String> {
        let warning = |(name, network): (&NetworkName, &ClaimNetworkSpec)| {
            let text = match self.uplink_of(network) {
                Some(Uplink { name: link, carries: Some(carries), .. }) => {
                    format!("ClaimNetwork {name} has pods share link {link}, which {carries}")
                }
                Some(_) => return None,
                None => {
                    let mut named = network.uplink.iter().flat_map(|uplink| &uplink.links);
                    let why = named.find_map(|link| self.why_not(network, link))?;
                    format!("ClaimNetwork {name} does not get link {why}")
                }
            };
            Some((name.clone(), text))
        };
        let mut warnings = self.overlaps_by_name();
        warnings.extend(self.networks.iter().filter_map(warning));
        warnings
    }

    /// Returns why the ClaimNetwork does not get a link that it names; `None` if the node has no such link.
    fn why_not(&self, network: &ClaimNetworkSpec, link: &IfName) -> Option<String> {
        let Some(Uplink { name, link, carries, when_named, .. }) = self.uplink(link) else {
            return self.withheld.get(link.as_str()).map(|why| format!("{link}, which {why}"));
        };
        let kind = link.kind.as_deref().unwrap_or_default();
        Some(match (carries, network.bridge()) {
            (Some(carries), _) if carries.is_dispensable() => {
                format!("{name}, which {carries}: an UplinkPolicy with `publish: Always` gives it away whole")
            }
            (Some(carries), _) => format!(
                "{name}, which {carries}: macvlan, ipvlan and VLANs can share it, but it is never given away"
            ),
            (None, Some(bridge)) => format!("{name}, which is not a port of bridge {bridge}"),
            (None, None) if when_named.is_some() => format!(
                "{name}, which is of kind {kind}: macvlan, ipvlan and VLANs can share it, and an UplinkPolicy with `publish: Always` \
                 gives it away whole"
            ),
            (None, None) => format!(
                "{name}: it lacks attributes of spec.uplink, or its UplinkPolicies do not list this way to use it"
            ),
        })
    }

    /// Returns warnings about ClaimNetworks that hand out the same addresses on one link, under two of its
    /// names. The controller only knows the names.
    fn overlaps_by_name(&self) -> BTreeMap<NetworkName, String> {
        let is_alternative = |name: &IfName| self.uplink(name).is_some_and(|uplink| uplink.name != *name);
        let names =
            |spec: &ClaimNetworkSpec| spec.uplink.iter().flat_map(|uplink| &uplink.links).any(is_alternative);
        if !self.networks.values().any(names) {
            return BTreeMap::new();
        }
        let pool = |(name, spec): (&NetworkName, &ClaimNetworkSpec)| {
            Some((spec.addresses.as_ref()?.pool.clone()?, self.addresses.get(name)?.pool.clone()?))
        };
        let pools = self.networks.iter().filter_map(pool).collect();
        let on_link = |(name, spec): (&NetworkName, &ClaimNetworkSpec)| {
            let links = vec![self.uplink_of(spec)?.name.clone()];
            let uplink = Some(UplinkSelector { links, ..UplinkSelector::default() });
            Some((name.clone(), ClaimNetworkSpec { uplink, ..spec.clone() }))
        };
        let on_links: BTreeMap<_, _> = self.networks.iter().filter_map(on_link).collect();
        let known = overlaps(self.networks.iter(), &pools);
        let found = overlaps(on_links.iter(), &pools).into_iter().filter(|found| !known.contains(found));
        found.map(|(name, warning)| (name.clone(), format!("ClaimNetwork {name}: {warning}"))).collect()
    }
}

/// Returns warnings about links that pods could use `before`, and that are offered in fewer ways `now` since
/// the node has become unreachable without them. One router on the link's network is enough for that.
pub(crate) fn taken_by_the_node(before: &Inventory, now: &Inventory) -> Vec<String> {
    let warning = |link: &Uplink| {
        let before = before.uplinks.iter().find(|before| before.link.index == link.link.index)?;
        let carries = link.carries.as_ref().filter(|carries| !carries.is_dispensable())?;
        let lost: Vec<&str> = before.modes.difference(&link.modes).map(|mode| mode.as_str()).collect();
        let (name, lost) = (&link.name, lost.join(", "));
        let text = || format!("link {name} is no longer offered to pods as {lost}: it {carries}");
        (!lost.is_empty()).then(text)
    };
    now.uplinks.iter().filter_map(warning).collect()
}

#[cfg(test)]
mod tests {
    use netclaim_api::LinkUse;
    use netclaim_driver::links::{NodeTraffic, Relation, Traffic};
    use serde_json::json;

    use super::*;
    use crate::inventory::fixtures::uplink;

    fn network(spec: serde_json::Value) -> ClaimNetworkSpec {
        serde_json::from_value(spec).expect("a network")
    }

    #[test]
    fn a_link_that_becomes_vital_is_named_once_with_what_it_is_no_longer_offered_as() {
        let on = |carries: Option<Traffic>, modes: &[LinkUse]| {
            let carries = carries.map(|traffic| NodeTraffic {
                traffic,
                link: "eth0".into(),
                relation: Relation::Carries,
            });
            let link = Uplink { modes: modes.iter().copied().collect(), carries, ..uplink("eth0") };
            Inventory { uplinks: vec![link], ..Inventory::default() }
        };
        let (free, vital) = (on(None, &LinkUse::ALL), on(Some(Traffic::DefaultRoute), &[LinkUse::Macvlan]));
        assert_eq!(
            taken_by_the_node(&free, &vital),
            [
                "link eth0 is no longer offered to pods as nic, ipvlan: it carries the node's own traffic: a default route \
              leads through eth0"
            ]
        );
        let address = Traffic::Address("10.1.2.3".parse().expect("an address"));
        for (before, now) in [
            (&vital, &vital),
            (&vital, &free),
            (&free, &on(Some(address), &[])),
            (&Inventory::default(), &vital),
        ] {
            assert_eq!(taken_by_the_node(before, now), [""; 0]);
        }
    }

    #[test]
    fn networks_that_name_a_link_of_the_node_share_it_and_get_a_warning() {
        let carries = |traffic| NodeTraffic { traffic, link: "eth0".into(), relation: Relation::Carries };
        let of_node = |traffic| Uplink {
            modes: [].into(),
            when_named: Some([LinkUse::Macvlan, LinkUse::Ipvlan].into()),
            carries: Some(carries(traffic)),
            ..uplink("eth0")
        };
        let mut inventory =
            Inventory { uplinks: vec![of_node(Traffic::DefaultRoute)], ..Inventory::default() };
        inventory.uplinks[0].declared =
            serde_json::from_value(json!({"net": {"string": "a"}})).expect("attributes");
        let named = json!({"links": ["eth0"]});
        let chosen = |selector: &serde_json::Value, plugin| {
            let cni = json!({"cniVersion": "1.0.0", "plugins": [{"type": plugin}]});
            let uplink = inventory.uplink_of(&network(json!({"uplink": selector, "cni": cni})));
            uplink.map(|uplink| uplink.name.to_string())
        };
        for plugin in ["macvlan", "ipvlan", "vlan"] {
            assert_eq!(chosen(&named, plugin).as_deref(), Some("eth0"), "{plugin}");
            assert_eq!(chosen(&json!({"attributes": {"net": {"string": "a"}}}), plugin), None, "{plugin}");
        }
        assert_eq!(chosen(&named, "host-device"), None);

        let mut warned = |plugin: &str, traffic| {
            let plugins = json!([{"type": plugin}]);
            let spec = network(json!({"uplink": named, "cni": {"cniVersion": "1.0.0", "plugins": plugins}}));
            inventory.networks = [("n".parse().expect("a name"), spec)].into();
            inventory.uplinks = vec![of_node(traffic)];
            inventory.node_link_warnings().into_values().collect::<Vec<_>>().join("; ")
        };
        assert_eq!(
            warned("macvlan", Traffic::DefaultRoute),
            "ClaimNetwork n has pods share link eth0, which carries the node's own traffic: a default route leads through eth0"
        );
        let address = Traffic::Address("10.1.2.3".parse().expect("an address"));
        for (traffic, way_out) in
            [(Traffic::DefaultRoute, "it is never given away"), (address, "gives it away whole")]
        {
            let warning = warned("host-device", traffic);
            assert!(warning.starts_with("ClaimNetwork n does not get link eth0, which carries"), "{warning}");
            assert!(warning.ends_with(way_out), "{warning}");
        }
    }
    #[test]
    fn networks_that_hand_out_the_same_addresses_on_two_names_of_one_link_get_a_warning() {
        let named = |names: [&str; 2]| {
            let spec = |name: &str| {
                network(
                    json!({"uplink": {"links": [name]}, "addresses": {"ranges": [{"subnet": "10.30.0.0/24"}]},
                    "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}"}]}}),
                )
            };
            let networks = ["a", "b"].into_iter().zip(names.map(spec));
            let networks = networks.map(|(name, spec)| (name.parse().expect("a name"), spec)).collect();
            let mut eth1 = uplink("eth1");
            eth1.link.alt_names = vec!["fabric".into()];
            let inventory =
                Inventory { uplinks: vec![eth1, uplink("eth2")], networks, ..Inventory::default() };
            inventory.node_link_warnings().into_values().collect::<Vec<_>>()
        };
        let warnings = named(["eth1", "fabric"]);
        let expected = "ClaimNetwork a: spec.addresses: ClaimNetwork b hands out the same addresses of 10.30.0.0/24 on the same link";
        assert!(warnings.len() == 2 && warnings[0].starts_with(expected), "{warnings:?}");
        assert_eq!(named(["fabric", "fabric"]), [""; 0], "the controller says it");
        assert_eq!(named(["eth2", "fabric"]), [""; 0]);
    }

    #[test]
    fn a_network_that_does_not_get_the_link_that_it_names_has_the_reason_and_the_way_out() {
        let warned = |change: &dyn Fn(&mut Inventory)| {
            let spec = network(json!({"uplink": {"links": ["br0"]},
                "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "host-device"}]}}));
            let networks = [("n".parse().expect("a name"), spec)].into();
            let mut inventory = Inventory { networks, ..Inventory::default() };
            change(&mut inventory);
            inventory.node_link_warnings().into_values().collect::<String>()
        };
        let shared = |inventory: &mut Inventory| {
            let mut bridge =
                Uplink { modes: [].into(), when_named: Some([LinkUse::Macvlan].into()), ..uplink("br0") };
            bridge.link.kind = Some("bridge".into());
            inventory.uplinks = vec![bridge];
        };
        assert_eq!(
            warned(&shared),
            "ClaimNetwork n does not get link br0, which is of kind bridge: macvlan, ipvlan and VLANs can share it, and an UplinkPolicy \
             with `publish: Always` gives it away whole"
        );
        let withheld = |inventory: &mut Inventory| {
            inventory.withheld = [("br0".into(), "is a port of bond0".into())].into();
        };
        assert_eq!(warned(&withheld), "ClaimNetwork n does not get link br0, which is a port of bond0");
        assert_eq!(warned(&|_| {}), "", "the node has no such link");
        let unlisted = |inventory: &mut Inventory| {
            inventory.uplinks = vec![Uplink { modes: [LinkUse::Macvlan].into(), ..uplink("br0") }];
        };
        assert!(warned(&unlisted).ends_with("its UplinkPolicies do not list this way to use it"));
    }
}
