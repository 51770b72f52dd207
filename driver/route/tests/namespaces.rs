//! Routes of containers, in network namespaces of the tests' own.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../cni/tests/plugin_host/mod.rs"]
mod plugin_host;

use std::io::Write as _;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netclaim_cni::Runtime;
use plugin_host::{LONG, Netns, on_a_host, run};
use serde_json::{Value, json};

/// A container with `eth0`, whose other end is on a node, and `net1`, whose other end is a router's.
struct World {
    container: Netns,
    node: Netns,
    router: Netns,
}

/// Next hops of `eth0`, as CNIs make them: the node's address in the subnet, and Calico's.
const NEXT_HOPS: [&str; 2] = ["10.244.1.1", "169.254.1.1"];

impl World {
    fn new(next_hop: &str) -> Self {
        let world = Self { container: Netns::new(), node: Netns::new(), router: Netns::new() };
        for (link, peer, other) in [("eth0", "host0", &world.node), ("net1", "router0", &world.router)] {
            let other = other.path();
            world.inside(&format!("ip link add {link} type veth peer name {peer} netns {}", other.display()));
            world.inside(&format!("ip link set {link} up"));
        }
        world.inside("ip link set lo up");
        for (netns, commands) in [
            (
                &world.node,
                vec![
                    "ip link set lo up".to_owned(),
                    "ip link set host0 up".to_owned(),
                    format!("ip address add {next_hop}/32 dev host0"),
                    // A Service, the node, and a client of a load balancer.
                    "ip address add 10.96.0.10/32 dev lo".to_owned(),
                    "ip address add 192.0.2.10/32 dev lo".to_owned(),
                    "ip address add 198.51.100.7/32 dev lo".to_owned(),
                    "ip route add 10.244.1.5/32 dev host0 src 198.51.100.7".to_owned(),
                    "ip -6 address add fd00:244::1/64 dev host0 nodad".to_owned(),
                    "ip -6 address add fd00:96::a/128 dev lo".to_owned(),
                ],
            ),
            (
                &world.router,
                vec![
                    "ip link set lo up".to_owned(),
                    "ip link set router0 up".to_owned(),
                    "ip address add 10.9.0.1/24 dev router0".to_owned(),
                    "ip address add 203.0.113.9/32 dev lo".to_owned(),
                    "ip -6 address add fd00:9::1/64 dev router0 nodad".to_owned(),
                    "ip -6 address add 2001:db8::9/128 dev lo".to_owned(),
                ],
            ),
            (
                &world.container,
                vec![
                    if next_hop.starts_with("169.") {
                        "ip address add 10.244.1.5/32 dev eth0"
                    } else {
                        "ip address add 10.244.1.5/24 dev eth0"
                    }
                    .to_owned(),
                    format!("ip route add default via {next_hop} dev eth0 onlink"),
                    "ip -6 address add fd00:244::5/64 dev eth0 nodad".to_owned(),
                    "ip -6 route add default via fd00:244::1 dev eth0".to_owned(),
                    "ip address add 10.9.0.2/24 dev net1".to_owned(),
                    "ip -6 address add fd00:9::2/64 dev net1 nodad".to_owned(),
                ],
            ),
        ] {
            commands.iter().for_each(|command| drop(netns.inside(|| run(command))));
        }
        world.settle();
        world
    }

    /// Waits until the kernel has the routes of the IPv6 addresses, which come later.
    fn settle(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        let is_local = |state: &str, ip: &str| state.contains(&format!("local {ip} dev"));
        while !["fd00:244::5", "fd00:9::2"].iter().all(|ip| is_local(&self.state(), ip)) {
            assert!(Instant::now() < end, "{}", self.state());
            sleep(Duration::from_millis(20));
        }
    }

    fn inside(&self, command: &str) -> String {
        self.container.inside(|| run(command))
    }

    /// Runs the plugin; returns its error.
    fn plugin(&self, verb: &str, interface: &str, gateways: &[&str]) -> Result<(), String> {
        self.plugin_with(verb, interface, gateways, json!({}))
    }

    fn plugin_with(&self, verb: &str, interface: &str, gateways: &[&str], more: Value) -> Result<(), String> {
        let ip = |gateway: &&str| {
            let address = if gateway.contains(':') { "fd00:9::2/64" } else { "10.9.0.2/24" };
            json!({"address": address, "gateway": gateway})
        };
        let ips: Vec<Value> = gateways.iter().map(ip).collect();
        let mut config = json!({"cniVersion": "1.1.0", "name": "out", "type": "netclaim-route",
            "keep": ["10.244.0.0/16", "10.96.0.0/12", "192.0.2.10/32", "fd00:244::/56", "fd00:96::/112"],
            "prevResult": {"cniVersion": "1.1.0", "ips": ips}});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut child = Command::new(env!("CARGO_BIN_EXE_netclaim-route"))
            .envs([("CNI_COMMAND", verb), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", interface)])
            .env("CNI_NETNS", self.container.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stdout).unwrap()) }
    }

