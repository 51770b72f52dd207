//! A runtime that remembers, with shell scripts as plugins: what is on disk when, who waits for whom, and
//! what single plugins are known to do.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::error::Error as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netclaim_cni::{
    AddOutcome, Attachment, AttachmentError, Attachments, Cache, Cached, CallPhase, CniResult, Effect,
    ErrorKind, NetworkList, Runtime, Stopped, TraceContext,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(30);
const RESULT: &str = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.9/24"}]}"#;

/// Notes its call, lists what is remembered at that moment, then does what the file of its name and verb
/// says.
const SCRIPT: &str = r#"#!/bin/sh
d=${0%/*/*}
me=${0##*/}
cat > "$d/$me.$CNI_COMMAND.in"
echo "$me $CNI_COMMAND netns=$CNI_NETNS trace=$TRACEPARENT known=$(ls "$d/cache/results" 2>/dev/null | wc -l)" >> "$d/calls"
if test -e "$d/$me.$CNI_COMMAND.do"; then . "$d/$me.$CNI_COMMAND.do"; fi
test "$CNI_COMMAND" != ADD || echo '{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.9/24"}]}'
"#;

/// Plugins, a cache, and attachments made with them.
struct Host {
    dir: TempDir,
    attachments: Attachments,
}

impl Host {
    fn with(plugins: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        for name in plugins {
            let path = dir.path().join("bin").join(name);
            fs::write(&path, SCRIPT).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let attachments = Self::attachments(dir.path());
        Self { dir, attachments }
    }

    /// What another process on the host would have.
    fn attachments(dir: &Path) -> Attachments {
        Attachments::new(Runtime::new(vec![dir.join("bin")]).unwrap(), Cache::new(dir.join("cache")))
    }

    fn on_call(&self, plugin: &str, verb: &str, script: &str) {
        fs::write(self.path(&format!("{plugin}.{verb}.do")), script).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn input(&self, plugin: &str, verb: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(&format!("{plugin}.{verb}.in"))).unwrap()).unwrap()
    }

    /// The calls since the last look.
    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("calls"));
        calls.lines().map(str::to_owned).collect()
    }

    /// Plugin and verb of each.
    fn verbs(&self) -> Vec<String> {
        let verb = |call: String| call.split(" netns=").next().unwrap_or_default().to_owned();
        self.calls().into_iter().map(verb).collect()
    }

    fn known(&self) -> Vec<AddOutcome> {
        let (known, unusable) = self.attachments.cache().attachments().unwrap();
        assert!(unusable.is_empty(), "{unusable:?}");
        known.into_iter().map(|known| known.outcome).collect()
    }
}

fn list(plugins: &Value) -> NetworkList {
    let json = json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins});
    NetworkList::parse(json.to_string().as_bytes()).unwrap()
}

/// An attachment to this test's own network namespace, which no script enters.
fn attachment(container: &str, if_name: &str) -> Attachment {
    let own = format!("/proc/{}/ns/net", std::process::id());
    Attachment::new(container.parse().unwrap(), Some(own.into()), if_name.parse().unwrap())
}

fn request(list: &NetworkList, attachment: &Attachment) -> Cached {
    Cached { list: list.clone(), attachment: attachment.clone(), outcome: AddOutcome::Unfinished(None) }
}

fn result() -> CniResult {
    CniResult::parse(RESULT, netclaim_cni::SpecVersion::V1_1_0).unwrap()
}

