//! Network configurations and the calls derived from them.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::error::Error as _;
use std::ffi::OsStr;

use netclaim_cni::{
    Attachment, CniResult, NetworkList, PluginConf, Request, RequestError, SpecVersion, Verb,
};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

fn list(json: &str) -> NetworkList {
    NetworkList::parse(json.as_bytes()).unwrap()
}

/// Place and problem of a configuration that must be refused.
fn problem(json: &str) -> String {
    let error = NetworkList::parse(json.as_bytes()).unwrap_err();
    format!("{}: {}", error.pointer, error.source().unwrap())
}

fn attachment() -> Attachment {
    Attachment::new("c1".parse().unwrap(), Some("/run/netns/x".into()), "net1".parse().unwrap())
}

fn request(verb: Verb, list: &NetworkList, attachment: &Attachment) -> Result<Request, RequestError> {
    Request::attachment(verb, list, list.first_plugin(), attachment, None, OsStr::new("/opt/cni/bin"))
}

fn stdin(list: &NetworkList, attachment: &Attachment) -> Value {
    serde_json::from_slice(&request(Verb::Add, list, attachment).unwrap().stdin).unwrap()
}

#[test]
fn a_list_is_read_with_its_name_version_and_plugins() {
    let list = list(
        r#" {"cniVersion":"1.0.0","name":"net","disableCheck":true,"disableGC":"TRUE","unknown":{"a":1},
            "plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"tuning","capabilities":{"mac":true,"x":false}},
                       {"type":"portmap","ipam":{}},{"type":"tuning"}]} "#,
    );
    assert_eq!((list.name().as_str(), list.version()), ("net", SpecVersion::V1_0_0));
    assert!(list.disable_check() && list.disable_gc());
    assert_eq!(
        list.plugins().map(PluginConf::plugin_type).map(AsRef::as_ref).collect::<Vec<_>>(),
        ["bridge", "tuning", "portmap", "tuning"]
    );
    assert_eq!(
        list.plugin_types().map(AsRef::as_ref).collect::<Vec<_>>(),
        ["bridge", "host-local", "tuning", "portmap"]
    );
    let tuning = list.plugins().nth(1).unwrap();
    assert!(tuning.capabilities().iter().eq(["mac"]));
    assert!(list.raw().starts_with("{\"cniVersion\"") && list.raw().ends_with("]}"));
}

