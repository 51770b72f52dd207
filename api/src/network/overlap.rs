//! Finds ClaimNetworks that hand out the same addresses on one layer 2. Each keeps leases of its own, so two
//! pods may get one address. Only values that both specs write out are compared: what a claim or a node
//! chooses is not known here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::default_network::contested_defaults;
use super::{ClaimNetworkSpec, NodeNetwork, UplinkSelector};
use crate::addresses::{AddressPoolSpec, PoolKey, Span};
use crate::conflist::Plugin;
use crate::{Invalid, NetworkName};

/// The addresses of one ClaimNetwork.
struct Addresses<'a, 'p> {
    name: &'a NetworkName,
    spec: &'a ClaimNetworkSpec,
    sets: Vec<Set<'p>>,
}

/// Addresses that a ClaimNetwork hands out, and who knows which of them are in use.
struct Set<'a> {
    leases: Leases<'a>,
    /// Sorted by their spans.
    ranges: Cow<'a, [Range]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    span: Span,
    subnet: IpNet,
}

/// Where the leases of addresses are kept.
#[derive(Clone, PartialEq, Eq)]
enum Leases<'a> {
    /// On each node, by a `host-local` IPAM.
    OnNode { list: String, data_dir: Option<&'a str> },
    /// In the cluster, as blocks of a pool.
    OfPool(PoolKey),
}

/// Returns the ClaimNetworks that may give a pod an address that another ClaimNetwork has given, or as a
/// default an interface that another default gives it, each with a warning. `pools` are the accepted
/// AddressPools by name.
pub fn overlaps<'a>(
    networks: impl Iterator<Item = (&'a NetworkName, &'a ClaimNetworkSpec)>,
    pools: &BTreeMap<String, AddressPoolSpec>,
) -> Vec<(&'a NetworkName, Invalid)> {
    let of_pools: BTreeMap<&str, Vec<Range>> =
        pools.iter().map(|(name, pool)| (name.as_str(), of_pool(pool))).collect();
    let all: Vec<Addresses<'a, '_>> = networks
        .map(|(name, spec)| {
            let mut sets = of_plugins(name, spec);
            sets.extend(of_addresses(name, spec, &of_pools));
            Addresses { name, spec, sets }
        })
        .collect();
    let mut found = contested_defaults(all.iter().map(|one| (one.name, one.spec)));
    let all: Vec<&Addresses<'a, '_>> = all.iter().filter(|one| !one.sets.is_empty()).collect();
    for (index, one) in all.iter().enumerate() {
        for other in all.iter().skip(index + 1) {
            // Most ClaimNetworks cannot meet, and that is cheap to see.
            if meet(one.spec, other.spec)
                && let Some((warning, of_other)) = one.common(other)
            {
                found.push((one.name, warning));
                found.push((other.name, of_other));
            }
        }
    }
    found
}

/// Warns of a range that another ClaimNetwork has, too.
fn warning(leases: &Leases<'_>, range: Range, other: &NetworkName) -> Invalid {
    let (field, advice) = match leases {
        Leases::OnNode { .. } => ("spec.cni", "the same spec.cni.name to have one set of leases"),
        Leases::OfPool(_) => ("spec.addresses", "one AddressPool in spec.addresses.poolName"),
    };
    let problem = format!(
        "ClaimNetwork {other} hands out the same addresses of {} on the same link, so that two pods may get one: give them \
         ranges that do not overlap, or {advice}",
        range.subnet
    );
    Invalid::new(field, problem)
}

impl Addresses<'_, '_> {
    /// Returns the warnings of both if they have an address in common and leases of their own.
    fn common(&self, other: &Self) -> Option<(Invalid, Invalid)> {
        let pairs = self.sets.iter().flat_map(|one| other.sets.iter().map(move |other| (one, other)));
        let mut apart = pairs.filter(|(one, other)| one.leases != other.leases);
        apart.find_map(|(of_one, of_other)| {
            let (range, range_of_other) = common(&of_one.ranges, &of_other.ranges)?;
            let warning_of_other = warning(&of_other.leases, range_of_other, self.name);
            Some((warning(&of_one.leases, range, other.name), warning_of_other))
        })
    }
}

/// Returns a range of each of two sorted lists that have an address in common. Looks at each range once.
fn common(one: &[Range], other: &[Range]) -> Option<(Range, Range)> {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        if a.span.intersection(b.span).is_some() {
            return Some((**a, **b));
        }
        // The range that ends first has nothing in common with what follows in the other list.
        if (a.span.family(), a.span.last()) < (b.span.family(), b.span.last()) {
            one.next();
        } else {
            other.next();
        }
    }
    None
}