#[tokio::test]
async fn an_attachment_is_known_from_before_its_add_until_after_its_del() {
    let host = Host::with(&["a"]);
    let (net, c1) = (list(&json!([{"type": "a", "old": true}])), attachment("c1", "net1"));
    host.attachments.add(&net, &c1, LONG).await.unwrap();
    assert!(host.calls()[0].ends_with("known=1"), "known while the plugin runs");
    assert_eq!(host.known(), [AddOutcome::Attached(result())]);

    let error = host.attachments.add(&net, &c1, LONG).await.unwrap_err();
    assert!(matches!(&error, AttachmentError::Attached(_)), "{error}");

    let today = request(&list(&json!([{"type": "a", "old": false}])), &c1);
    host.attachments.check(net.name(), &c1, LONG).await.unwrap();
    host.attachments.del(&today, LONG).await.unwrap();
    assert_eq!(host.input("a", "DEL")["old"], true, "by the configuration of the ADD");
    assert!(host.calls()[1].ends_with("known=1"), "known while the plugin runs");
    assert_eq!(host.known(), []);
    // A DEL may be repeated; with nothing known it goes by what it is given.
    host.attachments.del(&today, LONG).await.unwrap();
    assert_eq!(host.input("a", "DEL")["old"], false);
    let error = host.attachments.check(net.name(), &c1, LONG).await.unwrap_err();
    assert!(matches!(&error, AttachmentError::NotAttached(_)), "{error}");
}

#[tokio::test]
async fn a_failed_add_is_known_with_the_last_good_result_and_collected() {
    let host = Host::with(&["a", "b"]);
    host.on_call("b", "ADD", r#"echo '{"code": 100, "msg": "no"}'; exit 1"#);
    let (net, c1) = (list(&json!([{"type": "a"}, {"type": "b"}])), attachment("c1", "net1"));
    let error = host.attachments.add(&net, &c1, LONG).await.unwrap_err();
    assert!(matches!(&error, AttachmentError::Add(failed) if failed.completed == 1), "{error}");
    let stopped = Stopped { completed: 1, effect: Effect::Unknown };
    assert_eq!(host.known(), [AddOutcome::Failed(stopped, Some(result()))]);
    assert!(host.attachments.check(net.name(), &c1, LONG).await.is_err());

    host.attachments.add(&net, &attachment("c2", "net1"), LONG).await.unwrap_err();
    host.calls();
    let done = host.attachments.gc(&net, &[attachment("foreign", "eth7").key()], LONG).await.unwrap();
    assert!(done.failed.is_empty(), "{done:?}");
    assert_eq!(done.deleted, [c1.key(), attachment("c2", "net1").key()]);
    assert_eq!(host.verbs(), ["b DEL", "a DEL", "b DEL", "a DEL", "a GC", "b GC"]);
    assert_eq!(host.input("b", "DEL")["prevResult"]["ips"][0]["address"], "10.0.0.9/24");
    let valid = json!([{"containerID": "foreign", "ifname": "eth7"}]);
    for spelling in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        assert_eq!(host.input("a", "GC")[spelling], valid);
    }
    assert_eq!(host.known(), []);
}

