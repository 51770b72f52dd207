//! The test plugins of the CNI project: `noop`, which does what a file tells it, and `sleep`. The recorder is
//! before them.
//!
//! Not `debug`, a module of its own that was never released: it notes what it gets and hands on what it got,
//! as the recorder and `noop` do.

use std::fs;
use std::time::Duration;

use netclaim_cni::{NetworkList, SpecVersion};
use serde_json::{Map, Value, json};

use crate::compare::{Report, settle};
use crate::differences::Group;
use crate::hosts::files;
use crate::sides::{Order, Reply, Side, outcome, outcome_of};
use crate::tools::tool;

const RESULT: &str = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"net1","sandbox":"x"}],"ips":[{"address":"10.1.2.3/24","interface":0}]}"#;

struct Case {
    name: String,
    list: Value,
    /// What noop does, per plugin of the list.
    told: Vec<Value>,
    steps: Vec<Step>,
    explained: &'static [&'static str],
}

type Change = Box<dyn Fn(&mut Order) + Send + Sync>;

enum Step {
    Do(&'static str),
    With(&'static str, Change),
    /// Something happens to the side's files.
    Meanwhile(fn(&Side)),
    /// noop number so is told something else.
    Tell(usize, Value),
    /// From now on the network is another.
    Become(Value),
}

fn with(verb: &'static str, change: impl Fn(&mut Order) + Send + Sync + 'static) -> Step {
    Step::With(verb, Box::new(change))
}

fn noops(version: &str, plugins: &[Value]) -> Value {
    let plugins: Vec<_> = plugins
        .iter()
        .enumerate()
        .map(|(index, members)| {
            let mut plugin = json!({"type": "noop", "debugFile": format!("<root>/ipam/{index}")});
            plugin.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
            plugin
        })
        .collect();
    json!({"cniVersion": version, "name": "net", "plugins": plugins})
}

fn case(name: &str, list: Value, told: Vec<Value>, steps: Vec<Step>) -> Case {
    Case { name: name.into(), list, told, steps, explained: &[] }
}

fn all() -> Vec<Step> {
    ["STATUS", "ADD", "CHECK", "GC", "DEL"].map(Step::Do).into()
}

fn verbs() -> Vec<Case> {
    use Step::{Become, Do, Meanwhile, Tell};
    let one = || noops("1.1.0", &[json!({})]);
    let three = || noops("1.1.0", &[json!({"n": 1}), json!({"n": 2}), json!({"n": 3})]);
    let result = || json!({"ReportResult": RESULT});
    let pass = || json!({"ReportResult": "PASSTHROUGH"});
    let dns = || json!({"ReportResult": "INJECT-DNS"});
    let fails = |code: u64| json!({"ReportError": "told to fail", "ReportErrorCode": code});
    let flag = |key: &str, value: Value| {
        let mut list = one();
        list[key] = value;
        list
    };
    let stale = || {
        vec![
            with("ADD", |order| order.container = "c1".into()),
            with("ADD", |order| order.container = "c2".into()),
            with("ADD", |order| order.if_name = "net2".into()),
            with("GC", |order| order.valid = vec![("c2".into(), "net1".into())]),
            with("GC", |_| {}),
        ]
    };
    let mut cases = vec![
        case("a life", one(), vec![result()], all()),
        case("a chain", three(), vec![result(), pass(), dns()], all()),
        case(
            "a chain in 0.4.0",
            noops("0.4.0", &[json!({}), json!({})]),
            vec![
                json!({"ReportResult": r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.2.3/24"}]}"#}),
                dns(),
            ],
            all(),
        ),
        case("an error in the first plugin", three(), vec![fails(123), pass(), pass()], all()),
        case("an error in the second plugin", three(), vec![result(), fails(11), pass()], all()),
        case("an error in the last plugin", three(), vec![result(), pass(), fails(100)], all()),
        case("an error without a code", one(), vec![fails(0)], all()),
        case(
            "an error, and words on standard error",
            one(),
            vec![json!({"ReportError": "bad", "ReportErrorCode": 7, "ReportStderr": "very bad"})],
            all(),
        ),
        case(
            "words on standard error",
            one(),
            vec![json!({"ReportResult": RESULT, "ReportStderr": "all is well"})],
            all(),
        ),
        case(
            "words on standard error, and an exit status",
            one(),
            vec![json!({"ReportStderr": "gone", "ExitWithCode": 3})],
            all(),
        ),
        case(
            "a result, and an exit status",
            one(),
            vec![json!({"ReportResult": RESULT, "ExitWithCode": 3})],
            all(),
        ),
        case(
            "a result of an older version",
            noops("0.3.1", &[json!({}), json!({})]),
            vec![json!({"ReportResult": r#"{"ips":[{"version":"4","address":"10.1.2.3/24"}]}"#}), pass()],
            all(),
        ),
        case("an empty result", one(), vec![json!({"ReportResult": "{}"})], all()),
        case("STATUS 50", one(), vec![fails(50)], vec![Do("STATUS")]),
        case("STATUS 51", one(), vec![fails(51)], vec![Do("STATUS")]),
        case("STATUS 999", one(), vec![fails(999)], vec![Do("STATUS")]),
        case(
            "STATUS 50 of the second of three",
            three(),
            vec![result(), fails(50), fails(51)],
            vec![Do("STATUS")],
        ),
        case(
            "DEL that fails in the middle",
            three(),
            vec![result(), pass(), pass()],
            vec![Do("ADD"), Tell(1, fails(7)), Do("DEL"), Tell(1, pass()), Do("DEL")],
        ),
        case("DEL without ADD", three(), vec![result(), pass(), pass()], vec![Do("DEL")]),
        case("DEL twice", three(), vec![result(), pass(), pass()], vec![Do("ADD"), Do("DEL"), Do("DEL")]),
        case(
            "DEL after the network became newer",
            noops("0.4.0", &[json!({})]),
            vec![
                json!({"ReportResult": r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.2.3/24"}]}"#}),
            ],
            vec![Do("ADD"), Become(one()), Do("CHECK"), Do("DEL")],
        ),
        case(
            "DEL after the network became older",
            one(),
            vec![result()],
            vec![Do("ADD"), Become(noops("0.3.1", &[json!({})])), Do("DEL")],
        ),
        case(
            "DEL after the network got another plugin",
            one(),
            vec![result(), pass()],
            vec![Do("ADD"), Become(noops("1.1.0", &[json!({}), json!({})])), Do("CHECK"), Do("DEL")],
        ),
        case(
            "DEL with a damaged cache",
            one(),
            vec![result()],
            vec![
                Do("ADD"),
                Meanwhile(|side| fs::write(side.sub("cache/results/net-c1-net1"), "{").unwrap()),
                Do("DEL"),
            ],
        ),
        case(
            "DEL with an empty cache file",
            one(),
            vec![result()],
            vec![
                Do("ADD"),
                Meanwhile(|side| fs::write(side.sub("cache/results/net-c1-net1"), "").unwrap()),
                Do("DEL"),
            ],
        ),
        case(
            "DEL with the cache gone",
            one(),
            vec![result()],
            vec![
                Do("ADD"),
                Meanwhile(|side| fs::remove_dir_all(side.sub("cache/results")).unwrap()),
                Do("DEL"),
            ],
        ),
        Case {
            explained: &["bare-results"],
            ..case(
                "DEL with a bare result for a cache",
                one(),
                vec![result()],
                vec![
                    Do("ADD"),
                    Meanwhile(|side| fs::write(side.sub("cache/results/net-c1-net1"), RESULT).unwrap()),
                    Do("DEL"),
                ],
            )
        },
        Case {
            explained: &["bare-results"],
            ..case(
                "DEL with the cache of another kind",
                one(),
                vec![result()],
                vec![
                    Do("ADD"),
                    Meanwhile(|side| {
                        fs::write(side.sub("cache/results/net-c1-net1"), r#"{"kind":"cniCacheV9"}"#).unwrap()
                    }),
                    Do("DEL"),
                ],
            )
        },
        case(
            "CHECK that fails in the second plugin",
            three(),
            vec![result(), pass(), pass()],
            vec![Do("ADD"), Tell(1, fails(100)), Do("CHECK")],
        ),
        case("CHECK after an error", one(), vec![result()], vec![Do("ADD"), Do("CHECK"), Do("CHECK")]),
        case("CHECK in 0.3.1", noops("0.3.1", &[json!({})]), vec![json!({"ReportResult": "{}"})], all()),
        case(
            "CHECK without a version",
            {
                let mut list = one();
                list.as_object_mut().unwrap().remove("cniVersion");
                list
            },
            vec![json!({"ReportResult": r#"{"ip4":{"ip":"10.1.2.3/24"}}"#})],
            all(),
        ),
        case("GC of stale attachments", one(), vec![result()], stale()),
        case("GC of stale attachments in a chain", three(), vec![result(), pass(), pass()], stale()),
        case(
            "GC of stale attachments in 1.0.0",
            noops("1.0.0", &[json!({})]),
            vec![json!({"ReportResult": "{}"})],
            stale(),
        ),
        case(
            "GC of stale attachments, switched off",
            flag("disableGC", json!(true)),
            vec![result()],
            stale(),
        ),
        case(
            "GC that fails everywhere",
            three(),
            vec![fails(1000), fails(1001), fails(1002)],
            vec![Do("GC")],
        ),
        case(
            "GC that fails in the second plugin",
            three(),
            vec![result(), fails(1001), pass()],
            vec![Do("GC")],
        ),
        case("GC whose DEL fails", one(), vec![result()], vec![Do("ADD"), Tell(0, fails(99)), Do("GC")]),
        case(
            "GC of another network",
            one(),
            vec![result()],
            vec![
                Do("ADD"),
                Become(json!({"cniVersion": "1.1.0", "name": "other", "plugins": [{"type": "noop"}]})),
                Do("GC"),
            ],
        ),
        Case {
            explained: &["check-without-result"],
            ..case("CHECK without ADD", one(), vec![result()], vec![with("CHECK", |_| {})])
        },
        Case {
            explained: &["check-without-result"],
            ..case(
                "CHECK with a damaged cache",
                one(),
                vec![result()],
                vec![
                    Do("ADD"),
                    Meanwhile(|side| fs::write(side.sub("cache/results/net-c1-net1"), "{").unwrap()),
                    with("CHECK", |_| {}),
                ],
            )
        },
    ];
    for value in [json!(true), json!("true"), json!("FALSE"), json!(false)] {
        cases.push(case(
            &format!("disableCheck {value}"),
            flag("disableCheck", value.clone()),
            vec![result()],
            all(),
        ));
        cases.push(case(&format!("disableGC {value}"), flag("disableGC", value), vec![result()], all()));
    }
    for version in SpecVersion::ALL {
        let ip = match version.as_str() {
            "0.1.0" | "0.2.0" => r#"{"ip4":{"ip":"10.1.2.3/24"}}"#,
            "1.0.0" | "1.1.0" => r#"{"ips":[{"address":"10.1.2.3/24"}]}"#,
            _ => r#"{"ips":[{"version":"4","address":"10.1.2.3/24"}]}"#,
        };
        let list = noops(version.as_str(), &[json!({}), json!({})]);
        cases.push(case(
            &format!("a chain in {version}, with a result that does not say so"),
            list,
            vec![json!({"ReportResult": ip}), pass()],
            all(),
        ));
        let mut list = noops("0.1.0", &[json!({})]);
        list["cniVersions"] = json!(["0.1.0", version, "1.7.0"]);
        cases.push(case(&format!("{version} among several"), list, vec![json!({"ReportResult": ip})], all()));
    }
    cases
}

fn arguments() -> Vec<Case> {
    let result = || vec![json!({"ReportResult": RESULT}), json!({"ReportResult": "PASSTHROUGH"})];
    let able = |first: Value, second: Value| {
        noops("1.1.0", &[json!({"capabilities": first}), json!({"capabilities": second})])
    };
    let caps =
        |values: Value| move |order: &mut Order| order.capability_args = values.as_object().unwrap().clone();
    let mapping = || json!({"portMappings": [{"hostPort": 1, "containerPort": 2, "protocol": "tcp"}], "mac": "02:00:00:00:00:01", "deep": {"a": [1, 2.5, null, {"b": "<&>"}]}});
    let each = |values: Value| {
        ["ADD", "CHECK", "GC", "STATUS", "DEL"]
            .map(|verb| with(verb, caps(values.clone())))
            .into_iter()
            .collect::<Vec<_>>()
    };
    let args = |pairs: &'static [(&'static str, &'static str)]| {
        move |order: &mut Order| {
            order.args = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
        }
    };
    let named = |verb, container: &'static str, if_name: &'static str| {
        with(verb, move |order: &mut Order| {
            order.container = container.into();
            order.if_name = if_name.into();
        })
    };
    let one = || noops("1.1.0", &[json!({})]);
    let mut cases = vec![
        case(
            "capabilities of the first plugin",
            able(json!({"mac": true}), json!({})),
            result(),
            each(mapping()),
        ),
        case(
            "capabilities of both plugins",
            able(json!({"mac": true, "deep": true}), json!({"portMappings": true, "mac": true})),
            result(),
            each(mapping()),
        ),
        case(
            "capabilities that are off",
            able(json!({"mac": false}), json!({"portMappings": false})),
            result(),
            each(mapping()),
        ),
        case(
            "capabilities that are not requested",
            able(json!({"mac": true}), json!({"ips": true})),
            result(),
            each(json!({})),
        ),
        case("capabilities that no plugin has", able(json!({}), json!({})), result(), each(mapping())),
        case(
            "capabilities in another case",
            able(json!({"MAC": true}), json!({"Mac": true})),
            result(),
            each(mapping()),
        ),
        case(
            "empty capability arguments",
            able(json!({"mac": true, "ips": true}), json!({})),
            result(),
            each(json!({"mac": "", "ips": []})),
        ),
        case(
            "a capability argument that is null",
            able(json!({"mac": true}), json!({})),
            result(),
            each(json!({"mac": null})),
        ),
        case(
            "arguments",
            one(),
            result(),
            ["ADD", "CHECK", "DEL"]
                .map(|verb| with(verb, args(&[("A", "1"), ("K8S_POD_NAME", "p-0.x"), ("B", "")])))
                .into(),
        ),
        case("an argument twice", one(), result(), vec![with("ADD", args(&[("A", "1"), ("A", "2")]))]),
        case(
            "an argument with blanks and quotes",
            one(),
            result(),
            vec![with("ADD", args(&[("A", "x 'y' \"z\" $HOME")]))],
        ),
        case(
            "no namespace for DEL",
            one(),
            result(),
            vec![Step::Do("ADD"), with("DEL", |order| order.netns = None)],
        ),
        case(
            "a long container ID",
            one(),
            result(),
            vec![
                with("ADD", |order| order.container = "c".repeat(200)),
                with("DEL", |order| order.container = "c".repeat(200)),
            ],
        ),
        case(
            "an interface name of 15 bytes",
            one(),
            result(),
            vec![named("ADD", "c1", "abcdefghijklmno"), named("DEL", "c1", "abcdefghijklmno")],
        ),
    ];
    let unreadable = |name, pairs| Case {
        explained: &["readable-arguments"],
        ..case(name, one(), result(), vec![with("ADD", args(pairs))])
    };
    cases.push(unreadable("an argument with a semicolon", &[("A", "1;B=2")]));
    cases.push(unreadable("an argument with an equals sign", &[("A", "1=2")]));
    cases.push(unreadable("an argument without a key", &[("", "1")]));
    cases.push(Case {
        explained: &["netns-for-add"],
        ..case("no namespace for ADD", one(), result(), vec![with("ADD", |order| order.netns = None)])
    });
    for (container, if_name) in [
        ("", "net1"),
        ("-c", "net1"),
        ("c 1", "net1"),
        ("c/1", "net1"),
        ("c1", ""),
        ("c1", "."),
        ("c1", ".."),
        ("c1", "a/b"),
        ("c1", "a:b"),
        ("c1", "a b"),
        ("c1", "abcdefghijklmnop"),
    ] {
        for verb in ["ADD", "DEL"] {
            let name = format!("{verb} of container {container:?} and interface {if_name:?}");
            cases.push(Case {
                explained: &["names-for-every-verb"],
                ..case(&name, one(), result(), vec![named(verb, container, if_name)])
            });
        }
    }
    for if_name in ["eth%d", "-e", "e$x"] {
        cases.push(Case {
            explained: &["names-for-every-verb"],
            ..case(
                &format!("ADD of interface {if_name:?}"),
                one(),
                result(),
                vec![named("ADD", "c1", if_name)],
            )
        });
    }
    cases
}

fn observe(mut side: Side, case: &Case) -> Value {
    for plugin in ["noop", "sleep"] {
        side.record_before(plugin, &tool(plugin));
    }
    let tell = |side: &Side, index: usize, what: &Value| {
        fs::write(side.sub("ipam").join(index.to_string()), what.to_string()).unwrap();
    };
    for (index, what) in case.told.iter().enumerate() {
        tell(&side, index, what);
    }
    let mut list = case.list.clone();
    let (mut seen, mut attached) = (Vec::new(), false);
    for step in &case.steps {
        let order = |verb, list: &Value| Order {
            valid: vec![("c1".into(), "net1".into())],
            ..Order::new(verb, list)
        };
        let order = match step {
            // There is a case of its own for CHECK of nothing.
            Step::Do("CHECK") if !attached => continue,
            Step::Do(verb) => order(verb, &list),
            Step::With(verb, change) => {
                let mut order = Order { valid: Vec::new(), ..order(verb, &list) };
                change(&mut order);
                order
            }
            Step::Meanwhile(change) => {
                change(&side);
                continue;
            }
            Step::Tell(index, what) => {
                tell(&side, *index, what);
                continue;
            }
            Step::Become(other) => {
                list = other.clone();
                continue;
            }
        };
        let came = side.run(&order);
        attached |= order.verb == "ADD" && came["class"] == "ok";
        seen.push(came);
    }
    let mut told = files(&side.sub("ipam"));
    for told in told.as_object_mut().unwrap().values_mut() {
        // What noop noted itself, less the input, which the recorder has, too.
        let mut noted: Map<String, Value> = serde_json::from_str(told.as_str().unwrap()).unwrap();
        if let Some(args) = noted.get_mut("CmdArgs").and_then(Value::as_object_mut) {
            args.remove("StdinData");
        }
        *told = noted.into();
    }
    seen.push(side.without_root(&json!({"told": told})));
    let mut seen = Value::from(seen);
    settle(&mut seen);
    seen
}

#[test]
#[ignore = "needs Go"]
fn test_plugins_behave_as_on_libcni() {
    let mut report = Report::new(Group::TestPlugins);
    for case in verbs().into_iter().chain(arguments()) {
        let (ours, libcni) = Side::both(|side| observe(side, &case));
        report.compare(&case.name, case.explained, &ours, &libcni);
    }
    versions(&mut report);
    slow(&mut report);
    report.finish();
}

fn versions(report: &mut Report) {
    let v = |name: &'static str, exit, stdout: &'static str, explained: &'static [&'static str]| {
        (name, exit, stdout, explained)
    };
    for (name, exit, stdout, explained) in [
        v("VERSION of two", 0, r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}"#, &[]),
        v(
            "VERSION of all",
            0,
            r#"{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#,
            &[],
        ),
        v(
            "VERSION of a newer plugin",
            0,
            r#"{"cniVersion":"2.0.0","supportedVersions":["1.0.0","2.0.0"]}"#,
            &["known-versions"],
        ),
        v("VERSION of an old plugin", 0, r#"{"cniVersion":"0.2.0"}"#, &[]),
        v("VERSION with an empty list", 0, r#"{"cniVersion":"1.0.0","supportedVersions":[]}"#, &[]),
        v("VERSION without a list", 0, r#"{"cniVersion":"1.0.0"}"#, &[]),
        v("VERSION without a version", 0, r#"{"supportedVersions":["1.0.0"]}"#, &[]),
        v("VERSION with an empty version", 0, r#"{"cniVersion":"","supportedVersions":["1.0.0"]}"#, &[]),
        v(
            "VERSION with a text for its list",
            0,
            r#"{"cniVersion":"1.0.0","supportedVersions":"1.0.0"}"#,
            &[],
        ),
        v("VERSION with nothing", 0, "", &[]),
        v("VERSION with garbage", 0, "v1", &[]),
        v("VERSION with two objects", 0, "{}{}", &[]),
        v("VERSION with an error", 1, r#"{"code":7,"msg":"bad"}"#, &[]),
        v("VERSION that is not known", 1, r#"{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}"#, &[]),
        v("VERSION that fails silently", 1, "", &[]),
    ] {
        let (ours, libcni) = Side::both(|mut side| {
            side.record("alpha");
            side.reply("alpha", "VERSION", &Reply::new(exit, stdout));
            let mut seen = if side.is_ours() {
                let versions =
                    side.with_runtime(async |runtime| runtime.versions(&"alpha".parse().unwrap()).await);
                outcome_of(versions.map(|versions| json!(versions)))
            } else {
                outcome(&side.ask(json!({"Verb": "VERSION", "Plugin": "alpha"})))
            };
            let call = side.calls().remove(0);
            seen["stdin"] = call.stdin();
            seen["env"] =
                json!(call.env.iter().filter(|(key, _)| key.starts_with("CNI_")).collect::<Vec<_>>());
            seen
        });
        report.compare(name, explained, &ours, &libcni);
    }
    let plugins = |plugins: Value| json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins});
    let mut several = plugins(json!([{"type": "alpha"}, {"type": "old"}]));
    several["cniVersions"] = json!(["0.4.0", "1.0.0"]);
    let cases: [(&str, Value, &[&str]); 9] = [
        (
            "a network whose plugins fit",
            plugins(
                json!([{"type": "alpha", "capabilities": {"mac": true, "ips": false}}, {"type": "noop", "capabilities": {"bandwidth": true}}]),
            ),
            &[],
        ),
        (
            "a network with a plugin that is too old",
            plugins(json!([{"type": "alpha"}, {"type": "old"}])),
            &[],
        ),
        (
            "a network with a plugin that is too new",
            {
                let mut list = plugins(json!([{"type": "new"}]));
                list["cniVersion"] = "0.3.1".into();
                list
            },
            &[],
        ),
        (
            "a network with a plugin that is missing",
            plugins(json!([{"type": "alpha"}, {"type": "missing"}])),
            &[],
        ),
        ("a network without a version", json!({"name": "net", "plugins": [{"type": "noop"}]}), &[]),
        (
            "a network in 0.1.0",
            json!({"cniVersion": "0.1.0", "name": "net", "plugins": [{"type": "old"}]}),
            &[],
        ),
        ("a network of several versions", several, &["chooses-a-version"]),
        (
            "a network whose IPAM plugin is missing",
            plugins(json!([{"type": "alpha", "ipam": {"type": "missing"}}])),
            &["ipam-is-a-plugin"],
        ),
        (
            "a network whose IPAM plugin is too old",
            plugins(json!([{"type": "alpha", "ipam": {"type": "old"}}])),
            &["ipam-is-a-plugin"],
        ),
    ];
    for (name, list, explained) in cases {
        let (ours, libcni) = Side::both(|mut side| {
            side.record_before("noop", &tool("noop"));
            for (plugin, versions) in [
                ("alpha", json!(["0.4.0", "1.0.0"])),
                ("old", json!(["0.1.0", "0.4.0"])),
                ("new", json!(["1.0.0", "1.1.0"])),
            ] {
                side.record(plugin);
                let answer = json!({"cniVersion": "1.0.0", "supportedVersions": versions});
                side.reply(plugin, "VERSION", &Reply::new(0, answer.to_string()));
            }
            if side.is_ours() {
                let list = NetworkList::parse(list.to_string().as_bytes()).unwrap();
                side.with_runtime(async |runtime| {
                    outcome_of(match runtime.find_all(&list) {
                        Ok(()) => runtime.negotiate(&list).await.map(|list| {
                            let mut all: Vec<_> =
                                list.plugins().flat_map(|plugin| plugin.capabilities()).collect();
                            all.sort();
                            json!(all)
                        }),
                        Err(error) => Err(error),
                    })
                })
            } else {
                let mut seen = outcome(&side.ask(json!({"Verb": "VALIDATE", "List": list.to_string()})));
                if let Some(capabilities) = seen["result"].as_array_mut() {
                    capabilities.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
                }
                seen
            }
        });
        report.compare(name, explained, &ours, &libcni);
    }
}

/// `sleep` takes a minute for whatever it is asked.
fn slow(report: &mut Report) {
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "sleep"}]});
    for verb in ["ADD", "DEL", "STATUS", "GC"] {
        let (ours, libcni) = Side::both(|mut side| {
            side.record_before("sleep", &tool("sleep"));
            side.run(&Order { timeout: Duration::from_millis(700), ..Order::new(verb, &list) })
        });
        report.compare(&format!("{verb} of a plugin that sleeps"), &[], &ours, &libcni);
    }
}
