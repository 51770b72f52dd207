//! The hook ends with the runtime that started it: a runtime that is restarted forgets its hooks and starts
//! new ones.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const STATE: &str =
    r#"{"annotations":{"io.kubernetes.cri.sandbox-id":"s1","io.kubernetes.cri.sandbox-uid":"p1"}}"#;

/// Whether a process runs, and is not just waiting to be reaped.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn a_hook_that_waits_ends_with_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let said = dir.path().join("said");
    fs::write(dir.path().join("state"), STATE).unwrap();
    // A shell takes the place of the runtime. There is no agent.
    let script = format!(
        "{} no-socket markers <state 2>said & echo $!; exec sleep 1000",
        env!("CARGO_BIN_EXE_netclaim-hook")
    );
    let mut runtime = Command::new("sh");
    let runtime = runtime.args(["-c", &script]).current_dir(dir.path()).stdout(Stdio::piped());
    let mut runtime = runtime.spawn().unwrap();
    let mut hook = String::new();
    BufReader::new(runtime.stdout.take().unwrap()).read_line(&mut hook).unwrap();
    let hook = hook.trim();
    // Longer than the hook's poll interval.
    std::thread::sleep(Duration::from_millis(600));
    assert!(runs(hook), "it said {:?}", fs::read_to_string(&said));
    runtime.kill().unwrap();
    runtime.wait().unwrap();
    let begin = Instant::now();
    while runs(hook) {
        assert!(begin.elapsed() < Duration::from_secs(5), "the hook lives on");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_to_string(said).unwrap(), "netclaim: the container runtime went away\n");
}
