//! Which links of the node pods may use, and in which ways: the default rules, and the policies. Pure.
//!
//! | a link that | becomes, without a policy | and with one |
//! |---|---|---|
//! | leads out of the node | an uplink; ClaimNetworks may use it in all modes | in the policy's modes; nothing with `Never` |
//! | has virtual functions | the same, but not whole | also whole with `Always` |
//! | is a port of a bridge | an uplink for ClaimNetworks of that bridge | the same |
//! | is of another kind | nothing; an uplink for ClaimNetworks that name it, to share | an uplink with `Always` |
//! | carries the node's own traffic | an uplink for ClaimNetworks that name it, to share | an uplink to share, or a port, with `nodeLinks: Share` |
//! | does so, but for no default route and no address of the Node | the same | also whole with `Always` |
//! | is a loopback device, or another port | nothing | nothing |
//!
//! What of this is offered without a ClaimNetwork is up to `devices::offer`.
//!
//! An admin who names a link with the node's own traffic in a ClaimNetwork allows pods to share it; the agent
//! writes a warning.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netclaim_api::uplink_policy::{LinkFacts, NodeLinks, Publish, UplinkPolicySpec, first_values};
use netclaim_api::{IfName, LinkUse, Quantity};
use netclaim_driver::links::{Link, LinkAddress, NodeTraffic, NotUplink, Snapshot, classify, leads_out};

use super::uplink::{Port, Provided, Stacked, Uplink};

/// The names of the links that follow each UplinkPolicy: the uplinks that it selects, and those that would be
/// some, had a policy not withheld them.
pub(crate) type PolicyLinks = BTreeMap<String, BTreeSet<String>>;

/// Returns the uplinks among the links of `snapshot`, ordered by index, and the links that follow each
/// policy. `node_addresses` are those of the Node object, `policies` those of this node. `named` are the
/// names that ClaimNetworks select uplinks by. Links that were `made_here` for ClaimNetworks are not uplinks.
pub(crate) fn uplinks(
    snapshot: &Snapshot,
    node_addresses: &BTreeSet<IpAddr>,
    policies: &BTreeMap<String, Arc<UplinkPolicySpec>>,
    provided: &BTreeMap<IfName, Provided>,
    named: &BTreeSet<&str>,
    made_here: &BTreeSet<String>,
) -> (Vec<Uplink>, PolicyLinks) {
    let mut followers: PolicyLinks = policies.keys().map(|name| (name.clone(), BTreeSet::new())).collect();
    let bridges: BTreeMap<u32, &str> = snapshot
        .links
        .iter()
        .filter(|link| link.kind.as_deref() == Some("bridge"))
        .map(|link| (link.index, link.name.as_str()))
        .collect();
    let uplink = |(link, class): (&Link, Result<(), NotUplink>)| {
        let addresses = snapshot.addresses.get(&link.index).map(Vec::as_slice).unwrap_or_default();
        let facts = OwnedFacts::of(link, addresses);
        let selecting = policies.iter().filter(|(_, policy)| policy.links.selects(&facts.borrowed()));
        let selecting = selecting.map(|(name, policy)| (name, &**policy));
        let (names, own): (Vec<&String>, Vec<&UplinkPolicySpec>) = selecting.unzip();
        let mut follow = || {
            for policy in &names {
                followers.entry((*policy).clone()).or_default().insert(link.name.clone());
            }
        };
        if own.iter().any(|policy| policy.publish == Publish::Never) {
            class.is_ok().then(follow);
            return None;
        }
        // CNI cannot name every link that the kernel can.
        let name: IfName = link.name.parse().ok()?;
        let bridge = link.master.and_then(|master| bridges.get(&master)).map(|bridge| (*bridge).to_owned());
        let Offer { modes, is_listed, when_named, carries } =
            offer(link, class, bridge.is_some(), named.iter().any(|name| link.is_named(name)), &own)?;
        follow();
        let stacked = snapshot.stacked_on(link.index).map(Stacked::of).collect();
        let provided = provided.iter().find(|(of, _)| link.is_named(of.as_str()));
        let provided = provided.map(|(_, provided)| provided.clone()).unwrap_or_default();
        let mut declared = first_values(own.iter().copied());
        for (key, value) in provided.attributes {
            declared.entry(key).or_insert(value);
        }
        let configured =
            own.iter().find_map(|policy| policy.capacity.bandwidth).or(provided.capacity.bandwidth);
        let bandwidth = configured.or_else(|| link.speed.map(Quantity::new));
        Some(Uplink {
            link: link.clone(),
            name,
            modes,
            is_listed,
            when_named,
            carries,
            stacked,
            bridge,
            declared,
            bandwidth,
            states_bandwidth: configured.is_some(),
            port: Port::default(),
        })
    };
    let others = classify(snapshot, node_addresses).filter(|(link, _)| !made_here.contains(&link.name));
    let mut uplinks: Vec<Uplink> = others.filter_map(uplink).collect();
    let ports: Vec<Port> = uplinks.iter().map(|uplink| port_of(&uplink.link, snapshot, &uplinks)).collect();
    uplinks.iter_mut().zip(ports).for_each(|(uplink, port)| uplink.port = port);
    (uplinks, followers)
}

