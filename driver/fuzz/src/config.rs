//! Network configurations: what is accepted reaches the plugins as it was written, in every call.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use netclaim_api::template;
use netclaim_cni::validate::{Finding, Severity, validate};
use netclaim_cni::{
    Attachment, CniResult, NetworkList, PluginConf, Request, SpecVersion, ValidAttachment, Verb,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};

type Object = BTreeMap<String, Box<RawValue>>;

pub fn config(data: &[u8]) {
    let findings = validate(data);
    let template = template::validate(data);
    lead_somewhere(data, &findings);
    lead_somewhere(data, &template);
    if !String::from_utf8_lossy(data).contains("${") && !data.contains(&b'\\') {
        assert_eq!(findings, template, "without places a template is a configuration");
    }
    match NetworkList::parse(data) {
        Ok(list) => accepted(&list),
        Err(error) => assert!(
            findings.iter().any(|finding| finding.severity == Severity::Error),
            "parse refuses it, validate does not: {}",
            netclaim_cni::error_chain(&error)
        ),
    }
}

fn lead_somewhere(data: &[u8], findings: &[Finding]) {
    // serde_json knows only the last of repeated keys.
    let repeated = findings.iter().any(|finding| finding.problem.contains("stands more than once"));
    if let (Ok(document), false) = (serde_json::from_slice::<Value>(data), repeated) {
        for finding in findings {
            assert!(document.pointer(&finding.pointer).is_some(), "leads nowhere: {finding}");
        }
    }
}

