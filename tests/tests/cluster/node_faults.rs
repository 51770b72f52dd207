//! The kubelet, the container runtime and sandboxes come and go.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use netclaim_tests::{Cluster, Plugged, Test, eventually, long};
use serde_json::{Value, json};

use crate::devices::{is_not_published, is_published};

fn slices(test: &Test<'_>) -> Result<Vec<Value>> {
    let slices = test.cluster.get(&["resourceslices", "--field-selector", "spec.driver=netclaim.dev"])?;
    Ok(slices["items"].as_array().cloned().unwrap_or_default())
}

pub fn pods_and_slices_outlive_a_kubelet_restart(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("old", &network)?;
    test.runs_with("old", &["net1"])?;
    let (container, before) = (test.container("old", "shell")?, test.interface("old", "net1")?);
    let old = slices(test)?;
    let uids: Vec<&Value> = old.iter().map(|slice| &slice["metadata"]["uid"]).collect();
    ensure!(!uids.is_empty(), "there are no slices");

    test.cluster.service("restart", "kubelet")?;
    let begin = Instant::now();
    eventually(30, "the kubelet has deleted the slices, and they are back", || {
        let new = slices(test)?;
        ensure!(
            new.len() == uids.len() && new.iter().all(|slice| !uids.contains(&&slice["metadata"]["uid"])),
            "{} slices",
            new.len()
        );
        Ok(())
    })?;
    let took = begin.elapsed();
    ensure!(took < Duration::from_secs(10), "the slices were away for {took:?}");

    test.pod("new", &network)?;
    test.runs_with("new", &["net1"])?;
    ensure!(test.container("old", "shell")?.id == container.id, "the container was replaced");
    ensure!(test.interface("old", "net1")? == before, "it was {before:?}");
    test.delete_pod("old")?;
    test.node_has_leases(1)
}

/// Waits until none of these slices is there any more, and others are.
fn are_replaced(test: &Test<'_>, old: &[Value]) -> Result<()> {
    let uids: Vec<&Value> = old.iter().map(|slice| &slice["metadata"]["uid"]).collect();
    eventually(30, "the slices are made anew", || {
        let new = slices(test)?;
        let is_old = |slice: &Value| uids.contains(&&slice["metadata"]["uid"]);
        ensure!(!new.is_empty() && !new.iter().any(is_old), "{} slices", new.len());
        Ok(())
    })
}

pub fn addresses_that_others_exhaust_freeze_nothing(test: &Test<'_>) -> Result<()> {
    let at = |last: u8| test.subnet(0).replace(".0/24", &format!(".{last}"));
    let network = test.network("a", |network| {
        network["spec"]["cni"]["plugins"][0]["ipam"]["ranges"] =
            json!([[{"subnet": test.subnet(0), "rangeStart": at(10), "rangeEnd": at(11)}]]);
    })?;
    let name = format!("net-{network}");
    is_published(test, &name, |device| device["capacity"]["addresses"]["value"] == "2")?;
    let dir = format!("/var/lib/cni/networks/netclaim-{network}");
    for last in [10, 11] {
        let write = format!("mkdir -p {dir} && printf 'somebody\\r\\neth{last}' > {dir}/{}", at(last));
        test.cluster.on_node(&["sh", "-c", &write])?;
    }
    let is_exhausted = |device: &Value| {
        device["taints"][0]["key"] == "netclaim.dev/exhausted"
            && device["capacity"]["addresses"]["value"] == "0"
    };
    is_published(test, &name, is_exhausted)?;
    // The pool goes on.
    let link = Plugged::new(test, "eth88")?;
    is_published(test, "nic-eth88", |_| true)?;
    let old = slices(test)?;
    test.cluster.service("restart", "kubelet")?;
    are_replaced(test, &old)?;
    is_published(test, &name, is_exhausted)?;
    drop(link);
    is_not_published(test, "nic-eth88")?;
    test.pod("p", &network)?;
    test.is_unschedulable("p")?;
    test.cluster.on_node(&["rm", &format!("{dir}/{}", at(10))])?;
    test.runs_with("p", &["net1"])?;
    test.delete_pod("p")?;
    test.cluster.on_node(&["rm", "-r", &dir]).map(drop)
}

