//! Network namespaces: a host for the plugins, and pods.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::Mutex;

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::gettid;
use serde_json::{Map, Value};

use crate::tools::{build_all, tool};

/// Network namespaces of pods, with names below a directory that look the same for both runtimes.
pub struct Pods {
    dir: PathBuf,
    open: BTreeMap<String, File>,
}

/// Moves the calling thread to a new network namespace; the plugins it starts are there too.
pub fn enter_new_host() {
    build_all();
    unshare(CloneFlags::CLONE_NEWNET).expect("needs root: a network namespace cannot be created");
}

impl Pods {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, open: BTreeMap::new() }
    }

    /// The path of a pod's namespace, which is created when it is first needed.
    pub fn path(&mut self, pod: &str) -> PathBuf {
        let path = self.dir.join(pod);
        if !self.open.contains_key(pod) {
            let netns = std::thread::spawn(|| {
                enter_new_host();
                File::open("/proc/thread-self/ns/net").unwrap()
            });
            let netns = netns.join().unwrap();
            symlink(format!("/proc/{}/fd/{}", process::id(), netns.as_raw_fd()), &path).unwrap();
            self.open.insert(pod.to_owned(), netns);
        }
        path
    }

    /// The end of a pod's namespace. The kernel takes its time: one end of a pair of veths goes with it, and
    /// when the other end is gone, so are the pod's.
    pub fn end(&mut self, pod: &str) {
        self.links(pod, "add veth canary0 canary1");
        let host = format!("/proc/{}/task/{}/ns/net", process::id(), gettid());
        self.links(pod, &format!("give canary1 {host}"));
        self.open.remove(pod);
        fs::remove_file(self.dir.join(pod)).unwrap();
        while !links("show")["links"]["canary1"].is_null() {}
    }

    /// Runs `links` in a pod.
    pub fn links(&self, pod: &str, line: &str) -> Value {
        let netns = &self.open[pod];
        std::thread::scope(|scope| {
            let run = || {
                setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
                links(line)
            };
            scope.spawn(run).join().unwrap()
        })
    }

    /// What is in each pod.
    pub fn show(&self) -> Value {
        let shown = self.open.keys().map(|pod| (pod.clone(), self.links(pod, "show")));
        Value::Object(shown.collect::<Map<_, _>>())
    }
}

/// Runs `links` in the calling thread's namespace.
pub fn links(line: &str) -> Value {
    let output = Command::new(tool("links")).args(line.split(' ')).output().unwrap();
    assert!(output.status.success(), "links {line}: {}", String::from_utf8_lossy(&output.stderr));
    if output.stdout.is_empty() { Value::Null } else { serde_json::from_slice(&output.stdout).unwrap() }
}

/// Whether the kernel makes links of a kind.
pub fn kernel_has(kind: &'static str) -> bool {
    static KNOWN: Mutex<BTreeMap<&str, bool>> = Mutex::new(BTreeMap::new());
    let probe = || {
        enter_new_host();
        links("add veth up0 up1");
        Command::new(tool("links")).args(["add", kind, "probe", "up0"]).output().unwrap().status.success()
    };
    let mut known = KNOWN.lock().unwrap();
    *known.entry(kind).or_insert_with(|| std::thread::spawn(probe).join().unwrap())
}

/// The files below a directory with what is in them.
pub fn files(dir: &Path) -> Value {
    let mut found = Map::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        let shown = if path.is_dir() {
            files(&path)
        } else {
            String::from_utf8_lossy(&fs::read(&path).unwrap()).into()
        };
        found.insert(path.file_name().unwrap().to_str().unwrap().to_owned(), shown);
    }
    found.into()
}
