//! Attachments while the wall clock is set: deadlines, retries and intervals ignore it.
//!
//! Needs root, `NETCLAIM_CNI_BIN`, the directory of the plugins, and a machine of its own, which
//! `NETCLAIM_OWN_CLOCK` says it has: `make test-qemu`.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use netclaim_cni::{Cache, Runtime};
use netclaim_driver::attach::journal::Journal;
use netclaim_driver::attach::testing::Claimant;
use netclaim_driver::attach::{Attacher, Checked, CniPlugins, LiveSandbox, Phase, Sandbox};
use netclaim_driver::links::{self, Links};
use serde_json::json;
use tokio::time::{sleep, timeout};

use plugin_host::{Feature, Host, Netns, Plan, PodState, Silent, on_a_host, run};

const OWN_CLOCK: Feature = Feature {
    without: "the clock is not this test's to set (NETCLAIM_OWN_CLOCK)",
    probe: "test -n \"$NETCLAIM_OWN_CLOCK\"",
};

const BOOT: &str = "boot";

/// The deadline of a chain's operation.
const DEADLINE: Duration = Duration::from_secs(8);

/// How late something may happen on an emulated processor, in seconds.
const SLACK: f64 = 6.0;

/// How long the test waits for anything.
const TIMEOUT: Duration = Duration::from_secs(90);

const DAY: i64 = 24 * 3600;

/// Sets the wall clock that many seconds forward.
fn jump(seconds: i64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    run(&format!("date --set @{}", now.checked_add_signed(seconds).unwrap()));
}

type Agent = Arc<Attacher<CniPlugins, Silent>>;

/// The node of the test: `slow` is `ptp`, but an ADD takes two seconds more and a DEL one; with a file `fail`
/// an ADD fails, with a file `hang` it does not end.
struct Node {
    host: Host,
    pods: BTreeMap<String, Netns>,
}

impl Node {
    fn new(host: Host) -> Self {
        let dir = host.data.path();
        let plugin = dir.join("slow");
        let real = std::env::var("NETCLAIM_CNI_BIN").unwrap();
        let script = format!(
            "#!/bin/sh\nread up rest </proc/uptime\necho \"$CNI_COMMAND $CNI_CONTAINERID $up\" >>{0}/calls\n\
             case $CNI_COMMAND in\n\
             ADD) [ ! -e {0}/hang ] || exec sleep 1000\n\
             [ ! -e {0}/fail ] || {{ echo '{{\"code\": 11, \"msg\": \"not now\"}}'; exit 1; }}\n\
             sleep 2;;\n\
             DEL) sleep 1;;\n\
             esac\nexec {real}/ptp",
            dir.display()
        );
        fs::write(&plugin, script).unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        Self { host, pods: BTreeMap::new() }
    }

    fn plugins(&self) -> Arc<CniPlugins> {
        let bin = std::env::var_os("NETCLAIM_CNI_BIN").unwrap();
        let runtime = Runtime::new(vec![self.host.data.path().to_owned(), bin.into()]).unwrap();
        Arc::new(CniPlugins::new(runtime, self.cache(), Links::new("/sys"), DEADLINE))
    }

    fn cache(&self) -> Cache {
        Cache::new(self.host.data.path().join("cache"))
    }

    fn journal(&self) -> Journal<Claimant> {
        let data = self.host.data.path();
        Journal::open(data.join("journal"), data.join("run")).unwrap()
    }

    fn agent(&self, plugins: &Arc<CniPlugins>) -> Agent {
        let loaded = self.journal().load().unwrap();
        assert!(loaded.unreadable.is_empty(), "{:?}", loaded.unreadable);
        Attacher::start(Arc::clone(plugins), Silent.into(), self.journal(), loaded, BOOT)
    }

    fn plan(&self, pod: &str) -> Plan {
        let object = |name: &str| json!({"namespace": "default", "name": name, "uid": format!("{name}-uid")});
        let plan = json!({
            "claim": object(pod), "index": 0, "of": 1, "pod": object(pod), "network": "n", "ifName": "net1",
            "device": {"request": "net", "pool": "node0", "device": "net-n"},
            "conflist": {"cniVersion": "1.1.0", "name": "netclaim-n",
                         "plugins": [{"type": "slow", "ipam": self.host.subnet("10.9.0.0/24")}]},
        });
        serde_json::from_value(plan).unwrap()
    }

    fn sandbox(&self, pod: &str) -> LiveSandbox {
        let netns = links::Netns::open(self.pods[pod].path()).unwrap();
        let sandbox = Sandbox {
            id: pod.to_owned(),
            netns: self.pods[pod].path(),
            netns_id: netns.id(),
            boot_id: BOOT.to_owned(),
        };
        LiveSandbox { pod_uid: format!("{pod}-uid"), sandbox, netns }
    }

    /// A pod with its plan and its sandbox.
    async fn start(&mut self, agent: &Agent, plugins: &CniPlugins, pod: &str) {
        self.pods.insert(pod.to_owned(), Netns::new());
        let mut plan = self.plan(pod);
        plan.spec.conflist = plugins.settle(&plan.spec.conflist).await.unwrap();
        agent.prepare(vec![plan]).await.unwrap();
        agent.sandbox_up(self.sandbox(pod));
    }

    /// What the plugin was called with for a container, and when, in seconds of uptime.
    fn calls(&self, container: &str) -> Vec<(String, f64)> {
        let text = fs::read_to_string(self.host.data.path().join("calls")).unwrap_or_default();
        let calls = text.lines().filter_map(|line| {
            let (verb, rest) = line.split_once(' ')?;
            let (of, at) = rest.split_once(' ')?;
            (of == container).then(|| (verb.to_owned(), at.parse().unwrap()))
        });
        calls.collect()
    }

