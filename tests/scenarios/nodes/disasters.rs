//! What `docs/disasters.md` says to do when something outside of netclaim's protocol has gone wrong. No
//! address is ever in two pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use netclaim_tests::objects::{pod, text};
use netclaim_tests::{AGENT, CONTROLLER, SYSTEM, Test, eventually, holds, long, output, programs};
use serde_json::{Value, json};

use crate::addresses::{asking_alone, network as leased, with_addresses};
use crate::lost_nodes::forget;

/// Seconds until kubelets have noticed, all of them, which pods are gone: they look once a minute.
const NOTICED: u64 = 180;

/// Seconds in which an agent with a short `--gc-period` collects addresses.
const COLLECTED: u64 = 5;

/// The addresses of `net1` in all sandboxes of the scenario, also of pods that the API server does not know.
/// Fails if one is in two.
fn addresses(test: &Test<'_>) -> Result<BTreeMap<String, String>> {
    addresses_beside(test, None)
}

/// As [`addresses`], without those of one pod.
fn addresses_beside(test: &Test<'_>, left_out: Option<&str>) -> Result<BTreeMap<String, String>> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for node in test.cluster.nodes() {
        let sandboxes = node.tasks()?.into_iter().filter(|task| task.container.is_none());
        let of_test = sandboxes.filter(|sandbox| sandbox.namespace == test.namespace());
        for sandbox in of_test.filter(|sandbox| left_out != Some(&sandbox.pod)) {
            // A sandbox may end meanwhile.
            let Ok(interfaces) = node.interfaces_of(&sandbox.netns) else { continue };
            let Some(interface) = interfaces.get("net1") else { continue };
            let pod = format!("{} on {}", sandbox.pod, node.name());
            for address in &interface.ips {
                let address = address.split('/').next().unwrap_or_default().to_owned();
                if let Some(other) = found.insert(address.clone(), pod.clone()) {
                    bail!("DUPLICATE: {address} is in {other} and in {pod}");
                }
            }
        }
    }
    Ok(found)
}

/// Waits as [`eventually`], and fails at once when an address is in two pods.
fn meanwhile_unique(
    test: &Test<'_>,
    seconds: u64,
    what: &str,
    holds: impl FnMut() -> Result<()>,
) -> Result<()> {
    meanwhile_unique_beside(test, None, seconds, what, holds)
}

/// As [`meanwhile_unique`], for addresses of other pods than one.
fn meanwhile_unique_beside(
    test: &Test<'_>,
    left_out: Option<&str>,
    seconds: u64,
    what: &str,
    mut holds: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut duplicate = None;
    let result = eventually(seconds, what, || {
        match addresses_beside(test, left_out) {
            Err(error) if error.to_string().starts_with("DUPLICATE") => {
                duplicate = Some(error);
                return Ok(());
            }
            _ => {}
        }
        holds()
    });
    duplicate.map_or(result, Err)
}

/// Waits until the pods run, and makes sure that no address is ever in two pods.
fn run(test: &Test<'_>, pods: &[String]) -> Result<()> {
    run_beside(test, None, pods)
}

/// As [`run`], for addresses of other pods than one.
fn run_beside(test: &Test<'_>, left_out: Option<&str>, pods: &[String]) -> Result<()> {
    meanwhile_unique_beside(test, left_out, NOTICED, "the pods run", || {
        // What the API server says may be from before a loss of power.
        let has_address: BTreeSet<String> = addresses_beside(test, left_out)?.into_values().collect();
        pods.iter().try_for_each(|pod| {
            let is_there = has_address.iter().any(|holder| holder.starts_with(&format!("{pod} on ")));
            ensure!(is_there, "{pod} has no address");
            let status = test.get("pod", pod)?["status"].clone();
            ensure!(status["phase"] == "Running", "{pod} is {}", status["phase"]);
            test.claim_is_ready(pod).map(drop)
        })
    })
}

