//! What a network configuration means: which are refused, and what is read from the others.

use netclaim_cni::NetworkList;
use netclaim_cni::error_chain;
use serde_json::{Value, json};

use crate::compare::{Report, settle, shown};
use crate::differences::Group;
use crate::sides::{Order, Reply, Side, outcome};

/// A name, the text, and the rows of the table that it shows.
type Document = (&'static str, String, &'static [&'static str]);

fn documents() -> Vec<Document> {
    let list = |members: &str| {
        format!(r#"{{"cniVersion":"1.1.0","name":"net","plugins":[{{"type":"alpha"}}]{members}}}"#)
    };
    let version = |members: &str| format!(r#"{{"name":"net",{members}"plugins":[{{"type":"alpha"}}]}}"#);
    let plugin = |members: &str| {
        format!(r#"{{"cniVersion":"1.1.0","name":"net","plugins":[{{"type":"alpha"{members}}}]}}"#)
    };
    let name =
        |name: &str| format!(r#"{{"cniVersion":"1.1.0","name":{name},"plugins":[{{"type":"alpha"}}]}}"#);
    let plugins = |plugins: &str| format!(r#"{{"cniVersion":"1.1.0","name":"net","plugins":{plugins}}}"#);
    vec![
        ("a list of one", list(""), &[]),
        ("unknown members", list(r#","new":{"a":[1,null]}"#), &[]),
        ("disableCheck", list(r#","disableCheck":true"#), &[]),
        ("disableCheck as a text", list(r#","disableCheck":"True""#), &[]),
        ("disableCheck as another text", list(r#","disableCheck":"yes""#), &[]),
        ("disableCheck as a number", list(r#","disableCheck":1"#), &[]),
        ("disableCheck that is null", list(r#","disableCheck":null"#), &[]),
        ("disableGC", list(r#","disableGC":true"#), &[]),
        ("disableGC as a text", list(r#","disableGC":"FALSE""#), &[]),
        ("loadOnlyInlinedPlugins", list(r#","loadOnlyInlinedPlugins":true"#), &[]),
        ("loadOnlyInlinedPlugins as a list", list(r#","loadOnlyInlinedPlugins":[]"#), &[]),
        (
            "loadOnlyInlinedPlugins without plugins",
            r#"{"name":"net","loadOnlyInlinedPlugins":true}"#.into(),
            &[],
        ),
        ("no version", version(""), &[]),
        ("an empty version", version(r#""cniVersion":"","#), &[]),
        ("a version that is null", version(r#""cniVersion":null,"#), &[]),
        ("a version as a number", version(r#""cniVersion":1,"#), &[]),
        ("a newer version", version(r#""cniVersion":"1.2.0","#), &["released-versions"]),
        ("a short version", version(r#""cniVersion":"1.1","#), &["released-versions"]),
        ("a version that is none", version(r#""cniVersion":"newest","#), &["released-versions"]),
        ("several versions", version(r#""cniVersions":["0.3.1","1.0.0","0.4.0"],"#), &[]),
        (
            "several versions and one",
            version(r#""cniVersion":"1.0.0","cniVersions":["0.3.1","0.4.0"],"#),
            &[],
        ),
        (
            "several versions and a lower one",
            version(r#""cniVersion":"0.2.0","cniVersions":["0.3.1","0.4.0"],"#),
            &[],
        ),
        ("newer ones among several", version(r#""cniVersions":["0.4.0","2.0.0","1.5"],"#), &[]),
        ("newer ones only", version(r#""cniVersions":["2.0.0"],"#), &["released-versions"]),
        ("newer ones only, and an old one", version(r#""cniVersion":"0.4.0","cniVersions":["2.0.0"],"#), &[]),
        ("a newer one, and old ones", version(r#""cniVersion":"2.0.0","cniVersions":["0.4.0"],"#), &[]),
        ("none of several", version(r#""cniVersions":[],"#), &["released-versions"]),
        ("none of several, and one", version(r#""cniVersion":"1.0.0","cniVersions":[],"#), &[]),
        ("an empty one among several", version(r#""cniVersions":["", "0.4.0"],"#), &[]),
        ("several that are a text", version(r#""cniVersions":"1.1.0","#), &[]),
        ("several that are null", version(r#""cniVersions":null,"#), &[]),
        ("a number among several", version(r#""cniVersions":[1],"#), &[]),
        ("nonsense among several", version(r#""cniVersions":["0.4.0","x"],"#), &[]),
        ("four parts among several", version(r#""cniVersions":["1.0.0.0"],"#), &[]),
        ("a version between others", version(r#""cniVersions":["0.3.5"],"#), &["released-versions"]),
        ("no name", r#"{"cniVersion":"1.1.0","plugins":[{"type":"alpha"}]}"#.into(), &[]),
        ("a name that is null", name("null"), &[]),
        ("a name as a number", name("7"), &[]),
        ("an empty name", name(r#""""#), &["names-when-read"]),
        ("a name with a slash", name(r#""a/b""#), &["names-when-read"]),
        ("a name with a blank", name(r#""a b""#), &["names-when-read"]),
        ("a name that begins with a dot", name(r#"".a""#), &["names-when-read"]),
        ("a name with every allowed character", name(r#""aZ9._-""#), &[]),
        ("no plugins", r#"{"cniVersion":"1.1.0","name":"net"}"#.into(), &["no-plugins"]),
        ("plugins that are null", plugins("null"), &[]),
        ("plugins as an object", plugins("{}"), &[]),
        ("an empty list of plugins", plugins("[]"), &[]),
        ("a plugin as a text", plugins(r#"["alpha"]"#), &[]),
        ("a plugin that is null", plugins("[null]"), &[]),
        ("a plugin without a type", plugins("[{}]"), &[]),
        ("a plugin with an empty type", plugins(r#"[{"type":""}]"#), &[]),
        ("a plugin with a type as a number", plugins(r#"[{"type":7}]"#), &[]),
        ("a plugin with a path for its type", plugins(r#"[{"type":"../alpha"}]"#), &["names-when-read"]),
        ("the same plugin twice", plugins(r#"[{"type":"alpha","n":1},{"type":"alpha","n":2}]"#), &[]),
        ("a plugin with a name and a version", plugin(r#","name":"other","cniVersion":"0.2.0""#), &[]),
        ("capabilities", plugin(r#","capabilities":{"mac":true,"ips":false,"bandwidth":true}"#), &[]),
        ("capabilities that are null", plugin(r#","capabilities":null"#), &[]),
        ("a capability that is null", plugin(r#","capabilities":{"mac":null}"#), &[]),
        ("a capability as a text", plugin(r#","capabilities":{"mac":"true"}"#), &[]),
        ("capabilities as a list", plugin(r#","capabilities":["mac"]"#), &[]),
        ("an IPAM plugin", plugin(r#","ipam":{"type":"beta"}"#), &[]),
        ("an IPAM plugin without a type", plugin(r#","ipam":{}"#), &[]),
        ("an IPAM plugin with a type that is null", plugin(r#","ipam":{"type":null}"#), &[]),
        ("IPAM that is null", plugin(r#","ipam":null"#), &[]),
        ("IPAM as a text", plugin(r#","ipam":"beta""#), &[]),
        ("an IPAM type as a number", plugin(r#","ipam":{"type":7}"#), &[]),
        ("DNS of the wrong form", plugin(r#","dns":7"#), &["read-by-the-plugin"]),
        ("an old result of the wrong form", plugin(r#","prevResult":7"#), &["read-by-the-plugin"]),
        (
            "valid attachments of the wrong form",
            plugin(r#","cni.dev/valid-attachments":7"#),
            &["read-by-the-plugin"],
        ),
        ("a type in another case", plugins(r#"[{"Type":"alpha"}]"#), &["one-spelling"]),
        ("a type in two cases", plugins(r#"[{"type":"alpha","TYPE":"beta"}]"#), &["one-spelling"]),
        ("capabilities in another case", plugin(r#","Capabilities":{"mac":true}"#), &["one-spelling"]),
        (
            "a name in another case",
            r#"{"cniVersion":"1.1.0","Name":"net","plugins":[{"type":"alpha"}]}"#.into(),
            &[],
        ),
        (
            "a name twice",
            r#"{"cniVersion":"1.1.0","name":"a","name":"net","plugins":[{"type":"alpha"}]}"#.into(),
            &["one-spelling"],
        ),
        ("a member of a plugin twice", plugin(r#","mtu":1,"mtu":2"#), &["one-spelling"]),
        (
            "a single plugin",
            r#"{"cniVersion":"1.0.0","name":"net","type":"alpha"}"#.into(),
            &["single-plugin"],
        ),
        ("a list", "[]".into(), &[]),
        ("null", "null".into(), &[]),
        ("nothing", String::new(), &[]),
        ("text after the object", list("") + "x", &[]),
        ("two objects", list("") + &list(""), &[]),
        ("a comment", list("") + "// x", &[]),
        ("a comma too many", list(","), &[]),
        ("half a surrogate", plugin(r#","x":"\ud800""#), &["strict-json"]),
        ("nested 100 deep", plugin(&format!(r#","x":{}{}"#, "[".repeat(100), "]".repeat(100))), &[]),
        (
            "nested 300 deep",
            plugin(&format!(r#","x":{}{}"#, "[".repeat(300), "]".repeat(300))),
            &["strict-json"],
        ),
    ]
}

#[test]
#[ignore = "needs Go"]
fn configurations_are_read_as_by_libcni() {
    let mut report = Report::new(Group::Documents);
    let mut libcni = Side::libcni();
    for (case, text, explained) in documents() {
        let mut ours = match NetworkList::parse(text.as_bytes()) {
            Ok(list) => json!({"class": "ok", "result": shown(&list)}),
            Err(_) => json!({"class": "bad configuration"}),
        };
        let mut theirs = outcome(&libcni.ask(json!({"Verb": "PARSE", "List": text})));
        settle(&mut ours);
        settle(&mut theirs);
        if theirs["class"] == "ok" && theirs["result"]["version"].is_null() {
            // In the table as a difference that is everywhere.
            theirs["result"]["version"] = "0.1.0".into();
        }
        report.compare(case, explained, &ours, &theirs);
    }
    report.finish();
}

/// Calls in full, without taking away the differences that are everywhere.
#[test]
#[ignore = "needs Go"]
fn differences_in_every_call_are_in_the_table() {
    let mut report = Report::new(Group::Everywhere);
    let plugin = |members: Value| {
        let mut plugin = json!({"type": "alpha"});
        plugin.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin, {"type": "beta"}]})
    };
    let mut no_version = plugin(json!({}));
    no_version.as_object_mut().unwrap().remove("cniVersion");
    let cases: [(&str, Value, &str, &[&str]); 8] = [
        ("nothing special", plugin(json!({})), r#"{"cniVersion":"1.1.0"}"#, &[]),
        ("capabilities", plugin(json!({"capabilities": {"mac": true}})), "{}", &["capabilities-stay"]),
        ("no version", no_version, "{}", &["version-is-said", "results-stay"]),
        ("a big number", plugin(json!({"n": 9_007_199_254_740_993_u64})), "{}", &["numbers-stay"]),
        (
            "runtimeConfig in the configuration",
            plugin(json!({"runtimeConfig": {"mac": "x"}})),
            "{}",
            &["reserved-keys"],
        ),
        ("prevResult in the configuration", plugin(json!({"prevResult": {}})), "{}", &["reserved-keys"]),
        (
            "valid attachments in the configuration",
            plugin(json!({"cni.dev/valid-attachments": []})),
            "{}",
            &["reserved-keys"],
        ),
        (
            "empty members of a result",
            plugin(json!({})),
            r#"{"cniVersion":"1.1.0","ips":[],"dns":{"domain":""},"interfaces":[{"name":"x","mac":"","sandbox":""}]}"#,
            &["results-stay"],
        ),
    ];
    for (case, list, reply, explained) in cases {
        let (ours, libcni) = Side::both(|mut side| {
            for name in ["alpha", "beta"] {
                side.record(name);
                side.reply(name, "ADD", &Reply::new(0, reply));
            }
            side.run(&Order::new("ADD", &list))
        });
        report.compare(case, explained, &ours, &libcni);
    }

    let (ours, libcni) = Side::both(|mut side| {
        side.record("alpha");
        let alpha = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "alpha"}]});
        side.reply("alpha", "ADD", &Reply::new(0, r#"{"cniVersion":"1.1.0"}"#));
        side.run(&Order { is_bare: true, ..Order::new("ADD", &alpha) })
    });
    report.compare("no arguments", &["ignore-unknown"], &ours, &libcni);

    let (ours, libcni) = Side::both(|mut side| {
        side.record("bandwidth");
        side.reply("bandwidth", "ADD", &Reply::new(0, "{}"));
        side.run(&Order::new(
            "ADD",
            &json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "bandwidth"}]}),
        ))
    });
    report.compare("bandwidth", &["bandwidth-names"], &ours, &libcni);

    let (ours, libcni) = Side::both(|mut side| {
        side.record("alpha");
        side.outcome(&Order::new(
            "STATUS",
            &json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "alpha"}]}),
        ));
        let env = side.calls().remove(0).env;
        json!({"env": env.keys().filter(|key| !key.starts_with("CNI_")).collect::<Vec<_>>()})
    });
    report.compare("the environment", &["clean-environment"], &ours, &libcni);
    report.finish();
}

#[test]
fn an_error_says_where_a_configuration_is_wrong() {
    // What both refuse is refused by this runtime with a place.
    for (case, text, _) in documents() {
        if let Err(error) = NetworkList::parse(text.as_bytes()) {
            assert!(error_chain(&error).contains("invalid at `/"), "{case}: {error}");
        }
    }
}
