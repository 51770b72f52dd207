//! What interfaces of pods tell their neighbours and what they believe, by the real plugins, in network
//! namespaces of this test's own.
//!
//! Needs root, and `NETCLAIM_CNI_BIN`, the directory of the plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::net::{Ipv6Addr, SocketAddrV6};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netclaim_cni::{Cache, Runtime};
use netclaim_driver::attach::{Attach as _, CniPlugins, Sandbox, Spec};
use netclaim_driver::links::{self, Links};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use plugin_host::{Host, LONG, Netns, on_a_host, run, show};

/// A hardware address that is not in use any more.
const GONE: &str = "02:00:00:00:00:99";
/// All nodes of a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

fn network(host: &Host) -> CniPlugins {
    let bin = PathBuf::from(std::env::var_os("NETCLAIM_CNI_BIN").unwrap());
    let cache = Cache::new(host.data.path().join("cache"));
    CniPlugins::new(Runtime::new(vec![bin]).unwrap(), cache, Links::new("/sys"), LONG)
}

/// Makes `up0` on the host, whose other end is `sw0` in another machine's namespace.
fn neighbour() -> Netns {
    let other = Netns::new();
    run(&format!("ip link add up0 type veth peer name sw0 netns {}", other.path().display()));
    run("ip link set up0 up");
    other.inside(|| {
        run("ip link set sw0 up");
        run("ip address add 10.9.0.254/24 dev sw0");
        run("ip address add fd09::fe/64 dev sw0 nodad");
    });
    other
}

fn spec(host: &Host, if_name: &str, plugin: Value, accept_ra: bool) -> Spec {
    Spec {
        tenant: "default".to_owned(),
        if_name: if_name.parse().unwrap(),
        conflist: host.list("netclaim-n", json!([plugin])),
        args: Default::default(),
        capability_args: Default::default(),
        accept_ra,
    }
}

/// Attaches a pod, as the agent does.
async fn attach(network: &CniPlugins, spec: &Spec, pod: &Netns) {
    let netns_id = links::Netns::open(pod.path()).unwrap().id();
    let sandbox = Sandbox { id: "s1".into(), netns: pod.path(), netns_id, boot_id: "b".into() };
    network.make_ready(spec, &sandbox).await.unwrap();
    network.add(spec, &sandbox).await.unwrap();
}

/// Waits until `look` returns nothing more to complain about.
fn eventually(look: impl Fn() -> Result<(), String>) {
    let end = Instant::now() + Duration::from_secs(5);
    while let Err(problem) = look() {
        assert!(Instant::now() < end, "{problem}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A pod gets addresses that the neighbour knows another machine by.
async fn a_moved_address(host: Host, plugin: Value) {
    let (other, pod) = (neighbour(), Netns::new());
    if plugin["type"] == "bridge" {
        run("ip link add br0 type bridge");
        run("ip link set up0 master br0");
        run("ip link set br0 up");
    }
    let addresses = ["10.9.0.7", "fd09::7"];
    other.inside(|| {
        for address in addresses {
            run(&format!("ip neighbour replace {address} lladdr {GONE} dev sw0 nud reachable"));
        }
    });
    let range = |subnet: &str, ip: &str| json!([{"subnet": subnet, "rangeStart": ip, "rangeEnd": ip}]);
    let ranges = json!([range("10.9.0.0/24", addresses[0]), range("fd09::/64", addresses[1])]);
    let mut plugin = plugin;
    plugin["ipam"] = host.ipam(ranges);
    attach(&network(&host), &spec(&host, "net1", plugin.clone(), false), &pod).await;
    let mac = pod.show("ip -j link show dev net1")["address"].clone();
    for address in addresses {
        eventually(|| {
            let known = other.show(&format!("ip -j neighbour show {address} dev sw0"));
            if known["lladdr"] == mac { Ok(()) } else { Err(format!("{plugin}: {known}, the pod has {mac}")) }
        });
    }
    // What a plugin has written down of the neighbours stays.
    pod.inside(|| run(&format!("ip neighbour replace 10.9.0.1 lladdr {GONE} dev net1 nud permanent")));
    links::Netns::open(pod.path()).unwrap().announce("net1").await.unwrap();
    assert_eq!(pod.show("ip -j neighbour show 10.9.0.1 dev net1")["lladdr"], GONE);
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn neighbours_know_at_once_who_has_an_address_now() {
    for plugin in [
        json!({"type": "macvlan", "master": "up0"}),
        json!({"type": "bridge", "bridge": "br0"}),
        // It sets the interface up before this has an address.
        json!({"type": "host-device", "device": "up0"}),
    ] {
        on_a_host(&[], async |host| a_moved_address(host, plugin).await);
    }
}

/// A router advertisement (RFC 4861, section 4.2): a default route, and the prefix fd0a::/64 for addresses.
fn router_advertisement() -> Vec<u8> {
    // Type, code, checksum (by the kernel), hop limit, flags, lifetime of the default route in seconds,
    // timers.
    let mut message = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    // Prefix: type, length in 8 bytes, bits, on the link and for addresses, valid, preferred, reserved.
    message.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
    message.extend(Ipv6Addr::new(0xfd0a, 0, 0, 0, 0, 0, 0, 0).octets());
    message
}

fn advertise() {
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap();
    // Others are ignored: a router is on the same link.
    socket.set_multicast_hops_v6(255).unwrap();
    let index = show("ip -j link show dev sw0")["ifindex"].as_u64().unwrap();
    let all = SocketAddrV6::new(ALL_NODES, 0, 0, index.try_into().unwrap());
    // Until its own address is known to be free, the router has none to send from.
    let _ = socket.send_to(&router_advertisement(), &all.into());
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn routers_are_believed_only_where_the_network_says_so() {
    on_a_host(&[], async |host| {
        let (network, other, pod) = (network(&host), neighbour(), Netns::new());
        for (if_name, accept_ra) in [("net1", false), ("net2", true), ("net3", false)] {
            let plugin = json!({"type": "macvlan", "master": "up0"});
            attach(&network, &spec(&host, if_name, plugin, accept_ra), &pod).await;
        }
        let addresses = |name: &str| pod.inside(|| run(&format!("ip -6 address show dev {name}")));
        eventually(|| {
            other.inside(advertise);
            let shown = addresses("net2");
            shown.contains("fd0a:").then_some(()).ok_or(shown)
        });
        let routes = pod.inside(|| run("ip -6 route show default"));
        assert!(routes.contains("dev net2"), "{routes}");
        for name in ["net1", "net3"] {
            assert!(addresses(name).contains("fe80:"), "it has IPv6: {}", addresses(name));
            assert!(!addresses(name).contains("fd0a:"), "{}", addresses(name));
            assert!(!routes.contains(name), "{routes}");
        }
    });
}
