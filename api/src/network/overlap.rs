//! Finds Networks that hand out the same addresses on one layer 2. Each keeps leases of its own, so two pods may get one
//! address. Only values that both specs write out are compared: what a claim or a node chooses is not known here.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::{NetworkSpec, UplinkSelector};
use crate::conflist::Plugin;
use crate::{Invalid, NetworkName};

/// The addresses of one Network.
struct Addresses<'a> {
    name: &'a NetworkName,
    spec: &'a NetworkSpec,
    ranges: Vec<Range<'a>>,
}

/// Addresses that a `host-local` IPAM hands out, and where it keeps its leases.
struct Range<'a> {
    subnet: IpNet,
    first: u128,
    last: u128,
    data_dir: Option<&'a str>,
}

/// Returns the Networks that may give a pod an address that another Network has given, each with a warning.
pub fn overlaps<'a>(
    networks: impl Iterator<Item = (&'a NetworkName, &'a NetworkSpec)>,
) -> Vec<(&'a NetworkName, Invalid)> {
    let all: Vec<Addresses<'_>> =
        networks.map(|(name, spec)| Addresses { name, spec, ranges: ranges(spec) }).collect();
    let all: Vec<&Addresses<'_>> = all.iter().filter(|one| !one.ranges.is_empty()).collect();
    let mut found = Vec::new();
    for (index, one) in all.iter().enumerate() {
        for other in all.iter().skip(index + 1) {
            if let Some(subnet) = one.common(other) {
                found.push((one.name, warning(subnet, other.name)));
                found.push((other.name, warning(subnet, one.name)));
            }
        }
    }
    found
}

fn warning(subnet: IpNet, other: &NetworkName) -> Invalid {
    let problem = format!(
        "Network {other} hands out the same addresses of {subnet} on the same link, so that two pods may get one: give them \
         ranges that do not overlap, or the same spec.cni.name to have one set of leases"
    );
    Invalid::new("spec.cni", problem)
}

impl Addresses<'_> {
    /// The subnet of which both hand out addresses, with leases of their own.
    fn common(&self, other: &Self) -> Option<IpNet> {
        let lists = [self, other].map(|one| one.spec.list_name(one.name));
        let is_common = |one: &Range<'_>, other: &Range<'_>| {
            let share_leases = lists[0] == lists[1] && one.data_dir == other.data_dir;
            !share_leases
                && one.subnet.addr().is_ipv4() == other.subnet.addr().is_ipv4()
                && one.first <= other.last
                && other.first <= one.last
        };
        let mut of_both =
            self.ranges.iter().filter(|one| other.ranges.iter().any(|other| is_common(one, other)));
        let range = of_both.next()?;
        meet(self.spec, other.spec).then_some(range.subnet)
    }
}

/// Whether pods of both can be on one layer 2.
fn meet(one: &NetworkSpec, other: &NetworkSpec) -> bool {
    let contradict = |one: &str, other: Option<&String>| other.is_some_and(|other| other != one);
    let apart = one.node_selector.iter().any(|(key, value)| contradict(value, other.node_selector.get(key)));
    let tags = (tag(one), tag(other));
    !apart && tags.0.is_some() && tags.0 == tags.1 && same_link(one, other)
}

fn same_link(one: &NetworkSpec, other: &NetworkSpec) -> bool {
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
    match (one.interfaces.is_empty(), other.interfaces.is_empty()) {
        (false, false) => one.interfaces.iter().any(|name| other.interfaces.contains(name)),
        (true, true) => one.attributes == other.attributes,
        _ => false,
    }
}

/// The VLAN of the Network's pods, 0 for none; `None` if each pod may be in another VLAN.
fn tag(spec: &NetworkSpec) -> Option<u64> {
    if spec.segmentation.is_some() {
        return None;
    }
    match spec.plugins().find(|plugin| matches!(plugin.plugin_type(), "vlan" | "bridge")) {
        Some(plugin) if plugin.plugin_type() == "vlan" => spec.fixed_vlan().map(u64::from),
        Some(plugin) => plugin.get("vlan").map_or(Some(0), Value::as_u64),
        None => Some(0),
    }
}