/// A gauge of a node's agent.
pub(crate) fn gauge(test: &Test<'_>, node: &str, name: &str) -> Result<u64> {
    let metrics = test.cluster.ask_agent_of(node, "/metrics")?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {name}"))?.trim().parse()?)
}

/// Starts or stops a service of every node.
fn on_all(test: &Test<'_>, verb: &str, kind: &str) -> Result<()> {
    for node in test.cluster.nodes() {
        test.cluster.service(verb, &node.service(kind))?;
    }
    Ok(())
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n}")).collect()
}

/// Creates a ClaimNetwork with a small block of addresses for each node, and some more, and a pod on each
/// node.
fn small_blocks(test: &Test<'_>) -> Result<(String, Vec<String>)> {
    let subnet = test.subnet(0).replace("/24", "/27");
    let addresses = json!({"ranges": [{"subnet": subnet}], "blockSize": {"ipv4": 30}});
    let network = leased(test, addresses, 3)?;
    let old = names("old", 3);
    for (name, node) in old.iter().zip(test.cluster.nodes()) {
        test.pod_on(&node.name(), name, &network)?;
    }
    run(test, &old)?;
    Ok((network, old))
}

/// How etcd's data are put back.
#[derive(Clone, Copy)]
enum Restore {
    /// The files, as they were: revisions go back.
    Copy,
    /// `etcdutl snapshot restore --bump-revision --mark-compacted`: revisions go on, and every watch has to
    /// list again.
    Bumped,
}

/// A copy of etcd's data, beside these.
struct Snapshot<'a> {
    test: &'a Test<'a>,
    data: PathBuf,
    copy: PathBuf,
}

impl<'a> Snapshot<'a> {
    /// Copies the data. The API server is away meanwhile.
    fn take(test: &'a Test<'a>) -> Result<Self> {
        let dir = test.cluster.dir();
        let snapshot = Self { test, data: dir.join("etcd"), copy: dir.join("etcd-snapshot") };
        snapshot.away()?;
        let _ = std::fs::remove_dir_all(&snapshot.copy);
        let copied = output(Command::new("cp").arg("-a").args([&snapshot.data, &snapshot.copy]));
        let back = snapshot.back();
        copied.and(back)?;
        Ok(snapshot)
    }

    fn away(&self) -> Result<()> {
        ["apiserver", "kcm", "scheduler", "etcd"]
            .iter()
            .try_for_each(|name| self.test.cluster.service("stop", name).map(drop))
    }

    fn back(&self) -> Result<()> {
        let cluster = self.test.cluster;
        ["etcd", "apiserver"].iter().try_for_each(|name| cluster.service("start", name).map(drop))?;
        eventually(90, "the API server is ready", || cluster.kubectl(&["get", "--raw", "/readyz"]))?;
        ["kcm", "scheduler"].iter().try_for_each(|name| cluster.service("start", name).map(drop))
    }

    /// Puts the data back.
    fn restore(&self, how: Restore) -> Result<()> {
        self.away()?;
        let restored = self.replace(how);
        let back = self.back();
        restored.and(back)
    }

    fn replace(&self, how: Restore) -> Result<()> {
        std::fs::remove_dir_all(&self.data)?;
        match how {
            Restore::Copy => output(Command::new("cp").arg("-a").args([&self.copy, &self.data])).map(drop),
            Restore::Bumped => {
                let start = std::fs::read_to_string(self.test.cluster.dir().join("cmd/etcd"))?;
                let mut words = start.split_whitespace();
                words.find(|word| *word == "--initial-advertise-peer-urls");
                let peers = words.next().context("etcd has no peer URL")?;
                let etcdutl = programs::built("etcdutl")?.context("the Go proxy does not serve etcdutl")?;
                output(
                    Command::new(etcdutl)
                        .args(["snapshot", "restore", "--skip-hash-check", "--mark-compacted"])
                        .args(["--bump-revision", "1000000000", "--name", "default"])
                        .args(["--initial-cluster", &format!("default={peers}")])
                        .args(["--initial-advertise-peer-urls", peers])
                        .arg("--data-dir")
                        .arg(&self.data)
                        .arg(self.copy.join("member/snap/db")),
                )
                .map(drop)
            }
        }
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.copy);
    }
}

