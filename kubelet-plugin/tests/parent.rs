//! The parent with a real agent that has no cluster: how it starts one again, when it gives up, and what it
//! leaves running.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A kubeconfig of an API server that is not there.
const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]}"#;

/// A node's directories.
struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("kubelet/plugins_registry")).unwrap();
        fs::create_dir_all(dir.path().join("state/journal")).unwrap();
        fs::write(dir.path().join("kubeconfig"), KUBECONFIG).unwrap();
        fs::write(dir.path().join("hook"), "").unwrap();
        Self(dir)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// The lock of the journal, which another agent has while it is locked.
    fn lock(&self) -> File {
        File::options().create(true).append(true).open(self.path("state/journal/.lock")).unwrap()
    }

    /// Starts a parent by a shell, which runs `before` first and becomes the parent.
    fn start(&self, before: &str) -> Parent {
        self.start_program(before, env!("CARGO_BIN_EXE_netclaim-parent"))
    }

    fn start_program(&self, before: &str, program: &str) -> Parent {
        let words = format!(
            "{before} exec {program} --node-name n --kubeconfig $PWD/kubeconfig --kubelet-dir $PWD/kubelet --cdi-dir $PWD/cdi \
             --state-dir $PWD/state --run-dir $PWD/run --hook $PWD/hook --nri-socket $PWD/nri.sock \
             --metrics-address 127.0.0.1:0"
        );
        let log = File::create(self.path("log")).unwrap();
        let mut command = Command::new("sh");
        let command = command.args(["-c", &words]).current_dir(self.0.path()).stdin(Stdio::null());
        Parent(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// How many agents have said that they stand by.
    fn stood_by(&self) -> usize {
        self.log().matches("standing by").count()
    }

    fn eventually(&self, what: &str, reached: impl Fn() -> bool) {
        let begin = Instant::now();
        while !reached() {
            assert!(begin.elapsed() < Duration::from_secs(20), "never {what}; the log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

struct Parent(Child);

impl Parent {
    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Parent {
    /// Its agent ends with it.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a test that fails leaves running, by a variable of its environment.
struct Left(String);

impl Drop for Left {
    fn drop(&mut self) {
        for pid in with_variable(&self.0) {
            // It may have ended meanwhile.
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
    }
}

fn read(path: impl AsRef<Path>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        // It may end meanwhile.
        let _ = file.read_to_end(&mut bytes);
    }
    bytes
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Processes that run with this variable in their environment.
fn with_variable(variable: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        read(format!("/proc/{pid}/environ")).split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    };
    processes().into_iter().filter(has).collect()
}

fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = String::from_utf8(read(format!("/proc/{pid}/stat"))).unwrap();
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        fields.split(' ').nth(1).is_some_and(|of| of == parent.to_string()) && !fields.starts_with('Z')
    };
    processes().into_iter().filter(is_child).collect()
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

#[test]
fn a_parent_gives_up_an_agent_that_fails_again_and_again() {
    let node = Node::new();
    fs::write(node.path("kubeconfig"), "nonsense").unwrap();
    let mut parent = node.start("");
    let status = parent.0.wait().unwrap();
    let log = node.log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert_eq!(log.matches("is started again").count(), 4, "{log}");
    assert!(log.contains("the agent ended 5 times in a row"), "{log}");
}

#[test]
fn nothing_that_an_agent_left_running_is_there_when_the_next_one_starts() {
    let node = Node::new();
    let other = node.lock();
    other.lock().unwrap();
    // In the place of a plugin: a child of the parent, with a child of its own that outlives it.
    let variable = format!("NETCLAIM_TEST={}", node.0.path().display());
    let parent =
        node.start(&format!("env -i PATH=$PATH {variable} sh -c 'setsid sleep 1000 & exec sleep 1000' &"));
    let _left = Left(variable.clone());
    let plugins = || with_variable(&variable);
    node.eventually("plugins that run beside an agent that stands by", || {
        node.stood_by() == 1 && plugins().len() == 2
    });
    let agents = || -> Vec<u32> {
        let plugins = plugins();
        children(parent.pid()).into_iter().filter(|child| !plugins.contains(child)).collect()
    };
    let [first] = agents()[..] else { panic!("not one agent: {:?}", agents()) };
    kill(first);
    node.eventually("another agent", || agents().iter().any(|agent| *agent != first));
    assert_eq!(plugins(), [0; 0]);
    node.eventually("another agent that stands by", || node.stood_by() == 2);
}

#[test]
fn an_agent_that_takes_over_ends_the_plugins_of_one_that_was_killed_with_its_parent() {
    let node = Node::new();
    let other = node.lock();
    other.lock().unwrap();
    let lock = other.metadata().unwrap();
    let mark = format!("NETCLAIM_JOURNAL={}:{}", lock.dev(), lock.ino());
    // Left by a parent that was killed together with its agent: a child of no process.
    let mut plugin = Command::new("setsid");
    let plugin = plugin.args(["sh", "-c", "sleep 1000 & exec sleep 1000"]).env_clear();
    let (name, value) = mark.split_once('=').unwrap();
    let plugin =
        plugin.env("PATH", "/usr/bin:/bin").env(name, value).stdout(Stdio::null()).stderr(Stdio::null());
    let (mut plugin, _left) = (plugin.spawn().unwrap(), Left(mark.clone()));
    node.eventually("a plugin that runs", || with_variable(&mark).len() == 2);
    let _parent = node.start("");
    node.eventually("an agent that stands by", || node.stood_by() == 1);
    assert_eq!(with_variable(&mark).len(), 2, "they are those of the agent that has the lock");
    drop(other);
    node.eventually("an agent that works", || node.log().contains("netclaim agent started"));
    assert_eq!(with_variable(&mark), [0; 0]);
    assert!(node.lock().try_lock().is_err(), "the agent works without the lock");
    plugin.wait().unwrap();
}

#[test]
fn an_agent_without_a_parent_becomes_one_and_the_runtimes_events_have_a_socket() {
    let node = Node::new();
    let parent = node.start_program("", env!("CARGO_BIN_EXE_netclaim-kubelet-plugin"));
    let program = |pid: u32| {
        let path = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    node.eventually("an agent that works", || node.log().contains("netclaim agent started"));
    assert_eq!(program(parent.pid()), "netclaim-parent");
    let agents: Vec<String> = children(parent.pid()).into_iter().map(program).collect();
    assert_eq!(agents, ["netclaim-kubelet-plugin"]);
    node.eventually("a parent that connects to the runtime for its agent", || {
        node.log().contains("cannot connect to the container runtime")
            && node.path("run/runtime-agent.sock").exists()
    });
}

#[test]
fn an_agent_that_ends_leaves_no_socket_of_itself_or_of_one_that_was_killed() {
    let node = Node::new();
    let sockets = || {
        let dirs = ["kubelet/plugins_registry", "kubelet/plugins/netclaim.dev"];
        let entries = dirs.iter().flat_map(|dir| fs::read_dir(node.path(dir)).into_iter().flatten());
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let mut parent = node.start("");
    node.eventually("sockets of the agent", || sockets().len() == 2);
    // Its listener is gone at once.
    drop(UnixListener::bind(node.path("kubelet/plugins_registry/netclaim.dev-killed@reg.sock")).unwrap());
    assert_eq!(sockets().len(), 3);
    assert!(Command::new("kill").args(["-TERM", &parent.pid().to_string()]).status().unwrap().success());
    assert!(parent.0.wait().unwrap().success(), "{}", node.log());
    assert_eq!(sockets(), [""; 0]);
}
