//! The command on files, as a user runs it.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::*;

const POLICY: &str =
    "apiVersion: netclaim.dev/v1alpha1\nkind: UplinkPolicy\nmetadata: {name: NAME}\nspec: SPEC\n";

fn policy(name: &str, spec: &str) -> String {
    POLICY.replace("NAME", name).replace("SPEC", spec)
}

/// Runs the command, and returns whether it succeeds, and its output without the folder.
fn validate(folder: &Path, arguments: &[&str]) -> (bool, String, String) {
    use clap::Parser as _;
    let files: Vec<String> =
        arguments.iter().map(|argument| argument.replace("DIR", &folder.display().to_string())).collect();
    let cli = crate::Cli::try_parse_from(
        ["netclaimctl", "validate"].into_iter().chain(files.iter().map(String::as_str)),
    );
    let crate::Command::Validate(args) = cli.expect("a good command line").command else {
        panic!("another command")
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(&args, &mut out, &mut err);
    let text = |bytes: Vec<u8>| {
        String::from_utf8(bytes).expect("UTF-8").replace(&format!("{}/", folder.display()), "")
    };
    (code == ExitCode::SUCCESS, text(out), text(err))
}

#[test]
fn every_problem_is_a_line_with_file_object_and_field() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = policy("good", "{links: {names: [eth1]}}");
    let bad = policy("bad", "{links: {}, publish: Always, modes: [vdpa], mode: nic}");
    let warned = policy("warned", "{links: {names: [eth2]}, publish: Never, modes: [nic]}");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n";
    fs::write(folder.path().join("a.yaml"), [good, bad, warned, pod.to_owned()].join("---\n"))
        .expect("writable");
    let (fine, out, err) = validate(folder.path(), &["-f", "DIR/a.yaml"]);
    assert!(!fine);
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("a.yaml: UplinkPolicy/bad: spec.mode: unknown field `mode`"), "{out}");
    assert!(lines[1].starts_with("a.yaml: UplinkPolicy/bad: spec.modes[0]: unknown variant `vdpa`"), "{out}");
    assert!(lines[2].starts_with("a.yaml: UplinkPolicy/warned: warning: spec.modes: has no effect"), "{out}");
    assert_eq!(lines.len(), 3, "{out}");
    assert_eq!(err, "netclaimctl: 1 fine, 1 with warnings, 1 with errors; not for netclaim: Pod/web\n");
}

#[test]
fn warnings_fail_only_if_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let warned = policy("warned", "{links: {names: [eth2]}, publish: Never, modes: [nic]}");
    fs::write(folder.path().join("a.yaml"), warned).expect("writable");
    assert!(validate(folder.path(), &["-f", "DIR/a.yaml"]).0);
    assert!(!validate(folder.path(), &["--strict", "-f", "DIR/a.yaml"]).0);
}

#[test]
fn directories_are_read_as_kubectl_reads_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("writable");
    };
    let bad = policy("bad", "{links: 1}");
    for name in ["b.yaml", "a.yml", "c.txt", "deep/er/d.yaml"] {
        write(name, &bad);
    }
    let list = r#"{"apiVersion": "netclaim.dev/v1alpha1", "kind": "UplinkPolicyList", "items": [{"metadata": {"name": "item"}}]}"#;
    write("e.json", &format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{list}]}}"#));
    write("none/readme", "");
    let found = |arguments: &[&str]| {
        let (_, out, _) = validate(folder.path(), arguments);
        let objects = out.lines().map(|line| line.splitn(3, ": ").take(2).collect::<Vec<_>>().join(": "));
        objects.collect::<Vec<_>>()
    };
    let flat = ["a.yml: UplinkPolicy/bad", "b.yaml: UplinkPolicy/bad", "e.json: UplinkPolicy/item"];
    assert_eq!(found(&["-f", "DIR"]), flat);
    let all = [
        "a.yml: UplinkPolicy/bad",
        "b.yaml: UplinkPolicy/bad",
        "deep/er/d.yaml: UplinkPolicy/bad",
        "e.json: UplinkPolicy/item",
    ];
    assert_eq!(found(&["-R", "-f", "DIR"]), all);
    let twice = ["c.txt: UplinkPolicy/bad", "a.yml: UplinkPolicy/bad"];
    assert_eq!(found(&["-f", "DIR/c.txt", "-f", "DIR/a.yml"]), twice);
    assert_eq!(found(&["-f", "DIR/none"]), ["none: has no file that ends in .yaml, .yml, .json"]);
}

#[test]
fn a_file_that_cannot_be_read_says_why_and_where() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.yaml"), "kind: ClaimNetwork\nspec: {a: [\n").expect("writable");
    fs::write(folder.path().join("b.yaml"), "- 1\n").expect("writable");
    fs::write(folder.path().join("c.yaml"), [0xff, 0xfe, 0x00]).expect("writable");
    let (fine, out, err) = validate(folder.path(), &["-f", "DIR", "-f", "DIR/missing.yaml"]);
    assert!(!fine);
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].starts_with("a.yaml: is not valid YAML or JSON: ") && lines[0].contains("line "),
        "{out}"
    );
    assert_eq!(lines[1], "b.yaml: document 1 is not an object");
    assert!(
        lines[2].starts_with("c.yaml: cannot be read: ")
            && lines[3].starts_with("missing.yaml: cannot be read: "),
        "{out}"
    );
    assert_eq!(err, "netclaimctl: no object is for netclaim; 4 files could not be read\n");
}

#[test]
fn programs_get_every_object_as_json() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.yaml"), policy("bad", "{links: {}, publish: Always}")).expect("writable");
    let (fine, out, err) = validate(folder.path(), &["-o", "json", "-f", "DIR/a.yaml"]);
    assert!(!fine && err.is_empty(), "{err}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let object = &report["objects"][0];
    assert_eq!(
        (&object["file"], &object["kind"], &object["forNetclaim"]),
        (&"a.yaml".into(), &"UplinkPolicy".into(), &true.into())
    );
    assert_eq!(object["errors"][0]["field"], "spec.links");
    assert_eq!(report["unreadable"], serde_json::json!([]));
}

#[test]
fn a_command_line_without_files_is_wrong() {
    use clap::Parser as _;
    let error = crate::Cli::try_parse_from(["netclaimctl", "validate"]).expect_err("no file");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn names_of_others_do_not_move_the_cursor() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.yaml"), policy(r#""a\e[2J""#, "{links: 1}")).expect("writable");
    let (_, out, err) = validate(folder.path(), &["-f", "DIR/a.yaml"]);
    let printed = format!("{out}{err}");
    assert!(printed.contains("UplinkPolicy/a") && printed.contains("[2J"), "{printed}");
    assert!(!printed.contains('\u{1b}'), "{printed}");
}