/// More links than are stacked on one another.
const MAX_STACK: usize = 16;

/// Returns what the frames of a link leave the node by. What its lowest link has is what a policy says of
/// that one, or its speed.
fn port_of(link: &Link, snapshot: &Snapshot, uplinks: &[Uplink]) -> Port {
    let by_index = |index: u32| snapshot.links.iter().find(|link| link.index == index);
    let below = |link: &Link| {
        let group = link.master.and_then(by_index);
        let group = group.filter(|group| matches!(group.kind.as_deref(), Some("bond" | "team")));
        group.or_else(|| match link.kind.as_deref() {
            Some("vlan" | "macvlan" | "macvtap" | "ipvlan" | "ipvtap") => link.parent.and_then(by_index),
            Some("bridge") => {
                let is_port = |port: &&Link| port.master == Some(link.index) && leads_out(port).is_ok();
                let mut ports = snapshot.links.iter().filter(is_port);
                // Through which of several ports frames leave is not known.
                ports.next().filter(|_| ports.next().is_none())
            }
            _ => {
                let card = link.physical_function.as_ref()?;
                snapshot.links.iter().find(|link| link.name == *card)
            }
        })
    };
    let lowest = std::iter::successors(Some(link), |link| below(link)).take(MAX_STACK).last().unwrap_or(link);
    let uplink = uplinks.iter().find(|uplink| uplink.link.index == lowest.index);
    let bandwidth = match uplink {
        Some(uplink) => uplink.bandwidth,
        None => lowest.speed.map(Quantity::new),
    };
    match &lowest.physical_function {
        // Its card is in a pod.
        Some(card) => Port { name: card.clone(), bandwidth: lowest.speed.map(Quantity::new) },
        None => Port { name: lowest.name.clone(), bandwidth },
    }
}

/// Returns why links that ClaimNetworks name are not among the `uplinks`, by name. The text follows the
/// link's name in a sentence.
pub(crate) fn withheld(
    snapshot: &Snapshot,
    node_addresses: &BTreeSet<IpAddr>,
    uplinks: &[Uplink],
    named: &BTreeSet<&str>,
    made_here: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    let why = |class: Result<(), NotUplink>| match class {
        Err(why @ (NotUplink::Loopback | NotUplink::Enslaved { .. } | NotUplink::NodeTraffic(_))) => {
            why.to_string()
        }
        Ok(()) | Err(NotUplink::PodEnd | NotUplink::Virtual { .. }) => "an UplinkPolicy withholds".to_owned(),
    };
    let is_missing = |link: &Link| uplinks.iter().all(|uplink| uplink.link.index != link.index);
    let withheld = classify(snapshot, node_addresses).filter(|(link, _)| is_missing(link));
    let named = withheld.filter_map(|(link, class)| {
        let name = named.iter().find(|name| link.is_named(name))?;
        let why = if made_here.contains(&link.name) { MADE_HERE.to_owned() } else { why(class) };
        Some(((*name).to_owned(), why))
    });
    named.collect()
}

