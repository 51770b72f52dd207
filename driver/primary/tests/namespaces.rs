//! CHECK, in network namespaces of the tests' own.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../cni/tests/plugin_host/mod.rs"]
mod plugin_host;

use std::io::Write as _;
use std::process::{Command, Stdio};

use plugin_host::{Netns, run};
use serde_json::{Value, json};

/// Runs CHECK; returns its error.
fn check(container: &Netns) -> Result<(), String> {
    let result = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}],
        "ips": [{"address": "10.9.0.2/24", "interface": 0}, {"address": "fd00:9::2/64", "interface": 0}]});
    let config = json!({"cniVersion": "1.1.0", "name": "netclaim-primary", "type": "netclaim-primary",
        "socket": "/nonexistent/primary.sock", "prevResult": result});
    let mut child = Command::new(env!("CARGO_BIN_EXE_netclaim-primary"))
        .envs([("CNI_COMMAND", "CHECK"), ("CNI_CONTAINERID", "s1"), ("CNI_IFNAME", "eth0")])
        .env("CNI_NETNS", container.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["code"], 102, "{error}");
    Err(error["msg"].as_str().unwrap().to_owned())
}

#[test]
#[ignore = "needs root"]
fn a_check_says_which_address_is_gone() {
    let container = Netns::new();
    let inside = |command: &str| container.inside(|| run(command));
    let error = check(&container).unwrap_err();
    assert!(error.contains("eth0: the container has no such interface"), "{error}");
    inside("ip link add eth0 type veth peer name peer0");
    for command in [
        // One with a peer, as plugins make it for a point-to-point link.
        "ip address add 10.9.0.2 peer 10.9.0.1/32 dev eth0",
        "ip -6 address add fd00:9::2/64 dev eth0 nodad",
    ] {
        inside(command);
    }
    check(&container).unwrap();
    inside("ip -6 address del fd00:9::2/64 dev eth0");
    // Of another interface.
    inside("ip -6 address add fd00:9::2/64 dev peer0 nodad");
    let error = check(&container).unwrap_err();
    assert!(error.contains("eth0: it has no address fd00:9::2: the pod was given"), "{error}");
    inside("ip -6 address add fd00:9::2/64 dev eth0 nodad");
    inside("ip address del 10.9.0.2 peer 10.9.0.1/32 dev eth0");
    let error = check(&container).unwrap_err();
    assert!(error.contains("eth0: it has no address 10.9.0.2: the pod"), "{error}");
}
