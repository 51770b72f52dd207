//! How operations of the node's pods go together, among themselves and with other programs: shell scripts
//! stand for plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netclaim_cni::{Cache, CniResult, NetworkList, Runtime};
use netclaim_driver::attach::retry::Attempt;
use netclaim_driver::attach::{Attach as _, CniPlugins, Del, DelOutcome, Sandbox, Spec};
use netclaim_driver::links::Links;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(30);
/// How long to wait for another process that is in the way.
const SHORT: Duration = Duration::from_millis(300);
/// Less than a plugin that hangs takes, and more than a busy machine needs.
const SOON: Duration = Duration::from_secs(10);

/// A node with two plugins: `works` notes what it is asked, `hangs` notes it and does not answer.
struct Node(TempDir);

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, then) in [("works", r#"echo '{"cniVersion":"1.1.0"}'"#), ("hangs", "exec sleep 60")] {
            let path = dir.path().join(name);
            let script = format!("#!/bin/sh\necho $CNI_COMMAND >> {}/asked\n{then}\n", dir.path().display());
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self(dir)
    }

    fn network(&self, timeout: Duration) -> CniPlugins {
        let runtime = Runtime::new(vec![self.0.path().to_owned()]).unwrap();
        CniPlugins::new(runtime, self.cache(), Links::new("/sys"), timeout)
    }

    /// As every program of the node sees it.
    fn cache(&self) -> Cache {
        Cache::new(self.0.path().join("cache"))
    }

    fn asked(&self) -> Vec<String> {
        let asked = fs::read_to_string(self.0.path().join("asked")).unwrap_or_default();
        asked.lines().map(str::to_owned).collect()
    }
}

/// An attachment to a network of this name, by this plugin.
fn spec(name: &str, plugin: &str) -> Spec {
    let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": [{"type": plugin}]});
    Spec {
        tenant: "default".to_owned(),
        if_name: "net1".parse().unwrap(),
        conflist: NetworkList::parse(list.to_string().as_bytes()).unwrap(),
        args: Default::default(),
        capability_args: Default::default(),
        wire: Default::default(),
    }
}

/// A DEL of an unknown attachment.
fn del<'a>(netns: Option<&'a Path>, result: Option<&'a CniResult>) -> Del<'a> {
    Del { sandbox_id: "s1", netns, result, ..Del::default() }
}

fn sandbox(id: &str) -> Sandbox {
    let netns_id = json!({"dev": 4, "ino": 1});
    let sandbox = json!({"id": id, "netns": "/run/netns/none", "netnsId": netns_id, "bootId": "b"});
    serde_json::from_value(sandbox).unwrap()
}

#[tokio::test]
async fn operations_wait_for_another_programs_gc_of_their_network() {
    let (node, spec) = (Node::new(), spec("n", "works"));
    let (network, impatient) = (node.network(LONG), node.network(SHORT));
    let gc = node.cache().lock_network(&"n".parse().unwrap(), (Instant::now() + LONG).into()).await.unwrap();
    assert!(gc.is_some());
    let busy = "another program has worked on network `n`";
    let error = impatient.add(&spec, &sandbox("s1")).await.unwrap_err().failure.message;
    assert!(error.contains(busy), "{error}");
    let error = impatient.del(&spec, del(None, None)).await.unwrap_err().message;
    assert!(error.contains(busy), "{error}");
    assert_eq!(node.asked(), [""; 0]);
    drop(gc);
    let result = network.add(&spec, &sandbox("s1")).await.unwrap();
    let netns = Path::new("/run/netns/none");
    assert_eq!(network.del(&spec, del(Some(netns), Some(&result))).await, Ok(DelOutcome::Clean));
    assert_eq!(node.asked(), ["ADD", "DEL"]);
}

#[tokio::test]
async fn operations_wait_for_another_programs_work_on_their_container() {
    let (node, spec) = (Node::new(), spec("n", "works"));
    let until = Instant::now() + LONG;
    let other = node.cache().lock(&"s1".parse().unwrap(), &"other".parse().unwrap(), until.into()).await;
    let other = other.unwrap().unwrap();
    node.network(SHORT).add(&spec, &sandbox("s1")).await.unwrap_err();
    assert_eq!(node.asked(), [""; 0]);
    drop(other);
    node.network(LONG).add(&spec, &sandbox("s1")).await.unwrap();
}