    /// All routes and rules of the container.
    fn state(&self) -> String {
        ["ip route show table all", "ip -6 route show table all", "ip rule", "ip -6 rule"]
            .map(|command| self.inside(command))
            .concat()
    }

    /// The interface by which packets leave, and their source.
    fn way(&self, to: &str) -> String {
        let route = self.container.show(&format!("ip -j route get {to}"));
        format!("{} {}", route["dev"].as_str().unwrap(), route["prefsrc"].as_str().unwrap_or("given"))
    }
}

/// Connects from one namespace to an address of another.
fn connects(from: &Netns, to: &Netns, address: &str) {
    let ip: IpAddr = address.parse().unwrap();
    let listener = to.inside(|| TcpListener::bind((ip, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    let end = Instant::now() + LONG;
    // Neighbours are not known at once.
    while let Err(error) =
        from.inside(|| TcpStream::connect_timeout(&(ip, port).into(), Duration::from_secs(2)))
    {
        assert!(Instant::now() < end, "{address}: {error}");
    }
}

#[test]
#[ignore = "needs root"]
fn everything_but_the_cluster_leaves_by_the_networks_interface() {
    for next_hop in NEXT_HOPS {
        let world = World::new(next_hop);
        world.plugin("ADD", "net1", &["10.9.0.1", "fd00:9::1"]).unwrap();
        for (to, way) in [
            ("203.0.113.9", "net1 10.9.0.2"),
            ("2001:db8::9", "net1 fd00:9::2"),
            ("10.96.0.10", "eth0 10.244.1.5"),
            ("10.244.77.1", "eth0 10.244.1.5"),
            ("192.0.2.10", "eth0 10.244.1.5"),
            ("fd00:96::a", "eth0 fd00:244::5"),
            ("198.51.100.7 from 10.244.1.5", "eth0 given"),
        ] {
            assert_eq!(world.way(to), way, "{next_hop}: {to}: {}", world.state());
        }
        for address in ["203.0.113.9", "2001:db8::9"] {
            connects(&world.container, &world.router, address);
        }
        for address in ["10.96.0.10", "192.0.2.10", "fd00:96::a"] {
            connects(&world.container, &world.node, address);
        }
        // As a load balancer passes a client on, by an address that is not kept.
        connects(&world.node, &world.container, "10.244.1.5");
        world.plugin("CHECK", "net1", &["10.9.0.1", "fd00:9::1"]).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn the_same_add_again_changes_nothing() {
    for gateways in [&["10.9.0.1"][..], &["fd00:9::1"], &["10.9.0.1", "fd00:9::1"]] {
        let world = World::new(NEXT_HOPS[1]);
        world.plugin("ADD", "net1", gateways).unwrap();
        let once = world.state();
        world.plugin("ADD", "net1", gateways).unwrap();
        assert_eq!(world.state(), once);
        world.plugin("CHECK", "net1", gateways).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn a_del_leaves_only_the_worse_metric_of_the_first_default_route() {
    for next_hop in NEXT_HOPS {
        for (gateways, is_gone) in [(&["10.9.0.1", "fd00:9::1"][..], false), (&["10.9.0.1"], true)] {
            let world = World::new(next_hop);
            let before = world.state();
            world.plugin("ADD", "net1", gateways).unwrap();
            if is_gone {
                world.inside("ip link del net1");
                assert_eq!(world.way("203.0.113.9"), "eth0 10.244.1.5", "before the DEL");
            }
            for _ in 0..2 {
                world.plugin("DEL", "net1", gateways).unwrap();
            }
            let lines = |state: &str| {
                let of = |line: &&str| {
                    !is_gone || !["net1", "10.9.0.", "fd00:9:"].iter().any(|word| line.contains(word))
                };
                let mut lines: Vec<String> = state
                    .lines()
                    .filter(of)
                    .map(|line| line.replace(" metric 4096", "").trim().to_owned())
                    .collect();
                lines.sort();
                lines
            };
            assert_eq!(lines(&world.state()), lines(&before), "{next_hop}");
            assert_eq!(world.way("203.0.113.9"), "eth0 10.244.1.5");
            assert_eq!(world.way("2001:db8::9"), "eth0 fd00:244::5");
            assert!(world.plugin("CHECK", "net1", gateways).is_err());
        }
    }
}

#[test]
#[ignore = "needs root"]
fn default_routes_of_the_networks_ipam_are_replaced() {
    let world = World::new(NEXT_HOPS[0]);
    // As the reference plugins add them: of IPv6 the kernel makes one route with two next hops.
    world.inside("ip route prepend default via 10.9.0.1 dev net1");
    world.inside("ip -6 route append default via fd00:9::1 dev net1");
    assert!(world.inside("ip -6 route show default").contains("nexthop"));
    world.plugin("ADD", "net1", &["10.9.0.1", "fd00:9::1"]).unwrap();
    let shown = world.inside("ip -6 route show default");
    assert!(!shown.contains("nexthop"), "{shown}");
    assert_eq!(world.inside("ip route show default").lines().count(), 2);
    for n in 1..40 {
        assert_eq!(world.way(&format!("2001:db8::{n}")), "net1 fd00:9::2", "{shown}");
    }
    world.plugin("CHECK", "net1", &["10.9.0.1", "fd00:9::1"]).unwrap();
}

#[test]
#[ignore = "needs root"]
fn a_gateway_outside_of_the_subnet_is_reached_by_the_link() {
    let world = World::new(NEXT_HOPS[1]);
    world.inside("ip address flush dev net1");
    world.inside("ip address add 10.9.0.2/32 dev net1");
    world.plugin("ADD", "net1", &["10.9.0.1"]).unwrap();
    assert_eq!(world.way("203.0.113.9"), "net1 10.9.0.2");
    connects(&world.container, &world.router, "203.0.113.9");
}

#[test]
#[ignore = "needs root"]
fn two_interfaces_have_a_family_each_and_not_the_same() {
    let world = World::new(NEXT_HOPS[1]);
    let other = world.router.path();
    world.inside(&format!("ip link add net2 type veth peer name router1 netns {}", other.display()));
    world.inside("ip link set net2 up");
    world.plugin("ADD", "net1", &["10.9.0.1"]).unwrap();
    let refusal = world.plugin("ADD", "net2", &["10.9.0.1"]).unwrap_err();
    assert!(refusal.contains("net2: another interface of the pod has the IPv4 default route"), "{refusal}");
    world.plugin("ADD", "net2", &["fd00:8::1"]).unwrap();
    world.plugin("DEL", "net2", &[]).unwrap();
    assert_eq!(world.way("2001:db8::9"), "eth0 fd00:244::5");
    world.plugin("CHECK", "net1", &["10.9.0.1"]).unwrap();
}

#[test]
#[ignore = "needs root"]
fn a_check_says_what_is_not_as_it_was() {
    let gateways = ["10.9.0.1", "fd00:9::1"];
    for (change, found) in [
        ("ip route del default dev net1", "net1: the IPv4 default route does not leave by it via 10.9.0.1"),
        (
            "ip route prepend default via 10.244.1.1 dev eth0 onlink",
            "net1: the IPv4 default route does not leave by it",
        ),
        (
            "ip -6 route replace default via fd00:9::7 dev net1 metric 512",
            "net1: the IPv6 default route does not leave by it",
        ),
        ("ip route del 10.96.0.0/12", "net1: 10.96.0.0/12 is kept by no route of eth0"),
        ("ip rule del from 10.244.1.5", "net1: there is no rule for 10.244.1.5 of eth0"),
    ] {
        let world = World::new(NEXT_HOPS[1]);
        world.plugin("ADD", "net1", &gateways).unwrap();
        world.inside(change);
        let error = world.plugin("CHECK", "net1", &gateways).unwrap_err();
        assert!(error.contains(found), "{change}: {error}");
        world.plugin("ADD", "net1", &gateways).unwrap();
        world.plugin("CHECK", "net1", &gateways).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn an_add_is_refused_with_what_to_set() {
    let world = World::new(NEXT_HOPS[1]);
    let refused =
        |interface, gateways: &[&str], more| world.plugin_with("ADD", interface, gateways, more).unwrap_err();
    let error = refused("net1", &[], json!({}));
    assert!(error.contains("net1 has no gateway: have the network's IPAM give one"), "{error}");
    let error = refused("net1", &["10.9.0.1"], json!({"keep": null}));
    assert!(error.contains("keep: is missing: write the prefixes"), "{error}");
    let error = refused("net1", &["10.9.0.1"], json!({"keep": ["10.0.0.0"]}));
    assert!(error.contains("keep: invalid"), "{error}");
    let error = refused("net1", &["10.9.0.1"], json!({"table": 254}));
    assert!(error.contains("table: 254 is one of the kernel's"), "{error}");
    let error = refused("net1", &["10.9.0.1"], json!({"interface": "ens3"}));
    assert!(error.contains("has no interface ens3, and the IPv4 default route leaves by"), "{error}");
    let error = refused("net9", &["10.9.0.1"], json!({}));
    assert!(error.contains("the container has no interface net9"), "{error}");
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_chain_of_plugins_lives_and_leaves_nothing() {
    on_a_host(&[], async |mut host| {
        let reference = std::env::var_os("NETCLAIM_CNI_BIN").unwrap();
        let ours = Path::new(env!("CARGO_BIN_EXE_netclaim-route")).parent().unwrap();
        host.runtime = Runtime::new(vec![reference.into(), ours.into()]).unwrap();
        run("ip link add eth1 type veth peer name sw1");
        run("ip link set eth1 up");
        let ipam = host.ipam(json!([[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}]]));
        let macvlan = json!({"type": "macvlan", "master": "eth1", "mode": "bridge", "ipam": ipam});
        let list = host.list("out", json!([macvlan, {"type": "netclaim-route", "keep": ["10.244.0.0/16"]}]));
        host.live(&list, &json!({}), |attached| {
            let shown =
                attached.netns.inside(|| run("ip route show default") + &run("ip -6 route show default"));
            assert!(
                shown.contains("default via 10.9.0.1 dev net1")
                    && shown.contains("default via fd00:9::1 dev net1"),
                "{shown}"
            );
        })
        .await;
    });
}