#[test]
fn a_single_configuration_becomes_a_list_of_one() {
    let single = r#"{"cniVersion":"0.4.0","name":"net","type":"bridge","n":12345678901234567890123}"#;
    let list = list(single);
    assert_eq!(list.version(), SpecVersion::V0_4_0);
    assert_eq!(list.raw(), format!(r#"{{"cniVersion":"0.4.0","name":"net","plugins":[{single}]}}"#));
}

#[test]
fn the_highest_supported_version_is_chosen() {
    for (versions, expected) in [
        (r#""cniVersions":["0.4.0","2.0.0"]"#, "0.4.0"),
        (r#""cniVersions":["1.1.0","0.4.0"],"cniVersion":"1.0.0""#, "1.1.0"),
        (r#""cniVersions":["0.3.1"],"cniVersion":"1.0.0""#, "1.0.0"),
        (r#""cniVersions":["0.3.1"],"cniVersion":"9.0.0""#, "0.3.1"),
        (r#""cniVersion":"""#, "0.1.0"),
        (r#""x":1"#, "0.1.0"),
    ] {
        let list = list(&format!(r#"{{{versions},"name":"net","plugins":[{{"type":"p"}}]}}"#));
        assert_eq!(list.version().as_str(), expected, "{versions}");
    }
}

#[test]
fn a_faulty_configuration_is_refused_with_place_and_reason() {
    let with = |plugin: &str| format!(r#"{{"name":"net","plugins":[{{"type":"ok"}},{plugin}]}}"#);
    for (json, expected) in [
        ("{}".to_owned(), "/name: is required"),
        ("[]".to_owned(), "/: must be an object, not a list"),
        (r#"{"name":"net"}"#.to_owned(), "/plugins: is required"),
        (r#"{"name":7}"#.to_owned(), "/name: must be a string, not a number"),
        (r#"{"name":"a/b","plugins":[]}"#.to_owned(), "/name: is not an allowed name"),
        (r#"{"name":"net","plugins":[]}"#.to_owned(), "/plugins: must name at least one plugin"),
        (r#"{"name":"net","plugins":{}}"#.to_owned(), "/plugins: must be a list, not an object"),
        (
            r#"{"name":"net","cniVersion":"1.1","plugins":[]}"#.to_owned(),
            "/cniVersion: is not a supported version",
        ),
        (
            r#"{"name":"net","cniVersion":1,"plugins":[]}"#.to_owned(),
            "/cniVersion: must be a string, not a number",
        ),
        (
            r#"{"name":"net","cniVersions":["2.0.0"],"plugins":[]}"#.to_owned(),
            "/cniVersions: names no version this runtime supports; the newest is 1.1.0",
        ),
        (
            r#"{"name":"net","cniVersions":["1.0.0","new"],"plugins":[]}"#.to_owned(),
            "/cniVersions/1: is not a supported version",
        ),
        (
            r#"{"name":"net","disableCheck":"yes","plugins":[{"type":"p"}]}"#.to_owned(),
            "/disableCheck: must be true or false, not a string",
        ),
        (with("{}"), "/plugins/1/type: is required"),
        (with("7"), "/plugins/1: must be an object, not a number"),
        (with(r#"{"type":"../sh"}"#), "/plugins/1/type: is not an allowed name"),
        (with(r#"{"type":"p","ipam":[]}"#), "/plugins/1/ipam: must be an object, not a list"),
        (with(r#"{"type":"p","ipam":{"type":"/sh"}}"#), "/plugins/1/ipam/type: is not an allowed name"),
        (
            with(r#"{"type":"p","capabilities":{"a/b":"yes"}}"#),
            "/plugins/1/capabilities/a~1b: must be true or false, not a string",
        ),
        (with(r#"{"type":"p","a":{"x":1,"x":2}}"#), "/: cannot be read as JSON without duplicate keys"),
        (
            with(r#"{"type":"p","Type":"sh"}"#),
            "/plugins/1/Type: is spelt differently from `type`, which some plugins would take it for: write `type`",
        ),
        (
            with(r#"{"type":"p","ipam":{"type":"p","tYpe":"sh"}}"#),
            "/plugins/1/ipam/tYpe: is spelt differently from `type`, which some plugins would take it for: write `type`",
        ),
    ] {
        assert_eq!(problem(&json), expected, "{json}");
    }
}

#[test]
fn the_runtime_writes_what_is_its_to_write() {
    let list = list(
        r#"{"cniVersion":"1.1.0","name":"net","plugins":[{
            "type":"p","name":"other","cniVersion":"0.1.0","capabilities":{"mac":true},"keep":{"z":1,"a":2},
            "runtimeConfig":{"mac":"evil"},"args":{"cni":{}},"prevResult":{},"cni.dev/x":1,"CNI.Dev/x":2}]}"#,
    );
    assert_eq!(
        stdin(&list, &attachment()),
        json!({"type": "p", "name": "net", "cniVersion": "1.1.0", "keep": {"z": 1, "a": 2}})
    );
}

#[test]
fn a_plugin_gets_the_capability_arguments_it_declares() {
    let list = list(
        r#"{"cniVersion":"1.1.0","name":"net","plugins":[
            {"type":"p","capabilities":{"mac":true,"ips":false,"bandwidth":true}},{"type":"q"}]}"#,
    );
    let mut attachment = attachment();
    let args = json!({"mac": "02:00:00:00:00:01", "ips": ["10.0.0.9/24"], "other": 1});
    attachment.capability_args = serde_json::from_value(args).unwrap();
    assert_eq!(stdin(&list, &attachment)["runtimeConfig"], json!({"mac": "02:00:00:00:00:01"}));
}

#[test]
fn all_six_variables_are_always_set() {
    let list = list(r#"{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"p"}]}"#);
    let path = OsStr::new("/opt/cni/bin");
    let gone = Attachment { netns: None, ..attachment() };
    let env = |request: Request| -> Vec<String> {
        request.env.into_iter().map(|(key, value)| format!("{key}={}", value.display())).collect()
    };
    assert_eq!(
        env(request(Verb::Del, &list, &gone).unwrap()),
        [
            "CNI_COMMAND=DEL",
            "CNI_CONTAINERID=c1",
            "CNI_NETNS=",
            "CNI_ARGS=IgnoreUnknown=1",
            "CNI_IFNAME=net1",
            "CNI_PATH=/opt/cni/bin"
        ]
    );
    assert_eq!(
        env(Request::status(&list, list.first_plugin(), path).unwrap()),
        [
            "CNI_COMMAND=STATUS",
            "CNI_CONTAINERID=",
            "CNI_NETNS=",
            "CNI_ARGS=",
            "CNI_IFNAME=",
            "CNI_PATH=/opt/cni/bin"
        ]
    );
}

#[test]
fn an_argument_that_would_be_read_as_two_is_refused() {
    let list = list(r#"{"name":"net","plugins":[{"type":"p"}]}"#);
    let with = |key: &str, value: &str| Attachment { args: vec![(key.into(), value.into())], ..attachment() };
    for (key, value) in [("", "x"), ("a;b", "x"), ("a", "x=y"), ("a", "x;IgnoreUnknown=0"), ("a", "\0")] {
        let error = request(Verb::Add, &list, &with(key, value)).unwrap_err();
        assert!(matches!(error, RequestError::Arg { .. }), "{error:?}");
    }
    let ours = request(Verb::Add, &list, &with("IgnoreUnknown", "0")).unwrap();
    assert_eq!(ours.env[3].1, "IgnoreUnknown=1");
}

#[test]
fn an_attachment_reads_back_as_stored() {
    let mut attachment = attachment();
    attachment.args.push(("K8S_POD_UID".into(), "u".into()));
    attachment.capability_args.insert("mac", "02:00:00:00:00:01");
    let stored = serde_json::to_string(&attachment).unwrap();
    assert_eq!(serde_json::from_str::<Attachment>(&stored).unwrap(), attachment);
    let bad = stored.replace("\"net1\"", "\"a/b\"");
    assert!(serde_json::from_str::<Attachment>(&bad).is_err());
}

#[test]
fn a_list_inside_another_document_keeps_its_bytes() {
    let text = r#"{"name":"net","plugins":[{"type":"p","n":1.0e2,  "m": 12345678901234567890123}]}"#;
    let stored = serde_json::to_string(&BTreeMap::from([("list", list(text))])).unwrap();
    assert_eq!(stored, format!(r#"{{"list":{text}}}"#));
    let back: BTreeMap<String, NetworkList> = serde_json::from_str(&stored).unwrap();
    assert_eq!(back["list"].raw(), text);
    assert!(serde_json::from_str::<NetworkList>(r#"{"name":"net","plugins":[{"type":"a/b"}]}"#).is_err());
}

/// JSON as text, with numbers and spacing that a value would not keep.
fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?[1-9][0-9]{0,30}",
        "-?[0-9]\\.[0-9]{1,20}([eE][+-]?[0-9]{1,2})?",
        ".{0,8}".prop_map(|text| serde_json::to_string(&text).unwrap()),
        Just("\"\\u003c\\u00e9\\/\"".to_owned()),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" , "))),
            prop::collection::btree_map("[a-z]{1,5}", inner, 0..4).prop_map(|pairs| {
                let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("\"{key}\" : {value}")).collect();
                format!("{{{}}}", pairs.join(","))
            }),
        ]
    })
}

fn pairs(json: &str) -> BTreeMap<String, String> {
    let pairs: BTreeMap<String, Box<RawValue>> = serde_json::from_str(json).unwrap();
    pairs.into_iter().map(|(key, value)| (key, value.get().to_owned())).collect()
}

proptest! {
    #[test]
    fn unknown_keys_reach_the_plugin_byte_for_byte(
        keys in prop::collection::btree_map("[b-z]{1,6}_", any_json(), 0..6),
    ) {
        let members: String = keys.iter().map(|(key, value)| format!(", \"{key}\" :{value}")).collect();
        let text = format!(r#"{{"cniVersion":"1.1.0","name":"net","plugins":[{{"type":"p"{members}}}]}}"#);
        let list = list(&text);
        prop_assert_eq!(list.raw(), &text);
        let stdin = request(Verb::Add, &list, &attachment()).unwrap().stdin;
        let mut sent = pairs(std::str::from_utf8(&stdin).unwrap());
        for (key, value) in [("type", "\"p\""), ("name", "\"net\""), ("cniVersion", "\"1.1.0\"")] {
            prop_assert_eq!(sent.remove(key).unwrap(), value);
        }
        prop_assert_eq!(sent, keys);
    }

    #[test]
    fn a_stored_list_makes_the_same_calls(value in any_json(), version in prop::sample::select(&SpecVersion::ALL)) {
        let text = format!(r#"{{"cniVersions":["{version}"],"name":"net","plugins":[{{"type":"p","v":{value}}}]}}"#);
        let list = list(&text).pinned(version).unwrap();
        let back: NetworkList = serde_json::from_str(&serde_json::to_string(&list).unwrap()).unwrap();
        prop_assert_eq!(back.version(), version);
        let call = |list| request(Verb::Add, list, &attachment()).unwrap();
        let (ours, theirs) = (call(&list), call(&back));
        prop_assert_eq!((ours.stdin, ours.env), (theirs.stdin, theirs.env));
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in ".{0,200}", json in any_json(), version in prop::sample::select(&SpecVersion::ALL)) {
        for text in [&text, &json, &format!(r#"{{"name":"n","plugins":{json}}}"#), &format!(r#"{{"ips":{json},"dns":{json}}}"#)] {
            let _ = NetworkList::parse(text.as_bytes());
            let _ = CniResult::parse(text, version);
        }
    }
}
