//! Virtual functions of real network cards: made, moved into pods by the real `host-device`, and destroyed,
//! even while a pod has them.
//!
//! Needs root, `NETCLAIM_CNI_BIN`, the directory of the plugins, and a machine whose cards are this test's to
//! change, which `NETCLAIM_OWN_CARDS` says: `make test-qemu`. The machine of `tests/qemu/vm.sh` has two
//! (Intel 82576), on one wire.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netclaim_driver::attach::testing::Claimant;
use netclaim_driver::attach::{Attacher, CniPlugins, Failure, Gate, LiveSandbox, Observer, Sandbox};
use netclaim_driver::links::{self, Link, LinkWatch, Links};
use serde_json::{Value, json};

use plugin_host::{Feature, Host, LONG, Netns, Plan, PodState, links, on_the_machine, run, state};

const NEEDS: &[Feature] = &[
    Feature {
        without: "the network cards are not this test's to change (NETCLAIM_OWN_CARDS)",
        probe: "test -n \"$NETCLAIM_OWN_CARDS\"",
    },
    Feature {
        without: "this machine has no network card with virtual functions",
        probe: "ls /sys/bus/pci/drivers/igb/*/sriov_totalvfs",
    },
];

/// The card whose functions are moved into pods, below a PCIe root of NUMA node 1.
const CARD: &str = "eth1";
/// The card at the other end of the wire, below a PCIe root of no node.
const OTHER: &str = "eth0";

static CARDS: Mutex<()> = Mutex::new(());

/// Runs a test that has the cards for itself: without virtual functions, and up.
fn on_the_cards<F: Future, T: FnOnce(Host) -> F + Send + 'static>(test: T) {
    let _turn = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
    if NEEDS.iter().all(Feature::is_here) {
        for card in [CARD, OTHER] {
            set_functions(card, 0);
            run(&format!("ip address flush dev {card}"));
            run(&format!("ip link set {card} up"));
        }
    }
    on_the_machine(NEEDS, test);
}

/// Sets the number of a card's virtual functions. A number other than 0 needs a card that has none.
fn set_functions(card: &str, number: u32) {
    fs::write(format!("/sys/class/net/{card}/device/sriov_numvfs"), number.to_string()).unwrap();
}

async fn snapshot() -> links::Snapshot {
    Links::new("/sys").snapshot().await.unwrap()
}

/// The virtual functions in the node's namespace, ordered by PCI address. Asserts that each is an uplink.
fn functions(snapshot: &links::Snapshot) -> Vec<Link> {
    let is_function = |link: &&Link| link.driver.as_deref() == Some("igbvf");
    let uplinks = links::classify(snapshot, &BTreeSet::new()).filter(|(_, reason)| reason.is_ok());
    let mut found: Vec<Link> = uplinks.map(|(link, _)| link).filter(is_function).cloned().collect();
    assert_eq!(snapshot.links.iter().filter(is_function).count(), found.len(), "each is an uplink");
    found.sort_by(|a, b| a.pci_bus_id.cmp(&b.pci_bus_id));
    found
}

/// Waits until a watch of the links shows that many virtual functions, and returns them.
async fn watch_for(watch: &mut LinkWatch, number: usize) -> Vec<Link> {
    let found = async {
        loop {
            let found = functions(watch.snapshot().await.unwrap());
            if found.len() == number {
                return found;
            }
            watch.changed(|_, _| false).await.unwrap();
        }
    };
    tokio::time::timeout(LONG, found).await.expect("the watch reports them")
}

/// Two virtual functions of the card.
async fn two_functions() -> [Link; 2] {
    set_functions(CARD, 2);
    functions(&snapshot().await).try_into().unwrap()
}

async fn one_link(name: &str) -> Link {
    snapshot().await.links.into_iter().find(|link| link.name == name).unwrap()
}

/// Collects what is given up.
#[derive(Default)]
struct GivenUp(Mutex<Vec<String>>);

impl Observer for GivenUp {
    type Owner = Claimant;

    async fn observe(&self, _: &str, _: &PodState) -> Result<(), Failure> {
        Ok(())
    }