/// Whether pods of both can be on one layer 2.
fn meet(one: &ClaimNetworkSpec, other: &ClaimNetworkSpec) -> bool {
    let tags = (tag(one), tag(other));
    !on_other_nodes(one, other) && tags.0.is_some() && tags.0 == tags.1 && same_link(one, other)
}

/// Whether it cannot be excluded that pods of both are on one layer 2.
pub fn may_meet(one: &ClaimNetworkSpec, other: &ClaimNetworkSpec) -> bool {
    let same_tag = tag(one).zip(tag(other)).is_none_or(|(one, other)| one == other);
    let is_open =
        |one: &UplinkSelector, other: &UplinkSelector| one.links.is_empty() != other.links.is_empty();
    let unknown =
        one.uplink.as_ref().zip(other.uplink.as_ref()).is_some_and(|(one, other)| is_open(one, other));
    !on_other_nodes(one, other) && same_tag && (unknown || same_link(one, other))
}

/// Whether no node can match the node selectors of both.
fn on_other_nodes(one: &ClaimNetworkSpec, other: &ClaimNetworkSpec) -> bool {
    let selectors = one.node_selector.as_ref().zip(other.node_selector.as_ref());
    selectors.is_some_and(|(one, other)| one.0.contradicts(&other.0))
}

fn same_link(one: &ClaimNetworkSpec, other: &ClaimNetworkSpec) -> bool {
    let same_bridge = one.bridge().is_some() && one.bridge() == other.bridge();
    match (&one.uplink, &other.uplink) {
        (Some(one), Some(other)) => selectors_meet(one, other),
        _ => same_bridge,
    }
}

fn selectors_meet(one: &UplinkSelector, other: &UplinkSelector) -> bool {
    let contradicts = |key, value| other.attributes.get(key).is_some_and(|other| other != value);
    if one.attributes.iter().any(|(key, value)| contradicts(key, value)) {
        return false;
    }
    match (one.links.is_empty(), other.links.is_empty()) {
        (false, false) => one.links.iter().any(|name| other.links.contains(name)),
        (true, true) => one.attributes == other.attributes,
        _ => false,
    }
}

/// The VLAN of the ClaimNetwork's pods, 0 for none; `None` if each pod may be in another VLAN.
fn tag(spec: &ClaimNetworkSpec) -> Option<u64> {
    if spec.segmentation.is_some() {
        return None;
    }
    if let Some(id) = spec.node.as_ref().and_then(NodeNetwork::vlan) {
        return Some(id);
    }
    match spec.plugins().find(|plugin| matches!(plugin.plugin_type(), "vlan" | "bridge")) {
        Some(plugin) if plugin.plugin_type() == "vlan" => spec.fixed_vlan().map(u64::from),
        Some(plugin) => plugin.get("vlan").map_or(Some(0), Value::as_u64),
        None => Some(0),
    }
}

/// Returns the addresses that the ClaimNetwork's own plugins hand out.
fn of_plugins<'a>(name: &NetworkName, spec: &'a ClaimNetworkSpec) -> Vec<Set<'a>> {
    let ipams =
        spec.plugins().filter_map(|plugin| plugin.get("ipam")).filter(|ipam| ipam["type"] == "host-local");
    let set = |ipam: &'a Value| {
        let data_dir = ipam["dataDir"].as_str().filter(|dir| !dir.is_empty());
        let sets = ipam["ranges"].as_array().into_iter().flatten().filter_map(Value::as_array).flatten();
        let mut ranges: Vec<Range> = std::iter::once(ipam).chain(sets).filter_map(range_of).collect();
        ranges.sort_unstable();
        let leases = Leases::OnNode { list: spec.list_name(name), data_dir };
        (!ranges.is_empty()).then_some(Set { leases, ranges: ranges.into() })
    };
    ipams.filter_map(set).collect()
}

fn range_of(range: &Value) -> Option<Range> {
    let subnet: IpNet = range["subnet"].as_str()?.parse().ok()?;
    let limit = |key: &str, otherwise: IpAddr| match range[key].as_str().filter(|text| !text.is_empty()) {
        Some(text) => text.parse::<IpAddr>().ok(),
        None => Some(otherwise),
    };
    let (first, last) = (limit("rangeStart", subnet.network())?, limit("rangeEnd", subnet.broadcast())?);
    Some(Range { span: Span::new(first, last)?, subnet })
}

/// Returns the addresses of the pool that the ClaimNetwork draws from.
fn of_addresses<'a>(
    name: &NetworkName,
    spec: &ClaimNetworkSpec,
    of_pools: &'a BTreeMap<&str, Vec<Range>>,
) -> Option<Set<'a>> {
    let addresses = spec.addresses.as_ref()?;
    let ranges: Cow<'a, [Range]> = match &addresses.pool {
        Some(pool) => of_pools.get(pool.as_str())?.as_slice().into(),
        None => of_pool(&addresses.inline()?).into(),
    };
    Some(Set { leases: Leases::OfPool(addresses.key(name)), ranges })
}