pub fn slices_come_back_with_a_node_object_that_is_made_anew(test: &Test<'_>) -> Result<()> {
    let node = test.cluster.get(&["nodes"])?["items"][0]["metadata"]["name"].take();
    let node = node.as_str().context("there is no node")?;
    let old = slices(test)?;
    ensure!(!old.is_empty(), "there are no slices");
    test.cluster.kubectl(&["delete", "node", node])?;
    test.cluster.service("restart", "kubelet")?;
    are_replaced(test, &old)?;
    let uid = test.cluster.get(&["node", node])?["metadata"]["uid"].take();
    // For longer than the garbage collector takes to find that an owner is gone.
    for _ in 0..10 {
        std::thread::sleep(Duration::from_secs(1));
        let slices = slices(test)?;
        let of_today = |slice: &Value| slice["metadata"]["ownerReferences"][0]["uid"] == uid;
        ensure!(!slices.is_empty() && slices.iter().all(of_today), "{uid}: {slices:?}");
    }
    let network = test.macvlan("a")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])
}

pub fn a_pod_older_than_its_runtime_leaves_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    for pod in ["one", "two", "three"] {
        test.pod(pod, &network)?;
    }
    for pod in ["one", "two", "three"] {
        test.runs_with(pod, &["net1"])?;
    }
    let before = test.interface("one", "net1")?;
    test.cluster.service("kill", "runtime")?;
    test.cluster.service("start", "runtime")?;
    test.cluster.agent_ready()?;
    test.pod("new", &network)?;
    test.runs_with("new", &["net1"])?;
    ensure!(test.interface("one", "net1")? == before, "it was {before:?}");
    // The runtime tells nobody that these sandboxes are stopped.
    test.delete_pod("one")?;
    test.kubectl(&["delete", "pod", "two", "--grace-period=0", "--force", "--timeout=60s"])?;
    test.node_has_leases(2)?;
    // Nor that this one is replaced.
    replaced(test, "three")?;
    test.delete_pod("three")?;
    test.node_has_leases(1)
}

pub fn a_new_sandbox_gets_the_interface_again(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    replaced(test, "p")?;
    test.node_has_leases(1)?;
    let inside = test.interface("p", "net1")?;
    eventually(15, "the claim tells of the new interface", || {
        let devices = test.claim_is_ready("p")?;
        let told = &devices.first().context("no device")?["networkData"];
        ensure!(told["hardwareAddress"] == inside.mac, "it tells {told}, in the pod: {inside:?}");
        Ok(())
    })
}

/// Kills the pod's sandbox; the kubelet makes another, in which the pod has its interface.
fn replaced(test: &Test<'_>, pod: &str) -> Result<()> {
    has_new_sandbox(test, pod)?;
    test.began_with(pod, &["net1"])?;
    test.interface(pod, "net1").map(drop)
}

/// Kills the pod's sandbox, and waits until its container runs in another one.
fn has_new_sandbox(test: &Test<'_>, pod: &str) -> Result<()> {
    let old = test.sandbox(pod)?;
    test.end_sandbox(&old)?;
    eventually(60, "the container runs in a new sandbox", || {
        let container = test.container(pod, "shell")?;
        ensure!(container.sandbox != old.id, "it is the old one");
        Ok(())
    })
}

pub fn a_pod_whose_namespace_is_taken_away_leaves_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    test.take_namespace_away("p")?;
    test.delete_pod("p")?;
    test.node_has_leases(0)
}

/// Makes sure that the agent says whether it can attach anything.
fn agent_is_ready(test: &Test<'_>, yes: bool) -> Result<()> {
    let answer = test.cluster.ask_agent("/readyz")?;
    ensure!(answer.contains(if yes { " 200 OK" } else { " 503 Service Unavailable" }), "it says {answer}");
    Ok(())
}

pub fn a_state_directory_that_takes_nothing_holds_up_new_pods_only(test: &Test<'_>) -> Result<()> {
    let journal = "/var/lib/netclaim/journal";
    let network = test.macvlan("a")?;
    test.pod("old", &network)?;
    test.runs_with("old", &["net1"])?;
    if let Err(error) = test.cluster.on_node(&["chattr", "+i", journal]) {
        return test.skip(&format!("no directory can be closed to root here: {error:#}"));
    }
    let held = test.pod("new", &network).and_then(|()| {
        test.event(
            "new",
            &["FailedPrepareDynamicResources", "is the state directory full, read-only or gone?"],
        )?;
        test.claim_is_not_ready("new", &["is the state directory full, read-only or gone?"])?;
        test.has_not_started("new")?;
        agent_is_ready(test, false)?;
        // Its DEL is run all the same; that it was is only believed when it is on disk.
        test.kubectl(&["delete", "pod", "old", "--wait=false"])?;
        eventually(30, "the address is given back", || {
            let leases = test.cluster.node().leases()?;
            ensure!(leases.is_empty(), "{leases:?}");
            Ok(())
        })
    });
    test.cluster.on_node(&["chattr", "-i", journal])?;
    held?;
    eventually(20, "the agent is ready again", || agent_is_ready(test, true))?;
    test.delete_pod("old")?;
    test.delete_pod("new")?;
    test.pod("next", &network)?;
    test.runs_with("next", &["net1"])?;
    test.node_has_leases(1)
}