/// The log of a node's agents. `kubectl logs` needs the kubelet.
fn agent_log(test: &Test<'_>, node: &str) -> Result<String> {
    let find = "cat /var/log/pods/netclaim-system_netclaim-agent-*/agent/*.log";
    test.cluster.on(node, &["bash", "-c", find])
}

/// The pods, as NAMESPACE/NAME, that a node's agent names because the node does not have the blocks of their
/// addresses.
fn named_without_block(test: &Test<'_>, node: &str) -> Result<Vec<String>> {
    let log = agent_log(test, node)?;
    let line = log.lines().rfind(|line| line.contains("has lost, and that other nodes may hand out"));
    let line = line.context("the log names no pods")?;
    let pods = line.split_once("pods=\"").and_then(|(_, rest)| rest.split('"').next());
    Ok(pods.context(line.to_owned())?.split(", ").map(str::to_owned).collect())
}

/// Snapshot; then pods on node1 get addresses of a second block; then the snapshot comes back, and other
/// nodes need blocks.
fn restored(test: &Test<'_>, how: Restore) -> Result<()> {
    let crictl = programs::built_or_skipped(test, "crictl")?;
    let crictl = crictl.to_str().context("its path is not text")?;
    let (network, old) = small_blocks(test)?;
    let snapshot = Snapshot::take(test)?;
    // More than a block has.
    let unknown = names("unknown", 10);
    for name in &unknown {
        test.pod_on("node1", name, &network)?;
    }
    run(test, &unknown)?;
    let before = addresses(test)?;

    // As the page says: no kubelet runs until the pods that the restored cluster cannot place are gone.
    on_all(test, "stop", "kubelet")?;
    let shown = || -> Result<()> {
        snapshot.restore(how)?;
        eventually(90, "the agent of node1 says that its pods have addresses of others", || {
            ensure!(gauge(test, "node1", "netclaim_pods_without_address_block")? > 0, "it does not");
            Ok(())
        })?;
        let named = named_without_block(test, "node1")?;
        ensure!(!named.is_empty() && named.iter().all(|pod| pod.contains("/unknown")), "{named:?}");
        for pod in &named {
            let (_, name) = pod.split_once('/').context("no name")?;
            let script = "\"$0\" --timeout 1m stopp $(\"$0\" pods -q --namespace \"$1\" --name \"^$2$\")";
            test.cluster.on("node1", &["bash", "-c", script, crictl, test.namespace(), name])?;
        }
        let left = addresses(test)?;
        ensure!(left.len() + named.len() == before.len(), "{left:?} of {before:?} without {named:?}");
        Ok(())
    };
    let (shown, back) = (shown(), on_all(test, "start", "kubelet"));
    shown.and(back)?;
    if matches!(how, Restore::Copy) {
        // Watches wait for revisions that are to come, and their clients do not hear of it.
        test.cluster.kubectl(&["rollout", "restart", "-n", SYSTEM, AGENT, CONTROLLER])?;
    }
    test.cluster.agent_ready()?;
    test.cluster.controller_ready()?;

    let new = names("new", 9);
    for (n, name) in new.iter().enumerate() {
        test.pod_on(["node0", "node2", "node1"][n % 3], name, &network)?;
    }
    run(test, &[old, new].concat())?;
    meanwhile_unique(test, NOTICED, "no agent has pods with addresses of others", || {
        for node in test.cluster.nodes() {
            let pods = gauge(test, &node.name(), "netclaim_pods_without_address_block")?;
            ensure!(pods == 0, "{pods} pods of {}", node.name());
        }
        test.nodes_are_clean()
    })
}

pub fn a_restored_etcd_gives_no_address_to_two_pods(test: &Test<'_>) -> Result<()> {
    restored(test, Restore::Copy)
}