#[tokio::test]
async fn an_attachment_whose_del_fails_stays_known() {
    let host = Host::with(&["a"]);
    let (net, c1) = (list(&json!([{"type": "a"}])), attachment("c1", "net1"));
    host.attachments.add(&net, &c1, LONG).await.unwrap();
    host.on_call("a", "DEL", r#"echo '{"code": 100, "msg": "no"}'; exit 1"#);
    host.attachments.del(&request(&net, &c1), LONG).await.unwrap_err();
    assert_eq!(host.known().len(), 1);
    // It lives, so GC leaves it alone.
    let done = host.attachments.gc(&net, &[], LONG).await.unwrap();
    assert!(done.deleted.is_empty() && done.failed.is_empty(), "{done:?}");
    assert_eq!(host.input("a", "GC")["cni.dev/valid-attachments"][0]["containerID"], "c1");
}

#[tokio::test]
async fn a_container_that_the_plugin_does_not_know_is_deleted() {
    let host = Host::with(&["a", "b", "c"]);
    let (net, c1) = (list(&json!([{"type": "a"}, {"type": "b"}, {"type": "c"}])), attachment("c1", "net1"));
    host.attachments.add(&net, &c1, LONG).await.unwrap();
    host.on_call("c", "DEL", r#"echo '{"code": 3, "msg": "unknown container"}'; exit 1"#);
    host.on_call("b", "DEL", r#"echo '{"code": 100, "msg": "x", "effectState": "none"}'; exit 1"#);
    host.calls();
    host.attachments.del(&request(&net, &c1), LONG).await.unwrap();
    assert_eq!(host.verbs(), ["c DEL", "b DEL", "a DEL"]);
    assert_eq!(host.known(), []);
}

#[tokio::test]
async fn a_namespace_that_is_gone_is_not_named_and_its_addresses_are_released_by_the_ipam_plugin() {
    let host = Host::with(&["vlan", "sbr", "dhcp"]);
    let net = list(&json!([{"type": "vlan", "ipam": {"type": "dhcp"}}, {"type": "sbr"}]));
    // A file is what a namespace's mount leaves.
    let file = host.path("was-a-namespace");
    fs::write(&file, "").unwrap();
    let c1 = Attachment { netns: Some(file), ..attachment("c1", "net1") };
    host.attachments.add(&net, &c1, LONG).await.unwrap();
    host.on_call("vlan", "DEL", r#"echo '{"code": 999, "msg": "Link not found"}'; exit 1"#);
    host.on_call(
        "dhcp",
        "DEL",
        r#"echo '{"code": 999, "msg": "error dialing DHCP daemon: no such file"}'; exit 1"#,
    );
    host.calls();
    host.attachments.del(&request(&net, &c1), LONG).await.unwrap();
    let calls = host.calls();
    assert_eq!(calls.len(), 2, "sbr would only fail: {calls:?}");
    assert!(calls.iter().all(|call| call.contains("netns= ")), "{calls:?}");
    assert!(calls[0].starts_with("vlan DEL") && calls[1].starts_with("dhcp DEL"), "{calls:?}");
    assert_eq!(host.input("dhcp", "DEL")["ipam"]["type"], "dhcp", "with the configuration of its plugin");
    assert_eq!(host.known(), []);
}

#[tokio::test]
async fn a_failed_release_is_an_error_and_the_attachment_stays_known() {
    let host = Host::with(&["bridge", "host-local"]);
    let net = list(&json!([{"type": "bridge", "ipam": {"type": "host-local"}}]));
    let c1 = Attachment { netns: Some("/nonexistent".into()), ..attachment("c1", "net1") };
    host.attachments.add(&net, &c1, LONG).await.unwrap();
    host.on_call("bridge", "DEL", r#"echo '{"code": 999, "msg": "iptables"}'; exit 1"#);
    let error = host.attachments.del(&request(&net, &c1), LONG).await.unwrap_err();
    assert!(matches!(&error, AttachmentError::Left(errors) if errors.len() == 1), "{error}");
    assert!(error.to_string().contains("error 999: iptables"), "{error}");
    assert_eq!(host.known().len(), 1);
    assert!(!host.path("host-local.DEL.in").exists(), "the address is free beside what bridge has left");
    let left = host.attachments.give_up(&request(&net, &c1), LONG).await.unwrap();
    assert_eq!(left.len(), 1);
    assert!(host.path("host-local.DEL.in").exists());
    assert_eq!(host.known(), []);
}

#[tokio::test]
async fn a_del_goes_on_past_a_plugin_that_made_nothing_by_what_is_remembered() {
    let host = Host::with(&["a", "b"]);
    host.on_call("b", "ADD", r#"echo '{"code": 50, "msg": "away", "effectState": "none"}'; exit 1"#);
    host.on_call("b", "DEL", r#"echo '{"code": 11, "msg": "away"}'; exit 1"#);
    let (net, c1) = (list(&json!([{"type": "a"}, {"type": "b"}])), attachment("c1", "net1"));
    host.attachments.add(&net, &c1, LONG).await.unwrap_err();
    host.calls();
    host.attachments.del(&request(&net, &c1), LONG).await.unwrap();
    assert_eq!((host.verbs(), host.known()), (vec!["b DEL".to_owned(), "a DEL".to_owned()], vec![]));
}

#[tokio::test]
async fn an_add_that_made_nothing_can_be_repeated_and_its_failing_del_is_not_an_error() {
    let host = Host::with(&["a"]);
    host.on_call("a", "ADD", r#"echo '{"code": 50, "msg": "away", "effectState": "none"}'; exit 1"#);
    host.on_call("a", "DEL", r#"echo '{"code": 11, "msg": "away"}'; exit 1"#);
    let (net, c1) = (list(&json!([{"type": "a"}])), attachment("c1", "net1"));
    for _ in 0..2 {
        let error = host.attachments.add(&net, &c1, LONG).await.unwrap_err();
        assert!(matches!(&error, AttachmentError::Add(_)), "{error}");
    }
    host.attachments.del(&request(&net, &c1), LONG).await.unwrap();
    assert_eq!(host.known(), []);
}

#[tokio::test]
async fn two_attachments_of_a_container_to_one_network_do_not_share_a_bandwidth_device() {
    let host = Host::with(&["a", "bandwidth"]);
    let net = list(&json!([{"type": "a"}, {"type": "bandwidth"}]));
    let name = |verb: &str| host.input("bandwidth", verb)["name"].clone();
    for (if_name, expected) in [("net1", "net.net1"), ("net.2-b_c", "net.net.2-b_c")] {
        let attachment = attachment("c1", if_name);
        host.attachments.add(&net, &attachment, LONG).await.unwrap();
        assert_eq!((name("ADD"), host.input("a", "ADD")["name"].clone()), (json!(expected), json!("net")));
        host.attachments.del(&request(&net, &attachment), LONG).await.unwrap();
        assert_eq!(name("DEL"), expected);
    }
}

#[tokio::test]
async fn processes_wait_for_each_other_up_to_the_deadline() {
    let host = Host::with(&["a"]);
    let (net, c1) = (list(&json!([{"type": "a"}])), attachment("c1", "net1"));
    host.on_call("a", "ADD", "while ! test -e $d/go; do sleep 0.02; done");
    let other = Host::attachments(host.dir.path());
    let add = host.attachments.add(&net, &c1, LONG);
    let meanwhile = async {
        while host.calls().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let soon = Duration::from_millis(100);
        for waited in [other.del(&request(&net, &c1), soon).await, other.gc(&net, &[], soon).await.map(drop)]
        {
            let error = waited.unwrap_err();
            let AttachmentError::Plugin(error) = error else { panic!("{error}") };
            assert!(matches!(error.kind(), ErrorKind::Timeout { phase: CallPhase::Queued, .. }), "{error}");
        }
        assert!(host.calls().is_empty());
        fs::write(host.path("go"), "").unwrap();
        other.del(&request(&net, &c1), LONG).await
    };
    let (added, deleted) = tokio::join!(add, meanwhile);
    added.unwrap();
    deleted.unwrap();
    assert_eq!(host.known(), []);
}

#[tokio::test]
async fn nothing_runs_when_it_cannot_be_remembered() {
    let host = Host::with(&["a"]);
    fs::create_dir(host.path("cache")).unwrap();
    fs::write(host.path("cache/results"), "a file where the directory should be").unwrap();
    let error = host
        .attachments
        .add(&list(&json!([{"type": "a"}])), &attachment("c1", "net1"), LONG)
        .await
        .unwrap_err();
    assert!(matches!(&error, AttachmentError::Cache(_)), "{error}");
    assert!(host.calls().is_empty());
}

#[tokio::test]
async fn del_uses_the_version_that_add_used() {
    let host = Host::with(&["a"]);
    host.on_call(
        "a",
        "VERSION",
        r#"echo '{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0"]}'; exit 0"#,
    );
    let json = json!({"cniVersion": "1.1.0", "cniVersions": ["0.4.0", "1.0.0"], "name": "net", "plugins": [{"type": "a"}]});
    let net = NetworkList::parse(json.to_string().as_bytes()).unwrap();
    let c1 = attachment("c1", "net1");
    let result = host.attachments.add(&net, &c1, LONG).await.unwrap();
    assert_eq!(result.version().to_string(), "1.0.0");
    host.attachments.del(&request(&net, &c1), LONG).await.unwrap();
    for verb in ["ADD", "DEL"] {
        assert_eq!(host.input("a", verb)["cniVersion"], "1.0.0");
    }
    assert_eq!(host.verbs(), ["a VERSION", "a ADD", "a DEL"]);
}

#[tokio::test]
async fn plugins_are_told_the_trace_of_each_operation() {
    let host = Host::with(&["a"]);
    let net = list(&json!([{"type": "a"}]));
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let plain = attachment("c1", "net1");
    let traced = Attachment { trace: TraceContext::parse(parent), ..plain.clone() };
    host.attachments.add(&net, &traced, LONG).await.unwrap();
    host.attachments.check(net.name(), &traced, LONG).await.unwrap();
    host.attachments.del(&request(&net, &plain), LONG).await.unwrap();
    let calls = host.calls();
    let told = format!("trace={parent} ");
    assert!(
        calls[0].contains(&told) && calls[1].contains(&told) && calls[2].contains("trace= "),
        "{calls:?}"
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn plugins_are_found_and_run_in_another_mount_namespace() {
    let dir = tempfile::tempdir().unwrap();
    // A host whose plugin directory we do not see; a line on its standard input removes the plugin, the end
    // ends it.
    let there = r#"mount -t tmpfs none "$0" && printf '#!/bin/sh\ncat >/dev/null\nreadlink /proc/self/ns/mnt >&2\nsleep ${SECONDS_TO_SLEEP:-0}\nexit 7\n' > "$0/p" && chmod 755 "$0/p" && echo ready && read -r _ && rm "$0/p" && read -r _"#;
    let mut host = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", there])
        .arg(dir.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(host.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "ready\n", "needs root");
    let namespace = PathBuf::from(format!("/proc/{}/ns/mnt", host.id()));

    let runtime = || Runtime::new(vec![dir.path().to_owned()]).unwrap();
    let net = list(&json!([{"type": "p"}]));
    assert!(runtime().find_all(&net).is_err(), "not in this one");
    let there = runtime().in_mount_namespace(&namespace).unwrap();
    there.find_all(&net).unwrap();
    let error = there.add(&net, &attachment("c1", "net1"), LONG).await.unwrap_err().error;
    assert!(matches!(error.kind(), ErrorKind::Silent { status: 7 }), "{error}");
    assert_eq!(error.stderr().trim(), fs::read_link(&namespace).unwrap().to_str().unwrap());
    assert_ne!(
        fs::read_link("/proc/self/ns/mnt").unwrap(),
        fs::read_link(&namespace).unwrap(),
        "and we stayed"
    );

    // Deadlines hold there too.
    let slow = runtime().with_env("SECONDS_TO_SLEEP", "60").in_mount_namespace(&namespace).unwrap();
    let error = slow.add(&net, &attachment("c1", "net1"), Duration::from_secs(1)).await.unwrap_err().error;
    assert!(matches!(error.kind(), ErrorKind::Timeout { phase: CallPhase::Running, .. }), "{error}");

    let own = runtime().in_mount_namespace(Path::new("/proc/self/ns/mnt")).unwrap_err();
    assert!(own.source().unwrap().to_string().contains("this program's own"), "{own}");
    let missing = runtime().in_mount_namespace(Path::new("/nonexistent/mnt")).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/mnt cannot be entered"), "{missing}");

    // What changes there is told.
    let mut changes = there.bin_changes().unwrap();
    let mut input = host.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    tokio::time::timeout(LONG, changes.tick()).await.expect("told").unwrap();
    assert!(there.find_all(&net).is_err(), "it is gone");
    drop(input);
    host.wait().unwrap();
}

#[tokio::test]
async fn a_namespace_that_cannot_be_looked_at_is_not_taken_for_gone() {
    let host = Host::with(&["a"]);
    let net = list(&json!([{"type": "a"}]));
    let path = host.path("loop");
    std::os::unix::fs::symlink(&path, &path).unwrap();
    let c1 = Attachment { netns: Some(path), ..attachment("c1", "net1") };
    host.attachments.add(&net, &c1, LONG).await.unwrap();
    host.calls();
    let error = host.attachments.del(&request(&net, &c1), LONG).await.unwrap_err();
    assert!(matches!(&error, AttachmentError::Netns { .. }), "{error}");
    let done = host.attachments.gc(&net, &[], LONG).await.unwrap();
    assert_eq!((done.deleted.len(), done.failed.len()), (0, 1));
    assert_eq!(host.verbs(), ["a GC"]);
    assert_eq!(host.input("a", "GC")["cni.dev/valid-attachments"][0]["containerID"], "c1");
}

#[tokio::test]
async fn a_bandwidth_device_that_another_runtime_has_made_keeps_its_name() {
    let host = Host::with(&["bandwidth"]);
    let net = list(&json!([{"type": "bandwidth"}]));
    // By libcni's call for network `net` and container `c1`.
    let made = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"bwp623e1c388032"}]}"#;
    let made = CniResult::parse(made, netclaim_cni::SpecVersion::V1_1_0).unwrap();
    let known =
        Cached { outcome: AddOutcome::Unfinished(Some(made)), ..request(&net, &attachment("c1", "net1")) };
    host.attachments.del(&known, LONG).await.unwrap();
    assert_eq!(host.input("bandwidth", "DEL")["name"], "net");
}

#[tokio::test]
async fn a_plugin_that_cannot_tell_its_versions_gets_the_highest() {
    let host = Host::with(&["a"]);
    host.on_call("a", "VERSION", "exit 1");
    let json = json!({"cniVersion": "1.1.0", "cniVersions": ["0.4.0", "1.1.0"], "name": "net", "plugins": [{"type": "a"}]});
    let net = NetworkList::parse(json.to_string().as_bytes()).unwrap();
    host.attachments.add(&net, &attachment("c1", "net1"), LONG).await.unwrap();
    assert_eq!(host.input("a", "ADD")["cniVersion"], "1.1.0");
}

#[tokio::test]
async fn names_that_make_no_file_name_are_remembered_too() {
    let host = Host::with(&["a"]);
    let json = json!({"cniVersion": "1.1.0", "name": "n".repeat(250), "plugins": [{"type": "a"}]});
    let net = NetworkList::parse(json.to_string().as_bytes()).unwrap();
    let (one, two) = (attachment("c1", "net1"), attachment("c2", "net1"));
    for attachment in [&one, &two] {
        host.attachments.add(&net, attachment, LONG).await.unwrap();
    }
    assert_eq!(host.known().len(), 2);
    for attachment in [&one, &two] {
        host.attachments.check(net.name(), attachment, LONG).await.unwrap();
        host.attachments.del(&request(&net, attachment), LONG).await.unwrap();
    }
    assert_eq!(host.known(), []);
}

#[tokio::test]
async fn an_unreadable_file_of_another_network_does_not_stop_gc() {
    let host = Host::with(&["a"]);
    let net = list(&json!([{"type": "a"}]));
    fs::create_dir_all(host.path("cache/results")).unwrap();
    fs::write(host.path("cache/results/other-c1-net1"), "").unwrap();
    host.attachments.gc(&net, &[], LONG).await.unwrap();
    fs::write(host.path("cache/results/net-c1-net1"), "").unwrap();
    let error = host.attachments.gc(&net, &[], LONG).await.unwrap_err();
    assert!(matches!(&error, AttachmentError::Cache(_)), "{error}");
}