/// Why a link that was made on the node for a ClaimNetwork is not an uplink of another one.
const MADE_HERE: &str = "was made for a ClaimNetwork (spec.node), whose pods alone use it";

/// The links that [`uplinks`] and [`withheld`] may return although they neither lead out of the node nor have
/// a default route.
#[derive(Debug)]
pub(crate) struct Interest {
    node_addresses: BTreeSet<IpAddr>,
    /// The policies that publish such links.
    policies: Vec<Arc<UplinkPolicySpec>>,
    named: BTreeSet<String>,
}

impl Interest {
    pub(crate) fn new(
        node_addresses: &BTreeSet<IpAddr>,
        policies: &BTreeMap<String, Arc<UplinkPolicySpec>>,
        named: &BTreeSet<&str>,
    ) -> Self {
        let always = policies.values().filter(|policy| policy.publish == Publish::Always);
        Self {
            node_addresses: node_addresses.clone(),
            policies: always.cloned().collect(),
            named: named.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// Whether the link is one of them.
    pub(crate) fn includes(&self, link: &Link, addresses: &[LinkAddress]) -> bool {
        let is_published = || {
            let facts = OwnedFacts::of(link, addresses);
            self.policies.iter().any(|policy| policy.links.selects(&facts.borrowed()))
        };
        addresses.iter().any(|address| self.node_addresses.contains(&address.ip))
            || self.named.iter().any(|name| link.is_named(name))
            || !self.policies.is_empty() && is_published()
    }
}

/// How a link is offered; see [`Uplink`].
#[derive(Default)]
struct Offer {
    modes: BTreeSet<LinkUse>,
    is_listed: bool,
    when_named: Option<BTreeSet<LinkUse>>,
    carries: Option<NodeTraffic>,
}

/// Returns the ways in which pods may use a link that no policy withholds: no ways where only ClaimNetworks
/// of its bridge can, `None` where no pod can.
fn offer(
    link: &Link,
    class: Result<(), NotUplink>,
    is_port: bool,
    is_named: bool,
    policies: &[&UplinkPolicySpec],
) -> Option<Offer> {
    let always = policies.iter().any(|policy| policy.publish == Publish::Always);
    let to_share = BTreeSet::from([LinkUse::Macvlan, LinkUse::Ipvlan]);
    let mut all = to_share.clone();
    // Moving the physical function would cut off its virtual functions.
    if always || link.virtual_functions == 0 {
        all.insert(LinkUse::Nic);
    }
    let by_itself = |modes| Offer { modes, ..Offer::default() };
    let mut offer = match class {
        Ok(()) => by_itself(all),
        Err(NotUplink::NodeTraffic(traffic)) => {
            let shared = policies.iter().any(|policy| policy.node_links == NodeLinks::Share);
            match link.master {
                // The address of a bridge is usually the gateway of its ClaimNetwork.
                Some(_) if is_port && traffic.is_dispensable() => by_itself(BTreeSet::new()),
                Some(_) if !is_port => return None,
                master => {
                    let mut offer = match master {
                        None if always && traffic.is_dispensable() => by_itself(all),
                        None if shared => by_itself(to_share),
                        Some(_) if shared => by_itself(BTreeSet::new()),
                        None => Offer { when_named: Some(to_share), ..Offer::default() },
                        Some(_) => Offer { when_named: Some(BTreeSet::new()), ..Offer::default() },
                    };
                    offer.carries = Some(traffic);
                    offer
                }
            }
        }
        Err(NotUplink::Enslaved { .. }) if is_port && (always || leads_out(link).is_ok()) => Offer::default(),
        Err(NotUplink::PodEnd | NotUplink::Virtual { .. }) if always => by_itself(all),
        // A node may have very many that no policy names.
        Err(NotUplink::PodEnd | NotUplink::Virtual { .. }) if is_named => {
            Offer { when_named: Some(to_share), ..Offer::default() }
        }
        Err(_) => return None,
    };
    if let Some(policy) = policies.iter().find(|policy| !policy.modes.is_empty()) {
        offer.is_listed = true;
        for modes in std::iter::once(&mut offer.modes).chain(&mut offer.when_named) {
            modes.retain(|mode| policy.modes.contains(mode));
        }
    }
    Some(offer)
}

/// The properties by which policies select links.
struct OwnedFacts<'a> {
    link: &'a Link,
    names: Vec<&'a str>,
    addresses: Vec<IpAddr>,
}

impl<'a> OwnedFacts<'a> {
    fn of(link: &'a Link, addresses: &[LinkAddress]) -> Self {
        let alternatives = link.alt_names.iter().map(String::as_str);
        let names = std::iter::once(link.name.as_str()).chain(alternatives).collect();
        Self { link, names, addresses: addresses.iter().map(|address| address.ip).collect() }
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
    use netclaim_api::LinkUse;
    use netclaim_api::uplink_policy::UplinkCapacity;
    use serde_json::{Value, json};

    use super::*;
    use crate::inventory::fixtures::link;

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
        let addresses = BTreeMap::from([(2, vec![address("169.254.2.3", false)])]);
        Snapshot { links, default_route_links: BTreeSet::from([1]), addresses, ..Snapshot::default() }
    }

