//! A claim of four devices that build on each other: two whole links, a bond of the two, and a VLAN on the
//! bond. In network namespaces of the tests' own, with the real plugins except for `bond`: its stand-in
//! (`plugin_host/bin/bond`) says why.
//!
//! Needs root, `NETCLAIM_CNI_BIN`, the directory of the plugins, and a kernel with bonds and VLANs: `make
//! test-qemu`.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netclaim_driver::attach::testing::Claimant;
use netclaim_driver::attach::{
    Attacher, Checked, CniPlugins, Failure, Gate, LiveSandbox, Observer, Phase, Sandbox,
};
use netclaim_driver::links;
use serde_json::{Value, json};

use plugin_host::{BOND, Feature, Host, LONG, Netns, Plan, PodState, VLAN, links, on_a_host, run, state};

const NEEDS: &[Feature] = &[BOND, VLAN];
const POD: &str = "p-uid";
const CLAIM: &str = "c-uid";
/// For four networks, one after the other, on an emulated processor.
const VERY_LONG: Duration = LONG.saturating_mul(4);
const LINKS: [&str; 2] = ["up0", "up1"];

/// Two NICs that differ in everything that a bond makes equal.
fn nics() {
    run("ip link add up0 address 02:00:00:00:00:0a mtu 1450 type veth peer name sw0");
    run("ip link add up1 address 02:00:00:00:00:0b mtu 1480 type veth peer name sw1");
    run("ip link set sw0 up");
    run("ip link set sw1 up");
    run("ip link set up0 alias storage-card up");
    run("ip address add 10.9.0.1/24 dev up0");
}

/// Collects all errors, and what is given up.
#[derive(Default)]
struct Reports {
    errors: Mutex<BTreeSet<String>>,
    given_up: Mutex<Vec<String>>,
}

impl Observer for Reports {
    type Owner = Claimant;

    async fn observe(&self, _: &str, state: &PodState) -> Result<(), Failure> {
        self.errors.lock().unwrap().extend(state.records.iter().filter_map(|record| record.error.clone()));
        Ok(())
    }

    fn given_up(&self, plan: &Plan, why: &str) {
        self.given_up.lock().unwrap().push(format!("{}: {why}", plan.spec.if_name));
    }
}

impl Reports {
    fn are_empty(&self) {
        assert_eq!(*self.errors.lock().unwrap(), BTreeSet::new());
        assert_eq!(*self.given_up.lock().unwrap(), [""; 0]);
    }
}

/// A node with one pod, whose claim is prepared.
struct Node {
    host: Host,
    agent: Arc<Attacher<CniPlugins, Reports>>,
    told: Arc<Reports>,
    netns: Netns,
    before: [Value; 2],
}

impl Node {
    /// A node whose bonds are configured so.
    async fn new(host: Host, bonds: Value) -> Self {
        nics();
        let told = Arc::new(Reports::default());
        let (agent, netns) = (Self::agent(&host, &told), Netns::new());
        symlink(netns.path(), Self::name_of_netns(&host)).unwrap();
        agent.prepare(plans(&host, bonds)).await.unwrap();
        Self { host, agent, told, netns, before: LINKS.map(state) }
    }

    fn agent(host: &Host, told: &Arc<Reports>) -> Arc<Attacher<CniPlugins, Reports>> {
        let bin = PathBuf::from(std::env::var_os("NETCLAIM_CNI_BIN").unwrap());
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plugin_host/bin").into();
        host.agent(vec![own, bin], VERY_LONG, told)
    }

    fn name_of_netns(host: &Host) -> PathBuf {
        host.data.path().join("netns")
    }

    /// The runtime has made the pod's sandbox.
    fn sandbox_up(&self) {
        let path = Self::name_of_netns(&self.host);
        let netns = links::Netns::open(&path).unwrap();
        let sandbox = Sandbox { id: "s1".into(), netns: path, netns_id: netns.id(), boot_id: "b".into() };
        self.agent.sandbox_up(LiveSandbox { pod_uid: POD.into(), sandbox, netns });
    }

    async fn until(&self, what: &str, reached: impl FnMut(&PodState) -> bool) {
        let mut state = self.agent.watch(POD).unwrap();
        let reached = tokio::time::timeout(VERY_LONG, state.wait_for(reached)).await;
        assert!(reached.is_ok_and(|state| state.is_ok()), "never {what}: {:?}", self.agent.pods());
    }