pub fn an_etcd_restored_with_bumped_revisions_gives_no_address_to_two_pods(test: &Test<'_>) -> Result<()> {
    if !long() {
        return test.skip("it takes minutes: make test-faults");
    }
    programs::built_or_skipped(test, "etcdutl")?;
    restored(test, Restore::Bumped)
}

pub fn addresses_of_pods_stay_taken_when_the_state_directory_is_lost(test: &Test<'_>) -> Result<()> {
    // Large blocks: addresses that the agent has forgotten count twice, as those of another holder and by
    // their claims.
    let ranges = json!({"ranges": [{"subnet": test.subnet(0)}], "blockSize": {"ipv4": 27}});
    let network = leased(test, ranges, 3)?;
    test.cluster.with_agent_env("NETCLAIM_GC_PERIOD", "1", || {
    let old = names("old", 3);
    for name in &old {
        test.pod_on("node0", name, &network)?;
    }
    run(test, &old)?;
    let lost = "find /var/lib/netclaim/journal /var/lib/netclaim/cni /run/netclaim/journal -type f ! -name .lock -delete";
    test.cluster.on_node(&["bash", "-c", lost])?;
    test.cluster.replace_agent()?;
        let new = names("new", 3);
        for name in &new {
            test.pod_on("node0", name, &network)?;
        }
        run(test, &new)?;
        holds(COLLECTED, "all addresses stay taken", || {
            let leases = test.cluster.node().leases()?;
            ensure!(leases.len() == old.len() + new.len(), "{leases:?}");
            Ok(())
        })?;
        meanwhile_unique(test, 60, "the agent says that the journal was lost", || {
            let forgotten = gauge(test, "node0", "netclaim_forgotten_addresses")?;
            ensure!(forgotten == 3, "it has forgotten {forgotten} addresses");
            Ok(())
        })?;
        // As the page says: the pods are deleted, and what is left of them is collected.
        old.iter().try_for_each(|pod| test.delete_pod(pod))?;
        meanwhile_unique(test, 60, "the addresses are free", || {
            let (forgotten, leases) =
                (gauge(test, "node0", "netclaim_forgotten_addresses")?, test.cluster.node().leases()?);
            ensure!(forgotten == 0 && leases.len() == new.len(), "{forgotten} forgotten, {leases:?}");
            Ok(())
        })
    })
}

pub fn a_pod_of_a_damaged_journal_file_keeps_its_address_until_it_is_gone(test: &Test<'_>) -> Result<()> {
    let network = leased(test, json!({"ranges": [{"subnet": test.subnet(0)}]}), 3)?;
    test.pod_on("node0", "damaged", &network)?;
    run(test, &["damaged".to_owned()])?;
    let (address, sandbox) = (test.ip("damaged", "net1")?, test.sandbox("damaged")?.sandbox);
    let uid = text(&test.get("pod", "damaged")?["metadata"]["uid"]);
    let files = format!(
        "$(ls /var/lib/netclaim/journal/{uid}_*.json /run/netclaim/journal/*/{uid}_*.json 2>/dev/null)"
    );
    let on_node = |script: &str| test.cluster.on_node(&["bash", "-c", script]);
    on_node(&format!("for file in {files}; do : > $file; done"))?;
    test.cluster.replace_agent()?;
    let unreadable = |count: u64| {
        eventually(30, &format!("{count} files are unreadable"), || {
            let found = gauge(test, "node0", "netclaim_journal_unreadable_files")?;
            ensure!(found == count, "{found} are");
            Ok(())
        })
    };
    unreadable(1)?;
    test.pod_on("node0", "other", &network)?;
    run(test, &["other".to_owned()])?;

    // As the page says.
    test.kubectl(&["delete", "pod", "damaged", "--wait=false"])?;
    eventually(60, "the sandbox is gone", || {
        ensure!(test.sandbox("damaged").is_err(), "it lives");
        Ok(())
    })?;
    ensure!(
        test.get("pod", "damaged").is_ok(),
        "its claim was released, although it is unknown what is owed to it"
    );
    let leases = test.cluster.node().leases()?;
    ensure!(leases.iter().any(|(lease, _)| lease.ends_with(&format!("/{address}"))), "{leases:?}");
    on_node(&format!(
        "rm {files} /var/lib/cni/networks/netclaim-{network}/{address} /var/lib/netclaim/cni/results/netclaim-{network}-{sandbox}-net1"
    ))?;
    test.cluster.replace_agent()?;
    unreadable(0)?;
    // The kubelet retries.
    test.kubectl(&["wait", "--for=delete", "pod/damaged", "--timeout=150s"])?;
    test.delete_pod("damaged")?;
    test.pod_on("node0", "next", &network)?;
    run(test, &["next".to_owned(), "other".to_owned()])
}

