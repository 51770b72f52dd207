//! Values made at random, the same in every run.

use netclaim_cni::{CniResult, SpecVersion};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

/// Any JSON.
pub fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~é<>&]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,4}", inner, 0..3)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// A result that any plugin might give in a version.
pub fn any_result(version: SpecVersion) -> impl Strategy<Value = Value> {
    let ip = (1..250u8, any::<bool>(), prop::option::of(0..2u8)).prop_map(|(n, v4, interface)| {
        let (address, gateway) = if v4 {
            (format!("10.0.{n}.2/24"), format!("10.0.{n}.1"))
        } else {
            (format!("fd00:{n}::2/64"), format!("fd00:{n}::1"))
        };
        json!({"address": address, "gateway": gateway, "interface": interface})
    });
    let interface = ("[a-z]{1,9}", any::<bool>(), 1..9000).prop_map(|(name, host, mtu)| {
        json!({"name": name, "mac": "02:00:00:00:00:01", "mtu": mtu, "sandbox": if host { "" } else { "/run/netns/x" }})
    });
    let route = (0..250u8, prop::option::of(1..1500))
        .prop_map(|(n, mtu)| json!({"dst": format!("10.{n}.0.0/16"), "mtu": mtu, "table": mtu}));
    let lists = (
        prop::collection::vec(ip, 1..4),
        prop::collection::vec(interface, 0..3),
        prop::collection::vec(route, 0..3),
        prop::option::of("[a-z.]{1,9}"),
    );
    lists.prop_map(move |(ips, interfaces, routes, domain)| {
        let newest = json!({"cniVersion": "1.1.0", "ips": ips, "interfaces": interfaces, "routes": routes, "dns": {"domain": domain}});
        // The differential test of conversions stands for this one.
        let result = CniResult::parse(&newest.to_string(), version).unwrap().to_version(version).unwrap();
        serde_json::from_str(result.raw()).unwrap()
    })
}

/// The same cases each time.
pub fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}