    async fn is_attached(&self) {
        self.until("attached", |state| state.gate("s1") == Gate::Open).await;
    }

    /// Waits until an ADD of the bond has failed with these words, and its DEL has not.
    async fn bond_fails(&self, words: &str) {
        let failed = |state: &PodState| {
            let bond = &state.records[2];
            bond.phase == Phase::Planned && bond.error.as_ref().is_some_and(|error| error.contains(words))
        };
        self.until("failed", failed).await;
    }

    /// The agent dies, then the namespace ends, and another agent comes. The kernel gives hardware back when
    /// its namespace ends, as these links are by `hand`; virtual links it destroys.
    async fn lose_netns(self, by_hand: bool) -> Self {
        self.agent.drain().await;
        let here = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
        if by_hand {
            self.netns.inside(|| {
                run(&format!("ip link set net1 netns {here}"));
                run(&format!("ip link set net2 netns {here}"));
            });
        }
        std::fs::remove_file(Self::name_of_netns(&self.host)).unwrap();
        let Self { host, told, netns, agent, before } = self;
        drop((agent, netns));
        let (agent, netns) = (Self::agent(&host, &told), Netns::new());
        Self { host, told, netns, agent, before }
    }

    fn nothing_is_left(&self) {
        for network in ["netclaim-bond0", "netclaim-vlan7"] {
            assert_eq!(self.host.reserved(network), [""; 0], "{network}");
        }
        for folder in ["journal", "run"] {
            assert_eq!(std::fs::read_dir(self.host.data.path().join(folder)).unwrap().count(), 0);
        }
        assert_eq!(self.netns.inside(links), Netns::new().inside(links));
        assert_eq!(self.agent.illegal_moves(), 0);
    }

    /// What of the pod's link iproute2 shows at this JSON pointer.
    fn of_link(&self, name: &str, pointer: &str) -> Value {
        let link = self.netns.show(&format!("ip -d -j address show dev {name}"));
        link.pointer(pointer).cloned().unwrap_or_default()
    }
}

