//! Plugins that daemons serve on sockets: the client, and the daemon that runs programs. Shell scripts stand
//! for plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netclaim_cni::{
    AddOutcome, Attachment, Attachments, Cache, Cached, CallPhase, Effect, Error, ErrorKind, NetworkList,
    Retry, Runtime, STDOUT_LIMIT, ServeError, SpecVersion, error_chain, serve,
};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(30);
/// Long enough for a script to begin on a busy machine.
const SHORT: Duration = Duration::from_secs(1);
/// Prints what ADD needs, and leaves its verb in the trace `calls`.
const NOTES: &str =
    "cat > $D/stdin; env | sort > $D/env; echo $CNI_COMMAND >> $D/calls; echo '{\"cniVersion\":\"1.1.0\"}'";
const VERSIONS: &str = r#"[ $CNI_COMMAND = VERSION ] && { echo v >> $D/versions
exec echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}'; };"#;

/// Programs on the host, those in the daemon's container, and the directory of sockets.
struct World {
    host: TempDir,
    container: TempDir,
    sockets: TempDir,
    log: Arc<Mutex<String>>,
}

struct Daemon {
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Daemon {
    async fn end(self) {
        let _ = self.end.send(());
        self.task.await.unwrap().unwrap();
    }
}

impl World {
    fn new() -> Self {
        let dir = || tempfile::tempdir().unwrap();
        Self { host: dir(), container: dir(), sockets: dir(), log: Arc::default() }
    }

