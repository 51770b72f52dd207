//! Whether an ADD has made what was asked. Plugins may ignore a capability argument, or be unable to do what
//! it says.

use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_cni::ipam::host_local::TYPE as HOST_LOCAL;
use netclaim_cni::{Attachment, CniResult, IpRequest, MacAddr, NetworkList, PluginConf};
use serde::Deserialize;

use crate::attach::plan::Spec;

/// The reference plugins whose addresses are written down, and whose are a server's.
pub(in crate::attach) const STATIC: &str = "static";
const DHCP: &str = "dhcp";

/// The part of an `ipam` object that says which addresses an attachment gets.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ipam {
    /// Those of `static`.
    addresses: Vec<StaticAddress>,
    /// The sets of `host-local`.
    ranges: Vec<Vec<Range>>,
}

#[derive(Deserialize)]
struct StaticAddress {
    address: IpNet,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Range {
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
}

/// Returns what the result has otherwise than it was asked, with both values. `mac` is what the interface in
/// the pod has, if that is known. What a result does not say is not a difference, except for addresses that
/// were asked.
pub(super) fn differences(
    spec: &Spec,
    attachment: &Attachment,
    result: &CniResult,
    mac: Option<&str>,
) -> Vec<String> {
    let mut found = Vec::new();
    let made = result.interface_of(attachment);
    let mut in_pod = result.interfaces().iter().filter(|interface| interface.sandbox.is_some());
    if let Some(other) = in_pod.next().filter(|_| made.is_none()) {
        found.push(format!("interface {} instead of {}", other.name, spec.if_name));
    }
    let mac = mac.or_else(|| made.and_then(|made| made.mac.as_deref()));
    if let (Some(asked), Some(mac)) = (spec.capability_args.mac, mac)
        && MacAddr::try_from(mac.to_owned()).ok() != Some(asked)
    {
        found.push(format!("MAC address {mac} instead of {asked}"));
    }
    let ips: Vec<IpAddr> = result.ips_of(attachment).map(|ip| ip.address.addr()).collect();
    let asked = spec.capability_args.ips.iter().flatten().map(IpRequest::ip);
    // A plugin may keep to itself what its IPAM plugin has chosen.
    let of_ipam = only_addresses(&spec.conflist).into_iter().filter(|_| !ips.is_empty());
    for ip in asked.chain(of_ipam).filter(|ip| !ips.contains(ip)) {
        let of_family = ips.iter().filter(|other| other.is_ipv4() == ip.is_ipv4());
        let of_family: Vec<String> = of_family.map(IpAddr::to_string).collect();
        let made = if of_family.is_empty() { "none".to_owned() } else { of_family.join(", ") };
        found.push(format!("address {made} instead of {ip}"));
    }
    found
}

/// Returns the addresses of IPAM plugins that have no choice.
fn only_addresses(list: &NetworkList) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for plugin in list.plugins() {
        let ipam = plugin.ipam_conf().and_then(|ipam| serde_json::from_str::<Ipam>(ipam.get()).ok());
        match (plugin.ipam().map(|of| of.as_str()), ipam) {
            (Some(STATIC), Some(ipam)) => found.extend(ipam.addresses.iter().map(|one| one.address.addr())),
            (Some(HOST_LOCAL), Some(ipam)) => {
                found.extend(ipam.ranges.iter().filter_map(|set| only_address(set)));
            }
            _ => {}
        }
    }
    found
}

/// Whether an ADD with the addresses that an earlier one has made, as far as they can be asked for, makes
/// them again.
pub(in crate::attach) fn keeps_addresses(list: &NetworkList) -> bool {
    let keeps = |plugin: &PluginConf| match plugin.ipam().map(|ipam| ipam.as_str()) {
        None | Some(STATIC) => true,
        // It knows no addresses that are asked for.
        Some(DHCP) => false,
        Some(HOST_LOCAL) if has_one_choice(plugin) => true,
        Some(_) => plugin.capabilities().contains("ips"),
    };
    list.plugins().all(keeps)
}

/// Whether `host-local` has one address to give in each of its sets.
fn has_one_choice(plugin: &PluginConf) -> bool {
    let sets = plugin.ipam_conf().and_then(|ipam| serde_json::from_str::<Ipam>(ipam.get()).ok());
    let sets = sets.map(|ipam| ipam.ranges).unwrap_or_default();
    !sets.is_empty() && sets.iter().all(|set| only_address(set).is_some())
}