    fn address(ip: &str, global: bool) -> LinkAddress {
        LinkAddress { ip: ip.parse().expect("an address"), global }
    }

    fn policies(policies: Value) -> BTreeMap<String, Arc<UplinkPolicySpec>> {
        let specs: Vec<UplinkPolicySpec> = serde_json::from_value(policies).expect("policies");
        specs.into_iter().zip(0..).map(|(spec, n)| (format!("p{n}"), spec.into())).collect()
    }

    fn uplinks(
        snapshot: &Snapshot,
        node_addresses: &BTreeSet<IpAddr>,
        policies: &BTreeMap<String, Arc<UplinkPolicySpec>>,
        provided: &BTreeMap<IfName, Provided>,
        named: &BTreeSet<&str>,
    ) -> Vec<Uplink> {
        let (uplinks, followers) =
            super::uplinks(snapshot, node_addresses, policies, provided, named, &BTreeSet::new());
        let interest = Interest::new(node_addresses, policies, named);
        let withheld = withheld(snapshot, node_addresses, &uplinks, named, &BTreeSet::new());
        for link in &snapshot.links {
            let is_used = uplinks.iter().any(|uplink| uplink.link.index == link.index)
                || withheld.keys().any(|name| link.is_named(name))
                || followers.values().any(|links| links.contains(&link.name));
            let addresses = snapshot.addresses.get(&link.index).map(Vec::as_slice).unwrap_or_default();
            let is_read = leads_out(link).is_ok()
                || snapshot.default_route_links.contains(&link.index)
                || interest.includes(link, addresses);
            assert!(is_read || !is_used, "changes of {link:?} would not be seen");
        }
        uplinks
    }