pub fn nodes_that_are_set_up_again_and_a_cloned_cluster_give_no_address_twice(test: &Test<'_>) -> Result<()> {
    if !long() {
        return test.skip("it takes minutes: make test-faults");
    }
    let lower = json!({"ranges": [{"subnet": test.subnet(0), "rangeEnd": test.address(0, 127)}]});
    let network = leased(test, lower, 3)?;
    let pods = names("p", 6);
    for (n, name) in pods.iter().enumerate() {
        test.pod_on(["node1", "node2"][n % 2], name, &network)?;
    }
    run(test, &pods)?;
    for node in ["node1", "node2"] {
        set_up_again(test, node)?;
    }
    test.cluster.agent_ready()?;
    run(test, &pods)?;
    let of_nodes = addresses(test)?;
    ensure!(of_nodes.len() == pods.len(), "{of_nodes:?}");

    // A clone has the same objects and other nodes. Its ClaimNetworks get a range of their own before a
    // kubelet of it runs.
    for node in ["node1", "node2"] {
        test.cluster.power_off(node)?;
    }
    let upper = json!([{"subnet": test.subnet(0), "rangeStart": test.address(0, 128)}]);
    let patch = json!({"spec": {"addresses": {"ranges": upper}}}).to_string();
    test.cluster.kubectl(&["patch", "claimnetwork", &network, "--type", "merge", "-p", &patch])?;
    test.cluster.kubectl(&["delete", "addressblocks", "--all", "--wait=false"])?;
    for node in ["node1", "node2"] {
        set_up_again(test, node)?;
    }
    test.cluster.agent_ready()?;
    run(test, &pods)?;
    let of_clone = addresses(test)?;
    let is_upper = |address: &String| {
        address.rsplit('.').next().and_then(|host| host.parse::<u8>().ok()).is_some_and(|host| host >= 128)
    };
    ensure!(of_clone.len() == pods.len() && of_clone.keys().all(is_upper), "{of_clone:?}");
    Ok(())
}

/// Powers a node on or off and on, without anything of what kubelet, CNI plugins and netclaim had on its
/// disk.
fn set_up_again(test: &Test<'_>, name: &str) -> Result<()> {
    if test.cluster.nodes().iter().any(|node| node.name() == name) {
        test.cluster.power_off(name)?;
    }
    let disk = test.cluster.dir().join(name);
    for folder in ["kubelet", "cni/lib", "netclaim"] {
        std::fs::remove_dir_all(disk.join(folder))?;
    }
    test.cluster.power_on(name)
}