    fn given_up(&self, _: &Plan, why: &str) {
        self.0.lock().unwrap().push(why.to_owned());
    }
}

/// An agent, and pods that each want a whole link.
struct Node {
    host: Host,
    agent: Arc<Attacher<CniPlugins, GivenUp>>,
    told: Arc<GivenUp>,
}

impl Node {
    fn new(host: Host) -> Self {
        let told = Arc::default();
        Self { agent: Self::agent(&host, &told), host, told }
    }

    fn agent(host: &Host, told: &Arc<GivenUp>) -> Arc<Attacher<CniPlugins, GivenUp>> {
        let bin = PathBuf::from(std::env::var_os("NETCLAIM_CNI_BIN").unwrap());
        host.agent(vec![bin], LONG, told)
    }

    /// A pod, named by the last octet of its address, whose claim has this link.
    async fn pod(&self, octet: u8, link: &Link) -> Pod {
        let (uid, netns) = (octet.to_string(), Netns::new());
        let object = |name: &str| json!({"namespace": "default", "name": name, "uid": name});
        let ipam = json!({"type": "static", "addresses": [{"address": format!("10.9.0.{octet}/24")}]});
        let plan = json!({
            "claim": object(&uid), "index": 0, "of": 1, "pod": object(&uid), "network": "net", "ifName": "net1",
            "device": {"request": "net", "pool": "node0", "device": format!("nic-{}", link.name)},
            "conflist": {"cniVersion": "1.0.0", "name": "h",
                "plugins": [{"type": "host-device", "device": link.name, "ipam": ipam}]},
        });
        self.agent.prepare(vec![serde_json::from_value(plan).unwrap()]).await.unwrap();
        let path = self.host.data.path().join(&uid);
        symlink(netns.path(), &path).unwrap();
        let pin = links::Netns::open(&path).unwrap();
        let sandbox = Sandbox { id: uid.clone(), netns: path, netns_id: pin.id(), boot_id: "b".into() };
        self.agent.sandbox_up(LiveSandbox { pod_uid: uid.clone(), sandbox, netns: pin });
        Pod { uid, netns }
    }

    async fn until(&self, pod: &Pod, reached: impl FnMut(&PodState) -> bool) {
        let mut state = self.agent.watch(&pod.uid).unwrap();
        let reached = tokio::time::timeout(LONG, state.wait_for(reached)).await;
        assert!(reached.is_ok_and(|state| state.is_ok()), "{:?}", self.agent.pods());
    }

    async fn is_attached(&self, pod: &Pod) {
        self.until(pod, |state| state.gate(&pod.uid) == Gate::Open).await;
    }

    /// Ends a pod's claim. An error is the first DEL's, which is tried again then.
    async fn release(&self, pod: &Pod) {
        self.agent.release(&pod.uid).await.unwrap();
        assert_eq!(self.agent.illegal_moves(), 0);
    }

    /// The agent dies, then the pod's namespace ends, and another agent comes.
    async fn lose_netns(self, pod: Pod) -> (Self, Pod) {
        self.agent.drain().await;
        fs::remove_file(self.host.data.path().join(&pod.uid)).unwrap();
        let Self { host, told, agent } = self;
        drop((agent, pod.netns));
        (Self { agent: Self::agent(&host, &told), host, told }, Pod { uid: pod.uid, netns: Netns::new() })
    }

    fn given_up(&self) -> Vec<String> {
        self.told.0.lock().unwrap().clone()
    }
}

struct Pod {
    uid: String,
    netns: Netns,
}

impl Pod {
    /// What of the pod's link iproute2 shows at this JSON pointer.
    fn of_link(&self, pointer: &str) -> Value {
        let link = self.netns.show("ip -d -j address show dev net1");
        link.pointer(pointer).cloned().unwrap_or_default()
    }
}