/// A small file system that the agent has for its state directory, with everything that was there. Only the agent: it is
/// mounted in its container.
struct SmallDisk<'a> {
    cluster: &'a Cluster,
    /// The mount point, from the node.
    path: String,
    container: String,
}

const STATE: &str = "/var/lib/netclaim";

impl<'a> SmallDisk<'a> {
    fn mount(cluster: &'a Cluster) -> Result<Self> {
        let pid = cluster.parent_pid()?;
        let (path, container) = (format!("/proc/{pid}/root{STATE}"), format!("--target={pid}"));
        let disk = Self { cluster, path, container };
        // Nothing may change while it is copied.
        cluster.pause_agent(true)?;
        let mounted = disk
            .in_agent(&["mount", "-t", "tmpfs", "-o", "size=16m", "disk", STATE])
            .and_then(|()| cluster.on_node(&["cp", "-a", &format!("{STATE}/."), &disk.path]));
        cluster.pause_agent(false)?;
        mounted.map(|_| disk)
    }

    fn fill(&self) -> Result<()> {
        let file = format!("of={}/filler", self.path);
        match self.cluster.on_node(&["dd", "if=/dev/zero", &file, "bs=4096"]) {
            Err(error) if error.to_string().contains("No space left on device") => Ok(()),
            other => bail!("it is not full: {other:?}"),
        }
    }

    fn free(&self) -> Result<()> {
        self.cluster.on_node(&["rm", &format!("{}/filler", self.path)]).map(drop)
    }

    /// Gives the agent its own state directory back, with what is now in this one.
    fn unmount(&self) -> Result<()> {
        let copy = format!(
            "rm -f {0}/filler; for dir in journal cni/results; do\n\
             find {STATE}/$dir -type f ! -name .lock -delete && cp -a {0}/$dir/. {STATE}/$dir || exit\n\
             done",
            self.path
        );
        self.cluster.pause_agent(true)?;
        let unmounted = self
            .cluster
            .on_node(&["bash", "-c", &copy])
            .and_then(|_| self.in_agent(&["umount", "-l", STATE]));
        self.cluster.pause_agent(false)?;
        unmounted
    }

    /// Runs a program of busybox's in the mounts of the agent's container.
    fn in_agent(&self, command: &[&str]) -> Result<()> {
        let enter = ["nsenter", &self.container, "--mount", "/opt/cni/bin/busybox"];
        self.cluster.on_node(&[&enter, command].concat()).map(drop)
    }
}

pub fn a_full_state_directory_holds_up_new_pods_only(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.pod("old", &network)?;
    test.runs_with("old", &["net1"])?;
    test.pod("stays", &network)?;
    test.runs_with("stays", &["net1"])?;
    let disk = SmallDisk::mount(test.cluster)?;
    let shown = || -> Result<()> {
        disk.fill()?;
        test.pod("new", &network)?;
        let reason = "is the state directory full, read-only or gone?: No space left on device";
        test.event("new", &["FailedPrepareDynamicResources", reason])?;
        test.claim_is_not_ready("new", &[reason])?;
        test.has_not_started("new")?;
        agent_is_ready(test, false)?;
        let metrics = test.cluster.ask_agent("/metrics")?;
        ensure!(metrics.contains("netclaim_journal_writable 0"), "{metrics}");
        // The next agent has no more room.
        let full = test.cluster.agent_pid()?;
        test.cluster.kill_agent()?;
        eventually(20, "another agent works", || {
            ensure!(test.cluster.agent_pid()? != full, "it is the one that was killed");
            test.cluster.ask_agent("/healthz").map(drop)
        })?;
        // Files can be removed: its DEL is run, and forgotten.
        test.delete_pod("old")?;
        let leases = test.cluster.node().leases()?;
        ensure!(leases.len() == 1, "{leases:?}");
        disk.free()?;
        eventually(20, "the agent is ready again", || agent_is_ready(test, true))?;
        // Where there is time, it is the kubelet's own next try, after 60 to 90 s.
        if !long() {
            test.wake("new")?;
        }
        eventually(120, "the new pod has its network", || test.interface("new", "net1"))?;
        test.runs_with("new", &["net1"])?;
        test.claim_is_ready("new").map(drop)
    }();
    disk.unmount()?;
    shown?;
    test.interface("stays", "net1")?;
    test.node_has_leases(2)?;
    test.delete_pod("stays")?;
    test.node_has_leases(1)
}

