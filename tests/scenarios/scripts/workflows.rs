//! The workflows say what is there: targets of the Makefile, scripts, jobs, and actions by their digests.

// As in main.rs: helpers that tests share.
#![allow(clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The workflows, by the name of their file: the text, and what it says.
fn workflows() -> BTreeMap<String, (String, Value)> {
    let files = fs::read_dir(root().join(".github/workflows")).unwrap();
    let workflows = files.map(|file| {
        let file = file.unwrap();
        let text = fs::read_to_string(file.path()).unwrap();
        let name = file.file_name().into_string().unwrap();
        let parsed = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, (text, parsed))
    });
    workflows.collect()
}

/// The jobs of a workflow.
fn jobs(workflow: &Value) -> impl Iterator<Item = (&String, &Value)> {
    workflow["jobs"].as_object().expect("jobs").iter()
}

fn steps(job: &Value) -> impl Iterator<Item = &Value> {
    job["steps"].as_array().expect("steps").iter()
}

/// The scripts of a job, once for each value of its matrix, if it has one.
fn scripts(job: &Value) -> Vec<String> {
    let written: Vec<&str> = steps(job).filter_map(|step| step["run"].as_str()).collect();
    let Some(matrix) = job["strategy"]["matrix"].as_object() else {
        return written.into_iter().map(str::to_owned).collect();
    };
    let (name, values) = matrix.iter().next().expect("a matrix has a list");
    assert_eq!(matrix.len(), 1, "this test knows matrices of one list");
    let placeholder = format!("${{{{ matrix.{name} }}}}");
    let values = values.as_array().expect("a list").iter().map(|value| value.as_str().expect("text"));
    values
        .flat_map(|value| {
            written.iter().map(|script| script.replace(&placeholder, value)).collect::<Vec<_>>()
        })
        .collect()
}

/// The words that follow `make`.
fn targets(script: &str) -> Vec<&str> {
    let mut words = script.split_whitespace();
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        if word == "make" {
            found.extend(words.next());
        }
    }
    found
}

/// The Makefile's targets, and what each needs.
fn makefile() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("Makefile")).unwrap();
    let phony: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix(".PHONY: "))
        .flat_map(str::split_whitespace)
        .collect();
    let rules = text.lines().filter_map(|line| line.split_once(':'));
    let rules = rules.filter(|(target, rest)| phony.contains(target) && !rest.starts_with('='));
    let needs = |rest: &str| {
        let needed = rest.split("##").next().unwrap_or_default();
        needed.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    rules.map(|(target, rest)| (target.to_owned(), needs(rest))).collect()
}

#[test]
fn every_target_that_a_workflow_makes_is_in_the_makefile() {
    let makefile = makefile();
    let mut count = 0;
    for (name, (_, workflow)) in workflows() {
        for (job, script) in
            jobs(&workflow).flat_map(|(job, spec)| scripts(spec).into_iter().map(move |s| (job, s)))
        {
            for target in targets(&script) {
                assert!(makefile.contains_key(target), "{name}, {job}: there is no `make {target}`");
                count += 1;
            }
        }
    }
    assert!(count > 10, "only {count} targets were found");
}

#[test]
fn every_script_that_a_workflow_runs_is_there() {
    let mut count = 0;
    for (name, (_, workflow)) in workflows() {
        for script in jobs(&workflow).flat_map(|(_, job)| scripts(job)) {
            let words = script.split(|c: char| c.is_whitespace() || "\"()=".contains(c));
            let paths = [".ci/", "tests/", "deploy/"];
            for path in words.filter(|word| paths.iter().any(|folder| word.starts_with(folder))) {
                assert!(root().join(path).is_file(), "{name}: there is no {path}");
                count += 1;
            }
        }
    }
    assert!(count > 3, "only {count} scripts were found");
}

#[test]
fn workflows_name_actions_by_digest_and_say_which_version_it_is() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, (text, workflow)) in workflows() {
        let used = jobs(&workflow).flat_map(|(_, job)| steps(job)).filter_map(|step| step["uses"].as_str());
        for action in used {
            let (of, digest) = action.split_once('@').unwrap_or((action, ""));
            let is_digest = digest.len() == 40 && digest.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
            assert!(is_digest, "{name}: {action} is not pinned by the digest of a commit");
            let line = text.lines().find(|line| line.contains(action)).unwrap();
            let version =
                line.split_once(" # v").unwrap_or_else(|| panic!("{name}: {line} has no version")).1;
            versions.entry(of.to_owned()).or_default().insert(format!("{digest} {version}"));
        }
    }
    assert!(versions.len() > 4, "{versions:?}");
    for (action, versions) in versions {
        assert_eq!(versions.len(), 1, "several versions of {action}: {versions:?}");
    }
}

