//! Networks in a directory, found by name.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::compare::{Report, settle, shown};
use crate::differences::Group;
use crate::tools::tool;

/// A name, the files, the network that is asked for, and the rows of the table that it shows.
type Case = (&'static str, &'static [(&'static str, &'static str)], &'static str, &'static [&'static str]);

const LIST: &str = r#"{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"list"}]}"#;
const SINGLE: &str = r#"{"cniVersion":"1.0.0","name":"net","type":"single"}"#;

const CASES: &[Case] = &[
    ("a list", &[("10.conflist", LIST)], "net", &[]),
    ("a list of another name", &[("10.conflist", LIST)], "other", &[]),
    (
        "the first of two lists",
        &[
            ("20.conflist", LIST),
            ("10.conflist", r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"first"}]}"#),
        ],
        "net",
        &[],
    ),
    (
        "file names are ordered as texts",
        &[
            ("9.conflist", LIST),
            ("10.conflist", r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"first"}]}"#),
        ],
        "net",
        &[],
    ),
    (
        "capital letters come first",
        &[
            ("a.conflist", LIST),
            ("Z.conflist", r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"first"}]}"#),
        ],
        "net",
        &[],
    ),
    (
        "the second list",
        &[
            ("10.conflist", r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"a"}]}"#),
            ("20.conflist", LIST),
        ],
        "net",
        &[],
    ),
    ("a single plugin", &[("10.conf", SINGLE)], "net", &[]),
    ("a single plugin in a .json file", &[("10.json", SINGLE)], "net", &[]),
    (
        "a single plugin with capabilities",
        &[(
            "10.conf",
            r#"{"cniVersion":"1.0.0","name":"net","type":"single","capabilities":{"mac":true},"ipam":{"type":"x"}}"#,
        )],
        "net",
        &[],
    ),
    ("a single plugin without a version", &[("10.conf", r#"{"name":"net","type":"single"}"#)], "net", &[]),
    ("a list before a single plugin", &[("10.conf", SINGLE), ("20.conflist", LIST)], "net", &[]),
    (
        ".conf and .json by name",
        &[("20.conf", SINGLE), ("10.json", r#"{"cniVersion":"1.0.0","name":"net","type":"json"}"#)],
        "net",
        &[],
    ),
    ("other extensions", &[("10.yaml", SINGLE), ("20.conflist.bak", LIST), ("conflist", LIST)], "net", &[]),
    ("a hidden file", &[(".conflist", LIST)], "net", &["dot-files"]),
    ("a hidden file with a name", &[(".10.conflist", LIST)], "net", &[]),
    ("a directory with an extension", &[("10.conflist/x", LIST), ("20.conflist", LIST)], "net", &[]),
    ("nothing", &[], "net", &[]),
    (
        "plugins of files",
        &[("10.conflist", LIST), ("net/2.conf", r#"{"type":"two"}"#), ("net/1.conf", r#"{"type":"one"}"#)],
        "net",
        &[],
    ),
    (
        "plugins of files only",
        &[("10.conflist", r#"{"cniVersion":"1.1.0","name":"net"}"#), ("net/1.conf", r#"{"type":"one"}"#)],
        "net",
        &[],
    ),
    (
        "plugins of files, switched off",
        &[
            (
                "10.conflist",
                r#"{"cniVersion":"1.1.0","name":"net","loadOnlyInlinedPlugins":true,"plugins":[{"type":"list"}]}"#,
            ),
            ("net/1.conf", r#"{"type":"one"}"#),
        ],
        "net",
        &[],
    ),
    (
        "plugins of files, switched off by a text",
        &[
            (
                "10.conflist",
                r#"{"cniVersion":"1.1.0","name":"net","loadOnlyInlinedPlugins":"TRUE","plugins":[{"type":"list"}]}"#,
            ),
            ("net/1.conf", r#"{"type":"one"}"#),
        ],
        "net",
        &[],
    ),
    (
        "plugins of files, not switched off",
        &[
            (
                "10.conflist",
                r#"{"cniVersion":"1.1.0","name":"net","loadOnlyInlinedPlugins":false,"plugins":[{"type":"list"}]}"#,
            ),
            ("net/1.conf", r#"{"type":"one"}"#),
        ],
        "net",
        &[],
    ),
    (
        "plugins of other files",
        &[
            ("10.conflist", LIST),
            ("net/1.conflist", r#"{"type":"one"}"#),
            ("net/2.json", r#"{"type":"two"}"#),
            ("other/1.conf", r#"{"type":"one"}"#),
        ],
        "net",
        &[],
    ),
    ("a plugin's file that is broken", &[("10.conflist", LIST), ("net/1.conf", "{")], "net", &[]),
    ("a plugin's file without a type", &[("10.conflist", LIST), ("net/1.conf", "{}")], "net", &[]),
    (
        "plugins of files beside a single plugin",
        &[("10.conf", SINGLE), ("net/1.conf", r#"{"type":"one"}"#)],
        "net",
        &[],
    ),
    ("no plugins at all", &[("10.conflist", r#"{"cniVersion":"1.1.0","name":"net"}"#)], "net", &[]),
    (
        "an empty list of plugins beside files",
        &[
            ("10.conflist", r#"{"cniVersion":"1.1.0","name":"net","plugins":[]}"#),
            ("net/1.conf", r#"{"type":"one"}"#),
        ],
        "net",
        &["empty-list-beside-files"],
    ),
    ("a broken file before", &[("10.conflist", "{"), ("20.conflist", LIST)], "net", &["broken-neighbour"]),
    ("a broken file behind", &[("10.conflist", LIST), ("20.conflist", "{")], "net", &[]),
    ("a broken single plugin before", &[("10.conf", "{"), ("20.conf", SINGLE)], "net", &["broken-neighbour"]),
    (
        "another network that is broken",
        &[("10.conflist", r#"{"name":"a","plugins":[]}"#), ("20.conflist", LIST)],
        "net",
        &["broken-neighbour"],
    ),
    ("a broken file only", &[("10.conflist", "{")], "net", &[]),
    ("a list in a .conf file", &[("10.conf", LIST)], "net", &["content-decides"]),
    ("a single plugin in a .conflist file", &[("10.conflist", SINGLE)], "net", &["content-decides"]),
    (
        "several versions in a file",
        &[(
            "10.conflist",
            r#"{"cniVersions":["0.4.0","1.0.0","9.0.0"],"name":"net","plugins":[{"type":"list"}]}"#,
        )],
        "net",
        &[],
    ),
    (
        "flags in a file",
        &[(
            "10.conflist",
            r#"{"cniVersion":"1.1.0","name":"net","disableCheck":"true","disableGC":true,"plugins":[{"type":"list"}]}"#,
        )],
        "net",
        &[],
    ),
];

#[test]
#[ignore = "needs Go"]
fn networks_are_found_as_by_libcni() {
    let mut report = Report::new(Group::Loading);
    for (name, files, network, explained) in CASES {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in *files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut ours = match netclaim_cnitool::load(dir.path(), &network.parse().unwrap()) {
            Ok(list) => json!({"class": "ok", "result": shown(&list)}),
            Err(_) => json!({"class": "no such network"}),
        };
        let mut libcni = ask(&json!({"Verb": "LOAD", "Dir": dir.path(), "Name": network}));
        libcni = match libcni["class"].as_str() {
            Some("ok") => json!({"class": "ok", "result": libcni["result"]}),
            _ => json!({"class": "no such network"}),
        };
        if libcni["result"]["version"] == "" {
            // In the table as a difference that is everywhere.
            libcni["result"]["version"] = "0.1.0".into();
        }
        settle(&mut ours);
        settle(&mut libcni);
        report.compare(name, explained, &ours, &libcni);
    }
    report.finish();
}

fn ask(order: &Value) -> Value {
    let mut libcni =
        Command::new(tool("libcni")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    writeln!(libcni.stdin.take().unwrap(), "{order}").unwrap();
    serde_json::from_slice(&libcni.wait_with_output().unwrap().stdout).unwrap()
}