pub fn a_node_object_that_was_deleted_by_mistake_costs_no_address(test: &Test<'_>) -> Result<()> {
    if !long() {
        return test.skip("it takes minutes: make test-faults");
    }
    let (network, _) = small_blocks(test)?;
    let on_node2 = names("two", 2);
    for name in &on_node2 {
        test.pod_on("node2", name, &network)?;
    }
    run(test, &on_node2)?;
    test.cluster.kubectl(&["delete", "node", "node2"])?;
    // Longer than the safety time of the cluster (40 s). The kubelet does not register again by itself.
    let others = names("others", 8);
    for (n, name) in others.iter().enumerate() {
        test.pod_on(["node0", "node1"][n % 2], name, &network)?;
    }
    let blocks_of_node2 =
        || test.cluster.kubectl(&["get", "addressblocks", "-o", "jsonpath={.items[*].spec.nodeName}"]);
    meanwhile_unique(test, NOTICED, "the node's blocks are gone", || {
        let nodes = blocks_of_node2()?;
        ensure!(!nodes.contains("node2"), "{nodes}");
        Ok(())
    })?;
    test.cluster.service("restart", "kubelet2")?;
    meanwhile_unique(test, NOTICED, "the node is there", || {
        test.cluster.kubectl(&["wait", "--for=condition=Ready", "node/node2", "--timeout=1s"]).map(drop)
    })?;
    run(test, &others)?;
    test.cluster.agent_ready()?;
    let again = names("again", 2);
    for name in &again {
        test.pod_on("node2", name, &network)?;
    }
    run(test, &again)?;
    // The kubelet releases the claims of the pods that were deleted with the Node object when it next looks.
    meanwhile_unique(test, NOTICED, "nothing is left of the deleted pods", || test.nodes_are_clean())
}

/// crictl on node2.
struct Crictl<'a> {
    test: &'a Test<'a>,
    program: String,
}

impl<'a> Crictl<'a> {
    fn new(test: &'a Test<'a>) -> Result<Self> {
        let program = programs::built_or_skipped(test, "crictl")?;
        Ok(Self { test, program: program.to_str().context("its path is not text")?.to_owned() })
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        // Its own time is two seconds, which a busy machine and a DEL need, too.
        self.test.cluster.on("node2", &[&[self.program.as_str(), "--timeout", "1m"], args].concat())
    }

    /// Kills a pod's sandbox, and makes the next one in the kubelet's place. Without the API server the
    /// kubelet makes none, because it reads the pod's claims first.
    fn replace_sandbox(&self, pod: &str) -> Result<()> {
        let (test, cluster) = (self.test, self.test.cluster);
        let kubelet_log = || std::fs::read_to_string(cluster.dir().join("log/kubelet2.log"));
        let (before, old) = (kubelet_log()?.len(), test.sandbox(pod)?);
        let inspected: Value = serde_json::from_str(&self.run(&["inspectp", &old.id])?)?;
        let mut config = inspected["info"]["config"].clone();
        config["metadata"]["attempt"] = json!(1);
        test.kill(&old)?;
        eventually(60, &format!("the kubelet cannot read the claim of {pod}"), || {
            let of_pod = format!("pod=\"{}/{pod}\"", test.namespace());
            let fails =
                |line: &str| line.contains("Failed to prepare dynamic resources") && line.contains(&of_pod);
            ensure!(kubelet_log()?[before..].lines().any(fails), "it does not say so");
            Ok(())
        })?;
        ensure!(test.sandbox(pod).is_err(), "the kubelet has made a sandbox");
        let file = format!("/run/{pod}.json");
        let on_host = cluster.node_named("node2")?.path(&file);
        std::fs::write(&on_host, config.to_string())?;
        self.run(&["runp", &file])?;
        std::fs::remove_file(on_host)?;
        ensure!(test.sandbox(pod)?.id != old.id, "the old sandbox of {pod} is alive");
        Ok(())
    }
}

