//! Least privilege: what the manifests and the chart grant to netclaim's programs is what they asked the API
//! server for while the lanes ran.
//!
//! `tests/lanes.sh` runs this when all lanes have ended, each of which leaves `target/rights/LANE`, or
//! `LANE-PART` of its parts.

// Clippy allows `unwrap` and `panic!` only in functions with `#[test]`, not in those that tests share.
#![allow(clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use netclaim_tests::objects::{list, text};
use netclaim_tests::{Access, helm, output, project};
use serde_json::Value;

const MORE_VALUES: &str =
    "image.registry=any,webhook.enabled=true,defaultNetworks.enabled=true,hotAttach.enabled=true";
const LANES: [&str; 3] = ["cluster", "install", "nodes"];
/// The parts that `tests/lanes.sh` makes of a lane.
const PARTS: [[&str; 2]; 3] = [["alone", "beside"], ["faults", "not-faults"], ["disasters", "not-disasters"]];

/// What the programs asked for in all lanes.
fn asked() -> BTreeSet<Access> {
    let read = |name: &str| fs::read_to_string(project("target/rights").join(name));
    let of_lane = |lane: &&str| {
        let part = |part| read(&format!("{lane}-{part}"));
        let parts = || PARTS.iter().find_map(|[one, other]| Some(part(one).ok()? + &part(other).ok()?));
        let lines = read(lane).ok().or_else(parts);
        lines.unwrap_or_else(|| panic!("target/rights has not all of {lane}: run tests/lanes.sh, all of it"))
    };
    LANES.iter().flat_map(|lane| of_lane(lane).lines().map(access).collect::<Vec<_>>()).collect()
}

fn access(line: &str) -> Access {
    let words: Vec<&str> = line.split(' ').collect();
    let [account, group, resource, verb] = <[&str; 4]>::try_from(words).unwrap().map(str::to_owned);
    Access { account, group: if group == "core" { String::new() } else { group }, resource, verb }
}

/// One of the files that users apply.
fn manifest(name: &str) -> String {
    fs::read_to_string(project("deploy").join(name)).unwrap()
}

/// The roles of an account that the chart adds with the webhook, default networks and networks for running
/// pods, which the manifests do not have.
fn of_more_values(account: &str) -> String {
    let mut render = Command::new(helm::program().unwrap());
    render.arg("template").arg(helm::chart()).args(["--set", MORE_VALUES]);
    let shown = ["webhook-rbac", "default-networks", "hot-attach"];
    let shown = shown.map(|name| ["--show-only".to_owned(), format!("templates/{name}.yaml")]).concat();
    let objects = output(render.args(["--kube-version", "1.37.0"]).args(shown)).unwrap();
    let documents: Vec<&str> = objects.split("\n---\n").collect();
    let of = |document: &&str| serde_saphyr::from_str::<Value>(document).unwrap();
    let is_for_account =
        |binding: &Value| list(&binding["subjects"]).any(|subject| subject["name"] == account);
    let bound: BTreeSet<String> = documents
        .iter()
        .map(of)
        .filter(is_for_account)
        .map(|binding| text(&binding["roleRef"]["name"]))
        .collect();
    let is_bound = |document: &&&str| bound.contains(&text(&of(document)["metadata"]["name"]));
    documents.iter().filter(is_bound).copied().collect::<Vec<_>>().join("\n---\n")
}

/// What the roles in `yaml` grant to an account.
fn granted(account: &str, yaml: &str) -> BTreeSet<Access> {
    let documents = yaml.split("\n---\n").map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
    let roles: Vec<Value> =
        documents.filter(|object| matches!(text(&object["kind"]).as_str(), "Role" | "ClusterRole")).collect();
    let mut granted = BTreeSet::new();
    for rule in roles.iter().flat_map(|role| list(&role["rules"])) {
        for (group, resource, verb) in list(&rule["apiGroups"]).flat_map(|group| {
            let of_group = move |resource| list(&rule["verbs"]).map(move |verb| (group, resource, verb));
            list(&rule["resources"]).flat_map(of_group)
        }) {
            let [group, resource, verb] = [group, resource, verb].map(text);
            // There is no such object: the policies know the role by it.
            if (resource.as_str(), verb.as_str()) != ("roles", "hold") {
                granted.insert(Access { account: account.to_owned(), group, resource, verb });
            }
        }
    }
    assert!(!granted.is_empty(), "no rules for {account}");
    granted
}

fn all_granted() -> BTreeSet<Access> {
    [
        granted("netclaim-agent", &manifest("manifests/agent-rbac.yaml")),
        granted("netclaim-controller", &manifest("manifests/controller-rbac.yaml")),
        granted("netclaim-controller", &of_more_values("netclaim-controller")),
        granted("netclaim-agent", &of_more_values("netclaim-agent")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn shown<'a>(accesses: impl Iterator<Item = &'a Access>) -> String {
    let show =
        |Access { account, group, resource, verb }: &Access| format!("{account}: {verb} {resource}.{group}");
    accesses.map(show).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_right_is_used() {
    let (granted, asked) = (all_granted(), asked());
    let unused = shown(granted.difference(&asked));
    assert!(unused.is_empty(), "granted and never used by any scenario:\n{unused}");
}

#[test]
fn no_right_is_missing() {
    let (granted, asked) = (all_granted(), asked());
    let missing = shown(asked.difference(&granted));
    assert!(missing.is_empty(), "asked for and not granted:\n{missing}");
}