fn ranges(spec: &NetworkSpec) -> Vec<Range<'_>> {
    let ipams =
        spec.plugins().filter_map(|plugin| plugin.get("ipam")).filter(|ipam| ipam["type"] == "host-local");
    let mut found = Vec::new();
    for ipam in ipams {
        let data_dir = ipam["dataDir"].as_str().filter(|dir| !dir.is_empty());
        let sets = ipam["ranges"].as_array().into_iter().flatten().filter_map(Value::as_array).flatten();
        found.extend(std::iter::once(ipam).chain(sets).filter_map(|range| range_of(range, data_dir)));
    }
    found
}

fn range_of<'a>(range: &Value, data_dir: Option<&'a str>) -> Option<Range<'a>> {
    let subnet: IpNet = range["subnet"].as_str()?.parse().ok()?;
    let limit = |key: &str, otherwise: IpAddr| match range[key].as_str().filter(|text| !text.is_empty()) {
        Some(text) => text.parse::<IpAddr>().ok().map(number),
        None => Some(number(otherwise)),
    };
    let (first, last) = (limit("rangeStart", subnet.network())?, limit("rangeEnd", subnet.broadcast())?);
    Some(Range { subnet, first, last, data_dir })
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(change: impl FnOnce(&mut Value)) -> NetworkSpec {
        let mut spec = json!({
            "uplink": {"interfaces": ["eth1", "eth2"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.ifName}",
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.30.0.0/24"}]]}}]},
        });
        change(&mut spec);
        serde_json::from_value(spec).expect("a network")
    }

    /// Whether a Network with this change gets a warning beside one without.
    fn warned(change: impl FnOnce(&mut Value)) -> bool {
        let names: [NetworkName; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
        let specs = [network(|_| {}), network(change)];
        let found = overlaps(names.iter().zip(&specs));
        let of = |name: &NetworkName| found.iter().any(|(of, _)| *of == name);
        assert_eq!(of(&names[0]), of(&names[1]), "both or none");
        of(&names[0])
    }

    #[test]
    fn networks_that_hand_out_the_same_addresses_on_one_link_name_each_other() {
        let names: [NetworkName; 3] = ["a", "b", "c"].map(|name| name.parse().expect("a name"));
        let elsewhere = |spec: &mut Value| spec["uplink"] = json!({"interfaces": ["eth3"]});
        let specs = [network(|_| {}), network(|_| {}), network(elsewhere)];
        let found: Vec<String> =
            overlaps(names.iter().zip(&specs)).iter().map(|(name, why)| format!("{name}: {why}")).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a: spec.cni: Network b hands out the same addresses of 10.30.0.0/24"));
        assert!(found[1].starts_with("b: spec.cni: Network a "), "{found:?}");
    }

    #[test]
    fn only_what_can_meet_is_worth_a_warning() {
        let ipam = |spec: &mut Value, ipam: Value| spec["cni"]["plugins"][0]["ipam"] = ipam;
        assert!(warned(|spec| spec["uplink"] = json!({"interfaces": ["eth2", "eth9"]})));
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
        assert!(warned(|spec| spec["nodeSelector"] = json!({"rack": "7"})));
    }

    #[test]
    fn networks_with_one_set_of_leases_or_of_other_nodes_do_not_meet() {
        let names: [NetworkName; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
        let meet = |change: fn(&mut Value, usize)| {
            let specs = [0, 1].map(|index| network(|spec| change(spec, index)));
            !overlaps(names.iter().zip(&specs)).is_empty()
        };
        assert!(meet(|_, _| {}));
        assert!(!meet(|spec, _| spec["cni"]["name"] = json!("lab")));
        assert!(!meet(|spec, index| spec["nodeSelector"] = json!({"rack": index.to_string()})));
        assert!(meet(|spec, _| {
            spec.as_object_mut().expect("an object").remove("uplink");
            spec["cni"]["plugins"][0]["type"] = json!("bridge");
        }));
    }
}