#[test]
#[ignore = "needs root, NETCLAIM_CNI_BIN and NETCLAIM_OWN_CARDS"]
fn virtual_functions_are_uplinks_from_when_they_are_made_until_they_are_destroyed() {
    on_the_cards(async |_| {
        let cards = [one_link(CARD).await, one_link(OTHER).await];
        let mut watch = Links::new("/sys").watch();
        for _ in 0..2 {
            set_functions(CARD, 2);
            let found = watch_for(&mut watch, 2).await;
            let places = found.iter().map(|link| link.pci_bus_id.as_deref()).collect::<Vec<_>>();
            assert_eq!(places, [Some("0000:41:10.0"), Some("0000:41:10.2")]);
            for link in &found {
                assert_eq!(link.kind, None);
                assert_eq!(link.pci_id.as_deref(), Some("8086:10ca"));
                assert_eq!(link.pcie_root.as_deref(), Some("pci0000:40"));
                assert_eq!(link.numa_node, Some(1));
                assert_eq!(link.physical_function.as_deref(), Some(CARD));
            }
            set_functions(CARD, 0);
            watch_for(&mut watch, 0).await;
        }
        set_functions(OTHER, 1);
        let of_other = watch_for(&mut watch, 1).await.remove(0);
        assert_eq!(of_other.physical_function.as_deref(), Some(OTHER));
        assert_eq!((of_other.pcie_root.as_deref(), of_other.numa_node), (Some("pci0000:00"), None));

        for (card, root) in cards.iter().zip(["pci0000:40", "pci0000:00"]) {
            let now = one_link(&card.name).await;
            assert_eq!((now.index, &now.driver, &now.physical_function), (card.index, &card.driver, &None));
            assert_eq!(now.pci_id.as_deref(), Some("8086:10c9"));
            assert_eq!(now.pcie_root.as_deref(), Some(root));
        }
    });
}

#[test]
#[ignore = "needs root, NETCLAIM_CNI_BIN and NETCLAIM_OWN_CARDS"]
fn a_virtual_function_is_in_one_pod_at_a_time_and_comes_back_as_it_was() {
    on_the_cards(async |host| {
        let [link, beside] = two_functions().await;
        let node = Node::new(host);
        run(&format!("ip link set {} alias storage-function", link.name));
        let before = state(&link.name);
        let pod = node.pod(2, &link).await;
        node.is_attached(&pod).await;
        assert_eq!(pod.of_link("/addr_info/0/local"), "10.9.0.2");
        assert_eq!(pod.of_link("/parentdev"), "0000:41:10.0");
        assert!(!links().contains(&link.name) && links().contains(&beside.name) && links().contains(CARD));

        let late = node.pod(3, &link).await;
        let refused = |state: &PodState| {
            state.records[0].error.as_ref().is_some_and(|error| error.contains("Link not found"))
        };
        node.until(&late, refused).await;
        node.release(&late).await;
        assert!(!late.netns.has_link("net1") && pod.netns.has_link("net1"));

        let neighbour = node.pod(4, &beside).await;
        node.is_attached(&neighbour).await;

        node.release(&pod).await;
        assert_eq!(state(&link.name), before);
        let next = node.pod(5, &link).await;
        node.is_attached(&next).await;
        node.release(&next).await;
        node.release(&neighbour).await;
        assert_eq!(state(&link.name), before);
        assert_eq!(node.given_up(), [""; 0]);
    });
}

#[test]
#[ignore = "needs root, NETCLAIM_CNI_BIN and NETCLAIM_OWN_CARDS"]
fn traffic_of_a_virtual_function_reaches_the_other_end_of_the_wire() {
    on_the_cards(async |host| {
        let [link, _] = two_functions().await;
        // Both cards are of one node here: only the one that has the address answers for it.
        fs::write(format!("/proc/sys/net/ipv4/conf/{CARD}/arp_ignore"), "1").unwrap();
        run(&format!("ip address add 10.9.0.1/24 dev {OTHER}"));
        let node = Node::new(host);
        let pod = node.pod(2, &link).await;
        node.is_attached(&pod).await;

        let far = UdpSocket::bind("10.9.0.1:7").unwrap();
        let near = pod.netns.inside(|| UdpSocket::bind("10.9.0.2:7").unwrap());
        for socket in [&far, &near] {
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        }
        let mut buffer = [0; 16];
        // The function finds its carrier in its own time, and the first packets find no neighbour.
        let end = Instant::now() + LONG;
        let came = loop {
            near.send_to(b"there", "10.9.0.1:7").unwrap();
            match far.recv_from(&mut buffer) {
                Ok(came) => break came,
                Err(error) => assert!(Instant::now() < end, "{error}: {}", pod.of_link("")),
            }
        };
        assert_eq!((&buffer[..came.0], came.1.to_string().as_str()), (&b"there"[..], "10.9.0.2:7"));
        far.send_to(b"and back", came.1).unwrap();
        let (length, from) = near.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.to_string().as_str()), (&b"and back"[..], "10.9.0.1:7"));
        node.release(&pod).await;
    });
}

