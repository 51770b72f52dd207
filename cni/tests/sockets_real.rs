//! Reference plugins that a daemon serves, in network namespaces of this test's own, and what a call by
//! socket costs beside a process. Needs root, iptables, and `NETCLAIM_CNI_BIN`, the directory of the plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netclaim_cni::{Attachment, NetworkList, PluginType, Runtime, ServeError, serve};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use plugin_host::{LONG, Netns, attachment, on_a_host, run};

fn bin() -> PathBuf {
    std::env::var_os("NETCLAIM_CNI_BIN").unwrap().into()
}

/// Has the thread see mounts that no other sees.
fn own_mounts() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
}

/// Mounts the namespace where a daemon sees it, too.
fn mounted(dir: &Path, container: &str, netns: &Netns) -> Attachment {
    let path = dir.join(container);
    File::create(&path).unwrap();
    let none: Option<&str> = None;
    mount(Some(&netns.path()), &path, none, MsFlags::MS_BIND, none).unwrap();
    Attachment { netns: Some(path), ..attachment(container, netns) }
}

fn types(names: &[&str]) -> Vec<PluginType> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

async fn daemon(dir: &Path, types: &[&str]) -> (oneshot::Sender<()>, JoinHandle<Result<(), ServeError>>) {
    let (end, ended) = oneshot::channel();
    let names = self::types(types);
    let (runtime, sockets) = (Runtime::new(vec![bin()]).unwrap().with_env("GOMAXPROCS", "1"), dir.to_owned());
    let task = tokio::spawn(async move {
        let log = |text: &str| eprintln!("{text}");
        serve(runtime, &names, &sockets, log, async { ended.await.unwrap_or_default() }).await
    });
    while !types.iter().all(|name| dir.join(format!("{name}.sock")).exists()) {
        assert!(!task.is_finished(), "{:?}", task.await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (end, task)
}

#[test]
#[ignore = "needs root, iptables and NETCLAIM_CNI_BIN"]
fn portmap_and_firewall_of_a_daemon_are_added_checked_and_deleted_in_a_chain() {
    on_a_host(&[], async |host| {
        own_mounts();
        let (dirs, only_bridge) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let sockets = dirs.path().join("sockets");
        for plugin in ["bridge", "host-local"] {
            std::os::unix::fs::symlink(bin().join(plugin), only_bridge.path().join(plugin)).unwrap();
        }
        // The host has neither plugin.
        let runtime = Runtime::new(vec![only_bridge.path().to_owned()])
            .unwrap()
            .with_daemons(&sockets, types(&["portmap", "firewall"]));
        let list = host.list(
            "b",
            json!([
                {"type": "bridge", "bridge": "br9", "isGateway": true, "ipam": host.subnet("10.9.0.0/24")},
                {"type": "portmap", "snat": false, "capabilities": {"portMappings": true}},
                {"type": "firewall", "backend": "iptables"},
            ]),
        );
        runtime.find_all(&list).unwrap_err();
        let (end, task) = daemon(&sockets, &["portmap", "firewall"]).await;
        let list = runtime.settle(&list).await.unwrap();
        let netns = Netns::new();
        let mut attachment = mounted(dirs.path(), "c1", &netns);
        let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        attachment.capability_args.insert("portMappings", ports);
        let rules = || run("iptables-save");
        let before = rules();
        let result = runtime.add(&list, &attachment, LONG).await.unwrap();
        let added = rules();
        assert!(added.contains("--dport 8080") && added.contains("10.9.0.2/32 -m conntrack"), "{added}");
        runtime.check(&list, &attachment, &result, LONG).await.unwrap();
        runtime.status(&list, LONG).await.unwrap();

        // The daemon is killed between ADD and DEL.
        task.abort();
        let _ = (end, task.await);
        let error = runtime.del(&list, &attachment, Some(&result), LONG).await.unwrap_err();
        assert!(error.is_of_daemon(), "{error:?}");
        assert!(rules().contains("--dport 8080"), "it waits");
        let (end, task) = daemon(&sockets, &["portmap", "firewall"]).await;
        for _ in 0..2 {
            runtime.del(&list, &attachment, Some(&result), LONG).await.unwrap();
        }
        let left = rules();
        assert!(!left.contains("8080") && !left.contains("10.9.0.2"), "{before}\n{left}");
        assert!(!netns.has_link("net1"));
        assert_eq!(host.reserved("b"), [""; 0]);
        let _ = end.send(());
        task.await.unwrap().unwrap();
    });
}

#[test]
#[ignore = "needs root, iptables and NETCLAIM_CNI_BIN"]
fn a_bridge_of_a_daemon_masquerades_and_frees_its_address_after_the_namespace() {
    on_a_host(&[], async |host| {
        own_mounts();
        let (dirs, nothing) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let sockets = dirs.path().join("sockets");
        let runtime = Runtime::new(vec![nothing.path().to_owned()])
            .unwrap()
            .with_daemons(&sockets, types(&["bridge", "host-local"]));
        let list = host.list(
            "m",
            json!([
                {"type": "bridge", "bridge": "br8", "isGateway": true, "ipMasq": true,
                 "ipam": host.subnet("10.8.0.0/24")},
            ]),
        );
        let (_end, _task) = daemon(&sockets, &["bridge", "host-local"]).await;
        let list = runtime.settle(&list).await.unwrap();
        for is_gone in [false, true] {
            let netns = Netns::new();
            let container = if is_gone { "c2" } else { "c1" };
            let mut attachment = mounted(dirs.path(), container, &netns);
            let result = runtime.add(&list, &attachment, LONG).await.unwrap();
            assert!(run("iptables-save -t nat").contains("MASQUERADE"));
            if is_gone {
                attachment.netns = None;
                let errors = runtime.release(&list, &attachment, Some(&result), LONG, |_| false).await;
                assert!(errors.is_empty(), "{errors:?}");
            } else {
                runtime.del(&list, &attachment, Some(&result), LONG).await.unwrap();
                assert!(!run("iptables-save -t nat").contains("MASQUERADE"));
            }
            assert_eq!(host.reserved("m"), [""; 0]);
        }
    });
}

/// Processor time of this process and of its children that have ended, in microseconds.
fn used() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // A tick is 10 ms.
    stat.rsplit(')')
        .next()
        .unwrap()
        .split(' ')
        .skip(12)
        .take(4)
        .map(|n| n.parse::<u64>().unwrap() * 10_000)
        .sum()
}

/// Runs `call` often, and prints its latency and the processor time, daemon and plugins included.
async fn measured(what: &str, mut call: impl AsyncFnMut()) {
    const TIMES: u32 = 200;
    let (before, mut took) = (used(), Vec::new());
    for _ in 0..TIMES {
        let start = Instant::now();
        call().await;
        took.push(start.elapsed());
    }
    took.sort();
    let each = (used() - before) / u64::from(TIMES);
    println!(
        "{what:<40} p50 {:>5} us   p95 {:>5} us   CPU {each:>5} us",
        took[100].as_micros(),
        took[190].as_micros()
    );
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN; prints figures"]
fn a_call_by_socket_is_measured_beside_a_process() {
    on_a_host(&[], async |host| {
        own_mounts();
        let dirs = tempfile::tempdir().unwrap();
        let sockets = dirs.path().join("sockets");
        let (_end, _task) = daemon(&sockets, &["static"]).await;
        let by_exec = || Runtime::new(vec![bin()]).unwrap().with_env("GOMAXPROCS", "1");
        let by_socket = || by_exec().with_daemons(&sockets, types(&["static"]));
        let plugin = "static".parse().unwrap();
        let netns = Netns::new();
        let attachment = mounted(dirs.path(), "c1", &netns);
        let ipam = json!({"type": "static", "addresses": [{"address": "10.1.1.1/24"}]});
        let list = host.list("t", json!([{"type": "static", "ipam": ipam}]));
        let served = by_socket().settle(&list).await.unwrap();
        assert_eq!(served.sockets().unwrap().len(), 1);
        let (exec, socket) = (by_exec(), by_socket());
        let add = async |runtime: &Runtime, list: &NetworkList| {
            drop(runtime.add(list, &attachment, LONG).await.unwrap());
        };
        for _ in 0..2 {
            measured("VERSION by exec", async || drop(by_exec().versions(&plugin).await.unwrap())).await;
            // The daemon remembers what its program said.
            measured("VERSION by socket", async || drop(by_socket().versions(&plugin).await.unwrap())).await;
            measured("ADD by exec", async || add(&exec, &list).await).await;
            measured("ADD by socket, of a daemon that executes", async || add(&socket, &served).await).await;
        }
    });
}