#[test]
fn jobs_have_limits_and_only_the_rights_that_are_written() {
    for (name, (_, workflow)) in workflows() {
        let rights = workflow["permissions"].as_object().unwrap_or_else(|| panic!("{name}: no permissions"));
        assert!(rights.values().all(|right| right == "read"), "{name}: every job may {rights:?}");
        let all: BTreeSet<&String> = jobs(&workflow).map(|(job, _)| job).collect();
        for (job, spec) in jobs(&workflow) {
            assert!(spec["timeout-minutes"].is_u64(), "{name}, {job}: a run that hangs does not end");
            for needed in needs(spec) {
                assert!(all.contains(&needed), "{name}, {job}: there is no job {needed}");
            }
            // Whoever names a branch or writes a title would write a part of the script.
            for script in steps(spec).filter_map(|step| step["run"].as_str()) {
                assert!(
                    !script.contains("${{ github."),
                    "{name}, {job}: take it from the environment: {script}"
                );
            }
        }
    }
}

fn needs(job: &Value) -> Vec<String> {
    match &job["needs"] {
        Value::String(one) => vec![one.clone()],
        Value::Array(all) => all.iter().map(|one| one.as_str().expect("a name").to_owned()).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_night_runs_each_lane_that_a_push_does_not() {
    let workflows = workflows();
    let lanes: BTreeSet<String> = scripts(&workflows["ci.yml"].1["jobs"]["nightly"])
        .iter()
        .flat_map(|s| targets(s))
        .map(str::to_owned)
        .collect();
    let mut all = makefile()["test-all"].clone();
    assert!(all.remove("test"), "`.ci/run` runs it on each push");
    assert_eq!(lanes, all);
}

#[test]
fn only_files_that_were_installed_are_published() {
    let release = &workflows()["release.yml"].1;
    let jobs = &release["jobs"];
    let publishes = |job: &Value| job["permissions"].to_string().contains("\"packages\":\"write\"");
    let publishing: Vec<&String> =
        jobs.as_object().unwrap().iter().filter(|(_, job)| publishes(job)).map(|(job, _)| job).collect();
    let [job] = publishing.as_slice() else { panic!("{publishing:?} publish") };
    let needed = needs(&jobs[job.as_str()]);
    let runs = |command: &str| {
        needed.iter().find(|job| scripts(&jobs[job.as_str()]).iter().any(|script| script.contains(command)))
    };
    assert!(runs(".ci/run").is_some(), "{job} does not wait for the tests");
    let installs =
        runs("make test-release FILES=").unwrap_or_else(|| panic!("{job} does not wait for test-release"));
    let artifact = |job: &str, action: &str| -> Vec<String> {
        let of =
            steps(&jobs[job]).filter(|step| step["uses"].as_str().is_some_and(|uses| uses.contains(action)));
        of.filter_map(|step| step["with"]["name"].as_str()).map(str::to_owned).collect()
    };
    let files = artifact(installs, "download-artifact");
    assert_eq!(files, ["release-files"]);
    assert!(artifact(job, "download-artifact").contains(&files[0]), "{job} has other files");
    // What a cache has, others may have written.
    for (job, spec) in jobs.as_object().unwrap() {
        let caches = |step: &Value| {
            step["uses"].as_str().is_some_and(|uses| {
                uses.contains("/cache@") || (uses.contains("/setup-go@") && step["with"]["cache"] != false)
            })
        };
        assert!(!steps(spec).any(caches), "{job} has a cache");
    }
}

#[test]
fn what_keeps_actions_up_to_date_looks_at_them() {
    let text = fs::read_to_string(root().join(".github/dependabot.yml")).unwrap();
    let settings: Value = serde_saphyr::from_str(&text).unwrap();
    let updates = settings["updates"].as_array().unwrap();
    assert!(updates.iter().any(|update| update["package-ecosystem"] == "github-actions"), "{settings}");
}

#[test]
fn targets_and_needs_are_found() {
    assert_eq!(targets("sudo -E env make test-x FILES=a\nmake b"), ["test-x", "b"]);
    let makefile = makefile();
    assert!(
        makefile["test-all"].contains("test-faults") && makefile["check"].contains("lint"),
        "{makefile:?}"
    );
}
