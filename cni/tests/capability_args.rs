//! Capability arguments as values and as JSON.
#![allow(clippy::unwrap_used, reason = "tests")]

use netclaim_cni::{BandwidthArg, CapabilityArgs, IpRequest, PortMappingArg};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn args(json: &Value) -> CapabilityArgs {
    serde_json::from_value(json.clone()).unwrap()
}

/// One value for each capability of the conventions.
fn conventions() -> Value {
    json!({
        "aliases": ["db", "primary"],
        "bandwidth": {"ingressRate": 1_000_000_000, "ingressBurst": 100_000_000, "egressRate": 5, "egressBurst": 6},
        "deviceID": "0000:3b:02.1",
        "dns": {"servers": ["10.0.0.10", "fd00::a"], "searches": ["lab.example"], "options": ["ndots:2"]},
        "infinibandGUID": "c2:11:22:33:44:55:66:77",
        "ipRanges": [[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.99", "gateway": "10.1.2.1"}],
                     [{"subnet": "fd00::/64"}]],
        "ips": ["10.20.0.5", "10.20.0.6/24", "fd00::5/64"],
        "mac": "02:00:5e:10:00:01",
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "TCP", "hostIP": "192.0.2.1"},
                         {"hostPort": 53, "containerPort": 53}],
    })
}

#[test]
fn every_capability_of_the_conventions_has_a_type() {
    let typed = args(&conventions());
    assert_eq!(typed.other, Map::new());
    assert_eq!(typed.ips.as_ref().unwrap()[0], IpRequest::Address("10.20.0.5".parse().unwrap()));
    assert_eq!(typed.bandwidth.unwrap().ingress_rate, Some(1_000_000_000));
    assert_eq!(typed.port_mappings.as_ref().unwrap()[1].host_port, 53);
    assert_eq!(serde_json::to_value(&typed).unwrap(), conventions());
}

#[test]
fn typed_arguments_are_written_as_the_untyped_map_was() {
    let typed = args(&conventions());
    let untyped: Map<String, Value> = serde_json::from_value(conventions()).unwrap();
    assert_eq!(serde_json::to_string(&typed).unwrap(), serde_json::to_string(&untyped).unwrap());
}

#[test]
fn arguments_built_as_values_are_the_plugins_json() {
    let built = CapabilityArgs {
        bandwidth: Some(BandwidthArg { egress_rate: Some(8), egress_burst: Some(9), ..Default::default() }),
        mac: Some("02:00:00:00:00:01".to_owned().try_into().unwrap()),
        port_mappings: Some(vec![PortMappingArg {
            host_port: 8080,
            container_port: 80,
            protocol: Some("udp".to_owned()),
            host_ip: None,
        }]),
        ..CapabilityArgs::default()
    };
    assert_eq!(
        serde_json::to_value(built).unwrap(),
        json!({
            "bandwidth": {"egressRate": 8, "egressBurst": 9},
            "mac": "02:00:00:00:00:01",
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "udp"}],
        })
    );
}

#[test]
fn a_malformed_argument_is_kept_as_it_was_written() {
    let stored = json!({
        "aliases": "db", "bandwidth": {"ingressRate": -1}, "deviceID": 7, "dns": {"servers": ["ns.example"]},
        "infinibandGUID": null, "ipRanges": [{"subnet": "10.1.2.0/24"}], "ips": ["10.0.0.1/33"], "mac": "02-00",
        "portMappings": [{"hostPort": 70_000, "containerPort": 80}],
    });
    let kept = args(&stored);
    assert_eq!(Value::Object(kept.other.clone()), stored);
    assert_eq!(serde_json::to_value(kept).unwrap(), stored);
}

#[test]
fn an_argument_that_its_type_would_write_differently_is_kept_as_it_was_written() {
    for (name, value) in [
        ("mac", json!("02:AB:00:00:00:01")),
        ("ips", json!(["fd00::0001/64"])),
        ("bandwidth", json!({"ingressRate": 1, "shapedSubnets": ["10.0.0.0/8"]})),
        ("bandwidth", json!({"ingressRate": 1.0})),
        ("bandwidth", json!({"ingressRate": null})),
        ("dns", json!({"servers": []})),
    ] {
        let mut kept = CapabilityArgs::default();
        kept.insert(name, value.clone());
        assert_eq!(kept.other.get(name), Some(&value));
        assert_eq!(kept.into_iter().collect::<Vec<_>>(), [(name.to_owned(), value)]);
    }
}

#[test]
fn a_later_argument_replaces_the_one_of_the_same_name() {
    let mut some = CapabilityArgs::default();
    assert!(some.is_empty());
    assert_eq!(some.insert("mac", "not one"), None);
    assert_eq!(some.insert("mac", "02:00:00:00:00:01"), Some("not one".into()));
    assert!(some.mac.is_some() && some.other.is_empty());
}

fn any_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[0-9a-f:./]{0,12}".boxed(),
        Just("10.0.0.9/24".to_owned()).boxed(),
        Just("02:00:00:00:00:01".to_owned()).boxed(),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u64..100_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let key =
        prop::sample::select(vec!["ingressRate", "servers", "hostPort", "containerPort", "subnet", "x"]);
    leaf.prop_recursive(3, 16, 3, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..3).prop_map(|map| map
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect::<Value>()),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_is_stored_is_written_again(
        values in prop::collection::btree_map(
            prop::sample::select(vec![
                "aliases", "bandwidth", "deviceID", "dns", "infinibandGUID", "ipRanges", "ips", "mac", "portMappings", "z",
            ]),
            any_value(),
            0..6,
        ),
    ) {
        let map: Map<String, Value> = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let text = serde_json::to_string(&map).unwrap();
        let typed: CapabilityArgs = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(serde_json::to_string(&typed).unwrap(), text);
    }
}