    fn install(dir: &TempDir, name: &str, script: &str) {
        let path = dir.path().join(name);
        let script = format!("#!/bin/sh\nD={}\n{VERSIONS}\n{script}\n", dir.path().display());
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn on_host(self, name: &str, script: &str) -> Self {
        Self::install(&self.host, name, script);
        self
    }

    fn in_container(self, name: &str, script: &str) -> Self {
        Self::install(&self.container, name, script);
        self
    }

    /// Runs programs of the host alone.
    fn programs(&self) -> Runtime {
        Runtime::new(vec![self.host.path().to_owned()]).unwrap()
    }

    /// `q` and `i` are daemons.
    fn runtime(&self) -> Runtime {
        self.programs().with_daemons(self.sockets.path(), ["q", "i"].map(|name| name.parse().unwrap()))
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.sockets.path().join(format!("{name}.sock"))
    }

    /// Serves the container's `types`. Returns when they can be called.
    async fn daemon(&self, types: &[&str]) -> Daemon {
        let before = types.iter().map(|name| fs::symlink_metadata(self.socket(name)).map(|s| s.ino()).ok());
        let before: Vec<_> = before.collect();
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(self.serve(types, ended));
        let start = Instant::now();
        for (name, before) in types.iter().zip(before) {
            while fs::symlink_metadata(self.socket(name)).map(|s| s.ino()).ok() == before {
                assert!(start.elapsed() < LONG, "no socket: {:?}", task.await);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Daemon { end, task }
    }

    fn serve(
        &self,
        types: &[&str],
        ended: oneshot::Receiver<()>,
    ) -> impl Future<Output = Result<(), ServeError>> + Send + 'static {
        let runtime = Runtime::new(vec![self.container.path().to_owned()]).unwrap();
        let types: Vec<_> = types.iter().map(|name| name.parse().unwrap()).collect();
        let (dir, log) = (self.sockets.path().to_owned(), Arc::clone(&self.log));
        async move {
            let log = move |text: &str| log.lock().unwrap().push_str(text);
            serve(runtime, &types, &dir, log, async { ended.await.unwrap_or_default() }).await
        }
    }

    async fn settled(&self, plugins: &[&str]) -> NetworkList {
        self.runtime().settle(&network(plugins)).await.unwrap()
    }
}

fn trace(dir: &TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(name)).unwrap_or_default()
}

fn network(plugins: &[&str]) -> NetworkList {
    let plugins: Vec<_> = plugins.iter().map(|p| format!(r#"{{"type":"{p}","x":1.50}}"#)).collect();
    let json =
        format!(r#"{{"cniVersions":["1.0.0","1.1.0"],"name":"net","plugins":[{}]}}"#, plugins.join(","));
    NetworkList::parse(json.as_bytes()).unwrap()
}

fn attachment() -> Attachment {
    Attachment::new("c1".parse().unwrap(), Some("/run/netns/x".into()), "net1".parse().unwrap())
}

/// The failure of a call that goes to `world`'s daemon of `q`.
async fn failed_add(world: &World, deadline: Duration) -> Error {
    let list = list_of_q();
    world.runtime().add(&list, &attachment(), deadline).await.unwrap_err().error
}

/// A settled list with `q` on a socket.
fn list_of_q() -> NetworkList {
    let json = r#"{"cniVersion":"1.1.0","name":"net","netclaim.dev/sockets":["q"],"plugins":[{"type":"q"}]}"#;
    NetworkList::parse(json.as_bytes()).unwrap()
}

#[tokio::test]
async fn a_chain_is_deleted_the_way_it_was_added_while_its_daemon_comes_and_goes() {
    let world = World::new().on_host("p", NOTES).on_host("q", NOTES).in_container("q", NOTES);
    let daemon = world.daemon(&["q"]).await;
    let list = world.settled(&["p", "q"]).await;
    let stored = NetworkList::parse(list.raw().as_bytes()).unwrap();
    let older = list.pinned(SpecVersion::V1_0_0).unwrap();
    for settled in [&list, &older] {
        let same = network(&["p", "q"]).settled_as(settled).unwrap();
        assert_eq!((same.version(), same.sockets()), (settled.version(), settled.sockets()));
    }
    assert_eq!(network(&["p", "q"]).settled_as(&list).unwrap(), list);
    assert_eq!(stored.sockets().unwrap().iter().map(|t| t.as_str()).collect::<Vec<_>>(), ["q"]);
    let runtime = world.runtime();
    let result = runtime.add(&stored, &attachment(), LONG).await.unwrap();
    runtime.check(&stored, &attachment(), &result, LONG).await.unwrap();
    assert_eq!(trace(&world.container, "calls"), "ADD\nCHECK\n");
    assert_eq!(trace(&world.host, "calls"), "ADD\nCHECK\n", "p alone");

    daemon.end().await;
    assert!(!world.socket("q").exists(), "removed at the end");
    let error = runtime.del(&stored, &attachment(), Some(&result), LONG).await.unwrap_err();
    assert!(error.is_of_daemon() && error.retry() == Retry::Later, "{error:?}");
    let text = error_chain(&error);
    assert!(text.contains("start the daemon that serves the plugin there: No such file"), "{text}");
    assert!(text.contains(world.socket("q").to_str().unwrap()), "{text}");
    assert_eq!(trace(&world.host, "calls"), "ADD\nCHECK\n", "no program stands in for the daemon");

    let _daemon = world.daemon(&["q"]).await;
    runtime.del(&stored, &attachment(), Some(&result), LONG).await.unwrap();
    assert_eq!(trace(&world.container, "calls"), "ADD\nCHECK\nDEL\n");
    assert_eq!(trace(&world.host, "calls"), "ADD\nCHECK\nDEL\n");
}

#[tokio::test]
async fn a_program_deletes_its_attachment_although_the_plugin_is_a_daemon_now() {
    let world = World::new().on_host("q", NOTES).in_container("q", NOTES);
    let list = world.programs().settle(&network(&["q"])).await.unwrap();
    assert!(list.sockets().is_none());
    let result = world.programs().add(&list, &attachment(), LONG).await.unwrap();
    let _daemon = world.daemon(&["q"]).await;
    world.runtime().del(&list, &attachment(), Some(&result), LONG).await.unwrap();
    assert_eq!(trace(&world.host, "calls"), "ADD\nDEL\n");
    assert_eq!(trace(&world.container, "calls"), "");
}

#[tokio::test]
async fn a_daemon_deletes_its_attachment_although_the_plugin_is_a_program_now() {
    let world = World::new().on_host("q", NOTES).in_container("q", NOTES);
    let _daemon = world.daemon(&["q"]).await;
    let list = world.settled(&["q"]).await;
    let result = world.runtime().add(&list, &attachment(), LONG).await.unwrap();
    let now = world.programs().with_daemons(world.sockets.path(), []);
    now.del(&list, &attachment(), Some(&result), LONG).await.unwrap();
    assert_eq!(trace(&world.container, "calls"), "ADD\nDEL\n");
    assert!(now.settle(&network(&["q"])).await.unwrap().sockets().is_none());
    assert_eq!(trace(&world.host, "calls"), "");
}

#[tokio::test]
async fn a_daemon_that_has_not_come_yet_is_waited_for_and_no_program_stands_in_for_it() {
    let world = World::new().on_host("q", NOTES).in_container("q", NOTES);
    let early = world.runtime().settle(&network(&["q"])).await.unwrap_err();
    assert!(early.is_of_daemon() && early.retry() == Retry::Later, "{early:?}");
    assert!(world.runtime().find_all(&network(&["q"])).unwrap_err().is_of_daemon());
    let _daemon = world.daemon(&["q"]).await;
    let list = world.settled(&["q"]).await;
    world.runtime().add(&list, &attachment(), LONG).await.unwrap();
    assert_eq!((trace(&world.host, "calls"), trace(&world.container, "calls")), ("".into(), "ADD\n".into()));
}

#[tokio::test]
async fn the_cache_of_attachments_knows_the_way_too() {
    let world = World::new().on_host("q", NOTES).in_container("q", NOTES);
    let daemon = world.daemon(&["q"]).await;
    let cache = tempfile::tempdir().unwrap();
    let attachments = || Attachments::new(world.runtime(), Cache::new(cache.path()));
    let list = network(&["q"]).pinned(SpecVersion::V1_1_0).unwrap();
    attachments().add(&list, &attachment(), LONG).await.unwrap();
    daemon.end().await;
    let request = Cached { list, attachment: attachment(), outcome: AddOutcome::Unfinished(None) };
    attachments().del(&request, LONG).await.unwrap_err();
    let _daemon = world.daemon(&["q"]).await;
    attachments().del(&request, LONG).await.unwrap();
    assert_eq!(
        (trace(&world.container, "calls"), trace(&world.host, "calls")),
        ("ADD\nDEL\n".into(), "".into())
    );
}

#[tokio::test]
async fn a_served_plugin_gets_what_a_program_gets_with_the_plugins_of_its_container() {
    let world = World::new().on_host("q", NOTES).in_container("q", NOTES);
    let mut attachment = attachment();
    attachment.args = vec![("A".to_owned(), "1".to_owned())];
    attachment.trace =
        Some(netclaim_cni::TraceContext::of_attachment(&attachment.container_id, &attachment.if_name));
    world.programs().add(&network(&["q"]), &attachment, LONG).await.unwrap();
    let _daemon = world.daemon(&["q"]).await;
    let list = world.settled(&["q"]).await;
    world.runtime().add(&list, &attachment, LONG).await.unwrap();
    assert_eq!(trace(&world.host, "stdin"), trace(&world.container, "stdin"));
    assert!(trace(&world.host, "stdin").contains("\"x\":1.50"));
    let on_host = |dir: &TempDir| trace(dir, "env").replace(dir.path().to_str().unwrap(), "DIR");
    let (host, container) = (on_host(&world.host), on_host(&world.container));
    assert_eq!(host, container);
    assert!(host.contains("CNI_PATH=DIR\n") && host.contains("TRACEPARENT=00-"), "{host}");

    world.runtime().status(&list, LONG).await.unwrap();
    world.runtime().gc(&list, &[attachment.key()], LONG).await.unwrap();
    assert_eq!(trace(&world.container, "calls"), "ADD\nSTATUS\nGC\n");
    assert!(trace(&world.container, "stdin").contains("valid-attachments"));
}

#[tokio::test]
async fn a_daemon_without_a_namespace_to_see_is_asked_to_delete_only() {
    let world = World::new().in_container("q", NOTES);
    let _daemon = world.daemon(&["q"]).await;
    let mut pinned = attachment();
    pinned.netns = Some("/proc/1/fd/9".into());
    let list = world.settled(&["q"]).await;
    let error = world.runtime().add(&list, &pinned, LONG).await.unwrap_err().error;
    assert!(matches!(error.kind(), ErrorKind::Request(_)), "{error:?}");
    world.runtime().del(&list, &pinned, None, LONG).await.unwrap();
    assert!(trace(&world.container, "env").contains("CNI_NETNS=\n"));
    assert_eq!(trace(&world.container, "calls"), "DEL\n");
}

#[tokio::test]
async fn versions_are_asked_of_the_daemon_once_and_again_after_its_restart() {
    let world = World::new().on_host("q", NOTES).in_container("q", NOTES);
    let daemon = world.daemon(&["q"]).await;
    let (runtime, q) = (world.runtime(), "q".parse().unwrap());
    assert_eq!(runtime.find(&q).unwrap().path, world.socket("q"), "it counts as installed");
    for _ in 0..2 {
        assert_eq!(runtime.settle(&network(&["q"])).await.unwrap().version().to_string(), "1.1.0");
    }
    assert_eq!(
        (trace(&world.container, "versions"), trace(&world.host, "versions")),
        ("v\n".into(), "".into())
    );
    let mut changes = runtime.bin_changes().unwrap();
    daemon.end().await;
    tokio::time::timeout(LONG, changes.tick()).await.unwrap().unwrap();
    assert!(runtime.find(&q).unwrap_err().is_of_daemon(), "the program does not count");
    let _daemon = world.daemon(&["q"]).await;
    runtime.settle(&network(&["q"])).await.unwrap();
    assert_eq!(trace(&world.container, "versions"), "v\nv\n");
}

#[tokio::test]
async fn an_ipam_plugin_that_a_program_runs_is_called_as_a_program() {
    let world = World::new()
        .on_host("p", NOTES)
        .on_host("i", NOTES)
        .in_container("q", NOTES)
        .in_container("i", NOTES);
    let _daemon = world.daemon(&["q", "i"]).await;
    let list = |plugin: &str| {
        let json = format!(
            r#"{{"cniVersion":"1.1.0","name":"n","plugins":[{{"type":"{plugin}","ipam":{{"type":"i"}}}}]}}"#
        );
        NetworkList::parse(json.as_bytes()).unwrap()
    };
    let mut gone = attachment();
    gone.netns = None;
    for (plugin, host, container) in [("p", "DEL\nDEL\n", ""), ("q", "DEL\nDEL\n", "DEL\nDEL\n")] {
        let list = world.runtime().settle(&list(plugin)).await.unwrap();
        assert!(world.runtime().release(&list, &gone, None, LONG, |_| false).await.is_empty());
        assert_eq!(
            (trace(&world.host, "calls"), trace(&world.container, "calls")),
            (host.into(), container.into())
        );
    }
}

#[tokio::test]
async fn a_plugins_error_is_its_own_and_other_failures_are_the_daemons() {
    let says = r#"echo oops >&2; echo '{"code":11,"msg":"later"}'; exit 1"#;
    let world = World::new().in_container("q", says);
    let daemon = world.daemon(&["q"]).await;
    let error = failed_add(&world, LONG).await;
    assert_eq!(error.reported().unwrap().code, 11);
    assert!(world.log.lock().unwrap().contains("q ADD of network net c1 net1: oops"), "{:?}", world.log);
    for (script, says) in [
        ("echo oops >&2; exit 3", "exit status 3 without an error on standard output, with \"oops\""),
        ("kill -9 $$", "killed by signal 9"),
    ] {
        World::install(&world.container, "q", script);
        let error = failed_add(&world, LONG).await;
        assert!(error.is_of_daemon() && error.effect() == Effect::Unknown, "{error:?}");
        assert!(error_chain(&error).contains(says), "{}", error_chain(&error));
    }
    World::install(&world.container, "q", &format!("head -c {} /dev/zero", STDOUT_LIMIT + 1));
    let error = failed_add(&world, LONG).await;
    assert!(matches!(error.kind(), ErrorKind::TooMuchOutput { .. }), "{error:?}");
    daemon.end().await;
}

#[tokio::test]
async fn a_socket_that_refuses_or_hangs_is_a_failure_and_no_program_runs() {
    let world = World::new().on_host("q", NOTES);
    drop(UnixListener::bind(world.socket("q")).unwrap());
    let refused = failed_add(&world, LONG).await;
    assert!(matches!(refused.kind(), ErrorKind::Daemon { .. }), "{refused:?}");
    assert_eq!(refused.effect(), Effect::None, "no DEL is due");
    let unsettled = world.runtime().settle(&network(&["q"])).await.unwrap_err();
    assert!(matches!(unsettled.kind(), ErrorKind::Daemon { .. }), "{unsettled:?}");
    let old = NetworkList::parse(br#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"q"}]}"#).unwrap();
    world.runtime().daemons_answer(&old, LONG).await.unwrap_err();

    fs::remove_file(world.socket("q")).unwrap();
    let listener = UnixListener::bind(world.socket("q")).unwrap();
    let start = Instant::now();
    let late = failed_add(&world, SHORT).await;
    assert!(matches!(late.kind(), ErrorKind::Timeout { phase: CallPhase::Daemon, .. }), "{late:?}");
    assert!(late.effect() == Effect::Unknown && start.elapsed() < 3 * SHORT);
    drop(listener);
    let error = world.programs().add(&list_of_q(), &attachment(), LONG).await.unwrap_err().error;
    assert!(matches!(error.kind(), ErrorKind::NoSockets), "{error:?}");
    assert_eq!(trace(&world.host, "calls"), "");
}

#[tokio::test]
async fn a_socket_that_others_could_have_made_is_refused_with_its_place() {
    let world = World::new().on_host("q", NOTES);
    let says = async |at: &Path, problem: &str| {
        let error = failed_add(&world, LONG).await;
        assert!(matches!(error.kind(), ErrorKind::Untrusted { .. }), "{error:?}");
        assert!(
            error_chain(&error).contains(&format!("{} {problem}", at.display())),
            "{}",
            error_chain(&error)
        );
    };
    let socket = world.socket("q");
    fs::write(&socket, "").unwrap();
    says(&socket, "is not a socket").await;
    fs::remove_file(&socket).unwrap();
    let _listener = UnixListener::bind(&socket).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&socket, 0o622);
    says(&socket, "has mode 622").await;
    mode(&socket, 0o600);
    mode(world.sockets.path(), 0o777);
    says(world.sockets.path(), "has mode 777").await;
    mode(world.sockets.path(), 0o700);
    assert!(matches!(failed_add(&world, SHORT).await.kind(), ErrorKind::Timeout { .. }));
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_socket_of_another_user_is_refused() {
    let world = World::new().on_host("q", NOTES);
    let socket = world.socket("q");
    let listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&socket, Some(1000), None).unwrap();
    assert!(error_chain(&failed_add(&world, LONG).await).contains("belongs to user 1000"));
    drop(listener);
    fs::remove_file(&socket).unwrap();
    // Another user listens at a socket that is root's by now.
    fs::set_permissions(world.sockets.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "import socket,time;s=socket.socket(socket.AF_UNIX);s.bind('{}');s.listen();time.sleep(60)",
        socket.display()
    );
    let mut other = Command::new("python3").args(["-c", &script]).uid(1000).spawn().unwrap();
    let start = Instant::now();
    while !socket.exists() {
        assert!(start.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    chown(&socket, Some(0), Some(0)).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(world.sockets.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let error = error_chain(&failed_add(&world, LONG).await);
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(error.contains("is served by user 1000"), "{error}");
}

/// Runs on ADD until it is killed; DEL notes whether it still runs.
const HANGS: &str = r#"case $CNI_COMMAND in
ADD) echo $$ > $D/pid; while :; do sleep 0.1; done;;
DEL) kill -0 $(cat $D/pid) 2>/dev/null && echo runs >> $D/order; echo del >> $D/order;;
esac"#;

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_abandoned_call_is_killed_before_the_next_of_its_attachment() {
    for by_deadline in [false, true] {
        let world = World::new().in_container("q", HANGS);
        let _daemon = world.daemon(&["q"]).await;
        let (runtime, list, attachment) = (world.runtime(), list_of_q(), attachment());
        if by_deadline {
            failed_add(&world, SHORT).await;
        } else {
            tokio::select! {
                _ = runtime.add(&list, &attachment, LONG) => panic!("it ended"),
                () = until("ADD", || !trace(&world.container, "pid").is_empty()) => {}
            }
        }
        runtime.del(&list, &attachment, None, LONG).await.unwrap();
        assert_eq!(trace(&world.container, "order"), "del\n", "by deadline: {by_deadline}");
    }
}

#[tokio::test]
async fn sockets_are_their_users_alone_and_a_daemon_that_was_killed_can_be_started_again() {
    let world = World::new().in_container("q", NOTES).in_container("r", NOTES);
    let old = world.daemon(&["q"]).await;
    let mode = fs::symlink_metadata(world.socket("q")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (_end, ended) = oneshot::channel();
    let second = world.serve(&["r", "q"], ended).await;
    assert!(matches!(&second, Err(ServeError::Taken(path)) if *path == world.socket("q")), "{second:?}");
    assert!(!world.socket("r").exists(), "all or none");

    old.task.abort();
    let _ = old.task.await;
    // As SIGKILL leaves it.
    drop(UnixListener::bind(world.socket("q")));
    assert!(world.socket("q").exists());
    let _daemon = world.daemon(&["q"]).await;
    world.runtime().add(&list_of_q(), &attachment(), LONG).await.unwrap();
    let (_end, ended) = oneshot::channel();
    assert!(matches!(world.serve(&["missing"], ended).await, Err(ServeError::Plugin(_))));
    fs::set_permissions(world.sockets.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (_end, ended) = oneshot::channel();
    assert!(matches!(world.serve(&["r"], ended).await, Err(ServeError::Untrusted { .. })));
}
