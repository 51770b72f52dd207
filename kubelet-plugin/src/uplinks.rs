//! Which links of the node pods may use, and in which ways: the default rules and what policies say. Pure.
//!
//! | a link that | becomes, without a policy | and with one |
//! |---|---|---|
//! | leads out of the node | an uplink in all modes | in the policy's modes; nothing with `Never` |
//! | is a port of a bridge | an uplink for Networks of that bridge | the same |
//! | is of another kind | nothing | an uplink with `Always` |
//! | carries the node's own traffic | nothing | an uplink to share, or a port, with `shareNodeLinks` |
//! | is a loopback device, or another port | nothing | nothing |

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netclaim_api::attribute::DeclaredAttributes;
use netclaim_api::uplink_policy::{
    LinkFacts, Publish, UplinkCapacity, UplinkMode, UplinkPolicySpec, first_values,
};
use netclaim_api::{IfName, Quantity};
use netclaim_driver::links::{Link, NotUplink, Snapshot, classify, leads_out};

/// What a provider on the node says of a link.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Provided {
    /// Attributes; those of policies come first.
    pub attributes: DeclaredAttributes,
    /// Capacity; that of policies comes first.
    pub capacity: UplinkCapacity,
}

/// A link that pods may use.
#[derive(Debug, Clone, PartialEq)]
pub struct Uplink {
    /// The link.
    pub link: Link,
    /// Its name, as CNI takes it.
    pub name: IfName,
    /// The ways in which pods may use it.
    pub modes: BTreeSet<UplinkMode>,
    /// The bridge that it is a port of, and for whose Networks it is.
    pub bridge: Option<String>,
    /// What people and providers said of it.
    pub declared: DeclaredAttributes,
    /// Bits per second, where anybody knows.
    pub bandwidth: Option<Quantity>,
}

/// The uplinks among the links of `snapshot`, by index. `policies` are those of this node, by name; `addresses` are
/// needed where one of them asks.
pub fn uplinks(
    snapshot: &Snapshot,
    addresses: &BTreeMap<u32, Vec<IpAddr>>,
    policies: &[UplinkPolicySpec],
    provided: &BTreeMap<IfName, Provided>,
) -> Vec<Uplink> {
    let bridges: BTreeMap<u32, &str> = snapshot
        .links
        .iter()
        .filter(|link| link.kind.as_deref() == Some("bridge"))
        .map(|link| (link.index, link.name.as_str()))
        .collect();
    let uplink = |(link, verdict): (&Link, Result<(), NotUplink>)| {
        // A name that the kernel took but CNI cannot name is of no use.
        let name: IfName = link.name.parse().ok()?;
        let facts = Facts::of(link, addresses);
        let own: Vec<&UplinkPolicySpec> =
            policies.iter().filter(|policy| policy.links.selects(&facts.borrowed())).collect();
        let bridge = link.master.and_then(|master| bridges.get(&master)).map(|bridge| (*bridge).to_owned());
        let modes = modes(link, verdict, bridge.is_some(), &own)?;
        let provided = provided.get(&name).cloned().unwrap_or_default();
        let mut declared = first_values(own.iter().copied());
        for (key, value) in provided.attributes {
            declared.entry(key).or_insert(value);
        }
        let said = own.iter().find_map(|policy| policy.capacity.bandwidth).or(provided.capacity.bandwidth);
        let bandwidth = said.or_else(|| link.speed.map(Quantity::new));
        Some(Uplink { link: link.clone(), name, modes, bridge, declared, bandwidth })
    };
    classify(&snapshot.links, &snapshot.default_route_links).filter_map(uplink).collect()
}

/// The ways in which pods may use a link; none where it is of use to the Networks of its bridge only, and `None` where
/// it is of no use.
fn modes(
    link: &Link,
    verdict: Result<(), NotUplink>,
    is_port: bool,
    policies: &[&UplinkPolicySpec],
) -> Option<BTreeSet<UplinkMode>> {
    if policies.iter().any(|policy| policy.publish == Publish::Never) {
        return None;
    }
    let always = policies.iter().any(|policy| policy.publish == Publish::Always);
    let all = BTreeSet::from([UplinkMode::Nic, UplinkMode::Macvlan, UplinkMode::Ipvlan]);
    let mut modes = match verdict {
        Ok(()) => all,
        Err(NotUplink::NodeTraffic { .. }) => {
            let shared = policies.iter().any(|policy| policy.share_node_links);
            let to_share = BTreeSet::from([UplinkMode::Macvlan, UplinkMode::Ipvlan]);
            match (shared, link.master) {
                (false, _) => return None,
                (true, None) => to_share,
                (true, Some(_)) if is_port => BTreeSet::new(),
                (true, Some(_)) => return None,
            }
        }
        Err(NotUplink::Enslaved { .. }) if is_port && (always || leads_out(link).is_ok()) => BTreeSet::new(),
        Err(NotUplink::PodEnd | NotUplink::Virtual { .. }) if always => all,
        Err(_) => return None,
    };
    if let Some(policy) = policies.iter().find(|policy| !policy.modes.is_empty()) {
        modes.retain(|mode| policy.modes.contains(mode));
    }
    Some(modes)
}

/// What policies look at in a link.
struct Facts<'a> {
    link: &'a Link,
    names: Vec<&'a str>,
    addresses: &'a [IpAddr],
}

impl<'a> Facts<'a> {
    fn of(link: &'a Link, addresses: &'a BTreeMap<u32, Vec<IpAddr>>) -> Self {
        let alternatives = link.alt_names.iter().map(String::as_str);
        let names = std::iter::once(link.name.as_str()).chain(alternatives).collect();
        Self { link, names, addresses: addresses.get(&link.index).map(Vec::as_slice).unwrap_or_default() }
    }

