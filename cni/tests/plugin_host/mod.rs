//! A host for plugins: a network namespace of the test's own, and others for its containers.

#![allow(dead_code)] // Not every test program uses all of it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{self, Command};
use std::thread;
use std::time::{Duration, Instant};

use netclaim_cni::ipam::host_local::reservations;
use netclaim_cni::{Attachment, CniResult, Error, NetworkList, Runtime};
use nix::sched::{CloneFlags, setns, unshare};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const LONG: Duration = Duration::from_secs(30);

/// A network namespace that lives as long as this value.
pub struct Netns(File);

impl Netns {
    pub fn new() -> Self {
        let enter = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("needs root: a network namespace cannot be created");
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        Self(thread::spawn(enter).join().unwrap())
    }

    /// The one of the calling thread.
    pub fn here() -> Self {
        Self(File::open("/proc/thread-self/ns/net").unwrap())
    }

    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.0.as_raw_fd()).into()
    }

    /// Runs `work` on a thread that is in the namespace.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(enter).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// What the kernel says of the namespace's links and addresses.
    pub fn contents(&self) -> String {
        self.inside(|| {
            ["dev", "fib_trie", "if_inet6"]
                .map(|f| fs::read_to_string(format!("/proc/thread-self/net/{f}")).unwrap())
                .concat()
        })
    }

    pub fn has_link(&self, name: &str) -> bool {
        self.inside(links).contains(name)
    }

    /// [`show`] in this namespace.
    pub fn show(&self, command: &str) -> Value {
        self.inside(|| show(command))
    }
}

/// The names of the links of the calling thread's network namespace.
pub fn links() -> BTreeSet<String> {
    let dev = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    dev.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

/// Runs a command, its words separated by spaces, in the calling thread's network namespace.
pub fn run(command: &str) -> String {
    let words: Vec<_> = command.split_whitespace().collect();
    let output =
        Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|e| panic!("{command}: {e}"));
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON that a command of iproute2 shows. For a list with one entry, the entry.
pub fn show(command: &str) -> Value {
    let output = run(command);
    let shown = if output.trim().is_empty() { json!([]) } else { serde_json::from_str(&output).unwrap() };
    match shown {
        Value::Array(mut list) if list.len() == 1 => list.remove(0),
        other => other,
    }
}

/// The state of a link that a person would compare, without what the kernel counts.
pub fn state(name: &str) -> Value {
    let link = show(&format!("ip -j address show dev {name}"));
    let address = |a: &Value| {
        let mut a = a.clone();
        let fields = a.as_object_mut().unwrap();
        fields.retain(|key, _| {
            !["valid_life_time", "preferred_life_time", "tentative", "protocol"].contains(&key.as_str())
        });
        a
    };
    let addresses: Vec<Value> = link["addr_info"].as_array().unwrap().iter().map(address).collect();
    let up = link["flags"].as_array().unwrap().contains(&json!("UP"));
    let alias = show(&format!("ip -d -j link show dev {name}"))["ifalias"].clone();
    json!({"mac": link["address"], "mtu": link["mtu"], "up": up, "addresses": addresses,
        "altnames": link["altnames"], "alias": alias})
}

/// Something that a machine may be without.
pub struct Feature {
    /// What to say when it is.
    pub without: &'static str,
    /// A shell command that succeeds in an empty network namespace of a machine that has it.
    pub probe: &'static str,
}

pub const VLAN: Feature = Feature {
    without: "this kernel has no VLANs (8021q)",
    probe: "ip link add v0 type veth && ip link add v0.1 link v0 type vlan id 1",
};
pub const BOND: Feature = Feature { without: "this kernel has no bonds", probe: "ip link add b0 type bond" };

impl Feature {
    pub fn is_here(&self) -> bool {
        let probe = Netns::new().inside(|| Command::new("sh").args(["-c", self.probe]).output().unwrap());
        probe.status.success()
    }
}

/// Runs a test on a thread whose network namespace, the plugins' host, is new. Where a feature is missing the
/// test counts as skipped, and says so.
pub fn on_a_host<F: Future, T: FnOnce(Host) -> F + Send + 'static>(needs: &[Feature], test: T) {
    let enter =
        || unshare(CloneFlags::CLONE_NEWNET).expect("needs root: a network namespace cannot be created");
    run_in(enter, needs, test);
}

/// [`on_a_host`] in the network namespace of the machine, where its hardware is.
pub fn on_the_machine<F: Future, T: FnOnce(Host) -> F + Send + 'static>(needs: &[Feature], test: T) {
    run_in(|| (), needs, test);
}

fn run_in<F: Future, T: FnOnce(Host) -> F + Send + 'static>(
    enter: impl FnOnce() + Send + 'static,
    needs: &[Feature],
    test: T,
) {
    if let Some(missing) = needs.iter().find(|feature| !feature.is_here()) {
        let case = std::any::type_name::<T>().trim_end_matches("::{{closure}}");
        // In one piece and past the test harness, which shows nothing of tests that pass; and at the start of
        // a line, which it has not always ended.
        let told = format!("\nSKIPPED: {case}: {}\n", missing.without);
        std::io::stderr().write_all(told.as_bytes()).unwrap();
        return;
    }
    let run = move || {
        enter();
        let bin =
            std::env::var_os("NETCLAIM_CNI_BIN").expect("NETCLAIM_CNI_BIN must name the plugins' directory");
        let host =
            Host { runtime: Runtime::new(vec![bin.into()]).unwrap(), data: tempfile::tempdir().unwrap() };
        // One thread only: another would be in the namespace of the test process.
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test(host));
    };
    if let Err(panic) = thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

