//! Results in every version, and their conversion.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::panic)]

use netclaim_cni::SpecVersion::{self, V0_1_0, V0_2_0, V0_3_0, V0_3_1, V0_4_0, V1_0_0, V1_1_0};
use netclaim_cni::{Attachment, CniResult, Dns, Interface, IpConfig, ResultError, Route};
use proptest::prelude::*;
use serde_json::{Value, json};

fn result(json: Value) -> CniResult {
    CniResult::parse(&json.to_string(), V1_1_0).unwrap()
}

fn converted(json: Value, version: SpecVersion) -> Value {
    serde_json::from_str(result(json).to_version(version).unwrap().raw()).unwrap()
}

fn full() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "br0", "mac": "02:00:00:00:00:01", "mtu": 1500},
            {"name": "net1", "mac": "02:00:00:00:00:02", "mtu": 9000, "sandbox": "/run/netns/x", "socketPath": "/s", "pciID": "0000:01:00.0"},
        ],
        "ips": [
            {"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1},
            {"address": "fd00::2/64", "interface": 1},
            {"address": "10.0.1.2/24", "interface": 0},
        ],
        "routes": [
            {"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1400, "advmss": 1360, "priority": 7, "table": 0, "scope": 0},
            {"dst": "fd01::/64"},
        ],
        "dns": {"nameservers": ["10.0.0.1"], "domain": "d", "search": ["s"], "options": ["o"]},
    })
}

#[test]
fn every_field_is_read() {
    let result = result(full());
    assert_eq!(result.version(), V1_1_0);
    assert_eq!(result.interfaces()[1].mtu, Some(9000));
    assert_eq!(result.interfaces()[1].socket_path.as_deref(), Some("/s"));
    assert_eq!(result.interfaces()[1].pci_id.as_deref(), Some("0000:01:00.0"));
    assert_eq!(result.interfaces()[0].sandbox, None);
    assert_eq!(result.ips()[0].address.to_string(), "10.0.0.2/24");
    assert_eq!(result.ips()[0].gateway.unwrap().to_string(), "10.0.0.1");
    assert_eq!((result.routes()[0].table, result.routes()[0].priority), (Some(0), Some(7)));
    assert_eq!(result.dns().search, ["s"]);
}

#[test]
fn the_interface_and_addresses_of_an_attachment_are_told_from_the_hosts() {
    let attachment = Attachment::new("c".parse().unwrap(), None, "net1".parse().unwrap());
    let result = result(full());
    assert_eq!(result.interface_of(&attachment).unwrap().mtu, Some(9000));
    assert_eq!(result.ips_of(&attachment).count(), 2);
    let old = result.to_version(V0_2_0).unwrap();
    assert_eq!(old.interface_of(&attachment), None);
    assert_eq!(old.ips_of(&attachment).count(), 2);
}