pub fn a_pod_whose_uplink_is_removed_starts_again_when_it_is_back(test: &Test<'_>) -> Result<()> {
    let uplink = Plugged::new(test, "eth87")?;
    let network = test.network("a", |network| network["spec"]["uplink"]["interfaces"] = json!(["eth87"]))?;
    test.pod("p", &network)?;
    test.runs_with("p", &["net1"])?;
    drop(uplink);
    ensure!(test.interface("p", "net1").is_err(), "the interface is there without its uplink");
    let old = test.sandbox("p")?;
    test.end_sandbox(&old)?;
    test.event("p", &["NetworkAttachFailed", &network, "Link not found"])?;
    ensure!(test.container("p", "shell").is_err(), "the container runs without its network");
    let _again = Plugged::new(test, "eth87")?;
    eventually(60, "the container runs in a new sandbox", || test.container("p", "shell"))?;
    test.began_with("p", &["net1"])?;
    test.delete_pod("p")?;
    test.node_has_leases(0)
}

/// How much longer the API server is away where there is time.
const AWAY: Duration = Duration::from_secs(60);

pub fn attaching_goes_on_while_the_api_server_is_away(test: &Test<'_>) -> Result<()> {
    let network = test.network_after("/opt/cni/bin/busybox sleep 4")?;
    test.pod("old", &network)?;
    test.runs_with("old", &["net1"])?;
    let (container, before) = (test.container("old", "shell")?, test.interface("old", "net1")?);
    test.pod("new", &network)?;
    // From here on the kubelet needs nothing of the API server; for a sandbox it would, since it reads the claim.
    eventually(20, "the sandbox is there", || test.sandbox("new"))?;
    // Paused: connections to it hang, which is worse than being refused.
    test.cluster.service("pause", "apiserver")?;
    let shown = || -> Result<()> {
        // The next one has never seen the API server.
        test.cluster.kill_agent()?;
        test.kill(&container)?;
        eventually(60, "both containers run", || {
            ensure!(test.container("old", "shell")?.id != container.id, "it is the old one");
            test.container("new", "shell")
        })?;
        test.interface("new", "net1")?;
        ensure!(test.interface("old", "net1")? == before, "it was {before:?}");
        std::thread::sleep(if long() { AWAY } else { Duration::ZERO });
        Ok(())
    }();
    test.cluster.service("resume", "apiserver")?;
    shown?;
    test.began_with("new", &["net1"])?;
    test.began_with("old", &["net1"])?;
    test.claim_is_ready("new")?;
    test.delete_pod("old")?;
    test.node_has_leases(1)
}

pub fn without_nri_the_agent_is_not_ready_and_no_container_starts(test: &Test<'_>) -> Result<()> {
    let (on, off) = ("disable = false", "disable = true");
    let file = test.cluster.dir().join("runtime.toml");
    let config = fs::read_to_string(&file)?;
    if !config.contains(on) {
        return test.skip("only containerd's configuration is changed here");
    }
    let why = "not connected to the container runtime by NRI: enable NRI in the runtime's configuration";
    let network = test.network_after(":")?;
    test.pod("old", &network)?;
    test.runs_with("old", &["net1"])?;
    fs::write(&file, config.replace(on, off))?;
    let shown = || -> Result<()> {
        test.cluster.service("restart", "runtime")?;
        test.pod("new", &network)?;
        let waits = |pod: &str| -> Result<()> {
            test.event(pod, &["NetworkAttachFailed", why])?;
            test.claim_is_not_ready(pod, &[why])?;
            test.has_not_started(pod)
        };
        let says_why = || -> Result<()> {
            let answer = test.cluster.ask_agent("/readyz")?;
            ensure!(answer.contains(" 503 Service Unavailable") && answer.contains(why), "it says {answer}");
            Ok(())
        };
        waits("new")?;
        says_why()?;
        // A new sandbox of a pod that was attached is none that the agent hears of.
        test.end_sandbox(&test.sandbox("old")?)?;
        waits("old")?;
        test.cluster.kill_agent()?;
        test.pod("next", &network)?;
        waits("next")?;
        says_why()?;
        waits("new")
    }();
    fs::write(&file, config)?;
    test.cluster.service("restart", "runtime")?;
    shown?;
    for pod in ["old", "new", "next"] {
        test.began_with(pod, &["net1"])?;
        test.interface(pod, "net1")?;
    }
    eventually(20, "the agent is ready again", || agent_is_ready(test, true))?;
    test.node_has_leases(3)
}