/// Returns the address of a set that has only one.
fn only_address(set: &[Range]) -> Option<IpAddr> {
    let [range] = set else { return None };
    range.range_start.filter(|start| range.range_end == Some(*start))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::super::record::tests::{list, result};
    use super::super::CniPlugins;
    use super::*;

    /// The differences of an ADD with these capability arguments and this `ipam`.
    fn differ(args: Value, ipam: Value, made: Value, mac: Option<&str>) -> Vec<String> {
        let args: serde_json::Map<String, Value> = serde_json::from_value(args).unwrap();
        let plugins = json!([{"type": "macvlan", "ipam": ipam}, {"type": "tuning"}]);
        let spec = Spec {
            tenant: "default".to_owned(),
            if_name: "net1".parse().unwrap(),
            conflist: list(json!({"cniVersion": "1.1.0", "name": "n", "plugins": plugins})),
            args: Default::default(),
            capability_args: args.into(),
            wire: Default::default(),
        };
        let attachment = CniPlugins::attachment(&spec, "s1", Some("/run/netns/p".as_ref())).unwrap();
        differences(&spec, &attachment, &result(&made.to_string()), mac)
    }

    fn made(name: &str, mac: &str, ips: &[&str]) -> Value {
        let ips: Vec<Value> = ips.iter().map(|ip| json!({"address": ip, "interface": 1})).collect();
        json!({"cniVersion": "1.1.0", "ips": ips, "interfaces": [{"name": "br0", "mac": "02:00:00:00:00:99"},
            {"name": name, "mac": mac, "sandbox": "/run/netns/p"}]})
    }

    fn fixed_ipam() -> Value {
        json!({"type": "static", "addresses": [{"address": "10.20.0.5/24", "gateway": "10.20.0.1"}]})
    }

    const MAC: &str = "02:73:00:00:00:01";
    const NONE: [&str; 0] = [];

    #[test]
    fn an_add_that_made_what_was_asked_has_no_difference() {
        let asked = json!({"mac": "02:73:00:00:00:0A", "ips": ["10.20.0.5/24", "fd00::5"]});
        let as_asked = made("net1", "02:73:00:00:00:0a", &["10.20.0.5/24", "fd00::5/64"]);
        assert_eq!(differ(asked, json!({}), as_asked, None), NONE);
        assert_eq!(differ(json!({}), fixed_ipam(), made("net1", MAC, &["10.20.0.5/24"]), None), NONE);
        let silent = json!({"cniVersion": "1.1.0"});
        let unknown = differ(json!({"mac": MAC}), fixed_ipam(), silent, None);
        assert_eq!(unknown, NONE, "nothing is known");
        let range = json!({"type": "host-local", "ranges": [[{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.5"}]]});
        assert_eq!(
            differ(json!({}), range, made("net1", MAC, &["10.20.0.9/24"]), None),
            NONE,
            "it may choose"
        );
    }

    #[test]
    fn addresses_stay_the_same_where_they_are_written_down_or_can_be_asked_for() {
        let keeps = |ipam: Value, capabilities: Value| {
            let first = json!({"type": "macvlan", "ipam": ipam, "capabilities": capabilities});
            let last = json!({"type": "bandwidth", "capabilities": {"ips": true}});
            keeps_addresses(&list(json!({"cniVersion": "1.1.0", "name": "n", "plugins": [first, last]})))
        };
        let set = |end: &str| json!([{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.5", "rangeEnd": end}]);
        let host_local = |ranges: Value| json!({"type": "host-local", "ranges": ranges});
        assert!(keeps(Value::Null, json!({})) && keeps(fixed_ipam(), json!({})));
        assert!(keeps(host_local(json!([set("10.20.0.5")])), json!({})));
        assert!(!keeps(host_local(json!([set("10.20.0.5"), set("10.20.0.6")])), json!({})));
        assert!(!keeps(host_local(json!([])), json!({})), "another plugin takes them, and has no ipam");
        assert!(keeps(host_local(json!([])), json!({"ips": true})));
        assert!(!keeps(json!({"type": "dhcp"}), json!({"ips": true})));
    }

    #[test]
    fn a_name_a_mac_or_an_address_that_was_not_asked_is_named_with_both_values() {
        let other = made("eth7", MAC, &["10.20.0.5/24"]);
        assert_eq!(differ(json!({}), json!({}), other, None), ["interface eth7 instead of net1"]);
        let asked = json!({"mac": MAC});
        let of_result = made("net1", "02:00:00:00:00:02", &[]);
        let expected = [format!("MAC address 02:00:00:00:00:02 instead of {MAC}")];
        assert_eq!(differ(asked.clone(), json!({}), of_result, None), expected);
        let says_so = made("net1", MAC, &[]);
        assert_eq!(
            differ(asked, json!({}), says_so, Some("02:00:00:00:00:02")),
            expected,
            "the kernel knows better"
        );
        let asked = json!({"ips": ["10.20.0.5/24", "fd00::5"]});
        assert_eq!(
            differ(asked, json!({}), made("net1", MAC, &["10.20.0.6/24"]), None),
            ["address 10.20.0.6 instead of 10.20.0.5", "address none instead of fd00::5"]
        );
        let one = json!({"type": "host-local", "ranges": [[{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.5", "rangeEnd": "10.20.0.5"}]]});
        for ipam in [one, fixed_ipam()] {
            let found = differ(json!({}), ipam, made("net1", MAC, &["10.20.0.6/24"]), None);
            assert_eq!(found, ["address 10.20.0.6 instead of 10.20.0.5"]);
        }
    }
}