#[test]
#[ignore = "needs root, NETCLAIM_CNI_BIN and NETCLAIM_OWN_CARDS"]
fn a_virtual_function_whose_pod_ended_without_a_del_gets_its_name_back() {
    on_the_cards(async |host| {
        let [link, _] = two_functions().await;
        let node = Node::new(host);
        let before = state(&link.name);
        let pod = node.pod(2, &link).await;
        node.is_attached(&pod).await;
        pod.netns.inside(|| run("ip link set net1 mtu 1280"));
        let (node, pod) = node.lose_netns(pod).await;
        // The kernel gives hardware back in its own time.
        let end = Instant::now() + LONG;
        while !links().contains("net1") && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        node.release(&pod).await;
        assert_eq!(state(&link.name), before);
        assert_eq!(node.given_up(), [""; 0]);
    });
}

#[test]
#[ignore = "needs root, NETCLAIM_CNI_BIN and NETCLAIM_OWN_CARDS"]
fn a_virtual_function_that_is_destroyed_in_a_pod_blocks_no_release_and_can_be_used_again() {
    on_the_cards(async |host| {
        let mut node = Node::new(host);
        let gone = |link: &Link| {
            format!("link {} is gone: its device was removed from the node while a pod had it", link.name)
        };
        for (with_netns, made_again) in [(true, true), (false, false)] {
            let [link, beside] = two_functions().await;
            let pod = node.pod(2, &link).await;
            node.is_attached(&pod).await;
            set_functions(CARD, 0);
            assert!(!pod.netns.has_link("net1") && !links().contains(&beside.name));
            let others = if made_again { Vec::from(two_functions().await) } else { Vec::new() };
            let told = node.given_up().len();
            if with_netns {
                node.release(&pod).await;
                fs::remove_file(node.host.data.path().join(&pod.uid)).unwrap();
            } else {
                let (next, pod) = node.lose_netns(pod).await;
                next.release(&pod).await;
                node = next;
            }
            assert_eq!(node.given_up()[told..], [gone(&link)]);
            assert_eq!(functions(&snapshot().await), others, "those that were made since are left alone");
            set_functions(CARD, 0);
        }
        let [link, _] = two_functions().await;
        let (before, pod) = (state(&link.name), node.pod(3, &link).await);
        node.is_attached(&pod).await;
        node.release(&pod).await;
        assert_eq!(state(&link.name), before);
    });
}

#[test]
#[ignore = "needs root, NETCLAIM_CNI_BIN and NETCLAIM_OWN_CARDS"]
fn virtual_functions_of_a_card_that_is_in_a_pod_report_its_pci_address() {
    on_the_cards(async |host| {
        let [link, _] = two_functions().await;
        let node = Node::new(host);
        // A link-local address comes when the card finds its carrier.
        let of_card =
            || Value::from_iter(["mac", "mtu", "up", "alias"].map(|key| (key, state(CARD)[key].clone())));
        let (card, before) = (one_link(CARD).await, of_card());
        let pod = node.pod(2, &card).await;
        node.is_attached(&pod).await;
        assert_eq!(one_link(&link.name).await.physical_function.as_deref(), Some("0000:41:00.0"));
        node.release(&pod).await;
        assert_eq!(one_link(&link.name).await.physical_function.as_deref(), Some(CARD));
        assert_eq!(of_card(), before);
    });
}
