//! What `validate` says about network configurations, compared with the runtime and the real host-local. What
//! it says of each fault is told by the tests of the `api` crate.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use netclaim_cni::NetworkList;
use netclaim_cni::placeholder::PlaceholderValue;
use netclaim_cni::validate::{Finding, Severity, validate, validate_template};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

/// A conflist of these plugins, in which nothing else is wrong.
fn list(plugins: &Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins})
}

#[test]
fn a_single_plugin_is_judged_as_the_list_it_becomes() {
    let json = json!({"cniVersion": "5.0.0", "cniVersions": ["1.0.0"], "name": "net", "type": "x"});
    let findings = validate(json.to_string().as_bytes());
    let at = |finding: &Finding| finding.severity == Severity::Error && finding.pointer == "/cniVersion";
    assert!(findings.iter().any(at), "{findings:?}");

    let deep = |levels| {
        format!(r#"{{"name":"net","type":"x","deep":{}{}}}"#, "[".repeat(levels), "]".repeat(levels))
    };
    for levels in 120..130 {
        let findings = validate(deep(levels).as_bytes());
        let error = findings.iter().any(|finding| finding.severity == Severity::Error);
        assert_eq!(NetworkList::parse(deep(levels).as_bytes()).is_err(), error, "{levels}: {findings:?}");
    }
}

const KEYS: [&str; 44] = [
    "name",
    "cniVersion",
    "cniVersions",
    "plugins",
    "disableCheck",
    "type",
    "ipam",
    "capabilities",
    "args",
    "dns",
    "Type",
    "IPAM",
    "vlan",
    "vlanTrunk",
    "VlanTrunk",
    "minID",
    "maxID",
    "id",
    "master",
    "mode",
    "mtu",
    "mac",
    "hwaddr",
    "device",
    "ranges",
    "Ranges",
    "subnet",
    "Subnet",
    "rangeStart",
    "rangeEnd",
    "gateway",
    "routes",
    "dst",
    "gw",
    "addresses",
    "address",
    "sysctl",
    "provide",
    "option",
    "egressRate",
    "egressBurst",
    "conditionsV4",
    "backend",
    "a/b~c",
];

fn value() -> impl Strategy<Value = Value> {
    let plugins = ["bridge", "macvlan", "vlan", "host-device", "tuning", "bandwidth", "portmap", "vrf"];
    let text = prop_oneof![
        proptest::sample::select(plugins.to_vec()),
        proptest::sample::select(vec![
            "host-local",
            "static",
            "dhcp",
            "0.2.0",
            "1.1.0",
            "2.0.0",
            "true",
            "",
            "-d",
            "x"
        ]),
        proptest::sample::select(vec![
            "10.0.0.0/24",
            "10.0.0.5",
            "10.0.0.9/30",
            "fd00::/64",
            "fd00::1",
            "eth0"
        ]),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-1i64..5000).prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            members(inner).prop_map(Value::from),
        ]
    })
}

fn members(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = serde_json::Map<String, Value>> {
    let key = proptest::sample::select(KEYS.to_vec()).prop_map(str::to_owned);
    proptest::collection::vec((key, inner), 0..8).prop_map(|members| members.into_iter().collect())
}

/// A document that looks like a conflist more often than not.
fn document() -> impl Strategy<Value = Value> {
    let plugin = (members(value()), members(value()), 0..18usize, 0..4usize).prop_map(
        |(mut plugin, mut ipam, t, i)| {
            let types = [
                "bridge",
                "macvlan",
                "ipvlan",
                "vlan",
                "host-device",
                "ptp",
                "tap",
                "dummy",
                "tuning",
                "sbr",
                "vrf",
                "bandwidth",
                "firewall",
                "portmap",
            ];
            if let Some(name) = types.get(t) {
                plugin.insert("type".into(), json!(name));
            }
            if let Some(name) = ["host-local", "static", "dhcp"].get(i) {
                ipam.insert("type".into(), json!(name));
                plugin.insert("ipam".into(), ipam.into());
            }
            Value::from(plugin)
        },
    );
    (members(value()), proptest::collection::vec(plugin, 0..4), any::<bool>()).prop_map(
        |(mut list, plugins, proper)| {
            list.insert("plugins".into(), plugins.into());
            if proper {
                list.extend([("name".to_owned(), json!("net")), ("cniVersion".to_owned(), json!("1.0.0"))]);
                list.remove("cniVersions");
            }
            Value::from(list)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_findings_pointer_leads_to_a_value_of_the_document(document in prop_oneof![document(), value()]) {
        let text = document.to_string();
        for finding in validate(text.as_bytes()).into_iter().chain(validate_template(text.as_bytes(), &|_| Ok(PlaceholderValue::Any))) {
            prop_assert!(document.pointer(&finding.pointer).is_some(), "{finding}");
            prop_assert!(!finding.problem.is_empty() && !finding.advice.is_empty());
        }
    }

    #[test]
    fn validation_finds_an_error_in_each_list_that_the_runtime_refuses(document in prop_oneof![document(), value()]) {
        let text = document.to_string();
        if let Err(error) = NetworkList::parse(text.as_bytes()) {
            let findings = validate(text.as_bytes());
            prop_assert!(findings.iter().any(|f| f.severity == Severity::Error), "{error:?}: {findings:?}");
        }
    }

    #[test]
    fn any_bytes_are_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        validate(&bytes);
    }
}

/// Whether the reference IPAM plugin takes the configuration for an ADD; `None` where it does and has no
/// address left.
fn is_taken(plugin: &str, conf: &Value, data: &std::path::Path) -> Option<bool> {
    let bin =
        std::env::var_os("NETCLAIM_CNI_BIN").expect("NETCLAIM_CNI_BIN must name the plugins' directory");
    let input = data.join("input");
    std::fs::write(&input, conf.to_string()).unwrap();
    let output = std::process::Command::new(std::path::Path::new(&bin).join(plugin))
        .env_clear()
        .envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "c"), ("CNI_IFNAME", "net1"), ("CNI_PATH", "/")])
        .envs([("CNI_NETNS", "/nonexistent"), ("CNI_NETNS_OVERRIDE", "1")])
        .stdin(std::fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    (!printed.contains("no IP addresses available")).then_some(output.status.success())
}