    #[test]
    fn a_link_that_was_made_for_a_network_is_not_an_uplink_of_another() {
        let (snapshot, none) = (snapshot(), BTreeSet::new());
        let made_here = BTreeSet::from(["eth1".to_owned()]);
        let everything = policies(json!([{"links": {"names": ["*"]}, "publish": "Always"}]));
        let named = BTreeSet::from(["eth1"]);
        let (uplinks, followers) =
            super::uplinks(&snapshot, &none, &everything, &BTreeMap::new(), &named, &made_here);
        assert!(uplinks.iter().all(|uplink| uplink.link.name != "eth1"));
        assert!(followers.values().all(|links| !links.contains("eth1")));
        let withheld = withheld(&snapshot, &none, &uplinks, &named, &made_here);
        assert!(withheld["eth1"].contains("spec.node"), "{withheld:?}");
    }

    fn found(policy_specs: Value) -> Vec<Uplink> {
        uplinks(&snapshot(), &BTreeSet::new(), &policies(policy_specs), &BTreeMap::new(), &BTreeSet::new())
    }

    #[test]
    fn links_that_a_policy_selects_follow_it_if_they_are_uplinks_or_withheld() {
        let followers = |of_policies: Value| {
            let (snapshot, policies) = (snapshot(), policies(of_policies));
            let none = BTreeSet::new();
            let (_, followers) = super::uplinks(
                &snapshot,
                &none,
                &policies,
                &BTreeMap::new(),
                &BTreeSet::new(),
                &BTreeSet::new(),
            );
            followers.into_values().map(|links| links.len()).collect::<Vec<_>>()
        };
        let all = json!({"links": {"names": ["*"]}, "attributes": {"rack": {"string": "a"}}});
        let eth1 = json!({"links": {"names": ["eth1"]}, "publish": "Never"});
        let nothing = json!({"links": {"names": ["eth9"]}});
        let of_all = followers(json!([all]));
        assert_eq!(of_all, [found(json!([])).len()]);
        assert_eq!(followers(json!([all, eth1, nothing])), [of_all[0], 1, 0]);
    }

    /// The uplinks with the first letters of their modes, in brackets where only ClaimNetworks that name them
    /// may use them.
    fn shown(uplinks: Vec<Uplink>) -> Vec<String> {
        let letters = |modes: &BTreeSet<LinkUse>| -> String {
            modes.iter().map(|mode| format!("{mode:?}").remove(0)).collect()
        };
        let text = |uplink: Uplink| {
            let named = uplink.when_named.map(|modes| format!("({})", letters(&modes))).unwrap_or_default();
            let bridge = uplink.bridge.unwrap_or_default();
            format!("{} {}{named}{bridge}", uplink.link.name, letters(&uplink.modes))
        };
        uplinks.into_iter().map(text).collect()
    }

    fn names(policies: Value) -> Vec<String> {
        shown(found(policies))
    }

    #[test]
    fn without_a_policy_external_links_are_uplinks_and_ports_serve_their_bridge() {
        assert_eq!(names(json!([])), ["eth0 (MI)", "eth1 NMI", "eth2 br0"]);
    }

    #[test]
    fn a_virtual_link_that_a_network_names_is_shared() {
        let named = |names: &[&'static str], policy_specs: Value| {
            let (names, policies) = (names.iter().copied().collect(), policies(policy_specs));
            shown(uplinks(&snapshot(), &BTreeSet::new(), &policies, &BTreeMap::new(), &names))
        };
        let all = ["eth0 (MI)", "eth1 NMI", "eth2 br0", "br0 (MI)", "dummy0 (MI)"];
        assert_eq!(named(&["br0", "dummy0", "lo", "eth2"], json!([])), all);
        let never = json!([{"links": {"names": ["br0"]}, "publish": "Never"}]);
        assert_eq!(named(&["br0"], never.clone()), ["eth0 (MI)", "eth1 NMI", "eth2 br0"]);
        let mut enslaved = snapshot();
        enslaved.links[4].master = Some(4);
        let (names, policies) = (["br0", "dummy0", "eth1"].into(), policies(never));
        let uplinks = self::uplinks(&enslaved, &BTreeSet::new(), &policies, &BTreeMap::new(), &names);
        let why = withheld(&enslaved, &BTreeSet::new(), &uplinks, &names, &BTreeSet::new());
        let expected = [("br0", "an UplinkPolicy withholds"), ("dummy0", "is a port of br0")];
        assert_eq!(why, expected.map(|(link, why)| (link.to_owned(), why.to_owned())).into());
        let listed = json!([{"links": {"names": ["br0"]}, "modes": ["macvlan"]}]);
        assert_eq!(named(&["br0"], listed)[3], "br0 (M)");
    }