#[tokio::test]
async fn gc_waits_for_everybody_who_works_on_its_network() {
    let (node, spec) = (Node::new(), spec("netclaim-n", "works"));
    let until = Instant::now() + LONG;
    let (container, name) = ("c1".parse().unwrap(), "netclaim-n".parse().unwrap());
    let other = node.cache().lock(&container, &name, until.into()).await.unwrap().unwrap();
    let error = node.network(SHORT).collect(&spec, Vec::new).await.unwrap_err().message;
    assert!(error.contains("busy"), "{error}");
    assert_eq!(node.asked(), [""; 0]);
    drop(other);
    assert_eq!(node.network(LONG).collect(&spec, Vec::new).await, Ok(0));
    assert_eq!(node.asked(), ["GC"]);
}

/// A network whose main plugin has an address, with a chained plugin that keeps something on the host.
fn with_an_address() -> Spec {
    let plugins = json!([{"type": "works", "ipam": {"type": "works"}}, {"type": "keeps"}]);
    let list = json!({"cniVersion": "1.1.0", "name": "n", "plugins": plugins});
    Spec { conflist: NetworkList::parse(list.to_string().as_bytes()).unwrap(), ..spec("n", "works") }
}

/// Has the chained plugin fail with this error. It notes nothing.
fn keeps(node: &Node, error: &str) {
    let path = node.0.path().join("keeps");
    fs::write(&path, format!("#!/bin/sh\necho '{error}'\nexit 1\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

const NO: &str = r#"{"code": 100, "msg": "no"}"#;
const LATER: &str = r#"{"code": 11, "msg": "the daemon is away"}"#;

#[tokio::test]
async fn an_address_stays_taken_until_the_plugin_that_cannot_delete_is_given_up() {
    for (error, tries) in [(NO, 3), (LATER, 8)] {
        let (node, spec) = (Node::new(), with_an_address());
        keeps(&node, error);
        let network = node.network(LONG);
        for attempt in 0..tries {
            assert_eq!(node.asked(), [""; 0], "{error}: attempt {attempt}");
            let outcome = network.del(&spec, Del { attempt: Attempt(attempt), ..del(None, None) }).await;
            match outcome {
                Ok(DelOutcome::GivenUp(why)) => {
                    assert!(attempt + 1 == tries && why.contains("keeps"), "{why}")
                }
                Err(failure) => assert!(attempt + 1 < tries, "{failure}"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(node.asked(), ["DEL", "DEL"], "the main plugin, and its IPAM plugin");
    }
}

#[tokio::test]
async fn an_attachment_of_a_daemon_waits_for_the_daemon_and_is_given_up_late() {
    let (node, mut spec) = (Node::new(), spec("n", "works"));
    let list = json!({"cniVersion": "1.1.0", "name": "n", "netclaim.dev/sockets": ["works"],
        "plugins": [{"type": "works"}]});
    spec.conflist = NetworkList::parse(list.to_string().as_bytes()).unwrap();
    let network = node.network(LONG);
    for (attempt, is_given_up) in [(0, false), (7, false), (58, false), (59, true)] {
        let outcome = network.del(&spec, Del { attempt: Attempt(attempt), ..del(None, None) }).await;
        match outcome {
            Ok(DelOutcome::GivenUp(why)) => assert!(is_given_up && why.contains("its daemon"), "{why}"),
            Err(failure) => assert!(!is_given_up, "{failure}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(node.asked(), [""; 0], "the program of the same name is not run instead");
}

#[tokio::test]
async fn after_a_reboot_nothing_keeps_an_address_taken() {
    let (node, spec) = (Node::new(), with_an_address());
    keeps(&node, LATER);
    let del = Del { after_reboot: true, ..del(None, None) };
    node.network(LONG).del(&spec, del).await.unwrap_err();
    assert_eq!(node.asked(), ["DEL", "DEL"]);
}

#[tokio::test]
async fn the_lease_of_an_unknown_sandbox_is_freed_when_every_plugin_has_succeeded_or_is_given_up() {
    let node = Node::new();
    let leases = node.0.path().join("leases");
    fs::create_dir_all(leases.join("netclaim-n")).unwrap();
    fs::write(leases.join("netclaim-n/10.9.0.7"), "dead\r\nnet1").unwrap();
    let ipam = json!({"type": "host-local", "dataDir": leases, "ranges": [[{"subnet": "10.9.0.0/24"}]]});
    let plugins = json!([{"type": "works", "ipam": ipam}, {"type": "keeps"}]);
    let list = json!({"cniVersion": "1.0.0", "name": "netclaim-n", "plugins": plugins});
    let conflist = NetworkList::parse(list.to_string().as_bytes()).unwrap();
    let spec = Spec { conflist, ..spec("n", "works") };
    fs::copy(node.0.path().join("works"), node.0.path().join("host-local")).unwrap();
    keeps(&node, NO);
    let network = node.network(LONG);
    for _ in 0..2 {
        network.collect(&spec, Vec::new).await.unwrap_err();
        assert_eq!(node.asked(), [""; 0]);
    }
    assert_eq!(network.collect(&spec, Vec::new).await, Ok(1));
    assert_eq!(node.asked(), ["DEL", "DEL"]);
}

#[tokio::test]
async fn a_reservation_that_the_power_cut_short_is_removed_by_gc_if_it_is_not_being_written() {
    let node = Node::new();
    let leases = node.0.path().join("leases");
    let of = leases.join("netclaim-n");
    fs::create_dir_all(&of).unwrap();
    for (ip, text) in
        [("10.9.0.7", ""), ("10.9.0.8", "\r\n"), ("10.9.0.9", ""), ("10.9.0.10", "valid\r\nnet1")]
    {
        fs::write(of.join(ip), text).unwrap();
        let made = std::time::SystemTime::now() - Duration::from_secs(if ip == "10.9.0.9" { 5 } else { 120 });
        fs::File::options().write(true).open(of.join(ip)).unwrap().set_modified(made).unwrap();
    }
    let ipam = json!({"type": "host-local", "dataDir": leases, "ranges": [[{"subnet": "10.9.0.0/24"}]]});
    let list =
        json!({"cniVersion": "1.0.0", "name": "netclaim-n", "plugins": [{"type": "works", "ipam": ipam}]});
    let conflist = NetworkList::parse(list.to_string().as_bytes()).unwrap();
    let spec = Spec { conflist, ..spec("n", "works") };
    fs::copy(node.0.path().join("works"), node.0.path().join("host-local")).unwrap();
    let valid = || vec![("valid".parse().unwrap(), "net1".parse().unwrap())];
    assert_eq!(node.network(LONG).collect(&spec, valid).await, Ok(2));
    let left: std::collections::BTreeSet<String> =
        fs::read_dir(&of).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(left.into_iter().collect::<Vec<_>>(), ["10.9.0.10", "10.9.0.9"]);
}

#[tokio::test]
async fn an_add_that_made_another_interface_than_asked_has_failed_and_owes_its_del() {
    let (node, mut spec) = (Node::new(), spec("n", "says"));
    let interface = json!({"name": "net1", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/none"});
    let made = json!({"cniVersion": "1.1.0", "interfaces": [interface]}).to_string();
    let script =
        format!("#!/bin/sh\necho $CNI_COMMAND >> {}/asked\necho '{made}'\n", node.0.path().display());
    fs::write(node.0.path().join("says"), script).unwrap();
    fs::set_permissions(node.0.path().join("says"), fs::Permissions::from_mode(0o755)).unwrap();
    let network = node.network(LONG);
    network.add(&spec, &sandbox("s1")).await.unwrap();
    spec.capability_args.mac = Some("02:73:00:00:00:01".to_owned().try_into().unwrap());
    let failed = network.add(&spec, &sandbox("s2")).await.unwrap_err();
    assert!(failed.owes_del() && failed.last_good.is_some(), "{failed:?}");
    let words = "MAC address 02:00:00:00:00:02 instead of 02:73:00:00:00:01";
    assert!(failed.failure.message.contains(words), "{}", failed.failure.message);
}

#[tokio::test]
async fn an_add_that_made_nothing_owes_no_del() {
    let (node, spec) = (Node::new(), spec("n", "missing"));
    let failed = node.network(LONG).add(&spec, &sandbox("s1")).await.unwrap_err();
    assert!(!failed.owes_del(), "{failed:?}");
    let chain = with_an_address();
    keeps(&node, r#"{"code": 50, "msg": "away", "effectState": "none"}"#);
    let failed = node.network(LONG).add(&chain, &sandbox("s1")).await.unwrap_err();
    assert!(failed.owes_del() && failed.last_good.is_some(), "the first plugin has made something");
    let (known, _) = node.cache().attachments().unwrap();
    assert_eq!(known[0].outcome.stopped(), failed.stopped, "for tools");
}

#[tokio::test]
async fn forty_pods_of_a_network_that_hangs_do_not_hold_up_a_pod_of_another_one() {
    let node = Node::new();
    let network = Arc::new(node.network(LONG));
    let mut hanging = JoinSet::new();
    for pod in 0..40 {
        let network = Arc::clone(&network);
        hanging.spawn(async move {
            network.add(&spec("dead", "hangs"), &sandbox(&format!("dead{pod}"))).await.unwrap_err()
        });
    }
    let start = Instant::now();
    while node.asked().is_empty() {
        assert!(start.elapsed() < SOON, "no plugin hangs");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let start = Instant::now();
    network.add(&spec("alive", "works"), &sandbox("s1")).await.unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    // Dropped, they end their plugins.
    hanging.shutdown().await;
}