/// What the agent makes of the claim.
fn plans(host: &Host, bonds: Value) -> Vec<Plan> {
    let mut bond = json!({
        "type": "bond", "linksInContainer": true, "miimon": "100",
        "links": [{"name": "net1"}, {"name": "net2"}], "ipam": host.subnet("10.8.20.0/24"),
    });
    bond.as_object_mut().unwrap().extend(bonds.as_object().unwrap().clone());
    let vlan = json!({
        "type": "vlan", "linkInContainer": true, "master": "bond0", "vlanId": 7, "ipam": host.subnet("10.8.21.0/24"),
    });
    let devices = [
        ("a", "nic-up0", "net1", json!({"type": "host-device", "device": "up0"})),
        ("b", "nic-up1", "net2", json!({"type": "host-device", "device": "up1"})),
        ("bond", "net-bond", "bond0", bond),
        ("vlan", "net-vlan", "vlan7", vlan),
    ];
    let object = |name: &str| json!({"namespace": "default", "name": name, "uid": format!("{name}-uid")});
    let plan = |(index, (request, device, if_name, plugin))| {
        let plan = json!({
            "claim": object("c"), "index": index, "of": 4, "pod": object("p"), "network": request, "ifName": if_name,
            "device": {"request": request, "pool": "node0", "device": device},
            "conflist": {"cniVersion": "1.0.0", "name": format!("netclaim-{if_name}"), "plugins": [plugin]},
        });
        serde_json::from_value(plan).unwrap()
    };
    (0..).zip(devices).map(|(index, device): (u32, _)| plan((index, device))).collect()
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bond_of_two_links_and_a_vlan_on_it_are_made_and_the_links_come_back_as_they_were() {
    on_a_host(NEEDS, async |host| {
        let node = Node::new(host, json!({"mode": "active-backup"})).await;
        node.sandbox_up();
        node.is_attached().await;
        for link in ["net1", "net2"] {
            assert_eq!(node.of_link(link, "/master"), "bond0");
            assert_eq!(node.of_link(link, "/address"), "02:00:00:00:00:0a", "one address for all");
        }
        assert_eq!(node.of_link("bond0", "/linkinfo/info_kind"), "bond");
        assert_eq!(node.of_link("bond0", "/addr_info/0/local"), "10.8.20.2");
        assert_eq!(node.of_link("vlan7", "/link"), "bond0");
        assert_eq!(node.of_link("vlan7", "/linkinfo/info_data/id"), 7);
        assert_eq!(node.of_link("vlan7", "/addr_info/0/local"), "10.8.21.2");
        assert!(LINKS.iter().all(|link| !links().contains(*link)));
        // What the guide says of networks whose CHECK is to be off.
        let checked = node.agent.check(POD, &format!("{CLAIM}.1"), true).await;
        assert!(
            matches!(&checked, Some(Checked::Failed(found)) if found.message.contains("net2 Mac 02:00:00:00:00:0b doesn't match")),
            "{checked:?}"
        );

        // The DEL of the bond succeeds only while its links are there.
        node.agent.release(CLAIM).await.unwrap();
        assert_eq!(LINKS.map(state), node.before);
        node.told.are_empty();
        node.nothing_is_left();
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bond_that_leaves_its_links_their_addresses_passes_every_check() {
    on_a_host(NEEDS, async |host| {
        let node = Node::new(host, json!({"mode": "active-backup", "failOverMac": 1})).await;
        node.sandbox_up();
        node.is_attached().await;
        for index in 0..4 {
            let checked = node.agent.check(POD, &format!("{CLAIM}.{index}"), true).await;
            assert_eq!(checked, Some(Checked::Fine), "{index}");
        }
        node.agent.release(CLAIM).await.unwrap();
        assert_eq!(LINKS.map(state), node.before);
        node.nothing_is_left();
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn links_that_the_kernel_took_out_of_a_bond_get_their_own_names_and_addresses() {
    on_a_host(NEEDS, async |host| {
        let node = Node::new(host, json!({"mode": "active-backup"})).await;
        node.sandbox_up();
        node.is_attached().await;
        let node = node.lose_netns(true).await;
        assert!(links().contains("net1") && links().contains("net2"));
        node.agent.release(CLAIM).await.unwrap();
        assert_eq!(LINKS.map(state), node.before);
        node.told.are_empty();
        node.nothing_is_left();
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bond_that_ended_with_its_namespace_does_not_block_the_release() {
    on_a_host(NEEDS, async |host| {
        let node = Node::new(host, json!({"mode": "active-backup"})).await;
        node.sandbox_up();
        node.is_attached().await;
        let node = node.lose_netns(false).await;
        // The kernel takes a namespace apart in its own time, and the other ends with it.
        let end = Instant::now() + LONG;
        while links().iter().any(|link| link.starts_with("sw")) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        node.agent.release(CLAIM).await.unwrap();
        let gone = "is gone: a virtual one ends with the pod's network namespace, or the pod removed it";
        let told = [format!("net2: link up1 {gone}"), format!("net1: link up0 {gone}")];
        assert_eq!(*node.told.given_up.lock().unwrap(), told);
        node.nothing_is_left();
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bond_that_cannot_be_made_reports_why_and_releases_its_links() {
    on_a_host(NEEDS, async |host| {
        let node = Node::new(host, json!({"mode": "no-such-mode"})).await;
        node.sandbox_up();
        for _ in 0..2 {
            node.bond_fails("no-such-mode").await;
            node.until("tried again", |state| state.records[2].phase != Phase::Planned).await;
        }
        assert!(node.netns.has_link("net1") && node.netns.has_link("net2"));
        node.agent.release(CLAIM).await.unwrap();
        assert_eq!(LINKS.map(state), node.before);
        node.nothing_is_left();
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bond_without_an_address_is_removed_and_made_again_when_there_is_one() {
    on_a_host(NEEDS, async |host| {
        let data = host.data.path().join("netclaim-bond0");
        std::fs::create_dir(&data).unwrap();
        let taken = |last: u8| data.join(format!("10.8.20.{last}"));
        // All of them, but for the gateway's.
        (2..=254).for_each(|last| std::fs::write(taken(last), "another\r\neth0").unwrap());
        let node = Node::new(host, json!({"mode": "active-backup"})).await;
        node.sandbox_up();
        node.bond_fails("no IP addresses available").await;
        (2..=254).for_each(|last| std::fs::remove_file(taken(last)).unwrap());
        node.is_attached().await;
        assert_eq!(node.of_link("net2", "/master"), "bond0");
        node.agent.release(CLAIM).await.unwrap();
        assert_eq!(LINKS.map(state), node.before);
        node.nothing_is_left();
    });
}