pub struct Host {
    pub runtime: Runtime,
    pub data: TempDir,
}

/// A container that has what it asked for.
pub struct Attached {
    pub netns: Netns,
    pub attachment: Attachment,
    pub result: CniResult,
    /// The links of the host, and those of the container, before there was anything.
    before: (BTreeSet<String>, BTreeSet<String>),
}

impl Host {
    pub fn ipam(&self, ranges: Value) -> Value {
        json!({"type": "host-local", "ranges": ranges, "dataDir": self.data.path()})
    }

    /// [`ipam`](Self::ipam) with one range.
    pub fn subnet(&self, subnet: &str) -> Value {
        self.ipam(json!([[{"subnet": subnet}]]))
    }

    pub fn list(&self, name: &str, plugins: Value) -> NetworkList {
        let json = json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins});
        NetworkList::parse(json.to_string().as_bytes()).unwrap()
    }

    /// [`list`](Self::list) for plugins whose CHECK cannot succeed.
    pub fn unchecked_list(&self, name: &str, plugins: Value) -> NetworkList {
        let json = json!({"cniVersion": "1.1.0", "name": name, "disableCheck": true, "plugins": plugins});
        NetworkList::parse(json.to_string().as_bytes()).unwrap()
    }

    pub fn reserved(&self, network: &str) -> Vec<String> {
        let dir = self.data.path().join(network);
        if !dir.exists() {
            return Vec::new();
        }
        reservations(&dir)
            .unwrap()
            .into_iter()
            .map(|r| format!("{} {} {}", r.ip, r.container_id, r.if_name.unwrap()))
            .collect()
    }

    /// Attaches a new container.
    pub async fn add(&self, list: &NetworkList, capability_args: &Value) -> Attached {
        let netns = Netns::new();
        let before = (links(), netns.inside(links));
        let attachment = Attachment {
            capability_args: capability_args.as_object().cloned().unwrap_or_default().into(),
            ..attachment("c1", &netns)
        };
        let result = self.runtime.add(list, &attachment, LONG).await.unwrap();
        Attached { netns, attachment, result, before }
    }

    /// Attaches a new container, and checks that.
    pub async fn attach(&self, list: &NetworkList, capability_args: &Value) -> Attached {
        let attached = self.add(list, capability_args).await;
        self.check(list, &attached).await.unwrap();
        attached
    }

    pub async fn check(&self, list: &NetworkList, attached: &Attached) -> Result<(), Error> {
        self.runtime.check(list, &attached.attachment, &attached.result, LONG).await
    }

    pub async fn del(&self, list: &NetworkList, attached: &Attached) -> Result<(), Error> {
        self.runtime.del(list, &attached.attachment, Some(&attached.result), LONG).await
    }

    pub async fn release(&self, list: &NetworkList, attached: &Attached) -> Vec<Error> {
        self.runtime.release(list, &attached.attachment, Some(&attached.result), LONG, |_| true).await
    }

    /// Asserts that host and container have the links of before the attachment, and no address is taken.
    pub fn nothing_is_left(&self, list: &NetworkList, attached: &Attached) {
        // The kernel takes a namespace apart in its own time.
        let end = Instant::now() + LONG;
        while links() != attached.before.0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(links(), attached.before.0);
        if attached.attachment.netns.is_some() {
            assert_eq!(attached.netns.inside(links), attached.before.1);
        }
        assert_eq!(self.reserved(list.name().as_str()), [""; 0]);
    }

    /// A whole life, twice: ADD, `look`, CHECK, DEL, DEL again; and ADD, the end of the namespace, DEL, DEL
    /// again. Nothing may be left of either.
    pub async fn live(&self, list: &NetworkList, args: &Value, look: impl Fn(&Attached)) {
        self.runtime.find_all(list).unwrap();
        let attached = self.attach(list, args).await;
        look(&attached);
        for _ in 0..2 {
            self.del(list, &attached).await.unwrap();
            self.nothing_is_left(list, &attached);
        }
        assert_eq!(self.check(list, &attached).await.is_ok(), list.disable_check());

        let attached = self.attach(list, args).await.lose_netns();
        for _ in 0..2 {
            self.del(list, &attached).await.unwrap();
            self.nothing_is_left(list, &attached);
        }
    }
}

impl Attached {
    /// What iproute2 says of the container's interface.
    pub fn link(&self) -> Value {
        self.netns.show("ip -d -j address show dev net1")
    }

    /// The addresses that the plugins say the container has.
    pub fn ips(&self) -> Vec<String> {
        self.result.ips_of(&self.attachment).map(|ip| ip.address.to_string()).collect()
    }

    /// The same attachment after the container's namespace has ended.
    pub fn lose_netns(self) -> Self {
        // Another one takes the place of the namespace, which so ends.
        let attachment = Attachment { netns: None, ..self.attachment };
        Self { netns: Netns::new(), attachment, ..self }
    }
}

pub fn attachment(container: &str, netns: &Netns) -> Attachment {
    Attachment::new(container.parse().unwrap(), Some(netns.path()), "net1".parse().unwrap())
}