#[test]
fn conversion_leaves_out_what_a_version_cannot_say() {
    let mut expected = full();
    expected["cniVersion"] = "1.0.0".into();
    assert_eq!(converted(full(), V1_0_0), expected);

    expected["cniVersion"] = "0.4.0".into();
    expected["interfaces"] = json!([
        {"name": "br0", "mac": "02:00:00:00:00:01"},
        {"name": "net1", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/x"},
    ]);
    expected["ips"] = json!([
        {"version": "4", "address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1},
        {"version": "6", "address": "fd00::2/64", "interface": 1},
        {"version": "4", "address": "10.0.1.2/24", "interface": 0},
    ]);
    assert_eq!(converted(full(), V0_4_0), expected);

    let old = json!({
        "cniVersion": "0.2.0",
        "ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}]},
        "ip6": {"ip": "fd00::2/64", "routes": [{"dst": "fd01::/64"}]},
        "dns": full()["dns"],
    });
    assert_eq!(converted(full(), V0_2_0), old);
    assert_eq!(converted(expected, V0_2_0), old);
    assert_eq!(
        converted(old, V1_1_0),
        json!({
            "cniVersion": "1.1.0",
            "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}, {"address": "fd00::2/64"}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}, {"dst": "fd01::/64"}],
            "dns": full()["dns"],
        })
    );
}

#[test]
fn versions_before_0_3_0_cannot_go_without_an_address() {
    for version in [V0_1_0, V0_2_0] {
        let error = result(json!({"cniVersion": "1.1.0"})).to_version(version).unwrap_err();
        assert!(matches!(error, ResultError::NoAddress(v) if v == version), "{error:?}");
    }
}

#[test]
fn a_result_without_version_has_the_configurations() {
    for text in [r#"{"ips":[]}"#, r#"{"cniVersion":"","ips":[]}"#, r#"{"cniVersion":null,"ips":[]}"#] {
        let result = CniResult::parse(text, V1_0_0).unwrap();
        assert_eq!(result.version(), V1_0_0);
        assert!(result.raw().contains(r#""cniVersion":"1.0.0""#), "{}", result.raw());
    }
    assert_eq!(CniResult::parse("null", V0_4_0).unwrap().raw(), r#"{"cniVersion":"0.4.0"}"#);
}

#[test]
fn null_and_empty_mean_not_set() {
    let result = result(json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "a", "mac": "", "mtu": 0, "sandbox": ""}],
        "ips": [
            {"address": "10.0.0.2/24", "gateway": "", "interface": null},
            {"address": "10.0.0.3/24", "interface": -1},
        ],
        "routes": null,
        "dns": {"nameservers": null, "domain": ""},
    }));
    assert_eq!(result.interfaces(), [Interface { name: "a".into(), ..Interface::default() }]);
    assert!(result.ips().iter().all(|ip| ip.gateway.is_none() && ip.interface.is_none()));
    assert!(result.routes().is_empty() && result.dns().is_empty());
}

#[test]
fn a_result_of_the_wrong_form_is_refused() {
    for text in [
        "[]",
        "7",
        r#"{"cniVersion":1}"#,
        r#"{"ips":{}}"#,
        r#"{"ips":[null]}"#,
        r#"{"ips":[{"address":"10.0.0.2"}]}"#,
        r#"{"ips":[{"address":"10.0.0.2/24","gateway":"x"}]}"#,
        r#"{"interfaces":[{"name":"a","mtu":1.5}]}"#,
        r#"{"routes":[{"dst":"nowhere"}]}"#,
    ] {
        assert!(matches!(CniResult::parse(text, V1_1_0), Err(ResultError::Form { .. })), "{text}");
    }
    for version in ["1.2.0", "3.0.0", "1.1"] {
        let text = format!(r#"{{"cniVersion":"{version}"}}"#);
        assert!(matches!(CniResult::parse(&text, V1_1_0), Err(ResultError::Version(_))), "{version}");
    }
}

#[test]
fn a_plugins_output_is_kept_within_related_versions() {
    let text = r#"{"cniVersion": "1.0.0", "x": 12345678901234567890123, "ips": [ {"address":"10.0.0.2/24", "y":1.0} ]}"#;
    let result = CniResult::parse(text, V1_1_0).unwrap();
    assert_eq!(result.raw(), text);
    assert_eq!(
        result.to_version(V1_1_0).unwrap().raw(),
        r#"{"cniVersion":"1.1.0","x":12345678901234567890123,"ips":[ {"address":"10.0.0.2/24", "y":1.0} ]}"#
    );
}

fn v4() -> impl Strategy<Value = String> {
    any::<[u8; 4]>().prop_map(|bytes| std::net::Ipv4Addr::from(bytes).to_string())
}

fn v6() -> impl Strategy<Value = String> {
    // Mapped addresses count as IPv4, and are not what this is about.
    any::<[u8; 16]>().prop_map(|mut bytes| {
        bytes[0] |= 0x20;
        std::net::Ipv6Addr::from(bytes).to_string()
    })
}

prop_compose! {
    fn address()(v4 in v4(), v6 in v6(), is_v4 in any::<bool>(), p4 in 0..=32u8, p6 in 0..=128u8) -> (String, String) {
        if is_v4 { (format!("{v4}/{p4}"), v4) } else { (format!("{v6}/{p6}"), v6) }
    }
}

prop_compose! {
    fn ip()(address in address(), gateway in any::<bool>(), interface in prop::option::of(0..4u32)) -> IpConfig {
        IpConfig {
            address: address.0.parse().unwrap(),
            gateway: gateway.then(|| address.1.parse().unwrap()),
            interface,
        }
    }
}

prop_compose! {
    fn route()(
        address in address(),
        gw in any::<bool>(),
        mtu in prop::option::of(1..u32::MAX),
        table in prop::option::of(any::<u32>()),
        scope in prop::option::of(0..255u32),
    ) -> Route {
        Route {
            dst: address.0.parse().unwrap(),
            gw: gw.then(|| address.1.parse().unwrap()),
            mtu, advmss: mtu, priority: mtu, table, scope,
        }
    }
}

prop_compose! {
    fn interface()(name in "[a-z]{1,15}", mac in prop::option::of("[0-9a-f]{12}"), mtu in prop::option::of(1..65536u32), sandbox in prop::option::of("/[a-z]{1,9}")) -> Interface {
        Interface { name, mac, mtu, socket_path: sandbox.clone(), pci_id: sandbox.clone(), sandbox }
    }
}

prop_compose! {
    fn any_result()(
        interfaces in prop::collection::vec(interface(), 0..4),
        ips in prop::collection::vec(ip(), 0..4),
        routes in prop::collection::vec(route(), 0..4),
        nameservers in prop::collection::vec("[0-9.]{1,9}", 0..3),
        domain in prop::option::of("[a-z.]{1,9}"),
    ) -> CniResult {
        let dns = Dns { search: nameservers.clone(), options: Vec::new(), nameservers, domain };
        result(json!({"cniVersion": "1.1.0", "interfaces": interfaces, "ips": ips, "routes": routes, "dns": dns}))
    }
}

proptest! {
    #[test]
    fn a_result_reads_back_as_stored(result in any_result(), version in prop::sample::select(&SpecVersion::ALL)) {
        let Ok(result) = result.to_version(version) else { return Ok(()) };
        let back: CniResult = serde_json::from_str(&serde_json::to_string(&result).unwrap()).unwrap();
        prop_assert_eq!(&back, &result);
        prop_assert_eq!(back.version(), version);
        prop_assert_eq!((back.ips(), back.routes(), back.interfaces()), (result.ips(), result.routes(), result.interfaces()));
    }

    #[test]
    fn addresses_routes_and_dns_survive_every_version_with_lists(
        result in any_result(),
        version in prop::sample::select(&[V0_3_0, V0_3_1, V0_4_0, V1_0_0, V1_1_0][..]),
    ) {
        let there = result.to_version(version).unwrap();
        let back = there.to_version(V1_1_0).unwrap();
        prop_assert_eq!(there.version(), version);
        prop_assert_eq!((back.ips(), back.routes(), back.dns()), (result.ips(), result.routes(), result.dns()));
        let names = |r: &CniResult| r.interfaces().iter().map(|i| (i.name.clone(), i.mac.clone(), i.sandbox.clone())).collect::<Vec<_>>();
        prop_assert_eq!(names(&back), names(&result));
    }

    #[test]
    fn the_first_address_of_each_family_survives_the_oldest_versions(
        result in any_result(),
        version in prop::sample::select(&[V0_1_0, V0_2_0][..]),
    ) {
        let first = |v4: bool| result.ips().iter().find(|ip| ip.address.addr().is_ipv4() == v4).map(|ip| ip.address);
        match result.to_version(version) {
            Ok(old) => {
                let expected: Vec<_> = [first(true), first(false)].into_iter().flatten().collect();
                prop_assert_eq!(old.ips().iter().map(|ip| ip.address).collect::<Vec<_>>(), expected);
            }
            Err(error) => prop_assert!(matches!(error, ResultError::NoAddress(_)) && result.ips().is_empty()),
        }
    }

    #[test]
    fn converting_twice_is_converting_once(
        result in any_result(),
        a in prop::sample::select(&[V0_3_0, V0_4_0][..]),
        b in prop::sample::select(&[V0_3_1, V0_2_0, V0_1_0][..]),
    ) {
        let direct = result.to_version(b).ok();
        let by_way_of = result.to_version(a).unwrap().to_version(b).ok();
        prop_assert_eq!(direct, by_way_of);
    }
}

#[test]
fn results_are_merged_in_their_order_and_addresses_keep_their_interfaces() {
    let other = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "net2", "mac": "02:00:00:00:00:03", "sandbox": "/run/netns/x"}],
        "ips": [{"address": "10.1.0.2/24", "interface": 0}, {"address": "10.2.0.2/24"},
            {"address": "10.3.0.2/24", "interface": 7}],
        "routes": [{"dst": "10.9.0.0/16"}],
        "dns": {"nameservers": ["10.1.0.1"]},
    });
    let results = [result(json!({"cniVersion": "1.1.0"})), result(full()), result(other)];
    for version in [V0_3_0, V0_3_1, V0_4_0, V1_0_0, V1_1_0] {
        let merged = CniResult::merged(&results, version).unwrap();
        assert_eq!(merged.version(), version);
        let names: Vec<&str> = merged.interfaces().iter().map(|interface| interface.name.as_str()).collect();
        assert_eq!(names, ["br0", "net1", "net2"]);
        let of: Vec<_> = merged.ips().iter().map(|ip| (ip.address.to_string(), ip.interface)).collect();
        let expected = [
            ("10.0.0.2/24", Some(1)),
            ("fd00::2/64", Some(1)),
            ("10.0.1.2/24", Some(0)),
            ("10.1.0.2/24", Some(2)),
            ("10.2.0.2/24", None),
            ("10.3.0.2/24", None),
        ];
        assert_eq!(of, expected.map(|(address, interface)| (address.to_owned(), interface)));
        let routes: Vec<String> = merged.routes().iter().map(|route| route.dst.to_string()).collect();
        assert_eq!(routes, ["0.0.0.0/0", "fd01::/64", "10.9.0.0/16"]);
        assert_eq!(merged.dns().nameservers, ["10.0.0.1"]);
        let json: Value = serde_json::from_str(merged.raw()).unwrap();
        let marked = version < V1_0_0;
        assert_eq!(json["ips"][1]["version"], if marked { json!("6") } else { Value::Null });
        assert_eq!(json["interfaces"][1].get("socketPath").is_some(), !marked);
    }
    let none = CniResult::merged([], V1_1_0).unwrap();
    assert_eq!(none.raw(), r#"{"cniVersion":"1.1.0"}"#);
    assert!(matches!(CniResult::merged([], V0_2_0), Err(ResultError::NoAddress(V0_2_0))));
}
