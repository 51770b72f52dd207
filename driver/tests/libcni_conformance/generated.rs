//! Networks of up to four plugins that are made at random, as are the answers of the plugins.

use std::sync::Mutex;

use netclaim_cni::SpecVersion;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::compare::{Report, diff, settle};
use crate::differences::Group;
use crate::random::{any_result, any_value, runner};
use crate::sides::{Order, Reply, Side};

const TYPES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];
const VERBS: [&str; 5] = ["ADD", "CHECK", "STATUS", "DEL", "GC"];

#[derive(Clone, Debug)]
struct Case {
    list: Value,
    args: Vec<(String, String)>,
    capability_args: Map<String, Value>,
    /// Plugin and verb, exit status and output.
    replies: Vec<(&'static str, &'static str, i32, String)>,
}

/// All verbs in turn; what came of each.
fn observe(side: &mut Side, case: &Case) -> Value {
    side.clear();
    for (plugin, verb, exit, stdout) in &case.replies {
        side.reply(plugin, verb, &Reply::new(*exit, stdout.as_bytes()));
    }
    let mut added = false;
    VERBS
        .into_iter()
        .map(|verb| {
            let order = Order {
                args: case.args.clone(),
                capability_args: case.capability_args.clone(),
                valid: vec![("c1".into(), "net1".into()), ("c2".into(), "eth1".into())],
                ..Order::new(verb, &case.list)
            };
            // What libcni does without a result to check is in the table.
            if verb == "CHECK" && !added {
                return Value::Null;
            }
            let seen = side.run(&order);
            added |= seen["class"] == "ok";
            seen
        })
        .collect()
}

#[test]
#[ignore = "needs Go"]
fn generated_networks_behave_as_on_libcni() {
    let report = Mutex::new(Report::new(Group::Generated));
    let sides = [Side::ours(), Side::libcni()];
    sides.iter().for_each(|side| TYPES.iter().for_each(|plugin| side.record(plugin)));
    let [ours, libcni] = sides.map(Mutex::new);
    let compare = |case: Case| {
        let (mut ours, mut libcni) = std::thread::scope(|scope| {
            let ours = scope.spawn(|| observe(&mut ours.lock().unwrap(), &case));
            let libcni = observe(&mut libcni.lock().unwrap(), &case);
            (ours.join().unwrap(), libcni)
        });
        settle(&mut ours);
        settle(&mut libcni);
        let mut found = Vec::new();
        diff("", &ours, &libcni, &mut found);
        prop_assert!(found.is_empty(), "{:#?} of {:?}", found, VERBS);
        report.lock().unwrap().compare("generated", &[], &ours, &libcni);
        Ok(())
    };
    runner(300).run(&any_case(), compare).unwrap();
    report.into_inner().unwrap().finish();
}

/// Exit status and output of a plugin.
fn any_reply(verb: &'static str, version: SpecVersion) -> BoxedStrategy<(i32, String)> {
    // Code 3 has a meaning of its own for DEL, which the faulty plugins show.
    let codes: &[u64] = if verb == "DEL" { &[7, 11, 50, 100, 999] } else { &[3, 7, 11, 50, 100, 999] };
    let failure = prop_oneof![
        4 => (prop::sample::select(codes), "[a-z ]{1,9}").prop_map(|(code, msg)| (1, json!({"code": code, "msg": msg}).to_string())),
        1 => Just((2, String::new())),
        1 => Just((3, "panic: oh no".to_owned())),
    ];
    if verb != "ADD" {
        return prop_oneof![5 => Just((0, String::new())), 1 => Just((0, "noise".to_owned())), 1 => failure]
            .boxed();
    }
    let result = (any_result(version), any::<bool>()).prop_map(|(mut result, states_version)| {
        if !states_version {
            result.as_object_mut().unwrap().remove("cniVersion");
        }
        (0, result.to_string())
    });
    let bad = prop::sample::select(
        &[
            "",
            "[]",
            "7",
            "x",
            "{",
            "{} x",
            "{}{}",
            r#"{"cniVersion":"3.0.0"}"#,
            r#"{"ips":[{"address":"x"}],"ip4":{"ip":"x"}}"#,
            r#"{"interfaces":7,"ip6":7}"#,
        ][..],
    );
    prop_oneof![20 => result, 1 => bad.prop_map(|text| (0, text.to_owned())), 2 => failure].boxed()
}

fn any_case() -> impl Strategy<Value = Case> {
    prop::sample::select(&SpecVersion::ALL).prop_flat_map(|version| {
        let capability = prop::sample::select(&["mac", "ips", "bandwidth"][..]);
        let extra = prop::collection::btree_map("[a-z]{1,4}_", any_value(), 0..4);
        let plugin = (extra, prop::collection::btree_map(capability.clone(), any::<bool>(), 0..3));
        let replies: Vec<_> = TYPES
            .iter()
            .flat_map(|t| VERBS.map(|v| any_reply(v, version).prop_map(move |(s, o)| (*t, v, s, o))))
            .collect();
        let newer = prop::collection::vec(prop::sample::select(&["0.1.0", "2.0.0", "1.5"][..]), 0..2);
        let flags = (prop::option::weighted(0.1, Just("true")), prop::option::weighted(0.1, any::<bool>()));
        (
            prop::collection::vec(plugin, 1..=TYPES.len()),
            prop::collection::btree_map(
                capability,
                any_value().prop_filter("null is not an argument", |v| !v.is_null()),
                0..3,
            ),
            prop::collection::vec(("[A-Z_]{1,6}", "[a-zA-Z0-9/.:]{0,6}"), 0..3),
            replies,
            prop::option::of(newer),
            flags,
        )
            .prop_map(move |(plugins, capability_args, args, replies, newer, flags)| {
                let plugins: Vec<Value> = plugins
                    .into_iter()
                    .zip(TYPES)
                    .map(|((extra, capabilities), plugin_type)| {
                        let mut plugin: Map<String, Value> = extra.into_iter().collect();
                        plugin.insert("type".into(), plugin_type.into());
                        plugin.insert("capabilities".into(), json!(capabilities));
                        Value::Object(plugin)
                    })
                    .collect();
                let mut list = json!({"cniVersion": version, "name": "net", "plugins": plugins});
                if let Some(newer) = newer {
                    list["cniVersions"] = json!(newer);
                }
                if let Some(disable) = flags.0 {
                    list["disableCheck"] = disable.into();
                }
                if let Some(disable) = flags.1 {
                    list["disableGC"] = disable.into();
                }
                let capability_args = capability_args.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
                Case { list, args, capability_args, replies }
            })
    })
}