    fn borrowed(&self) -> LinkFacts<'_> {
        let Self { link, names, addresses } = self;
        LinkFacts {
            names,
            driver: link.driver.as_deref().or(link.kind.as_deref()),
            pci_id: link.pci_id.as_deref(),
            pci_bus_id: link.pci_bus_id.as_deref(),
            mac: link.mac.as_deref(),
            addresses,
            speed: link.speed,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::inventory::tests::link;

    /// `eth0` has the default route, `eth1` leads out, `eth2` is a port of `br0`, `dummy0` is virtual.
    fn snapshot() -> Snapshot {
        let numbered = |index, name: &str| Link { index, ..link(name) };
        let links = vec![
            numbered(1, "eth0"),
            numbered(2, "eth1"),
            Link { master: Some(4), ..numbered(3, "eth2") },
            Link { kind: Some("bridge".into()), ..numbered(4, "br0") },
            Link { kind: Some("dummy".into()), ..numbered(5, "dummy0") },
        ];
        Snapshot { links, default_route_links: BTreeSet::from([1]) }
    }

    fn found(policies: Value) -> Vec<Uplink> {
        let policies: Vec<UplinkPolicySpec> = serde_json::from_value(policies).expect("policies");
        let addresses = BTreeMap::from([(2, vec!["10.1.2.3".parse().expect("an address")])]);
        uplinks(&snapshot(), &addresses, &policies, &BTreeMap::new())
    }

    fn names(policies: Value) -> Vec<String> {
        let text = |uplink: Uplink| {
            let modes: String = uplink.modes.iter().map(|mode| format!("{mode:?}").remove(0)).collect();
            format!("{} {modes}{}", uplink.link.name, uplink.bridge.unwrap_or_default())
        };
        found(policies).into_iter().map(text).collect()
    }

    #[test]
    fn without_a_policy_links_that_lead_out_are_taken_and_ports_are_for_their_bridge() {
        assert_eq!(names(json!([])), ["eth1 NMI", "eth2 br0"]);
    }

    #[test]
    fn a_policy_publishes_more_or_less() {
        let virtual_links =
            json!({"links": {"names": ["dummy*"]}, "publish": "Always", "modes": ["macvlan"]});
        let never = json!({"links": {"addresses": ["10.0.0.0/8"]}, "publish": "Never"});
        assert_eq!(names(json!([virtual_links, never])), ["eth2 br0", "dummy0 M"]);
        let all_of_them = json!({"links": {"names": ["*"]}, "publish": "Always"});
        assert_eq!(names(json!([all_of_them])), ["eth1 NMI", "eth2 br0", "br0 NMI", "dummy0 NMI"]);
    }

    #[test]
    fn virtual_functions_are_uplinks_and_chosen_by_their_own_driver_and_id() {
        let function = Link {
            index: 7,
            driver: Some("igbvf".into()),
            pci_id: Some("8086:10ca".into()),
            pci_bus_id: Some("0000:41:10.0".into()),
            physical_function: Some("eth1".into()),
            ..link("eth7")
        };
        let links = vec![Link { index: 2, pci_id: Some("8086:10c9".into()), ..link("eth1") }, function];
        let snapshot = Snapshot { links, default_route_links: BTreeSet::new() };
        let left = |selector: Value| {
            let never =
                serde_json::from_value(json!({"links": selector, "publish": "Never"})).expect("a policy");
            let left = uplinks(&snapshot, &BTreeMap::new(), &[never], &BTreeMap::new());
            left.into_iter().map(|uplink| uplink.link.name).collect::<Vec<_>>()
        };
        assert_eq!(left(json!({"names": ["none"]})), ["eth1", "eth7"]);
        for own in [
            json!({"drivers": ["igbvf"]}),
            json!({"pciIDs": ["8086:10ca"]}),
            json!({"pciBusIDs": ["0000:41:10.*"]}),
        ] {
            assert_eq!(left(own), ["eth1"]);
        }
    }

    #[test]
    fn links_with_the_nodes_traffic_are_shared_if_at_all() {
        let share = json!({"links": {"names": ["eth0"]}, "shareNodeLinks": true});
        assert_eq!(names(json!([share])), ["eth0 MI", "eth1 NMI", "eth2 br0"]);
    }

    #[test]
    fn the_first_to_say_something_is_believed() {
        let policies = json!([
            {"links": {"names": ["eth1"]}, "attributes": {"net": {"string": "a"}}, "capacity": {"bandwidth": "5G"}},
            {"links": {}, "attributes": {"net": {"string": "b"}, "rack": {"int": 7}}}]);
        let uplinks = found(policies);
        let declared = serde_json::to_value(&uplinks[0].declared).expect("JSON");
        assert_eq!(declared, json!({"net": {"string": "a"}, "rack": {"int": 7}}));
        assert_eq!(uplinks[0].bandwidth, Some(Quantity::new(5_000_000_000)));
        assert_eq!(uplinks[1].bandwidth, Some(Quantity::new(10_000_000_000)));
    }

    #[test]
    fn providers_add_what_no_policy_says() {
        let provided = Provided {
            attributes: serde_json::from_value(json!({"switch": {"string": "tor-1"}})).expect("attributes"),
            capacity: UplinkCapacity { bandwidth: Some(Quantity::new(1)) },
        };
        let provided = BTreeMap::from([("eth1".parse().expect("a name"), provided)]);
        let uplinks = uplinks(&snapshot(), &BTreeMap::new(), &[], &provided);
        assert_eq!((uplinks[0].declared.len(), uplinks[0].bandwidth), (1, Some(Quantity::new(1))));
    }
}