pub fn a_node_that_is_cut_off_and_deleted_hands_out_no_address(test: &Test<'_>) -> Result<()> {
    if !long() {
        return test.skip("it takes minutes: make test-faults");
    }
    let crictl = Crictl::new(test)?;
    // Three blocks, with ten addresses: .2 and .3, .4 to .7, and .8 to .11. The gateway is .1.
    let asked = test.address(0, 13);
    let network = test.network("a", |network| {
        let ranges = json!([{"subnet": test.subnet(0).replace("/24", "/28")}]);
        let reserved = json!([format!("{}/30", test.address(0, 12))]);
        with_addresses(network, json!({"ranges": ranges, "blockSize": {"ipv4": 30}, "reserved": reserved}));
        network["spec"]["allow"] = json!({"ips": {}});
    })?;
    let of_claim = |name: &str, node: &str| {
        let mut pod = pod(name, &["asks"]);
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        pod
    };
    test.create([asking_alone("asks", &network, &asked), of_claim("asks", "node2")])?;
    for name in ["stays", "anew"] {
        test.pod_on("node2", name, &network)?;
    }
    let old = ["stays", "anew", "asks"].map(str::to_owned);
    run(test, &old)?;
    let kept = test.ip("stays", "net1")?;
    let uid = |name: &str| -> Result<String> { Ok(text(&test.get("pod", name)?["metadata"]["uid"])) };
    let uids = [uid("anew")?, uid("asks")?];

    let before = agent_log(test, "node2")?.len();
    let has_said = |words: &[&str]| -> Result<()> {
        let log = agent_log(test, "node2")?;
        let says = |line: &str| words.iter().all(|word| line.contains(word));
        ensure!(log[before..].lines().any(says), "the agent has not said {words:?}");
        Ok(())
    };
    test.cluster.cut_off("node2")?;
    forget(test, "node2")?;
    // They need all addresses, so that the last of them wait for those of node2.
    let others = names("others", 10);
    for name in &others {
        test.pod(name, &network)?;
    }
    // As documented, this pod keeps its address, also when another one gets that.
    let left_out = Some("stays");
    meanwhile_unique_beside(test, left_out, NOTICED, "the agent misses the API server", || {
        has_said(&["the API server has not reported this node's AddressBlocks for 20 s"])
    })?;
    for name in ["anew", "asks"] {
        crictl.replace_sandbox(name)?;
    }
    meanwhile_unique_beside(test, left_out, 60, "the ADD of both sandboxes is refused", || {
        uids.iter()
            .try_for_each(|uid| has_said(&[uid, "attachment failed", "node2 has not heard of its blocks"]))
    })?;
    run_beside(test, left_out, &others)?;
    test.create([of_claim("second", "node0")])?;
    meanwhile_unique_beside(test, left_out, NOTICED, "the claim serves a pod of another node", || {
        let ip = test.ip("second", "net1")?;
        ensure!(ip == asked, "its address is {ip}");
        Ok(())
    })?;
    for name in ["anew", "asks"] {
        let interfaces = test.interfaces(name)?;
        ensure!(!interfaces.contains_key("net1"), "{name} has {interfaces:?}");
        test.has_not_started(name)?;
    }
    ensure!(test.ip("stays", "net1")? == kept, "its address is {}, not {kept}", test.ip("stays", "net1")?);
    ensure!(addresses_beside(test, left_out)?.contains_key(&kept), "no other pod has {kept}");

    // As the page says, this shows on the node which sandboxes have addresses.
    let agent = crictl.run(&["ps", "-q", "--name", "^agent$"])?;
    let command = ["/usr/bin/netclaim-kubelet-plugin", "cni", "attachments"];
    let listed = crictl.run(&[&["exec", "--sync", agent.trim()], command.as_slice()].concat())?;
    let of_network: Vec<&str> = listed.lines().filter(|line| line.contains(&network)).collect();
    let sandbox = test.sandbox("stays")?.id;
    let is_named = |line: &&str| line.contains(&sandbox) && line.ends_with(&format!(" {kept}/28"));
    ensure!(of_network.len() == 1 && of_network.iter().all(is_named), "{listed}");
    // No kubelet has made these.
    for name in ["anew", "asks"] {
        crictl.run(&["stopp", &test.sandbox(name)?.id])?;
    }

    test.cluster.reconnect("node2")?;
    test.cluster.service("restart", "kubelet2")?;
    meanwhile_unique_beside(test, left_out, NOTICED, "the pods of before have ended", || {
        old.iter().try_for_each(|name| {
            ensure!(test.sandbox(name).is_err(), "{name} runs");
            Ok(())
        })
    })?;
    test.cluster.agent_ready()?;
    // The one that is left needs one block of three.
    for name in &others[1..] {
        test.kubectl(&["delete", "pod", name, "--wait=false"])?;
    }
    test.pod_on("node2", "back", &network)?;
    run(test, &["back".to_owned(), others[0].clone()])?;
    meanwhile_unique(test, NOTICED, "nothing is left", || test.nodes_are_clean())
}