fn ranges() -> impl Strategy<Value = Value> {
    let subnet = [
        "10.0.0.0/24",
        "10.0.0.0/29",
        "10.0.0.8/29",
        "10.0.0.1/24",
        "10.0.1.0/31",
        "fd00::/64",
        "fd00::4/126",
        "10.0.0.0",
        "",
    ];
    let address = [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.6",
        "10.0.0.9",
        "10.0.0.255",
        "10.0.1.1",
        "fd00::1",
        "fd00::5",
        "::ffff:10.0.0.3",
        "x",
        "",
    ];
    let key = |name: &'static str, values: &[&'static str], weight| {
        let value = proptest::sample::select(values.to_vec());
        proptest::option::weighted(weight, value)
            .prop_map(move |value| value.map(|value| (name.to_owned(), json!(value))))
    };
    let keys = (
        key("subnet", &subnet, 0.95),
        key("rangeStart", &address, 0.3),
        key("rangeEnd", &address, 0.3),
        key("gateway", &address, 0.2),
    );
    keys.prop_map(|(a, b, c, d)| [a, b, c, d].into_iter().flatten().collect::<serde_json::Map<_, _>>().into())
}

#[test]
#[ignore = "needs NETCLAIM_CNI_BIN"]
fn errors_in_ranges_are_what_host_local_refuses() {
    let data = tempfile::tempdir().unwrap();
    let version = proptest::sample::select(vec!["0.2.0", "1.0.0"]);
    let sets = proptest::collection::vec(proptest::collection::vec(ranges(), 0..3), 0..3);
    let counts = std::cell::Cell::new((0, 0));
    let compare = |(version, sets, flat): (&str, Vec<Vec<Value>>, Option<Value>)| {
        let mut ipam = flat.unwrap_or_else(|| json!({}));
        ipam["ranges"] = json!(sets);
        ipam["type"] = json!("host-local");
        let store = tempfile::tempdir_in(&data).unwrap();
        ipam["dataDir"] = json!(store.path());
        let conf = json!({"cniVersion": version, "name": "net", "type": "host-local", "ipam": ipam});
        let mut list = list(&json!([{"type": "bridge", "ipam": ipam}]));
        list["cniVersion"] = json!(version);
        let findings = validate(list.to_string().as_bytes());
        let error = findings.iter().any(|finding| finding.severity == Severity::Error);
        if let Some(taken) = is_taken("host-local", &conf, store.path()) {
            prop_assert_eq!(taken, !error, "{}: {:?}", ipam, findings);
            let (yes, no) = counts.get();
            counts.set((yes + u32::from(taken), no + u32::from(!taken)));
        }
        Ok(())
    };
    let config = ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() };
    let cases = (version, sets, proptest::option::weighted(0.3, ranges()));
    // The same cases every time: what a new seed finds is for a person to look at, not for whoever's change
    // is tested.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, rng).run(&cases, compare).unwrap();
    let (yes, no) = counts.get();
    assert!(yes > 20 && no > 20, "{yes} taken, {no} refused: this compares too little");
}
