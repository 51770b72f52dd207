//! Warnings about Networks on links that carry the node's own traffic, and about links that the node takes from pods. Pure.

use std::collections::BTreeMap;

use netclaim_api::NetworkName;
use netclaim_api::network::NetworkSpec;

use super::selection::Inventory;
use super::uplink::Uplink;

impl Inventory {
    /// Returns warnings about Networks whose uplink carries the node's own traffic: which traffic, and where the Network
    /// cannot have the link, what to do.
    pub fn node_link_warnings(&self) -> BTreeMap<NetworkName, String> {
        let warning = |(name, network): (&NetworkName, &NetworkSpec)| {
            let text = match self.uplink_of(network) {
                Some(Uplink { name: link, carries: Some(carries), .. }) => {
                    format!("Network {name} has pods share link {link}, which {carries}")
                }
                Some(_) => return None,
                None => {
                    let named = network.uplink.iter().flat_map(|uplink| &uplink.interfaces);
                    let uplink =
                        named.filter_map(|link| self.uplink(link)).find(|uplink| uplink.carries.is_some())?;
                    let (link, carries) = (&uplink.name, uplink.carries.as_ref()?);
                    let way_out = if carries.is_dispensable() {
                        "an UplinkPolicy with `publish: Always` gives it away whole"
                    } else {
                        "macvlan, ipvlan and VLANs can share it, but it is never given away"
                    };
                    format!("Network {name} does not get link {link}, which {carries}: {way_out}")
                }
            };
            Some((name.clone(), text))
        };
        self.networks.iter().filter_map(warning).collect()
    }
}

/// Returns warnings about links that pods could use `before`, and that are offered in fewer ways `now` since the node has become
/// unreachable without them. One router on the link's network is enough for that.
pub fn taken_by_the_node(before: &Inventory, now: &Inventory) -> Vec<String> {
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

    fn network(spec: serde_json::Value) -> NetworkSpec {
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
        let named = json!({"interfaces": ["eth0"]});
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
            "Network n has pods share link eth0, which carries the node's own traffic: a default route leads through eth0"
        );
        let address = Traffic::Address("10.1.2.3".parse().expect("an address"));
        for (traffic, way_out) in
            [(Traffic::DefaultRoute, "it is never given away"), (address, "gives it away whole")]
        {
            let warning = warned("host-device", traffic);
            assert!(warning.starts_with("Network n does not get link eth0, which carries"), "{warning}");
            assert!(warning.ends_with(way_out), "{warning}");
        }
    }
}
