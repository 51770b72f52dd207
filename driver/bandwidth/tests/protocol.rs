//! The plugin's protocol, as far as it needs no network namespace and no privileges.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

struct Answer {
    success: bool,
    stdout: String,
}

impl Answer {
    /// Returns the error's code and its text.
    fn error(&self) -> (Value, String) {
        assert!(!self.success, "{}", self.stdout);
        let error: Value = serde_json::from_str(&self.stdout).unwrap();
        assert_eq!(
            error["cniVersion"].as_str().map(|version| version.split('.').count()),
            Some(3),
            "{error}"
        );
        (error["code"].clone(), format!("{}: {}", error["msg"], error["details"]))
    }
}

fn plugin(command: &str, variables: &[(&str, &str)], config: &str) -> Answer {
    let mut child = Command::new(env!("CARGO_BIN_EXE_netclaim-bandwidth"))
        .env_clear()
        .env("CNI_COMMAND", command)
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Answer { success: output.status.success(), stdout: String::from_utf8(output.stdout).unwrap() }
}

fn config(version: &str, more: Value) -> String {
    let mut config = json!({"cniVersion": version, "name": "net", "type": "netclaim-bandwidth"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config.to_string()
}

const CONTAINER: [(&str, &str); 2] = [("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "net1")];
const NOWHERE: [(&str, &str); 3] =
    [("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "net1"), ("CNI_NETNS", "/nowhere/at/all")];

#[test]
fn version_lists_the_supported_versions_for_any_input() {
    let supported = json!(["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]);
    for (input, version) in [(r#"{"cniVersion":"0.4.0"}"#, "0.4.0"), ("{}", "1.1.0"), ("", "1.1.0")] {
        let answer = plugin("VERSION", &[], input);
        let versions: Value = serde_json::from_str(&answer.stdout).unwrap();
        assert_eq!(versions, json!({"cniVersion": version, "supportedVersions": supported}), "{input}");
    }
}

#[test]
fn an_invalid_call_is_refused_with_a_code_and_the_name_of_the_field() {
    let with = |more: Value| config("1.1.0", more);
    let cases = [
        ("ADD", "", 6, "is not a JSON object"),
        ("ADD", "[]", 6, "is not a JSON object"),
        ("ADD", "{}", 1, "CNI 0.1.0 is not supported"),
        ("ADD", r#"{"cniVersion": "0.2.0"}"#, 1, "CNI 0.2.0 is not supported: use one of 0.3.0,"),
        ("ADD", r#"{"cniVersion": 1}"#, 7, "cniVersion: invalid type"),
        ("ADD", &with(json!({"egresRate": 1})), 2, r#"unknown key \"egresRate\""#),
        ("ADD", &with(json!({"egressRate": "1G"})), 7, "egressRate: invalid type"),
        ("ADD", &with(json!({"egressRate": -1})), 7, "egressRate: invalid value"),
        ("ADD", &with(json!({"egressRate": 7})), 7, "egressRate: 7 bit/s is less than a byte per second"),
        ("ADD", &with(json!({"ingressBurst": 8000})), 7, "ingressBurst: has no effect without ingressRate"),
        (
            "ADD",
            &with(json!({"ingressRate": 8000, "ingressBurst": 34359738361_u64})),
            7,
            "ingressBurst: 34359738361 bits are too much: write at most 34359738360",
        ),
        (
            "ADD",
            &with(json!({"runtimeConfig": {"bandwidth": {"rate": 5}}})),
            7,
            "runtimeConfig: unknown field `rate`",
        ),
        ("ADD", &with(json!({"prevResult": 5})), 7, "prevResult: is not an object"),
        (
            "ADD",
            &with(json!({})),
            7,
            "prevResult: is missing: put the plugin that makes the interface before",
        ),
        ("ADD", &with(json!({"prevResult": {}})), 4, "CNI_NETNS: /nowhere/at/all is not a network namespace"),
        ("CHECK", &with(json!({})), 4, "CNI_NETNS: /nowhere/at/all is not a network namespace"),
        ("CHECK", &config("0.3.1", json!({})), 1, "CNI 0.3.1 has no CHECK: it came with 0.4.0"),
        ("GC", &config("1.0.0", json!({})), 1, "CNI 1.0.0 has no GC: it came with 1.1.0"),
        ("UPDATE", &with(json!({})), 4, r#"CNI_COMMAND: \"UPDATE\" is not one of ADD,"#),
    ];
    for (command, config, code, words) in cases {
        let (found, message) = plugin(command, &NOWHERE, config).error();
        assert_eq!(found, code, "{command} {config}: {message}");
        assert!(message.contains(words), "{command} {config}: {message}");
    }
    let (code, message) = plugin("ADD", &CONTAINER, &with(json!({"prevResult": {}}))).error();
    assert_eq!((code, message.contains("CNI_NETNS: is not set")), (json!(4), true), "{message}");
    let (code, message) = plugin("DEL", &[("CNI_CONTAINERID", "c1")], &with(json!({}))).error();
    assert_eq!((code, message.contains("CNI_IFNAME: is not set")), (json!(4), true), "{message}");
}

#[test]
fn an_error_has_the_configurations_version() {
    let answer = plugin("ADD", &NOWHERE, &config("0.3.1", json!({})));
    assert_eq!(serde_json::from_str::<Value>(&answer.stdout).unwrap()["cniVersion"], "0.3.1");
}

#[test]
fn a_namespace_that_is_gone_needs_no_del() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let unmounted = empty.path().to_str().unwrap();
    for netns in [None, Some(""), Some("/nowhere/at/all"), Some(unmounted)] {
        let netns = netns.map(|path| ("CNI_NETNS", path));
        let answer = plugin(
            "DEL",
            &CONTAINER.into_iter().chain(netns).collect::<Vec<_>>(),
            &config("1.1.0", json!({})),
        );
        assert_eq!((answer.success, answer.stdout.as_str()), (true, ""), "{netns:?}");
    }
}

#[test]
fn a_del_succeeds_with_a_configuration_that_its_add_refuses() {
    for wrong in [json!({"egresRate": 1}), json!({"egressRate": "1G"})] {
        assert!(!plugin("ADD", &NOWHERE, &config("1.1.0", wrong.clone())).success, "{wrong}");
        assert!(plugin("DEL", &NOWHERE, &config("1.1.0", wrong.clone())).success, "{wrong}");
    }
}

#[test]
fn the_plugins_own_namespace_is_refused() {
    for command in ["ADD", "CHECK", "DEL"] {
        let own = [CONTAINER.as_slice(), &[("CNI_NETNS", "/proc/self/ns/net")]].concat();
        let (code, message) = plugin(command, &own, &config("1.1.0", json!({"prevResult": {}}))).error();
        assert_eq!(code, 4, "{command}: {message}");
        assert!(message.contains("is the plugin's own network namespace"), "{command}: {message}");
    }
}

#[test]
fn gc_and_status_always_succeed() {
    for command in ["GC", "STATUS"] {
        let attachments = json!({"cni.dev/valid-attachments": [], "capabilities": {"bandwidth": true}});
        let answer = plugin(command, &[], &config("1.1.0", attachments));
        assert_eq!((answer.success, answer.stdout.as_str()), (true, ""), "{command}");
    }
}
