//! `netclaimctl migrate` with files.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn migrate(objects: &[Value], args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("objects.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_netclaimctl"));
    command.args(["migrate", "--filename"]).arg(&file).args(args);
    command.output().unwrap()
}

fn nad(plugin: &str) -> Value {
    let config = json!({"cniVersion": "1.0.0", "type": plugin, "master": "eth1"}).to_string();
    json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"namespace": "shop", "name": "lan"}, "spec": {"config": config}})
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_code_says_whether_everything_is_translated() {
    let done = migrate(&[nad("macvlan")], &[]);
    assert_eq!((done.status.code(), text(&done.stderr).as_str()), (Some(0), ""));
    assert!(text(&done.stdout).starts_with("---\napiVersion: netclaim.dev/v1alpha1\nkind: ClaimNetwork\n"));
    let refused = migrate(&[nad("sriov")], &[]);
    assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(1), ""));
    assert!(
        text(&refused.stderr)
            .starts_with("NOT TRANSLATED\n* NetworkAttachmentDefinition shop/lan: spec.config.type: ")
    );
}

#[test]
fn programs_get_everything_as_one_document() {
    let output = migrate(&[nad("ipvlan")], &["--output", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["objects"][0]["kind"], "ClaimNetwork");
    assert_eq!((&document["refused"], &document["workloads"]), (&json!([]), &json!([])));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn an_input_without_networks_is_not_taken_for_a_success_in_silence() {
    let output = migrate(&[nad("macvlan")], &["--namespace", "bank"]);
    assert_eq!(
        text(&output.stderr),
        "netclaimctl: no NetworkAttachmentDefinition and no pod with networks is of namespace bank in the files\n"
    );
    assert_eq!(output.status.code(), Some(0), "there is nothing to translate");
}

#[test]
fn the_files_of_a_directory_are_translated() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("lan.json"), nad("macvlan").to_string()).unwrap();
    std::fs::write(folder.path().join("README.md"), "no manifest").unwrap();
    let output = migrate(&[], &["-f", folder.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("kind: ClaimNetwork\n"), "{}", text(&output.stdout));
}

#[test]
fn addresses_that_are_none_are_refused() {
    let output = migrate(&[nad("macvlan")], &["--handed-over", "10.0.0.300"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("10.0.0.300"));
}
