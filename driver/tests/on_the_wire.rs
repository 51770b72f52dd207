//! What interfaces of pods tell their neighbours and what they believe, by the real plugins, in network
//! namespaces of this test's own.
//!
//! Needs root, and `NETCLAIM_CNI_BIN`, the directory of the plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netclaim_cni::{Cache, Runtime};
use netclaim_driver::attach::{
    AddFailure, Attach as _, Cause, CniPlugins, Del, DelOutcome, Failure, Sandbox, Spec, Wire,
};
use netclaim_driver::links::{self, Capture, Links};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use plugin_host::{Host, LONG, Netns, on_a_host, run, show};

/// A hardware address that is not in use any more.
const GONE: &str = "02:00:00:00:00:99";
/// All nodes of a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What the tests have an interface do.
const PROBES: Wire = Wire { accept_ra: false, probes: true, needs_gateway: false };
const NEEDS_GATEWAY: Wire = Wire { accept_ra: false, probes: false, needs_gateway: true };

fn network(host: &Host) -> CniPlugins {
    network_with(host, LONG)
}

fn network_with(host: &Host, timeout: Duration) -> CniPlugins {
    let bin = PathBuf::from(std::env::var_os("NETCLAIM_CNI_BIN").unwrap());
    let cache = Cache::new(host.data.path().join("cache"));
    CniPlugins::new(Runtime::new(vec![bin]).unwrap(), cache, Links::new("/sys"), timeout)
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

/// Makes the bridge on `up0` that the plugin makes its pods ports of, if it does.
fn bridge_for(plugin: &Value) {
    if plugin["type"] == "bridge" {
        run("ip link add br0 type bridge");
        run("ip link set up0 master br0");
        run("ip link set br0 up");
    }
}

fn spec(host: &Host, if_name: &str, plugin: Value, wire: Wire) -> Spec {
    Spec {
        tenant: "default".to_owned(),
        if_name: if_name.parse().unwrap(),
        conflist: host.list("netclaim-n", json!([plugin])),
        args: Default::default(),
        capability_args: Default::default(),
        wire,
    }
}

fn sandbox(pod: &Netns) -> Sandbox {
    let netns_id = links::Netns::open(pod.path()).unwrap().id();
    Sandbox { id: "s1".into(), netns: pod.path(), netns_id, boot_id: "b".into() }
}

/// Attaches a pod, as the agent does.
async fn attach(network: &CniPlugins, spec: &Spec, pod: &Netns) {
    let sandbox = sandbox(pod);
    network.make_ready(spec, &sandbox).await.unwrap();
    add(network, spec, &sandbox).await.unwrap();
}

async fn add(network: &CniPlugins, spec: &Spec, sandbox: &Sandbox) -> Result<(), AddFailure> {
    let made = network.add(spec, sandbox).await?;
    match network.prove(spec, sandbox, &made).await {
        Err(failure) if spec.wire.needs_proof() => {
            Err(AddFailure { failure, last_good: Some(made), stopped: None })
        }
        _ => Ok(()),
    }
}

/// Fails to attach a pod, and undoes that, as the agent does.
async fn fail(network: &CniPlugins, spec: &Spec, pod: &Netns) -> Failure {
    let sandbox = sandbox(pod);
    network.make_ready(spec, &sandbox).await.unwrap();
    let link = network.link_to_move(spec).await.unwrap();
    let AddFailure { failure, last_good, stopped } = add(network, spec, &sandbox).await.unwrap_err();
    let (netns, result) = (Some(sandbox.netns.as_path()), last_good.as_ref());
    let del =
        Del { sandbox_id: &sandbox.id, netns, result, stopped, moved_link: link.as_ref(), ..Del::default() };
    assert_eq!(network.del(spec, del).await, Ok(DelOutcome::Clean));
    failure
}

/// Waits until `look` returns nothing more to complain about.
fn eventually(look: impl Fn() -> Result<(), String>) {
    let end = Instant::now() + Duration::from_secs(5);
    while let Err(problem) = look() {
        assert!(Instant::now() < end, "{problem}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The ranges of addresses that each have one address.
fn one_of_each(host: &Host, addresses: [&str; 2]) -> Value {
    let range = |subnet: &str, ip: &str| json!([{"subnet": subnet, "rangeStart": ip, "rangeEnd": ip}]);
    host.ipam(json!([range("10.9.0.0/24", addresses[0]), range("fd09::/64", addresses[1])]))
}

/// A pod gets addresses that the neighbour knows another machine by.
async fn a_moved_address(host: Host, plugin: Value, wire: Wire) {
    let (other, pod) = (neighbour(), Netns::new());
    bridge_for(&plugin);
    let addresses = ["10.9.0.7", "fd09::7"];
    other.inside(|| {
        for address in addresses {
            run(&format!("ip neighbour replace {address} lladdr {GONE} dev sw0 nud reachable"));
        }
    });
    let mut plugin = plugin;
    plugin["ipam"] = one_of_each(&host, addresses);
    attach(&network(&host), &spec(&host, "net1", plugin.clone(), wire), &pod).await;
    let mac = pod.show("ip -j link show dev net1")["address"].clone();
    for address in addresses {
        eventually(|| {
            let known = other.show(&format!("ip -j neighbour show {address} dev sw0"));
            // The link was down while it was moved: the neighbour may know nobody by the address any more.
            let has_forgotten = plugin["type"] == "host-device" && known == json!([]);
            if known["lladdr"] == mac || has_forgotten {
                Ok(())
            } else {
                Err(format!("{plugin}: {known}, the pod has {mac}"))
            }
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
        for wire in [Wire::default(), PROBES] {
            let plugin = plugin.clone();
            on_a_host(&[], async move |host| a_moved_address(host, plugin, wire).await);
        }
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
            let wire = Wire { accept_ra, ..Wire::default() };
            attach(&network, &spec(&host, if_name, plugin, wire), &pod).await;
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

/// The plugins of the tests of addresses that other hosts have.
fn plugins() -> [Value; 3] {
    [
        json!({"type": "macvlan", "master": "up0"}),
        // It has the kernel look for no duplicates.
        json!({"type": "bridge", "bridge": "br0"}),
        json!({"type": "host-device", "device": "up0"}),
    ]
}

/// Returns the hardware address of the neighbour.
fn mac_of(other: &Netns) -> String {
    other.show("ip -j link show dev sw0")["address"].as_str().unwrap().to_owned()
}

/// A pod gets an address that the neighbour has, and then another one.
async fn a_taken_address(host: Host, mut plugin: Value, taken: &str) {
    let (other, pod) = (neighbour(), Netns::new());
    bridge_for(&plugin);
    let length = if taken.contains(':') { "64 nodad" } else { "24" };
    other.inside(|| run(&format!("ip address add {taken}/{length} dev sw0")));
    let network = network(&host);
    plugin["ipam"] = one_of_each(&host, ["10.9.0.7", "fd09::7"]);
    let failure = fail(&network, &spec(&host, "net1", plugin.clone(), PROBES), &pod).await;
    assert_eq!(failure.cause, Cause::AddressInUse, "{plugin}: {failure}");
    let found: Vec<(String, Option<String>)> =
        failure.in_use.iter().map(|of| (of.ip.to_string(), of.by.clone())).collect();
    assert_eq!(found, [(taken.to_owned(), Some(mac_of(&other)))], "{plugin}");
    assert!(failure.message.contains(&mac_of(&other)), "{failure}");
    // The plugin was asked for nothing else by netclaim: it is now.
    plugin["ipam"] = one_of_each(&host, ["10.9.0.9", "fd09::9"]);
    attach(&network, &spec(&host, "net1", plugin, PROBES), &pod).await;
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn an_address_that_another_host_has_is_not_used() {
    for plugin in plugins() {
        for taken in ["10.9.0.7", "fd09::7"] {
            let plugin = plugin.clone();
            on_a_host(&[], async move |host| a_taken_address(host, plugin, taken).await);
        }
    }
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_range_of_host_local_gives_its_next_address() {
    on_a_host(&[], async |host| {
        let (other, pod, network) = (neighbour(), Netns::new(), network(&host));
        other.inside(|| run("ip address add 10.9.0.7/24 dev sw0"));
        let range = json!([[{"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.7", "rangeEnd": "10.9.0.20"}]]);
        let plugin = json!({"type": "macvlan", "master": "up0", "ipam": host.ipam(range)});
        let spec = spec(&host, "net1", plugin, PROBES);
        assert_eq!(fail(&network, &spec, &pod).await.cause, Cause::AddressInUse);
        attach(&network, &spec, &pod).await;
        let shown = pod.inside(|| run("ip address show dev net1"));
        assert!(shown.contains("10.9.0.8/24"), "{shown}");
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn neighbours_still_know_the_host_that_has_the_address() {
    on_a_host(&[], async |host| {
        let (switch, pod, network) = (neighbour(), Netns::new(), network(&host));
        // A third machine on the same network.
        let third = Netns::new();
        switch.inside(|| {
            run("ip link add sw1 type bridge");
            run("ip link set sw0 master sw1");
            run("ip link set sw1 up");
            run("ip address add 10.9.0.7/24 dev sw1");
            run(&format!("ip link add sw2 type veth peer name up1 netns {}", third.path().display()));
            run("ip link set sw2 master sw1");
            run("ip link set sw2 up");
        });
        let holder = switch.show("ip -j link show dev sw1")["address"].as_str().unwrap().to_owned();
        third.inside(|| {
            run("ip link set up1 up");
            run("ip address add 10.9.0.33/24 dev up1");
            run(&format!("ip neighbour replace 10.9.0.7 lladdr {holder} dev up1 nud reachable"));
        });
        // It announces the address before the agent can ask who has it.
        let plugin =
            json!({"type": "macvlan", "master": "up0", "ipam": one_of_each(&host, ["10.9.0.7", "fd09::7"])});
        let failure = fail(&network, &spec(&host, "net1", plugin, PROBES), &pod).await;
        assert_eq!(failure.in_use[0].by.as_deref(), Some(holder.as_str()));
        eventually(|| {
            let known = third.show("ip -j neighbour show 10.9.0.7 dev up1");
            if known["lladdr"] == holder { Ok(()) } else { Err(format!("{known}, {holder} has it")) }
        });
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn two_interfaces_of_a_pod_on_one_network_do_not_find_each_other() {
    on_a_host(&[], async |host| {
        let (_other, pod, network) = (neighbour(), Netns::new(), network(&host));
        for if_name in ["net1", "net2"] {
            let ipam = host.ipam(json!([[{"subnet": "10.9.0.0/24"}]]));
            let plugin = json!({"type": "macvlan", "master": "up0", "ipam": ipam});
            attach(&network, &spec(&host, if_name, plugin, PROBES), &pod).await;
        }
    });
}

/// A pod needs a gateway that is there, one that is not there, and one that comes.
async fn a_required_gateway(host: Host, subnet: &str, [there, gone]: [&str; 2]) {
    let (other, pod) = (neighbour(), Netns::new());
    let network = network_with(&host, Duration::from_secs(4));
    let spec = |if_name: &str, gateway: &str| {
        let ipam = host.ipam(json!([[{"subnet": subnet, "gateway": gateway}]]));
        spec(&host, if_name, json!({"type": "macvlan", "master": "up0", "ipam": ipam}), NEEDS_GATEWAY)
    };
    let started = Instant::now();
    attach(&network, &spec("net1", there), &pod).await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());

    let failure = fail(&network, &spec("net2", gone), &pod).await;
    assert_eq!(failure.cause, Cause::GatewayUnreachable, "{failure}");
    assert!(failure.message.contains(&format!("gateway {gone} of network")), "{failure}");

    let (waiting, length) = (spec("net3", gone), if subnet.contains(':') { "64 nodad" } else { "24" });
    let comes = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        other.inside(|| run(&format!("ip address add {gone}/{length} dev sw0")));
    };
    tokio::join!(attach(&network, &waiting, &pod), comes);
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_gateway_that_is_required_must_answer() {
    for (subnet, gateways) in
        [("10.9.0.0/24", ["10.9.0.254", "10.9.0.253"]), ("fd09::/64", ["fd09::fe", "fd09::fd"])]
    {
        on_a_host(&[], async move |host| a_required_gateway(host, subnet, gateways).await);
    }
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_gateway_that_is_required_must_be_named() {
    on_a_host(&[], async |host| {
        let (_other, pod) = (neighbour(), Netns::new());
        let ipam = json!({"type": "static", "addresses": [{"address": "10.9.0.7/24"}]});
        let plugin = json!({"type": "macvlan", "master": "up0", "ipam": ipam});
        let failure = fail(&network(&host), &spec(&host, "net1", plugin, NEEDS_GATEWAY), &pod).await;
        assert!(failure.is_permanent && failure.message.contains("named no gateway"), "{failure}");
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn what_passes_through_an_interface_is_copied_in_both_directions() {
    on_a_host(&[], async |host| {
        let (network, other, pod) = (network(&host), neighbour(), Netns::new());
        let plugin =
            json!({"type": "macvlan", "master": "up0", "ipam": one_of_each(&host, ["10.9.0.7", "fd09::7"])});
        attach(&network, &spec(&host, "net1", plugin, Wire::default()), &pod).await;
        let file = host.data.path().join("pcap");
        let what = Capture { snaplen: 96, count: 6, time: LONG };
        let netns = links::Netns::open(pod.path()).unwrap();
        let out = std::fs::File::create(&file).unwrap();
        let sending = async {
            while std::fs::metadata(&file).unwrap().len() < 24 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // Nobody listens: the pod answers each by ICMP.
            other.inside(|| {
                let socket = UdpSocket::bind("10.9.0.254:0").unwrap();
                for _ in 0..8 {
                    socket.send_to(&[1; 400], "10.9.0.7:9").unwrap();
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        };
        let (copied, ()) = tokio::join!(netns.capture("net1".to_owned(), what, out, || true), sending);
        assert_eq!(copied.unwrap(), 6);
        let copied = std::fs::read(&file).unwrap();
        assert!(copied.len() <= 24 + 6 * (16 + 96), "{}", copied.len());
        // UDP of 14 + 20 + 8 + 400 bytes, of which 96 are there, and the answers.
        let number = |at: usize| u32::from_ne_bytes(*copied[at..].first_chunk().unwrap());
        let (mut at, mut protocols) = (24, Vec::new());
        while at < copied.len() {
            let (kept, length) = (number(at + 8), number(at + 12));
            let protocol = copied[at + 16..][..kept as usize][23];
            assert!(protocol != 17 || (kept, length) == (96, 442), "{kept} of {length}");
            protocols.push(protocol);
            at += 16 + kept as usize;
        }
        assert!(protocols.contains(&17) && protocols.contains(&1), "{protocols:?}");
        // Without traffic it ends when it is told to, and at the latest with its time.
        let begin = Instant::now();
        let copied =
            netns.capture("net1".to_owned(), Capture { count: u64::MAX, ..what }, std::io::sink(), || false);
        assert_eq!(copied.await.unwrap(), 0);
        let short = Capture { count: u64::MAX, time: Duration::from_millis(300), ..what };
        netns.capture("net1".to_owned(), short, std::io::sink(), || true).await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
        let error = netns.capture("net9".to_owned(), short, std::io::sink(), || true).await.unwrap_err();
        assert!(error.to_string().contains("net9"), "{error}");
    });
}