    #[test]
    fn a_policy_that_lists_modes_is_told_from_one_that_does_not() {
        let listed =
            |policies| found(policies).into_iter().map(|uplink| uplink.is_listed).collect::<Vec<_>>();
        let with_modes = json!({"links": {"names": ["eth1"]}, "modes": ["nic", "macvlan", "ipvlan"]});
        assert_eq!(listed(json!([with_modes])), [false, true, false]);
        assert_eq!(listed(json!([{"links": {"names": ["eth1"]}, "publish": "Always"}])), [false; 3]);
    }

    #[test]
    fn a_policy_publishes_more_or_less() {
        let virtual_links =
            json!({"links": {"names": ["dummy*"]}, "publish": "Always", "modes": ["macvlan"]});
        let never = json!({"links": {"addresses": ["169.254.0.0/16"]}, "publish": "Never"});
        assert_eq!(names(json!([virtual_links, never])), ["eth0 (MI)", "eth2 br0", "dummy0 M"]);
        let all_of_them = json!({"links": {"names": ["*"]}, "publish": "Always"});
        let all = ["eth0 (MI)", "eth1 NMI", "eth2 br0", "br0 NMI", "dummy0 NMI"];
        assert_eq!(names(json!([all_of_them])), all);
    }

    #[test]
    fn virtual_functions_are_uplinks_and_selected_by_their_own_driver_and_id() {
        let function = Link {
            index: 7,
            driver: Some("igbvf".into()),
            pci_id: Some("8086:10ca".into()),
            pci_bus_id: Some("0000:41:10.0".into()),
            physical_function: Some("eth1".into()),
            ..link("eth7")
        };
        let links = vec![Link { index: 2, pci_id: Some("8086:10c9".into()), ..link("eth1") }, function];
        let snapshot = Snapshot { links, ..Snapshot::default() };
        let left = |selector: Value| {
            let never = policies(json!([{"links": selector, "publish": "Never"}]));
            let left = uplinks(&snapshot, &BTreeSet::new(), &never, &BTreeMap::new(), &BTreeSet::new());
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
    fn links_are_on_the_port_of_the_link_below() {
        let numbered = |index, name: &str| Link { index, ..link(name) };
        let kind = |kind: &str| Some(kind.to_owned());
        let function = |index, name: &str, card: &str| Link {
            physical_function: Some(card.into()),
            speed: Some(25_000_000_000),
            ..numbered(index, name)
        };
        let links = vec![
            Link { virtual_functions: 2, ..numbered(2, "eth1") },
            Link { kind: kind("vlan"), parent: Some(2), ..numbered(3, "eth1.100") },
            Link { kind: kind("vlan"), parent: Some(3), ..numbered(4, "eth1.100.7") },
            function(5, "eth1v0", "eth1"),
            Link { kind: kind("vlan"), parent: Some(5), ..numbered(6, "eth1v0.9") },
            function(7, "lost", "0000:3b:00.0"),
            Link { kind: kind("bond"), ..numbered(8, "bond0") },
            Link { master: Some(8), ..numbered(9, "eth2") },
            function(10, "eth2v0", "eth2"),
            Link { kind: kind("bridge"), ..numbered(11, "br0") },
            Link { master: Some(11), ..numbered(12, "eth3") },
            Link { kind: kind("bridge"), ..numbered(13, "br1") },
            Link { master: Some(13), ..numbered(14, "eth4") },
            Link { master: Some(13), ..numbered(15, "eth5") },
        ];
        let snapshot = Snapshot { links, ..Snapshot::default() };
        let policies = policies(json!([{"links": {"names": ["eth1"]}, "capacity": {"bandwidth": "40G"}},
            {"links": {"names": ["br*"]}, "publish": "Always"}]));
        let found = uplinks(&snapshot, &BTreeSet::new(), &policies, &BTreeMap::new(), &BTreeSet::new());
        let shown = |uplink: &Uplink| {
            let Port { name, bandwidth } = &uplink.port;
            let gigabits = bandwidth.map(|bandwidth| bandwidth.value() / 1_000_000_000);
            format!("{} {name} {}", uplink.name, gigabits.unwrap_or_default())
        };
        let shown: Vec<String> = found.iter().map(shown).collect();
        let expected = [
            "eth1 eth1 40",
            "eth1.100 eth1 40",
            "eth1.100.7 eth1 40",
            "eth1v0 eth1 40",
            "eth1v0.9 eth1 40",
            "lost 0000:3b:00.0 25",
            "bond0 bond0 10",
            "eth2v0 bond0 10",
            "br0 eth3 10",
            "eth3 eth3 10",
            "br1 br1 10",
            "eth4 eth4 10",
            "eth5 eth5 10",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn links_with_the_nodes_traffic_are_only_shared() {
        let share = json!({"links": {"names": ["eth0"]}, "nodeLinks": "Share"});
        assert_eq!(names(json!([share])), ["eth0 MI", "eth1 NMI", "eth2 br0"]);
    }

    #[test]
    fn a_link_with_an_address_is_moved_only_with_publish_always_and_no_address_of_the_node() {
        let with = |node_address: &str, policy_specs: Value| {
            let links = vec![Link { index: 2, ..link("eth3") }];
            let addresses = BTreeMap::from([(2, vec![address("10.1.2.3", true)])]);
            let snapshot = Snapshot { links, addresses, ..Snapshot::default() };
            let node = BTreeSet::from([node_address.parse().expect("an address")]);
            shown(uplinks(&snapshot, &node, &policies(policy_specs), &BTreeMap::new(), &BTreeSet::new()))
        };
        let eth3 = json!({"names": ["eth3"]});
        let (always, share) =
            (json!([{"links": eth3, "publish": "Always"}]), json!([{"links": eth3, "nodeLinks": "Share"}]));
        let broad = json!([{"links": {}, "modes": ["nic", "macvlan"]}]);
        assert_eq!(with("10.9.9.9", json!([])), ["eth3 (MI)"]);
        assert_eq!(with("10.9.9.9", broad), ["eth3 (M)"]);
        assert_eq!(with("10.9.9.9", share.clone()), ["eth3 MI"]);
        assert_eq!(with("10.9.9.9", always.clone()), ["eth3 NMI"]);
        assert_eq!(with("10.1.2.3", always), ["eth3 (MI)"]);
        assert_eq!(with("10.1.2.3", share), ["eth3 MI"]);
        assert_eq!(with("10.9.9.9", json!([{"links": eth3, "publish": "Never"}])), [""; 0]);
    }

    #[test]
    fn the_address_of_a_bridge_does_not_take_its_networks_uplink_away() {
        let mut snapshot = snapshot();
        snapshot.addresses.insert(4, vec![address("10.20.0.1", true)]);
        let found =
            uplinks(&snapshot, &BTreeSet::new(), &BTreeMap::new(), &BTreeMap::new(), &BTreeSet::new());
        assert_eq!(found[2].carries, None, "nothing to warn of");
        assert_eq!(shown(found), ["eth0 (MI)", "eth1 NMI", "eth2 br0"]);
        snapshot.default_route_links.insert(4);
        let found =
            uplinks(&snapshot, &BTreeSet::new(), &BTreeMap::new(), &BTreeMap::new(), &BTreeSet::new());
        assert_eq!(shown(found), ["eth0 (MI)", "eth1 NMI", "eth2 ()br0", "br0 (MI)"]);
    }

    #[test]
    fn a_card_with_virtual_functions_is_not_given_away_unless_a_policy_says_always() {
        let links = vec![Link { virtual_functions: 4, ..link("eth1") }];
        let snapshot = Snapshot { links, ..Snapshot::default() };
        let found = |policy_specs| {
            shown(uplinks(
                &snapshot,
                &BTreeSet::new(),
                &policies(policy_specs),
                &BTreeMap::new(),
                &BTreeSet::new(),
            ))
        };
        assert_eq!(found(json!([])), ["eth1 MI"]);
        assert_eq!(found(json!([{"links": {"names": ["eth1"]}, "publish": "Always"}])), ["eth1 NMI"]);
    }

    #[test]
    fn a_link_of_another_program_excludes_uses_as_the_kernel_does() {
        let on = |kind: &str| {
            let child = Link { index: 7, parent: Some(2), kind: Some(kind.into()), ..link("child7") };
            let snapshot = Snapshot { links: vec![link("eth1"), child], ..Snapshot::default() };
            let found =
                uplinks(&snapshot, &BTreeSet::new(), &BTreeMap::new(), &BTreeMap::new(), &BTreeSet::new());
            let uses = [Some(LinkUse::Nic), Some(LinkUse::Macvlan), Some(LinkUse::Ipvlan), None];
            uses.map(|link_use| found[0].in_use(link_use).map(|unhealthy| unhealthy.message))
        };
        let message = |kind: &str| Some(format!("uplink eth1 is below {kind} child7 of another program"));
        assert_eq!(on("macvlan"), [message("macvlan"), None, message("macvlan"), None]);
        assert_eq!(on("ipvlan"), [message("ipvlan"), message("ipvlan"), None, None]);
        assert_eq!(on("vlan"), [message("vlan"), None, None, None]);
    }

    #[test]
    fn the_first_policy_that_declares_a_value_wins() {
        let policies = json!([
            {"links": {"names": ["eth1"]}, "attributes": {"net": {"string": "a"}}, "capacity": {"bandwidth": "5G"}},
            {"links": {}, "attributes": {"net": {"string": "b"}, "rack": {"int": 7}}}]);
        let uplinks = found(policies);
        let declared = serde_json::to_value(&uplinks[1].declared).expect("JSON");
        assert_eq!(declared, json!({"net": {"string": "a"}, "rack": {"int": 7}}));
        assert_eq!(uplinks[1].bandwidth, Some(Quantity::new(5_000_000_000)));
        assert_eq!(uplinks[2].bandwidth, Some(Quantity::new(10_000_000_000)));
    }

    #[test]
    fn providers_add_values_that_no_policy_declares() {
        let provided = Provided {
            attributes: serde_json::from_value(json!({"switch": {"string": "tor-1"}})).expect("attributes"),
            capacity: UplinkCapacity { bandwidth: Some(Quantity::new(1)) },
        };
        let provided = BTreeMap::from([("eth1".parse().expect("a name"), provided)]);
        let uplinks = uplinks(&snapshot(), &BTreeSet::new(), &BTreeMap::new(), &provided, &BTreeSet::new());
        assert_eq!((uplinks[1].declared.len(), uplinks[1].bandwidth), (1, Some(Quantity::new(1))));
        let mut renamed = snapshot();
        renamed.links[1].name = "ens1".into();
        renamed.links[1].alt_names = vec!["eth1".into()];
        let uplinks =
            self::uplinks(&renamed, &BTreeSet::new(), &BTreeMap::new(), &provided, &BTreeSet::new());
        assert_eq!(uplinks[1].declared.len(), 1, "by its alternative name");
    }
}