/// Returns the addresses of a pool, sorted.
fn of_pool(pool: &AddressPoolSpec) -> Vec<Range> {
    let spans = pool.usable().into_iter().chain(pool.reserved.iter().copied());
    let range = |span: Span| {
        let mut subnets = pool.ranges.iter().map(|range| range.subnet);
        let subnet = subnets.find(|subnet| Span::of_net(*subnet).contains(span.first()))?;
        Some(Range { span, subnet })
    };
    let mut ranges: Vec<Range> = spans.filter_map(range).collect();
    ranges.sort_unstable();
    ranges
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(change: impl FnOnce(&mut Value)) -> ClaimNetworkSpec {
        let mut spec = json!({
            "uplink": {"links": ["eth1", "eth2"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}",
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.30.0.0/24"}]]}}]},
        });
        change(&mut spec);
        serde_json::from_value(spec).expect("a network")
    }

    /// Whether a ClaimNetwork with this change gets a warning beside one without.
    fn warned(change: impl FnOnce(&mut Value)) -> bool {
        let names: [NetworkName; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
        let specs = [network(|_| {}), network(change)];
        let found = overlaps(names.iter().zip(&specs), &BTreeMap::new());
        let of = |name: &NetworkName| found.iter().any(|(of, _)| *of == name);
        assert_eq!(of(&names[0]), of(&names[1]), "both or none");
        of(&names[0])
    }

    #[test]
    fn networks_that_hand_out_the_same_addresses_on_one_link_name_each_other() {
        let names: [NetworkName; 3] = ["a", "b", "c"].map(|name| name.parse().expect("a name"));
        let elsewhere = |spec: &mut Value| spec["uplink"] = json!({"links": ["eth3"]});
        let specs = [network(|_| {}), network(|_| {}), network(elsewhere)];
        let found: Vec<String> = overlaps(names.iter().zip(&specs), &BTreeMap::new())
            .iter()
            .map(|(name, why)| format!("{name}: {why}"))
            .collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("a: spec.cni: ClaimNetwork b hands out the same addresses of 10.30.0.0/24")
        );
        assert!(found[1].starts_with("b: spec.cni: ClaimNetwork a "), "{found:?}");
    }

    #[test]
    fn only_what_can_meet_is_worth_a_warning() {
        let ipam = |spec: &mut Value, ipam: Value| spec["cni"]["plugins"][0]["ipam"] = ipam;
        assert!(warned(|spec| spec["uplink"] = json!({"links": ["eth2", "eth9"]})));
        assert!(warned(|spec| ipam(
            spec,
            json!({"type": "host-local", "subnet": "10.30.0.0/16", "rangeStart": "10.30.0.200"})
        )));
        assert!(!warned(|spec| ipam(
            spec,
            json!({"type": "host-local", "ranges": [[{"subnet": "10.31.0.0/24"}]]})
        )));
        assert!(!warned(|spec| ipam(spec, json!({"type": "dhcp"}))));
        assert!(!warned(|spec| spec["cni"]["plugins"][0]["type"] = json!("vlan")), "any VLAN");
        assert!(!warned(|spec| {
            spec["cni"]["plugins"][0]["type"] = json!("vlan");
            spec["cni"]["plugins"][0]["vlanId"] = json!(7);
        }));
        assert!(warned(|spec| spec["nodeSelector"] = json!({"matchLabels": {"rack": "7"}})));
    }

    #[test]
    fn only_networks_that_are_certainly_apart_cannot_meet() {
        let meets = |change: &dyn Fn(&mut Value)| may_meet(&network(|_| {}), &network(change));
        assert!(meets(&|_| {}));
        assert!(
            meets(&|spec| spec["uplink"] = json!({"attributes": {"segment": {"string": "a"}}})),
            "the links are not known"
        );
        assert!(meets(&|spec| spec["cni"]["plugins"][0]["type"] = json!("vlan")), "any VLAN");
        assert!(!meets(&|spec| spec["uplink"] = json!({"links": ["eth3"]})));
        assert!(!meets(&|spec| {
            spec["cni"]["plugins"][0]["type"] = json!("vlan");
            spec["cni"]["plugins"][0]["vlanId"] = json!(7);
        }));
    }

    #[test]
    fn networks_with_one_set_of_leases_or_of_other_nodes_do_not_meet() {
        let names: [NetworkName; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
        let meet = |change: &dyn Fn(&mut Value, usize)| {
            let specs = [0, 1].map(|index| network(|spec| change(spec, index)));
            !overlaps(names.iter().zip(&specs), &BTreeMap::new()).is_empty()
        };
        assert!(meet(&|_, _| {}));
        assert!(!meet(&|spec, _| spec["cni"]["name"] = json!("lab")));
        assert!(!meet(&|spec, index| {
            spec["nodeSelector"] = json!({"matchLabels": {"rack": index.to_string()}});
        }));
        let racks = |of: [Value; 2]| {
            move |spec: &mut Value, index: usize| {
                spec["nodeSelector"] = json!({"matchExpressions": [of[index]]})
            }
        };
        let rack =
            |operator: &str, values: &[&str]| json!({"key": "rack", "operator": operator, "values": values});
        assert!(!meet(&racks([rack("In", &["1", "2"]), rack("NotIn", &["1", "2", "3"])])));
        assert!(meet(&racks([rack("In", &["1", "2"]), rack("In", &["2", "3"])])), "on the nodes of rack 2");
        assert!(meet(&|spec, _| {
            spec.as_object_mut().expect("an object").remove("uplink");
            spec["cni"]["plugins"][0]["type"] = json!("bridge");
        }));
    }

    #[test]
    fn lists_of_ranges_are_compared_in_one_pass() {
        let list = |spans: &[&str]| {
            let subnet = "0.0.0.0/0".parse().expect("a subnet");
            let range = |span: &&str| Range { span: span.parse().expect("a span"), subnet };
            let mut list: Vec<Range> = spans.iter().map(range).collect();
            list.sort_unstable();
            list
        };
        let is_common = |one: &[&str], other: &[&str]| common(&list(one), &list(other)).is_some();
        let wide = ["10.0.0.0-10.0.0.100", "10.0.0.1-10.0.0.2", "fd00::1"];
        assert!(is_common(&wide, &["10.0.0.50"]) && is_common(&["10.0.0.50"], &wide));
        assert!(is_common(&wide, &["10.0.0.101", "fd00::/64"]));
        assert!(!is_common(&wide, &["9.0.0.0/8", "10.0.0.101", "fd00::2"]));
        let every_second = |first: u32| {
            let ip = |n: u32| std::net::Ipv4Addr::from_bits(2 * n + first).to_string();
            let texts: Vec<String> = (0..40_000).map(ip).collect();
            list(&texts.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let (even, odd) = (every_second(0), every_second(1));
        let begin = std::time::Instant::now();
        assert_eq!(common(&even, &odd), None);
        // Unoptimised, on a busy machine; 1.6 billion comparisons take longer.
        assert!(begin.elapsed() < std::time::Duration::from_secs(2), "{:?}", begin.elapsed());
    }

    #[test]
    fn pools_overlap_with_others_on_one_link_but_not_with_themselves() {
        let lan: AddressPoolSpec = serde_json::from_value(
            json!({"ranges": [{"subnet": "10.30.0.0/24", "rangeStart": "10.30.0.128"}]}),
        )
        .expect("a pool");
        let pools = BTreeMap::from([("lan".to_owned(), lan.clone()), ("copy".to_owned(), lan)]);
        let drawing = |addresses: Value| {
            network(|spec| {
                spec["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
                spec["addresses"] = addresses;
            })
        };
        let names: [NetworkName; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
        let found = |one: ClaimNetworkSpec, other: ClaimNetworkSpec| {
            let specs = [one, other];
            let found = overlaps(names.iter().zip(&specs), &pools);
            found.into_iter().map(|(_, warning)| warning.to_string()).collect::<Vec<_>>()
        };
        let of_pool = |pool: &str| drawing(json!({"poolName": pool}));
        let inline = |subnet: &str| drawing(json!({"ranges": [{"subnet": subnet}]}));
        assert_eq!(found(of_pool("lan"), of_pool("lan")), [""; 0]);
        assert_eq!(found(of_pool("lan"), of_pool("none")), [""; 0]);
        assert_eq!(found(inline("10.30.0.0/25"), of_pool("lan")), [""; 0]);
        assert_eq!(found(of_pool("lan"), of_pool("copy")).len(), 2);
        let mixed = found(inline("10.30.0.0/24"), network(|_| {}));
        assert_eq!(
            mixed[0],
            "spec.addresses: ClaimNetwork b hands out the same addresses of 10.30.0.0/24 on the same link, so that two pods may get \
             one: give them ranges that do not overlap, or one AddressPool in spec.addresses.poolName"
        );
        assert!(mixed[1].starts_with("spec.cni: ClaimNetwork a "), "{mixed:?}");
    }
}
