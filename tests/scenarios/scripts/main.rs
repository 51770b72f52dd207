//! The scripts that run the tests and count their results, and small programs of `deploy`.

// Clippy allows these only in functions with `#[test]`, not in those that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ci_run;
mod copy_plugins;
mod go_programs;
mod workflows;

use std::process::Command;

/// Runs `tests/summary` on a log, with a list of expected skips, here or on GitHub's runners; returns its
/// output, and whether it succeeds.
fn summary_of(log: &str, expected: &str, is_on_github: bool) -> (String, bool) {
    let dir = tempfile::tempdir().unwrap();
    let files = [("log", log), ("expected", expected)].map(|(name, text)| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let mut summary = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/summary"));
    summary.args(files).env_remove("GITHUB_ACTIONS");
    if is_on_github {
        summary.env("GITHUB_ACTIONS", "true");
    }
    let output = summary.output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

/// The same with a list of what the logs of these tests skip.
fn summary(log: &str) -> (String, bool) {
    summary_of(log, ".*: this kernel has no (bonds|links of kind vlan)\n", false)
}

const THREE: &str =
    "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.10s\n";

#[test]
fn the_summary_adds_the_results_of_all_programs() {
    let failed = "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
    assert_eq!(summary(THREE), ("3 passed, 0 failed, 0 skipped\n".into(), true));
    assert_eq!(summary(&[THREE, failed, THREE].concat()), ("8 passed, 1 failed, 0 skipped\n".into(), false));
}

#[test]
fn a_test_that_reports_a_skip_has_not_passed() {
    let log = ["SKIPPED: module::a_test: this kernel has no bonds\n", THREE].concat();
    let said = "skipped:\n    1  this kernel has no bonds\n2 passed, 0 failed, 1 skipped\n";
    assert_eq!(summary(&log), (said.into(), true));
}

#[test]
fn a_skipped_case_does_not_count_against_the_tests_that_passed() {
    let case = "SKIPPED CASE: vlan, in a bridge: this kernel has no links of kind vlan\n";
    let said = "skipped:\n   70  this kernel has no links of kind vlan\n3 passed, 0 failed, 70 skipped\n";
    assert_eq!(summary(&[&case.repeat(70), THREE].concat()), (said.into(), true));
}

#[test]
fn an_unexpected_skip_fails() {
    let surprise = "\nskipped, and not in the list of expected skips:\n       module::a_test: no disk\n";
    for line in [
        "SKIPPED: module::a_test: no disk",
        "SKIPPED CASE: module::a_test: no disk",
        "test module::a_test    ... ignored (SKIPPED: no disk)",
        // Another program's output is in the same line.
        "  12.3 s  test module::a_test ... ignored, no disk",
    ] {
        let ignored = "test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n";
        let result = if line.starts_with("SKIPPED") { "" } else { ignored };
        let (said, is_success) = summary(&format!("{line}\n{result}{THREE}"));
        assert!(said.contains(surprise) && !is_success, "{line}: {said}");
    }
}

#[test]
fn an_ignored_test_without_a_reason_fails() {
    let ignored = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n";
    let (said, is_success) = summary(ignored);
    assert!(said.contains("a test: it is ignored, and no line says why\n") && !is_success, "{said}");
}

#[test]
fn missing_parts_of_a_mirror_are_expected_elsewhere_than_on_github() {
    let log = ["SKIPPED CASE: advisories: no network\n", THREE].concat();
    let expected = "# downloads\nelsewhere advisories: .*\n";
    assert!(summary_of(&log, expected, false).1);
    assert!(!summary_of(&log, expected, true).1);
}

#[test]
fn the_summary_says_why_a_test_failed() {
    let why = "---- module::a_test ----\nno pod\n\n--- events\nrefused\n";
    let rest = "\nfailures:\n    module::a_test\n";
    let (output, is_success) = summary(&["--- pods\n", THREE, why, rest].concat());
    let said = "---- module::a_test ----\nno pod\n--- events\nrefused\n3 passed, 0 failed, 0 skipped\n";
    assert_eq!(output, said);
    assert!(is_success, "it goes by the results");
}

#[test]
fn a_log_without_results_fails() {
    assert_eq!(summary("error: could not compile\n"), ("0 passed, 0 failed, 0 skipped\n".into(), false));
    let skipped = "SKIPPED: a: this kernel has no bonds\n\
        test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
    let (said, is_success) = summary(skipped);
    assert!(said.ends_with("0 passed, 0 failed, 1 skipped\n") && !is_success, "{said}");
}

#[test]
fn the_chart_has_the_version_of_the_programs() {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/netclaim/Chart.yaml");
    let chart = std::fs::read_to_string(chart).unwrap();
    for key in ["version", "appVersion"] {
        let line = format!("{key}: {}", env!("CARGO_PKG_VERSION"));
        assert!(chart.lines().any(|found| found == line), "Chart.yaml has no line {line:?}");
    }
}
