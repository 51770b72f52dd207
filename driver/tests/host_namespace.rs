//! What plugins do in the host's own network namespace: what `spec.node` of a ClaimNetwork relies on, and why
//! some plugins are refused there. Each test's thread is in a namespace that stands for the host's.
//!
//! Needs root and `NETCLAIM_CNI_BIN`, the directory of the plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use netclaim_cni::{Cache, Runtime};
use netclaim_driver::attach::journal::Journal;
use netclaim_driver::attach::{Attacher, CniPlugins, Gate, LiveSandbox, Phase, Sandbox};
use netclaim_driver::links::{self as driver_links, Links};
use serde_json::{Value, json};

use plugin_host::{Feature, Host, LONG, Netns, Plan, Silent, VLAN, links, on_a_host, run, show};

const HOST: &str = "p-uid";
const GROUP: &str = "c-uid";
const SANDBOX: &str = "node-1";

struct Node {
    agent: Arc<Attacher<CniPlugins, Silent>>,
    host: Host,
    netns: Netns,
}

fn agent(host: &Host, on_host: bool) -> Arc<Attacher<CniPlugins, Silent>> {
    let bin = PathBuf::from(std::env::var_os("NETCLAIM_CNI_BIN").unwrap());
    let cache = Cache::new(host.data.path().join("cache"));
    let plugins = CniPlugins::new(Runtime::new(vec![bin]).unwrap(), cache, Links::new("/sys"), LONG);
    let plugins = if on_host { plugins.on_host() } else { plugins };
    let journal = Journal::open(host.data.path().join("journal"), host.data.path().join("run")).unwrap();
    let loaded = journal.load().unwrap();
    Attacher::start(Arc::new(plugins), Arc::new(Silent), journal, loaded, "b")
}

impl Node {
    /// A host with a NIC `up0`, where this plugin is wanted with the interface `made0`.
    async fn new(host: Host, plugin: Value, on_host: bool) -> Self {
        run("ip link add up0 type veth peer name sw0");
        run("ip link set sw0 up");
        run("ip link set up0 up");
        let agent = agent(&host, on_host);
        let object = |name: &str| json!({"namespace": "default", "name": name, "uid": format!("{name}-uid")});
        let plan = json!({
            "claim": object("c"), "index": 0, "of": 1, "pod": object("p"), "network": "n", "ifName": "made0",
            "device": {"request": "r", "pool": "node0", "device": "net-n"},
            "conflist": {"cniVersion": "1.1.0", "name": "netclaim-n.node", "plugins": [plugin]},
        });
        let plan: Plan = serde_json::from_value(plan).unwrap();
        agent.prepare(vec![plan]).await.unwrap();
        let node = Self { agent, host, netns: Netns::here() };
        node.sandbox_up();
        node
    }

    fn sandbox_up(&self) {
        let netns = driver_links::Netns::open(self.netns.path()).unwrap();
        let sandbox = Sandbox {
            id: SANDBOX.into(),
            netns: self.netns.path(),
            netns_id: netns.id(),
            boot_id: "b".into(),
        };
        self.agent.sandbox_up(LiveSandbox { pod_uid: HOST.into(), sandbox, netns });
    }

    async fn is_made(&self) {
        let mut state = self.agent.watch(HOST).unwrap();
        let made =
            tokio::time::timeout(LONG, state.wait_for(|state| state.gate(SANDBOX) == Gate::Open)).await;
        assert!(made.is_ok_and(|state| state.is_ok()), "not made: {:?}", self.agent.pods());
    }

    /// Waits until the ADD has failed, and returns why.
    async fn fails(&self) -> String {
        let mut state = self.agent.watch(HOST).unwrap();
        let failed = state
            .wait_for(|state| state.records[0].error.is_some() && state.records[0].phase == Phase::Planned);
        let state = tokio::time::timeout(LONG, failed).await.expect("in time").unwrap().clone();
        state.records[0].error.clone().unwrap()
    }

    /// Takes it down twice, the second time by an agent that finds nothing.
    async fn take_down(self) -> Host {
        self.agent.release(GROUP).await.unwrap();
        self.agent.drain().await;
        let next = agent(&self.host, true);
        next.release(GROUP).await.unwrap();
        assert_eq!((next.pods().len(), next.illegal_moves()), (0, 0));
        self.host
    }
}

/// Makes the interface twice, with a new agent in between, and takes it down.
fn comes_and_goes(needs: &'static [Feature], plugin: Value, kind: &'static str) {
    on_a_host(needs, async move |host| {
        let node = Node::new(host, plugin, true).await;
        node.is_made().await;
        let link = show("ip -d -j link show dev made0");
        assert_eq!(link["linkinfo"]["info_kind"], kind, "{link}");
        let key = node.agent.pods()[HOST].records[0].key();
        let checked = node.agent.check(HOST, &key, true).await;
        assert!(matches!(checked, Some(netclaim_driver::attach::Checked::Fine)), "{checked:?}");
        // An agent that comes later finds it made, and makes nothing again.
        let index = link["ifindex"].clone();
        node.agent.drain().await;
        let node = Node { agent: agent(&node.host, true), ..node };
        node.sandbox_up();
        node.is_made().await;
        assert_eq!(show("ip -j link show dev made0")["ifindex"], index);
        node.take_down().await;
        assert!(!links().contains("made0"));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn macvlan_without_an_ipam_comes_and_goes_on_the_host() {
    comes_and_goes(&[], json!({"type": "macvlan", "master": "up0", "mode": "bridge"}), "macvlan");
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_vlan_with_an_ipam_comes_and_goes_on_the_host() {
    let ipam = json!({"type": "static", "addresses": [{"address": "169.254.7.1/32"}]});
    comes_and_goes(&[VLAN], json!({"type": "vlan", "master": "up0", "vlanId": 7, "ipam": ipam}), "vlan");
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn the_reference_bridge_is_never_removed() {
    on_a_host(&[], async |host| {
        let node = Node::new(host, json!({"type": "bridge", "bridge": "br7"}), true).await;
        node.is_made().await;
        assert_eq!(show("ip -d -j link show dev made0")["linkinfo"]["info_kind"], "veth");
        node.take_down().await;
        assert!(!links().contains("made0") && links().contains("br7"), "{:?}", links());
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_of_that_name_on_the_host_is_left_alone() {
    on_a_host(&[], async |host| {
        run("ip link add made0 type bridge");
        let node = Node::new(host, json!({"type": "macvlan", "master": "up0"}), true).await;
        let why = node.fails().await;
        assert!(why.contains("the node has a link made0 already"), "{why}");
        run("ip link delete made0");
        node.is_made().await;
        node.agent.release(GROUP).await.unwrap();
        assert!(!links().contains("made0"));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn plugins_refuse_the_hosts_namespace_after_they_have_done_their_work_unless_they_are_told() {
    on_a_host(&[], async |host| {
        let node = Node::new(host, json!({"type": "macvlan", "master": "up0"}), false).await;
        let failed = tokio::time::timeout(Duration::from_secs(20), async {
            let mut state = node.agent.watch(HOST).unwrap();
            let failed = state.wait_for(|state| state.records[0].error.is_some()).await.unwrap().clone();
            failed.records[0].error.clone().unwrap()
        });
        let why = failed.await.expect("in time");
        assert!(why.contains("netns"), "{why}");
    });
}
