//! What crates may depend on, and what those for other programs need.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::project;

/// Crates below the programs, and those of the workspace that each may depend on.
const ALLOWED: [(&str, &[&str]); 17] = [
    ("allocation", &["api", "kubernetes"]),
    ("api", &["cni", "kubernetes"]),
    ("bandwidth", &["plugin"]),
    ("cni", &[]),
    ("cnitool", &["api", "cni"]),
    ("driver", &["cni"]),
    ("hook", &[]),
    ("kubernetes", &[]),
    ("link", &["plugin"]),
    ("nri", &[]),
    ("plugin", &[]),
    ("primary", &["plugin"]),
    ("process", &[]),
    ("route", &["plugin"]),
    ("slices", &["kubernetes"]),
    ("validation", &["allocation", "api"]),
    ("webhook", &["api", "process", "validation"]),
];

/// Crates that any program can use. `make test-crates` builds their packages.
const PUBLISHED: [&str; 4] = ["cni", "kubernetes", "nri", "slices"];

/// The crates of the workspace by their names without `netclaim-`, as `cargo metadata` describes them.
fn crates() -> BTreeMap<String, Value> {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--locked", "--offline"])
        .current_dir(project())
        .output()
        .expect("cargo starts");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages").iter();
    packages.map(|package| (short(package).to_owned(), package.clone())).collect()
}

fn short(named: &Value) -> &str {
    named["name"].as_str().expect("a name").trim_start_matches("netclaim-")
}

/// The dependencies of a crate on others of the workspace, but for those of its tests.
fn dependencies(package: &Value) -> impl Iterator<Item = &Value> {
    let all = package["dependencies"].as_array().expect("dependencies").iter();
    all.filter(|dependency| dependency["path"].is_string() && dependency["kind"] != "dev")
}

#[test]
fn crates_depend_on_each_other_in_one_direction() {
    let crates = crates();
    let wrong = ALLOWED.iter().flat_map(|(name, allowed)| {
        let named = dependencies(crates.get(*name).expect(name)).map(short);
        named.filter(|to| !allowed.contains(to)).map(move |to| format!("{name} depends on {to}"))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn crates_for_other_programs_stand_alone() {
    let crates = crates();
    let published = crates.iter().filter(|(_, package)| package["publish"] != Value::Array(Vec::new()));
    assert_eq!(published.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), PUBLISHED);
    for name in PUBLISHED {
        let package = &crates[name];
        for field in ["description", "license", "repository", "readme", "rust_version"] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
        for field in ["keywords", "categories"] {
            assert!(package[field].as_array().is_some_and(|list| !list.is_empty()), "{name} has no {field}");
        }
        let targets = package["targets"].as_array().expect("targets");
        assert!(targets.iter().any(|target| target["kind"][0] == "example"), "{name} has no example");
        for dependency in dependencies(package) {
            let to = short(dependency);
            assert!(PUBLISHED.contains(&to), "{name} needs {to}, which is not published");
            assert_ne!(dependency["req"], "*", "{name} does not say which version of {to} it needs");
        }
        let folder: PathBuf = Path::new(package["manifest_path"].as_str().expect("a path")).into();
        let folder = folder.parent().expect("a folder");
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).expect(file);
        assert!(read("LICENSE").contains("Apache License"), "{name} has another license");
        let readme = read("README.md");
        let headings: BTreeSet<&str> = readme.lines().filter(|line| line.starts_with('#')).collect();
        for heading in ["## Example", "## What it promises", "## What it is not"] {
            assert!(headings.contains(heading), "the README of {name} has no {heading:?}");
        }
        let links = readme.match_indices("](").map(|(at, open)| &readme[at + open.len()..]);
        let elsewhere = links.filter(|to| !to.starts_with("https://")).count();
        assert_eq!(elsewhere, 0, "the README of {name} links to files, which its package does not have");
    }
}
