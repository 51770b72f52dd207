//! The plugin's protocol, as far as it needs no network namespace and no privileges.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod call;

use call::{Call, config};
use serde_json::{Value, json};

fn nowhere(command: &'static str, config: &str) -> Result<Value, (i64, String)> {
    Call { netns: "/nowhere/at/all", ..Call::new(command, "c1", "eth1.5") }.run_text(config)
}

#[test]
fn invalid_input_is_refused_with_a_code_and_the_name_of_the_field() {
    let vlan = |more: Value| config("net", json!({"kind": "vlan", "master": "eth1", "id": 5}), more);
    let bridge = |more: Value| config("net", json!({"kind": "bridge", "bridge": "br5"}), more);
    let cases = [
        ("ADD", "", 6, "the configuration is not a JSON object"),
        ("ADD", "{\"cniVersion\": \"1.1.0\", ", 6, "the configuration is not a JSON object"),
        ("ADD", "{}", 1, "CNI 0.1.0 is not supported"),
        ("ADD", &config("net", json!({}), json!({})), 7, "kind: is missing: write vlan or bridge"),
        ("ADD", &vlan(json!({"kind": "vxlan"})), 7, "kind: \"vxlan\" is not known: write vlan or bridge"),
        ("ADD", &vlan(json!({"kind": 1})), 7, "kind: invalid type"),
        ("ADD", &vlan(json!({"vlanId": 5})), 2, "unknown key \"vlanId\" in the configuration"),
        ("ADD", &vlan(json!({"master": null})), 7, "master: is missing: write the link"),
        (
            "ADD",
            &vlan(json!({"master": "a234567890123456"})),
            7,
            "master: \"a234567890123456\" is not 1 to 15",
        ),
        ("ADD", &vlan(json!({"master": "../eth1"})), 7, "master: \"../eth1\" is not 1 to 15 letters, digits"),
        ("ADD", &vlan(json!({"id": null})), 7, "id: is missing"),
        ("ADD", &vlan(json!({"id": 0})), 7, "id: 0 is not a VLAN id: write 1 to 4094"),
        ("ADD", &vlan(json!({"id": 4095})), 7, "id: 4095 is not a VLAN id"),
        ("ADD", &vlan(json!({"id": 70000})), 7, "id: invalid value"),
        ("ADD", &vlan(json!({"id": "5"})), 7, "id: invalid type"),
        ("ADD", &vlan(json!({"bridge": "br0"})), 7, "bridge: has no meaning for the kind vlan: remove it"),
        ("ADD", &vlan(json!({"mtu": -1})), 7, "mtu: invalid value"),
        ("ADD", &vlan(json!({"name": "a b"})), 7, "name: \"a b\" is not 1 to 255 letters"),
        ("ADD", &vlan(json!({"name": null})), 7, "name: is missing"),
        ("ADD", &bridge(json!({"bridge": null})), 7, "bridge: is missing"),
        ("ADD", &bridge(json!({"id": 5})), 7, "id: has no meaning for the kind bridge"),
        ("ADD", &bridge(json!({"master": "br5"})), 7, "bridge: br5 cannot be a port of itself"),
        ("ADD", &bridge(json!({})), 7, "master: is missing: name the port"),
        ("ADD", &bridge(json!({"master": "eth1", "prevResult": {}})), 7, "master: stands beside"),
        ("ADD", &bridge(json!({"prevResult": 5})), 7, "prevResult: is not an object"),
        ("ADD", &vlan(json!({})), 4, "CNI_NETNS: /nowhere/at/all is not a network namespace"),
        ("CHECK", &vlan(json!({})), 4, "CNI_NETNS: /nowhere/at/all is not a network namespace"),
        ("CHECK", &vlan(json!({"cniVersion": "0.3.1"})), 1, "CNI 0.3.1 has no CHECK"),
        ("STATUS", &vlan(json!({"id": 0})), 7, "id: 0 is not a VLAN id"),
        ("GC", &vlan(json!({})), 7, "cni.dev/valid-attachments: is missing"),
        (
            "GC",
            &vlan(json!({"cni.dev/valid-attachments": [{"containerID": "c1"}]})),
            7,
            "missing field `ifname`",
        ),
        ("INIT", &vlan(json!({})), 4, "CNI_COMMAND: \"INIT\" is not one of ADD,"),
    ];
    for (command, config, code, words) in cases {
        let (found, message) = nowhere(command, config).unwrap_err();
        assert_eq!(found, code, "{command} {config}: {message}");
        assert!(message.contains(words), "{command} {config}: {message}");
    }
    let plain = vlan(json!({}));
    for (container, interface, words) in [
        ("", "v", "CNI_CONTAINERID: is not set"),
        ("c 1", "v", "CNI_CONTAINERID: \"c 1\" is not 1 to 255 letters"),
        ("c1", "", "CNI_IFNAME: is not set"),
        ("c1", "eth1.1234567890a", "CNI_IFNAME: \"eth1.1234567890a\" is not 1 to 15 letters"),
    ] {
        for command in ["ADD", "DEL", "CHECK"] {
            let (code, message) = Call::new(command, container, interface).run_text(&plain).unwrap_err();
            assert!(code == 4 && message.contains(words), "{command}: {message}");
        }
    }
}

#[test]
fn a_del_succeeds_without_a_namespace_and_with_a_configuration_that_its_add_refuses() {
    for own in
        [json!({"kind": "vlan"}), json!({"kind": "bridge", "bridg": "br0"}), json!({"kind": 7}), json!({})]
    {
        for netns in ["", "/nowhere/at/all", "/proc/self/ns/net"] {
            let call = Call { netns, ..Call::new("DEL", "c1", "eth1.5") };
            let config = config("net", own.clone(), json!({"kind": null}));
            assert_eq!(call.run_text(&config), Ok(Value::Null), "{own} {netns}");
        }
    }
}

#[test]
fn the_plugins_own_namespace_is_refused_unless_the_runtime_means_it() {
    let config = config("net", json!({"kind": "vlan", "master": "eth1", "id": 5}), json!({}));
    for command in ["ADD", "CHECK", "DEL"] {
        let call = Call { is_override: false, ..Call::new(command, "c1", "eth1.5") };
        let (code, message) = call.run_text(&config).unwrap_err();
        assert!(code == 4 && message.contains("is the plugin's own network namespace"), "{message}");
    }
}

#[test]
fn version_and_status_succeed() {
    let config = config("net", json!({"kind": "vlan", "master": "eth1", "id": 5}), json!({}));
    let versions = nowhere("VERSION", &config).unwrap()["supportedVersions"].clone();
    assert_eq!(versions, json!(["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]));
    assert_eq!(nowhere("STATUS", &config), Ok(Value::Null));
}
