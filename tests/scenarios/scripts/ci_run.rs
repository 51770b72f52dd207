//! `.ci/run` has the last word also of a run that does not end.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs `.ci/run` with this script as `make`; returns its output, and whether it succeeds.
fn run(make: &str, limit: &str) -> (String, bool) {
    let bin = tempfile::tempdir().unwrap();
    let program = bin.path().join("make");
    fs::write(&program, format!("#!/bin/bash\n{make}\n")).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap());
    let mut run = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/run"));
    let output = run.env("PATH", path).env("NETCLAIM_CI_LIMIT", limit).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

const PASSED: &str =
    "echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s'";

#[test]
fn a_run_that_ends_says_the_sum_last() {
    let (said, is_success) = run(PASSED, "1m");
    assert!(said.ends_with("\n3 passed, 0 failed, 0 skipped\n") && is_success, "{said}");
    let (said, is_success) = run(&format!("{PASSED}; exit 2"), "1m");
    assert!(said.contains("make test failed (exit 2)") && !is_success, "{said}");
}

#[test]
fn a_run_that_hangs_is_ended_with_the_sum_of_what_it_did() {
    let begin = Instant::now();
    // What it has started in a process group of its own does not keep the script waiting.
    let (said, is_success) = run(&format!("{PASSED}; setsid sleep 20 & sleep 20"), "1s");
    assert!(begin.elapsed() < Duration::from_secs(15), "it took {:?}", begin.elapsed());
    assert!(said.contains("make test was ended: it took longer than 1s"), "{said}");
    assert!(said.ends_with("\n3 passed, 0 failed, 0 skipped\n") && !is_success, "{said}");
}
