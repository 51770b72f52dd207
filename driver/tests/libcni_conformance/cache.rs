//! What is remembered of attachments: each runtime reads, uses and deletes what the other wrote.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use netclaim_cni::{AddOutcome, Attachment, Cached, NetworkList};
use serde_json::{Map, Value, json};

use crate::compare::{Report, settle};
use crate::differences::Group;
use crate::sides::{Order, Reply, Side};

const RESULT: &str = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"net1","sandbox":"x"}],"ips":[{"address":"10.0.0.9/24","interface":0}]}"#;

fn network(name: &str) -> Value {
    json!({"cniVersion": "1.1.0", "name": name, "plugins": [
        {"type": "alpha", "capabilities": {"mac": true}, "n": [1, {"b": "<&>"}]}, {"type": "beta"},
    ]})
}

fn ready(side: &Side) {
    for plugin in ["alpha", "beta"] {
        side.record(plugin);
        side.reply(plugin, "ADD", &Reply::new(0, RESULT));
    }
}

fn order(verb: &'static str, list: &Value) -> Order {
    Order {
        args: vec![("K8S_POD_NAME".into(), "p".into()), ("A".into(), "1".into())],
        capability_args: Map::from_iter([
            ("mac".to_owned(), json!("02:00:00:00:00:01")),
            ("x".to_owned(), json!({"y": [null]})),
        ]),
        ..Order::new(verb, list)
    }
}

/// The attachments that a side's cache has, as both runtimes tell them.
fn known(side: &mut Side, container: &str) -> Value {
    if !side.is_ours() {
        let answer = side.ask(json!({"Verb": "CACHED", "ContainerID": container}));
        let shown = answer["result"].as_array().cloned().unwrap_or_default().into_iter();
        return shown
            .map(|known| {
                json!([
                    known["Network"],
                    known["ContainerID"],
                    known["IfName"],
                    known["NetNS"],
                    known["CniArgs"],
                    known["CapabilityArgs"]
                ])
            })
            .collect();
    }
    let (known, _) = side.cache().attachments().unwrap();
    let of = |known: &&Cached| container.is_empty() || known.attachment.container_id.as_str() == container;
    known
        .iter()
        .filter(of)
        .map(
            |Cached {
                 list,
                 attachment: Attachment { container_id, netns, if_name, args, capability_args, .. },
                 ..
             }| {
                let args: Vec<_> = std::iter::once(&("IgnoreUnknown".to_owned(), "1".to_owned()))
                    .chain(args)
                    .cloned()
                    .collect();
                let capability_args = Some(capability_args).filter(|args| !args.is_empty());
                json!([list.name(), container_id, if_name, netns, args, capability_args])
            },
        )
        .collect()
}

/// One side attaches, the other goes on with a copy of its cache.
fn handed_over(verb: &'static str, from_ours: bool) -> Value {
    let list = network("net");
    let (mut first, mut second) =
        if from_ours { (Side::ours(), Side::libcni()) } else { (Side::libcni(), Side::ours()) };
    ready(&first);
    ready(&second);
    assert_eq!(first.run(&order("ADD", &list))["class"], "ok");
    let results = second.sub("cache/results");
    fs::create_dir(&results).unwrap();
    fs::copy(first.sub("cache/results/net-c1-net1"), results.join("net-c1-net1")).unwrap();
    let valid = if verb == "GC" { vec![] } else { vec![("c1".to_owned(), "net1".to_owned())] };
    let known = known(&mut second, "");
    let mut seen = second.run(&Order { valid, ..order(verb, &list) });
    seen["known"] = known;
    settle(&mut seen);
    seen
}

#[test]
#[ignore = "needs Go"]
fn caches_are_each_others() {
    let mut report = Report::new(Group::Cache);

    for verb in ["CHECK", "DEL", "GC"] {
        // libcni on our file against us on libcni's.
        let (ours, libcni) = std::thread::scope(|scope| {
            let ours = scope.spawn(|| handed_over(verb, false));
            (handed_over(verb, true), ours.join().unwrap())
        });
        report.compare(&format!("{verb} with the other's file"), &[], &libcni, &ours);
    }

    let (ours, libcni) = Side::both(|mut side| {
        ready(&side);
        side.run(&order("ADD", &network("net")));
        let path = side.sub("cache/results/net-c1-net1");
        let mode = |path| fs::metadata(path).unwrap().permissions().mode();
        let entry: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let mut seen =
            json!({"file": mode(path), "directory": mode(side.sub("cache/results")), "entry": entry});
        settle(&mut seen["entry"]);
        seen
    });
    report.compare("the file itself", &[], &ours, &libcni);

    let (ours, libcni) = Side::both(|mut side| {
        ready(&side);
        for (network_name, container, if_name) in [
            ("net", "c1", "net1"),
            ("net", "c1", "net2"),
            ("net", "c10", "net1"),
            ("other", "c1", "net1"),
            ("net", "x", "c1-a"),
        ] {
            let order = Order {
                container: container.into(),
                if_name: if_name.into(),
                ..order("ADD", &network(network_name))
            };
            side.run(&order);
        }
        // With nothing to note but what must be.
        side.run(&Order {
            container: "bare".into(),
            netns: Some("/".into()),
            ..Order::new("ADD", &network("net"))
        });
        json!([known(&mut side, ""), known(&mut side, "c1"), known(&mut side, "nobody")])
    });
    report.compare("what is known", &[], &ours, &libcni);

    let (ours, libcni) = Side::both(|mut side| {
        ready(&side);
        side.run(&order("ADD", &network("net")));
        fs::write(side.sub("cache/results/net-c2-net1"), "{").unwrap();
        fs::write(side.sub("cache/results/net-c3-net1"), r#"{"kind":"other"}"#).unwrap();
        known(&mut side, "")
    });
    report.compare("what is known beside damaged files", &[], &ours, &libcni);

    let (ours, libcni) = Side::both(|mut side| {
        ready(&side);
        side.reply("beta", "ADD", &Reply::new(1, r#"{"code":7,"msg":"bad"}"#));
        let seen = side.run(&order("ADD", &network("net")));
        json!([seen["class"], seen["cache"], known(&mut side, "")])
    });
    report.compare("what is known after a failure", &[], &ours, &libcni);

    let (ours, libcni) = Side::both(|mut side| {
        ready(&side);
        // Both have the file a-b-c-net1.
        side.run(&Order { container: "c".into(), ..order("ADD", &network("a-b")) });
        let list = network("a");
        let second = Order { container: "b-c".into(), ..order("ADD", &list) };
        let kept = if side.is_ours() {
            let cached = Cached {
                list: NetworkList::parse(list.to_string().as_bytes()).unwrap(),
                attachment: Attachment::new("b-c".parse().unwrap(), None, "net1".parse().unwrap()),
                outcome: AddOutcome::Unfinished(None),
            };
            side.cache().store(&cached).is_err()
        } else {
            side.run(&second);
            false
        };
        json!({"kept": kept, "known": known(&mut side, "")[0][0]})
    });
    report.compare("two attachments of one file name", &["ambiguous-names"], &ours, &libcni);
    report.finish();
}
