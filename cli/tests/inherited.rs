//! What netclaimctl gets from the shell that starts it: descriptors, standard input, signals.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

const NETCLAIMCTL: &str = env!("CARGO_BIN_EXE_netclaimctl");

fn kill(child: &Child, signal: &str) {
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
}

#[test]
fn files_of_the_shell_can_be_read() {
    let policy = "{apiVersion: netclaim.dev/v1alpha1, kind: UplinkPolicy, metadata: {name: a}, spec: {links: {names: [eth1]}}}";
    let script = format!("{NETCLAIMCTL} validate -f <(echo '{policy}')");
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "netclaimctl: 1 fine\n");
}

#[test]
fn a_signal_ends_a_command_that_waits_for_standard_input() {
    for command in ["validate", "migrate"] {
        for (signal, number) in [("-INT", 2), ("-TERM", 15)] {
            // A shell's job in the background ignores SIGINT, and so would what it starts.
            let mut child = Command::new("env")
                .args(["--default-signal", NETCLAIMCTL, command, "-f", "-"])
                .stdin(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // It has read what the pipe had no room for, so that it is past its start.
            child.stdin.as_mut().unwrap().write_all(&vec![b' '; 1 << 20]).unwrap();
            kill(&child, signal);
            assert_eq!(child.wait().unwrap().signal(), Some(number), "{command} {signal}");
        }
    }
}

/// Sends a signal to a command that waits for a server which never answers. Returns exit code and standard
/// error.
fn ended_by(signal: &str, command: &[&str]) -> (Option<i32>, String) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a", "users": [{"name": "a", "user": {}}],
        "clusters": [{"name": "a", "cluster": {"server": format!("http://{}", server.local_addr().unwrap())}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let child = Command::new("env")
        .args(["--default-signal", NETCLAIMCTL])
        .args(command)
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _connection = server.accept().unwrap();
    kill(&child, signal);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_interrupted_command_says_no_more_than_that() {
    let interrupted = (Some(130), "netclaimctl: interrupted\n".to_owned());
    for signal in ["-INT", "-TERM"] {
        assert_eq!(ended_by(signal, &["status"]), interrupted, "{signal}");
    }
}