/// The kubelet of node2 under another name of the node, until it is dropped.
struct Renamed<'a> {
    test: &'a Test<'a>,
    command: PathBuf,
    own: String,
}

impl<'a> Renamed<'a> {
    /// Writes the kubelet's new command, with a certificate of this node.
    fn to(test: &'a Test<'a>, name: &str) -> Result<Self> {
        // A kubelet that has its old name again starts the agent's pod of that name again.
        test.cluster.expect_restarts();
        let dir = test.cluster.dir();
        let command = dir.join("cmd/kubelet2");
        let own = std::fs::read_to_string(&command)?;
        let script = r#"
            umask 077; cd "$1/pki"
            openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout renamed.key -out renamed.csr \
                -subj "/O=system:nodes/CN=system:node:$2"
            openssl x509 -req -in renamed.csr -CA ca.crt -CAkey ca.key -set_serial "0x$(openssl rand -hex 16)" -days 2 -out renamed.crt
            jq --rawfile crt renamed.crt --rawfile key renamed.key \
                '.users[0].user = {"client-certificate-data": ($crt | @base64), "client-key-data": ($key | @base64)}' \
                kubelet2.conf >renamed.conf"#;
        output(Command::new("bash").args(["-euc", script, "-"]).arg(dir).arg(name))?;
        let renamed = own.replace("kubelet2.conf", "renamed.conf");
        let renamed = renamed.replace("--hostname-override node2", &format!("--hostname-override {name}"));
        ensure!(renamed.contains(&format!("--hostname-override {name}")), "the kubelet's command is {own}");
        std::fs::write(&command, renamed)?;
        Ok(Self { test, command, own })
    }
}

impl Drop for Renamed<'_> {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.command, &self.own);
        let _ = self.test.cluster.service("restart", "kubelet2");
    }
}

pub fn a_renamed_node_gives_no_address_to_two_pods(test: &Test<'_>) -> Result<()> {
    if !long() {
        return test.skip("it takes minutes: make test-faults");
    }
    const NAME: &str = "renamed";
    let (network, _) = small_blocks(test)?;
    // A node that others have left: drained, stopped, and its object deleted.
    let leave = |node: &str| -> Result<()> {
        test.cluster.kubectl(&["drain", node, "--ignore-daemonsets", "--force", "--timeout=90s"])?;
        test.cluster.service("stop", "kubelet2")?;
        test.cluster.kubectl(&["delete", "node", node]).map(drop)
    };
    let on = |node: &str, name: &str| -> Result<()> {
        meanwhile_unique(test, NOTICED, "the node is ready", || {
            let node = format!("node/{node}");
            test.cluster.kubectl(&["wait", "--for=condition=Ready", &node, "--timeout=1s"]).map(drop)
        })?;
        test.pod_on(node, name, &network)?;
        run(test, &[name.to_owned()])
    };
    leave("node2")?;
    let renamed = Renamed::to(test, NAME)?;
    let shown = || -> Result<()> {
        test.cluster.service("start", "kubelet2")?;
        on(NAME, "there")?;
        meanwhile_unique(test, NOTICED, "the blocks of the old name are gone", || {
            let blocks = ["get", "addressblocks", "-o", "jsonpath={.items[*].spec.nodeName}"];
            let nodes = test.cluster.kubectl(&blocks)?;
            ensure!(!nodes.contains("node2"), "{nodes}");
            Ok(())
        })?;
        leave(NAME)
    };
    let shown = shown();
    drop(renamed);
    shown?;
    on("node2", "back")?;
    test.cluster.agent_ready()
}
