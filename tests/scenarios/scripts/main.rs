//! The scripts that run the tests and count their results, and small programs of `deploy`.

// Clippy allows `unwrap` only in functions with `#[test]`, not in those that tests share.
#![allow(clippy::unwrap_used)]

mod copy_plugins;

use std::io::Write as _;
use std::process::Command;

/// Runs `tests/summary` on a log; returns its output, and whether it succeeds.
fn summary(log: &str) -> (String, bool) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(log.as_bytes()).unwrap();
    let output =
        Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/summary")).arg(file.path()).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

const THREE: &str =
    "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.10s\n";

#[test]
fn the_summary_adds_the_results_of_all_programs() {
    let failed = "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
    assert_eq!(summary(THREE), ("3 passed, 0 failed, 1 skipped\n".into(), true));
    assert_eq!(summary(&[THREE, failed, THREE].concat()), ("8 passed, 1 failed, 2 skipped\n".into(), false));
}

#[test]
fn a_test_that_reports_a_skip_has_not_passed() {
    let log = ["SKIPPED: module::a_test: this kernel has no bonds\n", THREE].concat();
    assert_eq!(summary(&log), ("2 passed, 0 failed, 2 skipped\n".into(), true));
}

#[test]
fn a_skipped_case_does_not_count_against_the_tests_that_passed() {
    let case = "SKIPPED CASE: vlan in a bridge: the kernel has no links of kind vlan\n";
    assert_eq!(
        summary(&[&case.repeat(70), THREE].concat()),
        ("3 passed, 0 failed, 71 skipped\n".into(), true)
    );
}

#[test]
fn the_summary_says_why_a_test_failed() {
    let why = "---- module::a_test ----\nno pod\n\n--- events\nrefused\n";
    let rest = "\nfailures:\n    module::a_test\n";
    let (output, is_success) = summary(&["--- pods\n", THREE, why, rest].concat());
    let said = "---- module::a_test ----\nno pod\n--- events\nrefused\n3 passed, 0 failed, 1 skipped\n";
    assert_eq!(output, said);
    assert!(is_success, "it goes by the results");
}

#[test]
fn a_log_without_results_fails() {
    assert_eq!(summary("error: could not compile\n"), ("0 passed, 0 failed, 0 skipped\n".into(), false));
    let skipped =
        "SKIPPED: a: b\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
    assert_eq!(summary(skipped), ("0 passed, 0 failed, 1 skipped\n".into(), false));
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
