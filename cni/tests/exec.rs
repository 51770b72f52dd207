//! Plugin processes, good and bad: shell scripts stand for plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netclaim_cni::{
    AddError, Attachment, CallPhase, Effect, Error, ErrorKind, NetworkList, OfAdd, PluginType, ResultError,
    Retry, RunEnd, RunObserver, Runtime, STDERR_TAIL, STDOUT_LIMIT, SpecVersion, Stopped, TERM_GRACE,
    ValidAttachment, Verb, close_inherited_descriptors,
};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(30);
/// Long enough for a script to begin on a busy machine.
const SHORT: Duration = Duration::from_secs(1);
/// Less than the plugins would take if they were not stopped, and more than a busy machine needs.
const SOON: Duration = Duration::from_secs(10);

/// A directory of plugins and a place where they leave traces.
struct Plugins {
    dir: TempDir,
}

impl Plugins {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// Adds a plugin. In the script `$D` is the directory for traces.
    fn with(self, name: &str, script: &str) -> Self {
        let path = self.path().join(name);
        fs::write(&path, format!("#!/bin/sh\nD={}\n{script}\n", self.path().display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn trace(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    fn runtime(&self) -> Runtime {
        Runtime::new(vec![self.path().to_owned()]).unwrap()
    }

    async fn add(&self, list: &NetworkList, deadline: Duration) -> Result<String, AddError> {
        self.runtime().add(list, &attachment(), deadline).await.map(|result| result.raw().to_owned())
    }

    /// ADD by the one plugin `p`, which must fail.
    async fn failure(&self, deadline: Duration) -> Error {
        self.add(&network(&["p"]), deadline).await.unwrap_err().error
    }
}

fn network(plugins: &[&str]) -> NetworkList {
    network_of("1.1.0", plugins)
}

fn network_of(version: &str, plugins: &[&str]) -> NetworkList {
    let plugins: Vec<_> = plugins.iter().map(|p| format!(r#"{{"type":"{p}"}}"#)).collect();
    let json = format!(r#"{{"cniVersion":"{version}","name":"net","plugins":[{}]}}"#, plugins.join(","));
    NetworkList::parse(json.as_bytes()).unwrap()
}

fn attachment() -> Attachment {
    Attachment::new("c1".parse().unwrap(), Some("/run/netns/x".into()), "net1".parse().unwrap())
}

/// The error and its sources in one line, as a user sees them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Waits for a condition that becomes true by itself.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < SOON, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    // A zombie has ended; it only waits for init.
    !stat.is_empty() && !stat.contains(") Z ")
}

#[tokio::test]
async fn a_chain_hands_each_result_to_the_next_plugin() {
    let plugins = Plugins::new()
        .with("one", r#"cat > $D/one.in; echo '{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}],"big":12345678901234567890123}'"#)
        .with("two", r#"cat > $D/two.in; echo '{"cniVersion":"1.1.0","interfaces":[{"name":"net1","sandbox":"/run/netns/x"}]}'"#);
    let result = plugins.add(&network(&["one", "two"]), LONG).await.unwrap();
    assert_eq!(result, r#"{"cniVersion":"1.1.0","interfaces":[{"name":"net1","sandbox":"/run/netns/x"}]}"#);
    assert_eq!(plugins.trace("one.in"), r#"{"type":"one","cniVersion":"1.1.0","name":"net"}"#);
    assert_eq!(
        plugins.trace("two.in"),
        r#"{"type":"two","cniVersion":"1.1.0","name":"net","prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}],"big":12345678901234567890123}}"#
    );
}

#[tokio::test]
async fn a_plugin_sees_its_variables_and_nothing_of_ours_but_the_allowed() {
    let plugins = Plugins::new().with("p", "env | sort > $D/env; echo '{}'");
    let runtime = plugins.runtime().with_env("TRACEPARENT", "00-1-2-01");
    let mut attachment = attachment();
    attachment.args = vec![("K8S_POD_NAME".into(), "pod".into())];
    runtime.add(&network(&["p"]), &attachment, LONG).await.unwrap();

    let env = plugins.trace("env");
    let of =
        |key: &str| env.lines().find_map(|line| line.strip_prefix(&format!("{key}="))).map(str::to_owned);
    assert_eq!(of("CNI_COMMAND").unwrap(), "ADD");
    assert_eq!(of("CNI_CONTAINERID").unwrap(), "c1");
    assert_eq!(of("CNI_NETNS").unwrap(), "/run/netns/x");
    assert_eq!(of("CNI_IFNAME").unwrap(), "net1");
    assert_eq!(of("CNI_ARGS").unwrap(), "IgnoreUnknown=1;K8S_POD_NAME=pod");
    assert_eq!(of("CNI_PATH").unwrap(), plugins.path().to_str().unwrap());
    assert_eq!(of("TRACEPARENT").unwrap(), "00-1-2-01");
    assert!(of("PATH").is_some());
    // cargo sets many of these for us.
    assert_eq!(of("CARGO_MANIFEST_DIR"), None);
}

#[tokio::test]
async fn a_plugin_has_its_own_process_group_and_only_three_descriptors() {
    let plugins =
        Plugins::new().with("p", "cut -d' ' -f1,5 /proc/$$/stat > $D/stat; exec ls -m /proc/self/fd");
    let _ours = fs::File::open("/dev/null").unwrap();
    close_inherited_descriptors().unwrap();
    match plugins.failure(LONG).await.kind() {
        // The fourth is the directory that `ls` reads.
        ErrorKind::NotJson { stdout, .. } => assert_eq!(stdout, "0, 1, 2, 3\n"),
        other => panic!("{other:?}"),
    }
    let stat = plugins.trace("stat");
    let (pid, group) = stat.trim().split_once(' ').unwrap();
    assert_eq!(pid, group);
}

#[tokio::test]
async fn a_plugin_that_hangs_is_killed_at_its_deadline() {
    let plugins = Plugins::new().with("p", "echo $$ > $D/pid; echo working >&2; while :; do sleep 1; done");
    let start = Instant::now();
    let error = plugins.failure(SHORT).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(matches!(error.kind(), ErrorKind::Timeout { phase: CallPhase::Running, .. }), "{error:?}");
    assert_eq!((error.retry(), error.effect()), (Retry::Later, Effect::Unknown));
    assert_eq!(error.stderr(), "working\n");
    assert_eq!(
        chain(&error),
        "CNI plugin `p` failed ADD of network `net`, interface `net1`, container `c1`, with \"working\" on standard \
         error: did not finish within 1 s: the plugin was killed"
    );
    assert!(!is_running(&plugins.trace("pid")));
}

#[tokio::test]
async fn a_plugin_for_which_no_time_is_left_is_not_started() {
    let plugins = Plugins::new().with("p", "touch $D/ran; echo '{}'");
    let error = plugins.add(&network(&["p"]), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error.error.kind(), ErrorKind::Timeout { phase: CallPhase::Spent, .. }), "{error:?}");
    assert!(!error.needs_del() && !plugins.path().join("ran").exists());
}

#[tokio::test]
async fn a_plugin_that_ignores_sigterm_is_killed_with_all_it_started() {
    let plugins = Plugins::new().with(
        "p",
        "trap '' TERM; (trap '' TERM; while :; do sleep 0.1; done) & echo $! > $D/child; echo $$ > $D/pid; \
         while :; do sleep 0.1; done",
    );
    let start = Instant::now();
    let error = plugins.failure(SHORT).await;
    assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error:?}");
    assert!(start.elapsed() > SHORT + TERM_GRACE && start.elapsed() < SOON);
    for trace in ["pid", "child"] {
        until("the end of the process", || !is_running(&plugins.trace(trace))).await;
    }
}

#[tokio::test]
async fn children_of_a_hanging_plugin_do_not_outlive_it() {
    let plugins = Plugins::new()
        .with("p", "(while :; do sleep 0.1; done) & echo $! > $D/child; trap 'exit 1' TERM; wait");
    plugins.failure(SHORT).await;
    until("the end of the child", || !is_running(&plugins.trace("child"))).await;
}

#[tokio::test]
async fn a_dropped_call_kills_the_plugin() {
    let plugins = Plugins::new().with("p", "echo $$ > $D/pid; while :; do sleep 0.1; done");
    let (runtime, list, attachment) = (plugins.runtime(), network(&["p"]), attachment());
    tokio::select! {
        _ = runtime.add(&list, &attachment, LONG) => unreachable!(),
        () = until("the plugin's start", || !plugins.trace("pid").is_empty()) => {}
    }
    until("the end of the plugin", || !is_running(&plugins.trace("pid"))).await;
}

#[tokio::test]
async fn a_plugin_that_has_ended_is_reaped_soon() {
    for end in ["exit 0", "exit 1", "kill -9 $$"] {
        let plugins = Plugins::new().with("p", &format!("echo $$ > $D/pid; echo '{{}}'; {end}"));
        let _ = plugins.add(&network(&["p"]), LONG).await;
        let proc = Path::new("/proc").join(plugins.trace("pid").trim());
        until("the plugin is not a zombie any more", || !proc.exists()).await;
    }
}

#[tokio::test]
async fn a_del_after_a_dropped_add_begins_when_its_plugin_has_ended() {
    let script = r#"case $CNI_COMMAND in
ADD) echo $$ > $D/pid.new; mv $D/pid.new $D/pid; sleep 60;;
DEL) if kill -0 "$(cat $D/pid)"; then echo running; else echo ended; fi > $D/seen;;
esac"#;
    let plugins = Plugins::new().with("p", script);
    let (runtime, net, attachment) = (plugins.runtime(), network(&["p"]), attachment());
    tokio::select! {
        _ = runtime.add(&net, &attachment, LONG) => panic!("the plugin sleeps"),
        () = until("the plugin runs", || !plugins.trace("pid").is_empty()) => {}
    }
    runtime.del(&net, &attachment, None, LONG).await.unwrap();
    assert_eq!(plugins.trace("seen"), "ended\n");
}

#[tokio::test]
async fn a_background_child_that_holds_stdout_does_not_block() {
    let plugins =
        Plugins::new().with("p", "echo '{\"cniVersion\":\"1.1.0\"}'; sleep 20 & echo $! > $D/child");
    let start = Instant::now();
    assert_eq!(plugins.add(&network(&["p"]), LONG).await.unwrap(), r#"{"cniVersion":"1.1.0"}"#);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    // The plugin succeeded, so what it left running is its own affair.
    let child = plugins.trace("child");
    assert!(is_running(&child));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.trim().parse().unwrap()),
        nix::sys::signal::SIGKILL,
    )
    .unwrap();
}

#[tokio::test]
async fn an_error_object_becomes_a_typed_error() {
    let plugins = Plugins::new()
        .with("p", r#"echo '{"code":11,"msg":"try again","details":"lock is held"}'; echo x >&2; exit 1"#);
    let error = plugins.failure(LONG).await;
    let reported = error.reported().unwrap();
    assert_eq!((reported.code, &*reported.msg, &*reported.details), (11, "try again", "lock is held"));
    assert_eq!((error.retry(), error.effect()), (Retry::Later, Effect::Unknown));
    assert_eq!((error.verb(), error.plugin().as_str(), error.stderr()), (Some(Verb::Add), "p", "x\n"));
    assert_eq!(
        chain(&error),
        "CNI plugin `p` failed ADD of network `net`, interface `net1`, container `c1`: error 11: try again (lock is held)"
    );
}

#[tokio::test]
async fn codes_decide_on_retry_and_effect() {
    for (object, retry, effect) in [
        (r#"{"code":3,"msg":"x"}"#, Retry::Perhaps, Effect::None),
        (r#"{"code":7,"msg":"x"}"#, Retry::No, Effect::Unknown),
        (r#"{"code":50,"msg":"x"}"#, Retry::Later, Effect::Unknown),
        (r#"{"code":999,"msg":"x"}"#, Retry::Perhaps, Effect::Unknown),
        (r#"{"code":999,"msg":"x","effectState":"none"}"#, Retry::Perhaps, Effect::None),
        (r#"{"code":3,"msg":"x","effectState":"global"}"#, Retry::Perhaps, Effect::Unknown),
    ] {
        let plugins = Plugins::new().with("p", &format!("echo '{object}'; exit 1"));
        let error = plugins.failure(LONG).await;
        assert_eq!((error.retry(), error.effect()), (retry, effect), "{object}");
    }
}

#[tokio::test]
async fn an_exit_without_an_error_object_shows_standard_error() {
    let plugins = Plugins::new().with("p", "echo 'no such device' >&2; exit 3");
    let error = plugins.failure(LONG).await;
    assert!(matches!(error.kind(), ErrorKind::Silent { status: 3 }), "{error:?}");
    assert!(
        chain(&error).contains("with \"no such device\" on standard error: exit status 3"),
        "{}",
        chain(&error)
    );
}

#[tokio::test]
async fn an_exit_with_garbage_shows_the_garbage() {
    let plugins = Plugins::new().with("p", "echo 'panic: nil'; exit 2");
    match plugins.failure(LONG).await.kind() {
        ErrorKind::Garbage { status: 2, stdout } => assert_eq!(stdout, "panic: nil\n"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_plugin_killed_by_a_signal_says_which() {
    let plugins = Plugins::new().with("p", "kill -9 $$");
    let error = plugins.failure(LONG).await;
    assert!(matches!(error.kind(), ErrorKind::Signal { signal: 9 }), "{error:?}");
    assert_eq!(error.effect(), Effect::Unknown);
}

#[tokio::test]
async fn success_needs_one_json_document() {
    type Is = fn(&ErrorKind) -> bool;
    let cases: [(&str, Is); 8] = [
        ("true", |kind| matches!(kind, ErrorKind::Empty)),
        ("echo hello", |kind| matches!(kind, ErrorKind::NotJson { .. })),
        ("echo '{}' hello", |kind| matches!(kind, ErrorKind::NotJson { .. })),
        ("printf '{\"x\":\"\\377\"}'", |kind| matches!(kind, ErrorKind::NotJson { .. })),
        ("echo '{}'; echo '{}'", |kind| matches!(kind, ErrorKind::TwoDocuments { .. })),
        ("echo '[]'", |kind| matches!(kind, ErrorKind::Result(ResultError::Form { .. }))),
        ("echo '{\"ips\":[{\"address\":\"10.0.0.1\"}]}'", |kind| {
            matches!(kind, ErrorKind::Result(ResultError::Form { .. }))
        }),
        ("echo '{\"code\":7,\"msg\":\"bad\"}'", |kind| matches!(kind, ErrorKind::ErrorDespiteSuccess(_))),
    ];
    for (script, is) in cases {
        let error = Plugins::new().with("p", script).failure(LONG).await;
        assert!(is(error.kind()), "{script}: {error:?}");
    }
}

#[tokio::test]
async fn a_result_of_an_unknown_version_is_refused() {
    let plugins = Plugins::new().with("p", r#"echo '{"cniVersion":"3.0.0"}'"#);
    let error = plugins.failure(LONG).await;
    assert!(matches!(error.kind(), ErrorKind::Result(ResultError::Version(_))), "{error:?}");
    assert!(chain(&error).ends_with(
        "unusable result: has an unsupported version: CNI version \"3.0.0\" is not one of 0.1.0, 0.2.0, 0.3.0, 0.3.1, \
         0.4.0, 1.0.0, 1.1.0"
    ), "{}", chain(&error));
}

#[tokio::test]
async fn a_result_of_another_version_is_converted() {
    let plugins = Plugins::new()
        .with("one", r#"echo '{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}'"#)
        .with("two", r#"cat > $D/in; echo null"#);
    assert_eq!(plugins.add(&network(&["one", "two"]), LONG).await.unwrap(), r#"{"cniVersion":"1.1.0"}"#);
    let expected = r#""prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}]}"#;
    assert!(plugins.trace("in").contains(expected), "{}", plugins.trace("in"));
}

#[tokio::test]
async fn huge_output_is_drained_and_refused() {
    let plugins = Plugins::new().with("p", "head -c 6000000 /dev/zero | tr '\\0' ' '; echo '{}'");
    match plugins.failure(LONG).await.kind() {
        ErrorKind::TooMuchOutput { limit } => assert_eq!(*limit, STDOUT_LIMIT),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_long_standard_error_keeps_its_end() {
    let plugins =
        Plugins::new().with("p", "head -c 1000000 /dev/zero | tr '\\0' a >&2; echo end >&2; exit 1");
    let error = plugins.failure(LONG).await;
    assert_eq!(error.stderr().len(), STDERR_TAIL);
    assert!(error.stderr().ends_with("aend\n"));
}

#[tokio::test]
async fn a_plugin_need_not_read_a_large_input() {
    let json = format!(
        r#"{{"cniVersion":"1.1.0","name":"net","plugins":[{{"type":"p","pad":"{}"}}]}}"#,
        "x".repeat(1 << 20)
    );
    let list = NetworkList::parse(json.as_bytes()).unwrap();
    let plugins = Plugins::new().with("p", "echo '{}'");
    plugins.add(&list, LONG).await.unwrap();
    let reads = Plugins::new().with("p", "wc -c > $D/size; echo '{}'");
    reads.add(&list, LONG).await.unwrap();
    assert!(reads.trace("size").trim().parse::<usize>().unwrap() > 1 << 20);
}

#[tokio::test]
async fn a_missing_plugin_is_named_before_anything_runs() {
    let plugins = Plugins::new().with("one", "touch $D/ran; echo '{}'");
    let error = plugins.add(&network(&["one", "two"]), LONG).await.unwrap_err();
    assert!(!error.needs_del());
    assert!(!plugins.path().join("ran").exists());
    assert_eq!(
        chain(&error.error),
        format!(
            "CNI plugin `two` failed ADD of network `net`, interface `net1`, container `c1`: not found in {}; install \
             the plugin there or name its directory",
            plugins.path().display()
        )
    );
}

#[tokio::test]
async fn plugins_are_found_in_order_and_must_be_executable_files() {
    let (first, second) = (Plugins::new(), Plugins::new().with("a", "").with("b", ""));
    fs::create_dir(first.path().join("a")).unwrap();
    fs::write(first.path().join("b"), "").unwrap();
    let runtime = Runtime::new(vec![first.path().to_owned(), second.path().to_owned()]).unwrap();
    for name in ["a", "b"] {
        assert_eq!(runtime.find(&name.parse().unwrap()).unwrap().path, second.path().join(name));
    }
    let error = first.runtime().find(&"b".parse().unwrap()).unwrap_err();
    let ErrorKind::NotFound { not_executable, .. } = error.kind() else { panic!("{error:?}") };
    assert_eq!(not_executable.as_deref(), Some(first.path().join("b").as_path()));

    let list = br#"{"name":"net","plugins":[{"type":"a","ipam":{"type":"pool"}}]}"#;
    let error = runtime.find_all(&NetworkList::parse(list).unwrap()).unwrap_err();
    assert_eq!(error.plugin().as_str(), "pool");
}

#[test]
fn a_directory_that_cannot_be_in_cni_path_is_refused() {
    for dirs in [vec![], vec![PathBuf::from("bin")], vec![PathBuf::from("/a:b")]] {
        assert!(Runtime::new(dirs).is_err());
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_executed_is_a_spawn_error() {
    let plugins = Plugins::new().with("p", "");
    fs::write(plugins.path().join("p"), "#!/no/such/interpreter\n").unwrap();
    let error = plugins.failure(LONG).await;
    assert!(matches!(error.kind(), ErrorKind::Spawn { .. }), "{error:?}");
    assert_eq!((error.retry(), error.effect()), (Retry::No, Effect::None));
}

#[tokio::test]
async fn a_binary_that_is_being_written_is_waited_for() {
    let plugins = Plugins::new().with("p", "echo '{}'");
    let writer = fs::OpenOptions::new().append(true).open(plugins.path().join("p")).unwrap();
    let error = plugins.failure(SHORT).await;
    assert!(matches!(error.kind(), ErrorKind::Timeout { phase: CallPhase::Busy, .. }), "{error:?}");
    assert_eq!((error.retry(), error.effect()), (Retry::Later, Effect::None));

    let list = network(&["p"]);
    let adding = plugins.add(&list, LONG);
    let closing = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(writer);
    };
    tokio::join!(adding, closing).0.unwrap();
}

#[tokio::test]
async fn a_failed_add_tells_how_far_it_came_and_deletes_nothing() {
    let plugins = Plugins::new()
        .with("one", r#"echo "$CNI_COMMAND" >> $D/one.log; echo '{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}]}'"#)
        .with("two", r#"echo '{"code":999,"msg":"boom"}'; exit 1"#);
    let error = plugins.add(&network(&["one", "two", "one"]), LONG).await.unwrap_err();
    assert_eq!((error.completed, error.total), (1, 3));
    assert!(error.needs_del());
    assert_eq!(error.last_good.as_ref().unwrap().ips().len(), 1);
    assert_eq!(plugins.trace("one.log"), "ADD\n");
    assert_eq!(error.to_string(), "ADD stopped after 1 of 3 plugins");
}

#[tokio::test]
async fn del_runs_in_reverse_with_the_final_result_and_stops_at_an_error() {
    let log = r#"echo "$CNI_COMMAND $(basename $0) [$CNI_NETNS]" >> $D/log; cat >> $D/log; echo >> $D/log"#;
    let plugins = Plugins::new()
        .with("one", log)
        .with(
            "two",
            &format!("{log}; test ! -e $D/fail || {{ echo '{{\"code\":5,\"msg\":\"x\"}}'; exit 1; }}"),
        )
        .with("three", &format!("{log}; echo ignored"));
    let list = network(&["one", "two", "three"]);
    let result = serde_json::from_str(r#"{"cniVersion":"1.1.0"}"#).unwrap();
    let gone = Attachment { netns: None, ..attachment() };
    plugins.runtime().del(&list, &gone, Some(&result), LONG).await.unwrap();
    let line = |p: &str| {
        format!(
            "DEL {p} []\n{{\"type\":\"{p}\",\"cniVersion\":\"1.1.0\",\"name\":\"net\",\"prevResult\":{{\"cniVersion\":\"1.1.0\"}}}}\n"
        )
    };
    assert_eq!(plugins.trace("log"), line("three") + &line("two") + &line("one"));

    fs::remove_file(plugins.path().join("log")).unwrap();
    fs::write(plugins.path().join("fail"), "").unwrap();
    let error = plugins.runtime().del(&list, &gone, Some(&result), LONG).await.unwrap_err();
    assert_eq!((error.plugin().as_str(), error.verb()), ("two", Some(Verb::Del)));
    assert_eq!(plugins.trace("log"), line("three") + &line("two"));
}

#[tokio::test]
async fn del_before_0_4_0_gets_no_previous_result() {
    let plugins = Plugins::new().with("p", "cat > $D/in");
    let result = serde_json::from_str(r#"{"cniVersion":"0.3.1"}"#).unwrap();
    plugins.runtime().del(&network_of("0.3.1", &["p"]), &attachment(), Some(&result), LONG).await.unwrap();
    assert_eq!(plugins.trace("in"), r#"{"type":"p","cniVersion":"0.3.1","name":"net"}"#);
}

#[tokio::test]
async fn a_hopeless_del_goes_on_and_releases_the_addresses_itself() {
    let fails = r#"echo "$(basename $0)" >> $D/log; echo '{"code":999,"msg":"no namespace"}'; exit 1"#;
    let plugins = Plugins::new()
        .with("one", fails)
        .with("two", fails)
        .with("pool", r#"echo "$(basename $0) $CNI_COMMAND" >> $D/log; cat > $D/pool.in"#);
    let json = br#"{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"one","ipam":{"type":"pool","range":"a"}},{"type":"two"}]}"#;
    let list = NetworkList::parse(json).unwrap();
    let errors = plugins.runtime().release(&list, &attachment(), None, LONG, |_| true).await;
    assert_eq!(errors.iter().map(|e| e.plugin().as_str()).collect::<Vec<_>>(), ["two", "one"]);
    assert_eq!(plugins.trace("log"), "two\none\npool DEL\n");
    assert_eq!(
        plugins.trace("pool.in"),
        r#"{"type":"one","ipam":{"type":"pool","range":"a"},"cniVersion":"1.1.0","name":"net"}"#
    );
}

#[tokio::test]
async fn without_a_namespace_an_address_stays_taken_until_every_plugin_has_succeeded_or_is_given_up() {
    let plugins = Plugins::new()
        .with("main", "echo main >> $D/log")
        .with(
            "rules",
            r#"echo rules >> $D/log; test ! -e $D/away || { echo '{"code":11,"msg":"away"}'; exit 1; }"#,
        )
        .with("pool", "echo pool >> $D/log");
    let json = br#"{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"main","ipam":{"type":"pool"}},{"type":"rules"}]}"#;
    let (list, gone) = (NetworkList::parse(json).unwrap(), Attachment { netns: None, ..attachment() });
    let release = async |goes_on: bool| {
        let _ = fs::remove_file(plugins.path().join("log"));
        let errors = plugins.runtime().release(&list, &gone, None, LONG, |_| goes_on).await;
        (errors.len(), plugins.trace("log"))
    };
    fs::write(plugins.path().join("away"), "").unwrap();
    assert_eq!(release(false).await, (1, "rules\n".to_owned()));
    assert_eq!(release(true).await, (1, "rules\nmain\npool\n".to_owned()));
    fs::remove_file(plugins.path().join("away")).unwrap();
    assert_eq!(release(false).await, (0, "rules\nmain\npool\n".to_owned()));
}

/// A chain whose second plugin fails ADD with this effect, and DEL always; the third one's DEL fails, too.
async fn doomed(effect: &str) -> (Plugins, NetworkList, AddError) {
    let fails = |extra: &str| format!(r#"echo '{{"code":100,"msg":"no"{extra}}}'; exit 1"#);
    let log = r#"echo "$(basename $0) $CNI_COMMAND" >> $D/log"#;
    let plugins = Plugins::new()
        .with("one", &format!("{log}; echo '{{}}'"))
        .with("two", &format!("{log}; test $CNI_COMMAND = DEL || {{ {}; }}; {}", fails(effect), fails("")))
        .with("three", &format!("{log}; {}", fails("")));
    let list = network(&["one", "two", "three"]);
    let error = plugins.add(&list, LONG).await.unwrap_err();
    fs::remove_file(plugins.path().join("log")).unwrap();
    (plugins, list, error)
}

#[tokio::test]
async fn a_del_goes_on_past_plugins_that_made_nothing() {
    let (plugins, list, error) = doomed(r#", "effectState": "none""#).await;
    assert_eq!(error.stopped(), Stopped { completed: 1, effect: Effect::None });
    let add = OfAdd { result: error.last_good.as_deref(), stopped: Some(error.stopped()) };
    plugins.runtime().del(&list, &attachment(), add, LONG).await.unwrap();
    assert_eq!(plugins.trace("log"), "three DEL\ntwo DEL\none DEL\n");
    // Without that knowledge it stops as the specification wants.
    plugins.runtime().del(&list, &attachment(), None, LONG).await.unwrap_err();
}

#[tokio::test]
async fn a_del_goes_on_past_a_plugin_whose_effects_ended_with_the_namespace() {
    let (plugins, list, error) = doomed(r#", "effectState": "container""#).await;
    let add = OfAdd { result: None, stopped: Some(error.stopped()) };
    let failed = plugins.runtime().del(&list, &attachment(), add, LONG).await.unwrap_err();
    assert_eq!(failed.plugin().as_str(), "two", "its effects are there as long as the namespace is");
    let gone = Attachment { netns: None, ..attachment() };
    assert!(plugins.runtime().release(&list, &gone, add, LONG, |_| false).await.is_empty());
    let (plugins, list, error) = doomed("").await;
    let add = OfAdd { result: None, stopped: Some(error.stopped()) };
    assert_eq!(plugins.runtime().release(&list, &gone, add, LONG, |_| false).await.len(), 1);
}

#[tokio::test]
async fn a_plugin_that_made_nothing_and_hangs_leaves_time_to_the_others() {
    let plugins = Plugins::new().with("one", "touch $D/deleted").with("two", "exec sleep 60");
    let add = OfAdd { result: None, stopped: Some(Stopped { completed: 1, effect: Effect::None }) };
    plugins
        .runtime()
        .del(&network(&["one", "two"]), &attachment(), add, Duration::from_secs(4))
        .await
        .unwrap();
    assert!(plugins.path().join("deleted").exists());
}

#[tokio::test]
async fn check_runs_where_it_exists_and_is_allowed() {
    let plugins = Plugins::new().with("p", r#"echo "$CNI_COMMAND" >> $D/log; cat > $D/in"#);
    let runtime = plugins.runtime();
    let result =
        serde_json::from_str(r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}"#)
            .unwrap();
    runtime.check(&network(&["p"]), &attachment(), &result, LONG).await.unwrap();
    assert_eq!(plugins.trace("log"), "CHECK\n");
    assert!(
        plugins
            .trace("in")
            .contains(r#""prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}]}"#)
    );

    let error = runtime.check(&network_of("0.3.1", &["p"]), &attachment(), &result, LONG).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoCheck(SpecVersion::V0_3_1)), "{error:?}");

    let disabled = br#"{"cniVersion":"1.1.0","name":"net","disableCheck":true,"plugins":[{"type":"p"}]}"#;
    runtime.check(&NetworkList::parse(disabled).unwrap(), &attachment(), &result, LONG).await.unwrap();
    assert_eq!(plugins.trace("log"), "CHECK\n");
}

#[tokio::test]
async fn status_and_gc_run_from_1_1_0_on() {
    let script = r#"echo "$CNI_COMMAND [$CNI_CONTAINERID$CNI_NETNS$CNI_IFNAME$CNI_ARGS]" >> $D/log; cat >> $D/log; echo >> $D/log
        test $(basename $0) = good || { echo '{"code":50,"msg":"down"}'; exit 1; }"#;
    let plugins = Plugins::new().with("good", script).with("bad", script);
    let runtime = plugins.runtime();
    let valid = [ValidAttachment { container_id: "c1".parse().unwrap(), if_name: "net1".parse().unwrap() }];

    let old = network_of("1.0.0", &["good"]);
    runtime.status(&old, LONG).await.unwrap();
    runtime.gc(&old, &valid, LONG).await.unwrap();
    assert_eq!(plugins.trace("log"), "");

    let error = runtime.status(&network(&["bad", "good"]), LONG).await.unwrap_err();
    assert_eq!(error.retry(), Retry::Later);
    assert_eq!(
        plugins.trace("log"),
        "STATUS []\n{\"type\":\"bad\",\"cniVersion\":\"1.1.0\",\"name\":\"net\"}\n"
    );

    fs::remove_file(plugins.path().join("log")).unwrap();
    let errors = runtime.gc(&network(&["bad", "good", "bad"]), &valid, LONG).await.unwrap_err();
    assert_eq!(errors.len(), 2);
    let list = r#"[{"containerID":"c1","ifname":"net1"}]"#;
    let log = plugins.trace("log");
    assert_eq!(log.matches("GC []").count(), 3);
    assert_eq!(
        log.matches(&format!(r#""cni.dev/valid-attachments":{list},"cni.dev/attachments":{list}"#)).count(),
        3
    );

    fs::remove_file(plugins.path().join("log")).unwrap();
    let disabled = br#"{"cniVersion":"1.1.0","name":"net","disableGC":"True","plugins":[{"type":"bad"}]}"#;
    runtime.gc(&NetworkList::parse(disabled).unwrap(), &valid, LONG).await.unwrap();
    assert_eq!(plugins.trace("log"), "");
}

#[tokio::test]
async fn versions_are_asked_once_for_each_binary() {
    let script = |versions: &str| {
        format!(
            r#"echo "$CNI_COMMAND" >> $D/log; cat > $D/in; echo '{{"cniVersion":"1.1.0","supportedVersions":[{versions}]}}'"#
        )
    };
    let plugins = Plugins::new().with("p", &script(r#""0.4.0","1.0.0","9.0.0""#));
    let runtime = plugins.runtime();
    let p = "p".parse().unwrap();
    for _ in 0..3 {
        assert!(
            runtime.versions(&p).await.unwrap().into_iter().eq([SpecVersion::V0_4_0, SpecVersion::V1_0_0])
        );
    }
    assert_eq!(plugins.trace("log"), "VERSION\n");
    assert_eq!(plugins.trace("in"), r#"{"cniVersion":"1.1.0"}"#);

    let plugins = plugins.with("p", &script(r#""1.1.0""#));
    assert!(runtime.versions(&p).await.unwrap().into_iter().eq([SpecVersion::V1_1_0]));
    assert_eq!(plugins.trace("log"), "VERSION\nVERSION\n");

    let old = Plugins::new().with("p", r#"echo '{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}'; exit 1"#);
    assert!(old.runtime().versions(&p).await.unwrap().into_iter().eq([SpecVersion::V0_1_0]));
}

#[tokio::test]
async fn the_highest_version_that_all_support_is_negotiated() {
    let script =
        |versions: &str| format!(r#"echo '{{"cniVersion":"1.1.0","supportedVersions":[{versions}]}}'"#);
    let plugins = Plugins::new()
        .with("new", &script(r#""0.4.0","1.0.0","1.1.0""#))
        .with("old", &script(r#""0.3.1","0.4.0""#))
        .with("ancient", &script(r#""0.1.0""#));
    let list = |ipam: &str| {
        let json = format!(
            r#"{{"cniVersions":["0.4.0","1.0.0","1.1.0"],"name":"net","plugins":[{{"type":"new","ipam":{{"type":"{ipam}"}}}}]}}"#
        );
        NetworkList::parse(json.as_bytes()).unwrap()
    };
    assert_eq!(list("old").version(), SpecVersion::V1_1_0);
    let negotiated = plugins.runtime().negotiate(&list("old")).await.unwrap();
    assert_eq!(negotiated.version(), SpecVersion::V0_4_0);
    let stored: NetworkList = serde_json::from_str(&serde_json::to_string(&negotiated).unwrap()).unwrap();
    assert_eq!((stored.version(), &stored), (SpecVersion::V0_4_0, &negotiated));

    let error = plugins.runtime().negotiate(&list("ancient")).await.unwrap_err();
    assert_eq!(
        chain(&error),
        "CNI plugin `ancient` of network `net`: supports CNI 0.1.0, and the network needs one of 0.4.0, 1.0.0, 1.1.0"
    );
}

#[tokio::test]
async fn operations_on_one_container_do_not_overlap() {
    let plugins = Plugins::new()
        .with("p", "mkdir $D/running || touch $D/overlap; sleep 0.1; rmdir $D/running; echo '{}'");
    let runtime = plugins.runtime();
    let list = network(&["p"]);
    let (one, two) = (attachment(), Attachment { if_name: "net2".parse().unwrap(), ..attachment() });
    let (a, b, c) = tokio::join!(
        runtime.add(&list, &one, LONG),
        runtime.add(&list, &two, LONG),
        runtime.del(&list, &one, None, LONG)
    );
    a.unwrap();
    b.unwrap();
    c.unwrap();
    assert!(!plugins.path().join("overlap").exists());
}

#[tokio::test]
async fn waiting_for_another_operation_counts_towards_the_deadline() {
    let plugins =
        Plugins::new().with("p", "touch $D/started; while test ! -e $D/go; do sleep 0.02; done; echo '{}'");
    let runtime = plugins.runtime();
    let (list, attachment) = (network(&["p"]), attachment());
    let first = runtime.add(&list, &attachment, LONG);
    let second = async {
        until("the first ADD", || plugins.path().join("started").exists()).await;
        let queued = runtime.del(&list, &attachment, None, SHORT).await.unwrap_err();
        let gc = runtime.gc(&list, &[], SHORT).await.unwrap_err();
        fs::write(plugins.path().join("go"), "").unwrap();
        [queued].into_iter().chain(gc)
    };
    let (first, second) = tokio::join!(first, second);
    first.unwrap();
    for error in second {
        assert!(matches!(error.kind(), ErrorKind::Timeout { phase: CallPhase::Queued, .. }), "{error:?}");
        assert_eq!(error.effect(), Effect::None);
    }
}

#[tokio::test]
async fn add_and_check_need_a_namespace() {
    let plugins = Plugins::new().with("p", "touch $D/ran; echo '{}'");
    let error = plugins
        .runtime()
        .add(&network(&["p"]), &Attachment { netns: None, ..attachment() }, LONG)
        .await
        .unwrap_err();
    assert!(matches!(error.error.kind(), ErrorKind::Request(_)) && !error.needs_del());
    assert!(!plugins.path().join("ran").exists());
}

/// The runs of plugins, in their order.
#[derive(Default)]
struct Runs(Mutex<Vec<(String, Verb, RunEnd, Duration)>>);

impl RunObserver for Runs {
    fn ran(&self, plugin: &PluginType, verb: Verb, end: RunEnd, took: Duration) {
        self.0.lock().unwrap().push((plugin.to_string(), verb, end, took));
    }
}

#[tokio::test]
async fn an_observer_hears_how_long_each_plugin_ran_and_how_it_ended() {
    let plugins = Plugins::new()
        .with("one", "sleep 0.2; echo '{}'")
        .with("two", "[ $CNI_COMMAND = DEL ] || { echo '{\"code\": 7, \"msg\": \"no\"}'; exit 1; }")
        .with("slow", "touch $D/began; exec sleep 60");
    let runs = Arc::new(Runs::default());
    let runtime = plugins.runtime().observed_by(Arc::<Runs>::clone(&runs));
    let chain = network(&["one", "two"]);
    runtime.add(&chain, &attachment(), LONG).await.unwrap_err();
    runtime.del(&chain, &attachment(), None, LONG).await.unwrap();
    let slow = network(&["slow"]);
    runtime.add(&slow, &attachment(), SHORT).await.unwrap_err();
    fs::remove_file(plugins.path().join("began")).unwrap();
    let cut_short = attachment();
    tokio::select! {
        _ = runtime.add(&slow, &cut_short, LONG) => panic!("the plugin ended"),
        () = until("the plugin's beginning", || plugins.path().join("began").exists()) => {}
    }
    let missing = network(&["missing"]);
    runtime.add(&missing, &attachment(), LONG).await.unwrap_err();

    let runs = runs.0.lock().unwrap();
    let seen: Vec<_> = runs.iter().map(|(plugin, verb, end, _)| (plugin.as_str(), *verb, *end)).collect();
    assert_eq!(
        seen,
        [
            ("one", Verb::Add, RunEnd::Succeeded),
            ("two", Verb::Add, RunEnd::Failed),
            ("two", Verb::Del, RunEnd::Succeeded),
            ("one", Verb::Del, RunEnd::Succeeded),
            ("slow", Verb::Add, RunEnd::TimedOut),
            ("slow", Verb::Add, RunEnd::CutShort),
        ],
        "a plugin that is not installed does not run"
    );
    let took = |index: usize| runs.get(index).map(|(_, _, _, took)| *took).unwrap();
    assert!(took(0) >= Duration::from_millis(200) && took(1) < SOON, "{:?} {:?}", took(0), took(1));
    assert!(took(4) >= SHORT && took(4) < SOON, "{:?}", took(4));
}