fn accepted(list: &NetworkList) {
    assert!(list.versions().contains(&list.version()));
    assert!(list.versions().iter().all(|version| *version <= list.version()));
    same(&NetworkList::parse(list.raw().as_bytes()).expect("its own text"), list);
    let stored = serde_json::to_vec(list).expect("can be stored");
    same(&serde_json::from_slice(&stored).expect("can be read back"), list);
    let types: Vec<_> = list.plugin_types().collect();
    assert_eq!(types.len(), types.iter().collect::<BTreeSet<_>>().len());

    for version in SpecVersion::ALL {
        let pinned = list.pinned(version).expect("a version can be chosen");
        assert_eq!((pinned.version(), pinned.versions().len()), (version, 1));
        let stored = NetworkList::parse(pinned.raw().as_bytes()).expect("the pinned text");
        assert_eq!(stored.version(), version);
        assert_eq!(stored.versions().len(), 1);
        let others = |list: &NetworkList| {
            let mut object: Object = serde_json::from_str(list.raw()).expect("an object");
            object.retain(|key, _| !matches!(key.as_str(), "cniVersion" | "cniVersions"));
            object.into_iter().map(|(key, value)| (key, value.get().to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(others(&pinned), others(list), "pinning changes nothing but versions");
    }
    for plugin in list.plugins() {
        calls(list, plugin);
    }
}

fn same(one: &NetworkList, other: &NetworkList) {
    assert_eq!(one.raw(), other.raw());
    assert_eq!(one.name(), other.name());
    assert_eq!(one.versions(), other.versions());
    assert_eq!((one.disable_check(), one.disable_gc()), (other.disable_check(), other.disable_gc()));
    let plugins = |list: &NetworkList| {
        let show = |plugin: &PluginConf| {
            (plugin.plugin_type().clone(), plugin.ipam().cloned(), plugin.capabilities().clone())
        };
        list.plugins().map(show).collect::<Vec<_>>()
    };
    assert_eq!(plugins(one), plugins(other));
}

fn calls(list: &NetworkList, plugin: &PluginConf) {
    let path = OsStr::new("/opt/cni/bin");
    let mut attachment = Attachment::new(
        "c1".parse().expect("an id"),
        Some("/run/netns/a".into()),
        "net1".parse().expect("a name"),
    );
    let first = Request::attachment(Verb::Add, list, plugin, &attachment, None, path).expect("ADD");
    assert!(!handed_over(list, plugin, &first, &[]).contains_key("runtimeConfig"));

    attachment.args.push(("K8S_POD_NAME".into(), "p".into()));
    attachment.capability_args.insert("ips", json!(["10.0.0.1/24"]));
    for capability in plugin.capabilities() {
        attachment.capability_args.insert(capability.clone(), json!({"n": 1}));
    }
    let prev = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/24"}],"x":18446744073709551616}"#;
    let prev = CniResult::parse(prev, SpecVersion::V1_0_0).expect("a result");
    for verb in [Verb::Add, Verb::Check, Verb::Del] {
        let request =
            Request::attachment(verb, list, plugin, &attachment, Some(&prev), path).expect("a call");
        let stdin = handed_over(list, plugin, &request, &["runtimeConfig", "prevResult"]);
        let sent = stdin.get("prevResult").map(|prev| CniResult::parse(prev.get(), SpecVersion::V0_1_0));
        match sent {
            Some(sent) => assert_eq!(sent.expect("a result").version(), list.version()),
            None => assert!(verb == Verb::Del && !list.version().has_check()),
        }
        let declared: Vec<&String> = plugin.capabilities().iter().collect();
        let given = stdin.get("runtimeConfig").map(|given| serde_json::from_str::<Object>(given.get()));
        let given = given.transpose().expect("an object").unwrap_or_default();
        assert_eq!(
            given.keys().collect::<Vec<_>>(),
            declared,
            "capabilities that are switched on, no others"
        );
    }
    attachment.netns = None;
    Request::attachment(Verb::Del, list, plugin, &attachment, None, path).expect("DEL without a namespace");
    assert!(Request::attachment(Verb::Add, list, plugin, &attachment, None, path).is_err());

    handed_over(list, plugin, &Request::status(list, plugin, path).expect("STATUS"), &[]);
    let valid = ValidAttachment { container_id: attachment.container_id, if_name: attachment.if_name };
    let gc = Request::gc(list, plugin, &[valid], path).expect("GC");
    let spellings = ["cni.dev/valid-attachments", "cni.dev/attachments"];
    let stdin = handed_over(list, plugin, &gc, &spellings);
    for key in spellings {
        assert_eq!(stdin[key].get(), r#"[{"containerID":"c1","ifname":"net1"}]"#);
    }
}

/// The plugin gets one object: its own configuration byte for byte, the list's name and version, and of what
/// is the runtime's to write no more than `written`.
fn handed_over(list: &NetworkList, plugin: &PluginConf, request: &Request, written: &[&str]) -> Object {
    for (key, value) in &request.env {
        assert!(key.starts_with("CNI_") && !value.as_encoded_bytes().contains(&0));
    }
    let stdin: Object = serde_json::from_slice(&request.stdin).expect("one JSON object");
    let string = |key: &str| serde_json::from_str::<String>(stdin[key].get()).expect("a string");
    assert_eq!(string("cniVersion"), list.version().as_str());
    // The one plugin that is given another name, for its device's sake.
    let of_attachment = !matches!(request.verb, Verb::Status | Verb::Gc);
    let suffix = if plugin.plugin_type().as_str() == "bandwidth" && of_attachment { ".net1" } else { "" };
    assert_eq!(string("name"), format!("{}{suffix}", list.name()));
    for (key, value) in &stdin {
        // As Go reads keys, whatever their case.
        let folded = key.to_ascii_lowercase();
        let reserved = ["runtimeconfig", "args", "prevresult", "capabilities"].contains(&folded.as_str())
            || folded.starts_with("cni.dev/");
        assert!(!reserved || written.contains(&key.as_str()), "{key} in {}", request.verb);
        if !reserved && !matches!(key.as_str(), "cniVersion" | "name") {
            assert_eq!(
                Some(value.get()),
                plugin.get(key).map(RawValue::get),
                "{key} is not what was written"
            );
        }
    }
    stdin
}
