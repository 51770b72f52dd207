//! `netclaimctl cni` with scripts as plugins: they need no root.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Logs its call and input; fails ADD, CHECK or DEL if a file of that name exists.
const PLUGIN: &str = r#"#!/bin/sh
d=${0%/*/*}
{ printf '%s\t' "$CNI_COMMAND" "$CNI_CONTAINERID" "$CNI_NETNS" "$CNI_IFNAME" "$CNI_ARGS"; tr -d '\n'; echo; } >> "$d/calls"
if test -e "$d/$CNI_COMMAND"; then echo '{"code": 123, "msg": "told to fail", "details": "by a file"}'; exit 1; fi
test "$CNI_COMMAND" != ADD || echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],"ips":[{"address":"10.0.0.9/24","interface":0}]}'
"#;

/// A node with plugins, configurations, a cache, and links to this test's own network namespace, which no
/// plugin enters.
struct Node(TempDir);

impl Node {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        for dir in ["bin", "net.d", "netns"] {
            fs::create_dir(node.path(dir)).unwrap();
        }
        fs::write(node.path("bin/mock"), PLUGIN).unwrap();
        fs::set_permissions(node.path("bin/mock"), fs::Permissions::from_mode(0o755)).unwrap();
        node.configure(&json!({"type": "mock", "generation": 1, "capabilities": {"mac": true}}));
        for netns in ["a", "b"] {
            let own = format!("/proc/{}/ns/net", std::process::id());
            std::os::unix::fs::symlink(own, node.path("netns").join(netns)).unwrap();
        }
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn configure(&self, plugin: &Value) {
        let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]});
        fs::write(self.path("net.d/10.conflist"), list.to_string()).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netclaimctl"));
        command
            .arg("cni")
            .args(args)
            .current_dir(self.path("netns"))
            .env("CNI_PATH", self.path("bin"))
            .env("NETCONFPATH", self.path("net.d"))
            .env("NETCLAIM_CNI_CACHE", self.path("cache"))
            .env("CNI_ARGS", "K=V")
            .env("CAP_ARGS", r#"{"mac": "02:00:00:00:00:01"}"#)
            .env_remove("CNI_IFNAME");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs what must succeed, and returns its standard output.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs what must fail, and returns the error object and what people are told.
    fn fails(&self, args: &[&str]) -> (Value, String) {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        (serde_json::from_slice(&output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    /// The plugin's calls since the last look: verb, container, namespace, interface, arguments, input.
    fn calls(&self) -> Vec<Vec<String>> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("calls"));
        calls.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }

    fn verbs(&self) -> Vec<String> {
        self.calls().into_iter().map(|call| call[0].clone()).collect()
    }
}

fn input(call: &[String]) -> Value {
    serde_json::from_str(&call[5]).unwrap()
}

#[test]
fn check_and_del_use_the_configuration_and_arguments_of_add() {
    let node = Node::new();
    let result: Value = serde_json::from_str(&node.ok(&["add", "net", "a"])).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.0.0.9/24");
    let add = node.calls().remove(0);
    assert!(add[1].starts_with("cnitool-") && add[1].len() == 28, "{add:?}");
    assert_eq!(add[2..5], [node.path("netns/a").to_str().unwrap(), "eth0", "IgnoreUnknown=1;K=V"]);
    assert_eq!(input(&add)["runtimeConfig"]["mac"], "02:00:00:00:00:01");

    // Today's configuration and variables do not matter any more.
    node.configure(&json!({"type": "mock", "generation": 2}));
    for verb in ["check", "del"] {
        let done =
            node.command(&[verb, "net", "./a"]).env("CNI_ARGS", "").env("CAP_ARGS", "").output().unwrap();
        assert!(done.status.success());
        let call = node.calls().remove(0);
        assert_eq!(call[0], verb.to_uppercase());
        assert_eq!(call[1..5], add[1..5]);
        let input = input(&call);
        assert_eq!((&input["generation"], &input["prevResult"]), (&json!(1), &result));
    }
    assert_eq!(node.ok(&["attachments"]).lines().count(), 1);

    // An unknown attachment is deleted by today's configuration, and cannot be checked.
    node.ok(&["del", "net", "a"]);
    assert_eq!(input(&node.calls()[0])["generation"], 2);
    assert_eq!(node.fails(&["check", "net", "a"]).0["code"], 3);
}

#[test]
fn a_plugins_error_is_printed_unchanged_and_explained() {
    let node = Node::new();
    fs::write(node.path("ADD"), "").unwrap();
    let (object, told) = node.fails(&["add", "net", "a"]);
    assert_eq!(
        object,
        json!({"cniVersion": "1.1.0", "code": 123, "msg": "told to fail", "details": "by a file"})
    );
    assert!(
        told.starts_with("netclaimctl: ADD stopped after 0 of 1 plugins: CNI plugin `mock` failed ADD"),
        "{told}"
    );
    assert!(told.trim_end().ends_with("error 123: told to fail (by a file)"), "{told}");
}

#[test]
fn a_failed_add_is_cached_and_collected_while_its_namespace_exists() {
    let node = Node::new();
    fs::write(node.path("ADD"), "").unwrap();
    node.fails(&["add", "net", "a"]);
    assert!(node.ok(&["attachments"]).contains("(ADD failed)"));
    node.calls();
    node.ok(&["gc", "net"]);
    assert_eq!(node.verbs(), ["DEL", "GC"]);
    assert_eq!(node.ok(&["attachments", "--json"]).trim(), "[]");
}

#[test]
fn an_add_whose_plugin_never_ran_is_not_cached() {
    let node = Node::new();
    node.configure(&json!({"type": "missing"}));
    let (object, _) = node.fails(&["add", "net", "a"]);
    assert_eq!(object["code"], 999);
    assert_eq!(node.ok(&["attachments", "--json"]).trim(), "[]");
}

#[test]
fn a_second_add_is_refused() {
    let node = Node::new();
    node.ok(&["add", "net", "a"]);
    let (object, _) = node.fails(&["add", "net", "a"]);
    assert!(object["msg"].as_str().unwrap().contains("is attached already"), "{object}");
    assert_eq!(node.verbs(), ["ADD"]);
    // Another interface is another attachment.
    assert!(node.command(&["add", "net", "a"]).env("CNI_IFNAME", "net1").output().unwrap().status.success());
}

#[test]
fn a_failed_del_can_be_repeated() {
    let node = Node::new();
    node.ok(&["add", "net", "a"]);
    fs::write(node.path("DEL"), "").unwrap();
    node.fails(&["del", "net", "a"]);
    fs::remove_file(node.path("DEL")).unwrap();
    node.calls();
    node.ok(&["del", "net", "a"]);
    assert_eq!(input(&node.calls()[0])["generation"], 1);
}

#[test]
fn gc_deletes_attachments_without_a_namespace_and_names_the_rest_as_valid() {
    let node = Node::new();
    node.ok(&["add", "net", "a"]);
    node.ok(&["add", "net", "b"]);
    let b = node.calls().remove(1);
    fs::remove_file(node.path("netns/a")).unwrap();
    node.ok(&["gc", "net", "ignored", "--keep", "other/net7"]);
    let calls = node.calls();
    assert_eq!(calls.iter().map(|call| &call[0]).collect::<Vec<_>>(), ["DEL", "GC"]);
    assert_eq!(calls[0][2], "", "a namespace that is gone is not named");
    let expected =
        json!([{"containerID": "other", "ifname": "net7"}, {"containerID": b[1], "ifname": "eth0"}]);
    assert_eq!(input(&calls[1])["cni.dev/valid-attachments"], expected);
    let left: Value = serde_json::from_str(&node.ok(&["attachments", "--json"])).unwrap();
    assert_eq!(
        left,
        json!([{"network": "net", "containerID": b[1], "ifname": "eth0", "netns": node.path("netns/b"),
                             "ips": ["10.0.0.9/24"], "attached": true}])
    );
}

#[test]
fn gc_does_nothing_while_an_attachment_cannot_be_read() {
    let node = Node::new();
    node.ok(&["add", "net", "a"]);
    fs::write(node.path("cache/results/net-torn"), "{").unwrap();
    node.calls();
    let (object, told) = node.fails(&["gc", "net"]);
    assert_eq!(object["code"], 5);
    assert!(told.contains("cache/results/net-torn cannot be used"), "{told}");
    assert!(node.calls().is_empty());
}

#[test]
fn status_asks_the_plugins() {
    let node = Node::new();
    node.ok(&["status", "net"]);
    assert_eq!(node.verbs(), ["STATUS"]);
    fs::write(node.path("STATUS"), "").unwrap();
    assert_eq!(node.fails(&["status", "net", "ignored"]).0["code"], 123);
}

#[test]
fn an_unusable_setting_is_an_error_of_the_environment() {
    let node = Node::new();
    for (variable, value) in [("CNI_ARGS", "K"), ("CAP_ARGS", "[]"), ("CNI_IFNAME", "a/b")] {
        let output = node.command(&["add", "net", "a"]).env(variable, value).output().unwrap();
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &object["code"]), (Some(1), &json!(4)), "{variable}");
        assert!(object["msg"].as_str().unwrap().contains(variable), "{object}");
    }
    assert_eq!(node.fails(&["add", "other", "a"]).0["code"], 7);
    assert_eq!(node.fails(&["gc", "net", "--keep", "x"]).0["code"], 4);
    assert!(node.calls().is_empty());
    assert_eq!(node.run(&["add", "net"]).status.code(), Some(2), "a wrong command line");
}

#[test]
fn the_documentation_shows_the_real_output() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tasks/validate.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("`lab.conflist`\n\n```json\n").unwrap();
    let (conflist, rest) = rest.split_once("```").unwrap();
    let (_, rest) = rest.split_once("```\n").unwrap();
    let (shown, _) = rest.split_once("```").unwrap();
    let node = Node::new();
    fs::write(node.path("netns/lab.conflist"), conflist).unwrap();
    let output = node.run(&["validate", "lab.conflist"]);
    assert_eq!(
        (output.status.code(), String::from_utf8(output.stdout).unwrap()),
        (Some(1), shown.to_owned())
    );
}

#[test]
fn a_finding_names_file_and_place() {
    let node = Node::new();
    assert_eq!(node.ok(&["validate"]), "");
    node.configure(
        &json!({"type": "vlan", "vlanId": "${parameters.vlan}", "master": "eth1", "ipam": {"type": "dhcp"}}),
    );
    let file = node.path("net.d/10.conflist");
    let file = file.to_str().unwrap();
    assert_eq!(node.ok(&["validate", "--template", file]), "");
    let misspelt = node.path("misspelt");
    fs::write(&misspelt, fs::read_to_string(file).unwrap().replace("eth1", "${uplink.index}")).unwrap();
    let told = node.run(&["validate", "--template", misspelt.to_str().unwrap()]).stdout;
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains("error at `/plugins/0/master`: ${uplink.index} is unknown; use one of"), "{told}");
    let output = node.run(&["validate"]);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stdout).unwrap();
    let line = format!(
        "{file}: error at `/plugins/0/vlanId`: must be a whole number, not a string; write it without quotes\n"
    );
    assert_eq!(told, line);
    let output = node.run(&["validate", "--json", file]);
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&findings[0]["file"], &findings[0]["severity"]), (&json!(file), &json!("error")));
    assert_eq!(node.fails(&["validate", "/nonexistent.conflist"]).0["code"], 5);
}

#[test]
fn an_interrupted_add_ends_its_plugin_and_can_be_deleted() {
    let node = Node::new();
    let slow = PLUGIN.replace(
        "test \"$CNI_COMMAND\" != ADD ||",
        "test \"$CNI_COMMAND\" != ADD || { echo $$ > $d/pid; sleep 60; } ||",
    );
    fs::write(node.path("bin/mock"), slow).unwrap();
    let mut add = node.command(&["add", "net", "a"]).spawn().unwrap();
    let pid = loop {
        match fs::read_to_string(node.path("pid")).unwrap_or_default().trim().parse::<u32>() {
            Ok(pid) => break pid,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    };
    let signalled = Command::new("kill").arg(add.id().to_string()).status().unwrap();
    assert!(signalled.success());
    assert_eq!(add.wait().unwrap().code(), Some(130));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "the plugin goes on: {stat}");
    assert!(node.ok(&["attachments"]).contains("(ADD failed)"));
    node.ok(&["del", "net", "a"]);
    assert_eq!(node.ok(&["attachments", "--json"]).trim(), "[]");
}

#[test]
fn a_served_plugin_is_called_by_its_socket_until_the_daemon_is_ended() {
    let node = Node::new();
    fs::create_dir(node.path("container")).unwrap();
    let answers = "test \"$CNI_COMMAND\" != VERSION || { echo '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.1.0\"]}'; exit; }";
    let served = PLUGIN.replace("#!/bin/sh", &format!("#!/bin/sh\n{answers}"));
    fs::write(node.path("container/mock"), served).unwrap();
    fs::set_permissions(node.path("container/mock"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(node.path("bin/mock")).unwrap();
    let (bin, sockets) = (node.path("container"), node.path("run/cni"));
    let (bin, sockets) = (bin.to_str().unwrap(), sockets.to_str().unwrap());
    let serve = ["serve", "--type", "mock", "--bin", bin, "--sockets", sockets];
    let mut daemon = node.command(&serve).spawn().unwrap();
    while !node.path("run/cni/mock.sock").exists() {
        assert!(daemon.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    node.ok(&["add", "net", "a", "--cni-daemons", "mock", "--cni-sockets", sockets]);
    node.ok(&["check", "net", "a", "--cni-sockets", sockets]);
    let calls = node.calls();
    assert_eq!(calls.iter().map(|call| call[0].as_str()).collect::<Vec<_>>(), ["ADD", "CHECK"]);
    assert_eq!(calls[0][2..5], [node.path("netns/a").to_str().unwrap(), "eth0", "IgnoreUnknown=1;K=V"]);
    let second = node.run(&serve);
    assert!(String::from_utf8_lossy(&second.stderr).contains("another daemon listens at"), "{second:?}");

    assert!(Command::new("kill").arg(daemon.id().to_string()).status().unwrap().success());
    assert!(daemon.wait().unwrap().success());
    assert!(!node.path("run/cni/mock.sock").exists());
    let (error, told) = node.fails(&["del", "net", "a", "--cni-sockets", sockets]);
    assert_eq!(error["code"], 11, "try again later");
    assert!(told.contains("start the daemon that serves the plugin there"), "{told}");
    assert!(
        node.fails(&["del", "net", "a"]).1.contains("/run/netclaim/cni/mock.sock"),
        "where agents have it"
    );
}