    fn times(&self, verb: &str, container: &str) -> Vec<f64> {
        self.calls(container).into_iter().filter(|call| call.0 == verb).map(|call| call.1).collect()
    }

    async fn called(&self, verb: &str, container: &str, times: usize) {
        let called = async {
            while self.times(verb, container).len() < times {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = timeout(TIMEOUT, called).await;
        waited.unwrap_or_else(|_| panic!("no {times} {verb} of {container}: {:?}", self.calls(container)));
    }

    fn turn(&self, what: &str, on: bool) {
        let file = self.host.data.path().join(what);
        if on { fs::write(file, "").unwrap() } else { fs::remove_file(file).unwrap() }
    }
}

async fn attached(agent: &Agent, pod: &str) {
    let mut state = agent.watch(&format!("{pod}-uid")).unwrap();
    let is = |state: &PodState| {
        !state.records.is_empty()
            && state.records.iter().all(|record| matches!(record.phase, Phase::Attached { .. }))
    };
    timeout(TIMEOUT, state.wait_for(is)).await.expect("not attached").unwrap();
}

/// Asserts that something took about that many seconds. A plugin takes time to start, too.
fn about(seconds: f64, from: f64, to: f64) {
    let took = to - from;
    assert!((seconds - 0.5..seconds + SLACK).contains(&took), "took {took} s, and should {seconds}");
}

#[test]
#[ignore = "needs root, NETCLAIM_CNI_BIN and a clock of its own"]
fn attachments_are_neither_lost_nor_repeated_nor_early_when_the_clock_is_set() {
    on_a_host(&[OWN_CLOCK], async |host| {
        let mut node = Node::new(host);
        let plugins = node.plugins();
        let agent = node.agent(&plugins);

        // While plugins run.
        for pod in ["a", "b"] {
            node.start(&agent, &plugins, pod).await;
        }
        node.called("ADD", "a", 1).await;
        jump(DAY);
        attached(&agent, "a").await;
        attached(&agent, "b").await;
        node.start(&agent, &plugins, "c").await;
        node.called("ADD", "c", 1).await;
        jump(-2 * DAY);
        attached(&agent, "c").await;

        // Between tries.
        node.turn("fail", true);
        node.start(&agent, &plugins, "fails").await;
        node.called("DEL", "fails", 1).await;
        jump(-2 * DAY);
        node.called("DEL", "fails", 2).await;
        jump(DAY);
        node.called("DEL", "fails", 3).await;
        node.turn("fail", false);
        attached(&agent, "fails").await;
        // A DEL takes a second; the pause grows from half a second.
        let (adds, dels) = (node.times("ADD", "fails"), node.times("DEL", "fails"));
        for (try_, pause) in [0.5_f64, 1.0, 2.0].into_iter().enumerate() {
            about(pause.max(1.0), dels[try_], adds[try_ + 1]);
        }

        // Before a deadline.
        node.turn("hang", true);
        node.start(&agent, &plugins, "hangs").await;
        node.called("ADD", "hangs", 1).await;
        jump(DAY);
        node.called("ADD", "hangs", 2).await;
        jump(-2 * DAY);
        node.called("DEL", "hangs", 2).await;
        node.turn("hang", false);
        attached(&agent, "hangs").await;
        let (adds, dels) = (node.times("ADD", "hangs"), node.times("DEL", "hangs"));
        for try_ in 0..2 {
            about(DEADLINE.as_secs_f64(), adds[try_], dels[try_]);
        }

        // The next agent continues.
        let pods: Vec<String> = node.pods.keys().cloned().collect();
        let known = agent.pods();
        agent.drain().await;
        jump(3 * DAY);
        let agent = node.agent(&node.plugins());
        for pod in &pods {
            agent.sandbox_up(node.sandbox(pod));
            let checked = agent.check(&format!("{pod}-uid"), &format!("{pod}-uid.0"), true).await;
            assert_eq!(checked, Some(Checked::Fine), "{pod}");
        }
        let records = |pods: BTreeMap<String, PodState>| -> Vec<_> {
            pods.into_values().flat_map(|pod| pod.records).map(|record| (record.plan, record.phase)).collect()
        };
        assert_eq!(records(agent.pods()), records(known));
        assert_eq!(agent.collect(&node.plan("a").spec).await, Ok(0));
        assert_eq!(node.host.reserved("netclaim-n").len(), pods.len());
        assert_eq!(node.cache().attachments().unwrap().0.len(), pods.len());

        // While everything is detached.
        let set_back = async {
            node.called("DEL", "a", 1).await;
            jump(-2 * DAY);
        };
        let claims: Vec<_> = pods.iter().map(|pod| format!("{pod}-uid")).collect();
        let releases = join_all(claims.iter().map(|claim| agent.release(claim)));
        let (released, ()) = timeout(TIMEOUT, async { tokio::join!(releases, set_back) }).await.unwrap();
        assert_eq!(released, vec![Ok(()); pods.len()]);

        for pod in &pods {
            let calls = node.calls(pod);
            let verbs: Vec<_> =
                calls.iter().map(|call| call.0.as_str()).filter(|verb| *verb != "CHECK").collect();
            let times = match pod.as_str() {
                "fails" => 4,
                "hangs" => 3,
                _ => 1,
            };
            assert_eq!(verbs, ["ADD", "DEL"].repeat(times), "{pod}: {calls:?}");
        }
        // Cached, regardless of the file's age by the wall clock.
        assert_eq!(node.times("VERSION", "").len(), 1);
        assert_eq!(node.host.reserved("netclaim-n"), [""; 0]);
        assert!(node.journal().load().unwrap().records.is_empty());
        assert!(node.cache().attachments().unwrap().0.is_empty());
        assert_eq!(agent.illegal_moves(), 0);
    });
}
